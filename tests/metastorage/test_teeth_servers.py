"""The suite about servers that go away can fail: each planted fault is found."""

from __future__ import annotations

import threading
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
from strandline.sql import ordered_reads, postgres_database
from strandline.sql.postgres_database import PostgresDatabase
from tests.metastorage import test_conformance_servers as servers
from tests.metastorage.conftest import LONG
from tests.metastorage.teeth import Teeth, Tooth, wrap
from tests.servers.etcd import EtcdServer
from tests.servers.loopback import Cut

STORES = (SqlMetastorage, EtcdMetastorage)
TEETH = Teeth()

# -- servers -----------------------------------------------------------------------------------


@TEETH.found_by(
    servers.test_a_read_after_an_unknown_outcome_shows_whether_the_write_happened,
    "postgresql",
    "etcd",
    complaint="DID NOT RAISE",
    cut=Cut.ANSWER,
)
def sent_again_blindly(patch: pytest.MonkeyPatch) -> None:
    """A write whose answer was lost is sent again."""
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
    servers.test_a_read_after_an_unknown_outcome_shows_whether_the_write_happened,
    "postgresql",
    "etcd",
    complaint="nothing was written",
    cut=Cut.ANSWER,
)
def unknown_taken_for_failed(patch: pytest.MonkeyPatch) -> None:
    """A lost answer is reported as a write that did not happen."""

    def failed(*_: object) -> Unavailable:
        return Unavailable("nothing was written")

    patch.setattr(UnknownOutcome, "of_commit", failed)
    patch.setattr(etcd_gateway, "_unknown", failed)


@TEETH.found_by(
    servers.test_a_read_after_an_unknown_outcome_shows_whether_the_write_happened,
    "postgresql",
    complaint="DID NOT RAISE",
    cut=Cut.REQUEST,
)
def unknown_taken_for_done(patch: pytest.MonkeyPatch) -> None:
    """An unanswered commit is reported as successful."""

    def commit(real: Any, *given: Any, **named: Any) -> None:
        with suppress(UnknownOutcome):
            real(*given, **named)

    wrap(patch, "_commit", PostgresDatabase, by=commit)


@TEETH.found_by(
    servers.test_the_first_call_after_a_restart_of_the_server_succeeds,
    "postgresql",
    complaint="cannot be used now",
    first=0,
)
def dead_connections_are_used(patch: pytest.MonkeyPatch) -> None:
    """The loss of a pooled connection is reported to the caller."""

    def first(self: PostgresDatabase, begin: Any, **_: Any) -> Any:
        pooled = self._engine.raw_connection()
        raw = postgres_database._raw(pooled)
        postgres_database._allow(raw, self._timeout)
        try:
            return pooled, begin(raw)
        except BaseException:
            pooled.close()
            raise

    patch.setattr(PostgresDatabase, "_first", first)


@TEETH.found_by(
    servers.test_a_stopped_server_is_unavailable_until_it_is_started_again,
    "etcd",
    complaint="given up",
)
def given_up_for_good(patch: pytest.MonkeyPatch) -> None:
    """A server that was away once is not tried again."""
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
    servers.test_calls_to_a_server_that_does_not_answer_end_after_the_timeout,
    "etcd",
    complaint="assert SHORT <= ",
)
def short_timeout(patch: pytest.MonkeyPatch) -> None:
    """A call ends long before a short timeout is over, also on a busy machine."""
    short = LONG / 2
    patch.setattr(servers, "SHORT", short)

    def little(gateway: EtcdGateway) -> float:
        seconds = float(vars(gateway)["timeout"])
        return 0.5 if seconds == short else seconds

    def keep(gateway: EtcdGateway, seconds: float) -> None:
        vars(gateway)["timeout"] = seconds

    patch.setattr(EtcdGateway, "timeout", property(little, keep), raising=False)


@TEETH.found_by(
    servers.test_a_waiter_survives_a_restart_of_the_server_and_is_woken_by_a_later_change,
    "postgresql",
    complaint="raised Unavailable",
)
def waiters_give_up(patch: pytest.MonkeyPatch) -> None:
    """A wait ends when the server stops."""
    patch.setattr(servers, "AWHILE", LONG)
    patch.setattr(ordered_reads, "Unavailable", KeyboardInterrupt)


@TEETH.found_by(
    servers.test_a_waiter_survives_a_restart_of_the_server_and_is_woken_by_a_later_change,
    "postgresql",
    complaint="returned bool",
)
def away_is_news(patch: pytest.MonkeyPatch) -> None:
    """A waiter that loses the server reports a change."""
    patch.setattr(servers, "AWHILE", LONG)

    def look(real: Any, *given: Any) -> Any:
        try:
            return real(*given)
        except Unavailable:
            return 0, True

    wrap(patch, "_look", SqlMetastorage, by=look)


@TEETH.found_by(
    servers.test_a_change_made_before_the_waiter_has_reconnected_is_not_missed,
    "etcd",
    complaint="timeout=SOON",
)
def no_look_after_a_reconnection(patch: pytest.MonkeyPatch) -> None:
    """A watch that is reopened long after the change is taken for a continuation of the lost one.

    The server stops when the waiter has looked and watches, so that no later look finds the change.
    """
    watches = threading.Event()
    patch.setattr(etcd_feed, "_FIRST_PAUSE_SECONDS", LONG)

    def take(real: Any, self: ChangeFeed, message: Any) -> None:
        real(self, {**message, "created": message.get("created") and not self.generation})
        watches.set()

    def stop(real: Any, server: EtcdServer) -> None:
        assert watches.wait(LONG)
        real(server)

    wrap(patch, "_take", ChangeFeed, by=take)
    wrap(patch, "stop", EtcdServer, by=stop)


@TEETH.found_by(
    servers.test_a_wait_on_a_stopped_server_raises_unavailable_at_its_timeout,
    "postgresql",
    "etcd",
    complaint="DID NOT RAISE",
)
def away_is_no_news(patch: pytest.MonkeyPatch) -> None:
    """A waiter that could not check reports that nothing changed."""

    def wait(real: Any, *given: Any, **named: Any) -> Any:
        try:
            return real(*given, **named)
        except Unavailable:
            return False

    wrap(patch, "wait_for_change", *STORES, by=wait)


@pytest.mark.teeth
@pytest.mark.parametrize(("kind_name", "tooth"), TEETH.cases())
def test_the_suite_about_servers_finds_a_planted_fault(
    kind_name: str, tooth: Tooth, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers, "SOON", 6.0)
    tooth.bite(request)
