"""Named points at which a test can kill this process.

To prove "nothing acknowledged is lost", a test must kill the store at the worst moments. The code
names these moments with `reached`. The environment variable ``STRANDLINE_FAULT`` arms one of them,
as ``POINT`` (kill at the first time) or ``POINT:N`` (at the N-th). An unarmed point costs one
comparison. The process sends SIGKILL to itself, so no handler or ``finally`` runs and no buffer is
flushed.
"""

from __future__ import annotations

import os
import signal
import threading

ENVIRONMENT_VARIABLE = "STRANDLINE_FAULT"

POINTS: dict[str, str] = {
    "rows-staged": "rows of a transaction were staged durably; the caller has no answer yet",
    "commit-sent": "a commit was received; nothing of it is durable",
    "commit-durable": "a commit is durable; the caller has no answer yet",
    "ddl-appended": "a catalog version is in the log; this node has not applied it",
}
"""All points by name, with the moment that each one marks."""


def _parse(setting: str) -> tuple[str, int]:
    name, _, count = setting.partition(":")
    if name and name not in POINTS:
        known = ", ".join(sorted(POINTS))
        raise SystemExit(
            f"{ENVIRONMENT_VARIABLE}={setting}: unknown point; known points are {known}"
        )
    return name, int(count or 1)


_lock = threading.Lock()
_armed, _left = _parse(os.environ.get(ENVIRONMENT_VARIABLE, ""))


def reached(point: str) -> None:
    """Mark that the process has reached ``point``. Kills the process here if the point is armed."""
    if point != _armed:
        return
    global _left
    with _lock:
        _left -= 1
        if _left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
