"""An unmodified Spark reads transactional tables: past versions of random histories, and now."""

from __future__ import annotations

import json
import random
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import date, timedelta
from decimal import Decimal
from typing import Any

import pytest

from strandline.catalog.commands import (
    AddColumns,
    AlterColumn,
    ColumnDefinition,
    DropColumns,
    DropTable,
    RenameColumn,
    RenameColumns,
    RenameTable,
)
from strandline.errors import AlreadyExists, Conflict, IllegalChange
from strandline.metastore.interface import Session
from strandline.model.descriptors import ColumnDescriptor, TableDescriptor
from strandline.model.type_parser import parse_type
from strandline.model.type_text import quoted, simple_string
from strandline.model.types import (
    BIGINT,
    DATE,
    INT,
    ArrayType,
    DataType,
    MapType,
    StructField,
    StructType,
)
from tests.metastore.hive import dml
from tests.metastore.hive.hive_node import HiveNode
from tests.metastore.hive.spark_process import SparkError, SparkProcess

pytestmark = pytest.mark.spark

SCHEMA = "nyc"
PARTITIONED = ((), ("truncate(10, p)", "bucket(4, q)"), ("month(t)", "p"), ("q", "t"))
ODD_STRINGS = (
    "",
    "a/b=c",
    "it's \\ 100 %",
    " x ",
    "__HIVE_DEFAULT_PARTITION__",
    "日本,\n𝄞",
    "\x1f",
)
NOW = -1
"""Used instead of a version: the present."""


