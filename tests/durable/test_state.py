"""Opening, fencing, joining and writing the durable catalog."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NoReturn

import pytest

from strandline.clock import format_timestamp
from strandline.durable import (
    AppliedUpdate,
    CatalogTransaction,
    DurableCatalogState,
    Position,
    ReadOnlyState,
    UpdateLog,
    joined_anew,
)
from strandline.durable import state as durable_state_module
from strandline.durable.collections import STORAGE_USAGE_EVENT
from strandline.durable.log import Scanned, Superseded
from strandline.durable.transaction import new_update
from strandline.durable.update import AuditEvent, Change, Entry, Update
from strandline.errors import CorruptData, Fenced, NotFound, OutOfSync, Stopping, WrongEnvironment
from strandline.fencing import FenceToken
from strandline.model.descriptors import ConfigEntry, Setting, StorageUsageEvent, ZoneDescriptor
from strandline.wire import decode
from strandline.wire.stored import AnyStored
from tests.conftest import NOTHING, LogMember


def latest(state: ReadOnlyState, after: Position | None = None) -> Position:
    """The latest version in the log of ``state``."""
    position = after or state.recovered[-1]
    while applied := state.updates_after(position):
        position = applied[-1]
    return position


def begin(state: DurableCatalogState) -> CatalogTransaction:
    return state.transaction(latest(state), author="ann")


def commit(state: DurableCatalogState, name: str) -> AppliedUpdate:
    transaction = begin(state)
    with transaction.entry("create_zone", {"zone": name}):
        transaction.put(ZoneDescriptor(transaction.allocate_id()[0], name, "ann"))
    return state.commit_transaction(transaction)


def zones(state: ReadOnlyState) -> set[str]:
    return {stored.name for stored in latest(state).contents.objects("zone")}


def objects_of(state: ReadOnlyState, kind: str) -> list[AnyStored]:
    return list(latest(state).contents.objects(kind))


def test_inspecting_an_empty_store_changes_nothing(member: LogMember) -> None:
    openable = member.openable()
    assert not openable.is_initialized()
    assert openable.epoch() is None
    assert openable.deploy_generation() is None
    assert member.head() == NOTHING


def test_an_unopened_catalog_reports_the_current_generation_and_epoch(
    new_member: Callable[[], LogMember],
) -> None:
    unopened = new_member().openable()
    assert not unopened.is_initialized()
    new_member().open(generation=42)
    for _ in range(2):
        assert unopened.is_initialized()
        assert (unopened.deploy_generation(), unopened.epoch()) == (42, 1)
    new_member().open(generation=43)
    assert (unopened.deploy_generation(), unopened.epoch()) == (43, 2)


@pytest.mark.parametrize("how", ["join", "open_read_only"])
def test_a_catalog_that_does_not_exist_cannot_be_joined_or_read(
    member: LogMember, how: str
) -> None:
    openable = member.openable()
    with pytest.raises(NotFound, match="no catalog here: the store is new, its address names"):
        openable.join(member="m") if how == "join" else openable.open_read_only()
    assert member.head() == NOTHING


def test_a_new_catalog_has_a_fence_then_its_contents(member: LogMember) -> None:
    state = member.open()
    assert (state.token.epoch, state.recovered[-1].version) == (1, 2)
    assert [u.entries[0].verb for u in state.log.updates(1, 3)] == ["fence", "initialize"]
    assert state.environment is not None
    assert member.fences == [state.token]


def test_each_open_takes_the_next_epoch_and_fences_the_one_before(
    new_member: Callable[[], LogMember],
) -> None:
    first = new_member().open()
    second_member = new_member()
    second = second_member.open()
    assert (first.token.epoch, second.token.epoch) == (1, 2)
    assert second_member.fences == [second.token]
    with pytest.raises(Fenced):
        first.confirm_leadership()
    second.confirm_leadership()
    for attempt in (
        lambda: begin(first),
        lambda: first.transaction(first.recovered[-1], author="ann"),
        lambda: zones(first),
    ):
        with pytest.raises(Fenced):
            attempt()


def events(state: ReadOnlyState) -> list[Scanned]:
    return list(state.log.scan("audit_event", 1, latest(state).version + 1))


def test_a_state_knows_when_its_epoch_began_even_after_a_trim(
    new_member: Callable[[], LogMember],
) -> None:
    new_member().open()
    second = new_member().open()
    began = second.recovered[-1].time
    commit(second, "z")
    commit(second, "y")
    second.compact(second.log.frontier().upper - 1)
    for state in (second, new_member().join(), new_member().openable().open_read_only()):
        assert (state.epoch, state.boot_timestamp) == (2, began)


def test_an_expired_state_neither_commits_nor_trims_nor_reads_the_log(
    new_member: Callable[[], LogMember],
) -> None:
    expired, other = new_member().open(), new_member().join()
    transaction, base = begin(expired), latest(expired)
    before = other.log.check().frontier
    expired.expire()
    expired.expire()
    for attempt in (
        lambda: expired.commit_transaction(transaction),
        lambda: expired.transaction(base, author="ann"),
        lambda: expired.compact(base.version),
        lambda: expired.updates_after(base),
        expired.confirm_leadership,
    ):
        with pytest.raises(Stopping):
            attempt()
    assert other.log.check().frontier == before
    other.confirm_leadership()  # expiry fences nobody
    commit(other, "z")


def test_reopening_changes_only_the_epoch(new_member: Callable[[], LogMember]) -> None:
    opened = [new_member().open() for _ in range(3)]
    contents = [
        {kind: objects for kind, objects in state.recovered[-1].contents.dump() if kind != "fence"}
        for state in opened
    ]
    assert contents[0] == contents[1] == contents[2]
    ((_, _, data),) = {(e.version, e.time, e.data) for e in events(opened[-1])}
    event = decode(data, AuditEvent)
    assert [verb for verb, _ in event.actions] == ["initialize"]
    assert (event.author, event.version) == ("system", 2)
    assert event.time == opened[0].recovered[-1].time


def test_an_opener_overtaken_by_commits_takes_the_next_epoch_after_them(
    new_member: Callable[[], LogMember],
) -> None:
    holder, opener = new_member(), new_member()
    state = holder.open()
    raised: list[FenceToken] = []

    def overtaken(token: FenceToken, _: str | None) -> None:
        if len(raised) < 3:
            commit(state, f"z{len(raised)}")
        raised.append(token)

    newer = opener.openable().open(
        member="opener", initialize=lambda _: None, raise_fence=overtaken
    )
    assert [token.epoch for token in raised] == [2, 2, 2, 2]
    assert newer.token.epoch == 2
    assert zones(newer) == {"default", "z0", "z1", "z2"}
    for _ in range(2):
        with pytest.raises(Fenced, match="epoch"):
            commit(state, "late")
    assert new_member().open().token.epoch == 3


def test_a_holder_that_only_reads_is_fenced_at_its_next_sync(
    new_member: Callable[[], LogMember],
) -> None:
    first = new_member().open()
    second = new_member().open()
    commit(second, "z")
    with pytest.raises(Fenced, match="epoch"):
        first.updates_after(first.recovered[-1])
    with pytest.raises(Fenced, match="epoch"):
        first.transaction(first.recovered[-1], author="ann")


def test_a_holder_that_starts_again_from_the_snapshot_of_a_newer_holder_is_fenced(
    new_member: Callable[[], LogMember],
) -> None:
    first = new_member().open()
    second = new_member().open()
    assert second.compact(second.recovered[-1].version)
    with pytest.raises(Fenced, match="epoch"):
        first.start()
    with pytest.raises(Fenced, match="epoch"):
        first.transaction(first.recovered[-1], author="ann")


LEARNING: dict[str, Callable[[DurableCatalogState, CatalogTransaction], object]] = {
    "commit": lambda state, transaction: state.commit_transaction(transaction),
    "sync": lambda state, transaction: state.updates_after(state.recovered[-1]),
    "confirm": lambda state, transaction: state.confirm_leadership(),
    "compact": lambda state, transaction: state.compact(2),
    "prune": lambda state, transaction: state.prune(STORAGE_USAGE_EVENT, 2),
}


@pytest.mark.parametrize("learning", LEARNING)
def test_a_fenced_holder_gets_an_error_with_the_new_holder_and_the_time(
    new_member: Callable[[], LogMember], learning: str
) -> None:
    first = new_member().open()
    transaction = begin(first)
    second = new_member().open()
    opening = second.recovered[-1].update
    commit(second, "z")
    by_whom = f"epoch 2, which opener took at {re.escape(format_timestamp(opening.time))}$"
    for _ in range(2):
        with pytest.raises(Fenced, match=by_whom):
            LEARNING[learning](first, transaction)


def test_the_error_names_the_new_holder_after_many_commits_and_the_time_after_a_trim(
    new_member: Callable[[], LogMember], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(durable_state_module, "READ_AT_ONCE", 2)
    first, early = new_member().open(), new_member().join()
    second = new_member().open()
    time = re.escape(format_timestamp(second.recovered[-1].time))
    for number in range(5):
        commit(second, f"z{number}")
    with pytest.raises(Fenced, match=f"epoch 2, which opener took at {time}$"):
        early.confirm_leadership()
    assert second.compact(second.log.frontier().upper - 1)
    with pytest.raises(Fenced, match=f"epoch 2, which was taken at {time} by a member that"):
        first.confirm_leadership()


def test_a_replaced_holder_gets_an_error_with_the_new_holder_and_the_time(
    new_member: Callable[[], LogMember],
) -> None:
    first = new_member().open()
    second = new_member().open(generation=3)
    time = re.escape(format_timestamp(second.recovered[-1].time))
    by_whom = f"generation 3, epoch 2, which opener took at {time}"
    with pytest.raises(Superseded, match=f"{by_whom}; this node stops$"):
        joined_anew(first)
    with pytest.raises(Fenced, match=f"deploy generation 2, .*{by_whom}; set deploy_generation"):
        new_member().open(generation=2)


def test_the_holder_of_a_catalog_that_was_dropped_and_recreated_is_fenced(
    log: UpdateLog, another_log: UpdateLog
) -> None:
    """Even if the new catalog has reached the same version, generation and epoch."""
    former, holder = LogMember(log, []).open(), LogMember(another_log, []).open()
    commit(former, "a"), commit(holder, "a")
    transaction = begin(former)
    with transaction.entry("create_zone", {}):
        transaction.put(ZoneDescriptor(transaction.allocate_id()[0], "late", "ann"))
    assert former.token.rank == holder.token.rank
    assert former.log.frontier() == holder.log.frontier()
    former.log = another_log  # the log that the address of its store leads to now
    for attempt in (
        lambda: former.compact(2),
        lambda: former.commit_transaction(transaction),
        former.confirm_leadership,
    ):
        with pytest.raises(Fenced, match="with a different nonce"):
            attempt()
    assert zones(holder) == {"default", "a"}
    commit(holder, "b")


def test_a_fenced_holder_gets_the_same_error_again(
    new_member: Callable[[], LogMember], monkeypatch: pytest.MonkeyPatch
) -> None:
    holder = new_member().open()
    transaction = begin(holder)

    def elsewhere(*_: object, **__: object) -> NoReturn:
        raise WrongEnvironment("the folder was relocated")

    with monkeypatch.context() as patch:
        patch.setattr(holder.log, "append", elsewhere)
        with pytest.raises(WrongEnvironment, match="relocated"):
            holder.commit_transaction(transaction)
    with pytest.raises(WrongEnvironment, match="relocated"):
        begin(holder)


@pytest.mark.parametrize("generation", [0, 1])
def test_a_fenced_holder_cannot_commit(
    new_member: Callable[[], LogMember], generation: int
) -> None:
    first = new_member().open()
    transaction = begin(first)
    with transaction.entry("create_zone", {}):
        transaction.put(ZoneDescriptor(transaction.allocate_id()[0], "late", "ann"))
    second = new_member().open(generation=generation)
    for _ in range(2):
        with pytest.raises(Fenced):
            first.commit_transaction(transaction)
    assert "late" not in zones(second)
    with pytest.raises(Fenced, match=f"generation {generation}"):
        first.confirm_leadership()


def test_an_older_deploy_generation_cannot_open_a_newer_one(
    new_member: Callable[[], LogMember],
) -> None:
    new_member().open(generation=3)
    with pytest.raises(Fenced, match="generation 2, but the catalog's token is generation 3"):
        new_member().open(generation=2)
    assert new_member().open(generation=4).token.deploy_generation == 4


def test_members_of_one_deployment_share_the_token_and_commit_in_turn(
    new_member: Callable[[], LogMember],
) -> None:
    opened = new_member().open()
    joined = new_member().join("second")
    assert joined.token == opened.token
    for n in range(5):
        commit(opened if n % 2 else joined, f"z{n}")
    assert zones(opened) == zones(joined) >= {f"z{n}" for n in range(5)}
    authors = {u.member for u in opened.log.updates(3, 8)}
    assert authors == {"opener", "second"}


def test_only_one_of_two_transactions_on_the_same_base_commits(
    new_member: Callable[[], LogMember],
) -> None:
    first, second = new_member().open(), new_member().join()
    late = begin(second)
    with late.entry("create_zone", {}):
        late.put(ZoneDescriptor(late.allocate_id()[0], "late", "ann"))
    commit(first, "early")
    with pytest.raises(OutOfSync):
        second.commit_transaction(late)
    assert zones(second) == {"default", "early"}


def test_a_read_only_state_follows_all_writers_and_has_no_write_methods(
    new_member: Callable[[], LogMember],
) -> None:
    writer = new_member().open()
    reader = new_member().openable().open_read_only()
    commit(writer, "z")
    assert zones(reader) == zones(writer) == {"default", "z"}
    assert (writer.token.epoch, reader.log.token()) == (1, writer.token)
    new_member().open()
    assert zones(reader) == {"default", "z"}, "a reader follows every writer"
    assert not hasattr(reader, "transaction")
    assert not hasattr(reader, "commit_transaction")


def test_a_state_restored_from_a_snapshot_equals_a_replayed_one(
    new_member: Callable[[], LogMember],
) -> None:
    writer = new_member().open()
    for n in range(10):
        commit(writer, f"z{n}")
    replayed = new_member().join()
    assert replayed.recovered[0].version == 0
    expected = latest(writer).contents
    assert writer.compact(9)
    from_snapshot = new_member().join()
    assert from_snapshot.recovered[0].version == 9
    assert from_snapshot.recovered[-1] == replayed.recovered[-1]
    assert from_snapshot.recovered[-1].contents == expected


def test_a_state_that_reads_the_log_while_it_is_trimmed_starts_again(
    new_member: Callable[[], LogMember], monkeypatch: pytest.MonkeyPatch
) -> None:
    holder, other = new_member(), new_member()
    state = holder.open()
    updates, left = other.log.updates, [1]

    def trimmed_meanwhile(start: int, end: int) -> tuple[Update, ...]:
        if left:
            left.pop()
            transaction = state.transaction(state.recovered[-1], author="ann")
            assert state.compact(state.commit_transaction(transaction).version)
        return updates(start, end)

    monkeypatch.setattr(other.log, "updates", trimmed_meanwhile)
    assert ReadOnlyState(other.log).recovered[0].version == holder.log.frontier().since


def test_updates_after_returns_each_update_once_up_to_a_version(
    new_member: Callable[[], LogMember],
) -> None:
    writer, reader = new_member().open(), new_member().openable().open_read_only()
    for n in range(4):
        commit(writer, f"z{n}")
    first = reader.updates_after(reader.recovered[-1], up_to=4)
    rest = reader.updates_after(first[-1])
    assert [applied.version for applied in first + rest] == [3, 4, 5, 6]
    assert reader.updates_after(rest[-1]) == []


def test_the_recovered_versions_are_taken_once(member: LogMember) -> None:
    state = member.open()
    assert [applied.version for applied in state.take_recovered()] == [0, 1, 2]
    assert state.recovered == []


def chain(state: DurableCatalogState, *names: str) -> list[CatalogTransaction]:
    """A chain of transactions, one per zone, each based on the one before it."""
    base: Position = latest(state)
    transactions = []
    for name in names:
        transaction = state.transaction(base, author=f"author of {name}")
        with transaction.entry("create_zone", {"zone": name}):
            transaction.put(ZoneDescriptor(transaction.allocate_id()[0], name, "ann"))
        transactions.append(transaction)
        base = transaction
    return transactions


def test_a_chain_of_transactions_is_committed_in_one_append(member: LogMember) -> None:
    state = member.open()
    applied = state.commit_transactions(chain(state, "a", "b", "c"))
    assert len({committed.time for committed in applied}) == 1
    assert [committed.version for committed in applied] == [3, 4, 5]
    assert [committed.update.author for committed in applied] == [f"author of {n}" for n in "abc"]
    read = state.updates_after(state.recovered[-1])
    assert [(committed.update, committed.contents) for committed in read] == [
        (committed.update, committed.contents) for committed in applied
    ], "what was committed is what every node reads"


def test_a_retried_commit_is_in_the_log_once(member: LogMember) -> None:
    state = member.open()
    transactions = chain(state, "a", "b")
    first = state.commit_transactions(transactions)
    assert [committed.update for committed in state.commit_transactions(transactions)] == [
        committed.update for committed in first
    ]
    assert zones(state) == {"default", "a", "b"}
    assert latest(state).version == 4


def test_a_transaction_can_be_rebased_and_committed(
    new_member: Callable[[], LogMember],
) -> None:
    first, second = new_member().open(), new_member().join()
    (late,) = chain(second, "late")
    late.append(STORAGE_USAGE_EVENT, StorageUsageEvent(((1, 2),), 3))
    silent = begin(first)
    with silent.entry("configure", {}):
        silent.put(ConfigEntry("a", "1"))
    first.commit_transaction(silent)
    with pytest.raises(OutOfSync):
        second.commit_transaction(late)
    version = second.commit_transaction(late.rebased(latest(second))).version
    assert zones(first) == {"default", "late"}
    assert [s.version for s in first.log.scan(STORAGE_USAGE_EVENT, 1, version + 1)] == [version]


def test_a_transaction_writes_a_changed_allocator_once(member: LogMember) -> None:
    state = member.open()
    transaction = begin(state)
    for number in range(3):
        with transaction.entry("configure", {}):
            transaction.allocate_id()
            transaction.allocate_id(amount=2)
            transaction.put(ConfigEntry(f"a{number}", "1"))
    update = state.commit_transaction(transaction).update
    kinds = [[change.kind for change in entry.changes] for entry in update.entries]
    assert kinds == [["id_allocator", "config"], ["config"], ["config"]]
    assert latest(state).contents == transaction.contents


def test_the_last_change_of_an_object_in_a_transaction_wins(
    new_member: Callable[[], LogMember],
) -> None:
    writer = new_member().open()
    begun_with = {stored.name for stored in objects_of(writer, "setting")}
    for settings in (("kept", "1"), ("goes", "1")):
        transaction = begin(writer)
        with transaction.entry("configure", {}):
            transaction.put(Setting(*settings))
        writer.commit_transaction(transaction)
    transaction = begin(writer)
    with transaction.entry("configure", {}):
        for name, value in (("kept", "2"), ("new", "1"), ("brief", "1")):
            if name == "kept":
                transaction.delete("setting", name)
            transaction.put(Setting(name, value))
        for name in ("brief", "goes"):
            transaction.delete("setting", name)
    applied = writer.commit_transaction(transaction)
    reader = new_member().openable().open_read_only()
    settings_read = {
        stored.name: stored.value
        for stored in objects_of(reader, "setting")
        if stored.name not in begun_with
    }
    assert settings_read == {"kept": Setting("kept", "2"), "new": Setting("new", "1")}
    assert writer.compact(applied.version)
    assert new_member().join().recovered[-1].contents == applied.contents


def test_ids_continue_after_the_last_committed_id(new_member: Callable[[], LogMember]) -> None:
    opened, joined = new_member().open(), new_member().join()
    first = begin(opened)
    with first.entry("allocate", {}):
        given = first.allocate_id(amount=3)
    opened.commit_transaction(first)
    second = begin(joined)
    assert second.allocate_id()[0] == given[-1] + 1
    assert joined.transaction(latest(joined), author="ann").allocate_id(amount=0) == range(
        given[-1] + 1, given[-1] + 1
    )


def test_an_empty_transaction_is_a_silent_version_and_obeys_the_fence(
    new_member: Callable[[], LogMember],
) -> None:
    first = new_member().open()
    applied = first.commit_transaction(begin(first))
    assert applied.update.silent
    assert applied.contents == first.recovered[-1].contents
    late = begin(first)
    new_member().open()
    with pytest.raises(Fenced):
        first.commit_transaction(late)


def test_a_transaction_of_bookkeeping_alone_writes_no_audit_event(member: LogMember) -> None:
    state = member.open()
    transaction = begin(state)
    with transaction.entry("configure", {}):
        transaction.put(ConfigEntry("a", "1"))
    update = state.commit_transaction(transaction).update
    assert update.silent
    assert not list(state.log.scan("audit_event", update.version, update.version + 1))


def test_a_corrupt_record_fails_every_read_and_earlier_versions_stay_readable(
    new_member: Callable[[], LogMember],
) -> None:
    writer, follower = new_member().open(), new_member().join()
    commit(writer, "good")
    bad = Entry("create_zone", {}, (Change("zone", b"\0" * 8, b"never there", None),))
    update = new_update(4, [bad], author="ann", member="m")
    writer.log.append(4, writer.token, [update])
    for _ in range(2):
        with pytest.raises(CorruptData, match="does not replace the present object"):
            follower.updates_after(follower.recovered[-1])
    assert [
        applied.version for applied in follower.updates_after(follower.recovered[-1], up_to=3)
    ] == [3]


# -- creating ----------------------------------------------------------------------------------


def test_the_fence_and_the_contents_of_a_new_catalog_are_written_in_one_append(
    member: LogMember,
) -> None:
    state = member.open()
    first, second = state.log.updates(1, 3)
    assert first.time == second.time


def test_creating_an_existing_catalog_takes_no_epoch(new_member: Callable[[], LogMember]) -> None:
    first, late = new_member(), new_member()
    state = first.open()
    with pytest.raises(OutOfSync, match="join it"):
        late.openable().create(
            member="late", initialize=lambda _: None, raise_fence=lambda *_: None
        )
    state.confirm_leadership()
    assert late.join().token == state.token


def test_a_catalog_created_by_another_node_meanwhile_is_left_unchanged(
    new_member: Callable[[], LogMember],
) -> None:
    first, late = new_member(), new_member()

    def overtaken(transaction: CatalogTransaction) -> None:
        first.open()
        with transaction.entry("initialize", {}):
            transaction.put(ConfigEntry("environment", "the late one's"))

    with pytest.raises(OutOfSync):
        late.openable().create(member="late", initialize=overtaken, raise_fence=lambda *_: None)
    assert late.join().environment != "the late one's"
    assert late.join().token.epoch == 1
