"""Makes a process behave like a client on its own machine."""

from __future__ import annotations

import os
import sys

from strandline.work.time_slices import shorten_time_slices


def stand_apart() -> None:
    """Let this thread run whenever it has work to do.

    In a benchmark, a timed client shares the processors with the node and the load; in production
    it does not. Linux may let a thread that just got an answer wait for up to 4 ms after the thread
    that answered, even with another processor idle. With real-time priority it does not wait. If
    the process has no right to that, this prints a message and requests short time slices instead.
    """
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    except (AttributeError, PermissionError):
        shorten_time_slices()
        print(
            "no right to real-time priority: the times of the clients below have their own waiting"
            " for a processor in them; run as root, or with the limit `rtprio`, to be rid of it",
            file=sys.stderr,
        )
