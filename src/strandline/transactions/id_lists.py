"""The common base of the lists of valid transactions and of valid write ids: `IdList`.

A reader must see the same rows for as long as it reads, whatever is committed in the meantime. So
it carries the set of ids that were committed when it began. Ids are assigned in order, and nearly
all of them end up committed. So the set is stored as a high-water mark ``hwm`` and the few
*exceptions* at or below it:

    committed = {1 … hwm} without the exceptions

An exception is open or aborted. Readers hide both alike. Which of the two it is matters only for
cleaning up, may be out of date, and never affects what is visible. Nothing above ``hwm`` is
visible. Id 0 means rows that were there before there were transactions; it is always visible.

What must stay true:

* A list is a value; merging an id gives a new list.
* Exceptions ascend strictly and are in 1 … hwm. The aborted ids are a subset of them.
* ``min_open`` (the smallest open id, or `NO_OPEN`) is the value that was read or derived, not what
  the exceptions imply: Hive stores it separately, and its lists contain values that do not match.
  So text round-trips unchanged. Merging an id derives it again.
* A predicate costs the logarithm of the number of exceptions. Making, merging, comparing and
  parsing a list costs about the number of its exceptions or characters. Nothing costs ``hwm``.

**Comparing.** Two lists see the same ids exactly if their canonical forms are equal. A cache asks
whether its list `covers` that of a reader, not which list is newer: a newer list need not be a
superset. Hive's own comparison is right about equality and wrong about the order of some lists.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from heapq import merge
from operator import lt
from typing import Any, Self

from strandline.errors import IllegalChange, InvalidInput, LimitExceeded

NO_OPEN = (1 << 63) - 1
"""The ``min_open`` of a list without open ids."""
MAX_TEXT = 64 << 20
"""The maximum length, in characters, of a text that is parsed."""
MAX_OPENED = 10_000_000
"""The maximum number of ids that one call of `IdList.open` adds to the exceptions."""

_IDS = re.compile(r"[0-9]{1,19}(?:,[0-9]{1,19})*")
_SHOWN_IDS = 10
_SHOWN_CHARACTERS = 80


class RangeResponse(Enum):
    """For how many ids of a range a predicate holds."""

    NONE = 0
    SOME = 1
    ALL = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class IdList:
    """See the module docstring. Raises `InvalidInput` if the ids do not form a list."""

    hwm: int
    exceptions: tuple[int, ...] = ()
    aborted_ids: tuple[int, ...] = ()
    min_open: int = NO_OPEN

    def __post_init__(self) -> None:
        if not 0 <= self.hwm <= NO_OPEN:
            raise InvalidInput(
                f"a high-water mark must be in 0 … {NO_OPEN}, this one is {self.hwm}"
            )
        for ids in (self.exceptions, self.aborted_ids):
            if not all(map(lt, ids, ids[1:])):
                raise InvalidInput(
                    f"the ids of a list must be strictly ascending, these are not: {_shown(ids)}"
                )
        if self.exceptions and not (self.exceptions[0] >= 1 and self.exceptions[-1] <= self.hwm):
            raise InvalidInput(
                f"exceptions must be in 1 … {self.hwm} (the high-water mark), these are not: "
                f"{_shown(self.exceptions)}"
            )
        if not all(contains(self.exceptions, w) for w in self.aborted_ids):
            raise InvalidInput(f"aborted ids must be exceptions too: {_shown(self.aborted_ids)}")

    @classmethod
    def of(cls, hwm: int, *, open_ids: Collection[int] = (), aborted: Collection[int] = ()) -> Self:
        """The list with these ids, which may be in any order."""
        exceptions, aborted_ids = tuple(sorted((*open_ids, *aborted))), tuple(sorted(aborted))
        smallest = _first_open(exceptions, aborted_ids)
        return cls(hwm=hwm, exceptions=exceptions, aborted_ids=aborted_ids, min_open=smallest)

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
        return w <= self.hwm and not contains(self.exceptions, w)

    def range_valid(self, first: int, last: int) -> RangeResponse:
        """How many of the ids ``first`` … ``last`` are visible."""
        size = _size(first, last)
        if first > self.hwm:
            return RangeResponse.NONE
        hidden = max(0, last - self.hwm) + _count(self.exceptions, first, last)
        return _response(size - hidden, size)

    def aborted(self, w: int) -> bool:
        """Whether ``w`` is known to be aborted."""
        return contains(self.aborted_ids, w)

    def range_aborted(self, first: int, last: int) -> RangeResponse:
        """How many of the ids ``first`` … ``last`` are known to be aborted."""
        return _response(_count(self.aborted_ids, first, last), _size(first, last))

    def valid_base(self, w: int) -> bool:
        """Whether a base file of all writes up to ``w`` has no write that is open or unknown."""
        return w < self.min_open and w <= self.hwm

    # -- comparing

    def canonical(self) -> Self:
        """The smallest list that sees the same ids: the high-water mark is itself committed."""
        hwm, keep = self.hwm, len(self.exceptions)
        while keep and self.exceptions[keep - 1] == hwm:
            hwm, keep = hwm - 1, keep - 1
        return self.up_to(hwm)

    def up_to(self, hwm: int) -> Self:
        """The list without the ids above ``hwm``."""
        if hwm >= self.hwm:
            return self
        exceptions, aborted = (
            ids[: bisect_right(ids, hwm)] for ids in (self.exceptions, self.aborted_ids)
        )
        return self.changed(hwm=hwm, exceptions=exceptions, aborted=aborted)

    def sees_same(self, other: IdList) -> bool:
        """Whether both lists see the same ids."""
        ours, theirs = self.canonical(), other.canonical()
        return (ours.hwm, ours.exceptions) == (theirs.hwm, theirs.exceptions)

    def covers(self, other: IdList) -> bool:
        """Whether this list sees everything that ``other`` sees."""
        if other.hwm > self.hwm:
            beyond = _count(other.exceptions, self.hwm + 1, other.hwm)
            if beyond < other.hwm - self.hwm:
                return False
        within = self.exceptions[: bisect_right(self.exceptions, other.hwm)]
        return all(contains(other.exceptions, w) for w in within)

    def gained(self, before: IdList, *, limit: int) -> list[int] | None:
        """The ids that this list sees and ``before`` does not.

        None if ``before`` sees an id that this list does not, or if there are more than ``limit``.
        """
        above = self.hwm - before.hwm
        if above > _count(self.exceptions, before.hwm + 1, self.hwm) + limit:
            return None
        if len(before.exceptions) > limit or not self.covers(before):
            return None
        within = [w for w in before.exceptions if self.valid(w)]
        return [*within, *(w for w in range(before.hwm + 1, self.hwm + 1) if self.valid(w))]

    # -- merging

    def open(self, w: int) -> Self:
        """The list after ``w`` was assigned: ``w`` and all ids between ``hwm`` and it are open.

        Raises `LimitExceeded` if these are more than `MAX_OPENED`.
        """
        if w <= self.hwm:
            return self
        if w - self.hwm > MAX_OPENED:
            raise LimitExceeded(
                f"a list that ends at {self.hwm} cannot continue with {w}: at most {MAX_OPENED} "
                "ids are opened at once; read the list again"
            )
        exceptions = (*self.exceptions, *range(self.hwm + 1, w + 1))
        return self.changed(hwm=w, exceptions=exceptions, aborted=self.aborted_ids)

    def commit(self, ids: Iterable[int]) -> Self:
        """The list after ``ids`` were committed; ids that are committed already change nothing.

        Raises `IllegalChange` for an id that is above ``hwm`` or aborted.
        """
        committed = self._checked_ids(ids, "committed")
        for w in committed:
            if self.aborted(w):
                raise IllegalChange(f"id {w} is aborted, it cannot be committed")
        remaining = tuple(w for w in self.exceptions if w not in committed)
        return self.changed(hwm=self.hwm, exceptions=remaining, aborted=self.aborted_ids)

    def abort(self, ids: Iterable[int]) -> Self:
        """The list after ``ids`` were aborted; ids that are aborted already change nothing.

        Raises `IllegalChange` for an id that is above ``hwm`` or committed.
        """
        checked_ids = self._checked_ids(ids, "aborted")
        for w in checked_ids:
            if not contains(self.exceptions, w):
                raise IllegalChange(f"id {w} is committed, it cannot be aborted")
        aborted = tuple(sorted(checked_ids.union(self.aborted_ids)))
        return self.changed(hwm=self.hwm, exceptions=self.exceptions, aborted=aborted)

    def without_aborted(self) -> Self:
        """The list with aborted ids as committed: for a reader that gets none of their rows."""
        if not self.aborted_ids:
            return self
        return self.changed(hwm=self.hwm, exceptions=self.open_ids, aborted=())

    def with_own_write(self, w: int) -> Self:
        """The list of the writer of ``w``: its own writes are visible, others' are as before.

        Raises `IllegalChange` if ``w`` is aborted, `LimitExceeded` if `open` does.
        """
        if w == self.hwm + 1:  # as with every first write: one list is made, not two
            return self.changed(hwm=w, exceptions=self.exceptions, aborted=self.aborted_ids)
        return self.open(w).commit((w,))

    def _checked_ids(self, ids: Iterable[int], change: str) -> frozenset[int]:
        distinct_ids = frozenset(ids)
        for w in distinct_ids:
            if not 1 <= w <= self.hwm:
                raise IllegalChange(
                    f"id {w} cannot be {change} in a list that ends at {self.hwm}: open it first"
                )
        return distinct_ids

    def changed(self, *, hwm: int, exceptions: tuple[int, ...], aborted: tuple[int, ...]) -> Self:
        """The list with other ids; the smallest open id is derived from them."""
        smallest = _first_open(exceptions, aborted)
        return replace(self, hwm=hwm, exceptions=exceptions, aborted_ids=aborted, min_open=smallest)

    # -- text

    @classmethod
    def of_text(cls, text: str, parts: Sequence[str], **others: Any) -> Self:
        """The list whose ids are in ``parts`` of ``text``; missing parts at the end mean no ids.

        ``others`` are the fields of a subclass. Raises `InvalidInput`, and `LimitExceeded`.
        """
        _refuse_no_text(text)
        if not 2 <= len(parts) <= 4:
            raise InvalidInput(
                f"{_shortened(text)} is not a list of valid ids; it reads"
                " [table:]hwm:minOpen:open:aborted"
            )
        hwm, smallest = (_parse_id(text, part) for part in parts[:2])
        opened, aborted = (*(_parse_ids(text, part) for part in parts[2:]), (), ())[:2]
        # Merged and not united, so that a duplicate id is noticed.
        exceptions = tuple(merge(opened, aborted))
        return cls(hwm=hwm, exceptions=exceptions, aborted_ids=aborted, min_open=smallest, **others)

    def numbers(self) -> str:
        """The text of the four fields, in Hive's form: ``hwm:minOpen:open:aborted``."""
        opened, aborted = (",".join(map(str, ids)) for ids in (self.open_ids, self.aborted_ids))
        return f"{self.hwm}:{self.min_open}:{opened}:{aborted}"


