"""No answer to a command depends on what its user may not see.

Two worlds look the same to the users of this test, and differ in all that these may not see: in the
definitions of the objects, the comments on them, what uses them, and the default privileges. Each
command must have the same answer in both, whether it is refused, changes nothing or is carried out.

Users see the names of roles, databases, schemas, zones, clusters and replicas, the owner of each
object whose name they know, the parameters, the facts about roles, and, in a schema that they
reach, names and grants.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache

import pytest

from strandline.catalog import Command
from strandline.catalog.commands import (
    AddColumns,
    AddConstraints,
    AlterCluster,
    AlterClusterReplica,
    AlterColumn,
    AlterDatabase,
    AlterDefaultPrivileges,
    AlterFunction,
    AlterRole,
    AlterSchema,
    AlterTable,
    AlterView,
    AlterZone,
    ColumnDefinition,
    CommentOn,
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
    GrantPrivileges,
    GrantRole,
    MakeIndexAvailable,
    RemoveIndex,
    RenameCluster,
    RenameClusterReplica,
    RenameColumn,
    RenameColumns,
    RenameDatabase,
    RenameFunction,
    RenameIndex,
    RenameRole,
    RenameSchema,
    RenameTable,
    RenameView,
    RenameZone,
    RevokePrivileges,
    RevokeRole,
    SetConfiguration,
    SetDefaultZone,
    SetOwner,
    SetTableProperties,
    StartBuildingIndex,
)
from strandline.catalog.privileges.check import PrivilegeCheck
from strandline.catalog.requests import Request, validate
from strandline.catalog.undo.command import Undo
from strandline.catalog.undo.net import as_one
from strandline.clock import MIN_TIMESTAMP
from strandline.durable.transaction import CatalogTransaction
from strandline.durable.update import Update
from strandline.model.descriptors import Collation, ConstraintKind, IndexKind, PrincipalType
from strandline.model.privileges import ObjectKind, Privilege
from strandline.model.types import INT
from tests.catalog.privilege_world import World
from tests.catalog.sample_commands import COMMANDS
from tests.catalog.scenario import create_table, create_view
from tests.positions import At

Probe = Command | list[Command]

SELECT, OF_TABLE = Privilege.SELECT, ObjectKind.TABLE
UNIQUE = ConstraintDefinition(kind=ConstraintKind.UNIQUE, columns=("a",), name="u")
NEW_COLUMN = (ColumnDefinition("a", INT),)
DEFAULT = AlterDefaultPrivileges(kind=OF_TABLE, privileges=SELECT, grantee="ann")
PROPERTIES = SetTableProperties(schema="s", table="t", set=(("k", "v"),))
COMMENTED = SetTableProperties(schema="s", table="t", comment="c")
COMMENTS = [
    (ObjectKind.ROLE, "ann"),
    (ObjectKind.DATABASE, "other"),
    (ObjectKind.SCHEMA, "far"),
    (OF_TABLE, "s.t"),
    (OF_TABLE, "far.t"),
    (ObjectKind.VIEW, "s.v"),
    (ObjectKind.FUNCTION, "s.f"),
    (ObjectKind.FUNCTION, "far.f"),
    (ObjectKind.INDEX, "s.i"),
    (ObjectKind.ZONE, "fast"),
    (ObjectKind.CLUSTER, "jobs"),
    (ObjectKind.CLUSTER_REPLICA, "jobs.r1"),
]

PROBES: list[Probe] = [
    AddColumns(schema="s", table="t", columns=NEW_COLUMN),
    AddColumns(schema="s", table="t", columns=NEW_COLUMN, if_not_exists=True),
    AddConstraints(schema="s", table="t", constraints=(replace(UNIQUE, name=""),)),
    AlterCluster(name="jobs", size="small"),
    AlterCluster(name="jobs", replication_factor=1),
    AlterCluster(name="jobs", owner="cleo"),
    AlterClusterReplica(cluster="jobs", replica="r1", size="small"),
    AlterClusterReplica(cluster="jobs", replica="r1", spark_ui=""),
    AlterColumn(schema="s", table="t", column="a", nullable=True),
    AlterDatabase(name="other", owner="cleo"),
    DEFAULT,
    replace(DEFAULT, schema="s"),
    replace(DEFAULT, revoke=True),
    AlterFunction(schema="s", function="f", class_name="F"),
    AlterRole(name="payers", inherit=True),
    AlterSchema(name="far", comment="c"),
    AlterSchema(name="far", properties=()),
    AlterTable(schema="s", table="t", definition=create_table("s.t", comment="c").definition),
    AlterView(schema="s", view="v", definition=create_view("s.v").definition),
    AlterView(schema="s", view="t", definition=create_view("s.v").definition),
    AlterZone(name="fast", replicas=2),
    AlterZone(name="fast", storage_profiles=("default",)),
    *(
        CommentOn(kind=kind, name=name, text=text)
        for kind, name in COMMENTS
        for text in ("c", "x", None)
    ),
    CommentOn(kind=OF_TABLE, name="s.t", text="c", column="a"),
    CommentOn(kind=ObjectKind.VIEW, name="s.v", text="c", column="a"),
    CreateCluster(name="jobs", if_not_exists=True),
    CreateClusterReplica(cluster="jobs", name="r2", size="small", address="yarn"),
    CreateDatabase(name="other", if_not_exists=True),
    CreateFunction(schema="s", name="f", class_name="F"),
    CreateFunction(schema="s", name="f", class_name="F", or_replace=True),
    CreateFunction(schema="far", name="f", class_name="F", if_not_exists=True),
    CreateIndex(schema="s", index="i", table="t", columns=("a",), if_not_exists=True),
    CreateIndex(schema="s", index="new", table="t", columns=("a",)),
    CreateRole(name="payers", if_not_exists=True),
    CreateSchema(name="far", if_not_exists=True),
    create_table("s.t", if_not_exists=True),
    create_table("far.t"),
    create_table("far.t", if_not_exists=True),
    create_table("own.n", zone="fast", storage_profile="slow"),
    create_view("s.v", or_replace=True),
    create_view("far.v", or_replace=True),
    CreateZone(name="fast", if_not_exists=True),
    DropCluster(name="jobs"),
    DropClusterReplica(cluster="jobs", replica="r1"),
    DropColumns(schema="s", table="t", names=("a",)),
    DropColumns(schema="s", table="t", names=("a",), if_exists=True),
    DropConstraint(schema="s", table="t", constraint="u"),
    DropConstraint(schema="s", table="t", constraint="u", if_exists=True),
    DropDatabase(name="other"),
    DropFunction(schema="far", function="f", if_exists=True),
    DropIndex(schema="s", index="i"),
    DropRole(name="payers"),
    DropRole(name="payers", reassign_to="bob"),
    DropSchema(name="far"),
    DropSchema(name="far", cascade=True),
    DropTable(schema="s", table="t"),
    DropTable(schema="far", table="t", if_exists=True),
    DropView(schema="s", view="t"),
    DropView(schema="far", view="v", if_exists=True),
    DropZone(name="fast"),
    *(
        command(kind=kind, name=name, privileges=privilege, grantee="ann")
        for command in (GrantPrivileges, RevokePrivileges)
        for kind, name, privilege in (
            (OF_TABLE, "s.t", SELECT),
            (OF_TABLE, "far.t", SELECT),
            (ObjectKind.SCHEMA, "far", Privilege.USAGE),
            (ObjectKind.ZONE, "fast", Privilege.USAGE),
            (ObjectKind.SYSTEM, "", Privilege.CREATE_ZONE),
        )
    ),
    GrantRole(role="payers", member="ann"),
    RenameCluster(name="jobs", new_name="jobs"),
    RenameClusterReplica(cluster="jobs", replica="r1", new_name="r1"),
    RenameColumn(schema="s", table="t", column="a", new_name="c"),
    RenameColumn(schema="s", table="t", column="a", new_name="a"),
    RenameColumns(schema="s", table="t", new_names=(("a", "a"),)),
    RenameDatabase(name="other", new_name="other"),
    RenameFunction(schema="s", function="f", new_name="f"),
    RenameFunction(schema="s", function="f", new_name="f", new_schema="far"),
    RenameIndex(schema="s", index="i", new_name="i"),
    RenameRole(name="payers", new_name="PAYERS"),
    RenameSchema(name="far", new_name="far"),
    RenameTable(schema="s", table="t", new_name="t"),
    RenameTable(schema="own", table="t", new_schema="far", new_name="t"),
    RenameView(schema="s", view="v", new_name="v"),
    RenameZone(name="fast", new_name="fast"),
    RevokeRole(role="payers", member="ann"),
    SetConfiguration(name="cluster_sizes", value="{}"),
    SetConfiguration(name="cluster_sizes", value=None),
    SetDefaultZone(name="fast"),
    *(
        SetOwner(kind=kind, schema=schema, name=name, owner=owner)
        for kind, schema, name in (
            (OF_TABLE, "s", "t"),
            (ObjectKind.FUNCTION, "s", "f"),
            (ObjectKind.ZONE, None, "fast"),
        )
        for owner in ("ann", "cleo")
    ),
    SetOwner(kind=OF_TABLE, schema="far", name="t", owner="ann", if_exists=True),
    SetOwner(kind=ObjectKind.SCHEMA, name="far", owner="ann", owner_type=PrincipalType.ROLE),
    PROPERTIES,
    COMMENTED,
    SetTableProperties(schema="s", table="t", unset=("k",)),
    [RenameSchema(name="far", new_name="q"), create_table("q.t")],
]


def usage(kind: ObjectKind, name: str, grantee: str) -> Command:
    return GrantPrivileges(kind=kind, name=name, privileges=Privilege.USAGE, grantee=grantee)


_BY_ID = (StartBuildingIndex, MakeIndexAvailable, RemoveIndex)


class HalfHidden(World):
    """One of the two worlds."""

    def __init__(self, *, second: bool) -> None:
        super().__init__()
        self.make(*self._seen(second=second))
        self.index_id = self.catalog.next_number("object") - 1
        self.first = self.update(PROPERTIES)
        if second:
            self.make(*self._hidden())

    def make(self, *commands: Command) -> None:
        for command in commands:
            self.run(command)

    def update(self, command: Command) -> Update:
        return self.run(command).update(member="node")

    def _seen(self, *, second: bool) -> Iterator[Command]:
        """What users see the names of. All ids are the same in both worlds."""
        yield from (CreateRole(name=name) for name in ("ann", "bob", "cleo", "nina", "payers"))
        yield CreateSchema(name="own", owner="bob")
        yield CreateSchema(name="far", owner="ann", comment="x" if second else "c")
        yield CreateSchema(name="s", owner="ann")
        yield usage(ObjectKind.SCHEMA, "s", "bob")
        yield create_table("own.t", owner="bob")
        columns = ("x int not null", "y string") if second else ()
        yield create_table("s.t", *columns, owner="ann", comment="x" if second else "c")
        view = create_view("s.v").definition
        text = "SELECT 2" if second else view.original_text
        definition = replace(view, original_text=text, owner="ann")
        yield replace(create_view("s.v"), definition=definition)
        yield CreateFunction(schema="s", name="f", class_name="G" if second else "F", owner="ann")
        yield CreateDatabase(name="other", owner="cleo")
        profiles = ("default", "slow") if second else ("default",)
        yield CreateZone(name="fast", owner="cleo", replicas=2, storage_profiles=profiles)
        yield CreateCluster(name="jobs", owner="cleo", size="small" if second else None)
        if not second:
            yield CreateClusterReplica(
                cluster="jobs", name="r1", size="medium", address="yarn", owner="cleo"
            )
        yield CreateIndex(
            schema="s",
            index="i",
            table="t",
            columns=("x" if second else "a",),
            kind=IndexKind.SORTED if second else IndexKind.HASH,
            collations=(Collation.DESC_NULLS_LAST,) if second else (),
        )

    def _hidden(self) -> Iterator[Command]:
        yield StartBuildingIndex(index_id=self.index_id)
        yield AddConstraints(schema="s", table="t", constraints=(replace(UNIQUE, columns=("x",)),))
        yield create_table("far.t", zone="fast", owner="payers")
        yield create_view("far.v")
        yield CreateFunction(schema="far", name="f", class_name="F", owner="payers")
        yield CreateSchema(name="within", database="other", owner="payers")
        yield from (CommentOn(kind=kind, name=name, text="x") for kind, name in COMMENTS)
        yield from (DEFAULT, replace(DEFAULT, schema="s"))
        yield usage(ObjectKind.SCHEMA, "far", "ann")
        yield usage(ObjectKind.ZONE, "fast", "ann")
        yield GrantPrivileges(
            kind=ObjectKind.SYSTEM, privileges=Privilege.CREATE_ZONE, grantee="ann"
        )

    def answer(self, probe: Probe, user: str) -> object:
        commands = probe if isinstance(probe, list) else [probe]
        transaction = CatalogTransaction(At(1, self.contents), author=user)
        request = Request(commands, user, time.monotonic() + 60, identity=user)
        validated = validate(self.catalog, transaction, request, MIN_TIMESTAMP)
        error = validated.error
        return validated.applied if error is None else (type(error), str(error))


@cache
def worlds() -> tuple[HalfHidden, HalfHidden]:
    return HalfHidden(second=False), HalfHidden(second=True)


def probes() -> Iterator[Probe]:
    yield from PROBES
    first, second = worlds()
    assert first.index_id == second.index_id
    yield from (command(index_id=first.index_id) for command in _BY_ID)
    yield Undo(update=first.first)
    back = first.update(replace(PROPERTIES, set=(), unset=("k",)))
    yield Undo(update=as_one([first.first, back]), first=1)  # changes nothing


def differing(user: str, probes: Sequence[Probe]) -> list[Probe]:
    first, second = worlds()
    return [each for each in probes if first.answer(each, user) != second.answer(each, user)]


def test_each_command_is_among_the_probes() -> None:
    assert {type(probe) for probe in probes()} == {*COMMANDS, Undo, list}


@pytest.mark.parametrize("user", ["bob", "nina"], ids=["may use schema s", "has no privilege"])
def test_no_answer_depends_on_what_the_user_may_not_see(user: str) -> None:
    assert differing(user, list(probes())) == []


@pytest.mark.parametrize("check", ["require_reach", "require_sight"])
def test_a_missing_check_is_detected(check: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PrivilegeCheck, check, lambda self, command: None)
    assert differing("bob", list(probes())) != []
