"""A store is opened only if it is complete, and written only at its recorded place."""

from __future__ import annotations

import logging
import shutil
import sqlite3
import threading
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import pytest

from strandline.catalog.commands import CreateSchema
from strandline.errors import CorruptData, IncompatibleFormat, StoreMoved, Unavailable
from strandline.node import DATABASE_FILE, Node, store_database
from strandline.node.store_database import (
    MARKS,
    accept_loss,
    examine_in_background,
    head_of,
    keep_head,
    open_store_database,
)
from strandline.node.store_place import HEAD_FILE
from strandline.sql import SqliteDatabase, open_sqlite
from strandline.sql.head_file import SLOT_BYTES, HeadFile
from tests.node.crashed_stores import execute, log_of, write_some
from tests.strandline_command import strandline

# -- a database that is lost -------------------------------------------------------------------


@pytest.mark.parametrize("left", ["nothing", "no bytes", "no tables", "a log"])
def test_a_warehouse_without_its_database_is_not_taken_for_a_new_store(
    folder: Path, left: str
) -> None:
    with Node.open(folder) as node:
        write_some(node, 1)
        log = log_of(folder).read_bytes()
    (folder / DATABASE_FILE).unlink()
    if left == "a log":
        log_of(folder).write_bytes(log)
    elif left == "no bytes":
        (folder / DATABASE_FILE).touch()
    elif left == "no tables":
        execute(folder, "PRAGMA journal_mode=WAL")
    message = r"warehouse .*, but no database.*name another folder"
    for _ in range(2):  # the first refusal must leave nothing that the second takes for a store
        with pytest.raises(CorruptData, match=message):
            Node.open(folder)
    assert left.startswith("no ") or not (folder / DATABASE_FILE).exists()
    assert left != "a log" or log_of(folder).read_bytes() == log


def test_a_folder_in_which_no_file_can_be_created_is_refused_with_the_reason() -> None:
    with pytest.raises(Unavailable, match=r"/proc/strandline\.db cannot be created: .*; a store"):
        Node.open(Path("/proc"))  # refuses root too


def test_a_head_file_without_a_database_is_not_taken_for_a_new_store(folder: Path) -> None:
    Node.open(folder).close()
    shutil.rmtree(folder / "warehouse", ignore_errors=True)
    (folder / DATABASE_FILE).unlink()
    with pytest.raises(CorruptData, match=r"has strandline\.head, but no database"):
        Node.open(folder)


def test_a_new_store_can_be_created_in_a_folder_with_an_empty_warehouse(folder: Path) -> None:
    (folder / "warehouse").mkdir(parents=True)
    Node.open(folder).close()


# -- the head file -----------------------------------------------------------------------------


def test_the_head_file_matches_the_database_after_each_commit(folder: Path) -> None:
    with Node.open(folder) as node:
        for number in range(3):
            write_some(node, 1, first=number)
            said = head_of(folder).recorded_marks()
            assert said == {
                "catalog version": node.catalogs.latest_catalog().version,
                "event": node.notifications.head(),
                "transaction": number + 1,
            }


def test_the_head_file_never_goes_back(folder: Path) -> None:
    with Node.open(folder) as first, Node.open(folder) as other:
        write_some(first, 1)
        late = {"catalog version": 1, "event": 1, "transaction": 0}
        write_some(other, 1, first=1)
        before = head_of(folder).recorded_marks()
        head_of(folder).note(late)
        assert head_of(folder).recorded_marks() == before


@pytest.mark.parametrize(
    "spoil",
    [
        lambda data: b"",
        lambda data: b"\xff" * len(data),
        lambda data: data[:40],
    ],
    ids=["empty", "overwritten", "short"],
)
def test_a_lost_or_damaged_head_file_is_ignored_and_rewritten(
    folder: Path, spoil: Callable[[bytes], bytes], caplog: pytest.LogCaptureFixture
) -> None:
    with Node.open(folder) as node:
        write_some(node, 1)
    said = head_of(folder).recorded_marks()
    data = (folder / HEAD_FILE).read_bytes()
    (folder / HEAD_FILE).write_bytes(spoil(data))
    with caplog.at_level(logging.WARNING), Node.open(folder):
        pass
    assert "strandline.head is damaged; its content is ignored, and a node will" in caplog.text
    assert head_of(folder).recorded_marks() == said
    (folder / HEAD_FILE).unlink()
    Node.open(folder).close()
    assert head_of(folder).recorded_marks() == said


