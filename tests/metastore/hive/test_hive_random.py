"""Random calls have the same answers and the same kinds of exceptions as on Hive's metastore."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.metastore.hive.differential.differences import DIFFERENCES, parts
from tests.metastore.hive.differential.scenario import Answer, ask, shown
from tests.metastore.hive.hive_node import HiveNode
from tests.metastore.hive.random_calls import RandomCalls
from tests.servers.hive_metastore import hive_metastore, warehouse
from tests.servers.thrift_client import ThriftClient

pytestmark = pytest.mark.soak

SEEDS, CALLS = range(1, 17), 90


def test_random_calls_have_the_same_answers_as_on_hive(tmp_path: Path, running: HiveNode) -> None:
    differing = []
    with hive_metastore(tmp_path) as port:
        for seed in SEEDS:
            scenario = RandomCalls(seed).scenario(CALLS)
            with ThriftClient("127.0.0.1", port) as client:
                expected = ask(scenario, client, warehouse(tmp_path))
            with running.client() as client:
                answers = ask(scenario, client, running.folder / "warehouse")
            refused = sum("throws" in answer for answer in answers)
            assert refused < CALLS // 2, "most calls were refused"
            differing += [
                str(part)
                for call, hive, ours in zip(scenario.calls, expected, answers, strict=True)
                for part in parts(f"{scenario.name}: {shown(call)}", kind(hive), kind(ours))
                if not any(difference.covers(part) for difference in DIFFERENCES)
            ]
    assert not differing, "\n" + "\n".join(differing)


def kind(answer: Answer) -> Answer:
    """The answer, or the name of the exception: no client reads the texts of these."""
    return answer | {"message": ""} if "throws" in answer else answer
