"""What the log of a node says while its server is away, and when it is back."""

from __future__ import annotations

import logging
import time
from pathlib import Path

import pytest

from strandline.node import Node
from tests.servers import postgresql, stores

THREADS = ("notifications of strandline", "the thread catalog-applier", "the thread cache-applier")
LOST = ("notifications of strandline do not arrive", "catalog-applier: ", "cache-applier: ")


@pytest.mark.slow
def test_the_log_says_once_that_news_are_lost_and_when_each_follower_works_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    server = postgresql.PostgresServer()
    try:
        store = stores.new_store("postgresql", tmp_path)
        with Node.open(server.new_database(), settings=store.settings) as node:
            assert node.health.report() == []
            server.crash()
            end = time.monotonic() + 60
            while not all(" ".join(caplog.messages).count(lost) for lost in LOST):
                assert time.monotonic() < end, caplog.messages
                time.sleep(0.01)
            server.start()
            while node.health.report() or not all(backs(caplog, thread) for thread in THREADS):
                assert time.monotonic() < end + 60, caplog.messages
    finally:
        server.remove()
    assert sum("notifications of strandline do not arrive" in line for line in caplog.messages) == 1
    assert [backs(caplog, thread) for thread in THREADS] == [1, 1, 1]


def backs(caplog: pytest.LogCaptureFixture, thread: str) -> int:
    """How often the thread was logged as back."""
    return sum(line.startswith(thread) and "again, after " in line for line in caplog.messages)
