"""What a new catalog holds."""

from __future__ import annotations

from strandline.catalog.catalog import DEFAULT_DATABASE
from strandline.catalog.commands.schemas import DEFAULT_SCHEMA
from strandline.catalog.commands.tables import DEFAULT_ZONE
from strandline.catalog.follower import DELAY, SKEW
from strandline.durable.state import ENVIRONMENT, Initialize, new_environment_id
from strandline.durable.transaction import Transaction
from strandline.model.bookkeeping import ConfigEntry
from strandline.model.descriptors import (
    DatabaseDescriptor,
    PrincipalType,
    SchemaDescriptor,
    ZoneDescriptor,
)

SYSTEM = "system"
"""The owner of what no person made, and the author of what no person did."""


def initial_catalog(
    *, delay_ms: int, skew_ms: int, default_location: str, environment: str | None = None
) -> Initialize:
    """What fills a new catalog: the default database, schema and zone, and its configuration.

    ``delay_ms`` and ``skew_ms`` can never be changed afterwards. ``default_location`` is the URI of
    the folder for tables of the default schema.
    """

    def initialize(transaction: Transaction) -> None:
        with transaction.entry("initialize", {"database": DEFAULT_DATABASE}):
            transaction.put(ConfigEntry(ENVIRONMENT, environment or new_environment_id()))
            transaction.put(ConfigEntry(DELAY, str(delay_ms)))
            transaction.put(ConfigEntry(SKEW, str(skew_ms)))
            database, schema, zone = transaction.allocate_id(amount=3)
            transaction.put(DatabaseDescriptor(database, DEFAULT_DATABASE, SYSTEM))
            transaction.put(
                SchemaDescriptor(
                    id=schema,
                    database_id=database,
                    name=DEFAULT_SCHEMA,
                    owner="public",
                    owner_type=PrincipalType.ROLE,
                    comment="Default Hive database",
                    location=default_location,
                )
            )
            transaction.put(ZoneDescriptor(zone, DEFAULT_ZONE, SYSTEM))

    return initialize
