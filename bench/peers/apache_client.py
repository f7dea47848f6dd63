"""The Apache Thrift client with PyIceberg's stubs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hive_metastore.ThriftHiveMetastore import Client
from thrift.protocol import TBinaryProtocol
from thrift.transport import TSocket, TTransport


@contextmanager
def connect(port: int) -> Iterator[Any]:  # Any: the generated client has no types
    """Connect a client to ``port`` of this machine."""
    transport = TTransport.TBufferedTransport(TSocket.TSocket("127.0.0.1", port))
    transport.open()
    try:
        yield Client(TBinaryProtocol.TBinaryProtocolAccelerated(transport))
    finally:
        transport.close()


class _Canned(TTransport.TTransportBase):  # type: ignore[misc]  # Thrift has no types
    """A transport without a server. It answers every request immediately with the same bytes."""

    def __init__(self, answer: bytes) -> None:
        self._answer = answer

    def isOpen(self) -> bool:  # noqa: N802  # the name is Thrift's
        return True

    def read(self, size: int) -> bytes:
        """Return the whole answer, which is no longer than the client's buffer."""
        return self._answer

    def write(self, data: bytes) -> None:
        """Discard the request."""

    def flush(self) -> None:
        """Do nothing, because nothing is buffered."""


def own_seconds(answer: bytes, *, calls: int = 5_000) -> float:
    """Return the client's own processor seconds for a ``get_table`` with this answer."""
    transport = TTransport.TBufferedTransport(_Canned(answer), rbuf_size=len(answer))
    client = Client(TBinaryProtocol.TBinaryProtocolAccelerated(transport))
    began = time.process_time()
    for _ in range(calls):
        client.get_table("bench", "t")
    return (time.process_time() - began) / calls
