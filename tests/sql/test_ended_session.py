"""A PostgreSQL server that shuts down ends a session right after a commit."""

from __future__ import annotations

import logging
import socket
import struct
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress

import psycopg
import pytest

from strandline.clock import HybridClock
from strandline.errors import Unavailable, UnknownOutcome
from strandline.metastorage import Put, SqlMetastorage
from strandline.sql import change
from strandline.sql.postgres_database import open_url
from tests.servers import postgresql
from tests.servers.loopback import Proxy

TIME = "SELECT time FROM strandline_clock WHERE id = 1"
READY = b"Z\0\0\0\5I"
_FIELDS = b"SFATAL\0VFATAL\0C57P01\0Mterminating connection due to administrator command\0\0"
ENDED = b"E" + struct.pack("!I", len(_FIELDS) + 4) + _FIELDS


class EndingProxy(Proxy):
    """Once armed, it answers the next commit as a server that shuts down before the next message.

    The end of the connection arrives later.
    """

    armed = False

    def _answers(self, server: socket.socket, client: socket.socket, cut: threading.Event) -> None:
        with suppress(OSError):
            while data := server.recv(1 << 16):
                if self.armed and b"COMMIT\0" in data:
                    client.sendall(data.removesuffix(READY) + ENDED)
                    return
                client.sendall(data)


def test_a_commit_of_many_bytes_after_which_the_server_ends_the_session_has_an_unknown_outcome(
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = postgresql.running()
    url = server.new_schema()
    with EndingProxy(server.port, lambda _: None) as proxy:
        address = url.replace(f":{server.port}/", f":{proxy.port}/")
        with closing(open_url(address)) as database, caplog.at_level(logging.ERROR):
            store = SqlMetastorage(database, HybridClock())
            proxy.armed = True
            with pytest.raises(UnknownOutcome):
                store.invoke([], [Put("a", bytes(10_000))])
            proxy.armed = False
            assert store.get("a") is not None
    assert not caplog.records


@contextmanager
def standby_away(administrator: psycopg.Connection) -> Iterator[None]:
    """In the block, commits wait for a synchronous standby, and the server hides warnings."""
    try:
        administrator.execute("ALTER SYSTEM SET client_min_messages = 'error'")
        administrator.execute("ALTER SYSTEM SET synchronous_standby_names = 'away'")
        administrator.execute("SELECT pg_reload_conf()")
        yield
    finally:
        administrator.execute("ALTER SYSTEM RESET synchronous_standby_names")
        administrator.execute("ALTER SYSTEM RESET client_min_messages")
        administrator.execute("SELECT pg_reload_conf()")


def test_a_commit_that_a_standby_has_not_confirmed_is_not_read_until_it_has() -> None:
    """The server ends the session that waits for the standby, and shows the commit to others."""
    end_waiting = (
        "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
    )
    latest_end = time.monotonic() + 10
    with (
        closing(open_url(postgresql.running().new_schema(), timeout=0.5)) as database,
        psycopg.connect(postgresql.running().url(), autocommit=True) as administrator,
    ):
        with standby_away(administrator):
            with pytest.raises(UnknownOutcome):
                while time.monotonic() < latest_end:  # the server reads the setting at its leisure
                    with database.write() as connection:
                        change(connection, "UPDATE strandline_clock SET time = 7 WHERE id = 1")
            administrator.execute(end_waiting)
            with pytest.raises(Unavailable, match="it has not confirmed an earlier commit"):
                database.rows(TIME)
            administrator.execute(end_waiting)
            with pytest.raises(UnknownOutcome), database.write():
                assert database.rows(TIME) == [(7,)]  # it waits for no other thread's write
            administrator.execute(end_waiting)
            with pytest.raises(Unavailable):
                database.rows(TIME)
        while True:
            with suppress(Unavailable):
                assert database.rows(TIME) == [(7,)]
                break
            assert time.monotonic() < latest_end


def test_a_commit_whose_wait_for_a_standby_is_cancelled_has_an_unknown_outcome() -> None:
    latest_end = time.monotonic() + 10
    cancel = "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
    with (
        closing(open_url(postgresql.running().new_schema())) as database,
        psycopg.connect(postgresql.running().url(), autocommit=True) as administrator,
        ThreadPoolExecutor(1) as threads,
        standby_away(administrator),
    ):

        def write_until_refused() -> None:
            while time.monotonic() < latest_end:
                with database.write() as connection:
                    change(connection, "UPDATE strandline_clock SET time = 7 WHERE id = 1")

        writing = threads.submit(write_until_refused)
        while not writing.done():
            administrator.execute(cancel)
        with pytest.raises(UnknownOutcome, match="canceling wait for synchronous replication"):
            writing.result()


def test_reads_after_a_commit_of_unknown_outcome_leave_a_writer_its_connections() -> None:
    """A write may read on a second connection, and the reads wait for its commit."""
    latest_end = time.monotonic() + 10
    with (
        closing(open_url(postgresql.running().new_schema())) as database,
        ThreadPoolExecutor(20) as threads,  # more than the pool has connections
    ):
        database._open_outcomes += 1
        with database.write():
            reads = [threads.submit(database.rows, TIME) for _ in range(20)]
            while database.statistics().waiting < len(reads):
                assert time.monotonic() < latest_end
            assert database.rows(TIME) == [(0,)]
        assert [read.result() for read in reads] == [[(0,)]] * len(reads)
