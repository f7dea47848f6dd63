"""What a new object begins with: the default privileges that apply to it.

A default privilege says that a grantee may do something on all objects of a kind that a role (or
anybody) makes from then on, in one schema, in one database or anywhere. Who makes an object is its
owner. Several apply together; what was made before is not touched. One that names a role, schema or
database goes with it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from strandline.catalog.catalog import Catalog
from strandline.catalog.kinds import kind_of
from strandline.durable.transaction import CatalogTransaction
from strandline.model.privileges import DefaultPrivilege, Grant, grants


def with_default_privileges(catalog: Catalog, value: Any) -> Any:  # Any: a descriptor of some kind
    """``value``, about to be made in ``catalog``, with the grants that apply to it."""
    kind = kind_of(value)
    if not kind.grantable or not catalog.contents.count("default_privilege"):
        return value
    schema_id, database_id = _place(catalog, value)
    owner = catalog.role(value.owner) if value.owner else None
    grantor = 0 if owner is None else owner.id
    applying = []
    for stored in catalog.contents.objects("default_privilege"):
        one: DefaultPrivilege = stored.value
        if (
            one.object_kind is kind.object_kind
            and one.role in (0, grantor)
            and one.schema in (0, schema_id)
            and one.database in (0, database_id)
        ):
            applying.append(Grant(one.grantee, grantor, one.privileges))
    return replace(value, privileges=grants([*value.privileges, *applying])) if applying else value


def _place(catalog: Catalog, value: Any) -> tuple[int, int]:  # Any: a descriptor of some kind
    """The ids of the schema and of the database that ``value`` stands in; 0 where there is none."""
    schema_id = getattr(value, "schema_id", 0)
    schema = catalog.schema_by_id(schema_id) if schema_id else None
    database_id = schema.database_id if schema else getattr(value, "database_id", 0)
    return schema_id, database_id


def drop_default_privileges(
    transaction: CatalogTransaction, *, role: int = 0, schema: int = 0, database: int = 0
) -> None:
    """Remove all that name what is being dropped, by its id; inside an entry."""
    for stored in list(transaction.contents.objects("default_privilege")):
        one: DefaultPrivilege = stored.value
        if (
            (role and role in (one.role, one.grantee))
            or (schema and schema == one.schema)
            or (database and database == one.database)
        ):
            transaction.delete("default_privilege", one.name)
