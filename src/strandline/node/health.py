"""Whether a node can do its work, asked anew each time.

A check is a function that returns where all is well, and raises where it is not; what it raises is
the reason that the asker gets. Each part that can fail alone adds its check. Nothing is
remembered: an answer is never older than its question.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from strandline.errors import StrandlineError
from strandline.logs import in_one_line

logger = logging.getLogger(__name__)

Check = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Problem:
    """A check that failed, and why."""

    check: str
    reason: str


class NodeHealth:
    """The checks of a node. `report` waits for the store: call it from a thread."""

    def __init__(self) -> None:
        self._checks: dict[str, Check] = {}

    def add(self, name: str, check: Check) -> None:
        """Ask ``check`` too, and call it ``name``."""
        self._checks[name] = check

    def report(self) -> list[Problem]:
        """What is wrong now; nothing if the node can do its work."""
        problems = []
        for name, check in self._checks.items():
            try:
                check()
            except (StrandlineError, OSError) as error:
                problems.append(Problem(name, in_one_line(str(error))))
            except Exception as error:
                logger.exception("the check of %s failed inside", name)
                problems.append(Problem(name, f"the check failed inside: {type(error).__name__}"))
        return problems
