"""What the log of a node says while its server is away, and when it is back."""

from __future__ import annotations

import logging
import time
from pathlib import Path

import pytest

from strandline.node import Node
from tests.servers import postgresql, stores


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
            end = time.monotonic() + 0.3  # several attempts of each thread
            while time.monotonic() < end or node.health.report() == []:
                pass
            server.start()
            while node.health.report() or sum(map(is_back, caplog.messages)) < 3:
                assert time.monotonic() < end + 60, caplog.messages
    finally:
        server.remove()
    assert sum("news of strandline are lost" in line for line in caplog.messages) == 1
    for thread in ("news of strandline", "the thread catalog-applier", "the thread cache-applier"):
        assert sum(is_back(line) and line.startswith(thread) for line in caplog.messages) == 1


def is_back(line: str) -> bool:
    return "again, after " in line and line.endswith(" s")
