"""The durable catalog state: one class, written once over any update log.

`durable_state(log)` connects and changes nothing. What it returns answers the few questions that
can be asked of a catalog that nobody has opened, and is consumed by opening it:

* `OpenableState.open` makes this process the holder of a **new epoch**: it fences every earlier
  holder. They learn it at their next commit, sync or `confirm_leadership`; nothing that they try
  becomes durable, and their handles stay fenced. It creates the catalog where there is none.
* `OpenableState.join` adopts the current token. The nodes of one deployment share it knowingly;
  they differ by their member id, and the append alone orders their commits.
* `OpenableState.open_read_only` gives a state without the means to write.

A fenced handle stays fenced. Its process may go on with another one: `joined_anew` joins the newer
epoch, unless a newer deploy generation has taken over (`Replaced`).

What must stay true: no two calls of `open` get the same epoch (the new token is appended with the
old one as its condition); a state follows the log one update at a time and applies the fence before
it decodes what comes after; the outer store (``raise_fence``) is fenced before the log, so that no
moment exists in which an old writer can still write there after the new one began.

Rejected: mutability as a flag that is looked at when writing (a read-only state simply has no such
methods), and a leadership lease in place of the fence (a paused holder would not notice).
"""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from strandline.clock import Timestamp
from strandline.durable.collections import AUDIT_EVENT
from strandline.durable.contents import Contents, restore
from strandline.durable.log import Checked, Frontier, UpdateLog
from strandline.durable.transaction import CatalogTransaction
from strandline.durable.update import (
    Appended,
    AuditEvent,
    Entry,
    Snapshot,
    Update,
)
from strandline.errors import (
    CorruptData,
    Fenced,
    IncompatibleFormat,
    NotFound,
    NotFresh,
    OutOfSync,
    VersionNotFound,
)
from strandline.fencing import FenceToken
from strandline.model.bookkeeping import FenceEntry
from strandline.wire.registry import encode

_NOTHING_HERE = "there is no catalog in this store yet; open it to create one"
FENCE = "catalog"
ENVIRONMENT = "environment"
MAX_UPDATES_AT_ONCE = 1000

RaiseFence = Callable[[FenceToken, str | None], None]
"""Told of a new token before the log is: (token, environment id or None before there is one)."""

Initialize = Callable[[CatalogTransaction], None]
"""Fills a new catalog, in the transaction that makes it."""


@dataclass(frozen=True, slots=True)
class AppliedUpdate:
    """An update and the contents that it made."""

    update: Update
    contents: Contents


class TrimmedAway(NotFresh):
    """The updates that this state needs next are gone; `ReadOnlyState.begin_again`."""


class Replaced(Fenced):
    """A newer deploy generation holds the catalog: this process has nothing to do here any more."""