@dataclass
class History:
    """A table that changes at random, and the rows that each version must show.

    A value is stored under the id of its column, and in a struct under the id of its field, because
    files are read by these ids. ``expected`` has the rows of each version, as JSON.
    """

    session: Session
    name: str
    chance: random.Random
    rows: dict[int, list[dict[int, Any]]] = field(default_factory=dict)
    expected: dict[int, list[str]] = field(default_factory=dict)
    next_value: int = 0

    @property
    def table(self) -> TableDescriptor:
        return self.session.table(f"{SCHEMA}.{self.name}").descriptor

    def step(self) -> None:
        """Change something at random, and record the expected rows."""
        often = (self.append, self.append_old, self.delete)
        seldom = (
            self.rename,
            self.swap,
            self.widen,
            self.add,
            self.drop,
            self.add_field,
            self.rename_field,
            self.move,
            self.undo,
            self.drop_and_restore,
        )
        self.chance.choice([*often, *often, *seldom])()
        self.note()

    def note(self) -> None:
        """Record the expected rows of the present version."""
        version = self.session.history()[-1].version
        shown = [_shown(row, self.table.columns) for rows in self.rows.values() for row in rows]
        self.expected[version] = sorted(json.dumps(row, sort_keys=True) for row in shown)

    def append(self, *, old_layout: bool = False) -> None:
        rows = [
            {column.id: self.value(column.type) for column in self.table.columns}
            for _ in range(self.chance.randint(1, 4))
        ]
        for source in self.sources():  # all rows of a file belong to one partition
            for row in rows:
                row[source] = rows[0][source]
        written = [_by_name(row, self.table.columns) for row in rows]
        name = f"{SCHEMA}.{self.name}"
        self.rows[dml.append(self.session, name, *written, old_layout=old_layout)] = rows

    def sources(self) -> set[int]:
        """The columns that partition the table. They are not dropped, and their types stay."""
        return {field.source_id for field in self.table.partitioning}

    def append_old(self) -> None:
        self.append(old_layout=True)

    def delete(self) -> None:
        files = [file_id for file_id, rows in self.rows.items() if rows]
        if not files:
            return
        file_id = self.chance.choice(files)
        rows = self.rows[file_id]
        positions = dml.live_positions(self.session, f"{SCHEMA}.{self.name}", file_id)
        gone = self.chance.sample(range(len(rows)), self.chance.randint(1, len(rows)))
        chosen = [positions[n] for n in gone]
        dml.delete(self.session, f"{SCHEMA}.{self.name}", file_id, chosen)
        self.rows[file_id] = [row for n, row in enumerate(rows) if n not in gone]

    def rename(self) -> None:
        column = self.chance.choice(self.table.columns)
        # The new name may have been the name of another column; from now on it means this one.
        new = self.chance.choice(self.free_names())
        self.execute(RenameColumn(schema=SCHEMA, table=self.name, column=column.name, new_name=new))

    def swap(self) -> None:
        """Swap the names of two columns, which may have the same type."""
        if len(self.table.columns) > 1:
            first, other = (c.name for c in self.chance.sample(self.table.columns, 2))
            swapped = ((first, other), (other, first))
            self.execute(RenameColumns(schema=SCHEMA, table=self.name, new_names=swapped))

    def free_names(self) -> list[str]:
        names = {column.name for column in self.table.columns}
        return [name for name in "pqrstu" if name not in names]

    def widen(self) -> None:
        for column in self.table.columns:
            if column.type == INT and column.id not in self.sources():
                self.execute(
                    AlterColumn(schema=SCHEMA, table=self.name, column=column.name, type=BIGINT)
                )
                return

    def add(self) -> None:
        self.next_value += 1
        free = self.free_names()
        kind = self.chance.choice(["int", "string", "struct<a:int,b:string>", "array<int>"])
        if len(free) > 1:  # the last free name is for a rename
            column = ColumnDefinition(free[0], parse_type(kind))
            self.execute(AddColumns(schema=SCHEMA, table=self.name, columns=(column,)))

    def drop(self) -> None:
        free = [column for column in self.table.columns if column.id not in self.sources()]
        if len(free) > 1:
            column = self.chance.choice(free)
            self.execute(DropColumns(schema=SCHEMA, table=self.name, names=(column.name,)))

    def add_field(self) -> None:
        """Widen the first field of a struct, and add a third one."""
        for column in self.table.columns:
            if isinstance(column.type, StructType):
                first, *rest = column.type.fields
                if len(rest) < 2:
                    rest.append(StructField("c", INT))
                wider = StructType((replace(first, type=BIGINT), *rest))
                self.execute(
                    AlterColumn(schema=SCHEMA, table=self.name, column=column.name, type=wider)
                )
                return

    def rename_field(self) -> None:
        """Rename a field of a struct: a field of the new type with an old id continues that one."""
        for column in self.table.columns:
            if isinstance(column.type, StructType):
                self.next_value += 1
                first, *rest = column.type.fields
                renamed = StructType((replace(first, name=f"f{self.next_value}"), *rest))
                self.execute(
                    AlterColumn(schema=SCHEMA, table=self.name, column=column.name, type=renamed)
                )
                return

    def move(self) -> None:
        self.next_value += 1
        new = f"{self.name.partition('_')[0]}_{self.next_value}"
        self.execute(RenameTable(schema=SCHEMA, table=self.name, new_name=new))
        self.name = new

    def undo(self) -> None:
        """Undo one of the last versions, unless a later change forbids it."""
        table_id = self.table.id
        versions = [info.version for info in self.session.history(start=min(self.expected) + 1)]
        if not versions:
            return
        with suppress(AlreadyExists, Conflict, IllegalChange):
            self.session.undo(self.chance.choice(versions[-4:]))
        if not self.named(table_id):  # the version that restored the table was undone
            self.session.undo(self.session.history()[-1].version)
        (self.name,) = self.named(table_id)

    def named(self, table_id: int) -> list[str]:
        """The name of the table with that id, if it exists."""
        tables = {name: f"{SCHEMA}.{name}" for name in self.session.tables(SCHEMA)}
        return [n for n, q in tables.items() if self.session.table(q).descriptor.id == table_id]

    def drop_and_restore(self) -> None:
        self.execute(DropTable(schema=SCHEMA, table=self.name))
        if self.chance.randrange(2):
            self.session.undrop(f"{SCHEMA}.{self.name}")
        else:
            self.session.undo(self.session.history()[-1].version)

    def execute(self, command: Any) -> None:
        self.session.execute(command)

    def value(self, data_type: DataType) -> Any:
        """A new value of the type; a struct has the ids of its fields as keys."""
        self.next_value += 1
        if not self.chance.randrange(6):
            return None
        match data_type:
            case StructType(fields):
                return {f.field_id: self.value(f.type) for f in fields}
            case ArrayType(element):
                return [self.value(element) for _ in range(2)]
            case MapType(_, value):
                return {f"k{self.next_value}": self.value(value)}
        if data_type == DATE:
            return date(2024, 1, 1) + timedelta(days=10 * self.next_value)
        if data_type in (INT, BIGINT):
            return self.next_value
        return self.chance.choice([f"v{self.next_value}", self.chance.choice(ODD_STRINGS)])

    def filters(self) -> dict[str, list[str]]:
        """Conditions on the columns that partition the table, with the rows that each must find."""
        columns = {column.id: column for column in self.table.columns}
        rows = [row for rows in self.rows.values() for row in rows]
        answers: dict[str, list[str]] = {}
        for source in sorted(self.sources()):
            value = self.chance.choice([None, *(row[source] for row in rows)])
            literal = f"unhex('{value.encode().hex()}')" if isinstance(value, str) else f"'{value}'"
            of_type = simple_string(columns[source].type)
            other = "NULL" if value is None else f"CAST({literal} AS {of_type})"
            shown = [_shown(r, self.table.columns) for r in rows if r[source] == value]
            condition = f"{quoted(columns[source].name)} <=> {other}"
            answers[condition] = sorted(json.dumps(row, sort_keys=True) for row in shown)
        return answers


