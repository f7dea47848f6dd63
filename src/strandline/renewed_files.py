"""Files that are renewed while a process uses them: those of TLS, and the users file."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from strandline.errors import InvalidInput


def states_of(files: Iterable[str | Path]) -> list[tuple[int, int, int] | None]:
    """What differs once one of ``files`` was changed, replaced or removed."""
    return [_state(file) for file in files]


def _state(file: str | Path) -> tuple[int, int, int] | None:
    try:
        status = os.stat(file)
    except OSError:
        return None
    # Tools may set the time of the last change of the content, but not that of the status.
    return status.st_ctime_ns, status.st_size, status.st_ino


def refuse_encrypted() -> str:
    """The password of ``load_cert_chain``. Without it, OpenSSL would ask at the terminal."""
    raise InvalidInput(
        "the key of the certificate is encrypted with a password; decrypt it, for example with"
        " openssl pkey, and protect the file"
    )
