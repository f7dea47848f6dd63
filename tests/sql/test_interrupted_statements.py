"""A signal handler raises while a statement waits for PostgreSQL."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing
from typing import Any

import pytest

from strandline.errors import DeadlineExceeded
from strandline.sql import run
from strandline.sql.postgres_connection import Connection
from strandline.sql.postgres_database import open_url
from tests.servers import postgresql


def sending_and_raising(error: type[BaseException]) -> Any:  # Any: in place of a method
    """`Connection._until_deadline`, in which a signal handler raises once the text is sent."""

    def send_and_raise(_: Connection, gen: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
        yield next(gen)
        raise error

    return send_and_raise


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, TimeoutError])
def test_a_commit_that_a_signal_handler_ends_undoes_nothing_outside(
    monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    """The server may have committed. Time limits of jobs end a commit like this, as Ctrl-C does."""
    send_and_raise = sending_and_raising(error)
    undone: list[bool] = []
    with closing(open_url(postgresql.running().new_schema())) as database:
        with monkeypatch.context() as patch, pytest.raises(error), database.write() as connection:
            database.if_undone(lambda: undone.append(True))
            run(connection, "SELECT 1")
            patch.setattr(Connection, "_until_deadline", send_and_raise)
        assert not undone


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, TimeoutError])
def test_a_read_waits_for_the_end_of_a_commit_that_a_signal_handler_ended(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: type[BaseException]
) -> None:
    """The server may still be committing, so the read first takes the write lock."""
    address = postgresql.running().new_schema()
    with closing(open_url(address, timeout=0.5)) as database:
        with monkeypatch.context() as patch, pytest.raises(error), database.write() as connection:
            run(connection, "SELECT 1")
            patch.setattr(Connection, "_until_deadline", sending_and_raising(error))
        with (
            closing(open_url(address)) as other,
            other.write(),
            pytest.raises(DeadlineExceeded, match="another process held the write lock"),
        ):
            database.rows("SELECT 1")
        assert database.rows("SELECT 1") == [(1,)]
    assert not caplog.records
