"""The fence row: the object store's half of the fence.

One row holds the environment id (made when the store was initialized), the highest fence token and
the highest catalog version that this database was told of. It is read inside every write
transaction of transactions and object store, so a write of a replaced owner fails in the moment in
which it would have become durable, not some time before.

A token *below* the caller's is refused like one above it: a process that opens a catalog raises
this row first, so a lower one means that this half was restored from an older day.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, insert, update

from strandline.errors import Fenced, WrongEnvironment
from strandline.fencing import FenceToken
from strandline.sql.ground import FENCE
from strandline.sql.statements import Query, first_row

FENCE_ROW = (
    "SELECT environment, deploy_generation, epoch, catalog_version"
    " FROM strandline_fence WHERE id = 1"
)


@dataclass(frozen=True, slots=True)
class FenceState:
    """What the row says."""

    environment: str
    token: FenceToken
    catalog_version: int


class FenceRow:
    """The operations on the one row; each runs on the caller's transaction and keeps no state."""

    @staticmethod
    def read(connection: Connection) -> FenceState | None:
        """The row; None before `initialize`."""
        row = first_row(connection, FENCE_ROW)
        return None if row is None else FenceState(row[0], FenceToken(row[1], row[2]), row[3])

    @staticmethod
    def initialize(connection: Connection, environment: str, token: FenceToken) -> None:
        """Write the row. On a row of the same environment this is `raise_to`.

        So an initialization that was cut off can be made again. Raises `WrongEnvironment` or
        `Fenced`.
        """
        present = FenceRow.read(connection)
        if present is not None:
            _same_environment(present, environment)
            FenceRow.raise_to(connection, token)
            return
        connection.execute(
            insert(FENCE).values(
                id=1,
                environment=environment,
                deploy_generation=token.deploy_generation,
                epoch=token.epoch,
                catalog_version=0,
            )
        )

    @staticmethod
    def raise_to(connection: Connection, token: FenceToken) -> None:
        """Make ``token`` the one that writes need. Never lowers it: raises `Fenced` instead."""
        present = _present(FenceRow.read(connection))
        if token < present.token:
            raise Fenced(
                f"the object store cannot be fenced at {token}: it is at {present.token};"
                " a newer owner has opened it"
            )
        connection.execute(
            update(FENCE).values(deploy_generation=token.deploy_generation, epoch=token.epoch)
        )

    @staticmethod
    def check(connection: Connection, *, environment: str, token: FenceToken) -> None:
        """Return if a write with this token may happen; else `Fenced` or `WrongEnvironment`."""
        present = _present(FenceRow.read(connection))
        _same_environment(present, environment)
        if token < present.token:
            raise Fenced(
                f"this writer holds {token}, the object store is at {present.token}: a newer owner"
                " has opened it; nothing was written"
            )
        if token > present.token:
            raise Fenced(
                f"this writer holds {token}, the object store is only at {present.token}: it was"
                " restored from an older day than the catalog; nothing was written"
            )

    @staticmethod
    def noting(version: int) -> Query:
        """Remembers that the catalog has reached ``version``; a lower one changes nothing."""
        text = "UPDATE strandline_fence SET catalog_version = ? WHERE catalog_version < ?"
        return text, (version, version)


def _present(state: FenceState | None) -> FenceState:
    if state is None:
        raise WrongEnvironment(
            "the object store was never initialized, the catalog was: they do not belong together;"
            " restore both from one backup"
        )
    return state


def _same_environment(present: FenceState, environment: str) -> None:
    if present.environment != environment:
        raise WrongEnvironment(
            f"the catalog belongs to environment {environment!r}, the object store to"
            f" {present.environment!r}; point both settings at halves of one store"
        )
