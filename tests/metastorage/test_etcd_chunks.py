"""Large values in etcd: written, read and removed as a whole."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.clock import timestamp
from strandline.errors import UnknownOutcome
from strandline.metastorage import MAX_VALUE_BYTES, Absent, Delete, DeleteRange, Put, ValueIs
from strandline.metastorage.etcd import chunks as etcd_chunks
from strandline.metastorage.etcd.chunks import CHUNK_BYTES, ORPHAN_AGE_MS, ChunkedValues
from strandline.metastorage.etcd.layout import EtcdKeys, Reference, Stored
from strandline.metastorage.etcd.operations import Page
from strandline.metastorage.etcd.store import EtcdMetastorage
from tests.conftest import ManualWall
from tests.metastorage.conftest import put
from tests.metastorage.etcd_place import EtcdPlace
from tests.servers.loopback import Cut, Proxy

LARGE = 3 * CHUNK_BYTES + 17
HOUR_MS = 60 * 60 * 1000


@pytest.fixture
def place() -> Iterator[EtcdPlace]:
    with ExitStack() as stack:
        yield EtcdPlace(stack)


@pytest.fixture
def store(place: EtcdPlace) -> EtcdMetastorage:
    return place.node()


def some_bytes(size: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(size)


@pytest.mark.parametrize("size", [(64 << 10), (64 << 10) + 1, CHUNK_BYTES, LARGE])
def test_a_value_of_any_size_is_read_as_it_was_written(store: EtcdMetastorage, size: int) -> None:
    value = some_bytes(size)
    store.invoke([], [Put("a", b"before"), Put("b", value), Put("c", b"behind")])
    assert [entry.value for entry in store.range("", "~")] == [b"before", value, b"behind"]
    assert store.invoke([ValueIs("b", value)], []).succeeded
    assert not store.invoke([ValueIs("b", value[:-1] + b"\0\0")], []).succeeded
    assert not store.invoke([ValueIs("b", some_bytes(size, 1))], []).succeeded


def test_a_value_with_more_chunks_than_one_request_reads_is_read_whole(
    store: EtcdMetastorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(etcd_chunks, "_CHUNKS_PER_READ", 3)
    put(store, "a", value := some_bytes(LARGE))
    assert [entry.value for entry in store.range("", "~")] == [value]


@pytest.mark.soak
def test_the_largest_value_is_read_as_it_was_written(store: EtcdMetastorage) -> None:
    value = some_bytes(MAX_VALUE_BYTES)
    put(store, "a", value)
    entry = store.get("a")
    assert entry is not None
    assert entry.value == value


def test_the_largest_keys_and_inline_values_fit_into_one_invoke(place: EtcdPlace) -> None:
    store = place.node()
    names = [f"{number:04d}".ljust(1024, "~") for number in range(store.max_operations)]
    writes = [Put(name, some_bytes(30_000, seed)) for seed, name in enumerate(names)]
    store.invoke([], writes)
    assert [Put(entry.key, entry.value) for entry in store.range("", "\x7f")] == writes
    assert store.invoke([], [Delete(name) for name in names]).succeeded
    assert place.chunks() == []


@pytest.mark.parametrize(
    "operation",
    [Put("b", b"small"), Put("b", b"y" * LARGE), Delete("b"), DeleteRange("a", "b.1")],
    ids=["put", "put large", "delete", "delete range"],
)
def test_the_chunks_of_a_replaced_or_deleted_value_are_removed(
    place: EtcdPlace, operation: Put | Delete | DeleteRange
) -> None:
    store = place.node()
    for key in ("b", "b.1", "b/"):
        put(store, key, b"x" * LARGE)
    assert len(place.chunks()) == 12
    store.invoke([], [operation])
    large = isinstance(operation, Put) and len(operation.value) > 100
    assert len(place.chunks()) == (12 if large else 8)
    for key in ("b.1", "b/"):
        entry = store.get(key)
        assert entry is not None
        assert entry.value == b"x" * LARGE


def test_the_chunks_of_a_refused_invoke_are_removed(
    place: EtcdPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other node changes the key between the writes of the chunks and of the reference."""
    store, other = place.node(), place.node()
    write = ChunkedValues.write

    def write_and_be_late(self: ChunkedValues, *arguments: object) -> Reference:
        reference = write(self, *arguments)  # type: ignore[arg-type]  # passed on as they are
        put(other, "b")
        return reference

    monkeypatch.setattr(ChunkedValues, "write", write_and_be_late)
    assert not store.invoke([Absent("b")], [Put("a", b"x" * LARGE)]).succeeded
    assert place.chunks() == []


@pytest.mark.parametrize("conditions", [0, 40])  # one request reads fewer than 40
def test_chunks_removed_before_their_invoke_are_written_again(
    place: EtcdPlace, monkeypatch: pytest.MonkeyPatch, conditions: int
) -> None:
    store, other = place.node(), place.node()
    write = ChunkedValues.write
    written = []

    def write_and_lose(self: ChunkedValues, *arguments: object) -> Reference:
        written.append(write(self, *arguments))  # type: ignore[arg-type]  # passed on as they are
        if len(written) == 1:
            put(other, "a", b"small")
            assert place.chunks() == []
        return written[-1]

    monkeypatch.setattr(ChunkedValues, "write", write_and_lose)
    absent = [Absent(f"none{number}") for number in range(conditions)]
    assert store.invoke(absent, [Put("a", b"x" * LARGE)]).succeeded
    entry = store.get("a")
    assert entry is not None
    assert (entry.value, entry.revision, len(written)) == (b"x" * LARGE, 2, 2)


