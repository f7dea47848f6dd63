"""A store is opened only where it is whole, and written only where it stands."""

from __future__ import annotations

import logging
import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from strandline.catalog import Command
from strandline.catalog.commands import (
    ColumnDefinition,
    CreateSchema,
    CreateTable,
    DropTable,
    RenameTable,
    TableDefinition,
)
from strandline.cli.main import main
from strandline.durable import MetastorageLog
from strandline.errors import (
    CorruptData,
    IncompatibleFormat,
    StoreMoved,
    TransactionNotFound,
    Unavailable,
)
from strandline.metastore.store.notifications import Notification
from strandline.metastore.store.rows import DataFile, new_file
from strandline.model.descriptors import TableKind
from strandline.model.types import INT
from strandline.node import DATABASE_FILE, HEAD_FILE, Node, relocate
from strandline.node.store_database import BackgroundCheck, accept_loss, head_of
from strandline.sql import SqliteDatabase, open_sqlite
from strandline.sql.head_file import SLOT_BYTES


def write_some(node: Node, count: int, *, first: int = 0) -> None:
    """Versions and commits, each synced."""
    session = node.session(user="ann")
    for number in range(first, first + count):
        definition = TableDefinition(
            name=f"t{number}", columns=(ColumnDefinition("a", INT),), transactional=True
        )
        session.execute(CreateTable(schema="default", definition=definition))
        table_id = session.table(f"default.t{number}").descriptor.id
        txn_id = node.transactions.begin(user="ann").txn_id
        content = DataFile(file_id=1, path="f", rows=1, bytes=1)
        node.store.stage(txn_id, table_id, add=[new_file(content)])
        node.transactions.commit(txn_id)


def left_by_a_crash(folder: Path, copy: Path, versions: int) -> Path:
    """A store as a killed node leaves it: nothing of its log is in the database yet."""
    with Node.open(folder) as node:
        write_some(node, 2)
    with Node.open(folder) as node:
        write_some(node, versions, first=2)
        shutil.copytree(folder, copy)
    return copy


def _table_names(node: Node) -> list[str]:
    return [row.name for row in node.catalogs.present().tables()]


def log_of(folder: Path) -> Path:
    return folder / f"{DATABASE_FILE}-wal"


def execute(folder: Path, *statements: str) -> None:
    with closing(sqlite3.connect(folder / DATABASE_FILE)) as connection, connection:
        for statement in statements:
            connection.execute(statement)


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
    for _ in range(2):  # the first refusal has made nothing that the second would take for a store
        with pytest.raises(CorruptData, match=r"warehouse .* and no database.*name another folder"):
            Node.open(folder)
    assert left != "nothing" or not (folder / DATABASE_FILE).exists()


def test_a_head_file_alone_says_that_there_was_a_store(folder: Path) -> None:
    Node.open(folder).close()
    shutil.rmtree(folder / "warehouse", ignore_errors=True)
    (folder / DATABASE_FILE).unlink()
    with pytest.raises(CorruptData, match=r"has strandline\.head and no database"):
        Node.open(folder)


def test_a_folder_with_an_empty_warehouse_becomes_a_store(folder: Path) -> None:
    (folder / "warehouse").mkdir(parents=True)
    Node.open(folder).close()


# -- a log that is lost ------------------------------------------------------------------------


