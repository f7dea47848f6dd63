"""``strandline undo`` and ``undrop``, on a closed store and on one with a running node."""

from __future__ import annotations

import getpass
import json
from pathlib import Path

import pytest

from strandline.catalog import Command
from strandline.catalog.commands import (
    ColumnDefinition,
    CreateIndex,
    CreateSchema,
    CreateTable,
    CreateView,
    DropSchema,
    DropTable,
    DropView,
    RenameIndex,
    RenameTable,
    SetTableProperties,
    TableDefinition,
    ViewDefinition,
)
from strandline.clock import system_wall_clock
from strandline.errors import NotFound
from strandline.metastore.store.rows import NewRow, PartitionRow, RowKind
from strandline.model.types import INT
from strandline.node import Node
from tests.conftest import ManualWall
from tests.node.kept_store import KeptStore
from tests.strandline_command import strandline

COLUMNS = (ColumnDefinition("k", INT),)
INDEX = CreateIndex(schema="shop", index="i", table="orders", columns=("k",))


def make(folder: Path) -> None:
    with Node.open(folder) as node:
        session = node.session(user="ann")
        session.execute(CreateSchema(name="shop"))
        definition = TableDefinition(name="orders", columns=COLUMNS)
        session.execute(CreateTable(schema="shop", definition=definition))
        (files(node) / "f").write_text("rows")
        session.execute(DropTable(schema="shop", table="orders"))


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> KeptStore:
    return KeptStore(tmp_path_factory.mktemp("undo"), make)


@pytest.fixture
def store(kept: KeptStore) -> Path:
    """A store: version 4 made ``shop.orders``, with a file in its folder; version 5 dropped it."""
    return kept.renewed()


def files(node: Node) -> Path:
    location = node.session(user="bob").table("shop.orders").location
    return Path(location.removeprefix("file://"))


def rename(old: str, new: str) -> RenameTable:
    """The command that renames ``shop.a`` to ``r.b``."""
    (schema, table), (new_schema, new_name) = old.split("."), new.split(".")
    return RenameTable(schema=schema, table=table, new_name=new_name, new_schema=new_schema)


def test_undrop_restores_a_table_with_its_files(store: Path) -> None:
    result = strandline("undrop", store, "shop.orders", "--user", "bob")
    assert result.exit_code == 0, result.output
    assert result.output.splitlines() == ["version 6", "  restore table shop.orders (undoes: 5)"]
    with Node.open(store) as node:
        assert (files(node) / "f").read_text() == "rows"
        assert node.session(user="ann").history()[-1].author == "bob"


def test_undo_prints_the_same_json_as_log(store: Path) -> None:
    result = strandline("undo", store, 5, "--output", "json")
    (line,) = result.output.splitlines()
    record = json.loads(line)
    assert list(record) == ["version", "time", "author", "member", "trimmed", "actions"]
    assert (record["version"], record["author"]) == (6, getpass.getuser())
    (action,) = record["actions"]
    assert (action["verb"], action["table"], action["undoes"]) == (
        "restore_table",
        "shop.orders",
        5,
    )
    assert strandline("log", store, "--output", "json", "--last", 1).output.strip() == line


def test_several_versions_can_be_undone_together(store: Path) -> None:
    strandline("undrop", store, "shop.orders")
    with Node.open(store) as node:
        session = node.session(user="ann")
        session.execute(rename("shop.orders", "shop.others"))
        session.execute(DropTable(schema="shop", table="others"))
    result = strandline("undo", store, "7..8")
    assert result.exit_code == 0, result.output
    assert result.output.splitlines() == ["version 9", "  restore table shop.orders (undoes: 7..8)"]
    with Node.open(store) as node:
        assert (files(node) / "f").read_text() == "rows"
    result = strandline("undo", store, "8..7")
    assert result.exit_code == 64
    assert "name the older one first" in result.output


def test_undrop_restores_a_schema_with_the_files_of_its_tables(store: Path) -> None:
    strandline("undrop", store, "shop.orders")
    with Node.open(store) as node:
        node.session(user="ann").execute(DropSchema(name="shop", cascade=True))
    result = strandline("undrop", store, "Shop", "--kind", "schema")
    assert result.exit_code == 0, result.output
    assert result.output.splitlines() == [
        "version 8",
        "  restore schema shop (undoes: 7)",
        "  restore table shop.orders (undoes: 7)",
    ]
    with Node.open(store) as node:
        assert (files(node) / "f").read_text() == "rows"


def test_a_running_node_sees_an_undrop_immediately(store: Path) -> None:
    with Node.open(store) as node:
        assert strandline("undrop", store, "shop.orders").exit_code == 0
        assert (files(node) / "f").read_text() == "rows"


