"""Properties, keys, names, times and owners of tables."""

from __future__ import annotations

import math
from typing import Any

from strandline.catalog.commands import (
    AddColumns,
    AlterColumn,
    ColumnDefinition,
    CreateIndex,
    CreateTable,
    DropColumns,
    RenameColumn,
    RenameTable,
    SetOwner,
    SetTableProperties,
    StartBuildingIndex,
    TableDefinition,
)
from strandline.errors import (
    AlreadyExists,
    IllegalChange,
    InvalidInput,
    InvalidName,
    ObjectNotFound,
    UnsupportedOperation,
)
from strandline.model.descriptors import Collation, PrincipalType
from strandline.model.privileges import ObjectKind
from strandline.model.types import INT
from tests.catalog.scenario import (
    SCHEMA,
    Made,
    Nothing,
    Refused,
    Result,
    Scenario,
    arguments,
    column,
    columns,
    create_table,
    create_view,
    field,
    index_id,
    names,
    same,
    table_of,
)

TABLE = create_table("s.t")
KEYED = create_table("s.k", "id int not null", "v string", "w int", primary_key=("id",))
VIEW = create_view("s.v")
INDEX = CreateIndex(schema="s", index="i", table="t", columns=("a",))


def at_version_before(result: Result) -> object:
    return table_of(result.manager.catalog(result.before.version), "s.t")


def moved(result: Result) -> set[str]:
    """The names of the objects whose time is the log's time of the last version."""
    catalog = result.after
    objects: list[Any] = [*catalog.schemas(), *catalog.zones(), *catalog.tables()]
    objects += [i for table in catalog.tables() for i in catalog.indexes(table.id)]
    return {part.name for part in objects if catalog.updated(part) == catalog.time}


def untouched(result: Result) -> bool:
    schema = result.after.schema("s")
    return bool(result.after.updated(schema) == result.before.updated(schema))


