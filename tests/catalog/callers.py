"""Callers of a catalog manager, which a test stops where it wants.

Tests read `PATIENCE` whenever they wait, because a planted fault makes it short.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from strandline.catalog import CatalogManager
from strandline.catalog.commands import ColumnDefinition, CreateSchema, CreateTable, TableDefinition
from strandline.catalog.requests import Request
from strandline.model.descriptors import Setting
from strandline.model.types import INT

Managers = Callable[..., CatalogManager]

PATIENCE = 60.0
"""Seconds to wait for what happens on every machine, unless a planted fault prevents it."""


def create(name: str, *, if_not_exists: bool = False) -> CreateSchema:
    return CreateSchema(name=name, if_not_exists=if_not_exists)


def table(name: str) -> CreateTable:
    definition = TableDefinition(name=name, columns=(ColumnDefinition("x", INT),))
    return CreateTable(schema="default", definition=definition)


def schemas(manager: CatalogManager) -> list[str]:
    return [schema.name for schema in manager.present().schemas() if len(schema.name) < 6]


class Gate:
    """Stops the appends of one manager before or after they happen."""

    def __init__(self, manager: CatalogManager) -> None:
        self.log = manager.state.log
        self.real: Any = self.log.append  # Any: as the real one
        self.reached = threading.Semaphore(0)
        self.open = threading.Semaphore(0)
        self.after = False
        self.sent: list[int] = []
        self.log.append = self.append  # type: ignore[method-assign]  # what this test is for

    def append(self, *arguments: Any, **named: Any) -> Any:  # Any: as the real one
        self.sent.append(len(arguments[2]))
        if not self.after:
            self._wait()
        result = self.real(*arguments, **named)
        if self.after:
            self._wait()
        return result

    def _wait(self) -> None:
        self.reached.release()
        assert self.open.acquire(timeout=PATIENCE)

    def let_all_pass(self) -> None:
        self.open.release(1000)


class Call(threading.Thread):
    """One caller, and its outcome."""

    def __init__(
        self, manager: CatalogManager, command: Any, *, timeout: float = 60, author: str = "ann"
    ) -> None:
        super().__init__(daemon=True)
        self.manager, self.command, self.timeout = manager, command, timeout
        self.author = author
        self.version = 0
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            executed = self.manager.execute(self.command, author=self.author, timeout=self.timeout)
            self.version = executed.version
        except BaseException as error:
            self.error = error

    def outcome(self) -> BaseException | int:
        self.join(PATIENCE)
        assert not self.is_alive(), "a caller hangs"
        return self.error or self.version


def together(manager: CatalogManager, gate: Gate, commands: Sequence[Any]) -> list[Call]:
    """Calls that share a round, by the authors u1, u2 …"""
    first, calls = queued(manager, gate, commands)
    gate.let_all_pass()
    assert first.outcome() == 3
    return calls


def queued(manager: CatalogManager, gate: Gate, commands: Sequence[Any]) -> tuple[Call, list[Call]]:
    """A call whose append is stopped, and the calls that queue after it."""
    first = Call(manager, create("first"))
    assert gate.reached.acquire(timeout=PATIENCE)
    calls = []
    for count, command in enumerate(commands, 1):
        calls.append(Call(manager, command, author=f"u{count}"))
        wait_for(lambda count=count: len(manager._commits._waiting) == count)  # type: ignore[misc]  # mypy: no default in a lambda
    return first, calls


def leave_after(
    monkeypatch: pytest.MonkeyPatch, reached: Callable[[], bool], *, author: str = "late"
) -> None:
    """Let ``author`` time out as soon as ``reached`` returns, however long that takes.

    ``reached`` waits until the request has come to a certain point.
    """
    left, enqueued = Request.left, set[Request]()

    def left_once_reached(request: Request) -> float:
        if request.author != author:
            return left(request)
        if request not in enqueued:
            enqueued.add(request)
            return 60.0
        assert reached()
        return 0.0

    monkeypatch.setattr(Request, "left", left_once_reached)


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


def keep_books(manager: CatalogManager, number: int, verb: str) -> None:
    manager.sync()
    transaction = manager.state.transaction(manager.latest_catalog(), author="system")
    with transaction.entry(verb, {}):
        transaction.put(Setting(f"note {number}", "x"))
    manager.state.commit_transaction(transaction)
