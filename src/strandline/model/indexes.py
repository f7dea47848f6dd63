"""Indexes: named ways into a table, and the life that each goes through.

::

    (none) ── CREATE INDEX on a table that was there ──▶ REGISTERED ──▶ BUILDING ──▶ AVAILABLE
    (none) ── made with its table ─────────────────────────────────────────────────▶ AVAILABLE
    AVAILABLE ── DROP INDEX ──▶ STOPPING ── remove ──▶ (gone)
    REGISTERED, BUILDING ── DROP INDEX ──▶ (gone)          any ── DROP TABLE ──▶ (gone)

A stopping index still serves those who began before it was dropped. It no longer occupies its name.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class IndexKind(Enum):
    """HASH finds equal values, SORTED ranges too."""

    HASH = 1
    SORTED = 2


class IndexStatus(Enum):
    """Where an index is in its life; see the module."""

    REGISTERED = 1
    BUILDING = 2
    AVAILABLE = 3
    STOPPING = 4


class Collation(Enum):
    """How one column of a sorted index is ordered."""

    ASC_NULLS_FIRST = 1
    ASC_NULLS_LAST = 2
    DESC_NULLS_FIRST = 3
    DESC_NULLS_LAST = 4


@dataclass(frozen=True, slots=True)
class IndexColumn:
    """A column of an index by its id; ``collation`` is None in a hash index."""

    column_id: int
    collation: Collation | None = None


@dataclass(frozen=True, slots=True)
class IndexDescriptor:
    """An index. It stands in the schema of its table, and its name is unique there while alive."""

    id: int
    schema_id: int
    name: str
    owner: str
    table_id: int
    kind: IndexKind
    columns: tuple[IndexColumn, ...]
    status: IndexStatus
    unique: bool = False
    created_with_table: bool = False

    @property
    def alive(self) -> bool:
        """Whether it has its name: anything but stopping."""
        return self.status is not IndexStatus.STOPPING
