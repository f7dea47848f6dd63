"""Char and varchar stand as string where a reader knows plain strings only; these swap them."""

from __future__ import annotations

from dataclasses import replace

from strandline.model.types import (
    ArrayType,
    CharType,
    DataType,
    MapType,
    StringType,
    StructType,
    VarcharType,
    walk,
)


def holds_char(data_type: DataType) -> bool:
    """Whether char or varchar occurs in the type."""
    return any(isinstance(inner, CharType | VarcharType) for inner in walk(data_type))


def without_char(data_type: DataType) -> DataType:
    """The type with string for every char and varchar in it."""
    match data_type:
        case CharType() | VarcharType():
            return StringType()
        case ArrayType():
            return replace(data_type, element=without_char(data_type.element))
        case MapType(key, value):
            return replace(data_type, key=without_char(key), value=without_char(value))
        case StructType(fields):
            return StructType(tuple(replace(f, type=without_char(f.type)) for f in fields))
    return data_type


def with_char(data_type: DataType, named: DataType) -> DataType:
    """``data_type`` with its strings replaced by the char or varchar that stands in ``named``."""
    match data_type, named:
        case StringType(None), CharType() | VarcharType():
            return named
        case ArrayType(), ArrayType():
            return replace(data_type, element=with_char(data_type.element, named.element))
        case MapType(), MapType():
            return replace(
                data_type,
                key=with_char(data_type.key, named.key),
                value=with_char(data_type.value, named.value),
            )
        case StructType(fields), StructType(others) if len(fields) == len(others):
            return StructType(
                tuple(
                    replace(entry, type=with_char(entry.type, other.type))
                    for entry, other in zip(fields, others, strict=True)
                )
            )
    return data_type
