"""`ObjectStore`: the truth for what DML changes, and `SqlObjectStore`, which keeps it in SQL.

The model is in `rows`: rows and removals, each under a write id, visible according to the reader's
list. The store adds the two ways to write them:

* *staging* stores rows and removals under the write id of an open transaction. Until it commits,
  only that transaction sees them;
* a *plain change* serves clients that do not know transactions: it begins, stages and commits in
  one SQL transaction, so that partition lists can be read as of a time too.

What must stay true: a transaction may remove a row only if it sees it. The footprint of a
transaction contains each row that it removes or *touches* (deletes rows of the data file) and each
name that it adds: of two concurrent transactions whose footprints overlap, the first to commit
wins. Table parameters are not part of the footprint, since two writers that count the same table
are no conflict; the newest row counts. Each staging is one event of the notification log. Every
write compares the fence first.

Rows of aborted transactions are removed in the background (`aborted_rows`), and so are rows whose
removal every snapshot sees (`cleaning`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Container, Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager, contextmanager, suppress
from itertools import chain, islice
from typing import Protocol

from sqlalchemy import Connection

from strandline import faults
from strandline.clock import Timestamp
from strandline.metastore.store import partition_moves, table_places
from strandline.metastore.store import row_queries as queries
from strandline.metastore.store.data_history import DataCommit, data_commits
from strandline.metastore.store.notifications import NUMBERS, NotificationLog, WriteEvent
from strandline.metastore.store.partition_moves import PartitionMove, PartitionMoves
from strandline.metastore.store.rows import PartitionRow, Row, RowKind
from strandline.metastore.store.staging import Staging
from strandline.metastore.store.store_folders import StoreFolders
from strandline.metastore.store.table_contents import TableContents, table_contents
from strandline.model.descriptors import Properties
from strandline.model.partitioning import Partition
from strandline.model.places import Place
from strandline.sql import Database, Query
from strandline.transactions import Step, Transactions, ValidWriteIdList
from strandline.transactions.list_records import write_ids_at

_PATHS_AHEAD = 4
"""The maximum number of paths to look up ahead: each number of them is a prepared statement."""


CarriesOut = Callable[
    [list[PartitionMove], Place | None, Container[str], Callable[[], None]], Sequence[PartitionMove]
]


class ProjectsDdl(Protocol):
    """Projects the catalog's versions into the notification log."""

    def project_on(self, connection: Connection, version: int) -> None:
        """Project up to ``version`` in this transaction; `Behind` if it needs one of its own."""


class _NothingStaged(Exception):
    """Undoes a plain change that would commit nothing."""


class ObjectStore(ABC):
    """What a node's memory serves as the store does. Safe to use from several threads."""

    @abstractmethod
    def rows(
        self,
        table_id: int,
        kind: RowKind,
        *,
        write_ids: ValidWriteIdList | None,
        names: Collection[str] | None = None,
        like: str | None = None,
        limit: int | None = None,
    ) -> list[Row]:
        """The visible rows of a table, ordered by name; with ``names``, only those of these names.

        With ``like``, a pattern of SQL's LIKE with ``!`` as its escape, rows with names that do
        not match may be left out; with ``limit``, rows after the first that many, in the
        database's order of texts. Both have no effect if there are ``names``.
        ``write_ids`` is the reader's list; None means all that is committed now. Raises
        `VersionNotFound` if the list is older than the last cleaning of the table.
        """

    def data_files(
        self,
        table_id: int,
        *,
        write_ids: ValidWriteIdList,
        partitions: Container[Partition] | None = None,
    ) -> list[Row]:
        """The visible data files, ordered by path; with ``partitions``, only those in these."""
        rows = self.rows(table_id, RowKind.DATA_FILE, write_ids=write_ids)
        if partitions is None:
            return rows
        # Imports pyarrow, which takes longer than a command that reads no file.
        from strandline.metastore.store.file_columns import by_partition

        wanted_rows = (of_key for key, of_key in by_partition(rows).items() if key in partitions)
        return sorted(chain.from_iterable(wanted_rows), key=lambda row: row.name)

    @abstractmethod
    def change(self, table_id: int, *, author: str) -> AbstractContextManager[Staging]:
        """A plain change of a table; undone if the block raises, or stages nothing."""

    def location(self, table_id: int) -> str | None:
        """The current URI or path of a managed table's folder, or None if it has no place."""
        return self.locations([table_id]).get(table_id)

    @abstractmethod
    def locations(self, table_ids: Collection[int]) -> dict[int, str]:
        """`location` of each of these tables that has a place, read together."""

    def set_parameters(self, table_id: int, parameters: Properties, *, author: str) -> None:
        """Replace the parameters of a table that count or date its content, in a plain change."""
        with self.change(table_id, author=author) as change:
            change.set_parameters(parameters)


