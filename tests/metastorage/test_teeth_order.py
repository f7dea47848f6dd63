"""The suite about order can fail, and so can the comparison with a dictionary."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from sqlalchemy import Connection

from strandline.clock import HybridClock, Timestamp
from strandline.metastorage import Head, Outcome, sql_store
from strandline.metastorage.etcd import invoke as etcd_invoke
from strandline.metastorage.etcd.invoke import Invoke, Plan
from strandline.metastorage.etcd.store import EtcdMetastorage
from strandline.metastorage.sql_store import SqlMetastorage
from strandline.sql import Database, SqliteDatabase, postgres_database, run, stored_time, take_time
from tests.metastorage import model
from tests.metastorage import test_conformance_order as order
from tests.metastorage import test_teeth as entries
from tests.metastorage.stores import StoreKind
from tests.metastorage.teeth import Teeth, Tooth, waiters_are_missed_soon, wrap

STORES = (SqlMetastorage, EtcdMetastorage)
FIRST = 0
TEETH = Teeth()
CHANGED_ONLY = (
    "value = excluded.value",
    "value = excluded.value WHERE metastorage.value <> excluded.value",
)

# -- order -------------------------------------------------------------------------------------


def random_calls(kind: StoreKind) -> None:
    """The comparison with a dictionary; failures are not shrunk here."""
    how = settings(
        model.AS_USUAL,
        max_examples=200,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
    )
    model.compare_with_a_dictionary(kind, how, first=FIRST)


def patch_writes(patch: pytest.MonkeyPatch, take: Callable[..., Any]) -> None:
    """Take the times of invokes with ``take``."""

    def take_append_time(_: Database, connection: Connection, clock: HybridClock) -> Any:
        return take(connection, clock)

    patch.setattr(sql_store, "take_append_time", take_append_time)


@TEETH.found_by(
    order.test_time_increases_with_the_revision_whatever_the_wall_clocks_show,
    "sqlite",
    "postgresql",
    complaint=r"later.time > earlier.time",
)
def time_of_the_writer(patch: pytest.MonkeyPatch) -> None:
    """The time of a write is that of its writer's clock."""
    patch_writes(patch, lambda _, clock: clock.now())


@TEETH.found_by(
    order.test_checks_and_writes_of_many_threads_have_one_order,
    "sqlite",
    "postgresql",
    complaint=r"assert \(outcome.revision > head.revision\) ==",
)
def time_before_the_lock(patch: pytest.MonkeyPatch) -> None:
    """The time of a write is taken, above the stored one, before it waits for the lock."""
    mine = threading.local()

    def invoke(real: Any, self: SqlMetastorage, *arguments: Any) -> Any:
        with self._database.read() as connection:
            mine.time = max(self._clock.now(), stored_time(connection) + 1)
        return real(self, *arguments)

    def take(connection: Connection, _: HybridClock) -> Any:
        run(connection, "UPDATE strandline_clock SET time = ? WHERE time < ?", (mine.time,) * 2)
        return mine.time

    wrap(patch, "invoke", SqlMetastorage, by=invoke)
    patch_writes(patch, take)


@TEETH.found_by(
    order.test_every_write_after_a_check_has_a_later_time,
    "sqlite",
    "postgresql",
    "etcd",
    complaint=r"slow.check\(\).time > checked.time",
)
def checked_without_a_trace(patch: pytest.MonkeyPatch) -> None:
    """The time of a check is not stored."""
    for store in STORES:
        patch.setattr(store, "check", lambda self: Head(self.revision(), self._clock.now()))


@TEETH.found_by(
    order.test_every_write_and_check_after_a_look_has_a_later_time,
    "sqlite",
    complaint=r"put\(slow, \"a\"\).time > looked.time",
)
def written_without_the_looks(patch: pytest.MonkeyPatch) -> None:
    """The time of an invoke is above that of the last write, not above that of the last look."""
    patch_writes(patch, take_time)


