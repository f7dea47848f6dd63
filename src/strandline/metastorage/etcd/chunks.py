"""Large values in etcd: chunks that are written first, and then a reference to them.

etcd takes requests up to 1.5 MiB. A larger value is written as chunks under a new identity. The
invoke then writes the reference, on the condition that the first chunk still exists. Until then the
chunks belong to no value, and any process that finds them may remove them: the invoke writes them
again. All chunks of a value are removed in one transaction, so if the first one exists, all exist.

A transaction that puts or deletes a key also removes the chunks that the key had. So orphans come
only from a process that ended between the two writes, or from an invoke with an unknown outcome.
Each large write examines a few identities, in rotation, and removes those that are more than an
hour old in the store's time and that their key does not refer to.

A reader reads the chunks in the revision in which it read the reference, and starts again in the
rare case that this history was compacted in between.
"""

from __future__ import annotations

import hashlib
import os
import threading

from strandline.clock import Timestamp, milliseconds
from strandline.errors import CorruptData
from strandline.metastorage.etcd.gateway import EtcdGateway
from strandline.metastorage.etcd.layout import EtcdKeys, Reference, Stored, decode_stored
from strandline.metastorage.etcd.operations import delete_operation, if_modified_at

CHUNK_BYTES = 512 << 10
ORPHAN_AGE_MS = 60 * 60 * 1000
_CHUNKS_PER_READ = 8
_IDENTITIES_PER_SWEEP = 16


class ChunkedValues:
    """The chunks of one store. Safe for threads."""

    def __init__(self, gateway: EtcdGateway, keys: EtcdKeys) -> None:
        self._gateway = gateway
        self._keys = keys
        self._sweeping = threading.Lock()
        self._swept_to = keys.chunk_bound("")

    def write(self, key: str, value: bytes, now: Timestamp) -> Reference:
        """Write the chunks of a value that ``key`` is about to refer to."""
        identity = b"%016x%s" % (now, os.urandom(4).hex().encode())
        for number, start in enumerate(range(0, len(value), CHUNK_BYTES)):
            piece = value[start : start + CHUNK_BYTES]
            self._gateway.put(self._keys.chunk(key, identity, number), piece)
        return Reference(identity, len(value), hashlib.sha256(value).digest())

    def value(self, key: str, stored: Stored, *, revision: int) -> bytes:
        """The value of an entry that was read in this revision of etcd.

        Raises `CompactedRevision` if that revision is gone, and `CorruptData` if the chunks do not
        match the reference.
        """
        reference = stored.value
        if isinstance(reference, bytes):
            return reference
        start, end = self._keys.chunks(key, reference.identity)
        pieces: list[bytes] = []
        more = True
        while more:
            page = self._gateway.range(start, end, limit=_CHUNKS_PER_READ, revision=revision)
            pieces += [pair.value for pair in page.pairs]
            more = page.more
            if more:
                start = page.pairs[-1].key + b"\0"
        value = b"".join(pieces)
        if hashlib.sha256(value).digest() != reference.digest:
            raise CorruptData(
                f"the value of {key!r} in etcd has {reference.size} bytes, but its chunks do not "
                f"add up to that ({len(value)} bytes in {len(pieces)} chunks); restore from a "
                "backup"
            )
        return reference.head + value

    def remove(self, key: str, reference: Reference) -> None:
        """Remove chunks that nothing refers to."""
        chunks = delete_operation(*self._keys.chunks(key, reference.identity))
        self._gateway.txn([], [chunks], repeatable=True)

    def sweep(self, now: Timestamp) -> int:
        """Remove orphans among the next few identities. Returns how many values were removed."""
        removed = 0
        with self._sweeping:
            for _ in range(_IDENTITIES_PER_SWEEP):
                page = self._gateway.range(
                    self._swept_to, self._keys.chunks_end, limit=1, keys_only=True
                )
                if not page.pairs:
                    self._swept_to = self._keys.chunk_bound("")
                    break
                key, identity = self._keys.owner_of(page.pairs[0].key)
                self._swept_to = self._keys.chunks(key, identity)[1]
                written = milliseconds(Timestamp(int(identity[:16], 16)))
                if written + ORPHAN_AGE_MS < milliseconds(now):
                    removed += self._remove_orphan(key, identity)
        return removed

    def _remove_orphan(self, key: str, identity: bytes) -> bool:
        data = self._keys.data(key)
        entry = self._gateway.range(data)
        value = None if entry.value is None else decode_stored(entry.value).value
        if isinstance(value, Reference) and value.identity == identity:
            return False
        answer = self._gateway.txn(
            [if_modified_at(data, entry.modified)],
            [delete_operation(*self._keys.chunks(key, identity))],
            repeatable=True,
        )
        return answer.succeeded
