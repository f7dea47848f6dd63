"""Statements of one transaction: sent together, asked ahead, answered at the commit."""

from __future__ import annotations

import pytest

from strandline.sql import (
    Counter,
    Database,
    FenceRow,
    change,
    change_each,
    first_row,
    run,
    run_all,
    run_at_commit,
    value,
)
from tests.sql.work import COUNTER, put


def test_statements_that_are_sent_together_answer_in_their_order(database: Database) -> None:
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


def test_an_error_of_one_of_several_statements_undoes_the_write(database: Database) -> None:
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


def test_changes_that_wait_for_no_answer_are_there_for_the_next_question(
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


def test_an_error_of_a_change_that_waits_for_no_answer_undoes_the_write(database: Database) -> None:
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
def test_numbers_follow_each_other_and_are_given_back_with_the_write(
    database: Database, is_ahead: bool
) -> None:
    first, second = Counter("first", "last", zeros=("other",)), Counter("second", "last")
    with database.write() as connection:
        for table in ("first", "second"):
            connection.exec_driver_sql(
                f"CREATE TABLE {table} (id INTEGER PRIMARY KEY, last BIGINT, other BIGINT)"
            )
    ahead = (first.ahead, second.ahead) if is_ahead else ()
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
def test_a_statement_may_answer_with_the_commit(database: Database, length: int, ask: bool) -> None:
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


def test_what_is_asked_first_is_asked_once_and_as_of_the_write(database: Database) -> None:
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
        assert value(connection, asked, (1,)) == 20  # and not what was read ahead of the change
    assert database.rows("SELECT value FROM counter") == [(20,)]


def test_what_is_asked_first_is_asked_again_where_the_server_has_forgotten_it(
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


def test_a_long_value_is_asked_behind_the_begin(database: Database) -> None:
    long, short = "x" * 1_000_000, "y"
    named = "SELECT ?, ?"
    with database.write(first=[(named, (short, short)), (named, (long, short))]) as connection:
        FenceRow.read(connection)
        assert run(connection, named, (short, short)) == [(short, short)]
        assert run(connection, named, (long, short)) == [(long, short)]
