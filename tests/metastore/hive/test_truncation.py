"""TRUNCATE TABLE by the clients of Hive 3 and 4, which leave the deletion to the metastore."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hive_metastore.ttypes import (
    ColumnStatistics,
    ColumnStatisticsData,
    ColumnStatisticsDesc,
    ColumnStatisticsObj,
    FieldSchema,
    LongColumnStatsData,
    Partition,
    TruncateTableRequest,
)

from strandline.catalog.commands import (
    ColumnDefinition,
    CreateTable,
    DropTable,
    RenameTable,
    TableDefinition,
)
from strandline.errors import Unavailable, UnknownOutcome
from strandline.metastore.cache.cached_store import CachedStore
from strandline.metastore.hive import truncation
from strandline.metastore.store.cleaned_files import Cleaned, FolderAside
from strandline.metastore.store.dropped_tables import DroppedTables
from strandline.metastore.store.folder_effects import TRUNCATED_SUFFIX
from strandline.metastore.store.staging import Staging
from strandline.metastore.store.store_folders import StoreFolders
from strandline.metastore.store.warehouse import FolderMoves, Moved, Unsynced
from strandline.model.types import INT
from tests.metastore.hive.hive_node import WAIT, HiveNode, refusal, storage, table
from tests.metastore.hive.listed_events import events, kinds, message
from tests.node.conftest import before_the_next

STORES = ("folder", "postgresql")
DAY_MS = 24 * 60 * 60 * 1000
KEYS = [FieldSchema("p", "int", None)]
EMPTY = {"numFiles": "0", "numRows": "0", "totalSize": "0", "rawDataSize": "0"}


def place(hive: HiveNode, *parts: str) -> Path:
    return hive.folder.joinpath("warehouse", "d1.db", *parts)


def put(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"x")


def asides(hive: HiveNode) -> set[Path]:
    """The folders that truncations have moved aside."""
    return set(hive.folder.joinpath("warehouse").rglob(f"*{TRUNCATED_SUFFIX}"))


@pytest.fixture
def parted(hive: HiveNode, stub: Any) -> Any:
    """A client of the table parted with the partitions 1 and 2, each with a file."""
    stub.create_table(table("parted", partitionKeys=KEYS))
    for value in "12":
        stub.add_partition(Partition([value], "d1", "parted", 0, 0, storage(), {"numRows": "1"}))
        put(place(hive, "parted", f"p={value}"), "a")
    return stub


def test_a_table_loses_its_files_and_its_counts(hive: HiveNode, stub: Any) -> None:
    counts = {"numRows": "3", "spark.sql.statistics.numRows": "3"}
    stub.create_table(table("t", parameters={"k": "v", **counts}))
    put(place(hive, "t"), "a", "sub/b", ".hidden")
    before = hive.node.catalogs.present().version
    since = stub.get_current_notificationEventId().eventId
    stub.truncate_table("D1", "T", None)
    assert list(place(hive, "t").iterdir()) == []
    parameters = stub.get_table("d1", "t").parameters
    assert parameters.items() >= {"k": "v", **EMPTY}.items()
    assert "spark.sql.statistics.numRows" not in parameters
    assert hive.node.catalogs.present().version == before
    altered, committed = events(stub, since)
    assert kinds([altered, committed]) == ["ALTER_TABLE", "COMMIT_TXN"]
    assert message(altered)["isTruncateOp"] == "true"
    stub.truncate_table_req(TruncateTableRequest("d1", "t"))


def test_a_link_is_deleted_and_not_followed(hive: HiveNode, stub: Any, tmp_path: Path) -> None:
    stub.create_table(table("t"))
    put(tmp_path, "outside/a")
    (place(hive, "t") / "link").symlink_to(tmp_path / "outside")
    stub.truncate_table("d1", "t", [])
    assert list(place(hive, "t").iterdir()) == []
    assert (tmp_path / "outside" / "a").exists()


@pytest.mark.parametrize("linked", ["t", ".dropped"])
def test_a_table_keeps_its_files_if_its_folder_or_that_for_old_files_is_a_link(
    hive: HiveNode, stub: Any, tmp_path: Path, linked: str
) -> None:
    stub.create_table(table("t"))
    put(place(hive, "t"), "a")
    link, outside = place(hive, linked), tmp_path / "outside"
    link.rename(outside) if link.exists() else outside.mkdir()
    link.symlink_to(outside)
    kind, message = refusal(lambda: stub.truncate_table("d1", "t", None))
    link.unlink()
    outside.rename(link)
    assert (kind, f"{link} leads to {outside}" in message) == ("MetaException", True)
    assert (place(hive, "t") / "a").exists()


def test_the_statistics_of_columns_go_with_the_rows(stub: Any, parted: Any) -> None:
    stub.create_table(table("t"))
    values = ColumnStatisticsData(longStats=LongColumnStatsData(1, 9, 1, 3))
    for name, part in (("t", None), ("parted", "p=1")):
        described = ColumnStatisticsDesc(part is None, "d1", name, partName=part)
        sent = ColumnStatistics(described, [ColumnStatisticsObj("a", "int", values)])
        store = "update_partition_column_statistics" if part else "update_table_column_statistics"
        getattr(stub, store)(sent)
    since = stub.get_current_notificationEventId().eventId
    stub.truncate_table("d1", "t", None)
    stub.truncate_table("d1", "parted", ["p=1"])
    altered = [kind for kind in kinds(events(stub, since)) if kind != "COMMIT_TXN"]
    assert altered == ["ALTER_TABLE", "ALTER_PARTITION"]
    for read in (
        lambda: stub.get_table_column_statistics("d1", "t", "a"),
        lambda: stub.get_partition_column_statistics("d1", "parted", "p=1", "a"),
    ):
        assert refusal(read)[0] == "NoSuchObjectException"


def test_only_the_named_partitions_lose_their_files(hive: HiveNode, parted: Any) -> None:
    parted.truncate_table("d1", "parted", ["p=1"])
    assert list(place(hive, "parted", "p=1").iterdir()) == []
    assert (place(hive, "parted", "p=2") / "a").exists()
    first, second = (parted.get_partition("d1", "parted", [value]).parameters for value in "12")
    assert (first["numRows"], second["numRows"]) == ("0", "1")
    since = parted.get_current_notificationEventId().eventId
    parted.truncate_table_req(TruncateTableRequest("d1", "parted"))
    altered = [event for event in events(parted, since) if event.eventType == "ALTER_PARTITION"]
    assert [message(event)["isTruncateOp"] for event in altered] == ["true", "true"]
    assert list(place(hive, "parted", "p=2").iterdir()) == []
    assert parted.get_partition_names("d1", "parted", -1) == ["p=1", "p=2"]


def test_nothing_is_deleted_if_one_partition_cannot_be(
    hive: HiveNode, parted: Any, tmp_path: Path
) -> None:
    elsewhere = storage(location=f"file:{tmp_path}")
    parted.add_partition(Partition(["3"], "d1", "parted", 0, 0, elsewhere, {}))
    put(tmp_path, "a")
    last = parted.get_current_notificationEventId().eventId
    for names, text in (
        (None, "the files of partition p=3 are at a location that a user chose"),
        (["p=1", "p=9"], "partition p=9 does not exist"),
    ):
        kind, message = refusal(lambda names=names: parted.truncate_table("d1", "parted", names))
        assert (kind, message[: len(text)]) == ("MetaException", text)
    assert (tmp_path / "a").exists()
    assert (place(hive, "parted", "p=1") / "a").exists()
    assert parted.get_current_notificationEventId().eventId == last


def test_tables_that_are_not_the_metastores_are_refused(
    hive: HiveNode, stub: Any, tmp_path: Path
) -> None:
    external: dict[str, Any] = {"tableType": "EXTERNAL_TABLE", "parameters": {"EXTERNAL": "TRUE"}}
    stub.create_table(table("e", sd=storage(location=f"file:{tmp_path}"), **external))
    stub.create_table(table("v", tableType="VIRTUAL_VIEW", viewOriginalText="q"))
    stub.create_table(table("i", parameters={"metadata_location": "file:/m"}))
    stub.create_table(table("t"))
    hive.create_transactional("d1", "tx", a="int")
    put(tmp_path, "a")
    put(place(hive, "i"), "a")
    for name, text in (
        ("e", "d1.e is an external table"),
        ("v", "d1.v is a view"),
        ("i", "d1.i is an Iceberg table"),
        ("tx", ""),
        ("none", "d1.none table not found"),
    ):
        kind, message = refusal(lambda name=name: stub.truncate_table("d1", name, None))
        assert (kind, message[: len(text)]) == ("MetaException", text)
    assert "no partitions" in refusal(lambda: stub.truncate_table("d1", "t", ["p=1"]))[1]
    assert "past state" in refusal(lambda: stub.truncate_table("d1@1", "t", None))[1]
    assert (tmp_path / "a").exists()
    assert (place(hive, "i") / "a").exists()


@pytest.mark.parametrize("name", ["t", "parted"])
@pytest.mark.parametrize("leaves", ["drop", "rename"])
def test_a_table_that_was_created_in_the_folder_meanwhile_keeps_its_files(
    hive: HiveNode, parted: Any, monkeypatch: pytest.MonkeyPatch, name: str, leaves: str
) -> None:
    parted.create_table(table("t"))
    session = hive.node.session(user="ann")
    definition = TableDefinition(name=name, columns=(ColumnDefinition("a", INT),))
    emptying = truncation._emptying

    def replace_before(call: Any, partitioned: Any) -> Any:
        if leaves == "drop":
            session.execute(DropTable(schema="d1", table=name))
        else:
            session.execute(RenameTable(schema="d1", table=name, new_name="renamed"))
        session.execute(CreateTable(schema="d1", definition=definition))
        put(place(hive, name), "p=1/new", "new")
        return emptying(call, partitioned)

    monkeypatch.setattr(truncation, "_emptying", replace_before)
    assert refusal(lambda: parted.truncate_table("d1", name, None))[0] == "MetaException"
    assert (place(hive, name) / "new").exists()
    assert (place(hive, name) / "p=1" / "new").exists()


def test_a_truncation_that_fails_leaves_the_files(
    hive: HiveNode, parted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: Unsynced) -> None:
        raise Unavailable("the disk is full")

    monkeypatch.setattr(Unsynced, "sync", fail)
    assert refusal(lambda: parted.truncate_table("d1", "parted", None))
    monkeypatch.undo()
    for value in "12":
        assert (place(hive, "parted", f"p={value}") / "a").exists()
        assert parted.get_partition("d1", "parted", [value]).parameters["numRows"] == "1"


def test_a_truncation_of_a_table_that_has_got_another_location_meanwhile_is_refused(
    hive: HiveNode, stub: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table is external by then, and after an undo it needs the files of its old folder."""
    stub.create_table(table("moved"))
    put(place(hive, "moved"), "a")
    altered = stub.get_table("d1", "moved")
    altered.sd.location = f"file:{tmp_path}/second"
    before_the_next(
        monkeypatch, CachedStore, "change", lambda: stub.alter_table("d1", "moved", altered)
    )
    with hive.client() as client:
        _, text = refusal(lambda: client.call("truncate_table", dbName="d1", tableName="moved"))
    assert "another location meanwhile" in text
    assert (place(hive, "moved") / "a").exists()


