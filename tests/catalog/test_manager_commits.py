"""Group commit: who is carried out, who is not, and what each is told.

Two rules differ from the manager that this one is modelled on. A lost append is tried again until
the caller's deadline, not ten times. And a store that does not answer is asked again until then.
"""

from __future__ import annotations

import inspect
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from strandline.catalog import AppliedVersion, Catalog, CatalogManager
from strandline.catalog.commands import (
    ColumnDefinition,
    CreateSchema,
    CreateTable,
    DropSchema,
    TableDefinition,
)
from strandline.catalog.events import Listeners
from strandline.catalog.group_commit import GroupCommit
from strandline.catalog.manager import MAX_COMMANDS
from strandline.catalog.planning import Planning
from strandline.catalog.requests import Group, Request, Stage, validate
from strandline.durable import AppliedUpdate, CatalogTransaction, DurableCatalogState
from strandline.durable.update import Entry, Update
from strandline.errors import (
    AlreadyExists,
    DeadlineExceeded,
    Fenced,
    InvalidInput,
    ObjectNotFound,
    Stopping,
    StrandlineError,
    Unavailable,
    UnknownOutcome,
)
from strandline.model.descriptors import Setting
from strandline.model.types import INT
from strandline.sql import value
from tests.conftest import Member

Managers = Callable[..., CatalogManager]

PATIENCE = 60.0
"""Seconds for what comes on any machine, and in vain only behind a planted fault."""


def create(name: str, *, if_not_exists: bool = False) -> CreateSchema:
    return CreateSchema(name=name, if_not_exists=if_not_exists)


def table(name: str) -> CreateTable:
    definition = TableDefinition(name=name, columns=(ColumnDefinition("x", INT),))
    return CreateTable(schema="default", definition=definition)


def schemas(manager: CatalogManager) -> list[str]:
    return [name for name in manager.present().schema_names() if len(name) < 6]


class NotedEffects:
    """Effects that note what is asked of them."""

    def __init__(self) -> None:
        self.written: list[list[int]] = []
        self.committed: list[list[int]] = []
        self.projected: list[int] = []
        self.write_errors: list[Exception] = []
        self.project_error: Exception | None = None

    def companion(self, catalogs: Sequence[Catalog]) -> NotedCompanion:
        return NotedCompanion(self, [catalog.version for catalog in catalogs])

    def project_up_to(self, version: int) -> None:
        if self.project_error is not None:
            raise self.project_error
        self.projected.append(version)


class NotedCompanion:
    asks = ()

    def __init__(self, noted: NotedEffects, versions: list[int]) -> None:
        self.noted, self.versions = noted, versions

    def begin(self, updates: Sequence[Update]) -> None:
        assert [update.version for update in updates] == self.versions

    def write(self, connection: Any, updates: Sequence[Update]) -> None:  # Any: as the log's
        if self.noted.write_errors:
            raise self.noted.write_errors.pop()
        assert value(connection, "SELECT 1") == 1
        assert all(update.time for update in updates)
        self.noted.written.append([update.version for update in updates])

    def committed(self) -> None:
        self.noted.committed.append(self.versions)


class Gate:
    """The log's appends of one manager, stopped before or after they happen."""

    def __init__(self, manager: CatalogManager) -> None:
        self.log = manager._state.log
        self.real: Any = self.log.append  # Any: as the real one
        self.reached = threading.Semaphore(0)
        self.open = threading.Semaphore(0)
        self.after = False
        self.sent: list[int] = []
        self.log.append = self.append  # type: ignore[method-assign]  # what this test is for

    def append(self, *arguments: Any, **named: Any) -> Any:  # Any: as the real one
        self.sent.append(len(arguments[2]))
        if not self.after:
            self._wait()
        done = self.real(*arguments, **named)
        if self.after:
            self._wait()
        return done

    def _wait(self) -> None:
        self.reached.release()
        assert self.open.acquire(timeout=PATIENCE)

    def let_all_pass(self) -> None:
        self.open.release(1000)


class Call(threading.Thread):
    """One caller, and what came of it."""

    def __init__(
        self, manager: CatalogManager, command: Any, *, timeout: float = 60, author: str = "ann"
    ) -> None:
        super().__init__(daemon=True)
        self.manager, self.command, self.timeout = manager, command, timeout
        self.author = author
        self.version = 0
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            done = self.manager.execute(self.command, author=self.author, timeout=self.timeout)
            self.version = done.version
        except BaseException as error:
            self.error = error

    def outcome(self) -> BaseException | int:
        self.join(PATIENCE)
        assert not self.is_alive(), "a caller hangs"
        return self.error or self.version


