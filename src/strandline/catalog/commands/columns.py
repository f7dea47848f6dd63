"""Commands on the columns of a table."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace

from strandline.catalog.commands.column_definition import (
    MAX_COLUMNS,
    ColumnDefinition,
    check_columns,
    check_storable,
    checked_columns,
    column_named,
    new_columns,
    refuse_bucketing_column,
    refuse_indexed_column,
    refuse_partitioning_column,
    refuse_unspelled,
    refuse_used_column,
)
from strandline.catalog.commands.defaults import (
    EXISTS_DEFAULT,
    checked_default,
    is_constant,
    is_null,
    same_default,
)
from strandline.catalog.commands.table_definition import with_columns
from strandline.catalog.planning import Planning, altered
from strandline.errors import AlreadyExists, IllegalChange, InvalidInput, ObjectNotFound
from strandline.model.descriptors import (
    ColumnDescriptor,
    IndexDescriptor,
    Properties,
    TableDescriptor,
)
from strandline.model.identifiers import check_column_name, check_scan_name, normalize
from strandline.model.type_changes import assign_ids, carry_ids, check_change, check_field_names
from strandline.model.type_text import simple_string
from strandline.model.types import (
    BINARY,
    DATE,
    STRING,
    AtomicType,
    DataType,
    DecimalType,
    MapType,
    StringType,
    StructField,
    StructType,
    walk,
    with_parts,
)


def check_redefinition(
    old: TableDescriptor, columns: Iterable[ColumnDescriptor], indexes: Iterable[IndexDescriptor]
) -> None:
    """Refuse new columns of ``old`` that would lose data or break guarantees to readers."""
    columns_by_id = {column.id: column for column in columns}
    known = {column.id: column for column in old.columns}
    for column in old.columns:
        new = columns_by_id.get(column.id)
        if new is None:
            refuse_used_column(old, column, what="cannot be dropped")
            refuse_partitioning_column(old, column, what="cannot be dropped")
            refuse_indexed_column(old, column, indexes)
            if old.transactional:
                raise IllegalChange(
                    f"column {column.name!r} of transactional table {old.name} would be lost; "
                    "drop it with DROP COLUMN"
                )
            continue
        check_column_change(old, column, new)
        if new.type != column.type:
            refuse_field_change(old, column, new.type)
    for new in columns_by_id.values():
        if new.id not in known and not new.nullable and old.transactional:
            raise IllegalChange(
                f"new column {new.name!r} of {old.name} is NOT NULL, but the existing rows have "
                "no value for it; add it as nullable"
            )


_READ_BY_THEIR_FORMAT = frozenset({"delta", "hudi", "iceberg"})
"""Providers, and Iceberg's ``table_type``, of files that are read with their own metadata."""
_WITH_TYPES = frozenset({"avro", "orc", "parquet"})
"""Providers whose files have types. Spark may record `_TEXT_SERDE` for them, if Hive cannot read
them; it does not use it."""
_TEXT_SERDE = "org.apache.hadoop.hive.serde2.lazy.LazySimpleSerDe"
_STRINGS_SERDE = "org.apache.hadoop.hive.serde2.OpenCSVSerde"
"""It reads every column as a string. Spark shows such columns, and sends them in each alter."""


def check_new_type(table: TableDescriptor, old: DataType, new: DataType) -> None:
    """Raise `IllegalChange` unless the old values in the table's files can be read as ``new``.

    `check_change` decides that for files of Parquet, which most tables have.
    """
    is_plain_scalar = isinstance(old, AtomicType | DecimalType) and old != BINARY
    provider = table.provider.lower()
    if not table.transactional:
        if provider in _READ_BY_THEIR_FORMAT:
            return
        is_text = table.storage.serde == _TEXT_SERDE and provider not in _WITH_TYPES
        if is_text and is_plain_scalar and new == STRING:
            return  # as it is written in the file
        if table.storage.serde == _STRINGS_SERDE and new == STRING:
            return
        old, new = _without_collations(old), _without_collations(new)
    check_change(old, new)
    if not table.transactional and provider == "orc":
        try:
            check_change(_with_opaque_dates(old), _with_opaque_dates(new))
        except IllegalChange:
            raise IllegalChange(
                f"cannot change the type from {simple_string(old)[:80]} to "
                f"{simple_string(new)[:80]}: Spark cannot read dates of ORC files as another type"
            ) from None


