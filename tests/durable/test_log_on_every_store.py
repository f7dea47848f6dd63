"""What the update log promises, on every metastorage.

Some rules differ from the log that this one is modelled on: an empty log takes version 1 alone (not
any first version), a version is told by its key's order (20 digits), and who owns the log is told
by the fence token (not by a product key).
"""

from __future__ import annotations

import threading
from typing import Any

import pytest

from strandline.clock import Timestamp
from strandline.durable import MetastorageLog
from strandline.durable.chunks import CHUNK
from strandline.durable.collections import AUDIT_EVENT
from strandline.durable.contents import restore
from strandline.durable.metastorage_log import (
    FENCE,
    SNAPSHOT_VERSION,
    UPDATE,
    VERSION,
    append_key,
    update_key,
)
from strandline.durable.state import new_update, snapshot_of
from strandline.durable.update import AuditEvent, Change, Entry, Snapshot, Update
from strandline.errors import CorruptData, Fenced, OutOfSync, VersionNotFound
from strandline.fencing import FenceToken
from strandline.metastorage import Delete, Metastorage, Put, PutTimed, prefix_end
from strandline.model.bookkeeping import ConfigEntry
from strandline.wire import registry
from strandline.wire.registry import decode, encode
from tests.durable.conftest import NewStore

TOKEN = FenceToken(0, 1)
CHUNKED = 100


def update(version: int, verb: str = "create_zone") -> Update:
    entry = Entry(verb, {"n": version}, (Change("config", b"k", None, b"v"),))
    return new_update(version, [entry], author="ann", member="m")


def timed(key: str, value: Update) -> PutTimed:
    """The put of an update, as an append makes it."""
    split = registry.timed_head(encode(value))
    assert split is not None
    return PutTimed(key, *split)


def begin(log: MetastorageLog, versions: int) -> None:
    """A log of that many versions."""
    log.append(1, None, [update(1, "fence")], new_token=TOKEN)
    for version in range(2, versions + 1):
        log.append(version, TOKEN, [update(version)])


def big_snapshot(log: MetastorageLog, version: int, mark: str = "") -> Snapshot:
    """A snapshot that takes several chunks of a hundred bytes."""
    records = tuple(encode(ConfigEntry(f"key {n:03d}", mark + "x" * 20)) for n in range(20))
    found = log.updates(version, version + 1)[0].time
    return Snapshot(version, found, (("config", records),), (tuple([found] * 20),))


def chunks(store: Metastorage) -> list[str]:
    return [kv.key for kv in store.range(CHUNK, prefix_end(CHUNK))]


def test_an_append_is_taken_at_the_next_version_alone(any_log: MetastorageLog) -> None:
    with pytest.raises(OutOfSync):
        any_log.append(2, None, [update(2)])
    begin(any_log, 2)
    for version in (1, 2, 4):
        with pytest.raises(OutOfSync, match="the next version is 3"):
            any_log.append(version, TOKEN, [update(version)])
    assert any_log.append(3, TOKEN, [update(3), update(4)])[1].version == 4
    assert any_log.frontier().upper == 5


def test_of_several_nodes_that_append_one_version_one_has_it(new_store: NewStore) -> None:
    logs = [MetastorageLog(new_store()) for _ in range(4)]
    begin(logs[0], 1)
    won: list[int] = []
    gate = threading.Barrier(4)

    def work(number: int) -> None:
        for version in range(2, 7):
            gate.wait()
            try:
                logs[number].append(version, TOKEN, [update(version)])
            except OutOfSync:
                continue
            won.append(version)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert won == [2, 3, 4, 5, 6]
    assert [one.version for one in logs[3].updates(1, 7)] == [1, 2, 3, 4, 5, 6]


def test_a_replay_gives_the_updates_as_they_were_appended(new_store: NewStore) -> None:
    first = MetastorageLog(new_store())
    first.append(1, None, [update(1, "fence")], new_token=TOKEN)
    appended = first.append(2, TOKEN, [update(2), update(3)])
    again = MetastorageLog(new_store())
    assert again.updates(2, 4) == appended
    assert {one.time for one in appended} == {appended[0].time}
    assert again.updates(2, 2) == ()


