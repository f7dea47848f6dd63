"""What each command changes, refuses and leaves unchanged: scenarios on one catalog."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest

from strandline.catalog import Catalog, CatalogManager, Command
from strandline.catalog.commands import (
    AddColumns,
    AlterColumn,
    AlterSchema,
    AlterTable,
    AlterView,
    ColumnDefinition,
    CreateSchema,
    CreateTable,
    CreateView,
    DropColumns,
    DropSchema,
    DropTable,
    RenameColumn,
    RenameTable,
    SetTableProperties,
    TableDefinition,
    ViewDefinition,
    views,
)
from strandline.errors import (
    AlreadyExists,
    IllegalChange,
    InvalidInput,
    InvalidName,
    ObjectNotFound,
    StrandlineError,
    UnsupportedOperation,
)
from strandline.model import types as t
from strandline.model.descriptors import StorageFormat
from strandline.model.identifiers import check_name
from strandline.model.type_parser import parse_type


def column(text: str, *, nullable: bool = True) -> ColumnDefinition:
    name, _, data_type = text.partition(" ")
    return ColumnDefinition(name, parse_type(data_type), nullable)


def table(
    name: str = "t", *columns: str, transactional: bool = True, **more: object
) -> TableDefinition:
    definitions = tuple(column(text) for text in columns or ("a int", "b string"))
    definition = TableDefinition(name=name, columns=definitions, transactional=transactional)
    return replace(definition, **more)  # type: ignore[arg-type]  # fields of the definition


SCHEMA = CreateSchema(name="s")
TABLE = CreateTable(schema="s", definition=table())
PLAIN = CreateTable(schema="s", definition=table("p", transactional=False))
KEYED = CreateTable(
    schema="s",
    definition=TableDefinition(
        name="k",
        columns=(column("id int", nullable=False), column("v int"), column("d date")),
        partition_columns=("d",),
        primary_key=("id",),
    ),
)
FIRST_PARTITIONS = table("t", transactional=False, partition_columns=("a",))
VIEW = CreateView(
    schema="s",
    definition=ViewDefinition(
        name="v", columns=(column("a int"),), original_text="SELECT 1", expanded_text="SELECT 1"
    ),
)


@dataclass(frozen=True)
class Refused:
    name: str
    commands: Sequence[Command]
    error: type[StrandlineError]
    says: str


REFUSALS = [
    Refused("schema twice", [SCHEMA, SCHEMA], AlreadyExists, "schema s already exists"),
    Refused("schema differs in case", [SCHEMA, CreateSchema(name="S")], AlreadyExists, "S"),
    Refused("schema without a name", [CreateSchema(name="")], InvalidName, "schema"),
    Refused("schema name with a newline", [CreateSchema(name="a\nb")], InvalidName, "schema"),
    Refused("drop missing schema", [DropSchema(name="s")], ObjectNotFound, "'s'"),
    Refused("drop full schema", [SCHEMA, TABLE, DropSchema(name="s")], IllegalChange, "CASCADE"),
    Refused("alter missing schema", [AlterSchema(name="s", owner="x")], ObjectNotFound, "'s'"),
    Refused("table in missing schema", [TABLE], ObjectNotFound, "'s'"),
    Refused("table twice", [SCHEMA, TABLE, TABLE], AlreadyExists, "table s.t already exists"),
    Refused(
        "view over a table's name",
        [SCHEMA, TABLE, replace(VIEW, definition=replace(VIEW.definition, name="T"))],
        AlreadyExists,
        "table s.t already exists",
    ),
    Refused(
        "table over a view's name",
        [SCHEMA, VIEW, CreateTable(schema="s", definition=table("v"), if_not_exists=True)],
        AlreadyExists,
        "view s.v already exists",
    ),
    Refused(
        "column twice",
        [SCHEMA, CreateTable(schema="s", definition=table("t", "a int", "A int"))],
        InvalidInput,
        "duplicate",
    ),
    Refused(
        "transactional table without columns",
        [
            SCHEMA,
            CreateTable(
                schema="s", definition=TableDefinition(name="t", columns=(), transactional=True)
            ),
        ],
        InvalidInput,
        "at least one column",
    ),
    Refused(
        "nullable key",
        [SCHEMA, CreateTable(schema="s", definition=table("t", primary_key=("a",)))],
        InvalidInput,
        "NOT NULL",
    ),
    Refused(
        "unknown key",
        [SCHEMA, CreateTable(schema="s", definition=table("t", primary_key=("z",)))],
        ObjectNotFound,
        "'z'",
    ),
    Refused(
        "partition column first",
        [SCHEMA, CreateTable(schema="s", definition=FIRST_PARTITIONS)],
        InvalidInput,
        "last columns",
    ),
    Refused(
        "drop missing table", [SCHEMA, DropTable(schema="s", table="t")], ObjectNotFound, "s.t"
    ),
    Refused(
        "rename onto another",
        [SCHEMA, TABLE, PLAIN, RenameTable(schema="s", table="t", new_name="P")],
        AlreadyExists,
        "table s.p",
    ),
    Refused(
        "rename into a missing schema",
        [SCHEMA, TABLE, RenameTable(schema="s", table="t", new_name="t", new_schema="z")],
        ObjectNotFound,
        "'z'",
    ),
    Refused(
        "add a column that is there",
        [SCHEMA, TABLE, AddColumns(schema="s", table="t", columns=(column("A int"),))],
        AlreadyExists,
        "'A'",
    ),
    Refused(
        "add nothing",
        [SCHEMA, TABLE, AddColumns(schema="s", table="t", columns=())],
        InvalidInput,
        "no columns",
    ),
    Refused(
        "add NOT NULL to rows that have no value",
        [
            SCHEMA,
            TABLE,
            AddColumns(schema="s", table="t", columns=(column("c int", nullable=False),)),
        ],
        IllegalChange,
        "NOT NULL",
    ),
    Refused(
        "add to a view",
        [SCHEMA, VIEW, AddColumns(schema="s", table="v", columns=(column("c int"),))],
        UnsupportedOperation,
        "is a view",
    ),
    Refused(
        "drop a column that is not there",
        [SCHEMA, TABLE, DropColumns(schema="s", table="t", names=("a", "z"))],
        ObjectNotFound,
        "'z'",
    ),
    Refused(
        "drop every column",
        [SCHEMA, TABLE, DropColumns(schema="s", table="t", names=("a", "b"))],
        IllegalChange,
        "no columns left",
    ),
    Refused(
        "drop a key column",
        [SCHEMA, KEYED, DropColumns(schema="s", table="k", names=("id",))],
        IllegalChange,
        "primary key column",
    ),
    Refused(
        "drop a partition column",
        [SCHEMA, KEYED, DropColumns(schema="s", table="k", names=("d",))],
        IllegalChange,
        "partition column",
    ),
    Refused(
        "narrow a type",
        [SCHEMA, TABLE, AlterColumn(schema="s", table="t", column="b", type=t.INT)],
        IllegalChange,
        "string",
    ),
    Refused(
        "forbid NULLs that may be there",
        [SCHEMA, TABLE, AlterColumn(schema="s", table="t", column="a", nullable=False)],
        IllegalChange,
        "NULL",
    ),
    Refused(
        "make a key nullable",
        [SCHEMA, KEYED, AlterColumn(schema="s", table="k", column="id", nullable=True)],
        IllegalChange,
        "primary key",
    ),
    Refused(
        "rename a column of a table that is read by name",
        [SCHEMA, PLAIN, RenameColumn(schema="s", table="p", column="a", new_name="c")],
        IllegalChange,
        "by column name",
    ),
    Refused(
        "rename a column onto another",
        [SCHEMA, TABLE, RenameColumn(schema="s", table="t", column="a", new_name="B")],
        AlreadyExists,
        "'B'",
    ),
    Refused(
        "redefine away a column of a transactional table",
        [SCHEMA, TABLE, AlterTable(schema="s", table="t", definition=table("t", "a int"))],
        IllegalChange,
        "DROP COLUMN",
    ),
    Refused(
        "redefine the partitioning",
        [
            SCHEMA,
            PLAIN,
            AlterTable(
                schema="s",
                table="p",
                definition=table("p", transactional=False, partition_columns=("b",)),
            ),
        ],
        IllegalChange,
        "partition keys can not be changed",
    ),
    Refused(
        "redefine a type without a safe path",
        [
            SCHEMA,
            PLAIN,
            AlterTable(
                schema="s",
                table="p",
                definition=table("p", "a date", "b string", transactional=False),
            ),
        ],
        IllegalChange,
        "int",
    ),
    Refused(
        "alter a table as a view",
        [SCHEMA, TABLE, AlterView(schema="s", view="t", definition=VIEW.definition)],
        UnsupportedOperation,
        "not a view",
    ),
]


@pytest.mark.parametrize("case", REFUSALS, ids=lambda case: case.name)
def test_a_refused_command_names_its_reason_and_changes_nothing(
    manager: CatalogManager, case: Refused
) -> None:
    if case.commands[:-1]:
        manager.execute(case.commands[:-1], author="ann")
    before = manager.latest_catalog()
    with pytest.raises(case.error, match=case.says):
        manager.execute(case.commands[-1], author="ann")
    assert manager.latest_catalog() is before


def after(manager: CatalogManager, *commands: Command) -> Catalog:
    for command in commands:
        manager.execute(command, author="ann")
    return manager.present()


def shape(catalog: Catalog, name: str = "t") -> list[tuple[str, int]]:
    altered = catalog.table("s", name)
    assert altered is not None
    return [(c.name, c.id) for c in altered.columns]


def test_tables_and_columns_keep_their_ids_and_new_columns_get_new_ids(
    manager: CatalogManager,
) -> None:
    catalog = after(
        manager,
        SCHEMA,
        TABLE,
        AddColumns(schema="s", table="t", columns=(column("c int"), column("d int"))),
        DropColumns(schema="s", table="t", names=("b",)),
        AddColumns(schema="s", table="t", columns=(column("b string"),)),
        RenameColumn(schema="s", table="t", column="a", new_name="z"),
    )
    assert shape(catalog) == [("z", 1), ("c", 3), ("d", 4), ("b", 5)]
    versions = [manager.catalog(v).table("s", "t") for v in range(4, 9)]
    assert len({v.id for v in versions if v}) == 1
    assert [v.schema_version for v in versions if v] == [1, 2, 3, 4, 5]
    assert shape(manager.catalog(4)) == [("a", 1), ("b", 2)]


def test_nested_fields_get_ids_from_the_column_id_counter(manager: CatalogManager) -> None:
    catalog = after(
        manager,
        SCHEMA,
        CreateTable(schema="s", definition=table("t", "a struct<x:int,y:int>", "b int")),
        AlterColumn(
            schema="s", table="t", column="a", type=parse_type("struct<x:int,y:bigint,n:int>")
        ),
    )
    altered = catalog.table("s", "t")
    assert altered is not None
    struct = altered.columns[0].type
    assert isinstance(struct, t.StructType)
    assert [(f.name, f.field_id) for f in struct.fields] == [("x", 2), ("y", 3), ("n", 5)]
    assert altered.columns[1].id == 4


@pytest.mark.parametrize("sent", [(1, 2), (7, 7), (-1, 0), (1 << 31, 1 << 64)])
def test_ids_of_nested_fields_that_a_client_sends_are_ignored(
    manager: CatalogManager, sent: tuple[int, int]
) -> None:
    fields = (t.StructField(f"f{n}", t.INT, field_id=number) for n, number in enumerate(sent))
    data_type = t.ArrayType(t.StructType(tuple(fields)))
    created = replace(table(), columns=(ColumnDefinition("a", data_type), column("b int")))
    manager.execute([SCHEMA, CreateTable(schema="s", definition=created)], author="ann")
    added = AddColumns(schema="s", table="t", columns=(ColumnDefinition("c", data_type),))
    manager.execute(added, author="ann")
    stored = manager.present().table("s", "t")
    assert stored is not None
    ids = [
        (column.id, [entry.field_id for inner in t.walk(column.type) for entry in fields_of(inner)])
        for column in stored.columns
    ]
    assert ids == [(1, [2, 3]), (4, []), (5, [6, 7])]
    assert stored.next_column_id == 8


def fields_of(data_type: t.DataType) -> tuple[t.StructField, ...]:
    return data_type.fields if isinstance(data_type, t.StructType) else ()


def test_a_new_column_is_placed_before_the_partition_columns(manager: CatalogManager) -> None:
    catalog = after(
        manager, SCHEMA, KEYED, AddColumns(schema="s", table="k", columns=(column("n int"),))
    )
    assert [name for name, _ in shape(catalog, "k")] == ["id", "v", "n", "d"]


def test_a_dropped_and_recreated_table_gets_a_new_id(manager: CatalogManager) -> None:
    first = after(manager, SCHEMA, TABLE).table("s", "t")
    second = after(manager, DropTable(schema="s", table="T"), TABLE).table("s", "t")
    assert first is not None
    assert second is not None
    assert second.id > first.id
    assert manager.catalog(4).table("s", "t") == first
    assert manager.catalog(5).table("s", "t") is None


def test_a_rename_into_another_schema_keeps_the_id_and_the_columns(
    manager: CatalogManager,
) -> None:
    before = after(manager, SCHEMA, CreateSchema(name="u"), TABLE).table("s", "t")
    rename = RenameTable(schema="s", table="t", new_name="n", new_schema="u")
    catalog = after(manager, rename)
    moved = catalog.table("u", "n")
    assert moved is not None
    assert before is not None
    assert (moved.id, moved.columns) == (before.id, before.columns)
    assert catalog.table("s", "t") is None


def test_a_table_may_be_renamed_to_its_own_name_in_another_case(manager: CatalogManager) -> None:
    catalog = after(manager, SCHEMA, TABLE, RenameTable(schema="s", table="t", new_name="T"))
    assert catalog.relation_names("s") == ["T"]


def test_drop_schema_cascade_drops_tables_and_views_in_one_version(manager: CatalogManager) -> None:
    after(manager, SCHEMA, TABLE, VIEW)
    executed = manager.execute(DropSchema(name="s", cascade=True), author="ann")
    verbs = [verb for verb, _ in manager.history(executed.version)[0].actions]
    assert verbs == ["drop_table", "drop_view", "drop_schema"]
    assert executed.catalog.schema("s") is None
    assert manager.catalog(executed.version - 1).table("s", "t") is not None


@pytest.mark.parametrize(
    "command",
    [
        CreateSchema(name="s", if_not_exists=True),
        CreateTable(schema="s", definition=table(), if_not_exists=True),
        replace(VIEW, if_not_exists=True),
        DropSchema(name="none", if_exists=True),
        DropTable(schema="s", table="none", if_exists=True),
        DropTable(schema="none", table="none", if_exists=True),
        AddColumns(schema="s", table="t", columns=(column("A int"),), if_not_exists=True),
        DropColumns(schema="s", table="t", names=("none",), if_exists=True),
        AlterColumn(schema="s", table="t", column="a", type=t.INT),
        AlterSchema(name="s"),
        SetTableProperties(schema="s", table="t", unset=("none",)),
        AlterTable(schema="s", table="t", definition=table()),
    ],
    ids=lambda command: type(command).__name__,
)
def test_a_command_without_effect_makes_no_version(
    manager: CatalogManager, command: Command
) -> None:
    before = after(manager, SCHEMA, TABLE, VIEW)
    executed = manager.execute(command, author="ann")
    assert executed.applied == (False,)
    assert manager.present() is before


def test_redefining_a_table_records_column_changes_and_other_changes_as_separate_actions(
    manager: CatalogManager,
) -> None:
    after(manager, SCHEMA, PLAIN)
    wider = table("p", "a bigint", "b string", "c int", transactional=False)
    wider = replace(wider, properties=(("k", "v"),), storage=StorageFormat(serde="x"))
    executed = manager.execute(AlterTable(schema="s", table="p", definition=wider), author="ann")
    assert manager.history(executed.version)[0].actions == (
        ("alter_column", {"table": "s.p", "added": ["c int"], "altered": ["a"]}),
        ("alter_table", {"table": "s.p", "changed": ["storage", "property k"]}),
    )
    assert shape(executed.catalog, "p") == [("a", 1), ("b", 2), ("c", 3)]


def test_properties_are_set_and_unset(manager: CatalogManager) -> None:
    catalog = after(
        manager,
        SCHEMA,
        TABLE,
        SetTableProperties(schema="s", table="t", set=(("b", "2"), ("a", "1"))),
        SetTableProperties(schema="s", table="t", unset=("b",), comment="c"),
    )
    altered = catalog.table("s", "t")
    assert altered is not None
    assert (altered.properties, altered.comment) == ((("a", "1"),), "c")


def test_replacing_a_view_keeps_its_id(manager: CatalogManager) -> None:
    first = after(manager, SCHEMA, VIEW).view("s", "v")
    other = replace(VIEW.definition, original_text="SELECT 2")
    second = after(manager, replace(VIEW, definition=other, or_replace=True)).view("s", "v")
    assert first is not None
    assert second is not None
    assert (second.id, second.original_text) == (first.id, "SELECT 2")


def test_a_view_that_an_older_release_named_like_a_version_can_be_altered_and_replaced(
    manager: CatalogManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    definition = replace(VIEW.definition, name="v@1")
    with monkeypatch.context() as older:
        older.setattr(views, "check_versioned_name", check_name)
        manager.execute([SCHEMA, replace(VIEW, definition=definition)], author="ann")
    alter = AlterView(schema="s", view="v@1", definition=replace(definition, comment="c"))
    manager.execute(alter, author="ann")
    view = manager.latest_catalog().view("s", "v@1")
    assert view is not None
    assert view.comment == "c"
    text = replace(definition, original_text="SELECT 2")
    replaced = after(manager, replace(VIEW, definition=text, or_replace=True)).view("s", "v@1")
    assert replaced is not None
    assert (replaced.id, replaced.original_text) == (view.id, "SELECT 2")


def test_a_table_may_have_ten_thousand_columns_but_not_one_more(manager: CatalogManager) -> None:
    after(manager, SCHEMA)
    wide = tuple(ColumnDefinition(f"c{n}", t.INT) for n in range(10_000))
    definition = TableDefinition(name="t", columns=wide)
    catalog = after(manager, CreateTable(schema="s", definition=definition))
    assert len(shape(catalog)) == 10_000
    wider = replace(definition, name="u", columns=(*wide, ColumnDefinition("one_more", t.INT)))
    with pytest.raises(InvalidInput, match="10001"):
        manager.execute(CreateTable(schema="s", definition=wider), author="ann")


# -- tables with equal columns


def test_tables_with_equal_columns_share_their_column_descriptors(manager: CatalogManager) -> None:
    manager.execute([SCHEMA, TABLE, replace(TABLE, definition=table("u"))], author="ann")
    catalog = manager.latest_catalog()
    first, second = catalog.table("s", "t"), catalog.table("s", "u")
    assert first is not None
    assert second is not None
    assert first.columns == second.columns
    assert all(a is b for a, b in zip(first.columns, second.columns, strict=True))


@pytest.mark.parametrize(
    "name", ["time(6)", "interval", "void", "geometry(4326)", "geography(4326)"]
)
def test_a_column_type_allowed_in_a_plain_table_is_refused_in_a_transactional_table(
    manager: CatalogManager, name: str
) -> None:
    plain = table("p", f"a {name}", transactional=False)
    manager.execute([SCHEMA, CreateTable(schema="s", definition=plain)], author="ann")
    refusal = f"column 'a' has the type {re.escape(name)}, which a transactional table cannot have"
    for _ in range(2):
        transactional = replace(plain, name="t", transactional=True)
        with pytest.raises(UnsupportedOperation, match=refusal):
            manager.execute(CreateTable(schema="s", definition=transactional), author="ann")
