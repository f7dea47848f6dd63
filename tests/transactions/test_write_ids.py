"""Lists of valid ids, compared with plain sets and with texts that Hive writes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product
from random import Random
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from strandline.errors import IllegalChange, InvalidInput, LimitExceeded
from strandline.transactions import NO_OPEN, ValidTxnList, ValidWriteIdList
from strandline.transactions.id_lists import MAX_OPENED, MAX_TEXT, RangeResponse

NONE, SOME, ALL = RangeResponse.NONE, RangeResponse.SOME, RangeResponse.ALL
MAX = str(NO_OPEN)
LAST = 9
"""Generated lists have the ids 1 … LAST; tests also ask for ids a little above."""


@dataclass(frozen=True)
class Oracle:
    """The same list as plain sets."""

    hwm: int
    opened: frozenset[int]
    aborted: frozenset[int]

    @property
    def committed(self) -> frozenset[int]:
        return frozenset(range(1, self.hwm + 1)) - self.opened - self.aborted

    def sees(self, w: int) -> bool:
        return w in self.committed or w <= 0

    def of(self) -> ValidWriteIdList:
        return ValidWriteIdList.of(self.hwm, open_ids=self.opened, aborted=self.aborted)


def described(write_ids: ValidWriteIdList) -> Oracle:
    return Oracle(write_ids.hwm, frozenset(write_ids.open_ids), frozenset(write_ids.aborted_ids))


@st.composite
def oracles(draw: st.DrawFn) -> Oracle:
    states = draw(st.lists(st.sampled_from("coa"), max_size=LAST))
    ids = {kind: {w for w, state in enumerate(states, 1) if state == kind} for kind in "oa"}
    return Oracle(len(states), frozenset(ids["o"]), frozenset(ids["a"]))


ids = st.integers(1, LAST + 3)
ranges = st.tuples(st.integers(0, LAST + 3), st.integers(0, LAST + 3)).map(
    lambda pair: (min(pair), max(pair))
)


def every_list(last: int, states: str = "coa") -> list[Oracle]:
    """Return all lists with a high-water mark up to ``last``."""
    return [
        Oracle(
            hwm,
            frozenset(w for w, state in enumerate(combination, 1) if state == "o"),
            frozenset(w for w, state in enumerate(combination, 1) if state == "a"),
        )
        for hwm in range(last + 1)
        for combination in product(states, repeat=hwm)
    ]


def measured(first: int, last: int, holds: Callable[[int], bool]) -> RangeResponse:
    answers = [holds(w) for w in range(first, last + 1)]
    return ALL if all(answers) else SOME if any(answers) else NONE


# -- predicates


@given(oracles(), st.integers(-2, LAST + 3))
def test_an_id_is_valid_exactly_if_it_is_committed_or_not_positive(oracle: Oracle, w: int) -> None:
    assert oracle.of().valid(w) == oracle.sees(w)
    assert oracle.of().aborted(w) == (w in oracle.aborted)


@given(oracles(), ranges)
def test_range_predicates_agree_with_checking_each_id(
    oracle: Oracle, span: tuple[int, int]
) -> None:
    assert oracle.of().range_valid(*span) is measured(*span, oracle.sees)
    assert oracle.of().range_aborted(*span) is measured(*span, oracle.aborted.__contains__)


def test_every_predicate_of_every_small_list_agrees_with_sets() -> None:
    for oracle in every_list(4):
        whole = oracle.of()
        for w in range(-1, 7):
            expected = w <= oracle.hwm and not any(o <= w for o in oracle.opened)
            assert whole.valid_base(w) == expected
            assert whole.valid(w) == oracle.sees(w)
        for first, last in product(range(7), repeat=2):
            if first <= last:
                assert whole.range_valid(first, last) is measured(first, last, oracle.sees)


def test_a_range_that_runs_backwards_is_refused() -> None:
    for whole in (ValidTxnList.of(9), ValidTxnList.of(1)):
        with pytest.raises(InvalidInput):
            whole.range_valid(3, 2)
        with pytest.raises(InvalidInput):
            whole.range_aborted(3, 2)


@pytest.mark.parametrize(
    ("text", "predicate", "arguments", "expected"),
    [
        ("default.t:12:7:7,12:8", "range_valid", (8, 14), SOME),
        ("default.t:12:7:7,12:8", "range_valid", (7, 8), NONE),
        ("default.t:12:7:7,12:8", "range_valid", (9, 11), ALL),
        ("default.t:12:7:7,12:8", "range_valid", (13, 20), NONE),
        ("default.t:12:7:7,12:8", "range_aborted", (7, 8), SOME),
        ("default.t:12:7:7,12:8", "range_aborted", (8, 8), ALL),
        ("default.t:12:7:7,12:8", "range_aborted", (13, 20), NONE),
        ("default.t:12:7:7,12:8", "valid_base", (6,), True),
        ("default.t:12:7:7,12:8", "valid_base", (7,), False),
        (f"default.t:5:{MAX}::", "valid_base", (6,), False),
        (f"default.t:5:{MAX}::4", "valid_base", (5,), True),
        (f"default.t:0:{MAX}::", "valid", (0,), True),
        (f"default.t:0:{MAX}::", "valid", (1,), False),
    ],
)
def test_predicates_give_the_answers_of_worked_examples(
    text: str, predicate: str, arguments: tuple[int, ...], expected: object
) -> None:
    assert getattr(ValidWriteIdList.parse(text), predicate)(*arguments) == expected


def test_a_huge_list_with_few_exceptions_answers_from_its_exceptions() -> None:
    million = 10**12
    ours = ValidWriteIdList.of(million, open_ids=[5, million])
    assert ours.valid(6)
    assert ours.range_valid(6, million - 1) is ALL
    assert ours.covers(ValidWriteIdList.of(million - 1, open_ids=[5]))
    assert not ours.covers(ValidWriteIdList.of(million - 1))
    assert ours.commit([5]).covers(ours)


# -- text


@pytest.mark.parametrize(
    "text",
    [
        f"default.t:5:{MAX}::",
        "default.t:12:7:7,12:8",
        f"default.t:12:{MAX}::7,8",
        "t1:5:4:2,4:",  # a declared smallest open id that is not the smallest
        "t:6:7::6",  # an open id above the list, as the cut of a derived list leaves it
        "null:3:1:1:",
        f"hive.sales.orders:{MAX}:{MAX}::",
    ],
)
def test_the_text_of_a_table_list_is_written_back_unchanged(text: str) -> None:
    assert str(ValidWriteIdList.parse(text)) == text


@pytest.mark.parametrize("text", [f"5:{MAX}::", "12:7:7,12:8", "0:1::", "5:4:2,4:"])
def test_the_text_of_a_transaction_list_is_written_back_unchanged(text: str) -> None:
    assert str(ValidTxnList.parse(text)) == text


@pytest.mark.parametrize(
    ("short", "whole"),
    [
        (f"t:5:{MAX}", f"t:5:{MAX}::"),
        (f"t:5:{MAX}:", f"t:5:{MAX}::"),
        ("t:5:4:4", "t:5:4:4:"),
        ("NULL:5:4:4:", "null:5:4:4:"),
    ],
)
def test_missing_trailing_fields_hold_no_ids(short: str, whole: str) -> None:
    assert str(ValidWriteIdList.parse(short)) == whole


def test_missing_trailing_fields_of_a_transaction_list_hold_no_ids() -> None:
    assert str(ValidTxnList.parse("5:4")) == "5:4::"
    assert str(ValidTxnList.parse("5:4:4")) == "5:4:4:"


@pytest.mark.parametrize(
    "text",
    [
        "",  # a lost list must not mean "everything is valid"
        "t",
        "t:5",
        ":5:4:4:",
        "t:5:4:4::",
        "t:x:4:4:",
        "t:-1:4::",
        "t:5:4:4,:",
        "t:5:4:4,2:",
        "t:5:4:4,4:",
        "t:5:4:4:4",  # open and aborted
        "t:5:4:6:",  # above the high-water mark
        "t:5:4:0,4:",
        "t:5:4:\uff14:",
        f"t:{NO_OPEN + 1}:4::",
        "t:" + "9" * 5000 + ":4::",
        "t:5:4:" + "9" * 5000 + ":",
        "t:5:4:" + "1," * 5000 + ":",
        ":" * 5000,
    ],
)
def test_an_invalid_list_is_refused_with_a_short_message(text: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        ValidWriteIdList.parse(text)
    assert 10 < len(refused.value.message) < 400


@pytest.mark.parametrize("text", ["", "5", "a.b:5:4:4:", "5:4:4::", "t:5"])
def test_an_invalid_transaction_list_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput):
        ValidTxnList.parse(text)


@pytest.mark.parametrize(
    "fields", [{"hwm": -1}, {"hwm": NO_OPEN + 1}, {"hwm": 3, "aborted_ids": (2,)}]
)
def test_ids_that_form_no_list_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        ValidTxnList(**fields)


def test_an_empty_text_is_refused_with_its_own_message() -> None:
    with pytest.raises(InvalidInput, match="empty text"):
        ValidWriteIdList.parse("")


def test_a_text_that_is_too_long_is_refused() -> None:
    text = "t:5:4:" + "," * MAX_TEXT
    with pytest.raises(LimitExceeded, match="at most"):
        ValidWriteIdList.parse(text)


@pytest.mark.slow
def test_a_list_with_100_000_exceptions_is_parsed_written_compared_and_merged() -> None:
    numbers = Random(7).sample(range(1, 10**12), 100_000)
    whole = ValidWriteIdList.of(10**12, open_ids=numbers[:50_000], aborted=numbers[50_000:])
    assert ValidWriteIdList.parse(str(whole)) == whole
    later = whole.commit(numbers[:40_000])
    assert later.covers(whole)
    assert not whole.covers(later)
    assert not later.equivalent(whole)
    assert len(later.abort(numbers[40_000:50_000]).aborted_ids) == 60_000
    pairs = list(enumerate(sorted(numbers), 1))
    derived = ValidWriteIdList.derive(
        None, txns=ValidTxnList.of(100_000), writes=pairs, next_write_id=10**12
    )
    assert derived.canonical() == ValidWriteIdList(hwm=max(numbers))


@pytest.mark.parametrize("table", ["", "a:b", "a$b"])
def test_a_table_name_that_would_break_the_text_is_refused(table: str) -> None:
    with pytest.raises(InvalidInput):
        ValidWriteIdList(hwm=3, table=table)


@given(oracles())
def test_every_list_reads_back_from_its_text(oracle: Oracle) -> None:
    whole = replace(oracle.of(), table="db.t")
    assert ValidWriteIdList.parse(str(whole)) == whole


# -- comparing


@given(oracles(), oracles())
def test_a_list_covers_another_if_it_sees_all_that_the_other_sees(
    left: Oracle, right: Oracle
) -> None:
    ours, theirs = left.of(), right.of()
    assert ours.covers(theirs) == (right.committed <= left.committed)
    assert ours.equivalent(theirs) == (right.committed == left.committed)


def test_comparisons_of_all_pairs_of_small_lists_agree_with_sets() -> None:
    lists = [(oracle.committed, oracle.of()) for oracle in every_list(6, "co")]
    assert len(lists) ** 2 == 16_129
    for (seen, ours), (also_seen, theirs) in product(lists, repeat=2):
        assert ours.sees_same(theirs) == (seen == also_seen)
        assert ours.covers(theirs) == (also_seen <= seen)


@pytest.mark.parametrize(
    ("requested", "cached", "equal"),
    [
        ((12, (7, 8, 12)), (11, (7, 8)), True),
        ((12, (7, 8, 12)), (12, (7, 12)), False),
        ((14, (7, 8, 12)), (13, (7, 8, 12)), False),
        ((13, (7, 8, 12)), (12, (7, 8)), False),
        ((14, (7, 8, 12, 14)), (13, (7, 8, 12)), True),
    ],
)
def test_lists_are_equivalent_if_they_see_the_same_of_one_table(
    requested: tuple[int, tuple[int, ...]], cached: tuple[int, tuple[int, ...]], *, equal: bool
) -> None:
    ours = replace(ValidWriteIdList.of(requested[0], open_ids=requested[1]), table="DB.t")
    theirs = replace(ValidWriteIdList.of(cached[0], aborted=cached[1]), table="db.T")
    assert ours.equivalent(theirs) == equal
    assert not ours.equivalent(replace(theirs, table="db.u"))


@given(oracles())
def test_the_canonical_list_sees_the_same_ids_and_ends_with_a_committed_one(oracle: Oracle) -> None:
    least = oracle.of().canonical()
    assert described(least).committed == oracle.committed
    assert least.hwm == max(oracle.committed, default=0)
    assert set(least.aborted_ids) == {w for w in oracle.aborted if w <= least.hwm}


# -- merging


def derived_min_open(oracle: Oracle) -> int:
    return min(oracle.opened, default=NO_OPEN)


@given(oracles(), ids)
def test_opening_an_id_hides_it_and_all_unknown_ids_below_it(oracle: Oracle, w: int) -> None:
    after = oracle.of().open(w)
    expected = Oracle(
        max(oracle.hwm, w), oracle.opened | set(range(oracle.hwm + 1, w + 1)), oracle.aborted
    )
    assert described(after) == expected
    assert after.min_open == derived_min_open(expected)


@given(oracles(), st.sets(ids))
def test_committing_ids_makes_them_visible(oracle: Oracle, given_ids: set[int]) -> None:
    if given_ids & oracle.aborted or any(w > oracle.hwm for w in given_ids):
        with pytest.raises(IllegalChange):
            oracle.of().commit(given_ids)
        return
    after = oracle.of().commit(given_ids)
    expected = Oracle(oracle.hwm, oracle.opened - given_ids, oracle.aborted)
    assert described(after) == expected
    assert after.min_open == derived_min_open(expected)


@given(oracles(), st.sets(ids))
def test_aborting_ids_does_not_change_what_is_visible(oracle: Oracle, given_ids: set[int]) -> None:
    if not given_ids <= oracle.opened | oracle.aborted:
        with pytest.raises(IllegalChange):
            oracle.of().abort(given_ids)
        return
    after = oracle.of().abort(given_ids)
    expected = Oracle(oracle.hwm, oracle.opened - given_ids, oracle.aborted | given_ids)
    assert described(after) == expected
    assert after.min_open == derived_min_open(expected)
    assert described(after).committed == oracle.committed


@given(oracles(), ids)
@example(Oracle(2, frozenset(), frozenset()), 5)
def test_with_own_write_makes_only_that_write_visible(oracle: Oracle, w: int) -> None:
    if w in oracle.aborted:
        with pytest.raises(IllegalChange):
            oracle.of().with_own_write(w)
        return
    after = described(oracle.of().with_own_write(w))
    assert after.committed == oracle.committed | {w}


def test_opening_an_id_lowers_the_highest_valid_base() -> None:
    after = ValidWriteIdList.parse(f"t:5:{MAX}::").open(8)
    assert str(after) == "t:8:6:6,7,8:"
    assert not after.valid_base(6)


def test_opening_an_id_far_above_the_list_is_refused() -> None:
    with pytest.raises(LimitExceeded, match="read the list again"):
        ValidWriteIdList.of(5).open(MAX_OPENED + 6)
    high = 2 * MAX_OPENED
    assert ValidWriteIdList.of(high).open(high + 1).exceptions == (high + 1,)


def test_the_ids_that_a_list_gained_are_given_up_to_a_limit_also_in_an_old_store() -> None:
    before = ValidWriteIdList.of(1_000_000, open_ids=[999_998])
    after = ValidWriteIdList.of(1_000_002, open_ids=[1_000_001])
    assert after.gained(before, limit=1) == [999_998, 1_000_002]
    assert after.gained(before, limit=0) is None
    assert before.gained(after, limit=9) is None


def test_a_list_without_aborted_ids_shows_them_and_hides_only_open_ones() -> None:
    whole = ValidWriteIdList.of(9, open_ids=[3, 7], aborted=[2, 5])
    assert whole.without_aborted() == ValidWriteIdList.of(9, open_ids=[3, 7])


def test_a_merge_keeps_the_name_of_the_table() -> None:
    assert str(ValidWriteIdList(hwm=1, table="db.t").open(2)) == "db.t:2:2:2:"


# -- deriving


@given(oracles(), st.integers(0, LAST + 3))
def test_a_transaction_sees_itself_and_what_was_committed_before_it(
    oracle: Oracle, current: int
) -> None:
    derived = ValidTxnList.derive(
        oracle.hwm,
        unfinished=sorted(oracle.opened | oracle.aborted),
        aborted=oracle.aborted,
        current=current,
    )
    limit = min(current, oracle.hwm) if current else oracle.hwm
    expected = {w for w in oracle.committed if w <= limit}
    if 0 < current <= oracle.hwm:
        expected.add(current)
    assert {w for w in range(1, LAST + 4) if derived.valid(w)} == expected
    assert derived.min_open == min(
        (w for w in oracle.opened if w < (current or LAST + 4)), default=NO_OPEN
    )


@given(oracles(), st.permutations(range(1, LAST + 1)), st.integers(0, LAST), st.data())
def test_a_table_list_sees_exactly_the_writes_of_visible_transactions(
    oracle: Oracle, order: list[int], count: int, data: st.DataObject
) -> None:
    txns = ValidTxnList.of(oracle.hwm, open_ids=oracle.opened, aborted=oracle.aborted)
    writes = [(txn, w) for w, txn in enumerate(order[:count], 1)]
    following = count + 1 if count else None
    derived = ValidWriteIdList.derive("db.t", txns=txns, writes=writes, next_write_id=following)
    expected = {w for txn, w in writes if txns.valid(txn)}
    assert {w for w in range(1, LAST + 4) if derived.valid(w)} == expected
    # Visible pairs below the highest visible one make no difference.
    lower = sorted(expected)[:-1]
    left_out = data.draw(st.sets(st.sampled_from(lower))) if lower else set()
    fewer = [(txn, w) for txn, w in writes if w not in left_out]
    assert derived == ValidWriteIdList.derive(
        "db.t", txns=txns, writes=fewer, next_write_id=following
    )


@pytest.mark.parametrize(
    ("txns", "writes", "following", "expected"),
    [
        # nothing kept is visible: the list ends at the first hidden id …
        ("9:2:2,3:", [(2, 6), (3, 7)], 8, "t:6:6:6:"),
        # … and keeps the smallest open id from before it was cut
        ("9:3:3:2", [(2, 6), (3, 7)], 8, "t:6:7::6"),
        ("9:3:3:2", [(2, 6), (3, 7), (4, 8)], 9, "t:8:7:7:6"),
        # ids without a pair were purged, as committed
        (f"9:{MAX}::", [], 6, f"t:5:{MAX}::"),
        (f"9:{MAX}::", [], None, f"t:0:{MAX}::"),
        # a transaction above the list is open to it
        (f"4:{MAX}::", [(5, 1), (4, 2)], 3, "t:2:1:1:"),
    ],
)
def test_derived_lists_match_worked_examples(
    txns: str, writes: list[tuple[int, int]], following: int | None, expected: str
) -> None:
    derived = ValidWriteIdList.derive(
        "t", txns=ValidTxnList.parse(txns), writes=writes, next_write_id=following
    )
    assert str(derived) == expected


# -- compacting and cleaning


def test_a_compactor_stops_before_the_first_open_write_and_drops_aborted_ones() -> None:
    for oracle in every_list(5):
        first_open = min(oracle.opened, default=oracle.hwm + 1)
        ids = oracle.of().for_compactor()
        assert ids.hwm == first_open - 1
        assert (
            ids.exceptions
            == ids.aborted_ids
            == tuple(sorted(oracle.aborted & {*range(1, first_open)}))
        )
        for first, last in product(range(1, 7), repeat=2):
            if first <= last:
                assert ids.range_valid(first, last) is (ALL if last < first_open else NONE)
        assert [w for w in range(1, 7) if ids.valid(w)] == [
            w for w in sorted(oracle.committed) if w < first_open
        ]


def test_a_compactor_stops_before_the_first_open_id_even_if_the_text_declares_another() -> None:
    assert ValidWriteIdList.parse("t:6:7:4:").for_compactor().hwm == 3
    assert ValidWriteIdList.parse("t:6:2:4:").for_compactor().hwm == 1
    assert ValidWriteIdList.parse("t:6:0::").for_compactor().hwm == 0


def test_a_cleaner_removes_nothing_above_the_high_water_mark() -> None:
    for oracle in every_list(4):
        for highest in (None, 0, 2, 9):
            ids = oracle.of().for_cleaner(highest=highest)
            end = oracle.hwm if highest is None else min(oracle.hwm, highest)
            assert (ids.hwm, set(ids.aborted_ids)) == (
                end,
                {w for w in oracle.aborted if w <= end},
            )
            for first, last in product(range(1, 6), repeat=2):
                if first <= last:
                    expected = measured(first, last, oracle.sees) if last <= end else NONE
                    assert ids.range_valid(first, last) is expected


def test_the_transaction_of_a_compaction_does_not_see_itself() -> None:
    for oracle in every_list(4):
        for txn_id in range(1, oracle.hwm + 2):
            if txn_id in oracle.aborted:
                continue
            unfinished = sorted(oracle.opened | oracle.aborted)
            txns = ValidTxnList.derive(
                max(oracle.hwm, txn_id),
                unfinished=unfinished,
                aborted=oracle.aborted,
                current=txn_id,
            ).for_compactor(txn_id)
            assert not txns.valid(txn_id)
            assert txn_id in txns.open_ids
            assert {w for w in range(1, 7) if txns.valid(w)} == {
                w for w in oracle.committed if w < txn_id
            }


def test_a_cleaner_stops_before_the_first_open_transaction() -> None:
    for oracle in every_list(4):
        txns = ValidTxnList.of(oracle.hwm, open_ids=oracle.opened, aborted=oracle.aborted)
        ids = txns.for_cleaner()
        assert ids.hwm == min(oracle.opened, default=oracle.hwm + 1) - 1
        assert not ids.open_ids
    with pytest.raises(IllegalChange, match="transaction 2 is open"):
        ValidTxnList.parse("5:4:2,4:").for_cleaner()


def test_a_list_is_immutable() -> None:
    whole = ValidWriteIdList.of(3, open_ids=[2])
    with pytest.raises(AttributeError):
        whole.hwm = 4  # type: ignore[misc]  # the point of the test
    assert whole.open(9) is not whole
    assert whole == ValidWriteIdList.of(3, open_ids=[2])
