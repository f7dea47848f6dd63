"""Node filters: which nodes a zone may use, as a condition on their attributes.

A filter is a boolean expression as in SQL's WHERE, over attributes that a node announces::

    region = 'eu' AND (disk IN ('ssd', 'nvme') OR NOT cores < 8)
    gpu IS NOT NULL

The operators are ``=  <>  !=  <  <=  >  >=``, ``IN (…)``, ``IS [NOT] NULL``, ``AND``, ``OR``,
``NOT`` and parentheses. The values are texts in single quotes (a quote inside is doubled), numbers,
``TRUE`` and ``FALSE``. Attribute names are not case-sensitive; a name that is a reserved word is
written in backticks. The empty filter accepts every node.

A filter never fails on a node. An attribute that a node does not have is null: it satisfies no
comparison (not even ``<>``), only ``IS NULL``. A text and a number are compared as numbers if the
text is a number, else as texts. So far every node has all data, and filters are only checked.

Rejected: JSONPath, which is a language for finding parts of a document. "Finds anything" is an odd
way to say yes, each library writes its conditions differently, and Spark users do not know it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from strandline.errors import InvalidInput

MAX_FILTER_LENGTH = 4096
MAX_DEPTH = 50

_TOKEN = re.compile(
    r"\s*(?:(?P<text>'(?:[^']|'')*')|(?P<number>-?[0-9]+(?:\.[0-9]+)?)(?![\w.])"
    r"|`(?P<quoted>(?:[^`]|``)+)`|(?P<word>[A-Za-z_][A-Za-z0-9_.\-]*)"
    r"|(?P<sign><=|>=|<>|!=|[=<>(),]))"
)
_RESERVED = frozenset({"AND", "OR", "NOT", "IN", "IS", "NULL", "TRUE", "FALSE"})
_TRUTHS = (("keyword", "TRUE"), ("keyword", "FALSE"))
_COMPARISONS = frozenset({"=", "<>", "!=", "<", "<=", ">", ">="})


def check_node_filter(text: str) -> None:
    """Raise `InvalidInput`, with the position of the error, if ``text`` is not a node filter."""
    if len(text) > MAX_FILTER_LENGTH:
        raise InvalidInput(
            f"a node filter may have at most {MAX_FILTER_LENGTH} characters, found {len(text)}"
        )
    if text.strip():
        parser = _Parser(text, _tokens(text))
        parser.disjunction(0)
        parser.expect_end()


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

    def disjunction(self, depth: int) -> None:
        self._conjunction(depth)
        while self._take("keyword", "OR"):
            self._conjunction(depth)

    def _conjunction(self, depth: int) -> None:
        self._negation(depth)
        while self._take("keyword", "AND"):
            self._negation(depth)

    def _negation(self, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise self._error(f"it is nested more than {MAX_DEPTH} levels deep")
        if self._take("keyword", "NOT"):
            self._negation(depth + 1)
        elif self._take("sign", "("):
            self.disjunction(depth + 1)
            self._expect("sign", ")")
        else:
            self._comparison()

    def _comparison(self) -> None:
        attribute = self._next()
        if attribute is None or attribute.kind not in ("word", "quoted"):
            raise self._error("the name of an attribute was expected", attribute)
        if self._take("keyword", "IS"):
            self._take("keyword", "NOT")
            self._expect("keyword", "NULL")
            return
        if self._take("keyword", "IN"):
            self._expect("sign", "(")
            self._value()
            while self._take("sign", ","):
                self._value()
            self._expect("sign", ")")
            return
        sign = self._next()
        if sign is None or sign.kind != "sign" or sign.text not in _COMPARISONS:
            raise self._error("a comparison was expected", sign)
        self._value()

    def _value(self) -> None:
        token = self._next()
        is_literal = token is not None and token.kind in ("text", "number")
        is_truth = token is not None and (token.kind, token.text) in _TRUTHS
        if not is_literal and not is_truth:
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
