"""What is specific to the metastorage in SQLite; the rest is in the conformance suite."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from strandline.clock import HybridClock
from strandline.errors import CorruptData, DeadlineExceeded, IncompatibleFormat
from strandline.metastorage import (
    MAX_VALUE_BYTES,
    Absent,
    Delete,
    DeleteRange,
    KeyValue,
    Put,
    SqlMetastorage,
)
from strandline.sql import Parameter, Row, SqliteDatabase, open_sqlite, stored_time, take_time
from tests.metastorage.conftest import put


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "strandline.db"


@pytest.fixture
def database(path: Path) -> Iterator[SqliteDatabase]:
    opened = open_sqlite(path, timeout=0.05)
    yield opened
    opened.close()


@pytest.fixture
def store(database: SqliteDatabase) -> SqlMetastorage:
    return SqlMetastorage(database, HybridClock())


@pytest.mark.slow
def test_a_value_of_the_largest_size_can_be_stored(store: SqlMetastorage) -> None:
    value = bytes(MAX_VALUE_BYTES)
    put(store, "big", value)
    entry = store.get("big")
    assert entry is not None
    assert entry.value == value


def test_the_time_is_shared_with_other_writers_of_the_database(
    store: SqlMetastorage, database: SqliteDatabase
) -> None:
    clock = HybridClock(lambda: 1, max_ahead_ms=1 << 46)
    before = store.invoke([], [Put("a", b"")]).time
    with database.write() as connection:
        between = take_time(connection, clock)
    after = store.invoke([], [Put("a", b"")]).time
    checked = store.check().time
    assert before < between < after < checked
    with database.read() as connection:
        assert stored_time(connection) == checked


def test_the_revision_is_reread_only_after_a_commit(
    store: SqlMetastorage, database: SqliteDatabase
) -> None:
    put(store, "a")
    reads = []
    for step in (
        lambda: None,
        lambda: None,
        lambda: put(store, "b"),
        lambda: None,
        store.check,
        lambda: store.get("a"),
    ):
        step()
        before = database.statistics().reads
        store.revision()
        reads.append(database.statistics().reads - before)
    assert reads == [1, 0, 1, 0, 1, 0]


def test_a_commit_between_the_check_and_the_read_is_not_taken_as_seen(
    store: SqlMetastorage, database: SqliteDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The remembered mark must be the one from before the revision was read."""
    put(store, "a")
    real, other = database.rows, SqlMetastorage(database, HybridClock())

    def read_late(statement: str, parameters: tuple[Parameter, ...] = ()) -> list[Row]:
        monkeypatch.setattr(database, "rows", real)
        put(other, "b")
        return real(statement, parameters)

    monkeypatch.setattr(database, "rows", read_late)
    assert store.revision() == 2
    put(other, "c")
    assert store.revision() == 3


def test_reads_in_a_transaction_of_the_caller_see_its_snapshot(
    store: SqlMetastorage, database: SqliteDatabase
) -> None:
    put(store, "a", b"1")
    with database.read() as connection:
        assert store.revision_on(connection) == 1
        put(store, "a", b"2")
        entry = store.get_on(connection, "a")
        assert entry is not None
        assert (entry.value, entry.revision) == (b"1", 1)
        assert store.revision_on(connection) == 1
        assert store.get_on(connection, "b") is None
    assert store.revision() == 2


def test_a_wait_from_before_the_recorded_deletions_reports_a_change(
    database: SqliteDatabase,
) -> None:
    store = SqlMetastorage(database, HybridClock(), deletions_kept=3)
    store.invoke([], [Put(f"k{n}", b"") for n in range(6)])
    for n in range(4):
        store.invoke([], [Delete(f"k{n}")])
    assert store.revision() == 5
    # The deletion of k0 in revision 2 is no longer recorded.
    assert database.rows("SELECT count(*) FROM metastorage_deletion") == [(3,)]
    assert store.wait_for_change("else", 1, timeout=0)
    assert not store.wait_for_change("else", 2, timeout=0)
    assert store.wait_for_change("k1", 2, timeout=0)
    assert not store.wait_for_change("k1", 3, timeout=0)
    store.invoke([], [Put(f"m{n}", b"") for n in range(9)])
    store.invoke([], [DeleteRange("m", "n")])
    assert store.wait_for_change("m3", 6, timeout=0)
    assert not store.wait_for_change("m3", 7, timeout=0)


