"""What tests of undoing share: undoing through a manager, and contents as people see them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from strandline.catalog import Applied, Catalog, CatalogManager
from strandline.catalog.differences import is_bookkeeping
from strandline.catalog.undo_reading import read_undo, read_undrop
from strandline.durable.collections import COLLECTIONS
from strandline.model.descriptors import SchemaVersion, TableDescriptor


def undo(manager: CatalogManager, version: int, *, author: str = "ann") -> Applied:
    """Undo ``version`` as the metastore does, folders aside."""
    return manager.execute(read_undo(manager, version), author=author)


def undrop(manager: CatalogManager, name: str, *, kind: str = "table") -> Applied:
    return manager.execute(read_undrop(manager, kind, name), author="ann")


def visible(catalog: Catalog) -> dict[tuple[str, bytes], Any]:
    """Every object that people made, without what only counts: by kind and key."""
    found = {}
    for kind, declared in COLLECTIONS.items():
        for stored in catalog.contents.objects(kind):
            if not is_bookkeeping(kind, stored.name):
                found[kind, declared.key(stored)] = uncounted(stored.value)
    return found


def uncounted(value: Any) -> Any:
    if isinstance(value, TableDescriptor):
        latest = (SchemaVersion(0, value.columns),)
        return replace(value, schema_versions=latest, next_column_id=0)
    return value
