"""Parses types from SQL text: Spark's DDL and Hive's type names.

One scanner reads both. It reads the text once from left to right, without a tokenizer, so parsing
takes linear time and an error knows its position. Field names differ: Hive does not need to
quote, so a Hive field name extends to the next colon and may contain blanks, dots and dollars.

Rejected: sqlglot for these texts. It accepts more than Spark does and does not keep positions. The
catalog must only store types that Spark can read again.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeVar

from strandline.errors import InvalidType, cut
from strandline.model.type_text import HIVE_NAME
from strandline.model.types import (
    ATOMIC_TYPES,
    BIGINT,
    CALENDAR_INTERVAL,
    DAY_TIME_UNITS,
    FLOAT,
    INT,
    MAX_DEPTH,
    SMALLINT,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    TINYINT,
    VOID,
    YEAR_MONTH_UNITS,
    ArrayType,
    CharType,
    DataType,
    DayTimeIntervalType,
    DecimalType,
    GeographyType,
    GeometryType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimeType,
    VarcharType,
    YearMonthIntervalType,
)

T = TypeVar("T")

MAX_TEXT_LENGTH = 16 * 2**20
"""The longest text of a type, in characters; enough for some 300,000 columns."""

MICROSECOND_DIGITS = 6
"""The precision of a timestamp. Spark 4.3 contains finer timestamps, but they are disabled."""

_PLAIN: dict[str, DataType] = {**ATOMIC_TYPES, "string": STRING}
"""Most columns have one of these texts, which need not be scanned."""
_ALIASES: dict[str, DataType] = {
    **ATOMIC_TYPES,
    "byte": TINYINT,
    "short": SMALLINT,
    "integer": INT,
    "long": BIGINT,
    "real": FLOAT,
    "timestamp_ltz": TIMESTAMP,
    "null": VOID,
}
_HIVE_INTERVALS: dict[str, DataType] = {
    "interval_year_month": YearMonthIntervalType("year", "month"),
    "interval_day_time": DayTimeIntervalType("day", "second"),
}
"""Hive's names of interval types, which Spark does not know."""
_SPACE = re.compile(r"\s*")
_WORD = re.compile(r"[A-Za-z0-9_]+")
_NUMBER = re.compile(r"[0-9]{1,10}(?![A-Za-z0-9_])")
# Possessive repeats: the others remember each character of a text, in a hundred bytes.
_QUOTED_NAME = re.compile(r"`((?:[^`]|``)*+)`")
_STRING = re.compile(r"""'((?:[^'\\]|\\.|'')*+)'|"((?:[^"\\]|\\.|"")*+)\"""", re.DOTALL)
_RAW_STRING = re.compile(r"""[rR](?:'([^']*)'|"([^"]*)")""")
_ESCAPE = re.compile(r"\\(u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}|[01][0-7]{2}|.)", re.DOTALL)
_COLLATION = re.compile(r"[A-Za-z][A-Za-z0-9_.]*")
_COLLATION_HOME = "system.builtin."
_CONTROL_ESCAPES = {
    "0": "\0",
    "b": "\b",
    "n": "\n",
    "r": "\r",
    "t": "\t",
    "Z": "\x1a",
    "%": "\\%",
    "_": "\\_",
}


def parse_type(text: str) -> DataType:
    """Return the type that Spark's DDL ``text`` describes, like ``struct<a: int, b: array<int>>``.

    Keywords may be in any case. ``decimal`` without parameters is decimal(10,0). Raises
    `InvalidType` with the position (in characters, from 0) and what was expected there.
    """
    return _PLAIN.get(text) or _parsed(text, in_hive=False)


def parse_fields(text: str) -> tuple[StructField, ...]:
    """Return the columns in Spark's DDL ``text``: ``a INT NOT NULL COMMENT 'x', b STRING``."""
    scanner = _Scanner(text, in_hive=False, is_a="list of columns")
    return scanner.whole(scanner.fields)


def parse_hive_type(text: str) -> DataType:
    """Return the type that Hive's type name ``text`` describes.

    Raises `InvalidType` as `parse_type` does.
    """
    return _PLAIN.get(text) or _parsed(text, in_hive=True)


def _parsed(text: str, *, in_hive: bool) -> DataType:
    scanner = _Scanner(text, in_hive=in_hive)
    return scanner.whole(scanner.data_type)


def canonical_collation(name: str) -> str:
    """Return Spark's spelling of a collation name: its own in upper case, locales unchanged."""
    if name.lower().startswith(_COLLATION_HOME):
        name = name[len(_COLLATION_HOME) :]
    return name.upper() if name.upper().startswith(("UTF8_", "UNICODE")) else name


