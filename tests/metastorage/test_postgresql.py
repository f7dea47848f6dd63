"""What is specific to the metastorage in PostgreSQL; the rest is in the conformance suite."""

from __future__ import annotations

import resource
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg
import pytest
from psycopg.pq import DiagnosticField
from sqlalchemy import Connection
from sqlalchemy.pool import PoolProxiedConnection

from strandline.clock import HybridClock, Timestamp, timestamp
from strandline.errors import (
    CorruptData,
    DeadlineExceeded,
    InvalidInput,
    StrandlineError,
    Unavailable,
    UnknownOutcome,
    UnsupportedOperation,
)
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
from strandline.outage import waiting_until
from strandline.sql import StoreFull, postgres_database, run, run_all, run_at_commit
from strandline.sql import postgres_connection as driver
from strandline.sql.postgres_database import PostgresDatabase, open_url
from strandline.sql.postgres_listener import PostgresListener
from strandline.sql.statements import run_with_waiting
from tests.metastorage.conftest import impatient, put
from tests.servers import postgresql
from tests.servers.loopback import Cut, Proxy
from tests.servers.pooler import Pooler
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


def test_a_read_succeeds_even_if_the_server_does_not_answer_its_end(
    database: PostgresDatabase,
) -> None:
    server = postgresql.running()
    try:
        with database.read() as connection:
            assert connection.exec_driver_sql("SELECT 1").scalar() == 1
            server.pause()
    finally:
        server.resume()
    assert database.rows("SELECT 2") == [(2,)]
    assert len(database._engine.pool._idle) == 1  # type: ignore[attr-defined]  # a ConnectionPool


def test_a_database_that_gives_up_ends_calls_that_the_server_does_not_answer(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_database, "GIVE_UP_SECONDS", 0.1)
    server = postgresql.running()
    with closing(open_url(url, timeout=3600)) as database, ThreadPoolExecutor(1) as threads:
        reads = database.statistics().reads
        server.pause()
        try:
            pending = threads.submit(database.rows, "SELECT 1")
            while database.statistics().reads == reads:
                time.sleep(0.001)
            database.give_up()
            error = pending.exception(timeout=60)
        finally:
            server.resume()
        assert isinstance(error, DeadlineExceeded)
        database._timeout = 60.0  # a busy server may need longer than before it gave up
        assert database.rows("SELECT 2") == [(2,)]


def test_a_database_that_gives_up_ends_calls_that_are_about_to_be_sent(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_database, "GIVE_UP_SECONDS", 0.1)
    with closing(open_url(url, timeout=3600)) as database:
        raw_connection = database._engine.raw_connection

        def given_up() -> PoolProxiedConnection:
            pooled = raw_connection()
            database.give_up()
            return pooled

        monkeypatch.setattr(database._engine, "raw_connection", given_up)
        with pytest.raises(DeadlineExceeded):
            database.rows("SELECT pg_sleep(5)")


def test_a_call_waits_for_the_server_no_longer_than_its_thread_may(url: str) -> None:
    with closing(open_url(url, timeout=3600)) as database:
        with waiting_until(time.monotonic() + 0.1):
            with pytest.raises(DeadlineExceeded):
                database.rows("SELECT pg_sleep(5)")
            with pytest.raises(DeadlineExceeded), database.read() as connection:
                connection.exec_driver_sql("SELECT pg_sleep(5)")
            with database.write() as connection:  # which has a deadline of its own
                connection.exec_driver_sql("SELECT 1")
        assert database.rows("SELECT 2") == [(2,)]


