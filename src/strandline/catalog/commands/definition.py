"""Table definitions by clients, and how they become descriptors with stable column ids."""

from __future__ import annotations

import json
import operator
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from strandline.catalog.commands.defaults import checked_default
from strandline.errors import IllegalChange, InvalidInput, ObjectNotFound, UnsupportedOperation
from strandline.model.descriptors import (
    Collation,
    ColumnDescriptor,
    IndexDescriptor,
    Properties,
    SchemaVersion,
    StorageFormat,
    TableDescriptor,
    TableKind,
)
from strandline.model.identifiers import (
    MAX_NAME_LENGTH,
    check_column_name,
    check_name,
    check_scan_name,
    normalize,
)
from strandline.model.partitioning import PartitionField, partition_fields
from strandline.model.type_changes import assign_ids, carry_ids, check_field_names
from strandline.model.type_text import simple_string
from strandline.model.types import (
    CALENDAR_INTERVAL,
    VARIANT,
    VOID,
    AtomicType,
    DataType,
    GeographyType,
    GeometryType,
    MapType,
    TimeType,
    depth_of,
    walk,
)

MAX_COLUMNS = 10_000
MAX_ROWS = (1 << 63) - 1
_KEY_SUFFIX = "_pk"
_NOT_COMPARED = (VARIANT, CALENDAR_INTERVAL, VOID)
_NOT_IN_PARQUET = (TimeType, GeometryType, GeographyType)
_ATOMS_NOT_IN_PARQUET = (CALENDAR_INTERVAL.name, VOID.name)
FIRST_COLUMN_ID = 1
"""Column ids are Parquet field ids. Readers differ on whether 0 is a valid one, so it is unused."""


@dataclass(frozen=True, slots=True)
class ColumnDefinition:
    """A column as a client defines it, before it has an id."""

    name: str
    type: DataType
    nullable: bool = True
    comment: str | None = None
    default: str | None = None
    metadata: str = ""


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


class FirstColumns(NamedTuple):
    """The columns of a new table, the next free column id, and their texts for the event."""

    columns: tuple[ColumnDescriptor, ...]
    next_id: int
    texts: tuple[str, ...]


_FIRST_COLUMNS: dict[tuple[tuple[ColumnDefinition, ...], bool], FirstColumns] = {}
"""The first columns of definitions that recently passed `checked`, by columns and transactional.

Clients often create tables with the same columns; such tables share their column descriptors.
"""
_MOST_DEFINITIONS, _MOST_SHARED_COLUMNS = 256, 100


def generated_key_name(table: str) -> str:
    """The name of the index of a primary key if the client gives none."""
    return table[: MAX_NAME_LENGTH - len(_KEY_SUFFIX)] + _KEY_SUFFIX


def check_columns(columns: Sequence[ColumnDefinition], *, table: str) -> None:
    """Refuse invalid and duplicate names, invalid metadata, and too many columns."""
    if len(columns) > MAX_COLUMNS:
        raise InvalidInput(f"{table} has {len(columns)} columns; at most {MAX_COLUMNS} are allowed")
    for column in columns:
        check_column_name(column.name)
        if column.metadata:
            _check_metadata(column)
    names = [column.name for column in columns]
    if len(set(map(normalize, names))) < len(names):
        check_distinct(names, what=table)


def _check_metadata(column: ColumnDefinition) -> None:
    try:
        metadata = json.loads(column.metadata)
    except (ValueError, RecursionError):
        metadata = None
    if not isinstance(metadata, dict):
        raise InvalidInput(
            f"the metadata of column {column.name!r} must be a JSON object, as Spark writes it; "
            f"found {column.metadata[:80]!r}"
        )


def checked_columns(
    columns: Sequence[ColumnDefinition], *, transactional: bool
) -> tuple[ColumnDefinition, ...]:
    """Return new columns that passed `check_columns`, with their defaults in stored form.

    Raises `InvalidInput`, `InvalidName`, `UnsupportedOperation`.
    """
    kept = []
    for column in columns:
        if depth_of(column.type):
            check_field_names(column.type, column=column.name)
        if transactional and not _is_plainly_storable(column.type):
            check_storable(column)
        if transactional and column.name.startswith("_"):
            check_scan_name(column.name)
        kept.append(column if column.default is None else with_checked_default(column))
    return tuple(kept)