SCENARIOS = [
    # -- properties --------------------------------------------------------------------------
    *(
        Scenario(
            f"a fraction of stale rows of {fraction}",
            cases=[53],
            setup=[SCHEMA, TABLE],
            run=SetTableProperties(schema="s", table="t", stale_rows_fraction=fraction),
            expect=Refused(InvalidInput, "must be between 0 and 1"),
        )
        for fraction in (-0.1, 1.1, math.nan, math.inf, -math.inf)
    ),
    Scenario(
        "a table made with a fraction that is none",
        cases=[53],
        setup=[SCHEMA],
        run=create_table("s.t", stale_rows_fraction=math.nan),
        expect=Refused(InvalidInput, "must be between 0 and 1"),
    ),
    Scenario(
        "limits of staleness at their edges",
        cases=[53],
        setup=[SCHEMA, TABLE],
        run=SetTableProperties(
            schema="s", table="t", stale_rows_fraction=1.0, min_stale_rows=(1 << 63) - 1
        ),
        expect=Made(),
        checks=[
            (field("s.t", "stale_rows_fraction"), 1.0),
            (field("s.t", "min_stale_rows"), (1 << 63) - 1),
        ],
    ),
    Scenario(
        "fewer stale rows than none",
        cases=[53],
        setup=[SCHEMA, TABLE],
        run=SetTableProperties(schema="s", table="t", min_stale_rows=-1),
        expect=Refused(InvalidInput, "must be 0 or more, found -1"),
    ),
    Scenario(
        "a table made with fewer stale rows than none",
        cases=[53],
        setup=[SCHEMA],
        run=create_table("s.t", min_stale_rows=-1),
        expect=Refused(InvalidInput, "must be 0 or more, found -1"),
    ),
    Scenario(
        "no property given",
        cases=[53],
        setup=[SCHEMA, TABLE],
        run=SetTableProperties(schema="s", table="t"),
        expect=Nothing(),
    ),
    Scenario(
        "one of the two limits is set, the other stays, and so does the schema version",
        cases=[53],
        setup=[SCHEMA, TABLE],
        run=SetTableProperties(schema="s", table="t", stale_rows_fraction=0.5),
        expect=Made(["set_table_properties"]),
        checks=[
            (field("s.t", "stale_rows_fraction"), 0.5),
            (field("s.t", "min_stale_rows"), 500),
            (same("s.t", "schema_versions"), True),
        ],
    ),
    Scenario(
        "limits as they are already",
        cases=[53],
        setup=[SCHEMA, TABLE],
        run=SetTableProperties(schema="s", table="t", stale_rows_fraction=0.2, min_stale_rows=500),
        expect=Nothing(),
        note="a command that changes nothing makes no version, whatever it is",
    ),
    Scenario(
        "properties of a missing table, if it exists",
        setup=[SCHEMA],
        run=SetTableProperties(schema="s", table="t", set=(("k", "v"),), if_exists=True),
        expect=Nothing(),
    ),
    # -- keys and colocation -----------------------------------------------------------------
    *(
        Scenario(
            name,
            cases=[55],
            setup=[SCHEMA],
            run=create_table("s.t", "a int not null", "b int not null", "c int", **more),
            expect=Refused(error, says),
        )
        for name, more, error, says in (
            ("a nullable key", {"primary_key": ("c",)}, InvalidInput, "'c' must be NOT NULL"),
            ("an unknown key", {"primary_key": ("z",)}, ObjectNotFound, "'z' of the primary key"),
            ("a key twice", {"primary_key": ("a", "A")}, InvalidInput, "duplicate column 'A'"),
            (
                "too few collations",
                {
                    "primary_key": ("a", "b"),
                    "primary_key_collations": (Collation.ASC_NULLS_FIRST,),
                },
                InvalidInput,
                "2 columns and 1 collations",
            ),
            ("a named key of nothing", {"primary_key_name": "k"}, InvalidInput, "no columns"),
            (
                "an order of nothing",
                {"primary_key_collations": (Collation.ASC_NULLS_FIRST,)},
                InvalidInput,
                "no columns",
            ),
            (
                "a key without a name",
                {"primary_key": ("a",), "primary_key_name": " "},
                InvalidName,
                "primary key",
            ),
            (
                "colocation outside the key",
                {"primary_key": ("a",), "colocation": ("b",)},
                InvalidInput,
                "'b' must be a column of the primary key",
            ),
            (
                "a colocation column twice",
                {"primary_key": ("a",), "colocation": ("a", "a")},
                InvalidInput,
                "in the colocation columns",
            ),
            ("unknown colocation", {"colocation": ("z",)}, ObjectNotFound, "'z'"),
        )
    ),
    Scenario(
        "colocation by some columns of the key",
        cases=[55],
        setup=[SCHEMA],
        run=create_table(
            "s.t",
            "a int not null",
            "b int not null",
            primary_key=("a", "b"),
            colocation=("b",),
        ),
        expect=Made(),
        checks=[(field("s.t", "primary_key"), (1, 2)), (field("s.t", "colocation"), (2,))],
        note="no colocation given is none: rows then lie by the table's partitions",
    ),
    Scenario(
        "colocation of a table without a key",
        cases=[55],
        setup=[SCHEMA],
        run=create_table("s.t", colocation=("b",)),
        expect=Made(),
        checks=[(field("s.t", "colocation"), (2,))],
    ),
    *(
        Scenario(
            f"a table with {what}",
            setup=[SCHEMA],
            run=create_table("s.t", "a int", "b int", **more),
            expect=Refused(error, says),
        )
        for what, more, error, says in (
            ("no columns", {"columns": ()}, InvalidInput, "needs at least one column"),
            (
                "columns that partition it as they do plain ones",
                {"partition_columns": ("b",)},
                UnsupportedOperation,
                "give columns of the table, or transforms of them, in partitioned_by",
            ),
            (
                "transforms, and plain",
                {"partitioned_by": ("b",), "transactional": False},
                UnsupportedOperation,
                "can be partitioned only by its last columns",
            ),
            (
                "a transform that its column does not have",
                {"partitioned_by": ("day(b)",)},
                UnsupportedOperation,
                "day does not take values of the type int",
            ),
            ("an unknown column in it", {"partitioned_by": ("z",)}, ObjectNotFound, "'z'"),
        )
    ),
    *(
        Scenario(
            f"a plain table with {what}",
            setup=[SCHEMA],
            run=create_table("s.t", "a int", "b int", partition_columns=names, transactional=False),
            expect=Refused(error, says),
        )
        for what, names, error, says in (
            (
                "a first column that partitions it",
                ("a",),
                InvalidInput,
                "must be the last columns",
            ),
            ("a partition column twice", ("b", "B"), InvalidInput, "in the partition columns"),
            ("an unknown partition column", ("z",), ObjectNotFound, "'z'"),
        )
    ),
    Scenario(
        "a plain table without columns",
        setup=[SCHEMA],
        run=create_table("s.t", columns=(), transactional=False, provider="hive"),
        expect=Made(["create_table"]),
        checks=[(columns("s.t"), [])],
        note="a client of Hive leaves the columns to the reader of the files",
    ),
    Scenario(
        "a key of maps",
        cases=[55],
        setup=[SCHEMA],
        run=create_table("s.t", "a struct<m: map<int, int>> not null", primary_key=("a",)),
        expect=Refused(InvalidInput, "cannot be compared"),
    ),
    # -- names and sizes ---------------------------------------------------------------------
    *(
        Scenario(
            f"a table named {name[:5]!r}",
            setup=[SCHEMA],
            run=CreateTable(
                schema="s",
                definition=TableDefinition(name=name, columns=(ColumnDefinition("a", INT),)),
            ),
            expect=Refused(InvalidName, "name of a table"),
        )
        for name in ("", " ", "a\nb", "a\x00", " a", "x" * 256)
    ),
    Scenario(
        "names that differ by more than ASCII case are folded as well",
        setup=[SCHEMA, create_table("s.straße")],
        run=create_table("s.STRASSE"),
        expect=Refused(AlreadyExists, "s.straße"),
    ),
    Scenario(
        "a batch whose last command fails does nothing",
        setup=[SCHEMA],
        run=[*(create_table(f"s.t{n}") for n in range(50)), create_table("s.T0")],
        expect=Refused(AlreadyExists, "table s.t0 already exists"),
    ),
    Scenario(
        "commands of a batch see each other",
        run=[
            SCHEMA,
            TABLE,
            AddColumns(schema="s", table="t", columns=(column("c int"),)),
            RenameColumn(schema="s", table="t", column="c", new_name="d"),
            DropColumns(schema="s", table="t", names=("b",)),
            AlterColumn(schema="s", table="t", column="d", comment="text"),
            AlterColumn(schema="s", table="t", column="d", comment="text"),
            RenameTable(schema="s", table="t", new_name="u"),
        ],
        expect=Made(applied=[True] * 6 + [False, True]),
        checks=[(columns("s.u"), ["1 a int", "3 d int"]), (names("s"), ["u"])],
    ),
    # -- events and times --------------------------------------------------------------------
    Scenario(
        "each entry of a version tells what it is about",
        cases=[56],
        setup=[SCHEMA],
        run=TABLE,
        expect=Made(["create_table"]),
        checks=[
            (
                lambda r: [
                    (said["table"], said["columns"]) for said in arguments("create_table")(r)
                ],
                [("s.t", ["a int", "b string"])],
            ),
            (at_version_before, None),
        ],
        note="that a listener can read the catalog of its version is shown with the manager",
    ),
    *(
        Scenario(
            f"the entry of a new {what} table tells by what it is partitioned",
            setup=[SCHEMA],
            run=table,
            expect=Made(["create_table"]),
            checks=[
                (
                    lambda r: [said["partitioned_by"] for said in arguments("create_table")(r)],
                    [["p"]],
                )
            ],
        )
        for what, table in (
            ("plain", create_table("s.p", "p int", partition_columns=("p",), transactional=False)),
            ("transactional", create_table("s.p", "p int", partitioned_by=("p",))),
        )
    ),
    Scenario(
        "a changed object has the time of its version, all others keep theirs",
        cases=[57],
        setup=[SCHEMA, TABLE, KEYED],
        run=AlterColumn(schema="s", table="t", column="a", comment="c"),
        expect=Made(["alter_column"]),
        checks=[(moved, {"t"}), (untouched, True)],
        note="a schema keeps its time when a table in it changes: it does not hold the table",
    ),
    Scenario(
        "an index has the time of its version, its table keeps its own",
        cases=[57],
        setup=[SCHEMA, TABLE, INDEX],
        run=lambda catalog: StartBuildingIndex(index_id=index_id(catalog, "s.i")),
        expect=Made(["index_building"]),
        checks=[(moved, {"i"})],
    ),
    # -- owners ------------------------------------------------------------------------------
    Scenario(
        "the owner of a table whose name is written in another way",
        setup=[SCHEMA, create_table("s.straße")],
        run=SetOwner(kind=ObjectKind.TABLE, schema="S", name="STRASSE", owner="bob"),
        expect=Made(["alter_table"]),
        checks=[
            (arguments("alter_table"), [{"table": "s.straße", "changed": ["owner"]}]),
        ],
        note="the events of Hive's clients take the schema from the name in the entry",
    ),
    Scenario(
        "a table gets another owner",
        setup=[SCHEMA, TABLE],
        run=SetOwner(kind=ObjectKind.TABLE, schema="s", name="T", owner="bob"),
        expect=Made(["alter_table"]),
        checks=[(field("s.t", "owner"), "bob"), (same("s.t", "schema_versions"), True)],
    ),
    Scenario(
        "a view gets another owner",
        setup=[SCHEMA, VIEW],
        run=SetOwner(kind=ObjectKind.VIEW, schema="s", name="v", owner="bob"),
        expect=Made(["alter_view"]),
        checks=[(lambda r: r.after.view("s", "v").owner, "bob")],
    ),
    Scenario(
        "a schema gets another owner, and again the same",
        setup=[SCHEMA],
        run=[SetOwner(kind=ObjectKind.SCHEMA, name="s", owner="bob")] * 2,
        expect=Made(["alter_schema"], applied=[True, False]),
        checks=[(lambda r: r.after.schema("s").owner, "bob")],
    ),
    Scenario(
        "a schema gets an owner of another type",
        setup=[SCHEMA],
        run=SetOwner(kind=ObjectKind.SCHEMA, name="s", owner="bob", owner_type=PrincipalType.ROLE),
        expect=Made(["alter_schema"]),
        checks=[
            (lambda r: r.after.schema("s").owner_type, PrincipalType.ROLE),
            (arguments("alter_schema"), [{"schema": "s", "changed": ["owner"]}]),
        ],
    ),
    Scenario(
        "the owner of a table has no type",
        setup=[SCHEMA, TABLE],
        run=SetOwner(
            kind=ObjectKind.TABLE,
            schema="s",
            name="t",
            owner="bob",
            owner_type=PrincipalType.ROLE,
        ),
        expect=Refused(InvalidInput, "the owner of a table has no type"),
    ),
    Scenario(
        "the system schema keeps its owner",
        run=SetOwner(kind=ObjectKind.SCHEMA, name="system", owner="bob"),
        expect=Refused(IllegalChange, "system schema system cannot be altered"),
    ),
    Scenario(
        "a view is no table to own",
        setup=[SCHEMA, VIEW],
        run=SetOwner(kind=ObjectKind.TABLE, schema="s", name="v", owner="bob"),
        expect=Refused(ObjectNotFound, "table s.v does not exist"),
    ),
    Scenario(
        "a missing function gets no owner, if it exists",
        setup=[SCHEMA],
        run=SetOwner(kind=ObjectKind.FUNCTION, schema="s", name="f", owner="bob", if_exists=True),
        expect=Nothing(),
    ),
    Scenario(
        "an index's owner is its table's",
        setup=[SCHEMA, TABLE, INDEX],
        run=SetOwner(kind=ObjectKind.INDEX, schema="s", name="i", owner="bob"),
        expect=Refused(UnsupportedOperation, "kind index"),
    ),
    Scenario(
        "a table is owned in a schema",
        run=SetOwner(kind=ObjectKind.TABLE, name="t", owner="bob"),
        expect=Refused(InvalidInput, "a table belongs to a schema: give schema= apart from name="),
    ),
    Scenario(
        "more stale rows than can be counted",
        setup=[SCHEMA, TABLE],
        run=SetTableProperties(schema="s", table="t", min_stale_rows=1 << 63),
        expect=Refused(InvalidInput, "the minimum of stale rows may be"),
    ),
    Scenario(
        "a table made with more stale rows than can be counted",
        setup=[SCHEMA],
        run=create_table("s.t", min_stale_rows=1 << 70),
        expect=Refused(InvalidInput, "the minimum of stale rows may be"),
    ),
]
