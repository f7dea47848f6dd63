"""The right of way of an update whose validation takes long, before shorter ones.

A child process of the node needs seconds to validate a large update, while a round of `GroupCommit`
takes milliseconds. So the child would always find that another version came first, until its
deadline. From its announcement on, no round begins (`RightOfWay.give`) until its task has ended
(`RightOfWay.end`), or for at most `WAY_SECONDS`. Reads do not wait, and commands on other nodes do
not either.

Likewise, other nodes may append more often than this node needs to validate a large batch. If a
round of long validation has lost `LOSSES_BEFORE_WAY` appends, this node appends a silent version
that asks the other nodes for way. A node that has applied it begins no validation until it has
applied a later version of the asking node, or for at most the time in the request. If the batch is
refused after all, such a version is a request for no time. Nodes of releases before 0.6.0 ignore
both.
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

WAY_SECONDS = 15.0
"""The longest time that commands wait for a large update."""
LOSSES_BEFORE_WAY = 2
LONG_VALIDATION_SECONDS = 0.1
"""A round whose validation takes less does not ask other nodes for way: it gets its turn soon."""
WAY = "way"
"""The name of the `Setting` that asks for way: member, version before it, and milliseconds."""


class RightOfWay:
    """See the module. ``news``, with its lock, wakes the thread that lets others pass."""

    def __init__(self, follower: CatalogFollower, news: threading.Condition) -> None:
        self._follower = follower
        self._news = news
        self._child_ends = 0.0  # when the way of a child process ends, on the monotonic clock
        self._asking = "", 0.0  # the other node that has asked for way, and when that ends
        self._has_asked = False  # whether this node has asked, and appended nothing since
        follower.subscribe(self._note)

    def give(self) -> None:
        """Begin no round until `end`, or for `WAY_SECONDS`: a child has announced an update.

        Only the first announcement of a task counts: if another node always comes first, the
        commands of this one need not wait for it all the time.
        """
        with self._news:
            self._child_ends = self._child_ends or time.monotonic() + WAY_SECONDS

    def end(self) -> None:
        """Begin rounds again: the task of a child that may have announced an update has ended."""
        with self._news:
            self._child_ends = 0.0
            self._news.notify_all()

    def is_needed(self, losses: int, seconds: float) -> bool:
        """Whether a round that validates for ``seconds`` has lost enough appends to ask for way."""
        return losses >= LOSSES_BEFORE_WAY and seconds > LONG_VALIDATION_SECONDS

    def ask(self, seconds: float) -> None:
        """Ask the other nodes to wait for the next version of this one, if the log takes that."""
        self._follower.sync()
        base, state = self._follower.latest_catalog(), self._follower.state
        milliseconds = round(min(seconds, WAY_SECONDS) * 1000)
        transaction = state.transaction(base, author=SYSTEM_NAME)
        with transaction.entry("configure", {}):
            transaction.put(Setting(WAY, f"{state.member} {base.version} {milliseconds}"))
        # Nothing was sent for the callers of the round: it goes on, and may ask again.
        with suppress(OutOfSync, Unavailable, UnknownOutcome):
            self._follower.apply_own(state.commit_transactions([transaction]))

    def return_unused(self) -> None:
        """Let the other nodes go on if the round has asked for way and appended nothing since."""
        if self._has_asked:
            with suppress(StrandlineError):  # then they go on when the time of the request is over
                self.ask(0.0)
            self._has_asked = False

    def let_others_pass(self, stop: threading.Event) -> None:
        """Wait while a child process or another node has way. The caller holds the lock."""
        while not stop.is_set():
            seconds_of_way = max(self._child_ends, self._asking[1]) - time.monotonic()
            if seconds_of_way <= 0:
                return
            self._news.wait(seconds_of_way)

    def _note(self, applied: AppliedVersion) -> None:
        """Note that a node asks for way, or that it had its way."""
        update, asked = applied.update, ("", 0.0)
        if update.silent:
            for change in update.changes():
                if (change.kind, change.key) == (SETTING.kind, WAY.encode()) and change.new:
                    milliseconds = int(decode(change.new, Setting).value.rpartition(" ")[2])
                    seconds = min(milliseconds / 1000, WAY_SECONDS)
                    if seconds > 0:
                        asked = update.member, time.monotonic() + seconds
        with self._news:
            if update.member == self._follower.state.member:
                self._has_asked = bool(asked[0])
            elif asked[0] and self._has_asked:
                pass  # this node asked first; otherwise both would wait for each other
            elif asked[0] or update.member == self._asking[0]:
                self._asking = asked
                self._news.notify_all()
