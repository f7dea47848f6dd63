"""What a node keeps in its cache, and which tables are too large for it."""

from __future__ import annotations

import pytest

from strandline.errors import VersionNotFound
from strandline.metastore.cache import cached_store, log_applier, replica_set
from strandline.metastore.store import table_contents
from strandline.metastore.store.object_store import SqlObjectStore
from strandline.metastore.store.row_queries import delete_rows
from strandline.metastore.store.rows import RowKind
from tests.metastore.dml import (
    CANCELLATIONS,
    FLIGHTS,
    WEATHER,
    Dml,
    data_file,
    files,
    hits,
    names,
    stage,
)

FILES = RowKind.DATA_FILE


def test_memory_is_bounded_and_the_least_recently_used_table_is_evicted(dml: Dml) -> None:
    for table_id in (FLIGHTS, CANCELLATIONS, WEATHER):
        dml.append("a", "b", table_id=table_id)
    cache = dml.cached(memory_bytes=8_000)
    for table_id in (FLIGHTS, CANCELLATIONS, FLIGHTS, WEATHER):
        assert files(cache, table_id) == ["a", "b"]
        assert cache.statistics().size <= 8_000
    assert cache.statistics().evictions == 1
    loads = cache.statistics().loads
    files(cache, FLIGHTS)
    assert cache.statistics().loads == loads
    files(cache, CANCELLATIONS)
    assert cache.statistics().loads == loads + 1


def test_memory_counts_the_bytes_of_names_and_bodies(dml: Dml) -> None:
    cache = dml.cached()
    dml.append("x" * 4_000)  # the body has the name too
    files(cache)
    assert cache.statistics().size > 4 * 4_000


def test_a_table_that_is_too_large_is_answered_by_the_store(dml: Dml) -> None:
    dml.append(*(f"{number:04d}" for number in range(200)))
    cache = dml.cached(memory_bytes=20_000)
    for _ in range(3):
        assert len(files(cache)) == 200
    assert hits(cache) == (0, 3)
    assert cache.statistics().loads == 0


def test_a_table_that_outgrows_memory_is_evicted(dml: Dml) -> None:
    cache = dml.cached(memory_bytes=20_000)
    assert files(cache) == []
    dml.append(*(f"{number:04d}" for number in range(200)))
    assert len(files(cache)) == 200
    statistics = cache.statistics()
    assert (statistics.replicas, statistics.rows, statistics.size) == (0, 0, 0)


def replace_files(dml: Dml, *, minutes: int) -> None:
    """Replace all ten files of a table once a minute."""
    for minute in range(minutes):
        dml.wall_ms += 60_000
        txn_id = dml.begin()
        old = dml.store.rows(FLIGHTS, FILES, write_ids=None)
        new = [data_file(f"{minute}.{number}") for number in range(10)]
        stage(dml.store, txn_id, FLIGHTS, add=new, remove=[row.row_id for row in old])
        dml.transactions.commit(txn_id)


