"""The checker finds faults planted in a node, each by a schedule that shows it.

A schedule is a few calls of clients to two nodes: ``sound``, and ``other``, which has the fault.
The tests make the caches of the nodes follow the log step by step. Without its fault, no schedule
brings a complaint.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import pytest

from strandline.catalog.commands import CreateSchema
from strandline.errors import Conflict, Fenced, VersionNotFound
from strandline.fencing import FenceToken
from strandline.node import DATABASE_FILE
from strandline.sql import FenceRow, open_sqlite
from tests.consistency import faults
from tests.consistency.checker import check
from tests.consistency.client import Client
from tests.consistency.history import History, Operation
from tests.servers import stores
from tests.servers.served_node import Plant, ServedNode, followed_by_hand

pytestmark = pytest.mark.teeth


class Site:
    """Two nodes on one store, started on first use, a client of each, and the history of both."""

    def __init__(self, folder: Path, opened: ExitStack, *plants: Plant) -> None:
        self.history = History()
        self.folder = folder / "lake"
        self._store = stores.new_store("folder", self.folder)
        self._opened = opened
        self._plants = plants

    @cached_property
    def sound_node(self) -> ServedNode:
        return self._start()

    @cached_property
    def other_node(self) -> ServedNode:
        return self._start(*self._plants)

    @cached_property
    def sound(self) -> Client:
        return self._client(self.sound_node, "sound")

    @cached_property
    def other(self) -> Client:
        return self._client(self.other_node, "other")

    def _start(self, *plants: Plant) -> ServedNode:
        node = ServedNode(self._store, plants=[followed_by_hand, *plants])
        return self._opened.enter_context(closing(node))

    def _client(self, node: ServedNode, name: str) -> Client:
        return self._opened.enter_context(closing(Client(self.history, node, name=name)))

    @contextmanager
    def beside(self, call: Callable[[], object]) -> Iterator[Future[object]]:
        """Run a call concurrently with the block; at the end, wait for it."""
        with ThreadPoolExecutor(1) as threads:
            calling = threads.submit(call)
            yield calling
            with suppress(Conflict):
                calling.result()


# -- the schedules


def half_a_transaction_in_memory(site: Site) -> None:
    """The cache has the first of two stagings when the transaction is committed."""
    table = site.sound.create("halves")
    site.other.read(table)
    txn_id = site.sound.begin()
    site.sound.stage(txn_id, table, add=[1])
    site.other_node.tell("catch_up")
    site.sound.stage(txn_id, table, add=[2])
    site.sound.commit(txn_id)
    site.other.read(table)


def a_write_that_memory_has(site: Site) -> None:
    table = site.sound.create("followed")
    site.other.read(table)
    site.sound.write(table, 1)
    site.other_node.tell("catch_up")
    site.other.read(table)


def an_older_write_behind_a_younger_one(site: Site) -> None:
    """The first of two writers commits last, and the cache has only the second one's commit."""
    table = site.sound.create("overtaken")
    site.other.read(table)
    first = site.sound.begin()
    site.sound.stage(first, table, add=[1])
    site.sound.write(table, 1)
    site.other_node.tell("catch_up")
    site.sound.stage(first, table, add=[2])
    site.sound.commit(first)
    site.other.read(table)


def a_table_made_again(site: Site) -> None:
    table = site.other.create("again")
    site.other.write(table, 1)
    site.other.drop(table)
    site.other.read(site.other.create("again"))


def a_file_replaced(site: Site) -> None:
    table = site.other.create("replaced")
    site.other.write(table, 1)
    txn_id = site.other.begin()
    site.other.stage(txn_id, table, add=[1], remove=site.other.read(table)["replaced"])
    site.other.commit(txn_id)
    site.other.read(table)


def a_commit_while_a_snapshot_is_taken(site: Site) -> None:
    table = site.sound.create("raced")
    site.other_node.tell("arm_gate", "snapshot")
    with site.beside(lambda: site.other.snapshot(table)):
        assert site.other_node.tell("reached", "snapshot")
        site.sound.write(table, 1)
        site.other_node.tell("open_gate", "snapshot")


def two_commits(site: Site) -> None:
    table = site.other.create("ordered")
    for _ in range(2):
        site.other.write(table, 1)
    site.other.events()


