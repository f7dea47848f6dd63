"""Lists of valid ids against plain sets, and the texts that Hive writes, as data."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from strandline.errors import IllegalChange, InvalidInput
from strandline.transactions import (
    NO_OPEN,
    ValidWriteIdList,
)

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
# -- predicates


@given(oracles(), st.integers(-2, LAST + 3))
def test_an_id_is_valid_exactly_when_it_is_committed_or_not_above_zero(
    oracle: Oracle, w: int
) -> None:
    assert oracle.of().valid(w) == oracle.sees(w)
    assert oracle.of().aborted(w) == (w in oracle.aborted)


@pytest.mark.parametrize(
    ("text", "predicate", "arguments", "expected"),
    [
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
    assert ours.valid(6)
    assert ours.valid(million - 1)
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
        "t1:5:4:2,4:",  # a smallest open id that is not the smallest one
        "t:6:7::6",  # one above the whole list, as the cut of a derived list leaves it
        "null:3:1:1:",
        f"hive.sales.orders:{MAX}:{MAX}::",
    ],
)
def test_the_text_of_a_table_list_goes_through_unchanged(text: str) -> None:
    assert str(ValidWriteIdList.parse(text)) == text


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


@pytest.mark.parametrize("table", ["", "a:b", "a$b"])
def test_a_table_whose_name_would_break_the_text_is_refused(table: str) -> None:
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
    assert described(after).committed == oracle.committed


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


def test_a_merge_keeps_the_name_of_the_table() -> None:
    assert str(ValidWriteIdList(hwm=1, table="db.t").open(2)) == "db.t:2:2:2:"


def test_a_list_cannot_be_changed() -> None:
    whole = ValidWriteIdList.of(3, open_ids=[2])
    with pytest.raises(AttributeError):
        whole.hwm = 4  # type: ignore[misc]  # the point of the test
    assert whole.open(9) is not whole
    assert whole == ValidWriteIdList.of(3, open_ids=[2])
