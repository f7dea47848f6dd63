"""The page on the wire format is enough to read every golden record."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest

from strandline.wire import Reader, formats
from strandline.wire.types import DATA_TYPE
from tests.golden import goldens_metastore, test_golden_0_1_0
from tests.project.checkout import ROOT

GOLDENS = test_golden_0_1_0.GOLDEN + goldens_metastore.GOLDEN
WORD = re.compile(r"\w+|[(),]")
CLASSES = {one.of.__name__: one for one in formats()}


def fields_of_types() -> dict[str, list[tuple[str, str]]]:
    """Name and element of each field, by type, in the order in which the page gives them."""
    text = (ROOT / "docs/reference/wire-format.md").read_text(encoding="utf-8")
    found = {}
    for row in re.findall(r"^\| `(\w+)` \| (\w.*`.*) \|$", text, re.MULTILINE):
        if row[0] in CLASSES:
            found[row[0]] = list(fields_of(row[1]))
    return found


def fields_of(cell: str) -> Iterator[tuple[str, str]]:
    for part in cell.split("; "):
        what, element, *_ = part.split("`")
        names = what.partition(":")[0].split(", ") if "each" in what else [what]
        for name in names:
            yield name.strip().replace(" ", "_"), element


FIELDS = fields_of_types()


def read(reader: Reader, words: list[str]) -> object:
    """Read one element, whose description is taken off the front of ``words``."""
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
        case "UINT" | "enum":
            return reader.uint()
        case "SINT":
            raw = reader.uint()
            return -(raw + 1) // 2 if raw % 2 else raw // 2
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
            read_header(reader, inner[0])
            return read_payload(reader, inner[0])
        case "list":
            count = reader.uint()
            if count:
                read_header(reader, inner[0])
            return tuple(read_payload(reader, inner[0]) for _ in range(count))
    raise AssertionError(f"the page knows no element {name!r}")


def read_header(reader: Reader, name: str) -> None:
    one = CLASSES[name]
    assert (reader.fixed16(), reader.uint()) == (one.type_id, one.version)


def read_payload(reader: Reader, name: str) -> dict[str, object]:
    return {field: read(reader, WORD.findall(element)) for field, element in FIELDS[name]}


@pytest.mark.parametrize(("value", "data"), GOLDENS, ids=lambda v: type(v).__name__)
def test_the_page_reads_every_golden_record(value: object, data: bytes) -> None:
    reader = Reader(data)
    assert reader.fixed16() == 1
    read_header(reader, type(value).__name__)
    found = read_payload(reader, type(value).__name__)
    reader.finish()
    for field, read_value in found.items():
        held = getattr(value, field, None)
        if isinstance(held, int | str | bytes):
            assert read_value == held, field


def test_the_page_has_the_fields_of_every_type() -> None:
    assert FIELDS.keys() == CLASSES.keys() - {"TypeTree"}
