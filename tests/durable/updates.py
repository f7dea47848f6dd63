"""Handmade updates, logs filled with them, and stores that fail or race at a chosen call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from strandline.durable import Change, Entry, Update, UpdateLog
from strandline.durable.collections import APPEND_ONLY, STORAGE_USAGE_EVENT
from strandline.durable.transaction import new_update
from strandline.durable.update import Appended
from strandline.errors import Unavailable
from strandline.fencing import FenceToken
from strandline.metastorage import Metastorage, Outcome
from strandline.model.descriptors import ConfigEntry, StorageUsageEvent
from strandline.wire.registry import encode

TOKEN = FenceToken(0, 1, nonce=7)


def update(version: int, verb: str = "create_zone", *, objects: int = 1) -> Update:
    """The update of ``version``, which makes ``objects`` new objects."""
    changes = []
    for number in range(objects):
        entry = ConfigEntry(f"key {version:04d} {number:03d}", "x" * 20)
        changes.append(Change("config", entry.name.encode(), None, encode(entry)))
    return new_update(
        version, [Entry(verb, {"n": version}, tuple(changes))], author="ann", member="m"
    )


def measured(version: int, events: int = 2) -> Update:
    """The update of ``version``, which appends ``events`` events of storage usage."""
    usage = [StorageUsageEvent(((n, 100 * version + n),), version) for n in range(events)]
    entry = ConfigEntry(f"measured {version:04d}", "")
    change = Change("config", entry.name.encode(), None, encode(entry))
    return new_update(
        version,
        [Entry("configure", {}, (change,))],
        author="ann",
        member="m",
        appended=[Appended(STORAGE_USAGE_EVENT, encode(event)) for event in usage],
    )


def begin(log: UpdateLog, versions: int, *, objects: int = 1) -> None:
    """Fill an empty log with that many versions."""
    log.append(1, None, [update(1, "fence", objects=objects)], new_token=TOKEN)
    for version in range(2, versions + 1):
        log.append(version, TOKEN, [update(version, objects=objects)])


def trim_in_steps(patch: pytest.MonkeyPatch, versions: int) -> None:
    """Let every log remove that many versions in one step of a compaction."""
    for log in ("metastorage_log", "stash_log"):
        patch.setattr(f"strandline.durable.{log}.TRIMMED_AT_ONCE", versions)


class RacedStore:
    """A store on which ``meddle`` is called at the n-th call of one method.

    It is called before that call or, with ``cut``, after it; then the caller gets an error.
    """

    def __init__(
        self,
        store: Metastorage,
        meddle: Callable[[], object],
        *,
        method: str = "invoke",
        call: int = 1,
        cut: bool = False,
    ) -> None:
        self._store, self._meddle, self._method = store, meddle, method
        self._call, self._cut = call, cut

    def __getattr__(self, name: str) -> Any:  # Any: whatever the store has
        real = getattr(self._store, name)
        if name != self._method:
            return real

        def call(*arguments: Any, **named: Any) -> Any:  # Any: passed on as it came
            self._call -= 1
            if self._call:
                return real(*arguments, **named)
            if not self._cut:
                self._meddle()
                return real(*arguments, **named)
            real(*arguments, **named)
            self._meddle()
            raise Unavailable("the connection was cut")

        return call


class CutStore:
    """A store whose answers are lost: the invoke happens or not, and the caller gets an error."""

    def __init__(self, store: Metastorage, *, happens: bool) -> None:
        self._store = store
        self._happens = happens

    def invoke(self, *arguments: Any) -> Outcome:  # Any: passed on as it came
        if self._happens:
            self._store.invoke(*arguments)
        raise Unavailable("the connection was cut")

    def __getattr__(self, name: str) -> Any:  # Any: whatever the store has
        return getattr(self._store, name)


def everything(log: UpdateLog) -> tuple[object, ...]:
    """All that a log contains."""
    frontier = log.frontier()
    return (
        frontier,
        log.token(),
        log.first_snapshot(),
        log.updates(frontier.since + 1, frontier.upper),
        {kind: list(log.scan(kind, 0, frontier.upper)) for kind in APPEND_ONLY},
    )
