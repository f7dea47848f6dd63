"""The keys of the metastorage in etcd, and the encoding of its values.

All keys are below ``PREFIX/``, so that several catalogs can share one etcd:

======================  ===========================================================================
``format``              the version of this layout, in decimal
``time``                the last time that the store assigned; every write and check raises it
``head``                revision and time of the last invoke that changed something
``change/REVISION``     the keys that this invoke touched, for waiting threads; the last few
                        thousand are kept
``data/KEY``            revision, time and value, or a reference to the chunks of a large value
                        with the bytes before them
``chunk/KEY␀ID␀N``      one chunk of a large value
``lease/NAME``          token, expiry and holder (empty if released); never removed, so that
                        tokens grow
======================  ===========================================================================

Numbers in keys are padded and numbers in values are big-endian, so that their bytes order as the
numbers do. No key of a caller contains a zero byte, so the chunks of a range of keys are one range
too.
"""

from __future__ import annotations

import json
import logging
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain

from strandline.clock import Timestamp
from strandline.errors import CorruptData
from strandline.metastorage.store import Head, Lease, prefix_end

logger = logging.getLogger(__name__)

FORMAT = b"1"

_TIME = struct.Struct(">Q")
_HEAD = struct.Struct(">QQ")
_STORED = struct.Struct(">QQB")
_REFERENCE = struct.Struct(">24sQ32s")
_LEASE = struct.Struct(">QQ")
_INLINE, _CHUNKED, _HEADED = 0, 1, 2


class EtcdKeys:
    """The keys of one store."""

    def __init__(self, prefix: str) -> None:
        self._root = f"{prefix}/".encode()
        self.format = self._root + b"format"
        self.time = self._root + b"time"
        self.head = self._root + b"head"
        self.changes_end = self._root + b"change0"  # "0" comes after "/"
        self.chunks_end = self._root + b"chunk0"

    def change(self, revision: int) -> bytes:
        return self._root + b"change/%020d" % revision

    def data(self, key: str) -> bytes:
        """The etcd key of an entry, or of a bound."""
        return self._root + b"data/" + key.encode("ascii")

    def key_of(self, data: bytes) -> str:
        """The caller's key of an entry."""
        return data[len(self._root) + len(b"data/") :].decode("ascii")

    def chunk_bound(self, bound: str) -> bytes:
        """The start of the chunks of all keys from ``bound`` on."""
        return self._root + b"chunk/" + bound.encode("ascii")

    def chunks(self, key: str, identity: bytes = b"") -> tuple[bytes, bytes]:
        start = self.chunk_bound(key) + b"\0" + (identity and identity + b"\0")
        return start, start[:-1] + b"\1"

    def chunk(self, key: str, identity: bytes, number: int) -> bytes:
        return self.chunks(key, identity)[0] + b"%06d" % number

    def owner_of(self, chunk: bytes) -> tuple[str, bytes]:
        """The caller's key and the identity of the large value that a chunk belongs to."""
        key, identity, _ = chunk[len(self.chunk_bound("")) :].split(b"\0")
        return key.decode("ascii"), identity

    def lease(self, name: str) -> bytes:
        return self._root + b"lease/" + name.encode("ascii")


@dataclass(frozen=True, slots=True)
class Reference:
    """Where a large value is: the identity of its chunks, their size in bytes and their SHA-256.

    ``head`` has the bytes before the chunks. They contain the time of the invoke, which is not
    known when the chunks are written.
    """

    identity: bytes
    size: int
    digest: bytes
    head: bytes = b""


@dataclass(frozen=True, slots=True)
class Stored:
    """An entry as it is stored: the value itself, or the reference to it."""

    revision: int
    time: Timestamp
    value: bytes | Reference


def encode_stored(stored: Stored) -> bytes:
    value = stored.value
    if isinstance(value, bytes):
        return _STORED.pack(stored.revision, stored.time, _INLINE) + value
    body = _REFERENCE.pack(value.identity, value.size, value.digest)
    kind = _HEADED if value.head else _CHUNKED
    return _STORED.pack(stored.revision, stored.time, kind) + body + value.head


