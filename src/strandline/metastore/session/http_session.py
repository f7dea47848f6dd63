"""`HttpSession`: a session over HTTP with a node.

The problem: a connection can break between the request and its answer, and a node may be killed and
restarted. The caller must then learn what happened, or that the outcome is unknown, and nothing may
happen twice.

Every call is one of these:

* **repeatable**: it reads, or doing it twice has the effect of doing it once (a heartbeat, staging,
  the end of a hold). It is sent again until it is answered or the session's time-out has passed,
  also if the node's database did not confirm it. So is the begin of a transaction, and a new hold:
  one whose answer was lost is never used, and times out.
* **settled**: commit and abort. If the answer is lost, the session *asks* the node for the state of
  the transaction, by its id. The state decides: the call is done, is sent again, or is refused. A
  request that is still on its way does no harm, since each takes effect only once.
* **sent once**: DDL. It has no id yet to ask for. If the answer is lost, the session raises
  `UnknownOutcome`, whose message says how to find out. A request that was never sent (nothing
  accepted the connection) is sent again like any other.

What must stay true: an error that the node answered is raised as it is, except after an attempt
whose answer was lost. Then only those of `_ABOUT_THE_CALL` are: others, such as that of a fenced
node, say nothing about that attempt. A commit is reported as unknown only if the node did not say
until the deadline what became of it. Between attempts the session waits, longer each time, with a
random factor so that many clients do not return at the same moment.

Rejected: an id for each request that the node remembers. It would have to survive the node's crash,
in the transaction of the change itself: a table for what the transaction's own id already settles.
"""

from __future__ import annotations

import inspect
import logging
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from strandline.catalog import Command
from strandline.errors import (
    AlreadyExists,
    Conflict,
    InvalidInput,
    NotFound,
    ProtocolError,
    Stopping,
    StoreMoved,
    StrandlineError,
    TransactionFinished,
    Unavailable,
    UnknownOutcome,
)
from strandline.metastore.interface import (
    PRESENT,
    AsOf,
    Executed,
    Session,
    Snapshot,
    distinct_names,
    time_limit,
)
from strandline.metastore.session.field_types import checked_batch, session_calls
from strandline.metastore.session.http_transport import HttpTransport, Lost
from strandline.metastore.session.staged_files import check_staging
from strandline.metastore.store.rows import DataFile, DeleteFile
from strandline.transactions import Transaction, TransactionState

P = ParamSpec("P")
T = TypeVar("T")

logger = logging.getLogger(__name__)

DEFAULT_TIMEOUT = 60.0
FIRST_PAUSE = 0.02
LONGEST_PAUSE = 1.0
LEAST_SHARE = 1.0
WARN_AFTER = 3.0
"""Seconds without an answer after which a session logs that it goes on trying."""
_ANSWER_MARGIN = 5.0
"""Seconds that the session waits for DDL beyond the time that the node may take for it."""
_ABOUT_THE_CALL = (InvalidInput, NotFound, AlreadyExists, Conflict)
"""Errors that say what became of a call, or that no attempt at it can succeed."""


def _repeated(
    call: Callable[Concatenate[Any, P], T], *, in_shares: bool = True
) -> Callable[Concatenate[HttpSession, P], T]:
    """The method that sends ``call``, a repeatable method of `Session`, with its own arguments.

    ``in_shares`` is that of `HttpSession._repeat`.
    """
    parameters = list(inspect.signature(call).parameters.values())[1:]
    names = [parameter.name for parameter in parameters]
    defaults = {p.name: p.default for p in parameters if p.default is not p.empty}

    @wraps(call, updated=())  # `call` says in its dictionary that it is abstract
    def repeated(session: HttpSession, /, *arguments: P.args, **named: P.kwargs) -> T:
        call(session, *arguments, **named)  # abstract: only refuses wrong arguments
        given = {**defaults, **dict(zip(names, arguments, strict=False)), **named}
        return session._repeat(call, in_shares=in_shares, **given)

    return repeated


