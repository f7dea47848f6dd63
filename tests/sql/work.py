"""What other processes do in the tests of the SQL layer."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sqlalchemy import Column, Integer, LargeBinary, MetaData, Table

from strandline.clock import HybridClock
from strandline.errors import StrandlineError
from strandline.sql import Database, open_database, open_sqlite, stored_time, take_time
from strandline.sql.schema_versions import Part

Say = Callable[[object], None]
Hear = Callable[[], Any]

METADATA = MetaData()
COUNTER = Table(
    "counter", METADATA, Column("id", Integer, primary_key=True), Column("value", Integer)
)
BLOB = Table(
    "blob", METADATA, Column("id", Integer, primary_key=True), Column("value", LargeBinary)
)


def make_and_count(say: Say, hear: Hear, url: str, rounds: int) -> None:
    """Open a database that others open too, and increment one number in it."""
    say("ready")
    hear()
    database = open_database(url)
    database.ensure_schema(Part("counter", 1, METADATA))
    for _ in range(rounds):
        with database.write() as connection:
            connection.exec_driver_sql(
                "INSERT INTO counter VALUES (1, 1) ON CONFLICT (id)"
                " DO UPDATE SET value = counter.value + 1"
            )
    database.close()
    say("done")


def take_times(say: Say, hear: Hear, url: str, wall: int, rounds: int) -> None:
    """Take times by a wall clock that stands still; report each with the previously stored one."""
    clock = HybridClock(lambda: wall)
    database = open_database(url)
    say("ready")
    hear()
    taken = []
    for _ in range(rounds):
        with database.write() as connection:
            taken.append((stored_time(connection), take_time(connection, clock)))
    database.close()
    say(taken)


def hold_a_write(say: Say, hear: Hear, url: str) -> None:
    """Change a number inside a write transaction and stay in it until told to continue."""
    database = open_database(url)
    database.ensure_schema(Part("counter", 1, METADATA))
    with database.write() as connection:
        connection.exec_driver_sql("INSERT INTO counter VALUES (7, 7)")
        say("holding")
        hear()
    database.close()
    say("done")


def stand_by(say: Say, hear: Hear, path: str) -> None:
    """Have the file open, with all kinds of connections, and no transaction."""
    database = open_sqlite(path)
    database.mark()
    with database.write() as connection:
        take_time(connection, HybridClock())
    say("ready")
    hear()
    database.close()


def open_without_the_right_to(say: Say, hear: Hear, path: str) -> None:
    """Open the file as a user without write permission for its folder."""
    if os.getuid() == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
    try:
        open_sqlite(path).close()
    except StrandlineError as error:
        say([error.code, error.message])
    else:
        say("opened")


def write_on_a_failing_disk(say: Say, hear: Hear, path: str) -> None:
    """Commit a megabyte while the kernel lets no file grow beyond a quarter of one."""
    database = open_sqlite(path)
    limit = 256 << 10
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    try:
        with database.write() as connection:
            connection.execute(BLOB.insert().values(id=2, value=bytes(1 << 20)))
    except StrandlineError as error:
        say([error.code, error.message])
    else:
        say("written")
    with database.read() as connection:
        say(connection.exec_driver_sql("SELECT id FROM blob").scalars().all())
    database.close()


def file_named(folder: Path) -> Path:
    """The database file of a folder in these tests."""
    return folder / "strandline.db"


def put(database: Database, id_: int, value: int) -> None:
    with database.write() as connection:
        connection.execute(COUNTER.insert().values(id=id_, value=value))


def fail_to_put(database: Database) -> None:
    with database.write() as connection:
        connection.execute(COUNTER.insert().values(id=1, value=1))
        raise KeyError


def ids(database: Database) -> list[int]:
    with database.read() as connection:
        return list(connection.exec_driver_sql("SELECT id FROM counter ORDER BY id").scalars())
