"""The metastorage: a small linearizable key-value store that all nodes share.

A store maps keys to values and has a *head*: a revision and a time. One `invoke` compares and
changes any number of keys in one atomic step. If it changes something, the head moves to the next
revision and a later time, and each changed key carries both. If it changes nothing, the head stays.

Every implementation guarantees:

* Every call takes effect at one moment between its start and its return, as if there were one copy.
* Revisions and times grow together, in the order of the writes. The store assigns the time when it
  orders the write, never before, whatever the wall clocks of the nodes do.
* After `check` returned time s, every later write has a time above s. A node that has applied the
  head which the same call returned therefore knows everything up to s.
* `wait_for_change` never misses a change. It asks about a state (is there a revision above mine
  under this prefix?) and is not a subscription, so no change is lost between two calls. The caller
  then reads what changed.
* Once any reader has seen a lease as expired, it is expired for all readers. Its token is not used
  again.

A call that ends in `UnknownOutcome`, or whose process dies before the answer, may have taken
effect. The caller settles it by reading what it would have written, so a caller should write a
value that no other caller writes.

To follow a prefix without missing changes, take ``seen = revision()``, read the state, then wait
for a change after ``seen``. Do not wait after the revision of a key that was read: a deletion of
another key under the prefix may be newer, and the wait would return at once for ever.

Rejected: callbacks that carry the changes (a slow listener needs an unbounded buffer or misses
some); times chosen by the writer (a writer that is stopped before its write arrives would change a
past that others have read).
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from strandline.clock import MAX_TIMESTAMP, Timestamp
from strandline.errors import Conflict, CorruptData, InvalidInput, Stopping
from strandline.sql import Query

MAX_KEY_LENGTH = 1024
MAX_VALUE_BYTES = 64 << 20
NUMBER_DIGITS = 20
"""The digits of a number in a key or a value. All have as many, so that their order is the same."""
_PAST_EVERY_KEY = "\x7f"


@dataclass(frozen=True, slots=True)
class KeyValue:
    """A key and its value; ``revision`` and ``time`` are those of the invoke that wrote it."""

    key: str
    value: bytes
    revision: int
    time: Timestamp


@dataclass(frozen=True, slots=True)
class Head:
    """The last revision (0 in an empty store), and a time below that of every later write."""

    revision: int
    time: Timestamp


@dataclass(frozen=True, slots=True)
class Exists:
    """The key exists."""

    key: str


@dataclass(frozen=True, slots=True)
class Absent:
    """The key does not exist."""

    key: str


@dataclass(frozen=True, slots=True)
class ValueIs:
    """The key exists and has exactly this value."""

    key: str
    value: bytes


@dataclass(frozen=True, slots=True)
class TimeIs:
    """The key exists, and the invoke at this time wrote it last.

    A store that lost its last writes assigns their revisions again, but not their times.
    """

    key: str
    time: Timestamp


@dataclass(frozen=True, slots=True)
class LeaseHeld:
    """The lease is held under this token and has not expired at the time of the invoke."""

    name: str
    token: int


Condition = Exists | Absent | ValueIs | TimeIs | LeaseHeld


@dataclass(frozen=True, slots=True)
class Put:
    """Write the value, whether the key exists or not."""

    key: str
    value: bytes


@dataclass(frozen=True, slots=True)
class PutTimed:
    """Write ``head(time)``, with the time of this invoke, followed by ``body``.

    The store may call ``head`` several times. It must be quick and always return the same number
    of bytes.
    """

    key: str
    head: Callable[[Timestamp], bytes]
    body: bytes

    def at(self, time: Timestamp) -> Put:
        """The put of an invoke at ``time``."""
        return Put(self.key, self.head(time) + self.body)


@dataclass(frozen=True, slots=True)
class Delete:
    """Remove the key if it exists."""

    key: str


@dataclass(frozen=True, slots=True)
class DeleteRange:
    """Remove every key in the half-open range from ``start`` to ``end``."""

    start: str
    end: str


@dataclass(frozen=True, slots=True)
class Beside:
    """Call ``write(connection, time)`` in the SQL transaction of this invoke, with its time.

    The call comes before the other operations. If it raises, the whole invoke is rolled back. Only
    a store whose SQL database also has other tables supports this; others raise
    `UnsupportedOperation`. ``first_queries`` are those that ``write`` begins with, in their order
    (see `Database.write`).
    """

    write: Callable[[Any, Timestamp], object]  # Any: a connection, which this layer does not use
    first_queries: tuple[Query, ...] = ()


Operation = Put | PutTimed | Delete | DeleteRange | Beside


@dataclass(frozen=True, slots=True)
class Outcome:
    """Whether all conditions held, and the head after the invoke.

    If this invoke changed something, ``revision`` and ``time`` are its own. Otherwise they are
    those of the last invoke that did (0 and 0 in an empty store).
    """

    succeeded: bool
    revision: int
    time: Timestamp


@dataclass(frozen=True, slots=True)
class Lease:
    """A lease until ``expires`` in the store's time; ``token`` grows with each holder."""

    name: str
    holder: str
    expires: Timestamp
    token: int