def test_a_refusal_is_one_line_and_an_exit_status(store: Path) -> None:
    strandline("undo", store, 5)
    with Node.open(store) as node:
        command = SetTableProperties(schema="shop", table="orders", set=(("a", "1"),))
        node.session(user="bob").execute(command)
    cases = [
        (("undo", store, 4), 75, "table shop.orders was altered again in version 7 by bob"),
        (("undo", store, 2), 64, "the version that created the catalog"),
        (("undo", store, 99), 66, "does not exist; the latest is 7"),
        (
            ("undrop", store, "shop.orders"),
            73,
            "by table shop.orders, which may have been restored",
        ),
        (
            ("undrop", store, "SHOP.Orders", "--kind", "view"),
            73,
            "by table shop.orders, which may have been restored",
        ),
        (("undrop", store, "shop.never"), 66, "no version from 1 on dropped a table"),
        (("undrop", store, "a.b.c"), 64, "found 'a.b.c'; write a part with a dot in backticks"),
    ]
    for arguments, status, says in cases:
        result = strandline(*arguments)
        assert (result.exit_code, len(result.output.splitlines())) == (status, 1), result.output
        assert says in result.output


def test_undrop_restores_a_view(store: Path) -> None:
    definition = ViewDefinition(
        name="v", columns=COLUMNS, original_text="SELECT 1", expanded_text="SELECT 1"
    )
    with Node.open(store) as node:
        session = node.session(user="ann")
        session.execute(CreateView(schema="shop", definition=definition))
        session.execute(DropView(schema="shop", view="v"))
    assert strandline("undrop", store, "shop.v", "--kind", "view").exit_code == 0


def test_undo_of_a_version_without_effect_prints_nothing_to_undo(store: Path) -> None:
    with Node.open(store) as node:
        made = CreateTable(schema="shop", definition=TableDefinition(name="t", columns=COLUMNS))
        batch: list[Command] = [made, DropTable(schema="shop", table="t")]
        version = node.session(user="ann").execute(batch).version
    assert strandline("undo", store, version).output.startswith("nothing to undo")
    assert strandline("undo", store, version, "--output", "json").output == ""


@pytest.mark.parametrize("user", ["two\nlines", "u" * 256])
def test_a_name_that_cannot_be_that_of_a_user_is_refused(store: Path, user: str) -> None:
    refused = strandline("role", "create", store, "analysts", "--user", user)
    assert refused.exit_code == 2
    assert "give 1 to 255 printable characters" in refused.stderr


def test_an_invalid_version_author_or_kind_is_refused_and_changes_nothing(store: Path) -> None:
    for arguments, says in (
        (("undo", store, "soon"), "'soon' is not a version"),
        (("undo", store, 0), "'0' is not a version"),
        (("undo", store, "3.."), "'3..' is not a version or a range of versions like 3..5"),
        (("undo", store, "0..5"), "'0..5' is not a version"),
        (("undo", store, "9" * 5_000), "9' is not a version"),
        (("undo", store, 5, "--user", " "), "it is empty"),
        (("undrop", store, "shop", "--kind", "zone"), "is not one of 'schema', 'table', 'view'"),
        (("undrop", "table", store, "shop.orders"), "the kind is an option: strandline undrop STO"),
    ):
        result = strandline(*arguments)
        assert result.exit_code == 2
        assert says in result.output
    assert len(strandline("log", store).output.splitlines()) == 5


def test_a_partition_is_named_only_for_partitions(store: Path) -> None:
    result = strandline("undrop", store, "shop.orders", "--partition", "k=1")
    assert result.exit_code == 64
    assert len(strandline("log", store).output.splitlines()) == 5


def test_a_name_is_found_in_any_case_and_restored_as_it_was(store: Path) -> None:
    result = strandline("undrop", store, "SHOP.Orders")
    assert result.output.splitlines() == ["version 6", "  restore table shop.orders (undoes: 5)"]


def test_a_trimmed_version_is_shown_in_the_log_and_cannot_be_undone(store: Path) -> None:
    with Node.open(store) as node:
        node.session(user="ann").compact(5)
    records = [
        json.loads(line)
        for line in strandline("log", store, "--output", "json").output.splitlines()
    ]
    assert [(record["version"], record["trimmed"]) for record in records] == [
        (2, True),
        (3, True),
        (4, True),
        (5, False),
    ]
    assert records[2]["actions"][0]["verb"] == "create_table"
    cases = [
        (("undo", store, 4), "it was trimmed; the earliest version is 5, and versions from 6"),
        (
            ("undo", store, 5),
            "history was trimmed up to it, so the state before it is no longer known",
        ),
        (("undrop", store, "shop.orders"), "version 5, in which ann dropped it, was trim"),
    ]
    for arguments, says in cases:
        result = strandline(*arguments)
        assert result.exit_code == 66
        assert says in result.output


