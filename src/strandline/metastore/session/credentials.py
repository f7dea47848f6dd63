"""Who a request over HTTP comes from.

A client names its user in HTTP Basic credentials, or in a header of its own that has no secret. By
itself a node proves nothing: it believes the name, as a Hive metastore believes ``set_ugi``, and
listens on loopback so that only programs of its machine can say it. Whoever serves other machines
hands the node an `Authenticate`, a function that knows which secret belongs to which user; then a
request without credentials that it accepts is answered with 401 and nothing is done.

What must stay true: the name that is judged is the name that was proved. So a request may not name
two users.
"""

from __future__ import annotations

import binascii
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from urllib.parse import unquote

from strandline.errors import InvalidInput, PermissionDenied
from strandline.metastore.session.calls import ANONYMOUS, USER_HEADER
from strandline.model.identifiers import MAX_USER_LENGTH

Authenticate = Callable[[str, str], bool]
"""Whether ``(user, secret)`` belong together. Called in several threads; must not raise."""

AUTHORIZATION = "Authorization"


class Unproved(PermissionDenied):
    """The credentials are missing or not accepted: to be answered with HTTP status 401."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who a request says that it comes from; ``secret`` None without credentials."""

    user: str
    secret: str | None = None


def basic(user: str, secret: str) -> str:
    """The header ``Authorization`` of that user. `InvalidInput` for a user with a colon."""
    if ":" in user:
        raise InvalidInput(f"user {user!r} has a colon, which HTTP Basic credentials cannot carry")
    return "Basic " + b64encode(f"{user}:{secret}".encode()).decode()


def caller_of(headers: Mapping[str, str]) -> Caller:
    """Who the headers name; `ANONYMOUS` if nobody. Raises `InvalidInput` for what is no name."""
    named = headers.get(USER_HEADER)
    sent = headers.get(AUTHORIZATION)
    if sent is None:
        return Caller(_user(ANONYMOUS if named is None else _unquoted(named), USER_HEADER))
    user, secret = _credentials(sent)
    caller = Caller(_user(user, AUTHORIZATION), secret)
    if named is not None and _unquoted(named) != caller.user:
        raise InvalidInput(
            f"the headers {AUTHORIZATION} and {USER_HEADER} name two users; send one of them"
        )
    return caller


def prove(caller: Caller, authenticate: Authenticate | None) -> None:
    """Raise `Unproved` unless ``authenticate`` accepts the caller, where there is one."""
    if authenticate is None:
        return
    if caller.secret is None:
        raise Unproved("this node asks for proof of who calls: send HTTP Basic credentials")
    if not authenticate(caller.user, caller.secret):
        raise Unproved(f"the secret is not that of user {caller.user}; nothing was done")


def _credentials(sent: str) -> tuple[str, str]:
    scheme, _, encoded = sent.partition(" ")
    if scheme.lower() == "basic":
        try:
            user, colon, secret = b64decode(encoded.strip(), validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError):
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
