"""Moves of partition folders that a process left unfinished, and tables that get another location.

A change of partitions marks its moves before it makes them (`partition_moves`). If its process
dies, a node that starts or runs carries them out here. A table that gets another location has such
a mark too: its partitions stay where they are, and if the process dies, a node stores their places
as the table then needs them.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Set
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial

from strandline.errors import (
    CorruptData,
    IncompatibleFormat,
    ObjectNotFound,
    StrandlineError,
    UnknownOutcome,
    WriteConflict,
)
from strandline.metastore.metastore import Metastore
from strandline.metastore.partition_places import PartitionPlaces
from strandline.metastore.store.partition_moves import PartitionMove, kept_places, relocation
from strandline.metastore.store.rows import NewRow, PartitionRow, Row, RowKind
from strandline.metastore.store.warehouse import relative_location, resolve_location
from strandline.model.descriptors import TableDescriptor, TableKind
from strandline.model.privileges import SYSTEM_NAME

logger = logging.getLogger(__name__)


def finish_partition_moves(
    metastore: Metastore, unfinished: Collection[tuple[int, PartitionMove]] | None = None
) -> None:
    """Finish moves that a killed process left unfinished in present tables, by default all.

    Those of a table with a damaged partition, or that was dropped meanwhile, stay unfinished.
    """
    store, catalog = metastore.store.sql_store, metastore.catalogs.latest_catalog()
    moves: dict[int, set[PartitionMove]] = {}
    for table_id, move in store.unfinished_moves() if unfinished is None else unfinished:
        moves.setdefault(table_id, set()).add(move)
    for table_id, moves_of_table in moves.items():
        table = catalog.table_by_id(table_id)
        if table is not None:
            try:
                _finish_moves_of(metastore, table, moves_of_table)
            except (CorruptData, IncompatibleFormat, ObjectNotFound, WriteConflict):
                # Other tables, and the node that starts, must not wait for the repair of this one.
                logger.warning(
                    "moves of partitions of %s stay unfinished",
                    catalog.qualified_name(table),
                    exc_info=True,
                )


def _finish_moves_of(
    metastore: Metastore, table: TableDescriptor, moves: Set[PartitionMove]
) -> None:
    relocations = {move for move in moves if move.is_relocation}
    for mark in relocations:
        _end_relocation(metastore, table.id, mark, author=SYSTEM_NAME)
    location = metastore.location(table)
    places = PartitionPlaces(table, location=location, folders=metastore.folders)
    places.finish_moves(metastore.store.sql_store, moves - relocations)


class UnfinishedMoves:
    """Finishes the moves that other processes left unfinished, while this one runs."""

    def __init__(self, metastore: Metastore) -> None:
        self._metastore = metastore
        self._seen: frozenset[tuple[int, PartitionMove]] = frozenset()
        self._tried: frozenset[tuple[int, PartitionMove]] = frozenset()

    def finish(self) -> None:
        """Finish what two calls in a row have seen. What the system refuses is tried only once.

        The node calls this periodically. Meanwhile, readers do not find the folder of a partition
        whose rename was not committed. Moves in a dropped table wait until it is restored.
        """
        catalog = self._metastore.catalogs.latest_catalog()
        unfinished = frozenset(
            move
            for move in self._metastore.store.sql_store.unfinished_moves()
            if catalog.table_by_id(move[0]) is not None
        )
        unfinished_again = (unfinished & self._seen) - self._tried
        if unfinished_again:
            finish_partition_moves(self._metastore, unfinished_again)
        self._tried = (self._tried | unfinished_again) & unfinished
        self._seen = unfinished


@contextmanager
def partitions_staying(
    metastore: Metastore, table: TableDescriptor, *, location: str, author: str
) -> Iterator[None]:
    """For a block that gives the table another location: its partitions stay where they are.

    Their whole places are stored before the block, so that no reader looks for them below the new
    location. If the process dies, another one does what remains.
    """
    mark = relocation(location)
    places = PartitionPlaces(table, location=location, folders=metastore.folders)
    metastore.store.sql_store.begin_moves(table.id, [mark])
    try:
        _store_places(metastore, table.id, mark, author=author, staying=places)
        yield
    except UnknownOutcome:
        raise
    except BaseException:
        with suppress(StrandlineError):
            _end_relocation(metastore, table.id, mark, author=author)
        raise
    try:
        # Others may have been added or altered before the table got its new location.
        _end_relocation(metastore, table.id, mark, author=author)
    except StrandlineError as error:
        raise UnknownOutcome(
            f"table {table.name} has its new location, but partitions that were added meanwhile may"
            f" be looked for there; set their locations ({error.message})"
        ) from error


def _end_relocation(
    metastore: Metastore, table_id: int, mark: PartitionMove, *, author: str
) -> None:
    """Store the places of partitions as the present table needs them, and remove the mark.

    They follow the folder of a managed table, and stay where they are if it is external by now. The
    mark of a table that was dropped stays until that is restored.
    """
    if metastore.catalogs.latest_catalog().table_by_id(table_id) is None:
        return
    _store_places(metastore, table_id, mark, author=author)
    metastore.store.sql_store.finish_moves(table_id, {mark}, lambda marks, *_: marks)


def _store_places(
    metastore: Metastore,
    table_id: int,
    mark: PartitionMove,
    *,
    author: str,
    staying: PartitionPlaces | None = None,
) -> None:
    """Store the places of the partitions ``staying`` in full, or all as the table needs them."""

    def new_rows(rows: Iterable[Row]) -> dict[str, tuple[int, NewRow]]:
        """By name, the row that changes, and the row that replaces it."""
        table = metastore.catalogs.latest_catalog().table_by_id(table_id)
        is_managed = table is not None and table.kind is TableKind.MANAGED
        follows = staying is None and is_managed
        stored = partial(relative_location if follows else resolve_location, mark.location)
        partitions = ((row, row.as_(PartitionRow)) for row in rows)
        return {
            row.name: (row.row_id, row.replaced_by(replace(partition, location=location)))
            for row, partition in partitions
            if (location := stored(partition.location)) != partition.location
        }

    # Not from memory, which may not have those that another node has just added.
    names = new_rows(metastore.store.sql_store.rows(table_id, RowKind.PARTITION, write_ids=None))
    if names:
        with metastore.store.change(table_id, author=author) as change:
            # Read again: the table may have got its location meanwhile.
            rows = change.visible(RowKind.PARTITION, names.keys())
            if staying is not None:
                staying.require_present(change)
                staying.return_folders(change, rows.values())
            new_ids = change.replace(dict(new_rows(rows.values()).values()))
            if new_ids:
                change.record_moves(kept_places(mark.location, new_ids))
