"""What transactions need to know of the catalog, and nothing more.

A transaction reads and writes under one catalog version and is judged by another at its commit.
For that it asks for catalogs by time and by version, and looks at a few attributes of the tables
it wrote. The keeper of the catalogs is handed in and fits by shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from sqlalchemy import Connection

from strandline.catalog import Behind
from strandline.clock import Timestamp

__all__ = ["Behind", "CatalogVersion", "CatalogView", "ColumnView", "TableView"]


class ColumnView(Protocol):
    """A column; ``id`` is the same for life, ``type`` is compared by value."""

    @property
    def id(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def type(self) -> object: ...
    @property
    def nullable(self) -> bool: ...


class TableView(Protocol):
    """A table; ``primary_key`` and ``partition_columns`` are column ids."""

    @property
    def id(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> object: ...
    @property
    def transactional(self) -> bool: ...
    @property
    def columns(self) -> Sequence[ColumnView]: ...
    @property
    def primary_key(self) -> tuple[int, ...]: ...
    @property
    def partition_columns(self) -> tuple[int, ...]: ...


class CatalogVersion(Protocol):
    """One version of the catalog."""

    @property
    def version(self) -> int: ...
    def table_by_id(self, table_id: int, /) -> TableView | None: ...


class CatalogView(Protocol):
    """Where catalogs come from."""

    def catalog_at(self, connection: Connection, at: Timestamp, /) -> CatalogVersion:
        """The catalog active at ``at``. Never waits.

        Raises `Behind` when it cannot be told yet: the head of the log, read on ``connection`` if
        it lies in that database, is not applied here, or no look at the log reaches up to ``at``.
        """

    def catch_up(self, *, timeout: float) -> None:
        """Look at the log and apply it, within ``timeout`` seconds; called after `Behind`."""

    def catalog(self, version: int, /) -> CatalogVersion:
        """That version. Never waits; raises `Behind` where it is not applied here yet.

        Raises `VersionNotFound` below the readable history.
        """
