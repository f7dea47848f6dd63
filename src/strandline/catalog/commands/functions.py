"""Commands on functions: classes that Hive's clients load under a name.

The catalog keeps the name, the class and where its files are; it runs nothing. Spark loads the
class when a query names the function. Functions have a namespace of their own in a schema.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from strandline.catalog.kinds import delete_with_comment, object_name
from strandline.catalog.planning import Planning, refuse_reserved
from strandline.errors import AlreadyExists, InvalidInput, ObjectNotFound
from strandline.model.descriptors import FunctionDescriptor, PrincipalType
from strandline.model.identifiers import check_name

RESOURCE_TYPES = ("JAR", "FILE", "ARCHIVE")
MAX_RESOURCES = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateFunction:
    """CREATE FUNCTION; with ``or_replace`` one of that name is redefined and keeps its id.

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
        if existing is not None:
            if self.if_not_exists:
                return
            raise AlreadyExists(f"function {schema.name}.{existing.name} already exists")
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
    """Another class, owner or other files for a function. What is None stays as it is."""

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
        new = replace(
            old,
            class_name=old.class_name if self.class_name is None else self.class_name,
            owner=old.owner if self.owner is None else self.owner,
            owner_type=self.owner_type or old.owner_type,
            resources=old.resources if self.resources is None else self.resources,
        )
        _check_definition(new.name, new.class_name, new.resources)
        qualified = f"{planning.schema(self.schema).name}.{old.name}"
        with planning.entry("alter_function", function=qualified) as transaction:
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
        if holder is not None and holder.id != old.id:
            raise AlreadyExists(f"function {target.name}.{holder.name} already exists")
        with planning.entry(
            "rename_function",
            function=f"{planning.schema(self.schema).name}.{old.name}",
            to=f"{target.name}.{self.new_name}",
        ) as transaction:
            transaction.put(replace(old, name=self.new_name, schema_id=target.id))


@dataclass(frozen=True, slots=True, kw_only=True)
class DropFunction:
    """DROP FUNCTION. Its files are not the catalog's and stay."""

    schema: str
    function: str
    if_exists: bool = False

    def plan(self, planning: Planning) -> None:
        """Raises `ObjectNotFound`."""
        function = _find(planning, self.schema, self.function, if_exists=self.if_exists)
        if function is not None:
            drop_function(planning, function)


def drop_function(planning: Planning, function: FunctionDescriptor) -> None:
    """Remove a function and the comment on it, in an entry of its own."""
    name = object_name(planning.catalog, function)
    with planning.entry("drop_function", function=name) as transaction:
        delete_with_comment(transaction, "function", function.id)


def _find(
    planning: Planning, schema: str, name: str, *, if_exists: bool
) -> FunctionDescriptor | None:
    function = planning.catalog.function(schema, name)
    if function is None and not if_exists:
        raise ObjectNotFound(f"Function {schema}.{name} does not exist")
    return function


def _check_definition(name: str, class_name: str, resources: tuple[tuple[str, str], ...]) -> None:
    if not class_name.strip():
        raise InvalidInput(f"function {name} needs the name of a class")
    if len(resources) > MAX_RESOURCES:
        raise InvalidInput(
            f"function {name} may have {MAX_RESOURCES} resources, found {len(resources)}"
        )
    for kind, uri in resources:
        if kind not in RESOURCE_TYPES or not uri.strip():
            raise InvalidInput(
                f"function {name} cannot have the resource {kind} {uri[:200]!r}: a resource is "
                f"one of {', '.join(RESOURCE_TYPES)}, and a URI"
            )
