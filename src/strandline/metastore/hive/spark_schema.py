"""Spark's schema in the parameters of a table: read into columns, and written from them.

Spark keeps what Hive cannot say (case of names, NOT NULL, types without a Hive spelling, metadata)
as JSON in ``spark.sql.sources.schema``. A text of more than `MAX_PARAMETER` characters is cut into
``….part.0``, ``….part.1`` and so on, with their number in ``….numParts``; older releases of Spark
always cut it. Partition columns are named in ``….partCol.N``, with ``….numPartCols``.

Spark keeps the default of a column in the field's metadata (`DEFAULT`). The catalog has a field for
it, so it is taken out of the metadata that a client sends and put into the metadata of answers.

A field may carry the metadata `IDENTITY`, which this service puts there for its own data source. It
says where an answer came from, so it is dropped from what a client sends back.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from strandline.catalog.commands import ColumnDefinition
from strandline.errors import InvalidInput
from strandline.metastore.hive.parameters import SCHEMA
from strandline.model.descriptors import ColumnDescriptor
from strandline.model.type_json import parse_schema_json, schema_json
from strandline.model.types import StructField, StructType

IDENTITY = "strandline"
"""The metadata key that tells the data source the table, its version and where to ask."""

DEFAULT = "CURRENT_DEFAULT"
"""The metadata key of a column's default, a SQL expression."""

MAX_PARAMETER = 4000
"""Characters of one parameter."""

_PARTS = f"{SCHEMA}.numParts"
_PART = f"{SCHEMA}.part."
_PARTITION_COLUMNS = f"{SCHEMA}.numPartCols"
_PARTITION_COLUMN = f"{SCHEMA}.partCol."


@dataclass(frozen=True, slots=True)
class SparkSchema:
    """The columns as Spark knows them, partition columns last, and the names of the latter."""

    columns: tuple[ColumnDefinition, ...]
    partition_columns: tuple[str, ...]


def take_schema(parameters: Mapping[str, str]) -> tuple[SparkSchema | None, dict[str, str]]:
    """The schema that Spark wrote, None if it wrote none, and the parameters without it.

    Raises `InvalidInput` (`InvalidType` among them) where it cannot be read.
    """
    text = _whole_text(parameters)
    if text is None:
        return None, dict(parameters)
    rest = {name: value for name, value in parameters.items() if not _holds_schema(name)}
    columns = [_column(field) for field in parse_schema_json(text).fields]
    names = _partition_names(parameters)
    by_name = {column.name.lower(): column for column in columns}
    missing = [name for name in names if name.lower() not in by_name]
    if missing:
        raise InvalidInput(f"partition column {missing[0]!r} is not in the schema of the table")
    partitioned = [by_name[name.lower()] for name in names]
    plain = [column for column in columns if column not in partitioned]
    ordered = (*plain, *partitioned)
    return SparkSchema(ordered, tuple(column.name for column in partitioned)), rest


def schema_parameters(
    columns: Sequence[ColumnDescriptor],
    partition_columns: Iterable[str],
    *,
    identity: str | None = None,
    defaults: bool = True,
) -> dict[str, str]:
    """The parameters that give Spark these columns; with ``identity`` on the first field.

    Without ``defaults``, Spark does not learn the defaults and so does not fill them in.
    """
    fields = [_field(column, default=column.default if defaults else None) for column in columns]
    if identity is not None and fields:
        fields[0] = _identified(fields[0], identity)
    text = schema_json(StructType(tuple(fields)))
    parameters: dict[str, str] = {}
    if len(text) <= MAX_PARAMETER:
        parameters[SCHEMA] = text
    else:
        starts = range(0, len(text), MAX_PARAMETER)
        parameters[_PARTS] = str(len(starts))
        for number, start in enumerate(starts):
            parameters[f"{_PART}{number}"] = text[start : start + MAX_PARAMETER]
    names = list(partition_columns)
    if names:
        parameters[_PARTITION_COLUMNS] = str(len(names))
        parameters.update({f"{_PARTITION_COLUMN}{n}": name for n, name in enumerate(names)})
    return parameters


def _holds_schema(name: str) -> bool:
    return name in (SCHEMA, _PARTS, _PARTITION_COLUMNS) or name.startswith(
        (_PART, _PARTITION_COLUMN)
    )


def _whole_text(parameters: Mapping[str, str]) -> str | None:
    if SCHEMA in parameters:
        return parameters[SCHEMA]
    if _PARTS not in parameters:
        return None
    return "".join(_numbered(parameters, _PARTS, _PART))


def _partition_names(parameters: Mapping[str, str]) -> list[str]:
    if _PARTITION_COLUMNS not in parameters:
        return []
    return _numbered(parameters, _PARTITION_COLUMNS, _PARTITION_COLUMN)


def _numbered(parameters: Mapping[str, str], count: str, prefix: str) -> list[str]:
    """The values of ``prefix0`` … as many as the parameter ``count`` says."""
    text = parameters[count]
    if not text.isdecimal() or int(text) > len(parameters):
        raise InvalidInput(
            f"the parameter {count} is {text[:20]!r} and not the number of its parts"
        )
    missing = [n for n in range(int(text)) if f"{prefix}{n}" not in parameters]
    if missing:
        raise InvalidInput(f"the parameter {prefix}{missing[0]} is missing, {count} is {text}")
    return [parameters[f"{prefix}{n}"] for n in range(int(text))]


def _column(field: StructField) -> ColumnDefinition:
    metadata, default = field.metadata, None
    if IDENTITY in metadata or DEFAULT in metadata:
        entries = json.loads(metadata)
        entries.pop(IDENTITY, None)
        if isinstance(entries.get(DEFAULT), str):
            default = entries.pop(DEFAULT)
        metadata = _compact(entries)
    return ColumnDefinition(
        field.name,
        field.type,
        field.nullable,
        comment=field.comment,
        default=default,
        metadata=metadata,
    )


def _field(column: ColumnDescriptor, *, default: str | None) -> StructField:
    metadata = column.metadata
    if default is not None:
        entries = json.loads(metadata) if metadata else {}
        metadata = _compact({DEFAULT: default, **entries})
    return StructField(
        column.name,
        column.type,
        nullable=column.nullable,
        comment=column.comment,
        metadata=metadata,
    )


def _identified(field: StructField, identity: str) -> StructField:
    entries = json.loads(field.metadata) if field.metadata else {}
    return StructField(
        field.name,
        field.type,
        nullable=field.nullable,
        comment=field.comment,
        metadata=_compact({**entries, IDENTITY: identity}),
    )


def _compact(entries: dict[str, object]) -> str:
    if not entries:
        return ""
    return json.dumps(entries, ensure_ascii=False, separators=(",", ":"))
