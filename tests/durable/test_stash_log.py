"""The tables of the stash: what a compaction leaves, damage, lost answers, companions.

What every log promises is in ``test_log_contract.py``.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection

from strandline.clock import HybridClock
from strandline.durable import (
    Change,
    Entry,
    MetastorageLog,
    StashLog,
    Update,
    UpdateLog,
    stash_log,
    stash_tables,
)
from strandline.durable.collections import STORAGE_USAGE_EVENT
from strandline.durable.persist.blob import FileBlob
from strandline.durable.persist.consensus import Consensus
from strandline.durable.persist.persist_log import PersistLog
from strandline.durable.stash_log import upper_within
from strandline.durable.stash_tables import Kinds, StashState
from strandline.durable.transaction import new_update
from strandline.errors import (
    CorruptData,
    Fenced,
    IncompatibleFormat,
    OutOfSync,
    Stopping,
    Unavailable,
    UnknownOutcome,
    UnsupportedOperation,
    VersionNotFound,
)
from strandline.metastorage import Metastorage
from strandline.metastorage.sql_store import SqlMetastorage
from strandline.model.descriptors import ConfigEntry
from strandline.sql import Database, Query, change, open_database, run
from strandline.wire.registry import encode
from tests.durable.updates import TOKEN, begin, everything, measured, trim_in_steps, update
from tests.metastorage.stores import STORES
from tests.servers.sqlite import sqlite_url
from tests.sql.statements import recorded

Open = Callable[[], Database]


@pytest.fixture(params=["sqlite", "postgresql"])
def opening(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Open]:
    """Opens the database of one stash, any number of times."""
    address = STORES[request.param].create(tmp_path)
    opened: list[Database] = []

    def open_again() -> Database:
        opened.append(open_database(address))
        return opened[-1]

    yield open_again
    for database in opened:
        database.close()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "strandline.db"


@contextmanager
def stash_in(file: Path) -> Iterator[StashLog]:
    with closing(open_database(sqlite_url(file))) as database:
        yield StashLog(database, HybridClock())


def count(database: Database, table: str) -> int:
    return int(database.rows(f"SELECT COUNT(*) FROM {table}")[0][0])


def test_a_compaction_leaves_one_row_per_object(opening: Open) -> None:
    database = opening()
    log = StashLog(database, HybridClock())
    begin(log, 4, objects=3)
    assert count(database, "stash_row") == 4 + 4 * 3
    assert log.compact(3, TOKEN)
    assert count(database, "stash_row") == 1 + 4 * 3
    assert count(database, "stash_appended") == 3
    assert database.rows("SELECT COUNT(*) FROM stash_row WHERE diff < 0") == [(0,)]


def test_a_compaction_deletes_the_rows_of_many_versions_together(file: Path) -> None:
    """A server takes too long for a statement for each row, while it holds the write lock."""
    with stash_in(file) as log:
        begin(log, 3)
        entry, old = ConfigEntry("counter", ""), None
        for version in range(4, 30):
            new = encode(replace(entry, value=str(version)))
            change = Entry("configure", {}, (Change("config", b"counter", old, new),))
            log.append(version, TOKEN, [new_update(version, [change], author="ann", member="m")])
            old = new
        for up_to, ranges in ((20, 2), (29, 3)):
            with recorded() as statements:
                assert log.compact(up_to, TOKEN)
            deleted = [given for text, given in statements if text.startswith("DELETE")]
            assert sum(len(given) if isinstance(given, list) else 1 for given in deleted) == ranges
        kept = log.first_snapshot()
        assert dict(kept.kinds)["config"][0] == old


def test_a_stash_of_the_first_version_is_readable_and_gets_a_nonce_column_when_opened(
    file: Path,
) -> None:
    with stash_in(file) as log:
        log.append(1, None, [update(1, "fence")], new_token=replace(TOKEN, nonce=0))
    with closing(sqlite3.connect(file)) as raw, raw:
        raw.execute("ALTER TABLE stash DROP COLUMN nonce")
        raw.execute("UPDATE strandline_schema SET version = 1 WHERE part = 'stash'")
    before = file.read_bytes()
    with closing(open_database(sqlite_url(file), read_only=True)) as database:
        assert StashLog(database, HybridClock()).token() == replace(TOKEN, nonce=0)
    assert file.read_bytes() == before
    with stash_in(file) as log:
        log.append(2, replace(TOKEN, nonce=0), [update(2)], new_token=TOKEN)
        log.append(3, TOKEN, [update(3)])
        assert log.token() == TOKEN


def test_a_reader_creates_no_collection_and_does_not_disturb_the_writer(file: Path) -> None:
    with (
        stash_in(file) as log,
        closing(open_database(sqlite_url(file), read_only=True)) as database,
    ):
        begin(log, 2)
        collections = count(database, "stash_collection")
        reading = StashLog(database, HybridClock())
        assert list(reading.scan(STORAGE_USAGE_EVENT, 1, 3)) == []
        with pytest.raises(UnsupportedOperation, match="opened for reading"):
            reading.append(3, TOKEN, [measured(3)])
        assert count(database, "stash_collection") == collections
        log.append(3, TOKEN, [measured(3)])
        assert len(list(reading.scan(STORAGE_USAGE_EVENT, 1, 4))) == 2


def test_a_scan_in_pages_returns_every_object_once(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strandline.durable.stash_log.SCANNED_AT_ONCE", 2)
    with stash_in(file) as log:
        begin(log, 1)
        log.append(2, TOKEN, [measured(2, 5), measured(3, 1)])
        versions = [scanned.version for scanned in log.scan(STORAGE_USAGE_EVENT, 1, 4)]
    assert versions == [2, 2, 2, 2, 2, 3]


def test_a_stash_of_a_newer_release_is_refused(opening: Open) -> None:
    database = opening()
    StashLog(database, HybridClock())
    with database.write() as connection:
        change(connection, "UPDATE strandline_schema SET version = 9 WHERE part = 'stash'")
    with pytest.raises(IncompatibleFormat, match="'stash' has version 9"):
        StashLog(opening(), HybridClock())


def test_a_closed_stash_raises_stopping(opening: Open) -> None:
    log = StashLog(opening(), HybridClock())
    log.close()
    with pytest.raises(Stopping):
        log.frontier()


def test_a_thread_that_listens_to_a_stash_ends_when_it_is_closed(
    opening: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = opening()
    log = StashLog(database, HybridClock())
    wait_for_commit, waits = database.wait_for_commit, threading.Event()

    def noted(after: int, *, timeout: float) -> int:
        waits.set()
        return wait_for_commit(after, timeout=timeout)

    monkeypatch.setattr(database, "wait_for_commit", noted)
    with ThreadPoolExecutor(1) as threads:
        listening = threads.submit(log.listen, log.frontier(), timeout=20)
        assert waits.wait(60)
        for _ in range(10):  # the thread may not have begun to wait
            log.close()
            finished, _ = wait([listening], timeout=1)
            if finished:
                break
        assert finished
        with pytest.raises(Stopping):
            listening.result()


# -- one transaction with others -------------------------------------------------------------------


class Noting:
    """A companion that writes into its own table, and fails if ``fails`` is set."""

    first_queries: tuple[Query, ...] = (("SELECT COUNT(*) FROM noted", ()),)

    def __init__(self, *, fails: bool = False) -> None:
        self._fails = fails

    def write(self, connection: Any, updates: Sequence[Update]) -> None:
        noted = int(run(connection, *self.first_queries[0])[0][0])
        for logged in updates:
            change(
                connection,
                "INSERT INTO noted (number, version, time) VALUES (?, ?, ?)",
                (noted, logged.version, logged.time),
            )
        if self._fails:
            raise OSError("no room")

    def committed(self) -> None:
        raise AssertionError("the log does not call this, its caller does")


@pytest.fixture
def noting(opening: Open) -> Database:
    database = opening()
    with database.write() as connection:
        change(connection, "CREATE TABLE noted (number BIGINT, version BIGINT, time BIGINT)")
    return database


IN_A_DATABASE: dict[str, Callable[[Database, Path], UpdateLog]] = {
    "stash": lambda database, _: StashLog(database, HybridClock()),
    "metastorage": lambda database, _: MetastorageLog(store_in(database)),
    "persist": lambda database, folder: PersistLog(
        Consensus(store_in(database)), FileBlob(folder), "shard"
    ),
}


def store_in(database: Database) -> Metastorage:
    return SqlMetastorage(database, HybridClock())


@pytest.mark.parametrize("kind", IN_A_DATABASE)
def test_a_companion_writes_in_the_transaction_of_the_append(
    noting: Database, kind: str, tmp_path: Path
) -> None:
    log = IN_A_DATABASE[kind](noting, tmp_path)
    begin(log, 1)
    appended = log.append(2, TOKEN, [update(2), update(3)], companion=Noting())
    assert noting.rows("SELECT number, version, time FROM noted ORDER BY version") == [
        (0, 2, appended[0].time),
        (0, 3, appended[0].time),
    ]


def test_a_failing_companion_undoes_the_append(noting: Database) -> None:
    log = StashLog(noting, HybridClock())
    begin(log, 1)
    failing = Noting(fails=True)
    with pytest.raises(UnknownOutcome):
        log.append(2, TOKEN, [update(2)], companion=failing)
    assert log.frontier().upper == 2
    assert count(noting, "noted") == 0
    late = Noting()
    with pytest.raises(OutOfSync):
        log.append(3, TOKEN, [update(3)], companion=late)
    assert count(noting, "noted") == 0


def test_upper_within_reads_the_upper_in_the_transaction_of_the_caller(opening: Open) -> None:
    database = opening()
    log = StashLog(database, HybridClock())
    with database.read() as connection:
        assert upper_within(connection) == 1
    begin(log, 2)
    with database.read() as connection:
        assert upper_within(connection) == 3


# -- lost answers, races ---------------------------------------------------------------------------


class CutDatabase:
    """A database whose commits get no answer, whether they happen or not."""

    def __init__(self, database: Database, *, happens: bool) -> None:
        self._database, self._happens = database, happens

    @contextmanager
    def write(self, **named: Any) -> Iterator[Connection]:
        if not self._happens:
            raise Unavailable("the connection was cut")
        with self._database.write(**named) as connection:
            yield connection
        raise UnknownOutcome("the connection was cut")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)


def cut(database: Database, *, happens: bool) -> StashLog:
    return StashLog(CutDatabase(database, happens=happens), HybridClock())  # type: ignore[arg-type]  # a wrapper


def test_the_outcome_of_an_unanswered_append_is_found_by_its_id(opening: Open) -> None:
    log = StashLog(opening(), HybridClock())
    begin(log, 1)
    mine = update(2)
    (appended,) = cut(opening(), happens=True).append(2, TOKEN, [mine])
    assert (appended,) == log.updates(2, 3)
    assert appended.id == mine.id
    with pytest.raises(OutOfSync):
        cut(opening(), happens=True).append(2, TOKEN, [update(2)])
    with pytest.raises(Unavailable, match="cut"):
        cut(opening(), happens=False).append(3, TOKEN, [update(3)])
    assert log.frontier().upper == 3


def test_the_time_of_an_append_is_found_after_its_version_was_trimmed(opening: Open) -> None:
    log = StashLog(opening(), HybridClock())
    begin(log, 3)
    mine = log.updates(2, 3)[0]
    assert log.compact(3, TOKEN)
    assert log.time_of(mine) == mine.time
    assert log.time_of(update(2)) is None


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_a_trim_that_ends_between_two_steps_leaves_a_log_that_was_trimmed_less(
    opening: Open, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    trim_in_steps(monkeypatch, 2)
    log = StashLog(opening(), HybridClock())
    begin(log, 7)
    kept, before = log.snapshot(7), log.updates(1, 8)
    put_state, states = stash_tables.put_state, []

    def put(connection: Connection, state: StashState) -> None:
        put_state(connection, state)
        states.append(state)
        if len(states) > steps:
            raise Unavailable("the connection was cut")

    with monkeypatch.context() as patch:
        patch.setattr(stash_tables, "put_state", put)
        with pytest.raises(Unavailable):
            log.compact(6, TOKEN)
    reader = StashLog(opening(), HybridClock())
    assert reader.frontier().since == 2 * steps
    assert reader.snapshot(7) == kept
    assert reader.updates(2 * steps + 1, 8) == before[2 * steps :]
    assert reader.compact(6, TOKEN)
    assert reader.snapshot(7) == kept


def test_the_objects_of_one_version_are_read_in_pages(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stash_log, "SCANNED_AT_ONCE", 3)
    with stash_in(file) as log:
        begin(log, 1)
        log.append(2, TOKEN, [measured(2, 8), measured(3, 1)])
        scanned = [event.version for event in log.scan(STORAGE_USAGE_EVENT, 1, 4)]
    assert scanned == [2] * 8 + [3]


@pytest.mark.parametrize(("others", "is_compacted"), [(2, True), (3, False), (4, False)])
def test_an_overtaken_compaction_changes_nothing_unless_it_is_higher(
    opening: Open, others: int, is_compacted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, other = StashLog(opening(), HybridClock()), StashLog(opening(), HybridClock())
    begin(log, 5)
    expected = log.snapshot(5)
    overtake_before_write(log, lambda: other.compact(others, TOKEN), monkeypatch)
    assert log.compact(3, TOKEN) is is_compacted
    assert log.frontier().since == max(others, 3)
    assert log.snapshot(5) == expected


def test_an_append_during_a_compaction_is_kept(
    opening: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, other = StashLog(opening(), HybridClock()), StashLog(opening(), HybridClock())
    begin(log, 5)
    appended: list[Update] = []

    def append() -> None:
        appended.extend(other.append(6, TOKEN, [update(6, "late")]))

    overtake_before_write(log, append, monkeypatch)
    assert log.compact(3, TOKEN)
    assert log.updates(6, 7) == tuple(appended)
    assert log.snapshot(6) == other.snapshot(6)


def test_a_compaction_of_a_holder_that_is_fenced_meanwhile_is_refused(
    opening: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, other = StashLog(opening(), HybridClock()), StashLog(opening(), HybridClock())
    begin(log, 4)

    def take_over() -> None:
        other.append(5, TOKEN, [update(5, "fence")], new_token=replace(TOKEN, epoch=2))

    overtake_before_write(log, take_over, monkeypatch)
    with pytest.raises(Fenced):
        log.compact(3, TOKEN)
    assert log.frontier().since == 0


def overtake_before_write(
    log: StashLog, overtake: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Call ``overtake`` before the next write transaction of ``log``."""
    write = log._database.write

    def overtaken(**named: Any) -> Any:
        monkeypatch.undo()
        overtake()
        return write(**named)

    monkeypatch.setattr(log._database, "write", overtaken)


