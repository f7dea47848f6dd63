"""The calls before a drop tell whether it belongs to a larger statement."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hive_metastore.ttypes import Database

from strandline.metastore.hive.recent_calls import RecentCalls
from strandline.metastore.interface import Session
from strandline.metastore.thrift import HIVE_CODEC
from strandline.metastore.thrift.messages import CALL, encode_message
from tests.metastore.hive import dml
from tests.metastore.hive.hive_node import refusal
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
