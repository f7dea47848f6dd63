"""A SQLite file as a database: its locks, what is on disk, and how commits are noticed.

Several processes and many threads share one file. The model:

* A *write* takes the file's one write lock at its begin (``BEGIN IMMEDIATE``). The thread whose
  turn it is competes for the lock with other processes, in attempts a few milliseconds apart.
* All writes of a process use one connection, so its page cache stays valid from one write to the
  next. SQLite drops the cache when another connection has written.
* An unsynced write leaves the log's fsync to the next full commit, by switching the
  connection to ``synchronous=NORMAL``. The file stays sound across a power cut: NORMAL syncs the
  log before a checkpoint and the file after it. A commit whose frames were lost was at the end of
  the log, because a later sync of the log would have written it to disk. ``OFF`` skips these syncs
  too and could corrupt the file, so it is not used.
* The mark is SQLite's ``data_version``, which counts only commits of *other* connections. It is
  read on a separate connection that never writes, under a lock. To that connection every writer is
  another one, in this process too. Reading it costs a few microseconds and is linearizable: it
  starts a read transaction, whose begin looks at the shared index of the log. So a value that was
  read from the database *after* a mark was taken is still current if the same mark is seen again.
* A database of up to `CHECK_BYTES` is checked when it is opened (`find_damage`): SQLite has no
  checksums, and a flipped byte of an index hides a row. The opener of a larger one has it checked
  later.
* A commit that cannot be synced is undone, but stays at the end of the log, where a recovery after
  a crash would find it. A synced write puts other frames in its place. So the next read first
  makes one; while that fails, nothing is read.
* After a sync that failed, the kernel may have dropped what it could not write, and the next sync
  succeeds without it. Unsynced commits before the failed one may be a gap of the log, which would
  hide all later commits from a recovery. So the next synced commit also empties the log: a
  checkpoint syncs its content with the file.
* A write is committed only while the file and its log are still where they were opened. If the
  folder was moved away or deleted, writes would silently go to the old files.
* A connection is closed after Ctrl-C, and after any error that a signal handler may have raised. It
  may have interrupted a statement between two rows, and an interactive Python keeps the traceback,
  so also the statement: later reads on the connection would see its old snapshot, and later commits
  would fail.
* A forked process cannot open a file that its parent had open. SQLite counts the parent's locks as
  its own there, and takes none. The last other process to close the file would remove the log
  under it: the child would read old rows for ever, and its commits would be lost.

Rejected: the transaction handling of SQLAlchemy and Python (see `strandline.sql.sqlite_file`); one
connection for each thread (worker threads come and go); the in-process shared cache (it has table
locks between threads, and would hide commits from ``data_version``).
"""

from __future__ import annotations

import random
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import cast
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, create_engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from strandline.errors import (
    StoreMoved,
    StrandlineError,
    Unavailable,
    UnknownOutcome,
    UnsupportedOperation,
)
from strandline.sql import schema_versions, sqlite_file
from strandline.sql.database import DEFAULT_TIMEOUT, Database
from strandline.sql.head_file import HeadFile
from strandline.sql.pool import ConnectionPool
from strandline.sql.sqlite_file import describe_holder
from strandline.sql.statements import Parameter, Query, Row, change, rows_of

_POOL = 32
_TRY_SECONDS = 0.001
"""The longest pause between two attempts for the lock that another process holds."""
_SHORTEST_POLL_SECONDS = 0.01
_LONGEST_POLL_SECONDS = 0.25
_LOOKS_IN_QUIET = 20
"""The number of polls of a waiting thread in a time as long as the quiet time before it."""
CHECK_BYTES = 32 << 20
"""A larger file is not checked while its opener waits; that takes more than half a second."""
_OLDEST_SQLITE = (3, 35, 0)
_opened: WeakKeyDictionary[SqliteDatabase, None] = WeakKeyDictionary()
"""Every database that this process, or the one that it was forked from, has opened.

Unlike a `WeakSet`, its references can be listed while another thread opens a database."""


