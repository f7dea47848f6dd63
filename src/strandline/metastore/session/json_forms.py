"""JSON for the values that are sent over HTTP: one codec, driven by the values' own type hints.

Commands, snapshots, transactions, holds and descriptors are frozen dataclasses with typed fields.
The hints are read once for each class and become a `Form`, which writes, reads and describes the
values. No class has its own code here, and a field that is added is sent without further code.

====================  ============================================================================
dataclass             an object with a member for each field
command               an object with one member, named after its class: ``{"drop_table": {…}}``
time, integer         a number, within 64 bits
enumeration           the name of the member
flags                 a list of the names of the members
data type             Spark's JSON, with the ids of nested fields under ``parquet.field.id``
valid write ids       Hive's text, ``hwm:minOpen:open:aborted`` after the table's name
text map              an object
other mapping         an object, keys as text
sequence              a list
====================  ============================================================================

What must stay true: a value that is read is exactly what the hints allow. Otherwise an error gives
the path of the field (``commands[0].create_table.definition.name``) and what was found there.
Nothing is guessed or converted. An unknown member is refused, since a client that sends one relies
on it. A field with a default may be omitted, so that a later release can add one. Only commands and
classes that the hints name are instantiated.

Rejected: Python's pickle (executes what it reads), the binary format of the disk (clients in other
languages, and people with curl), and a function for each class (forty, each with its own mistakes).
msgspec reads no union of dataclasses, which commands and data types are, and accepts unknown
members of a dataclass. cattrs reads both, with hooks for half of the code here, but its errors say
neither what was found nor what is allowed: ``extra fields found (colour) @ $.definition`` or
``invalid value @ $.definition.properties[0]``. Both accept numbers of any size.
"""

from __future__ import annotations

import inspect
import json
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum, Flag
from functools import cache, lru_cache, partial, reduce
from operator import attrgetter, itemgetter, or_
from typing import Any, NewType

from strandline.catalog import Command, commands
from strandline.errors import InvalidInput, cut
from strandline.metastore.session.json_values import (
    SCALARS,
    Components,
    Form,
    Json,
    Misfit,
    always,
    as_it_is,
    enumeration,
    expect,
    made,
    read_text,
    read_whole,
    shown,
)
from strandline.model.descriptors import Properties, properties
from strandline.model.type_json import parse_type_json, type_value
from strandline.model.types import DataType
from strandline.transactions import ValidWriteIdList


