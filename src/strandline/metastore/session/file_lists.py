"""Lists of files as Arrow: how files are sent over HTTP, those of a snapshot and staged ones.

A snapshot of a large table has a hundred thousand files, which as JSON would cost seconds on both
sides. A body is a sequence of Arrow IPC streams in the schemas below: data files, delete files and,
for a staging, the paths of files that are replaced or changed. Each stream is present, even without
rows. The ids of a staging (transaction and table) are metadata of the first stream.

A body is checked exactly against these schemas, before reading it can cost more than its bytes:
compressed batches, which declare themselves how much memory they take, are refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import chain, pairwise
from typing import Any

import pyarrow as pa

from strandline import work
from strandline.errors import CorruptData, InvalidInput
from strandline.metastore.interface import TableFiles
from strandline.metastore.store.file_columns import (
    FileColumns,
    StoredDataFiles,
    booleans,
    lists,
    numbers,
    texts,
)
from strandline.metastore.store.rows import ColumnStatistics, DataFile, DeleteFile, DeleteForm
from strandline.model.partitioning import Partition
from strandline.wire.partitions import decode_partition

CONTENT_TYPE = "application/vnd.apache.arrow.stream"
STAGED_BYTES = 48 << 20
"""At most how many bytes of files one staging has: a node refuses bodies above 64 MiB.

Not much less, since each staging of a transaction reads the files of those before it.
"""
STAGED_FILES = 10_000
"""At most how many files one staging adds: some 0.2 seconds for which other writers wait.