def test_an_opener_records_only_what_it_has_synced_in_the_head_file(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Node.open(folder) as node:
        write_some(node, 1)
    before = head_of(folder).recorded_marks()
    (folder / HEAD_FILE).unlink()
    sync, existed = SqliteDatabase.sync, list[bool]()

    def then_commit(database: SqliteDatabase) -> None:
        existed.append((folder / HEAD_FILE).exists())
        sync(database)
        execute(folder, "UPDATE sqlite_sequence SET seq = 99 WHERE name = 'txn'")

    with closing(open_store_database(folder)) as database:
        with monkeypatch.context() as patch:
            patch.setattr(SqliteDatabase, "sync", then_commit)
            keep_head(folder, database)
        assert existed == [False]
        assert head_of(folder).recorded_marks() == before


@pytest.mark.parametrize("torn", [0, 1])
def test_a_torn_write_of_the_head_file_leaves_the_other_slot(folder: Path, torn: int) -> None:
    with Node.open(folder) as node:
        write_some(node, 2)
    before = head_of(folder).recorded_marks()
    data = bytearray((folder / HEAD_FILE).read_bytes())
    data[torn * SLOT_BYTES + 12] ^= 0x10
    (folder / HEAD_FILE).write_bytes(bytes(data))
    said = head_of(folder).recorded_marks()
    assert before is not None
    assert said is not None
    assert all(said[name] <= before[name] for name in before)


def test_a_head_file_that_cannot_be_written_stops_no_commit(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Node.open(folder) as node, caplog.at_level(logging.WARNING):
        (folder / HEAD_FILE).unlink()
        (folder / HEAD_FILE).mkdir()
        write_some(node, 2)
        assert caplog.text.count("cannot be written and is not up to date") == 1
        (folder / HEAD_FILE).rmdir()
        write_some(node, 1, first=2)
    said = head_of(folder).recorded_marks()
    assert said is not None
    assert said["transaction"] == 3


# -- a store that moves under a node -----------------------------------------------------------


def moved(folder: Path) -> None:
    folder.rename(folder.with_name("elsewhere"))


def replaced(folder: Path) -> None:
    moved(folder)
    Node.open(folder).close()


def deleted(folder: Path) -> None:
    shutil.rmtree(folder)


def without_log(folder: Path) -> None:
    log_of(folder).unlink()


@pytest.mark.parametrize("away", [moved, replaced, deleted, without_log])
def test_a_store_that_was_moved_away_refuses_writes_and_is_unhealthy(
    folder: Path, away: Callable[[Path], None]
) -> None:
    with Node.open(folder) as node:
        write_some(node, 1)
        assert node.health.report() == []
        away(folder)
        session = node.session(user="ann")
        for _ in range(2):
            with pytest.raises(StoreMoved, match="moved, deleted or replaced"):
                session.execute(CreateSchema(name="lost"))
        assert not (folder / "warehouse" / "lost.db").exists()
        assert "database in its place" in [problem.check for problem in node.health.report()]


def test_a_new_connection_without_the_log_says_that_it_was_moved(folder: Path) -> None:
    """SQLite says that the disk fails, which sends the operator to the wrong place."""
    with Node.open(folder) as node:
        write_some(node, 1)
        without_log(folder)
        moved = pytest.raises(StoreMoved, match="write-ahead log was moved, deleted or replaced")
        with moved, ExitStack() as stack:
            for _ in range(9):
                stack.enter_context(node.database.read())


def test_a_new_connection_leaves_the_log_of_a_database_that_was_moved_away(folder: Path) -> None:
    database, elsewhere = folder / DATABASE_FILE, folder / "elsewhere"
    with Node.open(folder) as node:
        write_some(node, 2)
        log = log_of(folder).read_bytes()
        database.rename(elsewhere)
        with ExitStack() as stack:
            for _ in range(9):
                with suppress(StoreMoved):
                    stack.enter_context(node.database.read())
        assert not database.exists()
        assert log_of(folder).read_bytes() == log


# -- a schema that does not fit ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("statement", "says"),
    [
        ("DROP TABLE notification_log", "no longer has its table notification_log"),
        ("DROP TABLE strandline_fence", "no longer has its table strandline_fence"),
        ("DROP TABLE hold", "no longer has its table hold"),
        ("DROP TABLE metastorage", "no longer has its table metastorage"),
        ("ALTER TABLE hold RENAME COLUMN owner TO holder", "no column 'owner' in its table hold"),
        (
            "DELETE FROM strandline_schema WHERE part = 'metastore'",
            "the version of that part is missing",
        ),
    ],
)
def test_a_store_with_a_missing_table_or_column_is_refused(
    folder: Path, statement: str, says: str
) -> None:
    Node.open(folder).close()
    execute(folder, statement)
    with pytest.raises(CorruptData, match=says):
        Node.open(folder)


def test_a_store_with_a_part_of_a_newer_release_is_refused(folder: Path) -> None:
    Node.open(folder).close()
    execute(folder, "INSERT INTO strandline_schema VALUES ('places', 7)")
    with pytest.raises(IncompatibleFormat, match=r"'places' \(version 7\)"):
        Node.open(folder)


def test_a_store_of_an_older_release_gets_the_indexes_that_find_flipped_bytes(
    folder: Path,
) -> None:
    Node.open(folder).close()

    def whole_row_indexes() -> list[str]:
        with closing(sqlite3.connect(folder / DATABASE_FILE)) as connection:
            rows = connection.execute("SELECT name FROM sqlite_master WHERE name LIKE '%_whole'")
            return sorted(row[0] for row in rows)

    names = whole_row_indexes()
    assert len(names) >= 9
    newer = ("strandline_place_whole", "strandline_catalog_log_whole")
    execute(
        folder,
        *(f"DROP INDEX {name}" for name in names if name not in newer),
        "DROP TABLE lock_request",
        "DROP TABLE lock_component",
        "DROP TABLE partition_move",
        "DROP TABLE txn_reserved",
        "ALTER TABLE hold DROP COLUMN user",
        "UPDATE strandline_schema SET version = 1 WHERE part NOT IN ('place', 'catalog_log')",
    )
    Node.open(folder).close()
    assert whole_row_indexes() == names


@pytest.mark.parametrize("left", ["nothing", "an empty file"])
@pytest.mark.parametrize(
    "words", [["repair-clock"], ["relocate"], ["relocate", "--copy"], ["log"], ["verify"]]
)
def test_no_command_creates_a_database_in_place_of_a_lost_one(
    folder: Path, left: str, words: list[str]
) -> None:
    with Node.open(folder) as node:
        write_some(node, 1)
    for file in folder.glob(f"{DATABASE_FILE}*"):
        file.unlink()
    if left == "an empty file":
        (folder / DATABASE_FILE).touch()
    for command in (words, ["accept-loss", "--yes"]):
        result = strandline(command[0], folder, *command[1:])
        assert result.exit_code == 65, result.output
        assert "is missing or empty" in result.output
    assert not (folder / DATABASE_FILE).exists() or not (folder / DATABASE_FILE).stat().st_size
    with pytest.raises(CorruptData, match="is missing or empty"):
        Node.open(folder)


def test_the_loss_of_a_whole_database_cannot_be_accepted(folder: Path) -> None:
    with Node.open(folder) as node:
        write_some(node, 1)
    for file in folder.glob(f"{DATABASE_FILE}*"):
        file.unlink()
    open_sqlite(folder / DATABASE_FILE).close()  # what the tools of an older release left
    with pytest.raises(CorruptData, match="is missing or empty"):
        accept_loss(folder, confirm=lambda before, now: None)


# -- a database that is too large to be read at its opening ------------------------------------


def test_damage_found_in_the_background_stops_writes_and_is_logged(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Node.open(folder) as node:
        write_some(node, 1)
    with closing(sqlite3.connect(folder / DATABASE_FILE)) as connection:
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute("DELETE FROM sqlite_master WHERE name = 'hold_whole'")
        connection.commit()
    database = open_sqlite(folder / DATABASE_FILE, check_bytes=0)
    with closing(database):
        assert not database.was_checked
        database.check_damage()
        examine_in_background(database)
        for thread in threading.enumerate():
            if thread.name == "integrity":
                thread.join()
        assert "is damaged" in caplog.text
        with pytest.raises(CorruptData, match="restore from a backup"):
            database.check_damage()
        with (
            pytest.raises(CorruptData, match="restore from a backup"),
            database.write() as writing,
        ):
            writing.exec_driver_sql("UPDATE strandline_clock SET time = time + 1")


def test_a_concurrent_commit_during_the_comparison_of_the_head_is_not_a_loss(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Node.open(folder) as node:
        committed = []

        class Raced(HeadFile):
            def read_marks(self, connection: sqlite3.Connection) -> dict[str, int]:
                marks = super().read_marks(connection)
                committed.append(node.session(user="ann").execute(CreateSchema(name="meanwhile")))
                return marks

        monkeypatch.setattr(
            store_database, "head_of", lambda folder: Raced(folder / HEAD_FILE, MARKS)
        )
        open_store_database(folder).close()
        assert committed
