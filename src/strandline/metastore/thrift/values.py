"""Says what is wrong with a value that would not encode.

The generated encoders do not look at what they are given; they stumble over it. This module then
walks the value beside its specification and finds the first place that does not fit, so that the
message names ``Table.sd.cols[3].name`` and not a line of generated code.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from strandline.metastore.thrift.field_table import (
    BOOL,
    DOUBLE,
    I8,
    I16,
    I32,
    I64,
    STRUCT,
    FieldTable,
    Type,
)
from strandline.metastore.thrift.json_text import JsonText

_BITS = {I8: 8, I16: 16, I32: 32, I64: 64}


def first_fault(table: FieldTable, struct: str, value: Any) -> str | None:  # any value can be wrong
    """The first place in ``value`` that is not what ``struct`` says, None if there is none."""
    return next(_struct_faults(table, struct, value, struct), None)


def _struct_faults(table: FieldTable, struct: str, value: Any, place: str) -> Iterator[str]:
    if isinstance(value, (bytes, JsonText)):
        return
    if not isinstance(value, dict):
        yield f"{place}: expected the fields of a {struct}, found {_shown(value)}"
        return
    fields = {field.name: field for field in table.structs[struct].fields if field.sent}
    for name in value:
        if name not in fields:
            yield f"{place}: {struct} has no field {name!r}; it has {', '.join(fields)}"
    for name, field in fields.items():
        if value.get(name) is not None:
            yield from _faults(table, field.type, value[name], f"{place}.{name}")
        elif field.required:
            yield f"{place}: the required field {name} is missing"


def _faults(table: FieldTable, kind: Type, value: Any, place: str) -> Iterator[str]:
    if kind.wire == STRUCT:
        yield from _struct_faults(table, kind.name, value, place)
    elif kind.key is not None and kind.value is not None:
        yield from _map_faults(table, kind, kind.key, kind.value, value, place)
    elif kind.value is not None:
        if isinstance(value, (str, bytes, dict)) or not hasattr(value, "__iter__"):
            yield f"{place}: expected a {kind}, found {_shown(value)}"
            return
        for index, item in enumerate(value):
            yield from _faults(table, kind.value, item, f"{place}[{index}]")
    elif not _base_fits(kind, value):
        yield f"{place}: expected {kind}, found {_shown(value)}"


def _map_faults(
    table: FieldTable, kind: Type, key: Type, value: Type, found: Any, place: str
) -> Iterator[str]:
    if not isinstance(found, dict):
        yield f"{place}: expected a {kind}, found {_shown(found)}"
        return
    for name, item in found.items():
        yield from _faults(table, key, name, f"key {name!r} of {place}")
        yield from _faults(table, value, item, f"{place}[{name!r}]")


def _base_fits(kind: Type, value: Any) -> bool:
    if kind.name == "binary":
        return isinstance(value, bytes)
    if kind.name == "string":
        return isinstance(value, str) and (value.isascii() or _is_text(value))
    if kind.wire == BOOL:
        return isinstance(value, (bool, int))
    if kind.wire == DOUBLE:
        return isinstance(value, (int, float))
    bound = 1 << (_BITS[kind.wire] - 1)
    return isinstance(value, int) and -bound <= value < bound


def _is_text(value: str) -> bool:
    """Whether it holds no half of a surrogate pair, which UTF-8 has no bytes for."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _shown(value: Any) -> str:
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 60 else text[:57] + '...'}"
