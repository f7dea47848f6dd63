from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.errors import InvalidInput
from strandline.metastore.interface import TableFiles
from strandline.metastore.session import file_lists
from strandline.metastore.session.file_lists import (
    CHANGES,
    DATA_FILES,
    DELETE_FILES,
    read_files,
    read_staging,
    staged_parts,
    write_files,
    write_staging,
)
from strandline.metastore.store.rows import ColumnStatistics, DataFile, DeleteFile, DeleteForm
from strandline.model.partitioning import PartitionValue
from tests.metastore.file_strategies import data_files, numbers, texts

delete_rows = st.lists(st.tuples(numbers, numbers), max_size=3).flatmap(
    lambda pairs: st.builds(
        DeleteFile,
        path=texts,
        file_ids=st.just(tuple(a for a, _ in pairs)),
        counts=st.just(tuple(b for _, b in pairs)),
        form=st.sampled_from(DeleteForm),
    )
)


@pytest.mark.slow
@given(
    st.lists(data_files, max_size=4),
    st.lists(delete_rows, max_size=4),
)
def test_files_are_read_back_unchanged(data: list[DataFile], deletes: list[DeleteFile]) -> None:
    files = TableFiles(tuple(data), tuple(deletes))
    assert read_files(write_files(files)) == files


@pytest.mark.slow
def test_files_of_several_batches_are_read_back_in_order() -> None:
    data = tuple(DataFile(file_id=n, path=f"p{n}", rows=n, bytes=0) for n in range(70_000))
    assert read_files(write_files(TableFiles(data, ()))) == TableFiles(data, ())


@pytest.mark.slow
def test_many_files_with_some_unknown_bounds_are_read_back_unchanged() -> None:
    data = tuple(
        DataFile(
            file_id=n,
            path=f"p{n}",
            rows=n,
            bytes=0,
            statistics=(
                ColumnStatistics(column_id=1, lower=None if n % 7 else "a", nulls=n % 3 or None),
            ),
        )
        for n in range(20_000)
    )
    assert read_files(write_files(TableFiles(data, ()))) == TableFiles(data, ())


def test_any_arrow_reader_can_read_a_list_of_files() -> None:
    partition = (PartitionValue(3, "é"), PartitionValue(4, None))
    file = DataFile(file_id=7, path="a", rows=1, bytes=2, partition=partition, schema_version=3)
    body = write_files(TableFiles((file,), ()))
    with pa.ipc.open_stream(body) as reader:
        assert reader.read_all().to_pylist() == [
            {
                "file_id": 7,
                "path": "a",
                "rows": 1,
                "bytes": 2,
                "partition": b"\x03\x04\x02\xc3\xa9\x04\x00",
                "statistics": [],
                "schema_version": 3,
            }
        ]


@given(
    st.lists(data_files, max_size=3),
    st.lists(delete_rows, max_size=3),
    st.lists(texts, max_size=3),
    st.lists(texts, max_size=3),
)
def test_a_staging_is_read_back_unchanged(
    data: list[DataFile], deletes: list[DeleteFile], remove: list[str], touch: list[str]
) -> None:
    arguments = {
        "txn_id": 2**63 - 1,
        "table_id": -5,
        "add": (*data, *deletes),
        "remove": tuple(remove),
        "touch": tuple(touch),
    }
    assert read_staging(write_staging(arguments)) == arguments


def stream(
    schema: pa.Schema,
    *columns: Any,
    metadata: dict[str, str] | None = None,
    compression: str | None = None,
) -> bytes:
    """Return a stream with these columns, written by pyarrow itself."""
    sink = pa.BufferOutputStream()
    schema = schema.with_metadata(metadata)
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, schema, options=options) as writer:
        if columns:
            arrays = [pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)]
            writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=schema))
    return bytes(sink.getvalue())


IDS = {"txn_id": "1", "table_id": "2"}
WHOLE = write_staging({"txn_id": 1, "table_id": 2, "add": (), "remove": (), "touch": ()})
FILE = [1], ["p"], [1], [1], [""]
STATISTIC = {"column_id": 1, "lower": None, "upper": None, "nulls": None}


def rest() -> bytes:
    """Return the streams that follow the data files, without rows."""
    return stream(DELETE_FILES) + stream(CHANGES)


def staging(*columns: Any, compression: str | None = None, **ids: str) -> bytes:
    """Return a staging of data files with these columns."""
    first = stream(DATA_FILES, *columns, metadata={**IDS, **ids}, compression=compression)
    return first + rest()


