"""A database restored alone, without its catalog in etcd, is detected when a node starts."""

from __future__ import annotations

import re
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest

from strandline.catalog.commands import (
    ColumnDefinition,
    CreateSchema,
    CreateTable,
    DropTable,
    TableDefinition,
)
from strandline.clock import MAX_TIMESTAMP, HybridClock, Timestamp, system_wall_clock
from strandline.durable.metastorage_log import FENCE
from strandline.errors import CorruptData, Fenced, IncompatibleFormat, WrongEnvironment
from strandline.fencing import FenceToken
from strandline.metastorage import (
    Delete,
    DeleteRange,
    Metastorage,
    Put,
    open_metastorage,
    prefix_end,
)
from strandline.metastorage.etcd.gateway import EtcdGateway
from strandline.metastore.inspection import FindingKind
from strandline.metastore.store.rows import FILE_NUMBER_BITS, DataFile
from strandline.model.types import BIGINT
from strandline.node import Node
from strandline.node.address import shown_address
from strandline.node.database_mark import KEY, DatabaseMark, DatabaseTime
from strandline.node.warehouse_place import accept_database
from strandline.sql import Database, change, open_database, stored_time, take_time
from strandline.sql.postgres_database import PostgresDatabase
from strandline.wire import encode
from tests.node.conftest import before_the_next
from tests.servers import postgresql, stores
from tests.servers.stores import EmptyStore
from tests.strandline_command import strandline


@pytest.fixture
def store(tmp_path: Path) -> EmptyStore:
    """A store with one table, which has one commit."""
    store = stores.new_store("etcd", tmp_path)
    with Node.open(store.address, settings=store.settings) as node:
        columns = (ColumnDefinition("k", BIGINT),)
        definition = TableDefinition(name="t", columns=columns, transactional=True)
        session = node.session(user="ann")
        session.execute(CreateTable(schema="default", definition=definition))
    append(store)
    return store


def append(store: EmptyStore) -> None:
    """Commit rows once more; the catalog does not change."""
    with Node.open(store.address, settings=store.settings) as node:
        session = node.session(user="ann")
        table = session.table("default.t")
        txn_id = session.begin().txn_id
        first, path = txn_id << FILE_NUMBER_BITS, f"{uuid4()}.parquet"
        file = DataFile(file_id=first, path=path, rows=1, bytes=10)
        (Path(table.location.removeprefix("file://")) / file.path).write_bytes(b"x" * 10)
        session.stage(txn_id, table.descriptor.id, add=[file])
        session.commit(txn_id)


def mark_of(store: EmptyStore) -> tuple[Metastorage, DatabaseMark]:
    metastorage = open_metastorage(store.address, HybridClock())
    return metastorage, DatabaseMark(metastorage, store.address)


def said_of(store: EmptyStore) -> Timestamp:
    metastorage, mark = mark_of(store)
    with closing(metastorage):
        return mark.marked_time()


def restored_database(store: EmptyStore) -> str:
    """A copy of the database of the store, which an operator has accepted in its place."""
    restored = postgresql.running().copy_of_database(store.settings.objects)
    with closing(open_database(restored)) as database:
        accept_database(database)
    return restored


