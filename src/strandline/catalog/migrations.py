"""The migrations of the catalog, in order; see `strandline.durable.migrations`."""

from __future__ import annotations

from strandline.catalog.verbs import Verb, declare_verb
from strandline.durable.migrations import MIGRATE, MIGRATIONS, Migration
from strandline.durable.transaction import CatalogTransaction
from strandline.model.descriptors import ConfigEntry


def _note_default_zone(transaction: CatalogTransaction) -> None:
    """Record the id of the default zone, which release 0.1.0 found by its name, ``default``."""
    if transaction.get_named("config", "default_zone") is not None:
        return
    for stored in transaction.contents.objects("zone"):
        if stored.name == "default":
            transaction.put(ConfigEntry("default_zone", str(stored.id)))


MIGRATIONS.append(Migration("note the default zone by its id", _note_default_zone))

declare_verb(Verb(name=MIGRATE, subject="step", why_kept="newer releases rely on it"))
