"""Two logs that must agree: how the second is brought level, and which differences are found.

What every log promises is in ``test_log_contract.py``.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, cast

import pytest

from strandline.clock import HybridClock, Timestamp
from strandline.durable import (
    CatalogSnapshot,
    MetastorageLog,
    ShadowLog,
    StashLog,
    Update,
    UpdateLog,
    stash_log,
)
from strandline.durable.collections import STORAGE_USAGE_EVENT
from strandline.durable.log import Scanned
from strandline.durable.persist.blob import FileBlob
from strandline.durable.persist.consensus import Consensus
from strandline.durable.persist.persist_log import PersistLog, shard_name
from strandline.errors import (
    CorruptData,
    Fenced,
    IncompatibleFormat,
    InvalidInput,
    OutOfSync,
    StoreMoved,
    StrandlineError,
    Unavailable,
    VersionNotFound,
    WrongClock,
)
from strandline.fencing import FenceToken
from strandline.metastorage import SqlMetastorage
from strandline.sql import Database, open_database
from tests.durable.updates import TOKEN, begin, measured, update
from tests.servers.sqlite import sqlite_url

NEXT = FenceToken(0, 2)
NAMES = ("metastorage", "stash")


@pytest.fixture
def opened() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def new_database(tmp_path: Path, opened: ExitStack) -> Callable[..., Database]:
    def open_again(**how: Any) -> Database:
        database = open_database(sqlite_url(tmp_path / "strandline.db"), **how)
        opened.callback(database.close)
        return database

    return open_again


@pytest.fixture
def database(new_database: Callable[..., Database]) -> Database:
    return new_database()


@pytest.fixture
def first(database: Database) -> MetastorageLog:
    return MetastorageLog(SqlMetastorage(database, HybridClock()))


@pytest.fixture
def second(database: Database) -> StashLog:
    return StashLog(database, HybridClock())


def shadow(first: UpdateLog, second: UpdateLog) -> ShadowLog:
    return ShadowLog(first, second, names=NAMES)


def test_what_a_shadow_log_allows_is_what_both_logs_allow(
    first: MetastorageLog, second: StashLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(second, "max_updates", 3)
    monkeypatch.setattr(second, "frontier_is_cheap", False)
    for log in (shadow(first, second), shadow(second, first)):
        assert log.max_updates == 3
        assert not log.frontier_is_cheap


def test_a_check_and_a_trim_leave_the_second_log_up_to_date(
    first: MetastorageLog, second: StashLog
) -> None:
    begin(first, 2)
    log = shadow(first, second)
    assert log.check().frontier.upper == second.frontier().upper == 3
    assert log.compact(2, TOKEN)
    assert second.frontier() == first.frontier()
    assert log.prune(STORAGE_USAGE_EVENT, 2, TOKEN)
    assert second.frontier() == first.frontier()


def test_a_change_between_the_two_answers_is_not_a_difference(
    first: MetastorageLog, second: StashLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(shadow(first, second), 2)
    log, other = shadow(first, second), shadow(first, second)

    def fenced(self: StashLog) -> FenceToken | None:
        monkeypatch.undo()
        other.append(3, TOKEN, [update(3, "fence")], new_token=NEXT)
        return self.token()

    monkeypatch.setattr(StashLog, "token", fenced)
    assert log.token() == NEXT


def test_the_blobs_that_either_log_lacks_are_reported(
    first: MetastorageLog, second: StashLog, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for log, key in ((MetastorageLog, "a"), (StashLog, "b")):
        monkeypatch.setattr(log, "copy_blobs", lambda _, folder, key=key: frozenset({key}))
    assert shadow(first, second).copy_blobs(tmp_path) == {"a", "b"}


def contents(log: UpdateLog) -> tuple[object, ...]:
    """All that a log contains."""
    frontier = log.frontier()
    return (
        frontier,
        log.token(),
        log.snapshot(),
        log.snapshot(frontier.upper - 1),
        log.updates(frontier.since + 1, frontier.upper),
        list(log.scan("audit_event", 1, frontier.upper)),
    )


# -- level -----------------------------------------------------------------------------------------


def test_updates_that_only_the_first_log_has_are_copied_to_the_second(
    first: MetastorageLog, second: StashLog
) -> None:
    begin(shadow(first, second), 2)
    first.append(3, TOKEN, [update(3), update(4)])
    first.append(5, TOKEN, [update(5, "fence")], new_token=NEXT)
    first.append(6, NEXT, [update(6)])
    assert second.frontier().upper == 3
    assert shadow(first, second).frontier().upper == 7
    assert contents(second) == contents(first)
    (appended,) = shadow(first, second).append(7, NEXT, [update(7)])
    assert second.updates(7, 8) == (appended,)


def test_a_trim_of_the_first_log_alone_is_repeated_on_the_second(
    first: MetastorageLog, second: StashLog
) -> None:
    begin(shadow(first, second), 4)
    assert first.compact(3, TOKEN)
    assert shadow(first, second).snapshot().version == 3
    assert contents(second) == contents(first)


@pytest.mark.parametrize("first_decides", [True, False])
def test_a_silent_version_that_only_one_log_remembers_after_a_trim_is_not_a_difference(
    first: MetastorageLog, database: Database, tmp_path: Path, *, first_decides: bool
) -> None:
    """The event of a version outlives it, but a silent version has none."""
    consensus = Consensus(SqlMetastorage(database, HybridClock()))
    persist = PersistLog(consensus, FileBlob(tmp_path / "blobs"), shard_name("environment"))
    logs: tuple[UpdateLog, UpdateLog] = (first, persist) if first_decides else (persist, first)
    log = ShadowLog(*logs, names=NAMES)
    begin(log, 2)
    (silent,) = log.append(3, TOKEN, [measured(3)])
    assert log.compact(3, TOKEN)
    assert log.time_of(silent) == (None if first_decides else silent.time)


@pytest.mark.parametrize("first_decides", [True, False])
def test_a_new_catalog_gets_the_environment_id_that_either_log_needs(
    first: MetastorageLog, database: Database, tmp_path: Path, *, first_decides: bool
) -> None:
    consensus = Consensus(SqlMetastorage(database, HybridClock()))
    blob, shard = FileBlob(tmp_path / "blobs"), shard_name("environment")
    persist = PersistLog(consensus, blob, shard, environment="environment")
    logs: tuple[UpdateLog, UpdateLog] = (first, persist) if first_decides else (persist, first)
    assert ShadowLog(*logs, names=NAMES).environment == "environment"


@pytest.mark.parametrize(("silent", "is_trimmed"), [(False, True), (True, False)])
def test_two_times_of_a_version_are_a_difference_unless_it_is_silent_and_was_trimmed(
    first: MetastorageLog, second: StashLog, *, silent: bool, is_trimmed: bool
) -> None:
    log = shadow(first, second)
    begin(log, 2)
    (appended,) = log.append(3, TOKEN, [measured(3) if silent else update(3)])
    assert appended.silent == silent
    if is_trimmed:
        assert log.compact(3, TOKEN)
    other = shadow(first, wrapped(second, time_of=lambda update: None))
    with pytest.raises(CorruptData, match="differ in the time of version 3"):
        other.time_of(appended)


def test_a_version_that_only_the_first_log_has_yet_is_not_scanned(
    first: MetastorageLog, second: StashLog
) -> None:
    log = shadow(first, second)
    begin(log, 2)
    log.append(3, TOKEN, [measured(3)])
    expected = list(log.scan(STORAGE_USAGE_EVENT, 1, 4))
    events = log.scan(STORAGE_USAGE_EVENT, 1, 9)
    first.append(4, TOKEN, [measured(4)])
    assert list(events) == expected


@pytest.mark.parametrize("up_to", [4, 5])
@pytest.mark.parametrize("place", ["before the first", "between the two", "in the middle"])
def test_storage_usage_pruned_during_the_comparison_is_not_a_difference(
    first: MetastorageLog, second: StashLog, monkeypatch: pytest.MonkeyPatch, place: str, up_to: int
) -> None:
    begin(shadow(first, second), 2)
    log, other = shadow(first, second), shadow(first, second)
    log.append(3, TOKEN, [measured(version, 3) for version in range(3, 8)])
    expected = list(other.scan(STORAGE_USAGE_EVENT, 1, 8))
    monkeypatch.setattr(stash_log, "SCANNED_AT_ONCE", 4)
    scan = StashLog.scan if place == "between the two" else MetastorageLog.scan
    of = StashLog if place == "between the two" else MetastorageLog

    def pruning(self: Any, kind: str, start: int, end: int) -> Iterator[Scanned]:
        monkeypatch.setattr(of, "scan", scan)
        events = scan(self, kind, start, end)
        if place == "in the middle":
            events = iter(list(events))
            yield from islice(events, 4)  # one of version 4
        assert other.prune(kind, up_to, TOKEN)
        yield from events

    monkeypatch.setattr(of, "scan", pruning)
    seen = list(log.scan(STORAGE_USAGE_EVENT, 1, 8))
    pruned = 3 * (up_to - 2)
    assert seen == (expected[:4] if place == "in the middle" else []) + expected[pruned:]


def test_an_append_of_storage_usage_that_is_pruned_immediately_is_acknowledged(
    first: MetastorageLog, second: StashLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(shadow(first, second), 2)
    log, other = shadow(first, second), shadow(first, second)
    scan = StashLog.scan

    def pruning(self: StashLog, kind: str, start: int, end: int) -> Iterator[Scanned]:
        if kind == STORAGE_USAGE_EVENT:
            monkeypatch.setattr(StashLog, "scan", scan)
            assert other.prune(kind, 3, TOKEN)
        yield from scan(self, kind, start, end)

    monkeypatch.setattr(StashLog, "scan", pruning)
    (appended,) = log.append(3, TOKEN, [measured(3)])
    assert appended.version == 3
    assert list(log.scan(STORAGE_USAGE_EVENT, 1, 4)) == []


def test_a_prune_of_the_first_log_alone_is_repeated_on_the_second(
    first: MetastorageLog, second: StashLog
) -> None:
    log = shadow(first, second)
    begin(log, 2)
    log.append(3, TOKEN, [measured(3), measured(4)])
    expected = list(first.scan(STORAGE_USAGE_EVENT, 4, 5))
    assert first.prune(STORAGE_USAGE_EVENT, 3, TOKEN)
    assert len(list(second.scan(STORAGE_USAGE_EVENT, 1, 5))) == 4
    assert list(log.scan(STORAGE_USAGE_EVENT, 1, 5)) == expected
    assert list(second.scan(STORAGE_USAGE_EVENT, 1, 5)) == expected
    assert second.frontier() == first.frontier() == log.frontier()


def test_a_second_log_pruned_further_than_the_first_is_a_difference(
    first: MetastorageLog, second: StashLog
) -> None:
    log = shadow(first, second)
    begin(log, 2)
    log.append(3, TOKEN, [measured(3)])
    assert second.prune(STORAGE_USAGE_EVENT, 3, TOKEN)
    with pytest.raises(CorruptData, match="differ in the frontier"):
        log.frontier()


def test_storage_usage_missing_in_the_second_log_is_found(
    first: MetastorageLog, second: StashLog, database: Database
) -> None:
    log = shadow(first, second)
    begin(log, 2)
    log.append(3, TOKEN, [measured(3), measured(4)])
    with database.write() as connection:
        connection.exec_driver_sql("DELETE FROM stash_appended WHERE version = 4 AND number = 1")
    for start in (1, 4):
        with pytest.raises(CorruptData, match="differ in storage_usage_event"):
            list(log.scan(STORAGE_USAGE_EVENT, start, 5))
    assert log.prune(STORAGE_USAGE_EVENT, 3, TOKEN)
    with pytest.raises(CorruptData, match="differ in storage_usage_event"):
        list(log.scan(STORAGE_USAGE_EVENT, 1, 5))


def test_many_updates_are_copied_to_the_second_log_in_parts(
    first: MetastorageLog, second: StashLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strandline.durable.log_copy.COPIED_AT_ONCE", 2)
    begin(first, 7)
    shadow(first, second).frontier()
    assert contents(second) == contents(first)


def test_concurrent_nodes_bring_the_second_log_level_once(
    new_database: Callable[..., Database], first: MetastorageLog, second: StashLog
) -> None:
    begin(first, 20)
    gate = threading.Barrier(3)

    def look(_: int) -> int:
        database, clock = new_database(), HybridClock()
        log = shadow(MetastorageLog(SqlMetastorage(database, clock)), StashLog(database, clock))
        gate.wait()
        return log.frontier().upper

    with ThreadPoolExecutor(3) as threads:
        assert list(threads.map(look, range(3))) == [21, 21, 21]
    assert contents(second) == contents(first)


class Wrapped:
    """A log with some of its methods replaced."""

    def __init__(self, log: UpdateLog, **calls: Any) -> None:
        self._log, self._calls = log, calls

    def __getattr__(self, name: str) -> Any:
        return self._calls.get(name) or getattr(self._log, name)


def wrapped(log: UpdateLog, **calls: Any) -> UpdateLog:
    return cast(UpdateLog, Wrapped(log, **calls))


def away(*_: Any, **__: Any) -> Any:
    raise Unavailable("the server is away")


def moved(*_: Any, **__: Any) -> Any:
    raise StoreMoved("its address leads to a former primary")


def late(*_: Any, **__: Any) -> Any:
    raise WrongClock("its time is far ahead")


@pytest.mark.parametrize(
    ("refuse", "error"), [(away, Unavailable), (moved, StoreMoved), (late, WrongClock)]
)
def test_an_append_in_the_first_log_is_acknowledged_if_the_second_is_unavailable(
    first: MetastorageLog,
    second: StashLog,
    caplog: pytest.LogCaptureFixture,
    refuse: Callable[..., Any],
    error: type[StrandlineError],
) -> None:
    begin(shadow(first, second), 1)
    with caplog.at_level(logging.WARNING):
        (appended,) = shadow(first, wrapped(second, append=refuse)).append(2, TOKEN, [update(2)])
    assert "version 2 is in the log metastorage, but could not be appended to stash" in caplog.text
    with pytest.raises(error):
        shadow(first, wrapped(second, append=refuse)).append(3, TOKEN, [update(3)])
    assert shadow(first, second).updates(2, 3) == (appended,)
    assert first.frontier() == second.frontier()


def test_an_append_that_another_node_copies_and_trims_meanwhile_is_acknowledged(
    first: MetastorageLog, second: StashLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, other = (ShadowLog(second, first, names=("stash", "metastorage")) for _ in range(2))
    begin(log, 3)
    assert log.compact(3, TOKEN)
    time_at = MetastorageLog._time_at

    def behind_a_trim(self: MetastorageLog, *arguments: Any) -> Timestamp:
        monkeypatch.setattr(MetastorageLog, "_time_at", time_at)
        assert other.compact(4, TOKEN)
        return time_at(self, *arguments)

    monkeypatch.setattr(MetastorageLog, "_time_at", behind_a_trim)
    (appended,) = log.append(4, TOKEN, [update(4)])
    assert appended.version == 4
    assert log.frontier().since == 4


@pytest.mark.parametrize("away_log", NAMES)
def test_an_append_that_cannot_be_read_back_is_acknowledged(
    first: MetastorageLog, second: StashLog, away_log: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The first log has it: an error that says otherwise would make the caller append it twice."""
    begin(shadow(first, second), 1)
    logs = {
        name: wrapped(log, updates=away) if name == away_log else log
        for name, log in zip(NAMES, (first, second), strict=True)
    }
    with caplog.at_level(logging.WARNING):
        (appended,) = shadow(*logs.values()).append(2, TOKEN, [update(2)])
    assert "could not be appended to stash or read back" in caplog.text
    assert shadow(first, second).updates(2, 3) == (appended,)


