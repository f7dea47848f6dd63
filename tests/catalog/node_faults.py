"""Mistakes that a node of `catalog_process` can be started with, by name.

Each is planted before the node opens the catalog, and lasts as long as its process.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from strandline.catalog import Catalog, CatalogManager
from strandline.catalog.applier import ROUND_SECONDS
from strandline.catalog.follower import CatalogFollower
from strandline.catalog.group_commit import GroupCommit
from strandline.catalog.requests import Group, Request, Stage
from strandline.clock import add_milliseconds
from strandline.durable import CatalogTransaction, Update
from strandline.errors import Stopping, StrandlineError, Unavailable
from strandline.sql import postgres_connection
from strandline.sql.postgres_database import PostgresDatabase

Patch = pytest.MonkeyPatch


def of_what_was_applied(follower: CatalogFollower) -> Catalog:
    """The present according to the versions that this node has applied."""
    return follower._history.at_time(follower._clock.current())


# -- what a call waits for -------------------------------------------------------------------------


def return_when_it_is_in_the_log(patch: Patch) -> None:
    """A call does not wait for its version to become active."""
    patch.setattr(CatalogManager, "_await_activation", lambda *_: None)


def leave_the_skew_out(patch: Patch) -> None:
    """A call waits until its version is active by the clock of its own node."""
    real = CatalogManager._await_activation

    def await_activation(self: CatalogManager, catalog: Catalog, end: float) -> None:
        own = add_milliseconds(catalog.time, -self.skew)
        real(self, Catalog(catalog.version, own, catalog.contents), end)

    patch.setattr(CatalogManager, "_await_activation", await_activation)


# -- what a node appends and answers ---------------------------------------------------------------


def acknowledge_a_lost_append(patch: Patch) -> None:
    """A caller whose append was lost to another node is told that it succeeded."""
    real = GroupCommit._rebase

    def rebase(self: GroupCommit, group: Group) -> Group | None:
        real(self, group)
        self._answer(group, [self._follower.latest_catalog() for _ in group.requests()])
        return None

    patch.setattr(GroupCommit, "_rebase", rebase)


def one_version_for_a_group(patch: Patch) -> None:
    """All callers that shared an append get the last version of it."""
    real = GroupCommit._answer

    def answer(self: GroupCommit, group: Group, catalogs: Sequence[Catalog]) -> None:
        real(self, group, [catalogs[-1] for _ in catalogs])

    patch.setattr(GroupCommit, "_answer", answer)


def new_ids_for_each_try(patch: Patch) -> None:
    """An append without an answer is sent again with a new id."""
    real = CatalogTransaction.update

    def update(self: CatalogTransaction, *, member: str) -> Update:
        self._id = secrets.token_bytes(16)
        return real(self, member=member)

    patch.setattr(CatalogTransaction, "update", update)


def carry_out_who_has_left(patch: Patch) -> None:
    """A command is executed although its caller timed out in the queue."""

    def leave(self: GroupCommit, request: Request) -> StrandlineError | None:
        return None if request.stage is Stage.DONE else self._late(request)

    patch.setattr(GroupCommit, "_leave", leave)


def wait_for_ever(patch: Patch) -> None:
    """A caller waits for its turn without a time-out."""

    def execute(self: GroupCommit, request: Request) -> None:
        self._enqueue(request)
        request.gate.acquire()

    patch.setattr(GroupCommit, "execute", execute)


# -- how a node knows the present ------------------------------------------------------------------


def news_every_minute(patch: Patch) -> None:
    """The node looks at the log once a minute, and reads see only what that look found."""

    def follow(self: CatalogFollower) -> None:
        if not self._stop.wait(60.0):
            self.sync()

    patch.setattr(CatalogFollower, "_follow", follow)
    patch.setattr(CatalogFollower, "present", of_what_was_applied)


def memory_without_a_look(patch: Patch) -> None:
    """The log is followed correctly, but reads rely on that and do not look at it."""
    patch.setattr(CatalogFollower, "present", of_what_was_applied)


def lasts_by(patch: Patch, elapsed: Callable[[], int]) -> None:
    """What a look proved expires by that clock alone."""
    real = CatalogFollower.__init__

    def init(self: CatalogFollower, *arguments: Any, **_: Any) -> None:
        real(self, *arguments, elapsed=elapsed)

    def known_present(self: CatalogFollower) -> Catalog | None:
        return of_what_was_applied(self) if self._elapsed() <= self._horizon.until else None

    patch.setattr(CatalogFollower, "__init__", init)
    patch.setattr(CatalogFollower, "known_present", known_present)


def time_of_its_own_cpu(patch: Patch) -> None:
    """What a look proved expires by the CPU time of the process."""
    lasts_by(patch, lambda: time.process_time_ns() // 1_000_000)


def time_in_ticks(patch: Patch) -> None:
    """What a look proved expires by ticks, which are not caught up after a suspension."""
    ticks = [0]

    def tick() -> None:
        while True:
            time.sleep(0.001)
            ticks[0] += 1

    threading.Thread(target=tick, daemon=True).start()
    lasts_by(patch, lambda: ticks[0])


# -- a store that does not answer ------------------------------------------------------------------


def memory_where_the_store_is_away(patch: Patch) -> None:
    """If a look at the log fails, memory answers."""
    real = CatalogFollower.present

    def present(self: CatalogFollower) -> Catalog:
        try:
            return real(self)
        except Unavailable:
            return of_what_was_applied(self)

    patch.setattr(CatalogFollower, "present", present)


def errors_of_the_driver(patch: Patch) -> None:
    """Errors of the database's driver are passed on unchanged."""
    patch.setattr(postgres_connection, "translate", lambda *_: None)


def give_the_store_up(patch: Patch) -> None:
    """A store that failed to answer once is not asked again."""
    real = PostgresDatabase._first
    silent: set[int] = set()

    def first(self: PostgresDatabase, *arguments: Any, **named: Any) -> Any:
        if id(self) in silent:
            raise Unavailable("the store did not answer a while ago")
        try:
            return real(self, *arguments, **named)
        except Exception:
            silent.add(id(self))
            raise

    patch.setattr(PostgresDatabase, "_first", first)


def follow_until_the_first_failure(patch: Patch) -> None:
    """The thread that follows the log ends if the store does not answer."""

    def follow(self: CatalogFollower) -> None:
        try:
            if self.state.log.listen(self._seen, timeout=ROUND_SECONDS):
                self.sync()
        except Unavailable:
            raise Stopping.of_node() from None

    patch.setattr(CatalogFollower, "_follow", follow)


NODE_FAULTS: dict[str, Callable[[Patch], None]] = {
    fault.__name__: fault
    for fault in (
        return_when_it_is_in_the_log,
        leave_the_skew_out,
        acknowledge_a_lost_append,
        one_version_for_a_group,
        new_ids_for_each_try,
        carry_out_who_has_left,
        wait_for_ever,
        news_every_minute,
        memory_without_a_look,
        time_of_its_own_cpu,
        time_in_ticks,
        memory_where_the_store_is_away,
        errors_of_the_driver,
        give_the_store_up,
        follow_until_the_first_failure,
    )
}


def plant(name: str) -> None:
    """Plant the mistake in this process, for good."""
    NODE_FAULTS[name](pytest.MonkeyPatch())
