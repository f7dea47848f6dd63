"""The declarations of all kinds of objects, in the order in which they are shown to users.

See `strandline.catalog.declared_kinds` for the meaning of each argument.
"""

from __future__ import annotations

from typing import Any

from strandline.catalog.catalog import DEFAULT_ZONE_CONFIG, Catalog
from strandline.catalog.commands.clusters import drop_cluster, drop_replica, keep_replicas
from strandline.catalog.commands.indexes import drop_index, give_indexes
from strandline.catalog.commands.roles import drop_role
from strandline.catalog.commands.schemas import DEFAULT_SCHEMA, drop_database, drop_schema
from strandline.catalog.commands.tables import drop_relation
from strandline.catalog.commands.views import drop_function
from strandline.catalog.commands.zones import drop_zone
from strandline.catalog.declared_kinds import DeclaredKind, Undoing, declare
from strandline.catalog.kinds import name_of, spoken
from strandline.catalog.planning import Planning
from strandline.catalog.privileges import rules
from strandline.catalog.system_views import rows
from strandline.catalog.undo import rules as undo
from strandline.catalog.verbs import Action, FolderEffect, Verb, declare_verb
from strandline.durable.collections import (
    CONFIG,
    FENCE,
    ID_ALLOCATOR,
    SETTING,
    TIMESTAMP,
    Collection,
)
from strandline.model.descriptors import (
    ClusterDescriptor,
    ClusterReplica,
    Comment,
    ConfigEntry,
    DatabaseDescriptor,
    FunctionDescriptor,
    IndexDescriptor,
    IntrospectionIndex,
    SchemaDescriptor,
    SystemConfiguration,
    SystemObjectFingerprint,
    SystemViewDescriptor,
    TableDescriptor,
    ViewDescriptor,
    ZoneDescriptor,
)
from strandline.model.privileges import (
    PUBLIC_NAME,
    SYSTEM_NAME,
    DefaultPrivilege,
    ObjectKind,
    Privilege,
    RoleDescriptor,
    SystemPrivilege,
)


def _nothing_follows(planning: Planning, before: Any, value: Any) -> None:
    """Do nothing more after the owner is set."""


def _schema_is_built_in(_: Catalog, schema: SchemaDescriptor) -> bool:
    return schema.owner == (PUBLIC_NAME if schema.name == DEFAULT_SCHEMA else SYSTEM_NAME)


def _default_zone_is_built_in(catalog: Catalog, _: ConfigEntry) -> bool:
    zone = catalog.default_zone()
    return zone is not None and zone.owner == SYSTEM_NAME


def _kind_commented_on(comment: Comment) -> str:
    return comment.object_kind.name.lower()


def _comment_called(catalog: Catalog, comment: Comment) -> str:
    kind = _kind_commented_on(comment)
    return f"{spoken(kind)} {name_of(catalog, kind, comment.object_id)}"


def _system_privilege_called(catalog: Catalog, value: SystemPrivilege) -> str:
    by = f" by {name_of(catalog, 'role', value.grantor)}" if value.grantor else ""
    return f"of {name_of(catalog, 'role', value.grantee)}{by}"


def _default_privilege_called(catalog: Catalog, value: DefaultPrivilege) -> str:
    """For example ``of analysts on tables in schema shop made by etl``."""
    called = f"of {name_of(catalog, 'role', value.grantee)} on {spoken(value.object_kind.name)}s"
    for kind, object_id in (("database", value.database), ("schema", value.schema)):
        called += f" in {kind} {name_of(catalog, kind, object_id)}" if object_id else ""
    return called + (f" made by {name_of(catalog, 'role', value.role)}" if value.role else "")


def _is_always_internal(_: str) -> bool:
    return True


_IN_SCHEMA = {"schema_id": "schema"}

