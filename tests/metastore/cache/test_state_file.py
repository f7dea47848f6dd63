"""The file with the state of a node's memory: it is written, and read back only if it is valid."""

from __future__ import annotations

import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import delete, insert, update

from strandline import __version__
from strandline.clock import Timestamp
from strandline.errors import VersionNotFound
from strandline.fencing import FenceToken
from strandline.metastore.cache import state_file
from strandline.metastore.cache.cached_store import CachedStore
from strandline.metastore.cache.replica_set import HeldReplica
from strandline.metastore.cache.replicas import Replica
from strandline.metastore.cache.state_file import MAGIC, VERSION, PackedReplica, StateFile, pack
from strandline.metastore.store.rows import RowKind
from strandline.metastore.store.tables import CLEANED_TABLE, NOTIFICATION_LOG
from tests.metastore.dml import CANCELLATIONS, FLIGHTS, WEATHER, Dml, data_file, files, stage

MEMORY = 64 << 20

pytestmark = pytest.mark.parametrize("dml", ["sqlite"], indirect=True)
"""The file is the same for every store; `cache_model` restarts nodes on each of them."""


def state(dml: Dml, path: Path, cache: CachedStore, **changed: object) -> StateFile:
    given: dict[str, object] = {
        "environment": "e",
        "token": lambda: FenceToken(0, 3),
        "memory_bytes": MEMORY,
        **changed,
    }
    return StateFile(path, cache, **given)  # type: ignore[arg-type]  # by name


def started(dml: Dml, path: Path, **changed: object) -> tuple[CachedStore, bool]:
    """Return a cache that starts with the file, and whether it used the file."""
    cache = dml.cached()
    return cache, state(dml, path, cache, **changed).load()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "strandline.cache"


@pytest.fixture
def written(dml: Dml, path: Path) -> CachedStore:
    """A cache of two tables whose state is in the file, with an open transaction in it."""
    dml.append("a", "b")
    dml.append("c", table_id=CANCELLATIONS)
    opened = dml.begin()
    stage(dml.store, opened, FLIGHTS, add=[data_file("staged")])
    cache = dml.cached()
    for table_id in (FLIGHTS, CANCELLATIONS):
        files(cache, table_id)
    assert state(dml, path, cache).write()
    dml.opened = opened  # type: ignore[attr-defined]  # for the tests that end it
    return cache


def test_a_start_serves_from_memory_the_tables_that_the_last_run_held(
    dml: Dml, path: Path, written: CachedStore
) -> None:
    cache, taken = started(dml, path)
    assert taken
    restored = cache.statistics()
    assert (restored.replicas, restored.rows) == (2, 4)
    assert 0 < restored.size < written.statistics().size
    assert files(cache) == ["a", "b"]
    assert files(cache, CANCELLATIONS) == ["c"]
    after = cache.statistics()
    assert (after.hits, after.misses, after.loads, after.rows) == (2, 0, 0, 4)
    assert after.size == written.statistics().size


@pytest.mark.parametrize("ends", ["commit", "abort", "stays open"])
@pytest.mark.parametrize("touched", [True, False], ids=["unpacked", "packed"])
def test_events_since_the_state_are_applied_before_the_first_answer(
    dml: Dml, path: Path, written: CachedStore, ends: str, touched: bool
) -> None:
    cache, _ = started(dml, path)
    if touched:
        assert files(cache) == ["a", "b"]
        state(dml, path, cache).write()
    opened = dml.opened  # type: ignore[attr-defined]  # see `written`
    stage(dml.store, opened, FLIGHTS, add=[data_file("later")])
    if ends != "stays open":
        getattr(dml.transactions, ends)(opened)
    with dml.store.change(CANCELLATIONS, author="ann") as change:
        (row,) = change.visible(RowKind.DATA_FILE).values()
        change.stage(remove=[row.row_id])
    again, taken = started(dml, path)
    assert taken
    assert again.statistics().applied_event == dml.log.head()
    expected = ["a", "b", "later", "staged"] if ends == "commit" else ["a", "b"]
    assert files(again) == files(dml.store) == expected
    assert files(again, CANCELLATIONS) == []
    statistics = again.statistics()
    assert (statistics.misses, statistics.loads, statistics.poisoned) == (0, 0, 0)


def test_events_since_the_state_are_applied_although_the_node_has_looked_at_the_log(
    dml: Dml, path: Path, written: CachedStore
) -> None:
    dml.append("d")
    cache = dml.cached()
    assert cache.log_applier.look()
    assert state(dml, path, cache).load()
    assert files(cache) == ["a", "b", "d"]


class LockedDict(OrderedDict[int, HeldReplica]):
    """Replicas that may be read only under the ``lock``."""

    lock: threading.Lock

    def get(self, *arguments: Any) -> Any:  # Any: as the dictionary's
        assert self.lock.locked()
        return super().get(*arguments)


