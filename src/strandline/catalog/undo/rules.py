"""The rules for undoing kinds of objects that need more than to put their old bytes back.

The declarations of the kinds name these functions (`strandline.catalog.declared_kinds.Undoing`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from strandline.catalog.catalog import Catalog
from strandline.catalog.commands.clusters import size_of
from strandline.catalog.commands.column_definition import refuse_indexed_column
from strandline.catalog.commands.columns import check_column_change, is_completed_by_spark
from strandline.catalog.commands.defaults import EXISTS_DEFAULT
from strandline.catalog.commands.objects import SetConfiguration
from strandline.catalog.commands.zones import refuse_to_lose_profiles
from strandline.catalog.planning import Planning
from strandline.catalog.privileges.access import owned_by, roles_above
from strandline.catalog.undo.net import Net
from strandline.errors import IllegalChange, ObjectNotFound
from strandline.model.descriptors import (
    ClusterDescriptor,
    ClusterReplica,
    ColumnDescriptor,
    ConfigEntry,
    IndexDescriptor,
    IndexStatus,
    IntrospectionIndex,
    SchemaVersion,
    SystemConfiguration,
    TableDescriptor,
    ZoneDescriptor,
)
from strandline.model.identifiers import normalize
from strandline.model.privileges import RoleDescriptor

# -- undone by a command ---------------------------------------------------------------------------


def set_parameter_back(planning: Planning, now: Any, earlier: SystemConfiguration | None) -> None:
    """Set a parameter to its previous value, by the rules of its command."""
    name = earlier.name if earlier is not None else now.name
    SetConfiguration(name=name, value=None if earlier is None else earlier.value).plan(planning)


# -- equality, and the restored value --------------------------------------------------------------


def same_table(left: TableDescriptor, now: TableDescriptor) -> bool:
    """Whether two values of a table look the same to users, ignoring how often each was altered."""
    return _uncounted(left) == _uncounted(now)


def _uncounted(table: TableDescriptor) -> TableDescriptor:
    return replace(table, schema_versions=(SchemaVersion(0, table.columns),), next_column_id=0)


def table_comes_back(
    earlier: TableDescriptor, now: TableDescriptor | None, net: Net, _: Net | None
) -> TableDescriptor:
    """Return ``earlier``, one schema version after ``now``; a column that was absent is nullable.

    Rows written while the column was absent have no value for it, unless Spark fills it in. While
    the whole table was absent, no rows were written. Partitions keep the format that they have.
    """
    if now is None:
        return earlier
    left: TableDescriptor = net.new_value or earlier
    kept_ids = {column.id for column in left.columns}
    completes = is_completed_by_spark(earlier)
    columns = tuple(
        column
        if column.id in kept_ids or (completes and _has_value_for_existing_rows(column))
        else replace(column, nullable=True)
        for column in earlier.columns
    )
    versions = now.versions_with(columns)
    partition_storage = earlier.partition_storage
    if earlier.storage.names_format:  # if not, its partitions follow the provider too
        partition_storage = now.with_storage(earlier.storage).partition_storage
    next_id = max(earlier.next_column_id, now.next_column_id)
    return replace(
        earlier,
        schema_versions=versions,
        next_column_id=next_id,
        partition_storage=partition_storage,
    )


def _has_value_for_existing_rows(column: ColumnDescriptor) -> bool:
    return bool(column.metadata) and EXISTS_DEFAULT in json.loads(column.metadata)


def index_comes_back(
    earlier: IndexDescriptor, _: IndexDescriptor | None, net: Net, of_table: Net | None
) -> IndexDescriptor:
    """Return ``earlier`` with the status that it is restored to.

    A stopping index, which has no name, is returned unchanged.
    """
    if net.new is not None and net.new_value.status is net.old_value.status:
        return earlier
    together = of_table is not None and of_table.new is None
    status = _status(net.old_value, net.new_value, together=together)
    return replace(earlier, status=status) if earlier.alive else earlier


def _status(
    before: IndexDescriptor, after: IndexDescriptor | None, *, together: bool
) -> IndexStatus:
    if after is None and together:  # no transaction wrote to its table meanwhile
        building = before.status is IndexStatus.BUILDING
        return IndexStatus.REGISTERED if building else before.status
    if after is None and not before.alive:
        raise IllegalChange(f"index {before.name} was dropped and then removed; create it again")
    if after is not None and after.alive:
        raise IllegalChange(
            f"index {before.name} changed from {before.status.name} to {after.status.name}, which "
            "cannot be reversed; drop the index, or create it again"
        )
    return IndexStatus.REGISTERED


# -- objects that follow a restored one ------------------------------------------------------------


def indexes_follow(
    catalog: Catalog, before: TableDescriptor | None, table: TableDescriptor
) -> Iterator[IndexDescriptor]:
    """The indexes of a table, moved to its schema and, those of its owner, given to its owner."""
    former = "" if before is None or before.owner == table.owner else normalize(before.owner)
    for index in catalog.indexes(table.id):
        owner = table.owner if former and normalize(index.owner) == former else index.owner
        yield replace(index, schema_id=table.schema_id, owner=owner)


def owned_objects_follow(
    catalog: Catalog, before: RoleDescriptor | None, role: RoleDescriptor
) -> Iterator[Any]:
    """What the role owns under its name ``before``, given to its restored name."""
    if before is not None and normalize(before.name) != normalize(role.name):
        for _, stored in owned_by(catalog.contents, before.name):
            yield replace(stored.value, owner=role.name)


def introspection_follows(
    catalog: Catalog, before: ClusterReplica | None, replica: ClusterReplica
) -> Iterator[IntrospectionIndex]:
    """The introspection indexes of a replica with another owner, given the replica's owner."""
    for index in catalog.introspection_indexes(replica.id):
        if index.owner != replica.owner:
            yield replace(index, owner=replica.owner)


