"""Commands on views."""

from __future__ import annotations

from dataclasses import dataclass, replace

from strandline.catalog.commands.definition import (
    FIRST_COLUMN_ID,
    ColumnDefinition,
    check_columns,
    new_columns,
)
from strandline.catalog.planning import Planning
from strandline.errors import UnsupportedOperation
from strandline.model.descriptors import Properties, StorageFormat, ViewDescriptor
from strandline.model.identifiers import check_name


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewDefinition:
    """A view as somebody writes it down."""

    name: str
    columns: tuple[ColumnDefinition, ...]
    original_text: str
    expanded_text: str
    owner: str = ""
    storage: StorageFormat = StorageFormat()
    properties: Properties = ()
    comment: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateView:
    """CREATE VIEW; with ``or_replace`` a view of that name is redefined and keeps its id."""

    schema: str
    definition: ViewDefinition
    if_not_exists: bool = False
    or_replace: bool = False

    def plan(self, planning: Planning) -> None:
        """Raises `ObjectNotFound`, `AlreadyExists`, `InvalidInput`."""
        schema = planning.schema(self.schema)
        old = planning.catalog.view(self.schema, self.definition.name)
        if old is not None and self.if_not_exists:
            return
        if old is not None and self.or_replace:
            AlterView(schema=self.schema, view=old.name, definition=self.definition).plan(planning)
            return
        planning.ensure_free(schema, self.definition.name)
        qualified = f"{schema.name}.{self.definition.name}"
        with planning.entry("create_view", view=qualified) as transaction:
            transaction.put(
                _describe(
                    self.definition,
                    view_id=planning.new_id(),
                    schema_id=schema.id,
                    created=planning.now_seconds,
                )
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterView:
    """ALTER VIEW: text, columns and properties become those of ``definition``."""

    schema: str
    view: str
    definition: ViewDefinition

    def plan(self, planning: Planning) -> None:
        """Raises `ObjectNotFound`, `UnsupportedOperation`, `InvalidInput`."""
        old = planning.relation(self.schema, self.view)
        if not isinstance(old, ViewDescriptor):
            raise UnsupportedOperation(f"{self.schema}.{self.view} is a table, not a view")
        new = _describe(
            self.definition, view_id=old.id, schema_id=old.schema_id, created=old.created
        )
        qualified = planning.catalog.qualified_name(old)
        with planning.entry("alter_view", view=qualified) as transaction:
            transaction.put(replace(new, name=old.name))


def _describe(
    definition: ViewDefinition, *, view_id: int, schema_id: int, created: int
) -> ViewDescriptor:
    check_name(definition.name, "view")
    check_columns(definition.columns, table=definition.name)
    columns, _ = new_columns(definition.columns, FIRST_COLUMN_ID)
    return ViewDescriptor(
        id=view_id,
        schema_id=schema_id,
        name=definition.name,
        owner=definition.owner,
        columns=columns,
        original_text=definition.original_text,
        expanded_text=definition.expanded_text,
        storage=definition.storage,
        properties=definition.properties,
        comment=definition.comment,
        created=created,
    )
