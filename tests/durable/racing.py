"""A process that opens or joins a catalog and commits to it, until it is done or killed.

It is killed at a counted point: before, after or within its n-th step. A step is a statement that
it sends to a database, a request to etcd, a write, sync, rename or removal of the file of a blob,
or a write or removal of an object on S3.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest

from strandline.clock import HybridClock
from strandline.durable import (
    AppliedUpdate,
    CatalogTransaction,
    DurableCatalogState,
    UpdateLog,
    durable_state,
    joined_anew,
)
from strandline.durable.migrations import present_format
from strandline.durable.persist import blob
from strandline.durable.state import ENVIRONMENT, TrimmedAway
from strandline.errors import Fenced, NotFound, OutOfSync
from strandline.metastorage.etcd.gateway import EtcdGateway
from strandline.model.descriptors import ConfigEntry
from strandline.sql import statements
from tests.durable import logs
from tests.durable.logs import LOGS
from tests.durable.racing_faults import FAULTS

COMMITS = 5
CHUNKED = 4000
"""Snapshots above this many bytes are cut: into a few chunks, even after a hundred rounds."""


Step = Callable[..., Any]


def kill_at(count: int, *, behind: bool) -> None:
    """From now on, kill this process at its ``count``-th step: before it, or after if so told."""
    left = count

    def counted(step: Step, part: Step | None = None) -> Step:
        """Count the calls of ``step``. Before a kill ahead of the call, ``part`` of it is done."""

        def do(*arguments: Any, **named: Any) -> Any:  # Any: passed on as it came
            nonlocal left
            left -= 1
            if left == 0 and not behind:
                if part is not None:
                    part(*arguments)
                os.kill(os.getpid(), signal.SIGKILL)
            answer = step(*arguments, **named)
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return answer

        return do

    patch = pytest.MonkeyPatch()
    patch.setattr(statements, "_sent", counted(statements._sent))
    system = SimpleNamespace(**vars(os))
    system.write = counted(os.write, lambda file, data: os.write(file, data[: len(data) // 2]))
    for name in ("fsync", "rename", "unlink"):
        setattr(system, name, counted(getattr(os, name)))
    patch.setattr(blob, "os", system)
    patch.setattr(EtcdGateway, "_post", counted(EtcdGateway._post))

    def counting(name: str) -> Any:  # Any: a module of an optional dependency
        module = import_module(name)
        if name != "obstore":
            return module
        steps = {name: counted(getattr(module, name)) for name in ("put", "delete")}
        return SimpleNamespace(**{**vars(module), **steps})

    patch.setattr(blob, "import_module", counting)


def run(
    say: Callable[[object], None],
    hear: Callable[[], Any],
    kind: str,
    address: str,
    name: str,
    seed: int,
    trimmed_to: int,
    fault: str,
) -> None:
    """Report each epoch taken, and each object with the epoch in which it was committed.

    The log may be trimmed up to ``trimmed_to``, a version that every process has seen. ``fault`` is
    one of `FAULTS`, or empty.
    """
    if fault:
        FAULTS[fault].fault(pytest.MonkeyPatch())
    pytest.MonkeyPatch().setattr(logs, "CHUNKED", CHUNKED)
    choose = random.Random(seed)
    if choose.random() < 0.7:
        kill_at(choose.randint(1, 120), behind=choose.random() < 0.5)
    with LOGS[kind].open(address, HybridClock()) as log:
        state = _opened(log, name, opens=choose.random() < 0.3, say=say)
        latest = state.take_recovered()[-1]
        for number in range(COMMITS):
            if choose.random() < 0.1 and trimmed_to:
                _compact(state, trimmed_to)
            state, latest = _commit(state, latest, f"{name} {number}")
            say(["committed", f"{name} {number}", state.token.epoch])


def _opened(
    log: UpdateLog, name: str, *, opens: bool, say: Callable[[object], None]
) -> DurableCatalogState:
    while True:
        openable = durable_state(log)
        try:
            if not opens:
                return openable.join(member=name)
        except NotFound:
            opens = True  # there is no catalog yet
        except Fenced:
            continue  # opened by another process since the token was read
        with suppress(Fenced):
            state = openable.open(
                member=name, initialize=_initialize, raise_fence=lambda _token, _environment: None
            )
            say(["epoch", state.token.epoch])
            return state


def _again(fenced: DurableCatalogState) -> tuple[DurableCatalogState, AppliedUpdate]:
    while True:
        with suppress(Fenced):
            state = joined_anew(fenced)
            return state, state.take_recovered()[-1]


def _initialize(transaction: CatalogTransaction) -> None:
    with transaction.entry("configure", {}):
        transaction.put(ConfigEntry(ENVIRONMENT, "race"))
        transaction.put(present_format())  # as a node does: no kill leaves a catalog without it


def _compact(state: DurableCatalogState, up_to: int) -> None:
    with suppress(Fenced):  # the commit that follows raises it too
        state.compact(up_to)


def _commit(
    state: DurableCatalogState, latest: AppliedUpdate, name: str
) -> tuple[DurableCatalogState, AppliedUpdate]:
    while True:
        try:
            transaction = state.transaction(latest, author=name)
            with transaction.entry("set_configuration", {"name": name}):
                transaction.put(ConfigEntry(name, "x"))
                transaction.allocate_id()
            return state, state.commit_transaction(transaction)
        except OutOfSync:
            state, latest = _caught_up(state, latest)
        except Fenced:
            state, latest = _again(state)


def _caught_up(
    state: DurableCatalogState, latest: AppliedUpdate
) -> tuple[DurableCatalogState, AppliedUpdate]:
    try:
        while applied := state.updates_after(latest):
            latest = applied[-1]
        return state, latest
    except (TrimmedAway, Fenced):
        return _again(state)
