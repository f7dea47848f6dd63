"""The machine of `test_nodes_model` can fail: it finds each planted fault."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Connection

from strandline.catalog import Catalog, CatalogManager, Relation
from strandline.catalog.configuration import MAX_TABLES
from strandline.catalog.events import AppliedVersion
from strandline.catalog.group_commit import GroupCommit
from strandline.catalog.planning import Planning
from strandline.catalog.requests import Group
from strandline.clock import HybridClock, Timestamp
from strandline.durable import CatalogTransaction, MetastorageLog
from strandline.durable.log import LogAppend, snapshot_of
from strandline.durable.state import TrimmedAway
from strandline.durable.update import CatalogSnapshot
from strandline.errors import LimitExceeded, OutOfSync, StrandlineError
from strandline.sql import Database
from tests.catalog.scenario_faults import Fault, half_a_batch_is_done
from tests.catalog.test_nodes_model import ids, run
from tests.catalog.timeline_faults import a_snapshot_has_the_time_of_today


def stale_present(patch: pytest.MonkeyPatch) -> None:
    """The present is answered from memory without looking at the log."""
    patch.setattr(CatalogManager, "known_present", CatalogManager.latest_catalog)


def present_between_look_and_apply(patch: pytest.MonkeyPatch) -> None:
    """The node reads the log's head, and answers before it has applied the log up to it."""
    real = CatalogManager.present

    def present(self: CatalogManager) -> Catalog:
        before = self.latest_catalog()
        real(self)
        return before

    patch.setattr(CatalogManager, "present", present)


def retry_without_judging(patch: pytest.MonkeyPatch) -> None:
    """A lost append is sent again unchanged, after the versions that it was lost to."""

    def rebase(self: GroupCommit, group: Group) -> Group:
        self._follower.sync()
        again = Group(self._follower.latest_catalog())
        for member in group.members:
            if member.transaction is not None:
                moved, view = member.transaction.rebased(again.catalog), again.catalog
                catalog = Catalog(moved.version, view.time, moved.contents)
                again.add(replace(member, catalog=catalog, transaction=moved))
        return again

    patch.setattr(GroupCommit, "_rebase", rebase)


def ids_from_what_is_there(patch: pytest.MonkeyPatch) -> None:
    """The next id is one above the largest id in use, so the id of a dropped table is reused."""

    def allocate(self: CatalogTransaction, name: str = "", *, amount: int = 1) -> range:
        used = [0, *ids(Catalog(0, Timestamp(1), self.contents))]
        return range(max(used) + 1, max(used) + 1 + amount)

    patch.setattr(CatalogTransaction, "allocate_id", allocate)
    patch.setattr(Planning, "next_id", property(lambda self: allocate(self.transaction)[0]))


def event_before_catalog(patch: pytest.MonkeyPatch) -> None:
    """Listeners are called before the catalog is stored."""
    real = CatalogManager._apply

    def apply(self: CatalogManager, applied: Any) -> None:  # Any: as the real one
        before = self.latest_catalog()
        self._listeners.call(AppliedVersion(applied.update, before, self._activated(applied)))
        listeners, self._listeners._listeners = self._listeners._listeners, []
        real(self, applied)
        self._listeners._listeners = listeners

    patch.setattr(CatalogManager, "_apply", apply)


def trimming_loses_a_row(patch: pytest.MonkeyPatch) -> None:
    """A snapshot leaves out the last table."""
    real = snapshot_of

    def lossy(*arguments: Any) -> CatalogSnapshot:  # Any: as the real one
        whole = real(*arguments)
        kinds = tuple((k, rows[:-1] if k == "table" else rows) for k, rows in whole.kinds)
        return CatalogSnapshot(whole.version, whole.time, kinds)

    patch.setattr("strandline.durable.log.snapshot_of", lossy)


def time_taken_too_early(patch: pytest.MonkeyPatch) -> None:
    """An append takes the time after the last version's, even if later times were given since."""

    def take(_: Database, connection: Connection, clock: HybridClock) -> Timestamp:
        last = connection.exec_driver_sql("SELECT max(time) FROM metastorage_head").scalar()
        clock.update(Timestamp((last or 0) + 1))
        return Timestamp((last or 0) + 1)

    patch.setattr("strandline.metastorage.sql_store.take_append_time", take)


def lost_answer_taken_for_a_loss(patch: pytest.MonkeyPatch) -> None:
    """An append without an answer counts as lost to another node, although it is in the log."""
    real = MetastorageLog._settle

    def settle(self: MetastorageLog, append: LogAppend, error: Exception) -> None:
        real(self, append, error)
        raise OutOfSync("somebody else was first, surely") from error

    patch.setattr(MetastorageLog, "_settle", settle)


def state_ahead_of_the_history(patch: pytest.MonkeyPatch) -> None:
    """An interrupted apply is not continued where it stopped."""
    real = CatalogManager._apply_some

    def apply_some(self: CatalogManager) -> None:
        position: Any = self.latest_catalog()
        read_up_to = getattr(self, "read_up_to", position)
        if read_up_to.version > position.version:
            position = read_up_to
        try:
            updates = self.state.updates_after(position)
        except TrimmedAway:
            real(self)
            return
        assert updates, "the node waits for versions that it has applied already"
        self.read_up_to = updates[-1]  # type: ignore[attr-defined]  # a second position
        for applied in updates:
            self._apply(applied)

    patch.setattr(CatalogManager, "_apply_some", apply_some)


def index_outlives_its_table(patch: pytest.MonkeyPatch) -> None:
    """A table is dropped without its indexes."""

    def drop_relation(planning: Planning, relation: Relation, **_: bool) -> None:
        with planning.entry("drop_table", table=relation.name) as transaction:
            transaction.delete("table", relation.id)

    patch.setattr("strandline.catalog.commands.tables.drop_relation", drop_relation)


def limit_of_the_catalog_before_the_batch(patch: pytest.MonkeyPatch) -> None:
    """The check of the number of tables ignores the earlier commands of the batch."""

    def check_limit(planning: Planning) -> None:
        if planning.base.table_count() >= MAX_TABLES.required(planning.base):
            raise LimitExceeded("too many tables")

    patch.setattr("strandline.catalog.commands.tables._check_limit", check_limit)


FAULTS: dict[Fault, str] = {
    stale_present: "an old catalog for the present|is no longer kept|does not exist; the latest is",
    present_between_look_and_apply: "an old catalog for the present",
    retry_without_judging: r"CorruptData\(.*, not ",
    ids_from_what_is_there: "handed out twice|is another one",
    event_before_catalog: "before it can be read",
    trimming_loses_a_row: (
        r"is another one|differs from a replay|does not replace the present object|"
        r"Contents object at .* == <"  # what a new node has differs
    ),
    a_snapshot_has_the_time_of_today: "has another time",
    time_taken_too_early: "one time, two answers",
    lost_answer_taken_for_a_loss: r"(AlreadyExists|ObjectNotFound)\(.*not None",
    state_ahead_of_the_history: "applied already|does not follow|does not replace",
    index_outlives_its_table: "is another one",
    limit_of_the_catalog_before_the_batch: r"LimitExceeded\(",
    # The half that was applied is visible, or conflicts with the next command.
    half_a_batch_is_done: r"is another one|an old catalog|assert \d+ == \d+|\), not .* from",
}
"""Each planted fault, and the complaint that must find it."""


@pytest.mark.teeth
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_the_machine_finds_each_planted_fault(
    fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault(monkeypatch)
    with pytest.raises((AssertionError, StrandlineError), match=FAULTS[fault]):
        run(examples=200, steps=40)
