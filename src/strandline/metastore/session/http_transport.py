"""One request of a session over HTTP: sent, and then answered, refused or lost.

Each outcome becomes one of three: the result; an error that the node answered, raised as the class
that it has there; or `Lost`, if it is unknown whether the node has executed the request. The
session decides what to do about `Lost`.

The address of a node may lead to a node of another store later. The first result says which store
the node serves, and each later request names it. A node of another store then refuses the request.

A write is three small requests. So a request is written to a socket as one piece of bytes, and the
parser that the node's own server uses reads the answer. A general HTTP client costs as much for
each request as the node takes to answer, and Python's own client parses headers as mail headers.
"""

from __future__ import annotations

import os
import select
import socket
import ssl
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import SplitResult, quote, urlsplit

import httptools

from strandline import __version__
from strandline.errors import (
    InvalidInput,
    Overloaded,
    ProtocolError,
    Stopping,
    StoreMoved,
    StrandlineError,
)
from strandline.metastore.interface import require_user
from strandline.metastore.session.callers import AUTHORIZATION, basic
from strandline.metastore.session.calls import (
    CALLS,
    PROTOCOL,
    PROTOCOL_HEADER,
    STORE_HEADER,
    USER_HEADER,
)
from strandline.metastore.session.wire_json import read_error

CONNECT_TIMEOUT = 5.0
_IDLE_SECONDS = 2.0
"""An idle connection is closed before the node, which waits 5 s, can close it during a request."""
_MAX_IDLE = 32
_LONGEST_WAIT = 10
"""The maximum number of seconds to wait before a retry, even if a node asks for more."""
_GATEWAY_STATUSES = frozenset(range(500, 600)) - {501, 505}
"""The statuses of a gateway between client and node that cannot reach the node, or that fails.

With the other two, a server of another kind says that it does not take such requests."""
_OK = 200
_READ_BYTES = 64 * 1024
_PROTOCOL_NAME, _STORE_NAME = PROTOCOL_HEADER.lower(), STORE_HEADER.lower()


class Lost(Exception):
    """The request may have been executed or not, or may still be executed.

    ``sent`` says whether the node can have begun to execute it. ``answer`` is the node's error if
    it is stopping or overloaded, or a `ProtocolError` or `StoreMoved` if the next attempt would
    most likely fail too. ``wait`` is the number of seconds that the node asks the client to wait.
    """

    def __init__(
        self,
        why: str,
        *,
        sent: bool,
        answer: StrandlineError | None = None,
        wait: float = 0.0,
    ) -> None:
        super().__init__(why)
        self.wait = wait
        self.why = why
        self.sent = sent
        self.answer = answer