def with_checked_default(
    column: ColumnDefinition, *, any_expression: bool = False
) -> ColumnDefinition:
    """Return ``column`` with its default in stored form. Raises what `checked_default` raises.

    With ``any_expression``, an unsupported expression is kept as it is.
    """
    try:
        default = checked_default(
            column.default,
            column.type,
            column=column.name,
            nullable=column.nullable,
            metadata=column.metadata,
        )
    except UnsupportedOperation:
        if not any_expression:
            raise
        return column
    return replace(column, default=default)


def check_storable(column: ColumnDefinition | ColumnDescriptor) -> None:
    """Refuse a type that Spark cannot write to the files of a transactional table."""
    for inner in walk(column.type):
        if not _is_storable(inner):
            raise UnsupportedOperation(
                f"column {column.name!r} has the type {simple_string(inner)}, which Spark cannot "
                "write to Parquet files; choose another one"
            )


def _is_plainly_storable(data_type: DataType) -> bool:
    """Whether the type is a scalar that Spark can write, as nearly all types are."""
    return not depth_of(data_type) and _is_storable(data_type)


def _is_storable(data_type: DataType) -> bool:
    """Whether Spark can write the type to Parquet files, without regard to nested types."""
    if type(data_type) is AtomicType:
        return data_type.name not in _ATOMS_NOT_IN_PARQUET
    return not isinstance(data_type, _NOT_IN_PARQUET)


def check_keyable(column: ColumnDefinition | ColumnDescriptor, *, what: str) -> None:
    """Refuse a column whose values cannot be compared as part of ``what``."""
    for inner in walk(column.type):
        if inner in _NOT_COMPARED or isinstance(inner, MapType | GeometryType | GeographyType):
            raise InvalidInput(
                f"column {column.name!r} cannot be part of {what}: values of the type "
                f"{simple_string(inner)[:80]} cannot be compared"
            )


def check_distinct(names: Sequence[str], *, what: str) -> None:
    """Refuse a list that names a column twice."""
    seen: set[str] = set()
    for name in names:
        if normalize(name) in seen:
            raise InvalidInput(f"duplicate column {name!r} in {what}")
        seen.add(normalize(name))


def check_stale_rows(fraction: float, minimum: int) -> None:
    """Refuse invalid limits of staleness: a fraction outside 0 to 1, rows below 0 or too many."""
    if not 0.0 <= fraction <= 1.0:  # false for NaN too
        raise InvalidInput(f"the fraction of stale rows must be between 0 and 1, found {fraction}")
    if minimum < 0:
        raise InvalidInput(f"the minimum of stale rows must be 0 or more, found {minimum}")
    if minimum > MAX_ROWS:
        raise InvalidInput(f"the minimum of stale rows may be at most {MAX_ROWS}, found {minimum}")


def new_columns(
    definitions: Iterable[ColumnDefinition], next_id: int
) -> tuple[tuple[ColumnDescriptor, ...], int]:
    """Return columns with ids from ``next_id`` on, also for nested fields, and the next free id."""
    columns = []
    for definition in definitions:
        column_id, next_id, data_type = next_id, next_id + 1, definition.type
        if depth_of(data_type):
            data_type, next_id = assign_ids(data_type, next_id)
        columns.append(
            ColumnDescriptor(
                column_id,
                definition.name,
                data_type,
                definition.nullable,
                definition.comment,
                definition.default,
                definition.metadata,
            )
        )
    return tuple(columns), next_id


def redefine_columns(
    table: TableDescriptor, definitions: Iterable[ColumnDefinition]
) -> tuple[tuple[ColumnDescriptor, ...], int]:
    """Return the columns of ``definitions``: existing names keep their ids, others get new ids.

    A default is validated if it, or the column that it must fit, has changed. In a plain table it
    may be any expression, because Spark validates and evaluates it. Raises `InvalidInput`,
    `UnsupportedOperation`.
    """
    next_id = table.next_column_id
    by_name = {normalize(column.name): column for column in table.columns}
    columns = []
    for definition in definitions:
        known = by_name.get(normalize(definition.name))
        if known is None:
            check_field_names(definition.type, column=definition.name)
            definition = with_checked_default(definition, any_expression=not table.transactional)
            (column,), next_id = new_columns([definition], next_id)
        else:
            data_type, next_id = carry_ids(known.type, definition.type, next_id)
            if data_type != known.type:
                check_field_names(data_type, column=definition.name)
            before = known.default, known.type, known.nullable
            if (definition.default, data_type, definition.nullable) != before:
                definition = with_checked_default(
                    definition, any_expression=not table.transactional
                )
            column = ColumnDescriptor(
                known.id,
                definition.name,
                data_type,
                definition.nullable,
                definition.comment,
                definition.default,
                definition.metadata,
            )
        columns.append(column)
    return tuple(columns), next_id


