"""One SQL database under our rules: read and write transactions, and schema versions.

What holds on every dialect:

* A *read* is a snapshot: it sees everything that was committed when it began, by anyone, and waits
  for no other. Writing in it is refused.
* A *write* holds the database's one write lock from its begin to its end, so that what it reads is
  what it changes, and so that writes have one order. The threads of a process queue for their turn
  in order of arrival, then the one whose turn it is waits for other processes. Both waits end at
  the caller's deadline with `DeadlineExceeded`, and at `Database.stop_waiting` with `Stopping`.
* A write that returned is on disk. The exceptions are `Database.write_unsynced`, for what is worth
  remembering only as long as the machine of the database runs, and `Database.write_derived`, for
  what is made again where it was lost.
* A write that raised has not happened, unless the error is `UnknownOutcome`. The next read of the
  same object settles it: it comes after the write's end, whatever that was.

* A *mark* is a number that moves with each commit, of anyone. What is read from the database after
  a mark was taken reflects every commit that the mark counts; so while the mark stays the same,
  nothing new is known of. `Database.mark_is_proof` says how far that goes: in a file an unmoved
  mark proves that nothing was committed, a server's news of a commit may still be on its way.

The whole database has one write lock, not each table, because the parts of a store write together:
a commit checks the fence, takes its time from the clock row and logs its notification. Rejected:
serializable isolation in place of the lock. It lets transactions fail at their end for the sake of
writes that run side by side, and here the clock row leaves nothing that could.
"""

from __future__ import annotations

import os
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import ClassVar

from sqlalchemy import Connection, MetaData, inspect

from strandline.errors import (
    CorruptData,
    DeadlineExceeded,
    InvalidInput,
    Stopping,
    StrandlineError,
    UnsupportedOperation,
)
from strandline.sql import ground
from strandline.sql.statements import Parameter, Query, Row, change, run
from strandline.sql.turns import Turns

