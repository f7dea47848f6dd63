"""Databases of older releases, from 0.1.0 on, are upgraded once, however many open them at once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest
from sqlalchemy import Column, Connection, MetaData, inspect, text

from strandline.node.store_database import PARTS
from strandline.sql import Database, open_engine, sqlite_url
from strandline.sql.ground import Step
from tests.servers import postgresql
from tests.sql import work

UPGRADERS = 4


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return sqlite_url(tmp_path / "strandline.db")
    return postgresql.running().new_schema()


def columns(database: Database) -> set[str]:
    with database.read() as connection:
        return {column["name"] for column in inspect(connection).get_columns("counter")}


def test_processes_that_open_an_older_database_at_once_upgrade_it_once(url: str) -> None:
    first = open_engine(url)
    first.ensure_schema("counter", 1, work.METADATA)
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
        database = open_engine(url)
        begin.wait()
        database.ensure_schema("counter", 2, newer, steps=steps)
        database.close()

    with ThreadPoolExecutor(UPGRADERS) as threads:
        list(threads.map(upgrade, range(UPGRADERS)))
    assert taken == [1]
    assert "note" in columns(first)
    first.close()


def test_every_part_has_a_step_for_each_version_since_its_first() -> None:
    from strandline.metastorage import sql_tables
    from strandline.metastore.store import upgrades
    from strandline.sql import ground
    from strandline.transactions import tables as transaction_tables

    steps = {
        ground.GROUND_PART: ground.STEPS,
        sql_tables.PART: sql_tables.STEPS,
        transaction_tables.PART: transaction_tables.STEPS,
        "metastore": upgrades.STEPS,
    }
    for part, (version, _) in PARTS.items():
        missing = set(range(2, version + 1)) - set(steps.get(part, {}))
        assert not missing, f"{part} has no step to {missing}"
