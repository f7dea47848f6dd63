"""Rows: what DML changes, as values.

Everything that a transaction can add to a table or remove from it has one shape: a `Row` of some
kind, added by one write id, with its content as a record. A row never changes. A removal ends it:
a row of its own with the write id of the transaction that removed it, because two open transactions
may remove the same file and only one of them will commit.

    visible(row, L) = L.valid(row.write_id) and no removal of it has L.valid(removal.write_id)

for the reader's `ValidWriteIdList` L of that table. Visibility is therefore the same at every
snapshot, now or as of long ago, and a reader needs nothing but its list.

Names are unique among the visible rows of one table and kind: the name of a partition, the path of
a file. The exception is table parameters, which two writers may set at once without a conflict. If
several rows of one name are visible, the newest row, the one with the largest id, counts.

``bucket`` is the zone partition that a row belongs to, or `TABLE_LEVEL` if it belongs to all.
Content is kept as bytes and decoded at the first use, see `strandline.wire.stored`. Its checksum
covers the content and all columns beside it (`row_context`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import partial
from struct import Struct, error
from typing import NamedTuple, TypeVar

from strandline.errors import CorruptData, InvalidInput
from strandline.model.descriptors import Properties, StorageFormat
from strandline.model.partitioning import Partition
from strandline.wire import decode, encode, nested, nested_list, register
from strandline.wire.codecs import (
    BYTES,
    OPTIONAL_TEXT,
    PROPERTIES,
    SINT,
    TEXT,
    UINT,
    Codec,
    Reader,
    enum,
    optional,
    sequence,
    triple,
)
from strandline.wire.partitions import PARTITION
from strandline.wire.registry import Fields, compare, register_codec

TABLE_LEVEL = -1
"""The bucket of a row that belongs to every zone partition."""

PARAMETERS_NAME = ""
"""The name of all rows of table parameters."""

TABLE_STATISTICS = ""
"""The name of a row of statistics about the table, not about a partition."""


class RowKind(Enum):
    """The kinds of rows. The numbers are the stored values."""

    PARTITION = 1
    DATA_FILE = 2
    DELETE_FILE = 3
    TABLE_PARAMETERS = 4
    STATISTICS = 5

    @property
    def spoken(self) -> str:
        """The kind, for messages, such as ``data file``."""
        return self.name.lower().replace("_", " ")


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRow:
    """A partition of a plain table, as a Hive client adds it; the row's name is ``a=1/b=2``.

    ``values`` follow the table's partition columns. ``location`` is a URI or path; a relative one
    is below the table's location and moves with it. ``columns`` (name, type, comment) is None if
    the partition uses those of the table, and ``storage`` if it uses the ``partition_storage`` of
    the table or, without one, its ``storage``. Times are in seconds since 1970.
    """

    values: tuple[str, ...]
    location: str
    parameters: Properties = ()
    created: int = 0
    last_access: int = 0
    storage: StorageFormat | None = None
    columns: tuple[tuple[str, str, str | None], ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnStatistics:
    """What is known about one column's values in one file.

    The bounds are text in the canonical form of the column's type (decimal digits for numbers, ISO
    8601 for dates and times in UTC, the text itself for strings), or None if they are not known. A
    text bound may be truncated; an upper one is then rounded up. The upper bound of a floating
    column has hexadecimal digits (``0x1.8p+1``) and covers NaN; others of it are ignored.
    """

    column_id: int
    lower: str | None = None
    upper: str | None = None
    nulls: int | None = None


FILE_NUMBER_BITS = 20
"""The low bits of a file id number the files of a transaction; the high bits are its id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """A data file; the row's name is its path.

    ``file_id`` is unique in the table for ever: delete files refer to it. ``path`` is relative to
    the table's location. ``rows`` and ``bytes`` are counts. ``partition`` has the values of the
    table's partition fields, the same for all rows of the file. ``statistics`` may be empty.
    ``schema_version`` is the version of the table's schema with whose names and types the file was
    written; 0 if it was not recorded.
    """

    file_id: int
    path: str
    rows: int
    bytes: int
    partition: Partition = ()
    statistics: tuple[ColumnStatistics, ...] = ()
    schema_version: int = 0


