"""The formats of the parts of tables and views: columns, schema versions, storage formats.

Columns are most of a catalog's bytes. So they have a separate codec, which reads and writes common
columns without a step for each field.
"""

from __future__ import annotations

from functools import lru_cache, partial

from strandline.model.descriptors import ColumnDescriptor, SchemaVersion, StorageFormat
from strandline.wire.codecs import (
    BOOL,
    OPTIONAL_TEXT,
    PROPERTIES,
    SINT,
    TEXT,
    UINT,
    Codec,
    Reader,
    optional,
    pair,
    sequence,
    triple,
    write_text,
    write_uint,
)
from strandline.wire.registry import nested, nested_list, register, register_codec
from strandline.wire.types import DATA_TYPE, common_type

_new_in_0_1_0 = partial(register, version=1, since="0.1.0")


def _write_column(out: bytearray, value: ColumnDescriptor) -> None:
    write_uint(out, value.id)
    write_text(out, value.name)
    _write_type(out, value.type)
    if value.comment is None and value.default is None and not value.metadata:
        out += _END_OF[value.nullable]
        return
    BOOL.write(out, value.nullable)
    OPTIONAL_TEXT.write(out, value.comment)
    OPTIONAL_TEXT.write(out, value.default)
    write_text(out, value.metadata)


def _read_column(reader: Reader) -> ColumnDescriptor:
    column = _read_common_column(reader)
    if column is not None:
        return column
    return ColumnDescriptor(
        reader.uint(),
        TEXT.read(reader),
        DATA_TYPE.read(reader),
        BOOL.read(reader),
        OPTIONAL_TEXT.read(reader),
        OPTIONAL_TEXT.read(reader),
        TEXT.read(reader),
    )


def _read_common_column(reader: Reader) -> ColumnDescriptor | None:
    """Read a column of a common type with short texts, no default and no metadata.

    Nearly all columns are like this. For any other column, and for bytes that are no column, return
    None and leave the reader where it is.
    """
    data, start = reader.data, reader.position
    try:
        column_id, length = data[start], data[start + 1]
        position = start + 2 + length
        if column_id > _LONGEST_BYTE or length > _LONGEST_BYTE:
            return None
        name = data[start + 2 : position].decode()
        data_type, position = common_type(data, position)
        if data_type is None:
            return None
        nullable = _ENDS.get(data[position : position + _END_BYTES])
        if nullable is not None:
            reader.position = position + _END_BYTES
            return ColumnDescriptor(column_id, name, data_type, nullable)
        is_nullable, has_comment, length = data[position : position + 3]
        end = position + 3 + length
        rest = data[end : end + len(_NO_DEFAULT)]
        if length > _LONGEST_BYTE or has_comment != 1 or is_nullable > 1 or rest != _NO_DEFAULT:
            return None
        comment = data[position + 3 : end].decode()
    except (IndexError, ValueError):
        return None
    reader.position = end + len(_NO_DEFAULT)
    return ColumnDescriptor(column_id, name, data_type, is_nullable == 1, comment)


_write_type = DATA_TYPE.write
_END_BYTES = 4
_ENDS = {bytes([nullable, 0, 0, 0]): bool(nullable) for nullable in (0, 1)}
"""The last bytes of most columns: nullable or not, and no comment, default or metadata."""
_END_OF = {nullable: end for end, nullable in _ENDS.items()}
_NO_DEFAULT = bytes([0, 0])
"""No default, and no metadata."""
_LONGEST_BYTE = 0x7F
"""The largest number that is encoded in one byte."""

# Columns are most of what is read and written, so these two functions avoid the loop over fields.
register_codec(
    ColumnDescriptor,
    type_id=15,
    version=1,
    since="0.1.0",
    codec=Codec(_write_column, _read_column),
)
_new_in_0_1_0(
    SchemaVersion, type_id=16, fields=[("number", UINT), ("columns", nested_list(ColumnDescriptor))]
)
_VERSIONS = nested_list(SchemaVersion)
_MAX_SHARED_COLUMNS = 100


@lru_cache(maxsize=256)
def _version_bytes(value: tuple[SchemaVersion, ...]) -> bytes:
    """Return the encoded versions. Cached, because many tables are created with equal columns."""
    out = bytearray()
    _VERSIONS.write(out, value)
    return bytes(out)


def _write_versions(out: bytearray, value: tuple[SchemaVersion, ...]) -> None:
    if len(value) > 1 or any(len(version.columns) > _MAX_SHARED_COLUMNS for version in value):
        _VERSIONS.write(out, value)
    else:
        out += _version_bytes(value)


SCHEMA_VERSIONS = Codec(_write_versions, _VERSIONS.read)
"""The schema versions of a table."""

_new_in_0_1_0(
    StorageFormat,
    type_id=17,
    fields=[
        ("input_format", OPTIONAL_TEXT),
        ("output_format", OPTIONAL_TEXT),
        ("serde", OPTIONAL_TEXT),
        ("serde_name", OPTIONAL_TEXT),
        ("serde_properties", PROPERTIES),
        ("compressed", BOOL),
        ("buckets", SINT),
        ("bucket_columns", sequence(TEXT)),
        ("sort_columns", sequence(pair(TEXT, UINT))),
        ("properties", PROPERTIES),
        ("hive_columns", optional(sequence(triple(TEXT, TEXT, OPTIONAL_TEXT)))),
    ],
)

_NESTED_STORAGE = nested(StorageFormat)


@lru_cache(maxsize=32)
def _storage_bytes(value: StorageFormat) -> bytes:
    """Return the encoded format. Cached: most tables share a few formats, each of many parts."""
    out = bytearray()
    _NESTED_STORAGE.write(out, value)
    return bytes(out)


def _write_storage(out: bytearray, value: StorageFormat) -> None:
    if value.hive_columns or value.properties or value.serde_properties:  # long, and not shared
        _NESTED_STORAGE.write(out, value)
    else:
        out += _storage_bytes(value)


STORAGE = Codec(_write_storage, _NESTED_STORAGE.read)
"""A `StorageFormat` as a nested object."""
