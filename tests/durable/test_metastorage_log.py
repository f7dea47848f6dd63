"""The update log on a metastorage."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from strandline.durable.metastorage_log import MetastorageLog, append_key, update_key
from strandline.durable.state import new_update
from strandline.durable.update import Change, Entry, Snapshot, Update
from strandline.errors import CorruptData, Fenced, OutOfSync, Unavailable, VersionNotFound
from strandline.fencing import FenceToken
from strandline.metastorage import Outcome
from strandline.wire.registry import encode
from tests.conftest import Member

TOKEN = FenceToken(0, 1)


def update(version: int, verb: str = "create_zone") -> Update:
    entry = Entry(verb, {}, (Change("config", b"k", None, b"v"),))
    return new_update(version, [entry], author="ann", member="m")


@pytest.fixture
def log(member: Member) -> MetastorageLog:
    member.log.append(1, None, [update(1, "fence")], new_token=TOKEN)
    return member.log


def test_an_empty_log_has_version_0_only(member: Member) -> None:
    frontier = member.log.frontier()
    assert (frontier.since, frontier.upper) == (0, 1)
    assert member.log.snapshot() == Snapshot(0, member.log.snapshot().time, ())
    assert member.log.token() is None


def test_updates_come_back_as_they_were_with_the_time_of_the_store(log: MetastorageLog) -> None:
    appended = log.append(2, TOKEN, [update(2), update(3)])
    assert log.updates(2, 4) == appended
    assert appended[0].time > log.updates(1, 2)[0].time


def test_keys_of_versions_are_in_the_order_of_versions() -> None:
    keys = [update_key(version) for version in (1, 9, 10, 99, 100, 10**12)]
    assert keys == sorted(keys)
    assert update_key(7) == "catalog.update.00000000000000000007"


@pytest.mark.parametrize("upper", [1, 3, 100])
def test_an_append_that_does_not_meet_the_upper_is_out_of_sync(
    log: MetastorageLog, upper: int
) -> None:
    with pytest.raises(OutOfSync, match="the next version is 2"):
        log.append(upper, TOKEN, [update(upper)])
    assert log.frontier().upper == 2


@pytest.mark.parametrize("token", [None, FenceToken(0, 2), FenceToken(1, 1)])
def test_an_append_under_another_token_is_fenced(
    log: MetastorageLog, token: FenceToken | None
) -> None:
    with pytest.raises(Fenced, match=r"catalog.s is generation 0, epoch 1"):
        log.append(2, token, [update(2)])
    assert log.frontier().upper == 2


def test_audit_events_are_scanned_by_version_and_survive_compaction(log: MetastorageLog) -> None:
    log.append(2, TOKEN, [update(2)])
    log.append(3, TOKEN, [update(3, "fence")])
    log.append(4, TOKEN, [update(4)])
    before = list(log.scan("audit_event", 1, 5))
    assert [found.version for found in before] == [2, 4]
    assert log.compact(Snapshot(4, log.updates(4, 5)[0].time, ()), TOKEN)
    assert list(log.scan("audit_event", 1, 5)) == before


def test_compaction_puts_the_snapshot_in_the_place_of_the_updates(
    log: MetastorageLog, member: Member
) -> None:
    log.append(2, TOKEN, [update(2), update(3), update(4)])
    snapshot = Snapshot(3, log.updates(3, 4)[0].time, (("config", (b"x",)),))
    assert log.compact(snapshot, TOKEN)
    assert (log.frontier().since, log.frontier().upper) == (3, 5)
    assert log.snapshot() == snapshot
    assert [u.version for u in log.updates(4, 5)] == [4]
    kept = [kv.key for kv in member.store.range("catalog.update.", "catalog.update/")]
    assert kept == [update_key(3), update_key(4)]
    with pytest.raises(VersionNotFound, match="earliest in the log is 3"):
        log.updates(2, 5)


@pytest.mark.parametrize("version", [1, 2, 3])
def test_compacting_again_or_lower_changes_nothing(log: MetastorageLog, version: int) -> None:
    log.append(2, TOKEN, [update(2), update(3)])
    times = {u.version: u.time for u in log.updates(1, 4)}
    assert log.compact(Snapshot(3, times[3], ()), TOKEN)
    assert not log.compact(Snapshot(version, times[version], ()), TOKEN)
    assert log.frontier().since == 3


def test_a_fenced_holder_cannot_compact(log: MetastorageLog) -> None:
    with pytest.raises(Fenced):
        log.compact(Snapshot(1, log.updates(1, 2)[0].time, ()), FenceToken(0, 9))
    assert log.frontier().since == 0


def test_a_hole_in_the_log_is_an_error_that_names_the_version(
    log: MetastorageLog, member: Member
) -> None:
    from strandline.metastorage import Delete

    log.append(2, TOKEN, [update(2), update(3)])
    member.store.invoke([], [Delete(update_key(2))])
    with pytest.raises(CorruptData, match="version 2 is missing"):
        log.updates(1, 4)


def test_waiting_ends_with_an_append_of_another_process(
    log: MetastorageLog, new_member: Callable[[], Member]
) -> None:
    other = new_member().log
    seen = log.frontier()
    assert not log.wait(seen, timeout=0)
    other.append(2, TOKEN, [update(2)])
    assert log.wait(seen, timeout=10)
    assert log.frontier().upper == 3


class CutStore:
    """A store whose answers are lost: the invoke happens, or not, and the caller gets an error."""

    def __init__(self, member: Member, *, happens: bool) -> None:
        self._store = member.store
        self._happens = happens

    def invoke(self, *arguments: Sequence[object]) -> Outcome:
        if self._happens:
            self._store.invoke(*arguments)  # type: ignore[arg-type]  # passed on as it came
        raise Unavailable("the connection was cut")

    def __getattr__(self, name: str) -> Any:  # Any: whatever the store has
        return getattr(self._store, name)


def test_an_append_whose_answer_was_lost_is_settled_by_its_id(
    log: MetastorageLog, member: Member
) -> None:
    cut = MetastorageLog(CutStore(member, happens=True))  # type: ignore[arg-type]  # a wrapper
    mine = update(2)
    assert cut.append(2, TOKEN, [mine])[0].id == mine.id
    assert log.updates(2, 3)[0].id == mine.id


def test_an_append_that_was_lost_before_it_happened_is_reported(
    log: MetastorageLog, member: Member
) -> None:
    cut = MetastorageLog(CutStore(member, happens=False))  # type: ignore[arg-type]  # a wrapper
    with pytest.raises(Unavailable, match="cut"):
        cut.append(2, TOKEN, [update(2)])
    assert log.frontier().upper == 2


def test_an_append_that_was_lost_to_another_is_out_of_sync(
    log: MetastorageLog, member: Member
) -> None:
    log.append(2, TOKEN, [update(2)])
    cut = MetastorageLog(CutStore(member, happens=True))  # type: ignore[arg-type]  # a wrapper
    with pytest.raises(OutOfSync):
        cut.append(2, TOKEN, [update(2)])


def test_append_only_objects_have_keys_of_their_own(log: MetastorageLog, member: Member) -> None:
    log.append(2, TOKEN, [update(2)])
    assert member.store.get(append_key("audit_event", 2)) is not None
    assert b"audit" not in encode(log.updates(2, 3)[0])


class RacedStore:
    """A store on which something else happens just before the first invoke."""

    def __init__(self, member: Member, before: Callable[[], object], *, cut: bool = False) -> None:
        self._store = member.store
        self._before: Callable[[], object] | None = before
        self._cut = cut

    def invoke(self, *arguments: Sequence[object]) -> Outcome:
        before, self._before = self._before, None
        if before is not None and not self._cut:
            before()
        outcome = self._store.invoke(*arguments)  # type: ignore[arg-type]  # passed on as it came
        if before is not None and self._cut:
            before()
            raise Unavailable("the connection was cut")
        return outcome

    def __getattr__(self, name: str) -> Any:  # Any: whatever the store has
        return getattr(self._store, name)


def test_a_trimming_that_another_one_overtook_is_done_all_the_same(
    log: MetastorageLog, member: Member
) -> None:
    log.append(2, TOKEN, [update(2), update(3), update(4)])
    time = log.updates(4, 5)[0].time
    lower = Snapshot(2, log.updates(2, 3)[0].time, ())
    raced = MetastorageLog(
        RacedStore(member, lambda: log.compact(lower, TOKEN))  # type: ignore[arg-type]  # a wrapper
    )
    assert raced.compact(Snapshot(4, time, ()), TOKEN)
    assert log.frontier().since == 4


def test_trimming_to_a_version_that_is_not_there_is_refused(log: MetastorageLog) -> None:
    with pytest.raises(VersionNotFound, match="from version 0 to 1"):
        log.compact(Snapshot(2, log.updates(1, 2)[0].time, ()), TOKEN)
    assert log.frontier().since == 0


@pytest.mark.parametrize("trimmed_to", [2, 3])
def test_an_append_without_an_answer_is_settled_though_it_was_trimmed_since(
    log: MetastorageLog, member: Member, trimmed_to: int
) -> None:
    mine = update(2)

    def go_on() -> None:
        log.append(3, TOKEN, [update(3)])
        assert log.compact(Snapshot(trimmed_to, log.updates(3, 4)[0].time, ()), TOKEN)

    cut = MetastorageLog(RacedStore(member, go_on, cut=True))  # type: ignore[arg-type]  # a wrapper
    assert [u.id for u in cut.append(2, TOKEN, [mine])] == [mine.id]
