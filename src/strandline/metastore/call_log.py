"""What became of each call, over both protocols: a line in the log, and how often and how long.

**Lines.** Refused calls and slow ones have a line in the log. Of errors, one that the service did
not foresee was logged with its traceback where it was caught; a name that does not exist is an
ordinary answer (Spark asks for each table before it creates it) and is told at the level debug
only.

**Times.** Each method has a histogram. What a client sends must not make the table grow: a method
is counted under its name only once the server knows it.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from strandline.errors import (
    ObjectNotFound,
    PermissionDenied,
    StrandlineError,
    TransactionNotFound,
    surface_of,
)
from strandline.logs import fields

logger = logging.getLogger("strandline.calls")

DEFAULT_SLOW_MS = 1_000
_SERVERS_FAULT = 500
BOUNDS = (0.001, 0.005, 0.025, 0.1, 0.5, 2.5, 10.0)
"""Seconds: the upper ends of the parts of a histogram; the last part has none."""


@dataclass(slots=True)
class MethodCalls:
    """The calls of one method since the start.

    ``parts`` are their numbers by `BOUNDS`, ``seconds`` their sum, ``errors`` those that failed, by
    the code of the error.
    """

    parts: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS) + 1))
    seconds: float = 0.0
    errors: Counter[str] = field(default_factory=Counter)


class CallLog:
    """See the module. Calls end on the event loop; any thread may read what was counted."""

    def __init__(self, slow_ms: int = DEFAULT_SLOW_MS) -> None:
        self._slow_ms = slow_ms
        self._methods: dict[tuple[str, str], MethodCalls] = {}

    def ended(
        self,
        protocol: str,
        method: str,
        *,
        client: str,
        user: str,
        seconds: float,
        error: BaseException | None = None,
    ) -> None:
        """A call of a known ``method`` was answered, or refused with ``error``."""
        calls = self._methods.get((protocol, method))
        if calls is None:
            calls = self._methods[protocol, method] = MethodCalls()
        calls.parts[bisect_left(BOUNDS, seconds)] += 1
        calls.seconds += seconds
        milliseconds = int(seconds * 1000)
        if error is not None:
            code = error.code if isinstance(error, StrandlineError) else StrandlineError.code
            calls.errors[code] += 1
        elif milliseconds < self._slow_ms:
            return
        shown = fields(client=client, user=user or None, ms=milliseconds)
        if isinstance(error, StrandlineError):
            logger.log(_level(error), "%s was refused: %s", method, error.message, extra=shown)
        elif milliseconds >= self._slow_ms:
            logger.warning("%s was slow", method, extra=shown)

    def statistics(self) -> Mapping[tuple[str, str], MethodCalls]:
        """The calls by (protocol, method)."""
        return dict(self._methods)


def _level(error: StrandlineError) -> int:
    if isinstance(error, ObjectNotFound | TransactionNotFound):
        return logging.DEBUG
    if isinstance(error, PermissionDenied) or surface_of(error).http >= _SERVERS_FAULT:
        return logging.WARNING
    return logging.INFO
