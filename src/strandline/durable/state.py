"""The durable catalog state: one class, written once over any update log.

`strandline.durable.opening.durable_state` connects and changes nothing. What it returns answers the
few questions that can be asked of a catalog that no process has opened, and opens it:

* `OpenableState.open` makes this process the holder of a **new epoch**: it fences every earlier
  holder. They learn it at their next commit, sync or `confirm_leadership`; nothing that they try
  becomes durable, and their handles stay fenced. It creates the catalog where there is none.
* `OpenableState.join` adopts the current token. The nodes of one deployment share it knowingly;
  they differ by their member id, and the append alone orders their commits.
* `OpenableState.open_read_only` gives a state without the means to write.
* `OpenableState.check_open` gives one whose writes nobody sees: it tries what `open` would do.
* `OpenableState.edit` opens, and repairs the catalog in the same step.

A fenced handle stays fenced. Its process may go on with another one: `joined_anew` joins the newer
epoch, unless a newer deploy generation has taken over (`Replaced`).

No state has a position that moves: `ReadOnlyState.updates_after` is asked with the version that the
caller has come to, and a transaction names its base. So the caller that keeps the versions is the
one owner of how far the log was applied.

What must stay true: no two calls of `open` get the same epoch (the new token is appended with the
old one as its condition); a state applies the log one update at a time, and the fence before it
decodes what comes after; the outer store (``raise_fence``) is fenced before the log, so that no
moment exists in which an old writer can still write there after the new one began.

Rejected: mutability as a flag that is looked at when writing (a read-only state simply has no such
methods), a leadership lease in place of the fence (a paused holder would not notice), and a call
that gives up what a state holds (it holds nothing that others wait for).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from strandline.clock import MIN_TIMESTAMP, Timestamp, format_timestamp
from strandline.durable.collections import FENCE as FENCES
from strandline.durable.contents import Contents, restore, stamp
from strandline.durable.log import MOVED, Companion, UpdateLog
from strandline.durable.transaction import CatalogTransaction, Position
from strandline.durable.update import Update
from strandline.errors import (
    CorruptData,
    Fenced,
    IncompatibleFormat,
    NotFresh,
    StrandlineError,
    VersionNotFound,
)
from strandline.fencing import FenceToken
from strandline.model.descriptors import FenceEntry
from strandline.wire.registry import decode

FENCE = "catalog"
ENVIRONMENT = "environment"
MAX_UPDATES_AT_ONCE = 1000


@dataclass(frozen=True, slots=True)
class AppliedUpdate:
    """An update and the contents that it made."""

    update: Update
    contents: Contents

    @property
    def version(self) -> int:
        """The version that the update made."""
        return self.update.version

    @property
    def time(self) -> Timestamp:
        """The time that the log gave to the version."""
        return self.update.time


class ExpectedUpdate:
    """An update that may be appended behind ``base``, applied to it.

    So that it takes no time to apply it once it is in the log (`DurableCatalogState.if_appended`).
    """

    def __init__(self, base: Position, update: Update) -> None:
        self.base = base
        self.update = update
        self.contents = base.contents.apply(update.changes())
        self.written = self.contents.written_by(update.changes())


class TrimmedAway(NotFresh):
    """The updates behind a version are gone: `ReadOnlyState.start` and begin again from there."""


class ReadOnlyState:
    """An opened catalog that can be read from its log. Not for several threads at once.

    ``recovered`` is what opening it read: where the log begins, then each update that it had, in
    order. ``environment`` is the id that was made when the catalog was initialized. ``epoch`` is
    the one that it was in when it was opened here, and ``boot_timestamp`` when that began; both 0
    before the catalog is initialized.
    """

    def __init__(self, log: UpdateLog) -> None:
        self.log = log
        self.recovered = self._recover()
        latest = self.recovered[-1].contents
        self.environment = config_in(latest, ENVIRONMENT)
        fence = latest.get("fence", FENCE.encode())
        self.epoch = 0 if fence is None else int(fence.value.epoch)
        self.boot_timestamp = MIN_TIMESTAMP if fence is None else fence.updated

    def _recover(self) -> list[AppliedUpdate]:
        while True:
            recovered = [self.start()]
            try:
                while applied := self.updates_after(recovered[-1]):
                    recovered += applied
            except TrimmedAway:  # between the look at the snapshot and the look at the log
                continue
            return recovered

    def take_recovered(self) -> list[AppliedUpdate]:
        """``recovered``, which this state then no longer keeps in memory."""
        recovered, self.recovered = self.recovered, []
        return recovered

    def start(self) -> AppliedUpdate:
        """Where the log begins: its snapshot, as if it were an update."""
        snapshot = self.log.snapshot()
        contents = restore(snapshot.kinds, snapshot.times, at=snapshot.time)
        return AppliedUpdate(
            Update(snapshot.version, b"", "", "", (), time=snapshot.time), contents
        )

    def updates_after(self, position: Position, *, up_to: int | None = None) -> list[AppliedUpdate]:
        """What the log has behind ``position``, up to version ``up_to`` if given; applied to it.

        At most 1000 updates at once, so ask again until nothing comes. Raises `Fenced` when the
        log's fence is no longer this state's, and `TrimmedAway`.
        """
        frontier = self.log.frontier()
        version, contents = position.version, position.contents
        end = frontier.upper
        if frontier.since > version:
            raise TrimmedAway(
                f"the log was trimmed to version {frontier.since} while this node was at version "
                f"{version}; it begins again from the snapshot"
            )
        if up_to is not None:
            end = min(end, up_to + 1)
        end = min(end, version + 1 + MAX_UPDATES_AT_ONCE)
        if end <= version + 1:
            return []
        try:
            updates = self.log.updates(version + 1, end)
        except VersionNotFound as gone:  # trimmed since the look at the frontier
            raise TrimmedAway(gone.message) from gone
        applied: list[AppliedUpdate] = []
        for update in updates:
            contents = contents.apply(update.changes(), at=update.time)
            self._compare_fence_of(update, contents)
            applied.append(AppliedUpdate(update, contents))
        return applied

    def _compare_fence_of(self, update: Update, contents: Contents) -> None:
        """Nothing to compare with: a reader follows every writer."""


class DurableCatalogState(ReadOnlyState):
    """An opened catalog that may be written to. Commits may come from several threads."""

    def __init__(self, log: UpdateLog, *, token: FenceToken, member: str) -> None:
        self.token = token
        self.member = member
        self._fenced: str | None = None
        super().__init__(log)

    def start(self) -> AppliedUpdate:
        """See `ReadOnlyState.start`. Raises `Fenced`."""
        with self._fence_before_bytes():
            start = super().start()
        fence = start.contents.get("fence", FENCE.encode())
        if fence is not None:
            self._compare_fence(fence.value)
        return start

    def _compare_fence_of(self, update: Update, contents: Contents) -> None:
        for change in update.changes():
            if change.kind == "fence":
                fence = contents.get("fence", change.key)
                if fence is not None:
                    self._compare_fence(fence.value)

    def _compare_fence(self, entry: FenceEntry) -> None:
        token = FenceToken(entry.deploy_generation, entry.epoch)
        if token.is_sealed:  # the end of this log; or history, of a catalog that was moved
            self._compare_token()
        elif token > self.token:
            self._fenced = self._overtaken_by(token)
            raise Fenced(self._fenced)

    def _check_fenced(self) -> None:
        if self._fenced is not None:
            raise Fenced(self._fenced)

    @contextmanager
    def _fence_before_bytes(self) -> Iterator[None]:
        """What a newer holder wrote may be unreadable here; the news is then that it holds."""
        try:
            yield
        except (CorruptData, IncompatibleFormat):
            self._compare_token()
            raise

    def updates_after(self, position: Position, *, up_to: int | None = None) -> list[AppliedUpdate]:
        """See `ReadOnlyState.updates_after`. A fenced state stays fenced."""
        self._check_fenced()
        with self._fence_before_bytes():
            return super().updates_after(position, up_to=up_to)

    def transaction(self, base: Position, *, author: str) -> CatalogTransaction:
        """A transaction on ``base``: the latest version, or what another transaction makes."""
        self._check_fenced()
        return CatalogTransaction(base, author=author)

    def commit_transaction(self, transaction: CatalogTransaction) -> AppliedUpdate:
        """`commit_transactions` of one."""
        return self.commit_transactions([transaction])[0]

    def commit_transactions(
        self, transactions: Sequence[CatalogTransaction], *, companion: Companion | None = None
    ) -> list[AppliedUpdate]:
        """Append each of ``transactions`` as a version of its own, all in one step or none.

        The first has the latest version as its base, each other one what the one before it makes.
        ``companion`` writes in the same step (`UpdateLog.append`).
        They are in the log when this returns; it gives the versions that they became. Raises
        `OutOfSync` when another commit was first (validate again on the new base), `Fenced`, and
        what `UpdateLog.append` raises. After an error that leaves the outcome open, the same
        transactions may be committed again: whichever try lands, they are in the log once.
        """
        self._check_fenced()
        updates = [transaction.update(member=self.member) for transaction in transactions]
        written = [
            transaction.contents.written_by(update.changes())
            for transaction, update in zip(transactions, updates, strict=True)
        ]
        try:
            appended = self.log.append(updates[0].version, self.token, updates, companion=companion)
        except Fenced as error:
            self._fenced = error.message
            if type(error) is Fenced:
                self._compare_token()  # raises too, and says by whom
            raise
        applied = []
        for transaction, update, objects in zip(transactions, appended, written, strict=True):
            # What was validated is what every node will read from the log; only the time is new.
            stamp(objects, update.time)
            applied.append(AppliedUpdate(update, transaction.contents))
        return applied

    def if_appended(self, expected: ExpectedUpdate) -> AppliedUpdate | None:
        """What was expected, as it stands in the log; None if it does not. Raises `Fenced`."""
        self._check_fenced()
        time = self.log.time_of(expected.update)
        if time is None:
            return None
        fence = expected.contents.get("fence", FENCE.encode())
        if fence is not None:
            self._compare_fence(fence.value)
        stamp(expected.written, time)
        return AppliedUpdate(expected.update.at(time), expected.contents)

    def confirm_leadership(self) -> None:
        """Return if this state is not fenced, judged by a linearizable look at the log."""
        self._check_fenced()
        self.log.check()
        self._compare_token()

    def _compare_token(self) -> None:
        current = self.log.token()
        if current is not None and current.is_sealed:
            self._fenced = MOVED
        elif current != self.token:
            self._fenced = self._overtaken_by(current)
        self._check_fenced()

    def _overtaken_by(self, current: FenceToken | None) -> str:
        """Why this state is fenced, and by whom, as far as the log tells."""
        opening = None if current is None else opening_with(self.log, current)
        shown = "gone" if current is None else current.beside(self.token)
        return f"this node holds fence token {self.token}, the catalog's is {shown}" + (
            "" if opening is None else f", which {opening}"
        )

    def compact(self, version: int) -> bool:
        """Trim the log up to ``version``; see `UpdateLog.compact`."""
        self._check_fenced()
        return self.log.compact(version, self.token)

    def prune(self, kind: str, version: int) -> bool:
        """Remove what is older of an append-only kind; see `UpdateLog.prune`."""
        self._check_fenced()
        return self.log.prune(kind, version, self.token)


def opening_with(log: UpdateLog, token: FenceToken) -> str | None:
    """Who took ``token`` and when, as the end of a sentence; None where the log does not tell."""
    frontier = log.frontier()
    first = max(frontier.since + 1, frontier.upper - MAX_UPDATES_AT_ONCE)
    try:
        for update in reversed(log.updates(first, frontier.upper)):
            for change in update.changes():
                if change.kind == FENCES.kind and change.new is not None:
                    entry = decode(change.new, FenceEntry)
                    if (entry.deploy_generation, entry.epoch) == token.rank:
                        return f"{update.member} took at {format_timestamp(update.time)}"
    except StrandlineError:  # it cannot be read here, or now: that the fence is newer stands
        return None
    return None


def config_in(contents: Contents, name: str) -> str | None:
    """A fact of the catalog's configuration that was written when it was made."""
    entry = contents.get("config", name.encode())
    return None if entry is None else str(entry.value.value)
