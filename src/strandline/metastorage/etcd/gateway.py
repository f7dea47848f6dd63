"""The one interface to etcd: its JSON gateway, through httpx.

This module adds the answer to one question to HTTP: *may the request have taken effect?* A call
that only reads, or that is safe to repeat (``repeatable``), goes to the next endpoint after any
failure. A transaction that changes something goes to the next endpoint only if nothing was sent
(there was no connection) or if the server refused it without processing it (it has no leader). Any
other failure is `UnknownOutcome`, and the caller settles it by reading.

Every request requires a member that has a leader, so a member that is cut off from the others fails
at once.

`close` ends calls that wait for an answer. A blocked read of a socket ends when another thread
shuts the socket down. So the gateway keeps the socket of each connection, which httpx reports
through its ``trace`` extension. Rejected: an asynchronous client on its own event loop (it can be
cancelled, but each call takes twice as long).

The gateway encodes keys and values as base64 and 64-bit numbers as text, and omits fields that are
zero or empty.
"""

from __future__ import annotations

import base64
import json
import os
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any
from weakref import WeakSet

import httpx

from strandline.errors import (
    CorruptData,
    DeadlineExceeded,
    InvalidInput,
    Stopping,
    Unavailable,
    UnknownOutcome,
    UnsupportedOperation,
)
from strandline.metastorage.store import StoreFull
from strandline.sql import GIVE_UP_SECONDS

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Pair:
    """A key of etcd; ``modified`` is etcd's own revision of its last write."""

    key: bytes
    value: bytes
    modified: int


@dataclass(frozen=True, slots=True)
class Page:
    """The answer to one range; ``revision`` is etcd's at the moment of the read."""

    pairs: list[Pair]
    more: bool
    revision: int

    @property
    def value(self) -> bytes | None:
        """The value of the first key, or None if there is none."""
        return self.pairs[0].value if self.pairs else None

    @property
    def modified(self) -> int:
        """`Pair.modified` of the first key, or 0 if there is none."""
        return self.pairs[0].modified if self.pairs else 0


@dataclass(frozen=True, slots=True)
class TxnAnswer:
    """Which branch was taken, at which revision of etcd, and what its ranges found, in order."""

    succeeded: bool
    revision: int
    pages: list[Page]


def range_operation(
    key: bytes,
    end: bytes | None = None,
    *,
    limit: int = 0,
    revision: int = 0,
    keys_only: bool = False,
) -> Json:
    """Read one key, or the keys from ``key`` to below ``end``; ``revision`` 0 is the latest."""
    return {
        "request_range": {
            "key": to_text(key),
            **({} if end is None else {"range_end": to_text(end)}),
            "limit": limit,
            "revision": revision,
            "keys_only": keys_only,
        }
    }


def put_operation(key: bytes, value: bytes) -> Json:
    return {"request_put": {"key": to_text(key), "value": to_text(value)}}


def delete_operation(key: bytes, end: bytes | None = None) -> Json:
    bounds = {"key": to_text(key)} | ({} if end is None else {"range_end": to_text(end)})
    return {"request_delete_range": bounds}


def if_modified_at(key: bytes, modified: int) -> Json:
    """The key was last written in that revision of etcd; 0 means that it does not exist."""
    return {"key": to_text(key), "target": "MOD", "result": "EQUAL", "mod_revision": modified}


def if_value_below(key: bytes, value: bytes) -> Json:
    """The key exists with a value whose bytes order before ``value``."""
    return {"key": to_text(key), "target": "VALUE", "result": "LESS", "value": to_text(value)}


def if_present(key: bytes) -> Json:
    return {"key": to_text(key), "target": "VERSION", "result": "GREATER", "version": 0}


def page_of(answer: Json, revision: int = 0) -> Page:
    """A range decoded from the gateway's JSON."""
    pairs = [
        Pair(from_text(pair["key"]), from_text(pair.get("value", "")), int(pair["mod_revision"]))
        for pair in answer.get("kvs", ())
    ]
    return Page(pairs, bool(answer.get("more")), revision or int(answer["header"]["revision"]))


def to_text(raw: bytes) -> str:
    """The bytes as the gateway reads them: base64."""
    return base64.b64encode(raw).decode()


def from_text(text: str) -> bytes:
    """The bytes that the gateway wrote as base64."""
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        raise CorruptData(f"etcd's gateway sent {text[:40]!r} where base64 was expected") from None


