"""Plain tables and views that a session created, shown as if Spark had created them.

The problem: a session names the columns and the provider of a table, and Spark records more.
Without the columns in ``spark.sql.sources.schema``, Spark takes a table of such a provider for one
whose columns it must find in the files; without ``path`` it finds no files; and without
``spark.sql.partitionProvider`` it does not ask for the partitions. In a table of Hive's, it takes
the columns to be all that Hive's say of them, and writes that down when it changes one. For a view,
Spark records in which schema it finds the tables that the text names without one; here, that is the
view's own.

The model: answers to Hive clients add what follows from the table (`completed`), so tables of older
releases are completed too. It is stored only when a client alters the table in a form of its own,
as Spark does: then it is a table like those that Spark created. A client that sends the answer back
stores nothing (`without_completion`), so ANALYZE TABLE makes no version.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from strandline.catalog.commands import TableDefinition, ViewDefinition
from strandline.metastore.hive.parameters import DERIVED, HIVE_PROVIDER, PATH
from strandline.metastore.hive.storage_descriptors import (
    PLACEHOLDER_COLUMNS,
    hive_columns,
    is_spelled_completely,
    plain_columns_of,
    says_all_of,
    shown_columns,
)
from strandline.metastore.table_parameters import SCHEMA, without_contradictions
from strandline.model.descriptors import (
    ColumnDescriptor,
    StorageFormat,
    TableDescriptor,
    ViewDescriptor,
    properties,
)
from strandline.model.type_text import hive_string

D = TypeVar("D", TableDefinition, ViewDefinition)
R = TypeVar("R", TableDescriptor, ViewDescriptor)

_OF_PARQUET = "org.apache.hadoop.hive.ql.io.parquet"
_OF_ORC = "org.apache.hadoop.hive.ql.io.orc"
TEXT_SERDE = "org.apache.hadoop.hive.serde2.lazy.LazySimpleSerDe"
UNREAD_STORAGE = StorageFormat(
    input_format="org.apache.hadoop.mapred.SequenceFileInputFormat",
    output_format="org.apache.hadoop.hive.ql.io.HiveSequenceFileOutputFormat",
    serde=TEXT_SERDE,
)
"""What Spark records for a view, and for files that Hive cannot read."""
_ONLY_FOR_SPARK = replace(UNREAD_STORAGE, hive_columns=PLACEHOLDER_COLUMNS)
_FORMATS = {
    "parquet": StorageFormat(
        input_format=f"{_OF_PARQUET}.MapredParquetInputFormat",
        output_format=f"{_OF_PARQUET}.MapredParquetOutputFormat",
        serde=f"{_OF_PARQUET}.serde.ParquetHiveSerDe",
    ),
    "orc": StorageFormat(
        input_format=f"{_OF_ORC}.OrcInputFormat",
        output_format=f"{_OF_ORC}.OrcOutputFormat",
        serde=f"{_OF_ORC}.OrcSerde",
    ),
    **dict.fromkeys(("avro", "csv", "json", "text"), _ONLY_FOR_SPARK),
}
"""The format of each provider whose files Spark reads with the columns of the table."""

VIEW_NAMESPACE = {
    "view.catalogAndNamespace.numParts": "2",
    "view.catalogAndNamespace.part.0": "spark_catalog",
}
VIEW_SCHEMA = "view.catalogAndNamespace.part.1"
"""The schema in which Spark looks up the tables that a view's text names without a schema."""
VIEW_SCHEMA_MODE, COMPENSATION = "view.schemaMode", "COMPENSATION"
"""What Spark does if the query of a view has other columns; then it casts to those of the view."""
_SERDE_PROPERTIES = {PATH: DERIVED, "serialization.format": "1"}
_PARTITION_PROVIDER = ("spark.sql.partitionProvider", "catalog")


def completed(table: TableDescriptor) -> TableDescriptor:
    """``table`` with what Spark would have recorded, if a session created it.

    In any case without the parameters that contradict the table.
    """
    consistent = without_contradictions(table.properties)
    if consistent != table.properties:
        table = replace(table, properties=consistent)
    provider = table.provider.lower()
    if table.transactional or SCHEMA in dict(table.properties):
        return table
    if provider == HIVE_PROVIDER:
        return _with_parameters(table) if _hides_facts(table) else table
    written = _FORMATS.get(provider)
    if written is None or _has_inferred_columns(table):
        return table
    storage = replace(
        table.storage,
        serde_properties=properties(_SERDE_PROPERTIES | dict(table.storage.serde_properties)),
    )
    if not _has_own_format(storage):
        declared = written.hive_columns
        if declared == hive_columns(plain_columns_of(table)):
            declared = None  # as it is read when a client sends it back
        storage = replace(
            storage,
            input_format=written.input_format,
            output_format=written.output_format,
            serde=written.serde,
            hive_columns=declared,
        )
    added = [_PARTITION_PROVIDER] if table.partition_columns else []
    return replace(_with_parameters(table, *added), storage=storage)


def _with_parameters(table: TableDescriptor, *added: tuple[str, str]) -> TableDescriptor:
    """``table`` with Spark's schema and the ``added`` parameters, unless it has those."""
    return replace(
        table, properties=properties({SCHEMA: DERIVED} | dict(added) | dict(table.properties))
    )


def _has_own_format(storage: StorageFormat) -> bool:
    return storage.names_format or storage.hive_columns is not None


def _has_inferred_columns(table: TableDescriptor) -> bool:
    """Whether Spark finds the columns in the files, and has declared a placeholder for them."""
    columns = hive_columns(plain_columns_of(table))
    is_declared = _has_own_format(table.storage) and columns in ((), PLACEHOLDER_COLUMNS)
    return is_declared and not _hides_facts(table)


def _hides_facts(table: TableDescriptor) -> bool:
    """Whether Hive's columns do not say all about those of the table, such as NOT NULL."""
    if not all(map(_is_plain, table.columns)):
        return True
    if table.storage.hive_columns is None:
        return not all(is_spelled_completely(column.type) for column in table.columns)
    plain = plain_columns_of(table)
    texts = [text for _, text, _ in shown_columns(table.storage, plain)]
    texts += [hive_string(key.type) or "" for key in table.columns[len(plain) :]]
    if len(texts) != len(table.columns):
        return True
    types = [column.type for column in table.columns]
    return not all(map(says_all_of, texts, types))


def _is_plain(column: ColumnDescriptor) -> bool:
    """Whether a name in lower case, a type and a comment say all about a column."""
    is_nullable = column.nullable and column.default is None and not column.metadata
    return is_nullable and column.name == column.name.lower()


def completed_view(view: ViewDescriptor, *, schema: str) -> ViewDescriptor:
    """`completed` for a view. ``schema`` is the name by which a client asked for its schema."""
    stored = dict(view.properties)
    if view.storage != StorageFormat() or SCHEMA in stored or VIEW_NAMESPACE.keys() & stored.keys():
        return view
    added = {SCHEMA: DERIVED, **VIEW_NAMESPACE, VIEW_SCHEMA: schema}
    return replace(view, properties=properties(added | stored))


def without_completion(wanted: D, *, old: R, shown: R) -> D:
    """``wanted``, which a client sent for ``old``, without what only ``shown`` has."""
    if wanted.storage != shown.storage:
        return wanted
    added = set(shown.properties) - set(old.properties)
    return replace(
        wanted,
        storage=old.storage,
        properties=tuple(pair for pair in wanted.properties if pair not in added),
    )
