"""Column statistics as values: which are accepted, and how two are combined.

A ``ColumnStatisticsObj`` has the statistics of one column, in one of the protocol's forms, which
depends on the type of the column. Statistics of two parts of a table are combined by one rule per
number, both when a client adds to the known statistics (``needMerge``) and when it asks for several
partitions as one. The result has the outer bounds, the sum of counts, and the larger length and
number of distinct values. Both parts may contain the same values, so the sum of two numbers of
distinct values would be an upper bound; Hive uses the lower bound. Bit vectors and histograms, from
which Hive 4 derives more, are stored as they were sent and are not read. A combination of two
statistics has none.

A count of −1 means "not known", as Impala writes it; a sum that includes it is not known either. A
sum is capped at the largest number that the protocol can carry.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from math import isfinite
from typing import Any

from strandline import work
from strandline.errors import InvalidInput
from strandline.metastore.hive.storage_descriptors import Struct, plain_columns_of
from strandline.metastore.store.rows import AnalyzedColumn, Row, StatisticsRow
from strandline.metastore.thrift.codec import HIVE_CODEC
from strandline.model.descriptors import ColumnDescriptor, TableDescriptor
from strandline.model.type_text import simple_string
from strandline.model.types import (
    BIGINT,
    BINARY,
    BOOLEAN,
    DATE,
    DOUBLE,
    FLOAT,
    INT,
    SMALLINT,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    TINYINT,
    CharType,
    DataType,
    DecimalType,
    StringType,
    VarcharType,
)

MAX_COLUMN_BYTES = 64 << 10
"""The maximum bytes of one column's statistics, with bit vectors, in the binary protocol."""

COLUMNS_PER_UNIT = 20
_BYTES_PER_UNIT = 2_000
"""The bytes of stored statistics for one unit of `strandline.work`: bit vectors may be long."""
UNKNOWN = -1
LARGEST = (1 << 63) - 1
"""The largest number that the protocol can carry."""
_OBJECT = "ColumnStatisticsObj"

Rule = Callable[[Any, Any], Any]  # bounds have several types: hence Any


def total(left: int, right: int) -> int:
    return UNKNOWN if min(left, right) < 0 else min(left + right, LARGEST)


def lower(left: Any, right: Any) -> Any:
    return left if _order(left) <= _order(right) or right != right else right  # NaN is not a bound


def _higher(left: Any, right: Any) -> Any:
    return left if _order(left) >= _order(right) or right != right else right


def _order(bound: Any) -> Any:
    """Return a value that compares like the bound. Decimals become integers, which are exact."""
    if not isinstance(bound, dict):
        return bound
    if "unscaled" in bound:
        # Scaled to the largest scale of a decimal, so that all of them compare as integers.
        unscaled = int.from_bytes(bound["unscaled"], "big", signed=True)
        return unscaled * 10 ** (MAX_SCALE - bound["scale"])
    return next(iter(bound.values()), 0)


MAX_SCALE = 38
_BOUNDED: dict[str, Rule] = {
    "lowValue": lower,
    "highValue": _higher,
    "numNulls": total,
    "numDVs": max,
}
_MEASURED: dict[str, Rule] = {"maxColLen": max, "avgColLen": max, "numNulls": total}
FORMS: Mapping[str, Mapping[str, Rule]] = {
    "booleanStats": dict.fromkeys(("numTrues", "numFalses", "numNulls"), total),
    "longStats": _BOUNDED,
    "doubleStats": _BOUNDED,
    "decimalStats": _BOUNDED,
    "dateStats": _BOUNDED,
    "timestampStats": _BOUNDED,
    "stringStats": _MEASURED | {"numDVs": max},
    "binaryStats": _MEASURED,
}
_WHOLE = ("longStats", "dateStats")
"""Forms with whole numbers, whose bounds limit the number of distinct values."""
_BY_TYPE: Mapping[DataType, tuple[str, ...]] = {
    **dict.fromkeys((TINYINT, SMALLINT, INT, BIGINT), ("longStats",)),
    **dict.fromkeys((FLOAT, DOUBLE), ("doubleStats",)),
    **dict.fromkeys((TIMESTAMP, TIMESTAMP_NTZ), ("timestampStats", "longStats")),
    DATE: ("dateStats", "longStats"),
    BOOLEAN: ("booleanStats",),
    BINARY: ("binaryStats",),
}


def _forms_of(data_type: DataType) -> Collection[str]:
    """The forms that statistics of a column of that type may have, the usual one first."""
    if isinstance(data_type, DecimalType):
        return ("decimalStats",)
    if isinstance(data_type, StringType | CharType | VarcharType):
        return ("stringStats",)
    return _BY_TYPE.get(data_type, FORMS.keys())


