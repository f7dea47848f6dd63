"""A SQLite file under our rules: who waits for whom, what is on disk, and news of commits.

Several processes and many threads share one file. The model:

* A *read* is a snapshot. It starts at its first statement and waits for nobody. Its connection
  refuses to write.
* A *write* takes the file's one write lock at its begin (``BEGIN IMMEDIATE``), so that what it
  reads is what it changes. The threads of a process queue for their turn in order of arrival; the
  one whose turn it is tries for the lock against other processes in steps of a few milliseconds.
* `SqliteDatabase.write_unsynced` leaves the log's fsync to the next full commit. It uses a second
  connection with ``synchronous=NORMAL``. The file stays sound across a power cut, since NORMAL
  syncs the log before a checkpoint and the file after it, and a commit whose frames were lost was
  the end of the log: whatever came later in the log would have carried it to disk. ``OFF`` skips
  these syncs too and could tear the file, so it is not used.
* `SqliteDatabase.data_version` moves whenever somebody committed. SQLite counts commits of *other*
  connections only; it is asked on a connection of its own that never writes, under a lock, and to
  that connection every writer, in this process too, is another one. Asking costs a few
  microseconds and is linearizable: it starts a read transaction, whose begin looks at the shared
  index of the log. So a value read from the database *after* a data version was observed still
  stands, as of now, when the same data version is observed again.

Rejected: SQLAlchemy's and Python's own transaction handling (see `strandline.sql.sqlite_file`); one
connection a thread (worker threads come and go); the in-process shared cache (table locks between
threads, and it would hide commits from ``data_version``).
"""

from __future__ import annotations

import random
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path

from sqlalchemy import Connection, create_engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import QueuePool

from strandline.errors import Unavailable, UnknownOutcome, UnsupportedOperation
from strandline.sql import ground, sqlite_file
from strandline.sql.database import PATIENCE, Database
from strandline.sql.lock_holder import describe_holder

_POOL = 32
_POLL_SECONDS = 0.001
_LONGEST_POLL_SECONDS = 0.25
_LOOKS_IN_QUIET = 20
"""A waiter looks about so often in a time that is as long as the quiet before it."""
_OLDEST_SQLITE = (3, 35, 0)


def open_sqlite(path: Path | str, *, patience: float = PATIENCE) -> SqliteDatabase:
    """Open the database file ``path``, making it if it is missing; its folder must be there.

    ``patience`` is how many seconds a write waits at most when it names no deadline. Raises
    `InvalidInput`, `UnsupportedOperation`, `CorruptData`, `IncompatibleFormat` or `Unavailable`;
    then nothing was changed.
    """
    return open_url(sqlite_file.sqlite_url(path), patience=patience)


def open_url(url: str, *, patience: float = PATIENCE) -> SqliteDatabase:
    """`open_sqlite` for a URL (``sqlite:////folder/file``)."""
    if sqlite3.sqlite_version_info < _OLDEST_SQLITE:
        raise UnsupportedOperation(
            f"SQLite {sqlite3.sqlite_version} is too old; 3.35 or newer is needed"
        )
    path = sqlite_file.file_of(url)
    sqlite_file.refuse_network_file_system(path)
    database = SqliteDatabase(url, path, patience=patience)
    try:
        database.ensure_schema(ground.GROUND_PART, ground.GROUND_VERSION, ground.GROUND)
    except BaseException:
        database.close()
        raise
    return database


