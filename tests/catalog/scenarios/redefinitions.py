"""ALTER TABLE by clients that send the whole new definition: what it adds, drops and alters."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from strandline.catalog.commands import (
    AlterTable,
    ColumnDefinition,
    CreateIndex,
    CreateTable,
    CreateZone,
    TableDefinition,
)
from strandline.errors import IllegalChange, InvalidInput, ObjectNotFound, UnsupportedOperation
from strandline.model.descriptors import Properties, StorageFormat, TableKind
from strandline.model.types import INT
from tests.catalog.scenario import (
    SCHEMA,
    Made,
    Nothing,
    Refused,
    Scenario,
    arguments,
    column,
    columns,
    create_table,
    create_view,
    field,
    same,
)

C = TypeVar("C", CreateTable, AlterTable)

PLAIN = create_table("s.t", "a int", "b string", transactional=False, owner="eve", comment="c")
TABLE = create_table("s.t", "a int", "b string", "d int not null")
PARTITIONED = create_table("s.t", "a int", "p date", partition_columns=("p",), transactional=False)
BY_DAY = create_table("s.t", "a int", "p date", partitioned_by=("day(p)",))
KEYED = create_table("s.t", "id int not null", "v int", primary_key=("id",))
COMPLETE = create_table(
    "s.t",
    "id int not null",
    "p date",
    partitioned_by=("day(p)",),
    primary_key=("id",),
    colocation=("id",),
    zone="default",
    storage_profile="default",
)
ZONE = CreateZone(name="z", storage_profiles=("default", "fast"))
INDEX = CreateIndex(schema="s", index="i", table="t", columns=("a",))
COMPLETED = column("c int not null default 7", metadata='{"EXISTS_DEFAULT":"7"}')
NESTED = create_table(
    "s.t",
    "c struct<a:int,b:int>",
    transactional=False,
    provider="hive",
    storage=StorageFormat(serde="org.apache.hadoop.hive.serde2.lazy.LazySimpleSerDe"),
)
MOVED = AlterTable(
    schema="s",
    table="t",
    definition=replace(NESTED.definition, columns=(column("c struct<b:int,a:int>"),)),
)
OF_ICEBERG = (("table_type", "ICEBERG"),)
AS_IT_IS = replace(PLAIN.definition, owner="")


def redefine(*texts: str, **more: object) -> AlterTable:
    """Redefine the table with these columns, everything else as in `PLAIN`."""
    definition = replace(AS_IT_IS, columns=tuple(column(text) for text in texts))
    return AlterTable(schema="s", table="t", definition=replace(definition, **more))  # type: ignore[arg-type]  # fields of the definition


def with_properties(command: C, properties: Properties) -> C:
    definition = replace(command.definition, properties=properties)
    return replace(command, definition=definition)


SCENARIOS = [
    Scenario(
        "a table redefined as it is",
        setup=[SCHEMA, PLAIN],
        run=redefine("a int", "b string"),
        expect=Nothing(),
        checks=[(field("s.t", "owner"), "eve")],
    ),
    Scenario(
        "a redefinition that moves fields in text files",
        setup=[SCHEMA, NESTED],
        run=MOVED,
        expect=Refused(IllegalChange, "fields of column 'c' of t cannot be moved"),
    ),
    Scenario(
        "a redefinition that moves fields of an Iceberg table",
        setup=[SCHEMA, with_properties(NESTED, OF_ICEBERG)],
        run=with_properties(MOVED, OF_ICEBERG),
        expect=Made(["alter_column"]),
        note="Iceberg names a serde for text, but its files are read with its own metadata",
    ),
    *(
        Scenario(
            f"a redefinition with {what}",
            setup=[SCHEMA, PLAIN],
            run=redefine(*texts),
            expect=Made([verb]),
            checks=[(columns("s.t"), expected), (arguments(verb), [{"table": "s.t"} | said])],
        )
        for what, texts, verb, expected, said in (
            (
                "one more column",
                ("a int", "c int", "b string"),
                "add_columns",
                ["1 a int", "3 c int", "2 b string"],
                {"added": ["c int"]},
            ),
            ("a column less", ("b string",), "drop_columns", ["2 b string"], {"dropped": ["a"]}),
            (
                "a column altered",
                ("a bigint", "B string"),
                "alter_column",
                ["1 a bigint", "2 B string"],
                {"altered": ["a", "B"]},
            ),
            (
                "one column for another",
                ("a int", "c int"),
                "alter_column",
                ["1 a int", "3 c int"],
                {"added": ["c int"], "dropped": ["b"]},
            ),
            (
                "a column more and one altered",
                ("a bigint", "b string", "c int"),
                "alter_column",
                ["1 a bigint", "2 b string", "3 c int"],
                {"added": ["c int"], "altered": ["a"]},
            ),
            (
                "a column less and one altered",
                ("a bigint",),
                "alter_column",
                ["1 a bigint"],
                {"dropped": ["b"], "altered": ["a"]},
            ),
        )
    ),
    *(
        Scenario(
            f"a redefinition with another {name}",
            setup=[SCHEMA, PLAIN],
            run=redefine("a int", "b string", **{name: value}),
            expect=Made(["alter_table"]),
            checks=[
                (field("s.t", name), value),
                (same("s.t", "schema_versions"), True),
                (arguments("alter_table"), [{"table": "s.t", "changed": changed}]),
            ],
        )
        for name, value, changed in (
            ("owner", "bob", ["owner"]),
            ("kind", TableKind.EXTERNAL, ["kind"]),
            ("provider", "orc", ["provider"]),
            ("storage", StorageFormat(serde="x"), ["storage"]),
            ("location", "file:/x", ["location"]),
            ("comment", "d", ["comment"]),
            ("properties", (("k", "v"),), ["property k"]),
        )
    ),
    *(
        Scenario(
            f"a redefinition with the columns in another order, {what}",
            setup=[SCHEMA, create_table("s.t", "a int", "b string", transactional=transactional)],
            run=redefine("b string", "a int", comment=None, transactional=transactional),
            expect=Made(["alter_column"]),
            checks=[
                (columns("s.t"), ["2 b string", "1 a int"]),
                (field("s.t", "schema_version"), 2),
            ],
        )
        for what, transactional in (("plain", False), ("transactional", True))
    ),
    Scenario(
        "a redefinition may repeat what no alter changes",
        setup=[SCHEMA, COMPLETE],
        run=AlterTable(schema="s", table="t", definition=COMPLETE.definition),
        expect=Nothing(),
    ),
    Scenario(
        "a redefinition without a property removes it, and says so",
        setup=[
            SCHEMA,
            replace(PLAIN, definition=replace(PLAIN.definition, properties=(("k", "v"),))),
        ],
        run=redefine("a int", "b string"),
        expect=Made(["alter_table"]),
        checks=[(arguments("alter_table"), [{"table": "s.t", "changed": ["property k"]}])],
    ),
    Scenario(
        "a redefinition with another owner gives it the indexes of the previous one",
        setup=[
            SCHEMA,
            PLAIN,
            replace(INDEX, owner="EVE"),
            replace(INDEX, index="j", owner="bob"),
        ],
        run=redefine("a int", "b string", owner="ann"),
        expect=Made(["alter_table", "alter_index"]),
        checks=[(lambda r: [r.after.alive_index("s", n).owner for n in "ij"], ["ann", "bob"])],
    ),
    Scenario(
        "columns and the rest are two entries of one version",
        setup=[SCHEMA, PLAIN],
        run=redefine("a int", comment="d"),
        expect=Made(["drop_columns", "alter_table"]),
    ),
    *(
        Scenario(
            f"a redefinition cannot {what}",
            setup=[SCHEMA, ZONE, table],
            run=run,
            expect=Refused(error, says),
        )
        for what, table, run, error, says in (
            (
                "leave out a column of a transactional table",
                TABLE,
                redefine("a int", "d int not null"),
                IllegalChange,
                "'b' of transactional table t would be lost",
            ),
            (
                "add a column that is NOT NULL",
                TABLE,
                redefine("a int", "b string", "d int not null", "e int not null"),
                IllegalChange,
                "new column 'e' of t is NOT NULL",
            ),
            (
                "add a column with a reserved name to a transactional table",
                TABLE,
                redefine("a int", "b string", "d int not null", "_file string"),
                UnsupportedOperation,
                "cannot be named '_file'",
            ),
            (
                "add a column of a type that cannot be stored to a transactional table",
                TABLE,
                redefine("a int", "b string", "d int not null", "e interval"),
                UnsupportedOperation,
                "has the type interval",
            ),
            (
                "narrow a column",
                PLAIN,
                redefine("a tinyint", "b string"),
                IllegalChange,
                "cannot change the type",
            ),
            (
                "make a column NOT NULL",
                PLAIN,
                redefine("a int not null", "b string"),
                IllegalChange,
                "cannot become NOT NULL",
            ),
            (
                "leave out a column of the key",
                KEYED,
                redefine("v int"),
                IllegalChange,
                "'id' is a primary key column",
            ),
            (
                "make a column of the key nullable",
                KEYED,
                redefine("id int", "v int"),
                IllegalChange,
                "cannot become nullable",
            ),
            (
                "partition a table in another way",
                PARTITIONED,
                redefine("a int", "p date"),
                IllegalChange,
                "partition keys can not be changed",
            ),
            (
                "put a column after the partition columns",
                PARTITIONED,
                redefine("p date", "a int", partition_columns=("p",)),
                InvalidInput,
                "partition columns ['p'] must be the last columns",
            ),
            (
                "partition files in another way",
                BY_DAY,
                redefine("a int", "p date", transactional=True, partitioned_by=("month(p)",)),
                IllegalChange,
                "the partitioning of t cannot be changed",
            ),
            (
                "change the primary key",
                KEYED,
                redefine("id int not null", "v int", primary_key=("v",)),
                IllegalChange,
                "the primary key of t cannot be changed",
            ),
            (
                "change the colocation columns",
                KEYED,
                redefine("id int not null", "v int", colocation=("v",)),
                IllegalChange,
                "the colocation columns of t cannot be changed",
            ),
            (
                "change the zone",
                KEYED,
                redefine("id int not null", "v int", zone="z"),
                IllegalChange,
                "the zone of t cannot be changed",
            ),
            (
                "change the storage profile",
                KEYED,
                redefine("id int not null", "v int", storage_profile="fast"),
                IllegalChange,
                "the storage profile of t cannot be changed",
            ),
            (
                "name a column twice",
                PLAIN,
                redefine("a int", "A int"),
                InvalidInput,
                "duplicate column 'A'",
            ),
            (
                "give a transactional table a type that cannot be stored",
                create_table("s.t", "a struct<x: int>"),
                redefine("a struct<x: int, y: void>"),
                UnsupportedOperation,
                "has the type void",
            ),
            (
                "give a column a default that does not fit",
                PLAIN,
                redefine("a int default 'x'", "b string"),
                InvalidInput,
                "does not match its type int",
            ),
            (
                "be one of a view",
                create_view("s.t"),
                redefine("a int"),
                UnsupportedOperation,
                "is a view",
            ),
        )
    ),
    Scenario(
        "a redefinition of a missing table",
        setup=[SCHEMA],
        run=redefine("a int"),
        expect=Refused(ObjectNotFound, "s.t"),
    ),
    Scenario(
        "a plain table redefined with a column more that is NOT NULL",
        setup=[SCHEMA, PLAIN],
        run=redefine(columns=(*PLAIN.definition.columns, COMPLETED)),
        expect=Made(["add_columns"]),
        checks=[(columns("s.t"), ["1 a int", "2 b string", "3 c int not null default 7"])],
        note="the client that sends it, Spark, completes the rows of its files",
    ),
    Scenario(
        "a plain table redefined with a default that its client has checked",
        setup=[SCHEMA, PLAIN],
        run=redefine("a int default '7'", "b string default true", any_default=True),
        expect=Made(["alter_column"]),
        checks=[(columns("s.t"), ["1 a int default '7'", "2 b string default true"])],
        note="Spark casts the default to the type of the column",
    ),
    Scenario(
        "a transactional table redefined with a default that its client has checked",
        setup=[SCHEMA, create_table("s.t", "a int")],
        run=redefine("a int default '7'", any_default=True),
        expect=Refused(InvalidInput, "does not match its type int"),
    ),
    Scenario(
        "a transactional table redefined with a nullable column more",
        setup=[SCHEMA, TABLE],
        run=AlterTable(
            schema="s",
            table="t",
            definition=replace(
                TABLE.definition, columns=(*TABLE.definition.columns, ColumnDefinition("e", INT))
            ),
        ),
        expect=Made(["add_columns"]),
        checks=[(columns("s.t"), ["1 a int", "2 b string", "3 d int not null", "4 e int"])],
    ),
    *(
        Scenario(
            f"a transactional table redefined {what}",
            setup=[SCHEMA, TABLE],
            run=AlterTable(schema="s", table="t", definition=replace(TABLE.definition, **more)),
            expect=Refused(IllegalChange, "its files stay where they are"),
        )
        for what, more in (
            ("at another location", {"kind": TableKind.EXTERNAL, "location": "file:/elsewhere"}),
            ("as an external table", {"kind": TableKind.EXTERNAL}),
        )
    ),
    Scenario(
        "an external table redefined as a managed one",
        setup=[SCHEMA, PLAIN, redefine("a int", "b string", kind=TableKind.EXTERNAL)],
        run=redefine("a int", "b string"),
        expect=Refused(IllegalChange, "cannot become a managed table"),
    ),
    Scenario(
        "a plain table redefined as a transactional one",
        setup=[SCHEMA, PLAIN],
        run=redefine("a int", "b string", transactional=True),
        expect=Refused(IllegalChange, "cannot become transactional"),
    ),
    Scenario(
        "a key whose table is redefined may have another default",
        setup=[SCHEMA, KEYED],
        run=redefine("id int not null default 7", "v int", owner="", comment=None),
        expect=Made(),
        checks=[(columns("s.t"), ["1 id int not null default 7", "2 v int"])],
    ),
    Scenario(
        "the new owner of a redefined table gets the indexes of the old one",
        setup=[
            SCHEMA,
            PLAIN,
            INDEX,
            replace(INDEX, index="j", owner="Eve"),
            replace(INDEX, index="other", owner="cleo"),
        ],
        run=redefine("a int", "b string", owner="bob"),
        expect=Made(["alter_table", "alter_index", "alter_index"]),
        checks=[
            (
                lambda r: [r.after.alive_index("s", name).owner for name in ("i", "j", "other")],
                ["bob", "bob", "cleo"],
            ),
        ],
        note="no command changes the owner of an index alone",
    ),
    Scenario(
        "a redefined table that keeps its owner leaves the owners of its indexes alone",
        setup=[SCHEMA, PLAIN, replace(INDEX, owner="Eve")],
        run=redefine("a int", "b string", owner="eve", comment="d"),
        expect=Made(["alter_table"]),
    ),
    Scenario(
        "an index is in the way of its column",
        cases=[38],
        setup=[SCHEMA, PLAIN, INDEX],
        run=redefine("b string"),
        expect=Refused(IllegalChange, "these indexes use it: i;"),
    ),
    Scenario(
        "an index is in the way of its column alone",
        setup=[SCHEMA, PLAIN, INDEX],
        run=redefine("a int"),
        expect=Made(["drop_columns"]),
        checks=[(columns("s.t"), ["1 a int"])],
    ),
    Scenario(
        "a definition names its columns and not its table",
        setup=[SCHEMA, PLAIN],
        run=AlterTable(
            schema="s",
            table="T",
            definition=TableDefinition(name="other", columns=(column("a int"), column("b string"))),
        ),
        expect=Made(["alter_table"]),
        checks=[(field("s.t", "name"), "t"), (field("s.t", "owner"), "eve")],
    ),
]
