"""Undoing every command, and any sequence of commands."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from strandline.catalog import Applied, Catalog, CatalogManager, Command
from strandline.catalog.commands import (
    AddColumns,
    CommentOn,
    CreateIndex,
    DropColumns,
    DropIndex,
    DropSchema,
    DropTable,
    GrantPrivileges,
    RenameColumn,
    RenameColumns,
    RenameIndex,
    RenameSchema,
    RenameTable,
    RevokePrivileges,
    SetOwner,
    SetTableProperties,
)
from strandline.catalog.differences import differences
from strandline.catalog.planning import Planning
from strandline.durable.transaction import CatalogTransaction
from strandline.errors import IllegalChange, StrandlineError
from strandline.model.descriptors import IndexDescriptor, IndexStatus, TableDescriptor
from strandline.model.privileges import ObjectKind, Privilege
from tests.catalog.renewed_store import RenewedStore
from tests.catalog.scenario import SCHEMA, column, create_table, create_view
from tests.catalog.taking_back import MADE, before_and_after, run, undo, visible


@cache
def new_store() -> RenewedStore:
    return RenewedStore()


NewManager = Callable[[], CatalogManager]


@pytest.fixture
def new_manager() -> Iterator[NewManager]:
    """Makes a manager on an unchanged store."""
    with ExitStack() as stack:
        yield lambda: stack.enter_context(new_store().manager())


# -- every command ---------------------------------------------------------------------------------

NOT_AS_IT_WAS = {
    "a dropped index that was available stops; it has lost its name, and is still there",
    "a dropped index that was BUILDING is gone",
}
"""An index that was not kept up to date for a while begins anew."""

REASONS = re.compile(
    r"cannot become NOT NULL|cannot change the type|which cannot be reversed"
    r"|was dropped and then removed|the catalog's own views"
)
"""Why undoing the version of a scenario may be refused, although nothing was changed since."""


@pytest.mark.parametrize("name", MADE)
def test_undo_restores_the_version_before_and_redo_the_version_after(
    new_manager: NewManager, name: str
) -> None:
    manager = new_manager()
    before, after = before_and_after(manager, MADE[name])
    undone = undo_unless_final(manager, after.version)
    if undone is None or MADE[name].name in NOT_AS_IT_WAS:
        return
    assert undone.version == after.version + 1
    assert visible(undone.catalog) == visible(before)
    redone = undo(manager, undone.version)
    assert visible(redone.catalog) == visible(after)


def undo_unless_final(manager: CatalogManager, version: int) -> Applied | None:
    """The result of undoing; None if it was refused for one of `REASONS`, and changed nothing."""
    before = manager.present()
    try:
        return undo(manager, version)
    except IllegalChange as error:
        if REASONS.search(error.message) is None:
            raise
    assert manager.present() is before
    return None


# -- any sequence ----------------------------------------------------------------------------------


def _table(name: str) -> Command:
    return create_table(f"s.{name}", "k int not null", "x int", primary_key=("k",))


NAMES = st.sampled_from(["a", "b", "c"])
COLUMNS = st.sampled_from(["x", "y", "z"])
COMMANDS: st.SearchStrategy[Command] = st.one_of(
    st.builds(_table, NAMES),
    st.builds(lambda n: create_view(f"s.{n}"), NAMES),
    st.builds(lambda n: DropTable(schema="s", table=n), NAMES),
    st.builds(lambda n, m: RenameTable(schema="s", table=n, new_name=m), NAMES, NAMES),
    st.builds(
        lambda n, c: AddColumns(schema="s", table=n, columns=(column(f"{c} int"),)), NAMES, COLUMNS
    ),
    st.builds(lambda n, c: DropColumns(schema="s", table=n, names=(c,)), NAMES, COLUMNS),
    st.builds(
        lambda n, c, d: RenameColumn(schema="s", table=n, column=c, new_name=d),
        NAMES,
        COLUMNS,
        COLUMNS,
    ),
    st.builds(
        lambda n, c, d: RenameColumns(schema="s", table=n, new_names=((c, d), (d, c))),
        NAMES,
        COLUMNS,
        COLUMNS,
    ),
    st.builds(
        lambda n, k: SetTableProperties(schema="s", table=n, set=((k, "1"),)), NAMES, COLUMNS
    ),
    st.builds(lambda n, t: CommentOn(kind=ObjectKind.TABLE, name=f"s.{n}", text=t), NAMES, COLUMNS),
    st.builds(
        lambda n, o: SetOwner(kind=ObjectKind.TABLE, schema="s", name=n, owner=o), NAMES, COLUMNS
    ),
    st.builds(
        lambda command, n, p: command(
            kind=ObjectKind.TABLE, privileges=p, grantee="public", name=f"s.{n}"
        ),
        st.sampled_from([GrantPrivileges, RevokePrivileges]),
        NAMES,
        st.sampled_from([Privilege.SELECT, Privilege.INSERT]),
    ),
    st.builds(
        lambda n, c: CreateIndex(schema="s", index=f"i{c}", table=n, columns=(c,)), NAMES, COLUMNS
    ),
    st.builds(lambda c: DropIndex(schema="s", index=f"i{c}"), COLUMNS),
    st.builds(
        lambda c, d: RenameIndex(schema="s", index=f"i{c}", new_name=f"i{d}"), COLUMNS, COLUMNS
    ),
    st.sampled_from(
        [
            DropSchema(name="s", cascade=True),
            SCHEMA,
            RenameSchema(name="s", new_name="r"),
            RenameSchema(name="r", new_name="s"),
        ]
    ),
)


BATCHES = st.lists(st.lists(COMMANDS, min_size=1, max_size=3), min_size=3, max_size=14)
SETTINGS = settings(
    max_examples=settings().max_examples // 2,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


@cache
def prepared_store() -> RenewedStore:
    """A store with a schema ``s`` and three tables, one with an index."""

    def prepare(manager: CatalogManager) -> None:
        run(manager, SCHEMA, *(_table(name) for name in "abc"))
        run(manager, CreateIndex(schema="s", index="ix", table="a", columns=("x",)))

    return RenewedStore(prepare)


def do_what_fits(manager: CatalogManager, wanted: list[Command]) -> Applied | None:
    """Execute, as one batch, the commands that are not refused; None if nothing was changed."""
    batch: list[Command] = []
    for command in wanted:
        try:
            judged(manager.present(), [*batch, command])
        except StrandlineError:
            continue
        batch.append(command)
    executed = manager.execute(batch, author="ann") if batch else None
    return executed if executed and any(executed.applied) else None


def judged(catalog: Catalog, batch: list[Command]) -> None:
    planning = Planning(catalog, CatalogTransaction(catalog, author="ann"), catalog.time)
    for command in batch:
        command.plan(planning)


@pytest.mark.slow
@SETTINGS
@given(BATCHES, st.data())
def test_the_last_version_can_be_undone_whatever_it_was(
    batches: list[list[Command]], data: st.DataObject
) -> None:
    with prepared_store().manager() as manager:
        for batch in batches:
            _check_undo_of(manager, batch, keep_undone=data.draw(st.booleans()))


def _check_undo_of(manager: CatalogManager, batch: list[Command], *, keep_undone: bool) -> None:
    before = manager.present()
    executed = do_what_fits(manager, batch)
    if executed is None:
        return
    undone = undo(manager, executed.version).catalog
    assert visible(undone) == visible(before)
    for difference in differences(before, undone):
        assert {field.field for field in difference.fields} <= {"schema_version", "next_column_id"}
    for table in before.tables():
        now = undone.table_by_id(table.id)
        assert now is not None
        assert now.next_column_id >= table.next_column_id
        assert now.schema_versions[: len(table.schema_versions)] == table.schema_versions
    for table in executed.catalog.tables():
        now = undone.table_by_id(table.id)
        assert now is None or now.next_column_id >= table.next_column_id
    if not keep_undone:
        redone = undo(manager, undone.version).catalog
        assert visible(redone) == visible(executed.catalog)


@pytest.mark.slow
@SETTINGS
@given(BATCHES, BATCHES)
def test_undo_keeps_later_changes_or_is_refused(
    batches: list[list[Command]], later: list[list[Command]]
) -> None:
    with prepared_store().manager() as manager:
        for batch, since in zip(batches, later, strict=False):
            before = manager.present()
            executed = do_what_fits(manager, batch)
            do_what_fits(manager, since)
            if executed is not None:
                _check_nothing_is_lost(manager, before, executed)


def _check_nothing_is_lost(manager: CatalogManager, before: Catalog, executed: Applied) -> None:
    """Undoing restores what the version changed and keeps everything else, or it is refused."""
    present = manager.present()
    try:
        undone = undo(manager, executed.version)
    except StrandlineError:
        assert manager.present() is present
        return
    was, left, now = visible(before), visible(executed.catalog), visible(present)
    restored = visible(undone.catalog)
    for key in {*was, *left, *now, *restored}:
        parts = [apart(where_it_is(state.get(key))) for state in (was, left, now, restored)]
        if any(part.keys() != parts[0].keys() for part in parts):
            parts = [{"all": where_it_is(state.get(key))} for state in (was, left, now, restored)]
        for name in parts[0]:
            before_it, after_it, at_present, back = (part[name] for part in parts)
            if before_it == after_it:
                assert back == at_present, "what was done since is lost"
            else:
                assert at_present == after_it, "a change since was overlooked"
                assert back == before_it, "it is not as it was before"
    for stored in undone.catalog.contents.objects("index"):
        table = undone.catalog.table_by_id(stored.value.table_id)
        assert table is not None
        assert table.schema_id == stored.parent, "an index is not where its table is"


def where_it_is(value: Any) -> Any:  # Any: a descriptor, or None
    """An object; an index without its place, owner and status, because these follow its table."""
    if isinstance(value, IndexDescriptor):
        return replace(value, schema_id=0, owner="", status=IndexStatus.REGISTERED)
    return value


def apart(value: Any) -> dict[str, Any]:  # Any: a descriptor, or None
    """The parts of an object that are undone each by itself."""
    if not isinstance(value, TableDescriptor):
        return {"all": value}
    rest = replace(value, owner="", comment=None, properties=(), privileges=())
    parts = ("owner", "comment", "properties", "privileges")
    return {"rest": rest, **{name: getattr(value, name) for name in parts}}
