"""Values that were decoded lately are found by their bytes."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from strandline.model.descriptors import SchemaDescriptor
from strandline.wire import Stored, encode
from strandline.wire.stored import MAX_RECORD_BYTES, RECENT, RecentStatistics, RecentValues

SCHEMA = SchemaDescriptor(7, 3, "sales", "ann")


@pytest.fixture(autouse=True)
def nothing_seen() -> Iterator[None]:
    RECENT.forget()
    yield
    RECENT.forget()


def stored(data: bytes) -> Stored[SchemaDescriptor]:
    return Stored(bytes(bytearray(data)), SchemaDescriptor, has_id=True)


def test_equal_bytes_give_the_same_object() -> None:
    data = encode(SCHEMA)
    assert stored(data).value is stored(data).value


def test_what_was_just_written_is_not_decoded_when_the_log_brings_it() -> None:
    written = Stored.of_value(SCHEMA, has_id=True)
    assert stored(written.data).value is SCHEMA


def test_other_bytes_are_other_objects() -> None:
    first, second = stored(encode(SCHEMA)), stored(encode(SchemaDescriptor(7, 3, "sales", "bob")))
    assert (first.value.owner, second.value.owner) == ("ann", "bob")


def test_what_is_used_stays_and_the_rest_is_forgotten() -> None:
    recent = RecentValues(generation_bytes=10)
    recent.add(b"used", 1)
    for number in range(100):
        recent.add(b"%04d" % number, number)
        assert recent.get(b"used") == 1
        assert recent.statistics().bytes <= 20
    assert recent.get(b"0000") is None
    assert recent.get(b"0099") == 99


def test_a_large_record_drives_nothing_out() -> None:
    recent = RecentValues()
    recent.add(b"small", 1)
    recent.add(bytes(MAX_RECORD_BYTES + 1), 2)
    assert recent.statistics() == RecentStatistics(values=1, bytes=5)


def test_adding_twice_counts_once() -> None:
    recent = RecentValues()
    recent.add(b"a", 1)
    recent.add(b"a", 1)
    assert recent.statistics() == RecentStatistics(values=1, bytes=1)


def test_threads_that_add_and_ask_at_once_get_the_right_values() -> None:
    recent = RecentValues(generation_bytes=64)
    wrong: list[object] = []

    def work(first: int) -> None:
        for number in range(first, first + 2000):
            data = number.to_bytes(4, "big")
            recent.add(data, number)
            if recent.get(data) not in (number, None):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(1000 * first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert recent.statistics().bytes <= 128
