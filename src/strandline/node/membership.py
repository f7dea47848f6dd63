"""Joining a store: how a process becomes a member of the deployment that holds it.

The two halves of a store (catalog and object store) carry the same environment id and fence
token. A process joins only when they agree: another environment means that two stores were mixed, a
catalog that ends before a version that the object store was told of means that one half was
restored from an older day. Both are refused with an error that says which half is which.

A process that finds no catalog creates it; of several that try at once one does, the others join.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Callable

from sqlalchemy import Connection

from strandline.catalog import initial_catalog
from strandline.durable import (
    CatalogTransaction,
    DurableCatalogState,
    OpenableState,
    ReadOnlyState,
    Replaced,
    UpdateLog,
    durable_state,
    joined_anew,
)
from strandline.durable.migrations import NeedsMigration
from strandline.durable.opening import RaiseFence
from strandline.errors import Fenced, NotFound, OutOfSync, WrongEnvironment
from strandline.fencing import FenceToken
from strandline.sql import Database, FenceRow

ATTEMPTS = 20


def new_member_id() -> str:
    """A name for this process that no other has: host, process id, and a random part."""
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"


def join_or_create(
    log: UpdateLog,
    database: Database,
    *,
    member: str,
    delay_ms: int,
    skew_ms: int,
    default_location: str,
    deploy_generation: int | None = None,
) -> DurableCatalogState:
    """Join the catalog in ``log``, or create it. Raises `WrongEnvironment`, `Fenced`.

    A ``deploy_generation`` above that of the catalog takes it over from its nodes.
    """
    raise_fence = raises_fence_of(database)
    initialize = initial_catalog(
        delay_ms=delay_ms, skew_ms=skew_ms, default_location=default_location
    )
    refused: Exception | None = None
    for _ in range(ATTEMPTS):
        openable = durable_state(log)
        try:
            state = _joined(openable, database, member, deploy_generation)
            if state is not None:
                return state
            _refuse_older_catalog(database, log)
            return openable.open(
                member=member,
                initialize=initialize,
                raise_fence=raise_fence,
                deploy_generation=openable.deploy_generation() or 0
                if deploy_generation is None
                else deploy_generation,
            )
        except (WrongEnvironment, Replaced):
            raise
        except Fenced as error:
            refused = error  # a newer epoch came between our look at the token and at the log
            continue
        except NotFound:
            pass
        _refuse_older_catalog(database, log)  # one that is lost is not made anew
        try:
            return openable.create(
                member=member,
                initialize=initialize,
                raise_fence=raise_fence,
                deploy_generation=deploy_generation or 0,
            )
        except (OutOfSync, Fenced) as error:
            refused = error  # another process created it meanwhile: join that
    raise Fenced(
        f"joining this store was refused {ATTEMPTS} times, at last because {refused}"
    ) from refused


def _joined(
    openable: OpenableState, database: Database, member: str, deploy_generation: int | None
) -> DurableCatalogState | None:
    """The state that shares the epoch; None where a new one is needed.

    That is where an older release wrote the catalog, an opener ended half-way, or nodes of a lower
    deploy generation hold it. Raises `Replaced` where those of a higher one do.
    """
    try:
        state = openable.join(member=member)
    except NeedsMigration:
        return None
    present = state.token.deploy_generation
    if deploy_generation is not None and present != deploy_generation:
        if present < deploy_generation:
            return None
        raise Replaced(
            f"generation {present} of this deployment holds the store, and this node is of"
            f" generation {deploy_generation}; start the newer program"
        )
    if half_raised(database, state) is not None:
        return None
    _agree(database, state)
    return state


def raises_fence_of(database: Database) -> RaiseFence:
    """Raises the fence of the object store in ``database``, before the log's is raised."""

    def raise_fence(token: FenceToken, environment: str | None) -> None:
        if environment is None:
            return
        with database.write() as connection:
            FenceRow.initialize(connection, environment, token)

    return raise_fence


