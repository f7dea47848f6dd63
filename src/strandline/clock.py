"""Hybrid logical clock: time that is close to the wall's and never repeats or goes back.

A timestamp is one integer of 64 bits: 48 bits of milliseconds since 1970, then 16 bits of logical
counter. As an integer it orders events, as milliseconds a person can read it. 0 is reserved for
"none"; the smallest time is 1.

What must stay true: `HybridClock.now` is strictly monotonic on a node, whatever the wall clock
does; after ``update(t)`` every later ``now()`` is above ``t``. The wall clock is injected, so that
a test can stop it, turn it back or let it jump.

Stores do not take this time for their own order: a store gives each write its time where it
orders its writes (see `strandline.metastorage`). The clock of a node is moved past every store time
that the node hears, so that local and stored times can be compared.

A wall clock that jumps far forward would take along every store that is written meanwhile, for
ever, since times never go back. So a jump beyond ``max_ahead_ms`` is not believed (elapsed time
tells it from a long sleep), and no time further ahead of the wall is given: both refuse the write
with `WrongClock`.

Rejected: a plain monotonic clock (means nothing on another machine), and a wall clock alone (two
writes in one millisecond, and a step back after an NTP correction, would break the order).
"""

from __future__ import annotations

import threading
import time as _time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import NewType

from strandline.errors import DeadlineExceeded, InvalidInput, WrongClock

Timestamp = NewType("Timestamp", int)
"""48 bits of milliseconds since 1970 (UTC), 16 bits of logical counter."""

WallClock = Callable[[], int]
"""Milliseconds since 1970 (UTC)."""

ElapsedClock = Callable[[], int]
"""Milliseconds since some moment, on a clock that cannot be set and that goes on in a sleep."""

