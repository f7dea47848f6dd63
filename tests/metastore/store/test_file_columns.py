"""Columns of data files, read from rows without decoding them and from decoded files."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.errors import CorruptData, IncompatibleFormat
from strandline.metastore.store.file_columns import (
    FEW,
    KEYED,
    FileColumns,
    StoredDataFiles,
    by_partition,
    paths_by_id,
    without_statistics,
)
from strandline.metastore.store.rows import (
    ColumnStatistics,
    DataFile,
    Row,
    RowKind,
    new_file,
    row_context,
)
from strandline.model.partitioning import PartitionValue
from strandline.wire.registry import seal
from tests.metastore.file_strategies import data_files

SEAL_BYTES = 6
USUAL = DataFile(
    file_id=7,
    path="data/a.parquet",
    rows=1_000,
    bytes=70_000,
    partition=(PartitionValue(1000, "é"), PartitionValue(1001, -3)),
    statistics=(ColumnStatistics(column_id=1, lower="1", upper="é", nulls=0),),
)


def row_of(file: DataFile, *, row_id: int = 5) -> Row:
    """Return the row of a file as it is stored."""
    new = new_file(file)
    context = row_context(row_id, 3, new.kind, new.bucket, new.name, 9)
    return Row(row_id, 3, new.kind, new.bucket, new.name, 9, seal(new.body, context))


def values(columns: FileColumns) -> dict[str, list[object]]:
    return {field.name: getattr(columns, field.name).to_pylist() for field in fields(columns)}


@pytest.mark.slow
@given(st.lists(data_files, max_size=4))
def test_columns_read_from_rows_equal_those_of_the_decoded_files(files: list[DataFile]) -> None:
    rows = [row_of(file, row_id=number) for number, file in enumerate(files)]
    assert values(FileColumns.read(rows)) == values(FileColumns.of(files))
    assert list(StoredDataFiles(rows)) == files


def sealed(row: Row, content: bytes) -> Row:
    """Return the row with this record after its seal, and the right checksum."""
    new = new_file(USUAL)
    context = row_context(row.row_id, row.table_id, row.kind, row.bucket, row.name, row.write_id)
    return row._replace(body=seal(new.body[:SEAL_BYTES] + content, context))


@pytest.mark.parametrize(
    "known",
    [
        (),
        (ColumnStatistics(column_id=300, lower="", upper=None, nulls=1_000_000),),
        (ColumnStatistics(column_id=1), ColumnStatistics(column_id=2, upper="x" * 300, nulls=0)),
    ],
)
def test_reading_columns_does_not_decode_the_rows(known: tuple[ColumnStatistics, ...]) -> None:
    rows = [row_of(USUAL), row_of(replace(USUAL, statistics=known, bytes=2**63 - 1))]
    columns = FileColumns.read(rows)
    assert [row._content for row in rows] == [None, None]
    assert values(columns) == values(FileColumns.of([row.as_(DataFile) for row in rows]))


def test_rows_of_older_formats_are_read() -> None:
    row = row_of(USUAL)
    record = row.body[SEAL_BYTES:]
    second = sealed(row, record[:2] + b"\2" + record[3:])
    first = sealed(row, record[:2] + b"\1" + record[3:-1])  # the version is the last byte
    columns = FileColumns.read([row, second, first, row])
    assert first._content is None
    older = replace(USUAL, partition=())  # older formats have a text there that means nothing
    assert values(columns) == values(FileColumns.of([USUAL, older, older, USUAL]))


@pytest.mark.parametrize("count", [1, FEW, FEW + 1])
def test_columns_are_the_same_for_few_files_and_for_many(count: int) -> None:
    rows = [row_of(replace(USUAL, rows=number), row_id=number + 1) for number in range(count)]
    parts = [values(part) for part in StoredDataFiles(rows).columns()]
    assert parts == [values(FileColumns.of(list(StoredDataFiles(rows))))]


def partitioned(count: int) -> list[Row]:
    """Return rows of files in seven partitions; every eighth has none, in the first format."""
    rows = []
    for number in range(count):
        partition = (PartitionValue(1000, number % 7),) if number % 8 else ()
        row = row_of(replace(USUAL, partition=partition), row_id=number + 1)
        record = row.body[SEAL_BYTES:]
        rows.append(row if partition else sealed(row, record[:2] + b"\1" + record[3:-1]))
    return rows


@pytest.mark.parametrize("count", [0, FEW, FEW + 1, KEYED + FEW + 2])
def test_files_are_grouped_by_partition_as_if_they_were_decoded(count: int) -> None:
    rows = partitioned(count)
    grouped = by_partition(rows)
    assert all(row._content is None for row in rows) or count <= FEW
    assert sum(map(len, grouped.values())) == count
    for partition, of_partition in grouped.items():
        assert of_partition == [row for row in rows if row.as_(DataFile).partition == partition]


@pytest.mark.parametrize("count", [0, FEW, FEW + 1, KEYED + FEW + 2])
def test_paths_by_id_are_those_of_the_decoded_files(count: int) -> None:
    files = [replace(USUAL, file_id=number << 30, path=f"f{number}") for number in range(count)]
    rows = [row_of(file, row_id=number) for number, file in enumerate(files, start=1)]
    assert paths_by_id(rows) == {file.file_id: file.path for file in files}
    assert all(row._content is None for row in rows) or count <= FEW


@pytest.mark.parametrize("count", [0, FEW, FEW + 1])
def test_files_without_statistics_are_the_decoded_ones_without_them(count: int) -> None:
    rows = partitioned(count)
    read = without_statistics(rows)
    assert all(row._content is None for row in rows) or count <= FEW
    assert read == [replace(row.as_(DataFile), statistics=()) for row in rows]


@pytest.mark.parametrize("read", [by_partition, paths_by_id, without_statistics])
def test_a_damaged_row_among_many_raises_an_error(read: Callable[[list[Row]], object]) -> None:
    rows = partitioned(FEW + 1)
    rows[3] = rows[3]._replace(body=rows[3].body[:-1] + b"?")
    with pytest.raises(CorruptData):
        read(rows)
    unknown = rows[4].body[SEAL_BYTES:]
    rows[3] = sealed(rows[3], unknown[:2] + b"\x77" + unknown[3:])
    with pytest.raises(IncompatibleFormat):
        read(rows)


@pytest.mark.parametrize("change", [lambda body: body[:-1], lambda body: body + b"\0"])
def test_a_truncated_or_extended_record_raises_an_error(change: Callable[[bytes], bytes]) -> None:
    row = row_of(USUAL)
    for rows in ([sealed(row, change(row.body[SEAL_BYTES:]))], [row] * 2):
        rows.append(sealed(row, change(row.body[SEAL_BYTES:])))
        with pytest.raises(CorruptData):
            FileColumns.read(rows)


@pytest.mark.slow
def test_reading_columns_does_not_import_pandas() -> None:
    code = (
        "import sys; from tests.metastore.store.test_file_columns import *\n"
        "list(StoredDataFiles([row_of(USUAL)] * 99).columns()); assert 'pandas' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("byte", range(len(row_of(USUAL).body)))
def test_a_damaged_row_raises_an_error(byte: int) -> None:
    row = row_of(USUAL)
    body = bytearray(row.body)
    body[byte] ^= 1
    with pytest.raises((CorruptData, IncompatibleFormat)):
        FileColumns.read([row._replace(body=bytes(body))])


def test_a_row_with_changed_columns_raises_an_error() -> None:
    with pytest.raises(CorruptData):
        FileColumns.read([row_of(USUAL)._replace(write_id=10)])
    with pytest.raises(CorruptData):
        FileColumns.read([row_of(USUAL)._replace(kind=RowKind.DELETE_FILE)])


def test_a_name_of_another_type_raises_an_error() -> None:
    row = row_of(USUAL)
    with pytest.raises(CorruptData, match="wrong types"):
        FileColumns.read([row._replace(name=row.name.encode())])  # type: ignore[arg-type]  # as damaged
