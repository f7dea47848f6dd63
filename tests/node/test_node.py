"""Opening a store, sharing it between processes, and refusing a damaged one."""

from __future__ import annotations

import errno
import os
import signal
import sqlite3
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from strandline.catalog.commands import (
    ColumnDefinition,
    CreateRole,
    CreateSchema,
    CreateTable,
    TableDefinition,
)
from strandline.clock import Timestamp, system_wall_clock
from strandline.config import Settings
from strandline.errors import (
    Conflict,
    CorruptData,
    Fenced,
    IncompatibleFormat,
    InvalidInput,
    Stopping,
    StrandlineError,
    Unavailable,
    UnsupportedOperation,
    VersionNotFound,
)
from strandline.metastore.cache import log_applier
from strandline.metastore.store.cleaning import Cleaner
from strandline.model.types import INT
from strandline.node import DATABASE_FILE, Node, membership
from strandline.node.chores import Chores, ChoreStatistics
from strandline.sql import SqliteDatabase, StoreFull
from strandline.work.following import FollowingThread
from tests.metastore.dml import parameters
from tests.node.conftest import MemberProcess, create_table, sql

Start = Callable[..., MemberProcess]


def test_a_leap_of_the_clock_soon_after_the_start_ends_no_transaction(folder: Path) -> None:
    leap_ms = 0
    with Node.open(folder, wall=lambda: system_wall_clock() + leap_ms) as node:
        txn_id = node.transactions.begin(user="ann").txn_id
        leap_ms = 2 * 3_600_000
        assert node.transactions.expire() == []
        node.transactions.commit(txn_id)


# -- freshness over processes ------------------------------------------------------------------


def slept_through(folder: Path, process: MemberProcess) -> list[str]:
    """The answer of a process that was stopped while another one changed the catalog."""
    with Node.open(folder) as node:
        assert process.ask("schemas") == ["default"]
        process.send(signal.SIGSTOP)
        node.session(user="ann").execute(CreateSchema(name="while_asleep"))
        process.say("schemas")
        process.send(signal.SIGCONT)
        answer: list[str] = process.answer()
        return answer


def test_a_process_that_was_stopped_does_not_answer_from_an_old_catalog(
    folder: Path, new_process: Start
) -> None:
    assert slept_through(folder, new_process()) == ["default", "while_asleep"]


def test_the_freshness_check_finds_a_process_that_answers_from_memory(
    folder: Path, new_process: Start
) -> None:
    assert slept_through(folder, new_process(stale=True)) == ["default"]


def test_a_change_in_one_process_is_read_by_another_as_soon_as_the_call_returns(
    folder: Path, new_process: Start
) -> None:
    process = new_process()
    with Node.open(folder) as node:
        for n in range(20):
            version = process.ask("create", f"s{n}")
            present = node.catalogs.present()
            assert present.version >= version
            assert f"s{n}" in [schema.name for schema in present.schemas()]
            executed = node.session(user="ann").execute(CreateSchema(name=f"mine{n}"))
            assert process.ask("version") >= executed.version


def test_processes_that_create_a_store_concurrently_share_it(
    tmp_path: Path, new_process: Start
) -> None:
    del tmp_path
    processes = [new_process() for _ in range(2)]
    assert processes[0].ask("create", "a") < processes[1].ask("create", "b")
    assert processes[0].ask("schemas") == ["a", "b", "default"]


# -- folders that cannot be opened -------------------------------------------------------------


def spoil_text(folder: Path) -> None:
    (folder / DATABASE_FILE).write_bytes(b"this is no database, however long it may be " * 500)


def spoil_pages(folder: Path) -> None:
    Node.open(folder).close()
    data = bytearray((folder / DATABASE_FILE).read_bytes())
    data[1024:] = b"\xff" * (len(data) - 1024)
    (folder / DATABASE_FILE).write_bytes(data)


def newer_schema(folder: Path) -> None:
    Node.open(folder).close()
    sql(folder, "UPDATE strandline_schema SET version = 99 WHERE part = 'metastorage'")


def newer_record(folder: Path) -> None:
    Node.open(folder).close()
    sql(
        folder,
        "UPDATE metastorage SET value = ? WHERE key LIKE 'catalog.update.%2'",
        b"\x01\x00\x01\x00\x63",
    )