def refuse_field_change(table: TableDescriptor, old: ColumnDescriptor, new: DataType) -> None:
    """Refuse renamed and moved fields of structs that readers of plain files would not follow.

    An undo does not ask: it may restore what an earlier release changed.
    """
    formats = {table.provider.lower(), dict(table.properties).get("table_type", "").lower()}
    if table.transactional or not formats.isdisjoint(_READ_BY_THEIR_FORMAT):
        return
    old_type, next_id = assign_ids(old.type, 0)
    old_structs, structs = _structs(old_type), _structs(carry_ids(old_type, new, next_id)[0])
    read_as = str if table.provider.lower() == "json" else normalize
    names = {field.field_id: field.name for fields in old_structs for field in fields}
    for field in (field for fields in structs for field in fields):
        name = names.get(field.field_id, field.name)
        if read_as(name) != read_as(field.name):
            raise IllegalChange(
                f"field {name!r} of column {old.name!r} of {table.name} cannot be renamed: "
                "the files of a plain table are read by field name; add a field instead"
            )
    if not _is_read_by_position(table):
        return
    orders = {
        fields[0].field_id: [field.field_id for field in fields] for fields in structs if fields
    }
    for fields in old_structs:
        order = [field.field_id for field in fields]
        if order and orders.get(order[0], [])[: len(order)] != order:
            raise IllegalChange(
                f"fields of column {old.name!r} of {table.name} cannot be moved: its files are "
                "read by position; add new fields at the end of their struct"
            )


def _structs(data_type: DataType) -> list[tuple[StructField, ...]]:
    return [part.fields for part in walk(data_type) if isinstance(part, StructType)]


def _with_opaque_dates(data_type: DataType) -> DataType:
    return BINARY if data_type == DATE else with_parts(data_type, _with_opaque_dates)


def _without_collations(data_type: DataType) -> DataType:
    """The type as it is in files. Keys of maps keep theirs: it decides which of them are equal."""
    if isinstance(data_type, StringType):
        return STRING
    if isinstance(data_type, MapType):
        return replace(data_type, value=_without_collations(data_type.value))
    return with_parts(data_type, _without_collations)


def check_column_change(
    table: TableDescriptor, old: ColumnDescriptor, new: ColumnDescriptor
) -> None:
    """Refuse a change of a column that existing rows may not satisfy.

    In a plain table, the values of partition columns are texts outside of the files, so any type
    can read them, unless the column is also one of a key.
    """
    is_in_key = old.id in (*table.primary_key, *table.colocation)
    is_text = old.id in table.partition_columns and not table.transactional and not is_in_key
    if new.type != old.type and not is_text:
        refuse_used_column(table, old, what="cannot change its type")
        refuse_partitioning_column(table, old, what="cannot change its type")
        check_new_type(table, old.type, new.type)
    if old.nullable and not new.nullable:
        raise IllegalChange(
            f"column {old.name!r} of {table.name} may hold NULLs; it cannot become NOT NULL"
        )
    if new.nullable and not old.nullable and old.id in table.primary_key:
        refuse_used_column(table, old, what="cannot become nullable")
    if table.transactional and new.type != old.type:
        check_storable(new)


@dataclass(frozen=True, slots=True, kw_only=True)
class AddColumns:
    """ALTER TABLE … ADD COLUMNS, after the last column that is not a partition column.

    Existing rows have NULL in the new columns. In a plain table with one of the formats that Spark
    completes (`_COMPLETED_BY_SPARK`), they have the default instead if it is a constant. Only there
    may a new column be NOT NULL.
    """

    schema: str
    table: str
    columns: tuple[ColumnDefinition, ...]
    if_not_exists: bool = False
    """Existing columns are left unchanged."""
    if_table_exists: bool = False

    def plan(self, planning: Planning) -> None:
        """Raises `ObjectNotFound`, `AlreadyExists`, `IllegalChange`, `InvalidInput`."""
        if not self.columns:
            raise InvalidInput("no columns to add were given")
        table = planning.existing_table(self.schema, self.table, if_exists=self.if_table_exists)
        if table is None:
            return
        check_columns(self.columns, table=table.name)
        definitions = checked_columns(self.columns, transactional=table.transactional)
        present_names = {normalize(c.name) for c in table.columns}
        existing = [c for c in definitions if normalize(c.name) in present_names]
        if existing and not self.if_not_exists:
            raise AlreadyExists(f"column {existing[0].name!r} already exists in {table.name}")
        added = [
            _completed(table, c) for c in definitions if normalize(c.name) not in present_names
        ]
        refuse_unspelled(added, table)
        if len(table.columns) + len(added) > MAX_COLUMNS:
            raise InvalidInput(
                f"{table.name} would have {len(table.columns) + len(added)} columns; at most "
                f"{MAX_COLUMNS} are allowed"
            )
        columns, next_id = new_columns(added, table.next_column_id)
        split = len(table.columns) - len(table.partition_columns)
        together = (*table.columns[:split], *columns, *table.columns[split:])
        with planning.entry(
            "add_columns",
            table=planning.catalog.qualified_name(table),
            added=[f"{c.name} {simple_string(c.type)}" for c in added],
        ) as transaction:
            transaction.put(with_columns(table, together, next_id))


