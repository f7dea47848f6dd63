"""The catalog's own state: what no user made, and keeps the books."""

from __future__ import annotations

from dataclasses import dataclass

from strandline.model.privileges import ObjectKind


@dataclass(frozen=True, slots=True)
class IdAllocator:
    """The next id that ``name`` will give."""

    name: str
    next_id: int


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """A fact about the catalog itself, fixed at its creation or moved by its own code only."""

    name: str
    value: str


@dataclass(frozen=True, slots=True)
class FenceEntry:
    """The fence token as the catalog's own row; ``name`` is always ``catalog``."""

    name: str
    deploy_generation: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Setting:
    """A note that the program leaves for later releases of itself."""

    name: str
    value: str


@dataclass(frozen=True, slots=True)
class SystemConfiguration:
    """A parameter of the whole catalog that people set: ``max_tables``, ``history_retention``, …"""

    name: str
    value: str


@dataclass(frozen=True, slots=True)
class TimestampEntry:
    """A named time that only moves forward, as a 64-bit timestamp."""

    name: str
    time: int


@dataclass(frozen=True, slots=True)
class SystemObjectFingerprint:
    """What definition of a system object the catalog holds; ``name`` is ``schema.object``."""

    name: str
    object_id: int
    object_kind: ObjectKind
    fingerprint: str


@dataclass(frozen=True, slots=True)
class Comment:
    """A comment on an object that has no place for it of its own.

    ``name`` is ``kind/id``, the key (`comment_name`). Schemas, tables, views and columns carry
    their comments themselves.
    """

    name: str
    object_kind: ObjectKind
    object_id: int
    text: str


def comment_name(object_kind: ObjectKind, object_id: int) -> str:
    """The key of a `Comment`."""
    return f"{object_kind.name.lower()}/{object_id}"


@dataclass(frozen=True, slots=True)
class StorageUsageEvent:
    """How many bytes a table took at some moment, in milliseconds since 1970. Append-only."""

    table_id: int
    size_bytes: int
    collected: int
