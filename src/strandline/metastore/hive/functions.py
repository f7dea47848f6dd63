"""Methods on functions: classes that Spark loads when a query names them.

Like Hive, answers have the names of functions in lower case. A function can be read as of a
version, like everything in a schema.
"""

from __future__ import annotations

from strandline import work
from strandline.catalog import DEFAULT_DATABASE
from strandline.catalog.catalog import is_shown
from strandline.catalog.commands import AlterFunction, CreateFunction, DropFunction, RenameFunction
from strandline.catalog.planning import Command
from strandline.errors import InvalidInput, ObjectNotFound
from strandline.metastore.hive.names import is_hive_name, present_schema, principal_type
from strandline.metastore.hive.registry import Call, changes, reads
from strandline.metastore.hive.storage_descriptors import Struct, int32
from strandline.metastore.off_loop import charge, off_loop_for
from strandline.model.descriptors import FunctionDescriptor, PrincipalType
from strandline.model.privileges import Privilege

_JAVA = 1
_RESOURCE_NUMBERS = {"JAR": 1, "FILE": 2, "ARCHIVE": 3}
_RESOURCE_NAMES = {number: name for name, number in _RESOURCE_NUMBERS.items()}


def function_struct(function: FunctionDescriptor, *, schema: str) -> Struct:
    return {
        "functionName": function.name.lower(),
        "dbName": schema,
        "className": function.class_name,
        "ownerName": function.owner or None,
        "ownerType": function.owner_type.value,
        "createTime": int32(function.created),
        "functionType": _JAVA,
        "resourceUris": [
            {"resourceType": _RESOURCE_NUMBERS[kind], "uri": uri}
            for kind, uri in function.resources
        ],
        "catName": DEFAULT_DATABASE,
    }


@reads("get_function")
async def get_function(call: Call) -> Struct:
    schema, name = call.text("db_name"), call.text("funcName")
    scope = await call.reader.find_scope(schema)
    function = None if scope is None else scope.catalog.function(scope.schema.name, name)
    if scope is None or function is None:
        raise ObjectNotFound(f"Function {schema}.{name} does not exist")
    call.reader.access.at(scope.catalog).require(Privilege.EXECUTE, function)
    await charge(work.units_of_bytes(scope.catalog.bytes_of(function)))
    return function_struct(function, schema=scope.name)


@reads("get_functions")
async def get_functions(call: Call) -> list[str]:
    """Return the names that match a pattern; none if the schema does not exist."""
    scope = await call.reader.find_scope(call.text("db_name"))
    names: list[str] = []
    if scope is not None:
        await off_loop_for(scope.catalog.contents.count("function"))
        names = [function.name.lower() for function in scope.catalog.functions(scope.schema.name)]
    return sorted(await call.reader.matching_names(names, call.args.get("pattern")))


@reads("get_all_functions")
async def get_all_functions(call: Call) -> Struct:
    catalog, access = call.reader.catalog, call.reader.access
    await off_loop_for(catalog.contents.count("function"))
    # A function may have a thousand files, with long names.
    stored_bytes = sum(len(stored.data) for stored in catalog.contents.objects("function"))
    await charge(work.units_of_bytes(stored_bytes))
    return {
        "functions": [
            function_struct(function, schema=schema.name.lower())
            for schema in catalog.schemas()
            if is_shown(schema) and access.reaches(schema)
            for function in catalog.functions(schema.name)
            if access.allows(Privilege.EXECUTE, function)
        ]
    }


@changes("create_function")
async def create_function(call: Call) -> None:
    function = call.struct("func")
    schema = present_schema(function.get("dbName", ""))
    name = _name(function)
    if call.reader.catalog.schema(schema) is None:
        raise ObjectNotFound(f"The function's database {function.get('dbName')} does not exist")
    call.execute(
        CreateFunction(
            schema=schema,
            name=name,
            class_name=_class(function),
            owner=call.owner(function.get("ownerName")),
            owner_type=principal_type(function.get("ownerType")) or PrincipalType.USER,
            resources=_resources(function),
        )
    )


@changes("alter_function")
async def alter_function(call: Call) -> None:
    """Change the function, and rename it if the client sends another name.

    Files in the request replace those of the function. As in Hive, a request without files keeps
    them.
    """
    function = call.struct("newFunc")
    schema, name = present_schema(call.text("db_name")), call.text("funcName").lower()
    owner = function.get("ownerName")
    _require_function(call, schema, name)
    altered = AlterFunction(
        schema=schema,
        function=name,
        class_name=_class(function),
        owner=call.owner(owner) if owner else None,
        owner_type=principal_type(function.get("ownerType")),
        resources=_resources(function) or None,
    )
    commands: list[Command] = [altered]
    target, new_name = present_schema(function.get("dbName") or schema), _name(function)
    if (target, new_name) != (schema, name):
        renamed = RenameFunction(schema=schema, function=name, new_name=new_name, new_schema=target)
        commands.append(renamed)
    call.execute(*commands)


@changes("drop_function")
async def drop_function(call: Call) -> None:
    schema, name = present_schema(call.text("db_name")), call.text("funcName")
    _require_function(call, schema, name)
    call.execute(DropFunction(schema=schema, function=name))


def _require_function(call: Call, schema: str, name: str) -> None:
    """Raise `ObjectNotFound` unless the function exists in a schema that the user reaches."""
    call.reader.schema(call.reader.present, schema)
    if call.reader.catalog.function(schema, name) is None:
        raise ObjectNotFound(f"Function {call.text('db_name')}.{name} does not exist")


def _name(function: Struct) -> str:
    name: str = (function.get("functionName") or "").lower()
    if not is_hive_name(name):
        raise InvalidInput(f"{name} is not a valid object name")
    return name


def _class(function: Struct) -> str:
    name: str = function.get("className") or ""
    if not name.strip():
        raise InvalidInput("Function class name cannot be null")
    return name


def _resources(function: Struct) -> tuple[tuple[str, str], ...]:
    resources = []
    for resource in function.get("resourceUris") or ():
        kind = _RESOURCE_NAMES.get(resource.get("resourceType"))
        if kind is None:
            raise InvalidInput(f"{resource.get('resourceType')} is not a type of resource")
        resources.append((kind, resource.get("uri") or ""))
    return tuple(resources)
