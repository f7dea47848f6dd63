"""How many bytes the tables take: measured by a node, recorded in the log, shown to clients.

On a folder and on PostgreSQL. What the logs do with the records is tested in their contract.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from strandline.catalog import Catalog, storage_usage
from strandline.catalog.commands import (
    ColumnDefinition,
    CreateSchema,
    CreateTable,
    DropTable,
    RenameTable,
    TableDefinition,
)
from strandline.catalog.storage_usage import RecordedSizes, storage_usage_of
from strandline.clock import (
    MIN_TIMESTAMP,
    Timestamp,
    add_milliseconds,
    milliseconds_before,
    system_wall_clock,
)
from strandline.config import Settings
from strandline.durable import UpdateLog
from strandline.durable.log import Scanned
from strandline.errors import CorruptData, ObjectNotFound, Stopping
from strandline.metastore.session import HttpSession
from strandline.metastore.session.http_app import HttpApplication
from strandline.metastore.store import storage_sizes
from strandline.metastore.store.storage_sizes import measured_sizes
from strandline.model.types import INT
from strandline.node import Node
from strandline.node.chores import Chores, StorageRecorder
from tests.metastore.session.served import serving
from tests.servers import stores
from tests.strandline_command import strandline

DAY_MS = 86_400_000


@pytest.fixture(params=["folder", "postgresql"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> stores.EmptyStore:
    log, _, kind = request.param.rpartition(" in ")
    made = stores.new_store(kind, tmp_path)
    return made._replace(settings=replace(made.settings, catalog_log=log))


on_every_log = pytest.mark.parametrize(
    "store",
    ["folder", "postgresql", *(f"{log} in folder" for log in ("stash", "persist", "shadow"))],
    indirect=True,
)


@pytest.fixture
def node(store: stores.EmptyStore) -> Iterator[Node]:
    with Node.open(store.address, settings=store.settings) as node:
        session = node.session(user="ann")
        session.execute(CreateSchema(name="s"))
        for name in ("a", "b"):
            session.execute(table(name))
        yield node


def table(name: str) -> CreateTable:
    columns = (ColumnDefinition("c", INT),)
    return CreateTable(schema="s", definition=TableDefinition(name=name, columns=columns))


def folder_of(node: Node, name: str) -> Path:
    return Path(urlsplit(node.session(user="ann").table(name).location).path)


def write(node: Node, name: str, path: str, size: int) -> None:
    """Put a file of ``size`` bytes into the folder of a table."""
    folder = folder_of(node, name)
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    (folder / path).write_bytes(b"x" * size)


def sizes(node: Node) -> dict[str, int]:
    return {usage.table: usage.size_bytes for usage in node.session(user="ann").storage_usage()}


def test_the_files_in_the_folder_of_a_table_are_measured(node: Node) -> None:
    assert sizes(node) == {}
    write(node, "s.a", "part-1.parquet", 10)
    write(node, "s.a", "_files/_hidden/1.parquet", 32)
    node.storage.measure()
    assert sizes(node) == {"s.a": 42, "s.b": 0}
    write(node, "s.b", "1", 7)
    node.storage.measure()
    assert sizes(node) == {"s.a": 42, "s.b": 7}
    session = node.session(user="ann")
    assert [size.size_bytes for size in session.storage_usage("s.b")] == [0, 7]
    (only,) = session.storage_usage("s.a")
    assert only.table_id == session.table("s.a").descriptor.id
    assert [v.time for v in session.history()][-1] < only.time < node.catalogs.present().time


def test_a_measurement_is_a_silent_version_and_none_if_nothing_changed(
    node: Node,
) -> None:
    before, seen = node.catalogs.present().version, node.session(user="ann").history()
    node.storage.measure()
    assert node.catalogs.present().version == before + 1
    node.storage.measure()
    assert node.catalogs.present().version == before + 1
    assert node.session(user="ann").history() == seen
    write(node, "s.a", "1", 1)
    node.storage.measure()
    assert node.catalogs.present().version == before + 2


@on_every_log
def test_storage_usage_records_survive_a_trim_of_the_history(node: Node) -> None:
    write(node, "s.a", "1", 1)
    node.storage.measure()
    write(node, "s.b", "1", 2)
    node.storage.measure()
    node.session(user="ann").compact(node.catalogs.present().version)
    assert sizes(node) == {"s.a": 1, "s.b": 2}
    assert [usage.size_bytes for usage in node.session(user="ann").storage_usage("s.b")] == [0, 2]


def record(
    node: Node, recorded: RecordedSizes, sizes: dict[int, int], *, at: Timestamp, days: int
) -> None:
    """Record ``sizes`` as measured at ``at``, with a retention of ``days`` days."""
    storage_usage.record_storage_usage(
        node.catalogs,
        recorded,
        sizes,
        catalog=node.catalogs.present(),
        at=at,
        oldest=milliseconds_before(at, days * DAY_MS) if days else MIN_TIMESTAMP,
    )


@on_every_log
@pytest.mark.parametrize("knows_the_log", [True, False])
def test_records_past_retention_are_removed_and_each_table_keeps_its_last_size(
    node: Node, knows_the_log: bool
) -> None:
    a, b = (node.session(user="ann").table(f"s.{name}").descriptor.id for name in "ab")
    log, always = node.catalogs.state.log, RecordedSizes()
    for sizes_then in ({a: 1, b: 10}, {a: 2, b: 10}, {a: 3, b: 10}):
        now = node.catalogs.now()
        record(node, always, sizes_then, at=now, days=1)
    times = [usage.time for usage in storage_usage_of(log, node.catalogs.present(), a)]
    assert len(times) == 3
    # A day after the second record: a record of exactly the age of the retention is kept, and the
    # only record of b is written again.
    recorded = always if knows_the_log else RecordedSizes()
    record(node, recorded, {a: 3, b: 10}, at=add_milliseconds(times[1], DAY_MS), days=1)
    catalog = node.catalogs.present()
    assert [usage.time for usage in storage_usage_of(log, catalog, a)] == times[1:]
    assert [usage.size_bytes for usage in storage_usage_of(log, catalog, b)] == [10]
    assert storage_usage_of(log, catalog, b)[0].time > times[2]
    # A retention of 0 removes nothing, and a longer retention brings nothing back.
    record(node, recorded, {a: 3, b: 10}, at=add_milliseconds(times[2], 9 * DAY_MS), days=0)
    record(node, recorded, {a: 3, b: 10}, at=add_milliseconds(times[2], 9 * DAY_MS), days=30)
    assert [usage.time for usage in storage_usage_of(log, catalog, a)] == times[1:]
    assert node.catalogs.present().version == catalog.version


def test_a_table_missing_in_a_measurement_keeps_its_last_size(node: Node) -> None:
    write(node, "s.a", "1", 7)
    node.storage.measure()
    a, b = (node.session(user="ann").table(f"s.{name}").descriptor.id for name in "ab")
    at = add_milliseconds(node.catalogs.now(), 9 * DAY_MS)
    record(node, RecordedSizes(), {b: 8}, at=at, days=1)
    assert sizes(node) == {"s.a": 7, "s.b": 8}
    log, catalog = node.catalogs.state.log, node.catalogs.present()
    assert [usage.size_bytes for usage in storage_usage_of(log, catalog, a)] == [7]


def test_a_retention_longer_than_all_timestamps_keeps_everything(node: Node) -> None:
    node.storage.measure()
    record(node, RecordedSizes(), {}, at=node.catalogs.now(), days=1_000_000)
    assert sizes(node) == {"s.a": 0, "s.b": 0}


@on_every_log
@pytest.mark.parametrize(("retention_ms", "kept"), [(1, [3]), (0, [1, 2, 3])])
def test_a_node_removes_records_older_than_its_retention_setting(
    store: stores.EmptyStore, retention_ms: int, kept: list[int]
) -> None:
    """A retention of 0 keeps all."""
    settings = replace(
        store.settings, storage_usage_interval_ms=0, storage_usage_retention_ms=retention_ms
    )
    with Node.open(store.address, settings=settings) as node:
        node.session(user="ann").execute([CreateSchema(name="s"), table("a")])
        for size in (1, 2):
            write(node, "s.a", "1", size)
            node.storage.measure()
            wait_until(node, add_milliseconds(node.catalogs.present().time, 2))
        write(node, "s.a", "1", 3)
        node.storage.measure()
        usages = node.session(user="ann").storage_usage("s.a")
        assert [usage.size_bytes for usage in usages] == kept


def test_a_leap_of_the_clock_does_not_age_the_records(tmp_path: Path) -> None:
    """A node starts again with a clock that is months ahead."""
    settings = Settings(storage_usage_interval_ms=0, clock_ahead_limit_ms=DAY_MS)
    ahead = [0]
    for size in (1, 2):
        with Node.open(
            tmp_path / "lake", settings=settings, wall=lambda: system_wall_clock() + ahead[0]
        ) as node:
            if size == 1:
                node.session(user="ann").execute([CreateSchema(name="s"), table("a")])
                node.transactions.holds.cleaning_limit()
            write(node, "s.a", "1", size)
            node.storage.measure()
            recorded = node.session(user="ann").storage_usage("s.a")
        ahead[0] = 90 * DAY_MS
    assert [usage.size_bytes for usage in recorded] == [1, 2]


def wait_until(node: Node, time: Timestamp) -> None:
    while node.catalogs.now() <= time:
        pass


def test_a_dropped_table_is_not_shown(node: Node) -> None:
    node.storage.measure()
    node.session(user="ann").execute(DropTable(schema="s", table="a"))
    assert sizes(node) == {"s.b": 0}
    with pytest.raises(ObjectNotFound, match=r"s\.a"):
        node.session(user="ann").storage_usage("s.a")
    node.storage.measure()
    assert sizes(node) == {"s.b": 0}


def test_only_one_of_two_concurrent_measurements_is_recorded(
    node: Node, store: stores.EmptyStore
) -> None:
    with Node.open(store.address, settings=store.settings, background=False) as other:
        catalog = other.catalogs.present()
        a = node.session(user="ann").table("s.a").descriptor.id
        node.storage.measure()
        version = node.catalogs.present().version
        at = add_milliseconds(other.catalogs.now(), 9 * DAY_MS)
        storage_usage.record_storage_usage(
            other.catalogs, RecordedSizes(), {a: 99}, catalog=catalog, at=at, oldest=at
        )
        assert other.catalogs.present().version == version
        assert sizes(node)["s.a"] == 0


def test_many_tables_are_recorded_in_parts_even_with_a_clock_that_is_behind(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage_usage, "TABLES_AT_ONCE", 2)
    ids = {name: node.session(user="ann").table(f"s.{name}").descriptor.id for name in ("a", "b")}
    node.storage.measure()
    before = node.catalogs.present()
    since = storage_usage.measured(before)
    assert since is not None
    every = {ids["a"]: 5, ids["b"]: 6, 1_000: 1, 1_001: 1, 1_002: 1}
    record(node, RecordedSizes(), every, at=since, days=0)
    assert node.catalogs.present().version == before.version + 3
    assert sizes(node) == {"s.a": 5, "s.b": 6}


def test_a_node_measures_periodically(store: stores.EmptyStore) -> None:
    often = replace(store.settings, storage_usage_interval_ms=20)
    with Node.open(store.address, settings=often) as node:
        node.session(user="ann").execute([CreateSchema(name="s"), table("a")])
        write(node, "s.a", "1", 3)
        end = time.monotonic() + 60
        while sizes(node) != {"s.a": 3}:
            assert time.monotonic() < end, "nothing was measured in a minute"
            time.sleep(0.01)


@pytest.fixture
def clock_of(node: Node, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Sets the clock of the measuring to a number of milliseconds after the start."""
    start = node.catalogs.now()

    def move(ms: int) -> None:
        monkeypatch.setattr(node.catalogs, "now", lambda: add_milliseconds(start, ms))

    return move


