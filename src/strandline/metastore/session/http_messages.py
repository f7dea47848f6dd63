"""HTTP requests and answers, between an ASGI server and the application.

A write of a client is three small requests. So the code between the bytes of the server and a call
does only what a call needs: it makes one dictionary of headers, and one object for an answer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any

from strandline.work.contents import Body

Scope = MutableMapping[str, Any]
"""The ASGI server's description of a request."""
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


WHOLE = "strandline.whole"
"""A key in the scope of a request, set by a server that knows that the whole body has arrived."""

ADMITTED = "strandline.admitted"
"""A key in the scope of a request, set by the application once it admits the caller to a call."""


class ClientGone(Exception):
    """The client disconnected before its request was complete, so no client gets an answer."""


class Request:
    """A request whose head has arrived.

    Names in ``headers`` are in lower case; of duplicate headers it has the first. ``receive`` gives
    the next message of the server about the request.
    """

    def __init__(self, scope: Scope, receive: Receive) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.receive = receive
        self._scope = scope
        self.all_headers = [
            (name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]
        ]
        self.headers: Mapping[str, str] = dict(reversed(self.all_headers))
        server, client = scope.get("server"), scope.get("client")
        self.arrived_at: str | None = server[0] if server else None
        self.client_host: str = client[0] if client else ""
        self.client: str = f"{client[0]}:{client[1]}" if client else ""

    @property
    def is_whole(self) -> bool:
        """Whether the whole body is known to have arrived."""
        return bool(self._scope.get(WHOLE))

    def admit(self) -> None:
        """Note that its caller is admitted. Any thread may call this."""
        self._scope[ADMITTED] = True

    @property
    def announced_bytes(self) -> int | None:
        """The size of the body, or None if its head does not announce it."""
        announced = self.headers.get("content-length", "")
        return int(announced) if announced.isdecimal() else None

    async def next_part(self) -> tuple[bytes, bool]:
        """The next bytes of the body, and whether there are more. Raises `ClientGone`."""
        message = await self.receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        return message.get("body", b""), message.get("more_body", False)

    async def until_left(self) -> None:
        """Return when the client has disconnected. Only for a request whose body has arrived."""
        while (await self.receive())["type"] != "http.disconnect":
            pass


@dataclass(eq=False)
class Answer:
    """An answer whose body is complete."""

    body: Body
    content_type: str
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)

    async def send(self, send: Send) -> None:
        await self.send_head(send)
        await send({"type": "http.response.body", "body": self.body})

    async def send_head(self, send: Send) -> None:
        headers = [
            (b"content-type", self.content_type.encode()),
            (b"content-length", b"%d" % len(self.body)),
        ]
        headers += [(name.lower().encode(), value.encode()) for name, value in self.headers.items()]
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
