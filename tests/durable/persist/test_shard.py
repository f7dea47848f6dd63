"""A shard: its state and rollups, its parts, what crashes leave behind, and the sweep."""

from __future__ import annotations

import logging
import sqlite3
import threading
from contextlib import closing
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from strandline.clock import MIN_TIMESTAMP, Timestamp
from strandline.durable import Update, UpdateLog
from strandline.durable.collections import STORAGE_USAGE_EVENT
from strandline.durable.contents import EMPTY, Contents, restore
from strandline.durable.persist import maintenance as maintenance_module
from strandline.durable.persist.blob import FileBlob
from strandline.durable.persist.consensus import Consensus
from strandline.durable.persist.part import COLUMNS, read_part
from strandline.durable.persist.persist_log import PersistLog, shard_name
from strandline.durable.persist.shard import Shard
from strandline.durable.persist.shard_state import (
    Append,
    Batch,
    ShardDiff,
    ShardState,
    applied,
    compare_and_append,
    next_diff,
)
from strandline.durable.transaction import new_update
from strandline.durable.update import Change, Entry
from strandline.errors import (
    CorruptData,
    Fenced,
    InvalidInput,
    OutOfSync,
    Stopping,
    Unavailable,
    UnknownOutcome,
)
from strandline.fencing import FenceToken
from strandline.model.descriptors import ConfigEntry
from strandline.wire.registry import encode
from tests.durable.persist.conftest import SHARD, Killed, Place, meddled
from tests.durable.updates import TOKEN, RacedStore, begin, measured, update

LARGE = 60
"""Number of objects that makes an update too large to be stored inside the state."""


def versions(log: UpdateLog) -> list[int]:
    frontier = log.frontier()
    return [logged.version for logged in log.updates(frontier.since + 1, frontier.upper)]


def contents_of(log: UpdateLog) -> Contents:
    """The contents of the last version, computed from the snapshot and all later updates."""
    snapshot = log.snapshot()
    contents = restore(snapshot.kinds, snapshot.times, at=snapshot.time)
    for logged in log.updates(snapshot.version + 1, log.frontier().upper):
        contents = contents.apply(logged.changes(), at=logged.time)
    return contents


# -- the state -------------------------------------------------------------------------------------


def test_the_shard_name_depends_only_on_the_environment_id() -> None:
    assert shard_name("a") == shard_name("a") != shard_name("b")
    assert shard_name("a")[0] == "s"
    assert len(shard_name("a")) == 37


def append_of(lower: int, upper: int, *, rows: int = 1, token: bytes = b"t") -> Append:
    batch = Batch(lower, upper, rows, inline=b"x")
    return Append(batch, (), b"writer", token, None, None)


def test_an_append_is_checked_against_the_current_state() -> None:
    state = ShardState(SHARD)
    for lower, upper in ((2, 1), (1, 1)):
        with pytest.raises(InvalidInput, match="cannot have rows in versions"):
            compare_and_append(append_of(lower, upper))
    empty = compare_and_append(append_of(1, 1, rows=0))(state)
    assert empty.upper == 1
    with pytest.raises(OutOfSync, match="the next version is 1"):
        compare_and_append(append_of(2, 3))(state)
    fenced = Append(append_of(1, 2).batch, (), b"writer", b"t", FenceToken(0, 1), None)
    with pytest.raises(Fenced):
        compare_and_append(fenced)(state)


def test_a_diff_out_of_sequence_is_corrupt() -> None:
    state = ShardState(SHARD)
    diff = next_diff(state)
    with pytest.raises(CorruptData, match="change 1 of shard"):
        applied(state, diff)  # it has no time yet
    with pytest.raises(CorruptData, match="change 1 of shard"):
        applied(applied(state, later(diff, 2)), later(diff, 3))


def later(diff: ShardDiff, time: int) -> ShardDiff:
    return replace(diff, time=Timestamp(MIN_TIMESTAMP + time))


