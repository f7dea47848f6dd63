"""Statements of one transaction: sent together, read ahead, answered at the commit."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import BigInteger, Column, LargeBinary, MetaData, String, Table

from strandline.sql import (
    Counter,
    Database,
    FenceRow,
    change,
    change_each,
    first_row,
    in_lists,
    run,
    run_all,
    run_at_commit,
    run_in,
    run_in_parts,
    value,
)
from tests.sql.work import COUNTER, put

HARD = Table(
    "hard",
    MetaData(),
    Column("id", BigInteger, primary_key=True),
    Column("text", String, nullable=False),
    Column("data", LargeBinary),
)


def test_statements_sent_together_are_answered_in_order(database: Database) -> None:
    with database.write() as connection:
        change_each(connection, "INSERT INTO counter VALUES (?, ?)", [])
        change_each(connection, "INSERT INTO counter VALUES (?, ?)", [(1, 10), (2, 20), (3, 30)])
        answers = run_all(
            connection,
            ("SELECT value FROM counter WHERE id = ?", (2,)),
            ("UPDATE counter SET value = value + 1 WHERE id = ?", (3,)),
            ("SELECT id, value FROM counter WHERE id > ? ORDER BY id", (1,)),
        )
    assert answers == [[(20,)], [], [(2, 20), (3, 31)]]
    with database.read() as connection:
        assert value(connection, "SELECT value FROM counter WHERE id = ?", (9,)) is None
        assert first_row(connection, "SELECT * FROM counter WHERE id = ?", (1,)) == (1, 10)


def test_lists_of_any_length_make_few_statements_and_find_what_they_name(
    database: Database,
) -> None:
    statement = "SELECT id FROM counter WHERE id IN"
    with database.write() as connection:
        change_each(connection, "INSERT INTO counter VALUES (?, ?)", [(i, i) for i in range(1_100)])
    assert not list(in_lists([]))
    texts = set()
    with database.read() as connection:
        for length in (*range(1, 70), 255, 256, 257, 499, 500, 501, 1_003):
            queries = [(f"{statement} {marks}", ids) for marks, ids in in_lists(range(length))]
            values = [i for rows in run_all(connection, *queries) for (i,) in rows]
            assert sorted(values) == list(range(length))
            assert list(run_in(connection, statement, range(length))) == [(i,) for i in values]
            texts |= {text for text, _ in queries}
    assert len(texts) == 10


def test_an_error_in_one_of_several_statements_undoes_the_write(database: Database) -> None:
    with pytest.raises(Exception, match=r"(?i)unique"), database.write() as connection:
        run_all(
            connection,
            ("INSERT INTO counter VALUES (?, ?)", (1, 1)),
            ("INSERT INTO counter VALUES (?, ?)", (1, 2)),
            ("INSERT INTO counter VALUES (?, ?)", (3, 3)),
        )
    with database.write() as connection:
        assert run(connection, "SELECT * FROM counter") == []
        assert change(connection, "INSERT INTO counter VALUES (?, ?)", (1, 1)) == 1


def test_unanswered_changes_are_visible_to_the_next_query(
    database: Database,
) -> None:
    with database.write() as connection:
        change_each(connection, "INSERT INTO counter VALUES (?, ?)", [(1, 10), (2, 20)])
        change_each(connection, "UPDATE counter SET value = ? WHERE id = ?", [(11, 1)])
        assert value(connection, "SELECT sum(value) FROM counter") == 31
        change_each(connection, "DELETE FROM counter WHERE id = ?", [(2,)])
        assert connection.execute(COUNTER.select()).all() == [(1, 11)]
        change_each(connection, "INSERT INTO counter VALUES (?, ?)", [(3, 30)])
        answers = run_all(
            connection, ("SELECT sum(value) FROM counter", ()), ("SELECT max(id) FROM counter", ())
        )
        assert answers == [[(41,)], [(3,)]]
        change_each(connection, "DELETE FROM counter WHERE id = ?", [(3,)])
    assert database.rows("SELECT * FROM counter") == [(1, 11)]


def test_a_statement_read_in_parts_is_closed_when_an_error_interrupts_it(
    database: Database,
) -> None:
    """Left open, it would keep its snapshot, and be closed after its connection."""
    with database.write() as connection:
        rows: list[tuple[Any, ...]] = [(number, number) for number in range(5)]
        change_each(connection, "INSERT INTO counter VALUES (?, ?)", rows)
    with database.read() as connection:
        with run_in_parts(connection, "SELECT id FROM counter ORDER BY id", rows=2) as parts:
            assert list(parts) == [[(0,), (1,)], [(2,), (3,)], [(4,)]]
        with (
            pytest.raises(ZeroDivisionError),
            run_in_parts(connection, "SELECT id FROM counter", rows=2) as cut,
        ):
            raise ZeroDivisionError(next(cut))
        with pytest.raises(Exception, match="closed"):
            next(cut)


HARD_TEXTS = [
    "",
    "it's",
    "a\\b",
    '"',
    "%s %",
    "?",
    "$1",
    "née – 日本",
    "a\nb",
    "'; DROP TABLE hard --",
]


@pytest.mark.parametrize("longest", [0, 1 << 17])
def test_many_rows_are_inserted_unchanged(database: Database, longest: int) -> None:
    rows = [
        (
            (1 << 63) - 1 - number if number % 3 else number,
            HARD_TEXTS[number % len(HARD_TEXTS)] + "x" * (number % 700),
            None if number % 5 == 0 else bytes(range(number % 256)) + b"'\\\0" * (number % 300),
        )
        for number in range(1_000)
    ]
    rows.append((-5, "y" * longest, b"\0" * longest))
    with database.write() as connection:
        HARD.create(connection)
        change_each(connection, "INSERT INTO hard (id, text, data) VALUES (?, ?, ?)", rows)
        again = [*rows[:20], (-6, "new", None), *rows[:20]]
        nothing = "INSERT INTO hard VALUES (?, ?, ?) ON CONFLICT (id) DO NOTHING"
        change_each(connection, nothing, again)
        replaced = [(row[0], "replaced", row[2]) for row in rows[:10]]
        replace = (
            "INSERT INTO hard (id, text, data) VALUES (?, ?, ?)"
            " ON CONFLICT (id) DO UPDATE SET text = excluded.text"
        )
        change_each(connection, replace, replaced)
        driver: Any = connection.connection.dbapi_connection
    expected = sorted([*replaced, *rows[10:], (-6, "new", None)])
    read = database.rows("SELECT id, text, data FROM hard ORDER BY id")
    assert [(key, text, data and bytes(data)) for key, text, data in read] == expected
    # The driver of PostgreSQL must not keep the text of many rows, as it does for prepared
    # statements.
    kept = driver._prepared._counts if hasattr(driver, "_prepared") else ()
    assert sum(len(text) for text, _ in kept) < 10_000


def test_the_last_of_many_rows_is_inserted_although_its_statement_has_no_other(
    database: Database,
) -> None:
    rows = [(number, "x" * (1 << 15), None) for number in range(9)]  # two of them fill a statement
    with database.write() as connection:
        HARD.create(connection)
        change_each(connection, "INSERT INTO hard (id, text, data) VALUES (?, ?, ?)", rows)
    assert database.rows("SELECT id, text, data FROM hard ORDER BY id") == rows


def test_one_refused_row_of_many_undoes_the_write(database: Database) -> None:
    rows = [(number, number) for number in range(1, 1_000)]
    with pytest.raises(Exception, match=r"(?i)unique"), database.write() as connection:
        change_each(connection, "INSERT INTO counter VALUES (?, ?)", [*rows, (500, 0)])
    assert database.rows("SELECT * FROM counter") == []
    with database.write() as connection:
        change_each(connection, "INSERT INTO counter VALUES (?, ?)", rows)
        change_each(connection, "UPDATE counter SET value = ? WHERE id = ?", rows[::-1])
        change_each(connection, "DELETE FROM counter WHERE id = ?", [(n,) for n, _ in rows[10:]])
    assert database.rows("SELECT * FROM counter ORDER BY id") == rows[:10]


def test_an_error_in_an_unanswered_change_undoes_the_write(database: Database) -> None:
    insert = "INSERT INTO counter VALUES (?, ?)"
    for ask in (False, True):
        with pytest.raises(Exception, match=r"(?i)unique"), database.write() as connection:
            change_each(connection, insert, [(1, 1)])
            change_each(connection, insert, [(1, 2)])
            change_each(connection, insert, [(3, 3)])
            if ask:
                run(connection, "SELECT 1")
                pytest.fail("the error is raised before the next answer")
        assert database.rows("SELECT * FROM counter") == []
    with database.write() as connection:
        assert change(connection, insert, (1, 1)) == 1


@pytest.mark.parametrize("is_ahead", [False, True])
def test_numbers_are_consecutive_and_returned_if_the_write_fails(
    database: Database, is_ahead: bool
) -> None:
    first, second = Counter("first", "last", zeros=("other",)), Counter("second", "last")
    with database.write() as connection:
        for table in ("first", "second"):
            connection.exec_driver_sql(
                f"CREATE TABLE {table} (id INTEGER PRIMARY KEY, last BIGINT, other BIGINT)"
            )
    ahead = (first.query, second.query) if is_ahead else ()
    with database.write(first=ahead) as connection:
        assert Counter.take(connection, (first, 3), (second, 1)) == [3, 1]
        assert Counter.take(connection, (first, 1)) == [4]
    with pytest.raises(KeyError), database.write(first=ahead) as connection:
        assert Counter.take(connection, (first, 10)) == [14]
        raise KeyError
    with database.write(first=ahead) as connection:
        assert Counter.take(connection, (second, 2), (first, 1)) == [3, 5]
    assert database.rows("SELECT last, other FROM first") == [(5, 0)]


@pytest.mark.parametrize("length", [1, 5_000], ids=["short", "long"])
@pytest.mark.parametrize("ask", [False, True])
def test_a_statement_can_be_answered_at_the_commit(
    database: Database, length: int, ask: bool
) -> None:
    with database.write() as connection:
        connection.exec_driver_sql("CREATE TABLE text (id INTEGER PRIMARY KEY, body TEXT)")
    insert, bodies = "INSERT INTO text VALUES (?, ?) RETURNING id", ["it's % \\ ?" * length] * 4
    with database.write() as connection:
        change_each(connection, "INSERT INTO text VALUES (?, ?)", [(1, bodies[0]), (2, bodies[1])])
        rows = run_at_commit(connection, insert, (3, bodies[2]))
        change_each(connection, "INSERT INTO text VALUES (?, ?)", [(4, bodies[3])])
        if ask:
            assert value(connection, "SELECT count(*) FROM text") == 4
            assert rows == [(3,)]
    assert rows == [(3,)]
    assert database.rows("SELECT body FROM text ORDER BY id") == [(body,) for body in bodies]


def test_queries_read_ahead_are_sent_once_within_the_write(database: Database) -> None:
    put(database, 1, 10)
    raised = "UPDATE counter SET value = value + 1 WHERE id = ? RETURNING value"
    asked = "SELECT value FROM counter WHERE id = ?"
    named = "SELECT ?, ?, ?"
    first = ((raised, (1,)), (asked, (1,)), (named, ("it's % \\", None, "7")), (asked, (1,)))
    with database.write(first=first) as connection:
        FenceRow.read(connection)
        assert value(connection, raised, (1,)) == 11
        assert value(connection, asked, (1,)) == 11
        assert run(connection, named, ("it's % \\", None, "7")) == [("it's % \\", None, "7")]
        change_each(connection, "UPDATE counter SET value = ? WHERE id = ?", [(20, 1)])
        assert value(connection, asked, (1,)) == 20  # and not what was read before the change
    assert database.rows("SELECT value FROM counter") == [(20,)]


def test_a_query_read_ahead_is_repeated_if_the_server_forgot_its_prepared_statement(
    database: Database,
) -> None:
    put(database, 1, 10)
    asked = "SELECT value FROM counter WHERE id = ?"

    def undone() -> None:
        with database.write(first=[(asked, (1,))]) as connection:
            run(connection, "UPDATE counter SET value = value + ? WHERE id = ?", (1, 1))
            raise KeyError

    for number in range(8):  # the driver prepares what it has run five times
        with pytest.raises(KeyError):
            undone()
        with database.write(first=[(asked, (1,))]) as connection:
            FenceRow.read(connection)
            assert value(connection, asked, (1,)) == 10
            if database.dialect == "postgresql" and number == 6:
                connection.exec_driver_sql("DEALLOCATE ALL")


def test_a_query_with_a_long_value_can_be_read_ahead(database: Database) -> None:
    long, short = "x" * 1_000_000, "y"
    named = "SELECT ?, ?"
    with database.write(first=[(named, (short, short)), (named, (long, short))]) as connection:
        FenceRow.read(connection)
        assert run(connection, named, (short, short)) == [(short, short)]
        assert run(connection, named, (long, short)) == [(long, short)]
