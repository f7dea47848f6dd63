"""The requests of callers that group commit validates and appends together."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto

from strandline.catalog.catalog import Catalog
from strandline.catalog.planning import Command, Planning
from strandline.catalog.privileges.access import Access
from strandline.catalog.privileges.check import PrivilegeCheck
from strandline.clock import Timestamp
from strandline.durable.transaction import CatalogTransaction
from strandline.durable.update import Arguments, Update
from strandline.errors import DeadlineExceeded, StrandlineError


class Stage(Enum):
    """The progress of a caller's commands."""

    WAITING = auto()
    SENT = auto()
    DONE = auto()
    LEFT = auto()


@dataclass(slots=True, eq=False)
class Request:
    """The commands of one caller, and their outcome once it is known.

    ``end`` is an instant of `time.monotonic`. ``identity`` is the user whose privileges are
    checked; None is the program itself.
    """

    commands: Sequence[Command]
    author: str
    end: float
    identity: str | None = field(kw_only=True)
    began: float = field(default_factory=time.monotonic)
    stage: Stage = Stage.WAITING
    has_left: bool = False  # its caller has left with `UnknownOutcome`
    version: int | None = None  # of its commands, once they are in the log
    gate: threading.Lock = field(default_factory=threading.Lock)  # held until it is answered
    applied: tuple[bool, ...] = ()
    actions: tuple[tuple[str, Arguments], ...] = ()  # what its version did, for people
    catalog: Catalog | None = None  # the one it produced, or was validated against
    error: BaseException | None = None

    def __post_init__(self) -> None:
        self.gate.acquire()

    def left(self) -> float:
        """Seconds until the deadline, at least 0 and at most what a lock accepts."""
        return min(max(self.end - time.monotonic(), 0.0), threading.TIMEOUT_MAX)

    def check_waiting(self) -> None:
        """Raise `DeadlineExceeded` if the caller has left or was already answered."""
        if self.stage is not Stage.WAITING:
            raise DeadlineExceeded("the caller is no longer waiting for this change")


@dataclass(slots=True)
class Validated:
    """A request that was validated against the catalog left by the requests before it in the group.

    ``catalog`` is the one that ``transaction`` produces or, without a transaction, the one that the
    request was validated against. A version that is not in the log yet has no time, so its catalog
    carries the time of the group's base.
    """

    request: Request
    catalog: Catalog
    applied: tuple[bool, ...] = ()
    error: BaseException | None = None
    transaction: CatalogTransaction | None = None


@dataclass(slots=True)
class Group:
    """Requests that share one append, validated in this order, the first against ``base``.

    ``size`` is the number of bytes in their changes.
    """

    base: Catalog
    members: list[Validated] = field(default_factory=list)
    size: int = 0

    def add(self, member: Validated) -> None:
        """Add a request that was validated against `catalog`."""
        self.members.append(member)
        if member.transaction is not None:
            self.size += sum(
                len(change.old or b"") + len(change.new or b"")
                for change in member.transaction.changes()
            )

    @property
    def catalog(self) -> Catalog:
        """The catalog that the next request is validated against."""
        return self.members[-1].catalog if self.members else self.base

    def requests(self) -> list[Request]:
        """The requests that produce a version, in the order of the versions."""
        return [member.request for member in self.members if member.transaction is not None]

    def catalogs(self) -> list[Catalog]:
        """The catalogs of the versions, in the order of the versions; their times are not set."""
        return [member.catalog for member in self.members if member.transaction is not None]

    def transactions(self) -> list[CatalogTransaction]:
        """The transactions that produce the versions, in the order of the versions."""
        return [member.transaction for member in self.members if member.transaction is not None]

    def rebased(self, newer: Catalog, between: Sequence[Update]) -> Group | None:
        """Return the group, unchanged, on ``newer`` if only silent versions came ``between``.

        Return None if any other version came first, or a silent one that changed the same objects.
        """
        own_objects = {
            (change.kind, change.key)
            for transaction in self.transactions()
            for change in transaction.changes()
        }
        objects_between = {
            (change.kind, change.key) for update in between for change in update.changes()
        }
        silent = bool(between) and all(update.silent for update in between)
        if not silent or own_objects & objects_between:
            return None
        rebased = Group(newer)
        for member in self.members:
            catalog = rebased.catalog
            transaction = member.transaction and member.transaction.rebased(catalog)
            if transaction is not None:
                catalog = Catalog(transaction.version, catalog.time, transaction.contents)
            rebased.add(replace(member, catalog=catalog, transaction=transaction))
        return rebased


def validate(
    base: Catalog, transaction: CatalogTransaction, request: Request, now: Timestamp
) -> Validated:
    """Carry out the commands of ``request`` in ``transaction``, which is based on ``base``.

    If one command is refused, the request produces no version. The work stops as soon as the caller
    leaves, because a batch may take long and the callers after it are waiting.
    """
    planning = Planning(base, transaction, now)
    access = Access(base, request.identity)
    check = PrivilegeCheck(access, transaction, before_each=request.check_waiting)
    applied = []
    try:
        for command in request.commands:
            request.check_waiting()
            check.require_reach(command)
            before = len(transaction.entries)
            try:
                command.plan(planning)
            except StrandlineError:
                check.require_sight(command)
                raise
            applied.append(len(transaction.entries) > before)
            if not applied[-1]:
                check.require_sight(command)
        check.finish()
    except BaseException as error:  # of any kind: it must not fail the other callers
        return Validated(request, base, error=error)
    if not transaction.entries:
        return Validated(request, base, tuple(applied))
    catalog = Catalog(transaction.version, base.time, transaction.contents)
    return Validated(request, catalog, tuple(applied), transaction=transaction)