def test_a_measurement_is_due_an_hour_after_the_first_start_and_then_each_day(
    node: Node, clock_of: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def recorder() -> StorageRecorder:
        return StorageRecorder(
            node.database,
            node.folders,
            node.catalogs,
            node.settings,
            Chores(),
            time_before=node.transactions.holds.time_before,
        )

    clock_of(0)
    fresh = recorder()
    clock_of(3_590_000)
    assert not fresh.is_due()
    clock_of(3_600_000)
    assert fresh.is_due()
    fresh.measure_when_due()
    assert sizes(node) == {"s.a": 0, "s.b": 0}
    assert not fresh.is_due()
    of_another_node = recorder()
    clock_of(3_600_000 + DAY_MS - 1_000)
    assert not fresh.is_due()
    assert not of_another_node.is_due()
    clock_of(3_600_000 + DAY_MS)
    assert fresh.is_due()
    assert of_another_node.is_due()
    # A measurement that fails or finds nothing new is repeated a day later.
    monkeypatch.setattr(node.folders, "path_text", lambda _: "/nowhere")
    fresh.measure_when_due()
    assert not fresh.is_due()


def measure(node: Node, *, stop: Callable[[], object] = lambda: None) -> dict[str, int]:
    """What would be recorded, by table name."""
    tables = {table.id: table.name for table in node.catalogs.present().tables()}
    sizes = measured_sizes(node.database, node.folders, set(tables), refuse_when_stopping=stop)
    return {tables[table_id]: size for table_id, size in sizes.items()}


def test_a_stopping_node_ends_a_measurement(node: Node) -> None:
    for n in range(300):
        write(node, "s.a", f"{n}", 1)
    asked = []

    def stop() -> None:
        asked.append(1)
        if len(asked) > 2:
            raise Stopping("the node is stopping")

    with pytest.raises(Stopping):
        measure(node, stop=stop)
    assert len(asked) == 3


def test_a_file_deleted_during_a_measurement_is_not_counted(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as the temporary files of a running writer."""
    for path in ("1", "inner/2", "gone/3", "4.tmp"):
        write(node, "s.a", path, 10)
    folder = folder_of(node, "s.a")
    real = os.scandir

    @contextmanager
    def scandir(path: str) -> Iterator[list[os.DirEntry[str]]]:
        if path.endswith("gone"):
            (Path(path) / "3").unlink()
            Path(path).rmdir()
        with real(path) as entries:
            pairs = list(entries)
        if Path(path) == folder:
            (folder / "4.tmp").unlink()
        yield pairs

    monkeypatch.setattr(os, "scandir", scandir)
    assert measure(node) == {"a": 20, "b": 0}


def test_a_table_with_an_unreadable_folder_is_left_out(
    node: Node, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write(node, "s.a", "inner/1", 10)
    real = os.scandir

    def scandir(path: str) -> object:
        if path.endswith("inner"):
            raise PermissionError(13, "Permission denied", path)
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    assert measure(node) == {"b": 0}
    assert "the sizes of 1 tables were not measured" in caplog.text


def test_tables_that_swap_names_during_a_measurement_are_left_out(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder of one table is that of the other after the swap."""
    session = node.session(user="ann")
    session.execute(table("c"))
    for name, size in (("a", 10), ("b", 1_000), ("c", 7)):
        write(node, f"s.{name}", "1", size)
    real = storage_sizes._bytes_in
    swapped: list[int] = []

    def swapping(*arguments: Any) -> int:
        if not swapped:
            swapped.append(1)
            for old, new in (("a", "x"), ("b", "a"), ("x", "b")):
                session.execute(RenameTable(schema="s", table=old, new_name=new))
        return real(*arguments)

    monkeypatch.setattr(storage_sizes, "_bytes_in", swapping)
    assert measure(node) == {"c": 7}
    assert measure(node) == {"a": 1_000, "b": 10, "c": 7}


def test_files_behind_symbolic_links_are_not_counted(node: Node, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "large").write_bytes(b"x" * 5_000)
    write(node, "s.a", "1", 10)
    folder = folder_of(node, "s.a")
    (folder / "folder").symlink_to(elsewhere)
    (folder / "file").symlink_to(elsewhere / "large")
    other = folder_of(node, "s.b")
    other.rmdir()
    other.symlink_to(elsewhere)
    assert measure(node) == {"a": 10}


def test_a_second_measurement_reads_only_new_records(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = node.catalogs.state.log
    starts = []
    real = type(log).scan

    def scan(self: UpdateLog, kind: str, start: int, end: int) -> Iterator[Scanned]:
        starts.append(start)
        return real(self, kind, start, end)

    monkeypatch.setattr(type(log), "scan", scan)
    node.storage.measure()
    upper = log.frontier().upper
    write(node, "s.a", "1", 3)
    node.storage.measure()
    assert starts == [1, upper - 1]


def test_a_measurement_decodes_no_table(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """There may be very many, and a thread that computes delays the event loop."""
    node.storage.measure()
    write(node, "s.a", "1", 3)
    decoded: list[int] = []
    with monkeypatch.context() as patch:
        patch.setattr(Catalog, "table_by_id", lambda _, table_id: decoded.append(table_id))
        node.storage.measure()
    assert decoded == []
    assert sizes(node) == {"s.a": 3, "s.b": 0}


def test_a_damaged_record_of_storage_usage_is_found(tmp_path: Path) -> None:
    with Node.open(tmp_path / "s") as node:
        node.session(user="ann").execute([CreateSchema(name="s"), table("a")])
        node.storage.measure()
        with node.database.write() as connection:
            (key, data), *_ = connection.exec_driver_sql(
                "SELECT key, value FROM metastorage WHERE key LIKE '%storage_usage_event%'"
            )
            spoiled = data[:-1] + bytes([data[-1] ^ 1])
            connection.exec_driver_sql(
                "UPDATE metastorage SET value = ? WHERE key = ?", (spoiled, key)
            )
        with pytest.raises(CorruptData, match=r"the storage usage in version \d+"):
            node.session(user="ann").storage_usage()
    result = strandline("verify", tmp_path / "s")
    assert result.exit_code != 0
    assert "the storage usage in version" in result.output


def test_storage_usage_is_read_over_http(node: Node) -> None:
    root = node.session(user="root")
    write(node, "s.a", "1", 3)
    node.storage.measure()
    with serving(HttpApplication(node.metastore)) as url:
        bob = HttpSession(url, user="bob")
        assert bob.storage_usage() == root.storage_usage()
        assert [usage.size_bytes for usage in bob.storage_usage("s.a")] == [3]
        bob.close()
    assert [u.table for u in root.storage_usage()] == ["s.a", "s.b"]


@pytest.mark.parametrize("output", ["text", "json"])
def test_the_storage_usage_command_lists_the_largest_table_first(
    node: Node, store: stores.EmptyStore, output: str
) -> None:
    def shown(*more: str) -> list[str]:
        arguments = ["storage-usage", str(store.address), *more, "--output", output]
        result = strandline(*arguments)
        assert result.exit_code == 0, result.output
        return result.stdout.splitlines()

    if output == "text":
        assert shown()[-1].startswith("nothing is recorded yet; a node measures the store's own")
        assert shown("s.a")[-1].startswith("nothing is recorded of s.a; a node measures")
    else:
        assert shown() == shown("s.a") == []
    write(node, "s.b", "1", 1_234)
    node.storage.measure()
    write(node, "s.b", "2", 1)
    node.storage.measure()
    if output == "json":
        rows = [json.loads(line) for line in shown()]
        assert [(row["table"], row["size_bytes"]) for row in rows] == [("s.b", 1_235), ("s.a", 0)]
        assert [json.loads(line)["size_bytes"] for line in shown("s.b")] == [1_234, 1_235]
    else:
        assert shown()[-1] == "2 tables, 1,235 bytes"
        assert "1,234" in "\n".join(shown("s.b"))
    result = strandline("storage-usage", store.address, "s.none")
    assert result.exit_code != 0
    assert "there is no table s.none" in result.stderr
    unqualified = strandline("storage-usage", store.address, "b")
    assert "there is no table default.b; name it as SCHEMA.TABLE" in unqualified.stderr
