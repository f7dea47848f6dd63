"""What a node does in the background: chores, again and again, in threads of their own.

A chore that fails is logged and done again after the next pause; it ends nothing but itself. All
end soon after `Chores.stopping` is set, which is also what a long one asks.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping

from strandline.errors import Stopping, Unavailable

logger = logging.getLogger(__name__)


class Chores:
    """See the module. ``stopping`` is set from the moment when the node stops."""

    def __init__(self) -> None:
        self.stopping = threading.Event()
        self._threads: list[threading.Thread] = []

    def repeat(
        self, thread: str, chores: Mapping[str, Callable[[], object]], *, pauses: Iterator[float]
    ) -> None:
        """Do ``chores``, by what the log calls them, behind each of ``pauses``, in seconds."""

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
        """Do a chore now, and log its failure; False if the node is stopping."""
        try:
            do()
        except Stopping:
            return False
        except Unavailable as error:
            logger.warning("%s failed: %s; tried again later", chore, error)
        except Exception:
            if not self.stopping.is_set():
                logger.exception("%s failed; tried again later", chore)
        return True

    def refuse_when_stopping(self) -> None:
        """Raise `Stopping` from the moment when the node stops."""
        if self.stopping.is_set():
            raise Stopping("the node is stopping; what was not done is left to its next start")

    def join(self) -> None:
        """Wait until all threads have ended; they do when ``stopping`` is set."""
        for thread in self._threads:
            thread.join()
