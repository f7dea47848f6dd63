"""What every metastorage has to prove: entries, waiting, closing. No test knows its kind."""

from __future__ import annotations

import random
import threading
import time
from concurrent import futures
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import NoReturn

import pytest

from strandline.clock import Timestamp
from strandline.errors import InvalidInput, Stopping
from strandline.metastorage import (
    MAX_KEY_LENGTH,
    MAX_VALUE_BYTES,
    Absent,
    Condition,
    Delete,
    DeleteRange,
    Exists,
    KeyValue,
    LeaseHeld,
    Metastorage,
    Operation,
    Outcome,
    Put,
    PutTimed,
    TimeIs,
    ValueIs,
)
from tests.metastorage.conftest import LONG, MEETING, Place, hears, keys, put

AWHILE = 0.05
"""Seconds in which a waiter would have answered if it could."""

# Reading and writing


def test_an_empty_store_has_revision_0_and_nothing_in_it(store: Metastorage) -> None:
    assert store.revision() == 0
    assert store.check().revision == 0
    assert store.get("a") is None
    assert store.range("", "\x7f") == []
    assert store.invoke([Exists("a")], [Put("a", b"")]) == Outcome(False, 0, Timestamp(0))


def test_a_key_has_the_revision_and_time_of_the_invoke_that_wrote_it(
    store: Metastorage,
) -> None:
    first = store.invoke([], [Put("a", b"1"), Put("b", b"\0\xff")])
    second = put(store, "a", b"2")
    assert (first.succeeded, first.revision, second.revision) == (True, 1, 2)
    assert first.time < second.time
    assert store.get("a") == KeyValue("a", b"2", 2, second.time)
    assert store.get("b") == KeyValue("b", b"\0\xff", 1, first.time)
    assert store.revision() == 2


def with_time(key: str, body: bytes = b"") -> PutTimed:
    return PutTimed(key, lambda time: time.to_bytes(8, "little"), body)


def test_a_value_can_contain_the_time_of_its_own_invoke(store: Metastorage) -> None:
    for number, body in enumerate((b"", b"small", b"x" * 200_000, b"x" * 1_200_000)):
        outcome = store.invoke([], [with_time("a", body), Put(f"k{number}", b"")])
        value = outcome.time.to_bytes(8, "little") + body
        assert store.get("a") == KeyValue("a", value, outcome.revision, outcome.time)
        assert store.invoke([ValueIs("a", value)], []).succeeded
        assert not store.invoke([ValueIs("a", bytes(8) + body)], []).succeeded
    assert store.invoke([Absent("a")], [], [with_time("b")]).succeeded is False
    entry = store.get("b")
    assert entry is not None
    assert entry.value == entry.time.to_bytes(8, "little")


def test_times_in_values_increase_across_nodes(place: Place) -> None:
    nodes = [place.node(), place.node()]
    inside = []
    for number in range(20):
        nodes[number % 2].check()
        nodes[number % 2].invoke([], [with_time("a", b"y" * 100_000 * (number % 3))])
        entry = nodes[1].get("a")
        assert entry is not None
        inside.append(int.from_bytes(entry.value[:8], "little"))
        assert inside[-1] == entry.time
    assert inside == sorted(set(inside))


def test_a_value_with_a_time_is_validated_like_any_other(store: Metastorage) -> None:
    invokes: list[list[Operation]] = [
        [with_time("a"), Put("a", b"")],
        [with_time("")],
        [with_time("a", bytes(MAX_VALUE_BYTES - 7))],
        [with_time("a"), Delete("a")],
    ]
    for refused in invokes:
        with pytest.raises(InvalidInput):
            store.invoke([], refused)
    assert store.revision() == 0


def test_writing_the_same_value_again_is_a_write(store: Metastorage) -> None:
    put(store, "a", b"1")
    assert put(store, "a", b"1").revision == 2


def test_a_range_is_in_byte_order_and_half_open(store: Metastorage) -> None:
    names = ["a", "a.1", "a.10", "a.2", "a/", "aB", "b", "~", "A"]
    store.invoke([], [Put(name, name.encode()) for name in names])
    assert [entry.key for entry in store.range("", "\x7f")] == sorted(names)
    assert [entry.key for entry in store.range("a.1", "a.2")] == ["a.1", "a.10"]
    assert [entry.value for entry in store.range("a.", "a/", limit=2)] == [b"a.1", b"a.10"]
    assert store.range("b", "a") == []
    assert store.range("a", "a") == []


