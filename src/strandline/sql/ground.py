"""The tables that every database of ours has, and the versions of what the layers add.

One row of ``strandline_schema`` for each part (``sql`` itself, ``metastorage``, ``transactions`` …)
says in which version its tables are. A part that finds another version than its own refuses the
database before it reads any row of its tables.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Integer,
    MetaData,
    String,
    Table,
    inspect,
    select,
)

from strandline.errors import CorruptData, IncompatibleFormat

GROUND = MetaData()
GROUND_PART = "sql"
GROUND_VERSION = 1

SCHEMA = Table(
    "strandline_schema",
    GROUND,
    Column("part", String, primary_key=True),
    Column("version", Integer, nullable=False),
)

CLOCK = Table(
    "strandline_clock",
    GROUND,
    Column("id", Integer, primary_key=True),
    Column("time", BigInteger, nullable=False),
)

FENCE = Table(
    "strandline_fence",
    GROUND,
    Column("id", Integer, primary_key=True),
    Column("environment", String, nullable=False),
    Column("deploy_generation", BigInteger, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("catalog_version", BigInteger, nullable=False),
)


def version_of(connection: Connection, part: str) -> int | None:
    """The version in which ``part`` stands in this database; None before it was created."""
    if not inspect(connection).has_table(SCHEMA.name):
        return None
    return connection.execute(select(SCHEMA.c.version).where(SCHEMA.c.part == part)).scalar()


def is_current(found: int | None, *, part: str, version: int, name: str) -> bool:
    """Whether the tables stand as wanted; False if they are to be created.

    Raises `IncompatibleFormat` for another version, naming both; ``name`` names the database.
    """
    if found is None or found == version:
        return found is not None
    if not isinstance(found, int):
        raise CorruptData(f"{name} gives {found!r} as the version of {part!r}; restore a backup")
    which = "a newer" if found > version else "an older"
    todo = "use that release" if found > version else "there is no step from it to this one"
    raise IncompatibleFormat(
        f"{name} was written by {which} release: its part {part!r} has version {found}, this"
        f" program knows version {version}; {todo}"
    )
