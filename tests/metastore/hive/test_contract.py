"""The contract of the methods, call by call, as Hive 2.3.10 keeps it towards the same client.

Each scenario is a list of calls with what each gives. The calls run in order against one service,
through the client that Apache Thrift generates; a scenario uses names of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from hive_metastore.ttypes import (
    AddPartitionsRequest,
    Database,
    DropPartitionsRequest,
    EnvironmentContext,
    FieldSchema,
    GetTableRequest,
    HiveObjectRef,
    NotificationEventRequest,
    Partition,
    PrimaryKeysRequest,
    RequestPartsSpec,
)

from tests.metastore.hive.hive_node import HiveNode, outcome, plain, storage, table


@pytest.fixture
def served(running: HiveNode) -> HiveNode:
    """One node for all scenarios."""
    return running


def given(client: Any, name: str) -> None:
    """A schema, and in it the plain table ``t1``, ``parted`` (p int, q string) and a view."""
    client.create_database(Database(name=name))
    client.create_table(table("t1", schema=name, owner="ann", parameters={"x": "y"}))
    keys = [FieldSchema("P", "int", None), FieldSchema("q", "string", None)]
    client.create_table(table("parted", schema=name, partitionKeys=keys))
    view = {"tableType": "VIRTUAL_VIEW", "viewOriginalText": "select 1"}
    client.create_table(table("v1", schema=name, viewExpandedText="select 2", **view))


def partition(schema: str, *values: str, name: str = "parted", location: str | None = None) -> Any:
    return Partition(
        values=list(values),
        dbName=schema,
        tableName=name,
        sd=storage(location=location),
        parameters={"k": "v"},
    )


@dataclass(frozen=True)
class Throws:
    """An exception and its text; ``begins`` if there may be more behind it."""

    name: str
    text: str
    begins: bool = False


Step = tuple[Callable[[Any], Any], object]
PARTITIONED = Throws("MetaException", "Invalid partition key & values; keys [p, q, ], values [1, ]")


def check(client: Any, steps: list[Step]) -> None:
    for number, (call, expected) in enumerate(steps):
        found = plain(outcome(lambda call=call: call(client)))
        if isinstance(expected, Throws):
            name, text = found
            assert name == expected.name, (number, found)
            assert text == expected.text or (expected.begins and text.startswith(expected.text)), (
                number,
                found,
            )
        else:
            assert found == expected, number


def test_databases(served: HiveNode) -> None:
    wh, outer = served.warehouse, served.node.folder
    shown = {"name": "da", "description": "x", "parameters": {}, "ownerType": 1}
    changed = {"parameters": {"q": "1"}, "locationUri": f"file:{outer}/da2"}
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
                    lambda c: c.get_database("da2"),
                    {"name": "da2", "ownerName": "carl", "ownerType": 2, **changed},
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


def test_creating_and_finding_tables(served: HiveNode) -> None:
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
                    Throws("MetaException", "X is not a type of table", begins=True),
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


def test_dropping_tables(served: HiveNode) -> None:
    warehouse = served.node.folder / "warehouse" / "tb.db"
    outside = served.node.folder / "outside"
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
                (lambda c: outside.is_dir(), True),
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
    """The table as it stands, with a change."""
    found = client.get_table(schema, name)
    change(found)
    return found


def test_altering_tables(served: HiveNode) -> None:
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
    outer = served.node.folder
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


def test_adding_and_finding_partitions(served: HiveNode) -> None:
    outer, wh = served.node.folder, f"{served.warehouse}/pa.db/parted"
    other = "Partition does not belong to target table pa.parted"
    absent = "Unable to add partition because table or database do not exist"

    def request(*values: tuple[str, str], **fields: Any) -> Any:
        parts = [partition("pa", *pair) for pair in values]
        return AddPartitionsRequest("pa", "parted", parts, **{"ifNotExists": False, **fields})

    def values(partitions: Any) -> list[list[str]]:
        return [one.values for one in partitions]

    with served.stub() as client:
        given(client, "pa")
        check(
            client,
            [
                (
                    lambda c: c.add_partition(partition("pa", "1", "x")).sd.location,
                    f"{wh}/p=1/q=x",
                ),
                (
                    lambda c: c.add_partition(partition("pa", "1", "x")),
                    Throws("AlreadyExistsException", "Partition already exists: ", begins=True),
                ),
                (lambda c: c.add_partition(partition("pa", "1")), PARTITIONED),
                (
                    lambda c: c.add_partition(partition("pa", "1", name="nope")),
                    Throws("InvalidObjectException", absent),
                ),
                (
                    lambda c: c.add_partition(partition("pa", "1", name="t1")),
                    Throws(
                        "MetaException",
                        "Invalid partition key & values; keys [], values [1, ]",
                    ),
                ),
                (
                    lambda c: c.add_partition(partition("pa", "01", "a/b=c% :#")).sd.location,
                    f"{wh}/p=01/q=a%2Fb%3Dc%25 %3A%23",
                ),
                (
                    lambda c: c.add_partition(partition("pa", "2", "")).sd.location,
                    f"{wh}/p=2/q=__HIVE_DEFAULT_PARTITION__",
                ),
                (
                    lambda c: (
                        c.add_partition(
                            partition("pa", "3", "z", location=f"{outer}/pz/")
                        ).sd.location
                    ),
                    f"file:{outer}/pz",
                ),
                (
                    lambda c: values(
                        c.add_partitions_req(
                            request(("1", "x"), ("4", "n"), ifNotExists=True, needResult=True)
                        ).partitions
                    ),
                    [["4", "n"]],
                ),
                (lambda c: c.add_partitions_req(request(("5", "n"), needResult=False)), {}),
                (lambda c: c.add_partitions_req(request()), {}),
                (
                    lambda c: c.add_partitions_req(request(("6", "n"), ("6", "n"))),
                    Throws("MetaException", "Duplicate partitions in the list", begins=True),
                ),
                (
                    lambda c: c.add_partitions_req(request(("7", "n"), ("1", "x"))),
                    Throws("AlreadyExistsException", "Partition already exists: ", begins=True),
                ),
                (
                    lambda c: c.add_partitions_req(
                        AddPartitionsRequest("pa", "no", [partition("pa", "1", name="no")], False)
                    ),
                    Throws("InvalidObjectException", "Unable to add partitions", begins=True),
                ),
                (
                    lambda c: c.add_partitions_req(
                        AddPartitionsRequest(
                            "pa", "parted", [partition("pa", "1", name="t1")], False
                        )
                    ),
                    Throws("MetaException", other, begins=True),
                ),
                (lambda c: c.add_partitions([partition("pa", "8", "n")]), 1),
                (lambda c: c.append_partition("pa", "parted", ["9", "n"]).values, ["9", "n"]),
                (
                    lambda c: c.append_partition_by_name("pa", "parted", "q=m/p=9").values,
                    ["9", "m"],
                ),
                (
                    lambda c: c.get_partition_names("pa", "parted", -1),
                    [
                        "p=01/q=a%2Fb%3Dc%25 %3A%23",
                        "p=1/q=x",
                        "p=2/q=__HIVE_DEFAULT_PARTITION__",
                        "p=3/q=z",
                        "p=4/q=n",
                        "p=5/q=n",
                        "p=8/q=n",
                        "p=9/q=m",
                        "p=9/q=n",
                    ],
                ),
                (lambda c: len(c.get_partition_names("pa", "parted", 0)), 9),
                (lambda c: len(c.get_partition_names("pa", "parted", 2)), 2),
                (lambda c: c.get_partition_names("pa", "t1", -1), []),
                (lambda c: c.get_partition_names("pa", "v1", -1), []),
                (lambda c: len(c.get_partitions("pa", "parted", -1)), 9),
                (lambda c: len(c.get_partitions("pa", "parted", 0)), 0),
                (
                    lambda c: c.get_partitions("pa", "nope", -1),
                    Throws("NoSuchObjectException", "pa.nope table not found"),
                ),
                (
                    lambda c: c.get_partition("PA", "Parted", ["99", "x"]),
                    Throws("NoSuchObjectException", "partition values=[99, x]"),
                ),
                (lambda c: c.get_partition("pa", "parted", ["1"]), PARTITIONED),
                (
                    lambda c: c.get_partition_with_auth("pa", "parted", ["1", "x"], "u", []).values,
                    ["1", "x"],
                ),
                (
                    lambda c: c.get_partition_by_name("pa", "parted", "q=x/p=1").values,
                    ["1", "x"],
                ),
                (
                    lambda c: c.get_partition_by_name("pa", "parted", "q=x/p=99"),
                    Throws("NoSuchObjectException", "partition values=[99, x]"),
                ),
                (
                    lambda c: c.get_partition_names_ps("pa", "parted", ["", "n"], -1),
                    ["p=4/q=n", "p=5/q=n", "p=8/q=n", "p=9/q=n"],
                ),
                (lambda c: c.get_partition_names_ps("pa", "parted", ["1"], -1), ["p=1/q=x"]),
                (
                    lambda c: c.get_partition_names_ps("pa", "parted", ["1", "2", "3"], -1),
                    Throws(
                        "MetaException",
                        "Incorrect number of partition values. numPartKeys=2, part_val=3",
                    ),
                ),
                (
                    lambda c: values(
                        c.get_partitions_ps_with_auth("pa", "parted", ["9"], 1, "u", [])
                    ),
                    [["9", "m"]],
                ),
                (
                    lambda c: values(
                        c.get_partitions_by_names("pa", "parted", ["p=1/q=x", "p=1/q=x", "zz"])
                    ),
                    [["1", "x"]],
                ),
                (
                    lambda c: values(
                        c.get_partitions_by_filter("pa", "parted", 'p = 1 and q = "x"', -1)
                    ),
                    [["1", "x"]],
                ),
                (
                    lambda c: values(c.get_partitions_by_filter("pa", "parted", "p > 7", -1)),
                    [["8", "n"], ["9", "m"], ["9", "n"]],
                ),
                (lambda c: c.get_num_partitions_by_filter("pa", "parted", 'q = "n"'), 4),
                (
                    lambda c: c.get_partitions_by_filter("pa", "parted", "a = 1", -1),
                    Throws(
                        "MetaException",
                        "Specified key <a> is not a partitioning key for the table",
                    ),
                ),
            ],
        )


def test_changing_and_dropping_partitions(served: HiveNode) -> None:
    outer = served.node.folder
    folder = outer / "warehouse" / "pb.db" / "parted"
    missing = Throws("InvalidOperationException", "alter is not possible")

    def dropping(*names: str, if_exists: bool) -> Any:
        spec = RequestPartsSpec(names=list(names))
        return DropPartitionsRequest("pb", "parted", spec, True, if_exists, needResult=True)

    def renamed(client: Any, new: tuple[str, str]) -> None:
        one = client.get_partition("pb", "parted", ["1", "x"])
        one.values = list(new)
        client.rename_partition("pb", "parted", ["1", "x"], one)

    with served.stub() as client:
        given(client, "pb")
        client.add_partitions([partition("pb", n, "x") for n in ("1", "2", "3", "4")])
        (folder / "p=1" / "q=x" / "file").write_text("rows")
        check(
            client,
            [
                (lambda c: c.alter_partition("pb", "parted", partition("pb", "9", "x")), missing),
                (
                    lambda c: c.alter_partitions(
                        "pb",
                        "parted",
                        [
                            partition("pb", "2", "x", location=f"{outer}/p2"),
                            partition("pb", "9", "x"),
                        ],
                    ),
                    missing,
                ),
                (
                    lambda c: c.get_partition("pb", "parted", ["2", "x"]).sd.location,
                    f"file:{folder}/p=2/q=x",
                ),
                (
                    lambda c: c.alter_partitions(
                        "pb", "parted", [partition("pb", "2", "x", location=f"{outer}/p2")]
                    ),
                    None,
                ),
                (
                    lambda c: c.get_partition("pb", "parted", ["2", "x"]).sd.location,
                    f"file:{outer}/p2",
                ),
                (lambda c: renamed(c, ("7", "y")), None),
                (
                    lambda c: c.get_partition("pb", "parted", ["7", "y"]).sd.location,
                    f"file:{folder}/p=7/q=y",
                ),
                (lambda c: (folder / "p=7" / "q=y" / "file").read_text(), "rows"),
                (
                    lambda c: c.rename_partition(
                        "pb", "parted", ["3", "x"], partition("pb", "4", "x")
                    ),
                    Throws("InvalidOperationException", "Partition already exists: ", begins=True),
                ),
                (
                    lambda c: c.rename_partition(
                        "pb", "parted", ["99", "x"], partition("pb", "98", "x")
                    ),
                    Throws(
                        "InvalidOperationException",
                        "Unable to rename partition because old partition does not exist",
                    ),
                ),
                (lambda c: c.drop_partition("pb", "parted", ["7", "y"], True), True),
                (lambda c: (folder / "p=7" / "q=y").exists(), False),
                (
                    lambda c: c.drop_partition("pb", "parted", ["7", "y"], True),
                    Throws("NoSuchObjectException", "partition values=[7, y]"),
                ),
                (lambda c: c.drop_partition_by_name("pb", "parted", "q=x/p=3", False), True),
                (lambda c: (folder / "p=3" / "q=x").exists(), True),
                (
                    lambda c: c.drop_partitions_req(
                        dropping("p=4/q=x", "p=66/q=x", if_exists=False)
                    ),
                    Throws("NoSuchObjectException", "Some partitions to drop are missing"),
                ),
                (
                    lambda c: [
                        one.values
                        for one in c.drop_partitions_req(
                            dropping("p=4/q=x", "p=66/q=x", if_exists=True)
                        ).partitions
                    ],
                    [["4", "x"]],
                ),
                (lambda c: c.get_partition_names("pb", "parted", -1), ["p=2/q=x"]),
            ],
        )


def test_what_needs_no_table(served: HiveNode) -> None:
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
                (lambda c: c.get_role_names(), ["admin", "public"]),
                (lambda c: c.list_roles("ann", 1)[0].roleName, "public"),
                (lambda c: c.list_privileges("ann", 1, HiveObjectRef(objectType=1)), []),
                (
                    lambda c: c.get_privilege_set(HiveObjectRef(objectType=1), "ann", []),
                    {"userPrivileges": {}, "groupPrivileges": {}, "rolePrivileges": {}},
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
                    lambda c: c.get_table_names_by_filter("d1", "x", -1),
                    Throws(
                        "TApplicationException",
                        "Invalid method name: 'get_table_names_by_filter'",
                    ),
                ),
                (lambda c: c.getStatus(), 2),
            ],
        )
