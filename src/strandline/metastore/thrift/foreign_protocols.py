"""What else clients speak to a port that takes strict binary Thrift.

A client with a wrong setting should read in the node's log what the setting is.
"""

from __future__ import annotations

TELLING_BYTES = 6
"""So many bytes tell strict binary Thrift from all else that clients send."""

_HTTP_METHODS = tuple(
    name[:TELLING_BYTES]
    for name in (b"GET ", b"POST ", b"PUT ", b"HEAD ", b"OPTIONS ", b"DELETE ", b"PATCH ", b"PRI ")
)


def foreign_protocol(first: bytes) -> str | None:
    """What a connection speaks that begins with these bytes; None if it is strict binary Thrift."""
    if first.startswith(b"\x80\x01"):
        return None
    if first.startswith(_HTTP_METHODS):
        return "HTTP"
    if first.startswith(b"\x16\x03"):
        return "TLS"
    if first.startswith(b"\x01\x00\x00"):
        return "SASL"
    if first.startswith(b"\x82"):
        return "compact Thrift"
    if first.startswith(b"\x00"):
        if first[4:6] == b"\x80\x01":
            return "framed Thrift"
        return "framed compact Thrift" if first[4:5] == b"\x82" else "non-strict binary Thrift"
    return "an unknown protocol"
