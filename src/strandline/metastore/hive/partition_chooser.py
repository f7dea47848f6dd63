"""Chooses partitions: a filter bound to the names and types of a table's partition keys.

Values are compared as values of the key's type, in memory. (Hive casts in SQL, and refuses the
whole filter once a stored value does not cast or a ``like`` occurs.) A value that does not cast is
NULL and chosen by no condition. The default partition is NULL too, with two exceptions that are
Hive's: ``!=`` and ``not in`` choose it, and its name as a text stands for it. Since nothing
negates, NULL and false are the same, and a filter is a plain yes or no.

A wrong filter is refused when it is read or bound to a table's keys, never in the middle of a scan.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from strandline.errors import InvalidInput, LimitExceeded
from strandline.metastore.hive.like_patterns import like
from strandline.metastore.hive.partition_filter import (
    And,
    Comparison,
    Expression,
    In,
    Like,
    Literal,
    LiteralKind,
    Or,
    parse_filter,
)
from strandline.metastore.hive.partition_names import DEFAULT_PARTITION, is_default
from strandline.metastore.hive.partition_values import Cast, cast_to, number
from strandline.model.types import INTEGRAL_TYPES, CharType, DataType, StringType, VarcharType

MAX_CONDITIONS = 1_000
"""In one filter. Equalities with one key beside each other, joined by ``or``, are one condition."""

Chooser: TypeAlias = Callable[[Sequence[str]], bool]
"""Whether a partition with these values, in the order of the keys, is chosen."""


def partition_chooser(text: str, keys: Sequence[tuple[str, DataType]]) -> Chooser:
    """The filter ``text`` for a table with these partition keys. Raises `InvalidInput`."""
    return bind_filter(parse_filter(text), keys)


def bind_filter(expression: Expression, keys: Sequence[tuple[str, DataType]]) -> Chooser:
    """The filter for a table whose partition keys have these names and types.

    Raises `InvalidInput` for a key that the table has not, `LimitExceeded` for too many conditions.
    """
    conditions = _conditions(expression)
    if conditions > MAX_CONDITIONS:
        raise LimitExceeded(
            f"a filter may have {MAX_CONDITIONS} conditions, found {conditions}; write many values "
            "of one key as (key) in (…), which is a single condition"
        )
    positions = {name.lower(): position for position, (name, _) in enumerate(keys)}
    return _bound(expression, keys, positions)


def _conditions(expression: Expression) -> int:
    """What each partition may have to be compared with."""
    match expression:
        case And(parts):
            return sum(map(_conditions, parts))
        case Or(parts):
            return sum(map(_conditions, _folded(parts)))
    return 1


def _bound(
    expression: Expression, keys: Sequence[tuple[str, DataType]], positions: dict[str, int]
) -> Chooser:
    match expression:
        case And(parts):
            all_of = [_bound(part, keys, positions) for part in parts]
            return lambda values: all(chooses(values) for chooses in all_of)
        case Or(parts):
            any_of = [_bound(part, keys, positions) for part in _folded(parts)]
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
            return lambda values: not is_default(values[position]) and matches(values[position])
        case In(_, literals, negated):
            return _bound_in(literals, key_type, position, negated=negated)
        case Comparison(_, "=", literal):
            return _bound_in((literal,), key_type, position, negated=False)
        case Comparison(_, "!=", literal):
            return _bound_in((literal,), key_type, position, negated=True)
        case Comparison(_, symbol, literal):
            return _bound_order(_OPERATORS[symbol], literal, key_type, position)


def _folded(parts: Sequence[Expression]) -> list[Expression]:
    """Alternatives of which all equalities with one key are a single ``in``: one look at a set."""
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
    """Equality with one of the literals, or with none of them."""
    names_default = any(literal.text == DEFAULT_PARTITION for literal in literals)
    by_cast: list[tuple[Cast, set[Any]]] = []
    for kind in sorted({literal.kind for literal in literals}, key=lambda kind: kind.value):
        cast, cast_literal = _casts(key_type, kind)
        texts = {literal.text for literal in literals if literal.kind is kind}
        by_cast.append((cast, {cast_literal(text) for text in texts - {DEFAULT_PARTITION}}))
    if negated and any(None in wanted for _, wanted in by_cast):
        return lambda values: is_default(values[position])

    def chooses(values: Sequence[str]) -> bool:
        value = values[position]
        if is_default(value):
            return names_default != negated
        for cast, wanted in by_cast:
            found = cast(value)
            if negated and (found is None or found in wanted):
                return False
            if not negated and found is not None and found in wanted:
                return True
        return negated

    return chooses


def _bound_order(
    holds: Callable[[Any, Any], bool], literal: Literal, key_type: DataType, position: int
) -> Chooser:
    cast, cast_literal = _casts(key_type, literal.kind)
    limit = None if literal.text == DEFAULT_PARTITION else cast_literal(literal.text)
    if limit is None:
        return lambda _: False

    def chooses(values: Sequence[str]) -> bool:
        value = values[position]
        found = None if is_default(value) else cast(value)
        return found is not None and holds(found, limit)

    return chooses


def _casts(key_type: DataType, kind: LiteralKind) -> tuple[Cast, Cast]:
    """How the stored text and the literal's text become values that compare.

    A literal beside an integer key may lie outside its type or between two of its values, and is
    any number. A bare number beside a text makes the text a number, as in Spark.
    """
    if key_type in INTEGRAL_TYPES:
        return cast_to(key_type), number
    if kind is LiteralKind.NUMBER and isinstance(key_type, StringType | CharType | VarcharType):
        return number, number
    return cast_to(key_type), cast_to(key_type)


_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