PATIENCE = 30.0
"""Seconds that a write waits for its turn when its caller names no deadline."""
_CLOSE_PATIENCE = 10.0
NO_STEPS: Mapping[int, ground.Step] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class DatabaseStatistics:
    """Counts since the database was opened; ``waited`` is in seconds, over all writers.

    ``lost_turns`` are attempts for the write lock that another process won; ``lost_connections``
    those that a server or the network ended. ``looks`` are those for a commit of another process,
    by those who wait for one.
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
    """One open database. Safe for threads; of one process, not of its forks.

    ``name`` is how messages name it. One that is ``read_only`` refuses to write with
    `UnsupportedOperation`, and leaves the tables of an older release as they are.

    Every method raises `Stopping` after `close`, and `UnsupportedOperation` in a fork, where
    `close` does nothing: the connections are the parent's, and two processes that use one would
    read each other's answers.
    """

    dialect: ClassVar[str]
    mark_is_proof: ClassVar[bool]
    """Whether an unmoved mark proves that nothing was committed since it was taken."""
    may_lose_provisional: ClassVar[bool]
    """Whether a crash of the machine may undo a write that was provisional.

    On a server none may be: other machines have seen its time, and go on.
    """

    def __init__(self, name: str, *, patience: float, read_only: bool = False) -> None:
        self.read_only = read_only
        self.name = name
        self._patience = patience
        self._turns = Turns()
        self._nobody_waits = False
        self._process = os.getpid()
        self._state = threading.Condition()
        self._active = 0
        self._closed = False
        self._counts: Counter[str] = Counter()
        self._waited = 0.0
        self._complete_parts: dict[str, int] = {}

    @abstractmethod
    def read(self) -> AbstractContextManager[Connection]:
        """A read transaction: one snapshot, as of its first statement. Writing in it is refused."""

    @abstractmethod
    def allow_more_time(self, connection: Connection) -> None:
        """Give a transaction of many statements the patience of a new one, from now on.

        To be called before each of them.
        """

    def rows(self, statement: str, parameters: tuple[Parameter, ...] = ()) -> list[Row]:
        """All rows of one statement that only reads (see `strandline.sql.run`)."""
        with self.read() as connection:
            return run(connection, statement, parameters)

    def write(
        self,
        *,
        deadline: float | None = None,
        first: Sequence[Query] = (),
        is_news: bool = True,
        is_provisional: bool = False,
    ) -> AbstractContextManager[Connection]:
        """A write transaction: committed, on disk, when the block ends; undone when it raises.

        ``deadline`` is an instant of `time.monotonic`, by default the database's patience from
        now. Raises `DeadlineExceeded` when the write lock was not free by then; a deadline that
        has passed still tries once. Raises `UnknownOutcome` when disk or connection failed during
        the commit. Not reentrant within a thread.

        ``first`` are the statements that the block begins with behind the look at the fence, in
        their order: from a server they are read ahead, also those that it then does not ask for.
        They are known again by their text. Where the block changes nothing that any memory shows,
        it is no news, and moves a mark only where that cannot be avoided. What is provisional waits
        for no disk where only a crash of this machine can undo it, with all that came after it: a
        later synced write makes it durable.
        """
        synced = not (is_provisional and self.may_lose_provisional)
        return self._write(deadline, synced=synced, first=first, is_news=is_news)

    def write_unsynced(
        self, *, deadline: float | None = None
    ) -> AbstractContextManager[Connection]:
        """Like `write`, but a crash of the database's machine may undo it.

        A crash of the processes that use the database does not.
        """
        return self._write(deadline, synced=False)

    @abstractmethod
    def write_derived(
        self, *, deadline: float | None = None, first: Sequence[Query] = ()
    ) -> AbstractContextManager[Connection]:
        """Like `write`, for what follows from rows that are durable and is made again if lost.

        As durable as those who see it need it.
        """

    @property
    @abstractmethod
    def is_synced(self) -> bool:
        """Whether all that this object committed is known to be on disk."""

    @abstractmethod
    def sync(self) -> None:
        """Return when all that was committed before, by any process, is on disk.

        Also inside of a write.
        """

    @abstractmethod
    def check_place(self) -> None:
        """Raise `StoreMoved` where the database is known to be no longer where it was opened.

        Each write does so before its commit; what changes more than the database, before that.
        """

    @abstractmethod
    def write_time(self) -> AbstractContextManager[Connection]:
        """A write of the clock row alone, by which a reader learns what time it is.

        As durable as those who see the time need it. It moves a mark only where that cannot be
        avoided.
        """

    @abstractmethod
    def find_damage(self) -> list[str]:
        """What is wrong with the database itself, below its tables; may take long."""

    def index_hint(self, index: str) -> str:
        """What a statement says behind a table's name to be answered by way of this index."""
        return ""

    @abstractmethod
    def size(self) -> int:
        """The bytes that it takes."""

    @abstractmethod
    def mark(self) -> int:
        """A number that moves with each commit, see the module; costs no round trip."""

    @abstractmethod
    def wait_for_commit(self, after: int, *, timeout: float) -> int:
        """Wait until `mark` is no longer ``after``, for ``timeout`` seconds, or `wake`.

        Returns the mark of the end.
        """

    @abstractmethod
    def wake(self) -> None:
        """Let all who wait for a commit return now."""

    def ensure_schema(
        self,
        part: str,
        version: int,
        metadata: MetaData,
        *,
        steps: Mapping[int, ground.Step] = NO_STEPS,
    ) -> None:
        """Bring the tables of ``part`` to ``version``: create them, or upgrade what is older.

        ``steps[N]`` takes the tables from version N - 1 to N. All of it is one write transaction,
        and safe when several processes do it at once. Raises `IncompatibleFormat` when the database
        has a newer version, or one from which a step is missing, `CorruptData` when a table or
        column is not there, and changes nothing.
        """
        current = partial(ground.is_current, part=part, version=version, name=self.name)
        with self.read() as connection:
            if current(ground.version_of(connection, part)):
                if self._complete_parts.get(part) != version:
                    self.refuse_incomplete(connection, {part: (version, metadata)})
                return
        if self.read_only:
            return
        with self._schema_change() as connection:
            stored_version = ground.version_of(connection, part)
            if not current(stored_version):
                if stored_version is None:
                    self._create(connection, part, version, metadata)
                else:
                    ground.upgrade(
                        connection,
                        stored_version,
                        part=part,
                        version=version,
                        steps=steps,
                        name=self.name,
                    )
                    columns = self._columns(connection)
                    ground.refuse_incomplete(columns, metadata, part=part, name=self.name)
        self._complete_parts[part] = version

    def _create(self, connection: Connection, part: str, version: int, metadata: MetaData) -> None:
        self.refuse_incomplete(connection, {part: (None, metadata)})
        if part == ground.GROUND_PART and inspect(connection).get_table_names():
            raise InvalidInput(
                f"{self.name} is the database of another program; choose another one"
            )
        ground.create_tables(connection, metadata)
        if part == ground.GROUND_PART:
            change(connection, f"INSERT INTO {ground.CLOCK.name} (id, time) VALUES (1, 0)")
        added = f"INSERT INTO {ground.SCHEMA.name} (part, version) VALUES (?, ?)"
        change(connection, added, (part, version))

    def statistics(self) -> DatabaseStatistics:
        """What this object did so far."""
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
                waiting=self._turns.waiting(),
                open_connections=self._open_connections(),
            )

    def stop_waiting(self) -> None:
        """From now on, no thread waits for the write lock; for a process that is about to end.

        The writes that wait for it get `Stopping`, as do later ones that find it taken. A write
        that has it goes on.
        """
        self._nobody_waits = True
        self._turns.stop_waiting()

    def close(self) -> None:
        """Refuse new transactions, wait for those that run, close every connection. Idempotent."""
        if self._process != os.getpid():
            return
        with self._state:
            already, self._closed = self._closed, True
            self._state.notify_all()
            if already:
                return
            self._state.wait_for(lambda: self._active == 0, timeout=_CLOSE_PATIENCE)
        self._close_connections()

    def refuse_incomplete(
        self, connection: Connection, parts: Mapping[str, tuple[int | None, MetaData]]
    ) -> None:
        """Raise `CorruptData` unless each table of some parts is there with all its columns.

        ``parts`` gives for each the version in which it stands, and its tables: none of them may be
        there where it has no version.
        """
        columns = self._columns(connection)
        for part, (version, metadata) in parts.items():
            if version is not None:
                ground.refuse_incomplete(columns, metadata, part=part, name=self.name)
                self._complete_parts[part] = version
                continue
            orphans = columns.keys() & {table.name for table in metadata.sorted_tables}
            if orphans and part != ground.GROUND_PART:
                raise CorruptData(
                    f"{self.name} has the table {min(orphans)} of its part {part!r} and not the"
                    f" version of that part, in {ground.SCHEMA.name}; restore the store from a"
                    " backup"
                )

    @abstractmethod
    def _columns(self, connection: Connection) -> Mapping[str, Collection[str]]:
        """The columns of each table."""

    @abstractmethod
    def _write(
        self,
        deadline: float | None,
        *,
        synced: bool,
        first: Sequence[Query] = (),
        is_news: bool = True,
    ) -> AbstractContextManager[Connection]: ...

    @abstractmethod
    def _schema_change(self) -> AbstractContextManager[Connection]:
        """A write transaction that also works where no table is there yet."""

    @abstractmethod
    def _open_connections(self) -> int: ...

    @abstractmethod
    def _close_connections(self) -> None: ...

    @abstractmethod
    def _translate(self, error: Exception) -> StrandlineError | None:
        """Our error for one of the driver or of the pool; None for all others."""

    @contextmanager
    def _in_use(self, count: str) -> Iterator[None]:
        """Count a transaction, which `close` waits for; it raises no error of the driver."""
        self._refuse_in_a_fork()
        with self._state:
            if self._closed:
                raise self._stopping()
            self._active += 1
            self._counts[count] += 1
        try:
            yield
        except Exception as error:
            ours = self._translate(error)
            if ours is None:
                raise
            try:
                raise ours from error
            finally:
                del ours  # else the frame and its error keep each other, and an open cursor
        finally:
            with self._state:
                self._active -= 1
                if self._closed:
                    self._state.notify_all()

    @contextmanager
    def _turn(self, began: float, deadline: float) -> Iterator[None]:
        if self.read_only:
            raise UnsupportedOperation(f"{self.name} was opened for reading; nothing was written")
        if self._turns.held_by_this_thread():
            raise StrandlineError(
                f"this thread already has a write transaction open on {self.name}; finish it first"
            )
        if not self._turns.acquire(timeout=deadline - began):
            self._refuse_to_wait()
            raise self._late(
                began, "another thread of this process", holder=self._other_process_that_writes()
            )
        try:
            yield
        finally:
            self._turns.release()

    def _refuse_to_wait(self) -> None:
        if self._nobody_waits:
            raise Stopping(
                f"{self.name} is written to by others, and this node stops and no longer waits for"
                " them; nothing was written, try again"
            )

    def _other_process_that_writes(self) -> str | None:
        """Which process the thread whose turn it is waits for, in words; None where unknown."""
        return None

    def _refuse_in_a_fork(self) -> None:
        if self._process != os.getpid():
            raise UnsupportedOperation(
                f"{self.name} was opened by process {self._process}, before this one was forked;"
                " open it here anew"
            )

    def _count(self, what: str) -> None:
        with self._state:
            self._counts[what] += 1

    def _late(self, began: float, who: str, *, holder: str | None = None) -> DeadlineExceeded:
        waited = time.monotonic() - began
        why = holder or f"{who} is writing all the time; try again, or allow more time"
        return DeadlineExceeded(f"no write to {self.name} began within {waited:.3f} s: {why}")

    def _stopping(self) -> Stopping:
        return Stopping(f"{self.name} is closed here; nothing was read or written")
