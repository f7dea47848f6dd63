"""What undoing means for the kinds of objects that more is to be thought of than their bytes.

A kind that is not named here comes back as it was, and goes by being deleted.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from strandline.catalog.catalog import Catalog
from strandline.catalog.commands.clusters import DropCluster
from strandline.catalog.commands.columns import check_column_change
from strandline.catalog.commands.configuration import SetConfiguration
from strandline.catalog.commands.databases import DropDatabase
from strandline.catalog.commands.defaults import JUDGED_BY_SPARK
from strandline.catalog.commands.definition import refuse_indexed_column
from strandline.catalog.commands.functions import DropFunction
from strandline.catalog.commands.indexes import DropIndex, RemoveIndex
from strandline.catalog.commands.replicas import drop_replica, size_of
from strandline.catalog.commands.roles import DropRole
from strandline.catalog.commands.schemas import DropSchema, drop_relation
from strandline.catalog.commands.zones import DropZone
from strandline.catalog.planning import Planning
from strandline.catalog.privileges.access import roles_above
from strandline.catalog.undo.net import Net
from strandline.durable.update import Update
from strandline.errors import IllegalChange, ObjectNotFound
from strandline.model.bookkeeping import ConfigEntry, SystemConfiguration
from strandline.model.clusters import ClusterDescriptor, ClusterReplica
from strandline.model.descriptors import (
    ColumnDescriptor,
    SchemaVersion,
    TableDescriptor,
    ZoneDescriptor,
)
from strandline.model.indexes import IndexDescriptor, IndexStatus
from strandline.model.privileges import RoleDescriptor

PARTS_OF = {
    "index": ("table", "table_id"),
    "cluster_replica": ("cluster", "cluster_id"),
    "introspection_index": ("cluster_replica", "replica_id"),
}
"""Kinds whose objects go with another: its kind, and the field that holds its id."""


INITIALIZE = "initialize"
"""The verb of the version that filled the catalog."""


def check_undoable(update: Update) -> None:
    """Refuse a version in which nobody did anything that could be taken back."""
    if update.silent:
        raise IllegalChange("it only kept the catalog's own books, nobody did anything in it")
    if any(entry.verb == INITIALIZE for entry in update.entries):
        raise IllegalChange("it is the one that made the catalog")
    if any(change.kind == "system_view" for change in update.changes()):
        raise IllegalChange("it gave the catalog its own views, which the program keeps")


# -- what is undone by an ordinary command ---------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ByCommand:
    """``run(planning, now, then)`` takes away what is there ``now``.

    With ``restores`` it also sets what was there ``then``. What goes ``first`` is needed by nothing
    that is put back, and might stand in its way.
    """

    run: Callable[[Planning, Any, Any], None]  # Any: descriptors of the kind
    restores: bool = False
    first: bool = False


def _schema(planning: Planning, schema_id: int) -> str:
    found = planning.catalog.schema_by_id(schema_id)
    return found.name if found else ""


def _drop_relation(planning: Planning, now: Any, _: Any) -> None:
    drop_relation(planning, _schema(planning, now.schema_id), now.name)


def _drop_function(planning: Planning, now: Any, _: Any) -> None:
    DropFunction(schema=_schema(planning, now.schema_id), function=now.name).plan(planning)


def _drop_index(planning: Planning, now: IndexDescriptor, _: Any) -> None:
    """One that stops already was made and dropped in one version: nobody began with it."""
    if now.alive:
        DropIndex(schema=_schema(planning, now.schema_id), index=now.name).plan(planning)
    else:
        RemoveIndex(index_id=now.id).plan(planning)


def _drop_schema(planning: Planning, now: Any, _: Any) -> None:
    database = planning.catalog.get("database", now.database_id)
    DropSchema(name=now.name, database=database.name).plan(planning)


def _drop_replica(planning: Planning, now: Any, _: Any) -> None:
    drop_replica(planning, planning.catalog.get("cluster", now.cluster_id), now)


def _set_configuration(planning: Planning, now: Any, then: SystemConfiguration | None) -> None:
    name = then.name if then is not None else now.name
    SetConfiguration(name=name, value=None if then is None else then.value).plan(planning)


BY_COMMAND: dict[str, ByCommand] = {
    "table": ByCommand(_drop_relation, first=True),
    "view": ByCommand(_drop_relation, first=True),
    "function": ByCommand(_drop_function, first=True),
    "index": ByCommand(_drop_index, first=True),
    "schema": ByCommand(_drop_schema),
    "database": ByCommand(lambda planning, now, _: DropDatabase(name=now.name).plan(planning)),
    "zone": ByCommand(lambda planning, now, _: DropZone(name=now.name).plan(planning)),
    "role": ByCommand(lambda planning, now, _: DropRole(name=now.name).plan(planning)),
    "cluster": ByCommand(
        lambda planning, now, _: DropCluster(name=now.name).plan(planning), first=True
    ),
    "cluster_replica": ByCommand(_drop_replica, first=True),
    "system_configuration": ByCommand(_set_configuration, restores=True),
}
"""Kinds whose objects have rules of their own for when they may go, or be set."""

GO_FIRST = frozenset(kind for kind, one in BY_COMMAND.items() if one.first)
"""Kinds of which what a version made is dropped before anything that it did is put back."""


# -- what is the same, and what comes back ---------------------------------------------------------


def same_content(one: Any, other: Any) -> bool:  # Any: descriptors of one kind
    """Whether two values of an object say the same to people."""
    if isinstance(one, TableDescriptor) and isinstance(other, TableDescriptor):
        return _uncounted(one) == _uncounted(other)
    return bool(one == other)


def _uncounted(table: TableDescriptor) -> TableDescriptor:
    return replace(table, schema_versions=(SchemaVersion(0, table.columns),), next_column_id=0)


def as_it_comes_back(then: Any, now: Any, net: Net, *, together: bool) -> Any:  # Any: descriptors
    """What to put in the place of ``now`` (None: nothing) so that it is as ``then``.

    ``net`` is what the version did to it, ``then`` how it was before the version or within it.
    ``together``: what it is part of comes back in the same version.
    """
    if isinstance(then, TableDescriptor) and isinstance(now, TableDescriptor):
        return _table(then, now, net.left)
    if isinstance(then, IndexDescriptor):
        return _index(then, net.was, net.left, together=together)
    return then


def _table(
    then: TableDescriptor, now: TableDescriptor, left: TableDescriptor | None
) -> TableDescriptor:
    """``then``, one schema version further than ``now``. A column that was away is nullable.

    Rows that were written while it was away have no value for it, unless Spark completes them.
    While the whole table was away, none were written.
    """
    held = {column.id for column in (left or then).columns}
    columns = tuple(
        column
        if column.id in held or _completed_by_spark(column)
        else replace(column, nullable=True)
        for column in then.columns
    )
    versions = now.schema_versions
    if columns != now.columns:
        versions = (*versions, SchemaVersion(now.schema_version + 1, columns))
    next_id = max(then.next_column_id, now.next_column_id)
    return replace(then, schema_versions=versions, next_column_id=next_id)


def _completed_by_spark(column: ColumnDescriptor) -> bool:
    return bool(column.metadata) and JUDGED_BY_SPARK in json.loads(column.metadata)


def _index(
    then: IndexDescriptor, was: IndexDescriptor, left: IndexDescriptor | None, *, together: bool
) -> IndexDescriptor:
    """``then``, in the status that it comes back in. One that stops meanwhile has no name yet."""
    status = _status(was, left, together=together)
    return replace(then, status=status) if then.alive else then


def _status(was: IndexDescriptor, left: IndexDescriptor | None, *, together: bool) -> IndexStatus:
    if left is None and together:  # nobody wrote to its table meanwhile
        building = was.status is IndexStatus.BUILDING
        return IndexStatus.REGISTERED if building else was.status
    if left is None and not was.alive:
        raise IllegalChange(
            f"index {was.name} was dropped before, and then removed; create it again"
        )
    if left is not None and left.status is was.status:
        return was.status
    if left is not None and left.alive:
        raise IllegalChange(
            f"index {was.name} went from {was.status.name} to {left.status.name}, a step that only "
            "goes on; drop the index, or create it again"
        )
    return IndexStatus.REGISTERED


# -- what goes with what is put back ---------------------------------------------------------------


def following(catalog: Catalog, value: Any) -> Iterator[Any]:  # Any: descriptors
    """The parts of ``value`` that must be where it is, or whose it is, and are not: as they are."""
    if isinstance(value, TableDescriptor):
        for index in catalog.indexes(value.id):
            if index.schema_id != value.schema_id:
                yield replace(index, schema_id=value.schema_id)
    if isinstance(value, ClusterReplica):
        for one in catalog.introspection_indexes(value.id):
            if one.owner != value.owner:
                yield replace(one, owner=value.owner)


# -- what must agree with the rest of the catalog --------------------------------------------------


def check_agreement(planning: Planning, before: Any, after: Any) -> None:  # Any: descriptors
    """Refuse what came back, or was put back, and does not fit what is there.

    ``before`` is None where the object was not there.
    """
    check = _CHECKS.get(type(after))
    if check is not None:
        check(planning, before, after)


def _check_table(planning: Planning, before: TableDescriptor | None, after: Any) -> None:
    catalog = planning.catalog
    zone = catalog.zone(after.zone_id)
    if zone and after.storage_profile and after.storage_profile not in zone.storage_profiles:
        raise IllegalChange(
            f"zone {zone.name} no longer has the storage profile {after.storage_profile!r} of "
            f"table {after.name}; give it that profile first"
        )
    if before is None:
        return
    kept = {column.id: column for column in after.columns}
    for column in before.columns:
        if column.id not in kept:
            refuse_indexed_column(before, column, catalog.indexes(after.id))
        elif kept[column.id] != column:
            _check_column(before, column, kept[column.id])


def _check_column(table: TableDescriptor, now: ColumnDescriptor, then: ColumnDescriptor) -> None:
    try:
        check_column_change(table, now, then)
    except IllegalChange as error:
        raise IllegalChange(
            f"column {now.name!r} of {table.name} cannot go back to what it was: {error.message}"
        ) from error


def _check_index(planning: Planning, _: Any, after: IndexDescriptor) -> None:
    table = planning.catalog.table_by_id(after.table_id)
    held = {column.id for column in table.columns} if table else set()
    if table and not held.issuperset(part.column_id for part in after.columns):
        raise IllegalChange(
            f"index {after.name} is on a column of {table.name} that was dropped meanwhile; undo "
            "that first"
        )


def _check_zone(planning: Planning, before: ZoneDescriptor | None, after: ZoneDescriptor) -> None:
    lost = set(before.storage_profiles if before else ()) - set(after.storage_profiles)
    for table in planning.catalog.tables() if lost else ():
        if table.zone_id == after.id and table.storage_profile in lost:
            raise IllegalChange(
                f"storage profile {table.storage_profile!r} would be taken from zone {after.name}, "
                f"and table {planning.catalog.qualified_name(table)} lies in it"
            )


def _check_size(planning: Planning, _: Any, after: ClusterDescriptor | ClusterReplica) -> None:
    if after.size is not None:
        size_of(planning, after.size)


def _check_role(planning: Planning, _: Any, after: RoleDescriptor) -> None:
    """A membership that comes back must find its role, and must not close a circle."""
    catalog = planning.catalog
    for group, _granted_by in after.member_of:
        if catalog.role_by_id(group) is None:
            raise ObjectNotFound(
                f"role {after.name} was a member of a role (id {group}) that is gone; undo the "
                "drop of that first"
            )
    if after.id in roles_above(catalog, after):
        raise IllegalChange(
            f"role {after.name} would be a member of itself, through memberships granted meanwhile"
        )


def _check_default_zone(planning: Planning, _: Any, after: ConfigEntry) -> None:
    if planning.catalog.default_zone() is None:
        raise ObjectNotFound(
            f"the zone that was the default one (id {after.value}) is gone; undo its drop first"
        )


_CHECKS: dict[type, Callable[[Planning, Any, Any], None]] = {
    TableDescriptor: _check_table,
    IndexDescriptor: _check_index,
    ZoneDescriptor: _check_zone,
    ClusterDescriptor: _check_size,
    ClusterReplica: _check_size,
    RoleDescriptor: _check_role,
    ConfigEntry: _check_default_zone,
}
