"""`Session`: the interface of the metastore for clients that use transactions.

The interface has two implementations that pass one conformance suite: `LocalSession` in the process
of the store, and `HttpSession` to a node. A session has no state that matters: transactions, write
ids and holds are rows of the store, under ids that the client keeps. So if an answer is lost, the
client settles the outcome by asking again with the id.

A **snapshot** is a catalog version and the list of valid write ids of each table. Once taken, it
always gives the same rows, as long as the history keeps them.

A write is three calls: `Session.begin`, `Session.stage`, `Session.commit`. Files are named by their
paths, and are described by the same classes everywhere: `DataFile` and `DeleteFile`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn, Self

from strandline.catalog import Catalog, Command, VersionInfo
from strandline.catalog.catalog import RESERVED_SCHEMAS
from strandline.catalog.commands import DEFAULT_SCHEMA
from strandline.catalog.configuration import ENFORCE_PRIVILEGES, ParameterValue
from strandline.catalog.differences import Difference
from strandline.catalog.storage_usage import StorageUsage
from strandline.clock import Timestamp
from strandline.config import SettingValue
from strandline.durable.state import ReadOnlyState
from strandline.errors import InvalidInput, UnsupportedOperation
from strandline.metastore.inspection import VerificationReport
from strandline.metastore.store.cleaning import Cleanable
from strandline.metastore.store.data_history import DataCommit
from strandline.metastore.store.rows import DataFile, DeleteFile
from strandline.model.descriptors import TableDescriptor
from strandline.model.identifiers import MAX_USER_LENGTH, QualifiedName, normalize
from strandline.transactions import Hold, Holders, Transaction, ValidWriteIdList

LONGEST_TIMEOUT = 365 * 86_400.0
"""Longer timeouts, such as `math.inf`, are cut to this: clocks, sockets and JSON have limits."""


@dataclass(frozen=True, slots=True)
class Executed:
    """The version that DDL made (or was validated against), and the time it became active."""

    version: int
    time: Timestamp
    applied: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class AsOf:
    """A point in history: a version, a time, or (if neither is given) the present."""

    version: int | None = None
    time: Timestamp | None = None

    def __post_init__(self) -> None:
        if self.version is not None and self.time is not None:
            raise InvalidInput("name a version or a time, not both")
        if isinstance(self.version, bool) or not isinstance(self.version, int | None):
            raise InvalidInput(f"a version is a whole number, not {self.version!r}")
        if self.version is not None and self.version < 0:
            raise InvalidInput(
                f"version {self.version} does not exist: versions start at 0; to read the "
                "present, name no version"
            )
        if isinstance(self.time, bool) or not isinstance(self.time, int | None):
            raise InvalidInput(
                f"a time is a timestamp of strandline.clock, not {self.time!r:.80}; write"
                " AsOf(time=parse_timestamp('2026-11-20T10:00:00Z'))"
            )


PRESENT = AsOf()


@dataclass(frozen=True, slots=True)
class ResolvedTable:
    """A table as of one catalog version, and the present location of its files (a URI)."""

    schema: str
    descriptor: TableDescriptor
    catalog_version: int
    location: str

    def __repr__(self) -> str:
        return f"<ResolvedTable {self.name} in {self.location}, version {self.catalog_version}>"

    @property
    def name(self) -> str:
        """``schema.table``, as written in a query."""
        return str(QualifiedName(self.schema, self.descriptor.name))


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Tables at one point in history: definitions, locations, and the visible writes of each.

    The keys of ``tables`` come from `table_key`; those of ``write_ids`` are table ids. ``time`` is
    the moment of the snapshot.
    """

    catalog_version: int
    time: Timestamp
    tables: Mapping[str, ResolvedTable]
    write_ids: Mapping[int, ValidWriteIdList]

    def table(self, name: str) -> ResolvedTable:
        """The table of that name. Raises `InvalidInput` if the snapshot does not contain it."""
        table = self.tables.get(table_key(name))
        if table is None:
            names = ", ".join(known.name for known in self.tables.values())
            raise InvalidInput(
                f"the snapshot contains {names or 'no table'}, not {name}; name the table when "
                "the snapshot is taken"
            )
        return table

    def write_ids_of(self, name: str) -> ValidWriteIdList:
        """The visible writes of the table of that name. Raises what `table` raises."""
        return self.write_ids[self.table(name).descriptor.id]


def table_key(name: str) -> str:
    """One key for all spellings of a table's name. Raises `InvalidInput`."""
    return normalize(str(QualifiedName.parse(name, default_schema=DEFAULT_SCHEMA)))


