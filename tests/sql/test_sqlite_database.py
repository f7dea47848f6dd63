"""What is specific to a SQLite file: its connections, its lock, its notifications and its disk."""

from __future__ import annotations

import gc
import os
import resource
import sqlite3
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, closing, suppress
from functools import partial
from pathlib import Path
from typing import NoReturn

import pytest
from sqlalchemy import Connection, event

from strandline.clock import HybridClock
from strandline.errors import InvalidInput, Unavailable
from strandline.sql import SqliteDatabase, StoreFull, open_sqlite, sqlite_file, take_time
from strandline.sql.database import _CLOSE_TIMEOUT
from strandline.sql.schema_versions import Part
from strandline.work import TooLong
from tests.interrupts import is_interrupted
from tests.sql.processes import Process
from tests.sql.work import BLOB, COUNTER, fail_to_put, ids, put


def test_every_connection_is_opened_with_the_same_pragmas(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[sqlite3.Connection] = []
    real = sqlite_file.connect

    def recording(path: Path, *, busy_ms: int, query_only: bool) -> sqlite3.Connection:
        made = real(path, busy_ms=busy_ms, query_only=query_only)
        opened.append(made)
        return made

    monkeypatch.setattr(sqlite_file, "connect", recording)
    sqlite = open_sqlite(path)
    with ExitStack() as stack:
        for _ in range(5):
            stack.enter_context(sqlite.read())
    with sqlite.write() as connection:
        take_time(connection, HybridClock())
    with sqlite.write(is_synced=False) as connection:
        take_time(connection, HybridClock())
    sqlite.mark()
    assert len(opened) == 7
    assert sqlite.statistics().open_connections == 7
    writers = 0
    for connection_ in opened:
        query_only = connection_.execute("PRAGMA query_only").fetchone()[0]
        writers += not query_only
        pragmas = {
            name: connection_.execute(f"PRAGMA {name}").fetchone()[0]
            for name in (
                "journal_mode",
                "synchronous",
                "foreign_keys",
                "cell_size_check",
                "temp_store",
                "busy_timeout",
            )
        }
        assert pragmas.pop("busy_timeout") > 0
        assert pragmas == {
            "journal_mode": "wal",
            "synchronous": 2 if query_only else 1,  # the last write was not synced
            "foreign_keys": 1,
            "cell_size_check": 1,
            "temp_store": 2,  # in memory
        }
        assert connection_.isolation_level is None
    assert writers == 1
    sqlite.close()
    for connection_ in opened:
        with pytest.raises(sqlite3.ProgrammingError, match="closed"):
            connection_.execute("SELECT 1")


def test_a_large_write_needs_no_folder_for_temporary_files(sqlite: SqliteDatabase) -> None:
    with sqlite.write() as connection:
        connection.execute(BLOB.insert().values(id=1, value=bytes(1 << 20)))
    with sqlite.write() as connection:
        connection.execute(BLOB.delete())
        # The second row may be refused, so SQLite keeps the pages that the first one reuses.
        connection.exec_driver_sql(
            f"INSERT INTO {BLOB.name} (id, value) VALUES (2, zeroblob(500000)), (3, zeroblob(1))"
        )
        opened = [os.readlink(fd) for fd in Path("/proc/self/fd").iterdir() if fd.is_symlink()]
    assert not [name for name in opened if "etilqs" in name]  # SQLite's temporary files


def test_a_stopped_process_that_holds_no_lock_blocks_no_writer(
    sqlite: SqliteDatabase, path: Path
) -> None:
    with Process("tests.sql.work:stand_by", str(path)) as other:
        assert other.hear() == "ready"
        other.stop()
        for number in range(20):
            put(sqlite, number, number)
        assert len(ids(sqlite)) == 20
        other.go_on()
        other.say("end")
        assert other.finish() == 0


def test_waiters_return_when_they_are_woken(sqlite: SqliteDatabase) -> None:
    seen = sqlite.mark()
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(sqlite.wait_for_commit, seen, timeout=30)
        while sqlite.statistics().looks == 0:
            time.sleep(0.001)
        sqlite.wake()
        assert waiting.result() == seen


def test_a_waiter_polls_rarely_long_after_the_last_commit(sqlite: SqliteDatabase) -> None:
    seen = sqlite.mark()
    sqlite._moved_at -= 60
    before = sqlite.statistics().looks
    sqlite.wait_for_commit(seen, timeout=0.3)
    # Four polls a second, however fast the machine is.
    assert sqlite.statistics().looks - before <= 2


def test_a_waiter_polls_every_ten_milliseconds_right_after_a_commit(
    sqlite: SqliteDatabase,
) -> None:
    put(sqlite, 1, 1)
    sqlite.mark()
    sqlite._moved_at = time.monotonic() + 60
    assert sqlite._pause() == 0.01


@pytest.mark.parametrize("call", ["commit", "rollback"])
def test_an_interrupted_commit_or_rollback_leaves_no_transaction_open(
    path: Path, call: str
) -> None:
    def interrupt(_: object) -> None:
        raise KeyboardInterrupt

    with closing(open_sqlite(path)) as sqlite, closing(open_sqlite(path, timeout=0.0)) as other:
        sqlite.ensure_schema(Part("counter", 1, COUNTER.metadata))
        event.listen(sqlite._writer_engine, call, interrupt)
        with pytest.raises(KeyboardInterrupt):
            put(sqlite, 1, 1) if call == "commit" else fail_to_put(sqlite)
        event.remove(sqlite._writer_engine, call, interrupt)
        put(other, 2, 2)
        put(sqlite, 3, 3)
        assert ids(sqlite) == [2, 3]


def test_a_write_waits_for_no_connection_that_an_interrupt_lost(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost: list[Connection] = []

    def interrupt(connection: Connection) -> None:
        lost.append(connection)
        raise KeyboardInterrupt

    with closing(open_sqlite(path, timeout=1.0)) as sqlite:
        sqlite.ensure_schema(Part("counter", 1, COUNTER.metadata))
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(Connection, "invalidate", interrupt)
            with sqlite.write():
                raise KeyboardInterrupt
        put(sqlite, 1, 1)
        assert ids(sqlite) == [1]
        lost[0].close()


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit, TimeoutError])
def test_an_interrupt_of_a_commit_that_was_done_undoes_nothing_outside(
    sqlite: SqliteDatabase, interrupt: type[BaseException]
) -> None:
    """While SQLite syncs the disk, Python notes a signal, and calls its handler afterwards."""

    def commit(connection: Connection) -> None:
        sqlite_file.driver_of(connection).commit()
        raise interrupt

    undone: list[bool] = []
    event.listen(sqlite._writer_engine, "commit", commit)
    with pytest.raises(interrupt), sqlite.write() as connection:
        connection.execute(COUNTER.insert().values(id=1))
        sqlite.if_undone(lambda: undone.append(True))
    assert ids(sqlite) == [1]
    assert not undone


