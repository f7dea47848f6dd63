"""What creating system views does, refuses and leaves alone."""

from __future__ import annotations

from collections.abc import Callable

from strandline.catalog.commands import CommentOn, CreateSchema
from strandline.catalog.planning import Planning
from strandline.catalog.system_views.rows import SystemView
from strandline.catalog.system_views.synchronization import CreateSystemView
from strandline.durable.contents import Namespace
from strandline.errors import AlreadyExists, InvalidInput, InvalidName
from strandline.model.descriptors import SchemaVersion, SystemViewKind, TableDescriptor, TableKind
from strandline.model.privileges import ObjectKind
from strandline.model.types import BIGINT, INT
from tests.catalog.scenario import Made, Nothing, Refused, Result, Scenario


def view(name: str = "mine", *columns: str, **more: object) -> CreateSystemView:
    typed = tuple((column, BIGINT) for column in columns or ("a", "b"))
    return CreateSystemView(
        view=SystemView(name, typed, lambda _: iter(()), "for tests", **more)  # type: ignore[arg-type]  # fields of the view
    )


def view_id(name: str = "mine") -> Callable[[Result], bool]:
    """Whether the view has kept its id."""

    def read(result: Result) -> bool:
        before = result.before.system_view("system", name)
        after = result.after.system_view("system", name)
        assert before is not None
        assert after is not None
        return bool(before.id == after.id)

    return read


def columns(result: Result) -> list[str]:
    system_view = result.after.system_view("system", "mine")
    assert system_view is not None
    return [column.name for column in system_view.columns]


class TableInSystem:
    """A table in the schema ``system``, as release 0.1.0 allowed it."""

    def plan(self, planning: Planning) -> None:
        schema = planning.catalog.schema("system")
        assert schema is not None
        with planning.entry("create_table", table="system.mine") as transaction:
            transaction.put(
                TableDescriptor(
                    id=planning.new_id(),
                    schema_id=schema.id,
                    name="Mine",
                    owner="ann",
                    kind=TableKind.EXTERNAL,
                    transactional=False,
                    provider="parquet",
                    schema_versions=(SchemaVersion(1, ()),),
                    next_column_id=1,
                    zone_id=3,
                )
            )


SCENARIOS = [
    Scenario(
        "a system view is made in the schema system",
        cases=[78],
        run=view(),
        expect=Made(["create_system_view"]),
        checks=[(columns, ["a", "b"])],
    ),
    Scenario(
        "the same system view again is nothing new",
        cases=[78],
        setup=[view()],
        run=view(),
        expect=Nothing(),
    ),
    Scenario(
        "other columns replace a system view under a new id",
        cases=[78],
        setup=[view()],
        run=view("mine", "a", "c"),
        expect=Made(["replace_system_view"]),
        checks=[(columns, ["a", "c"]), (view_id(), False)],
    ),
    Scenario(
        "another type of a column replaces a system view",
        cases=[78],
        setup=[view()],
        run=CreateSystemView(
            view=SystemView("mine", (("a", INT), ("b", BIGINT)), lambda _: iter(()), "")
        ),
        expect=Made(["replace_system_view"]),
        checks=[(view_id(), False)],
    ),
    Scenario(
        "another kind replaces a system view",
        cases=[78],
        setup=[view()],
        run=view(kind=SystemViewKind.NODE),
        expect=Made(["replace_system_view"]),
    ),
    Scenario(
        "a comment does not outlive the view that it was on",
        setup=[view(), CommentOn(kind=ObjectKind.SYSTEM_VIEW, name="system.mine", text="x")],
        run=view("mine", "c"),
        expect=Made(["replace_system_view"]),
        checks=[(lambda r: r.after.contents.count("comment"), 0)],
    ),
    Scenario(
        "a system view does not take the name of a table",
        cases=[78],
        setup=[TableInSystem()],
        run=view(),
        expect=Refused(AlreadyExists, "table system.Mine already exists"),
    ),
    Scenario(
        "a system view has columns",
        cases=[78],
        run=CreateSystemView(view=SystemView("mine", (), lambda _: iter(()), "")),
        expect=Refused(InvalidInput, "at least one column"),
    ),
    Scenario(
        "a system view has each column once",
        cases=[78],
        run=view("mine", "a", "A"),
        expect=Refused(InvalidInput, "duplicate"),
    ),
    Scenario(
        "a system view has a name",
        cases=[78],
        run=view(" "),
        expect=Refused(InvalidName, "system view"),
    ),
    Scenario(
        "system views are no tables of their schema",
        run=CreateSchema(name="s"),
        expect=Made(),
        checks=[
            (lambda r: r.after.relation_names("system"), []),
            (
                lambda r: (
                    len(r.after.contents.names(Namespace("relation", r.after.schema("system").id)))
                    == len(r.after.system_views())
                ),
                True,
            ),
        ],
    ),
]