@dataclass(frozen=True, slots=True)
class MetastorageStatistics:
    """Counts since the store was opened here.

    ``refused`` counts invokes whose conditions did not hold, ``revision_reads`` the calls of
    ``revision`` that had to ask the store, and ``watches`` how often a watch of etcd began: the
    first time, after each loss of its connection, and after each ten seconds without a change.
    """

    invokes: int
    refused: int
    revision_reads: int
    watches: int


class Metastorage(ABC):
    """One open store. Safe for threads; several processes may have the same store open.

    Every method raises `InvalidInput` for invalid keys, values or operations, `Stopping` after
    `close`, and `Unavailable` or a subclass when the store does not answer.
    Keys are printable ASCII (1 to `MAX_KEY_LENGTH` characters), values up to `MAX_VALUE_BYTES`.
    """

    max_operations: int
    """How many conditions, and how many operations in each branch, one invoke may have."""
    revision_is_cheap: bool = False
    """Whether `revision` takes microseconds while nothing was committed, not a round trip."""

    def __init__(self) -> None:
        self._closed = False
        self._counting = threading.Lock()
        self._counts: Counter[str] = Counter()

    @abstractmethod
    def get(self, key: str) -> KeyValue | None:
        """The key with its value; None if it does not exist."""

    @abstractmethod
    def range(self, start: str, end: str, *, limit: int | None = None) -> list[KeyValue]:
        """The keys in the half-open range from ``start`` to ``end``, sorted, at one moment.

        ``limit`` is the largest number of keys to return, 1 or more.
        """

    @abstractmethod
    def invoke(
        self,
        conditions: Sequence[Condition],
        on_success: Sequence[Operation],
        on_failure: Sequence[Operation] = (),
    ) -> Outcome:
        """If all ``conditions`` hold, do ``on_success``, else ``on_failure``, in one atomic step.

        The operations of one branch may not put a key twice, nor put a key that they delete. When
        this returns, the change survives a crash of the store's machine.
        """

    @abstractmethod
    def check(self) -> Head:
        """The head, ordered after every write in flight. Every later write has a later time.

        This is so even if the wall clock is set back afterwards, or a node with another clock
        writes.
        """

    def look(self) -> Head:
        """The head, ordered after every `invoke` in flight. Every later one has a later time.

        It does not wait for other writes of the same database, which `check` may do.
        """
        return self.check()

    @abstractmethod
    def revision(self) -> int:
        """The revision of the head. Cheap if nothing was committed since the last call."""

    @abstractmethod
    def wait_for_change(self, prefix: str, after_revision: int, *, timeout: float) -> bool:
        """Whether a key under ``prefix`` was written or deleted in a revision after the given one.

        Returns True at once if so, else as soon as it happens, and False after ``timeout`` seconds.
        Also returns True at once if the revision is so old that the store no longer knows the
        deletions since then. 0 is the revision before the first one. While the store does not
        answer, this waits on, since the store may come back with the change, and raises
        `Unavailable` at the time-out.
        """

    @abstractmethod
    def acquire_lease(self, name: str, holder: str, *, ttl_ms: int) -> Lease | None:
        """Take the lease for ``ttl_ms`` milliseconds; None while another holder has it.

        ``holder`` names one running process, not a role. For the present holder this is a renewal.
        """

    @abstractmethod
    def renew_lease(self, lease: Lease, *, ttl_ms: int) -> Lease:
        """Extend the lease to ``ttl_ms`` milliseconds from now.

        Raises `Conflict` when it has expired, was released or has another holder.
        """

    @abstractmethod
    def release_lease(self, lease: Lease) -> None:
        """Release the lease. Does nothing if another holder has it now."""

    @abstractmethod
    def lease(self, name: str) -> Lease | None:
        """The present lease; None if there is no holder or the lease has expired."""

    def statistics(self) -> MetastorageStatistics:
        with self._counting:
            counts = Counter(self._counts)
        return MetastorageStatistics(
            **{name: counts[name] for name in MetastorageStatistics.__slots__}
        )

    def _count(self, what: str) -> None:
        with self._counting:
            self._counts[what] += 1

    def give_up(self) -> None:  # noqa: B027 - the owner of a SQL database calls its `give_up`
        """See `strandline.sql.Database.give_up`."""

    @abstractmethod
    def close(self) -> None:
        """Stop answering; calls that wait end with `Stopping`. Idempotent."""

    def _refuse_when_closed(self) -> None:
        if self._closed:
            raise Stopping("the store is closed in this process; nothing was read or written")


