"""The cache: what it answers, what it leaves to the store, and which failures it survives."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Collection
from contextlib import closing

import pytest

from strandline import work
from strandline.errors import Unavailable
from strandline.metastore.cache import log_applier
from strandline.metastore.cache.log_applier import BATCH, LogApplier
from strandline.metastore.store.notifications import STAGED, LogPosition, Notification
from strandline.metastore.store.rows import DataFile, RowKind, new_file
from strandline.model.partitioning import Partition, PartitionValue
from tests.metastore.dml import (
    CANCELLATIONS,
    FLIGHTS,
    ONLY_PROOF,
    WEATHER,
    Dml,
    data_file,
    files,
    hits,
    names,
    parameters,
    stage,
)

FILES = RowKind.DATA_FILE


def test_a_list_that_is_applied_is_a_hit_even_if_it_is_old(dml: Dml) -> None:
    cache = dml.cached()
    dml.append("a")
    old = dml.transactions.write_ids(FLIGHTS)
    dml.append("b")
    cache.log_applier.catch_up()
    assert files(cache, write_ids=dml.transactions.write_ids(FLIGHTS)) == ["a", "b"]
    assert files(cache, write_ids=old) == ["a"]
    assert hits(cache) == (2, 0)


def test_a_list_beyond_the_applied_events_is_answered_by_the_store(dml: Dml) -> None:
    cache = dml.cached()
    dml.append("a")
    files(cache)
    dml.append("b")
    newer = dml.transactions.write_ids(FLIGHTS)
    assert cache.known_rows(FLIGHTS, FILES, write_ids=newer) is None
    assert files(cache, write_ids=newer) == ["a", "b"]
    assert hits(cache) == (1, 1)
    assert cache.statistics().misses_by_cause == {"behind": 0, "not_held": 0, "other_list": 1}
    cache.log_applier.apply(BATCH)
    known = cache.known_rows(FLIGHTS, FILES, write_ids=newer)
    assert known is not None
    assert names(known) == ["a", "b"]


def test_a_few_large_rows_are_not_read_on_the_event_loop_even_from_memory(dml: Dml) -> None:
    cache = dml.cached()
    dml.append("a" * 50_000)
    files(cache)
    write_ids = dml.transactions.write_ids(FLIGHTS)
    assert cache.known_rows(FLIGHTS, FILES, write_ids=write_ids) is not None
    dml.append("b" * 50_000)
    cache.log_applier.catch_up()
    both = dml.transactions.write_ids(FLIGHTS)
    assert cache.known_rows(FLIGHTS, FILES, write_ids=both) is None
    assert len(cache.rows(FLIGHTS, FILES, write_ids=both)) == 2
    assert cache.statistics().misses == 0


def test_a_reader_of_a_large_table_applies_the_commits_of_its_list_first(dml: Dml) -> None:
    cache = dml.cached()
    dml.append(*(f"{number:04d}" for number in range(work.AT_ONCE)))
    files(cache)
    dml.append("b")  # now the table is large
    cache.log_applier.catch_up()
    dml.append("c")
    newer = dml.transactions.write_ids(FLIGHTS)
    assert files(cache, write_ids=newer)[-2:] == ["b", "c"]
    txn = dml.begin()
    stage(dml.store, txn, FLIGHTS, add=[data_file("d")])
    own = dml.transactions.write_ids(FLIGHTS, txn_id=txn)
    assert files(cache, write_ids=own)[-1] == "d"
    assert hits(cache) == (2, 1)


def in_part(value: int) -> Partition:
    return (PartitionValue(1000, value),)


@pytest.mark.slow
def test_reading_a_partition_of_a_large_table_costs_only_its_own_files(dml: Dml) -> None:
    cache, count = dml.cached(), 3_000
    added = [
        DataFile(file_id=n, path=f"{n:04d}", rows=1, bytes=1, partition=in_part(n % 1_000))
        for n in range(count)
    ]
    txn = dml.begin()
    stage(dml.store, txn, FLIGHTS, add=[new_file(file) for file in added])
    dml.transactions.commit(txn)
    cache.log_applier.catch_up()
    write_ids = dml.transactions.write_ids(FLIGHTS)
    wanted = {in_part(7), in_part(5), in_part(-1)}
    with work.budget(26):  # 6 files, and 1,000 partitions that are checked
        rows = cache.data_files(FLIGHTS, write_ids=write_ids, partitions=wanted)
        with pytest.raises(work.TooLong):
            cache.data_files(FLIGHTS, write_ids=write_ids)
    with work.budget(count // 10):  # listing rows costs less than processing them
        assert len(cache.data_files(FLIGHTS, write_ids=write_ids)) == count
    assert names(rows) == ["0005", "0007", "1005", "1007", "2005", "2007"]
    stored = dml.store.data_files(FLIGHTS, write_ids=write_ids, partitions=wanted)
    assert stored == rows
    assert not any(row.is_decoded() for row in (*rows, *stored))


def test_memory_leaves_out_the_names_that_a_pattern_does_not_match(dml: Dml) -> None:
    """As the database does: so a filter is evaluated for few of a large table's partitions."""
    cache = dml.cached()
    dml.append("", "%", "1", "10", "11", "1=1", "1=1/2=1", "21", "2=12/1=3", "2_1", "2x1", "!%")
    write_ids = dml.transactions.write_ids(FLIGHTS)
    patterns = ["", "%", "%%", "1%", "%1", "1%1", "%1%1%", "%=%2%/%=%", "1"]
    patterns += ["2!_1", "2!_%", "!!!%", "%!%", "3%"]
    for pattern in patterns:
        rows = cache.rows(FLIGHTS, FILES, write_ids=write_ids, like=pattern)
        in_store = dml.store.rows(FLIGHTS, FILES, write_ids=write_ids, like=pattern)
        assert names(rows) == names(in_store), pattern
    rows = cache.rows(FLIGHTS, FILES, write_ids=write_ids, like="2_1")
    assert names(rows) == ["21", "2_1", "2x1"]
    assert hits(cache) == (len(patterns) + 1, 0)
    with work.budget(10), pytest.raises(work.TooLong):
        cache.rows(FLIGHTS, FILES, write_ids=write_ids, like="%" * 200)


