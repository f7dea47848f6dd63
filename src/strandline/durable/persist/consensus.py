"""Consensus: a short log of versions for each key, to which one writer at a time appends.

A shard keeps its state here, as one small record for each change. A version has a sequence number
and a time. Sequence numbers grow and may have gaps. Times grow with them; the store assigns a time
when it orders the write.

What must stay true: a version is added only if the last one is the one that its writer expected. So
if two writers expect the same one, one of them loses and reads again. The last version is never
removed. A call that raised `UnknownOutcome` may have added its version, or may still add it. Every
other error means that it did not.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from strandline.clock import Timestamp
from strandline.errors import CorruptData, InvalidInput
from strandline.metastorage import (
    Absent,
    Condition,
    DeleteRange,
    Head,
    Metastorage,
    Operation,
    Put,
    PutTimed,
    TimeIs,
    ValueIs,
)
from strandline.metastorage.store import NUMBER_DIGITS, digits, number_in

MAX_SEQNO = (1 << 63) - 1
SCANNED_AT_ONCE = 500
_KEY = re.compile(r"[0-9A-Za-z_-]{1,200}")


class Timed(NamedTuple):
    """Bytes that contain the time of their version: ``head(time)``, then ``body``."""

    head: Callable[[Timestamp], bytes]
    body: bytes


class VersionedData(NamedTuple):
    """One version of a key."""

    seqno: int
    data: bytes
    time: Timestamp


class Consensus:
    """See the module. Safe for threads and processes. Raises `Unavailable` without an answer.

    In the metastorage, ``persist.{key}.head`` is the last sequence number, and
    ``persist.{key}.at.{number}`` a version.
    """

    def __init__(self, store: Metastorage) -> None:
        self._store = store
        self.revision_is_cheap = store.revision_is_cheap
        """Whether `revision` takes microseconds while nothing was committed, not a round trip."""

    def head_key(self, key: str) -> str:
        """The key of the last sequence number."""
        if _KEY.fullmatch(key) is None:
            raise InvalidInput(
                f"a key of consensus must consist of letters, digits, - and _, found {key[:100]!r}"
            )
        return f"persist.{key}.head"

    def version_key(self, key: str, seqno: int) -> str:
        return f"persist.{key}.at.{seqno:0{NUMBER_DIGITS}d}"

    def head(self, key: str) -> VersionedData | None:
        """The last version of ``key``, or None if it has none. Linearizable."""
        seqno = None
        while True:
            pointer = self._store.get(self.head_key(key))
            if pointer is None:
                return None
            before, seqno = seqno, number_in(pointer)
            version = self._store.get(self.version_key(key, seqno))
            if version is not None:
                return VersionedData(seqno, version.value, version.time)
            if seqno == before:  # no newer version explains its removal
                raise CorruptData(
                    f"version {seqno} of {key} is its latest version and is missing; restore the "
                    "store from a backup"
                )

    def compare_and_set(
        self,
        key: str,
        expected: int | None,
        seqno: int,
        data: bytes | Timed,
        *,
        expected_time: Timestamp | None = None,
        beside: Sequence[Operation] = (),
    ) -> Head | None:
        """Add the version ``seqno`` if the last one is ``expected`` (None: there is no version).

        Returns the head with that version. Returns None, and changes nothing, if the last one is
        another. It is also another one if it was not written at ``expected_time``: a log that was
        set back may have as many versions again. ``beside`` is done in the same step. Raises
        `InvalidInput` if ``seqno`` is not above ``expected``, or is above `MAX_SEQNO`.
        """
        if not (-1 if expected is None else expected) < seqno <= MAX_SEQNO:
            raise InvalidInput(
                f"version {seqno} of {key} cannot follow version {expected}: it must be greater, "
                f"and at most {MAX_SEQNO}"
            )
        pointer, place = self.head_key(key), self.version_key(key, seqno)
        last: list[Condition] = [
            Absent(pointer) if expected is None else ValueIs(pointer, digits(expected))
        ]
        if expected is not None and expected_time is not None:
            last.append(TimeIs(self.version_key(key, expected), expected_time))
        put = PutTimed(place, *data) if isinstance(data, Timed) else Put(place, data)
        outcome = self._store.invoke(last, [Put(pointer, digits(seqno)), put, *beside])
        return Head(outcome.revision, outcome.time) if outcome.succeeded else None

    def scan(self, key: str, start: int) -> list[VersionedData]:
        """The versions from ``start`` on, in order."""
        begin = self.version_key(key, start)
        end = self.version_key(key, MAX_SEQNO) + " "  # the next possible key
        versions: list[VersionedData] = []
        while True:
            page = self._store.range(begin, end, limit=SCANNED_AT_ONCE)
            versions += (
                VersionedData(int(pair.key[-NUMBER_DIGITS:]), pair.value, pair.time)
                for pair in page
            )
            if len(page) < SCANNED_AT_ONCE:
                return versions
            begin = page[-1].key + " "

    def truncate(self, key: str, seqno: int) -> None:
        """Remove the versions below ``seqno``.

        Raises `InvalidInput` if ``seqno`` is above the last version, or if there is no version.
        """
        pointer = self._store.get(self.head_key(key))
        if pointer is None or seqno > number_in(pointer):
            last = "none" if pointer is None else number_in(pointer)
            raise InvalidInput(
                f"{key} cannot be truncated below version {seqno}: its latest version is {last}"
            )
        # The last version only moves up, so what is below `seqno` now is never the last one.
        start, end = self.version_key(key, 0), self.version_key(key, seqno)
        while page := self._store.range(start, end, limit=SCANNED_AT_ONCE):
            behind = page[-1].key + " "
            self._store.invoke([], [DeleteRange(start, behind)])

    def revision(self) -> int:
        """A number that grows with each change of any key; linearizable."""
        return self._store.revision()

    def check(self) -> Head:
        """The revision, and a time below that of every later version."""
        return self._store.check()

    def look(self) -> Head:
        """`check` that waits only for changes of a state."""
        return self._store.look()

    def wait(self, key: str, after_revision: int, *, timeout: float) -> bool:
        """Wait for a change of ``key`` after a revision; False after ``timeout`` seconds."""
        return self._store.wait_for_change(self.head_key(key), after_revision, timeout=timeout)
