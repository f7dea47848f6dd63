"""What every metastorage has to prove: leases."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from strandline.clock import timestamp
from strandline.errors import Conflict
from strandline.metastorage import Condition, LeaseHeld, Metastorage, Put
from tests.conftest import ManualWall
from tests.metastorage.conftest import MEETING, Place, keys, put

CALLERS = 8


def test_a_lease_has_one_holder_and_each_new_holder_gets_a_larger_token(place: Place) -> None:
    wall = ManualWall(1_000)
    store, other = place.node(wall), place.node(wall)
    assert store.lease("lead") is None
    first = store.acquire_lease("lead", "one", ttl_ms=500)
    assert first is not None
    assert first.expires >= timestamp(1_500)
    assert other.acquire_lease("lead", "two", ttl_ms=500) is None
    assert other.lease("lead") == first
    assert other.acquire_lease("else", "two", ttl_ms=500) is not None
    store.release_lease(first)
    assert other.lease("lead") is None
    second = other.acquire_lease("lead", "two", ttl_ms=500)
    assert second is not None
    assert second.token > first.token
    store.release_lease(first)
    assert store.lease("lead") == second
    assert store.revision() == 0


def test_a_holder_that_acquires_its_lease_again_keeps_the_token(store: Metastorage) -> None:
    first = store.acquire_lease("lead", "one", ttl_ms=60_000)
    again = store.acquire_lease("lead", "one", ttl_ms=120_000)
    assert first is not None
    assert again is not None
    assert again.token == first.token
    assert again.expires > first.expires


def test_an_expired_lease_stays_expired_for_every_reader(place: Place) -> None:
    wall, late = ManualWall(1_000), ManualWall(1_000)
    store, slow = place.node(wall), place.node(late)
    first = store.acquire_lease("lead", "one", ttl_ms=500)
    assert first is not None
    wall.now = 1_499
    assert store.lease("lead") == first
    wall.now = 1_501
    assert store.lease("lead") is None
    wall.now = 1_000
    assert store.lease("lead") is None
    assert slow.lease("lead") is None
    with pytest.raises(Conflict, match="lead"):
        slow.renew_lease(first, ttl_ms=500)
    assert not slow.invoke([LeaseHeld("lead", first.token)], []).succeeded
    second = slow.acquire_lease("lead", "one", ttl_ms=500)
    assert second is not None
    assert second.token > first.token
    with pytest.raises(Conflict, match="lead"):
        slow.renew_lease(first, ttl_ms=500)
    slow.release_lease(first)
    assert slow.lease("lead") == second


def test_a_lease_expires_by_the_time_of_the_store_not_of_the_reader(place: Place) -> None:
    wall, late = ManualWall(1_000), ManualWall(1_000)
    store, slow = place.node(wall), place.node(late)
    first = slow.acquire_lease("lead", "one", ttl_ms=500)
    assert first is not None
    wall.now = 2_000
    put(store, "a")
    assert slow.lease("lead") is None


def test_a_write_conditional_on_a_lease_needs_its_token_and_is_refused_after_expiry(
    place: Place,
) -> None:
    wall = ManualWall(1_000)
    store, slow = place.node(wall), place.node(ManualWall(1_000))
    lease = store.acquire_lease("lead", "one", ttl_ms=500)
    assert lease is not None
    relying: list[Condition] = [LeaseHeld("lead", lease.token)]
    assert store.invoke(relying, [Put("a", b"")]).succeeded
    assert not store.invoke([LeaseHeld("lead", lease.token + 1)], [Put("b", b"")]).succeeded
    wall.now = 1_400
    lease = store.renew_lease(lease, ttl_ms=500)
    wall.now = 1_899
    assert store.invoke(relying, [Put("a", b"")]).succeeded
    wall.now = 1_901
    assert not store.invoke(relying, [Put("b", b"")]).succeeded
    assert not slow.invoke(relying, [Put("b", b"")]).succeeded
    assert slow.lease("lead") is None
    assert keys(store) == ["a"]


def test_a_write_conditional_on_a_lease_is_refused_after_its_release(place: Place) -> None:
    store = place.node()
    lease = store.acquire_lease("lead", "one", ttl_ms=60_000)
    assert lease is not None
    store.release_lease(lease)
    assert not store.invoke([LeaseHeld("lead", lease.token)], [Put("a", b"")]).succeeded
    assert keys(store) == []


def test_a_lost_lease_cannot_be_renewed(place: Place) -> None:
    wall = ManualWall(1_000)
    store = place.node(wall)
    lost = store.acquire_lease("lead", "one", ttl_ms=500)
    assert lost is not None
    wall.now = 2_000
    assert store.acquire_lease("lead", "two", ttl_ms=500) is not None
    with pytest.raises(Conflict, match="two holds"):
        store.renew_lease(lost, ttl_ms=500)


def test_only_one_of_many_concurrent_callers_gets_a_lease(place: Place) -> None:
    nodes = [place.node(), place.node()]
    names = [f"lead{number}" for number in range(10)]
    together = threading.Barrier(CALLERS)

    def run_for(number: int) -> list[str]:
        got = []
        for name in names:
            together.wait(MEETING)
            if nodes[number % 2].acquire_lease(name, f"n{number}", ttl_ms=60_000) is not None:
                got.append(name)
        return got

    with ThreadPoolExecutor(CALLERS) as threads:
        got = list(threads.map(run_for, range(CALLERS)))
    assert sorted(name for listing in got for name in listing) == names
