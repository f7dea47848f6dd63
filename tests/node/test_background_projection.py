"""DDL that nobody waits for is carried out, and nobody waits for DDL that is carried out."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from strandline.catalog.commands import ColumnDefinition, CreateTable, TableDefinition
from strandline.errors import Unavailable
from strandline.metastore.store.warehouse import Warehouse
from strandline.model.types import INT
from strandline.node import Node
from strandline.node.background_projection import BackgroundProjection

LONG = 60.0


class Projected:
    """Takes the place of a projector; fails as often as ``failures`` says."""

    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)
        self.versions: list[int] = []
        self.done = threading.Event()

    def project_up_to(self, version: int) -> None:
        if self.failures:
            raise self.failures.pop()
        self.versions.append(version)
        self.done.set()


def started(projector: Any) -> BackgroundProjection:
    projection = BackgroundProjection(projector, grace=0)
    projection.start()
    return projection


def new_table(name: str) -> CreateTable:
    definition = TableDefinition(name=name, columns=(ColumnDefinition("a", INT),))
    return CreateTable(schema="default", definition=definition)


def test_the_highest_version_that_was_wanted_is_projected() -> None:
    projected = Projected()
    projection = BackgroundProjection(projected, grace=0)  # type: ignore[arg-type]  # a part of one
    projection.want(7)
    projection.want(3)
    projection.start()
    assert projected.done.wait(LONG)
    projection.stop()
    assert projected.versions == [7]


def test_a_failure_is_told_and_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    projected = Projected(Unavailable("no space is left"))
    with caplog.at_level(logging.WARNING):
        projection = started(projected)
        projection.want(1)
        assert projected.done.wait(LONG)
        projection.stop()
    assert projected.versions == [1]
    assert projection.failures == 1
    assert "no space is left" in caplog.text


def test_what_waits_for_nothing_can_be_stopped() -> None:
    projection = started(Projected())
    projection.stop()
    projection.stop()


def test_readers_do_not_wait_for_the_folders_of_a_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    makes, go_on = threading.Event(), threading.Event()
    make = Warehouse.make

    def slow(*arguments: Any, **named: Any) -> Any:
        makes.set()
        assert go_on.wait(LONG)
        return make(*arguments, **named)

    with Node.open(tmp_path / "store") as node, ThreadPoolExecutor(2) as threads:
        session = node.session(user="ann")
        session.execute(new_table("old"))
        monkeypatch.setattr(Warehouse, "make", slow)
        creating = threads.submit(session.execute, new_table("new"))
        try:
            assert makes.wait(LONG)
            catalog = threads.submit(node.catalogs.present).result(LONG)
            assert catalog.relation("default", "new") is not None
            # The event loop answers too: it need not wait for anybody.
            assert node.catalogs.known_present() is catalog
            assert threads.submit(session.table, "default.old").result(LONG).location
            assert not creating.done()
        finally:
            go_on.set()
        creating.result(LONG)
        assert session.table("default.new").location
