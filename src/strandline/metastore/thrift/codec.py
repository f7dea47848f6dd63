"""Structs and messages between bytes and plain dicts, for one field table.

A struct is a dict from field names to values; a field that is absent is not in it, and None is
absent when it is written. Enumerations are their numbers, binaries are `bytes`, strings are `str`
(bytes that are no UTF-8 become replacement characters), lists of keys are tuples. In the place of
a struct, `bytes` stand for that struct encoded before: an answer is built from kept parts.

What is wrong with bytes is a `ProtocolError`; what is wrong with a dict is an `InvalidInput` that
names the place in it. Decoding checks that required fields came, and that nothing follows.
"""

from __future__ import annotations

import struct
from typing import Any

from strandline.errors import InvalidInput, ProtocolError
from strandline.metastore.thrift.compiler import Compiler
from strandline.metastore.thrift.field_table import (
    HIVE_METASTORE,
    FieldTable,
    MethodSpec,
)
from strandline.metastore.thrift.json_text import JsonWriters
from strandline.metastore.thrift.messages import ApplicationException, ThriftException
from strandline.metastore.thrift.values import first_fault

# What a generated decoder runs into at the end of data that ends too early.
_TOO_SHORT = (IndexError, struct.error, OverflowError, MemoryError)
# What a generated encoder runs into at a value that is not of its field's type.
_WRONG_VALUE = (TypeError, AttributeError, KeyError, ValueError, struct.error, OverflowError)


class Codec:
    """Encodes and decodes the structs, arguments and results of ``table``. Safe for threads."""

    def __init__(self, table: FieldTable) -> None:
        self.table = table
        self._compiler = Compiler(table)
        self._writers = JsonWriters(self)

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
        """The struct that fills ``data`` from ``at`` to its end."""
        try:
            fields, end = self._compiler.decoder(name)(data, at)
        except _TOO_SHORT:
            raise _ends_early(name, data, at) from None
        return _filled(name, data, fields, end)

    def method(self, name: str) -> MethodSpec:
        """The method, or the `ApplicationException` that says that there is none."""
        found = self.table.methods.get(name)
        if found is None:
            raise ApplicationException.unknown_method(name)
        return found

    def encode_args(self, method: str, args: dict[str, Any]) -> bytes:
        return self.encode_struct(self.method(method).args.name, args)

    def decode_args(self, method: str, data: bytes, *, at: int = 0) -> dict[str, Any]:
        return self.decode_struct(self.method(method).args.name, data, at=at)

    def encode_result(self, method: str, value: Any) -> bytes:
        """The result struct in which ``method`` returns ``value`` (None for a void method)."""
        spec = self.method(method)
        if spec.returns is None:
            if value is not None:
                raise InvalidInput(f"{method} returns nothing, not {type(value).__name__}")
            return b"\x00"
        if value is None:
            raise InvalidInput(f"{method} must return a {spec.returns}, not None")
        return self.encode_struct(spec.result.name, {"success": value})

    def encode_exception(self, method: str, exception: ThriftException) -> bytes | None:
        """The result struct in which ``method`` throws; None where it does not declare that."""
        spec = self.method(method)
        if not spec.declares(exception.name):
            return None
        return self.encode_struct(spec.result.name, {exception.name: exception.value})

    def to_json_text(self, name: str, value: dict[str, Any] | bytes) -> str:
        """The struct as Thrift's JSON protocol writes it, as one text without blanks.

        In the place of a struct, `JsonText` stands for that struct written before.
        """
        text = self.to_json_form(name, value)
        if not text.isascii():
            try:
                text.encode()
            except UnicodeEncodeError as error:
                raise self._refused(name, value, error) from error
        return text

    def to_json_form(self, name: str, value: dict[str, Any] | bytes) -> str:
        """`to_json_text` of a struct whose texts may hold halves of surrogate pairs.

        No text that is kept has such a half, so they mark places that are filled in later.
        """
        try:
            return self._writers.writer(name)(value)
        except _WRONG_VALUE as error:
            raise self._refused(name, value, error) from error

    def _refused(self, name: str, value: dict[str, Any] | bytes, error: Exception) -> InvalidInput:
        fields = self.decode_struct(name, value) if isinstance(value, bytes) else value
        fault = first_fault(self.table, name, fields)
        return InvalidInput(f"cannot write {name} as JSON: {fault or error}")


def _ends_early(name: str, data: bytes, at: int) -> ProtocolError:
    return ProtocolError(f"the bytes of a {name} end before it does ({len(data) - at} bytes)")


def _filled(name: str, data: bytes, fields: dict[str, Any], end: int) -> dict[str, Any]:
    if end != len(data):
        raise ProtocolError(f"{len(data) - end} bytes follow the end of a {name}")
    return fields


HIVE_CODEC = Codec(HIVE_METASTORE)
"""The codec of the Hive Metastore protocol."""
