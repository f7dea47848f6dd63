"""What the log of a node says of calls: those that were refused, and those that were slow.

A successful call that was quick has no line. Of errors, one that the service did not foresee was
logged with its traceback where it was caught; a name that does not exist is an ordinary answer
(Spark asks for each table before it creates it) and is told at the level debug only.
"""

from __future__ import annotations

import logging

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


def log_call(
    method: str,
    *,
    client: str,
    user: str,
    seconds: float,
    slow_ms: int,
    error: BaseException | None = None,
) -> None:
    """Say that a call was refused with ``error``, or that it was slow; else nothing."""
    milliseconds = int(seconds * 1000)
    shown = fields(client=client, user=user or None, ms=milliseconds)
    if isinstance(error, StrandlineError):
        logger.log(_level(error), "%s was refused: %s", method, error.message, extra=shown)
    elif milliseconds >= slow_ms:
        logger.warning("%s was slow", method, extra=shown)


def _level(error: StrandlineError) -> int:
    if isinstance(error, ObjectNotFound | TransactionNotFound):
        return logging.DEBUG
    if isinstance(error, PermissionDenied) or surface_of(error).http >= _SERVERS_FAULT:
        return logging.WARNING
    return logging.INFO