PAGE_KEYS = 256
MAKE_ROOM = "Compact and defragment it, or raise its --quota-backend-bytes, and disarm its alarm"
"""What to do about a full etcd."""
TRY_SECONDS = 2.0
"""How long a call waits for a member that may hang before it asks another one."""
WRITE_SECONDS = 10.0
"""How long a write waits for one of several members. By default, etcd answers within 7 seconds."""
_IDLE_WATCH_SECONDS = 10.0
_CLOSING_SECONDS = 5.0
# The gateway is used without TLS; httpx would otherwise load all certificate authorities.
_NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
_NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
_REFUSED_UNHEARD = ("no leader", "too many requests")
# The status codes of gRPC that the gateway passes on.
_CODE_RESOURCE_EXHAUSTED = 8
_CODE_OUT_OF_RANGE = 11
_CODES_REFUSED = frozenset({3, 5, 7, 9, 12, 16})
_CODES_LACK_USER = frozenset({7, 16})


class CompactedRevision(Unavailable):
    """The requested revision was compacted; read again at a newer one."""


class FullOutcome(UnknownOutcome):
    """etcd has no space. It may have carried out the write nevertheless; a read settles it."""


class _AskAnother(Exception):
    """This endpoint did nothing; try another one. Never leaves this module."""

    def __init__(self, reason: str, *, slow: bool) -> None:
        super().__init__(reason)
        self.slow = slow


