"""What every consensus promises, on each metastorage."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from strandline.clock import HybridClock
from strandline.durable.persist.consensus import MAX_SEQNO, Consensus, Timed, VersionedData
from strandline.errors import CorruptData, InvalidInput
from strandline.metastorage import Delete, Metastorage, Put
from tests.durable.updates import RacedStore
from tests.metastorage.stores import STORES

KEY, OTHER = "s0001", "s0002"


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Metastorage]:
    kind = STORES[request.param]
    with kind.open(kind.create(tmp_path), HybridClock()) as opened:
        yield opened


@pytest.fixture
def consensus(store: Metastorage) -> Consensus:
    return Consensus(store)


def numbers(versions: list[VersionedData]) -> list[int]:
    return [version.seqno for version in versions]


def fill(consensus: Consensus, *seqnos: int) -> None:
    last = None
    for seqno in seqnos:
        assert consensus.compare_and_set(KEY, last, seqno, b"%d" % seqno)
        last = seqno


def test_a_key_that_was_never_set_has_no_version(consensus: Consensus) -> None:
    assert consensus.head(KEY) is None
    assert consensus.scan(KEY, 0) == []
    with pytest.raises(InvalidInput, match="its latest version is none"):
        consensus.truncate(KEY, 0)
    assert consensus.compare_and_set(KEY, 0, 1, b"x") is None
    assert consensus.head(KEY) is None


def test_compare_and_set_requires_the_expected_version_to_be_the_last(
    consensus: Consensus,
) -> None:
    assert consensus.compare_and_set(KEY, None, 5, b"five")
    for expected in (None, 4, 6):
        assert consensus.compare_and_set(KEY, expected, 7, b"no") is None
    head = consensus.head(KEY)
    assert head is not None
    assert head[:2] == (5, b"five")
    assert consensus.compare_and_set(KEY, 5, 10, b"ten")
    assert consensus.compare_and_set(KEY, 5, 11, b"late") is None
    assert [version[:2] for version in consensus.scan(KEY, 0)] == [(5, b"five"), (10, b"ten")]


def test_an_expected_version_that_was_written_at_another_time_is_another_one(
    consensus: Consensus,
) -> None:
    first = consensus.compare_and_set(KEY, None, 1, b"1")
    second = consensus.compare_and_set(KEY, 1, 2, b"2")
    assert first is not None
    assert second is not None
    assert consensus.compare_and_set(KEY, 2, 3, b"3", expected_time=first.time) is None
    assert consensus.compare_and_set(KEY, 2, 3, b"3", expected_time=second.time)


@pytest.mark.parametrize("seqno", [5, 4, 0])
def test_a_version_not_greater_than_the_expected_one_is_refused(
    consensus: Consensus, seqno: int
) -> None:
    fill(consensus, 5)
    for expected in (5, 9):
        with pytest.raises(InvalidInput, match="must be greater"):
            consensus.compare_and_set(KEY, expected, seqno, b"x")
    assert numbers(consensus.scan(KEY, 0)) == [5]


def test_versions_range_from_0_to_the_largest_63_bit_number(consensus: Consensus) -> None:
    for seqno in (-1, MAX_SEQNO + 1, (1 << 64) - 1):
        with pytest.raises(InvalidInput):
            consensus.compare_and_set(KEY, None, seqno, b"x")
    assert consensus.compare_and_set(KEY, None, 0, b"first")
    assert consensus.compare_and_set(KEY, 0, MAX_SEQNO, b"last")
    assert consensus.compare_and_set(OTHER, None, MAX_SEQNO, b"only")
    assert numbers(consensus.scan(KEY, 0)) == [0, MAX_SEQNO]
    assert numbers(consensus.scan(KEY, MAX_SEQNO)) == [MAX_SEQNO]


def test_a_scan_begins_at_its_start(consensus: Consensus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strandline.durable.persist.consensus.SCANNED_AT_ONCE", 2)
    fill(consensus, 1, 2, 5, 6, 7)
    assert numbers(consensus.scan(KEY, 0)) == [1, 2, 5, 6, 7]
    assert numbers(consensus.scan(KEY, 3)) == [5, 6, 7]
    assert numbers(consensus.scan(KEY, 7)) == [7]
    assert consensus.scan(KEY, 8) == []


def test_truncate_removes_lower_versions_and_never_the_last(
    consensus: Consensus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strandline.durable.persist.consensus.SCANNED_AT_ONCE", 2)
    fill(consensus, 1, 2, 3, 6, 9)
    for seqno in (0, 1):
        consensus.truncate(KEY, seqno)
        assert numbers(consensus.scan(KEY, 0)) == [1, 2, 3, 6, 9]
    for _ in range(2):
        consensus.truncate(KEY, 6)
        assert numbers(consensus.scan(KEY, 0)) == [6, 9]
    with pytest.raises(InvalidInput, match="its latest version is 9"):
        consensus.truncate(KEY, 10)
    assert numbers(consensus.scan(KEY, 0)) == [6, 9]
    consensus.truncate(KEY, 9)
    assert numbers(consensus.scan(KEY, 0)) == [9]
    head = consensus.head(KEY)
    assert head is not None
    assert head.seqno == 9


def test_keys_are_independent(consensus: Consensus) -> None:
    fill(consensus, 1, 2)
    assert consensus.compare_and_set(OTHER, 2, 3, b"x") is None
    assert consensus.compare_and_set(OTHER, None, 7, bytes(10_000))
    assert consensus.compare_and_set(KEY, 7, 8, b"x") is None
    consensus.truncate(KEY, 2)
    assert [version.data for version in consensus.scan(OTHER, 0)] == [bytes(10_000)]
    with pytest.raises(InvalidInput, match="letters, digits"):
        consensus.head("a.b")


def test_times_increase_and_are_written_into_timed_data(consensus: Consensus) -> None:
    before = consensus.check().time
    timed = Timed(lambda time: time.to_bytes(8, "big"), b" is the time")
    first = consensus.compare_and_set(KEY, None, 1, timed)
    second = consensus.compare_and_set(KEY, 1, 2, b"x")
    assert first is not None
    assert second is not None
    assert before < first.time < second.time
    assert first.revision < second.revision == consensus.revision()
    version = consensus.scan(KEY, 1)[0]
    assert version.time == first.time
    assert version.data == first.time.to_bytes(8, "big") + b" is the time"


def test_a_wait_ends_when_its_key_changes(consensus: Consensus) -> None:
    fill(consensus, 1)
    seen = consensus.revision()
    assert not consensus.wait(KEY, seen, timeout=0)
    consensus.compare_and_set(OTHER, None, 1, b"x")
    assert not consensus.wait(KEY, seen, timeout=0)
    consensus.compare_and_set(KEY, 1, 2, b"x")
    assert consensus.wait(KEY, seen, timeout=60)


def test_a_head_that_is_truncated_while_it_is_read_is_read_again(
    consensus: Consensus, store: Metastorage
) -> None:
    fill(consensus, 1)

    def go_on() -> None:
        consensus.compare_and_set(KEY, 1, 2, b"2")
        consensus.truncate(KEY, 2)

    raced: Any = RacedStore(store, go_on, method="get", call=2)
    head = Consensus(raced).head(KEY)
    assert head is not None
    assert head[:2] == (2, b"2")


def test_only_one_of_several_writers_that_expect_the_same_version_succeeds(
    consensus: Consensus,
) -> None:
    fill(consensus, 1)
    names = [b"%d" % n for n in range(4)]
    with ThreadPoolExecutor(4) as threads:
        committed = threads.map(lambda name: consensus.compare_and_set(KEY, 1, 2, name), names)
        won = [name for name, made in zip(names, committed, strict=True) if made]
    assert [version.data for version in consensus.scan(KEY, 2)] == won


def test_a_missing_last_version_or_an_invalid_head_number_is_corrupt(
    consensus: Consensus, store: Metastorage
) -> None:
    fill(consensus, 1, 2)
    store.invoke([], [Delete(consensus.version_key(KEY, 2))])
    with pytest.raises(
        CorruptData, match="version 2 of s0001 is its latest version and is missing"
    ):
        consensus.head(KEY)
    store.invoke([], [Put(consensus.head_key(KEY), b"2")])
    with pytest.raises(CorruptData, match="not a number of 20 digits"):
        consensus.head(KEY)
