"""Opening the durable catalog state; see `strandline.durable.state` for the ways to do it.

An update that takes a new epoch may be appended together with others: the first contents of a new
catalog, or an edit. Either all of them are in the log, or nothing changes, including the epoch.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable

from strandline.durable.contents import Contents
from strandline.durable.log import Superseded, UpdateLog
from strandline.durable.migrations import missing_steps, refuse_newer, refuse_other
from strandline.durable.state import (
    FENCE,
    DurableCatalogState,
    ReadOnlyState,
    refuse_moved,
    token_with_holder,
)
from strandline.durable.transaction import CatalogTransaction, Position
from strandline.errors import CorruptData, Fenced, NotFound, OutOfSync
from strandline.fencing import FenceToken
from strandline.model.descriptors import FenceEntry
from strandline.model.privileges import SYSTEM_NAME

_NOTHING_HERE = (
    "there is no catalog here: the store is new, its address names another place, or the catalog "
    "was lost"
)

RaiseFence = Callable[[FenceToken, str | None], None]
"""Called with a new token before the log gets it: (token, environment id).

The id is None before the catalog exists.
"""

Fill = Callable[[CatalogTransaction], None]
"""Fills a new catalog in the transaction that creates it, or edits an existing catalog."""


class OpenableState:
    """A catalog that this process has connected to but not opened."""

    def __init__(self, log: UpdateLog) -> None:
        self._log = log

    def is_initialized(self) -> bool:
        """Whether there is a catalog in the log."""
        if self._log.token() is None:
            return False
        return ReadOnlyState(self._log, latest_only=True).environment is not None

    def epoch(self) -> int | None:
        """The current epoch, or None before the first open."""
        token = self._log.token()
        return None if token is None else token.epoch

    def deploy_generation(self) -> int | None:
        """The current deploy generation, or None before the first open."""
        token = self._log.token()
        return None if token is None else token.deploy_generation

    def open(
        self,
        *,
        member: str,
        initialize: Fill,
        raise_fence: RaiseFence,
        deploy_generation: int = 0,
    ) -> DurableCatalogState:
        """Take a new epoch, which fences every earlier holder. Create the catalog if there is none.

        A catalog of an older release is migrated (`strandline.durable.migrations`). Raises `Fenced`
        if a newer deploy generation holds the catalog, and `IncompatibleFormat` if a newer release
        has migrated it.
        """
        while True:
            latest = ReadOnlyState(self._log, latest_only=True)
            fill = self._initializing(initialize) if latest.environment is None else None
            refuse_newer(latest.recovered[-1].contents)
            try:
                state = self._take_over(
                    latest, fill, member, raise_fence, deploy_generation=deploy_generation
                )
                steps = [*map(state.commit_transaction, missing_steps(state.recovered[-1]))]
                if not steps:
                    return state
                return DurableCatalogState(self._log, token=state.token, member=member)
            except OutOfSync:
                continue  # another process opened or committed; take the epoch after its own

    def create(
        self,
        *,
        member: str,
        initialize: Fill,
        raise_fence: RaiseFence,
        deploy_generation: int = 0,
    ) -> DurableCatalogState:
        """Create the catalog and hold its first epoch, without fencing another holder.

        Raises `OutOfSync` if there is a catalog, also if another process created it at the same
        time; join that one.
        """
        latest = ReadOnlyState(self._log, latest_only=True)
        if self._log.token() is not None:
            raise OutOfSync("there is a catalog in this store already; join it")
        fill = self._initializing(initialize)
        return self._take_over(
            latest, fill, member, raise_fence, deploy_generation=deploy_generation
        )

    def _initializing(self, initialize: Fill) -> Fill:
        """``initialize``, with the environment id that the log requires set on the transaction."""

        def fill(transaction: CatalogTransaction) -> None:
            transaction.environment = self._log.environment
            initialize(transaction)

        return fill

    def edit(
        self, change: Fill, *, member: str, raise_fence: RaiseFence, author: str
    ) -> DurableCatalogState | None:
        """Take a new epoch and apply ``change`` in one step. Returns None if it changes nothing.

        For repairs: every holder is fenced, so that no node continues with what it had in memory.
        If ``change`` raises, the catalog and its epoch stay as they are. Raises `NotFound` if there
        is no catalog.
        """
        while True:
            latest = self.open_read_only(latest_only=True)
            trial = CatalogTransaction(latest.recovered[-1], author=author)
            change(trial)
            if not trial.entries:
                return None
            try:
                return self._take_over(latest, change, member, raise_fence, author=author)
            except OutOfSync:
                continue  # another process opened or committed; edit the newer contents

    def check_open(self) -> Contents:
        """The contents that the catalog would have after `open`, which is tried in memory.

        Raises `NotFound` if there is no catalog, and what `open` raises.
        """
        position: Position = self._read(latest_only=False).recovered[-1]
        refuse_newer(position.contents)
        self._holder(position)
        for step in missing_steps(position):
            self._log.check_sizes([step.update(member="")])
            position = step
        return position.contents

    def _take_over(
        self,
        latest: ReadOnlyState,
        fill: Fill | None,
        member: str,
        raise_fence: RaiseFence,
        *,
        author: str = SYSTEM_NAME,
        deploy_generation: int | None = None,
    ) -> DurableCatalogState:
        """Append the next epoch after ``latest``, together with what ``fill`` writes.

        ``deploy_generation`` is the current one by default.
        """
        position, environment = latest.recovered[-1], latest.environment
        current = self._holder(position)
        holder = FenceToken(0, 0) if current is None else current
        if deploy_generation is None:
            deploy_generation = holder.deploy_generation
        if holder.deploy_generation > deploy_generation:
            raise Fenced(
                f"this node has deploy generation {deploy_generation}, but the catalog's token is "
                f"{token_with_holder(self._log, holder)}; set deploy_generation to "
                f"{holder.deploy_generation} or more, or leave it out"
            )
        token = holder.next(deploy_generation)
        fencing = fencing_transaction(position, token, author=author)
        filling = CatalogTransaction(fencing, author=author)
        if fill is not None:
            fill(filling)
        updates = [
            transaction.update(member=member)
            for transaction in (fencing, filling)
            if transaction.entries
        ]
        self._log.check_sizes(updates)
        if environment is not None:
            raise_fence(token, environment)
        try:
            self._log.append(fencing.version, current, updates, new_token=token)
        except Fenced as lost:
            raise OutOfSync(
                "another process has opened the catalog in the meantime; open it again"
            ) from lost
        state = DurableCatalogState(self._log, token=token, member=member)
        if environment is None:
            raise_fence(token, state.environment)
        return state

    def _holder(self, position: Position) -> FenceToken | None:
        """The log's token; ``position`` is its last version. Raises `CorruptData`, `Superseded`."""
        current = self._log.token()
        if current is None and position.version:
            raise CorruptData(
                f"the log has versions up to {position.version} but no fence token, although "
                "every version is written with one; restore the store from a backup"
            )
        refuse_moved(self._log, current)
        return current

    def join(self, *, member: str) -> DurableCatalogState:
        """Share the current epoch.

        Raises `NotFound` if there is no catalog, and `NeedsMigration` or `IncompatibleFormat`
        unless its format is this program's.
        """
        token = self._log.token()
        if token is None:
            raise NotFound(_NOTHING_HERE)
        refuse_moved(self._log, token)
        state = DurableCatalogState(self._log, token=token, member=member)
        if state.recovered[-1].version == 0:
            raise CorruptData(
                "the log has a fence token but not the first versions, which were written with "
                "it; restore the store from a backup"
            )
        if state.environment is None:
            raise NotFound(_NOTHING_HERE)
        refuse_other(state.recovered[-1].contents)
        return state

    def open_read_only(self, *, latest_only: bool = False) -> ReadOnlyState:
        """A state that follows the catalog and cannot write; see `ReadOnlyState`.

        Raises `NotFound` if there is no catalog, and `NeedsMigration` or `IncompatibleFormat`
        unless its format is this program's.
        """
        state = self._read(latest_only=latest_only)
        refuse_other(state.recovered[-1].contents)
        return state

    def _read(self, *, latest_only: bool) -> ReadOnlyState:
        state = ReadOnlyState(self._log, latest_only=latest_only)
        if state.environment is None:
            raise NotFound(_NOTHING_HERE)
        return state


