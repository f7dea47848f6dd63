"""Group commit: which commands are executed, which are not, and what each caller gets."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest

from strandline.catalog import Catalog, CatalogManager, group_commit
from strandline.catalog.commands import DropSchema
from strandline.catalog.group_commit import GroupCommit
from strandline.catalog.manager import MAX_COMMANDS
from strandline.catalog.planning import Planning
from strandline.catalog.requests import Stage
from strandline.durable import CatalogTransaction
from strandline.durable.update import Entry, Update
from strandline.errors import (
    AlreadyExists,
    Fenced,
    InvalidInput,
    ObjectNotFound,
    Unavailable,
    UnknownOutcome,
)
from strandline.outage import Outage
from strandline.sql import value
from tests.catalog import callers
from tests.catalog.callers import (
    Call,
    Gate,
    Managers,
    create,
    queued,
    schemas,
    table,
    together,
    wait_for,
)
from tests.cut_off_wakes import cut_off_a_wake


class NotedEffects:
    """Effects that record their calls."""

    def __init__(self) -> None:
        self.written: list[list[int]] = []
        self.committed: list[list[int]] = []
        self.projected: list[int] = []
        self.write_errors: list[Exception] = []
        self.project_error: Exception | None = None

    def companion(
        self, transactions: Sequence[CatalogTransaction], catalogs: Sequence[Catalog]
    ) -> NotedCompanion:
        return NotedCompanion(self, [catalog.version for catalog in catalogs])

    def project_up_to(self, version: int) -> None:
        if self.project_error is not None:
            raise self.project_error
        self.projected.append(version)


class NotedCompanion:
    first_queries = ()

    def __init__(self, noted: NotedEffects, versions: list[int]) -> None:
        self.noted, self.versions = noted, versions

    def write(self, connection: Any, updates: Sequence[Update]) -> None:  # Any: as the log's
        if self.noted.write_errors:
            raise self.noted.write_errors.pop()
        assert value(connection, "SELECT 1") == 1
        assert all(update.time for update in updates)
        self.noted.written.append([update.version for update in updates])

    def committed(self) -> None:
        self.noted.committed.append(self.versions)


def test_sixteen_callers_that_create_thirty_tables_each_all_succeed(new_manager: Managers) -> None:
    manager = new_manager()
    manager.start()

    def work(caller: int) -> list[int]:
        commands = [table(f"t_{caller}_{n}") for n in range(30)]
        return [manager.execute(command, author="ann").version for command in commands]

    with ThreadPoolExecutor(16) as threads:
        versions = [version for made in threads.map(work, range(16)) for version in made]
    assert sorted(versions) == list(range(3, 3 + 480))
    assert len(manager.present().relation_names("default")) == 480
    statistics = manager.statistics()
    assert statistics.executed == 480
    assert statistics.appends < 480


def test_concurrent_callers_share_one_append_and_one_time(manager: CatalogManager) -> None:
    gate = Gate(manager)
    calls = together(manager, gate, [create(name) for name in "abcd"])
    assert [call.outcome() for call in calls] == [4, 5, 6, 7]
    assert gate.sent == [1, 4]
    assert len({manager.catalog(version).time for version in (4, 5, 6, 7)}) == 1
    shared_time = manager.catalog(4).time
    assert manager.active_catalog(shared_time).version == 7
    assert {manager.last_moment(version) for version in (4, 5, 6)} == {shared_time}
    assert manager.last_moment(7) is None
    for version, name in zip((4, 5, 6, 7), "abcd", strict=True):
        assert manager.catalog(version).schema(name) is not None
        assert manager.catalog(version - 1).schema(name) is None


def test_a_round_waits_for_as_many_callers_as_the_previous_round_had(
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
    assert waits.acquire(timeout=callers.PATIENCE)
    assert gate.sent == [1, 2]
    late = Call(manager, create("d"))
    assert sorted([early.outcome(), late.outcome()], key=str) == [6, 7]
    assert gate.sent == [1, 2, 2]


def test_a_round_waits_only_once_for_callers_that_do_not_come_again(
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
    # The thread may look only after the next caller has come.
    assert expected in ([1, 5, 4, 1], [1, 5, 5, 1])


def test_the_effects_of_a_group_are_carried_out_once_before_its_callers_are_answered(
    manager: CatalogManager,
) -> None:
    effects = NotedEffects()
    manager.set_effects(effects)
    calls = together(manager, Gate(manager), [create(name) for name in "abcd"])
    assert [call.outcome() for call in calls] == [4, 5, 6, 7]
    assert effects.written == effects.committed == [[3], [4, 5, 6, 7]]
    assert effects.projected == [3, 7]


@pytest.mark.parametrize("wait", [{"delay_ms": 5}, {"skew_ms": 5}])
def test_effects_are_not_carried_out_before_their_version_is_active_everywhere(
    new_manager: Callable[..., CatalogManager], wait: dict[str, int]
) -> None:
    manager, effects = new_manager(**wait), NotedEffects()
    manager.set_effects(effects)
    assert manager._commits.effects is not effects


def test_an_append_is_rolled_back_if_its_companion_fails_to_write(
    manager: CatalogManager,
) -> None:
    effects = NotedEffects()
    manager.set_effects(effects)
    effects.write_errors.append(ZeroDivisionError("a mistake"))
    with pytest.raises(ZeroDivisionError):
        manager.execute(create("a"), author="ann")
    assert manager.execute(create("a"), author="ann").version == 3
    assert effects.written == effects.committed == [[3]]


def test_an_append_is_retried_if_its_companion_is_unavailable(manager: CatalogManager) -> None:
    effects = NotedEffects()
    manager.set_effects(effects)
    effects.write_errors.append(Unavailable("no space"))
    assert manager.execute(create("a"), author="ann").version == 3
    assert effects.written == effects.committed == [[3]]


def test_a_companion_is_told_of_an_append_that_got_no_answer_but_happened(
    manager: CatalogManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    effects = NotedEffects()
    manager.set_effects(effects)
    store: Any = manager.state.log._store  # type: ignore[attr-defined]  # that of a metastorage log

    def cut(*operation: Any) -> Any:  # Any: as the store's
        answered(*operation)
        raise UnknownOutcome("the connection was cut")

    answered = store.invoke
    with monkeypatch.context() as patch:
        patch.setattr(store, "invoke", cut)
        assert manager.execute(create("a"), author="ann").version == 3
    assert effects.written == effects.committed == [[3]]


@pytest.mark.parametrize("error", [Unavailable("no space"), ZeroDivisionError("a mistake")])
def test_a_failed_projection_does_not_fail_the_commit(
    manager: CatalogManager, error: Exception
) -> None:
    effects = NotedEffects()
    effects.project_error = error
    manager.set_effects(effects)
    assert manager.execute(create("a"), author="ann").version == 3


def test_each_caller_that_shares_an_append_is_the_author_of_its_own_version(
    manager: CatalogManager,
) -> None:
    commands = [create("a"), DropSchema(name="first"), create("b"), create("c")]
    calls = together(manager, Gate(manager), commands)
    assert [call.outcome() for call in calls] == [4, 5, 6, 7]
    made = [
        (record.version, record.author, record.actions[0][1]["schema"])
        for record in manager.history(4)
    ]
    assert made == [(4, "u1", "a"), (5, "u2", "first"), (6, "u3", "b"), (7, "u4", "c")]
    assert [update.author for update in manager.updates(4, 8)] == ["u1", "u2", "u3", "u4"]


def test_a_refused_caller_is_answered_once_the_version_that_refuses_it_is_in_the_log(
    new_manager: Managers,
) -> None:
    manager, other = new_manager(), new_manager()
    gate = Gate(manager)
    first, (maker, refused) = queued(manager, gate, [create("a"), create("a")])
    gate.open.release()
    assert first.outcome() == 3
    assert gate.reached.acquire(timeout=callers.PATIENCE)  # both are validated, nothing is appended
    working = manager._commits._working
    assert len(working) == 2
    assert all(request.stage is not Stage.DONE for request in working)
    other.execute([create("a"), DropSchema(name="a")], author="bob")  # now the append is lost
    other.execute(create("b"), author="bob")
    gate.let_all_pass()
    assert maker.outcome() == 6
    error = refused.outcome()
    assert isinstance(error, AlreadyExists)


def test_a_caller_is_validated_after_the_callers_before_it_and_fails_alone(
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
    outcomes = [call.outcome() for call in calls]
    assert isinstance(outcomes[1], AlreadyExists)
    assert isinstance(outcomes[2], ZeroDivisionError)
    assert isinstance(outcomes[5], ObjectNotFound)
    assert [outcomes[0], outcomes[3], outcomes[4], outcomes[6]] == [4, 4, 5, 6]
    assert gate.sent == [1, 3]


def test_a_command_that_raises_system_exit_fails_only_its_caller(
    manager: CatalogManager,
) -> None:
    @dataclass(frozen=True)
    class Exit:
        def plan(self, planning: Planning) -> None:
            raise SystemExit(3)

    with pytest.raises(SystemExit):
        manager.execute(Exit(), author="ann")
    assert manager.execute(create("a"), author="ann").version == 3


def test_a_round_larger_than_the_byte_limit_is_split(
    manager: CatalogManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strandline.catalog.group_commit.GROUP_BYTES", 1)
    gate = Gate(manager)
    calls = together(manager, gate, [create(name) for name in "abc"])
    assert [call.outcome() for call in calls] == [4, 5, 6]
    assert gate.sent == [1, 1, 1, 1]


def of_two_users(manager: CatalogManager, gate: Gate) -> list[Call]:
    """Calls that queue after one another: three by one user, then one by another."""
    first, _ = queued(manager, gate, [])
    calls = []
    for name, author in (("a", "many"), ("b", "many"), ("c", "many"), ("d", "few")):
        calls.append(Call(manager, create(name), author=author))
        wait_for(lambda: len(manager._commits._waiting) == len(calls))
    gate.let_all_pass()
    assert first.outcome() == 3
    return calls


def test_the_users_of_a_round_take_turns(manager: CatalogManager) -> None:
    gate = Gate(manager)
    calls = of_two_users(manager, gate)
    assert [call.outcome() for call in calls] == [4, 6, 7, 5]
    assert gate.sent == [1, 4]


def test_a_round_ends_when_its_validation_takes_long_and_then_another_user_has_its_turn(
    manager: CatalogManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strandline.catalog.group_commit.VALIDATION_SECONDS", -1.0)
    gate = Gate(manager)
    calls = of_two_users(manager, gate)
    assert [call.outcome() for call in calls] == [4, 6, 7, 5]
    assert gate.sent == [1, 1, 1, 1, 1]


def test_a_round_waits_for_as_many_callers_as_the_last_one_served(
    manager: CatalogManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strandline.catalog.group_commit.VALIDATION_SECONDS", -1.0)
    wait, expected = GroupCommit._await_callers, list[int]()

    def note(self: GroupCommit, number: int, seconds: float) -> bool:
        expected.append(number - len(self._waiting))
        return wait(self, number, seconds)

    monkeypatch.setattr(GroupCommit, "_await_callers", note)
    for call in of_two_users(manager, Gate(manager)):
        call.outcome()
    assert max(expected) == 1


def test_the_committing_thread_does_not_wait_for_a_server_because_it_tries_again(
    manager: CatalogManager,
) -> None:
    server, waits = Outage("db"), list[bool]()
    server.end()

    class Reading:
        def plan(self, planning: Planning) -> None:
            waits.append(server.pause("refused", timeout=30.0, end=math.inf))

    manager.execute(Reading(), author="ann")
    assert waits
    assert not any(waits)


def test_a_user_that_comes_again_waits_for_one_round_of_another_with_many_requests(
    manager: CatalogManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strandline.catalog.group_commit.VALIDATION_SECONDS", -1.0)
    gate = Gate(manager)
    first, _ = queued(manager, gate, [])
    many = []
    for name in "abcd":
        many.append(Call(manager, create(name), author="many"))
        wait_for(lambda: len(manager._commits._waiting) == len(many))
    gate.open.release()  # for the first
    assert first.outcome() == 3
    for version in (5, 7):
        assert gate.reached.acquire(timeout=callers.PATIENCE)  # one of the many requests
        few = Call(manager, create(f"few{version}"), author="few")
        wait_for(lambda few=few: any(r.author == "few" for r in manager._commits._waiting))  # type: ignore[misc]  # mypy: no default in a lambda
        gate.open.release()
        assert gate.reached.acquire(timeout=callers.PATIENCE)
        gate.open.release()
        assert few.outcome() == version
    gate.let_all_pass()
    assert [call.outcome() for call in many] == [4, 6, 8, 9]


def test_a_caller_keeps_its_answer_if_the_rest_of_its_round_fails(
    manager: CatalogManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strandline.catalog.group_commit.GROUP_BYTES", 1)
    gate = Gate(manager)
    real = gate.real

    def refuse(upper: int, token: Any, updates: Sequence[Update], **named: Any) -> Any:
        if upper == 5:
            raise Fenced("another node has the catalog")
        return real(upper, token, updates, **named)

    gate.real = refuse
    first, calls = queued(manager, gate, [create("a"), create("b")])
    requests = list(manager._commits._waiting)
    gate.let_all_pass()
    assert [first.outcome(), calls[0].outcome()] == [3, 4]
    assert isinstance(calls[1].outcome(), Fenced)
    assert requests[0].error is None  # the caller may read it late


def test_a_round_has_no_more_updates_than_one_append_may_have(
    manager: CatalogManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manager.state.log, "max_updates", 2)
    gate = Gate(manager)
    calls = together(manager, gate, [create(name) for name in "abcde"])
    assert [call.outcome() for call in calls] == [4, 5, 6, 7, 8]
    assert gate.sent == [1, 2, 2, 1]


def test_an_update_too_large_for_the_store_fails_only_its_caller(manager: CatalogManager) -> None:
    gate = Gate(manager)
    real = gate.real

    def refuse(upper: int, token: Any, updates: Sequence[Update], **named: Any) -> Any:
        if any(entry.arguments.get("schema") == "large" for u in updates for entry in u.entries):
            raise InvalidInput("the value has too many bytes")
        return real(upper, token, updates, **named)

    gate.real = refuse
    calls = together(manager, gate, [create("a"), create("large"), create("b")])
    outcomes = [call.outcome() for call in calls]
    assert isinstance(outcomes[1], InvalidInput)
    assert sorted(schemas(manager)) == ["a", "b", "first"]
    assert [outcomes[0], outcomes[2]] == [4, 5]


def test_a_call_succeeds_even_if_its_version_is_trimmed_before_it_returns(
    new_manager: Managers,
) -> None:
    manager, other = new_manager(), new_manager()
    gate = Gate(manager)
    gate.after = True
    call = Call(manager, create("a"))
    assert gate.reached.acquire(timeout=callers.PATIENCE)
    other.execute(create("b"), author="bob")
    assert other.compact(4)
    manager.sync()
    assert manager.earliest_catalog().version == 4
    gate.let_all_pass()
    assert call.outcome() == 3


def test_a_node_holds_its_own_versions_exactly_as_other_nodes_read_them(
    new_manager: Managers,
) -> None:
    manager, other = new_manager(), new_manager()
    for n in range(10):
        manager.execute([create(f"s{n}"), table(f"t{n}")], author="ann")
    other.sync()
    for version in range(2, 13):
        mine, theirs = manager.catalog(version), other.catalog(version)
        assert (mine.time, mine.contents) == (theirs.time, theirs.contents)
        assert mine.contents.times() == theirs.contents.times()


@pytest.mark.slow
@pytest.mark.parametrize("commands", [2_000, pytest.param(MAX_COMMANDS, marks=pytest.mark.soak)])
def test_the_entries_of_a_large_batch_are_one_version(
    manager: CatalogManager, commands: int
) -> None:
    began = time.process_time()
    executed = manager.execute(
        [create(f"s{n}") for n in range(commands)], author="ann", timeout=300
    )
    assert executed.version == 3
    assert time.process_time() - began < 60  # ten thousand take about two seconds
    assert len(manager.present().schemas()) >= commands + 1
    entries: tuple[Entry, ...] = manager.updates(3, 4)[0].entries
    # The first entry allocates all ids.
    assert [len(entry.changes) for entry in entries] == [2] + [1] * (commands - 1)


def test_a_caller_that_is_interrupted_as_it_wakes_the_committer_delays_no_later_caller(
    new_manager: Managers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_commit, "IDLE_SECONDS", 60.0)
    manager = new_manager()
    manager.execute(create("a"), author="ann")
    interrupted = create("b", if_not_exists=True)
    cut_off_a_wake(manager._commits._news, lambda: manager.execute(interrupted, author="ann"))
    manager.execute(create("c"), author="ann", timeout=10.0)