def test_folders_are_right_after_undoing_renames_there_and_back(store: Path) -> None:
    """Even if undo only has to restore the name of an index: the next DDL is carried out."""
    strandline("undo", store, 5)
    with Node.open(store) as node:
        session = node.session(user="ann")
        session.execute([CreateSchema(name="r"), INDEX])
        renamed = RenameIndex(schema="r", index="i", new_name="j")
        there, back = rename("shop.orders", "r.orders"), rename("r.orders", "shop.orders")
        version = session.execute([there, renamed, back]).version
    result = strandline("undo", store, version)
    assert result.output.splitlines()[1:] == [
        f"  rename index shop.j (to: shop.i, undoes: {version})"
    ]
    with Node.open(store) as node:
        node.session(user="ann").execute(CreateSchema(name="next"))
        assert (files(node) / "f").read_text() == "rows"


def test_a_replaced_table_gets_its_folder_back(store: Path) -> None:
    strandline("undo", store, 5)
    with Node.open(store) as node:
        session = node.session(user="ann")
        definition = TableDefinition(name="new", columns=COLUMNS)
        batch: list[Command] = [
            CreateTable(schema="shop", definition=definition),
            rename("shop.orders", "shop.old"),
            rename("shop.new", "shop.orders"),
            DropTable(schema="shop", table="old"),
        ]
        version = session.execute(batch).version
        place = files(node)
    result = strandline("undo", store, version)
    assert result.exit_code == 0, result.output
    with Node.open(store) as node:
        assert files(node) == place
        assert (files(node) / "f").read_text() == "rows"


def test_dropped_partitions_are_restored_by_name_or_as_the_last_drop(store: Path) -> None:
    with Node.open(store) as node:
        definition = TableDefinition(name="sales", columns=COLUMNS, partition_columns=("k",))
        node.session(user="ann").execute(CreateTable(schema="shop", definition=definition))
        table = node.session(user="ann").table("shop.sales").descriptor

        def add(*values: str) -> None:
            rows = [PartitionRow(values=(value,), location=f"k={value}") for value in values]
            for row in rows:
                (store / "warehouse/shop.db/sales" / row.location).mkdir()
            with node.store.change(table.id, author="ann") as change:
                change.stage(add=[NewRow.of(row, name=row.location) for row in rows])

        def drop(name: str) -> None:
            with node.store.change(table.id, author="ann") as change:
                gone = change.visible(RowKind.PARTITION, [name]).values()
                change.stage(remove=[row.row_id for row in gone])

        add("1", "2")
        drop("k=1")
        add("3")
        drop("k=2")  # together one statement of Spark
        drop("k=3")
    last = strandline("undrop", store, "shop.sales", "--kind", "partitions")
    assert (last.exit_code, last.stdout) == (0, "k=2\nk=3\n")
    named = ("undrop", store, "shop.sales", "--kind", "partitions", "--partition", "k=1")
    assert strandline(*named, "--output", "json").stdout == '{"partition": "k=1"}\n'
    again = strandline(*named)
    assert (again.exit_code, "k=1 of shop.sales already exists" in again.stderr) == (73, True)
    with Node.open(store) as node:
        partition_rows = node.store.rows(table.id, RowKind.PARTITION, write_ids=None)
        assert [row.name for row in partition_rows] == ["k=1", "k=2", "k=3"]


def test_drops_of_partitions_a_minute_apart_are_separate_drops(store: Path) -> None:
    wall = ManualWall(system_wall_clock())
    with Node.open(store, wall=wall) as node:
        definition = TableDefinition(name="late", columns=COLUMNS, partition_columns=("k",))
        node.session(user="ann").execute(CreateTable(schema="shop", definition=definition))
        table = node.session(user="ann").table("shop.late").descriptor
        rows = [PartitionRow(values=(value,), location=f"k={value}") for value in "12"]
        folder = store / "warehouse/shop.db/late"
        for row in rows:
            (folder / row.location).mkdir()
        with node.store.change(table.id, author="ann") as change:
            change.stage(add=[NewRow.of(row, name=row.location) for row in rows])
        for name in ("k=1", "k=2"):
            wall.now += 60_000
            with node.store.change(table.id, author="ann") as change:
                gone = change.visible(RowKind.PARTITION, [name]).values()
                change.stage(remove=[row.row_id for row in gone])
        session = node.session(user="ann")
        assert session.undrop_partitions("shop.late") == ["k=2"]
        (folder / "k=1").rmdir()  # as an INSERT OVERWRITE does before it drops the partition
        with pytest.raises(NotFound, match="its files were deleted before it was dropped"):
            session.undrop_partitions("shop.late", partitions=["k=1"])
