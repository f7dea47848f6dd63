"""COMMENT ON: comments on objects of every kind.

Schemas, tables, views and the columns of the latter carry their comments in their own record,
where Hive's and Spark's own statements put them too: one truth. All other kinds have none of their
own, so a comment on one of these is an object beside it, and goes with it: whatever drops an object
calls `drop_comment`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from strandline.catalog.catalog import Catalog
from strandline.catalog.commands.definition import with_columns
from strandline.catalog.planning import Planning
from strandline.durable.transaction import CatalogTransaction
from strandline.errors import InvalidInput, ObjectNotFound
from strandline.model.bookkeeping import Comment, comment_name
from strandline.model.descriptors import ColumnDescriptor, TableDescriptor, ViewDescriptor
from strandline.model.identifiers import QualifiedName, normalize
from strandline.model.privileges import ObjectKind, require_kind

MAX_COMMENT_LENGTH = 65_536
"""Characters."""

_ON_ITSELF = frozenset({ObjectKind.SCHEMA, ObjectKind.TABLE, ObjectKind.VIEW})
_WITH_COLUMNS = frozenset({ObjectKind.TABLE, ObjectKind.VIEW})
_WITHOUT = frozenset({ObjectKind.SYSTEM})


@dataclass(frozen=True, slots=True, kw_only=True)
class CommentOn:
    """COMMENT ON kind name IS text, or on a column of a table or view; None takes it away.

    ``name`` is as SQL writes it: ``schema.name`` for what stands in a schema, ``cluster.replica``
    for a replica, one name for all else.
    """

    kind: ObjectKind
    name: str
    text: str | None
    column: str | None = None

    def plan(self, planning: Planning) -> None:
        """Raises `ObjectNotFound`, `InvalidInput`, `InvalidName`."""
        require_kind(self.kind)
        if self.kind in _WITHOUT:
            raise InvalidInput("there can be no comment on the whole system; name an object")
        if self.column is not None and self.kind not in _WITH_COLUMNS:
            raise InvalidInput(
                f"a comment on column {self.column!r} is for a table or view, found "
                f"{_said(self.kind)} {self.name}"
            )
        if self.text is not None and len(self.text) > MAX_COMMENT_LENGTH:
            raise InvalidInput(
                f"a comment may have {MAX_COMMENT_LENGTH} characters, found {len(self.text)}"
            )
        found = _FIND[self.kind](planning.catalog, self.name)
        if found is None:
            raise ObjectNotFound(f"{_said(self.kind)} {self.name!r} does not exist")
        arguments = {
            self.kind.name.lower(): _name(planning.catalog, found, self.name),
            "column": self.column,
            "text": self.text,
        }
        with planning.entry("comment_on", **arguments) as transaction:
            if self.column is not None:
                transaction.put(_with_column_comment(found, self.column, self.text))
            elif self.kind in _ON_ITSELF:
                transaction.put(replace(found, comment=self.text))
            elif self.text is None:
                drop_comment(transaction, self.kind, found.id)
            else:
                name = comment_name(self.kind, found.id)
                transaction.put(Comment(name, self.kind, found.id, self.text))


def drop_comment(transaction: CatalogTransaction, kind: ObjectKind, object_id: int) -> None:
    """Remove the comment on an object that is being dropped, if there is one; inside an entry."""
    name = comment_name(kind, object_id)
    if transaction.get_named("comment", name) is not None:
        transaction.delete("comment", name)


def _said(kind: ObjectKind) -> str:
    return kind.name.lower().replace("_", " ")


def _name(catalog: Catalog, found: Any, given: str) -> str:  # Any: a descriptor of any kind
    if isinstance(found, TableDescriptor | ViewDescriptor):
        return catalog.qualified_name(found)
    return given


def _with_column_comment(
    relation: TableDescriptor | ViewDescriptor, name: str, text: str | None
) -> TableDescriptor | ViewDescriptor:
    if normalize(name) not in {normalize(column.name) for column in relation.columns}:
        names = ", ".join(column.name for column in relation.columns)
        raise ObjectNotFound(f"column {name!r} does not exist in {relation.name}; it has {names}")

    def said(column: ColumnDescriptor) -> ColumnDescriptor:
        return (
            replace(column, comment=text) if normalize(column.name) == normalize(name) else column
        )

    columns = tuple(map(said, relation.columns))
    if isinstance(relation, TableDescriptor):
        return with_columns(relation, columns, relation.next_column_id)
    return replace(relation, columns=columns)


# Any: the descriptor of the kind that is looked for.
def _in_schema(find: Callable[[Catalog, str, str], Any]) -> Callable[[Catalog, str], Any]:
    def found(catalog: Catalog, name: str) -> Any:
        parsed = QualifiedName.parse(name)
        return find(catalog, parsed.schema, parsed.name)

    return found


def _replica(catalog: Catalog, cluster: str, name: str) -> Any:
    parent = catalog.cluster(cluster)
    replicas = [] if parent is None else catalog.replicas(parent.id)
    return next((one for one in replicas if normalize(one.name) == normalize(name)), None)


_FIND: dict[ObjectKind, Callable[[Catalog, str], Any]] = {
    ObjectKind.DATABASE: Catalog.database,
    ObjectKind.SCHEMA: Catalog.schema,
    ObjectKind.TABLE: _in_schema(Catalog.table),
    ObjectKind.VIEW: _in_schema(Catalog.view),
    ObjectKind.FUNCTION: _in_schema(Catalog.function),
    ObjectKind.SYSTEM_VIEW: _in_schema(Catalog.system_view),
    ObjectKind.INDEX: _in_schema(Catalog.alive_index),
    ObjectKind.ZONE: Catalog.zone_named,
    ObjectKind.ROLE: Catalog.role,
    ObjectKind.CLUSTER: Catalog.cluster,
    ObjectKind.CLUSTER_REPLICA: _in_schema(_replica),
}