class ReadOnlyState:
    """A catalog that follows its log. Not for several threads at once.

    ``base`` is where it began: the snapshot of the log, as if it were an update.
    """

    def __init__(self, log: UpdateLog) -> None:
        self._log = log
        self.begin_again()

    def begin_again(self) -> None:
        """Start from the log's snapshot, as a new state would."""
        snapshot = self._log.snapshot()
        self._contents = restore(snapshot.kinds, snapshot.times, at=snapshot.time)
        self._version = snapshot.version
        self._time = snapshot.time
        self.base = AppliedUpdate(
            Update(self._version, b"", "", "", (), self._time), self._contents
        )
        self.backlog: list[AppliedUpdate] = []

    def catch_up(self) -> None:
        """Apply all that the log has; what was applied is kept in ``backlog`` for the opener."""
        while True:
            try:
                while applied := self.sync():
                    self.backlog += applied
            except TrimmedAway:  # between the look at the snapshot and the look at the log
                self.begin_again()
            else:
                return

    def return_to(self, version: int, time: Timestamp, contents: Contents) -> None:
        """Stand where somebody who follows this state stands: `sync` goes on from there."""
        self._version, self._time, self._contents = version, time, contents

    @property
    def version(self) -> int:
        """The last version applied."""
        return self._version

    @property
    def contents(self) -> Contents:
        """Everything at `version`."""
        return self._contents

    @property
    def log(self) -> UpdateLog:
        """The log that this state follows."""
        return self._log

    def frontier(self) -> Frontier:
        """The log's frontier; linearizable."""
        return self._log.frontier()

    def check(self) -> Checked:
        """See `UpdateLog.check`."""
        return self._log.check()

    def sync(self, *, up_to: int | None = None) -> list[AppliedUpdate]:
        """Apply what the log has beyond `version`, below version ``up_to`` + 1 if given.

        Returns what was applied, in order; at most 1000 updates at once, so call again until
        nothing comes. Raises `Fenced` when the log's fence is no longer this state's, and
        `TrimmedAway`; then nothing was applied.
        """
        frontier = self._log.frontier()
        end = frontier.upper
        if frontier.since > self._version:
            raise TrimmedAway(
                f"the log was trimmed to version {frontier.since} while this node was at version "
                f"{self._version}; it begins again from the snapshot"
            )
        if up_to is not None:
            end = min(end, up_to + 1)
        end = min(end, self._version + 1 + MAX_UPDATES_AT_ONCE)
        if end <= self._version + 1:
            return []
        try:
            updates = self._log.updates(self._version + 1, end)
        except VersionNotFound as gone:  # trimmed since the look at the frontier
            raise TrimmedAway(gone.message) from gone
        applied: list[AppliedUpdate] = []
        contents = self._contents
        for update in updates:
            contents = contents.apply(update.changes(), at=update.time)
            self._look_at_fence(update, contents)
            applied.append(AppliedUpdate(update, contents))
        self.return_to(end - 1, updates[-1].time, contents)
        return applied

    def _look_at_fence(self, update: Update, contents: Contents) -> None:
        """Nothing to compare with: who only reads follows every writer."""

    def environment(self) -> str | None:
        """The id that was made when the catalog was initialized."""
        return self.config(ENVIRONMENT)

    def config(self, name: str) -> str | None:
        """A fact of the catalog's configuration."""
        found = self._contents.get("config", name.encode())
        return None if found is None else str(found.value.value)

    def dump(self) -> Snapshot:
        """All contents of the present version, as one value."""
        return snapshot_of(self._version, self._time, self._contents)


