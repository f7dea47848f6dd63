"""Rows as bytes: a few inside the state of a shard, many as a part, which is a Parquet file.

A part has the columns kind, key, value, version, time and diff, and its rows are sorted by them in
the order `sort_key`. So any tool that reads Parquet can look at a catalog. Rows inside the state
are one after the other, as (kind, key, value, version, time, diff).

What was appended and not rewritten since has no times: the log orders an append when its bytes are
there already. Such a row has `MIN_TIMESTAMP`, and its bytes, where they have a time inside, have
that one too; `at_time` finishes it on reading.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from sys import intern
from typing import TYPE_CHECKING

from strandline.clock import MIN_TIMESTAMP, Timestamp
from strandline.durable.rows import Row, is_object
from strandline.errors import CorruptData
from strandline.wire.codecs import BYTES, SINT, TEXT, UINT, Reader
from strandline.wire.registry import timed_head

if TYPE_CHECKING:  # slow to import, and needed only where there is a part
    import pyarrow as pa

COLUMNS = Row._fields


def sort_key(row: Row) -> tuple[str, bytes, int, int, bytes]:
    """What the rows of a part are sorted by: those of an object together, in their order."""
    return row.kind, row.key, row.version, row.diff, row.value


def encode_rows(rows: Sequence[Row]) -> bytes:
    """The rows as they stand inside of a state."""
    out = bytearray()
    for kind, key, value, version, time, diff in rows:
        TEXT.write(out, kind)
        BYTES.write(out, key)
        BYTES.write(out, value)
        UINT.write(out, version)
        UINT.write(out, time)
        SINT.write(out, diff)
    return bytes(out)


def decode_rows(data: bytes) -> Iterator[Row]:
    """The rows that `encode_rows` wrote. Raises `CorruptData`."""
    reader = Reader(data)
    while reader.position < reader.end:
        yield Row(
            intern(TEXT.read(reader)),
            BYTES.read(reader),
            BYTES.read(reader),
            UINT.read(reader),
            Timestamp(UINT.read(reader)),
            SINT.read(reader),
        )


def at_time(row: Row, time: Timestamp) -> Row:
    """``row`` as it is once its append was ordered at ``time``; one with a time stays as it is."""
    if row.time != MIN_TIMESTAMP:
        return row
    timed = None if is_object(row.kind) else timed_head(row.value)
    value = row.value if timed is None else timed[0](time) + timed[1]
    return row._replace(time=time, value=value)


def write_part(rows: Iterable[Row]) -> bytes:
    """The part of these rows, in any order."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    types = (pa.string(), pa.binary(), pa.binary(), pa.uint64(), pa.uint64(), pa.int64())
    columns = list(zip(*sorted(rows, key=sort_key), strict=True)) or [()] * len(COLUMNS)
    arrays = [pa.array(column, type=of) for column, of in zip(columns, types, strict=True)]
    sink = pa.BufferOutputStream()
    table = pa.table(arrays, names=list(COLUMNS))
    pq.write_table(table, sink, compression="zstd", use_dictionary=["kind"])
    return bytes(sink.getvalue())


def read_part(data: bytes) -> pa.Table:
    """The columns of a part. Raises `CorruptData`."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(pa.BufferReader(data), use_threads=False)
    except (pa.ArrowException, OSError) as error:
        raise CorruptData(f"a part of the log is no Parquet file ({error})") from error
    if tuple(table.column_names) != COLUMNS:
        raise CorruptData(f"a part of the log has the columns {', '.join(table.column_names)}")
    return table


def rows_between(table: pa.Table, start: int, end: int, *, kind: str | None = None) -> list[Row]:
    """The rows of versions from ``start`` to ``end`` − 1, in the order of the part; of one kind."""
    import pyarrow.compute as pc

    versions = table["version"]
    wanted = pc.and_(pc.greater_equal(versions, start), pc.less(versions, end))
    if kind is not None:
        wanted = pc.and_(wanted, pc.equal(table["kind"], kind))
    columns = [column.to_pylist() for column in table.filter(wanted).itercolumns()]
    columns[0] = list(map(intern, columns[0]))
    return list(map(Row._make, zip(*columns, strict=True)))