def test_an_append_just_before_the_catalog_moves_to_the_second_log_is_acknowledged(
    first: MetastorageLog, second: StashLog
) -> None:
    begin(shadow(first, second), 1)

    def then_it_moves(*arguments: Any, **named: Any) -> tuple[Update, ...]:
        appended = second.append(*arguments, **named)
        shadow(first, second).append(3, TOKEN, [update(3)], new_token=TOKEN.sealed())
        second.append(4, TOKEN.sealed(), [update(4)], new_token=NEXT)
        return appended

    log = shadow(first, wrapped(second, append=then_it_moves))
    assert log.append(2, TOKEN, [update(2)]) == second.updates(2, 3)


def test_a_second_log_that_refuses_an_update_of_the_first_is_a_difference(
    first: MetastorageLog, second: StashLog
) -> None:
    begin(shadow(first, second), 1)
    first.append(2, TOKEN, [update(2)])

    def refuse(*_: Any, **__: Any) -> Any:
        raise Fenced("another token")

    with pytest.raises(
        CorruptData, match=r"differ in the versions that can be appended next.*another token"
    ):
        shadow(first, wrapped(second, append=refuse)).frontier()


def test_an_append_refused_by_the_first_log_is_not_sent_to_the_second(
    first: MetastorageLog, second: StashLog
) -> None:
    log = shadow(first, second)
    begin(log, 2)
    with pytest.raises(OutOfSync):
        log.append(2, TOKEN, [update(2)])
    with pytest.raises(Fenced):
        log.append(3, NEXT, [update(3)])
    assert contents(first) == contents(second)


