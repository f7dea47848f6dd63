"""Converts structs and messages between bytes and plain dicts, for one field table.

A struct is a dict from field names to values. An absent field is not in it, and None is written as
absent. Enumerations are their numbers, binaries are `bytes`, strings are `str` (bytes that are not
UTF-8 become replacement characters), and lists that are map keys are tuples. In place of a struct,
`bytes` are that struct, already encoded: an answer can be built from kept parts.

Wrong bytes raise `ProtocolError`. A wrong dict raises `InvalidInput` that names the place in it.
Decoding checks that required fields are present and that nothing follows the struct.

The generated encoders do not check their input; wrong input makes them fail. Then `first_fault`
compares the value with its specification and finds the first place that does not fit, so that the
message names ``Table.sd.cols[3].name`` and not a line of generated code.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

from strandline.errors import InvalidInput, ProtocolError
from strandline.metastore.thrift.compiler import Compiler
from strandline.metastore.thrift.field_table import (
    BOOL,
    DOUBLE,
    HIVE_METASTORE,
    I8,
    I16,
    I32,
    I64,
    STRUCT,
    FieldTable,
    MethodSpec,
    Type,
)
from strandline.metastore.thrift.json_text import JsonText, JsonWriters
from strandline.metastore.thrift.messages import ApplicationException, ThriftException
from strandline.wire.codecs import is_text

_BITS = {I8: 8, I16: 16, I32: 32, I64: 64}


def first_fault(table: FieldTable, struct: str, value: Any) -> str | None:  # any value can be wrong
    """Return the first place in ``value`` that does not fit ``struct``, or None."""
    return next(_struct_faults(table, struct, value, struct), None)


def _struct_faults(table: FieldTable, struct: str, value: Any, path: str) -> Iterator[str]:
    if isinstance(value, (bytes, JsonText)):
        return
    if not isinstance(value, dict):
        yield f"{path}: expected the fields of a {struct}, found {_shown(value)}"
        return
    fields = {field.name: field for field in table.structs[struct].fields if field.sent}
    for name in value:
        if name not in fields:
            yield f"{path}: {struct} has no field {name!r}; it has {', '.join(fields)}"
    for name, field in fields.items():
        if value.get(name) is not None:
            yield from _faults(table, field.type, value[name], f"{path}.{name}")
        elif field.required:
            yield f"{path}: the required field {name} is missing"


def _faults(table: FieldTable, kind: Type, value: Any, path: str) -> Iterator[str]:
    if kind.wire == STRUCT:
        yield from _struct_faults(table, kind.name, value, path)
    elif not _fits(kind, value):
        article = "" if kind.value is None else "a "
        yield f"{path}: expected {article}{kind}, found {_shown(value)}"
    elif kind.key is not None and kind.value is not None:
        for name, item in value.items():
            yield from _faults(table, kind.key, name, f"key {name!r} of {path}")
            yield from _faults(table, kind.value, item, f"{path}[{name!r}]")
    elif kind.value is not None:
        for index, item in enumerate(value):
            yield from _faults(table, kind.value, item, f"{path}[{index}]")


def _fits(kind: Type, value: Any) -> bool:
    """Whether a value is of that type, its elements aside."""
    if kind.key is not None:
        return isinstance(value, dict)
    if kind.value is not None:
        return hasattr(value, "__iter__") and not isinstance(value, (str, bytes, dict))
    if kind.name == "binary":
        return isinstance(value, bytes)
    if kind.name == "string":
        return isinstance(value, str) and is_text(value)
    if kind.wire == BOOL:
        return isinstance(value, (bool, int))
    if kind.wire == DOUBLE:
        return isinstance(value, (int, float))
    bound = 1 << (_BITS[kind.wire] - 1)
    return isinstance(value, int) and -bound <= value < bound


def _shown(value: Any) -> str:
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 60 else text[:57] + '...'}"


# The exceptions of a generated decoder whose data end too early.
_TOO_SHORT = (IndexError, struct.error, OverflowError, MemoryError)
# The exceptions of a generated encoder whose value has another type than its field.
_WRONG_VALUE = (TypeError, AttributeError, KeyError, ValueError, struct.error, OverflowError)


class Codec:
    """Encodes and decodes the structs, arguments and results of ``table``. Thread-safe."""

    def __init__(self, table: FieldTable) -> None:
        self.table = table
        self._compiler = Compiler(table)
        self._writers = JsonWriters(table, self.decode_struct)

    def prepare(self, *structs: str) -> None:
        """Generate the code for these structs now instead of at their first use."""
        for name in structs:
            self._compiler.encoder(name)
            self._compiler.decoder(name)

    # A decoded struct has values of as many types as the protocol: hence Any, here and below.

    def encode_struct(self, name: str, value: dict[str, Any] | bytes) -> bytes:
        parts: list[bytes] = []
        try:
            self._compiler.encoder(name)(value, parts.append)
            return b"".join(parts)
        except _WRONG_VALUE as error:
            fault = first_fault(self.table, name, value)
            raise InvalidInput(f"cannot encode {name}: {fault or error}") from error

    def decode_struct(self, name: str, data: bytes, *, at: int = 0) -> dict[str, Any]:
        """Return the struct that fills ``data`` from ``at`` to its end."""
        try:
            fields, end = self._compiler.decoder(name)(data, at)
        except _TOO_SHORT:
            size = len(data) - at
            raise ProtocolError(
                f"the bytes of a {name} end before it does ({size} bytes)"
            ) from None
        if end != len(data):
            raise ProtocolError(f"{len(data) - end} bytes follow the end of a {name}")
        return fields

    def method(self, name: str) -> MethodSpec:
        """Return the method. Raises `ApplicationException` if the protocol does not have it."""
        spec = self.table.methods.get(name)
        if spec is None:
            raise ApplicationException.unknown_method(name)
        return spec

    def is_oneway(self, name: str) -> bool:
        """Whether the method is oneway, so that its client waits for no answer."""
        spec = self.table.methods.get(name)
        return spec is not None and spec.oneway

    def encode_args(self, method: str, args: dict[str, Any]) -> bytes:
        return self.encode_struct(self.method(method).args.name, args)

    def decode_args(self, method: str, data: bytes, *, at: int = 0) -> dict[str, Any]:
        return self.decode_struct(self.method(method).args.name, data, at=at)

    def encode_result(self, method: str, value: Any) -> bytes:
        """Return the result struct in which ``method`` returns ``value`` (None: a void method)."""
        spec = self.method(method)
        if spec.returns is None:
            if value is not None:
                raise InvalidInput(f"{method} returns nothing, not {type(value).__name__}")
            return b"\x00"
        if value is None:
            raise InvalidInput(f"{method} must return a {spec.returns}, not None")
        return self.encode_struct(spec.result.name, {"success": value})

    def encode_exception(self, method: str, exception: ThriftException) -> bytes | None:
        """Return the result struct in which ``method`` throws, or None if that is undeclared."""
        spec = self.method(method)
        if not spec.declares(exception.name):
            return None
        return self.encode_struct(spec.result.name, {exception.name: exception.value})

    def to_json_text(self, name: str, value: dict[str, Any] | bytes) -> str:
        """Return the struct in Thrift's JSON protocol, as one text without blanks.

        In place of a struct, `JsonText` is the text of that struct, written before.
        """
        text = self.to_json_form(name, value)
        if not text.isascii():
            try:
                text.encode()
            except UnicodeEncodeError as error:
                raise self._refused(name, value, error) from error
        return text

    def to_json_form(self, name: str, value: dict[str, Any] | bytes) -> str:
        """Like `to_json_text`, but texts may contain halves of surrogate pairs.

        No stored text has such a half, so they can mark places that are filled in later.
        """
        try:
            return self._writers.writer(name)(value)
        except _WRONG_VALUE as error:
            raise self._refused(name, value, error) from error

    def _refused(self, name: str, value: dict[str, Any] | bytes, error: Exception) -> InvalidInput:
        fields = self.decode_struct(name, value) if isinstance(value, bytes) else value
        fault = first_fault(self.table, name, fields)
        return InvalidInput(f"cannot write {name} as JSON: {fault or error}")


HIVE_CODEC = Codec(HIVE_METASTORE)
"""The codec of the Hive Metastore protocol."""
