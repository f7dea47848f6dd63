"""The fence row: the object store's half of the fence.

One row has the environment id (created when the store was initialized), and the highest fence token
and catalog version that were recorded in this database. Every write transaction of transactions and
object store reads it. So a write of a replaced holder fails at the moment in which it would become
durable, not some time before.

A write is also refused if the row's token is *below* the caller's. A process that opens a catalog
raises this row first, so a lower token means that this half was restored from an older backup.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection

from strandline.errors import Fenced, WrongEnvironment
from strandline.fencing import FenceToken
from strandline.sql.database import Database
from strandline.sql.statements import Query, Row, change, first_row

FENCE_ROW = (
    "SELECT environment, deploy_generation, epoch, catalog_version"
    " FROM strandline_fence WHERE id = 1"
)


class NewerEpoch(Fenced):
    """The row is at a newer epoch of the caller's generation, which the caller may join.

    The catalog may not have reached it yet: an opener raises this row first.
    """


@dataclass(frozen=True, slots=True)
class FenceState:
    """The contents of the row."""

    environment: str
    token: FenceToken
    catalog_version: int

    def check(self, *, environment: str, token: FenceToken) -> None:
        """Return if a write with this token is allowed.

        Raises `WrongEnvironment`, `NewerEpoch`, or `Fenced` for a reason that does not pass.
        """
        _same_environment(self, environment)
        if token < self.token:
            is_own = token.deploy_generation == self.token.deploy_generation
            raise (NewerEpoch if is_own else Fenced)(
                f"this writer holds {token}, but the object store is at {self.token}: a newer "
                "holder has opened it; nothing was written"
            )
        if token > self.token:
            raise Fenced(
                f"this writer holds {token}, but the object store is only at {self.token}: it "
                "was restored from an older backup than the catalog; nothing was written"
            )


class FenceRow:
    """The operations on the one row. Each runs on the caller's transaction and keeps no state."""

    @staticmethod
    def read(connection: Connection) -> FenceState | None:
        """The row, or None before `initialize`."""
        return _state(first_row(connection, FENCE_ROW))

    @staticmethod
    def stored(database: Database) -> FenceState | None:
        """`read`, in a transaction of its own."""
        with database.read() as connection:
            return FenceRow.read(connection)

    @staticmethod
    def initialize(connection: Connection, environment: str, token: FenceToken) -> None:
        """Write the row. If there is a row of the same environment, this is `raise_to`.

        So an interrupted initialization can be repeated. Raises `WrongEnvironment` or `Fenced`.
        """
        present = FenceRow.read(connection)
        if present is not None:
            _same_environment(present, environment)
            FenceRow.raise_to(connection, token)
            return
        # SQLAlchemy would compile an `insert` again for each database that this process opens.
        change(
            connection,
            "INSERT INTO strandline_fence"
            " (id, environment, deploy_generation, epoch, catalog_version) VALUES (1, ?, ?, ?, 0)",
            (environment, *token.rank),
        )

    @staticmethod
    def raise_to(connection: Connection, token: FenceToken) -> None:
        """Make ``token`` the one that writes need. Raises `Fenced` if that would lower it."""
        present = _present(FenceRow.read(connection))
        if token < present.token:
            raise Fenced(
                f"the object store cannot be fenced at {token}: it is at {present.token};"
                " a newer holder has opened it"
            )
        change(
            connection,
            "UPDATE strandline_fence SET deploy_generation = ?, epoch = ?",
            token.rank,
        )

    @staticmethod
    def check(connection: Connection, *, environment: str, token: FenceToken) -> None:
        """`FenceState.check` of the row. Raises `WrongEnvironment` before `initialize`."""
        row = first_row(connection, FENCE_ROW)
        if row is not None and row[:3] == (environment, *token.rank):
            return  # every write comes here: objects of the row would take longer than its query
        _present(_state(row)).check(environment=environment, token=token)

    @staticmethod
    def note_query(version: int) -> Query:
        """The query that records that the catalog has reached ``version``, unless it is lower."""
        text = "UPDATE strandline_fence SET catalog_version = ? WHERE catalog_version < ?"
        return text, (version, version)


def _state(row: Row | None) -> FenceState | None:
    return None if row is None else FenceState(row[0], FenceToken(row[1], row[2]), row[3])


def _present(state: FenceState | None) -> FenceState:
    if state is None:
        raise WrongEnvironment(
            "the catalog was initialized, but the object store was not: they do not belong "
            "together; restore both from one backup"
        )
    return state


def _same_environment(present: FenceState, environment: str) -> None:
    if present.environment != environment:
        raise WrongEnvironment(
            f"the catalog belongs to environment {environment!r}, but the object store belongs to "
            f"{present.environment!r}; set both addresses to the same store"
        )