def test_what_ddl_does_outside_the_catalog_is_done_again_after_a_power_cut(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    crashed, before = tmp_path / "crashed", []
    monkeypatch.setattr(SqliteDatabase, "sync", lambda _: None)  # as if it had not come so far
    rename = RenameTable(schema="default", table="t", new_name="u")
    run_until_power_cut(folder, crashed, rename, then=lambda node: before.extend(events(node)))
    with Node.open(crashed) as node:
        table = node.session(user="ann").table("default.u")
        assert table.location == f"file://{crashed}/warehouse/u"
        assert (crashed / "warehouse" / "u" / "data").exists()
        assert events(node) == before


def events(node: Node) -> list[Notification]:
    return node.notifications.read(0, limit=100)


def create_t() -> CreateTable:
    columns = (ColumnDefinition("a", INT),)
    return CreateTable(schema="default", definition=TableDefinition(name="t", columns=columns))


def run_until_power_cut(
    folder: Path, crashed: Path, *commands: Command, then: Callable[[Node], object]
) -> None:
    """Create a table ``t``, give it a file, execute ``commands``; and then the power goes."""
    synced: list[int] = []
    with Node.open(folder) as node, pytest.MonkeyPatch.context() as patch:
        session = node.session(user="ann")
        session.execute(create_t())
        (folder / "warehouse" / "t" / "data").touch()
        append, sync = MetastorageLog.append, SqliteDatabase.sync

        def noted_append(*arguments: Any, **named: Any) -> Any:  # Any: as the log's
            appended = append(*arguments, **named)
            synced.append(log_of(folder).stat().st_size)
            return appended

        def noted_sync(database: SqliteDatabase) -> None:
            sync(database)
            synced.append(log_of(folder).stat().st_size)

        patch.setattr(MetastorageLog, "append", noted_append)
        patch.setattr(SqliteDatabase, "sync", noted_sync)
        session.execute(commands)
        then(node)
        shutil.copytree(folder, crashed)
    os.truncate(log_of(crashed), synced[-1])  # what was not synced is lost
    relocate(crashed, copy=True)


def test_folders_that_were_touched_twice_are_not_met_twice_after_a_power_cut(
    folder: Path, tmp_path: Path
) -> None:
    crashed = tmp_path / "crashed"
    rename = RenameTable(schema="default", table="t", new_name="u")
    run_until_power_cut(folder, crashed, rename, create_t(), then=lambda _: None)
    with Node.open(crashed) as node:
        session = node.session(user="ann")
        for name in ("t", "u"):
            assert session.table(f"default.{name}").location == f"file://{crashed}/warehouse/{name}"
    assert (crashed / "warehouse" / "u" / "data").exists()


@pytest.mark.parametrize("purge", [False, True])
def test_files_written_in_the_place_of_a_dropped_table_stay_there_after_a_power_cut(
    folder: Path, tmp_path: Path, purge: bool
) -> None:
    crashed = tmp_path / "crashed"

    def write_anew(_: Node) -> None:
        (folder / "warehouse" / "t").mkdir()
        (folder / "warehouse" / "t" / "new").touch()

    drop = DropTable(schema="default", table="t", purge=purge)
    run_until_power_cut(folder, crashed, drop, then=write_anew)
    with Node.open(crashed) as node:
        assert (crashed / "warehouse" / "t" / "new").exists()
        session = node.session(user="ann")
        session.execute(create_t())
        assert session.table("default.t").location == f"file://{crashed}/warehouse/t"


def test_a_move_that_was_not_synced_is_synced_before_the_next_answer(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync, syncs = SqliteDatabase.sync, 0

    def fail_first(database: SqliteDatabase) -> None:
        nonlocal syncs
        syncs += 1
        if syncs == 1:
            raise Unavailable("the disk fails")
        sync(database)

    with Node.open(folder) as node:
        node.session(user="ann").execute(create_t())
        monkeypatch.setattr(SqliteDatabase, "sync", fail_first)
        node.session(user="ann").execute(DropTable(schema="default", table="t"))
        assert syncs == 2


def write_nothing(node: Node) -> None:
    node.transactions.holds.release(99)  # there is none, so the commit syncs nothing


def open_beside(node: Node) -> None:
    Node.open(node.folder, background=False).close()


@pytest.mark.parametrize("then", [write_nothing, open_beside])
def test_the_head_file_does_not_name_an_event_that_a_power_cut_may_take(
    folder: Path, tmp_path: Path, then: Callable[[Node], None]
) -> None:
    crashed = tmp_path / "crashed"
    with Node.open(folder) as node:
        elsewhere = TableDefinition(
            name="e", columns=(ColumnDefinition("a", INT),), kind=TableKind.EXTERNAL, location="/e"
        )
        node.session(user="ann").execute(CreateTable(schema="default", definition=elsewhere))
    run_until_power_cut(folder, crashed, DropTable(schema="default", table="e"), then=then)
    with Node.open(crashed) as node:
        assert node.session(user="ann").tables("default") == ["t"]


def after_a_power_cut(folder: Path, crashed: Path, *, synced: int) -> Path:
    """A copy of the store without what its log has behind the bytes that were synced."""
    shutil.copytree(folder, crashed)
    os.truncate(log_of(crashed), synced)
    relocate(crashed, copy=True)
    return crashed


def test_a_transaction_that_a_power_cut_took_is_gone_and_its_id_is_not_given_again(
    folder: Path, tmp_path: Path
) -> None:
    Node.open(folder).close()
    with Node.open(folder) as node:
        write_some(node, 1)
        session = node.session(user="ann")
        table_id = session.table("t0").descriptor.id
        synced = log_of(folder).stat().st_size
        lost = session.begin().txn_id
        assert log_of(folder).stat().st_size > synced
        crashed = after_a_power_cut(folder, tmp_path / "crashed", synced=synced)
    with Node.open(crashed) as node:
        session = node.session(user="ann")
        assert session.begin().txn_id > lost
        content = DataFile(file_id=lost << 20, path="g", rows=1, bytes=1)
        for call in (
            lambda: session.stage(lost, table_id, add=[content]),
            lambda: session.commit(lost),
            lambda: session.heartbeat(lost),
        ):
            with pytest.raises(TransactionNotFound, match=f"transaction {lost}"):
                call()


def test_what_was_staged_survives_a_power_cut_and_is_committed_after_it(
    folder: Path, tmp_path: Path
) -> None:
    Node.open(folder).close()
    with Node.open(folder) as node:
        write_some(node, 1)
        session = node.session(user="ann")
        table_id, txn_id = session.table("t0").descriptor.id, session.begin().txn_id
        content = DataFile(file_id=txn_id << 20, path="g", rows=1, bytes=1)
        session.stage(txn_id, table_id, add=[content])
        synced = log_of(folder).stat().st_size
        session.begin()
        crashed = after_a_power_cut(folder, tmp_path / "crashed", synced=synced)
    with Node.open(crashed) as node:
        session = node.session(user="ann")
        session.commit(txn_id)
        snapshot = session.open(["t0"])
        files = session.files(table_id, snapshot.write_ids[table_id]).data_files
        assert [file.path for file in files] == ["f", "g"]


def test_ids_have_gaps_behind_a_kill_alone(folder: Path, tmp_path: Path) -> None:
    with Node.open(folder) as node:
        first = node.transactions.begin(user="ann").txn_id
    with Node.open(folder) as node:
        assert node.transactions.begin(user="ann").txn_id == first + 1
        killed = shutil.copytree(folder, tmp_path / "killed")
    relocate(killed, copy=True)
    with Node.open(killed) as node:
        assert node.transactions.get(first + 1).txn_id == first + 1
        assert node.transactions.begin(user="ann").txn_id > first + 2


def test_a_store_that_crashed_is_opened_with_all_that_was_committed(
    folder: Path, tmp_path: Path
) -> None:
    crashed = left_by_a_crash(folder, tmp_path / "crashed", 3)
    relocate(crashed, copy=True)
    with Node.open(crashed) as node:
        assert {f"t{n}" for n in range(5)} <= set(_table_names(node))


@pytest.mark.parametrize("damage", ["removed", "cut", "flipped"])
def test_a_lost_end_of_the_log_is_told_and_can_be_accepted(
    folder: Path, tmp_path: Path, damage: str
) -> None:
    crashed = left_by_a_crash(folder, tmp_path / "crashed", 3)
    whole = log_of(crashed).read_bytes()
    if damage == "removed":
        log_of(crashed).unlink()
        (crashed / f"{DATABASE_FILE}-shm").unlink()
    elif damage == "cut":
        log_of(crashed).write_bytes(whole[: len(whole) // 2])
    else:
        middle = len(whole) // 2
        log_of(crashed).write_bytes(
            whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :]
        )
    said = head_of(crashed).says()
    assert said is not None
    for _ in range(2):
        with pytest.raises(CorruptData, match=r"missing are catalog version.*transaction"):
            Node.open(crashed)
    with pytest.raises(CorruptData, match=r"missing are catalog version.*transaction"):
        relocate(crashed, copy=True)
    refused = CliRunner().invoke(main, ["log", str(crashed)])
    assert refused.exit_code == 65
    done = CliRunner().invoke(main, ["accept-loss", str(crashed), "--yes"])
    assert done.exit_code == 0, done.output
    assert "lost" in done.output
    relocate(crashed, copy=True)
    with Node.open(crashed) as node:
        write_some(node, 1, first=10)
    before, now = accept_loss(crashed)
    assert before == now  # nothing is missing any more


def test_what_is_missing_is_named_exactly(folder: Path, tmp_path: Path) -> None:
    with Node.open(folder) as node:
        write_some(node, 1)
        version = node.catalogs.latest_catalog().version
        event, transaction = node.notifications.head(), 1
    shutil.copy(folder / DATABASE_FILE, tmp_path / "older.db")
    with Node.open(folder) as node:
        write_some(node, 3, first=1)
        last, last_event = node.catalogs.latest_catalog().version, node.notifications.head()
    shutil.copy(tmp_path / "older.db", folder / DATABASE_FILE)
    with pytest.raises(CorruptData) as refused:
        Node.open(folder)
    assert (
        f"missing are catalog versions {version + 1} to {last}, events {event + 1} to {last_event},"
        f" transactions {transaction + 1} to 4, which were committed"
    ) in refused.value.message


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
