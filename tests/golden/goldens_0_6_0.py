"""The format that 0.6.0 added: a delete file with its size."""

from __future__ import annotations

from strandline.metastore.store.rows import DeleteFile, DeleteForm
from tests.golden.layout import n, sealed, text

GOLDENS: list[tuple[object, bytes]] = [
    (
        DeleteFile(
            path="_deletes/1.parquet",
            file_ids=(1, 2),
            counts=(3, 4),
            form=DeleteForm.BITMAPS,
            bytes=300,
        ),
        sealed(42, 3, text("_deletes/1.parquet"), n(2, 1, 2), n(2, 3, 4), n(2), b"\xac\x02"),
    ),
]
