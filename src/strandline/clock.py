"""Hybrid logical clock: time that is close to the wall clock and never repeats or goes back.

A timestamp is one 64-bit integer: 48 bits of milliseconds since 1970, then 16 bits of logical
counter. The integer orders events, and people can read the milliseconds. 0 is reserved for "none";
the smallest time is 1.

What must stay true: `HybridClock.now` is strictly monotonic on a node, whatever the wall clock
does. After ``update(t)`` every later ``now()`` is above ``t``. The wall clock is injected, so that
a test can stop it, set it back or let it jump.

Stores do not use this clock to order their writes: a store assigns the time of each write at the
place where it orders its writes (see `strandline.metastorage`). A node moves its clock past every
store time that it receives, so that local and stored times can be compared.

If the wall clock jumped far forward, it would take every store that is written in the meantime
along, forever, because times never go back. So the clock rejects a jump beyond ``max_ahead_ms``
(elapsed time tells it from a long sleep), and a store time further ahead of the wall clock than
that is refused. In both cases the write fails with `WrongClock`.

Rejected: a plain monotonic clock (it means nothing on another machine), and the wall clock alone
(two writes in one millisecond, or a step back after an NTP correction, would break the order).
"""

from __future__ import annotations

import time as _time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import NewType

from strandline.condition import Condition
from strandline.errors import DeadlineExceeded, InvalidInput, WrongClock

Timestamp = NewType("Timestamp", int)
"""48 bits of milliseconds since 1970 (UTC), 16 bits of logical counter."""

WallClock = Callable[[], int]
"""Milliseconds since 1970 (UTC)."""

ElapsedClock = Callable[[], int]
"""Milliseconds since some moment, on a clock that cannot be set and that runs during sleep."""

