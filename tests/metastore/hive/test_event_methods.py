"""The methods with which Hive's clients read events, count them, and report their own."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hive_metastore.ttypes import (
    Database,
    FieldSchema,
    FireEventRequest,
    FireEventRequestData,
    GetAllWriteEventInfoRequest,
    InsertEventRequestData,
    NotificationEventsCountRequest,
    Partition,
)
from thrift.Thrift import TType

from strandline import work
from strandline.catalog.commands import ColumnDefinition, CreateSchema, CreateTable, TableDefinition
from strandline.metastore.hive import event_methods
from strandline.metastore.hive import events as rendering
from strandline.metastore.off_loop import finish
from strandline.model.types import INT
from tests.metastore.hive.hive_node import HiveNode, refusal, storage, table
from tests.metastore.hive.listed_events import events, kinds, message

STORES = ("folder", "postgresql")


def test_an_event_costs_as_many_units_as_it_has_rows(hive: HiveNode, stub: Any) -> None:
    stub.create_table(table("t1", partitionKeys=[FieldSchema("p", "string", None)]))
    before = hive.node.notifications.head()
    stub.add_partitions([Partition([f"{n}"], "d1", "t1", sd=storage()) for n in range(10)])
    added, _ = hive.node.notifications.read(before, limit=10)
    with work.budget(9), pytest.raises(work.TooLong):
        list(rendering.HiveEvents(hive.node.metastore).render([added]))
    with work.budget(10):
        (rendered,) = rendering.HiveEvents(hive.node.metastore).render([added])
    assert len(json.loads(rendered["message"])["partitions"]) == 10


@pytest.mark.parametrize("method", ["get_next_notification", "get_notification_events_count"])
def test_a_thread_gives_up_a_request_for_very_many_events_before_it_renders_them(
    hive: HiveNode, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    count = 40
    before = hive.node.notifications.head()
    hive.node.session(user="ann").execute([CreateSchema(name=f"s{n}") for n in range(count)])
    request = {"lastEvent": before, "fromEventId": before, "dbName": "s1"}
    call = hive.call(method, rqst=request)
    with work.budget(5 * count):
        finish(call.method.handler(call))
    monkeypatch.delattr(rendering.HiveEvents, "render")
    with work.budget(5 * count - 1), pytest.raises(work.TooLong):
        finish(call.method.handler(call))


def test_event_ids_have_no_gaps_and_events_can_be_read_in_pieces(
    stub: Any, since: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(4):
        stub.create_table(table(f"t{number}"))
    assert [event.eventId for event in events(stub, since)] == list(range(since + 1, since + 5))
    assert [event.eventId for event in events(stub, since + 1, maxEvents=2)] == [
        since + 2,
        since + 3,
    ]
    monkeypatch.setattr(event_methods, "MAX_EVENTS", 3)
    for asked in (-1, 0, 4):
        assert len(events(stub, since, maxEvents=asked)) == 3
    monkeypatch.setattr(event_methods, "MAX_EVENT_BYTES", 1)
    assert [event.eventId for event in events(stub, since + 1)] == [since + 2]
    assert stub.get_current_notificationEventId().eventId == since + 4
    assert events(stub, since, eventTypeSkipList=["CREATE_TABLE"]) == []


FILTERS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "schema": ({"dbName": "D2"}, ["CREATE_DATABASE d2", "CREATE_TABLE t1", "ALTER_TABLE t1"]),
    "table": (
        {"dbName": "d1", "tableNames": ["T1", "t3"]},
        ["CREATE_TABLE t1", "CREATE_TABLE t3"],
    ),
    "tables of all schemas": (
        {"tableNames": ["t1"]},
        ["CREATE_TABLE t1", "CREATE_TABLE t1", "ALTER_TABLE t1"],
    ),
    "catalog": (
        {"catName": "hive", "dbName": "d2", "eventTypeSkipList": ["CREATE_TABLE"]},
        ["CREATE_DATABASE d2", "ALTER_TABLE t1"],
    ),
    "another catalog": ({"catName": "spark"}, []),
    "events of no schema": (
        {"catName": "hive", "eventTypeList": ["CREATE_DATABASE", "COMMIT_TXN"]},
        ["CREATE_DATABASE d2"],
    ),
    "types": ({"eventTypeList": ["ALTER_TABLE", "COMMIT_TXN"]}, ["ALTER_TABLE t1", "COMMIT_TXN"]),
    "the first that pass": (
        {"dbName": "d2", "eventTypeSkipList": ["CREATE_DATABASE"], "maxEvents": 1},
        ["CREATE_TABLE t1"],
    ),
}


@pytest.mark.parametrize("case", FILTERS)
def test_a_client_gets_only_the_events_that_pass_its_filters(
    hive: HiveNode, stub: Any, since: int, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rendering, "PAGE", 2)
    for name in ("t1", "t2", "t3"):
        stub.create_table(table(name))
    stub.create_database(Database("d2"))
    stub.create_table(table("t1", schema="d2"))
    new = stub.get_table("d2", "t1")
    new.parameters["numRows"] = "5"
    stub.alter_table("d2", "t1", new)
    sent, expected = FILTERS[case]
    with hive.client() as client:
        answer = client.call("get_next_notification", rqst={"lastEvent": since, **sent})
    assert [
        f"{event['eventType']} {event.get('tableName') or event.get('dbName', '')}".strip()
        for event in answer["events"]
    ] == expected


def test_all_events_since_the_creation_of_the_store_can_be_read(hive: HiveNode, stub: Any) -> None:
    hive.node.session(user="ann").execute(
        CreateTable(
            schema="d1",
            definition=TableDefinition(name="t", columns=(ColumnDefinition("a", INT),)),
        )
    )
    listed = events(stub, 0)
    assert [event.eventId for event in listed] == list(range(1, len(listed) + 1))
    assert all(json.loads(event.message) for event in listed)


def inserted(
    *values: str, name: str = "t1", data: Any = None, successful: bool = True, several: Any = ()
) -> Any:
    into = [InsertEventRequestData(filesAdded=[], partitionVal=spec) for spec in several]
    data = data or (
        FireEventRequestData(insertDatas=into)  # a union, so without ``insertData``
        if into
        else FireEventRequestData(insertData=InsertEventRequestData(filesAdded=["file:/x"]))
    )
    return FireEventRequest(successful, data, "d1", name, list(values))


def test_a_reported_insert_is_an_event_and_dates_the_table(stub: Any) -> None:
    stub.create_table(table("t1", parameters={"numRows": "7"}))
    since = stub.get_current_notificationEventId().eventId
    assert stub.fire_listener_event(inserted()).eventIds == [since + 1]
    listed = events(stub, since)
    assert kinds(listed) == ["INSERT", "COMMIT_TXN"]
    assert (listed[0].dbName, listed[0].tableName) == ("d1", "t1")
    sent = message(listed[0])
    assert [sent[key] for key in ("db", "table", "tableType")] == ["d1", "t1", "MANAGED_TABLE"]
    assert json.loads(sent["tableObjJson"])["1"]["str"] == "t1"
    assert (sent["ptnObjJson"], sent["files"]) == (None, [])
    parameters = stub.get_table("d1", "t1").parameters
    assert parameters["numRows"] == "7"
    assert abs(int(parameters["transient_lastDdlTime"]) - listed[0].eventTime) <= 1
    stub.fire_listener_event(inserted(successful=False))
    assert len(events(stub, since)) == 2


class OlderInsert:
    """The report as Hive 2.3 and Spark lay it out: its first field is the list of files."""

    def write(self, protocol: Any) -> None:
        protocol.writeStructBegin("InsertEventRequestData")
        for number, texts in ((1, ["file:/x"]), (2, ["checksum"])):
            protocol.writeFieldBegin("", TType.LIST, number)
            protocol.writeListBegin(TType.STRING, len(texts))
            for text in texts:
                protocol.writeString(text)
            protocol.writeListEnd()
            protocol.writeFieldEnd()
        protocol.writeFieldStop()
        protocol.writeStructEnd()


def test_a_report_in_the_layout_of_hive_2_3_is_read(stub: Any) -> None:
    stub.create_table(table("t1"))
    since = stub.get_current_notificationEventId().eventId
    data = FireEventRequestData(insertData=OlderInsert())
    stub.fire_listener_event(inserted(data=data))
    assert kinds(events(stub, since)) == ["INSERT", "COMMIT_TXN"]


def test_a_reported_insert_into_partitions_is_an_event_of_them(stub: Any) -> None:
    stub.create_table(table("t1", partitionKeys=[FieldSchema("p", "int", None)]))
    for value in "12":
        stub.add_partition(Partition([value], "d1", "t1", 0, 0, storage(), {"k": "v"}))
    since = stub.get_current_notificationEventId().eventId
    stub.fire_listener_event(inserted("1"))
    answered = stub.fire_listener_event(inserted(several=[["1"], ["2"]]))
    listed = events(stub, since)
    assert answered.eventIds == [listed[2].eventId, listed[3].eventId]
    assert kinds(listed) == ["INSERT", "COMMIT_TXN", "INSERT", "INSERT", "COMMIT_TXN"]
    shown = [json.loads(message(listed[n])["ptnObjJson"])["1"]["lst"] for n in (0, 2, 3)]
    assert shown == [["str", 1, "1"], ["str", 1, "1"], ["str", 1, "2"]]
    assert [partition.values for partition in stub.get_partitions("d1", "t1", -1)] == [["1"], ["2"]]
    assert stub.get_partition("d1", "t1", ["1"]).parameters["k"] == "v"
    last = stub.get_current_notificationEventId().eventId
    _, text = refusal(lambda: stub.fire_listener_event(inserted(several=[["1"], ["3"]])))
    assert "partition values=[3]" in text
    assert stub.get_current_notificationEventId().eventId == last


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        (inserted(name="none"), "d1.none table not found"),
        (inserted(name="v"), "d1.v is a view"),
        (inserted(data=FireEventRequestData()), "the event has no insertData"),
        (inserted("1"), "Invalid partition key & values"),
    ],
)
def test_a_report_that_names_no_content_is_refused(stub: Any, request_: Any, text: str) -> None:
    stub.create_table(table("t1"))
    stub.create_table(table("v", tableType="VIRTUAL_VIEW", viewOriginalText="q"))
    last = stub.get_current_notificationEventId().eventId
    assert text in refusal(lambda: stub.fire_listener_event(request_))[1]
    assert stub.get_current_notificationEventId().eventId == last


def test_the_settings_that_impala_requires_before_it_reads_events_are_answered(stub: Any) -> None:
    required = {
        "hive.metastore.notifications.add.thrift.objects": "true",
        "hive.metastore.alter.notifications.basic": "false",
        "hive.metastore.dml.events": "true",
        "hive.metastore.notification.parameters.exclude.patterns": "",
        "metastore.catalog.default": "hive",
    }
    assert {name: stub.get_config_value(name, "") for name in required} == required


def test_impala_can_start_and_follow_the_ends_of_transactions(stub: Any, since: int) -> None:
    """It takes "unknown method" for a failure, and stops to read events."""
    assert stub.get_dataconnectors() == []
    stub.create_table(table("t1", partitionKeys=[FieldSchema("p", "string", None)]))
    stub.add_partition(Partition(["a"], "d1", "t1", sd=storage()))
    *_, committed = events(stub, since)
    request = GetAllWriteEventInfoRequest(message(committed)["txnid"])
    assert stub.get_all_write_event_info(request) == []


def test_the_events_of_a_schema_are_counted(stub: Any, since: int) -> None:
    def count(schema: str = "D1", **fields: Any) -> int:
        request = NotificationEventsCountRequest(since, schema, **fields)
        total: int = stub.get_notification_events_count(request).eventsCount
        return total

    assert count() == 0
    for number in range(3):
        stub.create_table(table(f"t{number}"))
    stub.create_table(table("other", schema="default"))
    assert (count(), count("default"), count("none")) == (3, 1, 0)
    assert (count(toEventId=since + 2), count(limit=1)) == (2, 1)
    assert (count(toEventId=-5), count(limit=-5), count(limit=0)) == (0, 3, 3)
    assert (count(catName="HIVE"), count(catName=""), count(catName="spark")) == (3, 3, 0)
    stub.drop_table("default", "other", True)
