"""An address may lead to a server that was left behind when a standby took over."""

from __future__ import annotations

import time
from contextlib import closing

import psycopg
import pytest

from strandline.errors import StoreMoved, Unavailable, UnknownOutcome
from strandline.sql import change, postgres_server, run
from strandline.sql import postgres_connection as driver
from strandline.sql.postgres_database import CHANNEL, PostgresDatabase, open_url
from tests.servers import postgresql


def reconnect(database: PostgresDatabase) -> None:
    [(backend,)] = database.rows("SELECT pg_backend_pid()")
    with psycopg.connect(postgresql.running().url()) as administrator:
        administrator.execute("SELECT pg_terminate_backend(%s, 60000)", (backend,))
    database.rows("SELECT 1")


def test_a_former_primary_is_refused_until_the_address_leads_to_its_successor_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with closing(open_url(postgresql.running().new_schema())) as database:
        with monkeypatch.context() as taken_over:
            taken_over.setattr(postgres_server, "_TIMELINE", "SELECT '0000000A'")
            reconnect(database)
        with pytest.raises(StoreMoved, match="a former primary that was started after a takeover"):
            reconnect(database)
        monkeypatch.setattr(postgres_server, "_TIMELINE", "SELECT '0000000A'")
        reconnect(database)


def test_open_connections_to_a_former_primary_are_not_used_once_its_successor_is_reached(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    backend = "SELECT pg_backend_pid()"
    with closing(open_url(postgresql.running().new_schema())) as database:
        [former] = database.rows(backend)
        with database.read():
            monkeypatch.setattr(postgres_server, "_TIMELINE", "SELECT '0000000A'")
            database.rows("SELECT 1")
        with database.read() as first, database.read() as second:
            assert former not in [*run(first, backend), *run(second, backend)]


def test_a_read_that_began_on_a_former_primary_fails_once_its_successor_is_reached(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with closing(open_url(postgresql.running().new_schema())) as database:
        left_behind = pytest.raises(Unavailable, match="another server has taken over from it")
        with left_behind, database.read() as connection:
            monkeypatch.setattr(postgres_server, "_TIMELINE", "SELECT '0000000A'")
            database.rows("SELECT 1")
            run(connection, "SELECT 1")


def test_a_rollback_on_a_connection_to_a_former_primary_closes_it_without_an_error() -> None:
    connection = driver.connect(postgresql.running().url(), timeout=5)
    connection.execute("BEGIN")
    connection.is_left_behind = lambda: True
    connection.rollback()
    assert connection.closed


def test_a_former_primary_is_no_longer_listened_to_once_its_successor_is_reached(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    listeners = "SELECT pid FROM pg_stat_activity WHERE starts_with(query, 'LISTEN')"
    with closing(open_url(postgresql.running().new_schema())) as database:
        database.mark()
        latest_end = time.monotonic() + 10
        while not (before := database.rows(listeners)):
            assert time.monotonic() < latest_end
        monkeypatch.setattr(postgres_server, "_TIMELINE", "SELECT '0000000A'")
        with database.read():
            database.rows("SELECT 1")
        with psycopg.connect(postgresql.running().url(), autocommit=True) as notifier:
            notifier.execute(f"NOTIFY {CHANNEL}")
        while database.rows(listeners) in ([], before):
            assert time.monotonic() < latest_end


def test_a_write_that_ends_on_a_former_primary_is_not_committed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with closing(open_url(postgresql.running().new_schema())) as database:
        left_behind = pytest.raises(UnknownOutcome, match="another server has taken over from it")
        with left_behind, database.write() as connection:
            change(connection, "UPDATE strandline_clock SET time = 7")
            monkeypatch.setattr(postgres_server, "_TIMELINE", "SELECT '0000000A'")
            database.rows("SELECT 1")
        assert database.rows("SELECT time FROM strandline_clock WHERE time = 7") == []


def test_a_server_that_tells_no_timeline_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_server, "_TIMELINE", "SELECT no_such_function()")
    with closing(open_url(postgresql.running().new_schema())) as database:
        assert database.rows("SELECT 1") == [(1,)]
