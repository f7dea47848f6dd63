"""Lists of files as Arrow: how the files of a snapshot cross HTTP.

A snapshot of a large table is a hundred thousand files, which as JSON would cost seconds on both
sides. The body holds two Arrow IPC streams behind each other, of data files and of delete files, in
the schemas below; both are there, also when they have no rows. Statistics of columns are a list of
structs. What is read is checked against these schemas, exactly.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from strandline.errors import ProtocolError
from strandline.metastore.interface import DataFile, DeleteFile, TableFiles
from strandline.metastore.store.rows import ColumnStatistics, DataFileRow, DeleteFileRow

CONTENT_TYPE = "application/vnd.apache.arrow.stream"
_BATCH = 65_536


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
    _write(
        sink,
        DATA_FILES,
        (
            (
                one.row_id,
                one.write_id,
                one.file.file_id,
                one.file.path,
                one.file.rows,
                one.file.bytes,
                one.file.partition,
                [
                    {"column_id": s.column_id, "lower": s.lower, "upper": s.upper, "nulls": s.nulls}
                    for s in one.file.statistics
                ],
            )
            for one in files.data_files
        ),
    )
    _write(
        sink,
        DELETE_FILES,
        (
            (
                one.row_id,
                one.write_id,
                one.file.path,
                one.file.file_ids,
                one.file.counts,
            )
            for one in files.delete_files
        ),
    )
    return bytes(sink.getvalue())


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


def _write(sink: Any, schema: pa.Schema, rows: Iterable[tuple[object, ...]]) -> None:
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    arrays = [
        pa.array(values, type=field.type) for values, field in zip(columns, schema, strict=True)
    ]
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_table(pa.Table.from_arrays(arrays, schema=schema), max_chunksize=_BATCH)


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