def newer_protocol(folder: Path) -> None:
    Node.open(folder).close()
    sql(
        folder,
        "UPDATE metastorage SET value = ? WHERE key LIKE 'catalog.update.%2'",
        b"\x63\x00\x01\x00\x01",
    )


def cut_record(folder: Path) -> None:
    Node.open(folder).close()
    sql(
        folder,
        "UPDATE metastorage SET value = substr(value, 1, 40) WHERE key LIKE 'catalog.update.%2'",
    )


@pytest.mark.parametrize(
    ("spoil", "error", "says"),
    [
        (spoil_text, CorruptData, "strandline.db"),
        (spoil_pages, CorruptData, "strandline.db"),
        (newer_schema, IncompatibleFormat, "99"),
        (newer_record, IncompatibleFormat, "format version 99"),
        (newer_protocol, IncompatibleFormat, "protocol 99"),
        (cut_record, CorruptData, "byte"),
    ],
)
def test_a_damaged_or_newer_store_gives_a_clear_error_and_is_not_changed(
    folder: Path, spoil: Callable[[Path], None], error: type[StrandlineError], says: str
) -> None:
    folder.mkdir()
    spoil(folder)
    before = (folder / DATABASE_FILE).read_bytes()
    with pytest.raises(error, match=says):
        Node.open(folder)
    assert (folder / DATABASE_FILE).read_bytes() == before


def test_a_file_instead_of_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(InvalidInput, match="not a folder"):
        Node.open(tmp_path / "file")
    with pytest.raises(InvalidInput, match="cannot be created"):
        Node.open(tmp_path / "file" / "below")


@pytest.mark.parametrize("settings", [{}, {"cache_bytes": 1}, "cache_bytes"])
def test_settings_of_another_type_are_refused_before_a_store_is_created(
    folder: Path, settings: Any
) -> None:
    with pytest.raises(InvalidInput, match=r"settings are a Settings\(…\) .*, not a (dict|str)"):
        Node.open(folder, settings=settings)
    assert not folder.exists()


def test_a_store_can_be_opened_and_read_while_another_connection_holds_its_lock(
    folder: Path,
) -> None:
    with Node.open(folder) as node:
        node.session(user="ann").execute(CreateSchema(name="s"))
    with closing(sqlite3.connect(folder / DATABASE_FILE, isolation_level=None)) as holder:
        holder.execute("BEGIN IMMEDIATE")
        with Node.open(folder, background=False) as child:
            assert child.session(user="ann").tables("s") == []


def test_a_session_of_a_closed_node_says_that_the_store_is_closed(folder: Path) -> None:
    with Node.open(folder) as node:
        session = node.session(user="ann")
    expected = "^the store is closed in this process; nothing was read or written$"
    with pytest.raises(Stopping, match=expected):
        session.history()


def test_ddl_in_a_fork_of_a_process_with_a_node_is_refused_at_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Node.open(folder) as node, monkeypatch.context() as child:
        commits = node.catalogs._commits
        child.setattr(commits, "_thread", threading.current_thread())  # it runs in the parent
        child.setattr("os.getpid", lambda: -1)
        with pytest.raises(UnsupportedOperation, match="before this process was forked"):
            node.session(user="ann").execute(CreateRole(name="r"), timeout=1.0)


def test_a_close_in_a_fork_waits_for_no_lock_that_a_thread_of_the_parent_had(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Node.open(folder) as node:
        with ThreadPoolExecutor(1) as threads, monkeypatch.context() as child, node.database._state:
            child.setattr("os.getpid", lambda: -1)
            threads.submit(node.close).result(timeout=10.0)
        node.session(user="ann").execute(CreateRole(name="r"))


def test_a_node_can_be_closed_twice(folder: Path) -> None:
    node = Node.open(folder)
    node.close()
    node.close()


# -- joining while others are at work ----------------------------------------------------------


def test_the_folder_of_a_new_store_is_on_disk(tmp_path: Path, synced: list[str]) -> None:
    """Otherwise a power cut could remove it, with all that was acknowledged."""
    Node.open(tmp_path / "a" / "s").close()
    assert {str(tmp_path), f"{tmp_path}/a"} <= {*synced}


def test_nodes_that_create_a_store_concurrently_all_work(folder: Path) -> None:
    start = threading.Barrier(4)
    nodes: list[Node] = []

    def open_one(_: int) -> None:
        start.wait()
        nodes.append(Node.open(folder))

    try:
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(open_one, range(4)))
        for number, node in enumerate(nodes):
            node.session(user="ann").execute(CreateSchema(name=f"s{number}"))
            assert node.session(user="ann").begin().txn_id > 0
        assert {len(node.catalogs.present().schemas()) for node in nodes} == {6}
    finally:
        for node in nodes:
            node.close()


