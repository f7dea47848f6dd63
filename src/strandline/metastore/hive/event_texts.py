"""Texts of table and view definitions, written once for many that differ only in name and place.

The problem: an event about a table contains its whole definition, and a client that has fallen
behind asks for thousands of events. Decoding a definition of twenty columns, building its struct
and writing the text takes half a millisecond. A program that creates many tables gives them the
same columns, so their records differ only in a few bytes.

The model: a definition is not decoded if its record has the same bytes after id and name as a
record whose text was written before. Its text is then the earlier text with another name and place.
Such a text with blanks is a `Form`. It is made by writing a definition whose name and place are
*marks*, and by splitting the text at the marks. A mark contains half of a surrogate pair, which no
stored text contains.

A message contains such a text as a JSON string, and quoting it costs more than everything else. So
it is quoted before it is split (`Quoted`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from json.encoder import encode_basestring
from typing import Any, NamedTuple

from strandline.errors import CorruptData
from strandline.metastore.hive.storage_descriptors import Struct
from strandline.metastore.hive.table_structs import table_struct, view_struct
from strandline.metastore.hive.transactional_tables import transactional_struct
from strandline.metastore.thrift.codec import HIVE_CODEC
from strandline.model.descriptors import TableDescriptor, ViewDescriptor
from strandline.wire import decode
from strandline.wire.codecs import TEXT
from strandline.wire.registry import open_record

NAME = "\ud800name"
PLACE = "file:/\ud801place"
"""Marks, which are written instead of the name and the place of a definition."""
_CUT = re.compile("(\ud800name|file:/\ud801place)")

_write_json = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode

FORMS = 16
"""The maximum number of forms that are kept at once."""

_CLASSES: dict[str, type[TableDescriptor] | type[ViewDescriptor]] = {
    "table": TableDescriptor,
    "view": ViewDescriptor,
}


class Quoted(str):
    """The JSON text of a value."""

    __slots__ = ()


class Form:
    """A text with blanks for a name and a place. ``text`` contains marks in these places.

    ``depth`` is how often the text was quoted. The values that fill the blanks are quoted as often.
    """

    def __init__(self, text: str, *, depth: int = 1) -> None:
        self._depth = depth
        self._pieces = _CUT.split(text)
        self._names = [n for n, piece in enumerate(self._pieces) if piece == NAME]
        self._places = [n for n, piece in enumerate(self._pieces) if piece == PLACE]

    def filled(self, *, name: str = "", place: str = "") -> str:
        """Return the text with both filled in."""
        pieces = self._pieces.copy()
        for blanks, value in ((self._names, name), (self._places, place)):
            text = encode_basestring(value)[1:-1]
            if text != value:  # otherwise it contains nothing to quote, at any depth
                for _ in range(1, self._depth):
                    text = encode_basestring(text)[1:-1]
            for blank in blanks:
                pieces[blank] = text
        return "".join(pieces)


class Definition(NamedTuple):
    """A record of a table or view of which only the head was read.

    ``rest`` is the version of its format, and all bytes after the name.
    """

    kind: str
    id: int
    schema_id: int
    name: str
    rest: tuple[int, bytes]
    record: bytes


def definition(kind: str, record: bytes) -> Definition:
    """Read the head of a record of a table or view. Raises `CorruptData`, `IncompatibleFormat`."""
    serializer, reader = open_record(record)
    if serializer.of is not _CLASSES[kind]:
        raise CorruptData(f"expected a {kind}, found a {serializer.of.__name__} record")
    id_, schema_id, name = reader.uint(), reader.uint(), TEXT.read(reader)
    rest = serializer.version, record[reader.position :]
    return Definition(kind, id_, schema_id, name, rest, record)


@dataclass(frozen=True, slots=True)
class _TextForm:
    table_type: str
    text: Form
    is_placed: bool
    """Whether the text has a blank for the place: a table without a location of its own."""


class DefinitionText(NamedTuple):
    """A definition as an event shows it: the table type, and the text of its ``Table``."""

    table_type: str
    text: Quoted


class DefinitionTexts:
    """See the module. ``place_of`` returns a managed table's place, ``shown`` maps any place."""

    def __init__(self, place_of: Callable[[int], str], shown: Callable[[str], str]) -> None:
        self._place_of = place_of
        self._shown = shown
        self._forms: dict[tuple[str, str, tuple[int, bytes]], _TextForm] = {}

    def text(self, schema: str, of: Definition) -> DefinitionText:
        key = schema, of.kind, of.rest
        form = self._forms.get(key)
        if form is None:
            form = self._form_of(schema, of)
            if len(self._forms) >= FORMS:
                del self._forms[next(iter(self._forms))]
            self._forms[key] = form
        place = self._place_of(of.id) if form.is_placed else ""
        text = form.text.filled(name=of.name.lower(), place=place)
        return DefinitionText(form.table_type, Quoted(text))

    def _form_of(self, schema: str, definition: Definition) -> _TextForm:
        relation: Any = decode(definition.record, _CLASSES[definition.kind])
        placed = isinstance(relation, TableDescriptor) and not relation.location
        struct = relation_struct(
            replace(relation, name=NAME),
            schema=schema,
            place=PLACE if placed else self._shown(getattr(relation, "location", "") or "/"),
        )
        text = encode_basestring(HIVE_CODEC.to_json_form("Table", struct))
        return _TextForm(struct["tableType"], Form(text, depth=2), placed)


def message_text(message: Mapping[str, object], seconds: int) -> str:
    """Return the message of an event with this time and these values, some of them `Quoted`."""
    values = "".join([f',"{name}":{_value_text(value)}' for name, value in message.items()])
    return f'{{"server":"","servicePrincipal":""{values},"timestamp":{seconds}}}'


def _value_text(value: object) -> str:
    if isinstance(value, Quoted):
        return value
    if isinstance(value, str):
        return encode_basestring(value)
    return repr(value) if value.__class__ is int else _write_json(value)


def relation_struct(
    relation: TableDescriptor | ViewDescriptor, *, schema: str, place: str
) -> Struct:
    """Return the ``Table`` in an event. ``place`` is the location of a table."""
    if isinstance(relation, ViewDescriptor):
        return view_struct(relation, schema=schema)
    if relation.transactional:
        return transactional_struct(relation, schema=schema, location=place)
    return table_struct(relation, schema=schema, location=place, counted=())
