"""Commands on the columns of a table."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from strandline.catalog.commands.definition import (
    ColumnDefinition,
    check_columns,
    new_columns,
    refuse_used_column,
    with_columns,
)
from strandline.catalog.planning import Planning
from strandline.errors import AlreadyExists, IllegalChange, InvalidInput, ObjectNotFound
from strandline.model.descriptors import ColumnDescriptor, TableDescriptor
from strandline.model.identifiers import check_name, normalize
from strandline.model.type_changes import carry_ids, check_change
from strandline.model.type_text import simple_string
from strandline.model.types import DataType


def check_redefinition(old: TableDescriptor, columns: Iterable[ColumnDescriptor]) -> None:
    """Refuse new columns of ``old`` that would lose data or break a promise made to readers."""
    kept = {column.id: column for column in columns}
    known = {column.id: column for column in old.columns}
    for column in old.columns:
        new = kept.get(column.id)
        if new is None:
            refuse_used_column(old, column, what="cannot be dropped")
            if old.transactional:
                raise IllegalChange(
                    f"column {column.name!r} of transactional table {old.name} would be lost; "
                    "drop it with DROP COLUMN"
                )
            continue
        check_column_change(old, column, new)
    for new in kept.values():
        if new.id not in known and not new.nullable and old.transactional:
            raise IllegalChange(
                f"new column {new.name!r} of {old.name} is NOT NULL, and the rows that are there "
                "have no value for it; add it as nullable"
            )


def check_column_change(
    table: TableDescriptor, old: ColumnDescriptor, new: ColumnDescriptor
) -> None:
    """Refuse a change of one column that existing rows may not satisfy."""
    if new.type != old.type:
        refuse_used_column(table, old, what="cannot change its type")
        check_change(old.type, new.type)
    if old.nullable and not new.nullable:
        raise IllegalChange(
            f"column {old.name!r} of {table.name} may hold NULLs; it cannot become NOT NULL"
        )
    if new.nullable and not old.nullable and old.id in table.primary_key:
        refuse_used_column(table, old, what="cannot become nullable")


@dataclass(frozen=True, slots=True, kw_only=True)
class AddColumns:
    """ALTER TABLE … ADD COLUMNS: behind the last column that does not partition the table."""

    schema: str
    table: str
    columns: tuple[ColumnDefinition, ...]
    if_not_exists: bool = False

    def plan(self, planning: Planning) -> None:
        """Raises `ObjectNotFound`, `AlreadyExists`, `IllegalChange`, `InvalidInput`."""
        table = planning.table(self.schema, self.table)
        if not self.columns:
            raise InvalidInput("no columns to add were given")
        check_columns(self.columns, table=table.name)
        there = [c for c in self.columns if table.column(c.name)]
        if there and not self.if_not_exists:
            raise AlreadyExists(f"column {there[0].name!r} already exists in {table.name}")
        added = [c for c in self.columns if c not in there]
        columns, next_id = new_columns(added, table.next_column_id)
        split = len(table.columns) - len(table.partition_columns)
        together = (*table.columns[:split], *columns, *table.columns[split:])
        check_redefinition(table, together)
        with planning.entry(
            "add_columns",
            table=planning.catalog.qualified_name(table),
            added=[f"{c.name} {simple_string(c.type)}" for c in added],
        ) as transaction:
            transaction.put(with_columns(table, together, next_id))


@dataclass(frozen=True, slots=True, kw_only=True)
class DropColumns:
    """ALTER TABLE … DROP COLUMNS. The files keep the data, no version from here on shows it."""

    schema: str
    table: str
    names: tuple[str, ...]
    if_exists: bool = False

    def plan(self, planning: Planning) -> None:
        """Raises `ObjectNotFound`, `IllegalChange`."""
        table = planning.table(self.schema, self.table)
        missing = [name for name in self.names if table.column(name) is None]
        if missing and not self.if_exists:
            raise ObjectNotFound(f"column {missing[0]!r} does not exist in {table.name}")
        dropped = [c for name in self.names if (c := table.column(name)) is not None]
        for column in dropped:
            refuse_used_column(table, column, what="cannot be dropped")
        columns = tuple(c for c in table.columns if c not in dropped)
        if not columns:
            raise IllegalChange(f"{table.name} would have no column left")
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

    def plan(self, planning: Planning) -> None:
        """Raises `ObjectNotFound`, `AlreadyExists`, `IllegalChange`."""
        table = planning.table(self.schema, self.table)
        old = _column(table, self.column)
        check_name(self.new_name, "column")
        refuse_used_column(table, old, what="cannot be renamed")
        if normalize(self.new_name) != normalize(old.name) and table.column(self.new_name):
            raise AlreadyExists(f"column {self.new_name!r} already exists in {table.name}")
        if not table.transactional:
            raise IllegalChange(
                f"{table.name} is read by column name; renaming {old.name!r} would hide its data"
            )
        columns = tuple(replace(c, name=self.new_name) if c is old else c for c in table.columns)
        with planning.entry(
            "rename_column",
            table=planning.catalog.qualified_name(table),
            column=old.name,
            to=self.new_name,
        ) as transaction:
            transaction.put(with_columns(table, columns, table.next_column_id))


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterColumn:
    """ALTER TABLE … ALTER COLUMN. What is None stays as it is."""

    schema: str
    table: str
    column: str
    type: DataType | None = None
    nullable: bool | None = None
    comment: str | None = None

    def plan(self, planning: Planning) -> None:
        """Raises `ObjectNotFound`, `IllegalChange`."""
        table = planning.table(self.schema, self.table)
        old = _column(table, self.column)
        next_id = table.next_column_id
        data_type = old.type
        if self.type is not None:
            data_type, next_id = carry_ids(old.type, self.type, next_id)
        new = replace(
            old,
            type=data_type,
            nullable=old.nullable if self.nullable is None else self.nullable,
            comment=old.comment if self.comment is None else self.comment,
        )
        check_column_change(table, old, new)
        columns = tuple(new if c is old else c for c in table.columns)
        with planning.entry(
            "alter_column", table=planning.catalog.qualified_name(table), altered=[old.name]
        ) as transaction:
            transaction.put(with_columns(table, columns, next_id))


def _column(table: TableDescriptor, name: str) -> ColumnDescriptor:
    found = table.column(name)
    if found is None:
        names = ", ".join(c.name for c in table.columns)
        raise ObjectNotFound(f"column {name!r} does not exist in {table.name}; it has {names}")
    return found