A later one adds an eighth of the files before it if that is more, since it also reads those.
"""


def _columns(**types: pa.DataType) -> pa.Schema:
    return pa.schema([pa.field(name, of, nullable=False) for name, of in types.items()])


_STATISTICS = pa.struct(
    [
        pa.field("column_id", pa.int64(), nullable=False),
        pa.field("lower", pa.string()),
        pa.field("upper", pa.string()),
        pa.field("nulls", pa.int64()),
    ]
)
DATA_FILES = _columns(
    file_id=pa.int64(),
    path=pa.string(),
    rows=pa.int64(),
    bytes=pa.int64(),
    partition=pa.binary(),
    statistics=pa.list_(pa.field("element", _STATISTICS, nullable=False)),
    schema_version=pa.int64(),
)
DELETE_FILES = _columns(
    path=pa.string(),
    file_ids=pa.list_(pa.field("element", pa.int64(), nullable=False)),
    counts=pa.list_(pa.field("element", pa.int64(), nullable=False)),
    form=pa.int64(),
    bytes=pa.int64(),
)


CHANGES = _columns(path=pa.string(), touched=pa.bool_())
_IDS = ("txn_id", "table_id")
_DIGITS = 20
"""The number of digits of an id of a staging: it is fixed, so the positions of ids are known."""
_END = b"\xff\xff\xff\xff\x00\x00\x00\x00"
_INT64 = 1 << 63


def write_files(files: TableFiles) -> bytes:
    work.spend(len(files.data_files) + len(files.delete_files))
    return _stream(_HEADS[id(DATA_FILES)], DATA_FILES, _data_batches(files.data_files)) + _stream(
        _HEADS[id(DELETE_FILES)], DELETE_FILES, [_delete_files(files.delete_files)]
    )


def write_staging(arguments: Mapping[str, Any]) -> bytes:
    """Return the body for the arguments of `Session.stage`."""
    data_files = [file for file in arguments["add"] if isinstance(file, DataFile)]
    delete_files = [file for file in arguments["add"] if isinstance(file, DeleteFile)]
    paths = [*arguments["remove"], *arguments["touch"]]
    touched = [False] * len(arguments["remove"]) + [True] * len(arguments["touch"])
    deletes = [_delete_files(delete_files)] if delete_files else []
    changes = [[texts(paths), booleans(touched)]] if paths else []
    return (
        _stream(_staging_head(arguments), DATA_FILES, _data_batches(data_files))
        + _stream(_HEADS[id(DELETE_FILES)], DELETE_FILES, deletes)
        + _stream(_HEADS[id(CHANGES)], CHANGES, changes)
    )


def staged_parts(
    add: Sequence[DataFile | DeleteFile], *, remove: Sequence[str], touch: Sequence[str]
) -> Iterator[dict[str, Any]]:
    """The arguments of `Session.stage` for parts of about `STAGED_FILES`, at most `STAGED_BYTES`.

    One part if there are no files.

    Added files come last, so that delete files are with the data files that they touch.
    """
    if isinstance(remove, str) or isinstance(touch, str):
        yield {"add": add, "remove": remove, "touch": touch}  # refused: a path in place of a list
        return
    part: dict[str, Any] = {"add": [], "remove": [], "touch": []}  # Any: as arguments
    size, staged = 0, 0
    for name, files in (("remove", remove), ("touch", touch), ("add", add)):
        for file in files:
            file_size = len(ascii(file))  # more than the file takes in a body
            most_files = max(STAGED_FILES, staged // 8)
            is_full = size + file_size > STAGED_BYTES or len(part["add"]) >= most_files
            if size and is_full:
                yield part
                staged += len(part["add"])
                part, size = {"add": [], "remove": [], "touch": []}, 0
            part[name].append(file)
            size += file_size
    yield part


def _data_batches(files: Sequence[DataFile]) -> Iterator[list[pa.Array]]:
    parts = files.columns() if isinstance(files, StoredDataFiles) else [FileColumns.of(files)]
    for part in parts:
        children = [part.column_ids, part.lowers, part.uppers, part.nulls]
        statistics = pa.Array.from_buffers(_STATISTICS, len(part.nulls), [None], children=children)
        yield [
            part.file_ids,
            part.paths,
            part.rows,
            part.bytes,
            part.partitions,
            lists(DATA_FILES.field("statistics").type, part.statistics.to_pylist(), statistics),
            part.schema_versions,
        ]


def _delete_files(files: Sequence[DeleteFile]) -> list[pa.Array]:
    return [
        texts([row.path for row in files]),
        _number_lists("file_ids", [row.file_ids for row in files]),
        _number_lists("counts", [row.counts for row in files]),
        numbers([row.form.value for row in files]),
        numbers([row.bytes for row in files]),
    ]


def _number_lists(name: str, rows: Sequence[Sequence[int]]) -> pa.Array:
    elements = numbers(list(chain.from_iterable(rows)))
    return lists(DELETE_FILES.field(name).type, map(len, rows), elements)


def read_files(body: bytes) -> TableFiles:
    """The files in ``body``. Raises `InvalidInput` if it is not such a body."""
    source = _Source(body)
    files = TableFiles(_read_data_files(source), _read_delete_files(source))
    source.require_end()
    return files


def read_staging(body: bytes) -> dict[str, Any]:
    """The arguments of `Session.stage`. Raises `InvalidInput` if it is not such a body."""
    source = _Source(body)
    data_files, delete_files = _read_data_files(source), _read_delete_files(source)
    changes = list(source.rows(CHANGES))
    source.require_end()
    return {
        **{name: source.number(name) for name in _IDS},
        "add": (*data_files, *delete_files),
        "remove": tuple(path for path, touched in changes if not touched),
        "touch": tuple(path for path, touched in changes if touched),
    }


def _read_data_files(source: _Source) -> tuple[DataFile, ...]:
    partition_of = cache(_partition)  # many files share a partition
    return tuple(
        DataFile(
            file_id=file_id,
            path=path,
            rows=rows,
            bytes=size,
            partition=partition_of(partition),
            statistics=statistics,
            schema_version=schema_version,
        )
        for file_id, path, rows, size, partition, statistics, schema_version in source.rows(
            DATA_FILES
        )
    )


def _partition(data: bytes) -> Partition:
    try:
        return decode_partition(data)
    except CorruptData as error:
        raise InvalidInput(
            f"the partition of a data file in the list of files is invalid: {error.message}"
        ) from None


def _read_delete_files(source: _Source) -> tuple[DeleteFile, ...]:
    return tuple(
        DeleteFile(path=path, file_ids=file_ids, counts=counts, form=_form(form), bytes=size)
        for path, file_ids, counts, form, size in source.rows(DELETE_FILES)
    )


def _form(number: int) -> DeleteForm:
    try:
        return DeleteForm(number)
    except ValueError:
        known = ", ".join(f"{form.value} ({form.name})" for form in DeleteForm)
        raise InvalidInput(
            f"a delete file in the list of files has the unknown form {number}; the forms are "
            f"{known}"
        ) from None


class _Source:
    """The consecutive streams of a body."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._reader = pa.BufferReader(body)
        self._metadata: dict[bytes, bytes] = {}

    def rows(self, schema: pa.Schema) -> Iterator[tuple[Any, ...]]:
        """The rows of the next stream, which must have this schema."""
        for columns in self._batches(schema):
            yield from zip(*map(_values, columns), strict=True)

    def number(self, name: str) -> int:
        """A number in the metadata of the first stream."""
        text = self._metadata.get(name.encode(), b"").decode(errors="replace")
        if not re.fullmatch(r"-?[0-9]{1,20}", text) or not -_INT64 <= int(text) < _INT64:
            raise InvalidInput(
                f"{name} in the metadata of the first stream is {text[:80]!r}; write a whole"
                " number within 64 bits"
            )
        return int(text)

    def require_end(self) -> None:
        """Raise `InvalidInput` if the body goes on after the expected streams."""
        behind = len(self._body) - self._reader.tell()
        if behind:
            raise InvalidInput(f"the list of files ends {behind} bytes before its body does")

    def _known_head(self, schema: pa.Schema) -> int:
        """The bytes of the next stream before its rows, or 0 if they differ from what we write."""
        at, head = self._reader.tell(), _HEADS[id(schema)]
        if self._body.startswith(head, at):
            return len(head)
        if at == 0 and schema is DATA_FILES and (ids := _ids_in(self._body)):
            self._metadata = ids
            return _STAGING_HEAD_BYTES
        return 0

    def _batches(self, schema: pa.Schema) -> Iterator[list[pa.Array]]:
        """The columns of each batch of rows; most streams have none."""
        reader, size = self._reader, self._known_head(schema)
        reader.seek(reader.tell() + size)
        try:
            if not size:
                written = _schema(pa.ipc.read_message(reader))
                self._metadata = self._metadata or written.metadata or {}
                if not written.equals(schema):
                    raise InvalidInput(
                        "the list of files does not have exactly the columns "
                        f"{', '.join(schema.names)}; client and node may be of different releases"
                    )
            while not self._body.startswith(_END, reader.tell()):
                yield _checked(pa.ipc.read_message(reader), schema)
        except (pa.ArrowException, OSError) as error:
            raise InvalidInput(f"the list of files is not an Arrow stream: {error}") from error
        except EOFError:
            raise InvalidInput(
                "the list of files is not a complete Arrow stream: it was cut short; send it again"
            ) from None
        reader.seek(reader.tell() + len(_END))


