"""Definitions of tables and views as text, written once for many that differ in name and place.

The problem: an event about a table holds its whole definition, and a client that has fallen behind
asks for thousands of them. To decode one of twenty columns, to make its struct and to write that
takes half a millisecond. What makes tables in numbers gives them the same columns, so their
records differ in a few bytes.

So a definition is not decoded if its record has, behind id and name, the bytes of one that was
written before: then its text is that one's with another name and place. A text with blanks is made
by writing a definition whose name and place are *marks*, and by cutting where these came out.
A mark holds half of a surrogate pair, which no text that is kept has.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from json.encoder import encode_basestring
from typing import Any

from strandline.errors import CorruptData
from strandline.metastore.hive.conversion import table_struct, view_struct
from strandline.metastore.hive.storage import Struct
from strandline.metastore.hive.transactional import transactional_struct
from strandline.metastore.thrift.codec import HIVE_CODEC
from strandline.model.descriptors import TableDescriptor, ViewDescriptor
from strandline.wire import decode
from strandline.wire.codecs import TEXT
from strandline.wire.registry import open_record

NAME = "\ud800name"
PLACE = "file:/\ud801place"
"""Marks: what a definition says in the place of its name, and of where it lies."""
_CUT = re.compile("(\ud800name|file:/\ud801place)")

FORMS = 16
"""Texts with blanks that are remembered at once."""

_CLASSES: dict[str, type[TableDescriptor] | type[ViewDescriptor]] = {
    "table": TableDescriptor,
    "view": ViewDescriptor,
}


class Form:
    """A text with blanks for a name and a place. ``text`` holds marks."""

    def __init__(self, text: str) -> None:
        self._pieces = _CUT.split(text)
        self._names = [n for n, piece in enumerate(self._pieces) if piece == NAME]
        self._places = [n for n, piece in enumerate(self._pieces) if piece == PLACE]

    def filled(self, *, name: str = "", place: str = "") -> str:
        """The text with both filled in."""
        pieces = self._pieces.copy()
        for blanks, value in ((self._names, name), (self._places, place)):
            text = encode_basestring(value)[1:-1]
            for blank in blanks:
                pieces[blank] = text
        return "".join(pieces)


@dataclass(frozen=True, slots=True)
class Definition:
    """A record of a table or a view of which the head alone was read."""

    kind: str
    id: int
    name: str
    rest: tuple[int, bytes]
    """The version of its format, and all bytes behind the name."""
    record: bytes


def definition(kind: str, record: bytes) -> Definition:
    """Read the head of a record of a table or view. Raises `CorruptData`, `IncompatibleFormat`."""
    found, reader = open_record(record)
    if found.of is not _CLASSES[kind]:
        raise CorruptData(f"a {found.of.__name__} record where a {kind} belongs")
    id_, _parent, name = reader.uint(), reader.uint(), TEXT.read(reader)
    return Definition(kind, id_, name, (found.version, record[reader.position :]), record)


@dataclass(frozen=True, slots=True)
class _Kept:
    table_type: str
    form: Form
    is_placed: bool
    """Whether the definition does not say where the table lies."""


@dataclass(frozen=True, slots=True)
class DefinitionText:
    """What an event says of a definition: the type, and the text of its ``Table``."""

    table_type: str
    text: str


class DefinitionTexts:
    """See the module. ``place_of`` gives the place of a managed table, ``shown`` that of any."""

    def __init__(self, place_of: Callable[[int], str], shown: Callable[[str], str]) -> None:
        self._place_of = place_of
        self._shown = shown
        self._kept: dict[tuple[str, str, tuple[int, bytes]], _Kept] = {}

    def text(self, schema: str, of: Definition) -> DefinitionText:
        """The text of a table or view under the schema name ``schema``."""
        key = schema, of.kind, of.rest
        kept = self._kept.get(key)
        if kept is None:
            kept = self._keep(schema, of)
            if len(self._kept) >= FORMS:
                del self._kept[next(iter(self._kept))]
            self._kept[key] = kept
        place = self._place_of(of.id) if kept.is_placed else ""
        return DefinitionText(kept.table_type, kept.form.filled(name=of.name.lower(), place=place))

    def _keep(self, schema: str, of: Definition) -> _Kept:
        relation: Any = decode(of.record, _CLASSES[of.kind])
        placed = isinstance(relation, TableDescriptor) and not relation.location
        struct = relation_struct(
            replace(relation, name=NAME),
            schema=schema,
            place=PLACE if placed else self._shown(getattr(relation, "location", "") or "/"),
        )
        return _Kept(struct["tableType"], Form(HIVE_CODEC.to_json_form("Table", struct)), placed)


def relation_struct(
    relation: TableDescriptor | ViewDescriptor, *, schema: str, place: str
) -> Struct:
    """The ``Table`` in an event; ``place`` is where a table lies."""
    if isinstance(relation, ViewDescriptor):
        return view_struct(relation, schema=schema)
    if relation.transactional:
        return transactional_struct(
            relation, schema=schema, location=place, counted=(), identity=None
        )
    return table_struct(relation, schema=schema, location=place, counted=())
