"""Partition filters: parse and evaluate the texts by which clients choose partitions.

Example: ``year = 2013 and (carrier = "UA" or carrier like "A.*")``. The grammar is Hive's::

    filter      := [ disjunction ]                       an empty filter chooses everything
    disjunction := conjunction { "or" conjunction }
    conjunction := condition { "and" condition }
    condition   := "(" disjunction ")" | "(" key ")" [ "not" ] "in" "(" literal { "," literal } ")"
                 | key operator literal | literal operator key
                 | key "like" text | key [ "not" ] "between" literal "and" literal
    operator    := "=" | "!=" | "<>" | "<" | "<=" | ">" | ">="
    literal     := "text" | 'text' | 12 | 12.5 | true | false
                 | [ "date" ] 2013-01-31 | "date" 'text' | "timestamp" 'text'

A text ends at the next quote of its kind; there are no escapes. Spark chooses a quote that the
value does not contain, and writes backslashes unchanged. ``like`` has its own pattern language (see
`strandline.metastore.hive.patterns`) and matches the stored text of a value.

Values are compared in memory, as values of the key's type. (Hive casts in SQL, and rejects the
whole filter if a stored value does not cast or if the filter contains ``like``.) A value that does
not cast is NULL, and no condition chooses it. The default partition is NULL too, but an equality
with its name chooses it. For a text key, Hive compares the stored texts, and the name of the
default partition and the empty text are ordinary texts. Because the language cannot negate a whole
condition, NULL and false are equivalent, and a filter returns true or false.

A wrong filter is rejected when it is parsed or bound to a table's keys, never during a scan.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn, TypeAlias

from strandline.errors import InvalidInput, LimitExceeded, cut
from strandline.metastore.hive.partition_values import (
    DEFAULT_PARTITION,
    Cast,
    cast_to,
    is_default,
    number,
)
from strandline.metastore.hive.patterns import like
from strandline.model.types import INTEGRAL_TYPES, CharType, DataType, StringType, VarcharType

MAX_FILTER_LENGTH = 256 * 1024
"""The maximum number of characters of a filter."""
MAX_FILTER_TOKENS = 50_000
"""The maximum number of tokens of a filter: enough for a list of 20,000 values."""
MAX_FILTER_DEPTH = 100
"""The maximum depth of nested parentheses."""


@dataclass(frozen=True, slots=True)
class Literal:
    text: str
    is_number: bool = False
    """Whether it is a number without quotes."""


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
    """True if all parts are true. Without parts it is true."""

    parts: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Or:
    """True if at least one part is true. Without parts it is false."""

    parts: tuple[Expression, ...]


Expression: TypeAlias = Comparison | In | Like | And | Or


def parse_filter(text: str) -> Expression:
    """Parse a filter. ``between`` becomes two comparisons, and ``v op k`` becomes ``k op v``.

    Raises `InvalidInput` with the position (in characters, from 0) and what was expected there,
    and `LimitExceeded` if the filter is too long.
    """
    if len(text) > MAX_FILTER_LENGTH:
        raise LimitExceeded(
            f"a filter has at most {MAX_FILTER_LENGTH} characters, this one has {len(text)}"
        )
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
    """Recursive descent parser over the tokens of one filter."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.next = 0
        self.depth = 0
        self.tokens: list[_Token] = []
        at = 0
        while match := _TOKEN.match(text, at):
            kind = str(match.lastgroup)
            self.tokens.append(_Token(kind, match[kind], match.start(kind)))
            at = match.end()
            if len(self.tokens) > MAX_FILTER_TOKENS:
                raise LimitExceeded(
                    f"a filter has at most {MAX_FILTER_TOKENS} words, values, operators and "
                    "marks, this one has more; use a range, or several requests"
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
            return Like(key, self.take("text", "a pattern in quotes")[1:-1])
        if self.keyword("between"):
            low, high = self.ends()
            return And((Comparison(key, ">=", low), Comparison(key, "<=", high)))
        if [token.text.lower() for token in self.tokens[self.next :][:2]] == ["not", "between"]:
            self.next += 2
            low, high = self.ends()
            return Or((Comparison(key, "<", low), Comparison(key, ">", high)))
        if self.word() in ("in", "not"):
            self.fail(f"an operator; for 'in', write the key in parentheses: ({key}) in (…)")
        return Comparison(key, self.operator(), self.required_literal())

    def ends(self) -> tuple[Literal, Literal]:
        """Parse the two bounds of ``between``."""
        low = self.required_literal()
        if not self.keyword("and"):
            self.fail("'and' between the two ends of 'between'")
        return low, self.required_literal()

    def parenthesised(self) -> Expression:
        """Parse what follows a ``(``: a key of ``in``, or a nested filter."""
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
            self.fail(f"at most {MAX_FILTER_DEPTH} nested parentheses")
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
        if token.kind in ("number", "date"):
            self.next += 1
            return Literal(token.text, is_number=token.kind == "number")
        if token.kind == "text":
            return Literal(self.take("text", "a string")[1:-1])
        word, behind = self.word(), self.tokens[min(self.next + 1, len(self.tokens) - 1)]
        if (word in ("date", "timestamp") and behind.kind == "text") or (
            word == "date" and behind.kind == "date"
        ):
            self.next += 1
            return self.literal()
        if word in ("true", "false") and behind.kind != "operator":
            self.next += 1
            return Literal(word)
        return None

    def required_literal(self) -> Literal:
        return self.literal() or self.fail("a string in quotes, a number or a date")

    def key(self) -> str:
        if self.word() in _NOT_KEYS:
            self.fail("a partition key")
        return self.take("word", "a partition key")

    def operator(self) -> str:
        symbol = self.take("operator", "one of = != <> < <= > >=")
        return "!=" if symbol == "<>" else symbol

    def take(self, kind: str, expected: str) -> str:
        """The text of the next token, which must be of that kind."""
        token = self.token
        if token.kind != kind:
            self.fail(expected)
        self.next += 1
        return token.text

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
        raise InvalidInput(
            f"the partition filter {cut(self.text, 200)!r} does not parse: expected {expected} "
            f"at position {token.at}, found {repr(token.text[:20]) if token.text else 'the end'}"
        )


_TEXTS = (StringType, CharType, VarcharType)

MAX_CONDITIONS = 1_000
"""The maximum number of conditions. Equalities of one key that ``or`` joins count as one."""

Chooser: TypeAlias = Callable[[Sequence[str]], bool]
"""Whether a partition with these values, in the order of the keys, is chosen."""


def bind_filter(expression: Expression, keys: Sequence[tuple[str, DataType]]) -> Chooser:
    """Bind a filter to a table whose partition keys have these names and types.

    Raises `InvalidInput` if the table does not have a key, `LimitExceeded` if there are more than
    `MAX_CONDITIONS`.
    """
    conditions = _conditions(expression)
    if conditions > MAX_CONDITIONS:
        raise LimitExceeded(
            f"a filter has at most {MAX_CONDITIONS} conditions, this one has {conditions}; write "
            "many values of one key as (key) in (…), which is a single condition"
        )
    positions = {name.lower(): position for position, (name, _) in enumerate(keys)}
    return _bound(expression, keys, positions)


def _conditions(expression: Expression) -> int:
    """The number of comparisons that a partition may need."""
    match expression:
        case And(parts):
            return sum(map(_conditions, parts))
        case Or(parts):
            return sum(map(_conditions, folded(parts)))
    return 1


def _bound(
    expression: Expression, keys: Sequence[tuple[str, DataType]], positions: dict[str, int]
) -> Chooser:
    match expression:
        case And(parts):
            all_of = [_bound(part, keys, positions) for part in parts]
            return lambda values: all(chooses(values) for chooses in all_of)
        case Or(parts):
            any_of = [_bound(part, keys, positions) for part in folded(parts)]
            return lambda values: any(chooses(values) for chooses in any_of)
    position = positions.get(expression.key.lower())
    if position is None:
        raise InvalidInput(
            f"Specified key <{expression.key}> is not a partitioning key for the table"
        )
    key_type = keys[position][1]
    match expression:
        case Like(_, pattern):
            matches = like(pattern)
            known = _is_known(key_type)
            return lambda values: known(value := values[position]) and matches(value)
        case In(_, literals, negated):
            return _bound_in(literals, key_type, position, negated=negated)
        case Comparison(_, "=", literal):
            return _bound_in((literal,), key_type, position, negated=False)
        case Comparison(_, "!=", literal):
            return _bound_in((literal,), key_type, position, negated=True)
        case Comparison(_, symbol, literal):
            return _bound_order(_OPERATORS[symbol], literal, key_type, position)


def folded(parts: Sequence[Expression]) -> list[Expression]:
    """The alternatives of an `Or`, with all equalities of one key merged into a single ``in``."""
    lists: dict[str, list[Literal]] = {}
    others: list[Expression] = []
    for part in parts:
        match part:
            case Comparison(key, "=", literal):
                lists.setdefault(key.lower(), []).append(literal)
            case In(key, literals, False):
                lists.setdefault(key.lower(), []).extend(literals)
            case _:
                others.append(part)
    return [*(In(key, tuple(literals)) for key, literals in lists.items()), *others]


def _bound_in(
    literals: Sequence[Literal], key_type: DataType, position: int, *, negated: bool
) -> Chooser:
    """Choose the values that equal one of the literals, or with ``negated`` none of them."""
    is_text = isinstance(key_type, _TEXTS)
    default = frozenset() if is_text else frozenset({DEFAULT_PARTITION})
    names_default = any(literal.text in default for literal in literals)
    by_cast: list[tuple[Cast, set[Any]]] = []
    for is_number in sorted({literal.is_number for literal in literals}, reverse=True):
        cast, cast_literal = _casts(key_type, is_number=is_number)
        texts = {literal.text for literal in literals if literal.is_number is is_number}
        by_cast.append((cast, {cast_literal(text) for text in texts - default}))
    if negated and any(None in wanted for _, wanted in by_cast):
        return lambda _: False

    def chooses(values: Sequence[str]) -> bool:
        value = values[position]
        if not is_text and is_default(value):
            return names_default and not negated
        for cast, chosen_values in by_cast:
            cast_value = cast(value)
            if negated and (cast_value is None or cast_value in chosen_values):
                return False
            if not negated and cast_value is not None and cast_value in chosen_values:
                return True
        return negated

    return chooses


def _bound_order(
    holds: Callable[[Any, Any], bool], literal: Literal, key_type: DataType, position: int
) -> Chooser:
    cast, cast_literal = _casts(key_type, is_number=literal.is_number)
    known = _is_known(key_type)
    limit = cast_literal(literal.text) if known(literal.text) else None
    if limit is None:
        return lambda _: False

    def chooses(values: Sequence[str]) -> bool:
        value = values[position]
        cast_value = cast(value) if known(value) else None
        return cast_value is not None and holds(cast_value, limit)

    return chooses


def _is_known(key_type: DataType) -> Callable[[str], bool]:
    """Return a function that tells whether a value of a key of that type is not NULL."""
    is_text = isinstance(key_type, _TEXTS)
    return lambda value: is_text or not is_default(value)


def _casts(key_type: DataType, *, is_number: bool) -> tuple[Cast, Cast]:
    """The casts of the stored text and of the literal's text to values that can be compared.

    A literal for an integer key may be outside the key's type or between two of its values, so it
    is cast to a number of any size. A number without quotes for a text key makes the stored text a
    number, as in Spark.
    """
    if key_type in INTEGRAL_TYPES:
        return cast_to(key_type), number
    if is_number and isinstance(key_type, _TEXTS):
        return number, number
    return cast_to(key_type), cast_to(key_type)


_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
