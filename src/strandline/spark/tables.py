"""`Tables`: the transactional tables of a metastore, in a Spark session."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import types as spark_types

from strandline.catalog.commands import DEFAULT_SCHEMA, CreateTable, TableDefinition
from strandline.errors import InvalidInput
from strandline.metastore.interface import AsOf, ResolvedTable, Session, Snapshot
from strandline.model.descriptors import properties as canonical_properties
from strandline.model.identifiers import QualifiedName
from strandline.spark.scans import live_rows
from strandline.spark.schemas import check_supported, column_definitions
from strandline.spark.settings import check_reading
from strandline.spark.snapshots import Moment, ReaderSnapshot, as_of, reader_of, take_snapshot
from strandline.spark.transaction import Counts, TablesTransaction, tables_transaction

PROVIDER = "strandline"


class Tables:
    """Transactional tables, read and written by ``spark``; ``session`` says which files they are.

    The Spark session must be built with `strandline.spark.configure`. Names are ``schema.table``;
    one without a schema is in ``default``. Holds nothing of its own.
    """

    def __init__(self, spark: SparkSession, session: Session) -> None:
        self.spark = spark
        self.session = session

    def create(
        self,
        name: str,
        schema: spark_types.StructType | str,
        *,
        comment: str | None = None,
        properties: Mapping[str, str] | None = None,
        primary_key: Sequence[str] = (),
        if_not_exists: bool = False,
    ) -> ResolvedTable:
        """Create a transactional table.

        ``schema`` is a Spark schema or SQL text like ``id BIGINT NOT NULL, name STRING``. The
        primary key is declared; this release does not check it. Raises `AlreadyExists`,
        `ObjectNotFound` for the schema, `InvalidInput`.
        """
        qualified = QualifiedName.parse(name, default_schema=DEFAULT_SCHEMA)
        command = CreateTable(
            schema=qualified.schema,
            definition=TableDefinition(
                name=qualified.name,
                columns=column_definitions(schema),
                transactional=True,
                provider=PROVIDER,
                primary_key=tuple(primary_key),
                properties=canonical_properties(properties or {}),
                comment=comment,
            ),
            if_not_exists=if_not_exists,
        )
        executed = self.session.execute(command)
        return self.session.table(name, at=AsOf(version=executed.version))

    def snapshot(
        self,
        *names: str,
        version: int | None = None,
        time: Moment | None = None,
        hold_ms: int | None = None,
    ) -> ReaderSnapshot:
        """The tables ``names`` at one place in history: now, or as of ``version`` or ``time``.

        With ``hold_ms`` the history from there on is kept for that many milliseconds, and for as
        many again from each read on. Raises `ObjectNotFound`, `VersionNotFound`.
        """
        at = as_of(version=version, time=time)
        return take_snapshot(self.session, names, at=at, hold_ms=hold_ms)

    def read(
        self,
        name: str,
        *,
        version: int | None = None,
        time: Moment | None = None,
        snapshot: ReaderSnapshot | Snapshot | None = None,
        transaction: TablesTransaction | None = None,
    ) -> DataFrame:
        """The rows of a table: now, as of one place in history, or as a transaction sees them.

        Which rows these are is settled when this returns, whatever happens before the DataFrame is
        used. Raises `ObjectNotFound`, `VersionNotFound`, `HoldExpired`, `UnsupportedOperation`.
        """
        points = (version, time, snapshot, transaction)
        if sum(point is not None for point in points) > 1:
            raise InvalidInput("name one of version, time, snapshot and transaction to read by")
        if transaction is not None:
            return transaction.read(name)
        check_reading(self.spark)
        if snapshot is None:
            snapshot = self.snapshot(name, version=version, time=time)
        elif isinstance(snapshot, Snapshot):
            snapshot = reader_of(self.session, name, snapshot)
        table = snapshot.table(name)
        check_supported(table, name)
        snapshot.renew()
        files = self.session.files(table.descriptor.id, snapshot.write_ids(name))
        return live_rows(self.spark, self.session, table, files)

    def transaction(self) -> AbstractContextManager[TablesTransaction]:
        """A transaction for a ``with`` block: committed at its end, aborted when it raises.

        Leaving the block raises `WriteConflict` if another transaction was first; then nothing of
        it has happened, and it may be run again.
        """
        return tables_transaction(self.spark, self.session)

    def append(self, name: str, frame: DataFrame) -> Counts:
        """Append rows in a transaction of its own; see `TablesTransaction.append`."""
        with self.transaction() as transaction:
            return transaction.append(name, frame)

    def delete(self, name: str, condition: str | Column) -> Counts:
        """Delete rows in a transaction of its own; see `TablesTransaction.delete`."""
        with self.transaction() as transaction:
            return transaction.delete(name, condition)
