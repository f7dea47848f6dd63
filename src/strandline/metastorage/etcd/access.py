"""How a node reaches an etcd: its endpoints, TLS, and the user.

The options of an address have the names that `etcdctl` gives to its flags. Any of them switches TLS
on. Certificates are renewed while nodes run, so their files are read again once they changed,
before the next connection is secured. Files that cannot be read leave those in use that were read
before.

A user logs in with a password and gets a token. etcd forgets a token after some time without a
request, and after each change of users and roles. It refuses a request with such a token without
executing it, so the gateway logs in again and repeats the request, even if it writes.
"""

from __future__ import annotations

import logging
import os
import re
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import unquote

from strandline.condition import TimedLock
from strandline.errors import DeadlineExceeded, InvalidInput
from strandline.renewed_files import refuse_encrypted, states_of

logger = logging.getLogger(__name__)

DEFAULT_PORT = 2379
DEFAULT_PREFIX = "strandline"
PASSWORD_VARIABLE = "ETCDCTL_PASSWORD"
SYSTEM = "system"
"""As ``cacert``: the certificate authorities that this machine trusts."""
_ADDRESS = re.compile(
    r"etcd://(?:([^:/?#@]+)(?::([^/?#@]*))?@)?([^/?#@]+)(?:/([A-Za-z0-9._-]*))?(?:\?([^?#]*))?"
)
_HOST = re.compile(r"([\w.-]+|\[[\da-fA-F:.]+\])(:\d+)?", re.ASCII)
_TLS_OPTIONS = ("cacert", "cert", "key")


@dataclass(frozen=True, slots=True)
class EtcdAddress:
    """The endpoints of a cluster (``host:port``), the prefix of one store in it, and the access.

    ``user`` is empty for an etcd without users. ``cacert``, ``cert`` and ``key`` are paths of PEM
    files, or empty; ``cacert`` may be `SYSTEM`.
    """

    endpoints: tuple[str, ...]
    prefix: str
    user: str = ""
    password: str = field(default="", repr=False)
    cacert: str = ""
    cert: str = ""
    key: str = ""

    @property
    def has_tls(self) -> bool:
        return bool(self.cacert or self.cert)

    def __str__(self) -> str:
        """The address for messages, without the access."""
        return f"etcd://{','.join(self.endpoints)}/{self.prefix}"


def parse_etcd_url(url: str) -> EtcdAddress:
    """The address in ``etcd://[USER[:PASSWORD]@]HOST[:PORT][,HOST[:PORT]…][/PREFIX][?OPTIONS]``.

    A prefix has letters, digits, ``.``, ``_`` and ``-``. The options are ``cacert=FILE``,
    ``cert=FILE`` and ``key=FILE``, joined by ``&``. User, password and files may have characters
    encoded by ``%``. A user whose password is not in the address has the one in the environment
    variable `PASSWORD_VARIABLE`. Raises `InvalidInput` for anything else.
    """
    match = _ADDRESS.fullmatch(url)
    hosts = [] if match is None else match[3].split(",")
    if match is None or not all(map(_HOST.fullmatch, hosts)):
        shown = re.sub(r"//.*@", "//…@", url)
        raise InvalidInput(
            f"{shown!r} is not the address of an etcd store; write it as"
            " etcd://[USER@]HOST:PORT[,HOST:PORT…]/PREFIX[?cacert=FILE&cert=FILE&key=FILE]"
        )
    endpoints = (
        h if re.search(r":\d+$", h.rpartition("]")[2]) else f"{h}:{DEFAULT_PORT}" for h in hosts
    )
    user = unquote(match[1] or "")
    password = os.environ.get(PASSWORD_VARIABLE, "") if match[2] is None else unquote(match[2])
    address = EtcdAddress(
        tuple(dict.fromkeys(endpoints)),
        match[4] or DEFAULT_PREFIX,
        user,
        password if user else "",
        **_options(match[5]),
    )
    if address.key and not address.cert:
        raise InvalidInput(
            f"the address {address} has the option key without cert; name the file of the"
            " certificate that the key belongs to in cert"
        )
    return address


def _options(text: str | None) -> dict[str, str]:
    options: dict[str, str] = {}
    for option in text.split("&") if text else ():
        name, _, file = option.partition("=")
        if name not in _TLS_OPTIONS or not file or name in options:
            raise InvalidInput(
                f"{name!r} is not an option of an address of etcd; its options are"
                f" {', '.join(f'{known}=FILE' for known in _TLS_OPTIONS)}, each once"
            )
        options[name] = unquote(file)
    return options


class ClientTls:
    """The TLS of the connections to one cluster; ``context`` is the same as long as it lives.

    Safe for threads. OpenSSL does not allow files to be read into a context that a handshake in
    another thread uses, so they are read before a handshake that is the only one.
    """

    def __init__(self, address: EtcdAddress) -> None:
        """Raises `InvalidInput` if a file cannot be read."""
        self._address = address
        self._files = [file for file in (address.cacert, address.cert, address.key) if file]
        self._states = states_of(self._files)
        self._lock = threading.Lock()
        self._handshakes = 0
        self.context = self._load(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))

    def begin_handshake(self) -> None:
        """Call this before a handshake. Reads the files again if they have changed."""
        with self._lock:
            if not self._handshakes:
                self._renew()
            self._handshakes += 1

    def end_handshake(self) -> None:
        with self._lock:
            self._handshakes -= 1

    def _renew(self) -> None:
        states = states_of(self._files)
        if states == self._states:
            return
        self._states = states  # broken files are reported once
        try:
            # Apart first, because a certificate without its key would remain in the context.
            self._load(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
            self._load(self.context)
        except InvalidInput as error:
            logger.error("%s; the files read before stay in use", error)

    def _load(self, context: ssl.SSLContext) -> ssl.SSLContext:
        address = self._address
        try:
            if address.cacert in ("", SYSTEM):
                context.load_default_certs()
            else:
                context.load_verify_locations(address.cacert)
            if address.cert:
                context.load_cert_chain(
                    address.cert, address.key or None, password=refuse_encrypted
                )
        except OSError as error:  # of TLS too
            raise InvalidInput(
                f"cannot read the TLS files of the address {address}, {', '.join(self._files)}:"
                f" {error}; name PEM files, and the key that belongs to the certificate"
            ) from error
        return context


class Login:
    """The token of one user. Safe for threads: one of them logs in, the others wait for it."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._token: str | None = None

    def token(self, log_in: Callable[[], str], *, timeout: float) -> str:
        """The present token, or the one that ``log_in`` returns.

        Raises what ``log_in`` raises, and `DeadlineExceeded` if another thread takes longer than
        ``timeout`` seconds for it.
        """
        token = self._token
        if token is not None:
            return token
        late = DeadlineExceeded("etcd did not answer the login in time; nothing was done")
        with TimedLock(self._lock, timeout=timeout, late=late):
            if self._token is None:
                self._token = log_in()
            return self._token

    def forget(self, token: str) -> None:
        """Log in again for the next request, unless another thread has replaced ``token``."""
        with self._lock:
            if self._token == token:
                self._token = None
