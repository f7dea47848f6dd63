"""Appending to a partitioned table: Spark puts rows of one partition into one file.

Spark computes a key for each row, a digest of the row's values in all partition fields. One shuffle
brings rows with the same key together (Spark splits what is too much for one task and joins what is
too little), the tasks sort by it, and begin a file where it changes. So there is one job, however
many partitions there are. The key is the name of a folder in the staging area, and then forgotten:
the values of a file are computed from its first row, as values of their types.

What must stay true: two rows have the same key if and only if they have the same values by
`strandline.model.partitioning`. So times are computed from microseconds in UTC, whatever the time
zone of the session, and murmur3 is that of Iceberg. Spark's own ``hash`` differs in its seed and in
the last one to three bytes of a text. A constant before the value makes the seed 0; for the last
bytes, the final mixing is taken back, they are mixed in, and it is done again.

*Rejected*: the values as names of folders (NULL and '' are one name, long texts are none), a
function in Python (each executor would need this package, and each row crosses to it).
"""

from __future__ import annotations

from decimal import Context
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from strandline.errors import InvalidInput
from strandline.model.descriptors import ColumnDescriptor, TableDescriptor
from strandline.model.partitioning import (
    MICROS_OF_DAY,
    MICROS_OF_HOUR,
    Partition,
    PartitionValue,
    Physical,
    Transform,
    TransformKind,
)
from strandline.model.type_text import quoted
from strandline.model.types import (
    BINARY,
    DATE,
    INTEGRAL_TYPES,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    DataType,
    DecimalType,
)

KEY = "_strandline_partition"
"""The column of the key while rows are written."""

_EXACT = Context(prec=80)
_M32 = 0xFFFFFFFF
_BLOCK_1, _BLOCK_2 = 0xCC9E2D51, 0x1B873593
_MIX_1, _MIX_2 = 0x85EBCA6B, 0xC2B2AE35


def partition_key(table: TableDescriptor) -> str:
    """The key of a row of a partitioned table, as an expression of Spark's SQL."""
    columns = {column.id: column for column in table.columns}
    parts = []
    for field in table.partitioning:
        column = columns[field.source_id]
        part = f"CAST({_value(field.transform, column)} AS STRING)"
        parts.append(f"coalesce(concat(octet_length({part}), ':', {part}), '-')")
    return f"sha2(concat({', '.join(parts)}), 256)"


def partition_of(file: BinaryIO, table: TableDescriptor) -> Partition:
    """The values of the partition that a file with rows belongs to, by its first row.

    Raises `InvalidInput` for a text that is none.
    """
    columns = {column.id: column for column in table.columns}
    sources = [columns[field.source_id] for field in table.partitioning]
    parquet = pq.ParquetFile(file, coerce_int96_timestamp_unit="us")
    names = [column.name for column in sources]
    row = next(parquet.iter_batches(batch_size=1, columns=names, use_threads=False))
    values = []
    for field, column in zip(table.partitioning, sources, strict=True):
        value = _physical(row.column(row.schema.get_field_index(column.name)), column)
        if value is not None:
            value = field.transform.apply(value, column.type)
        values.append(PartitionValue(field.id, value))
    return tuple(values)


def _physical(column: pa.Array, of: ColumnDescriptor) -> Physical | None:
    if of.type == DATE:
        column = column.cast(pa.int32())
    elif of.type in (TIMESTAMP, TIMESTAMP_NTZ):
        column = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
    try:
        value = column[0].as_py()
    except UnicodeDecodeError as error:
        raise InvalidInput(f"a value of column {of.name!r} is no text: {error}") from None
    if isinstance(of.type, DecimalType) and value is not None:
        return int(value.scaleb(of.type.scale, _EXACT))
    physical: Physical | None = value
    return physical


# -- values of fields, in Spark's SQL ------------------------------------------------------------


def _value(transform: Transform, column: ColumnDescriptor) -> str:
    """The value of a field, or something that is the same for the same values only."""
    name, of = quoted(column.name), column.type
    match transform.kind:
        case TransformKind.IDENTITY:
            if of == TIMESTAMP:
                return f"unix_micros({name})"
            return f"hex({name})" if of == BINARY else name
        case TransformKind.BUCKET:
            return f"IF({name} IS NULL, NULL, ({_hash(name, of)} & 2147483647) % {transform.width})"
        case TransformKind.TRUNCATE:
            if of in INTEGRAL_TYPES:
                return _quotient(name, transform.width)
            if isinstance(of, DecimalType):
                return _quotient(_unscaled(name, of), transform.width)
            cut = f"substring({name}, 1, {transform.width})"
            return f"hex({cut})" if of == BINARY else cut
        case TransformKind.HOUR:
            if of == TIMESTAMP:
                return _quotient(f"unix_micros({name})", MICROS_OF_HOUR)
            return f"(24L * unix_date(CAST({name} AS DATE)) + hour({name}))"
    day = f"CAST({name} AS DATE)"
    if of == TIMESTAMP:
        days = _quotient(f"unix_micros({name})", MICROS_OF_DAY)
        day = f"date_from_unix_date(CAST({days} AS INT))"
    if transform.kind is TransformKind.DAY:
        return day
    year = f"year({day})"
    return year if transform.kind is TransformKind.YEAR else f"(12 * {year} + month({day}))"


