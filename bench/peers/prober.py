"""One small client, whose answers are timed while others work: a process of its own.

It asks for one table on a kept connection, a question every `PERIOD` seconds. An answer is timed
from when its question was *due*, so that a server that answers nobody for a second has kept five
hundred questions waiting, and not one. Each line on standard input ends a phase: what was due in it
is asked, then the times of its answers, in milliseconds, go to standard output as one line of JSON.

It does not wait for a processor (`bench.peers.own_machine`): what it waits for is to be the node.
"""

from __future__ import annotations

import json
import select
import socket
import sys
import time

from bench.peers.own_machine import stand_apart

PERIOD = 0.002
_RECEIVE_BYTES = 1 << 16


def request(schema: bytes, name: bytes) -> bytes:
    """The bytes of ``get_table(schema, name)``: strict binary, sequence id 0."""

    def string(field: int, value: bytes) -> bytes:
        return b"\x0b" + field.to_bytes(2, "big") + len(value).to_bytes(4, "big") + value

    head = b"\x80\x01\x00\x01" + (9).to_bytes(4, "big") + b"get_table" + b"\x00\x00\x00\x00"
    return head + string(1, schema) + string(2, name) + b"\x00"


def main(port: int, schema: str, name: str) -> None:
    """Ask until standard input ends."""
    stand_apart()
    asked = request(schema.encode(), name.encode())
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        length = _length_of_answer(connection, asked)
        times: list[float] = []
        due = time.perf_counter() + PERIOD

        def ask() -> None:
            connection.sendall(asked)
            left = length
            while left:
                received = len(connection.recv(left))
                if not received:
                    sys.exit("the node closed the connection")
                left -= received
            times.append((time.perf_counter() - due) * 1000)

        while True:
            pause = due - time.perf_counter()
            ready, _, _ = select.select([sys.stdin], [], [], max(0.0, pause))
            if ready:
                end = time.perf_counter()
                if not sys.stdin.readline():
                    return
                while due <= end:
                    ask()
                    due += PERIOD
                print(json.dumps(times), flush=True)
                times.clear()
                due = time.perf_counter() + PERIOD
            else:
                ask()
                due += PERIOD


def _length_of_answer(connection: socket.socket, asked: bytes) -> int:
    """Answers to one question have one length; the first is known to be whole when it pauses."""
    connection.sendall(asked)
    connection.settimeout(1.0)
    length = 0
    while True:
        try:
            length += len(connection.recv(_RECEIVE_BYTES))
        except TimeoutError:
            break
    connection.settimeout(None)
    return length


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3])
