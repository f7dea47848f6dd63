"""How a SQLite file is found and opened, and what its errors mean.

Every connection has these settings: a write-ahead log, so that readers never wait for writers;
``synchronous=FULL``, so that a commit that returned is on disk; foreign keys; temporary data in
memory, because a service may have no folder for temporary files that it can write to; and
``isolation_level=None``, which disables Python's own transaction handling. Python opens
transactions according to the first word of a statement, and never for reads, so it gives neither
snapshots nor ``BEGIN IMMEDIATE``.

A file on a network file system is refused. SQLite's log keeps its index in memory shared between
processes, and its locks are those of the file system. A network has no such memory, and often only
promises the locks. The result is a corrupt file, discovered long after the cause.

**Who holds the write lock.** With a write-ahead log, the write lock is a POSIX lock on one byte of
the shared index. Linux lists every such lock in ``/proc/locks``, with its process. Reading that
opens no file of the database. This matters because a process that closes *any* descriptor of a file
loses all its own POSIX locks on it: a query by ``fcntl`` on a new descriptor would release the
locks that SQLite holds in this process.

If the system does not tell (not Linux, or a process in another container), the holder is unknown.
"""

from __future__ import annotations

import os
import re
import sqlite3
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from sqlalchemy import Connection, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError

from strandline.errors import (
    CorruptData,
    DeadlineExceeded,
    InvalidInput,
    StrandlineError,
    Unavailable,
    UnsupportedOperation,
    cut,
)
from strandline.sql.database import StoreFull

MOUNTS = Path("/proc/self/mounts")

_NETWORK_KINDS = re.compile(
    r"9p|afs|beegfs|ceph|cifs|coda|davfs|gfs2|gpfs|lustre|ncpfs|nfs|nfs4|ocfs2|smb[23]?|smbfs"
    r"|virtiofs|wekafs"
    r"|fuse\.(sshfs|s3fs|glusterfs|ceph|rclone|gcsfuse|goofys|davfs|nfs|smb|curlftpfs|juicefs).*"
)

READER_BUSY_MS = 5_000
"""With a write-ahead log, a reader waits only while another process recovers or removes the log."""
WRITER_BUSY_MS = 3
"""SQLite sleeps 1 ms, then 2 ms, and returns to our own loop, which has a deadline."""
_JOURNAL_LIMIT = 64 << 20
_FIRST_OPEN_TIMEOUT = 10.0
_MAX_FAULTS = 5


def file_of(url: str) -> Path:
    """The file that a ``sqlite:///…`` URL names.

    Raises `InvalidInput` if the URL is invalid or names a database in memory.
    """
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        raise InvalidInput(
            f"{url!r} is not a database URL; write it like sqlite:////folder/strandline.db"
        ) from None
    name = parsed.database or ""
    if name in ("", ":memory:") or "\0" in name or parsed.query:
        raise InvalidInput(
            f"{url!r} does not name a database file; write it like sqlite:////folder/strandline.db"
        )
    return Path(name)


def checked_place(path: Path) -> Path:
    """The file, absolute and with symbolic links resolved.

    Raises `InvalidInput` if the folder is missing, or if ``path`` is a folder itself.
    """
    try:
        path = path.resolve()
        if not path.parent.is_dir():
            raise InvalidInput(f"the folder {path.parent} does not exist; create it first")
        if path.is_dir():
            raise InvalidInput(f"{path} is a folder; give the path of a database file")
    except OSError as error:
        raise _unreachable(path, error) from None
    return path


def _unreachable(path: Path, error: OSError) -> Unavailable:
    return Unavailable(
        f"{path} cannot be reached ({error.strerror}); check its folder and the rights on it"
    )


def refuse_network_file_system(path: Path, *, mounts: Path = MOUNTS) -> None:
    """Raise `UnsupportedOperation` if ``path`` (absolute, resolved) is not on a local disk.

    Without a list of mounts (not Linux), nothing is known and nothing is refused.
    """
    try:
        lines = mounts.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return
    best, kind, inside = "", "", f"{path}/"
    for line in lines:
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        point = fields[1]
        if "\\" in point:
            point = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), point)
        # Of two mounts on one mount point, the later one hides the earlier one.
        if len(point) >= len(best) and inside.startswith(f"{point.rstrip('/')}/"):
            best, kind = point, fields[2]
    if _NETWORK_KINDS.fullmatch(kind):
        raise UnsupportedOperation(
            f"{path} is on a network file system ({kind}, mounted at {best}), where SQLite's "
            "locks do not work; use a folder on a local disk"
        )