class DurableCatalogState(ReadOnlyState):
    """An opened catalog that may be written to."""

    def __init__(self, log: UpdateLog, *, token: FenceToken, member: str) -> None:
        self.token = token
        self.member = member
        self._fenced: str | None = None
        super().__init__(log)

    def begin_again(self) -> None:
        """See `ReadOnlyState.begin_again`. Raises `Fenced`."""
        with self._fence_before_bytes():
            super().begin_again()
        found = self._contents.get("fence", FENCE.encode())
        if found is not None:
            self._compare_fence(found.value)

    @property
    def epoch(self) -> int:
        """The epoch of the token that this state writes with."""
        return self.token.epoch

    def _look_at_fence(self, update: Update, contents: Contents) -> None:
        for entry in update.entries:
            for change in entry.changes:
                if change.kind == "fence":
                    stored = contents.get("fence", change.key)
                    if stored is not None:
                        self._compare_fence(stored.value)

    def _compare_fence(self, found: FenceEntry) -> None:
        token = FenceToken(found.deploy_generation, found.epoch)
        if token > self.token:
            self._fenced = f"this node holds fence token {self.token}, the catalog's is {token}"
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

    def sync(self, *, up_to: int | None = None) -> list[AppliedUpdate]:
        """See `ReadOnlyState.sync`. A fenced state stays fenced."""
        self._check_fenced()
        with self._fence_before_bytes():
            return super().sync(up_to=up_to)

    def transaction(self) -> CatalogTransaction:
        """A transaction on the last applied version."""
        self._check_fenced()
        return CatalogTransaction(self._version, self._contents)

    def commit_transaction(self, transaction: CatalogTransaction, *, author: str) -> Update:
        """Append what ``transaction`` did as the version after its base.

        It is in the log when this returns, and is applied by the next `sync`. Raises `OutOfSync`
        when another commit was first (validate again on the new base), `Fenced`, `UnknownOutcome`.
        """
        updates = self.prepare(
            [transaction.entries], base=transaction.base_version, authors=[author]
        )
        return self.append(updates)[0]

    def prepare(
        self, groups: Sequence[Sequence[Entry]], *, base: int, authors: Sequence[str]
    ) -> tuple[Update, ...]:
        """The updates that make each group of entries a version of its own, behind ``base``."""
        return tuple(
            new_update(base + 1 + n, entries, author=author, member=self.member)
            for n, (entries, author) in enumerate(zip(groups, authors, strict=True))
        )

    def append(self, updates: Sequence[Update]) -> tuple[Update, ...]:
        """Append what `prepare` made, all in one step; see `UpdateLog.append` for the errors.

        After an error that leaves the outcome open the same updates may be appended again.
        """
        self._check_fenced()
        try:
            return self._log.append(updates[0].version, self.token, updates)
        except Fenced as error:
            self._fenced = error.message
            raise

    def confirm_leadership(self) -> None:
        """Return if this state is not fenced, judged by a linearizable look at the log."""
        self._check_fenced()
        self._log.check()
        self._compare_token()

    def _compare_token(self) -> None:
        current = self._log.token()
        if current != self.token:
            self._fenced = f"this node holds fence token {self.token}, the catalog's is {current}"
            raise Fenced(self._fenced)

    def compact_at(self, version: int, time: Timestamp, contents: Contents) -> bool:
        """Trim the log to ``version``, whose time and contents these are; see the log's method."""
        self._check_fenced()
        return self._log.compact(snapshot_of(version, time, contents), self.token)


def snapshot_of(version: int, time: Timestamp, contents: Contents) -> Snapshot:
    """The snapshot of ``contents``, those of ``version``, which the log made at ``time``."""
    return Snapshot(version, time, contents.dump(), contents.times())


def new_update(version: int, entries: Sequence[Entry], *, author: str, member: str) -> Update:
    """An update under a new random id, with the audit event of what is not silent in it."""
    update = Update(version, secrets.token_bytes(16), author, member, tuple(entries))
    if update.silent:
        return update
    actions = tuple((entry.verb, entry.arguments) for entry in entries if not entry.silent)
    event = AuditEvent(version, update.id, author, member, actions)
    return replace(update, appended=(Appended(AUDIT_EVENT, encode(event)),))