_POSITIONAL_PROVIDERS = frozenset({"csv", "text"})
_HIVE_SERDES = "org.apache.hadoop.hive.serde2"
_POSITIONAL_SERDES = frozenset(
    {
        _TEXT_SERDE,
        _STRINGS_SERDE,
        f"{_HIVE_SERDES}.MultiDelimitSerDe",
        f"{_HIVE_SERDES}.RegexSerDe",
        f"{_HIVE_SERDES}.columnar.ColumnarSerDe",
        f"{_HIVE_SERDES}.columnar.LazyBinaryColumnarSerDe",
        f"{_HIVE_SERDES}.lazybinary.LazyBinarySerDe",
    }
)
"""The serdes of files that have no names of columns."""


def _is_read_by_position(table: TableDescriptor) -> bool:
    provider = table.provider.lower()
    is_hive_text = provider == "hive" and table.storage.serde in _POSITIONAL_SERDES
    return not table.transactional and (provider in _POSITIONAL_PROVIDERS or is_hive_text)


_COMPLETED_BY_SPARK = frozenset({"csv", "json", "orc", "parquet"})
"""Providers of plain tables for which Spark fills the default into existing rows."""


def is_completed_by_spark(table: TableDescriptor) -> bool:
    """Whether Spark fills the default of a column into rows that were written without it."""
    return not table.transactional and table.provider.lower() in _COMPLETED_BY_SPARK


def _completed(table: TableDescriptor, column: ColumnDefinition) -> ColumnDefinition:
    """Return ``column`` as it is added; its metadata holds the value for existing rows, if any."""
    constant = is_constant(column.default) and not is_null(column.default)
    completes = is_completed_by_spark(table)
    metadata = json.loads(column.metadata) if column.metadata else {}
    if constant and completes:
        metadata.setdefault(EXISTS_DEFAULT, column.default)
    if table.transactional:
        metadata.pop(EXISTS_DEFAULT, None)  # existing rows have NULL
    if not column.nullable and EXISTS_DEFAULT not in metadata:
        remedy = "give it a constant default" if completes else "add it as nullable"
        raise IllegalChange(
            f"new column {column.name!r} of {table.name} is NOT NULL, but the existing rows have "
            f"no value for it; {remedy}"
        )
    if not metadata:
        return replace(column, metadata="")
    text = json.dumps(metadata, ensure_ascii=False, separators=(",", ":"))
    return replace(column, metadata=text)


@dataclass(frozen=True, slots=True, kw_only=True)
class DropColumns:
    """ALTER TABLE … DROP COLUMNS. The files keep the data; later versions do not show it."""

    schema: str
    table: str
    names: tuple[str, ...]
    if_exists: bool = False
    """Missing columns are ignored."""
    if_table_exists: bool = False

    def plan(self, planning: Planning) -> None:
        """Raises `ObjectNotFound`, `IllegalChange`, `InvalidInput`, `InvalidName`."""
        if not self.names:
            raise InvalidInput("no columns to drop were given")
        for name in self.names:
            check_column_name(name)
        table = planning.existing_table(self.schema, self.table, if_exists=self.if_table_exists)
        if table is None:
            return
        given_names = {normalize(name) for name in self.names}
        dropped = [c for c in table.columns if normalize(c.name) in given_names]
        dropped_names = {normalize(c.name) for c in dropped}
        missing = [name for name in self.names if normalize(name) not in dropped_names]
        if missing and not self.if_exists:
            raise ObjectNotFound(f"column {missing[0]!r} does not exist in {table.name}")
        indexes = planning.catalog.indexes(table.id)
        for column in dropped:
            refuse_used_column(table, column, what="cannot be dropped")
            refuse_partitioning_column(table, column, what="cannot be dropped")
            refuse_indexed_column(table, column, indexes)
            refuse_bucketing_column(table, column)
        columns = tuple(c for c in table.columns if normalize(c.name) not in given_names)
        if len(columns) == len(table.partition_columns):
            raise IllegalChange(f"{table.name} would have no columns left")
        if dropped and _is_read_by_position(table):
            raise IllegalChange(
                f"{table.name} is read by column position; without {dropped[0].name!r}, other "
                "columns would show its values. Create a table without it and copy the rows"
            )
        with planning.entry(
            "drop_columns",
            table=planning.catalog.qualified_name(table),
            dropped=[c.name for c in dropped],
        ) as transaction:
            transaction.put(with_columns(table, columns, table.next_column_id))


