"""The tables of a database: created once, upgraded through versions, refused if they are newer."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
from sqlalchemy import Column, Connection, Integer, MetaData, Table, create_engine, inspect, text

from strandline.errors import IncompatibleFormat, InvalidInput
from strandline.sql import Database, open_database
from strandline.sql.schema_versions import BASE, Part, Step, version_of
from tests.sql import work
from tests.sql.work import put


def test_a_part_is_created_once_and_in_one_version(database: Database) -> None:
    newer = MetaData()
    Table("newer", newer, Column("id", Integer, primary_key=True))
    with pytest.raises(IncompatibleFormat) as refused:
        database.ensure_schema(Part("counter", 0, newer))
    for part in (database.name, "counter", "version 1", "version 0"):
        assert part in refused.value.message
    with pytest.raises(IncompatibleFormat, match="an older release"):
        database.ensure_schema(Part("counter", 2, newer))
    with database.read() as connection:
        assert sorted(inspect(connection).get_table_names()) == [
            "blob",
            "counter",
            "strandline_clock",
            "strandline_fence",
            "strandline_schema",
        ]


def test_the_database_of_another_program_is_refused_and_not_changed(url: str) -> None:
    other = create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    with closing(other.connect()) as connection:
        connection.execute(text("CREATE TABLE bookmarks (id INTEGER)"))
        connection.commit()
        with pytest.raises(InvalidInput, match="is the database of another program"):
            open_database(url)
        assert inspect(connection).get_table_names() == ["bookmarks"]
    other.dispose()


def add_column(name: str) -> Step:
    def step(connection: Connection) -> None:
        connection.execute(
            text(f"ALTER TABLE counter ADD COLUMN {name} INTEGER NOT NULL DEFAULT 7")
        )

    return step


def test_an_older_part_is_upgraded_through_each_step(
    database: Database,
) -> None:
    put(database, 1, 1)
    steps = {2: add_column("second"), 3: add_column("third")}
    database.ensure_schema(Part("counter", 3, work.METADATA, steps))
    database.ensure_schema(Part("counter", 3, work.METADATA, steps))  # nothing is left to do
    with database.read() as connection:
        assert connection.exec_driver_sql("SELECT * FROM counter").one() == (1, 1, 7, 7)
    with pytest.raises(IncompatibleFormat, match=r"newer.*version 3.*version 1"):
        database.ensure_schema(Part("counter", 1, work.METADATA))


def test_a_database_opened_for_reading_keeps_the_tables_of_an_older_release(
    database: Database, url: str
) -> None:
    newer = Part("counter", 2, work.METADATA, {2: add_column("second")})
    with closing(open_database(url, read_only=True)) as reader:
        reader.ensure_schema(newer)
    with database.read() as connection:
        assert version_of(connection, newer) == 1


def test_a_step_that_fails_or_is_missing_changes_nothing(database: Database) -> None:
    put(database, 1, 1)

    def fail(connection: Connection) -> None:
        raise KeyError

    with pytest.raises(KeyError):
        database.ensure_schema(
            Part("counter", 3, work.METADATA, {2: add_column("second"), 3: fail})
        )
    with pytest.raises(IncompatibleFormat, match="cannot be upgraded"):
        database.ensure_schema(Part("counter", 3, work.METADATA, {2: add_column("second")}))
    with database.read() as connection:
        assert connection.exec_driver_sql("SELECT * FROM counter").one() == (1, 1)
    database.ensure_schema(Part("counter", 1, work.METADATA))


def test_concurrent_upgrades_take_each_step_once(database: Database, url: str) -> None:
    put(database, 1, 1)
    others = [open_database(url) for _ in range(3)]
    try:
        with ThreadPoolExecutor(3) as threads:
            calls = [
                threads.submit(
                    other.ensure_schema,
                    Part("counter", 2, work.METADATA, {2: add_column("second")}),
                )
                for other in others
            ]
            for call in calls:
                call.result()
    finally:
        for other in others:
            other.close()
    with database.read() as connection:
        assert connection.exec_driver_sql("SELECT * FROM counter").one() == (1, 1, 7)


def test_a_database_of_a_newer_release_is_refused(database: Database, url: str) -> None:
    with database.write() as connection:
        connection.exec_driver_sql("UPDATE strandline_schema SET version = 9 WHERE part = 'sql'")
    with pytest.raises(IncompatibleFormat, match=rf"version 9.*version {BASE.version}"):
        open_database(url)
