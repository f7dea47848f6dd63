"""Commands on views."""

from __future__ import annotations

from dataclasses import dataclass, replace

from strandline.catalog.commands.definition import (
    FIRST_COLUMN_ID,
    ColumnDefinition,
    check_columns,
    new_columns,
)
from strandline.catalog.commands.tables import RenameTable, drop_relation
from strandline.catalog.planning import Planning, refuse_reserved
from strandline.errors import InvalidInput, UnsupportedOperation
from strandline.model.descriptors import Properties, StorageFormat, ViewDescriptor
from strandline.model.identifiers import check_name


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewDefinition:
    """A view as a client defines it."""

    name: str
    columns: tuple[ColumnDefinition, ...]
    original_text: str
    expanded_text: str
    owner: str | None = None
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
        """Raises `ObjectNotFound`, `AlreadyExists`, `InvalidInput`.

        IF NOT EXISTS covers a view of that name, and nothing else.
        """
        _check(self.definition)
        if self.if_not_exists and self.or_replace:
            raise InvalidInput(
                f"view {self.definition.name} cannot be created both OR REPLACE and IF NOT EXISTS"
            )
        refuse_reserved(self.schema, "given views")
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
                    owner=planning.owner(self.definition.owner),
                    view_id=planning.new_id(),
                    schema_id=schema.id,
                    created=planning.now_seconds,
                )
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterView:
    """ALTER VIEW: text, columns, owner and properties become those of ``definition``.

    Its name stays, and so do its id and what was granted on it; and its owner, if none is named.
    """

    schema: str
    view: str
    definition: ViewDefinition
    if_exists: bool = False

    def plan(self, planning: Planning) -> None:
        """Raises `ObjectNotFound`, `UnsupportedOperation`, `InvalidInput`."""
        _check(self.definition)
        old = _existing(planning, self.schema, self.view, if_exists=self.if_exists)
        if old is None:
            return
        new = _describe(
            self.definition,
            owner=self.definition.owner or old.owner,
            view_id=old.id,
            schema_id=old.schema_id,
            created=old.created,
        )
        qualified = planning.catalog.qualified_name(old)
        with planning.entry("alter_view", view=qualified) as transaction:
            transaction.put(replace(new, name=old.name, privileges=old.privileges))


@dataclass(frozen=True, slots=True, kw_only=True)
class RenameView:
    """ALTER VIEW … RENAME TO, also into another schema. To its own name: nothing to do."""

    schema: str
    view: str
    new_name: str
    new_schema: str | None = None
    if_exists: bool = False

    def plan(self, planning: Planning) -> None:
        """Raises `ObjectNotFound`, `AlreadyExists`, `InvalidName`, `UnsupportedOperation`."""
        check_name(self.new_name, "view")
        view = _existing(planning, self.schema, self.view, if_exists=self.if_exists)
        if view is None:
            return
        RenameTable(
            schema=self.schema,
            table=view.name,
            new_name=self.new_name,
            new_schema=self.new_schema,
        ).plan(planning)


@dataclass(frozen=True, slots=True, kw_only=True)
class DropView:
    """DROP VIEW. A table of that name is refused."""

    schema: str
    view: str
    if_exists: bool = False

    def plan(self, planning: Planning) -> None:
        """Raises `ObjectNotFound`, `UnsupportedOperation`."""
        view = _existing(planning, self.schema, self.view, if_exists=self.if_exists)
        if view is not None:
            drop_relation(planning, view)


def _existing(
    planning: Planning, schema: str, name: str, *, if_exists: bool
) -> ViewDescriptor | None:
    if if_exists and planning.catalog.relation(schema, name) is None:
        return None
    relation = planning.relation(schema, name)
    if not isinstance(relation, ViewDescriptor):
        raise UnsupportedOperation(f"{schema}.{name} is a table, not a view")
    return relation


def _check(definition: ViewDefinition) -> None:
    check_name(definition.name, "view")
    check_columns(definition.columns, table=definition.name)


def _describe(
    definition: ViewDefinition, *, owner: str, view_id: int, schema_id: int, created: int
) -> ViewDescriptor:
    columns, _ = new_columns(definition.columns, FIRST_COLUMN_ID)
    return ViewDescriptor(
        id=view_id,
        schema_id=schema_id,
        name=definition.name,
        owner=owner,
        columns=columns,
        original_text=definition.original_text,
        expanded_text=definition.expanded_text,
        storage=definition.storage,
        properties=definition.properties,
        comment=definition.comment,
        created=created,
    )
