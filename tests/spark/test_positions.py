"""Delete files and bitmaps. No Spark session is needed."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from strandline.errors import CorruptData, Unavailable
from strandline.metastore.interface import TableFiles
from strandline.metastore.store.file_scans import deleted_counts
from strandline.metastore.store.rows import DataFile, DeleteFile
from strandline.spark.folder import TableFolder
from strandline.spark.positions import (
    POSITIONS,
    Bitmap,
    bitmap_table,
    bitmaps_of,
    deleted_rows,
    read_bitmaps,
    write_delete_file,
)
from strandline.spark.schemas import BITMAP, BITMAP_FILE
from strandline.spark.transaction import _emptied


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[TableFolder]:
    opened = TableFolder(str(tmp_path), table="shop.orders")
    yield opened
    opened.close()


def table(pairs: list[tuple[int, int]]) -> pa.Table:
    return pa.table(
        [
            pa.array([pair[0] for pair in pairs], pa.int64()),
            pa.array([pair[1] for pair in pairs], pa.int64()),
        ],
        schema=POSITIONS,
    )


def set_bits(bitmap: Bitmap) -> set[int]:
    return {
        64 * word + bit
        for word, value in enumerate(bitmap.tolist())
        for bit in range(64)
        if value >> bit & 1
    }


pairs = st.lists(
    st.tuples(st.integers(1, 4), st.integers(0, 200)), min_size=1, max_size=50, unique=True
)


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    max_examples=25,
)
@given(st.lists(pairs, min_size=1, max_size=3))
def test_bitmaps_hold_the_positions_of_all_delete_files(
    folder: TableFolder, statements: list[list[tuple[int, int]]]
) -> None:
    taken: set[tuple[int, int]] = set()
    rows = []
    for statement in statements:
        fresh = [pair for pair in statement if pair not in taken]
        taken.update(fresh)
        if fresh:
            rows.append(write_delete_file(folder, bitmaps_of(table(fresh)), txn_id=1))
    sizes = {1: 201, 2: 201, 3: 201}
    read_back = read_bitmaps(folder.path, rows, sizes)
    expected = {i: {p for f, p in taken if f == i} for i in {f for f, _ in taken} & sizes.keys()}
    assert {i: set_bits(bitmap) for i, bitmap in read_back.items()} == expected
    assert {i: deleted_rows(bitmap) for i, bitmap in read_back.items()} == {
        i: count for i, count in deleted_counts(rows).items() if i in sizes
    }


def test_a_delete_file_has_a_bitmap_for_each_data_file(folder: TableFolder) -> None:
    row = write_delete_file(folder, bitmaps_of(table([(9, 2), (5, 70), (9, 1)])), txn_id=12)
    assert row.path.startswith("_deletes/12-")
    assert (row.file_ids, row.counts) == ((5, 9), (1, 2))
    written = pq.ParquetFile(folder.path / row.path)
    assert written.read().to_pydict() == {"file_id": [5, 9], "bitmap": [[0, 64], [6]]}
    assert written.metadata.row_group(0).column(0).compression == "ZSTD"


def test_position_files_of_older_releases_are_read_together_with_bitmap_files(
    folder: TableFolder,
) -> None:
    bitmaps = write_delete_file(folder, bitmaps_of(table([(1, 70), (2, 3)])), txn_id=9)
    pq.write_table(table([(1, 2), (1, 65)]), folder.path / "_deletes/old.parquet")
    positions = DeleteFile(path="_deletes/old.parquet", file_ids=(1,), counts=(2,))
    read_back = read_bitmaps(folder.path, [positions, bitmaps], {1: 71, 2: 4})
    assert {i: set_bits(bitmap) for i, bitmap in read_back.items()} == {1: {2, 65, 70}, 2: {3}}


def test_a_file_is_emptied_by_all_its_deletes_together() -> None:
    data = [DataFile(file_id=n, path=f"{n}", rows=10, bytes=1) for n in (1, 2)]
    deletes = [DeleteFile(path="d", file_ids=(1, 2), counts=(3, 3))]
    assert _emptied(TableFiles(data, deletes), {1: 7, 2: 6}) == {1}


def test_the_last_bit_of_a_word_is_its_sign(folder: TableFolder) -> None:
    row = write_delete_file(folder, bitmaps_of(table([(1, 63)])), txn_id=1)
    assert read_bitmaps(folder.path, [row], {1: 64})[1].tolist() == [-(2**63)]


def test_bitmaps_become_columns_for_a_join() -> None:
    made = bitmap_table({7: np.array([1, 2], np.int64), 8: np.array([4], np.int64)})
    assert made.to_pydict() == {BITMAP_FILE: [7, 8], BITMAP: [[1, 2], [4]]}


def test_a_delete_file_of_other_data_files_is_not_opened(folder: TableFolder) -> None:
    row = write_delete_file(folder, bitmaps_of(table([(1, 1)])), txn_id=1)
    folder.discard(row.path)
    assert read_bitmaps(folder.path, [row], {2: 10}) == {}


def test_a_missing_delete_file_raises_an_error_instead_of_showing_deleted_rows(
    folder: TableFolder,
) -> None:
    row = write_delete_file(folder, bitmaps_of(table([(1, 1)])), txn_id=1)
    folder.discard(row.path)
    with pytest.raises(CorruptData, match=row.path):
        read_bitmaps(folder.path, [row], {1: 10})


def test_a_lack_of_descriptors_does_not_make_a_delete_file_corrupt(folder: TableFolder) -> None:
    row = write_delete_file(folder, bitmaps_of(table([(1, 1)])), txn_id=1)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest_free = os.dup(0)
    os.close(lowest_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, limits[1]))
    try:
        with pytest.raises(Unavailable, match="Too many open files"):
            read_bitmaps(folder.path, [row], {1: 10})
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert read_bitmaps(folder.path, [row], {1: 10}).keys() == {1}


def test_a_truncated_delete_file_raises_an_error(folder: TableFolder) -> None:
    row = write_delete_file(folder, bitmaps_of(table([(1, 1)])), txn_id=1)
    path = folder.path / row.path
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(CorruptData, match="it was cut or replaced"):
        read_bitmaps(folder.path, [row], {1: 10})
    with pytest.raises(CorruptData, match="cannot be read"):
        read_bitmaps(folder.path, [replace(row, bytes=0)], {1: 10})


def test_a_flipped_bit_in_a_delete_file_raises_a_checksum_error(folder: TableFolder) -> None:
    row = write_delete_file(folder, bitmaps_of(table([(1, 1)])), txn_id=1)
    path = folder.path / row.path
    column = pq.read_metadata(path).row_group(0).column(1)
    content = bytearray(path.read_bytes())
    content[column.data_page_offset + column.total_compressed_size // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(CorruptData, match="CRC checksum"):
        read_bitmaps(folder.path, [row], {1: 10})


def test_a_delete_file_that_was_replaced_by_one_of_as_many_rows_raises_an_error(
    folder: TableFolder,
) -> None:
    row = write_delete_file(folder, bitmaps_of(table([(1, 1)])), txn_id=1)
    other = write_delete_file(folder, bitmaps_of(table([(1, 700)])), txn_id=2)
    (folder.path / other.path).rename(folder.path / row.path)
    with pytest.raises(CorruptData, match="it was cut or replaced"):
        read_bitmaps(folder.path, [row], {1: 1_000})


def test_a_delete_file_whose_counts_differ_from_its_record_raises_an_error(
    folder: TableFolder,
) -> None:
    row = write_delete_file(folder, bitmaps_of(table([(1, 1)])), txn_id=1)
    with pytest.raises(CorruptData, match="2 deleted rows of 1 data files that were written"):
        read_bitmaps(folder.path, [replace(row, counts=(2,))], {1: 10})


@pytest.mark.parametrize("position", [0, 10, 63, 64, 127])
def test_a_position_after_the_end_of_its_data_file_raises_an_error(
    folder: TableFolder, position: int
) -> None:
    row = write_delete_file(folder, bitmaps_of(table([(1, position)])), txn_id=1)
    with pytest.raises(CorruptData, match=f"names row {position} "):
        read_bitmaps(folder.path, [row], {1: position})
    assert read_bitmaps(folder.path, [row], {1: position + 1})


def test_an_empty_bitmap_deletes_nothing(folder: TableFolder) -> None:
    row = write_delete_file(folder, bitmaps_of(table([(1, 0), (2, 0)])), txn_id=1)
    written = pq.ParquetFile(folder.path / row.path).read()
    empty = pa.array([[], [1]], written.schema.field("bitmap").type)
    pq.write_table(written.set_column(1, "bitmap", empty), folder.path / row.path)
    read_back = read_bitmaps(folder.path, [replace(row, counts=(0, 1), bytes=0)], {1: 10, 2: 10})
    assert {file_id: set_bits(bitmap) for file_id, bitmap in read_back.items()} == {
        1: set(),
        2: {0},
    }
