"""Opening a database by its URL. The module of a dialect is loaded at its first use."""

from __future__ import annotations

from importlib import import_module
from typing import Protocol, cast

from strandline.errors import InvalidInput, UnsupportedOperation
from strandline.sql.database import PATIENCE, Database

DIALECTS = {
    "sqlite": "strandline.sql.sqlite_database",
    "postgresql": "strandline.sql.postgres_database",
}
"""The module whose ``open_url`` opens a URL, by the scheme of the URL."""


class _Dialect(Protocol):
    def open_url(self, url: str, *, patience: float, read_only: bool) -> Database: ...


def open_engine(url: str, *, patience: float = PATIENCE, read_only: bool = False) -> Database:
    """Open the database at ``url`` and create the tables that every database of the store has.

    ``url`` is ``sqlite:////folder/file`` (the file is created if it is missing) or
    ``postgresql://user@host/database``. ``patience`` is how many seconds a write without a deadline
    waits at most, and how long a call waits for a server's answer. With ``read_only`` no table is
    created or upgraded, and writes are refused. Raises `InvalidInput`, `UnsupportedOperation`,
    `CorruptData`, `IncompatibleFormat` or `Unavailable`; then nothing has changed.
    """
    scheme = url.partition(":")[0].partition("+")[0].lower()
    if scheme == url:
        raise InvalidInput(
            f"{url!r} is not a database URL; write it like sqlite:////folder/strandline.db"
            " or postgresql://user@host/database"
        )
    if scheme not in DIALECTS:
        raise UnsupportedOperation(
            f"databases of the kind {scheme!r} are not supported; use one of {', '.join(DIALECTS)}"
        )
    dialect = cast(_Dialect, import_module(DIALECTS[scheme]))
    return dialect.open_url(url, patience=patience, read_only=read_only)
