"""Every error that Strandline raises on purpose, in one tree.

A caller catches a branch, a person reads the message: it says what was asked, what was found and
what to do. Each leaf has a stable ``code`` that crosses the wire and is printed by the command
line; one table, `SURFACES`, says how each is shown to a Thrift client, to an HTTP client and as
the exit status of a process.

::

    StrandlineError
    ├── InvalidInput               the request itself is wrong; nothing was changed
    │   ├── InvalidName
    │   ├── InvalidType            a data type that does not parse
    │   ├── IllegalChange          a change of schema or object that would lose data or break a rule
    │   │   └── IndexStatusConflict    an index is not in the status that the change starts from
    │   ├── LimitExceeded          more than a configured limit allows
    │   └── UnsupportedOperation   right in itself, but not for this object or this client
    ├── PermissionDenied           the user lacks a privilege; the message names it
    ├── NotFound
    │   ├── ObjectNotFound         a schema, table, view, column, partition, …
    │   ├── VersionNotFound        a catalog version or a time outside the readable history
    │   ├── TransactionNotFound
    │   └── LockNotFound           a lock that was released, that timed out, or that never existed
    ├── AlreadyExists
    ├── Conflict                   another writer was first; read again and retry
    │   ├── OutOfSync              the base of a catalog change is no longer the head
    │   ├── WriteConflict          another transaction changed the same rows or the table
    │   └── TransactionFinished    the transaction is committed, aborted or timed out
    ├── Fenced                     a newer holder of the store exists
    │   └── WrongEnvironment       the two halves of the store do not belong together
    ├── StoreMoved                 moved, copied or replaced; the message says what to do
    ├── HoldExpired                the reader's hold on history has run out
    ├── Unavailable                the store or node does not answer; nothing is known to be wrong
    │   ├── DeadlineExceeded
    │   ├── NotFresh               this node cannot prove that its catalog is not an old one
    │   ├── Overloaded             the node is full; nothing was done
    │   └── UnknownOutcome         sent and not answered; it may or may not have happened
    ├── WrongClock                 a clock is too far ahead to write by it
    ├── Stopping                   the node is shutting down
    ├── CorruptData                stored bytes that do not decode
    ├── IncompatibleFormat         a store or record written by a newer release
    ├── ProtocolError              a client sent bytes that are not its protocol
    └── AddressInUse
"""

from __future__ import annotations

import gc
import traceback
from dataclasses import dataclass
from typing import ClassVar

MAX_MESSAGE = 4_000
"""Characters of a message that is shown; a client may have sent a name of megabytes."""


def shortened(message: str) -> str:
    """The message, without its middle if it is too long: what to do is at its end."""
    if len(message) <= MAX_MESSAGE:
        return message
    half = MAX_MESSAGE // 2
    left_out = len(message) - 2 * half
    return f"{message[:half]}… ({left_out} characters omitted) …{message[-half:]}"


def cut(text: str, length: int = 80) -> str:
    """The first ``length`` characters of a text that a message shows, and a mark of more."""
    return text if len(text) <= length else f"{text[:length]}…"


class StrandlineError(Exception):
    """The root. ``message`` is complete in itself: what was asked, what was found, what to do.

    One that is too long is `shortened`.
    """

    code: ClassVar[str] = "internal"

    def __init__(self, message: str) -> None:
        self.message = shortened(message)
        super().__init__(self.message)


class InvalidInput(StrandlineError):
    code = "invalid_input"


class InvalidName(InvalidInput):
    code = "invalid_name"


class InvalidType(InvalidInput):
    code = "invalid_type"


class IllegalChange(InvalidInput):
    code = "illegal_change"


class IndexStatusConflict(IllegalChange):
    code = "index_status"


class LimitExceeded(InvalidInput):
    code = "limit_exceeded"


class UnsupportedOperation(InvalidInput):
    code = "unsupported_operation"


class PermissionDenied(StrandlineError):
    code = "permission_denied"


class NotFound(StrandlineError):
    code = "not_found"


class ObjectNotFound(NotFound):
    code = "object_not_found"


class VersionNotFound(NotFound):
    code = "version_not_found"


class TransactionNotFound(NotFound):
    code = "transaction_not_found"


class LockNotFound(NotFound):
    code = "lock_not_found"


class AlreadyExists(StrandlineError):
    code = "already_exists"


class Conflict(StrandlineError):
    code = "conflict"


class OutOfSync(Conflict):
    code = "out_of_sync"


class WriteConflict(Conflict):
    code = "write_conflict"


class TransactionFinished(Conflict):
    code = "transaction_finished"


class Fenced(StrandlineError):
    code = "fenced"


class WrongEnvironment(Fenced):
    code = "wrong_environment"


class StoreMoved(StrandlineError):
    code = "store_moved"


