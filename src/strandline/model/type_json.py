"""Spark's JSON of types and schemas: the text in the table property ``spark.sql.sources.schema``.

``{"type":"struct","fields":[{"name":"a","type":"integer","nullable":true,"metadata":{}}]}``: no
spaces, keys in this order, its own type names (``integer`` for int, ``long`` for bigint).

Spark stores some parts of a type in the metadata of the enclosing field, because older readers know
plain strings only. Here they are part of the type; the writer moves them to the metadata:

| metadata key | holds |
| --- | --- |
| ``comment`` | the field's comment |
| ``__CHAR_VARCHAR_TYPE_STRING`` | of a column: its type, if char or varchar is written as string |
| ``__COLLATIONS`` | each string's collation: ``{"a.element":"icu.UNICODE_CI"}`` |
| ``parquet.field.id`` | the field's id; only if the caller requests ids |

A user-defined type (such as the vectors of ``spark.ml``) is the other way round: here the field has
the plain type (``sqlType``), and its metadata keeps Spark's JSON of the type, in the key
``__USER_DEFINED_TYPE``. The writer puts it back if the field still has the plain type.

All other metadata is kept unchanged. Reading and writing preserves the value. It also preserves the
text if the metadata keys have the order above (Spark's own order is that of a hash table).

Geometry and geography: SQL names a reference system by its number (``geometry(3857)``), the JSON by
authority and code (``geometry(EPSG:3857)``). The code is the number, except for the three systems
of the OGC. So the writer only has to know the authority: EPSG below 37000, ESRI from there on and
for a few ranges of codes that EPSG never assigned. The number itself is not checked: ten thousand
exist, only Spark knows which, and Spark refuses the others.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from strandline.errors import InvalidType
from strandline.model.type_parser import (
    MAX_TEXT_LENGTH,
    canonical_collation,
    parse_hive_type,
    parse_type,
)
from strandline.model.type_text import quote_name, simple_string
from strandline.model.types import (
    DEFAULT_COLLATION,
    MAX_DEPTH,
    STRING,
    ArrayType,
    AtomicType,
    DataType,
    GeographyType,
    GeometryType,
    MapType,
    StringType,
    StructField,
    StructType,
    fields_of,
    holds_char,
    with_char,
    with_parts,
    without_char,
)

ANY_SYSTEM = "SRID:ANY"
"""The name used if each value has its own reference system."""

_OGC = {4326: "OGC:CRS84", 4267: "OGC:CRS27", 4269: "OGC:CRS83"}
_OGC_NUMBERS = {name: number for number, name in _OGC.items()}
_ESRI_FROM = 37_000
_ESRI_RUNS = (  # first and last
    (2181, 2187),
    (4305, 4305),
    (20062, 20063),
    (24721, 24721),
    (26761, 26765),
    (26788, 26790),
    (30591, 30592),
    (31491, 31495),
    (31917, 31922),
    (32059, 32060),
)
_ESRI_STARTS = tuple(first for first, _ in _ESRI_RUNS)
_NAME = re.compile(r"(?:EPSG|ESRI|SRID):([0-9]{1,10})")
_DEFAULT_NAME = _OGC[4326]
_EDGES = "SPHERICAL"
"""How the points of a geography are connected. Spark supports no other way."""

_GEOMETRY = re.compile(r"geometry(?:\( *(\w+:\w+) *\))?")
_GEOGRAPHY = re.compile(r"geography(?:\( *(?:(\w+:\w+) *(?:, *(\w+) *)?|(\w+) *)\))?")


def parse_spatial_json(text: str) -> GeometryType | GeographyType:
    """Return the type that Spark's JSON ``text`` names. Each parameter may be omitted.

    Raises `InvalidType` if the text names no spatial type, reference system or known edges.
    """
    if match := _GEOMETRY.fullmatch(text):
        return GeometryType(system_number(match[1] or _DEFAULT_NAME))
    match = _GEOGRAPHY.fullmatch(text)
    edges = match and (match[2] or match[3] or _EDGES)
    if match is None or edges is None or edges.upper() != _EDGES:
        raise InvalidType(
            f"expected geometry or geography with a reference system, and no edges but {_EDGES}; "
            f"found {text[:80]!r}"
        )
    return GeographyType(system_number(match[1] or _DEFAULT_NAME))


def system_name(srid: int | None) -> str:
    """Return the authority and code of a reference system. None means any system."""
    if srid is None:
        return ANY_SYSTEM
    if srid in _OGC:
        return _OGC[srid]
    if srid == 0:
        return "SRID:0"
    run = bisect_right(_ESRI_STARTS, srid) - 1
    of_esri = srid >= _ESRI_FROM or (run >= 0 and srid <= _ESRI_RUNS[run][1])
    return f"{'ESRI' if of_esri else 'EPSG'}:{srid}"


def system_number(name: str) -> int | None:
    """Return the number of the reference system ``name``, or None if the name means any system.

    Raises `InvalidType` if the name has another form.
    """
    if name.upper() == ANY_SYSTEM:
        return None
    if name in _OGC_NUMBERS:
        return _OGC_NUMBERS[name]
    match = _NAME.fullmatch(name)
    if match is None:
        raise InvalidType(
            f"{name[:80]!r} is not the name of a spatial reference system; expected OGC:CRS84, "
            "EPSG:<number>, ESRI:<number>, SRID:0 or SRID:ANY"
        )
    return int(match[1])


FIELD_ID_KEY = "parquet.field.id"
CHAR_VARCHAR_KEY = "__CHAR_VARCHAR_TYPE_STRING"
COLLATIONS_KEY = "__COLLATIONS"
COMMENT_KEY = "comment"
USER_DEFINED_KEY = "__USER_DEFINED_TYPE"

_JSON_NAMES = {"tinyint": "byte", "smallint": "short", "int": "integer", "bigint": "long"}
"""JSON names of the types that have a different name there."""
_SCALAR = re.compile(
    r"boolean|byte|short|integer|long|float|double|binary|date|timestamp|timestamp_ntz"
    r"|timestamp_ltz|variant|void|null|string( collate [A-Za-z][A-Za-z0-9_.]*)?|time\(\d+\)"
    r"|decimal(\( *\d+ *, *\d+ *\))?|(char|varchar)\( *\d+ *\)|interval( [a-z]+( to [a-z]+)?)?"
)


def schema_json(struct: StructType, *, field_ids: bool = False) -> str:
    """Return the text of ``spark.sql.sources.schema``.

    Char and varchar are written as string, with their type in the metadata. With ``field_ids``,
    the ids of fields are written too, for Spark's Parquet reader and writer.
    """
    fields = [_field_value(entry, field_ids=field_ids, hide_char=True) for entry in struct.fields]
    try:
        return _encodable({"type": "struct", "fields": fields})
    except ValueError:  # before 0.6.0, columns could have any metadata that Python's parser reads
        for value in fields:
            value["metadata"] = _encodable_entries(value["metadata"])
        return _encodable({"type": "struct", "fields": fields})


def parse_schema_json(text: str, *, field_ids: bool = False) -> StructType:
    """Return the schema that `schema_json` or Spark wrote.

    With ``field_ids``, ids in the metadata become `StructField.field_id`. Otherwise they stay in
    the metadata; this is right for a schema from elsewhere. Raises `InvalidType` if the text does
    not parse or is not a struct.
    """
    data_type = parse_type_json(text, field_ids=field_ids)
    if not isinstance(data_type, StructType):
        raise InvalidType(f"a schema must be a struct, found {simple_string(data_type)[:200]!r}")
    return StructType(tuple(_with_char_from_metadata(entry) for entry in data_type.fields))


def parse_type_json(text: str, *, field_ids: bool = False) -> DataType:
    """Return the type that Spark's JSON ``text`` describes.

    Raises `InvalidType` with the position or path of the error in the text.
    """
    value = _parsed(text)
    try:
        return _Reader(field_ids=field_ids).data_type(value, "the type", 0)
    except RecursionError:  # of an error, which shows a value that is nested as deeply as can be
        raise _too_deep("the JSON of a type") from None


def check_metadata(text: str) -> None:
    """Raise `InvalidType` unless this is metadata that the JSON of a field can contain."""
    metadata = _parsed(text)
    if not isinstance(metadata, dict):
        raise _unexpected("the metadata", "an object", metadata)
    _check_metadata_depth(metadata, "the column")


def _parsed(text: str) -> Any:
    if len(text) > MAX_TEXT_LENGTH:
        raise InvalidType(
            f"a type of {len(text)} characters is too long; at most {MAX_TEXT_LENGTH} are read"
        )
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
        text.encode()
        _compact(value).encode()
    except json.JSONDecodeError as error:
        raise InvalidType(
            f"the JSON of a type does not parse: expected {error.msg} at position {error.pos}"
        ) from None
    except UnicodeEncodeError:
        raise InvalidType("the JSON of a type contains half a surrogate pair") from None
    except RecursionError:
        raise _too_deep("the JSON of a type") from None
    except ValueError as error:
        raise InvalidType(f"the JSON of a type does not parse: {error}") from None
    return value


def _compact(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def _encodable(value: object) -> str:
    """Like `_compact`. Also raises `ValueError` if UTF-8 cannot encode the text."""
    text = _compact(value)
    if not text.isascii():
        text.encode()
    return text


def _encodable_entries(metadata: Any) -> dict[str, object]:
    kept = {}
    for name, value in metadata.items():
        with suppress(ValueError):
            _encodable({name: value})
            kept[name] = value
    return kept


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def type_value(data_type: DataType, *, field_ids: bool = False) -> Any:
    """Return Spark's JSON of any type, as `json.loads` returns it. Char and varchar stay."""
    # Nearly all types take these two branches; a match statement is several times slower.
    if type(data_type) is AtomicType:
        return _JSON_NAMES.get(data_type.name, data_type.name)
    if type(data_type) is StringType and data_type.collation is None:
        return "string"
    match data_type:
        case ArrayType():
            return {
                "type": "array",
                "elementType": type_value(data_type.element, field_ids=field_ids),
                "containsNull": data_type.contains_null,
            }
        case MapType():
            return {
                "type": "map",
                "keyType": type_value(data_type.key, field_ids=field_ids),
                "valueType": type_value(data_type.value, field_ids=field_ids),
                "valueContainsNull": data_type.value_contains_null,
            }
        case StructType():
            fields = [
                _field_value(entry, field_ids=field_ids, hide_char=False)
                for entry in data_type.fields
            ]
            return {"type": "struct", "fields": fields}
        case GeometryType(srid):
            return f"geometry({system_name(srid)})"
        case GeographyType(srid):
            return f"geography({system_name(srid)}, {_EDGES})"
    return simple_string(data_type)


