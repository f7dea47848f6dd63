"""Appending to a partitioned table: Spark puts rows of one partition into one file.

Spark computes a key for each row, a digest of the row's values of all partition fields. One shuffle
brings rows with the same key together. (Spark splits what is too much for one task and combines
what is too little.) The tasks sort by the key, and begin a new file where it changes. So there is
one job, however many partitions there are. The key is the name of a folder in the staging area and
is not kept: the partition values of a file are computed from its first row, in their own types.

What must stay true: two rows have the same key if and only if they have the same values according
to `strandline.model.partitioning`. So times are computed from microseconds in UTC, whatever the
time zone of the session, and murmur3 is computed as in Iceberg. Spark's own ``hash`` differs in its
seed and in the last one to three bytes of a text. Hashing a constant before the value makes the
seed 0. For the last bytes, the final mixing is reverted, the bytes are mixed in, and the final
mixing is done again.

Each step of the hash is its own column: in one expression, a value that is used twice would be
computed twice, and so on at each level. So is the unscaled value of a decimal of more than 18
digits, which does not fit into a BIGINT.

Rejected: the values as names of folders (NULL and '' have the same name, and long texts are not
valid names), a function in Python (each executor would need this package, and each row would be
sent to Python), steps as lambda functions (Spark interprets them, which is 30 times as slow).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Context
from typing import BinaryIO, TypeGuard

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sql

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
from strandline.spark.schemas import SETTINGS, TIMESTAMPS_AS

KEY = "_strandline_partition"
"""The name of the column that has the key while rows are written."""

_FIRST_MICRO, _LAST_MICRO = -62_135_596_800_000_000, 253_402_300_799_999_999
"""The first and the last microsecond of the years 1 to 9999, in UTC.

Arrow reads an INT96 as another time if the number of its day is negative. Spark writes such numbers
for days long before the year 1, and for the last times of a TIMESTAMP, where the number overflows.
"""
_EXACT = Context(prec=80)
_DIGITS_OF_BIGINT = 18
_SIGN_BYTES = "^((00(?=[0-7]))+|(FF(?=[89A-F]))+)"
"""The first bytes of a two's complement in hexadecimal that the rest implies."""
_M32 = 0xFFFFFFFF
_BLOCK_1, _BLOCK_2 = 0xCC9E2D51, 0x1B873593
_MIX_1, _MIX_2 = 0x85EBCA6B, 0xC2B2AE35


def with_partition_key(frame: DataFrame, table: TableDescriptor) -> DataFrame:
    """Return the rows of a partitioned table with the additional column `KEY`."""
    columns = {column.id: column for column in table.columns}
    transforms = [(field.transform, columns[field.source_id]) for field in table.partitioning]
    frame, values = with_values(frame, transforms)
    parts = []
    for value in values:
        part = f"CAST({value} AS STRING)"
        parts.append(f"coalesce(concat(octet_length({part}), ':', {part}), '-')")
    key = sql.expr(f"sha2(concat({', '.join(parts)}), 256)").alias(KEY)
    return frame.select(*(sql.col(quoted(column.name)) for column in table.columns), key)


def with_values(
    frame: DataFrame, transforms: Sequence[tuple[Transform, ColumnDescriptor]]
) -> tuple[DataFrame, list[str]]:
    """Return a frame, and for each transform of a column the expression of its value in it.

    The expression may instead give something that is equal exactly for equal values. For a bucket
    it always gives the value.
    """
    values = []
    steps: list[dict[str, Column]] = []
    for number, (transform, column) in enumerate(transforms):
        own_steps: Sequence[Mapping[str, str]] = ()
        if transform.kind is TransformKind.BUCKET:
            hashed = _Hash(number, column)
            own_steps = hashed.steps
            bucket = f"({hashed.value} & 2147483647) % {transform.width}"
            values.append(f"IF({quoted(column.name)} IS NULL, NULL, {bucket})")
        elif transform.kind is TransformKind.TRUNCATE and _is_wide(column.type):
            unscaled = f"{KEY}_unscaled{number}"
            own_steps = ({unscaled: _unscaled(quoted(column.name), column.type)},)
            values.append(_multiple(unscaled, transform.width))
        else:
            values.append(_value(transform, column))
        for index, step in enumerate(own_steps):
            if index == len(steps):
                steps.append({})
            steps[index] |= {name: sql.expr(value) for name, value in step.items()}
    for together in steps:
        frame = frame.withColumns(together)
    return frame, values


