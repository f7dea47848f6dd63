"""The catalog manager: versions, time, freshness, events, trimming."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from strandline import work
from strandline.catalog import Catalog, CatalogManager
from strandline.catalog.commands import DropSchema
from strandline.catalog.events import AppliedVersion
from strandline.catalog.group_commit import GroupCommit
from strandline.catalog.history import History
from strandline.catalog.initial import MAX_DELAY_MS, MAX_SKEW_MS
from strandline.catalog.requests import Request
from strandline.clock import Timestamp, add_milliseconds, milliseconds, round_up, timestamp
from strandline.durable import Frontier
from strandline.durable.collections import STORAGE_USAGE_EVENT
from strandline.durable.state import AppliedUpdate
from strandline.errors import (
    DeadlineExceeded,
    IllegalChange,
    InvalidInput,
    Stopping,
    Unavailable,
    UnknownOutcome,
    VersionNotFound,
)
from tests.catalog.callers import Managers, create
from tests.conftest import ManualWall, Member, await_no_activation


def shown(catalog: Catalog) -> list[str]:
    """The schemas, without the system schema."""
    return [schema.name for schema in catalog.schemas() if schema.name != "system"]


def names(manager: CatalogManager) -> list[str]:
    return shown(manager.present())


def test_a_command_that_changes_nothing_makes_no_version(manager: CatalogManager) -> None:
    manager.execute(create("a"), author="ann")
    executed = manager.execute(create("a", if_not_exists=True), author="ann")
    assert (executed.version, executed.applied) == (3, (False,))
    assert manager.execute([], author="ann").version == 3


def test_the_catalog_as_of_a_time_is_the_version_active_at_that_time(
    manager: CatalogManager, wall: ManualWall
) -> None:
    wall.now += 1000
    executed = manager.execute(create("a"), author="ann")
    assert shown(manager.active_catalog(executed.time)) == ["a", "default"]
    assert shown(manager.active_catalog(Timestamp(executed.time - 1))) == ["default"]
    assert manager.last_moment(2) == executed.time - 1
    assert manager.last_moment(3) is None
    wall.now += 1000
    assert manager.catalog_as_of(timestamp(wall.now)).version == 3


def test_a_time_far_in_the_future_is_refused(manager: CatalogManager, wall: ManualWall) -> None:
    with pytest.raises(DeadlineExceeded, match="ahead"):
        manager.wait_for_completeness(timestamp(wall.now + 3_600_000), timeout=0.01)


def test_a_change_on_one_node_is_visible_on_every_node_at_once(new_manager: Managers) -> None:
    nodes = [new_manager() for _ in range(3)]
    for n in range(30):
        nodes[n % 3].execute(create(f"s{n}"), author="ann")
        assert all(f"s{n}" in names(node) for node in nodes)
    assert len({node.present().version for node in nodes}) == 1
    assert all(nodes[0].catalog(v).contents == nodes[2].catalog(v).contents for v in range(2, 33))


def test_a_node_waits_for_versions_after_old_events_were_pruned(
    new_manager: Managers, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, other = new_manager(), new_manager()
    node.execute(create("a"), author="ann")
    other.prune(STORAGE_USAGE_EVENT, 2)
    node.sync()
    assert node.known_present() is node.latest_catalog()
    node.execute(create("b"), author="ann")
    assert node.known_present() is node.latest_catalog()
    log, waits = node.state.log, threading.Event()
    original = log.listen

    def listen(after: Frontier, *, timeout: float) -> bool:
        if after == log.frontier():  # else it returns at once
            waits.set()
        return original(after, timeout=timeout)

    monkeypatch.setattr(log, "listen", listen)
    node.start()
    assert waits.wait(60)


def test_known_present_is_none_after_another_node_appended(new_manager: Managers) -> None:
    first, second = new_manager(), new_manager()
    second.present()
    assert second.known_present() is second.latest_catalog()
    first.execute(create("a"), author="ann")
    assert second.known_present() is None
    assert "a" in names(second)
    assert second.known_present() is second.latest_catalog()


def test_racing_nodes_all_commit_their_versions(new_manager: Managers) -> None:
    nodes = [new_manager() for _ in range(2)]

    def work(number: int) -> None:
        for n in range(10):
            nodes[number % 2].execute(create(f"t{number}_{n}"), author=f"t{number}")

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(work, range(4)))
    assert len(names(nodes[0])) == 41
    assert nodes[0].present().version == nodes[1].present().version == 42


@pytest.mark.parametrize("delay_ms", [0, 700])
def test_every_version_keeps_its_time_after_a_restart(
    new_manager: Managers, wall: ManualWall, delay_ms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CatalogManager, "_await_activation", lambda *_: None)
    first = new_manager(delay_ms=delay_ms)
    for name in ("a", "b"):
        wall.now += 5000
        first.execute(create(name), author="ann")
    wall.now += 86_400_000
    again = new_manager()
    for version in range(5):
        assert again.catalog(version).time == first.catalog(version).time
        assert again.catalog(version).contents == first.catalog(version).contents


def test_times_increase_with_versions_whatever_the_wall_clock_does(
    new_manager: Managers, wall: ManualWall
) -> None:
    first, second = new_manager(), new_manager()
    for n, jump in enumerate((0, -50_000, 70_000, -1, 0, -400_000)):
        wall.now += jump
        (first, second)[n % 2].execute(create(f"s{n}"), author="ann")
    second.present()
    times = [second.catalog(v).time for v in range(2, 9)]
    assert times == sorted(set(times))
    # The first two were appended together; at their time the second is active.
    assert second.catalog(1).time == second.catalog(2).time
    assert second.active_catalog(times[0]).version == 2


# -- delay: the activation is later than the append --------------------------------------------


def test_with_a_delay_a_version_is_in_the_log_before_it_becomes_active(
    new_manager: Managers, wall: ManualWall
) -> None:
    manager = new_manager(delay_ms=200, skew_ms=100)
    await_no_activation(manager)
    wall.now += 1000
    began = wall.now
    with pytest.raises(UnknownOutcome, match="in the log as version 3 and becomes active at"):
        manager.execute(create("a"), author="ann")
    latest = manager.latest_catalog()
    assert milliseconds(latest.time) == began + 200
    assert manager.present().version == 2
    target = round_up(add_milliseconds(latest.time, 100))
    wall.now = milliseconds(target)
    assert manager.present().version == 3
    assert manager.execute(create("a", if_not_exists=True), author="ann").version == 3


def test_with_a_delay_the_present_is_known_from_memory_until_the_horizon(
    new_manager: Managers, wall: ManualWall
) -> None:
    manager = new_manager(delay_ms=200, skew_ms=50)
    wall.now += 1000
    assert manager.known_present() is None
    manager.present()
    assert manager.known_present() is not None
    wall.now += 100
    assert manager.known_present() is not None
    wall.now += 100
    assert manager.known_present() is None
    assert manager.present().version == 2


def test_an_empty_batch_does_not_wait_for_an_activation(
    new_manager: Managers, wall: ManualWall
) -> None:
    manager = new_manager(delay_ms=200, skew_ms=100)
    await_no_activation(manager)
    wall.now += 1000
    with pytest.raises(UnknownOutcome):
        manager.execute(create("a"), author="ann")
    nothing = manager.execute([], author="ann", timeout=0)
    assert (nothing.version, nothing.applied) == (2, ())


@pytest.mark.parametrize(
    ("delay_ms", "skew_ms", "named"),
    [
        (-1, 0, "delay_duration_ms is -1"),
        (1 << 50, 0, "delay_duration_ms is 1125899906842624"),
        (MAX_DELAY_MS + 1, 0, "delay_duration_ms"),
        (0, -1, "max_clock_skew_ms is -1"),
        (500, MAX_SKEW_MS + 1, "max_clock_skew_ms"),
    ],
)
def test_a_catalog_is_not_created_with_an_unusable_delay_or_skew(
    member: Member, delay_ms: int, skew_ms: int, named: str
) -> None:
    with pytest.raises(InvalidInput, match=named):
        member.open(delay_ms=delay_ms, skew_ms=skew_ms)
    assert not member.openable().is_initialized()
    member.open(delay_ms=500, skew_ms=500)


# -- events ------------------------------------------------------------------------------------


def test_listeners_of_every_node_receive_every_version_in_order_and_can_read_it(
    new_manager: Managers,
) -> None:
    first, second = new_manager(), new_manager()
    heard: dict[int, list[tuple[int, list[str]]]] = {0: [], 1: []}

    def listener(index: int, manager: CatalogManager) -> Callable[[AppliedVersion], None]:
        def listen(applied: AppliedVersion) -> None:
            version = applied.update.version
            verbs = [entry.verb for entry in applied.update.entries]
            assert manager.catalog(version) is applied.catalog
            assert applied.before.version == version - 1
            heard[index].append((version, verbs))

        return listen

    first.subscribe(listener(0, first))
    second.subscribe(listener(1, second))
    first.execute([create("a"), create("b")], author="ann")
    second.execute(DropSchema(name="a"), author="ann")
    first.present()
    expected = [(3, ["create_schema", "create_schema"]), (4, ["drop_schema"])]
    assert heard == {0: expected, 1: expected}


def test_a_failing_listener_is_counted_and_does_not_stop_other_listeners(
    manager: CatalogManager, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[int] = []

    def fail(_applied: AppliedVersion) -> None:
        raise RuntimeError("listener broke")

    manager.subscribe(fail)
    manager.subscribe(lambda applied: heard.append(applied.update.version))
    manager.execute(create("a"), author="ann")
    assert heard == [3]
    assert manager.statistics().listener_failures == 1
    assert "listener broke" in caplog.text
    assert "a" in names(manager)


# -- history and trimming ----------------------------------------------------------------------


def test_the_history_lists_the_author_actions_and_time_of_each_version(
    manager: CatalogManager,
) -> None:
    manager.execute([create("a"), create("b")], author="ann")
    manager.execute(DropSchema(name="a"), author="bob")
    infos = manager.history()
    assert [(i.version, i.author, [verb for verb, _ in i.actions]) for i in infos] == [
        (2, "system", ["initialize"]),
        (3, "ann", ["create_schema", "create_schema"]),
        (4, "bob", ["drop_schema"]),
    ]
    assert infos[2].time == manager.catalog(4).time
    assert [i.version for i in manager.history(3, 4)] == [3]


def test_trimmed_versions_are_refused_and_the_others_read_as_before(
    new_manager: Managers,
) -> None:
    manager, other = new_manager(), new_manager()
    for name in "abcd":
        manager.execute(create(name), author="ann")
    before = {v: (manager.catalog(v).time, shown(manager.catalog(v))) for v in range(7)}
    assert manager.compact(4)
    assert not manager.compact(4)
    for node in (manager, other, new_manager()):
        node.sync()
        assert node.earliest_catalog().version == 4
        for version in (0, 3):
            with pytest.raises(VersionNotFound, match="earliest is version 4"):
                node.catalog(version)
        with pytest.raises(VersionNotFound, match="earliest is version 4"):
            node.active_catalog(before[3][0])
        for version in (4, 5, 6):
            catalog = node.catalog(version)
            assert (catalog.time, shown(catalog)) == before[version]
    assert [i.trimmed for i in manager.history()] == [True, True, False, False, False]
    manager.execute(create("e"), author="ann")
    assert "e" in names(other)


@pytest.mark.parametrize("delay_ms", [0, 700])
def test_a_node_whose_clock_is_behind_adopts_the_time_of_the_log_when_it_starts(
    new_manager: Managers, wall: ManualWall, delay_ms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CatalogManager, "_await_activation", lambda *_: None)
    first = new_manager(delay_ms=delay_ms)
    wall.now += 5000
    first.execute(create("a"), author="ann")
    given = add_milliseconds(first.latest_catalog().time, -delay_ms)
    wall.now -= 4000
    again = new_manager()
    assert again.now() > given
    assert again.statistics().times_ahead == 1


@pytest.mark.parametrize("delay_ms", [0, 700])
def test_every_version_keeps_its_activation_time_after_a_trim_and_a_restart(
    new_manager: Managers, wall: ManualWall, delay_ms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CatalogManager, "_await_activation", lambda *_: None)
    first = new_manager(delay_ms=delay_ms)
    for name in "abcd":
        wall.now += 5000
        first.execute(create(name), author="ann")
    wall.now += delay_ms
    for trimmed in (4, 6):
        assert first.compact(trimmed)
        wall.now += 86_400_000
        again = new_manager()
        assert again.earliest_catalog().version == trimmed
        for version in range(trimmed, 7):
            mine, others = first.catalog(version), again.catalog(version)
            assert others.time == mine.time
            assert others.contents == mine.contents
            assert others.contents.times() == mine.contents.times()
    again.execute(create("e"), author="ann")
    first.sync()
    assert first.catalog(7).time == again.catalog(7).time > again.catalog(6).time


def test_listeners_get_a_reset_if_their_node_missed_versions_that_were_trimmed(
    new_manager: Managers, caplog: pytest.LogCaptureFixture
) -> None:
    asleep, writer = new_manager(), new_manager()
    heard: list[tuple[str, int]] = []
    asleep.subscribe(
        lambda applied: heard.append(("applied", applied.catalog.version)),
        on_reset=lambda catalog: heard.append(("reset", catalog.version)),
    )
    asleep.subscribe(lambda applied: heard.append(("plain", applied.catalog.version)))
    writer.execute(create("a"), author="ann")
    asleep.sync()
    for name in "bcd":
        writer.execute(create(name), author="ann")
    assert writer.compact(5)
    asleep.sync()
    assert asleep.latest_catalog().version == 6
    assert heard == [
        ("applied", 3),
        ("plain", 3),
        ("reset", 5),
        ("applied", 6),
        ("plain", 6),
    ]
    assert caplog.messages == []  # no warning


# -- running and stopping ----------------------------------------------------------------------


def test_the_applier_follows_other_nodes_by_itself(new_manager: Managers) -> None:
    follower, writer = new_manager(), new_manager()
    follower.start()
    version = writer.execute(create("a"), author="ann").version
    assert follower.catalog_ready(version, timeout=60).schema("a") is not None
    with pytest.raises(DeadlineExceeded):
        follower.catalog_ready(version + 1, timeout=0.01)


def test_a_stopped_manager_refuses_work_and_still_answers_from_memory(
    new_manager: Managers,
) -> None:
    manager = new_manager()
    manager.start()
    manager.stop()
    with pytest.raises(Stopping):
        manager.execute(create("a"), author="ann")
    with pytest.raises(Stopping):
        manager.catalog_ready(99)
    with pytest.raises(Stopping):  # so a thread that reaches its commit only now changes nothing
        manager.state.confirm_leadership()
    assert manager.latest_catalog().version == 2


def test_a_batch_of_more_than_ten_thousand_commands_is_refused(manager: CatalogManager) -> None:
    commands = [create("a", if_not_exists=True)] * 10_000
    assert manager.execute(commands, author="ann").applied == (True, *[False] * 9_999)
    with pytest.raises(InvalidInput, match="10001"):
        manager.execute([*commands, create("b")], author="ann")


def test_the_default_schema_cannot_be_dropped(manager: CatalogManager) -> None:
    with pytest.raises(IllegalChange, match="default"):
        manager.execute(DropSchema(name="DEFAULT"), author="ann")


# -- interruptions -----------------------------------------------------------------------------


def test_a_listener_may_read_the_present_while_the_node_catches_up(
    new_manager: Managers,
) -> None:
    writer, late = new_manager(), new_manager()
    heard: list[tuple[str, int]] = []
    presents: list[int] = []

    def curious(applied: AppliedVersion) -> None:
        heard.append(("curious", applied.update.version))
        presents.append(late.present().version)

    late.subscribe(curious)
    late.subscribe(lambda applied: heard.append(("other", applied.update.version)))
    for name in "abc":
        writer.execute(create(name), author="ann")
    assert names(late) == ["a", "b", "c", "default"]
    assert heard == [(who, version) for version in (3, 4, 5) for who in ("curious", "other")]
    assert presents == [5, 5, 5]
    assert late.known_present() is late.latest_catalog()


def test_an_interrupted_apply_continues_where_it_stopped(new_manager: Managers) -> None:
    writer, late = new_manager(), new_manager()
    heard: list[int] = []

    def interrupt_once(applied: AppliedVersion) -> None:
        heard.append(applied.update.version)
        if len(heard) == 1:
            raise KeyboardInterrupt

    late.subscribe(interrupt_once)
    for name in "abc":
        writer.execute(create(name), author="ann")
    with pytest.raises(KeyboardInterrupt):
        late.sync()
    assert names(late) == ["a", "b", "c", "default"]
    assert heard == [3, 4, 5]


def test_a_listener_gets_the_versions_that_an_interrupt_left_pending_at_the_next_sync(
    new_manager: Managers,
) -> None:
    writer, late = new_manager(), new_manager()
    heard: list[int] = []

    def interrupt_once(applied: AppliedVersion) -> None:
        heard.append(applied.update.version)
        if len(heard) == 1:
            assert late.present().version == 4  # this reads version 4, which waits
            raise KeyboardInterrupt

    late.subscribe(interrupt_once)
    for name in "ab":
        writer.execute(create(name), author="ann")
    with pytest.raises(KeyboardInterrupt):
        late.sync()
    assert heard == [3]
    late.sync()
    assert heard == [3, 4]


def test_a_change_in_the_log_that_cannot_be_applied_is_reported_as_unknown_outcome(
    new_manager: Managers, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager, other = new_manager(), new_manager()

    def fail(*_: object) -> None:
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(manager, "apply_own", fail)
        with pytest.raises(UnknownOutcome, match="in the log as version 3"):
            manager.execute(create("a"), author="ann")
    assert names(manager) == names(other) == ["a", "default"]


def test_a_change_in_the_log_is_applied_when_the_store_is_back(
    new_manager: Managers, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = new_manager()
    apply_own, failures = manager.apply_own, [Unavailable("the store is away")] * 2

    def apply_later(updates: Sequence[AppliedUpdate]) -> list[Catalog]:
        if failures:
            raise failures.pop()
        return apply_own(updates)

    monkeypatch.setattr(manager, "apply_own", apply_later)
    assert manager.execute(create("a"), author="ann").version == 3
    assert not failures


def test_no_caller_learns_that_nothing_was_changed_if_the_change_is_in_the_log(
    new_manager: Managers, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = new_manager()
    request = Request([create("a")], "ann", math.inf, identity=None)

    def fail(*_: object) -> None:
        raise Unavailable("the store is away; nothing was changed")

    with monkeypatch.context() as patch:
        patch.setattr(manager, "apply_own", fail)
        patch.setattr(GroupCommit, "_wait_with", lambda *_: False)  # the node stops
        manager._commits._commit([request])
    assert isinstance(request.error, UnknownOutcome)
    assert "in the log as version 3" in request.error.message
    assert names(manager) == ["a", "default"]


def test_the_last_moment_is_right_for_a_version_that_is_trimmed_meanwhile(
    new_manager: Managers, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = new_manager()
    for name in "abc":
        manager.execute(create(name), author="ann")
    expected = manager.last_moment(3)
    find = History.at_version

    def find_while_trimmed(self: History, version: int) -> Catalog:
        catalog = find(self, version)
        monkeypatch.undo()
        manager.compact(5)
        return catalog

    monkeypatch.setattr(History, "at_version", find_while_trimmed)
    assert manager.last_moment(3) == expected


def test_a_history_that_is_too_long_for_a_budget_is_not_begun(
    new_manager: Managers, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = new_manager()
    for name in "abc":
        manager.execute(create(name), author="ann")
    with work.budget(100):
        assert len(manager.history(3)) == 3
    monkeypatch.setattr(type(manager.state.log), "scan", None)
    with work.budget(2), pytest.raises(work.TooLong):
        manager.history(3)


def test_trimmed_catalogs_are_freed_slowly(
    new_manager: Managers, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = new_manager()
    for name in "abc":
        manager.execute(create(name), author="ann")
    freed: list[Catalog] = []
    monkeypatch.setattr(work, "free_slowly", freed.extend)
    manager.compact(4)
    assert {catalog.version for catalog in freed} >= {1, 2, 3}
    assert manager.earliest_catalog().version == 4


def test_the_applier_survives_an_unexpected_error(
    new_manager: Managers, monkeypatch: pytest.MonkeyPatch
) -> None:
    follower, writer = new_manager(), new_manager()
    log = follower.state.log
    listen = log.listen
    broken = threading.Event()

    def break_once(*arguments: Any, **named: Any) -> bool:  # Any: passed on as it came
        if not broken.is_set():
            broken.set()
            raise RuntimeError("nobody thought of this")
        return listen(*arguments, **named)

    monkeypatch.setattr(log, "listen", break_once)
    follower.start()
    assert broken.wait(60)
    version = writer.execute(create("a"), author="ann").version
    assert follower.catalog_ready(version, timeout=60).schema("a") is not None
    assert follower.statistics().applier_failures == 1


# -- unusual arguments -------------------------------------------------------------------------


@pytest.mark.parametrize("timeout", [math.inf, 1e30])
def test_infinite_and_huge_timeouts_are_accepted(manager: CatalogManager, timeout: float) -> None:
    assert manager.execute(create("a"), author="ann", timeout=timeout).version == 3
    assert manager.catalog_ready(3, timeout=timeout).version == 3


def test_a_negative_timeout_does_not_wait(manager: CatalogManager) -> None:
    with pytest.raises(DeadlineExceeded, match="will not take effect"):
        manager.execute(create("a"), author="ann", timeout=-1)
    assert manager.execute([], author="ann").version == 2
    with pytest.raises(DeadlineExceeded):
        manager.catalog_ready(99, timeout=-1)


def test_with_a_delay_a_starting_node_does_not_advance_its_clock_to_the_activation(
    new_manager: Managers, wall: ManualWall
) -> None:
    first = new_manager(delay_ms=5000)
    await_no_activation(first)
    with pytest.raises(UnknownOutcome):
        first.execute(create("a"), author="ann")
    assert milliseconds(first.latest_catalog().time) == wall.now + 5000
    again = new_manager()
    assert again.latest_catalog().version == 3
    assert again.present().version < 3
