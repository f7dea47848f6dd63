"""Random statements of Spark on plain tables, which two metastores must answer alike.

The tables have the formats that Spark writes, with and without partition keys, and there are views
of them. Statements that both metastores refuse are among them. Left out is what `strandline`
intends to do otherwise: locations that a client chooses, and the parameters of tables and
partitions.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

FORMATS = (
    "STORED AS TEXTFILE",
    "ROW FORMAT DELIMITED FIELDS TERMINATED BY ',' STORED AS TEXTFILE",
    "ROW FORMAT SERDE 'org.apache.hadoop.hive.serde2.OpenCSVSerde' STORED AS TEXTFILE",
    "STORED AS SEQUENCEFILE",
    "STORED AS AVRO",
    "STORED AS ORC",
    "STORED AS PARQUET",
    "USING parquet",
    "USING orc",
    "USING json",
    "USING csv OPTIONS (header = 'true')",
)
COLUMNS = "a INT, b STRING"
COLLATED = "STRING COLLATE UTF8_LCASE"
OF_DATA_SOURCES = (COLUMNS, f"a INT, b {COLLATED}")
KEYS = (
    *("", "p STRING", "p INT", "p DATE", "p STRING, q INT"),
    *("p DECIMAL(9,2)", "p BOOLEAN", "p CHAR(4)", "p TIMESTAMP, q DATE"),
)
VALUES = {
    "INT": ("1", "2", "10", "-3", "NULL"),
    "STRING": ("'x'", "'y y'", "'a/b'", "'1'", "'10%'", "'é'", "'a=b'", "NULL"),
    COLLATED: ("'x'", "'X'", "'É'"),
    "CHAR(4)": ("'x'", "'y y'", "NULL"),
    "DATE": ("DATE '2020-01-01'", "DATE '2021-02-03'", "DATE '9999-12-31'", "NULL"),
    "TIMESTAMP": ("TIMESTAMP '2020-01-01 10:00:00.5'", "NULL"),
    "DECIMAL(9,2)": ("1", "-2.50", "NULL"),
    "BOOLEAN": ("true", "false", "NULL"),
    "DOUBLE": ("1.5",),
}
DEFAULTS = ("1 + 1", "'7'", "7", "'x'", "true", "NULL")
NAMES = ("t", "u", "v")
WEIGHTS = {
    "insert": 8,
    "insert_dynamic": 4,
    "overwrite": 3,
    "select": 5,
    "select_some": 5,
    "add_partition": 2,
    "drop_partition": 2,
    "rename_partition": 2,
    "truncate": 1,
    "add_column": 2,
    "replace_columns": 1,
    "comment_on_column": 2,
    "set_default": 1,
    "drop_default": 1,
    "insert_some": 1,
    "set_properties": 2,
    "set_partition_properties": 1,
    "analyze": 1,
    "analyze_columns": 1,
    "describe_column": 1,
    "create_view": 1,
    "select_view": 1,
    "rename": 1,
    "drop": 1,
    "create_as": 1,
    "create_like": 1,
}


@dataclass
class Table:
    """A table, if the statements so far did what they say: columns and keys with their types."""

    columns: dict[str, str]
    keys: dict[str, str]


class RandomStatements:
    """The statements of one ``seed``, in a schema of their own."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._schema = f"random{seed}"
        self._tables: dict[str, Table] = {}

    def statements(self, count: int) -> Iterator[str]:
        """About ``count`` random statements, then all rows and partitions of the tables."""
        yield f"CREATE DATABASE {self._schema}"
        yield f"USE {self._schema}"
        yield "SET hive.exec.dynamic.partition.mode = nonstrict"
        for _ in range(count):
            name = self._random.choice(NAMES)
            if name not in self._tables:
                yield self._create(name)
                continue
            steps = {
                step: weight
                for step, weight in WEIGHTS.items()
                if self._tables[name].keys or not ("partition" in step or step == "insert_dynamic")
            }
            [step] = self._random.choices([*steps], [*steps.values()])
            yield getattr(self, f"_{step}")(name)
        for name, table in self._tables.items():
            yield self._select(name)
            if table.keys:
                yield f"SHOW PARTITIONS {name}"

    def _create(self, name: str) -> str:
        stored, keys = self._random.choice(FORMATS), self._random.choice(KEYS)
        is_of_hive = not stored.startswith("USING")
        columns = COLUMNS if is_of_hive else self._random.choice(OF_DATA_SOURCES)
        self._tables[name] = Table(_typed(columns), _typed(keys))
        if is_of_hive:
            partitioned = f"PARTITIONED BY ({keys}) " if keys else ""
            return f"CREATE TABLE {name} ({columns}) {partitioned}{stored}"
        columns = f"{columns}, {keys}" if keys else columns
        partitioned = f" PARTITIONED BY ({', '.join(_typed(keys))})" if keys else ""
        return f"CREATE TABLE {name} ({columns}) {stored}{partitioned}"

    def _value(self, of_type: str) -> str:
        return self._random.choice(VALUES[of_type])

    def _row(self, types: dict[str, str]) -> str:
        return ", ".join(map(self._value, types.values()))

    def _partition(self, name: str) -> str:
        keys = self._tables[name].keys.items()
        return f"PARTITION ({', '.join(f'{key} = {self._value(of)}' for key, of in keys)})"

    def _target(self, name: str) -> str:
        return f"{name} {self._partition(name)}" if self._tables[name].keys else name

    def _insert(self, name: str) -> str:
        rows = (f"({self._row(self._tables[name].columns)})" for _ in range(2))
        return f"INSERT INTO {self._target(name)} VALUES {', '.join(rows)}"

    def _insert_dynamic(self, name: str) -> str:
        table = self._tables[name]
        return f"INSERT INTO {name} SELECT {self._row(table.columns | table.keys)}"

    def _overwrite(self, name: str) -> str:
        row = self._row(self._tables[name].columns)
        return f"INSERT OVERWRITE {self._target(name)} VALUES ({row})"

    def _select(self, name: str) -> str:
        return f"SELECT * FROM {name}"

    def _select_some(self, name: str) -> str:
        table = self._tables[name]
        column, of = self._random.choice([*(table.keys or table.columns).items()])
        one, other = self._value(of), self._value(of)
        condition = self._random.choice(
            (
                *(f"{operator} {one}" for operator in ("=", "<>", "<", ">=", "<=>")),
                *(f"IN ({one}, {other})", f"NOT IN ({one})", f"BETWEEN {one} AND {other}"),
                *("IS NULL", f"= {one} OR {column} IS NULL"),
            )
        )
        return f"SELECT * FROM {name} WHERE {column} {condition}"

    def _add_partition(self, name: str) -> str:
        return f"ALTER TABLE {name} ADD IF NOT EXISTS {self._partition(name)}"

    def _drop_partition(self, name: str) -> str:
        return f"ALTER TABLE {name} DROP {self._partition(name)}"

    def _rename_partition(self, name: str) -> str:
        return f"ALTER TABLE {name} {self._partition(name)} RENAME TO {self._partition(name)}"

    def _truncate(self, name: str) -> str:
        return f"TRUNCATE TABLE {self._target(name)}"

    def _add_column(self, name: str) -> str:
        column, of = self._random.choice("cde"), self._random.choice(("INT", "STRING", "DOUBLE"))
        self._tables[name].columns.setdefault(column, of)
        return f"ALTER TABLE {name} ADD COLUMNS ({column} {of} COMMENT 'new')"

    def _replace_columns(self, name: str) -> str:
        columns = self._tables[name].columns
        kept = ", ".join(f"{column} {of}" for column, of in [*columns.items()][:2])
        return f"ALTER TABLE {name} REPLACE COLUMNS ({kept})"

    def _comment_on_column(self, name: str) -> str:
        column, of = self._random.choice([*self._tables[name].columns.items()])
        return f"ALTER TABLE {name} CHANGE COLUMN {column} {column} {of} COMMENT 'said'"

    def _set_default(self, name: str) -> str:
        column = self._random.choice([*self._tables[name].columns])
        default = self._random.choice(DEFAULTS)
        return f"ALTER TABLE {name} ALTER COLUMN {column} SET DEFAULT {default}"

    def _drop_default(self, name: str) -> str:
        column = self._random.choice([*self._tables[name].columns])
        return f"ALTER TABLE {name} ALTER COLUMN {column} DROP DEFAULT"

    def _insert_some(self, name: str) -> str:
        table = self._tables[name]
        given = dict([*table.columns.items()][:1]) | table.keys
        return f"INSERT INTO {name} ({', '.join(given)}) SELECT {self._row(given)}"

    def _set_properties(self, name: str) -> str:
        key = self._random.choice(("field.delim", "separatorChar", "serialization.format", "k"))
        value = self._random.choice(";|,")
        return f"ALTER TABLE {name} SET SERDEPROPERTIES ('{key}' = '{value}')"

    def _set_partition_properties(self, name: str) -> str:
        return f"ALTER TABLE {self._target(name)} SET SERDEPROPERTIES ('k' = 'v')"

    def _analyze(self, name: str) -> str:
        return f"ANALYZE TABLE {name} COMPUTE STATISTICS"

    def _analyze_columns(self, name: str) -> str:
        return f"ANALYZE TABLE {name} COMPUTE STATISTICS FOR ALL COLUMNS"

    def _describe_column(self, name: str) -> str:
        table = self._tables[name]
        column = self._random.choice([*table.columns, *table.keys])
        return f"DESCRIBE EXTENDED {name} {column}"

    def _create_view(self, name: str) -> str:
        mode = self._random.choice(("", " WITH SCHEMA EVOLUTION"))
        return f"CREATE OR REPLACE VIEW view_of_{name}{mode} AS SELECT * FROM {name}"

    def _select_view(self, name: str) -> str:
        return f"SELECT * FROM view_of_{name}"

    def _rename(self, name: str) -> str:
        new_name = self._random.choice(NAMES)
        if new_name not in self._tables:
            self._tables[new_name] = self._tables.pop(name)
        return f"ALTER TABLE {name} RENAME TO {new_name}"

    def _drop(self, name: str) -> str:
        del self._tables[name]
        return f"DROP TABLE {name}"

    def _create_as(self, name: str) -> str:
        new_name = self._random.choice(NAMES)
        self._tables.setdefault(new_name, Table(_typed(COLUMNS), {}))
        stored = self._random.choice(("USING parquet", "STORED AS ORC", "STORED AS TEXTFILE"))
        return f"CREATE TABLE {new_name} {stored} AS SELECT a, 'z' AS b FROM {name}"

    def _create_like(self, name: str) -> str:
        new_name = self._random.choice(NAMES)
        table = self._tables[name]
        self._tables.setdefault(new_name, Table(dict(table.columns), dict(table.keys)))
        return f"CREATE TABLE {new_name} LIKE {name}"


def _typed(columns: str) -> dict[str, str]:
    """``p STRING, q INT`` as names with their types."""
    typed = (column.split(maxsplit=1) for column in columns.split(", ") if column)
    return dict(typed)