def _refuse_no_text(text: str) -> None:
    """Raise `InvalidInput` for an empty text, `LimitExceeded` for more than `MAX_TEXT` characters.

    Hive reads an empty text as "everything is valid". A list that got lost must not make
    uncommitted rows visible.
    """
    if not text:
        raise InvalidInput("an empty text is not a list of valid ids; send the list that was read")
    if len(text) > MAX_TEXT:
        raise LimitExceeded(
            f"the text of a list has at most {MAX_TEXT} characters, this one has {len(text)}"
        )


def _parse_id(text: str, part: str) -> int:
    """The id that ``part`` of ``text`` spells. Raises `InvalidInput`."""
    if part.isascii() and part.isdigit() and len(part) <= 19 and int(part) <= NO_OPEN:
        return int(part)
    raise InvalidInput(f"{_shortened(part)} in {_shortened(text)} is not an id (0 … {NO_OPEN})")


def _parse_ids(text: str, field: str) -> tuple[int, ...]:
    if not field:
        return ()
    if _IDS.fullmatch(field):
        ids = tuple(map(int, field.split(",")))
        if max(ids) <= NO_OPEN:
            return ids
    # Raises at the first wrong one.
    return tuple(_parse_id(text, part) for part in field.split(","))


def _shortened(text: str) -> str:
    """``text`` as messages quote it: cut after the first characters."""
    if len(text) <= _SHOWN_CHARACTERS:
        return repr(text)
    return f"{text[:_SHOWN_CHARACTERS]!r}… ({len(text)} characters)"


def contains(ids: tuple[int, ...], w: int) -> bool:
    """Whether ``w`` is one of ``ids``, which ascend."""
    position = bisect_left(ids, w)
    return position < len(ids) and ids[position] == w


def _first_open(exceptions: tuple[int, ...], aborted: tuple[int, ...]) -> int:
    """The smallest exception that is not aborted, or `NO_OPEN`. ``aborted`` is a subset."""
    for position, w in enumerate(exceptions):
        if position >= len(aborted) or aborted[position] != w:
            return w
    return NO_OPEN


def _count(ids: tuple[int, ...], first: int, last: int) -> int:
    return bisect_right(ids, last) - bisect_left(ids, first)


def _size(first: int, last: int) -> int:
    if first > last:
        raise InvalidInput(f"{first} … {last} is not a range of ids")
    return last - first + 1


def _response(count: int, size: int) -> RangeResponse:
    if count <= 0:
        return RangeResponse.NONE
    return RangeResponse.ALL if count == size else RangeResponse.SOME


def _shown(ids: tuple[int, ...]) -> str:
    return ", ".join(map(str, ids[:_SHOWN_IDS])) + (", …" if len(ids) > _SHOWN_IDS else "")
