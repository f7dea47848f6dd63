"""Invalid messages of clients: valid ones that were damaged, and others that no client sends.

Everything is derived from one random number generator, so a seed repeats a run.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from random import Random
from typing import Any

from strandline.metastore.session.calls import CALLS
from strandline.metastore.session.file_lists import CONTENT_TYPE, write_staging
from strandline.metastore.store.rows import DataFile
from strandline.metastore.thrift.codec import HIVE_CODEC
from strandline.metastore.thrift.field_table import (
    BOOL,
    DOUBLE,
    I8,
    I16,
    I32,
    I64,
    LIST,
    MAP,
    SET,
    STRUCT,
    Type,
)
from strandline.metastore.thrift.messages import CALL, encode_message

_BITS = {I8: 8, I16: 16, I32: 32, I64: 64}
NAMES = ("default", "fuzzed", "t", "p=a", "", "*", "\x00", "\U0001f600", "default@1", "x" * 300)
"""Texts of arguments; a schema ``fuzzed`` with the table ``t`` may exist."""
SIZES = (0, 1, 0x7F, 0xFFFF, 1 << 24, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)
_METHODS = sorted(set(HIVE_CODEC.table.methods) - {"shutdown"})
_DEEPEST = 3


# -- damage


def flipped(random: Random, message: bytes) -> bytes:
    """Flip some of its bits."""
    data = bytearray(message)
    for _ in range(random.randint(1, 8)):
        data[random.randrange(len(data))] ^= 1 << random.randrange(8)
    return bytes(data)


def cut(random: Random, message: bytes) -> bytes:
    """Cut off its end."""
    return message[: random.randrange(len(message))]


def extended(random: Random, message: bytes) -> bytes:
    """Insert random bytes in the middle or append them."""
    at = random.randrange(len(message) + 1)
    return message[:at] + random.randbytes(random.randint(1, 40)) + message[at:]


def resized(random: Random, message: bytes) -> bytes:
    """Replace four bytes by another size: huge, negative or zero."""
    at = random.randrange(max(1, len(message) - 3))
    return message[:at] + struct.pack(">I", random.choice(SIZES)) + message[at + 4 :]


def doubled(random: Random, message: bytes) -> bytes:
    """Repeat a part of it."""
    at, end = sorted(random.randrange(len(message) + 1) for _ in range(2))
    return message[:end] + message[at:]


def whole(random: Random, message: bytes) -> bytes:
    """Leave it unchanged."""
    return message


DAMAGE: tuple[Callable[[Random, bytes], bytes], ...] = (
    flipped,
    flipped,
    cut,
    extended,
    resized,
    resized,
    doubled,
    whole,
)


def damaged(random: Random, message: bytes) -> bytes:
    return random.choice(DAMAGE)(random, message)


# -- Thrift


def thrift_message(random: Random) -> bytes:
    """A message for the Hive port: most are damaged calls, some were never calls."""
    kind = random.randrange(12)
    if kind == 0:
        return random.randbytes(random.randint(1, 400))
    if kind == 1:
        return b"\x80\x01" + random.randbytes(random.randint(1, 400))
    if kind == 2:
        return _nested(random)
    message = damaged(random, thrift_call(random))
    return message + thrift_call(random) if kind == 3 else message


def thrift_call(random: Random) -> bytes:
    """A call of any method that can be decoded, with random arguments."""
    method = random.choice(_METHODS)
    arguments = _struct(random, f"{method}_args", 0)
    body = HIVE_CODEC.encode_struct(f"{method}_args", arguments)
    return encode_message(CALL, method, random.getrandbits(31), body)


def _nested(random: Random) -> bytes:
    """Nested structs, lists or maps, deeper than any client needs."""
    depth = random.choice((10, 63, 64, 65, 500, 100_000))
    opening = random.choice((b"\x0c\x00\x01", b"\x0f\x00\x01\x0f\x00\x00\x00\x01", b"\x0d\x00\x01"))
    return encode_message(CALL, random.choice(_METHODS), 1, opening * depth)


# Values of the protocol have many types: hence Any.
def _struct(random: Random, name: str, depth: int) -> dict[str, Any]:
    fields = {}
    for field in HIVE_CODEC.table.structs[name].fields:
        is_there = field.required or random.random() < (0.9 if depth == 0 else 0.4)
        if field.sent and is_there and (field.required or depth < _DEEPEST):
            fields[field.name] = _value(random, field.type, depth)
    return fields


def _value(random: Random, kind: Type, depth: int) -> Any:
    if kind.wire == STRUCT:
        return _struct(random, kind.name, depth + 1)
    if kind.wire == BOOL:
        return random.random() < 0.5
    if kind.wire in _BITS:
        edge = 1 << (_BITS[kind.wire] - 1)
        return random.choice((-edge, -1, 0, 1, 5, edge - 1))
    if kind.wire == DOUBLE:
        return random.choice((0.0, -1.5, float("inf"), float("nan")))
    if kind.name == "binary":
        return random.randbytes(3)
    if kind.value is None:
        return random.choice(NAMES)
    items = [_value(random, kind.value, depth) for _ in range(random.randint(0, 2))]
    if kind.wire == MAP:
        assert kind.key is not None  # maps have a type of keys
        keys = [_value(random, kind.key, depth) for _ in items]
        return {tuple(k) if isinstance(k, list) else k: v for k, v in zip(keys, items, strict=True)}
    if kind.wire == SET:
        return set(items)
    assert kind.wire == LIST
    return items


# -- HTTP

_BODIES: tuple[dict[str, Any], ...] = (  # Any: JSON
    {"txn_id": 1},
    {"table_ids": [1, 2**70, -1, 1e308]},
    {"name": "default.t", "at": {"version": -1}},
    {"names": ["default.t", None, 3, {"a": []}], "txn_id": 10**30},
    {"commands": [{"drop_schema": {"name": "nobody"}}, {"create_schema": {"name": "\ud800"}}]},
    {"read_only": "yes", "user": {"ann": 1}},
)
_ODD_JSON = (b"", b"NaN", b"[" * 50_000, b'{"a":' * 20_000, b"\xff\xfe", b'"\\ud800"', b"1e999999")
HIDDEN = b"GET /hidden HTTP/1.1\r\nHost: localhost\r\n\r\n"
"""A request that is hidden in, or after, another."""


def http_message(random: Random) -> bytes:
    """A message for the HTTP port."""
    kind = random.randrange(10)
    if kind == 0:
        return random.randbytes(random.randint(1, 400))
    if kind == 1:
        return random.choice(smuggling())
    return damaged(random, http_call(random))


def http_call(random: Random) -> bytes:
    """A request for any call, with a correct head."""
    call = CALLS[random.choice(sorted(CALLS))]
    if call.request_type == CONTENT_TYPE:
        body = _staging(random)
    elif random.random() < 0.3:
        body = random.choice(_ODD_JSON)
    else:
        body = json.dumps(random.choice(_BODIES)).encode()
        body = damaged(random, body) if random.random() < 0.5 else body
    head = (
        f"POST {call.path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {call.request_type}\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def _staging(random: Random) -> bytes:
    files = [DataFile(file_id=n, path=f"f{n}", rows=n, bytes=n) for n in range(1, 4)]
    ids = {"txn_id": 1, "table_id": 1}
    body = write_staging({**ids, "add": files, "remove": ("a",), "touch": ("b",)})
    return damaged(random, body)


def smuggling() -> list[bytes]:
    """Requests whose end two readers may see at different places, each followed by another."""
    length = len(HIDDEN)
    heads = [
        f"Content-Length: {length}\r\nTransfer-Encoding: chunked\r\n",
        f"Transfer-Encoding: chunked\r\nContent-Length: {length}\r\n",
        f"Content-Length: 0\r\nContent-Length: {length}\r\n",
        f"Content-Length: 0, {length}\r\n",
        f"Content-Length: +{length}\r\n",
        f"Content-Length : {length}\r\n",
        f"Content-Length: {length}\r\n Content-Length: 0\r\n",
        "Content-Length: 0x10\r\n",
        f"Content-Length: {2**64 + length}\r\n",
        "Content-Length: -1\r\n",
        "Transfer-Encoding: xchunked\r\n",
        "Transfer-Encoding: chunked, identity\r\n",
        "Transfer-Encoding: identity\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: gzip, chunked\r\n",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding : chunked\r\n",
        "Transfer-Encoding:\x0bchunked\r\n",
        "Transfer-Encoding: chunked\nContent-Length: 4\n",
        "Transfer-Encoding: chunked\r\n\r\nffffffffffffffff0\r\n",
        "Transfer-Encoding: chunked\r\n\r\n-2\r\n{}\r\n",
        "Transfer-Encoding: chunked\r\n\r\n2;x=\ny\r\n{}\r\n",
    ]
    start = "POST /v1/begin HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return [f"{start}{head}\r\n0\r\n\r\n".encode("latin-1") + HIDDEN for head in heads]
