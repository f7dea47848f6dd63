"""Random histories of a log, written by two nodes, are compared with a model."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from strandline.durable import Update, UpdateLog
from strandline.durable.collections import APPEND_ONLY, STORAGE_USAGE_EVENT
from strandline.durable.contents import EMPTY, Contents, restore
from strandline.durable.log import Frontier, Scanned
from strandline.durable.rows import rows_of
from tests.durable.conftest import NewLog, making_logs
from tests.durable.logs import LOGS
from tests.durable.updates import TOKEN, begin, measured, trim_in_steps, update

STEPS = 40


class Model:
    """What a log must contain after the steps so far."""

    def __init__(self, first: tuple[Update, ...]) -> None:
        self.updates = {update.version: update for update in first}
        self.contents: dict[int, Contents] = {0: EMPTY}
        self.since = self.pruned = 0
        self._contents_up_to(len(first))

    def append(self, updates: tuple[Update, ...]) -> None:
        self.updates |= {update.version: update for update in updates}
        self._contents_up_to(updates[-1].version)

    def _contents_up_to(self, last: int) -> None:
        for version in range(len(self.contents), last + 1):
            update = self.updates[version]
            before = self.contents[version - 1]
            self.contents[version] = before.apply(update.changes(), at=update.time)

    @property
    def last(self) -> int:
        return max(self.updates)

    def appended(self, kind: str, start: int, end: int) -> list[Scanned]:
        """The objects of an append-only kind."""
        lowest = self.pruned + 1 if kind == STORAGE_USAGE_EVENT else 1
        return [
            Scanned(row.version, row.time, row.value)
            for version in range(max(start, lowest), end)
            for row in rows_of(self.updates[version])
            if row.kind == kind
        ]

    def compare(self, log: UpdateLog, start: int, end: int) -> None:
        """Compare everything; for append-only kinds, the versions from ``start`` to ``end`` − 1."""
        pruned = ((STORAGE_USAGE_EVENT, self.pruned),) if self.pruned else ()
        assert log.frontier() == Frontier(self.since, self.last + 1, pruned)
        first = max(self.since + 1, start)
        expected = tuple(replace(self.updates[v], appended=()) for v in range(first, end))
        assert log.updates(first, end) == expected
        for version in {self.since, self.last}:
            assert restore(log.snapshot(version)).dump() == self.contents[version].dump()
        for kind in APPEND_ONLY:
            assert list(log.scan(kind, start, end)) == self.appended(kind, start, end)


def histories(new_log: NewLog, *, seed: int, steps: int) -> None:
    """Do ``steps`` steps, and compare the log with the model after each."""
    choose = random.Random(seed)
    nodes = [new_log(), new_log()]
    begin(nodes[0], 1)
    model = Model(nodes[1].updates(1, 2))
    for _ in range(steps):
        node, last = choose.randrange(len(nodes)), model.last
        match choose.choice(["append"] * 12 + ["prune", "prune", "compact", "open"]):
            case "append":
                versions = range(last + 1, last + 1 + choose.choice([1, 1, 2, 5]))
                # Five updates of eleven operations each fit in one append to etcd, which takes 60.
                updates = [
                    measured(version, choose.choice([1, 3, 10]))
                    if choose.random() < 0.5
                    else update(version, objects=choose.choice([1, 4]))
                    for version in versions
                ]
                model.append(nodes[node].append(last + 1, TOKEN, updates))
            case "prune":
                up_to = choose.randint(1, last)
                is_new = nodes[node].prune(STORAGE_USAGE_EVENT, up_to, TOKEN)
                assert is_new == (up_to > model.pruned)
                model.pruned = max(up_to, model.pruned)
            case "compact":
                up_to = choose.randint(1, last)
                assert nodes[node].compact(up_to, TOKEN) == (up_to > model.since)
                model.since = max(up_to, model.since)
            case "open":
                nodes[node] = new_log()
        start = choose.randint(1, model.last)
        model.compare(choose.choice(nodes), start, choose.randint(start, model.last) + 1)
    model.compare(new_log(), 1, model.last + 1)


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_log_equals_its_model_after_each_random_step(
    new_log: NewLog, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    trim_in_steps(monkeypatch, 3)
    histories(new_log, seed=seed, steps=STEPS)


@pytest.mark.soak
@pytest.mark.parametrize("kind", LOGS)
def test_a_log_equals_its_model_in_many_random_histories(kind: str, tmp_path: Path) -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")  # shown where it fails
    for number in range(200):
        # Closed after each history: a server has few connections.
        with making_logs(LOGS[kind], tmp_path) as make:
            histories(make(), seed=seed + number, steps=STEPS)
