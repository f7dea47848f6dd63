"""DDL creates folders in the SQL transaction that appends its version, and moves them after it."""

from __future__ import annotations

import errno
import gc
import itertools
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from strandline.catalog import CatalogManager, Command
from strandline.catalog.commands import (
    ColumnDefinition,
    CreateSchema,
    CreateTable,
    DropTable,
    RenameTable,
    TableDefinition,
)
from strandline.catalog.group_commit import GroupCommit
from strandline.config import Settings
from strandline.errors import AlreadyExists, Unavailable, UnknownOutcome
from strandline.fencing import FenceToken
from strandline.files import sync_folder
from strandline.metastore import metastore
from strandline.metastore.store import warehouse
from strandline.metastore.store.effect_batch import EffectBatch
from strandline.model.descriptors import TableKind
from strandline.model.types import INT
from strandline.node import Node
from strandline.node.relocation import relocate
from strandline.sql import FenceRow, SqliteDatabase, statements
from tests.servers.stores import EmptyStore, new_store

LONG = 60.0
AT_ONCE = Settings(delay_ms=0, clock_skew_ms=0)


class Killed(BaseException):
    """Ends the committing thread, as a kill of the process would."""


def create(name: str, schema: str = "default") -> CreateTable:
    definition = TableDefinition(name=name, columns=(ColumnDefinition("a", INT),))
    return CreateTable(schema=schema, definition=definition)


def external(name: str, folder: Path) -> CreateTable:
    made = create(name)
    definition = replace(made.definition, kind=TableKind.EXTERNAL, location=folder.as_uri())
    return replace(made, definition=definition)


def rename(name: str, to: str) -> RenameTable:
    return RenameTable(schema="default", table=name, new_name=to)


def drop(name: str) -> DropTable:
    return DropTable(schema="default", table=name)


@pytest.fixture(params=["folder", "postgresql"])
def store(tmp_path: Path, request: pytest.FixtureRequest) -> EmptyStore:
    return new_store(request.param, tmp_path / "store", settings=AT_ONCE)


@pytest.fixture
def node(store: EmptyStore) -> Iterator[Node]:
    with Node.open(store.address, settings=store.settings) as node:
        yield node


def folder_of(node: Node, name: str) -> Path:
    return Path(node.metastore.warehouse.removeprefix("file://")) / name


def writes(node: Node) -> int:
    counts = node.database.statistics()
    return counts.writes + counts.unsynced_writes


def verbs(node: Node, after: int) -> list[tuple[str, int | None]]:
    events = node.notifications.read(after, limit=1000)
    return [(event.verb, event.catalog_version) for event in events]


def execute(node: Node, *commands: Command) -> int:
    return node.session(user="ann").execute(list(commands)).version


def location(node: Node, name: str) -> str:
    return node.session(user="ann").table(f"default.{name}").location


@pytest.mark.parametrize("command", [create("t"), CreateSchema(name="s")], ids=["table", "schema"])
def test_ddl_that_creates_a_folder_takes_one_sql_transaction(node: Node, command: Command) -> None:
    before, head = writes(node), node.notifications.head()
    version = execute(node, command)
    assert writes(node) == before + 1
    assert [at for _, at in verbs(node, head)] == [version]
    assert node.projector.projected_version() == version
    assert folder_of(node, "t" if isinstance(command, CreateTable) else "s.db").is_dir()


@pytest.mark.parametrize("command", [rename("old", "new"), drop("old")], ids=["rename", "drop"])
def test_a_folder_is_moved_after_the_append(node: Node, command: Command) -> None:
    """A rollback would not move it back."""
    execute(node, create("old"))
    before, head = writes(node), node.notifications.head()
    version = execute(node, command)
    assert writes(node) == before + 2
    assert [at for _, at in verbs(node, head)] == [version]
    assert not folder_of(node, "old").exists()


