"""A place: where the files of a schema or a managed table lie.

A place is one value with one text, so equal places are equal values. Every place that Strandline
chooses lies below the warehouse of its store, and is kept relative to it, so that a store can be
moved and copied:

    <table>                       a table of the schema ``default``
    <schema>.db                   a schema
    <schema>.db/<table>           a table of that schema
    .dropped/<table id>           a dropped table, beside the folders of the tables

No other part begins with a dot, and no table directly below the warehouse ends in ``.db``. So two
own places of tables are equal or apart: none lies in another. Any other text (a URI, an absolute
path) is a place that a user named; nothing there is ever moved or removed.

Who decides a place: that of a schema is chosen when the schema is created, from the catalog that
the command is judged by. That of a managed table is a fact outside the catalog, which the
projection alone decides (`strandline.metastore.store.folder_effects`).
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
"""The folder, beside those of the tables, that keeps what was dropped."""
SCHEMA_SUFFIX = ".db"
"""What the name of a schema's folder ends in."""
_WAREHOUSE = "."
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_LONGEST_FOLDER_NAME = 240
"""Characters, all ASCII; the rest of 255 is for what stands behind the name of a schema."""
_HASH_DIGITS = 16
_PLAIN_FOLDER_NAME = re.compile(r"[a-z0-9_][a-z0-9_.~-]*")
"""What nearly all names are, of which nothing is escaped."""


@dataclass(frozen=True, slots=True)
class Place:
    """See the module. ``text`` is as it is stored: relative to the warehouse, or a URI or path."""

    text: str

    @classmethod
    def below(cls, path: str) -> Place:
        """The place with this path below the warehouse; an empty one is the warehouse."""
        # A first part that looks like the scheme of a URI would be read back as one.
        return cls(f"./{path}" if _SCHEME.match(path) else path or _WAREHOUSE)

    @property
    def is_inside(self) -> bool:
        """Whether it lies in the warehouse."""
        return _form_of(self.text).is_inside

    @property
    def path(self) -> str:
        """The path below the warehouse, of a place inside it."""
        return _form_of(self.text).path

    @property
    def is_of_schema(self) -> bool:
        """Whether it has the form of a schema's own place, or is the warehouse."""
        return _form_of(self.text).is_of_schema

    @property
    def is_of_table(self) -> bool:
        """Whether it has the form of a table's own place, dropped or not."""
        return _form_of(self.text).is_of_table

    def aside(self, table_id: int) -> Place:
        """Where the folder of the table at this place goes when the table is dropped."""
        dropped = f"{DROPPED}/{table_id}"
        if self.text == dropped or self.text.endswith(f"/{dropped}"):
            return self  # it could not be moved back when the table was restored
        parent, slash, _ = self.text.rpartition("/")
        return Place(f"{parent}{slash}{dropped}")

    def back(self, table_id: int, name: str) -> Place:
        """Where the folder of a dropped table goes when the table is restored under that name."""
        dropped = f"{DROPPED}/{table_id}"
        if self.text != dropped and not self.text.endswith(f"/{dropped}"):
            return self
        return Place(f"{self.text.removesuffix(dropped)}{table_folder(name)}")

    def beside(self, table_id: int) -> Iterator[Place]:
        """Where a table may lie that cannot lie here, the first choice first."""
        first = f"{self.text}~{table_id}"
        return (Place(text) for text in chain([first], (f"{first}~{n}" for n in count(2))))


class _Form(NamedTuple):
    """What the properties of a `Place` say."""

    is_inside: bool
    path: str
    is_of_schema: bool
    is_of_table: bool


@lru_cache(maxsize=1024)  # of one place, these are asked for many times in a row
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
    """Where a new schema of that name may lie, the first choice first."""
    folder = _folder_name(name)
    numbered = (f"{folder}~{number}{SCHEMA_SUFFIX}" for number in count(2))
    return (Place.below(path) for path in chain([f"{folder}{SCHEMA_SUFFIX}"], numbered))


def place_of_table(schema: Place, name: str, *, schema_name: str) -> Place:
    """Where a managed table lies unless something else is there already.

    In the place of its schema; where a user named that, in the one that such a schema would get.
    """
    if not schema.is_of_schema:
        schema = next(places_of_schema(schema_name))
    return Place.below(f"{schema.path}/{table_folder(name)}" if schema.path else table_folder(name))


def table_folder(name: str) -> str:
    """The last part of the place of a table of that name."""
    folder = _folder_name(name)
    if folder.endswith(SCHEMA_SUFFIX):  # only folders of schemas do
        folder = f"{folder.removesuffix(SCHEMA_SUFFIX)}%2E{SCHEMA_SUFFIX[1:]}"
    return folder


def _is_schema(part: str) -> bool:
    return part.endswith(SCHEMA_SUFFIX) and not part.startswith(".") and "/" not in part


def _folder_name(name: str) -> str:
    """A name as one part of a path: lower case, with nothing in it that leads elsewhere.

    A leading dot is escaped too: such folders are ours (``.dropped``) or mean another one (``..``).
    What would be too long for a file system ends in a hash of the name.
    """
    lower = name.lower()
    if len(lower) <= _LONGEST_FOLDER_NAME and _PLAIN_FOLDER_NAME.fullmatch(lower):
        return lower
    escaped = quote(lower, safe="", errors="surrogatepass")
    if len(escaped) > _LONGEST_FOLDER_NAME:
        digest = hashlib.sha256(escaped.encode()).hexdigest()[:_HASH_DIGITS]
        kept = re.sub("%.?$", "", escaped[: _LONGEST_FOLDER_NAME - _HASH_DIGITS - 1])
        escaped = f"{kept}~{digest}"
    return f"%2E{escaped[1:]}" if escaped.startswith(".") else escaped
