"""Appending: one job of Spark writes Parquet files, which are then numbered and put in place."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

import pyarrow.parquet as pq
from pyspark.errors import AnalysisException

from strandline.errors import InvalidInput, StrandlineError
from strandline.metastore.store.rows import DataFile
from strandline.model.descriptors import TableDescriptor
from strandline.spark.conforming import Conformed
from strandline.spark.folder import TableFolder, spark_path
from strandline.spark.footers import column_statistics, file_ids
from strandline.spark.schemas import field_ids

_WRITER_OPTIONS = {
    # The staging folder belongs to one job, so tasks may move their files there at once.
    "mapreduce.fileoutputcommitter.algorithm.version": "2",
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    # The default, unless the session says otherwise: damage in a file must be found.
    "parquet.page.write-checksum.enabled": "true",
}


@dataclass(frozen=True, slots=True)
class _Written:
    """A file that Spark wrote into the staging folder, synced."""

    name: str
    bytes: int
    metadata: pq.FileMetaData


def write_data_files(
    rows: Conformed,
    folder: TableFolder,
    table: TableDescriptor,
    *,
    txn_id: int,
    new_file_id: Callable[[], int],
    placed: Callable[[str], None],
) -> list[DataFile]:
    """Write ``rows`` and return the files, on disk and in place; none for no rows.

    ``placed`` is called with each file as it gets its place, so that an abort can remove it. Raises
    `InvalidInput` for a value that breaks a promise of its column, `WriteConflict` if the table's
    folder moved, and whatever makes the job of Spark fail.
    """
    staging = folder.new_staging(txn_id)
    try:
        _run(rows, spark_path(folder.path / staging))
        with folder.staged(staging) as staged:
            written = [file for file in _files(staged) if file.metadata.num_rows]
            _check_ids(written, table)
            files = []
            for file in written:
                file_id = new_file_id()
                path = folder.place(staged, file.name, file_id)
                placed(path)
                files.append(
                    DataFile(
                        file_id=file_id,
                        path=path,
                        rows=file.metadata.num_rows,
                        bytes=file.bytes,
                        statistics=column_statistics(file.metadata),
                    )
                )
        folder.sync()
        return files
    finally:
        folder.discard_staging(staging)


def _run(rows: Conformed, path: str) -> None:
    try:
        rows.frame.write.options(**_WRITER_OPTIONS).parquet(path)
    except AnalysisException as error:
        raise InvalidInput(f"the rows cannot be written: {error}") from error
    except Exception as error:
        said = str(error)
        for complaint in rows.complaints:
            if complaint in said:
                raise InvalidInput(f"{complaint}; nothing was appended") from error
        raise


def _files(staged: int) -> list[_Written]:
    written = []
    for name in sorted(os.listdir(staged)):
        if name.startswith((".", "_")):
            continue
        with open(name, "rb", opener=lambda n, flags: os.open(n, flags, dir_fd=staged)) as file:
            metadata = pq.read_metadata(file)
            os.fsync(file.fileno())
            written.append(_Written(name, os.fstat(file.fileno()).st_size, metadata))
    return written


def _check_ids(written: list[_Written], table: TableDescriptor) -> None:
    """Columns are found by id and by nothing else, so a file without them would lose its rows."""
    expected = field_ids(table.columns)
    for file in written:
        if file_ids(file.metadata) != expected:
            raise StrandlineError(
                f"Spark wrote a file for {table.name} with the column ids"
                f" {sorted(file_ids(file.metadata))} where the table has {sorted(expected)};"
                " nothing was appended"
            )