@TEETH.found_by(
    order.test_checks_and_writes_of_many_threads_have_one_order,
    "sqlite",
    "etcd",
    complaint=r"assert \(outcome.revision > head.revision\) ==",
)
def checked_in_two_steps(patch: pytest.MonkeyPatch) -> None:
    """A check reads the revision, and takes its time in a second step."""

    def check(real: Any, self: Any) -> Head:
        revision = self.revision()
        return Head(revision, real(self).time)

    wrap(patch, "check", *STORES, by=check)


@TEETH.found_by(
    order.test_the_revision_is_never_older_than_a_write_that_returned,
    "sqlite",
    "postgresql",
    complaint=r"revision\(\) >= floor",
)
@TEETH.found_by(
    order.test_the_revision_read_in_another_process_is_never_stale,
    "sqlite",
    complaint=r"revision\(\) == theirs|seen == mine",
)
def revision_from_memory(patch: pytest.MonkeyPatch) -> None:
    """The revision is read at every second call, and remembered for the next one."""
    remembered: dict[int, int] = {}

    def revision(real: Any, self: Any) -> int:
        seen_revision = remembered.pop(id(self), None)
        if seen_revision is None:
            seen_revision = remembered[id(self)] = real(self)
        return seen_revision

    wrap(patch, "revision", *STORES, by=revision)


@TEETH.found_by(
    order.test_the_revision_is_never_older_than_a_write_that_returned,
    "sqlite",
    complaint=r"revision\(\) >= floor",
)
def observed_after_the_read(patch: pytest.MonkeyPatch) -> None:
    """The revision is remembered with a mark from after it was read, and after the next commit."""

    def revision(self: SqlMetastorage) -> int:
        mark = self._database.mark()
        if self._remembered[0] != mark:
            with self._database.read() as connection:
                seen_revision = self.revision_on(connection)
            self._database.wait_for_commit(mark, timeout=0.05)  # none comes after the last write
            self._remembered = (self._database.mark(), seen_revision)
        return self._remembered[1]

    patch.setattr(SqlMetastorage, "revision", revision)


@TEETH.found_by(
    order.test_no_increment_of_many_threads_is_lost,
    "sqlite",
    "postgresql",
    complaint=r"assert \(int\(entry.value\), entry.revision",
)
def decided_before_the_lock(patch: pytest.MonkeyPatch) -> None:
    """The conditions of an invoke are read before its transaction."""

    def invoke(real: Any, self: SqlMetastorage, conditions: Any, *branches: Any) -> Any:
        with self._database.read() as connection:
            asked = sql_store._condition_queries(conditions)
            if not sql_store._head_and_answers(connection, asked)[1]:
                return Outcome(False, 0, Timestamp(0))
        return real(self, [], *branches)

    wrap(patch, "invoke", SqlMetastorage, by=invoke)


@TEETH.found_by(
    order.test_no_increment_of_many_threads_is_lost,
    "postgresql",
    complaint=r"assert \(int\(entry.value\), entry.revision",
)
def turns_of_one_process_only(patch: pytest.MonkeyPatch) -> None:
    """Writers take turns only within their own node."""
    patch.setattr(postgres_database, "_LOCK", "SELECT 1")


@TEETH.found_by(
    order.test_no_increment_of_many_threads_is_lost,
    "etcd",
    complaint=r"assert \(int\(entry.value\), entry.revision",
)
def head_not_compared(patch: pytest.MonkeyPatch) -> None:
    """An invoke is written even if another one was first."""
    _without_compare(patch, 0)


@TEETH.found_by(
    order.test_checks_and_writes_of_many_threads_have_one_order,
    "etcd",
    complaint=r"assert \(outcome.revision > head.revision\) ==",
)
def time_not_compared(patch: pytest.MonkeyPatch) -> None:
    """An invoke is written even if its time was overtaken meanwhile."""
    _without_compare(patch, 1)


def _without_compare(patch: pytest.MonkeyPatch, left_out: int) -> None:
    def decide(real: Any, self: Invoke, *arguments: Any, **named: Any) -> Any:
        plan = real(self, *arguments, **named)
        if not isinstance(plan, Plan):
            return plan
        compares = [compare for at, compare in enumerate(plan.compares) if at != left_out]
        return replace(plan, compares=compares)

    wrap(patch, "decide", Invoke, by=decide)


