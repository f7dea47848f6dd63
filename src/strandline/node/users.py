"""Authentication of HTTP clients: the users file and the tokens of its users.

Each line of the file is ``USER:sha256:HASH``: the user, and the hexadecimal SHA-256 of a token that
`new_token` made. A token has 256 random bits, so a fast hash is enough to protect it, and checking
a wrong token costs the node no more than sending it costs the client. A user may have several
lines, so that an operator can add a new token before deleting the old one. Empty lines and lines
that begin with ``#`` are skipped.

The node reads the file again when it has changed, so an added or deleted token takes effect with
the next call. If the file can no longer be read, the node keeps the users that it had and logs an
error. Where secrets are given to a process in its environment, the setting ``users`` takes the
place of the file, or adds to it: it has the same lines.
"""

from __future__ import annotations

import errno
import hmac
import logging
import os
import re
import secrets
import stat
import threading
from hashlib import sha256
from pathlib import Path

from strandline.errors import InvalidInput, StrandlineError
from strandline.files import sync_folder
from strandline.logs import kept
from strandline.model.identifiers import MAX_USER_LENGTH
from strandline.renewed_files import states_of

logger = logging.getLogger(__name__)

_TOKEN_BYTES = 32
_HASH = re.compile(r"[0-9a-f]{64}")
_NOBODY = ["0" * 64]
MAX_FILE_BYTES = 16 << 20
"""The largest users file: enough for some hundred thousand tokens."""
_NO_FILE = (errno.EISDIR, errno.ENXIO)
"""The errors of the system for opening a folder or a socket."""


def new_token(path: Path, user: str) -> str:
    """Make a new token for ``user``, add its hash to the users file, and return the token.

    The file is created if need be. Raises `InvalidInput` if HTTP cannot carry the name, if the file
    is not a users file, and if its folder does not exist; OSError if it cannot be written.
    """
    _require_name(user)
    text = _text(path) if os.path.exists(path) else ""
    _hashes(text, _named(path))
    token = secrets.token_urlsafe(_TOKEN_BYTES)
    line = f"{user}:sha256:{_hash_of(token)}\n"
    if text and not text.endswith("\n"):
        line = f"\n{line}"
    try:
        # One write in append mode, so that two commands at once add two lines.
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            data = line.encode()
            written = os.write(descriptor, data)
            if written < len(data):  # the disk is full; a part of a line would be refused
                os.ftruncate(descriptor, os.fstat(descriptor).st_size - written)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(descriptor)
            sync_folder(path.parent)  # the file may be new
        finally:
            os.close(descriptor)
    except OSError as error:
        kind = InvalidInput if isinstance(error, FileNotFoundError) else OSError
        raise kind(f"no token was added to {path}: {error.strerror}") from error
    return token


class Users:
    """The users of ``lines`` and of the file at ``path``. Safe to use from several threads.

    Raises `InvalidInput` if the file or the lines cannot be read.
    """

    def __init__(self, path: Path | None, lines: str = "") -> None:
        self._lock = threading.Lock()
        self._fixed = _hashes(lines, "the setting users")
        self._files = [] if path is None else [path]
        self._states = states_of(self._files)
        self._hashes = self._read()

    def accepts(self, user: str, token: str) -> bool:
        """Whether ``token`` is one of those of ``user``."""
        self._read_again_if_changed()
        token_hash = _hash_of(token)
        # Compare all hashes of the user in constant time, and one hash for an unknown user too.
        matches = [
            hmac.compare_digest(token_hash, stored) for stored in self._hashes.get(user, _NOBODY)
        ]
        return any(matches)

    def _read(self) -> dict[str, list[str]]:
        hashes = {user: list(user_hashes) for user, user_hashes in self._fixed.items()}
        for path in self._files:
            for user, user_hashes in _hashes(_text(path), _named(path)).items():
                hashes.setdefault(user, []).extend(user_hashes)
        return hashes

    def _read_again_if_changed(self) -> None:
        if states_of(self._files) == self._states:
            return
        with self._lock:
            states = states_of(self._files)
            if states == self._states:
                return
            try:
                self._hashes = self._read()
            except StrandlineError as error:
                logger.error("%s; the users read before stay valid", error, extra=kept())
            else:
                logger.info("read the users file again: %d users have tokens", len(self._hashes))
            # Last, so that other callers wait. Also of a broken file, which is reported once.
            self._states = states


def _hash_of(token: str) -> str:
    return sha256(token.encode(errors="surrogatepass")).hexdigest()


def _require_name(user: str) -> None:
    is_printed = user.isprintable() and user.strip() == user
    if not 0 < len(user) <= MAX_USER_LENGTH or not is_printed or ":" in user or user[0] == "#":
        raise InvalidInput(
            f"{user[:MAX_USER_LENGTH]!r} cannot be the name of a user over HTTP: give 1 to "
            f"{MAX_USER_LENGTH} printable characters without a colon, that do not begin with # or "
            "a space and do not end with a space"
        )


def _text(path: Path) -> str:
    todo = "create it with strandline token"
    try:
        # Without O_NONBLOCK, opening a pipe would wait for its writer.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
            is_file = stat.S_ISREG(os.fstat(file.fileno()).st_mode)
            data = file.read(MAX_FILE_BYTES + 1) if is_file else b""
        reason = "it is not a file"
        if is_file and len(data) <= MAX_FILE_BYTES:
            return data.decode()
        if is_file:
            reason = f"it has more than {MAX_FILE_BYTES} bytes"
    except OSError as error:
        reason = "it is not a file" if error.errno in _NO_FILE else str(error.strerror)
        if isinstance(error, PermissionError):
            todo = "let the user of the node read it"
    except UnicodeError:
        reason = "it is not UTF-8"
    raise InvalidInput(f"the users file {path} cannot be read: {reason}; {todo}")


def _named(path: Path) -> str:
    return f"the users file {path}"


def _hashes(text: str, source: str) -> dict[str, list[str]]:
    """Return the hashes of the tokens in ``text``, the lines of ``source``, by user."""
    hashes: dict[str, list[str]] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        user, _, rest = line.strip().partition(":")
        scheme, _, digest = rest.partition(":")
        if not user or scheme != "sha256" or not _HASH.fullmatch(digest):
            raise InvalidInput(
                f"line {number} of {source} cannot be read: it is not "
                "USER:sha256:HASH; add lines with strandline token"
            )
        hashes.setdefault(user, []).append(digest)
    return hashes
