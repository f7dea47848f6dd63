"""The scenarios and the timelines can fail: running them finds each planted fault."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from strandline.errors import StrandlineError
from tests.catalog import test_scenarios, test_timelines
from tests.catalog.scenario import Scenario
from tests.catalog.scenario_faults import OF_COMMANDS, Fault
from tests.catalog.timeline_faults import OF_NODES
from tests.catalog.timeline_world import World

Check = Callable[[Path], None]


def run_scenario(scenario: Scenario, folder: Path) -> None:
    world = World(folder, delay_ms=0, skew_ms=0)
    try:
        world.node(1).begin(hold=True)
        test_scenarios.run(world.node(1).manager, scenario)
    finally:
        world.close()


def scenarios_of(module: str) -> Iterator[tuple[str, Check]]:
    for name, scenario in test_scenarios.ALL:
        if name == module:
            yield scenario.name, partial(run_scenario, scenario)


def timelines_of(module: str) -> Iterator[tuple[str, Check]]:
    for name, timeline in test_timelines.ALL:
        if name == module:
            yield timeline.name, partial(test_timelines.run, timeline)


def first_complaint(checks: Iterator[tuple[str, Check]]) -> str:
    """The complaint of the first check that fails; empty if none fails."""
    memory = Path("/dev/shm")
    for name, check in checks:
        with TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
            try:
                check(Path(folder))
            except (AssertionError, StrandlineError, pytest.fail.Exception) as error:
                return f"{name}: {error!r}"
    return ""


@pytest.mark.teeth
@pytest.mark.parametrize("fault", OF_COMMANDS, ids=lambda fault: fault.__name__)
def test_the_scenarios_find_each_planted_fault(
    fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, complaint = OF_COMMANDS[fault]
    fault(monkeypatch)
    text = first_complaint(scenarios_of(module))
    assert re.search(complaint, text, re.DOTALL), text


@pytest.mark.teeth
@pytest.mark.parametrize("fault", OF_NODES, ids=lambda fault: fault.__name__)
def test_the_timelines_find_each_planted_fault(
    fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, complaint = OF_NODES[fault]
    fault(monkeypatch)
    text = first_complaint(timelines_of(module))
    assert re.search(complaint, text, re.DOTALL), text
