"""Filters on partitions: the texts that clients send to choose partitions, read and evaluated.

``year = 2013 and (carrier = "UA" or carrier like "A.*")``. The grammar is Hive's::

    filter      := [ disjunction ]                       nothing chooses everything
    disjunction := conjunction { "or" conjunction }
    conjunction := condition { "and" condition }
    condition   := "(" disjunction ")" | "(" key ")" [ "not" ] "in" "(" literal { "," literal } ")"
                 | key operator literal | literal operator key
                 | key "like" text | key "between" literal "and" literal
    operator    := "=" | "!=" | "<>" | "<" | "<=" | ">" | ">="
    literal     := "text" | 'text' | 12 | 12.5 | true | false
                 | [ "date" ] 2013-01-31 | "date" 'text' | "timestamp" 'text'

A text ends at the next quote of its kind and knows no escapes: Spark chooses a quote that the value
does not hold, and writes backslashes as they are. ``like`` takes a pattern of its own kind
(see `like_patterns`), and matches it with the value as it was stored.

The tree is bound to the types of a table's keys, and evaluated, by `partition_chooser` beside this
module.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, NoReturn, TypeAlias

from strandline.errors import InvalidInput, LimitExceeded

MAX_FILTER_LENGTH = 256 * 1024
"""Characters."""
MAX_FILTER_TOKENS = 50_000
"""Words, texts, numbers, operators and marks: a list of 20,000 values and more."""
MAX_FILTER_DEPTH = 100
"""Parentheses inside each other."""


class LiteralKind(Enum):
    TEXT = "text"
    NUMBER = "number"


@dataclass(frozen=True, slots=True)
class Literal:
    kind: LiteralKind
    text: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """``key operator literal``; operator is one of ``= != < <= > >=``."""

    key: str
    operator: str
    literal: Literal


@dataclass(frozen=True, slots=True)
class In:
    """``(key) in (…)``, or ``not in`` if ``negated``."""

    key: str
    literals: tuple[Literal, ...]
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Like:
    key: str
    pattern: str


@dataclass(frozen=True, slots=True)
class And:
    """All of the parts; without parts, everything."""

    parts: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Or:
    """One of the parts at least; without parts, nothing."""

    parts: tuple[Expression, ...]


Expression: TypeAlias = Comparison | In | Like | And | Or


def parse_filter(text: str) -> Expression:
    """The tree of a filter. ``between`` becomes two comparisons, ``v op k`` becomes ``k op v``.

    Raises `InvalidInput` with the position (in characters, from 0) and what was expected there.
    """
    if len(text) > MAX_FILTER_LENGTH:
        raise LimitExceeded(f"a filter may have {MAX_FILTER_LENGTH} characters, found {len(text)}")
    return _Parser(text).whole()


_FLIPPED = {"=": "=", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}

_TOKEN = re.compile(
    r"""\s*(?:
        (?P<text>"[^"]*"|'[^']*')
      | (?P<date>[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}(?!\w))
      | (?P<number>-?[0-9]+(?:\.[0-9]+)?(?!\w))
      | (?P<word>\w+)
      | (?P<operator>!=|<>|<=|>=|[=<>])
      | (?P<mark>[(),])
    )""",
    re.VERBOSE,
)
_NOT_KEYS = frozenset({"and", "or", "not"})


class _Token(NamedTuple):
    kind: str
    text: str
    at: int


class _Parser:
    """Recursive descent over the tokens of one filter."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.next = 0
        self.depth = 0
        self.tokens: list[_Token] = []
        at = 0
        while found := _TOKEN.match(text, at):
            kind = str(found.lastgroup)
            self.tokens.append(_Token(kind, found[kind], found.start(kind)))
            at = found.end()
            if len(self.tokens) > MAX_FILTER_TOKENS:
                raise LimitExceeded(
                    f"a filter may have {MAX_FILTER_TOKENS} words, values, operators and marks, "
                    "found more; ask for a range, or in several requests"
                )
        rest = text[at:].lstrip()
        self.tokens.append(_Token("end", rest, len(text) - len(rest)))

    def whole(self) -> Expression:
        if self.token.kind == "end" and not self.token.text:
            return And(())
        expression = self.disjunction()
        if self.token.kind != "end" or self.token.text:
            self.fail("'and', 'or' or the end")
        return expression

    def disjunction(self) -> Expression:
        parts = [self.conjunction()]
        while self.keyword("or"):
            parts.append(self.conjunction())
        return parts[0] if len(parts) == 1 else Or(tuple(parts))

    def conjunction(self) -> Expression:
        parts = [self.condition()]
        while self.keyword("and"):
            parts.append(self.condition())
        return parts[0] if len(parts) == 1 else And(tuple(parts))

    def condition(self) -> Expression:
        if self.mark("("):
            return self.parenthesised()
        if literal := self.literal():
            symbol = self.operator()
            return Comparison(self.key(), _FLIPPED[symbol], literal)
        key = self.key()
        if self.keyword("like"):
            return Like(key, self.quoted("a pattern in quotes"))
        if self.keyword("between"):
            low = self.required_literal()
            if not self.keyword("and"):
                self.fail("'and' between the two ends of 'between'")
            high = self.required_literal()
            return And((Comparison(key, ">=", low), Comparison(key, "<=", high)))
        if self.word() in ("in", "not"):
            self.fail(f"an operator; for 'in', write the key in parentheses: ({key}) in (…)")
        return Comparison(key, self.operator(), self.required_literal())

    def parenthesised(self) -> Expression:
        """What follows a ``(``: a key for ``in``, or a filter of its own."""
        following = [(token.kind, token.text.lower()) for token in self.tokens[self.next :][:3]]
        if (
            len(following) == 3
            and following[0][0] == "word"
            and following[1] == ("mark", ")")
            and following[2] in (("word", "in"), ("word", "not"))
        ):
            return self.membership()
        self.depth += 1
        if self.depth > MAX_FILTER_DEPTH:
            self.fail(f"at most {MAX_FILTER_DEPTH} parentheses inside each other")
        expression = self.disjunction()
        self.expect(")")
        self.depth -= 1
        return expression

    def membership(self) -> Expression:
        key = self.key()
        self.expect(")")
        negated = self.keyword("not")
        if not self.keyword("in"):
            self.fail("'in'")
        self.expect("(")
        literals = [self.required_literal()]
        while self.mark(","):
            literals.append(self.required_literal())
        self.expect(")")
        return In(key, tuple(literals), negated=negated)

    def literal(self) -> Literal | None:
        token = self.token
        if token.kind == "number":
            self.next += 1
            return Literal(LiteralKind.NUMBER, token.text)
        if token.kind == "date":
            self.next += 1
            return Literal(LiteralKind.TEXT, token.text)
        if token.kind == "text":
            return Literal(LiteralKind.TEXT, self.quoted("a text"))
        word, behind = self.word(), self.tokens[min(self.next + 1, len(self.tokens) - 1)]
        if (word in ("date", "timestamp") and behind.kind == "text") or (
            word == "date" and behind.kind == "date"
        ):
            self.next += 1
            return self.literal()
        if word in ("true", "false") and behind.kind != "operator":
            self.next += 1
            return Literal(LiteralKind.TEXT, word)
        return None

    def required_literal(self) -> Literal:
        return self.literal() or self.fail("a text in quotes, a number or a date")

    def quoted(self, what: str) -> str:
        if self.token.kind != "text":
            self.fail(what)
        self.next += 1
        return self.tokens[self.next - 1].text[1:-1]

    def key(self) -> str:
        if self.token.kind != "word" or self.word() in _NOT_KEYS:
            self.fail("a partition key")
        self.next += 1
        return self.tokens[self.next - 1].text

    def operator(self) -> str:
        if self.token.kind != "operator":
            self.fail("one of = != <> < <= > >=")
        self.next += 1
        symbol = self.tokens[self.next - 1].text
        return "!=" if symbol == "<>" else symbol

    @property
    def token(self) -> _Token:
        return self.tokens[self.next]

    def word(self) -> str:
        return self.token.text.lower() if self.token.kind == "word" else ""

    def keyword(self, word: str) -> bool:
        if self.word() != word:
            return False
        self.next += 1
        return True

    def mark(self, mark: str) -> bool:
        if self.token.kind != "mark" or self.token.text != mark:
            return False
        self.next += 1
        return True

    def expect(self, mark: str) -> None:
        if not self.mark(mark):
            self.fail(f"'{mark}'")

    def fail(self, expected: str) -> NoReturn:
        token = self.token
        shown = self.text if len(self.text) <= 200 else self.text[:200] + "…"
        raise InvalidInput(
            f"the partition filter {shown!r} does not parse: expected {expected} at position "
            f"{token.at}, found {repr(token.text[:20]) if token.text else 'the end'}"
        )
