"""Methods of Hive 4.1 and fields of its requests, which the stubs of PyIceberg do not have.

A field that a node skips would change the meaning of the request without a word.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from tests.metastore.hive.differential.scenario import fields, partition, table
from tests.metastore.hive.hive_node import HiveNode, refusal
from tests.servers.thrift_client import ThriftClient

T = {"dbName": "d1", "tblName": "t"}


@pytest.fixture
def client(hive: HiveNode) -> Iterator[ThriftClient]:
    """A client of a node with the table d1.t, which has the partitions k=1, k=2 and k=3."""
    with hive.client() as opened:
        opened.call("create_table", tbl=table("d1", "t", keys="k int"))
        opened.call("add_partitions", new_parts=[partition("d1", "t", k) for k in "123"])
        yield opened


def without_columns(value: str) -> dict[str, Any]:
    """A partition of d1.t whose columns the request names once for all partitions."""
    part = partition("d1", "t", value)
    del part["sd"]["cols"]
    return part


def columns(client: ThriftClient, value: str) -> list[str]:
    shown = client.call("get_partition", db_name="d1", tbl_name="t", part_vals=[value])
    return [column["name"] for column in shown["sd"]["cols"]]


def test_an_alter_compares_the_parameter_that_its_request_names(client: ThriftClient) -> None:
    client.call("create_table", tbl=table("d1", "u", parameters={"metadata_location": "m1"}))

    def commit(new: str, *, expected: str) -> None:
        request = {
            "dbName": "d1",
            "tableName": "u",
            "table": table("d1", "u", parameters={"metadata_location": new}),
            "expectedParameterKey": "metadata_location",
            "expectedParameterValue": expected,
        }
        client.call("alter_table_req", req=request)

    commit("m2", expected="m1")
    assert "has been modified" in refusal(lambda: commit("m3", expected="m1"))[1]
    shown = client.call("get_table", dbname="d1", tbl_name="u")
    assert shown["parameters"]["metadata_location"] == "m2"


def test_partitions_are_requested_by_their_names(client: ThriftClient) -> None:
    request = {**T, "partNames": ["k=3", "k=1", "k=9"], "userName": "ann"}
    answer = client.call("get_partitions_ps_with_auth_req", req=request)
    assert sorted(part["values"] for part in answer["partitions"]) == [["1"], ["3"]]
    answer = client.call("get_partitions_ps_with_auth_req", req={**T, "partNames": []})
    assert answer["partitions"] == []


def test_partitions_get_the_columns_that_their_request_names_once(client: ThriftClient) -> None:
    shared = {"skipColumnSchemaForPartition": True, "partitionColSchema": fields("z int")}
    parts = [without_columns("4"), partition("d1", "t", "5", columns="own int")]
    added = {**T, "parts": parts, "ifNotExists": False, **shared}
    answer = client.call("add_partitions_req", request=added)
    assert answer["partitionColSchema"] == shared["partitionColSchema"]
    assert [columns(client, value) for value in "45"] == [["z"], ["own"]]
    altered = {"dbName": "d1", "tableName": "t", "partitions": [without_columns("1")], **shared}
    client.call("alter_partitions_req", req=altered)
    assert [columns(client, value) for value in "12"] == [["z"], ["a", "b"]]


def test_events_of_the_named_tables_are_counted(hive: HiveNode, client: ThriftClient) -> None:
    since = client.call("get_current_notificationEventId")["eventId"]
    for name in ("u", "v"):
        client.call("create_table", tbl=table("d1", name))

    def count(**request: Any) -> int:
        named = {"fromEventId": since, "dbName": "d1", **request}
        answer = client.call("get_notification_events_count", rqst=named)
        return int(answer["eventsCount"])

    assert (count(), count(tableNames=["u"]), count(tableNames=["none"])) == (2, 1, 0)


def test_a_refresh_that_a_client_reports_is_refused_and_not_logged_as_an_insert(
    client: ThriftClient,
) -> None:
    event = {"successful": True, "data": {"refreshEvent": True}, "dbName": "d1", "tableName": "t"}
    since = client.call("get_current_notificationEventId")
    assert "insertData" in refusal(lambda: client.call("fire_listener_event", rqst=event))[1]
    assert client.call("get_current_notificationEventId") == since


def test_databases_are_created_and_altered_by_requests(client: ThriftClient) -> None:
    request = {
        "databaseName": "D2",
        "description": "flights",
        "parameters": {"k": "v"},
        "ownerName": "ann",
        "ownerType": 1,
        "catalogName": "hive",
    }
    client.call("create_database_req", createDatabaseRequest=request)
    shown = client.call("get_database", name="d2")
    assert shown["locationUri"].endswith("/d2.db")
    assert {key: shown[key] for key in ("name", "description", "parameters", "ownerName")} == {
        **{key: request[key] for key in ("description", "parameters", "ownerName")},
        "name": "d2",
    }
    create = partial(client.call, "create_database_req")
    refused = refusal(lambda: create(createDatabaseRequest=request))
    assert refused == ("AlreadyExistsException", "Database D2 already exists")
    remote = {**request, "databaseName": "d3", "type": 2, "dataConnectorName": "mysql"}
    assert "leave out REMOTE" in refusal(lambda: create(createDatabaseRequest=remote))[1]
    altered = {"oldDbName": "d2", "newDb": {**shown, "parameters": {"k": "w"}}}
    client.call("alter_database_req", alterDbReq=altered)
    assert client.call("get_database", name="d2")["parameters"] == {"k": "w"}
    other = {**request, "databaseName": "d4", "catalogName": "spark"}
    assert "catalog spark" in refusal(lambda: create(createDatabaseRequest=other))[1]


@pytest.mark.parametrize("purge", [False, True])
def test_a_table_is_dropped_by_a_request(
    hive: HiveNode, client: ThriftClient, *, purge: bool
) -> None:
    context = {"properties": {"ifPurge": str(purge).upper()}}
    named = {"catalogName": "hive", "dbName": "d1", "tableName": "t"}
    drop = partial(client.call, "drop_table_req")
    drop(dropTableReq={**named, "deleteData": True, "envContext": context})
    missing = refusal(lambda: drop(dropTableReq=named))
    assert missing == ("NoSuchObjectException", "d1.t table not found")
    undrop = hive.node.session(user="ann").undrop
    if not purge:
        undrop("d1.t")
        assert client.call("get_table", dbname="d1", tbl_name="t")["tableName"] == "t"


def test_a_transactional_table_is_not_overwritten_by_the_drop_of_a_request(
    hive: HiveNode, client: ThriftClient
) -> None:
    """Hive's client lists the tables of a schema before it drops them with the schema."""
    hive.create_transactional("d1", "a_first", a="int")
    client.call("get_all_tables", db_name="d1")
    request = {"dbName": "d1", "tableName": "a_first", "deleteData": True}
    refused = refusal(lambda: client.call("drop_table_req", dropTableReq=request))
    assert "d1" in refused[1]
    client.call("drop_table_req", dropTableReq=request)  # now it is a statement of its own


def test_partitions_are_read_and_changed_by_requests(client: ThriftClient) -> None:
    table_named = {"dbName": "d1", "tableName": "t"}

    def names(**limit: int) -> Any:
        return client.call("fetch_partition_names_req", partitionReq={**T, **limit})

    assert (names(), names(maxParts=2)) == (["k=1", "k=2", "k=3"], ["k=1", "k=2"])
    filtered = client.call("get_partitions_by_filter_req", req={**T, "filter": "k > 1"})
    assert [part["values"] for part in filtered] == [["2"], ["3"]]
    for number, named in ((4, {"name": "k=4"}), (5, {"partVals": ["5"]})):
        request = {**table_named, **named}
        added = client.call("append_partition_req", appendPartitionsReq=request)
        assert added["values"] == [str(number)]

    def drop(**named: Any) -> Any:
        request = {**T, **named, "deleteData": True}
        return client.call("drop_partition_req", dropPartitionReq=request)

    assert drop(partName="k=4")
    assert drop(partVals=["5"])
    assert refusal(lambda: drop(partVals=["5"]))[0] == "NoSuchObjectException"
    assert refusal(lambda: drop(partName="nonsense"))[0] == "NoSuchObjectException"
    assert names() == ["k=1", "k=2", "k=3"]
