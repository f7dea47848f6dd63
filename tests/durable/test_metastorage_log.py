"""The layout of the update log on a metastorage: its keys, its chunks, damage, lost answers.

What every log promises is in ``test_log_contract.py``.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from strandline.clock import add_milliseconds
from strandline.durable import CatalogSnapshot, MetastorageLog, ReadOnlyState
from strandline.durable.chunks import CHUNK
from strandline.durable.collections import AUDIT_EVENT, STORAGE_USAGE_EVENT
from strandline.durable.metastorage_log import (
    FENCE,
    SNAPSHOT_VERSION,
    UPDATE,
    VERSION,
    append_key,
    update_key,
)
from strandline.durable.update import AuditEvent, Update
from strandline.errors import (
    CorruptData,
    Fenced,
    OutOfSync,
    Unavailable,
    UnknownOutcome,
    VersionNotFound,
)
from strandline.metastorage import Delete, DeleteRange, Metastorage, Put, PutTimed, prefix_end
from strandline.wire import registry
from strandline.wire.registry import decode, encode
from tests.durable.conftest import NewStore
from tests.durable.logs import CHUNKED
from tests.durable.updates import (
    TOKEN,
    CutStore,
    RacedStore,
    begin,
    measured,
    trim_in_steps,
    update,
)


def timed(key: str, value: Update) -> PutTimed:
    """The put of an update, as an append makes it."""
    split = registry.timed_head(encode(value))
    assert split is not None
    return PutTimed(key, *split)


def chunks(store: Metastorage) -> list[str]:
    return [kv.key for kv in store.range(CHUNK, prefix_end(CHUNK))]


def names(keys: list[str]) -> set[str]:
    """The random names of the snapshots that the chunks belong to."""
    return {key.split(".")[2] for key in keys}


def cut(store: Metastorage, *, happens: bool) -> MetastorageLog:
    return MetastorageLog(CutStore(store, happens=happens))  # type: ignore[arg-type]  # a wrapper


def unchunked(store: Metastorage, meddle: Any, **when: Any) -> MetastorageLog:
    """A raced log whose snapshots are each written in one invoke."""
    wrapped: Any = RacedStore(store, meddle, **when)
    return MetastorageLog(wrapped)


def raced(store: Metastorage, meddle: Any, **when: Any) -> MetastorageLog:
    wrapped: Any = RacedStore(store, meddle, **when)
    return MetastorageLog(wrapped, chunk_bytes=CHUNKED)


# -- keys ------------------------------------------------------------------------------------------


def test_keys_of_versions_sort_in_the_order_of_versions() -> None:
    keys = [update_key(version) for version in (1, 9, 10, 99, 100, 10**12)]
    assert keys == sorted(keys)
    assert update_key(7) == "catalog.update.00000000000000000007"


def test_append_only_objects_are_stored_under_separate_keys(
    any_log: MetastorageLog, store: Metastorage
) -> None:
    begin(any_log, 2)
    assert store.get(append_key("audit_event", 2)) is not None
    assert b"audit" not in encode(any_log.updates(2, 3)[0])


@pytest.mark.parametrize("chunk_bytes", [CHUNKED, 1 << 20])
def test_a_snapshot_replaces_the_updates_that_it_covers(
    new_store: NewStore, chunk_bytes: int
) -> None:
    store = new_store()
    log = MetastorageLog(store, chunk_bytes=chunk_bytes)
    begin(log, 4, objects=4)
    assert log.compact(3, TOKEN)
    assert bool(chunks(store)) == (chunk_bytes == CHUNKED)
    kept = store.range(UPDATE, prefix_end(UPDATE))
    assert [kv.key for kv in kept] == [update_key(3), update_key(4)]


# -- times -----------------------------------------------------------------------------------------


def test_the_record_and_the_audit_event_of_an_update_contain_its_time(
    any_log: MetastorageLog, store: Metastorage
) -> None:
    begin(any_log, 3)
    (appended,) = any_log.append(4, TOKEN, [update(4)])
    entry, event = store.get(update_key(4)), store.get(append_key(AUDIT_EVENT, 4))
    assert entry is not None
    assert event is not None
    assert decode(entry.value, Update).time == entry.time == appended.time
    assert decode(event.value, AuditEvent).time == event.time == appended.time
    assert any_log.updates(4, 5)[0].time == appended.time


def test_an_update_whose_time_is_after_that_of_its_key_is_corrupt(
    any_log: MetastorageLog, store: Metastorage
) -> None:
    begin(any_log, 3)
    future = add_milliseconds(any_log.check().time, 3_600_000)
    store.invoke([], [timed(update_key(3), update(3)).at(future)])
    with pytest.raises(
        CorruptData, match=r"time .* in its record, which is later than the time .* of its key"
    ):
        any_log.updates(1, 4)


def test_an_update_of_an_older_release_gets_the_time_of_its_key(
    any_log: MetastorageLog, store: Metastorage
) -> None:
    begin(any_log, 2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "PROTOCOL", 1)
        patch.setitem(registry._by_type, Update, registry._by_type[Update][:1])
        store.invoke([], [Put(update_key(2), encode(update(2)))])
    entry = store.get(update_key(2))
    assert entry is not None
    assert any_log.updates(1, 3)[1].time == entry.time


def test_a_fence_token_written_by_an_older_release_is_accepted(
    any_log: MetastorageLog, store: Metastorage
) -> None:
    begin(any_log, 2)
    old = b"\x01\x00" + encode(TOKEN)[6:]
    store.invoke([], [Put(FENCE, old)])
    again = MetastorageLog(store)
    again.append(3, TOKEN, [update(3)])
    assert again.compact(3, TOKEN)


# -- chunks ----------------------------------------------------------------------------------------


def test_a_new_snapshot_removes_the_chunks_of_earlier_ones(new_store: NewStore) -> None:
    store = new_store()
    log = MetastorageLog(store, chunk_bytes=CHUNKED)
    begin(log, 4)
    store.invoke([], [Put(f"{CHUNK}ffff.00000007", b"left by a crash")])
    assert log.compact(2, TOKEN)
    first = chunks(store)
    assert len(names(first)) == 1
    assert log.compact(4, TOKEN)
    assert not set(first) & set(chunks(store))
    assert len(names(chunks(store))) == 1
    small = MetastorageLog(store)
    small.append(5, TOKEN, [update(5)])
    assert small.compact(5, TOKEN)
    assert chunks(store) == []


@pytest.mark.parametrize("up_to", [1, 2, 3])
def test_a_trim_that_changes_nothing_writes_no_chunk(
    any_log: MetastorageLog, store: Metastorage, up_to: int
) -> None:
    begin(any_log, 3)
    assert any_log.compact(3, TOKEN)
    before = chunks(store)
    assert not any_log.compact(up_to, TOKEN)
    assert chunks(store) == before


@pytest.mark.parametrize("call", [2, 3, 5, 7])
def test_a_compaction_rewrites_chunks_that_another_compaction_removed(
    new_store: NewStore, call: int
) -> None:
    other = MetastorageLog(new_store(), chunk_bytes=CHUNKED)
    begin(other, 5)
    expected = other.snapshot(5)
    late = raced(new_store(), lambda: other.compact(3, TOKEN), call=call)
    assert late.compact(5, TOKEN)
    assert other.snapshot() == expected
    assert len(names(chunks(new_store()))) == 1


def test_a_compaction_whose_chunks_were_lost_changes_nothing(
    any_log: MetastorageLog, store: Metastorage
) -> None:
    """As when a standby without the last writes takes over the database."""
    begin(any_log, 5)
    before = any_log.updates(1, 6)
    chunk_count = -(-len(encode(any_log.snapshot(5))) // CHUNKED)
    lost = DeleteRange(CHUNK, prefix_end(CHUNK))
    late = raced(store, lambda: store.invoke([], [lost]), call=chunk_count + 1)
    with pytest.raises(CorruptData, match="nothing was trimmed"):
        late.compact(5, TOKEN)
    assert any_log.frontier().since == 0
    assert any_log.updates(1, 6) == before


@pytest.mark.parametrize("call", [2, 3, 5])
def test_a_reader_restarts_when_a_newer_snapshot_replaces_the_one_it_reads(
    new_store: NewStore, call: int
) -> None:
    other = MetastorageLog(new_store(), chunk_bytes=CHUNKED)
    begin(other, 5, objects=4)
    assert other.compact(3, TOKEN)
    expected = other.snapshot(5)
    store = new_store()
    reader = MetastorageLog(store)
    reader.frontier()
    late = raced(store, lambda: other.compact(5, TOKEN), method="get", call=call)
    late._seen = reader._seen  # it looked before the newer snapshot was written
    assert late.snapshot() == expected


# -- concurrent trims and lost answers -------------------------------------------------------------


def test_a_trim_succeeds_although_a_concurrent_trim_was_first(
    any_log: MetastorageLog, store: Metastorage
) -> None:
    begin(any_log, 4)
    assert raced(store, lambda: any_log.compact(2, TOKEN)).compact(4, TOKEN)
    assert any_log.frontier().since == 4


@pytest.mark.parametrize(("others", "is_compacted"), [(3, False), (4, False), (2, True)])
def test_a_trim_overtaken_while_it_reads_the_log_changes_nothing_unless_it_is_higher(
    any_log: MetastorageLog, store: Metastorage, others: int, is_compacted: bool
) -> None:
    begin(any_log, 4)
    late = raced(store, lambda: any_log.compact(others, TOKEN), method="range")
    assert late.compact(3, TOKEN) is is_compacted
    assert any_log.frontier().since == max(others, 3)


@pytest.mark.parametrize("arrives", [False, True])
@pytest.mark.parametrize("call", [1, 2, 3, 4])
def test_a_trim_that_ends_between_two_steps_leaves_a_log_without_the_trimmed_versions(
    new_store: NewStore, call: int, arrives: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    trim_in_steps(monkeypatch, 2)
    store = new_store()
    log = MetastorageLog(store)
    begin(log, 7)
    kept, before = log.snapshot(7), log.updates(1, 8)

    def end() -> None:
        raise Unavailable("the connection was cut")

    wrapped: Any = RacedStore(store, end, call=call, cut=arrives)
    # The first invoke writes the snapshot and removes two versions, the others two and one.
    steps = call if arrives else call - 1
    with suppress(Unavailable):
        assert MetastorageLog(wrapped).compact(6, TOKEN)
        assert call == 4
    assert len(store.range(UPDATE, prefix_end(UPDATE))) == max(7 - 2 * steps, 2)
    reader = MetastorageLog(new_store())
    since = reader.frontier().since
    assert since == (6 if steps else 0)
    assert reader.snapshot(7) == kept
    assert reader.updates(since + 1, 8) == before[since:]
    for start, stop in ((1, 2), (3, 6), (1, 8), (6, 7)) if since else ():
        with pytest.raises(VersionNotFound, match="the earliest is 6"):
            reader.updates(start, stop)
    assert reader.compact(6, TOKEN) is (since == 0)
    rest = store.range(UPDATE, prefix_end(UPDATE))
    assert [kv.key for kv in rest] == [update_key(6), update_key(7)]
    assert reader.snapshot(7) == kept


def test_a_trim_overtaken_by_an_interrupted_higher_one_does_not_move_since_back(
    any_log: MetastorageLog, store: Metastorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    trim_in_steps(monkeypatch, 2)
    begin(any_log, 7)
    kept = any_log.snapshot(7)

    def end() -> None:
        raise Unavailable("the connection was cut")

    def overtake() -> None:  # versions 1 to 3 are left, but not 4 and 5
        with pytest.raises(Unavailable):
            unchunked(store, end, call=2).compact(6, TOKEN)

    assert not unchunked(store, overtake).compact(3, TOKEN)
    assert any_log.frontier().since == 6
    assert any_log.snapshot(7) == kept


def test_a_trim_of_a_holder_that_is_fenced_meanwhile_is_refused(
    any_log: MetastorageLog, store: Metastorage
) -> None:
    begin(any_log, 4)
    before = any_log.updates(1, 5)

    def take_over() -> None:
        any_log.append(5, TOKEN, [update(5, "fence")], new_token=replace(TOKEN, epoch=2))

    with pytest.raises(Fenced):
        unchunked(store, take_over).compact(3, TOKEN)
    assert any_log.frontier().since == 0
    assert any_log.updates(1, 5) == before


@pytest.mark.parametrize(("others", "is_pruned"), [(4, False), (2, True)])
def test_an_overtaken_prune_changes_nothing_unless_it_is_higher(
    any_log: MetastorageLog, store: Metastorage, others: int, is_pruned: bool
) -> None:
    begin(any_log, 1)
    any_log.append(2, TOKEN, [measured(version) for version in range(2, 6)])
    late = unchunked(store, lambda: any_log.prune(STORAGE_USAGE_EVENT, others, TOKEN))
    assert late.prune(STORAGE_USAGE_EVENT, 3, TOKEN) is is_pruned
    assert any_log.frontier().pruned == ((STORAGE_USAGE_EVENT, max(others, 3)),)


def test_a_prune_of_a_holder_that_is_fenced_meanwhile_is_refused(
    any_log: MetastorageLog, store: Metastorage
) -> None:
    begin(any_log, 1)
    any_log.append(2, TOKEN, [measured(2)])

    def take_over() -> None:
        any_log.append(3, TOKEN, [update(3, "fence")], new_token=replace(TOKEN, epoch=2))

    with pytest.raises(Fenced):
        unchunked(store, take_over).prune(STORAGE_USAGE_EVENT, 2, TOKEN)
    assert any_log.frontier().pruned == ()
    assert [scanned.version for scanned in any_log.scan(STORAGE_USAGE_EVENT, 1, 4)] == [2, 2]


def test_a_trim_is_ended_by_a_newer_holder_and_completed_by_its_trim(
    any_log: MetastorageLog, store: Metastorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    trim_in_steps(monkeypatch, 2)
    begin(any_log, 7)
    newer = replace(TOKEN, epoch=2)

    def take_over() -> None:
        any_log.append(8, TOKEN, [update(8, "fence")], new_token=newer)

    assert unchunked(store, take_over, call=2).compact(6, TOKEN)
    assert store.get(update_key(1)) is not None
    assert not any_log.compact(6, newer)
    assert store.get(update_key(1)) is None


def test_the_outcome_of_an_unanswered_append_is_found_by_its_id(
    any_log: MetastorageLog, store: Metastorage
) -> None:
    begin(any_log, 1)
    mine = update(2)
    assert cut(store, happens=True).append(2, TOKEN, [mine])[0].id == mine.id
    assert any_log.updates(2, 3)[0].id == mine.id


def test_an_unanswered_append_keeps_the_times_it_was_given(
    any_log: MetastorageLog, store: Metastorage
) -> None:
    begin(any_log, 1)
    time = any_log.updates(1, 2)[0].time
    (appended,) = cut(store, happens=True).append(2, TOKEN, [update(2)], times=[time])
    assert appended.time == any_log.updates(2, 3)[0].time == time


def test_an_append_that_never_arrived_raises_unavailable(
    any_log: MetastorageLog, store: Metastorage
) -> None:
    begin(any_log, 1)
    with pytest.raises(Unavailable, match="cut"):
        cut(store, happens=False).append(2, TOKEN, [update(2)])
    assert any_log.frontier().upper == 2


def test_an_append_that_never_arrived_raises_unavailable_also_if_the_log_cannot_be_read(
    any_log: MetastorageLog, store: Metastorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(any_log, 1)
    log = cut(store, happens=False)

    def away(*_: object) -> int:
        raise Unavailable("the server is away")

    monkeypatch.setattr(log, "frontier", away)
    with pytest.raises(Unavailable, match="cut") as refused:
        log.append(2, TOKEN, [update(2)])
    assert not isinstance(refused.value, UnknownOutcome)


def test_an_unanswered_append_of_a_version_taken_by_another_is_out_of_sync(
    any_log: MetastorageLog, store: Metastorage
) -> None:
    begin(any_log, 2)
    with pytest.raises(OutOfSync):
        cut(store, happens=True).append(2, TOKEN, [update(2)])


def test_an_unanswered_append_whose_first_update_alone_is_in_the_log_is_out_of_sync(
    any_log: MetastorageLog, store: Metastorage
) -> None:
    """Two processes that copy one log may split its history at different versions."""
    begin(any_log, 1)
    first = update(2)
    any_log.append(2, TOKEN, [first])
    with pytest.raises(OutOfSync):
        cut(store, happens=False).append(2, TOKEN, [first, update(3)])


@pytest.mark.parametrize("trimmed_to", [2, 3])
def test_the_outcome_of_an_unanswered_append_is_found_after_a_trim(
    any_log: MetastorageLog, store: Metastorage, trimmed_to: int
) -> None:
    begin(any_log, 1)
    mine = update(2)

    def go_on() -> None:
        any_log.append(3, TOKEN, [update(3)])
        assert any_log.compact(trimmed_to, TOKEN)

    late = raced(store, go_on, cut=True)
    assert [logged.id for logged in late.append(2, TOKEN, [mine])] == [mine.id]


@pytest.mark.parametrize("method", ["range", "get"])
def test_since_is_below_upper_although_others_append_and_trim_between_the_two_reads(
    any_log: MetastorageLog, store: Metastorage, method: str
) -> None:
    begin(any_log, 1)

    def go_on() -> None:
        any_log.append(2, TOKEN, [update(2), update(3)])
        any_log.compact(3, TOKEN)

    frontier = unchunked(store, go_on, method=method).frontier()
    assert frontier.since < frontier.upper


@pytest.mark.parametrize("call", [1, 2])
def test_listen_misses_no_append_made_while_it_looks(
    any_log: MetastorageLog, store: Metastorage, call: int
) -> None:
    begin(any_log, 1)
    appended: list[Update] = []

    def append() -> None:
        appended.extend(any_log.append(2, TOKEN, [update(2)]))

    listener = unchunked(store, append, method="revision", call=call)
    assert listener.listen(any_log.frontier(), timeout=0) == bool(appended)


# -- damage ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("missing", [1, 2, 3, 4])
def test_a_missing_version_is_an_error_and_never_a_shorter_history(
    any_log: MetastorageLog, store: Metastorage, missing: int
) -> None:
    begin(any_log, 4)
    store.invoke([], [Delete(update_key(missing))])
    with pytest.raises(CorruptData, match=f"version {missing} is missing"):
        any_log.updates(1, any_log.frontier().upper)


def test_a_log_that_ends_before_its_recorded_version_is_corrupt(
    any_log: MetastorageLog, store: Metastorage
) -> None:
    begin(any_log, 3)
    store.invoke([], [Put(VERSION, b"%020d" % 9)])
    with pytest.raises(CorruptData, match="version 4 is missing"):
        any_log.updates(1, any_log.frontier().upper)


@pytest.mark.parametrize("key", [VERSION, SNAPSHOT_VERSION])
@pytest.mark.parametrize("spoiled", [b"", b"%019d\x80" % 0, b"%019d" % 3, b"+%019d" % 3, b"3"])
def test_an_invalid_version_record_is_corrupt(
    any_log: MetastorageLog, store: Metastorage, key: str, spoiled: bytes
) -> None:
    begin(any_log, 3)
    store.invoke([], [Put(key, spoiled)])
    with pytest.raises(CorruptData, match=f"{key} is .* restore the store"):
        any_log.frontier()


@pytest.mark.parametrize("compacted", [False, True])
def test_a_record_that_cannot_be_decoded_is_named_by_its_key(
    any_log: MetastorageLog, store: Metastorage, compacted: bool
) -> None:
    begin(any_log, 3)
    if compacted:
        any_log.compact(3, TOKEN)
    for key in (update_key(3), FENCE):
        entry = store.get(key)
        assert entry is not None
        store.invoke([], [Put(key, entry.value[:-1])])
        with pytest.raises(CorruptData, match=rf"^{key}: .*checksum"):
            if key == FENCE:
                any_log.token()
            elif compacted:
                any_log.first_snapshot()
            else:
                any_log.updates(1, 4)


def test_an_update_stored_at_another_version_is_corrupt(
    any_log: MetastorageLog, store: Metastorage
) -> None:
    begin(any_log, 3)
    store.invoke([], [timed(update_key(3), update(2))])
    with pytest.raises(CorruptData, match="update 2 at version 3"):
        any_log.updates(1, 4)


@pytest.mark.parametrize("trimmed_to", [0, 5])
def test_a_version_appended_during_a_read_is_not_a_hole(
    any_log: MetastorageLog, store: Metastorage, trimmed_to: int
) -> None:
    begin(any_log, 3)

    def append_and_trim() -> None:
        if any_log.frontier().upper == 4:
            any_log.append(4, TOKEN, [update(4), update(5)])
        elif trimmed_to:
            any_log.compact(trimmed_to, TOKEN)

    # The first `get` is that of the upper, which the log reads to explain the missing version.
    reader: Any = RacedStore(store, append_and_trim, method="get", call=1)
    reader = RacedStore(reader, append_and_trim, method="get", call=2)
    log = MetastorageLog(reader)
    if trimmed_to:
        with pytest.raises(VersionNotFound, match="no longer in the log; the earliest is 5"):
            log.updates(3, 6)
    else:
        assert [read.version for read in log.updates(3, 6)] == [3, 4, 5]


@pytest.mark.parametrize("missing", [1, 2, 3])
def test_a_missing_version_stops_a_trim_above_it(
    any_log: MetastorageLog, store: Metastorage, missing: int
) -> None:
    begin(any_log, 4)
    store.invoke([], [Delete(update_key(missing))])
    with pytest.raises(CorruptData, match=f"version {missing} is missing"):
        any_log.compact(3, TOKEN)
    assert any_log.frontier().since == 0


@pytest.mark.parametrize("damage", ["gone", "short"])
def test_a_snapshot_with_a_missing_or_empty_chunk_is_corrupt(
    any_log: MetastorageLog, store: Metastorage, damage: str
) -> None:
    begin(any_log, 3)
    assert any_log.compact(3, TOKEN)
    last = chunks(store)[-1]
    store.invoke([], [Delete(last) if damage == "gone" else Put(last, b"")])
    with pytest.raises(CorruptData, match="restore the store from a backup"):
        any_log.snapshot()


def test_a_snapshot_stored_at_another_version_is_corrupt(
    any_log: MetastorageLog, store: Metastorage
) -> None:
    begin(any_log, 3)
    assert any_log.compact(2, TOKEN)
    store.invoke([], [Put(update_key(2), encode(CatalogSnapshot(1, any_log.check().time, ())))])
    with pytest.raises(CorruptData, match="snapshot of version 1 at version 2"):
        any_log.snapshot()


def test_audit_events_are_read_in_pages(
    any_log: MetastorageLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strandline.durable.metastorage_log.SCANNED_AT_ONCE", 2)
    begin(any_log, 8)
    for end in (2, 3, 4, 5, 9):
        versions = [scanned.version for scanned in any_log.scan("audit_event", 1, end)]
        assert versions == list(range(2, end))


def test_a_state_may_keep_only_the_latest_versions_that_it_reads(
    any_log: MetastorageLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strandline.durable.state.FIRST_UPDATES", 2)
    monkeypatch.setattr("strandline.durable.log.READ_AT_ONCE", 2)
    begin(any_log, 5)
    kept = ReadOnlyState(any_log).recovered
    latest = ReadOnlyState(any_log, latest_only=True).recovered
    assert [applied.version for applied in kept] == [0, 1, 2, 3, 4, 5]
    assert latest == kept[-1:]


def test_few_updates_are_read_at_once_if_they_are_large(
    any_log: MetastorageLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(any_log, 31, objects=5)
    updates, counts = any_log.updates, list[int]()

    def counted(start: int, end: int) -> tuple[Update, ...]:
        counts.append(end - start)
        return updates(start, end)

    monkeypatch.setattr(any_log, "updates", counted)
    for changes_at_once, expected in (
        (10_000, [4, 16, 11]),
        (15, [4, *[3] * 9]),
        (1, [4, *[1] * 27]),
    ):
        monkeypatch.setattr("strandline.durable.log.CHANGES_AT_ONCE", changes_at_once)
        assert len(ReadOnlyState(any_log).recovered) == 32
        assert counts == expected
        counts.clear()
        assert any_log.snapshot(31).version == 31
        assert counts == expected
        counts.clear()
