"""The fence in both halves of a store: new epochs, newer generations, halves of other stores."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path

import psycopg
import pytest

from strandline.catalog import CatalogManager
from strandline.catalog.commands import CreateSchema, DropSchema, DropTable
from strandline.clock import HybridClock, system_wall_clock
from strandline.config import Settings
from strandline.durable import DurableCatalogState, UpdateLog, durable_state
from strandline.errors import (
    CorruptData,
    Fenced,
    InvalidInput,
    UnknownOutcome,
    WrongClock,
    WrongEnvironment,
)
from strandline.fencing import FenceToken
from strandline.metastore import metastore
from strandline.node import Node, membership
from strandline.sql import FENCE_ROW, FenceRow, FenceState, run
from tests.node.conftest import create_table, sql
from tests.servers import stores
from tests.sql.statements import recorded
from tests.strandline_command import strandline


def take_over(node: Node, *, generation: int = 0) -> None:
    """What a new deployment does: raise the fence of the rows, then that of the catalog."""

    def raise_fence(token: FenceToken, environment: str | None) -> None:
        assert environment is not None
        with node.database.write() as connection:
            FenceRow.initialize(connection, environment, token)

    durable_state(node._opened_store.catalog_log.log).open(
        member="new",
        initialize=lambda _: None,
        raise_fence=raise_fence,
        deploy_generation=generation,
    )


def test_a_new_epoch_fences_ddl_and_rows_of_a_node_until_it_joins(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    joined = CatalogManager._begin_anew

    def later(_: CatalogManager) -> None:
        raise Fenced("not yet")

    with Node.open(folder) as node:
        table_id = create_table(node)
        session = node.session(user="ann")
        txn = session.begin()
        session.stage(txn.txn_id, table_id)
        monkeypatch.setattr(CatalogManager, "_begin_anew", later)
        take_over(node)
        attempts: list[Callable[[], object]] = [
            lambda: session.execute(CreateSchema(name="late")),
            session.begin,
            lambda: session.stage(txn.txn_id, table_id, remove=[]),
            lambda: session.commit(txn.txn_id),
            lambda: session.hold("reader", "ann", at=txn.begin_time),
        ]
        for attempt in attempts:
            with pytest.raises(Fenced):
                attempt()
        with Node.open(folder) as other:
            assert other.catalogs.present().schema("late") is None
            assert other.session(user="ann").transaction(txn.txn_id).commit_time is None
        monkeypatch.setattr(CatalogManager, "_begin_anew", joined)
        assert node.catalogs.present().schema("late") is None
        for attempt in attempts:
            attempt()
        assert session.transaction(txn.txn_id).commit_time is not None
        assert node.catalogs.token.rank == (0, 2)
        assert not node.replaced.done()


def test_a_node_replaced_by_a_newer_generation_reports_it_and_refuses_all_calls(
    folder: Path,
) -> None:
    with Node.open(folder) as node:
        take_over(node, generation=1)
        assert "generation 1 of this deployment" in node.replaced.result(timeout=60)
        with pytest.raises(Fenced, match="generation 1"):
            node.session(user="ann").execute(CreateSchema(name="late"))
        with pytest.raises(Fenced, match="generation 1"):
            node.catalogs.present()
    with Node.open(folder) as node:
        assert node.catalogs.token.rank == (1, 2)
        assert node.catalogs.present().schema("late") is None


def test_a_node_fenced_by_another_environment_does_not_rejoin(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Node.open(folder) as node:
        another = property(lambda state: f"at {state.token}", lambda *_: None)
        monkeypatch.setattr(DurableCatalogState, "environment", another, raising=False)
        take_over(node)
        with pytest.raises(WrongEnvironment, match="restart this node"):
            node.catalogs.sync()


@pytest.mark.parametrize("generation", [0, 2])
def test_a_new_node_completes_a_fence_raised_in_the_rows_only(
    folder: Path, generation: int
) -> None:
    with Node.open(folder, settings=Settings(deploy_generation=generation)) as node:
        create_table(node)
        with node.database.write() as connection:
            FenceRow.raise_to(connection, FenceToken(generation, 2))
    with Node.open(folder) as node:
        assert node.catalogs.token.rank == (generation, 2)
        assert node.session(user="ann").begin().txn_id > 0
        assert node.catalogs.present().table("default", "t") is not None


def test_a_node_fences_the_rows_of_a_catalog_whose_creator_ended_before_it_could(
    folder: Path,
) -> None:
    with Node.open(folder) as node:
        token = node.catalogs.token
    sql(folder, "DELETE FROM strandline_fence")
    with Node.open(folder) as node:
        create_table(node)
        with node.database.read() as connection:
            fence = FenceRow.read(connection)
    assert fence is not None
    assert fence.token.rank == token.rank


def test_a_running_node_completes_a_fence_raised_in_the_rows_only(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strandline.node.node.CLEANING_SECONDS", 3600)  # only this test calls it
    with Node.open(folder) as node, Node.open(folder) as other:
        create_table(node)
        node.finish_half_raised_fence()
        with node.database.write() as connection:
            FenceRow.raise_to(connection, FenceToken(0, 2))
        node.finish_half_raised_fence()  # the opener may still be at work
        with pytest.raises(Fenced):
            node.session(user="ann").begin()
        node.finish_half_raised_fence()
        assert node.catalogs.token.rank == (0, 2)
        for member in (node, other):
            member.catalogs.sync()
            assert member.session(user="ann").begin().txn_id > 0
            member.session(user="ann").execute(CreateSchema(name=f"by_{member is node}"))


@pytest.mark.parametrize(
    "command", [CreateSchema(name="s"), DropTable(schema="default", table="t")]
)
def test_ddl_below_a_fence_raised_in_the_rows_only_is_in_the_log_and_projected_later(
    folder: Path, command: CreateSchema | DropTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metastore, "FENCE_PAUSE", 3600.0)  # longer than the call may take
    with Node.open(folder) as node:
        create_table(node)
        with node.database.write() as connection:
            FenceRow.raise_to(connection, FenceToken(0, 2))
        with pytest.raises(UnknownOutcome):
            node.session(user="ann").execute(command)
        version = node.catalogs.latest_catalog().version
        for _ in range(2):
            node.finish_half_raised_fence()
        node.projector.project_up_to(version)
        assert node.session(user="ann").history()[-1].version == version


def test_ddl_waits_for_an_opener_that_has_raised_the_fence_in_the_rows_only(folder: Path) -> None:
    with Node.open(folder) as node, ThreadPoolExecutor() as pool:
        with node.database.write() as connection:
            FenceRow.raise_to(connection, FenceToken(0, 2))
        created = pool.submit(node.session(user="ann").execute, CreateSchema(name="s"))
        while node.catalogs.latest_catalog().schema("s") is None:
            assert not created.done()
        for _ in range(2):
            node.finish_half_raised_fence()
        version = created.result(timeout=30).version
        assert node.projector.projected_version() >= version


@pytest.mark.parametrize(
    "of_the_rows", [FenceToken(0, 0), FenceToken(1, 2)], ids=["restored alone", "newer generation"]
)
def test_ddl_waits_for_no_fence_that_this_node_cannot_join(
    folder: Path, of_the_rows: FenceToken, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metastore, "FENCE_PAUSE", -1.0)  # any pause would be an error
    with Node.open(folder) as node:
        with node.database.write() as connection:
            run(
                connection,
                "UPDATE strandline_fence SET deploy_generation = ?, epoch = ?",
                of_the_rows.rank,
            )
        with pytest.raises(UnknownOutcome, match=str(of_the_rows)):
            node.session(user="ann").execute(CreateSchema(name="s"))


def test_halves_of_different_stores_are_refused(folder: Path) -> None:
    Node.open(folder).close()
    sql(folder, "UPDATE strandline_fence SET environment = 'another'")
    with pytest.raises(WrongEnvironment, match="another"):
        Node.open(folder)


def test_a_node_cannot_write_to_a_recreated_store_with_the_same_token(
    folder: Path,
) -> None:
    with Node.open(folder) as node:
        session, log = node.session(user="ann"), node._opened_store.catalog_log.log
        session.execute(CreateSchema(name="before"))
        frontier = log.frontier()
        sql(folder, "UPDATE strandline_fence SET environment = 'another'")
        with pytest.raises(WrongEnvironment, match="another"):
            session.execute(DropSchema(name="before"))
        with pytest.raises(Fenced, match="another"):
            session.execute(CreateSchema(name="late"))
        with pytest.raises(WrongEnvironment, match="another"):
            session.begin()
        assert log.frontier() == frontier


def test_a_catalog_older_than_its_rows_is_refused(folder: Path) -> None:
    with Node.open(folder) as node:
        last = node.catalogs.present().version
    sql(folder, f"UPDATE strandline_fence SET catalog_version = {last + 1}")
    with pytest.raises(
        WrongEnvironment, match=f"version {last + 1}, but the catalog ends at {last}"
    ):
        Node.open(folder)
    sql(folder, f"UPDATE strandline_fence SET catalog_version = {last}")
    Node.open(folder).close()


def test_the_rows_record_the_last_catalog_version_projected_after_its_append(folder: Path) -> None:
    """One projected within its append is in the same database as its log entry."""
    with Node.open(folder) as node:
        create_table(node)
        node.session(user="ann").execute(DropTable(schema="default", table="t"))
        version = node.catalogs.present().version
        with node.database.read() as connection:
            fence = FenceRow.read(connection)
    assert fence is not None
    assert fence.catalog_version == version


def test_a_node_of_a_newer_deploy_generation_takes_over_the_store(folder: Path) -> None:
    second = Settings(deploy_generation=2)
    with Node.open(folder) as node, Node.open(folder, settings=second) as newer:
        assert newer.catalogs.token.rank == (2, 2)
        by_whom = f"generation 2, epoch 2, which {newer.catalogs.state.member} took at "
        assert by_whom in node.replaced.result(timeout=60)
        newer.session(user="ann").execute(CreateSchema(name="late"))
        with Node.open(folder, settings=second) as beside:
            assert beside.catalogs.token == newer.catalogs.token
        with pytest.raises(Fenced, match=r"generation 2 of this deployment owns .* took at "):
            Node.open(folder, settings=Settings(deploy_generation=1))
        assert not newer.replaced.done()
    with Node.open(folder) as node:
        assert node.catalogs.present().schema("late") is not None


def test_a_node_whose_clock_is_wrong_raises_no_fence(folder: Path) -> None:
    def two_days_behind() -> int:
        return system_wall_clock() - 2 * 86_400_000

    second = Settings(deploy_generation=2)
    with Node.open(folder) as node:
        with pytest.raises(WrongClock, match="nothing was written"):
            Node.open(folder, settings=second, wall=two_days_behind)
        node.session(user="ann").begin()
        with Node.open(folder, wall=two_days_behind):  # it can read
            pass


def test_a_starting_node_overtaken_by_a_newer_generation_takes_no_epoch(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Node.open(folder) as node:
        compare = membership.refuse_older_catalog

        def then_it_is_overtaken(fence: FenceState | None, log: UpdateLog) -> None:
            compare(fence, log)
            monkeypatch.undo()
            take_over(node, generation=2)

        monkeypatch.setattr(membership, "refuse_older_catalog", then_it_is_overtaken)
        with pytest.raises(
            Fenced, match=r"generation 2 of this deployment owns the store.*to 2 or more"
        ):
            Node.open(folder, settings=Settings(deploy_generation=1))
        assert durable_state(node._opened_store.catalog_log.log).epoch() == 2


def test_a_process_that_joins_reads_the_fence_of_the_rows_once(folder: Path) -> None:
    with Node.open(folder) as node, recorded(of_this_thread=True) as sent:
        membership.join_or_create(
            node.catalogs.state.log,
            node.database,
            HybridClock(),
            member="late",
            delay_ms=0,
            skew_ms=0,
            default_location="",
        )
    assert [text for text, _ in sent].count(FENCE_ROW) == 1


def test_a_new_store_has_the_generation_of_its_creator(folder: Path) -> None:
    with Node.open(folder, settings=Settings(deploy_generation=3)) as node:
        assert node.catalogs.token.rank == (3, 1)


@pytest.mark.parametrize("generation", [-5, 2**31, 2**63 - 1])
def test_an_out_of_range_deploy_generation_is_refused(generation: int) -> None:
    with pytest.raises(InvalidInput, match="deploy_generation is"):
        Settings(deploy_generation=generation)


def drop_tables(connection: psycopg.Connection) -> None:
    """Drop all tables. A node reads them meanwhile, so the database may find a deadlock."""
    for _ in range(20):
        with suppress(psycopg.errors.DeadlockDetected):
            connection.execute("DROP SCHEMA public CASCADE")
            connection.execute("CREATE SCHEMA public")
            return
    pytest.fail("each attempt to drop the tables ended in a deadlock with a read of the node")


@pytest.mark.parametrize("log", ["metastorage", "stash", "persist", "shadow"])
def test_a_node_of_a_dropped_store_writes_nothing_into_the_recreated_one(
    log: str, tmp_path: Path
) -> None:
    """The new catalog has the same version and epoch, but another environment."""
    address = stores.new_store("postgresql", tmp_path).address

    def node(warehouse: str) -> Node:
        settings = Settings(
            catalog_log=log, warehouse=str(tmp_path / warehouse), delay_ms=0, clock_skew_ms=0
        )
        return Node.open(address, settings=settings)

    with node("old") as old:
        old.session(user="ann").execute(CreateSchema(name="one"))
        with psycopg.connect(address, autocommit=True) as connection:
            drop_tables(connection)
        with node("new") as new:
            session = new.session(user="bob")
            session.execute(CreateSchema(name="two"))
            assert old.catalogs.token.rank == new.catalogs.token.rank
            write = partial(old.session(user="ann").execute, CreateSchema(name="three"))
            for attempt in (write, write, old.session(user="ann").begin):
                with pytest.raises((Fenced, WrongEnvironment, CorruptData)):
                    attempt()
            session.execute(CreateSchema(name="four"))
            assert new.catalogs.present().schema("three") is None


def test_a_lost_catalog_is_not_recreated_next_to_its_rows(folder: Path) -> None:
    with Node.open(folder, settings=Settings(catalog_log="persist")) as node:
        node.session(user="ann").execute(CreateSchema(name="kept"))
    sql(folder, "DELETE FROM metastorage WHERE key LIKE 'persist.%.head'")
    with pytest.raises(WrongEnvironment, match="the catalog ends at 0"):
        Node.open(folder)
    assert strandline("upgrade-check", folder).exit_code != 0
