"""Hive's storage descriptors: how the files of a table or a partition are read.

Hive's descriptor repeats the columns and the location. Here the columns belong to the table, and
the location is stored separately; the rest is `StorageFormat`. It has columns only if those of the
client differ from the table's columns in Hive's spelling. Hive writes both ``decimal`` and
``decimal(10,0)`` for one type, and keeps the case of names inside a struct. For a table that Hive
cannot read, Spark declares one placeholder column.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from strandline.catalog.commands import ColumnDefinition
from strandline.errors import InvalidInput, InvalidType, UnsupportedOperation
from strandline.metastore.hive.names import same_location
from strandline.metastore.hive.parameters import DERIVED, PATH
from strandline.metastore.thrift.messages import ThriftException
from strandline.model.descriptors import (
    ColumnDescriptor,
    StorageFormat,
    TableDescriptor,
    properties,
)
from strandline.model.type_changes import carry_ids
from strandline.model.type_parser import parse_hive_type
from strandline.model.type_text import hive_string, quote_name
from strandline.model.types import (
    ATOMIC_TYPES,
    STRING,
    DataType,
    StringType,
    StructType,
    depth_of,
    fields_of,
    walk,
    with_parts,
)

Column = ColumnDefinition | ColumnDescriptor

HiveColumn = tuple[str, str, str | None]
"""Name in lower case, type in Hive's spelling, comment."""

# Structs of the protocol hold values of as many types as it has: hence Any, here and below.
Struct = dict[str, Any]
"""A struct of the protocol. A field that is None is not sent."""

NO_COMMENT = "from deserializer"
"""The comment that Hive's client invents for a column that comes from the class of a SerDe."""

SUBDIRECTORIES = "strandline.hive.storedAsSubDirectories"
"""A field that says how skewed values are stored; kept as a parameter, shown as the field."""

PLACEHOLDER_COLUMNS: tuple[HiveColumn, ...] = (("col", "array<string>", NO_COMMENT),)
"""The columns that Spark declares if Hive cannot spell the columns or read the files."""


def int32(number: int) -> int:
    """Return the number, or the nearest to it that a field of 32 bits can carry.

    Such fields are all times in seconds, which end in 2038, and numbers that a session may choose.
    """
    return max(-(1 << 31), min(number, (1 << 31) - 1))


def plain_columns_of(table: TableDescriptor) -> tuple[ColumnDescriptor, ...]:
    """Return the columns of a table that are not partition columns."""
    return table.columns[: len(table.columns) - len(table.partition_columns)]


def hive_columns(columns: Sequence[Column]) -> tuple[HiveColumn, ...]:
    """Return the columns in Hive's spelling, or `PLACEHOLDER_COLUMNS` if one has no spelling."""
    spelled = []
    for column in columns:
        text = hive_string(column.type)
        if text is None:
            return PLACEHOLDER_COLUMNS
        spelled.append((column.name.lower(), text, column.comment))
    return tuple(spelled)


def columns_for_spark(columns: Sequence[Column]) -> list[Struct]:
    """Return Hive's columns of what only Spark reads, which takes their types from its own schema.

    Spark 3.5 parses the types in Hive's spelling too, and fails at the name of a field that needs
    backticks. If there is one, the result is `PLACEHOLDER_COLUMNS`.
    """
    structs = (t for column in columns for t in walk(column.type) if isinstance(t, StructType))
    is_parsed = all(quote_name(field.name) == field.name for t in structs for field in t.fields)
    return field_structs(hive_columns(columns) if is_parsed else PLACEHOLDER_COLUMNS)


def read_fields(fields: Sequence[Mapping[str, Any]] | None) -> tuple[HiveColumn, ...]:
    """Return the columns that a client declared, with names in lower case."""
    return tuple(
        (field.get("name", "").lower(), field.get("type", ""), field.get("comment"))
        for field in fields or ()
    )


def shown_columns(storage: StorageFormat, columns: Sequence[Column]) -> tuple[HiveColumn, ...]:
    """Return the columns as a Hive client sees them: all of them, or those that stand for all.

    The type that a client declared for a column is shown until the type of the column changes.
    """
    declared = storage.hive_columns
    if declared is None:
        return hive_columns(columns)
    texts = {name: text for name, text, _ in declared}
    if declared == PLACEHOLDER_COLUMNS or texts.keys().isdisjoint(c.name.lower() for c in columns):
        return declared
    shown = []
    for column in columns:
        name = column.name.lower()
        text = texts.get(name)
        if text is None or not _means(text, column.type):
            text = hive_string(column.type)
        if text is None:
            return PLACEHOLDER_COLUMNS
        shown.append((name, text, column.comment))
    return tuple(shown)


def _means(declared: str, data_type: DataType) -> bool:
    spelled = spelled_type(data_type)
    if spelled is None:
        return says_all_of(declared, data_type)
    try:
        return hive_string(parse_hive_type(declared)) == spelled
    except InvalidType:
        return False


def says_all_of(text: str, data_type: DataType) -> bool:
    """Whether Hive's name ``text`` describes exactly this type, apart from ids in it.

    Parsing a text is expensive, and the columns of a catalog have few types.
    """
    return (_short_says_all if len(text) <= _SHORT_TEXT else _says_all)(text, data_type)


def _says_all(text: str, data_type: DataType) -> bool:
    try:
        parsed = parse_hive_type(text)
    except InvalidType:
        return False
    return data_type in (parsed, carry_ids(data_type, parsed, 0)[0])


