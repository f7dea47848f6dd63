"""Transactional tables, as clients see them that know nothing of transactions.

Such a client may see the table but not touch its content: it would list files of open and aborted
transactions. So the answer is an external table in Hive's sense, without a ``transactional``
parameter, in a format that does not exist: `READ_INSTEAD`. When Spark plans to read, write or alter
the table, it takes this text for the name of a class, does not find the class, and shows the name,
which says what to do. To describe, find or drop the table Spark looks for no class, so these work.

Rejected: a provider that does not exist. Spark looks for it first, whatever the statement is: then
even ``DROP TABLE IF EXISTS`` and ``tableExists`` fail, and the message asks to install a package.

The first field of the schema carries the table's identity as metadata, for our own data source,
which gets nothing else from Spark: ``sales.orders@42;thrift://host:9083``, where 42 is the catalog
version of the answer.

Plain clients may use DDL on the table: add columns, set parameters, rename, drop. A schema with a
transactional table is not dropped with CASCADE, which names no table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from strandline.catalog import Catalog, Relation
from strandline.catalog.commands import ColumnDefinition, TableDefinition
from strandline.errors import IllegalChange, UnsupportedOperation
from strandline.metastore.hive.names import same_location
from strandline.metastore.hive.parameters import (
    DERIVED,
    EXTERNAL,
    HIVE_PROVIDER,
    PROVIDER,
    SCHEMA,
    TRANSACTIONAL,
    schema_parameters,
    without_time,
)
from strandline.metastore.hive.storage_descriptors import Struct
from strandline.metastore.hive.table_structs import EXTERNAL_TABLE, ClientTable, table_struct
from strandline.model.descriptors import (
    Properties,
    StorageFormat,
    TableDescriptor,
    TableKind,
    properties,
)

PROVIDER_NAME = "strandline"
READ_INSTEAD = "This is a transactional table: read and write it with strandline.spark.Tables"
"""The format of a transactional table, and what Spark shows to the user."""

_STORAGE = StorageFormat(
    input_format=READ_INSTEAD,
    output_format=READ_INSTEAD,
    # A class that Hive's client has: without it, it shows no columns.
    serde="org.apache.hadoop.hive.serde2.lazy.LazySimpleSerDe",
)


def transactional_struct(
    table: TableDescriptor,
    *,
    schema: str,
    location: str,
    counted: Properties,
    identity: str | None,
) -> Struct:
    """The ``Table`` of a transactional table that a client sees under ``schema``.

    All its columns are plain ones: there are no partitions that a client could list.
    """
    hidden = {TRANSACTIONAL, SCHEMA, EXTERNAL}
    shown = replace(
        table,
        kind=TableKind.EXTERNAL,
        provider=HIVE_PROVIDER,
        partition_columns=(),
        storage=_STORAGE,
        properties=properties(
            (name, value) for name, value in table.properties if name not in hidden
        ),
    )
    struct = table_struct(shown, schema=schema, location=location, counted=counted)
    struct["parameters"] |= schema_parameters(table.columns, (), identity=identity, defaults=False)
    return struct


def refuse_transactional(table: Mapping[str, Any], *, altered: Relation | None = None) -> None:
    """Refuse a request that would make a table transactional, with the reason.

    ``altered`` is the present table: an alter of a transactional table sends its provider back.
    """
    parameters = table.get("parameters") or {}
    if parameters.get(TRANSACTIONAL, "").lower() == "true":
        raise UnsupportedOperation(
            f"table {table.get('tableName')} cannot be created or altered with transactional=true: "
            "Hive's transactional tables are ORC files that Hive merges, and Spark does not read "
            "them; create a transactional table with strandline's own session instead"
        )
    if isinstance(altered, TableDescriptor) and altered.transactional:
        return
    if parameters.get(PROVIDER, "").lower() == PROVIDER_NAME:
        raise UnsupportedOperation(
            f"table {table.get('tableName')} cannot be given the provider {PROVIDER_NAME} through "
            "the Hive protocol; create a transactional table with strandline's own session instead"
        )


def refuse_content_change(name: str, what: str) -> UnsupportedOperation:
    """The error for a plain client that changes the content of the transactional table ``name``."""
    return UnsupportedOperation(
        f"{name} is a transactional table and its {what} cannot be changed by a client that knows "
        "nothing of transactions; write to it with strandline's own session"
    )


def refuse_cascade(catalog: Catalog, schema: str) -> None:
    """Raise `IllegalChange` if the schema has transactional tables, which CASCADE would drop."""
    tables = [catalog.table(schema, name) for name in catalog.relation_names(schema)]
    names = [f"{schema}.{table.name}" for table in tables if table and table.transactional]
    if names:
        shown = ", ".join(names[:3]) + (", …" if len(names) > 3 else "")
        raise IllegalChange(
            f"schema {schema} is not dropped with CASCADE, because it would drop transactional"
            f" tables with it: {shown}. Drop each by its name first: DROP TABLE {names[0]}"
        )


def redefined(
    old: TableDescriptor,
    request: Mapping[str, Any],
    wanted: ClientTable,
    *,
    name: str,
    location: str,
    counted: Properties,
) -> TableDefinition:
    """The definition that an alter of a transactional table asks for.

    ``wanted`` is what the request says; ``location`` and ``counted`` are those of the present
    table. Raises `UnsupportedOperation` for what such a client may not change.
    """
    new = wanted.definition
    if not isinstance(new, TableDefinition) or request.get("tableType") != EXTERNAL_TABLE:
        raise refuse_content_change(name, "type")
    if wanted.location is not None and not same_location(wanted.location, location):
        raise refuse_content_change(name, "location")
    if new.provider != HIVE_PROVIDER:
        raise refuse_content_change(name, "provider")
    if new.partition_columns:
        raise refuse_content_change(name, "partitioning")
    if replace(new.storage, hive_columns=None, properties=(), serde_properties=()) != replace(
        _STORAGE, buckets=new.storage.buckets
    ):
        raise refuse_content_change(name, "format")
    if without_time(wanted.counted) != without_time(counted):
        raise refuse_content_change(name, "statistics")
    partitioned = set(old.partition_columns)
    return TableDefinition(
        name=old.name,
        columns=_ordered(old, new.columns),
        owner=new.owner,
        kind=old.kind,
        transactional=True,
        provider=old.provider,
        partition_columns=tuple(c.name for c in old.columns if c.id in partitioned),
        storage=old.storage,
        location=old.location,
        properties=_kept_properties(old, new.properties),
        comment=new.comment,
    )


def _ordered(
    old: TableDescriptor, columns: tuple[ColumnDefinition, ...]
) -> tuple[ColumnDefinition, ...]:
    """The columns with the partition columns last, as the catalog keeps them."""
    partitioned = {c.name.lower() for c in old.columns if c.id in old.partition_columns}
    plain = [column for column in columns if column.name.lower() not in partitioned]
    return (*plain, *(column for column in columns if column.name.lower() in partitioned))


def _kept_properties(old: TableDescriptor, new: Properties) -> Properties:
    """The properties that the client sent, and those that it does not see."""
    hidden = {name: value for name, value in old.properties if name == TRANSACTIONAL}
    sent = {name: value for name, value in new if not (name == SCHEMA and value == DERIVED)}
    if SCHEMA in dict(old.properties):
        sent[SCHEMA] = dict(old.properties)[SCHEMA]
    return properties(sent | hidden)
