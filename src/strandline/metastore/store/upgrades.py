"""Upgrades of the object store's SQL tables from older releases.

Release 0.2.0 moved the folders of dropped and renamed partitions as this release does, but did not
record the moves: reads of the past looked at the old places. The moves follow from the rows. A
write that removed partitions and added none dropped them, and moved each folder to
``.dropped/<table id>.partitions/<row id>``. A write that added a partition under a name that it did
not remove renamed it. A record of a move that did not happen does no harm: readers also look at the
old place.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterator, Mapping

from sqlalchemy import Connection

from strandline.errors import CorruptData
from strandline.metastore.store import partition_moves, row_queries
from strandline.metastore.store.partition_moves import PartitionMove
from strandline.metastore.store.rows import PartitionRow, Row, RowKind
from strandline.metastore.store.tables import (
    CLEANED_TABLE,
    METADATA,
    NOTIFICATION_SEQUENCE,
    PARTITION_MOVE,
    STORE_ROW,
    STORE_SEQUENCE,
    TABLE_LOCATION,
    UNFINISHED_MOVE,
)
from strandline.model.places import DROPPED
from strandline.sql import run
from strandline.sql.schema_versions import Part, add_indexes

logger = logging.getLogger(__name__)

_WHOLE_OF_2 = (STORE_SEQUENCE, NOTIFICATION_SEQUENCE, PARTITION_MOVE)


def _add_partition_moves_and_indexes(connection: Connection) -> None:
    PARTITION_MOVE.create(connection, checkfirst=True)
    add_indexes(connection, *_WHOLE_OF_2)
    places: dict[int, str] = dict(run(connection, "SELECT table_id, location FROM table_location"))
    for table_id, removed in _removed_partitions(connection).items():
        parent = places.get(table_id, "").rstrip("/").rpartition("/")[0]
        if parent:
            aside = f"{parent.removesuffix(f'/{DROPPED}')}/{DROPPED}/{table_id}.partitions"
            moves = {
                (move.location, move.up_to_row): move
                for write_id, row_ids in removed.items()
                for move in _moves(connection, table_id, write_id, row_ids, aside)
            }
            # Not unfinished: what is at the old place now belongs to a later partition.
            partition_moves.note(connection, table_id, moves.values())


def _removed_partitions(connection: Connection) -> Mapping[int, Mapping[int, list[int]]]:
    """The row ids of partitions that committed writes removed, by table and write id."""
    removed = (
        "SELECT removal.table_id, removal.write_id, removal.row_id FROM store_removal AS removal"
        " JOIN store_row AS stored ON stored.row_id = removal.row_id JOIN txn_write_id AS writer"
        " ON writer.table_id = removal.table_id AND writer.write_id = removal.write_id"
        " WHERE stored.kind = ? AND writer.commit_time IS NOT NULL"
    )
    rows_of_tables: dict[int, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for table_id, write_id, row_id in run(connection, removed, (RowKind.PARTITION.value,)):
        rows_of_tables[table_id][write_id].append(row_id)
    return rows_of_tables


def _moves(
    connection: Connection, table_id: int, write_id: int, row_ids: list[int], aside: str
) -> Iterator[PartitionMove]:
    """Yield the moves of the folders of the partitions that one write removed."""
    removed = row_queries.rows_by_id(connection, row_ids)
    added = row_queries.rows_of_write(connection, table_id, write_id)
    altered = {row.name for row in added if row.kind is RowKind.PARTITION}
    renamed = [
        row
        for row in added
        if row.kind is RowKind.PARTITION and row.name not in {old.name for old in removed.values()}
    ]
    for row in removed.values():
        location = _own_location(row)
        if location is None or row.name in altered:
            continue
        if not renamed:
            yield PartitionMove(location, row.row_id, f"{aside}/{row.row_id}")
        elif len(renamed) == 1 and (target := _own_location(renamed[0])) is not None:
            yield PartitionMove(location, row.row_id, target, renamed[0].row_id)


def _own_location(row: Row) -> str | None:
    """The location of a partition if it is the one that its name gives, else None."""
    try:
        location = row.as_(PartitionRow).location
    except CorruptData as error:
        logger.warning("the former location of partition %s is not known: %s", row.name, error)
        return None
    return location if location.lower() == row.name.lower() else None


def _find_places_and_unfinished_moves(connection: Connection) -> None:
    UNFINISHED_MOVE.create(connection, checkfirst=True)
    add_indexes(connection, TABLE_LOCATION, UNFINISHED_MOVE)


def _add_cleaned_tables(connection: Connection) -> None:
    CLEANED_TABLE.create(connection, checkfirst=True)
    add_indexes(connection, CLEANED_TABLE)


def _change_indexes(connection: Connection) -> None:
    connection.exec_driver_sql("DROP INDEX IF EXISTS store_row_by_name")
    connection.exec_driver_sql("DROP INDEX IF EXISTS table_location_whole")  # others have it all
    add_indexes(connection, STORE_ROW)


PART = Part(
    "metastore",
    5,
    METADATA,
    {
        2: _add_partition_moves_and_indexes,
        3: _find_places_and_unfinished_moves,
        4: _add_cleaned_tables,
        5: _change_indexes,
    },
)
"""Version 2, of release 0.2.1, added ``partition_move`` and indexes that find flipped bytes.

Version 3, of release 0.3.0, added an index of tables by place, and ``unfinished_move``. Version 4,
of release 0.4.0, added ``cleaned_table``. Version 5, of release 0.6.0, added the row id to
``store_row_by_name`` and removed ``table_location_whole``. Since then, SQLite makes some keys
INTEGER; a table that an older release made keeps its key.
"""
