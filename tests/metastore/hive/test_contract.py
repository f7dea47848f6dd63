"""The contract of the methods, call by call, as Hive 2.3.10 keeps it for the same client.

Each scenario is a list of calls with their expected results. The calls run in order against one
service, through the client that Apache Thrift generates; each scenario uses its own names.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hive_metastore.ttypes import (
    Database,
    EnvironmentContext,
    FieldSchema,
    GetTableRequest,
    HiveObjectRef,
    NotificationEventRequest,
    PrimaryKeysRequest,
)

from tests.metastore.hive.contract import Throws, check, given
from tests.metastore.hive.hive_node import HiveNode, storage, table

STORES = ("folder", "postgresql")


@pytest.fixture
def served(running: HiveNode) -> HiveNode:
    """One node for all scenarios."""
    return running


def test_the_methods_of_databases_keep_the_contract(served: HiveNode) -> None:
    wh, outer = served.warehouse, served.folder
    catalog = {"catalogName": "hive"}
    shown = {"name": "da", "description": "x", "parameters": {}, "ownerType": 1, **catalog}
    changed = {"description": "y", "parameters": {"q": "1"}, "locationUri": f"file:{outer}/da2"}
    altered = Database("x", "y", "file:/other", {"q": "1"}, ownerName="carl")
    missing = Throws("NoSuchObjectException", "Nope")
    with served.stub() as client:
        check(
            client,
            [
                (lambda c: c.create_database(Database(name="DA", description="x")), None),
                (
                    lambda c: c.create_database(Database(name="da")),
                    Throws("AlreadyExistsException", "Database da already exists"),
                ),
                (
                    lambda c: c.create_database(Database(name="a-b")),
                    Throws("InvalidObjectException", "a-b is not a valid database name"),
                ),
                (lambda c: c.get_database("Da"), {**shown, "locationUri": f"{wh}/da.db"}),
                # What Spark sends if no warehouse is configured.
                (
                    lambda c: c.create_database(
                        Database("sp", None, "file:/home/ann/spark-warehouse/sp.db/", {})
                    ),
                    None,
                ),
                (lambda c: c.get_database("sp").locationUri, f"{wh}/sp.db"),
                (lambda c: c.drop_database("sp", True, False), None),
                (lambda c: c.get_database("Nope"), missing),
                (lambda c: c.get_database("`da@1`"), Throws("NoSuchObjectException", "'", True)),
                (
                    lambda c: c.create_database(
                        Database("da2", None, f"file://{outer}/da2/", {"a": "b"}, None, "bob", 2)
                    ),
                    None,
                ),
                (lambda c: c.alter_database("da2", altered), None),
                (
                    lambda c: c.alter_database(
                        "da2", Database("da2", "y", None, {"q": "1"}, ownerName="")
                    ),
                    None,
                ),
                (
                    lambda c: c.get_database("da2"),
                    {"name": "da2", "ownerName": "carl", "ownerType": 2, **catalog, **changed},
                ),
                (lambda c: c.alter_database("Nope", altered), missing),
                (lambda c: c.get_databases("DA*"), ["da", "da2"]),
                (lambda c: c.get_databases("da|da2"), ["da", "da2"]),
                (lambda c: c.get_databases(""), []),
                (lambda c: {"da", "default"} <= set(c.get_all_databases()), True),
                (lambda c: {"da", "default"} <= set(c.get_databases(None)), True),
                (lambda c: c.drop_database("Nope", True, False), missing),
                (
                    lambda c: c.drop_database("default", True, True),
                    Throws("MetaException", "Can not drop default database"),
                ),
                (lambda c: c.create_table(table("t", schema="da")), None),
                (
                    lambda c: c.drop_database("da", True, False),
                    Throws(
                        "InvalidOperationException",
                        "Database da is not empty. One or more tables exist.",
                    ),
                ),
                (lambda c: c.drop_database("DA", True, True), None),
                (lambda c: c.get_databases("da"), []),
                (lambda c: c.get_database("default").ownerName, "public"),
            ],
        )


def test_the_methods_that_create_and_find_tables_keep_the_contract(served: HiveNode) -> None:
    columns = [FieldSchema("a", "INT", None)]
    no_table = Throws("NoSuchObjectException", "ta.Nope table not found")
    with served.stub() as client:
        given(client, "ta")
        check(
            client,
            [
                (
                    lambda c: c.create_table(table("T1", schema="TA")),
                    Throws("AlreadyExistsException", "Table T1 already exists"),
                ),
                (
                    lambda c: c.create_table(table("t", schema="nodb")),
                    Throws("InvalidObjectException", "nodb"),
                ),
                (
                    lambda c: c.create_table(table("t-1", schema="ta")),
                    Throws("InvalidObjectException", "t-1 is not a valid object name"),
                ),
                (
                    lambda c: c.create_table(table("t2", schema="ta", sd=storage(columns=columns))),
                    Throws("InvalidObjectException", "Invalid column type: INT"),
                ),
                (lambda c: c.create_table(table("t0", schema="ta", sd=storage(columns=[]))), None),
                (lambda c: c.get_table("ta", "t0").sd.cols, []),
                (lambda c: c.get_table("ta", "Nope"), no_table),
                (
                    lambda c: c.get_table("NoDb", "t"),
                    Throws("NoSuchObjectException", "NoDb.t table not found"),
                ),
                (lambda c: c.get_table_req(GetTableRequest("ta", "Nope")), no_table),
                (lambda c: c.get_table_req(GetTableRequest("ta", "T1")).table.tableName, "t1"),
                (lambda c: c.get_tables("ta", "*"), ["parted", "t0", "t1", "v1"]),
                (lambda c: c.get_tables("ta", "T."), ["t0", "t1"]),
                (lambda c: c.get_tables("ta", ""), []),
                (lambda c: c.get_tables("nodb", "*"), []),
                (lambda c: c.get_all_tables("ta"), ["parted", "t0", "t1", "v1"]),
                (lambda c: c.get_tables_by_type("ta", "*", "VIRTUAL_VIEW"), ["v1"]),
                (lambda c: c.get_tables_by_type("ta", "t*", "MANAGED_TABLE"), ["t0", "t1"]),
                (
                    lambda c: c.get_tables_by_type("ta", "*", "X"),
                    Throws("MetaException", "X is not a table type", begins=True),
                ),
                (
                    lambda c: [
                        t.tableName
                        for t in c.get_table_objects_by_name("ta", ["T1", "zz", "t1", "v1"])
                    ],
                    ["t1", "v1"],
                ),
                (
                    lambda c: [(m.tableName, m.tableType) for m in c.get_table_meta("ta", "*", [])],
                    [
                        ["parted", "MANAGED_TABLE"],
                        ["t0", "MANAGED_TABLE"],
                        ["t1", "MANAGED_TABLE"],
                        ["v1", "VIRTUAL_VIEW"],
                    ],
                ),
                (lambda c: [f.name for f in c.get_fields("ta", "parted")], ["a", "b"]),
                (lambda c: [f.name for f in c.get_schema("ta", "parted")], ["a", "b", "p", "q"]),
                (
                    lambda c: c.get_fields("ta", "Nope"),
                    Throws("UnknownTableException", "ta.Nope table not found"),
                ),
                (lambda c: c.get_table("ta", "v1").sd.location, None),
                (lambda c: c.get_table("ta", "v1").viewExpandedText, "select 2"),
            ],
        )


def test_the_methods_that_drop_tables_keep_the_contract(served: HiveNode) -> None:
    warehouse = served.folder / "warehouse" / "tb.db"
    outside = served.folder / "outside"
    external = {"tableType": "EXTERNAL_TABLE", "parameters": {"EXTERNAL": "TRUE"}}
    sd = storage(location=f"file:{outside}")
    with served.stub() as client:
        given(client, "tb")
        check(
            client,
            [
                (
                    lambda c: c.drop_table("tb", "Zz", True),
                    Throws("NoSuchObjectException", "tb.Zz table not found"),
                ),
                (
                    lambda c: c.drop_table("nodb", "Zz", True),
                    Throws("NoSuchObjectException", "nodb.Zz table not found"),
                ),
                (lambda c: c.create_table(table("e", schema="tb", sd=sd, **external)), None),
                (lambda c: outside.is_dir(), False),  # Hive creates it; a node only below its roots
                (lambda c: outside.mkdir(), None),
                (lambda c: c.drop_table("tb", "e", True), None),
                (lambda c: outside.is_dir(), True),
                (lambda c: (warehouse / "t1").is_dir(), True),
                (lambda c: c.drop_table("tb", "T1", True), None),
                (lambda c: (warehouse / "t1").is_dir(), False),
                (lambda c: c.drop_table("tb", "parted", False), None),
                (lambda c: (warehouse / "parted").is_dir(), True),
                (lambda c: c.drop_table("tb", "v1", True), None),
                (lambda c: c.get_all_tables("tb"), []),
            ],
        )


def changed(client: Any, name: str, change: Callable[[Any], object], *, schema: str) -> Any:
    """The present table, with a change."""
    sent = client.get_table(schema, name)
    change(sent)
    return sent


def test_the_methods_that_alter_tables_keep_the_contract(served: HiveNode) -> None:
    def alter(
        change: Callable[[Any], object], name: str = "t1", **properties: str
    ) -> Callable[[Any], Any]:
        def call(client: Any) -> None:
            new = changed(client, name, change, schema="tc")
            context = EnvironmentContext(properties) if properties else None
            client.alter_table_with_environment_context("tc", name, new, context)

        return call

    def column(number: int, *field: str | None) -> Callable[[Any], object]:
        return lambda t: t.sd.cols.__setitem__(number, FieldSchema(*field))

    expecting = {"expected_parameter_key": "x", "expected_parameter_value": "m0"}
    modified = "The table has been modified. The parameter value for key 'x' is 'y'. "
    incompatible = (
        "The following columns have types incompatible with the existing columns in their "
        "respective positions :\na"
    )
    outer = served.folder
    folder = outer / "warehouse" / "tc.db"
    with served.stub() as client:
        given(client, "tc")
        created = client.get_table("tc", "t1").createTime
        check(
            client,
            [
                (
                    lambda c: c.alter_table("tc", "ZZ", c.get_table("tc", "t1")),
                    Throws("InvalidOperationException", "tc.ZZ table not found"),
                ),
                (
                    alter(lambda t: setattr(t, "tableName", "parted")),
                    Throws("InvalidOperationException", "new table tc.parted already exists"),
                ),
                (
                    alter(lambda t: setattr(t, "dbName", "nodb")),
                    Throws("InvalidOperationException", "Unable to change", begins=True),
                ),
                (
                    alter(lambda t: setattr(t, "tableName", "a-b")),
                    Throws("InvalidOperationException", "a-b is not a valid object name"),
                ),
                (
                    alter(
                        lambda t: setattr(t, "partitionKeys", [FieldSchema("z", "int", None)]),
                        "parted",
                    ),
                    Throws("InvalidOperationException", "partition keys can not be changed."),
                ),
                (
                    alter(column(0, "a", "boolean", "c1")),
                    Throws("InvalidOperationException", incompatible),
                ),
                (
                    alter(column(0, "a", "INT", "c1")),
                    Throws("InvalidOperationException", "Invalid column type: INT"),
                ),
                (alter(column(0, "a", "bigint", "c1")), None),
                (lambda c: c.get_table("tc", "t1").sd.cols[0].type, "bigint"),
                (
                    alter(lambda t: None, **expecting),
                    Throws("MetaException", f"{modified}The expected was value was 'm0'"),
                ),
                (
                    alter(
                        lambda t: t.parameters.update(x="z"),
                        **(expecting | {"expected_parameter_value": "y"}),
                    ),
                    None,
                ),
                (lambda c: c.get_table("tc", "t1").parameters["x"], "z"),
                (alter(lambda t: vars(t).update(owner="bob", createTime=5)), None),
                (
                    lambda c: [
                        getattr(c.get_table("tc", "t1"), n) for n in ("owner", "createTime")
                    ],
                    ["bob", created],
                ),
                (alter(lambda t: setattr(t, "tableName", "T9")), None),
                (
                    lambda c: c.get_table("tc", "t9").sd.location,
                    f"{served.warehouse}/tc.db/t9",
                ),
                (lambda c: [(folder / n).is_dir() for n in ("t1", "t9")], [False, True]),
                (
                    alter(lambda t: vars(t).update(tableName="v2", owner="eve"), "v1"),
                    None,
                ),
                (lambda c: c.get_table("tc", "v2").owner, "eve"),
                (alter(lambda t: t.parameters.update(EXTERNAL="TRUE"), "t9"), None),
                (lambda c: c.get_table("tc", "t9").tableType, "EXTERNAL_TABLE"),
                (alter(lambda t: setattr(t.sd, "location", f"{outer}/else/"), "t9"), None),
                (lambda c: c.get_table("tc", "t9").sd.location, f"file:{outer}/else"),
                (alter(lambda t: setattr(t.sd, "location", f"{outer}/there"), "parted"), None),
                (lambda c: c.get_table("tc", "parted").sd.location, f"file:{outer}/there"),
            ],
        )


def test_the_methods_that_need_no_table_keep_the_contract(served: HiveNode) -> None:
    forbidden = "For security reasons, the config key foo.x cannot be accessed"
    with served.stub() as client:
        check(
            client,
            [
                (lambda c: c.set_ugi("ann", ["g"]), ["g"]),
                (lambda c: c.get_functions("d1", "*"), []),
                (
                    lambda c: c.get_function("D1", "f1"),
                    Throws("NoSuchObjectException", "Function D1.f1 does not exist"),
                ),
                (lambda c: c.get_all_functions(), {"functions": []}),
                (lambda c: c.get_config_value("hive.exec.x", "dd"), "dd"),
                (lambda c: c.get_config_value(None, "dd"), "dd"),
                (
                    lambda c: c.get_config_value("foo.x", "dd"),
                    Throws("ConfigValSecurityException", forbidden),
                ),
                (lambda c: c.getMetaConf("hive.metastore.try.direct.sql"), "true"),
                (lambda c: c.setMetaConf("hive.metastore.try.direct.sql", "false"), None),
                (lambda c: c.getMetaConf("hive.metastore.try.direct.sql"), "true"),
                (
                    lambda c: c.setMetaConf("hive.metastore.try.direct.sql", "no"),
                    Throws(
                        "MetaException",
                        "Invalid configuration value no for key hive.metastore.try.direct.sql",
                    ),
                ),
                (
                    lambda c: c.setMetaConf("hive.x", "true"),
                    Throws("MetaException", "Invalid configuration key hive.x"),
                ),
                (lambda c: c.get_role_names(), ["admin", "public"]),
                (lambda c: c.list_roles("ann", 1)[0].roleName, "public"),
                (lambda c: c.list_privileges("ann", 1, HiveObjectRef(objectType=1)), []),
                (
                    lambda c: c.get_privilege_set(HiveObjectRef(objectType=1), "ann", []),
                    {"userPrivileges": {"ann": []}, "rolePrivileges": {"public": []}},
                ),
                (lambda c: c.get_primary_keys(PrimaryKeysRequest("d", "t")), {"primaryKeys": []}),
                (lambda c: c.partition_name_to_vals("a=1/b=x%2Fy"), ["1", "x/y"]),
                (lambda c: c.partition_name_to_spec("a=1/b=x%2Fy"), {"a": "1", "b": "x/y"}),
                (lambda c: c.getName(), "new db based metaserver"),
                (lambda c: c.getStatus(), 2),
                (
                    lambda c: c.get_next_notification(NotificationEventRequest(lastEvent=10**9)),
                    {"events": []},
                ),
                (
                    lambda c: c.get_type_all("x"),
                    Throws(
                        "TApplicationException",
                        "Invalid method name: 'get_type_all'",
                    ),
                ),
                (lambda c: c.getStatus(), 2),
            ],
        )
