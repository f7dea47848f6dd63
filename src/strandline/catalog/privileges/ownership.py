"""Everything that somebody owns.

Owners stand in objects as names, so that a user needs no role to own what he made. Nothing is kept
sorted by owner: only dropping or renaming a role asks, which is rare. Each object is asked then,
without decoding it: its owner stands in its record right behind what finds it (id, parent, name and
group, see `strandline.wire.stored`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from strandline.durable.collections import COLLECTIONS, Collection
from strandline.durable.contents import Contents
from strandline.model.identifiers import normalize
from strandline.wire.codecs import TEXT
from strandline.wire.registry import open_record
from strandline.wire.stored import AnyStored

OWNED_KINDS = tuple(
    one for one in COLLECTIONS.values() if "owner" in one.of.__dataclass_fields__ and one.has_id
)
"""The kinds of objects that have an owner."""


def owned_by(contents: Contents, name: str) -> Iterator[tuple[str, Any]]:  # Any: descriptors
    """The kind and the descriptor of everything that the user or role ``name`` owns."""
    wanted = normalize(name)
    for kind in OWNED_KINDS:
        for stored in contents.objects(kind.kind):
            if normalize(owner_of(kind, stored)) == wanted:
                yield kind.kind, stored.value


def owner_of(kind: Collection, stored: AnyStored) -> str:
    """The owner in the record of an object."""
    _, reader = open_record(stored.data)
    reader.uint()
    reader.uint()
    TEXT.read(reader)
    if kind.group is not None:
        reader.uint()
    return TEXT.read(reader)
