"""Joining a store: how a process becomes a member of the deployment that holds it.

The two halves of a store (catalog and object store) have the same environment id and fence token. A
process joins only if they agree. Different environment ids mean that two stores were mixed. A
catalog that ends before a version that the object store knows means that it was restored from an
older backup than the object store. Both are refused with an error that says which half is which.

A process that finds no catalog creates it. If several processes try at once, one creates the
catalog and the others join it.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
from collections.abc import Callable

from sqlalchemy import Connection

from strandline.catalog import initial_catalog
from strandline.clock import HybridClock
from strandline.durable import (
    CatalogTransaction,
    DurableCatalogState,
    OpenableState,
    ReadOnlyState,
    Superseded,
    UpdateLog,
    durable_state,
    joined_anew,
)
from strandline.durable.migrations import NeedsMigration
from strandline.durable.opening import RaiseFence
from strandline.durable.state import token_with_holder
from strandline.errors import Conflict, Fenced, NotFound, OutOfSync, WrongEnvironment
from strandline.fencing import FenceToken
from strandline.sql import Database, FenceRow, FenceState, check_time

logger = logging.getLogger(__name__)

ATTEMPTS = 20

RequireLog = Callable[[Connection], None]
"""Raises if the store remembers another log than the one that this process has open."""


def accept_log(_: Connection) -> None:
    """Accept the log, for a store that cannot be new."""


def new_member_id() -> str:
    """Return a unique name for this process: host, process id, and a random part."""
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"


def join_or_create(
    log: UpdateLog,
    database: Database,
    clock: HybridClock,
    *,
    member: str,
    delay_ms: int,
    skew_ms: int,
    default_location: str,
    deploy_generation: int | None = None,
    require_log: RequireLog = accept_log,
) -> DurableCatalogState:
    """Join the catalog in ``log``, or create it. Raises `WrongEnvironment` or `Fenced`.

    With a ``deploy_generation`` above that of the catalog, this process takes the catalog over from
    its nodes. With one below it, raises `Superseded`. ``require_log`` raises if the store remembers
    another log than ``log``. The transaction that writes a fence calls it, so of
    two catalogs that are created at once in different logs, only the remembered one gets a fence.
    """
    raise_fence = raises_fence_of(database, clock, require_log)
    initialize = initial_catalog(
        delay_ms=delay_ms, skew_ms=skew_ms, default_location=default_location
    )
    refused: Exception | None = None
    for _ in range(ATTEMPTS):
        openable = durable_state(log)
        try:
            state = _joined(openable, database, member, deploy_generation, require_log)
            if state is not None:
                return state
            refuse_older_catalog(FenceRow.stored(database), log)
            return openable.open(
                member=member,
                initialize=initialize,
                raise_fence=raise_fence,
                deploy_generation=openable.deploy_generation() or 0
                if deploy_generation is None
                else deploy_generation,
            )
        except (WrongEnvironment, Superseded):
            raise
        except Fenced as error:
            refused = error  # a newer epoch began after the token and before the log was read
            continue
        except NotFound:
            pass
        with database.read() as connection:
            require_log(connection)
            fence = FenceRow.read(connection)
        refuse_older_catalog(fence, log)  # a lost catalog is not created again
        try:
            created = openable.create(
                member=member,
                initialize=initialize,
                raise_fence=raise_fence,
                deploy_generation=deploy_generation or 0,
            )
            logger.info("there was no store yet: created an empty one")
            return created
        except (OutOfSync, Fenced) as error:
            refused = error  # another process created it meanwhile: join it
    raise Fenced(
        f"joining this store was refused {ATTEMPTS} times, most recently because {refused}"
    ) from refused


def _joined(
    openable: OpenableState,
    database: Database,
    member: str,
    deploy_generation: int | None,
    require_log: RequireLog,
) -> DurableCatalogState | None:
    """Join the present epoch; return the state, or None if a new epoch is needed.

    A new epoch is needed if an older release wrote the catalog, if an opener raised only one of the
    two fences, or if nodes of a lower deploy generation hold the catalog. Raises `Superseded` if
    nodes of a higher generation hold it.
    """
    try:
        state = openable.join(member=member)
    except NeedsMigration:
        return None
    present = state.token.deploy_generation
    if deploy_generation is not None and present != deploy_generation:
        if present < deploy_generation:
            return None
        raise Superseded(
            f"generation {present} of this deployment owns the store, and this node is "
            f"of generation {deploy_generation}. The catalog's token is "
            f"{token_with_holder(state.log, state.token)}; set deploy_generation to "
            f"{present} or more, or leave it out to join these nodes"
        )
    fence = FenceRow.stored(database)
    if half_raised(fence, state) is not None:
        return None
    _agree(database, fence, state, require_log)
    return state


def raises_fence_of(
    database: Database, clock: HybridClock, require_log: RequireLog = accept_log
) -> RaiseFence:
    """Return a function that raises the fence of the object store, before that of the log.

    It raises `WrongClock` if the log would refuse the append, which would leave the fence half
    raised.
    """

    def raise_fence(token: FenceToken, environment: str | None) -> None:
        if environment is None:
            return
        with database.write() as connection:
            require_log(connection)
            check_time(connection, clock)
            FenceRow.initialize(connection, environment, token)

    return raise_fence


def half_raised(fence: FenceState | None, state: DurableCatalogState) -> FenceToken | None:
    """Return the token of an opener that has raised only the object store's ``fence``, or None.

    The opener is of this deploy generation. It may be about to raise the fence of the log, or it
    ended before it could.
    """
    if (
        fence is not None
        and fence.environment == state.environment
        and fence.token > state.token
        and fence.token.deploy_generation == state.token.deploy_generation
    ):
        return fence.token
    return None


def open_newer_epoch(
    log: UpdateLog, database: Database, clock: HybridClock, deploy_generation: int, *, member: str
) -> None:
    """Open a newer epoch in both halves of the store. It fences every node, and each joins it."""
    durable_state(log).open(
        member=member,
        initialize=_not_empty,
        raise_fence=raises_fence_of(database, clock),
        deploy_generation=deploy_generation,
    )


def _not_empty(_: CatalogTransaction) -> None:
    raise NotFound("the catalog of this store no longer exists; restore it from a backup")


def refuse_other_half(database: Database, state: ReadOnlyState) -> None:
    """Raise `Fenced` or `WrongEnvironment` if a node would not open this store. Writes nothing.

    A fence that an opener raised in the object store alone is accepted: the next opener continues.
    """
    token, fence = state.log.token(), FenceRow.stored(database)
    if fence is None or token is None:
        return
    if token.is_sealed:
        return  # by a move that was interrupted, which opening the log reports
    begun = token.next(token.deploy_generation)
    expected = begun if fence.token.rank == begun.rank else token
    fence.check(environment=state.environment or "", token=expected)
    refuse_older_catalog(fence, state.log)


def _agree(
    database: Database,
    fence: FenceState | None,
    state: DurableCatalogState,
    require_log: RequireLog = accept_log,
) -> None:
    """Raise unless both halves of the store have the same environment id and fence token.

    ``fence`` was read after ``state`` had joined. Does not wait for other writers, unless the
    object store has no fence yet and gets one here.
    """
    environment = state.environment or ""
    if fence is not None:
        fence.check(environment=environment, token=state.token)
    else:  # the process that created the catalog ended before it wrote the fence
        with database.write() as connection:
            require_log(connection)
            FenceRow.initialize(connection, environment, state.token)
    refuse_older_catalog(fence, state.log)


def refuse_older_catalog(fence: FenceState | None, log: UpdateLog) -> None:
    """Raise `WrongEnvironment` if the object store knows a version that the catalog lacks.

    ``fence`` was read before: other nodes go on meanwhile.
    """
    last = log.frontier().upper - 1
    if fence is not None and fence.catalog_version > last:
        raise WrongEnvironment(
            f"the object store knows catalog version {fence.catalog_version}, but the catalog "
            f"ends at {last}: the catalog was restored from an older backup than the object "
            "store; restore both from the same backup"
        )


def join_newer_epoch(
    fenced: DurableCatalogState, database: Database, *, require_log: RequireLog
) -> DurableCatalogState:
    """Join again, in both halves of the store, after another holder opened a newer epoch.

    Raises `Superseded` if that holder is of a newer deploy generation or the store remembers
    another log, `WrongEnvironment`, and `Fenced` while the halves disagree because another process
    is opening the store.
    """
    state = joined_anew(fenced)
    with database.read() as connection:
        try:
            require_log(connection)
        except Conflict as error:  # moved to or from a shadow, which has the same log as its first
            raise Superseded(error.message) from error
        fence = FenceRow.read(connection)
    if state.environment != fenced.environment:
        raise WrongEnvironment(
            f"the store belonged to environment {fenced.environment!r} when this node joined it, "
            f"but now belongs to {state.environment!r}; restart this node"
        )
    _agree(database, fence, state)
    return state
