"""The suite about leases can fail: each planted fault is found."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Connection

from strandline.clock import MIN_TIMESTAMP, Timestamp
from strandline.metastorage import Lease, sql_store, sql_tables
from strandline.metastorage.etcd import invoke as etcd_invoke
from strandline.metastorage.etcd import leases as etcd_leases
from strandline.metastorage.etcd.invoke import Invoke, Plan, View
from strandline.metastorage.etcd.leases import EtcdLeases, is_live
from strandline.metastorage.etcd.operations import Json, to_text
from strandline.metastorage.etcd.store import EtcdMetastorage
from strandline.metastorage.sql_store import SqlMetastorage
from strandline.sql import run, stored_time
from tests.metastorage import test_conformance_leases as leases
from tests.metastorage.conftest import MEETING
from tests.metastorage.teeth import Teeth, Tooth, waiters_are_missed_soon, wrap

STORES = (SqlMetastorage, EtcdMetastorage)
TEETH = Teeth()


@TEETH.found_by(
    leases.test_a_lease_has_one_holder_and_each_new_holder_gets_a_larger_token,
    "sqlite",
    complaint="second.token > first.token",
)
def tokens_begin_anew(patch: pytest.MonkeyPatch) -> None:
    """The row of a lease is deleted when it is released, and with it the token."""

    def end_lease(connection: Connection, lease: Lease) -> None:
        run(connection, "DELETE FROM metastorage_lease WHERE name = ?", (lease.name,))

    patch.setattr(sql_tables, "end_lease", end_lease)


@TEETH.found_by(
    leases.test_an_expired_lease_stays_expired_for_every_reader,
    "sqlite",
    complaint=r'lease\("lead"\) == second',
)
def released_by_name(patch: pytest.MonkeyPatch) -> None:
    """A release compares the holder's name, and not the token."""

    def end_lease(connection: Connection, lease: Lease) -> None:
        statement = "UPDATE metastorage_lease SET holder = NULL WHERE name = ?"
        run(connection, statement, (lease.name,))

    patch.setattr(sql_tables, "end_lease", end_lease)


@TEETH.found_by(
    leases.test_a_lease_has_one_holder_and_each_new_holder_gets_a_larger_token,
    "postgresql",
    "etcd",
    complaint=r'lease\("lead"\) == second',
)
def released_by_anyone(patch: pytest.MonkeyPatch) -> None:
    """A release ends the lease, whoever holds it."""

    def release(real: Any, self: Any, lease: Lease) -> None:
        real(self, self.lease(lease.name) or lease)

    wrap(patch, "release_lease", *STORES, by=release)


@TEETH.found_by(
    leases.test_a_holder_that_acquires_its_lease_again_keeps_the_token,
    "sqlite",
    complaint="again.token == first.token",
)
def a_token_for_each_renewal(patch: pytest.MonkeyPatch) -> None:
    """A holder that acquires its lease again gets a new token."""
    _granted_over(patch, lambda lease, holder: lease.holder == holder)


@TEETH.found_by(
    leases.test_a_lease_expires_by_the_time_of_the_store_not_of_the_reader,
    "sqlite",
    "postgresql",
    "etcd",
    complaint=r'assert slow.lease\("lead"\) is None',
)
def expired_by_the_reader_s_clock(patch: pytest.MonkeyPatch) -> None:
    """A lease is live as long as the reader's clock says so."""
    patch.setattr(sql_store, "present_time", lambda _, clock: clock.current())

    def lease(real: Any, self: EtcdLeases, name: str) -> Any:
        row, _, _ = self._read(name)
        return row if is_live(row, self._clock.current()) else real(self, name)

    wrap(patch, "lease", EtcdLeases, by=lease)


@TEETH.found_by(
    leases.test_an_expired_lease_stays_expired_for_every_reader,
    "sqlite",
    "etcd",
    complaint=r'assert slow.lease\("lead"\) is None',
)
def expired_without_a_trace(patch: pytest.MonkeyPatch) -> None:
    """A reader that sees a lease expired does not store the time at which it saw it."""

    def lease(self: Any, name: str) -> Lease | None:
        with self._database.read() as connection:
            now = max(self._clock.current(), stored_time(connection))
            return sql_tables.live_lease(connection, name, now)

    patch.setattr(SqlMetastorage, "_lease", lease)

    def etcd_lease(self: EtcdLeases, name: str) -> Lease | None:
        row, _, stored = self._read(name)
        return row if is_live(row, max(self._clock.current(), stored)) else None

    patch.setattr(EtcdLeases, "lease", etcd_lease)


@TEETH.found_by(
    leases.test_an_expired_lease_stays_expired_for_every_reader,
    "sqlite",
    "etcd",
    complaint=r"DID NOT RAISE",
)
def renewed_by_name(patch: pytest.MonkeyPatch) -> None:
    """A renewal compares the holder's name, and not the token."""

    def renew(real: Any, self: Any, lease: Lease, *, ttl_ms: int) -> Any:
        current = self.lease(lease.name)
        same = current is not None and current.holder == lease.holder
        return real(self, current if same else lease, ttl_ms=ttl_ms)

    wrap(patch, "renew_lease", *STORES, by=renew)