MILLISECONDS = {
    "ms": 1,
    "s": 1_000,
    "m": 60_000,
    "min": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
    "day": 86_400_000,
    "days": 86_400_000,
}
"""The units of a duration that a user writes, in milliseconds, the smallest first."""
MAX_AHEAD_MS = 24 * 60 * 60 * 1000
"""How far a time may be ahead of the wall clock by default: one day."""
LOGICAL_BITS = 16
MIN_TIMESTAMP = Timestamp(1)
MAX_TIMESTAMP = Timestamp((1 << 63) - 1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LOGICAL_MASK = (1 << LOGICAL_BITS) - 1
_PHYSICAL_LIMIT = 1 << 47


def system_wall_clock() -> int:
    """Return the time of the machine's clock, in milliseconds since 1970 (UTC)."""
    return _time.time_ns() // 1_000_000


_ELAPSED = getattr(_time, "CLOCK_BOOTTIME", _time.CLOCK_MONOTONIC)


def system_elapsed() -> int:
    """Return milliseconds since some moment, from a clock as `ElapsedClock` describes."""
    return _time.clock_gettime_ns(_ELAPSED) // 1_000_000


def elapsed_seconds() -> float:
    """Return `system_elapsed` in seconds. It goes on while this machine sleeps."""
    return system_elapsed() / 1000


def timestamp(milliseconds: int, logical: int = 0) -> Timestamp:
    """Return the timestamp of ``milliseconds`` since 1970 and a ``logical`` counter.

    Raises `InvalidInput` outside 0 ≤ milliseconds < 2⁴⁷, 0 ≤ logical < 2¹⁶, or for (0, 0).
    """
    if not 0 <= milliseconds < _PHYSICAL_LIMIT:
        raise InvalidInput(
            f"time {milliseconds} ms since 1970 is out of bounds: times lie between 1970 and the "
            "year 6429"
        )
    if not 0 <= logical <= _LOGICAL_MASK:
        raise InvalidInput(f"logical time is out of bounds: {logical}")
    if milliseconds == 0 and logical == 0:
        raise InvalidInput("time is out of bounds: 0 means 'no time'")
    return Timestamp(milliseconds << LOGICAL_BITS | logical)


def require_time(at: int) -> None:
    """Raise `InvalidInput` for a number that is not a timestamp."""
    if not MIN_TIMESTAMP <= at <= MAX_TIMESTAMP:
        raise InvalidInput(f"{at} is not a time")


def milliseconds(at: Timestamp) -> int:
    """Return the milliseconds since 1970 of a timestamp."""
    return at >> LOGICAL_BITS


def logical(at: Timestamp) -> int:
    """Return the logical counter of a timestamp."""
    return at & _LOGICAL_MASK


def add_milliseconds(at: Timestamp, delta: int) -> Timestamp:
    """Return ``at`` plus ``delta`` milliseconds (may be negative); the logical counter stays."""
    return timestamp(milliseconds(at) + delta, logical(at))


def milliseconds_before(at: Timestamp, ms: int) -> Timestamp:
    """Return ``at`` minus ``ms`` milliseconds, but at least `MIN_TIMESTAMP`."""
    return add_milliseconds(at, -ms) if milliseconds(at) > ms else MIN_TIMESTAMP


def round_up(at: Timestamp) -> Timestamp:
    """Return the first timestamp at or above ``at`` whose logical counter is 0."""
    return at if logical(at) == 0 else timestamp(milliseconds(at) + 1)


def to_datetime(at: Timestamp) -> datetime:
    """Return the moment of ``at`` in UTC, without the logical counter."""
    return _EPOCH + timedelta(milliseconds=milliseconds(at))


def format_timestamp(at: Timestamp) -> str:
    """Return text like ``2013-01-01T05:00:00.123Z``, followed by ``+N`` for a logical counter.

    The counter is omitted at the start of a millisecond, and at its end, which is how
    `parse_timestamp` reads a text without a counter.
    """
    text = to_datetime(at).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return text if logical(at) in (0, _LOGICAL_MASK) else f"{text}+{logical(at)}"


def parse_timestamp(text: str) -> Timestamp:
    """Return the timestamp in ``text``: ISO 8601, with ``+N`` after a ``Z`` for a logical counter.

    A text without a counter means the *end* of its millisecond, so that reading "as of" a printed
    time sees everything with that time. A time without a zone is UTC. The case of letters does not
    matter, because Hive clients lower the case of names. Raises `InvalidInput` for another form.
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
    """The clock of a node. Thread-safe.

    ``elapsed`` detects jumps of the wall clock. The default is the system's elapsed time if
    ``wall`` is the system's wall clock, and otherwise no detection.
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
        self._seen = (wall(), elapsed()) if elapsed else (0, 0)  # when wall was last accepted
        self._latest = 0  # the last time of `now` or `update`
        self._reached = 0  # the last time of `current`
        self._moved = Condition()

    def now(self) -> Timestamp:
        """Return a time above every time that this clock has returned or received before.

        Raises `WrongClock` while the wall clock is further ahead than elapsed time allows.
        """
        with self._moved:
            accepted = self._accepted() << LOGICAL_BITS
            self._latest = max(self._latest + 1, self._reached, accepted)
            return Timestamp(self._latest)

    def check(self) -> None:
        """Raise the `WrongClock` that `now` would raise."""
        with self._moved:
            self._accepted()

    def _accepted(self) -> int:
        """The wall clock's time. Raises `WrongClock` if it is not plausible."""
        read_ms, accepted_ms = self._wall_and_reckoned()
        if read_ms != accepted_ms:
            raise WrongClock(
                f"this machine's clock says {_shown(read_ms)}, but it should be about "
                f"{_shown(accepted_ms)}: it jumped forward by more than the allowed "
                f"{self.max_ahead_ms} ms, and nothing was written. Set the clock, or restart "
                "the node if the clock is right"
            )
        return accepted_ms

    def current(self) -> Timestamp:
        """Return the current time without moving the clock. No later time of it is below this."""
        with self._moved:
            return self._present()

    def _present(self) -> Timestamp:
        # Kept, because the wall clock may be set back.
        reckoned = self._reckoned() << LOGICAL_BITS
        self._reached = max(self._reached, self._latest, reckoned, MIN_TIMESTAMP)
        return Timestamp(self._reached)

    def update(self, received: Timestamp) -> Timestamp:
        """Move the clock past ``received``, and return its new time.

        Raises `InvalidInput` for a time that no clock can move past, as a damaged store may return.
        """
        if received >= MAX_TIMESTAMP:
            raise InvalidInput(f"time {received} is out of bounds: no clock can move past it")
        with self._moved:
            self._latest = max(self._latest, received) + 1
            self._latest = self._present()
            self._moved.notify_all()
            return Timestamp(self._latest)

    def ahead_of_wall(self, at: Timestamp) -> int:
        """Return how many milliseconds ``at`` is ahead of this wall clock; negative if behind."""
        with self._moved:
            return milliseconds(at) - self._reckoned()

    def is_too_far_ahead(self, at: Timestamp) -> bool:
        """Whether ``at`` is further ahead of this wall clock than a store's time may be."""
        return self.ahead_of_wall(at) > self.max_ahead_ms

    def too_far_ahead(self, at: Timestamp, *, todo: str) -> WrongClock:
        """Return the error for a store whose next time would be ``at``. ``todo`` is the remedy."""
        return WrongClock(
            f"the store's time would be {format_timestamp(at)}, but this machine's clock says "
            f"{format_timestamp(add_milliseconds(at, -self.ahead_of_wall(at)))}; at most "
            f"{self.max_ahead_ms} ms ahead is allowed, and nothing was written. If this clock is "
            f"wrong, set it; if it is right, {todo}"
        )

    def wait_until(self, at: Timestamp, *, timeout: float) -> None:
        """Wait until the clock has reached ``at``, by the wall clock or by ``update``.

        Raises `DeadlineExceeded` after ``timeout`` seconds.
        """
        end = _time.monotonic() + timeout
        with self._moved:
            while self._present() < at:
                seconds_left = end - _time.monotonic()
                if seconds_left <= 0:
                    raise DeadlineExceeded(
                        f"the clock did not reach {format_timestamp(at)} within {timeout} s"
                    )
                ahead = milliseconds(at) - self._reckoned() + 1
                self._moved.wait(min(seconds_left, max(ahead, 1) / 1000))

    def _reckoned(self) -> int:
        return self._wall_and_reckoned()[1]

    def _wall_and_reckoned(self) -> tuple[int, int]:
        """Return the wall clock's time, and that time again if it is plausible, else the expected.

        A jump up to the latest time that this clock has received is plausible: a machine that
        started without the time of day gets it this way.
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
