"""Partitions as specs, delegation tokens, and unusual definitions of tables."""

from __future__ import annotations

from typing import Any

from tests.metastore.hive.differential.scenario import Scenario, partition, storage, table

_PARAMETER, _OWNER = "hive_filter_field_params__", "hive_filter_field_owner__"


def _spec(schema: str, name: str, **form: Any) -> dict[str, Any]:
    root = f"file:{{warehouse}}/{schema}.db/{name}"
    return {"dbName": schema, "tableName": name, "rootPath": root, **form}


def _shared(schema: str, name: str, *values: str) -> dict[str, Any]:
    return _spec(
        schema,
        name,
        sharedSDPartitionSpec={
            "partitions": [
                {
                    "values": [value],
                    "createTime": 7,
                    "relativePath": f"/p={value}",
                    "parameters": {"k": value, "transient_lastDdlTime": "1"},
                }
                for value in values
            ],
            "sd": storage(location=f"file:{{warehouse}}/{schema}.db/{name}"),
        },
    )


def _whole(schema: str, name: str, *values: str) -> dict[str, Any]:
    listed = [partition(schema, name, value) for value in values]
    return _spec(schema, name, partitionList={"partitions": listed})


SCENARIOS = (
    Scenario(
        "specs of partitions",
        (
            ("create_database", {"name": "sx"}),
            ("create_table", table("sx", "t", keys="p int")),
            ("create_table", table("sx", "other", keys="p int")),
            ("add_partitions_pspec", [_whole("sx", "t", "1", "2")]),
            ("add_partitions_pspec", [_shared("sx", "t", "3")]),
            ("add_partitions_pspec", [_shared("sx", "t", "4"), _whole("sx", "t", "5")]),
            ("add_partitions_pspec", [_whole("sx", "t", "1")]),
            ("add_partitions_pspec", [_whole("sx", "no_such", "1")]),
            ("add_partitions_pspec", []),
            ("get_partition_names", "sx", "t", -1),
            ("get_partition", "sx", "t", ["3"]),
            ("get_partitions_pspec", "sx", "t", -1),
            ("get_partitions_pspec", "SX", "T", 2),
            ("get_partitions_pspec", "sx", "other", -1),
            ("get_partitions_pspec", "sx", "no_such", -1),
            ("get_part_specs_by_filter", "sx", "t", "p = 1", -1),
            ("get_part_specs_by_filter", "sx", "t", "nosuch = 1", -1),
            ("get_delegation_token", "ann", "ann"),
            ("renew_delegation_token", "x"),
            ("cancel_delegation_token", "x"),
        ),
    ),
    Scenario(
        "parts of keys and of parameters",
        (
            ("create_database", {"name": "kp"}),
            ("create_table", table("kp", "t", keys="p int, q string, r string")),
            (
                "add_partitions",
                [partition("kp", "t", *values) for values in ("1xu", ("1", "xy", "u"))],
            ),
            ("add_partitions", [partition("kp", "t", "10", "x", "v")]),
            *(
                ("get_partition_values", {"dbName": "kp", "tblName": "t", **request})
                for request in (
                    {"partitionKeys": [{"name": "q"}], "filter": 'r = "u"'},
                    {"partitionKeys": [{"name": "r"}], "filter": ""},
                    {"partitionKeys": [{"name": "r"}, {"name": "p"}], "filter": "p = 1"},
                    {"partitionKeys": [{"name": "r"}, {"name": "p"}]},
                )
            ),
            *(
                call
                for values in (["1"], ["1", "x"], ["", "x"], ["1", ""], ["", "x", ""], [])
                for call in (
                    ("get_partition_names_ps", "kp", "t", values, -1),
                    ("values", "get_partitions_ps", "kp", "t", values, -1),
                )
            ),
            ("create_table", table("kp", "o1", parameters={"k": "x"})),
            ("create_table", table("kp", "o2", parameters={"l": "x"}, owner="bob")),
            ("create_table", table("kp", "o3", parameters={"k": "y", "l": "z"})),
            *(
                ("get_table_names_by_filter", "kp", text, -1)
                for text in (
                    f'{_PARAMETER}k = "x" or {_PARAMETER}l = "x"',
                    f'{_PARAMETER}k = "x" or {_OWNER} = "bob"',
                    f'{_PARAMETER}k = "y" and {_PARAMETER}l = "z"',
                    f'{_PARAMETER}k != "x"',
                )
            ),
        ),
    ),
    Scenario(
        "unusual definitions",
        (
            ("create_database", {"name": "ud"}),
            ("create_table", table("ud", "sub", sd=storage(storedAsSubDirectories=True))),
            ("get_table", "ud", "sub"),
            ("create_table", table("ud", "quoted", "a struct<`a-b`:int>")),
            ("get_fields", "ud", "quoted"),
            ("create_table", table("ud", "long", f"{'c' * 767} int")),
            ("get_fields", "ud", "long"),
            ("create_table", table("ud", "longer", f"{'c' * 768} int")),
            ("create_table", table("ud", "keyed", keys="p bigint")),
            (
                "alter_table",
                "ud",
                "keyed",
                table(
                    "ud", "keyed", sd=storage(location="{warehouse}/ud.db/keyed"), keys="p string"
                ),
            ),
            ("get_table", "ud", "keyed"),
            ("create_table", table("ud", "index", tableType="INDEX_TABLE")),
            ("create_table", table("ud", "kept", tableType="MATERIALIZED_VIEW")),
            (
                "create_table",
                table("ud", "unnamed", sd={**storage(), "cols": [{"name": "", "type": "int"}]}),
            ),
        ),
    ),
)
