"""Refuses requests that a foreign web page makes a browser send.

A page can have its own name point to the loopback address, and its reader's browser then takes a
node there for the page's own server (DNS rebinding). What such a request cannot hide is the name:
the browser writes it into ``Host``, and the page it comes from into ``Origin``. So a request is
answered only where both, if they are there, name this node: a name of loopback, the address at
which the connection arrived, or a name that the node was given.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Collection
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from strandline.errors import PermissionDenied

_SHOWN = 80
"""Characters of a header that an error shows."""


class OriginGuard:
    """An ASGI application in front of ``app``. ``refuse`` makes the answer to an error."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        hosts: Collection[str],
        refuse: Callable[[BaseException], Response],
    ) -> None:
        self._app = app
        self._hosts = frozenset(_plain(host) for host in hosts)
        self._refuse = refuse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            error = self._foreign(scope)
            if error is not None:
                await self._refuse(error)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _foreign(self, scope: Scope) -> PermissionDenied | None:
        headers = Headers(scope=scope)
        server = scope.get("server")
        arrived_at = server[0] if server else None
        for name, sent in (
            *(("Host", text) for text in headers.getlist("host")),
            *(("Origin", text) for text in headers.getlist("origin")),
        ):
            host = host_of(sent if name == "Origin" else f"//{sent}")
            if host is None or not (is_loopback(host) or host in self._hosts or host == arrived_at):
                return PermissionDenied(
                    f"the request names {sent[:_SHOWN]!r} as its {name}, which is not a name of "
                    "this node; use its address, or add the name to the setting allowed_hosts"
                )
        return None


def host_of(url: str) -> str | None:
    """The host in a URL, in lower case and without brackets; None where there is none.

    None as well for a URL with a user or a backslash: neither header has one, and programs differ
    in which side of it they take for the host.
    """
    if "@" in url or "\\" in url:
        return None
    try:
        host = urlsplit(url).hostname
    except ValueError:
        return None
    return None if not host else _plain(host)


def is_loopback(host: str) -> bool:
    """Whether the name or address is one of loopback, without a look-up."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _plain(host: str) -> str:
    return host.strip().lower().strip("[]").rstrip(".")
