"""A PostgreSQL database: its write lock, lost connections, and unknown outcomes.

* A *read* is a ``REPEATABLE READ READ ONLY`` transaction. `PostgresDatabase.rows` runs one
  statement without a transaction, in one round trip.
* The *write lock* is the lock on the clock row. It is taken in the round trip that begins the
  transaction, with the rest of the caller's time as ``lock_timeout``. The fence is read in the same
  round trip, under the lock. The isolation is ``READ COMMITTED``: each statement of a write sees
  what committed before it, and under the lock nothing else commits. A process requests the lock on
  one connection at a time: its threads queue in `FairLock`, in order of arrival, so a database
  needs few connections.
* A *look* holds the lock on the row of the looks instead, so it waits for no write of rows. An
  append takes that lock after the write lock.
* An *unsynced write* sets ``synchronous_commit=off``. A crash of the server may undo it although
  other machines saw it, so it must not produce times that others keep (see `Database`).
* The first statements of a write are sent in the round trip that takes the lock. They are prepared
  on their connection; else the server would plan them each time. If the server has forgotten them
  (the driver deallocates all after a rollback), the begin is sent again, since nothing was done
  yet.
* The *mark* is moved by NOTIFY, which each write with ``notifies`` sends with its COMMIT, and by
  this object's own commits before they return. So it is never behind this process's own commits,
  and behind those of others by the delay of their notifications. While no connection listens, each
  call returns another mark.
* A *lost connection* is usually detected at the first statement of a transaction, before anything
  was done. That statement is tried once more on a new connection. If the connection is lost later,
  the caller gets the error.
* While no connection can be made, calls wait for the end of the `Outage`.
* A connection lost between COMMIT and its answer leaves the outcome unknown. The transaction may
  even be running still, with its COMMIT on the way. So no read of this object begins before a
  commit has succeeded under the write lock, which that transaction holds to its end. What a read
  then sees is final, and a synchronous standby has it. If a server ends a session that waits for a
  standby, or is restarted, it has committed without the standby, and shows that to others.

Rejected: a pre-ping (a round trip for every transaction, and the connection can still break after
it); ``txid_status`` (only the caller knows what to do with the answer, and it reads anyway); an
advisory lock for writes (the clock row is needed anyway, and shows who holds it).
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from itertools import takewhile
from typing import TypeVar, cast
from weakref import WeakSet

from sqlalchemy import Connection, create_engine, event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import PoolProxiedConnection

from strandline.clock import elapsed_seconds
from strandline.errors import (
    CorruptData,
    DeadlineExceeded,
    StrandlineError,
    Unavailable,
    UnknownOutcome,
    UnsupportedOperation,
)
from strandline.outage import Outage, answer_deadline
from strandline.sql import postgres_connection as driver
from strandline.sql import schema_versions
from strandline.sql.database import DEFAULT_TIMEOUT, GIVE_UP_SECONDS, Database
from strandline.sql.fence import FENCE_ROW
from strandline.sql.pool import ConnectionPool
from strandline.sql.postgres_listener import PostgresListener
from strandline.sql.postgres_server import Server
from strandline.sql.statements import (
    Parameter,
    Query,
    Row,
    answers_to,
    change,
    formatted,
    rows_of,
    run,
    run_with_waiting,
)

_POOL = 8
_OVERFLOW = 8
_LONGEST_TIMEOUT_MS = (1 << 31) - 1
_ANSWER_SECONDS = 0.5
"""How long the process waits for an answer beyond the server's own time-out."""
_CONNECT_SECONDS = 2.0
"""The least that a call waits for a new connection, as libpq does."""
_SILENT_SECONDS = 1.0
"""After this time without a check, a write may have lost its lock; far below `driver.IDLE_MS`."""
_SCHEMA_LOCK = 0x7374_7261_6E64
"""The advisory lock under which tables are created."""
UPGRADE_LOCK_SECONDS = 5.0
"""How long an upgrade waits for a table; all later calls that need the table wait behind it."""
_READ = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
# The isolation is explicit, since the server's default may be stricter: with a snapshot from before
# the lock, a write would not read the rows that it changes. Whether it may write is the server's
# default, which turns to read-only before a migration or when a standby has taken over.
_WRITE = "BEGIN ISOLATION LEVEL READ COMMITTED"
_LOCK, _LOOK_LOCK = (
    f"SELECT 1 FROM strandline_clock WHERE id = {row} FOR UPDATE"
    for row in (schema_versions.WRITES_ROW, schema_versions.LOOKS_ROW)
)
# Both are NULL for the collation C, whose order never changes.
_COLLATION_VERSIONS = (
    "SELECT quote_ident(datname), datcollversion, pg_database_collation_actual_version(oid)"
    " FROM pg_database WHERE datname = current_database()"
)
_KNOWS_COLLATION_VERSION = 15_00_00
_LOCK_NOT_AVAILABLE = "55P03"
_HOLDER = (
    "another process held the write lock all the time; try again, or look into pg_stat_activity"
    " (the event SyncRep is a wait for a standby)"
)
CHANNEL = "strandline"
T = TypeVar("T")
_NEWS, _COMMIT = f"NOTIFY {CHANNEL}, '{{sender}}'", "COMMIT"


