"""Faults of commands, one at a time; ``test_scenario_teeth.py`` plants them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from strandline.catalog import Catalog, CatalogManager, Command, Relation
from strandline.catalog.commands import AlterColumn, CreateIndex, DropColumns, RenameTable, schemas
from strandline.catalog.commands.tables import drop_relation
from strandline.catalog.commands.zones import _quorum
from strandline.catalog.declared_kinds import DeclaredKind
from strandline.catalog.planning import Planning
from strandline.durable.collections import COLLECTIONS, Collection, collection_of
from strandline.durable.contents import EMPTY
from strandline.durable.transaction import CatalogTransaction, _Written
from strandline.errors import AlreadyExists, InvalidInput, StrandlineError
from strandline.model.descriptors import ColumnDescriptor, SchemaDescriptor, TableDescriptor
from strandline.model.type_changes import check_change
from strandline.model.types import DataType, DecimalType
from strandline.wire.stored import AnyStored

Fault = Callable[[pytest.MonkeyPatch], None]
COMMANDS = "strandline.catalog.commands"


def nothing(*_: object, **__: object) -> None:
    """Replaces a check, which is left out."""


def a_taken_name_is_a_wrong_request(patch: pytest.MonkeyPatch) -> None:
    """A name that is taken is refused with another class of error."""
    real = Planning.ensure_free

    def ensure_free(self: Planning, *arguments: Any, **named: Any) -> None:  # Any: as the real one
        try:
            real(self, *arguments, **named)
        except AlreadyExists as error:
            raise InvalidInput(error.message) from error

    patch.setattr(Planning, "ensure_free", ensure_free)


def half_a_batch_is_done(patch: pytest.MonkeyPatch) -> None:
    """The commands before a refused command of a batch are executed all the same."""
    real = CatalogManager.execute

    def execute(self: CatalogManager, commands: Sequence[Command], **named: Any) -> Any:
        try:
            return real(self, commands, **named)
        except StrandlineError:
            with suppress(StrandlineError):
                real(self, commands[:-1], **named)
            raise

    patch.setattr(CatalogManager, "execute", execute)


def ids_come_back(patch: pytest.MonkeyPatch) -> None:
    """The next id is one above the largest id in use, so the id of a dropped table is reused."""

    def allocate(self: CatalogTransaction, name: str = "", *, amount: int = 1) -> range:
        used = [
            stored.id
            for kind, declared in COLLECTIONS.items()
            if declared.has_id
            for stored in self.contents.objects(kind)
        ]
        first = max(used, default=0) + 1
        return range(first, first + amount)

    patch.setattr(CatalogTransaction, "allocate_id", allocate)
    patch.setattr(Planning, "next_id", property(lambda self: allocate(self.transaction)[0]))


def a_stopping_index_keeps_its_name(patch: pytest.MonkeyPatch) -> None:
    """The name of an index is free when the index is removed, and not when it stops."""
    patch.setattr(Collection, "occupies", lambda self, _stored: self.scope is not None)


def names_differ_by_case(patch: pytest.MonkeyPatch) -> None:
    """Names are case-sensitive."""
    patch.setattr("strandline.durable.contents.normalize", str)


def if_exists_is_not_read(patch: pytest.MonkeyPatch) -> None:
    """A missing table is an error, even with IF EXISTS."""

    def existing_table(self: Planning, schema: str, name: str, **_: bool) -> TableDescriptor:
        return self.table(schema, name)

    patch.setattr(Planning, "existing_table", existing_table)


def if_exists_of_the_columns_covers_the_table(patch: pytest.MonkeyPatch) -> None:
    """DROP COLUMN IF EXISTS also ignores a missing table."""
    real = DropColumns.plan

    def plan(self: DropColumns, planning: Planning) -> None:
        real(replace(self, if_table_exists=self.if_table_exists or self.if_exists), planning)

    patch.setattr(DropColumns, "plan", plan)


def objects_keep_their_first_time(patch: pytest.MonkeyPatch) -> None:
    """Objects that a node has changed itself do not get the time of their version."""
    patch.setattr("strandline.durable.state.stamp", nothing)


def precision_may_shrink(patch: pytest.MonkeyPatch) -> None:
    """Any decimal type may become any other."""

    def check(old: DataType, new: DataType) -> None:
        if not isinstance(old, DecimalType) or not isinstance(new, DecimalType):
            check_change(old, new)

    patch.setattr(f"{COMMANDS}.columns.check_change", check)


def a_key_may_lose_a_column(patch: pytest.MonkeyPatch) -> None:
    """A column is dropped without checking whether it is in use."""
    patch.setattr(f"{COMMANDS}.columns.refuse_used_column", nothing)
    patch.setattr(f"{COMMANDS}.columns.refuse_indexed_column", nothing)


def a_table_goes_before_its_indexes(patch: pytest.MonkeyPatch) -> None:
    """The entries of a drop are in another order."""

    def drop(planning: Planning, relation: Relation, **named: bool) -> None:
        entries = planning.transaction.entries
        before = len(entries)
        drop_relation(planning, relation, **named)
        entries.insert(before, entries.pop())

    patch.setattr(f"{COMMANDS}.tables.drop_relation", drop)


def an_index_is_renamed_in_silence(patch: pytest.MonkeyPatch) -> None:
    """The index of a renamed table's key is renamed within the entry of the table."""
    real = RenameTable.plan

    def plan(self: RenameTable, planning: Planning) -> None:
        real(self, planning)
        entries = planning.transaction.entries
        if entries and entries[-1].verb == "rename_index":
            silent = entries.pop()
            entries[-1] = replace(entries[-1], changes=(*entries[-1].changes, *silent.changes))

    patch.setattr(RenameTable, "plan", plan)


