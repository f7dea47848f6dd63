"""Plain tables in a schema of the past: a view over a hidden table of their files.

The problem: clients, not the metastore, write the files of a plain table, and there is one set of
files. A client that learns the location of a table in ``sales@42`` can write there and thus change
the present table. Spark does that: for an ``INSERT`` into a table without partitions it requests
only the table. Refusing changes then comes too late; the answer itself must prevent them.

The model. Under ``sales@42`` a plain table ``orders`` is answered as a view. Its text selects the
columns at version 42 from a hidden table of the same schema, ``orders@files_42_1a2b3c4d``. The
hidden table is the real one: its format, location, columns and partitions at that version. Spark
plans the view as it would plan the table (filters, columns and partitions are pruned alike) and
itself refuses to write to a view.

What must stay true:

* No client finds a hidden name by chance. No list contains it, and the protocol creates no table
  with an ``@`` in its name.
* The name changes with everything that the answer depends on: the version, the table, and the
  present location of its files. Spark caches the file list of a table by its name.
* The view has the types that Spark reads. A file reader returns null wherever files may contain
  null, even inside types, so the types of the view allow null everywhere.
* A new table has no location there either. Spark writes the rows of ``CREATE TABLE … AS SELECT``
  into the folder of the schema before it asks for the table. So the location of the schema has a
  scheme that no file system has (`NO_PLACE`).

Where privileges are enforced, a user who may not INSERT into a plain table gets the same answer in
the present, for the same reason: Spark would write first and ask later.

Two kinds of table are not answered this way: transactional tables, which are always answered as
views of their own (`snapshot_views`), and Iceberg tables, which change by a commit in the metastore
and are read by their metadata.

Rejected: a location that does not exist, or a format that can only be read. ``INSERT OVERWRITE``
deletes the files before it fails.
"""

from __future__ import annotations

import re
from dataclasses import replace
from hashlib import blake2b

from strandline.catalog import Catalog, Relation
from strandline.metastore.hive.parameters import DERIVED
from strandline.metastore.hive.session_tables import (
    UNREAD_STORAGE,
    VIEW_NAMESPACE,
    VIEW_SCHEMA,
    completed,
)
from strandline.metastore.hive.storage_descriptors import (
    Struct,
    field_structs,
    plain_columns_of,
    shown_columns,
)
from strandline.metastore.hive.table_structs import partition_key_structs, view_struct
from strandline.metastore.table_parameters import SCHEMA, without_contradictions
from strandline.model.descriptors import Properties, TableDescriptor, ViewDescriptor, properties
from strandline.model.type_text import quoted
from strandline.model.types import all_nullable

NO_PLACE = "can-be-read-and-not-changed:/"
"""The location of a schema of the past. Spark shows its scheme to a user who creates a table."""

_HIDDEN_NAME = re.compile(r"(.+)@files_([0-9]{1,18})_[0-9a-f]{8}")

_VIEW_STORAGE = replace(
    UNREAD_STORAGE, serde_properties=(("serialization.format", "1"),), buckets=-1
)

_SPARK_VERSION = "4.3.0"
"""The Spark release whose view format the answers have."""


NOT_OF_A_TABLE = ("spark.sql.", "view.")
"""Prefixes of the parameters by which Spark recognizes a view."""


def is_written_by_clients(relation: Relation) -> bool:
    """Whether clients write its files themselves. In the past, such a table is shown as a view."""
    if not isinstance(relation, TableDescriptor) or relation.transactional:
        return False
    table_properties = dict(relation.properties)
    iceberg = (
        table_properties.get("table_type", "").lower() == "iceberg"
        and "metadata_location" in table_properties
    )
    return not iceberg


def hidden_name(table: TableDescriptor, *, version: int, location: str) -> str:
    """Return the hidden name of ``table`` at ``version``, with its files now at ``location``."""
    rest = blake2b(f"{table.id} {location}".encode(), digest_size=4).hexdigest()
    return f"{table.name.lower()}@files_{version}_{rest}"


def find_hidden(
    catalog: Catalog, schema: str, name: str, *, present: bool
) -> TableDescriptor | None:
    """Return the table that a hidden name of this catalog means, under that name, or None.

    A name from before the files moved remains valid. In the ``present``, a name of an earlier
    version is valid too: the catalog may move on between the requests for the view and its files.
    """
    match = _HIDDEN_NAME.fullmatch(name.lower())
    if match is None or (int(match[2]) != catalog.version and not present):
        return None
    table = catalog.relation(schema, match[1])
    if not isinstance(table, TableDescriptor) or not is_written_by_clients(table):
        return None
    return replace(table, name=name.lower())


def past_view_struct(table: TableDescriptor, *, schema: str, hidden: str) -> Struct:
    """Return the ``Table`` that is answered for a plain table: a view over the table ``hidden``.

    ``schema`` is the schema name in the request, with its version.
    """
    # For some tables Hive takes the columns from the serde; then there are none to name.
    selected = ", ".join(quoted(column.name) for column in table.columns) or "*"
    text = f"SELECT {selected} FROM {quoted(schema)}.{quoted(hidden)}"
    has_spark_schema = SCHEMA in dict(completed(table).properties)
    return view_over(table, schema=schema, text=text, has_spark_schema=has_spark_schema)


def view_over(table: TableDescriptor, *, schema: str, text: str, has_spark_schema: bool) -> Struct:
    """Return the ``Table`` of a view with this text, which is answered in place of ``table``."""
    view = ViewDescriptor(
        id=table.id,
        schema_id=table.schema_id,
        name=table.name,
        owner=table.owner,
        columns=tuple(replace(c, type=all_nullable(c.type), nullable=True) for c in table.columns),
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
    """The table's parameters, and those that make Spark take the answer for its own view."""
    stored = without_contradictions(table.properties)
    values = {name: value for name, value in stored if not name.startswith(NOT_OF_A_TABLE)}
    if has_spark_schema:
        values[SCHEMA] = DERIVED
        names = [column.name for column in table.columns]
    else:
        names = [column.name.lower() for column in table.columns]
    values |= {
        "spark.sql.create.version": _SPARK_VERSION,
        **VIEW_NAMESPACE,
        VIEW_SCHEMA: schema,
        "view.query.out.numCols": str(len(names)),
    }
    values |= {f"view.query.out.col.{number}": name for number, name in enumerate(names)}
    return properties(values)
