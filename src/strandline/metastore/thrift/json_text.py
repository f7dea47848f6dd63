"""Structs as Thrift's JSON protocol writes them.

Hive's notification messages carry tables and partitions as text of this form. A struct is an
object from field ids to one-entry objects, whose key names the type: ``{"1":{"str":"x"}}``. A list
or set is ``["rec",2,...]``, a map ``["str","str",2,{...}]``. Keys of maps are quoted, so a number
stands there as a string; a list in that place is written as a list all the same, which is no JSON,
and is what Hive writes and reads. Binaries are base64 without padding. There are no blanks.
"""

from __future__ import annotations

import math
from base64 import b64encode
from collections.abc import Mapping
from json.encoder import encode_basestring
from typing import Any, Protocol

from strandline.metastore.thrift.field_table import (
    BOOL,
    DOUBLE,
    I8,
    I16,
    I32,
    I64,
    LIST,
    MAP,
    SET,
    STRING,
    STRUCT,
    FieldTable,
    Type,
)


class StructReader(Protocol):
    """What is needed of a codec: its table, and structs out of bytes."""

    table: FieldTable

    def decode_struct(self, name: str, data: bytes) -> dict[str, Any]: ...


_TYPE_NAMES: Mapping[int, str] = {
    BOOL: "tf",
    I8: "i8",
    I16: "i16",
    I32: "i32",
    I64: "i64",
    DOUBLE: "dbl",
    STRING: "str",
    STRUCT: "rec",
    LIST: "lst",
    SET: "set",
    MAP: "map",
}


def json_text(codec: StructReader, struct: str, value: dict[str, Any] | bytes) -> str:
    """The text of a struct whose values are known to fit it."""
    fields = codec.decode_struct(struct, value) if isinstance(value, bytes) else value
    parts = []
    for field in codec.table.structs[struct].fields:
        found = fields.get(field.name)
        if field.sent and found is not None:
            name = _TYPE_NAMES[field.type.wire]
            parts.append(f'"{field.id}":{{"{name}":{_text(codec, field.type, found)}}}')
    return "{" + ",".join(parts) + "}"


def _text(
    codec: StructReader, kind: Type, value: Any
) -> str:  # Any: one of the types of the protocol
    if kind.wire == STRUCT:
        return json_text(codec, kind.name, value)
    if kind.key is not None and kind.value is not None:
        entries = ",".join(
            f"{_key(codec, kind.key, key)}:{_text(codec, kind.value, item)}"
            for key, item in value.items()
        )
        names = f'"{_TYPE_NAMES[kind.key.wire]}","{_TYPE_NAMES[kind.value.wire]}"'
        return f"[{names},{len(value)},{{{entries}}}]"
    if kind.value is not None:
        items = [f'"{_TYPE_NAMES[kind.value.wire]}"', str(len(value))]
        items += [_text(codec, kind.value, item) for item in value]
        return "[" + ",".join(items) + "]"
    if kind.name == "binary":
        return '"' + b64encode(value).decode().rstrip("=") + '"'
    if kind.name == "string":
        return encode_basestring(value)
    if kind.wire == DOUBLE:
        return _double(float(value))
    return str(int(value))


def _key(codec: StructReader, kind: Type, key: Any) -> str:
    text = _text(codec, kind, key)
    return text if text[0] in '"[' else f'"{text}"'


def _double(value: float) -> str:
    if math.isnan(value):
        return '"NaN"'
    if math.isinf(value):
        return '"Infinity"' if value > 0 else '"-Infinity"'
    return repr(value)
