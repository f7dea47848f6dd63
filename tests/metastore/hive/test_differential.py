"""The same calls to this service and to Hive's metastore 2.3.10: equal answers and exceptions.

The answers of Hive are recorded in a file, so that the tests take seconds. ``make soak`` compares
the file with Hive itself.
"""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from strandline.metastore.hive import partition_filter, partitions, table_changes, table_structs
from tests.metastore.hive.differential.differences import (
    ARROW,
    DIFFERENCES,
    MAX_DIFFERENCES,
    Part,
    parts,
)
from tests.metastore.hive.differential.recorded import SCENARIOS, answers_of_hive, recorded_answers
from tests.metastore.hive.differential.scenario import Answer, Scenario, ask, shown
from tests.metastore.hive.hive_node import HiveNode

HIVE = recorded_answers()


def differing(scenario: Scenario, node: HiveNode) -> list[Part]:
    """The parts of the answers of ``node`` that differ from Hive's."""
    with node.client() as client:
        return _compared(scenario, ask(scenario, client, node.folder / "warehouse"))


def _compared(scenario: Scenario, answers: list[Answer]) -> list[Part]:
    return [
        part
        for call, hive, other in zip(scenario.calls, HIVE[scenario.name], answers, strict=True)
        for part in parts(f"{scenario.name}: {shown(call)}", hive, other)
    ]


def unexplained(reported: list[Part]) -> list[str]:
    return [str(part) for part in reported if not any(d.covers(part) for d in DIFFERENCES)]


@pytest.fixture(scope="module")
def parts_by_name(running: HiveNode) -> dict[str, list[Part]]:
    """The parts in which the answers of one node differ from Hive's, by scenario."""
    return {scenario.name: differing(scenario, running) for scenario in SCENARIOS}


@pytest.mark.parametrize("name", [scenario.name for scenario in SCENARIOS])
def test_the_answers_equal_those_of_hive_except_for_explained_differences(
    parts_by_name: dict[str, list[Part]], name: str
) -> None:
    assert not unexplained(parts_by_name[name]), "\n" + "\n".join(unexplained(parts_by_name[name]))


def test_every_case_of_an_intended_difference_occurs_and_they_are_few(
    parts_by_name: dict[str, list[Part]],
) -> None:
    differing_parts = [part for listed in parts_by_name.values() for part in listed]
    unused = [
        (difference.why, case)
        for difference in DIFFERENCES
        for case in difference.cases
        if not any(difference.covers_by(case, part) for part in differing_parts)
    ]
    assert not unused
    assert len(DIFFERENCES) <= MAX_DIFFERENCES
    assert all(difference.why and difference.client for difference in DIFFERENCES)


def test_a_case_names_both_values() -> None:
    for difference in DIFFERENCES:
        for case in difference.cases:
            hive, arrow, ours = case.rpartition(ARROW)
            assert arrow, case
            assert ".*" not in (hive, ours), case


def test_an_exception_with_another_text_is_the_same_exception(
    parts_by_name: dict[str, list[Part]],
) -> None:
    texts = DIFFERENCES[-1]
    assert texts.why.startswith("The same exception")
    for part in (part for listed in parts_by_name.values() for part in listed):
        if texts.covers(part):
            assert part.hive.partition(":")[0] == part.ours.partition(":")[0], part


@pytest.mark.parametrize(
    ("hive", "ours"),
    [
        ("NoSuchTxnException: No such transaction txnid:#", "TxnAbortedException: no"),
        ("NoSuchLockException: No such lock lockid:#", "NoSuchTxnException: there is no 1; begin"),
        ("MetaException: java.lang.NullPointerException", "NoSuchObjectException: d.t"),
        ("MetaException: Error parsing partition filter; x", "InvalidObjectException: x"),
        ('["p=1"]', '["p=2"]'),
        ("1", "absent"),
    ],
)
def test_another_exception_or_value_is_not_an_intended_difference(hive: str, ours: str) -> None:
    part = Part('a scenario: a_method("d", "t")', "", hive, ours)
    assert unexplained([part])


@pytest.mark.teeth
@pytest.mark.parametrize(
    ("module", "name", "fault", "scenario"),
    [
        (partitions, "DEFAULT_PARTITION", "NULL", "odd values"),
        (partition_filter, "is_default", lambda _: True, "filters on numbers"),
        (table_structs, "VIRTUAL_VIEW", "VIEW", "tables of several kinds"),
        (table_changes, "is_counted_table", lambda _: False, "tables over files"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_a_planted_fault_is_found(
    running: HiveNode,
    monkeypatch: pytest.MonkeyPatch,
    module: ModuleType,
    name: str,
    fault: object,
    scenario: str,
) -> None:
    monkeypatch.setattr(module, name, fault)
    (planted,) = (candidate for candidate in SCENARIOS if candidate.name == scenario)
    assert unexplained(differing(planted, running))


@pytest.mark.soak
def test_hive_still_gives_the_recorded_answers(tmp_path: Path) -> None:
    answers = answers_of_hive(tmp_path)
    changed = [str(part) for s in SCENARIOS for part in _compared(s, answers[s.name])]
    assert not changed, "\n" + "\n".join(changed)