def _schema(message: pa.ipc.Message) -> pa.Schema:
    if message.type != "schema":  # pyarrow accepts any message here and reads beyond its end
        raise InvalidInput(
            f"the list of files begins with a {message.type}; it must begin with a schema"
        )
    return pa.ipc.read_schema(message)


def _checked(message: pa.ipc.Message, schema: pa.Schema) -> list[pa.Array]:
    """The columns of a message. Checks what it declares before it allocates memory for it."""
    if message.type != "record batch" or _is_compressed(bytes(message.metadata)):
        raise InvalidInput(
            f"the list of files contains a {message.type}, or is compressed; send plain record "
            "batches"
        )
    batch = pa.ipc.read_record_batch(message, schema)
    batch.validate(full=True)
    if not batch.num_rows:
        raise InvalidInput("the list of files contains a record batch without rows; leave it out")
    columns: list[pa.Array] = batch.columns
    for column, name in zip(columns, schema.names, strict=True):
        required = [column]
        if isinstance(column, pa.ListArray):
            elements = column.values
            required.append(elements)
            if isinstance(elements, pa.StructArray):
                required.append(elements.field(0))
        if any(values.null_count for values in required):
            raise InvalidInput(f"{name} in the list of files must not be null")
    return columns


def _is_compressed(metadata: bytes) -> bool:
    """Whether the metadata of a record batch names a compression.

    A compressed buffer declares its own uncompressed size. pyarrow allocates that much, and offers
    no way to see it first. So this reads the flatbuffer, which pyarrow has verified. A flatbuffer
    table begins with the distance back to the positions of its fields. The compression is the
    fourth field of a `RecordBatch`, which is the third field of a `Message`.
    """

    def table(at: int) -> int:
        return at + int.from_bytes(metadata[at : at + 4], "little")

    def field(table_position: int, number: int) -> int:
        vtable = table_position - int.from_bytes(
            metadata[table_position : table_position + 4], "little", signed=True
        )
        entry = vtable + 4 + 2 * number
        if entry >= vtable + int.from_bytes(metadata[vtable : vtable + 2], "little"):
            return 0
        offset = int.from_bytes(metadata[entry : entry + 2], "little")
        return table_position + offset if offset else 0

    batch = table(field(table(0), 2))
    return field(batch, 3) != 0


