"""Positions of deleted rows: the files that hold them, and the bitmaps that a scan joins with.

A delete file is a small Parquet file with two columns, ``file_id`` and ``position`` (the number of
the row in the data file, from 0 on), sorted. It is written and read on the driver. A scan gets one
bitmap for each data file: bit *i* of word *w* is set if row 64·w + i is gone. For six million rows
these are 0.7 MB, whatever part of them is deleted.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from strandline.errors import CorruptData
from strandline.metastore.store.rows import DeleteFile
from strandline.spark.folder import TableFolder

SCHEMA = pa.schema(
    [pa.field("file_id", pa.int64(), False), pa.field("position", pa.int64(), False)]
)
Bitmap = np.ndarray[tuple[int], np.dtype[np.int64]]
"""Words of 64 bits, little end first."""


def write_delete_file(folder: TableFolder, positions: pa.Table, *, txn_id: int) -> DeleteFile:
    """Write ``positions`` (columns as in `SCHEMA`, in any order) as a delete file, on disk."""
    ordered = positions.cast(SCHEMA).sort_by([("file_id", "ascending"), ("position", "ascending")])
    with folder.new_delete_file(txn_id) as (path, file):
        pq.write_table(ordered, file, compression="zstd", write_page_checksum=True)
    folder.sync()
    counts = counts_by_file(ordered)
    return DeleteFile(path=path, file_ids=tuple(counts), counts=tuple(counts.values()))


def counts_by_file(positions: pa.Table) -> dict[int, int]:
    """How many of the positions lie in each file, by file id in order."""
    counted = positions.group_by("file_id").aggregate([("file_id", "count")]).sort_by("file_id")
    ids, counts = counted["file_id"].to_pylist(), counted["file_id_count"].to_pylist()
    return dict(zip(ids, counts, strict=True))


def deleted_counts(delete_files: Collection[DeleteFile]) -> dict[int, int]:
    """How many rows of each data file are gone, by file id."""
    deleted: dict[int, int] = {}
    for file in delete_files:
        for file_id, count in zip(file.file_ids, file.counts, strict=True):
            deleted[file_id] = deleted.get(file_id, 0) + count
    return deleted


def read_bitmaps(
    root: Path, delete_files: Sequence[DeleteFile], rows: Mapping[int, int]
) -> dict[int, Bitmap]:
    """The bitmap of each data file out of ``rows`` (file id → its number of rows) that has one.

    Raises `CorruptData` if a delete file is missing or does not say what its row says.
    """
    parts = [
        _read(root, file)
        for file in delete_files
        if any(file_id in rows for file_id in file.file_ids)
    ]
    if not parts:
        return {}
    positions = pa.concat_tables(parts).sort_by("file_id")
    ids, starts = np.unique(positions["file_id"].to_numpy(), return_index=True)
    pieces = np.split(positions["position"].to_numpy(), starts[1:])
    bitmaps = {}
    for file_id, piece in zip(ids.tolist(), pieces, strict=True):
        if file_id not in rows:
            continue
        if piece.min() < 0 or piece.max() >= rows[file_id]:
            raise CorruptData(
                f"a delete file in {root} names row {piece.max()} of data file {file_id}, which has"
                f" {rows[file_id]} rows"
            )
        bitmaps[file_id] = _bitmap(piece)
    return bitmaps


def deleted_rows(bitmap: Bitmap) -> int:
    """How many bits are set."""
    return int(np.unpackbits(bitmap.view(np.uint8)).sum())


def bitmap_table(bitmaps: Mapping[int, Bitmap]) -> pa.Table:
    """The bitmaps as columns ``bitmap_file`` and ``bitmap``, for a join."""
    words = pa.array(list(bitmaps.values()), pa.list_(pa.int64()))
    return pa.table({"bitmap_file": pa.array(list(bitmaps), pa.int64()), "bitmap": words})


def _bitmap(positions: np.ndarray[tuple[int], np.dtype[np.int64]]) -> Bitmap:
    bits = np.zeros((int(positions.max()) // 64 + 1) * 64, dtype=np.uint8)
    bits[positions] = 1
    return np.packbits(bits, bitorder="little").view("<i8")


def _read(root: Path, row: DeleteFile) -> pa.Table:
    path = root / row.path
    try:
        positions = pq.ParquetFile(path, page_checksum_verification=True).read(columns=SCHEMA.names)
    except (OSError, pa.ArrowException) as error:
        raise CorruptData(f"delete file {path} cannot be read: {error}") from error
    if counts_by_file(positions) != dict(zip(row.file_ids, row.counts, strict=True)):
        raise CorruptData(
            f"delete file {path} holds {positions.num_rows} positions, and {sum(row.counts)} in"
            f" {len(row.file_ids)} data files were written; restore the file from a backup"
        )
    return positions


def select_files(positions: pa.Table, file_ids: Collection[int]) -> pa.Table:
    """The positions that lie in these files."""
    wanted = pa.array(sorted(file_ids), pa.int64())
    return positions.filter(pc.is_in(positions["file_id"], value_set=wanted))
