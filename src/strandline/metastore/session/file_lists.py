"""Lists of files as Arrow: how the files of a snapshot cross HTTP.

A snapshot of a large table is a hundred thousand files, which as JSON would cost seconds on both
sides. The body holds two Arrow IPC streams behind each other, of data files and of delete files, in
the schemas below; both are there, also when they have no rows. Statistics of columns are a list of
structs. What is read is checked against these schemas, exactly.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, chain
from typing import Any, TypeVar

import pyarrow as pa

from strandline import work
from strandline.errors import ProtocolError
from strandline.metastore.interface import TableFiles
from strandline.metastore.store.rows import ColumnStatistics, DataFile, DeleteFile

CONTENT_TYPE = "application/vnd.apache.arrow.stream"
T = TypeVar("T")


def _columns(**types: pa.DataType) -> pa.Schema:
    return pa.schema([pa.field(name, of, nullable=False) for name, of in types.items()])


_STATISTICS = pa.struct(
    [
        pa.field("column_id", pa.int64(), nullable=False),
        pa.field("lower", pa.string()),
        pa.field("upper", pa.string()),
        pa.field("nulls", pa.int64()),
    ]
)
DATA_FILES = _columns(
    file_id=pa.int64(),
    path=pa.string(),
    rows=pa.int64(),
    bytes=pa.int64(),
    partition=pa.string(),
    statistics=pa.list_(pa.field("element", _STATISTICS, nullable=False)),
)
DELETE_FILES = _columns(
    path=pa.string(),
    file_ids=pa.list_(pa.field("element", pa.int64(), nullable=False)),
    counts=pa.list_(pa.field("element", pa.int64(), nullable=False)),
)


def write_files(files: TableFiles) -> bytes:
    """The body for ``files``."""
    work.spend(len(files.data_files) + len(files.delete_files))
    sink = pa.BufferOutputStream()
    _write(sink, DATA_FILES, _data_files(files.data_files))
    _write(sink, DELETE_FILES, _delete_files(files.delete_files))
    return bytes(sink.getvalue())


def _data_files(files: Sequence[DataFile]) -> list[pa.Array]:
    """The columns of `DATA_FILES`. Statistics are laid flat: an object for each would cost most."""
    return [
        _numbers([row.file_id for row in files]),
        _texts([row.path for row in files]),
        _numbers([row.rows for row in files]),
        _numbers([row.bytes for row in files]),
        _texts([row.partition for row in files]),
        _lists(DATA_FILES.field("statistics").type, [row.statistics for row in files], _statistics),
    ]


def _statistics(found: Sequence[ColumnStatistics]) -> pa.Array:
    columns = [
        _numbers([one.column_id for one in found]),
        _texts([one.lower for one in found]),
        _texts([one.upper for one in found]),
        _numbers([one.nulls for one in found]),
    ]
    return pa.Array.from_buffers(_STATISTICS, len(found), [None], children=columns)


def _delete_files(files: Sequence[DeleteFile]) -> list[pa.Array]:
    """The columns of `DELETE_FILES`."""
    return [
        _texts([row.path for row in files]),
        _lists(DELETE_FILES.field("file_ids").type, [row.file_ids for row in files], _numbers),
        _lists(DELETE_FILES.field("counts").type, [row.counts for row in files], _numbers),
    ]


def _numbers(values: Sequence[int | None]) -> pa.Array:
    """An array of numbers, made from its buffers: `pyarrow.array` would first import pandas."""
    numbers = array("q", (0 if value is None else value for value in values))
    return _array(pa.int64(), values, pa.py_buffer(numbers))


def _texts(values: Sequence[str | None]) -> pa.Array:
    encoded = [b"" if value is None else value.encode() for value in values]
    return _array(pa.string(), values, _offsets(encoded), pa.py_buffer(b"".join(encoded)))


def _array(of: pa.DataType, values: Sequence[object], *buffers: pa.Buffer) -> pa.Array:
    """The array of these buffers, in which those of ``values`` that are None are null."""
    nulls = sum(value is None for value in values)
    valid = None
    if nulls:
        bits = sum((value is not None) << place for place, value in enumerate(values))
        valid = pa.py_buffer(bits.to_bytes((len(values) + 7) // 8, "little"))
    return pa.Array.from_buffers(of, len(values), [valid, *buffers], nulls)


def _offsets(parts: Sequence[Sequence[object]]) -> pa.Buffer:
    """Where each of the parts begins, and where the last one ends."""
    return pa.py_buffer(array("i", accumulate(map(len, parts), initial=0)))


def _lists(
    of: pa.DataType, lists: Sequence[Sequence[T]], flat: Callable[[Sequence[T]], pa.Array]
) -> pa.Array:
    """An array of lists, made from all their elements in a row."""
    elements = flat(list(chain.from_iterable(lists)))
    return pa.Array.from_buffers(of, len(lists), [None, _offsets(lists)], children=[elements])


def read_files(body: bytes) -> TableFiles:
    """The files that ``body`` lists. Raises `ProtocolError` for anything but such a body."""
    source = pa.BufferReader(body)
    data_files = tuple(
        DataFile(
            file_id=file_id,
            path=path,
            rows=rows,
            bytes=size,
            partition=partition,
            statistics=tuple(ColumnStatistics(**column) for column in statistics),
        )
        for file_id, path, rows, size, partition, statistics in _read(source, DATA_FILES)
    )
    delete_files = tuple(
        DeleteFile(path=path, file_ids=tuple(file_ids), counts=tuple(counts))
        for path, file_ids, counts in _read(source, DELETE_FILES)
    )
    return TableFiles(data_files, delete_files)


def _write(sink: Any, schema: pa.Schema, columns: list[pa.Array]) -> None:
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))


def _read(source: Any, schema: pa.Schema) -> Iterable[tuple[Any, ...]]:
    try:
        with pa.ipc.open_stream(source) as reader:
            found = reader.schema
            table = reader.read_all() if found.equals(schema) else None
            if table is not None:
                table.validate(full=True)
    except (pa.ArrowException, OSError) as error:
        raise ProtocolError(
            f"the list of files is not the Arrow stream it should be: {error}"
        ) from (error)
    if table is None:
        raise ProtocolError(
            f"the list of files has the columns {found.names}, {schema.names} were expected; the "
            "node may be of another release"
        )
    return zip(*(column.to_pylist() for column in table.columns), strict=True)
