"""Commits that are killed at counted points, each in a process of its own.

Run as a script it forks, round after round, a child that joins the catalog, commits until the
round's point and dies there by SIGKILL. A point is a number of calls (of any function, in any
thread) since the first commit began, so that with the rounds it moves through everything that a
commit does. What a child was told is done it says to the parent at once. At the end the parent
prints, as JSON, what was attempted, what was acknowledged and where each child died.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from pathlib import Path
from types import FrameType

from strandline.catalog import CatalogManager
from strandline.clock import HybridClock
from strandline.metastorage import open_metastorage
from tests.catalog.catalog_process import open_state, table

COMMITS = 3
"""So many commits each child attempts; each creates two tables in one version."""


class Countdown:
    """Kills this process after so many calls."""

    def __init__(self, calls: int) -> None:
        self.left = calls
        self.passed = 0
        self.armed = False

    def __call__(self, _frame: FrameType, event: str, _argument: object) -> None:
        if self.armed and event in ("call", "c_call"):
            self.passed += 1
            if self.passed == self.left:
                os.kill(os.getpid(), signal.SIGKILL)


def names(round_number: int, commit: int) -> tuple[str, str]:
    """The two tables of one commit."""
    return f"a_{round_number}_{commit}", f"b_{round_number}_{commit}"


def commit_until(address: str, round_number: int, kill_after: int, told: int) -> int:
    """Commit, and say each commit's number to the pipe ``told``; the calls that it took."""
    countdown = Countdown(kill_after)
    threading.setprofile(countdown)
    sys.setprofile(countdown)
    clock = HybridClock()
    store = open_metastorage(address, clock)
    manager = CatalogManager(
        open_state(store, f"round-{round_number}", delay_ms=0, skew_ms=0), clock
    )
    countdown.armed = True
    for commit in range(COMMITS):
        manager.execute([table(name) for name in names(round_number, commit)], author="ann")
        os.write(told, b"%d\n" % commit)
    countdown.armed = False
    manager.stop()
    store.close()
    return countdown.passed


def child(address: str, round_number: int, kill_after: int) -> tuple[list[int], int, int]:
    """The commits that a child acknowledged, its exit status, and how many calls it counted."""
    reading, told = os.pipe()
    counting, counted = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.write(counted, b"%d" % commit_until(address, round_number, kill_after, told))
            status = 0
        finally:
            os._exit(status)
    os.close(told)
    os.close(counted)
    with os.fdopen(reading) as lines:
        acknowledged = [int(line) for line in lines]
    with os.fdopen(counting) as text:
        calls = int(text.read() or 0)
    return acknowledged, os.waitpid(pid, 0)[1], calls


def main(address: str, rounds: int) -> None:
    """Two rounds that nobody kills, to know how many calls there are, then the others."""
    child(address, -2, 0)
    _, status, calls = child(address, -1, 0)
    results = [
        child(address, number, max(calls * (number + 1) // rounds, 1)) for number in range(rounds)
    ]
    said = {
        "status": status,
        "calls": calls,
        "acknowledged": [
            [number, commit] for number, (done, _, _) in enumerate(results) for commit in done
        ],
        "statuses": [status for _, status, _ in results],
    }
    print(json.dumps(said))


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    main(sys.argv[1], int(sys.argv[2]))
