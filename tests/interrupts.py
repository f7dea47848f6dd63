"""Interrupts at a chosen step of a function."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any


def is_interrupted(function: Callable[[], object], *, at_step: int) -> bool:
    """Call ``function`` with an interrupt at one place where Python runs the handlers of signals.

    That is at the beginning of a function, and after a call into C. Returns False if there is no
    such place of that number.
    """
    steps = iter(range(at_step + 1))

    def raise_at_step(_: FrameType, event: str, __: Any) -> None:  # Any: as `sys.setprofile`
        if event in ("call", "c_return") and next(steps) == at_step:
            sys.setprofile(None)
            raise KeyboardInterrupt

    with suppress(KeyboardInterrupt):
        sys.setprofile(raise_at_step)
        function()
        sys.setprofile(None)
        return False
    return True