def connect(path: Path, *, busy_ms: int, query_only: bool) -> sqlite3.Connection:
    """A connection with the settings of this module. The caller opens every transaction itself.

    The file must exist. In place of one that was moved away, SQLite would create an empty one, and
    then delete the write-ahead log, which has commits of the other.
    """
    connection = sqlite3.connect(
        f"{path.as_uri()}?mode=rw",
        uri=True,
        timeout=READER_BUSY_MS / 1000,
        isolation_level=None,
        check_same_thread=False,  # a connection moves between threads, one at a time
        cached_statements=256,
    )
    try:
        _use_write_ahead_log(connection, path)
        sync_commits(connection, synced=True)
        connection.execute("PRAGMA cell_size_check=ON")  # checks each page when it is read
        connection.execute("PRAGMA foreign_keys=ON")
        connection.execute("PRAGMA case_sensitive_like=ON")  # as in PostgreSQL, so it uses indexes
        connection.execute("PRAGMA temp_store=MEMORY")
        connection.execute(f"PRAGMA journal_size_limit={_JOURNAL_LIMIT}")
        connection.execute(f"PRAGMA query_only={'ON' if query_only else 'OFF'}")
        connection.execute(f"PRAGMA busy_timeout={busy_ms}")
    except UnicodeDecodeError as error:
        # SQLite's message about a damaged schema contains the damaged text.
        connection.close()
        raise _unreadable_schema() from error
    except BaseException:
        connection.close()
        raise
    return connection


def sync_commits(connection: sqlite3.Connection, *, synced: bool) -> None:
    """Make commits on the connection wait for the disk, or not. Not inside a transaction."""
    connection.execute(f"PRAGMA synchronous={'FULL' if synced else 'NORMAL'}")


def empty_log(connection: sqlite3.Connection) -> bool:
    """Move the log to the database, synced. Return False if readers or the disk prevent it.

    Not inside a transaction.
    """
    try:
        ((is_prevented, _, _),) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    except sqlite3.Error:
        return False
    return not is_prevented


def _unreadable_schema() -> sqlite3.DatabaseError:
    error = sqlite3.DatabaseError("its schema has text that is not UTF-8")
    error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
    return error


def _use_write_ahead_log(connection: sqlite3.Connection, path: Path) -> None:
    """Switch to the write-ahead log.

    Two processes that create the file at once may conflict here, where SQLite does not wait.
    """
    end = time.monotonic() + _FIRST_OPEN_TIMEOUT
    while True:
        try:
            (mode,) = connection.execute("PRAGMA journal_mode=WAL").fetchone()
        except sqlite3.OperationalError as error:
            if not is_busy(error) or time.monotonic() > end:
                raise
            time.sleep(0.001)
            continue
        if mode != "wal":
            raise Unavailable(f"{path} cannot use a write-ahead log (it is in mode {mode!r})")
        return


def find_damage(path: Path) -> list[str]:
    """The faults of the database's pages, rows and indexes; empty if it is sound.

    A value of another type than its column's is a fault too. Reads the whole database (about a
    second for 100 MB) and waits for no other process.
    """
    try:
        connection = connect(path, busy_ms=READER_BUSY_MS, query_only=True)
        try:
            connection.text_factory = lambda data: data.decode(errors="replace")
            rows = connection.execute(f"PRAGMA integrity_check({_MAX_FAULTS})").fetchall()
            if rows == [("ok",)]:
                rows = _mistyped_columns(connection)
        finally:
            connection.close()
    except sqlite3.Error as error:
        translated = translate(error, path)
        if isinstance(translated, CorruptData):
            return [str(error)]
        raise translated or error from error
    return [str(row[0]) for row in rows if row[0] != "ok"]


_TYPES = {"INT": "integer", "BOOL": "integer", "CHAR": "text", "TEXT": "text", "BLOB": "blob"}
"""SQLite's name for the type of values, by a word in the declared type of their column."""