def a_trimming_below_a_hold(site: Site) -> None:
    table = site.other.create("kept")
    site.other.write(table, 1)
    time = site.other.snapshot(table).time
    site.other.hold(time)
    site.other.create("later")
    with suppress(Conflict):
        site.other.trim()
    with suppress(VersionNotFound):
        site.other.read(table, at=time)


def an_abort_while_a_node_sleeps(site: Site) -> None:
    """A commit is in progress on one node when another node aborts the transaction."""
    table = site.sound.create("slept")
    txn_id = site.sound.begin()
    site.sound.stage(txn_id, table, add=[1])
    site.other.read(table)
    site.sound_node.stop()
    with site.beside(lambda: site.sound.commit(txn_id)):
        site.other.abort(txn_id)
        site.sound_node.go_on()


def two_writers_of_one_file(site: Site) -> None:
    table = site.other.create("contended")
    site.other.write(table, 1)
    contended = site.other.read(table)["contended"]
    writers = [site.other.begin(), site.other.begin()]
    for txn_id in writers:
        site.other.stage(txn_id, table, remove=contended)
    for txn_id in writers:
        with suppress(Conflict):
            site.other.commit(txn_id)


def a_change(site: Site) -> None:
    site.other.change("the author", CreateSchema(name="changed"))
    site.other.log()


def a_takeover(site: Site) -> None:
    """Another generation has raised the fence of the rows, but not yet that of the log."""
    table = site.other.create("taken")
    txn_id = site.other.begin()
    began = site.history.place()
    with (
        closing(open_sqlite(site.folder / DATABASE_FILE)) as database,
        database.write() as connection,
    ):
        fence = FenceRow.read(connection)
        assert fence is not None
        token = FenceToken(fence.token.deploy_generation + 1, fence.token.epoch)
        FenceRow.raise_to(connection, token)
    ended = site.history.place()
    site.history.add(Operation(call="takeover", generation=1, began=began, ended=ended))
    with suppress(Fenced):
        site.other.stage(txn_id, table, add=[1])
        site.other.commit(txn_id)


class Tooth(NamedTuple):
    """A schedule, and the kind of complaint that it brings with the fault."""

    schedule: Callable[[Site], None]
    complaint: str


TEETH: dict[Plant, Tooth] = {
    faults.a_commit_shown_early: Tooth(half_a_transaction_in_memory, "lost write"),
    faults.one_invalidation_skipped: Tooth(a_write_that_memory_has, "lost write"),
    faults.served_by_watermark_alone: Tooth(an_older_write_behind_a_younger_one, "lost write"),
    faults.a_table_id_reused: Tooth(a_table_made_again, "reused table id"),
    faults.a_removal_row_dropped: Tooth(a_file_replaced, "removed file"),
    faults.a_list_derived_before_the_lock: Tooth(a_commit_while_a_snapshot_is_taken, "stale list"),
    faults.an_event_out_of_order: Tooth(two_commits, "event order"),
    faults.a_hold_ignored: Tooth(a_trimming_below_a_hold, "hold ignored"),
    faults.an_abort_ignored: Tooth(an_abort_while_a_node_sleeps, "abort ignored"),
    faults.a_conflict_ignored: Tooth(two_writers_of_one_file, "lost update"),
    faults.a_change_refused_after_its_commit: Tooth(a_change, "refused change"),
    # This fault is the last: after its schedule, the nodes write nothing.
    faults.the_token_not_compared_in_sql: Tooth(a_takeover, "fenced node"),
}


@pytest.mark.parametrize("fault", TEETH, ids=lambda fault: fault.__name__)
def test_the_checker_finds_a_planted_fault(fault: Plant, tmp_path: Path) -> None:
    with ExitStack() as opened:
        site = Site(tmp_path, opened, fault)
        TEETH[fault].schedule(site)
    assert TEETH[fault].complaint in {
        complaint.kind for complaint in check(site.history.operations)
    }


def test_no_schedule_brings_a_complaint_without_its_fault(tmp_path: Path) -> None:
    with ExitStack() as opened:
        site = Site(tmp_path, opened, faults.a_snapshot_waits)
        for tooth in TEETH.values():
            tooth.schedule(site)
            complaints = check(site.history.operations)
            assert not complaints, f"{tooth.schedule.__name__}: {complaints[0]}"
