"""Chores: the work that a node repeats in background threads.

If a chore fails, the failure is logged, and the chore runs again after the next pause. It does not
affect other chores. All chores end soon after `Chores.stopping` is set; a long chore checks it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping

from strandline.errors import Stopping, Unavailable

logger = logging.getLogger(__name__)


class Chores:
    """See the module. The node sets ``stopping`` when it stops."""

    def __init__(self) -> None:
        self.stopping = threading.Event()
        self._threads: list[threading.Thread] = []

    def repeat(
        self, thread: str, chores: Mapping[str, Callable[[], object]], *, pauses: Iterator[float]
    ) -> None:
        """Run all ``chores`` after each of ``pauses``, in seconds, in a thread named ``thread``.

        The keys of ``chores`` are their names in the log.
        """

        def run() -> None:
            for pause in pauses:
                if self.stopping.wait(min(pause, threading.TIMEOUT_MAX)):
                    return
                for chore, do in chores.items():
                    if not self.do(chore, do):
                        return

        started = threading.Thread(target=run, name=thread, daemon=True)
        started.start()
        self._threads.append(started)

    def do(self, chore: str, do: Callable[[], object]) -> bool:
        """Run a chore now and log its failure. Return False if it raised `Stopping`."""
        try:
            do()
        except Stopping:
            return False
        except Unavailable as error:
            logger.warning("%s failed: %s; it will be tried again later", chore, error)
        except Exception:
            if not self.stopping.is_set():
                logger.exception("%s failed; it will be tried again later", chore)
        return True

    def refuse_when_stopping(self) -> None:
        """Raise `Stopping` if the node is stopping."""
        if self.stopping.is_set():
            raise Stopping("the node is stopping; the remaining work is left to its next start")

    def join(self) -> None:
        """Wait until all threads have ended. They end when ``stopping`` is set."""
        for thread in self._threads:
            thread.join()