@pytest.mark.parametrize("name", ["t", "parted"])
def test_a_truncation_whose_process_died_can_be_repeated(
    hive: HiveNode, parted: Any, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    parted.create_table(table("t"))
    put(place(hive, "t"), "a")

    def die(self: object) -> None:
        raise Unavailable("the process died")

    monkeypatch.setattr(Unsynced, "sync", die)
    monkeypatch.setattr(FolderMoves, "_move_back", die)
    assert refusal(lambda: parted.truncate_table("d1", name, None))
    monkeypatch.undo()
    parted.truncate_table("d1", name, None)
    assert not [path for path in place(hive, name).rglob("*") if path.is_file()]
    hive.node.cleaner.clean()
    assert asides(hive)  # a truncation that still runs would look the same
    for aside in asides(hive):
        table_id, number, moved, suffix = aside.name.split(".")
        aside.rename(aside.with_name(f"{table_id}.{number}.{int(moved) - DAY_MS}.{suffix}"))
    hive.node.cleaner.clean()
    assert not asides(hive)


@pytest.mark.parametrize("name", ["t", "parted"])
def test_a_truncation_that_fails_leaves_the_files_although_another_node_cleans_meanwhile(
    hive: HiveNode, parted: Any, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    parted.create_table(table("t"))
    put(place(hive, "t"), "a")
    before = sorted(place(hive, name).rglob("*"))
    listing, moved, cleaned = (threading.Event() for _ in range(3))
    clean_folders = DroppedTables._folders_without_rows

    def clean_while_truncated(
        self: DroppedTables, _: Iterable[FolderAside], gone: set[int], now: Any
    ) -> Iterator[Cleaned]:
        listing.set()
        assert moved.wait(WAIT)
        return clean_folders(self, self._files.set_aside(), gone, now)  # as a pass that lists late

    def fail_after_cleaning(self: Unsynced) -> None:
        moved.set()
        assert cleaned.wait(WAIT)
        raise Unavailable("the disk is full")

    with hive.another_node() as other, ThreadPoolExecutor() as threads:
        monkeypatch.setattr(DroppedTables, "_folders_without_rows", clean_while_truncated)
        cleaning = threads.submit(other.cleaner.clean)
        cleaning.add_done_callback(lambda _: cleaned.set())
        assert listing.wait(WAIT)
        monkeypatch.setattr(Unsynced, "sync", fail_after_cleaning)
        assert "the disk is full" in refusal(lambda: parted.truncate_table("d1", name, None))[1]
        cleaning.result(WAIT)
    assert sorted(place(hive, name).rglob("*")) == before


def test_the_log_says_where_files_are_that_could_not_be_moved_back(
    hive: HiveNode,
    parted: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    move = StoreFolders.move

    def fail(self: Unsynced) -> None:
        raise Unavailable("the disk is full")

    def move_only_aside(self: StoreFolders, source: str, target: str, **named: Any) -> Moved:
        if source.endswith(TRUNCATED_SUFFIX):
            raise Unavailable("the disk is full")
        return move(self, source, target, **named)

    monkeypatch.setattr(Unsynced, "sync", fail)
    monkeypatch.setattr(StoreFolders, "move", move_only_aside)
    assert refusal(lambda: parted.truncate_table("d1", "parted", None))
    asides = re.findall(r"the folder (\S+) could not be moved back", caplog.text)
    assert len(asides) == 2
    assert all((Path(aside.removeprefix("file:")) / "a").exists() for aside in asides)


def test_no_files_come_back_if_the_truncation_may_have_been_committed(
    hive: HiveNode, parted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = hive.node.metastore.store
    change = store.change

    @contextmanager
    def with_lost_answer(table_id: int, *, author: str) -> Iterator[Staging]:
        with change(table_id, author=author) as staging:
            yield staging
        raise UnknownOutcome("the answer was lost")

    monkeypatch.setattr(store, "change", with_lost_answer)
    assert "answer was lost" in refusal(lambda: parted.truncate_table("d1", "parted", None))[1]
    monkeypatch.undo()
    for value in "12":
        assert list(place(hive, "parted", f"p={value}").iterdir()) == []
        assert parted.get_partition("d1", "parted", [value]).parameters["numRows"] == "0"
    hive.node.cleaner.clean()


def test_truncated_files_are_not_kept(hive: HiveNode, parted: Any) -> None:
    before = asides(hive)
    parted.truncate_table("d1", "parted", None)
    assert asides(hive) == before
