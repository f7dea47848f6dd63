"""A kind of object that only this test has, added by one declaration and nothing else.

A notebook belongs to a schema and has an owner. The catalog does with notebooks everything that it
does with other objects, although the package does not mention them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from unittest.mock import patch

import pytest

from strandline.catalog import Catalog, CatalogManager
from strandline.catalog.commands import CreateRole, CreateSchema, DropRole, DropSchema
from strandline.catalog.commands import SetConfiguration as Set
from strandline.catalog.declared_kinds import DeclaredKind, Undoing, declare
from strandline.catalog.differences import Difference, DifferenceKind, FieldDifference, differences
from strandline.catalog.kinds import (
    _KINDS,
    delete_with_comment,
    find,
    kind_named,
    kind_of,
    object_name,
)
from strandline.catalog.planning import Planning
from strandline.catalog.privileges import rules
from strandline.catalog.system_views.rows import Row, system_view
from strandline.catalog.system_views.synchronization import declared_views
from strandline.catalog.undo.reading import read_undo, read_undrop
from strandline.catalog.verbs import _VERBS, describe
from strandline.durable.collections import _BY_CLASS, _NUMBERS, COLLECTIONS, Collection
from strandline.durable.contents import restore
from strandline.durable.log import snapshot_of
from strandline.errors import (
    AlreadyExists,
    CorruptData,
    IllegalChange,
    ObjectNotFound,
    PermissionDenied,
)
from strandline.wire import registry
from strandline.wire.codecs import TEXT, UINT


@dataclass(frozen=True, slots=True)
class Notebook:
    """A page of code in a schema."""

    id: int
    schema_id: int
    name: str
    owner: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateNotebook:
    """Create a notebook in the schema ``s``."""

    name: str
    text: str = ""

    def plan(self, planning: Planning) -> None:
        schema = planning.schema("s")
        if find(planning.catalog, kind_named("notebook"), f"s.{self.name}") is not None:
            raise AlreadyExists(f"notebook s.{self.name} already exists")
        with planning.entry("create_notebook", notebook=f"s.{self.name}") as transaction:
            new_id = planning.new_id()
            transaction.put(Notebook(new_id, schema.id, self.name, planning.author, self.text))


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterNotebook:
    """Change the text or the name of a notebook."""

    name: str
    text: str = ""
    new_name: str = ""

    def plan(self, planning: Planning) -> None:
        old = _notebook(planning.catalog, self.name)
        verb = "rename_notebook" if self.new_name else "alter_notebook"
        new = replace(old, text=self.text or old.text, name=self.new_name or old.name)
        with planning.entry(verb, notebook=f"s.{self.name}") as transaction:
            transaction.put(new)


@dataclass(frozen=True, slots=True, kw_only=True)
class DropNotebook:
    """Drop a notebook."""

    name: str

    def plan(self, planning: Planning) -> None:
        drop_notebook(planning, _notebook(planning.catalog, self.name))


def drop_notebook(planning: Planning, notebook: Notebook) -> None:
    name = object_name(planning.catalog, notebook)
    with planning.entry("drop_notebook", notebook=name) as transaction:
        delete_with_comment(transaction, "notebook", notebook.id)


def _notebook(catalog: Catalog, name: str) -> Notebook:
    notebook: Notebook | None = find(catalog, kind_named("notebook"), f"s.{name}")
    if notebook is None:
        raise ObjectNotFound(f"notebook s.{name} does not exist")
    return notebook


@system_view("notebook_id id, notebook_name text, owner text", doc="The notebooks.")
def notebooks(catalog: Catalog) -> Iterator[Row]:
    for stored in catalog.contents.objects("notebook"):
        yield stored.id, stored.name, stored.value.owner


NOTEBOOK = DeclaredKind(
    collection=Collection("notebook", Notebook, scope="notebook"),
    parent="schema_id",
    references={"schema_id": "schema"},
    rule=rules.in_schema,
    drop=drop_notebook,
    undo=Undoing(is_dropped_first=True, by_name=True),
    views=(notebooks,),
)


@pytest.fixture(autouse=True)
def _declared(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Declare notebooks, and register their format, for the duration of a test."""
    for name in ("_by_type", "_by_id", "_by_header"):
        monkeypatch.setattr(registry, name, dict(getattr(registry, name)))
    registry.register(
        Notebook,
        type_id=60_000,
        version=1,
        since="9.9.9",
        fields=[
            ("id", UINT),
            ("schema_id", UINT),
            ("name", TEXT),
            ("owner", TEXT),
            ("text", TEXT),
        ],
    )
    with ExitStack() as restored:
        for registered in (COLLECTIONS, _BY_CLASS, _NUMBERS, _KINDS, _VERBS):
            restored.enter_context(patch.dict(registered))
        declare(NOTEBOOK)
        yield


@pytest.fixture
def manager(new_manager: Callable[..., CatalogManager]) -> CatalogManager:
    made = new_manager(copied=False)  # the kind has a system view from the first version on
    made.execute(CreateSchema(name="s", owner="ann"), author="ann")
    made.execute(CreateNotebook(name="n", text="1 + 1"), author="ann")
    return made


def undo(manager: CatalogManager, version: int) -> Catalog:
    return manager.execute(read_undo(manager, version), author="ann").catalog


def verbs(manager: CatalogManager) -> list[str]:
    """The actions of the latest version, as text."""
    (info,) = manager.history(manager.latest_catalog().version)
    return [describe(verb, arguments) for verb, arguments in info.actions]


