"""The calls before a drop tell whether it belongs to a larger statement."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hive_metastore.ttypes import Database

from strandline.metastore.hive.recent_calls import RecentCalls
from strandline.metastore.interface import Session
from strandline.metastore.thrift import HIVE_CODEC
from strandline.metastore.thrift.dispatch import BaseService, ConnectionInfo
from strandline.metastore.thrift.messages import CALL, encode_message
from tests.metastore.hive import dml
from tests.metastore.hive.hive_node import HiveNode, refusal
from tests.metastore.hive.test_snapshot_views import HIDDEN, text


def sent(method: str, **args: object) -> bytes:
    return encode_message(CALL, method, 1, HIVE_CODEC.encode_args(method, args))


LIST = sent("get_all_tables", db_name="S")
LOOK = sent("get_table", dbname="s", tbl_name="T")
DROP = sent("drop_table", dbname="s", name="t", deleteData=True)
OTHER = sent("get_table", dbname="s", tbl_name="u")
LOOK_REQUEST = sent("get_table_req", req={"dbName": "s", "tblName": "T"})
DROP_REQUEST = sent("drop_table_req", dropTableReq={"dbName": "s", "tableName": "t"})


@pytest.mark.parametrize(
    ("calls", "cascades"),
    [
        ([LIST, LOOK], True),
        ([LIST], True),
        ([LIST, LOOK, OTHER, b""], True),
        ([LIST, LOOK, LOOK], False),
        ([LIST, LOOK, LOOK_REQUEST], False),
        ([LIST, DROP], False),
        ([LIST, DROP_REQUEST], False),
        ([LOOK], False),
    ],
)
def test_a_drop_after_a_list_of_tables_and_at_most_one_look_may_cascade(
    calls: list[bytes], cascades: bool
) -> None:
    assert RecentCalls(calls).cascades("s", "t") == cascades


DROPS: dict[str, tuple[str, bool]] = {
    "DROP TABLE": ("o o o", True),
    "DROP TABLE of a table that was just read": ("o o@ o o o", True),
    "DROP TABLE while other threads work": ("o@ o other o D2 unknown o other long", True),
    "DROP TABLE after CREATE TABLE IF NOT EXISTS": ("D D D D D D other o o o", True),
    "DROP TABLE after CREATE VIEW IF NOT EXISTS": ("D D D D D D D D o o o o", True),
    "a client that does not look": ("", True),
    "a client that looks once": ("D o", True),
    "DROP VIEW": ("o o o o@ o", False),
    "an overwrite": ("o o o@ o D D o", False),
    "an overwrite, seen after another read": ("o o@ o D D o@ o o", False),
    "an overwrite while other threads work": ("o@ o other D unknown o other long D2", False),
    "an overwrite after many calls of another thread": ("o@ o D D o" + 50 * " other", False),
    "an overwrite while another thread looks at the table": ("o@ o D o D o o", False),
    "CREATE OR REPLACE VIEW": ("D D D D D D D D o o o", False),
    "CREATE OR REPLACE VIEW with a query of the table": ("o@ D D D D D D D D o o o", False),
    "CREATE OR REPLACE VIEW of Spark 4.0": ("D D o D o o D o D o", False),
    "CREATE OR REPLACE VIEW of Spark 4.1": ("D D D D D D D D o D o o D o D o", False),
    "CREATE OR REPLACE VIEW of Spark 4.1, beside other threads": ("o o D o other D other o", False),
    "the second attempt of DROP TABLE": ("o o@ o drop o o o", True),
    "the second attempt of a client that looks once": ("o@ o drop o", True),
    "the second attempt of an overwrite": ("o@ o D o drop o@ o D o", False),
}
"""The calls before the drop, and whether it passes. D requests the schema, D2 another schema."""


@pytest.mark.parametrize("what", DROPS)
def test_a_drop_is_refused_only_as_part_of_a_statement_that_would_replace_the_table(
    session: Session, stub: Any, what: str
) -> None:
    dml.append(session, "d1.orders", {"id": 1, "item": "x"})
    (part,) = HIDDEN.findall(text(stub))
    stub.create_database(Database("d2"))
    calls, passes = DROPS[what]
    steps: dict[str, Callable[[], object]] = {
        "o": lambda: stub.get_table("d1", "orders"),
        "o@": lambda: stub.get_table("d1", part),
        "D": lambda: stub.get_database("d1"),
        "D2": lambda: stub.get_database("d2"),
        "other": lambda: refusal(lambda: stub.get_table("d2", "orders")),
        "long": lambda: stub.get_tables("d1", 1_000 * "x"),
        "unknown": lambda: refusal(lambda: stub.drop_package(None)),
        "drop": lambda: refusal(lambda: stub.drop_table("d1", "orders", True)),
    }
    for call in calls.split():
        steps[call]()
    if passes:
        stub.drop_table("d1", "orders", True)
        assert stub.get_all_tables("d1") == []
        return
    kind, said = refusal(lambda: stub.drop_table("d1", "orders", True))
    assert kind == "MetaException"
    assert "DROP TABLE d1.orders in Spark 4.3 (if you just ran that, run it again)" in said
    assert stub.get_all_tables("d1") == ["orders"]


@pytest.mark.parametrize("calls", ["o o o@ o", "D D D D D D D D o o"])
def test_a_replacement_is_refused_though_spark_reopens_its_connection_before_the_drop(
    hive: HiveNode, session: Session, stub: Any, calls: str
) -> None:
    dml.append(session, "d1.orders", {"id": 1, "item": "x"})
    (part,) = HIDDEN.findall(text(stub))
    stub.set_ugi("ann", [])
    for call in calls.split():
        if call == "D":
            stub.get_database("d1")
        else:
            stub.get_table("d1", {"o": "orders", "o@": part}[call])
    stub.shutdown()
    with hive.stub() as unused, hive.stub() as reopened:  # as for the first `format("hive")`
        for client in (unused, reopened):
            client.set_ugi("ann", [])
        reopened.get_table("d1", "orders")
        kind, said = refusal(lambda: reopened.drop_table("d1", "orders", True))
    assert (kind, "cannot be replaced or overwritten" in said) == ("MetaException", True)
    assert stub.get_all_tables("d1") == ["orders"]


LEAVE, COME = sent("shutdown"), sent("set_ugi", user_name="ann", group_names=[])


@pytest.mark.parametrize(
    ("user", "peer", "seconds", "recent"),
    [
        ("ann", "10.0.0.1:7", 9.0, [COME, LOOK]),
        ("ann", "10.0.0.1:7", 10.0, [COME]),
        ("bob", "10.0.0.1:7", 0.0, [COME]),
        ("ann", "10.0.0.2:7", 0.0, [COME]),
    ],
)
def test_a_new_connection_follows_the_calls_of_a_client_that_has_just_left(
    user: str, peer: str, seconds: float, recent: list[bytes]
) -> None:
    now = 5.0
    base = BaseService(started=0, counters=dict, monotonic=lambda: now)
    first, second = ConnectionInfo(1, "10.0.0.1:6"), ConnectionInfo(2, peer)
    first.received(COME)
    base.answer(first, "set_ugi", {"user_name": "ann"})
    first.received(LOOK)
    first.received(LEAVE)
    base.answer(first, "shutdown", {})
    now += seconds
    second.received(COME)
    base.answer(second, "set_ugi", {"user_name": user})
    assert list(second.recent) == recent


def test_the_calls_of_few_clients_that_have_left_are_remembered() -> None:
    base = BaseService(started=0, counters=dict)
    for number in range(200):
        left = ConnectionInfo(number, f"10.0.0.{number}:6")
        left.received(LOOK)
        left.received(LEAVE)
        base.answer(left, "shutdown", {})
    returned = [ConnectionInfo(number, f"10.0.0.{number}:7") for number in (99, 100, 199)]
    for connection in returned:
        base.answer(connection, "set_ugi", {})
    assert [list(connection.recent) for connection in returned] == [[], [LOOK], [LOOK]]
