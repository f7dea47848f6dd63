"""Conversion between Hive's ``Table`` structs and definitions of the catalog.

`read_table` splits the ``Table`` that a client sends into a definition, counted parameters and a
location, by the rule in `strandline.metastore.hive.parameters`. `table_struct` and `view_struct`
build the ``Table`` that a client gets, from a descriptor and from the two facts that the object
store has. A table that is created and read again has the form that Hive 2.3 would return: names in
lower case, except in Spark's schema; type and ``EXTERNAL`` that agree; and Hive's defaults in the
fields that the client did not set.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from strandline.catalog import DEFAULT_DATABASE
from strandline.catalog.commands import ColumnDefinition, TableDefinition, ViewDefinition
from strandline.errors import IllegalChange, InvalidInput, UnsupportedOperation
from strandline.metastore.hive.names import hadoop_location
from strandline.metastore.hive.parameters import (
    DERIVED,
    HIVE_PROVIDER,
    SparkSchema,
    TakenSchema,
    schema_parameters,
    split_parameters,
    take_schema,
)
from strandline.metastore.hive.session_tables import completed, completed_view
from strandline.metastore.hive.storage_descriptors import (
    NO_COMMENT,
    PLACEHOLDER_COLUMNS,
    HiveColumn,
    Struct,
    field_structs,
    hive_columns,
    int32,
    parse_column_type,
    plain_columns_of,
    read_fields,
    read_storage,
    shown_columns,
    spelled_type,
    storage_struct,
)
from strandline.metastore.table_parameters import (
    COMMENT,
    EXTERNAL,
    LAST_ACCESS,
    LAST_DDL_TIME,
    PROVIDER,
    RETENTION,
    SCHEMA,
)
from strandline.model.descriptors import (
    ColumnDescriptor,
    Properties,
    TableDescriptor,
    TableKind,
    ViewDescriptor,
    properties,
)
from strandline.model.type_text import hive_string, simple_string
from strandline.model.types import DataType

MANAGED_TABLE = "MANAGED_TABLE"
EXTERNAL_TABLE = "EXTERNAL_TABLE"
VIRTUAL_VIEW = "VIRTUAL_VIEW"
TABLE_TYPES = (
    MANAGED_TABLE,
    EXTERNAL_TABLE,
    VIRTUAL_VIEW,
    "INDEX_TABLE",
    "MATERIALIZED_VIEW",
)
"""All types that Hive knows. No table here has one of the last two."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientTable:
    """A table or view as a client described it.

    ``location`` is None for a view, or if the client named no location.
    """

    definition: TableDefinition | ViewDefinition
    counted: Properties
    location: str | None


def table_type_of(table: Mapping[str, Any]) -> str:
    """Return the type of a client's table. As in Hive, ``EXTERNAL`` = TRUE overrides the type.

    Raises `UnsupportedOperation` for types that do not exist here.
    """
    external = (table.get("parameters") or {}).get(EXTERNAL) == "TRUE"
    table_type = table.get("tableType")
    if table_type is None and table.get("viewOriginalText"):
        return VIRTUAL_VIEW
    if table_type in (None, MANAGED_TABLE, EXTERNAL_TABLE):
        return EXTERNAL_TABLE if external else MANAGED_TABLE
    if table_type == VIRTUAL_VIEW:
        return VIRTUAL_VIEW
    raise UnsupportedOperation(
        f"a table of type {table_type} cannot be created; use {MANAGED_TABLE}, {EXTERNAL_TABLE} or "
        f"{VIRTUAL_VIEW}"
    )


