"""Statements that are written once for every dialect and sent directly to the driver.

SQLAlchemy takes a tenth of a millisecond to build and compile a Core expression, and a fiftieth to
wrap an answer. SQLite answers a small statement in three microseconds. So each statement that runs
for a client's request is text, with ``?`` for each parameter, in the SQL that SQLite and PostgreSQL
have in common (``ON CONFLICT``, ``RETURNING``). It is compiled once: SQLite and PostgreSQL both
recognize a statement by its text. So the text is a constant, and all values, including integers,
are parameters.

    run(connection, "SELECT name FROM t WHERE id = ?", (7,))       all rows, as tuples
    first_row(…), value(…)                                         the first row; its first column
    run_in(connection, "SELECT name FROM t WHERE id IN", ids)      the rows for all ids, in parts
    with run_in_parts(…, rows=500) as parts:                       lists of up to 500 rows
    change(connection, "DELETE FROM t WHERE id < ?", (7,))         how many rows it changed
    change_each(connection, "INSERT INTO t (id) VALUES (?)", rows) once for each tuple of parameters
    run_all(connection, (statement, parameters), …)                the rows of each statement
    run_at_commit(connection, "INSERT INTO t … RETURNING id")      rows that arrive with the commit

`run_all` sends statements that do not depend on each other's answers; for a server they are one
round trip. In a write transaction, `change_each` does not wait for an answer: its changes are sent
with the next statement that has one, or with the commit, and raise there. The same holds for the
statement of `run_at_commit`, whose rows are available when the write has ended. `Counter` gives
consecutive numbers with these.

A text quotes column names that are SQL keywords (``"user"``). Values are the driver's: a boolean is
0 or 1 in SQLite. Tables are created, and rare statements of many forms are built, with SQLAlchemy's
Core on the same connection.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import lru_cache
from itertools import chain, islice, repeat
from typing import Any, NamedTuple, TypeVar, cast

from sqlalchemy import Connection

Parameter = str | bytes | int | None
Row = tuple[Any, ...]
Query = tuple[str, tuple[Parameter, ...]]
"""A statement and its parameters."""
T = TypeVar("T")


class Waiting(NamedTuple):
    """A statement to send to a server with the next one, once for each tuple of parameters.

    Its result is added to ``rows``, if given.
    """

    statement: str
    parameters: Sequence[tuple[Parameter, ...]]
    rows: list[Row] | None = None


_MANY = 8
"""From this number of rows on, a server inserts them faster together than one by one."""
_INSERTED_AT_ONCE = 8
CHUNK = 500
"""Names or ids in one statement, since databases limit the parameters of a statement."""


def run(
    connection: Connection, statement: str, parameters: tuple[Parameter, ...] = ()
) -> list[Row]:
    """All rows of ``statement``; an empty list if it returns no rows.

    The text contains no ``?`` and no ``%`` except for its parameters.
    """
    driver = _driver_of(connection)
    if isinstance(driver, sqlite3.Connection):  # SQLite has no waiting or read-ahead statements
        return cast("list[Row]", _sent(driver.cursor(), statement, parameters).fetchall())
    return rows_of(driver, formatted(statement), parameters)


def first_row(
    connection: Connection, statement: str, parameters: tuple[Parameter, ...] = ()
) -> Row | None:
    rows = run(connection, statement, parameters)
    return rows[0] if rows else None


def value(
    connection: Connection, statement: str, parameters: tuple[Parameter, ...] = ()
) -> Any:  # Any: a column of any type
    """The first column of the first row, or None."""
    rows = run(connection, statement, parameters)
    return rows[0][0] if rows else None


@contextmanager
def run_in_parts(
    connection: Connection,
    statement: str,
    parameters: tuple[Parameter, ...] = (),
    *,
    rows: int,
) -> Iterator[Iterator[list[Row]]]:
    """All rows of ``statement``, in lists of up to ``rows``, so that the caller may stop early.

    The statement ends with the block. If the garbage collector ended it, a statement that an error
    interrupted would keep its snapshot, and could outlive its connection.
    """
    text = _text_for(connection, statement)
    with closing(_sent(_driver_of(connection).cursor(), text, parameters)) as cursor:
        yield iter(lambda: cursor.fetchmany(rows), [])


def change(connection: Connection, statement: str, parameters: tuple[Parameter, ...] = ()) -> int:
    """Run an INSERT, UPDATE or DELETE. Returns how many rows it changed."""
    driver = _driver_of(connection)
    if getattr(driver, "read_ahead", None):
        driver.read_ahead = None
    answer = _answered(driver, _text_for(connection, statement), parameters)
    return cast(int, answer.rowcount)


def change_each(
    connection: Connection, statement: str, rows: Sequence[tuple[Parameter, ...]]
) -> None:
    """Run ``statement`` once for each tuple of parameters.

    It has been done, or raises, by the time the next statement is answered or the write commits.
    """
    driver = _driver_of(connection)
    waiting = getattr(driver, "waiting", None)
    if waiting is None:
        _change_each(driver, _text_for(connection, statement), rows)
    elif rows:
        driver.read_ahead = None
        waiting.append(Waiting(statement, rows))


def run_at_commit(
    connection: Connection, statement: str, parameters: tuple[Parameter, ...] = ()
) -> list[Row]:
    """The rows of ``statement``. In a write transaction the list is filled by the commit."""
    driver = _driver_of(connection)
    waiting = getattr(driver, "waiting", None)
    if waiting is None:
        return run(connection, statement, parameters)
    driver.read_ahead = None
    rows: list[Row] = []
    waiting.append(Waiting(statement, [parameters], rows))
    return rows


def _change_each(driver: Any, text: str, rows: Sequence[tuple[Parameter, ...]]) -> Any:
    """Run ``text`` for each of ``rows``. Returns the cursor of the last run, or None."""
    if len(rows) == 1:
        return _sent(driver.cursor(), text, rows[0])
    return _sent(driver.cursor(), text, rows, many=True) if rows else None


def _changed(driver: Any, waiting: Waiting) -> Any:
    """`_change_each` on a server, where many rows are sent in few statements."""
    statement, rows, _ = waiting
    texts = driver.inserting(statement, rows) if len(rows) >= _MANY else None
    if texts is None:
        return _change_each(driver, formatted(statement), rows)
    with driver.remembering_none():
        for text in texts:
            cursor = _sent(driver.cursor(), text, None)
    return cursor


@contextmanager
def with_waiting(driver: Any) -> Iterator[None]:
    """Send the waiting statements with those of the block; all are answered at its end."""
    waiting, driver.waiting = driver.waiting, []
    with driver.pipeline():
        sent = [(_changed(driver, statement), statement) for statement in waiting]
        yield
    for cursor, statement in sent:
        if statement.rows is not None:
            statement.rows.extend(_fetched(cursor))


def run_with_waiting(
    driver: Any, queries: Sequence[Query], *, behind: Sequence[str] = ()
) -> list[list[Row]]:
    """The rows of each query, sent to a server together with waiting statements.

    Those are sent before the queries, and ``behind`` after them.
    """
    waiting: Sequence[Waiting] = driver.waiting or ()
    together = [(w.statement, values) for w in waiting for values in w.parameters]
    together += queries
    if not driver.may_send_together(together):
        with with_waiting(driver) if waiting else driver.pipeline():
            sent = [_sent(driver.cursor(), formatted(text), values) for text, values in queries]
            for text in behind:
                driver.cursor().execute(text)
        return [_fetched(answer) for answer in sent]
    if waiting:
        driver.waiting = []
    with driver.keeping_prepared():
        answers = answers_to(driver, (*driver.executing(together), *behind))
    answers = answers[-len(together) - len(behind) :]  # without those of PREPARE
    end = 0
    for statement in waiting:
        end += len(statement.parameters)
        if statement.rows is not None:
            statement.rows.extend(answers[end - 1])
    return answers[end : len(together)]


def answers_to(driver: Any, texts: Iterable[str]) -> list[list[Row]]:
    """The rows of statements that contain their values; a server gets them as one text."""
    return cast("list[list[Row]]", _sent(driver.texts, "; ".join(texts), None))


def run_all(connection: Connection, *queries: Query) -> list[list[Row]]:
    """The rows of each query, in order; no query may depend on the answer of another."""
    if connection.dialect.name == "sqlite" or len(queries) < 2:
        return [run(connection, *query) for query in queries]
    driver = _driver_of(connection)
    ahead = [text for text, _ in driver.read_ahead or ()]
    if all(formatted(text) in ahead for text, _ in queries):
        return [run(connection, *query) for query in queries]
    driver.read_ahead = None
    return run_with_waiting(driver, queries)


def marks(values: Sequence[object]) -> str:
    """The parameter marks for these values, in parentheses."""
    return f"({', '.join('?' * len(values))})"


def insert_queries(
    head: str, rows: Sequence[tuple[Parameter, ...]], tail: str = ""
) -> Iterator[Query]:
    """The queries ``head (?, …), (?, …) tail`` for all ``rows``, which have the same columns.

    Each has few rows, so that the driver caches few statement texts.
    """
    for start in range(0, len(rows), _INSERTED_AT_ONCE):
        part = rows[start : start + _INSERTED_AT_ONCE]
        text = head + ", ".join([marks(part[0])] * len(part)) + tail
        yield text, tuple(chain.from_iterable(part))


def in_lists(values: Iterable[T]) -> Iterator[tuple[str, tuple[T, ...]]]:
    """The marks and the parameters of ``IN`` lists of up to `CHUNK` of ``values``.

    The last value is repeated until the length is a power of two or `CHUNK`: a database prepares
    each length as a statement of its own, and keeps few.
    """
    rest = iter(values)
    while chunk := tuple(islice(rest, CHUNK)):
        length = min(1 << (len(chunk) - 1).bit_length(), CHUNK)
        padded = (*chunk, *repeat(chunk[-1], length - len(chunk)))
        yield marks(padded), padded


def run_in(
    connection: Connection, statement: str, values: Iterable[Parameter], *before: Parameter
) -> Iterator[Row]:
    """The rows of a statement that ends with ``IN``, for all ``values``, in parts.

    ``before`` are the other parameters of the statement.
    """
    for in_list, some_values in in_lists(values):
        yield from run(connection, f"{statement} {in_list}", (*before, *some_values))


def rows_of(driver: Any, text: str, parameters: tuple[Parameter, ...] = ()) -> list[Row]:
    """All rows of a statement in the driver's format, on a connection of the driver."""
    ahead = getattr(driver, "read_ahead", None)
    if ahead:
        driver.read_ahead = None  # another statement may have changed them
        for index, (statement, rows) in enumerate(ahead):
            if statement == text:
                driver.read_ahead = ahead[index + 1 :]
                return cast("list[Row]", rows)
    return _fetched(_answered(driver, text, parameters))


