"""How objects of any kind are called, and which others they refer to by id.

Driven by the fields of the descriptors alone: a new kind whose fields are named like those that
there are needs nothing here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Any

from strandline.catalog.catalog import DEFAULT_DATABASE, Catalog
from strandline.durable.collections import collection_of
from strandline.model.bookkeeping import Comment
from strandline.model.privileges import (
    PUBLIC,
    PUBLIC_NAME,
    DefaultPrivilege,
    SystemPrivilege,
)

REFERENCES = {
    "database_id": "database",
    "schema_id": "schema",
    "table_id": "table",
    "zone_id": "zone",
    "cluster_id": "cluster",
    "replica_id": "cluster_replica",
    "database": "database",
    "schema": "schema",
    "role": "role",
    "grantee": "role",
}
"""Fields that hold the id of another object without which this one cannot be, and its kind."""

MENTIONS = {"grantor": "role", "primary_key_index": "index"}
"""Fields that hold the id of an object that may be gone, or comes with this one."""

_PARENTS = ("schema_id", "cluster_id", "replica_id", "database_id")


def references(value: Any) -> Iterator[tuple[str, int]]:  # Any: a descriptor of any kind
    """The kind and id of every object that a descriptor cannot be without."""
    if isinstance(value, Comment):
        yield value.object_kind.name.lower(), value.object_id
        return
    for field in fields(value):
        kind = REFERENCES.get(field.name)
        object_id = getattr(value, field.name)
        if kind is not None and isinstance(object_id, int) and object_id:
            yield kind, object_id


def object_name(catalog: Catalog, value: Any) -> str:  # Any: a descriptor of any kind
    """What people call an object of ``catalog``: ``shop.orders``, ``etl.r1``, ``analysts``."""
    for of, called in _CALLED.items():
        if isinstance(value, of):
            return called(catalog, value)
    name = str(value.name)
    for field in _PARENTS:
        parent_id = getattr(value, field, None)
        if parent_id is not None:
            parent = name_of(catalog, REFERENCES[field], parent_id)
            in_default = field == "database_id" and parent == DEFAULT_DATABASE
            return name if in_default else f"{parent}.{name}"
    return name


def _comment(catalog: Catalog, value: Comment) -> str:
    kind = value.object_kind.name.lower()
    return f"{spoken(kind)} {name_of(catalog, kind, value.object_id)}"


def _system_privilege(catalog: Catalog, value: SystemPrivilege) -> str:
    by = f" by {name_of(catalog, 'role', value.grantor)}" if value.grantor else ""
    return f"of {name_of(catalog, 'role', value.grantee)}{by}"


def _default_privilege(catalog: Catalog, value: DefaultPrivilege) -> str:
    """``of analysts on tables in schema shop made by etl``."""
    said = f"of {name_of(catalog, 'role', value.grantee)} on {spoken(value.object_kind.name)}s"
    for kind, object_id in (("database", value.database), ("schema", value.schema)):
        said += f" in {kind} {name_of(catalog, kind, object_id)}" if object_id else ""
    return said + (f" made by {name_of(catalog, 'role', value.role)}" if value.role else "")


_CALLED: dict[type, Callable[[Catalog, Any], str]] = {
    Comment: _comment,
    SystemPrivilege: _system_privilege,
    DefaultPrivilege: _default_privilege,
}
"""Kinds that people do not name, and so what they are called by."""


def name_of(catalog: Catalog, kind: str, object_id: int) -> str:
    """The name of the object with that id; ``?`` where it is not in ``catalog``."""
    if kind == "role" and object_id == PUBLIC:
        return PUBLIC_NAME
    found = catalog.get(kind, object_id)
    return "?" if found is None else object_name(catalog, found)


def described(catalog: Catalog, value: Any) -> str:  # Any: a descriptor of any kind
    """``table shop.orders``, as messages name it."""
    return f"{spoken(collection_of(value).kind)} {object_name(catalog, value)}"


def spoken(kind: str) -> str:
    """A kind as words: ``cluster_replica`` → ``cluster replica``."""
    return kind.replace("_", " ").lower()
