"""Replicas: a table's rows in memory, as an immutable value.

A replica contains the rows of one table, by the write id that added them, the removals of each
write id, and the list of write ids that are committed *here*. It also contains rows of open
transactions, under write ids that are not committed. If the zone of the table has partitions on
other nodes, the replica contains the rows of this node's zone partitions, and the rows that belong
to all partitions (`Row.bucket`). It does not contain rows of statistics (`TableContents`).

    staged:     the rows of a write id are added; the id is open
    committed:  the id counts as committed; the rows do not change
    aborted:    the rows are dropped; after that, it does not matter whether the id is valid

Each event makes a new replica that shares all unchanged parts with the old one. So a reader keeps
using the replica that it took while the next one is made, and the cost is that of the change.

A replica can answer for a list L if every write that is committed in L is committed here. Then all
rows of those write ids are present (a transaction stages before it commits), and no later event can
change them: neither rows nor removals are added under a committed write id. So the answer for L is
the same in every later replica, and is remembered (`Answers`) under the writes of L. The answer for
another list is derived from a remembered one and the writes that only one of the two lists sees.

Readers often come together with lists that differ a little: on a new node, or after a pause. One of
them makes its answer from all writes. The others give way (`strandline.work.keyed_lock`), and
derive theirs.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from operator import attrgetter
from typing import TypeGuard, TypeVar

from immutables import Map

from strandline import work
from strandline.errors import CorruptData
from strandline.metastore.store.rows import TABLE_LEVEL, Row, RowKind
from strandline.metastore.store.table_contents import LeftOut, TableContents
from strandline.model.partitioning import Partition
from strandline.transactions import ValidWriteIdList
from strandline.work.keyed_lock import KeyedLock

ROW_BYTES = 700
"""The memory of a row without its name and body: row, decoded content, entries in answers."""
WRITE_BYTES = 300
REMOVAL_BYTES = 40
REPLICA_BYTES = 2_000

MAX_DIFFERENT = 1_000
"""An answer is derived from another one if their lists differ by at most this many writes."""

_STEP = 500
"""The number of values that are put into a map at once: some half a millisecond."""

K = TypeVar("K")
V = TypeVar("V")

AnswerKey = tuple[int, tuple[int, ...]]
"""The high-water mark and the exceptions of a list."""


@dataclass(frozen=True, slots=True)
class Write:
    """The rows and removals of one write id."""

    rows: tuple[Row, ...] = ()
    removed: tuple[int, ...] = ()
    weight: int = WRITE_BYTES
    """The approximate size in memory, in bytes."""

    def with_more(self, rows: Sequence[Row], removed: Sequence[int]) -> Write:
        texts = sum(2 * len(row.name) + 3 * len(row.body) for row in rows)
        added_bytes = len(rows) * ROW_BYTES + texts + len(removed) * REMOVAL_BYTES
        return Write((*self.rows, *rows), (*self.removed, *removed), self.weight + added_bytes)


_NO_WRITES: Map[int, Write] = Map()


@dataclass(frozen=True, slots=True)
class _Order:
    """Rows in the order of names, rows ``added`` later, and the ids of rows that are ``gone``."""

    rows: list[Row]
    added: tuple[Row, ...] = ()
    gone: frozenset[int] = frozenset()

    def settled(self) -> _Order:
        """The same with all rows in order. Nearly sorted: it costs little more than a copy."""
        gone = self.gone
        rows = [row for row in chain(self.rows, self.added) if row.row_id not in gone]
        rows.sort(key=_by_name)
        return _Order(rows)


class VisibleRows:
    """The rows of one kind that a list sees, all with different names. Immutable.

    The rows for the next list, and what was derived from rows, share what is the same, so they cost
    the size of the difference. Rows are put in order when all of them are read.
    """

    def __init__(
        self,
        by_name: Map[str, Row],
        names_by_id: Map[int, str],
        order: _Order,
        by_partition: Map[Partition, tuple[Row, ...]] | None = None,
    ) -> None:
        self._by_name = by_name
        self._names_by_id = names_by_id
        self._order = order
        self._by_partition = by_partition

    @classmethod
    def of(cls, by_name: dict[str, Row]) -> VisibleRows:
        names_by_id = {row.row_id: name for name, row in by_name.items()}
        order = _Order(sorted(by_name.values(), key=_by_name))
        return cls(_map_of(by_name), _map_of(names_by_id), order)

    def __len__(self) -> int:
        return len(self._by_name)

    def __iter__(self) -> Iterator[Row]:
        """The rows in the order of names."""
        if self._order.added or self._order.gone:
            self._order = self._order.settled()
        return iter(self._order.rows)

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def get(self, name: str) -> Row | None:
        return self._by_name.get(name)

    @property
    def is_partitioned(self) -> bool:
        """Whether `by_partition` is known already."""
        return self._by_partition is not None

    @property
    def by_partition(self) -> Mapping[Partition, Sequence[Row]]:
        """Data files by partition values. The first use reads those of all files."""
        if self._by_partition is None:
            self._by_partition = Map(
                {known: tuple(rows) for known, rows in _partitioned(self).items()}
            )
        return self._by_partition

    def without(self, row_ids: Iterable[int]) -> VisibleRows:
        names = (self._names_by_id.get(row_id) for row_id in row_ids)
        return self._changed([self._by_name[name] for name in names if name is not None], {})

    def with_rows(self, rows: Iterable[Row]) -> VisibleRows:
        """These rows and ``rows``; of two rows with one name, the one with the larger id."""
        coming: dict[str, Row] = {}
        for row in rows:
            older = coming.get(row.name) or self._by_name.get(row.name)
            if older is None or older.row_id < row.row_id:
                coming[row.name] = row
        return self._changed(
            [self._by_name[name] for name in coming if name in self._by_name], coming
        )

    def _changed(self, removed_rows: Sequence[Row], coming: dict[str, Row]) -> VisibleRows:
        if not removed_rows and not coming:
            return self
        with self._by_name.mutate() as by_name, self._names_by_id.mutate() as names_by_id:
            for row in removed_rows:
                del by_name[row.name], names_by_id[row.row_id]
            for name, row in coming.items():
                by_name[name], names_by_id[row.row_id] = row, name
            new_rows, new_ids = by_name.finish(), names_by_id.finish()
        order = self._order  # read once: another thread may put the rows in order meanwhile
        if any(row.row_id in order.gone for row in coming.values()):
            order = order.settled()  # a row that an older list did not see comes back
        order = _Order(
            order.rows,
            (*order.added, *coming.values()),
            order.gone.union(row.row_id for row in removed_rows),
        )
        if len(order.added) + len(order.gone) > MAX_DIFFERENT:
            order = order.settled()
        repartitioned = self._repartitioned(removed_rows, coming.values())
        return VisibleRows(new_rows, new_ids, order, repartitioned)

    def _repartitioned(
        self, removed_rows: Sequence[Row], coming: Iterable[Row]
    ) -> Map[Partition, tuple[Row, ...]] | None:
        if self._by_partition is None:
            return None
        by_partition = self._by_partition.mutate()
        removed_ids = {row.row_id for row in removed_rows}
        for partition in _partitioned(removed_rows):
            remaining_rows = tuple(
                row for row in by_partition.pop(partition) if row.row_id not in removed_ids
            )
            if remaining_rows:
                by_partition[partition] = remaining_rows
        for partition, rows in _partitioned(coming).items():
            by_partition[partition] = (*by_partition.get(partition, ()), *rows)
        return by_partition.finish()


def _partitioned(rows: Iterable[Row]) -> dict[Partition, list[Row]]:
    # Imports pyarrow, which takes longer than a command that reads no file.
    from strandline.metastore.store.file_columns import by_partition

    return by_partition(list(rows))


@dataclass(frozen=True, slots=True)
class Shown:
    """The rows of one kind that the list ``write_ids`` sees.

    ``removed`` are the ids of rows of all kinds that its writes removed. ``hides`` says that a row
    hides an older one of the same name, which becomes visible if the younger row is removed.
    """

    write_ids: ValidWriteIdList
    rows: VisibleRows
    removed: Map[int, None]
    hides: bool


class Answers:
    """The last few answers of each kind, of a replica and of those made from it.

    Safe for threads. A kind does not displace another: a reader of files needs two of them.
    """

    LIMIT = 4

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._answers: defaultdict[RowKind, OrderedDict[AnswerKey, Shown]]
        self._answers = defaultdict(OrderedDict)
        self._making: KeyedLock[RowKind] = KeyedLock()

    def making(self, kind: RowKind) -> AbstractContextManager[object]:
        """The lock of the reader that makes an answer from all writes, or decodes its rows."""
        return self._making.hold(kind)

    def get(self, kind: RowKind, key: AnswerKey) -> Shown | None:
        with self._lock:
            answer = self._answers[kind].get(key)
            if answer is not None:
                self._answers[kind].move_to_end(key)
            return answer

    def of_kind(self, kind: RowKind) -> list[Shown]:
        """The remembered answers of a kind, the most recently used first."""
        with self._lock:
            return list(reversed(self._answers[kind].values()))

    def put(self, kind: RowKind, key: AnswerKey, answer: Shown) -> None:
        """Remember an answer, and forget the least recently used one if there are too many."""
        with self._lock:
            answers = self._answers[kind]
            answers[key] = answer
            answers.move_to_end(key)
            if len(answers) > self.LIMIT:
                answers.popitem(last=False)


@dataclass(frozen=True, slots=True)
class Replica:
    """See the module. It reflects the notification log up to the event ``event_id``.

    ``rows`` and ``size`` (approximate bytes) are totals over ``writes``. ``left_out`` says which
    rows are missing, or is None. ``zone_partitions`` are the partitions whose rows it contains, or
    None for all.
    """

    table_id: int
    event_id: int
    committed: ValidWriteIdList
    writes: Map[int, Write] = _NO_WRITES
    rows: int = 0
    size: int = REPLICA_BYTES
    left_out: LeftOut | None = None
    zone_partitions: frozenset[int] | None = None
    answers: Answers = field(default_factory=Answers, compare=False)

    @classmethod
    def of(
        cls,
        contents: TableContents,
        *,
        table_id: int,
        zone_partitions: frozenset[int] | None = None,
    ) -> Replica:
        rows: defaultdict[int, list[Row]] = defaultdict(list)
        removed: defaultdict[int, list[int]] = defaultdict(list)
        for row in _rows_in(contents.rows, zone_partitions):
            rows[row.write_id].append(row)
        for row_id, write_id in contents.removals:
            removed[write_id].append(row_id)
        writes = {
            write_id: Write().with_more(rows[write_id], removed[write_id])
            for write_id in rows.keys() | removed.keys()
        }
        return cls(
            table_id,
            contents.event_id,
            contents.committed.without_aborted(),
            Map(writes),
            rows=sum(len(write.rows) for write in writes.values()),
            size=REPLICA_BYTES + sum(write.weight for write in writes.values()),
            left_out=contents.left_out,
            zone_partitions=zone_partitions,
        )

    def staged(
        self, event_id: int, write_id: int, rows: Iterable[Row], removed: tuple[int, ...]
    ) -> Replica:
        if self.committed.valid(write_id):
            raise CorruptData(
                f"event {event_id} stages rows of table {self.table_id} under write id {write_id},"
                " which is committed or aborted"
            )
        own_rows = tuple(_rows_in(rows, self.zone_partitions))
        before = self.writes.get(write_id)
        after = (before or Write()).with_more(own_rows, removed)
        return replace(
            self,
            event_id=event_id,
            committed=self.committed.open(write_id),
            writes=self.writes.set(write_id, after),
            rows=self.rows + len(own_rows),
            size=self.size + after.weight - (before.weight if before else 0),
        )

    def with_commit(self, event_id: int, write_id: int) -> Replica:
        committed = self.committed.open(write_id).commit((write_id,))
        return replace(self, event_id=event_id, committed=committed)

    def with_abort(self, event_id: int, write_id: int) -> Replica:
        """The replica after the abort of a write id. Raises `IllegalChange` if it is committed."""
        # The store's lists lose aborted ids when they are cleaned; replicas never list them.
        committed = self.committed.open(write_id).abort((write_id,)).without_aborted()
        aborted_write = self.writes.get(write_id)
        if aborted_write is None:
            return replace(self, event_id=event_id, committed=committed)
        return replace(
            self,
            event_id=event_id,
            committed=committed,
            writes=self.writes.delete(write_id),
            rows=self.rows - len(aborted_write.rows),
            size=self.size - aborted_write.weight,
        )

    def can_tell(self, write_ids: ValidWriteIdList) -> bool:
        """Whether the list's commits are all committed here, and none of its rows are left out.

        May be false for a list from before the removal of an aborted id; the store can answer it.
        """
        is_kept = self.left_out is None or write_ids.covers(self.left_out.write_ids)
        return is_kept and self.committed.covers(write_ids)

    def visible(
        self, kind: RowKind, write_ids: ValidWriteIdList, *, by_partition: bool = False
    ) -> VisibleRows:
        """The rows of a kind that a list sees, by name, in the order of names.

        `can_tell` must be true for the list. ``by_partition`` says that the caller will use
        `VisibleRows.by_partition`.
        """
        least, key = _answer_key(write_ids)
        answer = self.answers.get(kind, key)
        if _serves(answer, by_partition=by_partition):
            return answer.rows
        answer = self._shown_by_another(kind, least)
        if _serves(answer, by_partition=by_partition):
            self.answers.put(kind, key, answer)
            return answer.rows
        is_small = self.rows <= work.AT_ONCE  # the event loop reads these, and must not wait
        with nullcontext() if is_small else self.answers.making(kind):
            answer = (  # the first two: of a reader that had the turn before
                self.answers.get(kind, key)
                or self._shown_by_another(kind, least)
                or self._show(kind, least)
            )
            if by_partition:
                _ = answer.rows.by_partition  # made here, it is part of the answers derived next
            self.answers.put(kind, key, answer)
        return answer.rows

    def known_visible(self, kind: RowKind, write_ids: ValidWriteIdList) -> VisibleRows | None:
        """`visible` if the answer is remembered or the replica is small, else None."""
        least, key = _answer_key(write_ids)
        answer = self.answers.get(kind, key)
        if answer is None and self.rows <= work.AT_ONCE:
            return self.visible(kind, least)
        return None if answer is None else answer.rows

    def _shown_by_another(self, kind: RowKind, write_ids: ValidWriteIdList) -> Shown | None:
        """`_show`, derived from the answer for a list with few writes less or more, if any.

        Readers do not always read in the order in which they took their lists.
        """
        for other in self.answers.of_kind(kind):
            gained = write_ids.gained(other.write_ids, limit=MAX_DIFFERENT)
            if gained is not None:
                return self._shown_after(other, kind, write_ids, gained)
            lost = other.write_ids.gained(write_ids, limit=MAX_DIFFERENT)
            if lost is not None and (shown := self._shown_before(other, write_ids, lost)):
                return shown
        return None

    def _shown_after(
        self, before: Shown, kind: RowKind, write_ids: ValidWriteIdList, gained: Iterable[int]
    ) -> Shown | None:
        """The answer for a list with the writes ``gained`` too; None if it cannot be derived."""
        writes = [write for write in map(self.writes.get, gained) if write is not None]
        newly_removed = {row_id for write in writes for row_id in write.removed}
        removed = before.removed.update(dict.fromkeys(newly_removed))
        added = [
            row
            for write in writes
            for row in write.rows
            if row.kind is kind and row.row_id not in removed
        ]
        rows = before.rows.without(newly_removed)
        if before.hides and rows is not before.rows:
            return None
        shown = rows.with_rows(added)
        hides = before.hides or len(shown) < len(rows) + len(added)
        return Shown(write_ids, shown, removed, hides)

    def _shown_before(
        self,
        after: Shown,
        write_ids: ValidWriteIdList,
        lost_write_ids: Iterable[int],
    ) -> Shown | None:
        """The answer for a list without ``lost_write_ids``; None if it cannot be derived."""
        writes = [write for write in map(self.writes.get, lost_write_ids) if write is not None]
        if after.hides or any(write.removed for write in writes):
            return None  # rows that these writes hid or removed become visible again
        lost_row_ids = (row.row_id for write in writes for row in write.rows)
        return replace(after, write_ids=write_ids, rows=after.rows.without(lost_row_ids))

    def _show(self, kind: RowKind, write_ids: ValidWriteIdList) -> Shown:
        shown: list[Row] = []
        removed: set[int] = set()
        for write_id, write in self.writes.items():
            if write_ids.valid(write_id):
                shown.extend(row for row in write.rows if row.kind is kind)
                removed.update(write.removed)
        shown.sort(key=_by_id)
        visible_rows = [row for row in shown if row.row_id not in removed]
        by_name = {row.name: row for row in visible_rows}
        return Shown(
            write_ids,
            VisibleRows.of(by_name),
            _map_of(dict.fromkeys(removed)),
            len(by_name) < len(visible_rows),
        )


def _rows_in(rows: Iterable[Row], zone_partitions: frozenset[int] | None) -> Iterator[Row]:
    """The rows of these zone partitions (None: all) and of the whole table; no statistics."""
    for row in rows:
        if row.kind is RowKind.STATISTICS:
            continue
        if zone_partitions is None or row.bucket == TABLE_LEVEL or row.bucket in zone_partitions:
            yield row
        else:
            row.compare()  # else a row with a damaged bucket would be missing without an error


def _map_of(values: Mapping[K, V]) -> Map[K, V]:
    """A map with these values, made in steps: the event loop waits during each of them."""
    making = Map[K, V]().mutate()
    items = iter(values.items())
    while some := dict(islice(items, _STEP)):
        making.update(some)
    return making.finish()


def _serves(answer: Shown | None, *, by_partition: bool) -> TypeGuard[Shown]:
    return answer is not None and (answer.rows.is_partitioned or not by_partition)


def _answer_key(write_ids: ValidWriteIdList) -> tuple[ValidWriteIdList, AnswerKey]:
    least = write_ids.canonical()
    return least, (least.hwm, least.exceptions)


_by_id, _by_name = attrgetter("row_id"), attrgetter("name")