def require_user(user: str) -> str:
    """Return the name of a user. Raises `InvalidInput` for an empty one and for another type."""
    if not isinstance(user, str) or not 0 < len(user) <= MAX_USER_LENGTH:
        raise InvalidInput(
            "a session needs the name of its user as a text of 1 to"
            f" {MAX_USER_LENGTH} characters, not {user!r:.80}"
        )
    return user


def time_limit(timeout: float) -> float:
    """The seconds from 0 to `LONGEST_TIMEOUT` that a call may take. Raises `InvalidInput`."""
    if isinstance(timeout, int | float) and not isinstance(timeout, bool):
        seconds = max(min(timeout, LONGEST_TIMEOUT), 0.0)
        if not math.isnan(seconds):
            return seconds
    raise InvalidInput(f"a timeout is a number of seconds, not {timeout!r:.80}")


def distinct_names(names: Iterable[str]) -> tuple[str, ...]:
    """Each of ``names`` once, in order.

    Raises `InvalidInput` if ``names`` is a single text, or has a list in it.
    """
    if isinstance(names, str):
        raise InvalidInput(f"expected a list of names, found {names!r}; write [{names!r}]")
    try:
        return tuple(dict.fromkeys(names))
    except TypeError:
        raise InvalidInput(f"expected names, each a text, found {names!r:.80}") from None


@dataclass(frozen=True, slots=True)
class ColumnBounds:
    """The values of a column that a reader wants.

    They are the values from ``lower`` to ``upper``, both included, that are in ``values`` and not
    in ``without``; None means no limit. They do not include NULL; with ``null``, NULL is the only
    value. Texts are as in `ColumnStatistics`.
    """

    column_id: int
    lower: str | None = None
    upper: str | None = None
    values: tuple[str, ...] | None = None
    without: tuple[str, ...] = ()
    null: bool = False


@dataclass(frozen=True, slots=True)
class TableFiles:
    """The files of a snapshot of one table, ordered by path."""

    data_files: Sequence[DataFile]
    delete_files: Sequence[DeleteFile]


MAX_COMMITS = 1_000
"""The maximum number of commits that one call of `Session.data_history` returns."""


@dataclass(frozen=True, slots=True)
class CatalogStatus:
    """The state of a catalog.

    ``catalog_log`` is the name of the log that keeps it, ``database_bytes`` the size of the SQL
    database. ``epoch`` began at ``epoch_time``. The rest is of ``version``.
    """

    environment: str
    catalog_log: str
    deploy_generation: int
    epoch: int
    epoch_time: Timestamp
    version: int
    version_time: Timestamp
    earliest_version: int
    schemas: int
    tables: int
    views: int
    roles: int
    privileges_enforced: bool
    database_bytes: int


def status_of(
    state: ReadOnlyState,
    catalog: Catalog,
    *,
    earliest_version: int,
    catalog_log: str,
    database_bytes: int,
) -> CatalogStatus:
    """The state of ``catalog``, which is the present version of ``state``."""
    reserved = sum(catalog.schema(name) is not None for name in RESERVED_SCHEMAS)
    return CatalogStatus(
        environment=state.environment or "",
        catalog_log=catalog_log,
        deploy_generation=state.deploy_generation,
        epoch=state.epoch,
        epoch_time=state.boot_timestamp,
        version=catalog.version,
        version_time=catalog.time,
        earliest_version=earliest_version,
        schemas=catalog.contents.count("schema") - reserved,
        tables=catalog.table_count(),
        views=catalog.contents.count("view"),
        roles=catalog.contents.count("role"),
        privileges_enforced=ENFORCE_PRIVILEGES.required(catalog),
        database_bytes=database_bytes,
    )


@dataclass(frozen=True, slots=True)
class Role:
    """A role, and the names of the roles of which it is a member."""

    name: str
    superuser: bool
    inherit: bool
    member_of: tuple[str, ...]


def roles_of(catalog: Catalog) -> list[Role]:
    names = {role.id: role.name for role in catalog.roles()}
    return [
        Role(
            role.name,
            role.superuser,
            role.inherit,
            tuple(sorted(names.get(each.group, "?") for each in role.member_of)),
        )
        for role in catalog.roles()
    ]


