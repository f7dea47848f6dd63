"""Rows and their records: golden bytes are written by hand from the layout."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from strandline.durable.update import Change
from strandline.errors import CorruptData, InvalidInput
from strandline.metastore.store import rows
from strandline.metastore.store.notifications import DdlEvent, EndEvent, WriteEvent
from strandline.metastore.store.rows import (
    AnalyzedColumn,
    ColumnStatistics,
    Content,
    DataFile,
    DeleteFile,
    NewRow,
    PartitionRow,
    Row,
    RowKind,
    StatisticsRow,
    TableParametersRow,
    new_file,
    new_parameters,
    new_statistics,
    row_context,
)
from strandline.model.descriptors import StorageFormat
from strandline.model.partitioning import PartitionValue
from strandline.wire import decode, encode
from strandline.wire.codecs import Reader
from strandline.wire.registry import seal
from tests.metastore.dml import FLIGHTS, Dml

PARTITION = PartitionRow(
    values=("1", "é"),
    location="m=1",
    parameters=(("k", "v"),),
    created=64,
    last_access=-1,
    storage=StorageFormat(serde="s"),
    columns=(("c", "int", None), ("d", "int", "x")),
)
FILE = DataFile(
    file_id=300,
    path="p/a",
    rows=7,
    bytes=128,
    partition=(PartitionValue(1000, 7),),
    statistics=(ColumnStatistics(column_id=2, lower="1", upper=None, nulls=0),),
)
ANALYZED = AnalyzedColumn(
    column_id=3, name="a", type="int", engine="hive", analyzed=300, summary=b"\x0c\x00"
)

# Each: protocol, type id, format version, then the fields in the order of the layout.
GOLDEN: list[tuple[object, str]] = [
    (
        PARTITION,
        "0100 2800 01"
        " 02 01 31 02 c3a9"  # values
        " 03 6d3d31"  # location
        " 01 01 6b 01 76"  # parameters
        " 8001 01"  # created 64, last_access -1 (zigzag)
        " 01 1100 01 00 00 01 01 73 00 00 00 01 00 00 00 00"  # storage, under its own header
        " 01 02 01 63 03 696e74 00 01 64 03 696e74 01 01 78",  # columns
    ),
    (
        FILE,
        "0100 2900 03 ac02 03 702f61 07 8001 05 e807 03 01 07"
        " 01 2d00 01 02 01 01 31 00 01 00"  # statistics: count, header, then the payload
        " 00",  # schema version
    ),
    (
        DeleteFile(path="d", file_ids=(300, 1), counts=(2, 3)),
        "0100 2a00 03 01 64 02 ac02 01 02 02 03 01 00",
    ),
    (
        TableParametersRow(parameters=(("numRows", "5"),)),
        "0100 2b00 01 01 07 6e756d526f7773 01 35",
    ),
    (
        StatisticsRow(columns=(ANALYZED,)),
        "0100 3100 01 01 3000 01"
        " 03 01 61 03 696e74 04 68697665 ac02 02 0c00",  # the column; the list has its header
    ),
    (
        DdlEvent(
            author="a", arguments={"id": 1}, changes=(Change("table", b"\x01", None, b"\x02"),)
        ),
        "0100 2c00 01 01 61 08 7b226964223a317d 01 0300 01 05 7461626c65 01 01 00 01 01 02",
    ),
    (WriteEvent(first_row_id=5, rows=2, removed=(1, 300)), "0100 2e00 01 05 02 02 01 ac02"),
    (EndEvent(writes=((1, 2), (3, 300))), "0100 2f00 01 02 01 02 03 ac02"),
]


@pytest.mark.parametrize(("value", "golden"), GOLDEN, ids=lambda v: type(v).__name__)
def test_records_are_written_and_read_as_the_layout_says(value: object, golden: str) -> None:
    data = bytes.fromhex(golden)
    sealed = encode(value)
    assert sealed[6:] == data[2:]
    assert sealed == seal(sealed, b"")
    assert decode(data, type(value)) == decode(sealed, type(value)) == value


@pytest.mark.parametrize(("value", "golden"), GOLDEN, ids=lambda v: type(v).__name__)
def test_a_truncated_record_is_corrupt(value: object, golden: str) -> None:
    data = bytes.fromhex(golden)
    for length in range(5, len(data)):
        with pytest.raises(CorruptData):
            decode(data[:length], type(value))


def stored(new: NewRow) -> Row:
    body = seal(new.body, row_context(1, 2, new.kind, new.bucket, new.name, 3))
    return Row(1, 2, new.kind, new.bucket, new.name, 3, body)


@pytest.mark.parametrize(
    ("new", "kind", "name", "content"),
    [
        (NewRow.of(PARTITION, name="m=1"), RowKind.PARTITION, "m=1", PARTITION),
        (new_file(FILE, bucket=4), RowKind.DATA_FILE, "p/a", FILE),
        (
            new_file(DeleteFile(path="d", file_ids=(), counts=())),
            RowKind.DELETE_FILE,
            "d",
            DeleteFile(path="d", file_ids=(), counts=()),
        ),
        (
            new_parameters((("a", "b"),)),
            RowKind.TABLE_PARAMETERS,
            "",
            TableParametersRow(parameters=(("a", "b"),)),
        ),
        (
            new_statistics((ANALYZED,), name="m=1"),
            RowKind.STATISTICS,
            "m=1",
            StatisticsRow(columns=(ANALYZED,)),
        ),
    ],
    ids=["partition", "data file", "delete file", "parameters", "statistics"],
)
def test_a_row_returns_its_content(new: NewRow, kind: RowKind, name: str, content: Content) -> None:
    row = stored(new)
    assert (new.kind, new.name) == (kind, name)
    assert row.content == content
    assert row.content is row.content
    assert row == stored(new)


def test_content_of_another_class_is_refused() -> None:
    with pytest.raises(CorruptData, match="is a DataFile, but a PartitionRow was expected"):
        stored(new_file(FILE)).as_(PartitionRow)


def test_a_delete_file_needs_a_count_for_each_data_file() -> None:
    with pytest.raises(InvalidInput, match="2 data files and 1"):
        DeleteFile(path="d", file_ids=(1, 2), counts=(1,))


def test_a_row_whose_columns_were_changed_is_corrupt(dml: Dml) -> None:
    dml.append("a")
    (row,) = dml.store.rows(FLIGHTS, RowKind.DATA_FILE, write_ids=None)
    assert row.as_(DataFile).path == "a"
    changes: list[dict[str, Any]] = [
        {"row_id": 99},
        {"table_id": 2},
        {"bucket": 3},
        {"name": "b"},
        {"write_id": 7},
        {"kind": RowKind.DELETE_FILE},
        {"bucket": "x"},
        {"name": 5},
    ]
    for spoiled in changes:
        with pytest.raises(CorruptData, match="restore the store"):
            _ = row._replace(**spoiled).content


def test_a_row_of_an_older_release_is_read_without_a_checksum() -> None:
    body = b"\x01\x00" + new_file(FILE).body[6:]
    old = Row(1, 2, RowKind.DATA_FILE, 0, "renamed", 3, body)
    assert old.content == FILE


STATISTICS = [
    ColumnStatistics(column_id=1, lower="10", upper="é", nulls=0),
    ColumnStatistics(column_id=127, lower="", upper="x" * 127, nulls=127),
    ColumnStatistics(column_id=128, lower="1", upper="2", nulls=0),
    ColumnStatistics(column_id=1, lower="1", upper="2", nulls=128),
    ColumnStatistics(column_id=1, lower="x" * 128, upper="y" * 128, nulls=1),
    ColumnStatistics(column_id=1, upper="2"),
    ColumnStatistics(column_id=1),
]


def _read_by(read: Callable[[Reader], ColumnStatistics], data: bytes) -> object:
    """Return what is read and the position after it, or the error message."""
    reader = Reader(data)
    try:
        return read(reader), reader.position
    except CorruptData as error:
        return error.message


@pytest.mark.parametrize("value", STATISTICS)
def test_the_reader_of_short_statistics_reads_and_fails_like_the_general_reader(
    value: ColumnStatistics,
) -> None:
    out = bytearray()
    rows._write_statistics(out, value)
    data = bytes(out)
    assert _read_by(rows._read_statistics, data + b"more") == (value, len(data))
    cut = [data[:end] for end in range(len(data))]
    flipped = [
        data[:at] + bytes([data[at] ^ bit]) + data[at + 1 :]
        for at in range(len(data))
        for bit in (1, 2, 0x40, 0x80)
    ]
    for row in (*cut, *flipped):
        assert _read_by(rows._read_statistics, row) == _read_by(rows._read_any_statistics, row)
