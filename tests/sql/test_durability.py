"""The order in which writes and syncs reach the disk. A killed process could not show it."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from strandline.sql import open_sqlite
from tests.sql.processes import Process
from tests.sql.recording_files import PAGE, Event, faults


def recorded(path: Path, synchronous: str | None = None) -> list[Event]:
    with Process("tests.sql.recording_files:write_and_record", str(path), synchronous) as other:
        events = [(verb, what) for verb, what in other.hear()]
        assert other.finish() == 0
    return events


def test_an_answered_write_is_synced_and_the_log_is_synced_before_the_database(path: Path) -> None:
    events = recorded(path)
    assert faults(events) == []
    # The record must contain enough events to show a fault.
    assert events.count(("answer", "write")) == 6
    assert events.count(("write", "database")) >= 2
    assert events.count(("sync", "database")) >= 2
    assert events.count(("sync", "log")) >= 7
    assert ("truncate", "log") in events


def test_an_unsynced_write_costs_no_sync(path: Path) -> None:
    events = recorded(path)
    ends = [n for n, event in enumerate(events) if event == ("answer", "unsynced write")]
    for end in ends:
        begin = max(n for n in range(end) if events[n][0] == "answer")
        assert {verb for verb, _ in events[begin + 1 : end]} == {"write"}


@pytest.mark.parametrize(
    ("synchronous", "fault"), [("NORMAL", "was answered before"), ("OFF", "was not synced")]
)
def test_a_database_that_syncs_less_is_found(path: Path, synchronous: str, fault: str) -> None:
    assert any(fault in problem for problem in faults(recorded(path, synchronous)))


def test_a_commit_that_could_not_be_synced_and_that_a_read_did_not_see_does_not_come_back(
    path: Path,
) -> None:
    """SQLite leaves it at the end of the log, where the next recovery would find it."""
    with Process("tests.sql.recording_files:fail_to_sync_a_commit", str(path)) as other:
        assert other.hear() == "unknown_outcome"
        assert other.hear() == "unavailable"  # while the disk fails, no read can settle it
        assert other.hear() == [[1]]
        other.kill()
    with closing(open_sqlite(path)) as database:
        assert database.rows("SELECT id FROM counter") == [(1,)]


def test_a_commit_after_a_failed_sync_outlasts_a_power_cut(path: Path) -> None:
    """The failed sync may have lost an unsynced commit before it, where a recovery would stop."""
    with Process("tests.sql.recording_files:fail_to_sync_after_an_unsynced_write", str(path)) as it:
        synced_bytes = it.hear()
        assert it.hear() == "unknown_outcome"
        lost_pages = it.hear()
        it.kill()
    log = path.with_name(f"{path.name}-wal")
    content = bytearray(log.read_bytes())
    for page in lost_pages:
        lost = range(max(page * PAGE, synced_bytes), min((page + 1) * PAGE, len(content)))
        content[lost.start : lost.stop] = bytes(len(lost))
    log.write_bytes(content)
    path.with_name(f"{path.name}-shm").unlink()
    with closing(open_sqlite(path)) as database:
        assert database.rows("SELECT id FROM counter WHERE id < 10") == [(1,), (3,)]
