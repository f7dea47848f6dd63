"""Methods that create, drop and alter tables and views."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import replace

from strandline.catalog import Command, Relation
from strandline.catalog.commands import (
    AddConstraints,
    CreateTable,
    CreateView,
    DropTable,
    TableDefinition,
)
from strandline.catalog.privileges.rules import WRITING
from strandline.errors import (
    AlreadyExists,
    IllegalChange,
    InvalidInput,
    NotFound,
    ObjectNotFound,
    PermissionDenied,
    StrandlineError,
    WriteConflict,
)
from strandline.metastore.hive.accuracy import accurate_columns, with_accurate, without_accurate
from strandline.metastore.hive.alter_relation import AlterRelation
from strandline.metastore.hive.constraints import read_constraints, require_parents
from strandline.metastore.hive.names import (
    hadoop_location,
    is_hive_name,
    present_schema,
    same_location,
)
from strandline.metastore.hive.parameters import (
    DERIVED,
    PATH,
    QuickStatistics,
    if_purge,
    is_counted_table,
    time_of_change,
    without_time,
)
from strandline.metastore.hive.partition_alters import give_table_columns
from strandline.metastore.hive.registry import (
    Call,
    changes,
    invalid_object,
    invalid_operation,
    meta_exception,
)
from strandline.metastore.hive.statistics_values import changed_columns
from strandline.metastore.hive.storage_descriptors import require_serde
from strandline.metastore.hive.table_structs import ClientTable, read_table
from strandline.metastore.hive.transactional_tables import (
    refuse_cascade,
    refuse_replacement,
    refuse_transactional,
)
from strandline.metastore.metastore import completing
from strandline.metastore.requested_places import require_places
from strandline.metastore.unfinished_moves import partitions_staying
from strandline.model.descriptors import Properties, TableDescriptor, TableKind, properties
from strandline.model.places import table_folder
from strandline.model.privileges import Privilege

CASCADE = "CASCADE"
"""A key in the environment context of an alter: the partitions get the table's columns too."""
EXPECTED_KEY, EXPECTED_VALUE = "expected_parameter_key", "expected_parameter_value"
"""Keys of a parameter, and of the value that it must have for an alter to be made."""
_EXPECTED = (("expectedParameterKey", EXPECTED_KEY), ("expectedParameterValue", EXPECTED_VALUE))
_UNCOUNTED = "the parameters and columns that it gives to rows may be missing"


@changes(
    "create_table",
    "create_table_with_environment_context",
    "create_table_with_constraints",
    "create_table_req",
)
async def create_table(call: Call) -> None:
    table, context = call.struct("table"), call.args.get("environment_context")
    refuse_transactional(table)
    quick = QuickStatistics(call.folders, context, parameters=table.get("parameters"))
    sent, schema_name = table.get("tableName", ""), present_schema(table.get("dbName", ""))
    if not is_hive_name(sent):
        raise InvalidInput(f"{sent} is not a valid object name")
    schema = call.reader.catalog.schema(schema_name)
    if schema is None:
        raise invalid_object(table.get("dbName", ""))
    call.reader.access.require(Privilege.USAGE | Privilege.CREATE, schema)
    require_serde(table.get("sd") or {})
    # In the folder of its schema, wherever that is: a client may have written there already.
    default = f"{call.metastore.location_of_schema(schema).rstrip('/')}/{table_folder(sent)}"
    client = read_table(table, default_location=hadoop_location(default))
    named = client.location or default
    is_made = not call.folders.exists(named)
    constraints = read_constraints(call.args)
    if constraints:
        with suppress(ObjectNotFound):  # the command reports it, and can see the new table itself
            await require_parents(call, constraints)
    if call.reader.catalog.relation_in(schema.id, sent) is not None:
        raise AlreadyExists(f"Table {sent} already exists")
    commands = [_creation(call, schema_name, client, default=default)]
    if constraints:
        commands.append(AddConstraints(schema=schema_name, table=sent, constraints=constraints))
    try:
        with _removing_folder(call, schema_name, sent, client.location if is_made else None):
            applied = call.execute(*commands)
    except AlreadyExists as error:
        if constraints:
            raise invalid_object(error.message) from None
        raise AlreadyExists(f"Table {sent} already exists") from None
    except ObjectNotFound as error:
        if not constraints:
            raise
        raise invalid_object(error.message) from None
    created = applied.catalog.table(schema_name, sent)
    if created is None:
        return
    counted = client.counted
    with completing(applied, _UNCOUNTED):
        if is_counted_table(created):
            counted = quick.of_new(counted, call.metastore.location(created), is_made=is_made)
        if without_time(counted):
            _set_counted(call, created, counted)


