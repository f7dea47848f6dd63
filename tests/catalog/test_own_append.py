"""A reader that meets a large unapplied update of its own node does not decode it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from strandline import faults, work
from strandline.catalog import Catalog, CatalogManager, update_priority
from strandline.catalog.commands import CreateSchema
from strandline.catalog.planning import Planning
from strandline.durable.contents import Contents
from strandline.errors import InvalidInput, Stopping

TIMEOUT = 60.0
LARGE = work.AT_ONCE + 1


class Reader:
    """Reads the present in its own thread, between an append and its application.

    The appending thread continues when the reader has its answer.
    """

    def __init__(self, manager: CatalogManager, patch: pytest.MonkeyPatch) -> None:
        self._manager = manager
        self.decoded: list[str] = []
        self.version = 0
        apply = Contents.apply

        def noted_apply(contents: Contents, *args: Any, **named: Any) -> Contents:
            self.decoded.append(threading.current_thread().name)
            return apply(contents, *args, **named)

        def appended(_: str) -> None:
            reader = threading.Thread(target=self._read, name="reader")
            reader.start()
            reader.join(TIMEOUT)

        patch.setattr(Contents, "apply", noted_apply)
        patch.setattr(faults, "reached", appended)

    def _read(self) -> None:
        self.version = self._manager.present().version


def create(manager: CatalogManager, count: int) -> int:
    """Create ``count`` schemas; returns the version."""
    commands = [CreateSchema(name=f"s{number}") for number in range(count)]
    return manager.execute(commands, author="ann").version


def test_a_reader_has_a_large_update_of_this_node_without_decoding_it(
    manager: CatalogManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = Reader(manager, monkeypatch)
    version = create(manager, LARGE)
    assert reader.version == version
    assert "reader" not in reader.decoded
    monkeypatch.undo()
    recorded = manager.state.updates_after(manager.catalog(version - 1))
    assert [applied.time for applied in recorded] == [manager.catalog(version).time]
    assert recorded[-1].contents == manager.catalog(version).contents


def test_a_reader_has_each_of_the_large_updates_that_share_an_append(
    manager: CatalogManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = manager.latest_catalog()
    transactions = []
    for name in ("first", "second"):
        transaction = manager.state.transaction(base, author="ann")
        planning = Planning(base, transaction, base.time)
        for number in range(LARGE):
            CreateSchema(name=f"{name}{number}").plan(planning)
        transactions.append(transaction)
        base = Catalog(transaction.version, base.time, transaction.contents)
    with manager.own_append(transactions):
        manager.state.commit_transactions(transactions)
        monkeypatch.setattr(Contents, "apply", refuse)
        assert manager.present().version == base.version


def test_a_small_update_is_read_from_the_log_at_once(
    manager: CatalogManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = Reader(manager, monkeypatch)
    assert create(manager, 1) == reader.version
    assert "reader" in reader.decoded


# -- what a child process of the node appends


def test_an_announced_update_is_not_decoded_again_when_it_is_in_the_log(
    new_manager: Callable[..., CatalogManager], monkeypatch: pytest.MonkeyPatch
) -> None:
    node = new_manager()
    announced: list[bytes] = []

    def announce(record: bytes) -> None:
        announced.append(record)
        node.expect(record)
        assert node.present().version == before  # it is not in the log yet
        monkeypatch.setattr(Contents, "apply", refuse)

    before = node.present().version
    child = new_manager(announce=announce)
    version = create(child, LARGE)
    assert node.present().version == version
    monkeypatch.undo()
    mine, theirs = node.catalog(version), child.catalog(version)
    assert len(announced) == 1
    assert (mine.time, mine.contents) == (theirs.time, theirs.contents)
    assert node.updates(version, version + 1) == child.updates(version, version + 1)
    assert new_manager().catalog(version).contents == mine.contents


def test_an_announced_update_that_another_version_precedes_is_read_from_the_log(
    new_manager: Callable[..., CatalogManager],
) -> None:
    node, other = new_manager(), new_manager()
    announced: list[bytes] = []

    def announce(record: bytes) -> None:
        announced.append(record)
        node.expect(record)
        if len(announced) == 1:
            other.execute(CreateSchema(name="first"), author="bob")

    child = new_manager(announce=announce)
    version = create(child, LARGE)
    assert len(announced) == 2
    assert node.present().version == version
    assert node.present().schema("first") is not None
    assert node.catalog(version).contents == child.catalog(version).contents


def test_an_announced_update_that_is_never_appended_changes_nothing(
    new_manager: Callable[..., CatalogManager],
) -> None:
    node = new_manager()

    def announce(record: bytes) -> None:
        node.expect(record)
        raise InvalidInput("the child ends here")

    child = new_manager(announce=announce)
    before = node.present()
    with pytest.raises(InvalidInput):
        create(child, LARGE)
    node.child_ended()
    assert node.present() is before
    assert create(node, 1) == before.version + 1


def test_commands_of_a_node_wait_until_its_child_has_appended_what_it_announced(
    new_manager: Callable[..., CatalogManager], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the child would validate again and again, and find each time that it was too late."""
    monkeypatch.setattr(update_priority, "PRIORITY_SECONDS", 2.0 * TIMEOUT)
    node, other = new_manager(), new_manager()
    versions: list[int] = []

    def execute() -> None:
        versions.append(node.execute(CreateSchema(name="late"), author="bob").version)

    late = threading.Thread(target=execute)

    def announce(record: bytes) -> None:
        node.expect(record)
        if late.ident is None:
            other.execute(CreateSchema(name="first"), author="bob")
            late.start()
            while not node._commits._waiting:
                late.join(0.001)
        assert late.is_alive()

    version = create(new_manager(announce=announce), LARGE)
    assert late.is_alive()
    node.child_ended()
    late.join(TIMEOUT)
    assert versions == [version + 1]


def test_commands_of_a_node_do_not_wait_long_for_a_child_that_does_not_succeed(
    manager: CatalogManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(update_priority, "PRIORITY_SECONDS", 0.01)
    manager._commits.priority.grant()
    assert create(manager, 1) == manager.present().version
    monkeypatch.setattr(update_priority, "PRIORITY_SECONDS", 60.0)
    manager._commits.priority.grant()  # the child announces again, because another node was first
    commands = [CreateSchema(name="later")]
    assert manager.execute(commands, author="ann", timeout=30).applied == (True,)


def test_a_node_that_stops_does_not_wait_for_its_child(manager: CatalogManager) -> None:
    manager._commits.priority.grant()
    errors: list[str] = []

    def execute() -> None:
        try:
            create(manager, 1)
        except Stopping:
            errors.append("stopping")

    caller = threading.Thread(target=execute)
    caller.start()
    while not manager._commits._waiting:
        caller.join(0.001)
    manager.stop()
    caller.join(TIMEOUT)
    assert errors == ["stopping"]
    assert manager._commits._thread is not None
    assert not manager._commits._thread.is_alive()


def refuse(*_: object, **__: object) -> Contents:
    """Replaces `Contents.apply`."""
    raise AssertionError("an update was decoded and applied again")
