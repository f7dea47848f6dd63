"""Shared by the tests of undoing: undoing through a manager, and contents as users see them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from strandline.catalog import Applied, Catalog, CatalogManager, Command
from strandline.catalog.undo.reading import read_undo, read_undrop
from strandline.durable.collections import COLLECTIONS
from strandline.model.descriptors import SchemaVersion, TableDescriptor
from tests.catalog.scenario import Made, Scenario
from tests.catalog.test_scenarios import ALL, commands_of

MADE = {
    f"{module}: {scenario.name}": scenario
    for module, scenario in ALL
    if isinstance(scenario.expect, Made)
}
"""The scenarios that make a version, by module and name."""


def before_and_after(manager: CatalogManager, scenario: Scenario) -> tuple[Catalog, Catalog]:
    """Run a scenario; returns the catalogs before and after the version that it is about."""
    for step in scenario.setup:
        manager.execute(commands_of(step, manager.present()), author="ann")
    before = manager.present()
    manager.execute(commands_of(scenario.run, before), author="ann")
    return before, manager.present()


def run(manager: CatalogManager, *commands: Command, author: str = "ann") -> int:
    """Execute a batch; returns its version."""
    return manager.execute(list(commands), author=author).version


def undo(manager: CatalogManager, version: int, *, author: str = "ann") -> Applied:
    """Undo ``version`` as the metastore does, but without folders."""
    return _checked(manager, manager.execute(read_undo(manager, version), author=author))


def undrop(manager: CatalogManager, name: str, *, kind: str = "table") -> Applied:
    return _checked(manager, manager.execute(read_undrop(manager, kind, name), author="ann"))


def _checked(manager: CatalogManager, executed: Applied) -> Applied:
    """Return ``executed``. Fail unless each entry changes the kind that its verb names."""
    (update,) = (
        manager.updates(executed.version, executed.version + 1)
        if any(executed.applied)
        else (None,)
    )
    for entry in update.entries if update else ():
        action, _, kind = entry.verb.partition("_")
        if action in ("rename", "restore", "drop") and kind in COLLECTIONS:
            assert kind in {change.kind for change in entry.changes}, f"a {entry.verb} of no {kind}"
    return executed


BOOKS = frozenset(
    {"id_allocator", "fence", "setting", "timestamp", "system_object_fingerprint", "config"}
)
"""The kinds of bookkeeping objects. One `ConfigEntry` is an exception: the default zone."""


def objects(catalog: Catalog) -> dict[tuple[str, bytes], Any]:
    """Every object that users created, by kind and key."""
    return {
        (kind, declared.key(stored)): stored.value
        for kind, declared in COLLECTIONS.items()
        for stored in catalog.contents.objects(kind)
        if kind not in BOOKS or stored.name == "default_zone"
    }


def visible(catalog: Catalog) -> dict[tuple[str, bytes], Any]:
    """Every object that users created, without counters, by kind and key."""
    return {key: uncounted(value) for key, value in objects(catalog).items()}


def uncounted(value: Any) -> Any:
    if isinstance(value, TableDescriptor):
        latest = (SchemaVersion(0, value.columns),)
        return replace(value, schema_versions=latest, next_column_id=0)
    return value
