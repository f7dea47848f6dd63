"""Updates as rows, for the logs that store a collection of rows instead of a sequence of updates.

A **row** is (kind, key, value, version, diff): at ``version``, ``value`` was added at ``key`` (diff
1) or removed (diff −1). The sum of all rows up to a version is the catalog at that version. An
update becomes these rows:

====================  =======  ==============================================  ====
kind                  key      value                                           diff
====================  =======  ==============================================  ====
``update``            version  the head: the update without its changes        1
the kind of an        of the   the exact bytes of the old object,              −1,
object                object   or of the new object                            1
an append-only kind   version  the bytes of the object                         1
                      and n
====================  =======  ==============================================  ====

In keys, a version has 8 bytes, and the number n of an append-only object 4 bytes, big-endian.

Rows have no order. For each change, the head has the positions of its rows among the object rows of
the version, sorted by `sort_key`. So an update is restored exactly, with its entries and the order
of its changes, even if it changed an object twice. Two rows that are equal in all parts are both
kept as long as the version can be read.

A row also has the **time** of its version. The log knows the time only when it orders the update.
It then completes the rows that contain the time in their bytes (the head, an audit event), see
`Unordered.at`. Consolidation leaves for each object the row with the version and the time of its
last change. So a snapshot made of rows equals one made of updates.

What must stay true: of all rows up to a version, at most one row of each object remains, and every
other one is cancelled by a row with exactly the same bytes. Anything else is corruption and is
never repaired.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from sys import intern
from typing import NamedTuple
from zlib import crc32

from strandline.clock import MIN_TIMESTAMP, Timestamp
from strandline.durable.collections import APPEND_ONLY
from strandline.durable.update import ARGUMENTS, Arguments, CatalogSnapshot, Change, Entry, Update
from strandline.errors import CorruptData
from strandline.wire.codecs import BYTES, IDS, TEXT, TIME, UINT, sequence, triple
from strandline.wire.registry import decode, encode, naming, register, timed_head

UPDATE = "update"
"""The kind of the rows that are heads of updates."""
_VERSION_BYTES = 8
_NUMBER_BYTES = 4
_ABSENT = 0
REMEDY = "restore the store from a backup"
"""The end of error messages about a damaged log."""


class Row(NamedTuple):
    """See the module. ``diff`` is 1 or −1."""

    kind: str
    key: bytes
    value: bytes
    version: int
    time: Timestamp
    diff: int


@dataclass(frozen=True, slots=True)
class UpdateHead:
    """An update without its changes.

    Each of ``entries`` is a verb, its arguments and positions. The positions are two numbers for
    each change: those of the row of the old object and of the row of the new object, counted from
    1; 0 if absent.
    """

    version: int
    id: bytes
    author: str
    member: str
    entries: tuple[tuple[str, Arguments, tuple[int, ...]], ...]
    time: Timestamp = MIN_TIMESTAMP


register(
    UpdateHead,
    type_id=7,
    version=1,
    since="0.4.0",
    fields=[
        ("time", TIME),
        ("version", UINT),
        ("id", BYTES),
        ("author", TEXT),
        ("member", TEXT),
        ("entries", sequence(triple(TEXT, ARGUMENTS, IDS))),
    ],
)


def head_key(version: int) -> bytes:
    return version.to_bytes(_VERSION_BYTES, "big")


def appended_key(version: int, number: int) -> bytes:
    """The key of the ``number``-th object of an append-only kind in ``version``."""
    return head_key(version) + number.to_bytes(_NUMBER_BYTES, "big")


def is_object(kind: str) -> bool:
    """Whether rows of ``kind`` are objects of the catalog, which snapshots contain."""
    return kind != UPDATE and kind not in APPEND_ONLY


def sort_key(row: Row) -> tuple[str, bytes, int, bytes]:
    """The sort key of the object rows of one version; it determines the positions in the head."""
    return row.kind, row.key, row.diff, row.value


def checksum(row: Row) -> int:
    """The CRC-32 of all parts of a row."""
    kind, key, value, version, time, diff = row
    context = b"%s %d %d %d %d " % (kind.encode(), len(key), version, time, diff)
    return crc32(value, crc32(key, crc32(context)))


class Unordered:
    """The rows of an update that no log has ordered yet; only the time is missing."""

    def __init__(self, update: Update) -> None:
        version = update.version
        objects = sorted(_rows_of_changes(update.changes(), version), key=sort_key)
        free = _positions(objects)
        entries = tuple(
            (entry.verb, entry.arguments, tuple(_take_positions(entry.changes, free)))
            for entry in update.entries
        )
        head = UpdateHead(version, update.id, update.author, update.member, entries)
        self._timed = [(UPDATE, head_key(version), _at_time(encode(head)))]
        self._timed += (
            (appended.kind, appended_key(version, number), _at_time(appended.data))
            for number, appended in enumerate(update.appended)
        )
        self._objects = objects
        self.version = version

    def at(self, time: Timestamp) -> list[Row]:
        """The rows of the update, which the log ordered at ``time``; the head is first."""
        rows = [
            Row(kind, key, value(time), self.version, time, 1) for kind, key, value in self._timed
        ]
        rows += (row._replace(time=time) for row in self._objects)
        return rows


def rows_of(update: Update) -> list[Row]:
    return Unordered(update).at(update.time)


def _rows_of_changes(changes: Iterable[Change], version: int) -> Iterator[Row]:
    for change in changes:
        if change.old is None and change.new is None:
            raise ValueError(
                f"a change of {change.kind} {change.key.hex()} from nothing to nothing"
            )
        for value, diff in ((change.old, -1), (change.new, 1)):
            if value is not None:
                yield Row(change.kind, change.key, value, version, MIN_TIMESTAMP, diff)


def _positions(objects: Sequence[Row]) -> dict[tuple[str, bytes, int, bytes], list[int]]:
    """The positions of each row in descending order; equal rows have several."""
    positions: dict[tuple[str, bytes, int, bytes], list[int]] = {}
    for position in range(len(objects), 0, -1):
        positions.setdefault(sort_key(objects[position - 1]), []).append(position)
    return positions


def _take_positions(
    changes: Iterable[Change], free: Mapping[tuple[str, bytes, int, bytes], list[int]]
) -> Iterator[int]:
    for change in changes:
        for value, diff in ((change.old, -1), (change.new, 1)):
            yield (_ABSENT if value is None else free[change.kind, change.key, diff, value].pop())


def _at_time(data: bytes) -> Callable[[Timestamp], bytes]:
    """A function that returns the record with a time in it, if its format has one."""
    timed = timed_head(data)
    if timed is None:
        return lambda time: data
    head, rest = timed
    return lambda time: head(time) + rest


# -- from rows to updates --------------------------------------------------------------------------


def updates_of(rows: Iterable[Row]) -> tuple[Update, ...]:
    """The updates in ``rows``, sorted by version. Rows of append-only kinds are ignored.

    ``rows`` may be in any order. Raises `CorruptData` if a version is incomplete.
    """
    heads: dict[int, UpdateHead] = {}
    objects: dict[int, list[Row]] = {}
    for row in rows:
        if row.kind == UPDATE:
            with naming(f"the head of version {row.version} of the log"):
                head = decode(row.value, UpdateHead)
            if (row.key, row.diff) != (head_key(row.version), 1) or head.version != row.version:
                raise CorruptData(
                    f"the head of version {head.version} is stored at version {row.version}; "
                    f"{REMEDY}"
                )
            if head.time != row.time or head.version in heads:
                raise CorruptData(
                    f"version {row.version} of the log has two times, or two heads; {REMEDY}"
                )
            heads[row.version] = head
        elif row.kind not in APPEND_ONLY:
            objects.setdefault(row.version, []).append(row)
    if headless := objects.keys() - heads.keys():
        raise CorruptData(f"version {min(headless)} of the log has changes but no head; {REMEDY}")
    return tuple(_joined(heads[number], objects.get(number, [])) for number in sorted(heads))


def updates_between(rows: Iterable[Row], start: int, end: int) -> tuple[Update, ...]:
    """The updates of versions ``start`` to ``end`` − 1. Raises `CorruptData` if one is missing."""
    updates = updates_of(rows)
    if missing := set(range(start, end)) - {update.version for update in updates}:
        raise CorruptData(
            f"the log has a hole: version {min(missing)} is missing between {start} and {end - 1};"
            f" {REMEDY}"
        )
    return updates


def _joined(head: UpdateHead, objects: list[Row]) -> Update:
    objects.sort(key=sort_key)
    positions = [position for _, _, of_entry in head.entries for position in of_entry if position]
    pairs = all(len(of_entry) % 2 == 0 for _, _, of_entry in head.entries)
    if not pairs or sorted(positions) != list(range(1, len(objects) + 1)):
        raise CorruptData(
            f"version {head.version} of the log has {len(objects)} rows of objects, but its head "
            f"lists {len(positions)}; {REMEDY}"
        )
    entries = tuple(
        Entry(verb, arguments, tuple(_changes_at(of_entry, objects, head.version)))
        for verb, arguments, of_entry in head.entries
    )
    return Update(head.version, head.id, head.author, head.member, entries, head.time)


def _changes_at(positions: Sequence[int], objects: Sequence[Row], version: int) -> Iterator[Change]:
    for old_position, new_position in zip(positions[::2], positions[1::2], strict=True):
        old = objects[old_position - 1] if old_position else None
        new = objects[new_position - 1] if new_position else None
        either = old or new
        if (
            either is None
            or (old is not None and old.diff != -1)
            or (new is not None and (new.diff != 1 or new[:2] != either[:2]))
        ):
            raise CorruptData(
                f"the head of version {version} does not match the rows of that version; {REMEDY}"
            )
        old_value = None if old is None else old.value
        yield Change(intern(either.kind), either.key, old_value, None if new is None else new.value)


# -- consolidation ---------------------------------------------------------------------------------


def consolidated(rows: Iterable[Row]) -> list[Row]:
    """The remaining row of each object, by kind and key: the row of its last change.

    ``rows``, in any order, must contain all rows, up to some version, of each object that occurs in
    them. Rows of heads and of append-only kinds are ignored. Raises `CorruptData` if rows do not
    add up.
    """
    objects = sorted((row for row in rows if is_object(row.kind)), key=_by_object)
    remaining_rows: list[Row] = []
    for (kind, key), of_object in groupby(objects, key=_by_object):
        one_object = list(of_object)
        remaining = one_object[0] if len(one_object) == 1 else _remaining(one_object)
        if remaining is None:
            continue
        if remaining.diff != 1:
            raise CorruptData(
                f"the rows of {kind} {key.hex()} do not add up: the log removes twice, or adds "
                f"twice, the row of version {remaining.version}; {REMEDY}"
            )
        remaining_rows.append(remaining)
    return remaining_rows


_by_object, _version = attrgetter("kind", "key"), attrgetter("version")


def _remaining(rows: Sequence[Row]) -> Row | None:
    """The remaining row of one object, or None; a row with diff −1 if the rows do not add up."""
    sums: dict[bytes, int] = {}
    for row in rows:
        sums[row.value] = sums.get(row.value, 0) + row.diff
    values = [value for value, times in sums.items() if times]
    if not values:
        return None
    first = next(row for row in rows if row.value == values[0])
    if len(values) > 1 or sums[values[0]] != 1:
        return first._replace(diff=-1)
    return max((row for row in rows if row.value == values[0] and row.diff == 1), key=_version)


def snapshot_of_rows(version: int, time: Timestamp, rows: Iterable[Row]) -> CatalogSnapshot:
    """The snapshot of ``version``, made at ``time``, from rows that are `consolidated`."""
    kinds: list[tuple[str, tuple[bytes, ...]]] = []
    times: list[tuple[Timestamp, ...]] = []
    for kind, of_kind in groupby(rows, key=lambda row: row.kind):
        objects = list(of_kind)
        kinds.append((intern(kind), tuple([row.value for row in objects])))
        times.append(tuple([row.time for row in objects]))
    return CatalogSnapshot(version, time, tuple(kinds), tuple(times))
