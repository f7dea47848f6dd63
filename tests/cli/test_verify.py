"""``strandline verify`` finds each planted damage, and reports nothing in an intact store."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import Result

from strandline.catalog import read_history
from strandline.catalog.commands import (
    ColumnDefinition,
    CreateSchema,
    CreateTable,
    DropTable,
    TableDefinition,
)
from strandline.clock import Timestamp
from strandline.config import Settings
from strandline.durable import ReadOnlyState, durable_state
from strandline.durable.update import EntryArguments
from strandline.errors import Unavailable
from strandline.metastore.inspection import Finding
from strandline.metastore.interface import Session
from strandline.metastore.session.wire_json import write_json
from strandline.metastore.store import partition_moves
from strandline.metastore.store.notifications import INSERT
from strandline.metastore.store.partition_moves import PartitionMove
from strandline.metastore.store.rows import (
    DataFile,
    DeleteFile,
    DeleteForm,
    NewRow,
    PartitionRow,
    Row,
    RowKind,
)
from strandline.metastore.store.table_contents import TableContents, table_contents
from strandline.model.descriptors import TableDescriptor, TableKind
from strandline.model.types import BIGINT
from strandline.node import Node, verification
from strandline.node.verified_catalog import compare_history, known_tables
from strandline.sql import change, open_sqlite
from tests.node.conftest import before_the_next
from tests.node.kept_store import KeptStore
from tests.node.moved_catalogs import move
from tests.strandline_command import strandline

ROWS = 1000


@dataclass(frozen=True)
class Store:
    """A store with the transactional table shop.t, which has two data files and a delete file."""

    folder: Path

    @property
    def table(self) -> Path:
        return self.folder / "warehouse" / "shop.db" / "t"

    @property
    def data(self) -> Path:
        return self.table / "_data" / "_file=1" / "a.parquet"

    @property
    def deletes(self) -> Path:
        return self.table / "_deletes" / "d.parquet"

    def sql(self, statement: str, *values: object) -> None:
        with sqlite3.connect(self.folder / "strandline.db") as connection:
            assert connection.execute(statement, values).rowcount > 0
        connection.close()


def write_data(store: Store, name: str, file_id: int) -> DataFile:
    path = f"_data/_file={file_id}/{name}.parquet"
    (store.table / path).parent.mkdir(parents=True)
    rows = pa.table({"id": pa.array(range(ROWS), pa.int64())})
    pq.write_table(rows, store.table / path, write_page_checksum=True, use_dictionary=False)
    size = (store.table / path).stat().st_size
    return DataFile(file_id=file_id, path=path, rows=ROWS, bytes=size)


def write_deletes(store: Store) -> DeleteFile:
    store.deletes.parent.mkdir()
    gone = pa.table({"file_id": pa.array([1, 1], pa.int64()), "position": pa.array([3, 5])})
    pq.write_table(gone, store.deletes, write_page_checksum=True)
    return DeleteFile(path="_deletes/d.parquet", file_ids=(1,), counts=(2,))


def stage(session: Session, table_id: int, *rows: DataFile | DeleteFile) -> int:
    begun = session.begin().txn_id
    session.stage(begun, table_id, add=rows)
    return begun


def make(folder: Path) -> None:
    store = Store(folder)
    with Node.open(store.folder) as node:
        session = node.session(user="ann")
        session.execute(CreateSchema(name="shop"))
        id_column = ColumnDefinition("id", BIGINT)
        definition = TableDefinition(
            name="t", columns=(id_column,), transactional=True, provider="strandline"
        )
        session.execute(CreateTable(schema="shop", definition=definition))
        plain = TableDefinition(
            name="p",
            columns=(id_column, ColumnDefinition("k", BIGINT)),
            partition_columns=("k",),
        )
        session.execute(CreateTable(schema="shop", definition=plain))
        table_id = session.table("shop.t").descriptor.id
        session.commit(stage(session, table_id, write_data(store, "a", 1)))
        rows = write_data(store, "b", 2), write_deletes(store)
        session.commit(stage(session, table_id, *rows))
        partition = PartitionRow(values=("1",), location="k=1")
        (store.folder / "warehouse/shop.db/p/k=1").mkdir()
        plain_id = session.table("shop.p").descriptor.id
        with node.store.change(plain_id, author="ann") as change:
            (row_id,) = change.stage(add=[NewRow.of(partition, name="k=1")])
        with node.store.change(plain_id, author="ann") as change:
            change.verb = INSERT
            change.replace({row_id: NewRow.of(partition, name="k=1")})


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> KeptStore:
    return KeptStore(tmp_path_factory.mktemp("verify"), make)


@pytest.fixture
def store(kept: KeptStore) -> Store:
    return Store(kept.renewed())


@pytest.fixture(autouse=True)
def _settled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verification, "SETTLING_SECONDS", 0.0)


def test_the_versions_are_not_in_memory_while_rows_and_files_are_checked(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables, rows = known_tables, verification.Verification._rows
    states: list[weakref.ref[ReadOnlyState]] = []

    def noted(state: ReadOnlyState) -> object:
        entries = [entry for applied in state.recovered for entry in applied.update.entries]
        assert len(entries) >= 4
        assert all(cast(EntryArguments, e.arguments)._values is None for e in entries)
        states.append(weakref.ref(state))
        return tables(state)

    def without_versions(self: verification.Verification) -> Iterator[Finding]:
        assert [state() for state in states] == [None]
        return rows(self)

    monkeypatch.setattr(verification, "known_tables", noted)
    monkeypatch.setattr(verification.Verification, "_rows", without_versions)
    assert strandline("verify", store.folder).exit_code == 0


def verify(store: Store, *options: str) -> Result:
    return strandline("verify", store.folder, *options)


def findings(store: Store, *options: str) -> list[dict[str, object]]:
    result = verify(store, "--output", "json", *options)
    *listed, summary = [json.loads(line) for line in result.stdout.splitlines()]
    errors = [finding for finding in listed if finding["finding"] != "leftover"]
    assert (summary["errors"], summary["leftovers"]) == (len(errors), len(listed) - len(errors))
    assert result.exit_code == (65 if errors else 0)
    return listed


@pytest.mark.parametrize("options", [(), ("--pages",)])
def test_an_intact_store_has_no_findings(store: Store, options: tuple[str, ...]) -> None:
    assert findings(store, *options) == []
    result = verify(store, *options)
    assert result.exit_code == 0
    assert "0 errors, 0 leftovers" in result.stdout
    assert "3 files" in result.stdout


def test_an_object_that_breaks_a_rule_is_named_with_the_command_that_repairs_it(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Edited by a release that did not know the rule."""
    with Node.open(store.folder) as node:
        table = node.session(user="ann").table("shop.p").descriptor
    edited = write_json(replace(table, primary_key=(9,)), TableDescriptor).decode()
    with monkeypatch.context() as patch:
        patch.setattr("strandline.catalog.editing.check_object", lambda *_: None)
        arguments = ["debug", "edit", str(store.folder), "table", str(table.id), edited]
        assert strandline(*arguments).exit_code == 0
    (finding,) = findings(store)
    assert (finding["finding"], finding["place"]) == ("record", f"table {table.id}")
    assert "column 9, which the table does not have" in str(finding["message"])
    assert "strandline debug edit" in str(finding["message"])


