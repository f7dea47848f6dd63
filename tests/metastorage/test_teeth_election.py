"""The suite about elections can fail: each planted fault is found."""

from __future__ import annotations

import time
from typing import Any

import pytest

from strandline.metastorage import Election, Lease, election
from tests.metastorage import test_election as elections
from tests.metastorage.conftest import Place
from tests.metastorage.teeth import Teeth, Tooth, wrap

TEETH = Teeth()


@TEETH.found_by(
    elections.test_one_of_many_leads_and_all_hear_who, "sqlite", complaint="leading == {holder}"
)
def whoever_leads(patch: pytest.MonkeyPatch) -> None:
    """A participant that knows of a leader says that it leads."""
    patch.setattr(Election, "leading", lambda self: self._told)


@TEETH.found_by(
    elections.test_a_leader_that_is_cut_off_is_replaced_and_learns_it,
    "sqlite",
    complaint="leader is None",
)
def leads_until_it_is_told(patch: pytest.MonkeyPatch) -> None:
    """A leader that the store does not answer goes on, whatever time it is."""
    patch.setattr(Election, "leading", lambda self: self._held)


@TEETH.found_by(
    elections.test_a_lease_that_was_answered_late_does_not_make_a_leader_for_longer,
    "sqlite",
    complaint="leading.. is None",
)
def counted_from_the_answer(patch: pytest.MonkeyPatch) -> None:
    """The time of a lease begins when the store has answered."""

    def ask(real: Any, self: Election) -> Any:
        leader = real(self)
        self._held_until = time.monotonic() + self._ttl_ms / 1000
        return leader

    wrap(patch, "_ask", Election, by=ask)


@TEETH.found_by(
    elections.test_a_leader_that_is_cut_off_is_replaced_and_learns_it,
    "sqlite",
    complaint="lost.terms == lost.losses",
)
def losses_uncounted(patch: pytest.MonkeyPatch) -> None:
    """A leader that is deposed does not count it."""

    def lost(self: Election) -> None:
        self._held = None

    patch.setattr(Election, "_lost", lost)


@TEETH.found_by(
    elections.test_a_leader_that_renews_is_left_alone_while_the_store_s_time_stands_still,
    "sqlite",
    complaint=r"== \[1, 1\]",
)
def told_at_each_renewal(patch: pytest.MonkeyPatch) -> None:
    """A listener is told of each new expiry."""
    patch.setattr(election, "_term", lambda lease: lease)


@TEETH.found_by(
    elections.test_a_leader_that_renews_is_left_alone_while_the_store_s_time_stands_still,
    "sqlite",
    complaint=r"== \[1, 1\]",
)
def deposed_though_it_renews(patch: pytest.MonkeyPatch) -> None:
    """A leader is deposed some time after it was seen first."""

    def present(real: Any, self: Election, leader: Lease | None) -> Any:
        if leader is not None and self._seen is not None and leader.token == self._seen.token:
            self._seen = leader
        return real(self, leader)

    wrap(patch, "_present", Election, by=present)


@TEETH.found_by(
    elections.test_a_leader_that_took_the_store_s_time_ahead_and_died_is_replaced,
    "sqlite",
    complaint="wait_for_leader",
)
def waits_for_the_store_s_time(patch: pytest.MonkeyPatch) -> None:
    """Nobody gives back the lease of one who does not renew it."""
    patch.setattr(Election, "_present", lambda _, leader: leader)


@TEETH.found_by(
    elections.test_while_nobody_leads_that_is_heard, "sqlite", complaint="leader is None"
)
def nobody_is_not_told(patch: pytest.MonkeyPatch) -> None:
    """A listener is told of leaders only."""

    def tell(real: Any, self: Election, leader: Lease | None) -> None:
        if leader is not None:
            real(self, leader)

    wrap(patch, "_tell", Election, by=tell)


@TEETH.found_by(
    elections.test_when_the_leader_stops_another_leads_with_a_higher_token,
    "sqlite",
    complaint="held is None or",
)
@TEETH.found_by(
    elections.test_a_leader_that_is_stopped_by_its_own_listener_gives_the_lease_back,
    "sqlite",
    complaint="time.monotonic.. < end",
)
def keeps_the_lease(patch: pytest.MonkeyPatch) -> None:
    """Who stops leaves the lease to its time."""

    def give_back(self: Election) -> None:
        self._held = None

    patch.setattr(Election, "_release", give_back)


@TEETH.found_by(
    elections.test_a_failing_listener_is_counted_and_the_leader_goes_on,
    "sqlite",
    complaint="listener_failures == 1",
)
def failures_of_listeners_swallowed(patch: pytest.MonkeyPatch) -> None:
    """A listener that fails is not heard of."""

    def count(real: Any, self: Election, what: str) -> None:
        if what != "listener_failures":
            real(self, what)

    wrap(patch, "_count", Election, by=count)


@TEETH.found_by(
    elections.test_a_failing_listener_is_counted_and_the_leader_goes_on,
    "sqlite",
    complaint="wait_for_leader|leading.. is not None",
)
def ended_by_a_listener(patch: pytest.MonkeyPatch) -> None:
    """A listener that fails ends the participation."""

    def count(real: Any, self: Election, what: str) -> None:
        real(self, what)
        if what == "listener_failures":
            self._stop.set()

    wrap(patch, "_count", Election, by=count)


@TEETH.found_by(
    elections.test_an_error_that_nobody_thought_of_does_not_end_the_participation,
    "sqlite",
    complaint="wait_for_leader",
)
def ended_by_an_error(patch: pytest.MonkeyPatch) -> None:
    """What is no error of the store ends the participation."""

    def ask(real: Any, self: Election) -> Any:
        try:
            return real(self)
        except RuntimeError:
            self._stop.set()
            raise

    wrap(patch, "_ask", Election, by=ask)


@pytest.fixture
def participants(place: Place) -> elections.Participants:
    return elections.Participants(place)


@pytest.mark.teeth
@pytest.mark.parametrize(("kind_name", "tooth"), TEETH.cases())
def test_the_suite_finds(
    kind_name: str, tooth: Tooth, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With leases and patience so short that what does not come is missed soon."""
    started: list[Election] = []

    def start(real: Any, self: Election) -> Any:
        started.append(self)
        return real(self)

    wrap(monkeypatch, "start", Election, by=start)
    monkeypatch.setattr(elections, "TTL_MS", 300)
    monkeypatch.setattr(elections, "PATIENCE", 1.5)
    try:
        tooth.bite(request)
    finally:
        for one in started:
            one.stop()
