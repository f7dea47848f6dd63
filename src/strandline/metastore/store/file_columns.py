"""The data files of a table as columns, read from their stored rows without an object for each.

A snapshot of a large table has a hundred thousand data files, each with statistics of several
columns. Most readers want all of them, and get them as Arrow: then a `DataFile` would be made of
each row only to be taken apart again, which costs three times as much as all else.

What must stay true: the columns are those of the objects. A row whose body does not have the usual
form (another format version, a number or text of unusual length, a wrong checksum) is decoded as an
object, which also raises what is to be raised for it.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from struct import Struct, error
from typing import overload
from zlib import crc32

from strandline.metastore.store.rows import NUMBERS, ColumnStatistics, DataFile, Row, RowKind
from strandline.wire.registry import PROTOCOL, newest_header

_SEAL = Struct("<HI")
_KIND = RowKind.DATA_FILE
_KIND_NUMBER = _KIND.value
_FILE_HEADER, _STATISTICS_HEADER = (newest_header(of) for of in (DataFile, ColumnStatistics))
_ONE_BYTE = 127
"""The largest number that takes one byte, as nearly all lengths do."""


class FileColumns:
    """A column for each field of `DataFile`; texts are in UTF-8, and may be None where they may be.

    The statistics of all files stand in a row, ``statistics[i]`` of them for file i.
    """

    def __init__(self) -> None:
        self.file_ids = array("q")
        self.paths: list[bytes] = []
        self.rows = array("q")
        self.bytes = array("q")
        self.partitions: list[bytes] = []
        self.statistics: list[int] = []
        self.column_ids = array("q")
        self.lowers: list[bytes | None] = []
        self.uppers: list[bytes | None] = []
        self.nulls: list[int | None] = []
        self.schema_versions = array("q")

    @classmethod
    def of(cls, files: Iterable[DataFile]) -> FileColumns:
        columns = cls()
        for file in files:
            columns.add(file)
        return columns

    @classmethod
    def read(cls, rows: Iterable[Row]) -> FileColumns:
        """The columns of the data files in ``rows``. Raises what `Row.as_` raises."""
        columns = cls()
        for row in rows:
            if not columns._add_stored(row):
                columns.add(row.as_(DataFile))
        return columns

    def add(self, file: DataFile) -> None:
        self.file_ids.append(file.file_id)
        self.paths.append(file.path.encode())
        self.rows.append(file.rows)
        self.bytes.append(file.bytes)
        self.partitions.append(file.partition.encode())
        self.statistics.append(len(file.statistics))
        for known in file.statistics:
            self.column_ids.append(known.column_id)
            self.lowers.append(None if known.lower is None else known.lower.encode())
            self.uppers.append(None if known.upper is None else known.upper.encode())
            self.nulls.append(known.nulls)
        self.schema_versions.append(file.schema_version)

    def _add_stored(self, row: Row) -> bool:
        """Add the file in ``row``; False, and nothing was added, for one of unusual form."""
        known = len(self.nulls)
        try:
            file = self._read_body(row)
        except (AttributeError, IndexError, ValueError, error):
            file = None
        if file is None:
            for column in (self.column_ids, self.lowers, self.uppers, self.nulls):
                del column[known:]
            return False
        file_id, path, rows, size, partition, schema_version = file
        self.file_ids.append(file_id)
        self.paths.append(path)
        self.rows.append(rows)
        self.bytes.append(size)
        self.partitions.append(partition)
        self.statistics.append(len(self.nulls) - known)
        self.schema_versions.append(schema_version)
        return True

    def _read_body(self, row: Row) -> tuple[int, bytes, int, int, bytes, int] | None:
        """The fields of the file in ``row``, whose statistics are added; None for unusual form."""
        body = row.body
        protocol, checksum = _SEAL.unpack_from(body)
        numbers = NUMBERS.pack(row.row_id, row.table_id, _KIND_NUMBER, row.bucket, row.write_id)
        content = memoryview(body)[_SEAL.size :]
        if (
            row.kind is not _KIND
            or protocol != PROTOCOL
            or crc32(content, crc32(row.name.encode(), crc32(numbers))) != checksum
            or not body.startswith(_FILE_HEADER, _SEAL.size)
        ):
            return None
        file_id, at = _number(body, _SEAL.size + len(_FILE_HEADER))
        path_at = at + 1
        at = path_at + body[at]
        path = body[path_at:at]
        rows, at = _number(body, at)
        size, at = _number(body, at)
        partition_at = at + 1
        at = partition_at + body[at]
        partition = body[partition_at:at]
        count = body[at]
        if (body[path_at - 1] | body[partition_at - 1] | count) > _ONE_BYTE:
            return None
        at += 1
        if count:
            if not body.startswith(_STATISTICS_HEADER, at):
                return None
            at = self._read_statistics(body, at + len(_STATISTICS_HEADER), count)
            if not at:
                return None
        schema_version, at = _number(body, at)
        if at != len(body):
            return None
        return file_id, path, rows, size, partition, schema_version

    def _read_statistics(self, body: bytes, at: int, count: int) -> int:
        """Add ``count`` statistics; where they end, or 0 where one is of unusual form."""
        add_id, add_nulls = self.column_ids.append, self.nulls.append
        add_lower, add_upper = self.lowers.append, self.uppers.append
        for _ in range(count):
            column_id, has_lower, length = body[at : at + 3]
            middle = at + 3 + length
            has_upper, upper_length = body[middle : middle + 2]
            end = middle + 2 + upper_length
            has_nulls, nulls = body[end : end + 2]
            if not has_lower == has_upper == has_nulls == 1:
                return 0
            if (column_id | length | upper_length | nulls) > _ONE_BYTE:
                return 0
            add_id(column_id)
            add_lower(body[at + 3 : middle])
            add_upper(body[middle + 2 : end])
            add_nulls(nulls)
            at = end + 2
        return at


class StoredDataFiles(Sequence[DataFile]):
    """The data files in rows, each decoded when it is looked at."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._rows = rows

    @overload
    def __getitem__(self, place: int) -> DataFile: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[DataFile]: ...
    def __getitem__(self, place: int | slice) -> DataFile | Sequence[DataFile]:
        if isinstance(place, slice):
            return StoredDataFiles(self._rows[place])
        return self._rows[place].as_(DataFile)

    def __len__(self) -> int:
        return len(self._rows)

    def columns(self) -> FileColumns:
        """All of them as columns."""
        return FileColumns.read(self._rows)


def _number(body: bytes, at: int) -> tuple[int, int]:
    """The UINT at ``at``, and where it ends. Raises `IndexError` unless it fits 63 bits."""
    byte = body[at]
    if byte < 128:
        return byte, at + 1
    value, shift = byte & 127, 7
    while True:
        at += 1
        byte = body[at]
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at + 1
        shift += 7
        if shift > 56:
            raise IndexError
