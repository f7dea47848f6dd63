"""Tables as clients define them, and the descriptors that they become."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from strandline.catalog.commands.column_definition import (
    FIRST_COLUMN_ID,
    ColumnDefinition,
    check_columns,
    check_distinct,
    check_keyable,
    checked_columns,
    column_ids,
    new_columns,
)
from strandline.errors import InvalidInput, ObjectNotFound, UnsupportedOperation
from strandline.model.descriptors import (
    Collation,
    ColumnDescriptor,
    Properties,
    SchemaVersion,
    StorageFormat,
    TableDescriptor,
    TableKind,
)
from strandline.model.identifiers import (
    MAX_NAME_LENGTH,
    check_name,
    check_versioned_name,
    normalize,
)
from strandline.model.partitioning import PartitionField, partition_fields
from strandline.model.type_text import simple_string

MAX_ROWS = (1 << 63) - 1
_KEY_SUFFIX = "_pk"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableDefinition:
    """A table as a client defines it.

    A plain table is partitioned by the last of its ``columns``. A transactional table is
    partitioned by ``partitioned_by``, texts such as ``day(ts)`` (`strandline.model.partitioning`).
    """

    name: str
    columns: tuple[ColumnDefinition, ...]
    owner: str | None = None
    kind: TableKind = TableKind.MANAGED
    transactional: bool = False
    provider: str = "parquet"
    partition_columns: tuple[str, ...] = ()
    primary_key: tuple[str, ...] = ()
    colocation: tuple[str, ...] = ()
    storage: StorageFormat = StorageFormat()
    location: str | None = None
    properties: Properties = ()
    comment: str | None = None
    primary_key_name: str | None = None
    """The name of the index of the primary key; None means `generated_key_name`."""
    primary_key_collations: tuple[Collation, ...] = ()
    """If there is one for each key column, that index is sorted; if empty, it is a hash index."""
    zone: str | None = None
    """None means the default zone of the catalog."""
    storage_profile: str = ""
    """A storage profile of the zone; empty means the zone's first."""
    stale_rows_fraction: float = 0.2
    min_stale_rows: int = 500
    partitioned_by: tuple[str, ...] = ()
    any_default: bool = False
    """The client has checked the defaults of the columns, as Spark does for a plain table."""


class FirstColumns(NamedTuple):
    """The columns of a new table, the next free column id, and their texts for the event."""

    columns: tuple[ColumnDescriptor, ...]
    next_id: int
    texts: tuple[str, ...]


_FIRST_COLUMNS: dict[tuple[tuple[ColumnDefinition, ...], bool], FirstColumns] = {}
"""The first columns of definitions that recently passed `checked`, by columns and transactional.

None of the columns has a default. Clients often create tables with the same columns; such tables
share their column descriptors.
"""
_MAX_DEFINITIONS, _MAX_SHARED_COLUMNS = 256, 100


def generated_key_name(table: str) -> str:
    """The name of the index of a primary key if the client gives none."""
    return table[: MAX_NAME_LENGTH - len(_KEY_SUFFIX)] + _KEY_SUFFIX


def check_stale_rows(fraction: float, minimum: int) -> None:
    """Refuse invalid limits of staleness: a fraction outside 0 to 1, rows below 0 or too many."""
    if not 0.0 <= fraction <= 1.0:  # false for NaN too
        raise InvalidInput(f"the fraction of stale rows must be between 0 and 1, found {fraction}")
    if minimum < 0:
        raise InvalidInput(f"the minimum of stale rows must be 0 or more, found {minimum}")
    if minimum > MAX_ROWS:
        raise InvalidInput(f"the minimum of stale rows may be at most {MAX_ROWS}, found {minimum}")


def checked(definition: TableDefinition) -> tuple[TableDefinition, FirstColumns | None]:
    """Check a definition. Return it with its defaults in stored form, and its first columns.

    The first columns are None unless an equal definition was checked recently. Raises
    `InvalidInput`, `InvalidName`, `ObjectNotFound` if the definition names a missing column,
    `UnsupportedOperation`.
    """
    name = definition.name
    check_versioned_name(name, "table")
    if definition.transactional and not definition.columns:
        raise InvalidInput(f"transactional table {name!r} needs at least one column")
    _check_kind_of_partitions(definition)
    for column_name in definition.partition_columns:
        check_name(column_name, "partition column")
    known = _known_columns(definition)
    if known is None:
        check_columns(definition.columns, table=name)
    _check_key(definition)
    columns = definition.columns
    if known is None:
        columns = checked_columns(
            columns,
            transactional=definition.transactional,
            any_default=definition.any_default,
        )
    check_distinct(definition.partition_columns, what=f"the partition columns of {name}")
    check_distinct(definition.colocation, what=f"the colocation columns of {name}")
    key = {normalize(column) for column in definition.primary_key}
    outside = [column for column in definition.colocation if key and normalize(column) not in key]
    if outside:
        raise InvalidInput(
            f"colocation column {outside[0]!r} must be a column of the primary key, which is "
            f"({', '.join(definition.primary_key)}): rows of one key must be in one zone partition"
        )
    check_stale_rows(definition.stale_rows_fraction, definition.min_stale_rows)
    if known or all(map(operator.is_, columns, definition.columns)):
        return definition, known
    return replace(definition, columns=columns), None