def _unescaped(match: re.Match[str]) -> str:
    body = match[1]
    if body[0] in "uU" and len(body) > 1:
        code = int(body[1:], 16)
        return chr(code) if code <= 0x10FFFF else body
    if len(body) == 3:
        return chr(int(body, 8))
    return _CONTROL_ESCAPES.get(body, body)


class _Scanner:
    """Reads a text from left to right. Each method reads one construct and advances past it."""

    def __init__(self, text: str, *, in_hive: bool, is_a: str = "type") -> None:
        if len(text) > MAX_TEXT_LENGTH:
            raise InvalidType(
                f"a type of {len(text)} characters is too long; at most {MAX_TEXT_LENGTH} are read"
            )
        self.text = text
        self.at = 0
        self.depth = 0
        self.in_hive = in_hive
        self.is_a = is_a

    def whole(self, construct: Callable[[], T]) -> T:
        result = construct()
        self.skip_space()
        if self.at < len(self.text):
            raise self.error("the end")
        return result

    def data_type(self) -> DataType:
        start = self.skip_space()
        word = self.word()
        if word is None:
            raise self.error("a data type")
        if word in ("array", "map", "struct") or (self.in_hive and word == "uniontype"):
            return self.nested(word)
        if word in ("decimal", "dec", "numeric"):
            return self.decimal()
        if word == "string":
            return self.string()
        if word in ("char", "character", "varchar"):
            length = self.parameter(f"the length of {word}, as in {word}(10)")
            return VarcharType(length) if word == "varchar" else CharType(length)
        if word in ("timestamp", "time"):
            return self.timestamp(word)
        if word in ("timestamp_ntz", "timestamp_ltz"):
            self.microseconds()
        if word in ("geometry", "geography"):
            return self.spatial(word)
        if word == "interval":
            return self.interval()
        if word in _ALIASES:
            return _ALIASES[word]
        if self.in_hive and word in _HIVE_INTERVALS:
            return _HIVE_INTERVALS[word]
        self.at = start
        raise self.error("a data type")

    def nested(self, word: str) -> DataType:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise self.error(f"at most {MAX_DEPTH} levels of nesting")
        self.expect("<")
        result: DataType
        if word == "array":
            result = ArrayType(self.data_type())
        elif word == "map":
            key = self.data_type()
            self.expect(",")
            result = MapType(key, self.data_type())
        elif word == "uniontype":
            result = self.union()
        else:
            result = StructType(() if self.peek(">") else self.fields())
        self.expect(">")
        self.depth -= 1
        return result

    def union(self) -> StructType:
        """Return a struct for Hive's union, as Trino and Presto do: a tag, then every member."""
        members = [self.data_type()]
        while self.take(","):
            members.append(self.data_type())
        fields = (StructField(f"field{n}", member) for n, member in enumerate(members))
        return StructType((StructField("tag", TINYINT), *fields))

    def fields(self) -> tuple[StructField, ...]:
        fields = [self.field()]
        while self.take(","):
            fields.append(self.field())
        return tuple(fields)

    def field(self) -> StructField:
        name = self.hive_name() if self.in_hive else self.name()
        if self.in_hive:
            self.expect(":")
        else:
            self.take(":")
        data_type = self.data_type()
        nullable, comment = True, None
        if self.keyword("not"):
            if not self.keyword("null"):
                raise self.error("NULL after NOT")
            nullable = False
        if self.keyword("comment"):
            comment = self.literal()
        return StructField(name, data_type, nullable=nullable, comment=comment)

    def name(self) -> str:
        self.skip_space()
        if match := _QUOTED_NAME.match(self.text, self.at):
            self.at = match.end()
            return match[1].replace("``", "`")
        match = _WORD.match(self.text, self.at)
        if match is None or match[0].isdigit():
            raise self.error("a field name, in backticks unless it is a plain word,")
        self.at = match.end()
        return match[0]

    def hive_name(self) -> str:
        self.skip_space()
        if self.text.startswith("`", self.at):
            return self.name()
        match = HIVE_NAME.match(self.text, self.at)
        if match is None:
            raise self.error("a field name")
        self.at = match.end()
        return match[0].rstrip()

    def decimal(self) -> DecimalType:
        if not self.take("("):
            return DecimalType()
        precision, scale = self.number("a precision"), 0
        if self.take(","):
            scale = self.number("a scale")
        self.expect(")")
        return DecimalType(precision, scale)

    def string(self) -> StringType:
        if not self.keyword("collate"):
            return STRING
        self.skip_space()
        match = _COLLATION.match(self.text, self.at)
        if match is None:
            raise self.error("the name of a collation")
        self.at = match.end()
        return StringType(canonical_collation(match[0]))

    def timestamp(self, word: str) -> DataType:
        precision = None
        if word == "timestamp":
            self.microseconds()
        elif self.peek("("):
            precision = self.parameter("a precision")
        before = self.at
        zoned = None
        if self.keyword("without") and self.keyword("time"):
            zoned = False
        elif self.keyword("with") and self.keyword("local") and self.keyword("time"):
            zoned = True
        if zoned is None:
            self.at = before
        elif not self.keyword("zone"):
            raise self.error("ZONE after TIME")
        if word == "time":
            return TimeType() if precision is None else TimeType(precision)
        return TIMESTAMP_NTZ if zoned is False else TIMESTAMP

    def microseconds(self) -> None:
        """Read an optional ``(6)`` after a timestamp type, the only precision allowed."""
        before = self.at
        if self.take("("):
            if self.number("6 as the precision of a timestamp") != MICROSECOND_DIGITS:
                self.at = before + 1
                raise self.error("6 as the precision of a timestamp")
            self.expect(")")

    def spatial(self, word: str) -> DataType:
        if not self.take("("):
            raise self.error(f"the spatial reference of {word}, as in {word}(4326)")
        srid = None if self.keyword("any") else self.number("ANY or a spatial reference number")
        self.expect(")")
        return GeometryType(srid) if word == "geometry" else GeographyType(srid)

    def interval(self) -> DataType:
        start = self.unit()
        if start is None:
            return CALENDAR_INTERVAL
        end = start
        if self.keyword("to"):
            named = self.unit()
            if named is None or named == start:
                raise self.error(f"a smaller unit than {start}")
            end = named
        if start in YEAR_MONTH_UNITS:
            return YearMonthIntervalType(start, end)
        return DayTimeIntervalType(start, end)

    def unit(self) -> str | None:
        for unit in (*YEAR_MONTH_UNITS, *DAY_TIME_UNITS):
            if self.keyword(unit):
                return unit
        return None

    def literal(self) -> str:
        parts = []
        while True:
            self.skip_space()
            if match := _RAW_STRING.match(self.text, self.at):
                parts.append(match[1] if match[1] is not None else match[2])
            elif match := _STRING.match(self.text, self.at):
                quote = match[0][0]
                body = match[1] if match[1] is not None else match[2]
                parts.append(_ESCAPE.sub(_unescaped, body.replace(quote * 2, quote)))
            elif parts:
                return self.joined(parts)
            else:
                raise self.error("a text in quotes")
            self.at = match.end()

    def joined(self, parts: list[str]) -> str:
        """Return the parts as one text. Two escapes may form one character beyond 16 bits."""
        try:
            return "".join(parts).encode("utf-16-le", "surrogatepass").decode("utf-16-le")
        except UnicodeDecodeError:
            raise self.error("whole characters in the text before") from None

    def parameter(self, what: str) -> int:
        if not self.take("("):
            raise self.error(what)
        value = self.number(what)
        self.expect(")")
        return value

    def number(self, what: str) -> int:
        self.skip_space()
        match = _NUMBER.match(self.text, self.at)
        if match is None:
            raise self.error(what)
        self.at = match.end()
        return int(match[0])

    def word(self) -> str | None:
        self.skip_space()
        match = _WORD.match(self.text, self.at)
        if match is None:
            return None
        self.at = match.end()
        return match[0].lower()

    def keyword(self, word: str) -> bool:
        before = self.at
        if self.word() == word:
            return True
        self.at = before
        return False

    def peek(self, mark: str) -> bool:
        self.skip_space()
        return self.text.startswith(mark, self.at)

    def take(self, mark: str) -> bool:
        if not self.peek(mark):
            return False
        self.at += len(mark)
        return True

    def expect(self, mark: str) -> None:
        if not self.take(mark):
            raise self.error(repr(mark))

    def skip_space(self) -> int:
        match = _SPACE.match(self.text, self.at)
        if match is not None:
            self.at = match.end()
        return self.at

    def error(self, expected: str) -> InvalidType:
        self.skip_space()
        rest = self.text[self.at : self.at + 20]
        shown = cut(self.text, 200)
        return InvalidType(
            f"the {self.is_a} {shown!r} does not parse: expected {expected} at position {self.at}, "
            f"found {repr(rest) if rest else 'the end'}"
        )
