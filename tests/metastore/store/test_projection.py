"""The projection of DDL: events, places and folders, of a real catalog in the same database."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock

import pytest
from sqlalchemy import Connection

from strandline.catalog import CatalogManager, Command, initial_catalog
from strandline.catalog.commands import (
    ColumnDefinition,
    CreateSchema,
    CreateTable,
    DropSchema,
    DropTable,
    RenameTable,
    TableDefinition,
)
from strandline.clock import HybridClock
from strandline.durable import VERSION, MetastorageLog, durable_state, upper_within
from strandline.errors import Fenced, Unavailable
from strandline.fencing import FenceToken
from strandline.metastorage import SqlMetastorage
from strandline.metastore.store.effect_batch import MAX_EFFECTS
from strandline.metastore.store.notifications import COMMIT, NotificationLog
from strandline.metastore.store.object_store import SqlObjectStore
from strandline.metastore.store.projection import Projector
from strandline.metastore.store.rows import DataFile, RowKind, new_file
from strandline.metastore.store.store_folders import StoreFolders
from strandline.metastore.store.transaction_order import (
    ProjectedCatalogs,
    TransactionEvents,
    UpperWithin,
)
from strandline.model.descriptors import TableDescriptor, TableKind
from strandline.model.type_parser import parse_type
from strandline.sql import FenceRow, open_sqlite
from strandline.transactions import Behind, Transactions
from strandline.wire import decode
from tests.metastore.dml import stage


class Node:
    """A catalog, its projection and its transactions, all on one database file."""

    def __init__(self, folder: Path, *, member: str = "one") -> None:
        self.warehouse = folder / "warehouse"
        self.warehouse.mkdir(exist_ok=True)
        self.fenced = False
        self.crash = False
        self.clock = HybridClock()
        self.database = open_sqlite(folder / "strandline.db")
        self.database.guard = self.guard
        metastorage = SqlMetastorage(self.database, self.clock)
        log = MetastorageLog(metastorage)
        openable = durable_state(log)
        if openable.is_initialized():
            state = openable.join(member=member)
        else:
            fill = initial_catalog(delay_ms=0, skew_ms=0, default_location=f"file:{self.warehouse}")
            state = openable.open(member=member, initialize=fill, raise_fence=self.raise_fence)
        self.catalogs = CatalogManager(state, self.clock)
        self.catalogs.sync()
        self.log = NotificationLog(self.database, self.clock)
        self.projector = Projector(
            self.database,
            self.log,
            updates=self.catalogs.updates,
            catalog=self.catalogs.catalog,
            folders=StoreFolders(folder),
        )
        self.transactions = Transactions(
            self.database,
            self.clock,
            catalogs=ProjectedCatalogs(
                self.catalogs,
                self.projector,
                upper_within=UpperWithin(
                    upper_within(metastorage.get_on), metastorage.get_query(VERSION)
                ),
            ),
            listeners=[TransactionEvents(self.log, projector=self.projector)],
        )
        self.store = SqlObjectStore(
            self.database,
            self.transactions,
            self.log,
            folders=StoreFolders(folder),
            projector=self.projector,
        )

    def raise_fence(self, token: FenceToken, environment: str | None) -> None:
        with self.database.write() as connection:
            FenceRow.initialize(connection, environment or "", token)

    def guard(self, connection: Connection) -> None:
        if self.fenced:
            raise Fenced("a newer holder has opened the store; nothing was written")

    def ddl(self, *commands: Command, project: bool = True) -> int:
        """Execute DDL as one version; return its number."""
        applied = self.catalogs.execute(list(commands), author="ann")
        if project:
            self.projector.project_up_to(applied.version)
        return applied.version

    def project_a_step(self, version: int) -> None:
        """Project as much as one SQL transaction may."""
        with self.database.write() as connection:
            self.projector._entries.advance(connection, version)

    def lose_power(self, version: int) -> None:
        """Project up to ``version``, but lose the first SQL transaction after its effects."""
        lost = mock.patch.object(self.log, "move_projection", side_effect=KeyError("power cut"))
        with lost, pytest.raises(KeyError):
            self.projector.project_up_to(version)

    def table(self, name: str, schema: str = "nyc") -> TableDescriptor:
        present = self.catalogs.present().table(schema, name)
        assert present is not None
        return present

    def place(self, name: str) -> str:
        return f"file://{self.warehouse}/nyc.db/{name}"

    def folder(self, name: str) -> Path:
        return self.warehouse / "nyc.db" / name

    def verbs(self) -> list[str]:
        return [event.verb for event in self.log.read(0, limit=1_000)]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path)
    made.ddl(CreateSchema(name="nyc"))
    yield made
    made.catalogs.stop()
    made.database.close()


def create(node: Node, name: str, **more: object) -> CreateTable:
    kind = TableKind.EXTERNAL if more.get("external") else TableKind.MANAGED
    definition = TableDefinition(
        name=name,
        columns=(ColumnDefinition("k", parse_type("int")),),
        kind=kind,
        transactional=kind is TableKind.MANAGED,
        location=f"file:{node.warehouse}/elsewhere" if more.get("external") else None,
    )
    return CreateTable(schema="nyc", definition=definition)


def failing(code: int, *, at: Path | None = None) -> Callable[..., None]:
    """Return an `os.mkdir` that fails with ``code``, at one place or everywhere."""
    mkdir = os.mkdir

    def make(path: Path, *more: int) -> None:
        if at is None or Path(path) == at:
            raise OSError(code, os.strerror(code), str(path))
        mkdir(path, *more)

    return make


def rename(name: str, to: str) -> RenameTable:
    return RenameTable(schema="nyc", table=name, new_name=to)


def test_each_entry_is_one_event_in_the_order_of_versions(node: Node) -> None:
    version = node.ddl(create(node, "a"), create(node, "b"))
    node.ddl(rename("a", "c"))
    assert node.verbs() == [
        "initialize",
        "create_schema",
        "create_table",
        "create_table",
        "rename_table",
    ]
    events = node.log.read(0, limit=100)
    assert [event.event_id for event in events] == [1, 2, 3, 4, 5]
    assert [event.catalog_version for event in events[2:]] == [version, version, version + 1]
    assert events[2].time == node.catalogs.catalog(version).time


def test_an_event_holds_the_records_before_and_after(node: Node) -> None:
    node.ddl(create(node, "a"))
    before = node.table("a")
    node.ddl(rename("a", "b"))
    event = node.log.read(0, limit=100)[-1]
    body = event.ddl()
    assert (event.table_id, body.author) == (before.id, "ann")
    assert body.arguments["to"] == "nyc.b"
    (change,) = body.changes
    assert change.old is not None
    assert change.new is not None
    assert decode(change.old, TableDescriptor) == before
    assert decode(change.new, TableDescriptor) == node.table("b")


def test_a_managed_table_gets_a_place_and_an_external_table_does_not(node: Node) -> None:
    node.ddl(create(node, "a"), create(node, "x", external=True))
    assert node.store.location(node.table("a").id) == node.place("a")
    assert node.folder("a").is_dir()
    assert node.store.location(node.table("x").id) is None
    assert not (node.warehouse / "elsewhere").exists()


def test_a_rename_moves_the_folder_and_a_drop_moves_it_aside(node: Node) -> None:
    node.ddl(create(node, "a"))
    table = node.table("a")
    (node.folder("a") / "f").write_text("x")
    node.ddl(rename("a", "b"))
    assert node.store.location(table.id) == node.place("b")
    assert not node.folder("a").exists()
    node.ddl(DropTable(schema="nyc", table="b"))
    assert node.store.location(table.id) == node.place(f".dropped/{table.id}")
    assert (node.folder(".dropped") / str(table.id) / "f").read_text() == "x"
    node.ddl(create(node, "b"))
    assert list(node.folder("b").iterdir()) == []


def test_a_drop_that_keeps_the_data_moves_nothing(node: Node) -> None:
    node.ddl(create(node, "a"))
    table = node.table("a")
    node.ddl(DropTable(schema="nyc", table="a", keep_data=True))
    assert node.folder("a").is_dir()
    assert node.store.location(table.id) == node.place("a")


def test_a_schema_gets_a_folder_that_is_removed_with_it_if_it_is_empty(node: Node) -> None:
    node.ddl(CreateSchema(name="other"))
    assert (node.warehouse / "other.db").is_dir()
    node.ddl(DropSchema(name="other"))
    assert not (node.warehouse / "other.db").exists()
    node.ddl(create(node, "a"))
    table = node.table("a")
    node.ddl(DropSchema(name="nyc", cascade=True))
    assert (node.warehouse / "nyc.db" / ".dropped" / str(table.id)).is_dir()


def test_a_folder_whose_new_place_is_taken_stays_and_its_table_keeps_it(node: Node) -> None:
    node.ddl(create(node, "a"))
    table = node.table("a")
    node.folder("b").mkdir()
    (node.folder("b") / "somebody's").touch()
    node.ddl(rename("a", "b"))
    assert node.store.location(table.id) == node.place("a")
    assert node.folder("a").is_dir()


def test_a_second_node_does_not_project_a_version_again(node: Node, tmp_path: Path) -> None:
    version = node.ddl(create(node, "a"))
    other = Node(tmp_path, member="two")
    before = other.verbs()
    other.projector.project_up_to(version)
    assert other.verbs() == before
    other.database.close()


def test_nodes_that_project_concurrently_write_each_event_once(node: Node, tmp_path: Path) -> None:
    names = [f"t{number}" for number in range(12)]
    for name in names:
        version = node.ddl(create(node, name), project=False)
    others = [Node(tmp_path, member=f"m{number}") for number in range(2)]
    with ThreadPoolExecutor(3) as threads:
        list(threads.map(lambda each: each.projector.project_up_to(version), (node, *others)))
    for other in others:
        other.database.close()
    assert node.verbs().count("create_table") == len(names)
    assert all(node.folder(name).is_dir() for name in names)


def test_an_effect_that_was_done_but_not_recorded_is_recognized(node: Node) -> None:
    """The SQL transaction is lost after each effect in turn, as in a crash, and repeated."""
    node.ddl(create(node, "a"))
    old = node.table("a")
    (node.folder("a") / "of-old").touch()
    version = node.ddl(rename("a", "b"), create(node, "a"), project=False)
    version = node.ddl(rename("b", "c"), rename("a", "b"), project=False)
    survived: list[int] = []
    while node.projector.projected_version() < version:
        node.lose_power(version)
        node.project_a_step(version)
        survived.append(node.projector.projected_version())
    assert len(survived) == 3
    assert node.store.location(old.id) == node.place("c")
    assert [f.name for f in node.folder("c").iterdir()] == ["of-old"]
    assert list(node.folder("b").iterdir()) == []
    assert not node.folder("a").exists()
    assert node.verbs()[-4:] == ["rename_table", "create_table", "rename_table", "rename_table"]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EMFILE])
def test_an_effect_that_lacks_resources_raises_an_error_and_is_tried_again(
    node: Node, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, "mkdir", failing(code))
        with pytest.raises(Unavailable, match=r"create_table failed: .*tried again"):
            node.ddl(create(node, "a"))
        version = node.catalogs.latest_catalog().version
        assert node.projector.projected_version() == version - 1
        with pytest.raises(Unavailable):
            node.ddl(create(node, "b"))
    assert not node.folder("b").exists()
    node.projector.project_up_to(version + 1)
    assert node.folder("a").is_dir()
    assert node.folder("b").is_dir()
    assert node.verbs().count("create_table") == 2
    counts = node.projector.statistics()
    assert (counts.failures, counts.unmade) == (2, 0)


def test_the_health_check_fails_from_a_failed_effect_until_it_is_projected(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = node.ddl(create(node, "a"), project=False)
    node.projector.applied_up_to(version)
    node.projector.check()
    with monkeypatch.context() as patch:
        patch.setattr(os, "mkdir", failing(errno.ENOSPC))
        with pytest.raises(Unavailable):
            node.projector.project_up_to(version)
    with pytest.raises(Unavailable, match="create_table failed"):
        node.projector.check()
    node.projector.project_up_to(version)
    node.projector.check()


def test_a_fenced_node_projects_nothing(node: Node) -> None:
    version = node.ddl(create(node, "a"), project=False)
    node.fenced = True
    with pytest.raises(Fenced):
        node.projector.project_up_to(version)
    assert not node.folder("a").exists()
    assert "create_table" not in node.verbs()


@pytest.mark.parametrize("unprojected", [0, 1, 2, 5])
def test_a_commit_is_logged_after_the_ddl_that_it_was_checked_against(
    node: Node, unprojected: int
) -> None:
    node.ddl(create(node, "a"))
    table = node.table("a")
    txn = node.transactions.begin(user="ann").txn_id
    row = new_file(DataFile(file_id=1, path="f", rows=1, bytes=1))
    stage(node.store, txn, table.id, add=[row])
    for number in range(unprojected):
        node.ddl(create(node, f"t{number}"), project=False)
    node.transactions.commit(txn)
    last, version = node.log.read(0, limit=1_000)[-1], node.catalogs.latest_catalog().version
    assert (last.verb, last.catalog_version) == (COMMIT, version)
    assert node.verbs().count("create_table") == 1 + unprojected
    assert node.projector.projected_version() == version


@pytest.mark.parametrize("unprojected", [0, 1, 3])
def test_a_plain_change_is_logged_after_the_ddl_that_it_relies_on(
    node: Node, unprojected: int
) -> None:
    node.ddl(create(node, "a"))
    for number in range(unprojected):
        node.ddl(create(node, f"t{number}"), project=False)
    with node.store.change(node.table("a").id, author="ann") as change:
        change.set_parameters((("numRows", "1"),))
    assert node.verbs()[-2:] == ["write", COMMIT]
    assert node.verbs().count("create_table") == 1 + unprojected
    kept = node.store.rows(node.table("a").id, RowKind.TABLE_PARAMETERS, write_ids=None)
    assert len(kept) == 1


def test_an_effect_on_the_folder_of_another_effect_waits_for_the_next_sql_transaction(
    node: Node,
) -> None:
    """Repeated together after a crash, they would be ambiguous: both folders would exist."""
    node.ddl(create(node, "a"))
    version = node.ddl(create(node, "new"), rename("a", "b"), create(node, "a"), project=False)
    with pytest.raises(Behind), node.database.write() as connection:
        node.projector.project_on(connection, version)
    assert (node.folder("new").is_dir(), node.folder("b").is_dir()) == (True, True)
    assert not node.folder("a").exists()
    assert node.verbs()[-1] == "create_table"
    assert node.verbs().count("create_table") == 1
    node.projector.project_up_to(version)
    assert node.folder("a").is_dir()
    assert node.verbs()[-3:] == ["create_table", "rename_table", "create_table"]


def test_two_projections_in_one_sql_transaction_are_checked_for_overlap_together(
    node: Node,
) -> None:
    node.ddl(create(node, "a"))
    moved = node.ddl(rename("a", "b"), project=False)
    made = node.ddl(create(node, "a"), project=False)
    with pytest.raises(Behind), node.database.write() as connection:
        node.projector.project_on(connection, moved)
        node.projector.project_on(connection, made)
    assert not node.folder("a").exists()
    with node.database.write() as connection:
        node.projector.project_on(connection, moved)
    with node.database.write() as connection:
        node.projector.project_on(connection, made)
    assert node.folder("a").is_dir()


@pytest.mark.slow
def test_the_number_of_effects_of_one_sql_transaction_is_limited(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"t{number}" for number in range(MAX_EFFECTS + 10)]
    version = node.ddl(*(create(node, name) for name in names), project=False)
    read: list[int] = []
    updates = node.catalogs.updates

    def counted(start: int, end: int) -> object:
        read.append(start)
        return updates(start, end)

    monkeypatch.setattr(node.projector._updates, "_read", counted)
    node.project_a_step(version)
    assert sum(node.folder(name).is_dir() for name in names) == MAX_EFFECTS
    assert node.verbs().count("create_table") == MAX_EFFECTS
    node.projector.project_up_to(version)
    assert all(node.folder(name).is_dir() for name in names)
    assert node.verbs().count("create_table") == len(names)
    assert read == [version]


def test_a_version_of_many_effects_is_read_from_the_log_once(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a version of n effects would be decoded n times."""
    names = [f"t{number}" for number in range(20)]
    node.ddl(*(create(node, name) for name in names))
    moves = [rename(name, f"{name}_moved") for name in names]
    version = node.ddl(*moves, project=False)
    read: list[int] = []
    updates = node.catalogs.updates

    def counted(start: int, end: int) -> object:
        read.append(start)
        return updates(start, end)

    monkeypatch.setattr(node.projector._updates, "_read", counted)
    node.projector.project_up_to(version)
    assert read == [version]
    assert node.verbs().count("rename_table") == len(names)


def test_folders_that_were_created_but_not_recorded_are_recognized(node: Node) -> None:
    version = node.ddl(create(node, "a"), create(node, "b"), project=False)
    node.lose_power(version)
    assert node.folder("b").is_dir()
    assert "create_table" not in node.verbs()
    node.projector.project_up_to(version)
    assert node.verbs().count("create_table") == 2
    assert node.store.location(node.table("b").id) == node.place("b")


def test_a_failing_effect_does_not_delay_the_effects_before_it(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = node.ddl(create(node, "a"), project=False)
    monkeypatch.setattr(os, "mkdir", failing(errno.ENOSPC, at=node.folder("b")))
    with pytest.raises(Unavailable, match="create_table failed"):
        node.ddl(create(node, "b"))
    assert node.projector.projected_version() == before
    assert node.verbs().count("create_table") == 1
    assert node.folder("a").is_dir()


def test_the_store_records_the_highest_version(node: Node) -> None:
    version = node.ddl(create(node, "a"))
    with node.database.read() as connection:
        state = FenceRow.read(connection)
    assert state is not None
    assert state.catalog_version == version
