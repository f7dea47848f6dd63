"""Refuses values of wrong types: in the fields of commands, before a catalog plans them.

Python does not check the type hints of a dataclass. With a number where a name belongs, planning
would fail with an error that names neither the field nor the value. With a text where a flag
belongs, it would not fail, and do something else.

The model: a hint is compiled once to a function that returns a value of this type, or raises
`_Misfit` with the path of what does not fit. The result is the value itself, so a command costs a
few function calls for each of its fields; only lists become tuples. The values of HTTP requests are
read by the same hints (`json_forms`), so a node does not check them again. As there, a number has
at most 64 bits, and a text has only whole characters.

Rejected: checks in the constructors, because the values that a node reads from its log need none.

The arguments of a session are looked at only after a call has failed with an error of Python, or
if one of them is True or False, with which a number would not fail (`session_calls`).
"""

from __future__ import annotations

import inspect
import operator
import types
import typing
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from functools import cache, wraps
from typing import Any, TypeVar

from strandline.catalog import commands
from strandline.catalog.planning import Command
from strandline.errors import InvalidInput, StrandlineError, cut, end_frames
from strandline.metastore.interface import Session
from strandline.metastore.session.json_values import Misfit
from strandline.model.types import ATOMIC_TYPES, AtomicType, DataType
from strandline.wire.codecs import is_text

_BITS = 63
_Fit = Callable[[Any], Any]
S = TypeVar("S", bound=Session)


class _Misfit(Misfit):
    """A value of a wrong type, and what was expected."""

    def __init__(self, value: object, expected: str) -> None:
        super().__init__(f"must be {expected}, not {cut(repr(value))}")
        self.expected = expected


def checked_batch(batch: Sequence[Command] | str) -> list[Command]:
    """The commands. Raises `InvalidInput` if a value does not fit its field, or for SQL text."""
    return [_checked(command) for command in ([batch] if isinstance(batch, str) else batch)]


def _checked(command: Any) -> Command:  # Any: a caller may give anything
    of = type(command)
    if not hasattr(of, "plan"):
        raise InvalidInput(
            f"{cut(repr(command))} is not a command; give commands of strandline.catalog.commands"
        )
    if getattr(commands, of.__name__, None) is not of:
        other_command: Command = command
        return other_command
    try:
        checked: Command = _fit(of)(command)
    except _Misfit as misfit:
        raise InvalidInput(f"{of.__name__}{misfit.path} {misfit.message}") from None
    return checked


@cache
def _fit(hint: Any) -> _Fit:
    origin, members = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        return _union(members)
    if origin is tuple:
        return _tuple(members)
    if hint in _SCALARS:
        return _scalar(*_SCALARS[hint])
    if is_dataclass(hint):
        return _class(hint)
    return _scalar(lambda value: isinstance(value, hint), _noun(hint))


def _scalar(fits: Callable[[object], bool], expected: str) -> _Fit:
    def fit(value: object) -> object:
        if not fits(value):
            raise _Misfit(value, expected)
        return value

    return fit


def _is_bool(value: object) -> bool:
    return value is True or value is False


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not _is_bool(value) and value.bit_length() <= _BITS


_A_TYPE = "a data type of strandline.model.types"
_SCALARS: dict[Any, tuple[Callable[[object], bool], str]] = {
    str: (lambda value: isinstance(value, str) and is_text(value), "a text of whole characters"),
    int: (_is_whole, "a whole number of 64 bits"),
    float: (lambda value: isinstance(value, float) or _is_whole(value), "a number"),
    bool: (lambda value: isinstance(value, bool), "True or False"),
    types.NoneType: (lambda value: value is None, "None"),
    AtomicType: (tuple(ATOMIC_TYPES.values()).__contains__, _A_TYPE),
}


def _noun(of: type) -> str:
    if issubclass(of, Enum):
        return f"like {of.__name__}.{next(iter(of)).name} of {of.__module__}"
    return _A_TYPE if of in typing.get_args(DataType) else f"of the class {of.__name__}"


def _class(of: Any) -> _Fit:
    expected = _noun(of)

    def fit(value: Any) -> Any:
        if not isinstance(value, of):
            raise _Misfit(value, expected)
        changed = {}
        for name, fit_field in _fields(of):
            given = getattr(value, name)
            try:
                fitting = fit_field(given)
            except _Misfit as misfit:
                raise misfit.within(f".{name}") from None
            if fitting is not given:
                changed[name] = fitting
        return replace(value, **changed) if changed else value

    return fit


