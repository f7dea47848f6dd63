"""The suite about servers that go away can fail: each planted fault is found."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from strandline.errors import Unavailable, UnknownOutcome
from strandline.metastorage.etcd import feed as etcd_feed
from strandline.metastorage.etcd import gateway as etcd_gateway
from strandline.metastorage.etcd.feed import ChangeFeed
from strandline.metastorage.etcd.gateway import EtcdGateway
from strandline.metastorage.etcd.store import EtcdMetastorage
from strandline.metastorage.sql_store import SqlMetastorage
from strandline.sql import looking, postgres_database
from strandline.sql.postgres_database import PostgresDatabase
from strandline.sql.statements import rows_of
from tests.metastorage import test_conformance_servers as servers
from tests.metastorage.teeth import Teeth, Tooth, wrap
from tests.servers.loopback import Cut

STORES = (SqlMetastorage, EtcdMetastorage)
TEETH = Teeth()

# -- servers -----------------------------------------------------------------------------------


@TEETH.found_by(
    servers.test_an_outcome_that_is_unknown_is_settled_by_reading,
    "postgresql",
    "etcd",
    complaint="DID NOT RAISE",
    cut=Cut.ANSWER,
)
def sent_again_blindly(patch: pytest.MonkeyPatch) -> None:
    """A write whose answer was lost is sent once more."""
    wrap(
        patch,
        "txn",
        EtcdGateway,
        by=lambda real, *given, repeatable: real(*given, repeatable=True),
    )

    def invoke(real: Any, *given: Any) -> Any:
        try:
            return real(*given)
        except UnknownOutcome:
            return real(*given)

    wrap(patch, "invoke", SqlMetastorage, by=invoke)


@TEETH.found_by(
    servers.test_an_outcome_that_is_unknown_is_settled_by_reading,
    "postgresql",
    "etcd",
    complaint="nothing was written",
    cut=Cut.ANSWER,
)
def unknown_taken_for_failed(patch: pytest.MonkeyPatch) -> None:
    """A lost answer is told as a write that did not happen."""

    def failed(*_: object) -> Unavailable:
        return Unavailable("nothing was written")

    patch.setattr(postgres_database, "UnknownOutcome", failed)
    patch.setattr(etcd_gateway, "_unknown", failed)


@TEETH.found_by(
    servers.test_an_outcome_that_is_unknown_is_settled_by_reading,
    "postgresql",
    complaint="DID NOT RAISE",
    cut=Cut.REQUEST,
)
def unknown_taken_for_done(patch: pytest.MonkeyPatch) -> None:
    """A commit that was not answered is told as done."""

    def commit(real: Any, *given: Any, **named: Any) -> None:
        with suppress(UnknownOutcome):
            real(*given, **named)

    wrap(patch, "_commit", PostgresDatabase, by=commit)


@TEETH.found_by(
    servers.test_after_a_restart_of_the_server_the_first_call_succeeds,
    "postgresql",
    complaint="cannot be used now",
    first=0,
)
def dead_connections_are_used(patch: pytest.MonkeyPatch) -> None:
    """A connection that is found lost is told to the caller."""

    def first(self: PostgresDatabase, text: Any, parameters: Any = (), **_: Any) -> Any:
        pooled = self._engine.raw_connection()
        try:
            raw = postgres_database._raw(pooled)
            asked = text if isinstance(text, str) else text(raw)
            return pooled, rows_of(raw, asked, parameters)
        except BaseException:
            pooled.close()
            raise

    patch.setattr(PostgresDatabase, "_first", first)


@TEETH.found_by(
    servers.test_a_server_that_is_away_is_told_and_missed_no_longer_than_it_is,
    "etcd",
    complaint="given up",
)
def given_up_for_good(patch: pytest.MonkeyPatch) -> None:
    """A server that was away once is not asked again."""
    away: set[int] = set()

    def call(real: Any, self: EtcdGateway, *given: Any, **named: Any) -> Any:
        if id(self) in away:
            raise Unavailable("the server was given up")
        try:
            return real(self, *given, **named)
        except Unavailable:
            away.add(id(self))
            raise

    wrap(patch, "_call", EtcdGateway, by=call)


@TEETH.found_by(
    servers.test_a_server_that_does_not_answer_is_given_up_after_the_patience,
    "etcd",
    complaint="assert SHORT <= ",
)
def little_patience(patch: pytest.MonkeyPatch) -> None:
    """A call is given up before its time."""

    def init(real: Any, self: EtcdGateway, endpoints: Any, *, timeout: float) -> None:
        real(self, endpoints, timeout=timeout / 2)

    wrap(patch, "__init__", EtcdGateway, by=init)


@TEETH.found_by(
    servers.test_a_waiter_sleeps_through_a_restart_and_hears_what_comes_after,
    "postgresql",
    complaint="raised Unavailable",
)
def waiters_give_up(patch: pytest.MonkeyPatch) -> None:
    """A waiter ends when the server does."""
    patch.setattr(looking, "Unavailable", KeyboardInterrupt)


@TEETH.found_by(
    servers.test_a_waiter_sleeps_through_a_restart_and_hears_what_comes_after,
    "postgresql",
    complaint="returned bool",
)
def away_is_news(patch: pytest.MonkeyPatch) -> None:
    """A waiter that loses the server says that something may have changed."""

    def look(real: Any, *given: Any) -> Any:
        try:
            return real(*given)
        except Unavailable:
            return 0, True

    wrap(patch, "_look", SqlMetastorage, by=look)


@TEETH.found_by(
    servers.test_a_change_before_the_waiter_listens_again_is_not_missed,
    "etcd",
    complaint="timeout=SOON",
)
def no_look_after_a_reconnection(patch: pytest.MonkeyPatch) -> None:
    """A watch that is made anew, seconds later, is taken for the one that was lost."""
    patch.setattr(etcd_feed, "_FIRST_PAUSE_SECONDS", 3.0)

    def take(real: Any, self: ChangeFeed, message: Any) -> None:
        real(self, {**message, "created": message.get("created") and not self.generation})

    wrap(patch, "_take", ChangeFeed, by=take)


@TEETH.found_by(
    servers.test_a_waiter_is_told_at_its_end_that_the_server_did_not_answer,
    "postgresql",
    "etcd",
    complaint="DID NOT RAISE",
)
def away_is_no_news(patch: pytest.MonkeyPatch) -> None:
    """A waiter that could not look says that nothing changed."""

    def wait(real: Any, *given: Any, **named: Any) -> Any:
        try:
            return real(*given, **named)
        except Unavailable:
            return False

    wrap(patch, "wait_for_change", *STORES, by=wait)


@pytest.mark.teeth
@pytest.mark.parametrize(("kind_name", "tooth"), TEETH.cases())
def test_the_suite_finds(
    kind_name: str, tooth: Tooth, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers, "SOON", 6.0)
    tooth.bite(request)