# -- agreement with the rest of the catalog --------------------------------------------------------


def check_table(planning: Planning, before: TableDescriptor | None, after: Any) -> None:
    catalog = planning.catalog
    zone = catalog.zone(after.zone_id)
    if zone and after.storage_profile and after.storage_profile not in zone.storage_profiles:
        raise IllegalChange(
            f"zone {zone.name} no longer has the storage profile {after.storage_profile!r} of "
            f"table {after.name}; give it that profile first"
        )
    if before is None:
        return
    kept_columns = {column.id: column for column in after.columns}
    for column in before.columns:
        if column.id not in kept_columns:
            refuse_indexed_column(before, column, catalog.indexes(after.id))
        elif kept_columns[column.id] != column:
            _check_column(before, column, kept_columns[column.id])


def _check_column(
    table: TableDescriptor, present: ColumnDescriptor, restored: ColumnDescriptor
) -> None:
    try:
        check_column_change(table, present, restored)
    except IllegalChange as error:
        raise IllegalChange(
            f"column {present.name!r} of {table.name} cannot be restored to its earlier "
            f"definition: {error.message}"
        ) from error


def check_index(planning: Planning, _: Any, after: IndexDescriptor) -> None:
    table = planning.catalog.table_by_id(after.table_id)
    column_ids = {column.id for column in table.columns} if table else set()
    if table and not column_ids.issuperset(part.column_id for part in after.columns):
        raise IllegalChange(
            f"index {after.name} is on a column of {table.name} that was dropped in the meantime; "
            "undo that drop first"
        )


def check_zone(planning: Planning, before: ZoneDescriptor | None, after: ZoneDescriptor) -> None:
    if before is not None:
        refuse_to_lose_profiles(planning, before, after.storage_profiles)


def check_size(planning: Planning, _: Any, after: ClusterDescriptor | ClusterReplica) -> None:
    if after.size is not None:
        size_of(planning, after.size)


def check_role(planning: Planning, _: Any, after: RoleDescriptor) -> None:
    """Check that the groups of a restored membership exist and that it closes no cycle."""
    catalog = planning.catalog
    for group in (membership.group for membership in after.member_of):
        if catalog.role_by_id(group) is None:
            raise ObjectNotFound(
                f"role {after.name} was a member of a role (id {group}) that no longer exists; "
                "undo its drop first"
            )
    if after.id in roles_above(catalog, after):
        raise IllegalChange(
            f"role {after.name} would be a member of itself, through memberships that were "
            "granted in the meantime"
        )


def check_default_zone(planning: Planning, _: Any, after: ConfigEntry) -> None:
    if planning.catalog.default_zone() is None:
        raise ObjectNotFound(
            f"the zone that was the default zone (id {after.value}) no longer exists; undo its "
            "drop first"
        )
