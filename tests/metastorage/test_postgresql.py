"""What is specific to the metastorage in PostgreSQL; the rest is in the conformance suite."""

from __future__ import annotations

import resource
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from urllib.parse import quote

import psycopg
import pytest
from sqlalchemy import Connection

from strandline.clock import HybridClock, Timestamp, timestamp
from strandline.errors import CorruptData, DeadlineExceeded, Unavailable, UnknownOutcome
from strandline.metastorage import (
    MAX_VALUE_BYTES,
    Beside,
    Delete,
    Head,
    Metastorage,
    Put,
    SqlMetastorage,
    open_metastorage,
)
from strandline.sql import postgres_connection as driver
from strandline.sql import postgres_database
from strandline.sql.postgres_database import PostgresDatabase, open_url
from strandline.sql.postgres_listener import PostgresListener
from tests.metastorage.conftest import impatient, put
from tests.servers import postgresql
from tests.servers.loopback import Cut
from tests.sql.postgres_calls import cut_at_commits, waiting_for_locks
from tests.sql.statements import recorded


@pytest.fixture
def database(url: str) -> Iterator[PostgresDatabase]:
    opened = open_url(url)
    yield opened
    opened.close()


@pytest.fixture
def store(database: PostgresDatabase) -> Iterator[SqlMetastorage]:
    made = SqlMetastorage(database, HybridClock())
    yield made
    made.close()


@pytest.mark.slow
def test_a_value_of_the_largest_size_can_be_stored(store: SqlMetastorage) -> None:
    value = bytes(MAX_VALUE_BYTES)
    put(store, "big", value)
    entry = store.get("big")
    assert entry is not None
    assert entry.value == value


@pytest.mark.parametrize("cut", [Cut.REQUEST, Cut.ANSWER])
@pytest.mark.parametrize("times", [1, 3])
def test_a_check_whose_answer_is_lost_is_repeated_and_never_has_an_unknown_outcome(
    url: str, cut: Cut, times: int
) -> None:
    with cut_at_commits(url) as (address, plan, _):
        cut_off = open_metastorage(address, HybridClock())
        cut_off.invoke([], [Put("a", b"")])
        before = cut_off.check()
        plan += [cut] * times
        if times == 1:
            looked = cut_off.check()
            assert looked.revision == before.revision
            assert looked.time > before.time
        else:
            with pytest.raises(Unavailable, match="nothing was changed") as raised:
                cut_off.check()
            assert type(raised.value) is Unavailable
        assert not plan
        assert cut_off.check().time > before.time
        cut_off.close()


def test_a_read_waits_for_a_delayed_commit(url: str, store: SqlMetastorage) -> None:
    """The commit arrives after its sender has given up, and after the read has begun."""
    with cut_at_commits(url) as (address, plan, proxy):
        cut_off = open_metastorage(address, HybridClock())
        cut_off.revision()
        plan.append(Cut.LATE)
        with pytest.raises(UnknownOutcome, match="read before you try again"):
            cut_off.invoke([], [Put("mine", b"1")])
        assert store.get("mine") is None
        with ThreadPoolExecutor(1) as threads:
            reading = threads.submit(cut_off.get, "mine")
            while not waiting_for_locks(url) and not reading.done():
                time.sleep(0.005)  # only the server knows when the reader waits
            proxy.deliver()
            entry = reading.result()
        assert entry is not None
        assert entry.value == b"1"
        cut_off.close()


@pytest.mark.slow
def test_acknowledged_writes_and_checked_times_survive_a_crash_of_the_server(url: str) -> None:
    ahead = open_metastorage(url, HybridClock(lambda: 5_000_000))
    for number in range(20):
        ahead.invoke([], [Put("a", b"%d" % number)])
    checked = ahead.check()
    server = postgresql.running()
    server.crash()
    server.start()
    entry = ahead.get("a")
    assert entry is not None
    assert entry.value == b"19"
    behind = open_metastorage(url, HybridClock(lambda: 1_000))
    assert behind.invoke([], [Put("b", b"")]).time > checked.time >= timestamp(5_000_000)
    for store in (ahead, behind):
        store.close()


