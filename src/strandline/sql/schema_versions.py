"""The tables that every database of the store has, and the versions of all parts.

``strandline_schema`` has one row for each part (``sql`` itself, ``metastorage``, ``transactions``
…), with the version of its tables. If a part finds an older version than its own, it runs the
upgrade steps, one for each version, in the write transaction that also updates the row. It refuses
every other version before it reads any row of its tables.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    create_mock_engine,
    update,
)
from sqlalchemy.schema import CreateIndex

from strandline.errors import CorruptData, IncompatibleFormat
from strandline.sql.statements import run, value

ROW_NUMBER = BigInteger().with_variant(Integer(), "sqlite")
"""The type of a key of one number. In SQLite, a key that is exactly an INTEGER is the number of the
row: it needs no index of its own, and SQLite can assign it."""
NEVER_ASSIGNED_AGAIN: dict[str, Any] = {"sqlite_autoincrement": True}  # Any: as arguments
"""Arguments of a `Table` whose database never assigns a key again, whatever was deleted."""

Step = Callable[[Connection], None]
"""Upgrades the tables of a part by one version, inside the caller's transaction."""
NO_STEPS: Mapping[int, Step] = MappingProxyType({})


class Part(NamedTuple):
    """A part of the databases of this release: its tables, and their version.

    ``steps[N]`` upgrades the tables from version N - 1 to N.
    """

    name: str
    version: int
    metadata: MetaData
    steps: Mapping[int, Step] = NO_STEPS


BASE_TABLES = MetaData()

SCHEMA = Table(
    "strandline_schema",
    BASE_TABLES,
    Column("part", String, primary_key=True),
    Column("version", Integer, nullable=False),
)

CLOCK = Table(
    "strandline_clock",
    BASE_TABLES,
    Column("id", Integer, primary_key=True),
    Column("time", BigInteger, nullable=False),
)

