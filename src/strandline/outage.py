"""An outage of a server, and how long calls wait for its end.

An outage begins when a server that has answered before cannot be reached, as while it restarts. A
call that has done nothing yet waits for its end, so that a restart makes no call fail. But a long
outage must not occupy all threads of a node. So all calls wait until the same moment, some time
after the beginning, and calls that come later fail at once.

A server that has never answered is not waited for: its address may be wrong. A call with a deadline
waits until then at most, also for an answer. A thread that tries again itself does not wait for the
end of an outage, and says meanwhile that it cannot go on.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

logger = logging.getLogger(__name__)

LONGEST_WAIT = 25.0
"""Seconds. Clients get the error of a call before they give up: an `HttpSession` after 30."""
_SHARE = 0.25
"""The part of an outage's duration so far for which a call waits between two attempts."""
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0
_thread = threading.local()


class Outage:
    """The present outage of the server ``name``, if there is one. Safe for threads."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._has_answered = False
        self._since: float | None = None

    def pause(self, reason: str, *, timeout: float, end: float, has_answered: bool = False) -> bool:
        """Wait before the next attempt to reach the server, which failed for ``reason``.

        Returns False at once if there is to be none: ``timeout`` seconds, or `LONGEST_WAIT`, after
        the beginning of the outage, or at ``end``, an instant of `time.monotonic`. ``has_answered``
        says that the server answered, if only that it is not ready.
        """
        now, end = time.monotonic(), min(end, _end())
        with self._lock:
            self._has_answered |= has_answered
            if not self._has_answered:
                return False
            begins = self._since is None
            since = self._since = now if self._since is None else self._since
        timeout = min(timeout, LONGEST_WAIT)
        if begins:
            logger.warning(
                "%s cannot be reached (%s); calls wait for it for up to %g s",
                *(self._name, reason, timeout),
            )
        seconds = min(max((now - since) * _SHARE, _SHORTEST_PAUSE), _LONGEST_PAUSE)
        if now + seconds > min(since + timeout, end):
            return False
        time.sleep(seconds)
        return True

    def is_long(self) -> bool:
        """Whether no call has got an answer for longer than calls wait for the end of an outage."""
        since = self._since
        return since is not None and time.monotonic() - since > LONGEST_WAIT

    def end(self) -> None:
        """Note that the server has answered."""
        if self._has_answered and self._since is None:
            return
        with self._lock:
            self._has_answered = True
            since, self._since = self._since, None
        if since is not None:
            seconds = time.monotonic() - since
            logger.info("%s can be reached again, after %.1f s", self._name, seconds)


@contextmanager
def waiting_until(end: float, *, for_answers: bool = True) -> Iterator[None]:
    """In the block, calls of this thread wait no longer than to ``end``, of `time.monotonic`.

    They wait for the end of an outage, and, with ``for_answers``, for the answer of a server.
    """
    before = _end(), answer_deadline()
    _thread.end = min(before[0], end)
    if for_answers:
        _thread.answer_deadline = min(before[1], end)
    try:
        yield
    finally:
        _thread.end, _thread.answer_deadline = before


def waits_for_less() -> bool:
    """Whether calls of this thread wait for a shorter time than those of other threads may."""
    return _end() < math.inf


def answer_deadline() -> float:
    """The instant until which calls of this thread may wait for an answer; may be infinite."""
    deadline: float = getattr(_thread, "answer_deadline", math.inf)
    return deadline


def failing_at_once() -> AbstractContextManager[None]:
    """In the block, no call of this thread waits for the end of an outage."""
    return waiting_until(-math.inf, for_answers=False)


def _end() -> float:
    end: float = getattr(_thread, "end", math.inf)
    return end
