"""``strandline durable migrate`` is killed at each point: the catalog is complete, in one log."""

from __future__ import annotations

import shutil
from itertools import count
from pathlib import Path

import pytest

from strandline.config import Settings
from strandline.durable import ReadOnlyState
from strandline.durable.collections import APPEND_ONLY
from strandline.node import Node
from strandline.node.catalog_log import LogPlace, RememberedLog, reading_catalog_log, remembered_log
from tests.node.moved_catalogs import place_of
from tests.node.test_catalog_log import fill, tables
from tests.sql.processes import Process

WAYS = [("metastorage", "stash"), ("stash", "persist")]
EACH_POINT = [
    *((*way, False) for way in WAYS),
    *((*way, True) for way in (*WAYS, ("shadow", "metastorage"), ("persist", "shadow"))),
]
"""The old log, the new one, and whether a node opens between the kill and the second run."""


def new_store(folder: Path, log: str) -> None:
    """Create a store whose catalog log begins with a snapshot."""
    with Node.open(folder, settings=Settings(catalog_log=log)) as node:
        fill_and_trim(node)


def fill_and_trim(node: Node) -> None:
    """Make the log begin with a snapshot and contain all append-only kinds."""
    fill(node, "t")
    node.storage.measure()
    assert node.session(user="ann").compact(node.catalogs.latest_catalog().version)
    fill(node, "u")
    node.storage.measure()


def history(folder: Path, *, upper: int | None = None) -> tuple[int, list[object]]:
    """`history_at` of the store in a folder."""
    with place_of(folder) as place:
        return history_at(place, upper=upper)


def history_at(place: LogPlace, *, upper: int | None = None) -> tuple[int, list[object]]:
    """The end of the catalog's log, and all that it contains below ``upper`` (default: its end)."""
    with reading_catalog_log(place) as log:
        frontier = log.frontier()
        end = upper or frontier.upper
        recovered = ReadOnlyState(log).take_recovered()
        assert [state.version for state in recovered] == [*range(frontier.since, frontier.upper)]
        states = (
            (state.version, state.time, state.contents.dump(), state.contents.times())
            for state in recovered
            if state.version < end
        )
        return end, [
            *states,
            *log.updates(frontier.since + 1, end),
            *(scanned for kind in APPEND_ONLY for scanned in log.scan(kind, 1, end)),
        ]


def kept_of(folder: Path) -> RememberedLog | None:
    with place_of(folder) as place:
        return remembered_log(place)


def move(output: Path, *arguments: str, at: int = 0) -> tuple[int, int]:
    """Run `tests.node.killed_move`; returns its exit status, and how many points it passed.

    It is killed at point ``at``. What it prints goes to ``output``.
    """
    with Process("tests.node.killed_move:run", at, str(output), *arguments) as process:
        said = [*process.everything()]
        status = process.finish()
    assert status is not None
    return tuple(said[0]) if said else (status, at)


class Move:
    """One store, and the command that moves its catalog to the log ``to``."""

    def __init__(self, folder: Path, leaving: str, to: str) -> None:
        self._folder, self._to = folder, to
        self._output = folder.with_name("output")
        new_store(folder, leaving)

    def run(self, *, at: int = 0) -> tuple[int, int]:
        """See `move`."""
        return move(self._output, str(self._folder), f"{self._folder}#{self._to}", at=at)

    def survives(self, at: int, *, opens_between: bool) -> str | None:
        """Kill the command, maybe open a node, run it again; returns the log used after the kill.

        None if the command has fewer points.
        """
        folder = self._folder
        upper, before = history(folder)
        status, _ = self.run(at=at)
        if status == 0:
            return None
        assert status == -9
        killed_in = kept_of(folder)
        assert killed_in is not None
        assert history(folder, upper=upper)[1] == before
        expected = ["t", "u"]
        if opens_between:
            with Node.open(folder) as node:
                fill(node, "between", rows=0)
                expected.insert(0, "between")
            upper, before = history(folder)
        was_finished = kept_of(folder) == RememberedLog(self._to)
        self._output.write_text("")
        status, _ = self.run()
        if was_finished:
            assert f"is already in the log {self._to}" in self._output.read_text()
        else:
            assert status == 0, self._output.read_text()
        assert kept_of(folder) == RememberedLog(self._to)
        assert history(folder, upper=upper)[1] == before
        with Node.open(folder) as node:
            fill(node, "v")
            assert tables(node) == [*expected, "v"]
        return killed_in.name


def points_of(folder: Path, leaving: str, to: str) -> int:
    status, points = Move(folder, leaving, to).run()
    assert status == 0
    shutil.rmtree(folder)
    return points


@pytest.mark.slow
@pytest.mark.parametrize(("leaving", "to"), WAYS)
def test_running_the_command_again_finishes_a_killed_move(
    leaving: str, to: str, tmp_path: Path
) -> None:
    points = points_of(tmp_path / "counted", leaving, to)
    for at, opens_between in ((points // 3, False), (points // 2, True), (points - 4, False)):
        log = Move(tmp_path / f"store {at}", leaving, to).survives(at, opens_between=opens_between)
        assert log == (to if at == points - 4 else leaving)


@pytest.mark.slow
@pytest.mark.parametrize(("leaving", "to", "opens_between"), EACH_POINT)
def test_a_move_survives_a_kill_at_each_point(
    leaving: str, to: str, *, opens_between: bool, tmp_path: Path
) -> None:
    killed_in = []
    for at in count(1):
        folder = tmp_path / f"store {at}"
        log = Move(folder, leaving, to).survives(at, opens_between=opens_between)
        if log is None:
            break
        killed_in.append(log)
        shutil.rmtree(folder)
    # A move that ends shadowing copies nothing, and has few steps.
    assert len(killed_in) > (5 if leaving == "shadow" else 20)
    assert set(killed_in) == {leaving, to}