def form_of(summary: Struct) -> str:
    (form,) = summary["statsData"]
    return str(form)


def read_summary(sent: Struct, column: ColumnDescriptor) -> Struct:
    """Return the statistics of ``column`` that a client sent, with names in lower case.

    Raises `InvalidInput` if no column of its type can have them.
    """
    forms, data = _forms_of(column.type), sent["statsData"]
    if len(data) != 1 or not data.keys() <= set(forms):
        raise InvalidInput(
            f"the statistics of column {column.name} are {', '.join(data) or 'empty'}; send"
            f" {' or '.join(forms)} for a column of its type, and nothing else"
        )
    (values,) = data.values()
    for name, value in values.items():
        is_count = isinstance(value, int | float) and name not in ("lowValue", "highValue")
        if is_count and (value < UNKNOWN or not isfinite(value)):
            raise InvalidInput(
                f"{name} of column {column.name} is {value}; send a count, or {UNKNOWN} if it is"
                " not known"
            )
    for bound in (values.get("lowValue"), values.get("highValue")):
        if isinstance(bound, dict) and not 0 <= bound.get("scale", 0) <= MAX_SCALE:
            raise InvalidInput(
                f"a bound of column {column.name} has the scale {bound['scale']}; send one from 0"
                f" to {MAX_SCALE}"
            )
    return {
        "colName": column.name.lower(),
        "colType": sent["colType"].lower(),
        "statsData": data,
    }


def encode_summary(summary: Struct) -> bytes:
    """Encode the statistics of a column for storage. Raises `InvalidInput` if they are too long."""
    encoded = HIVE_CODEC.encode_struct(_OBJECT, summary)
    if len(encoded) > MAX_COLUMN_BYTES:
        raise InvalidInput(
            f"the statistics of column {summary['colName']} take {len(encoded)} bytes; at most "
            f"{MAX_COLUMN_BYTES} are allowed: send them without bit vectors and histograms"
        )
    return encoded


def decode_summary(encoded: bytes) -> Struct:
    return HIVE_CODEC.decode_struct(_OBJECT, encoded)


def combined(left: Struct, right: Struct) -> Struct:
    """Combine the statistics of two parts of a column, which must have the same form."""
    form = form_of(left)
    values, others = left["statsData"][form], right["statsData"][form]
    of_both: Struct = {}
    for name, rule in FORMS[form].items():
        if name in values and name in others:
            of_both[name] = rule(values[name], others[name])
        elif name in values or name in others:
            of_both[name] = values.get(name, others.get(name))
    return {**left, "statsData": {form: capped(form, of_both)}}


def capped(form: str, values: Struct) -> Struct:
    """Limit the number of distinct values to the number of values between the bounds."""
    if form not in _WHOLE or not values.keys() >= {"lowValue", "highValue"}:
        return values
    width = _order(values["highValue"]) - _order(values["lowValue"]) + 1
    return {**values, "numDVs": min(values["numDVs"], max(width, 0))}


# -- the columns that have statistics


class AnalyzableColumns:
    """The columns of one version of a table that can have statistics: all but partition keys."""

    def __init__(self, table: TableDescriptor) -> None:
        self._by_name = {column.name.lower(): column for column in plain_columns_of(table)}

    def get(self, name: str) -> ColumnDescriptor | None:
        """Return the column of that name, in any case, or None."""
        return self._by_name.get(name.lower())

    def valid(self, row: Row | None) -> list[AnalyzedColumn]:
        """Return the statistics in a row whose columns have not changed since they were stored."""
        if row is None:
            return []
        work.spend(len(row.body) // _BYTES_PER_UNIT)
        columns = row.as_(StatisticsRow).columns
        work.spend(len(columns) // COLUMNS_PER_UNIT)
        return [known for known in columns if self._is_unchanged(known)]

    def _is_unchanged(self, known: AnalyzedColumn) -> bool:
        column = self._by_name.get(known.name)
        return (
            column is not None
            and column.id == known.column_id
            and simple_string(column.type) == known.type
        )


def changed_columns(before: TableDescriptor, after: TableDescriptor) -> frozenset[str]:
    """Return the names of the columns whose statistics do not hold any more."""

    def known(table: TableDescriptor) -> set[tuple[int, str, DataType]]:
        return {(c.id, c.name.lower(), c.type) for c in plain_columns_of(table)}

    return frozenset(name for _, name, _ in known(before) - known(after))
