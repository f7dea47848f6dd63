from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.clock import Timestamp
from strandline.durable import Change, Contents, Entry, Update
from strandline.durable.contents import EMPTY
from strandline.durable.log import snapshot_of
from strandline.durable.rows import (
    UPDATE,
    Row,
    Unordered,
    UpdateHead,
    checksum,
    consolidated,
    is_object,
    rows_of,
    snapshot_of_rows,
    updates_between,
    updates_of,
)
from strandline.durable.transaction import new_update
from strandline.durable.update import AuditEvent
from strandline.errors import CorruptData
from strandline.model.descriptors import ConfigEntry
from strandline.wire.registry import decode, encode
from tests.durable.updates import update

NAMES = ("a", "b", "c")


def record(name: str, value: int) -> bytes:
    return encode(ConfigEntry(name, str(value)))


@st.composite
def histories(draw: st.DrawFn) -> list[Update]:
    """A few consecutive updates, which change few objects often."""
    there: dict[str, bytes] = {}
    updates = []
    for version in range(1, draw(st.integers(1, 5)) + 1):
        entries = []
        for number in range(draw(st.integers(1, 3))):
            changes = []
            for name in draw(st.lists(st.sampled_from(NAMES), max_size=4)):
                old = there.pop(name, None)
                value = draw(st.one_of(st.none(), st.integers(0, 2)))
                new = None if value is None else record(name, value)
                if old is None and new is None:
                    continue
                if new is not None:
                    there[name] = new
                changes.append(Change("config", name.encode(), old, new))
            entries.append(Entry("set", {"n": number}, tuple(changes)))
        made = new_update(version, entries, author="ann", member="m")
        updates.append(made.at(Timestamp(1000 * version)))
    return updates


def contents_of(updates: list[Update]) -> Contents:
    contents = EMPTY
    for logged in updates:
        contents = contents.apply(logged.changes(), at=logged.time)
    return contents


@pytest.mark.slow
@settings(max_examples=30)
@given(history=histories(), seed=st.integers(0, 1000))
def test_rows_in_any_order_give_back_their_updates_and_snapshot(
    history: list[Update], seed: int
) -> None:
    rows = [row for logged in history for row in rows_of(logged)]
    random.Random(seed).shuffle(rows)
    assert list(updates_of(rows)) == history
    last = history[-1]
    expected = snapshot_of(last.version, last.time, contents_of(history))
    left = consolidated(rows)
    assert snapshot_of_rows(last.version, last.time, left) == expected
    assert consolidated(left) == left


@settings(max_examples=15)
@given(history=histories(), at=st.integers(0, 5))
def test_rows_can_be_consolidated_in_two_steps_split_at_any_version(
    history: list[Update], at: int
) -> None:
    rows = [row for logged in history for row in rows_of(logged)]
    first = consolidated(row for row in rows if row.version <= at)
    again = consolidated([*first, *(row for row in rows if row.version > at)])
    assert again == consolidated(rows)


def test_the_time_of_an_update_is_written_into_each_of_its_rows() -> None:
    made = update(3)
    time = Timestamp(77 << 16)
    head, event, *objects = Unordered(made).at(time)
    assert decode(head.value, UpdateHead).time == time
    assert decode(event.value, AuditEvent).time == time
    assert {row.time for row in (head, event, *objects)} == {time}
    assert updates_of([head, *objects]) == (made.at(time),)


def test_a_copied_audit_event_gets_the_time_of_its_new_update() -> None:
    first = Unordered(update(3)).at(Timestamp(5))[1]
    again = replace(update(3), appended=(replace(update(3).appended[0], data=first.value),))
    assert Unordered(again).at(Timestamp(9))[1].value != first.value
    assert decode(Unordered(again).at(Timestamp(9))[1].value, AuditEvent).time == 9


