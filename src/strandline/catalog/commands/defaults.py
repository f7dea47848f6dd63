"""Defaults of columns: which SQL expressions are allowed, and whether one fits its column.

The catalog stores a default as it was written, and the writer of the rows evaluates it. So it must
mean the same to every writer: a literal of Spark's SQL, or one of a few functions. It is validated
once, against the type that the column has after the command, by a strict rule: the value of the
literal must be a value of that type without rounding, truncation or a time zone conversion.

| type of the column | its literals | its functions |
| --- | --- | --- |
| boolean | ``TRUE``, ``FALSE`` | |
| tinyint, smallint, int, bigint | whole numbers in range, also with ``Y``, ``S``, ``L`` | |
| float, double | numbers in range, also with ``F``, ``D``, ``BD`` | |
| decimal | numbers without more digits than it has before or after the point | |
| string | ``'text'``, ``"text"`` | ``current_user()``, ``uuid()`` |
| char(n), varchar(n) | the same, of up to n characters | |
| binary | ``X'1F'`` | |
| date | ``DATE '2026-11-20'`` | ``current_date()`` |
| timestamp | ``TIMESTAMP '2026-11-20 10:00:00'`` | ``current_timestamp()``, ``now()`` |
| timestamp_ntz | ``TIMESTAMP_NTZ '2026-11-20 10:00:00'`` | ``localtimestamp()`` |
| every type | ``NULL``, unless the column is NOT NULL | |

Rejected: any expression that Spark can fold. Only Spark could validate it, and a change of the
catalog must not wait for a Spark session. A default that Spark itself has validated is accepted
unchanged: Spark then writes the folded value into the metadata of the column (`EXISTS_DEFAULT`).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal

from strandline.errors import InvalidInput, UnsupportedOperation
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

NULL = "NULL"

EXISTS_DEFAULT = "EXISTS_DEFAULT"
"""The key in a column's metadata with the value that Spark folded its default to at creation."""

FUNCTIONS: dict[str, DataType] = {
    "current_date": DATE,
    "current_timestamp": TIMESTAMP,
    "now": TIMESTAMP,
    "localtimestamp": TIMESTAMP_NTZ,
    "current_user": StringType(),
    "uuid": StringType(),
}
"""The functions that may be defaults, and their result types."""

_BARE = frozenset({"current_date", "current_timestamp", "localtimestamp", "current_user"})
"""The functions that SQL allows without parentheses."""

_CALL = re.compile(r"([A-Za-z_]\w*)\s*(\(\s*\))?", re.A)
_NUMBER = re.compile(
    r"([+-]?)\s*((?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[Ee][+-]?[0-9]{1,3})?)(Y|S|L|F|D|BD)?",
    re.I | re.A,
)
_QUOTED = re.compile(r"""(?:'(?:[^'\\]|\\.|'')*+'|"(?:[^"\\]|\\.|"")*+")""", re.S)
_TYPED = re.compile(
    r"(X|DATE|TIMESTAMP|TIMESTAMP_LTZ|TIMESTAMP_NTZ)\s*(['\"].*)", re.I | re.S | re.A
)

_SUFFIX_RANGES = {"Y": TINYINT, "S": SMALLINT, "L": BIGINT}
_BITS = {TINYINT: 8, SMALLINT: 16, INT: 32, BIGINT: 64}
_MAX_DIGITS = 100
_MAX_FLOAT = 3.4028234663852886e38


def is_null(default: str | None) -> bool:
    """Whether a row that omits the column gets NULL. No default means the default NULL."""
    return default is None or default.strip().upper() == NULL


def is_constant(default: str | None) -> bool:
    """Whether the default, which must be valid, is the same for every row."""
    return default is not None and _function(default.strip()) is None


def same_default(first: str | None, second: str | None) -> bool:
    """Whether two defaults mean the same."""
    return first == second or (is_null(first) and is_null(second))


def checked_default(
    default: str | None, data_type: DataType, *, column: str, nullable: bool, metadata: str = ""
) -> str | None:
    """Return ``default`` in stored form: trimmed, with one spelling of functions and quotes.

    Raises `InvalidInput` if its value is not of ``data_type``, or is NULL for a NOT NULL column,
    and `UnsupportedOperation` if it is neither a literal nor a function of `FUNCTIONS`.
    """
    if default is None:
        return None
    text = default.strip()
    if is_null(text):
        if not nullable:
            raise InvalidInput(
                f"column {column!r} is NOT NULL, so its default cannot be NULL; leave the default "
                "out, or give a value"
            )
        return NULL
    if metadata and EXISTS_DEFAULT in json.loads(metadata):
        return text
    function = _function(text)
    if function is not None:
        if not _can_give(FUNCTIONS[function], data_type):
            raise _misfit(text, data_type, column)
        return f"{function}()"
    reads = _READERS.get(data_type) or _READERS_WITH_LENGTH.get(type(data_type))
    if reads is not None and reads(text, data_type):
        return _with_escaped_quotes(text)
    if _is_literal(text):
        raise _misfit(text, data_type, column)
    raise UnsupportedOperation(
        f"column {column!r} cannot have the default {text[:80]}: a default must be a literal or "
        "one of " + ", ".join(f"{name}()" for name in sorted(FUNCTIONS))
    )


def _misfit(text: str, data_type: DataType, column: str) -> InvalidInput:
    return InvalidInput(
        f"the default {text[:80]} of column {column!r} does not match its type "
        f"{simple_string(data_type)[:80]}; write a literal of that type"
    )


def _function(text: str) -> str | None:
    call = _CALL.fullmatch(text)
    if call is None:
        return None
    name = call[1].lower()
    return name if name in FUNCTIONS and (call[2] or name in _BARE) else None


