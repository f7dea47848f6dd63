"""Writes structs in Thrift's JSON protocol.

Hive's notification messages contain tables and partitions as text in this format. A struct is an
object from field ids to one-entry objects, whose key names the type: ``{"1":{"str":"x"}}``. A list
or set is ``["rec",2,...]``, a map ``["str","str",2,{...}]``. Map keys are quoted, so a number is
written as a string there. A list as a map key is still written as a list, which is not valid JSON,
but is what Hive writes and reads. Binaries are base64 without padding. There are no blanks.

As for the binary protocol (`compiler`), the function of each struct is generated and executed at
its first use: walking the specification for every value takes ten times as long. These functions do
not check their input; wrong input makes them fail, and `first_fault` then says what is wrong.
"""

from __future__ import annotations

import math
from base64 import b64encode
from collections.abc import Callable, Mapping
from json.encoder import encode_basestring
from typing import Any

from strandline.metastore.thrift.compiler import GeneratedFunctions
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
    StructSpec,
    Type,
)


class JsonText(str):
    """The text of a struct that was written before, used in place of the struct."""

    __slots__ = ()


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
_BITS: Mapping[int, int] = {I8: 8, I16: 16, I32: 32, I64: 64}

Write = Callable[[Any], str]  # Any: a struct has values of as many types as the protocol


class JsonWriters(GeneratedFunctions):
    """The functions that write the structs of one field table. ``decode`` reads an encoded one."""

    def __init__(self, table: FieldTable, decode: Callable[[str, bytes], dict[str, Any]]) -> None:
        names = {
            "JsonText": JsonText,
            "binary": _binary,
            "decode": decode,
            "double": _double,
            "elements": _elements,
            "integer": _integer,
            "key": _key,
            "text": encode_basestring,
            "whole": int.__repr__,
        }
        super().__init__(table, names)

    def writer(self, name: str) -> Write:
        write: Write = self._function(f"write_{name}", name, self._compile)
        return write

    def _compile(self, spec: StructSpec) -> None:
        name, known = f"write_{spec.name}", f"known_{spec.name}"
        self._names[name] = None  # reserved: a struct may contain itself
        sent = [field for field in spec.fields if field.sent]
        self._names[known] = frozenset(field.name for field in sent).issuperset
        lines = [
            f"def {name}(value):",
            "  if value.__class__ is JsonText:",
            "    return value",
            "  if value.__class__ is bytes:",
            f"    value = decode({spec.name!r}, value)",
            f"  if not {known}(value):",
            f"    raise KeyError({spec.name!r})",
            "  get = value.get",
            "  parts = []",
            "  append = parts.append",
        ]
        for field in sent:
            head = f'"{field.id}":{{"{_TYPE_NAMES[field.type.wire]}":'
            lines += [
                f"  x = get({field.name!r})",
                "  if x is not None:",
                f"    append({head!r} + {self._value(field.type, 'x', 0)} + '}}')",
            ]
            if field.required:
                lines += ["  else:", f"    raise KeyError({field.name!r})"]
        self._execute([*lines, "  return '{' + ','.join(parts) + '}'"])

    def _value(self, kind: Type, x: str, depth: int) -> str:
        """Return an expression for the text of the value ``x``."""
        if kind.wire == STRUCT:
            if f"write_{kind.name}" not in self._names:
                self._compile(self._table.structs[kind.name])
            return f"write_{kind.name}({x})"
        if kind.value is not None:
            return self._container(kind, kind.value, x, depth)
        if kind.wire in _BITS:
            return f"integer({x}, {_BITS[kind.wire]})"
        if kind.wire == DOUBLE:
            return f"double({x} + 0.0)"
        if kind.wire == BOOL:
            return f"whole({x})"
        return f"binary({x})" if kind.name == "binary" else f"text({x})"

    def _container(self, kind: Type, element_type: Type, x: str, depth: int) -> str:
        y, k = f"y{depth}", f"k{depth}"
        value, name = self._value(element_type, y, depth + 1), _TYPE_NAMES[element_type.wire]
        if kind.key is None:
            items = f"""['"{name}"', str(len({x})), *[{value} for {y} in elements({x})]]"""
            return f"'[' + ','.join({items}) + ']'"
        entry = self._value(kind.key, k, depth + 1)
        if kind.key.wire != STRING:
            entry = f"key({entry})"
        head = f'["{_TYPE_NAMES[kind.key.wire]}","{name}",'
        entries = f"','.join([{entry} + ':' + {value} for {k}, {y} in {x}.items()])"
        return f"{head!r} + str(len({x})) + ',{{' + {entries} + '}}]'"


def _elements(value: Any) -> Any:  # Any: lists and sets of every type
    """Return ``value``. Raises `TypeError` for a text, binary or map: these are not lists."""
    if isinstance(value, (str, bytes, dict)):
        raise TypeError(f"{type(value).__name__} is not a list")
    return value


def _integer(value: int, bits: int) -> str:
    if value >> (bits - 1) not in (0, -1):
        raise ValueError(f"{value} does not fit {bits} bits")
    return int.__repr__(value)


def _binary(value: bytes) -> str:
    return '"' + b64encode(value).decode().rstrip("=") + '"'


def _key(text: str) -> str:
    return text if text[0] in '"[' else f'"{text}"'


def _double(value: float) -> str:
    if math.isnan(value):
        return '"NaN"'
    if math.isinf(value):
        return '"Infinity"' if value > 0 else '"-Infinity"'
    return repr(value)
