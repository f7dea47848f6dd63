"""What `Tables` does around a transaction, without a Spark session."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import SparkSession

from strandline.clock import format_timestamp
from strandline.errors import (
    InvalidInput,
    ObjectNotFound,
    PermissionDenied,
    Unavailable,
    VersionNotFound,
    WriteConflict,
)
from strandline.metastore.interface import AsOf, ResolvedTable
from strandline.metastore.session import HttpSession
from strandline.node import Node
from strandline.spark import Tables, TablesTransaction, configure, tables
from strandline.spark.transaction import Counts
from strandline.spark.writing import conform

NOTHING: Any = None
SESSION: Any = SimpleNamespace(stage=None)


class _Contended:
    """Transactions of ``seconds``; the first ``conflicts`` of them fail with a conflict at commit.

    Has the clock by which they and the pauses between them take time.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, conflicts: int, *, seconds: float) -> None:
        self.conflicts, self.seconds = conflicts, seconds
        self.begun = 0
        self.now = 0.0
        self.pauses: list[float] = []
        monkeypatch.setattr(tables, "tables_transaction", self)
        monkeypatch.setattr(tables, "elapsed_seconds", lambda: self.now)
        monkeypatch.setattr(tables, "sleep", self.sleep)

    @contextmanager
    def __call__(self, *_: object) -> Iterator[_Contended]:
        self.begun += 1
        yield self
        self.now += self.seconds
        if self.begun <= self.conflicts:
            raise WriteConflict("bob was first")

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds

    def delete(self, name: str, condition: str) -> Counts:
        return Counts(rows=self.begun, files=1)


def test_a_delete_is_retried_after_many_write_conflicts(monkeypatch: pytest.MonkeyPatch) -> None:
    _Contended(monkeypatch, 20, seconds=0.5)
    assert Tables(NOTHING, SESSION).delete("t", "a = 1") == Counts(rows=21, files=1)


def test_the_random_pause_after_conflicts_grows_with_the_work_that_was_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    contended = _Contended(monkeypatch, 3, seconds=2.0)
    monkeypatch.setattr(tables, "uniform", lambda low, high: high - low)
    Tables(NOTHING, SESSION).delete("t", "a = 1")
    assert contended.pauses == [0.0, 2.0, 4.0]


def test_a_delete_gives_up_after_its_time_and_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    contended = _Contended(monkeypatch, 1_000_000, seconds=60.0)
    monkeypatch.setattr(tables, "uniform", lambda low, high: high)
    with pytest.raises(WriteConflict, match=r"^bob was first; .* \d+ times in 30 minutes; run it"):
        Tables(NOTHING, SESSION).delete("t", "a = 1")
    assert contended.now - tables.DELETE_SECONDS <= 60


@pytest.mark.parametrize("name", ["append", "delete", "read", "txn_id"])
def test_a_transaction_used_outside_a_with_block_raises_an_error_that_shows_the_block(
    name: str,
) -> None:
    pending = Tables(NOTHING, SESSION).transaction()
    with pytest.raises(InvalidInput, match=r"with tables\.transaction\(\) as change:"):
        getattr(pending, name)
    with pytest.raises(AttributeError):
        pending.nothing_like_it  # noqa: B018 - the access itself is tested


def test_a_transaction_whose_block_has_ended_begins_no_second_time() -> None:
    pending = tables.PendingTransaction(nullcontext(NOTHING))
    with pending:
        pass
    expected = r"call tables\.transaction\(\) again"
    with pytest.raises(InvalidInput, match=expected), pending:
        pass


def test_a_notebook_shows_what_each_object_stands_for(tmp_path: Path) -> None:
    with Node.open(tmp_path) as node:
        made = Tables(NOTHING, node.session(user="ann"))
        created = made.create("orders", "id BIGINT")
        snapshot = made.snapshot("orders")
        time = format_timestamp(snapshot.time)
        with made.transaction() as change:
            shown = (node, made, created, snapshot, change)
            assert [repr(value) for value in shown] == [
                f"<Node of {tmp_path}>",
                "<Tables of <LocalSession user='ann'>>",
                f"<ResolvedTable default.orders in file://{tmp_path}/warehouse/orders, version 3>",
                f"<ReaderSnapshot of default.orders at {time}, version 3>",
                "<TablesTransaction 1>",
            ]
    session = HttpSession("http://127.0.0.1:9084", user="ann", secret="a token")
    assert repr(session) == "<HttpSession http://127.0.0.1:9084 user='ann'>"