declare(
    DeclaredKind(
        collection=Collection("database", DatabaseDescriptor, scope="database"),
        object_kind=ObjectKind.DATABASE,
        grantable=Privilege.USAGE | Privilege.CREATE,
        after_owner=_nothing_follows,
        rule=rules.top_level(Privilege.CREATE_DATABASE),
        drop=drop_database,
        in_events=True,
        views=(rows.databases,),
    ),
    DeclaredKind(
        collection=Collection("schema", SchemaDescriptor, scope="schema"),
        parent="database_id",
        references={"database_id": "database"},
        object_kind=ObjectKind.SCHEMA,
        grantable=Privilege.USAGE | Privilege.CREATE,
        carries_comment=True,
        after_owner=_nothing_follows,
        rule=rules.in_database,
        drop=drop_schema,
        undo=Undoing(by_name=True),
        built_in=_schema_is_built_in,
        in_events=True,
        folders={
            Action.CREATE: FolderEffect.MAKE_SCHEMA,
            Action.DROP: FolderEffect.REMOVE_SCHEMA,
            Action.RESTORE: FolderEffect.MAKE_SCHEMA,
        },
        views=(rows.schemas,),
    ),
    DeclaredKind(
        collection=Collection("table", TableDescriptor, scope="relation"),
        parent="schema_id",
        references={**_IN_SCHEMA, "zone_id": "zone"},
        mentions={"primary_key_index": "index"},
        object_kind=ObjectKind.TABLE,
        grantable=Privilege.SELECT | Privilege.INSERT | Privilege.UPDATE | Privilege.DELETE,
        carries_comment=True,
        after_owner=give_indexes,
        rule=rules.in_schema,
        drop=drop_relation,
        undo=Undoing(
            is_dropped_first=True,
            same=undo.same_table,
            comes_back=undo.table_comes_back,
            following=undo.indexes_follow,
            check=undo.check_table,
            by_name=True,
        ),
        in_events=True,
        verbs=(
            *(
                Verb(name=name, kind="table", subject="table")
                for name in (
                    "add_columns",
                    "alter_column",
                    "rename_column",
                    "rename_columns",
                    "set_table_properties",
                    "add_constraints",
                    "drop_constraint",
                )
            ),
            Verb(name="drop_columns", kind="table", subject="table", inverse="restore_columns"),
            Verb(name="restore_columns", kind="table", subject="table", action=Action.RESTORE),
        ),
        folders={
            Action.CREATE: FolderEffect.MAKE_TABLE,
            Action.RENAME: FolderEffect.MOVE_TABLE,
            Action.DROP: FolderEffect.REMOVE_TABLE,
            Action.RESTORE: FolderEffect.MOVE_TABLE,
        },
        views=(rows.tables, rows.table_columns),
    ),
    DeclaredKind(
        collection=Collection("view", ViewDescriptor, scope="relation"),
        parent="schema_id",
        references=_IN_SCHEMA,
        object_kind=ObjectKind.VIEW,
        grantable=Privilege.SELECT,
        carries_comment=True,
        after_owner=_nothing_follows,
        rule=rules.in_schema,
        drop=drop_relation,
        undo=Undoing(is_dropped_first=True, by_name=True),
        in_events=True,
        views=(rows.views,),
    ),
    DeclaredKind(
        collection=Collection("system_view", SystemViewDescriptor, scope="relation"),
        parent="schema_id",
        references=_IN_SCHEMA,
        object_kind=ObjectKind.SYSTEM_VIEW,
        grantable=Privilege.SELECT,
        undo=Undoing(why_kept="it created the catalog's own views, which the program maintains"),
        verbs=(Verb(name="replace_system_view", kind="system_view", subject="system_view"),),
        views=(rows.system_views, rows.system_view_columns),
    ),
    DeclaredKind(
        collection=Collection(
            "index",
            IndexDescriptor,
            scope="relation",
            group="table_id",
            named=lambda stored: stored.value.alive,
        ),
        parent="schema_id",
        references={**_IN_SCHEMA, "table_id": "table"},
        object_kind=ObjectKind.INDEX,
        rule=rules.of_its_table,
        drop=drop_index,
        part_of="table_id",
        undo=Undoing(
            is_dropped_first=True,
            comes_back=undo.index_comes_back,
            check=undo.check_index,
        ),
        verbs=(
            *(
                Verb(name=name, kind="index", subject="index")
                for name in ("index_building", "index_available", "index_stopping")
            ),
            Verb(name="index_removed", kind="index", subject="index", inverse="restore_index"),
        ),
        views=(rows.indexes, rows.index_columns),
    ),
    DeclaredKind(
        collection=Collection("function", FunctionDescriptor, scope="function"),
        parent="schema_id",
        references=_IN_SCHEMA,
        object_kind=ObjectKind.FUNCTION,
        grantable=Privilege.EXECUTE,
        after_owner=_nothing_follows,
        rule=rules.in_schema,
        drop=drop_function,
        undo=Undoing(is_dropped_first=True, by_name=True),
        in_events=True,
        views=(rows.functions,),
    ),
    DeclaredKind(
        collection=Collection("zone", ZoneDescriptor, scope="zone"),
        object_kind=ObjectKind.ZONE,
        grantable=Privilege.USAGE,
        after_owner=_nothing_follows,
        rule=rules.top_level(Privilege.CREATE_ZONE),
        drop=drop_zone,
        undo=Undoing(check=undo.check_zone),
        views=(rows.zones, rows.zone_storage_profiles),
    ),
    DeclaredKind(
        collection=Collection("role", RoleDescriptor, scope="role"),
        object_kind=ObjectKind.ROLE,
        rule=rules.role,
        drop=drop_role,
        undo=Undoing(following=undo.owned_objects_follow, check=undo.check_role),
        # These verbs change the member role, and their entries are about the group.
        verbs=(Verb(name="grant_role", subject="role"), Verb(name="revoke_role", subject="role")),
        views=(rows.roles, rows.role_members),
    ),
    DeclaredKind(
        collection=Collection("cluster", ClusterDescriptor, scope="cluster"),
        object_kind=ObjectKind.CLUSTER,
        grantable=Privilege.USAGE | Privilege.CREATE,
        after_owner=lambda planning, _, cluster: keep_replicas(planning, cluster, address=None),
        rule=rules.top_level(Privilege.CREATE_CLUSTER),
        drop=drop_cluster,
        undo=Undoing(is_dropped_first=True, check=undo.check_size),
        views=(rows.clusters,),
    ),
    DeclaredKind(
        collection=Collection("cluster_replica", ClusterReplica, scope="cluster_replica"),
        parent="cluster_id",
        references={"cluster_id": "cluster"},
        object_kind=ObjectKind.CLUSTER_REPLICA,
        rule=rules.in_cluster,
        drop=drop_replica,
        part_of="cluster_id",
        undo=Undoing(
            is_dropped_first=True,
            following=undo.introspection_follows,
            check=undo.check_size,
        ),
        subject="replica",
        views=(rows.cluster_replicas,),
    ),
    DeclaredKind(
        collection=Collection(
            "introspection_index", IntrospectionIndex, scope="introspection_index"
        ),
        parent="replica_id",
        references={"replica_id": "cluster_replica"},
        rule=rules.of_its_replica,
        part_of="replica_id",
        views=(rows.introspection_indexes,),
    ),
    DeclaredKind(
        collection=Collection("default_privilege", DefaultPrivilege, has_id=False),
        references={
            "role": "role",
            "database": "database",
            "schema": "schema",
            "grantee": "role",
        },
        called=_default_privilege_called,
        rule=rules.default_privilege,
        verbs=(Verb(name="alter_default_privileges"),),
        views=(rows.default_privileges,),
    ),
    DeclaredKind(
        collection=Collection("system_privilege", SystemPrivilege, has_id=False),
        references={"grantee": "role"},
        mentions={"grantor": "role"},
        called=_system_privilege_called,
        rule=rules.system_privilege,
        views=(rows.privileges,),
    ),
    DeclaredKind(
        collection=Collection("comment", Comment, has_id=False),
        references={"object_id": _kind_commented_on},
        called=_comment_called,
        rule=rules.comment,
        verbs=(Verb(name="comment_on"),),
        views=(rows.comments,),
    ),
    DeclaredKind(
        collection=Collection("system_configuration", SystemConfiguration, has_id=False),
        rule=rules.configuration,
        undo=Undoing(by_command=undo.set_parameter_back),
        verbs=(Verb(name="set_configuration", kind="system_configuration", subject="name"),),
        views=(rows.configuration,),
    ),
    # -- the program's own records -----------------------------------------------------------------
    DeclaredKind(collection=TIMESTAMP, is_internal=_is_always_internal),
    DeclaredKind(
        collection=Collection("system_object_fingerprint", SystemObjectFingerprint, has_id=False),
        is_internal=_is_always_internal,
    ),
    DeclaredKind(
        collection=ID_ALLOCATOR, is_internal=_is_always_internal, rule=rules.with_the_object
    ),
    DeclaredKind(collection=SETTING, is_internal=_is_always_internal),
    DeclaredKind(
        collection=CONFIG,
        mentions={"value": lambda entry: "zone" if entry.name == DEFAULT_ZONE_CONFIG else None},
        rule=rules.config_entry,
        undo=Undoing(check=undo.check_default_zone),
        is_internal=lambda name: name != DEFAULT_ZONE_CONFIG,
        built_in=_default_zone_is_built_in,
        verbs=(Verb(name="set_default_zone", subject="zone"),),
    ),
    DeclaredKind(collection=FENCE, is_internal=_is_always_internal),
)

for _verb in (
    Verb(
        name="initialize", subject="database", why_kept="it is the version that created the catalog"
    ),
    Verb(name="grant"),
    Verb(name="revoke"),
):
    declare_verb(_verb)