MAX_AHEAD_MS = 24 * 60 * 60 * 1000
"""How far a time may be ahead of the wall clock unless it is set: a day."""
LOGICAL_BITS = 16
MIN_TIMESTAMP = Timestamp(1)
MAX_TIMESTAMP = Timestamp((1 << 63) - 1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LOGICAL_MASK = (1 << LOGICAL_BITS) - 1
_PHYSICAL_LIMIT = 1 << 47


def system_wall_clock() -> int:
    """The machine's clock, in milliseconds since 1970 (UTC)."""
    return _time.time_ns() // 1_000_000


_ELAPSED = getattr(_time, "CLOCK_BOOTTIME", _time.CLOCK_MONOTONIC)


def system_elapsed() -> int:
    """Milliseconds since some moment, on a clock that cannot be set and that goes on in a sleep."""
    return _time.clock_gettime_ns(_ELAPSED) // 1_000_000


def timestamp(milliseconds: int, logical: int = 0) -> Timestamp:
    """The timestamp of ``milliseconds`` since 1970 and a ``logical`` counter.

    Raises `InvalidInput` outside 0 ≤ milliseconds < 2⁴⁷, 0 ≤ logical < 2¹⁶, or for (0, 0).
    """
    if not 0 <= milliseconds < _PHYSICAL_LIMIT:
        raise InvalidInput(
            f"times lie from 1970 to the year 6429, and {milliseconds} ms since 1970 does not"
        )
    if not 0 <= logical <= _LOGICAL_MASK:
        raise InvalidInput(f"logical time is out of bounds: {logical}")
    if milliseconds == 0 and logical == 0:
        raise InvalidInput("time is out of bounds: 0 means 'no time'")
    return Timestamp(milliseconds << LOGICAL_BITS | logical)


def milliseconds(at: Timestamp) -> int:
    """The milliseconds since 1970 of a timestamp."""
    return at >> LOGICAL_BITS


def logical(at: Timestamp) -> int:
    """The logical counter of a timestamp."""
    return at & _LOGICAL_MASK


def add_milliseconds(at: Timestamp, delta: int) -> Timestamp:
    """``at`` moved by ``delta`` milliseconds (may be negative), its logical counter kept."""
    return timestamp(milliseconds(at) + delta, logical(at))


def milliseconds_before(at: Timestamp, ms: int) -> Timestamp:
    """``at`` so many milliseconds before, or `MIN_TIMESTAMP` where that is further back."""
    return add_milliseconds(at, -ms) if milliseconds(at) > ms else MIN_TIMESTAMP


def round_up(at: Timestamp) -> Timestamp:
    """The first timestamp at or above ``at`` whose logical counter is 0."""
    return at if logical(at) == 0 else timestamp(milliseconds(at) + 1)


def to_datetime(at: Timestamp) -> datetime:
    """The moment of ``at`` in UTC; the logical counter is dropped."""
    return _EPOCH + timedelta(milliseconds=milliseconds(at))


def format_timestamp(at: Timestamp) -> str:
    """``2013-01-01T05:00:00.123Z``, with ``+N`` behind it for a logical counter.

    None is shown at the beginning of a millisecond, and at its end, as `parse_timestamp` reads it.
    """
    text = to_datetime(at).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return text if logical(at) in (0, _LOGICAL_MASK) else f"{text}+{logical(at)}"


def parse_timestamp(text: str) -> Timestamp:
    """The timestamp that ``text`` names: ISO 8601, with ``+N`` for a logical counter after a ``Z``.

    A text that names no counter means the *end* of its millisecond, so that reading "as of" a
    time that was printed sees everything that carries it. A time without a zone is UTC. Upper and
    lower case are the same, because Hive clients lower the case of names.
    """
    body, counter = text.strip().upper(), ""
    if "Z+" in body:
        body, _, counter = body.partition("+")
    try:
        moment = datetime.fromisoformat(body)
        count = int(counter) if counter else _LOGICAL_MASK
    except ValueError:
        raise InvalidInput(
            f"{text!r} is not a time; write it like 2013-01-31T12:00:00.000Z"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return timestamp((moment - _EPOCH) // timedelta(milliseconds=1), count)


class HybridClock:
    """One node's clock. Safe to use from several threads.

    ``elapsed`` is what jumps of the wall clock are told by: the system's, where the wall clock is.
    """

    def __init__(
        self,
        wall: WallClock = system_wall_clock,
        *,
        elapsed: ElapsedClock | None = None,
        max_ahead_ms: int = MAX_AHEAD_MS,
    ) -> None:
        self._wall = wall
        if elapsed is None and wall is system_wall_clock:
            elapsed = system_elapsed
        self._elapsed = elapsed
        self.max_ahead_ms = max_ahead_ms
        self._seen = (wall(), elapsed()) if elapsed else (0, 0)  # when wall was believed last
        self._latest = 0
        self._moved = threading.Condition()

    def now(self) -> Timestamp:
        """A time above every time that this clock gave or heard before.

        Raises `WrongClock` as long as the wall clock stands further ahead than it can have gone.
        """
        with self._moved:
            says, wall = self._wall_and_reckoned()
            if says != wall:
                raise WrongClock(
                    f"this machine's clock says {_shown(says)}, and it should be about "
                    f"{_shown(wall)}: it jumped forward by more than the {self.max_ahead_ms} ms "
                    "that are allowed, and nothing was written; set the clock, or restart the node "
                    "if the clock is right"
                )
            self._latest = max(self._latest + 1, wall << LOGICAL_BITS)
            return Timestamp(self._latest)

    def current(self) -> Timestamp:
        """The present without moving the clock: no later ``now()`` is below it."""
        with self._moved:
            return Timestamp(max(self._latest, self._reckoned() << LOGICAL_BITS, MIN_TIMESTAMP))

    def update(self, heard: Timestamp) -> Timestamp:
        """Move past ``heard``; returns the clock's new time, above ``heard``.

        Raises `InvalidInput` for a time that no clock can move past, such as a damaged store gives.
        """
        if heard >= MAX_TIMESTAMP:
            raise InvalidInput(f"{heard} is no time that a clock could move past")
        with self._moved:
            self._latest = max(self._latest, heard) + 1
            self._latest = max(self._latest, self._reckoned() << LOGICAL_BITS)
            self._moved.notify_all()
            return Timestamp(self._latest)

    def ahead_of_wall(self, at: Timestamp) -> int:
        """How many milliseconds ``at`` is ahead of the wall clock here; negative if behind."""
        with self._moved:
            return milliseconds(at) - self._reckoned()

    def is_too_far_ahead(self, at: Timestamp) -> bool:
        """Whether ``at`` is further ahead of the wall clock here than a store's time may be."""
        return self.ahead_of_wall(at) > self.max_ahead_ms

    def too_far_ahead(self, at: Timestamp, *, todo: str) -> WrongClock:
        """The error for a store whose next time would be ``at``; ``todo`` is the way out."""
        return WrongClock(
            f"the store's time would be {format_timestamp(at)}, and this machine's clock says "
            f"{format_timestamp(add_milliseconds(at, -self.ahead_of_wall(at)))}; at most "
            f"{self.max_ahead_ms} ms ahead are allowed, and nothing was written. If this clock is "
            f"wrong, set it; if it is right, {todo}"
        )

    def wait_until(self, at: Timestamp, *, timeout: float) -> None:
        """Return when the clock has reached ``at``, by the wall or by ``update``.

        Raises `DeadlineExceeded` after ``timeout`` seconds.
        """
        end = _time.monotonic() + timeout
        with self._moved:
            while max(self._latest, self._reckoned() << LOGICAL_BITS) < at:
                left = end - _time.monotonic()
                if left <= 0:
                    raise DeadlineExceeded(
                        f"the clock did not reach {format_timestamp(at)} within {timeout} s"
                    )
                ahead = milliseconds(at) - self._reckoned() + 1
                self._moved.wait(min(left, max(ahead, 1) / 1000))

    def _reckoned(self) -> int:
        return self._wall_and_reckoned()[1]

    def _wall_and_reckoned(self) -> tuple[int, int]:
        """What the wall clock says; and that if it can be believed, else what it should say.

        A clock that is behind what this one has heard is believed up to there: that is how a
        machine that started without the time of day gets it.
        """
        wall = self._wall()
        if self._elapsed is None:
            return wall, wall
        elapsed = self._elapsed()
        expected = self._seen[0] + elapsed - self._seen[1]
        if wall > max(expected, self._latest >> LOGICAL_BITS) + self.max_ahead_ms:
            return wall, expected
        self._seen = (wall, elapsed)
        return wall, wall


def _shown(wall_ms: int) -> str:
    return format_timestamp(timestamp(wall_ms))
