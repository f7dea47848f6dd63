"""The moves of partition folders: where folders are that are no longer where their rows say.

A row of a partition contains its location and never changes. When the partition is dropped, its
folder is moved aside; when it is renamed, its folder is renamed. Readers of the past, and a drop
that is undone, must still find the folder. So each move is a fact of its own:

    location L in the rows of table T up to row R is at X now

"Up to row R", because row ids grow: a partition that is created at L later has a larger id, and the
move does not apply to it. A move within the same table (a rename, or the return of a partition that
was dropped) has a target row, from which on the moves of its target apply. A place aside is stored
relative to the warehouse, so that a copied store finds its own folders.

The SQL transaction that drops or renames the partition writes the move. The folder of a dropped
partition is moved after that, and may stay where it was if the process dies or the system refuses.
So a reader looks for the folder aside first, and then at its old place. Until the folder is moved,
a row marks the move as *unfinished*: a node that runs or starts finishes it, and until then no
partition is created at that location, because it would show the files of the dropped one.

A rename, and the return of a dropped partition, move the folder before they commit. So before that,
they mark the opposite move as unfinished (`begin`), and their commit removes the mark. If the
process dies in between, a node moves the folder back soon, or before a change of the partition.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, delete, insert, select, update

from strandline.metastore.store.tables import PARTITION_MOVE, UNFINISHED_MOVE
from strandline.model.places import DROPPED
from strandline.sql import chunks

_MOVE = tuple(PARTITION_MOVE.c[name] for name in ("location", "up_to_row", "target", "target_row"))
PURGED = ""
"""The target of a dropped partition whose files were deleted with it."""
_KEY = re.compile("(?:^|(?<=/))[^=/]+=")
_ESCAPE = re.compile("%[0-9a-f]{2}")


def name_of(location: str) -> str:
    """The name of the partition whose own folder is at ``location``.

    Clients write the keys in the folder as the table spells them; names have them in lower case.
    """
    return _KEY.sub(lambda key: _ESCAPE.sub(lambda e: e[0].upper(), key[0].lower()), location)


@dataclass(frozen=True, slots=True)
class PartitionMove:
    """One move. It applies to rows with this ``location`` and ids up to ``up_to_row``.

    With ``target_row``, the partition was renamed or brought back: that row has the location
    ``target``. Without it, ``target`` is a place aside, relative to the warehouse, or `PURGED`; or,
    if the move is unfinished and `undoes_rename`, the location of the row ``up_to_row``.
    """

    location: str
    up_to_row: int
    target: str
    target_row: int | None = None

    @property
    def aside(self) -> bool:
        """Whether the folder was moved aside or deleted, and not just renamed."""
        return self.target_row is None

    @property
    def undoes_rename(self) -> bool:
        """Whether this is the unfinished move back of a partition that was to be renamed."""
        return self.target != PURGED and DROPPED not in self.target.split("/")


class PartitionMoves:
    """All moves of one table."""

    def __init__(self, moves: Iterable[PartitionMove]) -> None:
        self._moves: dict[str, list[PartitionMove]] = {}
        for move in sorted(moves, key=lambda move: move.up_to_row):
            self._moves.setdefault(move.location, []).append(move)

    def follow(self, location: str, row_id: int) -> tuple[str, PartitionMove | None]:
        """The last location of this row's folder below the table, and its move aside, if any."""
        while True:
            moves = self._moves.get(location, [])
            position = bisect_left(moves, row_id, key=lambda move: move.up_to_row)
            if position == len(moves):
                return location, None
            move = moves[position]
            if move.target_row is None:
                return location, move
            # Each step goes to a younger row, so the loop ends.
            location, row_id = move.target, max(move.target_row, row_id + 1)


def record(connection: Connection, table_id: int, *moves: PartitionMove) -> None:
    """Record moves of partitions of a table; moves aside are unfinished, renames are finished."""
    note(connection, table_id, moves)
    begin(connection, table_id, [move for move in moves if move.aside])
    renames = [move for move in moves if not move.aside]
    finish(connection, table_id, [PartitionMove(m.target, m.up_to_row, "") for m in renames])


def note(connection: Connection, table_id: int, moves: Collection[PartitionMove]) -> None:
    """Record moves of partitions of a table whose folders have been moved."""
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


def begin(connection: Connection, table_id: int, moves: Sequence[PartitionMove]) -> None:
    """Mark moves as unfinished."""
    finish(connection, table_id, moves)  # an undo that another process began, and did not end
    if moves:
        connection.execute(
            insert(UNFINISHED_MOVE),
            [
                {
                    "table_id": table_id,
                    "location": move.location,
                    "up_to_row": move.up_to_row,
                    "target": move.target,
                }
                for move in moves
            ],
        )


def unfinished(connection: Connection, table_id: int) -> list[PartitionMove]:
    """The moves aside of a table whose folders may not have been moved yet."""
    columns = UNFINISHED_MOVE.c
    statement = select(columns.location, columns.up_to_row, columns.target)
    rows = connection.execute(statement.where(columns.table_id == table_id))
    return [PartitionMove(*values) for values in rows]


def all_unfinished(connection: Connection) -> frozenset[tuple[int, str, int]]:
    """The table id, the location and the row of each unfinished move."""
    columns = UNFINISHED_MOVE.c
    rows = connection.execute(select(columns.table_id, columns.location, columns.up_to_row))
    return frozenset((table_id, location, row_id) for table_id, location, row_id in rows)


def finish(connection: Connection, table_id: int, moves: Iterable[PartitionMove]) -> None:
    """Record that the folders of these moves are no longer at their old places."""
    columns = UNFINISHED_MOVE.c
    for move in moves:
        connection.execute(
            delete(UNFINISHED_MOVE)
            .where(columns.table_id == table_id, columns.location == move.location)
            .where(columns.up_to_row == move.up_to_row)
        )


def return_(connection: Connection, table_id: int, move: PartitionMove, row_id: int) -> None:
    """Turn a move aside into one back to its location, from which on the row's moves apply."""
    columns = PARTITION_MOVE.c
    connection.execute(
        update(PARTITION_MOVE)
        .where(columns.table_id == table_id, columns.location == move.location)
        .where(columns.up_to_row == move.up_to_row)
        .values(target=move.location, target_row=row_id)
    )
    finish(connection, table_id, [move])


def forget_rows(connection: Connection, table_id: int, row_ids: Iterable[int]) -> None:
    """Delete the moves of partitions whose rows were deleted, with all older rows of the table."""
    columns = PARTITION_MOVE.c
    for chunk in chunks(row_ids):
        connection.execute(
            delete(PARTITION_MOVE).where(columns.table_id == table_id, columns.up_to_row.in_(chunk))
        )


def of_table(connection: Connection, table_id: int) -> PartitionMoves:
    statement = select(*_MOVE).where(PARTITION_MOVE.c.table_id == table_id)
    return PartitionMoves(PartitionMove(*values) for values in connection.execute(statement))


def of_all_tables(connection: Connection) -> dict[int, set[PartitionMove]]:
    """The moves of each table that has any."""
    moves: dict[int, set[PartitionMove]] = {}
    for table_id, *values in connection.execute(select(PARTITION_MOVE.c.table_id, *_MOVE)):
        moves.setdefault(table_id, set()).add(PartitionMove(*values))
    return moves
