"""What every update log promises, run over each log that there is.

The logs are those of `tests.durable.logs.LOGS`; a new implementation is added there. Nothing here
looks below `UpdateLog`.

Some rules differ from those of the log that this one is modelled on: an empty log takes version 1
only (not any first version), and the fence token says who owns the log (not a product key).
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from strandline.clock import MIN_TIMESTAMP, Timestamp, add_milliseconds
from strandline.durable import AuditEvent, CatalogSnapshot, Change, Entry, Update, UpdateLog
from strandline.durable.collections import STORAGE_USAGE_EVENT
from strandline.durable.contents import EMPTY, Contents, restore
from strandline.durable.log import Frontier
from strandline.durable.transaction import new_update
from strandline.durable.update import Appended
from strandline.errors import Fenced, InvalidInput, OutOfSync, VersionNotFound
from strandline.fencing import FenceToken
from strandline.model.descriptors import ConfigEntry, StorageUsageEvent
from strandline.wire.registry import decode, encode
from tests.durable.conftest import NewLog
from tests.durable.updates import TOKEN, begin, measured, trim_in_steps, update


def contents_at(log: UpdateLog, version: int) -> Contents:
    """The contents of a version of an untrimmed log, by a replay of its updates."""
    contents = EMPTY
    for logged in log.updates(1, version + 1):
        contents = contents.apply(logged.changes(), at=logged.time)
    return contents


def test_an_empty_log_has_only_version_0(log: UpdateLog) -> None:
    frontier = log.frontier()
    assert (frontier.since, frontier.upper) == (0, 1)
    assert log.snapshot() == log.snapshot(0) == CatalogSnapshot(0, MIN_TIMESTAMP, ())
    assert log.token() is None


# -- appending -------------------------------------------------------------------------------------


def test_an_append_is_accepted_at_the_next_version_only(log: UpdateLog) -> None:
    with pytest.raises(OutOfSync):
        log.append(2, None, [update(2)])
    begin(log, 2)
    for version in (1, 2, 4, 100):
        with pytest.raises(OutOfSync, match="the next version is 3"):
            log.append(version, TOKEN, [update(version)])
    assert log.append(3, TOKEN, [update(3), update(4)])[1].version == 4
    assert log.frontier().upper == 5


@pytest.mark.parametrize("versions", [(), (2,), (4,), (3, 3), (3, 5), (4, 3)])
def test_updates_out_of_sequence_are_refused_and_nothing_is_written(
    log: UpdateLog, versions: tuple[int, ...]
) -> None:
    begin(log, 2)
    with pytest.raises(ValueError, match="do not follow upper 3"):
        log.append(3, TOKEN, [update(version) for version in versions])
    assert log.frontier().upper == 3
    assert [scanned.version for scanned in log.scan("audit_event", 1, 9)] == [2]


def test_only_one_of_several_nodes_appends_a_version(new_log: NewLog) -> None:
    logs = [new_log() for _ in range(4)]
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

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(work, range(4)))
    assert won == [2, 3, 4, 5, 6]
    assert [logged.version for logged in logs[3].updates(1, 7)] == [1, 2, 3, 4, 5, 6]


def test_a_replay_returns_the_updates_as_they_were_appended(new_log: NewLog) -> None:
    first = new_log()
    begin(first, 1)
    appended = first.append(2, TOKEN, [update(2), update(3)])
    again = new_log()
    assert again.updates(2, 4) == appended
    assert {logged.time for logged in appended} == {appended[0].time}
    assert appended[0].time > again.updates(1, 2)[0].time
    assert again.updates(2, 2) == ()


def test_an_append_or_a_trim_with_another_token_is_refused(log: UpdateLog) -> None:
    begin(log, 2)
    for token in (None, FenceToken(0, 2), FenceToken(1, 1), replace(TOKEN, nonce=TOKEN.nonce + 1)):
        with pytest.raises(Fenced, match=r"catalog.s token is generation 0, epoch 1"):
            log.append(3, token, [update(3)])
        with pytest.raises(Fenced):
            log.compact(2, token or FenceToken(9, 9))
    assert (log.frontier().since, log.frontier().upper) == (0, 3)
    assert log.compact(2, TOKEN)
    with pytest.raises(Fenced):  # even if there is nothing to trim
        log.compact(2, FenceToken(0, 2))


def test_an_append_takes_as_many_updates_as_the_log_allows(log: UpdateLog) -> None:
    begin(log, 1)
    count = min(log.max_updates, 200)
    log.append(2, TOKEN, [update(2 + n) for n in range(count)])
    assert log.frontier().upper == 2 + count


def test_listen_returns_after_an_append_or_a_trim_by_another_node(new_log: NewLog) -> None:
    first, second = new_log(), new_log()
    begin(first, 2)
    seen = second.frontier()
    assert not second.listen(seen, timeout=0)
    first.append(3, TOKEN, [update(3)])
    assert second.listen(seen, timeout=60)
    seen = second.frontier()
    assert (seen.since, seen.upper) == (0, 4)
    first.compact(2, TOKEN)
    assert second.listen(seen, timeout=60)
    assert second.frontier().since == 2


# -- times -----------------------------------------------------------------------------------------


def copy(original: UpdateLog, log: UpdateLog) -> None:
    """Append the updates of ``original`` with their times, as a shadow log does."""
    upper = original.frontier().upper
    events = list(original.scan("audit_event", 1, upper))
    for logged in original.updates(1, upper):
        appended = [Appended("audit_event", e.data) for e in events if e.version == logged.version]
        again = replace(logged, appended=tuple(appended))
        first = logged.version == 1
        log.append(
            logged.version,
            None if first else TOKEN,
            [again],
            times=[logged.time],
            new_token=TOKEN if first else None,
        )


def test_a_copied_log_keeps_the_times_of_the_original(
    new_log: NewLog, another_log: UpdateLog
) -> None:
    original = new_log()
    begin(original, 4)
    copy(original, another_log)
    assert another_log.updates(1, 5) == original.updates(1, 5)
    assert [logged.time for logged in another_log.updates(1, 5)] == [
        logged.time for logged in original.updates(1, 5)
    ]
    assert another_log.snapshot(3) == original.snapshot(3)
    times = {logged.version: logged.time for logged in original.updates(1, 5)}
    for scanned in another_log.scan("audit_event", 1, 5):
        assert scanned.time == decode(scanned.data, AuditEvent).time == times[scanned.version]
    (own,) = another_log.append(5, TOKEN, [update(5)])
    assert own.time > times[4]


def test_updates_of_one_append_may_have_different_times(new_log: NewLog) -> None:
    log = new_log()
    begin(log, 1)
    (first,) = log.updates(1, 2)
    times = [first.time, Timestamp(first.time + 1), Timestamp(first.time + 1)]
    log.check()  # moves the log's own time on
    appended = log.append(2, TOKEN, [update(2), update(3), update(4)], times=times)
    assert [logged.time for logged in appended] == times
    assert new_log().updates(2, 5) == appended
    with pytest.raises(InvalidInput, match="version 5 cannot have the time"):
        log.append(5, TOKEN, [update(5)], times=[first.time])


@pytest.mark.parametrize("wrong", ["before the last", "going back", "ahead"])
def test_impossible_times_are_refused(log: UpdateLog, wrong: str) -> None:
    begin(log, 2)
    last = log.updates(2, 3)[0].time
    now = log.check().time
    times: Sequence[Timestamp] = {
        "before the last": [Timestamp(last - 1), now],
        "going back": [now, last],
        "ahead": [last, add_milliseconds(now, 3_600_000)],
    }[wrong]
    with pytest.raises(InvalidInput, match=r"version \d cannot have the time"):
        log.append(3, TOKEN, [update(3), update(4)], times=times)
    assert log.frontier().upper == 3


def test_a_late_copy_is_out_of_sync_regardless_of_its_times(log: UpdateLog) -> None:
    begin(log, 2)
    (second,) = log.updates(2, 3)
    log.append(3, TOKEN, [update(3)])
    with pytest.raises(OutOfSync):
        log.append(2, TOKEN, [update(2)], times=[second.time])
    assert log.append(2, TOKEN, [second], times=[second.time]) == (second,)


def test_an_append_after_a_trim_may_have_the_time_of_the_trimmed_version_and_no_earlier(
    log: UpdateLog,
) -> None:
    begin(log, 3)
    last = log.updates(3, 4)[0].time
    assert log.compact(3, TOKEN)
    with pytest.raises(InvalidInput, match="cannot have the time"):
        log.append(4, TOKEN, [update(4)], times=[Timestamp(last - 1)])
    (appended,) = log.append(4, TOKEN, [update(4)], times=[last])
    assert appended.time == last


# -- snapshots and trimming ------------------------------------------------------------------------


@pytest.mark.parametrize("objects", [1, 4])
def test_a_trimmed_log_gives_the_same_contents_as_its_replay(new_log: NewLog, objects: int) -> None:
    log = new_log()
    begin(log, 5, objects=objects)
    expected = {version: contents_at(log, version) for version in range(6)}
    last, snapshots = log.updates(5, 6), {v: log.snapshot(v) for v in range(3, 6)}
    assert log.compact(3, TOKEN)
    for reader in (log, new_log()):
        assert reader.frontier() == log.frontier()
        assert (reader.frontier().since, reader.frontier().upper) == (3, 6)
        assert reader.snapshot() == reader.snapshot(3)
        for version in (3, 4, 5):
            snapshot = reader.snapshot(version)
            assert snapshot == snapshots[version]
            assert restored(snapshot) == expected[version]
        assert reader.updates(5, 6) == last
        for version in (1, 3):
            with pytest.raises(VersionNotFound, match="no longer in the log; the earliest is 3"):
                reader.updates(version, 6)
        for version in (0, 2):
            with pytest.raises(VersionNotFound, match="no longer in the log; the earliest is 3"):
                reader.snapshot(version)
        with pytest.raises(VersionNotFound):
            reader.snapshot(6)


def restored(snapshot: CatalogSnapshot) -> Contents:
    return restore(snapshot)


def test_a_snapshot_has_the_time_of_the_last_change_of_each_object(new_log: NewLog) -> None:
    log = new_log()
    begin(log, 3)
    times = {logged.version: logged.time for logged in log.updates(1, 4)}
    assert log.compact(3, TOKEN)
    snapshot = new_log().snapshot()
    assert snapshot.time == times[3]
    assert snapshot.times == ((times[1], times[2], times[3]),)


def changing(version: int, changes: Sequence[tuple[str, str | None, str | None]]) -> Update:
    """The update of ``version`` that changes objects by name, each in its own entry."""
    entries = [
        Entry(
            "set_configuration",
            {"name": name},
            (Change("config", name.encode(), *(_record(name, text) for text in (old, new))),),
        )
        for name, old, new in changes
    ]
    return new_update(version, entries, author="ann", member="m")


def _record(name: str, text: str | None) -> bytes | None:
    return None if text is None else encode(ConfigEntry(name, text))


@pytest.mark.parametrize("up_to", [2, 3, 4, 5])
def test_a_trim_preserves_objects_that_were_changed_or_removed(new_log: NewLog, up_to: int) -> None:
    log = new_log()
    begin(log, 1)
    log.append(2, TOKEN, [changing(2, [("a", None, "1"), ("b", None, "1"), ("c", None, "1")])])
    log.append(3, TOKEN, [changing(3, [("a", "1", "2"), ("b", "1", None), ("a", "2", "3")])])
    log.append(4, TOKEN, [changing(4, [("b", None, "1"), ("a", "3", "1"), ("c", "1", None)])])
    to_and_fro = [("b", "1", "1"), ("b", "1", "2"), ("b", "2", "1")]
    log.append(5, TOKEN, [changing(5, [("c", None, "2"), ("c", "2", "1"), *to_and_fro])])
    kept = {version: log.snapshot(version) for version in range(up_to, 6)}
    last = log.updates(up_to + 1, 6)
    if up_to > 3:
        assert log.compact(3, TOKEN)  # in two steps
    assert log.compact(up_to, TOKEN)
    reader = new_log()
    assert {version: reader.snapshot(version) for version in kept} == kept
    assert reader.updates(up_to + 1, 6) == last
    assert reader.snapshot(5).times == kept[5].times


def test_a_log_may_be_trimmed_to_its_last_version(new_log: NewLog) -> None:
    log = new_log()
    begin(log, 3)
    assert log.compact(3, TOKEN)
    frontier = new_log().frontier()
    assert (frontier.since, frontier.upper) == (3, 4)
    assert log.updates(4, 4) == ()
    assert log.append(4, TOKEN, [update(4)])[0].version == 4
    assert log.snapshot().version == 3


@pytest.mark.parametrize("up_to", [1, 2, 3])
def test_trimming_to_the_same_or_a_lower_version_changes_nothing(
    log: UpdateLog, up_to: int
) -> None:
    begin(log, 4)
    assert log.compact(3, TOKEN)
    before = log.snapshot()
    assert not log.compact(up_to, TOKEN)
    assert log.snapshot() == before


def test_trimming_to_a_version_above_the_last_is_refused(log: UpdateLog) -> None:
    begin(log, 2)
    with pytest.raises(VersionNotFound, match="has versions 0 to 2"):
        log.compact(3, TOKEN)
    assert log.frontier().since == 0


def test_a_log_can_be_trimmed_repeatedly(new_log: NewLog) -> None:
    log = new_log()
    begin(log, 5, objects=4)
    expected = contents_at(log, 5)
    for up_to in (1, 3, 4, 5):
        assert log.compact(up_to, TOKEN)
        assert new_log().snapshot().version == up_to
    assert restored(log.snapshot()) == expected


def test_a_log_that_is_trimmed_in_steps_is_as_if_trimmed_at_once(
    new_log: NewLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    trim_in_steps(monkeypatch, 2)
    log = new_log()
    begin(log, 7)
    kept, last = log.snapshot(6), log.updates(7, 8)
    assert log.compact(6, TOKEN)
    reader = new_log()
    assert reader.first_snapshot() == kept
    assert reader.updates(7, 8) == last
    assert not reader.compact(6, TOKEN)


# -- append-only kinds -----------------------------------------------------------------------------


def versions_of(log: UpdateLog, start: int, end: int) -> list[int]:
    return [scanned.version for scanned in log.scan("audit_event", start, end)]


def test_audit_events_are_scanned_by_version_and_survive_trimming(log: UpdateLog) -> None:
    begin(log, 2)
    log.append(3, TOKEN, [update(3, "fence")])
    log.append(4, TOKEN, [update(4)])
    before = list(log.scan("audit_event", 1, 5))
    assert [scanned.version for scanned in before] == [2, 4]
    assert versions_of(log, 2, 4) == [2]
    assert versions_of(log, -(1 << 64), 1 << 64) == [2, 4]
    assert versions_of(log, 1 << 63, 1 << 64) == []
    assert log.compact(4, TOKEN)
    assert list(log.scan("audit_event", 1, 5)) == before


def test_storage_usage_is_scanned_by_version_and_kept_until_it_is_pruned(new_log: NewLog) -> None:
    log = new_log()
    begin(log, 2)
    log.append(3, TOKEN, [measured(3)])
    log.append(4, TOKEN, [update(4), measured(5)])
    log.append(6, TOKEN, [update(6)])
    events = list(log.scan(STORAGE_USAGE_EVENT, 1, 7))
    decoded = [decode(scanned.data, StorageUsageEvent) for scanned in events]
    sizes = [(scanned.version, of.sizes) for scanned, of in zip(events, decoded, strict=True)]
    assert sizes == [(v, ((n, 100 * v + n),)) for v in (3, 5) for n in range(2)]
    assert [event.time for event in decoded] == [scanned.time for scanned in events]
    assert [scanned.version for scanned in log.scan(STORAGE_USAGE_EVENT, 4, 5)] == []
    audit = list(log.scan("audit_event", 1, 7))
    assert log.frontier().pruned == ()
    assert log.prune(STORAGE_USAGE_EVENT, 3, TOKEN)
    assert not log.prune(STORAGE_USAGE_EVENT, 3, TOKEN)
    assert not log.prune(STORAGE_USAGE_EVENT, 1, TOKEN)
    for same in (log, new_log()):
        assert same.frontier().pruned == ((STORAGE_USAGE_EVENT, 3),)
        assert list(same.scan(STORAGE_USAGE_EVENT, 1, 7)) == events[2:]
    assert log.compact(5, TOKEN)
    assert list(log.scan(STORAGE_USAGE_EVENT, 1, 7)) == events[2:]
    assert log.prune(STORAGE_USAGE_EVENT, 6, TOKEN)
    for same in (log, new_log()):
        assert list(same.scan(STORAGE_USAGE_EVENT, 1, 7)) == []
        assert list(same.scan("audit_event", 1, 7)) == audit
        assert same.frontier().pruned == ((STORAGE_USAGE_EVENT, 6),)
    assert versions_of(log, 1, 7) == [2, 4, 6]
    log.append(7, TOKEN, [measured(7)])
    assert [scanned.version for scanned in log.scan(STORAGE_USAGE_EVENT, 1, 8)] == [7, 7]


@pytest.mark.slow
def test_pruning_storage_usage_of_many_versions_keeps_the_history(new_log: NewLog) -> None:
    """Enough versions that a log with maintenance has rewritten them before and after."""
    log = new_log()
    begin(log, 2)
    history: list[Update] = []
    for version in range(3, 43, 2):
        history += log.append(version, TOKEN, [measured(version, 40), update(version + 1)])
    usage = list(log.scan(STORAGE_USAGE_EVENT, 1, 43))
    assert len(usage) == 20 * 40
    audit = list(log.scan("audit_event", 1, 43))
    assert log.prune(STORAGE_USAGE_EVENT, 22, TOKEN)
    left = [scanned for scanned in usage if scanned.version > 22]
    snapshot = log.snapshot(30)
    for trimmed_to in (0, 10, 30):
        if trimmed_to:
            assert log.compact(trimmed_to, TOKEN)
        for same in (log, new_log()):
            assert list(same.scan(STORAGE_USAGE_EVENT, 1, 43)) == left
            assert list(same.scan("audit_event", 1, 43)) == audit
            kept = [update for update in history if update.version > trimmed_to]
            first = max(trimmed_to, 2) + 1
            assert same.updates(first, 43) == tuple(replace(u, appended=()) for u in kept)
    assert restore(log.snapshot(30)).dump() == restore(snapshot).dump()
    for version in range(43, 83):
        log.append(version, TOKEN, [update(version)])
    assert list(new_log().scan(STORAGE_USAGE_EVENT, 1, 83)) == left


def test_pruning_with_another_token_or_above_the_last_version_is_refused(log: UpdateLog) -> None:
    begin(log, 2)
    log.append(3, TOKEN, [measured(3)])
    before = list(log.scan(STORAGE_USAGE_EVENT, 1, 4))
    with pytest.raises(Fenced):
        log.prune(STORAGE_USAGE_EVENT, 3, FenceToken(0, 2))
    with pytest.raises(VersionNotFound, match="version 4 is not in the log"):
        log.prune(STORAGE_USAGE_EVENT, 4, TOKEN)
    assert log.frontier().pruned == ()
    assert list(log.scan(STORAGE_USAGE_EVENT, 1, 4)) == before


@pytest.mark.parametrize("kind", ["audit_event", "config", "update", "nothing"])
def test_only_storage_usage_can_be_pruned(log: UpdateLog, kind: str) -> None:
    begin(log, 3)
    before = log.updates(1, 4)
    with pytest.raises(ValueError, match=f"objects of the kind {kind} are kept for ever"):
        log.prune(kind, 2, TOKEN)
    assert log.frontier() == Frontier(0, 4)
    assert log.updates(1, 4) == before


def test_listen_returns_after_a_prune_by_another_node(new_log: NewLog) -> None:
    log, other = new_log(), new_log()
    begin(log, 2)
    before = other.frontier()
    log.prune(STORAGE_USAGE_EVENT, 1, TOKEN)
    assert other.listen(before, timeout=60)
    assert (
        other.check().frontier == other.frontier() == replace(before, pruned=log.frontier().pruned)
    )


def test_pruning_is_allowed_if_no_storage_usage_was_appended(new_log: NewLog) -> None:
    log = new_log()
    begin(log, 2)
    assert log.prune(STORAGE_USAGE_EVENT, 2, TOKEN)
    assert new_log().frontier().pruned_up_to(STORAGE_USAGE_EVENT) == 2
    log.append(3, TOKEN, [measured(3)])
    assert [scanned.version for scanned in new_log().scan(STORAGE_USAGE_EVENT, 1, 4)] == [3, 3]


def test_an_audit_event_has_the_time_of_its_update(log: UpdateLog) -> None:
    begin(log, 1)
    (appended,) = log.append(2, TOKEN, [update(2)])
    (scanned,) = log.scan("audit_event", 1, 3)
    event = decode(scanned.data, AuditEvent)
    assert (event.time, event.id) == (appended.time, appended.id)
    assert scanned.time == appended.time


def test_an_append_whose_first_update_alone_is_in_the_log_is_out_of_sync(log: UpdateLog) -> None:
    """Two processes that copy one log may split its history at different versions."""
    begin(log, 1)
    first, second = update(2), update(3)
    log.append(2, TOKEN, [first])
    with pytest.raises(OutOfSync):
        log.append(2, TOKEN, [first, second])
    assert log.frontier().upper == 3


def test_appending_the_same_updates_again_returns_the_first_result(log: UpdateLog) -> None:
    begin(log, 1)
    updates: list[Update] = [update(2), update(3)]
    first = log.append(2, TOKEN, updates)
    assert log.append(2, TOKEN, updates) == first
    assert log.frontier().upper == 4