def test_a_look_does_not_wait_for_a_write_of_rows(store: SqlMetastorage) -> None:
    """A large change of rows takes seconds, and a node could not answer for the present."""
    written = store.invoke([], [Put("a", b"")])
    with store._database.write(), ThreadPoolExecutor(1) as threads:
        looked = threads.submit(store.look).result(60)
    assert looked.revision == written.revision
    assert looked.time > written.time


def test_no_read_waits_for_a_write_of_rows_after_a_look_whose_answer_was_lost(
    url: str, store: SqlMetastorage
) -> None:
    with (
        cut_at_commits(url) as (address, plan, _),
        closing(open_metastorage(address, HybridClock())) as cut_off,
        store._database.write(),
    ):
        plan.append(Cut.ANSWER)
        cut_off.look()
        assert not plan
        assert cut_off.get("a") is None


def test_a_look_waits_for_an_invoke_in_flight(url: str, store: SqlMetastorage) -> None:
    """If it did not, the invoke could get the earlier time, and change a past that was read."""
    ahead = open_metastorage(url, HybridClock(lambda: 5_000_000))

    def until_looked(_: Connection, __: Timestamp) -> None:
        looking.append(threads.submit(ahead.look))
        while not waiting_for_locks(url) and not looking[0].done():
            time.sleep(0.005)  # only the server knows when the look waits

    looking: list[Future[Head]] = []
    with ThreadPoolExecutor(1) as threads:
        written = store.invoke([], [Put("a", b""), Beside(until_looked)])
        looked = looking[0].result(60)
    assert looked.revision == written.revision
    assert looked.time > written.time
    ahead.close()


def test_a_check_takes_two_round_trips(store: SqlMetastorage) -> None:
    store.invoke([], [Put("a", b"")])
    with recorded(of_this_thread=True) as statements:
        assert store.check().revision == 1
    assert len(statements) == 2


def test_the_time_is_taken_under_the_lock(store: SqlMetastorage, url: str) -> None:
    """A writer that waited for the lock does not use a time from before the wait."""
    other = open_url(url)
    now = 1_000
    waiting_store = SqlMetastorage(other, HybridClock(lambda: now))
    with ThreadPoolExecutor(1) as threads:
        with other.write():
            waiting = threads.submit(waiting_store.check)
            while other.statistics().waiting == 0:
                time.sleep(0)
            now = 9_000
        assert waiting.result().time >= timestamp(9_000)
    waiting_store.close()
    other.close()


def test_a_write_waits_until_its_deadline_for_a_lock_of_another_process(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_database, "_ANSWER_SECONDS", 60.0)
    holding, asking = open_url(url), open_url(url)
    store = SqlMetastorage(asking, HybridClock())
    with holding.write():
        for call in (store.check, lambda: store.invoke([], [Put("a", b"")])):
            began = time.monotonic()
            refused = pytest.raises(DeadlineExceeded, match=r"another process held .*pg_stat_")
            with impatient(store, 0.1), refused:
                call()
            assert time.monotonic() - began >= 0.1
        assert store.get("a") is None
    assert store.invoke([], [Put("a", b"")]).revision == 1
    assert asking.statistics().lost_turns == 2
    store.close()
    asking.close()
    holding.close()


def test_a_wait_from_before_the_recorded_deletions_reports_a_change(
    database: PostgresDatabase,
) -> None:
    store = SqlMetastorage(database, HybridClock(), deletions_kept=3)
    store.invoke([], [Put(f"k{n}", b"") for n in range(6)])
    for n in range(4):
        store.invoke([], [Delete(f"k{n}")])
    assert store.wait_for_change("else", 1, timeout=0)
    assert not store.wait_for_change("else", 2, timeout=0)
    store.close()


