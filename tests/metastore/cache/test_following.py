"""A background task whose failures are heard of."""

from __future__ import annotations

import gc
import logging
import threading
import weakref

import pytest

from strandline.errors import Stopping, Unavailable
from strandline.metastore.cache import following
from strandline.metastore.cache.following import Follower


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "FIRST_PAUSE", 0.001)
    monkeypatch.setattr(following, "LONGEST_PAUSE", 0.002)


def test_a_failure_is_logged_counted_and_followed_by_another_round(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rounds, enough = [0], threading.Event()

    def round_() -> None:
        rounds[0] += 1
        if rounds[0] <= 2:
            raise (Unavailable("away") if rounds[0] == 1 else KeyError("a bug"))
        enough.set()

    caplog.set_level(logging.WARNING)
    one = Follower(round_, name="applier")
    one.start()
    assert enough.wait(60)
    assert one.running()
    one.stop()
    assert not one.running()
    assert one.failures == 2
    assert one.last_failure == "KeyError: 'a bug'"
    # A store that is away is no defect.
    assert [(r.levelname, r.getMessage().partition(";")[0]) for r in caplog.records] == [
        ("WARNING", "applier: away"),
        ("ERROR", "applier failed"),
    ]


def test_what_it_follows_may_close_before_it() -> None:
    ended = threading.Event()

    def round_() -> None:
        ended.set()
        raise Stopping("closed")

    one = Follower(round_, name="applier")
    one.start()
    assert ended.wait(60)
    one.stop()
    assert one.failures == 0


def test_a_failure_that_is_remembered_keeps_nothing_of_its_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(following.logger, "disabled", True)  # pytest keeps what is logged

    class Cursor:
        """What a database cannot be closed without."""

    failed = threading.Event()
    cursors: list[weakref.ref[Cursor]] = []

    def round_() -> None:
        if cursors:
            failed.set()
            raise Stopping("closed")
        cursor = Cursor()
        cursors.append(weakref.ref(cursor))
        raise Unavailable("away")

    one = Follower(round_, name="applier")
    gc.disable()
    try:
        one.start()
        assert failed.wait(60)
        one.stop()
        assert one.last_failure == "Unavailable: away"
        assert cursors[0]() is None
    finally:
        gc.enable()
