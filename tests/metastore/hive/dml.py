"""Rows of transactional tables, written by pyarrow as `strandline.spark` would write them."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from strandline.metastore.interface import Session
from strandline.metastore.store.file_scans import data_path
from strandline.metastore.store.rows import FILE_NUMBER_BITS, DataFile
from strandline.model.descriptors import TableDescriptor
from strandline.model.partitioning import Partition
from strandline.model.types import ArrayType, DataType, DecimalType, MapType, StructType, as_stored
from strandline.spark.folder import TableFolder, folder_path
from strandline.spark.partitions import partition_of
from strandline.spark.positions import POSITIONS, bitmaps_of, read_bitmaps, write_delete_file

_ID = "PARQUET:field_id"
_ATOMIC = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "date": pa.date32(),
}


def append(
    session: Session,
    name: str,
    *rows: Mapping[str, Any],
    old_layout: bool = False,
    path: str | None = None,
    versioned: bool = True,
) -> int:
    """Append rows in one file, and return the file's id. With ``old_layout``, write as 0.2.1 did.

    Then, and if not ``versioned``, the version of the schema is not recorded.

    With ``path``, the file has that path. In a partitioned table, all rows belong to one partition.
    """
    table = session.table(name)
    transaction = session.begin()
    file_id = transaction.txn_id << FILE_NUMBER_BITS
    path = path or data_path(file_id, uuid.uuid4().hex)
    if old_layout:
        path = f"_data/_file={file_id}/{uuid.uuid4().hex}.parquet"
    place = folder_path(table.location) / path
    place.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(list(rows), arrow_schema(table.descriptor)), place)
    partition: Partition = ()
    if table.descriptor.partitioning:
        with place.open("rb") as written:
            partition = partition_of(written, table.descriptor)
    file = DataFile(
        file_id=file_id,
        path=path,
        rows=len(rows),
        bytes=place.stat().st_size,
        partition=partition,
        schema_version=table.descriptor.schema_version if versioned and not old_layout else 0,
    )
    session.stage(transaction.txn_id, table.descriptor.id, add=[file])
    session.commit(transaction.txn_id)
    return file_id


def delete(
    session: Session,
    name: str,
    file_id: int,
    positions: Iterable[int],
    *,
    folder: str = "",
    also: Mapping[int, Iterable[int]] | None = None,
    sized: bool = True,
) -> None:
    """Delete the rows at these positions of a data file, and ``also`` of others by their ids.

    The delete file may go to a ``folder``. Unless ``sized``, its size is not recorded.
    """
    snapshot = session.open([name])
    table = snapshot.table(name)
    wanted = {file_id: positions, **(also or {})}
    files = session.files(table.descriptor.id, snapshot.write_ids_of(name)).data_files
    touched = [file.path for file in files if file.file_id in wanted]
    transaction = session.begin()
    opened = TableFolder(table.location, table=name)
    pairs = [(number, position) for number in wanted for position in wanted[number]]
    chosen = pa.table(dict(zip(POSITIONS.names, zip(*pairs, strict=True), strict=True)), POSITIONS)
    deleted = write_delete_file(opened, bitmaps_of(chosen), txn_id=transaction.txn_id)
    opened.close()
    if folder:
        root, own = folder_path(table.location), f"{folder}/{transaction.txn_id}.parquet"
        (root / folder).mkdir()
        (root / deleted.path).rename(root / own)
        deleted = replace(deleted, path=own)
    if not sized:
        deleted = replace(deleted, bytes=0)
    session.stage(transaction.txn_id, table.descriptor.id, add=[deleted], touch=touched)
    session.commit(transaction.txn_id)


def arrow_schema(table: TableDescriptor) -> pa.Schema:
    """The schema of a file that Spark writes for the table, with the ids of its columns."""
    return pa.schema(
        [
            pa.field(column.name, _arrow(as_stored(column.type)), metadata={_ID: str(column.id)})
            for column in table.columns
        ]
    )


def _arrow(data_type: DataType) -> pa.DataType:
    match data_type:
        case ArrayType(element):
            return pa.list_(_arrow(element))
        case MapType(key, value):
            return pa.map_(_arrow(key), _arrow(value))
        case DecimalType(precision, scale):
            return pa.decimal128(precision, scale)
        case StructType(fields):
            return pa.struct(
                [pa.field(f.name, _arrow(f.type), metadata={_ID: str(f.field_id)}) for f in fields]
            )
    return _ATOMIC[str(getattr(data_type, "name", "string"))]


def live_positions(session: Session, name: str, file_id: int) -> list[int]:
    """The positions of the rows of a data file that are not deleted."""
    snapshot = session.open([name])
    table = snapshot.table(name)
    files = session.files(table.descriptor.id, snapshot.write_ids_of(name))
    rows = {file.file_id: file.rows for file in files.data_files}
    bitmaps = read_bitmaps(folder_path(table.location), files.delete_files, rows)
    gone = bitmaps.get(file_id)
    return [
        position
        for position in range(rows[file_id])
        if gone is None
        or position // 64 >= len(gone)
        or not int(gone[position // 64]) >> position % 64 & 1
    ]