def test_many_waiters_share_one_connection(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_metastorage(url, HybridClock())
    opened, waiters = opened_to_listen(store), set[int]()
    wait = listener(store)._moved.wait_for

    def noted(fact: Callable[[], bool], timeout: float) -> bool:
        waiters.add(threading.get_ident())
        return wait(fact, timeout)

    monkeypatch.setattr(listener(store)._moved, "wait_for", noted)
    seen = store.revision()
    with ThreadPoolExecutor(12) as threads:
        waiting = [threads.submit(store.wait_for_change, "a", seen, timeout=60) for _ in range(12)]
        while len(waiters) < 12 or not hears(store):
            time.sleep(0.001)
        assert len(opened) == 1
        store.invoke([], [Put("a", b"")])
        assert all(future.result() for future in waiting)
    store.close()


def test_the_time_of_an_empty_database_is_0(database: PostgresDatabase) -> None:
    store = SqlMetastorage(database, HybridClock())
    assert store.invoke([], []).time == Timestamp(0)
    store.close()


@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
def test_a_write_sees_the_write_it_waited_for_under_any_default_isolation(
    url: str, isolation: str
) -> None:
    option = quote(f" -cdefault_transaction_isolation={isolation.replace(' ', chr(92) + ' ')}")
    address = url + option
    holding, asking = open_url(address), open_url(address)
    store = SqlMetastorage(asking, HybridClock())
    with ThreadPoolExecutor(1) as threads:
        with holding.write() as connection:
            waiting = threads.submit(store.invoke, [], [Put("a", b"")])
            while not waiting_for_locks(url):
                time.sleep(0.005)  # only the server knows when the writer waits
            connection.exec_driver_sql("UPDATE strandline_clock SET time = time + 1")
        assert waiting.result().revision == 1
    for place in (store, asking, holding):
        place.close()


def hears(store: Metastorage) -> bool:
    """Whether a connection listens for notifications."""
    return listener(store)._listens


def listener(store: Metastorage) -> PostgresListener:
    assert isinstance(store, SqlMetastorage)
    assert isinstance(store._database, PostgresDatabase)
    return store._database._listener


def opened_to_listen(store: Metastorage) -> list[int]:
    """From now on, the processes of the server for the connections that are opened to listen."""
    opened: list[int] = []
    connect = listener(store)._connect

    def noted() -> driver.Connection:
        connection = connect()
        opened.append(connection.info.backend_pid)
        return connection

    listener(store)._connect = noted
    return opened


def test_the_mark_moves_when_the_connection_begins_to_listen(store: SqlMetastorage) -> None:
    """What another process committed since the mark was taken is not notified to it."""
    mark = store._database.mark()
    while not hears(store):
        time.sleep(0.005)
    assert store._database.wait_for_commit(mark, timeout=60) != mark


def test_a_waiter_is_woken_if_the_connection_that_listens_is_silent_and_the_server_does_not_answer(
    store: SqlMetastorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection whose other end is gone brings no more notifications, and no error either."""
    monkeypatch.setattr("strandline.sql.postgres_listener._SILENCE_SECONDS", 0.2)
    server, mark = postgresql.running(), store._database.mark()
    while not hears(store) or store._database.mark() != mark:
        mark = store._database.wait_for_commit(mark, timeout=0.01)
    server.pause()
    try:
        assert store._database.wait_for_commit(mark, timeout=60) != mark
    finally:
        server.resume()


def test_a_change_wakes_the_waiter_while_no_connection_can_be_opened_to_listen(
    url: str, store: SqlMetastorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server accepts no more connections; the existing ones keep working."""

    def no_room() -> object:
        raise psycopg.OperationalError("sorry, too many clients already")

    opened = opened_to_listen(store)
    seen = put(store, "b").revision
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(store.wait_for_change, "a", seen, timeout=120)
        while not hears(store):
            time.sleep(0.005)
        monkeypatch.setattr(listener(store), "_connect", no_room)
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("SELECT pg_terminate_backend(%s)", (opened[-1],))
        while hears(store):
            time.sleep(0.005)
        with closing(open_metastorage(url, HybridClock())) as other:
            put(other, "a")
        assert waiting.result(timeout=60)


def test_a_waiter_is_woken_in_a_process_with_thousands_of_open_files(url: str) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
    with ExitStack() as files:
        for _ in range(1100):
            files.enter_context(Path("/dev/null").open("rb"))
        store = open_metastorage(url, HybridClock())
        files.callback(store.close)
        seen = store.revision()
        with ThreadPoolExecutor(1) as threads:
            waiting = threads.submit(store.wait_for_change, "a", seen, timeout=60)
            while not hears(store):
                assert not waiting.done()
                time.sleep(0.005)
            store.invoke([], [Put("a", b"")])
            assert waiting.result(timeout=60)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_missing_tables_raise_corrupt_data(url: str, store: SqlMetastorage) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("DROP TABLE metastorage")
    for call in (lambda: store.get("a"), lambda: store.invoke([], [Put("a", b"")])):
        with pytest.raises(CorruptData, match=r"created in .* are missing .* search_path"):
            call()