def read_table(
    table: Mapping[str, Any],
    *,
    default_location: str,
    old: TableDescriptor | ViewDescriptor | None = None,
    shown: Mapping[str, Any] | None = None,
    default_place: str | None = None,
    taken: TakenSchema | None = None,
) -> ClientTable:
    """Read a client's ``Table``. ``default_location`` is used if it names no location.

    For an alter, ``old`` is the table before it, ``shown`` what clients see of it, and
    ``default_place`` the default location under its new name, which Spark takes for that of a
    renamed table; ``taken`` is the result of `take_schema`.
    Raises `InvalidInput` for invalid columns and types, `UnsupportedOperation`, `IllegalChange`.
    """
    sd = table.get("sd")
    if sd is None:
        raise InvalidInput(f"the table {table.get('tableName')} has no storage descriptor")
    if sd.get("cols") is None:
        # Not the same as an empty list: an alter would drop all columns.
        raise InvalidInput(
            f"the storage descriptor of {table.get('tableName')} has no columns; send all of them"
        )
    kind = table_type_of(table)
    taken = taken or take_schema(table.get("parameters") or {})
    declared = read_fields(sd["cols"])
    if old is not None and shown is not None and not _has_other_text(table, old):
        _refuse_for_placeholder(old, declared=declared, sent=taken[0], shown=shown)
    schema, defining, counted = _parameters(table, shown, taken)
    comment = defining.pop(COMMENT, None)
    columns, partition_columns = _columns(table, schema, declared, old)
    plain = columns[: len(columns) - len(partition_columns)]
    location = None
    if sd.get("location") and kind != VIRTUAL_VIEW:
        location = hadoop_location(sd["location"])
    storage = read_storage(
        sd,
        hive_columns=None if declared == hive_columns(plain) else declared,
        locations=[place for place in (location or default_location, default_place) if place],
    )
    name, owner = table.get("tableName", "").lower(), table.get("owner", "")
    if kind == VIRTUAL_VIEW:
        view = ViewDefinition(
            name=name,
            columns=columns,
            original_text=table.get("viewOriginalText", ""),
            expanded_text=table.get("viewExpandedText", ""),
            owner=owner,
            storage=storage,
            properties=properties(defining),
            comment=comment,
        )
        return ClientTable(definition=view, counted=counted, location=None)
    provider = defining.get(PROVIDER, HIVE_PROVIDER)
    if provider != HIVE_PROVIDER:
        del defining[PROVIDER]
    external = kind == EXTERNAL_TABLE
    if external:
        del defining[EXTERNAL]
    definition = TableDefinition(
        name=name,
        columns=columns,
        owner=owner,
        kind=TableKind.EXTERNAL if external else TableKind.MANAGED,
        provider=provider,
        partition_columns=partition_columns,
        storage=storage,
        location=(location or default_location) if external else None,
        properties=properties(defining),
        comment=comment,
    )
    if table.get("lastAccessTime"):
        counted = properties([*counted, (LAST_ACCESS, str(table["lastAccessTime"]))])
    return ClientTable(definition=definition, counted=counted, location=location)


def _parameters(
    table: Mapping[str, Any], shown: Mapping[str, Any] | None, taken: TakenSchema
) -> tuple[SparkSchema | None, dict[str, str], Properties]:
    """Return Spark's schema of the table, the parameters that define it, and the counted ones."""
    schema, parameters = taken
    fields = (RETENTION, LAST_ACCESS)  # a client sends these as fields
    defining, counted = split_parameters({k: v for k, v in parameters.items() if k not in fields})
    if schema is not None:
        defining[SCHEMA] = DERIVED
        if shown is not None:
            schema = _followed(schema, table, shown)
        elif PROVIDER not in defining and table_type_of(table) != VIRTUAL_VIEW:
            schema = _restored(schema, table)
    if table.get("retention"):
        defining[RETENTION] = str(table["retention"])
    return schema, defining, counted


def _has_other_text(sent: Mapping[str, Any], old: TableDescriptor | ViewDescriptor) -> bool:
    """Whether a client gives a view another text, which decides the columns."""
    if isinstance(old, TableDescriptor):
        return False
    texts = sent.get("viewOriginalText") or "", sent.get("viewExpandedText") or ""
    return texts != (old.original_text, old.expanded_text)


def _refuse_for_placeholder(
    old: TableDescriptor | ViewDescriptor,
    *,
    declared: tuple[HiveColumn, ...],
    sent: SparkSchema | None,
    shown: Mapping[str, Any],
) -> None:
    """Raise `IllegalChange` if a client replaces columns that it does not see.

    It was shown the placeholder for them. Spark sees them nevertheless if it reads its own schema,
    and sends that.
    """
    name, text, _ = PLACEHOLDER_COLUMNS[0]
    is_hidden = read_fields(shown["sd"]["cols"]) == PLACEHOLDER_COLUMNS
    if not is_hidden or (name, text) in [
        (c.name.lower(), hive_string(c.type)) for c in old.columns
    ]:
        return
    if sent is None or sent == take_schema(shown["parameters"])[0]:
        replaces = declared != PLACEHOLDER_COLUMNS
    else:
        first = [(c.name.lower(), hive_string(c.type)) for c in sent.columns[:1]]
        replaces = first == [(name, text)]
    if replaces:
        raise IllegalChange(
            f"Hive clients are not shown the columns of {old.name}, but 'col' in place of all of "
            "them; nothing was changed. Change columns in a session of Strandline, or in Spark if "
            "it shows the columns"
        )