def _can_give(result: DataType, data_type: DataType) -> bool:
    if isinstance(result, StringType):
        return isinstance(data_type, StringType)
    return result == data_type


# -- literals --------------------------------------------------------------------------------------


def _is_literal(text: str) -> bool:
    return bool(
        text.upper() in ("TRUE", "FALSE")
        or _NUMBER.fullmatch(text)
        or _text(text) is not None
        or ((typed := _TYPED.fullmatch(text)) and _text(typed[2]) is not None)
    )


def _text(text: str) -> str | None:
    """The value of a text literal, or None."""
    is_text = _QUOTED.fullmatch(text)
    return "".join(part[-1] for part in _written_characters(text)) if is_text else None


def _written_characters(text: str) -> list[str]:
    r"""The characters of a text literal as it spells them, such as ``a``, ``\'`` and ``''``."""
    return re.findall(rf"\\.|{text[0]}{text[0]}|.", text[1:-1], flags=re.S)


def _with_escaped_quotes(text: str) -> str:
    """Return a text literal so that each release of Spark reads the same.

    Spark 3 reads ``'it''s'`` as two literals side by side: ``its``.
    """
    if _QUOTED.fullmatch(text) is None:
        return text
    quote, parts = text[0], _written_characters(text)
    return quote + "".join(f"\\{quote}" if part == quote * 2 else part for part in parts) + quote


def _typed_text(text: str, *keywords: str) -> str | None:
    """The value between the quotes of ``KEYWORD '…'``, or None."""
    match = _TYPED.fullmatch(text)
    return _text(match[2]) if match and match[1].upper() in keywords else None


def _number(text: str) -> Decimal | None:
    match = _NUMBER.fullmatch(text)
    return None if match is None else Decimal(match[1] + match[2])


def _reads_whole(text: str, data_type: DataType) -> bool:
    match = _NUMBER.fullmatch(text)
    if match is None or not match[2].isdecimal() or len(match[2]) > _MAX_DIGITS:
        return False
    suffix = (match[3] or "").upper()
    if suffix and suffix not in _SUFFIX_RANGES:
        return False
    bits = min(_BITS[kind] for kind in (data_type, _SUFFIX_RANGES.get(suffix, data_type)))  # type: ignore[index]  # called for whole numbers only
    value = int(match[1] + match[2])
    return -(1 << bits - 1) <= value < 1 << bits - 1


def _reads_float(text: str, data_type: DataType) -> bool:
    value = _number(text)
    limit = _MAX_FLOAT if data_type == FLOAT else math.inf
    return value is not None and abs(float(value)) <= limit and math.isfinite(float(value))


def _reads_decimal(text: str, data_type: DataType) -> bool:
    value = _number(text)
    if value is None or not isinstance(data_type, DecimalType):
        return False
    # Not normalize(): it rounds to the 28 digits of the context.
    _, digits, exponent = value.as_tuple()
    shown = "".join(map(str, digits)).rstrip("0")
    behind = -(int(exponent) + len(digits) - len(shown)) if shown else 0
    before = len(shown.lstrip("0")) - behind if shown else 0
    return behind <= data_type.scale and before <= data_type.precision - data_type.scale


def _reads_text(text: str, data_type: DataType) -> bool:
    value = _text(text)
    limit = data_type.length if isinstance(data_type, CharType | VarcharType) else math.inf
    return value is not None and len(value) <= limit


def _reads_binary(text: str, _: DataType) -> bool:
    digits = _typed_text(text, "X")
    return digits is not None and bool(re.fullmatch(r"(?:[0-9A-Fa-f]{2})*", digits))


def _reads_date(text: str, _: DataType) -> bool:
    value = _typed_text(text, "DATE")
    return value is not None and _parses(date.fromisoformat, value, r"\d{4}-\d\d-\d\d")


_CLOCK = r"\d{4}-\d\d-\d\d(?:[ T]\d\d:\d\d(?::\d\d(?:\.\d{1,6})?)?"


def _reads_timestamp(text: str, _: DataType) -> bool:
    value = _typed_text(text, "TIMESTAMP", "TIMESTAMP_LTZ")
    return value is not None and _parses(
        datetime.fromisoformat, value, _CLOCK + r"(?:Z|[+-]\d\d:\d\d)?)?"
    )


def _reads_timestamp_ntz(text: str, _: DataType) -> bool:
    value = _typed_text(text, "TIMESTAMP_NTZ")
    return value is not None and _parses(datetime.fromisoformat, value, _CLOCK + ")?")


def _parses(parse: Callable[[str], object], value: str, form: str) -> bool:
    if not re.fullmatch(form, value, re.ASCII):
        return False
    try:
        parse(value)
    except ValueError:
        return False
    return True


_Reads = Callable[[str, DataType], bool]
_READERS: dict[DataType, _Reads] = {
    BOOLEAN: lambda text, _: text.upper() in ("TRUE", "FALSE"),
    TINYINT: _reads_whole,
    SMALLINT: _reads_whole,
    INT: _reads_whole,
    BIGINT: _reads_whole,
    FLOAT: _reads_float,
    DOUBLE: _reads_float,
    BINARY: _reads_binary,
    DATE: _reads_date,
    TIMESTAMP: _reads_timestamp,
    TIMESTAMP_NTZ: _reads_timestamp_ntz,
}
_READERS_WITH_LENGTH: dict[type, _Reads] = {
    DecimalType: _reads_decimal,
    StringType: _reads_text,
    CharType: _reads_text,
    VarcharType: _reads_text,
}
