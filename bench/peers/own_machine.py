"""A process that stands for a client with a machine of its own."""

from __future__ import annotations

import os
import sys

from strandline.work.time_slices import shorten_time_slices


def stand_apart() -> None:
    """Let this thread run whenever it has something to do.

    A client that is timed shares the processors of the node and of the load here, and elsewhere
    does not: Linux lets a thread that was just answered wait for up to 4 ms behind the one that
    answered it, with the other processor idle. With real-time priority it does not wait. Who may
    not have that is told so, and asks for short slices instead.
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