@session_calls
class HttpSession(Session):
    """A user's session with the node at ``url`` (``http://host:port``).

    ``secret`` authenticates the user to a node that requires it. ``timeout`` is how many seconds a
    call may wait for the node, including everything that is done to settle it. An answer whose
    bytes keep coming may take longer. Once the node has received DDL, only the ``timeout`` of
    that call counts. Errors are those of `Session`.
    Calls also raise `Unavailable` if the node does not answer in time, and `ProtocolError` if
    something other than a node answers.
    """

    def __init__(
        self, url: str, *, user: str, secret: str | None = None, timeout: float = DEFAULT_TIMEOUT
    ) -> None:
        self._user = user
        self._transport = HttpTransport(url, user=user, secret=secret)
        self._timeout = time_limit(timeout)
        self._closed = threading.Event()

    def __repr__(self) -> str:
        return f"<HttpSession {self.url} user={self._user!r}>"

    @property
    def url(self) -> str:
        return self._transport.url

    # -- catalog -------------------------------------------------------------------------------

    def execute(self, commands: Command | Sequence[Command], *, timeout: float = 30.0) -> Executed:
        batch = commands if isinstance(commands, Sequence) else [commands]
        return self._change(Session.execute, timeout, commands=checked_batch(batch))

    table = _repeated(Session.table)
    schemas = _repeated(Session.schemas)
    tables = _repeated(Session.tables)
    history = _repeated(Session.history)
    compact = _repeated(Session.compact)
    differences = _repeated(Session.differences)

    def undo(self, version: int, *, through: int | None = None, timeout: float = 30.0) -> Executed:
        return self._change(Session.undo, timeout, version=version, through=through)

    def undrop(self, name: str, *, kind: str = "table", timeout: float = 30.0) -> Executed:
        return self._change(Session.undrop, timeout, name=name, kind=kind)

    def undrop_partitions(self, name: str, *, partitions: Sequence[str] = ()) -> list[str]:
        return self._send_once(
            Session.undrop_partitions,
            {"name": name, "partitions": partitions},
            look="list the partitions of the table: either all of them are back, or none is",
        )

    data_history = _repeated(Session.data_history)
    status = _repeated(Session.status)
    roles = _repeated(Session.roles)
    parameters = _repeated(Session.parameters)

    # -- for the operator of the store ---------------------------------------------------------

    config = _repeated(Session.config)
    clean = _repeated(Session.clean, in_shares=False)
    dump = _repeated(Session.dump, in_shares=False)
    verify = _repeated(Session.verify, in_shares=False)

    # -- snapshots -----------------------------------------------------------------------------

    def open(
        self, names: Sequence[str], *, at: AsOf = PRESENT, txn_id: int | None = None
    ) -> Snapshot:
        return self._repeat(Session.open, names=distinct_names(names), at=at, txn_id=txn_id)

    files = _repeated(Session.files)
    hold = _repeated(Session.hold)
    renew_hold = _repeated(Session.renew_hold)
    release_hold = _repeated(Session.release_hold)
    storage_usage = _repeated(Session.storage_usage)
    holders = _repeated(Session.holders)

    # -- transactions --------------------------------------------------------------------------

    begin = _repeated(Session.begin)
    transaction = _repeated(Session.transaction)
    heartbeat = _repeated(Session.heartbeat)

    def stage(
        self,
        txn_id: int,
        table_id: int,
        *,
        add: Sequence[DataFile | DeleteFile] = (),
        remove: Sequence[str] = (),
        touch: Sequence[str] = (),
    ) -> int:
        check_staging(add, remove=remove, touch=touch)
        attempts = self._attempts(
            f"staging files of table {table_id} in transaction {txn_id}",
            look="abort the transaction, and begin again",
        )
        arguments = {
            "txn_id": txn_id,
            "table_id": table_id,
            "add": add,
            "remove": remove,
            "touch": touch,
        }
        write_id: int = self._send_until_answered("stage", arguments, attempts)
        return write_id

    def commit(self, txn_id: int) -> Transaction:
        return self._settle("commit", txn_id, TransactionState.COMMITTED)

    def abort(self, txn_id: int) -> Transaction:
        return self._settle("abort", txn_id, TransactionState.ABORTED)

    def close(self) -> None:
        self._closed.set()
        self._transport.close()

    # -- lost answers --------------------------------------------------------------------------

    # In these, ``call`` is the method of `Session` that the node is asked to call.

    def _repeat(self, call: Callable[..., T], /, *, in_shares: bool = True, **arguments: Any) -> T:
        """Send a call that may be sent any number of times.

        Without ``in_shares``, an attempt may take all of the time: for a call that the node begins
        anew at each attempt, and that may take long.
        """
        name = call.__name__
        answer: T = self._send_until_answered(
            name, arguments, self._attempts(name), in_shares=in_shares
        )
        return answer

    def _send_until_answered(
        self,
        name: str,
        arguments: Mapping[str, Any],
        attempts: _Attempts,
        *,
        in_shares: bool = True,
    ) -> Any:
        while True:
            try:
                seconds = attempts.share() if in_shares else attempts.left()
                return self._transport.send(name, arguments, seconds)
            except Lost as loss:
                attempts.pause(loss)
            except _ABOUT_THE_CALL:
                raise
            except StrandlineError as error:  # an earlier attempt may have succeeded
                if not (attempts.is_unknown or isinstance(error, UnknownOutcome)):
                    raise
                attempts.pause(Lost(error.message, sent=True, answer=error))

    def _change(
        self, call: Callable[..., Executed], timeout: float, /, **arguments: Any
    ) -> Executed:
        """Send a call that makes a version of the catalog."""
        timeout = time_limit(timeout)
        executed: Executed = self._send_once(
            call,
            {**arguments, "timeout": timeout},
            answer_timeout=timeout + _ANSWER_MARGIN,
            look="look at `history()`: it lists the newest versions, with their authors",
        )
        return executed

    def _send_once(
        self,
        call: Callable[..., T],
        arguments: Mapping[str, Any],
        *,
        look: str,
        answer_timeout: float | None = None,
    ) -> T:
        """Send a call that must not reach the node twice; ``answer_timeout`` is for its answer."""
        attempts = self._attempts(call.__name__, look=look, longest=answer_timeout)
        while True:
            try:
                seconds = attempts.left() if answer_timeout is None else answer_timeout
                answer: T = self._transport.send(call.__name__, arguments, seconds)
                return answer
            except Lost as loss:
                if loss.sent and isinstance(loss.answer, Stopping):
                    raise loss.answer from None
                if loss.sent:
                    raise attempts.unknown(loss) from loss
                attempts.pause(loss)

    def _settle(self, name: str, txn_id: int, wanted_state: TransactionState) -> Transaction:
        """End a transaction. After a lost answer, its state decides what to do next."""
        attempts = self._attempts(
            f"the {name} of transaction {txn_id}",
            look=f"look at `transaction({txn_id})` when the node is back",
            always_unknown=True,
        )
        while True:
            failure: StrandlineError | None = None
            try:
                ended: Transaction = self._transport.send(
                    name, {"txn_id": txn_id}, attempts.share()
                )
                return ended
            except Lost as loss:
                attempts.pause(loss)
            except _ABOUT_THE_CALL:
                raise
            except StrandlineError as error:
                if type(error) is StrandlineError:
                    failure = error  # the node did not expect it: before or after the end?
                # In an unknown outcome the node does not know, but can look it up.
                elif attempts.may_have_happened or isinstance(error, UnknownOutcome):
                    attempts.pause(Lost(error.message, sent=True, answer=error))
                else:
                    raise
            transaction: Transaction = self._send_until_answered(
                "transaction", {"txn_id": txn_id}, attempts
            )
            if transaction.state is wanted_state:
                return transaction
            if transaction.state is not TransactionState.OPEN:
                raise TransactionFinished(
                    f"transaction {txn_id} is {transaction.state.name.lower()}, so its {name} did "
                    "not happen; the answer that says why was lost"
                )
            if failure is not None:
                raise failure

    def _attempts(
        self,
        what: str,
        *,
        look: str = "",
        longest: float | None = None,
        always_unknown: bool = False,
    ) -> _Attempts:
        return _Attempts(
            f"{self.url} did not answer {what}",
            look=look,
            seconds=self._timeout if longest is None else min(self._timeout, longest),
            closed=self._closed,
            always_unknown=always_unknown,
        )