def _columns(
    table: Mapping[str, Any],
    schema: SparkSchema | None,
    declared: Sequence[HiveColumn],
    old: TableDescriptor | ViewDescriptor | None,
) -> tuple[tuple[ColumnDefinition, ...], tuple[str, ...]]:
    """Return all columns, partition columns last, and the names of the partition columns.

    Without Spark's schema, a client does not see all that a session defines for a column, such as
    NOT NULL. So the columns of ``old`` that it sends back keep that.
    """
    keys = read_fields(table.get("partitionKeys"))
    if schema is not None:
        names = schema.partition_columns
        if keys and [name for name, _, _ in keys] != [name.lower() for name in names]:
            raise InvalidInput(
                f"the partition keys {[name for name, _, _ in keys]} of {table.get('tableName')} "
                f"are not the partition columns {list(names)} in its Spark schema"
            )
        return schema.columns, names
    old_columns = () if old is None else tuple(map(as_defined, old.columns))
    old_keys = partition_columns_of(old) if isinstance(old, TableDescriptor) else ()
    if old_columns and declared == PLACEHOLDER_COLUMNS:
        columns = old_columns[: len(old_columns) - len(old_keys)]
    else:
        columns = _declared(declared, old_columns)
    key_columns = _declared(keys, old_columns, of="partition column")
    return columns + key_columns, tuple(column.name for column in key_columns)


def _followed(
    schema: SparkSchema, table: Mapping[str, Any], shown: Mapping[str, Any]
) -> SparkSchema:
    """Apply the changes that a client made in Hive's columns to Spark's schema.

    Such a client changes Hive's columns, and returns Spark's schema as it received it.
    """
    if take_schema(shown["parameters"])[0] != schema:
        return schema
    declared, keys = read_fields(table["sd"].get("cols")), read_fields(table.get("partitionKeys"))
    if declared not in (read_fields(shown["sd"]["cols"]), PLACEHOLDER_COLUMNS):
        schema = _with_declared(schema, declared)
    if keys and keys != read_fields(shown["partitionKeys"]):
        plain = schema.columns[: len(schema.columns) - len(schema.partition_columns)]
        new_keys = _declared(keys, schema.columns, of="partition column")
        schema = SparkSchema((*plain, *new_keys), tuple(key.name for key in new_keys))
    return schema


def _restored(schema: SparkSchema, table: Mapping[str, Any]) -> SparkSchema:
    """Apply Hive's columns to Spark's schema if they differ in a name or type, as Spark does.

    Another client has changed them since Spark wrote the schema, in the metastore from which this
    table is copied. Spark compares neither a view nor a table that has a provider.
    """
    declared = read_fields(table["sd"].get("cols"))
    if not declared or declared == PLACEHOLDER_COLUMNS:
        return schema
    plain = schema.columns[: len(schema.columns) - len(schema.partition_columns)]
    if len(plain) == len(declared) and all(map(_is_declared, plain, declared)):
        return schema
    return _with_declared(schema, declared)


def _is_declared(column: ColumnDefinition, declared: HiveColumn) -> bool:
    """Whether name and type agree, as far as Hive can spell the type."""
    name, text, _ = declared
    spelled = spelled_type(column.type)
    if column.name.lower() != name:
        return False
    if spelled is None or spelled.lower() == text.lower():
        return True
    try:
        return (spelled_type(parse_column_type(text)) or "").lower() == spelled.lower()
    except InvalidInput:
        return True  # Spark leaves out the backticks around the names of fields


def _with_declared(schema: SparkSchema, declared: Sequence[HiveColumn]) -> SparkSchema:
    """Return the schema with Hive's columns, as Spark wrote those whose type is the same."""
    comments = {column.name.lower(): column.comment for column in schema.columns}

    def comment_of(name: str, comment: str | None) -> str | None:
        known = comments.get(name)
        return known if comment == NO_COMMENT or (comment or None) == (known or None) else comment

    fields = [(name, text, comment_of(name, comment)) for name, text, comment in declared]
    keys = schema.columns[len(schema.columns) - len(schema.partition_columns) :]
    return SparkSchema((*_declared(fields, schema.columns), *keys), schema.partition_columns)


def _declared(
    declared: Sequence[HiveColumn], known_columns: Sequence[ColumnDefinition], *, of: str = "column"
) -> tuple[ColumnDefinition, ...]:
    """Return Hive's columns, as they are known if the type is the same."""
    known = {column.name.lower(): column for column in known_columns}
    columns = []
    for name, text, comment in declared:
        column = known.get(name)
        if column is None or text != _shown_type(column.type):
            data_type = parse_column_type(text, of=of)
            column = column or ColumnDefinition(name, data_type)
            if spelled_type(column.type) != spelled_type(data_type):
                column = replace(column, type=data_type)
        columns.append(replace(column, comment=comment))
    return tuple(columns)


