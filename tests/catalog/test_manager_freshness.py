"""Freshness if versions become active later than they are appended.

Every reader must see all changes that were complete before its read, even if the reader answers
from memory, was suspended in between, or has a wall clock that is set.
"""

from __future__ import annotations

import re
import sqlite3
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from strandline.catalog import Behind, Catalog, CatalogManager, initial_catalog
from strandline.catalog.commands import CreateSchema
from strandline.catalog.history import History
from strandline.clock import (
    HybridClock,
    Timestamp,
    add_milliseconds,
    milliseconds,
    round_up,
    system_elapsed,
)
from strandline.durable import Frontier, MetastorageLog, SetBack, durable_state
from strandline.errors import AlreadyExists, NotFresh, Unavailable, UnknownOutcome, VersionNotFound
from strandline.metastorage import Head, SqlMetastorage
from strandline.model.descriptors import ConfigEntry
from strandline.sql import open_sqlite
from tests.catalog.callers import wait_for
from tests.conftest import ManualWall

DELAY, SKEW = 200, 50


class Node:
    """A node with its own wall clock and its own elapsed time."""

    def __init__(self, folder: Path, *, delay: int = DELAY, skew: int = SKEW) -> None:
        self.wall, self.elapsed = ManualWall(), ManualWall()
        self.database = open_sqlite(folder / "strandline.db")
        self.clock = HybridClock(self.wall)
        self.store = SqlMetastorage(self.database, self.clock)
        openable = durable_state(MetastorageLog(self.store))
        state = (
            openable.join(member="joined")
            if openable.is_initialized()
            else openable.open(
                member="opener",
                initialize=initial_catalog(
                    delay_ms=delay, skew_ms=skew, default_location="file:/warehouse"
                ),
                raise_fence=lambda *_: None,
            )
        )
        self.manager = CatalogManager(state, self.clock, elapsed=self.elapsed)

    def passes(self, ms: int) -> None:
        """Let time pass on this node."""
        self.wall.now += ms
        self.elapsed.now += ms

    def has(self, name: str) -> bool:
        return self.manager.present().schema(name) is not None

    def close(self) -> None:
        self.manager.stop()
        self.store.close()
        self.database.close()


Nodes = Callable[..., Node]


@pytest.fixture
def new_node(tmp_path: Path) -> Iterator[Nodes]:
    nodes: list[Node] = []

    def make(*, delay: int = DELAY, skew: int = SKEW) -> Node:
        nodes.append(Node(tmp_path, delay=delay, skew=skew))
        return nodes[-1]

    yield make
    for node in nodes:
        node.close()


def carried_out(writer: Node, name: str, *others: Node) -> None:
    """Execute CREATE SCHEMA, and let the time that it takes pass on all nodes."""
    finished = threading.Event()

    def work() -> None:
        writer.manager.execute(CreateSchema(name=name), author="ann", timeout=60)
        finished.set()

    before = writer.manager.latest_catalog().version
    thread = threading.Thread(target=work)
    thread.start()
    while writer.manager.latest_catalog().version == before:
        assert not finished.wait(0.001)
    target = round_up(add_milliseconds(writer.manager.latest_catalog().time, SKEW))
    passed = max(0, milliseconds(target) - writer.wall.now)
    for node in (writer, *others):
        node.passes(passed)
    assert finished.wait(60)
    thread.join()


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
    log = reader.manager._state.log
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
    log = reader.manager._state.log
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

    monkeypatch.setattr(started.manager._state.log, "look", away)
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


class TogetherLock:
    """No thread enters before all eight have arrived; then they enter one by one."""

    def __init__(self) -> None:
        self.come, self.lock = threading.Barrier(8), threading.RLock()
        self.known = threading.local()

    def __enter__(self) -> None:
        if not hasattr(self.known, "has_come"):
            self.known.has_come = True
            self.come.wait(60)
        self.lock.acquire()

    def __exit__(self, *_: object) -> None:
        self.lock.release()


@pytest.mark.parametrize(("delay", "skew"), [(DELAY, SKEW), (0, 0)])
def test_concurrent_readers_share_one_look_at_the_log(
    new_node: Nodes, monkeypatch: pytest.MonkeyPatch, delay: int, skew: int
) -> None:
    reader = new_node(delay=delay, skew=skew)
    monkeypatch.setattr(MetastorageLog, "frontier_is_cheap", False)  # as on a server
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


def test_a_log_that_was_set_back_is_an_error(new_node: Nodes) -> None:
    manager = new_node().manager
    version = manager.latest_catalog().version
    with pytest.raises(Unavailable, match=f"had version {version + 4} .* ends at {version}: its"):
        manager.sync(up_to=Frontier(0, version + 5))
    manager.sync()


def created(manager: CatalogManager, name: str) -> None:
    manager.execute(CreateSchema(name=name), author="ann", timeout=60)