# -- the comparison with a dictionary ----------------------------------------------------------


@TEETH.found_by(
    random_calls, "etcd", complaint="outcome.succeeded == succeeded|self.revision, self.time"
)
def refused_from_memory(patch: pytest.MonkeyPatch) -> None:
    """An invoke that has nothing to do by the remembered view is not decided again."""

    def attempt(real: Any, self: EtcdMetastorage, invoke: Invoke, *arguments: Any) -> Any:
        view = self._remembered
        if view is not None and invoke.is_covered_by(view):
            plan = invoke.decide(view, self._clock.now(), {}, changes_kept=1)
            if isinstance(plan, Plan) and not plan.writes:
                return plan.outcome
        return real(self, invoke, *arguments)

    wrap(patch, "_attempt", EtcdMetastorage, by=attempt)


@TEETH.found_by(random_calls, "sqlite", "etcd", complaint="outcome.succeeded == succeeded")
def one_condition_is_enough(patch: pytest.MonkeyPatch) -> None:
    """Conditions are joined by or."""
    patch.setattr(sql_store, "_ALL_HOLD", " OR ")
    # That module uses the name for conditions only.
    patch.setattr(etcd_invoke, "all", lambda outcomes: any([*outcomes] or [True]), raising=False)


@TEETH.found_by(random_calls, "sqlite", complaint=r"assert node.range|wait_for_change")
def the_first_revision_stays(patch: pytest.MonkeyPatch) -> None:
    """A value that is written again unchanged keeps its revision."""
    patch.setattr(sql_store, "_PUT_AGAIN", sql_store._PUT_AGAIN.replace(*CHANGED_ONLY))


@TEETH.found_by(random_calls, "etcd", complaint="assert .?outcome")
def nothing_else(patch: pytest.MonkeyPatch) -> None:
    """A refused invoke does not execute its failure branch."""

    def invoke(real: Any, self: Any, conditions: Any, on_success: Any, _: Any = ()) -> Any:
        return real(self, conditions, on_success)

    wrap(patch, "invoke", *STORES, by=invoke)


for fault, kind, complaint in (
    (entries.range_with_its_end, "sqlite", "range.start, end"),
    (entries.limit_forgotten, "etcd", "range.start, end"),
    (entries.delete_by_prefix, "sqlite", "assert node.range|assert .outcome"),
    (entries.every_operation_moves_the_head, "sqlite", "outcome.revision, outcome.time"),
    (entries.silent_deletes, "etcd", "wait_for_change"),
):
    TEETH.found_by(random_calls, kind, complaint=complaint)(fault)


# -- other processes ---------------------------------------------------------------------------


@TEETH.found_by(
    order.test_a_waiter_in_another_process_is_woken_by_puts_and_deletes,
    "sqlite",
    complaint=r'hear\(\) == \[\["p.1", "x"',
)
def news_of_this_process_only(patch: pytest.MonkeyPatch) -> None:
    """A waiter is told only of commits of its own process."""
    patch.setattr(SqliteDatabase, "mark", lambda self: self._commits)


@TEETH.found_by(
    order.test_a_killed_writer_loses_no_acknowledged_write_and_leaves_none_half_done,
    "sqlite",
    "etcd",
    complaint="left is not None|int.left.value. - acknowledged",
)
def acknowledged_before_it_is_written(patch: pytest.MonkeyPatch) -> None:
    """An invoke returns before it is written."""

    def invoke(real: Any, self: Any, *arguments: Any) -> Outcome:
        threading.Timer(0.05, real, (self, *arguments)).start()
        return Outcome(True, 0, Timestamp(0))

    wrap(patch, "invoke", *STORES, by=invoke)


@pytest.mark.teeth
@pytest.mark.parametrize(("kind_name", "tooth"), TEETH.cases())
def test_the_suite_about_order_finds_a_planted_fault(
    kind_name: str, tooth: Tooth, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiters_are_missed_soon(monkeypatch)
    tooth.bite(request)
