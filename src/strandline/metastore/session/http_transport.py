"""One request of a session over HTTP: sent, and answered, refused or lost.

Everything that may come back is sorted here into three: the result; an error that the node
answered, raised as the class that it has there; and `Lost`, when nobody can tell from what came
back whether the node did what it was asked. What to do about that is the session's business.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import httpx

from strandline import __version__
from strandline.errors import InvalidInput, Overloaded, ProtocolError, Stopping, StrandlineError
from strandline.metastore.session.calls import CALLS, PROTOCOL, PROTOCOL_HEADER, USER_HEADER
from strandline.metastore.session.credentials import AUTHORIZATION, basic
from strandline.metastore.session.wire_json import read_error

CONNECT_TIMEOUT = 5.0
_IDLE_SECONDS = 2.0
"""An idle connection is dropped before the node, which waits 5 s, can close it under a request."""
_LONGEST_WAIT = 10
"""Seconds; a node that asks for more is asked again all the same."""
_GATEWAY_STATUSES = frozenset({502, 503, 504})
"""What something between client and node answers when it lost the node."""


class Lost(Exception):
    """The request may have been carried out or not, or not yet.

    ``sent``: whether the node can have begun with it at all. ``answer``: what the node said
    instead, if it said that it is stopping, or full. ``wait``: seconds that it asks to wait.
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


class HttpTransport:
    """The connections of one user to the node at ``url``. Safe to use from several threads."""

    def __init__(self, url: str, *, user: str, secret: str | None = None) -> None:
        self.url = url.rstrip("/")
        headers = {USER_HEADER: quote(user, safe=" @"), PROTOCOL_HEADER: PROTOCOL}
        if secret is not None:
            headers[AUTHORIZATION] = basic(user, secret)
        try:
            self._client = httpx.Client(
                base_url=self.url,
                headers=headers,
                limits=httpx.Limits(
                    max_connections=None,
                    max_keepalive_connections=32,
                    keepalive_expiry=_IDLE_SECONDS,
                ),
                trust_env=False,  # a proxy for web pages is not on the way to a node
            )
        except (httpx.InvalidURL, ValueError) as error:
            raise InvalidInput(f"{url!r} is not the address of a node: {error}") from None
        if self._client.base_url.scheme not in ("http", "https") or not self._client.base_url.host:
            self._client.close()
            raise InvalidInput(f"{url!r} is not the address of a node; write http://host:port")

    def send(self, name: str, arguments: Mapping[str, Any], seconds: float) -> Any:
        """The result of one call, waiting at most ``seconds`` for each step of it.

        Raises what the node answers, `ProtocolError` if what answers is no node, and `Lost`.
        """
        call = CALLS[name]
        body = call.write_arguments(arguments)
        try:
            answer = self._client.post(
                call.path,
                content=body,
                headers={"Content-Type": call.request_type},
                timeout=httpx.Timeout(seconds, connect=min(seconds, CONNECT_TIMEOUT)),
            )
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
            raise Lost(_why(error), sent=False) from error
        except httpx.RequestError as error:
            raise Lost(_why(error), sent=True) from error
        except RuntimeError:
            if self._client.is_closed:
                raise Stopping(f"this session with {self.url} is closed; open another") from None
            raise
        if answer.status_code != httpx.codes.OK:
            refusal = _refusal(answer)
            if not isinstance(refusal, Lost | ProtocolError):
                self._require_same_protocol(answer)
            raise refusal
        if answer.headers.get("content-type") != call.answer_type:
            raise ProtocolError(
                f"{self.url} answered {name} with the content type "
                f"{answer.headers.get('content-type')!r}; is it a Strandline node?"
            )
        self._require_same_protocol(answer)
        try:
            return call.read_result(answer.content)
        except InvalidInput as error:
            raise ProtocolError(
                f"what {self.url} answered to {name} cannot be read ({error.message}); the node "
                "may be of another release"
            ) from error

    def _require_same_protocol(self, answer: httpx.Response) -> None:
        spoken = answer.headers.get(PROTOCOL_HEADER, "1")
        if spoken != PROTOCOL:
            raise ProtocolError(
                f"{self.url} is a node of another release: it speaks protocol {spoken[:20]!r}, and"
                f" this client, of release {__version__}, speaks {PROTOCOL!r}; install the same"
                " release on both"
            )

    def close(self) -> None:
        """Close all connections."""
        self._client.close()


def _refusal(answer: httpx.Response) -> StrandlineError | Lost:
    error = read_error(answer.status_code, answer.content)
    if isinstance(error, Stopping):
        return Lost(error.message, sent=True, answer=error)
    if isinstance(error, Overloaded):
        seconds = answer.headers.get("retry-after", "")
        wait = min(int(seconds), _LONGEST_WAIT) if seconds.isdecimal() else 0
        return Lost(error.message, sent=False, answer=error, wait=wait)
    if isinstance(error, ProtocolError) and answer.status_code in _GATEWAY_STATUSES:
        return Lost(f"HTTP status {answer.status_code}", sent=True)
    return error


def _why(error: httpx.RequestError) -> str:
    return str(error) or type(error).__name__
