"""The commands that `test_nodes_model` gives. They use few names, so that they conflict.

Most states refuse most commands. So there are two ways to choose: any command, or only commands
that change something according to the model (`fruitful`).
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

from hypothesis import strategies as st

from strandline.catalog import Command
from strandline.catalog.commands import (
    AddColumns,
    AlterZone,
    ColumnDefinition,
    CommentOn,
    CreateIndex,
    CreateRole,
    CreateSchema,
    CreateTable,
    CreateZone,
    DropIndex,
    DropRole,
    DropSchema,
    DropTable,
    DropZone,
    GrantPrivileges,
    MakeIndexAvailable,
    RemoveIndex,
    RenameTable,
    RenameZone,
    RevokePrivileges,
    SetConfiguration,
    SetDefaultZone,
    StartBuildingIndex,
    TableDefinition,
)
from strandline.errors import StrandlineError
from strandline.model.privileges import ObjectKind, Privilege
from strandline.model.types import INT
from tests.catalog.nodes_model import State, after

SCHEMAS = ("a", "b")
TABLES = ("t", "u")
INDEXES = ("i", "u")  # one of them is also the name of a table
ZONES = ("default", "z", "w")
ROLES = ("r", "s")
QUALIFIED = [f"{schema}.{table}" for schema, table in product(SCHEMAS, TABLES)]
PRIVILEGES = (Privilege.SELECT, Privilege.SELECT | Privilege.INSERT)
COMMENTED = {
    ObjectKind.SCHEMA: SCHEMAS,
    ObjectKind.TABLE: QUALIFIED,
    ObjectKind.INDEX: [f"{schema}.{index}" for schema, index in product(SCHEMAS, INDEXES)],
    ObjectKind.ZONE: ZONES,
    ObjectKind.ROLE: ROLES,
}
NOT_THERE = 1_000_000


def columns(*names: str) -> tuple[ColumnDefinition, ...]:
    return tuple(ColumnDefinition(name, INT) for name in names)


def definition(name: str, *, key: bool = False, zone: str | None = None) -> TableDefinition:
    column = ColumnDefinition("x", INT, nullable=False)
    primary_key = ("x",) if key else ()
    return TableDefinition(name=name, columns=(column,), primary_key=primary_key, zone=zone)


_PLACES = list(product(SCHEMAS, TABLES))
_RIGHTS = list(product(QUALIFIED, ("r", "s", "public"), PRIVILEGES))

COMMANDS: list[list[Command]] = [
    [CreateSchema(name=s, if_not_exists=x) for s, x in product(SCHEMAS, (True, False))],
    [
        CreateTable(schema=s, definition=definition(t, key=key, zone=zone))
        for (s, t), key, zone in product(_PLACES, (True, False), (None, "z"))
    ],
    [
        AddColumns(schema=s, table=t, columns=columns(name))
        for (s, t), name in product(_PLACES, ("y", "z"))
    ],
    [
        CreateIndex(schema=s, index=i, table=t, columns=names)
        for (s, t), i, names in product(_PLACES, INDEXES, (("x",), ("x", "y")))
    ],
    [DropIndex(schema=s, index=i) for s, i in product(SCHEMAS, (*INDEXES, "t_pk"))],
    [
        GrantPrivileges(kind=ObjectKind.TABLE, name=t, grantee=who, privileges=p)
        for t, who, p in _RIGHTS
    ],
    [
        RevokePrivileges(kind=ObjectKind.TABLE, name=t, grantee=who, privileges=p)
        for t, who, p in _RIGHTS
    ],
    [
        CommentOn(kind=kind, name=name, text=text)
        for kind, names in COMMENTED.items()
        for name, text in product(names, ("c", None))
    ],
    [SetConfiguration(name="max_tables", value=v) for v in (None, "1", "3", "many")],
    [CreateZone(name=z, replicas=n) for z, n in product(ZONES, (1, 2))],
    [AlterZone(name=z, replicas=n) for z, n in product(ZONES, (1, 2))],
    [RenameZone(name=z, new_name=name) for z, name in product(ZONES, ZONES)],
    [SetDefaultZone(name=z) for z in ZONES],
    [DropZone(name=z) for z in ZONES],
    [CreateRole(name=r) for r in ROLES],
    [DropRole(name=r) for r in ROLES],
    [
        RenameTable(schema=s, table=t, new_name=name, new_schema=target)
        for (s, t), name, target in product(_PLACES, TABLES, (None, *SCHEMAS))
    ],
    [DropTable(schema=s, table=t) for s, t in _PLACES],
    [DropSchema(name=s, cascade=x) for s, x in product(SCHEMAS, (True, False))],
]
"""Each kind of command, in all its variants; what a kind needs comes before it."""

JOBS: list[Callable[..., Command]] = [StartBuildingIndex, MakeIndexAvailable, RemoveIndex]
"""The commands of the jobs that build and remove indexes."""

_INDEX_JOBS = 4
"""The position of the jobs among the `COMMANDS`: after `CreateIndex`."""

Choices = list[tuple[int, int]]
"""For each command of a batch, its kind and its variant."""

CHOICES: st.SearchStrategy[Choices] = st.lists(
    st.tuples(st.integers(0, 999), st.integers(0, 999)), min_size=1, max_size=4
)


def any_batch(choices: Choices) -> list[Command]:
    """A batch of any commands."""
    kinds = ((COMMANDS[kind % len(COMMANDS)], variant) for kind, variant in choices)
    return [variants[variant % len(variants)] for variants, variant in kinds]


def fruitful(state: State, choices: Choices) -> list[Command]:
    """A batch in which each command changes something.

    If no variant of a kind does, the kind before it is taken, which may create what it needs.
    """
    base, batch = state, []
    for kind, variant in choices:
        jobs: list[list[Command]] = [[job(index_id=i) for i in state["index"]] for job in JOBS]
        kinds = [*COMMANDS[:_INDEX_JOBS], *jobs, *COMMANDS[_INDEX_JOBS:]]
        first = kind % len(kinds)
        for variants in kinds[first::-1] + kinds[:first:-1]:
            candidates = _changing(variants, state, base)
            if candidates:
                command, state = candidates[variant % len(candidates)]
                batch.append(command)
                break
    return batch


def _changing(commands: list[Command], state: State, base: State) -> list[tuple[Command, State]]:
    choices = []
    for command in commands:
        try:
            following = after(state, command, base=base)
        except StrandlineError:
            continue
        if following != state:
            choices.append((command, following))
    return choices
