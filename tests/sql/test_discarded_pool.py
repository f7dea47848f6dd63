"""The pool of connections to a PostgreSQL server is discarded when one of them was lost."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import psycopg
import pytest

from strandline.errors import Unavailable
from strandline.sql import postgres_connection as driver
from strandline.sql import postgres_server, run
from strandline.sql.postgres_database import PostgresDatabase, open_url
from tests.servers import postgresql

BACKEND = "SELECT pg_backend_pid()"


def lose_a_connection(url: str, database: PostgresDatabase) -> None:
    """End an idle connection of the database, and use it."""
    lost = database.rows(BACKEND)[0][0]
    with psycopg.connect(url, autocommit=True) as server:
        server.execute("SELECT pg_terminate_backend(%s, 10000)", (lost,))
    assert database.rows(BACKEND)[0][0] != lost


def test_a_lost_connection_is_noted() -> None:
    url = postgresql.running().new_schema()
    losses: list[None] = []
    with closing(open_url(url)) as database:
        database.if_connection_is_lost(lambda: losses.append(None))
        lose_a_connection(url, database)
        assert len(losses) == 1
        with pytest.raises(Unavailable), database.read() as connection:
            run(connection, "SELECT pg_terminate_backend(pg_backend_pid())")
        assert len(losses) == 2


def test_connections_that_are_made_together_after_a_takeover_run_its_statements_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    url = postgresql.running().new_schema()
    with psycopg.connect(url, autocommit=True) as server:
        server.execute("CREATE SEQUENCE runs")
    with closing(open_url(url)) as database:
        database.rows("SELECT 1")
        database.at_takeover(["SELECT nextval('runs'), pg_sleep(0.1)"])
        monkeypatch.setattr(postgres_server, "_START", "SELECT 'another'")
        together = threading.Barrier(4)

        def use(_: int) -> None:
            with database.read() as connection:
                run(connection, "SELECT 1")
                together.wait(30)

        with ThreadPoolExecutor(4) as threads:
            list(threads.map(use, range(4)))
        assert database.rows("SELECT last_value, is_called FROM runs") == [(1, True)]


def test_a_connection_in_use_while_others_are_lost_is_closed_when_it_returns() -> None:
    url = postgresql.running().new_schema()
    with closing(open_url(url)) as database:
        with database.read() as connection:
            used = connection.connection.driver_connection
            assert used is not None
            lose_a_connection(url, database)
            assert not used.closed
            assert run(connection, "SELECT 1") == [(1,)]
        assert used.closed
        assert database.rows("SELECT 1") == [(1,)]


def test_a_connection_that_is_taken_while_the_pool_is_discarded_is_closed_when_it_returns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    url = postgresql.running().new_schema()
    with closing(open_url(url)) as database:
        dispose, taken = database._engine.dispose, []

        def take_one_first() -> None:
            taken.append(database._first(lambda raw: raw))
            dispose()

        with monkeypatch.context() as patch:
            patch.setattr(database._engine, "dispose", take_one_first)
            lose_a_connection(url, database)
        ((pooled, raw),) = taken
        pooled.close()
        assert raw.closed


def test_a_pool_is_discarded_once_if_several_threads_lose_connections_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with closing(open_url(postgresql.running().new_schema())) as database:
        dispose, both_connected = database._engine.dispose, threading.Barrier(2)
        discarded: list[None] = []

        def use_a_connection(_: int) -> None:
            attempts: list[driver.Connection] = []

            def begin(raw: driver.Connection) -> bool:
                attempts.append(raw)
                if len(attempts) == 1:
                    both_connected.wait(60)
                    raw.execute("SELECT pg_terminate_backend(pg_backend_pid())")
                return True

            pooled, _ = database._first(begin)
            pooled.close()

        monkeypatch.setattr(database._engine, "dispose", lambda: discarded.append(dispose()))
        with ThreadPoolExecutor(2) as threads:
            list(threads.map(use_a_connection, range(2)))
        assert len(discarded) == 1
