"""Calls that every `Session` refuses: the error of each, and that it changes nothing."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pytest

from strandline.catalog import Command
from strandline.catalog.commands import AlterColumn, CreateSchema, DropTable
from strandline.clock import Timestamp
from strandline.errors import (
    AlreadyExists,
    HoldExpired,
    IllegalChange,
    InvalidInput,
    ObjectNotFound,
    StrandlineError,
    TransactionFinished,
    TransactionNotFound,
    UnsupportedOperation,
    VersionNotFound,
    WriteConflict,
)
from strandline.metastore.interface import AsOf, Session
from strandline.model.types import INT
from strandline.transactions import TransactionState
from tests.metastore.interface.calls import NOBODYS, Served, create, data, write
from tests.metastore.snapshots import paths_of


@dataclass
class Ids:
    """The ids that the failing calls use."""

    schema: str
    table_id: int
    opened: int
    read_only: int
    committed: int
    aborted: int


def ddl(command: Callable[[Ids], Command]) -> Callable[[Session, Ids], object]:
    return lambda session, ids: session.execute(command(ids))


FAILURES: dict[str, tuple[type[StrandlineError], Callable[[Session, Ids], object]]] = {
    "create_a_schema_twice": (AlreadyExists, ddl(lambda i: CreateSchema(name=i.schema))),
    "create_a_table_nowhere": (ObjectNotFound, ddl(lambda i: create("no_such_schema"))),
    "drop_a_missing_table": (ObjectNotFound, ddl(lambda i: DropTable(schema=i.schema, table="x"))),
    "lose_data": (
        IllegalChange,
        ddl(lambda i: AlterColumn(schema=i.schema, table="t", column="k", type=INT)),
    ),
    "a_name_that_is_empty": (InvalidInput, ddl(lambda i: CreateSchema(name=""))),
    "execute_with_a_timeout_that_is_no_number": (
        InvalidInput,
        lambda s, i: s.execute(DropTable(schema=i.schema, table="t"), timeout=math.nan),
    ),
    "execute_with_a_timeout_that_is_a_flag": (
        InvalidInput,
        lambda s, i: s.execute(DropTable(schema=i.schema, table="t"), timeout=True),
    ),
    "undo_with_a_timeout_that_is_no_number": (
        InvalidInput,
        lambda s, i: s.undo(2, timeout=math.nan),
    ),
    "table_missing": (ObjectNotFound, lambda s, i: s.table(f"{i.schema}.x")),
    "table_not_a_name": (InvalidInput, lambda s, i: s.table("a.b.c")),
    "table_future_version": (
        VersionNotFound,
        lambda s, i: s.table(f"{i.schema}.t", at=AsOf(version=NOBODYS)),
    ),
    "table_negative_version": (
        InvalidInput,
        lambda s, i: s.table(f"{i.schema}.t", at=AsOf(version=-1)),
    ),
    "table_not_a_time": (
        InvalidInput,
        lambda s, i: s.table(f"{i.schema}.t", at=AsOf(time=Timestamp(0))),
    ),
    "table_time_as_text": (
        InvalidInput,
        lambda s, i: s.table(f"{i.schema}.t", at=AsOf(time="2026-11-20")),  # type: ignore[arg-type]  # wrong
    ),
    "tables_of_no_schema": (ObjectNotFound, lambda s, i: s.tables("no_such_schema")),
    "compact_the_future": (VersionNotFound, lambda s, i: s.compact(NOBODYS)),
    "open_the_future": (
        VersionNotFound,
        lambda s, i: s.open([f"{i.schema}.t"], at=AsOf(time=Timestamp(1 << 62))),
    ),
    "open_at_two_points": (
        InvalidInput,
        lambda s, i: s.open([f"{i.schema}.t"], at=AsOf(version=1), txn_id=i.opened),
    ),
    "open_in_no_transaction": (
        TransactionNotFound,
        lambda s, i: s.open([f"{i.schema}.t"], txn_id=NOBODYS),
    ),
    "open_in_an_aborted_one": (
        TransactionFinished,
        lambda s, i: s.open([f"{i.schema}.t"], txn_id=i.aborted),
    ),
    "open_a_missing_table": (
        ObjectNotFound,
        lambda s, i: s.open([f"{i.schema}.t", f"{i.schema}.x"]),
    ),
    "open_what_is_no_name": (InvalidInput, lambda s, i: s.open(["a.b.c"])),
    "open_one_name": (InvalidInput, lambda s, i: s.open(f"{i.schema}.t")),
    "hold_before_history": (VersionNotFound, lambda s, i: s.hold("r", "a", at=Timestamp(1))),
    "hold_for_no_time": (
        InvalidInput,
        lambda s, i: s.hold("r", "a", at=Timestamp(1 << 56), ttl_ms=0),
    ),
    "renew_no_hold": (HoldExpired, lambda s, i: s.renew_hold(NOBODYS)),
    "transaction_missing": (TransactionNotFound, lambda s, i: s.transaction(NOBODYS)),
    "heartbeat_missing": (TransactionNotFound, lambda s, i: s.heartbeat(NOBODYS)),
    "heartbeat_aborted": (TransactionFinished, lambda s, i: s.heartbeat(i.aborted)),
    "write_id_missing": (
        TransactionNotFound,
        lambda s, i: s.stage(NOBODYS, i.table_id),
    ),
    "write_id_committed": (
        TransactionFinished,
        lambda s, i: s.stage(i.committed, i.table_id),
    ),
    "write_id_read_only": (
        UnsupportedOperation,
        lambda s, i: s.stage(i.read_only, i.table_id),
    ),
    "stage_missing": (TransactionNotFound, lambda s, i: s.stage(NOBODYS, i.table_id)),
    "stage_committed": (
        TransactionFinished,
        lambda s, i: s.stage(i.committed, i.table_id, add=[data("x")]),
    ),
    "stage_read_only": (
        UnsupportedOperation,
        lambda s, i: s.stage(i.read_only, i.table_id, add=[data("x")]),
    ),
    "stage_a_taken_name": (
        AlreadyExists,
        lambda s, i: s.stage(i.opened, i.table_id, add=[data("there")]),
    ),
    "stage_a_name_twice": (
        AlreadyExists,
        lambda s, i: s.stage(i.opened, i.table_id, add=[data("x"), data("x")]),
    ),
    "stage_an_unknown_row": (
        WriteConflict,
        lambda s, i: s.stage(i.opened, i.table_id, remove=["never"]),
    ),
    "touch_an_unknown_row": (
        WriteConflict,
        lambda s, i: s.stage(i.opened, i.table_id, touch=["never"]),
    ),
    "stage_less_than_nothing": (
        InvalidInput,
        lambda s, i: s.stage(i.opened, i.table_id, add=[data("x", rows=-1)]),
    ),
    "stage_without_a_path": (
        InvalidInput,
        lambda s, i: s.stage(i.opened, i.table_id, add=[data("")]),
    ),
    "commit_missing": (TransactionNotFound, lambda s, i: s.commit(NOBODYS)),
    "commit_aborted": (TransactionFinished, lambda s, i: s.commit(i.aborted)),
    "abort_missing": (TransactionNotFound, lambda s, i: s.abort(NOBODYS)),
    "abort_committed": (TransactionFinished, lambda s, i: s.abort(i.committed)),
    "send_to_an_executor": (UnsupportedOperation, lambda s, i: pickle.dumps(s)),
}


@pytest.fixture(scope="module")
def ids(served: Served) -> Iterator[Ids]:
    session = served.open("local")
    session.execute([CreateSchema(name="failures"), create("failures")])
    table_id = session.table("failures.t").descriptor.id
    committed = write(session, table_id, data("there"))
    aborted = session.begin().txn_id
    session.abort(aborted)
    made = Ids(
        schema="failures",
        table_id=table_id,
        opened=session.begin().txn_id,
        read_only=session.begin(read_only=True).txn_id,
        committed=committed,
        aborted=aborted,
    )
    yield made
    assert paths_of(session, "failures.t", txn_id=made.opened) == ["there"], (
        "a failure left something"
    )
    assert session.transaction(made.opened).state is TransactionState.OPEN


@pytest.mark.parametrize("failure", FAILURES)
def test_an_error_has_the_same_class_and_message_locally_and_over_http(
    served: Served, ids: Ids, failure: str
) -> None:
    expected, call = FAILURES[failure]
    raised = []
    for kind in ("local", "http"):
        session = served.open(kind)
        with pytest.raises(expected) as caught:
            call(session, ids)
        session.close()
        raised.append((type(caught.value), _timeless(caught.value.message)))
    assert raised[0] == raised[1]


def _timeless(message: str) -> Sequence[str]:
    """Return the words of a message without those that contain digits, such as times."""
    return [word for word in message.split() if not any(c.isdigit() for c in word)]
