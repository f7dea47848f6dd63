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

A table that gets another location (`relocation`) has a mark of its own among the unfinished moves.
The folders of its partitions stay, and rows with whole places replace those with relative ones.
Among the moves, `kept_places` leads back from these rows: read as of a version at which the table
was managed, or brought back when it is managed again, a partition follows the table's folder.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from sqlalchemy import Connection

from strandline.metastore.store.warehouse import relative_location
from strandline.model.places import DROPPED
from strandline.sql import change, change_each, in_lists, run

_MOVE = "location, up_to_row, target, target_row"
_NO_ROW = 0
PURGED = ""
"""The target of a dropped partition whose files were deleted with it."""
_KEY = re.compile("(?:^|(?<=/))[^=/]+=")
_ESCAPE = re.compile("%[0-9a-f]{2}")


def name_of(location: str) -> str:
    """The name of the partition whose own folder is at ``location``.

    Clients write the keys in the folder as the table spells them; names have them in lower case.
    """
    return _KEY.sub(lambda key: _ESCAPE.sub(lambda e: e[0].upper(), key[0].lower()), location)


class PartitionMove(NamedTuple):
    """One move. It applies to rows with this ``location`` and ids up to ``up_to_row``.

    With ``target_row``, the partition was renamed or brought back: that row has the location
    ``target``. Without it, ``target`` is a place aside, relative to the warehouse, or `PURGED`; or,
    if the move is unfinished and `undoes_rename`, the location of the row ``up_to_row``. The mark
    of a `relocation` applies to no row.
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

    @property
    def is_relocation(self) -> bool:
        """Whether this is not a move, but the mark of a `relocation`."""
        return self.up_to_row == _NO_ROW

    @property
    def kept_rows(self) -> range:
        """The ids of the rows if this is not a move, but the record of `kept_places`."""
        end = self.up_to_row + 1
        return range(end if self.target_row is None else self.target_row, end)


def kept_places(location: str, row_ids: Sequence[int]) -> PartitionMove:
    """The record that rows with whole places are about folders in that of the table, ``location``.

    As a move, it moves nothing: releases up to 0.20.0 read it so.
    """
    return PartitionMove(location, row_ids[-1], location, row_ids[0])


def relocation(location: str) -> PartitionMove:
    """The mark of a table while it gets another location than ``location``; no folder moves.

    Meanwhile its partitions have their whole places in their rows.
    """
    return PartitionMove(location, _NO_ROW, location)


class PartitionMoves:
    """All moves of one table."""

    def __init__(self, moves: Iterable[PartitionMove]) -> None:
        self._moves: dict[str, list[PartitionMove]] = {}
        self._kept_places: list[tuple[range, str]] = []
        for move in sorted(moves, key=lambda move: move.up_to_row):
            if move.kept_rows:
                self._kept_places.append((move.kept_rows, move.location))
            self._moves.setdefault(move.location, []).append(move)

    def location_of(self, row_id: int, location: str) -> str:
        """The location in a row, relative if `kept_places` says that. For a managed table."""
        for row_ids, of_table in self._kept_places:
            if row_id in row_ids:
                return relative_location(of_table, location)
        return location

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


def note(connection: Connection, table_id: int, moves: Iterable[PartitionMove]) -> None:
    """Record moves of partitions of a table whose folders have been moved."""
    change_each(
        connection,
        "INSERT INTO partition_move (table_id, location, up_to_row, target, target_row)"
        " VALUES (?, ?, ?, ?, ?)",
        [(table_id, *move) for move in moves],
    )


def begin(connection: Connection, table_id: int, moves: Iterable[PartitionMove]) -> None:
    """Mark moves as unfinished, also if another process has marked them and did not end."""
    change_each(
        connection,
        "INSERT INTO unfinished_move (table_id, location, up_to_row, target) VALUES (?, ?, ?, ?)"
        " ON CONFLICT (table_id, location, up_to_row) DO UPDATE SET target = excluded.target",
        [(table_id, move.location, move.up_to_row, move.target) for move in moves],
    )


def unfinished(connection: Connection, table_id: int) -> list[PartitionMove]:
    """The moves aside of a table whose folders may not have been moved yet."""
    of_table = "SELECT location, up_to_row, target FROM unfinished_move WHERE table_id = ?"
    return [PartitionMove(*row) for row in run(connection, of_table, (table_id,))]


def all_unfinished(connection: Connection) -> frozenset[tuple[int, PartitionMove]]:
    """Each unfinished move, with the id of its table."""
    rows = run(connection, "SELECT table_id, location, up_to_row, target FROM unfinished_move")
    return frozenset((table_id, PartitionMove(*move)) for table_id, *move in rows)


def finish(connection: Connection, table_id: int, moves: Iterable[PartitionMove]) -> None:
    """Record that the folders of these moves are no longer at their old places."""
    change_each(
        connection,
        "DELETE FROM unfinished_move WHERE table_id = ? AND location = ? AND up_to_row = ?",
        [(table_id, move.location, move.up_to_row) for move in moves],
    )


def return_(connection: Connection, table_id: int, move: PartitionMove, row_id: int) -> None:
    """Turn a move aside into one back to its location, from which on the row's moves apply."""
    change_each(
        connection,
        "UPDATE partition_move SET target = location, target_row = ?"
        " WHERE table_id = ? AND location = ? AND up_to_row = ?",
        [(row_id, table_id, move.location, move.up_to_row)],
    )
    finish(connection, table_id, [move])


def forget_rows(connection: Connection, table_id: int, row_ids: Iterable[int]) -> None:
    """Delete the moves of partitions whose rows were deleted, with all older rows of the table.

    `kept_places` stays: it is about other rows too.
    """
    for in_list, ids in in_lists(row_ids):
        of_rows = (
            f"DELETE FROM partition_move WHERE table_id = ? AND up_to_row IN {in_list}"
            " AND coalesce(target_row, up_to_row + 1) > up_to_row"
        )
        change(connection, of_rows, (table_id, *ids))


def of_table(connection: Connection, table_id: int) -> PartitionMoves:
    statement = f"SELECT {_MOVE} FROM partition_move WHERE table_id = ?"
    return PartitionMoves(PartitionMove(*row) for row in run(connection, statement, (table_id,)))


def of_all_tables(connection: Connection) -> dict[int, set[PartitionMove]]:
    """The moves of folders, without `kept_places`, by table."""
    moves: dict[int, set[PartitionMove]] = {}
    for table_id, *columns in run(connection, f"SELECT table_id, {_MOVE} FROM partition_move"):
        move = PartitionMove(*columns)
        if not move.kept_rows:
            moves.setdefault(table_id, set()).add(move)
    return moves
