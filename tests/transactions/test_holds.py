"""Holds and the low watermark."""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NoReturn

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from strandline.clock import (
    MIN_TIMESTAMP,
    Timestamp,
    add_milliseconds,
    milliseconds,
    system_wall_clock,
    timestamp,
)
from strandline.errors import Conflict, DeadlineExceeded, HoldExpired, InvalidInput, VersionNotFound
from strandline.sql import accept_time
from strandline.transactions import Hold
from strandline.transactions.holds import BACKUP, Holds
from tests.sql.statements import recorded
from tests.transactions.stores import START_MS, Store

DAY = 86_400_000
WEEK = 7 * DAY


def ago(ms: int) -> Timestamp:
    return timestamp(START_MS - ms)


def watermark_after(holds: Holds, store: Store) -> Timestamp:
    """Return the low watermark after a hold on the present was acquired and released."""
    holds.release(holds.acquire("reader", "now", at=store.clock.current(), ttl_ms=1).hold_id)
    with store.database.read() as connection:
        time = connection.exec_driver_sql("SELECT time FROM hold_watermark WHERE id = 1").scalar()
    return MIN_TIMESTAMP if time is None else Timestamp(time)


def test_a_hold_is_acquired_renewed_listed_and_released(store: Store) -> None:
    holds = store.transactions.holds
    later = holds.acquire("pin", "release 7", at=ago(DAY), ttl_ms=1000)
    older = holds.acquire("reader", "ann", at=ago(2 * DAY), ttl_ms=1000)
    assert (later.kind, later.owner, later.at) == ("pin", "release 7", ago(DAY))
    assert milliseconds(later.expires) == START_MS + 1000
    assert holds.list() == (older, later)
    renewed = holds.renew(older.hold_id, ttl_ms=5000)
    assert milliseconds(renewed.expires) == START_MS + 5000
    assert holds.list() == (renewed, later)
    holds.release(older.hold_id)
    holds.release(older.hold_id)
    assert holds.list() == (later,)
    with pytest.raises(HoldExpired, match="does not exist"):
        holds.renew(older.hold_id, ttl_ms=5000)


def test_a_hold_waits_for_the_look_of_another_call_no_longer_than_its_timeout(
    store: Store,
) -> None:
    holds = store.transactions.holds
    acquire = partial(holds.acquire, "reader", "ann", at=None, ttl_ms=1000, timeout=0.0)
    with holds._looking, ThreadPoolExecutor(1) as other_thread:
        late = other_thread.submit(acquire).exception()
    assert isinstance(late, DeadlineExceeded)
    assert "nothing was changed" in late.message
    assert holds.acquire("reader", "ann", at=None, ttl_ms=1000, timeout=math.inf).owner == "ann"


def test_an_expired_hold_is_gone_at_once_and_deleted_by_the_next_acquire(store: Store) -> None:
    holds = store.transactions.holds
    hold = holds.acquire("reader", "ann", at=ago(0), ttl_ms=1000)
    store.wall_ms += 1001
    with pytest.raises(HoldExpired, match="'ann' expired"):
        holds.renew(hold.hold_id, ttl_ms=1000)
    assert holds.list() == ()
    assert len(store.contents()["hold"]) == 1
    after = holds.acquire("reader", "bob", at=ago(0), ttl_ms=1000)
    assert [row[0] for row in store.contents()["hold"]] == [after.hold_id]


def test_the_watermark_is_the_earlier_of_the_retention_and_the_oldest_hold(store: Store) -> None:
    holds = store.transactions.holds
    assert milliseconds(watermark_after(holds, store)) == START_MS - WEEK
    hold = holds.acquire("reader", "ann", at=ago(6 * DAY), ttl_ms=10 * DAY)
    holds.acquire("reader", "carl", at=ago(DAY), ttl_ms=10 * DAY)
    store.wall_ms += 3 * DAY
    assert watermark_after(holds, store) == ago(6 * DAY)
    holds.acquire("reader", "bob", at=ago(6 * DAY), ttl_ms=10)
    with pytest.raises(VersionNotFound, match="kept from"):
        holds.acquire("reader", "bob", at=Timestamp(ago(6 * DAY) - 1), ttl_ms=10)
    holds.release(hold.hold_id)
    store.wall_ms += 11
    assert milliseconds(watermark_after(holds, store)) == store.wall_ms - WEEK
    with pytest.raises(VersionNotFound):
        holds.acquire("reader", "bob", at=ago(6 * DAY), ttl_ms=10)


