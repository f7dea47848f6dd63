"""Two processes race to open, join and commit, and are killed at counted points.

Every log contains exactly the acknowledged commits, in one order, and at most one more of each
killed process.
"""

from __future__ import annotations

import random
import re
import traceback
from collections import Counter
from pathlib import Path

import pytest

from strandline.clock import HybridClock
from strandline.durable import AuditEvent, Contents, Update, UpdateLog, durable_state
from strandline.durable.collections import AUDIT_EVENT
from strandline.durable.contents import EMPTY
from strandline.errors import CorruptData, NotFound
from strandline.wire import decode
from tests.durable.logs import LOGS
from tests.durable.racing import COMMITS
from tests.durable.racing_faults import FAULTS
from tests.sql.processes import Process

PROCESSES = 2
QUICK = ("shadow in sqlite",)
MOST_ROUNDS = 1_000
"""A planted fault is found in the first rounds, unless one process ends before the other begins."""


class Race:
    """The races on one log, and what they must have left in it."""

    def __init__(self, kind: str, folder: Path, *, seed: int, fault: str) -> None:
        self._kind, self._address = kind, LOGS[kind].create(folder)
        self._fault = fault
        self._choose = random.Random(seed)
        self._contents: Contents = EMPTY
        self._epochs: set[int] = set()
        self._epoch_of: dict[str, int] = {}
        self.version = 0
        self.killed = 0

    def run(self, number: int) -> None:
        """Run one round and check its results."""
        names = [f"round {number} process {n}" for n in range(PROCESSES)]
        processes = [
            Process(
                "tests.durable.racing:run",
                self._kind,
                self._address,
                name,
                self._choose.randrange(1 << 30),
                self.version,
                self._fault,
            )
            for name in names
        ]
        said = {
            name: list(process.everything()) for name, process in zip(names, processes, strict=True)
        }
        for process in processes:
            status = process.finish()
            process.close()
            assert status in (0, -9), said
            self.killed += status != 0
        with LOGS[self._kind].open(self._address, HybridClock()) as log:
            upper = log.check().frontier.upper  # above every commit in flight
            updates = log.updates(self.version + 1, upper)
            self._follow(updates)
            self._compare(log)
            self._compare_events(log, updates, upper)
        for name, words in said.items():
            self._check_process(name, words, updates)

    def _follow(self, updates: tuple[Update, ...]) -> None:
        for update in updates:
            self.version += 1
            assert update.version == self.version
            self._contents = self._contents.apply(update.changes(), at=update.time)
            (fence,) = self._contents.objects("fence")
            self._epoch_of[update.author] = fence.value.epoch
        assert all(n == 1 for n in Counter(update.id for update in updates).values())

    def _compare(self, log: UpdateLog) -> None:
        """Assert that a process that starts now reads what the updates made."""
        try:
            latest = durable_state(log).open_read_only().recovered[-1]
        except NotFound:
            assert self.version == 0
            return
        assert latest.version == self.version
        assert latest.contents == self._contents

    def _compare_events(self, log: UpdateLog, updates: tuple[Update, ...], upper: int) -> None:
        """Assert that each commit has its audit event, and that there are no others."""
        scanned = log.scan(AUDIT_EVENT, upper - len(updates), upper)
        events = [decode(scanned_event.data, AuditEvent) for scanned_event in scanned]
        assert [(e.version, e.id, e.author) for e in events] == [
            (update.version, update.id, update.author) for update in updates if not update.silent
        ]

    def _check_process(self, name: str, words: list[list[object]], updates: object) -> None:
        assert isinstance(updates, tuple)
        epochs = {int(str(value)) for word, value, *_ in words if word == "epoch"}
        assert not epochs & self._epochs, "an epoch was given twice"
        self._epochs |= epochs
        acknowledged = [value for word, value, *_ in words if word == "committed"]
        present = [update.author for update in updates if update.author.startswith(f"{name} ")]
        assert present[: len(acknowledged)] == acknowledged
        assert len(present) <= len(acknowledged) + 1
        assert present == [f"{name} {number}" for number in range(len(present))]
        assert len(present) <= COMMITS
        in_epochs = {str(value): epoch for _, value, *given in words for epoch in given}
        assert in_epochs == {name: self._epoch_of[name] for name in in_epochs}


def race(kind: str, folder: Path, *, rounds: int, seed: int = 7, fault: str = "") -> None:
    races = Race(kind, folder, seed=seed, fault=fault)
    for number in range(rounds):
        races.run(number)
    assert races.version > rounds
    assert races.killed


@pytest.mark.parametrize("kind", QUICK)
def test_each_acknowledged_commit_is_in_the_log_once_whichever_process_is_killed(
    kind: str, tmp_path: Path
) -> None:
    race(kind, tmp_path, rounds=3)


@pytest.mark.slow
@pytest.mark.parametrize("kind", LOGS)
def test_many_rounds(kind: str, tmp_path: Path) -> None:
    race(kind, tmp_path, rounds=100, seed=11)


@pytest.mark.parametrize("fault", FAULTS)
def test_the_source_has_what_a_planted_fault_replaces(
    fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    FAULTS[fault].fault(monkeypatch)


@pytest.mark.teeth
@pytest.mark.parametrize("fault", FAULTS)
def test_the_race_finds_a_planted_fault(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted = FAULTS[fault]
    planted.fault(monkeypatch)
    with pytest.raises((AssertionError, CorruptData)) as failure:
        race(planted.kind, tmp_path, rounds=MOST_ROUNDS, fault=fault)
    frames = traceback.extract_tb(failure.value.__traceback__)
    *_, line = (frame.line or "" for frame in frames if frame.filename == __file__)
    assert re.search(planted.finding, line), line


@pytest.mark.soak
@pytest.mark.parametrize("kind", LOGS)
def test_each_acknowledged_commit_is_in_the_log_once_after_two_thousand_rounds(
    kind: str, tmp_path: Path
) -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")  # shown where it fails
    race(kind, tmp_path, rounds=2000, seed=seed)
