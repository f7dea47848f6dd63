"""Listeners: what they receive, and when."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from strandline.catalog import CatalogManager, events
from strandline.catalog.commands import DropSchema
from strandline.catalog.events import AppliedVersion, Listeners
from strandline.errors import UnknownOutcome
from tests.catalog import callers
from tests.catalog.callers import Call, Managers, create, keep_books, leave_after, wait_for

AWHILE = 0.2
"""Seconds that a call is given to end if it does not wait."""


def test_the_call_and_the_next_version_wait_until_the_listener_has_returned(
    manager: CatalogManager,
) -> None:
    heard: list[int] = []
    may_go_on = threading.Event()

    def slow(applied: AppliedVersion) -> None:
        heard.append(applied.update.version)
        assert may_go_on.wait(callers.PATIENCE)

    manager.subscribe(slow)
    try:
        first = Call(manager, create("a"))
        wait_for(lambda: heard == [3])
        ready = manager.ready(3)
        second = Call(manager, create("b"))
        first.join(AWHILE)
        assert not ready.done()
        assert first.is_alive()
        assert heard == [3]
        assert manager.latest_catalog().version == 3  # others may see it already
    finally:
        may_go_on.set()  # otherwise a failed test leaves a waiting thread
    assert [first.outcome(), second.outcome()] == [3, 4]
    assert ready.result(timeout=callers.PATIENCE).version == 3
    assert heard == [3, 4]


def test_a_call_that_times_out_in_a_slow_listener_reports_its_version_in_the_log(
    manager: CatalogManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, may_go_on = threading.Event(), threading.Event()

    def slow(_: AppliedVersion) -> None:
        began.set()
        assert may_go_on.wait(callers.PATIENCE)

    manager.subscribe(slow)
    leave_after(monkeypatch, lambda: began.wait(callers.PATIENCE))
    try:
        with pytest.raises(UnknownOutcome, match=r"in the log as version 3.* Do not repeat it"):
            manager.execute(create("a"), author="late")
    finally:
        may_go_on.set()
    assert manager.catalog_ready(3).version == 3
    assert manager.execute(create("b"), author="ann").version == 4


def test_a_listener_that_executes_a_command_is_refused_and_does_not_deadlock(
    new_manager: Managers, caplog: pytest.LogCaptureFixture
) -> None:
    manager, other = new_manager(), new_manager()

    def meddle(applied: AppliedVersion) -> None:
        manager.execute(create("more"), author="ann")

    manager.subscribe(meddle)
    assert manager.execute(create("a"), author="ann", timeout=callers.PATIENCE).version == 3
    assert manager.statistics().listener_failures == 1
    other.execute(create("b"), author="bob")
    manager.sync()  # now this thread calls the listener
    assert manager.statistics().listener_failures == 2
    assert "make the change from another thread" in caplog.text


def test_a_listener_gets_each_version_with_the_catalogs_before_and_after(
    manager: CatalogManager,
) -> None:
    heard: list[tuple[str, str, int, bool, bool]] = []

    def listen(applied: AppliedVersion) -> None:
        for entry in applied.update.entries:
            name = str(entry.arguments.get("schema"))
            before, after = applied.before.schema(name), applied.catalog.schema(name)
            if not entry.silent:
                version = applied.update.version
                heard.append((entry.verb, name, version, before is None, after is None))

    manager.subscribe(listen)
    manager.execute([create("a"), create("b")], author="ann")
    keep_books(manager, 1, "configure")
    manager.execute(DropSchema(name="a"), author="ann")
    assert heard == [
        ("create_schema", "a", 3, True, False),
        ("create_schema", "b", 3, True, False),
        ("drop_schema", "a", 5, False, True),
    ]


def test_a_thread_does_not_count_as_the_listeners_caller_while_another_calls_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    listeners, own = Listeners(), threading.get_ident()
    begins, may_go_on = threading.Event(), threading.Event()

    def ident() -> int:
        if threading.get_ident() != own:
            begins.set()
            assert may_go_on.wait(callers.PATIENCE)
        return threading.get_ident()

    monkeypatch.setattr(events, "threading", SimpleNamespace(get_ident=ident))
    listeners.call()
    other = threading.Thread(target=listeners.call)
    other.start()
    try:
        assert begins.wait(callers.PATIENCE)
        assert not listeners.are_called_by_this_thread()
    finally:
        may_go_on.set()
        other.join(callers.PATIENCE)