def _by_name(row: dict[int, Any], columns: tuple[ColumnDescriptor, ...]) -> dict[str, Any]:
    return {column.name: _named(row.get(column.id), column.type) for column in columns}


def _named(value: Any, data_type: DataType) -> Any:
    if value is None:
        return None
    match data_type:
        case StructType(fields):
            return {f.name: _named(value.get(f.field_id), f.type) for f in fields}
        case ArrayType(element):
            return [_named(item, element) for item in value]
    return value


def _shown(row: dict[int, Any], columns: tuple[ColumnDescriptor, ...]) -> dict[str, Any]:
    """The row as Spark's `to_json` writes it: without NULL values."""
    shown: dict[str, Any] = _without_nulls(_by_name(row, columns))
    return shown


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _without_nulls(v) for k, v in value.items() if v is not None}
    return value.isoformat() if isinstance(value, date) else value


def run(hive: HiveNode, spark: SparkProcess, seed: int, *, steps: int) -> None:
    """Make a history, and read all its versions through the view and with `strandline.spark`."""
    name = f"history{seed}"
    columns = {"p": "int", "q": "string", "r": "struct<a:int,b:string>", "s": "array<int>"}
    fields = PARTITIONED[seed % len(PARTITIONED)]
    hive.create_transactional(SCHEMA, name, partitioned_by=fields, **columns, t="date")
    history = History(hive.node.session(user="ann"), name, random.Random(seed))
    history.note()
    names = dict.fromkeys(history.expected, name)
    for _ in range(steps):
        history.step()
        names[max(history.expected)] = history.name
    names[NOW] = history.name
    expected = history.expected | {NOW: history.expected[max(history.expected)]}
    queries = [
        f"SELECT {version}, to_json(struct(*)) FROM {_schema_at(version)}.{names[version]}"
        for version in expected
    ]
    for rows in (
        spark.sql(" UNION ALL ".join(queries)),
        spark.read_with_package(hive.store, {v: f"{SCHEMA}.{n}" for v, n in names.items()}),
    ):
        rows_by_version: dict[int, list[str]] = {version: [] for version in expected}
        for version, row in rows:
            rows_by_version[version].append(json.dumps(json.loads(row), sort_keys=True))
        for version, expected_rows in expected.items():
            assert sorted(rows_by_version[version]) == expected_rows, (seed, version)
    for condition, expected_rows in history.filters().items():
        texts = spark.column(
            f"SELECT to_json(struct(*)) FROM {SCHEMA}.{history.name} WHERE {condition}"
        )
        filtered = [json.dumps(json.loads(row), sort_keys=True) for row in texts]
        assert sorted(filtered) == expected_rows, (seed, condition)


