"""Sealing a log whose catalog is moved to another log, so that it accepts no writer any more.

A seal is the last version of the log. It replaces the fence token by one that no writer ever holds
(`FenceToken.sealed`). The seal fences the previous holder, which finds itself `Replaced`. Joining,
opening or editing the catalog in a sealed log is refused in the same way. The seal is part of the
history. So the log that the catalog moves to gets the seal too, with its time, and `unseal` opens
that log after it. A log that a catalog has left remains a valid beginning of its history, and the
catalog may be moved back to it.
"""

from __future__ import annotations

from strandline.durable.collections import FENCE as FENCE_KIND
from strandline.durable.log import Companion, UpdateLog
from strandline.durable.opening import RaiseFence, fencing_transaction
from strandline.durable.state import ReadOnlyState
from strandline.durable.transaction import Position
from strandline.durable.update import Update
from strandline.errors import Fenced, OutOfSync
from strandline.fencing import FenceToken
from strandline.model.descriptors import FenceEntry
from strandline.wire.registry import decode

FILLING = FenceToken(0, 0).sealed()
"""The token of a log while the history of another log is copied to it."""
_AUTHOR = "system"


def seal(
    log: UpdateLog,
    position: Position,
    token: FenceToken,
    *,
    member: str,
    companion: Companion | None = None,
) -> None:
    """Seal ``log`` after ``position``, its last version, while its token is ``token``.

    Raises `OutOfSync` or `Fenced` if another process was first, and what `UpdateLog.append` raises.
    """
    sealing = fencing_transaction(position, token.sealed(), author=_AUTHOR)
    log.append(
        sealing.version,
        token,
        [sealing.update(member=member)],
        new_token=token.sealed(),
        companion=companion,
    )


def unseal(log: UpdateLog, sealed_epoch: int, *, member: str, raise_fence: RaiseFence) -> None:
    """Begin a new epoch after the seal of ``sealed_epoch``.

    Does nothing if the log does not end with that seal.
    """
    sealed = log.token()
    if sealed is None or not sealed.is_sealed:
        return
    state = ReadOnlyState(log)
    last = state.recovered[-1]
    token = _sealed_token(last.update, sealed_epoch)
    if token is None:
        return
    behind = token.next(token.deploy_generation)
    fencing = fencing_transaction(last, behind, author=_AUTHOR)
    raise_fence(behind, state.environment)
    try:
        log.append(
            fencing.version,
            sealed,
            [fencing.update(member=member)],
            new_token=behind,
        )
    except (OutOfSync, Fenced):
        if log.token() == sealed:  # else another process has unsealed it
            raise


def _sealed_token(update: Update, sealed_epoch: int) -> FenceToken | None:
    """The token that ``update`` sealed, or None unless it is the seal of that epoch."""
    for change in update.changes():
        if change.kind == FENCE_KIND.kind and change.old is not None and change.new is not None:
            before, after = decode(change.old, FenceEntry), decode(change.new, FenceEntry)
            if FenceToken(after.deploy_generation, after.epoch).is_sealed:
                token = FenceToken(before.deploy_generation, before.epoch)
                return token if token.epoch == sealed_epoch else None
    return None
