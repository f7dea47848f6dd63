"""What the footer of a Parquet file says about its columns: ids, bounds, NULLs.

The driver reads footers; that is nearly free, while a Spark job for it would cost as much as
writing the file. Bounds are stored as text in one canonical form for each type:
| type | text |
| --- | --- |
| integers, decimals, intervals | decimal digits |
| float, double | the shortest decimal that reads back as the same value, ``inf``, ``-inf`` |
| boolean | ``false``, ``true`` |
| date, timestamp_ntz | ISO 8601, times with six digits of a second |
| timestamp | the same in UTC, with ``Z`` |
| string | the text, at most `MAX_BOUND` characters; an upper bound that was cut is rounded up |

The upper bound of a float or double has hexadecimal digits, because releases up to 0.8.0 wrote
decimal ones that may be too low. Binary columns have no bounds, and neither have columns without
bounds in the footer. A column in which Spark wrote NaN has no upper bound. Values inside arrays and
maps have no statistics: one row may contain many of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from strandline.metastore.store.file_schemas import children
from strandline.metastore.store.rows import ColumnStatistics

MAX_BOUND = 64
_FIELD_ID = b"PARQUET:field_id"
_LAST = 0x10FFFF
_SURROGATES = range(0xD800, 0xE000)


def file_ids(metadata: pq.FileMetaData) -> frozenset[int]:
    """The column ids in a file, at every level."""
    column_ids: set[int] = set()
    pending = list(metadata.schema.to_arrow_schema())
    while pending:
        field = pending.pop()
        if (column_id := _id_of(field)) is not None:
            column_ids.add(column_id)
        pending.extend(children(field.type))
    return frozenset(column_ids)


def column_statistics(metadata: pq.FileMetaData) -> tuple[ColumnStatistics, ...]:
    """The statistics of all columns and nested fields that have an id and one value per row."""
    leaves = list(_leaves(metadata.schema.to_arrow_schema(), repeated=False))
    if len(leaves) != metadata.num_columns:
        return ()
    statistics = (
        _merged(metadata, position, column_id)
        for position, column_id in enumerate(leaves)
        if column_id is not None
    )
    return tuple(sorted(statistics, key=lambda column: column.column_id))


def canonical_text(value: Any) -> str | None:
    """The canonical text of a value, or None if it is NaN or its type has none."""
    match value:
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case float():
            return None if value != value else repr(value)
        case Decimal():
            return format(value, "f")
        case datetime():
            text = value.replace(tzinfo=None).isoformat(timespec="microseconds")
            return text if value.tzinfo is None else f"{text}Z"
        case date():
            return value.isoformat()
        case str():
            return value
    return None


def _upper_text(value: Any) -> str | None:
    """The text of an upper bound that is not cut; None if it is NaN or its type has none."""
    text = canonical_text(value)
    return value.hex() if text is not None and isinstance(value, float) else text


def lower_bound(text: str) -> str:
    """A short text that is at or below ``text``."""
    return text[:MAX_BOUND]


def upper_bound(text: str) -> str | None:
    """A short text that is at or above ``text``, or None if there is none."""
    return text if len(text) <= MAX_BOUND else following(text[:MAX_BOUND])


def following(prefix: str) -> str | None:
    """A text that is above every text that begins with ``prefix``, or None if there is none."""
    while prefix:
        code = ord(prefix[-1]) + 1
        if code in _SURROGATES:
            code = _SURROGATES.stop
        if code <= _LAST:
            return prefix[:-1] + chr(code)
        prefix = prefix[:-1]
    return None


@dataclass(slots=True)
class _Bounds:
    """The bounds so far. ``known`` is False once a part of the file has no bounds."""

    lower: Any = None
    upper: Any = None
    known: bool = True


def _merged(metadata: pq.FileMetaData, position: int, column_id: int) -> ColumnStatistics:
    bounds, nulls = _Bounds(), 0
    nulls_known = True
    for group in range(metadata.num_row_groups):
        chunk = metadata.row_group(group).column(position)
        statistics = chunk.statistics
        if statistics is None or not statistics.has_null_count:
            nulls_known = False
        else:
            nulls += statistics.null_count
        if statistics is not None and statistics.has_min_max:
            _widen(bounds, statistics)
        elif statistics is None or statistics.null_count != chunk.num_values:
            bounds.known = False
    lower = canonical_text(bounds.lower) if bounds.known else None
    upper = _upper_text(bounds.upper) if bounds.known else None
    if isinstance(bounds.lower, str):
        lower = None if lower is None else lower_bound(lower)
        upper = None if upper is None else upper_bound(upper)
    return ColumnStatistics(
        column_id=column_id, lower=lower, upper=upper, nulls=nulls if nulls_known else None
    )


def _widen(bounds: _Bounds, statistics: pq.Statistics) -> None:
    try:
        lower, upper = statistics.min, statistics.max
    except (ValueError, OverflowError, pa.ArrowException):
        # A date or time outside the years 1 to 9999, or a text that is not UTF-8.
        bounds.known = False
        return
    bounds.lower = lower if bounds.lower is None else min(bounds.lower, lower, key=_order)
    bounds.upper = upper if bounds.upper is None else max(bounds.upper, upper, key=_order)


def _order(value: Any) -> tuple[bool, Any]:
    """The order of bounds: NaN, which Spark writes as the maximum of its row group, is above all.

    Python's own `max` returns the first of a number and NaN.
    """
    return value != value, value


def _leaves(fields: Any, *, repeated: bool) -> Iterator[int | None]:
    """The id of each leaf, in file order; None for a leaf without id, or inside a list or map."""
    for field in fields:
        inner = children(field.type)
        if inner:
            is_repeated = repeated or not pa.types.is_struct(field.type)
            yield from _leaves(inner, repeated=is_repeated)
        else:
            yield None if repeated else _id_of(field)


def _id_of(field: pa.Field) -> int | None:
    text = (field.metadata or {}).get(_FIELD_ID)
    return None if text is None or int(text) < 0 else int(text)