def test_a_starting_node_reads_one_rollup_and_the_diffs_after_it(place: Place) -> None:
    begin(place.log(), 20)
    scanned: list[int] = []

    def scan(real: Any, key: str, start: int, **named: Any) -> Any:
        pairs = real(key, start, **named)
        scanned.append(len(pairs))
        return pairs

    reader = place.log(consensus=meddled(place.consensus, "scan", scan))
    assert versions(reader) == list(range(1, 21))
    assert sum(scanned) <= 4
    first = place.consensus.scan(SHARD, 0)[0].seqno
    assert first > 15


def test_a_node_that_missed_many_rollups_catches_up_in_two_reloads(place: Place) -> None:
    writer, reader = place.log(), place.log()
    begin(writer, 2)
    assert versions(reader) == [1, 2]
    for version in range(3, 16):
        writer.append(version, TOKEN, [update(version)])
    assert versions(reader) == list(range(1, 16))
    assert reader.shard.statistics().reloads == 2
    assert reader.append(16, TOKEN, [update(16)])[0].version == 16


@pytest.mark.parametrize("known", [1, 0])
def test_changes_that_are_removed_between_two_pages_of_a_read_are_no_damage(
    place: Place, monkeypatch: pytest.MonkeyPatch, known: int
) -> None:
    monkeypatch.setattr("strandline.durable.persist.consensus.SCANNED_AT_ONCE", 4)
    writer = place.log(every=1000)
    raced = RacedStore(place.new_store(), writer.maintenance.tidy, method="range", call=2 + known)
    reader = place.log(consensus=Consensus(raced))  # type: ignore[arg-type]  # answers like one
    begin(writer, 1)
    if known:
        assert versions(reader) == [1]
    for version in range(2, 13):
        writer.append(version, TOKEN, [update(version)])
    assert versions(reader) == list(range(1, 13))


def test_an_append_on_an_idle_log_is_one_compare_and_set(place: Place) -> None:
    calls: list[str] = []

    class Counted:
        revision_is_cheap = True

        def __getattr__(self, name: str) -> Any:
            calls.append(name)
            return getattr(place.consensus, name)

    log = place.log(consensus=Counted(), every=1000)  # type: ignore[arg-type]  # a wrapper
    begin(log, 2)
    log.frontier()
    calls.clear()
    log.append(3, TOKEN, [update(3)])
    log.frontier()
    assert calls == ["compare_and_set", "revision"]
    assert place.blobs() == set()


# -- parts -----------------------------------------------------------------------------------------


def test_rows_move_to_sorted_parquet_parts_and_small_parts_are_merged(place: Place) -> None:
    log = place.log()
    begin(log, 30)
    state = log.shard.known
    assert sum(1 for batch in state.batches if batch.parts) < 6
    parts = [ref for batch in state.batches + state.appended for ref in batch.parts]
    for ref in parts:
        table = read_part(place.blob.get(ref.key) or b"")
        assert tuple(table.column_names) == COLUMNS
        keys = [(row["kind"], row["key"], row["version"]) for row in table.to_pylist()]
        assert keys == sorted(keys)
    assert versions(place.log()) == list(range(1, 31))
    assert [s.version for s in log.scan("audit_event", 1, 31)] == list(range(2, 31))


@pytest.mark.parametrize("how", ["trimmed", "merged"])
def test_a_rewrite_of_parts_removes_pruned_rows(place: Place, how: str) -> None:
    log = place.log(every=1000)
    begin(log, 2)
    for version in range(3, 3 + maintenance_module.MERGED_AT_ONCE):
        log.append(version, TOKEN, [measured(version)])
        log.maintenance.tidy() if version == 4 else None
    log.prune(STORAGE_USAGE_EVENT, 4, TOKEN)

    def usage() -> set[int]:
        batches, rows_of = log.shard.known.batches, log.shard.rows_of
        kind = STORAGE_USAGE_EVENT
        return {row.version for batch in batches for row in rows_of(batch, kind=kind)}

    last = log.frontier().upper - 1
    assert usage() == set(range(3, last + 1))
    if how == "trimmed":
        log.compact(last, TOKEN)
    else:
        for version in range(last + 1, last + 20):
            log.append(version, TOKEN, [update(version, objects=4)])
            log.maintenance.tidy()
    assert usage() == set(range(5, last + 1))


