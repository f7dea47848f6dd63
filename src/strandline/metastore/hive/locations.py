"""Locations as Hive and Hadoop write them, so that equal places are equal texts.

Clients compare these texts. Hadoop prints a local folder as ``file:/a/b``, whatever number of
slashes it was given as, and Hive takes a path without a scheme for one of its default file system,
which is the local one here. Percent escapes are not touched: a path is shown as it is.
"""

from __future__ import annotations

import re

from strandline.errors import InvalidInput

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]*):(.*)", re.DOTALL)
_SLASHES = re.compile("/{2,}")


def hadoop_location(text: str) -> str:
    """``text`` as Hadoop prints it: ``file:///a//b/`` and ``/a/b`` are ``file:/a/b``.

    Raises `InvalidInput` for what is neither a URI nor an absolute path.
    """
    found = _SCHEME.fullmatch(text)
    scheme, rest = (found[1].lower(), found[2]) if found else ("file", text)
    if not rest.startswith("/"):
        raise InvalidInput(f"{text!r} is not an absolute path or a URI; write file:/path")
    host = ""
    if rest.startswith("//") and not rest.startswith("///"):
        host, slash, tail = rest[2:].partition("/")
        host, rest = f"//{host}", slash + tail
    path = _SLASHES.sub("/", rest)
    if len(path) > 1:
        path = path.rstrip("/")
    return f"{scheme}:{host}{path}"


def same_location(first: str, second: str) -> bool:
    """Whether both texts name one place. A text that is no location names none."""
    try:
        return hadoop_location(first) == hadoop_location(second)
    except InvalidInput:
        return False
