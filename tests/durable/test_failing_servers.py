"""The SQL server and the blobs fail and stall during commits.

A proxy of these tests cuts the connection to a server before a request or after it, or delays the
request; system calls on files fail. After every fault, for every reader: an acknowledged update is
in the log once, a refused one is not in it, and one of unknown outcome is there whole or not at
all.
"""

from __future__ import annotations

import errno
import os
import random
import socket
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from strandline.clock import HybridClock
from strandline.durable import Update, UpdateLog
from strandline.durable.update import AuditEvent
from strandline.errors import OutOfSync, Unavailable, UnknownOutcome
from strandline.wire.registry import decode
from tests.durable.logs import (
    POSTGRESQL,
    LogKind,
    OnMetastorage,
    Persist,
    PersistOnS3,
    Shadow,
    Stash,
)
from tests.durable.updates import TOKEN, begin, update
from tests.servers import s3
from tests.servers.loopback import Cut, CutOnce, Plan, Proxy, RandomFaults

KINDS: dict[str, LogKind] = {
    "metastorage": OnMetastorage(POSTGRESQL),
    "stash": Stash(POSTGRESQL),
    "persist": Persist(POSTGRESQL, tidied_every=1),
    "persist on s3": PersistOnS3(POSTGRESQL, tidied_every=1),
    "shadow": Shadow(Stash(POSTGRESQL), OnMetastorage(POSTGRESQL), share=False),
}
LATE_SECONDS = 0.02
MOST_MESSAGES = 40
"""Messages of one commit that are cut; maintenance of persist may send many more after these."""
IN_SHORT = {"persist": 8, "persist on s3": 6, "shadow": 10}
"""How many of these messages the quick form cuts."""
LARGE = 12
"""Objects of an update whose rows go into a part."""


