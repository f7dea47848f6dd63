"""The page on the wire format is sufficient to read every golden record."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator
from zlib import crc32

import pytest

from strandline.durable.collections import APPEND_ONLY, COLLECTIONS
from strandline.model.privileges import ObjectKind, Privilege
from strandline.wire import Reader, formats
from strandline.wire.types import DATA_TYPE, TypeTree
from tests.golden import (
    goldens_0_1_0,
    goldens_0_2_0,
    goldens_0_2_1,
    goldens_0_3_0,
    goldens_0_4_0,
    goldens_0_5_0,
    goldens_0_6_0,
    goldens_0_7_0,
    goldens_0_8_0,
)
from tests.project.checkout import ROOT

GOLDENS = [
    (value, data)
    for value, data in [
        *goldens_0_1_0.GOLDENS,
        *goldens_0_2_0.GOLDENS,
        *goldens_0_2_1.GOLDENS,
        *goldens_0_3_0.GOLDENS,
        *goldens_0_4_0.GOLDENS,
        *goldens_0_5_0.GOLDENS,
        *goldens_0_6_0.GOLDENS,
        *goldens_0_7_0.GOLDENS,
        *goldens_0_8_0.GOLDENS,
        goldens_0_2_1.FENCE,
    ]
    if not isinstance(value, TypeTree)
]
WORD = re.compile(r"\w+|[(),]")
FORMATS = {(layout.of.__name__, layout.version): layout for layout in formats()}
PAGE = (ROOT / "docs/reference/wire-format.md").read_text(encoding="utf-8")
AS_BEFORE = re.compile(r"as version (\d+); ")


def fields_of_types() -> dict[tuple[str, int], list[tuple[str, str]]]:
    """The name and the element of each field, by type and version, in the order of the page."""
    listed: dict[tuple[str, int], list[tuple[str, str]]] = {}
    rows = re.findall(r"^\| `(\w+)`( \d+)? \| (\w.*`.*) \|$", PAGE, re.MULTILINE)
    for name, version, cell in rows:
        key = name, int(version or 1)
        if key in FORMATS:
            older = AS_BEFORE.match(cell)
            before = listed[name, int(older[1])] if older else []
            listed[key] = before + list(fields_of(AS_BEFORE.sub("", cell, count=1)))
    return listed


def fields_of(cell: str) -> Iterator[tuple[str, str]]:
    for part in cell.split("; "):
        what, element, *_ = part.split("`")
        names = what.partition(":")[0].split(", ") if "each" in what else [what]
        for name in names:
            yield name.strip().replace(" ", "_"), element


FIELDS = fields_of_types()


def read(reader: Reader, words: list[str]) -> object:
    """Read one element, whose description is removed from the front of ``words``."""
    name = words.pop(0)
    inner: list[str] = []
    if words and words[0] == "(":
        depth = 0
        while True:
            word = words.pop(0)
            depth += (word == "(") - (word == ")")
            if depth == 0:
                break
            inner.append(word)
        inner = inner[1:]
    match name:
        case "UINT" | "enum" | "flags":
            return reader.uint()
        case "SINT":
            raw = reader.uint()
            return -(raw + 1) // 2 if raw % 2 else raw // 2
        case "FLOAT":
            return struct.unpack("<d", reader.take(8))[0]
        case "TIMES":
            return memoryview(reader.take(reader.uint())).cast("Q").tolist()
        case "TIME":
            return int.from_bytes(reader.take(8), "little")
        case "BOOL":
            return {b"\x00": False, b"\x01": True}[reader.take(1)]
        case "BYTES":
            return reader.take(reader.uint())
        case "TEXT":
            return reader.take(reader.uint()).decode()
        case "ARGUMENTS":
            return json.loads(reader.take(reader.uint()))
        case "PROPERTIES":
            return read(reader, WORD.findall("sequence(pair(TEXT, TEXT))"))
        case "optional":
            return read(reader, inner) if reader.take(1) == b"\x01" else None
        case "sequence":
            return tuple(read(reader, list(inner)) for _ in range(reader.uint()))
        case "pair" | "triple":
            parts = []
            while inner:
                parts.append(read(reader, inner))
                if inner:
                    assert inner.pop(0) == ","
            return tuple(parts)
        case "nested" if inner == ["TypeTree"]:
            return DATA_TYPE.read(reader)
        case "nested":
            return read_payload(reader, read_header(reader, inner[0]))
        case "list":
            count = reader.uint()
            key = read_header(reader, inner[0]) if count else ("", 0)
            return tuple(read_payload(reader, key) for _ in range(count))
    raise AssertionError(f"the page knows no element {name!r}")


def read_header(reader: Reader, name: str) -> tuple[str, int]:
    type_id, version = reader.fixed16(), reader.uint()
    assert FORMATS[name, version].type_id == type_id
    return name, version


def read_payload(reader: Reader, key: tuple[str, int]) -> dict[str, object]:
    return {field: read(reader, WORD.findall(element)) for field, element in FIELDS[key]}


@pytest.mark.parametrize(("value", "data"), GOLDENS, ids=lambda v: type(v).__name__)
def test_every_golden_record_can_be_read_by_the_page(value: object, data: bytes) -> None:
    reader = Reader(data)
    if reader.fixed16() == 2:
        assert int.from_bytes(reader.take(4), "little") == crc32(data[6:])
    payload = read_payload(reader, read_header(reader, type(value).__name__))
    reader.finish()
    for field, read_value in payload.items():
        stored = getattr(value, field, None)
        if isinstance(stored, int | float | str | bytes):
            assert read_value == stored, field


def test_the_page_has_the_fields_of_every_type() -> None:
    assert FIELDS.keys() == FORMATS.keys() - {("TypeTree", 1), ("TypeTree", 2)}


def test_the_page_lists_every_format_with_its_number_and_release() -> None:
    rows = re.findall(r"^\| (\d+) \| `(\w+)` \| (\d+) \| ([\d.]+) \|", PAGE, re.MULTILINE)
    listed = [(int(number), name, int(version), since) for number, name, version, since in rows]
    assert listed == [
        (layout.type_id, layout.of.__name__, layout.version, layout.since) for layout in formats()
    ]


def test_the_page_lists_every_kind_of_object() -> None:
    listed = PAGE[PAGE.index("The kinds with ids are") :]
    for kind in COLLECTIONS.keys() | APPEND_ONLY.keys():
        assert f"`{kind}`" in listed, kind


def test_the_page_gives_the_numbers_of_flags_and_kinds() -> None:
    words = " ".join(PAGE.split())
    assert ", ".join(f"{privilege.value} {privilege.name}" for privilege in Privilege) in words
    kinds = (f"{kind.value} {str(kind.name).lower().replace('_', ' ')}" for kind in ObjectKind)
    assert ", ".join(kinds) in words
