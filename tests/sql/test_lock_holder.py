"""Who holds the write lock of a SQLite file, as told to those who wait for it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from strandline.errors import DeadlineExceeded
from strandline.sql import SqliteDatabase, open_sqlite
from strandline.sql.sqlite_file import describe_holder

HOLD = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def database(tmp_path: Path) -> Iterator[SqliteDatabase]:
    with closing(open_sqlite(tmp_path / "strandline.db")) as database:
        yield database


@pytest.fixture
def holder(database: SqliteDatabase) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(database.path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.communicate()


def write(database: SqliteDatabase) -> None:
    with database.write(deadline=time.monotonic() + 0.01):
        pass


def test_who_waits_is_told_which_process_holds_the_lock_and_whether_it_is_stopped(
    database: SqliteDatabase, holder: subprocess.Popen[str]
) -> None:
    with pytest.raises(DeadlineExceeded) as raised:
        write(database)
    assert f"process {holder.pid} ({sys.executable} -c" in raised.value.message
    assert raised.value.message.endswith("holds its write lock")
    os.kill(holder.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, holder.pid, os.WSTOPPED)
    with pytest.raises(DeadlineExceeded, match=r"is stopped; let it go on \(kill -CONT\)"):
        write(database)
    holder.kill()
    holder.wait()
    write(database)


def test_who_waits_behind_a_thread_that_waits_for_a_process_is_told_of_the_process(
    database: SqliteDatabase, holder: subprocess.Popen[str]
) -> None:
    def wait_for_the_process() -> None:
        with suppress(DeadlineExceeded), database.write(deadline=time.monotonic() + 60):
            pass

    first = threading.Thread(target=wait_for_the_process)
    first.start()
    while not database.statistics().lost_turns:
        first.join(0.001)
    with pytest.raises(DeadlineExceeded, match=f"process {holder.pid} .* holds its write lock"):
        write(database)
    holder.kill()
    first.join()


def test_another_part_of_this_process_is_told_as_such(database: SqliteDatabase) -> None:
    told = pytest.raises(DeadlineExceeded, match="another part of this process")
    with closing(open_sqlite(database.path)) as other, other.write(), told:
        write(database)


def test_asking_lets_go_of_no_lock(database: SqliteDatabase) -> None:
    with closing(open_sqlite(database.path)) as other, database.write():
        for _ in range(2):
            assert describe_holder(database.path) is not None
            with pytest.raises(DeadlineExceeded):
                write(other)


@pytest.mark.parametrize(
    "lines",
    [
        "",
        "1: POSIX  ADVISORY  READ 1 08:01:{inode} 120 120",
        "1: POSIX  ADVISORY  WRITE 1 08:01:{inode} 121 122",
        "1: -> POSIX  ADVISORY  WRITE 1 08:01:{inode} 120 120",
        "1: POSIX  ADVISORY  WRITE 0 08:01:{inode} 0 EOF",
        "1: POSIX  ADVISORY  WRITE -1 08:01:{inode} 120 120",
        "2: something else",
    ],
)
def test_what_the_system_does_not_tell_is_not_said(
    database: SqliteDatabase, tmp_path: Path, lines: str
) -> None:
    write(database)
    inode = os.stat(f"{database.path}-shm").st_ino
    (tmp_path / "locks").write_text(lines.format(inode=inode))
    assert describe_holder(database.path, locks=tmp_path / "locks") is None
    assert describe_holder(database.path, locks=tmp_path / "missing") is None
    assert describe_holder(tmp_path / "no.db") is None