class EtcdGateway:
    """Calls to one etcd cluster. Safe for threads, but not for use after a fork.

    ``endpoints`` are ``host:port``. A call without an answer fails after ``timeout`` seconds, with
    `DeadlineExceeded`, or with `UnknownOutcome` if it may have changed something: after
    `WRITE_SECONDS` if another endpoint can be asked. ``open_outcomes`` counts the writes that may
    still be on their way.
    """

    def __init__(self, endpoints: Sequence[str], *, timeout: float) -> None:
        for endpoint in endpoints:
            _check_endpoint(endpoint)
        self.endpoints = tuple(endpoints)
        self.timeout = timeout
        self._process = os.getpid()
        self.open_outcomes = 0
        self._preferred = 0
        self._client = httpx.Client(
            headers={"Grpc-Metadata-hasleader": "true", "Content-Type": "application/json"},
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=32),
            trust_env=False,
            verify=_NO_TLS,
        )
        self._sockets: WeakSet[socket.socket] = WeakSet()
        self._lock = threading.Condition()
        self._calls = 0
        self._ending: threading.Timer | None = None  # of calls that were given up
        self._closed = False

    def range(
        self,
        key: bytes,
        end: bytes | None = None,
        *,
        limit: int = 0,
        revision: int = 0,
        keys_only: bool = False,
    ) -> Page:
        """A linearizable read; with ``revision``, a read of the past."""
        operation = range_operation(key, end, limit=limit, revision=revision, keys_only=keys_only)
        return page_of(self._call("kv/range", operation["request_range"], repeatable=True))

    def pages(self, key: bytes, end: bytes, *, limit: int | None = None) -> Page:
        """A range of any size at one moment, read in pages at the revision of the first page.

        Raises `CompactedRevision` if that revision is compacted before the last page is read.
        """
        pairs: list[Pair] = []
        revision = 0
        while True:
            room = PAGE_KEYS if limit is None else min(PAGE_KEYS, limit - len(pairs))
            page = self.range(key, end, limit=room, revision=revision)
            pairs += page.pairs
            # A page of the past reports the present revision.
            revision = revision or page.revision
            if not page.more or len(pairs) == limit:
                return Page(pairs, page.more, revision)
            key = pairs[-1].key + b"\0"

    def put(self, key: bytes, value: bytes) -> None:
        """Write a key that no other caller writes, so that writing it twice is harmless."""
        self._call("kv/put", {"key": to_text(key), "value": to_text(value)}, repeatable=True)

    def txn(
        self,
        compares: Sequence[Json],
        success: Sequence[Json],
        failure: Sequence[Json] = (),
        *,
        repeatable: bool,
    ) -> TxnAnswer:
        """One transaction of etcd. ``repeatable`` says that it is safe to run it twice."""
        body = {"compare": [*compares], "success": [*success], "failure": [*failure]}
        answer = self._call("kv/txn", body, repeatable=repeatable)
        revision = int(answer["header"]["revision"])
        pages = [
            page_of(response["response_range"], revision)
            for response in answer.get("responses", ())
            if "response_range" in response
        ]
        return TxnAnswer(bool(answer.get("succeeded")), revision, pages)

    @contextmanager
    def watch(self, key: bytes, end: bytes) -> Iterator[Iterator[Json]]:
        """The watch messages on a range from now on; the first one has ``created``.

        The iteration ends with `Unavailable` or a subclass when the connection ends, or after ten
        seconds without a message, since the server may be gone.
        """
        request = {"create_request": {"key": to_text(key), "range_end": to_text(end)}}
        endpoint = self.endpoints[self._preferred]
        limits = httpx.Timeout(self.timeout, read=_IDLE_WATCH_SECONDS)
        with self._call_under_way():
            try:
                with self._client.stream(
                    "POST",
                    f"http://{endpoint}/v3/watch",
                    content=json.dumps(request),
                    timeout=limits,
                    extensions={"trace": self._trace},
                ) as response:
                    yield (_watch_message(line, endpoint) for line in response.iter_lines())
            except httpx.TransportError as error:
                self._refuse_when_closed()
                self._prefer_another(endpoint)
                raise Unavailable(f"the watch at etcd {endpoint} ended: {error}") from error

    def give_up(self) -> None:
        """See `Metastorage.give_up`. Idempotent."""
        if self._ending is not None:
            return
        self.timeout = min(self.timeout, GIVE_UP_SECONDS)
        self._ending = threading.Timer(self.timeout, self._end_calls)
        self._ending.daemon = True
        self._ending.start()

    def _end_calls(self) -> None:
        with self._lock:
            sockets = list(self._sockets)
        for connection in sockets:
            _shut_down(connection)

    def close(self) -> None:
        """End every running call, and close the connections.

        With `Stopping`, or with `UnknownOutcome` if it may have changed something.
        """
        if self._process != os.getpid():
            return  # the connections belong to the parent process
        if self._ending is not None:
            self._ending.cancel()
        with self._lock:
            self._closed = True
        self._end_calls()
        with self._lock:
            self._lock.wait_for(lambda: self._calls == 0, timeout=_CLOSING_SECONDS)
        self._client.close()

    def _call(self, path: str, body: Json, *, repeatable: bool) -> Json:
        content = json.dumps(body)
        attempts = len(self.endpoints) + 1
        longest_write = WRITE_SECONDS if len(self.endpoints) > 1 else self.timeout
        began = time.monotonic()
        # Without the errors, whose frames refer to this dictionary: they would stay in memory.
        failures: dict[str, tuple[str, bool]] = {}
        with self._call_under_way():
            for left in range(attempts, 0, -1):
                endpoint = self.endpoints[self._preferred]
                patience = max(began + self.timeout - time.monotonic(), 0.001)
                share = min(patience / left, TRY_SECONDS) if left > 1 else patience
                try:
                    return self._post(
                        endpoint,
                        path,
                        content,
                        repeatable=repeatable,
                        connect=share,
                        answer=share if repeatable else min(patience, longest_write),
                    )
                except FullOutcome:
                    raise
                except UnknownOutcome:
                    with self._lock:
                        self.open_outcomes += 1
                    self._prefer_another(endpoint)
                    raise
                except _AskAnother as error:
                    failures[endpoint] = str(error), error.slow
                    self._prefer_another(endpoint)
        raise _of_all(failures)

    def _post(
        self,
        endpoint: str,
        path: str,
        content: str,
        *,
        repeatable: bool,
        connect: float,
        answer: float,
    ) -> Json:
        try:
            response = self._client.post(
                f"http://{endpoint}/v3/{path}",
                content=content,
                timeout=httpx.Timeout(answer, connect=connect),
                extensions={"trace": self._trace},
            )
        except httpx.TransportError as error:
            reason = str(error) or type(error).__name__
            if not repeatable and not isinstance(error, _NOT_SENT):
                raise _unknown(endpoint, reason) from error  # also if the gateway was closed
            self._refuse_when_closed()
            slow = isinstance(error, httpx.TimeoutException)
            raise _AskAnother(f"{endpoint}: {reason}", slow=slow) from error
        answer_body: object = None
        with suppress(ValueError):
            answer_body = response.json()
        succeeded = response.status_code == httpx.codes.OK
        if not isinstance(answer_body, dict) or (succeeded and "header" not in answer_body):
            # A proxy in between may have forwarded the request and lost the answer.
            reason = (
                f"it answered {path} with status {response.status_code}, which is not an answer "
                "of etcd; is it etcd 3.4 or later, without TLS, and with its gateway enabled?"
            )
            raise (
                _AskAnother(f"{endpoint}: {reason}", slow=False)
                if repeatable
                else _unknown(endpoint, reason)
            )
        if not succeeded:
            raise _refusal(endpoint, answer_body, repeatable=repeatable)
        return answer_body

    @contextmanager
    def _call_under_way(self) -> Iterator[None]:
        if self._process != os.getpid():
            raise UnsupportedOperation(
                f"etcd ({', '.join(self.endpoints)}) was opened by process {self._process} before "
                "this process was forked; open it again in this process"
            )
        with self._lock:
            self._refuse_when_closed()
            self._calls += 1
        try:
            yield
        finally:
            with self._lock:
                self._calls -= 1
                self._lock.notify_all()

    def _refuse_when_closed(self) -> None:
        if self._closed:
            raise Stopping("the metastorage was closed here; a running call may have taken effect")

    def _prefer_another(self, failed: str) -> None:
        with self._lock:
            if self.endpoints[self._preferred] == failed:
                self._preferred = (self._preferred + 1) % len(self.endpoints)

    def _trace(self, event: str, details: Mapping[str, Any]) -> None:
        """Keep the socket of a new connection, so that `close` can shut it down."""
        if event != "connection.connect_tcp.complete":
            return
        connection = details["return_value"].get_extra_info("socket")
        with self._lock:
            self._sockets.add(connection)
            closed = self._closed
        if closed:
            _shut_down(connection)


