"""Snapshots that clients took without a hold are kept for them by few holds."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest

from strandline import clock
from strandline.clock import MIN_TIMESTAMP, Timestamp, system_elapsed
from strandline.errors import DeadlineExceeded, Unavailable, UnknownOutcome, VersionNotFound
from strandline.metastore import snapshot_holds
from strandline.metastore.snapshot_holds import SnapshotHolds
from strandline.sql import SqliteDatabase
from tests.metastore.dml import Dml

HOUR_MS = 3_600_000


@pytest.mark.parametrize("dml", ["sqlite"], indirect=True)
def test_one_hold_keeps_all_later_times_until_half_of_its_time_is_over(dml: Dml) -> None:
    now = [0.0]
    kept = SnapshotHolds(dml.transactions.holds, HOUR_MS, monotonic=lambda: now[0])
    times: list[Timestamp] = []
    for name in "abc":
        dml.append(name)
        times.append(dml.transactions.latest_time())

    def held() -> list[Timestamp]:
        return [hold.at for hold in dml.transactions.holds.list()]

    for at in (times[1], times[1], times[2]):
        kept.keep(at, last=at)
    assert held() == [times[1]]
    kept.keep(times[0], last=times[1])  # the same files as those of the later time
    assert held() == [times[1]]
    kept.keep(times[0], last=times[0])
    kept.keep(times[1], last=times[1])
    assert held() == times[:2]
    now[0] += HOUR_MS / 1000 + 1
    dml.wall_ms += HOUR_MS + 1_000
    kept.keep(times[1], last=times[1])  # the first two holds last one more hour, this one two
    assert held() == [times[0], times[1], times[1]]


@pytest.mark.parametrize("dml", ["sqlite"], indirect=True)
def test_a_snapshot_below_the_watermark_is_held_at_its_last_time_or_refused(dml: Dml) -> None:
    kept = SnapshotHolds(dml.transactions.holds, HOUR_MS)
    dml.append("a")
    last = dml.transactions.latest_time()
    with pytest.raises(VersionNotFound, match="it is kept from"):
        kept.keep(MIN_TIMESTAMP, last=MIN_TIMESTAMP)
    assert dml.transactions.holds.list() == ()
    kept.keep(MIN_TIMESTAMP, last=last)
    assert [hold.at for hold in dml.transactions.holds.list()] == [last]


@pytest.mark.parametrize("dml", ["sqlite"], indirect=True)
def test_without_a_hold_a_client_is_told_that_the_store_is_busy(
    dml: Dml, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot_holds, "TIMEOUT", 0.01)
    dml.append("a")
    at = dml.transactions.latest_time()
    kept = SnapshotHolds(dml.transactions.holds, HOUR_MS)
    with closing(sqlite3.connect(dml.folder / "strandline.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(DeadlineExceeded, match=r"the store is busy; try again \("):
            kept.keep(at, last=at)
        other.execute("ROLLBACK")
    assert dml.transactions.holds.list() == ()
    kept.keep(at, last=at)
    assert [hold.at for hold in dml.transactions.holds.list()] == [at]


@pytest.mark.parametrize("dml", ["sqlite"], indirect=True)
def test_a_reader_is_not_told_that_a_change_may_have_been_written(
    dml: Dml, monkeypatch: pytest.MonkeyPatch
) -> None:
    dml.append("a")
    at = dml.transactions.latest_time()

    def fail(*_: object) -> None:
        raise UnknownOutcome.of_commit("the disk failed")

    monkeypatch.setattr(SqliteDatabase, "_commit", fail)
    with pytest.raises(Unavailable, match="did not confirm it") as refused:
        SnapshotHolds(dml.transactions.holds, HOUR_MS).keep(at, last=at)
    assert not isinstance(refused.value, UnknownOutcome)


@pytest.mark.parametrize("dml", ["sqlite"], indirect=True)
def test_a_hold_time_of_zero_takes_no_hold(dml: Dml) -> None:
    dml.append("a")
    at = dml.transactions.latest_time()
    SnapshotHolds(dml.transactions.holds, 0).keep(at, last=at)
    assert dml.transactions.holds.list() == ()


@pytest.mark.parametrize("dml", ["sqlite"], indirect=True)
def test_a_hold_expires_while_the_machine_sleeps(dml: Dml, monkeypatch: pytest.MonkeyPatch) -> None:
    dml.append("a")
    at = dml.transactions.latest_time()
    kept = SnapshotHolds(dml.transactions.holds, HOUR_MS)
    kept.keep(at, last=at)
    woken = system_elapsed() + 2 * HOUR_MS + 1
    monkeypatch.setattr(clock, "system_elapsed", lambda: woken)
    dml.wall_ms += 2 * HOUR_MS + 1  # for the holds, as on another machine, which did not sleep
    kept.keep(at, last=at)
    assert [hold.at for hold in dml.transactions.holds.list()] == [at]