def _field_value(entry: StructField, *, field_ids: bool, hide_char: bool) -> dict[str, object]:
    metadata: dict[str, object] = {}
    if entry.comment is not None:
        metadata[COMMENT_KEY] = entry.comment
    if entry.metadata:
        metadata.update(json.loads(entry.metadata))
    data_type = entry.type
    if hide_char and holds_char(data_type):
        metadata[CHAR_VARCHAR_KEY] = simple_string(_with_quoted_names(data_type))
        data_type = without_char(data_type)
    if collations := _collations(data_type, entry.name):
        metadata[COLLATIONS_KEY] = collations
        data_type = _without_collations(data_type)
    if field_ids:
        metadata.pop(FIELD_ID_KEY, None)
        if entry.field_id is not None:
            metadata[FIELD_ID_KEY] = entry.field_id
    user_defined = metadata.pop(USER_DEFINED_KEY, None)
    if _has_plain_type(user_defined, data_type):
        value = user_defined
    else:
        value = type_value(data_type, field_ids=field_ids)
    return {
        "name": entry.name,
        "type": value,
        "nullable": entry.nullable,
        "metadata": metadata,
    }


def _is_user_defined(value: Any) -> bool:
    return isinstance(value, dict) and value.get("type") == "udt" and "sqlType" in value


