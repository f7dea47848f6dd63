"""The contents of a new catalog, and the migrations that give them to an older one, in order."""

from __future__ import annotations

from strandline.catalog.applier import DELAY, SKEW
from strandline.catalog.catalog import DEFAULT_DATABASE, DEFAULT_ZONE_CONFIG, DEFAULT_ZONE_NAME
from strandline.catalog.commands.schemas import DEFAULT_SCHEMA
from strandline.catalog.system_views.synchronization import initialize_system_views
from strandline.catalog.verbs import Verb, declare_verb
from strandline.durable.migrations import MIGRATE, MIGRATIONS, Migration, present_format
from strandline.durable.opening import Fill, new_environment_id
from strandline.durable.state import ENVIRONMENT
from strandline.durable.transaction import CatalogTransaction
from strandline.errors import InvalidInput
from strandline.model.descriptors import (
    ConfigEntry,
    DatabaseDescriptor,
    PrincipalType,
    SchemaDescriptor,
    ZoneDescriptor,
)
from strandline.model.privileges import PUBLIC_NAME, SYSTEM_NAME

MAX_DELAY_MS = 366 * 24 * 60 * 60 * 1000
"""The longest time from the append of a version to its activation: a year."""
MAX_SKEW_MS = 24 * 60 * 60 * 1000
"""The largest allowed difference between the clocks of two nodes: a day."""


def initial_catalog(*, delay_ms: int, skew_ms: int, default_location: str) -> Fill:
    """Return what fills a new catalog.

    The contents are the default database, schema and zone, the configuration, and the system views.
    ``delay_ms`` (0 to `MAX_DELAY_MS`) and ``skew_ms`` (0 to `MAX_SKEW_MS`) can never be changed
    afterwards. ``default_location`` is the URI of the folder for tables of the default schema.
    Raises `InvalidInput` if a value is out of range.
    """
    for name, value, limit in (
        (DELAY, delay_ms, MAX_DELAY_MS),
        (SKEW, skew_ms, MAX_SKEW_MS),
    ):
        if not 0 <= value <= limit:
            raise InvalidInput(
                f"{name} is {value}; it must be a number of milliseconds from 0 to {limit}, and "
                "cannot be changed after the catalog is created"
            )

    def initialize(transaction: CatalogTransaction) -> None:
        with transaction.entry("initialize", {"database": DEFAULT_DATABASE}):
            transaction.put(
                ConfigEntry(ENVIRONMENT, transaction.environment or new_environment_id())
            )
            transaction.put(present_format())
            transaction.put(ConfigEntry(DELAY, str(delay_ms)))
            transaction.put(ConfigEntry(SKEW, str(skew_ms)))
            database, schema, zone = transaction.allocate_id(amount=3)
            transaction.put(DatabaseDescriptor(database, DEFAULT_DATABASE, SYSTEM_NAME))
            transaction.put(
                SchemaDescriptor(
                    id=schema,
                    database_id=database,
                    name=DEFAULT_SCHEMA,
                    owner=PUBLIC_NAME,
                    owner_type=PrincipalType.ROLE,
                    comment="Default Hive database",
                    location=default_location,
                )
            )
            transaction.put(ZoneDescriptor(zone, DEFAULT_ZONE_NAME, SYSTEM_NAME))
            transaction.put(ConfigEntry(DEFAULT_ZONE_CONFIG, str(zone)))
            initialize_system_views(transaction, database_id=database)

    return initialize


def _note_default_zone(transaction: CatalogTransaction) -> None:
    """Record the id of the default zone, which release 0.1.0 found by its name, ``default``."""
    if transaction.get_named("config", "default_zone") is not None:
        return
    for stored in transaction.contents.objects("zone"):
        if stored.name == "default":
            transaction.put(ConfigEntry("default_zone", str(stored.id)))


# See `strandline.durable.migrations`.
MIGRATIONS.append(Migration("note the default zone by its id", _note_default_zone))

declare_verb(Verb(name=MIGRATE, subject="step", why_kept="newer releases rely on it"))