def an_untold_default_is_dropped(patch: pytest.MonkeyPatch) -> None:
    """ALTER COLUMN without a default removes the default."""
    real = AlterColumn._next_default

    def next_default(self: AlterColumn, old: ColumnDescriptor, new: ColumnDescriptor) -> str | None:
        return None if self.default is None else real(self, old, new)

    patch.setattr(AlterColumn, "_next_default", next_default)


def column_ids_are_counted_from_the_last_column(patch: pytest.MonkeyPatch) -> None:
    """A table forgets the ids of its dropped columns."""

    def with_columns(
        table: TableDescriptor, columns: tuple[ColumnDescriptor, ...], _next_id: int
    ) -> TableDescriptor:
        if columns == table.columns:
            return table
        last = table.schema_versions[-1]
        version = replace(last, number=last.number + 1, columns=columns)
        return replace(
            table,
            schema_versions=(*table.schema_versions, version),
            next_column_id=max(column.id for column in columns) + 1,
        )

    patch.setattr(f"{COMMANDS}.columns.with_columns", with_columns)


def what_is_there_is_written_again(patch: pytest.MonkeyPatch) -> None:
    """A command that changes nothing makes a version."""
    real = CatalogTransaction.put

    def put(self: CatalogTransaction, value: Any) -> None:  # Any: as the real one
        kind = collection_of(value)
        stored = kind.stored_value(value)
        old = self.contents.get(kind.kind, kind.key(stored))
        if old is not None and old.value == value:
            self._change(_Written(kind, kind.key(stored), old, stored))
        else:
            real(self, value)

    patch.setattr(CatalogTransaction, "put", put)


def the_quorum_does_not_follow(patch: pytest.MonkeyPatch) -> None:
    """A zone with fewer replicas keeps its quorum."""

    def quorum(zone: str, asked: int | None, replicas: int | None, **before: int) -> int:
        kept = before.get("before") if asked is None else None
        return _quorum(zone, asked, replicas, **before) if kept is None else kept

    patch.setattr(f"{COMMANDS}.zones._quorum", quorum)


def an_index_needs_no_building(patch: pytest.MonkeyPatch) -> None:
    """An index is available at once, though its table has rows."""
    real = CreateIndex.plan

    def plan(self: CreateIndex, planning: Planning) -> None:
        base = Catalog(0, planning.base.time, EMPTY)
        real(self, Planning(base, planning.transaction, planning.now))

    patch.setattr(CreateIndex, "plan", plan)


