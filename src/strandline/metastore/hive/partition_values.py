"""Values of partition keys: in the names of partitions, and as values of the keys' types.

The name of a partition, ``year=2013/carrier=A%2FB``, is also its path below the table, so a
character that means something in a path is written as ``%`` and two hexadecimal digits. Which
characters these are is Hive's rule, and Spark's; both read each other's folders, so the set is
exact, and ``}`` is not in it although ``{`` is. NUL, which Hive forgets, is escaped here too: no
file system could hold it. NULL and the empty text have the same name, `DEFAULT_PARTITION`, so a
name does not always give back the values it was made from; values are kept beside it, as sent.

A value is stored as the text that a client sent, whatever the type of its key: ``01`` for an int is
``01``. To be compared, the value and the literal are cast to the key's type; what does not cast is
None, which means NULL here. Nothing is guessed: ``1.5`` is not an int.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import date, datetime
from decimal import Decimal, InvalidOperation
from typing import Any

from strandline.errors import InvalidInput
from strandline.model.types import (
    BIGINT,
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
)

DEFAULT_PARTITION = "__HIVE_DEFAULT_PARTITION__"
"""Stands for NULL in names and among values."""

_ESCAPED = re.compile("[\x00-\x1f\x7f\"#%'*/:=?\\\\{\\[\\]^]")
_ESCAPE = re.compile("%([0-9A-Fa-f]{2})")


def escape(text: str) -> str:
    """``text`` as one component of a path: ``a/b`` → ``a%2Fb``."""
    return _ESCAPED.sub(lambda found: f"%{ord(found[0]):02X}", text)


def unescape(component: str) -> str:
    """What `escape` made ``component`` of. A ``%`` without two digits stands for itself."""
    return _ESCAPE.sub(lambda found: chr(int(found[1], 16)), component)


def is_default(value: str | None) -> bool:
    """Whether a partition value means NULL."""
    return not value or value == DEFAULT_PARTITION


def partition_name(keys: Sequence[str], values: Sequence[str | None]) -> str:
    """The name of the partition with these values. Keys are written in lower case, as Hive does.

    Raises `InvalidInput` without keys, or if there are not as many values as keys.
    """
    if not keys or len(keys) != len(values):
        raise InvalidInput(
            f"a partition needs one value for each partition key: found the values "
            f"{list(values)} for the keys {list(keys)}"
        )
    return "/".join(
        f"{escape(key.lower())}={escape(value) if value else DEFAULT_PARTITION}"
        for key, value in zip(keys, values, strict=True)
    )


def parse_partition_name(name: str) -> tuple[tuple[str, str], ...]:
    """The (key, value) pairs of a partition name, unescaped; `DEFAULT_PARTITION` stays as it is.

    Raises `InvalidInput` if some part is not ``key=value``.
    """
    pairs = []
    for part in name.split("/"):
        key, equals, value = part.partition("=")
        if not key or not equals or not value:
            raise InvalidInput(
                f"{name!r} is not the name of a partition: expected key=value, found {part!r}"
            )
        pairs.append((unescape(key), unescape(value)))
    return tuple(pairs)


def partition_values(name: str, keys: Sequence[str]) -> tuple[str, ...]:
    """The values in a partition name in the order of ``keys``; the name may have them in any order.

    Raises `InvalidInput` unless the name has each key once and no other.
    """
    pairs = parse_partition_name(name)
    by_key = {key.lower(): value for key, value in pairs}
    wanted = [key.lower() for key in keys]
    if len(pairs) != len(by_key) or sorted(by_key) != sorted(wanted):
        raise InvalidInput(
            f"{name!r} is not the name of a partition with the keys {', '.join(keys)}"
        )
    return tuple(by_key[key] for key in wanted)


Cast = Callable[[str], Any]
"""Text to a value that compares with others of the same cast; None if it does not cast."""

_INTEGER = re.compile(r"[+-]?[0-9]{1,38}")
_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,4})?")
_DATE = re.compile(r"([0-9]{4})-([0-9]{1,2})-([0-9]{1,2})")
_TIMESTAMP = re.compile(
    r"([0-9]{4})-([0-9]{1,2})-([0-9]{1,2})"
    r"(?:[ T]([0-9]{1,2}):([0-9]{1,2})(?::([0-9]{1,2})(?:\.([0-9]{1,9}))?)?)?"
)
_INTEGER_BITS: dict[DataType, int] = {TINYINT: 8, SMALLINT: 16, INT: 32, BIGINT: 64}
_TRUE = frozenset({"true", "t", "yes", "y", "1"})
_FALSE = frozenset({"false", "f", "no", "n", "0"})


def cast_to(data_type: DataType) -> Cast:
    """How texts become values of ``data_type``. Types without an order of their own stay text."""
    if data_type in _INTEGER_BITS:
        limit = 1 << (_INTEGER_BITS[data_type] - 1)
        return lambda text: _integer(text, limit)
    if isinstance(data_type, DecimalType):
        return number
    if isinstance(data_type, CharType):
        return lambda text: text.rstrip(" ")
    return _CASTS.get(data_type, _text)


def number(text: str) -> Decimal | None:
    """A number of any size, exactly."""
    text = text.strip()
    if len(text) > 400 or not _NUMBER.fullmatch(text):
        return None
    try:
        return Decimal(text)
    except InvalidOperation:
        return None


def _text(text: str) -> str:
    return text


def _integer(text: str, limit: int) -> int | None:
    text = text.strip()
    if not _INTEGER.fullmatch(text):
        return None
    value = int(text)
    return value if -limit <= value < limit else None


def _float(text: str) -> tuple[bool, float] | None:
    """Floats order with NaN as the largest, equal to itself, as in Spark."""
    try:
        value = float(text.replace("_", "?"))
    except ValueError:
        return None
    return (True, 0.0) if value != value else (False, value)


def _boolean(text: str) -> bool | None:
    text = text.strip().lower()
    return True if text in _TRUE else False if text in _FALSE else None


def _date(text: str) -> date | None:
    match = _DATE.fullmatch(text.strip())
    if match is None:
        return None
    try:
        return date(*map(int, match.groups()))
    except ValueError:
        return None


def _timestamp(text: str) -> tuple[datetime, int] | None:
    """Whole seconds and nanoseconds. A time with a zone does not cast: the key has no zone."""
    match = _TIMESTAMP.fullmatch(text.strip())
    if match is None:
        return None
    try:
        year, month, day, hour, minute, second = (int(part or 0) for part in match.groups()[:6])
        moment = datetime(year, month, day, hour, minute, second)
    except ValueError:
        return None
    return moment, int((match[7] or "").ljust(9, "0"))


_CASTS: dict[DataType, Cast] = {
    BOOLEAN: _boolean,
    FLOAT: _float,
    DOUBLE: _float,
    DATE: _date,
    TIMESTAMP: _timestamp,
    TIMESTAMP_NTZ: _timestamp,
}
