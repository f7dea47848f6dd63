"""Several nodes under random load and strikes give a history that can be explained."""

from __future__ import annotations

import socket
from collections import Counter
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.consistency.checker import check
from tests.consistency.history import Operation, save
from tests.consistency.storm import storm
from tests.servers import stores
from tests.servers.served_node import ServedNode


def judge(operations: list[Operation], folder: Path) -> None:
    """Fail with the first complaints; the history is saved."""
    complaints = check(operations)
    if complaints:
        save(operations, folder / "history.jsonl")
    shown = "\n".join(map(str, complaints[:5]))
    assert not complaints, f"{len(complaints)} complaints, {folder}/history.jsonl:\n{shown}"


@pytest.mark.parametrize(
    ("kind", "operations", "every"),
    [
        *(pytest.param(kind, 300, 50, marks=pytest.mark.slow) for kind in ("folder", "postgresql")),
        *(pytest.param(kind, 6000, 150, marks=pytest.mark.soak) for kind in stores.KINDS),
    ],
)
def test_the_history_of_a_storm_can_be_explained(
    kind: str, operations: int, every: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    seed = request.config.getoption("hypothesis_seed") or 1
    store = stores.new_store(kind, tmp_path / "lake")
    history, strikes = storm(store, seed=int(seed), operations=operations, every=every)
    counts = Counter(op.call for op in history.operations if op.is_done)
    print(f"seed {seed}: {dict(counts)}; strikes: {dict(Counter(strikes))}")
    judge(history.operations, tmp_path)
    assert counts["commit"] > operations / 50
    assert strikes


@pytest.mark.slow
def test_the_address_of_a_killed_node_is_given_to_no_other_process(tmp_path: Path) -> None:
    """Else its clients, which try again, may get answers of a node of another test's store."""
    with closing(ServedNode(stores.new_store("folder", tmp_path / "lake"))) as node:
        node.kill()
        refused = pytest.raises(OSError, match="Address already in use")
        with closing(socket.socket()) as other, refused:
            other.bind(("127.0.0.1", urlsplit(node.url).port))
