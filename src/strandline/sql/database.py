"""One SQL database: read and write transactions, and schema versions; `open_database` opens one.

These rules hold in every dialect:

* A *read* is a snapshot. It sees everything that any process had committed when it began, and waits
  for no other transaction. Writing in it is refused.
* A *write* holds the database's one write lock from its begin to its end. So what it reads cannot
  change before it writes, and writes have one order. The threads of a process queue for their turn
  in order of arrival; the thread whose turn it is then waits for other processes. Both waits end
  with `DeadlineExceeded` at the caller's deadline, and with `Stopping` at `Database.stop_waiting`.
* A write that returned is on disk. The exceptions are unsynced writes, for data that matters only
  while the machine of the database runs, and provisional writes, which nothing that outlives a
  crash of that machine relies on.
* What only the holder of the store may change is written in a `Database.guarded_write`, which
  compares the fence first.
* A write that raised has not happened, unless the error is `UnknownOutcome`. Then the next read of
  the same object settles it, because that read starts after the write has ended, either way.
* A *mark* is a number that moves with each commit of any process. A read that begins after a mark
  was taken sees every commit that the mark counts. So while the mark stays the same, nothing new is
  known. `Database.mark_is_proof` says whether this is a proof: for a file, an unmoved mark proves
  that nothing was committed; for a server, the notification of a commit may still be on its way.

The whole database has one write lock instead of one for each table, because the parts of a store
write together: a commit checks the fence, takes its time from the clock row and logs its
notification. Rejected: serializable isolation instead of the lock. It accepts that transactions
fail at their end so that others can run concurrently, but here every write needs the clock row, so
no two could.
"""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import ClassVar, Protocol, cast

from sqlalchemy import Connection, inspect
from sqlalchemy.exc import TimeoutError as PoolTimeout

from strandline.condition import Condition
from strandline.errors import (
    CorruptData,
    DeadlineExceeded,
    InvalidInput,
    Stopping,
    StrandlineError,
    Unavailable,
    UnknownOutcome,
    UnsupportedOperation,
)
from strandline.sql import schema_versions
from strandline.sql.fair_lock import Claim, FairLock
from strandline.sql.schema_versions import BASE, Part
from strandline.sql.statements import Parameter, Query, Row, change, run

DEFAULT_TIMEOUT = 30.0
"""Seconds that a write waits for its turn if the caller gives no deadline."""
GIVE_UP_SECONDS = 2.0
_CLOSE_TIMEOUT = 10.0


class StoreFull(Unavailable):
    """A database or etcd has no space for a write. Nothing was written.

    Reads that write nothing are still answered. In etcd, `Metastorage.check` writes.
    """


@dataclass(frozen=True, slots=True)
class DatabaseStatistics:
    """Counts since the database was opened; ``waited`` is in seconds, over all writers.

    ``lost_turns`` counts attempts for the write lock that another process won, ``lost_connections``
    connections that a server or the network ended or refused, and ``looks`` the checks of waiting
    threads for a commit of another process.
    """

    reads: int
    writes: int
    unsynced_writes: int
    failed_writes: int
    lost_turns: int
    lost_connections: int
    looks: int
    waited: float
    waiting: int
    open_connections: int


