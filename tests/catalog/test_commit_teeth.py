"""Planted faults of group commit: a test finds each of them."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from strandline.catalog import Catalog
from strandline.catalog.group_commit import GroupCommit
from strandline.catalog.requests import Group, Request, Stage, validate
from strandline.durable import AppliedUpdate, CatalogTransaction, DurableCatalogState
from strandline.durable.update import Update
from strandline.errors import StrandlineError
from tests.catalog import test_commit_deadlines as deadlines
from tests.catalog import test_listeners as listeners
from tests.catalog import test_lost_appends as lost_appends
from tests.catalog import test_manager_commits as commits
from tests.catalog.callers import Managers
from tests.catalog.node_faults import carry_out_who_has_left, new_ids_for_each_try
from tests.catalog.timeline_faults import listeners_have_threads_of_their_own


def tell_before_the_append(patch: pytest.MonkeyPatch) -> None:
    """Callers are answered before their versions are appended."""
    real = GroupCommit._append

    def append(self: GroupCommit, group: Group) -> None:
        self._answer(
            group, [member.catalog for member in group.members if member.transaction is not None]
        )
        with self._lock:
            for member in group.members:
                member.request.stage = Stage.WAITING
                member.request.gate = threading.Lock()
                member.request.gate.acquire()
        real(self, group)

    patch.setattr(GroupCommit, "_append", append)


def all_on_one_base(patch: pytest.MonkeyPatch) -> None:
    """Every caller of a round is validated against the catalog at the beginning of the round."""

    def judge_all(self: GroupCommit, base: Catalog, requests: Sequence[Request]) -> Group:
        begin, now = self._follower.state.transaction, self._follower.now()
        return Group(
            base,
            [
                validate(base, begin(base, author=request.author), request, now)
                for request in requests
            ],
        )

    patch.setattr(GroupCommit, "_validate", judge_all)


def rebase_without_a_look(patch: pytest.MonkeyPatch) -> None:
    """A lost append is sent again without validating it again, whatever it was lost to."""
    patch.setattr(Update, "silent", True)


def forget_the_failed(patch: pytest.MonkeyPatch) -> None:
    """The failure of one caller ends the round for all callers."""
    real = GroupCommit._validate

    def judge_all(self: GroupCommit, base: Catalog, requests: Sequence[Request]) -> Group:
        group = real(self, base, requests)
        for member in group.members:
            if member.error is not None:
                raise member.error
        return group

    patch.setattr(GroupCommit, "_validate", judge_all)


def exchange_the_authors(patch: pytest.MonkeyPatch) -> None:
    """The versions of one append are recorded with each other's authors."""
    real = DurableCatalogState.commit_transactions

    def commit(
        self: DurableCatalogState, transactions: Sequence[CatalogTransaction]
    ) -> list[AppliedUpdate]:
        authors = [transaction.author for transaction in transactions]
        for transaction, author in zip(transactions, authors[::-1], strict=True):
            transaction.author = author
        return real(self, transactions)

    patch.setattr(DurableCatalogState, "commit_transactions", commit)


def tell_the_refused_at_once(patch: pytest.MonkeyPatch) -> None:
    """A refused caller is answered before the append of the version that refuses it."""
    real = GroupCommit._append

    def append(self: GroupCommit, group: Group) -> None:
        for member in group.members:
            if member.error is not None:
                self._end([member.request], member.error)
        real(self, group)

    patch.setattr(GroupCommit, "_append", append)


def lost_to_what_somebody_did(new_manager: Managers) -> None:
    lost_appends.test_a_lost_append_is_validated_again_unless_it_lost_only_to_silent_versions(
        new_manager, silent=False
    )


TEETH: dict[Callable[[pytest.MonkeyPatch], None], Callable[..., None]] = {
    tell_before_the_append: deadlines.test_a_caller_that_times_out_after_its_append_was_sent_gets_unknown_outcome,  # noqa: E501 - a name that states a fact
    carry_out_who_has_left: deadlines.test_a_caller_that_times_out_in_the_queue_has_no_effect_on_the_catalog,  # noqa: E501 - a name that states a fact
    new_ids_for_each_try: deadlines.test_an_append_whose_outcome_is_unknown_is_sent_again_with_the_same_ids,  # noqa: E501 - a name that states a fact
    all_on_one_base: commits.test_a_caller_is_validated_after_the_callers_before_it_and_fails_alone,
    rebase_without_a_look: lost_to_what_somebody_did,
    forget_the_failed: commits.test_a_caller_is_validated_after_the_callers_before_it_and_fails_alone,  # noqa: E501 - a name that states a fact
    exchange_the_authors: commits.test_each_caller_that_shares_an_append_is_the_author_of_its_own_version,  # noqa: E501 - a name that states a fact
    tell_the_refused_at_once: commits.test_a_refused_caller_is_answered_once_the_version_that_refuses_it_is_in_the_log,  # noqa: E501 - a name that states a fact
    listeners_have_threads_of_their_own: listeners.test_the_call_and_the_next_version_wait_until_the_listener_has_returned,  # noqa: E501 - a name that states a fact
}


@pytest.mark.teeth
@pytest.mark.parametrize("fault", TEETH, ids=lambda fault: fault.__name__)
def test_the_tests_find_each_planted_fault(
    fault: Callable[[pytest.MonkeyPatch], None],
    new_manager: Managers,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    check: Any = TEETH[fault]
    parameters = inspect.signature(check).parameters
    takes_one = "manager" in parameters
    subject: Any = new_manager() if takes_one else new_manager
    others = {"monkeypatch": monkeypatch} if "monkeypatch" in parameters else {}
    with monkeypatch.context() as patch:
        patch.setattr("tests.catalog.callers.PATIENCE", 3.0)
        patch.setattr(listeners, "AWHILE", 60.0)  # the call does end
        fault(patch)
        with pytest.raises((AssertionError, StrandlineError, pytest.fail.Exception)):
            check(subject, **others)
        if takes_one:
            patch.setattr("strandline.catalog.group_commit._STOP_TIMEOUT", 0.1)
            subject.stop()
