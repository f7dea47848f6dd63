"""What every database has to prove; no test knows the dialect."""

from __future__ import annotations

import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from typing import Any

import pytest
from sqlalchemy import Connection
from sqlalchemy.exc import IntegrityError

from strandline.clock import HybridClock
from strandline.errors import (
    DeadlineExceeded,
    Fenced,
    Stopping,
    StrandlineError,
    UnknownOutcome,
    UnsupportedOperation,
)
from strandline.sql import (
    Database,
    change,
    change_each,
    open_database,
    run,
    run_at_commit,
    stored_time,
    take_time,
)
from strandline.sql.database import _Turn
from strandline.sql.schema_versions import Part
from tests.sql.processes import Process
from tests.sql.work import COUNTER, METADATA, fail_to_put, ids, put


def test_a_write_is_visible_only_after_its_commit(database: Database) -> None:
    with database.write() as connection:
        connection.execute(COUNTER.insert().values(id=1, value=1))
        assert ids(database) == []
    assert ids(database) == [1]


def test_a_write_that_raises_is_undone(database: Database) -> None:
    with pytest.raises(KeyError):
        fail_to_put(database)
    assert ids(database) == []
    put(database, 2, 2)
    assert ids(database) == [2]
    assert database.statistics().failed_writes == 1


def test_a_write_that_fails_undoes_its_own_changes_outside_the_last_one_first(
    database: Database,
) -> None:
    undone: list[str] = []
    with database.write():
        database.if_undone(lambda: undone.append("committed"))
    with pytest.raises(UnknownOutcome), database.write():
        database.if_undone(lambda: undone.append("unknown"))
        raise UnknownOutcome("the connection was lost")
    with pytest.raises(KeyError), database.write():
        database.if_undone(lambda: undone.append("first"))
        database.if_undone(lambda: undone.append("last"))
        raise KeyError
    assert undone == ["last", "first"]


def test_a_constraint_violation_is_raised_to_the_caller(database: Database) -> None:
    put(database, 1, 1)
    with pytest.raises(IntegrityError):
        put(database, 1, 2)


def test_a_read_sees_one_snapshot(database: Database) -> None:
    put(database, 1, 1)
    with database.read() as connection:
        before = connection.exec_driver_sql("SELECT count(*) FROM counter").scalar()
        put(database, 2, 2)
        again = connection.exec_driver_sql("SELECT count(*) FROM counter").scalar()
    assert (before, again) == (1, 1)
    assert ids(database) == [1, 2]


def test_a_read_refuses_to_write(database: Database) -> None:
    with pytest.raises(StrandlineError), database.read() as connection:
        connection.execute(COUNTER.insert().values(id=1, value=1))
    assert ids(database) == []


def test_a_database_opened_for_reading_refuses_every_write(url: str) -> None:
    open_database(url).close()
    with closing(open_database(url, read_only=True)) as database:
        for write in (database.write, database.guarded_write, database.look):
            with pytest.raises(UnsupportedOperation, match="was opened for reading"), write():
                pass


def test_a_guarded_write_changes_nothing_if_its_guard_is_missing_or_raises(
    database: Database,
) -> None:
    def refuse(_: Connection) -> None:
        raise Fenced("a newer epoch")

    with pytest.raises(StrandlineError, match="has no guard yet"), database.guarded_write():
        pytest.fail("the block ran")
    database.guard = refuse
    with pytest.raises(Fenced), database.guarded_write():
        pytest.fail("the block ran")
    calls: list[Connection] = []
    database.guard = calls.append
    with database.guarded_write() as connection:
        assert calls == [connection]


def test_concurrent_increments_lose_nothing(database: Database) -> None:
    """If a transaction were upgraded only at its first write, increments would fail."""
    put(database, 1, 0)

    def increment(_: int) -> None:
        with database.write() as connection:
            value = connection.exec_driver_sql("SELECT value FROM counter").scalar_one()
            run(connection, "UPDATE counter SET value = ?", (value + 1,))

    with ThreadPoolExecutor(16) as threads:
        list(threads.map(increment, range(320)))
    with database.read() as connection:
        assert connection.exec_driver_sql("SELECT value FROM counter").scalar() == 320