def _answered(driver: Any, text: str, parameters: tuple[Parameter, ...]) -> Any:
    """The cursor with the answer to a statement, valid until the next statement."""
    if getattr(driver, "waiting", None):
        with with_waiting(driver):
            return _sent(driver.cursor(), text, parameters)
    # Creating a cursor of PostgreSQL's driver takes half as long as an answer.
    return _sent(getattr(driver, "kept_cursor", None) or driver.cursor(), text, parameters)


def _sent(
    cursor: Any,
    text: str,
    parameters: Sequence[Any] | None,  # Any: a parameter, or with ``many`` a tuple for each run
    *,
    many: bool = False,
) -> Any:
    """The cursor after executing the text; all statements of this module go through here."""
    return (cursor.executemany if many else cursor.execute)(text, parameters)


def _fetched(cursor: Any) -> list[Row]:
    # PostgreSQL's driver builds `description` again at each access.
    result = getattr(cursor, "pgresult", None)
    has_rows = cursor.description is not None if result is None else result.nfields > 0
    return cast("list[Row]", cursor.fetchall()) if has_rows else []


def _driver_of(connection: Connection) -> Any:
    """The connection of the driver (sqlite3, psycopg) below one of SQLAlchemy."""
    return connection.connection.dbapi_connection


def _text_for(connection: Connection, statement: str) -> str:
    return statement if connection.dialect.name == "sqlite" else formatted(statement)


