"""Alters of tables and views: columns, parameters, locations, names."""

from __future__ import annotations

from typing import Any

from tests.metastore.hive.differential.scenario import Scenario, partition, storage, table, view

_EXTERNAL: dict[str, Any] = {"tableType": "EXTERNAL_TABLE", "parameters": {"EXTERNAL": "TRUE"}}
_CASCADE = {"properties": {"CASCADE": "true"}}
_UNCOUNTED = {"properties": {"DO_NOT_UPDATE_STATS": "true"}}


def _placed(name: str, columns: str = "a int, b string", **parts: Any) -> dict[str, Any]:
    """A storage descriptor with the location of a table, as a client sends it back."""
    return storage(columns, location=f"file:{{warehouse}}/{name}", **parts)


def _without(part: str, name: str = "so.db/new") -> dict[str, Any]:
    """A storage descriptor without one of its parts."""
    placed = _placed(name)
    del placed[part]
    return placed


_TYPES = (
    ("int", "bigint"),
    ("bigint", "int"),
    ("int", "string"),
    ("bigint", "string"),
    ("double", "string"),
    ("date", "string"),
    ("string", "int"),
    ("string", "date"),
    ("int", "double"),
    ("int", "float"),
    ("bigint", "float"),
    ("double", "float"),
    ("float", "double"),
    ("double", "decimal(10,2)"),
    ("int", "decimal(10,0)"),
    ("decimal(5,2)", "decimal(4,1)"),
    ("decimal(5,2)", "decimal(10,2)"),
    ("decimal(5,2)", "double"),
    ("char(3)", "varchar(2)"),
    ("char(3)", "char(5)"),
    ("varchar(5)", "string"),
    ("varchar(5)", "varchar(3)"),
    ("string", "varchar(3)"),
    ("date", "timestamp"),
    ("timestamp", "date"),
    ("boolean", "int"),
    ("boolean", "string"),
    ("array<int>", "array<string>"),
    ("array<int>", "array<bigint>"),
    ("array<int>", "string"),
    ("struct<a:int>", "struct<a:int,b:int>"),
    ("struct<a:int>", "struct<a:bigint>"),
    ("struct<a:int>", "string"),
)
"""The type of a column, and the type that an alter gives it."""


