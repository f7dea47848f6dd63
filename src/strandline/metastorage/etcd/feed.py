"""New revisions, for all waiting threads of this process, over one watch.

The watch never has to resume. A waiting thread first reads the store, and learns of later changes
from the watch. Together these are complete if the watch began before the read. So each time the
watch is created again, the ``generation`` grows and each thread reads again. The watch always
begins at the present, so compacted history, lost connections and restarted servers are one case:
read again. A gap in the revisions is handled in the same way.

The thread starts with the first waiter and ends with `close`.
"""

from __future__ import annotations

import threading
import time
from collections import deque

from strandline.condition import Condition
from strandline.errors import CorruptData, Stopping, Unavailable
from strandline.metastorage.etcd.gateway import EtcdGateway
from strandline.metastorage.etcd.layout import Change, EtcdKeys, decode_change
from strandline.metastorage.etcd.operations import Json, from_text

CHANGES_REMEMBERED = 256
_FIRST_PAUSE_SECONDS = 0.02
_LONGEST_PAUSE_SECONDS = 1.0


class ChangeFeed:
    """The latest changes that the watch reported, in order. Safe for threads."""

    def __init__(
        self, gateway: EtcdGateway, keys: EtcdKeys, *, remembered: int = CHANGES_REMEMBERED
    ) -> None:
        self._gateway = gateway
        self._keys = keys
        self._moved = Condition()
        self._changes: deque[Change] = deque(maxlen=remembered)
        self._generation = 0
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None
        self._closed = False

    @property
    def generation(self) -> int:
        """How often the watch was created; read it before the store."""
        with self._moved:
            return self._generation

    def look(self, start: str, end: str, after: int) -> int | None:
        """The store's revision, or None if the range changed after ``after`` or may have."""
        first, last = self._keys.change(after + 1), self._keys.changes_end
        while True:
            page = self._gateway.range(first, last, limit=256)
            for pair in page.pairs:
                change = decode_change(pair.key, pair.value)
                if change.revision != after + 1 or change.touches(start, end):
                    return None
                after = change.revision
            if not page.more:
                return after
            first = self._keys.change(after + 1)

    def wait(self, start: str, end: str, after: int, *, generation: int, timeout: float) -> bool:
        """True once the watch reports a change of a key of the range after the revision ``after``.

        False if the store has to be read again, or after ``timeout`` seconds.
        """
        finish = time.monotonic() + timeout
        with self._moved:
            self._start()
            while generation == self._generation:
                if self._closed:
                    raise Stopping(
                        "the store was closed in this process while this call waited for a change"
                    )
                if self._failure is not None:
                    raise self._failure
                for change in self._changes:
                    if change.revision <= after:
                        continue
                    if change.revision != after + 1:
                        return False
                    if change.touches(start, end):
                        return True
                    after = change.revision
                seconds_left = finish - time.monotonic()
                if seconds_left <= 0:
                    return False
                self._moved.wait(seconds_left)
        return False

    def close(self) -> None:
        """End the waits and the thread. Close the gateway first, which ends the watch."""
        with self._moved:
            self._closed = True
            self._moved.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join()

    def _start(self) -> None:
        if self._thread is None and not self._closed:
            thread = threading.Thread(target=self._run, name="etcd-watch", daemon=True)
            thread.start()  # fails where the system has no more threads
            self._thread = thread

    def _run(self) -> None:
        pause = _FIRST_PAUSE_SECONDS
        try:
            while not self._closed:
                before = self._generation
                try:
                    self._listen()
                except Stopping:
                    return
                except (Unavailable, CorruptData):
                    # A waiting thread reads the store at its time-out, and gets the error then.
                    pass
                pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
                if self._generation != before:
                    pause = _FIRST_PAUSE_SECONDS
                with self._moved:
                    self._moved.wait_for(lambda: self._closed, timeout=pause)
        except BaseException as error:  # a defect here must reach the waiting threads
            with self._moved:
                self._failure = error
                self._moved.notify_all()

    def _listen(self) -> None:
        with self._gateway.watch(self._keys.change(0), self._keys.changes_end) as messages:
            for message in messages:
                self._take(message)

    def _take(self, message: Json) -> None:
        changes = [
            decode_change(from_text(event["kv"]["key"]), from_text(event["kv"].get("value", "")))
            for event in message.get("events", ())
            if event.get("type") != "DELETE"
        ]
        with self._moved:
            if message.get("created"):
                self._changes.clear()
                self._generation += 1
            self._changes.extend(changes)
            self._moved.notify_all()
