"""Ids that clients send: each is checked before anything is written, in process and over HTTP."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

import pytest
from sqlalchemy import insert

from strandline.catalog.commands import (
    ColumnDefinition,
    CreateSchema,
    CreateTable,
    CreateView,
    DropTable,
    TableDefinition,
    ViewDefinition,
)
from strandline.clock import HybridClock, Timestamp, milliseconds
from strandline.config import Settings
from strandline.errors import InvalidInput, ObjectNotFound, StrandlineError, UnsupportedOperation
from strandline.metastore.hive.events import HiveEvents
from strandline.metastore.interface import AsOf, Session
from strandline.metastore.session import HttpSession
from strandline.metastore.session.http_app import HttpApplication
from strandline.metastore.store.rows import DataFile
from strandline.model.types import BIGINT
from strandline.node import Node
from strandline.transactions import Transactions, TransactionState, ValidWriteIdList
from strandline.transactions.tables import NEXT_WRITE_ID, TXN_WRITE_ID
from tests.metastore.session.served import serving
from tests.metastore.snapshots import paths_of
from tests.servers import stores

NO_IDS = [-(1 << 63) - 1, -(1 << 63), -5, -1, 0, 10**12, (1 << 63) - 1, 1 << 63, 1 << 200]
REFUSED = (ObjectNotFound, InvalidInput)
"""HTTP refuses numbers beyond 64 bits before they reach the metastore."""


@dataclass
class Scene:
    node: Node
    session: Session
    transactional: int
    plain: int
    view: int


@pytest.fixture(scope="module", params=["folder", "postgresql"])
def node(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Node, str]]:
    store = stores.new_store(request.param, tmp_path_factory.mktemp("store"))
    with (
        Node.open(store.address, settings=store.settings) as opened,
        serving(HttpApplication(opened.metastore)) as url,
    ):
        session = opened.session(user="ann")
        session.execute(CreateSchema(name="s"))
        for name, transactional in (("t", True), ("plain", False)):
            session.execute(CreateTable(schema="s", definition=_table(name, transactional)))
        view = ViewDefinition(
            name="v",
            columns=(ColumnDefinition("k", BIGINT),),
            original_text="SELECT 1 AS k",
            expanded_text="SELECT 1 AS k",
        )
        session.execute(CreateView(schema="s", definition=view))
        yield opened, url


@pytest.fixture(params=["local", "http"])
def scene(node: tuple[Node, str], request: pytest.FixtureRequest) -> Iterator[Scene]:
    opened, url = node
    local = opened.session(user="ann")
    session = local if request.param == "local" else HttpSession(url, user="ann")
    view = opened.metastore.catalogs.present().relation("s", "v")
    assert view is not None
    ids = [local.table(f"s.{name}").descriptor.id for name in ("t", "plain")]
    yield Scene(opened, session, ids[0], ids[1], view.id)
    session.close()


def _table(name: str, transactional: bool) -> TableDefinition:
    columns = (ColumnDefinition("k", BIGINT),)
    return TableDefinition(name=name, columns=columns, transactional=transactional)


def _file(path: str) -> DataFile:
    return DataFile(file_id=crc32(path.encode()) >> 12, path=path, rows=1, bytes=1)


@pytest.mark.parametrize("table_id", NO_IDS)
def test_a_transaction_writes_only_tables_that_exist(scene: Scene, table_id: int) -> None:
    txn_id = scene.session.begin().txn_id
    with pytest.raises(REFUSED, match="table"):
        scene.session.stage(txn_id, table_id)
    with pytest.raises(REFUSED, match="table"):
        scene.session.stage(txn_id, table_id, add=[_file("a")])
    assert scene.node.transactions.write_id_pairs(txn_id) == ()
    assert scene.session.commit(txn_id).state is TransactionState.COMMITTED


def test_a_transaction_cannot_write_to_plain_tables_and_views(scene: Scene) -> None:
    txn_id = scene.session.begin().txn_id
    for files in ([], [_file("a")]):
        with pytest.raises(UnsupportedOperation, match="plain is not transactional"):
            scene.session.stage(txn_id, scene.plain, add=files)
    with pytest.raises(ObjectNotFound):
        scene.session.stage(txn_id, scene.view)
    assert scene.node.transactions.write_id_pairs(txn_id) == ()


def test_a_table_created_after_the_begin_of_a_transaction_is_refused_at_once(scene: Scene) -> None:
    txn_id = scene.session.begin().txn_id
    scene.session.execute(CreateTable(schema="s", definition=_table("younger", True)))
    table_id = scene.session.table("s.younger").descriptor.id
    with pytest.raises(ObjectNotFound, match="begin another"):
        scene.session.stage(txn_id, table_id)
    scene.session.execute(DropTable(schema="s", table="younger"))


@pytest.mark.parametrize("number", NO_IDS)
def test_no_number_causes_an_internal_error(scene: Scene, number: int) -> None:
    session = scene.session
    txn_id = session.begin().txn_id
    seen = ValidWriteIdList(hwm=0)
    table_id = scene.transactional
    calls: dict[str, Callable[[], object]] = {
        "table": lambda: session.table("s.t", at=AsOf(version=number)),
        "table at a time": lambda: session.table("s.t", at=AsOf(time=Timestamp(number))),
        "tables": lambda: session.tables("s", at=AsOf(version=number)),
        "history": lambda: session.history(start=number),
        "history until": lambda: session.history(end=number),
        "compact": lambda: session.compact(number),
        "differences": lambda: session.differences(AsOf(version=number)),
        "undo": lambda: session.undo(number),
        "open": lambda: session.open(["s.t"], at=AsOf(version=number)),
        "open in a transaction": lambda: session.open(["s.t"], txn_id=number),
        "files": lambda: session.files(number, seen),
        "hold": lambda: session.hold("k", "ann", at=Timestamp(number), ttl_ms=1),
        "hold for": lambda: session.hold("k", "ann", at=Timestamp(1 << 61), ttl_ms=number),
        "renew": lambda: session.renew_hold(number),
        "release": lambda: session.release_hold(number),
        "transaction": lambda: session.transaction(number),
        "heartbeat": lambda: session.heartbeat(number),
        "stage nothing": lambda: session.stage(number, table_id),
        "stage": lambda: session.stage(number, table_id, add=[_file("a")]),
        "remove": lambda: session.stage(txn_id, table_id, remove=[str(number)]),
        "touch": lambda: session.stage(txn_id, table_id, touch=[str(number)]),
        "commit": lambda: session.commit(number),
        "abort": lambda: session.abort(number),
    }
    internal: dict[str, Exception] = {}
    for name, call in calls.items():
        try:
            call()
        except StrandlineError as error:
            if error.code == "internal":
                internal[name] = error
        except Exception as error:
            internal[name] = error
    assert not internal


def test_reading_files_of_tables_that_never_existed_is_refused(scene: Scene) -> None:
    for table_id in (-5, 10**12, 1 << 63):
        with pytest.raises(REFUSED):
            scene.session.files(table_id, ValidWriteIdList(hwm=0))


# -- a store that 0.2.0 poisoned -----------------------------------------------------------------


def poison(node: Node, txn_id: int, table_id: int) -> None:
    """Give the transaction a write id of an impossible table, as 0.2.0 did for any caller."""
    with node.database.write() as connection:
        connection.execute(insert(NEXT_WRITE_ID).values(table_id=table_id, next=2))
        connection.execute(
            insert(TXN_WRITE_ID).values(table_id=table_id, write_id=1, txn_id=txn_id)
        )


@pytest.mark.parametrize("table_id", [-5, 0, 10**12])
@pytest.mark.parametrize("end", ["commit", "abort", "expire"])
def test_a_poisoned_transaction_ends_and_the_store_works_again(
    tmp_path: Path, table_id: int, end: str
) -> None:
    with Node.open(tmp_path) as node:
        session = node.session(user="ann")
        session.execute(CreateSchema(name="s"))
        session.execute(CreateTable(schema="s", definition=_table("t", True)))
        good = session.table("s.t").descriptor.id
        poisoned = session.begin().txn_id
        session.stage(poisoned, good, add=[_file("lost")])
        poison(node, poisoned, table_id)
    wall_ms = milliseconds(HybridClock().current())
    if end == "expire":
        wall_ms += Settings().transaction_timeout_ms + 1_000
    with Node.open(tmp_path, wall=lambda: wall_ms) as node:
        session = node.session(user="ann")
        if end == "expire":
            node.transactions.expire()
        elif end == "abort":
            session.abort(poisoned)
        else:
            with pytest.raises(StrandlineError, match="aborted at its commit"):
                session.commit(poisoned)
        assert node.transactions.get(poisoned).state is TransactionState.ABORTED
        assert node.transactions.statistics().oldest_begin is None
        txn_id = session.begin().txn_id
        session.stage(txn_id, good, add=[_file("kept")])
        session.commit(txn_id)
        assert paths_of(session, "s.t") == ["kept"]
        session.compact(session.table("s.t").catalog_version)


def test_rows_that_0_2_0_staged_for_an_impossible_table_cause_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Node.open(tmp_path) as node:
        session = node.session(user="ann")
        poisoned = session.begin().txn_id
        with monkeypatch.context() as patch:
            patch.setattr(Transactions, "_require_writable", lambda *_: None)
            session.stage(poisoned, -5, add=[_file("lost")])
    with Node.open(tmp_path) as node:
        session = node.session(user="ann")
        session.execute(CreateSchema(name="s"))
        session.execute(CreateTable(schema="s", definition=_table("t", True)))
        good = session.table("s.t").descriptor.id
        session.abort(poisoned)
        txn_id = session.begin().txn_id
        session.stage(txn_id, good, add=[_file("kept")])
        session.commit(txn_id)
        node.transactions.expire()
        events = HiveEvents(node.metastore).render(node.notifications.read(0, limit=100))
        assert [event["eventType"] for event in events][-2:] == ["ACID_WRITE", "COMMIT_TXN"]
        assert paths_of(session, "s.t") == ["kept"]


def test_a_transaction_that_cannot_be_aborted_does_not_keep_others_from_expiring(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("strandline.node.node.CLEANING_SECONDS", 3600)  # only this test calls it
    with Node.open(tmp_path) as node:
        first, second = (node.session(user="ann").begin().txn_id for _ in range(2))
    late_ms = milliseconds(HybridClock().current()) + Settings().transaction_timeout_ms + 1_000
    with Node.open(tmp_path, wall=lambda: late_ms) as node:
        abort = type(node.transactions)._abort_on

        def failing(
            self: object, connection: object, txn_ids: Sequence[int], **rest: object
        ) -> object:
            if first in txn_ids:
                raise ValueError("a row that nothing can read")
            return abort(node.transactions, connection, txn_ids, **rest)  # type: ignore[arg-type]  # passes its arguments on

        monkeypatch.setattr(type(node.transactions), "_abort_on", failing)
        with caplog.at_level(logging.ERROR):
            assert node.transactions.expire() == [second]
        assert f"transaction {first}" in caplog.text
