"""The one interface to etcd: its JSON gateway, through httpx.

This module adds the answer to one question to HTTP: *may the request have taken effect?* A call
that only reads, or that is safe to repeat (``repeatable``), goes to the next endpoint after any
failure. A transaction that changes something goes to the next endpoint only if nothing was sent
(there was no connection) or if the server refused it without processing it (it has no leader, or
the token of the user is old). Any other failure is `UnknownOutcome`, and the caller settles it by
reading.

Every request requires a member that has a leader, so a member that is cut off from the others fails
at once. If no member has one, they are probably electing it. Then, and if no member can be reached,
a call waits for the end of the `Outage`.

All answers must come from the cluster that gave the first one. The address may later lead to
another, with another catalog: a node would take its versions for new ones of its own. An endpoint
of another cluster counts as one that did not answer.

`close` ends calls that wait for an answer. A blocked read of a socket ends when another thread
shuts the socket down. So the gateway keeps the socket of each connection, which httpx reports
through its ``trace`` extension. Rejected: an asynchronous client on its own event loop (it can be
cancelled, but each call takes twice as long).

Calls that run at the same time have a client each. The pool of one client for all threads can close
a connection as idle that another thread has just begun to use (encode/httpcore#1110), which would
make the outcome of a write unknown.
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
from enum import Enum, auto
from typing import Any
from weakref import WeakSet

import httpx

from strandline.condition import Condition
from strandline.errors import (
    DeadlineExceeded,
    InvalidInput,
    Stopping,
    Unavailable,
    UnknownOutcome,
    UnsupportedOperation,
)
from strandline.metastorage.etcd.access import PASSWORD_VARIABLE, ClientTls, EtcdAddress, Login
from strandline.metastorage.etcd.operations import (
    Json,
    Page,
    Pair,
    TxnAnswer,
    page_of,
    range_operation,
    to_text,
)
from strandline.outage import Outage, answer_deadline
from strandline.sql import GIVE_UP_SECONDS, StoreFull

PAGE_KEYS = 256
MAKE_ROOM = "Compact and defragment it, or raise its --quota-backend-bytes, and disarm its alarm"
"""What to do about a full etcd."""
TRY_SECONDS = 2.0
"""How long a call waits for a member that may hang before it asks another one."""
CONNECT_SECONDS = 5.0
"""How long a call waits for a connection, as to a machine that is off, before it tries again."""
WRITE_SECONDS = 10.0
"""How long a write waits for one of several members. By default, etcd answers within 7 seconds."""
_IDLE_WATCH_SECONDS = 10.0
_CLOSING_SECONDS = 5.0
_IDLE_CLIENTS = 32
# For a gateway without TLS: httpx would otherwise load all certificate authorities.
_NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
_NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
_NO_LEADER = "no leader"
_REFUSED_UNHEARD = (_NO_LEADER, "too many requests", "not supported for learner")
# The status codes of gRPC that the gateway passes on.
_CODE_RESOURCE_EXHAUSTED = 8
_CODE_OUT_OF_RANGE = 11
_CODE_PERMISSION_DENIED = 7
_CODE_FAILED_PRECONDITION = 9
_CODE_UNAUTHENTICATED = 16
_CODES_REFUSED = frozenset({3, 5, 7, 9, 12, 16})
_OTHER_CLUSTER = (
    "it belongs to another etcd cluster than the one that this process has opened; if that one is"
    " to be used, start the process again"
)
_OLD_TOKEN = ("user name is empty", "revision of auth store is old")


class CompactedRevision(Unavailable):
    """The requested revision was compacted; read again at a newer one."""


class FullOutcome(UnknownOutcome):
    """etcd has no space. It may have carried out the write nevertheless; a read settles it."""


class Refused(Unavailable):
    """etcd did nothing, and says why: ``grpc_code`` and ``reason``.

    ``needs_login`` says that the request had no token, or one that the server no longer accepts.
    """

    grpc_code = 0
    reason = ""
    needs_login = False

    @classmethod
    def of(cls, endpoint: str, grpc_code: int, reason: str, address: EtcdAddress) -> Refused:
        needs_login = grpc_code == _CODE_UNAUTHENTICATED or any(
            words in reason for words in _OLD_TOKEN
        )
        message = f"etcd {endpoint} refused the request and did nothing: {reason}"
        lacks_permission = grpc_code == _CODE_PERMISSION_DENIED
        if not address.user and (lacks_permission or needs_login):
            message += "; name a user in the store's address: etcd://USER@HOST:PORT/PREFIX"
        elif lacks_permission:
            message += (
                f"; grant a role of {address.user!r} the prefix: `etcdctl role grant-permission"
                f" ROLE --prefix=true readwrite {address.prefix}/`"
            )
        error = cls(message)
        error.grpc_code, error.reason, error.needs_login = grpc_code, reason, needs_login
        return error


class _Trouble(Enum):
    """Why an endpoint did nothing."""

    SLOW = auto()  # it did not answer in time
    AWAY = auto()  # it cannot be reached
    ELECTING = auto()  # it has no leader
    OTHER = auto()  # what will most likely last


_Failures = dict[str, tuple[str, _Trouble]]
"""Why each endpoint did nothing. Without the errors: their frames would keep it in memory."""


class _AskAnother(Exception):
    """This endpoint did nothing; try another one. Never leaves this module."""

    def __init__(self, reason: str, trouble: _Trouble = _Trouble.OTHER) -> None:
        super().__init__(reason)
        self.trouble = trouble


class EtcdGateway:
    """Calls to one etcd cluster. Safe for threads, but not for use after a fork.

    A call without an answer fails after ``timeout`` seconds, or at the `answer_deadline` of its
    thread, with `DeadlineExceeded`, or with `UnknownOutcome` if it may have changed something:
    after `WRITE_SECONDS` if another endpoint can be asked. ``open_outcomes`` counts the writes that
    may still be on their way.
    """

    def __init__(self, address: EtcdAddress, *, timeout: float) -> None:
        for endpoint in address.endpoints:
            _check_endpoint(endpoint)
        self.endpoints = address.endpoints
        self.timeout = timeout
        self._address = address
        self._tls = ClientTls(address) if address.has_tls else None
        self._scheme = "https" if self._tls else "http"
        self._login = Login()
        self._process = os.getpid()
        self.open_outcomes = 0
        self._preferred = 0
        self._cluster: str | None = None  # the id of the cluster that has answered
        self._idle_clients: list[httpx.Client] = []
        self._sockets: WeakSet[socket.socket] = WeakSet()
        self._handshaking: dict[int, socket.socket] = {}
        """Copies of the sockets that are in a TLS handshake, by thread."""
        self._lock = Condition()
        self._calls = 0
        self._outage = Outage(f"etcd ({', '.join(self.endpoints)})")
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

    def pages(self, key: bytes, end: bytes, *, limit: int | None) -> Page:
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
        failures: _Failures = {}
        answer = self._call("kv/txn", body, repeatable=repeatable, failures=failures)
        revision = int(answer["header"]["revision"])
        pages = [
            page_of(response["response_range"], revision)
            for response in answer.get("responses", ())
            if "response_range" in response
        ]
        return TxnAnswer(bool(answer.get("succeeded")), revision, pages, bool(failures))

    @contextmanager
    def watch(self, key: bytes, end: bytes) -> Iterator[Iterator[Json]]:
        """The watch messages on a range from now on; the first one has ``created``.

        The iteration ends with `Unavailable` or a subclass when the connection ends, or after ten
        seconds without a message, since the server may be gone.
        """
        request = {"create_request": {"key": to_text(key), "range_end": to_text(end)}}
        limits = httpx.Timeout(_IDLE_WATCH_SECONDS, connect=CONNECT_SECONDS)
        with self._call_under_way():
            token = self._token()
            endpoint = self.endpoints[self._preferred]  # the login may have changed it
            has_begun = False
            try:
                with (
                    self._client() as client,
                    client.stream(
                        "POST",
                        f"{self._scheme}://{endpoint}/v3/watch",
                        content=json.dumps(request),
                        headers=_authorization(token),
                        timeout=limits,
                        extensions={"trace": self._trace},
                    ) as response,
                ):
                    has_begun = True
                    try:
                        yield (
                            self._watch_message(line, endpoint) for line in response.iter_lines()
                        )
                    finally:
                        response.close()
                        # It and its stream refer to each other. A collection that sees a watch
                        # frees neither, and the later ones do not visit them.
                        response.stream = httpx.ByteStream(b"")
            except httpx.TransportError as error:
                self._refuse_when_closed()
                # Silence is usual. If the member hangs, the next call or watch will notice.
                if not (has_begun and isinstance(error, httpx.ReadTimeout)):
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
        while self._idle_clients:
            self._idle_clients.pop().close()

    def _call(
        self,
        path: str,
        body: Json,
        *,
        repeatable: bool,
        needs_token: bool = True,
        failures: _Failures | None = None,
    ) -> Json:
        """The answer of the first member that gives one; ``failures`` gets those before it."""
        content = json.dumps(body)
        longest_write = WRITE_SECONDS if len(self.endpoints) > 1 else self.timeout
        began = time.monotonic()
        failures = {} if failures is None else failures
        with self._call_under_way():
            for left in self._attempts(failures, began):
                token = self._token() if needs_token else ""
                endpoint = self.endpoints[self._preferred]  # the login may have changed it
                seconds_left = max(self._end(began) - time.monotonic(), 0.001)
                share = min(seconds_left / left, TRY_SECONDS) if left > 1 else seconds_left
                if self._outage.is_long():  # all members hang, and threads of the node would too
                    share = min(share, CONNECT_SECONDS)
                try:
                    return self._post(
                        endpoint,
                        path,
                        content,
                        token=token,
                        repeatable=repeatable,
                        connect=min(share, CONNECT_SECONDS),
                        answer=share if repeatable else min(seconds_left, longest_write),
                    )
                except Refused as error:
                    if not (needs_token and self._address.user and error.needs_login):
                        raise
                    self._login.forget(token)
                    failures[endpoint] = str(error), _Trouble.OTHER
                except FullOutcome:
                    raise
                except _AskAnother as error:
                    failures[endpoint] = str(error), error.trouble
                    self._prefer_another(endpoint)
                except BaseException as error:  # Ctrl-C too leaves a write on its way
                    if not repeatable:
                        with self._lock:
                            self.open_outcomes += 1
                    if isinstance(error, UnknownOutcome):
                        self._prefer_another(endpoint)
                    raise
        raise _of_all(failures)

    def _end(self, began: float) -> float:
        """When a call that has ``began`` ends. A gateway that gives up ends it earlier."""
        return min(began + self.timeout, answer_deadline())

    def _attempts(self, failures: _Failures, began: float) -> Iterator[int]:
        """For each attempt of a call, how many are left of its round."""
        yield from range(len(self.endpoints) + 1, 0, -1)
        while True:
            troubles = {trouble for _, trouble in failures.values()}
            if _Trouble.OTHER in troubles or not self._outage.pause(
                _reasons(failures),
                timeout=self.timeout,
                end=self._end(began),
                has_answered=_Trouble.ELECTING in troubles,
            ):
                return
            yield from range(len(self.endpoints), 0, -1)

    def _token(self) -> str:
        """The token of the user, or "" if the address names none, or etcd knows no users."""
        if not self._address.user:
            return ""
        seconds_left = max(answer_deadline() - time.monotonic(), 0.0)
        return self._login.token(self._log_in, timeout=min(self.timeout, seconds_left))

    def _log_in(self) -> str:
        user = self._address.user
        body = {"name": user, "password": self._address.password}
        try:
            answer = self._call("auth/authenticate", body, repeatable=True, needs_token=False)
        except Refused as error:
            if error.grpc_code == _CODE_FAILED_PRECONDITION:  # it has no users
                return ""
            raise Unavailable(
                f"etcd refused the login of {user!r}: {error.reason}; correct the user in the"
                f" store's address, and the password there or in {PASSWORD_VARIABLE}"
            ) from error
        return str(answer["token"])

    def _post(
        self,
        endpoint: str,
        path: str,
        content: str,
        *,
        token: str,
        repeatable: bool,
        connect: float,
        answer: float,
    ) -> Json:
        try:
            with self._client() as client:
                response = client.post(
                    f"{self._scheme}://{endpoint}/v3/{path}",
                    content=content,
                    headers=_authorization(token),
                    timeout=httpx.Timeout(answer, connect=connect),
                    extensions={"trace": self._trace},
                )
        except httpx.TransportError as error:
            reason = str(error) or type(error).__name__
            if not repeatable and not isinstance(error, _NOT_SENT):
                raise _unknown(endpoint, reason) from error  # also if the gateway was closed
            self._refuse_when_closed()
            is_slow = isinstance(error, httpx.TimeoutException)
            trouble = _Trouble.SLOW if is_slow else _Trouble.AWAY
            raise _AskAnother(f"{endpoint}: {reason}", trouble) from error
        answer_body: object = None
        with suppress(ValueError):
            answer_body = response.json()
        succeeded = response.status_code == httpx.codes.OK
        if not isinstance(answer_body, dict) or (
            succeeded and not isinstance(answer_body.get("header"), dict)
        ):
            # A proxy in between may have forwarded the request and lost the answer.
            reason = (
                f"it answered {path} with status {response.status_code}, which is not an answer "
                "of etcd; is it etcd 3.4 or later, with its gateway enabled, and"
                f" {'with' if self._tls else 'without'} TLS?"
            )
            raise (
                _AskAnother(f"{endpoint}: {reason}") if repeatable else _unknown(endpoint, reason)
            )
        if not succeeded:
            raise _refusal(endpoint, answer_body, self._address, repeatable=repeatable)
        if self._is_of_other_cluster(answer_body):
            raise _AskAnother(f"{endpoint}: {_OTHER_CLUSTER}")
        self._outage.end()
        return answer_body

    def _is_of_other_cluster(self, answer: Json) -> bool:
        cluster: str | None = answer.get("header", {}).get("cluster_id", self._cluster)
        self._cluster = self._cluster or cluster
        return cluster != self._cluster

    def _watch_message(self, line: str, endpoint: str) -> Json:
        message: object = None
        with suppress(ValueError):
            message = json.loads(line)
        if not isinstance(message, dict):
            raise Unavailable(f"the watch at {endpoint} did not send JSON; is it etcd?")
        result: Json = message.get("result", {})
        if "error" in message or result.get("canceled"):
            reason = message.get("error") or result.get("cancel_reason") or "no reason given"
            raise Unavailable(f"the watch at etcd {endpoint} was cancelled: {reason}")
        if self._is_of_other_cluster(result):
            raise Unavailable(f"the watch at etcd {endpoint} ended: {_OTHER_CLUSTER}")
        return result

    @contextmanager
    def _client(self) -> Iterator[httpx.Client]:
        """A client that no other call uses meanwhile."""
        try:
            client = self._idle_clients.pop()
        except IndexError:
            client = httpx.Client(
                headers={"Grpc-Metadata-hasleader": "true", "Content-Type": "application/json"},
                trust_env=False,
                verify=self._tls.context if self._tls else _NO_TLS,
            )
        try:
            yield client
        finally:
            if self._closed or len(self._idle_clients) >= _IDLE_CLIENTS:
                client.close()
            else:
                self._idle_clients.append(client)

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
            raise Stopping(
                "the store was closed in this process; a running call may have taken effect"
            )

    def _prefer_another(self, failed: str) -> None:
        with self._lock:
            if self.endpoints[self._preferred] == failed:
                self._preferred = (self._preferred + 1) % len(self.endpoints)

    def _trace(self, event: str, details: Mapping[str, Any]) -> None:
        """Keep the socket of a new connection, so that `close` can shut it down."""
        layer, _, stage = event.removeprefix("connection.").partition(".")
        if layer == "start_tls" and self._tls:
            if stage == "started":
                self._tls.begin_handshake()
            else:
                self._tls.end_handshake()
                copy = self._handshaking.pop(threading.get_ident(), None)
                if copy is not None:
                    copy.close()
        if layer not in ("connect_tcp", "start_tls") or stage != "complete":
            return
        connection = details["return_value"].get_extra_info("socket")
        if layer == "connect_tcp" and self._tls:
            # The handshake takes the socket away; a copy of it ends the handshake just as well.
            with suppress(OSError):  # too many files are open
                connection = self._handshaking[threading.get_ident()] = connection.dup()
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
    with suppress(OSError):  # the server has closed it already, or TLS has taken it over
        # Not that of a TLS socket, which would let a thread that reads it fail with a ValueError.
        socket.socket.shutdown(connection, socket.SHUT_RDWR)


def _authorization(token: str) -> dict[str, str]:
    return {"Authorization": token} if token else {}


def _refusal(endpoint: str, answer: Json, address: EtcdAddress, *, repeatable: bool) -> Exception:
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
    if code in _CODES_REFUSED:
        return Refused.of(endpoint, code, reason, address)
    if repeatable or any(word in reason for word in _REFUSED_UNHEARD):
        trouble = _Trouble.ELECTING if _NO_LEADER in reason else _Trouble.OTHER
        return _AskAnother(f"{endpoint}: {reason}", trouble)
    return _unknown(endpoint, reason)


def _unknown(endpoint: str, reason: str) -> UnknownOutcome:
    return UnknownOutcome(
        f"a write was sent to etcd {endpoint} but not acknowledged ({reason}); it may or may not "
        "have taken effect: read the keys that it writes before you repeat it"
    )


def _reasons(failures: _Failures) -> str:
    # In an order that stays: the log of a node has a message once until it changes.
    return "; ".join(sorted(reason for reason, _ in failures.values()))


def _of_all(failures: _Failures) -> Unavailable:
    """One error for a call that no endpoint answered."""
    slow = all(trouble is _Trouble.SLOW for _, trouble in failures.values())
    return (DeadlineExceeded if slow else Unavailable)(
        f"no etcd endpoint answered ({_reasons(failures)}); nothing was done. Start etcd, or"
        " correct the endpoints and the options in the store's address"
    )
