"""Short scheduler time slices for a thread that must answer quickly.

If all cores are busy, a thread that wakes up waits until a running thread has used its time slice:
three to five milliseconds on two cores. With Linux 6.12 and later, a thread that requests shorter
slices runs sooner. It gets no more processor time than before. In a node, the event loop and the
threads that its answers wait for request them: workers, and those that write for several callers.
"""

from __future__ import annotations

import ctypes
import logging
import os
import platform
from functools import cache

SLICE_NANOSECONDS = 100_000
"""The shortest slice that Linux allows."""
_SYSCALLS = {"x86_64": 314, "aarch64": 274}
"""The system call number of ``sched_setattr`` by machine. Python and libc have no wrapper."""
_RESET_ON_FORK = 1

logger = logging.getLogger(__name__)


class _Attributes(ctypes.Structure):
    """Linux's ``struct sched_attr``, first version."""

    _fields_ = (
        ("size", ctypes.c_uint32),
        ("policy", ctypes.c_uint32),
        ("flags", ctypes.c_uint64),
        ("nice", ctypes.c_int32),
        ("priority", ctypes.c_uint32),
        ("runtime", ctypes.c_uint64),
        ("deadline", ctypes.c_uint64),
        ("period", ctypes.c_uint64),
    )


def shorten_time_slices() -> bool:
    """Request the shortest slices for this thread, but not for threads that it starts.

    Return whether the kernel accepted the request. Kernels before 6.12 accept it without effect.
    """
    number = _SYSCALLS.get(platform.machine())
    if number is None or platform.system() != "Linux":
        return False
    attributes = _Attributes(
        size=ctypes.sizeof(_Attributes),
        policy=os.sched_getscheduler(0),
        flags=_RESET_ON_FORK,
        nice=os.getpriority(os.PRIO_PROCESS, 0),
        runtime=SLICE_NANOSECONDS,
    )
    library = ctypes.CDLL(None, use_errno=True)
    if library.syscall(number, 0, ctypes.byref(attributes), 0) == 0:
        return True
    _log_once(os.strerror(ctypes.get_errno()))
    return False


@cache
def _log_once(reason: str) -> None:
    logger.info("the scheduler's time slices could not be changed: %s", reason)
