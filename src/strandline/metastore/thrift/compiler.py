"""Generates Python functions that encode and decode, from the specifications of the field table.

The problem: a `Table` of Hive holds about two hundred strings in seven kinds of structs. Walking
its specification for every answer costs a millisecond; an answer should cost a small part of that.

The model: for each struct in use, the source of two functions is generated and executed once.
``encode_<struct>(value, append)`` appends pieces of bytes. ``decode_<struct>(data, at)`` returns
``(fields, end)``. A decoder is straight-line code: writers send fields in the order of their ids,
so the decoder compares the next three bytes with the header of each field in turn. Anything else
there (a field out of order, unknown, or of another type) is left to the slow loop `rest`.

What must stay true:

* A decoder never moves backwards. Lengths are read as unsigned, so a negative one is a huge one. A
  length that points beyond the data causes ``IndexError`` or ``struct.error``, at the latest at the
  stop byte of the struct that contains it. The callers in `codec` turn these into `ProtocolError`.
  So no length has to be checked where it is read.
* A value of the wrong type is skipped, as if its field were absent. A list announces the type of
  its elements; an empty list is accepted whatever type it announces.
* `bytes` in place of a struct are that struct, already encoded, and are sent unchanged.

Only names and numbers of the field table enter the generated source, and the reader of the table
accepts only words as names.

Rejected: closures over a specification (twice the time, for the calls between them); a C extension
(one more thing to build for each platform).
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Mapping
from typing import Any

from strandline.errors import ProtocolError
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
    UUID,
    FieldSpec,
    FieldTable,
    StructSpec,
    Type,
)

MAX_DEPTH = 64
"""The deepest allowed nesting of structs and containers."""

FIXED_SIZES: Mapping[int, int] = {BOOL: 1, I8: 1, I16: 2, I32: 4, I64: 8, DOUBLE: 8, UUID: 16}
"""The size in bytes of the values of each fixed-size type."""

_FORMATS: Mapping[int, str] = {I8: "b", I16: "h", I32: "i", I64: "q", DOUBLE: "d"}

# The values of decoded structs have as many types as the protocol: hence Any.
Encode = Callable[[Any, Callable[[bytes], None]], None]
Decode = Callable[[bytes, int], tuple[dict[str, Any], int]]
_Read = Callable[[bytes, int], tuple[Any, int] | None]


class GeneratedFunctions:
    """Functions for the structs of a table, each generated at its first use. Thread-safe."""

    def __init__(self, table: FieldTable, names: dict[str, Any]) -> None:
        self._table = table
        # Written under the lock, read without it: a function is added after all that it calls.
        self._names = names
        self._lock = threading.RLock()

    def _function(self, name: str, struct_name: str, generate: Callable[[StructSpec], None]) -> Any:
        """Return the function of that name, which ``generate`` makes for the struct."""
        function = self._names.get(name)
        if function is None:
            with self._lock:
                if self._names.get(name) is None:  # no other thread generated it
                    generate(self._table.structs[struct_name])
            function = self._names[name]
        return function

    def _execute(self, lines: list[str]) -> None:
        source = "\n".join(lines)
        exec(compile(source, f"<generated: {lines[0]}>", "exec"), self._names)


class Compiler(GeneratedFunctions):
    """The functions that encode and decode the structs of one field table."""

    def __init__(self, table: FieldTable) -> None:
        names = {
            "pack_size": struct.Struct(">I").pack,
            "size_at": struct.Struct(">I").unpack_from,
            "pack_all": struct.pack,
            "unpack_all": struct.unpack_from,
            "rest": rest,
            "skip": skip,
            "wire_type_of": wire_type_of,
            "missing": missing,
            "ProtocolError": ProtocolError,
        }
        super().__init__(table, names)
        for wire, code in _FORMATS.items():
            self._names[f"pack_{wire}"] = struct.Struct(f">{code}").pack
            self._names[f"pack_field_{wire}"] = struct.Struct(f">bh{code}").pack
            self._names[f"unpack_{wire}"] = struct.Struct(f">{code}").unpack_from

    def encoder(self, name: str) -> Encode:
        encode: Encode = self._function(f"encode_{name}", name, self._compile_encoder)
        return encode

    def decoder(self, name: str) -> Decode:
        decode: Decode = self._function(f"decode_{name}", name, self._compile_decoder)
        return decode

    # Encoding -----------------------------------------------------------------------------------

    def _compile_encoder(self, spec: StructSpec) -> None:
        name = f"encode_{spec.name}"
        known = f"known_{spec.name}"
        self._names[name] = None  # reserved: a struct may contain itself
        self._names[known] = frozenset(field.name for field in spec.fields if field.sent).issuperset
        lines = [
            f"def {name}(value, append):",
            "  if value.__class__ is bytes:",
            "    append(value)",
            "    return",
            f"  if not {known}(value):",
            f"    raise KeyError({spec.name!r})",
            "  get = value.get",
        ]
        # Another reading of a field comes before it: a reader that knows both keeps the last one.
        for field in sorted(spec.fields, key=lambda field: (field.id, field.sent)):
            if field.sent or field.is_sent_too:
                lines += [f"  x = get({field.name!r})", "  if x is not None:"]
                lines += self._encode_field(field)
                if field.required:
                    lines += ["  else:", f"    raise KeyError({field.name!r})"]
        lines.append("  append(b'\\0')")
        self._execute(lines)

    def _encode_field(self, field: FieldSpec) -> list[str]:
        head = _header(field)
        wire = field.type.wire
        if wire == BOOL:
            return [f"    append({head + bytes([1])!r} if x else {head + bytes([0])!r})"]
        if wire in _FORMATS:
            return [f"    append(pack_field_{wire}({wire}, {field.id}, x))"]
        return self._encode_value(field.type, "x", "    ", 0, head)

    def _encode_value(self, kind: Type, x: str, pad: str, depth: int, head: bytes) -> list[str]:
        """Return lines that append ``head`` and the value in the variable ``x``."""
        lead = f"{head!r} + " if head else ""
        if kind.wire == STRING:
            lines = [] if kind.name == "binary" else [f"{pad}{x} = {x}.encode()"]
            return [*lines, f"{pad}append({lead}pack_size(len({x})) + {x})"]
        if kind.wire == STRUCT:
            if f"encode_{kind.name}" not in self._names:
                self._compile_encoder(self._table.structs[kind.name])
            lines = [f"{pad}append({head!r})"] if head else []
            return [*lines, f"{pad}encode_{kind.name}({x}, append)"]
        if kind.wire == BOOL:
            return [f"{pad}append(b'\\1' if {x} else b'\\0')"]
        if kind.wire in _FORMATS:
            return [f"{pad}append(pack_{kind.wire}({x}))"]
        return self._encode_container(kind, x, pad, depth, lead)

    def _encode_container(self, kind: Type, x: str, pad: str, depth: int, lead: str) -> list[str]:
        assert kind.value is not None  # every container has a type of values
        lines = []
        inner = f"{pad}  "
        y, k = f"y{depth}", f"k{depth}"
        if kind.wire == MAP:
            assert kind.key is not None  # every map has a type of keys
            types = bytes([kind.key.wire, kind.value.wire])
            lines += [
                f"{pad}append({lead}{types!r} + pack_size(len({x})))",
                f"{pad}for {k}, {y} in {x}.items():",
                *self._encode_value(kind.key, k, inner, depth + 1, b""),
            ]
        else:
            # Python could iterate over a string, but a string here is always a mistake.
            lines += [
                f"{pad}if {x}.__class__ is str:",
                f"{pad}  raise TypeError('a string is not a list')",
                f"{pad}append({lead}{bytes([kind.value.wire])!r} + pack_size(len({x})))",
            ]
            if kind.value.wire in _FORMATS:
                code = _FORMATS[kind.value.wire]
                return [*lines, f"{pad}append(pack_all(f'>{{len({x})}}{code}', *{x}))"]
            lines.append(f"{pad}for {y} in {x}:")
        return lines + self._encode_value(kind.value, y, inner, depth + 1, b"")

    # Decoding -----------------------------------------------------------------------------------

    def _compile_decoder(self, spec: StructSpec) -> None:
        name, readers = f"decode_{spec.name}", f"decode_readers_{spec.name}"
        self._names[name] = None  # reserved: a struct may contain itself
        lines = [f"def {name}(data, at):"]
        if spec.older is not None:
            older = spec.older
            self._compile_decoder(older.spec)
            lines += [
                f"  if wire_type_of({older.field_id}, data, at) == {older.wire}:",
                f"    return decode_{older.spec.name}(data, at)",
            ]
        lines += ["  fields = {}", "  head = data[at:at + 3]"]
        table: dict[bytes, tuple[str, _Read]] = {}
        for field in spec.fields:
            read = self._reader(field.type)
            table[_header(field)] = (field.name, self._names[read])
            lines += [f"  if head == {_header(field)!r}:", "    at += 3"]
            lines += self._decode_field(field, read)
            lines.append("    head = data[at:at + 3]")
        lines += [
            "  if data[at]:",
            f"    at = rest(data, at, fields, {readers})",
            "  else:",
            "    at += 1",
        ]
        for field in spec.fields:
            if field.required and field.sent:
                lines.append(f"  if {field.name!r} not in fields:")
                lines.append(f"    raise missing({spec.name!r}, {field.name!r})")
        self._names[readers] = table
        self._execute([*lines, "  return fields, at"])

    def _decode_field(self, field: FieldSpec, read: str) -> list[str]:
        kind, x = field.type, f"fields[{field.name!r}]"
        if kind.wire in (LIST, SET, MAP):
            return [
                f"    decoded = {read}(data, at)",
                "    if decoded is None:",
                f"      at = skip(data, at, {kind.wire})",
                "    else:",
                f"      {x}, at = decoded",
            ]
        return self._decode_value(kind, x, "    ")

    def _decode_value(self, kind: Type, x: str, pad: str) -> list[str]:
        """Return lines that read a value at ``at`` into ``x`` and move ``at`` past the value."""
        if kind.wire == STRING:
            text = "" if kind.name == "binary" else ".decode('utf-8', 'replace')"
            return [
                f"{pad}end = at + 4 + size_at(data, at)[0]",
                f"{pad}{x} = data[at + 4:end]{text}",
                f"{pad}at = end",
            ]
        if kind.wire == BOOL:
            return [f"{pad}{x} = data[at] != 0", f"{pad}at += 1"]
        if kind.wire in _FORMATS:
            size = FIXED_SIZES[kind.wire]
            return [f"{pad}{x} = unpack_{kind.wire}(data, at)[0]", f"{pad}at += {size}"]
        if kind.wire == STRUCT:
            if f"decode_{kind.name}" not in self._names:
                self._compile_decoder(self._table.structs[kind.name])
            return [f"{pad}{x}, at = decode_{kind.name}(data, at)"]
        read = self._reader(kind)
        return [
            f"{pad}decoded = {read}(data, at)",
            f"{pad}if decoded is None:",
            f"{pad}  raise ProtocolError('a container inside a container is of another type')",
            f"{pad}{x}, at = decoded",
        ]

    def _reader(self, kind: Type) -> str:
        """Return the name of a function that reads one value of a type.

        That function returns None if the value is a container of another type than expected.
        """
        name = "read_" + str(kind).translate(_WORD)
        if name in self._names:
            return name
        lines = [f"def {name}(data, at):"]
        if kind.wire not in (LIST, SET, MAP):
            lines += [*self._decode_value(kind, "x", "  "), "  return x, at"]
        else:
            lines += self._read_container(kind)
        self._execute(lines)
        return name

    def _read_container(self, kind: Type) -> list[str]:
        assert kind.value is not None  # every container has a type of values
        if kind.wire == MAP:
            assert kind.key is not None  # every map has a type of keys
            keys = self._decode_value(kind.key, "key", "    ")
            if kind.key.wire == LIST:
                keys.append("    key = tuple(key)")
            return [
                "  size = size_at(data, at + 2)[0]",
                f"  if data[at:at + 2] != {bytes([kind.key.wire, kind.value.wire])!r} and size:",
                "    return None",
                "  at += 6",
                "  x = {}",
                "  for _ in range(size):",
                *keys,
                *self._decode_value(kind.value, "x[key]", "    "),
                "  return x, at",
            ]
        of_set = kind.wire == SET
        lines = [
            "  size = size_at(data, at + 1)[0]",
            f"  if data[at] != {kind.value.wire} and size:",
            "    return None",
            "  at += 5",
        ]
        if kind.value.wire in _FORMATS:
            code, width = _FORMATS[kind.value.wire], FIXED_SIZES[kind.value.wire]
            type_name = "set" if of_set else "list"
            lines.append(f"  x = {type_name}(unpack_all(f'>{{size}}{code}', data, at))")
            return [*lines, f"  return x, at + {width} * size"]
        return [
            *lines,
            "  x = set()" if of_set else "  x = []",
            "  for _ in range(size):",
            *self._decode_value(kind.value, "y", "    "),
            "    x.add(y)" if of_set else "    x.append(y)",
            "  return x, at",
        ]


_WORD = str.maketrans({"<": "_of_", ">": "_", ",": "_to_"})


def _header(field: FieldSpec) -> bytes:
    return struct.pack(">bh", field.type.wire, field.id)


def missing(struct_name: str, field_name: str) -> ProtocolError:
    return ProtocolError(f"{struct_name} lacks its required field {field_name}")


def rest(
    data: bytes, at: int, fields: dict[str, Any], readers: Mapping[bytes, tuple[str, _Read]]
) -> int:
    """Read the rest of a struct's fields from ``at`` on, in any order, and skip unknown ones."""
    while data[at]:
        head = data[at : at + 3]
        known = readers.get(head)
        at += 3
        decoded = None if known is None else known[1](data, at)
        if known is None or decoded is None:
            at = skip(data, at, head[0])
        else:
            fields[known[0]], at = decoded
    return at + 1