def test_a_repeated_wait_reads_nothing_while_nothing_is_committed(
    store: SqlMetastorage, database: SqliteDatabase
) -> None:
    put(store, "a")
    seen = store.revision()
    before = database.statistics().reads
    for _ in range(5):
        assert not store.wait_for_change("a", seen, timeout=0)
    assert database.statistics().reads == before
    put(store, "a")
    assert store.wait_for_change("a", seen, timeout=0)


def test_a_write_that_cannot_begin_in_time_changes_nothing(
    store: SqlMetastorage, path: Path
) -> None:
    put(store, "a")
    other = open_sqlite(path)
    with other.write():
        for call in (
            lambda: put(store, "a"),
            store.check,
            lambda: store.acquire_lease("lead", "me", ttl_ms=1000),
        ):
            with pytest.raises(DeadlineExceeded, match="another part of this process") as refused:
                call()
            assert str(path) in refused.value.message
        assert store.get("a") is not None
        assert store.revision() == 1
    other.close()
    assert put(store, "a").revision == 2


def test_a_store_of_a_newer_release_is_refused_and_not_changed(
    store: SqlMetastorage, database: SqliteDatabase
) -> None:
    put(store, "a")
    with database.write() as connection:
        connection.exec_driver_sql(
            "UPDATE strandline_schema SET version = 3 WHERE part = 'metastorage'"
        )
    with pytest.raises(IncompatibleFormat, match=r"'metastorage' has version 3.*version 2"):
        SqlMetastorage(database, HybridClock())
    assert store.revision() == 1


def test_damaged_pages_raise_corrupt_data(path: Path) -> None:
    database = open_sqlite(path)
    store = SqlMetastorage(database, HybridClock())
    store.invoke([], [Put(f"k{n:03d}", bytes(3000)) for n in range(300)])
    database.close()
    whole = path.read_bytes()
    # The pages of the entries come after those of the schema.
    path.write_bytes(whole[: 4096 * 60] + b"\xa5" * (len(whole) - 4096 * 60))
    with pytest.raises(CorruptData, match="restore from a backup") as refused:
        open_sqlite(path)
    assert str(path) in refused.value.message
    database = open_sqlite(path, check_bytes=0)
    store = SqlMetastorage(database, HybridClock())
    with pytest.raises(CorruptData, match="restore from a backup") as refused:
        store.range("", "\x7f")
    assert str(path) in refused.value.message
    database.close()


def test_an_invoke_that_fails_halfway_changes_nothing(
    store: SqlMetastorage, database: SqliteDatabase
) -> None:
    put(store, "kept", b"1")
    with database.write() as connection:
        connection.exec_driver_sql(
            "CREATE TRIGGER refuse BEFORE INSERT ON metastorage WHEN NEW.key = 'z'"
            " BEGIN SELECT RAISE(ABORT, 'planted'); END"
        )
    before = store.check().time
    with pytest.raises(Exception, match="planted"):
        store.invoke([Absent("a")], [Put("a", b""), Delete("kept"), Put("z", b"")])
    assert store.revision() == 1
    assert [entry.key for entry in store.range("", "\x7f")] == ["kept"]
    assert not store.wait_for_change("", 1, timeout=0)
    with database.read() as connection:
        assert stored_time(connection) == before
    assert isinstance(store.get("kept"), KeyValue)


def test_missing_tables_raise_corrupt_data(tmp_path: Path) -> None:
    database = open_sqlite(tmp_path / "x.db")
    store = SqlMetastorage(database, HybridClock())
    with database.write() as connection:
        connection.exec_driver_sql("DROP TABLE metastorage")
    for call in (lambda: store.get("a"), lambda: store.invoke([], [Put("a", b"")])):
        with pytest.raises(CorruptData, match=r"tables that were created in .* are missing"):
            call()
    store.close()
    database.close()


def test_a_waiter_returns_when_its_database_is_woken(
    store: SqlMetastorage, database: SqliteDatabase
) -> None:
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(store.wait_for_change, "", 0, timeout=3600)
        while not waiting.done():  # it may not have started to wait
            database.wake()
    assert waiting.result() is False
