"""Methods that read tables and views, and their columns."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

from strandline import work
from strandline.catalog import DEFAULT_DATABASE, Relation
from strandline.catalog.catalog import is_shown
from strandline.errors import InvalidInput, ObjectNotFound
from strandline.metastore.hive.hive_reader import Scope, units_of_record
from strandline.metastore.hive.names import without_catalog
from strandline.metastore.hive.partition_filter import (
    And,
    Expression,
    Or,
    bind_filter,
    parse_filter,
)
from strandline.metastore.hive.registry import (
    Call,
    invalid_operation,
    meta_exception,
    reads,
    unknown_database,
    unknown_table,
)
from strandline.metastore.hive.statistics import statistics_of_table
from strandline.metastore.hive.storage_descriptors import Struct
from strandline.metastore.hive.table_structs import (
    EXTERNAL_TABLE,
    MANAGED_TABLE,
    TABLE_TYPES,
    VIRTUAL_VIEW,
)
from strandline.metastore.off_loop import off_loop, off_loop_for
from strandline.metastore.table_parameters import is_derived
from strandline.model.descriptors import TableKind, ViewDescriptor
from strandline.model.types import INT, STRING, DataType

_UNITS_PER_TABLE = 20
"""The cost of a ``Table``, in units of `strandline.work`."""


def shown_type(scope: Scope, relation: Relation) -> str:
    if isinstance(relation, ViewDescriptor) or scope.shows_as_view(relation):
        return VIRTUAL_VIEW
    external = relation.kind is TableKind.EXTERNAL or relation.transactional
    return EXTERNAL_TABLE if external else MANAGED_TABLE


async def _names(call: Call, scope: Scope, pattern: str | None) -> list[str]:
    names = await call.reader.relation_names(scope.point, scope.schema)
    return await call.reader.matching_names(sorted(map(str.lower, names)), pattern)


def _relations(scope: Scope, names: Collection[str]) -> list[Relation]:
    work.spend(len(names))
    relations = (scope.catalog.relation(scope.schema.name, name) for name in names)
    return [relation for relation in relations if relation is not None]


@reads("get_table", "get_table_req")
async def get_table(call: Call) -> Struct:
    scope, relation = await call.reader.relation(call.text("db_name"), call.text("tbl_name"))
    struct = await call.reader.struct(scope, relation)
    if call.args.get("getColumnStats"):
        statistics = await statistics_of_table(call, scope, relation)
        struct = {**struct, "colStats": statistics}
    return struct


@reads("get_tables", "get_all_tables")
async def get_tables(call: Call) -> list[str]:
    """Return the names that match a pattern; none if the schema does not exist."""
    scope = await call.reader.find_scope(call.text("db_name"))
    return [] if scope is None else await _names(call, scope, call.args.get("pattern"))


@reads("get_tables_by_type")
async def get_tables_by_type(call: Call) -> list[str]:
    table_type = call.text("tableType")
    if table_type not in TABLE_TYPES:
        raise meta_exception(
            f"{table_type} is not a table type; the types are {', '.join(TABLE_TYPES)}"
        )
    scope = await call.reader.find_scope(call.text("db_name"))
    if scope is None:
        return []
    names = await _names(call, scope, call.args.get("pattern"))
    relations = _relations(scope, names)
    return [r.name.lower() for r in relations if shown_type(scope, r) == table_type]


@reads("get_table_names_by_filter")
async def get_table_names_by_filter(call: Call) -> list[str]:
    """Return the names of the tables that a filter on owner, last access and parameters chooses."""
    text = call.args.get("filter")
    if text is None:
        raise invalid_operation("null cannot apply null filter")
    scope = await call.reader.find_scope(call.text("db_name"))
    if scope is None:
        return []
    await off_loop()
    chooses, keys = table_chooser(text)
    names = await _names(call, scope, None)
    parameters = {key.removeprefix(_PARAMETER) for key in keys if key.startswith(_PARAMETER)}
    stored = {parameter for parameter in parameters if not is_derived(parameter)}
    if stored:  # few tables have them, and only these are rendered
        relations = _relations(scope, names)
        names = [each.name for each in relations if stored <= dict(each.properties).keys()]
    tables: Iterable[Struct]
    if keys <= {_OWNER}:  # which needs no rendering
        readable = (each for each in _relations(scope, names) if call.reader.may_read(scope, each))
        tables = ({"tableName": each.name.lower(), "owner": each.owner} for each in readable)
    else:
        tables = await _structs(call, scope, names)
    chosen = [table["tableName"] for table in tables if chooses(table)]
    limit = call.args.get("max_tables", -1)
    return chosen if limit < 0 else chosen[:limit]


@reads("get_table_meta")
async def get_table_meta(call: Call) -> list[Struct]:
    """Return type and comment of the matching tables in all matching schemas.

    As in the other lists, a user sees the names in the schemas that it reaches, and what a table
    says about itself if it may read the table. A schema of the past matches its whole name only.
    """
    await off_loop()
    types = call.args.get("tbl_types") or TABLE_TYPES
    rows: list[Struct] = []
    for scope in work.spending(await _matching_scopes(call)):
        names = await _names(call, scope, call.args.get("tbl_patterns"))
        for relation in _relations(scope, names):
            row: Struct = {
                "dbName": scope.name,
                "tableName": relation.name.lower(),
                "tableType": shown_type(scope, relation),
                "catName": DEFAULT_DATABASE,
            }
            if relation.comment is not None and call.reader.may_read(scope, relation):
                work.spend(work.units_of_bytes(len(relation.comment)))
                row["comments"] = relation.comment
            if row["tableType"] in types:
                rows.append(row)
    return rows


async def _matching_scopes(call: Call) -> list[Scope]:
    """The schemas that match ``db_patterns``, of those that the user reaches."""
    patterns = call.args.get("db_patterns")
    pattern = None if patterns is None else without_catalog(patterns)
    if pattern is not None and "@" in pattern:  # no present schema has such a name
        past = await call.reader.find_scope(pattern)
        return [] if past is None else [past]
    point, access = call.reader.present, call.reader.access
    shown = {schema.name.lower(): schema for schema in point.catalog.schemas() if is_shown(schema)}
    names = await call.reader.matching_names(list(shown), pattern)
    return [
        Scope(name, shown[name], point)
        for name in work.spending(names)
        if access.reaches(shown[name])
    ]


@reads("get_table_objects_by_name")
async def get_table_objects_by_name(call: Call) -> list[Struct]:
    """Return those of the named tables that exist and that the user may read, each once."""
    name = call.text("db_name")
    if call.args.get("tbl_names") is None:
        raise invalid_operation(f"{name} cannot find null tables")
    names = call.texts("tbl_names")
    if not names:
        return []  # also without the database: PyIceberg sends no names to list a missing namespace
    scope = await call.reader.find_scope(name)
    if scope is None:
        raise unknown_database(f"Could not find database {name}")
    return await _structs(call, scope, names)


@reads("get_table_objects_by_name_req")
async def get_table_objects_by_name_req(call: Call) -> Struct:
    name, names = call.text("db_name"), call.args.get("tbl_names")
    scope = await call.reader.find_scope(name)
    if scope is None:
        raise unknown_database(f"Could not find database {name}")
    if names is None:
        names = await _names(call, scope, call.args.get("tablesPattern"))
    return {"tables": await _structs(call, scope, names)}


async def _structs(call: Call, scope: Scope, names: Iterable[str]) -> list[Struct]:
    distinct_names = dict.fromkeys(name.lower() for name in names)
    units_of_records = sum(units_of_record(scope, name) for name in distinct_names)
    await off_loop_for(len(distinct_names) * _UNITS_PER_TABLE + units_of_records)
    work.spend(units_of_records)
    relations = [call.reader.find_relation(scope, name) for name in work.spending(distinct_names)]
    pairs = [pair for pair in relations if pair is not None and call.reader.may_read(*pair)]
    work.spend(len(pairs) * _UNITS_PER_TABLE)
    await off_loop_for(sum(len(relation.columns) for _, relation in pairs))
    structs: list[Struct] = []
    for of_relation, relation in pairs:
        try:
            structs.append(await call.reader.struct(of_relation, relation))
        except ObjectNotFound:
            present = call.metastore.catalogs.latest_catalog()
            if scope.is_past or present.table_by_id(relation.id) is not None:
                raise
            # It was dropped since the request began.
    return structs


@reads("get_fields", "get_fields_with_environment_context", "get_fields_req")
async def get_fields(call: Call) -> list[Struct]:
    """Return the columns without the partition keys."""
    columns: list[Struct] = (await _described(call))["sd"]["cols"]
    return columns


@reads("get_schema", "get_schema_with_environment_context", "get_schema_req")
async def get_schema(call: Call) -> list[Struct]:
    """Return the columns, partition keys last."""
    struct = await _described(call)
    return [*struct["sd"]["cols"], *struct["partitionKeys"]]


async def _described(call: Call) -> Struct:
    names = call.text("db_name"), call.text("tbl_name")
    try:
        return await call.reader.struct(*await call.reader.relation(*names))
    except ObjectNotFound as error:
        raise unknown_table(error.message) from error


_OWNER = "hive_filter_field_owner__"
_LAST_ACCESS = "hive_filter_field_last_access__"
_PARAMETER = "hive_filter_field_params__"


def table_chooser(text: str) -> tuple[Callable[[Mapping[str, Any]], bool], set[str]]:
    """Return a function that tells whether ``text`` chooses a ``Table``. Raises `InvalidInput`.

    Also returns the keys of its conditions. A table is chosen only if it has all the parameters
    that are among them.
    """
    expression = parse_filter(text)
    keys = list(dict.fromkeys(_keys(expression)))
    chooses = bind_filter(expression, [(key, _type(key)) for key in keys])
    required = [key.removeprefix(_PARAMETER) for key in keys if key.startswith(_PARAMETER)]

    def chosen(table: Mapping[str, Any]) -> bool:
        # As in Hive, also those beside an `or`.
        has_all = all(name in (table.get("parameters") or {}) for name in required)
        return has_all and chooses([_value(table, key) for key in keys])

    return chosen, set(keys)


def _keys(expression: Expression) -> Iterator[str]:
    if isinstance(expression, And | Or):
        for part in expression.parts:
            yield from _keys(part)
    else:
        yield expression.key


def _type(key: str) -> DataType:
    if key == _LAST_ACCESS:
        return INT
    if key == _OWNER or (key.startswith(_PARAMETER) and key != _PARAMETER):
        return STRING
    raise InvalidInput(
        f"Invalid filter: {key} is not {_OWNER}, {_LAST_ACCESS} or {_PARAMETER} with a name"
    )


def _value(table: Mapping[str, Any], key: str) -> str:
    if key == _OWNER:
        return str(table["owner"] or "")
    if key == _LAST_ACCESS:
        return str(table.get("lastAccessTime", 0))
    return str(table["parameters"][key.removeprefix(_PARAMETER)])