def _mistyped_columns(connection: sqlite3.Connection) -> list[tuple[str]]:
    """The columns that contain a value of another type than they are declared with.

    The header of a row has the type of each of its values. SQLite's own check compares that with
    the declaration only in ``STRICT`` tables.
    """
    mistyped = []
    tables = connection.execute(
        "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite%'"
    ).fetchall()
    for (table,) in tables:
        declared = connection.execute(
            "SELECT name, type FROM pragma_table_info(?) ORDER BY cid", (table,)
        ).fetchall()
        columns = [
            (name, kind)
            for name, declared_type in declared
            for word, kind in _TYPES.items()
            if word in declared_type
        ]
        tests = [f"""typeof("{name}") NOT IN ('{kind}', 'null')""" for name, kind in columns]
        sums = ", ".join(f"total({test})" for test in tests)
        counts = connection.execute(f'SELECT {sums} FROM "{table}"').fetchone() if tests else ()
        mistyped += [
            (f"{count:.0f} values of {table}.{name} are not of type {kind}",)
            for (name, kind), count in zip(columns, counts, strict=True)
            if count
        ]
    return mistyped[:_MAX_FAULTS]


def driver_of(connection: Connection) -> sqlite3.Connection:
    """The sqlite3 connection below one of SQLAlchemy."""
    driver = connection.connection.dbapi_connection
    assert isinstance(driver, sqlite3.Connection)
    return driver


def sync(path: Path) -> None:
    """Return once everything that was written to the file is on disk. Raises `Unavailable`."""
    try:
        file = os.open(path, os.O_RDONLY)
        try:
            os.fsync(file)
        finally:
            os.close(file)
    except OSError as error:
        raise Unavailable(f"{path} cannot be synced ({error.strerror}); check the disk") from error


def damaged(path: Path, faults: list[str]) -> CorruptData:
    """The error for the faults that `find_damage` found."""
    return CorruptData(
        f"{path} is damaged ({'; '.join(faults)}); restore from a backup of the whole folder"
    )


def size_of(path: Path) -> int:
    """The size of the database and its log in bytes; 0 if they do not exist."""
    total = 0
    for file in (path, write_ahead_log(path)):
        try:
            total += file.stat().st_size
        except FileNotFoundError:
            continue
    return total


def identity(path: Path) -> tuple[int, int] | None:
    """The device and inode of the file at ``path``, or None if it does not exist.

    Raises `Unavailable` if the system does not tell.
    """
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _unreachable(path, error) from error
    return status.st_dev, status.st_ino


def write_ahead_log(path: Path) -> Path:
    return path.with_name(path.name + "-wal")


def is_busy(error: BaseException) -> bool:
    """Whether another connection held a lock."""
    return _code(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def is_io_error(error: BaseException) -> bool:
    """Whether the disk failed."""
    return _code(error) == sqlite3.SQLITE_IOERR


def may_be_in_the_log(error: BaseException) -> bool:
    """Whether all frames of a commit that the disk failed may have been written to the log."""
    return _extended_code(error) != sqlite3.SQLITE_IOERR_WRITE


def translate(error: BaseException, path: Path) -> StrandlineError | None:
    """The `StrandlineError` for an error of SQLite.

    None for any other error, and for an error of the caller, such as a violated constraint.
    """
    if not isinstance(error, DBAPIError | sqlite3.Error):
        return None
    code = _code(error)
    reason = getattr(error, "orig", None) or error
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        # SQLite reports a read that failed with EIO as damage, too.
        return CorruptData(
            f"{path} is damaged, is not a SQLite database, or is on a disk that fails ({reason}); "
            "check the disk, and if it works, restore from a backup of the whole folder"
        )
    if str(reason).startswith("Could not decode to UTF-8"):
        return CorruptData(f"{path} has text that is not UTF-8 ({reason}); restore from a backup")
    if code == sqlite3.SQLITE_ERROR and str(reason) == "unsupported file format":
        return CorruptData(
            f"{path} has a file format that this SQLite does not know ({reason}); restore from a"
            " backup of the whole folder"
        )
    if code == sqlite3.SQLITE_ERROR and str(reason).startswith("no such"):
        return CorruptData(
            f"tables that were created in {path} are missing ({reason}); restore from a backup of "
            "the whole folder"
        )
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return DeadlineExceeded(f"{path} is locked by another process ({reason}); try again")
    # The index of the log is the first file that is made, and lacks a code of its own for this.
    if code == sqlite3.SQLITE_FULL or _extended_code(error) == sqlite3.SQLITE_IOERR_SHMSIZE:
        return StoreFull(f"the disk that holds {path} is full; free space and try again")
    if code == sqlite3.SQLITE_TOOBIG:
        return InvalidInput(f"a value is larger than {path} can hold ({reason})")
    if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH):
        return Unavailable(_unwritable(path))
    if code == sqlite3.SQLITE_CANTOPEN:
        files = (path.parent, path, write_ahead_log(path), path.with_name(f"{path.name}-shm"))
        if all(os.access(file, os.R_OK | os.W_OK) for file in files if os.path.lexists(file)):
            return Unavailable(
                f"{path} cannot be opened ({reason}): this process has as many open files as it may"
                " (see `ulimit -n`), the disk has no space or inodes for a new file (see `df -i`), "
                "or the disk fails; raise the limit, free space or check the disk, and try again"
            )
        return Unavailable(_unwritable(path))
    if code in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_PROTOCOL):
        return Unavailable(f"reading or writing {path} failed ({reason}); check the disk")
    return None


