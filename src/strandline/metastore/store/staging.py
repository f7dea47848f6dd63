"""Staging: how rows of one transaction get into a table.

The same rules hold for transactions of clients and for plain changes, inside the SQL transaction
that the caller has open. A transaction may remove or touch a row only if it sees the row, and may
add a name only if it does not see a row of that name. Removed rows, touched rows and added names
all enter its footprint, so that of two concurrent transactions the first to commit wins.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence, Set
from hashlib import sha256
from itertools import takewhile

from strandline.clock import add_milliseconds
from strandline.errors import AlreadyExists, WriteConflict
from strandline.metastore.store import partition_moves, table_places
from strandline.metastore.store import row_queries as queries
from strandline.metastore.store.notifications import (
    NUMBERS,
    WRITE,
    NewEvent,
    NotificationLog,
    WriteEvent,
)
from strandline.metastore.store.partition_moves import PartitionMove, PartitionMoves
from strandline.metastore.store.rows import NewRow, Row, RowKind, new_parameters
from strandline.model.descriptors import Properties
from strandline.model.places import Place
from strandline.sql import Counter
from strandline.transactions import Step, records
from strandline.wire import encode

_ONE_STATEMENT_MS = 10_000
"""The maximum time between two commits that a client makes for one statement."""

_Change = tuple[Sequence[NewRow], Collection[int]]
"""The rows that are added, and the ids of those that are removed."""


class Staging:
    """Rows of one transaction on one table, inside one SQL transaction.

    ``seen`` is what the transaction sees of the table, its own write id included. ``has_staged``
    says whether this object has staged anything. ``if_undone`` is `Database.if_undone`. ``verb`` is
    that of the events: `WRITE` or `INSERT`.
    """

    def __init__(
        self,
        step: Step,
        notifications: NotificationLog,
        *,
        if_undone: Callable[[Callable[[], object]], None],
    ) -> None:
        self._connection = step.connection
        self.if_undone = if_undone
        self._notifications = notifications
        self._may_have_rows = not step.is_first
        self.has_staged = False
        self.event_ids = range(0)
        """The ids of the events of the last change that was staged."""
        self.verb = WRITE
        self.txn_id = step.transaction.txn_id
        self.table_id = step.table_id
        self.write_id = step.write_id
        self.seen = step.seen
        self.catalog_version = step.transaction.catalog_version
        self._time = step.time

    def place(self) -> Place | None:
        """The place of the table, or None if it is not managed or not projected yet."""
        return table_places.place_of(self._connection, self.table_id)

    def visible(self, kind: RowKind, names: Collection[str] | None = None) -> dict[str, Row]:
        """The rows that the transaction sees, by name; with ``names``, only those of them."""
        return queries.visible_rows(
            self._connection, self.table_id, kind, write_ids=self.seen, names=names
        )

    def paths_of_files(self, *, own: bool) -> dict[int, str]:
        """The paths of the table's data files, by file id; ``own``: only files of this write id."""
        if own and not self._may_have_rows:
            return {}
        rows = queries.rows_of_kind(
            self._connection,
            self.table_id,
            RowKind.DATA_FILE,
            write_id=self.write_id if own else None,
        )
        # Imports pyarrow, which takes longer than a command that reads no file.
        from strandline.metastore.store.file_columns import paths_by_id

        return paths_by_id(rows)

    def find_files(self, paths: Collection[str]) -> dict[str, Row]:
        """The data files and delete files of these paths that the transaction sees, by path."""
        if not paths:
            return {}
        data_files = self.visible(RowKind.DATA_FILE, paths)
        rest = [path for path in paths if path not in data_files]
        return data_files | (self.visible(RowKind.DELETE_FILE, rest) if rest else {})

    def own_rows(self, kind: RowKind | None = None) -> list[Row]:
        if not self._may_have_rows:
            return []
        connection, table_id, write_id = self._connection, self.table_id, self.write_id
        if kind is None:
            return queries.rows_of_write(connection, table_id, write_id)
        return queries.rows_of_kind(connection, table_id, kind, write_id=write_id)

    def own_removals(self) -> list[Row]:
        if not self._may_have_rows:
            return []
        row_ids = queries.removed_by_write(self._connection, self.table_id, self.write_id)
        return list(queries.rows_by_id(self._connection, row_ids).values())

    def stage(
        self,
        *,
        add: Sequence[NewRow] = (),
        remove: Collection[int] = (),
        touch: Collection[int] = (),
    ) -> tuple[int, ...]:
        """Add and remove rows, all or nothing; return the ids of the added rows, in order.

        ``remove`` are row ids; ``touch`` are row ids of data files of which rows are deleted.
        Raises `WriteConflict` if the transaction does not see one of these rows, and
        `AlreadyExists` if it sees a row of an added name.
        """
        return self.stage_each([(add, remove)], touch=touch)

    def replace(self, replacements: Mapping[int, NewRow]) -> tuple[int, ...]:
        """`stage_each` for each row that is replaced, by its id; returns the new ids in order."""
        return self.stage_each([([new], [old]) for old, new in replacements.items()])

    def stage_each(
        self, changes: Sequence[_Change], *, touch: Collection[int] = ()
    ) -> tuple[int, ...]:
        """`stage` what each change adds and removes. Each change is an event of its own."""
        add = [row for added, _ in changes for row in added]
        remove = [row_id for _, removed in changes for row_id in removed]
        removed = self._find(remove, "removed")
        touched = self._find(touch, "changed")
        self._refuse_taken_names(add, removed=removed.values())
        footprint = {row_id for row_id, row in (removed | touched).items() if _contended(row.kind)}
        footprint |= {
            _name_id(self.table_id, row.kind, row.name) for row in add if _contended(row.kind)
        }
        self._may_have_rows = self.has_staged = True
        connection, table_id, write_id = self._connection, self.table_id, self.write_id
        taking = [(NUMBERS, len(changes))]
        if add:
            taking.append((queries.ROW_IDS, len(add)))
        last_event, *last_row = Counter.take(connection, *taking)
        self.event_ids = range(last_event - len(changes) + 1, last_event + 1)
        row_ids = range(0)
        if last_row:
            row_ids = range(last_row[0] - len(add) + 1, last_row[0] + 1)
            queries.add_rows(connection, table_id, write_id, add, first=row_ids.start)
        queries.add_removals(connection, table_id, write_id, removed)
        records.add_footprint(connection, self.txn_id, table_id, frozenset(footprint))
        self._log(_events(row_ids.start, changes), last=last_event)
        return tuple(row_ids)

    def set_parameters(self, parameters: Properties) -> None:
        old = self.visible(RowKind.TABLE_PARAMETERS).values()
        # Also if empty: without this row, that of a concurrent writer would count.
        self.stage(add=[new_parameters(parameters)], remove=[row.row_id for row in old])

    def partition_moves(self) -> PartitionMoves:
        return partition_moves.of_table(self._connection, self.table_id)

    def unfinished_moves(self) -> list[PartitionMove]:
        """The moves of dropped partitions whose folders may not have been moved yet."""
        return partition_moves.unfinished(self._connection, self.table_id)

    def record_moves(self, *moves: PartitionMove) -> None:
        """Record the moves of the folders of partitions that this change drops or renames."""
        partition_moves.record(self._connection, self.table_id, *moves)

    def return_move(self, move: PartitionMove, row_id: int) -> None:
        """Record that a folder that was moved aside is back, as that of the row ``row_id``."""
        partition_moves.return_(self._connection, self.table_id, move, row_id)

    def dropped_partitions(self, names: Collection[str] | None) -> tuple[list[Row], list[Row]]:
        """The partitions last dropped under ``names``, or all those of the last drop; statistics.

        The second list has the statistics that were dropped with these partitions.
        """
        dropped = self._dropped(RowKind.PARTITION, names)
        if names is None and dropped:
            last_drop = self._last_drop({remover for _, remover in dropped})
            dropped = [(row, remover) for row, remover in dropped if remover in last_drop]
        last = {row.name: (row, remover) for row, remover in dropped}
        statistics = {
            row.name: row
            for row, remover in self._dropped(RowKind.STATISTICS, last)
            if last[row.name][1] == remover
        }
        return [row for row, _ in last.values()], list(statistics.values())

    def _last_drop(self, removers: Set[int]) -> Set[int]:
        """The last of these write ids, and those before it that belong to the same statement.

        Spark drops the partitions of a statement one by one, so their commits are close in time.
        """
        latest = max(removers)
        ids = set(takewhile(removers.__contains__, range(latest, 0, -1)))
        times = queries.commit_times(self._connection, self.table_id, ids)
        before = times.get(latest)
        for write_id in range(latest - 1, min(ids) - 1, -1):
            time = times.get(write_id)
            if before is None or time is None or before > add_milliseconds(time, _ONE_STATEMENT_MS):
                return set(range(write_id + 1, latest + 1))
            before = time
        return ids

    def _dropped(self, kind: RowKind, names: Collection[str] | None) -> list[tuple[Row, int]]:
        return queries.rows_of_dropped_partitions(
            self._connection, self.table_id, kind, write_ids=self.seen, names=names
        )

    def _log(self, bodies: Sequence[WriteEvent], *, last: int) -> None:
        events = [
            NewEvent(
                verb=self.verb,
                body=encode(body),
                time=self._time,
                txn_id=self.txn_id,
                table_id=self.table_id,
                write_id=self.write_id,
            )
            for body in bodies
        ]
        self._notifications.append(self._connection, events, last=last)

    def _find(self, row_ids: Collection[int], what: str) -> dict[int, Row]:
        if not row_ids:
            return {}
        rows = queries.rows_with_removers(self._connection, row_ids)
        for row_id in row_ids:
            row, removers = rows.get(row_id, (None, []))
            if row is None or row.table_id != self.table_id:
                raise WriteConflict(
                    f"row {row_id} of table {self.table_id} cannot be {what}: there is no such row"
                )
            if not self.seen.valid(row.write_id) or any(map(self.seen.valid, removers)):
                raise WriteConflict(
                    f"row {row_id} ({row.name}) of table {self.table_id} cannot be {what}:"
                    f" transaction {self.txn_id} does not see it; read again, and begin again"
                )
        return {row_id: row for row_id, (row, _) in rows.items()}

    def _refuse_taken_names(self, add: Sequence[NewRow], *, removed: Collection[Row]) -> None:
        names_by_kind: dict[RowKind, set[str]] = {}
        for row in add:
            if not _contended(row.kind):
                continue
            names = names_by_kind.setdefault(row.kind, set())
            if row.name in names:
                raise AlreadyExists(
                    f"duplicate {row.kind.spoken} {row.name!r} for table {self.table_id} (an id); "
                    "add it once"
                )
            names.add(row.name)
        for kind, names in names_by_kind.items():
            # Of each name, one row is visible: a row that is replaced is the one of its name.
            names -= {row.name for row in removed if row.kind is kind}
            for existing_row in self.visible(kind, names).values():
                raise AlreadyExists(
                    f"{kind.spoken} {existing_row.name!r} is already in table {self.table_id} (an "
                    "id); give the new one another name"
                )


def _events(first: int, changes: Sequence[_Change]) -> list[WriteEvent]:
    """One event for each change; the row ids that they add are consecutive from ``first`` on."""
    events = []
    for added, removed in changes:
        ids = tuple(sorted(set(removed)))
        events.append(WriteEvent(first_row_id=first, rows=len(added), removed=ids))
        first += len(added)
    return events


def _contended(kind: RowKind) -> bool:
    """Whether two transactions that remove the same row of this kind, or add one name, conflict."""
    return kind is not RowKind.TABLE_PARAMETERS


def _name_id(table_id: int, kind: RowKind, name: str) -> int:
    """The entry of a name in the footprint: a negative number, since row ids are positive.

    Two names may get the same number (63 bits of a hash), which causes only a needless conflict.
    """
    text = f"{table_id}.{kind.value}.{name}"
    return -1 - (int.from_bytes(sha256(text.encode()).digest()[:8], "big") >> 1)
