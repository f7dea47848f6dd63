"""The tests of undoing can fail: each planted fault is found by the test written for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from strandline.catalog import CatalogManager
from strandline.catalog.follower import CatalogFollower
from strandline.catalog.planning import Planning
from strandline.catalog.undo import net, reading, rules
from strandline.catalog.undo.command import Undo, _Step
from strandline.durable.transaction import CatalogTransaction
from strandline.durable.update import Change
from strandline.errors import StrandlineError
from strandline.model.descriptors import IndexStatus
from tests.catalog import test_differences_teeth as differences_teeth
from tests.catalog import test_undo as tests
from tests.catalog import test_undo_any as any_tests
from tests.catalog import test_undo_apart as apart_tests
from tests.catalog import test_undo_net as net_tests
from tests.catalog import test_undrop as undrop_tests
from tests.catalog.planted import plant, plant_undo

Patch = pytest.MonkeyPatch
NewManager = Callable[[], CatalogManager]
Check = Callable[[NewManager], None]

UNDO = "strandline.catalog.undo.command"
READING = "strandline.catalog.undo.reading"
RULES = "strandline.catalog.undo.rules"


# -- what finds a fault ----------------------------------------------------------------------------


def by(test: Callable[[CatalogManager], None]) -> Check:
    """A test of `test_undo` that takes its manager."""
    return lambda new_manager: test(tests.prepared(new_manager()))


def by_net(test: Callable[..., None], *arguments: object) -> Check:
    """The same for `test_undo_net`."""
    return lambda new_manager: test(net_tests.prepared(new_manager()), *arguments)


def by_apart(undone: str, since: str) -> Check:
    """A part of a table is undone after another was changed."""
    test = apart_tests.test_a_part_is_undone_unless_the_same_part_was_changed_since
    return lambda new_manager: test(apart_tests.prepared(new_manager()), undone, since)


def by_scenario(name: str) -> Check:
    """Undo and redo of a scenario."""
    test = any_tests.test_undo_restores_the_version_before_and_redo_the_version_after
    return lambda new_manager: test(new_manager, name)


def by_what_stays(new_manager: NewManager) -> None:
    """The property that later changes are kept; the first failing example is enough."""
    test: Any = any_tests.test_undo_keeps_later_changes_or_is_refused
    searching = settings(
        max_examples=20,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    searching(given(any_tests.BATCHES, any_tests.BATCHES)(test.hypothesis.inner_test))()


# -- the faults ------------------------------------------------------------------------------------


def later_changes_are_overwritten(patch: Patch) -> None:
    """It is not checked whether an object still is as the version left it."""
    patch.setattr(Undo, "_check_unchanged", lambda *_: None)


def later_parts_are_overwritten(patch: Patch) -> None:
    """A part of an object that was changed since goes back together with another part."""
    real = Undo.keeping_later

    def keeping(self: Undo, value: Any, target: net.Target, now: Any) -> Any:
        is_checked = value == self.net[target].new_value
        return real(self, value, target, now) if is_checked else value

    patch.setattr(Undo, "keeping_later", keeping)


def the_whole_catalog_goes_back(patch: Patch) -> None:
    """Later changes are undone together with the version."""

    def read(catalogs: CatalogFollower, version: int) -> Undo:
        undo = reading.read_undo(catalogs, version)
        since = catalogs.updates(version, catalogs.latest_catalog().version + 1)
        entries = tuple(entry for update in since for entry in update.entries)
        return replace(undo, update=replace(undo.update, entries=entries), later=())

    patch.setattr("tests.catalog.taking_back.read_undo", read)


def a_fresh_id(patch: Patch) -> None:
    """A table is restored with a new id."""
    real = _Step._put_back

    def put_back(self: _Step, transaction: CatalogTransaction, change: Change, value: Any) -> None:
        if self._present_value(change) is None and hasattr(value, "next_column_id"):
            value = replace(value, id=transaction.allocate_id()[0])
        real(self, transaction, change, value)

    patch.setattr(_Step, "_put_back", put_back)


def column_ids_go_back(patch: Patch) -> None:
    """The next column takes the id of a column whose addition was undone."""

    def table(past: Any, *arguments: Any) -> Any:
        back = rules.table_comes_back(past, *arguments)
        return replace(back, next_column_id=past.next_column_id)

    plant_undo(patch, "table", comes_back=table)


def columns_come_back_not_null(patch: Patch) -> None:
    """A restored column is NOT NULL, although rows written meanwhile have no value for it."""

    def table(past: Any, now: Any, of: net.Net, whole: Any) -> Any:
        return rules.table_comes_back(past, now, replace(of, new=None), whole)

    plant_undo(patch, "table", comes_back=table)


def undrop_forgets_the_indexes(patch: Patch) -> None:
    """A table is restored without what was dropped with it."""
    real = reading._with_its_parts

    def alone(*arguments: Any) -> Undo:
        undo = real(*arguments)
        tables = frozenset(target for target in undo.only or () if target.kind == "table")
        return Undo(update=undo.update, later=undo.later, restored=undo.restored, only=tables)

    patch.setattr(f"{READING}._with_its_parts", alone)


def undrop_takes_the_oldest(patch: Patch) -> None:
    """Of all objects that had the name, the one that was dropped first is restored."""
    patch.setattr(f"{READING}._backwards", CatalogFollower.each_update)


def undrop_takes_what_never_was(patch: Patch) -> None:
    """A table that was created and dropped in one version counts as the last one dropped."""

    def dropped(undo: Undo, kind: str, name: str) -> list[Any]:
        changes = [
            change for change in undo.update.changes() if change.kind == kind and change.new is None
        ]
        return [(net.target_of(change), reading._stored(change)) for change in changes]

    patch.setattr(f"{READING}._dropped", dropped)


def a_stopped_index_is_available(patch: Patch) -> None:
    """An index that missed writes serves reads again."""

    def status(was: Any, left: Any, *, together: bool) -> IndexStatus:
        stopped = left is not None and not left.alive
        return was.status if stopped else real(was, left, together=together)

    real = rules._status
    patch.setattr(f"{RULES}._status", status)


def restored_indexes_begin_anew(patch: Patch) -> None:
    """The indexes of a restored table have to be built again."""
    real = rules._status
    patch.setattr(f"{RULES}._status", lambda was, left, **_: real(was, left, together=False))


def indexes_are_judged_step_by_step(patch: Patch) -> None:
    """Each single step of an index within a version must be one that can be undone."""
    real = _Step._restored_value

    def back(self: _Step, change: Any) -> Any:
        if change.kind == "index" and change.old is not None:
            past, now = net.value_of("index", change.old), self._present_value(change)
            return replace(past, status=rules._status(past, now, together=False))
        return real(self, change)

    patch.setattr(_Step, "_restored_value", back)


def names_are_given_back_step_by_step(patch: Patch) -> None:
    """Undo needs every name that an object had within the version."""
    patch.setattr(f"{UNDO}.exchanged", lambda _, of: frozenset(of))


def who_has_the_name_is_dropped(patch: Patch) -> None:
    """An object that took the name of a restored object meanwhile is dropped."""
    real = CatalogTransaction.put

    def put(self: CatalogTransaction, value: Any, **known: Any) -> None:
        try:
            real(self, value, **known)
        except StrandlineError:
            kind = "view" if value.name == "t" else "table"
            for stored in list(self.contents.objects(kind)):
                if stored.name.lower() == value.name:
                    self.delete(kind, stored.id)
            real(self, value, **known)

    patch.setattr(_Step, "_check_name", lambda *_: None)
    patch.setattr(CatalogTransaction, "put", put)


def references_dangle(patch: Patch) -> None:
    """It is not checked whether the zone of a restored table still exists."""
    patch.setattr(f"{UNDO}.references", lambda _: ())


def parts_stay_behind(patch: Patch) -> None:
    """An index stays in the schema that its table left."""
    plant_undo(patch, "table", following=lambda *_: ())


def called_after_what_stays(patch: Patch) -> None:
    """A table is said to be renamed although only its index is, and its folder waits forever."""
    real = _Step._named

    def named(self: _Step, back: list[Any]) -> tuple[str, dict[str, Any]]:
        verb, arguments = real(self, back)
        return (self.entry.verb if self.entry.verb == "rename_table" else verb), arguments

    patch.setattr(_Step, "_named", named)


def half_a_batch(patch: Patch) -> None:
    """The first of several entries of a version is not undone."""
    real = _Step.take_back
    patch.setattr(_Step, "take_back", lambda self: real(self) if self.number else [])


def circles_are_closed(patch: Patch) -> None:
    """A membership is restored, whatever was granted meanwhile."""
    patch.setattr(f"{RULES}.roles_above", lambda *_: set())


def types_get_narrower(patch: Patch) -> None:
    """A column gets its old type back, although wider values may have been written."""
    patch.setattr(f"{RULES}._check_column", lambda *_: None)


def drop_without_the_rules(patch: Patch) -> None:
    """A zone that the version created is deleted even if it is in use."""

    def delete(planning: Planning, now: Any) -> None:
        with planning.entry("drop_zone", zone=now.name) as transaction:
            transaction.delete("zone", now.id)

    plant(patch, "zone", drop=delete)


def parameters_go_back_over_what_they_were(patch: Patch) -> None:
    """A parameter that was set twice in a version is set back twice."""
    real = _Step.take_back

    def take(self: _Step) -> None:
        for change in self.entry.changes:
            if change.kind == "system_configuration" and change.old is not None:
                past = net.value_of(change.kind, change.old)
                rules.set_parameter_back(self.planning, None, past)
        real(self)

    patch.setattr(_Step, "take_back", take)


def a_snapshot_is_taken_for_an_update(patch: Patch) -> None:
    """The earliest version is undone by its update, which is no longer stored."""
    patch.setattr(f"{READING}._check_kept", lambda *_: None)


def what_came_while_reading_is_not_seen(patch: Patch) -> None:
    """A table that was restored and dropped again between reading and planning is not noticed."""
    patch.setattr(Undo, "restored_tables", lambda _: iter(()))


Fault = Callable[[Patch], None]

WITH_A_KEY = "tables: a table with a key comes with its index, and is in no version before its own"

FAULTS: dict[Fault, tuple[Check, str]] = {
    later_changes_are_overwritten: (
        by(tests.test_a_conflicting_later_change_is_named_with_its_version_and_author),
        "DID NOT RAISE .*Conflict",
    ),
    later_parts_are_overwritten: (by_apart("columns", "privileges"), "assert .*=="),
    the_whole_catalog_goes_back: (
        by_what_stays,
        "what was done since is lost|a change since was overlooked",
    ),
    a_fresh_id: (
        by(undrop_tests.test_undrop_restores_the_last_dropped_table_of_that_name),
        r"assert \d+ == \d+",
    ),
    column_ids_go_back: (
        by(tests.test_columns_keep_their_ids_and_no_id_is_reused),
        r"(?s)assert 3 == 4.*next_column_id",
    ),
    columns_come_back_not_null: (
        by(tests.test_a_restored_column_keeps_its_id_and_is_nullable),
        r"\(2, False\) == \(2, True\)",
    ),
    undrop_forgets_the_indexes: (
        by(undrop_tests.test_undrop_restores_its_object_and_does_not_undo_the_rest_of_the_version),
        r"\[\] == \['t_pk'\]",
    ),
    undrop_takes_the_oldest: (
        by(undrop_tests.test_undrop_restores_the_last_dropped_table_of_that_name),
        r"assert \d+ == \d+",
    ),
    undrop_takes_what_never_was: (
        by_net(net_tests.test_undrop_skips_a_table_that_was_created_and_dropped_in_one_version),
        "assert None == TableDescriptor",
    ),
    a_stopped_index_is_available: (
        by(tests.test_a_started_index_build_cannot_be_undone_and_a_stopped_index_begins_anew),
        "(?s)AVAILABLE.* != .*REGISTERED",
    ),
    restored_indexes_begin_anew: (by_scenario(WITH_A_KEY), "(?s)index.*Descriptor"),
    indexes_are_judged_step_by_step: (
        by_net(
            net_tests.test_an_index_is_restored_according_to_its_status_before_and_now,
            "BUILDING",
            ["available", "drop"],
            "REGISTERED",
        ),
        "which cannot be reversed",
    ),
    names_are_given_back_step_by_step: (
        by_net(net_tests.test_an_intermediate_name_may_be_taken_meanwhile),
        r"s\.old is now used by",
    ),
    who_has_the_name_is_dropped: (
        by(tests.test_the_object_that_took_the_old_name_is_named),
        r"view s\.T was created since",
    ),
    references_dangle: (
        by(tests.test_a_table_cannot_be_restored_while_its_zone_is_dropped),
        "DID NOT RAISE .*ObjectNotFound",
    ),
    parts_stay_behind: (
        by_net(net_tests.test_an_index_moves_back_with_its_table),
        "assert None is not None",
    ),
    called_after_what_stays: (
        by_net(net_tests.test_a_table_renamed_there_and_back_is_not_renamed_by_the_undo),
        "a rename_table of no table",
    ),
    half_a_batch: (by(tests.test_a_batch_is_undone_as_a_whole_in_one_version), "name='tmp'"),
    circles_are_closed: (
        by(tests.test_a_membership_is_not_restored_if_it_would_close_a_cycle),
        "DID NOT RAISE .*IllegalChange",
    ),
    types_get_narrower: (
        by(tests.test_widening_a_column_type_cannot_be_undone),
        "DID NOT RAISE .*IllegalChange",
    ),
    drop_without_the_rules: (
        by(tests.test_undoing_a_creation_follows_the_rules_of_the_drop),
        "DID NOT RAISE .*IllegalChange",
    ),
    parameters_go_back_over_what_they_were: (
        by_net(net_tests.test_a_parameter_is_restored_directly_without_its_intermediate_value),
        "size small cannot be removed",
    ),
    a_snapshot_is_taken_for_an_update: (
        by(tests.test_the_refusal_to_undo_a_trimmed_version_says_that_it_was_trimmed),
        "version 4 is no longer in the log",
    ),
    what_came_while_reading_is_not_seen: (
        by(tests.test_a_table_restored_while_the_history_was_read_is_detected),
        "DID NOT RAISE .*HistoryMoved",
    ),
}
"""Each planted fault, the test that must find it, and the expected complaint."""


FOUND = (AssertionError, StrandlineError, pytest.fail.Exception)
"""The errors with which a test reports a fault, as opposed to accidents of the patch."""


@pytest.mark.teeth
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_the_tests_find_each_planted_fault(
    fault: Fault, new_manager: NewManager, monkeypatch: Patch
) -> None:
    check, complaint = FAULTS[fault]
    fault(monkeypatch)
    with pytest.raises(FOUND, match=complaint):
        check(new_manager)


LEFT_OUT = {
    **differences_teeth.LEFT_OUT,
    "index": "indexes: an index on a table that is there begins its life",
}
"""For each kind that users create, a scenario that changes an object of it and can be undone."""


@pytest.mark.teeth
@pytest.mark.parametrize("kind", sorted(LEFT_OUT.keys() - {"system_view"}))
def test_leaving_out_a_kind_is_detected(
    kind: str, new_manager: NewManager, monkeypatch: Patch
) -> None:
    plant(monkeypatch, kind, is_internal=lambda name: True)
    complaint = rf"\('{kind}', b|assert \d+ == \(\d+ \+ 1\)|was created since and would go with it"
    with pytest.raises(FOUND, match=complaint):
        by_scenario(LEFT_OUT[kind])(new_manager)