@lru_cache(maxsize=1024)
def formatted(statement: str) -> str:
    """A statement in the format of PostgreSQL's driver."""
    return statement.replace("?", "%s")


class Counter:
    """Consecutive numbers: the last one given is in ``column`` of row 1 of ``table``, or 0.

    ``zeros`` are the columns that are 0 in a new row. Numbers are taken in a write transaction; if
    it is rolled back, so are the numbers. For a file this is one statement. For a server, the write
    reads the last number among its first statements and writes the new one with its commit, so a
    number costs no extra round trip.
    """

    def __init__(self, table: str, column: str, *, zeros: Sequence[str] = ()) -> None:
        columns = ", ".join(("id", column, *zeros))
        put = (
            f"INSERT INTO {table} ({columns}) VALUES (1, ?{', 0' * len(zeros)})"
            f" ON CONFLICT (id) DO UPDATE SET {column} ="
        )
        self._put = f"{put} excluded.{column}"
        self._take = f"{put} {table}.{column} + excluded.{column} RETURNING {column}"
        self.query: Query = f"SELECT {column} FROM {table} WHERE id = 1", ()
        """The query that `take` runs first on a server."""

    @staticmethod
    def take(connection: Connection, *counts: tuple[Counter, int]) -> list[int]:
        """Take that many consecutive numbers of each counter. Returns the last one of each."""
        if connection.dialect.name == "sqlite":
            return [int(value(connection, counter._take, (count,))) for counter, count in counts]
        # Read all before changing one, because a change drops what was read ahead.
        answers = run_all(connection, *(counter.query for counter, _ in counts))
        last_numbers = []
        for (counter, count), rows in zip(counts, answers, strict=True):
            last_numbers.append((rows[0][0] if rows else 0) + count)
            change_each(connection, counter._put, [(last_numbers[-1],)])
        return last_numbers
