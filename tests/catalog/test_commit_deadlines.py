"""Callers whose deadline passes, and stores that do not answer before it.

Two rules differ from the manager that this one is modelled on. A lost append is retried until the
caller's deadline, not ten times. A store that does not answer is also asked again until then.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from strandline.catalog import CatalogManager
from strandline.catalog.group_commit import GroupCommit
from strandline.catalog.planning import Planning
from strandline.catalog.requests import Request, Stage
from strandline.errors import (
    CorruptData,
    DeadlineExceeded,
    Fenced,
    Stopping,
    StoreMoved,
    Unavailable,
    UnknownOutcome,
    WrongClock,
)
from tests.catalog import callers
from tests.catalog.callers import Call, Gate, create, leave_after, schemas, wait_for


def test_a_caller_that_times_out_in_the_queue_has_no_effect_on_the_catalog(
    manager: CatalogManager,
) -> None:
    gate = Gate(manager)
    first = Call(manager, create("first"))
    assert gate.reached.acquire(timeout=callers.PATIENCE)
    late = Call(manager, create("late"), timeout=0.05)
    patient = Call(manager, create("b"))
    assert isinstance(late.outcome(), DeadlineExceeded)
    gate.let_all_pass()
    assert [first.outcome(), patient.outcome()] == [3, 4]
    assert schemas(manager) == ["b", "first"]


@dataclass(frozen=True)
class Long:
    """A command whose planning lasts until the test lets it continue."""

    began: threading.Event
    goes_on: threading.Event

    def plan(self, planning: Planning) -> None:
        self.began.set()
        assert self.goes_on.wait(callers.PATIENCE)


@dataclass(frozen=True)
class Noted:
    """A command that records that it was planned."""

    planned: list[str]

    def plan(self, planning: Planning) -> None:
        self.planned.append(planning.author)


def test_the_rest_of_a_batch_is_not_planned_after_its_caller_timed_out(
    manager: CatalogManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    long, noted = Long(threading.Event(), threading.Event()), Noted([])
    leave_after(monkeypatch, lambda: long.began.wait(callers.PATIENCE))
    late = Call(manager, [create("late"), long, noted], author="late")
    assert long.began.wait(callers.PATIENCE)
    patient = Call(manager, [create("a"), noted], author="ben")
    assert isinstance(late.outcome(), DeadlineExceeded)
    long.goes_on.set()
    assert patient.outcome() == 3
    assert noted.planned == ["ben"]
    assert schemas(manager) == ["a"]


def test_a_batch_whose_caller_leaves_during_its_last_command_is_not_sent(
    manager: CatalogManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = Long(threading.Event(), threading.Event())
    leave_after(monkeypatch, lambda: long.began.wait(callers.PATIENCE))
    late = Call(manager, [create("late"), long], author="late")
    assert isinstance(late.outcome(), DeadlineExceeded)
    long.goes_on.set()
    assert manager.execute(create("a"), author="ann").version == 3
    assert schemas(manager) == ["a"]


@dataclass(frozen=True)
class Late:
    """A command that ``other`` precedes at the first try; the second lasts until ``goes_on``."""

    other: CatalogManager
    tried: threading.Event
    began_again: threading.Event
    goes_on: threading.Event

    def plan(self, planning: Planning) -> None:
        if self.tried.is_set():
            self.began_again.set()
            assert self.goes_on.wait(callers.PATIENCE)
        else:
            self.other.execute(create("first"), author="bob")
            self.tried.set()


def test_a_caller_whose_append_was_lost_until_its_deadline_learns_why(
    new_manager: Callable[[], CatalogManager], monkeypatch: pytest.MonkeyPatch
) -> None:
    manager, other = new_manager(), new_manager()
    late = Late(other, *(threading.Event() for _ in range(3)))
    leave_after(monkeypatch, lambda: late.began_again.wait(callers.PATIENCE))
    call = Call(manager, [create("late"), late], author="late")
    outcome = call.outcome()
    late.goes_on.set()
    assert isinstance(outcome, DeadlineExceeded)
    assert outcome.message.endswith(
        "other changes of the catalog came first; fewer commands at once take less time"
    )
    assert schemas(other) == ["first"]


def test_a_caller_that_times_out_after_its_append_was_sent_gets_unknown_outcome(
    manager: CatalogManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(manager)
    leave_after(monkeypatch, lambda: gate.reached.acquire(timeout=callers.PATIENCE))
    outcome = Call(manager, create("a"), author="late").outcome()
    gate.let_all_pass()
    assert isinstance(outcome, UnknownOutcome)
    assert manager.execute(create("b"), author="ann").version == 4
    assert schemas(manager) == ["a", "b"]


def test_a_change_whose_caller_left_is_not_sent_again_if_its_append_is_lost(
    new_manager: Callable[[], CatalogManager], monkeypatch: pytest.MonkeyPatch
) -> None:
    manager, other = new_manager(), new_manager()
    gate = Gate(manager)
    leave_after(monkeypatch, lambda: gate.reached.acquire(timeout=callers.PATIENCE))
    assert isinstance(Call(manager, create("a"), author="late").outcome(), UnknownOutcome)
    other.execute(create("first"), author="bob")
    gate.let_all_pass()
    manager.execute(create("b"), author="ann")
    assert schemas(manager) == ["b", "first"]


def test_a_caller_that_times_out_while_its_node_compares_the_log_gets_deadline_exceeded(
    manager: CatalogManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is sent before a node that was paused knows that the log has its latest version."""
    check = manager._set_back_check
    compares, refuse = threading.Event(), check.refuse_lost_version
    calls: list[Call] = []  # its thread may come to the comparison before it is in here

    def wait_until_left(*arguments: Any, **options: Any) -> None:
        compares.set()
        wait_for(lambda: any(call.error for call in calls))
        refuse(*arguments, **options)

    monkeypatch.setattr(check, "refuse_lost_version", wait_until_left)
    monkeypatch.setattr(check, "_looked_at", float("-inf"))
    leave_after(monkeypatch, lambda: compares.wait(callers.PATIENCE))
    calls.append(Call(manager, create("a"), author="late"))
    assert type(calls[0].outcome()) is DeadlineExceeded