class SqlObjectStore(ObjectStore):
    """The object store in SQL. Several processes may use the same database.

    ``projector`` projects the DDL that a plain change relies on before the change.
    """

    def __init__(
        self,
        database: Database,
        transactions: Transactions,
        notifications: NotificationLog,
        *,
        folders: StoreFolders,
        projector: ProjectsDdl,
    ) -> None:
        self._database = database
        self.transactions = transactions
        self.notifications = notifications
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
        like: str | None = None,
        limit: int | None = None,
    ) -> list[Row]:
        first = () if write_ids is None else (queries.kept_query(table_id),)
        with self._database.read(first=first) as connection:
            if write_ids is None:
                write_ids = write_ids_at(connection, table_id, at=None)
            else:
                queries.require_kept(connection, table_id, write_ids)
            visible = queries.visible_rows(
                connection,
                table_id,
                kind,
                write_ids=write_ids,
                names=names,
                like=like,
                limit=limit,
            )
        return list(visible.values())

    def locations(self, table_ids: Collection[int]) -> dict[int, str]:
        places = self.places_by_id(table_ids)
        return {table_id: self._folders.location(place) for table_id, place in places.items()}

    def places_by_id(self, table_ids: Collection[int]) -> dict[int, Place]:
        """The places of those among ``table_ids`` that have one."""
        answers = self._database.answers(table_places.places_queries(table_ids))
        return table_places.by_id(chain.from_iterable(answers))

    def unfinished_moves(self) -> frozenset[tuple[int, PartitionMove]]:
        """Each unfinished move, with the id of its table; see `finish_moves`."""
        with self._database.read() as connection:
            return partition_moves.all_unfinished(connection)

    def finish_moves(self, table_id: int, moves: Set[PartitionMove], carry_out: CarriesOut) -> None:
        """Carry out the unfinished ones of these moves of a table, while other writers wait.

        ``carry_out`` gets them, the place of the table, those among their locations that present
        partitions have, and `Database.check_write`. It returns the moves that it has finished.
        """
        # If a power cut loses this, the moves are repeated and found done. Not so a purge: its
        # folder is deleted next, and files that a client writes there later look like its own.
        purges = any(move.target == partition_moves.PURGED for move in moves)
        with self._database.guarded_write(is_synced=purges) as connection:
            unfinished = partition_moves.unfinished(connection, table_id)
            wanted = [move for move in unfinished if move in moves]
            if wanted:
                place = table_places.place_of(connection, table_id)
                locations = (at for move in wanted for at in (move.location, move.target))
                present = queries.visible_rows(
                    connection,
                    table_id,
                    RowKind.PARTITION,
                    write_ids=write_ids_at(connection, table_id, at=None),
                    names=set(map(partition_moves.name_of, locations)),
                )
                present_locations = {row.as_(PartitionRow).location for row in present.values()}
                check = self._database.check_write
                finished = carry_out(wanted, place, present_locations, check)
                partition_moves.finish(connection, table_id, finished)

    def begin_moves(self, table_id: int, moves: Sequence[PartitionMove]) -> None:
        """Mark moves of a table as unfinished; see `partition_moves`."""
        with self._database.guarded_write() as connection:
            partition_moves.begin(connection, table_id, moves)

    def partition_moves(
        self, table_id: int, *, seen: ValidWriteIdList | None = None
    ) -> PartitionMoves:
        """The moves of those partition folders of a table that are not where their rows say.

        With the list ``seen``, raises `VersionNotFound` if partitions that it sees may have been
        cleaned: their moves are gone too, even if memory still has the partitions.
        """
        with self._database.read() as connection:
            if seen is not None:
                queries.require_kept(connection, table_id, seen)
            return partition_moves.of_table(connection, table_id)

    def require_kept(self, write_ids: Mapping[int, ValidWriteIdList]) -> None:
        """Raise `VersionNotFound` if rows that a list, by table id, sees may have been cleaned."""
        with self._database.read() as connection:
            for table_id in queries.cleaned_tables(connection).keys() & write_ids.keys():
                queries.require_kept(connection, table_id, write_ids[table_id])

    def rows_by_id(self, row_ids: Collection[int]) -> dict[int, Row]:
        """The rows that exist among ``row_ids``, committed or not, removed or not."""
        with self._database.read() as connection:
            return queries.rows_by_id(connection, row_ids)

    def staged_rows(self, table_id: int, write_id: int, event: WriteEvent) -> list[Row]:
        if not event.added:
            return []
        query = queries.staged_query(table_id, write_id, event.added)
        return list(map(queries.row_from, self._database.rows(*query)))

    def contents(self, table_id: int, *, max_bytes: int, max_rows: int) -> TableContents | None:
        """All of a table that a cache needs, at one moment; None if it exceeds the limits."""
        with self._database.read() as connection:
            return table_contents(
                connection,
                table_id,
                event_id=self.notifications.position_on(connection).event_id,
                max_bytes=max_bytes,
                max_rows=max_rows,
            )

    def cleaned_tables(self) -> dict[int, Timestamp]:
        """The cleaning limit, a commit time, of each table that was cleaned."""
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
        """Let an open transaction read a table and then stage; undone if the block raises.

        ``paths`` are those of the data files that it adds, if it does nothing else. Raises what
        `Transactions.writing` raises.
        """

        def first() -> list[Query]:
            ahead = [table_places.place_query(table_id)]
            if 0 < len(paths) <= _PATHS_AHEAD:
                ahead += queries.visible_queries(table_id, RowKind.DATA_FILE, paths)
            return [*ahead, NUMBERS.query, queries.ROW_IDS.query]

        with self.transactions.writing(txn_id, table_id, owner=owner, first=first) as step:
            yield self._staging(step)
        faults.reached("rows-staged")

    @contextmanager
    def change(self, table_id: int, *, author: str) -> Iterator[Staging]:
        with (
            suppress(_NothingStaged),
            self.transactions.autocommit(
                table_id, user=author, prepare=self._projector.project_on
            ) as step,
        ):
            staging = self._staging(step)
            yield staging
            if not staging.has_staged:
                raise _NothingStaged

    def tables_at(self, places: Collection[Place]) -> dict[Place, set[int]]:
        """The ids of the managed tables, including dropped ones, at each of these places."""
        answers = self._database.answers(table_places.tables_at_queries(places))
        return table_places.by_place(chain.from_iterable(answers))

    def data_commits(
        self,
        *,
        since: Timestamp,
        until: Timestamp,
        table_ids: Collection[int] | None,
        user: str | None,
        limit: int,
    ) -> list[DataCommit]:
        """The first ``limit`` commits of `data_history.data_commits`."""
        with self._database.read() as connection:
            commits = data_commits(
                connection, since=since, until=until, table_ids=table_ids, user=user
            )
            return list(islice(commits, limit))

    def _staging(self, step: Step) -> Staging:
        return Staging(step, self.notifications, if_undone=self._database.if_undone)