def _schema_at(version: int) -> str:
    return SCHEMA if version == NOW else f"`{SCHEMA}@{version}`"


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(len(PARTITIONED)))
def test_every_version_of_a_random_history_has_its_rows(
    served: HiveNode, spark: SparkProcess, seed: int
) -> None:
    run(served, spark, seed, steps=6)


@pytest.mark.soak
@pytest.mark.parametrize("number", range(40))
def test_every_version_of_a_long_random_history_has_its_rows(
    served: HiveNode, spark: SparkProcess, pytestconfig: pytest.Config, number: int
) -> None:
    seed = int(pytestconfig.getoption("--hypothesis-seed") or 0) * 1000 + 100 + number
    run(served, spark, seed, steps=25)


@pytest.fixture(scope="module")
def orders(served: HiveNode) -> str:
    served.create_transactional(SCHEMA, "orders", Id="bigint", item="string", code="char(3)")
    session = served.node.session(user="ann")
    rows = [{"Id": n, "item": f"i{n}", "code": "ab"} for n in range(1, 5)]
    file_id = dml.append(session, f"{SCHEMA}.orders", *rows)
    dml.delete(session, f"{SCHEMA}.orders", file_id, [0])
    return f"{SCHEMA}.orders"


READS: dict[str, list[list[Any]]] = {
    "SELECT Id, item FROM {} WHERE Id > 2 ORDER BY Id": [[3, "i3"], [4, "i4"]],
    "SELECT count(*) FROM {}": [[3]],
    "SELECT a.Id FROM {0} a JOIN {0} b ON a.Id = b.Id + 1 ORDER BY 1": [[3], [4]],
    "SELECT length(code) FROM {} WHERE Id = 2": [[2]],
    "SELECT count(*) FROM {} WHERE code = 'ab'": [[3]],
    "SELECT count(*) FROM {} WHERE code IN ('ab', 'c') AND code < 'b'": [[3]],
    "SELECT count(*) FROM {} WHERE code = 'ab '": [[0]],
    "SHOW COLUMNS IN {}": [["Id"], ["item"], ["code"]],
    "CACHE TABLE {}": [],
    "UNCACHE TABLE {}": [],
    "CREATE OR REPLACE TEMP VIEW items AS SELECT item FROM {}": [],
    "SELECT max(item) FROM items": [["i4"]],
    "DROP VIEW items": [],
    "CREATE OR REPLACE VIEW nyc.late AS SELECT Id, item FROM {} WHERE Id > 3": [],
    "SELECT l.item FROM nyc.late l JOIN {} o USING (Id)": [["i4"]],
    "DROP VIEW nyc.late": [],
}


def test_statements_that_read_a_table_work(spark: SparkProcess, orders: str) -> None:
    for statement, rows in READS.items():
        assert spark.sql(statement.format(orders)) == rows, statement
    described = spark.sql(f"DESCRIBE {orders}")
    assert [row[:2] for row in described] == [
        ["Id", "bigint"],
        ["item", "string"],
        ["code", "string"],  # as in the files; Spark would look for a char(3) with blanks
    ]


def test_a_spark_that_keeps_varchar_types_reads_tables_with_them(
    served: HiveNode, spark: SparkProcess
) -> None:
    table = f"{SCHEMA}.kept_types"
    served.create_transactional(
        SCHEMA, "kept_types", partitioned_by=["p"], id="int", v="varchar(5)", p="varchar(5)"
    )
    session = served.node.session(user="ann")
    dml.append(session, table, {"id": 1, "v": "a", "p": "x"})
    longer = AlterColumn(
        schema=SCHEMA, table="kept_types", column="v", type=parse_type("varchar(9)")
    )
    more = ColumnDefinition("s", parse_type("struct<c:char(2),v:varchar(2)>"))
    session.execute([longer, AddColumns(schema=SCHEMA, table="kept_types", columns=(more,))])
    dml.append(session, table, {"id": 2, "v": "b", "p": "y", "s": {"c": "c", "v": "d"}})
    spark.sql("SET spark.sql.preserveCharVarcharTypeInfo = true")
    try:
        assert spark.sql(f"SELECT * FROM {table} ORDER BY id") == [
            [1, "a", "x", None],
            [2, "b", "y", ["c", "d"]],
        ]
        assert spark.column(f"SELECT id FROM {table} WHERE v = 'b' AND p = 'y'") == [2]
        assert spark.sql(f"DESCRIBE {table} v")[1] == ["data_type", "varchar(9)"]
    finally:
        spark.sql("RESET spark.sql.preserveCharVarcharTypeInfo")


