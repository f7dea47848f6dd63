"""The health of a node: checks that each report runs again.

A check is a function that raises if something is wrong; the error's message is the reason that the
report gives. Each part that can fail alone adds a check. Results are not cached, so a report never
describes an earlier moment.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from strandline.errors import StrandlineError
from strandline.logs import in_one_line
from strandline.outage import waiting_until
from strandline.sql import StoreFull

logger = logging.getLogger(__name__)

Check = Callable[[], object]
ELECTION_SECONDS = 1.5
"""How long a report waits for servers that cannot be reached: etcd needs as long for a leader."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A check that failed, and why. The node answers reads unless it ``stops_reads``."""

    check: str
    reason: str
    stops_reads: bool = True


class NodeHealth:
    """The checks of a node. `report` waits for the store: call it from a thread."""

    def __init__(self) -> None:
        self._checks: dict[str, tuple[Check, bool]] = {}
        self.in_progress: str | None = None
        """The name of the check that a report waits for."""

    def add(self, name: str, check: Check, *, stops_reads: bool = True) -> None:
        """Add ``check`` to the report under ``name``.

        ``stops_reads``: reads fail too while it fails, unless it only says that the store is full.
        """
        self._checks[name] = check, stops_reads

    def report(self) -> list[Problem]:
        """Return the problems of this moment; an empty list if the node can do its work."""
        problems, end = [], time.monotonic() + ELECTION_SECONDS
        for name, (check, stops_reads) in self._checks.items():
            self.in_progress = name
            try:
                with waiting_until(end, for_answers=False):
                    check()
            except (StrandlineError, OSError) as error:
                may_read = not stops_reads or isinstance(error, StoreFull)
                problems.append(Problem(name, in_one_line(str(error)), stops_reads=not may_read))
            except Exception as error:
                logger.exception("the check of %s failed with an internal error", name)
                reason = f"the check failed with an internal error: {type(error).__name__}"
                problems.append(Problem(name, reason))
        self.in_progress = None
        return problems