def _has_plain_type(user_defined: Any, data_type: DataType) -> bool:
    """Whether this is the JSON of a user-defined type with this plain type. NULLs do not count."""
    if not _is_user_defined(user_defined):
        return False
    try:
        plain = _Reader(in_user_defined=True).data_type(user_defined["sqlType"], "the type", 0)
    except InvalidType:  # a session can set any metadata
        return False
    # Not by the JSON of the fields, which may have such metadata too: each level would double it.
    return simple_string(plain) == simple_string(data_type)


def _has_own_collation(string: StringType) -> bool:
    return string.collation is not None and string.collation != DEFAULT_COLLATION


def _without_collations(data_type: DataType) -> DataType:
    """Return the type without the collations that the metadata of its field has."""
    if isinstance(data_type, StringType):
        return STRING if _has_own_collation(data_type) else data_type
    if isinstance(data_type, StructType):
        return data_type  # its fields have their own metadata
    return with_parts(data_type, _without_collations)


def _collations(data_type: DataType, path: str) -> dict[str, str]:
    """Return ``path: provider.collation`` of each string in the type, without those in structs."""
    match data_type:
        case StringType(collation) if collation is not None and _has_own_collation(data_type):
            provider = "spark" if collation.startswith("UTF8_") else "icu"
            return {path: f"{provider}.{collation}"}
        case ArrayType():
            return _collations(data_type.element, f"{path}.element")
        case MapType():
            return _collations(data_type.key, f"{path}.key") | _collations(
                data_type.value, f"{path}.value"
            )
    return {}