def _quotient(value: str, width: int) -> str:
    """``value`` divided by ``width``, rounded down. Nothing in it can overflow."""
    return f"({value} DIV {width}L - IF({value} < 0 AND {value} % {width}L != 0, 1, 0))"


def _unscaled(value: str, of: DecimalType) -> str:
    """A decimal of few digits as the number of its last places."""
    return f"CAST({value} * CAST('1{'0' * of.scale}' AS DECIMAL({of.scale + 1}, 0)) AS BIGINT)"


def _let(name: str, value: str, body: str) -> str:
    """``body`` with ``name`` for ``value``, which is computed once."""
    return f"transform(array({value}), {name} -> {body})[0]"


def _seed() -> int:
    """The INT whose hash, with the seed 42 that Spark has, is 0: so it is the next one's seed."""
    state = (4 - 0xE6546B64) * pow(5, -1, 1 << 32) & _M32
    block = (state >> 13 | state << 19) & _M32 ^ 42
    block = block * pow(_BLOCK_2, -1, 1 << 32) & _M32
    block = (block >> 15 | block << 17) * pow(_BLOCK_1, -1, 1 << 32) & _M32
    return block - (1 << 32) if block >> 31 else block


_SEED = _seed()


def _hash(value: str, of: DataType) -> str:
    """murmur3 of a value that is not NULL."""
    if of == TIMESTAMP:
        return f"hash({_SEED}, unix_micros({value}))"
    if of == TIMESTAMP_NTZ:
        day = f"unix_date(CAST({value} AS DATE))"
        of_day = (
            f"(hour({value}) * 3600000000L + minute({value}) * 60000000L"
            f" + CAST(extract(SECOND FROM {value}) * 1000000 AS BIGINT))"
        )
        return f"hash({_SEED}, {day} * {MICROS_OF_DAY}L + {of_day})"
    if of == DATE:
        return f"hash({_SEED}, CAST(unix_date({value}) AS BIGINT))"
    if of in INTEGRAL_TYPES:
        return f"hash({_SEED}, CAST({value} AS BIGINT))"
    if isinstance(of, DecimalType):
        number = _let("_number", _unscaled(value, of), _shortest_bytes("_number"))
        return _let("_bytes", number, _hash_of_bytes("_bytes"))
    return _let("_bytes", f"CAST({value} AS BINARY)", _hash_of_bytes("_bytes"))


def _shortest_bytes(number: str) -> str:
    """The two's complement of a BIGINT in as few bytes as it needs."""
    positive = f"IF({number} < 0, ~{number}, {number})"
    bits = f"IF({positive} = 0, 0, length(bin({positive})))"
    return f"unhex(right(lpad(hex({number}), 16, '0'), 2 * ({bits} DIV 8) + 2))"


def _hash_of_bytes(data: str) -> str:
    """murmur3 of bytes, as a BIGINT; see the module."""
    size, rest = f"octet_length({data})", f"(octet_length({data}) % 4)"
    whole = f"({size} - {rest})"
    body = f"(CAST(hash({_SEED}, substring({data}, 1, {whole})) AS BIGINT) & {_M32}L)"
    tail = " + ".join(
        f"coalesce(CAST(conv(hex(substring({data}, {whole} + {place + 1}, 1)), 16, 10) AS BIGINT),"
        f" 0L) * {1 << 8 * place}L"
        for place in range(3)
    )
    steps = [
        ("_h", _shifted("_h", 16)),
        ("_h", _product("_h", pow(_MIX_2, -1, 1 << 32))),
        ("_h", "_h ^ shiftright(_h, 13) ^ shiftright(_h, 26)"),
        ("_h", _product("_h", pow(_MIX_1, -1, 1 << 32))),
        ("_h", _shifted("_h", 16)),
        ("_k", tail),
        ("_k", _product("_k", _BLOCK_1)),
        ("_k", f"(shiftleft(_k, 15) | shiftright(_k, 17)) & {_M32}L"),
        ("_k", _product("_k", _BLOCK_2)),
        ("_h", f"_h ^ {whole} ^ _k ^ {size}"),
        ("_h", _shifted("_h", 16)),
        ("_h", _product("_h", _MIX_1)),
        ("_h", _shifted("_h", 13)),
        ("_h", _product("_h", _MIX_2)),
    ]
    mixed = _shifted("_h", 16)
    for name, value in reversed(steps):
        mixed = _let(name, value, mixed)
    return _let("_h", body, f"IF({rest} = 0, _h, {mixed})")


def _shifted(value: str, places: int) -> str:
    return f"{value} ^ shiftright({value}, {places})"


def _product(value: str, factor: int) -> str:
    """The low 32 bits of a product of two numbers of 32 bits, neither half of which overflows."""
    low, high = factor & 0xFFFF, factor >> 16
    return f"({value} * {low}L + shiftleft({value} * {high}L & 65535L, 16)) & {_M32}L"