@dataclass(frozen=True, slots=True, kw_only=True)
class RenameColumn:
    """ALTER TABLE … RENAME COLUMN. Rows are bound by column id, so no file changes."""

    schema: str
    table: str
    column: str
    new_name: str
    if_table_exists: bool = False

    def plan(self, planning: Planning) -> None:
        """Raises `ObjectNotFound`, `AlreadyExists`, `IllegalChange`."""
        check_column_name(self.new_name)
        table = planning.existing_table(self.schema, self.table, if_exists=self.if_table_exists)
        if table is None:
            return
        with planning.entry(
            "rename_column",
            table=planning.catalog.qualified_name(table),
            column=column_named(table, self.column).name,
            to=self.new_name,
        ) as transaction:
            transaction.put(_with_new_names(table, [(self.column, self.new_name)]))


@dataclass(frozen=True, slots=True, kw_only=True)
class RenameColumns:
    """`RenameColumn` for several columns at once, which may also swap their names.

    ``new_names`` has the new name of each column; names are checked only against the final result.
    """

    schema: str
    table: str
    new_names: Properties
    if_table_exists: bool = False

    def plan(self, planning: Planning) -> None:
        """Raises `ObjectNotFound`, `AlreadyExists`, `IllegalChange`, `InvalidInput`."""
        if not self.new_names:
            raise InvalidInput("no columns to rename were given; name at least one")
        for _, new_name in self.new_names:
            check_column_name(new_name)
        table = planning.existing_table(self.schema, self.table, if_exists=self.if_table_exists)
        if table is None:
            return
        with planning.entry(
            "rename_columns",
            table=planning.catalog.qualified_name(table),
            renamed=[f"{column} to {new_name}" for column, new_name in self.new_names],
        ) as transaction:
            transaction.put(_with_new_names(table, self.new_names))


def _with_new_names(table: TableDescriptor, names: Iterable[tuple[str, str]]) -> TableDescriptor:
    """Return ``table`` with the columns renamed, from the old name to the new in each pair."""
    new_names: dict[int, str] = {}
    by_name = {normalize(c.name): c for c in table.columns}
    for name, new_name in names:
        old = by_name.get(normalize(name)) or column_named(table, name)
        if new_names.setdefault(old.id, new_name) != new_name:
            raise InvalidInput(f"column {old.name!r} of {table.name} cannot have two new names")
    renamed = [c for c in table.columns if new_names.get(c.id, c.name) != c.name]
    taken_names = {
        normalize(c.name) for c in table.columns if new_names.get(c.id, c.name) == c.name
    }
    for old in renamed:
        new_name = new_names[old.id]
        refuse_used_column(table, old, what="cannot be renamed")
        if normalize(new_name) in taken_names:
            raise AlreadyExists(f"column {new_name!r} already exists in {table.name}")
        if not table.transactional:
            raise IllegalChange(
                f"{table.name} is read by column name; renaming {old.name!r} would hide its data"
            )
        check_scan_name(new_name)
        taken_names.add(normalize(new_name))
    columns = (replace(c, name=new_names.get(c.id, c.name)) for c in table.columns)
    return with_columns(table, tuple(columns), table.next_column_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterColumn:
    """ALTER TABLE … ALTER COLUMN. None leaves a property unchanged; all changes are one version.

    The default, new or old, must fit the column after the change.
    """

    schema: str
    table: str
    column: str
    type: DataType | None = None
    nullable: bool | None = None
    comment: str | None = None
    default: str | None = None
    drop_default: bool = False
    if_table_exists: bool = False

    def plan(self, planning: Planning) -> None:
        """Raises `ObjectNotFound`, `IllegalChange`, `InvalidInput`, `UnsupportedOperation`."""
        if self.default is not None and self.drop_default:
            raise InvalidInput(f"the default of {self.column!r} cannot be both set and dropped")
        table = planning.existing_table(self.schema, self.table, if_exists=self.if_table_exists)
        if table is None:
            return
        old = column_named(table, self.column)
        next_id = table.next_column_id
        data_type = old.type
        if self.type is not None:
            check_field_names(self.type, column=old.name)
            data_type, next_id = carry_ids(old.type, self.type, next_id)
        new = altered(old, type=data_type, nullable=self.nullable, comment=self.comment)
        check_column_change(table, old, new)
        if new.type != old.type and old.id not in table.partition_columns:
            refuse_unspelled([new], table)
            refuse_field_change(table, old, new.type)
        new = replace(new, default=self._next_default(old, new))
        columns = tuple(new if c is old else c for c in table.columns)
        with planning.entry(
            "alter_column", table=planning.catalog.qualified_name(table), altered=[old.name]
        ) as transaction:
            transaction.put(with_columns(table, columns, next_id))

    def _next_default(self, old: ColumnDescriptor, new: ColumnDescriptor) -> str | None:
        if self.default is None and not self.drop_default:
            if new.type == old.type:
                return old.default
            return checked_default(
                old.default,
                new.type,
                column=old.name,
                nullable=new.nullable,
                metadata=old.metadata,
            )
        default = checked_default(self.default, new.type, column=old.name, nullable=new.nullable)
        return old.default if same_default(old.default, default) else default
