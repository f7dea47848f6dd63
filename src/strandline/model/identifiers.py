"""Names: which are allowed, and when two are equal.

Names keep their case and are compared without it: `normalize` returns the form in which the catalog
keeps names unique. It uses Unicode case folding, not lower case, because Spark treats two names as
equal if either their upper or their lower case agrees.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass

from strandline.errors import InvalidName, UnsupportedOperation
from strandline.model.type_text import quote_name

MAX_NAME_LENGTH = 255
"""In characters. A name often becomes the name of a folder."""
MAX_COLUMN_NAME_LENGTH = 767
"""In characters, as in Hive. The name of a partition column of a plain table is part of a folder's
name, and has at most `MAX_NAME_LENGTH`."""
MAX_USER_LENGTH = 255

_REFUSED_CATEGORIES = frozenset({"Cc", "Cs", "Zl", "Zp"})
_PART = re.compile(r"`((?:[^`]|``)*+)`|([^`.\s]+)")
_VERSION = re.compile(r"[0-9]{1,18}")
VERSION_MARK = "@"
"""In the Hive protocol, which has no versions, it stands before the version of a schema."""
SCAN_PREFIX = "_strandline_"
# In place of a column with the last name, Spark returns the position of the row in its file.
_SCAN_NAMES = ("_file", "_metadata", "_tmp_metadata_row_index")


def normalize(name: str) -> str:
    """Return the form in which names are compared. Two names are the same if it is equal."""
    return name.lower() if name.isascii() else name.casefold()


def version_number(text: str) -> int | None:
    """The version that ``text`` names by its number, or None: a number has at most 18 digits."""
    return int(text) if _VERSION.fullmatch(text) else None


def check_name(name: str, what: str, *, longest: int = MAX_NAME_LENGTH) -> None:
    """Raise `InvalidName` unless ``name`` may name a ``what`` ("schema", "table", …).

    A name must not be empty or blank, be longer than ``longest``, begin or end with a space, or
    contain control characters or line breaks.
    """
    if name.isprintable() and name == name.strip() and 0 < len(name) <= longest:
        return  # the fast path for nearly all names
    if not name.strip():
        raise InvalidName(f"the name of a {what} must not be empty or blank, found {name!r}")
    if len(name) > longest:
        raise InvalidName(
            f"the name of a {what} may have at most {longest} characters, found "
            f"{len(name)}: {name[:40]!r}…"
        )
    if not name.isprintable():
        for position, character in enumerate(name):
            if unicodedata.category(character) in _REFUSED_CATEGORIES:
                raise InvalidName(
                    f"the name of a {what} must not contain control characters, found "
                    f"{character!r} at position {position} of {name!r}"
                )
    if name != name.strip():
        raise InvalidName(f"the name of a {what} must not begin or end with a space: {name!r}")


def check_versioned_name(name: str, what: str) -> None:
    """`check_name` for a new schema, table or view, whose name must not contain an ``@``.

    With it, Hive clients name a version of a schema, and a node names the files of a table that it
    shows as a view. A table of that name would be read in place of the files.
    """
    check_name(name, what)
    if VERSION_MARK in name:
        raise InvalidName(
            f"the name of a {what} must not contain {VERSION_MARK}, which stands before a version "
            f"(schema@42): {name!r}"
        )


def check_column_name(name: str, what: str = "column") -> None:
    """`check_name` for a column, or a field inside one."""
    check_name(name, what, longest=MAX_COLUMN_NAME_LENGTH)


def check_scan_name(name: str) -> None:
    """Raise `UnsupportedOperation` for a column name that is reserved for scans of data files."""
    plain = normalize(name)
    if plain in _SCAN_NAMES or plain.startswith(SCAN_PREFIX):
        raise UnsupportedOperation(
            f"a column of a transactional table cannot be named {name!r}; reserved are"
            f" {', '.join(_SCAN_NAMES)} and names that begin with {SCAN_PREFIX}"
        )


@dataclass(frozen=True, slots=True)
class QualifiedName:
    """``schema.name``, printed with backticks where SQL needs them."""

    schema: str
    name: str

    @classmethod
    def parse(cls, text: str, *, default_schema: str | None = None) -> QualifiedName:
        """Return the name in ``text``, like ``a.b`` or ``a.`b c` ``. Inside, backticks are doubled.

        A name of one part belongs to ``default_schema``. Raises `InvalidName` for another form.
        """
        parts = _parts(text)
        if len(parts) == 1 and default_schema is not None:
            parts.insert(0, default_schema)
        if len(parts) != 2:
            dots = "; write a part with a dot in backticks" if len(parts) > 2 else ""
            raise InvalidName(f"expected a name like schema.table, found {text!r}{dots}")
        return cls(*parts)

    def __str__(self) -> str:
        return f"{quote_name(self.schema)}.{quote_name(self.name)}"


def _parts(text: str) -> list[str]:
    if not isinstance(text, str):
        raise InvalidName(f"a name is a text like 'schema.table', not {text!r:.80}")
    parts: list[str] = []
    at = 0
    while True:
        match = _PART.match(text, at)
        if match is None:
            raise InvalidName(
                f"{text!r} is not a name: expected a word or a name in backticks at position {at}"
            )
        part = match[2] if match[1] is None else match[1].replace("``", "`")
        check_name(part, "schema or table")
        parts.append(part)
        at = match.end()
        if at == len(text):
            return parts
        if text[at] != ".":
            raise InvalidName(f"{text!r} is not a name: expected '.' at position {at}")
        at += 1
