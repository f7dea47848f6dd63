"""Faults that the race of two processes has to find; each is planted in every process."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import pytest

from strandline.durable import (
    DurableCatalogState,
    MetastorageLog,
    StashLog,
    UpdateLog,
    metastorage_log,
    rows,
)
from strandline.durable.persist import persist_log
from strandline.durable.persist.shard_state import Append, compare_and_append
from tests.durable.planting import plant

Fault = Callable[[pytest.MonkeyPatch], None]


class Planted(NamedTuple):
    """A fault, the kind of log it is planted in, and a pattern for the line that finds it."""

    fault: Fault
    kind: str
    finding: str


FAULTS: dict[str, Planted] = {}
WHICHEVER = r"^(?!assert races\.)"
"""Any check of a round: which finds the fault first depends on how the processes interleave."""
LAST_COMMIT = " 4"
"""The suffix of the author of a process's last commit."""


def planted_in(kind: str, *, finding: str) -> Callable[[Fault], Fault]:
    def register(fault: Fault) -> Fault:
        FAULTS[fault.__name__] = Planted(fault, kind, finding)
        return fault

    return register


@planted_in("metastorage on sqlite", finding=WHICHEVER)
def an_append_is_not_conditional(patch: pytest.MonkeyPatch) -> None:
    condition = "ValueIs(VERSION, digits(before)) if before else Absent(VERSION),"
    plant(patch, MetastorageLog, "_append", condition, "")


@planted_in("persist on sqlite", finding=WHICHEVER)
def an_append_to_a_shard_is_not_conditional(patch: pytest.MonkeyPatch) -> None:
    def careless(append: Append) -> Any:
        return lambda state: compare_and_append(append)(replace(state, upper=append.batch.lower))

    patch.setattr(persist_log, "compare_and_append", careless)


@planted_in("metastorage on sqlite", finding=WHICHEVER)
def who_was_fenced_goes_on(patch: pytest.MonkeyPatch) -> None:
    condition = "ValueIs(FENCE, self._fence_bytes(token)) if token else Absent(FENCE),"
    plant(patch, MetastorageLog, "_append", condition, "")
    _let_the_fenced_read(patch)


@planted_in("stash on sqlite", finding=WHICHEVER)
def who_was_fenced_goes_on_in_a_stash(patch: pytest.MonkeyPatch) -> None:
    next_version = "state.upper == append.expected_upper"
    condition = f"{next_version} and state.token == append.token"
    plant(patch, StashLog, "_append", condition, next_version)
    _let_the_fenced_read(patch)


def _let_the_fenced_read(patch: pytest.MonkeyPatch) -> None:
    """Remove the other protections: a fenced state rereads the token and what others appended."""
    patch.setattr("strandline.durable.log.refuse_other_token", lambda *_: None)
    patch.setattr(DurableCatalogState, "_compare_token", lambda _: None)
    patch.setattr(DurableCatalogState, "_compare_fence", lambda *_: None)


@planted_in("stash on sqlite", finding="== acknowledged")
def a_commit_is_acknowledged_and_not_made(patch: pytest.MonkeyPatch) -> None:
    real = StashLog.append

    def append(self: StashLog, upper: int, token: Any, updates: Any, **named: Any) -> Any:
        if updates[0].author.endswith(LAST_COMMIT):
            return tuple(updates)
        return real(self, upper, token, updates, **named)

    patch.setattr(StashLog, "append", append)


@planted_in("metastorage on sqlite", finding="for e in events")
def a_commit_is_made_twice(patch: pytest.MonkeyPatch) -> None:
    real = MetastorageLog.append

    def append(self: MetastorageLog, upper: int, token: Any, updates: Any, **named: Any) -> Any:
        made = real(self, upper, token, updates, **named)
        if updates[0].author.endswith(LAST_COMMIT):
            (update,) = updates
            again = replace(update, version=upper + 1, id=secrets.token_bytes(16), entries=())
            real(self, upper + 1, token, [again], **named)
        return made

    patch.setattr(MetastorageLog, "append", append)


@planted_in("metastorage on sqlite", finding="for e in events")
def audit_events_are_lost(patch: pytest.MonkeyPatch) -> None:
    every, none = "enumerate(update.appended)", "enumerate(update.appended[:0])"
    plant(patch, metastorage_log, "_puts", every, none)


@planted_in("metastorage on sqlite", finding=WHICHEVER)
def a_snapshot_is_without_its_last_update(patch: pytest.MonkeyPatch) -> None:
    plant(patch, UpdateLog, "snapshot", "+ 1, as_of + 1)", "+ 1, as_of)")


@planted_in("stash on sqlite", finding="status in")
def a_retraction_has_other_bytes(patch: pytest.MonkeyPatch) -> None:
    plant(
        patch,
        rows,
        "_rows_of_changes",
        "yield Row(change.kind, change.key, value, version, MIN_TIMESTAMP, diff)",
        "yield Row(change.kind, change.key, value + b'x' * (diff < 0), version, MIN_TIMESTAMP,"
        " diff)",
    )
