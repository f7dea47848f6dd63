"""The formats of what tables and views consist of: columns, schema versions, storage formats."""

from __future__ import annotations

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
    write_uint,
)
from strandline.wire.registry import nested_list, register, register_codec
from strandline.wire.types import DATA_TYPE


def _write_column(out: bytearray, value: ColumnDescriptor) -> None:
    write_uint(out, value.id)
    TEXT.write(out, value.name)
    DATA_TYPE.write(out, value.type)
    BOOL.write(out, value.nullable)
    OPTIONAL_TEXT.write(out, value.comment)
    OPTIONAL_TEXT.write(out, value.default)
    TEXT.write(out, value.metadata)


def _read_column(reader: Reader) -> ColumnDescriptor:
    return ColumnDescriptor(
        reader.uint(),
        TEXT.read(reader),
        DATA_TYPE.read(reader),
        BOOL.read(reader),
        OPTIONAL_TEXT.read(reader),
        OPTIONAL_TEXT.read(reader),
        TEXT.read(reader),
    )


# Most of what is read and written is columns, so these two go without the loop over fields.
register_codec(
    ColumnDescriptor,
    type_id=15,
    version=1,
    since="0.1.0",
    codec=Codec(_write_column, _read_column),
)
register(
    SchemaVersion,
    type_id=16,
    version=1,
    since="0.1.0",
    fields=[("number", UINT), ("columns", nested_list(ColumnDescriptor))],
)
register(
    StorageFormat,
    type_id=17,
    version=1,
    since="0.1.0",
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
