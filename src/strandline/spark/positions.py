"""Deleted rows: the positions that a scan finds, the delete files, and the bitmaps for a join.

A delete file is a small Parquet file. It has a row for each data file from which a transaction
deleted rows: the id of the data file and a bitmap. If bit *i* of word *w* is set, row 64·w + i
(counted from 0) is deleted. For six million rows, the bitmaps take 0.7 MB, regardless of how many
rows are deleted. A scan joins with them as they are; Spark's executors need not have this package.
If several delete files name one data file, a row is deleted if any of them says so.

Up to 0.2.1, a delete file had a row for each deleted row. Such files can still be read.

The driver writes and reads delete files. Spark's executors make the bitmaps of a delete that may
find many rows.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame
from pyspark.sql import functions as sql

from strandline.errors import CorruptData, Unavailable
from strandline.metastore.store.rows import DeleteFile, DeleteForm
from strandline.spark.folder import TableFolder
from strandline.spark.interrupts import collected
from strandline.spark.schemas import BITMAP, BITMAP_FILE, FILE, POSITION

POSITIONS = pa.schema(
    [pa.field("file_id", pa.int64(), False), pa.field("position", pa.int64(), False)]
)
_WORDS = pa.list_(pa.field("element", pa.int64(), False))
_BITMAPS = pa.schema([pa.field("file_id", pa.int64(), False), pa.field("bitmap", _WORDS, False)])
Numbers = np.ndarray[tuple[int], np.dtype[np.int64]]
Bitmap = Numbers
"""Words of 64 bits, least significant byte first."""

_NOT_OF_THE_FILE = (errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""Errors that say nothing about a file: a backup of it would not help."""
MAX_COLLECTED = 1 << 24
"""If a delete may find more rows, Spark makes their bitmaps; otherwise this process does.

A position takes 16 bytes in the memory of the driver, a word of up to 64 positions 24 bytes. Spark
takes up to twice as long for the words as for the positions of the same rows.
"""
_WORD = f"bit_or(shiftleft(1L, CAST({POSITION} & 63 AS INT)))"


def bitmaps_of_rows(rows: DataFrame, *, at_most: int) -> dict[int, Bitmap]:
    """The bitmaps, by file id, of the rows that the columns `FILE` and `POSITION` of ``rows`` name.

    There are at most ``at_most`` rows. Spark makes the bitmaps if that exceeds `MAX_COLLECTED`.
    """
    if at_most <= MAX_COLLECTED:
        named = rows.select(sql.col(FILE).alias("file_id"), sql.col(POSITION).alias("position"))
        return bitmaps_of(collected(named))
    index = sql.shiftright(POSITION, 6).alias("index")
    words = rows.groupBy(sql.col(FILE).alias("file_id"), index).agg(sql.expr(_WORD).alias("word"))
    return {
        file_id: _bitmap_of(indexes, values)
        for file_id, (indexes, values) in _by_file(collected(words), "index", "word")
    }


def bitmaps_of(positions: pa.Table) -> dict[int, Bitmap]:
    """The bitmaps, by file id, of ``positions`` (columns as in `POSITIONS`, in any order)."""
    pieces = _by_file(positions.cast(POSITIONS), "position")
    return {file_id: _bitmap(piece) for file_id, (piece,) in pieces}


def write_delete_file(
    folder: TableFolder, bitmaps: Mapping[int, Bitmap], *, txn_id: int
) -> DeleteFile:
    """Write the bitmaps, by file id, as a delete file, on disk."""
    rows = pa.table(
        [pa.array(list(bitmaps), pa.int64()), pa.array(list(bitmaps.values()), _WORDS)],
        schema=_BITMAPS,
    )
    with folder.new_delete_file(txn_id) as (path, file):
        pq.write_table(rows, file, compression="zstd", write_page_checksum=True)
        size = file.tell()
    folder.sync()
    return DeleteFile(
        path=path,
        file_ids=tuple(bitmaps),
        counts=tuple(map(deleted_rows, bitmaps.values())),
        form=DeleteForm.BITMAPS,
        bytes=size,
    )


def read_bitmaps(
    root: Path, delete_files: Sequence[DeleteFile], rows: Mapping[int, int]
) -> dict[int, Bitmap]:
    """The bitmap of each data file in ``rows`` (file id → its number of rows) that has one.

    Raises `CorruptData` if a delete file is missing, does not match its row in the metastore, or
    names a row that its data file does not have.
    """
    bitmaps: dict[int, Bitmap] = {}
    for file in delete_files:
        if not any(file_id in rows for file_id in file.file_ids):
            continue
        for file_id, bitmap in read_delete_file(root, file).items():
            if file_id in rows:
                _check_end(root, file_id, bitmap, rows[file_id])
                bitmaps[file_id] = _union(bitmaps.get(file_id), bitmap)
    return bitmaps


