"""How a PostgreSQL server is reached and what its errors mean.

Every connection has these settings: autocommit, so that this package opens each transaction itself
and chooses its isolation; texts in UTF-8, whatever the role, the database or the environment sets
for clients; no standby (``target_session_attrs``), since a standby answers with old data; commits
that wait for the disk, even if the server's default is not to; a time-out that ends transactions
whose client went silent, since they hold the one write lock, and no other time-out of statements
and sessions; and time-outs of TCP, on both sides, for a machine that is gone. Without these, a
server that sends an answer to such a machine waits for about 15 minutes, and keeps an idle
connection for two hours.

A call that gets no answer ends at the connection's ``deadline``. The time-outs of the server and of
the kernel are not enough for that: a stopped server keeps none, and its kernel continues to
acknowledge. The connection is then closed, because its answer may still arrive.

An error means that nothing happened, except if a COMMIT was sent and not answered. An error of the
server that closes the connection counts as no answer too: a server that shuts down may send it for
a commit that it has already written.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import count
from typing import Any, TypeVar

from sqlalchemy.exc import DBAPIError

from strandline.errors import (
    CorruptData,
    DeadlineExceeded,
    InvalidInput,
    StoreMoved,
    StrandlineError,
    Unavailable,
    forget_frames,
)
from strandline.sql.database import StoreFull
from strandline.sql.statements import Parameter, Query, Row, Waiting, with_waiting

try:
    import psycopg
    from psycopg import generators
    from psycopg.abc import PQGen
    from psycopg.adapt import Transformer
    from psycopg.pq import ExecStatus, PipelineStatus, TransactionStatus
    from psycopg.pq.abc import PGresult
    from psycopg.sql import quote
except ImportError as missing:
    raise InvalidInput(
        "a postgresql:// address needs the PostgreSQL driver; pip install 'strandline[postgres]'"
    ) from missing

DriverError = psycopg.Error

_NUMBERS = count()

IDLE_MS = 10_000
"""The server rolls back a transaction whose client sends nothing for this time."""
GONE_MS = 20_000
"""A connection ends if the other side accepts no data so long. Less than `DEFAULT_TIMEOUT`."""
_ALIVE = {"idle": 10, "interval": 5, "count": 2}
"""TCP keepalive: seconds before the first probe, between probes, and their number."""
_ENDLESS = ("statement_timeout", "lock_timeout", "idle_session_timeout", "transaction_timeout")
"""Time-outs that a role or a database may have for other programs. Our calls have a deadline."""
_LOOK_SECONDS = 0.1
_LONGEST_VALUES = 4096
_NEEDS_QUOTING = re.compile(r"['\\\0]")
_INSERT = re.compile(
    r"(?P<head>INSERT INTO [^?]* VALUES )\(\?(?:, \?)*\)(?P<tail> ON CONFLICT [^?]*)?"
)
"""An INSERT of one row that consists of parameters. Rows that it replaces have different keys."""
_LONGEST_INSERT = 64 << 10
"""Characters of values after which a statement with many rows ends."""
_MAX_TOGETHER = 32
_MAX_PREPARED = 256
"""The maximum number of prepared statements of a connection; some statements have many forms."""
_LONG_LIST = ", ".join(["?"] * 17), ", ".join(["%s"] * 17)
"""Part of each statement with a long list of values, in both formats.

The server plans these for their values each time. A plan for all values, once made from statistics
of a small table, compares each row of a large one with the whole list: seconds, in place of the
half of a millisecond that planning takes.
"""
_SETTINGS = (
    f"SELECT set_config('idle_in_transaction_session_timeout', '{IDLE_MS}', false),"
    " set_config('synchronous_commit', CASE current_setting('synchronous_commit')"
    " WHEN 'off' THEN 'on' ELSE current_setting('synchronous_commit') END, false),"
    " set_config('client_min_messages', 'warning', false),"  # see `Connection.warnings`
    f" set_config('tcp_user_timeout', '{GONE_MS}', false)"
    + "".join(
        f", set_config('tcp_keepalives_{name}', '{value}', false)" for name, value in _ALIVE.items()
    )
    + "".join(  # a release of PostgreSQL may not have it
        f", CASE WHEN current_setting('{name}', true) <> '' THEN set_config('{name}', '0', false)"
        " END"
        for name in _ENDLESS
    )
)
_CALLERS_CLASSES = ("22", "23")
"""Classes of SQLSTATE for errors in the caller's input: data, constraints."""
_CONNECTION_CLASS = "08"
"""Of a pooler whose own connection to the server was lost, or cannot be made."""
NOT_PREPARED = ("26000", "0A000")
"""A prepared statement no longer exists, or its table has changed."""
_LATE_STATES = ("55P03", "57014")
_CORRUPT_STATES = ("XX001", "XX002")
_LOST_TABLE_STATES = ("42P01", "42703")
_NO_SCHEMA = "3F000"
_NO_RIGHT = "42501"
_READ_ONLY = "25006"
_DISK_FULL = "53100"
_TOO_LARGE_STATES = ("54000", "54001")
_WRAPAROUND_FILES = ("varsup.c", "multixact.c")
"""Source files of the server whose error of such a state is the stop before its ids wrap around."""
_NO_SUCH_CHARACTER = "22P05"
_WAIT_FOR_STANDBY = "SyncRepWaitForLSN"
"""The function of the server whose warning says so: its code is that of all warnings."""