def test_a_log_of_another_owner_is_left_alone(any_log: MetastorageLog) -> None:
    begin(any_log, 2)
    for token in (None, FenceToken(0, 2), FenceToken(1, 1)):
        with pytest.raises(Fenced):
            any_log.append(3, token, [update(3)])
        with pytest.raises(Fenced):
            any_log.compact(big_snapshot(any_log, 2), token or FenceToken(9, 9))
    assert any_log.frontier().upper == 3
    assert any_log.frontier().since == 0


def test_other_nodes_learn_of_appends_and_of_trimming(new_store: NewStore) -> None:
    one, two = MetastorageLog(new_store()), MetastorageLog(new_store())
    begin(one, 2)
    seen = two.frontier()
    assert not two.wait(seen, timeout=0)
    one.append(3, TOKEN, [update(3)])
    assert two.wait(seen, timeout=10)
    seen = two.frontier()
    assert (seen.since, seen.upper) == (0, 4)
    one.compact(big_snapshot(one, 2), TOKEN)
    assert two.wait(seen, timeout=10)
    assert two.frontier().since == 2


# -- snapshots -------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunk_bytes", [CHUNKED, 1 << 20])
def test_a_snapshot_of_any_size_comes_back_and_takes_the_place_of_what_it_covers(
    new_store: NewStore, chunk_bytes: int
) -> None:
    store = new_store()
    log = MetastorageLog(store, chunk_bytes=chunk_bytes)
    begin(log, 4)
    snapshot = big_snapshot(log, 3)
    assert log.compact(snapshot, TOKEN)
    assert bool(chunks(store)) == (chunk_bytes == CHUNKED)
    for reader in (log, MetastorageLog(new_store())):
        assert reader.snapshot() == snapshot
        assert (reader.frontier().since, reader.frontier().upper) == (3, 5)
        assert [one.version for one in reader.updates(4, 5)] == [4]
        with pytest.raises(VersionNotFound, match="earliest in the log is 3"):
            reader.updates(3, 5)
    kept = store.range(UPDATE, prefix_end(UPDATE))
    assert [kv.key for kv in kept] == [update_key(3), update_key(4)]


def test_a_log_may_end_in_its_snapshot(new_store: NewStore) -> None:
    log = MetastorageLog(new_store(), chunk_bytes=CHUNKED)
    begin(log, 3)
    assert log.compact(big_snapshot(log, 3), TOKEN)
    frontier = MetastorageLog(new_store()).frontier()
    assert (frontier.since, frontier.upper) == (3, 4)
    assert log.updates(4, 4) == ()
    assert log.append(4, TOKEN, [update(4)])[0].version == 4
    assert log.snapshot().version == 3


def test_snapshots_follow_each_other_and_leave_no_chunk_behind(new_store: NewStore) -> None:
    store = new_store()
    log = MetastorageLog(store, chunk_bytes=CHUNKED)
    begin(log, 4)
    store.invoke([], [Put(f"{CHUNK}ffff.00000007", b"left by a crash")])
    assert log.compact(big_snapshot(log, 2, "first"), TOKEN)
    first = set(chunks(store))
    assert len({key.split(".")[2] for key in first}) == 1
    assert log.compact(big_snapshot(log, 4, "second"), TOKEN)
    assert not first & set(chunks(store))
    assert log.snapshot() == big_snapshot_at(log, "second", 4)
    small = MetastorageLog(store)
    small.append(5, TOKEN, [update(5)])
    assert small.compact(Snapshot(5, small.updates(5, 6)[0].time, ()), TOKEN)
    assert chunks(store) == []


def big_snapshot_at(log: MetastorageLog, mark: str, version: int) -> Snapshot:
    found = log.snapshot()
    assert found.version == version
    assert all(mark.encode() in record for record in found.kinds[0][1])
    return found


@pytest.mark.parametrize("covered", [1, 2, 3])
def test_a_snapshot_that_is_not_newer_changes_nothing(
    any_log: MetastorageLog, covered: int, store: Metastorage
) -> None:
    begin(any_log, 3)
    old = {version: big_snapshot(any_log, version) for version in (1, 2, 3)}
    assert any_log.compact(old[3], TOKEN)
    before = chunks(store)
    assert not any_log.compact(old[covered], TOKEN)
    assert chunks(store) == before