WIDER: tuple[tuple[str, str, Any, str], ...] = (
    ("tinyint", "double", -128, "-128.0"),
    ("smallint", "int", -32768, "-32768"),
    ("int", "decimal(12,2)", 7, "7.00"),
    ("bigint", "decimal(20,0)", -(1 << 63), "-9223372036854775808"),
    ("float", "double", 0.5, "0.5"),
    ("decimal(5,2)", "decimal(9,4)", Decimal("-999.99"), "-999.9900"),
    ("date", "timestamp_ntz", date(1582, 10, 4), "1582-10-04 00:00:00"),
)
"""A type, a wider one, a value of the first, and what Spark shows of it in the second."""


def test_values_are_read_with_the_wider_type_that_their_column_has_now(
    served: HiveNode, spark: SparkProcess
) -> None:
    forms = {"c": "{}", "a": "array<{}>", "m": "map<string,{}>", "s": "struct<f:array<{}>>"}
    columns: dict[str, str] = {}
    wider: dict[str, str] = {}
    row: dict[str, Any] = {}
    shown: list[str] = []
    for number, (narrow, wide, value, text) in enumerate(WIDER):
        columns |= {f"{key}{number}": form.format(narrow) for key, form in forms.items()}
        wider |= {f"{key}{number}": form.format(wide) for key, form in forms.items()}
        values = (value, [value], [("k", value)], {"f": [value]})
        row |= {f"{key}{number}": of_form for key, of_form in zip(forms, values, strict=True)}
        shown += [text] * len(forms)
    served.create_transactional(SCHEMA, "wider", **columns)
    session = served.node.session(user="ann")
    dml.append(session, f"{SCHEMA}.wider", row)
    session.execute(
        [
            AlterColumn(schema=SCHEMA, table="wider", column=column, type=parse_type(wide))
            for column, wide in wider.items()
        ]
    )
    texts = [
        f"CAST({value.format(number)} AS STRING)"
        for number in range(len(WIDER))
        for value in ("c{}", "a{}[0]", "m{}['k']", "s{}.f[0]")
    ]
    assert spark.sql(f"SELECT {', '.join(texts)} FROM {SCHEMA}.wider") == [shown]


def test_varchars_in_fields_with_unusual_names_are_read(
    served: HiveNode, spark: SparkProcess
) -> None:
    of_names = {"s": "struct<`a b`:varchar(2),`c``d`:array<struct<`é.`:char(2)>>>"}
    served.create_transactional(SCHEMA, "named", **of_names)
    row = {"s": {"a b": "x", "c`d": [{"é.": "y"}]}}
    dml.append(served.node.session(user="ann"), f"{SCHEMA}.named", row)
    assert spark.sql(f"SELECT s.`a b`, s.`c``d`.`é.` FROM {SCHEMA}.named") == [["x", ["y"]]]


