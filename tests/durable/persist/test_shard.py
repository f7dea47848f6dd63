"""A shard: its state and rollups, and its parts."""

from __future__ import annotations

import sqlite3
from contextlib import closing, nullcontext
from dataclasses import replace
from typing import Any

import pytest

from strandline.clock import MIN_TIMESTAMP, Timestamp
from strandline.durable import Update
from strandline.durable.collections import STORAGE_USAGE_EVENT
from strandline.durable.persist import maintenance as maintenance_module
from strandline.durable.persist.consensus import Consensus
from strandline.durable.persist.part import COLUMNS, read_part
from strandline.durable.persist.persist_log import shard_name
from strandline.durable.persist.shard import Shard
from strandline.durable.persist.shard_state import (
    WRITERS,
    AlreadyMaintained,
    Append,
    Batch,
    BlobRef,
    Replacement,
    Rewrite,
    ShardDiff,
    ShardState,
    UploadExpired,
    applied,
    compare_and_append,
    new_blob_key,
    next_diff,
    raise_floor,
    rewrite,
)
from strandline.durable.transaction import new_update
from strandline.durable.update import Change, Entry
from strandline.errors import CorruptData, Fenced, InvalidInput, OutOfSync, StrandlineError
from strandline.fencing import FenceToken
from strandline.model.descriptors import ConfigEntry
from strandline.wire.registry import encode
from tests.durable.persist.conftest import LARGE, SHARD, Place, contents_of, meddled, versions
from tests.durable.updates import TOKEN, RacedStore, begin, measured, update

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


def test_a_state_remembers_the_last_append_of_the_latest_writers() -> None:
    state = ShardState(SHARD)
    for number in range(1, WRITERS + 3):
        writer = bytes([min(number, WRITERS + 1)])  # the last one appends twice
        append = replace(append_of(number, number + 1, token=bytes([number])), writer=writer)
        state = applied(state, later(compare_and_append(append)(state), number))
    expected = [*((number, number) for number in range(2, WRITERS + 1)), (WRITERS + 1, WRITERS + 2)]
    assert [(writer.id[0], writer.token[0]) for writer in state.writers] == expected


BLOB, UPLOADED = (BlobRef(new_blob_key(SHARD, 4, "part"), 1, 1) for _ in range(2))
BASE = ShardState(
    SHARD,
    seqno=5,
    upper=3,
    floor=4,
    fence=TOKEN,
    batches=(Batch(0, 1, 0), Batch(1, 3, 2, inline=b"x")),
    appended=(Batch(1, 3, 1, parts=(BLOB,)),),
)


def test_a_rewrite_is_accepted_after_appends_and_only_if_its_batches_are_still_there() -> None:
    history, since = (Batch(0, 3, 2, parts=(UPLOADED,)),), (1, MIN_TIMESTAMP)
    change = rewrite(Rewrite(BASE, history, BASE.appended, since=since, fence=TOKEN))
    more = Batch(3, 4, 1, inline=b"y")
    later_state = replace(BASE, seqno=6, upper=4, batches=(*BASE.batches, more))
    batches = applied(later_state, later(change(later_state), 1)).batches
    assert [(batch.lower, batch.upper) for batch in batches] == [(0, 3), (3, 4)]
    refusals: list[tuple[ShardState, type[StrandlineError]]] = [
        (replace(BASE, batches=(Batch(0, 1, 0), Batch(1, 3, 2, inline=b"z"))), AlreadyMaintained),
        (replace(BASE, appended=()), AlreadyMaintained),
        (replace(BASE, since=1), AlreadyMaintained),
        (replace(BASE, rollup=BLOB), AlreadyMaintained),
        (replace(BASE, floor=5), UploadExpired),
        (replace(BASE, fence=FenceToken(0, 2)), Fenced),
    ]
    for state, refusal in refusals:
        with pytest.raises(refusal):
            change(state)


