"""Patterns of partition names that match all partitions that a filter or some values can choose.

The store compares names with the pattern in SQL (``LIKE``), so of a table with many partitions it
returns few rows. The pattern may match more names than the filter, which is evaluated for each of
these rows. ``year = 2013 and carrier >= "UA" and carrier < "UC"`` becomes
``year=%2013%/carrier=U%``: 2013 may be stored as ``02013``, and a text between two texts begins as
both do. What precedes the first wildcard is a range of the store's index by name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import takewhile

from strandline.metastore.hive.partition_filter import (
    And,
    Comparison,
    Expression,
    In,
    Literal,
    Or,
    folded,
)
from strandline.metastore.hive.partition_values import (
    DEFAULT_PARTITION,
    Day,
    cast_to,
    escape,
    number,
)
from strandline.model.types import DATE, INTEGRAL_TYPES, CharType, DataType, StringType, VarcharType

MAX_LENGTH = 1_000
"""The maximum number of characters of a pattern. A database refuses very long ones."""
_ANY = "%"
_SPECIAL = re.compile("[%_!]")
_FARTHEST = 1 << 63
"""No value of an integer key is farther from 0."""
_BELOW, _ABOVE = ("<", "<="), (">", ">=")


def pattern_of_filter(expression: Expression, keys: Sequence[tuple[str, DataType]]) -> str | None:
    """The names that a filter can choose, or None if it can choose any."""
    of_keys: dict[str, list[Comparison | In]] = {}
    for condition in _required(expression):
        of_keys.setdefault(condition.key.lower(), []).append(condition)
    parts = []
    for name, key_type in keys:
        conditions = of_keys.get(name.lower(), [])
        patterns = [*_listed(conditions, key_type), *_between(conditions, key_type)]
        parts.append(max(patterns, key=len, default=_ANY))
    return _pattern([name for name, _ in keys], parts)


def pattern_of_values(
    values: Sequence[str], *, keys: Sequence[str], begins: int | None
) -> str | None:
    """The names whose first values are these, or None if any are; an empty value matches any.

    The value at the position ``begins`` is only the beginning of one.
    """
    parts = [_ANY] * len(keys)
    for position, value in enumerate(values):
        if value:
            parts[position] = _literally(escape(value)) + (_ANY if position == begins else "")
    return _pattern(keys, parts)


def _pattern(keys: Sequence[str], values: Sequence[str]) -> str | None:
    if all(value == _ANY for value in values):
        return None
    text = "/".join(
        value if value == _ANY else f"{_literally(escape(key.lower()))}={value}"
        for key, value in zip(keys, values, strict=True)
    )
    text = re.sub("%(/%(?=/|$))+", _ANY, text)
    return text if len(text) <= MAX_LENGTH else None


def _required(expression: Expression) -> Iterator[Comparison | In]:
    """Conditions on single keys that hold for every partition that the filter chooses."""
    match expression:
        case And(parts):
            for part in parts:
                yield from _required(part)
        case Or(parts):
            alternatives = folded(parts)
            if len(alternatives) == 1:
                yield from _required(alternatives[0])
        case Comparison(key, "=", literal):
            yield In(key, (literal,))
        case Comparison() | In(_, _, False):
            yield expression


def _listed(conditions: Sequence[Comparison | In], key_type: DataType) -> Iterator[str]:
    for condition in conditions:
        if not isinstance(condition, In):
            continue
        if len(condition.literals) == 1:
            yield _equal(condition.literals[0], key_type)
        elif _are_texts(condition.literals, key_type):
            names = [escape(literal.text) or DEFAULT_PARTITION for literal in condition.literals]
            yield _literally(_common_beginning(names)) + _ANY


def _equal(literal: Literal, key_type: DataType) -> str:
    if _are_texts([literal], key_type):
        return _literally(escape(literal.text) or DEFAULT_PARTITION)
    if literal.text == DEFAULT_PARTITION and not isinstance(key_type, CharType):
        return _literally(DEFAULT_PARTITION)
    if key_type in INTEGRAL_TYPES:
        wanted = number(literal.text)
        # Python does not write numbers of thousands of digits, such as 1e9999.
        if wanted is not None and abs(wanted) <= _FARTHEST and wanted == wanted.to_integral_value():
            return f"%{abs(int(wanted))}%"
    if key_type == DATE:
        day = cast_to(DATE)(literal.text)
        if day is not None:
            return _of_day(day)
    return _ANY


def _of_day(date: Day) -> str:
    """The names of one day. A text of a date may leave out the first month and the first day."""
    year, month, day = date
    pattern = f"%{abs(year):04}"
    if (month, day) != (1, 1):
        pattern += f"-%{month}"
    if day != 1:
        pattern += f"-%{day}"
    return pattern + _ANY


def _between(conditions: Sequence[Comparison | In], key_type: DataType) -> Iterator[str]:
    """The common beginning of a lower and an upper bound of a text key."""
    bounds: list[str] = []
    for symbols in (_BELOW, _ABOVE):
        bounds += [
            condition.literal.text
            for condition in conditions
            if isinstance(condition, Comparison)
            and condition.operator in symbols
            and _are_texts([condition.literal], key_type)
        ][:1]
    if len(bounds) == 2:
        yield _literally(escape(_common_beginning(bounds))) + _ANY


def _are_texts(literals: Sequence[Literal], key_type: DataType) -> bool:
    """Whether the stored text of the key is compared with those of the literals."""
    return isinstance(key_type, StringType | VarcharType) and all(
        not literal.is_number for literal in literals
    )


def _common_beginning(texts: Sequence[str]) -> str:
    pairs = takewhile(lambda pair: pair[0] == pair[1], zip(min(texts), max(texts), strict=False))
    return "".join(character for character, _ in pairs)


def _literally(text: str) -> str:
    return _SPECIAL.sub(r"!\g<0>", text)
