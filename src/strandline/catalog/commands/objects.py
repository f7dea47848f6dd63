"""Commands on objects of any kind (COMMENT ON, ALTER … OWNER TO), and on the configuration.

Schemas, tables and views, and the columns of tables and views, have their comments in their own
record, where the statements of Hive and Spark also put them. So there is only one comment. Other
kinds have no comment field: a comment on one of these is a separate object, which is deleted with
it (`strandline.catalog.kinds.delete_with_comment`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from strandline.catalog.commands.column_definition import column_named
from strandline.catalog.commands.table_definition import with_columns
from strandline.catalog.configuration import CLUSTER_SIZES, ClusterSize, parameter
from strandline.catalog.declared_kinds import declared_kinds
from strandline.catalog.kinds import find, find_in, kind_of_object, object_name
from strandline.catalog.planning import Planning, refuse_reserved
from strandline.catalog.verbs import Action
from strandline.errors import IllegalChange, InvalidInput, ObjectNotFound, UnsupportedOperation
from strandline.model.descriptors import (
    ColumnDescriptor,
    Comment,
    PrincipalType,
    SystemConfiguration,
    TableDescriptor,
    ViewDescriptor,
    comment_name,
)
from strandline.model.identifiers import check_name
from strandline.model.privileges import ObjectKind

MAX_COMMENT_LENGTH = 65_536
"""In characters."""

_WITH_COLUMNS = frozenset({ObjectKind.TABLE, ObjectKind.VIEW})


def check_comment(text: str | None) -> None:
    """Raise `InvalidInput` for a comment that is too long."""
    if text is not None and len(text) > MAX_COMMENT_LENGTH:
        raise InvalidInput(
            f"a comment may have at most {MAX_COMMENT_LENGTH} characters, found {len(text)}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CommentOn:
    """COMMENT ON kind name IS text, or on a column of a table or view. None removes the comment.

    ``name`` is as in SQL: ``schema.name`` for objects in a schema, ``cluster.replica`` for a
    replica, one name for all others.
    """

    kind: ObjectKind
    name: str
    text: str | None
    column: str | None = None

    def plan(self, planning: Planning) -> None:
        """Raises `ObjectNotFound`, `InvalidInput`, `InvalidName`."""
        kind = kind_of_object(self.kind)
        if kind is None:
            raise InvalidInput("the system cannot have a comment; name an object")
        if self.column is not None and self.kind not in _WITH_COLUMNS:
            raise InvalidInput(
                f"only a column of a table or view can have a comment; column {self.column!r} was "
                f"given for {kind.spoken} {self.name}"
            )
        check_comment(self.text)
        described = find(planning.catalog, kind, self.name)
        if described is None:
            raise ObjectNotFound(f"{kind.spoken} {self.name!r} does not exist")
        arguments = {
            kind.name: object_name(planning.catalog, described),
            "column": self.column,
            "text": self.text,
        }
        with planning.entry("comment_on", **arguments) as transaction:
            name = comment_name(self.kind, described.id)
            if self.column is not None:
                transaction.put(_with_column_comment(described, self.column, self.text))
            elif kind.carries_comment:
                transaction.put(replace(described, comment=self.text))
            elif self.text is not None:
                transaction.put(Comment(name, self.kind, described.id, self.text))
            elif transaction.get_named("comment", name) is not None:
                transaction.delete("comment", name)


def _with_column_comment(
    relation: TableDescriptor | ViewDescriptor, name: str, text: str | None
) -> TableDescriptor | ViewDescriptor:
    described = column_named(relation, name)
    columns: tuple[ColumnDescriptor, ...] = tuple(
        replace(column, comment=text) if column is described else column
        for column in relation.columns
    )
    if isinstance(relation, TableDescriptor):
        return with_columns(relation, columns, relation.next_column_id)
    return replace(relation, columns=columns)


@dataclass(frozen=True, slots=True, kw_only=True)
class SetOwner:
    """ALTER … OWNER TO. Kinds in a schema need ``schema``; only schemas have an ``owner_type``."""

    kind: ObjectKind
    name: str
    owner: str
    schema: str | None = None
    owner_type: PrincipalType | None = None
    if_exists: bool = False

    def plan(self, planning: Planning) -> None:
        """Raises `ObjectNotFound`, `InvalidInput`, `UnsupportedOperation`."""
        declared = (kind for kind in declared_kinds() if kind.after_owner is not None)
        owned = {kind.object_kind: kind for kind in declared}
        kind = owned.get(self.kind)
        if kind is None or kind.after_owner is None:
            raise UnsupportedOperation(
                f"an owner cannot be set for the kind {self.kind.name.lower()}; kinds that can "
                f"have another owner are {', '.join(sorted(kind.name for kind in owned.values()))}"
            )
        if kind.in_schema != (self.schema is not None):
            rule = (
                "belongs to a schema: give schema= apart from name="
                if kind.in_schema
                else "does not belong to a schema: leave schema= out"
            )
            raise InvalidInput(
                f"a {kind.spoken} {rule}; found name={self.name!r} and schema={self.schema!r}"
            )
        if self.owner_type is not None and self.kind is not ObjectKind.SCHEMA:
            raise InvalidInput(f"the owner of a {kind.spoken} has no type; leave it out")
        check_name(self.owner, "owner")
        if self.schema is None:
            old = find(planning.catalog, kind, self.name)
        else:
            old = find_in(planning.catalog, kind, self.schema, self.name)
        if old is None:
            if self.if_exists:
                return
            qualified = self.name if self.schema is None else f"{self.schema}.{self.name}"
            raise ObjectNotFound(f"{kind.spoken} {qualified} does not exist")
        refuse_reserved(old.name if self.kind is ObjectKind.SCHEMA else "", "altered")
        new = replace(old, owner=self.owner)
        if self.owner_type is not None:
            new = replace(new, owner_type=self.owner_type)
        name = object_name(planning.catalog, old)
        arguments: dict[str, str | list[str]] = {kind.name: name, "changed": ["owner"]}
        with planning.entry(kind.verb(Action.ALTER), **arguments) as transaction:
            transaction.put(new)
        kind.after_owner(planning, old, new)


@dataclass(frozen=True, slots=True, kw_only=True)
class SetConfiguration:
    """Set the parameter ``name`` to the text ``value``; None goes back to the default."""

    name: str
    value: str | None

    def plan(self, planning: Planning) -> None:
        """Raises `InvalidInput` for an unknown name or a bad value, `IllegalChange`."""
        declared = parameter(self.name)
        if not isinstance(self.value, str | None):
            raise InvalidInput(
                f"configuration parameter {declared.name} cannot be {self.value!r:.80}; give its "
                "value as a text"
            )
        text = None if self.value is None else self.value.strip()
        effective = declared.default if text is None else text
        value = None if effective is None else declared.read(effective)
        if declared is CLUSTER_SIZES:
            _refuse_to_drop_used_sizes(planning, value or {})
        present = planning.catalog.configuration(declared.name)
        with planning.entry("set_configuration", name=declared.name, value=text) as transaction:
            if text is not None:
                transaction.put(SystemConfiguration(declared.name, text))
            elif present is not None:
                transaction.delete("system_configuration", declared.name)


def _refuse_to_drop_used_sizes(planning: Planning, sizes: Mapping[str, ClusterSize]) -> None:
    catalog = planning.catalog
    for cluster in catalog.clusters():
        users_of_size = {
            replica.size: f"replica {replica.name} of " for replica in catalog.replicas(cluster.id)
        }
        if cluster.size is not None:
            users_of_size[cluster.size] = ""
        for size, replica_text in users_of_size.items():
            if size not in sizes:
                raise IllegalChange(
                    f"size {size} cannot be removed from {CLUSTER_SIZES.name}: {replica_text}"
                    f"cluster {cluster.name} uses it; change the size there first"
                )