def _creation(call: Call, schema: str, client: ClientTable, *, default: str) -> Command:
    definition = replace(client.definition, owner=call.owner(client.definition.owner))
    if not isinstance(definition, TableDefinition):
        return CreateView(schema=schema, definition=definition)
    definition = replace(definition, any_default=True)
    location = client.location or default
    own = call.folders.same(location, default) and call.folders.is_own_table(default)
    if definition.kind is TableKind.MANAGED and own:
        # Otherwise the client has written nothing there. Spark names the folder as its ``path``.
        is_named = client.location or (PATH, DERIVED) in definition.storage.serde_properties
        replaced = _dropped_holder(call, default, table=definition.name) if is_named else None
        return CreateTable(schema=schema, definition=definition, instead_of=replaced)
    if definition.kind is TableKind.MANAGED:
        definition = replace(definition, location=location)
    require_places(call.reader.access, call.folders, [definition.location or ""])
    _make_folder(call, definition.location)
    return CreateTable(schema=schema, definition=definition)


def _dropped_holder(call: Call, place: str, *, table: str) -> int | None:
    """The dropped table that has ``place``, or None. Raises `InvalidInput` if one in use has it.

    If there is no folder, the client has written nothing there, and any place will do for it.
    """
    at = call.folders.place(place)
    if call.folders.is_missing(at):
        return None
    catalog = call.metastore.catalogs.latest_catalog()
    call.metastore.projector.project_up_to(catalog.version)
    holders = call.metastore.store.sql_store.tables_at([at]).get(at, set())
    for holder in map(catalog.table_by_id, holders):
        if holder is not None and holder.name.lower() != table.lower():
            schema, name = catalog.schema_by_id(holder.schema_id), "another table"
            if schema is not None and call.reader.access.reaches(schema):
                name = f"table {catalog.qualified_name(holder)}"
            raise InvalidInput(
                f"{table} cannot be created at {place}, which is the folder of {name}; move that "
                "table, or choose another name"
            )
    return min(holders) if len(holders) == 1 else None


def _make_folder(call: Call, location: str | None) -> None:
    """Create the folder of an external table, if the node may: some clients do not create it."""
    if location is not None and call.folders.may_make(location):
        with suppress(StrandlineError):
            call.folders.make(location)


@contextmanager
def _removing_folder(call: Call, schema: str, table: str, made: str | None) -> Iterator[None]:
    """Remove the folder that was ``made`` for a table, if it is empty, when the table is refused.

    It stays if it is not known whether the table exists, or if another client has just created the
    table there.
    """
    try:
        yield
    except (AlreadyExists, InvalidInput, NotFound, PermissionDenied):
        holder = call.metastore.catalogs.latest_catalog().table(schema, table)
        place = None if holder is None else holder.location
        is_used = place is not None and made is not None and call.folders.same(place, made)
        if made is not None and not is_used and call.folders.may_make(made):
            with suppress(StrandlineError):
                call.folders.remove_empty(made)
        raise


@changes("drop_table", "drop_table_with_environment_context", "drop_table_req")
async def drop_table(call: Call) -> None:
    sent, name = call.text("db_name"), call.text("name" if "name" in call.args else "tbl_name")
    missing = ObjectNotFound(f"{sent}.{name} table not found")
    schema = present_schema(sent)
    catalog = call.reader.catalog
    parent = call.reader.schema(call.reader.present, schema)
    relation = None if parent is None else catalog.relation_in(parent.id, name)
    if relation is None:
        raise missing
    # In this order: to sort the names of a large schema costs more than the rest of a drop.
    if call.before.cascades(schema, name):
        first = catalog.relation_names(schema)[0]
        if name.lower() == first.lower():
            refuse_cascade(catalog, schema)
    is_transactional = isinstance(relation, TableDescriptor) and relation.transactional
    if is_transactional and call.before.drop_replaces(schema, name):
        raise refuse_replacement(f"{schema}.{name}")
    delete_data = bool(call.args.get("deleteData", False))
    try:
        call.execute(
            DropTable(
                schema=schema,
                table=name,
                keep_data=not delete_data,
                purge=delete_data and if_purge(call.args.get("environment_context")),
            )
        )
    except ObjectNotFound:
        raise missing from None


def _alter_options(call: Call) -> dict[str, str]:
    """The options in the environment context of an alter; a request may have them beside it."""
    options = dict((call.args.get("environment_context") or {}).get("properties") or {})
    if call.args.get("cascade"):
        options[CASCADE] = "true"
    for field, option in _EXPECTED:
        if call.args.get(field) is not None:
            options[option] = call.args[field]
    return options


