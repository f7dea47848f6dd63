"""The data files of a table as columns, read from their stored rows without an object for each.

The problem: a snapshot of a large table has a hundred thousand data files, each with statistics of
several columns. Most readers want all of them, as Arrow. Making an object for each file and each
statistic, or running interpreter code for each field, takes longer than everything else.

The model: the bodies of many rows are concatenated, with a current position in each body
(`_Bodies`). A field is read from all bodies at once, which advances all positions. Texts are not
copied from their bodies: the bytes are split at the begin and end of each text, and every second
piece is a text.

What must stay true: the columns equal those made from the objects. Every format of a released
version is read. If a checksum is wrong, or a body is longer or shorter than its fields, the rows
are decoded as objects instead, which raises the right error.
"""

from __future__ import annotations

import struct
from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, chain, repeat
from operator import eq
from typing import cast, overload
from zlib import crc32

import pyarrow as pa
import pyarrow.compute as pc

from strandline.metastore.store.rows import NUMBERS, ColumnStatistics, DataFile, Row, RowKind
from strandline.model.partitioning import Partition
from strandline.wire.partitions import decode_partition, encode_partition
from strandline.wire.registry import PROTOCOL, newest_header

PART, KEYED = 10_000, 1_000
"""The number of files read at once: their bytes and numbers fit in the processor's cache.

`KEYED` of them if only ids or partition values are read: a thread of a node does that, and a step
of it must be short.
"""
FEW, FEW_DECODED = 32, 400
"""Up to this many files are faster one by one: `FEW_DECODED` if they are decoded already."""
_UNKNOWN_BYTES = (AttributeError, IndexError, TypeError, ValueError, struct.error)
"""What reading columns raises if a row must be decoded to learn what is wrong with it."""
_KIND = RowKind.DATA_FILE
_SEAL = struct.Struct("<HI")
_FILE_HEADER, _STATISTICS_HEADER = (newest_header(of) for of in (DataFile, ColumnStatistics))
_VERSIONED, _TYPED = 2, 3
"""The format versions of a data file that added its schema version, and its partition values.

Versions before `_TYPED` have a text without meaning in the place of the partition values.
"""


@dataclass(frozen=True, slots=True, eq=False)
class FileColumns:
    """A column for each field of `DataFile`: numbers of 64 bits, texts in UTF-8.

    Partitions are the bytes that `strandline.wire.partitions` writes. The statistics of all files
    are concatenated: ``statistics[i]`` is their number in file i.
    """

    file_ids: pa.Array
    paths: pa.Array
    rows: pa.Array
    bytes: pa.Array
    partitions: pa.Array
    statistics: pa.Array
    column_ids: pa.Array
    lowers: pa.Array
    uppers: pa.Array
    nulls: pa.Array
    schema_versions: pa.Array

    @classmethod
    def of(cls, files: Sequence[DataFile]) -> FileColumns:
        statistics = list(chain.from_iterable(file.statistics for file in files))
        return cls(
            file_ids=numbers([file.file_id for file in files]),
            paths=texts([file.path for file in files]),
            rows=numbers([file.rows for file in files]),
            bytes=numbers([file.bytes for file in files]),
            partitions=binaries([encode_partition(file.partition) for file in files]),
            statistics=numbers([len(file.statistics) for file in files]),
            column_ids=numbers([of.column_id for of in statistics]),
            lowers=texts([of.lower for of in statistics]),
            uppers=texts([of.upper for of in statistics]),
            nulls=numbers([of.nulls for of in statistics]),
            schema_versions=numbers([file.schema_version for file in files]),
        )

    @classmethod
    def read(cls, rows: Sequence[Row]) -> FileColumns:
        """The columns of the data files in ``rows``. Raises what `Row.as_` raises."""
        try:
            return _read(rows)
        except _UNKNOWN_BYTES:
            return cls.of([row.as_(DataFile) for row in rows])


