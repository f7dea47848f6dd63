"""How the durable state handles trims, damage and newer records in a log on a metastorage."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from strandline.durable import MetastorageLog, ReadOnlyState, durable_state
from strandline.durable.metastorage_log import FENCE, VERSION, update_key
from strandline.durable.state import TrimmedAway
from strandline.durable.update import Update
from strandline.errors import CorruptData, Fenced
from strandline.metastorage import Delete, Put
from tests.conftest import Member
from tests.durable.test_state import LEARNING, begin, commit, latest, zones


class TrimmedMeanwhile(MetastorageLog):
    """A log that is trimmed between the read of its frontier and the read of its updates."""

    def __init__(self, log: MetastorageLog, trim: Callable[[], object]) -> None:
        super().__init__(log._store)
        self._trim: Callable[[], object] | None = trim

    def updates(self, start: int, end: int) -> tuple[Update, ...]:
        trim, self._trim = self._trim, None
        if trim is not None:
            trim()
        return super().updates(start, end)


def trimmed_while_read(new_store_member: Callable[[], Member]) -> TrimmedMeanwhile:
    member = new_store_member()
    writer = member.join() if member.openable().is_initialized() else member.open()
    for n in range(5):
        commit(writer, f"z{n}")
    return TrimmedMeanwhile(new_store_member().log, lambda: writer.compact(7))


def test_a_join_during_a_trim_succeeds_and_takes_no_epoch(
    new_store_member: Callable[[], Member],
) -> None:
    state = durable_state(trimmed_while_read(new_store_member)).join(member="late")
    assert zones(state) == {"default", "z0", "z1", "z2", "z3", "z4"}
    assert state.token.epoch == 1


def test_a_reader_overtaken_by_a_trim_raises_trimmed_away_and_can_restart(
    new_store_member: Callable[[], Member],
) -> None:
    new_store_member().open()
    reader = ReadOnlyState(new_store_member().log)
    assert reader.recovered[-1].version == 2
    reader.log = trimmed_while_read(new_store_member)
    for message in ("no longer in the log; the earliest is 7", "trimmed below version 7"):
        with pytest.raises(TrimmedAway, match=message):
            reader.updates_after(reader.recovered[-1])
    assert reader.start().version == 7


@pytest.mark.parametrize("how", ["an update", "the snapshot"])
def test_a_node_replaced_by_a_newer_release_is_fenced_before_it_reads_newer_records(
    new_store_member: Callable[[], Member], how: str
) -> None:
    old = new_store_member().open(generation=1)
    new = new_store_member()
    newer = new.open(generation=2)
    if how == "the snapshot":
        assert newer.compact(latest(newer).version)
    from_the_future = b"\x01\x00\x01\x00\x63"
    commit(newer, "z")
    new.store.invoke([], [Put(update_key(3 if how == "the snapshot" else 4), from_the_future)])
    by_whom = ", which opener took at " if how == "an update" else "$"
    with pytest.raises(Fenced, match=f"generation 2, epoch 2{by_whom}"):
        old.start() if how == "the snapshot" else old.updates_after(old.recovered[-1])


def test_a_fence_without_versions_is_corrupt(new_store_member: Callable[[], Member]) -> None:
    first, late = new_store_member(), new_store_member()
    first.open()
    late.store.invoke([], [Delete(VERSION)])
    with pytest.raises(CorruptData, match="not the first versions"):
        late.join()


def test_a_log_without_its_fence_token_is_not_taken_for_an_empty_one(
    new_store_member: Callable[[], Member],
) -> None:
    first, late = new_store_member(), new_store_member()
    first.open()
    late.store.invoke([], [Delete(FENCE)])
    before = late.store.revision()
    with pytest.raises(CorruptData, match="up to 2 but no fence token"):
        late.openable().create(
            member="late", initialize=lambda _: None, raise_fence=lambda *_: None
        )
    with pytest.raises(CorruptData, match="no fence token"):
        late.open()
    assert late.store.revision() == before


@pytest.mark.parametrize("learning", ["commit", "confirm", "compact"])
def test_a_holder_whose_log_was_emptied_is_told_to_restore_it(
    new_store_member: Callable[[], Member], learning: str
) -> None:
    holder, store = new_store_member().open(), new_store_member().store
    transaction = begin(holder)
    keys = [key_value.key for key_value in store.range("", "~")]
    assert update_key(2) in keys
    store.invoke([], [Delete(key) for key in keys])
    lost = "the log of the catalog has none: the log was emptied.* Restore it from a backup"
    with pytest.raises(Fenced, match=lost):
        LEARNING[learning](holder, transaction)