class Database(ABC):
    """One open database. Safe for threads, but not for use after a fork.

    ``name`` is its name in messages. A ``read_only`` database refuses writes with
    `UnsupportedOperation`, and does not upgrade the tables of an older release.

    Every method raises `Stopping` after `close`, and `UnsupportedOperation` in a forked child,
    where `close` does nothing: the connections are the parent's, and two processes that share one
    would read each other's answers.
    """

    dialect: ClassVar[str]
    columns_query: ClassVar[str]
    """The query for the name of the table and of the column, for each column of each table."""
    mark_is_proof: ClassVar[bool]
    """Whether an unmoved mark proves that nothing was committed since it was taken."""
    may_lose_provisional: ClassVar[bool]
    """Whether a crash of the machine may undo a provisional write.

    Always False for a server: other machines have seen the write, and keep running.
    """
    reads_ahead: ClassVar[bool]
    """Whether a transaction runs its ``first`` queries ahead (see `write`), or ignores them."""
    append_lock: ClassVar[tuple[Query, ...]] = ()
    """The query with which an append waits for a `look`, unless the write lock does that."""
    after_fork: ClassVar[str] = "open it again in this process"
    """What to do in a forked process, as a part of a message."""

    def __init__(self, name: str, *, timeout: float, read_only: bool = False) -> None:
        self.read_only = read_only
        self.name = name
        self._timeout = timeout
        self._process_lock = FairLock()
        self._nobody_waits = False
        self._undos: list[Callable[[], object]] = []  # of the write that is open
        self._if_lost: list[Callable[[], object]] = []
        self._at_takeover: list[str] = []
        self._process = os.getpid()
        self._state = Condition()
        self._active = 0
        self._closed = False
        self._counts: Counter[str] = Counter()
        self._waited = 0.0
        self._complete_parts: dict[str, int] = {}
        self.guard: Callable[[Connection], object] = self._refuse_unguarded
        """Raises, in a transaction, if this process may no longer write; see `guarded_write`."""

    @abstractmethod
    def read(self, *, first: Sequence[Query] = ()) -> AbstractContextManager[Connection]:
        """A read transaction: one snapshot, as of its first statement. It refuses to write.

        ``first`` are the statements that the block begins with, in their order; see `write`.
        """

    @abstractmethod
    def allow_more_time(self, connection: Connection) -> None:
        """Restart the time limit of a transaction of many statements.

        Call it before each statement.
        """

    @abstractmethod
    def rows(self, statement: str, parameters: tuple[Parameter, ...] = ()) -> list[Row]:
        """All rows of one statement that only reads (see `strandline.sql.run`)."""

    def answers(self, queries: Sequence[Query]) -> list[list[Row]]:
        """The rows of each query, all from one snapshot."""
        if len(queries) == 1:
            return [self.rows(*queries[0])]
        with self.read(first=queries) as connection:
            return [run(connection, *query) for query in queries]

    def write(
        self,
        *,
        deadline: float | None = None,
        first: Sequence[Query] = (),
        notifies: bool = True,
        is_provisional: bool = False,
        is_synced: bool = True,
    ) -> AbstractContextManager[Connection]:
        """A write transaction: committed and on disk when the block ends, rolled back if it raises.

        ``deadline`` is an instant of `time.monotonic`, by default the database's timeout from now.
        A deadline that has passed still allows one attempt. Not reentrant within a thread.

        ``first`` are the statements that the block begins with, after it reads the fence, in their
        order. A server runs them with the begin, whether or not the block asks for them later; a
        statement is recognized by its text. If ``notifies`` is False, the block changes nothing
        that a process keeps in memory, and the mark moves only if that cannot be avoided. If
        ``is_provisional`` is True, the commit does not wait for the disk, provided that only a
        crash of this machine can undo it and everything after it (`may_lose_provisional`). A later
        synced write makes it durable. If ``is_synced`` is False, a crash of the database's machine
        may undo the write. A crash of the processes that use the database does not.

        Raises `DeadlineExceeded` if the write lock was not free by the deadline, and
        `UnknownOutcome` if the disk or the connection failed during the commit.
        """
        synced = is_synced and not (is_provisional and self.may_lose_provisional)
        return self._write(deadline, synced=synced, first=first, notifies=notifies)

    def look(self, *, first: Sequence[Query] = ()) -> AbstractContextManager[Connection]:
        """A provisional `write` that changes only the clock row of the looks.

        On a server it waits for appends, which hold the lock on that row too (`append_lock`), but
        not for other writes.
        """
        return self.write(first=first, notifies=False, is_provisional=True)

    def if_connection_is_lost(self, act: Callable[[], object]) -> None:
        """Call ``act`` at each lost connection, before anything is read on another one.

        Another server may have taken over, without the last commits.
        """
        self._if_lost.append(act)

    def at_takeover(self, statements: Iterable[str]) -> None:
        """Run ``statements`` first on a server that has started since the last connection was made.

        It may be a standby without the last commits.
        """
        self._at_takeover += statements

    def if_undone(self, undo: Callable[[], object]) -> None:
        """Call ``undo`` if the write of this thread fails, before any other thread can write.

        For what the write has changed outside of the database, which a rollback does not change
        back. An unknown outcome is no failure, nor is a commit that Ctrl-C interrupts. Other
        processes wait too, unless the commit fails.
        """
        self._undos.append(undo)

    @contextmanager
    def guarded_write(
        self,
        *,
        deadline: float | None = None,
        first: Sequence[Query] = (),
        is_synced: bool = True,
    ) -> Iterator[Connection]:
        """A `write` of what only the holder of the store may change.

        It calls `guard` first. If that raises, nothing is written.
        """
        with self.write(deadline=deadline, first=first, is_synced=is_synced) as connection:
            self.guard(connection)
            yield connection

    @abstractmethod
    def check_place(self) -> None:
        """Raise `StoreMoved` if the database is known to have moved from where it was opened.

        Each write calls this before its commit.
        """

    def check_write(self) -> None:
        """Raise `StrandlineError` if the write of this thread is known to be unable to commit.

        A caller that also changes things outside of the database calls this before each change:
        if a write has lost its lock, another process may have made the change, and others after it.
        """
        self.check_place()

    @abstractmethod
    def find_damage(self) -> list[str]:
        """The faults of the database itself, below its tables. May take long."""

    def index_hint(self, index: str) -> str:
        """The text after a table's name that makes a statement use this index."""
        return ""

    def identity(self) -> int:
        """A number that no other database has, not even a copy of this one, or 0 if unknown."""
        return 0

    def timeline(self) -> int:
        """A number that grows when a standby takes over, as far as this process knows, or 0."""
        return 0

    @abstractmethod
    def size(self) -> int:
        """The size of the database in bytes."""

    def refuse_in_a_fork(self) -> None:
        """Raise `UnsupportedOperation` in a process that was forked from the one that opened it.

        Reads and writes do this first. A call that may wait before it reads does it too: threads of
        the parent, which do not run in a fork, would never end its wait.
        """
        if self._process != os.getpid():
            raise UnsupportedOperation(
                f"{self.name} was opened by process {self._process} before this process was "
                f"forked; {self.after_fork}"
            )

    @abstractmethod
    def mark(self) -> int:
        """A number that moves with each commit (see the module). Costs no round trip."""

    @abstractmethod
    def wait_for_commit(self, after: int, *, timeout: float) -> int:
        """Wait until `mark` is no longer ``after``, for ``timeout`` seconds, or until `wake`.

        Returns the mark at the end.
        """

    @abstractmethod
    def wake(self) -> None:
        """Make all threads that wait for a commit return now."""

    def ensure_schema(self, part: Part) -> None:
        """Bring the tables of ``part`` to its version: create them, or upgrade an older version.

        All of it is one write transaction, which several processes may run at the same time. If it
        raises, nothing has changed. Raises `IncompatibleFormat` if the database has a newer
        version, or one from which a step is missing, and `CorruptData` if a table or column is
        missing.
        """
        with self.read() as connection:
            present = schema_versions.version_of(connection, part)
            if schema_versions.is_current(present, part, name=self.name):
                if self._complete_parts.get(part.name) != part.version:
                    self.refuse_incomplete(connection, [part], {part.name: part.version})
                return
        if self.read_only:
            return
        with self._schema_change() as connection:
            present = schema_versions.version_of(connection, part)
            if not schema_versions.is_current(present, part, name=self.name):
                if present is None:
                    self._create(connection, part)
                else:
                    schema_versions.upgrade(connection, present, part, name=self.name)
                    columns = schema_versions.columns_of(connection, self.columns_query)
                    schema_versions.refuse_incomplete(columns, part, name=self.name)
        self._complete_parts[part.name] = part.version

    def _create(self, connection: Connection, part: Part) -> None:
        self._refuse_orphans(part, schema_versions.tables_of(connection))
        if part is BASE and inspect(connection).get_table_names():
            raise InvalidInput(
                f"{self.name} is the database of another program; choose another one"
            )
        schema_versions.create_tables(connection, part.metadata)
        if part is BASE:
            for row in (schema_versions.WRITES_ROW, schema_versions.LOOKS_ROW):
                schema_versions.add_clock_row(connection, row)
        added = f"INSERT INTO {schema_versions.SCHEMA.name} (part, version) VALUES (?, ?)"
        change(connection, added, (part.name, part.version))

    def statistics(self) -> DatabaseStatistics:
        """What this object has done so far."""
        with self._state:
            return DatabaseStatistics(
                reads=self._counts["reads"],
                writes=self._counts["writes"],
                unsynced_writes=self._counts["unsynced_writes"],
                failed_writes=self._counts["failed_writes"],
                lost_turns=self._counts["lost_turns"],
                lost_connections=self._counts["lost_connections"],
                looks=self._counts["looks"],
                waited=self._waited,
                waiting=self._process_lock.waiting(),
                open_connections=self._open_connections(),
            )

    def stop_waiting(self) -> None:
        """Stop waiting for the write lock, because the process is about to end.

        Writes that wait for it get `Stopping`, and so do later ones that find it taken. A write
        that holds the lock continues.
        """
        self._nobody_waits = True
        self._process_lock.stop_waiting()

    def give_up(self) -> None:  # noqa: B027 - a file answers
        """Wait no longer than `GIVE_UP_SECONDS` for any answer of a server, now and later.

        For a process that is about to end and has no callers any more.
        """

    def close(self) -> None:
        """Refuse new transactions, wait for running ones, close all connections. Idempotent."""
        if self._process != os.getpid():
            return
        with self._state:
            was_closed, self._closed = self._closed, True
            self._state.notify_all()
            if was_closed:
                return
        try:
            with self._state:
                self._state.wait_for(lambda: self._active == 0, timeout=_CLOSE_TIMEOUT)
        finally:  # also after Ctrl-C
            self._close_connections()

    def refuse_incomplete(
        self, connection: Connection, parts: Iterable[Part], versions: Mapping[str, int]
    ) -> None:
        """Raise `CorruptData` unless the tables of all ``parts`` exist with all their columns.

        ``versions`` are the stored versions. If that of a part is missing, none of its tables may
        exist.
        """
        columns = schema_versions.columns_of(connection, self.columns_query)
        for part in parts:
            if part.name in versions:
                schema_versions.refuse_incomplete(columns, part, name=self.name)
                self._complete_parts[part.name] = versions[part.name]
                continue
            self._refuse_orphans(part, columns)

    def _refuse_orphans(self, part: Part, tables: Iterable[str]) -> None:
        """Raise `CorruptData` if ``part``, whose version is missing, has one of ``tables``."""
        orphans = part.metadata.tables.keys() & set(tables)
        if orphans and part is not BASE:
            raise CorruptData(
                f"{self.name} has the table {min(orphans)} of its part {part.name!r}, but the "
                f"version of that part is missing in {schema_versions.SCHEMA.name}; restore "
                "the store from a backup"
            )

    @abstractmethod
    def _write(
        self,
        deadline: float | None,
        *,
        synced: bool,
        first: Sequence[Query] = (),
        notifies: bool = True,
    ) -> AbstractContextManager[Connection]: ...

    @abstractmethod
    def _schema_change(self) -> AbstractContextManager[Connection]:
        """A write transaction that also works before any table exists."""

    @abstractmethod
    def _open_connections(self) -> int: ...

    @abstractmethod
    def _close_connections(self) -> None: ...

    @abstractmethod
    def _translate(self, error: Exception) -> StrandlineError | None:
        """The `StrandlineError` for an error of the driver, or None."""

    def _in_use(self, count: str, turn: _Turn | None = None) -> _Use:
        """Count a transaction, for `close` to wait for, and translate errors of the driver.

        ``turn`` is that of a write.
        """
        return _Use(self, count, turn)

    def _refuse_unguarded(self, _: Connection) -> None:
        raise StrandlineError(f"{self.name} has no guard yet, so its rows cannot be written")

    def _turn(self, began: float, deadline: float) -> _Turn:
        """Hold the write lock of the process."""
        return _Turn(self, began, deadline)

    def _take_turn(self, began: float, deadline: float) -> None:
        self._refuse_to_write()
        if not self._process_lock.acquire(timeout=deadline - began):
            self._refuse_to_wait()
            raise self._late(
                began, "another thread of this process", holder=self._other_process_that_writes()
            )

    def _refuse_to_write(self) -> None:
        """Raise for a database that is read only, and within a write of this thread."""
        if self.read_only:
            raise UnsupportedOperation(f"{self.name} was opened for reading; nothing was written")
        if self._process_lock.held_by_this_thread():
            raise StrandlineError(
                f"this thread already has a write transaction open on {self.name}; finish it first"
            )

    @contextmanager
    def _undoing(self) -> Iterator[None]:
        """The part of a write up to its commit: if it fails, what `if_undone` noted is called.

        The commit clears it, since Ctrl-C may end this part after that.
        """
        undos = self._undos = []  # a write that Ctrl-C lost may end during a later one
        try:
            yield
        except UnknownOutcome:
            raise
        except BaseException:
            for undo in reversed(undos):
                undo()
            raise

    def _refuse_to_wait(self) -> None:
        if self._nobody_waits:
            raise Stopping(
                f"{self.name} is being written by other writers, and this node is stopping and no "
                "longer waits for them; nothing was written, try again"
            )

    def _other_process_that_writes(self) -> str | None:
        """A description of the process that holds the write lock, or None if unknown."""
        return None

    def _count(self, what: str) -> None:
        with self._state:
            self._counts[what] += 1

    def _late(self, began: float, who: str, *, holder: str | None = None) -> DeadlineExceeded:
        waited = time.monotonic() - began
        reason = holder or f"{who} was writing all the time; try again, or allow more time"
        return DeadlineExceeded(f"no write to {self.name} began within {waited:.3f} s: {reason}")

    def _stopping(self) -> Stopping:
        return Stopping(f"{self.name} is closed in this process; nothing was read or written")