def test_an_interrupt_while_a_failed_commit_is_noted_undoes_nothing_outside(
    sqlite: SqliteDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: Connection) -> None:
        error = sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorcode = sqlite3.SQLITE_IOERR
        raise error

    def interrupt(_: object) -> NoReturn:
        raise KeyboardInterrupt

    undone: list[bool] = []
    event.listen(sqlite._writer_engine, "commit", fail)
    monkeypatch.setattr(sqlite_file, "may_be_in_the_log", interrupt)
    with pytest.raises(KeyboardInterrupt), sqlite.write() as connection:
        connection.execute(COUNTER.insert().values(id=1))
        sqlite.if_undone(lambda: undone.append(True))
    assert not undone


def test_a_thread_that_leaves_a_block_by_an_error_keeps_its_connection(
    sqlite: SqliteDatabase,
) -> None:
    def left(use: AbstractContextManager[Connection]) -> sqlite3.Connection:
        with suppress(TooLong), use as connection:
            driver = sqlite_file.driver_of(connection)
            raise TooLong
        return driver

    with ThreadPoolExecutor(1) as thread:
        for use in (sqlite.read, sqlite.write):
            first, second = (thread.submit(left, use()).result() for _ in range(2))
            assert first is second


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, TimeoutError])
def test_a_statement_that_was_interrupted_changes_no_later_read_or_write(
    sqlite: SqliteDatabase, interrupt: type[BaseException]
) -> None:
    """An interactive Python keeps the traceback, and so the cursors in its frames."""

    def interrupted(use: AbstractContextManager[Connection], statement: str) -> NoReturn:
        with use as connection:
            cursor = sqlite_file.driver_of(connection).execute(statement)
            assert cursor.fetchone()
            raise interrupt

    for number in range(3):
        put(sqlite, number, number)
    with pytest.raises(interrupt) as kept_read:
        interrupted(sqlite.read(), "SELECT id FROM counter")
    put(sqlite, 3, 3)
    assert ids(sqlite) == [0, 1, 2, 3]
    with pytest.raises(interrupt) as kept_write:
        interrupted(sqlite.write(), "INSERT INTO counter (id) VALUES (4), (5) RETURNING id")
    put(sqlite, 6, 6)
    assert ids(sqlite) == [0, 1, 2, 3, 6]
    assert kept_read.tb
    assert kept_write.tb


