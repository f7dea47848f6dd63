"""What is specific to databases of PostgreSQL; what all have is in `test_database`."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any
from urllib.parse import quote

import psycopg
import pytest
from psycopg.pq import DiagnosticField
from sqlalchemy.pool import PoolProxiedConnection

from strandline.errors import (
    CorruptData,
    DeadlineExceeded,
    InvalidInput,
    StrandlineError,
    Unavailable,
    UnknownOutcome,
    UnsupportedOperation,
)
from strandline.outage import waiting_until
from strandline.sql import StoreFull, postgres_database, run, run_all, run_at_commit
from strandline.sql import postgres_connection as driver
from strandline.sql.postgres_database import PostgresDatabase, open_url
from strandline.sql.statements import run_with_waiting
from tests.servers import postgresql
from tests.servers.loopback import Cut, Proxy
from tests.servers.pooler import Pooler
from tests.sql.postgres_calls import cut_at_commits, waiting_for_locks
from tests.sql.statements import recorded


@pytest.fixture
def url() -> str:
    """The address of an empty schema in PostgreSQL."""
    return postgresql.running().new_schema()


@pytest.fixture
def database(url: str) -> Iterator[PostgresDatabase]:
    opened = open_url(url)
    yield opened
    opened.close()


def test_a_read_succeeds_even_if_the_server_does_not_answer_its_end(
    database: PostgresDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_database, "_ANSWER_SECONDS", 0.5)
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
        run(connection, "UPDATE strandline_clock SET time = 7 WHERE id = 1 RETURNING id")
        proxy.take_no_answers()
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