class _Use:
    """See `Database._in_use`. A class, because a generator takes several times as long.

    If Ctrl-C comes as it begins or ends, it ends with the last reference to it.
    """

    _turn: _Turn | None = None
    _is_counted = False

    def __init__(self, database: Database, count: str, turn: _Turn | None) -> None:
        self._database = database
        self._count = count
        self._turn = turn

    def __enter__(self) -> None:
        database = self._database
        database.refuse_in_a_fork()
        with database._state:
            if database._closed:
                raise database._stopping()
            database._active += 1
            self._is_counted = True
            database._counts[self._count] += 1

    def __exit__(self, kind: object, error: BaseException | None, frames: object) -> None:
        database = self._database
        try:
            if isinstance(error, PoolTimeout):
                raise DeadlineExceeded(
                    f"no free connection to {database.name}: too many reads at once; try again"
                ) from error
            if isinstance(error, Exception):
                translated = database._translate(error)
                if translated is not None:
                    raise translated from error
        finally:
            translated = None  # else a reference cycle keeps the frame and an open cursor alive
            self._end()

    def _end(self) -> None:
        if self._turn is not None:
            self._turn.end()  # again, if Ctrl-C came before it ended
        if self._is_counted:
            with self._database._state:
                self._is_counted = False
                self._database._active -= 1
                if self._database._closed:
                    self._database._state.notify_all()

    __del__ = _end