def _values(column: pa.Array) -> Sequence[Any]:
    if not isinstance(column, pa.ListArray):
        values: list[Any] = column.to_pylist()
        return values
    offsets, elements = column.offsets.to_pylist(), column.values
    if isinstance(elements, pa.StructArray):
        fields = (elements.field(number).to_pylist() for number in range(4))
        flat = [
            ColumnStatistics(column_id=column_id, lower=lower, upper=upper, nulls=nulls)
            for column_id, lower, upper, nulls in zip(*fields, strict=True)
        ]
    else:
        flat = elements.to_pylist()
    return [tuple(flat[start:end]) for start, end in pairwise(offsets)]


def _head(schema: pa.Schema) -> bytes:
    """The bytes of a stream before its rows."""
    sink = pa.BufferOutputStream()
    pa.ipc.new_stream(sink, schema).close()
    return bytes(sink.getvalue()).removesuffix(_END)


def _stream(head: bytes, schema: pa.Schema, batches: Iterable[list[pa.Array]]) -> bytes:
    """A stream of these batches. Creating a pyarrow writer takes longer than writing them."""
    rows = [
        pa.RecordBatch.from_arrays(columns, schema=schema).serialize()
        for columns in batches
        if len(columns[0])
    ]
    return b"".join((head, *rows, _END))


_HEADS = {id(schema): _head(schema) for schema in (DATA_FILES, DELETE_FILES, CHANGES)}
_SLOTS = [f"{number}" * _DIGITS for number in range(1, len(_IDS) + 1)]
_BEFORE_TXN, _BETWEEN, _BEHIND_TABLE = re.split(
    "|".join(_SLOTS).encode(), _head(DATA_FILES.with_metadata(dict(zip(_IDS, _SLOTS, strict=True))))
)
"""The parts of the head of a staging's first stream, before, between and after its ids."""
_TXN_AT = len(_BEFORE_TXN)
_TABLE_AT = _TXN_AT + _DIGITS + len(_BETWEEN)
_STAGING_HEAD_BYTES = _TABLE_AT + _DIGITS + len(_BEHIND_TABLE)


def _staging_head(arguments: Mapping[str, Any]) -> bytes:
    """The head of a staging's first stream. Raises `InvalidInput` for wrong ids."""
    for name in _IDS:
        number = arguments[name]
        if type(number) is not int or not -_INT64 <= number < _INT64:
            raise InvalidInput(f"{name} is {number!r:.80}; give a whole number within 64 bits")
    txn_id, table_id = (f"{arguments[name]:0{_DIGITS}d}".encode() for name in _IDS)
    return b"".join((_BEFORE_TXN, txn_id, _BETWEEN, table_id, _BEHIND_TABLE))


def _ids_in(body: bytes) -> dict[bytes, bytes]:
    """The ids in a body that begins as `_staging_head` writes it, else an empty dict."""
    if (
        body.startswith(_BEFORE_TXN)
        and body.startswith(_BETWEEN, _TXN_AT + _DIGITS)
        and body.startswith(_BEHIND_TABLE, _TABLE_AT + _DIGITS)
    ):
        slots = (body[at : at + _DIGITS] for at in (_TXN_AT, _TABLE_AT))
        return {name.encode(): slot for name, slot in zip(_IDS, slots, strict=True)}
    return {}
