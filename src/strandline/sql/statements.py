"""Statements written once for every dialect.

Core expressions cost a tenth of a millisecond each to build and compile, more than the small
statements of the inner loops take to run. So those are text, with ``?`` where a parameter stands,
in the SQL that SQLite and PostgreSQL have in common (``ON CONFLICT``, ``RETURNING``).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from sqlalchemy import Connection, CursorResult

Parameter = str | bytes | int | None


def run(
    connection: Connection, statement: str, parameters: tuple[Parameter, ...] = ()
) -> CursorResult[*tuple[Any, ...]]:
    """Run ``statement``. It holds no ``?`` and no ``%`` but the marks of its parameters."""
    if connection.dialect.paramstyle != "qmark":
        statement = _formatted(statement)
    return connection.exec_driver_sql(statement, parameters)


@lru_cache(maxsize=256)
def _formatted(statement: str) -> str:
    return statement.replace("?", "%s")