def test_the_address_of_a_node_is_not_a_session() -> None:
    address: Any = "http://127.0.0.1:9084"
    with pytest.raises(InvalidInput, match=r"HttpSession\('http://127.0.0.1:9084', user=…\)"):
        Tables(NOTHING, address)


def test_a_spark_session_in_place_of_a_session_is_refused_with_the_order() -> None:
    spark: Any = SparkSession
    with pytest.raises(InvalidInput, match="takes a Spark session and then a session"):
        Tables(SESSION, spark)


def test_a_spark_session_cannot_be_configured_after_it_was_made() -> None:
    spark: Any = object.__new__(SparkSession)
    with pytest.raises(InvalidInput, match=r"configure\(SparkSession.builder\).getOrCreate\(\)"):
        configure(spark)


def test_a_condition_of_a_delete_is_required() -> None:
    transaction = TablesTransaction(NOTHING, NOTHING, NOTHING)
    conditions: list[Any] = [None, {"id": 1}]
    for condition in conditions:
        with pytest.raises(InvalidInput, match="a condition is SQL text or a Column, not"):
            transaction.delete("t", condition)


def test_a_pandas_dataframe_is_refused_with_how_to_convert_it() -> None:
    table: ResolvedTable = NOTHING
    rows: Any = pd.DataFrame({"a": [1]})
    with pytest.raises(InvalidInput, match=r"not a pandas DataFrame; make one with spark\.create"):
        conform(rows, table)


def test_a_pandas_on_spark_dataframe_is_refused_with_how_to_convert_it() -> None:
    table: ResolvedTable = NOTHING
    rows: Any = SimpleNamespace(to_spark=None)
    expected = r"not a pandas-on-Spark .*; make one with its to_spark\(\)"
    with pytest.raises(InvalidInput, match=expected):
        conform(rows, table)


def test_a_list_of_tables_leaves_out_views_and_what_the_user_may_not_see() -> None:
    def table(name: str) -> SimpleNamespace:
        if name == "shop.view":
            raise ObjectNotFound("there is no such table")
        if name == "shop.secret":
            raise PermissionDenied("it belongs to bob")
        return SimpleNamespace(descriptor=SimpleNamespace(transactional=True))

    session: Any = SimpleNamespace(
        **vars(SESSION), table=table, tables=lambda schema: ["secret", "t", "view"]
    )
    assert Tables(NOTHING, session).list("shop") == ("shop.t",)


def test_a_hold_is_released_if_its_snapshot_cannot_be_opened() -> None:
    released: list[int] = []

    def opened(names: object, *, at: AsOf) -> SimpleNamespace:
        if at.time is not None:
            raise Unavailable("the node does not answer")
        return SimpleNamespace(time=5)

    def held(*_: str, at: int | None, ttl_ms: int) -> SimpleNamespace:
        if at is not None:
            raise VersionNotFound("the store keeps no history")
        return SimpleNamespace(hold_id=7, at=6)

    session: Any = SimpleNamespace(
        **vars(SESSION), open=opened, hold=held, release_hold=released.append
    )
    with pytest.raises(Unavailable):
        Tables(NOTHING, session).snapshot("shop.t", hold_ms=1_000)
    assert released == [7]


@pytest.mark.parametrize("point", [{"version": 3}, {"time": "2026-11-20T10:00:00Z"}])
def test_a_point_in_the_past_that_cannot_be_held_is_not_replaced_by_the_present(
    point: dict[str, Any],
) -> None:
    def held(*_: str, at: int | None, ttl_ms: int) -> SimpleNamespace:
        if at is not None:
            raise VersionNotFound("the store keeps no history")
        return SimpleNamespace(hold_id=7, at=6)

    opened = SimpleNamespace(time=5)
    session: Any = SimpleNamespace(**vars(SESSION), open=lambda *_, **__: opened, hold=held)
    with pytest.raises(VersionNotFound):
        Tables(NOTHING, session).snapshot("shop.t", **point, hold_ms=1_000)
