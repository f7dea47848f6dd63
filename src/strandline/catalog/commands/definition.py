"""What a table is asked to be, and how that becomes a descriptor with stable column ids."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from strandline.errors import IllegalChange, InvalidInput, ObjectNotFound
from strandline.model.descriptors import (
    ColumnDescriptor,
    Properties,
    SchemaVersion,
    StorageFormat,
    TableDescriptor,
    TableKind,
)
from strandline.model.identifiers import check_name, normalize
from strandline.model.type_changes import assign_ids, carry_ids
from strandline.model.types import DataType

MAX_COLUMNS = 10_000
FIRST_COLUMN_ID = 1
"""Column ids are Parquet field ids; readers differ on whether 0 is one, so 0 is not used."""


@dataclass(frozen=True, slots=True)
class ColumnDefinition:
    """A column as somebody writes it down, before it has an id."""

    name: str
    type: DataType
    nullable: bool = True
    comment: str | None = None
    default: str | None = None
    metadata: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableDefinition:
    """A table as somebody writes it down. Partition columns are the last of ``columns``."""

    name: str
    columns: tuple[ColumnDefinition, ...]
    owner: str = ""
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


def check_columns(columns: Sequence[ColumnDefinition], *, table: str) -> None:
    """Refuse names that are bad or stand twice, and more columns than a table may have."""
    if len(columns) > MAX_COLUMNS:
        raise InvalidInput(f"{table} has {len(columns)} columns; at most {MAX_COLUMNS} are allowed")
    seen: set[str] = set()
    for column in columns:
        check_name(column.name, "column")
        if normalize(column.name) in seen:
            raise InvalidInput(f"column {column.name!r} stands twice in {table}")
        seen.add(normalize(column.name))


def new_columns(
    definitions: Iterable[ColumnDefinition], next_id: int
) -> tuple[tuple[ColumnDescriptor, ...], int]:
    """Columns with ids from ``next_id`` on, their nested fields too, and the next id after."""
    columns = []
    for one in definitions:
        column_id, next_id = next_id, next_id + 1
        data_type, next_id = assign_ids(one.type, next_id)
        columns.append(
            ColumnDescriptor(
                column_id,
                one.name,
                data_type,
                one.nullable,
                one.comment,
                one.default,
                one.metadata,
            )
        )
    return tuple(columns), next_id


def redefine_columns(
    old: Iterable[ColumnDescriptor], definitions: Iterable[ColumnDefinition], next_id: int
) -> tuple[tuple[ColumnDescriptor, ...], int]:
    """The columns of ``definitions``: one whose name was there keeps its id, others get new ids."""
    by_name = {normalize(column.name): column for column in old}
    columns = []
    for one in definitions:
        known = by_name.get(normalize(one.name))
        if known is None:
            (column,), next_id = new_columns([one], next_id)
        else:
            data_type, next_id = carry_ids(known.type, one.type, next_id)
            column = ColumnDescriptor(
                known.id,
                one.name,
                data_type,
                one.nullable,
                one.comment,
                one.default,
                one.metadata,
            )
        columns.append(column)
    return tuple(columns), next_id


def column_ids(columns: Iterable[ColumnDescriptor], names: Iterable[str]) -> tuple[int, ...]:
    """The ids of the columns with these names; `ObjectNotFound` names the one that is missing."""
    by_name = {normalize(column.name): column.id for column in columns}
    for name in names:
        if normalize(name) not in by_name:
            raise ObjectNotFound(f"column {name!r} does not exist; columns are {sorted(by_name)}")
    return tuple(by_name[normalize(name)] for name in names)


def describe(
    definition: TableDefinition, *, table_id: int, schema_id: int, zone_id: int, created: int
) -> TableDescriptor:
    """The first descriptor of a new table."""
    check_name(definition.name, "table")
    check_columns(definition.columns, table=definition.name)
    if definition.transactional and not definition.columns:
        raise InvalidInput(f"transactional table {definition.name!r} needs at least one column")
    columns, next_id = new_columns(definition.columns, FIRST_COLUMN_ID)
    partition_columns = column_ids(columns, definition.partition_columns)
    if partition_columns and tuple(c.id for c in columns)[-len(partition_columns) :] != (
        partition_columns
    ):
        raise InvalidInput(
            f"partition columns {list(definition.partition_columns)} must be the last columns"
        )
    primary_key = column_ids(columns, definition.primary_key)
    nullable = [c.name for c in columns if c.id in primary_key and c.nullable]
    if nullable:
        raise InvalidInput(f"primary key column {nullable[0]!r} must be NOT NULL")
    return TableDescriptor(
        id=table_id,
        schema_id=schema_id,
        name=definition.name,
        owner=definition.owner,
        kind=definition.kind,
        transactional=definition.transactional,
        provider=definition.provider,
        schema_versions=(SchemaVersion(1, columns),),
        next_column_id=next_id,
        zone_id=zone_id,
        partition_columns=partition_columns,
        primary_key=primary_key,
        colocation=column_ids(columns, definition.colocation),
        storage=definition.storage,
        location=definition.location,
        properties=definition.properties,
        comment=definition.comment,
        created=created,
    )


def with_columns(
    table: TableDescriptor, columns: tuple[ColumnDescriptor, ...], next_column_id: int
) -> TableDescriptor:
    """``table`` with one more schema version; the same table if nothing differs."""
    if columns == table.columns:
        return table
    version = SchemaVersion(table.schema_version + 1, columns)
    return replace(
        table,
        schema_versions=(*table.schema_versions, version),
        next_column_id=next_column_id,
    )


def refuse_used_column(table: TableDescriptor, column: ColumnDescriptor, *, what: str) -> None:
    """Refuse to do ``what`` to a column that partitions, keys or colocates its table."""
    for role, ids in (
        ("partition column", table.partition_columns),
        ("primary key column", table.primary_key),
        ("colocation column", table.colocation),
    ):
        if column.id in ids:
            raise IllegalChange(f"{column.name!r} is a {role} of {table.name} and {what}")