def _with_quoted_names(data_type: DataType) -> DataType:
    """Return the type with unusual names of fields in backticks: Spark parses its catalog string.

    Spark itself does not quote them, and then cannot read its own table.
    """
    if isinstance(data_type, StructType):
        fields = (replace(entry, name=quote_name(entry.name)) for entry in data_type.fields)
        data_type = StructType(tuple(fields))
    return with_parts(data_type, _with_quoted_names)


def _parse_named(text: str) -> DataType:
    """The type that ``text`` names, with or without backticks around the names of its fields."""
    with suppress(InvalidType):
        return parse_type(text)
    return parse_hive_type(text)


def _with_char_from_metadata(entry: StructField) -> StructField:
    """Return the field with the char and varchar types that its metadata names.

    Spark does not quote field names in that text. With unusual names, the text may not parse or
    may not match the field's type. Then the field stays a string and keeps its metadata.
    """
    if CHAR_VARCHAR_KEY not in entry.metadata:
        return entry
    metadata = json.loads(entry.metadata)
    named = metadata.pop(CHAR_VARCHAR_KEY, None)
    if not isinstance(named, str):
        return entry
    try:
        parsed = _parse_named(named)
        restored = with_char(entry.type, parsed)
    except InvalidType:
        return entry
    if _parse_named(simple_string(_with_quoted_names(restored))) != parsed:
        return entry
    return replace(entry, type=restored, metadata=_compact(metadata) if metadata else "")


@dataclass(frozen=True, slots=True)
class _Reader:
    """Converts JSON values to types. ``where`` is the path to the value, for error messages."""

    field_ids: bool = False
    in_user_defined: bool = False
    """Whether the values are inside a user-defined type, which may not contain another one."""

    def data_type(self, value: object, where: str, depth: int) -> DataType:
        if isinstance(value, str):
            return self.scalar(value, where)
        if not isinstance(value, dict):
            raise _unexpected(where, "the name of a type or an object", value)
        if depth >= MAX_DEPTH:
            raise _too_deep(where[:200])
        match value.get("type"):
            case "array":
                element = _member(value, "elementType", where)
                return ArrayType(
                    self.data_type(element, f"{where}.elementType", depth + 1),
                    contains_null=_flag(value, "containsNull", where),
                )
            case "map":
                return self.map_type(value, where, depth)
            case "struct":
                fields = _member(value, "fields", where)
                if not isinstance(fields, list):
                    raise _unexpected(f"{where}.fields", "a list", fields)
                return StructType(
                    tuple(
                        self.field(entry, f"{where}.fields[{index}]", depth + 1)
                        for index, entry in enumerate(fields)
                    )
                )
            case "udt":
                raise InvalidType(
                    f"{where} is a user-defined type; store its plain form (sqlType) instead"
                )
        raise _unexpected(f"{where}.type", '"array", "map" or "struct"', value.get("type"))

    def map_type(self, value: dict[str, Any], where: str, depth: int) -> MapType:
        key = _member(value, "keyType", where)
        inner = _member(value, "valueType", where)
        return MapType(
            self.data_type(key, f"{where}.keyType", depth + 1),
            self.data_type(inner, f"{where}.valueType", depth + 1),
            value_contains_null=_flag(value, "valueContainsNull", where),
        )

    def scalar(self, name: str, where: str) -> DataType:
        spatial = name.startswith(("geometry", "geography"))
        if not spatial and not _SCALAR.fullmatch(name):
            raise _unexpected(where, "the name of a type", name)
        try:
            return parse_spatial_json(name) if spatial else parse_type(name)
        except InvalidType as error:
            raise InvalidType(f"{where}: {error.message}") from None

    def field(self, value: object, where: str, depth: int) -> StructField:
        if not isinstance(value, dict):
            raise _unexpected(where, "an object", value)
        name = _member(value, "name", where)
        if not isinstance(name, str):
            raise _unexpected(f"{where}.name", "a text", name)
        metadata = value.get("metadata") or {}
        if not isinstance(metadata, dict):
            raise _unexpected(f"{where}.metadata", "an object", metadata)
        _check_metadata_depth(metadata, where)
        metadata = dict(metadata)
        user_defined: Any = value.get("type")
        reader = self
        # Spark writes no ids into files for the fields inside a user-defined type.
        if not (self.field_ids or self.in_user_defined) and _is_user_defined(user_defined):
            metadata[USER_DEFINED_KEY] = user_defined
            value = {**value, "type": user_defined["sqlType"]}
            reader = _Reader(in_user_defined=True)
        data_type, used = reader.type_of_field(value, name, where, depth)
        if used:
            del metadata[COLLATIONS_KEY]
        comment = field_id = None
        if isinstance(metadata.get(COMMENT_KEY), str):
            comment = metadata.pop(COMMENT_KEY)
        if self.field_ids and FIELD_ID_KEY in metadata:
            field_id = metadata.pop(FIELD_ID_KEY)
            if type(field_id) is not int:
                raise _unexpected(f"{where}.metadata.{FIELD_ID_KEY}", "a whole number", field_id)
        return StructField(
            name,
            data_type,
            nullable=_flag(value, "nullable", where),
            comment=comment,
            metadata=_compact(metadata) if metadata else "",
            field_id=field_id,
        )

    def type_of_field(
        self, value: dict[str, Any], name: str, where: str, depth: int
    ) -> tuple[DataType, bool]:
        """Return the field's type, and whether it covers all collations in the metadata."""
        data_type = self.data_type(_member(value, "type", where), f"{where}.type", depth)
        collations = _collations_of((value.get("metadata") or {}).get(COLLATIONS_KEY), name)
        if collations:
            collated = _with_collations(data_type, "", collations)
            if len(_collations(collated, "")) == len(collations):
                return collated, True
        return data_type, False


