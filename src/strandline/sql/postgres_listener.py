"""News from PostgreSQL's NOTIFY, as a number that moves.

One connection and one thread for any number of waiters. The number moves at every notification of
others, at each commit of this process (once: news of its own say who sent them, and are passed
over), and whenever the connection begins to listen. So a waiter that takes
the number, reads the state, and waits for the number to move misses nothing: what is committed
before the listening began is in a state read after it, and what comes later is notified. When the
connection ends the number moves too, and while there is none it moves each time it is asked for:
then nothing is heard, though the server may answer others, so an unmoved number proves nothing.

A server that vanished without a word is found by asking it something when it was silent for a
while. Rejected: a connection for each waiter (a pool of them would do nothing but wait), and
notifications with the change in them (they are lost with the connection).
"""

from __future__ import annotations

import logging
import selectors
import socket
import threading
import time
from collections.abc import Callable

from strandline.logs import in_one_line
from strandline.sql import postgres_connection as driver

logger = logging.getLogger(__name__)

_SILENCE_SECONDS = 5.0
_FIRST_PAUSE = 0.02
_LONGEST_PAUSE = 0.5
_DEAF_SECONDS = 0.1
"""After how long a waiter is to look by itself while nothing is heard."""


class PostgresListener:
    """See the module. Safe for threads; it connects when it is first asked."""

    def __init__(
        self, connect: Callable[[], driver.Connection], channel: str, *, name: str, own: str
    ) -> None:
        self._connect = connect
        self._channel = channel
        self._name = name
        self._own = own
        self._moved = threading.Condition()
        self._news = 0
        self._connections = 0
        self._wakes_asked = 0
        self._hears = False
        self._closed = False
        self._thread: threading.Thread | None = None
        self._wakes, self._wake = socket.socketpair()

    def news(self) -> int:
        """The number as it is now; take it before reading the state."""
        with self._moved:
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(
                    target=self._listen, name=f"listen-{self._channel}", daemon=True
                )
                self._thread.start()
            if not self._hears:
                self._news += 1
            return self._news

    def wait(self, after: int, *, timeout: float) -> int:
        """Wait until the number is no longer ``after``, or ``timeout`` seconds, `wake` or the end.

        Not long while nothing is heard. Returns the number of the end.
        """
        with self._moved:
            asked = self._wakes_asked

            def is_told() -> bool:
                return self._closed or self._wakes_asked != asked

            if self._hears:
                self._moved.wait_for(lambda: self._news != after or is_told(), timeout)
            else:  # the number moves with each question, so it says nothing
                pause = min(timeout, _DEAF_SECONDS)
                self._moved.wait_for(lambda: self._hears or is_told(), pause)
                self._news += 1
            return self._news

    def wake(self) -> None:
        """Let all who wait return now."""
        with self._moved:
            self._wakes_asked += 1
            self._moved.notify_all()

    def tell(self) -> None:
        """Move the number: this process has committed."""
        self._move(hears=None)

    def connections(self) -> int:
        """How often it began to listen."""
        return self._connections

    def close(self) -> None:
        """Wake all waiters and end the connection. Idempotent."""
        with self._moved:
            already, self._closed = self._closed, True
            self._moved.notify_all()
            thread = self._thread
        if already:
            return
        self._wake.close()
        if thread is None:
            self._wakes.close()
        elif thread is not threading.current_thread():
            thread.join(timeout=_SILENCE_SECONDS)

    def _listen(self) -> None:
        pause = _FIRST_PAUSE
        while not self._closed:
            try:
                with self._connect() as connection:
                    connection.execute(f"LISTEN {self._channel}".encode())
                    self._connections += 1
                    self._move(hears=True)
                    pause = _FIRST_PAUSE
                    self._hear(connection)
            except (driver.DriverError, OSError) as error:
                logger.warning(
                    "lost news of %s from %s (%s); trying again",
                    self._channel,
                    self._name,
                    in_one_line(str(error)),
                )
            if self._hears:
                self._move(hears=False)
            self._ready(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
        self._wakes.close()

    def _hear(self, connection: driver.Connection) -> None:
        """Tell of notifications until `close`."""
        while True:
            connection.deadline = time.monotonic() + _SILENCE_SECONDS
            news = [notify.payload for notify in connection.notifies(timeout=0)]
            if any(sender != self._own for sender in news):
                self._move(hears=True)
            ready = self._ready(_SILENCE_SECONDS, connection)
            if self._wakes in ready:
                return
            if not ready:
                connection.deadline = time.monotonic() + _SILENCE_SECONDS
                connection.execute("SELECT 1")

    def _ready(self, seconds: float, *connections: driver.Connection) -> list[object]:
        """Those of the connections, and of the end that `close` wakes, that have something."""
        # Not `select.select`, which cannot wait for files above the first thousand.
        with selectors.DefaultSelector() as selector:
            selector.register(self._wakes, selectors.EVENT_READ)
            for connection in connections:
                selector.register(connection, selectors.EVENT_READ)
            return [key.fileobj for key, _ in selector.select(seconds)]

    def _move(self, *, hears: bool | None) -> None:
        with self._moved:
            if hears is not None:
                self._hears = hears
            self._news += 1
            self._moved.notify_all()
