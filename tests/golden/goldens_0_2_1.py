"""The formats that 0.2.1 added: records with a checksum, and the time inside what a log orders."""

from __future__ import annotations

from strandline.clock import Timestamp
from strandline.durable.update import AuditEvent, Change, Entry, Update
from strandline.fencing import FenceToken
from tests.golden.layout import NONE, n, nested, sealed, some, text

# 3 << 16 with its lowest bit set: 8 bytes, low first.
TIME = Timestamp((3 << 16) + 1)
TIME_BYTES = b"\x01\x00\x03\x00\x00\x00\x00\x00"

GOLDENS: list[tuple[object, bytes]] = [
    (
        Update(
            7,
            b"\x0a\x0b",
            "ann",
            "m1",
            (Entry("touch", {"a": 1}, (Change("zone", b"\x05", None, b"\x06"),)),),
            TIME,
        ),
        sealed(
            1, 2,
            TIME_BYTES, n(7), n(2, 10, 11), text("ann"), text("m1"),
            n(1), nested(2, 1, text("touch"), text('{"a":1}')),
            n(1), nested(3, 1, text("zone"), n(1, 5), NONE, some(n(1, 6))),
        ),
    ),
    (
        AuditEvent(7, b"\x0a\x0b", "ann", "m1", (("touch", {"a": 1}),), TIME),
        sealed(
            30, 2,
            TIME_BYTES, n(7), n(2, 10, 11), text("ann"), text("m1"),
            n(1), text("touch"), text('{"a":1}'),
        ),
    ),
]  # fmt: skip

# A record of an older format is also written with a checksum. This is the checksum of 05 00 01 02
# 03, computed by the definition of CRC-32 (polynomial 04c11db7, reflected).
FENCE: tuple[object, bytes] = (
    FenceToken(2, 3),
    b"\x02\x00\x62\x21\x3f\xa4\x05\x00\x01\x02\x03",
)