class DeleteForm(Enum):
    """What a delete file contains. The numbers are the stored values.

    POSITIONS: one row for each deleted row (``file_id``, ``position``); used up to release 0.2.1.
    BITMAPS: one row for each data file (``file_id``, ``bitmap``): if bit i of word w is set, row
    64·w + i is deleted.
    """

    POSITIONS = 1
    BITMAPS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteFile:
    """A file that says which rows are deleted; the row's name is its path.

    It deletes ``counts[i]`` rows of the data file ``file_ids[i]``. ``bytes`` is its size; 0 if it
    was not recorded, as up to release 0.5.0.
    """

    path: str
    file_ids: tuple[int, ...]
    counts: tuple[int, ...]
    form: DeleteForm = DeleteForm.POSITIONS
    bytes: int = 0

    def __post_init__(self) -> None:
        if len(self.file_ids) != len(self.counts):
            raise InvalidInput(
                f"delete file {self.path!r} names {len(self.file_ids)} data files and"
                f" {len(self.counts)} counts; give one count for each file"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class TableParametersRow:
    """The parameters of a table that count or date its content."""

    parameters: Properties


@dataclass(frozen=True, slots=True, kw_only=True)
class AnalyzedColumn:
    """Statistics that a Hive client computed for one column of a table or partition.

    They hold for the column with that id while the column has this name (in lower case) and this
    type (as Spark spells it). ``engine`` computed them, at ``analyzed`` (seconds since 1970).
    ``summary`` is a ``ColumnStatisticsObj`` of the Hive protocol, encoded.
    """

    column_id: int
    name: str
    type: str
    engine: str
    analyzed: int
    summary: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class StatisticsRow:
    """Statistics of a plain table, or of the partition that has the row's name.

    Engines keep separate statistics, so a column may appear once for each engine.
    """

    columns: tuple[AnalyzedColumn, ...]


Content = PartitionRow | DataFile | DeleteFile | TableParametersRow | StatisticsRow
C = TypeVar("C", PartitionRow, DataFile, DeleteFile, TableParametersRow, StatisticsRow)

_CLASSES: dict[RowKind, type[Content]] = {
    RowKind.PARTITION: PartitionRow,
    RowKind.DATA_FILE: DataFile,
    RowKind.DELETE_FILE: DeleteFile,
    RowKind.TABLE_PARAMETERS: TableParametersRow,
    RowKind.STATISTICS: StatisticsRow,
}
_KINDS = {of: kind for kind, of in _CLASSES.items()}


def row_context(
    row_id: int, table_id: int, kind: RowKind, bucket: int, name: str, write_id: int
) -> bytes:
    """The columns beside the body of a stored row, which its checksum covers."""
    try:
        return NUMBERS.pack(row_id, table_id, kind.value, bucket, write_id) + name.encode()
    except (error, AttributeError):
        raise CorruptData(
            f"row {row_id} of table {table_id} has columns of wrong types; restore the store from "
            "a backup"
        ) from None


NUMBERS = Struct("<5q")


class _StoredRow(NamedTuple):
    row_id: int
    table_id: int
    kind: RowKind
    bucket: int
    name: str
    write_id: int
    body: bytes


class Row(_StoredRow):
    """A stored row. ``row_id`` is unique in the store and grows in the order of staging.

    A tuple, since a hundred thousand are made at once. Its content is decoded at the first use.
    """

    _content: Content | None = None

    @property
    def content(self) -> Content:
        """The decoded body. Raises `CorruptData` or `IncompatibleFormat`."""
        if self._content is None:
            self._content = decode(self.body, _CLASSES[self.kind], context=self._context())
        return self._content

    def is_decoded(self) -> bool:
        return self._content is not None

    def compare(self) -> None:
        """Raise `CorruptData` unless the row has its checksum; a decoded row was compared."""
        if self._content is None:
            compare(self.body, self._context())

    def _context(self) -> bytes:
        return row_context(
            self.row_id, self.table_id, self.kind, self.bucket, self.name, self.write_id
        )

    def as_(self, of: type[C]) -> C:
        """The content, which must be of that class. Raises `CorruptData` if it is not."""
        content = self.content
        if not isinstance(content, of):
            raise CorruptData(
                f"row {self.row_id} is a {type(content).__name__}, but a {of.__name__} was expected"
            )
        return content

    def replaced_by(self, content: Content) -> NewRow:
        return NewRow.of(content, name=self.name, bucket=self.bucket)


@dataclass(frozen=True, slots=True)
class NewRow:
    """A row to be added."""

    kind: RowKind
    name: str
    body: bytes
    bucket: int = TABLE_LEVEL

    @classmethod
    def of(cls, content: Content, *, name: str, bucket: int = TABLE_LEVEL) -> NewRow:
        return cls(_KINDS[type(content)], name, encode(content), bucket)


def new_file(content: DataFile | DeleteFile, *, bucket: int = TABLE_LEVEL) -> NewRow:
    """The row of a data file or delete file, named by its path."""
    return NewRow.of(content, name=content.path, bucket=bucket)


def new_parameters(parameters: Properties) -> NewRow:
    return NewRow.of(TableParametersRow(parameters=parameters), name=PARAMETERS_NAME)


def new_statistics(columns: tuple[AnalyzedColumn, ...], *, name: str) -> NewRow:
    """The row of the statistics of the partition of that name, or of the table."""
    return NewRow.of(StatisticsRow(columns=columns), name=name)


register(
    PartitionRow,
    type_id=40,
    version=1,
    since="0.1.0",
    fields=[
        ("values", sequence(TEXT)),
        ("location", TEXT),
        ("parameters", PROPERTIES),
        ("created", SINT),
        ("last_access", SINT),
        ("storage", optional(nested(StorageFormat))),
        ("columns", optional(sequence(triple(TEXT, TEXT, optional(TEXT))))),
    ],
)


def _write_statistics(out: bytearray, value: ColumnStatistics) -> None:
    UINT.write(out, value.column_id)
    OPTIONAL_TEXT.write(out, value.lower)
    OPTIONAL_TEXT.write(out, value.upper)
    _OPTIONAL_UINT.write(out, value.nulls)


def _read_any_statistics(reader: Reader) -> ColumnStatistics:
    return ColumnStatistics(
        column_id=reader.uint(),
        lower=OPTIONAL_TEXT.read(reader),
        upper=OPTIONAL_TEXT.read(reader),
        nulls=_OPTIONAL_UINT.read(reader),
    )


def _read_statistics(reader: Reader) -> ColumnStatistics:
    """`_read_any_statistics` with fewer calls, if all fields are present and short.

    A table of many files has several statistics for each, and all are read at once.
    """
    data, start = reader.data, reader.position
    try:
        column_id, is_low, length = data[start], data[start + 1], data[start + 2]
        middle = start + 3 + length
        is_high, high_length = data[middle], data[middle + 1]
        last = middle + 2 + high_length
        has_nulls, nulls = data[last], data[last + 1]
        if is_low == is_high == has_nulls == 1 and max(column_id, length, high_length, nulls) < 128:
            lower, upper = data[start + 3 : middle].decode(), data[middle + 2 : last].decode()
            reader.position = last + 2
            return ColumnStatistics(column_id=column_id, lower=lower, upper=upper, nulls=nulls)
    except (IndexError, UnicodeDecodeError):
        pass  # the call below reads it, or raises
    return _read_any_statistics(reader)


def _write_data_file(
    out: bytearray, value: DataFile, partition: Codec[Partition], *, versioned: bool
) -> None:
    UINT.write(out, value.file_id)
    TEXT.write(out, value.path)
    UINT.write(out, value.rows)
    UINT.write(out, value.bytes)
    partition.write(out, value.partition)
    _STATISTICS.write(out, value.statistics)
    if versioned:
        UINT.write(out, value.schema_version)


def _read_data_file(reader: Reader, partition: Codec[Partition], *, versioned: bool) -> DataFile:
    return DataFile(
        file_id=reader.uint(),
        path=TEXT.read(reader),
        rows=reader.uint(),
        bytes=reader.uint(),
        partition=partition.read(reader),
        statistics=_STATISTICS.read(reader),
        schema_version=reader.uint() if versioned else 0,
    )


def _read_partition_name(reader: Reader) -> Partition:
    """Skip a text: up to 0.3.0 a client could name a partition, which says nothing about rows."""
    TEXT.read(reader)
    return ()


_PARTITION_NAME: Codec[Partition] = Codec(lambda out, _: TEXT.write(out, ""), _read_partition_name)
_OPTIONAL_UINT = optional(UINT)
_STATISTICS = nested_list(ColumnStatistics)


def _data_file_codec(partition: Codec[Partition], *, versioned: bool) -> Codec[DataFile]:
    return Codec(
        partial(_write_data_file, partition=partition, versioned=versioned),
        partial(_read_data_file, partition=partition, versioned=versioned),
    )


# Tens of thousands are read at once, so these two codecs avoid the generic loop over fields.
register_codec(
    ColumnStatistics,
    type_id=45,
    version=1,
    since="0.1.0",
    codec=Codec(_write_statistics, _read_statistics),
)
register_codec(
    DataFile,
    type_id=41,
    version=1,
    since="0.1.0",
    codec=_data_file_codec(_PARTITION_NAME, versioned=False),
)
register_codec(
    DataFile,
    type_id=41,
    version=2,
    since="0.3.0",
    codec=_data_file_codec(_PARTITION_NAME, versioned=True),
)
register_codec(
    DataFile,
    type_id=41,
    version=3,
    since="0.4.0",
    codec=_data_file_codec(PARTITION, versioned=True),
)
_DELETE_FIELDS: Fields = [
    ("path", TEXT),
    ("file_ids", sequence(UINT)),
    ("counts", sequence(UINT)),
]
register(DeleteFile, type_id=42, version=1, since="0.1.0", fields=_DELETE_FIELDS)
register(
    DeleteFile,
    type_id=42,
    version=2,
    since="0.3.0",
    fields=[*_DELETE_FIELDS, ("form", enum(DeleteForm))],
)
register(
    DeleteFile,
    type_id=42,
    version=3,
    since="0.6.0",
    fields=[*_DELETE_FIELDS, ("form", enum(DeleteForm)), ("bytes", UINT)],
)
register(
    TableParametersRow,
    type_id=43,
    version=1,
    since="0.1.0",
    fields=[("parameters", PROPERTIES)],
)
register(
    AnalyzedColumn,
    type_id=48,
    version=1,
    since="0.4.0",
    fields=[
        ("column_id", UINT),
        ("name", TEXT),
        ("type", TEXT),
        ("engine", TEXT),
        ("analyzed", UINT),
        ("summary", BYTES),
    ],
)
register(
    StatisticsRow,
    type_id=49,
    version=1,
    since="0.4.0",
    fields=[("columns", nested_list(AnalyzedColumn))],
)
