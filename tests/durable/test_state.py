"""Opening, fencing, joining and writing the durable catalog."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from strandline.durable import (
    AppliedUpdate,
    CatalogTransaction,
    DurableCatalogState,
    MetastorageLog,
    Position,
    ReadOnlyState,
    durable_state,
)
from strandline.durable.metastorage_log import FENCE, VERSION, update_key
from strandline.durable.state import TrimmedAway
from strandline.durable.transaction import new_update
from strandline.durable.update import Change, Entry, Update
from strandline.errors import CorruptData, Fenced, InvalidInput, NotFound, OutOfSync
from strandline.metastorage import Delete, Put
from strandline.model.descriptors import ConfigEntry, SchemaDescriptor, ZoneDescriptor
from tests.conftest import Member


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


def test_looking_at_a_store_changes_nothing(member: Member) -> None:
    openable = member.openable()
    assert not openable.is_initialized()
    assert openable.epoch() is None
    assert openable.deploy_generation() is None
    assert member.store.revision() == 0


@pytest.mark.parametrize("how", ["join", "open_read_only"])
def test_what_is_not_there_cannot_be_joined_or_read(member: Member, how: str) -> None:
    openable = member.openable()
    with pytest.raises(NotFound, match="open it to create one"):
        openable.join(member="m") if how == "join" else openable.open_read_only()
    assert member.store.revision() == 0


def test_a_new_catalog_has_a_fence_then_its_contents(member: Member) -> None:
    state = member.open()
    assert (state.token.epoch, state.recovered[-1].version) == (1, 2)
    assert [u.entries[0].verb for u in state.log.updates(1, 3)] == ["fence", "initialize"]
    assert state.environment is not None
    assert member.fences == [state.token]


def test_each_open_takes_the_next_epoch_and_fences_the_one_before(
    new_member: Callable[[], Member],
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


def test_a_holder_that_only_reads_learns_by_its_next_sync_that_it_is_fenced(
    new_member: Callable[[], Member],
) -> None:
    first = new_member().open()
    second = new_member().open()
    commit(second, "z")
    with pytest.raises(Fenced, match="epoch"):
        first.updates_after(first.recovered[-1])


def test_nothing_that_a_fenced_holder_tries_becomes_durable(
    new_member: Callable[[], Member],
) -> None:
    first = new_member().open()
    transaction = begin(first)
    with transaction.entry("create_zone", {}):
        transaction.put(ZoneDescriptor(transaction.allocate_id()[0], "late", "ann"))
    second = new_member().open()
    with pytest.raises((Fenced, OutOfSync)):
        first.commit_transaction(transaction)
    assert "late" not in zones(second)


def test_an_older_deploy_generation_cannot_open_a_newer_one(
    new_member: Callable[[], Member],
) -> None:
    new_member().open(generation=3)
    with pytest.raises(Fenced, match="generation 2 asked for, 3 holds"):
        new_member().open(generation=2)
    assert new_member().open(generation=4).token.deploy_generation == 4


def test_members_of_one_deployment_share_the_token_and_commit_in_turn(
    new_member: Callable[[], Member],
) -> None:
    opened = new_member().open()
    joined = new_member().join("second")
    assert joined.token == opened.token
    for n in range(5):
        commit(opened if n % 2 else joined, f"z{n}")
    assert zones(opened) == zones(joined) >= {f"z{n}" for n in range(5)}
    authors = {u.member for u in opened.log.updates(3, 8)}
    assert authors == {"opener", "second"}


def test_of_two_transactions_on_one_base_one_commits(new_member: Callable[[], Member]) -> None:
    one, two = new_member().open(), new_member().join()
    late = begin(two)
    with late.entry("create_zone", {}):
        late.put(ZoneDescriptor(late.allocate_id()[0], "late", "ann"))
    commit(one, "early")
    with pytest.raises(OutOfSync):
        two.commit_transaction(late)
    assert zones(two) == {"default", "early"}


def test_a_read_only_state_follows_and_has_no_means_to_write(
    new_member: Callable[[], Member],
) -> None:
    writer = new_member().open()
    reader = new_member().openable().open_read_only()
    commit(writer, "z")
    assert zones(reader) == zones(writer) == {"default", "z"}
    assert not hasattr(reader, "transaction")
    assert not hasattr(reader, "commit_transaction")


def test_a_state_that_starts_from_a_snapshot_equals_one_that_replayed(
    new_member: Callable[[], Member],
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


def test_what_was_recovered_is_taken_once(member: Member) -> None:
    state = member.open()
    assert [applied.version for applied in state.take_recovered()] == [0, 1, 2]
    assert state.recovered == []


def chain(state: DurableCatalogState, *names: str) -> list[CatalogTransaction]:
    """A transaction for each zone, on what the one before it makes."""
    base: Position = latest(state)
    transactions = []
    for name in names:
        transaction = state.transaction(base, author=f"author of {name}")
        with transaction.entry("create_zone", {"zone": name}):
            transaction.put(ZoneDescriptor(transaction.allocate_id()[0], name, "ann"))
        transactions.append(transaction)
        base = transaction
    return transactions


def test_transactions_that_follow_each_other_are_committed_in_one_append(member: Member) -> None:
    state = member.open()
    before = member.store.revision()
    applied = state.commit_transactions(chain(state, "a", "b", "c"))
    assert member.store.revision() == before + 1
    assert [one.version for one in applied] == [3, 4, 5]
    assert [one.update.author for one in applied] == [f"author of {n}" for n in "abc"]
    read = state.updates_after(state.recovered[-1])
    assert [(one.update, one.contents) for one in read] == [
        (one.update, one.contents) for one in applied
    ], "what was committed is what every node reads"


def test_a_commit_that_is_tried_again_is_in_the_log_once(member: Member) -> None:
    state = member.open()
    transactions = chain(state, "a", "b")
    first = state.commit_transactions(transactions)
    assert [one.update for one in state.commit_transactions(transactions)] == [
        one.update for one in first
    ]
    assert zones(state) == {"default", "a", "b"}
    assert latest(state).version == 4


def test_a_transaction_moves_to_a_newer_base_with_what_it_does(
    new_member: Callable[[], Member],
) -> None:
    one, two = new_member().open(), new_member().join()
    (late,) = chain(two, "late")
    silent = begin(one)
    with silent.entry("configure", {}):
        silent.put(ConfigEntry("a", "1"))
    one.commit_transaction(silent)
    with pytest.raises(OutOfSync):
        two.commit_transaction(late)
    two.commit_transaction(late.rebased(latest(two)))
    assert zones(one) == {"default", "late"}


def test_transactions_read_their_own_writes_and_leave_the_base_alone(member: Member) -> None:
    state = member.open()
    transaction = begin(state)
    base = transaction.base.contents
    with transaction.entry("configure", {}):
        transaction.put(ConfigEntry("a", "1"))
        transaction.put(ConfigEntry("a", "2"))
    assert transaction.get_named("config", "a") == ConfigEntry("a", "2")
    assert transaction.base.contents is base
    assert base.get("config", b"a") is None
    assert len(transaction.entries) == 1


def test_an_entry_that_fails_takes_back_what_it_did(member: Member) -> None:
    transaction = begin(member.open())
    before = transaction.contents
    with pytest.raises(InvalidInput), transaction.entry("configure", {}):
        transaction.put(ConfigEntry("a", "1"))
        raise InvalidInput("no")
    assert transaction.contents is before
    assert transaction.entries == []


def test_ids_are_never_given_twice(member: Member) -> None:
    state = member.open()
    transaction = begin(state)
    with transaction.entry("allocate", {}):
        first = transaction.allocate_id(amount=3)
        second = transaction.allocate_id()
        assert list(transaction.allocate_id(amount=0)) == []
    assert second[0] == first[-1] + 1
    with pytest.raises(InvalidInput):
        transaction.allocate_id(amount=10**9)


def test_a_batch_changes_an_allocator_once(member: Member) -> None:
    state = member.open()
    transaction = begin(state)
    for number in range(3):
        with transaction.entry("configure", {}):
            transaction.allocate_id()
            transaction.allocate_id(amount=2)
            transaction.put(ConfigEntry(f"a{number}", "1"))
    update = state.commit_transaction(transaction).update
    kinds = [[change.kind for change in entry.changes] for entry in update.entries]
    assert kinds == [["id_allocator", "id_allocator", "config"], ["config"], ["config"]]
    assert latest(state).contents == transaction.contents


def test_bookkeeping_alone_leaves_no_audit_event(member: Member) -> None:
    state = member.open()
    transaction = begin(state)
    with transaction.entry("configure", {}):
        transaction.put(ConfigEntry("a", "1"))
    update = state.commit_transaction(transaction).update
    assert update.silent
    assert not list(state.log.scan("audit_event", update.version, update.version + 1))


def test_names_are_unique_below_a_parent_without_regard_to_case(member: Member) -> None:
    from strandline.errors import AlreadyExists

    state = member.open()
    transaction = begin(state)
    with transaction.entry("create_schema", {}):
        transaction.put(SchemaDescriptor(100, 1, "Sales", "ann"))
        with pytest.raises(AlreadyExists):
            transaction.put(SchemaDescriptor(101, 1, "sALES", "ann"))
        transaction.put(SchemaDescriptor(102, 2, "sales", "ann"))


# -- what comes between two looks at the log ---------------------------------------------------


class TrimmedMeanwhile(MetastorageLog):
    """A log that somebody trims between the look at its frontier and the read of its updates."""

    def __init__(self, log: MetastorageLog, trim: Callable[[], object]) -> None:
        super().__init__(log._store)
        self._trim: Callable[[], object] | None = trim

    def updates(self, start: int, end: int) -> tuple[Update, ...]:
        trim, self._trim = self._trim, None
        if trim is not None:
            trim()
        return super().updates(start, end)


def trimmed_while_read(new_member: Callable[[], Member]) -> TrimmedMeanwhile:
    member = new_member()
    writer = member.join() if member.openable().is_initialized() else member.open()
    for n in range(5):
        commit(writer, f"z{n}")
    return TrimmedMeanwhile(new_member().log, lambda: writer.compact(7))


def test_joining_while_the_log_is_trimmed_joins_and_takes_no_epoch(
    new_member: Callable[[], Member],
) -> None:
    state = durable_state(trimmed_while_read(new_member)).join(member="late")
    assert zones(state) == {"default", "z0", "z1", "z2", "z3", "z4"}
    assert state.token.epoch == 1


def test_a_state_that_meets_a_trimming_says_so_and_can_begin_again(
    new_member: Callable[[], Member],
) -> None:
    new_member().open()
    reader = ReadOnlyState(new_member().log)
    assert reader.recovered[-1].version == 2
    reader.log = trimmed_while_read(new_member)
    for message in ("earliest in the log is 7", "trimmed to version 7"):
        with pytest.raises(TrimmedAway, match=message):
            reader.updates_after(reader.recovered[-1])
    assert reader.start().version == 7


def test_a_corrupt_record_is_an_error_each_time_and_what_is_before_it_can_be_read(
    new_member: Callable[[], Member],
) -> None:
    writer, follower = new_member().open(), new_member().join()
    commit(writer, "good")
    bad = Entry("create_zone", {}, (Change("zone", b"\0" * 8, b"never there", None),))
    update = new_update(4, [bad], author="ann", member="m")
    writer.log.append(4, writer.token, [update])
    for _ in range(2):
        with pytest.raises(CorruptData, match="does not replace what is there"):
            follower.updates_after(follower.recovered[-1])
    assert [
        applied.version for applied in follower.updates_after(follower.recovered[-1], up_to=3)
    ] == [3]


@pytest.mark.parametrize("how", ["an update", "the snapshot"])
def test_who_was_replaced_by_a_newer_release_learns_that_and_not_that_it_cannot_read(
    new_member: Callable[[], Member], how: str
) -> None:
    old = new_member().open(generation=1)
    new = new_member()
    newer = new.open(generation=2)
    if how == "the snapshot":
        assert newer.compact(latest(newer).version)
    from_the_future = b"\x01\x00\x01\x00\x63"
    commit(newer, "z")
    new.store.invoke([], [Put(update_key(3 if how == "the snapshot" else 4), from_the_future)])
    with pytest.raises(Fenced, match="generation 2"):
        old.start() if how == "the snapshot" else old.updates_after(old.recovered[-1])


# -- creating ----------------------------------------------------------------------------------


def test_a_catalog_is_created_in_one_step(member: Member) -> None:
    state = member.open()
    first, second = state.log.updates(1, 3)
    assert first.time == second.time
    assert member.store.revision() == 1


def test_who_comes_late_to_the_creation_takes_no_epoch(new_member: Callable[[], Member]) -> None:
    first, late = new_member(), new_member()
    state = first.open()
    with pytest.raises(OutOfSync, match="join it"):
        late.openable().create(
            member="late", initialize=lambda _: None, raise_fence=lambda *_: None
        )
    state.confirm_leadership()
    assert late.join().token == state.token


def test_a_catalog_made_between_the_look_and_the_creation_is_left_alone(
    new_member: Callable[[], Member],
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


def test_a_fence_without_versions_is_told_as_damage(new_member: Callable[[], Member]) -> None:
    first, late = new_member(), new_member()
    first.open()
    late.store.invoke([], [Delete(VERSION)])
    with pytest.raises(CorruptData, match="not the first versions"):
        late.join()


def test_a_log_that_lost_its_fence_is_not_taken_for_a_new_one(
    new_member: Callable[[], Member],
) -> None:
    first, late = new_member(), new_member()
    first.open()
    late.store.invoke([], [Delete(FENCE)])
    before = late.store.revision()
    with pytest.raises(CorruptData, match="up to 2 and no fence token"):
        late.openable().create(
            member="late", initialize=lambda _: None, raise_fence=lambda *_: None
        )
    with pytest.raises(CorruptData, match="no fence token"):
        late.open()
    assert late.store.revision() == before
