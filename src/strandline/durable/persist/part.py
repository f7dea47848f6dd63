"""Rows as bytes: a few rows inside the state of a shard, many rows as a part (a Parquet file).

A part has the columns kind, key, value, version, time and diff. Its rows are sorted by `_ORDER`.
So any tool that reads Parquet can inspect a catalog. Rows inside the state are encoded one after
the other, as (kind, key, value, version, time, diff).

Rows that were appended and not rewritten since have no times, because the log orders an append
after its bytes were written. Such a row has `MIN_TIMESTAMP`. If its bytes contain a time, that is
`MIN_TIMESTAMP` too. `at_time` completes the row when it is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from sys import intern
from typing import TYPE_CHECKING

from strandline.clock import MIN_TIMESTAMP, Timestamp
from strandline.durable.rows import REMEDY, Row, is_object
from strandline.errors import CorruptData
from strandline.wire.codecs import BYTES, SINT, TEXT, UINT, Reader
from strandline.wire.registry import timed_head

if TYPE_CHECKING:  # slow to import, and needed only for parts
    import pyarrow as pa

COLUMNS = Row._fields


_ORDER = attrgetter("kind", "key", "version", "diff", "value")
"""The order of a part: the rows of an object are together, in version order."""


def encode_rows(rows: Sequence[Row]) -> bytes:
    """The rows as they are stored inside a state."""
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
    """``row`` with the time at which its append was ordered; unchanged if it has a time."""
    if row.time != MIN_TIMESTAMP:
        return row
    timed = None if is_object(row.kind) else timed_head(row.value)
    value = row.value if timed is None else timed[0](time) + timed[1]
    return row._replace(time=time, value=value)


def write_part(rows: Iterable[Row]) -> bytes:
    """The bytes of the part with these rows: at least one, in any order."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    types = (pa.string(), pa.binary(), pa.binary(), pa.uint64(), pa.uint64(), pa.int64())
    columns = list(zip(*sorted(rows, key=_ORDER), strict=True))
    arrays = [
        pa.array(column, type=column_type)
        for column, column_type in zip(columns, types, strict=True)
    ]
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
        raise CorruptData(f"a part of the log is not a Parquet file ({error}); {REMEDY}") from error
    if tuple(table.column_names) != COLUMNS:
        raise CorruptData(
            f"a part of the log has unexpected columns: {', '.join(table.column_names)}; {REMEDY}"
        )
    return table


def rows_between(table: pa.Table, start: int, end: int, *, kind: str | None) -> list[Row]:
    """The rows of versions ``start`` to ``end`` − 1, of ``kind`` if given, in the part's order."""
    import pyarrow.compute as pc

    versions = table["version"]
    selected = pc.and_(pc.greater_equal(versions, start), pc.less(versions, end))
    if kind is not None:
        selected = pc.and_(selected, pc.equal(table["kind"], kind))
    columns = [column.to_pylist() for column in table.filter(selected).itercolumns()]
    columns[0] = list(map(intern, columns[0]))
    return list(map(Row._make, zip(*columns, strict=True)))