def test_only_an_upload_that_no_sweep_can_have_removed_may_be_named() -> None:
    state = ShardState(SHARD)
    for time in range(1, 4):
        state = applied(state, later(raise_floor(state), time))
    for seqno, is_named in ((2, False), (3, True)):
        ref = BlobRef(new_blob_key(SHARD, seqno, "part"), 1, 0)
        append = replace(append_of(1, 2), batch=Batch(1, 2, 1, parts=(ref,)))
        with nullcontext() if is_named else pytest.raises(UploadExpired):
            compare_and_append(append)(state)


def test_a_rollup_does_not_replace_that_of_another_process() -> None:
    """The changes before the other rollup may be gone."""
    base = ShardState(SHARD)
    rollups = [BlobRef(new_blob_key(SHARD, seqno, "rollup"), 1, 0) for seqno in (0, 1)]
    of_base, of_next = (
        rewrite(Rewrite(base, base.batches, base.appended, rollup)) for rollup in rollups
    )
    state = applied(base, later(of_next(base), 1))
    assert state.rollup == rollups[1]
    with pytest.raises(AlreadyMaintained):
        of_base(state)
    with pytest.raises(UploadExpired):
        of_base(applied(base, later(raise_floor(base), 1)))


def test_a_rewrite_is_for_the_state_and_the_token_that_its_process_knew() -> None:
    lost = Batch(1, 2, 1, parts=(BlobRef(new_blob_key(SHARD, 0, "part"), 1, 0),))
    state = ShardState(SHARD, fence=TOKEN)
    base = replace(state, appended=(lost,))  # the log was set back
    with pytest.raises(AlreadyMaintained):
        rewrite(Rewrite(base, base.batches, base.appended))(state)
    compaction = Rewrite(
        state, state.batches, (), since=(1, MIN_TIMESTAMP), fence=replace(TOKEN, epoch=0)
    )
    with pytest.raises(Fenced):
        rewrite(compaction)(state)


def test_a_diff_out_of_sequence_is_corrupt() -> None:
    state = ShardState(SHARD)
    diff = next_diff(state)
    with pytest.raises(CorruptData, match="change 1 of shard"):
        applied(state, diff)  # it has no time yet
    with pytest.raises(CorruptData, match="change 1 of shard"):
        applied(applied(state, later(diff, 2)), later(diff, 3))


def test_a_state_remembers_the_last_64_writers() -> None:
    state = ShardState(SHARD)
    for number in range(70):
        diff = replace(next_diff(state), writer=(b"%d" % number, b"token"))
        state = applied(state, later(diff, number + 1))
    assert [writer.id for writer in state.writers] == [b"%d" % number for number in range(6, 70)]


@pytest.mark.parametrize(
    ("upper", "replaced", "added", "message"),
    [
        (7, (5, 6), (5, 6), "up to version 5, but should have rows up to 6"),
        (5, (5, 6), (5, 6), "up to version 5, but should have rows up to 4"),
        (7, (6, 7), (6, 7), "has a hole at 5"),
        (5, (1, 3), (1, 2), "has a hole at 2"),
        (5, (1, 3), (1, 1), "has a hole at 1"),
    ],
)
def test_a_diff_that_leaves_versions_out_is_corrupt(
    upper: int, replaced: tuple[int, int], added: tuple[int, int], message: str
) -> None:
    batches = tuple(Batch(version, version + 1, 1) for version in range(5))
    state = ShardState(SHARD, upper=5, batches=batches)
    history = Replacement(*replaced, (Batch(*added, 1),))
    diff = replace(next_diff(state), upper=upper, history=history)
    with pytest.raises(CorruptData, match=message):
        applied(state, later(diff, 1))


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
    reloads: list[str] = []

    def head(real: Any, key: str) -> Any:
        reloads.append(key)
        return real(key)

    writer, reader = place.log(), place.log(consensus=meddled(place.consensus, "head", head))
    begin(writer, 2)
    assert versions(reader) == [1, 2]
    for version in range(3, 16):
        writer.append(version, TOKEN, [update(version)])
    assert versions(reader) == list(range(1, 16))
    assert len(reloads) == 2
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
    monkeypatch.setattr(log.shard.blob, "get", lambda key: pytest.fail(f"{key} was read"))
    log.maintenance.tidy()
    assert all(batch.parts for batch in log.shard.known.batches if batch.rows)


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
    assert log.updates(2, 4) == appended
    assert [s.version for s in log.scan("audit_event", 1, 9)] == [2, 3, 4]
    assert log.compact(3, TOKEN)
    assert versions(place.log()) == [4]
    assert [s.version for s in place.log().scan("audit_event", 1, 9)] == [2, 3, 4]


