"""Columns added, dropped and renamed."""

from __future__ import annotations

from dataclasses import replace

from strandline.catalog.commands import (
    AddColumns,
    AlterColumn,
    AlterTable,
    ColumnDefinition,
    CreateIndex,
    CreateTable,
    DropColumns,
    DropIndex,
    RenameColumn,
    RenameColumns,
    TableDefinition,
)
from strandline.errors import (
    AlreadyExists,
    IllegalChange,
    InvalidInput,
    InvalidName,
    InvalidType,
    ObjectNotFound,
    UnsupportedOperation,
)
from strandline.model.descriptors import StorageFormat
from strandline.model.types import BIGINT, INT
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
    names,
    table_of,
)

TABLE = create_table("s.t")
PLAIN = create_table("s.p", transactional=False)
KEYED = create_table(
    "s.k",
    "id int not null",
    "v string",
    "d date",
    primary_key=("id",),
    partition_columns=("d",),
    colocation=("id",),
    transactional=False,
)
PARTITIONED = create_table(
    "s.f", "id int not null", "ts timestamp", partitioned_by=("day(ts)", "bucket(4, ID)")
)
INDEX = CreateIndex(schema="s", index="i", table="t", columns=("a",))
TEXT_SERDE = "org.apache.hadoop.hive.serde2.lazy.LazySimpleSerDe"
BUCKETS, OF_SPARK = "buckets, sorts or clusters", "spark.sql.sources.schema"
MANY = tuple(ColumnDefinition(f"c{n}", INT) for n in range(9_998))


def add(*texts: str, table: str = "t", **more: bool) -> AddColumns:
    return AddColumns(schema="s", table=table, columns=tuple(map(column, texts)), **more)


def drop(*names: str, table: str = "t", **more: bool) -> DropColumns:
    return DropColumns(schema="s", table=table, names=names, **more)


def with_metadata(text: str) -> ColumnDefinition:
    return column("c int default 1", metadata=text)


def one_column(metadata: str) -> TableDefinition:
    return TableDefinition(name="n", columns=(with_metadata(metadata),))


def metadata(result: Result) -> list[str]:
    return [c.metadata for c in table_of(result.after, "s.p").columns]


def columns_before(result: Result) -> list[str]:
    return [c.name for c in table_of(result.before, "s.t").columns]