def decode_stored(raw: bytes) -> Stored:
    """The entry in ``raw``. Raises `CorruptData` for bytes that `encode_stored` never wrote."""
    try:
        revision, at, kind = _STORED.unpack_from(raw)
        body = raw[_STORED.size :]
        if kind == _INLINE:
            return Stored(revision, Timestamp(at), body)
        if kind == _CHUNKED:
            return Stored(revision, Timestamp(at), Reference(*_REFERENCE.unpack(body)))
        if kind == _HEADED:
            identity, size, digest = _REFERENCE.unpack_from(body)
            head = body[_REFERENCE.size :]
            return Stored(revision, Timestamp(at), Reference(identity, size, digest, head))
    except struct.error:
        pass
    raise _damaged("an entry of the metastorage", raw)


def encode_time(at: Timestamp) -> bytes:
    """Eight bytes that order as times do."""
    return _TIME.pack(at)


def decode_time(raw: bytes) -> Timestamp:
    """The time in eight bytes. Raises `CorruptData` for others."""
    try:
        return Timestamp(_TIME.unpack(raw)[0])
    except struct.error:
        raise _damaged("the time of the metastorage", raw) from None


def encode_head(head: Head) -> bytes:
    return _HEAD.pack(head.revision, head.time)


def decode_head(raw: bytes | None) -> Head:
    """The head in ``raw``; the head of an empty store if it is None."""
    if raw is None:
        return Head(0, Timestamp(0))
    try:
        revision, at = _HEAD.unpack(raw)
    except struct.error:
        raise _damaged("the head of the metastorage", raw) from None
    return Head(revision, Timestamp(at))


def encode_lease(lease: Lease) -> bytes:
    """The bytes of a lease's row; the name is in the key."""
    return _LEASE.pack(lease.token, lease.expires) + lease.holder.encode("ascii")


def decode_lease(name: str, raw: bytes) -> Lease:
    """The lease in a row, expired or not; its holder is empty if it was released."""
    try:
        token, expires = _LEASE.unpack_from(raw)
        holder = raw[_LEASE.size :].decode("ascii")
    except (struct.error, UnicodeDecodeError):
        raise _damaged(f"the row of the lease {name!r}", raw) from None
    return Lease(name, holder, Timestamp(expires), token)


@dataclass(frozen=True, slots=True)
class Change:
    """The keys that one revision touched, and the ranges in which it deleted too many to name."""

    revision: int
    keys: tuple[str, ...]
    ranges: tuple[tuple[str, str], ...] = ()

    def touches(self, start: str, end: str) -> bool:
        """Whether a key from ``start`` to below ``end`` was touched, or may have been."""
        return any(start <= key < end for key in self.keys) or any(
            low < end and start < high for low, high in self.ranges
        )


def encode_change(keys: Iterable[str], ranges: Iterable[tuple[str, str]]) -> bytes:
    """The bytes of a change; the revision is in the key."""
    return json.dumps([[*keys], [*ranges]], separators=(",", ":")).encode()


def decode_change(key: bytes, raw: bytes) -> Change:
    """The change at its key.

    If it does not decode, it may have touched any key: those who wait then read the store, in which
    nothing is lost. Raises `CorruptData` if the key does not name a revision.
    """
    try:
        revision = int(key.rpartition(b"/")[2])
    except ValueError:
        raise _damaged("the key of a change", key) from None
    try:
        keys, ranges = json.loads(raw)
        "".join(chain(keys, *ranges))  # raises unless all are texts
        return Change(revision, tuple(keys), tuple((low, high) for low, high in ranges))
    except (ValueError, TypeError):
        logger.error("a change in etcd cannot be decoded: %r at %r", raw[:80], key)
        return Change(revision, (), (("", prefix_end("")),))


def _damaged(what: str, raw: bytes) -> CorruptData:
    return CorruptData(f"{what} in etcd is damaged: {raw[:40]!r}; restore the store from a backup")
