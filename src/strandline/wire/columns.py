"""The formats of the parts of tables and views: columns, schema versions, storage formats.

Columns are most of a catalog's bytes. So they have a separate codec, which reads and writes common
columns without a step for each field.
"""

from __future__ import annotations

from functools import lru_cache, partial
from itertools import chain

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
SCHEMA_VERSIONS = nested_list(SchemaVersion)
"""The schema versions of a table up to 0.6.0, each with all its columns."""
_COLUMNS = nested_list(ColumnDescriptor)
_RUNS = sequence(pair(UINT, sequence(pair(UINT, UINT))))
_MAX_SHARED_COLUMNS = 100


def _write_all(out: bytearray, value: tuple[SchemaVersion, ...]) -> None:
    columns: dict[ColumnDescriptor, int] = {}
    indexes: dict[int, int] = {}  # by identity: most columns are in many versions, and hashes slow
    versions = []
    for version in value:
        runs: list[tuple[int, int]] = []
        for column in version.columns:
            index = indexes.get(id(column))
            if index is None:
                index = indexes[id(column)] = columns.setdefault(column, len(columns))
            if runs and index == sum(runs[-1]):
                runs[-1] = (runs[-1][0], runs[-1][1] + 1)
            else:
                runs.append((index, 1))
        versions.append((version.number, tuple(runs)))
    _COLUMNS.write(out, tuple(columns))
    _RUNS.write(out, tuple(versions))


@lru_cache(maxsize=256)
def _version_bytes(value: tuple[SchemaVersion, ...]) -> bytes:
    """Return the encoded versions. Cached, because many tables are created with equal columns."""
    out = bytearray()
    _write_all(out, value)
    return bytes(out)


def _write_versions(out: bytearray, value: tuple[SchemaVersion, ...]) -> None:
    if len(value) > 1 or any(len(version.columns) > _MAX_SHARED_COLUMNS for version in value):
        _write_all(out, value)
    else:
        out += _version_bytes(value)


def _read_versions(reader: Reader) -> tuple[SchemaVersion, ...]:
    columns = _COLUMNS.read(reader)
    versions = []
    for number, runs in _RUNS.read(reader):
        if any(first + count > len(columns) for first, count in runs):
            raise reader.corrupt(f"schema version {number} with columns that are not listed")
        parts = [columns[first : first + count] for first, count in runs]
        versions.append(SchemaVersion(number, tuple(chain.from_iterable(parts))))
    return tuple(versions)


COLUMNS_OF_VERSIONS = Codec(_write_versions, _read_versions)
"""The schema versions of a table: each column once, then the runs of columns of each version.

A transactional table keeps its versions. With all columns in each, a hundred changes of columns
made a record of a hundred times the columns, and each change stores the record twice.
"""

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