def test_a_transaction_reads_its_own_writes_from_the_store(dml: Dml) -> None:
    cache = dml.cached()
    dml.append("a")
    txn = dml.begin()
    stage(dml.store, txn, FLIGHTS, add=[data_file("b")])
    own = dml.transactions.write_ids(FLIGHTS, txn_id=txn)
    assert files(cache, write_ids=own) == ["a", "b"]
    assert files(cache) == ["a"]
    assert hits(cache) == (1, 1)


def test_staged_rows_are_in_memory_and_become_visible_with_the_commit(dml: Dml) -> None:
    cache = dml.cached()
    files(cache)
    txn = dml.begin()
    stage(dml.store, txn, FLIGHTS, add=[data_file("a"), data_file("b")])
    cache.log_applier.catch_up()
    assert cache.statistics().rows == 2
    assert files(cache) == []
    dml.transactions.commit(txn)
    assert files(cache) == ["a", "b"]
    assert cache.statistics().misses == 0


def test_memory_has_the_rows_of_several_changes_that_are_staged_at_once(dml: Dml) -> None:
    cache = dml.cached()
    dml.append("a", "b")
    assert files(cache) == ["a", "b"]
    txn = dml.begin()
    with dml.store.staging(txn, FLIGHTS) as staging:
        old = staging.visible(FILES)
        staging.replace({old["a"].row_id: data_file("c"), old["b"].row_id: data_file("d")})
    dml.transactions.commit(txn)
    assert files(cache) == files(dml.store) == ["c", "d"]
    assert cache.statistics().loads == 1


def test_an_abort_drops_the_rows_of_its_transaction(dml: Dml) -> None:
    cache = dml.cached()
    files(cache)
    txn = dml.begin()
    stage(dml.store, txn, FLIGHTS, add=[data_file("a")])
    cache.log_applier.catch_up()
    dml.transactions.abort(txn)
    cache.log_applier.catch_up()
    assert cache.statistics().rows == 0
    dml.append("b")
    assert files(dml.cached()) == files(cache) == ["b"]