def test_a_merge_that_began_before_a_prune_restores_no_pruned_rows(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, other = place.log(every=1000), place.log(every=1000)
    begin(log, 2)
    log.append(3, TOKEN, [measured(version) for version in range(3, 7)])
    merged = maintenance_module.Maintenance._merged

    def pruning(self: Any, *arguments: Any, **named: Any) -> Any:
        monkeypatch.setattr(maintenance_module.Maintenance, "_merged", merged)
        assert other.prune(STORAGE_USAGE_EVENT, 5, TOKEN)
        return merged(self, *arguments, **named)

    monkeypatch.setattr(maintenance_module.Maintenance, "_merged", pruning)
    log.maintenance.tidy()
    for same in (log, other, place.log()):
        assert [event.version for event in same.scan(STORAGE_USAGE_EVENT, 1, 7)] == [6, 6]


def test_maintenance_does_not_read_parts_that_it_keeps(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance_module, "MERGED_AT_ONCE", 9)
    log = place.log(every=1000)
    begin(log, 1)
    log.append(2, TOKEN, [update(2, objects=LARGE)])
    log.append(3, TOKEN, [update(3)])
    log.maintenance.tidy()
    assert all(batch.parts for batch in log.shard.known.batches if batch.rows)
    assert log.shard.statistics().downloads == 0


def test_a_large_append_is_uploaded_as_parts_and_survives_maintenance(place: Place) -> None:
    log = place.log(every=1000)
    begin(log, 1)
    appended = log.append(2, TOKEN, [update(2, objects=LARGE), update(3)])
    log.append(4, TOKEN, [update(4)])
    assert len(place.blobs()) == 2
    again = place.log()
    assert again.updates(2, 4) == appended
    assert [s.version for s in again.scan("audit_event", 1, 9)] == [2, 3, 4]
    assert [s.time for s in again.scan("audit_event", 2, 4)] == [appended[0].time] * 2
    log.maintenance.tidy()
    assert [s.version for s in log.scan("audit_event", 1, 9)] == [2, 3, 4]
    assert log.compact(3, TOKEN)
    assert versions(place.log()) == [4]
    assert [s.version for s in place.log().scan("audit_event", 1, 9)] == [2, 3, 4]


def test_a_compaction_inside_a_part_keeps_the_later_versions(place: Place) -> None:
    log = place.log(every=1000)
    begin(log, 9, objects=3)
    expected, last = contents_of(log), log.updates(5, 10)
    log.maintenance.tidy()
    assert log.compact(4, TOKEN)
    again = place.log()
    assert again.updates(5, 10) == last
    assert contents_of(again) == expected
    assert [s.version for s in again.scan("audit_event", 1, 10)] == list(range(2, 10))


def change(version: int, key: str, old: bytes | None, new: bytes | None) -> Update:
    entry = Entry("configure", {}, (Change("config", key.encode(), old, new),))
    return new_update(version, [entry], author="ann", member="m")


def test_a_snapshot_after_compaction_has_no_trace_of_changed_and_removed_objects(
    place: Place,
) -> None:
    log = place.log()
    begin(log, 1)
    first, second = (encode(ConfigEntry("k", value)) for value in "ab")
    steps = [
        (None, first),
        (first, second),
        (second, first),
        (first, first),
        (first, None),
        (None, second),
    ]
    for version, (old, new) in enumerate(steps, 2):
        log.append(version, TOKEN, [change(version, "k", old, new)])
    for up_to in (3, 5, 6, 7):
        expected = log.snapshot(up_to)
        assert log.compact(up_to, TOKEN)
        assert place.log().snapshot() == expected


def test_a_retraction_with_different_bytes_is_corrupt_and_trims_nothing(place: Place) -> None:
    log = place.log()
    begin(log, 1)
    first, second = (encode(ConfigEntry("k", value)) for value in "ab")
    log.append(2, TOKEN, [change(2, "k", None, first)])
    log.append(3, TOKEN, [change(3, "k", second, None)])
    with pytest.raises(CorruptData):
        log.compact(3, TOKEN)
    assert log.frontier().since == 0


# -- lost answers and races ------------------------------------------------------------------------


@pytest.mark.parametrize("error", [UnknownOutcome("cut"), OSError("cut")])
def test_the_outcome_of_an_unanswered_append_is_found_by_its_token(
    place: Place, error: Exception
) -> None:
    """Even if its version is silent and trimmed since, so that only the token shows it."""
    other = place.log()
    begin(other, 1)
    cut = [True]

    def compare_and_set(real: Any, *arguments: Any, **named: Any) -> Any:
        answer = real(*arguments, **named)
        if cut and cut.pop():
            other.append(3, TOKEN, [update(3)])
            assert other.compact(3, TOKEN)
            raise error
        return answer

    log = place.log(consensus=meddled(place.consensus, "compare_and_set", compare_and_set))
    mine = update(2, "configure")
    for _ in range(2):
        (appended,) = log.append(2, TOKEN, [mine])  # version 2 is trimmed, and its id with it
        assert (appended.version, appended.id) == (2, mine.id)
        assert appended.time < other.snapshot().time
    assert log.frontier().upper == 4


def test_an_append_that_never_arrived_can_be_retried(place: Place) -> None:
    begin(place.log(), 1)
    lost = [UnknownOutcome("lost"), Unavailable("away")]

    def compare_and_set(real: Any, *arguments: Any, **named: Any) -> Any:
        if lost:
            raise lost.pop()
        return real(*arguments, **named)

    log = place.log(consensus=meddled(place.consensus, "compare_and_set", compare_and_set))
    mine = [update(2, objects=LARGE)]
    for message in ("away", "lost"):
        with pytest.raises(Unavailable, match=message):
            log.append(2, TOKEN, mine)
        assert place.log().frontier().upper == 2
    log.append(2, TOKEN, mine)
    assert versions(place.log()) == [1, 2]
    log.maintenance.sweep()
    assert place.blobs() == log.shard.known.blobs()


def test_a_lost_append_is_out_of_sync_once_another_node_has_taken_its_version(place: Place) -> None:
    other = place.log()
    begin(other, 1)
    lost = [UnknownOutcome("lost")]

    def compare_and_set(real: Any, *arguments: Any, **named: Any) -> Any:
        if lost:
            raise lost.pop()
        return real(*arguments, **named)

    log = place.log(consensus=meddled(place.consensus, "compare_and_set", compare_and_set))
    mine, theirs = update(2, objects=LARGE), update(2)
    with pytest.raises(UnknownOutcome):
        log.append(2, TOKEN, [mine])
    other.append(2, TOKEN, [theirs])
    with pytest.raises(OutOfSync, match="the next version is 3"):
        log.append(2, TOKEN, [mine])
    assert [logged.id for logged in place.log().updates(2, 3)] == [theirs.id]
    log.maintenance.sweep()
    assert place.blobs() == log.shard.known.blobs()


@pytest.mark.parametrize("what", ["append", "tidy"])
def test_parts_named_by_a_change_of_unknown_outcome_are_kept(place: Place, what: str) -> None:
    """Even if the store was closed in between: the change may have been made nevertheless."""
    begin(place.log(every=1000), 2)

    def compare_and_set(real: Any, *arguments: Any, **named: Any) -> Any:
        real(*arguments, **named)
        raise Stopping("the store is closed here")

    closing = place.log(consensus=meddled(place.consensus, "compare_and_set", compare_and_set))
    with pytest.raises(Stopping):
        if what == "append":
            closing.append(3, TOKEN, [update(3, objects=LARGE)])
        else:
            closing.maintenance.tidy()
    expected = [1, 2, 3] if what == "append" else [1, 2]
    assert versions(place.log()) == expected


def test_an_append_succeeds_even_if_the_maintenance_after_it_fails(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(real: Any, *arguments: Any) -> Any:
        raise OSError("no such thing was expected")

    log = place.log(blob=meddled(place.blob, "set", fail))
    with caplog.at_level(logging.ERROR):
        begin(log, 4)
    assert "no such thing was expected" in caplog.text
    assert versions(place.log()) == [1, 2, 3, 4]


def test_writers_racing_with_maintenance_lose_and_duplicate_nothing(place: Place) -> None:
    begin(place.log(), 1)
    acknowledged: list[tuple[int, bytes]] = []
    failures: list[BaseException] = []

    def write(seed: int) -> None:
        random, log = Random(seed), place.log(every=2)
        try:
            for _ in range(8):
                upper = log.frontier().upper
                mine = update(upper, objects=random.choice([1, 1, LARGE]))
                try:
                    log.append(upper, TOKEN, [mine])
                except OutOfSync:
                    continue
                acknowledged.append((mine.version, mine.id))
                if random.random() < 0.2:
                    log.compact(random.randrange(1, upper + 1), TOKEN)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=write, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    log = place.log()
    since, upper = log.frontier().since, log.frontier().upper
    assert [version for version, _ in sorted(acknowledged)] == list(range(2, upper))
    assert [(logged.version, logged.id) for logged in log.updates(since + 1, upper)] == [
        logged for logged in sorted(acknowledged) if logged[0] > since
    ]
    assert [s.version for s in log.scan("audit_event", 1, upper)] == list(range(2, upper))
    log.maintenance.sweep()
    assert place.blobs() == log.shard.known.blobs()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_random_steps_on_two_nodes_keep_every_appended_update(place: Place, seed: int) -> None:
    random = Random(seed)
    logs = [place.log(every=random.choice([1, 2, 5])) for _ in range(2)]
    begin(logs[0], 1)
    appended = list(logs[0].updates(1, 2))
    for _ in range(25):
        log, upper = random.choice(logs), len(appended) + 1
        match random.choice(["append", "append", "append", "large", "compact", "tidy", "sweep"]):
            case "append":
                count = random.randrange(1, 4)
                appended += log.append(upper, TOKEN, [update(upper + n) for n in range(count)])
            case "large":
                appended += log.append(upper, TOKEN, [update(upper, objects=LARGE)])
            case "compact":
                log.compact(random.randrange(1, upper), TOKEN)
            case "tidy":
                log.maintenance.tidy()
            case "sweep":
                log.maintenance.sweep()
        reader = random.choice([*logs, place.log()])
        frontier = reader.frontier()
        assert frontier.upper == len(appended) + 1
        start = random.randrange(frontier.since + 1, frontier.upper + 1)
        end = random.randrange(start, frontier.upper + 1)
        assert list(reader.updates(start, end)) == appended[start - 1 : end - 1]
        assert [s.version for s in reader.scan("audit_event", start, end)] == [
            version for version in range(start, end) if version > 1
        ]
    contents = EMPTY
    for logged in appended:
        contents = contents.apply(logged.changes(), at=logged.time)
    assert contents_of(place.log()) == contents


# -- crashes ---------------------------------------------------------------------------------------


def crashed(place: Place, step: str, *, call: int = 1) -> PersistLog:
    """A log whose process is killed right before the n-th call of ``step``."""
    left = [call]

    def die(real: Any, *arguments: Any, **named: Any) -> Any:
        left[0] -= 1
        if not left[0]:
            raise Killed
        return real(*arguments, **named)

    owner, _, method = step.partition(".")
    if owner == "blob":
        return place.log(every=1000, blob=meddled(place.blob, method, die))
    return place.log(every=1000, consensus=meddled(place.consensus, method, die))


@pytest.mark.parametrize(
    ("step", "call"), [("blob.set", 1), ("blob.set", 2), ("consensus.compare_and_set", 1)]
)
def test_a_crash_during_a_large_append_leaves_parts_that_a_sweep_removes(
    place: Place, step: str, call: int
) -> None:
    log = place.log(every=1000)
    begin(log, 3)
    with pytest.raises(Killed):
        crashed(place, step, call=call).append(4, TOKEN, [update(4, objects=LARGE)])
    assert versions(place.log()) == [1, 2, 3]
    assert len(place.blobs()) == (2 if step.startswith("consensus") else call - 1)
    log.maintenance.sweep()
    assert place.blobs() == set()
    log.append(4, TOKEN, [update(4, objects=LARGE)])
    assert versions(place.log()) == [1, 2, 3, 4]


@pytest.mark.parametrize("what", ["tidy", "compact"])
@pytest.mark.parametrize(
    "step",
    ["blob.set", "blob.list", "blob.delete", "consensus.compare_and_set", "consensus.truncate"],
)
@pytest.mark.parametrize("call", [1, 2])
def test_a_crash_during_maintenance_does_not_change_what_readers_see(
    place: Place, what: str, step: str, call: int
) -> None:
    log = place.log()
    begin(log, 6, objects=2)
    log.append(7, TOKEN, [update(version) for version in range(7, 13)])
    expected = contents_of(log)
    dying = crashed(place, step, call=call)
    try:
        if what == "compact":
            dying.compact(7, TOKEN)
        else:
            dying.append(13, TOKEN, [update(13, objects=LARGE)])
            dying.maintenance.tidy()
            dying.maintenance.sweep()
    except Killed:
        pass
    again = place.log()
    if again.frontier().upper == 14:
        assert versions(again)[-1] == 13
    else:
        assert contents_of(again) == expected
    upper = again.frontier().upper
    again.append(upper, TOKEN, [update(upper)])
    assert again.frontier().since in ((0, 7) if what == "compact" else (0,))
    again.compact(8, TOKEN)
    assert versions(again) == list(range(9, upper + 1))
    assert place.blobs() == again.shard.known.blobs()


def test_parts_uploaded_before_a_sweep_are_uploaded_again(place: Place) -> None:
    log = place.log(every=1000)
    begin(log, 1)
    swept: list[int] = []

    def compare_and_set(real: Any, *arguments: Any, **named: Any) -> Any:
        if not swept:
            swept.append(log.maintenance.sweep())
        return real(*arguments, **named)

    slow = place.log(consensus=meddled(place.consensus, "compare_and_set", compare_and_set))
    slow.append(2, TOKEN, [update(2, objects=LARGE)])
    assert swept == [2]
    assert versions(place.log()) == [1, 2]
    assert place.blobs() == log.shard.refresh().blobs()


@pytest.mark.parametrize("read", ["updates", "snapshot", "scan"])
def test_a_reader_whose_parts_were_swept_reads_the_parts_that_replaced_them(
    place: Place, read: str
) -> None:
    log = place.log()
    begin(log, 9, objects=2)
    log.compact(2, TOKEN)
    swept: list[bool] = []

    def get(real: Any, key: str) -> Any:
        if not swept:
            swept.append(True)
            for version in range(10, 20):
                log.append(version, TOKEN, [update(version)])
            log.compact(4, TOKEN)
        return real(key)

    reader = place.log(blob=meddled(place.blob, "get", get))
    answers = {
        "updates": lambda: [logged.version for logged in reader.updates(5, 10)] == [5, 6, 7, 8, 9],
        "snapshot": lambda: reader.snapshot().version == 4,
        "scan": lambda: [s.version for s in reader.scan("audit_event", 3, 6)] == [3, 4, 5],
    }
    assert answers[read]()
    assert swept


# -- blobs that cannot be written ------------------------------------------------------------------


def test_appends_continue_while_blobs_cannot_be_written_up_to_a_limit(
    place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(maintenance_module, "MAX_DIFFS", 10)
    away = [True]

    def write(real: Any, *arguments: Any) -> Any:
        if away:
            raise Unavailable("the disk is full")
        return real(*arguments)

    log = place.log(blob=meddled(place.blob, "set", write))
    with caplog.at_level(logging.WARNING):
        begin(log, 11)
    assert "maintenance of the catalog's log failed: the disk is full" in caplog.text
    with pytest.raises(Unavailable, match="the disk is full"):
        log.append(12, TOKEN, [update(12)])
    with pytest.raises(Unavailable, match="the disk is full"):
        log.append(12, TOKEN, [update(12, objects=LARGE)])
    away.clear()
    log.append(12, TOKEN, [update(12)])
    assert versions(place.log()) == list(range(1, 13))


def test_no_blob_is_written_below_a_folder_that_is_no_longer_mounted(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    begin(place.log(), 20)
    log = place.log(blob=FileBlob(place.folder / "blobs"))
    assert versions(log) == list(range(1, 21))
    (place.folder / "blobs").rename(place.folder / "unmounted")
    with caplog.at_level(logging.WARNING):
        for version in range(21, 31):
            log.append(version, TOKEN, [update(version)])
    assert f"the folder {place.folder}/blobs of the catalog's blobs is gone" in caplog.text
    with pytest.raises(Unavailable, match="mount it"):
        log.append(31, TOKEN, [update(31, objects=LARGE)])
    with pytest.raises(Unavailable, match="mount it"):
        log.compact(25, TOKEN)
    assert not (place.folder / "blobs").exists()
    (place.folder / "unmounted").rename(place.folder / "blobs")
    log.append(31, TOKEN, [update(31, objects=LARGE)])
    assert versions(place.log()) == list(range(1, 32))


def test_rows_that_exceed_a_part_are_split_into_several_parts(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strandline.durable.persist.shard.PART_ROWS", 20)
    log = place.log(every=1000)
    begin(log, 1)
    appended = log.append(2, TOKEN, [update(2, objects=LARGE)])
    assert len(log.shard.known.batches[-1].parts) == 4
    assert log.compact(2, TOKEN)
    reader: Shard = place.log().shard
    assert len(reader.snapshot(reader.recent())) == LARGE + 1
    assert appended[0].version == 2


@pytest.mark.parametrize("others", [0, 1, 2, 5])
def test_a_shard_that_was_set_back_is_read_anew(place: Place, others: int) -> None:
    """A standby without the last commits took over; other nodes then appended other versions."""
    reader, writer, other = (place.log(every=100) for _ in range(3))
    begin(writer, 3)
    with (
        closing(sqlite3.connect(place.folder / "consensus.db")) as live,
        closing(sqlite3.connect(":memory:")) as copy,
    ):
        live.backup(copy)
        (lost,) = writer.append(4, TOKEN, [update(4)])
        assert reader.time_of(lost)
        copy.backup(live)
    for version in range(4, 4 + others):
        other.append(version, TOKEN, [update(version)])
    assert reader.frontier().upper == 4 + others
    assert reader.check().frontier.upper == 4 + others
    assert reader.time_of(lost) is None
    assert versions(reader) == list(range(1, 4 + others))
    writer.append(4 + others, TOKEN, [update(4 + others)])
    assert versions(reader) == list(range(1, 5 + others))
