"""Commits that are killed at counted points, each in its own process.

Run as a script, it forks one child per round. The child joins the catalog, commits until the kill
point of the round, and dies there by SIGKILL. A kill point is a number of calls (of any function,
in any thread) since the first commit began, so over the rounds it moves through everything that a
commit does. The child reports each acknowledged commit to the parent at once. At the end the parent
prints, as JSON, the acknowledged commits, the number of calls of a whole round, and the exit status
of each child.

To prove that such kills find mistakes, the children can be made to make one of `FAULTS`.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from strandline.catalog import CatalogManager
from strandline.clock import HybridClock
from strandline.durable import DurableCatalogState, MetastorageLog, OpenableState, Update
from strandline.durable.metastorage_log import _put as timed_put
from strandline.durable.metastorage_log import update_key
from strandline.errors import StrandlineError
from strandline.metastorage import Delete, Operation, Outcome, Put, open_metastorage
from strandline.metastorage.sql_store import SqlMetastorage
from strandline.wire.registry import decode, encode
from tests.catalog.catalog_process import open_state, table

COMMITS = 3
"""The number of commits that each child attempts; each creates two tables in one version."""
FAILED, REFUSED = 1, 2
"""Exit statuses of a child that ended by an error: any, or one of the program's own."""


class Countdown:
    """Kills this process after a number of calls."""

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


def commit_until(address: str, round_number: int, kill_after: int, out_fd: int) -> int:
    """Commit, and write each commit's number to the pipe ``told``; returns the number of calls."""
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
        os.write(out_fd, b"%d\n" % commit)
    countdown.armed = False
    manager.stop()
    store.close()
    return countdown.passed


def child(address: str, round_number: int, kill_after: int) -> tuple[list[int], int, int]:
    """The commits that a child acknowledged, its exit status, and how many calls it counted."""
    reading, out_fd = os.pipe()
    counting, counted = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = FAILED
        try:
            os.write(counted, b"%d" % commit_until(address, round_number, kill_after, out_fd))
            status = 0
        except BaseException as error:
            status = REFUSED if isinstance(error, StrandlineError) else FAILED
            traceback.print_exc()  # the parent sees only the status
        finally:
            os._exit(status)
    os.close(out_fd)
    os.close(counted)
    with os.fdopen(reading) as lines:
        acknowledged = [int(line) for line in lines]
    with os.fdopen(counting) as text:
        calls = int(text.read() or 0)
    return acknowledged, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), calls


# -- mistakes that have no effect unless a process is killed ---------------------------------------


def acknowledge_before_the_append(patch: pytest.MonkeyPatch) -> None:
    """A call returns at once, and its version is appended when the process stops."""
    execute, stop = CatalogManager.execute, CatalogManager.stop
    waiting: list[Callable[[], object]] = []

    def execute_later(*arguments: Any, **named: Any) -> None:
        waiting.append(partial(execute, *arguments, **named))

    def stop_after_that(self: CatalogManager) -> None:
        for call in waiting:
            call()
        stop(self)

    patch.setattr(CatalogManager, "execute", execute_later)
    patch.setattr(CatalogManager, "stop", stop_after_that)


def half_of_a_version_first(patch: pytest.MonkeyPatch) -> None:
    """A version is appended with only its first entry, and then written again with all entries."""
    real = MetastorageLog.append

    def append(
        self: MetastorageLog, upper: int, token: Any, updates: Sequence[Update], **named: Any
    ) -> tuple[Update, ...]:
        halves = [replace(update, entries=update.entries[:1]) for update in updates]
        real(self, upper, token, halves, **named)
        again = [timed_put(update_key(logged.version), encode(logged), None) for logged in updates]
        time = self._store.invoke([], again).time
        return tuple(logged.at(time) for logged in updates)

    patch.setattr(MetastorageLog, "append", append)


def head_before_the_update(patch: pytest.MonkeyPatch) -> None:
    """An invoke is two transactions, and the log's head moves in the first of them."""
    real = SqlMetastorage.invoke

    def invoke(
        self: SqlMetastorage, conditions: Any, operations: Sequence[Operation], *rest: Any
    ) -> Outcome:
        outcome = real(self, conditions, operations[:1], *rest)
        if not outcome.succeeded or not operations[1:]:
            return outcome
        return real(self, [], operations[1:])

    patch.setattr(SqlMetastorage, "invoke", invoke)


def redo_without_a_look(patch: pytest.MonkeyPatch) -> None:
    """A node notes what it will append; the next node to join appends it if the note remains."""
    real, join = MetastorageLog.append, OpenableState.join
    note = "about-to-append"

    def append(
        self: MetastorageLog, upper: int, token: Any, updates: Sequence[Update], **named: Any
    ) -> tuple[Update, ...]:
        self._store.invoke([], [Put(note, encode(updates[-1]))])
        result = real(self, upper, token, updates, **named)
        self._store.invoke([], [Delete(note)])
        return result

    def join_and_redo(self: OpenableState, *, member: str) -> DurableCatalogState:
        state = join(self, member=member)
        assert isinstance(state.log, MetastorageLog)
        noted = state.log._store.get(note)
        if noted is not None:
            update = decode(noted.value, Update)
            version = state.recovered[-1].version + 1
            again = replace(update, version=version, id=secrets.token_bytes(16))
            state.log.append(version, state.token, [again])
            return join(self, member=member)
        return state

    patch.setattr(MetastorageLog, "append", append)
    patch.setattr(OpenableState, "join", join_and_redo)


FAULTS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    fault.__name__: fault
    for fault in (
        acknowledge_before_the_append,
        half_of_a_version_first,
        head_before_the_update,
        redo_without_a_look,
    )
}


def main(address: str, rounds: int, *faults: str) -> None:
    """Run two rounds without a kill, to learn the number of calls, then the others."""
    for fault in faults:
        FAULTS[fault](pytest.MonkeyPatch())
    open_metastorage(address, HybridClock()).close()  # imports the driver once for all children
    child(address, -2, 0)
    _, status, calls = child(address, -1, 0)
    results = [
        child(address, number, max(calls * (number + 1) // rounds, 1)) for number in range(rounds)
    ]
    said = {
        "status": status,
        "calls": calls,
        "acknowledged": [
            [number, commit] for number, (commits, _, _) in enumerate(results) for commit in commits
        ],
        "statuses": [status for _, status, _ in results],
    }
    print(json.dumps(said))


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:])
