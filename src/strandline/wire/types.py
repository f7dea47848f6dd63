"""The format of data types: one nested object for a whole type tree.

::

    tree   = tag (UINT) parameters
    1..63     an atomic type, no parameters
    64        decimal: precision, scale
    65        string: optional collation
    66, 67    char, varchar: length
    68        time: precision
    69, 70    year-month, day-time interval: start, end (TEXT)
    71        array: element tree, contains null
    72        map: key tree, value tree, value contains null
    73        struct: number of fields, then for each: name, tree, nullable, optional comment,
              metadata, field id + 1 (0 where none is assigned)

Tags never change their meaning; a new type takes the next free tag in a new format version.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from strandline.errors import InvalidType
from strandline.model import types as t
from strandline.model.types import DataType
from strandline.wire.codecs import BOOL, TEXT, UINT, Codec, Reader, optional, write_uint
from strandline.wire.registry import nested, register

_ATOMIC_TAGS: dict[t.AtomicType, int] = {
    t.BOOLEAN: 1,
    t.TINYINT: 2,
    t.SMALLINT: 3,
    t.INT: 4,
    t.BIGINT: 5,
    t.FLOAT: 6,
    t.DOUBLE: 7,
    t.BINARY: 8,
    t.DATE: 9,
    t.TIMESTAMP: 10,
    t.TIMESTAMP_NTZ: 11,
    t.CALENDAR_INTERVAL: 12,
    t.VARIANT: 13,
    t.VOID: 14,
}
_ATOMIC = {tag: data_type for data_type, tag in _ATOMIC_TAGS.items()}
_OPTIONAL_TEXT = optional(TEXT)
_STRUCT = 73


def _write(out: bytearray, value: DataType) -> None:
    if isinstance(value, t.AtomicType):
        out.append(_ATOMIC_TAGS[value])
        return
    tag, fields = _PARAMETERS[type(value)]
    out.append(tag)
    if isinstance(value, t.StructType):
        _write_fields(out, value.fields)
        return
    for name, codec in fields:
        codec.write(out, getattr(value, name))


def _read(reader: Reader) -> DataType:
    tag = reader.uint()
    if tag in _ATOMIC:
        return _ATOMIC[tag]
    try:
        make = _MAKERS[tag]
    except KeyError:
        raise reader.corrupt(f"data type {tag} is unknown") from None
    try:
        return make(reader)
    except (InvalidType, RecursionError) as error:
        raise reader.corrupt(f"a data type that cannot be ({error})") from None


def _write_fields(out: bytearray, fields: tuple[t.StructField, ...]) -> None:
    write_uint(out, len(fields))
    for one in fields:
        TEXT.write(out, one.name)
        _write(out, one.type)
        BOOL.write(out, one.nullable)
        _OPTIONAL_TEXT.write(out, one.comment)
        TEXT.write(out, one.metadata)
        write_uint(out, 0 if one.field_id is None else one.field_id + 1)


def _read_field(reader: Reader) -> t.StructField:
    name, data_type, nullable = TEXT.read(reader), _read(reader), BOOL.read(reader)
    comment, metadata, number = _OPTIONAL_TEXT.read(reader), TEXT.read(reader), reader.uint()
    return t.StructField(
        name, data_type, nullable, comment, metadata, number - 1 if number else None
    )


def _read_struct(reader: Reader) -> DataType:
    count = reader.uint()
    if count > reader.end - reader.position:
        raise reader.corrupt(f"{count} fields announced")
    return t.StructType(tuple([_read_field(reader) for _ in range(count)]))


_TREE: Codec[DataType] = Codec(_write, _read)

_Fields = tuple[tuple[str, Codec[Any]], ...]  # each parameter has a codec of its own type

_PARAMETERS: dict[type, tuple[int, _Fields]] = {
    t.DecimalType: (64, (("precision", UINT), ("scale", UINT))),
    t.StringType: (65, (("collation", _OPTIONAL_TEXT),)),
    t.CharType: (66, (("length", UINT),)),
    t.VarcharType: (67, (("length", UINT),)),
    t.TimeType: (68, (("precision", UINT),)),
    t.YearMonthIntervalType: (69, (("start", TEXT), ("end", TEXT))),
    t.DayTimeIntervalType: (70, (("start", TEXT), ("end", TEXT))),
    t.ArrayType: (71, (("element", _TREE), ("contains_null", BOOL))),
    t.MapType: (72, (("key", _TREE), ("value", _TREE), ("value_contains_null", BOOL))),
    t.StructType: (_STRUCT, ()),
}


def _maker(of: Callable[..., DataType], fields: _Fields) -> Callable[[Reader], DataType]:
    return lambda reader: of(*[codec.read(reader) for _, codec in fields])


_MAKERS = {tag: _maker(of, fields) for of, (tag, fields) in _PARAMETERS.items()}
_MAKERS[_STRUCT] = _read_struct


class TypeTree:
    """The registered object that a data type is on disk: the tree under one header."""

    __slots__ = ("root",)

    def __init__(self, root: DataType) -> None:
        self.root = root


register(TypeTree, type_id=18, version=1, since="0.1.0", fields=[("root", _TREE)])


def _write_tree(out: bytearray, value: DataType) -> None:
    _NESTED.write(out, TypeTree(value))


_NESTED = nested(TypeTree)
DATA_TYPE = Codec(_write_tree, lambda reader: _NESTED.read(reader).root)
"""A data type as a nested object."""
