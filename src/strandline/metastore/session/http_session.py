"""`HttpSession`: a session over HTTP with a node.

The problem: a connection can break between the request and its answer, and a node may be killed and
restarted. The caller must then learn what happened, or that the outcome is unknown, and nothing may
happen twice.

Every call is one of these:

* **repeatable**: it reads, or doing it twice has the effect of doing it once (a heartbeat, staging,
  the end of a hold). It is sent again until it is answered or the session's time-out has passed.
* **settled**: commit and abort. If the answer is lost, the session *asks* the node for the state of
  the transaction, by its id. The state decides: the call is done, is sent again, or is refused. A
  request that is still on its way does no harm, since each takes effect only once.
* **sent once**: DDL, a new transaction, a new hold. These have no id yet to ask for. If the answer
  is lost, the session raises `UnknownOutcome`, whose message says where to look. A request that was
  never sent (nothing accepted the connection) is sent again like any other.

What must stay true: an error that the node answered is raised as it is. A commit is reported as
unknown only if the node did not answer until the deadline. Between attempts the session waits,
longer each time, with a random factor so that many clients do not return at the same moment.

Rejected: an id for each request that the node remembers. It would have to survive the node's crash,
in the transaction of the change itself: a table for what the transaction's own id already settles.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from strandline.catalog import Command, VersionInfo
from strandline.catalog.configuration import ParameterValue
from strandline.catalog.differences import Difference
from strandline.catalog.storage_usage import StorageUsage
from strandline.clock import Timestamp
from strandline.config import SettingValue
from strandline.errors import (
    StrandlineError,
    TransactionFinished,
    Unavailable,
    UnknownOutcome,
)
from strandline.metastore.inspection import VerificationReport
from strandline.metastore.interface import (
    MOST_COMMITS,
    PRESENT,
    AsOf,
    CatalogStatus,
    ColumnBounds,
    Executed,
    ResolvedTable,
    Role,
    Session,
    Snapshot,
    TableFiles,
    distinct_names,
)
from strandline.metastore.session.http_transport import HttpTransport, Lost
from strandline.metastore.session.staged_files import check_staging
from strandline.metastore.store.cleaning import Cleanable
from strandline.metastore.store.data_history import DataCommit
from strandline.metastore.store.rows import DataFile, DeleteFile
from strandline.transactions import (
    Hold,
    Holders,
    Transaction,
    TransactionState,
    ValidWriteIdList,
)

DEFAULT_TIMEOUT = 60.0
LONGEST_TIMEOUT = 365 * 86_400.0
"""Longer timeouts, such as `math.inf`, are cut to this: a socket and JSON have limits."""
FIRST_PAUSE = 0.02
LONGEST_PAUSE = 1.0
LEAST_SHARE = 1.0
_ANSWER_MARGIN = 5.0
"""Seconds that the session waits for DDL beyond the time that the node may take for it."""


class HttpSession(Session):
    """A user's session with the node at ``url`` (``http://host:port``).

    ``secret`` authenticates the user to a node that requires it. ``timeout`` is how many seconds a
    call may take, including everything that is done to settle it. Errors are those of `Session`.
    Calls also raise `Unavailable` if the node does not answer in time, and `ProtocolError` if
    something other than a node answers. Also a context manager that closes the session.
    """

    def __init__(
        self, url: str, *, user: str, secret: str | None = None, timeout: float = DEFAULT_TIMEOUT
    ) -> None:
        self._transport = HttpTransport(url, user=user, secret=secret)
        self._timeout = min(timeout, LONGEST_TIMEOUT)
        self._closed = threading.Event()

    @property
    def url(self) -> str:
        """The address of the node."""
        return self._transport.url

    # -- catalog -------------------------------------------------------------------------------

    def execute(self, commands: Command | Sequence[Command], *, timeout: float = 30.0) -> Executed:
        return self._change("execute", timeout, commands=commands)

    def table(self, name: str, *, at: AsOf = PRESENT) -> ResolvedTable:
        table: ResolvedTable = self._repeat("table", name=name, at=at)
        return table

    def tables(self, schema: str, *, at: AsOf = PRESENT) -> list[str]:
        names: list[str] = self._repeat("tables", schema=schema, at=at)
        return names

    def history(self, *, start: int = 1, end: int | None = None) -> list[VersionInfo]:
        versions: list[VersionInfo] = self._repeat("history", start=start, end=end)
        return versions

    def compact(self, version: int) -> bool:
        was_trimmed: bool = self._repeat("compact", version=version)
        return was_trimmed

    def differences(self, old: AsOf, new: AsOf = PRESENT) -> tuple[Difference, ...]:
        differences: tuple[Difference, ...] = self._repeat("differences", old=old, new=new)
        return differences

    def undo(self, version: int, *, through: int | None = None, timeout: float = 30.0) -> Executed:
        return self._change("undo", timeout, version=version, through=through)

    def undrop(self, name: str, *, kind: str = "table", timeout: float = 30.0) -> Executed:
        return self._change("undrop", timeout, name=name, kind=kind)

    def undrop_partitions(self, name: str, *, partitions: Sequence[str] = ()) -> list[str]:
        names: list[str] = self._once(
            "undrop_partitions",
            {"name": name, "partitions": partitions},
            look="list the partitions of the table: either all of them are back, or none is",
        )
        return names

    def data_history(
        self,
        *,
        since: Timestamp | None = None,
        until: Timestamp | None = None,
        table: str | None = None,
        limit: int = MOST_COMMITS,
    ) -> list[DataCommit]:
        commits: list[DataCommit] = self._repeat(
            "data_history", since=since, until=until, table=table, limit=limit
        )
        return commits

    def status(self) -> CatalogStatus:
        status: CatalogStatus = self._repeat("status")
        return status

    def roles(self) -> list[Role]:
        roles: list[Role] = self._repeat("roles")
        return roles

    def parameters(self) -> list[ParameterValue]:
        parameters: list[ParameterValue] = self._repeat("parameters")
        return parameters

    # -- for the operator of the store ---------------------------------------------------------

    def config(self) -> list[SettingValue]:
        settings: list[SettingValue] = self._repeat("config")
        return settings

    def clean(self) -> Cleanable:
        cleanable: Cleanable = self._repeat("clean", in_shares=False)
        return cleanable

    def dump(self, *, ignore: Sequence[str] = (), stats_only: bool = False) -> bytes:
        dump: bytes = self._repeat("dump", in_shares=False, ignore=ignore, stats_only=stats_only)
        return dump

    def verify(self, *, pages: bool = False) -> VerificationReport:
        report: VerificationReport = self._repeat("verify", in_shares=False, pages=pages)
        return report

    # -- snapshots -----------------------------------------------------------------------------

    def open(
        self, names: Sequence[str], *, at: AsOf = PRESENT, txn_id: int | None = None
    ) -> Snapshot:
        snapshot: Snapshot = self._repeat("open", names=distinct_names(names), at=at, txn_id=txn_id)
        return snapshot

    def files(
        self,
        table_id: int,
        write_ids: ValidWriteIdList,
        *,
        bounds: Sequence[ColumnBounds] = (),
    ) -> TableFiles:
        files: TableFiles = self._repeat(
            "files", table_id=table_id, write_ids=write_ids, bounds=bounds
        )
        return files

    def hold(
        self, kind: str, owner: str | None = None, *, at: Timestamp, ttl_ms: int = 60_000
    ) -> Hold:
        hold: Hold = self._once(
            "hold",
            {"kind": kind, "owner": owner, "at": at, "ttl_ms": ttl_ms},
            look="take another hold: a hold that is not renewed expires by itself",
        )
        return hold

    def renew_hold(self, hold_id: int, *, ttl_ms: int = 60_000) -> Hold:
        hold: Hold = self._repeat("renew_hold", hold_id=hold_id, ttl_ms=ttl_ms)
        return hold

    def release_hold(self, hold_id: int) -> None:
        self._repeat("release_hold", hold_id=hold_id)

    def storage_usage(self, table: str | None = None) -> list[StorageUsage]:
        usage: list[StorageUsage] = self._repeat("storage_usage", table=table)
        return usage

    def holders(self) -> Holders:
        holders: Holders = self._repeat("holders")
        return holders

    # -- transactions --------------------------------------------------------------------------

    def begin(self, *, read_only: bool = False) -> Transaction:
        begun: Transaction = self._once(
            "begin",
            {"read_only": read_only},
            look="begin another transaction: an unused transaction times out by itself",
        )
        return begun

    def transaction(self, txn_id: int) -> Transaction:
        transaction: Transaction = self._repeat("transaction", txn_id=txn_id)
        return transaction

    def heartbeat(self, txn_id: int) -> None:
        self._repeat("heartbeat", txn_id=txn_id)

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

    def __enter__(self) -> HttpSession:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- lost answers --------------------------------------------------------------------------

    def _repeat(self, name: str, /, *, in_shares: bool = True, **arguments: Any) -> Any:
        """Send a call that may be sent any number of times.

        Without ``in_shares``, an attempt may take all of the time: for a call that the node begins
        anew at each attempt, and that may take long.
        """
        return self._send_until_answered(name, arguments, self._attempts(name), in_shares=in_shares)

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

    def _change(self, call: str, timeout: float, /, **arguments: Any) -> Executed:
        """Send a call that makes a version of the catalog."""
        timeout = min(timeout, LONGEST_TIMEOUT)
        executed: Executed = self._once(
            call,
            {**arguments, "timeout": timeout},
            patience=timeout + _ANSWER_MARGIN,
            look="look at `history()`: it lists the newest versions, with their authors",
        )
        return executed

    def _once(
        self, name: str, arguments: Mapping[str, Any], *, look: str, patience: float | None = None
    ) -> Any:
        """Send a call that must not reach the node twice."""
        attempts = self._attempts(name, look=look, seconds=patience)
        while True:
            try:
                return self._transport.send(name, arguments, attempts.left())
            except Lost as loss:
                if loss.sent and loss.answer is not None:
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
            except UnknownOutcome as error:  # the node does not know, but can look it up
                attempts.pause(Lost(error.message, sent=True, answer=error))
            except StrandlineError as error:
                if type(error) is not StrandlineError:
                    raise
                failure = error  # an error that the node did not expect: before or after the end?
            transaction = self._ask(txn_id, attempts)
            if transaction.state is wanted_state:
                return transaction
            if transaction.state is not TransactionState.OPEN:
                raise TransactionFinished(
                    f"transaction {txn_id} is {transaction.state.name.lower()}, so its {name} did "
                    "not happen; the answer that says why was lost"
                )
            if failure is not None:
                raise failure

    def _ask(self, txn_id: int, attempts: _Attempts) -> Transaction:
        transaction: Transaction = self._send_until_answered(
            "transaction", {"txn_id": txn_id}, attempts
        )
        return transaction

    def _attempts(
        self,
        what: str,
        *,
        look: str = "",
        seconds: float | None = None,
        always_unknown: bool = False,
    ) -> _Attempts:
        return _Attempts(
            f"{self.url} did not answer {what}",
            look=look,
            seconds=self._timeout if seconds is None else seconds,
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
        self._unknown = always_unknown
        self._answer: StrandlineError | None = None

    def left(self) -> float:
        """Seconds until the deadline, but at least enough for one attempt."""
        return max(self._end - time.monotonic(), 0.05)

    def share(self) -> float:
        """Seconds for one attempt, such that time for another one is left."""
        seconds_left = self.left()
        return max(seconds_left / 2, min(seconds_left, LEAST_SHARE))

    def pause(self, loss: Lost) -> None:
        """Wait before the next attempt; raise if the deadline has passed."""
        self._unknown = self._unknown or (loss.sent and bool(self._look))
        self._answer = loss.answer or self._answer  # the last attempt may have no time for one
        seconds_left = self._end - time.monotonic()
        if seconds_left <= 0 or self._closed.is_set():
            raise (self.unknown(loss) if self._unknown else self._away(loss)) from loss
        self._closed.wait(min(seconds_left, max(self._pause, loss.wait) * random.uniform(0.5, 1.5)))
        self._pause = min(self._pause * 2, LONGEST_PAUSE)

    def unknown(self, loss: Lost) -> UnknownOutcome:
        """The error for an outcome that cannot be known now."""
        return UnknownOutcome(
            f"{self._what} within {self._passed():.1f} s ({loss.why}); it may or may not have "
            f"happened; {self._look}"
        )

    def _passed(self) -> float:
        """Seconds since the call began."""
        return self._seconds - (self._end - time.monotonic())

    def _away(self, loss: Lost) -> StrandlineError:
        return self._answer or Unavailable(
            f"{self._what} within {self._seconds:g} s ({loss.why}); is it running?"
        )
