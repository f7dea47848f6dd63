"""Partition values as values of their type.

A partition value is stored as the text that a client sent, whatever the type of its key: ``01`` for
an int is ``01``. To compare, both it and the literal are cast to the key's type, and what does not
cast is None, which here means NULL. Nothing is guessed: ``1.5`` is not an int.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal, InvalidOperation
from typing import Any

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
    found = _DATE.fullmatch(text.strip())
    if found is None:
        return None
    try:
        return date(*map(int, found.groups()))
    except ValueError:
        return None


def _timestamp(text: str) -> tuple[datetime, int] | None:
    """Whole seconds and nanoseconds. A time with a zone does not cast: ours is unknown."""
    found = _TIMESTAMP.fullmatch(text.strip())
    if found is None:
        return None
    try:
        year, month, day, hour, minute, second = (int(part or 0) for part in found.groups()[:6])
        moment = datetime(year, month, day, hour, minute, second)
    except ValueError:
        return None
    return moment, int((found[7] or "").ljust(9, "0"))


_CASTS: dict[DataType, Cast] = {
    BOOLEAN: _boolean,
    FLOAT: _float,
    DOUBLE: _float,
    DATE: _date,
    TIMESTAMP: _timestamp,
    TIMESTAMP_NTZ: _timestamp,
}
