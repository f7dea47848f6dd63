"""Freshness if versions become active later than they are appended.

Every reader must see all changes that were complete before its read, even if the reader answers
from memory, was suspended in between, or has a wall clock that is set.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from strandline.catalog import Catalog, CatalogManager
from strandline.catalog.commands import CreateSchema
from strandline.clock import HybridClock, Timestamp, add_milliseconds, milliseconds, round_up
from strandline.errors import (
    AlreadyExists,
    DeadlineExceeded,
    NotFresh,
    Unavailable,
    UnknownOutcome,
    VersionNotFound,
)
from strandline.metastorage import Head
from strandline.outage import failing_at_once, waiting_until
from strandline.sql import StoreFull
from tests.catalog.callers import wait_for
from tests.catalog.lagging_nodes import DELAY, SKEW, Node, Nodes, TogetherLock, carried_out


def a_read_right_after_the_call_has_it(new_node: Nodes) -> None:
    writer, reader = new_node(), new_node()
    for n in range(6):
        reader.manager.present()
        carried_out(writer, f"s{n}", reader)
        assert reader.has(f"s{n}"), "an old catalog after the call returned"
        known = reader.manager.known_present()
        assert known is not None, "memory does not answer right after a look"
        assert known.schema(f"s{n}") is not None, "an old catalog from memory"


def a_reader_whose_clock_lags_by_the_skew_has_it(new_node: Nodes) -> None:
    writer, reader = new_node(), new_node()
    writer.passes(1000)
    reader.passes(1000 - SKEW)
    for n in range(6):
        reader.manager.present()
        carried_out(writer, f"s{n}", reader)
        assert reader.has(f"s{n}"), "an old catalog for a clock within the skew"


def a_reader_that_was_stopped_never_answers_with_an_old_catalog(new_node: Nodes) -> None:
    writer, reader = new_node(), new_node()
    for n in range(5):
        reader.manager.present()  # it may answer from memory now
        carried_out(writer, f"s{n}")
        reader.passes(3 * DELAY)  # SIGCONT: all clocks continued meanwhile
        known = reader.manager.known_present()
        assert known is None or known.schema(f"s{n}") is not None, "an old catalog after a stop"
        assert reader.has(f"s{n}"), "an old catalog after a stop"


def a_wall_clock_that_is_set_back_does_not_keep_an_old_catalog_alive(new_node: Nodes) -> None:
    writer, reader = new_node(), new_node()
    for n in range(5):
        reader.manager.present()
        carried_out(writer, f"s{n}")
        reader.elapsed.now += 3 * DELAY
        reader.wall.now -= 3_600_000
        assert reader.manager.known_present() is None, "memory outlives its time"


def a_version_that_is_appended_while_a_node_looks_is_not_missed(new_node: Nodes) -> None:
    writer, reader = new_node(), new_node()
    log = reader.manager.state.log
    real = log.look
    for n in range(5):

        def look(n: int = n) -> object:
            carried_out(writer, f"s{n}", reader)
            return real()

        log.look = look  # type: ignore[method-assign,assignment]  # what this test is for
        reader.passes(3 * DELAY)
        try:
            present = reader.manager.present()
        finally:
            log.look = real  # type: ignore[method-assign]  # put back
        assert present.schema(f"s{n}") is not None, "the look missed a version before it"


def what_was_learned_lasts_from_before_the_look(new_node: Nodes) -> None:
    writer, reader = new_node(), new_node()
    log = reader.manager.state.log
    real = log.look

    def slow_look() -> object:
        looked = real()
        reader.elapsed.now += DELAY  # the answer is on its way, or this process is stopped
        return looked

    log.look = slow_look  # type: ignore[method-assign,assignment]  # what this test is for
    reader.manager.present()
    carried_out(writer, "late")
    assert reader.manager.known_present() is None, "memory lasts from after the look"


def test_a_new_catalog_is_active_when_its_node_has_started(
    new_node: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = new_node()
    waited: list[Timestamp] = []

    def wait_until(target: Timestamp, *, timeout: float) -> None:
        waited.append(target)
        node.passes(milliseconds(target) - node.wall.now)

    monkeypatch.setattr(node.clock, "wait_until", wait_until)
    made = node.manager.catalog(1)
    assert not node.has("default"), "it is not active yet"
    node.manager.start()
    assert waited == [round_up(add_milliseconds(made.time, SKEW))]
    assert node.has("default")


@pytest.fixture
def started(new_node: Nodes, monkeypatch: pytest.MonkeyPatch) -> Node:
    """A node that follows its log, on a clock that stands still."""
    node = new_node()
    monkeypatch.setattr(node.clock, "wait_until", lambda *_, **__: node.passes(2 * DELAY))
    node.manager.start()
    node.manager.present()
    return node


def wait_for_look(node: Node, *, after: object) -> None:
    wait_for(lambda: node.manager._horizon is not after)


def test_a_look_that_is_half_used_is_renewed_before_it_expires(started: Node) -> None:
    half = (DELAY - SKEW) // 2
    first = started.manager._horizon
    started.passes(half - 1)
    assert started.manager.known_present() is not None
    assert started.manager._horizon is first, "a fresh look is renewed"
    for _ in range(3):
        before = started.manager._horizon
        started.passes(half)
        assert started.manager.known_present() is not None, "it expired before it was renewed"
        wait_for_look(started, after=before)


def test_a_node_that_nobody_asks_does_not_look(started: Node) -> None:
    looks = started.manager._looks
    started.passes(10 * DELAY)
    started.manager.stop()
    assert started.manager._looks == looks


def test_a_past_that_a_look_has_shown_is_read_without_another(
    started: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look is a write, and in a folder each write makes all kept answers useless."""
    shown = started.manager.look()
    monkeypatch.setattr(started.manager.state.log, "look", lambda: pytest.fail("it looked"))
    assert started.manager.catalog_as_of(shown) is started.manager.latest_catalog()
    with pytest.raises(pytest.fail.Exception):
        started.manager.catalog_as_of(Timestamp(shown + 1))


