"""Which transactions and which writes a reader sees, as values.

A reader must see the same rows for as long as it reads, whoever commits meanwhile. So it carries
the set of ids that were committed when it looked: `ValidTxnList` holds transaction ids,
`ValidWriteIdList` the write ids of one table. Ids are given in order and nearly all of them end
committed, so the set is kept as a high-water mark ``hwm`` and the few *exceptions* at or below it:

    committed = {1 … hwm} without the exceptions

An exception is open or aborted. Readers hide both alike: which of the two it is matters to whoever
cleans up, and is information that may be out of date, never a part of what is visible. Nothing
above ``hwm`` is visible. Id 0 stands for rows that were there before there were transactions, and
is always visible.

What must stay true:

* a list is a value; merging an id gives a new list;
* exceptions ascend strictly and lie in 1 … hwm; the aborted ids are some of them;
* ``min_open`` (the smallest open id, `NO_OPEN` without any) is what was read or derived, not what
  the exceptions would give: Hive stores it apart, and its lists carry values that do not fit.
  Text therefore goes through unchanged. Whatever merges an id derives it anew;
* every question costs by the number of exceptions, or its logarithm, never by ``hwm``.

**Comparing.** The ids a list does *not* see are its exceptions and then ``hwm + 1``, ``hwm + 2`` …
without end. Where two such sequences first differ, the list with the larger id there has the other
one's id committed: it is the newer. Cutting exceptions off the top turns this into the
lexicographic order of short tuples, and two lists see the same exactly when the tuples are equal.
Hive's own comparison agrees on equality and gets the order wrong when the left list has more
exceptions and the right one ends early; taking it over would let a stale copy pass as the newer
one. Newer does not mean *superset* either, so a cache asks `covers`.

**Text** is Hive's, to the letter: ``hwm:minOpen:open:aborted``, for a table with its name in front,
for a query the lists of its tables behind a transaction id, joined by ``$``. Hive reads an empty
text as "everything is valid"; here it is an error, because a list that got lost must not show
uncommitted rows.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from heapq import merge
from itertools import pairwise
from typing import Self

from strandline.errors import IllegalChange, InvalidInput

NO_OPEN = (1 << 63) - 1
"""The ``min_open`` of a list without open ids."""


class RangeResponse(Enum):
    """How much of a range of ids a predicate holds for."""

    NONE = 0
    SOME = 1
    ALL = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class _IdList:
    """What both kinds of list share. Raises `InvalidInput` where the ids do not make a list."""

    hwm: int
    exceptions: tuple[int, ...] = ()
    aborted_ids: tuple[int, ...] = ()
    min_open: int = NO_OPEN

    def __post_init__(self) -> None:
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

    def range_valid(self, first: int, last: int) -> RangeResponse:
        """How many of the ids ``first`` … ``last`` are visible."""
        if first > self.hwm:
            return RangeResponse.NONE
        hidden = max(0, last - self.hwm) + _count(self.exceptions, first, last)
        return _answer(_size(first, last) - hidden, first, last)

    def aborted(self, w: int) -> bool:
        """Whether ``w`` is known to be aborted."""
        return _contains(self.aborted_ids, w)

    def range_aborted(self, first: int, last: int) -> RangeResponse:
        """How many of the ids ``first`` … ``last`` are known to be aborted."""
        return _answer(_count(self.aborted_ids, first, last), first, last)

    def valid_base(self, w: int) -> bool:
        """Whether files that hold every write up to ``w`` hold nothing that is still open."""
        return w < self.min_open and w <= self.hwm

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

    def compare(self, other: Self) -> int:
        """1 if this list is the newer of the two, -1 if ``other`` is, 0 if they see the same.

        An order in time for lists that were taken from one growing history; between others it
        only says who has the smallest id that the two do not share.
        """
        ours, theirs = self._unseen(), other._unseen()
        return (ours > theirs) - (ours < theirs)

    def _unseen(self) -> tuple[int, ...]:
        """The smallest ids that are not visible, enough of them to tell any two lists apart."""
        least = self.canonical()
        return (*least.exceptions, least.hwm + 1)

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
        """The list in which aborted ids are as good as committed: for who has no row of any."""
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

    def _numbers(self) -> str:
        """The text of the four fields that both kinds of list print."""
        opened = ",".join(map(str, self.open_ids))
        return f"{self.hwm}:{self.min_open}:{opened}:{','.join(map(str, self.aborted_ids))}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidTxnList(_IdList):
    """The transactions that a reader sees as committed. ``str()`` gives Hive's text."""

    def __str__(self) -> str:
        return self._numbers()

    @classmethod
    def parse(cls, text: str) -> Self:
        """The list that ``text`` writes; fields missing at its end hold no ids."""
        hwm, smallest, exceptions, aborted = _parse_numbers(text, text.split(":"))
        return cls(hwm=hwm, exceptions=exceptions, aborted_ids=aborted, min_open=smallest)

    @classmethod
    def derive(
        cls,
        server_hwm: int,
        *,
        unfinished: Sequence[int],
        aborted: Collection[int],
        current: int = 0,
    ) -> Self:
        """The list of transaction ``current`` (0: of nobody) by Hive's rule.

        ``unfinished`` are all ids up to ``server_hwm`` that are open or aborted; ``current`` sees
        itself, and nothing that began after it.
        """
        hidden = [t for t in unfinished if not current or t < current]
        return cls.of(
            min(current, server_hwm) if current else server_hwm,
            open_ids=[t for t in hidden if t not in aborted],
            aborted=[t for t in hidden if t in aborted],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidWriteIdList(_IdList):
    """The write ids of one table that a reader sees as committed. ``str()`` gives Hive's text.

    ``table`` (``db.table`` in lower case) is there for the text alone; in memory a list belongs
    to whoever asked for a table's id. Without a name the text says ``null``.
    """

    table: str | None = None

    def __post_init__(self) -> None:
        # Without arguments `super()` fails here: the dataclass made a new class for its slots.
        super(ValidWriteIdList, self).__post_init__()
        if self.table is not None and (not self.table or set(self.table) & set(":$")):
            raise InvalidInput(f"a list cannot be written for a table named {self.table!r}")

    def __str__(self) -> str:
        return f"{'null' if self.table is None else self.table}:{self._numbers()}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """The list that ``text`` writes; fields missing at its end hold no ids."""
        name, _, rest = text.partition(":")
        hwm, smallest, exceptions, aborted = _parse_numbers(text, rest.split(":"))
        table = None if name.lower() == "null" else name
        return cls(
            hwm=hwm, exceptions=exceptions, aborted_ids=aborted, min_open=smallest, table=table
        )

    @classmethod
    def derive(
        cls,
        table: str | None,
        *,
        txns: ValidTxnList,
        writes: Iterable[tuple[int, int]],
        next_write_id: int | None,
    ) -> Self:
        """What the reader of ``txns`` sees of a table, by Hive's rule.

        ``writes`` are the (transaction, write id) pairs that are kept; an id without a pair was
        purged and counts as committed. ``next_write_id`` is None for a table never written to.
        If no kept write is visible, the list ends at the first hidden one, and ``min_open``
        keeps the value from before that cut.
        """
        rows = sorted((w, txn) for txn, w in writes)
        hwm = max((w for w, txn in rows if txn <= txns.hwm), default=0)
        if hwm <= 0:
            hwm = 0 if next_write_id is None else next_write_id - 1
        rows = [(w, txn) for w, txn in rows if w <= hwm]
        hidden = [(w, txn) for w, txn in rows if not txns.valid(txn)]
        whole = cls.of(
            hwm,
            open_ids=[w for w, txn in hidden if not txns.aborted(txn)],
            aborted=[w for w, txn in hidden if txns.aborted(txn)],
        )
        whole = replace(whole, table=table)
        if not hidden or len(hidden) < len(rows):
            return whole
        first = whole.exceptions[0]
        return replace(
            whole,
            hwm=first,
            exceptions=(first,),
            aborted_ids=() if first == whole.min_open else (first,),
        )

    def named(self, table: str) -> Self:
        """The same list, for the text form of ``table`` (``db.table`` in lower case)."""
        return replace(self, table=table)

    def equivalent(self, other: Self) -> bool:
        """Whether both lists see the same ids of the same table (names compared without case)."""
        ours, theirs = (self.table or "").lower(), (other.table or "").lower()
        return ours == theirs and self.compare(other) == 0


@dataclass(frozen=True, slots=True)
class ValidTxnWriteIdList:
    """The lists of a query's tables, in any order. ``str()`` gives Hive's text."""

    txn_id: int
    lists: tuple[ValidWriteIdList, ...] = ()

    def __str__(self) -> str:
        return "$".join([str(self.txn_id), *map(str, self.lists)])

    @classmethod
    def parse(cls, text: str) -> Self:
        """The lists that ``text`` writes."""
        head, *lists = text.split("$")
        return cls(_parse_id(text, head), tuple(map(ValidWriteIdList.parse, lists)))

    def of_table(self, table: str) -> ValidWriteIdList | None:
        """The list of ``table`` (``db.table``, in any case), None if the query has none."""
        wanted = table.lower()
        return next((own for own in self.lists if (own.table or "").lower() == wanted), None)


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
    # Merged and not united, so that an id that stands twice is found out.
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


def _size(first: int, last: int) -> int:
    if first > last:
        raise InvalidInput(f"{first} … {last} is not a range of ids")
    return last - first + 1


def _answer(count: int, first: int, last: int) -> RangeResponse:
    if count == 0:
        return RangeResponse.NONE
    return RangeResponse.ALL if count == _size(first, last) else RangeResponse.SOME


def _shown(ids: tuple[int, ...]) -> str:
    return ", ".join(map(str, ids[:10])) + (", …" if len(ids) > 10 else "")