def partition_of(file: BinaryIO, table: TableDescriptor) -> Partition:
    """The partition values of a file with rows, computed from its first row.

    Raises `InvalidInput` for a text that is not UTF-8, and for an INT96 that may be misread.
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


def _physical(column: pa.Array, source_column: ColumnDescriptor) -> Physical | None:
    is_int96 = source_column.type == TIMESTAMP and column.type.tz is None
    if source_column.type == DATE:
        column = column.cast(pa.int32())
    elif source_column.type in (TIMESTAMP, TIMESTAMP_NTZ):
        column = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
    if is_int96 and not _FIRST_MICRO <= (column[0].as_py() or 0) <= _LAST_MICRO:
        raise InvalidInput(
            f"a value of partition column {source_column.name!r} is outside the years 1 to 9999,"
            " and this Spark session writes it as INT96, which may be read as another time: set"
            f" {TIMESTAMPS_AS} to {SETTINGS[TIMESTAMPS_AS]}"
        )
    try:
        value = column[0].as_py()
    except UnicodeDecodeError as error:
        raise InvalidInput(
            f"a value of column {source_column.name!r} is not UTF-8: {error}"
        ) from None
    if isinstance(source_column.type, DecimalType) and value is not None:
        return int(value.scaleb(source_column.type.scale, _EXACT))
    physical: Physical | None = value
    return physical


# -- values of fields, in Spark SQL --------------------------------------------------------------


def _value(transform: Transform, column: ColumnDescriptor) -> str:
    """The value of any transform but bucket, or something that is equal only for equal values."""
    name, data_type = quoted(column.name), column.type
    match transform.kind:
        case TransformKind.IDENTITY:
            if data_type == TIMESTAMP:
                return f"unix_micros({name})"
            return f"hex({name})" if data_type == BINARY else name
        case TransformKind.TRUNCATE:
            if data_type in INTEGRAL_TYPES:
                return _quotient(name, transform.width)
            if isinstance(data_type, DecimalType):
                return _quotient(_unscaled(name, data_type), transform.width)
            cut = f"substring({name}, 1, {transform.width})"
            return f"hex({cut})" if data_type == BINARY else cut
        case TransformKind.HOUR:
            if data_type == TIMESTAMP:
                return _quotient(f"unix_micros({name})", MICROS_OF_HOUR)
            return f"(24L * unix_date(CAST({name} AS DATE)) + hour({name}))"
    day = f"CAST({name} AS DATE)"
    if data_type == TIMESTAMP:
        days = _quotient(f"unix_micros({name})", MICROS_OF_DAY)
        day = f"date_from_unix_date(CAST({days} AS INT))"
    if transform.kind is TransformKind.DAY:
        return day
    year = f"year({day})"
    return year if transform.kind is TransformKind.YEAR else f"(12 * {year} + month({day}))"


def _quotient(value: str, width: int) -> str:
    """``value`` divided by ``width``, rounded down; no intermediate result can overflow."""
    by = f"{width}L" if width < 1 << 63 else str(width)
    return f"({value} DIV {by} - IF({value} < 0 AND {value} % {by} != 0, 1, 0))"


def _multiple(value: str, width: int) -> str:
    """A text that is equal for DECIMAL(38, 0) between the same two multiples of ``width``.

    The next multiple below may have 39 digits; so negative values are counted from -1 down.
    """
    below = f"(-1 - {value})"
    return (
        f"IF({value} < 0, concat('-', {below} - {below} % {width}L),"
        f" CAST({value} - {value} % {width}L AS STRING))"
    )


def _is_wide(data_type: DataType) -> TypeGuard[DecimalType]:
    return isinstance(data_type, DecimalType) and data_type.precision > _DIGITS_OF_BIGINT


def _unscaled(value: str, decimal_type: DecimalType) -> str:
    """The unscaled value of a decimal: a DECIMAL(38, 0) if it is wide, else a BIGINT."""
    if _is_wide(decimal_type):
        # A product may overflow, and the text that a cast gives may have an exponent.
        digits = f"translate(format_number({value}, {decimal_type.scale}), ',.', '')"
        return f"CAST({digits} AS DECIMAL(38, 0))"
    return (
        f"CAST({value} * CAST('1{'0' * decimal_type.scale}' AS DECIMAL({decimal_type.scale + 1}, "
        "0)) AS BIGINT)"
    )


def _seed() -> int:
    """The INT whose hash with Spark's seed 42 is 0, so that 0 is the seed of the next value."""
    state = (4 - 0xE6546B64) * pow(5, -1, 1 << 32) & _M32
    block = (state >> 13 | state << 19) & _M32 ^ 42
    block = block * pow(_BLOCK_2, -1, 1 << 32) & _M32
    block = (block >> 15 | block << 17) * pow(_BLOCK_1, -1, 1 << 32) & _M32
    return block - (1 << 32) if block >> 31 else block


_SEED = _seed()


