"""Views: create, alter, rename, drop."""

from __future__ import annotations

from dataclasses import replace

from strandline.catalog.commands import (
    AlterView,
    CreateIndex,
    CreateSchema,
    DropTable,
    DropView,
    RenameTable,
    RenameView,
)
from strandline.errors import (
    AlreadyExists,
    IllegalChange,
    InvalidInput,
    InvalidName,
    ObjectNotFound,
    UnsupportedOperation,
)
from tests.catalog.scenario import (
    SCHEMA,
    Made,
    Nothing,
    Refused,
    Result,
    Scenario,
    column,
    create_table,
    create_view,
    names,
)

VIEW = create_view("s.v")
OTHER = replace(VIEW.definition, original_text="SELECT 2", expanded_text="SELECT 2")
OWNED = replace(VIEW, definition=replace(VIEW.definition, owner="cleo"))
INDEX = CreateIndex(schema="s", index="i", table="t", columns=("a",))


def text(result: Result) -> str | None:
    view = result.after.view("s", "v")
    return None if view is None else view.original_text


def same_id(result: Result) -> bool:
    before, after = result.before.view("s", "v"), result.after.view("s", "v")
    return before is not None and after is not None and before.id == after.id


SCENARIOS = [
    Scenario(
        "a view is made",
        setup=[SCHEMA],
        run=VIEW,
        expect=Made(["create_view"]),
        checks=[(names("s"), ["v"]), (text, "SELECT 1")],
    ),
    Scenario(
        "a view twice",
        setup=[SCHEMA, VIEW],
        run=create_view("s.V"),
        expect=Refused(AlreadyExists, "view s.v already exists"),
    ),
    Scenario(
        "a view twice, if it does not exist",
        setup=[SCHEMA, VIEW],
        run=replace(VIEW, definition=OTHER, if_not_exists=True),
        expect=Nothing(),
    ),
    Scenario(
        "a view in a missing schema, even if it does not exist",
        run=create_view("none.v", if_not_exists=True),
        expect=Refused(ObjectNotFound, "schema 'none' does not exist"),
    ),
    Scenario(
        "a view in the catalog's own schema",
        run=create_view("system.v"),
        expect=Refused(IllegalChange, "system schema"),
    ),
    Scenario(
        "a view with the name of a table, if it does not exist",
        setup=[SCHEMA, create_table("s.v")],
        run=create_view("s.v", if_not_exists=True),
        expect=Refused(AlreadyExists, "table s.v already exists"),
    ),
    Scenario(
        "a view in place of a table",
        setup=[SCHEMA, create_table("s.v")],
        run=create_view("s.v", or_replace=True),
        expect=Refused(AlreadyExists, "table s.v already exists"),
    ),
    Scenario(
        "a view with the name of an index",
        setup=[SCHEMA, create_table("s.t"), INDEX],
        run=create_view("s.I"),
        expect=Refused(AlreadyExists, "index s.i already exists"),
    ),
    Scenario(
        "a replaced view keeps its id; by the same text, it is not replaced",
        setup=[SCHEMA, VIEW],
        run=[
            replace(VIEW, or_replace=True),
            replace(VIEW, definition=OTHER, or_replace=True),
        ],
        expect=Made(["alter_view"], applied=[False, True]),
        checks=[(text, "SELECT 2"), (same_id, True)],
    ),
    Scenario(
        "replaced, and only if it does not exist",
        setup=[SCHEMA],
        run=create_view("s.v", or_replace=True, if_not_exists=True),
        expect=Refused(InvalidInput, "both OR REPLACE and IF NOT EXISTS"),
    ),
    Scenario(
        "a view with a column twice",
        setup=[SCHEMA],
        run=replace(VIEW, definition=replace(OTHER, columns=(column("a int"), column("A int")))),
        expect=Refused(InvalidInput, "duplicate column"),
    ),
    Scenario(
        "an altered view has each column once too",
        setup=[SCHEMA, VIEW],
        run=AlterView(
            schema="s",
            view="v",
            definition=replace(OTHER, columns=(column("a int"), column("A int"))),
        ),
        expect=Refused(InvalidInput, "duplicate column"),
    ),
    Scenario(
        "an altered view",
        setup=[SCHEMA, VIEW],
        run=AlterView(schema="s", view="V", definition=OTHER),
        expect=Made(["alter_view"]),
        checks=[(text, "SELECT 2"), (same_id, True), (names("s"), ["v"])],
    ),
    Scenario(
        "a missing view altered, renamed and dropped, if it exists",
        setup=[SCHEMA],
        run=[
            AlterView(schema="s", view="v", definition=OTHER, if_exists=True),
            RenameView(schema="s", view="v", new_name="w", if_exists=True),
            RenameView(schema="none", view="v", new_name="w", if_exists=True),
            DropView(schema="s", view="v", if_exists=True),
            DropView(schema="none", view="v", if_exists=True),
        ],
        expect=Nothing(),
    ),
    *(
        Scenario(
            f"a missing view {what}",
            setup=[SCHEMA],
            run=command,
            expect=Refused(ObjectNotFound, "s.v"),
        )
        for what, command in (
            ("altered", AlterView(schema="s", view="v", definition=OTHER)),
            ("renamed", RenameView(schema="s", view="v", new_name="w")),
            ("dropped", DropView(schema="s", view="v")),
        )
    ),
    *(
        Scenario(
            f"a table {what} as a view",
            setup=[SCHEMA, create_table("s.v")],
            run=command,
            expect=Refused(UnsupportedOperation, "s.v is a table, not a view"),
        )
        for what, command in (
            ("altered", AlterView(schema="s", view="v", definition=OTHER, if_exists=True)),
            ("renamed", RenameView(schema="s", view="v", new_name="w", if_exists=True)),
            ("dropped", DropView(schema="s", view="v", if_exists=True)),
        )
    ),
    Scenario(
        "a renamed view, into another schema and back",
        setup=[SCHEMA, CreateSchema(name="u"), VIEW],
        run=[
            RenameView(schema="s", view="v", new_name="w", new_schema="u"),
            RenameView(schema="u", view="w", new_name="V", new_schema="s"),
            RenameView(schema="s", view="v", new_name="V"),
        ],
        expect=Made(["rename_view", "rename_view"], applied=[True, True, False]),
        checks=[(names("s"), ["V"]), (same_id, True)],
    ),
    Scenario(
        "a view renamed onto an index",
        setup=[SCHEMA, VIEW, create_table("s.t"), INDEX],
        run=RenameView(schema="s", view="v", new_name="i"),
        expect=Refused(AlreadyExists, "index s.i already exists"),
    ),
    Scenario(
        "a view renamed to a bad name, even if it does not exist",
        setup=[SCHEMA],
        run=RenameView(schema="s", view="v", new_name="a\nb", if_exists=True),
        expect=Refused(InvalidName, "control characters"),
    ),
    Scenario(
        "a dropped view",
        setup=[SCHEMA, VIEW],
        run=DropView(schema="s", view="V"),
        expect=Made(["drop_view"]),
        checks=[(names("s"), [])],
    ),
    Scenario(
        "clients that know tables alone rename and drop views as such",
        setup=[SCHEMA, VIEW],
        run=[
            RenameTable(schema="s", table="v", new_name="w"),
            DropTable(schema="s", table="w"),
        ],
        expect=Made(["rename_view", "drop_view"]),
    ),
    Scenario(
        "a view that is redefined without an owner keeps the one it has",
        setup=[SCHEMA, OWNED],
        run=create_view("s.v", or_replace=True),
        expect=Nothing(),
        checks=[(lambda result: result.after.view("s", "v").owner, "cleo")],
    ),
]