def column_ids(columns: Iterable[ColumnDescriptor], names: Collection[str]) -> tuple[int, ...]:
    """The ids of the columns with these names. Raises `ObjectNotFound` for a missing column."""
    if not names:
        return ()
    by_name = {normalize(column.name): column.id for column in columns}
    for name in names:
        if normalize(name) not in by_name:
            raise ObjectNotFound(f"column {name!r} does not exist; columns are {sorted(by_name)}")
    return tuple(by_name[normalize(name)] for name in names)


def checked(definition: TableDefinition) -> tuple[TableDefinition, FirstColumns | None]:
    """Check a definition. Return it with its defaults in stored form, and its first columns.

    The first columns are None unless an equal definition was checked recently. Raises
    `InvalidInput`, `InvalidName`, `ObjectNotFound` if the definition names a missing column,
    `UnsupportedOperation`.
    """
    name = definition.name
    check_name(name, "table")
    if not isinstance(definition.kind, TableKind):
        raise InvalidInput(
            f"the kind of table {name!r} is {definition.kind!r}; give TableKind.MANAGED or "
            "TableKind.EXTERNAL, from strandline.model.descriptors"
        )
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
        columns = checked_columns(columns, transactional=definition.transactional)
    check_distinct(definition.partition_columns, what=f"the partition columns of {name}")
    check_distinct(definition.colocation, what=f"the colocation columns of {name}")
    key = {normalize(column) for column in definition.primary_key}
    outside = [column for column in definition.colocation if key and normalize(column) not in key]
    if outside:
        raise InvalidInput(
            f"colocation column {outside[0]!r} must be a column of the primary key, which is "
            f"({', '.join(definition.primary_key)}): rows of one key must lie together"
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
                f"column {name!r} of the primary key does not exist; columns are {sorted(by_name)}"
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
    is_small = len(columns) <= _MOST_SHARED_COLUMNS
    if is_small and all(column.default is None for column in definition.columns):
        if len(_FIRST_COLUMNS) >= _MOST_DEFINITIONS:
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
    partition_columns = column_ids(columns, definition.partition_columns)
    if partition_columns and tuple(c.id for c in columns)[-len(partition_columns) :] != (
        partition_columns
    ):
        raise InvalidInput(
            f"partition columns {list(definition.partition_columns)} must be the last columns"
        )
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
        partition_columns=partition_columns,
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


def _known_columns(definition: TableDefinition) -> FirstColumns | None:
    """The first columns of an equal definition that was checked recently, or None."""
    if len(definition.columns) > _MOST_SHARED_COLUMNS:
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


def refuse_used_column(table: TableDescriptor, column: ColumnDescriptor, *, what: str) -> None:
    """Refuse to do ``what`` to a partition, primary key or colocation column of a table.

    For the source columns of partition fields, see `refuse_partitioning_column`.
    """
    for role, ids in (
        ("partition column", table.partition_columns),
        ("primary key column", table.primary_key),
        ("colocation column", table.colocation),
    ):
        if column.id in ids:
            raise IllegalChange(f"{column.name!r} is a {role} of {table.name} and {what}")


def refuse_partitioning_column(
    table: TableDescriptor, column: ColumnDescriptor, *, what: str
) -> None:
    """Refuse to do ``what`` to a source column of a partition field of the table."""
    for field in table.partitioning:
        if field.source_id == column.id:
            raise IllegalChange(
                f"{table.name} is partitioned by {field.transform} of {column.name!r}, which {what}"
            )


def refuse_indexed_column(
    table: TableDescriptor, column: ColumnDescriptor, indexes: Iterable[IndexDescriptor]
) -> None:
    """Refuse to drop a column of an alive index of the table."""
    using = [
        index.name
        for index in indexes
        if index.alive and any(part.column_id == column.id for part in index.columns)
    ]
    if using:
        raise IllegalChange(
            f"column {column.name!r} of {table.name} cannot be dropped, because it is used by "
            f"index(es) {', '.join(using)}; drop these first"
        )
