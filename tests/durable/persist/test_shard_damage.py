"""Damaged or lost bytes of a shard are refused."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress

import pytest

from strandline.durable import Frontier
from strandline.durable.persist import part as part_module
from strandline.durable.persist.part import read_part
from strandline.durable.persist.shard_state import Append, compare_and_append
from strandline.durable.rows import rows_of
from strandline.errors import CorruptData, Fenced, IncompatibleFormat
from strandline.metastorage import Delete, DeleteRange, prefix_end
from tests.durable.persist.conftest import SHARD, Place
from tests.durable.updates import TOKEN, begin, everything, update


@pytest.mark.parametrize("damage", ["gone", "short", "flipped"])
@pytest.mark.parametrize("what", ["part", "rollup"])
def test_a_damaged_blob_is_refused(place: Place, damage: str, what: str) -> None:
    log = place.log()
    begin(log, 9)
    for key in place.blobs():
        file = place.file_of(key)
        if f"-{what}-" not in key:
            continue
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 1
        if damage == "gone":
            file.unlink()
        else:
            file.write_bytes(data if damage == "flipped" else data[:-1])
    expected = "is missing" if damage == "gone" else "bytes with another checksum were written"
    with pytest.raises(CorruptData, match=f"{expected}; .*restore the store from a backup"):
        place.log().updates(1, 4)
    with pytest.raises(CorruptData):
        place.log().compact(4, TOKEN)


def flipped(data: bytes) -> Iterator[bytes]:
    """Copies of ``data`` with one flipped bit each, at a few positions."""
    for position in range(0, len(data), max(len(data) // 8, 1)):
        spoiled = bytearray(data)
        spoiled[position] ^= 1 << position % 7
        yield bytes(spoiled)


@pytest.mark.slow
def test_a_flipped_bit_anywhere_is_refused_or_changes_nothing(place: Place) -> None:
    """In a diff, in the number of the last version, in a rollup and in a part."""
    begin(place.log(), 10)
    assert place.log().compact(3, TOKEN)
    begun = place.log()
    begun.append(11, TOKEN, [update(11)])
    expected = everything(begun)
    rows = sqlite3.connect(place.folder / "consensus.db", isolation_level=None)
    tried, unnoticed = Counter[str](), []

    def look(what: str) -> None:
        tried[what] += 1
        with suppress(CorruptData, IncompatibleFormat):
            if everything(place.log(consensus=place.consensus)) != expected:
                unnoticed.append(what)

    put = "UPDATE metastorage SET {} = ? WHERE key = ?"
    kept = rows.execute("SELECT key, value, time FROM metastorage WHERE key LIKE 'persist.%'")
    for key, value, time in kept.fetchall():
        for column, real, others in (
            ("value", value, flipped(value)),
            ("time", time, (time ^ 1, time ^ 1 << 30)),
        ):
            for spoiled in others:
                rows.execute(put.format(column), (spoiled, key))
                look("diff" if ".at." in key else "last")
            rows.execute(put.format(column), (real, key))
    for key in place.blobs():
        file = place.file_of(key)
        data = file.read_bytes()
        for spoiled in flipped(data):
            file.write_bytes(spoiled)
            look("rollup" if "-rollup-" in key else "part")
        file.write_bytes(data)
    rows.close()
    assert unnoticed == []
    assert min(tried[what] for what in ("diff", "last", "rollup", "part")) > 7
    assert everything(place.log()) == expected


def test_a_log_whose_diffs_are_missing_is_corrupt_and_does_not_block(place: Place) -> None:
    log = place.log(every=1000)
    begin(log, 3)
    place.log(every=1000).append(4, TOKEN, [update(4)])
    place.store.invoke([], [Delete(place.consensus.version_key(SHARD, 4))])
    with pytest.raises(CorruptData, match="from 4 on are missing"):
        log.append(4, TOKEN, [update(4)])


def test_a_log_that_was_emptied_is_empty_for_a_node_that_had_read_it(place: Place) -> None:
    log = place.log(every=1000)
    begin(log, 3)
    place.store.invoke([], [DeleteRange("persist.", prefix_end("persist."))])
    assert log.frontier() == Frontier(0, 1)
    assert log.token() is None
    with pytest.raises(Fenced, match="the log was emptied or replaced"):
        log.append(4, TOKEN, [update(4)])


def test_a_version_without_its_head_is_not_trimmed(place: Place) -> None:
    log = place.log(every=1000)
    begin(log, 1)
    batch = log.shard.inline_batch(2, 3, rows_of(update(2))[1:])
    assert batch is not None
    log.shard.commit(compare_and_append(Append(batch, (), b"writer", b"token", TOKEN, None)))
    log.append(3, TOKEN, [update(3)])
    with pytest.raises(CorruptData, match="version 2 is missing in the log; nothing was trimmed"):
        log.compact(3, TOKEN)
    assert log.frontier().since == 0


def test_a_part_that_is_not_a_parquet_file_is_corrupt() -> None:
    with pytest.raises(CorruptData, match="not a Parquet file"):
        read_part(b"PAR1")
    assert part_module.COLUMNS == ("kind", "key", "value", "version", "time", "diff")
