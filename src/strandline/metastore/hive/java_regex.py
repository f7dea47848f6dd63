r"""Java's regular expressions, matched against whole texts in linear time.

Hive clients send patterns in Java's syntax: ``like "2020-.*"``, ``SHOW TABLES`` patterns. They come
from anybody, and a backtracking matcher (Java's, Python's) can be kept busy for years by thirty
characters. So the pattern is compiled into a set automaton: at each character the matcher holds the
set of places in the pattern where it could be. The sets met are remembered, so that most texts cost
one dictionary look-up for each character.

That works for patterns that are regular in the strict sense: literals, ``.``, classes, groups,
alternatives, repetition, ``^`` and ``$``, ``\Q…\E``, and the flags ``(?i)`` and ``(?s)`` in front.
Greedy and lazy repetition are the same when the whole text must match. Back references,
look-around and possessive repetition are refused with a typed error; so is what would grow beyond
`MAX_STATES` places.

Rejected: translating to Python's `re`, which accepts more but whose time nothing bounds.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

from strandline.errors import InvalidInput

MAX_PATTERN_LENGTH = 4_096
"""Characters."""
MAX_STATES = 10_000
"""Places in a compiled pattern, after ``x{3}`` was written out as ``xxx``."""
_MAX_NESTING = 50
_MAX_REMEMBERED = 5_000

_LINE_ENDS = frozenset("\n\r\x85\u2028\u2029")
_ESCAPED_CHARACTERS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "a": "\a", "e": "\x1b"}
_FLAGS = re.compile(r"\(\?([is]+)\)")
_COUNT = re.compile(r"\{([0-9]{1,5})(,([0-9]{1,5})?)?\}")
_DIGITS = frozenset("0123456789")
_SPACES = frozenset(" \t\n\x0b\f\r")
_WORDS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_")
_SETS = {"d": _DIGITS, "s": _SPACES, "w": _WORDS}

Test = Callable[[str], bool]
"""Whether one character fits."""


@dataclass(slots=True)
class _State:
    """A place in the pattern: go on over a character that fits, or freely to others."""

    test: Test | None = None
    to: int = -1
    free: tuple[int, ...] = ()
    only_at_start: bool = False
    only_at_end: bool = False


class JavaRegex:
    """A compiled pattern. Raises `InvalidInput` on a pattern that is wrong or not supported."""

    def __init__(self, pattern: str, *, ignore_case: bool = False) -> None:
        self.pattern = pattern
        compiler = _Compiler(pattern, ignore_case=ignore_case)
        self._start, self._accept = compiler.whole()
        self._states = compiler.states
        self._steps: dict[tuple[frozenset[int], str], frozenset[int]] = {}
        self._accepting: dict[frozenset[int], bool] = {}
        self._first = self._closure({self._start}, at_start=True, at_end=False)

    def matches(self, text: str) -> bool:
        """Whether the whole of ``text`` matches."""
        if not text:
            return self._accept in self._closure({self._start}, at_start=True, at_end=True)
        current, steps = self._first, self._steps
        for character in text:
            following = steps.get((current, character))
            if following is None:
                following = self._step(current, character)
            if not following:
                return False
            current = following
        accepted = self._accepting.get(current)
        if accepted is None:
            accepted = self._accept in self._closure(set(current), at_start=False, at_end=True)
            self._accepting[current] = accepted
        return accepted

    def _step(self, current: frozenset[int], character: str) -> frozenset[int]:
        reached = set()
        for number in current:
            state = self._states[number]
            if state.test is not None and state.test(character):
                reached.add(state.to)
        following = self._closure(reached, at_start=False, at_end=False)
        if len(self._steps) >= _MAX_REMEMBERED:
            self._steps, self._accepting = {}, {}
        self._steps[current, character] = following
        return following

    def _closure(self, numbers: set[int], *, at_start: bool, at_end: bool) -> frozenset[int]:
        """All places that are reached from ``numbers`` without a character."""
        reached, waiting = set(numbers), list(numbers)
        while waiting:
            state = self._states[waiting.pop()]
            if (state.only_at_start and not at_start) or (state.only_at_end and not at_end):
                continue
            for number in state.free:
                if number not in reached:
                    reached.add(number)
                    waiting.append(number)
        return frozenset(reached)


@dataclass(frozen=True, slots=True)
class _Piece:
    """A part of the automaton with one way in and one way out."""

    first: int
    last: int


class _Compiler:
    """Reads the pattern from left to right and builds the automaton."""

    def __init__(self, pattern: str, *, ignore_case: bool) -> None:
        if len(pattern) > MAX_PATTERN_LENGTH:
            raise InvalidInput(
                f"a regular expression may have {MAX_PATTERN_LENGTH} characters, found "
                f"{len(pattern)}"
            )
        self.pattern = pattern
        self.at = 0
        self.nesting = 0
        self.ignore_case = ignore_case
        self.dot_is_all = False
        self.states: list[_State] = []

    def whole(self) -> tuple[int, int]:
        while found := _FLAGS.match(self.pattern, self.at):
            self.ignore_case |= "i" in found[1]
            self.dot_is_all |= "s" in found[1]
            self.at = found.end()
        piece = self.alternatives()
        if self.at < len(self.pattern):
            self.fail("an unmatched ')'")
        return piece.first, piece.last

    def alternatives(self) -> _Piece:
        self.nesting += 1
        if self.nesting > _MAX_NESTING:
            self.fail(f"more than {_MAX_NESTING} groups inside each other")
        branches = [self.sequence()]
        while self.take("|"):
            branches.append(self.sequence())
        self.nesting -= 1
        if len(branches) == 1:
            return branches[0]
        last = self.state()
        for branch in branches:
            self.join(branch.last, last)
        first = self.state(free=tuple(branch.first for branch in branches))
        return _Piece(first, last)

    def sequence(self) -> _Piece:
        first = last = self.state()
        while self.peek() not in ("", "|", ")"):
            piece = self.repeated()
            self.join(last, piece.first)
            last = piece.last
        return _Piece(first, last)

    def repeated(self) -> _Piece:
        """One atom with the quantifier behind it."""
        start = self.at
        piece = self.atom()
        if self.peek() not in ("*", "+", "?", "{"):
            return piece
        after_atom = self.at
        least, most = self.quantifier()
        behind = self.at
        first = last = self.state()
        for number in range(max(least, 1 if most is None else most)):
            if number > 0:
                self.at = start
                piece = self.atom()
                assert self.at == after_atom
            if number >= least:
                self.states[last].free += (piece.first,)
                skip, last = last, self.state()
                self.join(piece.last, last)
                self.join(skip, last)
            else:
                self.join(last, piece.first)
                last = piece.last
        if most is None:
            self.join(piece.last, piece.first)
        self.at = behind
        return _Piece(first, last)

    def quantifier(self) -> tuple[int, int | None]:
        """The least and the most repetitions; None is any number."""
        if found := _COUNT.match(self.pattern, self.at):
            self.at = found.end()
            least = int(found[1])
            most = least if found[2] is None else int(found[3]) if found[3] else None
            if most is not None and most < least:
                self.fail("a range that ends before it begins")
        elif self.peek() == "{":
            self.fail("a '{' that is no repetition (write \\{)")
        else:
            least, most = {"*": (0, None), "+": (1, None), "?": (0, 1)}[self.peek()]
            self.at += 1
        self.take("?")
        if self.peek() == "+":
            self.fail("possessive repetition")
        if self.peek() in ("*", "?", "{"):
            self.fail("a repetition of a repetition")
        return least, most

    def atom(self) -> _Piece:
        character = self.next()
        if character == "(":
            return self.group()
        if character == "[":
            return self.over(self.character_class())
        if character == ".":
            dot_is_all = self.dot_is_all
            return self.over(lambda found: dot_is_all or found not in _LINE_ENDS)
        if character == "^":
            return self.assertion(_State(only_at_start=True))
        if character == "$":
            return self.assertion(_State(only_at_end=True))
        if character in "*+?{":
            self.fail(f"nothing to repeat before {character!r}")
        if character == "\\":
            if self.take("Q"):
                return self.quoted()
            return self.over(self.escape())
        return self.over(self.literal(character))

    def group(self) -> _Piece:
        if self.take("?") and not self.take(":"):
            self.fail("look-around, named groups and flags inside")
        piece = self.alternatives()
        if not self.take(")"):
            self.fail("a group that is not closed")
        return piece

    def quoted(self) -> _Piece:
        end = self.pattern.find("\\E", self.at)
        text = self.pattern[self.at :] if end < 0 else self.pattern[self.at : end]
        self.at = len(self.pattern) if end < 0 else end + 2
        first = last = self.state()
        for character in text:
            piece = self.over(self.literal(character))
            self.join(last, piece.first)
            last = piece.last
        return _Piece(first, last)

    def escape(self) -> Test:
        r"""What stands behind a ``\\``: a set like ``\\d``, or one character."""
        if self.peek() in ("d", "s", "w", "D", "S", "W"):
            name = self.next()
            members = _SETS[name.lower()]
            if name.islower():
                return lambda found: found in members
            return lambda found: found not in members
        return self.literal(self.escaped_character())

    def escaped_character(self) -> str:
        character = self.next()
        digits = {"u": 4, "x": 2}.get(character)
        if digits is not None:
            code = self.pattern[self.at : self.at + digits]
            if len(code) < digits or any(c not in "0123456789abcdefABCDEF" for c in code):
                self.fail(f"an escape that needs {digits} hexadecimal digits")
            self.at += digits
            return chr(int(code, 16))
        if character in _ESCAPED_CHARACTERS:
            return _ESCAPED_CHARACTERS[character]
        if character in _WORDS and character != "_":
            self.fail(f"the escape \\{character}")
        return character

    def character_class(self) -> Test:
        negated = self.take("^")
        tests: list[Test] = []
        while not self.take("]") or not tests:
            if self.peek() == "" or (self.pattern[self.at - 1] == "]" and not tests):
                self.fail("a class that is empty or not closed")
            if self.peek() == "[" or self.pattern.startswith("&&", self.at):
                self.fail("a union or intersection of classes")
            tests.append(self.class_member())
        if negated:
            return lambda found: not any(test(found) for test in tests)
        return lambda found: any(test(found) for test in tests)

    def class_member(self) -> Test:
        if self.peek() == "\\" and self.pattern[self.at + 1 : self.at + 2] in tuple("dswDSW"):
            self.at += 1
            return self.escape()
        low = self.class_character()
        if self.peek() != "-" or self.pattern[self.at + 1 : self.at + 2] in ("]", ""):
            return self.literal(low)
        self.at += 1
        high = self.class_character()
        if high < low:
            self.fail("a range that ends before it begins")
        return self.folding(lambda found: low <= found <= high)

    def class_character(self) -> str:
        character = self.next()
        return self.escaped_character() if character == "\\" else character

    def literal(self, character: str) -> Test:
        return self.folding(lambda found: found == character)

    def folding(self, test: Test) -> Test:
        if not self.ignore_case:
            return test
        return lambda found: test(found) or test(found.lower()) or test(found.upper())

    def over(self, test: Test) -> _Piece:
        last = self.state()
        return _Piece(self.add(_State(test=test, to=last)), last)

    def assertion(self, state: _State) -> _Piece:
        last = self.state()
        state.free = (last,)
        return _Piece(self.add(state), last)

    def state(self, *, free: tuple[int, ...] = ()) -> int:
        return self.add(_State(free=free))

    def add(self, state: _State) -> int:
        if len(self.states) >= MAX_STATES:
            self.fail(f"repetitions that need more than {MAX_STATES} states")
        self.states.append(state)
        return len(self.states) - 1

    def join(self, before: int, behind: int) -> None:
        self.states[before].free += (behind,)

    def peek(self) -> str:
        return self.pattern[self.at : self.at + 1]

    def next(self) -> str:
        character = self.peek()
        if not character:
            self.fail("an end in the middle")
        self.at += 1
        return character

    def take(self, text: str) -> bool:
        if not self.pattern.startswith(text, self.at):
            return False
        self.at += len(text)
        return True

    def fail(self, found: str) -> NoReturn:
        shown = self.pattern if len(self.pattern) <= 200 else self.pattern[:200] + "…"
        raise InvalidInput(
            f"the regular expression {shown!r} is wrong or not supported: found {found} at "
            f"position {self.at}"
        )
