"""How the cache follows the log, and when a read of the present may use it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import Connection

from strandline import clock
from strandline.clock import system_elapsed
from strandline.errors import UnknownOutcome
from strandline.metastore.cache import log_applier
from strandline.metastore.cache.cached_store import CachedStore
from strandline.metastore.cache.log_applier import LogApplier
from strandline.metastore.store.notifications import LogPosition, Notification
from strandline.metastore.store.rows import RowKind
from strandline.sql import Database
from tests.metastore.dml import FLIGHTS, ONLY_PROOF, Dml, data_file, files, hits, names

FILES = RowKind.DATA_FILE


def test_a_read_of_the_present_is_not_as_old_as_the_staleness(dml: Dml) -> None:
    now = [100.0]
    cache = CachedStore(dml.store, staleness=1.0, monotonic=lambda: now[0])
    assert files(cache) == []
    dml.append("a")
    now[0] += 0.999
    assert files(cache) == []
    now[0] += 0.001
    assert cache.known_rows(FLIGHTS, FILES, write_ids=None) is None
    assert files(cache) == ["a"]


def test_the_staleness_may_be_longer_than_a_thread_can_wait(dml: Dml) -> None:
    cache = dml.cached(staleness=1e15)
    assert files(cache) == []
    dml.append("a")
    assert files(cache) == []
    cache.log_applier.invalidate_level()
    assert files(cache) == ["a"]


def test_without_staleness_a_read_of_the_present_sees_every_commit(dml: Dml) -> None:
    cache = dml.cached(staleness=0)
    for number in range(5):
        assert len(files(cache)) == number
        dml.append(f"{number}")
    assert cache.statistics().misses == 0


def test_a_reader_that_waits_too_long_for_a_look_of_another_one_reads_the_store(dml: Dml) -> None:
    cache = dml.cached(staleness=0)
    assert files(cache) == []
    dml.append("a")
    with cache.log_applier._checking, ThreadPoolExecutor(1) as other_thread:
        assert other_thread.submit(files, cache).result() == ["a"]
    assert hits(cache) == (1, 1)


@pytest.mark.parametrize("dml", ["postgresql"], indirect=True)
def test_on_a_server_memory_is_level_until_a_notification_arrives_or_it_is_stale(dml: Dml) -> None:
    now = 0.0
    cache = CachedStore(dml.store, staleness=1.0, monotonic=lambda: now)
    location = dml.put_place(FLIGHTS, "s.db/a")
    cache.log_applier.catch_up()
    cache.location(FLIGHTS)
    while cache.log_applier.mark() is None:  # the notification of the own write arrives later
        dml.log.wait(dml.log.mark(), timeout=0.01)
        cache.log_applier.catch_up()
    mark = cache.log_applier.mark()
    assert cache.known_location(FLIGHTS, version=0) == location
    assert cache.known_location(FLIGHTS, version=1) is None  # not projected yet
    now = 1.5
    assert cache.log_applier.mark() is None
    assert cache.known_location(FLIGHTS, version=0) is None
    cache.log_applier.catch_up()
    assert cache.log_applier.mark() == mark
    dml.append("a")
    assert cache.log_applier.mark() is None


@pytest.mark.parametrize("dml", ["postgresql"], indirect=True)
def test_without_staleness_a_commit_in_the_millisecond_of_a_look_is_seen(
    dml: Dml, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = CachedStore(dml.store, staleness=0, monotonic=lambda: 7.0)
    mark = dml.log.mark()
    monkeypatch.setattr(dml.log, "mark", lambda: mark)  # the notification is on its way
    assert files(cache) == []
    dml.append("a")
    assert files(cache) == ["a"]
    assert cache.log_applier.mark() is None


@pytest.mark.parametrize("dml", ["postgresql"], indirect=True)
def test_memory_is_not_fresh_after_the_machine_slept(
    dml: Dml, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = dml.cached(staleness=600.0)
    assert cache.log_applier.look()
    assert cache.log_applier.is_known_level()
    woken = system_elapsed() + 601_000
    monkeypatch.setattr(clock, "system_elapsed", lambda: woken)
    monkeypatch.setattr(dml.log, "mark", lambda: -1)  # a notification is on its way
    assert not cache.log_applier.is_known_level()


@pytest.mark.parametrize("dml", ["postgresql"], indirect=True)
def test_a_look_in_progress_does_not_count_for_a_look_that_is_requested_later(
    dml: Dml, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = CachedStore(dml.store, staleness=1.0, monotonic=lambda: 0.0)
    cache.log_applier.catch_up()
    while not cache.log_applier.is_at_head():  # the notification of the own tables arrives later
        cache.log_applier.catch_up()
    read_next = dml.log.read_next

    def overtaken(applied: int, *, limit: int) -> tuple[LogPosition, list[Notification]]:
        position_and_events = read_next(applied, limit=limit)
        cache.log_applier.invalidate_level()  # a child process has committed after that position
        return position_and_events

    monkeypatch.setattr(dml.log, "read_next", overtaken)
    cache.log_applier.catch_up()
    assert not cache.log_applier.is_at_head()
    monkeypatch.undo()
    cache.log_applier.catch_up()
    assert cache.log_applier.is_at_head()


@pytest.mark.parametrize("dml", ["postgresql"], indirect=True)
def test_readers_share_a_look_that_began_after_they_arrived(
    dml: Dml, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = dml.cached()
    applier, read_next = cache.log_applier, dml.log.read_next
    looks: list[int] = []

    def counted(applied: int, *, limit: int) -> tuple[LogPosition, list[Notification]]:
        looks.append(applied)
        return read_next(applied, limit=limit)

    class Lock:
        """A lock that another reader holds; that reader calls ``look`` before it releases it."""

        def __init__(self, look: Callable[[], object]) -> None:
            self.look = look

        def acquire(self, *, timeout: float) -> bool:
            self.look()
            return True

        def __exit__(self, *_: object) -> None:
            pass

    monkeypatch.setattr(dml.log, "read_next", counted)
    monkeypatch.setattr(applier, "_checking", Lock(applier._look))
    assert cache.log_applier.look()
    assert len(looks) == 1
    under_way = applier._looks  # this look began before the next reader arrived
    monkeypatch.setattr(
        applier, "_checking", Lock(lambda: setattr(applier, "_last_reach", under_way))
    )
    assert cache.log_applier.look()
    assert len(looks) == 2


@pytest.mark.parametrize("dml", ["postgresql"], indirect=True)
def test_a_mark_from_before_another_process_wrote_for_the_node_never_returns(
    dml: Dml, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dml.log, "mark", lambda: 7)  # the notification has not arrived yet
    cache = dml.cached(staleness=1_000)
    cache.log_applier.catch_up()
    before = cache.log_applier.mark()
    assert before is not None
    cache.log_applier.invalidate_level()
    assert cache.log_applier.mark() is None
    cache.log_applier.catch_up()
    after = cache.log_applier.mark()
    assert after is not None
    assert after != before
    monkeypatch.setattr(dml.log, "mark", lambda: 8)  # it has arrived
    cache.log_applier.catch_up()
    assert cache.log_applier.mark() not in (None, before, after)


def test_a_read_after_a_change_whose_outcome_is_unknown_sees_whether_it_was_committed(
    dml: Dml, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, kind = dml.cached(staleness=1_000), type(dml.database)
    assert files(cache) == []
    commit = kind._commit  # type: ignore[attr-defined]  # of both kinds

    def lost(database: Database, connection: Connection, **named: bool) -> None:
        commit(database, connection, **named)
        raise UnknownOutcome("the line was cut")

    with monkeypatch.context() as patch, pytest.raises(UnknownOutcome):
        patch.setattr(kind, "_commit", lost)
        with cache.change(FLIGHTS, author="ann") as change:
            change.stage(add=[data_file("a")])
    assert files(cache) == ["a"]


@ONLY_PROOF
def test_readers_do_not_wait_while_many_events_are_applied(
    dml: Dml, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    cache = CachedStore(dml.store, staleness=600.0, monotonic=lambda: now[0])
    assert files(cache) == []
    dml.append("a")
    dml.append("b")
    now[0] += 1_000  # memory is stale now
    monkeypatch.setattr(log_applier, "BATCH", 1)
    read_next, answers = dml.log.read_next, list[list[str]]()

    def meanwhile(applied: int, *, limit: int) -> tuple[LogPosition, list[Notification]]:
        if applied == dml.log.head() - 1:
            reader = threading.Thread(target=lambda: answers.append(files(cache)))
            reader.start()
            reader.join(60)
        return read_next(applied, limit=limit)

    monkeypatch.setattr(dml.log, "read_next", meanwhile)
    cache.log_applier.catch_up()
    assert answers == [["a", "b"]]
    assert cache.statistics().misses_by_cause["behind"] == 1
    assert cache.log_applier.is_at_head()
    assert files(cache) == ["a", "b"]
    assert hits(cache) == (2, 1)
    assert cache.log_applier.look()


def test_a_started_cache_follows_the_log(dml: Dml) -> None:
    applied = threading.Event()

    class Announcing(LogApplier):
        def catch_up(self) -> None:
            super().catch_up()
            applied.set()

    cache = dml.cached(kind=type("Announced", (CachedStore,), {"applier": Announcing}))
    files(cache)
    cache.follower.start()
    cache.follower.start()
    try:
        dml.append("a")
        while cache.statistics().applied_event < dml.log.head():
            assert applied.wait(60)
            applied.clear()
        known = cache.known_rows(FLIGHTS, FILES, write_ids=dml.transactions.write_ids(FLIGHTS))
        assert known is not None
        assert names(known) == ["a"]
        assert cache.statistics().following
    finally:
        cache.follower.stop()
    assert not cache.statistics().following
    cache.follower.stop()