def open_sqlite(
    path: Path | str,
    *,
    timeout: float = DEFAULT_TIMEOUT,
    check_bytes: int = CHECK_BYTES,
    before_creation: Callable[[], None] | None = None,
    read_only: bool = False,
) -> SqliteDatabase:
    """Open the database file ``path``. It is created if it is missing; its folder must exist.

    ``timeout`` is how many seconds a write without a deadline waits at most. A file of up to
    ``check_bytes`` is checked first. ``before_creation`` is called if there is no database yet, or
    an empty one; it may refuse by raising. Raises `InvalidInput`, `UnsupportedOperation`,
    `CorruptData`, `IncompatibleFormat` or `Unavailable`; then nothing has changed.
    """
    if sqlite3.sqlite_version_info < _OLDEST_SQLITE:
        raise UnsupportedOperation(
            f"SQLite {sqlite3.sqlite_version} is too old; 3.35 or newer is needed"
        )
    path = sqlite_file.checked_place(Path(path))
    sqlite_file.refuse_network_file_system(path)
    for opened in _opened.keyrefs():
        database = opened()
        if database is not None and database.path == path and not database._closed:
            database.refuse_in_a_fork()
    size = sqlite_file.size_of(path)
    if before_creation is not None and not (size and path.exists()):  # a log alone is no database
        before_creation()
    if not size:
        with suppress(OSError):  # connecting fails then, and says why
            path.touch(0o644)
    if 0 < size <= check_bytes and (damage := sqlite_file.find_damage(path)):
        raise sqlite_file.damaged(path, damage)
    database = SqliteDatabase(path, timeout=timeout, read_only=read_only)
    try:
        if before_creation is not None and size:
            with database.read() as connection:
                empty = schema_versions.version_of(connection, schema_versions.BASE) is None
            if empty:
                before_creation()
        database.ensure_schema(schema_versions.BASE)
        database.remember_place()
        database.was_checked = size <= check_bytes
    except BaseException:
        database.close()
        raise
    return database


def open_url(
    url: str, *, timeout: float = DEFAULT_TIMEOUT, read_only: bool = False
) -> SqliteDatabase:
    """`open_sqlite` for a URL (``sqlite:////folder/file``)."""
    return open_sqlite(sqlite_file.file_of(url), timeout=timeout, read_only=read_only)