def test_if_a_look_ahead_fails_the_next_reader_gets_the_error(
    started: Node, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def away() -> object:
        raise Unavailable("the store is away")

    monkeypatch.setattr(started.manager.state.log, "look", away)
    started.passes((DELAY - SKEW) // 2)
    for _ in range(3):
        assert started.manager.known_present() is not None, "the last look is still valid"
    failed = "catalog-looker: the store is away"
    wait_for(lambda: failed in caplog.text)
    started.passes(DELAY)
    with pytest.raises(Unavailable, match="the store is away"):
        started.manager.present()
    assert caplog.text.count("catalog-looker") == 1, "one look fails once"


CHECKS = [
    what_was_learned_lasts_from_before_the_look,
    a_read_right_after_the_call_has_it,
    a_reader_whose_clock_lags_by_the_skew_has_it,
    a_reader_that_was_stopped_never_answers_with_an_old_catalog,
    a_wall_clock_that_is_set_back_does_not_keep_an_old_catalog_alive,
    a_version_that_is_appended_while_a_node_looks_is_not_missed,
]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test(check: Callable[[Nodes], None], new_node: Nodes) -> None:
    check(new_node)


# -- teeth -------------------------------------------------------------------------------------


def memory_for_ever(patch: pytest.MonkeyPatch) -> None:
    """A node that has looked at the log once answers from memory for good."""
    patch.setattr(CatalogManager, "known_present", CatalogManager.latest_catalog)


def wall_clock_only(patch: pytest.MonkeyPatch) -> None:
    """What a look proved expires by the wall clock alone."""
    real = CatalogManager._look

    def look(self: CatalogManager) -> Timestamp:
        known = real(self)
        self._horizon = replace(self._horizon, until=1 << 60)
        return known

    patch.setattr(CatalogManager, "_look", look)


def count_from_after_the_look(patch: pytest.MonkeyPatch) -> None:
    """What a look proved lasts as if the look had taken no time."""
    real = CatalogManager._look

    def look(self: CatalogManager) -> Timestamp:
        known = real(self)
        until = self._elapsed() + self.delay - self.skew
        self._horizon = replace(self._horizon, until=until)
        return known

    patch.setattr(CatalogManager, "_look", look)


def apply_before_the_look(patch: pytest.MonkeyPatch) -> None:
    """The log is applied before its time is read."""
    real = CatalogManager._look

    def look(self: CatalogManager) -> Timestamp:
        self.sync()
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(CatalogManager, "sync", lambda *_, **__: None)
            return real(self)

    patch.setattr(CatalogManager, "_look", look)


def return_before_the_activation(patch: pytest.MonkeyPatch) -> None:
    """The call returns as soon as its version is in the log."""
    patch.setattr(CatalogManager, "_await_activation", lambda *_: None)


def horizon_of_the_future(patch: pytest.MonkeyPatch) -> None:
    """The horizon is four delays too far ahead."""
    real = CatalogManager._look

    def look(self: CatalogManager) -> Timestamp:
        known = real(self)
        horizon = self._horizon
        self._horizon = replace(
            horizon,
            present=add_milliseconds(horizon.present, 4 * DELAY),
            until=horizon.until + 4 * DELAY,
        )
        return known

    patch.setattr(CatalogManager, "_look", look)


def the_catalog_before_the_active_one(patch: pytest.MonkeyPatch) -> None:
    """The known present is the version before the active one."""
    real = CatalogManager.known_present

    def known_present(self: CatalogManager) -> Catalog | None:
        catalog = real(self)
        return catalog and self._history.find(max(catalog.version - 1, 2))

    patch.setattr(CatalogManager, "known_present", known_present)


Fault = Callable[[pytest.MonkeyPatch], None]

FAULTS: list[Fault] = [
    memory_for_ever,
    wall_clock_only,
    count_from_after_the_look,
    apply_before_the_look,
    return_before_the_activation,
    horizon_of_the_future,
    the_catalog_before_the_active_one,
]


@pytest.mark.teeth
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_the_checks_find_each_planted_fault(
    fault: Fault, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault(monkeypatch)
    errors = []
    for number, check in enumerate(CHECKS):
        nodes: list[Node] = []
        folder = tmp_path / str(number)
        folder.mkdir()

        def make(folder: Path = folder, nodes: list[Node] = nodes) -> Node:
            nodes.append(Node(folder))
            return nodes[-1]

        try:
            check(make)
        except AssertionError as error:
            errors.append(str(error))
        finally:
            for node in nodes:
                node.close()
    assert errors


# -- trimming ----------------------------------------------------------------------------------


def test_history_is_trimmed_only_when_no_node_can_still_need_it(
    new_node: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead, behind = new_node(), new_node()
    ahead.passes(1000)
    behind.passes(1000 - SKEW)
    carried_out(ahead, "a", behind)
    behind.manager.present()
    with monkeypatch.context() as patch:
        return_before_the_activation(patch)
        ahead.manager.execute(CreateSchema(name="b"), author="ann")
    latest = ahead.manager.latest_catalog()
    everywhere = milliseconds(round_up(add_milliseconds(latest.time, SKEW)))
    passed = everywhere - 1 - ahead.wall.now
    for node in (ahead, behind):
        node.passes(passed)
    with pytest.raises(VersionNotFound, match="on every node by"):
        ahead.manager.compact(latest.version)
    for node in (ahead, behind):
        node.passes(1)
    assert ahead.manager.compact(latest.version)
    behind.manager.sync()
    assert behind.has("b")


# -- limits ------------------------------------------------------------------------------------


def test_a_clock_far_ahead_of_the_store_raises_not_fresh(
    new_node: Nodes,
) -> None:
    node = new_node()
    node.manager.present()

    def ahead() -> int:
        return node.wall.now + 3_600_000

    node.clock._wall = ahead
    node.store._clock = HybridClock(node.wall)  # the store keeps its own time
    with pytest.raises(NotFresh, match="set the clock"):
        node.manager.present()


def test_a_look_that_takes_longer_than_the_delay_still_returns_the_present(
    new_node: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, reader = new_node(), new_node()
    carried_out(writer, "before", reader)
    real = reader.store.look

    def slow_look() -> Head:
        head = real()
        reader.passes(10 * DELAY)
        return head

    monkeypatch.setattr(reader.store, "look", slow_look)
    assert reader.has("before")


def test_a_look_is_not_valid_at_the_moment_at_which_it_expires(new_node: Nodes) -> None:
    """Elapsed time counts whole milliseconds: more of it may have passed."""
    node = new_node()
    node.manager.look()
    node.elapsed.now += DELAY - SKEW - 1
    assert node.manager.known_present() is not None
    node.elapsed.now += 1
    assert node.manager.known_present() is None


def test_a_node_that_cannot_look_because_its_store_is_full_reads_the_end_of_the_log(
    new_node: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, writer = new_node(), new_node()
    carried_out(writer, "a", reader)

    def look() -> Head:
        raise StoreFull("the store is full")

    monkeypatch.setattr(reader.manager.state.log, "look", look)
    assert reader.has("a")


def test_a_clock_behind_the_log_by_more_than_the_skew_is_logged_once_and_counted(
    new_node: Nodes, caplog: pytest.LogCaptureFixture
) -> None:
    ahead, behind = new_node(), new_node()
    ahead.passes(1_000_000)
    for name, late, count in (("a", SKEW, 0), ("b", SKEW + 1, 1), ("c", SKEW + 9, 2)):
        carried_out(ahead, name)
        at = add_milliseconds(ahead.manager.latest_catalog().time, -DELAY)
        behind.wall.now = milliseconds(at) - late
        behind.manager.sync()
        assert behind.manager.statistics().times_ahead == count
    warnings = [
        record.getMessage()
        for record in caplog.records
        if "synchronize the clocks" in record.getMessage()
    ]
    assert len(warnings) == 1


@pytest.mark.parametrize(("delay", "skew"), [(DELAY, SKEW), (0, 0)])
def test_concurrent_readers_share_one_look_at_the_log(
    new_node: Nodes, monkeypatch: pytest.MonkeyPatch, delay: int, skew: int
) -> None:
    reader = new_node(delay=delay, skew=skew)
    monkeypatch.setattr(reader.manager.state.log, "frontier_is_cheap", False)  # as on a server
    reader.manager.present()
    reader.passes(3 * DELAY)
    looks: list[None] = []
    sync = reader.manager.sync

    def counted(**options: Any) -> None:
        looks.append(None)
        sync(**options)

    monkeypatch.setattr(reader.manager, "sync", counted)
    monkeypatch.setattr(reader.manager, "_applying", TogetherLock())
    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(reader.has, ["default"] * 8))
    assert len(looks) == 1
    monkeypatch.setattr(reader.manager, "_applying", threading.RLock())
    assert reader.has("default")
    assert len(looks) == (1 if delay else 2), "one who comes later looks again"


def test_concurrent_readers_of_an_unavailable_store_share_one_failure(
    new_node: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = new_node()
    reader.manager.present()
    reader.passes(3 * DELAY)
    asked: list[None] = []

    def away() -> Head:
        asked.append(None)
        raise Unavailable("the store is away")

    with monkeypatch.context() as patch:
        patch.setattr(reader.store, "look", away)
        patch.setattr(reader.manager, "_applying", TogetherLock())
        with ThreadPoolExecutor(8) as threads:
            futures = [threads.submit(reader.manager.present) for _ in range(8)]
            errors = [future.exception(60) for future in futures]
        assert [type(error) for error in errors] == [Unavailable] * 8
        assert len(set(errors)) == 8, "one error with the traceback of several threads"
        assert len(asked) == 1
        patch.setattr(reader.manager, "_applying", threading.RLock())
        with pytest.raises(Unavailable):  # a later reader looks itself
            reader.manager.present()
        assert len(asked) == 2
    assert reader.manager.present() is reader.manager.latest_catalog()
    reader.passes(3 * DELAY)
    with reader.manager._applying:  # a caller that came before the last look gets its result
        reader.manager._for_all(pytest.fail, since=0)


@pytest.mark.parametrize("error", [Unavailable, DeadlineExceeded])
def test_a_reader_that_may_wait_for_a_server_gets_no_failure_of_one_that_may_not(
    new_node: Nodes, error: type[Unavailable]
) -> None:
    """But both wait equally long for a server that does not answer, unless one has a deadline."""
    manager = new_node().manager
    calls: list[str] = []

    def away() -> None:
        calls.append("away")
        raise error("the server is away")

    def reached() -> None:
        calls.append("reached")

    looks = manager._looks
    with manager._applying:
        with failing_at_once(), pytest.raises(error):
            manager._for_all(away, since=looks)
        with suppress(DeadlineExceeded):
            manager._for_all(reached, since=looks)
    assert calls == (["away", "reached"] if error is Unavailable else ["away"])
    calls.clear()
    looks = manager._looks
    with manager._applying:
        with waiting_until(0.0), pytest.raises(error):
            manager._for_all(away, since=looks)
        manager._for_all(reached, since=looks)
    assert calls == ["away", "reached"]


def test_readers_that_share_a_failure_keep_its_reason(new_node: Nodes) -> None:
    manager = new_node().manager

    def lost() -> None:
        raise UnknownOutcome.of_commit("the server is away")

    looks = manager._looks
    for _ in range(2):
        with manager._applying, pytest.raises(UnknownOutcome) as failure:
            manager._for_all(lost, since=looks)
        assert failure.value.reason == "the server is away"


def test_a_caller_waits_for_the_look_of_another_no_longer_than_its_deadline(
    new_node: Nodes,
) -> None:
    reader = new_node()
    reader.passes(3 * DELAY)
    manager = reader.manager

    def read(look: Callable[[], object]) -> None:
        with waiting_until(time.monotonic()):
            look()

    with ThreadPoolExecutor(3) as threads:
        with manager._applying:
            late = [
                threads.submit(read, look).exception(60)
                for look in (manager.present, manager.look, manager.sync)
            ]
        assert [type(error) for error in late] == [DeadlineExceeded] * 3
        threads.submit(read, manager.present).result()


def test_changes_become_active_although_the_time_of_the_log_is_hours_ahead(
    new_node: Nodes,
) -> None:
    """The clock of a machine was ahead for a moment."""
    fast, slow, reader = new_node(), new_node(), new_node()
    fast.wall.now += 7_200_000
    carried_out(fast, "a")
    for name in ("b", "c"):
        reader.manager.look()
        slow.manager.execute(CreateSchema(name=name), author="ann", timeout=60)
        reader.passes(DELAY - SKEW + 1)
        assert reader.has("a")
        assert reader.has(name)
    lead = slow.clock.ahead_of_wall(slow.manager.look())
    assert lead <= 7_200_000 + 3 * (DELAY + SKEW), "the time of the log runs away"


def test_a_change_counts_as_active_only_when_no_earlier_look_is_valid_any_more(
    new_node: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader looks right before the time of the log is moved."""
    fast, slow, reader = new_node(), new_node(), new_node()
    fast.wall.now += 7_200_000
    carried_out(fast, "a")
    looks = iter([reader.manager.look])

    def pass_instead(seconds: float) -> bool:
        for node in (slow, reader):
            node.passes(round(1000 * seconds))
        for look in looks:
            look()
        return False

    monkeypatch.setattr(slow.manager._stop, "wait", pass_instead)
    slow.manager.execute(CreateSchema(name="b"), author="ann", timeout=60)
    reader.passes(1)
    assert reader.has("b")


def test_a_change_counts_as_active_only_when_the_time_of_the_log_was_moved(
    new_node: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command that changes nothing must not return while another call is moving the time."""
    fast, slow, reader = new_node(), new_node(), new_node()
    fast.wall.now += 7_200_000
    carried_out(fast, "a")
    look, answers = slow.manager.look, list[bool]()

    def late() -> Timestamp:
        monkeypatch.undo()
        reader.manager.look()
        with pytest.raises(AlreadyExists):
            slow.manager.execute(CreateSchema(name="b"), author="bob", timeout=60)
        reader.passes(DELAY - SKEW + 1)
        answers.append(reader.has("b"))
        return look()

    monkeypatch.setattr(slow.manager, "look", late)
    slow.manager.execute(CreateSchema(name="b"), author="ann", timeout=60)
    assert answers == [True]


def test_a_call_whose_node_stops_while_it_moves_the_time_of_the_log_gets_unknown_outcome(
    new_node: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until the end of the wait, another node may answer without the change."""
    fast, slow = new_node(), new_node()
    fast.wall.now += 7_200_000
    carried_out(fast, "a")
    look = slow.manager.look

    def then_stop() -> Timestamp:
        known_until = look()
        slow.manager.stop()
        return known_until

    monkeypatch.setattr(slow.manager, "look", then_stop)
    with pytest.raises(UnknownOutcome, match="the change is in the log as version"):
        slow.manager.execute(CreateSchema(name="b"), author="ann", timeout=60)
