"""Lists of files as Arrow: how the files of a snapshot cross HTTP.

A snapshot of a large table is a hundred thousand files, which as JSON would cost seconds on both
sides. The body holds two Arrow IPC streams behind each other, of data files and of delete files, in
the schemas below; both are there, also when they have no rows. Statistics of columns are a list of
structs. What is read is checked against these schemas, exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, chain
from typing import Any, TypeVar

import pyarrow as pa

from strandline import work
from strandline.errors import ProtocolError
from strandline.metastore.interface import DataFile, DeleteFile, TableFiles
from strandline.metastore.store.rows import ColumnStatistics, DataFileRow, DeleteFileRow

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
    row_id=pa.int64(),
    write_id=pa.int64(),
    file_id=pa.int64(),
    path=pa.string(),
    rows=pa.int64(),
    bytes=pa.int64(),
    partition=pa.string(),
    statistics=pa.list_(pa.field("element", _STATISTICS, nullable=False)),
)
DELETE_FILES = _columns(
    row_id=pa.int64(),
    write_id=pa.int64(),
    path=pa.string(),
    file_ids=pa.list_(pa.field("element", pa.int64(), nullable=False)),
    counts=pa.list_(pa.field("element", pa.int64(), nullable=False)),
)


def write_files(files: TableFiles) -> bytes:
    """The body for ``files``."""
    sink = pa.BufferOutputStream()
    with work.lane(len(files.data_files) + len(files.delete_files)):
        _write(sink, DATA_FILES, map(_data_files, work.slices(files.data_files)))
        _write(sink, DELETE_FILES, map(_delete_files, work.slices(files.delete_files)))
        return bytes(sink.getvalue())


def _data_files(files: Sequence[DataFile]) -> list[pa.Array]:
    """The columns of `DATA_FILES`. Statistics are laid flat: an object for each would cost most."""
    rows = [one.file for one in files]
    return [
        pa.array([one.row_id for one in files], pa.int64()),
        pa.array([one.write_id for one in files], pa.int64()),
        pa.array([row.file_id for row in rows], pa.int64()),
        pa.array([row.path for row in rows], pa.string()),
        pa.array([row.rows for row in rows], pa.int64()),
        pa.array([row.bytes for row in rows], pa.int64()),
        pa.array([row.partition for row in rows], pa.string()),
        _lists(DATA_FILES.field("statistics").type, [row.statistics for row in rows], _statistics),
    ]


def _statistics(found: Sequence[ColumnStatistics]) -> pa.Array:
    columns = [
        pa.array([one.column_id for one in found], pa.int64()),
        pa.array([one.lower for one in found], pa.string()),
        pa.array([one.upper for one in found], pa.string()),
        pa.array([one.nulls for one in found], pa.int64()),
    ]
    return pa.StructArray.from_arrays(columns, fields=list(_STATISTICS))


def _delete_files(files: Sequence[DeleteFile]) -> list[pa.Array]:
    """The columns of `DELETE_FILES`."""
    rows = [one.file for one in files]
    return [
        pa.array([one.row_id for one in files], pa.int64()),
        pa.array([one.write_id for one in files], pa.int64()),
        pa.array([row.path for row in rows], pa.string()),
        _lists(DELETE_FILES.field("file_ids").type, [row.file_ids for row in rows], _numbers),
        _lists(DELETE_FILES.field("counts").type, [row.counts for row in rows], _numbers),
    ]


def _numbers(found: Sequence[int]) -> pa.Array:
    return pa.array(found, pa.int64())


def _lists(
    of: pa.DataType, lists: Sequence[Sequence[T]], flat: Callable[[Sequence[T]], pa.Array]
) -> pa.Array:
    """An array of lists, made from all their elements in a row."""
    offsets = pa.array([0, *accumulate(map(len, lists))], pa.int32())
    return pa.ListArray.from_arrays(offsets, flat(list(chain.from_iterable(lists))), type=of)


def read_files(body: bytes) -> TableFiles:
    """The files that ``body`` lists. Raises `ProtocolError` for anything but such a body."""
    source = pa.BufferReader(body)
    data_files = tuple(
        DataFile(
            row_id,
            write_id,
            DataFileRow(
                file_id=file_id,
                path=path,
                rows=rows,
                bytes=size,
                partition=partition,
                statistics=tuple(ColumnStatistics(**one) for one in statistics),
            ),
        )
        for row_id, write_id, file_id, path, rows, size, partition, statistics in _read(
            source, DATA_FILES
        )
    )
    delete_files = tuple(
        DeleteFile(
            row_id,
            write_id,
            DeleteFileRow(path=path, file_ids=tuple(file_ids), counts=tuple(counts)),
        )
        for row_id, write_id, path, file_ids, counts in _read(source, DELETE_FILES)
    )
    return TableFiles(data_files, delete_files)


def _write(sink: Any, schema: pa.Schema, batches: Iterable[list[pa.Array]]) -> None:
    with pa.ipc.new_stream(sink, schema) as writer:
        for columns in batches:
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
