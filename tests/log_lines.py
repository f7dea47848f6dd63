"""What this process logs, as the objects of the JSON format."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from strandline.logs import configure

NEVER_SLOW_MS = 1 << 40
"""For a `CallLog`: no call is logged as slow. On a busy machine, any call may take a second."""


class LogLines:
    """The lines written so far."""

    def __init__(self, stream: io.StringIO) -> None:
        self._stream = stream

    def of(self, logger: str) -> list[dict[str, Any]]:
        """The lines of one logger, without their times."""
        entries = [json.loads(line) for line in self._stream.getvalue().splitlines()]
        return [
            {name: value for name, value in entry.items() if name not in ("time", "logger")}
            for entry in entries
            if entry["logger"] == f"strandline.{logger}"
        ]


@contextmanager
def logging_restored() -> Iterator[None]:
    """What the block configures of the log of this process ends with it."""
    root, ours = logging.getLogger(), logging.getLogger("strandline")
    handlers, levels = list(root.handlers), (root.level, ours.level)
    try:
        yield
    finally:
        logging.captureWarnings(False)
        root.handlers[:] = handlers
        root.setLevel(levels[0])
        ours.setLevel(levels[1])


@contextmanager
def log_lines(*, level: str = "info") -> Iterator[LogLines]:
    """Collects the log, and restores the handlers of this process afterwards."""
    stream = io.StringIO()
    with logging_restored():
        configure(level=level, form="json", stream=stream)
        yield LogLines(stream)
