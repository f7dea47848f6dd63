"""`Session`: what a client that knows transactions speaks to the metastore.

One interface, two implementations that pass one conformance suite: `LocalSession` in the process of
the store, and `HttpSession` to a node. A session holds nothing that matters: transactions, write
ids and holds are rows of the store under the ids that the client keeps, so an answer that was lost
is settled by asking again with the id.

A **snapshot** is the pair of a catalog version and the valid write ids of tables. Once taken it
gives the same rows for ever, as long as history keeps them.

A write is three calls: `Session.begin`, `Session.stage`, `Session.commit`. Files are named by their
paths, and have one form wherever they are: `DataFile` and `DeleteFile`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from strandline.catalog import Command, VersionInfo
from strandline.catalog.commands import DEFAULT_SCHEMA
from strandline.catalog.differences import Difference
from strandline.catalog.storage_usage import StorageUsage
from strandline.clock import Timestamp
from strandline.errors import InvalidInput
from strandline.metastore.store.rows import DataFile, DeleteFile
from strandline.model.descriptors import TableDescriptor
from strandline.model.identifiers import QualifiedName, normalize
from strandline.transactions import Hold, Holders, Transaction, ValidWriteIdList


@dataclass(frozen=True, slots=True)
class Executed:
    """The version that DDL made (or was judged by), and when it became active."""

    version: int
    time: Timestamp
    applied: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class AsOf:
    """A point in history: a version, or a time, or (neither given) the present."""

    version: int | None = None
    time: Timestamp | None = None

    def __post_init__(self) -> None:
        if self.version is not None and self.time is not None:
            raise InvalidInput("name a version or a time, not both")
        if self.version is not None and not isinstance(self.version, int):
            raise InvalidInput(f"a version is a whole number, not {self.version!r}")
        if self.version is not None and self.version < 0:
            raise InvalidInput(
                f"version {self.version} cannot be: versions are counted from 0, and without "
                "one the present is read"
            )


PRESENT = AsOf()


@dataclass(frozen=True, slots=True)
class ResolvedTable:
    """A table as of one catalog version, and where its files lie now (a URI)."""

    schema: str
    descriptor: TableDescriptor
    catalog_version: int
    location: str

    @property
    def name(self) -> str:
        """``schema.table``, as it is written in a query."""
        return str(QualifiedName(self.schema, self.descriptor.name))


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Tables at one place in history: definitions, places, and which writes are seen of each.

    ``tables`` go by `table_key`, ``write_ids`` by table id; ``time`` is the moment that the
    snapshot stands for.
    """

    catalog_version: int
    time: Timestamp
    tables: Mapping[str, ResolvedTable]
    write_ids: Mapping[int, ValidWriteIdList]

    def table(self, name: str) -> ResolvedTable:
        """The table of that name. Raises `InvalidInput` if the snapshot was not taken of it."""
        table = self.tables.get(table_key(name))
        if table is None:
            names = ", ".join(known.name for known in self.tables.values())
            raise InvalidInput(
                f"the snapshot is of {names or 'no table'}, not of {name}; name it when the"
                " snapshot is taken"
            )
        return table

    def write_ids_of(self, name: str) -> ValidWriteIdList:
        """The writes that are seen of the table of that name. Raises as `table` does."""
        return self.write_ids[self.table(name).descriptor.id]


def table_key(name: str) -> str:
    """The same text for all spellings of a table's name. Raises `InvalidInput`."""
    return normalize(str(QualifiedName.parse(name, default_schema=DEFAULT_SCHEMA)))


def distinct_names(names: Iterable[str]) -> tuple[str, ...]:
    """Each of ``names`` once. Raises `InvalidInput` for one text in the place of several."""
    if isinstance(names, str):
        raise InvalidInput(f"expected a list of names, found {names!r}; write [{names!r}]")
    return tuple(dict.fromkeys(names))


