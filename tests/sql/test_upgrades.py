"""Databases of releases since 0.1.0 are upgraded once, however many processes open them."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest
from sqlalchemy import Column, Connection, MetaData, inspect, text
from sqlalchemy.engine.interfaces import ReflectedIndex
from sqlalchemy.schema import DropTable

from strandline.errors import DeadlineExceeded
from strandline.node.store_database import PARTS
from strandline.sql import Database, open_database, postgres_database, run
from strandline.sql.postgres_database import PostgresDatabase
from strandline.sql.schema_versions import BASE, Part, Step
from tests.servers import postgresql
from tests.servers.sqlite import sqlite_url
from tests.sql import work

UPGRADERS = 4


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return sqlite_url(tmp_path / "strandline.db")
    return postgresql.running().new_schema()


@pytest.fixture
def servers_url() -> str:
    return postgresql.running().new_schema()


def columns(database: Database) -> set[str]:
    with database.read() as connection:
        return {column["name"] for column in inspect(connection).get_columns("counter")}


def test_concurrent_openers_of_an_older_database_upgrade_it_once(url: str) -> None:
    first = open_database(url)
    first.ensure_schema(Part("counter", 1, work.METADATA))
    taken: list[int] = []
    begin = Barrier(UPGRADERS)

    def step(connection: Connection) -> None:
        taken.append(1)
        connection.execute(text("ALTER TABLE counter ADD COLUMN note TEXT"))

    newer = MetaData()
    table = work.COUNTER.to_metadata(newer)
    table.append_column(Column("note", table.c[table.c.keys()[0]].type))
    steps: dict[int, Step] = {2: step}

    def upgrade(_: int) -> None:
        database = open_database(url)
        begin.wait()
        database.ensure_schema(Part("counter", 2, newer, steps))
        database.close()

    with ThreadPoolExecutor(UPGRADERS) as threads:
        list(threads.map(upgrade, range(UPGRADERS)))
    assert taken == [1]
    assert "note" in columns(first)
    first.close()


def lose_time(database: Database) -> None:
    """Bring the time at which each call must have its answer forward to the present."""
    assert isinstance(database, PostgresDatabase)
    for connection in list(database._connections):
        if connection.deadline is not None:
            connection.deadline = 0.0


def test_an_upgrade_may_take_longer_than_a_call(servers_url: str) -> None:
    """An index of a large table takes minutes."""
    database = open_database(servers_url)
    database.ensure_schema(Part("counter", 1, work.METADATA))

    def step(connection: Connection) -> None:
        lose_time(database)
        connection.execute(text("SELECT pg_sleep(0.2)"))

    database.ensure_schema(Part("counter", 2, work.METADATA, {2: step}))
    database.close()


def test_an_upgrade_of_a_table_that_is_read_gives_up_and_says_why(
    servers_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All who need the table would wait behind it, as long as a dump or a job reads."""
    monkeypatch.setattr(postgres_database, "UPGRADE_LOCK_SECONDS", 0.05)
    database, other = open_database(servers_url), open_database(servers_url)
    database.ensure_schema(Part("counter", 1, work.METADATA))
    steps: dict[int, Step] = {2: lambda connection: work.COUNTER.drop(connection)}
    with other.read() as reading:
        run(reading, "SELECT * FROM counter")
        with pytest.raises(DeadlineExceeded, match="is in use and cannot be changed; stop"):
            database.ensure_schema(Part("counter", 2, MetaData(), steps))
    database.ensure_schema(Part("counter", 2, MetaData(), steps))
    database.close()
    other.close()


def test_a_process_that_waits_for_the_upgrade_of_another_says_so(servers_url: str) -> None:
    upgrading, database = open_database(servers_url), open_database(servers_url)
    waiting_sessions = "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
    with ThreadPoolExecutor(1) as threads, upgrading._schema_change() as connection:
        waiting = threads.submit(database.ensure_schema, Part("counter", 1, work.METADATA))
        while not connection.exec_driver_sql(waiting_sessions).all():
            time.sleep(0.001)  # only the server knows when it waits
        lose_time(database)
        with pytest.raises(DeadlineExceeded, match="another process creates or upgrades"):
            waiting.result()
    database.ensure_schema(Part("counter", 1, work.METADATA))
    database.close()
    upgrading.close()