def test_an_event_of_a_packed_table_reads_the_replicas_under_their_lock(
    dml: Dml, path: Path, written: CachedStore
) -> None:
    cache, _ = started(dml, path)
    replicas = cache._replicas
    locked = LockedDict(replicas._replicas)
    locked.lock = replicas._lock
    replicas._replicas = locked
    dml.append("d")
    cache.log_applier.catch_up()
    assert files(cache) == files(dml.store)
    assert cache.statistics().loads == 0


def test_replicas_that_were_never_used_are_written_again_unchanged(
    dml: Dml, path: Path, written: CachedStore
) -> None:
    before = path.read_bytes()
    cache, _ = started(dml, path)
    path.unlink()
    assert state(dml, path, cache).write()
    assert path.read_bytes() == before
    files(cache)  # now one replica is packed and one is not
    dml.append("d", table_id=WEATHER)
    files(cache, WEATHER)
    assert state(dml, path, cache).write()
    again, _ = started(dml, path)
    assert again.statistics().replicas == 3
    for table_id in (FLIGHTS, CANCELLATIONS, WEATHER):
        assert files(again, table_id) == files(dml.store, table_id)
    assert again.statistics().loads == 0


def test_a_replica_with_more_rows_than_a_line_is_packed_whole(
    dml: Dml, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_file, "_STEP", 2)
    dml.append("a", "b", 200 * "é\n", "c", "d")
    with dml.store.change(FLIGHTS, author="ann") as change:
        change.stage(remove=[change.visible(RowKind.DATA_FILE)["b"].row_id])
    cache = dml.cached()
    files(cache)
    (replica,) = cache.snapshot()[1]
    (data,) = pack([replica])
    packed = PackedReplica.read(data)
    assert packed.unpacked() == replica
    assert packed.size > len(data)


def test_a_state_that_has_not_changed_is_not_written_again(dml: Dml, path: Path) -> None:
    cache = dml.cached()
    file = state(dml, path, cache)
    assert not file.write()  # nothing is held, and the log is empty
    dml.append("a")
    files(cache)
    assert file.write()
    path.unlink()
    assert not file.write()
    dml.append("b")
    cache.log_applier.catch_up()
    assert file.write()


