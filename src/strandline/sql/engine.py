"""One SQL database under our rules: read and write transactions, schema versions, news of commits.

Several processes and many threads share one SQLite file. The model:

* A *read* is a snapshot. It starts at its first statement, sees everything that was committed by
  then, by anyone, and waits for nobody. Its connection refuses to write.
* A *write* takes the database's one write lock at its begin (``BEGIN IMMEDIATE``), so that what it
  reads is what it changes. The threads of a process queue for their turn in order of arrival; the
  one whose turn it is tries for the lock against other processes in steps of a few milliseconds.
  Both waits end at the caller's deadline with `DeadlineExceeded`.
* A write that returned is on disk. `Database.write_unsynced` is the exception, for what is worth
  remembering only as long as the machine runs: it leaves the log's fsync to the next full commit.
  It uses a second connection with ``synchronous=NORMAL``. The file stays sound across a power cut,
  since NORMAL syncs the log before a checkpoint and the file after it, and a commit whose frames
  were lost was the end of the log: whatever came later in the log would have carried it to disk.
  ``OFF`` skips these syncs too and could tear the file, so it is not used.
* `Database.data_version` moves whenever somebody committed. SQLite counts commits of *other*
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
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from sqlalchemy import Connection, MetaData, create_engine, insert, inspect
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import QueuePool

from strandline.errors import (
    DeadlineExceeded,
    InvalidInput,
    Stopping,
    StrandlineError,
    Unavailable,
    UnknownOutcome,
    UnsupportedOperation,
)
from strandline.sql import ground, sqlite_file
from strandline.sql.turns import Turns

PATIENCE = 30.0
"""Seconds that a write waits for its turn when its caller names no deadline."""
_POOL = 32
_POLL_SECONDS = 0.001
_CLOSE_PATIENCE = 10.0
_OLDEST_SQLITE = (3, 35, 0)


@dataclass(frozen=True, slots=True)
class DatabaseStatistics:
    """Counts since the database was opened; ``waited`` is in seconds, over all writers."""

    reads: int
    writes: int
    unsynced_writes: int
    failed_writes: int
    lost_turns: int
    waited: float
    waiting: int
    open_connections: int


def open_engine(url: str, *, patience: float = PATIENCE) -> Database:
    """Open the database at ``url`` (``sqlite:////folder/file``), making the file if it is missing.

    ``patience`` is how many seconds a write waits at most when it names no deadline. Raises
    `InvalidInput`, `UnsupportedOperation`, `CorruptData`, `IncompatibleFormat` or `Unavailable`;
    then nothing was changed.
    """
    if sqlite3.sqlite_version_info < _OLDEST_SQLITE:
        raise UnsupportedOperation(
            f"SQLite {sqlite3.sqlite_version} is too old; 3.35 or newer is needed"
        )
    path = sqlite_file.file_of(url)
    sqlite_file.refuse_network_file_system(path)
    database = Database(url, path, patience=patience)
    try:
        database.ensure_schema(ground.GROUND_PART, ground.GROUND_VERSION, ground.GROUND)
    except BaseException:
        database.close()
        raise
    return database


class Database:
    """One database, opened by `open_engine`. Safe for threads; of one process, not of its forks."""

    def __init__(self, url: str, path: Path, *, patience: float) -> None:
        self.url = url
        self.dialect = "sqlite"
        self.path = path
        self._patience = patience
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
        self._turns = Turns()
        self._watcher: sqlite3.Connection | None = None
        self._watching = threading.Lock()
        self._state = threading.Condition()
        self._commits = 0
        self._active = 0
        self._closed = False
        self._counts = {"reads": 0, "FULL": 0, "NORMAL": 0, "failed": 0, "lost_turns": 0}
        self._waited = 0.0

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

    def write(self, *, deadline: float | None = None) -> AbstractContextManager[Connection]:
        """A write transaction: committed, on disk, when the block ends; undone when it raises.

        ``deadline`` is an instant of `time.monotonic`, by default the database's patience from
        now. Raises `DeadlineExceeded` when the write lock was not free by then; a deadline that
        has passed still tries once. Raises `UnknownOutcome` when the disk failed during the
        commit. Not reentrant within a thread.
        """
        return self._write("FULL", deadline)

    def write_unsynced(
        self, *, deadline: float | None = None
    ) -> AbstractContextManager[Connection]:
        """Like `write`, but a power cut may undo it (a crash of processes does not)."""
        return self._write("NORMAL", deadline)

    def ensure_schema(self, part: str, version: int, metadata: MetaData) -> None:
        """Create the tables of ``part`` unless they are there in this ``version``.

        Safe when several processes do it at once. Raises `IncompatibleFormat` when the database
        has another version of the part, and changes nothing.
        """
        current = partial(ground.is_current, part=part, version=version, name=str(self.path))
        with self.read() as connection:
            if current(ground.version_of(connection, part)):
                return
        with self.write() as connection:
            if current(ground.version_of(connection, part)):
                return
            if part == ground.GROUND_PART and inspect(connection).get_table_names():
                raise InvalidInput(
                    f"{self.path} is the database of another program; choose another folder"
                )
            metadata.create_all(connection)
            connection.execute(insert(ground.SCHEMA).values(part=part, version=version))

    def data_version(self) -> int:
        """A number that differs from the one before exactly when somebody has committed since."""
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
            return version

    def wait_for_commit(self, after: int, *, timeout: float) -> int:
        """Wait until `data_version` is no longer ``after``, or for ``timeout`` seconds.

        Returns the data version of the end. A commit of this process wakes at once. Commits of
        others are looked for every millisecond: SQLite can not call back, and this is the one
        place that polls.
        """
        end = time.monotonic() + timeout
        while True:
            with self._state:
                commits = self._commits
            version = self.data_version()
            left = end - time.monotonic()
            if version != after or left <= 0:
                return version
            with self._state:
                if self._commits == commits and not self._closed:
                    self._state.wait(min(_POLL_SECONDS, left))

    def statistics(self) -> DatabaseStatistics:
        """What this object did so far."""
        with self._state:
            return DatabaseStatistics(
                reads=self._counts["reads"],
                writes=self._counts["FULL"],
                unsynced_writes=self._counts["NORMAL"],
                failed_writes=self._counts["failed"],
                lost_turns=self._counts["lost_turns"],
                waited=self._waited,
                waiting=self._turns.waiting(),
                open_connections=self._open_connections(),
            )

    def close(self) -> None:
        """Refuse new transactions, wait for those that run, close every connection. Idempotent."""
        with self._state:
            already, self._closed = self._closed, True
            self._state.notify_all()
            if already:
                return
            self._state.wait_for(lambda: self._active == 0, timeout=_CLOSE_PATIENCE)
        for connection in self._writers.values():
            connection.close()
        self._writers.clear()
        for engine in (self._engine, *self._writer_engines.values()):
            engine.dispose()
        with self._watching:
            if self._watcher is not None:
                self._watcher.close()
                self._watcher = None

    @contextmanager
    def _write(self, synchronous: str, deadline: float | None) -> Iterator[Connection]:
        began = time.monotonic()
        deadline = began + self._patience if deadline is None else deadline
        with self._in_use(synchronous), self._turn(began, deadline), self._translated():
            connection = self._writer(synchronous)
            try:
                self._begin(connection, began, deadline)
                yield connection
                self._commit(connection)
            except BaseException:
                self._undo(connection)
                with self._state:
                    self._counts["failed"] += 1
                raise
            with self._state:
                self._commits += 1
                self._state.notify_all()

    @contextmanager
    def _turn(self, began: float, deadline: float) -> Iterator[None]:
        if self._turns.held_by_this_thread():
            raise StrandlineError(
                f"this thread already has a write transaction open on {self.path}; finish it first"
            )
        if not self._turns.acquire(timeout=deadline - began):
            raise self._late(began, "another thread of this process")
        try:
            yield
        finally:
            self._turns.release()

    def _begin(self, connection: Connection, began: float, deadline: float) -> None:
        while True:
            try:
                connection.exec_driver_sql("BEGIN IMMEDIATE")
                break
            except DBAPIError as error:
                if not sqlite_file.is_busy(error):
                    raise
            with self._state:
                self._counts["lost_turns"] += 1
            if time.monotonic() >= deadline:
                raise self._late(began, "another process")
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
    def _in_use(self, count: str) -> Iterator[None]:
        with self._state:
            if self._closed:
                raise self._stopping()
            self._active += 1
            self._counts[count] += 1
        try:
            yield
        finally:
            with self._state:
                self._active -= 1
                if self._closed:
                    self._state.notify_all()

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

    def _late(self, began: float, who: str) -> DeadlineExceeded:
        waited = time.monotonic() - began
        return DeadlineExceeded(
            f"no write to {self.path} began within {waited:.3f} s: {who} is writing all the time;"
            " try again, or allow more time"
        )

    def _stopping(self) -> Stopping:
        return Stopping(f"{self.path} is closed here; nothing was read or written")
