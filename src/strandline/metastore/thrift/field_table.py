"""The field table: the fields and field ids of each struct, and the exceptions of each method.

The problem: the server must understand a Hive Metastore client of any generation. Generations
differ in a list of facts, a few hundred numbers long. Generated stubs would bury these facts in
seventy thousand lines of code and could support only one generation.

The model: the facts are in a text, `hive_metastore.thrift-table`, whose head explains its format.
It is parsed once, at import, into frozen specifications that drive the codec. Nothing about the
protocol is stored anywhere else: a new method is a line of that text.

What must stay true:

* Every field id, name and type in the text is checked when it is parsed. An undeclared gap, a
  duplicate or an undefined name is `CorruptData`, and the import fails.
* One struct serves all generations. Most of their differences are additions. Where two generations
  use one id for two things, the wire type that arrives decides: for a single field by two entries
  with one id, and for a struct with a new layout by one field that differs (``older``).
* A field is required on reading only if the writers of every generation must send it.

Rejected: parsing the Thrift language itself. It would need a parser for includes, annotations and
defaults that the wire does not have, and it cannot express what this text says in one line: that a
number has two readings.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib.resources import files
from types import MappingProxyType

from strandline.errors import CorruptData

BOOL, I8, DOUBLE, I16, I32, I64 = 2, 3, 4, 6, 8, 10
STRING, STRUCT, MAP, SET, LIST, UUID = 11, 12, 13, 14, 15, 16

BASE_TYPES: Mapping[str, int] = MappingProxyType(
    {
        "bool": BOOL,
        "i8": I8,
        "i16": I16,
        "i32": I32,
        "i64": I64,
        "double": DOUBLE,
        "string": STRING,
        "binary": STRING,
    }
)


@dataclass(frozen=True, slots=True)
class Type:
    """The type of a value. ``wire`` is its number on the wire.

    ``name`` is a base type, ``list``, ``set``, ``map`` or the name of a struct; an enumeration is
    an ``i32``. ``key`` is set for maps, ``value`` for maps, lists and sets.
    """

    wire: int
    name: str
    key: Type | None = None
    value: Type | None = None

    def __str__(self) -> str:
        inner = ",".join(str(part) for part in (self.key, self.value) if part is not None)
        return f"{self.name}<{inner}>" if inner else self.name


@dataclass(frozen=True, slots=True)
class FieldSpec:
    """One field. ``sent`` is False for another reading of a field of the same id and name.

    It is accepted. ``is_sent_too`` means that it is also written, for readers of a generation that
    skip the other one: a reader skips a field whose type it does not expect.
    """

    id: int
    name: str
    type: Type
    required: bool = False
    sent: bool = True
    is_sent_too: bool = False


@dataclass(frozen=True, slots=True)
class StructSpec:
    """A struct, union, exception, or the arguments or the result of a method.

    ``older`` is the layout of an earlier generation. A message has that layout if its field
    ``older.field_id`` has the wire type ``older.wire``.
    """

    name: str
    kind: str
    fields: tuple[FieldSpec, ...]
    older: OlderLayout | None = None


@dataclass(frozen=True, slots=True)
class OlderLayout:
    field_id: int
    wire: int
    spec: StructSpec


@dataclass(frozen=True, slots=True)
class MethodSpec:
    """A method. ``result`` is the struct that carries its answer on the wire.

    It has the returned value in field 0, ``success``, and one field for each declared exception,
    named after the exception. ``returns`` is None for a void method.
    """

    name: str
    args: StructSpec
    result: StructSpec
    returns: Type | None
    oneway: bool

    def declares(self, exception: str) -> bool:
        """Whether the method may answer with the exception of this name."""
        return any(field.name == exception and field.sent for field in self.result.fields)


@dataclass(frozen=True, slots=True)
class FieldTable:
    """A whole protocol. Every mapping is keyed by name and cannot be changed.

    ``structs`` also holds unions, exceptions, and the ``<method>_args`` and ``<method>_result``.
    """

    structs: Mapping[str, StructSpec]
    methods: Mapping[str, MethodSpec]


def load_field_table(text: str) -> FieldTable:
    """Return the table that ``text`` describes. Raises `CorruptData` that names the wrong line."""
    return _Reader(text).table()


_ENUM = re.compile(r"enum (\w+) = .+")
_STRUCT = re.compile(r"(struct|union|exception) (\w+) =(.*)")
_OLDER = re.compile(r"older (\w+) when (\d+) (\S+) = (.+)")
_METHOD = re.compile(r"method (\w+)\((.*)\) -> (\S+)(?: throws (.+))?")
_ONEWAY = re.compile(r"oneway (\w+)\((.*)\)")
_FIELD = re.compile(r"(\d+):(?:(-)|(\w+)([!?~+]?) (\S+))")
_THROWS = re.compile(r"(\d+):(\w+)(~?)")


@dataclass(frozen=True, slots=True)
class _Line:
    number: int
    text: str

    def error(self, what: str) -> CorruptData:
        return CorruptData(f"line {self.number} of the field table is wrong ({self.text}): {what}")


class _Reader:
    """Parser in two passes: names first, so that a line may use a name that is defined below."""

    def __init__(self, text: str) -> None:
        self.structs: dict[str, StructSpec] = {}
        self.methods: dict[str, MethodSpec] = {}
        self.lines = list(_logical_lines(text))
        self.defined: dict[str, str] = {}

    def table(self) -> FieldTable:
        for line in self.lines:
            self._name(line)
        for line in self.lines:
            self._define(line)
        return FieldTable(MappingProxyType(self.structs), MappingProxyType(self.methods))

    def _name(self, line: _Line) -> None:
        if match := _ENUM.fullmatch(line.text):
            self._claim(line, match[1], "enum")
        elif match := _STRUCT.fullmatch(line.text):
            self._claim(line, match[2], match[1])

    def _claim(self, line: _Line, name: str, kind: str) -> None:
        if name in self.defined or name in BASE_TYPES or name in {"list", "set", "map", "void"}:
            raise line.error(f"the name {name} is defined twice")
        self.defined[name] = kind

    def _define(self, line: _Line) -> None:
        if _ENUM.fullmatch(line.text):
            return  # it was named in the first pass; its members are there for readers
        if match := _STRUCT.fullmatch(line.text):
            kind, name, fields = match.groups()
            self.structs[name] = StructSpec(name, kind, self._fields(line, fields))
        elif match := _OLDER.fullmatch(line.text):
            self._define_older(line, match[1], int(match[2]), match[3], match[4])
        elif match := _METHOD.fullmatch(line.text):
            self._method(line, match[1], match[2], match[3], match[4] or "", oneway=False)
        elif match := _ONEWAY.fullmatch(line.text):
            self._method(line, match[1], match[2], "void", "", oneway=True)
        else:
            raise line.error("it is not a definition")

    def _fields(self, line: _Line, text: str) -> tuple[FieldSpec, ...]:
        fields: list[FieldSpec] = []
        last = 0
        for item in _items(text):
            match = _FIELD.fullmatch(item)
            if match is None:
                raise line.error(f"{item!r} is not a field")
            number, gap, name, mark, type_text = match.groups()
            reading = bool(fields) and mark in ("~", "+") and int(number) == last
            if not reading and int(number) != last + 1:
                raise line.error(f"field {number} follows {last}: a gap is written `{last + 1}:-`")
            last = int(number)
            if gap is None:
                kind = self._type(line, type_text)
                is_sent = mark not in ("~", "+")
                fields.append(FieldSpec(last, name, kind, mark == "!", is_sent, mark == "+"))
        self._check_fields(line, fields)
        return tuple(fields)

    def _check_fields(self, line: _Line, fields: list[FieldSpec]) -> None:
        sent = [field.name for field in fields if field.sent]
        if len(set(sent)) != len(sent):
            raise line.error("two fields have the same name")
        keys = [(field.id, field.type.wire) for field in fields]
        if len(set(keys)) != len(keys):
            raise line.error("two readings of one field have the same wire type")

    def _type(self, line: _Line, text: str) -> Type:
        if text in BASE_TYPES:
            return Type(BASE_TYPES[text], text)
        kind = self.defined.get(text)
        if kind == "enum":
            return Type(I32, "i32")
        if kind is not None:
            return Type(STRUCT, text)
        outer, _, inner = text.partition("<")
        if inner.endswith(">"):
            parts = [self._type(line, part) for part in _type_parts(inner[:-1])]
            if outer == "map" and len(parts) == 2:
                return Type(MAP, "map", parts[0], parts[1])
            if outer in {"list", "set"} and len(parts) == 1:
                return Type(LIST if outer == "list" else SET, outer, None, parts[0])
        raise line.error(f"the type {text!r} is not known")

    def _define_older(self, line: _Line, name: str, field_id: int, kind: str, fields: str) -> None:
        newer = self.structs.get(name)
        if newer is None or newer.older is not None:
            raise line.error(f"it must follow the one definition of {name}")
        wire = self._type(line, kind).wire
        if any(field.id == field_id and field.type.wire == wire for field in newer.fields):
            raise line.error(f"field {field_id} does not tell the two layouts apart")
        spec = StructSpec(f"{name}_older", newer.kind, self._fields(line, fields))
        self.structs[name] = replace(newer, older=OlderLayout(field_id, wire, spec))

    def _method(
        self, line: _Line, name: str, arguments: str, returns: str, throws: str, *, oneway: bool
    ) -> None:
        if name in self.methods:
            raise line.error(f"the method {name} is defined twice")
        returned = None if returns == "void" else self._type(line, returns)
        result = [] if returned is None else [FieldSpec(0, "success", returned)]
        for expected, item in enumerate(_items(throws), start=1):
            match = _THROWS.fullmatch(item)
            if match is None or int(match[1]) != expected:
                raise line.error(f"{item!r} is not exception number {expected}")
            if self.defined.get(match[2]) != "exception":
                raise line.error(f"{match[2]} is not an exception")
            kind = Type(STRUCT, match[2])
            result.append(FieldSpec(expected, match[2], kind, sent=match[3] != "~"))
        for suffix in ("args", "result"):
            self._claim(line, f"{name}_{suffix}", suffix)
        spec = MethodSpec(
            name,
            StructSpec(f"{name}_args", "args", self._fields(line, arguments)),
            StructSpec(f"{name}_result", "result", tuple(result)),
            returned,
            oneway,
        )
        self.methods[name] = spec
        self.structs[spec.args.name] = spec.args
        self.structs[spec.result.name] = spec.result


def _logical_lines(text: str) -> Iterator[_Line]:
    """Yield the lines without comments and empty lines, with continued lines joined."""
    number, parts = 0, list[str]()
    for count, raw in enumerate(text.splitlines(), start=1):
        line = raw.rstrip()
        if not line or line.startswith("#"):
            continue
        if line[0].isspace() and parts:
            parts.append(line.strip())
            continue
        if parts:
            yield _Line(number, " ".join(parts))
        number, parts = count, [line.strip()]
    if parts:
        yield _Line(number, " ".join(parts))


def _items(text: str) -> list[str]:
    # A comma inside a type has no blank after it.
    return re.split(r",\s+", text.strip()) if text.strip() else []


def _type_parts(text: str) -> Iterable[str]:
    depth = start = 0
    for at, char in enumerate(text):
        depth += (char == "<") - (char == ">")
        if char == "," and depth == 0:
            yield text[start:at]
            start = at + 1
    yield text[start:]


HIVE_METASTORE: FieldTable = load_field_table(
    files(__package__).joinpath("hive_metastore.thrift-table").read_text(encoding="utf-8")
)
"""The Hive Metastore protocol, with its base service fb303."""
