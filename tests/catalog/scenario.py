"""The form of the scenarios in ``tests/catalog/scenarios``: the effect of a command, as data.

Each module there has a list ``SCENARIOS``. A scenario runs on its own catalog, which has
the contents of every new catalog: the schema ``default`` and the zone ``default``::

    Scenario(
        "a column that is there cannot be added",
        cases=[35],
        setup=[SCHEMA, TABLE],
        run=AddColumns(schema="s", table="t", columns=(column("A int"),)),
        expect=Refused(AlreadyExists, "'A'"),
    )

``setup``
    Commands that must succeed, each in its own version; a list among them is one batch.
``run``
    The command, or the list of commands (one batch), that the scenario is about.
``expect``
    `Made`: one more version, with these ``applied`` bits and the verbs of its entries in order.
    `Nothing`: no command changed anything, so no version was made.
    `Refused`: an error of this class with this text in its message; nothing was changed, and no id
    was consumed.
``checks``
    Pairs of what to read from the `Result` and the expected value. Read with the functions below
    (`columns("s.t")`, `field("s.t", "zone_id")`, …) or any function of the `Result`.
``cases``
    The numbers of the behaviours in the catalog's specification that this scenario shows.
    ``test_cases.py`` checks that each number from 1 to 88 is covered. A behaviour that needs
    several nodes, clocks or restarts is shown by a `tests.catalog.timeline.Timeline`.
``note``
    If the behaviour was a choice: which one, and why.

A command that needs an id which is known only at run time is written as a function of the catalog
that it runs on: ``lambda catalog: RemoveIndex(index_id=index_id(catalog, "s.i"))``. In a batch the
function is called before the batch begins.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from strandline.catalog import Catalog, CatalogManager, Command
from strandline.catalog.commands import (
    ColumnDefinition,
    CreateSchema,
    CreateTable,
    CreateView,
    TableDefinition,
    ViewDefinition,
)
from strandline.errors import StrandlineError
from strandline.model.identifiers import QualifiedName
from strandline.model.type_parser import parse_type
from strandline.model.type_text import simple_string

Step = Command | Callable[[Catalog], Command]
Run = Step | Sequence[Step]


@dataclass(frozen=True)
class Made:
    """One more version. ``applied`` None: all bits are set. ``verbs`` None: any verbs."""

    verbs: Sequence[str] | None = None
    applied: Sequence[bool] | None = None


@dataclass(frozen=True)
class Nothing:
    """No version."""


@dataclass(frozen=True)
class Refused:
    """This error, exactly this class, with ``says`` in its message."""

    error: type[StrandlineError]
    says: str


@dataclass(frozen=True)
class Result:
    """The catalogs before and after ``run``, and the entries that it made: (verb, arguments).

    The catalogs are not typed: a check that reads from a missing object fails.
    """

    before: Any
    after: Any
    actions: Sequence[tuple[str, Any]]
    manager: CatalogManager


@dataclass(frozen=True)
class Scenario:
    """See the module."""

    name: str
    run: Run
    expect: Made | Nothing | Refused
    setup: Sequence[Run] = ()
    checks: Sequence[tuple[Callable[[Result], object], object]] = ()
    cases: Sequence[int] = ()
    note: str = ""


# -- commands that many scenarios begin with -------------------------------------------------------


def column(text: str, **more: Any) -> ColumnDefinition:
    """``"a int"``, ``"a int not null"``, ``"a int default 7"``: a column as SQL writes it."""
    text, _, default = text.partition(" default ")
    nullable = not text.endswith(" not null")
    name, _, data_type = text.removesuffix(" not null").partition(" ")
    definition = ColumnDefinition(name, parse_type(data_type), nullable, default=default or None)
    return replace(definition, **more)


def create_table(
    name: str, *columns_text: str, if_not_exists: bool = False, **more: Any
) -> CreateTable:
    """CREATE TABLE ``name`` (``"s.t"``), transactional; ``more`` are fields of its definition."""
    qualified = QualifiedName.parse(name)
    definition = TableDefinition(
        name=qualified.name,
        columns=tuple(column(text) for text in columns_text or ("a int", "b string")),
        transactional=True,
    )
    return CreateTable(
        schema=qualified.schema,
        definition=replace(definition, **more),
        if_not_exists=if_not_exists,
    )


def create_view(name: str, **more: Any) -> CreateView:
    """CREATE VIEW ``name`` with one column ``a``; ``more`` are fields of the command."""
    qualified = QualifiedName.parse(name)
    definition = ViewDefinition(
        name=qualified.name,
        columns=(column("a int"),),
        original_text="SELECT 1",
        expanded_text="SELECT 1",
    )
    return CreateView(schema=qualified.schema, definition=definition, **more)


SCHEMA = CreateSchema(name="s")


# -- what checks read ------------------------------------------------------------------------------


def table_of(catalog: Catalog, name: str) -> Any:
    """The table of that qualified name, or None."""
    qualified = QualifiedName.parse(name)
    return catalog.table(qualified.schema, qualified.name)


def index_id(catalog: Catalog, name: str) -> int:
    """The id of the alive index of that qualified name."""
    qualified = QualifiedName.parse(name)
    index = catalog.alive_index(qualified.schema, qualified.name)
    assert index is not None, f"there is no index {name}"
    return index.id


def columns(name: str) -> Callable[[Result], list[str]]:
    """The columns of a table, each as ``"id name type"`` with `` not null`` and its default."""

    def read(result: Result) -> list[str]:
        return [
            f"{c.id} {c.name} {simple_string(c.type)}"
            + ("" if c.nullable else " not null")
            + (f" default {c.default}" if c.default is not None else "")
            for c in table_of(result.after, name).columns
        ]

    return read


def field(name: str, attribute: str) -> Callable[[Result], object]:
    """An attribute of a table's descriptor."""
    return lambda result: getattr(table_of(result.after, name), attribute)


def same(name: str, attribute: str) -> Callable[[Result], bool]:
    """Whether an attribute of a table has not changed."""
    return lambda result: (
        getattr(table_of(result.after, name), attribute)
        == getattr(table_of(result.before, name), attribute)
    )


def names(schema: str) -> Callable[[Result], list[str]]:
    """The names of the tables and views of a schema."""
    return lambda result: result.after.relation_names(schema)


def indexes(name: str) -> Callable[[Result], list[str]]:
    """A table's indexes by id, each as ``"name STATUS"``, with a + if created with the table."""

    def read(result: Result) -> list[str]:
        table_indexes = result.after.indexes(table_of(result.after, name).id)
        return [f"{i.name} {i.status.name}{'+' * i.created_with_table}" for i in table_indexes]

    return read


def arguments(verb: str) -> Callable[[Result], list[dict[str, object]]]:
    """The arguments of each entry of that verb."""
    return lambda result: [dict(said) for action, said in result.actions if action == verb]
