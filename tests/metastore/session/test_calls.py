"""How a node executes each call of a session."""

from __future__ import annotations

import inspect

import pytest

from strandline import work
from strandline.metastore.interface import Session
from strandline.metastore.session.calls import CALLS, Call
from strandline.metastore.session.local_session import LocalSession
from strandline.metastore.workers import CallKind

LONGEST_SMALL_BODY = 32 * work.IN_THREAD


@pytest.mark.parametrize(
    ("name", "body_bytes", "kind"),
    [
        ("table", 0, CallKind.READ),
        ("commit", 0, CallKind.WRITE),
        ("undrop_partitions", 0, CallKind.DDL),
        ("stage", LONGEST_SMALL_BODY, CallKind.WRITE),
        ("stage", 2 * LONGEST_SMALL_BODY, CallKind.LARGE),
        ("execute", 2 * LONGEST_SMALL_BODY, CallKind.DDL),
    ],
)
def test_a_call_waits_with_those_that_it_may_hold_up(
    name: str, body_bytes: int, kind: CallKind
) -> None:
    assert CALLS[name].kind(body_bytes) is kind


@pytest.mark.parametrize("call", CALLS.values(), ids=list(CALLS))
def test_an_argument_that_a_request_may_leave_out_has_a_default(call: Call) -> None:
    declared = inspect.signature(getattr(Session, call.name)).parameters
    executed = inspect.signature(getattr(LocalSession, call.method)).parameters
    assert {name: each.default for name, each in executed.items()} == {
        name: each.default for name, each in declared.items()
    }
