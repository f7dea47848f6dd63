"""JSON forms of single values: texts, numbers, enumerations. `json_forms` has the others."""

from __future__ import annotations

import json
import math
import re
import types
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from strandline.errors import InvalidInput, cut
from strandline.wire.codecs import is_text

Json = Any  # the result of json.loads: dict, list, str, int, float, bool or None

_INT64 = 1 << 63


class Misfit(Exception):
    """A JSON value that the hints do not allow. Containers prepend their step to the path."""

    def __init__(self, message: str, kind: type[InvalidInput] = InvalidInput) -> None:
        super().__init__(message)
        self.message = message
        self.kind = kind
        self.path = ""

    def within(self, step: str) -> Misfit:
        self.path = step + self.path
        return self

    def error(self) -> InvalidInput:
        return self.kind(f"{self.path.lstrip('.') or 'the body'}: {self.message}")


Components = dict[str, Json]
"""The JSON schemas of classes, by class name."""


@dataclass(frozen=True, slots=True)
class Form:
    """How values of one type are written as JSON and read from it. ``read`` raises `Misfit`.

    ``schema`` returns their JSON schema; it adds the schemas of classes to the given components.
    """

    write: Callable[[Any], Json]
    read: Callable[[Json], Any]
    schema: Callable[[Components], Json]


def enumeration(of: type[Enum]) -> Form:
    def read(value: Json) -> Any:
        if not isinstance(value, str) or value not in of.__members__:
            names = ", ".join(of.__members__)
            raise Misfit(f"expected one of {names}, found {shown(value)}")
        return of[value]

    return Form(lambda value: value.name, read, always({"enum": list(of.__members__)}))


def made(make: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """The result of ``make``; if it raises `InvalidInput`, that becomes a `Misfit`."""
    try:
        return make(*arguments, **named)
    except InvalidInput as error:
        raise Misfit(error.message, type(error)) from None


def read_text(value: Json) -> str:
    text: str = expect(value, str, "a string")
    if not is_text(text):
        raise Misfit("contains half a surrogate pair, which is not a character")
    return text


def read_int(value: Json) -> int:
    number: int = expect(value, int, "a whole number")
    if not -_INT64 <= number < _INT64:
        raise Misfit("the number does not fit 64 bits")
    return number


def read_whole(name: str) -> int:
    if not re.fullmatch(r"-?[0-9]{1,19}", name):
        raise Misfit("the name of this member should be a whole number")
    return read_int(int(name))


def _read_float(value: Json) -> float:
    if type(value) is int:
        return float(read_int(value))
    if type(value) is not float or not math.isfinite(value):
        raise Misfit(f"expected a number, found {shown(value)}")
    return value


def _read_none(value: Json) -> None:
    if value is not None:
        raise Misfit(f"expected null, found {shown(value)}")


def expect(value: Json, of: type, what: str) -> Any:
    # Not isinstance: in Python true is an int, here it is not.
    if type(value) is not of:
        raise Misfit(f"expected {what}, found {shown(value)}")
    return value


def as_it_is(value: Any) -> Json:
    """The ``write`` of values that are JSON already."""
    return value


def _scalar(read: Callable[[Json], Any], **schema: Json) -> Form:
    return Form(as_it_is, read, always(schema))


def always(schema: Json) -> Callable[[Components], Json]:
    return lambda components: schema


SCALARS: dict[Any, Form] = {
    str: _scalar(read_text, type="string"),
    int: _scalar(read_int, type="integer", format="int64"),
    float: _scalar(_read_float, type="number"),
    bool: _scalar(lambda value: expect(value, bool, "true or false"), type="boolean"),
    types.NoneType: _scalar(_read_none, type="null"),
}


def shown(value: Json) -> str:
    return (
        cut(json.dumps(value))
        if isinstance(value, str | int | float)
        else {dict: "an object", list: "a list", types.NoneType: "null"}.get(
            type(value), type(value).__name__
        )
    )
