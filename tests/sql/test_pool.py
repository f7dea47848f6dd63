"""Connections of a pool, whose users a signal handler interrupts."""

from __future__ import annotations

import gc
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from threading import Thread

import pytest
from sqlalchemy import event
from sqlalchemy.exc import TimeoutError as NoConnection

from strandline.sql.pool import ConnectionPool
from tests.interrupts import is_interrupted


def new_pool() -> ConnectionPool:
    """A pool of one connection.

    It logs nothing: the locks of `logging` stay taken after an interrupt.
    """
    connect = partial(sqlite3.connect, ":memory:", check_same_thread=False)
    return ConnectionPool(connect, pool_size=1, max_overflow=0, reset_on_return=None)


def take_and_return(pool: ConnectionPool) -> None:
    pool.connect().close()


@pytest.mark.filterwarnings("ignore:unclosed database:ResourceWarning")  # since Python 3.13
@pytest.mark.parametrize("is_new", [True, False])
def test_a_thread_gets_a_connection_after_another_was_interrupted_at_any_step(
    is_new: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("CRITICAL", logger="sqlalchemy")  # it would keep errors, with their frames
    step, was_interrupted = 0, True
    while was_interrupted:
        pool = new_pool()
        if not is_new:
            take_and_return(pool)
        was_interrupted = is_interrupted(partial(take_and_return, pool), at_step=step)
        other = Thread(target=take_and_return, args=(pool,), daemon=True)
        other.start()
        other.join(10.0)
        assert not other.is_alive()
        pool.dispose()
        step += 1
    assert step > 1
    gc.collect()  # those that an interrupt has lost


@pytest.mark.filterwarnings("ignore:unclosed database:ResourceWarning")  # since Python 3.13
def test_a_thread_that_waits_gets_a_connection_once_another_is_returned_or_lost() -> None:
    pool = new_pool()
    with ThreadPoolExecutor(1) as threads:
        connection = pool.connect()
        other = threads.submit(take_and_return, pool)
        connection.close()
        other.result(10.0)
        entries = [pool._do_get()]
        other = threads.submit(take_and_return, pool)
        entries.clear()
        other.result(10.0)
    pool.dispose()
    gc.collect()  # the one that was lost


def test_a_pool_that_replaces_another_has_its_limits_options_and_listeners() -> None:
    """SQLAlchemy replaces the pool of an engine whose connections are given up."""
    connect = partial(sqlite3.connect, ":memory:")
    pool = ConnectionPool(connect, 1, max_overflow=0, timeout=0.0, reset_on_return=None)
    taken: list[sqlite3.Connection] = []
    event.listen(pool, "checkout", lambda *connection: taken.append(connection[0]))
    replacement = pool.recreate()
    assert replacement._timeout == 0.0
    with closing(replacement.connect()) as connection:
        connection.cursor().execute("CREATE TABLE t (a)")
        connection.cursor().execute("INSERT INTO t VALUES (1)")
        with pytest.raises(NoConnection):
            replacement.connect()
    (driver_connection,) = taken
    assert driver_connection.in_transaction  # nothing rolled it back
    replacement.dispose()


def test_a_thread_that_waits_is_served_before_the_one_that_returns_a_connection() -> None:
    pool, served = new_pool(), []

    def take(name: str) -> None:
        with closing(pool.connect()):
            served.append(name)

    for _ in range(20):
        connection = pool.connect()
        other = Thread(target=take, args=("other",), daemon=True)
        other.start()
        while not pool._claims:
            pass
        connection.close()
        take("own")
        other.join(10.0)
    pool.dispose()
    assert served == ["other", "own"] * 20


def test_a_pool_keeps_its_size_and_refuses_more_than_its_most() -> None:
    connect = partial(sqlite3.connect, ":memory:")
    pool = ConnectionPool(connect, pool_size=1, max_overflow=1, timeout=0.0).recreate()
    connections = [pool.connect(), pool.connect()]
    with pytest.raises(NoConnection, match="at most 2") as caught:
        pool.connect()
    assert caught.tb  # whose functions keep what they have
    assert pool.open_connections() == 2
    for connection in connections:
        connection.close()
    assert pool.open_connections() == 1
    pool.connect().close()
    pool.dispose()
    assert pool.open_connections() == 0


def test_connections_are_disposed_of_while_no_thread_takes_one() -> None:
    pool = new_pool()
    take_and_return(pool)
    other = Thread(target=pool.dispose, daemon=True)
    with pool._changed:
        other.start()
        other.join(0.05)
        assert other.is_alive()
    other.join(10.0)
    assert pool.open_connections() == 0


def test_a_failed_connection_takes_no_place() -> None:
    def fail() -> sqlite3.Connection:
        raise OSError("planted")

    pool = ConnectionPool(fail, pool_size=1, max_overflow=0, timeout=0.0)
    errors = []
    for _ in range(3):
        with pytest.raises(OSError, match="planted") as caught:
            pool.connect()
        errors.append(caught.value)  # with the functions in their tracebacks


def test_what_the_pool_does_is_not_in_the_log_of_a_node(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="strandline")
    pool = new_pool()
    pool.dispose()
    pool.recreate()
    assert not caplog.records
