"""The tests of differences can fail: each planted fault is found by the test written for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import Phase, given, settings

from strandline.catalog import Catalog, CatalogManager, differences
from strandline.catalog.differences import Difference, DifferenceKind
from strandline.durable.collections import COLLECTIONS
from strandline.durable.contents import Contents
from strandline.model.identifiers import normalize
from strandline.wire.stored import AnyStored
from tests.catalog import test_differences as tests
from tests.catalog.planted import plant
from tests.catalog.taking_back import BOOKS
from tests.catalog.test_differences import prepared

Patch = pytest.MonkeyPatch
NewManager = Callable[[], CatalogManager]
Check = Callable[[NewManager, Patch], None]

MODULE = "strandline.catalog.differences"


# -- how a fault is found --------------------------------------------------------------------------


def by(test: Callable[[CatalogManager], None]) -> Check:
    """A test that takes the manager of its module."""
    return lambda new_manager, _: test(prepared(new_manager()))


def by_scenario(name: str) -> Check:
    """The comparison of the differences with what a scenario changed."""
    return lambda _new_manager, _patch: tests.compare_with_changes(name)


def by_any_contents(new_manager: NewManager, patch: Patch) -> None:
    """The property over arbitrary contents; the first failing example is enough."""
    test: Any = tests.test_differences_are_empty_exactly_when_the_contents_are_equal
    searching = settings(max_examples=100, phases=[Phase.generate])
    searching(given(tests.VALUES, tests.VALUES)(test.hypothesis.inner_test))()


def by_another_format(new_manager: NewManager, patch: Patch) -> None:
    tests.test_another_encoding_of_the_same_object_is_not_a_difference()


def by_older_schemas(new_manager: NewManager, patch: Patch) -> None:
    tests.test_older_schema_versions_are_listed_when_nothing_else_differs()


def by_counting(new_manager: NewManager, patch: Patch) -> None:
    tests.test_equal_tables_are_not_decoded(patch)


# -- the faults ------------------------------------------------------------------------------------


def columns_by_name(patch: Patch) -> None:
    """A renamed column is listed as a dropped and an added column."""
    (fits, _), *others = differences._KEYS
    by_name = (fits, lambda _, item: (item.name, (item.name, item)))
    patch.setattr(f"{MODULE}._KEYS", (by_name, *others))


def grants_by_grantee(patch: Patch) -> None:
    """The grantor of a privilege is ignored."""
    real = differences._by_grantee_and_grantor

    def by_grantee(names: Any, several: Any) -> Any:
        return {grantee: item for (grantee, _), item in real(names, several).items()}

    patch.setattr(f"{MODULE}._by_grantee_and_grantor", by_grantee)


def properties_as_a_whole(patch: Patch) -> None:
    """All properties of a table are compared as one value."""
    patch.setattr(f"{MODULE}._KEYS", differences._KEYS[:2])


def other_bytes_are_told(patch: Patch) -> None:
    """An object that an older release wrote differs from itself."""

    def difference(
        kind: str, old: Catalog, before: AnyStored | None, new: Catalog, after: AnyStored | None
    ) -> Difference | None:
        same = before is not None and after is not None and before.value == after.value
        if before is not None and after is not None and same:
            return Difference(kind, after.id, after.name, DifferenceKind.ALTERED)
        return real(kind, old, before, new, after)

    real = differences._difference
    patch.setattr(f"{MODULE}._difference", difference)


def rename_is_drop_and_create(patch: Patch) -> None:
    """A renamed object is listed as two objects."""
    real = differences.differences

    def told(old: Catalog, new: Catalog, **options: bool) -> Iterator[Difference]:
        for difference in real(old, new, **options):
            if difference.change is not DifferenceKind.RENAMED:
                yield difference
                continue
            whole = replace(difference, old_name=None, fields=())
            yield replace(whole, change=DifferenceKind.DROPPED, name=difference.old_name or "")
            yield replace(whole, change=DifferenceKind.CREATED)

    patch.setattr(tests, "differences", lambda *both, **options: tuple(told(*both, **options)))


def rename_in_another_case_is_none(patch: Patch) -> None:
    """A name that changed only its case is not listed as a rename."""
    real = differences._difference

    def difference(
        kind: str, old: Catalog, before: AnyStored | None, new: Catalog, after: AnyStored | None
    ) -> Difference | None:
        renamed = real(kind, old, before, new, after)
        if renamed and renamed.old_name and normalize(renamed.old_name) == normalize(renamed.name):
            return replace(renamed, change=DifferenceKind.ALTERED, old_name=None)
        return renamed

    patch.setattr(f"{MODULE}._difference", difference)


def as_many_are_the_same(patch: Patch) -> None:
    """A kind with as many objects as before is treated as unchanged."""
    real = Contents.differing

    def differing(self: Contents, newer: Contents) -> Iterator[Any]:
        return (
            entry for entry in real(self, newer) if self.count(entry[0]) != newer.count(entry[0])
        )

    patch.setattr(Contents, "differing", differing)


def order_is_nothing(patch: Patch) -> None:
    """A changed column order is not listed."""
    real = differences._items

    def items(*arguments: Any) -> Iterator[Any]:
        return (
            field_difference
            for field_difference in real(*arguments)
            if not field_difference.field.endswith(".order")
        )

    patch.setattr(f"{MODULE}._items", items)


def older_schemas_are_passed_over(patch: Patch) -> None:
    """Only the latest schema version of a table is compared."""
    real = differences._schema_versions

    def versions(names: Any, path: str, old: Any, new: Any) -> Iterator[Any]:
        return () if old[-1] == new[-1] else real(names, path, old, new)  # type: ignore[return-value]  # nothing to go through

    patch.setattr(f"{MODULE}._schema_versions", versions)


def old_references_by_new_names(patch: Patch) -> None:
    """The target of an old reference is shown with its present name."""
    real = differences._Names
    patch.setattr(f"{MODULE}._Names", lambda _, new: real(new, new))


def dropped_by_new_names(patch: Patch) -> None:
    """A dropped object is looked up in the catalog that no longer has it."""
    real = differences._difference

    def difference(
        kind: str, old: Catalog, before: AnyStored | None, new: Catalog, after: AnyStored | None
    ) -> Difference | None:
        return real(kind, new if after is None else old, before, new, after)

    patch.setattr(f"{MODULE}._difference", difference)


def everything_is_decoded(patch: Patch) -> None:
    """Objects are compared by their decoded values, even if their bytes are the same."""

    def differing(self: Contents, newer: Contents) -> Iterator[Any]:
        for kind in COLLECTIONS:
            for entry in self.objects(kind):
                key = COLLECTIONS[kind].key(entry)
                theirs = newer.get(kind, key)
                if theirs is None or theirs.value != entry.value:
                    yield kind, key, entry, theirs

    patch.setattr(Contents, "differing", differing)


def books_are_told(patch: Patch) -> None:
    """Bookkeeping objects are listed among the differences."""
    for kind in BOOKS:
        plant(patch, kind, is_internal=lambda name: False)


def default_zone_is_internal(patch: Patch) -> None:
    """The default zone is treated as a bookkeeping object."""
    plant(patch, "config", is_internal=lambda name: True)


Fault = Callable[[Patch], None]

FAULTS: dict[Fault, tuple[Check, str]] = {
    columns_by_name: (by(tests.test_columns_are_matched_by_their_ids), r"columns\[n\]"),
    grants_by_grantee: (
        by(tests.test_grants_are_listed_by_grantee_and_grantor),
        r"privileges\[bob by bob\]",
    ),
    properties_as_a_whole: (by(tests.test_properties_are_matched_by_their_keys), "'properties'"),
    other_bytes_are_told: (by_another_format, "ALTERED"),
    rename_is_drop_and_create: (
        by(tests.test_created_renamed_and_dropped_objects_are_listed),
        "DROPPED",
    ),
    rename_in_another_case_is_none: (
        by_scenario("names: a table takes its own name in another case"),
        "ALTERED",
    ),
    as_many_are_the_same: (by_any_contents, r"assert \(\(\) == \(\)"),
    order_is_nothing: (by(tests.test_a_changed_column_order_is_listed), r"columns\.order"),
    older_schemas_are_passed_over: (
        by_older_schemas,
        "schema_versions",
    ),
    old_references_by_new_names: (by(tests.test_references_are_listed_by_name), r"'s \(id"),
    dropped_by_new_names: (
        by(tests.test_objects_dropped_with_their_schema_keep_their_qualified_names),
        r"\?\.t",
    ),
    everything_is_decoded: (by_counting, "Extra items in the left set"),
    books_are_told: (
        by(tests.test_bookkeeping_objects_are_left_out),
        "id_allocator",
    ),
    default_zone_is_internal: (by(tests.test_references_are_listed_by_name), "default_zone"),
}
"""Each planted fault, the test that must find it, and the expected complaint."""


@pytest.mark.teeth
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_the_tests_find_each_planted_fault(
    fault: Fault, new_manager: NewManager, monkeypatch: Patch
) -> None:
    check, complaint = FAULTS[fault]
    fault(monkeypatch)
    with pytest.raises(AssertionError, match=complaint):
        check(new_manager, monkeypatch)


LEFT_OUT = {
    "database": "names: a dropped database and a dropped cluster are gone",
    "schema": "schemas: an empty schema is dropped and its name is free",
    "table": "names: a table takes its own name in another case",
    "view": "views: a view is made",
    "system_view": "system_views: a system view is made in the schema system",
    "index": "indexes: REGISTERED becomes BUILDING",
    "function": "functions: a function moves to another schema",
    "zone": "zones: a zone that is told nothing has the defaults",
    "role": "names: a role takes its own name in another case",
    "cluster": "clusters: a renamed cluster keeps its replicas",
    "cluster_replica": "clusters: a managed cluster shrinks from its end",
    "introspection_index": "clusters: a replica is created where it says",
    "default_privilege": (
        "roles: memberships, system privileges and default privileges go with a role"
    ),
    "system_privilege": "roles: a privilege on the system",
    "comment": "comments: a comment on a database stands beside it",
    "system_configuration": "configuration: a parameter is set",
}
"""For each kind that users create, a scenario that changes an object of that kind."""


@pytest.mark.teeth
@pytest.mark.parametrize("kind", [kind for kind in COLLECTIONS if kind not in BOOKS])
def test_leaving_out_a_kind_is_detected(
    kind: str, new_manager: NewManager, monkeypatch: Patch
) -> None:
    plant(monkeypatch, kind, is_internal=lambda name: True)
    with pytest.raises(AssertionError, match=f"'{kind}'"):
        by_scenario(LEFT_OUT[kind])(new_manager, monkeypatch)
