"""Numbers that are given one after the other, from a row of the database.

They are taken in a write transaction, whose lock nobody shares, and are given back with it. In a
file that is one statement. To a server the last number is one of the statements that a write begins
with, and the new one goes with its commit: so a number costs no round trip.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection

from strandline.sql.statements import Query, change_each, run_all, value


class Counter:
    """The last number given, in ``column`` of the row 1 of ``table``; no row for 0.

    ``zeros`` are the columns that are 0 in a new row.
    """

    def __init__(self, table: str, column: str, *, zeros: Sequence[str] = ()) -> None:
        columns = ", ".join(("id", column, *zeros))
        put = (
            f"INSERT INTO {table} ({columns}) VALUES (1, ?{', 0' * len(zeros)})"
            f" ON CONFLICT (id) DO UPDATE SET {column} ="
        )
        self._put = f"{put} excluded.{column}"
        self._take = f"{put} {table}.{column} + excluded.{column} RETURNING {column}"
        self.ahead: Query = f"SELECT {column} FROM {table} WHERE id = 1", ()
        """What `take` asks first."""

    @staticmethod
    def take(connection: Connection, *counts: tuple[Counter, int]) -> list[int]:
        """Take so many numbers of each counter, which follow each other; the last one of each."""
        if connection.dialect.name == "sqlite":
            return [int(value(connection, of._take, (count,))) for of, count in counts]
        # All are read before one is changed: behind a change, nothing counts that was read ahead.
        answers = run_all(connection, *(of.ahead for of, _ in counts))
        taken = []
        for (of, count), rows in zip(counts, answers, strict=True):
            taken.append((rows[0][0] if rows else 0) + count)
            change_each(connection, of._put, [(taken[-1],)])
        return taken
