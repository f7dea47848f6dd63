"""What COMMENT ON does, refuses and leaves alone."""

from __future__ import annotations

from collections.abc import Callable

from strandline.catalog.commands import (
    CommentOn,
    CreateCluster,
    CreateFunction,
    CreateIndex,
    CreateZone,
    DropIndex,
    DropTable,
)
from strandline.errors import InvalidInput, InvalidName, ObjectNotFound
from strandline.model.privileges import ObjectKind
from tests.catalog.scenario import (
    SCHEMA,
    Made,
    Nothing,
    Refused,
    Result,
    Run,
    Scenario,
    create_table,
    create_view,
    field,
    table_of,
)

INDEX = CreateIndex(schema="s", index="i", table="t", columns=("a",))
WORLD: list[Run] = [
    SCHEMA,
    create_table("s.t"),
    create_view("s.v"),
    INDEX,
    CreateFunction(schema="s", name="f", class_name="x"),
    CreateZone(name="z"),
    CreateCluster(name="c", size="small"),
]


def on(kind: ObjectKind, name: str, text: str | None = "x", column: str | None = None) -> CommentOn:
    return CommentOn(kind=kind, name=name, text=text, column=column)


def rows(result: Result) -> list[tuple[str, str]]:
    return [
        (stored.value.object_kind.name, stored.value.text)
        for stored in result.after.contents.objects("comment")
    ]


def column_comment(name: str, column: str) -> Callable[[Result], object]:
    return lambda result: table_of(result.after, name).column(column).comment


BESIDE = {
    ObjectKind.DATABASE: "hive",
    ObjectKind.INDEX: "s.i",
    ObjectKind.FUNCTION: "s.f",
    ObjectKind.ZONE: "z",
    ObjectKind.CLUSTER: "c",
    ObjectKind.CLUSTER_REPLICA: "c.r1",
    ObjectKind.SYSTEM_VIEW: "system.tables",
}

SCENARIOS = [
    Scenario(
        "a table carries its comment itself",
        setup=WORLD,
        run=on(ObjectKind.TABLE, "s.t"),
        expect=Made(["comment_on"]),
        checks=[
            (field("s.t", "comment"), "x"),
            (rows, []),
            (lambda r: dict(r.actions[0][1]), {"table": "s.t", "text": "x"}),
        ],
    ),
    Scenario(
        "a schema carries its comment itself",
        setup=[SCHEMA],
        run=on(ObjectKind.SCHEMA, "s"),
        expect=Made(["comment_on"]),
        checks=[(lambda r: r.after.schema("s").comment, "x"), (rows, [])],
    ),
    Scenario(
        "a view carries its comment itself",
        setup=WORLD,
        run=on(ObjectKind.VIEW, "s.v"),
        expect=Made(["comment_on"]),
        checks=[(lambda r: r.after.view("s", "v").comment, "x"), (rows, [])],
    ),
    Scenario(
        "a column of a table carries its comment itself",
        setup=WORLD,
        run=on(ObjectKind.TABLE, "s.t", column="B"),
        expect=Made(["comment_on"]),
        checks=[(column_comment("s.t", "b"), "x"), (column_comment("s.t", "a"), None)],
    ),
    Scenario(
        "a column of a view carries its comment itself",
        setup=WORLD,
        run=on(ObjectKind.VIEW, "s.v", column="a"),
        expect=Made(["comment_on"]),
        checks=[(lambda r: r.after.view("s", "v").columns[0].comment, "x")],
    ),
    *(
        Scenario(
            f"a comment on a {kind.name.lower()} stands beside it",
            setup=WORLD,
            run=on(kind, name),
            expect=Made(["comment_on"]),
            checks=[(rows, [(kind.name, "x")])],
        )
        for kind, name in BESIDE.items()
    ),
    *(
        Scenario(
            f"a comment on a {kind.name.lower()} is taken away",
            setup=[*WORLD, on(kind, name)],
            run=on(kind, name, text=None),
            expect=Made(["comment_on"]),
            checks=[(rows, [])],
        )
        for kind, name in BESIDE.items()
    ),
    Scenario(
        "a comment on a table is taken away",
        setup=[*WORLD, on(ObjectKind.TABLE, "s.t")],
        run=on(ObjectKind.TABLE, "s.t", text=None),
        expect=Made(["comment_on"]),
        checks=[(field("s.t", "comment"), None)],
    ),
    Scenario(
        "the same comment again makes no version",
        setup=[*WORLD, on(ObjectKind.ZONE, "z"), on(ObjectKind.TABLE, "s.t", column="a")],
        run=[on(ObjectKind.ZONE, "z"), on(ObjectKind.TABLE, "s.t", column="a")],
        expect=Nothing(),
    ),
    Scenario(
        "another comment takes the place of the first",
        setup=[*WORLD, on(ObjectKind.ZONE, "z")],
        run=on(ObjectKind.ZONE, "z", "y"),
        expect=Made(["comment_on"]),
        checks=[(rows, [("ZONE", "y")])],
    ),
    Scenario(
        "a comment that is not there is taken away in vain",
        setup=WORLD,
        run=on(ObjectKind.ZONE, "z", None),
        expect=Nothing(),
    ),
    Scenario(
        "a comment goes with its table's index",
        setup=[*WORLD, on(ObjectKind.INDEX, "s.i")],
        run=DropTable(schema="s", table="t"),
        expect=Made(["index_removed", "drop_table"]),
        checks=[(rows, [])],
    ),
    Scenario(
        "a comment goes with its index",
        setup=[*WORLD, on(ObjectKind.INDEX, "s.i")],
        run=DropIndex(schema="s", index="i"),
        expect=Made(["index_removed"]),
        checks=[(rows, [])],
    ),
    Scenario(
        "a view is not commented on as a table",
        setup=WORLD,
        run=on(ObjectKind.TABLE, "s.v"),
        expect=Refused(ObjectNotFound, "table 's.v'"),
    ),
    Scenario(
        "a missing object gets no comment",
        run=on(ObjectKind.CLUSTER_REPLICA, "c.r1"),
        expect=Refused(ObjectNotFound, "cluster replica 'c.r1'"),
    ),
    Scenario(
        "a missing column gets no comment",
        setup=WORLD,
        run=on(ObjectKind.TABLE, "s.t", column="z"),
        expect=Refused(ObjectNotFound, "column 'z'"),
    ),
    Scenario(
        "a column of something without columns gets no comment",
        setup=WORLD,
        run=on(ObjectKind.ZONE, "z", column="a"),
        expect=Refused(InvalidInput, "was given for zone z"),
    ),
    Scenario(
        "the whole system gets no comment",
        run=on(ObjectKind.SYSTEM, "system"),
        expect=Refused(InvalidInput, "the system cannot have a comment"),
    ),
    Scenario(
        "the longest comment",
        setup=WORLD,
        run=on(ObjectKind.ZONE, "z", "x" * 65_536),
        expect=Made(["comment_on"]),
    ),
    Scenario(
        "a comment without end is refused",
        setup=WORLD,
        run=on(ObjectKind.ZONE, "z", "x" * 65_537),
        expect=Refused(InvalidInput, "65536 characters"),
    ),
    Scenario(
        "a table is named with its schema",
        run=on(ObjectKind.TABLE, "t"),
        expect=Refused(InvalidName, "schema.table"),
    ),
]
