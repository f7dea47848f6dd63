"""Commands on zones: where table data is stored and how it is spread over nodes.

The number of partitions of a zone can never change, because every file belongs to a partition by a
hash modulo that number. Its consistency mode cannot change either. The other settings can. New
settings are validated against the resulting zone: an explicit quorum must fit the replicas, while
an implicit one is moved into the range that the new replicas allow.

A default zone always exists, from the initial catalog on. It contains the tables that name no zone.
It is identified by its id, so it can be renamed, and it cannot be dropped. No partition count is
ever computed from the present nodes, because a command must give the same result when it is
validated again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

from strandline.catalog.catalog import DEFAULT_ZONE_CONFIG
from strandline.catalog.kinds import delete_with_comment
from strandline.catalog.node_filter import check_node_filter
from strandline.catalog.planning import Planning, altered, refuse_holder, required
from strandline.errors import IllegalChange, InvalidInput
from strandline.model.descriptors import (
    ConfigEntry,
    ConsistencyMode,
    TableDescriptor,
    ZoneDescriptor,
    default_quorum,
)
from strandline.model.identifiers import check_name

MAX_PARTITIONS = 65_000
EVERY_NODE = 2**31 - 1
"""As a number of replicas: one on every node."""
NEVER = 2**31 - 1
"""As an auto-adjust time in seconds: assignments never adjust."""
MAX_STORAGE_PROFILES = 100

_UNPRINTABLE = re.compile(r"[\x00-\x20\x7f]")


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateZone:
    """CREATE ZONE. By default one partition, with a replica on every node.

    Auto-adjust times are in seconds: 0 is at once, `NEVER` never. ``node_filter`` is a condition on
    the attributes of nodes (`strandline.catalog.node_filter`); empty means all nodes.
    ``storage_location`` None or empty means the store's own warehouse.
    """

    name: str
    owner: str = ""
    partitions: int = 1
    replicas: int = EVERY_NODE
    quorum_size: int | None = None
    auto_adjust_scale_up: int = 0
    auto_adjust_scale_down: int = NEVER
    node_filter: str = ""
    storage_profiles: tuple[str, ...] = ("default",)
    storage_location: str | None = None
    consistency_mode: ConsistencyMode = ConsistencyMode.STRONG
    if_not_exists: bool = False

    def plan(self, planning: Planning) -> None:
        """Raises `InvalidName`, `InvalidInput`, `AlreadyExists`."""
        check_name(self.name, "zone")
        check_partitions(self.name, self.partitions)
        _check_settings(self)
        zone = ZoneDescriptor(
            id=0,
            name=self.name,
            owner=self.owner or planning.author,
            partitions=self.partitions,
            replicas=_replicas(self.replicas),
            node_filter=self.node_filter,
            storage_profiles=self.storage_profiles,
            storage_location=self.storage_location or None,
            auto_adjust_scale_up=_time(self.auto_adjust_scale_up),
            auto_adjust_scale_down=_time(self.auto_adjust_scale_down),
            consistency_mode=self.consistency_mode,
            quorum_size=_quorum(self.name, self.quorum_size, _replicas(self.replicas)),
        )
        existing = planning.catalog.zone_named(self.name)
        if existing is not None and self.if_not_exists:
            return
        refuse_holder(existing, "zone")
        with planning.entry("create_zone", zone=self.name) as transaction:
            transaction.put(replace(zone, id=planning.new_id()))


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterZone:
    """ALTER ZONE … SET. None leaves a setting unchanged.

    ``storage_location`` decides where new files are written; empty means the store's own warehouse.
    ``partitions`` exists only so that it can be refused with the reason.
    """

    name: str
    owner: str | None = None
    partitions: int | None = None
    replicas: int | None = None
    quorum_size: int | None = None
    auto_adjust_scale_up: int | None = None
    auto_adjust_scale_down: int | None = None
    node_filter: str | None = None
    storage_profiles: tuple[str, ...] | None = None
    storage_location: str | None = None
    consistency_mode: ConsistencyMode | None = None
    if_exists: bool = False

    def plan(self, planning: Planning) -> None:
        """Raises `ObjectNotFound`, `InvalidInput`, `IllegalChange`."""
        if self.partitions is not None:
            raise IllegalChange(
                f"the number of partitions of zone {self.name} cannot be altered: it decides "
                "which partition a file belongs to; create a new zone and rebuild the tables in "
                "it"
            )
        _check_settings(self)
        old = _find(planning, self.name, if_exists=self.if_exists)
        if old is None:
            return
        if self.consistency_mode not in (None, old.consistency_mode):
            raise IllegalChange(
                f"the consistency mode of zone {old.name} is {old.consistency_mode.name} and "
                "cannot be altered; create a new zone"
            )
        replicas = old.replicas if self.replicas is None else _replicas(self.replicas)
        profiles = old.storage_profiles if self.storage_profiles is None else self.storage_profiles
        refuse_to_lose_profiles(planning, old, profiles)
        up, down = self.auto_adjust_scale_up, self.auto_adjust_scale_down
        new = replace(
            altered(old, owner=self.owner, node_filter=self.node_filter),
            replicas=replicas,
            quorum_size=_quorum(old.name, self.quorum_size, replicas, before=old.quorum_size),
            auto_adjust_scale_up=old.auto_adjust_scale_up if up is None else _time(up),
            auto_adjust_scale_down=old.auto_adjust_scale_down if down is None else _time(down),
            storage_profiles=profiles,
            storage_location=old.storage_location
            if self.storage_location is None
            else self.storage_location or None,
        )
        with planning.entry("alter_zone", zone=old.name) as transaction:
            transaction.put(new)


@dataclass(frozen=True, slots=True, kw_only=True)
class RenameZone:
    """ALTER ZONE … RENAME TO. A default zone remains the default zone."""

    name: str
    new_name: str
    if_exists: bool = False

    def plan(self, planning: Planning) -> None:
        """Raises `ObjectNotFound`, `InvalidName`, `AlreadyExists`."""
        zone = _find(planning, self.name, if_exists=self.if_exists)
        if zone is None:
            return
        check_name(self.new_name, "zone")
        holder = planning.catalog.zone_named(self.new_name)
        refuse_holder(holder, "zone", own_id=zone.id)
        is_default = zone == planning.catalog.default_zone()
        with planning.entry("rename_zone", zone=zone.name, to=self.new_name) as transaction:
            transaction.put(replace(zone, name=self.new_name))
            if is_default and zone.name != self.new_name:
                # A catalog of 0.1.0 knows its default zone only by name.
                transaction.put(ConfigEntry(DEFAULT_ZONE_CONFIG, str(zone.id)))


@dataclass(frozen=True, slots=True, kw_only=True)
class SetDefaultZone:
    """ALTER ZONE … SET DEFAULT: the zone for future tables that name no zone."""

    name: str
    if_exists: bool = False

    def plan(self, planning: Planning) -> None:
        """Raises `ObjectNotFound`."""
        zone = _find(planning, self.name, if_exists=self.if_exists)
        if zone is None or zone == planning.catalog.default_zone():
            return
        with planning.entry("set_default_zone", zone=zone.name) as transaction:
            transaction.put(ConfigEntry(DEFAULT_ZONE_CONFIG, str(zone.id)))


@dataclass(frozen=True, slots=True, kw_only=True)
class DropZone:
    """DROP ZONE. It must not be the default zone, and must not contain tables."""

    name: str
    if_exists: bool = False

    def plan(self, planning: Planning) -> None:
        """Raises `ObjectNotFound`, `IllegalChange`."""
        zone = _find(planning, self.name, if_exists=self.if_exists)
        if zone is not None:
            drop_zone(planning, zone)


def drop_zone(planning: Planning, zone: ZoneDescriptor) -> None:
    """Drop a zone and its comment. Raises `IllegalChange`, see `DropZone`."""
    if zone == planning.catalog.default_zone():
        raise IllegalChange(
            f"zone {zone.name} is the default zone and cannot be dropped; make another zone "
            "the default one first"
        )
    table = next(_tables_in(planning, zone), None)
    if table is not None:
        raise IllegalChange(
            f"zone {zone.name} cannot be dropped: table "
            f"{planning.catalog.qualified_name(table)} is in it"
        )
    with planning.entry("drop_zone", zone=zone.name) as transaction:
        delete_with_comment(transaction, "zone", zone.id)


def _quorum(
    zone: str, requested: int | None, replicas: int | None, *, before: int | None = None
) -> int:
    """Return ``requested`` if it fits the replicas; by default the previous quorum, put in range.

    Without a previous quorum, the default is `default_quorum`. Raises `InvalidInput`.
    """
    count = EVERY_NODE if replicas is None else replicas
    least = min(count, 2)
    greatest = max(least, (count + 1) // 2)
    if requested is None:
        return default_quorum(replicas) if before is None else min(max(before, least), greatest)
    if not least <= requested <= greatest:
        raise InvalidInput(
            f"quorum size {requested} does not fit zone {zone} with "
            f"{'a replica on every node' if replicas is None else f'{replicas} replicas'}: "
            f"{least} to {greatest} are possible"
        )
    return requested


def _replicas(number: int) -> int | None:
    return None if number == EVERY_NODE else number


def _time(seconds: int) -> int | None:
    return None if seconds == NEVER else seconds


def check_partitions(zone: str, partitions: int) -> None:
    """Raise `InvalidInput` for a number of partitions that no zone can have."""
    if not 1 <= partitions <= MAX_PARTITIONS:
        raise InvalidInput(
            f"zone {zone} cannot have {partitions} partitions; 1 to {MAX_PARTITIONS} are possible"
        )


def _check_settings(command: CreateZone | AlterZone) -> None:
    """Refuse settings that are invalid for any zone; None is not checked."""
    for what, number, least in (
        ("number of replicas", command.replicas, 1),
        ("quorum size", command.quorum_size, 1),
        ("auto-adjust time for scaling up", command.auto_adjust_scale_up, 0),
        ("auto-adjust time for scaling down", command.auto_adjust_scale_down, 0),
    ):
        if number is not None and not least <= number <= EVERY_NODE:
            raise InvalidInput(
                f"the {what} of zone {command.name} cannot be {number}; "
                f"{least} to {EVERY_NODE} are possible"
            )
    if command.node_filter is not None:
        check_node_filter(command.node_filter)
    if command.storage_profiles is not None:
        check_profiles(command.name, command.storage_profiles)
    if command.storage_location:
        _check_location(command.storage_location)


def check_profiles(zone: str, profiles: tuple[str, ...]) -> None:
    """Raise `InvalidInput` for storage profiles that no zone can have."""
    if not profiles:
        raise InvalidInput(f"zone {zone} needs at least one storage profile")
    if len(profiles) > MAX_STORAGE_PROFILES:
        raise InvalidInput(
            f"zone {zone} may have at most {MAX_STORAGE_PROFILES} storage profiles, found "
            f"{len(profiles)}"
        )
    for position, profile in enumerate(profiles):
        check_name(profile, "storage profile")
        if profile in profiles[:position]:
            raise InvalidInput(
                f"duplicate storage profile {profile!r} in zone {zone}; name each profile once"
            )


def _check_location(location: str) -> None:
    try:
        parts = urlsplit(location)
    except ValueError:
        parts = urlsplit("")
    if _UNPRINTABLE.search(location) or not parts.scheme or not (parts.netloc or parts.path):
        raise InvalidInput(
            f"storage location {location[:200]!r} is not a URI such as file:/data or s3://bucket/x"
        )


def _find(planning: Planning, name: str, *, if_exists: bool) -> ZoneDescriptor | None:
    return required(planning.catalog.zone_named(name), f"zone {name!r}", if_exists=if_exists)


def _tables_in(planning: Planning, zone: ZoneDescriptor) -> Iterator[TableDescriptor]:
    """The tables of a zone.

    This looks at every table, so use it only for rare operations on a zone.
    """
    for stored in planning.catalog.contents.objects("table"):
        if stored.may_have_id(zone.id):
            table: TableDescriptor = stored.value
            if table.zone_id == zone.id:
                yield table


def refuse_to_lose_profiles(
    planning: Planning, zone: ZoneDescriptor, profiles: tuple[str, ...]
) -> None:
    """Raise `IllegalChange` if a table uses a storage profile of ``zone`` not in ``profiles``."""
    lost = set(zone.storage_profiles) - set(profiles)
    for table in _tables_in(planning, zone) if lost else ():
        if table.storage_profile in lost:
            raise IllegalChange(
                f"storage profile {table.storage_profile!r} cannot be removed from zone "
                f"{zone.name}: table {planning.catalog.qualified_name(table)} uses it"
            )