def joined_anew(fenced: DurableCatalogState) -> DurableCatalogState:
    """A state of the same member that shares the epoch by which ``fenced`` was fenced.

    Raises `Superseded` if the holder has a newer deploy generation, and what `join` raises.
    """
    current = fenced.log.token()
    refuse_moved(fenced.log, current)
    if current is not None and current.deploy_generation > fenced.token.deploy_generation:
        raise Superseded(
            f"generation {current.deploy_generation} of this deployment has taken the store over "
            f"from generation {fenced.token.deploy_generation}, which this node belongs to. The "
            f"catalog's token is {token_with_holder(fenced.log, current)}; this node stops"
        )
    state = durable_state(fenced.log).join(member=fenced.member)
    if state.token.deploy_generation > fenced.token.deploy_generation:
        return joined_anew(fenced)  # it took over after `current` was read
    return state


def fencing_transaction(
    position: Position, token: FenceToken, *, author: str
) -> CatalogTransaction:
    """A transaction that records in the catalog that ``token`` holds it."""
    fencing = CatalogTransaction(position, author=author)
    with fencing.entry("fence", {"epoch": token.epoch}):
        fencing.put(FenceEntry(FENCE, token.deploy_generation, token.epoch))
    return fencing


def durable_state(log: UpdateLog) -> OpenableState:
    """Connect to the catalog in ``log``. Nothing is read or changed yet."""
    return OpenableState(log)


def new_environment_id() -> str:
    """A new unique id for one catalog and its object store."""
    return str(uuid.uuid4())
