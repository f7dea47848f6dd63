"""The times that the log gives, as this machine's clock hears them."""

from __future__ import annotations

import logging

from strandline.clock import HybridClock, Timestamp

logger = logging.getLogger(__name__)

AHEAD_MS = 1000
"""How far ahead a time may be without a word where the catalog promises nothing about clocks."""


class LogTime:
    """Moves the clock past the times of the log, and says so where this machine's clock is wrong.

    With a delay, readers are never behind by more than they may be only while all clocks agree
    within the skew: ``allowed_ms``. None: nothing depends on it.
    """

    def __init__(self, clock: HybridClock, *, allowed_ms: int | None) -> None:
        self._clock = clock
        self._allowed = AHEAD_MS if allowed_ms is None else allowed_ms
        self._told = False
        self.times_ahead = 0

    def hear(self, at: Timestamp) -> None:
        """Move the clock past ``at``; warn once as long as the times are too far ahead."""
        self._clock.update(at)
        ahead = self._clock.ahead_of_wall(at)
        if ahead <= self._allowed:
            self._told = False
            return
        self.times_ahead += 1
        if not self._told:
            self._told = True
            logger.warning(
                "the log has a time that is %d ms ahead of this machine's clock, and the catalog"
                " allows %d; set the clocks of all nodes (with NTP, say)",
                ahead,
                self._allowed,
            )
