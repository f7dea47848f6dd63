"""The outcome of each call, for both protocols: lines in the log, counts and times.

**Lines.** Refused calls and slow calls are logged. An unexpected error is not logged here: it was
logged with its traceback where it was caught. A name that does not exist is an ordinary answer
(Spark asks for each table before it creates it), and is logged only at the level debug.

**Times.** Each method has a histogram. Clients must not be able to make the table grow: only
methods that the server knows are counted under their names.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from strandline.errors import (
    ObjectNotFound,
    PermissionDenied,
    StrandlineError,
    TransactionNotFound,
    UnknownOutcome,
    surface_of,
)
from strandline.logs import fields

logger = logging.getLogger("strandline.calls")

DEFAULT_SLOW_MS = 1_000
_SERVERS_FAULT = 500
BOUNDS = (0.001, 0.005, 0.025, 0.1, 0.5, 2.5, 10.0)
"""The upper bounds of a histogram's parts, in seconds; the last part has none."""


@dataclass(slots=True)
class MethodCalls:
    """The calls of one method since the start.

    ``parts`` are the numbers of calls by `BOUNDS`, ``seconds`` is the sum of their times, and
    ``errors`` are the numbers of failed calls by error code.
    """

    parts: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS) + 1))
    seconds: float = 0.0
    errors: Counter[str] = field(default_factory=Counter)


class CallLog:
    """See the module. Calls end on the event loop; any thread may read the counts."""

    def __init__(self, slow_ms: int = DEFAULT_SLOW_MS) -> None:
        self._slow_ms = slow_ms
        self._methods: defaultdict[tuple[str, str], MethodCalls] = defaultdict(MethodCalls)

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
        """Record that a call of a known ``method`` was answered, or refused with ``error``."""
        calls = self._methods[protocol, method]
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
            ended = "has an unknown outcome" if isinstance(error, UnknownOutcome) else "was refused"
            logger.log(_level(error), "%s %s: %s", method, ended, error.message, extra=shown)
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
