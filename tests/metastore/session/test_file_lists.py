from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.errors import ProtocolError
from strandline.metastore.interface import TableFiles
from strandline.metastore.session.file_lists import DELETE_FILES, read_files, write_files
from strandline.metastore.store.rows import ColumnStatistics, DataFile, DeleteFile

numbers = st.integers(0, 2**63 - 1)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
data_rows = st.builds(
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
delete_rows = st.lists(st.tuples(numbers, numbers), max_size=3).flatmap(
    lambda pairs: st.builds(
        DeleteFile,
        path=texts,
        file_ids=st.just(tuple(a for a, _ in pairs)),
        counts=st.just(tuple(b for _, b in pairs)),
    )
)


@given(
    st.lists(data_rows, max_size=4),
    st.lists(delete_rows, max_size=4),
)
def test_files_cross_unchanged(data: list[DataFile], deletes: list[DeleteFile]) -> None:
    files = TableFiles(tuple(data), tuple(deletes))
    assert read_files(write_files(files)) == files


def test_more_files_than_one_batch_cross_in_order() -> None:
    data = tuple(DataFile(file_id=n, path=f"p{n}", rows=n, bytes=0) for n in range(70_000))
    assert read_files(write_files(TableFiles(data, ()))) == TableFiles(data, ())


def test_any_arrow_reader_can_read_them() -> None:
    file = DataFile(file_id=7, path="a", rows=1, bytes=2, partition="p=1")
    body = write_files(TableFiles((file,), ()))
    with pa.ipc.open_stream(body) as reader:
        assert reader.read_all().to_pylist() == [
            {
                "file_id": 7,
                "path": "a",
                "rows": 1,
                "bytes": 2,
                "partition": "p=1",
                "statistics": [],
            }
        ]


def test_what_is_no_list_of_files_is_refused() -> None:
    whole = write_files(TableFiles((), ()))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, pa.schema([("row_id", pa.int64())])):
        pass
    other = bytes(sink.getvalue())
    for body in (b"", b"{}", b"\xff" * 100, whole[: len(whole) // 2], whole[:-20], other):
        with pytest.raises(ProtocolError, match="list of files"):
            read_files(body)
    swapped = pa.BufferOutputStream()
    for _ in range(2):
        with pa.ipc.new_stream(swapped, DELETE_FILES):
            pass
    with pytest.raises(ProtocolError, match="may be of another release"):
        read_files(bytes(swapped.getvalue()))
