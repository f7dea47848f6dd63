"""Deleted rows: the positions that a scan finds, the delete files, and the bitmaps for a join.

A delete file is a small Parquet file. It has a row for each data file from which a transaction
deleted rows: the id of the data file and a bitmap. If bit *i* of word *w* is set, row 64·w + i
(counted from 0) is deleted. For six million rows, the bitmaps take 0.7 MB, regardless of how many
rows are deleted. A scan joins with them as they are; Spark's executors need not have this package.
If several delete files name one data file, a row is deleted if any of them says so.

Up to 0.2.1, a delete file had a row for each deleted row. Such files can still be read.

The driver writes and reads delete files.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from strandline.errors import CorruptData
from strandline.metastore.store.rows import DeleteFile, DeleteForm
from strandline.spark.folder import TableFolder
from strandline.spark.schemas import BITMAP, BITMAP_FILE

POSITIONS = pa.schema(
    [pa.field("file_id", pa.int64(), False), pa.field("position", pa.int64(), False)]
)
_WORDS = pa.list_(pa.field("element", pa.int64(), False))
_BITMAPS = pa.schema([pa.field("file_id", pa.int64(), False), pa.field("bitmap", _WORDS, False)])
Bitmap = np.ndarray[tuple[int], np.dtype[np.int64]]
"""Words of 64 bits, least significant byte first."""


def write_delete_file(folder: TableFolder, positions: pa.Table, *, txn_id: int) -> DeleteFile:
    """Write ``positions`` (columns as in `POSITIONS`, in any order) as a delete file, on disk."""
    bitmaps = {file_id: _bitmap(piece) for file_id, piece in _by_file(positions.cast(POSITIONS))}
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


def counts_by_file(positions: pa.Table) -> dict[int, int]:
    """The number of positions in each file, ordered by file id."""
    counted = positions.group_by("file_id").aggregate([("file_id", "count")]).sort_by("file_id")
    ids, counts = counted["file_id"].to_pylist(), counted["file_id_count"].to_pylist()
    return dict(zip(ids, counts, strict=True))


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

    Raises `CorruptData` if the file is missing or does not match its row in the metastore.
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
        raise CorruptData(f"delete file {path} cannot be read: {error}") from error
    if row.form is DeleteForm.POSITIONS:
        bitmaps = {file_id: _bitmap(piece) for file_id, piece in _by_file(table)}
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


def _by_file(positions: pa.Table) -> Iterator[tuple[int, Bitmap]]:
    """The positions in each data file, ordered by file id."""
    if not positions.num_rows:
        return
    ordered = positions.sort_by("file_id")
    ids, starts = np.unique(ordered["file_id"].to_numpy(), return_index=True)
    yield from zip(ids.tolist(), np.split(ordered["position"].to_numpy(), starts[1:]), strict=True)


def _bitmap(positions: np.ndarray[tuple[int], np.dtype[np.int64]]) -> Bitmap:
    bits = np.zeros((int(positions.max()) // 64 + 1) * 64, dtype=np.uint8)
    bits[positions] = 1
    return np.packbits(bits, bitorder="little").view("<i8")


def _union(known: Bitmap | None, more: Bitmap) -> Bitmap:
    if known is None:
        return more
    short, long = sorted((known, more), key=len)
    union = long.copy()
    union[: len(short)] |= short
    return union


def _check_end(root: Path, file_id: int, bitmap: Bitmap, rows: int) -> None:
    positions = np.flatnonzero(np.unpackbits(bitmap.view(np.uint8), bitorder="little"))
    last = int(positions[-1]) if len(positions) else -1
    if last >= rows:
        raise CorruptData(
            f"a delete file in {root} names row {last} of data file {file_id}, which has"
            f" {rows} rows"
        )


def select_files(positions: pa.Table, file_ids: Collection[int]) -> pa.Table:
    """The positions in these files."""
    wanted_ids = pa.array(sorted(file_ids), pa.int64())
    return positions.filter(pc.is_in(positions["file_id"], value_set=wanted_ids))
