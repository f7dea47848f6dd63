"""Moving the catalog of a store to another log.

Only the catalog moves. Transactions, rows and folders stay in the SQL database of the store, which
also remembers the log (`strandline.node.catalog_log`). So both logs belong to the same database.

1. **Copy** the history to the new log while nodes go on writing to the old one. The token of the
   new log (`FILLING`) keeps other writers out meanwhile.
2. **Prove** that both logs have the same content, version by version. Steps 1 and 2 are repeated
   while nodes commit.
3. **Seal** the old log directly after the version that was proved, switch the row that remembers
   the log, and raise the fence of the rows. One SQL transaction does all of this and decides the
   move. Its conditions are the last version, the fence token and the unchanged row, so no commit is
   lost.
4. **Finish** (`finish_move`): copy the seal to the new log, and begin a new epoch after it.

After a crash before step 3, the old log is unchanged, and the next call continues the copy. After a
crash after step 3, the next process that opens the store does step 4. Nodes that ran on the old log
stop, as for a newer deploy generation, and must be started again.

etcd cannot take part in a SQL transaction. If the catalog leaves etcd, or if nodes commit faster
than the copy is proved, the order is: seal, rest of the copy and proof, row. A crash in between
leaves a sealed log, which nodes refuse. To go on, run the same command again; to cancel the move,
run it with the old log as the new one, which unseals the log.

A log that the catalog has left is a prefix of the history, including the seal. So the catalog may
move back: the log then gets the versions that it lacks.

The first log of a shadow decides: it is the log that a catalog leaves, and it gets the seal. The
second log gets a copy too, so the shadow starts with two equal logs.

Rejected: a mark in each of the two logs (the marks could say that both logs count, or that
neither does), and a new epoch instead of the seal (nodes would join it and continue on the old
log).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection

from strandline.catalog.applier import DELAY
from strandline.durable import ReadOnlyState, Update, UpdateLog, config_in
from strandline.durable.log import Frontier
from strandline.durable.log_copy import FILLING, LogCopy, seal
from strandline.durable.migrations import refuse_other
from strandline.durable.state import AppliedUpdate, TrimmedAway
from strandline.errors import Conflict, CorruptData, Fenced, InvalidInput, NotFound, OutOfSync
from strandline.fencing import FenceToken
from strandline.node.catalog_log import (
    DEFAULT,
    LogPlace,
    RememberedLog,
    deciding_part,
    finish_move,
    forget_shard,
    has_other_blobs,
    open_log,
    parts_of,
    put_remembered,
    read_remembered,
    remember,
    remembered_log,
)
from strandline.node.membership import new_member_id
from strandline.node.warehouse_place import lost_catalog
from strandline.sql import FenceRow, Query

ROUNDS = 10
"""How many times new commits are copied and proved before the log is sealed without a proof."""
ATTEMPTS = 1000
"""How many times to try to seal a log while nodes go on appending to it."""
_MOVED_MEANWHILE = "another command has moved the catalog meanwhile; check where it is now"


@dataclass(frozen=True, slots=True)
class MovedCatalog:
    """The log that the catalog moved to, and the frontier of the history that was proved.

    ``frontier`` is None if this call only finished an earlier one, which was interrupted after the
    switch.
    """

    target: RememberedLog
    frontier: Frontier | None


def move_catalog(source: LogPlace, target: LogPlace, *, leaving: str, to: str) -> MovedCatalog:
    """Move the catalog from the log ``leaving`` to the log ``to`` at ``target``; see the module.

    An empty ``leaving`` accepts whatever log the catalog is in. An empty ``to`` means the same log,
    or the default log if the address changes. Both places have the same SQL database.

    Raises `NotFound` if there is no catalog, `WrongEnvironment` if it is lost or the address of
    ``source`` names another place, `InvalidInput` if the catalog is not in ``leaving`` or
    is in the new log already, `Conflict` if nodes commit too fast or another command moves the
    catalog, and `CorruptData` if the copy differs from the original; the catalog then stays where
    it is.
    """
    interrupted = _interrupted(target, to)
    if interrupted is not None:
        return MovedCatalog(finish_move(target, interrupted), None)
    present = remembered_log(source)
    if present is None:
        raise NotFound(
            f"there is no catalog in {source.address.name} yet; `strandline serve` creates one"
        )
    finish_move(source, present)
    present = remember(source, RememberedLog(DEFAULT, source.catalog_address), instead_of=None)
    if leaving not in ("", present.name):
        raise InvalidInput(
            f"the catalog of {source.address.name} is kept in the log {present}, not in {leaving}; "
            "name that log, or none"
        )
    address = target.catalog_address
    new = RememberedLog(to or (present.name if address == present.address else DEFAULT), address)
    with ExitStack() as stack:
        move = _Move(source, target, present, new, stack)
        frontier = move.make()
    return MovedCatalog(finish_move(target, move.switched), frontier)


def _interrupted(target: LogPlace, to: str) -> RememberedLog | None:
    """Return the row of an earlier call to the same target that ended after the switch, or None."""
    with suppress(InvalidInput):  # the catalog is elsewhere
        present = remembered_log(target)
        if present is not None and present.former and to in ("", present.name):
            return present
    return None


class _Move:
    """One move, with its logs open."""

    def __init__(
        self,
        source: LogPlace,
        target: LogPlace,
        present: RememberedLog,
        new: RememberedLog,
        stack: ExitStack,
    ) -> None:
        self._database = source.database
        self._present = present
        original = open_log(deciding_part(present.name), source, stack)
        log = self._log = original.log
        if log.token() is None:
            raise lost_catalog(source.database)
        self._takes_part = original.upper_within is not None
        self._state = ReadOnlyState(log, latest_only=True)
        self._position = self._state.take_recovered()[-1]
        environment = self._state.environment
        refuse_other(self._position.contents)
        _refuse_delay(self._position, target)
        self._token = self._first_token()
        former = present.address or deciding_part(present.name)
        self.switched = replace(new, former=former, sealed_epoch=self._token.epoch)
        self._is_return = new == present
        if self._is_return and not self._is_sealed():
            raise InvalidInput(f"the catalog is already in the log {present}; nothing was moved")
        target = replace(target, environment=environment or "")
        original_parts = {_place_of(part, source) for part in parts_of(present.name)}
        self._copies = []
        for number, part in enumerate(parts_of(new.name)):
            is_elsewhere = bool(_place_of(part, target)[1])
            is_new = _place_of(part, target) not in original_parts
            names = (
                str(replace(present, name=deciding_part(present.name))),
                str(replace(new, name=part)),
            )
            if names[0] == names[1]:
                names = names[0], f"the new {names[1]}"
            if is_new and has_other_blobs(part, target):
                # The remains of a move that failed, perhaps because its place is full.
                with ExitStack() as opened:
                    remains = open_log(part, replace(target, blobs=""), opened).log
                    self._refuse_other_catalog(
                        remains, names[1], environment, is_elsewhere=is_elsewhere
                    )
                forget_shard(target)
            copy = open_log(part, target, stack).log  # refuses settings that do not fit the log
            if _place_of(part, target) == _place_of(deciding_part(present.name), source):
                continue
            self._refuse_other_catalog(copy, names[1], environment, is_elsewhere=is_elsewhere)
            token = FILLING if number == 0 and is_new else None
            self._copies.append(LogCopy(log, copy, names=names, token=token))

    def make(self) -> Frontier:
        """Copy, prove, seal and switch. Return the frontier that was proved."""
        if self._is_return:
            with self._database.write() as connection:
                self._switch().switch(connection)
            return self._log.frontier()
        proved = Frontier(0, 0)
        for _ in range(ROUNDS):
            proved = self._copy_and_prove(proved)
            if self._is_sealed():
                return self._copy_and_switch()
            if self._seal(proved, switching=self._takes_part):
                return proved if self._takes_part else self._copy_and_switch()
        for _ in range(ATTEMPTS):
            if self._seal(None, switching=False):
                return self._copy_and_switch()
        raise Conflict(
            f"nodes kept committing during {ATTEMPTS} attempts to seal the log; nothing was "
            "moved; stop the nodes, and run the command again"
        )

    def _copy_and_prove(self, proved: Frontier) -> Frontier:
        """Bring the copies level, prove them, and return the frontier that is proved now.

        ``proved`` is the frontier that an earlier round proved.
        """
        while True:
            before = self._log.frontier()
            try:
                levels = [copy.level(upper=before.upper)[0] for copy in self._copies] or [before]
                frontier = min(levels, key=lambda level: level.upper)
                above = proved.upper - 1 if proved.since == frontier.since else 0
                for copy in self._copies:
                    copy.prove(frontier, above=max(above, 0))
            except (CorruptData, NotFound) as error:
                if self._log.frontier().since != before.since:
                    continue  # trimmed by a node meanwhile
                raise CorruptData(
                    f"the catalog was not moved, and nodes continue with the log {self._present}: "
                    f"{error.message}"
                ) from error
            if self._log.frontier().since == frontier.since:
                return frontier

    def _seal(self, proved: Frontier | None, *, switching: bool) -> bool:
        """Seal the log after what was proved, or at its end if ``proved`` is None.

        Return False if another process appended first or the log is sealed already. With
        ``switching``, the transaction that seals the log also switches the row.
        """
        token = self._log.token()
        if token is None or token.is_sealed:
            return False
        self._token = token
        self.switched = replace(self.switched, sealed_epoch=token.epoch)
        companion = self._switch()
        if not switching:
            with self._database.write() as connection:
                companion.raise_fence(connection)
        last = None if proved is None else proved.upper - 1
        try:
            while applied := self._state.updates_after(self._position, up_to=last):
                self._position = applied[-1]
        except TrimmedAway:
            self._position = self._state.start()
        if last not in (None, self._position.version):
            return False
        try:
            seal(
                self._log,
                self._position,
                token,
                member=new_member_id(),
                companion=companion if switching else None,
            )
        except (OutOfSync, Fenced):
            return False
        return True

    def _copy_and_switch(self) -> Frontier:
        """After a seal that did not switch the row: copy and prove the rest, then switch it."""
        with self._database.read() as connection:
            self._switch().refuse_other(connection)
        proved = self._copy_and_prove(Frontier(0, 0))
        with self._database.write() as connection:
            self._switch().switch(connection)
            # A command that cancelled the move leaves the row as it was, but not the seal.
            if self._log.token() != self._token.sealed():
                raise Conflict(_MOVED_MEANWHILE)
        return proved

    def _switch(self) -> _Switch:
        behind = self._token.next(self._token.deploy_generation)
        return _Switch(self._present, self.switched, behind)

    def _is_sealed(self) -> bool:
        token = self._log.token()
        return token is not None and token.is_sealed

    def _first_token(self) -> FenceToken:
        """Return the token of the log, or the one before the seal if the log is sealed."""
        token = self._log.token()
        if token is None:
            raise CorruptData("the log has versions, but no fence token; restore it from a backup")
        if not token.is_sealed:
            return token
        fence = FenceRow.stored(self._database)
        generation = 0 if fence is None else fence.token.deploy_generation
        return FenceToken(generation, token.epoch)

    def _refuse_other_catalog(
        self, log: UpdateLog, name: str, environment: str | None, *, is_elsewhere: bool
    ) -> None:
        """Raise `Conflict` if ``log`` is neither empty nor a prefix of this history.

        A log that a catalog left in the database of the store is a prefix, even if it has another
        environment id, that of the original of this copy. ``is_elsewhere``: it is not there.
        """
        token = log.token()
        if token is None:
            return
        state = ReadOnlyState(log, latest_only=True)
        last = state.recovered[-1]
        frontier, own_frontier = log.frontier(), self._log.frontier()
        if frontier.upper > own_frontier.upper:
            is_same = False
        elif own_frontier.since < last.version:
            is_same = self._log.updates(last.version, last.version + 1) == (last.update,)
        else:
            is_left = token.is_sealed and not is_elsewhere
            is_same = is_left or state.environment in (None, environment)
        if not is_same:
            raise Conflict(
                f"the log {name} is not empty, and has a different history: environment "
                f"{state.environment}, up to version {last.version}; nothing was moved"
            )


class _Switch:
    """The writes that decide: the row that remembers the log, and the fence of the rows.

    A `Companion`.
    """

    first_queries: tuple[Query, ...] = ()

    def __init__(self, present: RememberedLog, new: RememberedLog, token: FenceToken) -> None:
        self._present, self._new, self._token = present, new, token

    def write(self, connection: Any, updates: Sequence[Update]) -> None:
        self.switch(connection)

    def committed(self) -> None:
        """Do nothing: this companion keeps no state in memory."""

    def switch(self, connection: Connection) -> None:
        self.refuse_other(connection)
        put_remembered(connection, self._new)
        self.raise_fence(connection)

    def refuse_other(self, connection: Connection) -> None:
        if read_remembered(connection) != self._present:
            raise Conflict(_MOVED_MEANWHILE)

    def raise_fence(self, connection: Connection) -> None:
        if FenceRow.read(connection) is not None:
            FenceRow.raise_to(connection, self._token)


def _place_of(part: str, place: LogPlace) -> tuple[str, str]:
    """Return a value that is equal for two parts that are the same log of one store."""
    return part, "" if part == "stash" else place.catalog_address


def _refuse_delay(position: AppliedUpdate, target: LogPlace) -> None:
    if not target.address.is_one_database and not int(config_in(position.contents, DELAY) or 0):
        raise InvalidInput(
            f"the catalog has no delay before its versions become active, and in"
            f" {target.catalog_address} a transaction could never know which catalog it commits"
            " under; only a store that was made with delay_ms above 0 can keep its catalog there"
        )
