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
              metadata, field id + 1 (0 if no id is assigned)
    74, 75    geometry, geography: optional number of the reference system (since version 2)

Tags never change their meaning; a new type takes the next free tag in a new format version.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from strandline.errors import InvalidType
from strandline.model import types as t
from strandline.model.types import DataType
from strandline.wire.codecs import (
    BOOL,
    OPTIONAL_TEXT,
    TEXT,
    UINT,
    Codec,
    Reader,
    optional,
    write_uint,
)
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
_STRUCT = 73
_TYPE_ID = 18

_Fields = tuple[tuple[str, Codec[Any]], ...]  # each parameter has a codec of its own type
_Parameters = dict[type, tuple[int, _Fields]]  # tag and parameters, by class of the type

_SCALARS_1: _Parameters = {
    t.DecimalType: (64, (("precision", UINT), ("scale", UINT))),
    t.StringType: (65, (("collation", OPTIONAL_TEXT),)),
    t.CharType: (66, (("length", UINT),)),
    t.VarcharType: (67, (("length", UINT),)),
    t.TimeType: (68, (("precision", UINT),)),
    t.YearMonthIntervalType: (69, (("start", TEXT), ("end", TEXT))),
    t.DayTimeIntervalType: (70, (("start", TEXT), ("end", TEXT))),
}
_SCALARS_2: _Parameters = {
    **_SCALARS_1,
    t.GeometryType: (74, (("srid", optional(UINT)),)),
    t.GeographyType: (75, (("srid", optional(UINT)),)),
}


class _Trees:
    """The codec of type trees in one version of the format, which defines the scalar types."""

    def __init__(self, scalars: _Parameters) -> None:
        self.codec: Codec[DataType] = Codec(self.write, self.read)
        tree = self.codec
        self._parameters: _Parameters = {
            **scalars,
            t.ArrayType: (71, (("element", tree), ("contains_null", BOOL))),
            t.MapType: (72, (("key", tree), ("value", tree), ("value_contains_null", BOOL))),
            t.StructType: (_STRUCT, ()),
        }
        self._makers = {
            tag: _maker(data_type, fields) for data_type, (tag, fields) in self._parameters.items()
        }
        self._makers[_STRUCT] = self._read_struct

    def write(self, out: bytearray, value: DataType) -> None:
        if isinstance(value, t.AtomicType):
            out.append(_ATOMIC_TAGS[value])
            return
        tag, fields = self._parameters[type(value)]
        out.append(tag)
        if isinstance(value, t.StructType):
            self._write_fields(out, value.fields)
            return
        for name, codec in fields:
            codec.write(out, getattr(value, name))

    def read(self, reader: Reader) -> DataType:
        tag = reader.uint()
        if tag in _ATOMIC:
            return _ATOMIC[tag]
        try:
            make = self._makers[tag]
        except KeyError:
            raise reader.corrupt(f"data type {tag} is unknown") from None
        try:
            return make(reader)
        except (InvalidType, RecursionError) as error:
            raise reader.corrupt(f"an invalid data type ({error})") from None

    def _write_fields(self, out: bytearray, fields: tuple[t.StructField, ...]) -> None:
        write_uint(out, len(fields))
        for field in fields:
            TEXT.write(out, field.name)
            self.write(out, field.type)
            BOOL.write(out, field.nullable)
            OPTIONAL_TEXT.write(out, field.comment)
            TEXT.write(out, field.metadata)
            if field.field_id is None:
                out.append(0)
            else:  # −1 would be written like None
                write_uint(out, field.field_id + 1 if field.field_id >= 0 else field.field_id)

    def _read_field(self, reader: Reader) -> t.StructField:
        name, data_type, nullable = TEXT.read(reader), self.read(reader), BOOL.read(reader)
        comment, metadata, number = OPTIONAL_TEXT.read(reader), TEXT.read(reader), reader.uint()
        return t.StructField(
            name, data_type, nullable, comment, metadata, number - 1 if number else None
        )

    def _read_struct(self, reader: Reader) -> DataType:
        count = reader.uint()
        if count > reader.end - reader.position:
            raise reader.corrupt(f"{count} fields announced")
        return t.StructType(tuple([self._read_field(reader) for _ in range(count)]))


def _maker(cls: Callable[..., DataType], fields: _Fields) -> Callable[[Reader], DataType]:
    return lambda reader: cls(*[codec.read(reader) for _, codec in fields])


@dataclass(frozen=True, slots=True)
class TypeTree:
    """The registered object for a data type on disk: the tree with one header."""

    root: DataType


_TREES = {1: ("0.1.0", _Trees(_SCALARS_1).codec), 2: ("0.2.0", _Trees(_SCALARS_2).codec)}

for _version, (_since, _tree) in _TREES.items():
    register(TypeTree, type_id=_TYPE_ID, version=_version, since=_since, fields=[("root", _tree)])

_NESTED = nested(TypeTree)


def _nested_bytes(value: DataType, version: int) -> bytes:
    out = bytearray((*_TYPE_ID.to_bytes(2, "little"), version))
    _TREES[version][1].write(out, value)
    return bytes(out)


# Nearly all columns have a type without parameters, a plain string or a decimal. For these, tables
# map each type to its bytes and back.
_NEWEST = max(_TREES)
_STRING_KEY = "string"
_DECIMALS = [
    t.DecimalType(precision, scale)
    for precision in range(1, t.MAX_DECIMAL_PRECISION + 1)
    for scale in range(precision + 1)
]
_COMMON: dict[str | tuple[int, int], DataType] = dict(
    [
        *t.ATOMIC_TYPES.items(),
        (_STRING_KEY, t.STRING),
        *(((decimal.precision, decimal.scale), decimal) for decimal in _DECIMALS),
    ]
)
_COMMON_BYTES = {key: _nested_bytes(value, _NEWEST) for key, value in _COMMON.items()}
_COMMON_TYPES = {
    _nested_bytes(value, version): value for value in _COMMON.values() for version in _TREES
}
_TAG_AT = len(_COMMON_BYTES[t.INT.name]) - 1
_LENGTHS = {data[_TAG_AT]: len(data) for data in _COMMON_TYPES}
"""The number of bytes of a common type, by its tag."""


def _write_tree(out: bytearray, value: DataType) -> None:
    if type(value) is t.AtomicType:
        out += _COMMON_BYTES[value.name]
    elif value is t.STRING:
        out += _COMMON_BYTES[_STRING_KEY]
    elif type(value) is t.DecimalType:
        out += _COMMON_BYTES[value.precision, value.scale]
    else:
        _NESTED.write(out, TypeTree(value))


def common_type(data: bytes, start: int) -> tuple[DataType | None, int]:
    """Return the type at ``start``, or None if it is not a common type, and where it ends.

    Raises IndexError if the bytes end before the tag.
    """
    end = start + _LENGTHS.get(data[start + _TAG_AT], 0)
    return _COMMON_TYPES.get(data[start:end]), end


def _read_tree(reader: Reader) -> DataType:
    if reader.position + _TAG_AT < reader.end:
        data_type, end = common_type(reader.data, reader.position)
        if data_type is not None:
            reader.position = end
            return data_type
    return _NESTED.read(reader).root


DATA_TYPE = Codec(_write_tree, _read_tree)
"""A data type as a nested object."""
