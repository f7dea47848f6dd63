"""A store is opened only where it is whole, and written only where it stands."""

from __future__ import annotations

import logging
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner

from strandline.catalog.commands import (
    CreateSchema,
)
from strandline.cli.main import main
from strandline.errors import (
    CorruptData,
    IncompatibleFormat,
    StoreMoved,
)
from strandline.node import DATABASE_FILE, HEAD_FILE, Node
from strandline.node.store_database import (
    BackgroundCheck,
    accept_loss,
    head_of,
    open_store_database,
)
from strandline.sql import open_sqlite
from strandline.sql.head_file import SLOT_BYTES, HeadFile
from tests.node.crashed_stores import execute, log_of, write_some

# -- a database that is lost -------------------------------------------------------------------


@pytest.mark.parametrize("left", ["nothing", "no bytes", "no tables"])
def test_a_warehouse_without_its_database_is_no_new_store(folder: Path, left: str) -> None:
    with Node.open(folder) as node:
        write_some(node, 1)
    (folder / DATABASE_FILE).unlink()
    if left == "no bytes":
        (folder / DATABASE_FILE).touch()
    elif left == "no tables":
        execute(folder, "PRAGMA journal_mode=WAL")
    message = r"warehouse .*, but no database.*name another folder"
    for _ in range(2):  # the first refusal has made nothing that the second would take for a store
        with pytest.raises(CorruptData, match=message):
            Node.open(folder)
    assert left != "nothing" or not (folder / DATABASE_FILE).exists()


def test_a_head_file_alone_says_that_there_was_a_store(folder: Path) -> None:
    Node.open(folder).close()
    shutil.rmtree(folder / "warehouse", ignore_errors=True)
    (folder / DATABASE_FILE).unlink()
    with pytest.raises(CorruptData, match=r"has strandline\.head, but no database"):
        Node.open(folder)


def test_a_folder_with_an_empty_warehouse_becomes_a_store(folder: Path) -> None:
    (folder / "warehouse").mkdir(parents=True)
    Node.open(folder).close()


# -- the head file -----------------------------------------------------------------------------


def test_the_head_file_says_after_each_commit_what_the_database_has(folder: Path) -> None:
    with Node.open(folder) as node:
        for number in range(3):
            write_some(node, 1, first=number)
            said = head_of(folder).says()
            assert said == {
                "catalog version": node.catalogs.latest_catalog().version,
                "event": node.notifications.head(),
                "transaction": number + 1,
            }


def test_several_processes_never_take_the_head_back(folder: Path) -> None:
    with Node.open(folder) as one, Node.open(folder) as other:
        write_some(one, 1)
        late = {"catalog version": 1, "event": 1, "transaction": 0}
        write_some(other, 1, first=1)
        before = head_of(folder).says()
        head_of(folder).note(late)
        assert head_of(folder).says() == before


@pytest.mark.parametrize(
    "spoil",
    [
        lambda data: b"",
        lambda data: b"\xff" * len(data),
        lambda data: data[:40],
    ],
    ids=["empty", "overwritten", "short"],
)
def test_a_head_file_that_is_lost_or_damaged_says_nothing_and_is_made_anew(
    folder: Path, spoil: Callable[[bytes], bytes], caplog: pytest.LogCaptureFixture
) -> None:
    with Node.open(folder) as node:
        write_some(node, 1)
    said = head_of(folder).says()
    data = (folder / HEAD_FILE).read_bytes()
    (folder / HEAD_FILE).write_bytes(spoil(data))
    with caplog.at_level(logging.WARNING), Node.open(folder):
        pass
    assert "strandline.head is damaged" in caplog.text
    assert head_of(folder).says() == said
    (folder / HEAD_FILE).unlink()
    Node.open(folder).close()
    assert head_of(folder).says() == said