_REFUSED = (
    "this is not an address of PostgreSQL ({}); write it like postgresql://user@host:5432/database"
)

T = TypeVar("T")


class NoAnswer(psycopg.OperationalError):
    """The server did not answer before the call ended; the connection is closed."""


class NotConnected(psycopg.OperationalError):
    """The server cannot be reached, or refuses the connection."""


class OtherDatabase(psycopg.OperationalError):
    """The address leads to another database than before."""


class LeftBehind(psycopg.OperationalError):
    """Another connection has reached the server that took over from this one's; it is closed."""


class Unconfirmed(psycopg.OperationalError):
    """The server has committed, but a synchronous standby may not have it; it is closed."""


class Cursor(psycopg.Cursor[tuple[Any, ...]]):
    """The driver's, except that statements with long lists are not prepared."""

    def execute(self, query: Any, params: Any = None, **options: Any) -> Any:  # as the driver's
        if params and has_long_list(query, params):
            options["prepare"] = False
        return super().execute(query, params, **options)


class Connection(psycopg.Connection[tuple[Any, ...]]):
    """A connection whose calls end at ``deadline``, an instant of `time.monotonic`.

    A waiting call ends earlier, within a tenth of a second, if ``is_given_up`` returns True.
    """

    pool_number: int = 0
    """The number of the pool from which it was taken; see `PostgresDatabase`."""
    deadline: float | None = None
    is_given_up: Callable[[], bool] | None = None
    is_left_behind: Callable[[], bool] = staticmethod(lambda: False)
    """Whether another server is known to have taken over; then nothing more is sent."""
    warnings: list[str]
    """Those that a commit no longer waits for a synchronous standby, as after a cancel."""
    kept_cursor: psycopg.Cursor[tuple[Any, ...]]
    """For statements whose answer is fetched before the next one is sent."""
    texts: Texts
    prepared: dict[str, str]
    """The names of the statements that the server has prepared for this connection."""
    waiting: list[Waiting] | None = None
    """Changes of a write transaction to send with the next statement; None outside of one."""
    read_ahead: list[tuple[str, list[tuple[Any, ...]]]] | None = None
    """Statements that ran in the round trip that began the transaction, and their rows."""

    def cursor(self, *arguments: Any, **options: Any) -> Any:
        """The cursor for SQLAlchemy's statements; waiting changes are sent before them.

        These statements may be changes too, so everything that was read ahead is dropped.
        """
        self.read_ahead = None
        if self.waiting:
            with with_waiting(self):
                pass
        return super().cursor(*arguments, **options)

    def rollback(self) -> None:
        """End the transaction if one is open. SQLAlchemy calls this after a commit, too."""
        if self.is_left_behind():
            self.pgconn.finish()  # SQLAlchemy would log the error of the rollback
        elif self.pgconn.transaction_status != TransactionStatus.IDLE:
            super().rollback()

    @contextmanager
    def pipeline(self) -> Iterator[psycopg.Pipeline]:
        """The driver's, except that a connection that cannot end its pipeline is closed.

        Then the server has ended the session, perhaps after a commit, and its last message came
        before the end of the connection.
        """
        try:
            with super().pipeline() as pipeline:
                yield pipeline
        finally:
            if self.pgconn.pipeline_status != PipelineStatus.OFF:
                self.pgconn.finish()

    def _deallocate(self, name: bytes | None) -> PQGen[None]:
        """The driver forgets a statement; if None, after a rollback, all of them and ours too."""
        if name is None:
            self.prepared = {}
        return super()._deallocate(name)

    def may_send_together(self, queries: Sequence[Query]) -> bool:
        """Whether one text may run all queries: it is short, and there are few forms of texts."""
        return (
            len(queries) <= _MAX_TOGETHER
            and len(self.prepared) <= _MAX_PREPARED
            and not any(has_long_list(*query) for query in queries)
            and is_short(value for _, parameters in queries for value in parameters)
        )

    def executing(self, queries: Iterable[Query]) -> list[str]:
        """Statements that run the queries, after preparing those that are not prepared yet."""
        prepared = self.prepared
        preparing, executing = [], []
        for text, parameters in queries:
            name = prepared.get(text)
            if name is None:
                name = prepared[text] = f"strandline_{next(_NUMBERS)}"
                numbered = "".join(
                    part if number == 0 else f"${number}{part}"
                    for number, part in enumerate(text.split("?"))
                )
                preparing.append(f"PREPARE {name} AS {numbered}")
            values = ", ".join(map(_written, parameters))
            executing.append(f"EXECUTE {name}({values})" if parameters else f"EXECUTE {name}")
        return preparing + executing

    def inserting(
        self, statement: str, rows: Sequence[tuple[Parameter, ...]]
    ) -> Iterator[str] | None:
        """Statements that insert ``rows``, many in each.

        The driver's own way sends messages for each row. None if that is better, because
        ``statement`` is not a plain INSERT, or because a value is long.
        """
        plain = _INSERT.fullmatch(statement)
        if plain is None or any(
            isinstance(value, str | bytes) and len(value) > _LONGEST_INSERT
            for row in rows
            for value in row
        ):
            return None
        return _inserting(plain["head"], plain["tail"] or "", rows)

    @contextmanager
    def remembering_none(self) -> Iterator[None]:
        """For texts that do not recur: the driver would keep each text that it may prepare."""
        threshold, self.prepare_threshold = self.prepare_threshold, None
        try:
            yield
        finally:
            self.prepare_threshold = threshold

    @contextmanager
    def keeping_prepared(self) -> Iterator[None]:
        """For a text of `executing`: if it fails, its new statements may not be prepared."""
        before = self.prepared.copy()
        try:
            yield
        except BaseException as error:
            self.prepared = {} if getattr(error, "sqlstate", None) in NOT_PREPARED else before
            raise

    def wait(self, gen: PQGen[T], *arguments: Any, **options: Any) -> T:
        """Every call of the driver waits here; ``gen`` does the sending and reading."""
        if self.is_left_behind():
            self.pgconn.finish()
            raise LeftBehind("another server has taken over from it")
        options.setdefault("interval", _LOOK_SECONDS)
        if self.deadline is not None and not arguments:
            seconds_left = max(self.deadline - time.monotonic(), 0.001)
            options["interval"] = min(options["interval"], seconds_left)
        try:
            return super().wait(self._until_deadline(gen), *arguments, **options)
        except BaseException as error:
            is_unread = self.pgconn.transaction_status == TransactionStatus.ACTIVE
            # A signal handler may have raised; the driver reads the answer only after Ctrl-C.
            if isinstance(error, NoAnswer) or (is_unread and not isinstance(error, psycopg.Error)):
                self.pgconn.finish()
            raise

    def _until_deadline(self, gen: PQGen[T]) -> Generator[Any, Any, T]:
        """``gen``, ended with `NoAnswer` if it still waits after the deadline, or is given up.

        The driver resumes it with 0 if it was not ready within an interval. Another thread may
        bring the deadline forward.
        """
        try:
            awaited_state: Any = next(gen)
            while True:
                ready = yield awaited_state
                if not ready and self._is_over():
                    raise NoAnswer("no answer before the deadline")
                awaited_state = gen.send(ready)
        except StopIteration as end:
            answer: T = end.value
            return answer

    def _is_over(self) -> bool:
        is_late = self.deadline is not None and time.monotonic() >= self.deadline
        return is_late or (self.is_given_up is not None and self.is_given_up())