SCENARIOS = (
    Scenario(
        "columns and parameters of a table",
        (
            ("create_database", {"name": "ac"}),
            ("create_table", table("ac", "t", parameters={"k": "v"})),
            (
                "alter_table",
                "ac",
                "t",
                table("ac", "t", sd=_placed("ac.db/t", "a int, b string, c date")),
            ),
            ("get_table", "ac", "t"),
            (
                "alter_table",
                "ac",
                "t",
                table("ac", "t", sd=_placed("ac.db/t", "a bigint, b string")),
            ),
            ("get_table", "ac", "t"),
            ("alter_table", "ac", "t", table("ac", "t", sd=_placed("ac.db/t", "a int, b string"))),
            ("alter_table", "ac", "t", table("ac", "t", sd=_placed("ac.db/t", "a bigint, b int"))),
            (
                "alter_table",
                "ac",
                "t",
                table("ac", "t", sd=_placed("ac.db/t", "x bigint, y string")),
            ),
            ("get_table", "ac", "t"),
            (
                "alter_table",
                "ac",
                "t",
                table("ac", "t", sd=_placed("ac.db/t", "y string, x bigint")),
            ),
            ("alter_table", "ac", "t", table("ac", "t", sd=_placed("ac.db/t", "y string"))),
            ("get_fields", "ac", "t"),
            ("alter_table", "ac", "t", table("ac", "t", sd=_placed("ac.db/t", "y string, y int"))),
            ("alter_table", "ac", "t", table("ac", "t", sd=_placed("ac.db/t", "y nosuch"))),
            ("alter_table", "ac", "t", table("ac", "t", sd=_placed("ac.db/t", ""))),
            ("get_fields", "ac", "t"),
            (
                "alter_table",
                "AC",
                "T",
                table("AC", "T", sd=_placed("ac.db/t"), owner="bob", parameters={"comment": "x"}),
            ),
            ("get_table", "ac", "t"),
            ("alter_table", "ac", "t", table("ac", "t", sd=_placed("ac.db/t"), owner=None)),
            ("get_table", "ac", "t"),
            ("alter_table", "ac", "t", table("ac", "t", sd=_placed("ac.db/t"), parameters=None)),
            ("get_table", "ac", "t"),
            ("alter_table", "ac", "t", table("ac", "t", sd=None)),
            ("alter_table", "ac", "t", None),
            ("alter_table", "ac", None, table("ac", "t")),
            ("alter_table", None, "t", table("ac", "t")),
            ("alter_table", "ac", "none", table("ac", "none")),
            ("alter_table", "no_such", "t", table("no_such", "t")),
            ("alter_table", "ac", "t", table("ac", "t", keys="p int", sd=_placed("ac.db/t"))),
            (
                "alter_table",
                "ac",
                "t",
                table(
                    "ac",
                    "t",
                    sd=_placed(
                        "ac.db/t",
                        inputFormat="in2",
                        numBuckets=3,
                        bucketCols=["b"],
                        serdeInfo={"name": "n", "serializationLib": "s2", "parameters": {"x": "y"}},
                    ),
                    retention=9,
                    lastAccessTime=8,
                ),
            ),
            ("get_table", "ac", "t"),
            (
                "alter_table_with_environment_context",
                "ac",
                "t",
                table(
                    "ac", "t", sd=_placed("ac.db/t"), parameters={"numRows": "7", "totalSize": "9"}
                ),
                _UNCOUNTED,
            ),
            ("get_table", "ac", "t"),
            ("file", "ac.db/t/rows", 21),
            (
                "alter_table_with_environment_context",
                "ac",
                "t",
                table("ac", "t", sd=_placed("ac.db/t")),
                None,
            ),
            ("get_table", "ac", "t"),
        ),
    ),
    Scenario(
        "changes of types",
        (
            ("create_database", {"name": "at"}),
            *(
                call
                for number, (before, after) in enumerate(_TYPES)
                for call in (
                    ("create_table", table("at", f"t{number}", f"c {before}")),
                    (
                        "alter_table",
                        "at",
                        f"t{number}",
                        table("at", f"t{number}", sd=_placed(f"at.db/t{number}", f"c {after}")),
                    ),
                )
            ),
            ("get_fields", "at", "t0"),
        ),
    ),
    Scenario(
        "alters of a partitioned table",
        (
            ("create_database", {"name": "ap"}),
            ("create_table", table("ap", "t", keys="p int, q string")),
            ("add_partition", partition("ap", "t", "1", "x")),
            ("add_partition", partition("ap", "t", "2", "y", columns="a int, b string, own int")),
            (
                "alter_table",
                "ap",
                "t",
                table(
                    "ap",
                    "t",
                    sd=_placed("ap.db/t", "a int, b string, c date"),
                    keys="p int, q string",
                ),
            ),
            ("get_partition", "ap", "t", ["1", "x"]),
            ("get_partition", "ap", "t", ["2", "y"]),
            (
                "alter_table_with_environment_context",
                "ap",
                "t",
                table(
                    "ap",
                    "t",
                    sd=_placed("ap.db/t", "a int, b string, c date, d int"),
                    keys="p int, q string",
                ),
                _CASCADE,
            ),
            ("get_partition", "ap", "t", ["1", "x"]),
            ("get_partition", "ap", "t", ["2", "y"]),
            (
                "alter_table_with_cascade",
                "ap",
                "t",
                table(
                    "ap", "t", sd=_placed("ap.db/t", "a bigint, b string"), keys="p int, q string"
                ),
                True,
            ),
            ("get_partition", "ap", "t", ["1", "x"]),
            ("get_table", "ap", "t"),
            (
                "alter_table",
                "ap",
                "t",
                table("ap", "t", sd=_placed("ap.db/t", "a bigint, b string"), keys="p int"),
            ),
            (
                "alter_table",
                "ap",
                "t",
                table(
                    "ap", "t", sd=_placed("ap.db/t", "a bigint, b string"), keys="p int, r string"
                ),
            ),
            (
                "alter_table",
                "ap",
                "t",
                table(
                    "ap", "t", sd=_placed("ap.db/t", "a bigint, b string"), keys="q string, p int"
                ),
            ),
            (
                "alter_table",
                "ap",
                "t",
                table(
                    "ap",
                    "t",
                    sd=_placed("ap.db/t", "a bigint, b string"),
                    keys="p string, q string",
                ),
            ),
            ("get_table", "ap", "t"),
            (
                "alter_table",
                "ap",
                "t",
                table("ap", "t", sd=_placed("ap.db/t", "a bigint, b string")),
            ),
            (
                "alter_table",
                "ap",
                "t",
                table("ap", "t", sd=_placed("elsewhere/ap"), keys="p int, q string"),
            ),
            ("get_table", "ap", "t"),
            ("get_partition", "ap", "t", ["1", "x"]),
        ),
    ),
    Scenario(
        "renames of tables",
        (
            ("create_database", {"name": "ar"}),
            ("create_database", {"name": "ar2"}),
            ("create_table", table("ar", "t")),
            ("file", "ar.db/t/rows", 10),
            ("alter_table", "ar", "t", table("ar", "New_T", sd=_placed("ar.db/t"))),
            ("get_table", "ar", "new_t"),
            ("get_table", "ar", "t"),
            ("place", "ar.db/new_t/rows"),
            ("place", "ar.db/t"),
            ("alter_table", "ar", "new_t", table("ar2", "moved", sd=_placed("ar.db/new_t"))),
            ("get_table", "ar2", "moved"),
            ("place", "ar2.db/moved/rows"),
            ("create_table", table("ar2", "other")),
            ("alter_table", "ar2", "moved", table("ar2", "other", sd=_placed("ar2.db/moved"))),
            ("alter_table", "ar2", "moved", table("ar2", "MOVED", sd=_placed("ar2.db/moved"))),
            ("alter_table", "ar2", "moved", table("no_such", "t", sd=_placed("ar2.db/moved"))),
            ("alter_table", "ar2", "moved", table("ar2", "a-b", sd=_placed("ar2.db/moved"))),
            ("alter_table", "ar2", "moved", table("ar2", "", sd=_placed("ar2.db/moved"))),
            ("alter_table", "ar2", "moved", table("ar2", "x", tableName=None)),
            ("alter_table", "ar2", "none", table("ar2", "none2")),
            ("get_all_tables", "ar2"),
            ("create_table", table("ar", "ext", **_EXTERNAL)),
            ("file", "ar.db/ext/rows", 10),
            ("alter_table", "ar", "ext", table("ar", "ext2", sd=_placed("ar.db/ext"), **_EXTERNAL)),
            ("get_table", "ar", "ext2"),
            ("place", "ar.db/ext/rows"),
            ("create_table", table("ar", "parted", keys="p int")),
            ("add_partition", partition("ar", "parted", "1")),
            ("add_partition", partition("ar", "parted", "a/b")),
            (
                "add_partition",
                partition("ar", "parted", "9", sd=_placed("elsewhere/nine")),
            ),
            ("file", "ar.db/parted/p=1/rows", 10),
            (
                "alter_table",
                "ar",
                "parted",
                table("ar", "reparted", sd=_placed("ar.db/parted"), keys="p int"),
            ),
            ("get_partitions", "ar", "reparted", -1),
            ("get_partition_names", "ar", "reparted", -1),
            ("place", "ar.db/reparted/p=1/rows"),
            ("place", "ar.db/reparted/p=a%2Fb"),
            ("place", "ar.db/parted"),
            (
                "alter_table",
                "ar",
                "reparted",
                table("ar", "again", sd=_placed("elsewhere/again"), keys="p int"),
            ),
            ("get_table", "ar", "again"),
            ("get_table", "ar", "reparted"),
            ("create_table", view("ar", "v")),
            ("alter_table", "ar", "v", view("ar", "v_new")),
            ("get_table", "ar", "v_new"),
            ("get_all_tables", "ar"),
        ),
    ),
    Scenario(
        "places and types of tables that are altered",
        (
            ("create_database", {"name": "al"}),
            ("create_table", table("al", "t")),
            ("alter_table", "al", "t", table("al", "t", sd=_placed("elsewhere/al"))),
            ("get_table", "al", "t"),
            ("place", "elsewhere/al"),
            ("create_table", table("al", "to_ext")),
            (
                "alter_table",
                "al",
                "to_ext",
                table("al", "to_ext", sd=_placed("al.db/to_ext"), **_EXTERNAL),
            ),
            ("get_table", "al", "to_ext"),
            ("alter_table", "al", "to_ext", table("al", "to_ext", sd=_placed("al.db/to_ext"))),
            ("get_table", "al", "to_ext"),
            ("create_table", view("al", "v")),
            (
                "alter_table",
                "al",
                "v",
                view(
                    "al",
                    "v",
                    sd=storage("c string"),
                    viewOriginalText="select 2",
                    viewExpandedText="select 3",
                    parameters={"comment": "z"},
                ),
            ),
            ("get_table", "al", "v"),
            ("create_table", table("al", "become")),
            ("alter_table", "al", "become", view("al", "become")),
            ("alter_table", "al", "v", table("al", "v")),
        ),
    ),
    Scenario(
        "alters that compare a parameter",
        (
            ("create_database", {"name": "ai"}),
            (
                "create_table",
                table(
                    "ai",
                    "t",
                    parameters={"metadata_location": "m0"},
                    tableType="EXTERNAL_TABLE",
                ),
            ),
            *(
                (
                    "alter_table_with_environment_context",
                    "ai",
                    "t",
                    table("ai", "t", sd=_placed("ai.db/t"), parameters=parameters),
                    {
                        "properties": {
                            "expected_parameter_key": "metadata_location",
                            "expected_parameter_value": expected,
                        }
                    },
                )
                for expected, parameters in (
                    ("m0", {"metadata_location": "m1", "previous_metadata_location": "m0"}),
                    ("m0", {"metadata_location": "m2", "previous_metadata_location": "m0"}),
                    ("m1", {"x": "y"}),
                    ("m1", {"metadata_location": "m2", "previous_metadata_location": "m1"}),
                )
            ),
            ("get_table", "ai", "t"),
        ),
    ),
    Scenario(
        "alters that leave parts out",
        (
            ("create_database", {"name": "ao"}),
            ("create_table", table("ao", "t")),
            ("alter_table", "ao", "t", table("ao", "t")),
            ("alter_table", "ao", "t", table("ao", "t", dbName=None)),
            ("alter_table", "ao", "t", table("ao", "t2", "a int, b string, c int")),
            ("create_table", table("ao", "p", keys="p int")),
            ("add_partition", partition("ao", "p", "1")),
            ("add_partition", partition("ao", "p", "2", sd=None)),
            ("alter_partition", "ao", "p", partition("ao", "p", "1", columns="z int")),
            ("alter_partition", "ao", "p", partition("ao", "p", "1", sd=None)),
            ("rename_partition", "ao", "p", ["1"], partition("ao", "p", "3")),
            ("add_partition", partition("ao", "p", "4")),
            (
                "alter_partition",
                "ao",
                "p",
                partition("ao", "p", "4", sd=storage(location="file:{warehouse}/ao.db/p/p=4")),
            ),
            ("get_partition", "ao", "p", ["4"]),
        ),
    ),
    Scenario(
        "storage descriptors that leave parts out",
        (
            ("create_database", {"name": "so"}),
            ("create_table", table("so", "none", sd=_without("cols"))),
            ("create_table", table("so", "t")),
            ("alter_table", "so", "t", table("so", "t", sd=_without("cols", "so.db/t"))),
            ("alter_table", "so", "t", table("so", "t", sd=_without("serdeInfo", "so.db/t"))),
            ("get_table", "so", "t"),
            ("create_table", table("so", "p", keys="p int")),
            ("add_partition", partition("so", "p", "1", sd=_without("serdeInfo"))),
            ("add_partition", partition("so", "p", "1", sd=_without("cols"))),
            ("get_partition", "so", "p", ["1"]),
            ("add_partition", partition("so", "p", "2", columns="a int")),
            *(
                ("alter_partition", "so", "p", partition("so", "p", "2", sd=sd, createTime=1))
                for sd in (_without("serdeInfo", "so.db/p/p=2"), _without("cols", "so.db/p/p=2"))
            ),
            ("get_partition", "so", "p", ["2"]),
        ),
    ),
    Scenario(
        "locations with dots",
        (
            ("create_database", {"name": "pdot"}),
            ("create_table", table("pdot", "t", keys="p int")),
            *(
                (
                    "add_partition",
                    partition("pdot", "t", f"{number}", sd=_placed(f"pdot.db/{place}")),
                )
                for number, place in enumerate(("t/../x", "t/./y", "t/sub/../z", "t/...", "t/.w"))
            ),
            (
                "alter_table",
                "pdot",
                "t",
                table("pdot", "t2", sd=_placed("pdot.db/t/../t"), keys="p int"),
            ),
            ("get_table", "pdot", "t2"),
            ("get_partitions", "pdot", "t2", -1),
        ),
    ),
)
