"""The Apache Thrift client with PyIceberg's stubs; as a script, one process of a measurement."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hive_metastore.ThriftHiveMetastore import Client
from thrift.protocol import TBinaryProtocol
from thrift.transport import TSocket, TTransport

WARM_UP = 100


@contextmanager
def connect(port: int) -> Iterator[Any]:  # Any: the generated client has no types
    """A client connected to ``port`` of this machine."""
    transport = TTransport.TBufferedTransport(TSocket.TSocket("127.0.0.1", port))
    transport.open()
    try:
        yield Client(TBinaryProtocol.TBinaryProtocolAccelerated(transport))
    finally:
        transport.close()


def main(port: int, seconds: float) -> None:
    """Ask for one table again and again; print the answers a second."""
    with connect(port) as client:
        for _ in range(WARM_UP):
            client.get_table("bench", "t")
        count, began = 0, time.perf_counter()
        while time.perf_counter() - began < seconds:
            client.get_table("bench", "t")
            count += 1
        print(count / (time.perf_counter() - began))


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
