"""One caller projects for all that wait, and a thread projects what no caller waits for."""

from __future__ import annotations

import errno
import logging
import math
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from strandline.catalog.commands import (
    ColumnDefinition,
    CreateTable,
    DropTable,
    RenameTable,
    TableDefinition,
)
from strandline.catalog.verbs import FolderEffect
from strandline.durable.update import Entry
from strandline.errors import DeadlineExceeded, Unavailable, UnknownOutcome
from strandline.files import sync_folder
from strandline.metastore.store import projection, warehouse
from strandline.metastore.store.folder_effects import folder_effect
from strandline.metastore.store.projection import Projector
from strandline.metastore.store.warehouse import Warehouse
from strandline.metastore.store.warehouse_head import WarehouseHead
from strandline.model.types import INT
from strandline.node import Node as WholeNode
from strandline.sql import SqliteDatabase, change
from tests.catalog.callers import wait_for
from tests.interrupts import is_interrupted
from tests.metastore.store.test_projection import Node, create, failing, node, rename

__all__ = ["node"]

LONG = 60.0
CALLERS = 8


def new_table(name: str) -> CreateTable:
    definition = TableDefinition(name=name, columns=(ColumnDefinition("a", INT),))
    return CreateTable(schema="default", definition=definition)


@pytest.fixture
def slow_batch(node: Node) -> SlowBatch:
    return SlowBatch(node)


class SlowBatch:
    """A projector whose next batch waits for ``go_on``; meanwhile other callers can wait for it."""

    def __init__(self, node: Node) -> None:
        self.started, self.go_on = threading.Event(), threading.Event()
        project = node.projector._project_batch

        def slow(*arguments: Any) -> None:
            node.projector._project_batch = project  # type: ignore[method-assign]  # restored
            self.started.set()
            assert self.go_on.wait(LONG)
            project(*arguments)

        node.projector._project_batch = slow  # type: ignore[method-assign,assignment]  # it waits


def waiting(projector: Projector, callers: int) -> None:
    """Return once ``callers`` threads wait for the batch in progress."""
    while len(projector._state._waiters) < callers:  # type: ignore[attr-defined]  # no other way
        threading.Event().wait(0.001)