def test_rows_of_aborted_transactions_are_not_loaded(dml: Dml) -> None:
    txn = dml.begin()
    stage(dml.store, txn, FLIGHTS, add=[data_file("a")])
    dml.transactions.abort(txn)
    cache = dml.cached()
    assert files(cache) == []
    assert cache.statistics().rows == 0


def test_removals_of_aborted_transactions_are_not_loaded(dml: Dml) -> None:
    dml.append("a")
    (row,) = dml.store.rows(FLIGHTS, FILES, write_ids=None)
    txn = dml.begin()
    stage(dml.store, txn, FLIGHTS, remove=[row.row_id])
    dml.transactions.abort(txn)
    dml.append("b")
    assert files(dml.cached()) == ["a", "b"]


@pytest.mark.parametrize("verb", STAGED)
def test_a_change_through_the_cache_is_in_memory_when_the_call_returns(dml: Dml, verb: str) -> None:
    cache = dml.cached(staleness=1_000)
    assert files(cache) == []
    with cache.change(FLIGHTS, author="ann") as change:
        change.verb = verb
        change.stage(add=[data_file("a")])
    assert cache.statistics().applied_event == dml.log.head()
    assert files(cache) == ["a"]
    cache.set_parameters(FLIGHTS, (("numRows", "3"),), author="ann")
    assert parameters(cache, FLIGHTS, write_ids=None) == (("numRows", "3"),)
    assert cache.statistics().misses == 0