def together(manager: CatalogManager, gate: Gate, commands: Sequence[Any]) -> list[Call]:
    """Calls that share a round, by the authors u1, u2 …"""
    first, calls = queued(manager, gate, commands)
    gate.let_all_pass()
    assert first.outcome() == 3
    return calls


def queued(manager: CatalogManager, gate: Gate, commands: Sequence[Any]) -> tuple[Call, list[Call]]:
    """A call whose append is stopped, and those that queue behind it."""
    first = Call(manager, create("first"))
    assert gate.reached.acquire(timeout=PATIENCE)
    calls = []
    for count, command in enumerate(commands, 1):
        calls.append(Call(manager, command, author=f"u{count}"))
        wait_for(lambda count=count: len(manager._commits._waiting) == count)  # type: ignore[misc]  # mypy: no default in a lambda
    return first, calls


def leave_after(
    monkeypatch: pytest.MonkeyPatch, reached: Callable[[], bool], *, author: str = "late"
) -> None:
    """The time of ``author`` is over as soon as its request has come so far, however long it takes.

    ``reached`` waits until then.
    """
    left, enqueued = Request.left, set[Request]()

    def left_once_reached(request: Request) -> float:
        if request.author != author:
            return left(request)
        if request not in enqueued:
            enqueued.add(request)
            return 60.0
        assert reached()
        return 0.0

    monkeypatch.setattr(Request, "left", left_once_reached)


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


