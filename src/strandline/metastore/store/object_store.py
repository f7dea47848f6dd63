"""`ObjectStore`: the truth for what DML changes, and `SqlObjectStore`, which keeps it in SQL.

The model is in `rows`: rows and removals, each under a write id, shown by the
reader's list. The store adds who may put them there:

* *staging* puts rows and removals under the write id of an open transaction. They are stored, and
  visible to that transaction alone until it commits;
* a *plain change* is for clients that know nothing of transactions: one that begins, stages and
  commits in one SQL transaction, so that partition lists too can be read as of a time.

What must stay true: a row is removed only by who sees it; what a transaction removes, or changes
rows behind (*touches*), enters its footprint, and so does each name that it adds: of two
transactions that run at once and name the same, the first to commit wins. Table parameters are
left out of this, since two writers that count the same table are no conflict; the newest row
counts. Each staging is one event of the notification log. Every write compares the fence first.

Rows of aborted transactions are removed in the background (`aborted_rows`), and so is what was
removed before anybody's snapshot (`cleaning`).
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Protocol

from sqlalchemy import Connection

from strandline import faults
from strandline.clock import Timestamp
from strandline.metastore.store import partition_moves, table_places, tables
from strandline.metastore.store import row_queries as queries
from strandline.metastore.store.notifications import (
    NUMBERS,
    NotificationLog,
    WriteEvent,
)
from strandline.metastore.store.partition_moves import PartitionMove, PartitionMoves
from strandline.metastore.store.row_queries import TableContents
from strandline.metastore.store.rows import (
    PARAMETERS_NAME,
    DataFile,
    NewRow,
    Removal,
    Row,
    RowKind,
    TableParametersRow,
)
from strandline.metastore.store.staging import Staged, Staging
from strandline.metastore.store.store_folders import StoreFolders
from strandline.metastore.store.upgrades import STEPS
from strandline.model.descriptors import Properties
from strandline.model.partitioning import Partition
from strandline.model.places import Place
from strandline.sql import Database
from strandline.transactions import Behind, Step, Transactions, ValidWriteIdList
from strandline.transactions.list_records import write_ids_at
from strandline.transactions.tables import LAST_ID

PATIENCE = 30.0
"""Seconds that a plain change waits for the database and for DDL that stands before it."""

_PATHS_AHEAD = 4
"""So many names are looked for ahead: for each number of them, a server keeps a statement."""


class ProjectsDdl(Protocol):
    """Who puts the catalog's versions into the notification log."""

    def project_on(self, connection: Connection, version: int) -> None:
        """Up to ``version``, in this write transaction. Raises `Behind` if it must be its own."""

    def project_up_to(self, version: int) -> None:
        """Up to ``version``, in write transactions of its own."""