def test_a_compaction_to_the_one_version_that_is_not_in_parts_keeps_its_audit_event(
    place: Place,
) -> None:
    log = place.log(every=1000)
    begin(log, 3)
    log.maintenance.tidy()
    log.append(4, TOKEN, [update(4)])
    assert log.compact(4, TOKEN)
    assert [s.version for s in place.log().scan("audit_event", 1, 5)] == [2, 3, 4]


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


def test_a_compaction_that_leaves_no_row_stays_apart_from_later_versions(place: Place) -> None:
    log = place.log(every=1000)
    record = encode(ConfigEntry("k", "a"))
    log.append(1, None, [change(1, "k", None, record)], new_token=TOKEN)
    log.append(2, TOKEN, [change(2, "k", record, None)])
    assert log.compact(2, TOKEN)
    log.append(3, TOKEN, [change(3, "k", None, record)])
    log.maintenance.tidy()
    reader = place.log()
    assert reader.first_snapshot().kinds == ()
    assert dict(reader.snapshot(3).kinds) == {"config": (record,)}


def test_trimmed_versions_are_not_merged_with_later_ones(place: Place) -> None:
    log = place.log(every=1000)
    begin(log, 1)
    trimmed = log.snapshot(1)
    assert log.compact(1, TOKEN)
    for version in range(2, 3 + maintenance_module.MERGED_AT_ONCE):
        log.append(version, TOKEN, [update(version)])
        log.maintenance.tidy()
        assert log.first_snapshot() == trimmed


def test_a_retraction_with_different_bytes_is_corrupt_and_trims_nothing(place: Place) -> None:
    log = place.log()
    begin(log, 1)
    first, second = (encode(ConfigEntry("k", value)) for value in "ab")
    log.append(2, TOKEN, [change(2, "k", None, first)])
    log.append(3, TOKEN, [change(3, "k", second, None)])
    with pytest.raises(CorruptData):
        log.compact(3, TOKEN)
    assert log.frontier().since == 0


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
    kept = [other.append(v, TOKEN, [update(v)])[0].id for v in range(4, 4 + others)]
    assert reader.frontier().upper == 4 + others
    assert reader.check().frontier.upper == 4 + others
    assert reader.time_of(lost) is None
    assert versions(reader) == list(range(1, 4 + others))
    writer.append(4 + others, TOKEN, [update(4 + others)])
    assert versions(reader) == list(range(1, 5 + others))
    writer.maintenance.tidy()
    assert [logged.id for logged in place.log().updates(4, 4 + others)] == kept


def test_a_holder_is_fenced_by_one_that_opened_a_shard_that_was_set_back(place: Place) -> None:
    """The store has as many revisions as before."""
    holder, other = place.log(every=100), place.log(every=100)
    begin(holder, 3)
    with (
        closing(sqlite3.connect(place.folder / "consensus.db")) as live,
        closing(sqlite3.connect(":memory:")) as copy,
    ):
        live.backup(copy)
        holder.append(4, TOKEN, [update(4)])
        copy.backup(live)
    newer = TOKEN.next(TOKEN.deploy_generation)
    other.append(4, TOKEN, [update(4)], new_token=newer)
    assert holder.token() == newer


def test_a_part_of_an_append_is_read_while_its_rows_are_in_the_state(place: Place) -> None:
    log = place.log(every=1000)
    begin(log, 1)
    appended = log.append(2, TOKEN, [update(2), update(3)])
    for version, expected in zip((2, 3), appended, strict=True):
        assert log.updates(version, version + 1) == (expected,)
        events = log.scan("audit_event", version, version + 1)
        assert [event.version for event in events] == [version]