def digits(number: int) -> bytes:
    """The value of a key that has only a number: `NUMBER_DIGITS` decimal digits."""
    return b"%0*d" % (NUMBER_DIGITS, number)


def number_in(pair: KeyValue | None) -> int:
    """The number at a key, or 0 if the key does not exist. Raises `CorruptData`."""
    if pair is None:
        return 0
    if len(pair.value) != NUMBER_DIGITS or not pair.value.isdigit():
        raise CorruptData(
            f"{pair.key} is {pair.value[:40]!r}, which is not a number of {NUMBER_DIGITS} digits; "
            "restore the store from a backup"
        )
    return int(pair.value)


def lease_lost(lease: Lease, *, to: Lease | None) -> Conflict:
    """The error of renewing a lease that its holder has lost, to another one or to none."""
    holding = "no client holds it" if to is None else f"{to.holder} holds token {to.token}"
    return Conflict(
        f"{lease.holder} no longer holds token {lease.token} of the lease {lease.name!r}: "
        f"{holding} now; acquire it again"
    )


def prefix_end(prefix: str) -> str:
    """The end of the range of all keys that begin with ``prefix``."""
    if not prefix:
        return _PAST_EVERY_KEY
    # No key has a character above "~", so the last character always has a successor in ASCII.
    return check_key(prefix)[:-1] + chr(ord(prefix[-1]) + 1)


def check_key(key: str) -> str:
    """Return ``key``; raises `InvalidInput` if it is not a valid key."""
    if not 1 <= len(key) <= MAX_KEY_LENGTH or not key.isascii() or not key.isprintable():
        raise InvalidInput(
            f"a key must have 1 to {MAX_KEY_LENGTH} printable ASCII characters, found {key[:100]!r}"
        )
    return key


def check_bound(bound: str) -> str:
    """Return ``bound``; raises `InvalidInput` if it is not a valid bound of a range."""
    shown = bound.replace(_PAST_EVERY_KEY, "~")
    return bound if not shown else check_key(shown) and bound


def check_limit(limit: int | None) -> None:
    """Raises `InvalidInput` for a limit below 1."""
    if limit is not None and limit < 1:
        raise InvalidInput(f"the limit of a range must be at least 1, found {limit}")


def check_ttl(ttl_ms: int) -> None:
    """Raises `InvalidInput` for a time to live below 1 ms."""
    if ttl_ms < 1:
        raise InvalidInput(f"the time to live of a lease must be at least 1 ms, found {ttl_ms} ms")


def check_invoke(
    conditions: Sequence[Condition],
    on_success: Sequence[Operation],
    on_failure: Sequence[Operation],
    *,
    at_most: int,
) -> None:
    """Raises `InvalidInput` for an invalid invoke.

    ``at_most`` is the store's `Metastorage.max_operations`.
    """
    longest = max(len(conditions), len(on_success), len(on_failure))
    if longest > at_most:
        raise InvalidInput(
            f"an invoke on this store may have at most {at_most} conditions and {at_most} "
            f"operations in each branch, found {longest}; split it"
        )
    for condition in conditions:
        match condition:
            case LeaseHeld():
                check_key(condition.name)
            case ValueIs():
                check_key(condition.key)
                _check_value(condition.key, condition.value)
            case _:
                check_key(condition.key)
    for operations in (on_success, on_failure):
        _check_operations(operations)


def _check_operations(operations: Sequence[Operation]) -> None:
    put: set[str] = set()
    for operation in operations:
        match operation:
            case Put() | PutTimed():
                check_key(operation.key)
                if isinstance(operation, Put):
                    _check_value(operation.key, operation.value)
                else:
                    length = len(operation.head(MAX_TIMESTAMP)) + len(operation.body)
                    _check_length(operation.key, length)
                if operation.key in put:
                    raise InvalidInput(f"the invoke puts {operation.key!r} twice; keep one of them")
                put.add(operation.key)
            case Delete():
                check_key(operation.key)
            case DeleteRange():
                check_bound(operation.start)
                check_bound(operation.end)
    for operation in operations:
        match operation:
            case Delete():
                in_both = put & {operation.key}
            case DeleteRange():
                in_both = {key for key in put if operation.start <= key < operation.end}
            case _:
                in_both = set()
        if in_both:
            raise InvalidInput(f"the invoke puts and deletes {min(in_both)!r}; keep one of them")


def _check_value(key: str, value: bytes) -> None:
    if not isinstance(value, bytes):
        raise InvalidInput(f"the value of {key!r} must be bytes, found {type(value).__name__}")
    _check_length(key, len(value))


def _check_length(key: str, length: int) -> None:
    if length > MAX_VALUE_BYTES:
        raise InvalidInput(
            f"the value of {key!r} has {length} bytes; at most {MAX_VALUE_BYTES} are allowed"
        )
