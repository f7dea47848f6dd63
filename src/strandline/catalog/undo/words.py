"""What the history calls the steps of an undo, and how a refusal names what came after."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from strandline.catalog.catalog import Catalog
from strandline.catalog.object_names import described, spoken
from strandline.catalog.undo.net import Target, target_of, value_of
from strandline.durable.collections import COLLECTIONS, collection_of, id_key
from strandline.durable.update import Update

NOT_KEPT = frozenset({"location", "location_given", "instead_of", "data", "undoes"})
"""Arguments of an entry that do not hold for the step that takes it back."""

_SHOWN = 3


def inverse(verb: str) -> str:
    """The verb of what takes back an entry of that verb, where no command does it."""
    if verb == "index_removed":
        return "restore_index"
    action, _, noun = verb.partition("_")
    if action == "drop":
        return f"restore_{noun}"
    if action == "rename" and noun in COLLECTIONS:
        return verb
    if action == "undo":
        return f"redo_{noun}"
    return f"undo_{noun}" if action == "redo" else f"undo_{verb}"


def named_then(catalog: Catalog, value: Any, updates: Iterable[Update]) -> str:
    """``table shop.orders``; by the name that its schema had where one of ``updates`` dropped that.

    ``value`` is a descriptor of any kind.
    """
    schema_id = getattr(value, "schema_id", None)
    if schema_id is not None and catalog.schema_by_id(schema_id) is None:
        schema = Target("schema", id_key(schema_id))
        for change in (change for update in updates for change in update.changes()):
            if target_of(change) == schema and change.old is not None:
                name = value_of(change.kind, change.old).name
                return f"{spoken(collection_of(value).kind)} {name}.{value.name}"
    return described(catalog, value)


def listed(updates: Sequence[Update], target: Target) -> str:
    """``version 19 by bob (add columns) and version 17 by ann (…)``, the newest first."""
    said = []
    for update in updates[: -_SHOWN - 1 : -1]:
        entries = (entry for entry in update.entries if target in map(target_of, entry.changes))
        verbs = dict.fromkeys(entry.verb.replace("_", " ") for entry in entries)
        said.append(f"version {update.version} by {update.author} ({', '.join(verbs)})")
    more = len(updates) - len(said)
    return " and ".join(said) + (f" and {more} before" if more else "")