def test_writers_of_one_process_take_turns_in_order(database: Database) -> None:
    order: list[int] = []

    def write(number: int) -> None:
        with database.write():
            order.append(number)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(16)]
    with database.write():
        for started, thread in enumerate(threads, start=1):
            thread.start()
            while database.statistics().waiting < started:
                time.sleep(0)
    for thread in threads:
        thread.join()
    assert order == list(range(16))


def test_a_write_waits_for_a_thread_until_its_deadline(database: Database) -> None:
    def late() -> None:
        with database.write(deadline=time.monotonic() + 0.02):
            pass

    with ThreadPoolExecutor(1) as threads:
        with database.write():
            refused = threads.submit(late).exception()
        assert isinstance(refused, DeadlineExceeded)
        assert database.name in refused.message
        assert re.search(r"within [\d.]+ s", refused.message)
        threads.submit(late).result()


def test_a_write_waits_for_another_process_until_its_deadline(database: Database, url: str) -> None:
    with Process("tests.sql.work:hold_a_write", url) as other:
        assert other.hear() == "holding"
        began = time.monotonic()
        with (
            pytest.raises(
                DeadlineExceeded, match=r"another process|process \d+ .* holds"
            ) as refused,
            database.write(deadline=began + 0.05),
        ):
            pass
        assert 0.05 <= time.monotonic() - began < 60
        assert database.name in refused.value.message
        assert ids(database) == []
        with ThreadPoolExecutor(1) as threads:
            waiting = threads.submit(put, database, 8, 8)
            other.say("go on")
            waiting.result()
        assert other.hear() == "done"
        assert other.finish() == 0
    assert ids(database) == [7, 8]


def test_a_write_behind_a_thread_that_waits_for_another_process_names_that_process(
    database: Database, url: str
) -> None:
    with Process("tests.sql.work:hold_a_write", url) as other, ThreadPoolExecutor(1) as threads:
        assert other.hear() == "holding"
        waiting = threads.submit(put, database, 8, 8)
        while database._process_lock.acquire(timeout=0):  # until that thread has its turn
            database._process_lock.release()
        with (
            pytest.raises(DeadlineExceeded, match=r"another process|process \d+ .* holds"),
            database.write(deadline=time.monotonic() + 0.05),
        ):
            pass
        other.say("go on")
        waiting.result()
        assert other.hear() == "done"


def test_a_process_killed_inside_a_write_leaves_nothing_and_blocks_no_writer(
    database: Database, url: str
) -> None:
    with Process("tests.sql.work:hold_a_write", url) as other:
        assert other.hear() == "holding"
        other.kill()
    put(database, 8, 8)
    assert ids(database) == [8]


def test_processes_create_and_change_one_database_concurrently(url: str) -> None:
    with ExitStack() as stack:
        others = [
            stack.enter_context(Process("tests.sql.work:make_and_count", url, 100))
            for _ in range(3)
        ]
        for other in others:
            assert other.hear() == "ready"
        for other in others:
            other.say("go")
        for other in others:
            assert other.hear() == "done"
            assert other.finish() == 0
    database = open_database(url)
    with database.read() as connection:
        assert connection.exec_driver_sql("SELECT value FROM counter").scalar() == 300
    database.close()


def test_a_thread_cannot_open_a_write_inside_its_write(database: Database) -> None:
    with (
        database.write(),
        pytest.raises(StrandlineError, match="already has a write"),
        database.write(),
    ):
        pass
    put(database, 1, 1)


def refused(database: Database) -> bool:
    """Whether the database refuses new calls."""
    try:
        ids(database)
    except Stopping:
        return True
    return False


