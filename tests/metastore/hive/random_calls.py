"""Random calls on tables, partitions, statistics and functions, which two metastores answer alike.

Calls that both metastores refuse are among them. Left out is what `differential.differences` lists:
columns that are dropped or reordered, alters without a location or without CASCADE, statistics that
are merged or whose table or partition is renamed, and filters that Hive cannot evaluate.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from tests.metastore.hive.differential.scenario import (
    Call,
    Scenario,
    fields,
    partition,
    storage,
    table,
)
from tests.metastore.hive.differential.statistics import numbers, statistics, texts

COLUMNS = "a int, b string"
ADDED = ("c double", "d date", "e decimal(9,2)", "f array<int>", "g struct<x:int,y:string>")
KEYS = ("p string", "p string, q string", "p string, q int", "p int")
VALUES = {
    "string": ("x", "y", "a b", "a/b", "a=b", "10%", "ü", "1"),
    "int": ("1", "2", "10", "-3"),
}
PATTERNS = ("*", "t*", "T|u", "*s|v", "x", "")
NAMES = ("t", "u", "v")
ANALYZED = "s"
"""A table with the partitions k=1 and k=2. All statistics are of it, and it is not renamed."""
WEIGHTS = {
    "create": 1,
    "drop": 1,
    "alter": 2,
    "rename": 1,
    "list": 6,
    "add_partitions": 8,
    "alter_partition": 3,
    "rename_partition": 2,
    "drop_partition": 3,
    "read_partitions": 5,
    "filter": 5,
    "analyze": 5,
    "forget": 1,
    "read_statistics": 4,
    "function": 3,
}


@dataclass
class Table:
    """A table, if the calls so far did what they say: columns and keys, as `fields` reads them."""

    columns: str
    keys: str


class RandomCalls:
    """The calls of one ``seed``, in a schema of their own."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._choice = self._random.choice
        self._schema = f"random{seed}"
        self._tables: dict[str, Table] = {}

    def scenario(self, count: int) -> Scenario:
        """``count`` random calls, then all tables and partitions."""
        calls: list[Call] = [
            ("create_database", {"name": self._schema}),
            ("create_table", table(self._schema, ANALYZED, COLUMNS, keys="k string")),
            ("add_partitions", [partition(self._schema, ANALYZED, value) for value in "12"]),
        ]
        for step in self._random.choices([*WEIGHTS], [*WEIGHTS.values()], k=count):
            name = self._choice(NAMES)
            calls.append(getattr(self, f"_{step if name in self._tables else 'create'}")(name))
        for name in (*NAMES, ANALYZED):
            calls += [self._of("get_table", name), self._of("get_partitions", name, -1)]
        return Scenario(f"calls in {self._schema}", tuple(calls))

    def _of(self, method: str, *args: Any) -> Call:
        return (method, self._schema, *args)

    def _request(self, method: str, name: str, **parts: Any) -> Call:
        return (method, {"dbName": self._schema, "tblName": name, **parts})

    # -- tables

    def _parameters(self) -> dict[str, str]:
        return dict([self._choice((("k", "v"), ("comment", "said"), ("numRows", "5")))])

    def _storage(self, name: str, folder: str | None) -> dict[str, Any]:
        placed = {"location": f"file:{{warehouse}}/{self._schema}.db/{folder}"} if folder else {}
        return storage(self._tables[name].columns, **placed)

    def _create(self, name: str) -> Call:
        keys = self._choice(KEYS)
        self._tables.setdefault(name, Table(COLUMNS, keys))
        created = table(self._schema, name, COLUMNS, keys=keys, parameters=self._parameters())
        return ("create_table", created)

    def _drop(self, name: str) -> Call:
        del self._tables[name]
        return self._of("drop_table", name, True)

    def _altered(self, name: str, new_name: str) -> dict[str, Any]:
        sd, keys = self._storage(name, name), self._tables[name].keys
        return table(self._schema, new_name, keys=keys, sd=sd, parameters=self._parameters())

    def _alter(self, name: str) -> Call:
        added = self._choice(ADDED)
        if added not in self._tables[name].columns:
            self._tables[name].columns += f", {added}"
        cascade = {"properties": {"CASCADE": "true"}}
        altered = self._altered(name, name)
        return self._of("alter_table_with_environment_context", name, altered, cascade)

    def _rename(self, name: str) -> Call:
        new_name = self._choice(NAMES)
        call = self._of("alter_table", name, self._altered(name, new_name))
        if new_name not in self._tables:
            self._tables[new_name] = self._tables.pop(name)
        return call

    def _list(self, name: str) -> Call:
        pattern = self._choice(PATTERNS)
        condition = 'hive_filter_field_owner__ = "ann" and hive_filter_field_params__k = "v"'
        listed: tuple[Call, ...] = (
            self._of("get_table", name),
            self._of("get_fields", name),
            self._of("get_tables", pattern),
            self._of("get_table_meta", pattern, ["MANAGED_TABLE"]),
            self._of("get_table_objects_by_name", [name, "none", name.upper()]),
            self._of("get_table_names_by_filter", condition, -1),
        )
        return self._choice(listed)

    # -- partitions

    def _keys(self, name: str) -> list[tuple[str, str]]:
        return [(key["name"], key["type"]) for key in fields(self._tables[name].keys)]

    def _values(self, name: str) -> list[str]:
        return [self._choice(VALUES[of_type]) for _, of_type in self._keys(name)]

    def _spelled(self, name: str, values: list[str]) -> str:
        """The name of the partition with these values."""
        texts = ("".join(f"%{ord(c):02X}" if c in "/=%" else c for c in v) for v in values)
        keys = (key for key, _ in self._keys(name))
        return "/".join(map("=".join, zip(keys, texts, strict=True)))

    def _name(self, name: str) -> str:
        return self._spelled(name, self._values(name))

    def _partition(self, name: str, *, placed: bool) -> dict[str, Any]:
        """A partition as an alter sends it, ``placed``, or as a client adds it."""
        values = self._values(name)
        folder = f"{name}/{self._spelled(name, values)}" if placed else None
        sd, parameters = self._storage(name, folder), self._parameters()
        return partition(self._schema, name, *values, createTime=1, sd=sd, parameters=parameters)

    def _add_partitions(self, name: str) -> Call:
        # Hive leaves the folders of several new partitions behind if it refuses one of them.
        sent = [self._partition(name, placed=False) for _ in range(self._choice((1, 2, 3)))]
        parts = [*{tuple(part["values"]): part for part in sent}.values()]
        options = {"ifNotExists": len(parts) > 1, "needResult": False}
        added: tuple[Call, ...] = (
            self._request("add_partitions_req", name, parts=parts, **options),
            self._of("append_partition", name, self._values(name)),
            self._of("append_partition_by_name", name, self._name(name)),
        )
        return self._choice(added)

    def _alter_partition(self, name: str) -> Call:
        return self._of("alter_partitions", name, [self._partition(name, placed=True)])

    def _rename_partition(self, name: str) -> Call:
        renamed = self._partition(name, placed=True)
        return self._of("rename_partition", name, self._values(name), renamed)

    def _drop_partition(self, name: str) -> Call:
        names = {"names": [self._name(name), self._name(name)]}
        options = {"deleteData": True, "ifExists": True, "needResult": False}
        several = self._request("drop_partitions_req", name, parts=names, **options)
        return self._choice((self._of("drop_partition", name, self._values(name), True), several))

    def _read_partitions(self, name: str) -> Call:
        pattern = [self._choice((value, "")) for value in self._values(name)]
        read: tuple[Call, ...] = (
            self._of("get_partition_names", name, -1),
            self._of("get_partitions", name, self._choice((-1, 0, 1))),
            self._of("get_partition", name, self._values(name)),
            self._of("get_partition_by_name", name, self._name(name)),
            self._of("get_partitions_by_names", name, [self._name(name), "p=none"]),
            self._of("get_partition_names_ps", name, pattern, -1),
        )
        return self._choice(read)

    def _filter(self, name: str) -> Call:
        conditions = [self._condition(name), self._condition(name)]
        text = self._choice((" and ", " or ")).join(conditions[: self._choice((1, 2))])
        filtered = ("values", *self._of("get_partitions_by_filter", name, text, -1))
        return self._choice((filtered, self._of("get_num_partitions_by_filter", name, text)))

    def _condition(self, name: str) -> str:
        key, of_type = self._choice(self._keys(name))
        quote = '"' if of_type == "string" else ""
        low, high = (f"{quote}{self._choice(VALUES[of_type])}{quote}" for _ in range(2))
        operator = self._choice(("=", "!=", "<>", "<", "<=", ">", ">="))
        several = f"({key}) in ({low}, {high})", f"({key} between {low} and {high})"
        return self._choice((f"{key} {operator} {low}", f"{low} {operator} {key}", *several))

    # -- statistics

    def _analyze(self, _: str) -> Call:
        count, part = self._choice((1, 7, 40)), self._choice((None, "k=1", "k=2"))
        known = [numbers(lowValue=-count, numNulls=count), texts(maxColLen=count, numDVs=count)]
        kind = "table" if part is None else "partition"
        sent = statistics(self._schema, ANALYZED, *known[: self._choice((1, 2))], part=part)
        return (f"update_{kind}_column_statistics", sent)

    def _forget(self, _: str) -> Call:
        return self._of("delete_table_column_statistics", ANALYZED, self._choice("ab"))

    def _read_statistics(self, _: str) -> Call:
        of_parts = {"colNames": ["b", "a"], "partNames": ["k=1", "k=2"]}
        read: tuple[Call, ...] = (
            self._request("get_table_statistics_req", ANALYZED, colNames=["b", "a"]),
            self._request("get_partitions_statistics_req", ANALYZED, **of_parts),
            self._request("get_aggr_stats_for", ANALYZED, **of_parts),
        )
        return self._choice(read)

    # -- functions

    def _function(self, name: str) -> Call:
        kinds = {"ownerType": 1, "functionType": 1, "resourceUris": []}
        named = {"functionName": name, "dbName": self._schema, "ownerName": "ann"}
        calls: tuple[Call, ...] = (
            ("create_function", {**named, **kinds, "className": "x.Y"}),
            self._of("get_function", name.upper()),
            self._of("drop_function", name),
            self._of("get_functions", self._choice(PATTERNS)),
        )
        return self._choice(calls)
