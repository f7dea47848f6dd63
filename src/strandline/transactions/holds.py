"""Holds: which readers still need old history, and how far back history is kept.

History below a *low watermark* is discarded. The low watermark is the present less the retention,
or the oldest hold or open transaction if that is older. A reader of an old snapshot, a pinned
version, a stream or a job takes a hold on its time, and keeps it by renewing it. A hold is one row
that says what kind it is, for whom, at which time and until when.

What must stay true:

* A hold is granted only at or above the low watermark: history below may be gone already.
* The watermark never falls below one that was given, whatever happens to clocks, holds and
  settings: the highest watermark given is stored, and later ones are at least as high.
* Grants and the watermark are decided in write transactions of one database, so the watermark never
  passes a hold that is being granted. Code that discards history raises the watermark first
  (`Holds.raise_low_watermark`) and discards afterwards: a hold granted in between is above it.
* A leap of the store's time ages nothing. If the time moves by more than `HybridClock.max_ahead_ms`
  while no process looks at the watermark or begins a transaction, either the store was not in use
  or a clock is wrong, and the two look the same. So no age includes the longest leaps since the
  watermark. If a clock was wrong, history is kept as long as with a right one. Rejected: leaving
  out one leap (a store with a wrong clock may be out of use, too), and leaving out all (a store
  that is used once a week would keep years of history).
* A node whose clock is ahead of the others' ends no hold early: a hold of a store on a server
  expires by the server's clock, unless the store's time is behind it.
* A hold that has expired is gone for every reader at once, whether or not its row still exists. So
  is a hold that the watermark has passed, because its history may be gone, even if a clock says
  that it has not expired.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import nlargest
from itertools import chain

from sqlalchemy import Connection

from strandline.clock import (
    MAX_TIMESTAMP,
    MIN_TIMESTAMP,
    HybridClock,
    Timestamp,
    add_milliseconds,
    format_timestamp,
    milliseconds,
    milliseconds_before,
    require_time,
)
from strandline.condition import TimedLock
from strandline.errors import Conflict, DeadlineExceeded, HoldExpired, InvalidInput, VersionNotFound
from strandline.model.identifiers import MAX_USER_LENGTH
from strandline.sql import (
    DEFAULT_TIMEOUT,
    Database,
    Query,
    change,
    expiry_time,
    first_row,
    present_time,
    run,
    stored_time,
    take_time,
    value,
)
from strandline.transactions import records
from strandline.transactions.tables import LAST_ID, is_id

BACKUP = "backup"
"""The kind of hold that a backup takes."""
# Not all columns: a store of 0.2.0 that no later release has opened has fewer.
_COLUMNS = "hold_id, kind, owner, time, expires"
_ALL = f"SELECT {_COLUMNS} FROM hold"
LIVE = "FROM hold WHERE expires > ? AND time >= ?"
"""The holds that have not expired, given `expiry_time` and the low watermark."""
# The plus keeps the database from the index of ``expires``, by which it would read all live holds.
_OLDEST = f"{_ALL} WHERE +expires > ? AND time BETWEEN ? AND ? ORDER BY time, hold_id LIMIT 1"
_ADD = (
    'INSERT INTO hold (kind, owner, time, expires, "user") VALUES (?, ?, ?, ?, ?) RETURNING hold_id'
)
_OUTLAST = "UPDATE hold SET expires = expires + ? WHERE expires > ? AND expires <= ?"
_FORGET_EXPIRED = "DELETE FROM hold WHERE expires <= ?"
_WATERMARK, _LAST_LOOK, _FIRST_LEAP = 1, 2, 3
"""The ids of rows of ``hold_watermark``. From the third on: end and start of each leap."""
_MOST_LEAPS = 4
_LEAP_MS = 60_000
"""A smaller leap of a machine's clock ends no hold: its owner renews it soon enough."""
_LAST_BEGIN = (
    "SELECT begin_time FROM txn WHERE begin_time BETWEEN 1 AND ? ORDER BY txn_id DESC LIMIT 1"
)
_TIMES = "SELECT id, time FROM hold_watermark WHERE id > 0"


@dataclass(frozen=True, slots=True)
class Hold:
    """History from ``at`` on is kept for ``owner`` until ``expires``."""

    hold_id: int
    kind: str
    owner: str
    at: Timestamp
    expires: Timestamp


_Times = Mapping[int, Timestamp]
"""The rows of ``hold_watermark``, by their ids."""
_Leaps = Sequence[tuple[Timestamp, Timestamp]]
"""Leaps of the store's time, latest first: the end of each, and its start."""


