r"""Patterns that clients send: for names (``SHOW TABLES LIKE``), and for ``like`` in a filter.

**Names**: ``flights|air*``. Hive's rule: ``|`` separates alternatives, ``*`` matches any
characters, everything else is a regular expression (so a dot matches one character), and case is
ignored. If there is no pattern, every name matches; an empty pattern matches none.

Clients choose the expressions, and thirty characters can keep a backtracking matcher (Java's,
Python's) busy for years. RE2 matches in time at most proportional to the size of the compiled
pattern times the length of the text. It is used through pyarrow, which compares a whole list of
names in one call and lets other threads run meanwhile. Two numbers bound the cost of a request: the
*weight* of its pattern, an upper bound of the number of steps that RE2 compiles it into, and the
*work*, which is the weight times the characters of the names. RE2 has neither back references nor
look-around. Unicode classes (``\p``) are refused because one weighs as much as a long pattern;
``\Q`` and ``&&`` are refused because RE2 interprets them differently than Java.

**like** in a partition filter: ``price $.*``. ``.`` matches one character, ``.*`` any number of
characters, newlines included; everything else matches itself. So ``price $.*`` is how Spark asks
for the values that begin with ``price $``. The pieces between ``.*`` have a fixed length. The first
piece must match at the beginning and the last at the end. Each other piece is matched at the first
possible place, which is never worse than a later one. So no piece is tried twice.

Rejected: an automaton of our own in Python (seconds for a pattern of 3 KB); the package google-re2,
which reports the true size but is one more dependency and takes fifty times as long for each name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from math import prod
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from strandline.errors import InvalidInput, LimitExceeded, cut
from strandline.metastore.store.file_columns import texts

MAX_PATTERN_LENGTH = 1_024
"""The maximum number of characters of all alternatives together."""
MAX_WEIGHT = 16_384
MAX_WORK = 1 << 30
"""Weight times the characters of the names: about two seconds in the worst case."""

_STEPS_OF_LETTER, _STEPS_OF_OTHER = 4, 15
"""The maximum number of steps into which RE2 compiles one character: a ``k`` in any case; a dot."""
_QUICK_WORK = 1 << 18
"""The work that takes less than a millisecond, even where RE2 is slow."""
_PLAIN = re.compile(r"[\w\- ]*")
_LETTER = re.compile(r"[A-Za-z0-9_]")
_COUNT = re.compile(r"\{([0-9]+)(?:,([0-9]*))?\}")
_REFUSED = re.compile(r"\\[pPQE]|&&")


class NamePattern:
    """A pattern that chooses among names. Raises `InvalidInput` if it is wrong."""

    def __init__(self, pattern: str | None) -> None:
        self._all = pattern is None or pattern in ("*", ".*")
        text = "" if pattern is None or self._all else pattern.strip()
        if len(text) > MAX_PATTERN_LENGTH:
            raise LimitExceeded(
                f"a name pattern has at most {MAX_PATTERN_LENGTH} characters, this one has "
                f"{len(text)}"
            )
        parts = [part for part in text.split("|") if part]
        self._plain = frozenset(part.lower() for part in parts if _PLAIN.fullmatch(part))
        self._parts = [part.replace("*", ".*") for part in parts if not _PLAIN.fullmatch(part)]
        self.weight = sum(map(_weight, self._parts))
        if self.weight > MAX_WEIGHT:
            raise LimitExceeded(
                f"the pattern {cut(text, 200)!r} is too expensive: its characters times its "
                f"repetitions are {self.weight}, at most {MAX_WEIGHT} are allowed; write a "
                "shorter pattern"
            )

    def is_quick(self, names: Sequence[str]) -> bool:
        """Whether the pattern may choose among these names on the event loop."""
        return self._work(names) <= _QUICK_WORK

    def choose(self, names: Sequence[str]) -> list[str]:
        """Return the names that match, in their order. Raises `InvalidInput` if it is wrong."""
        if self._all:
            return list(names)
        if not self._parts:
            return [name for name in names if name.lower() in self._plain]
        if self._work(names) > MAX_WORK:
            raise LimitExceeded(
                f"a pattern of weight {self.weight} is too expensive for {len(names)} names; "
                "write a shorter one"
            )
        for part in self._parts:  # each alone: joined, one part could close a group of another
            _matches([""], part)
        fits = _matches(names, "|".join(f"(?:{part})" for part in self._parts))
        return [
            name
            for name, chosen in zip(names, fits, strict=True)
            if chosen or name.lower() in self._plain
        ]

    def _work(self, names: Sequence[str]) -> int:
        return self.weight * (sum(map(len, names)) + 1)


def _weight(part: str) -> int:
    """Return an upper bound of the steps of the compiled pattern. Repetitions are multiplied as if
    each were nested in the others.
    """
    if refused := _REFUSED.search(part):
        raise InvalidInput(
            f"the regular expression {cut(part, 200)!r} is not supported: found {refused[0]!r} at "
            f"position {refused.start()}"
        )
    counts = [max(map(int, filter(None, count.groups()))) for count in _COUNT.finditer(part)]
    letters = len(_LETTER.findall(part))
    steps = letters * _STEPS_OF_LETTER + (len(part) - letters) * _STEPS_OF_OTHER
    return steps * prod(max(count, 1) for count in counts)


def _matches(names: Sequence[str], expression: str) -> list[bool]:
    try:
        matched = pc.match_substring_regex(texts(names), rf"\A(?:{expression})\z", ignore_case=True)
    except pa.ArrowInvalid as error:
        reason = str(error).partition("Invalid regular expression: ")[2] or str(error)
        raise InvalidInput(
            f"the regular expression {cut(expression, 200)!r} is invalid or not supported: {reason}"
        ) from None
    matches: list[bool] = matched.to_pylist()
    return matches


MAX_LIKE_LENGTH = 4_096
"""The maximum number of characters of a pattern of ``like``."""

_Find: TypeAlias = Callable[[str, int], int]
"""Finds a piece of a pattern in a text, from a position on. Returns its position, or -1."""


def like(pattern: str) -> Callable[[str], bool]:
    """Return a test whether a whole value matches. Raises `LimitExceeded` if too long."""
    if len(pattern) > MAX_LIKE_LENGTH:
        raise LimitExceeded(
            f"a pattern of 'like' has at most {MAX_LIKE_LENGTH} characters, this one has "
            f"{len(pattern)}"
        )
    first, *others = pattern.split(".*")
    begins = _compiled(first)
    if not others:
        return lambda value: begins.fullmatch(value) is not None
    ends, last_size = _compiled(others[-1]), len(others[-1])
    finds = [(_find(piece), len(piece)) for piece in others[:-1] if piece]

    def fits(value: str) -> bool:
        behind, last_at = len(first), len(value) - last_size
        if behind > last_at or not begins.match(value) or not ends.match(value, last_at):
            return False
        for find, size in finds:
            at = find(value, behind)
            if at < 0:
                return False
            behind = at + size
        return behind <= last_at

    return fits


def _compiled(piece: str) -> re.Pattern[str]:
    """Return the regular expression of a piece. It has a fixed length, so it never backtracks."""
    return re.compile(".".join(map(re.escape, piece.split("."))), re.DOTALL)


def _find(piece: str) -> _Find:
    if "." not in piece:
        return lambda value, behind: value.find(piece, behind)
    search = _compiled(piece).search

    def find(value: str, behind: int) -> int:
        match = search(value, behind)
        return -1 if match is None else match.start()

    return find