RELEASES = {
    "0_2_0": {"sql": 1, "metastorage": 1, "transactions": 1, "metastore": 1},
    "0_2_1": {"sql": 2, "metastorage": 2, "transactions": 2, "metastore": 2, "place": 1},
    "0_3_0": {"sql": 3, "metastorage": 2, "transactions": 3, "metastore": 3, "place": 1},
    "0_4_0": {
        "sql": 3,
        "metastorage": 2,
        "transactions": 4,
        "metastore": 4,
        "place": 1,
        "stash": 1,
        "catalog_log": 1,
    },
    "0_5_0": {
        "sql": 3,
        "metastorage": 2,
        "transactions": 4,
        "metastore": 4,
        "place": 1,
        "stash": 2,
        "catalog_log": 1,
    },
    "0_6_0": {
        "sql": 3,
        "metastorage": 2,
        "transactions": 4,
        "metastore": 5,
        "place": 1,
        "stash": 2,
        "catalog_log": 1,
    },
    "0_11_0": {
        "sql": 4,
        "metastorage": 2,
        "transactions": 5,
        "metastore": 5,
        "place": 1,
        "stash": 2,
        "catalog_log": 1,
    },
}
"""The versions of the parts, by the releases that changed tables. 0.1.0 has those of 0.2.0."""
ROWS = {
    "strandline_clock": "(id, time) VALUES (1, 77)",
    "strandline_fence": "VALUES (1, 'e', 0, 3, 4)",
    "metastorage": "(key, revision, time, value) VALUES ('k', 5, 6, ?)",
    "metastorage_head": "VALUES (1, 5, 6, 0)",
    "metastorage_lease": "VALUES ('lead', 'me', 8, 9)",
    "txn_footprint": "VALUES (-3, 4, 5, NULL)",
    "hold": "(kind, owner, time, expires) VALUES ('stream', 'job', 6, 7)",
    "table_location": "VALUES (3, 'a/t')",
    "notification_sequence": "VALUES (1, 9, 8, 0)",
}
GOLDEN = Path(__file__).parents[1] / "golden" / "tables"


def make_tables_of(release: str, url: str) -> None:
    """Make the tables of that release in an empty database, with a row in some of them."""
    engine = open_database(url)
    with engine._schema_change() as connection:
        for table in reversed(BASE.metadata.sorted_tables):  # remove those of this release
            connection.execute(DropTable(table))
        statements = (GOLDEN / f"{release}.{engine.dialect}.sql").read_text()
        for statement in statements.split(";\n"):
            connection.exec_driver_sql(statement) if statement.strip() else None
        for table, row in ROWS.items():
            run(connection, f"INSERT INTO {table} {row}", (b"v",) if "?" in row else ())
        for part, version in RELEASES[release].items():
            run(connection, "INSERT INTO strandline_schema VALUES (?, ?)", (part, version))
    engine.close()


def open_all_parts(url: str) -> None:
    database = open_database(url)
    for part in PARTS.values():
        database.ensure_schema(part)
    database.close()


def condition_of(index: ReflectedIndex) -> str:
    """The condition of an index that has only some rows; empty for others."""
    options = index.get("dialect_options", {})
    return "".join(str(value) for name, value in options.items() if name.endswith("_where"))


def shape(url: str) -> object:
    """The tables with their columns and indexes, and the versions of the parts.

    Does not tell BIGINT from INTEGER: in SQLite, a key that older releases made as BIGINT stays so,
    since changing it would rewrite the table.
    """
    database = open_database(url)
    with database.read() as connection:
        inspector = inspect(connection)
        tables = {
            table: (
                {
                    (
                        column["name"],
                        str(column["type"]).replace("BIGINT", "INTEGER"),
                        column["nullable"],
                    )
                    for column in columns
                },
                tuple(inspector.get_pk_constraint(table)["constrained_columns"]),
                {
                    (index["name"], tuple(index["column_names"]), condition_of(index))
                    for index in inspector.get_indexes(table)
                },
            )
            for table in inspector.get_table_names()
            for columns in [inspector.get_columns(table)]
        }
        versions = set(run(connection, "SELECT part, version FROM strandline_schema"))
    database.close()
    return tables, versions


FIRST, *BETWEEN, LAST = RELEASES


@pytest.mark.parametrize(
    ("release", "url"),
    [
        *((release, "sqlite") for release in RELEASES),
        *((release, "postgresql") for release in (FIRST, LAST)),
        *(pytest.param(release, "postgresql", marks=pytest.mark.slow) for release in BETWEEN),
    ],
    indirect=["url"],
)
def test_upgraded_tables_of_an_older_release_equal_those_of_a_new_store(
    release: str, url: str, tmp_path: Path
) -> None:
    is_sqlite = url.startswith("sqlite")
    new = sqlite_url(tmp_path / "new.db") if is_sqlite else postgresql.running().new_schema()
    open_all_parts(new)
    make_tables_of(release, url)
    with ThreadPoolExecutor(UPGRADERS) as threads:
        list(threads.map(open_all_parts, [url] * UPGRADERS))
    assert shape(url) == shape(new)
    database = open_database(url)
    for table in ROWS:
        added = table == "strandline_clock" and RELEASES[release]["sql"] < 4  # the row of looks
        assert database.rows(f"SELECT count(*) FROM {table}") == [(1 + added,)], table
    database.close()


def test_every_part_has_a_step_for_each_version_since_its_first() -> None:
    for part in PARTS.values():
        missing = set(range(2, part.version + 1)) - set(part.steps)
        assert not missing, f"{part.name} has no step to {missing}"
