"""A log becomes a copy of another one: what is copied, and which differences are found."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from strandline.clock import HybridClock
from strandline.durable import (
    CatalogTransaction,
    Change,
    Entry,
    ReadOnlyState,
    Superseded,
    UpdateLog,
    durable_state,
    log_copy,
)
from strandline.durable.collections import APPEND_ONLY, STORAGE_USAGE_EVENT
from strandline.durable.contents import restore
from strandline.durable.log import Scanned
from strandline.durable.log_copy import FILLING, LogCopy, seal, unseal
from strandline.durable.transaction import new_update
from strandline.errors import CorruptData, OutOfSync
from strandline.fencing import FenceToken
from strandline.model.descriptors import ConfigEntry, Setting, ZoneDescriptor
from strandline.wire.registry import encode
from tests.conftest import LogMember, Member
from tests.durable.logs import SQLITE, LogKind, OnMetastorage, Persist, Shadow, Stash
from tests.durable.test_shadow_log import wrapped
from tests.durable.updates import TOKEN, begin, measured, update

KINDS: dict[str, LogKind] = {
    "metastorage": OnMetastorage(SQLITE),
    "stash": Stash(SQLITE),
    "persist": Persist(SQLITE),
    "shadow": Shadow(OnMetastorage(SQLITE), Stash(SQLITE), share=True),
}
NAMES = ("old", "new")


@pytest.fixture
def new_log(tmp_path: Path) -> Iterator[Callable[[str], UpdateLog]]:
    clock = HybridClock()  # shared by both logs, as in a store that moves its catalog
    with ExitStack() as opened:

        def make(kind: str) -> UpdateLog:
            folder = tmp_path / f"log {len(list(tmp_path.iterdir()))}"
            folder.mkdir()
            log_kind = KINDS[kind]
            return opened.enter_context(log_kind.open(log_kind.create(folder), clock))

        yield make


@pytest.fixture
def pair(new_log: Callable[[str], UpdateLog]) -> tuple[UpdateLog, UpdateLog]:
    return new_log("metastorage"), new_log("stash")


def said(log: UpdateLog) -> tuple[object, ...]:
    """All that a log contains, except its token."""
    frontier, snapshot = log.frontier(), log.snapshot()
    contents = restore(snapshot)
    return (
        frontier,
        (snapshot.version, snapshot.time, contents.dump(), contents.times()),
        log.updates(frontier.since + 1, frontier.upper),
        {kind: list(log.scan(kind, 1, frontier.upper)) for kind in APPEND_ONLY},
    )


def rewrite(log: UpdateLog, version: int, *changes: Change, verb: str = "configure") -> None:
    entry = Entry(verb, {}, changes)
    log.append(version, TOKEN, [new_update(version, [entry], author="ann", member="m")])


def change(name: str, old: str | None, new: str | None) -> Change:
    records = (None if value is None else encode(ConfigEntry(name, value)) for value in (old, new))
    return Change("config", name.encode(), *records)


@pytest.mark.parametrize(("old", "new"), list(product(KINDS, KINDS)))
def test_any_kind_of_log_can_copy_any_other_with_its_history(
    new_log: Callable[[str], UpdateLog], old: str, new: str
) -> None:
    original, copy = new_log(old), new_log(new)
    begin(original, 3, objects=2)
    LogCopy(original, copy, names=NAMES, token=FILLING).level()
    assert copy.token() == FILLING
    rewrite(original, 4, change("b", None, "x"))  # silent: no audit event has its time
    rewrite(original, 5, change("b", "x", None), change("c", None, "x"))
    original.append(6, TOKEN, [measured(6), update(7, "fence"), measured(8)])
    original.compact(7, TOKEN)
    LogCopy(original, copy, names=NAMES).level()
    assert said(copy) == said(original)
    assert [event.version for event in copy.scan(STORAGE_USAGE_EVENT, 1, 9)] == [6, 6, 8, 8]
    original.prune(STORAGE_USAGE_EVENT, 6, TOKEN)
    LogCopy(original, copy, names=NAMES).level()
    assert said(copy) == said(original)
    assert copy.token() == TOKEN
    original.append(9, TOKEN, [update(9)])
    frontier, _ = LogCopy(original, copy, names=NAMES).level()
    LogCopy(original, copy, names=NAMES).prove(frontier)
    assert copy.time_of(original.updates(9, 10)[0]) == original.updates(9, 10)[0].time


@pytest.mark.parametrize("new", KINDS)
def test_a_log_whose_writer_had_a_faster_clock_can_be_copied(tmp_path: Path, new: str) -> None:
    folders = tmp_path / "old", tmp_path / "new"
    for folder in folders:
        folder.mkdir()
    kinds = KINDS["metastorage"], KINDS[new]
    addresses = [kind.create(folder) for kind, folder in zip(kinds, folders, strict=True)]
    faster, clock = HybridClock(lambda: 10_000), HybridClock(lambda: 5_000)
    with kinds[0].open(addresses[0], faster) as original:
        begin(original, 3)
    with kinds[0].open(addresses[0], clock) as original, kinds[1].open(addresses[1], clock) as copy:
        LogCopy(original, copy, names=NAMES).level()
        assert said(copy) == said(original)


def test_pruned_storage_usage_stays_pruned_in_a_copy_and_when_copied_back(
    pair: tuple[UpdateLog, UpdateLog],
) -> None:
    there, back = LogCopy(*pair, names=NAMES), LogCopy(*reversed(pair), names=NAMES)
    original, copy = pair
    begin(original, 2)
    original.append(3, TOKEN, [measured(3), measured(4)])
    there.level()
    original.prune(STORAGE_USAGE_EVENT, 3, TOKEN)  # while it is copied
    frontier, _ = there.level(upper=4)
    there.prove(frontier)
    assert said(copy) == said(original)
    copy.append(5, TOKEN, [measured(5)])
    copy.prune(STORAGE_USAGE_EVENT, 4, TOKEN)
    for same in (back, there):
        frontier, _ = same.level()
        same.prove(frontier)
        assert frontier.pruned == ((STORAGE_USAGE_EVENT, 4),)
        assert said(copy) == said(original)
    assert [event.version for event in original.scan(STORAGE_USAGE_EVENT, 1, 6)] == [5, 5]


def test_objects_that_trimmed_versions_removed_or_changed_back_are_so_in_the_copy(
    pair: tuple[UpdateLog, UpdateLog],
) -> None:
    original, copy = pair
    begin(original, 2)
    rewrite(original, 3, change("b", None, "x"), change("c", None, "x"))
    LogCopy(original, copy, names=NAMES).level()
    rewrite(original, 4, change("b", "x", None), change("c", "x", "y"))
    rewrite(original, 5, change("c", "y", "x"))  # only its time differs from that in the copy
    original.compact(5, TOKEN)
    LogCopy(original, copy, names=NAMES).level()
    assert said(copy) == said(original)


def test_a_copy_with_other_objects_than_those_of_a_trimmed_original_is_damaged(
    pair: tuple[UpdateLog, UpdateLog],
) -> None:
    original, copy = pair
    begin(original, 2)
    LogCopy(original, copy, names=NAMES).level()
    rewrite(original, 3, change("b", None, "x"))
    rewrite(copy, 3, change("b", None, "y"))
    rewrite(original, 4, change("c", None, "x"))
    original.compact(4, TOKEN)
    with pytest.raises(CorruptData, match="the objects of version 3"):
        LogCopy(original, copy, names=NAMES).level()


def test_a_copy_that_ends_within_versions_of_one_time_goes_on_after_a_trim(
    pair: tuple[UpdateLog, UpdateLog], monkeypatch: pytest.MonkeyPatch
) -> None:
    original, copy = pair
    begin(original, 2)
    entries = [Entry("configure", {}, (change(name, None, "x"),)) for name in "bc"]
    group = [new_update(n, [e], author="ann", member="m") for n, e in enumerate(entries, 3)]
    first, second = original.append(3, TOKEN, group)
    assert first.time == second.time
    with monkeypatch.context() as patch:
        patch.setattr(log_copy, "COPIED_AT_ONCE", 1)
        LogCopy(original, copy, names=NAMES).level(upper=4)
    assert copy.frontier().upper == 4
    original.compact(4, TOKEN)
    LogCopy(original, copy, names=NAMES).level()
    assert said(copy) == said(original)


def test_a_growing_original_is_copied_up_to_the_requested_version(
    pair: tuple[UpdateLog, UpdateLog],
) -> None:
    original, copy = pair
    begin(original, 3)

    def growing() -> Any:
        upper = original.frontier().upper
        original.append(upper, TOKEN, [update(upper)])
        return original.frontier()

    frontier, _ = LogCopy(wrapped(original, frontier=growing), copy, names=NAMES).level(upper=4)
    assert 4 <= frontier.upper < original.frontier().upper
    LogCopy(original, copy, names=NAMES).prove(frontier)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("had", [0, 3, 6])
def test_a_trimmed_log_with_swapped_names_can_be_copied(
    new_log: Callable[[str], UpdateLog], kind: str, had: int
) -> None:
    member, copy = LogMember(new_log(kind), []), new_log("stash")
    state = member.open()
    position = state.recovered[-1]

    def commit(*zones: ZoneDescriptor, gone: int | None = None) -> None:
        nonlocal position
        transaction = CatalogTransaction(position, author="ann")
        with transaction.entry("create_zone", {}):
            if gone is not None:
                transaction.delete("zone", gone)
            for zone in zones:
                transaction.put(zone)
        position = state.commit_transaction(transaction)

    a, b, c = (ZoneDescriptor(id=900 + n, name=name, owner="ann") for n, name in enumerate("abc"))
    commit(a, b)
    commit(c)
    LogCopy(member.log, copy, names=NAMES).level() if had else None
    commit(replace(a, name="x"))
    commit(replace(b, name="a"))
    commit(replace(a, name="b"))
    LogCopy(member.log, copy, names=NAMES).level() if had > 3 else None
    commit(gone=c.id)
    commit(replace(c, id=910))
    commit(gone=910)
    commit(replace(c, id=910))  # the same bytes at another time
    state.compact(position.version)
    frontier, _ = LogCopy(member.log, copy, names=NAMES).level()
    LogCopy(member.log, copy, names=NAMES).prove(frontier)
    assert said(copy) == said(member.log)


def altered_updates(log: UpdateLog) -> Any:
    return lambda start, end: tuple(
        replace(logged, author="eve") for logged in log.updates(start, end)
    )


def dropped_event(log: UpdateLog) -> Any:
    return lambda *place: iter(list(log.scan(*place))[1:])


def altered_event(log: UpdateLog) -> Any:
    return lambda *place: (Scanned(o.version, o.time, o.data + b"x") for o in log.scan(*place))


def altered_snapshot(log: UpdateLog) -> Any:
    def first_snapshot() -> Any:
        snapshot = log.first_snapshot()
        return replace(snapshot, times=((snapshot.time, *snapshot.times[0][1:]),))

    return first_snapshot


FAULTS = {
    "an author": {"updates": altered_updates},
    "an audit event": {"scan": altered_event},
    "a lost audit event": {"scan": dropped_event},
    "a time in the snapshot": {"first_snapshot": altered_snapshot},
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_proof_finds_altered_entries(pair: tuple[UpdateLog, UpdateLog], fault: str) -> None:
    original, copy = pair
    begin(original, 5, objects=2)
    original.compact(3, TOKEN)
    frontier, _ = LogCopy(original, copy, names=NAMES).level()
    LogCopy(original, copy, names=NAMES).prove(frontier)
    calls = {name: spoil(copy) for name, spoil in FAULTS[fault].items()}
    with pytest.raises(CorruptData, match=r"differ in .*old has .*; new has"):
        LogCopy(original, wrapped(copy, **calls), names=NAMES).prove(frontier)


def test_a_log_with_a_different_history_is_left_unchanged(
    pair: tuple[UpdateLog, UpdateLog],
) -> None:
    original, copy = pair
    begin(original, 2)
    begin(copy, 3)
    before = said(copy)
    with pytest.raises(CorruptData, match="differ in the frontier"):
        LogCopy(original, copy, names=NAMES).level()
    moved_away = wrapped(original, token=TOKEN.sealed)
    with pytest.raises(Superseded):
        LogCopy(moved_away, copy, names=NAMES).level()
    assert said(copy) == before


def test_a_copy_that_refuses_the_next_versions_although_nothing_has_moved_is_damaged(
    pair: tuple[UpdateLog, UpdateLog],
) -> None:
    original, copy = pair
    begin(original, 2)
    refusals = iter([OutOfSync("not the next version")])

    def refuse(*_: object, **__: object) -> Any:
        raise next(refusals)

    with pytest.raises(CorruptData, match="differ in the versions that can be appended next"):
        LogCopy(original, wrapped(copy, append=refuse), names=NAMES).level()


def raised(token: FenceToken, environment: str | None) -> None:
    """Does nothing: no rows are stored next to these logs."""


def put_setting(transaction: CatalogTransaction) -> None:
    with transaction.entry("debug_edit", {}):
        transaction.put(Setting("note", "seen"))


def test_a_log_that_is_being_filled_from_another_one_refuses_writers(
    member: Member, new_log: Callable[[str], UpdateLog]
) -> None:
    member.open()
    copy = LogMember(new_log("stash"), [])
    LogCopy(member.log, copy.log, names=NAMES, token=FILLING).level()
    filled = said(copy.log)
    ways: list[Callable[[], object]] = [
        copy.open,
        copy.join,
        lambda: copy.openable().edit(put_setting, member="m", raise_fence=raised, author="ann"),
    ]
    for refused in ways:
        with pytest.raises(Superseded, match="was moved from this log to another one"):
            refused()
    assert (said(copy.log), copy.log.token()) == (filled, FILLING)


def test_a_sealed_log_refuses_writers_until_it_is_unsealed(member: Member) -> None:
    state = member.open()
    openable = durable_state(member.log)
    seal(member.log, state.recovered[-1], state.token, member="mover")
    sealed = said(member.log)
    by_whom = r"was moved from this log to another one.*the token that mover took at \d{4}-"
    for refused in (
        member.open,
        member.join,
        state.confirm_leadership,
        lambda: state.updates_after(state.recovered[-1]),
        lambda: openable.edit(put_setting, member="m", raise_fence=raised, author="ann"),
    ):
        with pytest.raises(Superseded, match=by_whom):
            refused()
    assert said(member.log) == sealed
    unseal(member.log, state.token.epoch + 1, member="late", raise_fence=raised)
    assert said(member.log) == sealed
    for _ in range(2):
        unseal(member.log, state.token.epoch, member="mover", raise_fence=raised)
    joined = member.join()
    assert joined.token.rank == (0, state.token.epoch + 1)
    assert ReadOnlyState(member.log).recovered[-1].version == state.recovered[-1].version + 2
