"""Columns of data files, read from rows with and without objects for them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.errors import CorruptData, IncompatibleFormat
from strandline.metastore.store.file_columns import FileColumns, StoredDataFiles
from strandline.metastore.store.rows import (
    ColumnStatistics,
    DataFile,
    Row,
    RowKind,
    new_file,
    row_context,
)
from strandline.wire.registry import seal

numbers = st.integers(0, 300) | st.integers(0, 2**63 - 1)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=6) | st.just("long" * 40)
data_files = st.builds(
    DataFile,
    file_id=numbers,
    path=texts,
    rows=numbers,
    bytes=numbers,
    partition=texts,
    statistics=st.lists(
        st.builds(
            ColumnStatistics,
            column_id=numbers,
            lower=st.none() | texts,
            upper=st.none() | texts,
            nulls=st.none() | numbers,
        ),
        max_size=3,
    ).map(tuple),
)
USUAL = DataFile(
    file_id=7,
    path="data/a.parquet",
    rows=1_000,
    bytes=70_000,
    partition="m=1",
    statistics=(ColumnStatistics(column_id=1, lower="1", upper="é", nulls=0),),
)


def row_of(file: DataFile, *, row_id: int = 5) -> Row:
    """The row as it is stored."""
    new = new_file(file)
    context = row_context(row_id, 3, new.kind, new.bucket, new.name, 9)
    return Row(row_id, 3, new.kind, new.bucket, new.name, 9, seal(new.body, context))


@given(st.lists(data_files, max_size=4))
def test_the_columns_of_rows_are_those_of_their_objects(files: list[DataFile]) -> None:
    rows = [row_of(file, row_id=number) for number, file in enumerate(files)]
    assert vars(FileColumns.read(rows)) == vars(FileColumns.of(files))
    assert list(StoredDataFiles(rows)) == files


def test_a_usual_row_is_not_decoded() -> None:
    row = row_of(USUAL)
    StoredDataFiles([row]).columns()
    assert row._content is None


@pytest.mark.parametrize("byte", range(len(row_of(USUAL).body)))
def test_a_row_that_was_changed_is_an_error(byte: int) -> None:
    row = row_of(USUAL)
    body = bytearray(row.body)
    body[byte] ^= 1
    with pytest.raises((CorruptData, IncompatibleFormat)):
        FileColumns.read([replace(row, body=bytes(body))])


def test_a_row_whose_columns_were_changed_is_an_error() -> None:
    with pytest.raises(CorruptData):
        FileColumns.read([replace(row_of(USUAL), write_id=10)])
    with pytest.raises(CorruptData):
        FileColumns.read([replace(row_of(USUAL), kind=RowKind.DELETE_FILE)])


def test_a_name_of_another_type_is_an_error() -> None:
    row = row_of(USUAL)
    with pytest.raises(CorruptData, match="other types"):
        FileColumns.read([replace(row, name=row.name.encode())])  # type: ignore[arg-type]  # as damaged
