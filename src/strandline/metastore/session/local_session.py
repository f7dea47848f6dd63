"""`LocalSession`: a session in the process of the store.

If privileges are enforced, each call is checked for its user against the present catalog. DDL is
checked as `strandline.catalog.privileges.check` describes. To see a table or its files, at any
version, needs SELECT; to add data files, INSERT; to remove rows or files, DELETE; to do both in one
step, UPDATE or both. A transaction or hold may be used only by its own user or a superuser. Users
who are not superusers see only those versions in the history that they made, and may neither
compare versions, trim the history, nor read what is for the operator of the store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TypeVar

from strandline import work
from strandline.catalog import Applied, Command, VersionInfo
from strandline.catalog.catalog import is_shown
from strandline.catalog.configuration import ParameterValue, parameter_values
from strandline.catalog.differences import Difference, differences
from strandline.catalog.privileges.access import Access
from strandline.catalog.storage_usage import StorageUsage, latest_storage_usage, storage_usage_of
from strandline.catalog.undo.command import Undo
from strandline.catalog.undo.reading import visible_undo, visible_undrop
from strandline.clock import MAX_TIMESTAMP, MIN_TIMESTAMP, Timestamp, require_time
from strandline.config import SettingValue
from strandline.errors import (
    InvalidInput,
    LimitExceeded,
    ObjectNotFound,
    PermissionDenied,
    TransactionFinished,
    TransactionNotFound,
)
from strandline.metastore.inspection import VerificationReport
from strandline.metastore.interface import (
    MAX_COMMITS,
    PRESENT,
    AsOf,
    CatalogStatus,
    ColumnBounds,
    Executed,
    ResolvedTable,
    Role,
    Session,
    Snapshot,
    TableFiles,
    distinct_names,
    require_user,
    roles_of,
    status_of,
    time_limit,
)
from strandline.metastore.metastore import Metastore
from strandline.metastore.off_loop import finish
from strandline.metastore.partition_undrop import undrop_partitions
from strandline.metastore.reader import Reader, present_catalog
from strandline.metastore.session.field_types import checked_batch, session_calls
from strandline.metastore.session.partition_pruning import partition_filter
from strandline.metastore.session.pruning import may_match, touching, wanted_ranges
from strandline.metastore.session.staged_files import (
    check_path,
    check_staging,
    refuse_links,
    stage_files,
    that_may_name,
)
from strandline.metastore.store.cleaning import Cleanable
from strandline.metastore.store.data_history import DataCommit
from strandline.metastore.store.rows import DataFile, DeleteFile, Row, RowKind, new_file
from strandline.metastore.store.staging import Staging
from strandline.metastore.store.zone_partitions import ZonePartitions
from strandline.metastore.table_parameters import refuse_reserved
from strandline.model.descriptors import TableDescriptor
from strandline.model.identifiers import normalize
from strandline.model.partitioning import misfit
from strandline.model.privileges import Privilege
from strandline.transactions import (
    ForeignTransaction,
    Hold,
    Holders,
    Transaction,
    ValidWriteIdList,
    require_owner,
)
from strandline.transactions.holds import BACKUP
from strandline.transactions.tables import is_id

MAX_SNAPSHOT_TABLES = 10_000

T = TypeVar("T")


@session_calls
class LocalSession(Session):
    """A user's session with a `Metastore` of this process. Keeps no resources open.

    ``has_typed_commands`` says that its commands were read from JSON, which has checked the types.
    """

    def __init__(
        self, metastore: Metastore, *, user: str, host: str = "", has_typed_commands: bool = False
    ) -> None:
        self._metastore = metastore
        self._user = require_user(user)
        self._host = host
        self._has_typed_commands = has_typed_commands

    def __repr__(self) -> str:
        return f"<LocalSession user={self._user!r}>"

    # -- catalog -------------------------------------------------------------------------------

    def execute(self, commands: Command | Sequence[Command], *, timeout: float = 30.0) -> Executed:
        seconds = time_limit(timeout)
        batch = commands if isinstance(commands, Sequence) else [commands]
        if not self._has_typed_commands:
            batch = checked_batch(batch)
        refuse_reserved(batch, Access(self._metastore.catalogs.latest_catalog(), self._user))
        return _executed(self._metastore.execute(batch, user=self._user, timeout=seconds))

    def table(self, name: str, *, at: AsOf = PRESENT) -> ResolvedTable:
        return finish(self._reader().table(name, at=at))

    def schemas(self, *, at: AsOf = PRESENT) -> list[str]:
        reader = self._reader()
        point = finish(reader.point(at))
        access = reader.access.at(point.catalog)
        schemas = point.catalog.schemas()
        return [each.name for each in schemas if is_shown(each) and access.reaches(each)]

    def tables(self, schema: str, *, at: AsOf = PRESENT) -> list[str]:
        reader = self._reader()
        point = finish(reader.point(at))
        descriptor = reader.schema(point, schema)
        if descriptor is None:
            raise ObjectNotFound(f"schema {schema!r} does not exist in {point.spoken}")
        return finish(reader.relation_names(point, descriptor))

    def history(self, *, start: int = 1, end: int | None = None) -> list[VersionInfo]:
        versions = self._metastore.catalogs.history(start, end)
        if self._access().free:
            return versions
        return [info for info in versions if normalize(info.author) == normalize(self._user)]

    def storage_usage(self, table: str | None = None) -> list[StorageUsage]:
        log, reader = self._metastore.catalogs.state.log, self._reader()
        catalog, access = reader.catalog, reader.access
        if table is not None:
            table_id = finish(reader.table(table)).descriptor.id
            return storage_usage_of(log, catalog, table_id)

        def may_read(table_id: int) -> bool:
            return access.free or access.allows(Privilege.SELECT, catalog.table_by_id(table_id))

        return [usage for usage in latest_storage_usage(log, catalog) if may_read(usage.table_id)]

    def compact(self, version: int) -> bool:
        self._access().require_superuser("trim the history")
        return self._metastore.compact(version, author=self._user)

    def differences(self, old: AsOf, new: AsOf = PRESENT) -> tuple[Difference, ...]:
        reader = self._reader()
        reader.access.require_superuser("compare whole versions")
        (old_catalog, _), (new_catalog, _) = finish(reader.dated(old)), finish(reader.dated(new))
        return differences(old_catalog, new_catalog)

    def undo(self, version: int, *, through: int | None = None, timeout: float = 30.0) -> Executed:
        catalogs, user = self._metastore.catalogs, self._user
        return self._execute_undo(
            lambda: visible_undo(catalogs, version, through=through, identity=user), timeout
        )

    def undrop(self, name: str, *, kind: str = "table", timeout: float = 30.0) -> Executed:
        catalogs, user = self._metastore.catalogs, self._user
        return self._execute_undo(
            lambda: visible_undrop(catalogs, kind, name, identity=user), timeout
        )

    def _execute_undo(self, read: Callable[[], Undo], timeout: float) -> Executed:
        seconds = time_limit(timeout)
        return _executed(self._metastore.undo(read, user=self._user, timeout=seconds))

    def undrop_partitions(self, name: str, *, partitions: Sequence[str] = ()) -> list[str]:
        table = finish(self._reader().table(name, need=Privilege.INSERT))
        return undrop_partitions(self._metastore, table, partitions, author=self._user)

    def data_history(
        self,
        *,
        since: Timestamp | None = None,
        until: Timestamp | None = None,
        table: str | None = None,
        limit: int = MAX_COMMITS,
    ) -> list[DataCommit]:
        if type(limit) is not int or not 1 <= limit <= MAX_COMMITS:
            raise InvalidInput(f"the limit is a number from 1 to {MAX_COMMITS}, not {limit!r:.80}")
        since = MIN_TIMESTAMP if since is None else since
        until = MAX_TIMESTAMP if until is None else until
        for at in (since, until):
            require_time(at)
        reader = self._reader()
        table_ids = None if table is None else {finish(reader.table(table)).descriptor.id}
        return self._metastore.store.sql_store.data_commits(
            since=since,
            until=until,
            table_ids=table_ids,
            user=None if reader.access.free else self._user,
            limit=limit,
        )

    def status(self) -> CatalogStatus:
        catalogs = self._metastore.catalogs
        earliest = catalogs.earliest_catalog().version
        inspection = self._metastore.inspection
        return status_of(
            catalogs.state,
            self._reader().catalog,
            earliest_version=earliest,
            catalog_log=inspection.catalog_log(),
            database_bytes=inspection.database_bytes(),
        )

    def roles(self) -> list[Role]:
        return roles_of(self._reader().catalog)

    def parameters(self) -> list[ParameterValue]:
        return parameter_values(self._reader().catalog)

    # -- for the operator of the store ---------------------------------------------------------

    def config(self) -> list[SettingValue]:
        self._access().require_superuser("see the settings of the node")
        return self._metastore.inspection.settings()

    def clean(self) -> Cleanable:
        self._access().require_superuser("see what cleaning would remove")
        work.refuse_budget()
        return self._metastore.inspection.clean()

    def dump(self, *, ignore: Sequence[str] = (), stats_only: bool = False) -> bytes:
        return b"".join(self.dump_pieces(ignore=ignore, stats_only=stats_only))

    def dump_pieces(
        self, *, ignore: Sequence[str] = (), stats_only: bool = False
    ) -> Iterator[bytes]:
        """Yield the text of `dump` in pieces, for a caller that sends it."""
        self._access().require_superuser("dump the catalog")
        work.refuse_budget()
        pieces = self._metastore.inspection.dump(ignore=ignore, stats_only=stats_only)
        return (piece.encode() for piece in pieces)

    def verify(self, *, pages: bool = False) -> VerificationReport:
        self._access().require_superuser("verify the store")
        work.refuse_budget()
        return self._metastore.inspection.verify(pages=pages)

    # -- snapshots -----------------------------------------------------------------------------

    def open(
        self, names: Sequence[str], *, at: AsOf = PRESENT, txn_id: int | None = None
    ) -> Snapshot:
        if txn_id is not None and at != PRESENT:
            raise InvalidInput("name a point in history or a transaction to read by, not both")
        names = distinct_names(names)
        if len(names) > MAX_SNAPSHOT_TABLES:
            raise LimitExceeded(
                f"a snapshot contains at most {MAX_SNAPSHOT_TABLES} tables, not {len(names)}; "
                "take several snapshots at one version or time"
            )
        transaction = None if txn_id is None else self._own(txn_id)
        return finish(self._reader().open(names, at=at, transaction=transaction))

    def files(
        self,
        table_id: int,
        write_ids: ValidWriteIdList,
        *,
        bounds: Sequence[ColumnBounds] = (),
    ) -> TableFiles:
        files = self.stored_files(table_id, write_ids, bounds=bounds)
        return TableFiles(tuple(files.data_files), tuple(files.delete_files))

    def stored_files(
        self,
        table_id: int,
        write_ids: ValidWriteIdList,
        *,
        bounds: Sequence[ColumnBounds] = (),
    ) -> TableFiles:
        """Like `files`, for a caller that serializes them: decodes only files that it must compare.

        An error in a file's row may be raised only when that file is accessed.
        """
        reader, store = self._reader(), self._metastore.store
        # A dropped table may still be read as of the past: its location is kept.
        table = reader.catalog.table_by_id(table_id)
        is_dropped = table is None and self._existed(table_id)
        reader.require(table_id, Privilege.SELECT, is_dropped=is_dropped)
        if table is None and not is_dropped:
            raise ObjectNotFound(
                f"no table has, or had, the id {table_id}; look up the table by its name"
            )
        if not reader.access.free:
            transactions = self._metastore.transactions
            write_ids = transactions.own_or_committed(table_id, write_ids, owner=self._user)
        ranges = {} if table is None else wanted_ranges(bounds, table)
        partitions = None if table is None else partition_filter(ranges, table)
        rows = store.data_files(table_id, write_ids=write_ids, partitions=partitions)
        work.spend(len(rows))
        if ranges:
            rows = [row for row in rows if may_match(row.as_(DataFile), ranges)]
        # Imports pyarrow, which takes longer than a command that reads no file.
        from strandline.metastore.store.file_columns import StoredDataFiles

        data_files = StoredDataFiles(rows)
        rows = store.rows(table_id, RowKind.DELETE_FILE, write_ids=write_ids)
        delete_files = [row.as_(DeleteFile) for row in work.spending(rows)]
        if ranges:
            delete_files = touching(delete_files, data_files)
        return TableFiles(data_files, delete_files)

    def _existed(self, table_id: int) -> bool:
        """Whether a table of that id existed: it has a place, or was written if it was external."""
        if self._metastore.store.location(table_id) is not None:
            return True
        return is_id(table_id) and self._metastore.transactions.write_ids(table_id).hwm > 0

    def hold(
        self, kind: str, owner: str | None = None, *, at: Timestamp | None, ttl_ms: int = 60_000
    ) -> Hold:
        owner = owner or self._user
        access = self._access()
        # An owner that is not a role is a note, such as the name of a job.
        if access.catalog.role(owner) is not None:
            access.require_owner(owner, "a hold")
        if kind == BACKUP:
            access.require_superuser("take a hold of a backup, which stops cleaning")
        return self._metastore.hold(kind, owner, at=at, ttl_ms=ttl_ms, user=self._user)

    def renew_hold(self, hold_id: int, *, ttl_ms: int = 60_000) -> Hold:
        holds = self._metastore.transactions.holds
        return holds.renew(hold_id, ttl_ms=ttl_ms, may_touch=self._only_own_holds(hold_id))

    def release_hold(self, hold_id: int) -> None:
        holds = self._metastore.transactions.holds
        holds.release(hold_id, may_touch=self._only_own_holds(hold_id))

    def holders(self) -> Holders:
        transactions, access = self._metastore.transactions, self._access()
        if access.free:
            return transactions.holders()
        own_names = {normalize(self._user), *access.names}
        return transactions.holders(lambda owner: normalize(owner) in own_names)

    # -- transactions --------------------------------------------------------------------------

    def begin(self, *, read_only: bool = False) -> Transaction:
        return self._metastore.transactions.begin(
            user=self._user, host=self._host, agent="session", read_only=read_only
        )

    def transaction(self, txn_id: int) -> Transaction:
        return self._own(txn_id)

    def heartbeat(self, txn_id: int) -> None:
        transactions = self._metastore.transactions
        outcomes = self._as_owner(lambda owner: transactions.heartbeat([txn_id], owner=owner))
        if txn_id in outcomes.missing:
            raise TransactionNotFound(f"there is no transaction {txn_id}; begin one")
        if txn_id in outcomes.aborted:
            raise TransactionFinished(
                f"transaction {txn_id} is aborted: its client aborted it, or it timed out; begin "
                "again"
            )

    def stage(
        self,
        txn_id: int,
        table_id: int,
        *,
        add: Sequence[DataFile | DeleteFile] = (),
        remove: Sequence[str] = (),
        touch: Sequence[str] = (),
    ) -> int:
        check_staging(add, remove=remove, touch=touch)
        reader = self._reader()
        table = reader.catalog.table_by_id(table_id)
        is_dropped = table is None and self._existed(table_id)
        needs = partial(reader.require, table_id, is_dropped=is_dropped)
        _may_stage(needs, add, replaces=bool(remove or touch))
        _check_files(table, add)
        zone = None if table is None else ZonePartitions.of(table, reader.catalog)
        for file in add:
            check_path(file.path)
        rows = [new_file(file) for file in add]
        only_adds = not (remove or touch) and all(isinstance(file, DataFile) for file in add)
        paths = [file.path for file in add] if only_adds else []
        # A look at each file may take long, on a network file system: other writers do not wait.
        known_folder = None if table is None else self._known_folder(table)
        refuse_links(add, folder=known_folder)
        # So may reading all delete files of a table, of which a transaction sees the same set.
        has_deletes = any(isinstance(file, DeleteFile) for file in add)
        deletes = that_may_name(self._delete_files(txn_id, table_id), add) if has_deletes else []
        # Memory applies the event with that of the end: until then no reader sees the rows.
        store = self._metastore.store.sql_store

        def stage(owner: str | None) -> int:
            with store.staging(txn_id, table_id, owner=owner, paths=paths) as staging:
                folder = self._folder_of(staging)
                if folder != known_folder:
                    refuse_links(add, folder=folder)
                stage_files(
                    staging, add, rows, remove=remove, touch=touch, zone=zone, deletes=deletes
                )
            return staging.write_id

        return self._as_owner(stage)

    def _delete_files(self, txn_id: int, table_id: int) -> list[Row]:
        """The delete files of a table that a transaction sees now."""
        write_ids = self._metastore.transactions.write_ids(table_id, txn_id=txn_id)
        return self._metastore.store.rows(table_id, RowKind.DELETE_FILE, write_ids=write_ids)

    def _known_folder(self, table: TableDescriptor) -> str | None:
        """`_folder_of` before the files are staged: the table may move until then."""
        folders, store = self._metastore.folders, self._metastore.store
        location = folders.named_location(table) or store.last_known_location(table.id)
        location = location or store.location(table.id)  # which memory knows from then on
        return None if location is None else folders.path_if_local(location)

    def _folder_of(self, staging: Staging) -> str | None:
        """The path of a table's folder, or None if this machine can access none."""
        table = self._metastore.catalogs.latest_catalog().table_by_id(staging.table_id)
        if table is None:
            return None
        folders = self._metastore.folders
        place = folders.named_location(table) or staging.place()
        if place is None:
            return None
        if folders.is_inside(place):
            folders.require_in_place()  # else the next mount would hide the files that were written
        return folders.path_if_local(place)

    def commit(self, txn_id: int) -> Transaction:
        return self._as_owner(lambda owner: self._metastore.commit(txn_id, owner=owner))

    def abort(self, txn_id: int) -> Transaction:
        return self._as_owner(lambda owner: self._metastore.abort(txn_id, owner=owner))

    def close(self) -> None:
        """Do nothing: the session keeps nothing open."""

    # -- what the user may do --------------------------------------------------------------------

    def _reader(self) -> Reader:
        present = finish(present_catalog(self._metastore))
        return Reader(self._metastore, present, user=self._user)

    def _access(self) -> Access:
        return self._reader().access

    def _own(self, txn_id: int) -> Transaction:
        """The transaction. Raises `PermissionDenied` if it is another's and the user is checked."""
        transaction = self._metastore.transactions.get(txn_id)

        def check(owner: str | None) -> Transaction:
            require_owner(txn_id, transaction.user, owner=owner)
            return transaction

        return self._as_owner(check)

    def _as_owner(self, change: Callable[[str | None], T]) -> T:
        """Call ``change`` with the user as owner, or with None if any transaction is allowed.

        The owner is read inside ``change``. The catalog is read only if the transaction belongs to
        another user.
        """
        try:
            return change(self._user)
        except ForeignTransaction:
            if not self._access().free:
                raise
        return change(None)

    def _only_own_holds(self, hold_id: int) -> Callable[[str], None]:
        """Return a check that raises `PermissionDenied` if another user took the hold."""
        access = self._access()

        def may_touch(taken_by: str) -> None:
            is_own = normalize(taken_by) in {normalize(self._user), *access.names}
            if not is_own and not access.free:
                raise PermissionDenied(
                    f"hold {hold_id} belongs to another user, and user {self._user} is not a "
                    "superuser; take your own hold"
                )

        return may_touch