def test_a_range_of_many_keys_is_complete(store: Metastorage) -> None:
    names = [f"k{number:04d}" for number in range(700)]
    for first in range(0, len(names), many := min(store.max_operations, 200)):
        store.invoke([], [Put(name, b"") for name in names[first : first + many]])
    assert keys(store) == names
    assert [entry.key for entry in store.range("k", "l", limit=600)] == names[:600]


def test_deletes_remove_existing_keys_and_no_others(store: Metastorage) -> None:
    store.invoke([], [Put(f"k{n}", b"") for n in (0, 1, 2, 3, 4, 5, 50)])
    outcome = store.invoke([], [Delete("k5"), DeleteRange("k1", "k3"), Put("new", b"")])
    assert (outcome.succeeded, outcome.revision) == (True, 2)
    assert keys(store) == ["k0", "k3", "k4", "k50", "new"]


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        (Exists("a"), True),
        (Exists("b"), False),
        (Absent("a"), False),
        (Absent("b"), True),
        (ValueIs("a", b"1"), True),
        (ValueIs("a", b"2"), False),
        (ValueIs("b", b""), False),
        (ValueIs("empty", b""), True),
        (LeaseHeld("none", 1), False),
    ],
)
def test_a_condition_chooses_the_branch(
    store: Metastorage, condition: Condition, holds: bool
) -> None:
    store.invoke([], [Put("a", b"1"), Put("empty", b"")])
    outcome = store.invoke([condition], [Put("yes", b"")], [Put("no", b"")])
    assert outcome.succeeded is holds
    assert outcome.revision == 2
    assert set(keys(store)) - {"a", "empty"} == {"yes" if holds else "no"}


def test_a_condition_on_a_time_holds_for_the_last_write_of_its_key_alone(
    store: Metastorage,
) -> None:
    first, second = put(store, "a"), put(store, "a")
    for key, at, holds in (("a", second.time, True), ("a", first.time, False), ("b", 0, False)):
        assert store.invoke([TimeIs(key, Timestamp(at))], []).succeeded is holds


def test_all_conditions_must_hold(store: Metastorage) -> None:
    put(store, "a", b"1")
    both: list[Condition] = [Exists("a"), Absent("b")]
    assert store.invoke(both, [Put("b", b"")]).succeeded
    assert not store.invoke(both, [Put("c", b"")]).succeeded
    assert keys(store) == ["a", "b"]


@pytest.mark.parametrize(
    ("conditions", "operations"),
    [
        ([Exists("none")], [Put("b", b"")]),
        ([], []),
        ([], [Delete("none"), DeleteRange("n", "o")]),
        ([], [DeleteRange("b", "a")]),
    ],
)
def test_an_invoke_that_changes_nothing_does_not_change_the_revision(
    store: Metastorage, conditions: list[Condition], operations: list[Operation]
) -> None:
    before = put(store, "a")
    after = store.invoke(conditions, operations)
    assert (after.revision, after.time) == (before.revision, before.time)
    assert store.revision() == 1
    assert put(store, "a").revision == 2


def test_an_invoke_of_many_conditions_and_operations_is_atomic(store: Metastorage) -> None:
    many = min(store.max_operations, 200)
    names = [f"k{number:03d}" for number in range(many)]
    first = store.invoke([Absent(name) for name in names], [Put(name, b"1") for name in names])
    assert (first.succeeded, first.revision) == (True, 1)
    conditions: list[Condition] = [TimeIs(name, first.time) for name in names]
    refused = store.invoke([*conditions[1:], ValueIs(names[0], b"2")], [Delete(n) for n in names])
    assert not refused.succeeded
    assert keys(store) == names
    changed: list[Operation] = [Delete(name) for name in names[::2]]
    changed += [Put(name, b"2") for name in names[1::2]]
    second = store.invoke(conditions, changed)
    assert (second.succeeded, second.revision) == (True, 2)
    left = store.range("k", "l")
    assert [entry.key for entry in left] == names[1::2]
    assert {(entry.value, entry.revision, entry.time) for entry in left} == {(b"2", 2, second.time)}


def test_an_invoke_with_too_many_conditions_or_operations_is_refused(store: Metastorage) -> None:
    too_many = store.max_operations + 1
    for conditions, operations in (
        ([Absent("a")] * too_many, []),
        ([], [Delete("a")] * too_many),
    ):
        with pytest.raises(InvalidInput, match=str(store.max_operations)):
            store.invoke(conditions, operations)
    assert store.revision() == 0