@pytest.mark.parametrize("is_hold", [True, False])
def test_history_is_given_up_only_below_what_a_hold_or_an_open_transaction_needs(
    store: Store, *, is_hold: bool
) -> None:
    holds = store.transactions.holds
    if is_hold:
        needed = holds.acquire("reader", "ann", at=ago(DAY), ttl_ms=10 * WEEK).at
    else:
        needed = store.transactions.get(store.begin()).begin_time
    store.wall_ms += 2 * WEEK
    assert watermark_after(holds, store) == needed
    with pytest.raises(Conflict):
        holds.raise_low_watermark(needed)
    holds.raise_low_watermark(Timestamp(needed - 1))
    assert holds.acquire("reader", "bob", at=needed, ttl_ms=10).at == needed


def test_history_that_was_given_up_is_never_held_again(store: Store) -> None:
    holds = store.transactions.holds
    holds.raise_low_watermark(ago(DAY))
    holds.raise_low_watermark(ago(2 * DAY))
    with pytest.raises(VersionNotFound):
        holds.acquire("reader", "ann", at=Timestamp(ago(DAY) - 1), ttl_ms=10)


def test_cleaning_stops_at_an_open_transaction_even_if_the_watermark_is_past_it(
    store: Store,
) -> None:
    """Release 0.3.0 let it pass."""
    holds = store.transactions.holds
    begun = store.transactions.get(store.begin()).begin_time
    store.wall_ms += DAY
    watermark_after(holds, store)
    with store.database.write() as connection:
        connection.exec_driver_sql(f"UPDATE hold_watermark SET time = {begun + 1} WHERE id = 1")
    assert holds.cleaning_limit() == begun


def test_an_open_transaction_does_not_let_cleaning_pass_an_older_hold(store: Store) -> None:
    holds = store.transactions.holds
    hold = holds.acquire("reader", "ann", at=ago(DAY), ttl_ms=10 * DAY)
    store.begin()
    store.wall_ms += WEEK
    assert holds.cleaning_limit() == holds.cleaning_limit(dry_run=True) == hold.at


def test_nothing_is_cleaned_until_a_backup_ends_or_expires(store: Store) -> None:
    holds = store.transactions.holds
    holds.acquire("reader", "ann", at=None, ttl_ms=10 * DAY)
    for ends in (holds.release, lambda _: setattr(store, "wall_ms", store.wall_ms + 1_001)):
        backup = holds.acquire(BACKUP, "bob", at=None, ttl_ms=1_000)
        assert holds.cleaning_limit() is holds.cleaning_limit(dry_run=True) is None
        ends(backup.hold_id)
        assert holds.cleaning_limit(dry_run=True) is not None
        assert holds.cleaning_limit() is not None


def test_a_longer_retention_or_an_earlier_clock_does_not_lower_the_watermark(
    store: Store,
) -> None:
    given = watermark_after(store.transactions.holds, store)
    longer = Holds(store.database, store.clock, history_retention_ms=lambda: 10 * WEEK)
    store.wall_ms -= DAY
    assert watermark_after(longer, store) == given
    with pytest.raises(VersionNotFound):
        longer.acquire("reader", "ann", at=Timestamp(given - 1), ttl_ms=10)


def test_a_hold_below_the_watermark_is_gone_even_before_its_expiry(
    store: Store,
) -> None:
    """This happens if a time was issued far in the future and the clock was corrected later."""
    holds = store.transactions.holds
    hold = holds.acquire("reader", "ann", at=ago(DAY), ttl_ms=1000)
    with store.database.write() as connection:
        connection.exec_driver_sql(f"UPDATE hold_watermark SET time = {hold.at + 1} WHERE id = 1")
    with pytest.raises(HoldExpired):
        holds.renew(hold.hold_id, ttl_ms=9)
    assert holds.list() == ()