def test_chunks_swept_before_their_invoke_are_written_again(
    place: EtcdPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer was stopped for hours, and no invoke has moved the head meanwhile."""
    store, sweeper = place.node(ManualWall(HOUR_MS)), ChunkedValues(place.gateway, place.keys)
    write = ChunkedValues.write

    def write_and_lose(self: ChunkedValues, *arguments: object) -> Reference:
        monkeypatch.undo()
        reference = write(self, *arguments)  # type: ignore[arg-type]  # passed on as they are
        assert sweeper.sweep(timestamp(9 * HOUR_MS)) == 1
        return reference

    monkeypatch.setattr(ChunkedValues, "write", write_and_lose)
    put(store, "a", b"x" * LARGE)
    entry = store.get("a")
    assert entry is not None
    assert entry.value == b"x" * LARGE


def test_orphaned_chunks_are_removed_once_they_are_old(place: EtcdPlace) -> None:
    wall = ManualWall(10 * HOUR_MS)
    store = place.node(wall)
    chunks = ChunkedValues(place.gateway, place.keys)
    value = b"x" * (CHUNK_BYTES + 1)
    put(store, "kept", value)
    old = timestamp(wall.now)
    chunks.write("kept", value, old)
    chunks.write("gone", value, old)
    wall.now += ORPHAN_AGE_MS
    chunks.write("young", value, timestamp(wall.now))
    assert len(place.chunks()) == 8
    # A later large write of another key sweeps all chunks.
    wall.now += 2
    put(store, "other", value)
    owners = [place.keys.owner_of(pair.key)[0] for pair in place.chunks()]
    assert owners == ["kept"] * 2 + ["other"] * 2 + ["young"] * 2
    entry = store.get("kept")
    assert entry is not None
    assert entry.value == value
    assert chunks.sweep(timestamp(wall.now)) == 0
    assert chunks.sweep(timestamp(wall.now + 2 * ORPHAN_AGE_MS)) == 1
    assert len(place.chunks()) == 4


def test_chunks_whose_key_is_written_during_a_sweep_are_kept(
    place: EtcdPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway = place.gateway
    put(place.node(), "a", b"inline")
    chunks = ChunkedValues(gateway, place.keys)
    chunks.write("a", b"late", timestamp(HOUR_MS))
    read = gateway.range

    def read_then_write(start: bytes, *args: Any, **options: Any) -> Page:
        page = read(start, *args, **options)
        if start == place.keys.data("a"):
            gateway.put(start, page.pairs[0].value)
        return page

    monkeypatch.setattr(gateway, "range", read_then_write)
    assert chunks.sweep(timestamp(2 * HOUR_MS + 1)) == 0
    assert len(place.chunks()) == 1


@pytest.mark.slow
def test_large_values_are_read_whole_during_writes_and_compactions(
    place: EtcdPlace,
) -> None:
    writer, reader = place.node(), place.node()
    values = [bytes([n]) * (2 * CHUNK_BYTES) for n in range(6)]
    put(writer, "a", values[0])
    finished = threading.Event()

    def read() -> None:
        is_last = False
        while not is_last:
            is_last = finished.is_set()
            entry = reader.get("a")
            assert entry is not None
            assert entry.value == values[entry.revision - 1]

    with ThreadPoolExecutor(1) as threads:
        reading = threads.submit(read)
        try:
            for value in values[1:]:
                put(writer, "a", value)
                place.server.compact()
        finally:
            finished.set()
        reading.result()


def test_a_read_of_a_large_value_is_repeated_after_a_compaction(
    place: EtcdPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, other = place.node(), place.node()
    put(store, "a", b"x" * LARGE)
    read = ChunkedValues.value
    newer = [b"y" * LARGE]

    def read_late(self: ChunkedValues, key: str, stored: Stored, *, revision: int) -> bytes:
        if newer:
            put(other, "a", newer.pop())
            place.server.compact()
        return read(self, key, stored, revision=revision)

    monkeypatch.setattr(ChunkedValues, "value", read_late)
    entry = store.get("a")
    assert entry is not None
    assert (entry.value, entry.revision) == (b"y" * LARGE, 2)


def test_the_chunks_of_a_lost_invoke_are_removed_by_the_next_write(place: EtcdPlace) -> None:
    plan: list[Cut] = []

    def at_the_transaction(data: bytes) -> Cut | None:
        return plan.pop() if plan and b"/v3/kv/txn" in data else None

    with Proxy(place.server.port, at_the_transaction) as proxy:
        store = place.node(url=place.url.replace(str(place.server.port), str(proxy.port)))
        put(store, "a", b"1")
        plan.append(Cut.REQUEST)
        with pytest.raises(
            UnknownOutcome, match="read the keys that it writes before you repeat it"
        ):
            put(store, "a", b"x" * LARGE)
        assert len(place.chunks()) == 4
        entry = store.get("a")
        assert entry is not None
        assert entry.value == b"1"
        put(store, "a", b"2")
        assert place.chunks() == []
        store.close()


TEXT = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=4)


@given(key=TEXT.filter(bool), start=TEXT, end=TEXT)
def test_the_chunks_of_a_range_of_keys_form_a_range(key: str, start: str, end: str) -> None:
    places = EtcdKeys("p")
    chunk = places.chunk(key, b"%016x12345678" % 7, 3)
    inside = places.chunk_bound(start) <= chunk < places.chunk_bound(end)
    assert inside == (start <= key < end)
    assert places.owner_of(chunk) == (key, b"%016x12345678" % 7)
    low, high = places.chunks(key)
    assert low < chunk < high