@pytest.mark.slow
def test_a_table_whose_rows_are_replaced_stays_in_memory_without_those_removed_long_ago(
    dml: Dml, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (cached_store, replica_set):
        monkeypatch.setattr(module, "MAX_ROWS", 200)
    cache = dml.cached()
    replace_files(dml, minutes=15)
    lists = [dml.transactions.write_ids(FLIGHTS)]
    assert len(files(cache)) == 10
    for _ in range(3):  # it outgrows the memory, and is loaded again
        replace_files(dml, minutes=15)
        lists.append(dml.transactions.write_ids(FLIGHTS))
        assert len(files(cache)) == 10
    assert cache.statistics().replicas == 1
    assert cache.statistics().rows <= 200
    before = hits(cache)
    assert files(cache, write_ids=lists[-1]) == files(dml.store, write_ids=lists[-1])
    assert hits(cache) == (before[0] + 1, before[1])
    for old in lists[:-1]:  # the store still has the rows
        assert files(cache, write_ids=old) == files(dml.store, write_ids=old)
    assert hits(cache) == (before[0] + 1, before[1] + 3)


def test_memory_has_the_rows_removed_just_now_unless_they_may_have_been_cleaned(
    dml: Dml, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (cached_store, replica_set):
        monkeypatch.setattr(module, "MAX_ROWS", 80)
    monkeypatch.setattr(table_contents, "RECENT_MS", 120_000)
    for number in range(20):  # the same write ids, long ago
        dml.append(f"{number}", table_id=WEATHER)
    replace_files(dml, minutes=10)
    before = dml.transactions.write_ids(FLIGHTS)
    replace_files(dml, minutes=1)
    cache = dml.cached()
    assert files(cache, write_ids=before) == files(dml.store, write_ids=before) != files(cache)
    assert cache.statistics().replicas == 1
    with dml.database.write() as connection:
        last = f"SELECT table_id, max(commit_time) FROM txn_write_id WHERE table_id = {FLIGHTS}"
        connection.exec_driver_sql(f"INSERT INTO cleaned_table {last} GROUP BY table_id")
    with pytest.raises(VersionNotFound):
        files(dml.cached(), write_ids=before)


def test_a_table_that_gets_more_rows_than_a_load_may_have_is_evicted(
    dml: Dml, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica_set, "MAX_ROWS", 2)
    cache = dml.cached()
    dml.append("a")
    files(cache)
    for name, held in (("b", 1), ("c", 0)):
        dml.append(name)
        cache.log_applier.catch_up()
        assert cache.statistics().replicas == held


def test_a_table_of_which_very_many_rows_change_at_once_is_loaded_again(
    dml: Dml, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_applier, "MAX_CHANGED_ROWS", 2)
    cache = dml.cached()
    dml.append("a")
    files(cache)
    dml.append("b", "c")
    assert files(cache) == ["a", "b", "c"]
    assert cache.statistics().loads == 1
    dml.append("d", "e", "f")
    cache.log_applier.catch_up()
    assert cache.statistics().replicas == 0
    assert files(cache) == ["a", "b", "c", "d", "e", "f"]
    assert cache.statistics().loads == 2


def test_a_cache_without_memory_does_not_look_whether_a_table_fits(
    dml: Dml, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = dml.cached(memory_bytes=0)
    dml.append("a")
    monkeypatch.delattr(SqlObjectStore, "contents")
    assert files(cache) == ["a"]
    assert cache.statistics().misses_by_cause["not_held"] == 1


def test_a_table_that_was_too_large_is_loaded_when_its_rows_were_cleaned(
    dml: Dml, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cached_store, "MAX_ROWS", 20)
    cache = dml.cached()
    dml.append(*(f"{number:04d}" for number in range(30)))
    files(cache)
    assert cache.statistics().replicas == 0
    with monkeypatch.context() as patch:
        patch.delattr(SqlObjectStore, "contents")
        files(cache)  # which does not try to load it again
    with dml.database.write() as connection:
        delete_rows(connection, list(range(1, 21)))
    cache.forget(FLIGHTS)
    assert len(files(cache)) == 10
    assert cache.statistics().replicas == 1


def test_a_node_holds_only_its_zone_partitions_and_answers_only_for_names_in_them(
    dml: Dml,
) -> None:
    cache = dml.cached(zone_partitions=lambda table_id: frozenset({0, 2}))
    files(cache)
    for name, bucket in {"all": -1, "zero": 0, "one": 1}.items():
        txn = dml.begin()
        stage(dml.store, txn, FLIGHTS, add=[data_file(name, bucket=bucket)])
        dml.transactions.commit(txn)
    cache.log_applier.catch_up()
    before = cache.statistics()
    assert before.rows == 2
    write_ids = dml.transactions.write_ids(FLIGHTS)
    for asked in (["all", "zero"], ["zero"]):
        assert names(cache.rows(FLIGHTS, FILES, write_ids=write_ids, names=asked)) == asked
        known = cache.known_rows(FLIGHTS, FILES, write_ids=write_ids, names=asked)
        assert known is not None
        assert names(known) == asked
    assert cache.statistics().misses == before.misses
    assert files(cache, write_ids=write_ids) == ["all", "one", "zero"]
    assert cache.known_rows(FLIGHTS, FILES, write_ids=write_ids) is None
    assert cache.statistics().misses_by_cause["not_held"] == before.misses_by_cause["not_held"] + 1
    both = cache.rows(FLIGHTS, FILES, write_ids=write_ids, names=["one", "zero"])
    assert names(both) == ["one", "zero"]