@pytest.mark.parametrize(
    "read",
    ["node.verification.read_history", "metastore.store.notifications.NotificationLog.read"],
)
def test_a_store_that_does_not_answer_is_no_finding(
    store: Store, monkeypatch: pytest.MonkeyPatch, read: str
) -> None:
    def away(*_: object, **__: object) -> object:
        raise Unavailable("the server ended the connection")

    monkeypatch.setattr(f"strandline.{read}", away)
    result = verify(store)
    assert result.exit_code == 69
    assert result.stdout == ""


def test_a_catalog_that_moves_to_another_log_meanwhile_is_no_finding(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    move(store.folder, "shadow")
    before_the_next(monkeypatch, verification, "read_history", lambda: move(store.folder, "stash"))
    result = verify(store)
    assert result.exit_code == 76
    assert "the catalog was moved" in result.stderr


def empty(path: Path) -> None:
    path.write_bytes(b"")


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def flip(path: Path) -> None:
    """Flip a bit of the first page, after its header."""
    data = bytearray(path.read_bytes())
    data[300] ^= 1
    path.write_bytes(data)


def other_rows(path: Path) -> None:
    """Replace it by a file of the same size with fewer rows."""
    size = path.stat().st_size
    pq.write_table(pa.table({"id": pa.array(range(10), pa.int64())}), path)
    data = path.read_bytes()
    path.write_bytes(data[:4] + b"\0" * (size - len(data)) + data[4:])


def other_names(path: Path) -> None:
    """Make the names of the columns in the footer no text."""
    path.write_bytes(path.read_bytes().replace(b"id", b"\xff\xff"))


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


FILES: dict[str, tuple[Callable[[Store], Path], Callable[[Path], None], str]] = {
    "missing": (lambda s: s.data, Path.unlink, "No such file"),
    "empty": (lambda s: s.data, empty, "0 bytes"),
    "cut": (lambda s: s.data, cut, "were written"),
    "names": (lambda s: s.data, other_names, "damaged"),
    "fewer rows": (lambda s: s.data, other_rows, "10 rows, but 1000"),
    "deletes missing": (lambda s: s.deletes, Path.unlink, "No such file"),
    "deletes cut": (lambda s: s.deletes, cut, "damaged"),
    "deletes are a pipe": (lambda s: s.deletes, pipe, "not a file"),
    "names of deletes": (lambda s: s.deletes, other_names, "damaged"),
    "no deletes": (lambda s: s.deletes, other_rows, "no column file_id"),
}


@pytest.mark.parametrize("damage", FILES)
def test_a_damaged_file_is_found(store: Store, damage: str) -> None:
    of, plant, said = FILES[damage]
    plant(of(store))
    (finding,) = findings(store)
    assert (finding["finding"], finding["table"]) == ("file", "shop.t")
    assert finding["place"] == str(of(store))
    assert said in str(finding["message"])


def test_a_delete_file_whose_bitmaps_are_texts_is_found(store: Store) -> None:
    path = store.table / "_deletes" / "b.parquet"
    pq.write_table(pa.table({"file_id": [2], "bitmap": ["x"]}), path)
    file = DeleteFile(
        path="_deletes/b.parquet", file_ids=(2,), counts=(1,), form=DeleteForm.BITMAPS
    )
    with Node.open(store.folder) as node:
        session = node.session(user="ann")
        session.commit(stage(session, session.table("shop.t").descriptor.id, file))
    (finding,) = findings(store)
    assert finding["place"] == str(path)
    assert "of type string, not lists of numbers" in str(finding["message"])


@pytest.mark.parametrize("form", DeleteForm)
def test_a_delete_file_with_fewer_deleted_rows_than_were_written_is_found(
    store: Store, form: DeleteForm
) -> None:
    path = store.table / "_deletes" / "b.parquet"

    def write(rows: int) -> None:
        positions = pa.table({"file_id": [2] * rows, "position": range(rows)})
        word = pa.array([[-1 if rows == 64 else (1 << rows) - 1]], pa.list_(pa.int64()))
        bitmap = pa.table({"file_id": [2], "bitmap": word})
        pq.write_table(positions if form is DeleteForm.POSITIONS else bitmap, path)

    write(64)
    file = DeleteFile(path="_deletes/b.parquet", file_ids=(2,), counts=(64,), form=form)
    with Node.open(store.folder) as node:
        session = node.session(user="ann")
        session.commit(stage(session, session.table("shop.t").descriptor.id, file))
    assert findings(store) == []
    write(63)
    (finding,) = findings(store)
    assert finding["place"] == str(path)
    assert "its deleted rows are not the 64 that were written" in str(finding["message"])


def test_what_is_checked_again_is_counted_once(store: Store) -> None:
    cut(store.deletes)
    assert "and 3 files of" in verify(store).stdout


def test_the_decoded_rows_of_a_table_are_not_kept_in_memory(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows: list[Row] = []

    def kept(*arguments: Any, **named: Any) -> TableContents | None:
        contents = table_contents(*arguments, **named)
        rows.extend(() if contents is None else contents.rows)
        return contents

    monkeypatch.setattr(verification, "table_contents", kept)
    leftover = store.table / "_data" / "leftover.parquet"
    leftover.touch()
    assert str(leftover) in verify(store).output
    assert rows
    assert not any(row.is_decoded() for row in rows)


def test_a_flipped_bit_in_a_page_is_found_on_request(store: Store) -> None:
    flip(store.data)
    assert findings(store) == []
    (finding,) = findings(store, "--pages")
    assert finding["place"] == str(store.data)
    assert "CRC" in str(finding["message"])


def test_a_missing_folder_of_a_table_or_partition_is_found(store: Store) -> None:
    place = store.folder / "warehouse/shop.db/p/k=1"
    place.rmdir()
    (finding,) = findings(store)
    assert (finding["finding"], finding["table"]) == ("folder", "shop.p")
    place.parent.rmdir()
    assert {str(finding["place"]) for finding in findings(store)} == {
        str(place.parent),
        f"file://{place}",
    }


def test_a_dropped_partition_needs_no_folder(store: Store) -> None:
    """Spark drops partitions without files if an INSERT OVERWRITE leaves them without rows."""
    with Node.open(store.folder) as node:
        table_id = node.session(user="ann").table("shop.p").descriptor.id
        (store.folder / "warehouse/shop.db/p/k=1").rmdir()
        with node.store.change(table_id, author="ann") as change:
            dropped = change.visible(RowKind.PARTITION, ["k=1"])
            change.stage(remove=[row.row_id for row in dropped.values()])
    assert findings(store) == []


def test_a_folder_that_a_node_is_moving_is_not_a_finding(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved = store.table.rename(store.table.with_name("moved"))
    settle = SimpleNamespace(sleep=lambda _: moved.rename(store.table))
    monkeypatch.setattr(verification, "time", settle)
    assert findings(store) == []
    assert store.table.is_dir()


def test_what_is_found_while_ddl_is_not_finished_says_so(store: Store) -> None:
    store.table.rename(store.table.with_name("renamed"))
    store.sql("UPDATE notification_sequence SET projected_version = projected_version - 1")
    unfinished = findings(store)
    assert {finding["finding"] for finding in unfinished} == {"folder", "file"}
    assert all("start a node, which finishes that" in str(each["message"]) for each in unfinished)
    store.sql("UPDATE notification_sequence SET projected_version = projected_version + 1")
    assert not any("start a node" in str(finding["message"]) for finding in findings(store))


def test_the_folder_of_an_interrupted_rename_of_a_partition_is_not_missing(store: Store) -> None:
    """The process has died; a node that starts moves the folder back."""
    partition = store.folder / "warehouse/shop.db/p/k=1"
    moved = partition.rename(partition.with_name("k=2"))
    with Node.open(store.folder) as node:
        table_id = node.session(user="ann").table("shop.p").descriptor.id
        (row,) = node.store.rows(table_id, RowKind.PARTITION, write_ids=None)
    back = PartitionMove("k=2", row.row_id, "k=1")
    with (
        closing(open_sqlite(store.folder / "strandline.db")) as database,
        database.write() as connection,
    ):
        partition_moves.begin(connection, table_id, [back])
    assert findings(store) == []
    moved.rmdir()
    assert [finding["finding"] for finding in findings(store)] == ["folder"]


def clean_removed_file(store: Store, node: Node) -> None:
    node.cleaner.clean()
    assert not store.data.exists()


def drop_partition(store: Store, node: Node) -> None:
    table_id = node.session(user="ann").table("shop.p").descriptor.id
    with node.store.change(table_id, author="ann") as change:
        dropped = change.visible(RowKind.PARTITION, ["k=1"])
        change.stage(remove=[row.row_id for row in dropped.values()])
    (store.folder / "warehouse/shop.db/p/k=1").rmdir()


def drop_table(store: Store, node: Node) -> None:
    node.session(user="ann").execute(DropTable(schema="shop", table="p"))


@pytest.mark.parametrize(
    ("read", "of", "change"),
    [
        ("table_contents", "_data/_file=1/a.parquet", clean_removed_file),
        ("table_contents", "k=1", drop_partition),
        ("all_places", "", drop_table),
    ],
)
def test_what_nodes_drop_or_clean_during_a_verification_is_not_a_finding(
    read: str,
    of: str,
    change: Callable[[Store, Node], None],
    store: Store,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reading, changes = getattr(verification, read), [change]
    nothing_kept = Settings(history_retention_ms=0, snapshot_hold_ms=0, clean_interval_ms=0)
    with Node.open(store.folder, settings=nothing_kept) as node:
        session = node.session(user="ann")
        begun = session.begin().txn_id
        removed = ["_data/_file=1/a.parquet", "_deletes/d.parquet"]
        session.stage(begun, session.table("shop.t").descriptor.id, remove=removed)
        session.commit(begun)

        def then_it_changes(*arguments: Any, **options: Any) -> object:
            result = reading(*arguments, **options)
            if changes and (not of or of in {row.name for row in result.rows}):
                changes.pop()(store, node)
            return result

        monkeypatch.setattr(verification, read, then_it_changes)
        assert findings(store) == []
    assert not changes


def test_an_external_table_in_the_folder_of_a_moved_store_is_verified_there(
    store: Store, tmp_path: Path
) -> None:
    place = store.folder / "files" / "k=1"
    place.mkdir(parents=True)
    with Node.open(store.folder) as node:
        definition = TableDefinition(
            name="e",
            columns=(ColumnDefinition("id", BIGINT), ColumnDefinition("k", BIGINT)),
            partition_columns=("k",),
            kind=TableKind.EXTERNAL,
            location=f"file:{place.parent}",
        )
        session = node.session(user="ann")
        session.execute(CreateTable(schema="shop", definition=definition))
        partition = NewRow.of(PartitionRow(values=("1",), location="k=1"), name="k=1")
        table_id = session.table("shop.e").descriptor.id
        with node.store.change(table_id, author="ann") as change:
            change.stage(add=[partition])
    moved = Store(store.folder.rename(tmp_path / "moved"))
    assert strandline("relocate", moved.folder).exit_code == 0
    assert findings(moved) == []
    (moved.folder / "files" / "k=1").rmdir()
    assert [finding["table"] for finding in findings(moved)] == ["shop.e"]


def test_unreferenced_files_are_leftovers_and_not_errors(store: Store) -> None:
    write_data(store, "c", 3)
    (store.table / "_staging" / "7-x").mkdir(parents=True)
    (store.table / "_staging" / "7-x" / "part").write_text("")
    (store.table.parent / ".dropped" / "999").mkdir(parents=True)
    listed = findings(store)
    assert [finding["finding"] for finding in listed] == ["leftover"] * 3
    names = [Path(str(finding["place"])).name for finding in listed]
    assert names == ["c.parquet", "part", "999"]


def test_a_folder_that_a_node_records_or_deletes_a_little_later_is_no_leftover(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = store.table.parent / ".dropped" / "999"
    folder.mkdir(parents=True)
    before_the_next(monkeypatch, time, "sleep", folder.rmdir)
    assert findings(store) == []


def test_the_folder_of_a_drop_that_the_database_has_lost_is_no_leftover(store: Store) -> None:
    """It has the files of the table, whose folder may have those of a lost one of that name."""
    with Node.open(store.folder) as node:
        table_id = node.session(user="ann").table("shop.t").descriptor.id
    dropped = store.table.parent / ".dropped" / str(table_id)
    shutil.copytree(store.table, dropped)
    (finding,) = findings(store)
    assert (finding["finding"], finding["table"]) == ("folder", "shop.t")
    assert finding["place"] == str(dropped)
    assert f"its folder is {store.table}: the database or the warehouse" in str(finding["message"])


def test_the_folders_of_dropped_partitions_are_no_leftovers(store: Store) -> None:
    """Kept versions of their table have them."""
    with Node.open(store.folder) as node:
        table_id = node.session(user="ann").table("shop.p").descriptor.id
    (store.table.parent / ".dropped" / f"{table_id}.partitions" / "7").mkdir(parents=True)
    assert findings(store) == []


def test_files_of_an_open_transaction_are_known_and_those_of_an_aborted_one_are_leftovers(
    store: Store,
) -> None:
    with Node.open(store.folder) as node:
        session = node.session(user="ann")
        table_id = session.table("shop.t").descriptor.id
        begun = stage(session, table_id, write_data(store, "open", 4))
        stage(session, table_id, gone := write_data(store, "gone", 5))
        (store.table / gone.path).unlink()  # it may be: nothing is committed
        assert findings(store) == []
        session.abort(begun)
    (finding,) = findings(store)
    assert (finding["finding"], Path(str(finding["place"])).name) == ("leftover", "open.parquet")


def test_the_files_of_a_dropped_table_are_verified(store: Store) -> None:
    with Node.open(store.folder) as node:
        node.session(user="ann").execute(DropTable(schema="shop", table="t"))
    assert findings(store) == []
    (data,) = store.folder.glob("warehouse/shop.db/.dropped/*/_data/_file=1/a.parquet")
    cut(data)
    (finding,) = findings(store)
    assert (finding["table"], finding["place"]) == ("shop.t", str(data))
    shutil.rmtree(data.parents[2])
    assert ("folder", str(data.parents[2])) in [
        (finding["finding"], finding["place"]) for finding in findings(store)
    ]


RECORDS = {
    "a row": "UPDATE store_row SET body = substr(body, 1, length(body) - 1) WHERE kind = 2",
    "a partition": "UPDATE store_row SET body = substr(body, 1, length(body) - 1) WHERE kind = 1",
    "the body of a row": "UPDATE store_row SET body = 7 WHERE row_id = 2",
    "the path in a row": "UPDATE store_row SET name = 'x' WHERE row_id = 1",
    "an event": "UPDATE notification_log SET body = x'00' WHERE event_id = 2",
    "the time of an event": "UPDATE notification_log SET time = time + 1 WHERE event_id = 2",
    "a version": (
        "UPDATE metastorage SET value = x'00' WHERE key = 'catalog.update.00000000000000000004'"
    ),
    "a removal": "INSERT INTO store_removal (row_id, write_id, table_id) VALUES (99, 1, 1)",
}


@pytest.mark.parametrize("damage", RECORDS)
def test_a_damaged_record_is_found(store: Store, damage: str) -> None:
    store.sql(RECORDS[damage])
    assert "record" in {finding["finding"] for finding in findings(store)}


LOST = {
    "DELETE FROM txn_write_id WHERE write_id = 2": "2 of its rows have write ids of which",
    "DELETE FROM txn_write_id": "1 removals of its rows have write ids of which nothing is",
    "DELETE FROM txn WHERE txn_id = 2": "1 of its write ids are those of transactions that are",
    "UPDATE txn SET commit_time = NULL WHERE txn_id = 2": "have other commit times than",
    "DELETE FROM next_write_id": "its write ids would be assigned again",
    "UPDATE next_write_id SET next = 2": "its write id 2 was assigned, and would be assigned",
    "DELETE FROM store_removal": "it removed rows that are there again",
    "DELETE FROM store_row WHERE row_id = 3": "1 rows that were added to it, and not removed, are",
    "DELETE FROM store_row WHERE row_id = 5": "1 rows that were added to it, and not removed, are",
    "DELETE FROM store_row": "3 rows that were added to it, and not removed, are missing",
    "DELETE FROM table_location": "the place of its files is not recorded",
    "DELETE FROM strandline_clock": "the last time of the store is missing",
    "DELETE FROM strandline_fence": "the fence of the store is missing",
    "DELETE FROM metastorage_head": "would be assigned again: the last one was 0",
    "DELETE FROM store_sequence": "its id would be assigned again",
    "DELETE FROM notification_log WHERE event_id = 3": "it has 11 events, from 1 to 12, but all",
    "DELETE FROM notification_log": "it has 0 events, from 0 to 0, but all up to 12 were logged",
}


@pytest.mark.parametrize("statement", LOST)
def test_a_row_that_is_missing_and_to_which_others_refer_is_found(
    store: Store, statement: str
) -> None:
    store.sql(statement)
    listed = [finding for finding in findings(store) if LOST[statement] in str(finding["message"])]
    assert listed
    assert all(finding["finding"] == "record" for finding in listed)


def test_a_table_whose_version_is_not_projected_has_no_place_yet(store: Store) -> None:
    store.sql("UPDATE notification_sequence SET projected_version = projected_version - 1")
    store.sql("DELETE FROM table_location WHERE table_id = (SELECT max(table_id) FROM store_row)")
    assert findings(store) == []


def test_a_row_that_cannot_be_read_is_named_and_the_others_are_verified(store: Store) -> None:
    store.sql("UPDATE store_row SET kind = 99 WHERE row_id = 1")
    store.sql("UPDATE store_row SET body = x'00' WHERE row_id = 2")
    places = [str(finding["place"]).split(" (")[0] for finding in findings(store)]
    assert [place for place in places if place.startswith("row ")] == ["row 1", "row 2"]


def test_the_file_of_a_row_whose_name_is_damaged_is_not_called_a_leftover(store: Store) -> None:
    name = "(SELECT name FROM store_row WHERE kind = 2 LIMIT 1)"
    store.sql(f"UPDATE store_row SET name = name || 'x' WHERE name = {name}")
    kinds = {str(finding["finding"]) for finding in findings(store)}
    assert kinds == {"record"}


def damage_page(store: Store, name: str) -> None:
    """Damage the first page of a table or of an index."""
    with closing(sqlite3.connect(store.folder / "strandline.db")) as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        (size,) = database.execute("PRAGMA page_size").fetchone()
        root = "SELECT rootpage FROM sqlite_master WHERE name = ?"
        (page,) = database.execute(root, (name,)).fetchone()
    with (store.folder / "strandline.db").open("r+b") as file:
        file.seek((page - 1) * size)
        file.write(b"\xff" * 100)


def test_a_page_of_events_that_cannot_be_read_is_found(store: Store) -> None:
    damage_page(store, "notification_log")
    assert "events after 0" in [finding["place"] for finding in findings(store)]


@pytest.mark.parametrize(
    "name", ["store_removal", "sqlite_autoindex_store_removal_1", "txn_write_id", "next_write_id"]
)
def test_a_page_of_other_rows_that_cannot_be_read_is_found(store: Store, name: str) -> None:
    (store.table / "_data" / "left").touch()
    damage_page(store, name)
    listed = findings(store)
    assert listed
    assert len({str(finding) for finding in listed}) == len(listed)


_EVENT = "catalog.append.audit_event."
HIDDEN_ENTRIES = {
    "lost": ("metastorage", f"DELETE FROM metastorage WHERE key = '{_EVENT}{3:020d}.000000'"),
    "under another name": (
        "metastorage",
        "UPDATE metastorage SET key = replace(key, 'audit_event', 'audit_evenu')"
        f" WHERE key = '{_EVENT}{3:020d}.000000'",
    ),
    "at another version": (
        "metastorage",
        f"UPDATE metastorage SET key = '{_EVENT}{1:020d}.000000'"
        f" WHERE key = '{_EVENT}{3:020d}.000000'",
    ),
    "beyond the last version": (
        "stash",
        "UPDATE stash_appended SET version = version + 1024 WHERE version = 3",
    ),
    "in another collection": (
        "stash",
        "UPDATE stash_appended SET collection = 99 WHERE version = 3",
    ),
}


@pytest.mark.parametrize("damage", HIDDEN_ENTRIES)
def test_an_entry_of_the_history_that_is_not_at_its_place_is_found(
    tmp_path: Path, damage: str
) -> None:
    log, statement = HIDDEN_ENTRIES[damage]
    with Node.open(tmp_path, settings=Settings(catalog_log=log)) as node:
        for name in ("shop", "other"):
            node.session(user="ann").execute(CreateSchema(name=name))
    store = Store(tmp_path)
    assert findings(store) == []
    store.sql(statement)
    (record,) = [finding for finding in findings(store) if finding["finding"] == "record"]
    assert "history" in str(record["message"])
    assert "version 3" in f"{record['place']}: {record['message']}"


def test_a_store_of_a_newer_release_is_refused_and_not_called_sound(tmp_path: Path) -> None:
    Node.open(tmp_path).close()
    with closing(open_sqlite(tmp_path / "strandline.db")) as database, database.write() as writer:
        change(writer, "UPDATE strandline_schema SET version = 99 WHERE part = 'transactions'")
    refused = strandline("verify", tmp_path)
    assert refused.exit_code == 78
    assert "was written by a newer release" in refused.stderr


@pytest.mark.parametrize("other", [{"time": Timestamp(7)}, {"author": "bob"}, {"member": "other"}])
def test_an_entry_of_the_history_that_is_not_that_of_its_version_is_found(
    tmp_path: Path, other: dict[str, Any]
) -> None:
    """Releases whose entries have no checksum may have written it."""
    with Node.open(tmp_path) as node:
        node.session(user="ann").execute(CreateSchema(name="shop"))
        state = durable_state(node.catalogs.state.log).open_read_only()
        *earlier, last = read_history(state.log)
        assert list(compare_history(state, [*earlier, last])) == []
        (finding,) = compare_history(state, [*earlier, replace(last, **other)])
    assert finding.place == f"version {last.version}"
    assert "history" in finding.message


def test_a_folder_without_a_store_is_refused(tmp_path: Path) -> None:
    result = strandline("verify", tmp_path)
    assert result.exit_code == 66
    assert "there is no store" in result.stderr
