"""What a power cut takes from the end of a store's log, and what it must not take."""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection

from strandline.catalog import Command
from strandline.catalog.commands import (
    ColumnDefinition,
    CreateTable,
    DropTable,
    RenameTable,
    TableDefinition,
)
from strandline.errors import CorruptData, IncompatibleFormat, TransactionNotFound
from strandline.metastore.store.notifications import LogPosition, Notification, NotificationLog
from strandline.metastore.store.rows import DataFile
from strandline.model.descriptors import TableKind
from strandline.model.types import INT
from strandline.node import DATABASE_FILE, Node
from strandline.node.relocation import relocate
from strandline.node.store_database import MARKS, accept_loss, head_of
from strandline.node.store_place import HEAD_FILE
from strandline.sql import SqliteDatabase
from strandline.sql.head_file import HeadFile, Mark
from tests.node.crashed_stores import left_by_a_crash, log_of, table_names, write_some
from tests.strandline_command import strandline

# -- a log that is lost ------------------------------------------------------------------------


def test_effects_of_ddl_outside_the_catalog_are_redone_after_a_power_cut(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    crashed, move_projection = tmp_path / "crashed", NotificationLog.move_projection

    def cut_first(*arguments: Any, **named: Any) -> LogPosition:  # Any: as the log's
        if not crashed.exists():
            shutil.copytree(folder, crashed)
        return move_projection(*arguments, **named)

    with Node.open(folder) as node:
        session = node.session(user="ann")
        session.execute(create_t())
        (folder / "warehouse" / "t" / "data").touch()
        monkeypatch.setattr(NotificationLog, "move_projection", cut_first)
        session.execute(RenameTable(schema="default", table="t", new_name="u"))
        before = events(node)
    assert (crashed / "warehouse" / "u").exists()
    relocate(crashed, copy=True)
    with Node.open(crashed) as node:
        table = node.session(user="ann").table("default.u")
        assert table.location == f"file://{crashed}/warehouse/u"
        assert (crashed / "warehouse" / "u" / "data").exists()
        assert events(node) == before


def events(node: Node) -> list[Notification]:
    return node.notifications.read(0, limit=100)


def create_t() -> CreateTable:
    columns = (ColumnDefinition("a", INT),)
    return CreateTable(schema="default", definition=TableDefinition(name="t", columns=columns))


def run_until_power_cut(
    folder: Path, crashed: Path, *commands: Command, last_step: Callable[[Node], object]
) -> None:
    """Create a table ``t`` with a file, execute ``commands``, call ``last_step``, cut the power."""
    synced: list[int] = []
    with Node.open(folder) as node, pytest.MonkeyPatch.context() as patch:
        session = node.session(user="ann")
        session.execute(create_t())
        (folder / "warehouse" / "t" / "data").touch()
        write = SqliteDatabase._write

        @contextmanager
        def noted_write(*arguments: Any, **named: Any) -> Iterator[Connection]:  # Any: as there
            with write(*arguments, **named) as connection:
                yield connection
            if named["synced"]:
                synced.append(log_of(folder).stat().st_size)

        patch.setattr(SqliteDatabase, "_write", noted_write)
        session.execute(commands)
        last_step(node)
        shutil.copytree(folder, crashed)
    os.truncate(log_of(crashed), synced[-1])  # what was not synced is lost
    relocate(crashed, copy=True)


def test_tables_that_used_the_same_folder_keep_their_folders_after_a_power_cut(
    folder: Path, tmp_path: Path
) -> None:
    crashed = tmp_path / "crashed"
    rename = RenameTable(schema="default", table="t", new_name="u")
    run_until_power_cut(folder, crashed, rename, create_t(), last_step=lambda _: None)
    with Node.open(crashed) as node:
        session = node.session(user="ann")
        for name in ("t", "u"):
            assert session.table(f"default.{name}").location == f"file://{crashed}/warehouse/{name}"
    assert (crashed / "warehouse" / "u" / "data").exists()


@pytest.mark.parametrize("purge", [False, True])
def test_files_written_at_the_place_of_a_dropped_table_survive_a_power_cut(
    folder: Path, tmp_path: Path, purge: bool
) -> None:
    crashed = tmp_path / "crashed"

    def write_anew(_: Node) -> None:
        (folder / "warehouse" / "t").mkdir()
        (folder / "warehouse" / "t" / "new").touch()

    drop = DropTable(schema="default", table="t", purge=purge)
    run_until_power_cut(folder, crashed, drop, last_step=write_anew)
    with Node.open(crashed) as node:
        assert (crashed / "warehouse" / "t" / "new").exists()
        session = node.session(user="ann")
        session.execute(create_t())
        assert session.table("default.t").location == f"file://{crashed}/warehouse/t"


def write_nothing(node: Node) -> None:
    node.transactions.holds.release(99)  # hold 99 does not exist, so the commit syncs nothing


def open_beside(node: Node) -> None:
    Node.open(node.folder, background=False).close()


@pytest.mark.parametrize("last_step", [write_nothing, open_beside])
def test_the_head_file_names_no_event_that_a_power_cut_may_lose(
    folder: Path, tmp_path: Path, last_step: Callable[[Node], None]
) -> None:
    crashed = tmp_path / "crashed"
    with Node.open(folder) as node:
        elsewhere = TableDefinition(
            name="e", columns=(ColumnDefinition("a", INT),), kind=TableKind.EXTERNAL, location="/e"
        )
        node.session(user="ann").execute(CreateTable(schema="default", definition=elsewhere))
    run_until_power_cut(
        folder, crashed, DropTable(schema="default", table="e"), last_step=last_step
    )
    with Node.open(crashed) as node:
        assert node.session(user="ann").tables("default") == ["t"]


def after_a_power_cut(folder: Path, crashed: Path, *, synced: int) -> Path:
    """A copy of the store whose log is truncated after its first ``synced`` bytes."""
    shutil.copytree(folder, crashed)
    os.truncate(log_of(crashed), synced)
    relocate(crashed, copy=True)
    return crashed


def test_a_transaction_lost_in_a_power_cut_is_not_found_and_its_id_is_not_reused(
    folder: Path, tmp_path: Path
) -> None:
    Node.open(folder).close()
    with Node.open(folder) as node:
        write_some(node, 1)
        session = node.session(user="ann")
        table_id = session.table("t0").descriptor.id
        synced = log_of(folder).stat().st_size
        lost = session.begin().txn_id
        assert log_of(folder).stat().st_size > synced
        crashed = after_a_power_cut(folder, tmp_path / "crashed", synced=synced)
    with Node.open(crashed) as node:
        session = node.session(user="ann")
        assert session.begin().txn_id > lost
        content = DataFile(file_id=lost << 20, path="g", rows=1, bytes=1)
        for call in (
            lambda: session.stage(lost, table_id, add=[content]),
            lambda: session.commit(lost),
            lambda: session.heartbeat(lost),
        ):
            with pytest.raises(TransactionNotFound, match=f"transaction {lost}"):
                call()


def test_staged_rows_survive_a_power_cut_and_can_be_committed(folder: Path, tmp_path: Path) -> None:
    Node.open(folder).close()
    with Node.open(folder) as node:
        write_some(node, 1)
        session = node.session(user="ann")
        table_id, txn_id = session.table("t0").descriptor.id, session.begin().txn_id
        content = DataFile(file_id=txn_id << 20, path="g", rows=1, bytes=1)
        session.stage(txn_id, table_id, add=[content])
        synced = log_of(folder).stat().st_size
        session.begin()
        crashed = after_a_power_cut(folder, tmp_path / "crashed", synced=synced)
    with Node.open(crashed) as node:
        session = node.session(user="ann")
        session.commit(txn_id)
        snapshot = session.open(["t0"])
        files = session.files(table_id, snapshot.write_ids[table_id]).data_files
        assert [file.path for file in files] == ["f", "g"]


def test_transaction_ids_have_gaps_only_after_a_kill(folder: Path, tmp_path: Path) -> None:
    with Node.open(folder) as node:
        first = node.transactions.begin(user="ann").txn_id
    with Node.open(folder) as node:
        assert node.transactions.begin(user="ann").txn_id == first + 1
        killed = shutil.copytree(folder, tmp_path / "killed")
    relocate(killed, copy=True)
    with Node.open(killed) as node:
        assert node.transactions.get(first + 1).txn_id == first + 1
        assert node.transactions.begin(user="ann").txn_id > first + 2


def test_a_crashed_store_has_everything_that_was_committed(folder: Path, tmp_path: Path) -> None:
    crashed = left_by_a_crash(folder, tmp_path / "crashed", 3)
    relocate(crashed, copy=True)
    with Node.open(crashed) as node:
        assert {f"t{n}" for n in range(5)} <= set(table_names(node))


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["removed", "cut", "flipped"])
def test_a_lost_log_tail_is_reported_and_can_be_accepted(
    folder: Path, tmp_path: Path, damage: str
) -> None:
    crashed = left_by_a_crash(folder, tmp_path / "crashed", 3)
    whole = log_of(crashed).read_bytes()
    if damage == "removed":
        log_of(crashed).unlink()
        (crashed / f"{DATABASE_FILE}-shm").unlink()
    elif damage == "cut":
        log_of(crashed).write_bytes(whole[: len(whole) // 2])
    else:
        middle = len(whole) // 2
        log_of(crashed).write_bytes(
            whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :]
        )
    said = head_of(crashed).recorded_marks()
    assert said is not None
    for _ in range(2):
        with pytest.raises(CorruptData, match=r"missing are catalog version.*transaction"):
            Node.open(crashed)
    with pytest.raises(CorruptData, match=r"missing are catalog version.*transaction"):
        relocate(crashed, copy=True)
    refused = strandline("log", crashed)
    assert refused.exit_code == 65
    refusal = strandline("accept-loss", crashed, input="n\n")
    assert refusal.exit_code == 1
    assert re.search(r"transaction \d+, \d+ lost\n.*Continue\?", refusal.output, re.DOTALL)
    assert head_of(crashed).recorded_marks() == said  # so the loss is still noticed
    result = strandline("accept-loss", crashed, "--yes")
    assert result.exit_code == 0, result.output
    assert "lost" in result.output
    relocate(crashed, copy=True)
    with Node.open(crashed) as node:
        write_some(node, 1, first=10)
    losses = list[tuple[dict[str, int], dict[str, int]]]()
    accept_loss(crashed, confirm=lambda before, now: losses.append((before, now)))
    [(before, now)] = losses
    assert before == now  # nothing is missing any more


def test_a_loss_that_cannot_be_recorded_as_accepted_is_refused_and_the_file_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with Node.open(folder) as node:
        write_some(node, 1)
    monkeypatch.setattr(os, "pwrite", fail)
    result = strandline("accept-loss", folder, "--yes")
    assert result.exit_code == 69
    assert f"{folder / HEAD_FILE} cannot be written: Input/output error" in result.stderr
    monkeypatch.undo()
    assert strandline("accept-loss", folder, "--yes").exit_code == 0


def test_a_head_file_of_a_newer_release_is_refused_and_kept(folder: Path) -> None:
    with Node.open(folder) as node:
        write_some(node, 1)
        newer = HeadFile(folder / HEAD_FILE, (*MARKS, Mark("branch", "txn", "SELECT 3")))
        newer.note({"branch": 3})
        write_some(node, 1, first=1)  # a node that runs beside that of the newer release
    marks = newer.recorded_marks()
    assert marks is not None
    assert (marks["branch"], marks["transaction"]) == (3, 2)
    newer.close()
    written = (folder / HEAD_FILE).read_bytes()
    with pytest.raises(IncompatibleFormat, match=r"records 'branch'.* newer release"):
        Node.open(folder)
    result = strandline("accept-loss", folder, "--yes")
    assert result.exit_code == 78
    assert "'branch'" in result.output
    assert (folder / HEAD_FILE).read_bytes() == written


def test_the_id_of_a_transaction_that_was_lost_is_not_assigned_again(
    folder: Path, tmp_path: Path
) -> None:
    """Its client would commit the transaction of another one."""
    Node.open(folder).close()
    shutil.copy(folder / DATABASE_FILE, tmp_path / "older.db")
    with Node.open(folder) as node:
        write_some(node, 2)
        begun = node.transactions.begin(user="ann").txn_id
    shutil.copy(tmp_path / "older.db", folder / DATABASE_FILE)
    assert strandline("accept-loss", folder, "--yes").exit_code == 0
    with Node.open(folder) as node:
        assert node.transactions.begin(user="ann").txn_id > begun


def test_a_database_of_another_store_is_not_taken_for_an_older_one(
    folder: Path, tmp_path: Path
) -> None:
    """To accept the loss, and then to relocate it, would let it clean the files of this store."""
    Node.open(tmp_path / "other").close()
    with Node.open(folder) as node:
        write_some(node, 1)
    shutil.copy(tmp_path / "other" / DATABASE_FILE, folder / DATABASE_FILE)
    with pytest.raises(CorruptData, match=rf"last opened in {tmp_path}/other.*put the right one"):
        Node.open(folder)


def test_the_missing_versions_events_and_transactions_are_named_exactly(
    folder: Path, tmp_path: Path
) -> None:
    with Node.open(folder) as node:
        write_some(node, 1)
        version = node.catalogs.latest_catalog().version
        event, transaction = node.notifications.head(), 1
    shutil.copy(folder / DATABASE_FILE, tmp_path / "older.db")
    with Node.open(folder) as node:
        write_some(node, 3, first=1)
        last, last_event = node.catalogs.latest_catalog().version, node.notifications.head()
    shutil.copy(tmp_path / "older.db", folder / DATABASE_FILE)
    with pytest.raises(CorruptData) as refused:
        Node.open(folder)
    assert (
        f"missing are catalog versions {version + 1} to {last}, events {event + 1} to {last_event},"
        f" transactions {transaction + 1} to 4, which were committed"
    ) in refused.value.message
