"""What group commit works on: requests of callers, and what they are judged to come to."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

from strandline.catalog.catalog import Catalog
from strandline.catalog.planning import Command, Planning
from strandline.catalog.privileges.judgement import permit
from strandline.clock import Timestamp
from strandline.durable.transaction import CatalogTransaction
from strandline.durable.update import Arguments


class Stage(Enum):
    """How far a caller's commands have come."""

    WAITING = auto()
    SENT = auto()
    DONE = auto()
    LEFT = auto()


class Request:
    """One caller's commands, and in the end what became of them."""

    __slots__ = (
        "actions",
        "applied",
        "author",
        "began",
        "catalog",
        "commands",
        "end",
        "error",
        "gate",
        "gone",
        "identity",
        "stage",
        "version",
    )

    def __init__(
        self, commands: Sequence[Command], author: str, end: float, *, identity: str | None
    ) -> None:
        self.commands = commands
        self.author = author
        self.identity = identity  # whose privileges count; None: the program's own work
        self.began = time.monotonic()
        self.end = end  # an instant of time.monotonic()
        self.stage = Stage.WAITING
        self.gone = False  # its caller was told that the outcome is unknown
        self.version: int | None = None  # that its commands have in the log, once they are there
        self.gate = threading.Lock()
        self.gate.acquire()
        self.applied: tuple[bool, ...] = ()
        self.actions: tuple[tuple[str, Arguments], ...] = ()  # what its version did, for people
        self.catalog: Catalog | None = None  # the one it made, or was judged by
        self.error: BaseException | None = None

    def left(self) -> float:
        """Seconds until the deadline, not below 0 nor above what a lock takes."""
        return min(max(self.end - time.monotonic(), 0.0), threading.TIMEOUT_MAX)


@dataclass(slots=True)
class Judged:
    """A request, and what its commands come to on the catalog that those before it leave.

    ``catalog`` is the one that ``transaction`` makes, or without one the one it was judged by. What
    is not in the log yet has no time yet; such a catalog carries that of the round's base.
    """

    request: Request
    catalog: Catalog
    applied: tuple[bool, ...] = ()
    error: BaseException | None = None
    transaction: CatalogTransaction | None = None


@dataclass(slots=True)
class Round:
    """What one append is to do: requests judged one after the other, the first on ``base``."""

    base: Catalog
    judged: list[Judged] = field(default_factory=list)
    size: int = 0

    def add(self, judged: Judged) -> None:
        """Behind those that were judged before."""
        self.judged.append(judged)
        if judged.transaction is not None:
            self.size += sum(
                len(change.old or b"") + len(change.new or b"")
                for change in judged.transaction.changes()
            )

    @property
    def view(self) -> Catalog:
        """The catalog that the next request is judged by."""
        return self.judged[-1].catalog if self.judged else self.base

    def requests(self) -> list[Request]:
        """Those that make a version, in the order of the versions."""
        return [judged.request for judged in self.judged if judged.transaction is not None]

    def transactions(self) -> list[CatalogTransaction]:
        """What makes the versions, in their order."""
        return [judged.transaction for judged in self.judged if judged.transaction is not None]


def judge(
    view: Catalog, transaction: CatalogTransaction, request: Request, now: Timestamp
) -> Judged:
    """Carry the commands of ``request`` out in ``transaction``, which is on ``view``.

    Nothing of them is in the round where one of them refuses.
    """
    planning = Planning(view, transaction, now, author=request.author)
    applied = []
    try:
        for command in request.commands:
            before = len(transaction.entries)
            command.plan(planning)
            applied.append(len(transaction.entries) > before)
        permit(view, transaction.entries, transaction.contents, user=request.identity)
    except BaseException as error:  # also what would end this thread: it is one caller's alone
        return Judged(request, view, error=error)
    if not transaction.entries:
        return Judged(request, view, tuple(applied))
    catalog = Catalog(transaction.version, view.time, transaction.contents)
    return Judged(request, catalog, tuple(applied), transaction=transaction)