@changes(
    "alter_table",
    "alter_table_with_environment_context",
    "alter_table_with_cascade",
    "alter_table_req",
)
async def alter_table(call: Call) -> None:
    sent, name, table = call.text("db_name"), call.text("tbl_name"), call.struct("table")
    schema, options = present_schema(sent), _alter_options(call)
    if not is_hive_name(table.get("tableName", "")):
        raise IllegalChange(f"{table.get('tableName')} is not a valid object name")
    try:
        scope, old = await call.reader.relation(sent, name, need=WRITING)
    except ObjectNotFound as error:
        raise IllegalChange(error.message) from None
    refuse_transactional(table, altered=old)
    if table.get("sd") is not None:
        require_serde(table["sd"])
    context = {"properties": options}
    statistics = QuickStatistics(call.folders, context, parameters=table.get("parameters"))
    location: str | None = None
    counted: Properties = ()
    if isinstance(old, TableDescriptor):
        location, counted = (
            await call.reader.shown_location(old),
            await call.reader.counted(scope.point, old),
        )
    expected = options.get(EXPECTED_KEY)
    command = AlterRelation(
        schema=schema,
        name=name,
        relation_id=old.id,
        request=table,
        location=location,
        counted=counted,
        expected=None if expected is None else (expected, options.get(EXPECTED_VALUE)),
        place=call.metastore.default_location,
    )
    if expected is not None and (table.get("parameters") or {}).get(expected) is None:
        raise meta_exception(f"New value for expected key {expected} is not set")
    try:
        new_table = command.wanted(old)
        call.owner(new_table.definition.owner)  # no user can have a longer name
        cascades = options.get(CASCADE, "").lower() == "true"
        if cascades:  # it redefines partitions, as an alter of them does, if the table stays as is
            call.reader.access.require(Privilege.UPDATE, old)
        is_placed_anew = _is_placed_anew(new_table, location)
        named = new_table.location or ""
        with _placing(call, command, old, named) if is_placed_anew else nullcontext():
            applied = call.execute(command)
    except (InvalidInput, WriteConflict) as error:
        # What is wrong with the alter tells columns and parameters, and a writer may not read them.
        call.reader.access.require(Privilege.SELECT, old)
        if isinstance(error, WriteConflict):
            raise meta_exception(error.message) from None
        raise invalid_operation(error.message) from error
    new = applied.catalog.table_by_id(old.id)
    if new is None or not isinstance(old, TableDescriptor) or new.transactional:
        return
    with completing(applied, _UNCOUNTED):
        changed = changed_columns(old, new)
        if cascades:
            await give_table_columns(call, new, changed=changed)
        new_counted = new_table.counted
        renamed = (new.schema_id, new.name.lower()) != (old.schema_id, old.name.lower())
        if is_counted_table(new) and not (renamed and new.kind is TableKind.MANAGED):
            accurate = accurate_columns(dict(new_counted))
            new_counted = statistics.of_altered(new_counted, call.metastore.location(new))
            if accurate and renamed and not is_placed_anew:  # as in Hive, they follow the rename
                new_counted = with_accurate(new_counted, accurate)
        new_counted = without_accurate(new_counted, changed)
        if without_time(new_counted) != without_time(counted):
            _set_counted(call, new, new_counted)


def _is_placed_anew(new_table: ClientTable, location: str | None) -> bool:
    """Whether the client names another location than ``location``, that of the table."""
    named = new_table.location
    return bool(named and location is not None and not same_location(named, location))


def _placing(
    call: Call, command: AlterRelation, old: Relation, named: str
) -> AbstractContextManager[None]:
    """For a block that gives a table the location ``named`` by the client, if it may do so."""
    call.reader.access.require_ownership(old)
    call.folders.refuse_former(named)
    call.folders.refuse_dropped(named)
    if not isinstance(old, TableDescriptor) or not command.relocates(call.reader.catalog, old):
        return nullcontext()
    require_places(call.reader.access, call.folders, [named])
    if old.transactional or not old.partition_columns:
        return nullcontext()
    # As in Hive, another location of a table does not concern the partitions that exist.
    location = command.location or ""
    return partitions_staying(call.metastore, old, location=location, author=call.user)


def _set_counted(call: Call, table: TableDescriptor, counted: Properties) -> None:
    """Set the counted parameters, and the time of the last change."""
    dated = properties(time_of_change() | dict(counted))
    call.metastore.store.set_parameters(table.id, dated, author=call.user)