def test_a_write_to_a_full_disk_is_unavailable_and_undone(sqlite: SqliteDatabase) -> None:
    def fill() -> None:
        with sqlite.write() as connection:
            pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
            connection.exec_driver_sql(f"PRAGMA max_page_count = {pages + 5}")
            connection.execute(COUNTER.insert().values(id=2, value=2))
            connection.execute(BLOB.insert().values(id=1, value=bytes(1 << 20)))

    put(sqlite, 1, 1)
    with pytest.raises(StoreFull, match="full"):
        fill()
    assert ids(sqlite) == [1]
    put(sqlite, 3, 3)
    assert ids(sqlite) == [1, 3]


def test_a_database_that_cannot_be_opened_since_the_disk_is_full_says_so(path: Path) -> None:
    open_sqlite(path).close()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, before[1]))  # for the index of the log
    try:
        with pytest.raises(Unavailable, match="is full; free space and try again"):
            open_sqlite(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_database_that_cannot_be_opened_for_lack_of_descriptors_says_where_to_look(
    path: Path,
) -> None:
    open_sqlite(path).close()
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    next_descriptor = os.dup(0)
    os.close(next_descriptor)
    resource.setrlimit(resource.RLIMIT_NOFILE, (next_descriptor + 1, before[1]))
    try:
        with pytest.raises(Unavailable, match=r"cannot be opened .*`ulimit -n`.*`df -i`"):
            open_sqlite(path)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_database_whose_folder_can_no_longer_be_searched_is_unavailable(path: Path) -> None:
    folder = path.parent / "folder"
    folder.mkdir()
    unreachable = pytest.raises(Unavailable, match=r"cannot be reached .*; check its folder")
    with closing(open_sqlite(folder / path.name)) as database:
        folder.rename(path.parent / "away")
        folder.write_bytes(b"not a folder")
        with unreachable, database.write():
            pass
        with unreachable:
            database.rows("SELECT 1")


def test_a_swallowed_disk_error_does_not_become_a_commit(sqlite: SqliteDatabase) -> None:
    def swallow() -> None:
        with sqlite.write() as connection:
            connection.execute(COUNTER.insert().values(id=2, value=2))
            # What SQLite itself does when a disk is full or fails.
            connection.exec_driver_sql("ROLLBACK")

    with pytest.raises(Unavailable, match="rolled this write back"):
        swallow()
    assert ids(sqlite) == []


def test_a_value_too_large_for_the_file_is_invalid_input(sqlite: SqliteDatabase) -> None:
    with pytest.raises(InvalidInput, match="larger"), sqlite.write() as connection:
        connection.exec_driver_sql("INSERT INTO blob VALUES (1, zeroblob(2000000000))")


@pytest.mark.filterwarnings("ignore:unclosed database:ResourceWarning")  # since Python 3.13
def test_close_does_not_wait_for_calls_that_were_interrupted_at_any_step(
    sqlite: SqliteDatabase,
) -> None:
    step = 0
    while is_interrupted(partial(sqlite.rows, "SELECT 1"), at_step=step):
        step += 1
    assert step
    began = time.monotonic()
    sqlite.close()
    assert time.monotonic() - began < _CLOSE_TIMEOUT
    gc.collect()  # connections that an interrupt has lost