class StoredDataFiles(Sequence[DataFile]):
    """The data files in rows, each decoded when it is accessed."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._rows = rows

    @overload
    def __getitem__(self, index: int) -> DataFile: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[DataFile]: ...
    def __getitem__(self, index: int | slice) -> DataFile | Sequence[DataFile]:
        if isinstance(index, slice):
            return StoredDataFiles(self._rows[index])
        return self._rows[index].as_(DataFile)

    def __len__(self) -> int:
        return len(self._rows)

    def columns(self) -> Iterator[FileColumns]:
        """Yield all of them as columns, `PART` files at a time."""
        count = len(self._rows)
        few = FEW_DECODED if all(map(Row.is_decoded, self._rows[:FEW_DECODED])) else FEW
        if 0 < count <= few:
            yield FileColumns.of(list(self))
            return
        for first in range(0, count, PART):
            yield FileColumns.read(self._rows[first : first + PART])


def by_partition(rows: Sequence[Row]) -> dict[Partition, list[Row]]:
    """The data files in ``rows`` by partition values. Raises what `Row.as_` raises.

    Nothing else in a file is decoded: that would take ten times as long.
    """
    grouped: defaultdict[bytes, list[Row]] = defaultdict(list)
    for first in range(0, len(rows), KEYED):
        some = rows[first : first + KEYED]
        for key, row in zip(_partition_keys(some), some, strict=True):
            grouped[key].append(row)
    return {decode_partition(key): of_key for key, of_key in grouped.items()}


def paths_by_id(rows: Sequence[Row]) -> dict[int, str]:
    """The paths of the data files in ``rows``, by file id. Raises what `Row.as_` raises.

    Nothing else in a file is decoded, as in `by_partition`.
    """
    paths: dict[int, str] = {}
    for first in range(0, len(rows), KEYED):
        some = rows[first : first + KEYED]
        paths |= zip(_file_ids(some), (row.name for row in some), strict=True)
    return paths


def without_statistics(rows: Sequence[Row]) -> list[DataFile]:
    """The data files in ``rows``, without their statistics. Raises what `Row.as_` raises."""
    files: list[DataFile] = []
    partition_of = cache(decode_partition)  # many files share a partition
    for columns in StoredDataFiles(rows).columns():
        values = zip(
            columns.file_ids.to_pylist(),
            columns.paths.to_pylist(),
            columns.rows.to_pylist(),
            columns.bytes.to_pylist(),
            columns.partitions.to_pylist(),
            columns.schema_versions.to_pylist(),
            strict=True,
        )
        files += (
            DataFile(
                file_id=file_id,
                path=path,
                rows=row_count,
                bytes=size,
                partition=partition_of(partition),
                schema_version=schema_version,
            )
            for file_id, path, row_count, size, partition, schema_version in values
        )
    return files


# -- columns from values, without `pyarrow.array`, which would import pandas ---------------------


def numbers(values: Sequence[int | None]) -> pa.Array:
    if isinstance(values, array):
        return pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(values)], 0)
    if None not in values:
        filled = array("q", cast("Sequence[int]", values))
        return pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(filled)], 0)
    filled = array("q", [0 if value is None else value for value in values])
    return _column(pa.int64(), values, pa.py_buffer(filled))


def texts(values: Sequence[str | None]) -> pa.Array:
    encoded = [(value or "").encode() for value in values]
    return _column(pa.string(), values, *_pieces(encoded))


def binaries(values: Sequence[bytes]) -> pa.Array:
    return _column(pa.binary(), values, *_pieces(values))


def _pieces(values: Sequence[bytes]) -> tuple[pa.Buffer, pa.Buffer]:
    return pa.py_buffer(_starts(map(len, values))), pa.py_buffer(b"".join(values))


def booleans(values: Sequence[bool]) -> pa.Array:
    return pa.Array.from_buffers(pa.bool_(), len(values), [None, _bits(values)])


def lists(of: pa.DataType, lengths: Iterable[int], elements: pa.Array) -> pa.Array:
    """A column of lists of these lengths, with their elements concatenated in ``elements``."""
    starts = _starts(lengths)
    return pa.Array.from_buffers(
        of, len(starts) - 1, [None, pa.py_buffer(starts)], children=[elements]
    )


def _starts(lengths: Iterable[int]) -> array[int]:
    """The start of each piece, for pieces of these lengths, and the end of the last one."""
    return array("i", accumulate(lengths, initial=0))


def _column(data_type: pa.DataType, values: Sequence[object], *buffers: pa.Buffer) -> pa.Array:
    """The column of these buffers, null where ``values`` is None."""
    nulls = values.count(None)
    valid = _bits([value is not None for value in values]) if nulls else None
    return pa.Array.from_buffers(data_type, len(values), [valid, *buffers], nulls)


def _bits(values: Sequence[bool]) -> pa.Buffer:
    """A bit for each value, the lowest bit first."""
    bits = bytearray((len(values) + 7) // 8)
    for index, value in enumerate(values):
        bits[index >> 3] |= value << (index & 7)
    return pa.py_buffer(bits)


# -- columns from stored rows --------------------------------------------------------------------


def _compared(rows: Sequence[Row]) -> tuple[bytes, ...]:
    """Return the bodies. Raises `ValueError` unless all are data files with right checksums."""
    row_ids, table_ids, kinds, buckets, names, write_ids, bodies = zip(*rows, strict=True)
    _require(set(kinds) == {_KIND})
    contexts = map(NUMBERS.pack, row_ids, table_ids, repeat(_KIND.value), buckets, write_ids)
    sealed = map(crc32, map(str.encode, names), map(crc32, contexts))
    checksums = map(crc32, [body[_SEAL.size :] for body in bodies], sealed)
    seals = map(_SEAL.unpack_from, bodies)
    _require(all(map(eq, seals, zip(repeat(PROTOCOL), checksums))))
    return bodies


def _partition_keys(rows: Sequence[Row]) -> list[bytes]:
    """The encoded partition values of each of the data files in ``rows``."""
    files = _files(rows)
    if files is None:
        return [encode_partition(row.as_(DataFile).partition) for row in rows]
    keys: list[bytes] = files.partitions.to_pylist()
    return keys


def _file_ids(rows: Sequence[Row]) -> list[int]:
    """The file id of each of the data files in ``rows``."""
    files = _files(rows)
    if files is None:
        return [row.as_(DataFile).file_id for row in rows]
    file_ids: list[int] = files.file_ids.to_pylist()
    return file_ids


def _files(rows: Sequence[Row]) -> _Files | None:
    """None if the rows are too few for a gain, or must be decoded to learn what is wrong."""
    if len(rows) > FEW:
        with suppress(*_UNKNOWN_BYTES):
            return _Files(rows)
    return None


class _Files:
    """The fields of the data files in ``rows`` up to their partition values.

    Their checksums are compared. Raises `ValueError` or `IndexError` unless all are data files of
    formats known here. ``bodies`` are read up to the field after them.
    """

    def __init__(self, rows: Sequence[Row]) -> None:
        records = _compared(rows)
        lengths = array("q", map(len, records))
        self.ends = numbers(array("q", accumulate(lengths)))
        starts = pc.subtract(self.ends, numbers(lengths))
        self.bodies = bodies = _Bodies(
            pa.py_buffer(b"".join((*records, b"\0"))),  # one more byte, to read ahead
            pc.add(starts, _number(_SEAL.size)),
        )
        bodies.skip(_FILE_HEADER[:-1])
        self.versions = versions = bodies.number()
        _require_all(
            pc.and_(pc.greater(versions, _number(0)), pc.less_equal(versions, _number(_TYPED)))
        )
        self.file_ids, self.paths = bodies.number(), bodies.text()
        self.row_counts, self.sizes = bodies.number(), bodies.number()
        begins, ends = bodies.text()
        ends = pc.if_else(pc.equal(versions, _number(_TYPED)), ends, begins)
        self.partitions = bodies.cut(begins, ends).cast(pa.binary())


def _read(rows: Sequence[Row]) -> FileColumns:
    """The columns of ``rows``. Raises what `_Files` raises."""
    files = _Files(rows)
    bodies = files.bodies
    counts = bodies.number()
    column_ids, lowers, uppers, nulls = _read_statistics(bodies, counts)
    schema_versions = bodies.number(pc.greater_equal(files.versions, _number(_VERSIONED)))
    _require_all(pc.equal(bodies.positions, files.ends))
    return FileColumns(
        file_ids=files.file_ids,
        paths=bodies.cut(*files.paths),
        rows=files.row_counts,
        bytes=files.sizes,
        partitions=files.partitions,
        statistics=counts,
        column_ids=column_ids,
        lowers=lowers,
        uppers=uppers,
        nulls=nulls,
        schema_versions=schema_versions,
    )


def _read_statistics(
    bodies: _Bodies, counts: pa.Array
) -> tuple[pa.Array, pa.Array, pa.Array, pa.Array]:
    """Return column ids, lower bounds, upper bounds and nulls; body i has ``counts[i]`` of each."""
    has_any = pc.greater(counts, _number(0))
    if not pc.any(has_any).as_py():
        return numbers([]), texts([]), texts([]), numbers([])
    bodies.skip(_STATISTICS_HEADER, has_any)
    firsts = pc.subtract(pc.cumulative_sum(counts), counts)
    rounds: list[tuple[pa.Array, ...]] = []  # the first statistics of all bodies, the second …
    for round_ in range(pc.max(counts).as_py()):
        where = pc.greater(counts, _number(round_))
        some = bodies.some(where)
        position, column_id = pc.add(firsts.filter(where), _number(round_)), some.number()
        has_lower = some.flag()
        lower = some.text(has_lower)
        has_upper = some.flag()
        upper = some.text(has_upper)
        has_nulls = some.flag()
        nulls = pc.if_else(has_nulls, some.number(has_nulls), _number(None))
        rounds.append((position, column_id, has_lower, *lower, has_upper, *upper, nulls))
        bodies.positions = pc.replace_with_mask(bodies.positions, where, some.positions)
    positions, *columns = (pa.concat_arrays(parts) for parts in zip(*rounds, strict=True))
    order = pc.sort_indices(positions)
    ids, has_lower, lower_begin, lower_end, has_upper, upper_begin, upper_end, nulls = (
        column.take(order) for column in columns
    )
    return (
        ids,
        bodies.cut(lower_begin, lower_end, where=has_lower),
        bodies.cut(upper_begin, upper_end, where=has_upper),
        nulls,
    )


class _Bodies:
    """The concatenated bodies of rows, and the position of the next field in each of them.

    With ``where``, only bodies with a true value there have the field: for the others, the number
    is 0, the text is empty, and the position stays. Reading raises `ValueError` for invalid bytes,
    and `IndexError` beyond the end of the last body.
    """

    def __init__(self, data: pa.Buffer, positions: pa.Array) -> None:
        self._data = data
        self._bytes = pa.Array.from_buffers(pa.uint8(), data.size, [None, data])
        self.positions = positions

    def some(self, where: pa.Array) -> _Bodies:
        """The bodies with a true value in ``where``."""
        return _Bodies(self._data, self.positions.filter(where))

    def number(self, where: pa.Array | None = None) -> pa.Array:
        """Read the next number of each body, of at most 63 bits."""
        value, step = self._byte(), _number(1)
        if where is not None:
            step = where.cast(pa.int64())
            value = pc.multiply(value, step)
        self.positions = pc.add(self.positions, step)
        for shift in range(7, 63, 7):
            # The highest bit of a byte says that another byte follows, whose bits replace it.
            top = _number(1 << shift)
            has_more = pc.greater_equal(value, top)
            if not pc.any(has_more).as_py():
                return value
            step = has_more.cast(pa.int64())
            more = pc.subtract(pc.shift_left(self._byte(), _number(shift)), top)
            value = pc.add(value, pc.multiply(more, step))
            self.positions = pc.add(self.positions, step)
        _require_all(pc.greater_equal(value, _number(0)))  # else it has more than 63 bits
        return value

    def flag(self) -> pa.Array:
        """Read the next truth value of each body."""
        value = self.number()
        _require_all(pc.less_equal(value, _number(1)))
        return pc.equal(value, _number(1))

    def text(self, where: pa.Array | None = None) -> tuple[pa.Array, pa.Array]:
        """Pass the next text of each body; return where each begins and ends."""
        length = self.number(where)
        begins, self.positions = self.positions, pc.add(self.positions, length)
        return begins, self.positions

    def skip(self, expected: bytes, where: pa.Array | None = None) -> None:
        """Pass these bytes, each below 128. Raises `ValueError` if a body has others."""
        for byte in expected:
            number = self.number(where)
            _require_all(pc.equal(number if where is None else number.filter(where), _number(byte)))

    def cut(self, begins: pa.Array, ends: pa.Array, *, where: pa.Array | None = None) -> pa.Array:
        """The texts from ``begins`` to ``ends``, both ascending; null where ``where`` is false."""
        cuts = array("i", bytes(4 * (2 * len(begins) + 1)))
        cuts[1::2], cuts[2::2] = _ints(begins), _ints(ends)
        pieces = pa.Array.from_buffers(
            pa.string(), len(cuts) - 1, [None, pa.py_buffer(cuts), self._data]
        )
        positions = numbers(array("q", range(1, len(cuts), 2)))
        if where is not None:
            positions = pc.if_else(where, positions, _number(None))
        return pieces.take(positions)

    def _byte(self) -> pa.Array:
        return self._bytes.take(self.positions).cast(pa.int64())


def _ints(values: pa.Array) -> array[int]:
    """These numbers as 32-bit integers."""
    ints = array("i")
    ints.frombytes(memoryview(values.cast(pa.int32()).buffers()[1])[: 4 * len(values)])
    return ints


@cache
def _number(value: int | None) -> pa.Scalar:
    """A scalar, cached, since few are used. `pyarrow.scalar` would import pandas."""
    return numbers([value])[0]


def _require_all(values: pa.Array) -> None:
    _require(pc.all(values, min_count=0).as_py())


def _require(holds: bool) -> None:
    if not holds:
        raise ValueError("the bytes are not those of a data file")
