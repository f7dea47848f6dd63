"""The time slices that a thread requests from the kernel."""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import pytest

from strandline.work import time_slices
from strandline.work.time_slices import SLICE_NANOSECONDS, shorten_time_slices

T = TypeVar("T")

_GET = {"x86_64": 315, "aarch64": 275}
"""The number of ``sched_getattr``."""


def asked_for() -> tuple[int, int]:
    """Return the slice and the niceness of this thread."""
    attributes = time_slices._Attributes()
    number = _GET[os.uname().machine]
    size = ctypes.sizeof(attributes)
    assert ctypes.CDLL(None).syscall(number, 0, ctypes.byref(attributes), size, 0) == 0
    return attributes.runtime, attributes.nice


def in_thread(test: Callable[[], T]) -> T:
    """Return the result of ``test``, run in a new thread so that its slices end with the thread."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(test).result()


@pytest.mark.skipif(os.uname().machine not in _GET, reason="another numbering of system calls")
def test_only_the_calling_thread_gets_short_slices_and_it_keeps_its_niceness() -> None:
    before = asked_for()

    def ask() -> tuple[object, object]:
        assert shorten_time_slices()
        return asked_for(), in_thread(asked_for)

    mine, theirs = in_thread(ask)
    assert mine in ((SLICE_NANOSECONDS, before[1]), before)  # before Linux 6.12 nothing changes
    assert theirs == before
    assert asked_for() == before


def test_a_machine_without_the_system_call_keeps_its_slices(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "another")
    assert not shorten_time_slices()
    monkeypatch.setattr(time_slices, "_SYSCALLS", {"another": 10_000_000})
    assert not shorten_time_slices()