class SqliteDatabase(Database):
    """See `Database`; ``path`` is the file."""

    dialect = "sqlite"
    columns_query = (
        "SELECT m.name, c.name FROM sqlite_master AS m, pragma_table_info(m.name) AS c"
        " WHERE m.type = 'table'"
    )
    after_fork = (
        "SQLite cannot share it with this process: close it before the fork, or start this process "
        "in another way (in multiprocessing, 'spawn')"
    )
    mark_is_proof = True
    may_lose_provisional = True
    reads_ahead = False

    def __init__(self, path: Path, *, timeout: float, read_only: bool = False) -> None:
        super().__init__(str(path), timeout=timeout, read_only=read_only)
        self.path = path
        _opened[self] = None
        self._log_path = sqlite_file.write_ahead_log(path)
        connect = partial(sqlite_file.connect, path)
        self._connect_reader = partial(connect, busy_ms=sqlite_file.READER_BUSY_MS, query_only=True)
        self._readers: list[sqlite3.Connection] = []
        """For single statements: SQLAlchemy's pool takes longer than most of them."""
        self._engine = create_engine(
            "sqlite+pysqlite://",
            creator=self._connect_reader,
            poolclass=ConnectionPool,
            pool_size=_POOL,
            max_overflow=_POOL,
            pool_timeout=timeout,
        )
        self._writer: Connection | None = None  # used by the one thread whose turn it is
        self._writer_syncs = True
        self._writer_engine = create_engine(
            "sqlite+pysqlite://",
            creator=partial(connect, busy_ms=sqlite_file.WRITER_BUSY_MS, query_only=False),
            poolclass=NullPool,  # one that an interrupt lost must not be waited for
        )
        self._place: tuple[object, object] | None = None
        self._head: HeadFile | None = None
        self._damage: list[str] = []
        self.was_checked = False
        self._watcher: sqlite3.Connection | None = None
        self._look: sqlite3.Cursor | None = None
        self._watching = threading.Lock()
        self._commits = self._wakes = 0
        self._failed_commit = False  # whether one may still be at the end of the log
        self._has_gap = False  # whether the log may have one
        self._version = -1  # the last mark, and since when it is unmoved
        self._moved_at = time.monotonic()

    def keep_head(self, head: HeadFile) -> None:
        """Record in ``head`` what each synced commit makes durable. Its tables must exist."""
        self._head = head

    def remember_place(self) -> None:
        """Require from now on that the file stays where it is; see `check_place`."""
        self._place = self._present_place()

    def check_place(self) -> None:
        """Raise `StoreMoved` if the file or its log was moved away, deleted or replaced."""
        if self._place is not None and self._present_place() != self._place:
            raise StoreMoved(
                f"{self.path} or its write-ahead log was moved, deleted or replaced while it was "
                "open here: nothing was written. Put the folder back where it was and restart "
                "this process; if it was moved on purpose, start it with the new path"
            )

    def _present_place(self) -> tuple[object, object]:
        return sqlite_file.identity(self.path), sqlite_file.identity(self._log_path)

    def check_damage(self) -> None:
        """Raise `CorruptData` if `find_damage` found any."""
        if self._damage:
            raise sqlite_file.damaged(self.path, self._damage)

    def allow_more_time(self, connection: Connection) -> None:
        """Does nothing: in SQLite a transaction that has begun has no time limit."""

    def find_damage(self) -> list[str]:
        """Read the whole database and return its faults. Any fault stops all later writes.

        Takes a second for each 100 MB; SQLite does the work, not Python.
        """
        self.refuse_in_a_fork()
        self._damage = sqlite_file.find_damage(self.path)
        self.was_checked = True
        return self._damage

    def index_hint(self, index: str) -> str:
        """See `Database.index_hint`. Without statistics, SQLite prefers a range of the key."""
        return f" INDEXED BY {index}"

    def size(self) -> int:
        """See `Database.size`. Includes the write-ahead log."""
        return sqlite_file.size_of(self.path)

    @contextmanager
    def read(self, *, first: Sequence[Query] = ()) -> Iterator[Connection]:
        self._settle()
        with self._in_use("reads"):
            connection = self._engine.connect()
            try:
                sqlite_file.driver_of(connection).execute("BEGIN")
                yield connection
            except BaseException as error:
                if _may_interrupt(error):
                    connection.invalidate()
                raise
            finally:
                connection.close()

    def rows(self, statement: str, parameters: tuple[Parameter, ...] = ()) -> list[Row]:
        """See `Database.rows`. A single statement is a snapshot."""
        self._settle()
        with self._in_use("reads"):
            try:
                reader = self._readers.pop()
            except IndexError:
                reader = self._connect_reader()
            try:
                rows = rows_of(reader, statement, parameters)
            except BaseException:
                reader.close()
                raise
            if len(self._readers) < _POOL:
                self._readers.append(reader)
            else:
                reader.close()
            return rows

    def sync(self) -> None:
        """Return once everything that any process committed before is on disk.

        Data that has left the log was synced before.
        """
        sqlite_file.sync(self._log_path)

    def mark(self) -> int:
        """A number that changes exactly when any process has committed since the last call."""
        self.refuse_in_a_fork()
        with self._watching:
            if self._closed:
                raise self._stopping()
            try:
                if self._look is None:
                    self._watcher = self._connect_reader()
                    self._look = self._watcher.cursor()
                version: int = self._look.execute("PRAGMA data_version").fetchall()[0][0]
            except sqlite3.Error as error:
                raise sqlite_file.translate(error, self.path) or error from error
            if version != self._version:
                self._version, self._moved_at = version, time.monotonic()
            return version

    def wait_for_commit(self, after: int, *, timeout: float) -> int:
        """See `Database.wait_for_commit`.

        A commit of this process with ``notifies`` wakes the waiting threads at once. Other commits
        are found by polling, since SQLite has no callback for them; this is the only place that
        polls. Polls are rarer the longer nothing was committed, so that an idle process costs
        nothing: every ten milliseconds after a commit, so that a writing process is not disturbed
        more often, and finally four times a second. A reader that must know calls `mark`.
        """
        end = time.monotonic() + timeout
        wakes = self._wakes
        while True:
            with self._state:
                commits = self._commits
            version = self.mark()
            seconds_left = end - time.monotonic()
            if version != after or seconds_left <= 0 or self._wakes != wakes:
                return version
            with self._state:
                if (self._commits, self._wakes) == (commits, wakes) and not self._closed:
                    self._counts["looks"] += 1
                    self._state.wait(min(self._pause(), seconds_left))

    def wake(self) -> None:
        with self._state:
            self._wakes += 1
            self._state.notify_all()

    def _pause(self) -> float:
        """The seconds until the next poll for a commit of another process."""
        quiet = time.monotonic() - self._moved_at
        return min(max(quiet / _LOOKS_IN_QUIET, _SHORTEST_POLL_SECONDS), _LONGEST_POLL_SECONDS)

    def _close_connections(self) -> None:
        if self._head is not None:
            self._head.close()
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        for engine in (self._engine, self._writer_engine):
            engine.dispose()
        while self._readers:
            self._readers.pop().close()
        with self._watching:
            if self._watcher is not None:
                self._watcher.close()
                self._watcher = self._look = None

    def _schema_change(self) -> AbstractContextManager[Connection]:
        return self.write()

    @contextmanager
    def _write(
        self,
        deadline: float | None,
        *,
        synced: bool,
        first: Sequence[Query] = (),
        notifies: bool = True,
    ) -> Iterator[Connection]:
        began = time.monotonic()
        deadline = began + self._timeout if deadline is None else deadline
        count = "writes" if synced else "unsynced_writes"
        turn = self._turn(began, deadline)
        with self._in_use(count, turn), turn:
            connection = self._connected_writer(synced=synced)
            driver = sqlite_file.driver_of(connection)
            try:
                with driver:  # which ends the transaction even if Ctrl-C cuts off `_undo`
                    self._begin(connection, began, deadline)
                    changes = driver.total_changes
                    with self._undoing():
                        yield connection
                        self.check_place()
                        self.check_damage()
                        # A commit without changes writes and syncs nothing.
                        has_changes = driver.total_changes > changes
                        head = self._head if synced and has_changes else None
                        marks = {} if head is None else head.read_marks(driver)
                        self._commit(connection)
                if has_changes:
                    self._failed_commit &= not synced
                    if synced and self._has_gap:
                        self._has_gap = not sqlite_file.empty_log(driver)
            except BaseException as error:
                self._undo(connection, error)
                self._count("failed_writes")
                raise
            if head is not None:
                head.note(marks)
            if notifies:
                with self._state:
                    self._commits += 1
                    self._state.notify_all()

    def _begin(self, connection: Connection, began: float, deadline: float) -> None:
        driver = sqlite_file.driver_of(connection)
        while True:
            try:
                driver.execute("BEGIN IMMEDIATE")
                break
            except sqlite3.Error as error:
                if not sqlite_file.is_busy(error):
                    raise
            self._count("lost_turns")
            self._refuse_to_wait()
            if time.monotonic() >= deadline:
                holder = describe_holder(self.path)
                raise self._late(began, "another process", holder=holder)
            # Random, because two processes in step would keep losing to the same third one.
            time.sleep(random.uniform(0, _TRY_SECONDS))
        with self._state:
            self._waited += time.monotonic() - began

    def _other_process_that_writes(self) -> str | None:
        return describe_holder(self.path, own=False)

    def _commit(self, connection: Connection) -> None:
        driver = sqlite_file.driver_of(connection)
        if not driver.in_transaction:
            # A full or failing disk makes SQLite roll back by itself. A caller that caught that
            # error must not take the write for committed.
            raise Unavailable(
                f"{self.path} rolled this write back after an error; nothing was written"
            )
        # SQLAlchemy has a transaction if it sent a statement. By itself it takes longer than this.
        commit = connection.commit if connection.in_transaction() else driver.commit
        try:
            commit()
        except (DBAPIError, sqlite3.Error) as error:
            if not sqlite_file.is_io_error(error):
                raise
            self._undos.clear()  # before Ctrl-C takes the place of the unknown outcome
            self._failed_commit |= sqlite_file.may_be_in_the_log(error)
            self._has_gap |= self._failed_commit
            reason = error.orig if isinstance(error, DBAPIError) else error
            raise UnknownOutcome.of_commit(
                f"the disk failed while {self.path} was committing ({reason})"
            ) from error
        except BaseException:  # of a signal handler, such as Ctrl-C
            self._undos.clear()  # raised when SQLite has returned, so this may be committed
            raise
        self._undos.clear()

    def _settle(self) -> None:
        """Overwrite a failed commit in the log, so that it stays undone. Raises `Unavailable`."""
        if not self._failed_commit or self._process_lock.held_by_this_thread():
            return
        try:
            with self._write(None, synced=True, notifies=False) as connection:
                change(connection, "UPDATE strandline_clock SET time = time + 1 WHERE id = 1")
        except UnknownOutcome as error:
            raise Unavailable(
                f"{self.path} cannot be read now: the disk failed during a commit, whose outcome "
                "can only be settled when the disk works again; check the disk"
            ) from error

    def _undo(self, connection: Connection, cause: BaseException) -> None:
        """Roll back. A connection that was interrupted, or cannot roll back, is closed."""
        is_usable = not _may_interrupt(cause)
        try:
            # If Ctrl-C interrupts a commit, SQLAlchemy's transaction may have ended, not SQLite's.
            sqlite_file.driver_of(connection).rollback()
            connection.rollback()
        except BaseException as error:
            is_usable = False
            if not isinstance(error, Exception):  # Ctrl-C
                raise
        finally:
            if not is_usable:
                if self._writer is connection:
                    self._writer = None
                connection.invalidate()
                connection.close()

    def _connected_writer(self, *, synced: bool) -> Connection:
        """The write connection. Its next commit waits for the disk if ``synced``."""
        if self._writer is None:
            self._writer, self._writer_syncs = self._writer_engine.connect(), True
        if self._writer_syncs != synced:
            sqlite_file.sync_commits(sqlite_file.driver_of(self._writer), synced=synced)
            self._writer_syncs = synced
        return self._writer

    def _translate(self, error: Exception) -> StrandlineError | None:
        translated = sqlite_file.translate(error, self.path)
        if type(translated) is Unavailable:
            try:
                self.check_place()  # a new connection does not find the log: it is not the disk
            except StoreMoved as moved:
                return moved
        return translated

    def _open_connections(self) -> int:
        pooled = cast(ConnectionPool, self._engine.pool).open_connections()
        others = (self._writer, self._watcher)
        return pooled + len(self._readers) + sum(kept is not None for kept in others)


def _may_interrupt(error: BaseException) -> bool:
    """Whether a signal handler may have raised it, such as the `TimeoutError` of a time limit.

    Handlers run in the main thread. Others also raise errors to end a block, and keep their
    connections.
    """
    if not isinstance(error, Exception):
        return True
    is_main = threading.current_thread() is threading.main_thread()
    return is_main and not isinstance(error, StrandlineError | DBAPIError | sqlite3.Error)
