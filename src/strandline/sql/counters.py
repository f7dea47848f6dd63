"""Consecutive numbers from a row of the database.

Numbers are taken in a write transaction, which holds the write lock. If it is rolled back, so are
the numbers. For a file this is one statement. For a server, the write reads the last number among
its first statements and writes the new one with its commit, so a number costs no extra round trip.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection

from strandline.sql.statements import Query, change_each, run_all, value


class Counter:
    """The last number given, in ``column`` of row 1 of ``table``; without that row it is 0.

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
        """The query that `take` runs first on a server."""

    @staticmethod
    def take(connection: Connection, *counts: tuple[Counter, int]) -> list[int]:
        """Take that many consecutive numbers of each counter. Returns the last one of each."""
        if connection.dialect.name == "sqlite":
            return [int(value(connection, counter._take, (count,))) for counter, count in counts]
        # Read all before changing one, because a change drops what was read ahead.
        answers = run_all(connection, *(counter.ahead for counter, _ in counts))
        taken = []
        for (counter, count), rows in zip(counts, answers, strict=True):
            taken.append((rows[0][0] if rows else 0) + count)
            change_each(connection, counter._put, [(taken[-1],)])
        return taken