_size_at = struct.Struct(">I").unpack_from


def skip(data: bytes, at: int, wire: int, depth: int = 0) -> int:
    """Return the position after the value of type ``wire`` at ``at``."""
    if wire in FIXED_SIZES:
        return at + FIXED_SIZES[wire]
    if wire == STRING:
        return at + 4 + int(_size_at(data, at)[0])
    if depth >= MAX_DEPTH:
        raise ProtocolError(f"a message nests structs and containers deeper than {MAX_DEPTH}")
    if wire == STRUCT:
        while data[at]:
            at = skip(data, at + 3, data[at], depth + 1)
        return at + 1
    if wire == MAP:
        types, size, at = data[at : at + 2], _size_at(data, at + 2)[0], at + 6
    elif wire in (LIST, SET):
        types, size, at = data[at : at + 1], _size_at(data, at + 1)[0], at + 5
    else:
        raise ProtocolError(f"a message holds a value of the unknown type {wire}")
    if all(kind in FIXED_SIZES for kind in types):
        return at + int(size) * sum(FIXED_SIZES[kind] for kind in types)
    for _ in range(size):
        for kind in types:
            at = skip(data, at, kind, depth + 1)
    return at


def wire_type_of(field_id: int, data: bytes, at: int) -> int | None:
    """Return the wire type of a field of the struct at ``at``, or None if it has no such field."""
    while data[at]:
        if int.from_bytes(data[at + 1 : at + 3], "big", signed=True) == field_id:
            return data[at]
        at = skip(data, at + 3, data[at])
    return None