@cache  # read at the first value: a data type may contain others of its own class
def _fields(of: Any) -> list[tuple[str, _Fit]]:
    hints = typing.get_type_hints(of)
    return [(field.name, _fit(hints[field.name])) for field in fields(of) if field.init]


def _union(members: Sequence[Any]) -> _Fit:
    by_class = {typing.get_origin(member) or member: _fit(member) for member in members}

    def fit(value: object) -> object:
        if type(value) in by_class:
            return by_class[type(value)](value)
        expected = []
        for fit_member in by_class.values():
            try:
                return fit_member(value)
            except _Misfit as misfit:
                expected.append(misfit.expected)
        raise _Misfit(value, " or ".join(dict.fromkeys(expected)))

    return fit


def _tuple(members: Sequence[Any]) -> _Fit:
    is_any_length = members[-1] is Ellipsis
    fits = [_fit(member) for member in members if member is not Ellipsis]
    expected = f"a tuple of {len(fits)}"
    if is_any_length:
        is_map = typing.get_args(members[0]) == (str, str)
        expected = "a tuple of pairs, like (('a', '1'),)" if is_map else "a tuple"

    def fit(value: Any) -> Any:
        if not isinstance(value, tuple | list) or not (is_any_length or len(value) == len(fits)):
            raise _Misfit(value, expected)
        fitting: list[Any] = []
        for number, element in enumerate(value):
            try:
                fitting.append(fits[0 if is_any_length else number](element))
            except _Misfit as misfit:
                raise misfit.within(f"[{number}]") from None
        is_unchanged = isinstance(value, tuple) and all(map(operator.is_, value, fitting))
        return value if is_unchanged else tuple(fitting)

    return fit


# -- the arguments of a session


def session_calls(of: type[S]) -> type[S]:
    """The class, whose calls raise `InvalidInput` if an argument of a wrong type made them fail.

    Also for True and False as numbers, which would be 1 and 0.
    A call that a signal handler ends leaves nothing open, also while the error is kept.
    """
    for name in Session.__abstractmethods__:
        setattr(of, name, _session_call(getattr(of, name), getattr(Session, name)))
    return of


def _session_call(method: Callable[..., Any], declared: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def call(*arguments: Any, **named: Any) -> Any:
        if any(map(_is_bool, (*arguments, *named.values()))):
            misfit = _misfit_in(declared, arguments, named)
            if misfit is not None:
                raise InvalidInput(misfit)
        try:
            return method(*arguments, **named)
        except StrandlineError:
            raise
        except BaseException as error:
            end_frames(error)
            may_be_misfit = isinstance(error, AttributeError | TypeError | ValueError)
            misfit = _misfit_in(declared, arguments, named) if may_be_misfit else None
            if misfit is None:
                raise
            raise InvalidInput(misfit) from error

    return call


def _misfit_in(
    declared: Callable[..., Any], arguments: tuple[Any, ...], named: dict[str, Any]
) -> str | None:
    signature, hints = _declaration(declared)
    try:
        given = signature.bind(*arguments, **named).arguments
    except TypeError:  # one is missing, which the error of the call says too
        return None
    for name, value in given.items():
        hint = hints.get(name, object)
        is_union = typing.get_origin(hint) in (types.UnionType, typing.Union)
        members = typing.get_args(hint) if is_union else (hint,)
        of = [getattr(member, "__supertype__", member) for member in members]  # of a `NewType`
        if not all(isinstance(member, type) for member in of):
            continue
        fits = isinstance(value, (*of, int) if float in of else tuple(of))
        if not fits or (_is_bool(value) and bool not in of):
            expected = [_SCALARS[each][1] if each in _SCALARS else _noun(each) for each in of]
            what = f"the argument {name} of {declared.__name__}"
            return f"{what} must be {' or '.join(expected)}, not {cut(repr(value))}"
    return None


@cache  # each begin of a transaction says whether it is read only
def _declaration(declared: Callable[..., Any]) -> tuple[inspect.Signature, dict[str, Any]]:
    return inspect.signature(declared), typing.get_type_hints(declared)
