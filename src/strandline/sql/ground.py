"""The tables that every database of ours has, and the versions of what the layers add.

One row of ``strandline_schema`` for each part (``sql`` itself, ``metastorage``, ``transactions`` …)
says in which version its tables are. A part that finds an older version than its own takes the
steps to it, one for each version, in the write transaction that also moves the row. It refuses
every other version before it reads any row of its tables.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

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
    update,
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


Step = Callable[[Connection], None]
"""Takes the tables of a part from one version to the next, inside the caller's transaction."""


def version_of(connection: Connection, part: str) -> int | None:
    """The version in which ``part`` stands in this database; None before it was created."""
    if not inspect(connection).has_table(SCHEMA.name):
        return None
    return connection.execute(select(SCHEMA.c.version).where(SCHEMA.c.part == part)).scalar()


def is_current(found: int | None, *, part: str, version: int, name: str) -> bool:
    """Whether the tables stand as wanted; False if they are to be created or upgraded.

    Raises `IncompatibleFormat` for a newer version; ``name`` names the database.
    """
    if found is None or found == version:
        return found is not None
    if not isinstance(found, int):
        raise CorruptData(f"{name} gives {found!r} as the version of {part!r}; restore a backup")
    if found > version:
        raise _incompatible(
            found, part=part, version=version, name=name, release="a newer", todo="use that release"
        )
    return False


def upgrade(
    connection: Connection,
    found: int,
    *,
    part: str,
    version: int,
    steps: Mapping[int, Step],
    name: str,
) -> None:
    """Take ``part`` from version ``found`` to ``version``; ``steps[N]`` takes N - 1 to N.

    Raises `IncompatibleFormat` when a step is missing; nothing was done then.
    """
    wanted = range(found + 1, version + 1)
    if any(number not in steps for number in wanted):
        raise _incompatible(
            found,
            part=part,
            version=version,
            name=name,
            release="an older",
            todo="there is no step from it to this one",
        )
    for number in wanted:
        steps[number](connection)
    connection.execute(update(SCHEMA).where(SCHEMA.c.part == part).values(version=version))


def _incompatible(
    found: int, *, part: str, version: int, name: str, release: str, todo: str
) -> IncompatibleFormat:
    return IncompatibleFormat(
        f"{name} was written by {release} release: its part {part!r} has version {found}, this"
        f" program knows version {version}; {todo}"
    )
