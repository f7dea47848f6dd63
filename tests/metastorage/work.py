"""What other processes do in the conformance suite."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from strandline.clock import HybridClock
from strandline.metastorage import Absent, Metastorage, Put, TimeIs
from tests.metastorage.conftest import hears
from tests.metastorage.stores import STORES

Say = Callable[[object], None]
Hear = Callable[[], Any]


def increment(store: Metastorage, key: str) -> None:
    """Add 1 to the number at ``key`` by compare-and-set."""
    while True:
        entry = store.get(key)
        value = 0 if entry is None else int(entry.value)
        condition = Absent(key) if entry is None else TimeIs(key, entry.time)
        if store.invoke([condition], [Put(key, b"%d" % (value + 1))]).succeeded:
            return


def increments(say: Say, hear: Hear, kind: str, address: str, rounds: int) -> None:
    """Increment ``rounds`` times, concurrently with others."""
    with STORES[kind].open(address, HybridClock()) as store:
        say("ready")
        hear()
        for _ in range(rounds):
            increment(store, "number")
        say("done")


def wait_for_changes(say: Say, hear: Hear, kind: str, address: str, prefix: str) -> None:
    """Report what ``prefix`` holds, now and after each change, until it holds ``{prefix}end``."""
    with STORES[kind].open(address, HybridClock()) as store:
        while True:
            seen = store.revision()
            pairs = store.range(prefix, prefix + "~")
            say([[pair.key, pair.value.decode()] for pair in pairs])
            if any(pair.key == prefix + "end" for pair in pairs):
                return
            assert hears(store, prefix, seen)


def answer_revisions(say: Say, hear: Hear, kind: str, address: str) -> None:
    """For each word received, report the revision, then write and report it anew; None ends it."""
    with STORES[kind].open(address, HybridClock()) as store:
        say("ready")
        while hear() is not None:
            seen = store.revision()
            say([seen, store.invoke([], [Put("theirs", b"")]).revision])


def write_pairs(say: Say, hear: Hear, kind: str, address: str, start: int) -> None:
    """Write 1, 2, 3 … to two keys in one step and report each acknowledged number."""
    with STORES[kind].open(address, HybridClock()) as store:
        number = start
        while True:
            number += 1
            value = b"%d" % number
            store.invoke([], [Put("left", value), Put("right", value)])
            say(number)
