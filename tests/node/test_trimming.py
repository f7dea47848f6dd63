"""Trimming the history while others take holds on it: exactly one of the two succeeds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from strandline.catalog import CatalogManager
from strandline.catalog.commands import CreateSchema
from strandline.errors import Conflict, VersionNotFound
from strandline.metastore.interface import AsOf
from strandline.node import Node
from tests.catalog.callers import Gate, create, together
from tests.log_lines import log_lines
from tests.node.conftest import before_the_next


class TrimmedNode:
    """Three versions, and what another node does at a point of the trim to the last of them."""

    def __init__(self, node: Node, other: Node) -> None:
        self.node, self.other = node, other
        self.session = node.session(user="ann")
        self.old, self.middle, self.last = (
            self.session.execute(CreateSchema(name=name)) for name in "abc"
        )

    def hold(self) -> int:
        """Hold the middle version from another node, which has not heard of any trim."""
        session = self.other.session(user="bob")
        return session.hold("reader", "bob", at=self.middle.time).hold_id


@pytest.fixture
def scene(folder: Path) -> Iterator[TrimmedNode]:
    with Node.open(folder) as node, Node.open(folder) as other:
        yield TrimmedNode(node, other)


def test_a_hold_between_the_check_of_holds_and_the_trim_is_refused(
    scene: TrimmedNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusals: list[str] = []

    def try_to_hold() -> None:
        with pytest.raises(VersionNotFound, match="kept from") as refused:
            scene.hold()
        refusals.append(refused.value.message)

    before_the_next(monkeypatch, CatalogManager, "compact", try_to_hold)
    assert scene.session.compact(scene.last.version)
    assert len(refusals) == 1
    assert scene.node.transactions.holds.list() == ()


def test_a_hold_before_the_check_of_holds_stops_the_trim(
    scene: TrimmedNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    holds = type(scene.node.transactions.holds)
    before_the_next(monkeypatch, holds, "raise_low_watermark", scene.hold)
    with pytest.raises(Conflict, match="of bob needs the history"):
        scene.session.compact(scene.last.version)
    assert scene.other.catalogs.catalog(scene.middle.version).schema("b") is not None


def test_a_hold_on_history_that_is_kept_is_granted_during_a_trim(
    scene: TrimmedNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    before_the_next(monkeypatch, CatalogManager, "compact", scene.hold)
    assert scene.session.compact(scene.middle.version)
    with pytest.raises(Conflict, match="of bob needs the history"):
        scene.session.compact(scene.last.version)


def test_a_version_that_shares_its_time_with_the_next_can_be_held_after_a_trim_to_it(
    folder: Path,
) -> None:
    with Node.open(folder) as node:
        calls = together(node.catalogs, Gate(node.catalogs), [create("a"), create("b")])
        assert [call.outcome() for call in calls] == [4, 5]
        session = node.session(user="ann")
        assert session.compact(4)
        snapshot = session.open([], at=AsOf(version=4))
        assert session.hold("reader", "ann", at=snapshot.time).at == snapshot.time
        with pytest.raises(Conflict, match="of ann needs the history"):
            session.compact(5)
        assert snapshot.catalog_version == 4


def test_a_crash_between_the_check_of_holds_and_the_trim_leaves_a_trimmable_store(
    scene: TrimmedNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def end() -> None:
        raise Killed

    before_the_next(monkeypatch, CatalogManager, "compact", end)
    with pytest.raises(Killed):
        scene.session.compact(scene.last.version)
    assert scene.node.catalogs.earliest_catalog().version == 0
    with pytest.raises(VersionNotFound, match="kept from"):
        scene.hold()
    assert scene.session.compact(scene.last.version)


def test_a_refused_trim_does_not_raise_the_watermark(
    scene: TrimmedNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise VersionNotFound("it is not active on every node")

    monkeypatch.setattr(CatalogManager, "check_active_everywhere", refuse)
    with pytest.raises(VersionNotFound, match="not active on every node"):
        scene.session.compact(scene.last.version)
    assert scene.hold()


def test_the_log_names_the_user_who_trimmed_the_history(scene: TrimmedNode) -> None:
    with log_lines() as log:
        assert scene.session.compact(scene.last.version)
        assert not scene.session.compact(scene.last.version)
    message = f"trimmed the history below version {scene.last.version}"
    assert log.of("ddl") == [{"level": "info", "message": message, "user": "ann"}]