class OpenableState:
    """A catalog that this process has connected to and not opened."""

    def __init__(self, log: UpdateLog) -> None:
        self._log = log

    def is_initialized(self) -> bool:
        """Whether there is a catalog in the log."""
        if self._log.token() is None:
            return False
        reader = ReadOnlyState(self._log)
        reader.catch_up()
        return reader.environment() is not None

    def epoch(self) -> int | None:
        """The present epoch; None before the first open."""
        token = self._log.token()
        return None if token is None else token.epoch

    def deploy_generation(self) -> int | None:
        """The present deploy generation; None before the first open."""
        token = self._log.token()
        return None if token is None else token.deploy_generation

    def open(
        self,
        *,
        member: str,
        initialize: Initialize,
        raise_fence: RaiseFence,
        deploy_generation: int = 0,
        author: str = "system",
    ) -> DurableCatalogState:
        """Take a new epoch, fencing every earlier holder; create the catalog if there is none.

        Raises `Fenced` when a newer deploy generation holds the catalog.
        """
        while True:
            try:
                return self._open(member, initialize, raise_fence, deploy_generation, author)
            except OutOfSync:
                continue  # somebody else opened or committed meanwhile; take the epoch after

    def create(
        self,
        *,
        member: str,
        initialize: Initialize,
        raise_fence: RaiseFence,
        deploy_generation: int = 0,
        author: str = "system",
    ) -> DurableCatalogState:
        """Create the catalog and hold its first epoch, fencing nobody.

        Raises `OutOfSync` when there is a catalog, also if somebody else made it meanwhile: join.
        """
        return self._open(member, initialize, raise_fence, deploy_generation, author, first=True)

    def _open(
        self,
        member: str,
        initialize: Initialize,
        raise_fence: RaiseFence,
        deploy_generation: int,
        author: str,
        *,
        first: bool = False,
    ) -> DurableCatalogState:
        """Append the next epoch, in one step with the first contents where there are none."""
        reader = ReadOnlyState(self._log)
        reader.catch_up()
        current = self._log.token()
        if first and current is not None:
            raise OutOfSync("there is a catalog in this store already; join it")
        if current is None and reader.version:
            raise CorruptData(
                f"the log has versions up to {reader.version} and no fence token, which every "
                "version is written with; restore the store from a backup"
            )
        if current is not None and current.deploy_generation > deploy_generation:
            raise Fenced(
                f"deploy generation {deploy_generation} asked for, "
                f"{current.deploy_generation} holds the catalog; start the newer program"
            )
        token = FenceToken(deploy_generation, (current.epoch if current else 0) + 1)
        environment = reader.environment()
        if environment is not None:
            raise_fence(token, environment)
        fencing = CatalogTransaction(reader.version, reader.contents)
        with fencing.entry("fence", {"epoch": token.epoch}):
            fencing.put(FenceEntry(FENCE, token.deploy_generation, token.epoch))
        filling = CatalogTransaction(reader.version + 1, fencing.contents)
        if environment is None:
            initialize(filling)
        updates = [
            new_update(one.base_version + 1, one.entries, author=author, member=member)
            for one in (fencing, filling)
            if one.entries
        ]
        try:
            self._log.append(reader.version + 1, current, updates, new_token=token)
        except Fenced as lost:
            raise OutOfSync("somebody else has opened the catalog meanwhile") from lost
        state = DurableCatalogState(self._log, token=token, member=member)
        state.catch_up()
        if environment is None:
            raise_fence(token, state.environment())
        return state

    def join(self, *, member: str) -> DurableCatalogState:
        """Share the current epoch. `NotFound` when there is no catalog to join."""
        token = self._log.token()
        if token is None:
            raise NotFound(_NOTHING_HERE)
        state = DurableCatalogState(self._log, token=token, member=member)
        state.catch_up()
        if state.version == 0:
            raise CorruptData(
                "the log has a fence token and not the first versions, which were written with it; "
                "restore the store from a backup"
            )
        if state.environment() is None:
            raise NotFound(_NOTHING_HERE)
        return state

    def open_read_only(self) -> ReadOnlyState:
        """A state that follows the catalog and cannot write; `NotFound` if there is none."""
        state = ReadOnlyState(self._log)
        state.catch_up()
        if state.environment() is None:
            raise NotFound(_NOTHING_HERE)
        return state


def joined_anew(fenced: DurableCatalogState) -> DurableCatalogState:
    """A state that shares the epoch by which ``fenced`` was fenced, as the same member.

    Raises `Replaced` where the holder is of a newer deploy generation, and what `join` raises.
    """
    current = fenced.log.token()
    if current is not None and current.deploy_generation > fenced.token.deploy_generation:
        raise Replaced(
            f"generation {current.deploy_generation} of this deployment has taken the store over"
            f" from generation {fenced.token.deploy_generation}, which this node is of; it stops"
        )
    state = durable_state(fenced.log).join(member=fenced.member)
    if state.token.deploy_generation > fenced.token.deploy_generation:
        return joined_anew(fenced)  # it came between the two looks
    return state


def durable_state(log: UpdateLog) -> OpenableState:
    """Connect to the catalog in ``log``; nothing is read or changed yet."""
    return OpenableState(log)


def new_environment_id() -> str:
    """A name for one catalog and its object store that no other has."""
    return str(uuid.uuid4())