# Made on demand, because pyarrow imports pandas to make an array of Python values.
BAD_STAGINGS: dict[str, Callable[[], bytes]] = {
    "empty": lambda: b"",
    "json": lambda: b"{}",
    "noise": lambda: b"\xff" * 100,
    "cut": lambda: WHOLE[:-20],
    "no end": lambda: WHOLE[:-8],
    "more behind it": lambda: staging() + b"x",
    "other columns": lambda: stream(CHANGES, metadata=IDS) + rest(),
    "streams in another order": lambda: stream(DELETE_FILES, metadata=IDS) + rest(),
    "no ids": lambda: stream(DATA_FILES) + rest(),
    "an id that is none": lambda: staging(txn_id="1.5"),
    "an id beyond 64 bits": lambda: staging(table_id=str(2**63)),
    "another key of an id": lambda: WHOLE.replace(b"table_id", b"table_no"),
    "rows without a schema": lambda: staging(*FILE, [[]], [1])[
        len(stream(DATA_FILES, metadata=IDS)) - 8 :
    ],
    "an id in its place that is none": lambda: WHOLE.replace(b"%020d" % 1, b"%20d" % 1),
    "an id in its place beyond 64 bits": lambda: WHOLE.replace(b"%020d" % 2, b"9" * 20),
    "compressed": lambda: staging(*FILE, [[]], [1], compression="zstd"),
    "an id of thousands of digits": lambda: staging(txn_id="1" * 5_000),
    "columns of another type": lambda: (
        stream(DATA_FILES.set(2, pa.field("rows", pa.int32(), nullable=False)), metadata=IDS)
        + rest()
    ),
    "a path that is not UTF-8": lambda: staging([1], ["name"], [1], [1], [""], [[]], [1]).replace(
        b"name", b"\xff" * 4
    ),
    "a partition that is none": lambda: staging([1], ["p"], [1], [1], [b"\xff"], [[]], [1]),
    "a path that is null": lambda: staging([1], [None], [1], [1], [""], [[]], [1]),
    "statistics that are null": lambda: staging(*FILE, [None], [1]),
    "a statistic that is null": lambda: staging(*FILE, [[None]], [1]),
    "a statistic of no column": lambda: staging(*FILE, [[{**STATISTIC, "column_id": None}]], [1]),
    "a delete file of an unknown form": lambda: (
        stream(DATA_FILES, metadata=IDS)
        + stream(DELETE_FILES, ["d"], [[1]], [[1]], [3], [1])
        + stream(CHANGES)
    ),
    "a batch without rows": lambda: staging(*[[]] * 7),
    "counts that do not fit": lambda: (
        stream(DATA_FILES, metadata=IDS)
        + stream(DELETE_FILES, ["d"], [[1]], [[]], [1], [1])
        + stream(CHANGES)
    ),
}


@pytest.mark.parametrize("case", BAD_STAGINGS)
def test_an_invalid_staging_is_refused(case: str) -> None:
    with pytest.raises(InvalidInput, match=r"list of files|metadata of the first stream|counts"):
        read_staging(BAD_STAGINGS[case]())


def test_a_staging_written_by_another_arrow_writer_is_read() -> None:
    read = read_staging(staging([7], ["p"], [1], [2], [b""], [[]], [1]))
    assert read == {
        "txn_id": 1,
        "table_id": 2,
        "add": (DataFile(file_id=7, path="p", rows=1, bytes=2, schema_version=1),),
        "remove": (),
        "touch": (),
    }


@pytest.mark.parametrize("txn_id", [2**63, -(2**63) - 1, "1", None, True])
def test_the_ids_of_a_staging_are_whole_numbers_within_64_bits(txn_id: object) -> None:
    with pytest.raises(InvalidInput, match=r"txn_id is .*; give a whole number within 64 bits"):
        write_staging({"txn_id": txn_id, "table_id": 2, "add": (), "remove": (), "touch": ()})


def test_a_compressed_batch_is_refused_before_memory_is_allocated_for_it() -> None:
    bomb = stream(
        DATA_FILES, [1], ["a" * 50_000_000], [1], [1], [""], [[]], [1], compression="zstd"
    )
    assert len(bomb) < 50_000
    before = pa.total_allocated_bytes()
    with pytest.raises(InvalidInput, match="compressed; send plain record batches"):
        read_files(bomb)
    assert pa.total_allocated_bytes() - before < 1_000_000


@given(st.data())
def test_damaged_bytes_are_refused_or_read_as_files(data: st.DataObject) -> None:
    files = TableFiles(
        (DataFile(file_id=7, path="abc", rows=1, bytes=2),),
        (DeleteFile(path="d", file_ids=(7,), counts=(1,)),),
    )
    body = bytearray(write_files(files))
    for _ in range(data.draw(st.integers(1, 3))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    try:
        decoded = read_files(bytes(body))
    except InvalidInput:
        return
    assert isinstance(decoded, TableFiles)


def test_an_invalid_list_of_files_is_refused() -> None:
    whole = write_files(TableFiles((), ()))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, pa.schema([("row_id", pa.int64())])):
        pass
    other = bytes(sink.getvalue())
    cut = whole[: len(whole) // 2], whole[:-20]
    for body in (b"", b"{}", b"\xff" * 100, *cut, whole + b"x", other):
        with pytest.raises(InvalidInput, match="list of files"):
            read_files(body)
    swapped = pa.BufferOutputStream()
    for _ in range(2):
        with pa.ipc.new_stream(swapped, DELETE_FILES):
            pass
    with pytest.raises(InvalidInput, match="of different releases"):
        read_files(bytes(swapped.getvalue()))


def test_a_long_stage_has_larger_parts_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each part reads the files of those before it, so equal parts would read n² files in sum."""
    monkeypatch.setattr(file_lists, "STAGED_FILES", 10)
    files = [DataFile(file_id=n, path=str(n), rows=1, bytes=1) for n in range(10_000)]
    parts = [part["add"] for part in staged_parts(files, remove=(), touch=())]
    assert [file for part in parts for file in part] == files
    assert [len(part) for part in parts[:10]] == [10] * 9 + [11]
    assert sum(len(part) * number for number, part in enumerate(reversed(parts))) < 10 * len(files)
