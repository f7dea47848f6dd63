"""A small client process whose answers are timed while other clients work.

It requests one table every `PERIOD` seconds, on one connection. An answer is timed from when its
request was *due*, so that a server that does not answer for a second delays five hundred requests,
not one. Each line on standard input ends a phase. The client then sends the requests that were due
in the phase, and writes the times of all its answers, in milliseconds, to standard output as one
line of JSON.

The client does not wait for a processor (`bench.peers.own_machine`), because it must measure only
the time that it waits for the node.
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
    """Return the bytes of ``get_table(schema, name)``: strict binary, sequence id 0."""

    def string(field: int, value: bytes) -> bytes:
        return b"\x0b" + field.to_bytes(2, "big") + len(value).to_bytes(4, "big") + value

    head = b"\x80\x01\x00\x01" + (9).to_bytes(4, "big") + b"get_table" + b"\x00\x00\x00\x00"
    return head + string(1, schema) + string(2, name) + b"\x00"


def main(port: int, schema: str, name: str) -> None:
    """Send requests until standard input ends."""
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
    """Return the length that all answers have. The first is complete when no more bytes come."""
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
