"""Elections, on every store."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from strandline.errors import InvalidInput, Unavailable
from strandline.metastorage import Election, Lease, Metastorage
from tests.metastorage.conftest import Place, Wall

TTL_MS = 1_500
"""Long enough that nobody loses a lease because the machine is busy."""
SHORT_TTL_MS = 300
PATIENCE = 30


class Heard:
    """What a listener was told, for a test to wait on."""

    def __init__(self) -> None:
        self.told: list[Lease | None] = []
        self._news = threading.Condition()

    def __call__(self, leader: Lease | None) -> None:
        with self._news:
            self.told.append(leader)
            self._news.notify_all()

    def wait_for(self, what: Callable[[Lease | None], bool]) -> Lease | None:
        """The first thing told, from now back or on, that fits and is the last one told."""
        with self._news:
            assert self._news.wait_for(lambda: bool(self.told) and what(self.told[-1]), PATIENCE)
            return self.told[-1]

    def wait_for_leader(self, among: set[str]) -> Lease:
        """The lease of a leader of these names."""
        found = self.wait_for(lambda leader: leader is not None and leader.holder in among)
        assert found is not None
        return found


class Participants:
    """Elections of one name, each with a node of its own."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self.elections: dict[str, Election] = {}
        self.heard: dict[str, Heard] = {}
        self.stores: dict[str, Metastorage] = {}

    def join(self, holder: str, *, ttl_ms: int = TTL_MS) -> Election:
        self.heard[holder] = Heard()
        self.stores[holder] = self._place.node()
        self.elections[holder] = Election(
            self.stores[holder], "lead", holder, ttl_ms=ttl_ms, listener=self.heard[holder]
        )
        return self.elections[holder].start()


@pytest.fixture
def participants(place: Place) -> Iterator[Participants]:
    made = Participants(place)
    yield made
    for election in made.elections.values():
        election.stop()


def test_one_of_many_leads_and_all_hear_who(participants: Participants) -> None:
    names = {"n0", "n1", "n2"}
    for name in names:
        participants.join(name)
    leaders = {participants.heard[name].wait_for_leader(names) for name in names}
    assert len({(leader.holder, leader.token) for leader in leaders}) == 1
    (holder,) = {leader.holder for leader in leaders}
    leading = {name for name in names if participants.elections[name].leading()}
    assert leading == {holder}
    assert participants.elections[holder].statistics().terms == 1


def test_when_the_leader_stops_another_leads_with_a_higher_token(
    participants: Participants,
) -> None:
    participants.join("n0")
    first = participants.heard["n0"].wait_for_leader({"n0"})
    participants.join("n1")
    participants.join("n2")
    for name in ("n1", "n2"):
        participants.heard[name].wait_for_leader({"n0"})
    participants.elections["n0"].stop()
    assert participants.elections["n0"].leading() is None
    held = participants.stores["n0"].lease("lead")
    assert held is None or held.holder != "n0"
    second = [participants.heard[name].wait_for_leader({"n1", "n2"}) for name in ("n1", "n2")]
    assert second[0].holder == second[1].holder
    assert second[0].token > first.token
    assert participants.heard["n0"].told == [first]


def test_a_leader_that_is_cut_off_is_replaced_and_learns_it(
    participants: Participants, monkeypatch: pytest.MonkeyPatch
) -> None:
    participants.join("n0", ttl_ms=SHORT_TTL_MS)
    first = participants.heard["n0"].wait_for_leader({"n0"})
    participants.join("n1", ttl_ms=SHORT_TTL_MS)
    participants.heard["n1"].wait_for_leader({"n0"})

    def cut(*_: object, **__: object) -> Lease:
        raise Unavailable("the cable is out")

    with monkeypatch.context() as patch:
        for call in ("renew_lease", "acquire_lease", "lease"):
            patch.setattr(participants.stores["n0"], call, cut)
        participants.heard["n0"].wait_for(lambda leader: leader is None)
        assert participants.elections["n0"].leading() is None
        second = participants.heard["n1"].wait_for_leader({"n1"})
        assert second.token > first.token
        lost = participants.elections["n0"].statistics()
        assert lost.terms == lost.losses > 0
        assert lost.failures > 0
    assert participants.heard["n0"].wait_for_leader({"n0", "n1"}).token >= second.token


