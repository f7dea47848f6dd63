"""Node filters: which nodes a zone may use, as a condition on their attributes.

A filter is a boolean expression as in SQL's WHERE, over attributes that a node announces::

    region = 'eu' AND (disk IN ('ssd', 'nvme') OR NOT cores < 8)
    gpu IS NOT NULL

The operators are ``=  <>  !=  <  <=  >  >=``, ``IN (…)``, ``IS [NOT] NULL``, ``AND``, ``OR``,
``NOT`` and parentheses. The values are texts in single quotes (a quote inside is doubled), numbers,
``TRUE`` and ``FALSE``. Attribute names are not case-sensitive; a name that is a reserved word is
written in backticks. The empty filter accepts every node.

What must stay true: a filter never fails on a node. An attribute that a node does not have is null:
it satisfies no comparison (not even ``<>``), only ``IS NULL``. A text and a number are compared as
numbers if the text is a number, else as texts.

Rejected: JSONPath, which is a language for finding parts of a document. "Finds anything" is an odd
way to say yes, each library writes its conditions differently, and Spark users do not know it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from strandline.errors import InvalidInput

Value = str | int | float | bool
Attributes = Mapping[str, Value]
NodeFilter = Callable[[Attributes], bool]

MAX_FILTER_LENGTH = 4096
MAX_DEPTH = 50

_TOKEN = re.compile(
    r"\s*(?:(?P<text>'(?:[^']|'')*')|(?P<number>-?[0-9]+(?:\.[0-9]+)?)(?![\w.])"
    r"|`(?P<quoted>(?:[^`]|``)+)`|(?P<word>[A-Za-z_][A-Za-z0-9_.\-]*)"
    r"|(?P<sign><=|>=|<>|!=|[=<>(),]))"
)
_NUMBER = re.compile(r"-?[0-9]+(?:\.[0-9]+)?")
_RESERVED = frozenset({"AND", "OR", "NOT", "IN", "IS", "NULL", "TRUE", "FALSE"})
_COMPARISONS: dict[str, Callable[[Value, Value], bool]] = {
    "=": lambda a, b: a == b,
    "<>": lambda a, b: a != b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,  # type: ignore[operator]  # `_comparable` made them of one type
    "<=": lambda a, b: a <= b,  # type: ignore[operator]  # see above
    ">": lambda a, b: a > b,  # type: ignore[operator]  # see above
    ">=": lambda a, b: a >= b,  # type: ignore[operator]  # see above
}


def compile_node_filter(text: str) -> NodeFilter:
    """Compile ``text``. Raises `InvalidInput`, which gives the position of the error."""
    if len(text) > MAX_FILTER_LENGTH:
        raise InvalidInput(
            f"a node filter may have at most {MAX_FILTER_LENGTH} characters, found {len(text)}"
        )
    if not text.strip():
        return lambda attributes: True
    parser = _Parser(text, _tokens(text))
    condition = parser.disjunction(0)
    parser.expect_end()
    return lambda attributes: condition({k.lower(): v for k, v in attributes.items()})


@dataclass(frozen=True, slots=True)
class _Token:
    """``kind`` is the name of the group that matched, or ``keyword`` for a reserved word."""

    kind: str
    text: str
    position: int


def _tokens(text: str) -> list[_Token]:
    tokens, at, end = [], 0, len(text.rstrip())
    while at < end:
        match = _TOKEN.match(text, at)
        if match is None or match.lastgroup is None:
            raise _wrong(text, at, "unexpected text")
        kind, word = match.lastgroup, match[match.lastgroup]
        if kind == "word" and word.upper() in _RESERVED:
            kind, word = "keyword", word.upper()
        tokens.append(_Token(kind, word, match.end() - len(match[0].lstrip())))
        at = match.end()
    return tokens


def _wrong(text: str, at: int, why: str) -> InvalidInput:
    return InvalidInput(
        f"invalid node filter {text[:200]!r}, at position {at}: {why}; a filter is a condition "
        "such as region = 'eu' AND cores >= 8"
    )


class _Parser:
    """Recursive descent: OR binds less than AND, AND less than NOT, NOT less than comparisons."""

    def __init__(self, text: str, tokens: list[_Token]) -> None:
        self._text, self._tokens, self._at = text, tokens, 0

    def disjunction(self, depth: int) -> NodeFilter:
        condition = self._conjunction(depth)
        while self._take("keyword", "OR"):
            condition = _either(condition, self._conjunction(depth))
        return condition

    def _conjunction(self, depth: int) -> NodeFilter:
        condition = self._negation(depth)
        while self._take("keyword", "AND"):
            condition = _both(condition, self._negation(depth))
        return condition

    def _negation(self, depth: int) -> NodeFilter:
        if depth > MAX_DEPTH:
            raise self._error(f"it is nested more than {MAX_DEPTH} levels deep")
        if self._take("keyword", "NOT"):
            negated = self._negation(depth + 1)
            return lambda attributes: not negated(attributes)
        if self._take("sign", "("):
            condition = self.disjunction(depth + 1)
            self._expect("sign", ")")
            return condition
        return self._comparison()

    def _comparison(self) -> NodeFilter:
        name = self._attribute()
        if self._take("keyword", "IS"):
            is_null = not self._take("keyword", "NOT")
            self._expect("keyword", "NULL")
            return lambda attributes: (attributes.get(name) is None) is is_null
        if self._take("keyword", "IN"):
            self._expect("sign", "(")
            values = [self._value()]
            while self._take("sign", ","):
                values.append(self._value())
            self._expect("sign", ")")
            return lambda attributes: any(_holds("=", attributes.get(name), v) for v in values)
        token = self._next()
        if token is None or token.kind != "sign" or token.text not in _COMPARISONS:
            raise self._error("a comparison was expected", token)
        sign, value = token.text, self._value()
        return lambda attributes: _holds(sign, attributes.get(name), value)

    def _attribute(self) -> str:
        token = self._next()
        if token is None or token.kind not in ("word", "quoted"):
            raise self._error("the name of an attribute was expected", token)
        return token.text.replace("``", "`").lower()

    def _value(self) -> Value:
        token = self._next()
        if token is not None and token.kind == "text":
            return token.text[1:-1].replace("''", "'")
        if token is not None and token.kind == "number":
            return float(token.text) if "." in token.text else int(token.text)
        if token is not None and token.kind == "keyword" and token.text in ("TRUE", "FALSE"):
            return token.text == "TRUE"
        raise self._error("a text in quotes, a number, TRUE or FALSE was expected", token)

    # -- tokens

    def _next(self) -> _Token | None:
        token = self._tokens[self._at] if self._at < len(self._tokens) else None
        self._at += 1
        return token

    def _take(self, kind: str, text: str) -> bool:
        if self._at < len(self._tokens):
            token = self._tokens[self._at]
            if (token.kind, token.text) == (kind, text):
                self._at += 1
                return True
        return False

    def _expect(self, kind: str, text: str) -> None:
        if not self._take(kind, text):
            raise self._error(f"{text} was expected")

    def expect_end(self) -> None:
        """Raise `InvalidInput` if tokens remain."""
        if self._at < len(self._tokens):
            raise self._error("AND, OR or the end was expected")

    def _error(self, why: str, token: _Token | None = None) -> InvalidInput:
        if token is None and self._at < len(self._tokens):
            token = self._tokens[self._at]
        return _wrong(self._text, len(self._text) if token is None else token.position, why)


def _either(left: NodeFilter, right: NodeFilter) -> NodeFilter:
    return lambda attributes: left(attributes) or right(attributes)


def _both(left: NodeFilter, right: NodeFilter) -> NodeFilter:
    return lambda attributes: left(attributes) and right(attributes)


def _holds(sign: str, actual: Value | None, expected: Value) -> bool:
    return actual is not None and _COMPARISONS[sign](*_comparable(actual, expected))


def _comparable(actual: Value, expected: Value) -> tuple[Value, Value]:
    """Return both as numbers if each is a number or the text of one, else both as texts."""
    numbers = _number(actual), _number(expected)
    if numbers[0] is not None and numbers[1] is not None:
        return numbers[0], numbers[1]
    return _text(actual), _text(expected)


def _number(value: Value) -> int | float | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, str):
        return float(value) if _NUMBER.fullmatch(value) else None
    return value


def _text(value: Value) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
