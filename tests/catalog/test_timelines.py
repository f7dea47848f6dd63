"""Runs the timelines of ``tests/catalog/timelines``; `timeline` describes their form."""

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
    """Run all steps of a timeline; a note on an error names the step that failed."""
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
    """A folder in memory if possible: each timeline has its own store, which syncs to disk."""
    memory = Path("/dev/shm")
    with TemporaryDirectory(dir=memory if memory.is_dir() else None) as made:
        yield Path(made)


@pytest.mark.parametrize(
    "timeline", [t for _, t in ALL], ids=[f"{module}: {t.name}" for module, t in ALL]
)
def test_a_timeline_has_its_expected_results(timeline: Timeline, folder: Path) -> None:
    run(timeline, folder)


def test_timeline_names_are_unique_within_a_module() -> None:
    names = [(module, timeline.name) for module, timeline in ALL]
    assert len(names) == len(set(names))