def test_a_compaction_of_a_process_that_is_fenced_meanwhile_changes_nothing(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with stash_in(file) as log, stash_in(file) as other:
        begin(log, 5)
        write = log._database.write

        def fenced(**named: Any) -> Any:
            newer = replace(TOKEN, epoch=2)
            other.append(6, TOKEN, [update(6, "fence")], new_token=newer)
            return write(**named)

        monkeypatch.setattr(log._database, "write", fenced)
        with pytest.raises(Fenced):
            log.compact(3, TOKEN)
        assert log.frontier().since == 0


# -- damage ----------------------------------------------------------------------------------------


TABLES = ("stash", "stash_collection", "stash_row", "stash_appended")
FOUND_BY_THE_DATABASE = (
    ("stash", "id"),
    ("stash_appended", "collection"),
    ("stash_appended", "version"),
    ("stash_appended", "number"),
)
"""Primary keys: the integrity check of the database compares them with their index."""
Statement = tuple[str, tuple[Any, ...]]


def damages(connection: sqlite3.Connection) -> Iterator[Statement]:
    """Statements that flip one bit in a column of a row, for all columns of all rows in turn."""
    for table in TABLES:
        columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
        for column in columns:
            if (table, column) in FOUND_BY_THE_DATABASE:
                continue
            for rowid, value in connection.execute(f"SELECT rowid, {column} FROM {table}"):
                for bit in (0, 5, 30):
                    text = f"UPDATE {table} SET {column} = ? WHERE rowid = ?"
                    yield text, (flipped(value, bit), rowid)


def losses(connection: sqlite3.Connection) -> Iterator[Statement]:
    """Statements that delete one row, for all rows in turn."""
    for table in TABLES[1:3]:
        for (rowid,) in connection.execute(f"SELECT rowid FROM {table}"):
            yield f"DELETE FROM {table} WHERE rowid = ?", (rowid,)


def flipped(value: Any, bit: int) -> Any:
    if isinstance(value, int):
        return value ^ 1 << bit
    data = bytearray(value.encode() if isinstance(value, str) else value)
    data[bit % len(data)] ^= 1 << bit % 7
    return data.decode() if isinstance(value, str) else bytes(data)


def contents_of(connection: sqlite3.Connection) -> dict[str, list[tuple[Any, ...]]]:
    return {
        table: connection.execute(f"SELECT rowid, * FROM {table}").fetchall() for table in TABLES
    }


def put_back(connection: sqlite3.Connection, kept: dict[str, list[tuple[Any, ...]]]) -> None:
    connection.execute("BEGIN")
    for table, rows in kept.items():
        names = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
        connection.execute(f"DELETE FROM {table}")
        names = ["rowid", *names] if "id" not in names else names
        connection.executemany(
            f"INSERT INTO {table} ({', '.join(names)}) VALUES ({', '.join('?' * len(names))})",
            [row[-len(names) :] for row in rows],
        )
    connection.execute("COMMIT")


@pytest.mark.slow
@pytest.mark.parametrize("damage", [damages, losses])
def test_a_flipped_bit_or_a_lost_row_is_refused_or_changes_nothing(
    file: Path, damage: Callable[[sqlite3.Connection], Iterator[Statement]]
) -> None:
    with stash_in(file) as log:
        begin(log, 4, objects=2)
        assert log.compact(2, TOKEN)
        expected = everything(log)
    unnoticed, tried = [], 0
    with closing(sqlite3.connect(file, isolation_level=None)) as raw, stash_in(file) as log:
        raw.execute("PRAGMA synchronous = OFF")
        kept = contents_of(raw)
        for statement in list(damage(raw)):
            with suppress(sqlite3.IntegrityError):  # another row has that key
                raw.execute(*statement)
                tried += 1
            log._kinds = Kinds({})
            with suppress(CorruptData):
                if everything(log) != expected:
                    unnoticed.append(statement)
            put_back(raw, kept)
    assert unnoticed == []
    assert tried > 8


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("UPDATE stash SET upper = upper + 1", "does not match its checksum: upper 6"),
        ("UPDATE stash SET nonce = nonce + 1", "the table stash does not match its checksum"),
        ("UPDATE stash_collection SET pruned = 1", "stash_collection does not match its checksum"),
        ("UPDATE stash_row SET time = time + 1 WHERE version = 4", "does not match its checksum"),
        ("UPDATE stash_appended SET number = number + 9", "is stored at the wrong place"),
        ("UPDATE stash_appended SET time = time + 1", "does not match its checksum"),
        ("DELETE FROM stash_row WHERE version = 1", "which are not the 2 rows that were written"),
        ("DELETE FROM stash_row WHERE version = 4", "version 4"),
    ],
)
def test_a_damaged_row_is_refused(file: Path, statement: str, message: str) -> None:
    with stash_in(file) as log:
        begin(log, 4)
        assert log.compact(2, TOKEN)
    with closing(sqlite3.connect(file)) as raw:
        raw.execute(statement)
        raw.commit()
    with stash_in(file) as reader, pytest.raises(CorruptData, match=message):
        everything(reader)


def test_an_incomplete_version_is_not_trimmed(file: Path) -> None:
    with stash_in(file) as log, closing(sqlite3.connect(file, isolation_level=None)) as raw:
        begin(log, 4)
        before = log.frontier()
        raw.execute("DELETE FROM stash_row WHERE version = 2 AND number = 1")
        with pytest.raises(CorruptData, match="version 2 of the log has 0 rows of objects"):
            log.compact(3, TOKEN)
        raw.execute("DELETE FROM stash_row WHERE version = 2")
        with pytest.raises(CorruptData, match="version 2 is missing in the log; nothing was"):
            log.compact(3, TOKEN)
        with pytest.raises(CorruptData, match="a hole: version 2 is missing"):
            log.updates(1, 5)
        assert log.frontier() == before


def test_reading_past_the_last_version_names_the_last_version(file: Path) -> None:
    with stash_in(file) as log:
        begin(log, 2)
        with pytest.raises(VersionNotFound, match="not in the log; the latest is 2"):
            log.updates(2, 4)
        assert log.token() == TOKEN
