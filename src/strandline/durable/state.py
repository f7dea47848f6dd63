"""The durable catalog state: one class, written once over any update log.

`strandline.durable.opening.durable_state` connects to a catalog and changes nothing. It returns an
`OpenableState`, which answers the few questions that need no open catalog, and opens it:

* `OpenableState.open` takes a **new epoch** for this process and fences every earlier holder. Those
  learn it at their next commit, sync or `confirm_leadership`. Nothing that they attempt becomes
  durable, and their handles stay fenced. If there is no catalog, it is created.
* `OpenableState.join` adopts the current token. The nodes of one deployment share it on purpose.
  They differ in their member id, and only the append orders their commits.
* `OpenableState.open_read_only` returns a state that has no methods to write.
* `OpenableState.check_open` tries in memory what `open` would do.
* `OpenableState.edit` opens the catalog and repairs it in the same step.

A fenced handle stays fenced. Its process may continue with another handle: `joined_anew` joins the
newer epoch, unless a newer deploy generation has taken over (`Superseded`). A node that stops calls
`DurableCatalogState.expire`, so that a thread that reaches its commit later changes nothing. There
is nothing else to release: a state holds no lease and no capability that others wait for.

No state has a position that moves. The caller passes the version that it has reached to
`ReadOnlyState.updates_after`, and a transaction names its base. So how far the log was applied is
known in one place only: in the caller that keeps the versions.

What must stay true: no two calls of `open` get the same epoch (the new token is appended only if
the old one is still there); a state applies the log one update at a time, and checks the fence of
an update before it applies the next one; the outer store (``raise_fence``) is fenced before the
log, so that an old writer can never write there after the new one began.

Rejected: a read-only flag that writes check (a read-only state simply has no such methods), and a
leadership lease instead of the fence (a paused holder would not notice that it expired).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from strandline.clock import MIN_TIMESTAMP, Timestamp, format_timestamp
from strandline.durable.collections import FENCE as FENCES
from strandline.durable.contents import Contents, restore, stamp
from strandline.durable.log import (
    FIRST_UPDATES,
    MOVED,
    READ_AT_ONCE,
    Companion,
    Superseded,
    UpdateLog,
    lost_token,
    updates_at_once,
)
from strandline.durable.transaction import CatalogTransaction, Position
from strandline.durable.update import Update
from strandline.errors import (
    CorruptData,
    Fenced,
    IncompatibleFormat,
    NotFresh,
    Stopping,
    StrandlineError,
    VersionNotFound,
)
from strandline.fencing import FenceToken
from strandline.model.descriptors import FenceEntry
from strandline.wire.registry import decode
from strandline.work import keeping_garbage

FENCE = "catalog"
ENVIRONMENT = "environment"


@dataclass(frozen=True, slots=True)
class AppliedUpdate:
    """An update, and the contents of the catalog after it."""

    update: Update
    contents: Contents

    @property
    def version(self) -> int:
        """The version that the update made."""
        return self.update.version

    @property
    def time(self) -> Timestamp:
        """The time that the log assigned to the version."""
        return self.update.time


class ExpectedUpdate:
    """An update that may be appended after the contents ``base``, applied in advance.

    So applying it takes no time once it is in the log (`DurableCatalogState.if_appended`).
    """

    def __init__(self, base: Contents, update: Update, contents: Contents) -> None:
        self.base = base
        self.update = update
        self.contents = contents
        self.written = contents.written_by(update.changes())


class TrimmedAway(NotFresh):
    """The updates after a version were trimmed; start again from `ReadOnlyState.start`."""


class ReadOnlyState:
    """An opened catalog that can be read from its log. Not safe for use by several threads.

    ``recovered`` is what opening the catalog read: the start of the log, then each update, in
    order. With ``latest_only``, earlier versions are not kept, and its last element is the latest
    version. ``environment`` is the id that was created with the catalog. ``epoch`` and
    ``deploy_generation`` are those at the time of opening, ``boot_timestamp`` the time when that
    epoch began. Before the catalog is initialized, both numbers are 0 and ``boot_timestamp`` is
    `MIN_TIMESTAMP`.
    """

    def __init__(self, log: UpdateLog, *, latest_only: bool = False) -> None:
        self.log = log
        self._updates_at_once = FIRST_UPDATES
        self.recovered = self._recover(latest_only=latest_only)
        latest = self.recovered[-1].contents
        self.environment = config_in(latest, ENVIRONMENT)
        fence = latest.get("fence", FENCE.encode())
        self.epoch = 0 if fence is None else int(fence.value.epoch)
        self.deploy_generation = 0 if fence is None else int(fence.value.deploy_generation)
        self.boot_timestamp = MIN_TIMESTAMP if fence is None else fence.updated

    def _recover(self, *, latest_only: bool) -> list[AppliedUpdate]:
        while True:
            recovered = [self.start()]
            try:
                with keeping_garbage:  # each collection would visit all that was read before
                    while applied := self.updates_after(recovered[-1]):
                        if latest_only:
                            recovered.clear()
                        recovered += applied
            except TrimmedAway:  # between the read of the snapshot and that of the log
                continue
            return recovered

    def take_recovered(self) -> list[AppliedUpdate]:
        """Return ``recovered`` and drop it from this state, to free the memory."""
        recovered, self.recovered = self.recovered, []
        return recovered

    def start(self) -> AppliedUpdate:
        """The start of the log: its snapshot, as if it were an update."""
        snapshot = self.log.snapshot()
        update = Update(snapshot.version, b"", "", "", (), time=snapshot.time)
        return AppliedUpdate(update, restore(snapshot))

    def updates_after(self, position: Position, *, up_to: int | None = None) -> list[AppliedUpdate]:
        """The updates after ``position``, up to version ``up_to`` if given, applied to it.

        Returns only some of them, so that a long log does not fill the memory; call it again until
        it returns none. Raises `TrimmedAway`.
        """
        frontier = self.log.frontier()
        version, contents = position.version, position.contents
        end = frontier.upper
        if frontier.since > version:
            raise TrimmedAway(
                f"the history was trimmed below version {frontier.since} while this node was at "
                f"version {version}; it goes on from version {frontier.since}"
            )
        if up_to is not None:
            end = min(end, up_to + 1)
        end = min(end, version + 1 + self._updates_at_once)
        if end <= version + 1:
            return []
        try:
            updates = self.log.updates(version + 1, end)
        except VersionNotFound as error:  # trimmed since the frontier was read
            raise TrimmedAway(error.message) from error
        self._updates_at_once = updates_at_once(updates)
        applied: list[AppliedUpdate] = []
        for update in updates:
            contents = contents.apply(update.changes(), at=update.time)
            self._compare_fence_of(update, contents)
            applied.append(AppliedUpdate(update, contents))
        return applied

    def _compare_fence_of(self, update: Update, contents: Contents) -> None:
        """Does nothing: a reader has no token, it follows every writer."""


class DurableCatalogState(ReadOnlyState):
    """An opened catalog that may be written to. Several threads may commit."""

    def __init__(self, log: UpdateLog, *, token: FenceToken, member: str) -> None:
        self.token = token
        self.member = member
        self._fenced: StrandlineError | None = None
        self._expired = False
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
        if token.is_sealed:  # the log's end; or old history, if the catalog was moved here
            self._compare_token()
        elif token > self.token:
            self._fenced = Fenced(self._overtaken_by(token))
            self._check_usable()

    def _check_usable(self) -> None:
        if self._fenced is not None:  # a new error, without the frames of the first caller
            raise type(self._fenced)(self._fenced.message)
        if self._expired:
            raise Stopping("this node is stopping and no longer uses the log; nothing was changed")

    def refuse(self, error: StrandlineError) -> None:
        """Raise a copy of ``error`` from all later commits, syncs and trims."""
        self._fenced = error

    def expire(self) -> None:
        """Give the state up: later commits, syncs and trims raise `Stopping`. Idempotent."""
        self._expired = True

    @contextmanager
    def _fence_before_bytes(self) -> Iterator[None]:
        """Raise `Fenced` in place of a decoding error if a newer holder fenced this state.

        What the newer holder wrote may be unreadable for this release.
        """
        try:
            yield
        except (CorruptData, IncompatibleFormat):
            self._compare_token()
            raise

    @contextmanager
    def _naming_the_holder(self) -> Iterator[None]:
        """Keep this state fenced if the log refuses its token, and name the newer holder."""
        try:
            yield
        except Fenced as error:
            self._fenced = type(error)(error.message)
            if type(error) is Fenced:
                self._compare_token()  # also raises, with the newer holder in the message
            token = self.log.token()
            if token is not None and token.is_sealed:
                self._fenced = Superseded(moved(self.log, token))
                raise Superseded(self._fenced.message) from error
            raise

    def updates_after(self, position: Position, *, up_to: int | None = None) -> list[AppliedUpdate]:
        """See `ReadOnlyState.updates_after`.

        Raises `Fenced` if the log's fence is no longer this state's. A fenced state stays fenced.
        """
        self._check_usable()
        with self._fence_before_bytes():
            return super().updates_after(position, up_to=up_to)

    def transaction(self, base: Position, *, author: str) -> CatalogTransaction:
        """A transaction on ``base``: the latest version, or the result of another transaction."""
        self._check_usable()
        return CatalogTransaction(base, author=author)

    def commit_transaction(self, transaction: CatalogTransaction) -> AppliedUpdate:
        """`commit_transactions` with one transaction."""
        return self.commit_transactions([transaction])[0]

    def commit_transactions(
        self, transactions: Sequence[CatalogTransaction], *, companion: Companion | None = None
    ) -> list[AppliedUpdate]:
        """Append each of ``transactions`` as its own version, all of them in one step or none.

        The base of the first is the latest version, the base of each other one is the transaction
        before it. ``companion`` writes in the same step (`UpdateLog.append`). Returns the versions
        that they became; they are in the log by then. After an error that leaves the outcome open,
        the caller may commit the same transactions again: whichever attempt succeeds, they are in
        the log once.

        Raises `OutOfSync` if another commit was first (the caller validates again on the new base),
        `Fenced`, and what `UpdateLog.append` raises.
        """
        self._check_usable()
        updates = [transaction.update(member=self.member) for transaction in transactions]
        written = [
            transaction.contents.written_by(update.changes())
            for transaction, update in zip(transactions, updates, strict=True)
        ]
        with self._naming_the_holder():
            appended = self.log.append(updates[0].version, self.token, updates, companion=companion)
        if companion is not None:
            companion.committed()
        applied = []
        for transaction, update, objects in zip(transactions, appended, written, strict=True):
            # Every node will read the validated contents from the log; only the time is new.
            stamp(objects, update.time)
            applied.append(AppliedUpdate(update, transaction.contents))
        return applied

    def if_appended(self, expected: ExpectedUpdate) -> AppliedUpdate | None:
        """The expected update as the log has it, or None if the log does not have it.

        Raises `Fenced`.
        """
        self._check_usable()
        time = self.log.time_of(expected.update)
        if time is None:
            return None
        stamp(expected.written, time)
        return AppliedUpdate(expected.update.at(time), expected.contents)

    def confirm_leadership(self) -> None:
        """Return if this state is not fenced, after a linearizable read of the log.

        Raises `Fenced` otherwise.
        """
        self._check_usable()
        self.log.check()
        self._compare_token()

    def _compare_token(self) -> None:
        current = self.log.token()
        if current is not None and current.is_sealed:
            self._fenced = Superseded(moved(self.log, current))
        elif current != self.token:
            self._fenced = Fenced(self._overtaken_by(current))
        self._check_usable()

    def _overtaken_by(self, current: FenceToken | None) -> str:
        """A text that says why this state is fenced and, if the log has it, by which member."""
        if current is None:
            return lost_token(self.token)
        shown = token_with_holder(self.log, current, self.token)
        return f"this node holds fence token {self.token}, but the catalog's token is {shown}"

    def compact(self, version: int) -> bool:
        """Trim the log up to ``version``; see `UpdateLog.compact`."""
        self._check_usable()
        with self._naming_the_holder():
            return self.log.compact(version, self.token)

    def prune(self, kind: str, version: int) -> bool:
        """Remove old objects of an append-only kind; see `UpdateLog.prune`."""
        self._check_usable()
        with self._naming_the_holder():
            return self.log.prune(kind, version, self.token)


def token_with_holder(log: UpdateLog, token: FenceToken, named: FenceToken | None = None) -> str:
    """``token`` as text, with the member that took it and the time, as far as the log has them.

    ``named`` is a token that the message has already named (`FenceToken.beside`).
    """
    opening = opening_with(log, token)
    return token.beside(named) + ("" if opening is None else f", which {opening}")


def moved(log: UpdateLog, token: FenceToken) -> str:
    """A text that says that the catalog was moved from ``log``, which was sealed with ``token``.

    It names the member that sealed the log and the time, as far as the log has them.
    """
    opening = opening_with(log, token)
    return (
        MOVED if opening is None else f"{MOVED}. The log was sealed with the token that {opening}"
    )


def refuse_moved(log: UpdateLog, token: FenceToken | None) -> None:
    """Raise `Superseded` if ``token``, that of ``log``, says that the catalog was moved from it."""
    if token is not None and token.is_sealed:
        raise Superseded(moved(log, token))


def opening_with(log: UpdateLog, token: FenceToken) -> str | None:
    """A clause that says which member took ``token`` and when, or None if it is not in the log.

    Reads the log backwards up to that opening. Updates that this release cannot read are skipped,
    because the newer holder may be of a newer release.
    """
    try:
        for update in _latest_first(log):
            for change in update.changes():
                if change.kind == FENCES.kind and change.new is not None:
                    entry = decode(change.new, FenceEntry)
                    if (entry.deploy_generation, entry.epoch) == token.rank:
                        return f"{update.member} took at {format_timestamp(update.time)}"
        return _trimmed_opening(log, token)
    except StrandlineError:  # unreadable here or now; the newer fence counts all the same
        return None


def _latest_first(log: UpdateLog) -> Iterator[Update]:
    """The updates of ``log`` that can be read, the latest first.

    Ends early if it finds `READ_AT_ONCE` updates in a row that cannot be read, because each of
    these needs a read of its own.
    """
    frontier = log.frontier()
    end = frontier.upper
    while (first := frontier.since + 1) < end:
        start = max(first, end - READ_AT_ONCE)
        readable = _readable(log, start, end)
        if not readable:
            return
        yield from reversed(readable)
        end = start


def _readable(log: UpdateLog, start: int, end: int) -> tuple[Update, ...]:
    """The updates of versions ``start`` to ``end`` − 1 without those that cannot be decoded."""
    try:
        return log.updates(start, end)
    except (CorruptData, IncompatibleFormat):
        if end - start == 1:
            return ()
        middle = (start + end) // 2
        return _readable(log, start, middle) + _readable(log, middle, end)


def _trimmed_opening(log: UpdateLog, token: FenceToken) -> str | None:
    """Like `opening_with`, from the snapshot of a trimmed log, which has only the time."""
    snapshot = log.first_snapshot()
    for (kind, records), times in zip(snapshot.kinds, snapshot.times, strict=False):
        if kind == FENCES.kind:
            for record, time in zip(records, times, strict=True):
                entry = decode(record, FenceEntry)
                if (entry.deploy_generation, entry.epoch) == token.rank:
                    return (
                        f"was taken at {format_timestamp(time)} by a member that the trimmed log "
                        "no longer names"
                    )
    return None


def config_in(contents: Contents, name: str) -> str | None:
    """A value of the catalog's configuration, or None if ``name`` is not in it."""
    entry = contents.get("config", name.encode())
    return None if entry is None else str(entry.value.value)
