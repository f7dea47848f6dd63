"""Reads long JSON texts in pieces.

The standard library reads a text in one call into C, which keeps the interpreter to itself: for a
body of 64 MiB, more than a second in which the event loop stands still. Here a long text is taken
apart in Python down to values that are short, and only these are read by the library. So the result
and the errors are the library's, and no call takes longer than `PIECE` characters need.

Also bounded: the values that are read one by one, and how deep long ones stand in each other.
"""

from __future__ import annotations

import re
from json import JSONDecodeError, JSONDecoder
from typing import Any

from strandline.errors import LimitExceeded

PIECE = 64 * 1024
"""Characters that the library reads at once; a text that is no longer is read whole."""
MAX_PIECES = 500_000
"""Values that are read one by one; numbers behind each other are not."""
MAX_DEPTH = 64
"""How deep values longer than a piece may stand in each other."""
_FIRST_WINDOW = 2 * 1024
_NUMBERS = re.compile(r"(?:-?[0-9][0-9.eE+-]*[ \t\n\r]*,[ \t\n\r]*){2,}")
_SPACE = re.compile(r"[ \t\n\r]*")


def read_in_pieces(text: str, decoder: JSONDecoder) -> Any:  # Any: JSON
    """The value of a JSON text. Raises what ``decoder.decode`` raises, and `LimitExceeded`."""
    if len(text) <= PIECE:
        return decoder.decode(text)
    reader = _Reader(text, decoder)
    value, end = reader.value(reader.space(0), 0)
    end = reader.space(end)
    if end < len(text):
        raise JSONDecodeError("Extra data", text, end)
    return value


class _Reader:
    def __init__(self, text: str, decoder: JSONDecoder) -> None:
        self._text = text
        self._decoder = decoder
        self._pieces = 0

    def space(self, at: int) -> int:
        """Where the next character stands that is no space."""
        spaces = _SPACE.match(self._text, at)
        assert spaces is not None  # it matches nothing, too
        return spaces.end()

    def value(self, at: int, depth: int) -> tuple[Any, int]:
        """The value that begins here, and where it ends."""
        self._pieces += 1
        if self._pieces > MAX_PIECES:
            raise LimitExceeded(
                f"the body holds more than {MAX_PIECES} values; send it in several calls"
            )
        text, first = self._text, self._text[at : at + 1]
        if first not in ("{", "["):
            return self._decoder.raw_decode(text, at)  # as long as it is itself
        for size in (_FIRST_WINDOW, PIECE):
            try:
                value, end = self._decoder.raw_decode(text[at : at + size])
            except JSONDecodeError:
                continue  # cut, or wrong: then the error comes from where it is
            return value, at + end
        if depth >= MAX_DEPTH:
            raise RecursionError
        return self._object(at, depth) if first == "{" else self._list(at, depth)

    def _list(self, at: int, depth: int) -> tuple[list[Any], int]:
        values: list[Any] = []
        at = self.space(at + 1)
        if self._text.startswith("]", at):
            return values, at + 1
        while True:
            at = self._numbers(at, values)
            value, at = self.value(at, depth + 1)
            values.append(value)
            at, ended = self._behind(at, "]")
            if ended:
                return values, at

    def _numbers(self, at: int, values: list[Any]) -> int:
        """Reads the numbers that stand behind each other here, but for the last of a list."""
        while (run := _NUMBERS.match(self._text, at, at + PIECE)) is not None:
            try:
                read = self._decoder.decode(f"[{run[0].rstrip().rstrip(',')}]")
            except JSONDecodeError:
                break  # one of them is wrong: it is found when they are read one by one
            values += read
            at = self.space(run.end())  # the match may end inside of a run of spaces
        return at

    def _object(self, at: int, depth: int) -> tuple[Any, int]:
        pairs: list[tuple[str, Any]] = []
        at = self.space(at + 1)
        if self._text.startswith("}", at):
            return self._made(pairs), at + 1
        while True:
            if not self._text.startswith('"', at):
                what = "Expecting property name enclosed in double quotes"
                raise JSONDecodeError(what, self._text, at)
            name, at = self.value(at, depth + 1)
            at = self.space(at)
            if not self._text.startswith(":", at):
                raise JSONDecodeError("Expecting ':' delimiter", self._text, at)
            value, at = self.value(self.space(at + 1), depth + 1)
            pairs.append((name, value))
            at, ended = self._behind(at, "}")
            if ended:
                return self._made(pairs), at

    def _behind(self, at: int, closing: str) -> tuple[int, bool]:
        """Where to go on behind a value, and whether what holds it ends there."""
        at = self.space(at)
        if self._text.startswith(closing, at):
            return at + 1, True
        if not self._text.startswith(",", at):
            raise JSONDecodeError("Expecting ',' delimiter", self._text, at)
        return self.space(at + 1), False

    def _made(self, pairs: list[tuple[str, Any]]) -> Any:
        hook = self._decoder.object_pairs_hook
        return dict(pairs) if hook is None else hook(pairs)
