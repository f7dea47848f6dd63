"""System views on roles, privileges, clusters, comments and the configuration."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from strandline.catalog.catalog import Catalog
from strandline.catalog.configuration import PARAMETERS
from strandline.catalog.system_views.registry import Row, system_view
from strandline.durable.collections import COLLECTIONS
from strandline.model.privileges import PUBLIC, PUBLIC_NAME, privilege_names

# -- roles and privileges --------------------------------------------------------------------------


@system_view(
    "role_id id, role_name text, owner text, is_superuser truth, inherits truth",
    doc="The roles.",
)
def roles(catalog: Catalog) -> Iterator[Row]:
    for one in catalog.roles():
        yield one.id, one.name, one.owner, one.superuser, one.inherit


@system_view(
    "role_id id, role_name text, member_of_id id, member_of_name text, grantor_id id",
    doc="Which role is a member of which.",
)
def role_members(catalog: Catalog) -> Iterator[Row]:
    for one in catalog.roles():
        for role_id, grantor in one.member_of:
            yield one.id, one.name, role_id, _role_name(catalog, role_id), grantor


@system_view(
    "object_kind text, object_id id, object_name text, grantee_id id, grantee_name text, "
    "grantor_id id, grantor_name text, privileges text",
    doc="What is granted to whom, on objects and on the whole system.",
)
def privileges(catalog: Catalog) -> Iterator[Row]:
    for kind in COLLECTIONS.values():
        if "privileges" not in getattr(kind.of, "__dataclass_fields__", ()) or not kind.has_id:
            continue
        for stored in catalog.contents.objects(kind.kind):
            for grant in stored.value.privileges:
                yield kind.kind, stored.id, stored.name, *_granted(catalog, grant)
    for stored in catalog.contents.objects("system_privilege"):
        yield "system", None, None, *_granted(catalog, stored.value)


def _granted(catalog: Catalog, grant: Any) -> Row:  # Any: a grant, or a system privilege
    return (
        grant.grantee,
        _role_name(catalog, grant.grantee),
        grant.grantor or None,
        _role_name(catalog, grant.grantor) if grant.grantor else None,
        ", ".join(privilege_names(grant.privileges)),
    )


@system_view(
    "object_kind text, role_id id, database_id id, schema_id id, grantee_id id, privileges text",
    doc="The privileges that objects begin with; NULL is any.",
)
def default_privileges(catalog: Catalog) -> Iterator[Row]:
    for stored in catalog.contents.objects("default_privilege"):
        one = stored.value
        yield (
            one.object_kind.name.lower(),
            one.role or None,
            one.database or None,
            one.schema or None,
            one.grantee,
            ", ".join(privilege_names(one.privileges)),
        )


# -- clusters --------------------------------------------------------------------------------------


@system_view(
    "cluster_id id, cluster_name text, owner text, is_managed truth, size text, "
    "replication_factor number",
    doc="The clusters. Size and replication factor are those of managed ones.",
)
def clusters(catalog: Catalog) -> Iterator[Row]:
    for one in catalog.clusters():
        managed = one.size is not None
        factor = one.replication_factor if managed else None
        yield one.id, one.name, one.owner, managed, one.size, factor


@system_view(
    "cluster_id id, cluster_name text, replica_id id, replica_name text, owner text, size text, "
    "address text",
    doc="The replicas of clusters.",
)
def cluster_replicas(catalog: Catalog) -> Iterator[Row]:
    for cluster in catalog.clusters():
        for one in catalog.replicas(cluster.id):
            yield cluster.id, cluster.name, one.id, one.name, one.owner, one.size, one.address


@system_view(
    "index_id id, replica_id id, name text, address text",
    doc="Where one can look into a replica.",
)
def introspection_indexes(catalog: Catalog) -> Iterator[Row]:
    for stored in catalog.contents.objects("introspection_index"):
        yield stored.value.id, stored.value.replica_id, stored.value.name, stored.value.address


# -- the rest --------------------------------------------------------------------------------------


@system_view(
    "object_kind text, object_id id, comment text",
    doc="The comments on objects that do not carry theirs themselves.",
)
def comments(catalog: Catalog) -> Iterator[Row]:
    for stored in catalog.contents.objects("comment"):
        yield stored.value.object_kind.name.lower(), stored.value.object_id, stored.value.text


@system_view(
    "name text, value text, default_value text, is_default truth, type text",
    doc="The configuration parameters. Without a value and a default, each node's own setting "
    "holds.",
)
def configuration(catalog: Catalog) -> Iterator[Row]:
    for one in PARAMETERS.values():
        text = catalog.configuration(one.name)
        yield one.name, one.default if text is None else text, one.default, text is None, one.type


def _role_name(catalog: Catalog, role_id: int) -> str | None:
    if role_id == PUBLIC:
        return PUBLIC_NAME
    role = catalog.role_by_id(role_id)
    return role.name if role else None
