"""The format that 0.5.0 added: a fence token with a nonce."""

from __future__ import annotations

from strandline.fencing import FenceToken
from tests.golden.layout import n, sealed

GOLDENS: list[tuple[object, bytes]] = [
    (FenceToken(2, 130, 5), sealed(5, 2, n(2), b"\x82\x01", n(5))),
]
