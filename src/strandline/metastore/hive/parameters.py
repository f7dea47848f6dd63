"""Which half of a table a parameter belongs to: the rule that splits a Hive table.

A Hive client sees one table; here a table has two halves. Whatever *defines* the table (columns,
keys, owner, provider, format, and all parameters except those below) belongs to the catalog, and
each change of it is a version. Whatever *counts or dates the content* belongs to the object store
and changes with the content: statistics of Hive and Spark, and the time of the last change. An
alter that changes only these creates no version, and a table as of a version has the counts of that
time.

Some parameters repeat a field of the descriptor. They are read into the field, are not stored as
text, and are written again when a client asks:

| parameter | is in |
| --- | --- |
| ``spark.sql.sources.schema``, ``….numParts``, ``….part.N`` | columns |
| ``spark.sql.sources.schema.numPartCols``, ``….partCol.N`` | partition columns |
| ``spark.sql.sources.provider`` | provider; without it the provider is ``hive`` |
| ``EXTERNAL`` | kind |
| ``comment`` | comment |
| serde parameter ``path`` if it is the table's location | the location |

`DERIVED` in place of a value records that a client wrote the parameter, so that it is written only
for tables whose creator uses it.

``numFiles`` and ``totalSize`` are counted where Hive counts them (`QuickStatistics`). Spark uses
``totalSize`` to decide whether a table is small enough to be sent to every executor; it treats a
table without it as infinitely large. Hive counts the files of a table without partition keys when
it is created in an existing folder and at each alter except a rename that moves them. It counts the
files of a partition when the partition is added, and at each alter or rename; if its counts were
right and the client sends them back, the statistics stay accurate. The client can switch this off.
The counts belong to the object store: they create no version. Iceberg tables are not counted:
Iceberg switches the counting off for its commits, so counts would soon be old.

**Spark's schema.** Spark stores what Hive cannot express (case of names, NOT NULL, types that Hive
cannot spell, metadata) as JSON in ``spark.sql.sources.schema``. A text of more than
`MAX_PARAMETER` characters is cut into ``….part.0``, ``….part.1`` and so on, with the number of
parts in ``….numParts``; older releases of Spark always cut it. Partition columns are named in
``….partCol.N``, with their number in ``….numPartCols``.

Spark stores the default of a column in the field's metadata (`DEFAULT`). The catalog has a field
for it, so it is removed from the metadata that a client sends and added to the metadata in answers.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from strandline.catalog.commands import ColumnDefinition
from strandline.clock import Timestamp, milliseconds, system_wall_clock
from strandline.errors import InvalidInput
from strandline.metastore.hive.accuracy import with_accurate_counts
from strandline.metastore.store.file_counts import FileCounter
from strandline.metastore.store.store_folders import StoreFolders
from strandline.metastore.table_parameters import ACCURATE, LAST_DDL_TIME, SCHEMA, is_counted
from strandline.model.descriptors import ColumnDescriptor, Properties, TableDescriptor, properties
from strandline.model.type_json import parse_schema_json, schema_json
from strandline.model.types import StructField, StructType
from strandline.wire.stored import NEVER_UPDATED

DERIVED = ""
"""The stored value of a parameter that each answer derives from the descriptor."""

PATH = "path"

HIVE_PROVIDER = "hive"
"""The provider of tables that are read in their Hive format."""

_MAX_TIME_DIGITS = 20


def split_parameters(parameters: Mapping[str, str]) -> tuple[dict[str, str], Properties]:
    """Split the parameters into those of the catalog and those of the object store."""
    counted = {name: value for name, value in parameters.items() if is_counted(name)}
    defining = {name: value for name, value in parameters.items() if name not in counted}
    return defining, properties(counted)


def time_of_change() -> dict[str, str]:
    """The parameter of a table or partition that changes now."""
    return {LAST_DDL_TIME: str(system_wall_clock() // 1000)}


def without_time(counted: Properties) -> Properties:
    """Return counted parameters without the time of the last change, which follows the others."""
    return tuple((name, value) for name, value in counted if name != LAST_DDL_TIME)


def show_last_change(parameters: dict[str, str], updated: Timestamp | None) -> None:
    """Date the parameters of a table or view by the change of its definition, if that is later.

    ``updated`` is the time of that change. The catalog knows it, so it costs an alter no write.
    """
    seconds = milliseconds(updated or NEVER_UPDATED) // 1000
    dated = parameters.get(LAST_DDL_TIME, "")
    is_time = dated.isdecimal() and len(dated) < _MAX_TIME_DIGITS  # a client may send any text
    if seconds > (int(dated) if is_time else 0):
        parameters[LAST_DDL_TIME] = str(seconds)


# Structs of the protocol hold values of many types: hence Any.
def if_purge(context: Mapping[str, Any] | None) -> bool:
    """Whether an ``EnvironmentContext`` asks that files be deleted at once."""
    if_purge = ((context or {}).get("properties") or {}).get("ifPurge", "")
    return bool(if_purge.lower() == "true")


_NUM_FILES, _TOTAL_SIZE = "numFiles", "totalSize"
_NOT = "DO_NOT_UPDATE_STATS"
_GENERATED = "STATS_GENERATED"
_BY_TASK, _BY_USER = "TASK", "USER"


class QuickStatistics:
    """Counts the files for one request, whose environment context is ``context``.

    The context can switch off the counting for an alter. A client can also switch it off in the
    ``parameters`` of the table, even for a creation. That parameter is an instruction, and is
    removed from them.
    """

    def __init__(
        self,
        folders: StoreFolders,
        context: Mapping[str, Any] | None,
        *,
        parameters: dict[str, str] | None = None,
    ) -> None:
        self._folders = folders
        self._options: Mapping[str, str] = (context or {}).get("properties") or {}
        self._counts = (parameters or {}).pop(_NOT, "").lower() != "true"
        self._counter = FileCounter()

    def of_new(self, parameters: Properties, location: str, *, is_made: bool) -> Properties:
        """Return the parameters of an object that is created over ``location``, with counts.

        Counts that the client sent are kept. There are none without a folder, and none for an empty
        one that was made for the object (``is_made``).
        """
        sent = dict(parameters)
        if _sizes(sent) is not None:
            return parameters
        counts = self._count(location)
        if counts is None:
            return parameters
        if counts[_NUM_FILES] == "0" and (is_made or not self._folders.exists(location)):
            return parameters
        return self._with(sent, counts)

    def of_altered(
        self, parameters: Properties, location: str, *, old: Properties = ()
    ) -> Properties:
        """Return the parameters of an altered object, with counts of its present files.

        If the client sends back the counts that the object had (``old``), and they are right, what
        it sends about their accuracy is kept.
        """
        if self._options.get(_NOT, "").lower() == "true":
            return parameters
        sent = dict(parameters)
        counts = self._count(location)
        if counts is None:
            return parameters
        is_written = self._options.get(_GENERATED) in (_BY_TASK, _BY_USER)
        if _sizes(sent) == _sizes(dict(old)) == _sizes(counts) and not is_written:
            return parameters
        return self._with(sent, counts)

    def _count(self, location: str) -> dict[str, str] | None:
        if not self._counts or not self._folders.may_list(location):
            return None
        counts = self._counter.count(self._folders.path(location))
        if counts is None:
            return None
        return {_NUM_FILES: str(counts.files), _TOTAL_SIZE: str(counts.bytes)}

    def _with(self, sent: dict[str, str], counted: dict[str, str]) -> Properties:
        # Hive's row statistics do not hold for other files, unless the writer of these counted.
        if self._options.get(_GENERATED) == _BY_TASK:
            return with_accurate_counts(properties(sent | counted))
        kept_parameters = {name: value for name, value in sent.items() if name != ACCURATE}
        return properties(kept_parameters | counted)


def _sizes(parameters: Mapping[str, str]) -> tuple[str, str] | None:
    """The number of files and bytes in the parameters, or None if they do not have both."""
    files, size = parameters.get(_NUM_FILES), parameters.get(_TOTAL_SIZE)
    return None if files is None or size is None else (files, size)


def is_counted_table(table: TableDescriptor) -> bool:
    """Whether the files of the table itself are counted."""
    names = {name for name, _ in table.properties}
    return not (table.partition_columns or table.transactional or "metadata_location" in names)


DEFAULT = "CURRENT_DEFAULT"
"""The metadata key of a column's default, which is a SQL expression."""

