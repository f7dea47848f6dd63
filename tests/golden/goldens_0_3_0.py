"""The formats that 0.3.0 added: files that name their schema version and their form."""

from __future__ import annotations

from strandline.metastore.store.rows import ColumnStatistics, DataFile, DeleteFile, DeleteForm
from tests.golden.layout import n, nested, sealed, some, text

STATISTICS_PAYLOAD = n(3) + some(text("1")) + some(text("9")) + some(n(0))

GOLDENS: list[tuple[object, bytes]] = [
    (
        DataFile(
            file_id=1 << 20,
            path="_files/1048576-a.parquet",
            rows=300,
            bytes=128,
            statistics=(ColumnStatistics(column_id=3, lower="1", upper="9", nulls=0),),
            schema_version=2,
        ),
        sealed(
            41, 2,
            b"\x80\x80\x40", text("_files/1048576-a.parquet"), b"\xac\x02", b"\x80\x01", text(""),
            n(1), nested(45, 1, STATISTICS_PAYLOAD), n(2),
        ),
    ),
    (
        DeleteFile(
            path="_deletes/1.parquet", file_ids=(1, 2), counts=(3, 4), form=DeleteForm.BITMAPS
        ),
        sealed(42, 2, text("_deletes/1.parquet"), n(2, 1, 2), n(2, 3, 4), n(2)),
    ),
]  # fmt: skip
