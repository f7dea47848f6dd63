"""Names: every new name is checked, and an object's own name is not in conflict with itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from strandline.catalog import Command
from strandline.catalog.commands import (
    CreateCluster,
    CreateClusterReplica,
    CreateDatabase,
    CreateFunction,
    CreateIndex,
    CreateRole,
    CreateSchema,
    CreateZone,
    DropCluster,
    DropDatabase,
    DropRole,
    DropTable,
    RenameCluster,
    RenameClusterReplica,
    RenameColumn,
    RenameDatabase,
    RenameFunction,
    RenameIndex,
    RenameRole,
    RenameSchema,
    RenameTable,
    RenameView,
    RenameZone,
    SetOwner,
)
from strandline.errors import AlreadyExists, IllegalChange, InvalidName
from strandline.model.privileges import ObjectKind
from tests.catalog.scenario import (
    SCHEMA,
    Made,
    Nothing,
    Refused,
    Result,
    Run,
    Scenario,
    columns,
    create_table,
    create_view,
)

VIEW = create_view("s.v")
PLAIN = create_table("s.p", transactional=False)
BOTH: list[Run] = [
    SCHEMA,
    create_table("s.t"),
    create_table("s.other_t"),
    VIEW,
    create_view("s.other_v"),
    CreateIndex(schema="s", index="i", table="t", columns=("a",)),
    CreateIndex(schema="s", index="other_i", table="t", columns=("a",)),
    CreateFunction(schema="s", name="f", class_name="x"),
    CreateFunction(schema="s", name="other_f", class_name="x"),
    CreateSchema(name="other_s"),
    CreateDatabase(name="d"),
    CreateDatabase(name="other_d"),
    CreateZone(name="z"),
    CreateZone(name="other_z"),
    CreateRole(name="r"),
    CreateRole(name="other_r"),
    CreateCluster(name="c"),
    CreateCluster(name="other_c"),
    CreateClusterReplica(cluster="c", name="p", size="small", address="yarn"),
    CreateClusterReplica(cluster="c", name="other_p", size="small", address="yarn"),
]
"""Two objects of every kind that can be renamed: ``x`` and ``other_x``."""


RENAMINGS: dict[str, tuple[str, Callable[[str], Command]]] = {
    "table": ("t", lambda n: RenameTable(schema="s", table="t", new_name=n)),
    "view": ("v", lambda n: RenameView(schema="s", view="v", new_name=n)),
    "index": ("i", lambda n: RenameIndex(schema="s", index="i", new_name=n)),
    "function": ("f", lambda n: RenameFunction(schema="s", function="f", new_name=n)),
    "schema": ("s", lambda n: RenameSchema(name="s", new_name=n)),
    "database": ("d", lambda n: RenameDatabase(name="d", new_name=n)),
    "zone": ("z", lambda n: RenameZone(name="z", new_name=n)),
    "role": ("r", lambda n: RenameRole(name="r", new_name=n)),
    "cluster": ("c", lambda n: RenameCluster(name="c", new_name=n)),
    "cluster replica": (
        "p",
        lambda n: RenameClusterReplica(cluster="c", replica="p", new_name=n),
    ),
}
"""How the object of that name in `BOTH` is renamed, by kind."""

TABLE = create_table("s.t")
CREATIONS: dict[str, Callable[[str], Command]] = {
    "table": lambda n: replace(TABLE, definition=replace(TABLE.definition, name=n)),
    "view": lambda n: replace(VIEW, definition=replace(VIEW.definition, name=n)),
    "schema": lambda n: CreateSchema(name=n),
    "database": lambda n: CreateDatabase(name=n),
    "zone": lambda n: CreateZone(name=n),
    "role": lambda n: CreateRole(name=n),
    "cluster": lambda n: CreateCluster(name=n),
    "cluster replica": lambda n: CreateClusterReplica(
        cluster="c", name=n, size="small", address="yarn"
    ),
    "owner": lambda n: SetOwner(kind=ObjectKind.SCHEMA, name="s", owner=n),
}
"""The command that creates an object of a given name, by kind."""


def named(kind: str) -> Callable[[Result], list[str]]:
    """The names of all objects of a kind, sorted without regard to case."""

    def read(result: Result) -> list[str]:
        stored = result.after.contents.objects(kind.replace(" ", "_"))
        names: list[str] = [entry.name for entry in stored]
        return sorted(names, key=str.casefold)

    return read


def is_there(kind: str, name: str) -> Callable[[Result], bool]:
    """Whether an object of that kind has exactly that name."""
    return lambda result: name in named(kind)(result)


VERSIONED = ("table", "view", "schema")
"""The kinds whose names must not contain what stands before a version."""


SCENARIOS = [
    *(
        Scenario(
            f"a {kind} cannot {do} like a version",
            setup=BOTH,
            run=command("s@5"),
            expect=Refused(InvalidName, f"the name of a {kind} must not contain @"),
        )
        for kind in VERSIONED
        for do, command in (("be named", CREATIONS[kind]), ("get a name", RENAMINGS[kind][1]))
    ),
    *(
        Scenario(
            f"a new {what} cannot be named {name[:5]!r}",
            setup=BOTH,
            run=command(name),
            expect=Refused(InvalidName, f"the name of a {what} "),
        )
        for what, command in CREATIONS.items()
        for name in (" ", "x" * 256)
    ),
    *(
        Scenario(
            f"a {kind} cannot be renamed to {name[:5]!r}",
            setup=BOTH,
            run=command(name),
            expect=Refused(InvalidName, f"the name of a {kind} "),
        )
        for kind, (_, command) in RENAMINGS.items()
        for name in (" ", "x" * 256)
    ),
    *(
        Scenario(
            f"a {kind} does not take the name of another {kind}",
            setup=BOTH,
            run=command(f"OTHER_{name}"),
            expect=Refused(AlreadyExists, f"other_{name} already exists"),
        )
        for kind, (name, command) in RENAMINGS.items()
    ),
    *(
        Scenario(
            f"a {kind} takes its own name in another case",
            setup=BOTH,
            run=command(name.upper()),
            expect=Made([f"rename_{kind.replace(' ', '_')}"]),
            checks=[(is_there(kind, name.upper()), True)],
        )
        for kind, (name, command) in RENAMINGS.items()
    ),
    *(
        Scenario(
            f"a {kind} that is renamed to its own name is left alone",
            setup=BOTH,
            run=command(name),
            expect=Nothing(),
        )
        for kind, (name, command) in RENAMINGS.items()
    ),
    # -- columns, which are not objects
    *(
        Scenario(
            f"a column {what}",
            setup=[SCHEMA, create_table("s.t", "a int", "b int"), PLAIN],
            run=RenameColumn(schema="s", table=table, column="a", new_name=name),
            expect=Refused(error, says),
        )
        for what, table, name, error, says in (
            ("does not take the name of another column", "t", "B", AlreadyExists, "column 'B'"),
            ("cannot be renamed to a blank", "t", " ", InvalidName, "the name of a column"),
            (
                "of a plain table cannot be renamed",
                "p",
                "z",
                IllegalChange,
                "renaming 'a' would hide its data",
            ),
        )
    ),
    Scenario(
        "a column takes its own name in another case",
        setup=[SCHEMA, create_table("s.t", "a int", "b int")],
        run=RenameColumn(schema="s", table="t", column="a", new_name="A"),
        expect=Made(["rename_column"]),
        checks=[(columns("s.t"), ["1 A int", "2 b int"])],
    ),
    # -- where IF EXISTS and IF NOT EXISTS make no difference
    Scenario(
        "a table that is there is dropped, if it exists",
        cases=[32],
        setup=BOTH,
        run=DropTable(schema="s", table="other_t", if_exists=True),
        expect=Made(["drop_table"]),
        checks=[(named("table"), ["t"])],
    ),
    Scenario(
        "a table that is there is renamed, if it exists",
        cases=[41],
        setup=BOTH,
        run=RenameTable(schema="s", table="t", new_name="u", if_exists=True),
        expect=Made(["rename_table"]),
        checks=[(named("table"), ["other_t", "u"])],
    ),
    Scenario(
        "a role that is there is dropped, and one that is not is created, whatever is said",
        setup=BOTH,
        run=[DropRole(name="r", if_exists=True), CreateRole(name="q", if_not_exists=True)],
        expect=Made(["drop_role", "create_role"]),
        checks=[(named("role"), ["other_r", "q"])],
    ),
    Scenario(
        "IF NOT EXISTS leaves a database alone",
        setup=BOTH,
        run=CreateDatabase(name="D", owner="eve", if_not_exists=True),
        expect=Nothing(),
    ),
    Scenario(
        "a dropped database and a dropped cluster are gone",
        setup=BOTH,
        run=[DropDatabase(name="d"), DropCluster(name="other_c")],
        expect=Made(["drop_database", "drop_cluster"]),
        checks=[(named("database"), ["hive", "other_d"]), (named("cluster"), ["c"])],
    ),
]
