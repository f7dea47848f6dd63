"""Appends lost to versions of another node: which of them are validated again."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import pytest

from strandline.catalog import update_priority
from strandline.catalog.planning import Planning
from strandline.errors import (
    DeadlineExceeded,
    IllegalChange,
    StrandlineError,
    Unavailable,
    UnknownOutcome,
)
from tests.catalog.callers import PATIENCE, Call, Gate, Managers, create, keep_books, schemas


@pytest.mark.parametrize("silent", [True, False])
def test_a_lost_append_is_validated_again_unless_it_lost_only_to_silent_versions(
    new_manager: Managers, silent: bool
) -> None:
    manager, other = new_manager(), new_manager()
    judged: list[int] = []

    @dataclass(frozen=True)
    class Counted:
        def plan(self, planning: Planning) -> None:
            judged.append(planning.base.version)
            create("a").plan(planning)

    gate = Gate(manager)
    gate.let_all_pass()
    real, between = gate.real, [1, 2]

    def lose(*arguments: Any, **named: Any) -> Any:
        if between:
            keep_books(other, between.pop(), "configure" if silent else "comment_on")
        return real(*arguments, **named)

    gate.real = lose
    assert manager.execute(Counted(), author="ann").version == 5
    assert judged == ([2] if silent else [2, 3, 4])
    assert manager.statistics().rebased == (2 if silent else 0)
    other.sync()
    assert other.catalog(5).contents == manager.catalog(5).contents
    assert schemas(other) == ["a"]


def test_an_append_lost_to_a_silent_change_of_the_same_object_is_validated_again(
    new_manager: Managers,
) -> None:
    manager, other = new_manager(), new_manager()
    gate = Gate(manager)
    gate.let_all_pass()
    real, first = gate.real, [True]

    def lose(*arguments: Any, **named: Any) -> Any:
        if first:
            first.clear()
            other.sync()
            transaction = other.state.transaction(other.latest_catalog(), author="system")
            with transaction.entry("allocate", {}):
                transaction.allocate_id(amount=7)
            other.state.commit_transaction(transaction)
        return real(*arguments, **named)

    gate.real = lose
    assert manager.execute(create("a"), author="ann").version == 4
    schema = manager.present().schema("a")
    assert schema is not None
    before = manager.catalog(3).get("id_allocator", "object").next_id
    assert schema.id == before
    assert manager.statistics().rebased == 0


def test_a_long_batch_gets_its_turn_although_another_node_appends_during_each_validation(
    new_manager: Managers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(update_priority, "LONG_VALIDATION_SECONDS", 0.0)
    monkeypatch.setattr(update_priority, "PRIORITY_SECONDS", PATIENCE)
    manager, other = new_manager(), new_manager()
    other.start()
    calls: list[Call] = []

    @dataclass(frozen=True)
    class Long:
        def plan(self, planning: Planning) -> None:
            has_priority = len(calls) >= update_priority.LOSSES_BEFORE_PRIORITY
            calls.append(Call(other, create(f"b{len(calls)}")))
            # While this node has priority, the call waits.
            calls[-1].join(0.3 if has_priority else PATIENCE)
            create("a").plan(planning)

    version = manager.execute(Long(), author="ann").version
    assert all(isinstance(call.outcome(), int) for call in calls)
    versions = [call.version for call in calls]
    assert versions[update_priority.LOSSES_BEFORE_PRIORITY - 1] < version < versions[-1]
    assert schemas(other) == ["a", *(f"b{number}" for number in range(len(calls)))]


def test_a_batch_that_is_refused_after_it_has_asked_for_priority_lets_the_others_go_on(
    new_manager: Managers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(update_priority, "LONG_VALIDATION_SECONDS", 0.0)
    monkeypatch.setattr(update_priority, "PRIORITY_SECONDS", PATIENCE)
    manager, other = new_manager(), new_manager()
    other.start()
    versions: list[int] = []

    @dataclass(frozen=True)
    class Refused:
        def plan(self, planning: Planning) -> None:
            if len(versions) == update_priority.LOSSES_BEFORE_PRIORITY:
                raise IllegalChange("refused")
            name = f"b{len(versions)}"
            versions.append(other.execute(create(name), author="ann").version)
            create("a").plan(planning)

    with pytest.raises(IllegalChange):
        manager.execute(Refused(), author="ann")
    other.sync()
    assert other.latest_catalog().version > versions[-1]  # the request
    other.execute(create("c"), author="ann", timeout=PATIENCE / 2)
    assert schemas(other) == ["b0", "b1", "c"]


def test_a_node_that_asked_for_priority_and_died_delays_the_others_only_for_a_while(
    new_manager: Managers, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager, other = new_manager(), new_manager()
    other.start()
    began = time.monotonic()
    manager._commits.priority.ask(0.2)
    other.sync()
    other.execute(create("b"), author="ann")
    assert 0.2 <= time.monotonic() - began < PATIENCE
    monkeypatch.setattr(update_priority, "PRIORITY_SECONDS", PATIENCE)
    manager._commits.priority.ask(PATIENCE)
    other.sync()
    with pytest.raises(DeadlineExceeded):
        other.execute(create("c"), author="ann", timeout=0.1)
    manager.execute(create("d"), author="ann")
    other.execute(create("c"), author="ann", timeout=PATIENCE / 2)


def test_of_two_nodes_that_ask_for_priority_the_first_has_it_and_then_the_second(
    new_manager: Managers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(update_priority, "PRIORITY_SECONDS", PATIENCE)
    manager, other = new_manager(), new_manager()
    other.start()
    for node in (manager, other):
        node._commits.priority.ask(PATIENCE)
    manager.sync()
    manager.execute(create("a"), author="ann", timeout=PATIENCE / 2)
    other.sync()
    other.execute(create("b"), author="ann", timeout=PATIENCE / 2)
    assert schemas(other) == ["a", "b"]


@pytest.mark.parametrize("error", [UnknownOutcome, Unavailable])
def test_a_request_for_priority_that_fails_does_not_fail_the_batch(
    new_manager: Managers, monkeypatch: pytest.MonkeyPatch, error: type[StrandlineError]
) -> None:
    monkeypatch.setattr(update_priority, "LONG_VALIDATION_SECONDS", 0.0)
    manager, other = new_manager(), new_manager()
    versions: list[int] = []

    @dataclass(frozen=True)
    class Long:
        def plan(self, planning: Planning) -> None:
            if len(versions) < update_priority.LOSSES_BEFORE_PRIORITY:
                name = f"b{len(versions)}"
                versions.append(other.execute(create(name), author="ann").version)
            create("a").plan(planning)

    gate = Gate(manager)
    gate.let_all_pass()
    real, failed = gate.real, list[int]()

    def lose(*arguments: Any, **named: Any) -> Any:
        if (
            not failed
            and len(versions) == update_priority.LOSSES_BEFORE_PRIORITY
            and arguments[2][0].silent
        ):
            failed.append(1)
            raise error("the server does not answer")
        return real(*arguments, **named)

    gate.real = lose
    version = manager.execute(Long(), author="ann", timeout=PATIENCE / 2).version
    assert failed
    assert version == versions[-1] + 1
