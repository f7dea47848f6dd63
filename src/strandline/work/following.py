"""A thread that follows a log. Failures are counted, logged and retried."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from strandline.errors import Fenced, Stopping, StrandlineError, Unavailable
from strandline.outage import failing_at_once

logger = logging.getLogger(__name__)

FIRST_PAUSE = 0.1
LONGEST_PAUSE = 5.0


class FollowingThread:
    """Calls ``round_`` between `start` and `stop`.

    A failure is logged once until it changes or a round succeeds: a `StrandlineError` in one line,
    others with their frames. The thread ends if a round raises `Stopping`, or an error of the types
    ``final``, which every later round would raise too.
    """

    def __init__(
        self,
        round_: Callable[[], None],
        *,
        name: str,
        final: tuple[type[Exception], ...] = (),
    ) -> None:
        self._round = round_
        self._name = name
        self._final: tuple[type[Exception], ...] = (Stopping, *final)
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._round_ended = 0.0
        self._is_failing = False
        self._failing_since = 0.0
        self.failures = 0
        self.last_failure: str | None = None
        """Text, not the error: its frames would keep a cursor, and so a closed database, open."""

    def start(self) -> None:
        """Start the thread, unless it runs."""
        if self._thread is not None:
            return
        self._stop.clear()
        self._round_ended = time.monotonic()
        thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        thread.start()  # fails where the system has no more threads
        self._thread = thread

    def stop(self, *, wake: Callable[[], None] = lambda: None) -> None:
        """Stop after the current round, and wait for that. Does nothing if it has stopped.

        ``wake`` must end the round's wait.
        """
        self._stop.set()
        wake()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()  # if Ctrl-C ends this, the next call waits again
        self._thread = None

    def running(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def check(self, *, longest: float) -> None:
        """Raise `Unavailable` with the reason if the last round failed or the thread has ended.

        Also if no round has ended within the ``longest`` time, in seconds; so every round must
        wait for a bounded time.
        """
        if not self.running():
            raise Unavailable(f"the thread {self._name} is not running")
        if self._is_failing:
            raise Unavailable(f"the thread {self._name} fails: {self.last_failure}")
        seconds = time.monotonic() - self._round_ended
        if seconds > longest:
            raise Unavailable(
                f"the thread {self._name} has not been level with its source for {seconds:.1f} s;"
                f" at most {longest:g} s are allowed"
            )

    def _run(self) -> None:
        with failing_at_once():
            self._follow()

    def _follow(self) -> None:
        pause = FIRST_PAUSE
        while not self._stop.is_set():
            try:
                self._round()
                pause = FIRST_PAUSE
                if self._is_failing:
                    # Not since the last round, which may have ended long before the failure.
                    seconds = time.monotonic() - self._failing_since
                    logger.info("the thread %s works again, after %.1f s", self._name, seconds)
                self._is_failing = False
                self._round_ended = time.monotonic()
            except self._final:
                return  # the followed database is closed, or another holder has it
            except Exception as error:
                self.failures += 1
                failure = f"{type(error).__name__}: {error}"
                is_known = self._is_failing and failure == self.last_failure
                if not self._is_failing:
                    self._failing_since = time.monotonic()
                self._is_failing, self.last_failure = True, failure
                if not is_known and isinstance(error, StrandlineError):
                    passes = isinstance(error, Unavailable | Fenced)
                    level = logging.WARNING if passes else logging.ERROR
                    logger.log(level, "%s: %s; it tries again until it works", self._name, error)
                elif not is_known:
                    logger.exception("%s failed; it tries again until it works", self._name)
                self._stop.wait(pause)
                pause = min(pause * 2, LONGEST_PAUSE)
