"""The answers of Hive 2.3.10 to all scenarios, recorded in a file. This command records them again:

    .venv/bin/python -m tests.metastore.hive.differential.recorded

It needs Java, PostgreSQL and its JDBC driver (``make servers``), and two minutes.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from pathlib import Path

from tests.metastore.hive.differential import (
    alters,
    constraints,
    databases,
    filters,
    others,
    partitions,
    roles,
    specs,
    statistics,
    tables,
    transactions,
)
from tests.metastore.hive.differential.scenario import Answer, Scenario, ask, shown
from tests.servers.hive_metastore import hive_metastore, warehouse
from tests.servers.thrift_client import ThriftClient

FILE = Path(__file__).with_name("answers_of_hive_2_3_10.json")
SCENARIOS: tuple[Scenario, ...] = (
    *filters.FIRST_SCENARIOS,
    *databases.SCENARIOS,
    *tables.SCENARIOS,
    *alters.SCENARIOS,
    *partitions.SCENARIOS,
    *filters.SCENARIOS,
    *others.SCENARIOS,
    *statistics.SCENARIOS,
    *constraints.SCENARIOS,
    *transactions.SCENARIOS,
    *roles.SCENARIOS,
    *specs.SCENARIOS,
)


def answers_of_hive(folder: Path) -> dict[str, list[Answer]]:
    """The answers of Hive's metastore, which runs in ``folder``, to each scenario."""
    answers = {}
    with hive_metastore(folder, transactions=True) as port:
        for scenario in SCENARIOS:
            with ThriftClient("127.0.0.1", port) as client:
                answers[scenario.name] = ask(scenario, client, warehouse(folder))
    return answers


def recorded_answers() -> dict[str, list[Answer]]:
    """The answers in the file. Raises `AssertionError` for scenarios that have changed since."""
    recorded = json.loads(FILE.read_text())
    changed = [s.name for s in SCENARIOS if recorded.get(s.name, {}).get("calls") != _digest(s)]
    assert not changed, f"{changed} were not recorded as they are; run {__name__} as a script"
    return {name: entry["answers"] for name, entry in recorded.items()}


def _digest(scenario: Scenario) -> str:
    return hashlib.sha256("\n".join(map(shown, scenario.calls)).encode()).hexdigest()[:16]


def _record() -> None:
    with tempfile.TemporaryDirectory() as folder:
        answers = answers_of_hive(Path(folder))
    entries = []
    for scenario in SCENARIOS:
        lines = ",\n".join(
            json.dumps(answer, ensure_ascii=False, separators=(",", ":"))
            for answer in answers[scenario.name]
        )
        entries.append(
            f'"{scenario.name}":{{"calls":"{_digest(scenario)}","answers":[\n{lines}\n]}}'
        )
    FILE.write_text("{\n" + ",\n".join(entries) + "\n}\n")


if __name__ == "__main__":
    _record()