def test_the_store_answers_if_the_log_cannot_be_read(
    dml: Dml, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = dml.cached(staleness=0)
    files(cache)
    dml.append("a")

    def away(applied: int, *, limit: int) -> None:
        raise Unavailable("the log is away")

    monkeypatch.setattr(dml.log, "read_next", away)
    assert files(cache) == ["a"]
    assert hits(cache) == (1, 1)


def test_what_each_staging_of_a_transaction_removed_is_gone(dml: Dml) -> None:
    cache = dml.cached()
    dml.append("a", "b", "c")
    assert files(cache) == ["a", "b", "c"]
    ids = {row.name: row.row_id for row in dml.store.rows(FLIGHTS, FILES, write_ids=None)}
    txn_id = dml.begin()
    for name in "ab":
        stage(dml.store, txn_id, FLIGHTS, remove=[ids[name]])
        cache.log_applier.catch_up()
    dml.transactions.commit(txn_id)
    assert files(cache) == ["c"]
    assert hits(cache) == (2, 0)


def test_transactions_that_end_one_after_the_other_are_applied_one_by_one(dml: Dml) -> None:
    cache = dml.cached()
    assert files(cache) == []
    txn_ids = [dml.begin() for _ in range(4)]
    for number, txn_id in enumerate(txn_ids):
        stage(dml.store, txn_id, FLIGHTS, add=[data_file(f"{number}")])
    dml.transactions.commit(txn_ids[0])
    dml.transactions.commit(txn_ids[1])
    dml.transactions.abort(txn_ids[2])
    dml.transactions.abort(txn_ids[3])
    assert files(cache) == ["0", "1"]
    assert cache.statistics().rows == 2
    assert hits(cache) == (2, 0)


@ONLY_PROOF
@pytest.mark.parametrize("others", [(), ("b",), ("b", "c")])
def test_rows_that_the_database_has_lost_are_forgotten(
    dml: Dml, caplog: pytest.LogCaptureFixture, others: tuple[str, ...]
) -> None:
    """The next writer gets the write id, and perhaps the event, of the rows that were lost."""
    told: list[str] = []
    cache = dml.cached()
    cache.log_applier._on_set_back = lambda: told.append("set back")
    dml.append("kept")
    dml.put_place(FLIGHTS, "a")
    with (
        closing(sqlite3.connect(dml.folder / "strandline.db")) as live,
        closing(sqlite3.connect(":memory:")) as copy,
    ):
        live.backup(copy)
        dml.append("lost")
        assert files(cache) == ["kept", "lost"]
        cache.locations([FLIGHTS])
        copy.backup(live)
    for name in others:
        dml.append(name)
    write_ids = dml.transactions.write_ids(FLIGHTS)
    assert files(cache) == [*others, "kept"]
    assert told == ["set back"]
    assert cache.known_location(FLIGHTS, version=0) is None
    assert files(cache, write_ids=write_ids) == [*others, "kept"]
    assert "was set back" in caplog.text
    dml.append("d")
    assert files(cache) == [*others, "d", "kept"]
    assert caplog.text.count("was set back") == 1


@ONLY_PROOF
@pytest.mark.parametrize(
    "how",
    ["applied before an outage", "applied before a takeover", "loaded before it was applied"],
)
def test_a_list_is_not_answered_with_lost_rows_of_the_same_write_id(
    dml: Dml, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    cache = dml.cached()
    dml.append("kept")
    cache.log_applier.catch_up()
    with (
        closing(sqlite3.connect(dml.folder / "strandline.db")) as live,
        closing(sqlite3.connect(":memory:")) as copy,
    ):
        live.backup(copy)
        dml.append("lost")
        lost = dml.transactions.write_ids(FLIGHTS)
        assert files(cache, write_ids=lost) == ["kept", "lost"]
        with monkeypatch.context() as patch:
            if how != "loaded before it was applied":
                cache.log_applier.catch_up()
            if how == "applied before an outage":
                patch.setattr(dml.log, "read_next", away)
                with pytest.raises(Unavailable):
                    cache.log_applier.apply(BATCH)
        copy.backup(live)
    dml.append("new")
    if how == "applied before a takeover":
        cache.log_applier.connection_lost()
    if how == "loaded before it was applied":
        cache.log_applier.catch_up()
    now = dml.transactions.write_ids(FLIGHTS)
    assert now == lost
    known = cache.known_rows(FLIGHTS, FILES, write_ids=now)
    assert known is None or names(known) == ["kept", "new"]
    assert files(cache, write_ids=now) == ["kept", "new"]


def away(*_: object, **__: object) -> tuple[LogPosition, list[Notification]]:
    raise Unavailable("the store is away")


@ONLY_PROOF
def test_catching_up_ends_if_the_log_is_set_back_meanwhile(
    dml: Dml, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = dml.cached()
    monkeypatch.setattr(log_applier, "BATCH", 1)
    dml.append("kept")
    assert files(cache) == ["kept"]
    with (
        closing(sqlite3.connect(dml.folder / "strandline.db")) as live,
        closing(sqlite3.connect(":memory:")) as copy,
    ):
        live.backup(copy)
        dml.append("lost")
        read_next, reads = dml.log.read_next, list[int]()

        def meanwhile(applied: int, *, limit: int) -> tuple[LogPosition, list[Notification]]:
            reads.append(applied)
            if len(reads) == 2:
                copy.backup(live)
            assert len(reads) < 100
            return read_next(applied, limit=limit)

        monkeypatch.setattr(dml.log, "read_next", meanwhile)
        cache.log_applier.catch_up()
    assert files(cache) == ["kept"]


@ONLY_PROOF
@pytest.mark.parametrize("failure", [Unavailable("the store is away"), ValueError("a bad row")])
def test_a_committed_change_that_cannot_be_applied_to_memory_raises_no_error(
    dml: Dml,
    failure: Exception,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    cache = dml.cached(staleness=600.0)
    assert parameters(cache, FLIGHTS, write_ids=None) == ()
    before = cache.log_applier.mark()

    def failing(*_: object) -> None:
        raise failure

    with monkeypatch.context() as patch:
        patch.setattr(LogApplier, "_apply_next", failing)
        with cache.change(FLIGHTS, author="ann") as change:
            change.set_parameters((("k", "v"),))
    assert "could not be applied to memory" in caplog.text
    assert parameters(cache, FLIGHTS, write_ids=None) == (("k", "v"),)
    assert cache.log_applier.mark() != before  # so no answer from before the change is reused


@ONLY_PROOF
def test_the_place_of_a_table_is_cached_until_the_table_moves(dml: Dml) -> None:
    cache = dml.cached()
    before = dml.put_place(FLIGHTS, "s.db/a")
    cache.log_applier.catch_up()
    assert cache.known_location(FLIGHTS, version=0) is None
    assert cache.location(FLIGHTS) == before
    assert cache.known_location(FLIGHTS, version=0) == before
    after = dml.put_place(FLIGHTS, "s.db/b")
    assert cache.known_location(FLIGHTS, version=0) is None
    cache.log_applier.catch_up()
    assert cache.known_location(FLIGHTS, version=0) is None
    assert cache.location(FLIGHTS) == after
    assert cache.location(WEATHER) is None


@ONLY_PROOF
def test_a_place_that_a_table_left_while_it_was_read_is_not_cached(
    dml: Dml, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = dml.cached()
    before = dml.put_place(FLIGHTS, "s.db/a")
    cache.log_applier.catch_up()
    read = dml.store.locations

    def overtaken(table_ids: Collection[int]) -> dict[int, str]:
        locations = read(table_ids)
        dml.put_place(FLIGHTS, "s.db/b")
        cache.log_applier.catch_up()
        return locations

    monkeypatch.setattr(dml.store, "locations", overtaken)
    assert cache.location(FLIGHTS) == before
    assert cache.known_location(FLIGHTS, version=0) is None


@ONLY_PROOF
def test_a_place_that_a_table_left_while_it_was_looked_up_is_not_known(
    dml: Dml, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = dml.cached()
    dml.put_place(FLIGHTS, "s.db/a")
    cache.log_applier.catch_up()
    cache.location(FLIGHTS)
    has_projected = cache.log_applier.has_projected

    def overtaken(version: int, *, is_last: bool) -> bool:
        dml.put_place(FLIGHTS, "s.db/b")
        cache.log_applier.catch_up()
        return has_projected(version, is_last=is_last)

    assert cache.known_location(FLIGHTS, version=0) is not None
    monkeypatch.setattr(cache.log_applier, "has_projected", overtaken)
    assert cache.known_location(FLIGHTS, version=0) is None


@ONLY_PROOF
def test_a_cached_place_is_valid_again_after_commits_that_moved_nothing(dml: Dml) -> None:
    cache = dml.cached()
    location = dml.put_place(FLIGHTS, "s.db/a")
    cache.log_applier.catch_up()
    cache.location(FLIGHTS)
    dml.append("a")
    assert cache.known_location(FLIGHTS, version=0) is None
    assert cache.known_location(FLIGHTS, version=0, is_last=True) == location
    assert cache.known_location(FLIGHTS, version=1, is_last=True) is None  # not projected yet
    cache.log_applier.catch_up()
    assert cache.known_location(FLIGHTS, version=0) == location


@ONLY_PROOF
def test_readers_and_writers_in_parallel_never_see_half_a_transaction(dml: Dml) -> None:
    """Each transaction adds one file to both tables; a reader's two lists are of one moment."""
    cache = dml.cached()
    cache.follower.start()
    wrong: list[object] = []
    finished = threading.Event()

    def both() -> None:
        txn = dml.transactions.begin(user="reader", read_only=True).txn_id
        seen = [
            files(cache, t, write_ids=dml.transactions.write_ids(t, txn_id=txn))
            for t in (FLIGHTS, CANCELLATIONS)
        ]
        if seen[0] != seen[1]:
            wrong.append(seen)

    def read() -> None:
        try:
            while not finished.is_set():
                both()
        except Exception as error:
            wrong.append(error)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for number in range(30):
        txn = dml.begin()
        for table_id in (FLIGHTS, CANCELLATIONS):
            stage(dml.store, txn, table_id, add=[data_file(f"{number:03d}")])
        dml.transactions.commit(txn)
    finished.set()
    for reader in readers:
        reader.join()
    cache.follower.stop()
    assert wrong == []
    assert cache.statistics().poisoned == 0
