"""Plain tables in a schema of the past: a view over a hidden table of their files.

The problem: the files of a plain table are written by clients, not by the metastore, and there is
one set of them. A client that learns where a table of ``sales@42`` lies can write there and so
change the table of today. Spark does: an ``INSERT`` into a table that is not partitioned asks for
nothing but the table. To refuse changes is then too late; the answer itself must prevent them.

The model. Under ``sales@42`` a plain table ``orders`` is answered as a view whose text selects its
columns at version 42 from a hidden table of the same schema, ``orders@files_42_1a2b3c4d``. The
hidden table is the real one: its format, location, columns and partitions at that version. Spark
plans the view as it would plan the table (filters, columns and partitions are pruned alike) and
itself refuses to write to a view.

What must stay true:

* No client comes across a hidden name. It is in no list, and the protocol creates no table with an
  ``@`` in its name.
* The name changes with all that the answer depends on: the version, the table, where its files lie
  now. Spark caches the file list of a table by its name.
* The view has the types that Spark reads. A file reader gives null wherever files may have null,
  also inside of types, so the view's types allow null everywhere.
* A new table has no place there either: Spark writes the rows of ``CREATE TABLE … AS SELECT`` into
  the folder of the schema before it asks for the table. So the location of the schema is of a
  scheme that no file system has (`NO_PLACE`).

Where privileges are enforced, a user who may not INSERT into a plain table gets the same answer in
the present, for the same reason: Spark would write first and ask later.

Two kinds of table are answered as they are: transactional tables, whose provider no plain client
has, and Iceberg tables, which change by a commit in the metastore and are read by their metadata.

Rejected: a location that does not exist, or a format that can only be read. `INSERT OVERWRITE`
deletes the files before it finds out.
"""

from __future__ import annotations

import re
from dataclasses import replace
from hashlib import blake2b

from strandline.catalog import Catalog, Relation
from strandline.metastore.hive.parameters import DERIVED, SCHEMA
from strandline.metastore.hive.storage_descriptors import Struct, field_structs, shown_columns
from strandline.metastore.hive.table_structs import (
    partition_key_structs,
    plain_columns_of,
    view_struct,
)
from strandline.model.descriptors import (
    Properties,
    StorageFormat,
    TableDescriptor,
    ViewDescriptor,
    properties,
)
from strandline.model.type_text import quoted
from strandline.model.types import ArrayType, DataType, MapType, StructType

NO_PLACE = "can-be-read-and-not-changed:/"
"""The location of a schema of the past. Spark shows its scheme to a user who creates a table."""

_HIDDEN_NAME = re.compile(r"(.+)@files_([0-9]+)_[0-9a-f]{8}")

_VIEW_STORAGE = StorageFormat(
    input_format="org.apache.hadoop.mapred.SequenceFileInputFormat",
    output_format="org.apache.hadoop.hive.ql.io.HiveSequenceFileOutputFormat",
    serde="org.apache.hadoop.hive.serde2.lazy.LazySimpleSerDe",
    serde_properties=(("serialization.format", "1"),),
    buckets=-1,
)
"""What Spark says of a view; it is not used for reading."""

_SPARK_VERSION = "4.3.0"
"""The release whose form of a view is answered."""


NOT_OF_A_TABLE = ("spark.sql.", "view.")
"""How the parameters begin by which Spark takes a table for a view."""


def is_written_by_clients(relation: Relation) -> bool:
    """Whether clients write its files themselves; in the past, such a table is a view."""
    if not isinstance(relation, TableDescriptor) or relation.transactional:
        return False
    kept = dict(relation.properties)
    iceberg = kept.get("table_type", "").lower() == "iceberg" and "metadata_location" in kept
    return not iceberg


def hidden_name(table: TableDescriptor, *, version: int, location: str) -> str:
    """The hidden name of ``table`` at ``version``, with its files now at ``location``."""
    rest = blake2b(f"{table.id} {location}".encode(), digest_size=4).hexdigest()
    return f"{table.name.lower()}@files_{version}_{rest}"


def find_hidden(
    catalog: Catalog, schema: str, name: str, *, present: bool = False
) -> TableDescriptor | None:
    """The table that a hidden name of this catalog stands for, under that name.

    A name that was made before the files moved still stands for them. In the ``present`` so does a
    name of an earlier version: the catalog may move on between the view and its files.
    """
    match = _HIDDEN_NAME.fullmatch(name.lower())
    if match is None or (int(match[2]) != catalog.version and not present):
        return None
    table = catalog.relation(schema, match[1])
    if not isinstance(table, TableDescriptor) or not is_written_by_clients(table):
        return None
    return replace(table, name=name.lower())


def past_view_struct(table: TableDescriptor, *, schema: str, hidden: str) -> Struct:
    """The ``Table`` that is answered for a plain table: a view over the table ``hidden``.

    ``schema`` is the name that was asked for, with its version.
    """
    # Of some tables Hive has the columns in the serde, and then there is none to name.
    selected = ", ".join(quoted(column.name) for column in table.columns) or "*"
    text = f"SELECT {selected} FROM {quoted(schema)}.{quoted(hidden)}"
    known = SCHEMA in dict(table.properties)
    return view_over(table, schema=schema, text=text, has_spark_schema=known)


def view_over(table: TableDescriptor, *, schema: str, text: str, has_spark_schema: bool) -> Struct:
    """The ``Table`` of a view with this text, which is answered in the place of ``table``."""
    view = ViewDescriptor(
        id=table.id,
        schema_id=table.schema_id,
        name=table.name,
        owner=table.owner,
        columns=tuple(replace(c, type=_nullable(c.type), nullable=True) for c in table.columns),
        original_text=text,
        expanded_text=text,
        storage=_VIEW_STORAGE,
        properties=_view_properties(table, schema=schema, has_spark_schema=has_spark_schema),
        comment=table.comment,
        created=table.created,
    )
    struct = view_struct(view, schema=schema)
    struct["sd"]["cols"] = [
        *field_structs(shown_columns(table.storage, plain_columns_of(table))),
        *partition_key_structs(table),
    ]
    return struct


def _view_properties(table: TableDescriptor, *, schema: str, has_spark_schema: bool) -> Properties:
    """The table's own parameters, with what makes Spark take it for a view of its own."""
    own = {name: value for name, value in table.properties if not name.startswith(NOT_OF_A_TABLE)}
    if has_spark_schema:
        own[SCHEMA] = DERIVED
        names = [column.name for column in table.columns]
    else:
        names = [column.name.lower() for column in table.columns]
    own |= {
        "spark.sql.create.version": _SPARK_VERSION,
        "view.catalogAndNamespace.numParts": "2",
        "view.catalogAndNamespace.part.0": "spark_catalog",
        "view.catalogAndNamespace.part.1": schema,
        "view.query.out.numCols": str(len(names)),
    }
    own |= {f"view.query.out.col.{number}": name for number, name in enumerate(names)}
    return properties(own)


def _nullable(data_type: DataType) -> DataType:
    """The type, with null allowed everywhere inside of it."""
    match data_type:
        case ArrayType():
            return ArrayType(_nullable(data_type.element))
        case MapType():
            return MapType(_nullable(data_type.key), _nullable(data_type.value))
        case StructType():
            return StructType(
                tuple(
                    replace(entry, type=_nullable(entry.type), nullable=True)
                    for entry in data_type.fields
                )
            )
    return data_type