def as_defined(column: ColumnDescriptor) -> ColumnDefinition:
    """The column as a client would define it, without its default, which an alter keeps anyway."""
    return ColumnDefinition(
        column.name, column.type, column.nullable, column.comment, metadata=column.metadata
    )


def _shown_type(data_type: DataType) -> str:
    return hive_string(data_type) or simple_string(data_type)


def partition_columns_of(table: TableDescriptor) -> tuple[ColumnDescriptor, ...]:
    count = len(table.partition_columns)
    return table.columns[len(table.columns) - count :] if count else ()


def partition_key_structs(table: TableDescriptor) -> list[Struct]:
    return field_structs(
        [
            (key.name.lower(), _shown_type(key.type), key.comment)
            for key in partition_columns_of(table)
        ]
    )


def table_struct(
    table: TableDescriptor, *, schema: str, location: str, counted: Properties
) -> Struct:
    """Return the ``Table`` of a plain table, as a client sees it in the schema named ``schema``."""
    location, table = hadoop_location(location), completed(table)
    parameters = _shown_parameters(table)
    if table.provider != HIVE_PROVIDER:
        parameters[PROVIDER] = table.provider
    external = table.kind is TableKind.EXTERNAL
    if external:
        parameters[EXTERNAL] = "TRUE"
    if parameters.get(SCHEMA) == DERIVED:
        names = [column.name for column in partition_columns_of(table)]
        del parameters[SCHEMA]
        parameters.update(schema_parameters(table.columns, names))
    struct: Struct = {
        **_relation_struct(table, schema=schema, parameters=parameters),
        "sd": storage_struct(
            table.storage,
            columns=shown_columns(table.storage, plain_columns_of(table)),
            location=location,
            table_location=location,
        ),
        "partitionKeys": partition_key_structs(table),
        "tableType": EXTERNAL_TABLE if external else MANAGED_TABLE,
    }
    return with_counted(struct, counted)


def with_counted(struct: Struct, counted: Properties) -> Struct:
    """Return the ``Table`` of a plain table with these counted parameters; ``struct`` has none."""
    parameters = struct["parameters"] | dict(counted)
    parameters.pop(LAST_ACCESS, None)
    last_access = _stored_number(counted, LAST_ACCESS)
    return struct | {"parameters": parameters, "lastAccessTime": last_access}


def view_struct(view: ViewDescriptor, *, schema: str) -> Struct:
    """Return the ``Table`` of a view, as a client sees it in the schema named ``schema``."""
    view = completed_view(view, schema=schema)
    parameters = _shown_parameters(view)
    if parameters.get(SCHEMA) == DERIVED:
        del parameters[SCHEMA]
        parameters.update(schema_parameters(view.columns, ()))
    return {
        **_relation_struct(view, schema=schema, parameters=parameters),
        "lastAccessTime": 0,
        "sd": storage_struct(
            view.storage,
            columns=shown_columns(view.storage, view.columns),
            location=None,
            table_location=None,
        ),
        "partitionKeys": [],
        "viewOriginalText": view.original_text or None,
        "viewExpandedText": view.expanded_text or None,
        "tableType": VIRTUAL_VIEW,
    }


def _shown_parameters(relation: TableDescriptor | ViewDescriptor) -> dict[str, str]:
    parameters = {LAST_DDL_TIME: str(relation.created)}
    parameters.update(relation.properties)
    parameters.pop(RETENTION, None)
    parameters.pop(LAST_ACCESS, None)
    if relation.comment is not None:
        parameters[COMMENT] = relation.comment
    return parameters


def _stored_number(stored: Properties, name: str) -> int:
    """A field that is stored as a parameter; 0 if that is not a number.

    Releases before 0.6.0 stored what a client sent as a parameter of that name.
    """
    try:
        number = int(dict(stored).get(name, "0"))
    except ValueError:
        return 0
    return number if -(1 << 31) <= number < 1 << 31 else 0


def _relation_struct(
    relation: TableDescriptor | ViewDescriptor, *, schema: str, parameters: Mapping[str, str]
) -> Struct:
    return {
        "tableName": relation.name.lower(),
        "dbName": schema,
        "owner": relation.owner or None,
        "createTime": int32(relation.created),
        "retention": _stored_number(relation.properties, RETENTION),
        "parameters": dict(parameters),
        "rewriteEnabled": False,
        "catName": DEFAULT_DATABASE,
    }
