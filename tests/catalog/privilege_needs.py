"""What each change of the catalog needs: the commands, and how they are refused without it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from strandline.catalog import Command
from strandline.catalog.commands import (
    AlterClusterReplica,
    AlterDefaultPrivileges,
    AlterRole,
    AlterSchema,
    AlterTable,
    CommentOn,
    CreateCluster,
    CreateClusterReplica,
    CreateIndex,
    CreateRole,
    CreateSchema,
    CreateTable,
    CreateZone,
    DropCluster,
    DropClusterReplica,
    DropIndex,
    DropRole,
    DropSchema,
    DropTable,
    DropZone,
    GrantPrivileges,
    GrantRole,
    MakeIndexAvailable,
    RemoveIndex,
    RenameIndex,
    RenameRole,
    RenameSchema,
    RenameTable,
    RevokeRole,
    SetConfiguration,
    SetDefaultZone,
    SetTableProperties,
    StartBuildingIndex,
)
from strandline.catalog.planning import Planning
from strandline.model.descriptors import IndexStatus
from strandline.model.privileges import ObjectKind, Privilege
from tests.catalog.scenario import create_table, create_view


@dataclass(frozen=True)
class Step:
    """The next step in the life of the first index that has ``status``."""

    step: Callable[..., Command]
    status: IndexStatus

    def plan(self, planning: Planning) -> None:
        table = planning.catalog.table("s", "t")
        assert table is not None
        indexes = planning.catalog.indexes(table.id)
        index = next(candidate for candidate in indexes if candidate.status is self.status)
        self.step(index_id=index.id).plan(planning)


def index(name: str) -> Command:
    return CreateIndex(schema="s", index=name, table="t", columns=("a",), owner="ann")


SPARK, SPARK_UI = "spark://jobs:7077", "http://jobs:4040"
ENFORCE = SetConfiguration(name="enforce_privileges", value="true")
SETUP: list[Command] = [
    *(CreateRole(name=name) for name in ("ann", "bob", "cleo", "group")),
    CreateRole(name="root", superuser=True),
    CreateRole(name="boss", superuser=True),
    GrantRole(role="boss", member="group"),  # to keep or lose it needs no privilege on boss
    CreateSchema(name="s", owner="ann"),
    CreateSchema(name="z", owner="cleo"),
    create_table("s.t", owner="ann"),
    create_table("s.c", owner="cleo"),
    create_view("s.v"),
    create_table("s.d", owner="dora"),
    CreateZone(name="fast", owner="cleo"),
    CreateCluster(name="jobs", owner="cleo"),
    CreateClusterReplica(
        cluster="jobs", name="r", size="small", address=SPARK, owner="ann", spark_ui=SPARK_UI
    ),
    CommentOn(kind=ObjectKind.CLUSTER_REPLICA, name="jobs.r", text="c"),
    CommentOn(kind=ObjectKind.ZONE, name="fast", text="c"),
]
INDEXES: list[Command] = [
    index("stopped"),
    Step(StartBuildingIndex, IndexStatus.REGISTERED),
    Step(MakeIndexAvailable, IndexStatus.BUILDING),
    DropIndex(schema="s", index="stopped"),
    index("used"),
    Step(StartBuildingIndex, IndexStatus.REGISTERED),
    Step(MakeIndexAvailable, IndexStatus.BUILDING),
    index("fresh"),
]


def grant(kind: ObjectKind, name: str, privileges: Privilege, to: str = "bob") -> Command:
    return GrantPrivileges(kind=kind, name=name, privileges=privileges, grantee=to)


def on_system(privilege: Privilege) -> Command:
    return grant(ObjectKind.SYSTEM, "", privilege)


def on_system_to_all(privilege: Privilege) -> Command:
    return grant(ObjectKind.SYSTEM, "", privilege, "public")


USAGE_S = grant(ObjectKind.SCHEMA, "s", Privilege.USAGE)
CREATE_S = grant(ObjectKind.SCHEMA, "s", Privilege.CREATE)
USAGE_Z = grant(ObjectKind.SCHEMA, "z", Privilege.USAGE)
CREATE_Z = grant(ObjectKind.SCHEMA, "z", Privilege.CREATE)
JOIN_ANN = GrantRole(role="ann", member="bob")
JOIN_CLEO = GrantRole(role="cleo", member="bob")
PROPERTIES = SetTableProperties(schema="s", table="t", set=(("k", "v"),))
CONTENT = SetTableProperties(schema="s", table="t", set=(("metadata_location", "x"),))
COMMENTED = create_table("s.t", owner="ann", comment="c", properties=CONTENT.set)
ZONED = create_table("s.n", owner="bob")
assert isinstance(ZONED, CreateTable)
ZONED = replace(ZONED, definition=replace(ZONED.definition, zone="fast"))
SELECT_T = grant(ObjectKind.TABLE, "s.t", Privilege.SELECT, "bob")
PLAIN_CHANGE = SetConfiguration(name="max_tables", value="99")
SUPERUSER = AlterRole(name="bob", superuser=True)


@dataclass(frozen=True)
class Needs:
    """Before each of ``steps``, ``wanted`` by bob is refused with its text; then it is allowed."""

    name: str
    wanted: Command | Sequence[Command]
    steps: Sequence[tuple[str, Command]]


CHANGES = [
    Needs(
        "make a table",
        create_table("s.n", owner="bob"),
        [("USAGE on schema s", USAGE_S), ("lacks CREATE on schema s", CREATE_S)],
    ),
    Needs(
        "make a view",
        create_view("s.n"),
        [("USAGE on schema s", USAGE_S), ("lacks CREATE on schema s", CREATE_S)],
    ),
    Needs(
        "make a table in a zone",
        [ZONED],
        [
            ("USAGE on schema s", USAGE_S),
            ("lacks CREATE on schema s", CREATE_S),
            ("lacks USAGE on zone fast", grant(ObjectKind.ZONE, "fast", Privilege.USAGE)),
        ],
    ),
    Needs(
        "make a table of another's",
        create_table("default.n", owner="ann"),
        [("cannot make ann the owner of table default.n", JOIN_ANN)],
    ),
    Needs(
        "alter a table",
        PROPERTIES,
        [
            ("lacks USAGE on schema s", USAGE_S),
            ("does not own table s.t", JOIN_ANN),
        ],
    ),
    Needs(
        "commit to an Iceberg table",
        CONTENT,
        [
            ("lacks USAGE on schema s", USAGE_S),
            (
                "lacks INSERT and UPDATE and DELETE on table s.t",
                grant(ObjectKind.TABLE, "s.t", Privilege.INSERT | Privilege.UPDATE),
            ),
            ("lacks DELETE on table s.t", grant(ObjectKind.TABLE, "s.t", Privilege.DELETE)),
        ],
    ),
    Needs(
        "commit to an Iceberg table and comment on it",
        AlterTable(schema="s", table="t", definition=COMMENTED.definition),
        [
            ("lacks USAGE on schema s", USAGE_S),
            (
                "does not own table s.t",
                grant(
                    ObjectKind.TABLE,
                    "s.t",
                    Privilege.INSERT | Privilege.UPDATE | Privilege.DELETE,
                ),
            ),
            ("does not own table s.t", JOIN_ANN),
        ],
    ),
    Needs(
        "drop a table",
        DropTable(schema="s", table="t"),
        [("lacks USAGE on schema s", USAGE_S), ("does not own table s.t", JOIN_ANN)],
    ),
    Needs(
        "drop a table of another's in a schema of one's own",
        DropTable(schema="s", table="c"),
        [("lacks USAGE on schema s", JOIN_ANN)],
    ),
    Needs(
        "move a table",
        RenameTable(schema="s", table="t", new_name="t", new_schema="z"),
        [
            ("lacks USAGE on schema s", JOIN_ANN),
            ("lacks USAGE on schema z", USAGE_Z),
            ("lacks CREATE on schema z", CREATE_Z),
        ],
    ),
    Needs(
        "grant on a table",
        grant(ObjectKind.TABLE, "s.t", Privilege.INSERT, "bob"),
        [("lacks USAGE on schema s", USAGE_S), ("does not own table s.t", JOIN_ANN)],
    ),
    Needs(
        "make a schema",
        CreateSchema(name="n", owner="bob"),
        [("lacks CREATE on database hive", grant(ObjectKind.DATABASE, "hive", Privilege.CREATE))],
    ),
    Needs(
        "rename a schema",
        RenameSchema(name="z", new_name="n"),
        [("not own schema z", JOIN_CLEO)],
    ),
    Needs("alter a schema", AlterSchema(name="s", comment="c"), [("not own schema s", JOIN_ANN)]),
    Needs(
        "give a schema away",
        AlterSchema(name="s", owner="cleo"),
        [("not own schema s", JOIN_ANN), ("cannot make cleo the owner", JOIN_CLEO)],
    ),
    Needs(
        "take the schema that everybody uses",
        AlterSchema(name="default", owner="bob"),
        [("not own schema default", SUPERUSER)],
    ),
    Needs(
        "drop a schema with what is in it, whoever owns that",
        DropSchema(name="s", cascade=True),
        [("lacks USAGE on schema s", JOIN_ANN)],
    ),
    Needs(
        "make a zone",
        CreateZone(name="n", owner="bob"),
        [("lacks CREATE_ZONE on the system", on_system(Privilege.CREATE_ZONE))],
    ),
    Needs(
        "make a cluster",
        CreateCluster(name="n", owner="bob"),
        [("lacks CREATE_CLUSTER on the system", on_system(Privilege.CREATE_CLUSTER))],
    ),
    Needs(
        "make a cluster replica",
        CreateClusterReplica(
            cluster="jobs", name="n", size="small", address=SPARK, owner="bob", spark_ui=SPARK_UI
        ),
        [
            (
                "lacks CREATE on cluster jobs",
                grant(ObjectKind.CLUSTER, "jobs", Privilege.CREATE),
            ),
        ],
    ),
    Needs(
        "set the address at which a replica can be inspected",
        AlterClusterReplica(cluster="jobs", replica="r", spark_ui="http://other:4040"),
        [("does not own cluster replica", JOIN_ANN)],
    ),
    Needs(
        "drop a replica of another's in a cluster of one's own",
        DropClusterReplica(cluster="jobs", replica="r"),
        [("does not own cluster replica", JOIN_CLEO)],
    ),
    Needs(
        "drop a cluster with what is in it, whoever owns that",
        DropCluster(name="jobs"),
        [("does not own", JOIN_CLEO)],
    ),
    Needs(
        "drop a zone that has a comment",
        DropZone(name="fast"),
        [("does not own zone fast", JOIN_CLEO)],
    ),
    Needs(
        "make a role",
        CreateRole(name="n"),
        [("lacks CREATE_ROLE on the system", on_system(Privilege.CREATE_ROLE))],
    ),
    Needs(
        "make a superuser",
        CreateRole(name="n", superuser=True),
        [
            ("only superusers may create, change or drop", on_system(Privilege.CREATE_ROLE)),
            ("only superusers may create, change or drop", SUPERUSER),
        ],
    ),
    Needs(
        "make a role a superuser",
        AlterRole(name="group", superuser=True),
        [("only superusers", AlterRole(name="group", owner="bob")), ("only superusers", SUPERUSER)],
    ),
    Needs(
        "drop a role",
        DropRole(name="group"),
        [("not own role group", AlterRole(name="group", owner="bob"))],
    ),
    Needs(
        "drop a superuser",
        DropRole(name="boss"),
        [("only superusers", AlterRole(name="boss", owner="bob")), ("only superusers", SUPERUSER)],
    ),
    Needs(
        "make a role that would own what is there",
        CreateRole(name="Dora"),
        [
            ("lacks CREATE_ROLE on the system", on_system(Privilege.CREATE_ROLE)),
            ("only superusers may give a role the name Dora", SUPERUSER),
        ],
    ),
    Needs(
        "rename a role",
        RenameRole(name="group", new_name="n"),
        [("not own role group", AlterRole(name="group", owner="bob"))],
    ),
    Needs(
        "rename a role so that it would own what is there",
        RenameRole(name="group", new_name="dora"),
        [
            ("not own role group", AlterRole(name="group", owner="bob")),
            ("only superusers may give a role the name dora", SUPERUSER),
        ],
    ),
    Needs(
        "join the role of a superuser",
        GrantRole(role="boss", member="bob"),
        [
            ("change the members of the superuser role boss", AlterRole(name="boss", owner="bob")),
            ("change the members of the superuser role boss", SUPERUSER),
        ],
    ),
    Needs(
        "make an index in somebody's name",
        CreateIndex(schema="s", index="i", table="t", columns=("a",), owner="cleo"),
        [
            ("lacks USAGE on schema s", JOIN_ANN),
            ("cannot make cleo the owner of index i", JOIN_CLEO),
        ],
    ),
    Needs(
        "drop an index that is not built yet, which removes it",
        DropIndex(schema="s", index="fresh"),
        [("lacks USAGE on schema s", USAGE_S), ("does not own table s.t", JOIN_ANN)],
    ),
    Needs(
        "drop an index that is in use, which stops it",
        DropIndex(schema="s", index="used"),
        [("lacks USAGE on schema s", USAGE_S), ("does not own table s.t", JOIN_ANN)],
    ),
    Needs(
        "remove an index that has stopped",
        Step(RemoveIndex, IndexStatus.STOPPING),
        [("lacks USAGE on schema s", USAGE_S), ("does not own table s.t", JOIN_ANN)],
    ),
    Needs(
        "rename an index",
        RenameIndex(schema="s", index="used", new_name="n"),
        [("lacks USAGE on schema s", USAGE_S), ("does not own table s.t", JOIN_ANN)],
    ),
    Needs(
        "join a role",
        GrantRole(role="ann", member="bob"),
        [("not own role ann", AlterRole(name="ann", owner="bob"))],
    ),
    Needs(
        "put another who is also in a role of others into a role",
        GrantRole(role="ann", member="group"),
        [("not own role ann", AlterRole(name="ann", owner="bob"))],
    ),
    Needs(
        "put another out of a role",
        RevokeRole(role="group", member="cleo"),
        [("not own role group", AlterRole(name="group", owner="bob"))],
    ),
    Needs(
        "default privileges for others",
        AlterDefaultPrivileges(
            kind=ObjectKind.TABLE, privileges=Privilege.SELECT, grantee="bob", role="ann"
        ),
        [("only superusers may set default privileges", JOIN_ANN)],
    ),
    Needs(
        "default privileges for everybody",
        AlterDefaultPrivileges(kind=ObjectKind.TABLE, privileges=Privilege.SELECT, grantee="bob"),
        [("only superusers", JOIN_ANN), ("only superusers", SUPERUSER)],
    ),
    Needs("grant on the system", on_system(Privilege.CONFIGURE), [("only superusers", SUPERUSER)]),
    Needs(
        "configure",
        SetConfiguration(name="max_tables", value="7"),
        [("lacks CONFIGURE on the system", on_system(Privilege.CONFIGURE))],
    ),
    Needs(
        "choose the zone of new tables",
        SetDefaultZone(name="fast"),
        [("lacks CONFIGURE on the system", on_system(Privilege.CONFIGURE))],
    ),
    Needs(
        "switch the checks off",
        SetConfiguration(name="enforce_privileges", value="false"),
        [("only superusers", on_system(Privilege.CONFIGURE)), ("only superusers", SUPERUSER)],
    ),
    Needs(
        "comment on a zone",
        CommentOn(kind=ObjectKind.ZONE, name="fast", text="d"),
        [("does not own zone fast", JOIN_CLEO)],
    ),
    Needs(
        "comment on an index",
        CommentOn(kind=ObjectKind.INDEX, name="s.used", text="c"),
        [("lacks USAGE on schema s", USAGE_S), ("does not own table s.t", JOIN_ANN)],
    ),
    Needs(
        "a batch whose second command may not",
        [create_table("default.n", owner="bob"), PROPERTIES],
        [("lacks USAGE on schema s", JOIN_ANN)],
    ),
]