class SqliteDatabase(Database):
    """See `Database`; ``path`` is the file."""

    dialect = "sqlite"

    def __init__(self, url: str, path: Path, *, patience: float) -> None:
        super().__init__(url, str(path), patience=patience)
        self.path = path
        connect = partial(sqlite_file.connect, path)
        self._engine = create_engine(
            "sqlite+pysqlite://",
            creator=lambda: connect(
                synchronous="FULL", busy_ms=sqlite_file.READER_BUSY_MS, query_only=True
            ),
            poolclass=QueuePool,
            pool_size=_POOL,
            max_overflow=_POOL,
            pool_timeout=patience,
        )
        self._writers: dict[str, Connection] = {}
        self._writer_engines = {
            synchronous: create_engine(
                "sqlite+pysqlite://",
                creator=partial(
                    connect,
                    synchronous=synchronous,
                    busy_ms=sqlite_file.WRITER_BUSY_MS,
                    query_only=False,
                ),
                poolclass=QueuePool,
                pool_size=1,
                max_overflow=0,
            )
            for synchronous in ("FULL", "NORMAL")
        }
        self._watcher: sqlite3.Connection | None = None
        self._watching = threading.Lock()
        self._commits = self._wakes = 0
        self._version = -1  # the data version that was seen last, and since when
        self._moved_at = time.monotonic()

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A read transaction: one snapshot, as of its first statement. Writing in it is refused."""
        with self._in_use("reads"), self._translated():
            connection = self._engine.connect()
            try:
                connection.exec_driver_sql("BEGIN")
                yield connection
            finally:
                connection.close()

    def data_version(self) -> int:
        """A number that differs from the one before exactly when somebody has committed since."""
        self._refuse_in_a_fork()
        with self._watching:
            if self._closed:
                raise self._stopping()
            try:
                if self._watcher is None:
                    self._watcher = sqlite_file.connect(
                        self.path,
                        synchronous="FULL",
                        busy_ms=sqlite_file.READER_BUSY_MS,
                        query_only=True,
                    )
                version: int = self._watcher.execute("PRAGMA data_version").fetchone()[0]
            except sqlite3.Error as error:
                raise sqlite_file.translate(error, self.path) or error from error
            if version != self._version:
                self._version, self._moved_at = version, time.monotonic()
            return version

    def wait_for_commit(self, after: int, *, timeout: float) -> int:
        """Wait until `data_version` is no longer ``after``, for ``timeout`` seconds, or `wake`.

        Returns the data version of the end. A commit of this process wakes at once. Commits of
        others are looked for: SQLite can not call back, and this is the one place that polls. The
        longer nothing was committed the rarer that is, so that an idle process costs nothing: every
        millisecond behind a commit, and at last four times a second. A reader who must know asks
        `data_version` itself.
        """
        end = time.monotonic() + timeout
        wakes = self._wakes
        while True:
            with self._state:
                commits = self._commits
            version = self.data_version()
            left = end - time.monotonic()
            if version != after or left <= 0 or self._wakes != wakes:
                return version
            with self._state:
                if (self._commits, self._wakes) == (commits, wakes) and not self._closed:
                    self._counts["looks"] += 1
                    self._state.wait(min(self._pause(), left))

    def wake(self) -> None:
        """Let everybody who waits for a commit now return."""
        with self._state:
            self._wakes += 1
            self._state.notify_all()

    def _pause(self) -> float:
        """The seconds until the next look for a commit of another process."""
        quiet = time.monotonic() - self._moved_at
        return min(max(quiet / _LOOKS_IN_QUIET, _POLL_SECONDS), _LONGEST_POLL_SECONDS)

    def _close_connections(self) -> None:
        for connection in self._writers.values():
            connection.close()
        self._writers.clear()
        for engine in (self._engine, *self._writer_engines.values()):
            engine.dispose()
        with self._watching:
            if self._watcher is not None:
                self._watcher.close()
                self._watcher = None

    def _schema_change(self) -> AbstractContextManager[Connection]:
        return self.write()

    @contextmanager
    def _write(self, deadline: float | None, *, synced: bool) -> Iterator[Connection]:
        began = time.monotonic()
        deadline = began + self._patience if deadline is None else deadline
        count, synchronous = ("writes", "FULL") if synced else ("unsynced_writes", "NORMAL")
        with self._in_use(count), self._turn(began, deadline), self._translated():
            connection = self._writer(synchronous)
            try:
                self._begin(connection, began, deadline)
                yield connection
                self._commit(connection)
            except BaseException:
                self._undo(connection)
                self._count("failed_writes")
                raise
            with self._state:
                self._commits += 1
                self._state.notify_all()

    def _begin(self, connection: Connection, began: float, deadline: float) -> None:
        while True:
            try:
                connection.exec_driver_sql("BEGIN IMMEDIATE")
                break
            except DBAPIError as error:
                if not sqlite_file.is_busy(error):
                    raise
            self._count("lost_turns")
            if time.monotonic() >= deadline:
                holder = describe_holder(self.path)
                raise self._late(began, "another process", holder=holder)
            # Two processes in step would lose to the same third one again and again.
            time.sleep(random.uniform(0, _POLL_SECONDS))
        with self._state:
            self._waited += time.monotonic() - began

    def _commit(self, connection: Connection) -> None:
        if not getattr(connection.connection.dbapi_connection, "in_transaction", True):
            # A full or failing disk makes SQLite roll back by itself, and a caller that caught
            # that error would now be told of a commit that never was.
            raise Unavailable(f"{self.path} gave this write up after an error; nothing was written")
        try:
            connection.commit()
        except DBAPIError as error:
            if not sqlite_file.is_io_error(error):
                raise
            raise UnknownOutcome(
                f"the disk failed while {self.path} was committing ({error.orig}); the change may"
                " or may not be there: read before trying again"
            ) from error

    def _undo(self, connection: Connection) -> None:
        """Roll back; a connection that can not even do that is given up."""
        try:
            connection.rollback()
        except Exception:
            for synchronous, kept in list(self._writers.items()):
                if kept is connection:
                    del self._writers[synchronous]
            connection.invalidate()
            connection.close()

    def _writer(self, synchronous: str) -> Connection:
        """The write connection of this kind: kept open, used by the one thread whose turn it is."""
        found = self._writers.get(synchronous)
        if found is None:
            found = self._writers[synchronous] = self._writer_engines[synchronous].connect()
        return found

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            if not sqlite_file.is_database_error(error):
                raise
            ours = sqlite_file.translate(error, self.path)
            if ours is None:
                raise
            raise ours from error

    def _open_connections(self) -> int:
        pool = self._engine.pool
        pooled = pool.checkedin() + pool.checkedout() if isinstance(pool, QueuePool) else 0
        return pooled + len(self._writers) + (self._watcher is not None)