def _check_endpoint(endpoint: str) -> None:
    try:
        httpx.URL(f"http://{endpoint}").host.encode("idna")
    except (httpx.InvalidURL, UnicodeError) as error:
        raise InvalidInput(f"{endpoint!r} is not a valid address of etcd: {error}") from None


def _shut_down(connection: socket.socket) -> None:
    with suppress(OSError):  # the server has closed it already
        connection.shutdown(socket.SHUT_RDWR)


def _refusal(endpoint: str, answer: Json, *, repeatable: bool) -> Exception:
    """The error for a status other than 200: what etcd said, and whether it took effect."""
    code, reason = answer.get("code"), str(answer.get("message") or answer.get("error") or answer)
    if code == _CODE_OUT_OF_RANGE:
        return CompactedRevision(f"etcd {endpoint}: {reason}; read again")
    if code == _CODE_RESOURCE_EXHAUSTED and "space exceeded" in reason:
        # The write that exceeds the quota gets this answer too, and is carried out.
        if repeatable:
            return StoreFull(
                f"etcd {endpoint} is full ({reason}); nothing was written. {MAKE_ROOM}"
            )
        return FullOutcome(
            f"etcd {endpoint} is full ({reason}); the change may or may not have been written. "
            f"{MAKE_ROOM}"
        )
    if code in _CODES_LACK_USER or "user name is empty" in reason:
        reason += "; nodes use etcd without a user: `etcdctl auth disable` lets them in"
    if code in _CODES_REFUSED:
        return Unavailable(f"etcd {endpoint} refused the request and did nothing: {reason}")
    if repeatable or any(word in reason for word in _REFUSED_UNHEARD):
        return _AskAnother(f"{endpoint}: {reason}", slow=False)
    return _unknown(endpoint, reason)


def _unknown(endpoint: str, reason: str) -> UnknownOutcome:
    return UnknownOutcome(
        f"a write was sent to etcd {endpoint} but not acknowledged ({reason}); it may or may not "
        "have taken effect: read the keys that it writes before you repeat it"
    )


def _of_all(failures: Mapping[str, tuple[str, bool]]) -> Unavailable:
    """One error for a call that no endpoint answered; each failure has its reason and `slow`."""
    slow = all(is_slow for _, is_slow in failures.values())
    reasons = "; ".join(reason for reason, _ in failures.values())
    return (DeadlineExceeded if slow else Unavailable)(
        f"no etcd endpoint answered ({reasons}); nothing was done. Start etcd, or correct the"
        " endpoints in the store's address"
    )


def _watch_message(line: str, endpoint: str) -> Json:
    message: object = None
    with suppress(ValueError):
        message = json.loads(line)
    if not isinstance(message, dict):
        raise Unavailable(f"the watch at {endpoint} did not send JSON; is it etcd?")
    result: Json = message.get("result", {})
    if "error" in message or result.get("canceled"):
        reason = message.get("error") or result.get("cancel_reason") or "no reason given"
        raise Unavailable(f"the watch at etcd {endpoint} was cancelled: {reason}")
    return result
