"""A place: the folder with the files of a schema or a managed table.

A place is a value with exactly one text, so equal places compare equal. Every place that Strandline
chooses is below the warehouse of its store and is stored relative to it, so that a store can be
moved and copied:

    <table>                       a table of the schema ``default``
    <schema>.db                   a schema
    <schema>.db/<table>           a table of that schema
    .dropped/<table id>           a dropped table, beside the folders of the tables

No other part begins with a dot, and the folder of a table directly below the warehouse never ends
in ``.db``. So two table places of this form are either equal or separate: none is inside another.
Any other text (a URI, an absolute path) is a place that a user chose. Strandline never moves or
removes anything there.

The place of a schema is chosen when the schema is created, from the catalog that the command is
validated against. The place of a managed table is not part of the catalog; only the projection
decides it (`strandline.metastore.store.folder_effects`).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, count
from typing import NamedTuple
from urllib.parse import quote

DROPPED = ".dropped"
"""The folder of dropped tables, next to the folders of the tables."""
SCHEMA_SUFFIX = ".db"
"""The suffix of a schema's folder."""
_WAREHOUSE = "."
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_LONGEST_FOLDER_NAME = 240
"""In characters, all ASCII. The rest of 255 is for suffixes after a schema's name."""
_HASH_DIGITS = 16
_PLAIN_FOLDER_NAME = re.compile(r"[a-z0-9_][a-z0-9_.~-]*")
"""The form of nearly all names; it needs no escaping."""


@dataclass(frozen=True, slots=True)
class Place:
    """A place; see the module. ``text`` is relative to the warehouse, a URI or an absolute path."""

    text: str

    @classmethod
    def below(cls, path: str) -> Place:
        """Return the place with this path below the warehouse. "" is the warehouse itself."""
        # Without "./", a first part that looks like a URI scheme would be read as one.
        return cls(f"./{path}" if _SCHEME.match(path) else path or _WAREHOUSE)

    @property
    def is_inside(self) -> bool:
        return _form_of(self.text).is_inside

    @property
    def path(self) -> str:
        """The path below the warehouse, for a place inside it."""
        return _form_of(self.text).path

    @property
    def is_of_schema(self) -> bool:
        """Whether Strandline chooses such a place for a schema, or the place is the warehouse."""
        return _form_of(self.text).is_of_schema

    @property
    def is_of_table(self) -> bool:
        """Whether Strandline chooses such a place for a table, dropped or not."""
        return _form_of(self.text).is_of_table

    def aside(self, table_id: int) -> Place:
        """Return where the folder of the table at this place goes when the table is dropped."""
        dropped = f"{DROPPED}/{table_id}"
        if self.text == dropped or self.text.endswith(f"/{dropped}"):
            return self  # a restore of the table could not move its folder back
        parent, slash, _ = self.text.rpartition("/")
        return Place(f"{parent}{slash}{dropped}")

    def back(self, table_id: int, name: str) -> Place:
        """Return where a dropped table's folder goes when the table is restored as ``name``."""
        dropped = f"{DROPPED}/{table_id}"
        if self.text != dropped and not self.text.endswith(f"/{dropped}"):
            return self
        return Place(f"{self.text.removesuffix(dropped)}{table_folder(name)}")

    def beside(self, table_id: int) -> Iterator[Place]:
        """Iterate over alternative places for a table if this place is taken, best first."""
        first = f"{self.text}~{table_id}"
        return (Place(text) for text in chain([first], (f"{first}~{n}" for n in count(2))))


class _Form(NamedTuple):
    """The values of the properties of a `Place`."""

    is_inside: bool
    path: str
    is_of_schema: bool
    is_of_table: bool


@lru_cache(maxsize=1024)  # callers read the properties of one place many times in a row
def _form_of(text: str) -> _Form:
    is_inside = not text.startswith("/") and not _SCHEME.match(text)
    path = "" if text == _WAREHOUSE else text.removeprefix("./")
    is_of_schema = is_inside and (not path or _is_schema(path))
    return _Form(is_inside, path, is_of_schema, is_inside and _is_of_table(path))


def _is_of_table(path: str) -> bool:
    parts = path.split("/")
    if len(parts) > 1 and _is_schema(parts[0]):
        del parts[0]
    elif parts[0].endswith(SCHEMA_SUFFIX):
        return False
    if len(parts) == 2:
        return parts[0] == DROPPED and parts[1].isascii() and parts[1].isdecimal()
    return len(parts) == 1 and bool(parts[0]) and not parts[0].startswith(".")


def places_of_schema(name: str) -> Iterator[Place]:
    """Iterate over the possible places of a new schema with this name, best first."""
    folder = _folder_name(name)
    numbered = (f"{folder}~{number}{SCHEMA_SUFFIX}" for number in count(2))
    return (Place.below(path) for path in chain([f"{folder}{SCHEMA_SUFFIX}"], numbered))


def place_of_table(schema: Place, name: str, *, schema_name: str) -> Place:
    """Return the place of a managed table, unless something else is already there.

    It is in the schema's place. If a user chose the schema's place, it is in the place that
    Strandline would choose for the schema.
    """
    if not schema.is_of_schema:
        schema = next(places_of_schema(schema_name))
    return Place.below(f"{schema.path}/{table_folder(name)}" if schema.path else table_folder(name))


def table_folder(name: str) -> str:
    """Return the last part of the place of a table with this name."""
    folder = _folder_name(name)
    if folder.endswith(SCHEMA_SUFFIX):  # reserved for folders of schemas
        folder = f"{folder.removesuffix(SCHEMA_SUFFIX)}%2E{SCHEMA_SUFFIX[1:]}"
    return folder


def _is_schema(part: str) -> bool:
    return part.endswith(SCHEMA_SUFFIX) and not part.startswith(".") and "/" not in part


def _folder_name(name: str) -> str:
    """Return a name as one part of a path: lower case, special characters escaped.

    A leading dot is escaped too, because such folders are reserved (``.dropped``) or refer to
    another folder (``..``). A name too long for a file system is cut and ends in its hash.
    """
    lower = name.lower()
    if len(lower) <= _LONGEST_FOLDER_NAME and _PLAIN_FOLDER_NAME.fullmatch(lower):
        return lower
    escaped = quote(lower, safe="", errors="surrogatepass")
    if len(escaped) > _LONGEST_FOLDER_NAME:
        digest = hashlib.sha256(escaped.encode()).hexdigest()[:_HASH_DIGITS]
        kept_part = re.sub("%.?$", "", escaped[: _LONGEST_FOLDER_NAME - _HASH_DIGITS - 1])
        escaped = f"{kept_part}~{digest}"
    return f"%2E{escaped[1:]}" if escaped.startswith(".") else escaped
