"""The metastorage: a small linearizable store that all nodes share and that gives time its order.

The model. A store is a map from keys to values with a *head*: a revision and a time. One `invoke`
compares and changes any number of keys in one atomic step; when it changed something, the head
moves to the next revision and to a later time, and each changed key carries both. When it changed
nothing (its conditions failed and there was nothing to do then, or it deleted what was not there)
the head stays.

What must stay true, in every implementation:

* Every call takes effect at one moment between its start and its return, as if there were one copy.
* Revisions and times grow together, in the order in which the store orders its writes. The time is
  taken where that order is decided, never before, whatever the wall clocks of the nodes do.
* After `check` returned time s, every later write has a time above s. A node that has applied the
  head which the same call returned therefore knows everything up to s.
* `wait_for_change` never misses a change. It is a question about a state (is there a revision above
  mine under this prefix?), not a subscription, so there is no moment at which news can fall between
  two calls. The caller reads what changed.
* A lease that was seen expired by anyone is gone for everyone. Its token is not used again.

A call that ends in `UnknownOutcome`, or whose process dies before the answer, may have happened.
The caller settles it by reading what it would have written (so write something that is yours
alone).

How to follow a prefix without missing or spinning: take ``seen = revision()``, read the state,
wait for a change after ``seen``. Not the revision of a key that was read: the deletion of another
key under the prefix is newer than it and would be news for ever.

Rejected: callbacks with the changes in them (a slow or stopped listener needs a buffer or misses);
times chosen by the writer (a writer stopped before its write arrives changes a past that others
have read).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from strandline.clock import MAX_TIMESTAMP, Timestamp
from strandline.errors import InvalidInput

MAX_KEY_LENGTH = 1024
MAX_VALUE_BYTES = 64 << 20
_PAST_EVERY_KEY = "\x7f"


@dataclass(frozen=True, slots=True)
class KeyValue:
    """A key as it stands; ``revision`` and ``time`` are those of the invoke that wrote it."""

    key: str
    value: bytes
    revision: int
    time: Timestamp


@dataclass(frozen=True, slots=True)
class Head:
    """The last revision, 0 in an empty store, and a time that every later write is above."""

    revision: int
    time: Timestamp


@dataclass(frozen=True, slots=True)
class Exists:
    """The key is there."""

    key: str


@dataclass(frozen=True, slots=True)
class Absent:
    """The key is not there."""

    key: str


@dataclass(frozen=True, slots=True)
class ValueIs:
    """The key is there, with exactly this value."""

    key: str
    value: bytes


@dataclass(frozen=True, slots=True)
class RevisionIs:
    """The key is there, as the invoke of this revision wrote it."""

    key: str
    revision: int


@dataclass(frozen=True, slots=True)
class LeaseHeld:
    """The lease is held under this token and has not expired at the time of the invoke."""

    name: str
    token: int


Condition = Exists | Absent | ValueIs | RevisionIs | LeaseHeld


@dataclass(frozen=True, slots=True)
class Put:
    """Write the value, whether the key is there or not."""

    key: str
    value: bytes


@dataclass(frozen=True, slots=True)
class PutTimed:
    """Write what ``head`` makes of the time of this very invoke, and ``body`` behind it.

    ``head`` may be called several times, is quick, and gives the same number of bytes each time.
    """

    key: str
    head: Callable[[Timestamp], bytes]
    body: bytes

    def at(self, time: Timestamp) -> Put:
        """The put of an invoke at ``time``."""
        return Put(self.key, self.head(time) + self.body)


@dataclass(frozen=True, slots=True)
class Delete:
    """Remove the key if it is there."""

    key: str


@dataclass(frozen=True, slots=True)
class DeleteRange:
    """Remove every key from ``start`` on and below ``end``."""

    start: str
    end: str


Operation = Put | PutTimed | Delete | DeleteRange


@dataclass(frozen=True, slots=True)
class Outcome:
    """Whether all conditions held, and the head after the invoke.

    ``revision`` and ``time`` are this invoke's own when it changed something, else those of the
    last one that did (0 and 0 in an empty store).
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

    ``refused`` are invokes whose conditions did not hold; ``revision_reads`` those calls of
    ``revision`` that memory could not answer; ``waits`` ended with a change or at their time-out.
    """

    gets: int
    ranges: int
    invokes: int
    refused: int
    checks: int
    revisions: int
    revision_reads: int
    waits: int
    waits_timed_out: int
    lease_calls: int


class Metastorage(ABC):
    """One open store. Safe for threads; several processes may have the same store open.

    Every method raises `InvalidInput` for keys, values or operations that no store takes,
    `Stopping` after `close`, and `Unavailable` or a kind of it when the store does not answer.
    Keys are printable ASCII (1 to `MAX_KEY_LENGTH` characters), values up to `MAX_VALUE_BYTES`.
    """

    max_operations: int
    """How many conditions, and how many operations in each branch, one invoke may have."""

    @abstractmethod
    def get(self, key: str) -> KeyValue | None:
        """The key as it stands; None if it is not there."""

    @abstractmethod
    def range(self, start: str, end: str, *, limit: int | None = None) -> list[KeyValue]:
        """The keys from ``start`` on and below ``end``, in order, as they stood at one moment.

        ``limit`` (1 or more) cuts the answer after so many.
        """

    @abstractmethod
    def invoke(
        self,
        conditions: Sequence[Condition],
        on_success: Sequence[Operation],
        on_failure: Sequence[Operation] = (),
    ) -> Outcome:
        """If all ``conditions`` hold do ``on_success``, else ``on_failure``, in one atomic step.

        The operations of one branch may not put a key twice, nor put a key that they delete. When
        this returns, the change outlives a crash of the store's machine.
        """

    @abstractmethod
    def check(self) -> Head:
        """The head, ordered after every write in flight, with a time that later writes are above.

        The bound holds also when the wall clock is then set back, or a node with another clock
        writes.
        """

    @abstractmethod
    def revision(self) -> int:
        """The revision of the head. Cheap where nothing was committed since it was last asked."""

    @abstractmethod
    def wait_for_change(self, prefix: str, after_revision: int, *, timeout: float) -> bool:
        """Whether a key under ``prefix`` was written or deleted in a revision after the given one.

        True at once if so, else as soon as it happens, False after ``timeout`` seconds. True at
        once, too, when the revision is so old that deletions since then are no longer known; 0 is
        the revision before the first. While the store does not answer this waits on, since it may
        come back with the change; `Unavailable` is raised when the time is over then.
        """

    @abstractmethod
    def acquire_lease(self, name: str, holder: str, *, ttl_ms: int) -> Lease | None:
        """The lease for ``ttl_ms`` milliseconds; None while another holder has it.

        ``holder`` names one running process, not a role: for the present holder this is a renewal.
        """

    @abstractmethod
    def renew_lease(self, lease: Lease, *, ttl_ms: int) -> Lease:
        """The lease, expiring ``ttl_ms`` milliseconds from now.

        Raises `Conflict` when it has expired, was released or has another holder.
        """

    @abstractmethod
    def release_lease(self, lease: Lease) -> None:
        """Give the lease back. Nothing happens if it is no longer this one."""

    @abstractmethod
    def lease(self, name: str) -> Lease | None:
        """The lease as it is held; None if nobody holds it or it has expired."""

    @abstractmethod
    def statistics(self) -> MetastorageStatistics:
        """What was done through this object."""

    @abstractmethod
    def close(self) -> None:
        """Stop answering; calls that wait end with `Stopping`. Idempotent."""


def prefix_end(prefix: str) -> str:
    """The end of the range of all keys that begin with ``prefix``."""
    if not prefix:
        return _PAST_EVERY_KEY
    # No key holds a character above "~", so the last one always has a next one in ASCII.
    return check_key(prefix)[:-1] + chr(ord(prefix[-1]) + 1)


def check_key(key: str) -> str:
    """``key`` itself; raises `InvalidInput` if it can not be one."""
    if not 1 <= len(key) <= MAX_KEY_LENGTH or not key.isascii() or not key.isprintable():
        raise InvalidInput(
            f"a key is 1 to {MAX_KEY_LENGTH} printable ASCII characters, not {key[:100]!r}"
        )
    return key


def check_bound(bound: str) -> str:
    """``bound`` itself; raises `InvalidInput` if it can not bound a range."""
    shown = bound.replace(_PAST_EVERY_KEY, "~")
    return bound if not shown else check_key(shown) and bound


def check_limit(limit: int | None) -> None:
    """Raises `InvalidInput` for a limit below 1."""
    if limit is not None and limit < 1:
        raise InvalidInput(f"a range is cut after 1 key or more, not after {limit}")


def check_ttl(ttl_ms: int) -> None:
    """Raises `InvalidInput` for a time to live of no length."""
    if ttl_ms < 1:
        raise InvalidInput(f"a lease lives 1 ms or longer, not {ttl_ms} ms")


def check_invoke(
    conditions: Sequence[Condition],
    on_success: Sequence[Operation],
    on_failure: Sequence[Operation],
    *,
    at_most: int,
) -> None:
    """Raises `InvalidInput` for an invoke that no store would take.

    ``at_most`` is the store's `Metastorage.max_operations`.
    """
    longest = max(len(conditions), len(on_success), len(on_failure))
    if longest > at_most:
        raise InvalidInput(
            f"one invoke on this store has at most {at_most} conditions and as many operations in"
            f" each branch, not {longest}; make several of it"
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
                value = operation.value if isinstance(operation, Put) else _longest(operation)
                _check_value(check_key(operation.key), value)
                if operation.key in put:
                    raise InvalidInput(f"one invoke puts {operation.key!r} twice; keep one of them")
                put.add(operation.key)
            case Delete():
                check_key(operation.key)
            case DeleteRange():
                check_bound(operation.start)
                check_bound(operation.end)
    for operation in operations:
        match operation:
            case Delete():
                both = put & {operation.key}
            case DeleteRange():
                both = {key for key in put if operation.start <= key < operation.end}
            case _:
                both = set()
        if both:
            raise InvalidInput(f"one invoke puts and deletes {min(both)!r}; keep one of them")


def _longest(operation: PutTimed) -> bytes:
    return operation.at(MAX_TIMESTAMP).value


def _check_value(key: str, value: bytes) -> None:
    if not isinstance(value, bytes):
        raise InvalidInput(f"the value of {key!r} is bytes, not {type(value).__name__}")
    if len(value) > MAX_VALUE_BYTES:
        raise InvalidInput(
            f"the value of {key!r} has {len(value)} bytes, {MAX_VALUE_BYTES} are allowed"
        )
