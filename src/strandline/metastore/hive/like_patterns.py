"""What ``like`` in a partition filter means: ``price $.*``.

Hive turns the pattern into one of SQL: ``.`` stands for one character and ``.*`` for any number of
them, newlines included; all else stands for itself. It looks like a regular expression and is none.
So ``price $.*`` is how Spark asks for the values that begin with ``price $``, and ``.*(.*`` for
those that hold a parenthesis.

Between two ``.*`` lies a piece of fixed length. The first piece must stand at the beginning and the
last at the end; each other one is taken at the first place where it fits, which is never worse than
a later one. So nothing is tried twice, and the time is bounded by the length of the pattern times
that of the value.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeAlias

from strandline.errors import LimitExceeded

MAX_LIKE_LENGTH = 4_096
"""Characters."""

_Find: TypeAlias = Callable[[str, int], int]
"""Where a piece of a pattern begins in a text, at or behind a position; -1 if it does not occur."""


def like(pattern: str) -> Callable[[str], bool]:
    """The test whether a whole value fits. Raises `LimitExceeded` on a pattern that is too long."""
    if len(pattern) > MAX_LIKE_LENGTH:
        raise LimitExceeded(
            f"a pattern of 'like' may have {MAX_LIKE_LENGTH} characters, found {len(pattern)}"
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
    """The regular expression of a piece. Its length is fixed, so matching tries nothing twice."""
    return re.compile(".".join(map(re.escape, piece.split("."))), re.DOTALL)


def _find(piece: str) -> _Find:
    if "." not in piece:
        return lambda value, behind: value.find(piece, behind)
    search = _compiled(piece).search

    def find(value: str, behind: int) -> int:
        match = search(value, behind)
        return -1 if match is None else match.start()

    return find