def test_a_table_that_is_loaded_just_after_the_state_was_read_is_in_the_next_file(
    dml: Dml, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dml.append("a")
    dml.append("c", table_id=CANCELLATIONS)
    cache = dml.cached()
    files(cache)
    file, snapshot = state(dml, path, cache), cache.snapshot

    def then_load() -> tuple[int, list[HeldReplica]]:
        state_now = snapshot()
        files(cache, CANCELLATIONS)
        return state_now

    with monkeypatch.context() as patch:
        patch.setattr(cache, "snapshot", then_load)
        assert file.write()
    assert file.write()
    assert started(dml, path)[0].statistics().replicas == 2


# -- files that are ignored

FOREIGN: dict[str, dict[str, object]] = {
    "another store": {"environment": "f"},
    "another epoch": {"token": lambda: FenceToken(0, 4)},
    "another generation": {"token": lambda: FenceToken(1, 3)},
    "larger than memory": {"memory_bytes": 100},
}


def refused(dml: Dml, path: Path, caplog: pytest.LogCaptureFixture, **changed: object) -> bool:
    """Return whether a start ignores the file, logs one line, and answers correctly."""
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        cache, taken = started(dml, path, **changed)
    assert not taken
    assert cache.statistics().replicas == 0
    assert files(cache) == files(dml.store)
    (line,) = [record.getMessage() for record in caplog.records]
    return line.startswith(f"the cache file {path} is ignored: ")


@pytest.mark.parametrize("changed", FOREIGN.values(), ids=FOREIGN.keys())
def test_a_state_of_another_store_or_epoch_or_larger_than_memory_is_ignored(
    dml: Dml,
    path: Path,
    written: CachedStore,
    changed: dict[str, object],
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert refused(dml, path, caplog, **changed)


def test_a_state_of_another_release_is_ignored(
    dml: Dml,
    path: Path,
    written: CachedStore,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = path.read_bytes()
    path.write_bytes(MAGIC + bytes([VERSION + 1]) + data[len(MAGIC) + 1 :])
    assert refused(dml, path, caplog)
    path.write_bytes(data)
    monkeypatch.setattr(state_file, "__version__", "99.0")
    assert refused(dml, path, caplog)
    assert caplog.messages[-1].endswith(f"release {__version__} wrote it, but this is release 99.0")


def test_a_damaged_or_truncated_state_is_ignored(
    dml: Dml, path: Path, written: CachedStore, caplog: pytest.LogCaptureFixture
) -> None:
    data = path.read_bytes()
    for place in [*range(24), *range(24, len(data), 499), *range(len(data) - 9, len(data))]:
        path.write_bytes(data[:place] + bytes([data[place] ^ 0x41]) + data[place + 1 :])
        assert refused(dml, path, caplog), place
    for length in (0, 5, 8, 12, 40, len(data) // 2, len(data) - 8, len(data) - 1):
        path.write_bytes(data[:length])
        assert refused(dml, path, caplog), length
    path.write_bytes(data + b"x")
    assert refused(dml, path, caplog)
    path.unlink()
    path.mkdir()
    assert refused(dml, path, caplog)


def forgotten_events(dml: Dml) -> None:
    """Trim the log beyond the last event of the state."""
    dml.append("d")
    with dml.database.write() as connection:
        log = NOTIFICATION_LOG.c.event_id
        connection.execute(delete(NOTIFICATION_LOG).where(log < dml.log.head()))


def other_event(dml: Dml) -> None:
    """Make the log look as if an older backup was restored and the store then diverged."""
    with dml.database.write() as connection:
        log = NOTIFICATION_LOG.c
        changed = update(NOTIFICATION_LOG).where(log.event_id == dml.log.head())
        connection.execute(changed.values(time=log.time + 1))


def fewer_events(dml: Dml) -> None:
    """Make the log look as if an older backup was restored."""
    with dml.database.write() as connection:
        log = NOTIFICATION_LOG.c.event_id
        connection.execute(delete(NOTIFICATION_LOG).where(log == dml.log.head()))


@pytest.mark.parametrize("happened", [forgotten_events, other_event, fewer_events])
def test_a_state_whose_last_event_is_not_in_the_log_is_ignored(
    dml: Dml,
    path: Path,
    written: CachedStore,
    happened: Callable[[Dml], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    happened(dml)
    assert refused(dml, path, caplog)


def test_a_state_that_is_too_far_behind_is_ignored(
    dml: Dml,
    path: Path,
    written: CachedStore,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(state_file, "MAX_EVENTS", 2)
    assert started(dml, path)[1]
    monkeypatch.setattr(state_file, "MAX_EVENTS", 1)
    dml.append("d")
    assert refused(dml, path, caplog)


def test_a_state_whose_last_event_was_cleaned_is_not_written(dml: Dml, path: Path) -> None:
    """The first event after it is not applied."""
    dml.append("a")
    cache = dml.cached()
    files(cache)
    forgotten_events(dml)
    assert not state(dml, path, cache).write()


def test_a_table_that_was_cleaned_since_the_state_is_left_out(
    dml: Dml, path: Path, written: CachedStore
) -> None:
    with dml.database.write() as connection:
        values = {"table_id": FLIGHTS, "up_to": Timestamp(7)}
        connection.execute(insert(CLEANED_TABLE).values(**values))
    cache, _ = started(dml, path)
    assert cache.statistics().replicas == 1
    files(cache)  # loaded again, the table includes the cleaning
    assert state(dml, path, cache).write()
    again, _ = started(dml, path)
    assert again.statistics().replicas == 2
    assert files(again) == ["a", "b"]
    assert again.statistics().loads == 0


def test_rows_that_may_be_cleaned_are_also_missing_after_a_start(dml: Dml, path: Path) -> None:
    dml.append("a")
    before = dml.transactions.write_ids(FLIGHTS)
    dml.append("b")
    with dml.database.write() as connection:
        last = f"SELECT table_id, max(commit_time) FROM txn_write_id WHERE table_id = {FLIGHTS}"
        connection.exec_driver_sql(f"INSERT INTO cleaned_table {last} GROUP BY table_id")
    cache = dml.cached()
    assert files(cache) == ["a", "b"]
    assert state(dml, path, cache).write()
    again, _ = started(dml, path)
    assert files(again) == ["a", "b"]
    assert again.statistics().hits == 1
    with pytest.raises(VersionNotFound):
        files(again, write_ids=before)


def test_a_start_with_less_memory_holds_the_most_recently_used_tables(
    dml: Dml, path: Path, written: CachedStore
) -> None:
    size = started(dml, path)[0].statistics().size
    cache = dml.cached(memory_bytes=size - 1)
    assert state(dml, path, cache).load()
    assert [replica.table_id for replica in cache.snapshot()[1]] == [CANCELLATIONS]


def test_replicas_of_some_zone_partitions_are_not_written(dml: Dml) -> None:
    dml.append("a")
    cache = dml.cached(zone_partitions=lambda table_id: frozenset({1}))
    files(cache)
    (replica,) = cache.snapshot()[1]
    assert isinstance(replica, Replica)
    assert list(pack([replica])) == []


# -- writing


def test_a_killed_writer_leaves_the_old_file_and_its_temporary_file_is_removed_later(
    dml: Dml, path: Path, written: CachedStore
) -> None:
    before = path.read_bytes()
    dml.append("d")
    written.log_applier.catch_up()

    def dies() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        state(dml, path, written).write(between=dies)
    assert path.read_bytes() == before
    assert list(path.parent.glob("*.new")) == []
    killed = path.with_name(f"{path.name}.77.new")
    killed.write_bytes(b"half")
    young = path.with_name(f"{path.name}.78.new")
    young.write_bytes(b"half")
    os.utime(killed, (1, 1))
    assert state(dml, path, written).write()
    assert not killed.exists()
    assert young.exists()
    assert path.read_bytes() != before


def test_a_state_that_cannot_be_written_is_logged_and_raises_no_error(
    dml: Dml, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    dml.append("a")
    cache = dml.cached()
    files(cache)
    assert not state(dml, tmp_path / "none" / "s", cache).write()
    assert "cannot be written" in caplog.text