def open_url(
    url: str, *, timeout: float = DEFAULT_TIMEOUT, read_only: bool = False
) -> PostgresDatabase:
    database = PostgresDatabase(url, timeout=timeout, read_only=read_only)
    try:
        database.refuse_shared_sessions()
        database.refuse_changed_collation()
        database.ensure_schema(schema_versions.BASE)
    except BaseException:
        database.close()
        raise
    return database


class PostgresDatabase(Database):
    """See `Database`. ``timeout`` also limits how long any call waits for the server's answer.

    A call that needs a new connection waits at least two seconds, the shortest time-out of libpq.
    """

    dialect = "postgresql"
    # The views of information_schema give the same result and take five times as long.
    columns_query = (
        "SELECT t.relname, a.attname FROM pg_namespace s"
        " JOIN pg_class t ON t.relnamespace = s.oid AND t.relkind IN ('r', 'p')"
        " JOIN pg_attribute a ON a.attrelid = t.oid AND a.attnum > 0 AND NOT a.attisdropped"
        " WHERE s.nspname = ANY (current_schemas(false))"
    )
    mark_is_proof = False
    may_lose_provisional = False
    reads_ahead = True
    append_lock = ((_LOOK_LOCK, ()),)

    def __init__(self, url: str, *, timeout: float, read_only: bool = False) -> None:
        self._address, name = driver.address_of(url)
        super().__init__(name, timeout=timeout, read_only=read_only)
        self._writing: Connection | None = None  # that of the thread whose turn it is
        self._awaits_lock = False  # that thread waits for another process
        self._heard = 0.0  # it held the lock at this instant or later
        self._server = Server()
        self._outage = Outage(name)
        self._open_outcomes = 0
        self._settled_outcomes = 0
        self._connections: WeakSet[driver.Connection] = WeakSet()
        self._discarding = threading.Lock()
        self._pool_number = 0
        """Raised when the pool is discarded. A connection in use then is closed when it returns."""
        self._engine = create_engine(
            "postgresql+psycopg://",
            creator=self._connect,
            isolation_level="AUTOCOMMIT",
            use_native_hstore=False,
            poolclass=ConnectionPool,
            pool_size=_POOL,
            max_overflow=_OVERFLOW,
            pool_timeout=timeout,
        )
        event.listen(self._engine, "checkin", self._close_if_left_over)
        sender = secrets.token_hex(8)
        self._news = _NEWS.format(sender=sender)
        self._listener = PostgresListener(self._connect, CHANNEL, name=self.name, own=sender)

    @contextmanager
    def read(self, *, first: Sequence[Query] = ()) -> Iterator[Connection]:
        with self._in_use("reads"):
            self._settle()
            begun = self._begun(_READ, ahead=_short(first))
            with _returned(begun) as connection:
                raw = _raw(connection.connection)
                yield connection
                if driver.in_transaction(raw):
                    # After a rollback the driver would make the server forget its plans.
                    raw.deadline = time.monotonic() + _ANSWER_SECONDS
                    with suppress(driver.DriverError):  # the rows that were read are valid anyway
                        raw.commit()

    def allow_more_time(self, connection: Connection) -> None:
        _allow(_raw(connection.connection), self._timeout)

    def rows(self, statement: str, parameters: tuple[Parameter, ...] = ()) -> list[Row]:
        """See `Database.rows`. Takes one round trip."""
        with self._in_use("reads"):
            self._settle()
            pooled, rows = self._first(lambda raw: rows_of(raw, formatted(statement), parameters))
            pooled.close()
            return rows

    def refuse_shared_sessions(self) -> None:
        """Raise `UnsupportedOperation` if a pooler lets its clients share sessions of the server.

        Their settings, prepared statements and notifications would be mixed up. A pooler begins a
        connection with a number that is not that of the server's process. If it lets clients share
        sessions, one process answers on two connections, or several on one of them.
        """
        with self._in_use("reads"), closing(self._engine.raw_connection()) as first:
            if driver.backend(_raw(first)) == _raw(first).info.backend_pid:
                return
            with closing(self._engine.raw_connection()) as second:
                asked = (first, first, second) * 3
                backends = [driver.backend(_raw(connection)) for connection in asked]
        of_first, of_second = backends[1:3]
        if of_first == of_second or backends != [of_first, of_first, of_second] * 3:
            raise UnsupportedOperation(
                f"{self.name} is a connection pooler that lets clients share sessions of the"
                " server; set it to session pooling (PgBouncer: pool_mode = session), or use the"
                " address of the server itself"
            )

    def refuse_changed_collation(self) -> None:
        """Raise `CorruptData` if an upgrade of the system has changed the order of texts.

        The indexes are in the order from before. PostgreSQL only warns, and does not find all rows.
        """
        with self._in_use("reads"), closing(self._engine.raw_connection()) as pooled:
            if _raw(pooled).info.server_version < _KNOWS_COLLATION_VERSION:
                return
        [(database, before, now)] = self.rows(_COLLATION_VERSIONS)
        if before is not None and now is not None and before != now:
            raise CorruptData(
                f"the indexes of {self.name} may not find every name, because an upgrade of the"
                f" server's system has changed the order of texts (collation version {before}, now"
                f" {now}); run REINDEX DATABASE {database}, then ALTER DATABASE {database} REFRESH"
                " COLLATION VERSION"
            )

    def find_damage(self) -> list[str]:
        """Returns nothing: checking the pages is the server's job."""
        return []

    def check_place(self) -> None:
        """Does nothing: a server knows its databases by name."""

    def identity(self) -> int:
        """See `Database.identity`. A physical standby that takes over has the same."""
        if self._server.identity is None:
            self.rows("SELECT 1")  # which connects
        assert self._server.identity is not None
        return self._server.identity

    def timeline(self) -> int:
        return self._server.timeline

    def size(self) -> int:
        return int(self.rows("SELECT pg_database_size(current_database())")[0][0])

    def check_write(self) -> None:
        """See `Database.check_write`. Asks the server if the write has sent nothing for long."""
        assert self._writing is not None  # a write is open
        now = elapsed_seconds()  # before the question: the process may be stopped after it
        if now - self._heard >= _SILENT_SECONDS:
            self.allow_more_time(self._writing)
            run(self._writing, "SELECT 1")
            self._heard = now

    def if_undone(self, undo: Callable[[], object]) -> None:
        """See `Database.if_undone`.

        A statement that fails ends the transaction, and its locks, at once. After a savepoint, it
        ends only what came after that.
        """
        assert self._writing is not None  # a write is open
        change(self._writing, "SAVEPOINT before_changes_outside")
        super().if_undone(undo)

    def mark(self) -> int:
        self.refuse_in_a_fork()
        if self._closed:
            raise self._stopping()
        return self._listener.news()

    def wait_for_commit(self, after: int, *, timeout: float) -> int:
        return self._listener.wait(after, timeout=timeout)

    def wake(self) -> None:
        self._listener.wake()

    def _connect(self) -> driver.Connection:
        limit = max(answer_deadline() - time.monotonic(), _CONNECT_SECONDS)
        connection = driver.connect(self._address, timeout=min(self._timeout, limit))
        try:
            self._server.accept(connection, at_takeover=self._at_takeover)
        except BaseException:
            connection.close()
            raise
        with self._state:
            self._connections.add(connection)
        return connection

    def give_up(self) -> None:
        with self._state:
            self._timeout = min(self._timeout, GIVE_UP_SECONDS)
            end = time.monotonic() + self._timeout
            for connection in self._connections:
                if connection.deadline is not None:
                    connection.deadline = min(connection.deadline, end)

    def _close_if_left_over(self, connection: driver.Connection | None, _: object) -> None:
        """Close a connection that returns to a pool that was discarded."""
        if connection is not None and connection.pool_number != self._pool_number:
            connection.close()

    @contextmanager
    def _write(
        self,
        deadline: float | None,
        *,
        synced: bool,
        notifies: bool = True,
        first: Sequence[Query] = (),
    ) -> Iterator[Connection]:
        began = time.monotonic()
        deadline = began + self._timeout if deadline is None else deadline
        count = "writes" if synced else "unsynced_writes"
        turn = self._turn(began, deadline)
        with self._in_use(count, turn), turn:
            try:
                self._heard = elapsed_seconds()
                self._awaits_lock = True
                opened = self._open_outcomes
                try:
                    locked = self._locked(began, deadline, synced=synced, first=first)
                finally:
                    self._awaits_lock = False
                with _returned(locked) as connection, self._undoing():
                    self._writing = connection
                    yield connection
                    self._commit(connection, notifies=notifies)
                if synced:
                    self._note_settled(opened)
            except BaseException:
                self._count("failed_writes")
                raise
            finally:
                self._writing = None  # it would keep a connection that Ctrl-C lost

    @contextmanager
    def look(self, *, first: Sequence[Query] = ()) -> Iterator[Connection]:
        began = time.monotonic()
        synced = not self.may_lose_provisional
        with self._in_use("writes" if synced else "unsynced_writes"):
            self._refuse_to_write()
            end = self._end(began, None)
            locked = self._locked(began, end, synced=synced, first=first, lock=_LOOK_LOCK)
            with _returned(locked) as connection:
                yield connection
                self._commit(connection, notifies=False, is_provisional=True)

    def _other_process_that_writes(self) -> str | None:
        return _HOLDER if self._awaits_lock else None

    @contextmanager
    def _schema_change(self) -> Iterator[Connection]:
        with self._in_use("writes"):
            try:
                begun = self._begun(_WRITE, f"SELECT pg_advisory_xact_lock({_SCHEMA_LOCK})")
            except driver.NoAnswer as error:
                raise DeadlineExceeded(
                    f"another process creates or upgrades the tables of {self.name}, or the server "
                    "does not answer; start again when that is over"
                ) from error
            with _returned(begun) as connection:
                _raw(connection.connection).deadline = None  # an index may take minutes
                change(connection, f"SET LOCAL lock_timeout = {UPGRADE_LOCK_SECONDS * 1000:.0f}")
                try:
                    yield connection
                except (DBAPIError, driver.DriverError) as error:
                    original = getattr(error, "orig", error)
                    if getattr(original, "sqlstate", None) != _LOCK_NOT_AVAILABLE:
                        raise
                    raise DeadlineExceeded(
                        f"a table of {self.name} is in use and cannot be changed; stop all nodes, "
                        "jobs and backups that use the database, and start again"
                    ) from error
                self._commit(connection, notifies=True)

    def _begun(
        self,
        *texts: str,
        ahead: Sequence[Query] = (),
        seconds: float | None = None,
        is_given_up: Callable[[], bool] | None = None,
    ) -> Connection:
        """A connection on which ``texts`` have begun a transaction and ``ahead`` is read ahead.

        See `_first`.
        """

        def begin(raw: driver.Connection) -> list[list[Row]]:
            return answers_to(raw, (*texts, *raw.executing(ahead)))

        pooled, answers = self._first(begin, seconds=seconds, is_given_up=is_given_up)
        rows_ahead = answers[len(answers) - len(ahead) :]
        _raw(pooled).read_ahead = [
            (formatted(text), rows) for (text, _), rows in zip(ahead, rows_ahead, strict=True)
        ]
        connection = Connection(self._engine, pooled)
        connection.begin()  # a projection knows its turn by this transaction
        return connection

    def _first(
        self,
        begin: Callable[[driver.Connection], T],
        *,
        seconds: float | None = None,
        is_given_up: Callable[[], bool] | None = None,
    ) -> tuple[PoolProxiedConnection, T]:
        """Run ``begin`` on a connection of the pool. Returns it and the result, within ``seconds``.

        If the connection turns out to be lost, or its prepared statements to be outdated, ``begin``
        is tried once more on another one. The result is the pool's own connection, because creating
        SQLAlchemy's takes as long as the answer.
        """
        tries, began = 2, time.monotonic()
        while True:
            pool_number = self._pool_number  # read first: the pool may be discarded meanwhile
            try:
                pooled = self._engine.raw_connection()
            except driver.DriverError as error:
                if self._closed or (is_given_up and is_given_up()) or not driver.is_away(error):
                    raise
                reason, end = driver.reason_of(error), self._end(began, seconds)
                if not self._outage.pause(reason, timeout=self._timeout, end=end):
                    raise
                continue
            raw = _raw(pooled)
            raw.pool_number = pool_number
            prepared = raw.prepared
            try:
                with self._state:  # `give_up` brings forward either the end or the deadline
                    _allow(raw, self._end(began, seconds) - time.monotonic(), is_given_up)
                raw.read_ahead = raw.waiting = None
                raw.prepared = prepared.copy()
                result = begin(raw)
                now = time.monotonic()
                _allow(raw, self._end(now, None if seconds is None else self._timeout) - now)
                self._outage.end()
                return pooled, result
            except BaseException as error:
                state = getattr(error, "sqlstate", None)
                if state != _LOCK_NOT_AVAILABLE:
                    raw.prepared = prepared  # the new ones may not be prepared
                lost, is_stale = driver.is_lost(error), state in driver.NOT_PREPARED
                if lost or is_stale or raw.closed:
                    pooled.invalidate()
                else:
                    pooled.close()
                if not (lost or is_stale):
                    raise
                # The server restarted or closed all connections, or a table has changed for the
                # statements that all of them have prepared: discard the whole pool.
                self._discard_pool_of(raw)
                tries -= 1
                if not tries:
                    raise
                if lost:  # else `_translate` notes it
                    self._connection_lost()

    def _end(self, began: float, seconds: float | None) -> float:
        """When a call that has ``began`` ends, if it may wait for ``seconds``.

        If they are None, it reads: it may wait for the timeout, or as long as its thread may. A
        write has a deadline of its own, since it may project what others have changed.
        """
        if seconds is None:
            return min(began + self._timeout, answer_deadline())
        return began + seconds

    def _discard_pool_of(self, connection: driver.Connection) -> None:
        """Discard the pool from which the connection was taken, unless that has been done already.

        If two threads did so at once, connections in the next pool would stay open without use.
        """
        with self._discarding:
            if connection.pool_number == self._pool_number:
                self._pool_number += 1
                self._engine.dispose()
                self._pool_number += 1  # for what was taken from the old pool meanwhile

    def _locked(
        self,
        began: float,
        deadline: float,
        *,
        synced: bool,
        first: Sequence[Query] = (),
        lock: str | None = None,
    ) -> Connection:
        """A transaction with ``lock``, by default the write lock.

        The fence and ``first`` are read ahead in it.
        """
        may_wait = not self._nobody_waits
        seconds_left = max(deadline - time.monotonic(), 0.001) if may_wait else 0.001
        timeout = int(min(seconds_left * 1000, _LONGEST_TIMEOUT_MS - 1)) + 1  # never early
        begin = [_WRITE, f"SET LOCAL lock_timeout = {timeout}"]
        if not synced:
            begin.append("SET LOCAL synchronous_commit = off")
        try:
            connection = self._begun(
                *begin,
                ahead=((lock or _LOCK, ()), (FENCE_ROW, ()), *_short(first)),
                seconds=seconds_left + _ANSWER_SECONDS,
                is_given_up=lambda: may_wait and self._nobody_waits,
            )
        except driver.DriverError as error:
            if not isinstance(error, driver.NoAnswer) and error.sqlstate != _LOCK_NOT_AVAILABLE:
                raise
            self._refuse_to_wait()
            if isinstance(error, driver.NoAnswer):
                raise
            self._count("lost_turns")
            raise self._late(began, "another process", holder=_HOLDER) from None
        _raw(connection.connection).waiting = []
        with self._state:
            self._waited += time.monotonic() - began
        return connection

    def _settle(self) -> None:
        """Wait for the end of every write of this object whose outcome is unknown.

        Readers queue with the writers of the process. On connections of their own, they would take
        those that the writer which they wait for may need. Raises `Unavailable` if writes that
        happened may be missing on a synchronous standby.
        """
        opened = self._open_outcomes
        if self._settled_outcomes >= opened or self._process_lock.held_by_this_thread():
            return
        began = time.monotonic()
        end = self._end(began, None)
        turn = self._turn(began, end)
        with self._in_use("reads", turn), turn:
            if self._settled_outcomes >= opened:
                return  # by a thread that was first
            try:
                with _returned(self._locked(began, end, synced=True)) as connection:
                    self._commit(connection, notifies=False, is_provisional=True)
            except UnknownOutcome as error:
                raise Unavailable(
                    f"{self.name} cannot be read now: it has not confirmed an earlier commit"
                    f" ({error.reason}); nothing was changed, try again"
                ) from error
            self._note_settled(opened)

    def _note_settled(self, opened: int) -> None:
        with self._state:
            self._settled_outcomes = max(self._settled_outcomes, opened)

    def _commit(
        self, connection: Connection, *, notifies: bool, is_provisional: bool = False
    ) -> None:
        """Commit. No read depends on what a provisional transaction leaves."""
        raw = _raw(connection.connection)
        if not driver.in_transaction(raw):
            # After a failed statement PostgreSQL answers COMMIT with a rollback and no error. A
            # caller that caught that error must not take the write for committed.
            raise Unavailable(
                f"{self.name} rolled this write back after an error; nothing was written"
            )
        raw.deadline = time.monotonic() + self._timeout
        try:
            run_with_waiting(raw, (), behind=(self._news, _COMMIT) if notifies else (_COMMIT,))
            driver.refuse_unconfirmed(raw)
        except driver.DriverError as error:
            if not raw.closed:
                raise
            self._disarm(connection)  # before Ctrl-C takes the place of the unknown outcome
            with self._state:
                if not is_provisional:
                    self._open_outcomes += 1
            self._connection_lost()
            raise UnknownOutcome.of_commit(
                f"{self.name} did not answer a commit ({str(error).strip()})"
            ) from error
        except BaseException:  # of a signal handler, such as Ctrl-C
            self._disarm(connection)  # the server may have committed, or may still do so
            with self._state:
                self._open_outcomes += 1
            raise
        else:
            self._disarm(connection)
        finally:
            if notifies:
                self._listener.count_commit()

    def _disarm(self, connection: Connection) -> None:
        """Undo nothing after this commit, unless it is that of a look beside an open write."""
        if connection is self._writing:
            self._undos.clear()

    def _connection_lost(self) -> None:
        self._count("lost_connections")
        for act in self._if_lost:
            act()

    def _translate(self, error: Exception) -> StrandlineError | None:
        if driver.is_lost(error):
            self._connection_lost()
        return driver.translate(error, self.name)

    def _open_connections(self) -> int:
        return cast(ConnectionPool, self._engine.pool).open_connections()

    def _close_connections(self) -> None:
        self._listener.close()
        self._engine.dispose()


