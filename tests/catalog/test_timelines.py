"""Runs the timelines of ``tests/catalog/timelines``; their form is told in `timeline`."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.catalog.timeline import Timeline
from tests.catalog.timeline_world import World

FOLDER = Path(__file__).parent / "timelines"


def all_timelines() -> Iterator[tuple[str, Timeline]]:
    for path in sorted(FOLDER.glob("[a-z]*.py")):
        module = importlib.import_module(f"tests.catalog.timelines.{path.stem}")
        for timeline in module.TIMELINES:
            yield path.stem, timeline


ALL = list(all_timelines())


def run(timeline: Timeline, folder: Path) -> None:
    """Take all steps of a timeline; an error says at which step it was."""
    world = World(folder, delay_ms=timeline.delay_ms, skew_ms=timeline.skew_ms)
    try:
        for number in range(1, timeline.nodes + 1):
            world.node(number).begin(hold=number == 1)
        for position, step in enumerate(timeline.steps, start=1):
            try:
                step.take(world)
            except BaseException as error:
                error.add_note(f"step {position} of {timeline.name!r}: {step}")
                raise
    finally:
        world.close()


@pytest.fixture
def folder() -> Iterator[Path]:
    """In memory where there is one: each timeline has a store of its own, synced to disk."""
    memory = Path("/dev/shm")
    with TemporaryDirectory(dir=memory if memory.is_dir() else None) as made:
        yield Path(made)


@pytest.mark.parametrize(
    "timeline", [t for _, t in ALL], ids=[f"{module}: {t.name}" for module, t in ALL]
)
def test_timeline(timeline: Timeline, folder: Path) -> None:
    run(timeline, folder)


def test_timelines_of_a_module_have_names_of_their_own() -> None:
    told = [(module, timeline.name) for module, timeline in ALL]
    assert len(told) == len(set(told))
