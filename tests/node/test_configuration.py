"""A value in the catalog overrides a node's own setting, on every node and immediately."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from strandline.catalog.commands import SetConfiguration
from strandline.clock import Timestamp, add_milliseconds
from strandline.config import Settings
from strandline.errors import VersionNotFound
from strandline.node import Node

HOUR_MS = 3_600_000
OWN = Settings(history_retention_ms=2 * HOUR_MS, metadata_staleness_ms=250)


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[tuple[Node, Node]]:
    """Two nodes on one folder; the second has its own settings."""
    with (
        Node.open(tmp_path / "store") as first,
        Node.open(tmp_path / "store", settings=OWN) as other,
    ):
        yield first, other


def configure(node: Node, name: str, value: str | None) -> None:
    node.session(user="ann").execute(SetConfiguration(name=name, value=value))


def effective(node: Node) -> tuple[int, float]:
    node.catalogs.present()
    return node.configuration.history_retention_ms(), node.configuration.metadata_staleness()


def can_hold(node: Node, milliseconds_ago: int) -> bool:
    at = add_milliseconds(Timestamp(node.catalogs.complete_now()), -milliseconds_ago)
    try:
        node.transactions.holds.acquire("reader", "ann", at=at, ttl_ms=1)
    except VersionNotFound:
        return False
    return True


def test_without_a_catalog_value_each_node_uses_its_own_setting(nodes: tuple[Node, Node]) -> None:
    defaults = Settings()
    assert effective(nodes[0]) == (defaults.history_retention_ms, 0.0)
    assert effective(nodes[1]) == (2 * HOUR_MS, 0.25)


def test_a_catalog_value_applies_to_every_node_until_it_is_reset(nodes: tuple[Node, Node]) -> None:
    configure(nodes[0], "history_retention", "3h")
    configure(nodes[0], "metadata_staleness", "2s")
    assert effective(nodes[0]) == effective(nodes[1]) == (3 * HOUR_MS, 2.0)
    configure(nodes[1], "metadata_staleness", "0")
    assert effective(nodes[0])[1] == effective(nodes[1])[1] == 0.0
    configure(nodes[1], "metadata_staleness", None)
    assert effective(nodes[1]) == (3 * HOUR_MS, 0.25)


def test_holds_are_granted_by_the_history_retention_of_the_catalog(
    nodes: tuple[Node, Node],
) -> None:
    node = nodes[1]
    assert can_hold(node, HOUR_MS)
    assert not can_hold(node, 3 * HOUR_MS)
    configure(nodes[0], "history_retention", "30m")
    node.catalogs.present()
    assert not can_hold(node, HOUR_MS)
    assert can_hold(node, HOUR_MS // 4)


def test_a_restart_creates_no_version(tmp_path: Path) -> None:
    for _ in range(3):
        with Node.open(tmp_path / "store") as node:
            assert node.catalogs.present().version == 2
