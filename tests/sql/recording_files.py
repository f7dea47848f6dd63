"""A layer below SQLite that records writes and syncs, in order.

SQLite accesses files through a table of functions (its VFS). This module registers a copy of the
default one, as the new default, whose files record each write and each sync before they do it, or
refuse to sync. It
is the library that Python's own ``sqlite3`` uses, so the real calls are recorded. This cannot be
undone, so it belongs in a separate process.
"""

from __future__ import annotations

import _sqlite3
import ctypes
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

from strandline.clock import HybridClock
from strandline.errors import StrandlineError
from strandline.sql import open_sqlite, sqlite_file, take_time
from strandline.sql.schema_versions import Part
from tests.sql import work

Event = tuple[str, str]
"""What was done ("write", "sync", "truncate", "answer"), and to what ("database", "log", …)."""

PAGE = 4096
"""Bytes of a page of the kernel."""

Say = Callable[[object], None]
Hear = Callable[[], Any]

_OPEN = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_void_p,
    ctypes.c_void_p,  # the name; SQLite keeps this very pointer, so a copy does not work
    ctypes.c_void_p,
    ctypes.c_int,
    ctypes.c_void_p,
)
_WRITE = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_int64
)
_SYNC = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int)
_TRUNCATE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int64)
_KINDS = {"": "database", "-wal": "log", "-journal": "journal"}


class _FileMethods(ctypes.Structure):
    _fields_ = (
        ("version", ctypes.c_int),
        ("close", ctypes.c_void_p),
        ("read", ctypes.c_void_p),
        ("write", ctypes.c_void_p),
        ("truncate", ctypes.c_void_p),
        ("sync", ctypes.c_void_p),
        ("others", ctypes.c_void_p * 13),
    )


class _File(ctypes.Structure):
    _fields_ = (("methods", ctypes.POINTER(_FileMethods)),)