def test_an_interrupt_at_the_end_of_a_turn_leaves_the_write_lock_free(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(_Turn, "__exit__", interrupt)
        put(database, 1, 1)
    with ThreadPoolExecutor() as other_thread:
        other_thread.submit(put, database, 2, 2).result(timeout=60)
    assert ids(database) == [1, 2]


def test_an_interrupt_just_after_a_commit_undoes_nothing_outside(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit: Any = type(database)._commit  # type: ignore[attr-defined]  # of both dialects

    def interrupted(*arguments: object, **named: object) -> None:
        commit(*arguments, **named)
        raise KeyboardInterrupt

    undone: list[bool] = []
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(type(database), "_commit", interrupted)
        with database.write() as connection:
            connection.execute(COUNTER.insert().values(id=1, value=1))
            database.if_undone(lambda: undone.append(True))
    assert ids(database) == [1]
    assert not undone


def test_a_write_that_an_interrupt_lost_undoes_nothing_of_a_later_write(
    database: Database,
) -> None:
    """An interrupt as a block begins leaves it open until its last reference is gone."""
    lost: Any = database._undoing()
    lost.__enter__()
    undone: list[bool] = []
    with database.write() as connection:
        connection.execute(COUNTER.insert().values(id=1, value=1))
        database.if_undone(lambda: undone.append(True))
        del lost
    assert ids(database) == [1]
    assert not undone


def test_close_waits_for_running_calls_and_refuses_new_ones(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strandline.sql.database._CLOSE_TIMEOUT", 60.0)
    database = open_database(url)
    database.ensure_schema(Part("counter", 1, METADATA))
    inside, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with database.write() as connection:
            inside.set()
            assert leave.wait(30)
            take_time(connection, HybridClock())

    with ThreadPoolExecutor(3) as threads:
        holding = threads.submit(hold)
        assert inside.wait(30)
        closing = threads.submit(database.close)
        while not refused(database):
            time.sleep(0)
        assert not closing.done()
        leave.set()
        holding.result()
        closing.result()
    for call in (database.read, database.write):
        with pytest.raises(Stopping), call():
            pass
    database.close()


def test_stop_waiting_refuses_callers_that_wait_for_the_write_lock(
    database: Database, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Callers behind another process or a thread; the holder of the lock is not affected."""
    with Process("tests.sql.work:hold_a_write", url) as other, ThreadPoolExecutor(2) as threads:
        assert other.hear() == "holding"
        waiting = [threads.submit(put, database, number, 0) for number in (1, 2)]
        while not database.statistics().waiting:
            time.sleep(0)
        database.stop_waiting()
        for refusal in [writing.exception(timeout=60) for writing in waiting]:
            assert isinstance(refusal, Stopping)
            assert "nothing was written" in refusal.message
        with pytest.raises(Stopping):
            put(database, 3, 0)
        other.say("go on")
        assert other.hear() == "done"
    assert ids(database) == [7]
    assert not caplog.records


def test_a_write_that_need_not_wait_succeeds_after_stop_waiting(database: Database) -> None:
    with ThreadPoolExecutor(1) as threads:
        with database.write() as connection:
            connection.execute(COUNTER.insert().values(id=1, value=1))
            database.stop_waiting()
            assert isinstance(threads.submit(put, database, 2, 0).exception(), Stopping)
        threads.submit(put, database, 3, 0).result()
    assert ids(database) == [1, 3]


@pytest.mark.parametrize("how", ["change", "change_each", "at commit", "core"])
def test_a_query_read_ahead_is_repeated_after_a_change(database: Database, how: str) -> None:
    put(database, 1, 1)
    query = ("SELECT value FROM counter WHERE id = ?", (1,))
    with database.write(first=[query]) as connection:
        match how:
            case "change":
                change(connection, "UPDATE counter SET value = ? WHERE id = ?", (2, 1))
            case "change_each":
                change_each(connection, "UPDATE counter SET value = ? WHERE id = ?", [(2, 1)])
            case "at commit":
                increment = "UPDATE counter SET value = value + ? WHERE id = ? RETURNING value"
                run_at_commit(connection, increment, (1, 1))
            case "core":
                connection.execute(COUNTER.update().values(value=2))
        assert run(connection, *query) == [(2,)]


def test_statistics_count_reads_and_writes(url: str) -> None:
    database = open_database(url)
    before = database.statistics()
    with database.read():
        pass
    with database.write():
        pass
    with database.write(is_synced=False):
        pass
    after = database.statistics()
    assert after.reads - before.reads == 1
    assert after.writes - before.writes == 1
    assert after.unsynced_writes == 1
    assert (after.failed_writes, after.lost_turns, after.waiting) == (0, 0, 0)
    database.close()


def steady_mark(database: Database) -> int:
    """A mark that changes only with commits; from now on, the notifications of a server arrive."""
    mark = database.mark()
    while database.mark() != mark:
        mark = database.wait_for_commit(mark, timeout=30)
    return mark


def test_the_mark_changes_with_a_commit_and_only_then(database: Database) -> None:
    before = steady_mark(database)
    ids(database)
    with pytest.raises(KeyError):
        fail_to_put(database)
    assert database.mark() == before
    put(database, 1, 1)
    assert database.mark() != before


def test_a_waiter_is_woken_by_a_commit_of_this_process(database: Database) -> None:
    seen = steady_mark(database)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(database.wait_for_commit, seen, timeout=30)
        put(database, 1, 1)
        assert waiting.result() != seen


def test_a_waiter_is_woken_by_a_commit_on_another_connection(url: str, database: Database) -> None:
    other = open_database(url)
    seen = steady_mark(database)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(database.wait_for_commit, seen, timeout=30)
        put(other, 1, 1)
        assert waiting.result() != seen
    other.close()


def test_a_commit_changes_the_mark_once_for_every_reader(url: str, database: Database) -> None:
    other = open_database(url)
    seen, seen_by_other = steady_mark(database), steady_mark(other)
    for number, writer in enumerate((database, other, database, other), 1):
        put(writer, number, number)
        for reader, before in ((database, seen), (other, seen_by_other)):
            moved = reader.wait_for_commit(before + number - 1, timeout=30)
            assert reader.mark_is_proof or moved == before + number
    other.close()


def test_a_wait_for_a_commit_ends_at_its_timeout(database: Database) -> None:
    seen = steady_mark(database)
    began = time.monotonic()
    assert database.wait_for_commit(seen, timeout=0.02) == seen
    assert time.monotonic() - began >= 0.02
    assert database.wait_for_commit(seen - 1, timeout=30) == seen


def test_a_wait_for_a_commit_returns_when_it_is_woken(database: Database) -> None:
    seen = steady_mark(database)
    began = time.monotonic()
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(database.wait_for_commit, seen, timeout=60)
        while not waiting.done():
            database.wake()
        assert waiting.result() == seen
    assert time.monotonic() - began < 30


def test_a_write_that_is_no_news_stores_the_time_and_does_not_change_the_mark_of_others(
    url: str, database: Database
) -> None:
    other = open_database(url)
    seen = steady_mark(other)
    with database.write(notifies=False, is_provisional=True) as connection:
        taken = take_time(connection, HybridClock())
    if not database.mark_is_proof:  # in a file no commit can go unseen
        put(database, 1, 1)
        moved = other.wait_for_commit(seen, timeout=30)
        assert moved == seen + 1
    with other.read() as connection:
        assert stored_time(connection) == taken
    other.close()


def test_a_read_without_a_free_connection_is_refused_in_time(url: str) -> None:
    with (
        closing(open_database(url, timeout=0.5)) as database,
        ExitStack() as reads,
        pytest.raises(DeadlineExceeded, match="no free connection to"),
    ):
        for _ in range(100):
            reads.enter_context(database.read())
