"""A node that is killed at any point of a commit: no version is lost, doubled or torn."""

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
from tests.catalog.killed_commits import COMMITS, FAULTS, REFUSED, names
from tests.metastorage.stores import STORES, StoreKind
from tests.project.checkout import ROOT

FEW_ROUNDS = 8
ROUNDS = [("sqlite", 20), ("postgresql", 12), ("etcd", 12)]
SOAK_ROUNDS = 300


def run(address: str, rounds: int, *faults: str) -> dict[str, Any]:
    path = os.pathsep.join([str(ROOT), str(ROOT / "src")])
    completed = subprocess.run(
        [sys.executable, killed_commits.__file__, address, str(rounds), *faults],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        text=True,
        timeout=600,
        check=True,
    )
    said: dict[str, Any] = json.loads(completed.stdout)
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
    lost = [pair for pair in acknowledged if names(*pair) not in made]
    assert lost == [], "a version is lost"
    known = set(acknowledged)
    for number in range(rounds):
        untold = [
            c for c in range(COMMITS) if names(number, c) in made and (number, c) not in known
        ]
        assert len(untold) <= 1, "a child did two commits without waiting for the first"


def no_version_is_lost_doubled_or_torn(
    kind: StoreKind, folder: Path, rounds: int, *faults: str
) -> None:
    address = kind.create(folder)
    said = run(address, rounds, *faults)
    assert said["status"] == 0
    assert REFUSED not in said["statuses"], "a node refuses what a killed one left"
    assert set(said["statuses"]) <= {0, -signal.SIGKILL}
    acknowledged = [(number, commit) for number, commit in said["acknowledged"]]
    assert {0, 1} <= {commit for _, commit in acknowledged}
    with kind.open(address, HybridClock()) as store:
        log = MetastorageLog(store)
        upper = log.frontier().upper
        check(list(log.updates(1, upper)), acknowledged, rounds)
        assert durable_state(log).is_initialized()
    killed = [status for status in said["statuses"] if status == -signal.SIGKILL]
    # The commits may end before the kill point in the last rounds, and in few others.
    assert len(killed) >= rounds * 9 // 10


@pytest.mark.parametrize(
    ("kind", "rounds"),
    [("sqlite", FEW_ROUNDS), *(pytest.param(*each, marks=pytest.mark.slow) for each in ROUNDS)],
)
def test_no_version_is_lost_doubled_or_torn(kind: str, rounds: int, tmp_path: Path) -> None:
    no_version_is_lost_doubled_or_torn(STORES[kind], tmp_path, rounds)


@pytest.mark.soak
@pytest.mark.parametrize("kind", STORES)
def test_no_version_is_lost_doubled_or_torn_in_many_rounds(kind: str, tmp_path: Path) -> None:
    no_version_is_lost_doubled_or_torn(STORES[kind], tmp_path, SOAK_ROUNDS)


# -- teeth -----------------------------------------------------------------------------------------

COMPLAINTS = {
    "acknowledge_before_the_append": "a version is lost",
    "half_of_a_version_first": "a version is torn",
    "head_before_the_update": "a node refuses what a killed one left",
    "redo_without_a_look": "a node refuses what a killed one left",
}


@pytest.mark.teeth
@pytest.mark.parametrize("fault", FAULTS)
def test_the_kills_find_each_planted_fault(fault: str, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=COMPLAINTS[fault]):
        no_version_is_lost_doubled_or_torn(STORES["sqlite"], tmp_path, 20, fault)


def test_the_check_accepts_a_good_history_and_finds_each_planted_fault() -> None:
    """A good history passes, and each fault planted in it is found."""

    def made(version: int, *tables: str) -> Update:
        entries = tuple(Entry("create_table", {"table": f"default.{t}"}, ()) for t in tables)
        return Update(version, b"", "ann", "m", entries)

    good = [made(1, "a_0_0", "b_0_0"), made(2, "a_0_1", "b_0_1"), made(3, "a_1_0", "b_1_0")]
    known = [(0, 0), (1, 0)]
    check(good, known, 2)
    faults: dict[str, tuple[list[Update], list[tuple[int, int]]]] = {
        "an acknowledged version is lost": (good[:2], known),
        "a version is done twice": ([*good, made(4, "a_0_0", "b_0_0")], known),
        "half of a version": ([made(1, "a_0_0"), *good[1:]], known),
        "two versions in one": ([made(1, "a_0_0", "b_0_0", "a_0_1", "b_0_1"), good[2]], known),
        "a hole in the versions": ([good[0], good[2]], [(0, 0)]),
        "versions of nobody": ([*good, made(4, "a_7_0", "b_7_0")], known),
        "two that nobody was told of": (good, [(1, 0)]),
    }
    for fault, (updates, acknowledged) in faults.items():
        with pytest.raises(AssertionError):
            check(updates, acknowledged, 2)
            pytest.fail(f"not found: {fault}")