SCENARIOS = [
    # -- add ---------------------------------------------------------------------------------
    Scenario(
        "a type that is still a text is refused",
        setup=[SCHEMA, TABLE],
        run=AddColumns(
            schema="s",
            table="t",
            columns=(ColumnDefinition("c", "int"),),  # type: ignore[arg-type]  # the point of it
        ),
        expect=Refused(InvalidType, "'int' is not a data type"),
    ),
    Scenario(
        "a new column stands at the end, with a new id, in a new schema version",
        cases=[33],
        setup=[SCHEMA, TABLE],
        run=add("c int"),
        expect=Made(["add_columns"]),
        checks=[
            (columns("s.t"), ["1 a int", "2 b string", "3 c int"]),
            (field("s.t", "schema_version"), 2),
            (columns_before, ["a", "b"]),
        ],
    ),
    Scenario(
        "a new column stands before those that partition the table",
        cases=[33],
        setup=[SCHEMA, KEYED],
        run=add("n int", table="k"),
        expect=Made(),
        checks=[
            (columns("s.k"), ["1 id int not null", "2 v string", "4 n int", "3 d date"]),
        ],
        note="partition columns are always last, as in Spark and Hive",
    ),
    Scenario(
        "several columns are one schema version and one event",
        cases=[34],
        setup=[SCHEMA, TABLE],
        run=add("z int", "c struct<x: int, y: int>", "d date"),
        expect=Made(["add_columns"]),
        checks=[
            (
                columns("s.t"),
                ["1 a int", "2 b string", "3 z int", "4 c struct<x:int,y:int>", "7 d date"],
            ),
            (field("s.t", "schema_version"), 2),
            (
                arguments("add_columns"),
                [{"table": "s.t", "added": ["z int", "c struct<x:int,y:int>", "d date"]}],
            ),
        ],
        note="fields of structs take ids of the same counter",
    ),
    Scenario(
        "a column that is there, among others",
        cases=[35],
        setup=[SCHEMA, TABLE],
        run=add("c int", "B int"),
        expect=Refused(AlreadyExists, "'B' already exists in t"),
    ),
    Scenario(
        "of several columns those that are missing",
        cases=[35],
        setup=[SCHEMA, TABLE],
        run=add("B int", "c int", if_not_exists=True),
        expect=Made(),
        checks=[(columns("s.t"), ["1 a int", "2 b string", "3 c int"])],
    ),
    Scenario(
        "of several columns none is missing",
        cases=[35],
        setup=[SCHEMA, TABLE],
        run=add("B int", "a string", if_not_exists=True),
        expect=Nothing(),
    ),
    Scenario(
        "a column twice in one command",
        cases=[35],
        setup=[SCHEMA, TABLE],
        run=add("c int", "C int"),
        expect=Refused(InvalidInput, "duplicate column 'C'"),
    ),
    Scenario(
        "no columns",
        setup=[SCHEMA, TABLE],
        run=add(),
        expect=Refused(InvalidInput, "no columns to add"),
    ),
    Scenario(
        "NOT NULL without a default",
        cases=[36],
        setup=[SCHEMA, PLAIN],
        run=add("c int not null", table="p"),
        expect=Refused(IllegalChange, "give it a constant default"),
    ),
    Scenario(
        "NOT NULL with the default NULL",
        cases=[36],
        setup=[SCHEMA, PLAIN],
        run=add("c int not null default NULL", table="p"),
        expect=Refused(InvalidInput, "its default cannot be NULL"),
    ),
    Scenario(
        "NOT NULL with a function as default",
        cases=[36],
        setup=[SCHEMA, PLAIN],
        run=add("c date not null default current_date()", table="p"),
        expect=Refused(IllegalChange, "give it a constant default"),
        note="rows that are there would have a value that changes at each read",
    ),
    Scenario(
        "NOT NULL with a default, where Spark completes old rows",
        cases=[36],
        setup=[SCHEMA, PLAIN],
        run=add(
            "c int not null default 7", "e int default 8", "f int", "g int default NULL", table="p"
        ),
        expect=Made(),
        checks=[
            (
                columns("s.p"),
                [
                    "1 a int",
                    "2 b string",
                    "3 c int not null default 7",
                    "4 e int default 8",
                    "5 f int",
                    "6 g int default NULL",
                ],
            ),
            (metadata, ["", "", '{"EXISTS_DEFAULT":"7"}', '{"EXISTS_DEFAULT":"8"}', "", ""]),
        ],
        note="Spark reads that metadata and gives rows of older files the value",
    ),
    Scenario(
        "a default, where Spark completes old rows and its user wrote USING PARQUET",
        cases=[36],
        setup=[SCHEMA, create_table("s.p", "a int", transactional=False, provider="PARQUET")],
        run=add("c int default 7", table="p"),
        expect=Made(),
        checks=[(metadata, ["", '{"EXISTS_DEFAULT":"7"}'])],
        note="Spark ignores the case of a provider, and stores it as its user wrote it",
    ),
    *(
        Scenario(
            f"NOT NULL in {where}",
            cases=[36],
            setup=[SCHEMA, table],
            run=add("c int not null default 7", table="t"),
            expect=Refused(IllegalChange, "add it as nullable"),
            note="rows that are there stay NULL: nothing that reads these files completes them",
        )
        for where, table in (
            ("a transactional table", TABLE),
            (
                "a format that Spark does not complete",
                create_table("s.t", transactional=False, provider="hive"),
            ),
        )
    ),
    Scenario(
        "a nullable column with a function as default",
        cases=[36],
        setup=[SCHEMA, TABLE],
        run=add("c date default CURRENT_DATE", "u string default UUID( )"),
        expect=Made(),
        checks=[
            (
                lambda r: columns("s.t")(r)[2:],
                ["3 c date default current_date()", "4 u string default uuid()"],
            ),
        ],
        note="defaults are for rows to come; those that are there have NULL",
    ),
    Scenario(
        "to a missing table",
        cases=[51],
        setup=[SCHEMA],
        run=add("c int"),
        expect=Refused(ObjectNotFound, "s.t"),
    ),
    Scenario(
        "to a missing table, if it exists",
        setup=[SCHEMA],
        run=add("c int", if_table_exists=True),
        expect=Nothing(),
    ),
    Scenario(
        "to a view, even if a table exists",
        setup=[SCHEMA, create_view("s.t")],
        run=add("c int", if_table_exists=True),
        expect=Refused(UnsupportedOperation, "is a view"),
    ),
    *(
        Scenario(
            f"a column of a type that cannot be stored: {data_type}, {how}",
            cases=[54],
            setup=[SCHEMA, TABLE],
            run=run,
            expect=Refused(UnsupportedOperation, f"has the type {data_type}"),
            note="plain tables may have such a column: their files are none of ours",
        )
        for data_type in ("interval", "void", "time(6)")
        for how, run in (
            ("new table", create_table("s.u", "a int", f"c {data_type}")),
            ("nested", create_table("s.u", f"c array<struct<x: {data_type}>>")),
            ("new column", add(f"c {data_type}")),
        )
    ),
    *(
        Scenario(
            f"a column with a name that scans need: {name}, {how}",
            setup=[SCHEMA, TABLE],
            run=run,
            expect=Refused(UnsupportedOperation, f"cannot be named '{name}'"),
        )
        for name in ("_FILE", "_metadata", "_tmp_metadata_row_index", "_Strandline_9")
        for how, run in (
            ("new table", create_table("s.u", "a int", f"{name} int")),
            ("new column", add(f"{name} int")),
            ("renamed", RenameColumn(schema="s", table="t", column="a", new_name=name)),
        )
    ),
    Scenario(
        "a plain table has columns of any name",
        setup=[SCHEMA, PLAIN],
        run=[
            create_table("s.u", "_file int", transactional=False),
            add("_metadata int", table="p"),
        ],
        expect=Made(["create_table", "add_columns"]),
    ),
    Scenario(
        "a plain table has columns of any type",
        cases=[54],
        setup=[SCHEMA],
        run=[
            create_table("s.p", "a void", transactional=False),
            add("c interval", table="p"),
        ],
        expect=Made(),
        checks=[(columns("s.p"), ["1 a void", "2 c interval"])],
    ),
    Scenario(
        "metadata of a new column is kept, beside its default",
        setup=[SCHEMA, PLAIN],
        run=AddColumns(schema="s", table="p", columns=(with_metadata('{"k":1}'),)),
        expect=Made(),
        checks=[(metadata, ["", "", '{"k":1,"EXISTS_DEFAULT":"1"}'])],
    ),
    *(
        Scenario(
            f"the value that Spark gave for existing rows is {what}",
            setup=[SCHEMA, create_table("s.p", transactional=transactional)],
            run=AddColumns(
                schema="s", table="p", columns=(with_metadata('{"EXISTS_DEFAULT":"2"}'),)
            ),
            expect=Made(),
            checks=[(metadata, ["", "", in_table])],
        )
        for what, transactional, in_table in (
            ("kept in a plain table", False, '{"EXISTS_DEFAULT":"2"}'),
            ("left out in a transactional table, whose rows have NULL", True, ""),
        )
    ),
    Scenario(
        "a value for existing rows in the metadata of a new column of a transactional table",
        setup=[SCHEMA, create_table("s.p")],
        run=AddColumns(
            schema="s", table="p", columns=(with_metadata('{"k":1,"EXISTS_DEFAULT":"1"}'),)
        ),
        expect=Made(),
        checks=[(metadata, ["", "", '{"k":1}'])],
        note="rows that are there have NULL, so nothing may say that they have another value",
    ),
    Scenario(
        "a new table with one column more than there may be",
        setup=[SCHEMA],
        run=create_table("s.u", columns=(*MANY, *map(column, ("a int", "b int", "c int")))),
        expect=Refused(InvalidInput, "u has 10001 columns; at most 10000 are allowed"),
    ),
    Scenario(
        "one column more than there may be",
        setup=[SCHEMA, TABLE, AddColumns(schema="s", table="t", columns=MANY)],
        run=add("one_more int"),
        expect=Refused(InvalidInput, "t would have 10001 columns; at most 10000 are allowed"),
    ),
    *(
        Scenario(
            f"a column named {name[:5]!r}",
            setup=[SCHEMA, TABLE],
            run=AddColumns(schema="s", table="t", columns=(ColumnDefinition(name, INT),)),
            expect=Refused(InvalidName, "name of a column"),
        )
        for name in ("", " ", "a\tb", "x" * 768)
    ),
    # -- drop --------------------------------------------------------------------------------
    Scenario(
        "a dropped column that comes again is another one",
        cases=[37],
        setup=[SCHEMA, create_table("s.t", "a int", "b int", "c int")],
        run=[drop("B"), add("b int")],
        expect=Made(["drop_columns", "add_columns"]),
        checks=[
            (columns("s.t"), ["1 a int", "3 c int", "4 b int"]),
            (field("s.t", "schema_version"), 3),
        ],
    ),
    Scenario(
        "columns of several commands take their ids one after the other, and none comes back",
        cases=[33, 37],
        setup=[SCHEMA, TABLE],
        run=[add("c int"), add("d int"), drop("d"), add("d int")],
        expect=Made(["add_columns", "add_columns", "drop_columns", "add_columns"]),
        checks=[(columns("s.t"), ["1 a int", "2 b string", "3 c int", "5 d int"])],
    ),
    Scenario(
        "a column of the key",
        cases=[38],
        setup=[SCHEMA, KEYED],
        run=drop("ID", table="k"),
        expect=Refused(IllegalChange, "'id' is a primary key column of k and cannot be dropped"),
    ),
    Scenario(
        "a column that partitions the table",
        cases=[38],
        setup=[SCHEMA, KEYED],
        run=drop("d", table="k"),
        expect=Refused(IllegalChange, "partition column"),
    ),
    Scenario(
        "a column that files are partitioned by",
        setup=[SCHEMA, PARTITIONED],
        run=drop("ts", table="f"),
        expect=Refused(IllegalChange, "f is partitioned by 'ts', which cannot be dropped"),
    ),
    Scenario(
        "a column that files are not partitioned by",
        setup=[SCHEMA, create_table("s.f", "a int", "ts timestamp", partitioned_by=("day(ts)",))],
        run=drop("a", table="f"),
        expect=Made(["drop_columns"]),
        checks=[(columns("s.f"), ["2 ts timestamp"])],
    ),
    Scenario(
        "a column that colocates the table",
        cases=[38],
        setup=[SCHEMA, create_table("s.t", colocation=("b",))],
        run=drop("b"),
        expect=Refused(IllegalChange, "colocation column"),
    ),
    Scenario(
        "a column that indexes are made of",
        cases=[38],
        setup=[SCHEMA, TABLE, INDEX, replace(INDEX, index="j", columns=("b", "a"))],
        run=drop("a"),
        expect=Refused(IllegalChange, "these indexes use it: i, j;"),
    ),
    Scenario(
        "an index on a column of that name in another table",
        cases=[38],
        setup=[SCHEMA, TABLE, create_table("s.u"), replace(INDEX, table="u")],
        run=drop("a"),
        expect=Made(),
        checks=[(columns("s.t"), ["2 b string"])],
    ),
    Scenario(
        "a column of a stopping index alone",
        cases=[38],
        setup=[SCHEMA, [TABLE, INDEX], DropIndex(schema="s", index="i")],
        run=drop("a"),
        expect=Made(),
        checks=[(columns("s.t"), ["2 b string"])],
    ),
    Scenario(
        "several columns of which one is missing",
        cases=[39],
        setup=[SCHEMA, TABLE],
        run=drop("a", "z"),
        expect=Refused(ObjectNotFound, "'z' does not exist in t"),
    ),
    Scenario(
        "of several columns those that are there",
        cases=[39],
        setup=[SCHEMA, TABLE],
        run=drop("z", "a", "A", if_exists=True),
        expect=Made(),
        checks=[
            (columns("s.t"), ["2 b string"]),
            (arguments("drop_columns"), [{"table": "s.t", "dropped": ["a"]}]),
        ],
    ),
    Scenario(
        "of several columns none is there",
        cases=[39],
        setup=[SCHEMA, TABLE],
        run=drop("z", "y", if_exists=True),
        expect=Nothing(),
    ),
    Scenario(
        "every column",
        setup=[SCHEMA, TABLE],
        run=drop("a", "b"),
        expect=Refused(IllegalChange, "no columns left"),
    ),
    Scenario(
        "every column beside those that partition the table",
        setup=[SCHEMA, create_table("s.p", partition_columns=("b",), transactional=False)],
        run=drop("a", table="p"),
        expect=Refused(IllegalChange, "no columns left"),
    ),
    *(
        Scenario(
            f"a column of a plain table {what}",
            setup=[SCHEMA, create_table("s.p", transactional=False, **parts)],
            run=drop("a", table="p"),
            expect=Refused(IllegalChange, message),
        )
        for what, message, parts in (
            ("of text", "by column position", {"provider": "csv"}),
            (
                "of Hive's text",
                "by column position",
                {"provider": "hive", "storage": StorageFormat(serde=TEXT_SERDE)},
            ),
            ("that Hive buckets by it", BUCKETS, {"storage": StorageFormat(bucket_columns=("A",))}),
            (
                "that Hive sorts by it",
                BUCKETS,
                {"storage": StorageFormat(sort_columns=(("a", 1),))},
            ),
            (
                "that Spark buckets by it",
                BUCKETS,
                {"properties": ((f"{OF_SPARK}.bucketCol.0", "A"),)},
            ),
            ("that Spark sorts by it", BUCKETS, {"properties": ((f"{OF_SPARK}.sortCol.0", "a"),)}),
            (
                "that Spark clusters by it",
                BUCKETS,
                {"properties": (("clusteringColumns", '[["b"],["A","x"]]'),)},
            ),
        )
    ),
    Scenario(
        "no column at all",
        setup=[SCHEMA, TABLE],
        run=drop(),
        expect=Refused(InvalidInput, "no columns to drop"),
    ),
    Scenario(
        "a blank column",
        setup=[SCHEMA, TABLE],
        run=drop(" ", if_exists=True),
        expect=Refused(InvalidName, "name of a column"),
    ),
    Scenario(
        "of a missing table, if it exists",
        setup=[SCHEMA],
        run=drop("a", if_table_exists=True),
        expect=Nothing(),
    ),
    Scenario(
        "if the column exists, in a missing table",
        setup=[SCHEMA],
        run=drop("a", if_exists=True),
        expect=Refused(ObjectNotFound, "s.t"),
        note="each IF EXISTS covers what it stands at",
    ),
    # -- rename ------------------------------------------------------------------------------
    Scenario(
        "a renamed column keeps its id, and its index",
        setup=[SCHEMA, TABLE, INDEX],
        run=RenameColumn(schema="s", table="t", column="A", new_name="z"),
        expect=Made(["rename_column"]),
        checks=[
            (columns("s.t"), ["1 z int", "2 b string"]),
            (lambda r: r.after.alive_index("s", "i").columns[0].column_id, 1),
        ],
    ),
    Scenario(
        "a column renamed to its own name",
        setup=[SCHEMA, TABLE],
        run=RenameColumn(schema="s", table="t", column="a", new_name="a"),
        expect=Nothing(),
    ),
    Scenario(
        "a column renamed in a missing table, if it exists",
        setup=[SCHEMA],
        run=RenameColumn(schema="s", table="t", column="a", new_name="z", if_table_exists=True),
        expect=Nothing(),
    ),
    Scenario(
        "a missing column renamed, if the table exists",
        setup=[SCHEMA, TABLE],
        run=RenameColumn(schema="s", table="t", column="z", new_name="y", if_table_exists=True),
        expect=Refused(ObjectNotFound, "'z' does not exist in t"),
    ),
    Scenario(
        "a key column renamed",
        setup=[SCHEMA, KEYED],
        run=RenameColumn(schema="s", table="k", column="id", new_name="y"),
        expect=Refused(IllegalChange, "cannot be renamed"),
    ),
    Scenario(
        "a column renamed that files are partitioned by",
        setup=[SCHEMA, PARTITIONED],
        run=RenameColumn(schema="s", table="f", column="ts", new_name="at"),
        expect=Made(),
        checks=[
            (columns("s.f"), ["1 id int not null", "2 at timestamp"]),
            (
                lambda r: [(f.name, f.source_id) for f in table_of(r.after, "s.f").partitioning],
                [("ts_day", 2), ("ID_bucket", 1)],
            ),
        ],
        note="Partition fields name their columns by id.",
    ),
    Scenario(
        "two columns that swap their names",
        setup=[SCHEMA, TABLE, INDEX],
        run=RenameColumns(schema="s", table="t", new_names=(("A", "b"), ("b", "A"))),
        expect=Made(["rename_columns"]),
        checks=[
            (columns("s.t"), ["1 b int", "2 A string"]),
            (lambda r: r.after.alive_index("s", "i").columns[0].column_id, 1),
            (
                lambda r: arguments("rename_columns")(r)[0]["renamed"],
                ["A to b", "b to A"],
            ),
        ],
    ),
    Scenario(
        "columns that each take the name of the next",
        setup=[SCHEMA, TABLE],
        run=RenameColumns(schema="s", table="t", new_names=(("a", "b"), ("b", "c"))),
        expect=Made(["rename_columns"]),
        checks=[(columns("s.t"), ["1 b int", "2 c string"])],
    ),
    Scenario(
        "columns renamed to their own names",
        setup=[SCHEMA, KEYED],
        run=RenameColumns(schema="s", table="k", new_names=(("id", "id"), ("v", "v"))),
        expect=Nothing(),
    ),
    Scenario(
        "columns renamed in a missing table, if it exists",
        setup=[SCHEMA],
        run=RenameColumns(schema="s", table="t", new_names=(("a", "b"),), if_table_exists=True),
        expect=Nothing(),
    ),
    *(
        Scenario(
            f"columns renamed, but {what}",
            setup=[SCHEMA, TABLE],
            run=RenameColumns(schema="s", table="t", new_names=pairs),
            expect=Refused(error, message),
        )
        for what, pairs, error, message in (
            ("none is named", (), InvalidInput, "no columns to rename"),
            ("one to a blank name", (("a", " "),), InvalidName, "name of a column"),
            ("one to a reserved name", (("a", "_file"),), UnsupportedOperation, "reserved"),
            ("one is missing", (("a", "z"), ("z", "a")), ObjectNotFound, "'z' does not exist in t"),
            ("one keeps the name", (("a", "B"),), AlreadyExists, "'B' already exists in t"),
            ("two to one name", (("a", "c"), ("b", "C")), AlreadyExists, "'C' already exists in t"),
            ("one twice", (("A", "c"), ("a", "d")), InvalidInput, "'a' of t cannot have two"),
        )
    ),
    Scenario(
        "the columns of a plain table that swap their names",
        setup=[SCHEMA, PLAIN],
        run=RenameColumns(schema="s", table="p", new_names=(("a", "b"), ("b", "a"))),
        expect=Refused(IllegalChange, "read by column name"),
    ),
    Scenario(
        "a type changed of a column that files are partitioned by",
        setup=[SCHEMA, PARTITIONED],
        run=AlterColumn(schema="s", table="f", column="id", type=BIGINT),
        expect=Refused(IllegalChange, "cannot change its type"),
    ),
    Scenario(
        "the names of a schema after all this",
        setup=[SCHEMA, TABLE, PLAIN],
        run=drop("b", table="p"),
        expect=Made(),
        checks=[(names("s"), ["p", "t"])],
    ),
    *(
        Scenario(
            f"{what} is not metadata of a column {how}",
            setup=[SCHEMA, PLAIN],
            run=run,
            expect=Refused(InvalidInput, "the metadata of column 'c' must be a JSON object"),
        )
        for what, text in (
            ("half a JSON object", "{"),
            ("a list", "[1]"),
            ("a number that is none", "NaN"),
            ("a number without end", "1" * 5000),
            ("a nest without end", "[" * 100_000),
            ("an object with a number that is none", '{"k": NaN}'),
            ("an object with an infinite number", '{"k": 1e999}'),
            ("an object with half a surrogate pair", r'{"k": "\ud800"}'),
        )
        for how, run in (
            ("to add", AddColumns(schema="s", table="p", columns=(with_metadata(text),))),
            ("of a new table", CreateTable(schema="s", definition=one_column(text))),
            ("redefined", AlterTable(schema="s", table="p", definition=one_column(text))),
        )
    ),
    Scenario(
        "a suffix of a number is a letter of ASCII",
        setup=[SCHEMA, TABLE],
        run=add("c int default 1\u017f"),
        expect=Refused(UnsupportedOperation, "cannot have the default"),
        note="Case is folded in ASCII alone: Spark would not read the long s as S.",
    ),
]