@TEETH.found_by(
    leases.test_an_expired_lease_stays_expired_for_every_reader,
    "postgresql",
    "etcd",
    complaint=r"DID NOT RAISE",
)
def lost_and_renewed(patch: pytest.MonkeyPatch) -> None:
    """A renewal of a free lease acquires it."""

    def renew(real: Any, self: Any, lease: Lease, *, ttl_ms: int) -> Any:
        lease_or_none = self.acquire_lease(lease.name, lease.holder, ttl_ms=ttl_ms)
        return lease_or_none or real(self, lease, ttl_ms=ttl_ms)

    wrap(patch, "renew_lease", *STORES, by=renew)


@TEETH.found_by(
    leases.test_a_write_conditional_on_a_lease_needs_its_token_and_is_refused_after_expiry,
    "sqlite",
    "postgresql",
    "etcd",
    complaint=r"assert not store.invoke\(relying",
)
def relied_on_when_expired(patch: pytest.MonkeyPatch) -> None:
    """A write under a lease compares its token, and not the time."""
    wrap(
        patch,
        "_condition_query",
        sql_store,
        by=lambda real, condition, _: real(condition, MIN_TIMESTAMP),
    )
    patch.setattr(etcd_invoke, "is_live", lambda lease, _: bool(lease.holder))


@TEETH.found_by(
    leases.test_a_write_conditional_on_a_lease_needs_its_token_and_is_refused_after_expiry,
    "etcd",
    complaint=r"assert not slow.invoke\(relying",
)
def judged_without_a_trace(patch: pytest.MonkeyPatch) -> None:
    """A write refused for an expired lease does not store the time at which it was checked."""

    def decide(real: Any, invoke: Invoke, view: View, *given: Any, **named: Any) -> Any:
        plan = real(invoke, view, *given, **named)
        if isinstance(plan, Plan) and plan.view_after.head == view.head:
            return replace(plan, writes=[])
        return plan

    wrap(patch, "decide", Invoke, by=decide)


@TEETH.found_by(
    leases.test_a_lease_has_one_holder_and_each_new_holder_gets_a_larger_token,
    "sqlite",
    complaint=r"revision\(\) == 0",
)
def a_lease_is_a_revision(patch: pytest.MonkeyPatch) -> None:
    """Acquiring a lease moves the head."""

    def grant(real: Any, connection: Connection, *given: Any) -> Any:
        run(
            connection,
            "INSERT INTO metastorage_head (id, revision, time, forgotten) VALUES (1, 1, 1, 0)"
            " ON CONFLICT (id) DO UPDATE SET revision = metastorage_head.revision + 1",
        )
        return real(connection, *given)

    wrap(patch, "grant_lease", sql_tables, by=grant)


@TEETH.found_by(
    leases.test_only_one_of_many_concurrent_callers_gets_a_lease,
    "sqlite",
    "postgresql",
    complaint="== names",
)
def granted_on_a_look_before_the_lock(patch: pytest.MonkeyPatch) -> None:
    """A lease is read as free before the lock is taken, and not read again when it is written.

    The first two readers wait for each other, so both find it free.
    """
    looks = Counter[str]()
    both: defaultdict[str, threading.Barrier] = defaultdict(lambda: threading.Barrier(2))
    counting = threading.Lock()

    def look(real: Any, store: SqlMetastorage, name: str) -> Lease | None:
        lease: Lease | None = real(store, name)
        with counting:
            looks[name] += 1
            waits, barrier = looks[name] <= 2, both[name]
        if waits:
            barrier.wait(MEETING)
        return lease

    wrap(patch, "_lease", SqlMetastorage, by=look)
    _granted_over(patch, lambda lease, holder: lease.holder != holder)


def _granted_over(patch: pytest.MonkeyPatch, which: Callable[[Lease, str], bool]) -> None:
    """End the lease that is held when another one is granted."""

    def grant(
        real: Any, connection: Connection, name: str, holder: str, now: Timestamp, ttl_ms: int
    ) -> Any:
        lease = sql_tables.live_lease(connection, name, now)
        if lease is not None and which(lease, holder):
            sql_tables.end_lease(connection, lease)
        return real(connection, name, holder, now, ttl_ms)

    wrap(patch, "grant_lease", sql_tables, by=grant)


@TEETH.found_by(
    leases.test_only_one_of_many_concurrent_callers_gets_a_lease, "etcd", complaint="== names"
)
def row_not_compared(patch: pytest.MonkeyPatch) -> None:
    """A lease is written even if its row has changed since it was read.

    Each caller of the check reads twice, and waits until all others have too: all find it free.
    """
    looks = Counter[str]()
    together = threading.Barrier(leases.CALLERS)
    counting = threading.Lock()

    def read(real: Any, row_leases: EtcdLeases, name: str) -> Any:
        row = real(row_leases, name)
        with counting:
            looks[name] += 1
            waits = looks[name] <= 2 * leases.CALLERS
        if waits:
            together.wait(MEETING)
        return row

    def always(key: bytes, _: int) -> Json:
        return {"key": to_text(key), "target": "MOD", "result": "GREATER", "mod_revision": -1}

    wrap(patch, "_read", EtcdLeases, by=read)
    patch.setattr(etcd_leases, "if_modified_at", always)


@pytest.mark.teeth
@pytest.mark.parametrize(("kind_name", "tooth"), TEETH.cases())
def test_the_suite_about_leases_finds_a_planted_fault(
    kind_name: str, tooth: Tooth, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiters_are_missed_soon(monkeypatch)
    tooth.bite(request)
