"""The notification log: numbers without a gap, in the order of commits."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from strandline.clock import Timestamp
from strandline.errors import CorruptData
from strandline.metastore.store.notifications import (
    ABORT,
    COMMIT,
    WRITE,
    LogPosition,
    NewEvent,
    NotificationLog,
)
from strandline.sql import change, open_database
from tests.metastore.dml import CANCELLATIONS, FLIGHTS, Dml, data_file, stage


def test_a_new_log_is_empty(dml: Dml) -> None:
    assert dml.log.head() == 0
    assert dml.log.read(0, limit=10) == []


def test_a_log_that_lost_its_position_is_damaged(dml: Dml) -> None:
    """Else the next event would get the number of the first one."""
    dml.append("a")
    with dml.database.write() as connection:
        change(connection, "DELETE FROM notification_sequence")
    with pytest.raises(CorruptData, match="notification_sequence"):
        NotificationLog(dml.database, dml.clock)


def test_events_are_numbered_from_one_and_read_in_order(dml: Dml) -> None:
    with dml.database.write() as connection:
        dml.log.append(connection, [NewEvent(verb=v, body=b"x") for v in "abc"])
        assert dml.log.position_on(connection).event_id == 3
    assert [(e.event_id, e.verb) for e in dml.events()] == [(1, "a"), (2, "b"), (3, "c")]
    assert [(e.event_id, e.verb) for e in dml.log.read(1, limit=1)] == [(2, "b")]
    assert len({event.time for event in dml.events()}) == 1


def test_followers_of_the_log_do_not_read_the_bodies_of_ddl(dml: Dml) -> None:
    with dml.database.write() as connection:
        dml.log.append(connection, [NewEvent(verb="create_table", table_id=4, body=b"x" * 9_000)])
    dml.append("a")
    position, (created, staged, committed) = dml.log.read_next(0, limit=10)
    assert position.event_id == 3
    assert (created.event_id, created.verb, created.table_id) == (1, "create_table", 4)
    assert created.body == b""
    assert [staged, committed] == dml.log.read(1, limit=10)


def test_followers_of_the_log_do_not_read_the_body_of_the_last_applied_event_again(
    dml: Dml,
) -> None:
    dml.append("a")
    staged, committed = dml.log.read(0, limit=10)
    assert staged.body
    _, events = dml.log.read_next(staged.event_id, limit=1)
    assert events == [staged._replace(body=b""), committed]


def test_the_event_number_of_a_rolled_back_transaction_is_reused(dml: Dml) -> None:
    def cut_off() -> None:
        with dml.database.write() as connection:
            dml.log.append(connection, [NewEvent(verb="lost")])
            raise KeyError("power cut")

    with pytest.raises(KeyError):
        cut_off()
    dml.append("a")
    assert [event.event_id for event in dml.events()] == [1, 2]


def test_parallel_writers_leave_no_gap(dml: Dml) -> None:
    other = open_database(dml.address)
    logs = [(dml.database, dml.log), (other, NotificationLog(other, dml.clock))]

    def write(which: int) -> None:
        database, log = logs[which % 2]
        for _ in range(20):
            with database.write() as connection:
                log.append(connection, [NewEvent(verb=str(which))])

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(write, range(4)))
    other.close()
    events = dml.events()
    assert [event.event_id for event in events] == list(range(1, 81))
    assert [event.time for event in events] == sorted({event.time for event in events})


def test_transactions_leave_their_events_in_commit_order(dml: Dml) -> None:
    first, second, third = (dml.begin() for _ in range(3))
    stage(dml.store, first, FLIGHTS, add=[data_file("a")])
    stage(dml.store, second, FLIGHTS, add=[data_file("b")])
    stage(dml.store, second, CANCELLATIONS, add=[data_file("c")])
    dml.transactions.commit(second)
    dml.transactions.abort(first)
    dml.transactions.commit(third)
    events = [(event.verb, event.txn_id) for event in dml.events()]
    assert events == [
        (WRITE, first),
        (WRITE, second),
        (WRITE, second),
        (COMMIT, second),
        (ABORT, first),
    ]
    commit, abort = dml.events()[-2:]
    assert commit.end().writes == ((FLIGHTS, 2), (CANCELLATIONS, 1))
    assert commit.time == dml.transactions.get(second).commit_time
    assert abort.end().writes == ((FLIGHTS, 1),)


def test_a_repeated_commit_or_abort_is_logged_once(dml: Dml) -> None:
    committed = dml.append("a")
    aborted = dml.begin()
    stage(dml.store, aborted, FLIGHTS, add=[data_file("b")])
    dml.transactions.abort(aborted)
    before = dml.log.head()
    dml.transactions.commit(committed)
    dml.transactions.abort(aborted)
    assert dml.log.head() == before


def test_a_projection_moves_only_from_its_current_position(dml: Dml) -> None:
    with dml.database.write() as connection:
        start = dml.log.position_on(connection)
        dml.log.move_projection(connection, start, version=3, entries=1)
    assert start == LogPosition(0, 0, 0)
    with dml.database.write() as connection:
        dml.log.move_projection(connection, start, version=4, entries=0)
    with dml.database.read() as connection:
        assert dml.log.position_on(connection) == LogPosition(0, 3, 1)
    assert dml.log.read_next(0, limit=1) == (LogPosition(0, 3, 1), [])


@pytest.mark.parametrize("dml", ["sqlite"], indirect=True)
def test_a_mark_changes_with_every_commit_and_only_then(dml: Dml) -> None:
    mark = dml.log.mark()
    dml.log.head()
    assert dml.log.mark() == mark
    dml.append("a")
    assert dml.log.mark() != mark
    assert dml.log.wait(mark, timeout=60) == dml.log.mark()


@pytest.mark.parametrize(
    "spoiled",
    [
        {"event_id": 9},
        {"time": Timestamp(5)},
        {"verb": "abort_txn"},
        {"txn_id": None},
        {"table_id": 4},
        {"write_id": 4},
        {"catalog_version": 4},
        {"time": "x"},
        {"body": b""},
    ],
)
def test_an_event_whose_columns_were_changed_is_corrupt(dml: Dml, spoiled: dict[str, Any]) -> None:
    dml.append("a")
    for event in dml.events():
        event.compare()
    event = dml.events()[0]._replace(**spoiled)
    if spoiled != {"body": b""}:  # an event of an older release may have no body
        with pytest.raises(CorruptData):
            event.compare()
    with pytest.raises(CorruptData):
        event.write()


def test_an_event_without_a_body_has_a_checksum(dml: Dml) -> None:
    with dml.database.write() as connection:
        dml.log.append(connection, [NewEvent(verb="moved", table_id=4)])
    (event,) = dml.events()
    event.compare()
    assert not event.has_body
    with pytest.raises(CorruptData):
        event._replace(table_id=5).compare()
