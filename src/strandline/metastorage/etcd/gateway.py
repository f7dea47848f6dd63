"""The one seam to etcd: its JSON gateway, spoken through httpx.

What it adds to HTTP is the answer to one question: *may it have happened?* A call that only
reads, or that may be made twice without harm (``repeatable``), goes to the next endpoint after
any failure. A transaction that changes something goes to the next endpoint only while it is
certain that nothing was sent (no connection was made) or that the server refused it unheard (it
has no leader). After that a failure is `UnknownOutcome`, and the caller settles it by reading.

Every request asks for a member that has a leader, so a member that is cut off from the others
says so at once.

`close` ends calls that wait for an answer. A blocked read of a socket ends when another thread
shuts that socket down, so each connection's socket is remembered as it is made; httpx tells of it
through the ``trace`` extension. Rejected: the asynchronous client on a loop of its own, which can
be cancelled but costs twice the time for each call.
"""

from __future__ import annotations

import json
import os
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any
from weakref import WeakSet

import httpx

from strandline.errors import (
    DeadlineExceeded,
    InvalidInput,
    Stopping,
    Unavailable,
    UnknownOutcome,
    UnsupportedOperation,
)
from strandline.metastorage.etcd.messages import (
    Json,
    Page,
    Pair,
    TxnAnswer,
    page_of,
    range_operation,
    to_text,
)

PAGE_KEYS = 256
_IDLE_WATCH_SECONDS = 10.0
_CLOSING_SECONDS = 5.0
# The gateway is spoken to without TLS; httpx would load every authority's certificate for it.
_NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
_NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
_REFUSED_UNHEARD = ("no leader", "too many requests")
# The status codes of gRPC that the gateway passes on.
_CODE_RESOURCE_EXHAUSTED = 8
_CODE_OUT_OF_RANGE = 11
_CODES_REFUSED = frozenset({3, 5, 7, 9, 12, 16})


class CompactedRevision(Unavailable):
    """The history at the revision that was asked for is gone; read again at a newer one."""


class _AskAnother(Exception):
    """This endpoint did not do it; another one may be asked. Never leaves this module."""

    def __init__(self, told: str, *, slow: bool) -> None:
        super().__init__(told)
        self.slow = slow


