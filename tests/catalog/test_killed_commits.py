"""A node that is killed anywhere in a commit: no version is lost, doubled or torn."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from strandline.clock import HybridClock
from strandline.durable import MetastorageLog, Update, durable_state
from strandline.durable.update import Entry
from tests.catalog import killed_commits
from tests.catalog.killed_commits import COMMITS, names
from tests.metastorage.stores import STORES
from tests.project.checkout import ROOT

ROUNDS = [40, pytest.param(100, marks=pytest.mark.soak)]
"""On each of the stores, so more than a hundred also in the shorter run."""


def run(address: str, rounds: int) -> dict[str, Any]:
    path = os.pathsep.join([str(ROOT), str(ROOT / "src")])
    done = subprocess.run(
        [sys.executable, killed_commits.__file__, address, str(rounds)],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        text=True,
        timeout=600,
        check=True,
    )
    said: dict[str, Any] = json.loads(done.stdout)
    return said


def check(updates: list[Update], acknowledged: list[tuple[int, int]], rounds: int) -> None:
    """No version is lost, doubled or torn."""
    assert [update.version for update in updates] == list(range(1, len(updates) + 1))
    made: Counter[tuple[str, ...]] = Counter()
    for update in updates:
        verbs = [(entry.verb, entry.arguments) for entry in update.entries]
        if any(verb == "create_table" for verb, _ in verbs):
            assert {verb for verb, _ in verbs} == {"create_table"}
            made[tuple(str(arguments["table"]).partition(".")[2] for _, arguments in verbs)] += 1
    possible = {names(number, commit) for number in range(-2, rounds) for commit in range(COMMITS)}
    assert set(made) <= possible, "a version is torn"
    assert [tables for tables, times in made.items() if times > 1] == [], "a version is doubled"
    lost = [one for one in acknowledged if names(*one) not in made]
    assert lost == [], "a version is lost"
    told = set(acknowledged)
    for number in range(rounds):
        untold = [c for c in range(COMMITS) if names(number, c) in made and (number, c) not in told]
        assert len(untold) <= 1, "a child did two commits without waiting for the first"


@pytest.mark.parametrize("rounds", ROUNDS)
@pytest.mark.parametrize("kind", STORES)
def test_no_version_is_lost_doubled_or_torn(kind: str, rounds: int, tmp_path: Path) -> None:
    address = STORES[kind].create(tmp_path)
    said = run(address, rounds)
    assert said["status"] == 0
    killed = [status for status in said["statuses"] if status == signal.SIGKILL]
    # The last rounds may find the end of the commits before their point, not many others.
    assert len(killed) >= rounds * 9 // 10
    acknowledged = [(number, commit) for number, commit in said["acknowledged"]]
    assert {0, 1} <= {commit for _, commit in acknowledged}
    with STORES[kind].open(address, HybridClock()) as store:
        log = MetastorageLog(store)
        upper = log.frontier().upper
        check(list(log.updates(1, upper)), acknowledged, rounds)
        assert durable_state(log).is_initialized()


def test_the_check_finds_what_it_looks_for() -> None:
    """Teeth: a good history passes, and each fault planted in it is found."""

    def made(version: int, *tables: str) -> Update:
        entries = tuple(Entry("create_table", {"table": f"default.{t}"}, ()) for t in tables)
        return Update(version, b"", "ann", "m", entries)

    good = [made(1, "a_0_0", "b_0_0"), made(2, "a_0_1", "b_0_1"), made(3, "a_1_0", "b_1_0")]
    told = [(0, 0), (1, 0)]
    check(good, told, 2)
    faults: dict[str, tuple[list[Update], list[tuple[int, int]]]] = {
        "an acknowledged version is lost": (good[:2], told),
        "a version is done twice": ([*good, made(4, "a_0_0", "b_0_0")], told),
        "half of a version": ([made(1, "a_0_0"), *good[1:]], told),
        "two versions in one": ([made(1, "a_0_0", "b_0_0", "a_0_1", "b_0_1"), good[2]], told),
        "a hole in the versions": ([good[0], good[2]], [(0, 0)]),
        "versions of nobody": ([*good, made(4, "a_7_0", "b_7_0")], told),
        "two that nobody was told of": (good, [(1, 0)]),
    }
    for fault, (updates, acknowledged) in faults.items():
        with pytest.raises(AssertionError):
            check(updates, acknowledged, 2)
            pytest.fail(f"not found: {fault}")