@pytest.mark.parametrize(
    "columns",
    [
        pytest.param({"c": "char(3)", "v": "varchar(3)", "raw": "binary"}, id="of Hive"),
        pytest.param(
            {"s": "struct<`a b`:char(2),m:map<string,array<varchar(2)>>>"}, id="of Hive, nested"
        ),
        pytest.param({"c": "char(3)", "t": "timestamp_ntz", "v": "variant"}, id="of Spark alone"),
    ],
)
def test_spark_renames_a_table_and_sets_its_properties(
    served: HiveNode, spark: SparkProcess, columns: dict[str, str]
) -> None:
    table = served.create_transactional(SCHEMA, "typed", **columns)
    spark.sql(f"ALTER VIEW {SCHEMA}.typed RENAME TO {SCHEMA}.renamed")
    spark.sql(f"ALTER VIEW {SCHEMA}.renamed SET TBLPROPERTIES ('k' = 'v')")
    session = served.node.session(user="ann")
    altered = session.table(f"{SCHEMA}.renamed").descriptor
    assert (altered.id, altered.columns) == (table.id, table.columns)
    assert ("k", "v") in altered.properties
    session.execute(DropTable(schema=SCHEMA, table="renamed"))


IS_A_VIEW = "EXPECT_TABLE_NOT_VIEW"
WRITES = {
    "INSERT INTO {} VALUES (9, 'x', 'y')": IS_A_VIEW,
    "INSERT OVERWRITE {} VALUES (9, 'x', 'y')": IS_A_VIEW,
    "TRUNCATE TABLE {}": IS_A_VIEW,
    "ALTER TABLE {} ADD COLUMNS (more INT)": IS_A_VIEW,
    "DELETE FROM {}": "Unexpected table relation",
    "UPDATE {} SET item = 'x'": "does not support UPDATE TABLE",
    "MERGE INTO {0} USING {0} AS o ON {0}.Id = o.Id WHEN MATCHED THEN DELETE": "MERGE INTO TABLE",
    "ALTER TABLE {} SET LOCATION '/tmp'": IS_A_VIEW,
    "ANALYZE TABLE {} COMPUTE STATISTICS": "does not support views",
    "ALTER VIEW {} AS SELECT 1": "is a transactional table",
    "DROP VIEW {}": "DROP TABLE nyc.orders",
    "CREATE OR REPLACE VIEW {} AS SELECT 1 AS Id": "cannot be replaced or overwritten",
}

ROW = "SELECT 9L AS Id, 'x' AS item, 'y' AS code"


def test_statements_that_write_to_a_table_are_refused_and_change_nothing(
    spark: SparkProcess, orders: str
) -> None:
    whole = f"SELECT * FROM {orders} ORDER BY Id"
    before = spark.sql(whole)

    for statement, text in WRITES.items():
        with pytest.raises(SparkError, match=text):
            spark.sql(statement.format(orders))
    spark.save(ROW, orders, mode="ignore")
    for mode, text in {
        "append": "into a view is not allowed",
        "error": "already exists",
        "overwrite": "cannot be replaced or overwritten",
    }.items():
        with pytest.raises(SparkError, match=text):
            spark.save(ROW, orders, mode=mode)
    assert spark.sql(whole) == before


@pytest.mark.slow
def test_an_overwrite_is_refused_while_other_threads_of_the_application_call_the_metastore(
    spark: SparkProcess, orders: str
) -> None:
    whole = f"SELECT * FROM {orders} ORDER BY Id"
    before = spark.sql(whole)
    for meanwhile in ("SHOW TABLES IN nyc", "DESCRIBE DATABASE nyc", f"SELECT * FROM {orders}"):
        for _ in range(2):
            with pytest.raises(SparkError, match="cannot be replaced or overwritten"):
                spark.save(ROW, orders, mode="overwrite", meanwhile=meanwhile)
    assert spark.sql(whole) == before


def test_a_table_that_was_just_read_can_be_dropped(served: HiveNode, spark: SparkProcess) -> None:
    served.create_transactional(SCHEMA, "trips", id="bigint")
    dml.append(served.node.session(user="ann"), f"{SCHEMA}.trips", {"id": 1})
    assert spark.sql(f"SELECT * FROM {SCHEMA}.trips") == [[1]]
    spark.sql(f"DROP TABLE {SCHEMA}.trips")
    assert spark.sql(f"SHOW TABLES IN {SCHEMA} LIKE 'trips'") == []


