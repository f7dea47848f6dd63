"""Hypothesis strategies for values of the structs of a field table."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from strandline.metastore.thrift import FieldTable
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
    STRUCT,
    Type,
)

_BITS = {I8: 8, I16: 16, I32: 32, I64: 64}
_TEXT = st.text(max_size=6)


def structs(table: FieldTable, name: str, *, lists_as_keys: bool = True) -> Any:
    """Values of a struct: all required fields, and any of the optional ones."""
    required: dict[str, Any] = {}  # strategies of values of any type
    optional: dict[str, Any] = {}
    for field in table.structs[name].fields:
        plain = lists_as_keys or field.type.key is None or field.type.key.wire != LIST
        if field.sent and plain:
            values = _values(table, field.type, lists_as_keys)
            (required if field.required else optional)[field.name] = values
    return st.fixed_dictionaries(required, optional=optional)


def _values(table: FieldTable, kind: Type, lists_as_keys: bool) -> Any:
    if kind.wire == STRUCT:
        return st.deferred(lambda: structs(table, kind.name, lists_as_keys=lists_as_keys))
    if kind.wire == BOOL:
        return st.booleans()
    if kind.wire in _BITS:
        bound = 1 << (_BITS[kind.wire] - 1)
        return st.integers(-bound, bound - 1)
    if kind.wire == DOUBLE:
        return st.floats(allow_nan=False, allow_infinity=False)
    if kind.name == "binary":
        return st.binary(min_size=3, max_size=3)
    if kind.value is None:
        return _TEXT
    inner = _values(table, kind.value, lists_as_keys)
    if kind.wire == MAP:
        assert kind.key is not None  # every map type has a key type
        keys = _values(table, kind.key, lists_as_keys)
        if kind.key.wire == LIST:
            keys = keys.map(tuple)
        return st.dictionaries(keys, inner, max_size=2)
    if kind.wire == SET:
        return st.sets(inner, max_size=3)
    return st.lists(inner, max_size=2)
