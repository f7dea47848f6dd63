"""How a command ends at SIGTERM, SIGINT and SIGHUP."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def ending_at_signals(*, status: int | None = None) -> Iterator[None]:
    """End the process by an exception at SIGTERM, SIGINT (Ctrl-C) and SIGHUP.

    So the command removes what it has made, and the signals also end the first process of a
    container, which ignores a signal without a handler. Without ``status``, the exit status is 128
    plus the number of the signal, as if it had killed the process.
    """

    def end(number: int, _: FrameType | None) -> None:
        sys.exit(128 + number if status is None else status)

    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    former = {number: signal.getsignal(number) for number in numbers}
    for number, handler in former.items():
        if handler is not signal.SIG_IGN:  # as nohup does with SIGHUP
            signal.signal(number, end)
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
