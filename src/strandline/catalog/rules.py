"""The rules that every catalog keeps, whatever wrote it.

Commands never break these rules, and rely on them: ids are below the next id, and no two objects
share one; referenced objects exist; the columns of a table have distinct ids; parameters have valid
values; memberships of roles form no cycle; the schema of the catalog's own views contains nothing
else. A manual edit that would break a rule is refused (`strandline.catalog.editing`). A
verification finds rules that were broken by an edit in a release that did not know them.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple

from strandline.catalog.catalog import DEFAULT_DATABASE, DEFAULT_ZONE_CONFIG, Catalog, is_reserved
from strandline.catalog.commands import DEFAULT_SCHEMA
from strandline.catalog.commands.column_definition import check_distinct
from strandline.catalog.commands.zones import check_partitions, check_profiles
from strandline.catalog.configuration import parameter
from strandline.catalog.kinds import references, spoken
from strandline.catalog.privileges.access import roles_above
from strandline.clock import MIN_TIMESTAMP
from strandline.durable.collections import COLLECTIONS, ID_ALLOCATOR, Collection, id_key
from strandline.durable.contents import Contents
from strandline.durable.transaction import OBJECT_IDS
from strandline.errors import InvalidInput, StrandlineError
from strandline.model.descriptors import (
    ConfigEntry,
    DatabaseDescriptor,
    IdAllocator,
    SchemaDescriptor,
    SchemaVersion,
    SystemConfiguration,
    SystemViewDescriptor,
    TableDescriptor,
    ZoneDescriptor,
)
from strandline.model.identifiers import check_name
from strandline.model.privileges import SYSTEM_NAME, RoleDescriptor

# Below, Any stands for a descriptor of some kind.
Key = int | str
"""An object's id, or its name where the kind is keyed by name."""


class BrokenRule(NamedTuple):
    """An object that breaks a rule, and the reason."""

    kind: str
    key: Key
    message: str


def key_of(kind: Collection, value: Any) -> Key:
    key: Key = value.id if kind.has_id else value.name
    return key


def broken_rules(contents: Contents) -> Iterator[BrokenRule]:
    """Each object of ``contents`` that breaks a rule; takes time in proportion to their number."""
    for kind in COLLECTIONS.values():
        for stored in contents.objects(kind.kind):
            try:
                check_object(contents, kind, stored.value)
            except StrandlineError as error:
                yield BrokenRule(kind.kind, key_of(kind, stored), error.message)
    yield from _missing_defaults(contents)


def check_object(contents: Contents, kind: Collection, value: Any) -> None:
    """Raise `InvalidInput` unless ``value`` may be an object of ``kind`` in ``contents``."""
    if kind.has_id:
        check_name(value.name, spoken(kind.kind))
        _check_id(contents, kind, value.id)
    match value:
        case TableDescriptor():
            _check_columns(value)
        case ZoneDescriptor():
            check_partitions(value.name, value.partitions)
            check_profiles(value.name, value.storage_profiles)
        case RoleDescriptor():
            _check_no_cycle(contents, value)
        case IdAllocator():
            _check_next_id(contents, value)
        case SystemConfiguration():
            parameter(value.name).read(value.value)
        case ConfigEntry(name=name, value=zone_id) if name == DEFAULT_ZONE_CONFIG:
            _check_default_zone(contents, zone_id)
    for name, object_id in required_objects(value):
        referred = contents.get(name, id_key(object_id))
        if referred is None:
            raise InvalidInput(f"the value refers to {name} {object_id}, which does not exist")
        if (
            name == "schema"
            and is_reserved(referred.name)
            and referred.value.owner == SYSTEM_NAME  # a catalog of 0.1.0 may have a user's schema
            and not isinstance(value, SystemViewDescriptor)
        ):
            raise InvalidInput(
                f"{spoken(kind.kind)} {value.name} cannot be in schema {referred.name}: the schema "
                "is reserved for the catalog itself"
            )


def required_objects(value: Any) -> Iterator[tuple[str, int]]:
    """The kind and id of every object that must exist while ``value`` does."""
    yield from references(value)
    if isinstance(value, RoleDescriptor):
        yield from (("role", membership.group) for membership in value.member_of)