@contextmanager
def _returned(connection: Connection) -> Iterator[Connection]:
    """Give the connection back at the end; what was not committed is rolled back."""
    raw = _raw(connection.connection)
    try:
        yield connection
    finally:
        raw.waiting = raw.read_ahead = None
        # A rollback needs an answer too; on a broken connection the server rolls back.
        raw.deadline = time.monotonic() + _ANSWER_SECONDS
        if raw.closed and not connection.invalidated:
            connection.invalidate()
        try:
            connection.close()
        except DBAPIError:
            if not raw.closed:
                raise
            # No answer in time: the connection is dropped. The block's result is valid anyway.


def _short(queries: Sequence[Query]) -> list[Query]:
    """The queries before the first one that is too long to be sent with a begin."""
    return list(
        takewhile(lambda q: driver.is_short(q[1]) and not driver.has_long_list(*q), queries)
    )


def _allow(
    raw: driver.Connection, seconds: float, is_given_up: Callable[[], bool] | None = None
) -> None:
    """Allow answers on the connection until ``seconds`` from now, or until `is_given_up`."""
    raw.deadline, raw.is_given_up = time.monotonic() + seconds, is_given_up


def _raw(pooled: PoolProxiedConnection) -> driver.Connection:
    return cast(driver.Connection, pooled.driver_connection)