def test_an_update_that_is_too_large_for_the_second_log_is_appended_to_neither(
    first: MetastorageLog, second: StashLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = shadow(second, first)
    begin(log, 2)
    before = contents(log)
    monkeypatch.setattr("strandline.metastorage.store.MAX_VALUE_BYTES", 20_000)
    large = replace(update(3), author="a" * 30_000)
    with pytest.raises(InvalidInput, match="at most 20000 are allowed"):
        log.append(3, TOKEN, [large])
    assert contents(first) == contents(second) == before
    log.append(3, TOKEN, [update(3)])
    assert contents(first) == contents(second)


def test_a_read_only_shadow_reads_the_first_log_and_does_not_level_the_second(
    new_database: Callable[..., Database], first: MetastorageLog, second: StashLog
) -> None:
    begin(shadow(first, second), 2)
    first.append(3, TOKEN, [update(3)])
    database = new_database(read_only=True)
    clock = HybridClock()
    reading = shadow(MetastorageLog(SqlMetastorage(database, clock)), StashLog(database, clock))
    assert contents(reading) == contents(first)
    assert second.frontier().upper == 3


def test_a_second_log_that_ends_before_the_first_begins_gets_its_snapshot(
    first: MetastorageLog, second: StashLog
) -> None:
    begin(first, 4)
    assert first.compact(3, TOKEN)
    assert shadow(first, second).frontier().since == 3
    assert contents(second) == contents(first)


@pytest.mark.parametrize("table", ["metastorage", "stash_row", "stash_appended"])
def test_a_flipped_bit_in_either_log_is_refused_or_changes_nothing(
    first: MetastorageLog, second: StashLog, tmp_path: Path, table: str
) -> None:
    log = shadow(first, second)
    begin(log, 4)
    assert log.compact(2, TOKEN)
    expected, unnoticed, tried = contents(log), [], 0
    raw = sqlite3.connect(tmp_path / "strandline.db", isolation_level=None)
    for row, value in raw.execute(f"SELECT rowid, value FROM {table}").fetchall():
        for position in range(0, len(value), 25):
            spoiled = bytearray(value)
            spoiled[position] ^= 1 << position % 8
            raw.execute(f"UPDATE {table} SET value = ? WHERE rowid = ?", (spoiled, row))
            tried += 1
            with suppress(CorruptData, IncompatibleFormat):
                if contents(log) != expected:
                    unnoticed.append((row, position))
        raw.execute(f"UPDATE {table} SET value = ? WHERE rowid = ?", (value, row))
    raw.close()
    assert unnoticed == []
    assert tried > 5
    assert contents(log) == expected


# -- differences -----------------------------------------------------------------------------------


def dropping(log: UpdateLog) -> Callable[..., Any]:
    def append(upper: int, token: Any, updates: Sequence[Update], **named: Any) -> Any:
        times = named.get("times") or [log.check().time] * len(updates)
        return tuple(logged.at(time) for logged, time in zip(updates, times, strict=True))

    return append


def doubling(log: UpdateLog) -> Callable[..., Any]:
    def append(upper: int, token: Any, updates: Sequence[Update], **named: Any) -> Any:
        again = replace(updates[-1], version=updates[-1].version + 1)
        if times := named.get("times"):
            named["times"] = [*times, times[-1]]
        return log.append(upper, token, [*updates, again], **named)[:-1]

    return append


def changing(change: Callable[[Update], Update]) -> Callable[[UpdateLog], Callable[..., Any]]:
    def faulty(log: UpdateLog) -> Callable[..., Any]:
        def append(upper: int, token: Any, updates: Sequence[Update], **named: Any) -> Any:
            appended = log.append(upper, token, [change(logged) for logged in updates], **named)
            return tuple(
                logged.at(there.time) for logged, there in zip(updates, appended, strict=True)
            )

        return append

    return faulty


def other_bytes(logged: Update) -> Update:
    entry = logged.entries[0]
    changed = replace(entry.changes[0], new=update(9).entries[0].changes[0].new)
    return replace(logged, entries=(replace(entry, changes=(changed, *entry.changes[1:])),))


FAULTS: dict[str, Callable[[UpdateLog], Callable[..., Any]]] = {
    "drops": dropping,
    "doubles": doubling,
    "alters the bytes": changing(other_bytes),
    "alters the author": changing(lambda logged: replace(logged, author="bob")),
    "alters the id": changing(lambda logged: replace(logged, id=b"\1" * 16)),
    "loses an entry": changing(lambda logged: replace(logged, entries=())),
    "loses the audit event": changing(lambda logged: replace(logged, appended=())),
}


@pytest.mark.parametrize("faulty", NAMES)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_log_that_drops_duplicates_or_alters_an_update_is_found(
    first: MetastorageLog, second: StashLog, fault: str, faulty: str
) -> None:
    begin(shadow(first, second), 2)
    logs: dict[str, UpdateLog] = {"metastorage": first, "stash": second}
    logs[faulty] = wrapped(logs[faulty], append=FAULTS[fault](logs[faulty]))
    log = shadow(logs["metastorage"], logs["stash"])
    with pytest.raises(CorruptData, match="the two logs of the catalog differ in") as caught:
        log.append(3, TOKEN, [update(3)])
        log.frontier()
    assert "metastorage has" in str(caught.value)
    assert "stash has" in str(caught.value)


def spoiled_snapshot(log: UpdateLog) -> Callable[[], CatalogSnapshot]:
    def first_snapshot() -> CatalogSnapshot:
        snapshot = log.first_snapshot()
        (kind, records), *rest = snapshot.kinds
        return replace(
            snapshot, kinds=((kind, records[:-1]), *rest), times=(snapshot.times[0][:-1],)
        )

    return first_snapshot


READS: dict[str, tuple[Callable[[UpdateLog], Any], Callable[[UpdateLog], object]]] = {
    "first_snapshot": (spoiled_snapshot, lambda log: log.snapshot()),
    "updates": (
        lambda log: (
            lambda start, end: tuple(
                replace(logged, member="n") for logged in log.updates(start, end)
            )
        ),
        lambda log: log.updates(3, 5),
    ),
    "token": (lambda log: lambda: NEXT, lambda log: log.token()),
    "time_of": (lambda log: lambda logged: None, lambda log: log.time_of(log.updates(3, 4)[0])),
    "scan": (
        lambda log: (
            lambda *place: (Scanned(5, scanned.time, scanned.data) for scanned in log.scan(*place))
        ),
        lambda log: list(log.scan("audit_event", 1, 5)),
    ),
    "compact": (
        lambda log: lambda up_to, token: log.compact(up_to + 1, token),
        lambda log: (log.compact(3, TOKEN), log.frontier()),
    ),
}


@pytest.mark.parametrize("faulty", NAMES)
@pytest.mark.parametrize("call", READS)
def test_different_answers_of_the_two_logs_are_found(
    first: MetastorageLog, second: StashLog, call: str, faulty: str
) -> None:
    begin(shadow(first, second), 4)
    if call == "first_snapshot":
        shadow(first, second).compact(2, TOKEN)
    spoil, ask = READS[call]
    logs: dict[str, UpdateLog] = {"metastorage": first, "stash": second}
    logs[faulty] = wrapped(logs[faulty], **{call: spoil(logs[faulty])})
    if call == "compact" and faulty == "metastorage":
        # The first log decides: the second follows it to the version that it reports.
        ask(shadow(logs["metastorage"], logs["stash"]))
        assert second.frontier() == first.frontier()
        return
    with pytest.raises(CorruptData, match="the two logs of the catalog differ in"):
        ask(shadow(logs["metastorage"], logs["stash"]))


def test_versions_that_only_the_first_log_lacks_are_a_difference(
    first: MetastorageLog, second: StashLog
) -> None:
    begin(shadow(first, second), 3)

    def absent(*_: int) -> tuple[Update, ...]:
        raise VersionNotFound("version 2 is not in the log")

    with pytest.raises(CorruptData, match="the two logs of the catalog differ in versions 2 to 3"):
        shadow(wrapped(first, updates=absent), second).updates(2, 4)


def test_an_append_between_the_two_answers_is_no_difference(
    first: MetastorageLog, second: StashLog
) -> None:
    begin(shadow(first, second), 1)
    overtaking = [True]

    def token() -> FenceToken | None:
        answer = first.token()
        if overtaking and overtaking.pop():
            shadow(first, second).append(2, TOKEN, [update(2, "fence")], new_token=NEXT)
        return answer

    assert shadow(wrapped(first, token=token), second).token() == NEXT