def snake_case(name: str) -> str:
    """``CreateTable`` → ``create_table``."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def _is_union(hint: Any) -> bool:
    return typing.get_origin(hint) in (types.UnionType, typing.Union)


_COMMANDS = {
    snake_case(name): exported
    for name in commands.__all__
    if isinstance(exported := getattr(commands, name), type) and hasattr(exported, "plan")
}
"""The classes of commands, by the names under which they are written."""


@cache
def form_of(hint: Any) -> Form:
    """The form of a type hint. Raises `TypeError` if it has none, which is a programming error."""
    if isinstance(hint, NewType):
        return form_of(hint.__supertype__)
    if hint == Properties:
        texts = {"type": "object", "additionalProperties": {"type": "string"}}
        return Form(dict, _read_properties, always(texts))
    if hint == DataType:
        return Form(
            partial(type_value, field_ids=True),
            _read_type,
            always({"type": ["string", "object"], "description": "a data type, as Spark's JSON"}),
        )
    if hint is ValidWriteIdList:
        what = "the text of a list of write ids"
        schema = always({"type": "string", "description": what})
        return Form(str, lambda v: made(ValidWriteIdList.parse, expect(v, str, what)), schema)
    if hint is Command:
        return _tagged(_COMMANDS)
    if hint in SCALARS:
        return SCALARS[hint]
    if isinstance(hint, type) and issubclass(hint, Flag):
        return _flags(hint)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return enumeration(hint)
    if is_dataclass(hint) and isinstance(hint, type):
        return _dataclass(hint)
    if _is_union(hint):
        return _union(hint)
    return _container(hint)


def arguments_form(method: Callable[..., Any]) -> Form:
    """The form of the arguments of ``method`` (without ``self``), which are a dict."""
    hints = _hints(method)
    parameters = list(inspect.signature(method).parameters.values())[1:]
    members = {
        parameter.name: (
            form_of(hints[parameter.name]),
            parameter.default is inspect.Parameter.empty,
        )
        for parameter in parameters
    }
    return _object(members, getter=itemgetter, make=lambda **values: values)


def result_hint(method: Callable[..., Any]) -> Any:
    return _hints(method)["return"]


def _hints(cls: Any) -> dict[str, Any]:
    """The hints of a class or method, including the annotation that marks `Properties`."""
    return typing.get_type_hints(cls, include_extras=True)


def _dataclass(cls: type) -> Form:
    hints = _hints(cls)
    members = {
        field.name: (
            form_of(hints[field.name]),
            field.default is MISSING and field.default_factory is MISSING,
        )
        for field in fields(cls)
        if field.init
    }
    form = _object(members, getter=attrgetter, make=cls)

    def schema(components: Components) -> Json:
        if cls.__name__ not in components:
            components[cls.__name__] = None  # the class may refer to itself
            components[cls.__name__] = form.schema(components)
        return {"$ref": f"#/components/schemas/{cls.__name__}"}

    return Form(form.write, form.read, schema)


def _object(
    members: Mapping[str, tuple[Form, bool]],
    *,
    getter: Callable[..., Callable[[Any], Any]],
    make: Callable[..., Any],
) -> Form:
    """An object with these members, given as their forms and whether they are required.

    ``getter(*names)`` reads the values of members; with only one name, it gives that value itself.
    """
    required = [name for name, (_, needed) in members.items() if needed]
    names = tuple(members)
    get = getter(*names) if len(names) > 1 else lambda value: [getter(n)(value) for n in names]
    written_anew = [
        (name, form.write) for name, (form, _) in members.items() if form.write is not as_it_is
    ]

    def write(value: Any) -> Json:
        written = dict(zip(names, get(value), strict=False))
        for name, write_member in written_anew:
            written[name] = write_member(written[name])
        return written

    def read(value: Json) -> Any:
        expect(value, dict, "an object")
        for name in required:
            if name not in value:
                raise Misfit("is missing").within(f".{name}")
        values = {}
        for name, inner in value.items():
            if name not in members:
                known = ", ".join(members) or "none"
                raise Misfit(f"is not a member of this object; its members are: {known}").within(
                    f".{cut(name)}"
                )
            try:
                values[name] = members[name][0].read(inner)
            except Misfit as misfit:
                raise misfit.within(f".{name}") from None
        return made(make, **values)

    def schema(components: Components) -> Json:
        return {
            "type": "object",
            "properties": {name: form.schema(components) for name, (form, _) in members.items()},
            "required": required,
            "additionalProperties": False,
        }

    return Form(write, read, schema)


def _tagged(members: Mapping[str, Any]) -> Form:
    names = {of: name for name, of in members.items()}

    def write(value: Any) -> Json:
        cls: Any = type(value)
        name = names.get(cls)
        if name is None:
            raise InvalidInput(f"{cls.__name__} cannot be sent; these can: {', '.join(members)}")
        return {name: form_of(cls).write(value)}

    def read(value: Json) -> Any:
        expect(value, dict, "an object")
        if len(value) != 1:
            raise Misfit(
                "expected exactly one member, whose name is the kind of the value, found "
                f"{len(value)}"
            )
        ((name, inner),) = value.items()
        if name not in members:
            raise Misfit(
                f"{cut(name)!r} is not a kind of this value; the kinds are: {', '.join(members)}"
            )
        try:
            return form_of(members[name]).read(inner)
        except Misfit as misfit:
            raise misfit.within(f".{name}") from None

    def schema(components: Components) -> Json:
        return {
            "type": "object",
            "properties": {name: form_of(of).schema(components) for name, of in members.items()},
            "minProperties": 1,
            "maxProperties": 1,
            "additionalProperties": False,
        }

    return Form(write, read, schema)


def _union(hint: Any) -> Form:
    inner = [member for member in typing.get_args(hint) if member is not types.NoneType]
    if len(inner) < len(typing.get_args(hint)):
        rest = form_of(inner[0] if len(inner) == 1 else typing.Union[tuple(inner)])  # noqa: UP007 - built at run time
        write = rest.write
        return Form(
            write if write is as_it_is else lambda value: None if value is None else write(value),
            lambda value: None if value is None else rest.read(value),
            lambda components: {"anyOf": [rest.schema(components), {"type": "null"}]},
        )
    if len(inner) == 2 and (listed := _one_or_more(*inner)):
        return listed
    # Scalars and lists: the class of the JSON value decides which member it is.
    by_class = {typing.get_origin(member) or member: form_of(member) for member in inner}

    def read(value: Json) -> Any:
        form = by_class.get(type(value))
        if form is None:
            names = " or ".join(of.__name__ for of in by_class)
            raise Misfit(f"expected {names}, found {shown(value)}")
        return form.read(value)

    return Form(
        lambda value: by_class[type(value)].write(value),
        read,
        lambda components: {"anyOf": [form.schema(components) for form in by_class.values()]},
    )


def _one_or_more(single: Any, more: Any) -> Form | None:
    """The form of ``X | Sequence[X]``, which is always a list; None for other hints."""
    if typing.get_origin(more) is not Sequence or typing.get_args(more) != (single,):
        return None
    listed = form_of(more)
    return Form(
        lambda value: listed.write(value if isinstance(value, Sequence) else [value]),
        listed.read,
        listed.schema,
    )


def _container(hint: Any) -> Form:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is tuple and not (len(arguments) == 2 and arguments[1] is Ellipsis):
        return _fixed([form_of(argument) for argument in arguments])
    if origin in _LISTS:
        return _list(form_of(arguments[0]), _LISTS[origin])
    if origin in (dict, Mapping):
        return _mapping(arguments[0], form_of(arguments[1]))
    raise TypeError(f"no JSON form for {hint!r}")


_LISTS: dict[Any, Callable[[list[Any]], Any]] = {
    tuple: tuple,
    Sequence: tuple,
    list: list,
}


def _list(inner: Form, make: Callable[[list[Any]], Any]) -> Form:
    def read(value: Json) -> Any:
        expect(value, list, "a list")
        read_inner, elements = inner.read, []
        try:
            for element in value:
                elements.append(read_inner(element))
        except Misfit as misfit:
            raise misfit.within(f"[{len(elements)}]") from None
        return make(elements)

    write = inner.write
    return Form(
        list if write is as_it_is else lambda value: [write(element) for element in value],
        read,
        lambda components: {"type": "array", "items": inner.schema(components)},
    )


def _fixed(inner: Sequence[Form]) -> Form:
    def read(value: Json) -> Any:
        expect(value, list, "a list")
        if len(value) != len(inner):
            raise Misfit(f"expected {len(inner)} elements, found {len(value)}")
        elements: list[Any] = []
        try:
            for form, element in zip(inner, value, strict=True):
                elements.append(form.read(element))
        except Misfit as misfit:
            raise misfit.within(f"[{len(elements)}]") from None
        return tuple(elements)

    return Form(
        lambda value: [form.write(element) for form, element in zip(inner, value, strict=True)],
        read,
        lambda components: {
            "type": "array",
            "prefixItems": [form.schema(components) for form in inner],
            "minItems": len(inner),
            "maxItems": len(inner),
        },
    )


def _mapping(key: Any, inner: Form) -> Form:
    def read(value: Json) -> Any:
        expect(value, dict, "an object")
        mapping = {}
        for name, element in value.items():
            try:
                mapping[read_whole(name) if key is int else name] = inner.read(element)
            except Misfit as misfit:
                raise misfit.within(f".{cut(name)}") from None
        return mapping

    return Form(
        lambda value: {str(name): inner.write(element) for name, element in value.items()},
        read,
        lambda components: {
            "type": "object",
            "additionalProperties": inner.schema(components),
        },
    )


def _flags(cls: type[Flag]) -> Form:
    listed = _list(enumeration(cls), lambda flags: reduce(or_, flags, cls(0)))
    return Form(lambda value: listed.write(list(value)), listed.read, listed.schema)


def _read_properties(value: Json) -> Properties:
    expect(value, dict, "an object of strings")
    for name, text in value.items():
        try:
            read_text(name)
            read_text(text)
        except Misfit as misfit:
            raise misfit.within(f".{cut(name)}") from None
    return properties(value)


_SHORT_TYPE = 100


def _type(text: str) -> DataType:
    return parse_type_json(text, field_ids=True)


_short_type = lru_cache(maxsize=1_000)(_type)
"""Cached: most columns have one of a few types, and parsing it is half of reading a column."""


def _read_type(value: Json) -> Any:
    if not isinstance(value, str | dict):
        raise Misfit(f"expected a data type as Spark's JSON, found {shown(value)}")
    text = json.dumps(value, ensure_ascii=False)
    return made(lambda: (_short_type if len(text) <= _SHORT_TYPE else _type)(text))
