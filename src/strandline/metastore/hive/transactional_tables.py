"""What a client of the Hive protocol may do with a transactional table, besides reading it.

The client sees a view (`snapshot_views`), and Spark itself refuses to write to a view. A client may
set parameters and the comment, add columns at the end, rename the table and drop it. Everything
else is refused, with a message that says what to do: strandline's own session changes other columns
and writes rows.

In events, the table is an external table in Hive's sense, without a ``transactional`` parameter.
Its format does not exist (`READ_INSTEAD`), so a client that reads events cannot read the files.

A schema with a transactional table cannot be dropped with CASCADE, which names no table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from strandline.catalog import Catalog, Relation
from strandline.catalog.commands import TableDefinition, ViewDefinition
from strandline.errors import IllegalChange, UnsupportedOperation
from strandline.metastore.hive.parameters import HIVE_PROVIDER, PATH, schema_parameters
from strandline.metastore.hive.past_tables import NOT_OF_A_TABLE
from strandline.metastore.hive.session_tables import TEXT_SERDE
from strandline.metastore.hive.snapshot_views import MARK, shown_as_view
from strandline.metastore.hive.storage_descriptors import (
    PLACEHOLDER_COLUMNS,
    Struct,
    read_fields,
    read_storage,
)
from strandline.metastore.hive.table_structs import ClientTable, as_defined, table_struct
from strandline.metastore.table_parameters import (
    EXTERNAL,
    LAST_DDL_TIME,
    PROVIDER,
    SCHEMA,
    TRANSACTIONAL,
    is_counted,
    says_transactional,
)
from strandline.model.descriptors import (
    Properties,
    StorageFormat,
    TableDescriptor,
    TableKind,
    properties,
)

PROVIDER_NAME = "strandline"
READ_INSTEAD = "This is a transactional table: read and write it with strandline.spark.Tables"
"""The format of a transactional table in an event."""

_STORAGE = StorageFormat(
    input_format=READ_INSTEAD,
    output_format=READ_INSTEAD,
    # A class that Hive's client has: without one, the client shows no columns.
    serde=TEXT_SERDE,
)


def transactional_struct(table: TableDescriptor, *, schema: str, location: str) -> Struct:
    """Return the ``Table`` of a transactional table in an event. All its columns are plain ones."""
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
    struct = table_struct(shown, schema=schema, location=location, counted=())
    struct["parameters"] |= schema_parameters(table.columns, (), defaults=False)
    return struct


def refuse_transactional(table: Mapping[str, Any], *, altered: Relation | None = None) -> None:
    """Refuse a request that would make a table transactional, with the reason.

    ``altered`` is the present table: an alter of a transactional table sends its provider back.
    """
    parameters = table.get("parameters") or {}
    if any(says_transactional(name, value) for name, value in parameters.items()):
        raise UnsupportedOperation(
            f"table {table.get('tableName')} cannot be created or altered with transactional=true: "
            "Hive's transactional tables are ORC files that Hive merges, and Spark does not read "
            "them; create a transactional table with strandline.spark.Tables instead"
        )
    if isinstance(altered, TableDescriptor) and altered.transactional:
        return
    if parameters.get(PROVIDER, "").lower() == PROVIDER_NAME:
        raise UnsupportedOperation(
            f"table {table.get('tableName')} cannot be given the provider {PROVIDER_NAME} through "
            "the Hive protocol; create a transactional table with strandline.spark.Tables instead"
        )


def refuse_content_change(name: str, what: str) -> UnsupportedOperation:
    """The error for a plain client that changes the content of the transactional table ``name``."""
    return UnsupportedOperation(
        f"{name} is a transactional table; a client of the Hive protocol cannot change its {what}. "
        "Change it with strandline.spark.Tables"
    )


def refuse_replacement(name: str) -> IllegalChange:
    """The error for a client that would drop the transactional table ``name`` to replace it."""
    return IllegalChange(
        f"{name} is a transactional table and cannot be replaced or overwritten; delete and "
        f"append rows with strandline.spark.Tables, or drop it: DROP TABLE {name} in Spark 4.3 (if "
        "you just ran that, run it again), Tables.drop with an older Spark"
    )


def refuse_cascade(catalog: Catalog, schema: str) -> None:
    """Raise `IllegalChange` if the schema has transactional tables, which CASCADE would drop."""
    names = [f"{schema}.{table.name}" for table in catalog.tables_of(schema) if table.transactional]
    if names:
        shown = ", ".join(names[:3]) + (", …" if len(names) > 3 else "")
        raise IllegalChange(
            f"schema {schema} cannot be dropped with CASCADE, because that would also drop "
            f"transactional tables: {shown}. Drop each by name first: DROP TABLE {names[0]} in "
            "Spark 4.3, Tables.drop with an older Spark"
        )


def redefined(
    old: TableDescriptor, request: Mapping[str, Any], wanted: ClientTable, *, name: str
) -> TableDefinition:
    """Return the definition that an alter of a transactional table requests; ``wanted`` is parsed.

    Raises `UnsupportedOperation` if the alter changes what such a client may not change.
    """
    view = wanted.definition
    if not isinstance(view, ViewDefinition) or not all(
        text.startswith(MARK) for text in (view.original_text, view.expanded_text)
    ):
        raise refuse_content_change(name, "type or text")
    shown = shown_as_view(old, schema="")
    sent = read_fields((request.get("sd") or {}).get("cols"))
    columns = read_fields(shown["sd"]["cols"])
    # Spark sends the placeholder if Hive's own parser cannot read the types.
    if sent != PLACEHOLDER_COLUMNS and sent[: len(columns)] != columns:
        raise refuse_content_change(name, "present columns")
    fixed = _changed_fact(request, shown=shown["parameters"])
    if fixed is None and _changes_format(view.storage, read_storage(shown["sd"], locations=())):
        fixed = "format"
    if fixed is not None:
        raise UnsupportedOperation(
            f"{name} is a transactional table and its {fixed} cannot be changed; a Hive client can "
            "change its name, owner, comment and other parameters"
        )
    return TableDefinition(
        name=old.name,
        columns=(*map(as_defined, old.columns), *view.columns[len(old.columns) :]),
        owner=view.owner,
        kind=old.kind,
        transactional=True,
        provider=old.provider,
        partition_columns=tuple(c.name for c in old.columns if c.id in old.partition_columns),
        storage=old.storage,
        location=old.location,
        properties=_kept_properties(old, view.properties),
        comment=view.comment,
    )


def _changed_fact(request: Mapping[str, Any], *, shown: Mapping[str, str]) -> str | None:
    """What the alter would change that the table's files and transactions decide, or None.

    ``shown`` are the parameters that the client is shown. What it sends back unchanged is accepted.
    """
    storage = request.get("sd") or {}
    serde_parameters = (storage.get("serdeInfo") or {}).get("parameters") or {}
    if storage.get("location") or serde_parameters.get(PATH):
        return "location"
    sent = request.get("parameters") or {}
    for name, value in sent.items():
        if value == shown.get(name):
            continue
        if name == PROVIDER and value.lower() != PROVIDER_NAME:
            return "provider"
        if name in (TRANSACTIONAL, EXTERNAL):
            return f"parameter {name}"
        if is_counted(name) and name != LAST_DDL_TIME:
            return f"statistics ({name})"
    return None


def _changes_format(sent: StorageFormat, shown: StorageFormat) -> bool:
    """Whether a client changed the format or the buckets that it was shown; it may leave them out.

    Hive's client writes 0 or -1 for no buckets.
    """
    return bool(
        {sent.input_format, sent.output_format, sent.serde}
        - {None, shown.input_format, shown.output_format, shown.serde}
        or set(sent.serde_properties) - set(shown.serde_properties)
        or sent.buckets > 0
        or sent.bucket_columns
        or sent.sort_columns
    )


def _kept_properties(old: TableDescriptor, sent: Properties) -> Properties:
    """The properties that the client sent, without those of a view, and those hidden from it."""
    kept_by_client = {name: value for name, value in sent if not name.startswith(NOT_OF_A_TABLE)}
    hidden = {
        name: value
        for name, value in old.properties
        if name == TRANSACTIONAL or name.startswith(NOT_OF_A_TABLE)
    }
    return properties(kept_by_client | hidden)
