"""ALTER … OWNER TO, for every kind of object that people own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from strandline.catalog.catalog import Catalog
from strandline.catalog.commands.clusters import keep_replicas
from strandline.catalog.planning import Planning
from strandline.catalog.reserved_schemas import refuse_reserved
from strandline.errors import InvalidInput, ObjectNotFound, UnsupportedOperation
from strandline.model.clusters import ClusterDescriptor
from strandline.model.descriptors import PrincipalType, SchemaDescriptor
from strandline.model.identifiers import check_name
from strandline.model.privileges import ObjectKind, require_kind


@dataclass(frozen=True, slots=True)
class _Owned:
    """How objects of a kind are found: by schema and name, or by name alone."""

    find: Callable[[Catalog, str, str], Any]  # the descriptor, or None
    in_schema: bool = True


_OWNED: dict[ObjectKind, _Owned] = {
    ObjectKind.TABLE: _Owned(Catalog.table),
    ObjectKind.VIEW: _Owned(Catalog.view),
    ObjectKind.FUNCTION: _Owned(Catalog.function),
    ObjectKind.SCHEMA: _Owned(lambda catalog, _, name: catalog.schema(name), in_schema=False),
    ObjectKind.DATABASE: _Owned(lambda catalog, _, name: catalog.database(name), in_schema=False),
    ObjectKind.ZONE: _Owned(lambda catalog, _, name: catalog.zone_named(name), in_schema=False),
    ObjectKind.CLUSTER: _Owned(lambda catalog, _, name: catalog.cluster(name), in_schema=False),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SetOwner:
    """ALTER … OWNER TO. ``schema`` is for kinds that lie in one; an ``owner_type``, for schemas."""

    kind: ObjectKind
    name: str
    owner: str
    schema: str | None = None
    owner_type: PrincipalType | None = None
    if_exists: bool = False

    def plan(self, planning: Planning) -> None:
        """Raises `ObjectNotFound`, `InvalidInput`, `UnsupportedOperation`."""
        what = require_kind(self.kind).name.lower()
        owned = _OWNED.get(self.kind)
        if owned is None:
            known = ", ".join(sorted(kind.name.lower() for kind in _OWNED))
            raise UnsupportedOperation(
                f"an owner cannot be set for the kind {what}; it can for {known}"
            )
        if owned.in_schema != (self.schema is not None):
            lies = "lies in a schema, name it" if owned.in_schema else "lies in no schema"
            raise InvalidInput(f"a {what} {lies}: {self.name!r} was asked for in {self.schema!r}")
        if self.owner_type is not None and self.kind is not ObjectKind.SCHEMA:
            raise InvalidInput(f"the owner of a {what} has no type")
        check_name(self.owner, "owner")
        qualified = self.name if self.schema is None else f"{self.schema}.{self.name}"
        found = owned.find(planning.catalog, self.schema or "", self.name)
        if found is None:
            if self.if_exists:
                return
            raise ObjectNotFound(f"{what} {qualified} does not exist")
        refuse_reserved(found.name if self.kind is ObjectKind.SCHEMA else "", "altered")
        new = replace(found, owner=self.owner)
        if isinstance(new, SchemaDescriptor) and self.owner_type is not None:
            new = replace(new, owner_type=self.owner_type)
        arguments: dict[str, str | list[str]] = {what: qualified, "changed": ["owner"]}
        with planning.entry(f"alter_{what}", **arguments) as transaction:
            transaction.put(new)
        if isinstance(new, ClusterDescriptor):
            keep_replicas(planning, new, address=None)