def test_waiting_callers_share_one_batch_and_one_sync_of_each_folder(
    node: Node, slow_batch: SlowBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    sync = sync_folder

    def noted(folder: Path) -> None:
        synced.append(folder)
        sync(folder)

    monkeypatch.setattr(warehouse, "sync_folder", noted)
    first = node.ddl(create(node, "first"), project=False)
    before = node.projector.statistics().batches
    with ThreadPoolExecutor(CALLERS + 1) as threads:
        leader = threads.submit(node.projector.project_up_to, first)
        assert slow_batch.started.wait(LONG)
        versions = [node.ddl(create(node, f"t{n}"), project=False) for n in range(CALLERS)]
        node.projector.applied_up_to(versions[-1])
        others = [threads.submit(node.projector.project_up_to, version) for version in versions]
        waiting(node.projector, CALLERS)
        slow_batch.go_on.set()
        for call in (leader, *others):
            call.result(LONG)
    assert node.projector.statistics().batches == before + 2
    assert synced == [node.folder("first").parent] * 2
    assert all(node.folder(f"t{n}").is_dir() for n in range(CALLERS))


def test_a_batch_projects_all_versions_that_this_node_has_applied(node: Node) -> None:
    first = node.ddl(create(node, "a"), project=False)
    last = node.ddl(create(node, "b"), project=False)
    node.projector.applied_up_to(last)
    node.projector.project_up_to(first)
    assert node.projector.projected_version() == last


def test_waiting_callers_get_the_error_of_the_batch_and_do_not_try_again(
    node: Node, slow_batch: SlowBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = node.ddl(create(node, "a"), project=False)
    monkeypatch.setattr(os, "mkdir", failing(errno.ENOSPC))
    with ThreadPoolExecutor(CALLERS) as threads:
        calls = [threads.submit(node.projector.project_up_to, version)]
        assert slow_batch.started.wait(LONG)
        calls += [threads.submit(node.projector.project_up_to, version) for _ in range(CALLERS - 1)]
        waiting(node.projector, CALLERS - 1)
        slow_batch.go_on.set()
        for call in calls:
            with pytest.raises(Unavailable, match="No space left"):
                call.result(LONG)
    assert node.projector.statistics().failures == 1


def test_a_caller_whose_timeout_passed_gets_an_error_and_its_version_is_projected(
    node: Node, slow_batch: SlowBatch
) -> None:
    version = node.ddl(create(node, "a"), project=False)
    with ThreadPoolExecutor(1) as threads:
        leader = threads.submit(node.projector.project_up_to, version)
        assert slow_batch.started.wait(LONG)
        with pytest.raises(DeadlineExceeded, match="the change itself is in the catalog"):
            node.projector.project_up_to(version, timeout=0)
        slow_batch.go_on.set()
        leader.result(LONG)
    assert node.folder("a").is_dir()


@pytest.mark.parametrize("timeout", [math.inf, 1e300])
def test_a_caller_may_wait_without_a_limit(
    node: Node, slow_batch: SlowBatch, timeout: float
) -> None:
    version = node.ddl(create(node, "a"), project=False)
    with ThreadPoolExecutor(2) as threads:
        calls = [threads.submit(node.projector.project_up_to, version, timeout=timeout)]
        assert slow_batch.started.wait(LONG)
        calls.append(threads.submit(node.projector.project_up_to, version, timeout=timeout))
        while not (node.projector._state._waiters or calls[1].done()):  # type: ignore[attr-defined]  # no other way
            threading.Event().wait(0.001)
        slow_batch.go_on.set()
        for call in calls:
            call.result(LONG)
    assert node.folder("a").is_dir()


def test_an_interrupted_batch_leaves_the_projection_to_the_next_caller(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = node.ddl(create(node, "a"), project=False)

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(node.log, "move_projection", interrupt)
        with pytest.raises(KeyboardInterrupt):
            node.projector.project_up_to(version)
    node.projector.project_up_to(version)
    assert node.verbs().count("create_table") == 1


def test_a_caller_that_is_interrupted_at_any_step_leaves_the_projection_to_the_next_one(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    projector = node.projector

    def project(version: int, _: float) -> None:
        projector._known.projected = version

    monkeypatch.setattr(projector, "_project_batch", project)
    step = 0
    while is_interrupted(partial(projector.project_up_to, 1), at_step=step):
        projector.set_back()
        projector.project_up_to(1, timeout=0.0)  # it does not wait for the interrupted call
        projector.set_back()
        step += 1
    assert step


def test_a_version_that_no_caller_waits_for_is_projected_in_the_background(
    node: Node, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Even if resources are lacking at the first attempt."""
    monkeypatch.setattr(projection, "GRACE_SECONDS", 0)
    made = threading.Event()
    move = node.log.move_projection

    def moved(*arguments: Any, **named: Any) -> object:
        reached = move(*arguments, **named)
        made.set()
        return reached

    monkeypatch.setattr(node.log, "move_projection", moved)
    failures = [OSError(errno.ENOSPC, "No space left on device")]
    mkdir = os.mkdir

    def make(*arguments: Any) -> None:
        if failures:
            raise failures.pop()
        mkdir(*arguments)

    monkeypatch.setattr(os, "mkdir", make)
    version = node.ddl(create(node, "a"), project=False)
    with caplog.at_level(logging.WARNING):
        node.projector.start()
        node.projector.applied_up_to(version)
        assert made.wait(LONG)
        node.projector.stop()
        node.projector.stop()
    assert node.folder("a").is_dir()
    assert "No space left" in caplog.text


def test_a_stop_just_before_the_thread_projects_is_noticed(node: Node) -> None:
    projector = node.projector

    class StoppedBehindTheWait(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            self.set()
            projector._news.set()
            return False  # it was not set when the time was over

    projector._stop = StoppedBehindTheWait()
    projector.start()
    projector.applied_up_to(1)
    while projector._thread.running():
        threading.Event().wait(0.001)


def test_a_node_forgets_versions_that_another_node_has_projected(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(projection, "GRACE_SECONDS", 0)
    other = Node(tmp_path, member="two")
    version = node.ddl(create(node, "a"))
    for update in other.catalogs.updates(1, version + 1):
        other.projector.applied(update)
    assert other.projector._updates._remembered
    other.projector.start()
    while other.projector._updates._remembered:
        threading.Event().wait(0.001)
    other.projector.stop()
    assert other.projector.statistics().batches == 0
    other.database.close()


def test_the_files_of_a_purged_table_are_deleted_although_a_commit_of_rows_projected_its_drop(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(projection, "GRACE_SECONDS", 0)
    node.ddl(create(node, "a"))
    (node.folder("a") / "file").touch()
    version = node.ddl(DropTable(schema="nyc", table="a", purge=True), project=False)
    with node.database.write() as connection:
        node.projector.project_on(connection, version)
    (file,) = tmp_path.rglob("file")
    node.projector.start()
    node.projector.applied_up_to(version)
    wait_for(lambda: not file.exists())
    node.projector.stop()


@pytest.mark.parametrize("effect", ["make", "move"])
def test_readers_do_not_wait_for_the_folders_of_a_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, effect: str
) -> None:
    """A folder is moved after the append of its version, and created with it."""
    begins, go_on = threading.Event(), threading.Event()
    change = getattr(Warehouse, effect)

    def slow(*arguments: Any, **named: Any) -> Any:
        begins.set()
        assert go_on.wait(LONG)
        return change(*arguments, **named)

    with WholeNode.open(tmp_path / "store") as node, ThreadPoolExecutor(2) as threads:
        session = node.session(user="ann")
        session.execute([new_table("old"), new_table("other")])
        monkeypatch.setattr(Warehouse, effect, slow)
        rename = RenameTable(schema="default", table="other", new_name="new")
        command = new_table("new") if effect == "make" else rename
        changing = threads.submit(session.execute, command)
        try:
            assert begins.wait(LONG)
            catalog = threads.submit(node.catalogs.present).result(LONG)
            assert (catalog.relation("default", "new") is None) is (effect == "make")
            # The event loop can answer too, because it does not wait.
            assert node.catalogs.known_present() is catalog
            assert threads.submit(session.table, "default.old").result(LONG).location
            assert not changing.done()
        finally:
            go_on.set()
        changing.result(LONG)
        assert session.table("default.new").location


@pytest.mark.parametrize("noted_by", ["batch", "look"])
def test_what_the_database_loses_while_a_thread_notes_its_end_is_projected_again(
    node: Node, monkeypatch: pytest.MonkeyPatch, noted_by: str
) -> None:
    """A standby without the last commits takes over between a commit and the thread's note."""
    version = node.ddl(create(node, "a"), project=False)
    before = node.log.position()
    noting = node.projector.note_projected

    def set_back_first(*arguments: Any) -> None:
        monkeypatch.undo()
        with node.database.write() as connection:
            connection.exec_driver_sql(
                "UPDATE notification_sequence SET event_id = ?, projected_version = ?",
                (before.event_id, before.projected_version),
            )
            connection.exec_driver_sql(
                "DELETE FROM notification_log WHERE event_id > ?", (before.event_id,)
            )
        node.projector.set_back()
        noting(*arguments)

    if noted_by == "look":
        node.projector.project_up_to(version)
    monkeypatch.setattr(node.projector, "note_projected", set_back_first)
    if noted_by == "look":
        node.projector.catch_up()
    node.projector.project_up_to(version)
    assert node.verbs()[-1] == "create_table"


def test_what_the_database_has_lost_is_projected_again_before_the_next_change(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(projection, "GRACE_SECONDS", 0)
    version = node.ddl(create(node, "a"))
    node.projector.applied_up_to(version)
    node.projector._news.clear()  # as if the thread had seen that nothing is left to do
    with node.database.write() as connection:
        change(connection, "UPDATE notification_sequence SET projected_version = ?", (version - 1,))
    node.projector.start()
    node.projector.set_back()
    wait_for(lambda: node.projector.projected_version() == version)
    node.projector.stop()


def test_a_projector_that_starts_records_in_the_warehouse_what_the_last_one_did_not(
    node: Node, tmp_path: Path
) -> None:
    version = node.ddl(create(node, "a"))
    head = WarehouseHead(tmp_path / "head", mode=0o600)
    node.projector._head = head  # the last one ended between its commit and the record
    node.projector.start()
    node.projector.stop()
    assert head.done_up_to(version - 1, node.catalogs.updates) == version


def test_several_moves_of_one_table_are_on_disk_one_by_one(node: Node) -> None:
    node.ddl(create(node, "a"))
    version = node.ddl(*(rename(old, new) for old, new in pairwise("abcd")), project=False)
    before = node.database.statistics()
    node.projector.project_up_to(version)
    after = node.database.statistics()
    assert after.writes - before.writes == 3
    assert after.unsynced_writes == before.unsynced_writes
    assert node.folder("d").is_dir()


def test_each_move_of_one_table_looks_ahead_only_to_the_next(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"t{number}" for number in range(41)]
    node.ddl(create(node, names[0]))
    moves = (rename(old, new) for old, new in pairwise(names))
    version = node.ddl(*moves, project=False)
    looked_at: list[Entry] = []

    def counted(entry: Entry) -> FolderEffect | None:
        looked_at.append(entry)
        return folder_effect(entry)

    monkeypatch.setattr(projection, "folder_effect", counted)
    node.projector.project_up_to(version)
    assert node.folder(names[-1]).is_dir()
    assert node.verbs().count("rename_table") == 40
    assert len(looked_at) < 3 * 40


def test_a_projection_whose_commit_fails_is_repeated_and_is_no_unknown_outcome_for_a_reader(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    version, commit, failures = (
        node.ddl(create(node, "a"), project=False),
        SqliteDatabase._commit,
        1,
    )

    def fail(*arguments: Any) -> None:
        nonlocal failures
        failures -= 1
        if failures >= 0:
            raise UnknownOutcome.of_commit("the disk failed")
        commit(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(SqliteDatabase, "_commit", fail)
        node.projector.project_up_to(version)
        assert node.folder("a").is_dir()
        version, failures = node.ddl(create(node, "rides"), project=False), 100
        with pytest.raises(Unavailable, match=r"recorded \(the disk failed\); try") as refused:
            node.projector.project_up_to(version)
    assert failures == 98
    assert not isinstance(refused.value, UnknownOutcome)
    node.projector.project_up_to(version)
    assert node.folder("rides").is_dir()
