"""Faults of the manager and the log, one at a time; ``test_scenario_teeth.py`` plants them."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from strandline.catalog import Catalog, CatalogManager
from strandline.catalog.events import AppliedVersion, Listeners
from strandline.catalog.follower import CatalogFollower
from strandline.catalog.group_commit import GroupCommit
from strandline.catalog.history import History
from strandline.catalog.requests import Group, Request, Validated, validate
from strandline.clock import Timestamp
from strandline.durable import CatalogSnapshot, CatalogTransaction, MetastorageLog
from strandline.durable.update import Update
from strandline.errors import OutOfSync
from strandline.fencing import FenceToken
from tests.catalog.scenario_faults import Fault, nothing


def a_call_returns_when_its_version_is_in_the_log(patch: pytest.MonkeyPatch) -> None:
    """A call does not wait for the activation."""
    patch.setattr(CatalogManager, "_await_activation", nothing)


def a_refusal_is_told_at_once(patch: pytest.MonkeyPatch) -> None:
    """A refused caller does not wait for the version that it was validated against."""
    real = GroupCommit.execute

    def execute(self: GroupCommit, request: Request) -> None:
        real(self, request)
        if request.error is not None:
            raise request.error

    patch.setattr(GroupCommit, "execute", execute)


def the_skew_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    """A call waits for the activation by its own clock alone."""
    real = CatalogManager._await_activation

    def wait(self: CatalogManager, catalog: Catalog, end: float) -> None:
        skew, self.skew = self.skew, 0
        try:
            real(self, catalog, end)
        finally:
            self.skew = skew

    patch.setattr(CatalogManager, "_await_activation", wait)


def listeners_have_threads_of_their_own(patch: pytest.MonkeyPatch) -> None:
    """Listeners run in their own threads, and no caller waits for them."""
    real = Listeners.call

    def tell(self: Listeners, *versions: AppliedVersion) -> None:
        threading.Thread(target=real, args=(self, *versions), daemon=True).start()

    patch.setattr(Listeners, "call", tell)


def a_version_is_ready_before_its_listeners_are(patch: pytest.MonkeyPatch) -> None:
    """A version counts as applied as soon as it is in the history."""
    real = CatalogFollower._complete_awaited

    def tell_awaiting(self: CatalogFollower) -> None:
        seen = self._seen
        self._seen = replace(seen, upper=self._history.latest.version + 1)
        real(self)
        self._seen = seen

    patch.setattr(CatalogFollower, "_complete_awaited", tell_awaiting)


def a_broken_listener_breaks_the_call(patch: pytest.MonkeyPatch) -> None:
    """An error of a listener is passed on to the caller."""

    def tell_one(self: Listeners, version: AppliedVersion) -> None:
        for listener, _ in self._listeners:
            listener(version)

    patch.setattr(Listeners, "_call_each", tell_one)


def every_command_counts_as_applied(patch: pytest.MonkeyPatch) -> None:
    """If a batch changed something, all of its commands count as applied."""

    def all_applied(
        view: Catalog, transaction: CatalogTransaction, request: Request, now: Timestamp
    ) -> Validated:
        validated = validate(view, transaction, request, now)
        validated.applied = tuple([any(validated.applied)] * len(validated.applied))
        return validated

    patch.setattr("strandline.catalog.group_commit.validate", all_applied)


def ten_tries_are_enough(patch: pytest.MonkeyPatch) -> None:
    """An append that is lost for the eleventh time is given up."""
    real = GroupCommit._rebase

    def rebase(self: GroupCommit, group: Group) -> Group | None:
        if self.counts.lost_appends > 10:
            raise OutOfSync("lost too often")
        return real(self, group)

    patch.setattr(GroupCommit, "_rebase", rebase)


def a_late_append_goes_behind_the_last(patch: pytest.MonkeyPatch) -> None:
    """An append at any version is accepted as the next version."""
    real = MetastorageLog.append

    def append(
        self: MetastorageLog,
        _upper: int,
        token: FenceToken | None,
        updates: Sequence[Update],
        **named: Any,
    ) -> tuple[Update, ...]:
        upper = self.frontier().upper
        moved = [replace(update, version=upper + n) for n, update in enumerate(updates)]
        return real(self, upper, token, moved, **named)

    patch.setattr(MetastorageLog, "append", append)


def any_token_appends(patch: pytest.MonkeyPatch) -> None:
    """The log compares its token with itself."""
    real = MetastorageLog.append

    def append(
        self: MetastorageLog,
        upper: int,
        _token: FenceToken | None,
        updates: Sequence[Update],
        **named: Any,
    ) -> tuple[Update, ...]:
        return real(self, upper, self.token(), updates, **named)

    patch.setattr(MetastorageLog, "append", append)


def a_snapshot_has_the_time_of_today(patch: pytest.MonkeyPatch) -> None:
    """A snapshot has the time of the trimming instead of the time of its version."""
    real = MetastorageLog.snapshot

    def snapshot(self: MetastorageLog, as_of: int | None = None) -> CatalogSnapshot:
        snapshot = real(self, as_of)
        return snapshot if as_of is None else replace(snapshot, time=self.check().time)

    patch.setattr(MetastorageLog, "snapshot", snapshot)


def one_version_too_many_is_trimmed(patch: pytest.MonkeyPatch) -> None:
    """The version that the history is trimmed to is removed too."""
    real = History.trimmed
    patch.setattr(History, "trimmed", lambda self, version: real(self, version + 1))


def a_trimming_may_go_back(patch: pytest.MonkeyPatch) -> None:
    """Every request to trim is answered as if it had trimmed something."""
    real = CatalogManager.compact

    def compact(self: CatalogManager, version: int) -> bool:
        real(self, version)
        return True

    patch.setattr(CatalogManager, "compact", compact)


OF_NODES: dict[Fault, tuple[str, str]] = {
    a_call_returns_when_its_version_is_in_the_log: (
        "activation",
        "a version is not active before its time: .*call a is done",
    ),
    a_refusal_is_told_at_once: (
        "activation",
        "a refusal waits for the version that it was validated against: .*call again is done",
    ),
    the_skew_is_forgotten: ("activation", "call first waits for 1200 and not 1300"),
    listeners_have_threads_of_their_own: (
        "log",
        r"before a listener has returned: .*(call \w+ is done|where Done\()",
    ),
    a_version_is_ready_before_its_listeners_are: (
        "log",
        "before a listener has returned: .*call ready is done",
    ),
    a_broken_listener_breaks_the_call: (
        "log",
        r"a listener that fails stops nobody .*UnknownOutcome\(.* where Done\(version=3",
    ),
    every_command_counts_as_applied: (
        "versions",
        r"a batch says which .*\(True, True, True, True, True\)\) where",
    ),
    ten_tries_are_enough: ("log", r"more often than ten times: .*OutOfSync\('lost too often"),
    a_late_append_goes_behind_the_last: (
        "log",
        r"an append is taken at the next version alone: .*4 where Refused\(.*OutOfSync",
    ),
    any_token_appends: (
        "log",
        r"a log of somebody else is left alone: .*3 where Refused\(.*Fenced",
    ),
    a_snapshot_has_the_time_of_today: (
        "trimming",
        "a restart begins from the snapshot .*version 5 .* does not follow 4",
    ),
    one_version_too_many_is_trimmed: (
        "trimming",
        "trimming moves the earliest version, .*5 where 4 was due",
    ),
    a_trimming_may_go_back: ("trimming", "trimming .*: .*True where False was due"),
}
"""Each planted fault, the module whose timelines find it, and their first complaint."""