class Texts:
    """Runs texts of several statements that contain their values, in the place of a cursor.

    A cursor would look for values, consider whether to prepare the text, and keep its own state for
    each answer. That takes as long as sending the text and receiving all answers.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._transformer = Transformer(connection)

    def execute(self, text: str, _: None = None) -> list[list[Row]]:
        """Run the statements in one round trip; return the rows of each."""
        with self._connection.lock:
            results = self._connection.wait(self._results(text.encode()))
        for result in results:
            if result.status == ExecStatus.FATAL_ERROR:
                raise psycopg.errors.error_from_result(result)
        return [self._rows(result) if result.nfields else [] for result in results]

    def _results(self, text: bytes) -> PQGen[list[PGresult]]:
        server = self._connection.pgconn
        server.send_query(text)
        results: list[PGresult] = yield from generators.execute(server)
        return results

    def _rows(self, result: PGresult) -> list[Row]:
        self._transformer.set_pgresult(result)
        return self._transformer.load_rows(0, result.ntuples, tuple)


def _inserting(head: str, tail: str, rows: Iterable[tuple[Parameter, ...]]) -> Iterator[str]:
    part: list[str] = []
    length = 0
    for row in rows:
        part.append(f"({', '.join(map(_written, row))})")
        length += len(part[-1])
        if length >= _LONGEST_INSERT:
            yield f"{head}{', '.join(part)}{tail}"
            part, length = [], 0
    if part:
        yield f"{head}{', '.join(part)}{tail}"


def address_of(url: str) -> tuple[str, str]:
    """The address for the driver, and the name in messages, without user and password.

    Several hosts are written ``postgresql://user@one:5432,two:5432/database``. Raises
    `InvalidInput` for an address that the driver does not understand.
    """
    rest = url.partition(":")[2]
    # The driver's error repeats the faulty text, so the first check leaves the password out.
    _parts("postgresql:" + re.sub(r"^//[^/]*@", "//", rest), refused="the driver says: {}")
    address = f"postgresql:{rest}"
    refused = "check the port, user and password; in these, write @ as %40, / as %2F and % as %25"
    parts = _parts(address, refused=refused)
    hosts, ports = parts["host"].split(","), parts["port"].split(",")
    if "@" in parts["host"] + parts["dbname"] or not all(p.isdecimal() or not p for p in ports):
        raise InvalidInput(_REFUSED.format(refused))
    ports = ports if len(ports) == len(hosts) else ports[:1] * len(hosts)
    servers = (
        (f"[{host}]" if ":" in host else host) + (port and f":{port}")
        for host, port in zip(hosts, ports, strict=True)
    )
    return address, f"postgresql://{','.join(servers)}/{parts['dbname']}"


def _parts(address: str, *, refused: str) -> dict[str, str]:
    """Host, port and database as the driver reads them; ``refused`` is the text of the error."""
    try:
        parts = psycopg.conninfo.conninfo_to_dict(address)
    except (psycopg.ProgrammingError, UnicodeError) as error:
        raise InvalidInput(_REFUSED.format(refused.format(str(error).strip()))) from None
    return {name: str(parts.get(name) or "") for name in ("host", "port", "dbname")}


def connect(address: str, *, timeout: float) -> Connection:
    """A connection with the settings of this module."""
    try:
        connection = Connection.connect(
            address,
            autocommit=True,
            cursor_factory=Cursor,
            application_name="strandline",
            client_encoding="utf-8",
            connect_timeout=round(max(2, min(10, timeout))),
            target_session_attrs="read-write",
            tcp_user_timeout=GONE_MS,
            keepalives_idle=_ALIVE["idle"],
            keepalives_interval=_ALIVE["interval"],
            keepalives_count=_ALIVE["count"],
        )
    except UnicodeError as error:  # the lookup of an impossible host name
        raise NotConnected(f"invalid host name: {error}") from error
    except psycopg.OperationalError as error:
        forget_frames(error)  # of an attempt that timed out, they keep the socket open
        raise NotConnected(str(error)) from error
    try:
        connection.deadline = time.monotonic() + timeout
        connection.execute(_SETTINGS)
        connection.kept_cursor, connection.texts = connection.cursor(), Texts(connection)
        connection.prepared, connection.warnings = {}, []
        connection.add_notice_handler(partial(_note_unconfirmed, connection.warnings))
    except BaseException:
        connection.close()
        raise
    return connection


def _note_unconfirmed(warnings: list[str], notice: psycopg.errors.Diagnostic) -> None:
    if notice.source_function == _WAIT_FOR_STANDBY:
        warnings.append(f"warning: {notice.message_primary}")


def refuse_unconfirmed(connection: Connection) -> None:
    """Raise `Unconfirmed` after a commit for which the server has stopped waiting for a standby."""
    if connection.warnings:
        connection.pgconn.finish()
        raise Unconfirmed(connection.warnings[0])


def backend(connection: Connection) -> int:
    """The number of the server's process that answers on the connection."""
    row = connection.execute("SELECT pg_backend_pid()", prepare=False).fetchone()
    assert row is not None  # it is an expression
    return int(row[0])


