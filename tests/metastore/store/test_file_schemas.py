"""The schema versions of files without a recorded one, which are read from their footers."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from strandline.errors import CorruptData
from strandline.metastore.store.file_schemas import with_schema_versions
from strandline.metastore.store.rows import DataFile
from strandline.model.descriptors import SchemaVersion, TableDescriptor, TableKind

TABLE = TableDescriptor(
    id=1, schema_id=2, name="t", owner="ann", kind=TableKind.MANAGED, transactional=True,
    provider="strandline", schema_versions=(SchemaVersion(1, ()),), next_column_id=1, zone_id=1,
)  # fmt: skip


def write(path: Path, field: pa.Field) -> None:
    pq.write_table(pa.Table.from_arrays([pa.array([[1]])], schema=pa.schema([field])), path)


def an_id_that_is_no_number(path: Path) -> None:
    write(path, pa.field("a", pa.list_(pa.int64()), metadata={"PARQUET:field_id": "x"}))


def a_name_that_is_no_text(path: Path) -> None:
    write(path, pa.field("abcdefgh", pa.list_(pa.int64())))
    path.write_bytes(path.read_bytes().replace(b"abcdefgh", b"abc\xff\xffgh\xff"))


@pytest.mark.parametrize("make", [an_id_that_is_no_number, a_name_that_is_no_text, os.mkfifo])
def test_what_is_no_data_file_is_reported_as_damaged(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    make(tmp_path / "a")
    file = DataFile(file_id=1, path="a", rows=1, bytes=1)
    with pytest.raises(CorruptData, match=f"data file {tmp_path / 'a'} cannot be read: "):
        with_schema_versions([file], TABLE, root=tmp_path)
