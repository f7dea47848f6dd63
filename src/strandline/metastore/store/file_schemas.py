"""The version of a table's schema with which a data file was written.

Since 0.3.0, the file's row contains it. For files of older releases, the footer is read: it has the
ids and names of all columns, at every level. If several versions have the same names, the newest
one serves as well as the one with which the file was written: they differ only in widened types,
and Spark reads values of a narrower type as the wider one.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from strandline import work
from strandline.errors import CorruptData
from strandline.metastore.store.rows import DataFile
from strandline.model.descriptors import TableDescriptor
from strandline.model.types import StructField, fields_of

_FIELD_ID = b"PARQUET:field_id"
_FOOTER = 5
"""The cost of reading a footer, in units of `strandline.work`."""
_KEPT, _KEPT_SCHEMAS = 20_000, 1_000

_Names = frozenset[tuple[tuple[str, ...], int]]
"""The path of each column and nested field, and its id."""


def with_schema_versions(
    files: Iterable[DataFile], table: TableDescriptor, *, root: Path
) -> list[DataFile]:
    """The files, each with the version of the schema of ``table`` with which it was written.

    ``root`` is the table's folder. Raises `CorruptData` if a file cannot be read, or has columns
    that the table never had.
    """
    versioned_files = []
    for file in files:
        if not file.schema_version:
            work.spend(_FOOTER)
            file = replace(file, schema_version=_version(root / file.path, table))
        versioned_files.append(file)
    return versioned_files


def _version(path: Path, table: TableDescriptor) -> int:
    try:
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):
            raise ValueError("it is not a file")  # to open a pipe would wait for its writer
        # Another file may have got the path, in a table that replaced this one.
        written = _names_in(path, status.st_ino, status.st_size, status.st_mtime_ns)
    except (OSError, ValueError, pa.ArrowException) as error:  # a name or an id may be no text
        raise CorruptData(f"data file {path} cannot be read: {error}") from error
    for version in reversed(table.schema_versions):
        fields = (StructField(c.name, c.type, field_id=c.id) for c in version.columns)
        if frozenset(_names((), fields)) == written:
            return version.number
    raise CorruptData(
        f"data file {path} has columns that are in no version of the schema of {table.name}; run "
        "`strandline verify`"
    )


def _names(
    parents: tuple[str, ...], fields: Iterable[StructField]
) -> Iterable[tuple[tuple[str, ...], int]]:
    for field in fields:
        yield (*parents, field.name), field.field_id or 0
        yield from _names((*parents, field.name), fields_of(field.type))


@lru_cache(maxsize=_KEPT)
def _names_in(path: Path, *stamp: int) -> _Names:
    """The column names in a data file's footer; cached for a file with the numbers ``stamp``."""
    return _kept_once(frozenset(_footer_names((), pq.read_schema(path))))


@lru_cache(maxsize=_KEPT_SCHEMAS)
def _kept_once(names: _Names) -> _Names:
    """Return one object for equal names: most files of a table have the same columns."""
    return names


def _footer_names(
    parents: tuple[str, ...], fields: Iterable[pa.Field]
) -> Iterable[tuple[tuple[str, ...], int]]:
    for field in fields:
        yield (*parents, field.name), max(int((field.metadata or {}).get(_FIELD_ID, b"0")), 0)
        yield from _footer_names((*parents, field.name), children(field.type))


def children(data_type: pa.DataType) -> list[pa.Field]:
    """The fields directly inside a type, with the names that Spark gives them."""
    if pa.types.is_map(data_type):
        return [data_type.key_field.with_name("key"), data_type.item_field.with_name("value")]
    if pa.types.is_list(data_type):
        return [data_type.value_field.with_name("element")]
    return [data_type.field(n) for n in range(data_type.num_fields)]
