"""Callers of a node that stops, or that another node fences."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, NoReturn

import pytest

from strandline.catalog import CatalogManager
from strandline.catalog.group_commit import GroupCommit
from strandline.errors import DeadlineExceeded, Fenced, Stopping, Unavailable, UnknownOutcome
from tests.catalog import callers
from tests.catalog.callers import (
    Call,
    Gate,
    Managers,
    create,
    leave_after,
    queued,
    schemas,
    wait_for,
)
from tests.conftest import Member
from tests.interrupts import LackOfMemory


def test_waiting_callers_get_stopping_and_their_commands_are_not_executed(
    new_manager: Managers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strandline.catalog.group_commit._STOP_TIMEOUT", callers.PATIENCE)
    manager, other = new_manager(), new_manager()
    gate = Gate(manager)
    first = Call(manager, create("first"))
    assert gate.reached.acquire(timeout=callers.PATIENCE)
    waiting = [Call(manager, create(name)) for name in "abc"]
    wait_for(lambda: len(manager._commits._waiting) == 3)
    ready = manager.ready(99)
    stopping = threading.Thread(target=manager.stop)
    stopping.start()
    for call in waiting:
        assert isinstance(call.outcome(), Stopping)
    gate.let_all_pass()
    stopping.join(callers.PATIENCE)
    assert not stopping.is_alive()
    assert first.outcome() == 3  # its append was sent, and succeeded
    with pytest.raises(Stopping):
        ready.result(timeout=callers.PATIENCE)
    with pytest.raises(Stopping):
        manager.execute(create("z"), author="ann")
    assert schemas(other) == ["first"]


def test_a_caller_whose_append_lost_while_its_node_stops_is_told_that_it_stops(
    new_manager: Managers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strandline.catalog.group_commit._STOP_TIMEOUT", callers.PATIENCE)
    manager, other = new_manager(), new_manager()
    gate = Gate(manager)
    call = Call(manager, create("a"))
    assert gate.reached.acquire(timeout=callers.PATIENCE)
    (request,) = manager._commits._working
    assert Call(other, create("b")).outcome() == 3
    stopping = threading.Thread(target=manager.stop)
    stopping.start()
    wait_for(manager._commits._stop.is_set)
    gate.let_all_pass()
    stopping.join(callers.PATIENCE)
    assert isinstance(call.outcome(), Stopping)
    assert isinstance(request.error, Stopping)  # the caller may read it late


def test_an_append_that_never_returns_does_not_block_a_stop_forever(
    manager: CatalogManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strandline.catalog.group_commit._STOP_TIMEOUT", 0.05)
    gate = Gate(manager)
    call = Call(manager, create("a"))
    assert gate.reached.acquire(timeout=callers.PATIENCE)
    manager.stop()
    assert isinstance(call.outcome(), UnknownOutcome)
    gate.let_all_pass()


def test_a_fenced_node_refuses_the_sent_append_and_executes_waiting_commands(
    new_manager: Managers, new_member: Callable[[], Member]
) -> None:
    manager = new_manager()
    gate = Gate(manager)
    first, calls = queued(manager, gate, [create("a"), create("b")])
    new_member().open()  # version 3
    gate.let_all_pass()
    assert isinstance(first.outcome(), Fenced)
    assert [call.outcome() for call in calls] == [4, 5]
    assert schemas(manager) == ["a", "b"]


def test_a_fenced_node_that_fails_to_join_tries_again_at_the_next_call(
    manager: CatalogManager, new_member: Callable[[], Member], monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(manager)
    first = Call(manager, create("a"))
    assert gate.reached.acquire(timeout=callers.PATIENCE)
    new_member().open()  # version 3
    with monkeypatch.context() as patch:
        patch.setattr(manager, "sync", lambda: 1 // 0)
        gate.let_all_pass()
        assert isinstance(first.outcome(), Fenced)
        wait_for(lambda: not manager._commits._working)
    assert Call(manager, create("b")).outcome() == 4
    assert schemas(manager) == ["b"]


def test_an_unknown_outcome_stays_unknown_if_the_node_is_fenced_before_it_asks_again(
    new_manager: Managers, new_member: Callable[[], Member], monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = new_manager()
    gate = Gate(manager)
    gate.let_all_pass()
    real = gate.real

    def refuse(_: object) -> NoReturn:
        raise Unavailable("the store is away")

    def lose_the_answer(*arguments: Any, **named: Any) -> NoReturn:
        real(*arguments, **named)
        new_member().open()
        with pytest.raises(Unavailable, match="away"):
            manager.sync()  # it sees the fence, and cannot join
        raise UnknownOutcome("cut")

    with monkeypatch.context() as patch:
        patch.setattr(manager, "_join_anew", refuse)
        patch.setattr(gate, "real", lose_the_answer)
        with pytest.raises(UnknownOutcome, match="cut"):
            manager.execute(create("a"), author="ann")
    assert schemas(manager) == ["a"]


def test_the_commit_thread_of_an_idle_manager_ends_and_starts_again_on_demand(
    manager: CatalogManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strandline.catalog.group_commit.IDLE_SECONDS", 0.01)
    assert manager.execute(create("a"), author="ann").version == 3
    wait_for(lambda: manager._commits._thread is None)
    assert manager.execute(create("b"), author="ann").version == 4


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_callers_get_an_error_if_the_commit_thread_ends_and_the_next_one_starts_it_again(
    manager: CatalogManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may lack memory. A node that serves clients then ends, but an embedded one lives on."""
    gate = Gate(manager)
    first, calls = queued(manager, gate, [create("a"), create("b")])
    die = LackOfMemory()

    with monkeypatch.context() as patch:
        patch.setattr(GroupCommit, "_await_callers", die)
        gate.let_all_pass()
        assert first.outcome() == 3
        for call in calls:
            error = call.outcome()
            assert isinstance(error, Unavailable)
            assert "MemoryError" in error.message
    die.join()
    assert Call(manager, create("b")).outcome() == 4
    assert schemas(manager) == ["b", "first"]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_the_next_caller_starts_the_commit_thread_that_had_no_memory_to_answer(
    manager: CatalogManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    die = LackOfMemory()

    def has_died() -> bool:
        die.join()
        return True

    with monkeypatch.context() as patch:
        patch.setattr(GroupCommit, "_await_callers", die)
        patch.setattr(GroupCommit, "_fail", die)
        leave_after(patch, has_died)
        lost = Call(manager, create("a"), author="late")
        assert isinstance(lost.outcome(), DeadlineExceeded)
    assert Call(manager, create("b")).outcome() == 3
    assert schemas(manager) == ["b"]


def test_a_caller_for_which_no_thread_can_be_started_leaves_and_the_next_one_tries_again(
    manager: CatalogManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "catalog-committer":  # others belong to earlier tests
            raise RuntimeError("can't start new thread")
        start(thread)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="start"):
            manager.execute(create("a"), author="ann")
    assert manager.execute(create("b"), author="ann").version == 3
    assert schemas(manager) == ["b"]