def spoiled(rows: list[Row], how: str) -> list[Row]:
    head, *rest = rows
    objects = [row for row in rest if is_object(row.kind)]
    match how:
        case "no head":
            return rest
        case "two heads":
            return [head, *rows]
        case "head of another version":
            return [head._replace(version=4, key=b"\0" * 7 + b"\4"), *rest]
        case "head at another time":
            return [head._replace(time=Timestamp(1)), *rest]
        case "row lost":
            return [row for row in rows if row is not objects[0]]
        case "row doubled":
            return [*rows, objects[0]]
        case "row of another key":
            return [*(row for row in rows if row is not objects[-1]),
                    objects[-1]._replace(key=b"zz")]  # fmt: skip
        case _:
            return [row if row is not objects[0] else row._replace(diff=1) for row in rows]


@pytest.mark.parametrize(
    "how",
    [
        "no head",
        "two heads",
        "head of another version",
        "head at another time",
        "row lost",
        "row doubled",
        "row of another key",
        "retraction turned",
    ],
)
def test_an_incomplete_version_is_corrupt(how: str) -> None:
    change = Change("config", b"a", record("a", 1), record("a", 2))
    made = new_update(3, [Entry("set", {}, (change,))], author="ann", member="m")
    rows = rows_of(made.at(Timestamp(9)))
    assert len(updates_of(rows)) == 1
    with pytest.raises(CorruptData, match="restore the store from a backup"):
        updates_of(spoiled(rows, how))


def test_a_head_that_cannot_be_decoded_is_named_by_its_version() -> None:
    rows = [
        row._replace(value=row.value[:-1]) if row.kind == UPDATE else row
        for row in rows_of(update(3).at(Timestamp(9)))
    ]
    with pytest.raises(CorruptData, match=r"head of version 3 of the log: .*checksum"):
        updates_of(rows)


@pytest.mark.parametrize("missing", [1, 2, 3])
def test_a_version_without_any_row_is_a_hole(missing: int) -> None:
    updates = [update(version).at(Timestamp(version)) for version in range(1, 4)]
    rows = [row for made in updates if made.version != missing for row in rows_of(made)]
    with pytest.raises(CorruptData, match=f"hole: version {missing} is missing between 1 and 3"):
        updates_between(rows, 1, 4)


@pytest.mark.parametrize("how", ["lost addition", "added twice", "other bytes", "two values"])
def test_rows_that_do_not_add_up_are_corrupt(how: str) -> None:
    old, new = record("a", 1), record("a", 2)
    time = Timestamp(1)
    added, taken = Row("config", b"a", old, 1, time, 1), Row("config", b"a", old, 2, time, -1)
    after = Row("config", b"a", new, 2, time, 1)
    assert consolidated([after, taken, added]) == [after]
    wrong = {
        "lost addition": [taken],
        "added twice": [added, added],
        "other bytes": [added, taken._replace(value=new)],
        "two values": [added, after],
    }[how]
    with pytest.raises(CorruptData, match="do not add up"):
        consolidated(wrong)


def test_a_checksum_covers_every_field_of_a_row() -> None:
    row = Row("config", b"a", b"b", 1, Timestamp(2), 1)
    others = [
        row._replace(kind="confih"),
        row._replace(key=b"", value=b"ab"),
        row._replace(key=b"b"),
        row._replace(value=b"c"),
        row._replace(version=3),
        row._replace(time=Timestamp(3)),
        row._replace(diff=-1),
    ]
    assert len({checksum(variant) for variant in (row, *others)}) == 1 + len(others)


def test_a_change_from_nothing_to_nothing_is_refused() -> None:
    change = Change("config", b"a", None, None)
    with pytest.raises(ValueError, match="from nothing to nothing"):
        rows_of(new_update(1, [Entry("set", {}, (change,))], author="a", member="m"))


def test_heads_and_audit_events_are_not_rows_of_objects() -> None:
    assert not is_object(UPDATE)
    assert not is_object("audit_event")
    assert is_object("config")