def _written(value: Parameter) -> str:
    """A value as it is written into a statement."""
    if value is None:
        return "NULL"
    if type(value) in (int, bool):
        return str(value)  # True and False are SQL, too
    if type(value) is str and not _NEEDS_QUOTING.search(value):
        return f"'{value}'"  # ten times as fast as the driver
    return rf"E'\\x{value.hex()}'" if isinstance(value, bytes) else quote(value)


def has_long_list(text: object, parameters: Sequence[object]) -> bool:
    """Whether the statement has a list of more than 16 values, in either format."""
    return (
        len(parameters) > 16
        and isinstance(text, str)
        and any(marks in text for marks in _LONG_LIST)
    )


def is_short(values: Iterable[object]) -> bool:
    """Whether the values are short enough to be written into a statement."""
    lengths = (len(value) for value in values if isinstance(value, str | bytes))
    return sum(lengths) <= _LONGEST_VALUES


def is_lost(error: BaseException) -> bool:
    """Whether the connection was found broken, so that another one may still succeed."""
    original = getattr(error, "orig", None) or error
    if not isinstance(original, psycopg.Error) or isinstance(original, NoAnswer):
        return False
    state = original.sqlstate or ""
    if not state:
        return isinstance(original, psycopg.OperationalError)
    return state[:4] == "57P0" or state[:2] == _CONNECTION_CLASS


