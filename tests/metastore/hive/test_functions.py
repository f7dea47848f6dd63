"""Functions over the Hive protocol: a permanent function of Spark is kept and found again."""

from __future__ import annotations

import json
from typing import Any

from hive_metastore.ttypes import (
    Database,
    Function,
    NotificationEventRequest,
    PrincipalType,
    ResourceType,
    ResourceUri,
)

from tests.metastore.hive.contract import Throws, check
from tests.metastore.hive.hive_node import HiveNode, plain, refusal

JAR = ResourceUri(resourceType=ResourceType.JAR, uri="file:/lib/a.jar")
NEW = ResourceUri(resourceType=ResourceType.JAR, uri="file:/lib/new.jar")


def uris(client: Any, name: str) -> list[str]:
    return [resource.uri for resource in client.get_function("fn", name).resourceUris]


def function(name: str = "F1", schema: str = "fn", **fields: Any) -> Function:
    """A function as Spark sends it: without an owner."""
    defaults = {
        "className": "a.b.Upper",
        "ownerName": None,
        "ownerType": PrincipalType.USER,
        "createTime": 1,
        "functionType": 1,
        "resourceUris": [JAR],
    }
    return Function(functionName=name, dbName=schema, **{**defaults, **fields})


def test_a_function_is_created_found_altered_renamed_and_dropped(served: HiveNode) -> None:
    with served.stub() as client:
        client.create_database(Database(name="fn"))
        client.set_ugi("ann", [])
        client.create_function(function())
        stored = plain(client.get_function("FN", "f1"))
        assert stored.pop("createTime") > 1
        assert stored == {
            "functionName": "f1",
            "dbName": "fn",
            "className": "a.b.Upper",
            "ownerName": "ann",
            "ownerType": PrincipalType.USER,
            "functionType": 1,
            "resourceUris": [{"resourceType": ResourceType.JAR, "uri": "file:/lib/a.jar"}],
            "catName": "hive",
        }
        check(
            client,
            [
                (lambda c: c.create_function(function("f2", className="a.C")), None),
                (lambda c: c.get_functions("fn", "*"), ["f1", "f2"]),
                (lambda c: c.get_functions("fn", "f2*"), ["f2"]),
                (lambda c: c.get_functions("nope", "*"), []),
                (lambda c: c.alter_function("fn", "f2", function("f2", className="a.D")), None),
                (lambda c: c.get_function("fn", "f2").className, "a.D"),
                (lambda c: c.alter_function("fn", "f2", function("f3", className="a.E")), None),
                (lambda c: c.get_function("fn", "F3").className, "a.E"),
                (lambda c: c.alter_function("fn", "f3", function("f3", resourceUris=[])), None),
                (lambda c: uris(c, "f3"), ["file:/lib/a.jar"]),
                (lambda c: c.alter_function("fn", "f3", function("f3", resourceUris=[NEW])), None),
                (lambda c: uris(c, "f3"), ["file:/lib/new.jar"]),
                (lambda c: c.alter_function("fn", "f3", function("f3", ownerName="")), None),
                (lambda c: c.get_function("fn", "f3").ownerName, "ann"),
                (lambda c: c.get_functions("fn", "*"), ["f1", "f3"]),
                (lambda c: len(c.get_all_functions().functions), 2),
                (lambda c: c.create_function(function("f4", ownerName="bob")), None),
                (lambda c: c.get_function("fn", "f4").ownerName, "bob"),
                (lambda c: c.drop_function("fn", "f4"), None),
                (lambda c: c.drop_function("fn", "f3"), None),
                (lambda c: c.drop_database("fn", True, True), None),
                (lambda c: c.get_all_functions(), {"functions": []}),
            ],
        )


def test_errors_of_function_calls_are_those_of_hive(served: HiveNode) -> None:
    with served.stub() as client:
        client.create_database(Database(name="fx"))
        client.create_function(function(schema="fx"))
        not_there = Throws("NoSuchObjectException", "Function fx.nope does not exist")
        check(
            client,
            [
                (
                    lambda c: c.create_function(function("f1", "fx")),
                    Throws("AlreadyExistsException", "function fx.f1 already exists"),
                ),
                (
                    lambda c: c.create_function(function("f1", "gone")),
                    Throws("NoSuchObjectException", "The function's database gone does not exist"),
                ),
                (
                    lambda c: c.create_function(function("a-b", "fx")),
                    Throws("InvalidObjectException", "a-b is not a valid object name"),
                ),
                (
                    lambda c: c.create_function(function("f2", "fx", className=None)),
                    Throws("InvalidObjectException", "Function class name cannot be null"),
                ),
                (lambda c: c.drop_function("fx", "nope"), not_there),
                (lambda c: c.get_function("fx", "nope"), not_there),
                (
                    lambda c: c.drop_database("fx", True, False),
                    Throws(
                        "InvalidOperationException",
                        "Database fx is not empty. One or more functions exist.",
                    ),
                ),
                (lambda c: c.drop_database("fx", True, True), None),
            ],
        )


def test_a_function_can_be_read_as_of_a_version_but_not_changed(served: HiveNode) -> None:
    with served.stub() as client:
        client.create_database(Database(name="fv"))
        client.create_function(function(schema="fv"))
        version = served.node.catalogs.latest_catalog().version
        client.drop_function("fv", "f1")
        stored = client.get_function(f"fv@{version}", "f1")
        assert (stored.dbName, stored.className) == (f"fv@{version}", "a.b.Upper")
        assert client.get_functions(f"fv@{version}", "*") == ["f1"]
        assert client.get_functions("fv", "*") == []
        kind, text = refusal(lambda: client.drop_function(f"fv@{version}", "f1"))
        assert "is a past state of the schema" in text, kind


def test_events_of_functions_have_the_form_of_hive(served: HiveNode) -> None:
    with served.stub() as client:
        client.create_database(Database(name="fe"))
        before = client.get_current_notificationEventId().eventId
        client.create_function(function(schema="fe"))
        client.alter_function("fe", "f1", function("f2", "fe"))
        client.drop_function("fe", "f2")
        events = client.get_next_notification(NotificationEventRequest(before)).events
        types = [(event.eventType, event.dbName) for event in events]
        assert types == [
            ("CREATE_FUNCTION", "fe"),
            ("ALTER_FUNCTION", "fe"),
            ("DROP_FUNCTION", "fe"),
        ]
        made, _, dropped = (json.loads(event.message) for event in events)
        assert '"a.b.Upper"' in made["functionObjJson"]
        assert (dropped["db"], dropped["functionName"]) == ("fe", "f2")


def test_the_system_schema_of_the_catalog_is_not_shown(served: HiveNode) -> None:
    assert "system" in [schema.name for schema in served.node.catalogs.present().schemas()]
    with served.stub() as client:
        assert "system" not in client.get_all_databases()
        assert client.get_databases("sys*") == []
        assert client.get_all_tables("system") == []
        assert client.get_table_meta("*", "*", []) is not None
        assert {meta.dbName for meta in client.get_table_meta("sys*", "*", [])} == set()
        check(
            client,
            [
                (
                    lambda c: c.get_database("system"),
                    Throws("NoSuchObjectException", "system"),
                ),
                (
                    lambda c: c.create_database(Database(name="System")),
                    Throws("InvalidObjectException", "schema system cannot be", begins=True),
                ),
                (
                    lambda c: c.drop_database("system", True, True),
                    Throws("InvalidOperationException", "system schema", begins=True),
                ),
            ],
        )