class _Answer:
    """An answer, filled by the parser's callbacks; names in ``headers`` are in lower case."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.may_be_followed = False
        """Whether the connection can be used for another request."""
        self._parts: list[bytes] = []
        self._is_whole = False
        self._parser = httptools.HttpResponseParser(self)

    @property
    def body(self) -> bytes:
        return self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)

    def read_from(self, connection: socket.socket) -> None:
        """Read the answer. Raises `OSError` if the connection fails."""
        while not self._is_whole:
            data = connection.recv(_READ_BYTES)
            if not data:
                if not self._ends_with_its_connection():
                    raise ConnectionResetError(
                        "the connection ended before the answer was complete"
                    )
                return
            try:
                self._parser.feed_data(data)
            except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
                raise ConnectionError(f"the answer is not HTTP: {error}") from error

    def _ends_with_its_connection(self) -> bool:
        """Whether a body has begun whose length is not in the head."""
        lengths = self.headers.keys() & {"content-length", "transfer-encoding"}
        return self.status > 0 and not lengths

    def on_message_begin(self) -> None:
        if self._is_whole:
            raise ConnectionError("the node sent two answers to one request")

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.setdefault(name.decode("latin-1").lower(), value.decode("latin-1"))

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()
        self.may_be_followed = self._parser.should_keep_alive()

    def on_body(self, part: bytes) -> None:
        self._parts.append(part)

    def on_message_complete(self) -> None:
        if self.status < _OK:  # an interim answer, which precedes the final one
            self.status = 0
            self.headers.clear()
        else:
            self._is_whole = True


class HttpTransport:
    """The connections of one user to the node at ``url``. Safe to use from several threads."""

    def __init__(self, url: str, *, user: str, secret: str | None = None) -> None:
        self._address = _address_of(url)
        self.url = url.rstrip("/")
        self._prefix = self._address.path.rstrip("/")
        headers = {
            "Host": self._address.netloc,
            USER_HEADER: quote(require_user(user), safe=" @"),
            PROTOCOL_HEADER: PROTOCOL,
        }
        if secret is not None:
            headers[AUTHORIZATION] = basic(user, secret)
        self._headers = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        self._store: str | None = None
        """The environment id of the store, from the first result; None if the node names none."""
        self._security = ssl.create_default_context() if self._address.scheme == "https" else None
        self._lock = threading.Lock()
        self._idle: list[tuple[socket.socket, float]] = []
        self._process = os.getpid()
        self._is_closed = False

    def send(self, name: str, arguments: Mapping[str, Any], seconds: float) -> Any:
        """Return the result of one call; wait at most ``seconds`` for each of its steps.

        Raises the node's error, `ProtocolError` if not a node of this protocol refuses the call,
        `StoreMoved` if the result is of another store than the first one, or `Lost`.
        """
        body = CALLS[name].write_arguments(arguments)
        answer = self._answer(CALLS[name].path, CALLS[name].request_type, body, seconds)
        if answer.status != _OK:
            refusal = _refusal(answer)
            if not isinstance(refusal, Lost | ProtocolError):
                self._require_same_protocol(answer)
            raise refusal
        try:
            return self._result(name, answer)
        except ProtocolError as error:  # a gateway may have put its page in place of the result
            raise Lost(error.message, sent=True, answer=error) from error

    def _result(self, name: str, answer: _Answer) -> Any:
        """The result in an answer with status 200. Raises `ProtocolError`, `StoreMoved`."""
        call = CALLS[name]
        if answer.headers.get("content-type") != call.answer_type:
            raise ProtocolError(
                f"{self.url} answered {name} with the content type "
                f"{answer.headers.get('content-type')!r}; is it a Strandline node?"
            )
        self._require_same_protocol(answer)
        self._require_same_store(answer)
        try:
            return call.read_result(answer.body)
        except InvalidInput as error:
            raise ProtocolError(
                f"the answer of {self.url} to {name} cannot be read ({error.message}); the node "
                "may be of another release"
            ) from error

    def _answer(self, path: str, content_type: str, body: bytes, seconds: float) -> _Answer:
        """The answer to a POST. Raises `Lost`."""
        request = (
            f"POST {self._prefix}{path} HTTP/1.1\r\n{self._headers}"
            f"Content-Type: {content_type}\r\nContent-Length: {len(body)}\r\n\r\n"
        ).encode("latin-1") + body
        connection, answer = self._connected(seconds), _Answer()
        began = time.monotonic()
        try:
            connection.settimeout(seconds)
            with suppress(ConnectionError):  # a node may refuse early; its answer says why
                connection.sendall(request)
            answer.read_from(connection)
        except OSError as error:
            connection.close()
            if _is_early(error, began, seconds):
                raise
            raise Lost(_why(error), sent=True) from error
        except BaseException:
            connection.close()
            raise
        if answer.may_be_followed:
            self._keep(connection)
        else:
            connection.close()
        return answer

    def _connected(self, seconds: float) -> socket.socket:
        """A connection that is ready for a request. Raises `Lost`, `Stopping`."""
        if self._process != os.getpid():
            self._leave_to_parent()
        while True:
            with self._lock:
                if self._is_closed:
                    raise Stopping(f"this session with {self.url} is closed; open another")
                idle_connection = self._idle.pop() if self._idle else None
            if idle_connection is None:
                break
            connection, since = idle_connection
            if time.monotonic() - since < _IDLE_SECONDS and not _has_ended(connection):
                return connection
            connection.close()
        return self._connect(min(seconds, CONNECT_TIMEOUT))

    def _leave_to_parent(self) -> None:
        """Use no lock and no connection that this process has from the one it was forked from."""
        self._lock = threading.Lock()  # another thread of the parent may have had the old one
        while self._idle:
            self._idle.pop()[0].close()
        self._process = os.getpid()

    def _connect(self, timeout: float) -> socket.socket:
        """A new connection. Raises `Lost`."""
        host, security = self._address.hostname or "", self._security
        port = self._address.port or (80 if security is None else 443)
        began = time.monotonic()
        try:
            connection = socket.create_connection((host, port), timeout)
        except (OSError, UnicodeError) as error:
            if _is_early(error, began, timeout):
                raise
            raise Lost(_why(error), sent=False) from error
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if security is not None:
                connection = security.wrap_socket(connection, server_hostname=host)
        except (OSError, UnicodeError) as error:
            connection.close()
            if _is_early(error, began, timeout):
                raise
            permanent_error = None
            if type(error) in (ssl.SSLError, ssl.SSLCertVerificationError):
                permanent_error = ProtocolError(
                    f"{self.url} does not speak TLS, or this client does not trust it ({error}); "
                    "write http:// if the node has no certificate, or name the authorities to "
                    "trust in the variable SSL_CERT_FILE"
                )
            raise Lost(_why(error), sent=False, answer=permanent_error) from error
        return connection

    def _keep(self, connection: socket.socket) -> None:
        """Keep a connection for the next request, and close those that were idle too long."""
        with self._lock:
            now = time.monotonic()
            unused = [old for old, since in self._idle if now - since >= _IDLE_SECONDS]
            del self._idle[: len(unused)]  # the list is in the order of times
            if self._is_closed or len(self._idle) == _MAX_IDLE:
                unused.append(connection)
            else:
                self._idle.append((connection, now))
        for old in unused:
            old.close()

    def _require_same_protocol(self, answer: _Answer) -> None:
        spoken = answer.headers.get(_PROTOCOL_NAME, "1")
        if spoken != PROTOCOL:
            raise ProtocolError(
                f"{self.url} is a node of another release: it speaks protocol {spoken[:20]!r}, and"
                f" this client, of release {__version__}, speaks {PROTOCOL!r}; install the same"
                " release on both"
            )

    def _require_same_store(self, answer: _Answer) -> None:
        store = answer.headers.get(_STORE_NAME)
        if store is None or store == self._store:  # None: a node of an older release
            return
        with self._lock:
            if self._store is None:
                self._store = store
                self._headers += f"{STORE_HEADER}: {store}\r\n"
            used = self._store
        if store != used:  # the call was sent before the first result
            raise StoreMoved(
                f"{self.url} executed the call for the store with the environment {store[:80]!r}, "
                f"but this session uses that of {used[:80]!r}; correct the address of the node"
            )

    def close(self) -> None:
        """Send no more requests. A call that waits for its answer still gets it."""
        if self._process != os.getpid():
            self._leave_to_parent()
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
        for connection, _ in idle:
            connection.close()


def _address_of(url: str) -> SplitResult:
    """The parts of a node's address. Raises `InvalidInput` if it is not such an address."""
    if isinstance(url, str) and "@" in url:  # it is not shown, because it may contain a secret
        raise InvalidInput(
            "the address of a node has no user and no secret; give them as user=… and secret=…"
        )
    try:
        parts = urlsplit(url)
        port = parts.port
        has_more = parts.query or parts.fragment or port == 0
    except (AttributeError, TypeError, ValueError) as error:  # the first two if it is no text
        raise InvalidInput(f"{url!r} is not the address of a node: {error}") from None
    if (
        parts.scheme not in ("http", "https")
        or not parts.hostname
        or has_more
        or not (url.isascii() and url.isprintable())
        or " " in url
    ):
        raise InvalidInput(f"{url!r} is not the address of a node; write http://host:port")
    return parts


def _has_ended(connection: socket.socket) -> bool:
    """Whether the node has closed an idle connection, or has sent data without a request."""
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    return bool(poll.poll(0))


def _refusal(answer: _Answer) -> StrandlineError | Lost:
    error = read_error(answer.status, answer.body)
    if isinstance(error, Stopping):
        return Lost(error.message, sent=True, answer=error)
    if isinstance(error, Overloaded):
        seconds = answer.headers.get("retry-after", "")
        wait = min(int(seconds), _LONGEST_WAIT) if seconds.isdecimal() else 0
        return Lost(error.message, sent=False, answer=error, wait=wait)
    if isinstance(error, StoreMoved):
        return Lost(error.message, sent=False, answer=error)
    if isinstance(error, ProtocolError) and answer.status in _GATEWAY_STATUSES:
        return Lost(f"HTTP status {answer.status}", sent=True)
    return error


def _is_early(error: Exception, began: float, seconds: float) -> bool:
    """Whether it is a time-out that is not of the socket, but of a signal handler of the caller."""
    is_time_out = isinstance(error, TimeoutError) and error.errno is None
    return is_time_out and time.monotonic() - began < seconds


def _why(error: Exception) -> str:
    return str(error) or type(error).__name__