def accept_loss(store: EmptyStore, backup: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Accept, with the command, what the database ``backup`` of the store lacks."""
    monkeypatch.setenv("STRANDLINE_OBJECTS", backup)
    result = strandline("accept-loss", store.address, "--yes")
    assert result.exit_code == 0, result.output


def restored_alone(store: EmptyStore) -> EmptyStore:
    """The store with its database as it was before one more commit of rows."""
    backup = restored_database(store)
    append(store)
    return store._replace(settings=replace(store.settings, objects=backup))


def last_time(database: Database) -> Timestamp:
    with database.read() as connection:
        return stored_time(connection)


def test_a_database_restored_alone_is_refused_until_the_loss_is_accepted(
    store: EmptyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    restored = restored_alone(store)
    for _ in range(2):
        with pytest.raises(CorruptData, match=r"older than it was: it ends at 2.*accept-loss"):
            Node.open(restored.address, settings=restored.settings)
    said = said_of(store)
    monkeypatch.setenv("STRANDLINE_OBJECTS", restored.settings.objects)
    verified = strandline("verify", store.address)
    assert verified.exit_code == 65
    assert "older than it was" in verified.output
    refusal = strandline("accept-loss", store.address, input="n\n")
    assert refusal.exit_code == 1
    assert re.search("lost: all changes between.*Continue", refusal.output, re.DOTALL)
    for outcome in ("lost: all changes between", "nothing is missing"):
        result = strandline("accept-loss", store.address, "--yes")
        assert result.exit_code == 0, result.output
        assert outcome in result.output
    with closing(open_database(restored.settings.objects)) as database:
        assert last_time(database) > said
    append(restored)
    epoch = strandline("debug", "epoch", store.address).output
    assert "nothing is missing" in strandline("accept-loss", store.address, "--yes").output
    assert strandline("debug", "epoch", store.address).output == epoch


@pytest.mark.slow
def test_a_purge_that_the_database_has_lost_leaves_the_new_table_its_files(
    store: EmptyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    backup = restored_database(store)
    with Node.open(store.address, settings=store.settings) as node:
        session = node.session(user="ann")
        definition = TableDefinition(name="t", columns=(ColumnDefinition("k", BIGINT),))
        session.execute(DropTable(schema="default", table="t", purge=True))
        session.execute(CreateTable(schema="default", definition=definition))
        folder = Path(session.table("default.t").location.removeprefix("file://"))
        (folder / "new").touch()
    accept_loss(store, backup, monkeypatch)
    with Node.open(store.address, settings=replace(store.settings, objects=backup)) as node:
        assert node.session(user="ann").table("default.t").location == f"file://{folder}"
        assert not node.session(user="ann").verify().findings
    assert (folder / "new").exists()


@pytest.mark.slow
def test_a_loss_is_accepted_although_a_newer_epoch_began_since_the_backup(
    store: EmptyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    backup = restored_database(store)
    append(store._replace(settings=replace(store.settings, deploy_generation=1)))
    restored = store._replace(settings=replace(store.settings, objects=backup))
    accept_loss(store, backup, monkeypatch)
    append(restored)


@pytest.mark.slow
def test_a_loss_that_an_earlier_release_accepted_without_a_newer_epoch_is_accepted_again(
    store: EmptyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    backup = restored_database(store)
    append(store._replace(settings=replace(store.settings, deploy_generation=1)))
    restored = store._replace(settings=replace(store.settings, objects=backup))
    clock = HybridClock()
    clock.update(said_of(store))
    with closing(open_database(backup)) as database, database.write() as connection:
        take_time(connection, clock, bounded=False)
    with pytest.raises(Fenced, match="older backup than the catalog"):
        Node.open(restored.address, settings=restored.settings)
    accept_loss(store, backup, monkeypatch)
    append(restored)


@pytest.mark.slow
def test_a_loss_of_versions_that_the_catalog_has_trimmed_is_not_accepted(
    store: EmptyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    backup = restored_database(store)
    with Node.open(store.address, settings=store.settings) as node:
        created = node.session(user="ann").execute(CreateSchema(name="s"))
        assert node.session(user="ann").compact(created.version)
    monkeypatch.setenv("STRANDLINE_OBJECTS", backup)
    result = strandline("accept-loss", store.address, "--yes")
    assert result.exit_code != 0
    assert "no longer has the versions before" in result.output + str(result.exception)


@pytest.mark.slow
def test_a_running_node_compares_the_mark_when_a_session_verifies_the_store(
    store: EmptyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Node.open(store.address, settings=store.settings) as node:
        session = node.session(user="ann")
        before = session.verify().findings
        monkeypatch.setattr(DatabaseMark, "marked_time", lambda mark: MAX_TIMESTAMP)
        new = [finding for finding in session.verify().findings if finding not in before]
    assert [(finding.kind, finding.place) for finding in new] == [(FindingKind.RECORD, "database")]
    assert "older than it was" in new[0].message


@pytest.mark.slow
def test_an_empty_database_in_place_of_the_stores_database_is_refused(
    store: EmptyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty = replace(store.settings, objects=postgresql.running().new_database())
    with pytest.raises(CorruptData, match=r"is empty, but .* recorded .* in the setting objects"):
        Node.open(store.address, settings=empty)
    monkeypatch.setenv("STRANDLINE_OBJECTS", empty.objects)
    refused = strandline("accept-loss", store.address, "--yes")
    assert f"there is no store in {shown_address(empty.objects)} yet" in refused.stderr


@pytest.mark.slow
def test_a_store_whose_etcd_was_emptied_says_that_the_catalog_is_lost_and_not_the_database(
    store: EmptyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    metastorage, _ = mark_of(store)
    with closing(metastorage):
        metastorage.invoke([], [DeleteRange("catalog.", prefix_end("catalog."))])
    lost = rf"the catalog .* is empty, but {shown_address(store.settings.objects)} has the rows"
    with pytest.raises(WrongEnvironment, match=f"{lost}.* restore etcd from a snapshot"):
        Node.open(store.address, settings=store.settings)
    monkeypatch.setenv("STRANDLINE_OBJECTS", store.settings.objects)
    assert re.search(lost, strandline("status", store.address).stderr)


def test_a_store_without_a_mark_is_opened_and_gets_one(store: EmptyStore) -> None:
    metastorage, mark = mark_of(store)
    with closing(metastorage):
        metastorage.invoke([], [Delete(KEY)])
        assert mark.marked_time() == 0
        append(store)
        assert mark.marked_time() > 0


@pytest.mark.slow
def test_a_node_that_closes_first_gives_up_what_its_servers_do_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: dict[str, list[object]] = {"give_up": [], "close": []}

    def record(kind: type, name: str) -> None:
        real = getattr(kind, name)

        def recorded(server: object) -> None:
            called[name].append(server)
            real(server)

        monkeypatch.setattr(kind, name, recorded)

    for kind in (EtcdGateway, PostgresDatabase):
        record(kind, "give_up")
        record(kind, "close")
    store = stores.new_store("etcd", tmp_path)
    with Node.open(store.address, settings=store.settings):
        called["close"].clear()  # of what only the opening needed
    assert {type(server) for server in called["close"]} == {EtcdGateway, PostgresDatabase}
    assert set(called["close"]) <= set(called["give_up"])


@pytest.mark.slow
def test_a_damaged_mark_is_refused(store: EmptyStore) -> None:
    metastorage, mark = mark_of(store)
    with closing(metastorage):
        kept = metastorage.get(KEY)
        assert kept is not None
        for place in range(len(kept.value)):
            spoiled = bytearray(kept.value)
            spoiled[place] ^= 1
            metastorage.invoke([], [Put(KEY, bytes(spoiled))])
            with pytest.raises((CorruptData, IncompatibleFormat)):
                mark.marked_time()


@pytest.mark.slow
def test_a_node_can_start_while_another_writes_the_mark(
    store: EmptyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    before_the_next(monkeypatch, DatabaseMark, "compare", lambda: append(store))
    append(store)


@pytest.mark.slow
def test_the_mark_is_never_ahead_of_the_durable_writes(store: EmptyStore) -> None:
    """Its time is that of a synced write, after which all earlier writes are on disk."""
    metastorage, mark = mark_of(store)
    with closing(metastorage), closing(open_database(store.settings.objects)) as database:
        database.guard = lambda _: None
        mark.note(database, HybridClock())
        assert mark.marked_time() == last_time(database)
        counts = database.statistics()
        assert (counts.writes, counts.unsynced_writes) == (1, 0)


@pytest.mark.slow
def test_the_mark_is_written_although_the_time_of_the_store_is_far_ahead(store: EmptyStore) -> None:
    metastorage, mark = mark_of(store)
    with closing(metastorage), closing(open_database(store.settings.objects)) as database:
        with database.write() as connection:
            take_time(connection, HybridClock(lambda: system_wall_clock() + 10**11))
        database.guard = lambda _: None
        mark.note(database, HybridClock())
        assert mark.marked_time() == last_time(database)


@pytest.mark.slow
@pytest.mark.parametrize("step", ["get", "invoke"])
def test_a_later_mark_of_another_node_stays(
    store: EmptyStore, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    metastorage, mark = mark_of(store)
    later = Put(KEY, encode(DatabaseTime(MAX_TIMESTAMP)))
    with closing(metastorage), closing(open_database(store.settings.objects)) as database:
        before_the_next(
            monkeypatch, type(metastorage), step, lambda: metastorage.invoke([], [later])
        )
        database.guard = lambda _: None
        mark.note(database, HybridClock())
        assert mark.marked_time() == MAX_TIMESTAMP


def test_a_node_writes_no_mark_beside_the_catalog_of_another_store(store: EmptyStore) -> None:
    """Its address may have led to another etcd; with the mark, no node there could start."""
    metastorage, mark = mark_of(store)
    with closing(metastorage):
        with Node.open(store.address, settings=store.settings, background=False) as node:
            token = node.catalogs.token
            of_other = FenceToken(token.deploy_generation, token.epoch, token.nonce ^ 1)
            metastorage.invoke([], [Delete(KEY), Put(FENCE, encode(of_other))])
            assert node._note_mark is not None
            with pytest.raises(Fenced, match="that of another store; nothing was recorded"):
                node._note_mark()
        assert mark.marked_time() == 0


@pytest.mark.slow
def test_a_fenced_node_does_not_write_the_mark(store: EmptyStore) -> None:
    def fenced(_: object) -> None:
        raise Fenced("a newer epoch")

    before = said_of(store)
    metastorage, mark = mark_of(store)
    with closing(metastorage), closing(open_database(store.settings.objects)) as database:
        database.guard = fenced
        with pytest.raises(Fenced):
            mark.note(database, HybridClock())
        assert mark.marked_time() == before
        assert last_time(database) <= before


def test_accept_loss_refuses_a_catalog_that_was_set_back_without_the_database(
    store: EmptyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STRANDLINE_OBJECTS", store.settings.objects)
    with closing(open_database(store.settings.objects)) as database, database.write() as connection:
        # As if the catalog had had one more version when etcd was restored.
        change(connection, "UPDATE strandline_fence SET catalog_version = catalog_version + 1")
    refused = strandline("accept-loss", store.address, "--yes")
    assert refused.exit_code == 76
    assert "restored from an older backup than the object store" in refused.stderr
    assert "can be opened" not in refused.output
