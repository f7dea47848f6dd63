"""How a PostgreSQL server is reached and what its errors mean.

The rules of every connection: autocommit, so that we open each transaction ourselves, with its
isolation; no standby (``target_session_attrs``), since a standby answers with the past; a commit
that waits for the disk, also where the server is set up not to; and an end to transactions whose
owner went silent, since they hold the one write lock.

A call that gets no answer ends at the connection's ``deadline``. Neither the server's time-outs nor
the kernel's do for that: a stopped server keeps none, and its kernel goes on acknowledging. The
connection is closed then, for its answer may still come.

An error says that nothing happened, except where a COMMIT was sent and not answered. An error of
the server that closes the connection counts as no answer too: a server that shuts down may say so
to a commit that it has already written.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from typing import Any, TypeVar

from sqlalchemy import URL, make_url
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from strandline.errors import (
    CorruptData,
    DeadlineExceeded,
    InvalidInput,
    StrandlineError,
    Unavailable,
)

try:
    import psycopg
    from psycopg.abc import PQGen
    from psycopg.pq import TransactionStatus
except ImportError as missing:
    raise InvalidInput(
        "a postgresql:// address needs the PostgreSQL driver; pip install 'strandline[postgres]'"
    ) from missing

DriverError = psycopg.Error

IDLE_MS = 10_000
"""A transaction whose owner sends nothing for so long is undone by the server."""
_LOOK_SECONDS = 0.1
_SETTINGS = (
    f"SELECT set_config('idle_in_transaction_session_timeout', '{IDLE_MS}', false),"
    " set_config('synchronous_commit', CASE current_setting('synchronous_commit')"
    " WHEN 'off' THEN 'on' ELSE current_setting('synchronous_commit') END, false)"
)
# Classes of SQLSTATE: connection, resources, the operator's intervention, the system.
_UNAVAILABLE_CLASSES = ("08", "53", "57", "58")
_UNAVAILABLE_STATES = ("25006", "25P03", "40001", "40P01", "42501", "28000", "28P01", "3D000")
_LATE_STATES = ("55P03", "57014")
_CORRUPT_STATES = ("XX001", "XX002")
_NO_SCHEMA = "3F000"
_TOO_LARGE_STATES = ("54000", "54001")

T = TypeVar("T")


class NoAnswer(psycopg.OperationalError):
    """The deadline passed before the server answered; the connection is closed."""


class Connection(psycopg.Connection[tuple[Any, ...]]):
    """A connection whose calls end at ``deadline``, an instant of `time.monotonic`."""

    deadline: float | None = None

    def wait(self, gen: PQGen[T], *arguments: Any, **options: Any) -> T:
        """What every call of the driver waits in; ``gen`` does the sending and reading."""
        if self.deadline is None:
            return super().wait(gen, *arguments, **options)
        options.setdefault("interval", _LOOK_SECONDS)
        if not arguments:
            left = max(self.deadline - time.monotonic(), 0.001)
            options["interval"] = min(options["interval"], left)
        try:
            return super().wait(_until(gen, self.deadline), *arguments, **options)
        except NoAnswer:
            self.pgconn.finish()
            raise


def _until(gen: PQGen[T], deadline: float) -> Generator[Any, Any, T]:
    """``gen``, ended with `NoAnswer` when it still waits after the deadline.

    The driver resumes it with 0 when it was not ready within an interval.
    """
    try:
        wanted: Any = next(gen)
        while True:
            ready = yield wanted
            if not ready and time.monotonic() >= deadline:
                raise NoAnswer("no answer before the deadline")
            wanted = gen.send(ready)
    except StopIteration as end:
        answer: T = end.value
        return answer


def address_of(url: str) -> tuple[str, str]:
    """What the driver connects to, and how messages name it: without user and password.

    Raises `InvalidInput` for an address that the driver does not understand.
    """
    parsed = make_url(url)
    # The driver reads what was written; it knows escapes and lists of hosts that others do not.
    address = f"postgresql:{url.partition(':')[2]}"
    try:
        psycopg.conninfo.conninfo_to_dict(address)
    except psycopg.ProgrammingError as error:
        raise InvalidInput(
            f"the PostgreSQL driver refuses this address ({str(error).strip()}); write it like"
            " postgresql://user@host:5432/database"
        ) from None
    name = URL.create("postgresql", host=parsed.host, port=parsed.port, database=parsed.database)
    return address, str(name)


def connect(address: str, *, patience: float) -> Connection:
    """A connection under the rules of this module."""
    connection = Connection.connect(
        address,
        autocommit=True,
        application_name="strandline",
        connect_timeout=max(2, min(10, round(patience))),
        target_session_attrs="read-write",
        keepalives_idle=10,
        keepalives_interval=5,
        keepalives_count=3,
    )
    try:
        connection.deadline = time.monotonic() + patience
        connection.execute(_SETTINGS)
    except BaseException:
        connection.close()
        raise
    return connection


def is_lost(error: BaseException) -> bool:
    """Whether the connection was found broken, so that another one may still do it."""
    original = getattr(error, "orig", None) or error
    if not isinstance(original, psycopg.Error) or isinstance(original, NoAnswer):
        return False
    state = original.sqlstate or ""
    return state[:4] == "57P0" or (isinstance(original, psycopg.OperationalError) and not state)


def in_transaction(connection: psycopg.Connection[Any]) -> bool:
    """Whether a transaction is open in which no statement has failed."""
    return connection.info.transaction_status == TransactionStatus.INTRANS


def is_database_error(error: BaseException) -> bool:
    """Whether ``error`` comes from the database or its pool and may be translated."""
    return isinstance(error, DBAPIError | PoolTimeout | psycopg.Error)


def translate(error: BaseException, name: str) -> StrandlineError | None:
    """Our error for one of PostgreSQL or of the pool; None where it is the caller's."""
    if isinstance(error, PoolTimeout):
        return DeadlineExceeded(f"no connection to {name} came free: too many reads at once")
    original = getattr(error, "orig", None) or error
    if isinstance(original, NoAnswer):
        return DeadlineExceeded(f"{name} did not answer in time; nothing was changed, try again")
    if not isinstance(original, psycopg.Error):
        return None
    state = original.sqlstate or ""
    said = str(original).strip().partition("\n")[0] or type(original).__name__
    if state in _CORRUPT_STATES:
        return CorruptData(f"{name} found damaged data ({said}); restore a backup of the database")
    if state == _NO_SCHEMA:
        return InvalidInput(f"{name} has not the schema that its search_path names ({said})")
    if state in _TOO_LARGE_STATES:
        return InvalidInput(f"a value is larger than {name} can hold ({said})")
    if state in _LATE_STATES:
        return DeadlineExceeded(f"{name} gave a statement up ({said}); try again")
    if state[:2] in _UNAVAILABLE_CLASSES or state in _UNAVAILABLE_STATES or is_lost(error):
        return Unavailable(f"{name} can not be used now ({said}); nothing was changed, try again")
    return None