def is_away(error: BaseException) -> bool:
    """Whether ``error``, for which no connection was made, may be that of a server's outage."""
    return is_lost(error) and not isinstance(error, OtherDatabase)


def reason_of(error: BaseException) -> str:
    """The first line of what the server or the driver says."""
    return str(error).strip().partition("\n")[0] or type(error).__name__


def in_transaction(connection: psycopg.Connection[Any]) -> bool:
    """Whether a transaction is open in which no statement has failed."""
    return connection.info.transaction_status == TransactionStatus.INTRANS


def translate(error: BaseException, name: str) -> StrandlineError | None:
    """The `StrandlineError` for an error of PostgreSQL.

    None for any other error, and for an error in the caller's input.
    """
    if not isinstance(error, DBAPIError | psycopg.Error):
        return None
    original = getattr(error, "orig", None) or error
    if isinstance(original, NoAnswer):
        return DeadlineExceeded(f"{name} did not answer in time; nothing was changed, try again")
    if isinstance(original, OtherDatabase):
        return StoreMoved(
            f"{name} is another database now than when this process opened it: it was restored or "
            "cloned, or the address leads to another server, such as a former primary that was "
            "started after a takeover; nothing was changed. Stop that server, or correct the "
            "address; if the other database is to be used, restart this process with it"
        )
    if not isinstance(original, psycopg.Error):
        return None
    state = original.sqlstate or ""
    reason = reason_of(original)
    if state in _CORRUPT_STATES:
        return CorruptData(
            f"{name} found damaged data ({reason}); restore a backup of the database"
        )
    if state in _LOST_TABLE_STATES:
        return CorruptData(
            f"tables that were created in {name} are missing ({reason}); correct its search_path,"
            " the address, or the role's right to use the schema if that was changed, or restore a"
            " backup of the database"
        )
    if state == _NO_SCHEMA:
        return InvalidInput(
            f"{name} does not have the schema in its search_path, or the role of this node may not"
            f" use that ({reason})"
        )
    if state == _NO_RIGHT:
        return Unavailable(
            f"the role of this node may not use {name} ({reason}); nothing was changed. Give it"
            " this right. Let it own the tables and their schema"
        )
    if state == _READ_ONLY:
        return Unavailable(
            f"{name} accepts no writes ({reason}); nothing was changed. Switch"
            " default_transaction_read_only off there, or if another server has taken over, let the"
            " address lead to that one"
        )
    if state in _TOO_LARGE_STATES and original.diag.source_file in _WRAPAROUND_FILES:
        return Unavailable(
            f"{name} accepts no writes until it is vacuumed ({reason}); nothing was changed. End"
            " old transactions, and run VACUUM in that database"
        )
    if state in _TOO_LARGE_STATES:
        return InvalidInput(f"a value is larger than {name} can hold ({reason})")
    # By the driver: a NUL in a text. By the server: a character that its encoding lacks.
    if isinstance(original, psycopg.DataError) and state in ("", _NO_SUCH_CHARACTER):
        return InvalidInput(f"{name} cannot hold a value ({reason})")
    if state == _DISK_FULL:
        return StoreFull(f"the disk of {name} is full ({reason}); free space and try again")
    if state in _LATE_STATES:
        return DeadlineExceeded(f"{name} cancelled a statement ({reason}); try again")
    if state[:2] in _CALLERS_CLASSES or not (state or is_lost(error)):
        return None
    if isinstance(original, NotConnected):
        return Unavailable(
            f"{name} cannot be reached ({reason}); nothing was changed. Try again, or correct the"
            " address"
        )
    return Unavailable(f"{name} cannot be used now ({reason}); nothing was changed, try again")
