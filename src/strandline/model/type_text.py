"""Writes types as SQL text: Spark's DDL, Spark's catalog string, Hive's type names.

| spelling | written by | read by | loses |
| --- | --- | --- | --- |
| ``STRUCT<a: INT NOT NULL COMMENT 'x'>`` | `ddl_text` | `parse_type` | metadata, ids |
| ``struct<a:int>`` | `simple_string` | `parse_type` | also NOT NULL, comments, unusual names |
| ``struct<a:int>`` in lower case | `hive_string` | `parse_hive_type` | also the case of names |

The parsers are in `strandline.model.type_parser`. The texts equal Spark's character by character,
because clients compare them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from strandline.errors import InvalidType
from strandline.model.types import (
    ArrayType,
    AtomicType,
    CharType,
    DataType,
    DayTimeIntervalType,
    DecimalType,
    GeographyType,
    GeometryType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimeType,
    VarcharType,
    YearMonthIntervalType,
)

HIVE_NAME = re.compile(r"[\w.$][\w.$ ]*", re.UNICODE)
_UNSPELLABLE_IN_HIVE = frozenset({"timestamp_ntz", "interval", "variant"})
_MAX_HIVE_CHAR = 255
_MAX_HIVE_VARCHAR = 65535

_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def ddl_text(data_type: DataType) -> str:
    """Return Spark's DDL for the type, as Spark prints it. `parse_type` reads it again."""
    match data_type:
        case ArrayType():
            return f"ARRAY<{ddl_text(data_type.element)}>"
        case MapType():
            return f"MAP<{ddl_text(data_type.key)}, {ddl_text(data_type.value)}>"
        case StructType():
            return f"STRUCT<{fields_ddl(data_type.fields)}>"
        case StringType(collation) if collation is not None:
            return f"STRING COLLATE {collation}"
    return simple_string(data_type).upper()


def fields_ddl(fields: Iterable[StructField]) -> str:
    """Return ``a: INT NOT NULL COMMENT 'x', b: STRING``. `parse_fields` reads it again."""
    return ", ".join(map(_field_ddl, fields))


def simple_string(data_type: DataType) -> str:
    """Return Spark's catalog string: ``struct<a:int,b:array<string>>``. Names are not quoted.

    Raises `InvalidType` for a value that is no type, such as the text of one.
    """
    if type(data_type) is AtomicType:  # a match statement is several times slower
        return data_type.name
    match data_type:
        case StringType(collation):
            return "string" if collation is None else f"string collate {collation}"
        case DecimalType(precision, scale):
            return f"decimal({precision},{scale})"
        case CharType(length):
            return f"char({length})"
        case VarcharType(length):
            return f"varchar({length})"
        case TimeType(precision):
            return f"time({precision})"
        case YearMonthIntervalType(start, end) | DayTimeIntervalType(start, end):
            return f"interval {start}" if start == end else f"interval {start} to {end}"
        case GeometryType(srid):
            return f"geometry({'any' if srid is None else srid})"
        case GeographyType(srid):
            return f"geography({'any' if srid is None else srid})"
        case ArrayType():
            return f"array<{simple_string(data_type.element)}>"
        case MapType():
            return f"map<{simple_string(data_type.key)},{simple_string(data_type.value)}>"
        case StructType(fields):
            inner = ",".join(f"{entry.name}:{simple_string(entry.type)}" for entry in fields)
            return f"struct<{inner}>"
    raise InvalidType(f"{data_type!r:.80} is not a data type; make one from a text with parse_type")


def hive_string(data_type: DataType) -> str | None:
    """Return Hive's name of the type, in lower case, or None if Hive has no such type.

    Hive has no timestamp_ntz, time, interval, variant, geometry, geography or collated string as a
    column type, no struct without fields, no char over 255 and no varchar over 65535 characters.
    Its field names may only contain letters, digits, blanks and ``_ . $``.
    """
    match data_type:
        case AtomicType(name):
            return None if name in _UNSPELLABLE_IN_HIVE else name
        case StringType(collation):
            return None if collation is not None else "string"
        case CharType(length):
            return f"char({length})" if 1 <= length <= _MAX_HIVE_CHAR else None
        case VarcharType(length):
            return f"varchar({length})" if 1 <= length <= _MAX_HIVE_VARCHAR else None
        case TimeType() | YearMonthIntervalType() | DayTimeIntervalType():
            return None
        case GeometryType() | GeographyType():
            return None
        case ArrayType():
            element = hive_string(data_type.element)
            return None if element is None else f"array<{element}>"
        case MapType():
            key, value = hive_string(data_type.key), hive_string(data_type.value)
            return None if key is None or value is None else f"map<{key},{value}>"
        case StructType(fields):
            return _hive_struct(fields)
    return simple_string(data_type)


def quote_name(name: str) -> str:
    """Return ``name`` for Spark's SQL: in backticks unless it is a plain word."""
    return name if _PLAIN_NAME.fullmatch(name) else quoted(name)


def quoted(name: str) -> str:
    """Return ``name`` in backticks, as one part of a name in Spark's SQL."""
    return "`" + name.replace("`", "``") + "`"


def text_literal(value: str) -> str:
    """Return ``value`` as a string literal of Spark's SQL."""
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _field_ddl(entry: StructField) -> str:
    text = f"{quote_name(entry.name)}: {ddl_text(entry.type)}"
    if not entry.nullable:
        text += " NOT NULL"
    if entry.comment is not None:
        text += f" COMMENT {text_literal(entry.comment)}"
    return text


def _hive_struct(fields: tuple[StructField, ...]) -> str | None:
    parts = []
    for entry in fields:
        name, inner = entry.name.lower(), hive_string(entry.type)
        if inner is None or not HIVE_NAME.fullmatch(name) or name != name.strip():
            return None
        parts.append(f"{name}:{inner}")
    return f"struct<{','.join(parts)}>" if parts else None
