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
import sys
import time

from bench.peers.metastore_calls import Connection, prepared
from bench.peers.own_machine import stand_apart

PERIOD = 0.002


def main(port: int, schema: str, name: str) -> None:
    """Send requests until standard input ends."""
    stand_apart()
    asked = prepared("get_table", dbname=schema, tbl_name=name)
    connection = Connection(port)
    connection.ask(asked)
    times: list[float] = []
    due = time.perf_counter() + PERIOD

    def ask() -> None:
        connection.ask(asked)
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


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3])
