"""An ALTER changes exactly the fields that it names, for every kind that has an ALTER."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from strandline.catalog import Command
from strandline.catalog.commands import (
    NEVER,
    AlterClusterReplica,
    AlterColumn,
    AlterDatabase,
    AlterFunction,
    AlterRole,
    AlterSchema,
    AlterView,
    AlterZone,
    CreateCluster,
    CreateClusterReplica,
    CreateDatabase,
    CreateFunction,
    CreateRole,
    CreateSchema,
    CreateZone,
    GrantPrivileges,
    SetTableProperties,
)
from strandline.model.descriptors import ConsistencyMode, PrincipalType
from strandline.model.privileges import ObjectKind, Privilege
from tests.catalog.scenario import SCHEMA, Made, Result, Scenario, column, create_table, create_view

Find = Callable[[Any], Any]  # from a catalog to a descriptor of some kind


@dataclass(frozen=True)
class Altered:
    """An object with all fields set, and each alteration with the fields that it changes."""

    kind: str
    setup: Sequence[Command]
    find: Find
    changes: Sequence[tuple[Command, dict[str, object]]]
    cases: Sequence[int] = ()


def changed(find: Find, **fields: object) -> Callable[[Result], bool]:
    """Whether the object is unchanged except for these fields."""
    return lambda result: bool(find(result.after) == replace(find(result.before), **fields))


VIEW = create_view("s.v")
VIEW = replace(VIEW, definition=replace(VIEW.definition, owner="cleo", comment="c"))
TEXT = replace(VIEW.definition, name="w", owner="", original_text="SELECT 2")

KINDS = [
    Altered(
        "database",
        [CreateDatabase(name="lake", owner="eve")],
        lambda catalog: catalog.database("lake"),
        [(AlterDatabase(name="lake", owner="bob"), {"owner": "bob"})],
    ),
    Altered(
        "schema",
        [
            CreateSchema(
                name="s",
                owner="eve",
                owner_type=PrincipalType.ROLE,
                comment="c",
                location="file:/s",
                properties=(("k", "v"),),
            )
        ],
        lambda catalog: catalog.schema("s"),
        [
            (AlterSchema(name="s", owner="bob"), {"owner": "bob"}),
            (
                AlterSchema(name="s", owner_type=PrincipalType.GROUP),
                {"owner_type": PrincipalType.GROUP},
            ),
            (AlterSchema(name="s", comment=""), {"comment": ""}),
            (AlterSchema(name="s", properties=(("j", "w"),)), {"properties": (("j", "w"),)}),
        ],
    ),
    Altered(
        "table",
        [
            SCHEMA,
            create_table(
                "s.t",
                properties=(("a", "1"), ("b", "2")),
                comment="c",
                stale_rows_fraction=0.5,
                min_stale_rows=7,
            ),
        ],
        lambda catalog: catalog.table("s", "t"),
        [
            (
                SetTableProperties(schema="s", table="t", set=(("a", "4"), ("c", "3"))),
                {"properties": (("a", "4"), ("b", "2"), ("c", "3"))},
            ),
            (
                SetTableProperties(schema="s", table="t", unset=("a", "none")),
                {"properties": (("b", "2"),)},
            ),
            (SetTableProperties(schema="s", table="t", comment=""), {"comment": ""}),
            (
                SetTableProperties(schema="s", table="t", stale_rows_fraction=0.0),
                {"stale_rows_fraction": 0.0},
            ),
            (SetTableProperties(schema="s", table="t", min_stale_rows=0), {"min_stale_rows": 0}),
        ],
        cases=[53],
    ),
    Altered(
        "column",
        [
            SCHEMA,
            create_table("s.t", columns=(column("a int not null default 7", comment="c"),)),
        ],
        lambda catalog: catalog.table("s", "t").columns[0],
        [
            (AlterColumn(schema="s", table="t", column="a", nullable=True), {"nullable": True}),
            (AlterColumn(schema="s", table="t", column="a", comment=""), {"comment": ""}),
            (AlterColumn(schema="s", table="t", column="a", default="8"), {"default": "8"}),
            (AlterColumn(schema="s", table="t", column="a", drop_default=True), {"default": None}),
            (
                AlterColumn(schema="s", table="t", column="a", type=column("a bigint").type),
                {"type": column("a bigint").type},
            ),
        ],
        cases=[50],
    ),
    Altered(
        "view",
        [
            SCHEMA,
            VIEW,
            CreateRole(name="bob"),
            GrantPrivileges(
                kind=ObjectKind.VIEW, name="s.v", privileges=Privilege.SELECT, grantee="bob"
            ),
        ],
        lambda catalog: catalog.view("s", "v"),
        [
            (AlterView(schema="s", view="V", definition=TEXT), {"original_text": "SELECT 2"}),
            (
                AlterView(schema="s", view="v", definition=replace(TEXT, owner="eve", comment="d")),
                {"original_text": "SELECT 2", "owner": "eve", "comment": "d"},
            ),
        ],
    ),
    Altered(
        "function",
        [
            SCHEMA,
            CreateFunction(
                schema="s",
                name="f",
                class_name="a.B",
                owner="eve",
                owner_type=PrincipalType.ROLE,
                resources=(("JAR", "file:/a.jar"),),
            ),
        ],
        lambda catalog: catalog.function("s", "f"),
        [
            (AlterFunction(schema="s", function="F", class_name="c"), {"class_name": "c"}),
            (AlterFunction(schema="s", function="f", owner="bob"), {"owner": "bob"}),
            (
                AlterFunction(schema="s", function="f", owner_type=PrincipalType.USER),
                {"owner_type": PrincipalType.USER},
            ),
            (AlterFunction(schema="s", function="f", resources=()), {"resources": ()}),
        ],
    ),
    Altered(
        "zone",
        [
            CreateZone(
                name="z",
                owner="eve",
                partitions=4,
                replicas=7,
                quorum_size=3,
                auto_adjust_scale_up=5,
                auto_adjust_scale_down=6,
                node_filter="a = 1",
                storage_profiles=("x", "y"),
                storage_location="file:/z",
                consistency_mode=ConsistencyMode.HIGH_AVAILABILITY,
            )
        ],
        lambda catalog: catalog.zone_named("z"),
        [
            (AlterZone(name="z", owner="bob"), {"owner": "bob"}),
            (AlterZone(name="z", replicas=6), {"replicas": 6}),
            (AlterZone(name="z", quorum_size=2), {"quorum_size": 2}),
            (AlterZone(name="z", auto_adjust_scale_up=NEVER), {"auto_adjust_scale_up": None}),
            (AlterZone(name="z", auto_adjust_scale_down=0), {"auto_adjust_scale_down": 0}),
            (AlterZone(name="z", node_filter=""), {"node_filter": ""}),
            (AlterZone(name="z", storage_profiles=("y",)), {"storage_profiles": ("y",)}),
            (AlterZone(name="z", storage_location="s3://z"), {"storage_location": "s3://z"}),
            (AlterZone(name="z", storage_location=""), {"storage_location": None}),
        ],
        cases=[72],
    ),
    Altered(
        "role",
        [CreateRole(name="bob", superuser=True, inherit=False, owner="eve")],
        lambda catalog: catalog.role("bob"),
        [
            (AlterRole(name="bob", superuser=False), {"superuser": False}),
            (AlterRole(name="bob", inherit=True), {"inherit": True}),
            (AlterRole(name="bob", owner="ann"), {"owner": "ann"}),
        ],
    ),
    Altered(
        "replica",
        [
            CreateCluster(name="c"),
            CreateClusterReplica(cluster="c", name="r", size="small", address="yarn", owner="eve"),
        ],
        lambda catalog: catalog.replicas(catalog.cluster("c").id)[0],
        [
            (AlterClusterReplica(cluster="c", replica="R", size="large"), {"size": "large"}),
            (
                AlterClusterReplica(cluster="c", replica="r", address="sc://h"),
                {"address": "sc://h"},
            ),
            (AlterClusterReplica(cluster="c", replica="r", owner="bob"), {"owner": "bob"}),
        ],
    ),
]

SCENARIOS = [
    Scenario(
        f"a {altered.kind} whose {' and '.join(f'{k} becomes {v!r}' for k, v in fields.items())}",
        cases=altered.cases,
        setup=altered.setup,
        run=command,
        expect=Made(),
        checks=[(changed(altered.find, **fields), True)],
    )
    for altered in KINDS
    for command, fields in altered.changes
]