def _check_kind_of_partitions(definition: TableDefinition) -> None:
    if definition.transactional and definition.partition_columns:
        raise UnsupportedOperation(
            f"transactional table {definition.name!r} cannot have separate partition columns; "
            "give columns of the table, or transforms of them, in partitioned_by"
        )
    if definition.partitioned_by and not definition.transactional:
        raise UnsupportedOperation(
            f"plain table {definition.name!r} can be partitioned only by its last columns; name "
            "them in partition_columns"
        )


def _check_key(definition: TableDefinition) -> None:
    key, collations = definition.primary_key, definition.primary_key_collations
    if not key:
        if collations or definition.primary_key_name is not None:
            raise InvalidInput(f"the primary key of {definition.name} has no columns; name them")
        return
    if definition.primary_key_name is not None:
        check_name(definition.primary_key_name, "primary key")
    by_name = {normalize(column.name): column for column in definition.columns}
    columns = [by_name.get(normalize(name)) for name in key]
    for name, column in zip(key, columns, strict=True):
        if column is None:
            raise ObjectNotFound(
                f"column {name!r} of the primary key does not exist; there are"
                f" {', '.join(sorted(by_name))}"
            )
        if column.nullable:
            raise InvalidInput(f"primary key column {column.name!r} must be NOT NULL")
        check_keyable(column, what="a primary key")
    check_distinct(key, what=f"the primary key of {definition.name}")
    if collations and len(collations) != len(key):
        raise InvalidInput(
            f"the primary key of {definition.name} has {len(key)} columns and {len(collations)} "
            "collations; give one for each column, or none"
        )


def first_columns(definition: TableDefinition) -> FirstColumns:
    """Return the first columns of a `checked` definition, and cache them for the next like it."""
    columns, next_id = new_columns(definition.columns, FIRST_COLUMN_ID)
    texts = tuple(f"{column.name} {simple_string(column.type)}" for column in columns)
    first = FirstColumns(columns, next_id, texts)
    is_small = len(columns) <= _MAX_SHARED_COLUMNS
    if is_small and all(column.default is None for column in definition.columns):
        if len(_FIRST_COLUMNS) >= _MAX_DEFINITIONS:
            _FIRST_COLUMNS.clear()
        _FIRST_COLUMNS[definition.columns, definition.transactional] = first
    return first


def describe(
    definition: TableDefinition,
    first: FirstColumns,
    *,
    owner: str,
    table_id: int,
    schema_id: int,
    zone_id: int,
    created: int,
    primary_key_index: int = 0,
) -> TableDescriptor:
    """Return the first descriptor of a new table from a `checked` definition and its columns."""
    columns = first.columns
    return TableDescriptor(
        id=table_id,
        schema_id=schema_id,
        name=definition.name,
        owner=owner,
        kind=definition.kind,
        transactional=definition.transactional,
        provider=definition.provider,
        schema_versions=(SchemaVersion(1, columns),),
        next_column_id=first.next_id,
        zone_id=zone_id,
        partition_columns=partition_column_ids(definition, columns),
        primary_key=column_ids(columns, definition.primary_key),
        colocation=column_ids(columns, definition.colocation),
        storage=definition.storage,
        location=definition.location,
        properties=definition.properties,
        comment=definition.comment,
        created=created,
        primary_key_index=primary_key_index,
        storage_profile=definition.storage_profile,
        stale_rows_fraction=definition.stale_rows_fraction,
        min_stale_rows=definition.min_stale_rows,
        partitioning=partitioning_of(definition, columns),
    )


def partition_column_ids(
    definition: TableDefinition, columns: Sequence[ColumnDescriptor]
) -> tuple[int, ...]:
    """The ids of the partition columns. Raises `InvalidInput` unless they are the last columns."""
    names = definition.partition_columns
    ids = column_ids(columns, names)
    if ids and tuple(column.id for column in columns[-len(ids) :]) != ids:
        raise InvalidInput(f"partition columns {list(names)} must be the last columns")
    return ids


def _known_columns(definition: TableDefinition) -> FirstColumns | None:
    """The first columns of an equal definition that was checked recently, or None."""
    if len(definition.columns) > _MAX_SHARED_COLUMNS:
        return None
    return _FIRST_COLUMNS.get((definition.columns, definition.transactional))


def partitioning_of(
    definition: TableDefinition, columns: Iterable[ColumnDescriptor]
) -> tuple[PartitionField, ...]:
    """The partition fields of a definition. Raises what `partition_fields` raises."""
    if not definition.partitioned_by:
        return ()
    known = {normalize(column.name): (column.id, column.type) for column in columns}
    return partition_fields(definition.partitioned_by, known, table=definition.name)


def with_columns(
    table: TableDescriptor, columns: tuple[ColumnDescriptor, ...], next_column_id: int
) -> TableDescriptor:
    """Return ``table`` with one more schema version, or the same table if nothing differs."""
    if columns == table.columns:
        return table
    versions = table.versions_with(columns)
    return replace(table, schema_versions=versions, next_column_id=next_column_id)