def test_a_table_without_rows_can_be_read_but_not_overwritten(
    served: HiveNode, spark: SparkProcess
) -> None:
    served.create_transactional(SCHEMA, "nothing", Id="bigint")
    with pytest.raises(SparkError, match="cannot be replaced or overwritten"):
        spark.save("SELECT 1L AS Id", f"{SCHEMA}.nothing", mode="overwrite")
    assert spark.sql(f"SELECT * FROM {SCHEMA}.nothing") == []
    added = AddColumns(schema=SCHEMA, table="nothing", columns=(ColumnDefinition("more", BIGINT),))
    served.node.session(user="ann").execute(added)
    assert spark.sql(f"SELECT Id, more FROM {SCHEMA}.nothing") == []


def test_files_and_delete_files_may_be_in_any_folder_of_the_table(
    served: HiveNode, spark: SparkProcess
) -> None:
    served.create_transactional(SCHEMA, "anywhere", id="bigint")
    session, name = served.node.session(user="ann"), f"{SCHEMA}.anywhere"
    first = dml.append(session, name, *({"id": n} for n in range(4)))
    odd = dml.append(session, name, *({"id": n} for n in range(4, 8)), path="own/a [x]{,}.parquet")
    near = dml.append(session, name, *({"id": n} for n in range(8, 12)))
    dml.delete(session, name, near, [0, 3])
    dml.delete(session, name, first, [0])
    dml.delete(session, name, first, [1], folder="own d")
    dml.delete(session, name, odd, [2], folder="other")
    assert spark.column(f"SELECT id FROM {name} ORDER BY id") == [2, 3, 4, 5, 7, 9, 10]


def test_each_row_is_read_once_after_a_type_changes_in_a_table_of_files_without_a_version(
    served: HiveNode, spark: SparkProcess
) -> None:
    """Spark keeps the list of files of a hidden table by its name."""
    served.create_transactional(SCHEMA, "unversioned", id="int", n="int")
    session, name = served.node.session(user="ann"), f"{SCHEMA}.unversioned"
    dml.append(session, name, {"id": 1, "n": 1}, versioned=False)
    dml.append(session, name, {"id": 2, "n": 2})
    assert spark.sql(f"SELECT id, n FROM {name} ORDER BY id") == [[1, 1], [2, 2]]
    session.execute(AlterColumn(schema=SCHEMA, table="unversioned", column="n", type=BIGINT))
    assert spark.sql(f"SELECT id, n FROM {name} ORDER BY id") == [[1, 1], [2, 2]]


PARTITION_TYPES: dict[str, tuple[str, list[Any]]] = {
    "strings": ("string", [*ODD_STRINGS[:-1], None, "é", "z" * 300]),
    "integers": ("int", [-(2**31), -1, 0, 7, 2**31 - 1, None]),
    "long integers": ("bigint", [-(2**63), 0, 2**63 - 1, None]),
    "booleans": ("boolean", [True, False, None]),
    "dates": ("date", [date(1, 1, 1), date(1582, 10, 10), date(2024, 2, 29), date.max, None]),
}


def _sql(value: Any, data_type: str) -> str:
    """A literal of the value, independent of how the view writes values."""
    if value is None:
        return "NULL"
    if isinstance(value, str):
        return f"decode(unhex('{value.encode().hex()}'), 'UTF-8')"
    return f"CAST('{value}' AS {data_type})"


@pytest.mark.slow
@pytest.mark.parametrize("what", PARTITION_TYPES)
def test_a_filter_on_a_partition_column_reads_only_the_files_of_the_partition(
    served: HiveNode, spark: SparkProcess, what: str
) -> None:
    data_type, values = PARTITION_TYPES[what]
    name = f"by_{what.replace(' ', '_')}"
    served.create_transactional(SCHEMA, name, partitioned_by=["p"], id="bigint", p=data_type)
    session, full_name = served.node.session(user="ann"), f"{SCHEMA}.{name}"
    for number in range(2 * len(values)):
        dml.append(session, full_name, {"id": number, "p": values[number % len(values)]})
    query = f"SELECT id FROM {full_name}"
    assert spark.files_read(query) == 2 * len(values)
    for number, value in enumerate(values):
        matching = f"{query} WHERE p <=> {_sql(value, data_type)}"
        assert sorted(spark.column(matching)) == [number, number + len(values)]
        assert spark.files_read(matching) == 2
    assert spark.files_read(f"{query} WHERE p IS NULL") == 2 * values.count(None)
    assert spark.files_read(f"{query} WHERE p <=> {_sql(values[0], data_type)} OR id < 0") > 2


