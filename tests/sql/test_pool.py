"""Connections of a pool, whose users a signal handler interrupts."""

from __future__ import annotations

import gc
import sqlite3
from functools import partial
from threading import Thread
from typing import Any

import pytest

from strandline.sql.pool import ConnectionPool
from tests.interrupts import is_interrupted


def new_pool() -> ConnectionPool:
    """A pool that logs nothing: the locks of `logging` stay taken after an interrupt."""
    # Any: as SQLAlchemy's own type of a connection is not that of SQLite
    connect: Any = partial(sqlite3.connect, ":memory:", check_same_thread=False)
    return ConnectionPool(connect, reset_on_return=None)


def take_and_return(pool: ConnectionPool) -> None:
    pool.connect().close()


@pytest.mark.filterwarnings("ignore:unclosed database:ResourceWarning")  # since Python 3.13
def test_a_thread_gets_a_connection_after_another_was_interrupted_at_any_step() -> None:
    step, was_interrupted = 0, True
    while was_interrupted:
        pool = new_pool()
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


def test_what_the_pool_does_is_not_in_the_log_of_a_node(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="strandline")
    pool = new_pool()
    pool.dispose()
    pool.recreate()
    assert not caplog.records
