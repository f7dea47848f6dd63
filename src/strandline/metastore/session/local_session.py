"""`LocalSession`: a session in the process of the store."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from strandline.catalog import Command, VersionInfo
from strandline.clock import Timestamp
from strandline.errors import (
    InvalidInput,
    ObjectNotFound,
    StrandlineError,
    TransactionFinished,
    TransactionNotFound,
)
from strandline.metastore.cache.cached_store import CachedStore
from strandline.metastore.interface import (
    PRESENT,
    AsOf,
    DataFile,
    DeleteFile,
    Executed,
    ResolvedTable,
    Session,
    Snapshot,
    Staged,
    TableFiles,
)
from strandline.metastore.metastore import Metastore
from strandline.metastore.session.placement import completed
from strandline.metastore.store.rows import DataFileRow, DeleteFileRow, RowKind, new_file
from strandline.transactions import Hold, Transaction, ValidWriteIdList

logger = logging.getLogger(__name__)


class LocalSession(Session):
    """A user's session with a `Metastore` of this process. Holds nothing."""

    def __init__(self, metastore: Metastore, *, user: str, host: str = "") -> None:
        self._metastore = metastore
        self._user = user
        self._host = host

    # -- catalog -------------------------------------------------------------------------------

    def execute(self, commands: Command | Sequence[Command], *, timeout: float = 30.0) -> Executed:
        batch = list(commands) if isinstance(commands, Sequence) else [commands]
        applied = self._metastore.execute(
            completed(self._metastore, batch, user=self._user), author=self._user, timeout=timeout
        )
        return Executed(applied.version, applied.time, applied.applied)

    def table(self, name: str, *, at: AsOf = PRESENT) -> ResolvedTable:
        return self._metastore.resolve(name, at=at)

    def tables(self, schema: str, *, at: AsOf = PRESENT) -> list[str]:
        catalog = self._metastore.point(at).catalog
        if catalog.schema(schema) is None:
            raise ObjectNotFound(
                f"schema {schema!r} does not exist in version {catalog.version} of the catalog"
            )
        return catalog.relation_names(schema)

    def history(self, *, start: int = 1, end: int | None = None) -> list[VersionInfo]:
        return self._metastore.catalogs.history(start, end)

    def compact(self, version: int) -> bool:
        return self._metastore.compact(version)

    # -- snapshots -----------------------------------------------------------------------------

    def snapshot(
        self, table_ids: Iterable[int], *, at: AsOf = PRESENT, txn_id: int | None = None
    ) -> Snapshot:
        if txn_id is not None and at != PRESENT:
            raise InvalidInput("name a point in history or a transaction to read by, not both")
        return self._metastore.snapshot(table_ids, at=at, txn_id=txn_id)

    def files(self, table_id: int, write_ids: ValidWriteIdList) -> TableFiles:
        store = self._metastore.store
        data = store.rows(table_id, RowKind.DATA_FILE, write_ids=write_ids)
        deletes = store.rows(table_id, RowKind.DELETE_FILE, write_ids=write_ids)
        return TableFiles(
            tuple(DataFile(row.row_id, row.write_id, row.as_(DataFileRow)) for row in data),
            tuple(DeleteFile(row.row_id, row.write_id, row.as_(DeleteFileRow)) for row in deletes),
        )

    def hold(self, kind: str, owner: str, *, at: Timestamp, ttl_ms: int = 60_000) -> Hold:
        return self._metastore.transactions.holds.acquire(kind, owner, at=at, ttl_ms=ttl_ms)

    def renew_hold(self, hold_id: int, *, ttl_ms: int = 60_000) -> Hold:
        return self._metastore.transactions.holds.renew(hold_id, ttl_ms=ttl_ms)

    def release_hold(self, hold_id: int) -> None:
        self._metastore.transactions.holds.release(hold_id)

    # -- transactions --------------------------------------------------------------------------

    def begin(self, *, read_only: bool = False) -> Transaction:
        return self._metastore.transactions.begin(
            user=self._user, host=self._host, agent="session", read_only=read_only
        )

    def transaction(self, txn_id: int) -> Transaction:
        return self._metastore.transactions.get(txn_id)

    def heartbeat(self, txn_id: int) -> None:
        beaten = self._metastore.transactions.heartbeat([txn_id])
        if txn_id in beaten.missing:
            raise TransactionNotFound(f"transaction {txn_id} does not exist")
        if txn_id in beaten.aborted:
            raise TransactionFinished(
                f"transaction {txn_id} is aborted, by its client or because it was silent for too "
                "long; begin again"
            )

    def allocate_write_id(self, txn_id: int, table_id: int) -> int:
        return self._metastore.transactions.allocate_write_id(txn_id, table_id)

    def stage(
        self,
        txn_id: int,
        table_id: int,
        *,
        add: Sequence[DataFileRow | DeleteFileRow] = (),
        remove: Sequence[int] = (),
        touch: Sequence[int] = (),
    ) -> Staged:
        for file in add:
            _check_numbers(file)
        staged = self._metastore.store.stage(
            txn_id, table_id, add=[new_file(file) for file in add], remove=remove, touch=touch
        )
        return Staged(staged.write_id, staged.row_ids)

    def commit(self, txn_id: int) -> Transaction:
        ended = self._metastore.transactions.commit(txn_id)
        self._follow()
        return ended

    def abort(self, txn_id: int) -> Transaction:
        ended = self._metastore.transactions.abort(txn_id)
        self._follow()
        return ended

    def close(self) -> None:
        """Nothing is open."""

    def _follow(self) -> None:
        """Bring what just ended into this node's memory. It has ended, whatever happens here."""
        store = self._metastore.store
        if isinstance(store, CachedStore):
            try:
                store.catch_up()
            except StrandlineError:
                logger.warning("the cache did not catch up with an own write yet", exc_info=True)


def _check_numbers(file: DataFileRow | DeleteFileRow) -> None:
    """Refuse a file that says of itself what cannot be."""
    if isinstance(file, DataFileRow):
        numbers = [file.file_id, file.rows, file.bytes]
        numbers += [one.nulls for one in file.statistics if one.nulls is not None]
    else:
        numbers = [*file.file_ids, *file.counts]
    if not file.path:
        raise InvalidInput("a file needs a path, relative to the location of its table")
    if min(numbers, default=0) < 0:
        raise InvalidInput(f"file {file.path!r} counts rows, bytes or ids below 0: {min(numbers)}")