class Session(ABC):
    """See the module. Safe to use from several threads. Its ``with`` block closes it at the end."""

    def __reduce__(self) -> NoReturn:
        """Refuse to be pickled, as Spark does with what a function of its executors refers to."""
        raise UnsupportedOperation(
            "a session cannot be sent to another process, such as an executor of Spark; open one"
            " there, or use it outside of the function that is sent"
        )

    # -- catalog -------------------------------------------------------------------------------

    @abstractmethod
    def execute(self, commands: Command | Sequence[Command], *, timeout: float = 30.0) -> Executed:
        """Execute DDL commands as one version, all or none. Raises what the commands raise."""

    @abstractmethod
    def table(self, name: str, *, at: AsOf = PRESENT) -> ResolvedTable:
        """The table ``schema.table`` as of ``at``. Raises `ObjectNotFound`, `VersionNotFound`."""

    @abstractmethod
    def schemas(self, *, at: AsOf = PRESENT) -> list[str]:
        """The names of the schemas, in order, without that of the catalog itself.

        If privileges are enforced, only those that the user has access to. Raises
        `VersionNotFound`.
        """

    @abstractmethod
    def tables(self, schema: str, *, at: AsOf = PRESENT) -> list[str]:
        """The names of the tables and views of ``schema``, in order. Raises `ObjectNotFound`."""

    @abstractmethod
    def history(self, *, start: int = 1, end: int | None = None) -> list[VersionInfo]:
        """Versions ``start`` to ``end`` − 1: time, author, changes; trimmed ones are marked."""

    @abstractmethod
    def storage_usage(self, table: str | None = None) -> list[StorageUsage]:
        """The last measured size of each table in bytes, ordered by name.

        With ``table``, all recorded sizes of that table, the oldest first. Nodes measure the
        folders of the store's own tables at intervals (the setting ``storage_usage_interval_ms``).
        Sizes are kept for ``storage_usage_retention_ms``. If privileges are enforced, users who are
        not superusers see only the tables that they may read. Raises `ObjectNotFound`.
        """

    @abstractmethod
    def compact(self, version: int) -> bool:
        """Trim the catalog's history below ``version``. Return False if that was already done.

        Raises `VersionNotFound` if ``version`` is not kept or is in the future.
        """

    @abstractmethod
    def differences(self, old: AsOf, new: AsOf = PRESENT) -> tuple[Difference, ...]:
        """The differences between two points in history by object and field. `VersionNotFound`."""

    @abstractmethod
    def undo(self, version: int, *, through: int | None = None, timeout: float = 30.0) -> Executed:
        """Undo the changes of ``version`` in a new version, if no object of it was changed since.

        With ``through``, undo all versions from ``version`` to ``through`` as one change.

        Raises `Conflict` naming the change that prevents it, `AlreadyExists` if a name is taken,
        `ObjectNotFound`, `IllegalChange`, `VersionNotFound`. If it raises, nothing was changed.
        """

    @abstractmethod
    def undrop(self, name: str, *, kind: str = "table", timeout: float = 30.0) -> Executed:
        """Restore the table (or view, or function) ``schema.name`` that was dropped last.

        It keeps its id, its rows and the indexes that were dropped with it. For the ``kind``
        schema, ``name`` is that of the schema, which is restored with all that was dropped with it.
        Raises what `undo` raises.
        """

    @abstractmethod
    def undrop_partitions(self, name: str, *, partitions: Sequence[str] = ()) -> list[str]:
        """Restore partitions of the plain table ``schema.table`` that were dropped last.

        ``partitions`` are names like ``year=2013/month=1``; without any, those of the last drop.
        Returns the names. Raises `ObjectNotFound` if none was dropped or the files are gone,
        `AlreadyExists` if one exists, `IllegalChange` if other files are in its folder.
        """

    @abstractmethod
    def data_history(
        self,
        *,
        since: Timestamp | None = None,
        until: Timestamp | None = None,
        table: str | None = None,
        limit: int = MAX_COMMITS,
    ) -> list[DataCommit]:
        """The first ``limit`` commits from ``since`` to ``until`` that changed rows, oldest first.

        Read on from the time of the last one plus 1. With ``table``, only its changes. If
        privileges are enforced, users who are not superusers see only their own commits. Raises
        `ObjectNotFound`, and `InvalidInput` for a number that is not a time, and for a limit that
        is not 1 to `MAX_COMMITS`.
        """

    @abstractmethod
    def status(self) -> CatalogStatus:
        """The state of the catalog: its versions and the number of its objects."""

    @abstractmethod
    def roles(self) -> list[Role]:
        """The roles, ordered by name, each with the names of the roles of which it is a member."""

    @abstractmethod
    def parameters(self) -> list[ParameterValue]:
        """The parameters of the catalog, ordered by name, with their values."""

    # -- for the operator of the store ---------------------------------------------------------

    # If privileges are enforced, these raise `PermissionDenied` for users who are not superusers.

    @abstractmethod
    def config(self) -> list[SettingValue]:
        """The settings of the node, without secrets."""

    @abstractmethod
    def clean(self) -> Cleanable:
        """What cleaning would remove. Removes nothing: nodes do so at intervals."""

    @abstractmethod
    def dump(self, *, ignore: Sequence[str] = (), stats_only: bool = False) -> bytes:
        """The stored catalog as JSON text: what ``strandline debug dump`` writes.

        Leaves out the kinds of objects in ``ignore``. With ``stats_only``, it has only the number
        of objects of each kind. Raises `InvalidInput` if a kind is unknown.
        """

    @abstractmethod
    def verify(self, *, pages: bool = False) -> VerificationReport:
        """Check the records and files of the store for damage, and change nothing.

        With ``pages``, also read every page of every file. Damage is in the report; it does not
        raise. This may take long: give an `HttpSession` a time-out that suits the store.
        """

    # -- snapshots -----------------------------------------------------------------------------

    @abstractmethod
    def open(
        self, names: Sequence[str], *, at: AsOf = PRESENT, txn_id: int | None = None
    ) -> Snapshot:
        """A snapshot of the tables ``schema.table`` as of ``at``, or as a transaction sees them.

        One call returns names, definitions, locations and write ids that belong together. Raises
        `ObjectNotFound`, `VersionNotFound`, `TransactionNotFound`, `TransactionFinished`,
        `InvalidInput` if both a point in history and ``txn_id`` are given, and `LimitExceeded`.
        """

    @abstractmethod
    def files(
        self,
        table_id: int,
        write_ids: ValidWriteIdList,
        *,
        bounds: Sequence[ColumnBounds] = (),
    ) -> TableFiles:
        """The files of a table that are visible to ``write_ids``.

        With ``bounds``, only the data files that may contain rows within all bounds, judging by
        their partitions and statistics, and the delete files that apply to them. Raises
        `ObjectNotFound`, and `InvalidInput` if a bound is no value of its column.
        """

    @abstractmethod
    def hold(
        self, kind: str, owner: str | None = None, *, at: Timestamp | None, ttl_ms: int = 60_000
    ) -> Hold:
        """Keep the history from ``at`` on, or from now on if it is None.

        Raises `VersionNotFound` below the low watermark.

        ``owner`` is the user or role that holds it, by default the session's user. If privileges
        are enforced, only a superuser may name another user, or a role of which the session's user
        is not a member.
        """

    @abstractmethod
    def renew_hold(self, hold_id: int, *, ttl_ms: int = 60_000) -> Hold:
        """Extend a hold. Raises `HoldExpired` if it has expired."""

    @abstractmethod
    def release_hold(self, hold_id: int) -> None:
        """Release a hold. Does nothing if it does not exist."""

    @abstractmethod
    def holders(self) -> Holders:
        """The holders of history, write ids and locks that others may wait for, and since when.

        If privileges are enforced, users who are not superusers see only their own.
        """

    # -- transactions --------------------------------------------------------------------------

    @abstractmethod
    def begin(self, *, read_only: bool = False) -> Transaction:
        """Begin a transaction, which reads and writes under the catalog that is active now."""

    @abstractmethod
    def transaction(self, txn_id: int) -> Transaction:
        """The state of a transaction; settles the outcome after a lost answer."""

    @abstractmethod
    def heartbeat(self, txn_id: int) -> None:
        """Keep a transaction alive. Raises `TransactionFinished`, `TransactionNotFound`."""

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
        """Add files to a table and remove files from it; others see this after the commit.

        The caller has synced the files of ``add``, and their folders up to that of the table.

        ``remove`` are paths of files that are replaced. ``touch`` are paths of data files of which
        a delete file deletes rows; those that a delete file names only by id are found among all
        data files of the table, which takes longer. If two transactions remove or touch the same
        file, the first to commit wins. A data file's id has ``txn_id`` above the lowest
        `FILE_NUMBER_BITS`, so ids are unique. Returns the transaction's write id in the table.
        Repeating the same call changes nothing.

        Raises `InvalidInput` if a file is invalid, `WriteConflict` if the transaction does not see
        a path of ``remove`` or ``touch``, `AlreadyExists` if it sees a path of ``add``,
        `ObjectNotFound`, `UnsupportedOperation` for a plain table, `TransactionFinished`,
        `TransactionNotFound`.
        """

    @abstractmethod
    def commit(self, txn_id: int) -> Transaction:
        """Commit. May be repeated: the id settles the outcome after a lost answer.

        Raises `WriteConflict` (the transaction is then aborted), `TransactionFinished`,
        `TransactionNotFound`, and `UnknownOutcome` only if the store did not answer until the
        deadline.
        """

    @abstractmethod
    def abort(self, txn_id: int) -> Transaction:
        """Abort: none of its writes will ever be visible. May be repeated."""

    @abstractmethod
    def close(self) -> None:
        """Close the session's resources. Open transactions stay open until they time out."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
