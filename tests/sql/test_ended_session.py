"""A PostgreSQL server that shuts down ends a session right after a commit."""

from __future__ import annotations

import logging
import socket
import struct
import threading
from contextlib import closing, suppress

import pytest

from strandline.clock import HybridClock
from strandline.errors import UnknownOutcome
from strandline.metastorage import Put, SqlMetastorage
from strandline.sql.postgres_database import open_url
from tests.servers import postgresql
from tests.servers.loopback import Proxy

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
