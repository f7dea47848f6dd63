"""ALTER COLUMN: types, nullability and defaults.

``docs/reference/type-changes.md`` says which type may become which; these scenarios show how the
command applies that.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from strandline.catalog.commands import AlterColumn, AlterTable, ColumnDefinition, TableDefinition
from strandline.errors import (
    IllegalChange,
    InvalidInput,
    InvalidType,
    ObjectNotFound,
    UnsupportedOperation,
)
from strandline.model.descriptors import StorageFormat
from strandline.model.type_parser import parse_type
from strandline.model.types import INT, StructField, StructType
from tests.catalog.scenario import (
    SCHEMA,
    Made,
    Nothing,
    Refused,
    Scenario,
    column,
    columns,
    create_table,
    field,
)

CSV_SERDE = "org.apache.hadoop.hive.serde2.OpenCSVSerde"
TEXT_SERDE = "org.apache.hadoop.hive.serde2.lazy.LazySimpleSerDe"
TEXT: dict[str, Any] = {"provider": "hive", "storage": StorageFormat(serde=TEXT_SERDE)}
KEYED = create_table("s.t", "id varchar(5) not null", "v int", primary_key=("id",))

WITH_EXPRESSION = AlterTable(
    schema="s",
    table="t",
    definition=TableDefinition(name="t", columns=(column("c int default 1 + 1"),)),
)


def alter(name: str = "c", *, to: str | None = None, **more: object) -> AlterColumn:
    command = AlterColumn(
        schema="s", table="t", column=name, type=None if to is None else parse_type(to)
    )
    return replace(command, **more)  # type: ignore[arg-type]  # fields of the command


def typed(
    name: str,
    before: str,
    command: AlterColumn | list[AlterColumn],
    after: str | None,
    *,
    cases: list[int],
    note: str = "",
) -> Scenario:
    """Alter a table with one column ``before``; ``after`` None means that nothing changes."""
    return Scenario(
        name,
        cases=cases,
        setup=[SCHEMA, create_table("s.t", before)],
        run=command,
        expect=Nothing() if after is None else Made(["alter_column"]),
        checks=[
            (columns("s.t"), [f"1 {after or before}"]),
            (field("s.t", "schema_version"), 1 if after is None else 2),
        ],
        note=note,
    )


def refused(
    name: str,
    before: str,
    command: AlterColumn,
    error: type[InvalidInput],
    says: str,
    *,
    cases: list[int],
    note: str = "",
) -> Scenario:
    return Scenario(
        name,
        cases=cases,
        setup=[SCHEMA, create_table("s.t", before)],
        run=command,
        expect=Refused(error, says),
        note=note,
    )


WIDENINGS = [
    ("tinyint", "smallint"),
    ("smallint", "int"),
    ("int", "bigint"),
    ("int", "double"),
    ("int", "decimal(12,2)"),
    ("bigint", "decimal(20,0)"),
    ("float", "double"),
    ("date", "timestamp_ntz"),
    ("array<int>", "array<bigint>"),
    ("map<string,float>", "map<string,double>"),
    ("struct<a:int>", "struct<a:bigint,b:string>"),
]


SCENARIOS = [
    # -- defaults ----------------------------------------------------------------------------
    typed("NULL to NULL", "c int", alter(default="NULL"), None, cases=[42]),
    typed("no default dropped", "c int", alter(drop_default=True), None, cases=[42]),
    typed("NULL to 1", "c int", alter(default="1"), "c int default 1", cases=[42]),
    typed("1 to 2", "c int default 1", alter(default="2"), "c int default 2", cases=[42]),
    typed("2 to NULL", "c int default 2", alter(default="null"), "c int default NULL", cases=[42]),
    typed("2 dropped", "c int default 2", alter(drop_default=True), "c int", cases=[42]),
    typed("1 to 1", "c int default 1", alter(default=" 1 "), None, cases=[42]),
    refused(
        "a default set and dropped",
        "c int",
        alter(default="1", drop_default=True),
        InvalidInput,
        "both set and dropped",
        cases=[42],
    ),
    refused(
        "a type that is still a text",
        "c int",
        alter(type="bigint"),
        InvalidType,
        "'bigint' is not a data type; make one from a text with parse_type",
        cases=[],
    ),
    refused(
        "a NOT NULL column with the default NULL",
        "c int not null",
        alter(default="NULL"),
        InvalidInput,
        "its default cannot be NULL",
        cases=[42],
        note="what such a default would put into a row, the column refuses",
    ),
    Scenario(
        "a new table with a NOT NULL column with the default NULL",
        cases=[42],
        setup=[SCHEMA],
        run=create_table("s.t", "c int not null default NULL"),
        expect=Refused(InvalidInput, "its default cannot be NULL"),
    ),
    Scenario(
        "a function, in a new table and in one that is there",
        cases=[52],
        setup=[SCHEMA, create_table("s.t", "c date")],
        run=[create_table("s.u", "c date default CURRENT_DATE"), alter(default="Current_Date( )")],
        expect=Made(),
        checks=[
            (columns("s.t"), ["1 c date default current_date()"]),
            (columns("s.u"), ["1 c date default current_date()"]),
        ],
        note="any column may have a function, and later too: it is evaluated at each insert",
    ),
    Scenario(
        "a function of another type",
        cases=[52],
        setup=[SCHEMA],
        run=create_table("s.t", "id int not null default uuid()", primary_key=("id",)),
        expect=Refused(InvalidInput, "uuid() of column 'id' does not match its type int"),
    ),
    Scenario(
        "a literal of another type",
        cases=[52],
        setup=[SCHEMA],
        run=create_table("s.t", "c tinyint default 128"),
        expect=Refused(InvalidInput, "128 of column 'c' does not match its type tinyint"),
    ),
    refused(
        "an unknown function",
        "c double",
        alter(default="rand()"),
        UnsupportedOperation,
        "cannot have the default rand(): a default must be a literal or one of current_date()",
        cases=[52],
    ),
    Scenario(
        "a key with a function as default, in any case",
        cases=[52],
        setup=[SCHEMA],
        run=create_table("s.t", "id string not null default Uuid()", primary_key=("id",)),
        expect=Made(),
        checks=[(columns("s.t"), ["1 id string not null default uuid()"])],
    ),
    Scenario(
        "a default that Spark has validated is left to Spark",
        cases=[52],
        setup=[SCHEMA],
        run=create_table(
            "s.t",
            transactional=False,
            columns=(
                ColumnDefinition(
                    "c",
                    parse_type("int"),
                    default="1 + 1",
                    metadata='{"EXISTS_DEFAULT":"2"}',
                ),
            ),
        ),
        expect=Made(),
        checks=[(columns("s.t"), ["1 c int default 1 + 1"])],
    ),
    Scenario(
        "so is one that Spark has validated without a folded value, as in CREATE TABLE LIKE",
        cases=[52],
        setup=[SCHEMA],
        run=create_table(
            "s.t",
            "c int default 1 + 1",
            "d int default '7'",
            transactional=False,
            any_default=True,
        ),
        expect=Made(),
        checks=[(columns("s.t"), ["1 c int default 1 + 1", "2 d int default '7'"])],
    ),
    Scenario(
        "the same default is refused if nobody has checked it",
        cases=[52],
        setup=[
            SCHEMA,
            create_table("s.t", "c int default 1 + 1", transactional=False, any_default=True),
        ],
        run=create_table("s.u", "c int default 1 + 1", transactional=False),
        expect=Refused(UnsupportedOperation, "cannot have the default 1 + 1"),
    ),
    Scenario(
        "a transactional table has no default that only Spark can check",
        cases=[52],
        setup=[SCHEMA],
        run=create_table("s.t", "c int default 1 + 1", any_default=True),
        expect=Refused(UnsupportedOperation, "cannot have the default 1 + 1"),
    ),
    Scenario(
        "neither has it one with a value that Spark seems to have folded",
        cases=[52],
        setup=[SCHEMA],
        run=create_table(
            "s.t", columns=(column("c int default 1 + 1", metadata='{"EXISTS_DEFAULT":"2"}'),)
        ),
        expect=Refused(UnsupportedOperation, "cannot have the default 1 + 1"),
    ),
    Scenario(
        "such a default of a plain table stays when the type changes",
        cases=[52],
        setup=[
            SCHEMA,
            create_table(
                "s.t",
                transactional=False,
                columns=(column("c int default 1 + 1", metadata='{"EXISTS_DEFAULT":"2"}'),),
            ),
        ],
        run=alter(to="bigint"),
        expect=Made(["alter_column"]),
        checks=[(columns("s.t"), ["1 c bigint default 1 + 1"])],
    ),
    # -- nullability -------------------------------------------------------------------------
    typed("DROP NOT NULL", "c int not null", alter(nullable=True), "c int", cases=[43]),
    typed("DROP NOT NULL twice", "c int", alter(nullable=True), None, cases=[43]),
    typed("SET NOT NULL again", "c int not null", alter(nullable=False), None, cases=[43]),
    refused(
        "SET NOT NULL",
        "c int",
        alter(nullable=False),
        IllegalChange,
        "may hold NULLs; it cannot become NOT NULL",
        cases=[43],
    ),
    Scenario(
        "DROP NOT NULL of a key",
        cases=[43],
        setup=[SCHEMA, KEYED],
        run=alter("id", nullable=True),
        expect=Refused(IllegalChange, "primary key column of t and cannot become nullable"),
    ),
    # -- precision, scale, length ------------------------------------------------------------
    typed(
        "more precision",
        "c decimal(5,2)",
        alter(to="decimal(7,2)"),
        "c decimal(7,2)",
        cases=[44],
        note="a precision is part of a type, so it cannot be given without one",
    ),
    typed("the same precision", "c decimal(5,2)", alter(to="decimal(5,2)"), None, cases=[44]),
    refused(
        "less precision",
        "c decimal(5,2)",
        alter(to="decimal(4,2)"),
        IllegalChange,
        "may become fewer",
        cases=[44],
    ),
    typed(
        "more scale, with the digits before the point kept",
        "c decimal(5,2)",
        alter(to="decimal(6,3)"),
        "c decimal(6,3)",
        cases=[45],
        note="Spark reads old files so, without losing a digit; other systems refuse it",
    ),
    refused(
        "more scale at the cost of digits before the point",
        "c decimal(5,2)",
        alter(to="decimal(5,3)"),
        IllegalChange,
        "may become fewer",
        cases=[45],
    ),
    refused(
        "less scale",
        "c decimal(5,2)",
        alter(to="decimal(7,1)"),
        IllegalChange,
        "may become fewer",
        cases=[45],
    ),
    typed(
        "a longer varchar", "c varchar(10)", alter(to="varchar(11)"), "c varchar(11)", cases=[46]
    ),
    typed("a longer char", "c char(10)", alter(to="char(11)"), "c char(11)", cases=[46]),
    typed("char to varchar", "c char(10)", alter(to="varchar(10)"), "c varchar(10)", cases=[46]),
    typed("varchar to string", "c varchar(10)", alter(to="string"), "c string", cases=[46]),
    *(
        refused(
            f"{before} to {after}",
            f"c {before}",
            alter(to=after),
            IllegalChange,
            "the length may not become smaller",
            cases=[46],
        )
        for before, after in (
            ("varchar(11)", "varchar(10)"),
            ("char(11)", "char(10)"),
            ("varchar(10)", "char(10)"),
        )
    ),
    refused(
        "a string gets a length",
        "c string",
        alter(to="varchar(10)"),
        IllegalChange,
        "cannot be read as the new type",
        cases=[46],
    ),
    *(
        Scenario(
            f"{text} cannot even be said",
            cases=[47],
            setup=[SCHEMA],
            run=lambda _, text=text: alter(to=text),
            expect=Refused(InvalidType, ""),
            note="a type without parameters has no place to put them, so none can be stored",
        )
        for text in ("int(5)", "date(3)", "boolean(1)", "binary(10)", "timestamp(3)", "double(1,1)")
    ),
    # -- types -------------------------------------------------------------------------------
    Scenario(
        "every widening in one batch",
        cases=[48],
        setup=[
            SCHEMA,
            create_table(
                "s.t",
                *(f"c{n} {before}" for n, (before, _) in enumerate(WIDENINGS)),
            ),
        ],
        run=[alter(f"c{n}", to=after) for n, (_, after) in enumerate(WIDENINGS)],
        expect=Made(["alter_column"] * len(WIDENINGS)),
        checks=[
            (
                lambda r: [text.split(" ", 2)[2] for text in columns("s.t")(r)],
                [after for _, after in WIDENINGS],
            ),
            (field("s.t", "schema_version"), 1 + len(WIDENINGS)),
        ],
        note="more than other systems allow: what Spark's reader widens without losing a bit",
    ),
    *(
        refused(
            f"{before} to {after}",
            f"c {before}",
            alter(to=after),
            IllegalChange,
            "cannot change the type",
            cases=[48],
        )
        for before, after in (
            ("bigint", "int"),
            ("bigint", "double"),
            ("double", "float"),
            ("int", "string"),
            ("string", "int"),
            ("date", "timestamp"),
            ("timestamp", "timestamp_ntz"),
            ("timestamp_ntz", "date"),
            ("binary", "string"),
            ("boolean", "int"),
            ("int", "decimal(9,0)"),
            ("array<bigint>", "array<int>"),
            ("struct<a:int,b:int>", "struct<a:int>"),
            ("struct<a:int>", "struct<a:int,b:int not null>"),
            ("map<int,int>", "array<int>"),
            ("string", "string collate UNICODE"),
        )
    ),
    *(
        Scenario(
            f"{before} to {after} in a plain table",
            cases=[48],
            setup=[SCHEMA, create_table("s.t", f"c {before}", transactional=False)],
            run=alter(to=after),
            expect=Made(["alter_column"]),
            checks=[(columns("s.t"), [f"1 c {after}"])],
            note="a collation is not in the files, so Spark changes it",
        )
        for before, after in (
            ("string", "string collate UNICODE"),
            ("string collate UNICODE", "string collate UTF8_LCASE"),
            ("array<struct<a:string collate UNICODE>>", "array<struct<a:string,b:int>>"),
            ("map<int,string>", "map<bigint,string collate UNICODE>"),
        )
    ),
    *(
        Scenario(
            f"{before} to {after} in a plain table",
            cases=[48],
            setup=[SCHEMA, create_table("s.t", f"c {before}", transactional=False)],
            run=alter(to=after),
            expect=Refused(IllegalChange, "cannot change the type"),
        )
        for before, after in (
            ("string collate UNICODE", "int"),
            ("map<string,int>", "map<string collate UNICODE,int>"),
        )
    ),
    *(
        Scenario(
            f"{before} to {after} in a plain table of {what}",
            cases=[48],
            setup=[SCHEMA, create_table("s.t", f"c {before}", transactional=False, **of_table)],
            run=alter(to=after),
            expect=Made(["alter_column"])
            if is_readable
            else Refused(IllegalChange, "cannot change the type"),
        )
        for before, after, what, of_table, is_readable in (
            ("bigint", "int", "iceberg", {"provider": "ICEBERG"}, True),
            ("int", "string", "text", TEXT, True),
            ("binary", "string", "text", TEXT, False),
            ("array<int>", "string", "text", TEXT, False),
            (
                "int",
                "string",
                "Parquet that Hive cannot read",
                {**TEXT, "provider": "parquet"},
                False,
            ),
            ("date", "timestamp_ntz", "parquet", {"provider": "parquet"}, True),
            ("date", "timestamp_ntz", "orc", {"provider": "ORC"}, False),
            ("array<date>", "array<timestamp_ntz>", "orc", {"provider": "orc"}, False),
            ("struct<a:date>", "struct<a:date,b:timestamp_ntz>", "orc", {"provider": "orc"}, True),
            ("struct<a:date>", "struct<a:timestamp_ntz,b:date>", "orc", {"provider": "orc"}, False),
            ("array<int>", "string", "csv", {"storage": StorageFormat(serde=CSV_SERDE)}, True),
            ("bigint", "int", "csv", {"storage": StorageFormat(serde=CSV_SERDE)}, False),
        )
    ),
    *(
        Scenario(
            f"{before} to {after} in a plain table read by {what}",
            cases=[48],
            setup=[SCHEMA, create_table("s.t", f"c {before}", transactional=False, **of_table)],
            run=alter(to=after),
            expect=Refused(IllegalChange, refusal) if refusal else Made(["alter_column"]),
        )
        for before, after, what, of_table, refusal in (
            ("struct<a:int,b:int>", "struct<b:int,a:int>", "position", TEXT, "cannot be moved"),
            ("array<struct<a:int>>", "array<struct<b:int,a:int>>", "position", TEXT, "moved"),
            ("map<int,struct<a:int>>", "map<int,struct<a:bigint,b:int>>", "position", TEXT, ""),
            ("struct<A:int>", "struct<a:int,b:struct<c:int>>", "position", TEXT, ""),
            ("struct<a:int,b:int>", "struct<b:int,a:int>", "name", {}, ""),
            ("struct<A:int>", "struct<a:int>", "name", {}, ""),
            ("struct<A:int>", "struct<a:int>", "exact name", {"provider": "json"}, "renamed"),
        )
    ),
    *(
        Scenario(
            f"a renamed field of a {'transactional' if transactional else 'plain'} table",
            cases=[48],
            setup=[SCHEMA, create_table("s.t", "c struct<a:int>", transactional=transactional)],
            run=alter(type=StructType((StructField("b", INT, field_id=2),))),
            expect=Made(["alter_column"])
            if transactional
            else Refused(IllegalChange, "field 'a' of column 'c' of t cannot be renamed"),
            note="readers of plain files find a field by its name",
        )
        for transactional in (True, False)
    ),
    Scenario(
        "the collation of a key of a plain table",
        cases=[49],
        setup=[
            SCHEMA,
            create_table("s.t", "c string not null", primary_key=("c",), transactional=False),
        ],
        run=alter(to="string collate UNICODE"),
        expect=Refused(IllegalChange, "primary key column of t and cannot change its type"),
    ),
    typed("the type that it has", "c boolean", alter(to="boolean"), None, cases=[48]),
    Scenario(
        "the type of a key",
        cases=[49],
        setup=[SCHEMA, create_table("s.t", "c int not null", primary_key=("c",))],
        run=alter(to="bigint"),
        expect=Refused(IllegalChange, "primary key column of t and cannot change its type"),
    ),
    Scenario(
        "the type of a column that partitions a plain table",
        cases=[49],
        setup=[
            SCHEMA,
            create_table("s.t", "a int", "c date", partition_columns=("c",), transactional=False),
        ],
        run=alter(to="string"),
        expect=Made(["alter_column"]),
        checks=[(columns("s.t"), ["1 a int", "2 c string"])],
        note="its values are texts in the names of folders, which any type reads",
    ),
    Scenario(
        "the type of a column of the key that partitions a plain table",
        cases=[49],
        setup=[
            SCHEMA,
            create_table(
                "s.t",
                "a int",
                "c date not null",
                partition_columns=("c",),
                primary_key=("c",),
                transactional=False,
            ),
        ],
        run=alter(to="string"),
        expect=Refused(IllegalChange, "column of t and cannot change its type"),
    ),
    Scenario(
        "a column that colocates the table may become nullable",
        cases=[43],
        setup=[SCHEMA, create_table("s.t", "c int not null", colocation=("c",))],
        run=alter(nullable=True),
        expect=Made(["alter_column"]),
        checks=[(columns("s.t"), ["1 c int"])],
    ),
    Scenario(
        "the length of a key",
        cases=[49],
        setup=[SCHEMA, KEYED],
        run=alter("id", to="varchar(6)"),
        expect=Refused(IllegalChange, "primary key column of t and cannot change its type"),
        note="a key's type does not change at all, its length neither",
    ),
    Scenario(
        "the default of a key",
        cases=[49],
        setup=[SCHEMA, KEYED],
        run=alter("id", default="'x'"),
        expect=Made(),
        checks=[(lambda r: columns("s.t")(r)[0], "1 id varchar(5) not null default 'x'")],
    ),
    # -- together ----------------------------------------------------------------------------
    typed(
        "type, nullability and default at once",
        "c int not null",
        alter(to="bigint", nullable=True, default="3000000000"),
        "c bigint default 3000000000",
        cases=[50],
        note="the default is validated once, against the type that the column will have",
    ),
    typed(
        "only the default differs",
        "c bigint default 1",
        alter(to="bigint", nullable=True, default="2"),
        "c bigint default 2",
        cases=[50],
    ),
    typed(
        "nothing differs",
        "c bigint default 1",
        alter(to="bigint", nullable=True, default="1"),
        None,
        cases=[50],
    ),
    refused(
        "a default that fits the old type alone",
        "c date",
        alter(to="timestamp_ntz", default="DATE '2024-01-01'"),
        InvalidInput,
        "does not match its type timestamp_ntz",
        cases=[50],
    ),
    refused(
        "the old default does not fit the new type",
        "c date default DATE '2024-01-01'",
        alter(to="timestamp_ntz"),
        InvalidInput,
        "does not match its type timestamp_ntz",
        cases=[50],
        note="give a new default, or drop it, in the same command",
    ),
    typed(
        "the old default goes as the new type comes",
        "c date default DATE '2024-01-01'",
        alter(to="timestamp_ntz", drop_default=True),
        "c timestamp_ntz",
        cases=[50],
    ),
    Scenario(
        "a missing table",
        cases=[51],
        setup=[SCHEMA],
        run=alter(nullable=True),
        expect=Refused(ObjectNotFound, "s.t"),
    ),
    Scenario(
        "a missing table, if it exists",
        cases=[51],
        setup=[SCHEMA],
        run=alter(nullable=True, if_table_exists=True),
        expect=Nothing(),
    ),
    Scenario(
        "a missing column, even if the table exists",
        cases=[51],
        setup=[SCHEMA, create_table("s.t")],
        run=alter(nullable=True, if_table_exists=True),
        expect=Refused(ObjectNotFound, "'c' does not exist in t; it has a, b"),
    ),
    Scenario(
        "a type that cannot be stored",
        cases=[54],
        setup=[SCHEMA, create_table("s.t", "c struct<a:int>")],
        run=alter(to="struct<a:int,b:void>"),
        expect=Refused(UnsupportedOperation, "has the type void"),
    ),
    Scenario(
        "a type that cannot be stored, in a plain table",
        cases=[54],
        setup=[SCHEMA, create_table("s.t", "c struct<a:int>", transactional=False)],
        run=alter(to="struct<a:int,b:void>"),
        expect=Made(["alter_column"]),
        checks=[(columns("s.t"), ["1 c struct<a:int,b:void>"])],
    ),
    Scenario(
        "a default that only Spark can check survives a change of the comment",
        cases=[50],
        setup=[SCHEMA, create_table("s.t", "c int", transactional=False), WITH_EXPRESSION],
        run=alter(comment="x"),
        expect=Made(["alter_column"]),
        checks=[(columns("s.t"), ["1 c int default 1 + 1"])],
    ),
    Scenario(
        "a default survives a redefinition that says the same",
        cases=[50],
        setup=[SCHEMA, create_table("s.t", "c int default 1", transactional=False)],
        run=AlterTable(
            schema="s",
            table="t",
            definition=TableDefinition(name="t", columns=(column("c int default 1"),)),
        ),
        expect=Nothing(),
    ),
]