class _Hash:
    """murmur3 of a column: ``value``, after ``steps`` were added as columns, one step at a time.

    Undefined where the column is NULL. ``number`` makes the names of the columns unique.
    """

    def __init__(self, number: int, column: ColumnDescriptor) -> None:
        name, data_type = quoted(column.name), column.type
        self.steps: list[dict[str, str]] = []
        whole_number = _whole_number(name, data_type)
        if whole_number is not None:
            self.value = f"hash({_SEED}, {whole_number})"
            return
        self._number = number
        data = f"CAST({name} AS BINARY)"
        if isinstance(data_type, DecimalType):
            data = self._bytes_of(data_type, self._step("unscaled", _unscaled(name, data_type)))
        self.value = self._of_bytes(self._step("bytes", data))

    def _step(self, what: str, value: str, **beside: str) -> str:
        """Add a step; return the name of its first column."""
        names = {f"{KEY}_{name}{self._number}": v for name, v in {what: value, **beside}.items()}
        self.steps.append(names)
        return next(iter(names))

    def _bytes_of(self, decimal_type: DecimalType, unscaled: str) -> str:
        """The shortest two's complement of the unscaled value of a decimal."""
        if not _is_wide(decimal_type):
            return _shortest_bytes(unscaled)
        remainder = f"pmod({unscaled}, {1 << 64})"
        high = self._step("high", _quotient(unscaled, 1 << 64), low=remainder)
        low = f"{KEY}_low{self._number}"
        halves = f"{low} DIV {1 << 32}L", f"CAST({low} % {1 << 32}L AS BIGINT)"
        digits = [f"lpad(hex({high}), 16, '0')", *(f"lpad(hex({h}), 8, '0')" for h in halves)]
        return f"unhex(regexp_replace(concat({', '.join(digits)}), '{_SIGN_BYTES}', ''))"

    def _of_bytes(self, data: str) -> str:
        size = f"octet_length({data})"
        whole = f"({size} - {size} % 4)"
        body = f"(CAST(hash({_SEED}, substring({data}, 1, {whole})) AS BIGINT) & {_M32}L)"
        # `conv` could read the number from these digits, but takes longer than all other steps.
        last = f"rpad(hex(substring({data}, {whole} + 1, 3)), 6, '0')"
        known = self._step("body", body, tail=last)
        h, k = (f"{KEY}_{name}{self._number}" for name in ("state", "tail"))
        self._step(
            "state", _product(_shifted(known, 16), pow(_MIX_2, -1, 1 << 32)), tail=_read_hex(k)
        )
        unmixed = f"({h} ^ shiftright({h}, 13) ^ shiftright({h}, 26))"
        self._step("state", _product(unmixed, pow(_MIX_1, -1, 1 << 32)), tail=_product(k, _BLOCK_1))
        turned = f"((shiftleft({k}, 15) | shiftright({k}, 17)) & {_M32}L)"
        mixed = _product(turned, _BLOCK_2)
        self._step("state", f"({_shifted(h, 16)} ^ {whole} ^ ({mixed}) ^ {size})")
        self._step("state", _product(_shifted(h, 16), _MIX_1))
        self._step("state", _product(_shifted(h, 13), _MIX_2))
        return _shifted(h, 16)


def _whole_number(value: str, data_type: DataType) -> str | None:
    """A value that is hashed as 8 bytes, converted to a BIGINT; None for a value of other types."""
    if data_type == TIMESTAMP:
        return f"unix_micros({value})"
    if data_type == TIMESTAMP_NTZ:
        of_day = (
            f"(hour({value}) * 3600000000L + minute({value}) * 60000000L"
            f" + CAST(extract(SECOND FROM {value}) * 1000000 AS BIGINT))"
        )
        day = f"unix_date(CAST({value} AS DATE))"
        # The begin of the first day and the end of the last one are not in the range of a BIGINT.
        return (
            f"IF({day} < 0, ({day} + 1) * {MICROS_OF_DAY}L + ({of_day} - {MICROS_OF_DAY}L),"
            f" {day} * {MICROS_OF_DAY}L + {of_day})"
        )
    if data_type == DATE:
        return f"CAST(unix_date({value}) AS BIGINT)"
    return f"CAST({value} AS BIGINT)" if data_type in INTEGRAL_TYPES else None


def _shortest_bytes(number: str) -> str:
    """The two's complement of a BIGINT in the minimum number of bytes."""
    positive = f"IF({number} < 0, ~{number}, {number})"
    bits = f"IF({positive} = 0, 0, length(bin({positive})))"
    return f"unhex(right(lpad(hex({number}), 16, '0'), 2 * ({bits} DIV 8) + 2))"


def _read_hex(text: str) -> str:
    """The number whose bytes, lowest first, are given as six hexadecimal digits."""
    parts = []
    for index in range(6):
        code = f"ascii(substring({text}, {index + 1}, 1))"
        digit = f"({code} - IF({code} > 57, 55, 48))"
        parts.append(f"{digit} * {16 ** (index ^ 1)}L")
    return f"({' + '.join(parts)})"


def _shifted(value: str, bits: int) -> str:
    return f"({value} ^ shiftright({value}, {bits}))"


def _product(value: str, factor: int) -> str:
    """The low 32 bits of the product of two 32-bit numbers, computed in halves: no overflow."""
    low, high = factor & 0xFFFF, factor >> 16
    return f"(({value} * {low}L + shiftleft({value} * {high}L & 65535L, 16)) & {_M32}L)"
