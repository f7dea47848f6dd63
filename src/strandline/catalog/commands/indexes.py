"""Commands on indexes, one for each step of the life cycle in `strandline.model.descriptors`.

Users create, rename and drop indexes by name. The job that builds or removes an index takes the
steps in between (`StartBuildingIndex`, `MakeIndexAvailable`, `RemoveIndex`). It identifies the
index by id, because the name may belong to another index by then. Each step requires the status
that it starts from. So if another job was faster, the job gets `IndexStatusConflict`.

An index that is created in the same batch as its table has no rows to index, so it is available at
once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from strandline.catalog.commands.column_definition import (
    check_distinct,
    check_keyable,
    column_named,
)
from strandline.catalog.kinds import delete_with_comment
from strandline.catalog.planning import Planning, refuse_reserved, required
from strandline.errors import IllegalChange, IndexStatusConflict, InvalidInput, ObjectNotFound
from strandline.model.descriptors import (
    Collation,
    ColumnDescriptor,
    IndexColumn,
    IndexDescriptor,
    IndexKind,
    IndexStatus,
    TableDescriptor,
)
from strandline.model.identifiers import check_column_name, check_name, normalize


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateIndex:
    """CREATE INDEX. A sorted index has one of ``collations`` for each column, a hash index none.

    ``owner`` empty means the owner of the table.
    """

    schema: str
    index: str
    table: str
    columns: tuple[str, ...]
    kind: IndexKind = IndexKind.HASH
    collations: tuple[Collation, ...] = ()
    unique: bool = False
    owner: str = ""
    if_not_exists: bool = False

    def plan(self, planning: Planning) -> None:
        """Raises `ObjectNotFound`, `AlreadyExists`, `InvalidInput`, `IllegalChange`.

        IF NOT EXISTS applies to an index of that name, whatever its table and columns.
        """
        self._check()
        refuse_reserved(self.schema, "given indexes")
        schema = planning.schema(self.schema)
        if self.if_not_exists and planning.catalog.alive_index(self.schema, self.index):
            return
        planning.ensure_free(schema, self.index)
        table = planning.table(self.schema, self.table)
        columns = [column_named(table, name) for name in self.columns]
        for column in columns:
            check_keyable(column, what="an index")
        self._check_unique(table, columns)
        with_table = planning.base.table_by_id(table.id) is None
        index = IndexDescriptor(
            id=planning.next_id,
            schema_id=schema.id,
            name=self.index,
            owner=self.owner or table.owner,
            table_id=table.id,
            kind=self.kind,
            columns=index_columns([column.id for column in columns], self.collations),
            status=IndexStatus.AVAILABLE if with_table else IndexStatus.REGISTERED,
            unique=self.unique,
            created_with_table=with_table,
        )
        put_index(planning, index, columns=[column.name for column in columns])

    def _check(self) -> None:
        check_name(self.index, "index")
        if not self.columns:
            raise InvalidInput(f"no columns were given for index {self.index}; name at least one")
        for name in self.columns:
            check_column_name(name)
        check_distinct(self.columns, what=f"index {self.index}")
        if self.kind is IndexKind.HASH and self.collations:
            raise InvalidInput(f"hash index {self.index} has no order, so it takes no collations")
        if self.kind is IndexKind.SORTED and len(self.collations) != len(self.columns):
            raise InvalidInput(
                f"sorted index {self.index} has {len(self.columns)} columns and "
                f"{len(self.collations)} collations; give one for each column"
            )

    def _check_unique(self, table: TableDescriptor, columns: list[ColumnDescriptor]) -> None:
        """Refuse a unique index without all colocation columns.

        Rows are compared only within a zone partition, so equal rows must be in the same one.
        """
        indexed = {column.id for column in columns}
        missing = [
            c.name for c in table.columns if c.id in table.colocation and c.id not in indexed
        ]
        if self.unique and missing:
            raise InvalidInput(
                f"unique index {self.index} must contain all colocation columns of {table.name}; "
                f"{', '.join(missing)} is missing"
            )


def index_columns(
    column_ids: Sequence[int], collations: Sequence[Collation]
) -> tuple[IndexColumn, ...]:
    """The columns of an index; ``collations`` has one for each column, or none."""
    orders = collations or (None,) * len(column_ids)
    return tuple(map(IndexColumn, column_ids, orders))


def put_index(planning: Planning, index: IndexDescriptor, *, columns: list[str]) -> None:
    """Create an index, in a separate entry. Its id is allocated here if that is the next one."""
    arguments = _arguments(planning, index)
    with planning.entry(
        "create_index", **arguments, columns=columns, status=index.status.name
    ) as transaction:
        if index.id == planning.next_id:
            planning.new_id()
        transaction.put(index)


@dataclass(frozen=True, slots=True, kw_only=True)
class RenameIndex:
    """ALTER INDEX … RENAME TO, also for a primary key's index. The same name changes nothing."""

    schema: str
    index: str
    new_name: str
    if_exists: bool = False

    def plan(self, planning: Planning) -> None:
        """Raises `ObjectNotFound`, `AlreadyExists`, `InvalidName`."""
        check_name(self.new_name, "index")
        index = _alive(planning, self.schema, self.index, if_exists=self.if_exists)
        if index is None:
            return
        schema = planning.schema(self.schema)
        planning.ensure_free(schema, self.new_name, own_id=index.id)
        with planning.entry(
            "rename_index",
            index=planning.catalog.qualified_name(index),
            to=f"{schema.name}.{self.new_name}",
            id=index.id,
        ) as transaction:
            transaction.put(replace(index, name=self.new_name))


