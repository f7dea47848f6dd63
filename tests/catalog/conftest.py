"""What the tests of nodes with their own clocks share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from strandline.catalog import update_priority
from tests.catalog.lagging_nodes import DELAY, SKEW, Node, Nodes


@pytest.fixture(autouse=True)
def _no_validation_is_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node on a busy machine asks for no priority, which would be one more version."""
    monkeypatch.setattr(update_priority, "LONG_VALIDATION_SECONDS", 60.0)


@pytest.fixture
def new_node(tmp_path: Path) -> Iterator[Nodes]:
    nodes: list[Node] = []

    def make(*, delay: int = DELAY, skew: int = SKEW) -> Node:
        nodes.append(Node(tmp_path, delay=delay, skew=skew))
        return nodes[-1]

    yield make
    for node in nodes:
        node.close()