def test_notebooks_are_created_altered_renamed_and_dropped(manager: CatalogManager) -> None:
    created = _notebook(manager.present(), "N")
    with pytest.raises(AlreadyExists, match=r"s\.n already exists"):
        manager.execute(CreateNotebook(name="n"), author="ann")
    manager.execute(AlterNotebook(name="n", text="2"), author="ann")
    manager.execute(AlterNotebook(name="n", new_name="m"), author="ann")
    assert _notebook(manager.present(), "m") == replace(created, name="m", text="2")
    manager.execute(DropNotebook(name="m"), author="ann")
    with pytest.raises(ObjectNotFound):
        _notebook(manager.present(), "m")


def test_versions_that_change_notebooks_are_undone(manager: CatalogManager) -> None:
    created = _notebook(manager.present(), "n")
    made_by = manager.latest_catalog().version
    altered = manager.execute(AlterNotebook(name="n", text="2"), author="ann").version
    assert _notebook(undo(manager, altered), "n") == created
    assert verbs(manager) == [f"undo alter notebook s.n (undoes: {altered})"]
    renamed = manager.execute(AlterNotebook(name="n", new_name="m"), author="ann").version
    assert _notebook(undo(manager, renamed), "n") == created
    assert verbs(manager) == [f"rename notebook s.m (to: s.n, undoes: {renamed})"]
    dropped = manager.execute(DropNotebook(name="n"), author="ann").version
    assert _notebook(undo(manager, dropped), "n") == created
    assert verbs(manager) == [f"restore notebook s.n (undoes: {dropped})"]
    assert find(undo(manager, made_by), NOTEBOOK, "s.n") is None
    assert verbs(manager) == [f"drop notebook s.n (undoes: {made_by})"]


def test_a_dropped_notebook_is_restored_by_its_name(manager: CatalogManager) -> None:
    created = _notebook(manager.present(), "n")
    manager.execute(DropNotebook(name="n"), author="ann")
    manager.execute(read_undrop(manager, "notebook", "s.n"), author="ann")
    assert _notebook(manager.present(), "n") == created
    with pytest.raises(AlreadyExists, match=r"taken by notebook s\.n"):
        read_undrop(manager, "notebook", "s.n")


def test_notebooks_are_dropped_and_restored_with_their_schema(manager: CatalogManager) -> None:
    created = _notebook(manager.present(), "n")
    with pytest.raises(IllegalChange, match="One or more notebooks exist"):
        manager.execute(DropSchema(name="s"), author="ann")
    manager.execute(DropSchema(name="s", cascade=True), author="ann")
    assert verbs(manager) == ["drop notebook s.n", "drop schema s"]
    manager.execute(read_undrop(manager, "schema", "s"), author="ann")
    assert _notebook(manager.present(), "n") == created


def test_differences_of_notebooks_are_listed(manager: CatalogManager) -> None:
    before = manager.present()
    notebook = _notebook(before, "n")
    manager.execute(AlterNotebook(name="n", text="2"), author="ann")
    manager.execute(AlterNotebook(name="n", new_name="m"), author="ann")
    fields = (FieldDifference("name", "n", "m"), FieldDifference("text", "1 + 1", "2"))
    assert differences(before, manager.present()) == (
        Difference("notebook", notebook.id, "s.m", DifferenceKind.RENAMED, "s.n", fields),
    )


def test_notebooks_are_listed_in_their_system_view(manager: CatalogManager) -> None:
    catalog = manager.present()
    notebook = _notebook(catalog, "n")
    assert list(declared_views()["notebooks"].rows(catalog)) == [(notebook.id, "n", "ann")]
    assert catalog.system_view("system", "notebooks") is not None


def test_notebooks_are_in_dumps_in_snapshots_and_on_other_nodes(
    manager: CatalogManager, new_manager: Callable[..., CatalogManager]
) -> None:
    catalog = manager.present()
    snapshot = snapshot_of(catalog.version, catalog.time, catalog.contents)
    assert "notebook" in dict(snapshot.kinds)
    assert restore(snapshot) == catalog.contents
    assert _notebook(new_manager().present(), "n") == _notebook(catalog, "n")
    assert manager.compact(catalog.version)
    assert _notebook(new_manager().present(), "n") == _notebook(catalog, "n")


def test_privileges_on_notebooks_are_checked(manager: CatalogManager) -> None:
    roles = CreateRole(name="root", superuser=True), CreateRole(name="bob"), CreateRole(name="ann")
    manager.execute([*roles, Set(name="enforce_privileges", value="true")], author="ann")
    refused = (
        (CreateNotebook(name="x"), "lacks CREATE and USAGE on schema s"),
        (AlterNotebook(name="n", text="2"), r"lacks USAGE on schema s to reach notebook s\.n"),
        (DropNotebook(name="n"), r"lacks USAGE on schema s to reach notebook s\.n"),
    )
    for command, reason in refused:
        with pytest.raises(PermissionDenied, match=reason):
            manager.execute(command, author="bob", identity="bob")
        manager.execute(command, author="ann", identity="ann")


def test_the_owner_of_a_notebook_cannot_be_dropped(manager: CatalogManager) -> None:
    manager.execute(CreateRole(name="eve"), author="ann")
    manager.execute(CreateNotebook(name="e"), author="eve")
    with pytest.raises(IllegalChange, match=r"owns notebook s\.e:"):
        manager.execute(DropRole(name="eve"), author="ann")
    manager.execute(DropRole(name="eve", reassign_to="ann"), author="ann")
    assert _notebook(manager.present(), "e").owner == "ann"


def test_a_kind_cannot_be_declared_twice() -> None:
    with pytest.raises(ValueError, match="the kind notebook is declared twice"):
        declare(NOTEBOOK)
    assert kind_of(Notebook(1, 2, "n", "ann", "")) is NOTEBOOK
    with pytest.raises(CorruptData, match="object kind 'page' is unknown"):
        kind_named("page")