@pytest.mark.parametrize("torn", [0, 1])
def test_a_torn_write_of_the_head_leaves_the_other_slot(folder: Path, torn: int) -> None:
    with Node.open(folder) as node:
        write_some(node, 2)
    before = head_of(folder).says()
    data = bytearray((folder / HEAD_FILE).read_bytes())
    data[torn * SLOT_BYTES + 12] ^= 0x10
    (folder / HEAD_FILE).write_bytes(bytes(data))
    said = head_of(folder).says()
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
        assert caplog.text.count("cannot be written and stays behind") == 1
        (folder / HEAD_FILE).rmdir()
        write_some(node, 1, first=2)
    said = head_of(folder).says()
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
def test_a_store_that_is_no_longer_there_takes_no_write_and_health_says_so(
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


# -- a schema that is not ours -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("statement", "says"),
    [
        ("DROP TABLE notification_log", "lost its table notification_log"),
        ("DROP TABLE strandline_fence", "lost its table strandline_fence"),
        ("DROP TABLE hold", "lost its table hold"),
        ("DROP TABLE metastorage", "lost its table metastorage"),
        ("ALTER TABLE hold RENAME COLUMN owner TO holder", "no column 'owner' in its table hold"),
        ("DELETE FROM strandline_schema WHERE part = 'metastore'", "not the version of that part"),
    ],
)
def test_a_missing_table_or_column_stops_the_start(folder: Path, statement: str, says: str) -> None:
    Node.open(folder).close()
    execute(folder, statement)
    with pytest.raises(CorruptData, match=says):
        Node.open(folder)


def test_a_part_of_a_newer_release_stops_the_start(folder: Path) -> None:
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
            found = connection.execute("SELECT name FROM sqlite_master WHERE name LIKE '%_whole'")
            return sorted(row[0] for row in found)

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
def test_no_command_makes_another_database_where_one_was_lost(
    folder: Path, left: str, words: list[str]
) -> None:
    with Node.open(folder) as node:
        write_some(node, 1)
    for file in folder.glob(f"{DATABASE_FILE}*"):
        file.unlink()
    if left == "an empty file":
        (folder / DATABASE_FILE).touch()
    for command in (words, ["accept-loss", "--yes"]):
        result = CliRunner().invoke(main, [command[0], str(folder), *command[1:]])
        assert result.exit_code == 65, result.output
        assert "is missing or empty" in result.output
    assert not (folder / DATABASE_FILE).exists() or not (folder / DATABASE_FILE).stat().st_size
    with pytest.raises(CorruptData, match="is missing or empty"):
        Node.open(folder)


def test_a_database_without_a_version_is_no_loss_to_be_accepted(folder: Path) -> None:
    with Node.open(folder) as node:
        write_some(node, 1)
    for file in folder.glob(f"{DATABASE_FILE}*"):
        file.unlink()
    open_sqlite(folder / DATABASE_FILE).close()  # what an older release's tools left
    with pytest.raises(CorruptData, match="is missing or empty"):
        accept_loss(folder)


# -- a database that is too large to be read at its opening ------------------------------------


def test_damage_that_is_found_later_stops_every_write_and_is_told(
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
        check = BackgroundCheck(database)
        check.start()
        check.join()
        assert "is damaged" in caplog.text
        with pytest.raises(CorruptData, match="restore from a backup"):
            database.check_damage()
        with (
            pytest.raises(CorruptData, match="restore from a backup"),
            database.write() as writing,
        ):
            writing.exec_driver_sql("UPDATE strandline_clock SET time = time + 1")


def test_a_commit_of_another_while_the_head_is_compared_is_no_loss(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Node.open(folder) as node:
        real = HeadFile.marks_of

        def marks_before_a_commit(head: HeadFile, connection: sqlite3.Connection) -> dict[str, int]:
            marks = real(head, connection)
            monkeypatch.setattr(HeadFile, "marks_of", real)
            node.session(user="ann").execute(CreateSchema(name="meanwhile"))
            return marks

        monkeypatch.setattr(HeadFile, "marks_of", marks_before_a_commit)
        open_store_database(folder).close()
        assert HeadFile.marks_of is real
