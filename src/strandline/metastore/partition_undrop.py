"""Undoing the drop of partitions of plain tables: their rows and folders come back."""

from __future__ import annotations

from collections.abc import Collection

from strandline.errors import AlreadyExists, InvalidInput, ObjectNotFound
from strandline.metastore.interface import ResolvedTable
from strandline.metastore.metastore import Metastore
from strandline.metastore.partition_places import PastPlaces
from strandline.metastore.store.rows import Row
from strandline.metastore.store.staging import Staging
from strandline.metastore.store.warehouse import FolderMoves


def undrop_partitions(
    metastore: Metastore, resolved: ResolvedTable, names: Collection[str], *, author: str
) -> list[str]:
    """Restore partitions of a plain table, each as it was when it was last dropped.

    ``names`` are like ``year=2013/month=1``. Without names, restores all partitions of the last
    drop: those that one statement dropped, even by several requests, and that do not exist again.
    Returns the names. Raises `ObjectNotFound` if none was dropped or the files are gone,
    `AlreadyExists` if a named one exists, or all do, and `IllegalChange` if other files are in its
    folder, or its location is that of another partition.
    """
    table, location = resolved.descriptor, resolved.location
    if table.transactional or not table.partition_columns:
        raise InvalidInput(f"{resolved.name} has no partitions that could be dropped")

    def read(change: Staging) -> tuple[PastPlaces, list[Row], list[Row]]:
        # Read under the write lock: a drop or a rename would add moves meanwhile.
        moves = change.partition_moves()
        places = PastPlaces(table, location=location, folders=metastore.folders, moves=moves)
        places.require_present(change)
        places.require_kind(change, metastore.catalogs)
        rows, statistics = _to_restore(change, places, names, resolved.name)
        places.refuse_shared(rows, change)
        return places, rows, statistics

    with metastore.store.change(table.id, author=author) as change:
        places, rows, _ = read(change)
    undone = places.undone_by(metastore.store.sql_store, places.moves_aside(rows))
    with undone, metastore.store.change(table.id, author=author) as change:
        places, rows, statistics = read(change)
        places.require_begun(change, places.moves_aside(rows))
        moves = FolderMoves(metastore.folders, change.if_undone)
        for row in rows:
            places.bring_back(row, moves)
        moves.sync()
        new_rows = [row.replaced_by(places.restored(row)) for row in rows]
        new_rows += [row.replaced_by(row.content) for row in statistics]
        new_row_ids = change.stage(add=new_rows)  # those of the statistics are last
        for row, new_row_id in zip(rows, new_row_ids, strict=False):
            places.record_return(change, row, new_row_id)
    return sorted(row.name for row in rows)


def _to_restore(
    change: Staging, places: PastPlaces, names: Collection[str], shown_name: str
) -> tuple[list[Row], list[Row]]:
    """The rows of the partitions to restore, and of their statistics; see `undrop_partitions`."""
    rows, statistics = change.dropped_partitions(names or None)
    rows = [row for row in rows if not places.was_renamed(row)]
    missing = sorted(set(names) - {row.name for row in rows})
    if missing or not rows:
        what = " ".join(["partition", *missing[:1]])
        raise ObjectNotFound(f"no dropped {what} of {shown_name} is kept")
    existing_rows = change.visible(rows[0].kind, [row.name for row in rows])
    if existing_rows and (names or len(existing_rows) == len(rows)):
        raise AlreadyExists(
            f"partition {min(existing_rows)} of {shown_name} already exists; drop or rename it "
            "first"
        )
    rows = [row for row in rows if row.name not in existing_rows]
    restored = {row.name for row in rows}
    return rows, [row for row in statistics if row.name in restored]