MAX_PARAMETER = 4000
"""The maximum number of characters of one parameter."""

_PARTS = f"{SCHEMA}.numParts"
_PART = f"{SCHEMA}.part."
_PARTITION_COLUMNS = f"{SCHEMA}.numPartCols"
_PARTITION_COLUMN = f"{SCHEMA}.partCol."


@dataclass(frozen=True, slots=True)
class SparkSchema:
    """The columns as Spark knows them, partition columns last, and the names of the latter."""

    columns: tuple[ColumnDefinition, ...]
    partition_columns: tuple[str, ...]


TakenSchema = tuple[SparkSchema | None, Mapping[str, str]]
"""The schema that Spark wrote, if any, and the parameters without it."""


def take_schema(parameters: Mapping[str, str]) -> TakenSchema:
    """Return the schema that Spark wrote, or None, and the other parameters.

    Raises `InvalidInput` (or its subclass `InvalidType`) if the schema cannot be read.
    """
    parts = [parameters[SCHEMA]] if SCHEMA in parameters else _numbered(parameters, _PARTS, _PART)
    if parts is None:
        return None, dict(parameters)
    rest = {name: value for name, value in parameters.items() if not _holds_schema(name)}
    columns = [_column(field) for field in parse_schema_json("".join(parts)).fields]
    names = _numbered(parameters, _PARTITION_COLUMNS, _PARTITION_COLUMN) or []
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
    defaults: bool = True,
) -> dict[str, str]:
    """Return the parameters that describe these columns to Spark.

    Without ``defaults``, Spark does not learn the defaults and so does not fill them in.
    """
    fields = [_field(column, default=column.default if defaults else None) for column in columns]
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


def _numbered(parameters: Mapping[str, str], count: str, prefix: str) -> list[str] | None:
    """Return the values of ``prefix0`` …; None without the parameter ``count``, their number."""
    text = parameters.get(count)
    if text is None:
        return None
    if not text.isdecimal() or len(text) > 9 or int(text) > len(parameters):
        raise InvalidInput(
            f"the parameter {count} is {text[:20]!r}, which is not a number of parts"
        )
    missing = [n for n in range(int(text)) if f"{prefix}{n}" not in parameters]
    if missing:
        raise InvalidInput(f"the parameter {prefix}{missing[0]} is missing, but {count} is {text}")
    return [parameters[f"{prefix}{n}"] for n in range(int(text))]


def _column(field: StructField) -> ColumnDefinition:
    metadata, default = field.metadata, None
    if DEFAULT in metadata:
        entries = json.loads(metadata)
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


def _compact(entries: dict[str, object]) -> str:
    if not entries:
        return ""
    return json.dumps(entries, ensure_ascii=False, separators=(",", ":"))