def a_cascade_forgets_functions(patch: pytest.MonkeyPatch) -> None:
    """DROP SCHEMA CASCADE does not drop functions."""
    real = schemas._inside

    def inside(
        planning: Planning, schema: SchemaDescriptor
    ) -> Iterator[tuple[DeclaredKind, AnyStored]]:
        for kind, stored in real(planning, schema):
            yield (replace(kind, drop=nothing) if kind.name == "function" else kind), stored

    patch.setattr(schemas, "_inside", inside)


def a_dropped_role_keeps_its_members(patch: pytest.MonkeyPatch) -> None:
    """The members of a dropped role remain members."""
    patch.setattr(f"{COMMANDS}.roles._without_membership", nothing)


def a_replaced_view_is_another_one(patch: pytest.MonkeyPatch) -> None:
    """CREATE OR REPLACE VIEW drops the view and creates a new one."""
    patch.setattr(f"{COMMANDS}.views.AlterView", _DropAndCreate)


class _DropAndCreate:
    """Replaces `AlterView`."""

    def __init__(self, *, schema: str, view: str, definition: Any) -> None:
        self._schema, self._view, self._definition = schema, view, definition

    def plan(self, planning: Planning) -> None:
        old = planning.catalog.view(self._schema, self._view)
        assert old is not None
        new = replace(old, id=planning.next_id, original_text=self._definition.original_text)
        if new.original_text == old.original_text:
            return
        with planning.entry("alter_view", view=self._view) as transaction:
            transaction.delete("view", old.id)
            planning.new_id()
            transaction.put(new)


OF_COMMANDS: dict[Fault, tuple[str, str]] = {
    a_taken_name_is_a_wrong_request: ("tables", r"a table twice: InvalidInput\(.*already exists"),
    half_a_batch_is_done: ("table_parts", "a batch whose last command fails does nothing: Assert"),
    ids_come_back: ("tables", r"dropped and created again is another one: .*False == True"),
    a_stopping_index_keeps_its_name: (
        "tables",
        r"a table with the name of a stopping index: AlreadyExists\('index s.i",
    ),
    names_differ_by_case: ("schemas", "a schema is created once: .*DID NOT RAISE"),
    if_exists_is_not_read: ("columns", r"to a missing table, if it exists: ObjectNotFound\("),
    if_exists_of_the_columns_covers_the_table: (
        "columns",
        "if the column exists, in a missing table: .*DID NOT RAISE",
    ),
    objects_keep_their_first_time: (
        "table_parts",
        r"a changed object has the time of its version, .*set\(\) == \{'t'\}",
    ),
    precision_may_shrink: ("alter_column", "less precision: .*DID NOT RAISE"),
    a_key_may_lose_a_column: ("columns", "a column of the key: .*DID NOT RAISE"),
    a_table_goes_before_its_indexes: (
        "tables",
        r"a dropped table takes its indexes along.*At index 0 diff: 'drop_table'",
    ),
    an_index_is_renamed_in_silence: (
        "tables",
        r"the generated name of its key follows: .*At index 1 diff: 'create_table'",
    ),
    an_untold_default_is_dropped: ("alterations", "a column whose nullable becomes True: Assert"),
    column_ids_are_counted_from_the_last_column: (
        "columns",
        r"columns of several commands .*: .*'4 d int' != '5 d int'",
    ),
    what_is_there_is_written_again: ("table_parts", r"no property given: .*True = any\("),
    the_quorum_does_not_follow: ("zones", r"the quorum of 3 replicas follows to 1: .*\(1, 2\)"),
    an_index_needs_no_building: ("indexes", "begins its life: .*'i AVAILABLE"),
    a_cascade_forgets_functions: ("schemas", "CASCADE drops all .*'drop_function'"),
    a_dropped_role_keeps_its_members: ("roles", "memberships, .* go with a role: Assert"),
    a_replaced_view_is_another_one: ("views", "a replaced view keeps its id.*False == True"),
}
"""Each planted fault, the module whose scenarios find it, and their first complaint."""
