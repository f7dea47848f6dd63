"""Whether the log is still the one from which a node has applied its versions.

A standby without the last commits may take over, or an older backup be restored. Then versions that
a node has applied are lost, and other nodes append other versions of the same numbers. A log that
ends earlier shows it. A log that has caught up meanwhile does not. So a node that sees the log end
earlier, did not see it for `AWAY_MS`, or lost a connection to its server, compares the id of its
latest update with the one in the log. Another database does not take over unnoticed: connections
to the first one are lost.

Rejected: comparing at each look (a read of the last update), and the id of the update before in
each update (a new format, and an append would still have to compare it).
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress

from strandline.durable import DurableCatalogState, Frontier, SetBack, Update

AWAY_MS = 1500
"""The time without a look at the log after which the log may be another one.

It may have been set back, and other nodes may have appended to it since. A node that runs looks at
the log at least every two rounds.
"""


class SetBackCheck:
    """See the module. ``elapsed`` returns elapsed milliseconds.

    `refuse_lost_version` is called under the lock that applies, so ``latest``, the version that was
    applied last, stays the latest.
    """

    def __init__(self, elapsed: Callable[[], int]) -> None:
        self._elapsed = elapsed
        self._looked_at: float = elapsed()  # before the last look at the log that succeeded
        self._failed_at = self._looked_at
        self._lost_versions: str | None = None  # the message, once the log has lost versions
        self.set_back: Future[str] = Future()
        """Completes, with a message, when the log has lost versions that were applied here.

        From then on, every call that needs the log raises `SetBack`; the process should end.
        """

    def looked(self, began: float) -> None:
        """Note that a look at the log, which ``began`` at that elapsed time, has succeeded."""
        if began >= self._failed_at:  # else it may have been a look at the log before
            self._looked_at = began

    def look_failed(self) -> None:
        """Note that a look at the log has failed, or a connection to its server was lost."""
        self._failed_at = self._elapsed()
        self._looked_at = float("-inf")

    @property
    def was_away(self) -> bool:
        """Whether this node did not see the log for so long that it may be another one."""
        return self._elapsed() - self._looked_at > AWAY_MS

    def refuse_lost_version(
        self,
        state: DurableCatalogState,
        latest: int,
        frontier: Frontier,
        *,
        version: int,
        update_id: bytes,
    ) -> None:
        """Raise `SetBack` if the log has lost the version ``latest``, or has another one instead.

        The log is asked if this node was away, or if ``frontier`` ends earlier, which it also does
        if it was read before that version was applied. ``update_id`` is the known id of the update
        of ``version``.
        """
        if self._lost_versions is not None:
            raise SetBack(self._lost_versions)
        is_short = frontier.upper <= latest
        if not is_short and not self.was_away:
            return
        is_known = version == latest and bool(update_id)  # else a snapshot, or interrupted
        if is_known:
            if state.log.time_of(Update(latest, update_id, "", "", ())) is not None:
                return
        elif not is_short:
            return
        frontier = state.log.check().frontier
        end = frontier.upper - 1
        if end < latest:
            raise self._lost(state, latest, f"ends at version {end}")
        if is_known and latest > frontier.since:  # else it was trimmed, and a snapshot is there
            raise self._lost(state, latest, f"has another version {latest}")

    def _lost(self, state: DurableCatalogState, latest: int, what_differs: str) -> SetBack:
        """The error for a log that has lost the latest version; kept for all calls."""
        lost = SetBack(
            f"this node has read version {latest} of the catalog, but its log now {what_differs}: "
            "a standby without the last commits took over, or an older backup was restored. What "
            "was in between is lost; start the node again: it goes on without it, or says what to "
            "restore as well"
        )
        state.refuse(lost)
        self._lost_versions = lost.message
        with suppress(InvalidStateError):  # a server that stops has cancelled it
            self.set_back.set_result(lost.message)
        return SetBack(lost.message)  # without its frames, which the state would keep alive
