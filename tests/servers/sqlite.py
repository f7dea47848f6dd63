"""The address of a SQLite file, as `strandline.sql.open_database` takes it."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import URL


def sqlite_url(path: Path | str) -> str:
    """The URL of a database file; every character of the path is preserved."""
    return URL.create("sqlite", database=str(path)).render_as_string(hide_password=False)