def test_a_write_is_read_by_another_node_at_once(place: Place) -> None:
    first, other = place.node(), place.node()
    for number in range(20):
        outcome = put(first, "a", b"%d" % number)
        assert other.revision() == outcome.revision
        assert other.get("a") == first.get("a")
        assert other.range("a", "b") == first.range("a", "b")


def test_writes_survive_a_restart(place: Place) -> None:
    outcome = put(place.node(), "a", b"1")
    place.close()
    store = place.node()
    assert store.get("a") == KeyValue("a", b"1", 1, outcome.time)
    assert store.revision() == 1
    assert put(store, "b").time > outcome.time


@pytest.mark.slow
def test_a_value_of_twenty_megabytes_is_written_compared_and_deleted_as_one(
    store: Metastorage,
) -> None:
    value = random.Random(0).randbytes(20_000_000)
    put(store, "big", value)
    entry = store.get("big")
    assert entry is not None
    assert entry.value == value
    assert store.invoke([ValueIs("big", value)], [Delete("big")]).succeeded
    assert store.get("big") is None


# Bad input


@pytest.mark.parametrize(
    "operations",
    [
        [Put("", b"")],
        [Put("é", b"")],
        [Put("a\n", b"")],
        [Put("a" * (MAX_KEY_LENGTH + 1), b"")],
        [Put("a", b"x" * (MAX_VALUE_BYTES + 1))],
        [Put("a", b""), Put("b", b""), Put("a", b"")],
        [Put("a", b""), Delete("a")],
        [DeleteRange("a", "c"), Put("b", b"")],
        [Delete("")],
        [DeleteRange("é", "ü")],
        [Put("a", "text")],  # type: ignore[arg-type]  # a caller without type checks may send this
    ],
    ids=lambda operations: type(operations[-1]).__name__,
)
def test_an_invoke_with_an_invalid_operation_is_refused_as_a_whole(
    store: Metastorage, operations: list[Operation]
) -> None:
    put(store, "kept")
    with pytest.raises(InvalidInput):
        store.invoke([], [Put("first", b""), *operations])
    with pytest.raises(InvalidInput):
        store.invoke([Absent("kept")], [], operations)
    assert keys(store) == ["kept"]
    assert store.revision() == 1


def test_other_invalid_arguments_are_refused(store: Metastorage) -> None:
    lease = store.acquire_lease("lead", "me", ttl_ms=1000)
    assert lease is not None
    for call in (
        lambda: store.get(""),
        lambda: store.range("", "é"),
        lambda: store.range("a", "b", limit=0),
        lambda: store.invoke([Exists("é")], []),
        lambda: store.invoke([LeaseHeld("", 1)], []),
        lambda: store.wait_for_change("é", 0, timeout=0),
        lambda: store.acquire_lease("lead", "", ttl_ms=1),
        lambda: store.acquire_lease("lead", "me", ttl_ms=0),
        lambda: store.renew_lease(lease, ttl_ms=-1),
        lambda: store.renew_lease(replace(lease, name="\0"), ttl_ms=1),
        lambda: store.release_lease(replace(lease, name="é\0")),
        lambda: store.acquire_lease("lead", "me", ttl_ms=1 << 62),
        lambda: store.lease("\0"),
    ):
        with pytest.raises(InvalidInput):
            call()


def test_numbers_beyond_64_bits_are_accepted_and_never_match(store: Metastorage) -> None:
    put(store, "a", b"1")
    assert [entry.key for entry in store.range("", "~", limit=1 << 80)] == ["a"]
    assert not store.wait_for_change("", 1 << 80, timeout=0)
    assert not store.wait_for_change("b", -(1 << 80), timeout=0)
    assert not store.invoke([TimeIs("a", Timestamp(1 << 80))], []).succeeded
    assert not store.invoke([LeaseHeld("a", 1 << 80)], []).succeeded


def test_the_longest_key_and_the_empty_value_are_accepted(store: Metastorage) -> None:
    put(store, "~" * MAX_KEY_LENGTH)
    entry = store.get("~" * MAX_KEY_LENGTH)
    assert entry is not None
    assert entry.value == b""


# Waiting


