"""Snapshots that are larger than a single value of a store should be.

The record of a large snapshot is split into chunks under ``catalog.chunk.{random}.{n}``. The chunks
are written first, one invoke each. They have no meaning until the compaction stores a
`ChunkedSnapshot` that names them, in place of an update. The same invoke removes all other chunks:
those of the previous snapshot, and those that a crash left behind.

What must stay true: a compaction whose chunks were removed while it was writing them must fail. Its
first chunk is a condition of its last invoke. That chunk is written once, and is removed only
together with all the others. A reader that finds a chunk missing was overtaken by a newer
compaction, and starts again from the newer snapshot.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from strandline.durable.update import CatalogSnapshot
from strandline.errors import CorruptData, Fenced
from strandline.metastorage import (
    Condition,
    DeleteRange,
    Exists,
    Metastorage,
    Operation,
    Put,
    ValueIs,
)
from strandline.metastorage.store import prefix_end
from strandline.wire.codecs import TEXT, UINT
from strandline.wire.registry import decode, encode, open_record, register

CHUNK = "catalog.chunk."
CHUNK_BYTES = 16 << 20
"""A snapshot with a larger record is split."""


@dataclass(frozen=True, slots=True)
class ChunkedSnapshot:
    """Where the record of a snapshot is: ``count`` chunks under ``name``, ``size`` bytes in all."""

    name: str
    count: int
    size: int


register(
    ChunkedSnapshot,
    type_id=6,
    version=1,
    since="0.2.0",
    fields=[("name", TEXT), ("count", UINT), ("size", UINT)],
)


@dataclass(frozen=True, slots=True)
class Prepared:
    """What a compaction stores: the value, the conditions of the invoke, and the removals."""

    value: bytes
    conditions: tuple[Condition, ...]
    removals: tuple[Operation, ...]


def chunk_key(name: str, number: int) -> str:
    """The key of the ``number``-th chunk of the snapshot ``name``."""
    return f"{CHUNK}{name}.{number:08d}"


def prepare(
    store: Metastorage, snapshot: CatalogSnapshot, *, fence: ValueIs, chunk_bytes: int = CHUNK_BYTES
) -> Prepared:
    """Write the chunks of ``snapshot`` if it needs any. Raises `Fenced`."""
    data = encode(snapshot)
    everything = DeleteRange(CHUNK, prefix_end(CHUNK))
    if len(data) <= chunk_bytes:
        return Prepared(data, (), (everything,))
    name = secrets.token_hex(8)
    starts = range(0, len(data), chunk_bytes)
    for number, start in enumerate(starts):
        put = Put(chunk_key(name, number), data[start : start + chunk_bytes])
        if not store.invoke([fence], [put]).succeeded:
            raise Fenced(
                "the catalog was taken over while this node was writing a snapshot of it; nothing"
                " was trimmed"
            )
    before = DeleteRange(CHUNK, chunk_key(name, 0))
    after = DeleteRange(prefix_end(f"{CHUNK}{name}."), prefix_end(CHUNK))
    pointer = ChunkedSnapshot(name, len(starts), len(data))
    return Prepared(encode(pointer), (Exists(chunk_key(name, 0)),), (before, after))


def read(store: Metastorage, value: bytes) -> CatalogSnapshot | None:
    """The snapshot that the value of its key contains or names, or None if a chunk is missing.

    Raises `CorruptData`.
    """
    if open_record(value)[0].of is not ChunkedSnapshot:
        return decode(value, CatalogSnapshot)
    pointer = decode(value, ChunkedSnapshot)
    parts = []
    for number in range(pointer.count):
        chunk = store.get(chunk_key(pointer.name, number))
        if chunk is None:
            return None
        parts.append(chunk.value)
    data = b"".join(parts)
    del parts
    if len(data) != pointer.size:
        raise CorruptData(
            f"the chunks of snapshot {pointer.name} have {len(data)} bytes, but {pointer.size} "
            "bytes were written; restore the store from a backup"
        )
    return decode(data, CatalogSnapshot)
