"""A cache that loads tables while events arrive, and events that it cannot apply."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from contextvars import copy_context

import pytest
from sqlalchemy import delete, update

from strandline.errors import Unavailable
from strandline.metastore.cache import cached_store
from strandline.metastore.cache.cached_store import CachedStore
from strandline.metastore.cache.log_applier import BATCH
from strandline.metastore.store.notifications import Notification
from strandline.metastore.store.object_store import SqlObjectStore
from strandline.metastore.store.rows import RowKind
from strandline.metastore.store.table_contents import TableContents
from strandline.metastore.store.tables import NOTIFICATION_LOG, STORE_ROW
from strandline.work import GIVES_WAY, NotYet
from tests.metastore.dml import CANCELLATIONS, FLIGHTS, WEATHER, Dml, data_file, files, stage

# -- loading while events arrive


class Interrupted(SqlObjectStore):
    """Runs ``before`` and ``after`` around the reading of a table's contents."""

    before: Callable[[], object] = staticmethod(lambda: None)
    after: Callable[[], object] = staticmethod(lambda: None)

    def contents(self, table_id: int, *, max_bytes: int, max_rows: int) -> TableContents | None:
        self.before()
        loaded = super().contents(table_id, max_bytes=max_bytes, max_rows=max_rows)
        self.after()
        return loaded


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("applied", [True, False])
@pytest.mark.parametrize("ends", ["commit", "abort", "stays open"])
def test_events_that_arrive_while_a_table_loads_are_applied_exactly_once(
    dml: Dml, when: str, applied: bool, ends: str
) -> None:
    store = dml.store_of(Interrupted)
    cache = CachedStore(store, staleness=0)
    dml.append("there")
    opened = dml.begin()
    stage(dml.store, opened, FLIGHTS, add=[data_file("staged")])

    def meanwhile() -> None:
        stage(dml.store, opened, FLIGHTS, add=[data_file("later")])
        if ends == "commit":
            dml.transactions.commit(opened)
        elif ends == "abort":
            dml.transactions.abort(opened)
        if applied:
            cache.log_applier.apply(BATCH)

    setattr(store, when, meanwhile)
    before = dml.transactions.write_ids(FLIGHTS)
    assert files(cache, write_ids=before) == ["there"]
    store.before = store.after = lambda: None
    cache.log_applier.catch_up()
    expected = ["later", "staged", "there"] if ends == "commit" else ["there"]
    assert files(cache) == files(dml.store) == expected
    statistics = cache.statistics()
    assert (statistics.rows, statistics.loads, statistics.misses) == (
        1 if ends == "abort" else 3,
        1,
        0,
    )


