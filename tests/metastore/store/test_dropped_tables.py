"""Tables that no kept version of the catalog has go with all that is theirs; all others stay."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from strandline.catalog import Catalog
from strandline.catalog.commands import (
    ColumnDefinition,
    CreateSchema,
    CreateTable,
    DropSchema,
    DropTable,
    TableDefinition,
)
from strandline.catalog.undo.command import HistoryMoved, ReadAgain
from strandline.catalog.undo.reading import read_undrop
from strandline.errors import VersionNotFound
from strandline.metastore.interface import AsOf
from strandline.metastore.store import cleaned_files, dropped_tables
from strandline.metastore.store.dropped_tables import DroppedTables
from strandline.metastore.store.partition_moves import PURGED, PartitionMove, begin
from strandline.metastore.store.rows import RowKind
from strandline.model.descriptors import TableKind
from strandline.model.places import Place
from strandline.model.types import BIGINT
from strandline.node import Node
from strandline.transactions.holds import BACKUP
from tests.metastore.store.lake import SETTINGS, Lake
from tests.node.conftest import before_the_next


def test_a_dropped_table_is_cleaned_when_no_kept_version_has_it(lake: Lake) -> None:
    table, _ = lake.create(), lake.create("u")
    lake.write(table)
    place = lake.folder()
    lake.session.execute(DropTable(schema="default", table="t"))
    aside = place.parent / ".dropped" / str(table)
    assert lake.clean() == []
    lake.session.undrop("default.t")
    lake.session.execute(DropTable(schema="default", table="t"))
    lake.create("v")
    latest = lake.node.catalogs.latest_catalog().version
    lake.wait()
    assert lake.session.compact(latest)
    assert aside.is_dir()
    assert lake.clean() == [("dropped table", 1, 1)]
    assert not aside.exists()
    assert lake.node.store.sql_store.rows_by_id(range(1, 100)) == {}
    assert [lake.folder("u").is_dir(), lake.folder("v").is_dir()] == [True, True]


def test_the_folder_of_a_dropped_schema_goes_with_the_last_of_its_dropped_tables(
    in_folder: Lake,
) -> None:
    lake = in_folder
    definition = TableDefinition(name="t", columns=(ColumnDefinition("k", BIGINT),))
    for schema in ("gone", "other", "present"):
        lake.session.execute(CreateSchema(name=schema))
        lake.session.execute(CreateTable(schema=schema, definition=definition))
    lake.session.execute(DropTable(schema="present", table="t"))
    lake.session.execute([DropSchema(name=name, cascade=True) for name in ("gone", "other")])
    folders = lake.folders()
    lake.clean()
    assert lake.folders() == folders
    lake.session.undrop("other", kind="schema")
    lake.wait()
    lake.session.compact(lake.node.catalogs.latest_catalog().version)
    lake.clean()
    assert folders - lake.folders() == {"gone.db"}


def test_a_folder_stays_if_a_schema_may_have_got_it_that_the_node_has_not_applied(
    in_folder: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = in_folder
    (dropped := lake.warehouse() / "s.db" / ".dropped").mkdir(parents=True)
    latest = lake.node.catalogs.latest_catalog()
    lake.session.execute(CreateSchema(name="s"))
    with monkeypatch.context() as patch:
        patch.setattr(lake.node.catalogs, "latest_catalog", lambda: latest)
        lake.clean()
    assert dropped.exists()


def test_other_writers_wait_only_for_the_removal_of_a_few_folders_of_schemas(
    in_folder: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        (in_folder.warehouse() / f"s{number}.db" / ".dropped").mkdir(parents=True)
    monkeypatch.setattr(dropped_tables, "MAX_FOLDERS", 1)
    in_folder.node.cleaner.clean(stopped=lambda: len(in_folder.folders()) < 3)
    assert len(in_folder.folders()) == 2
    in_folder.clean()
    assert in_folder.folders() == set()


def test_other_writers_do_not_wait_for_a_look_at_all_schemas_for_each_few_folders(
    in_folder: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    cleaner, looked = in_folder.node.cleaner, list[Catalog]()
    places_of_schemas = cleaner._dropped_tables._places_of_schemas

    def look(catalog: Catalog) -> set[Place]:
        looked.append(catalog)
        return places_of_schemas(catalog)

    for number in range(3):
        (in_folder.warehouse() / f"s{number}.db" / ".dropped").mkdir(parents=True)
    monkeypatch.setattr(dropped_tables, "MAX_FOLDERS", 1)
    monkeypatch.setattr(cleaner._dropped_tables, "_places_of_schemas", look)
    cleaner.clean()
    assert in_folder.folders() == set()
    assert looked == [in_folder.node.catalogs.latest_catalog()]


def test_every_node_drops_a_table_from_memory_when_no_kept_version_has_it(lake: Lake) -> None:
    dropped, kept = lake.create(), lake.create("u")
    with Node.open(lake.address, settings=SETTINGS) as other:
        nodes = (lake.node, other)
        for node, table in product(nodes, (dropped, kept)):
            node.store.rows(table, RowKind.DATA_FILE, write_ids=None)
        lake.session.execute(DropTable(schema="default", table="t"))
        lake.create("v")
        lake.clean()
        assert [sorted(node.store.cached_tables()) for node in nodes] == [[dropped, kept]] * 2
        lake.wait()
        assert lake.session.compact(lake.node.catalogs.latest_catalog().version)
        lake.clean()
        other.catalogs.present()
        other.cleaner.clean(dry_run=True)
        assert sorted(other.store.cached_tables()) == [dropped, kept]
        other.cleaner.clean()
        assert [node.store.cached_tables() for node in nodes] == [[kept]] * 2


def test_a_node_forgets_the_folder_of_a_dropped_table(in_folder: Lake) -> None:
    table = in_folder.create()
    in_folder.write(table)
    in_folder.clean()
    assert list(in_folder.node.cleaner._settled) == [table]
    in_folder.session.execute(DropTable(schema="default", table="t"))
    in_folder.clean()
    assert not in_folder.node.cleaner._settled


def test_nothing_stays_in_the_database_of_a_table_that_no_kept_version_has(
    in_folder: Lake,
) -> None:
    lake = in_folder
    table = lake.create()
    lake.write(table)
    lake.session.execute(DropTable(schema="default", table="t"))
    rows = {
        "store_removal": "(row_id, write_id, table_id) VALUES (7, 7, ?)",
        "cleaned_table": "(table_id, up_to) VALUES (?, 7)",
        "partition_move": "(table_id, location, up_to_row, target) VALUES (?, 'a', 7, '')",
        "unfinished_move": "(table_id, location, up_to_row, target) VALUES (?, 'a', 7, '')",
    }
    with lake.node.database.write() as connection:
        for name, values in rows.items():
            connection.exec_driver_sql(f"INSERT INTO {name} {values}", (table,))
    lake.create("u")
    lake.wait()
    lake.session.compact(lake.node.catalogs.latest_catalog().version)
    assert lake.clean() == [("dropped table", 1, 1)]
    for name in ("store_row", "table_location", "next_write_id", *rows):
        of_table = f"SELECT 1 FROM {name} WHERE table_id = ?"
        assert lake.node.database.rows(of_table, (table,)) == [], name


def test_a_reader_of_a_dropped_table_is_refused_as_soon_as_its_cleaning_begins(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = lake.create()
    paths = sorted(lake.write(table) for _ in range(2))
    write_ids = lake.write_ids(table)
    lake.session.execute(DropTable(schema="default", table="t"))
    lake.create("u")
    lake.wait()
    assert lake.session.compact(lake.node.catalogs.latest_catalog().version)
    assert lake.paths(table, write_ids) == paths
    change, store = DroppedTables._change, lake.node.store.sql_store

    def change_and_read(self: DroppedTables, statement: str, parameters: tuple[int, ...]) -> int:
        count = change(self, statement, parameters)
        with pytest.raises(VersionNotFound, match="no version that is kept has the table"):
            store.rows(table, RowKind.DATA_FILE, write_ids=write_ids)
        return count

    monkeypatch.setattr(DroppedTables, "_change", change_and_read)
    assert [part.rows for part in lake.node.cleaner.clean().parts] == [2]


def test_a_table_that_was_restored_and_dropped_again_stays_while_a_kept_version_has_it(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = lake.create()
    lake.write(table)
    lake.session.execute(DropTable(schema="default", table="t"))
    lake.create("u")
    earliest = lake.node.catalogs.latest_catalog().version
    restored = lake.session.undrop("default.t").version
    lake.session.execute(DropTable(schema="default", table="t"))
    lake.wait()
    assert lake.session.compact(earliest)  # neither the earliest nor the latest version has it
    assert lake.clean() == []

    def trimmed_meanwhile(*_: object) -> None:
        raise VersionNotFound("trimmed")

    with monkeypatch.context() as patch:
        patch.setattr(lake.node.catalogs, "each_update", trimmed_meanwhile)
        assert lake.clean() == []
    assert lake.session.table("default.t", at=AsOf(version=restored)).descriptor.id == table
    lake.session.undrop("default.t")
    assert lake.on_disk("t")


def test_a_backup_that_begins_during_a_pass_keeps_dropped_tables(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.write(table := lake.create())
    aside = lake.folder().parent / ".dropped" / str(table)
    lake.session.execute(DropTable(schema="default", table="t"))
    lake.create("u")
    lake.wait()
    assert lake.session.compact(lake.node.catalogs.latest_catalog().version)

    def begin() -> None:
        lake.session.hold(BACKUP, at=lake.node.catalogs.complete_now())

    before_the_next(monkeypatch, DroppedTables, "_begin_to_forget", begin)
    assert lake.node.cleaner.clean().parts == ()
    assert [path for path in aside.rglob("*") if path.is_file()]


@pytest.mark.parametrize("lake", ["folder", "postgresql", "etcd"], indirect=True)
def test_a_table_that_another_node_restores_before_its_cleaning_begins_stays(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = lake.write(table := lake.create())
    lake.session.execute(DropTable(schema="default", table="t"))
    lake.create("u")
    lake.wait()
    with Node.open(lake.address, settings=lake.node.settings) as other:
        undo = read_undrop(other.catalogs, "table", "default.t")
        assert lake.session.compact(lake.node.catalogs.latest_catalog().version)
        restore = partial(other.metastore.execute, undo, user="bob")
        before_the_next(monkeypatch, ReadAgain, "plan", restore)
        assert lake.node.cleaner.clean().parts == ()
    assert lake.paths(table) == [path]
    assert lake.on_disk() == {path}


@pytest.mark.parametrize("lake", ["folder", "postgresql", "etcd"], indirect=True)
@pytest.mark.parametrize("step", ["_begin_to_forget", "_forget_table"])
def test_a_restore_that_was_prepared_before_the_history_was_trimmed_is_refused_by_cleaning(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    lake.write(lake.create())
    lake.session.execute(DropTable(schema="default", table="t"))
    lake.create("u")
    lake.wait()
    with Node.open(lake.address, settings=lake.node.settings) as other:
        undo = read_undrop(other.catalogs, "table", "default.t")
        assert lake.session.compact(lake.node.catalogs.latest_catalog().version)

        def restore() -> None:
            with pytest.raises(HistoryMoved):  # the places of its tables were compared before
                other.catalogs.execute(undo, author="bob")

        before_the_next(monkeypatch, DroppedTables, step, restore)
        assert [part.rows for part in lake.node.cleaner.clean().parts] == [1]
        with pytest.raises(VersionNotFound, match="was trimmed"):
            other.session(user="bob").undrop("default.t")


@pytest.mark.parametrize("step", ["_begin_to_forget", "_change"])
def test_a_prepared_restore_of_a_table_without_rows_is_refused_by_cleaning(
    in_folder: Lake, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, step: str
) -> None:
    lake = in_folder
    if step == "_begin_to_forget":  # it has a folder, and was never written
        lake.create()
    else:  # it has the number of its next write, and no folder of its own
        table = lake.create(kind=TableKind.EXTERNAL, location=f"file://{tmp_path}")
        lake.remove(table, lake.write(table))
        lake.wait()
        assert lake.clean() == [("removed rows", 1, 0)]
    lake.session.execute(DropTable(schema="default", table="t"))
    lake.create("u")
    lake.wait()
    undo = read_undrop(lake.node.catalogs, "table", "default.t")
    assert lake.session.compact(lake.node.catalogs.latest_catalog().version)

    def restore() -> None:
        with pytest.raises(HistoryMoved):
            lake.node.catalogs.execute(undo, author="bob")

    before_the_next(monkeypatch, DroppedTables, step, restore)
    lake.node.cleaner.clean()


@pytest.mark.parametrize("look", [1, 2])
def test_a_pass_leaves_dropped_tables_if_versions_are_trimmed_before_it_looks_at_them(
    in_folder: Lake, monkeypatch: pytest.MonkeyPatch, look: int
) -> None:
    lake = in_folder
    lake.write(lake.create())
    lake.session.execute(DropTable(schema="default", table="t"))
    lake.create("u")
    lake.wait()
    assert lake.session.compact(lake.node.catalogs.latest_catalog().version)
    looks, changed = iter((1, 2)), DroppedTables._changed_tables

    def look_after_a_trim(self: DroppedTables, first: int, last: int) -> Iterator[int]:
        if next(looks) == look:
            raise VersionNotFound("trimmed")
        return changed(self, first, last)

    with monkeypatch.context() as patch:
        patch.setattr(DroppedTables, "_changed_tables", look_after_a_trim)
        assert lake.node.cleaner.clean().parts == ()
    assert [part.rows for part in lake.node.cleaner.clean().parts] == [1]


def test_a_pass_cleans_dropped_tables_while_others_change_the_catalog_all_the_time(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.write(lake.create())
    lake.session.execute(DropTable(schema="default", table="t"))
    lake.create("u")
    lake.wait()
    assert lake.session.compact(lake.node.catalogs.latest_catalog().version)
    begin = DroppedTables._begin_to_forget

    def begin_after_a_change(self: DroppedTables, table_id: int, **arguments: Any) -> bool:
        lake.session.execute(CreateSchema(name="s"))
        return begin(self, table_id, **arguments)

    monkeypatch.setattr(DroppedTables, "_begin_to_forget", begin_after_a_change)
    assert [part.rows for part in lake.node.cleaner.clean().parts] == [1]


def test_a_node_that_does_not_know_a_table_yet_does_not_take_it_for_a_dropped_one(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.create()
    known = lake.node.catalogs.latest_catalog()
    lake.wait()
    assert lake.session.compact(known.version)
    path = lake.write(table := lake.create("u"), "u")
    with monkeypatch.context() as patch:
        patch.setattr(lake.node.catalogs, "latest_catalog", lambda: known)
        assert lake.node.cleaner.clean().parts == ()
    write_ids = lake.session.open(["default.u"]).write_ids[table]
    assert lake.on_disk("u") == set(lake.paths(table, write_ids)) == {path}


def test_folders_of_dropped_tables_left_by_a_killed_process_are_cleaned(in_folder: Lake) -> None:
    lake = in_folder
    table = lake.create()
    lake.session.execute(DropTable(schema="default", table="t"))
    present = lake.create("u")
    warehouse = lake.folder("u").parent
    lake.wait()
    lake.session.compact(lake.node.catalogs.latest_catalog().version)
    lake.clean()
    for name in (str(table), f"{table}.partitions", "99.purged", "10000", "other"):
        (warehouse / ".dropped" / name).mkdir()
    (warehouse / ".dropped" / str(present) / "7").mkdir(parents=True)
    lake.node.cleaner.clean()
    kept = sorted(os.listdir(warehouse / ".dropped"))
    assert kept == ["10000", str(present), "other"]
    assert os.listdir(warehouse / ".dropped" / str(present)) == ["7"]


def test_a_folder_that_cannot_be_deleted_does_not_cost_a_version_in_each_pass(
    in_folder: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalogs, cleaner = in_folder.node.catalogs, in_folder.node.cleaner
    in_folder.create()
    in_folder.session.execute(DropTable(schema="default", table="t"))
    in_folder.create("u")
    in_folder.wait()
    assert in_folder.session.compact(catalogs.latest_catalog().version)

    def refuse(path: Path) -> None:
        raise PermissionError(path)

    with monkeypatch.context() as patch:
        patch.setattr(cleaned_files, "delete_folder", refuse)
        cleaner.clean()
        latest = catalogs.latest_catalog()
        assert cleaner.clean().parts == ()  # nothing is reported that was not removed
        assert cleaner.statistics().failures == 2
    assert cleaner.clean().parts
    assert catalogs.latest_catalog() is latest


def test_a_purged_folder_stays_until_its_purge_is_committed(in_folder: Lake) -> None:
    """The node that repeats the purge of a killed one recognizes by it that it was done."""
    table = in_folder.create()
    dropped = in_folder.folder().parent / ".dropped"
    names = {f"{table}.purged": "table_location", f"{table}.7.purged": "unfinished_move"}
    with in_folder.node.database.write() as connection:
        begin(connection, table, [PartitionMove("k=1", 7, PURGED)])
    for name in names:
        (dropped / name).mkdir(parents=True)
    assert in_folder.clean() == []
    for name, marks in names.items():
        with in_folder.node.database.write() as connection:
            connection.exec_driver_sql(f"DELETE FROM {marks}")
        assert in_folder.clean() == [("dropped table", 0, 0)]
        assert not (dropped / name).exists()


def test_a_table_dropped_with_keep_data_keeps_its_files(in_folder: Lake) -> None:
    lake = in_folder
    table = lake.create()
    path = lake.put("t", lake.write(table))
    lake.session.execute(DropTable(schema="default", table="t", keep_data=True))
    lake.create("u")
    lake.wait()
    lake.session.compact(lake.node.catalogs.latest_catalog().version)
    assert lake.clean() == [("dropped table", 1, 0)]
    assert path.exists()
    lake.create()
    assert lake.on_disk() == set()  # the new table does not show the kept files


def test_a_kept_folder_stays_although_its_schema_has_the_name_of_dropped_folders(
    in_folder: Lake,
) -> None:
    lake = in_folder
    lake.session.execute(CreateSchema(name="a.dropped"))
    definition = TableDefinition(name="t", columns=(ColumnDefinition("k", BIGINT),))
    lake.session.execute(CreateTable(schema="a.dropped", definition=definition))
    place = Path(urlsplit(lake.session.table("`a.dropped`.t").location).path)
    (place / "f").touch()
    lake.session.execute(DropTable(schema="a.dropped", table="t", keep_data=True))
    lake.create()
    lake.wait()
    lake.session.compact(lake.node.catalogs.latest_catalog().version)
    lake.node.cleaner.clean()
    assert (place / "f").exists()
