"""Transactional tables as Spark reads them without this package: views over hidden tables.

The problem: a client of the Hive protocol takes a table for a folder of files. The folder of a
transactional table also contains the files of open and aborted transactions, deleted rows, and
files whose columns have older names. A reader must see the rows of one snapshot.

The model. The node answers a transactional table ``orders`` as a view. The text of the view selects
the rows of one snapshot from hidden tables, each of which covers some files of the snapshot
(`snapshot_parts`). An unmodified Spark finds columns by name; the view maps the columns of the
version with which a part was written to the table's by their ids. It broadcasts the bitmaps of
deleted rows into a LEFT ANTI JOIN on the file and the position of the row.

So Spark itself scans the Parquet files, and pushes filters and columns into the scan. The view
tells the files apart by keys (`file_keys`). They connect a row to the deleted rows of its file, and
to the values of the columns that partition the table. So Spark opens only the files that a filter
on such a column needs.

What must stay true:

* The text names a hidden table even if the snapshot has no rows: from the calls for it the node
  recognizes a client that would replace the table (`recent_calls`).
* Spark itself refuses to write to a view. The text begins with `MARK`: an alter with another text
  would redefine the table, and is refused.

Rejected: the names of the files as a condition (Spark also evaluates it for each row).
"""

from __future__ import annotations

from dataclasses import replace

from strandline.metastore.hive.file_keys import FileKeys, file_keys, value_by_key
from strandline.metastore.hive.past_tables import view_over
from strandline.metastore.hive.session_tables import COMPENSATION, VIEW_SCHEMA_MODE
from strandline.metastore.hive.snapshot_parts import DELETE_COLUMNS, DataPart, TableSnapshot
from strandline.metastore.hive.storage_descriptors import Struct, columns_for_spark
from strandline.metastore.store.rows import DeleteForm
from strandline.model.descriptors import ColumnDescriptor, TableDescriptor
from strandline.model.partitioning import Physical
from strandline.model.type_text import ddl_text, quoted, text_literal
from strandline.model.types import (
    ArrayType,
    CharType,
    DataType,
    MapType,
    StructField,
    StructType,
    as_stored,
    walk,
    without_char,
)

MARK = "/* transactional table: write to it with strandline.spark.Tables */"
"""The beginning of the text of the view."""

_FILE, _POSITION = "_strandline_file", "_strandline_position"
_GONE = {
    # Past the end of a bitmap `get` returns NULL, which matches nothing.
    DeleteForm.BITMAPS: (
        f"getbit(get({{0}}.bitmap, CAST(shiftright({_POSITION}, 6) AS INT)),"
        f" CAST({_POSITION} & 63 AS INT)) = 1"
    ),
    DeleteForm.POSITIONS: f"{_POSITION} = {{0}}.position",
}


def snapshot_view_struct(snapshot: TableSnapshot, *, schema: str) -> Struct:
    """The ``Table`` of a transactional table: a view. ``schema`` is the name in the request."""
    selects = [
        _select(snapshot, number, part, schema=schema) for number, part in enumerate(snapshot.data)
    ]
    struct = shown_as_view(snapshot.table, schema=schema, selects=" UNION ALL ".join(selects))
    struct["sd"]["cols"] = columns_for_spark(_without_char(snapshot.table).columns)
    return struct


def shown_as_view(table: TableDescriptor, *, schema: str, selects: str = "") -> Struct:
    """The ``Table`` of a view that is answered in place of ``table``, and reads ``selects``."""
    text = f"{MARK} {selects}"
    struct = view_over(_without_char(table), schema=schema, text=text, has_spark_schema=True)
    # Spark casts to the types of the view. It refuses to turn strings, as in the files, into
    # varchar, if its configuration keeps that type in plans.
    struct["parameters"][VIEW_SCHEMA_MODE] = COMPENSATION
    return struct


def _without_char(table: TableDescriptor) -> TableDescriptor:
    """Return ``table`` with strings instead of chars.

    A char is stored as it was appended, without padding. Spark pads a value that it compares with a
    char, so the comparison would find no row.
    """
    *older, last = table.schema_versions
    columns = tuple(
        replace(column, type=without_char(column.type))
        if any(isinstance(inner, CharType) for inner in walk(column.type))
        else column
        for column in last.columns
    )
    return replace(table, schema_versions=(*older, replace(last, columns=columns)))


