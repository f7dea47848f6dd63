"""A signal handler raises while a statement waits for PostgreSQL."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing
from typing import Any

import pytest

from strandline.sql import run
from strandline.sql.postgres_connection import Connection
from strandline.sql.postgres_database import open_url
from tests.servers import postgresql


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, TimeoutError])
def test_a_commit_that_a_signal_handler_ends_undoes_nothing_outside(
    monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    """The server may have committed. Time limits of jobs end a commit like this, as Ctrl-C does."""

    def send_and_raise(_: Connection, gen: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
        yield next(gen)
        raise error

    undone: list[bool] = []
    with closing(open_url(postgresql.running().new_schema())) as database:
        with monkeypatch.context() as patch, pytest.raises(error), database.write() as connection:
            database.if_undone(lambda: undone.append(True))
            run(connection, "SELECT 1")
            patch.setattr(Connection, "_until_deadline", send_and_raise)
        assert not undone