def _check_metadata_depth(metadata: dict[str, Any], where: str) -> None:
    level: list[Any] = [metadata]
    for _ in range(MAX_DEPTH):
        containers = (entry for entry in level if isinstance(entry, dict | list))
        level = [
            inner
            for container in containers
            for inner in (container.values() if isinstance(container, dict) else container)
        ]
        if not level:
            return
    raise InvalidType(
        f"{where[:400]}.metadata is nested too deep; at most {MAX_DEPTH} levels are allowed"
    )


def _collations_of(value: object, name: str) -> dict[str, str]:
    """Return the collations in a field's metadata, by path below the field.

    Empty if the metadata value has another form.
    """
    if not isinstance(value, dict):
        return {}
    collations: dict[str, str] = {}
    for path, collation in value.items():
        if not isinstance(collation, str) or "." not in collation or not path.startswith(name):
            return {}
        collations[path[len(name) :]] = canonical_collation(collation.split(".", 1)[1])
    return collations


def _with_collations(data_type: DataType, path: str, collations: dict[str, str]) -> DataType:
    """Return the type at ``path`` below a field, with the collations of its strings."""
    if data_type == STRING:
        return StringType(collations.get(path))
    if isinstance(data_type, StructType):
        return data_type  # its fields have their own metadata
    paths = (f"{path}.{inner.name}" for inner in fields_of(data_type))
    return with_parts(data_type, lambda inner: _with_collations(inner, next(paths), collations))


def _member(value: dict[str, Any], key: str, where: str) -> object:
    if key not in value:
        raise InvalidType(f"{where} has no {key!r}; found {', '.join(map(repr, value))[:200]}")
    return value[key]


def _flag(value: dict[str, Any], key: str, where: str) -> bool:
    flag = _member(value, key, where)
    if not isinstance(flag, bool):
        raise _unexpected(f"{where}.{key}", "true or false", flag)
    return flag


def _too_deep(what: str) -> InvalidType:
    return InvalidType(f"{what} is nested too deep; at most {MAX_DEPTH} levels are allowed")


def _unexpected(where: str, expected: str, actual: object) -> InvalidType:
    return InvalidType(f"{where[:400]}: expected {expected}, found {_compact(actual)[:100]}")