def test_a_node_can_join_while_another_changes_the_catalog(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Node.open(folder) as node:
        agree = membership._agree

        def agree_late(*of_the_joining: Any) -> None:
            node.session(user="ann").execute(CreateSchema(name="meanwhile"))
            agree(*of_the_joining)

        monkeypatch.setattr(membership, "_agree", agree_late)
        with Node.open(folder) as joined:
            assert joined.catalogs.latest_catalog().schema("meanwhile") is not None


def test_rows_older_than_their_catalog_are_refused(folder: Path) -> None:
    Node.open(folder).close()
    sql(folder, "UPDATE strandline_fence SET epoch = 0")
    with pytest.raises(Fenced, match="restored from an older backup than the catalog"):
        Node.open(folder)


def test_a_node_that_fails_to_start_leaves_no_thread(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = FollowingThread.start

    def fail(thread: FollowingThread) -> None:
        if thread._name == "cache-applier":  # after those of the catalog and the projector
            raise Unavailable("no more threads")
        start(thread)

    monkeypatch.setattr(FollowingThread, "start", fail)
    before = set(threading.enumerate())
    with pytest.raises(Unavailable, match="no more threads"):
        Node.open(folder)
    assert set(threading.enumerate()) <= before


# -- trimming, and the effects of DDL outside the catalog --------------------------------------


def test_history_is_not_trimmed_before_the_effects_of_its_ddl_are_carried_out(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = folder / "warehouse" / "late.db"

    def full(path: Path, *_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    with Node.open(folder) as node:
        session = node.session(user="ann")
        with monkeypatch.context() as patch:
            patch.setattr(os, "mkdir", full)
            with pytest.raises(Unavailable, match="failed"):
                session.execute(CreateSchema(name="late"))
            version = node.catalogs.present().version
            with pytest.raises(Unavailable, match="failed"):
                session.compact(version)
            assert node.catalogs.earliest_catalog().version == 0
        assert session.compact(version)
        assert place.is_dir()
        create_table(node)


def test_trimmed_history_cannot_be_held(folder: Path) -> None:
    with Node.open(folder) as node, Node.open(folder) as other:
        session = node.session(user="ann")
        gone = session.execute(CreateSchema(name="a"))
        kept = session.execute(CreateSchema(name="b"))
        assert other.session(user="bob").compact(kept.version)
        with pytest.raises(VersionNotFound, match="no longer kept"):
            session.hold("reader", "ann", at=gone.time)
        assert node.transactions.holds.list() == ()
        assert session.hold("reader", "ann", at=kept.time).at == kept.time


@pytest.mark.parametrize(("ticks", "stops"), [(-1, True), (0, True), (1, False)])
def test_a_hold_prevents_trimming_the_history_that_it_needs(
    folder: Path, ticks: int, stops: bool
) -> None:
    with Node.open(folder) as node:
        session = node.session(user="ann")
        session.execute(CreateSchema(name="a"))
        executed = session.execute(CreateSchema(name="b"))
        hold = session.hold("reader", "ann", at=Timestamp(executed.time + ticks))
        if stops:
            with pytest.raises(Conflict, match=f"hold {hold.hold_id} of ann needs the history"):
                session.compact(executed.version)
            assert node.catalogs.earliest_catalog().version == 0
            session.release_hold(hold.hold_id)
        assert session.compact(executed.version)
        assert not session.compact(executed.version)


def test_a_folder_that_cannot_be_created_stops_no_ddl_and_no_node(folder: Path) -> None:
    in_the_way = folder / "warehouse" / "late.db"
    with Node.open(folder) as node:
        in_the_way.parent.mkdir()
        in_the_way.write_text("a file where a folder is needed")
        location = in_the_way.as_uri()
        # As if the file had been written between the check of the place and the append.
        node.catalogs.execute(CreateSchema(name="late", location=location), author="ann")
        create_table(node)
        counts = node.projector.statistics()
        assert (counts.unmade, counts.stayed, counts.unremoved) == (1, 0, 0)
    with Node.open(folder) as node:
        create_table(node, "u")
        assert node.session(user="ann").compact(node.catalogs.present().version)
        in_the_way.unlink()
        session = node.session(user="ann")
        create = CreateTable(
            schema="late",
            definition=TableDefinition(
                name="t", columns=(ColumnDefinition("a", INT),), transactional=True
            ),
        )
        session.execute(create)
        assert Path(session.table("late.t").location.removeprefix("file://")).is_dir()


def test_a_change_that_does_not_fit_on_the_disk_is_refused_at_once(folder: Path) -> None:
    with Node.open(folder) as node:
        with node._opened_store.database.write() as connection:
            pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
            connection.exec_driver_sql(f"PRAGMA max_page_count = {pages}")
        session, comment = node.session(user="ann"), "long" * 10_000
        with pytest.raises(StoreFull, match="is full; free space and try again"):
            session.execute(CreateSchema(name="a", comment=comment), timeout=600)
        assert session.execute(CreateSchema(name="a"), timeout=600).version == 3


def test_names_with_special_characters_are_escaped_in_folder_names(tmp_path: Path) -> None:
    folder = tmp_path / "a b%20c"
    with Node.open(folder) as node:
        session = node.session(user="ann")
        for name in ("..", "x/y", "ä ö", ".dropped"):
            session.execute(CreateSchema(name=name))
            create_table(node, name)
        places = sorted(p.name for p in (folder / "warehouse").iterdir())
    names = ["%2E.", "%2Edropped", "%C3%A4%20%C3%B6", "x%2Fy"]
    assert places == sorted(names + [f"{name}.db" for name in names])
    assert [p.name for p in tmp_path.iterdir()] == ["a b%20c"]


def test_an_idle_node_sends_its_store_almost_no_queries(tmp_path: Path) -> None:
    with Node.open(tmp_path / "store") as node:
        assert isinstance(node.database, SqliteDatabase)
        node.database.mark()
        node.database._moved_at -= 3600  # nothing was committed for an hour
        began, before = time.monotonic(), node.database.statistics()
        threading.Event().wait(0.5)
        after, seconds = node.database.statistics(), time.monotonic() - began
    # Two followers, whose rounds take a tenth of a second or longer.
    assert after.looks - before.looks <= 40 * seconds
    assert after.reads - before.reads <= 4 * seconds


def test_a_node_cleans_aborted_transactions_of_its_own_and_of_earlier_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strandline.node.node.CLEANING_SECONDS", 3600)  # only this test calls it

    def abort(node: Node, table_id: int) -> None:
        session = node.session(user="ann")
        txn_id = session.begin().txn_id
        session.stage(txn_id, table_id)
        session.abort(txn_id)

    with Node.open(tmp_path / "store") as node:
        session = node.session(user="ann")
        definition = TableDefinition(
            name="t", columns=(ColumnDefinition("a", INT),), transactional=True
        )
        session.execute(CreateTable(schema="default", definition=definition))
        table_id = session.table("default.t").descriptor.id
        abort(node, table_id)
    with Node.open(tmp_path / "store") as node:
        assert node.clean_aborted() == 1
        assert node.clean_aborted() == 0
        abort(node, table_id)
        with monkeypatch.context() as patch:
            patch.setattr(node.aborted_rows, "clean", lambda **_: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                node.clean_aborted()
        assert node.clean_aborted() == 1


def test_a_node_repeats_its_background_work(tmp_path: Path) -> None:
    with Node.open(tmp_path / "s", keeps_cache=True) as node:
        chores = node.statistics["chores"]()
    assert isinstance(chores, ChoreStatistics)
    assert chores.failures.keys() == {
        "looking for timed-out transactions",
        "removing aborted rows",
        "comparing the fences",
        "finishing moves of partitions",
        "cleaning",
        "measuring the storage",
        "writing the cache file",
    }


def test_a_failed_cleaning_is_logged_and_retried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    failures = [Unavailable("the disk is away"), ZeroDivisionError()]
    finished = threading.Event()

    def clean(_: Cleaner, **options: object) -> None:
        if failures:
            raise failures.pop(0)
        finished.set()

    monkeypatch.setattr(Cleaner, "clean", clean)
    with Node.open(tmp_path / "s", settings=Settings(clean_interval_ms=1)):
        assert finished.wait(60)
    messages = [record.message for record in caplog.records if "cleaning" in record.message]
    assert messages[:2] == [  # after which it may log that cleaning works again
        "cleaning failed: the disk is away; it will be tried again later",
        "cleaning failed; it will be tried again later",
    ]


def read_parameters(node: Node, table_id: int) -> tuple[int, int, int]:
    """Reads a table's parameters; returns the hits, misses and loads of the cache."""
    assert parameters(node.store, table_id, write_ids=None) == (("numRows", "1"),)
    counts = node.store.statistics()
    return counts.hits, counts.misses, counts.loads


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_node_that_keeps_its_cache_starts_with_it(
    tmp_path: Path, elsewhere: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_applier, "SHORTEST_TIMEOUT", 60.0)  # else a slow look is a miss
    store = tmp_path / "store"
    settings = Settings(cache_folder=str(tmp_path) if elsewhere else "")
    with Node.open(store, settings=settings, keeps_cache=True) as node:
        table_id = create_table(node)
        node.store.set_parameters(table_id, (("numRows", "1"),), author="ann")
        assert read_parameters(node, table_id) == (1, 0, 1)
    (file,) = (tmp_path if elsewhere else store).glob("*.cache")
    assert file.stat().st_mode & 0o777 == 0o600
    written = file.stat().st_mtime_ns
    with Node.open(store, settings=settings) as embedded:
        embedded.store.set_parameters(table_id, (("numRows", "2"),), author="ann")
        embedded.store.set_parameters(table_id, (("numRows", "1"),), author="ann")
        assert read_parameters(embedded, table_id) == (1, 0, 1)
    assert file.stat().st_mtime_ns == written
    with Node.open(store, settings=settings, keeps_cache=True) as again:
        assert read_parameters(again, table_id) == (1, 0, 0)
    never = Settings(cache_folder=settings.cache_folder, cache_interval_ms=0)
    with Node.open(store, settings=never, keeps_cache=True) as without:
        assert read_parameters(without, table_id) == (1, 0, 1)


def test_a_node_writes_its_cache_periodically(tmp_path: Path) -> None:
    with Node.open(tmp_path, settings=Settings(cache_interval_ms=1), keeps_cache=True) as node:
        table_id = create_table(node)
        node.store.set_parameters(table_id, (("numRows", "1"),), author="ann")
        read_parameters(node, table_id)
        deadline = time.monotonic() + 60
        while not (tmp_path / "strandline.cache").exists():
            assert time.monotonic() < deadline
            time.sleep(0.001)


@pytest.mark.parametrize("folder", ["here", "/nowhere/at/all"])
def test_an_invalid_cache_folder_is_refused(tmp_path: Path, folder: str) -> None:
    with pytest.raises(InvalidInput, match="name the absolute path"):
        Node.open(tmp_path, settings=Settings(cache_folder=folder), keeps_cache=True)
    assert not [*tmp_path.iterdir()]  # no store was created, and none would be taken over


@pytest.mark.parametrize("interrupted", [(Chores, "join"), (FollowingThread, "stop")])
def test_a_close_that_was_interrupted_is_finished_by_the_next_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch, interrupted: tuple[type, str]
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    before = set(threading.enumerate())
    node = Node.open(folder)
    node.session(user="ann").execute(CreateSchema(name="a"))
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(*interrupted, interrupt)
        node.close()
    node.close()
    assert set(threading.enumerate()) <= before
    with pytest.raises(Stopping):
        node.database.rows("SELECT 1")
