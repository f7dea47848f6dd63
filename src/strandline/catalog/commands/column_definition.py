"""Columns as clients define them, and how they get ids that never change."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from strandline.catalog.commands.defaults import checked_default, is_null
from strandline.errors import (
    IllegalChange,
    InvalidInput,
    InvalidType,
    ObjectNotFound,
    StrandlineError,
    UnsupportedOperation,
)
from strandline.model.descriptors import (
    ColumnDescriptor,
    IndexDescriptor,
    TableDescriptor,
    ViewDescriptor,
)
from strandline.model.identifiers import check_column_name, check_scan_name, normalize
from strandline.model.type_changes import carry_ids, check_field_names
from strandline.model.type_json import check_metadata
from strandline.model.type_text import hive_string, simple_string
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
_NOT_COMPARED = (VARIANT, CALENDAR_INTERVAL, VOID)
_NOT_STORED = (TimeType, GeometryType, GeographyType)
_ATOMS_NOT_STORED = (CALENDAR_INTERVAL.name, VOID.name)
Refusals = tuple[type[StrandlineError], ...]
"""Errors of `checked_default`. A default that raises one of them is kept as the client sent it."""
_ANY_DEFAULT: Refusals = (UnsupportedOperation, InvalidInput)
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

    def with_id(self, column_id: int, of_type: DataType) -> ColumnDescriptor:
        """The column in a table, where its type has ids too."""
        return ColumnDescriptor(
            column_id, self.name, of_type, self.nullable, self.comment, self.default, self.metadata
        )


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
        check_metadata(column.metadata)
    except InvalidType as error:
        raise InvalidInput(
            f"the metadata of column {column.name!r} must be a JSON object, as Spark writes it; "
            f"found {column.metadata[:80]!r} ({error.message})"
        ) from None


def checked_columns(
    columns: Sequence[ColumnDefinition], *, transactional: bool, any_default: bool = False
) -> tuple[ColumnDefinition, ...]:
    """Return new columns that passed `check_columns`, with their defaults in stored form.

    With ``any_default``, the client has checked the defaults of a plain table. Raises
    `InvalidInput`, `InvalidName`, `UnsupportedOperation`.
    """
    left_to_client = _ANY_DEFAULT if any_default and not transactional else ()
    kept = []
    for column in columns:
        if depth_of(column.type):
            check_field_names(column.type, column=column.name)
        kept.append(
            _checked_column(column, transactional=transactional, left_to_client=left_to_client)
        )
    return tuple(kept)


def _checked_column(
    column: ColumnDefinition, *, transactional: bool, left_to_client: Refusals
) -> ColumnDefinition:
    """Return a new column with its default in stored form. Refuse what the table cannot have."""
    if transactional and not _is_plainly_storable(column.type):
        check_storable(column)
    if transactional and column.name.startswith("_"):
        check_scan_name(column.name)
    if column.default is None:
        return column
    return _with_checked_default(column, transactional=transactional, left_to_client=left_to_client)


def _with_checked_default(
    column: ColumnDefinition, *, transactional: bool, left_to_client: Refusals
) -> ColumnDefinition:
    """Return ``column`` with its default in stored form. Raises what `checked_default` raises.

    A default that is refused with one of ``left_to_client`` is kept as it is, unless it is NULL.
    """
    try:
        default = checked_default(
            column.default,
            column.type,
            column=column.name,
            nullable=column.nullable,
            # Spark checks and folds the defaults of plain tables only.
            metadata="" if transactional else column.metadata,
        )
    except left_to_client:
        if is_null(column.default):
            raise
        return column
    return replace(column, default=default)


def check_storable(column: ColumnDefinition | ColumnDescriptor) -> None:
    """Refuse a type that a transactional table cannot have."""
    for inner in walk(column.type):
        if not _is_storable(inner):
            raise UnsupportedOperation(
                f"column {column.name!r} has the type {simple_string(inner)}, which a "
                "transactional table cannot have; choose another one"
            )


def _is_plainly_storable(data_type: DataType) -> bool:
    """Whether the type is a scalar that a transactional table can have, as nearly all are."""
    return not depth_of(data_type) and _is_storable(data_type)


def _is_storable(data_type: DataType) -> bool:
    """Whether a transactional table can have the type, without regard to nested types."""
    if type(data_type) is AtomicType:
        return data_type.name not in _ATOMS_NOT_STORED
    return not isinstance(data_type, _NOT_STORED)


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


def refuse_unspelled(
    columns: Iterable[ColumnDefinition | ColumnDescriptor], table: TableDescriptor
) -> None:
    """Refuse types that Hive cannot spell, in a plain table with the provider ``hive``.

    All of its columns would be shown as one placeholder, which Spark reads in their place.
    """
    if table.provider.lower() != "hive":
        return
    for column in columns:
        if hive_string(column.type) is None:
            raise IllegalChange(
                f"column {column.name!r} of {table.name} cannot have the type "
                f"{simple_string(column.type)[:80]}, which Hive does not know: as the provider of "
                "the table is hive, Spark could read none of its columns; choose another type"
            )


def new_columns(
    definitions: Iterable[ColumnDefinition], next_id: int
) -> tuple[tuple[ColumnDescriptor, ...], int]:
    """Return columns with ids from ``next_id`` on, also for nested fields, and the next free id.

    Ids of nested fields in ``definitions`` are ignored.
    """
    columns = []
    for definition in definitions:
        column_id, next_id, data_type = next_id, next_id + 1, definition.type
        if depth_of(data_type):  # an id in it is of the table that the type was copied from
            data_type, next_id = carry_ids(VOID, data_type, next_id)
        columns.append(definition.with_id(column_id, data_type))
    return tuple(columns), next_id


def redefine_columns(
    table: TableDescriptor, definitions: Iterable[ColumnDefinition], *, any_default: bool
) -> tuple[tuple[ColumnDescriptor, ...], int]:
    """Return the columns of ``definitions``: existing names keep their ids, others get new ids.

    A default is validated if it, or the column that it must fit, has changed. In a plain table it
    may be any expression, because Spark validates and evaluates it; with ``any_default``, also a
    literal of another type, which Spark casts. Raises `InvalidInput`, `UnsupportedOperation`.
    """
    left_to_client: Refusals = ()
    if not table.transactional:
        left_to_client = _ANY_DEFAULT if any_default else (UnsupportedOperation,)
    next_id = table.next_column_id
    by_name = {normalize(column.name): column for column in table.columns}
    columns = []
    for definition in definitions:
        existing = by_name.get(normalize(definition.name))
        if existing is None:
            check_field_names(definition.type, column=definition.name)
            definition = _checked_column(
                definition, transactional=table.transactional, left_to_client=left_to_client
            )
            (column,), next_id = new_columns([definition], next_id)
        else:
            data_type, next_id = carry_ids(existing.type, definition.type, next_id)
            if data_type != existing.type:
                check_field_names(data_type, column=definition.name)
            before = existing.default, existing.type, existing.nullable
            if (definition.default, data_type, definition.nullable) != before:
                definition = _with_checked_default(
                    definition, transactional=table.transactional, left_to_client=left_to_client
                )
            column = definition.with_id(existing.id, data_type)
        columns.append(column)
    return tuple(columns), next_id


def column_ids(columns: Iterable[ColumnDescriptor], names: Collection[str]) -> tuple[int, ...]:
    """The ids of the columns with these names. Raises `ObjectNotFound` for a missing column."""
    if not names:
        return ()
    by_name = {normalize(column.name): column.id for column in columns}
    for name in names:
        if normalize(name) not in by_name:
            raise ObjectNotFound(
                f"column {name!r} does not exist; there are {', '.join(sorted(by_name))}"
            )
    return tuple(by_name[normalize(name)] for name in names)


def column_named(relation: TableDescriptor | ViewDescriptor, name: str) -> ColumnDescriptor:
    """The column of that name. Raises `ObjectNotFound`, which lists the first columns."""
    named = (column for column in relation.columns if normalize(column.name) == normalize(name))
    column = next(named, None)
    if column is None:
        names = ", ".join(column.name for column in relation.columns[:20])
        raise ObjectNotFound(f"column {name!r} does not exist in {relation.name}; it has {names}")
    return column


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
            raise IllegalChange(f"{table.name} is partitioned by {column.name!r}, which {what}")


_BUCKETED_BY = ("spark.sql.sources.schema.bucketCol.", "spark.sql.sources.schema.sortCol.")
_CLUSTERED_BY = "clusteringColumns"
"""Parameters of Spark: columns of CLUSTERED BY and SORTED BY, one each, and those of CLUSTER BY."""


def refuse_bucketing_column(table: TableDescriptor, column: ColumnDescriptor) -> None:
    """Refuse to drop a column by which writers of a plain table bucket, sort or cluster rows."""
    storage, name = table.storage, normalize(column.name)
    names = [*storage.bucket_columns, *(sorted_by for sorted_by, _ in storage.sort_columns)]
    names += [value for key, value in table.properties if key.startswith(_BUCKETED_BY)]
    clustered_by = normalize(dict(table.properties).get(_CLUSTERED_BY, ""))  # as [["a"],["b","x"]]
    if name in map(normalize, names) or f'["{name}"' in clustered_by:
        raise IllegalChange(
            f"{table.name} buckets, sorts or clusters its rows by {column.name!r}, which cannot be "
            "dropped; writers need it"
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
            f"column {column.name!r} of {table.name} cannot be dropped, because these indexes use "
            f"it: {', '.join(using)}; drop them first"
        )
