"""Commands on views, and on functions: classes that Hive's clients load under a name.

The catalog stores the name of a function, its class and the URIs of its files; it runs nothing.
Spark loads the class when a query names the function. Functions have a separate namespace in each
schema.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from strandline.catalog.commands.column_definition import (
    FIRST_COLUMN_ID,
    ColumnDefinition,
    check_columns,
    new_columns,
)
from strandline.catalog.commands.tables import RenameTable, drop_relation
from strandline.catalog.kinds import delete_with_comment, object_name
from strandline.catalog.planning import Planning, altered, refuse_holder, refuse_reserved, required
from strandline.errors import InvalidInput, UnsupportedOperation
from strandline.model.descriptors import (
    FunctionDescriptor,
    PrincipalType,
    Properties,
    StorageFormat,
    ViewDescriptor,
)
from strandline.model.identifiers import check_name, check_versioned_name


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
    """CREATE VIEW. With ``or_replace`` an existing view is redefined and keeps its id."""

    schema: str
    definition: ViewDefinition
    if_not_exists: bool = False
    or_replace: bool = False

    def plan(self, planning: Planning) -> None:
        """Raises `ObjectNotFound`, `AlreadyExists`, `InvalidInput`.

        IF NOT EXISTS applies only to a view of that name.
        """
        check_columns(self.definition.columns, table=self.definition.name)
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
        check_versioned_name(self.definition.name, "view")
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

    The view keeps its name, its id and the privileges granted on it. It also keeps its owner if
    ``definition`` names none.
    """

    schema: str
    view: str
    definition: ViewDefinition
    if_exists: bool = False

    def plan(self, planning: Planning) -> None:
        """Raises `ObjectNotFound`, `UnsupportedOperation`, `InvalidInput`."""
        check_columns(self.definition.columns, table=self.view)
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
    """ALTER VIEW … RENAME TO, also into another schema. The same name changes nothing."""

    schema: str
    view: str
    new_name: str
    new_schema: str | None = None
    if_exists: bool = False

    def plan(self, planning: Planning) -> None:
        """Raises `ObjectNotFound`, `AlreadyExists`, `InvalidName`, `UnsupportedOperation`."""
        check_versioned_name(self.new_name, "view")
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


RESOURCE_TYPES = ("JAR", "FILE", "ARCHIVE")
MAX_RESOURCES = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateFunction:
    """CREATE FUNCTION. With ``or_replace`` an existing function is redefined and keeps its id.

    ``resources`` are pairs of ``JAR``, ``FILE`` or ``ARCHIVE`` and a URI.
    """

    schema: str
    name: str
    class_name: str
    owner: str = ""
    owner_type: PrincipalType = PrincipalType.USER
    resources: tuple[tuple[str, str], ...] = ()
    if_not_exists: bool = False
    or_replace: bool = False

    def plan(self, planning: Planning) -> None:
        """Raises `ObjectNotFound`, `AlreadyExists`, `IllegalChange`, `InvalidInput`, …"""
        if self.if_not_exists and self.or_replace:
            raise InvalidInput(
                f"function {self.name} cannot be created both OR REPLACE and IF NOT EXISTS"
            )
        refuse_reserved(self.schema, "given functions")
        schema = planning.schema(self.schema)
        check_name(self.name, "function")
        _check_definition(self.name, self.class_name, self.resources)
        existing = planning.catalog.function(self.schema, self.name)
        if existing is not None and self.or_replace:
            AlterFunction(
                schema=self.schema,
                function=self.name,
                class_name=self.class_name,
                resources=self.resources,
            ).plan(planning)
            return
        if existing is not None and self.if_not_exists:
            return
        refuse_holder(existing, "function", inside=schema.name)
        with planning.entry(
            "create_function", function=f"{schema.name}.{self.name}"
        ) as transaction:
            transaction.put(
                FunctionDescriptor(
                    id=planning.new_id(),
                    schema_id=schema.id,
                    name=self.name,
                    owner=self.owner or planning.author,
                    class_name=self.class_name,
                    owner_type=self.owner_type,
                    resources=self.resources,
                    created=planning.now_seconds,
                )
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterFunction:
    """Change the class, owner or files of a function. None leaves a property unchanged."""

    schema: str
    function: str
    class_name: str | None = None
    owner: str | None = None
    owner_type: PrincipalType | None = None
    resources: tuple[tuple[str, str], ...] | None = None
    if_exists: bool = False

    def plan(self, planning: Planning) -> None:
        """Raises `ObjectNotFound`, `InvalidInput`."""
        old = _find(planning, self.schema, self.function, if_exists=self.if_exists)
        if old is None:
            return
        new = altered(
            old,
            class_name=self.class_name,
            owner=self.owner,
            owner_type=self.owner_type,
            resources=self.resources,
        )
        _check_definition(new.name, new.class_name, new.resources)
        name = object_name(planning.catalog, old)
        with planning.entry("alter_function", function=name) as transaction:
            transaction.put(new)


@dataclass(frozen=True, slots=True, kw_only=True)
class RenameFunction:
    """ALTER FUNCTION … RENAME TO, also into another schema."""

    schema: str
    function: str
    new_name: str
    new_schema: str | None = None
    if_exists: bool = False

    def plan(self, planning: Planning) -> None:
        """Raises `ObjectNotFound`, `AlreadyExists`, `InvalidName`."""
        old = _find(planning, self.schema, self.function, if_exists=self.if_exists)
        if old is None:
            return
        check_name(self.new_name, "function")
        refuse_reserved(self.new_schema or "", "given functions")
        target = planning.schema(self.new_schema or self.schema)
        holder = planning.catalog.function(target.name, self.new_name)
        refuse_holder(holder, "function", own_id=old.id, inside=target.name)
        with planning.entry(
            "rename_function",
            function=object_name(planning.catalog, old),
            to=f"{target.name}.{self.new_name}",
        ) as transaction:
            transaction.put(replace(old, name=self.new_name, schema_id=target.id))


@dataclass(frozen=True, slots=True, kw_only=True)
class DropFunction:
    """DROP FUNCTION. Its files do not belong to the catalog and stay."""

    schema: str
    function: str
    if_exists: bool = False

    def plan(self, planning: Planning) -> None:
        """Raises `ObjectNotFound`."""
        function = _find(planning, self.schema, self.function, if_exists=self.if_exists)
        if function is not None:
            drop_function(planning, function)


def drop_function(planning: Planning, function: FunctionDescriptor) -> None:
    """Drop a function and its comment, in a separate entry."""
    name = object_name(planning.catalog, function)
    with planning.entry("drop_function", function=name) as transaction:
        delete_with_comment(transaction, "function", function.id)


def _find(
    planning: Planning, schema: str, name: str, *, if_exists: bool
) -> FunctionDescriptor | None:
    return required(
        planning.catalog.function(schema, name), f"Function {schema}.{name}", if_exists=if_exists
    )


def _check_definition(name: str, class_name: str, resources: tuple[tuple[str, str], ...]) -> None:
    if not class_name.strip():
        raise InvalidInput(f"function {name} needs a class name")
    if len(resources) > MAX_RESOURCES:
        raise InvalidInput(
            f"function {name} may have at most {MAX_RESOURCES} resources, found {len(resources)}"
        )
    for kind, uri in resources:
        if kind not in RESOURCE_TYPES or not uri.strip():
            raise InvalidInput(
                f"function {name} cannot have the resource {kind} {uri[:200]!r}: a resource has a "
                f"type ({', '.join(RESOURCE_TYPES)}) and a URI"
            )
