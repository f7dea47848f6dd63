"""Fields that later releases of Hive 4 have in their requests, and the stubs of PyIceberg do not.

A field that a node skips would change the meaning of the request without a word.
"""

from __future__ import annotations

from collections.abc import Iterator
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