def test_rows_that_a_load_has_read_are_not_read_again_for_their_event(
    dml: Dml, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = dml.cached()
    dml.append("loaded")
    monkeypatch.setattr(dml.store, "staged_rows", lambda *_: pytest.fail("read again"))
    assert files(cache, write_ids=dml.transactions.write_ids(FLIGHTS)) == ["loaded"]
    assert files(cache) == ["loaded"]


def test_a_reader_does_not_wait_for_a_table_that_another_reader_loads(dml: Dml) -> None:
    store = dml.store_of(Interrupted)
    cache = CachedStore(store, staleness=0)
    dml.append("a")
    dml.append("b", table_id=WEATHER)
    seen = []

    def meanwhile() -> None:
        store.before = lambda: None
        seen.append((files(cache), files(cache, WEATHER)))

    store.before = meanwhile
    assert files(cache) == ["a"]
    assert seen == [(["a"], ["b"])]
    assert cache.statistics().misses_by_cause["not_held"] == 1


def away() -> None:
    raise Unavailable("the store is away")


@pytest.mark.parametrize("outcome", ["loaded", "failed", "too large"])
def test_a_call_that_can_begin_again_gives_way_until_the_load_of_its_table_has_ended(
    dml: Dml, monkeypatch: pytest.MonkeyPatch, outcome: str
) -> None:
    store = dml.store_of(Interrupted)
    cache = CachedStore(store, staleness=0)
    dml.append("a")
    write_ids = dml.transactions.write_ids(FLIGHTS)
    loads: list[Future[None]] = []

    def second_reader() -> None:
        GIVES_WAY.set(True)
        with pytest.raises(NotYet) as given_up:
            files(cache, write_ids=write_ids)
        loads.append(given_up.value.made)
        # These need few rows, which the store reads sooner than all of the table.
        few = cache.rows(FLIGHTS, RowKind.DATA_FILE, write_ids=write_ids, names=["a"])
        assert [row.name for row in few] == ["a"]

    def meanwhile() -> None:
        copy_context().run(second_reader)
        assert not loads[0].done()

    store.before = meanwhile
    if outcome == "failed":
        store.after = away
        with pytest.raises(Unavailable):
            files(cache, write_ids=write_ids)
    else:
        if outcome == "too large":
            monkeypatch.setattr(cached_store, "MAX_ROWS", 0)
        assert files(cache, write_ids=write_ids) == ["a"]
    assert len(loads) == 1
    assert loads[0].done()


def test_a_table_can_be_loaded_after_a_failed_load(dml: Dml) -> None:
    store = dml.store_of(Interrupted)
    cache = CachedStore(store, staleness=0)
    dml.append("a")
    store.before = away
    with pytest.raises(Unavailable):
        files(cache, write_ids=dml.transactions.write_ids(FLIGHTS))
    store.before = lambda: None
    assert files(cache) == ["a"]
    assert cache.statistics().loads == 1


# -- events that cannot be applied


def damage(dml: Dml, event: Notification, **values: object) -> None:
    with dml.database.write() as connection:
        connection.execute(
            update(NOTIFICATION_LOG)
            .where(NOTIFICATION_LOG.c.event_id == event.event_id)
            .values(**values)
        )


@pytest.mark.parametrize("position", [0, 1], ids=["staging", "commit"])
def test_an_event_that_cannot_be_decoded_evicts_only_its_table(dml: Dml, position: int) -> None:
    cache = dml.cached()
    for table_id in (FLIGHTS, CANCELLATIONS):
        files(cache, table_id)
    head = dml.log.head()
    dml.append("a")
    damage(dml, dml.events(head)[position], body=b"\xff\xff")
    dml.append("b", table_id=CANCELLATIONS)
    cache.log_applier.catch_up()
    statistics = cache.statistics()
    assert (statistics.poisoned, statistics.replicas, statistics.applied_event) == (
        1,
        1,
        dml.log.head(),
    )
    assert files(cache) == ["a"]
    assert files(cache, CANCELLATIONS) == ["b"]


def test_an_event_whose_tables_are_unknown_evicts_all_tables(dml: Dml) -> None:
    cache = dml.cached()
    for table_id in (FLIGHTS, CANCELLATIONS):
        files(cache, table_id)
    head = dml.log.head()
    dml.append("a")
    damage(dml, dml.events(head)[1], body=b"\xff\xff", txn_id=None)
    cache.log_applier.catch_up()
    statistics = cache.statistics()
    assert (statistics.poisoned, statistics.replicas) == (1, 0)
    assert files(cache) == ["a"]


def test_an_event_that_contradicts_the_list_evicts_its_table(dml: Dml) -> None:
    cache = dml.cached()
    dml.append("a")
    files(cache)
    head = dml.log.head()
    dml.append("b")
    damage(dml, dml.events(head)[0], write_id=1)
    cache.log_applier.catch_up()
    assert cache.statistics().poisoned == 1
    assert files(cache) == ["a", "b"]


def test_an_event_is_not_skipped_while_the_store_cannot_be_read(
    dml: Dml, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = dml.cached()
    files(cache)
    dml.append("a")
    with monkeypatch.context() as patch:
        patch.setattr(dml.store, "staged_rows", lambda *_: away())
        with pytest.raises(Unavailable):
            cache.log_applier.apply(10)
    cache.log_applier.catch_up()
    assert cache.statistics().poisoned == 0
    assert files(cache) == ["a"]


def test_a_table_of_which_staged_rows_were_cleaned_is_loaded_again(dml: Dml) -> None:
    cache = dml.cached()
    files(cache)
    dml.append("a", "b")
    with dml.database.write() as connection:
        connection.execute(delete(STORE_ROW).where(STORE_ROW.c.name == "a"))
    cache.log_applier.catch_up()
    assert cache.statistics().evictions == 1
    assert files(cache) == ["b"]


def test_a_cache_whose_next_events_were_cleaned_starts_over(dml: Dml) -> None:
    cache = dml.cached()
    files(cache)
    for name in ("a", "b"):
        dml.append(name)
    with dml.database.write() as connection:
        connection.execute(delete(NOTIFICATION_LOG).where(NOTIFICATION_LOG.c.event_id <= 2))
    cache.log_applier.catch_up()
    assert cache.statistics().applied_event == dml.log.head() == 4
    assert files(cache) == ["a", "b"]
    assert cache.statistics().poisoned == 0
