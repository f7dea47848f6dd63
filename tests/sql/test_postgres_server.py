"""An address may lead to a server that was left behind when a standby took over."""

from __future__ import annotations

from contextlib import closing

import psycopg
import pytest

from strandline.errors import StoreMoved
from strandline.sql import postgres_server
from strandline.sql.postgres_database import PostgresDatabase, open_url
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


def test_a_server_that_tells_no_timeline_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_server, "_TIMELINE", "SELECT no_such_function()")
    with closing(open_url(postgresql.running().new_schema())) as database:
        assert database.rows("SELECT 1") == [(1,)]