class EtcdGateway:
    """Calls to one etcd cluster. Safe for threads; of one process, not of its forks.

    ``endpoints`` are ``host:port``; a call that has no answer after ``timeout`` seconds ends with
    `DeadlineExceeded`, or `UnknownOutcome` where it may have changed something; ``open_outcomes``
    counts these.
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
        """One linearizable read, or one of the past where ``revision`` is given."""
        asked = range_operation(key, end, limit=limit, revision=revision, keys_only=keys_only)
        return page_of(self._call("kv/range", asked["request_range"], repeatable=True))

    def pages(self, key: bytes, end: bytes, *, limit: int | None = None) -> Page:
        """A range of any size as it stood at one moment, read in pages at the first one's revision.

        Raises `CompactedRevision` when that moment's history is gone before the last page.
        """
        found: list[Pair] = []
        revision = 0
        while True:
            room = PAGE_KEYS if limit is None else min(PAGE_KEYS, limit - len(found))
            page = self.range(key, end, limit=room, revision=revision)
            found += page.pairs
            # The revision of a page of the past is the present one.
            revision = revision or page.revision
            if not page.more or len(found) == limit:
                return Page(found, page.more, revision)
            key = found[-1].key + b"\0"

    def put(self, key: bytes, value: bytes) -> None:
        """Write one key that is the caller's alone, so that writing it twice is harmless."""
        self._call("kv/put", {"key": to_text(key), "value": to_text(value)}, repeatable=True)

    def txn(
        self,
        compares: Sequence[Json],
        success: Sequence[Json],
        failure: Sequence[Json] = (),
        *,
        repeatable: bool,
    ) -> TxnAnswer:
        """One transaction of etcd. ``repeatable`` says that making it twice does no harm."""
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
        """The watch messages on a range from now on; the first says ``created``.

        The iteration ends with a kind of `Unavailable` when the connection does, or when nothing
        was heard for ten seconds, which a server that is gone without a word looks like.
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

    def close(self) -> None:
        """End every call that is under way with `Stopping`, and close the connections."""
        if self._process != os.getpid():
            return  # the connections of a fork are its parent's
        with self._lock:
            self._closed = True
            sockets = list(self._sockets)
        for connection in sockets:
            _shut_down(connection)
        with self._lock:
            self._lock.wait_for(lambda: self._calls == 0, timeout=_CLOSING_SECONDS)
        self._client.close()

    def _call(self, path: str, body: Json, *, repeatable: bool) -> Json:
        content = json.dumps(body)
        attempts = len(self.endpoints) + 1
        finish = time.monotonic() + self.timeout
        failures: dict[str, _AskAnother] = {}
        with self._call_under_way():
            for left in range(attempts, 0, -1):
                endpoint = self.endpoints[self._preferred]
                patience = max(finish - time.monotonic(), 0.001)
                try:
                    return self._post(
                        endpoint,
                        path,
                        content,
                        repeatable=repeatable,
                        connect=patience / left,
                        answer=patience / left if repeatable else patience,
                    )
                except UnknownOutcome:
                    with self._lock:
                        self.open_outcomes += 1
                    raise
                except _AskAnother as error:
                    failures[endpoint] = error
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
        """One request to one endpoint."""
        try:
            response = self._client.post(
                f"http://{endpoint}/v3/{path}",
                content=content,
                timeout=httpx.Timeout(answer, connect=connect),
                extensions={"trace": self._trace},
            )
        except httpx.TransportError as error:
            self._refuse_when_closed()
            said = str(error) or type(error).__name__
            if not repeatable and not isinstance(error, _NOT_SENT):
                raise _unknown(endpoint, said) from error
            slow = isinstance(error, httpx.TimeoutException)
            raise _AskAnother(f"{endpoint}: {said}", slow=slow) from error
        found: object = None
        with suppress(ValueError):
            found = response.json()
        done = response.status_code == httpx.codes.OK
        if not isinstance(found, dict) or (done and "header" not in found):
            # Something in between may have handed the request on, and lost the answer.
            said = (
                f"it answered {path} with status {response.status_code} and not as etcd does; is"
                " it etcd 3.4 or later, with its gateway enabled?"
            )
            raise (
                _AskAnother(f"{endpoint}: {said}", slow=False)
                if repeatable
                else _unknown(endpoint, said)
            )
        if not done:
            raise _refusal(endpoint, found, repeatable=repeatable)
        return found

    @contextmanager
    def _call_under_way(self) -> Iterator[None]:
        if self._process != os.getpid():
            raise UnsupportedOperation(
                f"etcd ({', '.join(self.endpoints)}) was opened by process {self._process}, before"
                " this one was forked; open it here anew"
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
            raise Stopping("the metastorage was closed here; a call under way may have happened")

    def _prefer_another(self, failed: str) -> None:
        with self._lock:
            if self.endpoints[self._preferred] == failed:
                self._preferred = (self._preferred + 1) % len(self.endpoints)

    def _trace(self, event: str, details: Mapping[str, Any]) -> None:
        """Remember the socket of a new connection, so that `close` can reach it."""
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
        raise InvalidInput(f"no etcd can be at {endpoint!r}: {error}") from None


def _shut_down(connection: socket.socket) -> None:
    with suppress(OSError):  # its other end was first
        connection.shutdown(socket.SHUT_RDWR)


def _refusal(endpoint: str, found: Json, *, repeatable: bool) -> Exception:
    """The error for an answer that is not 200: what etcd said, and whether it may have happened."""
    code, said = found.get("code"), str(found.get("message") or found.get("error") or found)
    if code == _CODE_OUT_OF_RANGE:
        return CompactedRevision(f"etcd {endpoint}: {said}; read again")
    if code == _CODE_RESOURCE_EXHAUSTED and "space exceeded" in said:
        # etcd does the write that goes over its quota on the way to the log, and says this then.
        said += (
            "; compact and defragment it, or raise its --quota-backend-bytes, and disarm its alarm"
        )
        return Unavailable(f"{endpoint}: {said}") if repeatable else _unknown(endpoint, said)
    if code in _CODES_REFUSED:
        return Unavailable(f"etcd {endpoint} refused the request and did nothing: {said}")
    if repeatable or any(word in said for word in _REFUSED_UNHEARD):
        return _AskAnother(f"{endpoint}: {said}", slow=False)
    return _unknown(endpoint, said)


def _unknown(endpoint: str, said: str) -> UnknownOutcome:
    return UnknownOutcome(
        f"a write was sent to etcd {endpoint} and not acknowledged ({said}); it may or may not have"
        " happened: read what it would have written"
    )


def _of_all(failures: Mapping[str, _AskAnother]) -> Unavailable:
    """One error for a call that no endpoint answered."""
    slow = all(failure.slow for failure in failures.values())
    told = "; ".join(str(failure) for failure in failures.values())
    return (DeadlineExceeded if slow else Unavailable)(
        f"no etcd endpoint answered ({told}); nothing was done. Start etcd, or correct the"
        " endpoints in the store's address"
    )


def _watch_message(line: str, endpoint: str) -> Json:
    message: object = None
    with suppress(ValueError):
        message = json.loads(line)
    if not isinstance(message, dict):
        raise Unavailable(f"the watch at {endpoint} sent no JSON; is it etcd?")
    found: Json = message.get("result", {})
    if "error" in message or found.get("canceled"):
        said = message.get("error") or found.get("cancel_reason") or "no reason given"
        raise Unavailable(f"the watch at etcd {endpoint} was cancelled: {said}")
    return found
