"""Lists of valid ids against plain sets, and the texts that Hive writes, as data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from strandline.errors import IllegalChange, InvalidInput
from strandline.transactions import (
    NO_OPEN,
    RangeResponse,
    ValidTxnList,
    ValidTxnWriteIdList,
    ValidWriteIdList,
)

NONE, SOME, ALL = RangeResponse.NONE, RangeResponse.SOME, RangeResponse.ALL
MAX = str(NO_OPEN)
LAST = 9
"""Ids of generated lists are 1 … LAST; questions go a little beyond."""


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


def described(found: ValidWriteIdList) -> Oracle:
    return Oracle(found.hwm, frozenset(found.open_ids), frozenset(found.aborted_ids))


@st.composite
def oracles(draw: st.DrawFn) -> Oracle:
    states = draw(st.lists(st.sampled_from("coa"), max_size=LAST))
    ids = {kind: {w for w, state in enumerate(states, 1) if state == kind} for kind in "oa"}
    return Oracle(len(states), frozenset(ids["o"]), frozenset(ids["a"]))


ids = st.integers(1, LAST + 3)
ranges = st.tuples(st.integers(0, LAST + 3), st.integers(0, LAST + 3)).map(
    lambda pair: (min(pair), max(pair))
)


def measured(first: int, last: int, holds: Callable[[int], bool]) -> RangeResponse:
    found = [holds(w) for w in range(first, last + 1)]
    return ALL if all(found) else SOME if any(found) else NONE


# -- predicates


@given(oracles(), st.integers(-2, LAST + 3))
def test_an_id_is_valid_exactly_when_it_is_committed_or_not_above_zero(
    oracle: Oracle, w: int
) -> None:
    assert oracle.of().valid(w) == oracle.sees(w)
    assert oracle.of().aborted(w) == (w in oracle.aborted)


@given(oracles(), ranges)
def test_ranges_are_answered_as_if_id_by_id(oracle: Oracle, span: tuple[int, int]) -> None:
    assert oracle.of().range_valid(*span) is measured(*span, oracle.sees)
    assert oracle.of().range_aborted(*span) is measured(*span, oracle.aborted.__contains__)


@given(oracles(), st.integers(0, LAST + 3))
def test_a_base_is_valid_when_nothing_up_to_it_is_open_or_unknown(oracle: Oracle, w: int) -> None:
    expected = w <= oracle.hwm and not any(o <= w for o in oracle.opened)
    assert oracle.of().valid_base(w) == expected


def test_a_range_that_runs_backwards_is_refused() -> None:
    with pytest.raises(InvalidInput):
        ValidTxnList.of(9).range_valid(3, 2)


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
def test_worked_examples(
    text: str, predicate: str, arguments: tuple[int, ...], expected: object
) -> None:
    assert getattr(ValidWriteIdList.parse(text), predicate)(*arguments) == expected


def test_a_list_of_millions_with_few_exceptions_answers_from_its_exceptions() -> None:
    million = 10**12
    ours = ValidWriteIdList.of(million, open_ids=[5, million])
    assert ours.range_valid(6, million - 1) is ALL
    assert ours.covers(ValidWriteIdList.of(million - 1, open_ids=[5]))
    assert not ours.covers(ValidWriteIdList.of(million - 1))
    assert ours.commit([5]).compare(ours) == 1


# -- text


@pytest.mark.parametrize(
    "text",
    [
        f"default.t:5:{MAX}::",
        "default.t:12:7:7,12:8",
        f"default.t:12:{MAX}::7,8",
        "t1:5:4:2,4:",  # a smallest open id that is not the smallest one
        "t:6:7::6",  # one above the whole list, as the cut of a derived list leaves it
        "null:3:1:1:",
        f"hive.sales.orders:{MAX}:{MAX}::",
    ],
)
def test_the_text_of_a_table_list_goes_through_unchanged(text: str) -> None:
    assert str(ValidWriteIdList.parse(text)) == text


@pytest.mark.parametrize("text", [f"5:{MAX}::", "12:7:7,12:8", "0:1::", "5:4:2,4:"])
def test_the_text_of_a_transaction_list_goes_through_unchanged(text: str) -> None:
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
def test_fields_missing_at_the_end_hold_no_ids(short: str, whole: str) -> None:
    assert str(ValidWriteIdList.parse(short)) == whole


def test_fields_missing_at_the_end_of_a_transaction_list_hold_no_ids() -> None:
    assert str(ValidTxnList.parse("5:4")) == "5:4::"
    assert str(ValidTxnList.parse("5:4:4")) == "5:4:4:"


@pytest.mark.parametrize(
    "text",
    [
        "",  # a lost list is not "everything is valid"
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
    ],
)
def test_a_text_that_is_no_list_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput):
        ValidWriteIdList.parse(text)


@pytest.mark.parametrize("text", ["", "5", "a.b:5:4:4:", "5:4:4::"])
def test_a_text_that_is_no_transaction_list_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput):
        ValidTxnList.parse(text)


@pytest.mark.parametrize("table", ["", "a:b", "a$b"])
def test_a_table_whose_name_would_break_the_text_is_refused(table: str) -> None:
    with pytest.raises(InvalidInput):
        ValidWriteIdList.of(3).named(table)


@given(oracles())
def test_every_list_reads_back_from_its_text(oracle: Oracle) -> None:
    whole = oracle.of().named("db.t")
    assert ValidWriteIdList.parse(str(whole)) == whole


def test_the_lists_of_a_query_go_through_unchanged_and_are_found_in_any_case() -> None:
    text = f"17$db.a:5:4:4:$db.b:7:{MAX}::"
    parsed = ValidTxnWriteIdList.parse(text)
    assert str(parsed) == text
    assert parsed.txn_id == 17
    found = parsed.of_table("DB.B")
    assert found is not None
    assert found.hwm == 7
    assert parsed.of_table("db.c") is None
    assert ValidTxnWriteIdList.parse("17") == ValidTxnWriteIdList(17)


# -- comparing


@given(oracles(), oracles())
def test_comparisons_agree_with_sets(left: Oracle, right: Oracle) -> None:
    ours, theirs = left.of(), right.of()
    assert ours.equivalent(theirs) == (left.committed == right.committed)
    assert ours.covers(theirs) == (right.committed <= left.committed)
    different = left.committed ^ right.committed
    newer = (min(different) in left.committed) if different else None
    assert ours.compare(theirs) == {None: 0, True: 1, False: -1}[newer]


def test_the_order_is_antisymmetric_where_hive_answers_the_same_both_ways() -> None:
    longer = ValidWriteIdList.of(3, open_ids=[2, 3])
    empty = ValidWriteIdList.of(0)
    assert (longer.compare(empty), empty.compare(longer)) == (1, -1)


@pytest.mark.parametrize(
    ("left", "right", "equal"),
    [
        ((12, (7, 8, 12)), (11, (7, 8)), True),
        ((12, (7, 8, 12)), (12, (7, 12)), False),
        ((14, (7, 8, 12)), (13, (7, 8, 12)), False),
        ((13, (7, 8, 12)), (12, (7, 8)), False),
        ((14, (7, 8, 12, 14)), (13, (7, 8, 12)), True),
    ],
)
def test_equivalence_by_example(
    left: tuple[int, tuple[int, ...]], right: tuple[int, tuple[int, ...]], *, equal: bool
) -> None:
    ours = ValidWriteIdList.of(left[0], open_ids=left[1]).named("DB.t")
    theirs = ValidWriteIdList.of(right[0], aborted=right[1]).named("db.T")
    assert ours.equivalent(theirs) == equal
    assert not ours.equivalent(theirs.named("db.u"))


@given(oracles())
def test_the_canonical_list_sees_the_same_and_ends_committed(oracle: Oracle) -> None:
    least = oracle.of().canonical()
    assert described(least).committed == oracle.committed
    assert least.hwm == max(oracle.committed, default=0)
    assert set(least.aborted_ids) == {w for w in oracle.aborted if w <= least.hwm}


# -- merging


def derived_min_open(oracle: Oracle) -> int:
    return min(oracle.opened, default=NO_OPEN)


@given(oracles(), ids)
def test_opening_an_id_hides_it_and_all_below_it_that_were_not_heard_of(
    oracle: Oracle, w: int
) -> None:
    after = oracle.of().open(w)
    expected = Oracle(
        max(oracle.hwm, w), oracle.opened | set(range(oracle.hwm + 1, w + 1)), oracle.aborted
    )
    assert described(after) == expected
    assert after.min_open == derived_min_open(expected)


@given(oracles(), st.sets(ids))
def test_committing_ids_shows_them(oracle: Oracle, done: set[int]) -> None:
    if done & oracle.aborted or any(w > oracle.hwm for w in done):
        with pytest.raises(IllegalChange):
            oracle.of().commit(done)
        return
    after = oracle.of().commit(done)
    expected = Oracle(oracle.hwm, oracle.opened - done, oracle.aborted)
    assert described(after) == expected
    assert after.min_open == derived_min_open(expected)


@given(oracles(), st.sets(ids))
def test_aborting_ids_changes_nothing_that_is_seen(oracle: Oracle, done: set[int]) -> None:
    if not done <= oracle.opened | oracle.aborted:
        with pytest.raises(IllegalChange):
            oracle.of().abort(done)
        return
    after = oracle.of().abort(done)
    expected = Oracle(oracle.hwm, oracle.opened - done, oracle.aborted | done)
    assert described(after) == expected
    assert after.min_open == derived_min_open(expected)
    assert after.equivalent(oracle.of())


@given(oracles(), ids)
@example(Oracle(2, frozenset(), frozenset()), 5)
def test_ones_own_write_shows_nothing_else(oracle: Oracle, w: int) -> None:
    if w in oracle.aborted:
        with pytest.raises(IllegalChange):
            oracle.of().with_own_write(w)
        return
    after = described(oracle.of().with_own_write(w))
    assert after.committed == oracle.committed | {w}


def test_opening_an_id_lowers_what_a_compacted_base_may_hold() -> None:
    after = ValidWriteIdList.parse(f"t:5:{MAX}::").open(8)
    assert str(after) == "t:8:6:6,7,8:"
    assert not after.valid_base(6)


def test_a_merge_keeps_the_name_of_the_table() -> None:
    assert str(ValidWriteIdList.of(1).named("db.t").open(2)) == "db.t:2:2:2:"


# -- deriving


@given(oracles(), st.integers(0, LAST + 3))
def test_a_transaction_sees_itself_and_what_was_committed_before_it(
    oracle: Oracle, current: int
) -> None:
    found = ValidTxnList.derive(
        oracle.hwm,
        unfinished=sorted(oracle.opened | oracle.aborted),
        aborted=oracle.aborted,
        current=current,
    )
    limit = min(current, oracle.hwm) if current else oracle.hwm
    expected = {w for w in oracle.committed if w <= limit}
    if 0 < current <= oracle.hwm:
        expected.add(current)
    assert {w for w in range(1, LAST + 4) if found.valid(w)} == expected
    assert found.min_open == min(
        (w for w in oracle.opened if w < (current or LAST + 4)), default=NO_OPEN
    )


@given(oracles(), st.permutations(range(1, LAST + 1)), st.integers(0, LAST))
def test_a_table_list_sees_exactly_the_writes_of_visible_transactions(
    oracle: Oracle, order: list[int], count: int
) -> None:
    txns = ValidTxnList.of(oracle.hwm, open_ids=oracle.opened, aborted=oracle.aborted)
    writes = [(txn, w) for w, txn in enumerate(order[:count], 1)]
    found = ValidWriteIdList.derive(
        "db.t", txns=txns, writes=writes, next_write_id=count + 1 if count else None
    )
    expected = {w for txn, w in writes if txns.valid(txn)}
    assert {w for w in range(1, LAST + 4) if found.valid(w)} == expected


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
def test_derived_lists_by_example(
    txns: str, writes: list[tuple[int, int]], following: int | None, expected: str
) -> None:
    found = ValidWriteIdList.derive(
        "t", txns=ValidTxnList.parse(txns), writes=writes, next_write_id=following
    )
    assert str(found) == expected


def test_a_list_cannot_be_changed() -> None:
    whole = ValidWriteIdList.of(3, open_ids=[2])
    with pytest.raises(AttributeError):
        whole.hwm = 4  # type: ignore[misc]  # the point of the test
    assert whole.open(9) is not whole
    assert whole == ValidWriteIdList.of(3, open_ids=[2])