@pytest.mark.parametrize(
    "command",
    [rename("external", "new"), drop("external"), replace(drop("kept"), keep_data=True)],
    ids=["rename external", "drop external", "drop, files kept"],
)
def test_ddl_that_moves_no_folder_takes_one_sql_transaction(node: Node, command: Command) -> None:
    elsewhere = folder_of(node, "elsewhere")
    execute(node, create("kept"), external("external", elsewhere))
    before, head = writes(node), node.notifications.head()
    version = execute(node, command, create("made"))
    assert writes(node) == before + 1
    assert [at for _, at in verbs(node, head)] == [version, version]
    assert folder_of(node, "kept").is_dir()
    if isinstance(command, RenameTable):
        assert location(node, "new") == elsewhere.as_uri()


def test_a_projected_version_leaves_no_cyclic_garbage(node: Node) -> None:
    """A collection visits all objects of the process, and each change would bring the next one."""
    execute(node, create("first"))
    gc.disable()
    try:
        gc.collect()
        execute(node, create("second"))
        assert not [thing for thing in gc.get_objects() if isinstance(thing, EffectBatch)]
    finally:
        gc.enable()


class Points:
    """The operations of the committing thread; it is killed before the n-th of them."""

    def __init__(self, patch: pytest.MonkeyPatch, database: type) -> None:
        self.passed: list[str] = []
        self.kill_at: int | None = None
        for owner, name in (
            (statements, "_sent"),
            (os, "mkdir"),
            (warehouse, "sync_folder"),
            (database, "_commit"),
            (CatalogManager, "apply_own"),
            (GroupCommit, "_answer"),
        ):
            patch.setattr(owner, name, self._counted(name, getattr(owner, name)))

    def _counted(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:  # Any: as in the real function
            if threading.current_thread().name == "catalog-committer":
                if len(self.passed) == self.kill_at:
                    raise Killed(f"before {name}, behind {self.passed}")
                self.passed.append(name)
            return real(*arguments, **named)

        return call

    def kill(self, node: Node, command: Command, *, at: int | None) -> bool:
        """Execute ``command`` up to that point; return whether the point was reached."""
        self.passed, self.kill_at = [], at
        try:
            execute(node, command)
        except (Killed, UnknownOutcome):
            return True
        finally:
            self.kill_at = None
        return False


def test_a_kill_at_any_point_leaves_a_version_with_its_effects_or_an_empty_folder(
    node: Node, store: EmptyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    points = Points(monkeypatch, type(node.database))
    left = set()
    for at in itertools.count():
        name, head = f"t{at}", node.notifications.head()
        if not points.kill(node, create(name), at=at):
            break
        made = node.catalogs.present().relation("default", name) is not None
        events = [verb for verb, _ in verbs(node, head)]
        assert events == ["create_table"] * made
        folder = folder_of(node, name)
        assert folder.is_dir() or not made
        left.add((made, folder.is_dir()))
        if made:
            with pytest.raises(AlreadyExists):
                execute(node, create(name))
        else:
            execute(node, create(name))
        assert location(node, name) == f"file://{folder}"
    passed = points.passed
    assert passed.index("mkdir") < passed.index("sync_folder") < passed.index("_commit")
    assert passed.index("_commit") < passed.index("apply_own")
    assert passed.count("_commit") == 1
    assert left == {(False, False), (False, True), (True, True)}
    with Node.open(store.address, settings=store.settings, background=False) as other:
        assert other.projector.projected_version() == node.catalogs.latest_catalog().version


@pytest.fixture
def in_folder(tmp_path: Path) -> Iterator[Node]:
    """A node on a folder that has projected all its versions."""
    with Node.open(tmp_path / "store") as node:
        execute(node, CreateSchema(name="s"))
        yield node


def test_a_version_is_committed_after_its_folders_are_synced(
    in_folder: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    sync, commit = sync_folder, SqliteDatabase._commit

    def noted_sync(folder: Path) -> None:
        sync(folder)
        steps.append(folder.name)

    def noted_commit(*arguments: Any) -> None:  # Any: as in the real function
        steps.append("committed")
        commit(*arguments)

    monkeypatch.setattr(warehouse, "sync_folder", noted_sync)
    monkeypatch.setattr(SqliteDatabase, "_commit", noted_commit)
    execute(in_folder, create("a"), create("b", schema="s"), create("c", schema="s"))
    assert steps == ["warehouse", "s.db", "committed"]
    assert location(in_folder, "a") == f"file://{folder_of(in_folder, 'a')}"


def test_a_new_table_gets_another_place_if_its_folder_exists(in_folder: Node) -> None:
    """The existing folder is that of a table that was dropped with ``keep_data``."""
    execute(in_folder, create("a"))
    execute(in_folder, DropTable(schema="default", table="a", keep_data=True))
    execute(in_folder, create("a"), create("b"))
    assert location(in_folder, "a").startswith(f"file://{folder_of(in_folder, 'a')}~")
    assert location(in_folder, "b") == f"file://{folder_of(in_folder, 'b')}"


def test_a_version_whose_folder_could_not_be_synced_is_appended_and_projected_later(
    in_folder: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    before = in_folder.catalogs.latest_catalog().version
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(Unavailable, match=r"is in the catalog, but its .* failed"):
            execute(in_folder, create("a"))
    assert in_folder.catalogs.latest_catalog().version == before + 1
    assert in_folder.projector.projected_version() == before
    execute(in_folder, create("b"))
    assert in_folder.projector.projected_version() == before + 2
    assert location(in_folder, "a") == f"file://{folder_of(in_folder, 'a')}"


def test_a_folder_that_cannot_be_made_is_logged_once_when_its_version_is_in_the_log(
    in_folder: Node, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A file system that becomes read-only refuses the folder, and then the commits."""
    commit, failures = SqliteDatabase._commit, [UnknownOutcome("cut")] * 3

    def make(path: str, *_: int) -> None:
        raise OSError(errno.EROFS, "Read-only file system", path)

    def commit_later(*arguments: Any) -> None:  # Any: as in the real function
        if failures:
            assert "is carried out" not in caplog.text
            raise failures.pop()
        commit(*arguments)

    monkeypatch.setattr(os, "mkdir", make)
    monkeypatch.setattr(SqliteDatabase, "_commit", commit_later)
    version = execute(in_folder, create("a"))
    assert failures == []
    assert caplog.text.count(f"version {version} is carried out without the folder") == 1


@pytest.mark.parametrize("before", ["_commit", "apply_own"])
def test_the_next_process_completes_what_a_killed_process_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str
) -> None:
    """Before the commit: a folder, no version. After it: both, but the caller got no answer."""
    folder, crashed = tmp_path / "store", tmp_path / "crashed"
    with Node.open(folder) as node, monkeypatch.context() as patch:
        points = Points(patch, SqliteDatabase)
        execute(node, create("first"))
        points.kill(node, create("second"), at=None)
        points.kill(node, create("t"), at=points.passed.index(before))
        shutil.copytree(folder, crashed)
    relocate(crashed, copy=True)
    with Node.open(crashed) as node:
        assert (crashed / "warehouse" / "t").is_dir()
        if before == "_commit":
            assert node.session(user="ann").tables("default") == ["first", "second"]
            execute(node, rename("first", "t"))
            execute(node, create("first"))
        tables = {name: location(node, name) for name in ("first", "t")}
        assert tables == {name: f"file://{crashed}/warehouse/{name}" for name in tables}
        made = [verb for verb, _ in verbs(node, 0) if verb == "create_table"]
        assert len(made) == 3


def test_a_group_is_projected_with_its_append_up_to_the_first_move_of_a_folder(
    node: Node,
) -> None:
    execute(node, create("old"))
    head = node.notifications.head()
    wanted: list[Command] = [create("a"), create("b"), drop("old"), create("old"), rename("b", "c")]
    together(node, wanted)
    events = verbs(node, head)[1:]  # after the version that they waited for
    assert [verb for verb, _ in events][:2] == ["create_table", "create_table"]
    assert len(events) == len(wanted)
    versions = [version for _, version in events]
    assert versions == sorted(versions, key=lambda version: version or 0)
    names = node.session(user="ann").tables("default")
    assert sorted(names) == ["a", "c", "old"]
    assert all(location(node, name) == f"file://{folder_of(node, name)}" for name in names)


def together(node: Node, commands: list[Command]) -> None:
    """Commit these as one group, in their order."""
    holding, go_on = threading.Event(), threading.Event()
    validate = node.catalogs._commits._validate

    def held(*arguments: Any) -> Any:  # Any: as in the real function
        holding.set()
        assert go_on.wait(LONG)
        return validate(*arguments)

    node.catalogs._commits._validate = held  # type: ignore[method-assign,assignment]  # they wait
    with ThreadPoolExecutor(len(commands) + 1) as threads:
        calls = [threads.submit(execute, node, CreateSchema(name="gate"))]
        assert holding.wait(LONG)
        for number, command in enumerate(commands, 1):
            calls.append(threads.submit(execute, node, command))
            while len(node.catalogs._commits._waiting) < number:
                threading.Event().wait(0.001)
        node.catalogs._commits._validate = validate  # type: ignore[method-assign]  # restored
        go_on.set()
        for call in calls:
            call.result(LONG)


def test_versions_that_another_node_has_not_projected_are_projected_first(
    node: Node, store: EmptyStore
) -> None:
    with Node.open(store.address, settings=store.settings, background=False) as other:
        other.catalogs._commits.effects = None  # as in a node that dies after its append
        other.catalogs.execute(create("a"), author="bob")
        head = node.notifications.head()
        version = execute(node, create("b"))
        assert verbs(node, head) == [("create_table", version - 1), ("create_table", version)]
        before = writes(node)
        execute(node, create("c"))
        assert writes(node) == before + 1


def test_if_only_the_rows_are_fenced_a_version_is_appended_but_not_projected(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if a process that opened the store had ended between fencing its two halves."""
    monkeypatch.setattr(metastore, "FENCE_PAUSE", 3600.0)  # longer than the call may take
    head = node.notifications.head()
    with node.database.write() as connection:
        token = node.catalogs.token
        FenceRow.raise_to(connection, FenceToken(token.deploy_generation, token.epoch + 1))
    with pytest.raises(UnknownOutcome, match=r"in the log as version 3.*: a newer holder"):
        execute(node, create("t"))
    assert verbs(node, head) == []
    assert not folder_of(node, "t").exists()
    assert node.catalogs.latest_catalog().relation("default", "t") is not None


def test_in_a_catalog_with_a_delay_a_version_is_projected_once_it_is_active(tmp_path: Path) -> None:
    settings = Settings(delay_ms=20, clock_skew_ms=0)
    with Node.open(tmp_path / "store", settings=settings) as node:
        before = writes(node)
        version = execute(node, create("t"))
        assert node.projector.projected_version() == version
        assert writes(node) >= before + 2


def test_on_a_server_a_create_does_not_wait_for_a_query_about_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The query is sent with the first statements of the SQL transaction."""
    store = new_store("postgresql", tmp_path, settings=AT_ONCE)
    with Node.open(store.address, settings=store.settings) as node:
        session = node.session(user="ann")
        session.execute(create("first"))
        asked: list[str] = []
        send = statements._sent

        def noting(cursor: Any, text: str, *rest: Any, **named: Any) -> Any:
            asked.append(text)
            return send(cursor, text, *rest, **named)

        monkeypatch.setattr(statements, "_sent", noting)
        session.execute([create("second"), create("third")])
        about_places = [text for text in asked if "FROM table_location" in text]
        assert len(about_places) == 1
        assert about_places[0].startswith("BEGIN ")
