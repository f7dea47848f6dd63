"""`Tables`: the transactional tables of a metastore, in a Spark session, and snapshots of them."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Mapping, MutableSequence, Sequence
from contextlib import AbstractContextManager, suppress
from datetime import datetime
from random import uniform
from time import sleep
from types import TracebackType
from typing import NoReturn, TypeVar

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import types as spark_types

from strandline.catalog import Command
from strandline.catalog.commands import (
    DEFAULT_SCHEMA,
    AddColumns,
    AlterColumn,
    CreateTable,
    DropColumns,
    DropTable,
    RenameColumns,
    RenameTable,
    TableDefinition,
)
from strandline.clock import Timestamp, elapsed_seconds, format_timestamp, parse_timestamp
from strandline.errors import (
    CorruptData,
    InvalidInput,
    ObjectNotFound,
    PermissionDenied,
    VersionNotFound,
    WriteConflict,
)
from strandline.metastore.interface import AsOf, ResolvedTable, Session, Snapshot
from strandline.model.descriptors import properties as canonical_properties
from strandline.model.identifiers import QualifiedName
from strandline.spark.scans import bounds_of, live_rows
from strandline.spark.schemas import check_reading, check_supported, column_definitions, column_type
from strandline.spark.transaction import Counts, TablesTransaction, tables_transaction
from strandline.transactions import Hold, ValidWriteIdList

logger = logging.getLogger(__name__)
T = TypeVar("T")

PROVIDER = "strandline"
DELETE_SECONDS = 1800
"""The time after which `Tables.delete` no longer tries again after a conflict."""
Moment = datetime | str | Timestamp
"""A time as a caller gives it. A text or datetime without a zone is UTC; a `Timestamp` is exact."""


def as_of(*, version: int | None, time: Moment | None) -> AsOf:
    """The point in history that the caller names, by default now.

    Raises `InvalidInput` for both a version and a time, and for what is not a time.
    """
    if isinstance(time, datetime):
        time = time.isoformat()
    if isinstance(time, str):
        time = parse_timestamp(time)
    if time is not None and not isinstance(time, int):
        raise InvalidInput(
            f"a time is a text like 2026-11-20T10:00:00Z, a datetime or a Timestamp, not {time!r}"
        )
    return AsOf(version=version, time=time)


class ReaderSnapshot:
    """The requested tables, as they are at one point in history.

    Reading them gives the same rows and columns for as long as the history is kept. With a hold,
    that is as long as the hold is renewed in time (each read renews it). Without one, it is at
    least the time for which the store keeps history anyway. `close`, or leaving a ``with`` block,
    releases the hold.
    """

    def __init__(
        self,
        session: Session,
        snapshot: Snapshot,
        *,
        hold: Hold | None = None,
        hold_ms: int | None = None,
    ) -> None:
        self._session = session
        self._hold_ms = hold_ms
        self.snapshot = snapshot
        self.hold = hold

    def __repr__(self) -> str:
        names, time = ", ".join(self.names), format_timestamp(self.time)
        return f"<ReaderSnapshot of {names} at {time}, version {self.catalog_version}>"

    @property
    def catalog_version(self) -> int:
        """The catalog version that determines the columns."""
        return self.snapshot.catalog_version

    @property
    def time(self) -> Timestamp:
        return self.snapshot.time

    @property
    def names(self) -> tuple[str, ...]:
        """The tables that can be read, as ``schema.table``."""
        return tuple(self.snapshot.tables)

    def write_ids(self, name: str) -> ValidWriteIdList:
        """The write ids of a table that the snapshot sees.

        Raises `InvalidInput` if the table was not requested.
        """
        return self.snapshot.write_ids_of(name)

    def table(self, name: str) -> ResolvedTable:
        """The table of that name at the snapshot. Raises `InvalidInput` if it was not requested."""
        return self.snapshot.table(name)

    def renew(self) -> None:
        """Renew the hold, if there is one, for its full time from now. Raises `HoldExpired`."""
        if self.hold is not None and self._hold_ms is not None:
            self.hold = self._session.renew_hold(self.hold.hold_id, ttl_ms=self._hold_ms)

    def close(self) -> None:
        """Release the hold. Rows stay readable as long as the store keeps history anyway."""
        if self.hold is not None:
            self._session.release_hold(self.hold.hold_id)
            self.hold = None

    def __enter__(self) -> ReaderSnapshot:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class PendingTransaction(AbstractContextManager[TablesTransaction]):
    """A transaction that begins with its ``with`` block; see `Tables.transaction`."""

    def __init__(self, scope: AbstractContextManager[TablesTransaction]) -> None:
        self._scope = scope
        self._began = False

    def __enter__(self) -> TablesTransaction:
        if self._began:
            raise InvalidInput(
                "this transaction has begun already: call tables.transaction() again for another"
            )
        self._began = True
        return self._scope.__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        return self._scope.__exit__(kind, error, trace)

    def __getattr__(self, name: str) -> NoReturn:
        if hasattr(TablesTransaction, name) and not name.startswith("_"):
            raise InvalidInput(
                f"a transaction begins with its block, and commits at its end: write `with "
                f"tables.transaction() as change:`, and in it `change.{name}(…)`"
            )
        raise AttributeError(name)


def _texts(what: str, values: Sequence[str]) -> tuple[str, ...]:
    if isinstance(values, str):
        raise InvalidInput(f"{what} must be a list of strings, like [{values!r}]")
    return tuple(values)


def _pairs(what: str, pairs: Mapping[str, T] | None) -> Mapping[str, T]:
    if not isinstance(pairs, Mapping | None):
        raise InvalidInput(f"{what} must be a dict, not {pairs!r:.80}")
    return pairs or {}


class Tables:
    """The transactional tables of ``session``'s metastore, read and written by ``spark``.

    ``session`` says which files a table has. The Spark session must be built with
    `strandline.spark.configure`. Names are ``schema.table``; a name without a schema is in
    ``default``. Keeps no resources open.
    """

    def __init__(self, spark: SparkSession, session: Session) -> None:
        if not hasattr(session, Session.stage.__name__):
            address = repr(session) if isinstance(session, str) else "url"
            raise InvalidInput(
                "Tables takes a Spark session and then a session with a metastore, like "
                f"HttpSession({address}, user=…) or node.session(user=…), not a "
                f"{type(session).__name__}"
            )
        self.spark = spark
        self.session = session

    def __repr__(self) -> str:
        return f"<Tables of {self.session!r}>"

    def create(
        self,
        name: str,
        schema: spark_types.StructType | str,
        *,
        comment: str | None = None,
        properties: Mapping[str, str] | None = None,
        primary_key: Sequence[str] = (),
        partitioned_by: Sequence[str] = (),
        if_not_exists: bool = False,
    ) -> ResolvedTable:
        """Create a transactional table.

        ``schema`` is a Spark schema or SQL text like ``id BIGINT NOT NULL, name STRING``. The
        primary key is declared only; this release does not enforce it. ``partitioned_by`` are texts
        like ``day(ts)``, ``bucket(16, id)``, ``truncate(4, name)`` and ``region``. Raises
        `AlreadyExists`, `ObjectNotFound` if the schema does not exist, `InvalidInput`,
        `UnsupportedOperation`.
        """
        qualified = QualifiedName.parse(name, default_schema=DEFAULT_SCHEMA)
        command = CreateTable(
            schema=qualified.schema,
            definition=TableDefinition(
                name=qualified.name,
                columns=column_definitions(schema),
                transactional=True,
                provider=PROVIDER,
                primary_key=_texts("primary_key", primary_key),
                partitioned_by=_texts("partitioned_by", partitioned_by),
                properties=canonical_properties(_pairs("properties", properties)),
                comment=comment,
            ),
            if_not_exists=if_not_exists,
        )
        executed = self.session.execute(command)
        return self.session.table(name, at=AsOf(version=executed.version))

    def list(self, schema: str = DEFAULT_SCHEMA) -> tuple[str, ...]:
        """The transactional tables of ``schema``, as ``schema.table``, in order.

        Raises `ObjectNotFound` if the schema does not exist. Makes one call for each table of the
        schema, so it is not meant for thousands of tables.
        """
        names = (str(QualifiedName(schema, name)) for name in self.session.tables(schema))
        return tuple(name for name in names if self._is_transactional(name))

    def _is_transactional(self, name: str) -> bool:
        try:
            return self.session.table(name).descriptor.transactional
        except (ObjectNotFound, PermissionDenied):  # a view, just dropped, or not visible
            return False

    def drop(self, name: str, *, if_exists: bool = False, purge: bool = False) -> None:
        """Drop a table. Older versions can still read it, and `Session.undrop` restores it.

        With ``purge`` its files are deleted, and neither is possible any more. Raises
        `ObjectNotFound` unless ``if_exists``, and `InvalidInput` if the table is not transactional.
        """
        qualified = QualifiedName.parse(name, default_schema=DEFAULT_SCHEMA)
        with suppress(ObjectNotFound):  # the command raises it, unless ``if_exists``
            self._refuse_plain(name)
        self.session.execute(
            DropTable(
                schema=qualified.schema, table=qualified.name, if_exists=if_exists, purge=purge
            )
        )

    def alter(
        self,
        name: str,
        *,
        add: spark_types.StructType | str | None = None,
        rename: Mapping[str, str] | None = None,
        drop: Sequence[str] = (),
        types: Mapping[str, spark_types.DataType | str] | None = None,
        new_name: str | None = None,
    ) -> ResolvedTable:
        """Change the columns of a table, or its name, as one version; no file is written.

        First the columns in ``drop`` are dropped. Then those in ``rename`` (old name → new name)
        are renamed all at once, so that two can swap their names. Then those in ``types`` (name →
        Spark type or SQL text like ``DECIMAL(12, 2)``) get a wider type. Then the columns in
        ``add``, a schema as in `create`, are added at the end; they are NULL in existing rows.
        ``new_name`` is the table's new name, in its schema or as ``schema.table``. Raises
        `ObjectNotFound`, `AlreadyExists`, `IllegalChange`, `InvalidType`, and `InvalidInput` if the
        table is not transactional; then nothing was changed.
        """
        qualified = QualifiedName.parse(name, default_schema=DEFAULT_SCHEMA)
        schema, table = qualified.schema, qualified.name
        altered = QualifiedName.parse(name if new_name is None else new_name, default_schema=schema)
        self._refuse_plain(name)
        commands: MutableSequence[Command] = []
        if drop:
            names = _texts("drop", drop)
            commands.append(DropColumns(schema=schema, table=table, names=names))
        if new_names := canonical_properties(_pairs("rename", rename)):
            commands.append(RenameColumns(schema=schema, table=table, new_names=new_names))
        commands += (
            AlterColumn(schema=schema, table=table, column=column, type=column_type(new_type))
            for column, new_type in _pairs("types", types).items()
        )
        if add is not None:
            columns = column_definitions(add)
            commands.append(AddColumns(schema=schema, table=table, columns=columns))
        if new_name is not None:
            commands.append(
                RenameTable(
                    schema=schema, table=table, new_name=altered.name, new_schema=altered.schema
                )
            )
        if not commands:
            raise InvalidInput(
                f"nothing to alter in {name}: give add, rename, drop, types or new_name"
            )
        executed = self.session.execute(commands)
        return self.session.table(str(altered), at=AsOf(version=executed.version))

    def _refuse_plain(self, name: str) -> None:
        if not self.session.table(name).descriptor.transactional:
            raise InvalidInput(f"{name} is not a transactional table; change it with Spark's SQL")

    def snapshot(
        self,
        *names: str,
        version: int | None = None,
        time: Moment | None = None,
        hold_ms: int | None = None,
    ) -> ReaderSnapshot:
        """The tables ``names`` at one point in history: now, or as of ``version`` or ``time``.

        With ``hold_ms``, history from that point on is kept for that many milliseconds, and each
        read renews this. Raises `ObjectNotFound`, `VersionNotFound`.
        """
        snapshot = self.session.open(names, at=as_of(version=version, time=time))
        hold = None
        if hold_ms is not None:
            owner = f"{socket.gethostname()}:{os.getpid()}"
            try:
                hold = self.session.hold("reader", owner, at=snapshot.time, ttl_ms=hold_ms)
            except VersionNotFound:
                if version is not None or time is not None:
                    raise
                # The store keeps no history. The present can be held, so hold it first.
                hold = self.session.hold("reader", owner, at=None, ttl_ms=hold_ms)
                try:
                    snapshot = self.session.open(names, at=AsOf(time=hold.at))
                except BaseException:
                    self.session.release_hold(hold.hold_id)
                    raise
        return ReaderSnapshot(self.session, snapshot, hold=hold, hold_ms=hold_ms)

    def read(
        self,
        name: str,
        *,
        where: str | Column | None = None,
        version: int | None = None,
        time: Moment | None = None,
        snapshot: ReaderSnapshot | Snapshot | None = None,
        transaction: TablesTransaction | None = None,
    ) -> DataFrame:
        """The rows of a table: now, as of one point in history, or as a transaction sees them.

        With ``where``, only the rows for which the condition is true; files that contain no such
        rows, as far as their statistics show it, are not read. The set of rows is fixed when this
        returns. If the table is renamed or dropped before the DataFrame is used, its files have
        moved, and Spark fails. Raises `InvalidInput`, `ObjectNotFound`, `VersionNotFound`,
        `HoldExpired`, `UnsupportedOperation`, `CorruptData`.
        """
        points = (version, time, snapshot, transaction)
        if sum(point is not None for point in points) > 1:
            raise InvalidInput("name one of version, time, snapshot and transaction to read by")
        if transaction is not None:
            return transaction.read(name, where=where)
        check_reading(self.spark)
        if snapshot is None:
            snapshot = self.snapshot(name, version=version, time=time)
        elif isinstance(snapshot, Snapshot):
            snapshot = ReaderSnapshot(self.session, snapshot)
        table = snapshot.table(name)
        check_supported(table, name)
        snapshot.renew()
        bounds = () if where is None else bounds_of(self.spark, table, where)
        files = self.session.files(table.descriptor.id, snapshot.write_ids(name), bounds=bounds)
        try:
            rows = live_rows(self.spark, self.session, table, files)
        except CorruptData:
            # Another process may have cleaned the files since: then this refuses the old snapshot.
            self.session.open([name], at=AsOf(time=snapshot.time))
            raise
        return rows if where is None else rows.filter(where)

    def transaction(self) -> PendingTransaction:
        """A transaction for a ``with`` block, which commits at its end and aborts if it raises.

        Leaving the block raises `WriteConflict` if a conflicting transaction committed first. Then
        none of its changes were made, and the block may be run again.
        """
        return PendingTransaction(tables_transaction(self.spark, self.session))

    def append(self, name: str, frame: DataFrame) -> Counts:
        """Append rows in a transaction of its own; see `TablesTransaction.append`."""
        with self.transaction() as transaction:
            return transaction.append(name, frame)

    def delete(self, name: str, condition: str | Column) -> Counts:
        """Delete rows in a transaction of its own; see `TablesTransaction.delete`.

        If another transaction changed the same files first, the condition is evaluated again on the
        rows as they are then. This is repeated, after pauses, for `DELETE_SECONDS`.
        """
        attempts = 0
        deadline = elapsed_seconds() + DELETE_SECONDS
        while True:
            attempts += 1
            began = elapsed_seconds()
            try:
                with self.transaction() as transaction:
                    return transaction.delete(name, condition)
            except WriteConflict as conflict:
                now = elapsed_seconds()
                if now >= deadline:
                    raise WriteConflict(
                        f"{conflict.message}; tried {attempts} times in {DELETE_SECONDS // 60} "
                        "minutes; run it again when fewer transactions delete from the table, or "
                        "partition the table so that they delete from different files"
                    ) from conflict
                logger.info("deleting from %s again after a conflict: %s", name, conflict.message)
                # The first one may be chance. Each further one makes it likelier that many compete.
                sleep(uniform(0, min((attempts - 1) * (now - began), deadline - now)))