def wait(store: Metastorage, prefix: str, after: int) -> bool:
    """The answer without waiting."""
    return store.wait_for_change(prefix, after, timeout=0)


def test_a_wait_for_a_past_change_returns_at_once(place: Place) -> None:
    store, other = place.node(), place.node()
    store.invoke([], [Put("a.1", b""), Put("a.2", b""), Put("b", b"")])
    put(store, "c")
    for node in (store, other):
        assert wait(node, "a.", 0)
        assert wait(node, "", 1)
        assert wait(node, "c", 1)
        assert not wait(node, "a.", 1)
        assert not wait(node, "c", 2)
        assert not wait(node, "d", 0)
        assert not wait(node, "a.", 99)


@pytest.mark.parametrize("operation", [Delete("a.2"), DeleteRange("a.2", "a.4")])
def test_a_delete_is_a_change_under_its_own_prefix_only(place: Place, operation: Operation) -> None:
    store, other = place.node(), place.node()
    store.invoke([], [Put(key, b"") for key in ("a.1", "a.2", "a.5", "b")])
    store.invoke([], [operation])
    for node in (store, other):
        assert wait(node, "a.", 1)
        assert wait(node, "a.2", 1)
        assert not wait(node, "a.1", 1)
        assert not wait(node, "a.3", 1)
        assert not wait(node, "a.", 2)
    put(store, "a.2")
    assert wait(other, "a.2", 2)


def test_a_waiter_is_woken_only_by_changes_under_its_prefix(place: Place) -> None:
    store, other = place.node(), place.node()
    for writer in (store, other):
        seen = store.revision()
        with ThreadPoolExecutor(1) as threads:
            waiting = threads.submit(hears, store, "a", seen)
            put(writer, "b")
            put(writer, "c")
            assert not futures.wait([waiting], timeout=AWHILE).done
            put(writer, "a")
            assert waiting.result()


def test_a_wait_ends_at_its_timeout(store: Metastorage) -> None:
    began = time.monotonic()
    assert not store.wait_for_change("a", 0, timeout=0.02)
    assert time.monotonic() - began >= 0.02


def test_a_follower_sees_every_state_that_lasts_until_it_reads(place: Place) -> None:
    writer, follower = place.node(), place.node()
    rounds = 100
    turn = threading.Barrier(2)

    def write() -> None:
        for number in range(rounds):
            turn.wait(MEETING)
            change = Delete("state") if number % 3 == 2 else Put("state", b"%d" % number)
            writer.invoke([], [change])

    states = []
    with ThreadPoolExecutor(1) as threads:
        writing = threads.submit(write)
        try:
            for _ in range(rounds):
                seen = follower.revision()
                turn.wait(MEETING)
                assert hears(follower, "state", seen)
                entry = follower.get("state")
                states.append(b"none" if entry is None else entry.value)
        except AssertionError:
            turn.abort()  # the writer would wait for the next turn
            raise
        writing.result()
    assert states == [b"none" if n % 3 == 2 else b"%d" % n for n in range(rounds)]


# Ends and counts


def test_a_closed_store_refuses_calls_and_ends_waits(place: Place) -> None:
    store, other = place.node(), place.node()
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(store.wait_for_change, "a", 0, timeout=LONG)
        put(other, "b")
        assert not futures.wait([waiting], timeout=AWHILE).done
        store.close()
        assert futures.wait([waiting], timeout=LONG / 2).done
        assert isinstance(waiting.exception(), Stopping)
    store.close()
    for call in (store.revision, store.check, lambda: store.get("a"), lambda: put(store, "a")):
        with pytest.raises(Stopping):
            call()
    assert keys(other) == ["b"]


def test_a_store_whose_thread_could_not_be_started_waits_at_the_next_try_and_can_be_closed(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, other = place.node(), place.node()

    def refuse(_: threading.Thread) -> NoReturn:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch, suppress(RuntimeError):  # a file needs no thread
        patch.setattr(threading.Thread, "start", refuse)
        store.wait_for_change("a", 0, timeout=0)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(hears, store, "a", 0)
        put(other, "a")
        assert waiting.result()
    store.close()


def test_statistics_count_the_calls(store: Metastorage) -> None:
    put(store, "a")
    store.invoke([Absent("a")], [])
    assert [store.revision() for _ in range(5)] == [1] * 5
    counted = store.statistics()
    assert (counted.invokes, counted.refused) == (2, 1)
    assert counted.revision_reads <= 5
