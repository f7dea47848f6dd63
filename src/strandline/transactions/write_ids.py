"""Which writes of a table a reader sees, as a value.

A reader must see the same rows for as long as it reads, whatever is committed meanwhile. So it
carries the set of write ids of a table that were committed when it looked, a `ValidWriteIdList`.
Ids are given in order and nearly all of them end committed, so the set is kept as a high-water mark
``hwm`` and the few *exceptions* at or below it:

    committed = {1 … hwm} without the exceptions

An exception is open or aborted. Readers hide both alike: which of the two it is matters for
cleaning up, and is information that may be out of date, never a part of what is visible. Nothing
above ``hwm`` is visible. Id 0 stands for rows that were there before there were transactions, and
is always visible.

What must stay true:

* a list is a value; merging an id gives a new list;
* exceptions ascend strictly and lie in 1 … hwm; the aborted ids are some of them;
* ``min_open`` (the smallest open id, `NO_OPEN` without any) is what was read or derived, not what
  the exceptions would give: Hive stores it apart, and its lists carry values that do not fit. So
  text goes through unchanged. Merging an id derives it again;
* every question costs by the number of exceptions, or its logarithm, never by ``hwm``.

**Comparing.** A cache asks whether its list `covers` that of a reader, not which one is newer: a
newer list need not be a superset.

**Text** is Hive's, to the letter: ``table:hwm:minOpen:open:aborted``. Hive reads an empty text as
"everything is valid"; here it is an error, because a list that got lost must not show uncommitted
rows.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from heapq import merge
from itertools import pairwise
from typing import Self

from strandline.errors import IllegalChange, InvalidInput

NO_OPEN = (1 << 63) - 1
"""The ``min_open`` of a list without open ids."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidWriteIdList:
    """The write ids of one table that a reader sees as committed. ``str()`` gives Hive's text.

    ``table`` (``db.table`` in lower case) occurs in the text only; without it the text says
    ``null``. Raises `InvalidInput` if the ids do not form a list.
    """

    hwm: int
    exceptions: tuple[int, ...] = ()
    aborted_ids: tuple[int, ...] = ()
    min_open: int = NO_OPEN
    table: str | None = None

    def __post_init__(self) -> None:
        if self.table is not None and (not self.table or set(self.table) & set(":$")):
            raise InvalidInput(f"a list cannot be written for a table named {self.table!r}")
        if not 0 <= self.hwm <= NO_OPEN:
            raise InvalidInput(f"a high-water mark lies in 0 … {NO_OPEN}, this is {self.hwm}")
        for ids in (self.exceptions, self.aborted_ids):
            if any(left >= right for left, right in pairwise(ids)):
                raise InvalidInput(f"ids of a list ascend strictly, these do not: {_shown(ids)}")
        if self.exceptions and not (self.exceptions[0] >= 1 and self.exceptions[-1] <= self.hwm):
            raise InvalidInput(
                f"exceptions lie in 1 … {self.hwm} (the high-water mark), these do not: "
                f"{_shown(self.exceptions)}"
            )
        if not all(_contains(self.exceptions, w) for w in self.aborted_ids):
            raise InvalidInput(f"aborted ids must be exceptions too: {_shown(self.aborted_ids)}")

    @classmethod
    def of(cls, hwm: int, *, open_ids: Collection[int] = (), aborted: Collection[int] = ()) -> Self:
        """The list of these ids, in any order."""
        exceptions, done = _sorted_union(open_ids, aborted)
        smallest = _first_open(exceptions, done)
        return cls(hwm=hwm, exceptions=exceptions, aborted_ids=done, min_open=smallest)

    @property
    def open_ids(self) -> tuple[int, ...]:
        """The exceptions that are not known to be aborted, ascending."""
        if not self.aborted_ids:
            return self.exceptions
        aborted = frozenset(self.aborted_ids)
        return tuple(w for w in self.exceptions if w not in aborted)

    # -- predicates

    def valid(self, w: int) -> bool:
        """Whether ``w`` is visible."""
        return w <= self.hwm and not _contains(self.exceptions, w)

    def aborted(self, w: int) -> bool:
        """Whether ``w`` is known to be aborted."""
        return _contains(self.aborted_ids, w)

    # -- comparing

    def canonical(self) -> Self:
        """The smallest list that sees the same ids: the high-water mark is itself committed."""
        hwm, keep = self.hwm, len(self.exceptions)
        while keep and self.exceptions[keep - 1] == hwm:
            hwm, keep = hwm - 1, keep - 1
        if hwm == self.hwm:
            return self
        aborted = self.aborted_ids[: bisect_right(self.aborted_ids, hwm)]
        return self._with(hwm=hwm, exceptions=self.exceptions[:keep], aborted=aborted)

    def covers(self, other: Self) -> bool:
        """Whether everything that ``other`` sees is seen here too."""
        if other.hwm > self.hwm:
            beyond = _count(other.exceptions, self.hwm + 1, other.hwm)
            if beyond < other.hwm - self.hwm:
                return False
        within = self.exceptions[: bisect_right(self.exceptions, other.hwm)]
        return all(_contains(other.exceptions, w) for w in within)

    # -- merging

    def open(self, w: int) -> Self:
        """The list after ``w`` was given out: it and all unheard-of ids below it are open."""
        if w <= self.hwm:
            return self
        exceptions = (*self.exceptions, *range(self.hwm + 1, w + 1))
        return self._with(hwm=w, exceptions=exceptions, aborted=self.aborted_ids)

    def commit(self, ids: Iterable[int]) -> Self:
        """The list after ``ids`` were committed; those that are already change nothing.

        Raises `IllegalChange` for an id that is above ``hwm`` or aborted.
        """
        done = self._known(ids, "committed")
        for w in done:
            if self.aborted(w):
                raise IllegalChange(f"id {w} is aborted, it cannot be committed")
        left = tuple(w for w in self.exceptions if w not in done)
        return self._with(hwm=self.hwm, exceptions=left, aborted=self.aborted_ids)

    def abort(self, ids: Iterable[int]) -> Self:
        """The list after ``ids`` were aborted; those that are already change nothing.

        Raises `IllegalChange` for an id that is above ``hwm`` or committed.
        """
        done = self._known(ids, "aborted")
        for w in done:
            if not _contains(self.exceptions, w):
                raise IllegalChange(f"id {w} is committed, it cannot be aborted")
        aborted = tuple(sorted(done.union(self.aborted_ids)))
        return self._with(hwm=self.hwm, exceptions=self.exceptions, aborted=aborted)

    def without_aborted(self) -> Self:
        """The list with aborted ids as committed: for a reader that has none of their rows."""
        if not self.aborted_ids:
            return self
        return self._with(hwm=self.hwm, exceptions=self.open_ids, aborted=())

    def with_own_write(self, w: int) -> Self:
        """The list of the one who writes as ``w``: its own writes are visible, others' as before.

        Raises `IllegalChange` if ``w`` is aborted.
        """
        return self.open(w).commit((w,))

    def _known(self, ids: Iterable[int], change: str) -> frozenset[int]:
        known = frozenset(ids)
        for w in known:
            if not 1 <= w <= self.hwm:
                raise IllegalChange(
                    f"id {w} cannot be {change} in a list that ends at {self.hwm}: open it first"
                )
        return known

    def _with(self, *, hwm: int, exceptions: tuple[int, ...], aborted: tuple[int, ...]) -> Self:
        smallest = _first_open(exceptions, aborted)
        return replace(self, hwm=hwm, exceptions=exceptions, aborted_ids=aborted, min_open=smallest)

    # -- text

    def __str__(self) -> str:
        name = "null" if self.table is None else self.table
        opened, aborted = (",".join(map(str, ids)) for ids in (self.open_ids, self.aborted_ids))
        return f"{name}:{self.hwm}:{self.min_open}:{opened}:{aborted}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """The list that ``text`` represents; fields that are missing at its end hold no ids."""
        name, _, rest = text.partition(":")
        hwm, smallest, exceptions, aborted = _parse_numbers(text, rest.split(":"))
        table = None if name.lower() == "null" else name
        return cls(
            hwm=hwm, exceptions=exceptions, aborted_ids=aborted, min_open=smallest, table=table
        )


def _parse_numbers(
    text: str, fields: Sequence[str]
) -> tuple[int, int, tuple[int, ...], tuple[int, ...]]:
    """The (hwm, min_open, exceptions, aborted) of the ``fields`` of ``text``."""
    if not 2 <= len(fields) <= 4:
        raise InvalidInput(
            f"{text!r} is not a list of valid ids; it reads [table:]hwm:minOpen:open:aborted"
        )
    hwm, smallest = (_parse_id(text, field) for field in fields[:2])
    parsed = [
        tuple(_parse_id(text, part) for part in field.split(",")) if field else ()
        for field in fields[2:]
    ]
    opened, aborted = (*parsed, (), ())[:2]
    # Merged and not united, so that a duplicate id is noticed.
    return hwm, smallest, tuple(merge(opened, aborted)), aborted


def _parse_id(text: str, part: str) -> int:
    if part.isascii() and part.isdigit() and len(part) <= 19 and int(part) <= NO_OPEN:
        return int(part)
    raise InvalidInput(f"{part!r} in {text!r} is not an id (0 … {NO_OPEN})")


def _sorted_union(
    open_ids: Collection[int], aborted: Collection[int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return tuple(sorted((*open_ids, *aborted))), tuple(sorted(aborted))


def _first_open(exceptions: tuple[int, ...], aborted: tuple[int, ...]) -> int:
    """The smallest exception that is not aborted. ``aborted`` are some of ``exceptions``."""
    for position, w in enumerate(exceptions):
        if position >= len(aborted) or aborted[position] != w:
            return w
    return NO_OPEN


def _contains(ids: tuple[int, ...], w: int) -> bool:
    position = bisect_left(ids, w)
    return position < len(ids) and ids[position] == w


def _count(ids: tuple[int, ...], first: int, last: int) -> int:
    return bisect_right(ids, last) - bisect_left(ids, first)


def _shown(ids: tuple[int, ...]) -> str:
    return ", ".join(map(str, ids[:10])) + (", …" if len(ids) > 10 else "")
