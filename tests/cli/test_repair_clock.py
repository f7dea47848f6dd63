"""``strandline repair-clock``: the repair of a store whose time is years ahead."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from strandline.catalog.commands import ColumnDefinition, CreateSchema, CreateTable, TableDefinition
from strandline.clock import HybridClock, milliseconds, system_wall_clock
from strandline.config import Settings
from strandline.errors import InvalidInput, WrongClock
from strandline.metastore.store.file_scans import data_path
from strandline.metastore.store.rows import FILE_NUMBER_BITS, DataFile
from strandline.model.types import BIGINT
from strandline.node import DATABASE_FILE, Node
from strandline.sql import open_sqlite, take_time
from tests.strandline_command import strandline

YEARS_MS = 4 * 365 * 24 * 60 * 60 * 1000


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A store that a node with a clock four years ahead has written to."""
    folder = tmp_path / "s"
    Node.open(folder).close()
    database = open_sqlite(folder / DATABASE_FILE)
    with database.write() as connection:
        take_time(connection, HybridClock(lambda: system_wall_clock() + YEARS_MS))
    database.close()
    return folder


def run(*arguments: object) -> str:
    result = strandline(*arguments)
    assert result.exit_code == 0, result.output
    return result.output


def test_a_store_years_ahead_can_be_written_again_once_its_time_is_accepted(folder: Path) -> None:
    with Node.open(folder) as node:
        session = node.session(user="ann")
        attempts: list[Callable[[], object]] = [
            lambda: session.execute(CreateSchema(name="a")),
            session.begin,
        ]
        for attempt in attempts:
            with pytest.raises(WrongClock, match="run `strandline repair-clock` on this store"):
                attempt()
        assert session.tables("default") == []
        (problem,) = node.health.report()
        assert (problem.check, problem.stops_reads) == ("clock", False)
        output = run("repair-clock", folder)
        assert "the store is 1,4" in output
        assert "nothing was changed; if this machine's clock is right, add --yes" in output
        with pytest.raises(WrongClock):
            session.begin()
        assert "the store can be written again" in run("repair-clock", folder, "--yes")
        assert node.health.report() == []
        first, second = (session.execute(CreateSchema(name=name)) for name in "ab")
        assert second.time > first.time
        assert milliseconds(first.time) == milliseconds(second.time)
        txn = session.begin()
        assert session.commit(txn.txn_id).commit_time is not None
    assert "this time was accepted before" in run("repair-clock", folder, "--yes")
    with Node.open(folder) as node:
        node.session(user="ann").execute(CreateSchema(name="c"))


def test_the_disk_can_be_freed_before_the_clock_has_caught_up(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("repair-clock", folder, "--yes")
    column = ColumnDefinition("k", BIGINT)
    table = TableDefinition(name="t", columns=(column,), transactional=True)
    with Node.open(folder) as node:
        session = node.session(user="ann")
        session.execute(CreateTable(schema="default", definition=table))
        table_id = session.table("default.t").descriptor.id
        replaced: list[str] = []
        for _ in range(2):
            txn_id = session.begin().txn_id
            file_id = txn_id << FILE_NUMBER_BITS
            file = DataFile(file_id=file_id, path=data_path(file_id, "x"), rows=1, bytes=1)
            session.stage(txn_id, table_id, add=[file], remove=replaced)
            session.commit(txn_id)
            replaced = [file.path]
        version = session.execute(CreateSchema(name="a")).version
    run("trim", folder, version)
    assert "removed rows" not in run("clean", folder, "--yes")
    monkeypatch.setenv("STRANDLINE_SNAPSHOT_HOLD_MS", "0")
    assert "removed rows" in run("clean", folder, "--yes")


def test_a_store_whose_time_is_right_is_not_changed(tmp_path: Path) -> None:
    Node.open(tmp_path / "s").close()
    before = (tmp_path / "s" / DATABASE_FILE).read_bytes()
    assert "nothing to repair" in run("repair-clock", tmp_path / "s", "--yes")
    assert (tmp_path / "s" / DATABASE_FILE).read_bytes() == before


def test_a_time_within_the_limit_of_the_setting_is_not_accepted(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("STRANDLINE_CLOCK_AHEAD_LIMIT_MS", str(2 * YEARS_MS))
        assert "nothing to repair" in run("repair-clock", folder, "--yes")
    with Node.open(folder) as node, pytest.raises(WrongClock):
        node.session(user="ann").begin()


def test_a_setting_limits_how_far_ahead_a_store_may_be(folder: Path) -> None:
    allowed = Settings(clock_ahead_limit_ms=2 * YEARS_MS)
    with Node.open(folder, settings=allowed) as node:
        node.session(user="ann").execute(CreateSchema(name="a"))
    with pytest.raises(InvalidInput, match="clock_ahead_limit_ms is 1"):
        Settings(clock_ahead_limit_ms=1)