class _Vfs(ctypes.Structure):
    _fields_ = (
        ("version", ctypes.c_int),
        ("file_size", ctypes.c_int),
        ("longest_path", ctypes.c_int),
        ("next", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("data", ctypes.c_void_p),
        ("open", ctypes.c_void_p),
        ("others", ctypes.c_void_p * 15),
    )


class Recording:
    """Records all database files that are opened from now on."""

    def __init__(self, path: Path) -> None:
        self.events: list[Event] = []
        self.log_cannot_be_synced = False
        self._unsynced_pages: set[int] = set()
        self.lost_pages: set[int] = set()
        """Those of the log that a failed sync did not write, and that were not written again."""
        self._path = str(path)
        self._kept: list[object] = []  # objects that SQLite has pointers to
        library = ctypes.PyDLL(_sqlite3.__file__)
        library.sqlite3_vfs_find.restype = ctypes.POINTER(_Vfs)
        default = library.sqlite3_vfs_find(None)
        recording = _Vfs.from_buffer_copy(default.contents)
        recording.name = b"recording"
        recording.next = None
        recording.open = self._pointer(_OPEN(self._opening(default)))
        self._kept.append(recording)
        if library.sqlite3_vfs_register(ctypes.byref(recording), 1):
            raise RuntimeError("SQLite did not take the recording layer")

    def answered(self, what: str) -> None:
        """Record that a call of the program has returned."""
        self.events.append(("answer", what))

    def _opening(self, default: Any) -> Callable[..., int]:
        real = _OPEN(default.contents.open)
        whole = ctypes.cast(default, ctypes.c_void_p)

        def open_file(_: int, name: int | None, file: int, flags: int, out: int) -> int:
            code: int = real(whole, name, file, flags, out)
            text = ctypes.string_at(name).decode() if name else "?"
            kind = _KINDS.get(text.removeprefix(self._path))
            opened = ctypes.cast(file, ctypes.POINTER(_File)).contents
            if code == 0 and kind and opened.methods:
                opened.methods = ctypes.pointer(self._noting(kind, opened.methods.contents))
            return code

        return open_file

    def _noting(self, kind: str, real: _FileMethods) -> _FileMethods:
        noting = _FileMethods.from_buffer_copy(real)
        for name, form in (("write", _WRITE), ("sync", _SYNC), ("truncate", _TRUNCATE)):
            call = form(getattr(real, name))

            def note(*arguments: int, name: str = name, call: Any = call) -> int:
                self.events.append((name, kind))
                if kind == "log":
                    self._follow_pages(name, arguments)
                if (name, kind) == ("sync", "log") and self.log_cannot_be_synced:
                    return sqlite3.SQLITE_IOERR_FSYNC
                code: int = call(*arguments)
                return code

            setattr(noting, name, self._pointer(form(note)))
        self._kept.append(noting)
        return noting

    def _follow_pages(self, name: str, arguments: tuple[int, ...]) -> None:
        """Follow what a kernel does that drops the pages which it could not write."""
        if name == "write":
            _, _, size, offset = arguments
            pages = range(offset // PAGE, (offset + size - 1) // PAGE + 1)
            self._unsynced_pages.update(pages)
            self.lost_pages.difference_update(pages)
        elif name == "sync":
            if self.log_cannot_be_synced:
                self.lost_pages |= self._unsynced_pages
            self._unsynced_pages.clear()
        else:
            self.lost_pages = {page for page in self.lost_pages if page * PAGE < arguments[1]}

    def _pointer(self, function: Any) -> int | None:
        self._kept.append(function)
        return ctypes.cast(function, ctypes.c_void_p).value


def faults(events: list[Event]) -> list[str]:
    """The rules of durability that a record breaks.

    When a write is answered, its part of the log has been synced. The database is changed only from
    a synced log, and the log is truncated or restarted only after the database was synced.
    """
    problems = []
    unsynced = {"log": False, "database": False}
    for verb, what in events:
        if verb == "sync":
            unsynced[what] = False
        elif verb == "answer":
            if what == "write" and unsynced["log"]:
                problems.append("a write was answered before its log was synced")
        elif what == "log":
            if unsynced["database"]:
                problems.append(f"the log saw a {verb} before the database was synced")
            unsynced["log"] = verb == "write"
        elif what == "database" and verb == "write":
            if unsynced["log"]:
                problems.append("the database was changed from a log that was not synced")
            unsynced["database"] = True
    return problems


def write_and_record(say: Say, hear: Hear, path: str, synchronous: str | None) -> None:
    """Report what reached the disk of a database that writes, checkpoints and is closed.

    ``synchronous`` plants a fault: every connection gets this pragma instead of its own.
    """
    recording = Recording(Path(path))
    if synchronous is not None:

        def faulty(connection: sqlite3.Connection, *, synced: bool) -> None:
            connection.execute(f"PRAGMA synchronous={synchronous}")

        sqlite_file.sync_commits = faulty
    clock, database = HybridClock(), open_sqlite(path)
    for number in range(6):
        with database.write() as connection:
            take_time(connection, clock)
        recording.answered("write")
        with database.write(is_synced=False) as connection:
            take_time(connection, clock)
        recording.answered("unsynced write")
        if number == 3:
            with database.write() as connection:
                take_time(connection, clock)
            # Outside of our transactions, as SQLite itself does it when the log is long.
            other = sqlite_file.connect(Path(path), busy_ms=1000, query_only=False)
            other.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            other.close()
            recording.answered("checkpoint")
    database.close()
    recording.answered("end")
    say(recording.events)


def fail_to_sync_a_commit(say: Say, hear: Hear, path: str) -> None:
    """Commit 1, fail to sync the commit of 2, and report what reads say while the disk fails."""
    recording, database = Recording(Path(path)), open_sqlite(path)
    database.ensure_schema(Part("counter", 1, work.METADATA))
    work.put(database, 1, 1)

    def attempt(action: Callable[[], object]) -> None:
        try:
            say(action())
        except StrandlineError as error:
            say(error.code)

    def ids() -> object:
        return database.rows("SELECT id FROM counter")

    recording.log_cannot_be_synced = True
    attempt(lambda: work.put(database, 2, 2))
    attempt(ids)
    recording.log_cannot_be_synced = False
    attempt(ids)
    hear()


def fail_to_sync_after_an_unsynced_write(say: Say, hear: Hear, path: str) -> None:
    """Fail to sync a commit after an unsynced one; commit 3; report what a power cut would lose."""
    recording, database = Recording(Path(path)), open_sqlite(path)
    database.ensure_schema(Part("counter", 1, work.METADATA))
    work.put(database, 1, 1)
    say(sqlite_file.write_ahead_log(Path(path)).stat().st_size)
    with database.write(is_synced=False) as connection:
        connection.execute(work.COUNTER.insert(), [{"id": n, "value": n} for n in range(10, 1_000)])
    recording.log_cannot_be_synced = True
    try:
        work.put(database, 2, 2)
    except StrandlineError as error:
        say(error.code)
    recording.log_cannot_be_synced = False
    work.put(database, 3, 3)
    say(sorted(recording.lost_pages))
    hear()