@dataclass(frozen=True, slots=True)
class ColumnBounds:
    """The values of a column that a reader wants.

    They are those from ``lower`` to ``upper``, both included, that are among ``values`` and not
    among ``without``; None is no limit. NULL is not one of them, and with ``null`` it is the only
    one. Texts as in `ColumnStatistics`.
    """

    column_id: int
    lower: str | None = None
    upper: str | None = None
    values: tuple[str, ...] | None = None
    without: tuple[str, ...] = ()
    null: bool = False


@dataclass(frozen=True, slots=True)
class TableFiles:
    """The files that a snapshot of one table is made of, by path."""

    data_files: Sequence[DataFile]
    delete_files: Sequence[DeleteFile]


class Session(ABC):
    """See the module. Safe to use from several threads."""

    # -- catalog -------------------------------------------------------------------------------

    @abstractmethod
    def execute(self, commands: Command | Sequence[Command], *, timeout: float = 30.0) -> Executed:
        """Carry out DDL as one version, all or none. Raises what the commands raise."""

    @abstractmethod
    def table(self, name: str, *, at: AsOf = PRESENT) -> ResolvedTable:
        """The table ``schema.table`` as of ``at``. `ObjectNotFound`, `VersionNotFound`."""

    @abstractmethod
    def tables(self, schema: str, *, at: AsOf = PRESENT) -> list[str]:
        """The names of the tables and views of ``schema``, in order. `ObjectNotFound`."""

    @abstractmethod
    def history(self, *, start: int = 1, end: int | None = None) -> list[VersionInfo]:
        """Versions ``start`` to ``end`` − 1: when, who, what; trimmed ones are marked."""

    @abstractmethod
    def storage_usage(self, table: str | None = None) -> list[StorageUsage]:
        """How many bytes the tables took when that was measured last; by name.

        Of ``table`` alone, each size that was recorded, the oldest first. Nodes measure the folders
        of the store's own tables now and then (the setting ``storage_usage_interval_ms``). What
        was recorded is kept for ``storage_usage_retention_ms``. Where privileges are enforced,
        others than superusers see the tables that they may read. Raises `ObjectNotFound`.
        """

    @abstractmethod
    def compact(self, version: int) -> bool:
        """Trim the catalog's history below ``version``; False if it was trimmed there already."""

    @abstractmethod
    def differences(self, old: AsOf, new: AsOf = PRESENT) -> tuple[Difference, ...]:
        """What differs between two points in history, by object and field. `VersionNotFound`."""

    @abstractmethod
    def undo(self, version: int, *, through: int | None = None, timeout: float = 30.0) -> Executed:
        """Take back what ``version`` did, in a new version, if nothing that it did was changed.

        With ``through`` what all versions from ``version`` to that one did, as one change.

        Raises `Conflict` naming what stands in the way, `AlreadyExists` for a name that was taken,
        `ObjectNotFound`, `IllegalChange`, `VersionNotFound`; then nothing was changed.
        """

    @abstractmethod
    def undrop(self, name: str, *, kind: str = "table", timeout: float = 30.0) -> Executed:
        """Bring back the table (or view, or function) ``schema.name`` that was dropped last.

        For the ``kind`` schema, ``name`` is the schema's: it comes with what was dropped with it.
        With its id, its rows and the indexes that went with it. Raises what `undo` raises.
        """

    @abstractmethod
    def undrop_partitions(self, name: str, *, partitions: Sequence[str] = ()) -> list[str]:
        """Bring partitions of the plain table ``schema.table`` back that were dropped last.

        ``partitions`` are names like ``year=2013/month=1``; without any, those of the last drop.
        Returns the names. Raises `ObjectNotFound` where none was dropped or the files are gone,
        `AlreadyExists` where one is there, `IllegalChange` where other files lie in its folder.
        """

    # -- snapshots -----------------------------------------------------------------------------

    @abstractmethod
    def open(
        self, names: Sequence[str], *, at: AsOf = PRESENT, txn_id: int | None = None
    ) -> Snapshot:
        """The tables ``schema.table`` as of ``at``, or as the transaction ``txn_id`` sees them.

        One question with one answer: names, definitions, places and write ids belong together.
        Raises `ObjectNotFound`, `VersionNotFound`, `TransactionNotFound`, `TransactionFinished`,
        `InvalidInput` for a point in history beside a transaction, `LimitExceeded`.
        """

    @abstractmethod
    def files(
        self,
        table_id: int,
        write_ids: ValidWriteIdList,
        *,
        bounds: Sequence[ColumnBounds] = (),
    ) -> TableFiles:
        """The files of a table at ``write_ids``.

        With ``bounds``, those that may hold rows within all of them, as their partitions and
        statistics tell, and the delete files that touch them. Raises `ObjectNotFound`, and
        `InvalidInput` for a bound that is no value of its column.
        """

    @abstractmethod
    def hold(
        self, kind: str, owner: str | None = None, *, at: Timestamp, ttl_ms: int = 60_000
    ) -> Hold:
        """Keep the history from ``at`` on. `VersionNotFound` below the low watermark.

        ``owner`` says for whom, by default for the session's user; where privileges are enforced,
        a superuser alone names another user, or a role that its own user is no member of.
        """

    @abstractmethod
    def renew_hold(self, hold_id: int, *, ttl_ms: int = 60_000) -> Hold:
        """Keep it longer; `HoldExpired` when it has run out."""

    @abstractmethod
    def release_hold(self, hold_id: int) -> None:
        """Keep it no longer. Nothing happens if it is gone already."""

    @abstractmethod
    def holders(self) -> Holders:
        """Who keeps history, write ids or locks from others, and since when.

        Where privileges are enforced, others than superusers see their own.
        """

    # -- transactions --------------------------------------------------------------------------

    @abstractmethod
    def begin(self, *, read_only: bool = False) -> Transaction:
        """Begin a transaction: it reads, and is judged by, the catalog active now."""

    @abstractmethod
    def transaction(self, txn_id: int) -> Transaction:
        """How the transaction stands: this settles an outcome that was lost."""

    @abstractmethod
    def heartbeat(self, txn_id: int) -> None:
        """Say that its client lives. `TransactionFinished`, `TransactionNotFound`."""

    @abstractmethod
    def stage(
        self,
        txn_id: int,
        table_id: int,
        *,
        add: Sequence[DataFile | DeleteFile] = (),
        remove: Sequence[str] = (),
        touch: Sequence[str] = (),
    ) -> int:
        """Add files to, and remove files from, the table, seen by others when it commits.

        ``remove`` are paths of files that are replaced, ``touch`` those of data files that a delete
        file takes rows from; those that a delete file names by id are taken for such too. Of two
        transactions that name one, the first to commit wins. A data file's id has ``txn_id`` above
        the lowest `FILE_NUMBER_BITS`, so no two can be the same.
        Returns the transaction's write id in the table. The same call once more changes nothing.

        Raises `InvalidInput` for files that cannot be, `WriteConflict` for a path that the
        transaction does not see, `AlreadyExists` for one that it does, `ObjectNotFound`,
        `UnsupportedOperation` for a plain table, `TransactionFinished`, `TransactionNotFound`.
        """

    @abstractmethod
    def commit(self, txn_id: int) -> Transaction:
        """Commit. Succeeds again when repeated. An answer that was lost is settled by the id.

        Raises `WriteConflict` (and it is aborted), `TransactionFinished`, `TransactionNotFound`;
        `UnknownOutcome` only when the store did not answer until the deadline.
        """

    @abstractmethod
    def abort(self, txn_id: int) -> Transaction:
        """Abort: nothing of it will ever be seen. Succeeds again when repeated."""

    @abstractmethod
    def close(self) -> None:
        """Let go of what the session holds open. Transactions go on until they time out."""
