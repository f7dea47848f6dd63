"""Group commit in each order of the steps of its callers and its thread."""

from __future__ import annotations

import threading
import time
from typing import NoReturn

import pytest

from strandline.catalog import CatalogManager
from strandline.catalog.group_commit import GroupCommit
from strandline.catalog.requests import Request
from strandline.errors import UnknownOutcome
from tests.catalog.callers import create
from tests.schedules import Race, explore

CALLERS = (GroupCommit.execute, GroupCommit._leave, GroupCommit._late)


def test_a_caller_that_leaves_as_its_append_ends_without_an_answer_gets_unknown_outcome(
    manager: CatalogManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose(*_: object, **__: object) -> NoReturn:
        raise UnknownOutcome("the line was cut")

    monkeypatch.setattr(manager.state.log, "append", lose)

    def scenario(race: Race) -> None:
        commits = GroupCommit(manager)
        end = time.monotonic() + 0.015  # the second attempt ends as the caller leaves
        request = Request([create("a")], "ann", end, identity=None, gate=threading.Lock())
        (left,) = race(lambda: commits.execute(request))
        assert type(left or request.error) is UnknownOutcome

    assert explore(scenario, steps_in=CALLERS) > 10