def _select(snapshot: TableSnapshot, number: int, part: DataPart, *, schema: str) -> str:
    """The SELECT that reads the rows of a part, in the columns of the table."""
    needs_keys = part.joined or snapshot.fields_by_column
    keys = file_keys(part.files, part.place) if needs_keys else None
    by_file = {} if keys is None else _values_by_file(snapshot, part, keys)
    written = snapshot.columns_of(part.schema_version) if part.files else ()
    by_id = {column.id: column for column in written}
    selected = ", ".join(
        f"{by_file.get(column.id) or _column_value(by_id.get(column.id), column)}"
        f" AS {quoted(column.name)}"
        for column in snapshot.table.columns
    )
    source = f"{quoted(schema)}.{quoted(snapshot.hidden_name('data', number))}"
    if keys is None or not (part.joined or by_file):
        return f"SELECT {selected} FROM {source} AS t"
    if not part.joined:
        return f"SELECT {selected} FROM (SELECT *, {keys.of_row} AS {_FILE} FROM {source}) AS t"
    aliases = [f"d{n}" for n in range(len(snapshot.deletes))]
    of_id = keys.of_delete(snapshot.deleted)
    joins = "".join(
        f" LEFT ANTI JOIN (SELECT {of_id} AS {_FILE}, {DELETE_COLUMNS[deletes.form][1][0]}"
        f" FROM {quoted(schema)}.{quoted(snapshot.hidden_name('deletes', n))}) AS d{n}"
        f" ON t.{_FILE} = d{n}.{_FILE} AND {_GONE[deletes.form].format(f'd{n}')}"
        for n, deletes in enumerate(snapshot.deletes)
    )
    return (
        f"SELECT /*+ BROADCAST({', '.join(aliases)}) */ {selected} FROM"
        f" (SELECT *, {keys.of_row} AS {_FILE}, _metadata.row_index AS {_POSITION}"
        f" FROM {source}) AS t{joins}"
    )


def _values_by_file(snapshot: TableSnapshot, part: DataPart, keys: FileKeys) -> dict[int, str]:
    """The SQL for the columns of a part that need not be read from its files, by column id."""
    partitions = {
        keys.of_file[file.file_id]: {value.field_id: value.value for value in file.partition}
        for file in part.files
    }
    types = {column.id: as_stored(column.type) for column in snapshot.table.columns}
    by_column: dict[int, str] = {}
    for column_id, field_id in snapshot.fields_by_column.items():
        values: dict[int, Physical | None] = {
            key: partition[field_id]
            for key, partition in partitions.items()
            if field_id in partition
        }
        if not values or len(values) < len(partitions):
            continue  # a file without a record of the value
        # Inside brackets, Spark 3.5 takes `t.x` for a field of a selected column `t`.
        text = value_by_key(values, types[column_id], key=_FILE)
        if text is not None:
            by_column[column_id] = text
    return by_column


def _column_value(written: ColumnDescriptor | None, column: ColumnDescriptor) -> str:
    """The value of ``column`` in a file that stores it as ``written``; NULL if that is None."""
    target = as_stored(column.type)
    if written is None:
        return f"CAST(NULL AS {ddl_text(target)})"
    return _value(f"t.{quoted(written.name)}", as_stored(written.type), target, depth=0)


def _value(value: str, written: DataType, target: DataType, *, depth: int) -> str:
    """``value`` converted from one type to another. Fields of structs are matched by their ids."""
    if written == target:
        return value
    item = f"x{depth}"
    match written, target:
        case StructType(), StructType():
            return _struct_value(value, written, target, depth=depth)
        case ArrayType(), ArrayType():
            inner = _value(item, written.element, target.element, depth=depth + 1)
            return f"transform({value}, {item} -> {inner})"
        case MapType(), MapType():
            key = _value(item, written.key, target.key, depth=depth + 1)
            inner = _value(item, written.value, target.value, depth=depth + 1)
            return (
                f"map_from_arrays(transform(map_keys({value}), {item} -> {key}),"
                f" transform(map_values({value}), {item} -> {inner}))"
            )
    return f"CAST({value} AS {ddl_text(target)})"


def _struct_value(value: str, written: StructType, target: StructType, *, depth: int) -> str:
    by_id = {field.field_id: field for field in written.fields}
    parts = []
    for field in target.fields:
        written_field = by_id.get(field.field_id)
        parts += [text_literal(field.name), _field_value(value, written_field, field, depth)]
    return f"IF({value} IS NULL, NULL, named_struct({', '.join(parts)}))"


def _field_value(value: str, written: StructField | None, field: StructField, depth: int) -> str:
    if written is None:
        return f"CAST(NULL AS {ddl_text(field.type)})"
    return _value(f"{value}.{quoted(written.name)}", written.type, field.type, depth=depth)
