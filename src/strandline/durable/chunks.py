"""Snapshots that are larger than one value of a store should be.

A large snapshot's record is cut into chunks under ``catalog.chunk.{random}.{n}``. These are written
first, one invoke each, and mean nothing until the compaction puts a `ChunkedSnapshot` that names
them in the place of an update. The same invoke removes all other chunks: those of the snapshot
before, and what a crash left behind.

What must stay true: a compaction whose chunks were removed while it was still writing them must not
succeed. Its first chunk is a condition of its last invoke; it is written once, and removed only
together with all others. A reader that finds a chunk missing has lost to a newer compaction, and
begins again from the newer snapshot.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from strandline.durable.update import Snapshot
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
"""A snapshot whose record is larger than this is cut."""


@dataclass(frozen=True, slots=True)
class ChunkedSnapshot:
    """Where the record of a snapshot lies: ``count`` chunks under ``name``, ``size`` bytes."""

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
    """A snapshot ready to be put: the value, what must hold then, and what is to be removed."""

    value: bytes
    conditions: tuple[Condition, ...]
    removals: tuple[Operation, ...]


def chunk_key(name: str, number: int) -> str:
    """The key of the ``number``-th chunk of the snapshot ``name``."""
    return f"{CHUNK}{name}.{number:08d}"


def prepare(
    store: Metastorage, snapshot: Snapshot, *, fence: ValueIs, chunk_bytes: int = CHUNK_BYTES
) -> Prepared:
    """Write the chunks of ``snapshot``, if it needs any. Raises `Fenced`."""
    data = encode(snapshot)
    everything = DeleteRange(CHUNK, prefix_end(CHUNK))
    if len(data) <= chunk_bytes:
        return Prepared(data, (), (everything,))
    name = secrets.token_hex(8)
    starts = range(0, len(data), chunk_bytes)
    for number, start in enumerate(starts):
        put = Put(chunk_key(name, number), data[start : start + chunk_bytes])
        if not store.invoke([fence], [put]).succeeded:
            raise Fenced("the catalog was taken over while this node was writing a snapshot of it")
    before = DeleteRange(CHUNK, chunk_key(name, 0))
    after = DeleteRange(prefix_end(f"{CHUNK}{name}."), prefix_end(CHUNK))
    pointer = ChunkedSnapshot(name, len(starts), len(data))
    return Prepared(encode(pointer), (Exists(chunk_key(name, 0)),), (before, after))


def read(store: Metastorage, value: bytes) -> Snapshot | None:
    """The snapshot behind the value of its key; None where its chunks are gone.

    Raises `CorruptData`.
    """
    if open_record(value)[0].of is not ChunkedSnapshot:
        return decode(value, Snapshot)
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
            f"the chunks of snapshot {pointer.name} have {len(data)} bytes, {pointer.size} were "
            "written; restore the store from a backup"
        )
    return decode(data, Snapshot)
