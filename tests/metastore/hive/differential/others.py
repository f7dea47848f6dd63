"""Functions, settings, names of partitions, statistics, constraints, roles."""

from __future__ import annotations

from typing import Any

from tests.metastore.hive.differential.scenario import Scenario, partition, table


def _function(schema: str | None, name: str | None, **parts: Any) -> dict[str, Any]:
    struct = {
        "functionName": name,
        "dbName": schema,
        "className": "x.Y",
        "ownerName": "ann",
        "ownerType": 1,
        "functionType": 1,
        "resourceUris": [],
        **parts,
    }
    return {key: part for key, part in struct.items() if part is not None}


SCENARIOS = (
    Scenario(
        "functions",
        (
            ("create_database", {"name": "fu"}),
            ("create_database", {"name": "fu2"}),
            (
                "create_function",
                _function(
                    "fu",
                    "plus",
                    resourceUris=[
                        {"resourceType": 1, "uri": "file:/x.jar"},
                        {"resourceType": 2, "uri": "file:/y"},
                    ],
                ),
            ),
            ("get_function", "fu", "plus"),
            ("get_function", "FU", "PLUS"),
            ("create_function", _function("fu", "plus")),
            ("create_function", _function("no_such", "f")),
            ("create_function", _function("fu", "a-b")),
            ("create_function", _function("fu", "")),
            ("create_function", _function("fu", None)),
            ("create_function", _function(None, "f")),
            ("create_function", _function("fu", "no_class", className=None)),
            ("create_function", None),
            ("create_function", _function("fu", "minus", ownerType=2, ownerName="r")),
            ("create_function", _function("fu", "no_uris", resourceUris=None)),
            ("get_function", "fu", "no_uris"),
            ("get_functions", "fu", "*"),
            ("get_functions", "fu", "PL*"),
            ("get_functions", "fu", "plus|minus"),
            ("get_functions", "fu", ""),
            ("get_functions", "fu", None),
            ("get_functions", "no_such", "*"),
            ("get_function", "fu", "none"),
            ("get_function", "no_such", "plus"),
            ("get_function", "fu", None),
            (
                "alter_function",
                "fu",
                "plus",
                _function("fu", "plus", className="z.Z", ownerName="bob"),
            ),
            ("get_function", "fu", "plus"),
            ("alter_function", "fu", "plus", _function("fu", "add", className="z.Z")),
            ("get_functions", "fu", "*"),
            ("alter_function", "fu", "none", _function("fu", "none")),
            ("drop_function", "fu", "NO_URIS"),
            ("drop_function", "fu", "no_uris"),
            ("drop_function", "no_such", "f"),
            ("drop_function", "fu", None),
            ("get_functions", "fu", "*"),
        ),
    ),
    Scenario(
        "settings and names of partitions",
        (
            ("set_ugi", "ann", ["g1", "g2"]),
            ("get_config_value", "hive.no.such.setting", "x"),
            ("get_config_value", "hive.metastore.uris", "x"),
            ("get_config_value", None, "x"),
            ("get_config_value", "javax.jdo.option.ConnectionPassword", "x"),
            ("get_config_value", "no.prefix", "x"),
            ("get_config_value", "hdfs.x", "y"),
            ("get_config_value", "mapred.x", "y"),
            ("getMetaConf", "hive.metastore.try.direct.sql"),
            ("getMetaConf", "no.such"),
            ("setMetaConf", "no.such", "x"),
            ("partition_name_to_vals", "a=1/b=x%2Fy"),
            ("partition_name_to_vals", ""),
            ("partition_name_to_vals", "nonsense"),
            ("partition_name_to_vals", None),
            ("partition_name_to_vals", "a="),
            ("partition_name_to_spec", "a=1/B=x%2Fy"),
            ("partition_name_to_spec", ""),
            ("partition_name_to_spec", "a=1/a=2"),
            ("partition_name_to_spec", "a=b=c"),
            ("partition_name_to_spec", None),
            ("partition_name_has_valid_characters", ["a", "b"], False),
            ("partition_name_has_valid_characters", ["a,b", "é"], False),
            ("partition_name_has_valid_characters", ["a,b", "é"], True),
            ("getName",),
            ("getVersion",),
            ("getStatus",),
            ("getStatusDetails",),
            ("get_role_names",),
            ("list_roles", "ann", 1),
            ("list_privileges", "ann", 1, {"objectType": 2, "dbName": "default"}),
            ("flushCache",),
        ),
    ),
    Scenario(
        "statistics and constraints of columns",
        (
            ("create_database", {"name": "st"}),
            ("create_table", table("st", "t")),
            ("create_table", table("st", "parted", keys="p int")),
            ("add_partition", partition("st", "parted", "1")),
            ("get_table_statistics_req", {"dbName": "st", "tblName": "t", "colNames": ["a"]}),
            ("get_table_statistics_req", {"dbName": "st", "tblName": "none", "colNames": ["a"]}),
            ("get_table_statistics_req", {"dbName": "st", "tblName": "t", "colNames": ["none"]}),
            (
                "get_partitions_statistics_req",
                {"dbName": "st", "tblName": "parted", "colNames": ["a"], "partNames": ["p=1"]},
            ),
            (
                "get_aggr_stats_for",
                {"dbName": "st", "tblName": "parted", "colNames": ["a"], "partNames": ["p=1"]},
            ),
            (
                "get_aggr_stats_for",
                {"dbName": "st", "tblName": "parted", "colNames": ["a"], "partNames": []},
            ),
            ("get_table_column_statistics", "st", "t", "a"),
            ("get_table_column_statistics", "st", "t", "none"),
            ("get_table_column_statistics", "st", "none", "a"),
            ("get_table_column_statistics", "no_such", "none", "a"),
            ("get_partition_column_statistics", "st", "parted", "p=1", "a"),
            ("get_primary_keys", {"db_name": "st", "tbl_name": "t"}),
            ("get_primary_keys", {"db_name": "st", "tbl_name": "none"}),
            ("get_foreign_keys", {"foreign_db_name": "st", "foreign_tbl_name": "t"}),
        ),
    ),
)
