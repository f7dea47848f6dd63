"""`TablesTransaction`: appends and deletes on several tables that commit together.

A transaction sees the tables as they were when it began, and what it did itself. Its rows come as
files: Spark writes or finds them, the files are put on disk and in place, and only then the
metastore is told of them. Nobody else sees them before the commit.

What must stay true:

* file ids are unique in a table for ever: the transaction's write id, which is given once, followed
  by a number that the transaction counts;
* a delete names each data file that it takes rows from, so that of two transactions which do so for
  one file the first to commit wins. A position that both delete would otherwise count twice;
* files are removed only once it is certain that the transaction is aborted. After a commit whose
  outcome is not known they stay.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sql

from strandline.errors import (
    InvalidInput,
    StrandlineError,
    TransactionFinished,
    Unavailable,
    UnsupportedOperation,
)
from strandline.metastore.interface import AsOf, ResolvedTable, Session, TableFiles
from strandline.metastore.session.keep_alive import OpenTransaction, transaction_scope
from strandline.metastore.session.staged_files import FILES_OF_A_TRANSACTION_BITS
from strandline.metastore.store.rows import DataFileRow, DeleteFileRow
from strandline.spark.conforming import conform
from strandline.spark.folder import TableFolder
from strandline.spark.positions import (
    SCHEMA,
    counts_by_file,
    deleted_counts,
    select_files,
    write_delete_file,
)
from strandline.spark.scans import live_rows
from strandline.spark.schemas import FILE, POSITION, check_supported
from strandline.spark.settings import check_reading, check_writing
from strandline.spark.snapshots import table_key
from strandline.spark.writing import write_data_files
from strandline.transactions import TransactionState

MAX_FILES = 1 << FILES_OF_A_TRANSACTION_BITS
"""Data files that one transaction may add to one table."""


@dataclass(frozen=True, slots=True)
class Counts:
    """What a statement did: ``rows`` appended or deleted, in how many data ``files``."""

    rows: int
    files: int


class _WrittenTable:
    """A table as the transaction writes to it."""

    def __init__(self, table: ResolvedTable, *, name: str) -> None:
        self.table = table
        self.folder = TableFolder(table.location, table=name)
        self.numbers = itertools.count()
        self.placed: list[str] = []

    @property
    def id(self) -> int:
        return self.table.descriptor.id


class TablesTransaction:
    """See the module. Made by `Tables.transaction`; for one thread, within its block."""

    def __init__(self, spark: SparkSession, session: Session, begun: OpenTransaction) -> None:
        self._spark = spark
        self._session = session
        self._open = begun
        self._resolved: dict[str, ResolvedTable] = {}
        self._written: dict[int, _WrittenTable] = {}
        self._ended = False

    @property
    def txn_id(self) -> int:
        """The id that settles what became of it."""
        return self._open.txn_id

    @property
    def catalog_version(self) -> int:
        """The catalog version that decides names and columns."""
        return self._open.transaction.catalog_version

    def read(self, name: str) -> DataFrame:
        """The rows of a table as the transaction sees them now, its own changes included."""
        table = self._resolve(name)
        return live_rows(self._spark, self._session, table, self._files(table))

    def append(self, name: str, frame: DataFrame) -> Counts:
        """Append the rows of ``frame``; how many, in how many files.

        Columns are matched by name. Raises `InvalidInput` for columns or values that do not fit,
        and whatever makes the job of Spark fail; then the statement has done nothing.
        """
        written = self._for_writing(name)
        check_writing(self._spark)
        descriptor = written.table.descriptor
        rows = conform(frame, descriptor)
        with self._discarding(written):
            files = write_data_files(
                rows,
                written.folder,
                descriptor,
                txn_id=self.txn_id,
                new_file_id=lambda: self._new_file_id(written),
                placed=written.placed.append,
            )
            if files:
                self._open.stage(written.id, add=files)
        return Counts(rows=sum(one.rows for one in files), files=len(files))

    def delete(self, name: str, condition: str | Column) -> Counts:
        """Delete the rows for which ``condition`` is true; how many, in how many data files.

        Rows for which it is NULL stay. Raises `InvalidInput` for a condition that is none.
        """
        table = self._resolve(name)
        files = self._files(table)
        hits = self._find(table, files, condition)
        if not hits.num_rows:
            return Counts(rows=0, files=0)
        counts = counts_by_file(hits)
        whole = _emptied(files, counts)
        row_ids = {one.file.file_id: one.row_id for one in files.data_files}
        kept = counts.keys() - whole
        written = self._for_writing(name)
        add: list[DataFileRow | DeleteFileRow] = []
        with self._discarding(written):
            if kept:
                row = write_delete_file(
                    written.folder, select_files(hits, kept), txn_id=self.txn_id
                )
                written.placed.append(row.path)
                add.append(row)
            self._open.stage(
                written.id,
                add=add,
                remove=[row_ids[file_id] for file_id in sorted(whole)],
                touch=[row_ids[file_id] for file_id in sorted(kept)],
            )
        return Counts(rows=hits.num_rows, files=len(counts))

    def _find(self, table: ResolvedTable, files: TableFiles, condition: str | Column) -> pa.Table:
        if not isinstance(condition, str | Column):
            raise InvalidInput(
                f"a condition is SQL text or a Column, not {type(condition).__name__}"
            )
        try:
            wanted = sql.expr(condition) if isinstance(condition, str) else condition
            found = live_rows(self._spark, self._session, table, files, positions=True)
            hits = found.filter(wanted).select(
                sql.col(FILE).alias("file_id"), sql.col(POSITION).alias("position")
            )
        except AnalysisException as error:
            raise InvalidInput(
                f"not a condition on {table.schema}.{table.descriptor.name}: {error}"
            ) from error
        return hits.toArrow().cast(SCHEMA)

    def _resolve(self, name: str) -> ResolvedTable:
        if self._ended:
            raise TransactionFinished(
                f"transaction {self.txn_id} has ended with its block; begin another one"
            )
        check_reading(self._spark)
        key = table_key(name)
        if key not in self._resolved:
            found = self._session.table(name, at=AsOf(version=self.catalog_version))
            check_supported(found, name)
            self._resolved[key] = found
        return self._resolved[key]

    def _files(self, table: ResolvedTable) -> TableFiles:
        table_id = table.descriptor.id
        snapshot = self._open.snapshot([table_id])
        return self._session.files(table_id, snapshot.write_ids[table_id])

    def _for_writing(self, name: str) -> _WrittenTable:
        table = self._resolve(name)
        written = self._written.get(table.descriptor.id)
        if written is None:
            written = _WrittenTable(table, name=name)
            self._written[written.id] = written
        return written

    def _new_file_id(self, written: _WrittenTable) -> int:
        number = next(written.numbers)
        if number >= MAX_FILES:
            raise UnsupportedOperation(
                f"one transaction adds at most {MAX_FILES} files to a table; write fewer, larger"
                " files, for example after DataFrame.coalesce"
            )
        return self._open.write_id(written.id) << FILES_OF_A_TRANSACTION_BITS | number

    @contextmanager
    def _discarding(self, written: _WrittenTable) -> Iterator[None]:
        """Remove the statement's files if it fails.

        Where the metastore did not answer, it may know of them; then they stay until the
        transaction's end.
        """
        before = len(written.placed)
        try:
            yield
        except BaseException as error:
            if not isinstance(error, Unavailable):
                for relative in written.placed[before:]:
                    written.folder.discard(relative)
                del written.placed[before:]
            raise

    def _end(self) -> None:
        """Let go of the folders, and of the files of a transaction that is certainly aborted."""
        self._ended = True
        aborted = self._is_aborted()
        for written in self._written.values():
            if aborted:
                for relative in written.placed:
                    written.folder.discard(relative)
            written.folder.close()
        self._written.clear()

    def _is_aborted(self) -> bool:
        if self._open.state is TransactionState.OPEN and self._written:
            try:
                found = self._session.transaction(self.txn_id)
            except StrandlineError:
                return False
            return found.state is TransactionState.ABORTED
        return self._open.state is TransactionState.ABORTED


@contextmanager
def tables_transaction(spark: SparkSession, session: Session) -> Iterator[TablesTransaction]:
    """A transaction for a block: committed at its end, aborted when it raises.

    Raises `WriteConflict` if another transaction was first, and what `Session.commit` raises.
    """
    transaction: TablesTransaction | None = None
    try:
        with transaction_scope(session) as begun:
            transaction = TablesTransaction(spark, session, begun)
            yield transaction
    finally:
        if transaction is not None:
            transaction._end()


def _emptied(files: TableFiles, counts: dict[int, int]) -> set[int]:
    """The data files of which ``counts`` deletes all rows that were left."""
    gone = deleted_counts([one.file for one in files.delete_files])
    rows = {one.file.file_id: one.file.rows for one in files.data_files}
    return {i for i, count in counts.items() if count + gone.get(i, 0) == rows[i]}