@pytest.fixture(autouse=True)
def _sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small parts, each a blob; snapshots in one piece, or no trim would ever succeed."""
    monkeypatch.setattr("tests.durable.logs.CHUNKED", 1 << 20)
    monkeypatch.setattr("strandline.durable.persist.shard.INLINE_BYTES", 800)
    monkeypatch.setattr("strandline.durable.persist.blob.RETRIES", 0)


# -- what writers were told, and what the log contains ---------------------------------------------


@dataclass
class Commits:
    """What the writers of a log were told about each append, by the ids of its updates."""

    acknowledged: dict[bytes, Update] = field(default_factory=dict)
    refused: set[bytes] = field(default_factory=set)
    left_open: set[bytes] = field(default_factory=set)
    appends: list[tuple[Update, ...]] = field(default_factory=list)
    unknown: int = 0
    """How often a writer was told that the outcome is unknown."""

    def append(
        self, log: UpdateLog, updates: tuple[Update, ...], *, gives_up: Callable[[], bool]
    ) -> bool:
        """Append, and retry while the outcome is unknown, as a node does; is it acknowledged?"""
        self.appends.append(updates)
        ids = {logged.id for logged in updates}
        is_open = False
        while True:
            try:
                appended = log.append(updates[0].version, TOKEN, updates)
            except UnknownOutcome:
                self.unknown += 1
                is_open = True
                if gives_up():
                    self.left_open |= ids
                    return False
            except OutOfSync:
                self.refused |= ids
                return False
            except Unavailable:
                if not is_open:  # otherwise an earlier try may have appended it
                    self.refused |= ids
                    return False
            else:
                self.acknowledged |= {logged.id: logged for logged in appended}
                return True

    def compare(self, logs: tuple[UpdateLog, ...]) -> None:
        """Assert that each of ``logs`` reads what the writers were told."""
        upper = logs[0].check().frontier.upper  # above every commit in flight
        for log in logs:
            assert log.frontier().upper == upper
            events = list(log.scan("audit_event", 1, upper))
            assert [event.version for event in events] == list(range(2, upper))
            ids = {decode(event.data, AuditEvent).id: event for event in events}
            assert len(ids) == len(events), "an update is there twice"
            assert not self.refused & ids.keys(), "what was refused is there"
            assert self.acknowledged.keys() <= ids.keys(), "what was acknowledged is lost"
            assert ids.keys() <= self.acknowledged.keys() | self.left_open
            for updates in self.appends:
                there = [logged.id in ids for logged in updates]
                assert all(there) or not any(there), "half of an append is there"
            for logged in log.updates(log.frontier().since + 1, upper):
                assert logged == self.acknowledged.get(logged.id, logged)
                assert logged.version == 1 or logged.time == ids[logged.id].time
            made = (logged for updates in self.appends for logged in updates if logged.id in ids)
            objects = {change.new for logged in made for change in logged.changes()}
            snapshot = log.snapshot(upper - 1)
            assert objects < {data for _, values in snapshot.kinds for data in values}
            assert snapshot == logs[0].snapshot(upper - 1)


class Place:
    """A log of one kind; the connections to its servers fail as ``plan`` says."""

    def __init__(self, kind: str, folder: Path, opened: ExitStack) -> None:
        self._kind, self._opened = KINDS[kind], opened
        self.plan: Plan = lambda data: None
        self._address = self._through_lines = self._kind.create(folder)
        for port in (POSTGRESQL.server().port, *([s3.running().port] if "s3" in kind else [])):
            line = Proxy(port, lambda data: self.plan(data), late_seconds=LATE_SECONDS)
            opened.enter_context(line)
            here, there = f"127.0.0.1:{port}", f"127.0.0.1:{line.port}"
            self._through_lines = self._through_lines.replace(here, there)
        begin(self.open(), 1)

    def open(self, *, line_fails: bool = False) -> UpdateLog:
        """Open the log as one more node, by a connection that fails or by one that does not."""
        address = self._through_lines if line_fails else self._address
        return self._opened.enter_context(self._kind.open(address, HybridClock()))


@contextmanager
def placed(kind: str, folder: Path) -> Iterator[Place]:
    with ExitStack() as opened:
        yield Place(kind, folder, opened)


# -- one fault at each place -----------------------------------------------------------------------


def a_commit_is_settled(
    kind: str, folder: Path, *, cuts_at: Callable[[int], Sequence[Cut]], most: int = MOST_MESSAGES
) -> int:
    """Cut the connection of one commit at its first message, of another at its second, and so on.

    ``cuts_at`` gives the ways in which each message is cut. Returns the number of messages, at most
    ``most``.
    """
    commits, number, cut_at = Commits(), 0, 0
    with placed(kind, folder) as place:
        log, reader = place.open(line_fails=True), place.open()

        def commit() -> None:
            version = reader.frontier().upper
            updates = update(version, objects=LARGE if version % 4 else 1), update(version + 1)
            commits.append(log, updates, gives_up=lambda: False)

        while cut_at == number < most:
            number += 1
            for cut in cuts_at(number):
                place.plan = plan = CutOnce(cut, number)
                commit()
                place.plan = lambda data: None
                cut_at = number if plan.happened else cut_at
                commit()  # and one more commit, which also catches up on maintenance that failed
        commits.compare((reader, log, place.open()))
    return cut_at


@pytest.mark.parametrize(
    "kind",
    [
        kind if kind in ("metastorage", "stash") else pytest.param(kind, marks=pytest.mark.slow)
        for kind in KINDS
    ],
)
def test_the_outcome_of_a_commit_is_known_wherever_its_connection_is_cut(
    kind: str, tmp_path: Path
) -> None:
    def cuts_at(number: int) -> Sequence[Cut]:
        return tuple(Cut) if number <= 2 else (tuple(Cut)[number % 3],)

    most = IN_SHORT.get(kind, MOST_MESSAGES)
    assert a_commit_is_settled(kind, tmp_path, cuts_at=cuts_at, most=most) in (2, most)


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["persist", "persist on s3", "shadow"])
def test_the_outcome_of_a_commit_is_known_for_every_kind_of_cut_at_every_message(
    kind: str, tmp_path: Path
) -> None:
    assert a_commit_is_settled(kind, tmp_path, cuts_at=lambda number: tuple(Cut)) > 2


# -- random faults ---------------------------------------------------------------------------------


def test_the_proxy_keeps_no_socket_of_a_connection_that_it_cut() -> None:
    """The random faults cut thousands, more than a process may have sockets."""
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        Proxy(server.getsockname()[1], lambda data: Cut.REQUEST) as line,
    ):
        before = psutil.Process().num_fds()
        for _ in range(10):
            with socket.create_connection(("127.0.0.1", line.port)) as client:
                client.sendall(b"x")
                assert client.recv(1) == b""
        for thread in line._threads[1:]:
            thread.join()
        assert psutil.Process().num_fds() <= before


class FailingFiles:
    """What the blob store on files uses of the module `os`; a share of the calls fails."""

    def __init__(self, seed: int, share: float) -> None:
        self._choose, self._share = random.Random(seed), share
        self.failed = 0

    def __getattr__(self, name: str) -> Any:  # Any: whatever the module has
        real = getattr(os, name)
        if name not in ("open", "write", "fsync", "rename"):
            return real

        def call(*arguments: Any) -> Any:
            if self._choose.random() < self._share:
                self.failed += 1
                raise OSError(self._choose.choice((errno.ENOSPC, errno.EIO)), "planted")
            return real(*arguments)

        return call


def write(log: UpdateLog, commits: Commits, *, times: int, seed: int, compacts: bool) -> None:
    """Append ``times`` times, and trim the log now and then if ``compacts``."""
    choose = random.Random(seed)
    count = 0
    while count < times:
        try:
            frontier = log.frontier()
            if compacts and choose.random() < 0.1 and frontier.upper > 3:
                log.compact(choose.randint(1, frontier.upper - 2), TOKEN)
        except Unavailable:
            continue
        updates = tuple(
            update(frontier.upper + n, objects=choose.choice((1, 2, LARGE)))
            for n in range(choose.choice((1, 1, 3)))
        )
        count += commits.append(log, updates, gives_up=lambda: choose.random() < 0.2)


def storm(
    kind: str, folder: Path, monkeypatch: pytest.MonkeyPatch, *, seed: int, times: int
) -> None:
    """Three writers commit to one log while its servers fail at random, seeded by ``seed``."""
    faults = RandomFaults(seed, share=0.1, longest_stall=0.2)
    files = FailingFiles(seed, 0.05)
    writers = [Commits() for _ in range(3)]
    with placed(kind, folder) as place, ThreadPoolExecutor(len(writers)) as threads:
        logs = [place.open(line_fails=True) for _ in writers]
        with monkeypatch.context() as patch:
            patch.setattr("strandline.durable.persist.blob.os", files)
            place.plan = faults
            written = [
                threads.submit(write, log, commits, times=times, seed=seed + n, compacts=n == 0)
                for n, (log, commits) in enumerate(zip(logs, writers, strict=True))
            ]
            for writer in written:
                writer.result()
            faults.end()
        together = Commits()
        for commits in writers:
            together.acknowledged |= commits.acknowledged
            together.refused |= commits.refused
            together.left_open |= commits.left_open
            together.appends += commits.appends
            together.unknown += commits.unknown
        together.compare((place.open(), *logs))
    assert sum(faults.counts.values()) > 5
    assert files.failed or kind != "persist"


@pytest.mark.teeth
@pytest.mark.parametrize("kind", KINDS)
def test_acknowledged_commits_survive_random_faults(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storm(kind, tmp_path, monkeypatch, seed=5, times=10)


@pytest.mark.soak
@pytest.mark.parametrize("kind", KINDS)
def test_acknowledged_commits_survive_many_random_faults(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")  # shown where it fails
    storm(kind, tmp_path, monkeypatch, seed=seed, times=300)