def test_sixteen_callers_that_create_thirty_tables_each_all_succeed(new_manager: Managers) -> None:
    manager = new_manager()
    manager.start()
    versions: list[int] = []

    def work(caller: int) -> None:
        for n in range(30):
            versions.append(manager.execute(table(f"t_{caller}_{n}"), author="ann").version)

    threads = [threading.Thread(target=work, args=(caller,)) for caller in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(versions) == list(range(3, 3 + 480))
    assert len(manager.present().relation_names("default")) == 480
    statistics = manager.statistics()
    assert statistics.executed == 480
    assert statistics.appends < 480


def test_callers_that_come_together_share_one_append_and_one_time(manager: CatalogManager) -> None:
    gate = Gate(manager)
    calls = together(manager, gate, [create(name) for name in "abcd"])
    assert [call.outcome() for call in calls] == [4, 5, 6, 7]
    assert gate.sent == [1, 4]
    assert len({manager.catalog(version).time for version in (4, 5, 6, 7)}) == 1
    assert manager.active_catalog(manager.catalog(4).time).version == 7
    for version, name in zip((4, 5, 6, 7), "abcd", strict=True):
        assert manager.catalog(version).schema(name) is not None
        assert manager.catalog(version - 1).schema(name) is None


def test_a_round_waits_for_as_many_more_callers_as_the_last_one_had(
    manager: CatalogManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, waits, patience = GroupCommit._await_callers, threading.Semaphore(0), [0]

    def patient(commits: GroupCommit, number: int, _: float) -> bool:
        if patience[0]:
            waits.release()
        return real(commits, number, patience[0])

    monkeypatch.setattr(GroupCommit, "_await_callers", patient)
    gate = Gate(manager)
    calls = together(manager, gate, [create("a"), create("b")])
    assert [call.outcome() for call in calls] == [4, 5]
    patience[0] = 30
    early = Call(manager, create("c"))
    assert waits.acquire(timeout=PATIENCE)
    assert gate.sent == [1, 2]
    late = Call(manager, create("d"))
    assert sorted([early.outcome(), late.outcome()], key=str) == [6, 7]
    assert gate.sent == [1, 2, 2]


def test_callers_that_do_not_come_again_are_waited_for_once(
    manager: CatalogManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, expected = GroupCommit._await_callers, []

    def noted(commits: GroupCommit, number: int, _: float) -> bool:
        expected.append(max(number, 1))
        return real(commits, number, 0)

    monkeypatch.setattr(GroupCommit, "_await_callers", noted)
    calls = together(manager, Gate(manager), [create(name) for name in "abcd"])
    assert [call.outcome() for call in calls] == [4, 5, 6, 7]
    assert [manager.execute(create(name), author="ann").version for name in "ef"] == [8, 9]
    assert expected == [1, 5, 4, 1]


def test_what_follows_a_group_is_done_once_before_its_callers_are_answered(
    manager: CatalogManager,
) -> None:
    effects = NotedEffects()
    manager.carry_out(effects)
    calls = together(manager, Gate(manager), [create(name) for name in "abcd"])
    assert [call.outcome() for call in calls] == [4, 5, 6, 7]
    assert effects.written == effects.committed == [[3], [4, 5, 6, 7]]
    assert effects.projected == [3, 7]


def test_an_append_is_undone_with_what_its_companion_could_not_write(
    manager: CatalogManager,
) -> None:
    effects = NotedEffects()
    manager.carry_out(effects)
    effects.write_errors.append(ZeroDivisionError("a mistake"))
    with pytest.raises(ZeroDivisionError):
        manager.execute(create("a"), author="ann")
    assert manager.execute(create("a"), author="ann").version == 3
    assert effects.written == effects.committed == [[3]]


def test_an_append_whose_companion_lacks_something_is_tried_again(manager: CatalogManager) -> None:
    effects = NotedEffects()
    manager.carry_out(effects)
    effects.write_errors.append(Unavailable("no space"))
    assert manager.execute(create("a"), author="ann").version == 3
    assert effects.written == effects.committed == [[3]]


@pytest.mark.parametrize("error", [Unavailable("no space"), ZeroDivisionError("a mistake")])
def test_a_failure_of_what_follows_a_group_is_left_to_its_callers(
    manager: CatalogManager, error: Exception
) -> None:
    effects = NotedEffects()
    effects.project_error = error
    manager.carry_out(effects)
    assert manager.execute(create("a"), author="ann").version == 3


def test_each_of_the_callers_that_share_an_append_is_the_author_of_its_own_version(
    manager: CatalogManager,
) -> None:
    commands = [create("a"), DropSchema(name="first"), create("b"), create("c")]
    calls = together(manager, Gate(manager), commands)
    assert [call.outcome() for call in calls] == [4, 5, 6, 7]
    told = [(one.version, one.author, one.actions[0][1]["schema"]) for one in manager.history(4)]
    assert told == [(4, "u1", "a"), (5, "u2", "first"), (6, "u3", "b"), (7, "u4", "c")]
    assert [update.author for update in manager.updates(4, 8)] == ["u1", "u2", "u3", "u4"]


def test_a_caller_that_a_version_refuses_is_told_once_that_version_is_in_the_log(
    new_manager: Managers,
) -> None:
    manager, other = new_manager(), new_manager()
    gate = Gate(manager)
    first, (maker, refused) = queued(manager, gate, [create("a"), create("a")])
    gate.open.release()
    assert first.outcome() == 3
    assert gate.reached.acquire(timeout=PATIENCE)  # both are judged; the append has not happened
    working = manager._commits._working
    assert len(working) == 2
    assert all(one.stage is not Stage.DONE for one in working)
    other.execute([create("a"), DropSchema(name="a")], author="bob")  # and now it is lost
    other.execute(create("b"), author="bob")
    gate.let_all_pass()
    assert maker.outcome() == 6
    error = refused.outcome()
    assert isinstance(error, AlreadyExists)


def test_a_caller_is_judged_by_what_those_before_it_leave_and_fails_alone(
    manager: CatalogManager,
) -> None:
    gate = Gate(manager)

    @dataclass(frozen=True)
    class Broken:
        def plan(self, planning: Planning) -> None:
            raise ZeroDivisionError("a mistake in a command")

    commands = [
        create("a"),
        create("a"),
        Broken(),
        create("a", if_not_exists=True),
        DropSchema(name="a"),
        DropSchema(name="a"),
        create("b"),
    ]
    calls = together(manager, gate, commands)
    found = [call.outcome() for call in calls]
    assert isinstance(found[1], AlreadyExists)
    assert isinstance(found[2], ZeroDivisionError)
    assert isinstance(found[5], ObjectNotFound)
    assert [found[0], found[3], found[4], found[6]] == [4, 4, 5, 6]
    assert gate.sent == [1, 3]


def test_a_command_that_would_end_the_thread_fails_its_caller_alone(
    manager: CatalogManager,
) -> None:
    @dataclass(frozen=True)
    class Exit:
        def plan(self, planning: Planning) -> None:
            raise SystemExit(3)

    with pytest.raises(SystemExit):
        manager.execute(Exit(), author="ann")
    assert manager.execute(create("a"), author="ann").version == 3


def test_a_round_that_grows_large_is_cut(
    manager: CatalogManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strandline.catalog.group_commit.GROUP_BYTES", 1)
    gate = Gate(manager)
    calls = together(manager, gate, [create(name) for name in "abc"])
    assert [call.outcome() for call in calls] == [4, 5, 6]
    assert gate.sent == [1, 1, 1, 1]


def test_a_round_holds_no_more_updates_than_one_append(
    manager: CatalogManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(manager._state.log), "max_updates", 2)
    gate = Gate(manager)
    calls = together(manager, gate, [create(name) for name in "abcde"])
    assert [call.outcome() for call in calls] == [4, 5, 6, 7, 8]
    assert gate.sent == [1, 2, 2, 1]


def test_what_is_too_large_for_the_store_fails_its_caller_alone(manager: CatalogManager) -> None:
    gate = Gate(manager)
    real = gate.real

    def refuse(upper: int, token: Any, updates: Sequence[Update], **named: Any) -> Any:
        if any(entry.arguments.get("schema") == "large" for u in updates for entry in u.entries):
            raise InvalidInput("the value has too many bytes")
        return real(upper, token, updates, **named)

    gate.real = refuse
    calls = together(manager, gate, [create("a"), create("large"), create("b")])
    found = [call.outcome() for call in calls]
    assert isinstance(found[1], InvalidInput)
    assert sorted(schemas(manager)) == ["a", "b", "first"]
    assert [found[0], found[2]] == [4, 5]


# -- deadlines ---------------------------------------------------------------------------------


def test_a_caller_whose_time_is_over_in_the_queue_leaves_nothing_behind(
    manager: CatalogManager,
) -> None:
    gate = Gate(manager)
    first = Call(manager, create("first"))
    assert gate.reached.acquire(timeout=PATIENCE)
    late = Call(manager, create("late"), timeout=0.05)
    patient = Call(manager, create("b"))
    assert isinstance(late.outcome(), DeadlineExceeded)
    gate.let_all_pass()
    assert [first.outcome(), patient.outcome()] == [3, 4]
    assert schemas(manager) == ["b", "first"]


@dataclass(frozen=True)
class Long:
    """A command that is being planned until the test lets it go on."""

    began: threading.Event
    goes_on: threading.Event

    def plan(self, planning: Planning) -> None:
        self.began.set()
        assert self.goes_on.wait(PATIENCE)


@dataclass(frozen=True)
class Noted:
    """A command that notes that it was planned."""

    planned: list[str]

    def plan(self, planning: Planning) -> None:
        self.planned.append(planning.author)


def test_the_rest_of_a_batch_is_not_planned_once_its_caller_has_left(
    manager: CatalogManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    long, noted = Long(threading.Event(), threading.Event()), Noted([])
    leave_after(monkeypatch, lambda: long.began.wait(PATIENCE))
    late = Call(manager, [create("late"), long, noted], author="late")
    assert long.began.wait(PATIENCE)
    patient = Call(manager, [create("a"), noted], author="ben")
    assert isinstance(late.outcome(), DeadlineExceeded)
    long.goes_on.set()
    assert patient.outcome() == 3
    assert noted.planned == ["ben"]
    assert schemas(manager) == ["a"]


def test_a_caller_whose_time_is_over_after_the_append_was_sent_learns_that_it_may_happen(
    manager: CatalogManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(manager)
    leave_after(monkeypatch, lambda: gate.reached.acquire(timeout=PATIENCE))
    outcome = Call(manager, create("a"), author="late").outcome()
    gate.let_all_pass()
    assert isinstance(outcome, UnknownOutcome)
    assert manager.execute(create("b"), author="ann").version == 4
    assert schemas(manager) == ["a", "b"]


def test_the_queue_is_bounded_and_who_finds_no_room_keeps_his_deadline(
    manager: CatalogManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strandline.catalog.group_commit.MAX_WAITING", 2)
    gate = Gate(manager)
    first = Call(manager, create("first"))
    assert gate.reached.acquire(timeout=PATIENCE)
    calls = [Call(manager, create(name)) for name in "ab"]
    wait_for(lambda: len(manager._commits._waiting) == 2)
    assert isinstance(Call(manager, create("late"), timeout=0.05).outcome(), DeadlineExceeded)
    waiting = Call(manager, create("c"))
    gate.let_all_pass()
    outcomes = {first.outcome(), waiting.outcome(), *(call.outcome() for call in calls)}
    assert outcomes == {3, 4, 5, 6}


def test_a_store_that_is_away_is_asked_again_until_it_answers(manager: CatalogManager) -> None:
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


@pytest.mark.parametrize(
    ("failure", "expected"), [(Unavailable, DeadlineExceeded), (UnknownOutcome, UnknownOutcome)]
)
def test_a_store_that_stays_away_ends_with_the_callers_deadline(
    manager: CatalogManager, failure: type[Unavailable], expected: type[StrandlineError]
) -> None:
    gate = Gate(manager)
    gate.let_all_pass()

    def away(*_: Any, **__: Any) -> Any:
        raise failure("the store is away")

    real, gate.real = gate.real, away
    began = time.monotonic()
    with pytest.raises(expected) as raised:
        manager.execute(create("a"), author="ann", timeout=0.3)
    assert type(raised.value) is expected
    assert time.monotonic() - began < 60
    gate.real = real
    assert manager.execute(create("b"), author="ann").version == 3


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
            raise UnknownOutcome("cut")  # it did not happen, but who knows
        done = real(*arguments, **named)
        if len(ids) == 2:
            raise UnknownOutcome("cut")  # it did
        return done

    gate.real = lose_two_answers
    assert manager.execute(create("a"), author="ann").version == 3
    assert len(ids) == 3
    assert len(set(ids)) == 1
    assert manager.present().version == 3


def test_an_append_whose_outcome_is_unknown_stays_so_when_the_node_stops(
    manager: CatalogManager,
) -> None:
    gate = Gate(manager)
    gate.let_all_pass()
    failures = [UnknownOutcome("cut"), Stopping("this node stops")]

    def stop(*_: Any, **__: Any) -> Any:
        raise failures.pop(0)

    gate.real = stop
    with pytest.raises(UnknownOutcome, match="cut"):
        manager.execute(create("a"), author="ann")
    assert failures == []


# -- lost appends ------------------------------------------------------------------------------


@pytest.mark.parametrize("silent", [True, False])
def test_an_append_lost_to_silent_versions_alone_is_not_judged_again(
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


def keep_books(manager: CatalogManager, number: int, verb: str) -> None:
    manager.sync()
    transaction = manager._state.transaction(manager.latest_catalog(), author="system")
    with transaction.entry(verb, {}):
        transaction.put(Setting(f"note {number}", "x"))
    manager._state.commit_transaction(transaction)


def test_an_append_lost_to_silent_versions_that_moved_the_same_object_is_judged_again(
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
            transaction = other._state.transaction(other.latest_catalog(), author="system")
            with transaction.entry("allocate", {}):
                transaction.allocate_id(amount=7)
            other._state.commit_transaction(transaction)
        return real(*arguments, **named)

    gate.real = lose
    assert manager.execute(create("a"), author="ann").version == 4
    schema = manager.present().schema("a")
    assert schema is not None
    before = manager.catalog(3).get("id_allocator", "object").next_id
    assert schema.id == before
    assert manager.statistics().rebased == 0


# -- stopping and fencing ------------------------------------------------------------------------


def test_who_waits_when_the_node_stops_is_told_and_nothing_of_it_happens(
    new_manager: Managers,
) -> None:
    manager, other = new_manager(), new_manager()
    gate = Gate(manager)
    first = Call(manager, create("first"))
    assert gate.reached.acquire(timeout=PATIENCE)
    waiting = [Call(manager, create(name)) for name in "abc"]
    wait_for(lambda: len(manager._commits._waiting) == 3)
    ready = manager.ready(99)
    stopping = threading.Thread(target=manager.stop)
    stopping.start()
    for call in waiting:
        assert isinstance(call.outcome(), Stopping)
    gate.let_all_pass()
    stopping.join(PATIENCE)
    assert not stopping.is_alive()
    assert first.outcome() == 3  # it was sent, and it happened
    with pytest.raises(Stopping):
        ready.result(timeout=PATIENCE)
    with pytest.raises(Stopping):
        manager.execute(create("z"), author="ann")
    assert schemas(other) == ["first"]


def test_a_send_that_never_ends_does_not_hold_up_the_stop_for_ever(
    manager: CatalogManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strandline.catalog.group_commit._STOP_PATIENCE", 0.05)
    gate = Gate(manager)
    call = Call(manager, create("a"))
    assert gate.reached.acquire(timeout=PATIENCE)
    manager.stop()
    assert isinstance(call.outcome(), UnknownOutcome)
    gate.let_all_pass()


def test_a_fenced_node_refuses_what_was_sent_and_carries_out_who_waits(
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


def test_a_fenced_node_that_fails_to_join_tries_again_with_the_next_caller(
    manager: CatalogManager, new_member: Callable[[], Member], monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(manager)
    first = Call(manager, create("a"))
    assert gate.reached.acquire(timeout=PATIENCE)
    new_member().open()  # version 3
    with monkeypatch.context() as patch:
        patch.setattr(manager, "sync", lambda: 1 // 0)
        gate.let_all_pass()
        assert isinstance(first.outcome(), Fenced)
        wait_for(lambda: not manager._commits._working)
    assert isinstance(Call(manager, create("b")).outcome(), Fenced)
    assert Call(manager, create("c")).outcome() == 4


def test_the_thread_of_a_manager_that_nobody_uses_ends_and_comes_back(
    manager: CatalogManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strandline.catalog.group_commit.IDLE_SECONDS", 0.01)
    assert manager.execute(create("a"), author="ann").version == 3
    wait_for(lambda: manager._commits._thread is None)
    assert manager.execute(create("b"), author="ann").version == 4


# -- listeners -----------------------------------------------------------------------------------


def test_the_call_does_not_return_and_no_next_version_comes_before_the_listener_has_returned(
    manager: CatalogManager,
) -> None:
    heard: list[int] = []
    may_go_on = threading.Event()

    def slow(applied: AppliedVersion) -> None:
        heard.append(applied.update.version)
        assert may_go_on.wait(PATIENCE)

    manager.subscribe(slow)
    try:
        first = Call(manager, create("a"))
        wait_for(lambda: heard == [3])
        ready = manager.ready(3)
        second = Call(manager, create("b"))
        first.join(0.2)  # long enough for a call that waits for nobody
        assert not ready.done()
        assert first.is_alive()
        assert heard == [3]
        assert manager.latest_catalog().version == 3  # others may see it before
    finally:
        may_go_on.set()  # else it is waited for beyond the end of a test that has failed
    assert [first.outcome(), second.outcome()] == [3, 4]
    assert ready.result(timeout=PATIENCE).version == 3
    assert heard == [3, 4]


def test_a_call_whose_listener_takes_too_long_is_told_the_version_that_it_has_in_the_log(
    manager: CatalogManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, may_go_on = threading.Event(), threading.Event()

    def slow(_: AppliedVersion) -> None:
        began.set()
        assert may_go_on.wait(PATIENCE)

    manager.subscribe(slow)
    leave_after(monkeypatch, lambda: began.wait(PATIENCE))
    try:
        with pytest.raises(UnknownOutcome, match=r"in the log as version 3.* Do not repeat it"):
            manager.execute(create("a"), author="late")
    finally:
        may_go_on.set()
    assert manager.catalog_ready(3).version == 3
    assert manager.execute(create("b"), author="ann").version == 4


def test_a_listener_that_asks_for_a_change_is_refused_and_not_deadlocked(
    new_manager: Managers, caplog: pytest.LogCaptureFixture
) -> None:
    manager, other = new_manager(), new_manager()

    def meddle(applied: AppliedVersion) -> None:
        manager.execute(create("more"), author="ann")

    manager.subscribe(meddle)
    assert manager.execute(create("a"), author="ann", timeout=PATIENCE).version == 3
    assert manager.statistics().listener_failures == 1
    other.execute(create("b"), author="bob")
    manager.sync()  # now it is this thread that tells the listener
    assert manager.statistics().listener_failures == 2
    assert "make the change from another thread" in caplog.text


def test_each_entry_fires_one_event_with_the_catalogs_before_and_after(
    manager: CatalogManager,
) -> None:
    heard: list[tuple[str, str, int, bool, bool]] = []

    def listen(applied: AppliedVersion) -> None:
        for event in applied.events():
            name = str(event.entry.arguments.get("schema"))
            before, after = event.before.schema(name), event.catalog.schema(name)
            heard.append((event.verb, name, event.version, before is None, after is None))

    manager.subscribe(listen)
    manager.execute([create("a"), create("b")], author="ann")
    keep_books(manager, 1, "configure")
    manager.execute(DropSchema(name="a"), author="ann")
    assert heard == [
        ("create_schema", "a", 3, True, False),
        ("create_schema", "b", 3, True, False),
        ("drop_schema", "a", 5, False, True),
    ]


# -- trimming meanwhile ----------------------------------------------------------------------------


def test_a_version_that_is_trimmed_before_its_caller_is_told_does_not_fail_it(
    new_manager: Managers,
) -> None:
    manager, other = new_manager(), new_manager()
    gate = Gate(manager)
    gate.after = True
    call = Call(manager, create("a"))
    assert gate.reached.acquire(timeout=PATIENCE)
    other.execute(create("b"), author="bob")
    assert other.compact(4)
    manager.sync()
    assert manager.earliest_catalog().version == 4
    gate.let_all_pass()
    assert call.outcome() == 3


def test_own_versions_are_those_that_others_read_from_the_log(new_manager: Managers) -> None:
    manager, other = new_manager(), new_manager()
    for n in range(10):
        manager.execute([create(f"s{n}"), table(f"t{n}")], author="ann")
    other.sync()
    for version in range(2, 13):
        mine, theirs = manager.catalog(version), other.catalog(version)
        assert (mine.time, mine.contents) == (theirs.time, theirs.contents)
        assert mine.contents.times() == theirs.contents.times()


@pytest.mark.parametrize("commands", [2_000, pytest.param(MAX_COMMANDS, marks=pytest.mark.soak)])
def test_entries_of_a_batch_of_many_commands_are_one_version(
    manager: CatalogManager, commands: int
) -> None:
    began = time.process_time()
    done = manager.execute([create(f"s{n}") for n in range(commands)], author="ann", timeout=300)
    assert done.version == 3
    assert time.process_time() - began < 60  # ten thousand take about two seconds
    assert len(manager.present().schema_names()) >= commands + 1
    entries: tuple[Entry, ...] = manager.updates(3, 4)[0].entries
    # One takes all ids.
    assert [len(entry.changes) for entry in entries] == [2] + [1] * (commands - 1)


# -- teeth: each planted fault is found by one of the tests above ----------------------------------


def tell_before_the_append(patch: pytest.MonkeyPatch) -> None:
    """The callers are told, and then their versions are appended."""
    real = GroupCommit._append

    def append(self: GroupCommit, group: Group) -> None:
        self._answer(group, [one.catalog for one in group.members if one.transaction is not None])
        with self._lock:
            for one in group.members:
                one.request.stage = Stage.WAITING
                one.request.gate = threading.Lock()
                one.request.gate.acquire()
        real(self, group)

    patch.setattr(GroupCommit, "_append", append)


def carry_out_who_has_left(patch: pytest.MonkeyPatch) -> None:
    """A caller whose time was over in the queue is carried out all the same."""

    def leave(self: GroupCommit, request: Request) -> bool:
        return request.stage is not Stage.DONE

    patch.setattr(GroupCommit, "_leave", leave)


def new_ids_for_each_try(patch: pytest.MonkeyPatch) -> None:
    """An append without an answer is sent again under another id."""
    real = CatalogTransaction.update

    def update(self: CatalogTransaction, *, member: str) -> Update:
        self._id = secrets.token_bytes(16)
        return real(self, member=member)

    patch.setattr(CatalogTransaction, "update", update)


def all_on_one_base(patch: pytest.MonkeyPatch) -> None:
    """Every caller of a round is judged by the catalog that the round began with."""

    def judge_all(self: GroupCommit, base: Catalog, requests: Sequence[Request]) -> Group:
        begin, now = self._follower.state.transaction, self._follower.now()
        return Group(
            base, [validate(base, begin(base, author=one.author), one, now) for one in requests]
        )

    patch.setattr(GroupCommit, "_validate", judge_all)


def rebase_without_a_look(patch: pytest.MonkeyPatch) -> None:
    """Whatever an append was lost to, it is sent again as it was judged."""
    patch.setattr(Update, "silent", True)


def forget_the_failed(patch: pytest.MonkeyPatch) -> None:
    """One caller's failure ends the round for all."""
    real = GroupCommit._validate

    def judge_all(self: GroupCommit, base: Catalog, requests: Sequence[Request]) -> Group:
        group = real(self, base, requests)
        for one in group.members:
            if one.error is not None:
                raise one.error
        return group

    patch.setattr(GroupCommit, "_validate", judge_all)


def exchange_the_authors(patch: pytest.MonkeyPatch) -> None:
    """The versions of one append are written down under each other's authors."""
    real = DurableCatalogState.commit_transactions

    def commit(
        self: DurableCatalogState, transactions: Sequence[CatalogTransaction]
    ) -> list[AppliedUpdate]:
        authors = [transaction.author for transaction in transactions]
        for transaction, author in zip(transactions, authors[::-1], strict=True):
            transaction.author = author
        return real(self, transactions)

    patch.setattr(DurableCatalogState, "commit_transactions", commit)


def tell_the_refused_at_once(patch: pytest.MonkeyPatch) -> None:
    """Who is refused is told before the append of the version that refuses it."""
    real = GroupCommit._append

    def append(self: GroupCommit, group: Group) -> None:
        for one in group.members:
            if one.error is not None:
                self._end([one.request], one.error)
        real(self, group)

    patch.setattr(GroupCommit, "_append", append)


def events_backwards(patch: pytest.MonkeyPatch) -> None:
    """The events of one version come in the opposite order."""
    real = AppliedVersion.events
    patch.setattr(AppliedVersion, "events", lambda self: real(self)[::-1])


def listeners_in_a_thread_of_their_own(patch: pytest.MonkeyPatch) -> None:
    """Nobody waits for the listeners."""
    real = Listeners.call

    def tell(self: Listeners, *versions: AppliedVersion) -> None:
        threading.Thread(target=real, args=(self, *versions), daemon=True).start()

    patch.setattr(Listeners, "call", tell)


def lost_to_what_somebody_did(new_manager: Managers) -> None:
    test_an_append_lost_to_silent_versions_alone_is_not_judged_again(new_manager, silent=False)


TEETH: dict[Callable[[pytest.MonkeyPatch], None], Callable[..., None]] = {
    tell_before_the_append: test_a_caller_whose_time_is_over_after_the_append_was_sent_learns_that_it_may_happen,  # noqa: E501 - a name that states a fact
    carry_out_who_has_left: test_a_caller_whose_time_is_over_in_the_queue_leaves_nothing_behind,
    new_ids_for_each_try: test_an_append_whose_outcome_is_unknown_is_sent_again_with_the_same_ids,
    all_on_one_base: test_a_caller_is_judged_by_what_those_before_it_leave_and_fails_alone,
    rebase_without_a_look: lost_to_what_somebody_did,
    forget_the_failed: test_a_caller_is_judged_by_what_those_before_it_leave_and_fails_alone,
    exchange_the_authors: test_each_of_the_callers_that_share_an_append_is_the_author_of_its_own_version,  # noqa: E501 - a name that states a fact
    tell_the_refused_at_once: test_a_caller_that_a_version_refuses_is_told_once_that_version_is_in_the_log,  # noqa: E501 - a name that states a fact
    events_backwards: test_each_entry_fires_one_event_with_the_catalogs_before_and_after,
    listeners_in_a_thread_of_their_own: test_the_call_does_not_return_and_no_next_version_comes_before_the_listener_has_returned,  # noqa: E501 - a name that states a fact
}


@pytest.mark.teeth
@pytest.mark.parametrize("fault", TEETH, ids=lambda fault: fault.__name__)
def test_the_tests_find(
    fault: Callable[[pytest.MonkeyPatch], None],
    new_manager: Managers,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    check: Any = TEETH[fault]
    parameters = inspect.signature(check).parameters
    takes_one = "manager" in parameters
    subject: Any = new_manager() if takes_one else new_manager
    others = {"monkeypatch": monkeypatch} if "monkeypatch" in parameters else {}
    with monkeypatch.context() as patch:
        patch.setattr(f"{__name__}.PATIENCE", 3.0)
        fault(patch)
        with pytest.raises((AssertionError, StrandlineError, pytest.fail.Exception)):
            check(subject, **others)
        if takes_one:
            patch.setattr("strandline.catalog.group_commit._STOP_PATIENCE", 0.1)
            subject.stop()