class Meddled:
    """A store on which something else happens before the n-th call of one method."""

    def __init__(self, store: Metastorage, method: str, call: int, meddle: Any) -> None:
        self._store, self._method, self._call, self._meddle = store, method, call, meddle

    def __getattr__(self, name: str) -> Any:  # Any: whatever the store has
        real = getattr(self._store, name)
        if name != self._method:
            return real

        def call(*arguments: Any, **named: Any) -> Any:  # Any: passed on as it came
            self._call -= 1
            if self._call == 0:
                self._meddle()
            return real(*arguments, **named)

        return call


@pytest.mark.parametrize("call", [2, 3, 9, 15])
def test_a_compaction_whose_chunks_another_one_removed_writes_them_again(
    new_store: NewStore, call: int
) -> None:
    other = MetastorageLog(new_store(), chunk_bytes=CHUNKED)
    begin(other, 5)
    lower, upper = big_snapshot(other, 3, "lower"), big_snapshot(other, 5, "upper")
    meddled: Any = Meddled(new_store(), "invoke", call, lambda: other.compact(lower, TOKEN))
    assert MetastorageLog(meddled, chunk_bytes=CHUNKED).compact(upper, TOKEN)
    assert other.snapshot() == upper
    store = new_store()
    assert len({key.split(".")[2] for key in chunks(store)}) == 1


@pytest.mark.parametrize("call", [2, 3, 5])
def test_a_reader_that_loses_to_a_newer_snapshot_begins_again(
    new_store: NewStore, call: int
) -> None:
    other = MetastorageLog(new_store(), chunk_bytes=CHUNKED)
    begin(other, 5)
    assert other.compact(big_snapshot(other, 3, "lower"), TOKEN)
    newer = big_snapshot(other, 5, "newer")
    store = new_store()
    reader = MetastorageLog(store)
    reader.frontier()
    meddled: Any = Meddled(store, "get", call, lambda: other.compact(newer, TOKEN))
    raced = MetastorageLog(meddled)
    raced._seen = reader._seen  # it looked before the newer one came
    assert raced.snapshot() == newer


def test_a_trimming_to_what_is_not_there_is_refused(any_log: MetastorageLog) -> None:
    begin(any_log, 2)
    snapshot = big_snapshot(any_log, 2)
    with pytest.raises(VersionNotFound, match="goes from version 0 to 2"):
        any_log.compact(Snapshot(3, snapshot.time, snapshot.kinds, snapshot.times), TOKEN)
    assert any_log.frontier().since == 0


def test_a_snapshot_gives_each_object_the_time_of_its_last_change(new_store: NewStore) -> None:
    log = MetastorageLog(new_store(), chunk_bytes=CHUNKED)
    begin(log, 3)
    first, second = Timestamp(1 << 20), Timestamp(2 << 20)
    records = [encode(ConfigEntry(name, "v")) for name in ("a", "b")]
    contents = restore([("config", tuple(records))], [(first, second)])
    assert log.compact(snapshot_of(3, log.updates(3, 4)[0].time, contents), TOKEN)
    found = MetastorageLog(new_store()).snapshot()
    again = restore(found.kinds, found.times, at=found.time)
    assert again == contents
    assert again.times() == ((first, second),)


# -- damage ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("missing", [1, 2, 3, 4])
def test_a_hole_anywhere_is_an_error_and_never_a_shorter_history(
    any_log: MetastorageLog, store: Metastorage, missing: int
) -> None:
    begin(any_log, 4)
    store.invoke([], [Delete(update_key(missing))])
    with pytest.raises(CorruptData, match=f"version {missing} is missing"):
        any_log.updates(1, any_log.frontier().upper)


def test_a_log_that_was_cut_short_behind_its_version_is_an_error(
    any_log: MetastorageLog, store: Metastorage
) -> None:
    begin(any_log, 3)
    store.invoke([], [Put(VERSION, b"%020d" % 9)])
    with pytest.raises(CorruptData, match="version 4 is missing"):
        any_log.updates(1, any_log.frontier().upper)


