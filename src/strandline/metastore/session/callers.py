"""Which user a request over HTTP comes from.

A client names its user in HTTP Basic credentials, or in a header without a secret. By itself a node
does not verify the name: it accepts it, as a Hive metastore accepts ``set_ugi``, and listens on
loopback so that only programs on its machine can connect. An operator who serves other machines
gives the node an `Authenticate`, a function that knows which secret belongs to which user. Then a
request without accepted credentials is answered with 401, and nothing is done.

What must stay true: privileges are checked for the name that was verified. So a request may not
name two users.

**Foreign pages.** A web page can have its own host name point to the loopback address. The browser
then takes a node there for the page's own server (DNS rebinding). Such a request cannot hide the
name: the browser writes it into ``Host``, and the origin of the page into ``Origin``. So a request
is answered only if both, as far as they are present, name this node: a name of loopback, the
address at which the connection arrived, or a name with which the node was configured.
"""

from __future__ import annotations

import ipaddress
from base64 import b64decode, b64encode
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from strandline.errors import InvalidInput, PermissionDenied
from strandline.metastore.session.calls import ANONYMOUS, USER_HEADER
from strandline.model.identifiers import MAX_USER_LENGTH

if TYPE_CHECKING:  # a client needs no server
    from strandline.metastore.session.http_messages import Request

Authenticate = Callable[[str, str], bool]
"""Whether ``(user, secret)`` belong together. Called from several threads; must not raise."""

AUTHORIZATION = "Authorization"
_AUTHORIZATION_NAME, _USER_NAME = AUTHORIZATION.lower(), USER_HEADER.lower()


class Unauthenticated(PermissionDenied):
    """The credentials are missing or not accepted. The answer has HTTP status 401."""


@dataclass(frozen=True, slots=True)
class Caller:
    """The user that a request names. ``secret`` is None if it has no credentials."""

    user: str
    secret: str | None = field(default=None, repr=False)


def basic(user: str, secret: str) -> str:
    """The ``Authorization`` header of that user. Raises `InvalidInput` for a user with a colon."""
    if ":" in user:
        raise InvalidInput(f"user {user!r} has a colon, which HTTP Basic credentials cannot carry")
    return "Basic " + b64encode(f"{user}:{secret}".encode()).decode()


def caller_of(headers: Mapping[str, str]) -> Caller:
    """The user that the headers name, or `ANONYMOUS`. Raises `InvalidInput` for an invalid name.

    The names in ``headers`` must be in lower case.
    """
    user_header = headers.get(_USER_NAME)
    sent = headers.get(_AUTHORIZATION_NAME)
    if sent is None:
        return Caller(
            _user(ANONYMOUS if user_header is None else _unquoted(user_header), USER_HEADER)
        )
    user, secret = _credentials(sent)
    caller = Caller(_user(user, AUTHORIZATION), secret)
    if user_header is not None and _unquoted(user_header) != caller.user:
        raise InvalidInput(
            f"the headers {AUTHORIZATION} and {USER_HEADER} name two users; send one of them"
        )
    return caller


def authenticate_caller(caller: Caller, authenticate: Authenticate | None) -> None:
    """Raise `Unauthenticated` if there is an ``authenticate`` and it does not accept the caller."""
    if authenticate is None:
        return
    if caller.secret is None:
        raise Unauthenticated("this node authenticates its callers: send HTTP Basic credentials")
    if not authenticate(caller.user, caller.secret):
        raise Unauthenticated(f"the secret of user {caller.user} is wrong; nothing was done")


def _credentials(sent: str) -> tuple[str, str]:
    scheme, _, encoded = sent.partition(" ")
    if scheme.lower() == "basic":
        try:
            user, colon, secret = b64decode(encoded.strip(), validate=True).decode().partition(":")
        except ValueError:  # not base64, or not UTF-8 in it
            colon = ""
        if colon:
            return user, secret
    raise InvalidInput(
        f"the header {AUTHORIZATION} cannot be read: send Basic and base64 of user:secret in UTF-8"
    )


def _unquoted(name: str) -> str:
    try:
        return unquote(name, errors="strict")
    except UnicodeDecodeError:
        return ""


def _user(user: str, header: str) -> str:
    if not user or not user.isprintable() or len(user) > MAX_USER_LENGTH:
        raise InvalidInput(
            f"the header {header} does not name a user: give 1 to {MAX_USER_LENGTH} printable "
            "characters, percent-encoded as UTF-8"
        )
    return user


_SHOWN = 80
"""The number of characters of a header that an error shows."""
_MAX_ACCEPTED = 64
"""The maximum number of accepted header values that are remembered and not parsed again."""


class OriginGuard:
    """Checks that requests name this node: by a name of loopback, or one of ``hosts``."""

    def __init__(self, hosts: Collection[str]) -> None:
        self._hosts = frozenset(_plain(host) for host in hosts)
        self._accepted: set[tuple[str, str, str | None]] = set()

    def require_own(self, request: Request) -> None:
        """Raise `PermissionDenied` unless the request names this node."""
        for name, sent in request.all_headers:
            if name in ("host", "origin"):
                self._require_own(name, sent, request.arrived_at)

    def _require_own(self, name: str, sent: str, arrived_at: str | None) -> None:
        key = name, sent, arrived_at
        if key in self._accepted:
            return
        host = host_of(sent if name == "origin" else f"//{sent}")
        if host is None or not (is_loopback(host) or host in self._hosts or host == arrived_at):
            raise PermissionDenied(
                f"the request names {sent[:_SHOWN]!r} as its {name.capitalize()}, which is not a"
                " name of this node; use its address, or add the name to the setting allowed_hosts"
            )
        if len(sent) <= _SHOWN:
            if len(self._accepted) == _MAX_ACCEPTED:  # a client may write one name in many ways
                self._accepted.clear()
            self._accepted.add(key)


def host_of(url: str) -> str | None:
    """The host in a URL, in lower case and without brackets, or None if it has none.

    Also None for a URL with a user or a backslash: neither header contains one, and programs differ
    in which side of it they treat as the host.
    """
    if "@" in url or "\\" in url:
        return None
    try:
        host = urlsplit(url).hostname
    except ValueError:
        return None
    return None if not host else _plain(host)


def is_loopback(host: str) -> bool:
    """Whether the name or address is one of loopback; does no DNS lookup."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _plain(host: str) -> str:
    return host.strip().lower().strip("[]").rstrip(".")