def test_the_queue_is_bounded_and_a_caller_that_waits_for_room_keeps_its_deadline(
    manager: CatalogManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strandline.catalog.group_commit.MAX_WAITING", 2)
    gate = Gate(manager)
    first = Call(manager, create("first"))
    assert gate.reached.acquire(timeout=callers.PATIENCE)
    calls = [Call(manager, create(name)) for name in "ab"]
    wait_for(lambda: len(manager._commits._waiting) == 2)
    assert isinstance(Call(manager, create("late"), timeout=0.05).outcome(), DeadlineExceeded)
    waiting = Call(manager, create("c"))
    gate.let_all_pass()
    outcomes = {first.outcome(), waiting.outcome(), *(call.outcome() for call in calls)}
    assert outcomes == {3, 4, 5, 6}


def test_an_append_to_an_unavailable_store_is_retried_until_it_succeeds(
    manager: CatalogManager,
) -> None:
    gate = Gate(manager)
    gate.let_all_pass()
    real, failures = gate.real, [Unavailable("away"), Unavailable("away"), UnknownOutcome("cut")]

    def away(*arguments: Any, **named: Any) -> Any:
        if failures:
            raise failures.pop(0)
        return real(*arguments, **named)

    gate.real = away
    assert manager.execute(create("a"), author="ann").version == 3
    assert failures == []


def test_a_caller_of_a_store_that_stays_unavailable_times_out_without_effect(
    manager: CatalogManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, unsent, unsend = Gate(manager), threading.Event(), GroupCommit._unsend
    gate.let_all_pass()

    def unsend_until_left(commits: GroupCommit, requests: Sequence[Request]) -> None:
        unsend(commits, requests)
        unsent.set()
        wait_for(lambda: all(request.stage is Stage.LEFT for request in requests))

    def away(*_: Any, **__: Any) -> Any:
        raise Unavailable("the store is away")

    real, gate.real = gate.real, away
    leave_after(monkeypatch, lambda: unsent.wait(callers.PATIENCE))
    with monkeypatch.context() as patch:
        patch.setattr(GroupCommit, "_unsend", unsend_until_left)
        assert type(Call(manager, create("a"), author="late").outcome()) is DeadlineExceeded
    gate.real = real
    assert manager.execute(create("b"), author="ann").version == 3


def test_a_caller_gets_unknown_outcome_if_the_store_never_reports_the_outcome(
    manager: CatalogManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, asked = Gate(manager), threading.Event()
    gate.let_all_pass()

    def silent(*_: Any, **__: Any) -> Any:
        asked.set()
        raise UnknownOutcome("the line was cut")

    real, gate.real = gate.real, silent
    leave_after(monkeypatch, lambda: asked.wait(callers.PATIENCE))
    assert type(Call(manager, create("a"), author="late").outcome()) is UnknownOutcome
    gate.real = real
    assert manager.execute(create("b"), author="ann").version == 3


def is_committer() -> bool:
    return threading.current_thread().name == "catalog-committer"


def test_a_caller_that_leaves_while_a_lost_append_is_repeated_learns_why_it_was_lost(
    manager: CatalogManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, repeated, has_left = Gate(manager), threading.Event(), threading.Event()
    gate.let_all_pass()

    def lose(*_: Any, **__: Any) -> Any:
        if len(gate.sent) == 2:
            repeated.set()
            assert has_left.wait(callers.PATIENCE)
        raise UnknownOutcome.of_commit("the line was cut")

    gate.real = lose
    leave_after(monkeypatch, lambda: repeated.wait(callers.PATIENCE))
    left = Request.left
    monkeypatch.setattr(
        Request,
        "left",
        lambda request: 1.0 if is_committer() and not has_left.is_set() else left(request),
    )
    outcome = Call(manager, create("a"), author="late").outcome()
    has_left.set()
    assert isinstance(outcome, UnknownOutcome)
    assert "(the line was cut). The change may still take effect" in outcome.message


def test_an_append_whose_outcome_is_unknown_is_sent_again_with_the_same_ids(
    manager: CatalogManager,
) -> None:
    gate = Gate(manager)
    gate.let_all_pass()
    real = gate.real
    ids: list[bytes] = []

    def lose_two_answers(*arguments: Any, **named: Any) -> Any:
        ids.append(arguments[2][0].id)
        if len(ids) == 1:
            raise UnknownOutcome("cut")  # it was not appended, but the caller cannot know
        if len(ids) in (2, 4):
            raise Unavailable("away")  # which says nothing about the append before it
        result = real(*arguments, **named)
        if len(ids) == 3:
            raise UnknownOutcome("cut")  # it was appended
        return result

    gate.real = lose_two_answers
    assert manager.execute(create("a"), author="ann").version == 3
    assert len(ids) == 5
    assert len(set(ids)) == 1
    assert manager.present().version == 3


@pytest.mark.parametrize("error", [Stopping, Fenced, CorruptData, WrongClock, StoreMoved, OSError])
def test_an_unknown_outcome_stays_unknown_when_the_append_cannot_be_sent_again(
    manager: CatalogManager, error: type[Exception]
) -> None:
    gate = Gate(manager)
    gate.let_all_pass()
    failures = [UnknownOutcome("cut"), error("not sent")]

    def stop(*_: Any, **__: Any) -> Any:
        raise failures.pop(0)

    gate.real = stop
    with pytest.raises(UnknownOutcome, match="cut"):
        manager.execute(create("a"), author="ann")
    assert failures == []