@pytest.mark.parametrize("key", [VERSION, SNAPSHOT_VERSION])
@pytest.mark.parametrize("spoiled", [b"", b"%019d\x80" % 0, b"%019d" % 3, b"+%019d" % 3, b"3"])
def test_what_is_no_version_where_the_log_keeps_one_is_an_error(
    any_log: MetastorageLog, store: Metastorage, key: str, spoiled: bytes
) -> None:
    begin(any_log, 3)
    store.invoke([], [Put(key, spoiled)])
    with pytest.raises(CorruptData, match=f"{key} of the log is .* restore the store"):
        any_log.frontier()


def test_an_update_at_another_version_is_an_error(
    any_log: MetastorageLog, store: Metastorage
) -> None:
    begin(any_log, 3)
    store.invoke([], [timed(update_key(3), update(2))])
    with pytest.raises(CorruptData, match="update 2 at version 3"):
        any_log.updates(1, 4)


def test_the_time_of_an_update_stands_in_its_record_and_in_its_audit_event(
    any_log: MetastorageLog, store: Metastorage
) -> None:
    begin(any_log, 3)
    (appended,) = any_log.append(4, TOKEN, [update(4)])
    found, event = store.get(update_key(4)), store.get(append_key(AUDIT_EVENT, 4))
    assert found is not None
    assert event is not None
    assert decode(found.value, Update).time == found.time == appended.time
    assert decode(event.value, AuditEvent).time == event.time == appended.time
    assert any_log.updates(4, 5)[0].time == appended.time


def test_an_update_whose_times_differ_is_an_error(
    any_log: MetastorageLog, store: Metastorage
) -> None:
    begin(any_log, 3)
    found = store.get(update_key(3))
    assert found is not None
    store.invoke([], [Put(update_key(3), found.value)])
    with pytest.raises(CorruptData, match=r"time .* in its record and .* beside it"):
        any_log.updates(1, 4)


def test_what_an_older_release_wrote_has_the_time_of_its_key(
    any_log: MetastorageLog, store: Metastorage
) -> None:
    begin(any_log, 2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "PROTOCOL", 1)
        patch.setitem(registry._by_type, Update, registry._by_type[Update][:1])
        store.invoke([], [Put(update_key(2), encode(update(2)))])
    found = store.get(update_key(2))
    assert found is not None
    assert any_log.updates(1, 3)[1].time == found.time


def test_a_fence_that_an_older_release_wrote_is_the_same_token(
    any_log: MetastorageLog, store: Metastorage
) -> None:
    begin(any_log, 2)
    old = b"\x01\x00" + encode(TOKEN)[6:]
    store.invoke([], [Put(FENCE, old)])
    again = MetastorageLog(store)
    again.append(3, TOKEN, [update(3)])
    assert again.compact(big_snapshot(again, 3), TOKEN)


def test_a_version_to_be_trimmed_to_that_is_a_hole_is_an_error(
    any_log: MetastorageLog, store: Metastorage
) -> None:
    begin(any_log, 4)
    snapshot = big_snapshot(any_log, 3)
    store.invoke([], [Delete(update_key(3))])
    with pytest.raises(CorruptData, match="nothing was trimmed"):
        any_log.compact(snapshot, TOKEN)
    assert any_log.frontier().since == 0


@pytest.mark.parametrize("damage", ["gone", "short"])
def test_a_snapshot_that_lost_a_part_is_an_error(
    any_log: MetastorageLog, store: Metastorage, damage: str
) -> None:
    begin(any_log, 3)
    assert any_log.compact(big_snapshot(any_log, 3), TOKEN)
    last = chunks(store)[-1]
    store.invoke([], [Delete(last) if damage == "gone" else Put(last, b"")])
    with pytest.raises(CorruptData, match="restore the store from a backup"):
        any_log.snapshot()


def test_audit_events_are_read_in_pages(
    any_log: MetastorageLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strandline.durable.metastorage_log.SCANNED_AT_ONCE", 2)
    begin(any_log, 8)
    for end in (2, 3, 4, 5, 9):
        found = [one.version for one in any_log.scan("audit_event", 1, end)]
        assert found == list(range(2, end))


def test_one_append_holds_as_many_updates_as_the_log_says(
    any_log: MetastorageLog, store: Metastorage
) -> None:
    begin(any_log, 1)
    count = min(any_log.max_updates, 200)
    any_log.append(2, TOKEN, [update(2 + n) for n in range(count)])
    assert any_log.frontier().upper == 2 + count
    assert store.get(FENCE) is not None
