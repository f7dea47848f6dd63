"""Runs the scenarios of ``tests/catalog/scenarios``; `scenario` describes their form."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from strandline.catalog import Catalog, CatalogManager, Command
from tests.catalog.renewed_store import RenewedStore
from tests.catalog.scenario import Made, Nothing, Refused, Result, Run, Scenario, Step

FOLDER = Path(__file__).parent / "scenarios"


def all_scenarios() -> Iterator[tuple[str, Scenario]]:
    for path in sorted(FOLDER.glob("[a-z]*.py")):
        module = importlib.import_module(f"tests.catalog.scenarios.{path.stem}")
        for scenario in module.SCENARIOS:
            yield path.stem, scenario


ALL = list(all_scenarios())


def commands_of(run: Run, catalog: Catalog) -> list[Command]:
    steps: list[Step] = list(run) if isinstance(run, list | tuple) else [run]  # type: ignore[list-item]  # a single step
    return [step if hasattr(step, "plan") else step(catalog) for step in steps]


def run(manager: CatalogManager, scenario: Scenario) -> None:
    """Run a scenario on a new catalog; raises an error if the result is not the expected one."""
    for step in scenario.setup:
        batch = commands_of(step, manager.present())
        executed = manager.execute(batch, author="ann")
        assert any(executed.applied), f"a step of the setup did nothing: {batch}"
    before = manager.present()
    actions: list[tuple[str, object]] = []
    match scenario.expect:
        case Refused(error, says):
            with pytest.raises(error) as caught:
                manager.execute(commands_of(scenario.run, before), author="ann")
            assert type(caught.value) is error
            assert says in caught.value.message
            assert manager.latest_catalog() is before
        case Nothing():
            executed = manager.execute(commands_of(scenario.run, before), author="ann")
            assert not any(executed.applied)
            assert manager.latest_catalog() is before
        case Made(verbs, applied):
            batch = commands_of(scenario.run, before)
            executed = manager.execute(batch, author="ann")
            assert executed.version == before.version + 1
            assert list(executed.applied) == list(applied or [True] * len(batch))
            actions = [*manager.history(executed.version)[0].actions]
            if verbs is not None:
                assert [verb for verb, _ in actions] == list(verbs)
    result = Result(before, manager.present(), actions, manager)
    assert manager.catalog(before.version) is before
    for read, wanted in scenario.checks:
        assert read(result) == wanted


@pytest.fixture(scope="module")
def store() -> RenewedStore:
    return RenewedStore()


@pytest.fixture
def manager(store: RenewedStore) -> Iterator[CatalogManager]:
    with store.manager() as manager:
        yield manager


@pytest.mark.parametrize(
    "scenario", [s for _, s in ALL], ids=[f"{module}: {s.name}" for module, s in ALL]
)
def test_a_scenario_has_its_expected_result(manager: CatalogManager, scenario: Scenario) -> None:
    run(manager, scenario)


def test_scenario_names_are_unique_within_a_module() -> None:
    names = [(module, scenario.name) for module, scenario in ALL]
    assert len(names) == len(set(names))