@dataclass(frozen=True, slots=True, kw_only=True)
class DropIndex:
    """DROP INDEX. An available index stops first; any other is removed at once."""

    schema: str
    index: str
    if_exists: bool = False

    def plan(self, planning: Planning) -> None:
        """Raises `ObjectNotFound`, `IllegalChange` for the index of a primary key."""
        index = _alive(planning, self.schema, self.index, if_exists=self.if_exists)
        if index is not None:
            drop_index(planning, index)


def drop_index(planning: Planning, index: IndexDescriptor) -> None:
    """Stop an available index, and remove any other. Raises `IllegalChange`, see `DropIndex`."""
    table = planning.catalog.table_by_id(index.table_id)
    if table is not None and table.primary_key_index == index.id:
        raise IllegalChange(
            f"{index.name} is the index of the primary key of {table.name} and cannot be dropped "
            "on its own; it is dropped with its table"
        )
    if index.status is IndexStatus.AVAILABLE:
        _move(planning, index, IndexStatus.STOPPING, verb="index_stopping")
    else:
        remove_index(planning, index)


@dataclass(frozen=True, slots=True, kw_only=True)
class StartBuildingIndex:
    """REGISTERED → BUILDING."""

    index_id: int

    def plan(self, planning: Planning) -> None:
        """Raises `ObjectNotFound`, `IndexStatusConflict`."""
        index = _in_status(planning, self.index_id, IndexStatus.REGISTERED, "start building")
        _move(planning, index, IndexStatus.BUILDING, verb="index_building")


@dataclass(frozen=True, slots=True, kw_only=True)
class MakeIndexAvailable:
    """BUILDING → AVAILABLE."""

    index_id: int

    def plan(self, planning: Planning) -> None:
        """Raises `ObjectNotFound`, `IndexStatusConflict`."""
        index = _in_status(planning, self.index_id, IndexStatus.BUILDING, "become available")
        _move(planning, index, IndexStatus.AVAILABLE, verb="index_available")


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveIndex:
    """STOPPING → removed, after no transaction can use the index any more."""

    index_id: int

    def plan(self, planning: Planning) -> None:
        """Raises `ObjectNotFound`, `IndexStatusConflict`."""
        index = _in_status(planning, self.index_id, IndexStatus.STOPPING, "be removed")
        remove_index(planning, index)


def give_indexes(planning: Planning, before: TableDescriptor, table: TableDescriptor) -> None:
    """Give the indexes of the previous owner of a table to the present one, each in an entry."""
    for index in planning.catalog.indexes(table.id):
        if before.owner != table.owner and normalize(index.owner) == normalize(before.owner):
            with planning.entry("alter_index", **_arguments(planning, index)) as transaction:
                transaction.put(replace(index, owner=table.owner))


def _alive(
    planning: Planning, schema: str, name: str, *, if_exists: bool
) -> IndexDescriptor | None:
    return required(
        planning.catalog.alive_index(schema, name), f"index {schema}.{name}", if_exists=if_exists
    )


def _in_status(
    planning: Planning, index_id: int, status: IndexStatus, what: str
) -> IndexDescriptor:
    index = planning.catalog.index(index_id)
    if index is None:
        raise ObjectNotFound(f"index with id {index_id} does not exist")
    if index.status is not status:
        raise IndexStatusConflict(
            f"index {index.name} (id {index_id}) cannot {what}: its status is "
            f"{index.status.name}, and {status.name} was expected"
        )
    return index


def _move(planning: Planning, index: IndexDescriptor, status: IndexStatus, *, verb: str) -> None:
    with planning.entry(verb, **_arguments(planning, index)) as transaction:
        transaction.put(replace(index, status=status))


def remove_index(planning: Planning, index: IndexDescriptor) -> None:
    """Remove an index and its comment, whatever its status, in a separate entry."""
    arguments = _arguments(planning, index)
    with planning.entry("index_removed", **arguments, status=index.status.name) as transaction:
        delete_with_comment(transaction, "index", index.id)


def _arguments(planning: Planning, index: IndexDescriptor) -> dict[str, str | int]:
    table = planning.catalog.table_by_id(index.table_id)
    name = planning.catalog.qualified_name(index if table is None else table)
    return {"index": planning.catalog.qualified_name(index), "id": index.id, "table": name}