class ObjectStore(ABC):
    """See the module. Safe to use from several threads."""

    @abstractmethod
    def rows(
        self,
        table_id: int,
        kind: RowKind,
        *,
        write_ids: ValidWriteIdList | None,
        names: Collection[str] | None = None,
    ) -> list[Row]:
        """The visible rows of a table by name; with ``names``, those that have one of them.

        ``write_ids`` None: what is committed now. Raises `VersionNotFound` for a list that is older
        than what was cleaned.
        """

    def data_files(
        self,
        table_id: int,
        *,
        write_ids: ValidWriteIdList,
        in_partition: Callable[[Partition], bool] | None = None,
    ) -> list[Row]:
        """The visible data files of a table by path, of those partitions that are asked for."""
        rows = self.rows(table_id, RowKind.DATA_FILE, write_ids=write_ids)
        if in_partition is None:
            return rows
        return [row for row in rows if in_partition(row.as_(DataFile).partition)]

    @abstractmethod
    def row(
        self, table_id: int, kind: RowKind, name: str, *, write_ids: ValidWriteIdList | None
    ) -> Row | None:
        """The visible row of that name."""

    @abstractmethod
    def staging(
        self,
        txn_id: int,
        table_id: int,
        *,
        owner: str | None = None,
        paths: Collection[str] = (),
    ) -> AbstractContextManager[Staging]:
        """Where an open transaction looks at a table, and then stages; undone when it raises.

        ``paths`` are those of the data files that it adds, if it does nothing else.
        Raises what `Transactions.writing` raises.
        """

    def stage(
        self,
        txn_id: int,
        table_id: int,
        *,
        add: Sequence[NewRow] = (),
        remove: Collection[int] = (),
        touch: Collection[int] = (),
    ) -> Staged:
        """`Staging.stage` in a `staging` of its own."""
        with self.staging(txn_id, table_id) as staging:
            return staging.stage(add=add, remove=remove, touch=touch)

    @abstractmethod
    def change(self, table_id: int, *, author: str) -> AbstractContextManager[Staging]:
        """A change of a table that is committed when the block ends, undone when it raises."""

    @abstractmethod
    def location(self, table_id: int) -> str | None:
        """Where the files of a managed table lie now, as a URI or path; None if it has no place."""

    @abstractmethod
    def places_by_id(self, table_ids: Collection[int]) -> dict[int, Place]:
        """The places of those among ``table_ids`` that have one."""

    @abstractmethod
    def tables_at(self, places: Collection[Place]) -> dict[Place, set[int]]:
        """The ids of the managed tables, dropped ones too, that lie at each of these places."""

    @abstractmethod
    def partition_moves(self, table_id: int) -> PartitionMoves:
        """Where the folders of a table's partitions are that do not lie where their rows say."""

    @abstractmethod
    def tables_with_unfinished_moves(self) -> list[int]:
        """The tables that dropped partitions whose folders may still be where they were."""

    @abstractmethod
    def finish_moves(
        self, table_id: int, carry_out: Callable[[list[PartitionMove]], Sequence[PartitionMove]]
    ) -> None:
        """Have the unfinished moves of a table carried out while all other writers wait.

        ``carry_out`` gives those of them that are finished.
        """

    @abstractmethod
    def rows_of_write(self, table_id: int, write_id: int) -> tuple[list[Row], list[Removal]]:
        """All that a write id added to and removed from a table, committed or not."""

    @abstractmethod
    def rows_by_id(self, row_ids: Collection[int]) -> dict[int, Row]:
        """The rows that exist among ``row_ids``, committed or not, removed or not."""

    # -- what memory knows, for callers that may not wait

    @abstractmethod
    def is_level(self) -> bool:
        """Whether memory is known to have all that was committed. Does not wait."""

    @abstractmethod
    def known_rows(
        self,
        table_id: int,
        kind: RowKind,
        *,
        write_ids: ValidWriteIdList | None,
        names: Collection[str] | None = None,
    ) -> list[Row] | None:
        """`rows`, if memory can answer without waiting or going over much; else None."""

    @abstractmethod
    def known_location(self, table_id: int, *, version: int, is_last: bool = False) -> str | None:
        """`location`, if memory can prove it without waiting; else None.

        ``version`` is the catalog version that the caller reads, whose DDL may have moved it;
        ``is_last`` says that the log had none behind it when the caller's request began.
        """

    @abstractmethod
    def mark(self) -> int | None:
        """A number that stays the same only while answers about the present do.

        None where that cannot be told without waiting. A catalog that lies elsewhere, or that has a
        delay, moves on without it.
        """

    @abstractmethod
    def look(self) -> bool:
        """Bring memory level with what is committed now; False where that would take long."""

    @abstractmethod
    def look_again(self) -> None:
        """Another process has written for this node: read no present from memory before a look."""

    def parameters(self, table_id: int, *, write_ids: ValidWriteIdList | None) -> Properties:
        """The parameters of a table that count or date its content; empty if none were set."""
        kind = RowKind.TABLE_PARAMETERS
        row = self.row(table_id, kind, PARAMETERS_NAME, write_ids=write_ids)
        return () if row is None else row.as_(TableParametersRow).parameters

    def set_parameters(self, table_id: int, parameters: Properties, *, author: str) -> None:
        """Make these the parameters of a table, in a plain change."""
        with self.change(table_id, author=author) as change:
            change.set_parameters(parameters)