def test_a_call_waits_for_a_connection_no_longer_than_its_thread_may(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect, waits = driver.connect, list[float]()

    def noted(address: str, *, timeout: float) -> driver.Connection:
        waits.append(timeout)
        return connect(address, timeout=60.0)

    monkeypatch.setattr(driver, "connect", noted)
    with (
        waiting_until(time.monotonic() + 60.0),
        closing(open_url(url, timeout=3600)) as database,
    ):
        assert database.rows("SELECT 2") == [(2,)]
    assert max(waits) <= 60.0


def waiting_for_locks(url: str) -> int:
    """How many sessions of the server wait for a lock."""
    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute("SELECT count(*) FROM pg_locks WHERE NOT granted").fetchone()
        assert row is not None
        return int(row[0])


@pytest.mark.slow
def test_a_value_of_the_largest_size_can_be_stored(store: SqlMetastorage) -> None:
    value = bytes(MAX_VALUE_BYTES)
    put(store, "big", value)
    entry = store.get("big")
    assert entry is not None
    assert entry.value == value


@contextmanager
def cut_at_commits(url: str) -> Iterator[tuple[str, list[Cut], Proxy]]:
    """The address of the server behind a proxy, and the cuts at its commits, the next one last."""
    server = postgresql.running()
    plan: list[Cut] = []

    def at_the_commit(data: bytes) -> Cut | None:
        return plan.pop() if plan and b"COMMIT\0" in data else None

    with Proxy(server.port, at_the_commit) as proxy:
        yield url.replace(f":{server.port}/", f":{proxy.port}/"), plan, proxy


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


def test_a_commit_that_is_not_answered_before_its_deadline_has_an_unknown_outcome(
    url: str, database: PostgresDatabase
) -> None:
    server = postgresql.running()
    with (
        Proxy(server.port, lambda _: None) as proxy,
        closing(open_url(url.replace(f":{server.port}/", f":{proxy.port}/"))) as unanswered,
        pytest.raises(UnknownOutcome),
        unanswered.write() as connection,
    ):
        proxy.take_no_answers()  # after the one that the proxy waits for
        run(connection, "UPDATE strandline_clock SET time = 7 WHERE id = 1 RETURNING id")
        unanswered._timeout = 0.1
    with database.write() as connection:  # after that commit
        assert run(connection, TIME) == [(7,)]


TIME = "SELECT time FROM strandline_clock WHERE id = 1"


def in_one_statement(database: PostgresDatabase) -> int:
    return int(database.rows(TIME)[0][0])


def in_a_transaction(database: PostgresDatabase) -> int:
    with database.read() as connection:
        return int(run(connection, TIME)[0][0])


@pytest.mark.parametrize("read", [in_one_statement, in_a_transaction])
def test_a_read_waits_for_a_delayed_write_of_rows_also_after_a_look(
    url: str, read: Callable[[PostgresDatabase], int]
) -> None:
    """The look does not wait for it, so it says nothing about it."""
    with cut_at_commits(url) as (address, plan, proxy), closing(open_url(address)) as cut_off:
        before = read(cut_off)
        plan.append(Cut.LATE)
        with pytest.raises(UnknownOutcome), cut_off.write() as connection:
            run(connection, "UPDATE strandline_clock SET time = time + 1 WHERE id = 1 RETURNING id")
        with cut_off.look():
            pass
        with ThreadPoolExecutor(1) as threads:
            reading = threads.submit(read, cut_off)
            while not waiting_for_locks(url) and not reading.done():
                time.sleep(0.005)  # only the server knows when the reader waits
            proxy.deliver()
            assert reading.result() == before + 1


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


def test_every_connection_has_the_settings_that_writes_rely_on(url: str) -> None:
    """Even if the server is configured otherwise."""
    others = ("synchronous_commit=off", "statement_timeout=1h", "lock_timeout=1h")
    database = open_url(url + quote("".join(f" -c{other}" for other in others)))
    for transaction in (database.read, database.write):
        with transaction() as connection:
            settings = {
                name: connection.exec_driver_sql(f"SHOW {name}").scalar()
                for name in (
                    "synchronous_commit",
                    "idle_in_transaction_session_timeout",
                    "tcp_user_timeout",
                    "tcp_keepalives_idle",
                    "tcp_keepalives_interval",
                    "tcp_keepalives_count",
                    "statement_timeout",
                )
            }
        assert list(settings.values()) == ["on", "10s", "20000", "10", "5", "2", "0"]
    assert database.rows("SHOW lock_timeout") == [("0",)]
    with database.write(is_synced=False) as connection:
        assert connection.exec_driver_sql("SHOW synchronous_commit").scalar() == "off"
    with database.write() as connection:
        assert connection.exec_driver_sql("SHOW synchronous_commit").scalar() == "on"
    database.close()


def test_a_pooler_is_refused_unless_each_connection_has_a_session_of_its_own(url: str) -> None:
    port = postgresql.running().port

    def opened(pooler: Pooler) -> PostgresDatabase:
        return open_url(url.replace(f":{port}/", f":{pooler.port}/"))

    refused = pytest.raises(UnsupportedOperation, match="pool_mode = session")
    with Pooler(port, shares_sessions=True) as pooler, refused:
        opened(pooler)
    with Pooler(port, shares_sessions=False) as pooler, closing(opened(pooler)) as database:
        assert database.rows("SELECT time FROM strandline_clock WHERE id = 1") == [(0,)]


def test_a_call_succeeds_although_a_pooler_has_lost_its_session_of_the_server(url: str) -> None:
    """As while the server restarts. PgBouncer reports that as a violation of the protocol."""
    port = postgresql.running().port
    with (
        Pooler(port, shares_sessions=False) as pooler,
        closing(open_url(url.replace(f":{port}/", f":{pooler.port}/"))) as database,
    ):
        [(backend,)] = database.rows("SELECT pg_backend_pid()")
        with psycopg.connect(url) as other:
            other.execute("SELECT pg_terminate_backend(%s, 60000)", (backend,))
        with database.write() as connection:
            assert connection.exec_driver_sql("SELECT 1").scalar() == 1


def test_a_write_whose_session_timed_out_cannot_commit(database: PostgresDatabase) -> None:
    def be_silent() -> None:
        with database.write() as connection:
            connection.exec_driver_sql("SET LOCAL idle_in_transaction_session_timeout = 1")
            connection.exec_driver_sql("UPDATE strandline_clock SET time = 7")
            time.sleep(0.2)  # the idle time is what is tested

    with pytest.raises((Unavailable, UnknownOutcome)):
        be_silent()
    assert database.rows("SELECT time FROM strandline_clock WHERE id = 1") == [(0,)]


def test_a_machine_that_is_gone_in_the_middle_of_a_write_does_not_keep_the_write_lock(
    url: str, database: PostgresDatabase
) -> None:
    """The server has an answer for it that is longer than the buffers of the connection."""
    server = postgresql.running()
    port = f":{server.port}/"

    def ask(proxy: Proxy, gone: PostgresDatabase) -> None:
        with gone.write() as connection:
            connection.exec_driver_sql("SET LOCAL tcp_user_timeout = 300")
            proxy.take_no_answers()
            asked.set()
            connection.exec_driver_sql("SELECT repeat('x', 1 << 20) FROM generate_series(1, 32)")

    asked = threading.Event()
    with ThreadPoolExecutor(1) as thread:
        with Proxy(server.port, lambda _: None) as proxy:
            gone = open_url(url.replace(port, f":{proxy.port}/"))
            asking = thread.submit(ask, proxy, gone)
            assert asked.wait(60)
            with database.write() as connection:
                connection.exec_driver_sql("UPDATE strandline_clock SET time = 7")
        with pytest.raises(Unavailable):
            asking.result()
        gone.close()


def test_a_write_after_many_reads_prepares_no_statement(database: PostgresDatabase) -> None:
    query = ("SELECT time FROM strandline_clock WHERE id = ?", (1,))
    for _ in range(7):  # the driver prepares a statement that is run often
        with database.read() as connection:
            run(connection, *query)
        with recorded() as statements, database.write(first=[query]) as connection:
            run(connection, *query)
    assert not any("PREPARE" in text or "DEALLOCATE" in text for text, _ in statements)


@pytest.mark.parametrize(("length", "are_prepared"), [(16, True), (17, False)])
def test_statements_with_long_lists_are_planned_for_their_values(
    database: PostgresDatabase, length: int, are_prepared: bool
) -> None:
    """A plan for all values, from when a table was small, would be used when it is large."""
    ids = tuple(range(length))
    query = f"SELECT time FROM strandline_clock WHERE id IN ({', '.join('?' * length)})", ids
    for begin in (database.read, database.write):
        with begin(first=[query]) as connection:
            for _ in range(7):
                run(connection, *query)
                run_all(connection, query, query)
            prepared = "SELECT 1 FROM pg_prepared_statements WHERE statement LIKE ?"
            assert bool(run(connection, prepared, ("%IN (%",))) is are_prepared


def test_texts_are_returned_as_they_were_sent(database: PostgresDatabase) -> None:
    texts = ["plain", "it's", "back\\slash", "%s ? $1", "new\nline", "é😀", ""]
    with database.write() as connection:
        rows = [run_at_commit(connection, "SELECT CAST(? AS text)", (sent,)) for sent in texts]
    assert [row for ((row,),) in rows] == texts


def test_a_statement_on_a_table_that_gets_a_column_is_prepared_anew(
    url: str, database: PostgresDatabase
) -> None:
    """As when another node upgrades the tables while this one runs."""
    for _ in range(7):  # the driver prepares a statement that is run often
        assert database.rows("SELECT * FROM strandline_clock") == [(1, 0), (3, 0)]
    with closing(open_url(url)) as other, other.write() as connection:
        connection.exec_driver_sql("ALTER TABLE strandline_clock ADD COLUMN new INTEGER")
    assert database.rows("SELECT * FROM strandline_clock") == [(1, 0, None), (3, 0, None)]


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1"])
def test_texts_do_not_depend_on_the_encoding_that_is_set_for_clients(
    url: str, encoding: str
) -> None:
    with closing(open_url(f"{url}%20-cclient_encoding%3D{encoding}")) as database:
        assert database.rows("SELECT CAST(? AS text)", ("é😀",)) == [("é😀",)]


def test_a_text_that_the_encoding_of_the_database_lacks_is_invalid_input() -> None:
    server = postgresql.running()
    name = server.new_empty_database(encoding="LATIN1")
    with closing(open_url(server.url(database=name))) as database:
        assert database.rows("SELECT CAST(? AS text)", ("é",)) == [("é",)]
        with pytest.raises(InvalidInput, match='no equivalent in encoding "LATIN1"'):
            database.rows("SELECT CAST(? AS text)", ("😀",))


def test_a_database_whose_order_of_texts_has_changed_is_refused_until_it_is_reindexed() -> None:
    server = postgresql.running()
    name = server.new_empty_database(collation="und")
    url = server.url(database=name)
    open_url(url).close()
    with psycopg.connect(url, autocommit=True) as administrator:
        administrator.execute(
            "UPDATE pg_database SET datcollversion = 'old' WHERE datname = current_database()"
        )
        with pytest.raises(CorruptData, match=f"run REINDEX DATABASE {name}, then") as refused:
            open_url(url)
        _, _, remedy = refused.value.message.rpartition(", then ")
        administrator.execute(remedy.encode())
    open_url(url).close()


def test_an_interrupt_of_a_commit_that_was_done_undoes_nothing_outside(
    database: PostgresDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    def commit(*arguments: Any, **named: Any) -> None:
        monkeypatch.undo()
        run_with_waiting(*arguments, **named)
        raise KeyboardInterrupt

    undone: list[bool] = []
    with pytest.raises(KeyboardInterrupt), database.write() as connection:
        run(connection, "CREATE TABLE made ()")
        database.if_undone(lambda: undone.append(True))
        monkeypatch.setattr(postgres_database, "run_with_waiting", commit)
    assert database.rows("SELECT * FROM made") == []
    assert not undone


def test_an_interrupt_while_a_lost_commit_is_noted_undoes_nothing_outside(
    database: PostgresDatabase, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    undone: list[bool] = []
    with pytest.raises(KeyboardInterrupt), database.write() as connection:
        [(backend,)] = run(connection, "SELECT pg_backend_pid()")
        database.if_undone(lambda: undone.append(True))
        with psycopg.connect(url) as other:
            other.execute("SELECT pg_terminate_backend(%s, 60000)", (backend,))
        monkeypatch.setattr(database, "_if_lost", [interrupt])
    monkeypatch.undo()
    assert not undone


def test_a_look_beside_a_write_that_fails_leaves_its_undo(database: PostgresDatabase) -> None:
    def look() -> None:
        with database.look():
            pass

    undone: list[bool] = []
    with (
        ThreadPoolExecutor(1) as other_thread,
        pytest.raises(ZeroDivisionError),
        database.write(),
    ):
        database.if_undone(lambda: undone.append(True))
        other_thread.submit(look).result(60)
        raise ZeroDivisionError
    assert undone == [True]


def test_a_swallowed_error_does_not_become_a_commit(database: PostgresDatabase) -> None:
    def swallow() -> None:
        with database.write() as connection:
            connection.exec_driver_sql("UPDATE strandline_clock SET time = 7")
            with pytest.raises(Exception, match="no_such_table"):
                connection.exec_driver_sql("SELECT * FROM no_such_table")

    with pytest.raises(Unavailable, match="rolled this write back"):
        swallow()
    assert database.rows("SELECT time FROM strandline_clock WHERE id = 1") == [(0,)]


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


def test_a_server_that_becomes_read_only_takes_no_more_writes(database: PostgresDatabase) -> None:
    """As before a migration, or when a cluster manager demotes it."""
    database.rows("SET default_transaction_read_only = on")
    refused = pytest.raises(
        Unavailable, match=r"accepts no writes \(.*\); .* Switch default_transaction_read_only off"
    )
    with refused, database.write():
        pass
    assert database.rows("SELECT time FROM strandline_clock WHERE id = 1") == [(0,)]
    database.rows("SET default_transaction_read_only = off")
    with database.write() as connection:
        assert run(connection, "SELECT time FROM strandline_clock WHERE id = 1") == [(0,)]


@pytest.mark.parametrize(
    ("source_file", "error", "message"),
    [
        (b"varsup.c", Unavailable, "accepts no writes until it is vacuumed"),
        (b"multixact.c", Unavailable, "accepts no writes until it is vacuumed"),
        (b"indextuple.c", InvalidInput, "a value is larger than"),
        (None, InvalidInput, "a value is larger than"),
    ],
)
def test_the_stop_before_transaction_ids_wrap_around_is_no_value_that_is_too_large(
    database: PostgresDatabase,
    source_file: bytes | None,
    error: type[StrandlineError],
    message: str,
) -> None:
    """A server in that state needs 2 billion transactions. Both errors have one SQLSTATE."""
    info: dict[int, bytes | None] = {DiagnosticField.SOURCE_FILE: source_file}
    with pytest.raises(error, match=message), database.read():
        raise psycopg.errors.ProgramLimitExceeded("in its language", info=info)


def test_a_full_disk_of_the_server_is_no_outage_that_may_pass(database: PostgresDatabase) -> None:
    with pytest.raises(StoreFull, match=r"is full .*; free space"), database.write():
        raise psycopg.errors.DiskFull("could not extend file")


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


def test_a_role_without_the_right_to_use_the_schema_is_refused_with_this_reason(url: str) -> None:
    """PostgreSQL passes over such a schema, and says that it, or a table, does not exist."""
    schema = url.rpartition("%3D")[2]
    with psycopg.connect(url, autocommit=True) as administrator:
        administrator.execute(f"CREATE ROLE {schema} LOGIN".encode())
        administrator.execute(f"GRANT ALL ON SCHEMA {schema} TO {schema}".encode())
        address = url.replace(f"{postgresql.USER}@", f"{schema}@")
        with closing(open_url(address)) as database:
            administrator.execute(f"REVOKE ALL ON SCHEMA {schema} FROM {schema}".encode())
            with pytest.raises(CorruptData, match="the role's right to use the schema"):
                database.rows("SELECT time FROM strandline_clock")
        with pytest.raises(InvalidInput, match="the role of this node may not use"):
            open_url(address)
        administrator.execute(f"DROP OWNED BY {schema}; DROP ROLE {schema}".encode())