FENCE = Table(
    "strandline_fence",
    BASE_TABLES,
    Column("id", Integer, primary_key=True),
    Column("environment", String, nullable=False),
    Column("deploy_generation", BigInteger, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("catalog_version", BigInteger, nullable=False),
)


def whole_row(table: Table) -> Index:
    """An index on all columns of ``table``, in SQLite: a second copy of each row.

    SQLite has no checksums of its pages. Its integrity check (`Database.find_damage`) compares each
    row with its entry in each index. So if every column of a row is in some index, a change by
    damage is detected. Used for small tables whose columns are not records with their own checksum.
    """
    return Index(f"{table.name}_whole", *table.c).ddl_if(dialect="sqlite")


def add_indexes(connection: Connection, *tables: Table) -> None:
    """Create the missing indexes of ``tables``; for use in an upgrade step."""
    for table in tables:
        for index in sorted(table.indexes, key=lambda index: str(index.name)):
            if connection.dialect.name == "sqlite" or not str(index.name).endswith("_whole"):
                connection.execute(CreateIndex(index, if_not_exists=True))


for _table in (SCHEMA, CLOCK, FENCE):
    whole_row(_table)

# Run each time a store is opened; SQLAlchemy's inspector takes many times as long.
_TABLE_QUERIES = {
    "sqlite": ("SELECT name FROM sqlite_master WHERE type = 'table'", "name"),
    "postgresql": (
        "SELECT t.relname FROM pg_class t JOIN pg_namespace s ON s.oid = t.relnamespace"
        " WHERE s.nspname = ANY (current_schemas(false)) AND t.relkind IN ('r', 'p')",
        "t.relname",
    ),
}
"""The query for the tables, and its expression for their names, by dialect."""

_creations: dict[tuple[MetaData, str], tuple[str, ...]] = {}
"""The statements that create the tables of a part, by dialect.

Cached, because generating them takes longer than running them.
"""

WRITES_ROW, LOOKS_ROW = 1, 3
"""The rows of the table of clocks that every database has; see `strandline.sql.clock_row`."""


def add_clock_row(connection: Connection, row: int) -> None:
    """Add a row to the table of clocks, unless it has it."""
    connection.exec_driver_sql(
        f"INSERT INTO {CLOCK.name} (id, time) VALUES ({row}, 0) ON CONFLICT (id) DO NOTHING"
    )


BASE = Part(
    "sql",
    4,
    BASE_TABLES,
    {
        2: lambda connection: add_indexes(connection, CLOCK, FENCE),
        3: lambda connection: add_indexes(connection, SCHEMA),
        4: lambda connection: add_clock_row(connection, LOOKS_ROW),
    },
)
"""The tables of this module."""


def tables_of(connection: Connection) -> set[str]:
    """The tables of the database."""
    query, _ = _TABLE_QUERIES[connection.dialect.name]
    return {name for (name,) in run(connection, query)}


def columns_of(connection: Connection, query: str) -> dict[str, set[str]]:
    """The columns of each table; ``query`` is `Database.columns_query`."""
    columns: dict[str, set[str]] = {}
    for table, column in connection.exec_driver_sql(query):
        columns.setdefault(table, set()).add(column)
    return columns


def refuse_incomplete(present: Mapping[str, Collection[str]], part: Part, *, name: str) -> None:
    """Raise `CorruptData` unless each table of ``part`` exists with all its columns.

    ``present`` has the columns of each table of the database ``name``.
    """
    for table in part.metadata.tables.values():
        columns = present.get(table.name)
        if columns is None:
            raise CorruptData(
                f"{name} no longer has its table {table.name} (part {part.name!r}); restore the "
                "store from a backup"
            )
        missing = [column.name for column in table.c if column.name not in columns]
        if missing:
            raise CorruptData(
                f"{name} has no column {missing[0]!r} in its table {table.name} (part "
                f"{part.name!r}); restore the store from a backup"
            )


def refuse_unknown_parts(versions: Mapping[str, int], known: Collection[str], *, name: str) -> None:
    """Raise `IncompatibleFormat` if a newer release has added a part; see `versions_of`."""
    unknown = sorted(
        f"{part!r} (version {version})" for part, version in versions.items() if part not in known
    )
    if unknown:
        raise IncompatibleFormat(
            f"{name} has a part that this program does not know: {', '.join(unknown)}; known "
            f"parts are {', '.join(sorted(known))}. It was written by a newer release: use that "
            "release"
        )


def versions_of(connection: Connection) -> dict[str, int]:
    """The version of each part of this database; empty if it is not a store yet."""
    query, name = _TABLE_QUERIES[connection.dialect.name]
    if value(connection, f"{query} AND {name} = ?", (SCHEMA.name,)) is None:
        return {}
    return dict(run(connection, f"SELECT part, version FROM {SCHEMA.name}"))


def version_of(connection: Connection, part: Part) -> int | None:
    """The version of ``part`` in this database, or None before it was created."""
    return versions_of(connection).get(part.name)


def create_tables(connection: Connection, metadata: MetaData) -> None:
    """Create the tables and indexes of ``metadata``, none of which exist."""
    key = metadata, connection.dialect.name
    if key not in _creations:
        statements: list[str] = []
        dialect = connection.dialect
        target = create_mock_engine(
            connection.engine.url,
            lambda ddl, *_: statements.append(str(ddl.compile(dialect=dialect))),
        )
        metadata.create_all(target, checkfirst=False)
        _creations[key] = tuple(statements)
    for statement in _creations[key]:
        connection.exec_driver_sql(statement)


def is_current(present: int | None, part: Part, *, name: str) -> bool:
    """Whether the tables have the version of ``part``; False to create or upgrade them.

    ``name`` is the database's name in messages. Raises `IncompatibleFormat` for a newer version.
    """
    if present is None or present == part.version:
        return present is not None
    if not isinstance(present, int):
        raise CorruptData(
            f"{name} has the invalid version {present!r} of its part {part.name!r}; restore the "
            "store from a backup"
        )
    if present > part.version:
        raise _incompatible(present, part, name=name, release="a newer", todo="use that release")
    return False


def upgrade(connection: Connection, present: int, part: Part, *, name: str) -> None:
    """Upgrade ``part`` from version ``present``.

    Raises `IncompatibleFormat` if a step is missing, before any step runs.
    """
    missing_steps = range(present + 1, part.version + 1)
    if any(number not in part.steps for number in missing_steps):
        todo = "it cannot be upgraded to this one"
        raise _incompatible(present, part, name=name, release="an older", todo=todo)
    for number in missing_steps:
        part.steps[number](connection)
    of_part = update(SCHEMA).where(SCHEMA.c.part == part.name)
    connection.execute(of_part.values(version=part.version))


def _incompatible(
    present: int, part: Part, *, name: str, release: str, todo: str
) -> IncompatibleFormat:
    return IncompatibleFormat(
        f"{name} was written by {release} release: its part {part.name!r} has version {present}, "
        f"but this program knows version {part.version}; {todo}"
    )