class _Attempts:
    """The attempts at one call, until its deadline.

    ``look`` says what to do about an unknown outcome; it is empty if the outcome does not matter.
    With ``always_unknown``, the final error is `UnknownOutcome` even if no attempt reached the
    node.
    """

    def __init__(
        self,
        what: str,
        *,
        look: str,
        seconds: float,
        closed: threading.Event,
        always_unknown: bool,
    ) -> None:
        self._what = what
        self._look = look
        self._seconds = seconds
        self._end = time.monotonic() + seconds
        self._closed = closed
        self._pause = FIRST_PAUSE
        self._has_warned = False
        self._always_unknown = always_unknown
        self.may_have_happened = False
        """Whether an attempt was sent whose outcome matters and is not known."""
        self._answer: StrandlineError | None = None

    @property
    def is_unknown(self) -> bool:
        """Whether the final error would be `UnknownOutcome` now."""
        return self.may_have_happened or self._always_unknown

    def left(self) -> float:
        """Seconds until the deadline, but at least enough for one attempt."""
        return max(self._end - time.monotonic(), 0.05)

    def share(self) -> float:
        """Seconds for one attempt, such that time for another one is left."""
        seconds_left = self.left()
        return max(seconds_left / 2, min(seconds_left, LEAST_SHARE))

    def pause(self, loss: Lost) -> None:
        """Wait before the next attempt; raise if the deadline has passed.

        Raises at once if the next attempt would fail too, unless the outcome is unknown by then.
        """
        self.may_have_happened |= loss.sent and bool(self._look)
        if isinstance(loss.answer, ProtocolError | StoreMoved) and not self.may_have_happened:
            raise loss.answer from loss
        self._answer = loss.answer or self._answer  # the last attempt may have no time for one
        seconds_left = self._end - time.monotonic()
        if seconds_left <= 0 or self._closed.is_set():
            raise (self.unknown(loss) if self.is_unknown else self._unreachable(loss)) from loss
        if not self._has_warned and self._elapsed() >= WARN_AFTER:
            self._has_warned = True
            logger.warning("%s yet (%s); trying for %d s more", self._what, loss.why, seconds_left)
        self._closed.wait(min(seconds_left, max(self._pause, loss.wait) * random.uniform(0.5, 1.5)))
        self._pause = min(self._pause * 2, LONGEST_PAUSE)

    def unknown(self, loss: Lost) -> UnknownOutcome:
        """The error for an outcome that cannot be known now."""
        return UnknownOutcome(
            f"{self._what} within {self._elapsed():.1f} s ({loss.why}); it may or may not have "
            f"happened; {self._look}"
        )

    def _elapsed(self) -> float:
        return self._seconds - (self._end - time.monotonic())

    def _unreachable(self, loss: Lost) -> StrandlineError:
        look = "is it running, and is this its HTTP address?"
        if loss.sent:  # something has taken the request
            look = (
                "is this its HTTP address, with https:// if it has a certificate? If so, its page "
                "/health/ready says what it waits for"
            )
        return self._answer or Unavailable(
            f"{self._what} within {self._seconds:g} s ({loss.why}); {look}"
        )