def _executed(applied: Applied) -> Executed:
    return Executed(applied.version, applied.time, applied.applied)


def _check_files(table: TableDescriptor | None, add: Sequence[DataFile | DeleteFile]) -> None:
    """Raise `InvalidInput` if a data file's schema version or partition cannot be of the table."""
    if table is None:
        return  # dropped since the transaction began: its commit finds that
    types = {column.id: column.type for column in table.columns}
    not_null = {column.id for column in table.columns if not column.nullable}
    for file in add:
        if not isinstance(file, DataFile):
            continue
        if file.schema_version > table.schema_version:
            raise InvalidInput(
                f"file {file.path!r:.200} names version {file.schema_version} of the schema of "
                f"{table.name}, whose latest version is {table.schema_version}; name the version "
                "that the file was written with"
            )
        problem = misfit(file.partition, table.partitioning, types, not_null=not_null)
        if problem is not None:
            raise InvalidInput(
                f"the partition of file {file.path!r:.200} is not valid for {table.name}: {problem}"
            )


def _may_stage(
    needs: Callable[[Privilege], None], add: Sequence[DataFile | DeleteFile], *, replaces: bool
) -> None:
    """Call ``needs``, which raises `PermissionDenied`, with the privileges for a staging."""
    adds = any(isinstance(file, DataFile) for file in add)
    takes = replaces or any(isinstance(file, DeleteFile) for file in add)
    if adds and takes:
        try:
            needs(Privilege.INSERT | Privilege.DELETE)
        except PermissionDenied:
            needs(Privilege.UPDATE)
    else:
        needs(Privilege.DELETE if takes else Privilege.INSERT)