class Holds:
    """The holds of one store. Safe for threads, and for several processes on one store."""

    def __init__(
        self,
        database: Database,
        clock: HybridClock,
        *,
        history_retention_ms: Callable[[], int],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._database = database
        self._clock = clock
        self._retention_ms = history_retention_ms
        self._monotonic = monotonic
        self._looking = threading.RLock()
        self._ahead: int | None = None  # how far the present was ahead of ``monotonic``

    def acquire(
        self,
        kind: str,
        owner: str,
        *,
        at: Timestamp | None,
        ttl_ms: int,
        user: str | None = None,
        timeout: float = DEFAULT_TIMEOUT,
    ) -> Hold:
        """Hold history from ``at`` on for ``ttl_ms`` milliseconds, taken by ``user`` for ``owner``.

        If ``at`` is None, the hold begins at the moment when it is granted, which is always
        possible. Deletes expired holds. Waits at most ``timeout`` seconds for other writers.

        Raises `VersionNotFound` if ``at`` is below the low watermark, `InvalidInput` for a
        ``ttl_ms`` below 1 and for a number that is not a time, and `DeadlineExceeded`.
        """
        _positive(ttl_ms)
        for what, text in (("kind", kind), ("owner", owner)):
            _check_text(what, text)
        if at is not None:
            require_time(at)
        deadline = time.monotonic() + timeout
        self.outlast_leap(deadline=deadline)
        with self._database.guarded_write(deadline=deadline) as connection:
            now = take_time(connection, self._clock)
            change(connection, _FORGET_EXPIRED, (expiry_time(connection, now),))
            lowest = self._raise_watermark(connection, now)
            at = now if at is None else at
            if at < lowest:
                raise VersionNotFound(
                    f"history at {format_timestamp(at)} cannot be held for {owner!r}: it is kept"
                    f" from {format_timestamp(lowest)} on; read at a later time"
                )
            expires = add_milliseconds(now, ttl_ms)
            hold_id = value(connection, _ADD, (kind, owner, at, expires, user))
            return Hold(hold_id, kind, owner, at, expires)

    def renew(
        self, hold_id: int, *, ttl_ms: int, may_touch: Callable[[str], None] | None = None
    ) -> Hold:
        """Keep a hold for ``ttl_ms`` milliseconds from now. Raises `HoldExpired`.

        ``may_touch`` is called with the user that took the hold, or with its owner if no user is
        stored (release 0.2.0). It raises if the caller may not touch the hold.
        """
        _positive(ttl_ms)
        self.outlast_leap()
        with self._database.guarded_write() as connection:
            now = take_time(connection, self._clock)
            hold = _live(connection, hold_id, now)
            _check_holder(connection, hold_id, may_touch)
            expires = add_milliseconds(now, ttl_ms)
            change(connection, "UPDATE hold SET expires = ? WHERE hold_id = ?", (expires, hold_id))
            return replace(hold, expires=expires)

    def release(self, hold_id: int, *, may_touch: Callable[[str], None] | None = None) -> None:
        """Release a hold. Does nothing if it does not exist. ``may_touch`` as in `renew`."""
        if not is_id(hold_id):
            return
        with self._database.guarded_write() as connection:
            _check_holder(connection, hold_id, may_touch)
            change(connection, "DELETE FROM hold WHERE hold_id = ?", (hold_id,))

    def list(self) -> tuple[Hold, ...]:
        """The holds that have not expired, oldest time first."""
        with self._database.read() as connection:
            lowest = _given_watermark(connection)
            expired_by = expiry_time(connection, present_time(connection, self._clock))
            return tuple(live_holds(connection, (LIVE, (expired_by, lowest)), limit=LAST_ID))

    def cleaning_limit(self, *, dry_run: bool = False) -> Timestamp | None:
        """The time of the oldest snapshot that may still be read, or None during a backup.

        Data that a commit at or before that time removed may be deleted: once this has returned, no
        hold is granted below it, and no transaction begins before it. A ``dry_run`` promises and
        changes nothing.
        """
        if dry_run:
            with self._database.read() as connection:
                now, times = present_time(connection, self._clock), _times(connection)
                leaps = self._leaps(connection, now, times)
                lowest = _lowest(connection, now, times, self._retention_ms(), leaps=leaps)
                return _limit(connection, now, lowest)
        self.outlast_leap()
        with self._database.guarded_write() as connection:
            now = take_time(connection, self._clock)
            change(connection, _FORGET_EXPIRED, (expiry_time(connection, now),))
            return _limit(connection, now, self._raise_watermark(connection, now))

    def outlast_leap(self, *, deadline: float | None = None) -> None:
        """Let holds last as if this machine's clock had not leapt, or slept, since the last call.

        It waits for other writers until ``deadline``, an instant of `time.monotonic`, and then
        raises `DeadlineExceeded`.

        Nodes whose clocks did not leap get to know the time, and note heartbeats with it. At the
        first call, the clock may be ahead of theirs, so they get to know it too.
        """
        seconds_left = -1.0 if deadline is None else max(deadline - time.monotonic(), 0.0)
        late = DeadlineExceeded(
            "another call extends the holds after a leap of the clock and waits for writers; "
            "nothing was changed, try again"
        )
        timeout = min(seconds_left, threading.TIMEOUT_MAX)
        with TimedLock(self._looking, timeout=timeout, late=late):
            self._look_for_leap(deadline)

    def _look_for_leap(self, deadline: float | None) -> None:
        with self._database.read() as connection:
            stored = stored_time(connection)
        present = milliseconds(max(self._clock.current(), stored))
        ahead = present - round(self._monotonic() * 1000)
        leap = 0 if self._ahead is None else ahead - self._ahead
        unknown = present - milliseconds(stored) if self._ahead is None else leap
        if unknown > _LEAP_MS and self._clock.ahead_of_wall(stored) <= 0:
            with self._database.guarded_write(deadline=deadline) as connection:
                now = take_time(connection, self._clock, bounded=False)
                start, end = (add_milliseconds(now, ms) for ms in (-leap, leap))
                change(connection, _OUTLAST, (end - now, start, end))
        self._ahead = ahead

    def time_before(self, ms: int) -> Timestamp:
        """The time ``ms`` before the present, not counting leaps of the store's time."""
        with self._database.read() as connection:
            now = present_time(connection, self._clock)
            return _time_before(now, ms, leaps=self._leaps(connection, now, _times(connection)))

    def raise_low_watermark(self, to: Timestamp) -> None:
        """Give up the history below ``to``, and the change that was made at ``to``.

        Once this has returned, no hold is granted below ``to``, and no open transaction began
        before it. ``to`` must be in the past for every node. Raises `Conflict`, and changes
        nothing, if a hold or open transaction needs history at ``to`` or before; the message names
        the oldest one.
        """
        self.outlast_leap()
        with self._database.guarded_write() as connection:
            now = take_time(connection, self._clock)
            expired_by = expiry_time(connection, now)
            stored_watermark = _given_watermark(connection)
            needs = []
            row = first_row(connection, _OLDEST, (expired_by, stored_watermark, to))
            if row is not None:
                hold = Hold(*row)
                until = format_timestamp(hold.expires)
                renewed = f" (for a {hold.kind}, until {until} if it is not renewed)"
                needs.append((hold.at, f"hold {hold.hold_id} of {hold.owner}", renewed))
            oldest_begin = records.oldest_begin(connection)
            if oldest_begin is not None and oldest_begin <= to:
                needs.append((oldest_begin, "an open transaction", ""))
            if needs:
                since, holder, note = min(needs)
                raise Conflict(
                    f"history cannot be trimmed up to {format_timestamp(to)}: {holder} needs the"
                    f" history from {format_timestamp(since)} on{note}; trim to an older version,"
                    " or wait for its end: `strandline holders` lists what needs history"
                )
            if to > stored_watermark:
                _set_time(connection, _WATERMARK, to)

    def _raise_watermark(self, connection: Connection, now: Timestamp) -> Timestamp:
        """Raise the stored low watermark to that at ``now``, if higher; return the result."""
        times = _times(connection)
        leaps = self._leaps(connection, now, times)
        if leaps and leaps[0][0] == now:
            change(connection, f"DELETE FROM hold_watermark WHERE id >= {_FIRST_LEAP}")
            for row, time_of_row in enumerate(chain(*leaps), start=_FIRST_LEAP):
                _set_time(connection, row, time_of_row)
        _set_time(connection, _LAST_LOOK, now)
        lowest = _lowest(connection, now, times, self._retention_ms(), leaps=leaps)
        if lowest > times.get(_WATERMARK, MIN_TIMESTAMP):
            _set_time(connection, _WATERMARK, lowest)
        return lowest

    def _leaps(self, connection: Connection, now: Timestamp, times: _Times) -> _Leaps:
        """The leaps that no age includes. If one ends at ``now``, it is not in ``times`` yet."""
        leaps = _stored_leaps(times)
        earlier = milliseconds_before(now, self._clock.max_ahead_ms)
        last_use = times.get(_LAST_LOOK, MIN_TIMESTAMP)
        if last_use < earlier:  # the store was in use, although no process may have looked for long
            last_use = max(last_use, value(connection, _LAST_BEGIN, (earlier,)) or MIN_TIMESTAMP)
        if last_use == MIN_TIMESTAMP or last_use >= earlier:
            return leaps
        needed = (leap for leap in leaps if leap[0] > times.get(_WATERMARK, MIN_TIMESTAMP))
        longest = nlargest(
            _MOST_LEAPS, ((now, Timestamp(last_use)), *needed), key=lambda leap: leap[0] - leap[1]
        )
        return sorted(longest, reverse=True)


def watermark_at(connection: Connection, now: Timestamp, *, retention_ms: int) -> Timestamp:
    """The low watermark at ``now``; never below one that was returned before."""
    times = _times(connection)
    return _lowest(connection, now, times, retention_ms, leaps=_stored_leaps(times))


def live_holds(connection: Connection, live: Query, *, limit: int) -> list[Hold]:
    """The holds in ``live``, which is `LIVE` or a part of it, oldest first, at most ``limit``."""
    source, parameters = live
    oldest = f"SELECT {_COLUMNS} {source} ORDER BY time, hold_id LIMIT ?"
    return [Hold(*row) for row in run(connection, oldest, (*parameters, limit))]


def _lowest(
    connection: Connection, now: Timestamp, times: _Times, retention_ms: int, *, leaps: _Leaps
) -> Timestamp:
    """See `watermark_at`."""
    given = times.get(_WATERMARK, MIN_TIMESTAMP)
    needed = [_time_before(now, retention_ms, leaps=leaps)]
    expired_by = expiry_time(connection, now)
    oldest_hold = first_row(connection, _OLDEST, (expired_by, given, MAX_TIMESTAMP))
    if oldest_hold is not None:
        needed.append(Hold(*oldest_hold).at)
    oldest_begin = records.oldest_begin(connection)
    if oldest_begin is not None:
        needed.append(oldest_begin)
    return max(given, min(needed))


def _time_before(now: Timestamp, ms: int, *, leaps: _Leaps) -> Timestamp:
    """The time ``ms`` before ``now``, not counting ``leaps``."""
    for end, start in leaps:
        since = milliseconds(now) - milliseconds(end)
        if since >= ms:
            break
        now, ms = start, ms - since
    return milliseconds_before(now, ms)


def _limit(connection: Connection, now: Timestamp, lowest: Timestamp) -> Timestamp | None:
    """See `Holds.cleaning_limit`; ``lowest`` is the low watermark."""
    if is_backed_up(connection, now):
        return None
    oldest_begin = records.oldest_begin(connection)  # release 0.3.0 let the watermark pass it
    return lowest if oldest_begin is None else min(lowest, oldest_begin)


def is_backed_up(connection: Connection, now: Timestamp) -> bool:
    """Whether a backup is running: the files that it has listed must stay until they are copied."""
    backups = "SELECT 1 FROM hold WHERE kind = ? AND expires > ? LIMIT 1"
    return value(connection, backups, (BACKUP, expiry_time(connection, now))) is not None


def _given_watermark(connection: Connection) -> Timestamp:
    return _times(connection).get(_WATERMARK, MIN_TIMESTAMP)


def _stored_leaps(times: _Times) -> _Leaps:
    rows = range(_FIRST_LEAP, _FIRST_LEAP + 2 * _MOST_LEAPS, 2)
    return [(times[row], times[row + 1]) for row in rows if row in times]


def _times(connection: Connection) -> _Times:
    return {row: Timestamp(time) for row, time in run(connection, _TIMES)}


def _set_time(connection: Connection, row: int, time: Timestamp) -> None:
    change(
        connection,
        "INSERT INTO hold_watermark (id, time) VALUES (?, ?)"
        " ON CONFLICT (id) DO UPDATE SET time = excluded.time",
        (row, time),
    )


def _check_holder(
    connection: Connection, hold_id: int, may_touch: Callable[[str], None] | None
) -> None:
    if may_touch is None:
        return
    taken_by = 'SELECT coalesce("user", owner) FROM hold WHERE hold_id = ?'
    for (name,) in run(connection, taken_by, (hold_id,)):
        may_touch(name)


def _live(connection: Connection, hold_id: int, now: Timestamp) -> Hold:
    query = f"{_ALL} WHERE hold_id = ?", (hold_id,)
    row = first_row(connection, *query) if is_id(hold_id) else None
    if row is None:
        raise HoldExpired(
            f"hold {hold_id} does not exist: it was released, or it expired; take a new one"
        )
    hold = Hold(*row)
    if hold.expires <= expiry_time(connection, now) or hold.at < _given_watermark(connection):
        raise HoldExpired(
            f"hold {hold_id} of {hold.owner!r} expired at {format_timestamp(hold.expires)}, and "
            "its history may be gone; take a new one and renew it in time"
        )
    return hold


def _check_text(what: str, text: str) -> None:
    if not text or not text.isprintable() or len(text) > MAX_USER_LENGTH:
        raise InvalidInput(
            f"the {what} of a hold is 1 to {MAX_USER_LENGTH} printable characters, not"
            f" {text[:80]!r} ({len(text)} characters)"
        )


def _positive(ttl_ms: int) -> None:
    if ttl_ms < 1:
        raise InvalidInput(f"a hold lasts for at least 1 ms, not {ttl_ms}")