class _Turn:
    """See `Database._turn`.

    It takes the lock as the block begins, and not before: Ctrl-C in between would leave it taken.
    """

    def __init__(self, database: Database, began: float, deadline: float) -> None:
        self._database = database
        self._began = began
        self._deadline = deadline
        self._claim: Claim | None = None

    def __enter__(self) -> None:
        self._database._take_turn(self._began, self._deadline)
        self._claim = self._database._process_lock.owner

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Release the lock, unless that was done. Any thread may collect a write as garbage."""
        lock = self._database._process_lock
        if self._claim is not None and lock.owner is self._claim:
            lock.release()


DIALECTS = {
    "sqlite": "strandline.sql.sqlite_database",
    "postgresql": "strandline.sql.postgres_database",
}
"""The module whose ``open_url`` opens a URL, by the scheme of the URL; loaded at its first use."""


class _Dialect(Protocol):
    def open_url(self, url: str, *, timeout: float, read_only: bool) -> Database: ...


def open_database(
    url: str, *, timeout: float = DEFAULT_TIMEOUT, read_only: bool = False
) -> Database:
    """Open the database at ``url`` and create the tables that every database of the store has.

    ``url`` is ``sqlite:////folder/file`` (the file is created if it is missing) or
    ``postgresql://user@host/database``. ``timeout`` is how many seconds a write without a deadline
    waits at most, and how long a call waits for a server's answer. With ``read_only`` no table is
    created or upgraded, and writes are refused. Raises `InvalidInput`, `UnsupportedOperation`,
    `CorruptData`, `IncompatibleFormat` or `Unavailable`; then nothing has changed.
    """
    scheme = url.partition(":")[0].partition("+")[0].lower()
    if scheme == url:
        raise InvalidInput(
            f"{url!r} is not a database URL; write it like sqlite:////folder/strandline.db"
            " or postgresql://user@host/database"
        )
    if scheme not in DIALECTS:
        raise UnsupportedOperation(
            f"databases of the kind {scheme!r} are not supported; use one of {', '.join(DIALECTS)}"
        )
    dialect = cast(_Dialect, import_module(DIALECTS[scheme]))
    return dialect.open_url(url, timeout=timeout, read_only=read_only)