def test_a_lease_that_was_answered_late_does_not_make_a_leader_for_longer(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer comes when the lease is over, and then no more of them."""
    store, heard = place.node(), Heard()
    acquire = store.acquire_lease

    def acquire_slowly(name: str, holder: str, *, ttl_ms: int) -> Lease | None:
        lease = acquire(name, holder, ttl_ms=ttl_ms)
        time.sleep(ttl_ms / 1000)
        return lease

    def cut(*_: object, **__: object) -> Lease:
        raise Unavailable("the cable is out")

    monkeypatch.setattr(store, "acquire_lease", acquire_slowly)
    monkeypatch.setattr(store, "renew_lease", cut)
    election = Election(store, "lead", "n0", ttl_ms=SHORT_TTL_MS, listener=heard).start()
    heard.wait_for_leader({"n0"})
    assert election.leading() is None
    election.stop()


def test_while_nobody_leads_that_is_heard(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    store, heard = place.node(), Heard()
    lease = place.node().acquire_lease("lead", "n0", ttl_ms=60_000)
    assert lease is not None
    # One who may only look, so that nobody takes over.
    monkeypatch.setattr(store, "acquire_lease", lambda *_, **__: None)
    election = Election(store, "lead", "n1", ttl_ms=TTL_MS, listener=heard).start()
    heard.wait_for_leader({"n0"})
    store.release_lease(lease)
    heard.wait_for(lambda leader: leader is None)
    election.stop()
    assert len(heard.told) == 2


def test_a_failing_listener_is_counted_and_the_leader_goes_on(place: Place) -> None:
    told = threading.Event()

    def fail(_: Lease | None) -> None:
        told.set()
        raise RuntimeError("planted")

    election = Election(place.node(), "lead", "n0", ttl_ms=TTL_MS, listener=fail).start()
    assert told.wait(PATIENCE)
    again = Heard()
    other = Election(place.node(), "lead", "n1", ttl_ms=TTL_MS, listener=again).start()
    lease = again.wait_for_leader({"n0"})
    assert election.leading() is not None
    assert election.statistics().listener_failures == 1
    election.stop()
    assert again.wait_for_leader({"n1"}).token > lease.token
    other.stop()
    other.stop()


def test_a_leader_that_took_the_store_s_time_ahead_and_died_is_replaced(place: Place) -> None:
    """Its lease ends in a time that nobody else will see for years."""
    gone = place.node(Wall(1 << 42)).acquire_lease("lead", "n0", ttl_ms=SHORT_TTL_MS)
    assert gone is not None
    heard = Heard()
    election = Election(place.node(), "lead", "n1", ttl_ms=SHORT_TTL_MS, listener=heard).start()
    assert heard.wait_for_leader({"n1"}).token == gone.token + 1
    election.stop()


def test_a_leader_that_renews_is_left_alone_while_the_store_s_time_stands_still(
    place: Place,
) -> None:
    place.node(Wall(1 << 42)).check()
    heard = {name: Heard() for name in ("n0", "n1")}
    elections = []
    for name, listener in heard.items():
        made = Election(place.node(), "lead", name, ttl_ms=TTL_MS, listener=listener).start()
        elections.append(made)
        listener.wait_for_leader({"n0"})
    end = time.monotonic() + PATIENCE
    while elections[1].statistics().rounds < 9:
        assert time.monotonic() < end
        time.sleep(0.01)
    assert [len(listener.told) for listener in heard.values()] == [1, 1]
    for election in elections:
        election.stop()


def test_an_error_that_nobody_thought_of_does_not_end_the_participation(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, heard = place.node(), Heard()

    def fail(*_: object, **__: object) -> Lease:
        raise RuntimeError("planted")

    with monkeypatch.context() as patch:
        patch.setattr(store, "acquire_lease", fail)
        election = Election(store, "lead", "n0", ttl_ms=SHORT_TTL_MS, listener=heard).start()
        end = time.monotonic() + PATIENCE
        while not election.statistics().failures:
            assert time.monotonic() < end
            time.sleep(0.005)
    assert heard.wait_for_leader({"n0"}).token == 1
    election.stop()


def test_a_leader_that_is_stopped_by_its_own_listener_gives_the_lease_back(place: Place) -> None:
    store, stopped = place.node(), threading.Event()

    def stop(_: Lease | None) -> None:
        election.stop()
        stopped.set()

    election = Election(store, "lead", "n0", ttl_ms=600_000, listener=stop)
    election.start()
    assert stopped.wait(PATIENCE)
    other = place.node()
    end = time.monotonic() + PATIENCE
    while (lease := other.acquire_lease("lead", "n1", ttl_ms=TTL_MS)) is None:
        assert time.monotonic() < end
        time.sleep(0.005)
    assert lease.token == 2
    assert election.leading() is None


def test_bad_names_and_times_are_refused(store: Metastorage) -> None:
    for name, holder, ttl_ms in (("", "n0", 1), ("lead", "é", 1), ("lead", "n0", 0)):
        with pytest.raises(InvalidInput):
            Election(store, name, holder, ttl_ms=ttl_ms, listener=lambda _: None)
