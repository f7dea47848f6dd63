"""Connections to a PostgreSQL server that does not answer."""

from __future__ import annotations

import gc
import os

import pytest

from strandline.sql import postgres_connection
from tests.metastore.session.served import listening_socket


@pytest.mark.slow
def test_an_attempt_to_connect_that_times_out_keeps_no_socket_open() -> None:
    """A node tries again for as long as the server is away."""
    with listening_socket() as silent:
        port = silent.getsockname()[1]
        address, _ = postgres_connection.address_of(f"postgresql://ann@127.0.0.1:{port}/lake")
        opened_before = len(os.listdir("/proc/self/fd"))
        gc.disable()  # a node's collections do not find what an earlier one has seen
        try:
            with pytest.raises(postgres_connection.NotConnected, match="timeout") as refused:
                postgres_connection.connect(address, timeout=2)
            assert len(os.listdir("/proc/self/fd")) == opened_before, refused
        finally:
            gc.enable()