@pytest.mark.slow
def test_a_filter_reads_only_the_files_of_the_partition_among_many(
    served: HiveNode, spark: SparkProcess
) -> None:
    """So many files that the text of the view is written for a lookup by hash."""
    served.create_transactional(SCHEMA, "many", partitioned_by=["day"], id="int", day="date")
    session = served.node.session(user="ann")
    for n in range(30):
        day = date(2024, 1, 1 + n // 3) if n > 2 else None
        dml.append(session, f"{SCHEMA}.many", {"id": n, "day": day})
    assert spark.column(f"SELECT count(DISTINCT day) FROM {SCHEMA}.many") == [9]
    for condition, ids in {
        "day = '2024-01-04'": [9, 10, 11],
        "day IS NULL": [0, 1, 2],
        "day BETWEEN '2024-01-09' AND '2024-01-31'": [24, 25, 26, 27, 28, 29],
        "month(day) = 2": [],
        "day > (SELECT max(day) FROM nyc.many) - INTERVAL 1 DAY": [27, 28, 29],
    }.items():
        query = f"SELECT id FROM {SCHEMA}.many WHERE {condition}"
        assert sorted(spark.column(query)) == ids
        if "SELECT" not in condition:
            assert spark.files_read(query) == len(ids)


@pytest.mark.slow
def test_files_are_left_out_in_every_part_of_a_view(served: HiveNode, spark: SparkProcess) -> None:
    """Deleted rows, an older schema, older layouts and unusual names: each adds a part."""
    served.create_transactional(
        SCHEMA,
        "parts",
        partitioned_by=["region", "month(day)"],
        id="int",
        region="string",
        day="date",
    )
    session, name = served.node.session(user="ann"), f"{SCHEMA}.parts"
    days = [date(2024, 1, 1 + n) for n in range(4)]
    for folder, region in enumerate(("n/a", "eu")):
        rows = [{"id": n, "region": region, "day": day} for n, day in enumerate(days)]
        dml.append(session, name, *rows)
        dml.append(session, name, *rows, old_layout=True)
        dml.append(session, name, *rows, path=f"own/{folder}.parquet")
        # Spark must read the column from files whose names it may write with escapes.
        dml.append(session, name, *rows, path=f"_files/own {folder}.parquet")
    version = session.history()[-1].version
    session.execute(RenameColumn(schema=SCHEMA, table="parts", column="region", new_name="area"))
    for region in ("n/a", "eu"):
        rows = [{"id": n, "area": region, "day": day} for n, day in enumerate(days)]
        dml.append(session, name, *rows)
        dml.delete(session, name, dml.append(session, name, *rows), [1, 2])
    query = f"SELECT area, count(*), sum(id) FROM {name} GROUP BY area ORDER BY area"
    assert spark.sql(query) == [["eu", 22, 33], ["n/a", 22, 33]]
    query = f"SELECT id FROM {name} WHERE area = 'eu'"
    assert len(spark.sql(query)) == 22
    deletes, opened_to_look = 2, 1
    assert spark.files_read(query) == 6 + opened_to_look + deletes
    assert spark.files_read(f"{query} AND day > '2025-01-01'") == 6 + opened_to_look + deletes
    assert spark.files_read(f"SELECT id FROM {name} WHERE area = 'us'") == 2 + deletes
    assert spark.files_read(f"SELECT id FROM {name} WHERE day > '2025-01-01'") == 12 + deletes
    query = f"SELECT id FROM `{SCHEMA}@{version}`.parts WHERE region = 'eu'"
    assert len(spark.sql(query)) == 16
    assert spark.files_read(query) == 4 + opened_to_look