def test_a_hold_outlasts_a_leap_of_the_clock(store: Store) -> None:
    holds = store.transactions.holds
    hold = holds.acquire("reader", "ann", at=ago(2 * WEEK // 3), ttl_ms=3_600_000)
    ended = holds.acquire("reader", "bob", at=None, ttl_ms=1_000)
    forever = holds.acquire("pin", "carl", at=None, ttl_ms=200 * 365 * DAY)
    other = Store(store.address)
    for node in (store, other):
        node.transactions.expire()
        node.wall_ms += 1_200_000
    store.leap(2 * 3_600_000)
    other.transactions.expire()  # it hears of the leap first
    assert holds.renew(hold.hold_id, ttl_ms=2_400_000).at == hold.at
    for node in (store, other):
        node.transactions.expire()
    assert milliseconds(holds.renew(forever.hold_id, ttl_ms=1).expires) == store.wall_ms + 1
    store.wall_ms += 2_399_999
    assert [held.hold_id for held in holds.list()] == [hold.hold_id]
    with pytest.raises(HoldExpired):
        holds.renew(ended.hold_id, ttl_ms=1)
    store.wall_ms += 2
    assert holds.list() == ()
    other.database.close()


@pytest.mark.parametrize("store", ["postgresql"], indirect=True)
def test_a_node_whose_clock_is_ahead_ends_no_hold_of_a_store_on_a_server(store: Store) -> None:
    store.wall_ms = system_wall_clock()
    holds = store.transactions.holds
    hold, of_backup = (
        holds.acquire(kind, "ann", at=None, ttl_ms=600_000) for kind in ("reader", BACKUP)
    )
    ahead = Store(store.address)
    ahead.wall_ms = store.wall_ms + 3_600_000
    assert ahead.transactions.holds.cleaning_limit() is None  # the backup goes on
    own = ahead.transactions.holds.acquire("reader", "bob", at=None, ttl_ms=1)
    with pytest.raises(Conflict, match=f"hold {hold.hold_id} of ann"):
        ahead.transactions.holds.raise_low_watermark(hold.at)
    for node in (ahead, store):
        assert node.transactions.holds.list() == (hold, of_backup, own)
        assert node.transactions.holders().holds == 3
        assert node.transactions.statistics().low_watermark <= hold.at
    assert holds.renew(hold.hold_id, ttl_ms=600_000).at == hold.at
    ahead.database.close()


def give_up_in_vain(holds: Holds) -> None:
    with pytest.raises(Conflict):
        holds.raise_low_watermark(ago(0))


@pytest.mark.parametrize(
    "first_call",
    [
        lambda holds: holds.cleaning_limit(),
        lambda holds: holds.acquire("reader", "bob", at=None, ttl_ms=1),
        give_up_in_vain,
        lambda holds: holds.renew(1, ttl_ms=3_600_000),
    ],
)
def test_a_hold_outlasts_a_leap_whatever_is_called_first_after_it(
    store: Store, first_call: Callable[[Holds], object]
) -> None:
    store.clock.max_ahead_ms = DAY
    holds = store.transactions.holds
    hold = holds.acquire("reader", "ann", at=ago(0), ttl_ms=3_600_000)
    pin = holds.acquire("pin", "carl", at=None, ttl_ms=100 * DAY)
    store.leap(3 * DAY)
    first_call(holds)
    held, pinned, *_ = holds.list()
    assert (held.hold_id, pinned) == (hold.hold_id, pin)
    assert milliseconds(held.expires) == store.wall_ms + 3_600_000


def test_a_hold_waits_for_no_writer_longer_than_its_timeout_also_after_a_leap(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    deadlines: list[object] = []
    write = store.database.write

    def noted(**options: Any) -> Any:  # Any: as in the real method
        deadlines.append(options.get("deadline"))
        return write(**options)

    holds = store.transactions.holds
    holds.acquire("reader", "ann", at=None, ttl_ms=1_000)
    store.leap(DAY)
    monkeypatch.setattr(store.database, "write", noted)
    holds.acquire("reader", "ann", at=None, ttl_ms=1_000, timeout=5.0)
    assert len(deadlines) == 2
    assert len(set(deadlines)) == 1
    assert None not in deadlines


def in_use(store: Store, *, days: int) -> None:
    """Let days pass, with a look at the watermark on each."""
    for _ in range(days):
        store.wall_ms += DAY
        store.transactions.holds.cleaning_limit()


def cleaned_up_to(store: Store) -> int:
    """The limit of cleaning, in milliseconds. A dry run must say the same."""
    said = store.transactions.holds.cleaning_limit(dry_run=True)
    assert said == store.transactions.holds.time_before(WEEK)
    limit = store.transactions.holds.cleaning_limit()
    assert limit is not None
    assert said is not None
    assert milliseconds(said) == milliseconds(limit)
    return milliseconds(limit)


def test_a_leap_of_the_stores_time_ages_no_history(store: Store) -> None:
    """A clock is 40 days ahead: all is kept as long as if it were right, also once it is right."""
    store.clock.max_ahead_ms = DAY
    in_use(store, days=3)
    right = store.wall_ms
    store.wall_ms += 40 * DAY
    assert cleaned_up_to(store) == right - WEEK
    store.transactions.holds.acquire("reader", "ann", at=timestamp(right - WEEK + 1), ttl_ms=1)
    in_use(store, days=6)
    assert cleaned_up_to(store) == right - DAY
    assert milliseconds(store.transactions.holders().low_watermark) == right - DAY
    ahead, store.wall_ms = store.wall_ms, right + 6 * DAY
    with store.database.write() as connection:
        accept_time(connection)
    assert cleaned_up_to(store) == right - DAY
    store.wall_ms = ahead
    in_use(store, days=1)
    assert cleaned_up_to(store) == right + 40 * DAY


def test_a_long_leap_is_remembered_behind_many_short_ones(store: Store) -> None:
    store.clock.max_ahead_ms = DAY
    in_use(store, days=1)
    right = store.wall_ms
    store.wall_ms += 40 * DAY
    for _ in range(7):
        assert cleaned_up_to(store) < right
        store.wall_ms += DAY + 1


def test_of_a_store_that_is_used_once_in_ten_days_the_last_four_leaps_do_not_count(
    store: Store,
) -> None:
    store.clock.max_ahead_ms = DAY
    store.transactions.holds.cleaning_limit()
    uses = [START_MS] * 4
    for _ in range(6):
        uses.append(store.wall_ms)
        store.wall_ms += 10 * DAY
        assert cleaned_up_to(store) == uses[-4] - WEEK


@pytest.mark.parametrize("is_cleaned", [True, False])
def test_a_store_that_is_cleaned_rarely_is_in_use_while_transactions_begin(
    store: Store, is_cleaned: bool
) -> None:
    """Also a store that an older release cleaned, which did not note that it looked."""
    store.clock.max_ahead_ms = DAY
    if is_cleaned:
        store.transactions.holds.cleaning_limit()
    for _ in range(10):
        store.wall_ms += DAY - 1_000
        store.transactions.commit(store.begin())
    right = store.wall_ms
    store.wall_ms += 40 * DAY
    store.transactions.commit(store.begin())
    assert cleaned_up_to(store) == right - WEEK


def test_the_first_cleaning_of_a_store_in_use_counts_all_but_a_day_or_two(store: Store) -> None:
    store.clock.max_ahead_ms = DAY
    for _ in range(10):
        store.wall_ms += DAY - 1_000
        store.transactions.commit(store.begin())
    assert store.wall_ms - 2 * DAY <= cleaned_up_to(store) + WEEK < store.wall_ms


def test_a_retention_that_reaches_before_the_first_timestamp_keeps_everything(store: Store) -> None:
    forever = Holds(store.database, store.clock, history_retention_ms=lambda: 2 * START_MS)
    assert watermark_after(forever, store) == MIN_TIMESTAMP
    assert forever.acquire("pin", "all", at=MIN_TIMESTAMP, ttl_ms=1).at == MIN_TIMESTAMP


@pytest.mark.parametrize("hold_id", [0, 7, 1 << 63])
def test_an_unknown_hold_is_reported_as_expired(store: Store, hold_id: int) -> None:
    def may_touch(_: str) -> NoReturn:
        raise AssertionError

    with pytest.raises(HoldExpired, match=str(hold_id)):
        store.transactions.holds.renew(hold_id, ttl_ms=5, may_touch=may_touch)
    store.transactions.holds.release(hold_id, may_touch=may_touch)


@pytest.mark.parametrize("at", [0, -1, 1 << 63])
def test_a_hold_at_an_invalid_time_is_refused(store: Store, at: int) -> None:
    with pytest.raises(InvalidInput):
        store.transactions.holds.acquire("reader", "ann", at=Timestamp(at), ttl_ms=5)


@pytest.mark.parametrize("text", ["", "a\nb", "x" * 256])
def test_a_kind_or_owner_that_is_not_one_line_of_text_is_refused(store: Store, text: str) -> None:
    holds = store.transactions.holds
    for kind, owner in ((text, "job"), ("reader", text)):
        with pytest.raises(InvalidInput, match="1 to 255 printable characters"):
            holds.acquire(kind, owner, at=ago(0), ttl_ms=1)
    assert holds.list() == ()


@pytest.mark.parametrize("ttl_ms", [0, -5])
def test_a_hold_needs_a_positive_time_to_live(store: Store, ttl_ms: int) -> None:
    holds = store.transactions.holds
    with pytest.raises(InvalidInput):
        holds.acquire("reader", "ann", at=ago(0), ttl_ms=ttl_ms)
    assert holds.list() == ()
    hold = holds.acquire("reader", "ann", at=ago(0), ttl_ms=5)
    with pytest.raises(InvalidInput):
        holds.renew(hold.hold_id, ttl_ms=ttl_ms)
    assert holds.list() == (hold,)


def test_the_oldest_hold_and_a_backup_are_found_by_an_index_however_many_holds_there_are(
    store: Store,
) -> None:
    holds = store.transactions.holds
    hold = holds.acquire("reader", "ann", at=ago(0), ttl_ms=DAY)
    with recorded(of_this_thread=True) as statements:
        holds.acquire("reader", "ann", at=ago(0), ttl_ms=DAY)
        holds.cleaning_limit()
        with pytest.raises(Conflict):
            holds.raise_low_watermark(hold.at)
    reads = [query for query in statements if query[0].startswith("SELECT")]
    searches = [query for query in reads if "FROM hold WHERE" in query[0]]
    assert len(searches) == 4
    explain = "EXPLAIN QUERY PLAN" if store.database.dialect == "sqlite" else "EXPLAIN"
    with store.database.read() as connection:
        if store.database.dialect == "postgresql":  # a small table is read as a whole
            connection.exec_driver_sql("SET LOCAL enable_seqscan = off")
        for statement, parameters in searches:
            plan = connection.exec_driver_sql(f"{explain} {statement}", parameters).all()
            assert "hold_by_time" in str(plan) or "hold_by_kind" in str(plan), plan


@pytest.mark.slow
def test_the_watermark_never_passes_a_live_hold_or_goes_back(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    class HoldsMachine(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            self.store = Store(tmp_path_factory.mktemp("store") / "strandline.db")
            self.holds = self.store.transactions.holds
            self.live: list[Hold] = []
            self.lowest = watermark_after(self.holds, self.store)

        def teardown(self) -> None:
            self.store.database.close()

        @rule(days=st.integers(0, 9), ttl_days=st.integers(1, 9))
        def acquire(self, days: int, ttl_days: int) -> None:
            at = timestamp(self.store.wall_ms - days * DAY)
            below = at < self.lowest
            try:
                hold = self.holds.acquire("pin", "x", at=at, ttl_ms=ttl_days * DAY)
            except VersionNotFound:
                self.lowest = max(self.lowest, watermark_after(self.holds, self.store))
                assert at < self.lowest
            else:
                assert not below
                self.live.append(hold)

        @precondition(lambda self: self.live)
        @rule(data=st.data())
        def release(self, data: st.DataObject) -> None:
            hold = data.draw(st.sampled_from(self.live))
            self.holds.release(hold.hold_id)
            self.live.remove(hold)

        @rule(days=st.integers(-2, 4))
        def pass_time(self, days: int) -> None:
            self.store.wall_ms += days * DAY

        @rule()
        def advance(self) -> None:
            given = watermark_after(self.holds, self.store)
            assert given >= self.lowest
            self.lowest = given
            present = self.store.clock.current()
            self.live = [hold for hold in self.live if hold.expires > present]
            assert all(hold.at >= given for hold in self.live)
            week_ago = add_milliseconds(present, -WEEK)
            assert given <= week_ago

        @invariant()
        def live_holds_are_found(self) -> None:
            present = self.store.clock.current()
            expected = {hold.hold_id for hold in self.live if hold.expires > present}
            assert {hold.hold_id for hold in self.holds.list()} == expected

    HoldsMachine.TestCase.settings = settings(max_examples=15, stateful_step_count=20)
    HoldsMachine.TestCase().runTest()