def half_raised(database: Database, state: DurableCatalogState) -> FenceToken | None:
    """The token of an opener of this generation that raised the object store's fence alone.

    It may be about to raise the log's, or it has ended before it could.
    """
    with database.read() as connection:
        fence = FenceRow.read(connection)
    if (
        fence is not None
        and fence.environment == state.environment
        and fence.token > state.token
        and fence.token.deploy_generation == state.token.deploy_generation
    ):
        return fence.token
    return None


def finish_half_raised(database: Database, state: DurableCatalogState) -> None:
    """Open a newer epoch in both halves, in place of an opener that ended between them.

    Every node, this one too, is fenced by that, and joins it. An opener that was only slow finds
    itself overtaken and takes the epoch after.
    """
    if half_raised(database, state) is None:
        return
    durable_state(state.log).open(
        member=state.member,
        initialize=_not_empty,
        raise_fence=raises_fence_of(database),
        deploy_generation=state.token.deploy_generation,
    )


def _not_empty(_: CatalogTransaction) -> None:
    raise NotFound("there is no catalog in this store any more; restore it from a backup")


def refuse_other_half(database: Database, state: ReadOnlyState) -> None:
    """Raise `Fenced` or `WrongEnvironment` where a node would not open this store; writes nothing.

    An opener that ended between the two halves is no reason: the next one goes on.
    """
    token = state.log.token()
    with database.read() as connection:
        fence = FenceRow.read(connection)
        if fence is None or token is None:
            return
        begun = token.next(token.deploy_generation)
        expected = begun if fence.token.rank == begun.rank else token
        FenceRow.check(connection, environment=state.environment or "", token=expected)
    _refuse_older_catalog(database, state.log)


def _agree(database: Database, state: DurableCatalogState) -> None:
    """Raise unless both halves of the store say the same. Waits for no other writer."""
    environment = state.environment or ""
    with database.read() as connection:
        fence = FenceRow.read(connection)
        if fence is not None:
            FenceRow.check(connection, environment=environment, token=state.token)
    if fence is None:  # the process that created the catalog ended before it could say so here
        with database.write() as connection:
            FenceRow.initialize(connection, environment, state.token)
    _refuse_older_catalog(database, state.log)


def _refuse_older_catalog(database: Database, log: UpdateLog) -> None:
    """Raise `WrongEnvironment` where the object store was told of a version that is not there."""
    with database.read() as connection:
        fence = FenceRow.read(connection)
    last = log.frontier().upper - 1  # read behind the fence: others go on meanwhile
    if fence is not None and fence.catalog_version > last:
        raise WrongEnvironment(
            f"the object store knows catalog version {fence.catalog_version}, and the catalog ends "
            f"at {last}: the catalog was restored from an older day than the object "
            "store; restore both from the same backup"
        )


def join_newer_epoch(fenced: DurableCatalogState, database: Database) -> DurableCatalogState:
    """Join again, in both halves of the store, after another holder opened a newer epoch.

    Raises `Replaced` where that is of a newer deploy generation; `WrongEnvironment`; `Fenced` as
    long as the halves disagree, because another process is opening the store in this moment.
    """
    state = joined_anew(fenced)
    if state.environment != fenced.environment:
        raise WrongEnvironment(
            f"the store belonged to environment {fenced.environment!r} when this node joined it, "
            f"and belongs to {state.environment!r} now; restart this node"
        )
    _agree(database, state)
    return state


class Guard:
    """The fence check that every write transaction on rows makes."""

    def __init__(self, environment: str, token: Callable[[], FenceToken]) -> None:
        self._environment = environment
        self._token = token

    def __call__(self, connection: Connection) -> None:
        """Raises `Fenced` or `WrongEnvironment`; the transaction is then rolled back."""
        FenceRow.check(connection, environment=self._environment, token=self._token())
