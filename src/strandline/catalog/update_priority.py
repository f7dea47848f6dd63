"""The priority of an update whose validation takes long over shorter ones.

A child process of the node needs seconds to validate a large update, while a round of `GroupCommit`
takes milliseconds. So the child would always find that another version came first, until its
deadline. From its announcement on, no round begins (`UpdatePriority.grant`) until all tasks that
announced an update have ended (`UpdatePriority.end`), or for at most `PRIORITY_SECONDS`. Neither
reads nor commands on other nodes wait.

Likewise, other nodes may append more often than this node needs to validate a large batch. If a
round of long validation has lost `LOSSES_BEFORE_PRIORITY` appends, this node appends a silent
version that asks the other nodes for priority. A node that has applied it begins no validation
until it has applied a later version of the asking node, or for at most the time in the request. If
the batch is refused after all, another such version requests a time of 0. Nodes of releases before
0.6.0 ignore both.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress

from strandline.catalog.events import AppliedVersion
from strandline.catalog.follower import CatalogFollower
from strandline.durable.collections import SETTING
from strandline.errors import OutOfSync, StrandlineError, Unavailable, UnknownOutcome
from strandline.model.descriptors import Setting
from strandline.model.privileges import SYSTEM_NAME
from strandline.wire import decode

PRIORITY_SECONDS = 15.0
"""The longest time that commands wait for a large update."""
LOSSES_BEFORE_PRIORITY = 2
LONG_VALIDATION_SECONDS = 0.1
"""A round whose validation takes less does not ask for priority: it can append soon."""
PRIORITY = "way"
"""The name of the `Setting` that asks for it: member, version before it, and milliseconds."""


class UpdatePriority:
    """See the module. ``news``, with its lock, wakes the thread in `wait_for_others`."""

    def __init__(self, follower: CatalogFollower, news: threading.Condition) -> None:
        self._follower = follower
        self._news = news
        self._child_ends = 0.0  # when the priority of a child process ends, on the monotonic clock
        self._asking = "", 0.0  # the other node that has asked for priority, and when that ends
        self._has_asked = False  # whether this node has asked, and appended nothing since
        follower.subscribe(self._note)

    def grant(self) -> None:
        """Begin no round until `end`, or for `PRIORITY_SECONDS`: a child has announced an update.

        Only the first announcement of a task counts: if another node always comes first, the
        commands of this one need not wait for it all the time.
        """
        with self._news:
            self._child_ends = self._child_ends or time.monotonic() + PRIORITY_SECONDS

    def end(self) -> None:
        """Begin rounds again: no task is left whose child has announced an update."""
        with self._news:
            self._child_ends = 0.0
            self._news.notify_all()

    def is_needed(self, losses: int, seconds: float) -> bool:
        """Whether a round that validates for ``seconds`` has lost enough appends to ask."""
        return losses >= LOSSES_BEFORE_PRIORITY and seconds > LONG_VALIDATION_SECONDS

    def ask(self, seconds: float) -> None:
        """Ask the other nodes to wait for the next version of this one, if the log takes that."""
        self._follower.sync()
        base, state = self._follower.latest_catalog(), self._follower.state
        milliseconds = round(min(seconds, PRIORITY_SECONDS) * 1000)
        transaction = state.transaction(base, author=SYSTEM_NAME)
        with transaction.entry("configure", {}):
            transaction.put(Setting(PRIORITY, f"{state.member} {base.version} {milliseconds}"))
        # Nothing was sent for the callers of the round: it goes on, and may ask again.
        with suppress(OutOfSync, Unavailable, UnknownOutcome):
            self._follower.apply_own(state.commit_transactions([transaction]))

    def withdraw_unused(self) -> None:
        """Let the other nodes go on if the round has asked and appended nothing since."""
        if self._has_asked:
            with suppress(StrandlineError):  # else they go on when the time of the request is over
                self.ask(0.0)
            self._has_asked = False

    def wait_for_others(self, stop: threading.Event) -> None:
        """Wait while a child process or another node has priority. The caller holds the lock."""
        while not stop.is_set():
            seconds_left = max(self._child_ends, self._asking[1]) - time.monotonic()
            if seconds_left <= 0:
                return
            self._news.wait(seconds_left)

    def _note(self, applied: AppliedVersion) -> None:
        """Note that a node asks for priority, or that it has appended since."""
        update, request = applied.update, ("", 0.0)
        if update.silent:
            for change in update.changes():
                if (change.kind, change.key) == (SETTING.kind, PRIORITY.encode()) and change.new:
                    milliseconds = int(decode(change.new, Setting).value.rpartition(" ")[2])
                    seconds = min(milliseconds / 1000, PRIORITY_SECONDS)
                    if seconds > 0:
                        request = update.member, time.monotonic() + seconds
        with self._news:
            if update.member == self._follower.state.member:
                self._has_asked = bool(request[0])
            elif request[0] and self._has_asked:
                pass  # this node asked first; otherwise both would wait for each other
            elif request[0] or update.member == self._asking[0]:
                self._asking = request
                self._news.notify_all()