def deleted_rows(bitmap: Bitmap) -> int:
    """The number of bits that are set."""
    return int(np.unpackbits(bitmap.view(np.uint8)).sum())


def bitmap_table(bitmaps: Mapping[int, Bitmap]) -> pa.Table:
    """The bitmaps as the columns `BITMAP_FILE` and `BITMAP`, for a join."""
    words = pa.array(list(bitmaps.values()), pa.list_(pa.int64()))
    return pa.table({BITMAP_FILE: pa.array(list(bitmaps), pa.int64()), BITMAP: words})


def read_delete_file(root: Path, row: DeleteFile) -> dict[int, Bitmap]:
    """The bitmaps of a delete file, ordered by file id.

    Raises `CorruptData` if the file is missing or does not match its row in the metastore, and
    `Unavailable` if this process may not open it now.
    """
    path = root / row.path
    columns = (POSITIONS if row.form is DeleteForm.POSITIONS else _BITMAPS).names
    try:
        size = os.stat(path).st_size
        if row.bytes not in (0, size):
            raise CorruptData(
                f"delete file {path} has {size} bytes, but {row.bytes} were written: it was cut or"
                " replaced; restore the file from a backup"
            )
        table = pq.ParquetFile(path, page_checksum_verification=True).read(columns=columns)
    except (OSError, pa.ArrowException) as error:
        if isinstance(error, OSError) and error.errno in _NOT_OF_THE_FILE:
            raise Unavailable(
                f"delete file {path} cannot be opened: {os.strerror(error.errno)}; give this"
                " process the rights to read it, more descriptors (see `ulimit -n`) or memory, and"
                " try again"
            ) from error
        raise CorruptData(f"delete file {path} cannot be read: {error}") from error
    if row.form is DeleteForm.POSITIONS:
        bitmaps = bitmaps_of(table)
    else:
        words = [np.asarray(bitmap.values, dtype=np.int64) for bitmap in table["bitmap"]]
        bitmaps = dict(zip(table["file_id"].to_pylist(), words, strict=True))
    written = dict(zip(row.file_ids, row.counts, strict=True))
    if {file_id: deleted_rows(bitmap) for file_id, bitmap in bitmaps.items()} != written:
        raise CorruptData(
            f"delete file {path} does not hold the {sum(row.counts)} deleted rows of"
            f" {len(row.file_ids)} data files that were written; restore the file from a backup"
        )
    return bitmaps


def _by_file(rows: pa.Table, *columns: str) -> Iterator[tuple[int, list[Numbers]]]:
    """The values of ``columns`` in the rows of each ``file_id``, ordered by file id."""
    if not rows.num_rows:
        return
    ordered = rows.sort_by("file_id")
    ids, starts = np.unique(ordered["file_id"].to_numpy(), return_index=True)
    pieces = [np.split(ordered[column].to_numpy(), starts[1:]) for column in columns]
    for file_id, *values in zip(ids.tolist(), *pieces, strict=True):
        yield file_id, values


def _bitmap(positions: Numbers) -> Bitmap:
    bits = np.zeros((int(positions.max()) // 64 + 1) * 64, dtype=np.uint8)
    bits[positions] = 1
    return np.packbits(bits, bitorder="little").view("<i8")


def _bitmap_of(indexes: Numbers, words: Numbers) -> Bitmap:
    """The bitmap with these words at these indexes, and zeros between them."""
    bitmap = np.zeros(int(indexes.max()) + 1, dtype="<i8")
    bitmap[indexes] = words
    return bitmap


def _union(bitmap: Bitmap | None, more: Bitmap) -> Bitmap:
    if bitmap is None:
        return more
    short, long = sorted((bitmap, more), key=len)
    union = long.copy()
    union[: len(short)] |= short
    return union


def _check_end(root: Path, file_id: int, bitmap: Bitmap, rows: int) -> None:
    words = np.flatnonzero(bitmap)
    if not len(words):
        return
    last_word = int(bitmap[words[-1]]) % (1 << 64)  # the highest bit is the sign
    last = 64 * int(words[-1]) + last_word.bit_length() - 1
    if last >= rows:
        raise CorruptData(
            f"a delete file in {root} names row {last} of data file {file_id}, which has"
            f" {rows} rows"
        )
