"""Transactions of a store whose catalog log is in another database than its rows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from strandline.catalog import CatalogManager, Command, initial_catalog
from strandline.catalog.commands import ColumnDefinition, CreateSchema, CreateTable, TableDefinition
from strandline.clock import HybridClock
from strandline.durable import MetastorageLog, durable_state
from strandline.errors import InvalidInput
from strandline.metastorage import SqlMetastorage
from strandline.metastore.store.notifications import NotificationLog
from strandline.metastore.store.projection import Projector
from strandline.metastore.store.store_folders import StoreFolders
from strandline.metastore.store.transaction_order import ProjectedCatalogs
from strandline.model.types import INT
from strandline.sql import open_sqlite
from strandline.transactions import Behind, Transactions, TransactionState
from tests.conftest import ManualWall

DELAY = 200


class Halves:
    """A catalog in one database, transactions in another, and the clock of their node."""

    def __init__(self, folder: Path, *, delay: int) -> None:
        self.wall = ManualWall()
        self.clock = HybridClock(self.wall)
        self.log_database = open_sqlite(folder / "log.db")
        self.store = SqlMetastorage(self.log_database, self.clock)
        initialize = initial_catalog(delay_ms=delay, skew_ms=0, default_location="file:/warehouse")
        state = durable_state(MetastorageLog(self.store)).open(
            member="m", initialize=initialize, raise_fence=lambda *_: None
        )
        self.wall.now += 2 * delay  # until the catalog is active
        self.catalogs = CatalogManager(state, self.clock, elapsed=self.wall)
        self.database = open_sqlite(folder / "rows.db")
        self.database.guard = lambda _: None
        projector = Projector(
            self.database,
            NotificationLog(self.database, self.clock),
            updates=self.catalogs.updates,
            catalog=self.catalogs.catalog,
            folders=StoreFolders(folder),
        )
        try:
            self.transactions = Transactions(
                self.database,
                self.clock,
                catalogs=ProjectedCatalogs(self.catalogs, projector, upper_within=None),
            )
        except BaseException:
            self.close()
            raise

    def execute_elsewhere(self, *commands: Command) -> None:
        """Execute commands on another node, whose clock is past the activation."""
        other = CatalogManager(
            durable_state(MetastorageLog(self.store)).join(member="other"),
            HybridClock(lambda: self.wall.now + 10 * DELAY),
            elapsed=self.wall,
        )
        other.execute(commands, author="ann")
        other.stop()

    def close(self) -> None:
        self.catalogs.stop()
        self.store.close()
        self.log_database.close()
        self.database.close()


@pytest.fixture
def halves(tmp_path: Path) -> Iterator[Halves]:
    opened = Halves(tmp_path, delay=DELAY)
    yield opened
    opened.close()


def test_begins_look_at_the_log_once_per_delay(halves: Halves) -> None:
    begun = halves.transactions.begin(user="ann")
    assert begun.catalog_version == halves.catalogs.latest_catalog().version
    assert halves.transactions.statistics().behind == 1
    halves.wall.now += DELAY // 2
    assert halves.transactions.begin(user="ann").catalog_version == begun.catalog_version
    assert halves.transactions.statistics().behind == 1
    halves.wall.now += DELAY
    halves.transactions.begin(user="ann")
    assert halves.transactions.statistics().behind == 2


def test_the_catalog_is_known_up_to_the_time_of_the_last_look_and_no_further(
    halves: Halves,
) -> None:
    known = halves.catalogs.look()
    latest = halves.catalogs.latest_catalog()
    assert halves.catalogs.catalog_at(known, upper=None) == latest
    with pytest.raises(Behind, match="is not known yet"):
        halves.catalogs.catalog_at(type(known)(known + 1), upper=None)


def test_transactions_begin_under_a_version_of_another_node_once_it_is_active(
    halves: Halves,
) -> None:
    before = halves.transactions.begin(user="ann").catalog_version
    halves.wall.now += 10
    halves.execute_elsewhere(CreateSchema(name="sales"))
    assert halves.transactions.begin(user="ann").catalog_version == before, "not active here yet"
    halves.wall.now += 2 * DELAY
    assert halves.transactions.begin(user="ann").catalog_version == before + 1


def test_an_autocommit_that_runs_past_the_known_catalog_time_is_committed(
    halves: Halves,
) -> None:
    definition = TableDefinition(name="t", columns=(ColumnDefinition("a", INT),))
    halves.execute_elsewhere(CreateTable(schema="default", definition=definition))
    halves.wall.now += 2 * DELAY
    halves.catalogs.look()
    table = next(iter(halves.catalogs.latest_catalog().tables()))
    with halves.transactions.autocommit(table.id, user="ann") as step:
        halves.wall.now += 2 * DELAY
    ended = halves.transactions.get(step.transaction.txn_id)
    assert ended.state is TransactionState.COMMITTED
    later = halves.transactions.begin(user="ann")
    assert ended.commit_time is not None
    assert later.begin_time > ended.commit_time


def test_a_catalog_without_a_delay_is_refused_at_startup(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="create it with a delay"):
        Halves(tmp_path, delay=0)
