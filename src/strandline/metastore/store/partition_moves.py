"""Where the folders of partitions are that no longer lie where the rows about them say.

A row of a partition names its place once and never changes. When the partition is dropped its
folder is moved aside, and when it is renamed its folder gets a new name. The rows of the past, and
those that an undone drop brings back, must still be found. So each move is a fact of its own:

    what the rows of table T up to row R call location L, lies at X now

"Up to row R" because row ids grow: a partition that is created at L afterwards has a larger id and
is not meant. A move to another location of the same table says from which row on that location is
followed further. A place aside is kept relative to the warehouse, so that a copied store finds its
own folders.

The fact is written in the SQL transaction that drops or renames the partition. The folder of a
dropped one is moved after that, and may stay where it was, because the process died or the system
refused. A reader therefore looks whether the folder is aside, and else where it was. Until it is
moved, a row says that the move is *unfinished*: a node that starts finishes it, and no partition is
created there before, which would show the files of the dropped one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass

from sqlalchemy import Connection, delete, insert, select

from strandline.metastore.store.tables import PARTITION_MOVE, UNFINISHED_MOVE

_MOVE = tuple(PARTITION_MOVE.c[name] for name in ("location", "up_to_row", "target", "target_row"))
PURGED = ""
"""The target of a partition whose files were deleted when it was dropped."""


@dataclass(frozen=True, slots=True)
class PartitionMove:
    """One fact of the module's. ``location`` is as the rows have it, ``up_to_row`` their last id.

    With ``target_row``, ``target`` is the location that the partition of that row has now. Without
    it, ``target`` is a place aside, relative to the warehouse, or `PURGED`.
    """

    location: str
    up_to_row: int
    target: str
    target_row: int | None = None

    @property
    def aside(self) -> bool:
        """Whether the folder was moved aside or deleted, not just renamed."""
        return self.target_row is None


class PartitionMoves:
    """All moves of one table."""

    def __init__(self, moves: Iterable[PartitionMove]) -> None:
        self._moves: dict[str, list[PartitionMove]] = {}
        for move in sorted(moves, key=lambda move: move.up_to_row):
            self._moves.setdefault(move.location, []).append(move)

    def follow(self, location: str, row_id: int) -> tuple[str, PartitionMove | None]:
        """The last location below the table that this row's folder had, and its move aside."""
        while True:
            moves = self._moves.get(location, [])
            position = bisect_left(moves, row_id, key=lambda move: move.up_to_row)
            if position == len(moves):
                return location, None
            move = moves[position]
            if move.target_row is None:
                return location, move
            # Each step leads to a younger row, so this ends.
            location, row_id = move.target, max(move.target_row, row_id + 1)


def record(connection: Connection, table_id: int, *moves: PartitionMove) -> None:
    """Note moves of partitions of a table."""
    if moves:
        connection.execute(
            insert(PARTITION_MOVE),
            [
                {
                    "table_id": table_id,
                    "location": move.location,
                    "up_to_row": move.up_to_row,
                    "target": move.target,
                    "target_row": move.target_row,
                }
                for move in moves
            ],
        )
    asides = [move for move in moves if move.aside]
    if asides:
        connection.execute(
            insert(UNFINISHED_MOVE),
            [
                {
                    "table_id": table_id,
                    "location": move.location,
                    "up_to_row": move.up_to_row,
                    "target": move.target,
                }
                for move in asides
            ],
        )


def unfinished(connection: Connection, table_id: int) -> list[PartitionMove]:
    """The moves aside of a table whose folders may still be where they were."""
    columns = UNFINISHED_MOVE.c
    statement = select(columns.location, columns.up_to_row, columns.target)
    rows = connection.execute(statement.where(columns.table_id == table_id))
    return [PartitionMove(*values) for values in rows]


def tables_with_unfinished(connection: Connection) -> list[int]:
    """The tables that have `unfinished` moves."""
    return list(connection.execute(select(UNFINISHED_MOVE.c.table_id).distinct()).scalars())


def finish(connection: Connection, table_id: int, moves: Iterable[PartitionMove]) -> None:
    """Say that the folders of these moves are no longer where they were."""
    columns = UNFINISHED_MOVE.c
    for move in moves:
        connection.execute(
            delete(UNFINISHED_MOVE)
            .where(columns.table_id == table_id, columns.location == move.location)
            .where(columns.up_to_row == move.up_to_row)
        )


def forget(connection: Connection, table_id: int, move: PartitionMove) -> None:
    """Take a move back: the folder is where it was before."""
    columns = PARTITION_MOVE.c
    connection.execute(
        delete(PARTITION_MOVE)
        .where(columns.table_id == table_id, columns.location == move.location)
        .where(columns.up_to_row == move.up_to_row)
    )
    finish(connection, table_id, [move])


def of_table(connection: Connection, table_id: int) -> PartitionMoves:
    statement = select(*_MOVE).where(PARTITION_MOVE.c.table_id == table_id)
    return PartitionMoves(PartitionMove(*values) for values in connection.execute(statement))


def of_all_tables(connection: Connection) -> dict[int, set[PartitionMove]]:
    """The moves of each table that has any."""
    moves: dict[int, set[PartitionMove]] = {}
    for table_id, *values in connection.execute(select(PARTITION_MOVE.c.table_id, *_MOVE)):
        moves.setdefault(table_id, set()).add(PartitionMove(*values))
    return moves
