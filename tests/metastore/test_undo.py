"""Undoing changes of tables, with their rows, files and folders, on a whole node."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from strandline.catalog import Command
from strandline.catalog.commands import (
    AddColumns,
    AlterDefaultPrivileges,
    ColumnDefinition,
    CommentOn,
    CreateFunction,
    CreateIndex,
    CreateRole,
    CreateSchema,
    CreateTable,
    DropSchema,
    DropTable,
    GrantPrivileges,
    RenameTable,
    SetConfiguration,
    SetTableProperties,
    TableDefinition,
)
from strandline.catalog.undo.command import HistoryMoved, Undo
from strandline.catalog.undo.reading import read_undo
from strandline.errors import (
    AlreadyExists,
    Conflict,
    DeadlineExceeded,
    IllegalChange,
    NotFound,
    ObjectNotFound,
    PermissionDenied,
    VersionNotFound,
)
from strandline.metastore import metastore
from strandline.metastore.hive.events import HiveEvents
from strandline.metastore.interface import AsOf, Session
from strandline.metastore.store.rows import DataFile, NewRow, PartitionRow, RowKind
from strandline.model.privileges import ObjectKind, Privilege
from strandline.model.types import INT, STRING
from strandline.node import Node
from strandline.transactions import ValidWriteIdList

READ_UNDO = "strandline.catalog.undo.reading.read_undo"


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with Node.open(tmp_path / "store") as node:
        node.session(user="ann").execute(CreateSchema(name="shop"))
        yield node


@pytest.fixture
def session(node: Node) -> Session:
    return node.session(user="ann")


def create(name: str, *, transactional: bool = False, location: str | None = None) -> CreateTable:
    return CreateTable(
        schema="shop",
        definition=TableDefinition(
            name=name,
            columns=(ColumnDefinition("a", INT), ColumnDefinition("day", STRING)),
            partition_columns=() if transactional else ("day",),
            transactional=transactional,
            provider="strandline" if transactional else "parquet",
            location=location,
        ),
    )


def drop(name: str, **more: bool) -> DropTable:
    return DropTable(schema="shop", table=name, **more)


def folder(session: Session, name: str) -> Path:
    return Path(session.table(f"shop.{name}").location.removeprefix("file://"))


def paths(session: Session, table_id: int) -> list[str]:
    write_ids = ValidWriteIdList(hwm=1_000)
    return [file.path for file in session.files(table_id, write_ids).data_files]


def partitions(node: Node, table_id: int) -> list[str]:
    return [row.name for row in node.store.rows(table_id, RowKind.PARTITION, write_ids=None)]


def test_an_undo_whose_time_limit_passed_while_the_history_was_read_changes_nothing(
    node: Node, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = session.execute(create("orders")).version
    passed = 0.0

    def slow_read(*given: Any, **named: Any) -> Undo:
        nonlocal passed
        passed = 31.0
        return read_undo(*given, **named)

    class Clock:
        monotonic = staticmethod(lambda: time.monotonic() + passed)

    monkeypatch.setattr(READ_UNDO, slow_read)
    monkeypatch.setattr(metastore, "time", Clock)
    with pytest.raises(DeadlineExceeded, match="will not take effect"):
        session.undo(version, timeout=30.0)
    assert session.tables("shop") == ["orders"]


def test_a_plain_table_is_restored_with_its_files_and_partitions(
    node: Node, session: Session
) -> None:
    session.execute(create("p"))
    before = session.table("shop.p")
    (folder(session, "p") / "day=1").mkdir()
    (folder(session, "p") / "day=1" / "f").write_text("rows")
    with node.store.change(before.descriptor.id, author="ann") as change:
        change.stage(add=[NewRow.of(PartitionRow(values=("1",), location="day=1"), name="day=1")])
    session.execute(drop("p"))
    assert not Path(before.location.removeprefix("file://")).exists()
    session.undrop("shop.p")
    after = session.table("shop.p")
    assert (after.descriptor, after.location) == (before.descriptor, before.location)
    assert (folder(session, "p") / "day=1" / "f").read_text() == "rows"
    assert partitions(node, before.descriptor.id) == ["day=1"]


def test_a_transactional_table_is_restored_with_its_rows(node: Node, session: Session) -> None:
    session.execute(create("t", transactional=True))
    table = session.table("shop.t").descriptor
    txn = session.begin().txn_id
    session.stage(txn, table.id, add=[DataFile(file_id=1, path="f1", rows=1, bytes=1)])
    session.commit(txn)
    dropped = session.execute(drop("t"))
    session.undo(dropped.version)
    assert paths(session, table.id) == ["f1"]
    txn = session.begin().txn_id
    session.stage(txn, table.id, add=[DataFile(file_id=2, path="f2", rows=1, bytes=1)])
    session.commit(txn)
    assert paths(session, table.id) == ["f1", "f2"]
    with Node.open(node.folder) as other:
        assert paths(other.session(user="bob"), table.id) == ["f1", "f2"]


def test_another_node_finds_a_restored_table_at_its_old_place(node: Node, session: Session) -> None:
    with Node.open(node.folder) as other:
        bob = other.session(user="bob")
        session.execute(create("p"))
        place = bob.table("shop.p").location
        session.execute(drop("p"))
        session.undrop("shop.p")
        assert bob.table("shop.p").location == place


def test_a_schema_is_restored_with_the_folders_of_its_tables(session: Session) -> None:
    session.execute([create("a"), create("b")])
    for name in ("a", "b"):
        (folder(session, name) / "f").write_text(name)
    dropped = session.execute(DropSchema(name="shop", cascade=True))
    session.undo(dropped.version)
    assert [(folder(session, name) / "f").read_text() for name in ("a", "b")] == ["a", "b"]


def test_an_undone_rename_moves_the_folder_back(session: Session) -> None:
    session.execute([create("a"), create("b")])
    for name in ("a", "b"):
        (folder(session, name) / "f").write_text(name)
    swapped = session.execute(
        [
            RenameTable(schema="shop", table=old, new_name=new)
            for old, new in (("a", "tmp"), ("b", "a"), ("tmp", "b"))
        ]
    )
    assert (folder(session, "a") / "f").read_text() == "b"
    undone = session.undo(swapped.version)
    for name in ("a", "b"):
        assert folder(session, name).name == name
        assert (folder(session, name) / "f").read_text() == name
    session.undo(undone.version)
    assert (folder(session, "a") / "f").read_text() == "b"


def test_a_table_with_a_location_elsewhere_is_never_moved(session: Session, tmp_path: Path) -> None:
    place = tmp_path / "elsewhere" / "kept"
    place.mkdir(parents=True)
    session.execute(create("p", location=f"file://{place}"))
    (place / "f").write_text("x")
    session.execute(drop("p"))
    assert (place / "f").read_text() == "x"
    session.undrop("shop.p")
    assert folder(session, "p") == place
    assert (place / "f").read_text() == "x"


def test_data_that_a_drop_kept_in_its_place_stays_there_after_a_restore(session: Session) -> None:
    session.execute(create("p"))
    place = folder(session, "p")
    (place / "f").write_text("x")
    session.execute(drop("p", keep_data=True))
    session.undrop("shop.p")
    assert folder(session, "p") == place
    assert (place / "f").read_text() == "x"


def test_a_table_whose_old_folder_is_taken_is_restored_where_its_files_are(
    session: Session,
) -> None:
    session.execute(create("p"))
    place = folder(session, "p")
    (place / "f").write_text("old")
    session.execute(drop("p"))
    place.mkdir()
    (place / "g").write_text("somebody's")
    session.undrop("shop.p")
    assert (folder(session, "p") / "f").read_text() == "old"
    assert (place / "g").read_text() == "somebody's"


def test_a_table_whose_files_were_cleaned_cannot_be_restored(node: Node, session: Session) -> None:
    session.execute(create("p"))
    table_id = session.table("shop.p").descriptor.id
    dropped = session.execute(drop("p"))
    place = node.store.location(table_id)
    assert place is not None
    shutil.rmtree(place.removeprefix("file://"))
    with pytest.raises(
        ObjectNotFound, match="are gone: PURGE, cleaning or another program deleted"
    ):
        session.undrop("shop.p")
    with pytest.raises(
        ObjectNotFound, match="are gone: PURGE, cleaning or another program deleted"
    ):
        session.undo(dropped.version)
    assert session.history()[-1].version == dropped.version


def test_undoing_a_create_drops_the_table_and_a_redo_restores_its_files(session: Session) -> None:
    created = session.execute(create("p"))
    (folder(session, "p") / "f").write_text("x")
    undone = session.undo(created.version)
    assert session.tables("shop") == []
    session.undo(undone.version)
    assert (folder(session, "p") / "f").read_text() == "x"


def test_hive_clients_get_events_for_a_restored_table_and_an_undone_rename(
    node: Node, session: Session
) -> None:
    session.execute(create("p"))
    session.execute(drop("p"))
    last = node.notifications.read(0, limit=1000)[-1].event_id
    session.undrop("shop.p")
    renamed = session.execute(RenameTable(schema="shop", table="p", new_name="q"))
    session.undo(renamed.version)
    events = HiveEvents(node.metastore).render(node.notifications.read(last, limit=10))
    created, _, back = events
    assert (created["eventType"], created["dbName"], created["tableName"]) == (
        "CREATE_TABLE",
        "shop",
        "p",
    )
    assert json.loads(str(created["message"]))["tableObjJson"]
    assert (back["eventType"], back["tableName"]) == ("ALTER_TABLE", "p")
    assert json.loads(str(back["message"]))["table"] == "q"


def test_a_range_that_drops_and_restores_a_table_is_undone_as_the_rest_of_its_changes(
    node: Node, session: Session
) -> None:
    session.execute(create("p"))
    (folder(session, "p") / "f").write_text("rows")
    change = AddColumns(schema="shop", table="p", columns=(ColumnDefinition("b", INT),))
    rename = RenameTable(schema="shop", table="p", new_name="q")
    for command, name, verb in ((change, "p", "undo_add_columns"), (rename, "q", "rename_table")):
        first = session.execute(command).version
        session.execute(drop(name))
        restored = session.undrop(f"shop.{name}").version
        last = node.notifications.read(0, limit=1000)[-1].event_id
        session.undo(first, through=restored)
        assert [made for made, _ in session.history()[-1].actions] == [verb]
        assert folder(session, "p").name == "p"
        assert (folder(session, "p") / "f").read_text() == "rows"
        assert [column.name for column in session.table("shop.p").descriptor.columns] == [
            "a",
            "day",
        ]
        (event,) = HiveEvents(node.metastore).render(node.notifications.read(last, limit=10))
        message = json.loads(str(event["message"]))
        assert (event["eventType"], event["dbName"], event["tableName"]) == (
            "ALTER_TABLE",
            "shop",
            "p",
        )
        assert (message["db"], message["table"]) == ("shop", name)
    redone = session.undo(session.history()[-1].version)
    assert session.tables("shop") == ["q"]
    assert redone.applied == (True,)
    assert folder(session, "q").name == "q"


def test_a_table_that_was_restored_and_dropped_meanwhile_is_a_conflict(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    session.execute(create("p"))
    dropped = session.execute(drop("p"))
    reads: list[int] = []

    def overtaken(*arguments: Any, **named: Any) -> object:  # Any: as in the real one
        reading = read_undo(*arguments, **named)
        reads.append(1)
        if len(reads) == 1:
            monkeypatch.setattr(READ_UNDO, read_undo)
            session.undo(dropped.version)
            session.execute(drop("p"))
            monkeypatch.setattr(READ_UNDO, overtaken)
        return reading

    monkeypatch.setattr(READ_UNDO, overtaken)
    with pytest.raises(Conflict, match="was restored and dropped again") as caught:
        session.undo(dropped.version)
    assert not isinstance(caught.value, HistoryMoved)
    assert len(reads) == 2


def test_privileges_apply_to_undo_too(node: Node, session: Session) -> None:
    session.execute([CreateRole(name="ann", superuser=True), create("p")])
    added = session.execute(
        AddColumns(schema="shop", table="p", columns=(ColumnDefinition("c", INT),))
    )
    dropped = session.execute(drop("p"))
    session.execute(SetConfiguration(name="enforce_privileges", value="true"))
    bob = node.session(user="bob")
    for name in ("shop.p", "shop.never"):
        with pytest.raises(ObjectNotFound, match=f"table {name} cannot be restored: no version"):
            bob.undrop(name)
    with pytest.raises(VersionNotFound, match="it does not exist, or user bob may not see it"):
        bob.undo(dropped.version)
    with pytest.raises(PermissionDenied):
        bob.differences(AsOf(version=added.version))
    session.undrop("shop.p")
    with pytest.raises(VersionNotFound):
        bob.undo(added.version)
    session.undo(added.version)


def test_objects_that_a_user_may_not_see_are_answered_like_missing_ones(
    node: Node, session: Session
) -> None:
    session.execute([CreateRole(name="ann", superuser=True), CreateRole(name="bob")])
    made = session.execute([create("there"), create("gone")])
    dropped = session.execute(drop("gone"))
    session.execute([CreateSchema(name="left"), CreateSchema(name="open", owner="bob")])
    gone_schema = session.execute(DropSchema(name="left"))
    theirs = session.execute(CreateSchema(name="theirs", owner="bob"))
    session.execute(SetConfiguration(name="enforce_privileges", value="true"))
    bob = node.session(user="bob")

    def answers(*asks: Callable[[], object]) -> list[str]:
        texts = []
        for ask in asks:
            with pytest.raises(NotFound) as caught:
                ask()
            texts.append(re.sub(r"shop\.\w+|\b\d+\b", "…", caught.value.message))
        return texts

    names = ("shop.gone", "shop.there", "shop.never")
    texts = answers(*(lambda name=name: bob.undrop(name) for name in names))
    assert len(set(texts)) == 1
    for name in ("shop.there", "shop.never"):
        with pytest.raises(PermissionDenied, match=r"^user bob lacks USAGE on schema shop; "):
            bob.undrop_partitions(name)
    with pytest.raises(ObjectNotFound, match="schema shop cannot be restored: no version"):
        bob.undrop("shop", kind="schema")
    versions = (made.version, dropped.version, 999, gone_schema.version + 900)
    texts = answers(*(lambda version=version: bob.undo(version) for version in versions))
    assert len(set(texts)) == 1
    texts = answers(
        lambda: bob.undo(made.version, through=dropped.version),
        lambda: bob.undo(998, through=999),
    )
    assert len(set(texts)) == 1
    assert bob.undo(theirs.version).applied == (True,)
    usage = GrantPrivileges(
        kind=ObjectKind.SCHEMA, name="shop", privileges=Privilege.USAGE, grantee="bob"
    )
    session.execute(usage)
    with pytest.raises(PermissionDenied, match=r"bob"):
        bob.undrop("shop.gone")
    with pytest.raises(AlreadyExists, match="that name is taken"):
        bob.undrop("shop.there")
    with pytest.raises(PermissionDenied):
        bob.undo(dropped.version)


def test_where_a_table_was_moved_is_not_told_to_a_user_that_cannot_reach_it(
    node: Node, session: Session
) -> None:
    session.execute(
        [CreateRole(name="ann", superuser=True), CreateSchema(name="open", owner="bob")]
    )
    bob = node.session(user="bob")
    columns = (ColumnDefinition("a", INT),)
    bob.execute(CreateTable(schema="open", definition=TableDefinition(name="p", columns=columns)))
    note = SetTableProperties(schema="open", table="p", set=(("k", "v"),))
    noted = bob.execute(note)
    moved = session.execute(
        RenameTable(schema="open", table="p", new_name="secret", new_schema="shop")
    )
    session.execute(SetConfiguration(name="enforce_privileges", value="true"))
    for version in (noted.version, moved.version):
        with pytest.raises(VersionNotFound, match="it does not exist, or user bob may not see it"):
            bob.undo(version)


def test_comments_and_default_privileges_in_a_schema_out_of_reach_cannot_be_seen_by_an_undo(
    node: Node, session: Session
) -> None:
    session.execute(
        [
            CreateRole(name="ann", superuser=True),
            CreateFunction(schema="shop", name="secret", class_name="F"),
        ]
    )
    comment = [
        session.execute(CommentOn(kind=ObjectKind.FUNCTION, name="shop.secret", text=text))
        for text in ("first", "second")
    ]
    default = [
        session.execute(
            AlterDefaultPrivileges(
                kind=ObjectKind.TABLE, privileges=privilege, grantee="ann", schema="shop"
            )
        )
        for privilege in (Privilege.SELECT, Privilege.INSERT)
    ]
    session.execute(SetConfiguration(name="enforce_privileges", value="true"))
    for executed in (*comment, *default):
        with pytest.raises(VersionNotFound, match="it does not exist, or user bob may not see it"):
            node.session(user="bob").undo(executed.version)


def test_versions_out_of_reach_cannot_be_seen_by_an_undo_of_what_they_changed_back(
    node: Node, session: Session
) -> None:
    session.execute([CreateRole(name="ann", superuser=True), create("p")])
    commented = [
        session.execute(SetTableProperties(schema="shop", table="p", comment=text)).version
        for text in ("first", "second", "first")
    ]
    session.execute(SetConfiguration(name="enforce_privileges", value="true"))
    first, second, third = commented
    for through in (second, third):  # the last one leaves the table as it was
        with pytest.raises(VersionNotFound, match="user bob may not see all of them"):
            node.session(user="bob").undo(first + 1, through=through)
    assert session.undo(second, through=third).applied == (False,)


BOB_USES_SHOP: list[Command] = [
    CreateRole(name="ann", superuser=True),
    CreateRole(name="bob"),
    GrantPrivileges(kind=ObjectKind.SCHEMA, name="shop", privileges=Privilege.USAGE, grantee="bob"),
]


def test_a_refusal_of_an_undo_tells_no_column_to_a_user_who_may_not_read_the_table(
    node: Node, session: Session
) -> None:
    session.execute(BOB_USES_SHOP)
    session.execute(create("p"))
    added = session.execute(
        AddColumns(schema="shop", table="p", columns=(ColumnDefinition("secret", INT),))
    )
    session.execute(CreateIndex(schema="shop", table="p", index="i", columns=("secret",)))
    session.execute(SetConfiguration(name="enforce_privileges", value="true"))
    with pytest.raises(IllegalChange, match="column 'secret' of p cannot be dropped"):
        session.undo(added.version)
    with pytest.raises(PermissionDenied, match=r"bob does not own table shop\.p"):
        node.session(user="bob").undo(added.version)


def test_a_refusal_of_an_undo_names_other_authors_only_to_a_superuser(
    node: Node, session: Session
) -> None:
    session.execute(BOB_USES_SHOP)
    made, dropped = session.execute(create("p")).version, session.execute(drop("p")).version
    session.execute(SetConfiguration(name="enforce_privileges", value="true"))
    with pytest.raises(Conflict, match=rf"in version {dropped} by ann \(drop table\)"):
        session.undo(made)
    with pytest.raises(Conflict, match=rf"in version {dropped} \(drop table\)"):
        node.session(user="bob").undo(made)