@contextmanager
def set_back(folder: Path) -> Iterator[None]:
    """At the end of the block, the log of the catalog is again as it was before."""
    tables = "metastorage", "metastorage_head"
    with closing(sqlite3.connect(folder / "strandline.db", isolation_level=None)) as database:
        rows = {table: database.execute(f"SELECT * FROM {table}").fetchall() for table in tables}
        yield
        for table in tables:
            database.execute(f"DELETE FROM {table}")
            values = ", ".join("?" * len(rows[table][0]))
            database.executemany(f"INSERT INTO {table} VALUES ({values})", rows[table])


@pytest.mark.parametrize("others", [0, 1, 2])
@pytest.mark.parametrize(
    "call",
    [
        lambda manager: manager.look(),
        lambda manager: created(manager, "later"),
        lambda manager: manager.catalog_at(
            manager.now(), upper=manager.latest_catalog().version + 1
        ),
        lambda manager: manager.check_head(),
    ],
    ids=["read", "change", "transaction", "health"],
)
def test_a_node_that_slept_while_its_log_lost_a_version_does_not_go_on(
    new_node: Nodes, tmp_path: Path, call: Callable[[CatalogManager], object], others: int
) -> None:
    """The log is shorter by one version, or as long as before or longer, with other versions."""
    sleeper, writer = new_node(delay=0, skew=0), new_node(delay=0, skew=0)
    created(sleeper.manager, "kept")
    with set_back(tmp_path):
        created(sleeper.manager, "lost")
    for number in range(others):
        created(writer.manager, f"other{number}")
    sleeper.passes(60_000)
    with pytest.raises((SetBack, Behind)):  # `Behind`: the caller syncs, and tries again
        call(sleeper.manager)
    differs = r"has another version \1" if others else "ends at version"
    lost = rf"has read version (\d+) .* {differs}.*: a standby .* start the node again"
    with pytest.raises(SetBack, match=lost):
        sleeper.manager.sync()
    with pytest.raises(SetBack, match=lost):
        created(sleeper.manager, "later")
    assert re.search(lost, sleeper.manager.set_back.result(timeout=0))
    assert [writer.has(name) for name in ("kept", "lost", "other0", "later")] == [
        1,
        0,
        others > 0,
        0,
    ]


def test_a_node_whose_look_at_the_log_failed_compares_its_last_version(
    new_node: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the log did not answer, another database may have taken over."""
    reader, writer = new_node(delay=0, skew=0), new_node(delay=0, skew=0)
    with set_back(tmp_path):
        created(reader.manager, "lost")
    created(writer.manager, "other")

    def away() -> Frontier:
        raise Unavailable("the log is away")

    with monkeypatch.context() as patch, pytest.raises(Unavailable):
        patch.setattr(reader.manager.state.log, "frontier", away)
        reader.manager.sync()
    with pytest.raises(SetBack, match="has another version"):
        reader.manager.sync()


def test_a_version_is_seen_although_the_log_has_lost_a_trim(
    new_node: Nodes, tmp_path: Path
) -> None:
    """The revision of the store after the version is the one that it had after the trim."""
    reader, writer = new_node(delay=0, skew=0), new_node(delay=0, skew=0)
    created(writer.manager, "kept")
    with set_back(tmp_path):
        reader.manager.sync()
        assert writer.manager.state.compact(writer.manager.latest_catalog().version)
        reader.manager.sync()
    reader.manager.sync()
    created(writer.manager, "other")
    assert reader.has("other")


def test_a_node_that_slept_while_its_latest_version_was_trimmed_goes_on(new_node: Nodes) -> None:
    """The log has no id of that version any more, because it was silent."""
    sleeper, writer = new_node(delay=0, skew=0), new_node(delay=0, skew=0)
    created(writer.manager, "kept")
    state = durable_state(MetastorageLog(writer.store)).join(member="silent")
    measuring = state.transaction(state.recovered[-1], author="system")
    with measuring.entry("configure", {"name": "measured"}):
        measuring.put(ConfigEntry("measured", "1"))
    silent = state.commit_transaction(measuring)
    sleeper.manager.sync()
    assert sleeper.manager.latest_catalog().version == silent.version
    assert state.compact(silent.version)
    sleeper.passes(60_000)
    created(writer.manager, "other")
    assert sleeper.has("other")


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


def test_an_interrupt_does_not_make_a_version_look_lost(
    new_node: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes after the version was applied, and before anything else was noted about it."""
    node = new_node(delay=0, skew=0)
    append = History.append

    def interrupted(history: History, catalog: Catalog) -> None:
        append(history, catalog)
        raise KeyboardInterrupt

    new_node(delay=0, skew=0).manager.execute(CreateSchema(name="a"), author="ann", timeout=60)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(History, "append", interrupted)
        node.manager.sync()
    node.passes(60_000)
    node.manager.sync()
    assert node.has("a")


def test_elapsed_time_is_positive_and_never_goes_back() -> None:
    first = system_elapsed()
    assert 0 < first <= system_elapsed()
