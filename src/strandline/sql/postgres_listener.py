"""Notifications of PostgreSQL's NOTIFY, as a number that moves.

One connection and one thread serve any number of waiting threads. The number moves at every
notification of another process, at each commit of this process (once: its own notifications name
their sender and are ignored), and whenever the connection begins to listen. So a thread that takes
the number, reads the state, and waits for the number to move misses nothing: what was committed
before the listening began is in a state that was read after it, and later commits are notified.
When the connection ends, the number moves too. While there is no connection, it moves each time it
is read: no notification can arrive, although the server may answer others, so an unmoved number
would prove nothing.

A server that vanished silently is detected by a query after a period of silence. Rejected: a
connection for each waiting thread (many connections would do nothing but wait), and notifications
that contain the change (they are lost with the connection).
"""

from __future__ import annotations

import logging
import selectors
import socket
import threading
import time
from collections.abc import Callable

from strandline.condition import Condition
from strandline.logs import in_one_line
from strandline.sql import postgres_connection as driver

logger = logging.getLogger(__name__)

_SILENCE_SECONDS = 5.0
_FIRST_PAUSE = 0.02
_LONGEST_PAUSE = 0.5
_WARNING_SECONDS = 60.0
"""How often a loss of the connection is logged until it is there again."""
_DEAF_SECONDS = 0.1
"""The longest wait of a thread while no connection listens."""


class PostgresListener:
    """See the module. Safe for threads. Connects at the first call of `news`."""

    def __init__(
        self, connect: Callable[[], driver.Connection], channel: str, *, name: str, own: str
    ) -> None:
        self._connect = connect
        self._channel = channel
        self._name = name
        self._own = own
        self._moved = Condition()
        self._news = 0
        self._wakes_asked = 0
        self._listens = False
        self._closed = False
        self._thread: threading.Thread | None = None
        self._wakes, self._wake = socket.socketpair()

    def news(self) -> int:
        """The current number; take it before reading the state."""
        with self._moved:
            if self._thread is None and not self._closed:
                thread = threading.Thread(
                    target=self._listen, name=f"listen-{self._channel}", daemon=True
                )
                thread.start()  # fails where the system has no more threads
                self._thread = thread
            if not self._listens:
                self._news += 1
            return self._news

    def wait(self, after: int, *, timeout: float) -> int:
        """Wait until the number is no longer ``after``, for ``timeout`` seconds, or until `wake`.

        Ends early at `close`, and soon if no connection listens. Returns the number at the end.
        """
        with self._moved:
            wakes_before = self._wakes_asked

            def is_woken() -> bool:
                return self._closed or self._wakes_asked != wakes_before

            if self._listens:
                self._moved.wait_for(lambda: self._news != after or is_woken(), timeout)
            else:  # the number moves at each read, so it proves nothing
                pause = min(timeout, _DEAF_SECONDS)
                self._moved.wait_for(lambda: self._listens or is_woken(), pause)
                self._news += 1
            return self._news

    def wake(self) -> None:
        """Make all waiting threads return now."""
        with self._moved:
            self._wakes_asked += 1
            self._moved.notify_all()

    def count_commit(self) -> None:
        """Move the number, because this process has committed."""
        self._move(listens=None)

    def close(self) -> None:
        """Wake all waiting threads and end the connection. Idempotent."""
        with self._moved:
            was_closed, self._closed = self._closed, True
            self._moved.notify_all()
            thread = self._thread
        if was_closed:
            return
        self._wake.close()
        if thread is None:
            self._wakes.close()
        elif thread is not threading.current_thread():
            thread.join(timeout=_SILENCE_SECONDS)

    def _listen(self) -> None:
        pause = _FIRST_PAUSE
        warned_at: float | None = None
        lost_at = 0.0
        while not self._closed:
            try:
                with self._connect() as connection:
                    connection.execute(f"LISTEN {self._channel}".encode())
                    self._move(listens=True)
                    if warned_at is not None:
                        seconds = time.monotonic() - lost_at
                        logger.info(
                            "notifications of %s arrive again, after %.1f s", self._channel, seconds
                        )
                    pause, warned_at = _FIRST_PAUSE, None
                    self._receive(connection)
            except (driver.DriverError, OSError) as error:
                now = time.monotonic()
                if warned_at is None:
                    lost_at = now
                if warned_at is None or now - warned_at >= _WARNING_SECONDS:
                    warned_at = now
                    logger.warning(
                        "notifications of %s do not arrive from %s (%s); trying again",
                        self._channel,
                        self._name,
                        in_one_line(str(error)),
                    )
            if self._listens:
                self._move(listens=False)
            self._ready(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
        self._wakes.close()

    def _receive(self, connection: driver.Connection) -> None:
        """Move the number at notifications of other processes, until `close`."""
        while True:
            connection.deadline = time.monotonic() + _SILENCE_SECONDS
            news = [notify.payload for notify in connection.notifies(timeout=0)]
            if any(sender != self._own for sender in news):
                self._move(listens=True)
            ready = self._ready(_SILENCE_SECONDS, connection)
            if self._wakes in ready:
                return
            if not ready:
                connection.deadline = time.monotonic() + _SILENCE_SECONDS
                connection.execute("SELECT 1")

    def _ready(self, seconds: float, *connections: driver.Connection) -> list[object]:
        """Those of the connections, and of the socket that `close` wakes, that are readable."""
        # Not `select.select`, which cannot wait for descriptors above 1023.
        with selectors.DefaultSelector() as selector:
            selector.register(self._wakes, selectors.EVENT_READ)
            for connection in connections:
                selector.register(connection, selectors.EVENT_READ)
            return [key.fileobj for key, _ in selector.select(seconds)]

    def _move(self, *, listens: bool | None) -> None:
        with self._moved:
            if listens is not None:
                self._listens = listens
            self._news += 1
            self._moved.notify_all()