def is_spelled_completely(data_type: DataType) -> bool:
    """Whether `hive_string` has a name for the type that describes it exactly."""
    text = hive_string(data_type)
    if text is None or not depth_of(data_type):
        return text is not None
    return (_short_is_plain if len(text) <= _SHORT_TEXT else _is_plain_inside)(data_type)


def _is_plain_inside(data_type: DataType) -> bool:
    inside = (field for part in walk(data_type) for field in fields_of(part))
    return all(
        field.name == field.name.lower()
        and field.nullable
        and field.comment is None
        and not field.metadata
        for field in inside
    )


_SHORT_TEXT = 1_000
"""Characters of the types whose results are cached: a text may have millions."""
_short_says_all = lru_cache(maxsize=1024)(_says_all)
_short_is_plain = lru_cache(maxsize=1024)(_is_plain_inside)


def spelled_type(data_type: DataType) -> str | None:
    """Hive's name of a type without its collations, which Spark leaves out in Hive's columns."""
    return hive_string(_without_collations(data_type))


def _without_collations(data_type: DataType) -> DataType:
    if isinstance(data_type, StringType):
        return STRING
    return with_parts(data_type, _without_collations)


def field_structs(columns: Sequence[HiveColumn]) -> list[Struct]:
    return [{"name": name, "type": text, "comment": comment} for name, text, comment in columns]


def require_serde(sd: Mapping[str, Any]) -> None:
    """Raises Hive's ``MetaException`` if a client left out how rows are read: it would be lost."""
    if sd.get("serdeInfo") is None:
        raise ThriftException("MetaException", {"message": "Invalid SerDeInfo object"})


def read_storage(
    sd: Mapping[str, Any],
    *,
    hive_columns: tuple[HiveColumn, ...] | None = None,
    locations: Sequence[str],
) -> StorageFormat:
    """Return the format that a client described. ``locations`` are the table's, as clients know it.

    Spark's serde parameter ``path`` repeats the table's location, which is stored once.

    Raises `UnsupportedOperation` for skewed tables, whose folders follow another rule.
    """
    skewed = sd.get("skewedInfo") or {}
    if skewed.get("skewedColNames"):
        raise UnsupportedOperation(
            "skewed tables are not supported; create the table without SKEWED BY"
        )
    serde = sd.get("serdeInfo") or {}
    parameters = dict(serde.get("parameters") or {})
    own_parameters = dict(sd.get("parameters") or {})
    if sd.get("storedAsSubDirectories"):
        own_parameters[SUBDIRECTORIES] = "true"
    path = parameters.get(PATH)
    if path is not None and any(same_location(path, location) for location in locations):
        parameters[PATH] = DERIVED
    return StorageFormat(
        input_format=sd.get("inputFormat"),
        output_format=sd.get("outputFormat"),
        serde=serde.get("serializationLib"),
        serde_name=serde.get("name"),
        serde_properties=properties(parameters),
        compressed=sd.get("compressed", False),
        buckets=sd.get("numBuckets", 0),
        bucket_columns=tuple(sd.get("bucketCols") or ()),
        sort_columns=tuple(map(_sort_column, sd.get("sortCols") or ())),
        properties=properties(own_parameters),
        hive_columns=hive_columns,
    )


def _sort_column(sent: Mapping[str, Any]) -> tuple[str, int]:
    name, order = sent.get("col", "").lower(), sent.get("order", 1)
    if order < 0:
        raise InvalidInput(
            f"the sort order of column {name} is {order}; send 1 for ascending, 0 for descending"
        )
    return name, order


def storage_struct(
    storage: StorageFormat,
    *,
    columns: Sequence[HiveColumn],
    location: str | None,
    table_location: str | None,
) -> Struct:
    """Return a ``StorageDescriptor``. ``location`` is None for views."""
    own_parameters = dict(storage.properties)
    in_subdirectories = own_parameters.pop(SUBDIRECTORIES, None) is not None
    return {
        "cols": field_structs(columns),
        "location": location,
        "inputFormat": storage.input_format,
        "outputFormat": storage.output_format,
        "compressed": storage.compressed,
        "numBuckets": int32(storage.buckets),
        "serdeInfo": {
            "name": storage.serde_name,
            "serializationLib": storage.serde,
            "parameters": _serde_parameters(storage, table_location),
        },
        "bucketCols": list(storage.bucket_columns),
        "sortCols": [{"col": name, "order": int32(order)} for name, order in storage.sort_columns],
        "parameters": own_parameters,
        "skewedInfo": {
            "skewedColNames": [],
            "skewedColValues": [],
            "skewedColValueLocationMaps": {},
        },
        "storedAsSubDirectories": in_subdirectories,
    }


def _serde_parameters(storage: StorageFormat, table_location: str | None) -> dict[str, str]:
    parameters = dict(storage.serde_properties)
    if parameters.get(PATH) == DERIVED and table_location is not None:
        parameters[PATH] = table_location
    return parameters


_FIRST_WORDS = frozenset(
    {
        *ATOMIC_TYPES,
        *("string", "decimal", "char", "varchar", "interval_year_month", "interval_day_time"),
        *("array", "map", "struct", "uniontype", "timestamp with local time zone"),
    }
)


def parse_column_type(text: str, *, of: str = "column") -> DataType:
    """Return the type of a column that a Hive client declared. ``of`` names it in the message.

    Hive's type names are in lower case. Raises `InvalidInput` with Hive's message.
    """
    first = text.split("<", 1)[0].split("(", 1)[0].strip()
    try:
        if first in _FIRST_WORDS:
            return parse_hive_type(text)
    except InvalidType as error:
        raise InvalidInput(f"Invalid {of} type: {text} ({error.message})") from None
    raise InvalidInput(f"Invalid {of} type: {text}")