def highest_id(contents: Contents) -> int:
    """The highest id of any object, or 0 if there is none."""
    return max(
        (
            stored.id
            for kind in COLLECTIONS.values()
            if kind.has_id
            for stored in contents.objects(kind.kind)
        ),
        default=0,
    )


def _check_id(contents: Contents, kind: Collection, object_id: int) -> None:
    """Check that the id was allocated, and that no object of another kind has it.

    All kinds take their ids from one allocator. An id that it has not allocated yet would be
    allocated again.
    """
    allocator = contents.get(ID_ALLOCATOR.kind, OBJECT_IDS.encode())
    next_id = 1 if allocator is None else allocator.value.next_id
    if not 0 < object_id < next_id:
        raise InvalidInput(
            f"id {object_id} was never allocated, and the next id is {next_id}; edit id_allocator "
            f"'\"{OBJECT_IDS}\"' first if that is too low"
        )
    key = id_key(object_id)
    for other in COLLECTIONS.values():
        if other.has_id and other is not kind and contents.get(other.kind, key) is not None:
            raise InvalidInput(
                f"id {object_id} already belongs to a {spoken(other.kind)}; give the "
                f"{spoken(kind.kind)} a different id"
            )


def _check_next_id(contents: Contents, allocator: IdAllocator) -> None:
    highest = highest_id(contents) if allocator.name == OBJECT_IDS else 0
    if allocator.next_id <= highest:
        raise InvalidInput(
            f"next_id cannot be {allocator.next_id}: the highest id in use is {highest}"
        )


def _check_default_zone(contents: Contents, zone_id: str) -> None:
    known = {str(stored.id) for stored in contents.objects("zone")}
    if zone_id not in known:
        raise InvalidInput(
            f"{zone_id!r} is not the id of a zone; the zones of this catalog have the ids "
            f"{', '.join(sorted(known))}"
        )


def _check_no_cycle(contents: Contents, role: RoleDescriptor) -> None:
    """Check that ``role`` is not a member of itself, directly or through other roles."""
    if role.id in roles_above(Catalog(0, MIN_TIMESTAMP, contents), role):
        raise InvalidInput(
            f"role {role.name} cannot be a member of itself, directly or through other roles"
        )


def _check_columns(table: TableDescriptor) -> None:
    """Check the column ids, by which data files, keys and older versions refer to columns."""
    numbers = [version.number for version in table.schema_versions]
    if not numbers or any(later <= earlier for earlier, later in pairwise(numbers)):
        raise InvalidInput(
            f"the schema versions of {table.name} have the numbers {numbers}; a table has at "
            "least one version, and the numbers must increase"
        )
    for version in table.schema_versions:
        _check_distinct_columns(table, version)
    ids = {column.id for column in table.columns}
    sources = tuple(field.source_id for field in table.partitioning)
    for field, used_ids in (
        ("partition_columns", table.partition_columns),
        ("primary_key", table.primary_key),
        ("colocation", table.colocation),
        ("partitioning", sources),
    ):
        unknown = set(used_ids) - ids
        if unknown:
            raise InvalidInput(
                f"{field} of {table.name} refers to column {min(unknown)}, which the table does "
                "not have"
            )


def _check_distinct_columns(table: TableDescriptor, version: SchemaVersion) -> None:
    what = f"schema version {version.number} of {table.name}"
    check_distinct([column.name for column in version.columns], what=what)
    ids = [column.id for column in version.columns]
    if len(set(ids)) < len(ids) or not all(0 < n < table.next_column_id for n in ids):
        raise InvalidInput(
            f"the columns of {what} have the ids {ids}; ids must be unique and below "
            f"next_column_id, which is {table.next_column_id}"
        )


def _missing_defaults(contents: Contents) -> Iterator[BrokenRule]:
    """The default database, or the default schema in it, if missing; clients rely on both."""
    databases: Iterator[DatabaseDescriptor] = (d.value for d in contents.objects("database"))
    default = next((database for database in databases if database.name == DEFAULT_DATABASE), None)
    if default is None:
        yield BrokenRule("database", DEFAULT_DATABASE, "the default database does not exist")
        return
    schemas: Iterator[SchemaDescriptor] = (stored.value for stored in contents.objects("schema"))
    if not any(s.database_id == default.id and s.name == DEFAULT_SCHEMA for s in schemas):
        yield BrokenRule("schema", DEFAULT_SCHEMA, "the default schema does not exist")
