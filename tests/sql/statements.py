"""The SQL statements of a call, with their parameters, and the contents of a database."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from sqlalchemy import Engine, event, inspect

from strandline.sql import Database, statements


@contextmanager
def recorded(*, of_this_thread: bool = False) -> Iterator[list[tuple[str, Any]]]:
    """Record the statements of every database while the block runs, with their parameters.

    They are those of all threads, or of the calling one. Many rows may share a statement; then the
    parameters are a list of tuples.
    """
    noted: list[tuple[str, Any]] = []
    send = statements._sent
    thread = threading.get_ident()

    def add(statement: str, parameters: Any) -> None:
        if not of_this_thread or threading.get_ident() == thread:
            noted.append((statement, parameters))

    def note(_c: Any, _k: Any, statement: str, parameters: Any, *_: Any) -> None:
        add(statement, parameters)

    def note_and_send(cursor: Any, text: str, parameters: Any, *, many: bool = False) -> Any:
        add(text, parameters)
        return send(cursor, text, parameters, many=many)

    event.listen(Engine, "before_cursor_execute", note)
    try:
        with patch.object(statements, "_sent", note_and_send):
            yield noted
    finally:
        event.remove(Engine, "before_cursor_execute", note)


def contents_of(database: Database) -> dict[str, list[tuple[object, ...]]]:
    """Every row of every table of a database."""
    with database.read() as connection:
        return {
            name: [tuple(row) for row in connection.exec_driver_sql(f'SELECT * FROM "{name}"')]
            for name in inspect(connection).get_table_names()
        }
