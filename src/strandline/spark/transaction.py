"""`TablesTransaction`: appends and deletes on several tables that commit together.

A transaction sees the tables as they were when it began, and its own changes. Rows are written as
files: Spark writes the files or finds the rows to delete, the files are put on disk and in place,
and only then are they staged in the metastore. No other reader sees them before the commit.

What must stay true:

* File ids are unique in a table forever: the transaction's id, which is assigned only once,
  followed by a number that the transaction counts.
* A delete names each data file from which it removes rows. So if two transactions do so for one
  file, the first to commit wins. Otherwise a position that both delete would count twice.
* Files are removed only once it is certain that the transaction is aborted. After a commit whose
  outcome is unknown they stay.
* Statements run one after another, also those of several threads. A statement that fails removes
  what was placed since it began, and a delete must not count rows that another one deletes.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from pyspark.sql import Column, DataFrame, SparkSession

from strandline.errors import (
    ObjectNotFound,
    StrandlineError,
    TransactionFinished,
    UnsupportedOperation,
)
from strandline.metastore.interface import ResolvedTable, Session, TableFiles, table_key
from strandline.metastore.session.keep_alive import OpenTransaction, transaction_scope
from strandline.metastore.store.file_scans import deleted_counts
from strandline.metastore.store.rows import FILE_NUMBER_BITS, DataFile, DeleteFile
from strandline.spark.folder import TableFolder
from strandline.spark.positions import bitmaps_of_rows, deleted_rows, write_delete_file
from strandline.spark.scans import bounds_of, live_rows, require_condition
from strandline.spark.schemas import check_levels, check_reading, check_supported, check_writing
from strandline.spark.writing import conform, write_data_files
from strandline.transactions import TransactionState, ValidWriteIdList

MAX_FILES = 1 << FILE_NUMBER_BITS
"""The maximum number of data files that one transaction may add to one table."""


@dataclass(frozen=True, slots=True)
class Counts:
    """The result of a statement: ``rows`` appended or deleted, and the number of data ``files``."""

    rows: int
    files: int


class _OpenedTable:
    """A table as the transaction sees it, and what the transaction has written to it so far."""

    def __init__(
        self,
        table: ResolvedTable,
        write_ids: ValidWriteIdList,
        *,
        locate: Callable[[], str],
        is_taken: Callable[[str], bool] = lambda _: False,
    ) -> None:
        self.table = table
        self.write_ids = write_ids
        self.numbers = itertools.count()
        self.placed: list[str] = []
        self._locate = locate
        self._is_taken = is_taken
        self._folder: TableFolder | None = None

    @property
    def id(self) -> int:
        return self.table.descriptor.id

    @property
    def folder(self) -> TableFolder:
        """The table's folder, opened at the first write and kept until `close`.

        The table may have been renamed since it was read, and another table got its old folder.
        """
        while self._folder is None:
            location = self._locate()
            is_taken = partial(self._is_taken, location)
            folder = TableFolder(location, table=self.table.name, is_taken=is_taken)
            if self._locate() == location:
                self._folder = folder
            else:  # renamed while it was opened
                folder.close()
        return self._folder

    def close(self) -> None:
        if self._folder is not None:
            self._folder.close()
            self._folder = None


class TablesTransaction:
    """See the module docstring. Made by `Tables.transaction`; used within its block.

    A statement waits until those of other threads have ended.
    """

    def __init__(self, spark: SparkSession, session: Session, begun: OpenTransaction) -> None:
        self._spark = spark
        self._session = session
        self._open = begun
        self._opened: dict[str, _OpenedTable] = {}
        self._statement = threading.RLock()
        self._ended = False

    def __repr__(self) -> str:
        return f"<TablesTransaction {self.txn_id}>"

    @property
    def txn_id(self) -> int:
        """The id by which the outcome of the transaction can be looked up."""
        return self._open.txn_id

    @property
    def catalog_version(self) -> int:
        """The catalog version that determines names and columns."""
        return self._open.transaction.catalog_version

    def read(self, name: str, *, where: str | Column | None = None) -> DataFrame:
        """The rows of a table as the transaction sees them now, including its own changes.

        With ``where``, only rows for which the condition is true, from files that may contain them.
        """
        with self._statement:
            opened = self._table(name)
            rows = live_rows(self._spark, self._session, opened.table, self._files(opened, where))
            return rows if where is None else rows.filter(where)

    def append(self, name: str, frame: DataFrame) -> Counts:
        """Append the rows of ``frame``; return how many, in how many files.

        Columns are matched by name. Raises `InvalidInput` for columns or values that do not fit,
        and whatever makes the Spark job fail; then the statement has changed nothing.
        """
        with self._statement:
            opened = self._table(name)
            folder = opened.folder
            descriptor = opened.table.descriptor
            check_levels(descriptor.columns)
            rows = conform(frame, opened.table)
            check_writing(frame.sparkSession, descriptor.columns)  # it will write the rows
            with self._discarding(opened):
                files = write_data_files(
                    rows,
                    folder,
                    descriptor,
                    txn_id=self.txn_id,
                    new_file_id=lambda: self._new_file_id(opened),
                    placed=opened.placed.append,
                )
                if files:
                    self._stage(opened, add=files)
            return Counts(rows=sum(file.rows for file in files), files=len(files))

    def delete(self, name: str, condition: str | Column) -> Counts:
        """Delete the rows for which ``condition`` is true; return how many, in how many data files.

        Rows for which it is NULL stay. Raises `InvalidInput` if the condition is not valid.
        """
        require_condition(condition)
        with self._statement:
            opened = self._table(name)
            files = self._files(opened, condition)
            rows = live_rows(self._spark, self._session, opened.table, files, positions=True)
            at_most = sum(file.rows for file in files.data_files)
            hits = bitmaps_of_rows(rows.filter(condition), at_most=at_most)
            if not hits:
                return Counts(rows=0, files=0)
            counts = {file_id: deleted_rows(bitmap) for file_id, bitmap in hits.items()}
            emptied_files = _emptied(files, counts)
            paths = {file.file_id: file.path for file in files.data_files}
            kept = counts.keys() - emptied_files
            add: list[DataFile | DeleteFile] = []
            with self._discarding(opened):
                if kept:
                    bitmaps = {file_id: hits[file_id] for file_id in sorted(kept)}
                    delete_file = write_delete_file(opened.folder, bitmaps, txn_id=self.txn_id)
                    opened.placed.append(delete_file.path)
                    add.append(delete_file)
                self._stage(
                    opened,
                    add=add,
                    remove=[paths[file_id] for file_id in sorted(emptied_files)],
                    touch=[paths[file_id] for file_id in sorted(kept)],
                )
            return Counts(rows=sum(counts.values()), files=len(counts))

    def _table(self, name: str) -> _OpenedTable:
        if self._ended:
            raise TransactionFinished(
                f"transaction {self.txn_id} has ended with its block; begin another one"
            )
        self._open.check()
        check_reading(self._spark)
        key = table_key(name)
        if key not in self._opened:
            snapshot = self._open.open([name])
            table = snapshot.table(name)
            check_supported(table, name)
            self._opened[key] = _OpenedTable(
                table,
                snapshot.write_ids_of(name),
                locate=lambda: self._open.open([name]).table(name).location,
                is_taken=partial(self._is_taken, name),
            )
        return self._opened[key]

    def _is_taken(self, name: str, location: str) -> bool:
        """Whether a new table may have the old folder of a table that was renamed or dropped."""
        try:
            return self._session.table(name).location == location
        except ObjectNotFound:
            return False
        except StrandlineError:
            return True

    def _files(self, opened: _OpenedTable, condition: str | Column | None) -> TableFiles:
        """The files that may contain rows for which ``condition`` is true."""
        bounds = () if condition is None else bounds_of(self._spark, opened.table, condition)
        return self._session.files(opened.id, opened.write_ids, bounds=bounds)

    def _stage(
        self,
        opened: _OpenedTable,
        *,
        add: Sequence[DataFile | DeleteFile],
        remove: Sequence[str] = (),
        touch: Sequence[str] = (),
    ) -> None:
        write_id = self._open.stage(opened.id, add=add, remove=remove, touch=touch)
        opened.write_ids = opened.write_ids.with_own_write(write_id)

    def _new_file_id(self, opened: _OpenedTable) -> int:
        number = next(opened.numbers)
        if number >= MAX_FILES:
            raise UnsupportedOperation(
                f"one transaction adds at most {MAX_FILES} files to a table; write fewer, larger"
                " files, for example after DataFrame.coalesce"
            )
        return self.txn_id << FILE_NUMBER_BITS | number

    @contextmanager
    def _discarding(self, opened: _OpenedTable) -> Iterator[None]:
        """Remove the statement's files if it fails.

        If they may have been staged, they stay until the end of the transaction. Raises the error
        of a lost transaction instead: cleaning removes its files, and then Spark does not find
        them.
        """
        before = len(opened.placed)
        try:
            yield
        except BaseException as error:
            if not self._open.stage_is_unknown:
                for relative in opened.placed[before:]:
                    opened.folder.discard(relative)
                if isinstance(error, Exception):
                    self._open.check()
            raise

    def _end(self) -> None:
        """Close the folders, and remove the files if the transaction is certainly aborted."""
        self._ended = True
        aborted = self._is_aborted()
        for opened in list(self._opened.values()):  # a thread may still open one
            if aborted:
                for relative in opened.placed:
                    opened.folder.discard(relative)
            opened.close()

    def _is_aborted(self) -> bool:
        left_files = any(opened.placed for opened in list(self._opened.values()))
        if self._open.state is TransactionState.OPEN and left_files:
            try:
                transaction = self._session.transaction(self.txn_id)
            except StrandlineError:
                return False
            return transaction.state is TransactionState.ABORTED
        return self._open.state is TransactionState.ABORTED


@contextmanager
def tables_transaction(spark: SparkSession, session: Session) -> Iterator[TablesTransaction]:
    """A transaction for a block, which commits at its end and aborts if it raises.

    Raises `WriteConflict` if a conflicting transaction committed first, and what `Session.commit`
    raises.
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
    """The data files whose remaining rows ``counts`` deletes completely."""
    deleted_before = deleted_counts(files.delete_files)
    rows = {file.file_id: file.rows for file in files.data_files}
    return {i for i, count in counts.items() if count + deleted_before.get(i, 0) == rows[i]}