def _unwritable(path: Path) -> str:
    with suppress(OSError):
        if os.statvfs(path.parent).f_flag & os.ST_RDONLY:
            return (
                f"{path} is on a file system that is mounted read-only, as Linux does after an "
                "error of the disk; readers write too (locks and the log's index), so check the "
                "disk, and mount it for writing"
            )
    return (
        f"{path} or its folder cannot be written by this user; readers write too (locks and the "
        "log's index), so give this user write access to the folder and the files in it"
    )


def _code(error: BaseException) -> int | None:
    """SQLite's primary result code, or None."""
    code = _extended_code(error)
    return None if code is None else code & 0xFF


def _extended_code(error: BaseException) -> int | None:
    return getattr(getattr(error, "orig", None) or error, "sqlite_errorcode", None)


LOCKS = Path("/proc/locks")
PROCESSES = Path("/proc")
_WRITE_BYTE = 120
"""The byte of the shared index that is the write lock, as in SQLite's file format."""
_SHOWN = 120
_STOPPED = frozenset("Tt")


class _Lock(NamedTuple):
    process: int
    inode: int
    device: str
    first: int
    last: float


def describe_holder(database: Path, *, locks: Path = LOCKS, own: bool = True) -> str | None:
    """A description of the process that holds the write lock of ``database``, and what to do.

    None if it is unknown. If ``own`` is False, also None if this process holds the lock.
    """
    holder = _holder(database, locks)
    return None if holder is None or (holder == os.getpid() and not own) else _described(holder)


def _holder(database: Path, locks: Path) -> int | None:
    try:
        index = os.stat(f"{database}-shm")
        lines = locks.read_text(errors="replace").splitlines()
    except OSError:
        return None
    device = f"{os.major(index.st_dev):02x}:{os.minor(index.st_dev):02x}"
    holders = [
        lock
        for lock in _write_locks(lines)
        if lock.inode == index.st_ino and lock.first <= _WRITE_BYTE <= lock.last
    ]
    # On some file systems the device numbers in the list differ from those that stat returns.
    holders.sort(key=lambda lock: lock.device != device)
    return holders[0].process if holders and holders[0].process > 0 else None


def _write_locks(lines: list[str]) -> Iterator[_Lock]:
    """The exclusive locks in lines like ``1: POSIX ADVISORY WRITE 4711 08:01:123 120 120``."""
    for line in lines:
        words = line.split()
        if "->" in words or len(words) < 8 or words[3] != "WRITE":
            continue
        device, _, inode = words[5].rpartition(":")
        last = float("inf") if words[7] == "EOF" else float(words[7])
        yield _Lock(int(words[4]), int(inode), device, int(words[6]), last)


def _described(process: int) -> str:
    if process == os.getpid():
        return "another part of this process holds its write lock"
    folder = PROCESSES / str(process)
    holder = f"process {process}"
    try:
        command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        state = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return f"{holder} holds its write lock"
    # Any program can choose its command line, which must not break a log line.
    command = " ".join("".join(c if c.isprintable() else " " for c in command).split())
    if command:
        holder += f" ({cut(command, _SHOWN)})"
    if state in _STOPPED:
        return f"{holder} holds its write lock and is stopped; resume it (kill -CONT) or end it"
    return f"{holder} holds its write lock"