class HoldExpired(StrandlineError):
    code = "hold_expired"


class Unavailable(StrandlineError):
    code = "unavailable"


class DeadlineExceeded(Unavailable):
    code = "deadline_exceeded"


class NotFresh(Unavailable):
    code = "not_fresh"


class Overloaded(Unavailable):
    code = "overloaded"


class UnknownOutcome(Unavailable):
    code = "unknown_outcome"
    reason = ""
    """Why the outcome of a commit is unknown: all that concerns a caller who wanted to read."""

    @classmethod
    def of_commit(cls, reason: str) -> UnknownOutcome:
        """The error of a commit that a database did not confirm, because of ``reason``."""
        error = cls(
            f"{reason}; the change may or may not have been written: read before you try again"
        )
        error.reason = reason
        return error


class WrongClock(StrandlineError):
    code = "wrong_clock"


class Stopping(StrandlineError):
    code = "stopping"

    @classmethod
    def of_node(cls) -> Stopping:
        """The error of a call to a node that stops."""
        return cls("this node is stopping; use another node, or try again after it has restarted")


class CorruptData(StrandlineError):
    code = "corrupt_data"


class IncompatibleFormat(StrandlineError):
    code = "incompatible_format"


class ProtocolError(StrandlineError):
    code = "protocol_error"


class AddressInUse(StrandlineError):
    code = "address_in_use"


@dataclass(frozen=True, slots=True)
class Surface:
    """How one kind of error looks from outside.

    ``thrift`` is the exception of the Hive Metastore IDL, used where the called method declares it
    (``MetaException`` elsewhere); ``http`` the status; ``exit`` the exit status of a command.
    """

    thrift: str
    http: int
    exit: int


SURFACES: dict[type[StrandlineError], Surface] = {
    StrandlineError: Surface("MetaException", 500, 70),
    InvalidInput: Surface("InvalidObjectException", 400, 64),
    IllegalChange: Surface("InvalidOperationException", 400, 64),
    UnsupportedOperation: Surface("InvalidOperationException", 400, 64),
    PermissionDenied: Surface("MetaException", 403, 77),
    NotFound: Surface("NoSuchObjectException", 404, 66),
    TransactionNotFound: Surface("NoSuchTxnException", 404, 66),
    LockNotFound: Surface("NoSuchLockException", 404, 66),
    AlreadyExists: Surface("AlreadyExistsException", 409, 73),
    Conflict: Surface("InvalidOperationException", 409, 75),
    TransactionFinished: Surface("TxnAbortedException", 409, 75),
    Fenced: Surface("MetaException", 503, 76),
    StoreMoved: Surface("MetaException", 503, 78),
    HoldExpired: Surface("MetaException", 410, 66),
    Unavailable: Surface("MetaException", 503, 69),
    WrongClock: Surface("MetaException", 503, 78),
    Stopping: Surface("MetaException", 503, 69),
    CorruptData: Surface("MetaException", 500, 65),
    IncompatibleFormat: Surface("MetaException", 500, 78),
    ProtocolError: Surface("MetaException", 400, 76),
    AddressInUse: Surface("MetaException", 500, 71),
}


def surface_of(error: BaseException) -> Surface:
    """The surface of ``error``: that of its nearest ancestor in `SURFACES`.

    An error that is not ours is an internal one.
    """
    for kind in type(error).__mro__:
        if kind in SURFACES:
            return SURFACES[kind]
    return SURFACES[StrandlineError]


def error_of(code: str, message: str) -> StrandlineError:
    """The error that ``code`` names, as a client raises it again. Unknown codes give the root."""
    return _BY_CODE.get(code, StrandlineError)(message)


def forget_frames(error: BaseException) -> None:
    """Forget where ``error`` and the errors before it were raised, once nothing shows it any more.

    A traceback keeps the variables of its functions in memory. One of them may be the error itself,
    or what has it as its result; then only a garbage collection would free them all.
    """
    pending: list[BaseException | None] = [error]
    while pending:
        shown = pending.pop()
        if shown is not None and shown.__traceback__ is not None:
            shown.__traceback__ = None
            pending += (shown.__cause__, shown.__context__)


def end_frames(error: BaseException) -> None:
    """End the ``with`` blocks that the functions which ``error`` has left could not end.

    If a signal handler raises just as a block begins or ends, what the block holds is given back
    with the last reference to it, and the traceback keeps one. It keeps no variables after this.
    """
    traceback.clear_frames(error.__traceback__)
    gc.collect(1)  # a transaction and its connection refer to each other; they are new


def _leaves(kind: type[StrandlineError]) -> dict[str, type[StrandlineError]]:
    leaves = {kind.code: kind}
    for sub in kind.__subclasses__():
        leaves |= _leaves(sub)
    return leaves


_BY_CODE = _leaves(StrandlineError)