class SqlObjectStore(ObjectStore):
    """The store itself. Several processes may have one on the same database.

    ``guard`` is called inside every write transaction and raises if this process may no longer
    write. ``projector`` puts DDL into the notification log before a plain change that relies on it.
    """

    def __init__(
        self,
        database: Database,
        transactions: Transactions,
        notifications: NotificationLog,
        *,
        guard: Callable[[Connection], None],
        folders: StoreFolders,
        projector: ProjectsDdl | None = None,
    ) -> None:
        database.ensure_schema(tables.PART, tables.VERSION, tables.METADATA, steps=STEPS)
        self._database = database
        self._transactions = transactions
        self._notifications = notifications
        self._guard = guard
        self._folders = folders
        self._projector = projector

    # -- reading

    def rows(
        self,
        table_id: int,
        kind: RowKind,
        *,
        write_ids: ValidWriteIdList | None,
        names: Collection[str] | None = None,
    ) -> list[Row]:
        with self._database.read() as connection:
            if write_ids is None:
                write_ids = write_ids_at(connection, table_id, at=None)
            else:
                queries.require_kept(connection, table_id, write_ids)
            visible = queries.visible_rows(
                connection, table_id, kind, write_ids=write_ids, names=names
            )
        return list(visible.values())

    def row(
        self, table_id: int, kind: RowKind, name: str, *, write_ids: ValidWriteIdList | None
    ) -> Row | None:
        rows = self.rows(table_id, kind, write_ids=write_ids, names=(name,))
        return rows[0] if rows else None

    def location(self, table_id: int) -> str | None:
        if not 0 < table_id <= LAST_ID:
            return None
        rows = self._database.rows(*table_places.place_query(table_id))
        return self._folders.location(Place(rows[0][0])) if rows else None

    def is_level(self) -> bool:
        return True

    def known_rows(
        self,
        table_id: int,
        kind: RowKind,
        *,
        write_ids: ValidWriteIdList | None,
        names: Collection[str] | None = None,
    ) -> list[Row] | None:
        return None

    def known_location(self, table_id: int, *, version: int, is_last: bool = False) -> str | None:
        return None

    def mark(self) -> int | None:
        return self._notifications.mark() if self._notifications.mark_is_proof else None

    def look(self) -> bool:
        return True

    def look_again(self) -> None:
        """Nothing: this store has no memory."""

    def places_by_id(self, table_ids: Collection[int]) -> dict[int, Place]:
        with self._database.read() as connection:
            return table_places.places_by_id(connection, table_ids)

    def tables_with_unfinished_moves(self) -> list[int]:
        with self._database.read() as connection:
            return partition_moves.tables_with_unfinished(connection)

    def finish_moves(
        self, table_id: int, carry_out: Callable[[list[PartitionMove]], Sequence[PartitionMove]]
    ) -> None:
        # Lost in a power cut, the moves are met again and found done.
        with self._database.write_unsynced() as connection:
            self._guard(connection)
            moves = partition_moves.unfinished(connection, table_id)
            partition_moves.finish(connection, table_id, carry_out(moves) if moves else ())

    def partition_moves(self, table_id: int) -> PartitionMoves:
        with self._database.read() as connection:
            return partition_moves.of_table(connection, table_id)

    def rows_of_write(self, table_id: int, write_id: int) -> tuple[list[Row], list[Removal]]:
        with self._database.read() as connection:
            rows = queries.rows_of_write(connection, table_id, write_id)
            return rows, queries.removals_of_write(connection, table_id, write_id)

    def rows_by_id(self, row_ids: Collection[int]) -> dict[int, Row]:
        with self._database.read() as connection:
            return queries.rows_by_id(connection, row_ids)

    def staged_rows(self, table_id: int, write_id: int, event: WriteEvent) -> list[Row]:
        """The rows that one staging added."""
        ids = range(event.first_row_id, event.first_row_id + event.rows)
        if not ids:
            return []
        with self._database.read() as connection:
            return queries.rows_of_write(connection, table_id, write_id, ids=ids)

    def contents(self, table_id: int, *, max_bytes: int, max_rows: int) -> TableContents | None:
        """Everything of a table for a cache, at one point; None if it exceeds the limits."""
        with self._database.read() as connection:
            return queries.table_contents(
                connection,
                table_id,
                event_id=self._notifications.head_on(connection),
                max_bytes=max_bytes,
                max_rows=max_rows,
            )

    def cleaned_tables(self) -> dict[int, Timestamp]:
        """The tables of which something was cleaned, and up to which commit time."""
        with self._database.read() as connection:
            return queries.cleaned_tables(connection)

    # -- writing

    @contextmanager
    def staging(
        self,
        txn_id: int,
        table_id: int,
        *,
        owner: str | None = None,
        paths: Collection[str] = (),
    ) -> Iterator[Staging]:
        ahead = [table_places.place_query(table_id)]
        if 0 < len(paths) <= _PATHS_AHEAD:
            ahead += queries.asking_visible(table_id, RowKind.DATA_FILE, paths)
        ahead += [NUMBERS.ahead, queries.ROW_IDS.ahead]
        with self._transactions.writing(txn_id, table_id, owner=owner, ahead=ahead) as step:
            yield Staging(step, self._notifications)
        faults.reached("rows-staged")

    @contextmanager
    def change(self, table_id: int, *, author: str) -> Iterator[Staging]:
        with ExitStack() as opened:
            step = self._begin_change(opened, table_id, author)
            yield Staging(step, self._notifications)

    def tables_at(self, places: Collection[Place]) -> dict[Place, set[int]]:
        queries = table_places.finding_at(places)
        if len(queries) == 1:
            return table_places.by_place(self._database.rows(*queries[0]))
        with self._database.read() as connection:
            return table_places.tables_at(connection, places)

    def _begin_change(self, opened: ExitStack, table_id: int, author: str) -> Step:
        """Enter a transaction on the table in which all DDL before it is projected."""
        deadline = time.monotonic() + PATIENCE
        while True:
            step = None
            try:
                with ExitStack() as attempt:
                    step = attempt.enter_context(
                        self._transactions.autocommit(table_id, user=author)
                    )
                    if self._projector is not None:
                        version = step.transaction.catalog_version
                        self._projector.project_on(step.connection, version)
                    opened.push(attempt.pop_all())
                    return step
            except Behind:
                if self._projector is None or step is None or time.monotonic() > deadline:
                    raise
                self._projector.project_up_to(step.transaction.catalog_version)
