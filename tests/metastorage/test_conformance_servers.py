"""What every metastorage with a server has to prove: the server stops and comes back."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent import futures
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from typing import Any

import pytest

from strandline.errors import Unavailable, UnknownOutcome
from strandline.metastorage import Absent, Metastorage, Put, TimeIs
from strandline.outage import Outage
from tests.conftest import ManualWall
from tests.metastorage.conftest import LONG, Place, hears, impatient, keys, put
from tests.metastorage.stores import STORES, Server, StoreKind
from tests.servers.loopback import Cut, Proxy

SHORT = 1.0
AWHILE = 0.2
"""Seconds in which a waiter notices that the server is away."""
SOON = 20.0
"""Seconds after which a waiter that has not reconnected never will."""
VALUE = b"A" * 48


@pytest.fixture(params=[name for name, kind in STORES.items() if kind.has_server])
def kind_name(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def calls_of(store: Metastorage) -> list[Callable[[], object]]:
    return [
        lambda: store.get("a"),
        lambda: store.range("", "~"),
        store.revision,
        store.check,
        lambda: put(store, "b", b"2"),
        lambda: store.acquire_lease("lead", "me", ttl_ms=1000),
    ]


def errors_of(calls: list[Callable[[], object]]) -> list[BaseException | None]:
    """The exceptions of the calls, which are made concurrently."""
    with ThreadPoolExecutor(len(calls)) as threads:
        answers = [threads.submit(call) for call in calls]
        return [answer.exception() for answer in answers]


@pytest.mark.parametrize("first", [0, 3, 5])
def test_the_first_call_after_a_restart_of_the_server_succeeds(
    place: Place, server: Server, first: int
) -> None:
    store = place.node(ManualWall(1_000))
    before = put(store, "a", b"1")
    with ThreadPoolExecutor(4) as threads:  # opens several connections
        list(threads.map(lambda _: store.range("", "~"), range(16)))
    server.restart()
    calls_of(store)[first]()
    entry = store.get("a")
    assert entry is not None
    assert (entry.value, entry.revision, entry.time) == (b"1", 1, before.time)
    assert put(store, "a").time > before.time


def test_calls_wait_for_a_server_that_is_away(
    place: Place, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = place.node()
    put(store, "a")
    calls = calls_of(store)
    waits, pause = threading.Event(), Outage.pause

    def note(self: Outage, reason: str, **limits: Any) -> bool:
        waits.set()
        return pause(self, reason, **limits)

    monkeypatch.setattr(Outage, "pause", note)
    server.stop()
    with ThreadPoolExecutor(1) as threads:
        errors = threads.submit(errors_of, calls)
        assert waits.wait(LONG)
        server.start()
        assert errors.result() == [None] * len(calls)


def test_a_stopped_server_is_unavailable_until_it_is_started_again(
    place: Place, server: Server
) -> None:
    store = place.node()
    put(store, "a")
    server.stop()
    with impatient(store, AWHILE):
        assert all(isinstance(error, Unavailable) for error in errors_of(calls_of(store)))
    server.start()
    assert put(store, "c").succeeded
    assert [key for key in keys(store) if key != "b"] == ["a", "c"]


def test_calls_to_a_server_that_does_not_answer_end_after_the_timeout(
    place: Place, server: Server
) -> None:
    store = place.node()
    put(store, "a", b"1")
    server.pause()
    began = time.monotonic()
    with impatient(store, SHORT):
        assert all(isinstance(error, Unavailable) for error in errors_of(calls_of(store)))
    assert SHORT <= time.monotonic() - began < LONG
    server.resume()
    assert put(store, "c").succeeded
    entry = store.get("a")
    assert entry is not None
    assert (entry.value, entry.revision) == (b"1", 1)


def test_a_waiter_survives_a_restart_of_the_server_and_is_woken_by_a_later_change(
    place: Place, server: Server
) -> None:
    store, other = place.node(), place.node()
    seen = put(store, "b").revision
    with ThreadPoolExecutor(2) as threads:
        waiting = [threads.submit(hears, store, "a", seen)]
        put(other, "b")
        server.stop()
        waiting.append(threads.submit(hears, store, "a", seen))
        assert not futures.wait(waiting, timeout=AWHILE).done
        server.start()
        put(other, "b")
        assert not any(waiter.done() for waiter in waiting)
        put(other, "a")
        assert all(waiter.result() for waiter in waiting)


@pytest.mark.slow
def test_a_change_made_before_the_waiter_has_reconnected_is_not_missed(
    place: Place, server: Server
) -> None:
    """Repeated, because it is chance at which point of the reconnection the change happens.

    The longer a server is away, the longer are the pauses between attempts to reconnect.
    """
    other = place.node()

    def put_as_soon_as_it_answers() -> None:
        end = time.monotonic() + LONG
        while time.monotonic() < end:
            with suppress(Unavailable):
                put(other, "a")
                return

    with ThreadPoolExecutor(2) as threads, closing(place.node()) as store:
        for away in (0.0, 0.1, 0.2, 0.3):
            seen = store.revision()
            waiting = threads.submit(store.wait_for_change, "a", seen, timeout=LONG)
            server.stop()
            assert not futures.wait([waiting], timeout=away).done
            putting = threads.submit(put_as_soon_as_it_answers)
            server.start()
            putting.result()
            assert futures.wait([waiting], timeout=SOON).done
            assert waiting.result()


def test_a_wait_on_a_stopped_server_raises_unavailable_at_its_timeout(
    place: Place, server: Server
) -> None:
    store = place.node()
    seen = put(store, "a").revision
    server.stop()
    with pytest.raises(Unavailable):
        store.wait_for_change("a", seen, timeout=0.2)
    server.start()
    assert not store.wait_for_change("a", seen, timeout=0)


@pytest.mark.parametrize("cut", [Cut.REQUEST, Cut.ANSWER])
def test_a_read_after_an_unknown_outcome_shows_whether_the_write_happened(
    place: Place, kind: StoreKind, server: Server, cut: Cut
) -> None:
    plan: list[Cut] = []

    def at_the_commit(data: bytes) -> Cut | None:
        return plan.pop() if plan and kind.commit_mark in data else None

    direct = place.node()
    with Proxy(server.port, at_the_commit) as proxy:
        store = place.node(port=proxy.port)
        put(store, "before")
        plan.append(cut)
        with pytest.raises(UnknownOutcome):
            store.invoke([Absent("mine")], [Put("mine", VALUE), Put("too", b"")])
        assert not plan
        happened = cut is Cut.ANSWER
        entry = store.get("mine")
        assert (entry is not None) == happened
        assert keys(direct) == (["before", "mine", "too"] if happened else ["before"])
        assert store.revision() == 1 + happened
        # Next, the caller retries: the write must not happen twice.
        again = store.invoke([Absent("mine")], [Put("mine", VALUE), Put("too", b"")])
        assert again.succeeded is not happened
        assert direct.revision() == again.revision == 2
        both = [TimeIs("mine", again.time), TimeIs("too", again.time)]
        assert direct.invoke(both, []).succeeded
        store.close()
