"""IF EXISTS on what exists and IF NOT EXISTS on what is missing change nothing, for every command.

What the clauses do on a missing object, or on one that exists, is with the commands of that object.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from typing import Any

from strandline.catalog import Command, commands
from strandline.catalog.commands import (
    AddColumns,
    AddConstraints,
    AlterCluster,
    AlterClusterReplica,
    AlterColumn,
    AlterDatabase,
    AlterFunction,
    AlterSchema,
    AlterView,
    AlterZone,
    ConstraintDefinition,
    CreateCluster,
    CreateClusterReplica,
    CreateDatabase,
    CreateFunction,
    CreateIndex,
    CreateRole,
    CreateSchema,
    CreateZone,
    DropCluster,
    DropClusterReplica,
    DropColumns,
    DropConstraint,
    DropDatabase,
    DropFunction,
    DropIndex,
    DropRole,
    DropSchema,
    DropTable,
    DropView,
    DropZone,
    RenameCluster,
    RenameClusterReplica,
    RenameColumn,
    RenameColumns,
    RenameDatabase,
    RenameFunction,
    RenameIndex,
    RenameSchema,
    RenameTable,
    RenameView,
    RenameZone,
    SetDefaultZone,
    SetOwner,
    SetTableProperties,
)
from strandline.errors import UnsupportedOperation
from strandline.model.descriptors import ConstraintKind
from strandline.model.privileges import ObjectKind
from tests.catalog.scenario import (
    SCHEMA,
    Made,
    Refused,
    Result,
    Scenario,
    column,
    create_table,
    create_view,
)

CLAUSES = {"if_exists", "if_not_exists", "if_table_exists"}


def clauses_of(command: Any) -> dict[str, bool]:  # Any: a command or its class
    return {each.name: True for each in fields(command) if each.name in CLAUSES}


def with_clauses(listed: list[Any]) -> list[Command]:
    return [replace(command, **clauses_of(command)) for command in listed]


CREATED: list[Command] = [
    CreateDatabase(name="lake"),
    CreateSchema(name="s"),
    CreateZone(name="z"),
    CreateRole(name="r"),
    CreateCluster(name="c"),
    CreateClusterReplica(cluster="c", name="one", size="small", address="local"),
    create_table("s.t", "a int", "b int"),
    AddColumns(schema="s", table="t", columns=(column("c int"),)),
    AddConstraints(
        schema="s",
        table="t",
        constraints=(ConstraintDefinition(kind=ConstraintKind.UNIQUE, columns=("a",), name="u"),),
    ),
    CreateIndex(schema="s", index="i", table="t", columns=("a",)),
    create_view("s.v"),
    CreateFunction(schema="s", name="f", class_name="a.B"),
]
CHANGED: list[Command] = [
    AlterDatabase(name="lake", owner="eve"),
    RenameDatabase(name="lake", new_name="sea"),
    DropDatabase(name="sea"),
    AlterZone(name="z", replicas=3),
    RenameZone(name="z", new_name="y"),
    SetDefaultZone(name="y"),
    SetDefaultZone(name="default"),
    DropZone(name="y"),
    DropRole(name="r"),
    AlterClusterReplica(cluster="c", replica="one", owner="eve"),
    RenameClusterReplica(cluster="c", replica="one", new_name="two"),
    DropClusterReplica(cluster="c", replica="two"),
    AlterCluster(name="c", owner="eve"),
    RenameCluster(name="c", new_name="d"),
    DropCluster(name="d"),
    AlterFunction(schema="s", function="f", owner="eve"),
    RenameFunction(schema="s", function="f", new_name="g"),
    DropFunction(schema="s", function="g"),
    AlterView(
        schema="s",
        view="v",
        definition=replace(create_view("s.v").definition, original_text="SELECT 2"),
    ),
    RenameView(schema="s", view="v", new_name="w"),
    DropView(schema="s", view="w"),
    RenameIndex(schema="s", index="i", new_name="j"),
    DropIndex(schema="s", index="j"),
    DropConstraint(schema="s", table="t", constraint="u"),
    SetOwner(kind=ObjectKind.TABLE, schema="s", name="t", owner="eve"),
    SetTableProperties(schema="s", table="t", comment="x"),
    AlterColumn(schema="s", table="t", column="a", comment="x"),
    RenameColumn(schema="s", table="t", column="a", new_name="d"),
    RenameColumns(schema="s", table="t", new_names=(("d", "e"),)),
    DropColumns(schema="s", table="t", names=("b",)),
    RenameTable(schema="s", table="t", new_name="u"),
    DropTable(schema="s", table="u"),
    AlterSchema(name="s", owner="eve"),
    RenameSchema(name="s", new_name="q"),
    DropSchema(name="q"),
]


def without_scenario(_: Result) -> set[str]:
    """The commands with a clause that are in no list."""
    declared = {
        command
        for command in vars(commands).values()
        if isinstance(command, type) and is_dataclass(command) and clauses_of(command)
    }
    return {command.__name__ for command in declared - {type(c) for c in (*CREATED, *CHANGED)}}


SCENARIOS = [
    Scenario(
        "every object is created if it does not exist",
        cases=[23, 35, 71],
        run=with_clauses(CREATED),
        expect=Made(),
        checks=[(without_scenario, set())],
    ),
    Scenario(
        "every object that exists is changed and dropped if it exists",
        cases=[32, 39, 41, 64, 73],
        setup=CREATED,
        run=with_clauses(CHANGED),
        expect=Made(),
    ),
    *(
        Scenario(
            f"IF EXISTS does not cover a view that is named as a table: {type(command).__name__}",
            setup=[SCHEMA, create_view("s.t")],
            run=command,
            expect=Refused(UnsupportedOperation, "s.t is a view, a table was expected"),
        )
        for command in with_clauses([*CREATED, *CHANGED])
        if getattr(command, "table", None) == "t" and not isinstance(command, RenameTable)
    ),
]
