"""Golden bytes of the metastore's own objects: rows of the object store and notifications."""

from __future__ import annotations

from strandline.durable.update import Change
from strandline.metastore.store.notifications import DdlEvent, EndEvent, WriteEvent
from strandline.metastore.store.rows import (
    ColumnStatistics,
    DataFile,
    DeleteFile,
    PartitionRow,
    TableParametersRow,
)
from strandline.model.descriptors import StorageFormat
from tests.golden.layout import NO, NONE, n, nested, record, some, text

STORAGE_PAYLOAD = (
    NONE + NONE + some(text("sd")) + NONE + n(0) + NO + n(1) + n(0) + n(0) + n(0) + NONE
)
STATISTICS_PAYLOAD = n(3) + some(text("1")) + some(text("9")) + some(n(0))

GOLDEN: list[tuple[object, bytes]] = [
    (
        PartitionRow(
            values=("1", ""),
            location="month=1",
            parameters=(("numRows", "5"),),
            created=100,
            last_access=-1,
            storage=StorageFormat(serde="sd"),
            columns=(("a", "int", None),),
        ),
        record(
            40, 1,
            n(2), text("1"), text(""), text("month=1"), n(1), text("numRows"), text("5"),
            b"\xc8\x01", n(1), some(nested(17, 1, STORAGE_PAYLOAD)),
            some(n(1) + text("a") + text("int") + NONE),
        ),
    ),
    (
        DataFile(
            file_id=1 << 20,
            path="_file=1048576/a.parquet",
            rows=300,
            bytes=128,
            statistics=(ColumnStatistics(column_id=3, lower="1", upper="9", nulls=0),),
        ),
        record(
            41, 1,
            b"\x80\x80\x40", text("_file=1048576/a.parquet"), b"\xac\x02", b"\x80\x01", text(""),
            n(1), nested(45, 1, STATISTICS_PAYLOAD),
        ),
    ),
    (
        DeleteFile(path="_deletes/1.parquet", file_ids=(1, 2), counts=(3, 4)),
        record(42, 1, text("_deletes/1.parquet"), n(2, 1, 2), n(2, 3, 4)),
    ),
    (
        TableParametersRow(parameters=(("numRows", "5"), ("totalSize", "9"))),
        record(43, 1, n(2), text("numRows"), text("5"), text("totalSize"), text("9")),
    ),
    (
        DdlEvent(
            author="ann",
            arguments={"table": "s.t"},
            changes=(Change("table", b"\x01", None, b"x"),),
        ),
        record(
            44, 1,
            text("ann"), text('{"table":"s.t"}'),
            n(1), nested(3, 1, text("table"), n(1, 1), NONE, some(n(1) + b"x")),
        ),
    ),
    (
        ColumnStatistics(column_id=3, lower=None, upper=None, nulls=None),
        record(45, 1, n(3), NONE, NONE, NONE),
    ),
    (WriteEvent(first_row_id=7, rows=2, removed=(5,)), record(46, 1, n(7, 2), n(1, 5))),
    (EndEvent(writes=((12, 1), (13, 4))), record(47, 1, n(2), n(12, 1), n(13, 4))),
]  # fmt: skip
