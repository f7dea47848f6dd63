"""The metastorage in etcd. etcd orders the writes; revisions and times are the store's own.

etcd's own revision counts every write to the whole cluster, including those of other catalogs and
programs. So the store's head is a key: revision and time of the last invoke that changed something.
An invoke

1. takes a *view*: the head, the stored time, and every key that its conditions and deletes name, as
   of one moment;
2. decides on it: whether the conditions hold, which keys are touched, the next revision, and a time
   above the stored one;
3. writes everything in one transaction, on the condition that the head is still that of the view
   and the stored time is still lower. If not, another writer was first: the transaction returns the
   present view, and the invoke decides again.

So every invoke is decided on exactly the state that it changes, values have a revision and a time,
and a condition may be anything that Python can decide: values of twenty megabytes are compared by
their digests. While the head is unchanged, nothing else can have changed either. So the result of
an invoke is remembered as the view of the next one, and a writer without competitors needs one
round trip. The answer "nothing to do" is never given from a remembered view.

etcd has no clock. Times come from the writers' clocks, and the condition on the stored time makes
them grow. A writer that is behind takes the stored time, moves its clock past it and tries again.
`check` writes its time under the same condition, so that later writes are above it. The next call
after a write with an unknown outcome does so too: if that write is still on its way, it will fail.

Each revision stores its touched keys under a key of its own. A waiting thread reads those after its
revision. The last few thousand are kept; a thread that waits from an earlier revision returns at
once, as after a change. See `feed` for the watch, `chunks` for large values, `layout` for the keys.

The writers of one process take turns, because they would only make each other start again.

Rejected: one transaction with nested conditions, decided by etcd. It saves the read of the view if
no view is remembered. But it can compare neither the store's revisions nor large values, does not
know whether a delete found something, and leaves only etcd's revisions, which have gaps.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from strandline.clock import HybridClock, Timestamp
from strandline.condition import TimedLock
from strandline.errors import (
    DeadlineExceeded,
    IncompatibleFormat,
    StrandlineError,
    Unavailable,
    UnsupportedOperation,
)
from strandline.metastorage.etcd.access import parse_etcd_url
from strandline.metastorage.etcd.chunks import ChunkedValues
from strandline.metastorage.etcd.feed import ChangeFeed
from strandline.metastorage.etcd.gateway import (
    MAKE_ROOM,
    CompactedRevision,
    EtcdGateway,
    FullOutcome,
)
from strandline.metastorage.etcd.invoke import MAX_OPERATIONS, AnyPut, Invoke, Missing, View
from strandline.metastorage.etcd.layout import (
    FORMAT,
    EtcdKeys,
    Reference,
    decode_head,
    decode_stored,
    encode_time,
)
from strandline.metastorage.etcd.leases import EtcdLeases, stored_time, time_above
from strandline.metastorage.etcd.operations import (
    if_modified_at,
    if_value_below,
    put_operation,
    range_operation,
)
from strandline.metastorage.store import (
    Condition,
    Head,
    KeyValue,
    Lease,
    Metastorage,
    MetastorageStatistics,
    Operation,
    Outcome,
    Put,
    check_bound,
    check_invoke,
    check_key,
    check_limit,
    check_ttl,
    prefix_end,
)
from strandline.outage import failing_at_once
from strandline.sql import StoreFull

CHANGES_KEPT = 4096
DEFAULT_TIMEOUT = 30.0
_AWAY_PAUSE_SECONDS = 0.1


class EtcdMetastorage(Metastorage):
    """See `Metastorage`. ``url`` has the form that `parse_etcd_url` reads.

    A call that gets no answer for ``timeout`` seconds ends with `DeadlineExceeded`, or with
    `UnknownOutcome` if it may have changed something. Opening a store that does not exist creates
    an empty one. With ``read_only`` nothing is created, and calls that would write raise
    `UnsupportedOperation`, also `check`, which writes the time, and `lease` of an expired lease.
    """

    max_operations = MAX_OPERATIONS

    def __init__(
        self,
        url: str,
        clock: HybridClock,
        *,
        timeout: float = DEFAULT_TIMEOUT,
        changes_kept: int = CHANGES_KEPT,
        read_only: bool = False,
    ) -> None:
        super().__init__()
        address = parse_etcd_url(url)
        self._address = address
        self._read_only = read_only
        self._clock = clock
        self._changes_kept = changes_kept
        self._keys = EtcdKeys(address.prefix)
        self._gateway = EtcdGateway(address, timeout=timeout)
        self._chunks = ChunkedValues(self._gateway, self._keys)
        self._leases = EtcdLeases(
            self._gateway, self._keys, clock, before_write=self._refuse_if_read_only
        )
        self._feed = ChangeFeed(self._gateway, self._keys)
        self._settled_outcomes = 0
        self._turn = threading.RLock()
        self._remembered: View | None = None
        try:
            self._ensure_format()
        except BaseException:
            self._gateway.close()
            raise

    def get(self, key: str) -> KeyValue | None:
        self._enter()
        check_key(key)
        data = self._keys.data(key)
        entries = self._read(data, data + b"\0", limit=None)
        return entries[0] if entries else None

    def range(self, start: str, end: str, *, limit: int | None = None) -> list[KeyValue]:
        self._enter()
        check_limit(limit)
        if check_bound(start) >= check_bound(end):
            return []
        return self._read(self._keys.data(start), self._keys.data(end), limit=limit)

    def invoke(
        self,
        conditions: Sequence[Condition],
        on_success: Sequence[Operation],
        on_failure: Sequence[Operation] = (),
    ) -> Outcome:
        self._enter()
        self._count("invokes")
        self._refuse_if_read_only()
        check_invoke(conditions, on_success, on_failure, at_most=self.max_operations)
        invoke = Invoke(self._keys, conditions, on_success, on_failure)
        written: dict[AnyPut, Reference] = {}
        finish = time.monotonic() + self._gateway.timeout
        while True:
            with self._in_turn(finish):
                self._refuse_when_closed()
                result = self._attempt(invoke, written, finish)
            if isinstance(result, Outcome):
                break
            # Outside of the turn, because this takes long and nothing depends on it yet.
            for put in result.puts:
                piece = put.value if isinstance(put, Put) else put.body
                written[put] = self._chunks.write(put.key, piece, self._clock.now())
            finish = time.monotonic() + self._gateway.timeout
        if written:
            self._remove_unused(invoke, written, succeeded=result.succeeded)
        if not result.succeeded:
            self._count("refused")
        return result

    def check(self) -> Head:
        self._enter()
        self._refuse_if_read_only()
        return self._raise_time()

    def revision(self) -> int:
        self._enter()
        self._count("revision_reads")
        return decode_head(self._gateway.range(self._keys.head).value).revision

    def wait_for_change(self, prefix: str, after_revision: int, *, timeout: float) -> bool:
        self._refuse_when_closed()  # not `_enter`: a wait has a time-out of its own
        finish = time.monotonic() + timeout
        start, end, after = prefix, prefix_end(prefix), max(0, after_revision)
        while True:
            generation = self._feed.generation
            seconds_left = finish - time.monotonic()
            try:
                with failing_at_once():
                    self._settle()
                    looked = self._feed.look(start, end, after)
            except Unavailable:
                # Wait on if the server is away; the error is raised at the time-out.
                if seconds_left <= 0:
                    raise
                seconds_left = min(seconds_left, _AWAY_PAUSE_SECONDS)
            else:
                if looked is None:
                    return True
                # Revisions that were examined once need not be examined again.
                after = looked
            if seconds_left <= 0:
                return False
            # After this the loop looks once more, so a lost connection never returns False.
            if self._feed.wait(start, end, after, generation=generation, timeout=seconds_left):
                return True

    def acquire_lease(self, name: str, holder: str, *, ttl_ms: int) -> Lease | None:
        self._enter()
        self._refuse_if_read_only()
        check_ttl(ttl_ms)
        return self._leases.acquire(check_key(name), check_key(holder), ttl_ms=ttl_ms)

    def renew_lease(self, lease: Lease, *, ttl_ms: int) -> Lease:
        self._enter()
        check_ttl(ttl_ms)
        check_key(lease.name)
        return self._leases.renew(lease, ttl_ms=ttl_ms)

    def release_lease(self, lease: Lease) -> None:
        self._enter()
        check_key(lease.name)
        self._leases.release(lease)

    def lease(self, name: str) -> Lease | None:
        self._enter()
        return self._leases.lease(check_key(name))

    def statistics(self) -> MetastorageStatistics:
        return replace(super().statistics(), watches=self._feed.generation)

    def give_up(self) -> None:
        self._gateway.give_up()

    def close(self) -> None:
        self._closed = True
        self._gateway.close()
        self._feed.close()

    def _ensure_format(self) -> None:
        # Read first: a full etcd refuses every transaction that may write.
        present = self._gateway.range(self._keys.format).value
        if present is None and not self._read_only:
            answer = self._gateway.txn(
                [if_modified_at(self._keys.format, 0)],
                [
                    put_operation(self._keys.format, FORMAT),
                    put_operation(self._keys.time, encode_time(Timestamp(0))),
                ],
                [range_operation(self._keys.format)],
                repeatable=True,
            )
            present = None if answer.succeeded else answer.pages[0].pairs[0].value
        self._refuse_other_format(FORMAT if present is None else present)

    def _refuse_other_format(self, present: bytes) -> None:
        if present != FORMAT:
            raise IncompatibleFormat(
                f"the metastorage at {self._address} has layout {present.decode(errors='replace')},"
                f" but this release knows only layout {FORMAT.decode()}; run the release that wrote"
                " it"
            )

    def _read(self, start: bytes, end: bytes, *, limit: int | None) -> list[KeyValue]:
        """The entries of a range of etcd's keys at one moment, with large values put together."""
        finish = time.monotonic() + self._gateway.timeout
        while True:
            try:
                page = self._gateway.pages(start, end, limit=limit)
                entries = []
                for pair in page.pairs:
                    key, stored = self._keys.key_of(pair.key), decode_stored(pair.value)
                    value = self._chunks.value(key, stored, revision=page.revision)
                    entries.append(KeyValue(key, value, stored.revision, stored.time))
                return entries
            except CompactedRevision:
                if time.monotonic() >= finish:
                    raise

    def _attempt(
        self, invoke: Invoke, written: dict[AnyPut, Reference], finish: float
    ) -> Outcome | Missing:
        """Write, retrying while other writers are first. Returns the outcome.

        Returns `Missing` if large values must be written as chunks first.
        """
        view, self._remembered = self._remembered, None
        fresh = False
        while True:
            if view is None or not invoke.is_covered_by(view):
                view, fresh = invoke.view(self._gateway), True
            now = time_above(self._clock, stored_time(self._gateway, view.time))
            plan = invoke.decide(view, now, written, changes_kept=self._changes_kept)
            if isinstance(plan, Missing):
                self._remembered = view
                return plan
            if not plan.writes:
                if fresh:
                    self._remembered = view
                    return plan.outcome
                view = None
                continue
            try:
                answer = self._gateway.txn(
                    plan.compares, plan.writes, plan.reads_on_failure, repeatable=False
                )
            except FullOutcome as error:
                self._refuse_if_not_written(plan.view_after.head, error)
                raise
            if answer.succeeded:
                self._remembered = plan.view_after
                return plan.outcome
            view, fresh = invoke.view_after_refusal(plan, answer, written), True
            if time.monotonic() >= finish:
                raise self._always_second()

    def _refuse_if_not_written(self, own: Head, error: FullOutcome) -> None:
        """Raise `StoreFull` if the head proves that the write that leads to ``own`` is not there.

        Other nodes may have written after the view was read. Revisions and times grow together.
        """
        try:
            head = decode_head(self._gateway.range(self._keys.head).value)
        except StrandlineError:
            return  # the outcome stays unknown
        is_later = head.revision > own.revision and head.time > own.time
        if head != own and not is_later:
            raise StoreFull(
                f"etcd ({', '.join(self._gateway.endpoints)}) is full; nothing was written. "
                f"{MAKE_ROOM}"
            ) from error

    def _remove_unused(
        self, invoke: Invoke, written: dict[AnyPut, Reference], *, succeeded: bool
    ) -> None:
        used_puts = invoke.puts(succeeded=succeeded)
        with suppress(StrandlineError):  # the invoke is done, and a later one will sweep
            for put, reference in written.items():
                if put not in used_puts:
                    self._chunks.remove(put.key, reference)
            self._chunks.sweep(self._clock.current())

    def _in_turn(self, finish: float) -> TimedLock:
        late = DeadlineExceeded(
            f"this write waited for other writers of this process for {self._gateway.timeout} s; "
            "nothing was written. etcd is slow or unreachable: see the errors of the other writers"
        )
        return TimedLock(self._turn, timeout=max(0.0, finish - time.monotonic()), late=late)

    def _always_second(self) -> DeadlineExceeded:
        return DeadlineExceeded(
            f"other nodes wrote first at each try for {self._gateway.timeout} s; nothing was "
            "written, try again"
        )

    def _raise_time(self) -> Head:
        """`check`, without counting it."""
        stored = Timestamp(0)
        finish = time.monotonic() + self._gateway.timeout
        reads = [range_operation(self._keys.head), range_operation(self._keys.time)]
        while True:
            now = time_above(self._clock, stored, bounded=False)
            raised = encode_time(now)
            answer = self._gateway.txn(
                [if_value_below(self._keys.time, raised)],
                [put_operation(self._keys.time, raised), *reads],
                reads,
                repeatable=True,
            )
            head, at = answer.pages
            stored = stored_time(self._gateway, at.value)
            # If etcd is slow, an earlier try of the same request has raised the time.
            if answer.succeeded or (answer.is_repeated and stored == now):
                return Head(decode_head(head.value).revision, now)
            if time.monotonic() >= finish:
                raise self._always_second()

    def _settle(self) -> None:
        """Order this call after every write with an unknown outcome, so that reads stay true.

        A write that is still on its way then finds the stored time above its own, and fails.
        """
        opened = self._gateway.open_outcomes
        if self._settled_outcomes < opened:
            self._raise_time()
            self._settled_outcomes = opened

    def _enter(self) -> None:
        self._refuse_when_closed()
        self._settle()

    def _refuse_if_read_only(self) -> None:
        if self._read_only:
            raise UnsupportedOperation(
                f"{self._address} was opened for reading; nothing was written"
            )
