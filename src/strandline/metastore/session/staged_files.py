"""Checks of the files that a client stages.

Every later reader reads the row about a file. So these are refused when the file is staged:

* a path that leaves the folder of the table: readers would take files of other tables, or of no
  table, for its rows;
* a name that Spark skips: Spark would leave out the file's rows, or bring deleted rows back;
* a file id that another file has, or that is in the range of another transaction: delete files name
  data files by their ids;
* positions of rows in a data file that the transaction does not see, or more of them than the file
  has rows left.

The texts of paths and names are checked before anything is written, symbolic links and the rest in
the SQL transaction that stages.

A file id is the id of the transaction that adds the file, above `FILE_NUMBER_BITS` bits that number
its files. Ids without a transaction id in them may be assigned by hand. Up to 0.2.1 the write id
was in the place of the transaction id. Each write id of a table belongs to its own transaction, so
all file ids from such a store are below the ids of the transactions that follow.
"""

from __future__ import annotations

import os
import re
import stat
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain, repeat

from strandline.errors import AlreadyExists, InvalidInput, WriteConflict
from strandline.metastore.store.file_scans import DATA_FOLDER, DELETES_FOLDER
from strandline.metastore.store.rows import (
    FILE_NUMBER_BITS,
    TABLE_LEVEL,
    DataFile,
    DeleteFile,
    DeleteForm,
    NewRow,
    Row,
    RowKind,
)
from strandline.metastore.store.staging import Staging
from strandline.metastore.store.warehouse import MAX_PART_BYTES, MAX_PATH_BYTES
from strandline.metastore.store.zone_partitions import ZonePartitions, common
from strandline.model.partitioning import MAX_VALUE_BYTES, PartitionValue
from strandline.wire.codecs import is_text, uint_bytes

_LARGEST = (1 << 63) - 1
_MAX_COUNT = _LARGEST >> FILE_NUMBER_BITS
"""The most rows or bytes of one data file: those of all files of a transaction fit 64 bits."""
_FEW_IDS = 100
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_NOT_READ = re.compile(r"_[^=]*|\..*|.*\._COPYING_")


def stage_files(
    staging: Staging,
    add: Sequence[DataFile | DeleteFile],
    rows: Sequence[NewRow],
    *,
    remove: Collection[str],
    touch: Collection[str],
    zone: ZonePartitions | None,
    deletes: Iterable[Row],
) -> None:
    """Stage files; see `Session.stage`. Repeating the same call changes nothing.

    ``rows`` are those of ``add``, without buckets: other writers need not wait for their encoding.
    ``deletes`` are the delete files that the transaction saw before and `that_may_name` the same
    data files as those in ``add``.
    ``zone`` says where files of the table belong; None if the table has been dropped since.
    """
    if not (add or remove or touch):
        return  # an event without rows would announce a write that did not happen
    try:
        removed = _seen(staging, remove, "removed")
        touched = _seen(staging, touch, "changed")
        _check_data_files(staging, [file for file in add if isinstance(file, DataFile)])
        named_rows = _check_deletes(staging, add, deletes, removed=removed, touched=touched)
        buckets = _buckets(add, named_rows, zone) if zone is not None else repeat(TABLE_LEVEL)
        staging.stage(
            add=[
                NewRow(row.kind, row.name, row.body, bucket)
                for row, bucket in zip(rows, buckets, strict=False)
            ],
            remove=[row.row_id for row in removed],
            touch={row.row_id for row in (*touched, *named_rows)},
        )
    except (AlreadyExists, InvalidInput, WriteConflict):
        if not _is_repeated(staging, add, remove):
            raise


def _buckets(
    add: Sequence[DataFile | DeleteFile], named_rows: Iterable[Row], zone: ZonePartitions
) -> Iterator[int]:
    """The bucket of each file. A delete file gets that of its data files, if they share one."""
    of_ids = {row.as_(DataFile).file_id: row.bucket for row in named_rows}
    new = [file for file in add if isinstance(file, DataFile)]
    of_ids |= {file.file_id: zone.of_file(file.partition) for file in new}
    for file in add:
        file_ids = (file.file_id,) if isinstance(file, DataFile) else file.file_ids
        yield common(of_ids[file_id] for file_id in file_ids)


def _is_repeated(
    staging: Staging, add: Sequence[DataFile | DeleteFile], remove: Collection[str]
) -> bool:
    """Whether exactly this was staged before: the answer was lost, and the client repeats it."""
    own_contents = {row.name: row.content for row in staging.own_rows()}
    if not all(own_contents.get(file.path) == file for file in add):
        return False
    return bool(add or remove) and {row.name for row in staging.own_removals()}.issuperset(remove)


def _seen(staging: Staging, paths: Collection[str], change: str) -> list[Row]:
    """The files with these paths. Raises `WriteConflict` if the transaction does not see one."""
    rows = staging.find_files(paths)
    for path in paths:
        if path not in rows:
            raise WriteConflict(
                f"file {path[:200]!r} of table {staging.table_id} cannot be {change}: transaction"
                f" {staging.txn_id} does not see such a file; read again, and begin again"
            )
    return list(rows.values())


def _require_text(text: str, what: str, path: str) -> None:
    if not isinstance(text, str):
        raise InvalidInput(f"{what} of file {path!r:.200} is not a string: {text!r:.80}")
    if not is_text(text):
        raise InvalidInput(
            f"the path {path!r:.200} of a file, or {what} of that file, contains half a surrogate "
            "pair"
        )


def check_staging(
    add: Sequence[DataFile | DeleteFile], *, remove: Sequence[str], touch: Sequence[str]
) -> None:
    """Raise `InvalidInput` for files that are invalid in themselves, whatever their table."""
    for paths in (remove, touch):
        if isinstance(paths, str) or not all(isinstance(path, str) for path in paths):
            raise InvalidInput("give the files to remove or to touch as a list of paths")
        for path in paths:
            _require_text(path, "the path", path)
    for file in add:
        match file:
            case DataFile():
                numbers = [file.file_id, file.rows, file.bytes, file.schema_version]
                texts = [file.path]
                _check_partition(file)
                for column in file.statistics:
                    numbers += [column.column_id, 0 if column.nulls is None else column.nulls]
                    texts += [column.lower or "", column.upper or ""]
                columns = [column.column_id for column in file.statistics]
            case DeleteFile():
                numbers = [*file.file_ids, *file.counts, file.bytes]
                texts, columns = [file.path], []
                if not isinstance(file.form, DeleteForm):
                    raise InvalidInput(
                        f"delete file {file.path!r:.200} has the form {file.form!r:.80}; give a"
                        " DeleteForm"
                    )
            case _:
                raise InvalidInput(f"{file!r:.80} is not a file; give a DataFile or a DeleteFile")
        if not file.path:
            raise InvalidInput("a file needs a path, relative to the location of its table")
        if not all(type(number) is int and 0 <= number <= _LARGEST for number in numbers):
            raise InvalidInput(
                f"file {file.path!r:.200} has rows, bytes or ids that are not whole numbers, 0 to"
                f" {_LARGEST}: {numbers!r:.200}"
            )
        if isinstance(file, DataFile) and max(file.rows, file.bytes) > _MAX_COUNT:
            raise InvalidInput(
                f"file {file.path!r:.200} has {file.rows} rows and {file.bytes} bytes; a data file "
                f"has at most {_MAX_COUNT} of each"
            )
        for text in texts:
            _require_text(text, "a string", file.path)
        if len(set(columns)) < len(columns):
            raise InvalidInput(f"file {file.path!r:.200} has statistics of one column twice")


def _check_partition(file: DataFile) -> None:
    partition = file.partition
    if not isinstance(partition, tuple) or not all(
        isinstance(partition_value, PartitionValue) and type(partition_value.field_id) is int
        for partition_value in partition
    ):
        raise InvalidInput(
            f"the partition of file {file.path!r:.200} is {partition!r:.80}; give a PartitionValue"
            " for each partition field of the table"
        )
    for partition_value in partition:
        value = partition_value.value
        if isinstance(value, str):
            _require_text(value, "the partition", file.path)
            size = len(value.encode())
        elif isinstance(value, int):
            size = value.bit_length() // 8
        elif isinstance(value, bytes):
            size = len(value)
        elif value is None:
            continue
        else:
            raise InvalidInput(
                f"the partition of file {file.path!r:.200} has the value {value!r:.80}; give a"
                " bool, int, str, bytes or None"
            )
        if not 0 <= partition_value.field_id <= _LARGEST or size > MAX_VALUE_BYTES:
            raise InvalidInput(
                f"the partition of file {file.path!r:.200} has a value of {size} bytes in the field"
                f" {partition_value.field_id}; at most {MAX_VALUE_BYTES} are allowed: partition by"
                " truncate or bucket"
            )


def refuse_links(files: Iterable[DataFile | DeleteFile], *, folder: str | None) -> None:
    """Raise `InvalidInput` for a path that leaves the folder of the table by a symbolic link.

    ``folder`` is the path of the table's local folder, or None if the table is elsewhere: then
    nothing is refused.
    """
    seen: set[str] = set()
    for file in files if folder is not None else ():
        inner = ""
        for part in file.path.split("/"):
            inner = f"{inner}/{part}"
            if inner not in seen:
                seen.add(inner)
                _refuse_link(f"{folder}{inner}", path=file.path)


def check_path(path: str) -> None:
    """Raise `InvalidInput` for a path that leaves the table's folder by its text, or is invalid.

    For a file that passed `check_staging`.
    """
    parts = path.split("/")
    if (
        path.startswith("/")
        or _SCHEME.match(path)
        or any(part in ("", ".", "..") for part in parts)
    ):
        raise InvalidInput(
            f"the path {path[:200]!r} of a file leads, or may lead, out of the folder of its "
            "table; give a path relative to that folder, without '.', '..' or empty parts"
        )
    if _NOT_READ.fullmatch(parts[-1]):
        raise InvalidInput(
            f"the path {path[:200]!r} of a file ends in a name that Spark skips as a temporary "
            "file; begin the name with a letter or a digit"
        )
    if parts[0] in (DATA_FOLDER, DELETES_FOLDER) and len(parts) != 2:
        raise InvalidInput(
            f"the path {path[:200]!r} of a file leads through a subfolder of {parts[0]}; put the "
            f"file directly into {parts[0]}"
        )
    if _CONTROL.search(path):
        raise InvalidInput(f"the path {path[:200]!r} of a file contains control characters")
    encoded = path.encode()
    if len(encoded) > MAX_PATH_BYTES or max(map(len, encoded.split(b"/"))) > MAX_PART_BYTES:
        raise InvalidInput(f"the path {path[:80]!r}… of a file is too long for any file system")


def _refuse_link(full_path: str, *, path: str) -> None:
    try:
        status = os.lstat(full_path)
    except OSError:
        return  # it does not exist: its reader gets an error
    if stat.S_ISLNK(status.st_mode):
        raise InvalidInput(
            f"the path {path!r} of a file leads through the symbolic link {full_path}, which may"
            " leave the folder of its table; give the path of the file itself"
        )


def _check_data_files(staging: Staging, data: Sequence[DataFile]) -> None:
    """Raise `InvalidInput` for an id that a new file of the transaction cannot have."""
    if not data:
        return
    # A file that is staged again under its own path is refused by its name, since that exists.
    paths: dict[int, str] = {}
    for file in data:
        if paths.setdefault(file.file_id, file.path) != file.path:
            raise InvalidInput(
                f"two data files have the id {file.file_id}; give each file its own id"
            )
    by_hand = set()
    for file in data:
        owner = file.file_id >> FILE_NUMBER_BITS
        if owner == staging.txn_id:
            continue
        if owner:
            raise InvalidInput(
                f"the id {file.file_id} of {file.path!r} belongs to transaction {owner}; number "
                f"the files of this transaction from {staging.txn_id << FILE_NUMBER_BITS} on"
            )
        by_hand.add(file.file_id)
    # If all ids are in the transaction's own range, only its own files can have the same id.
    taken = staging.paths_of_files(own=not by_hand)
    taken_ids = [file_id for file_id, path in paths.items() if taken.get(file_id, path) != path]
    if taken_ids:
        raise InvalidInput(
            f"another data file of the table already has the id {taken_ids[0]}; number the files "
            f"of this transaction from {staging.txn_id << FILE_NUMBER_BITS} on"
        )


def _check_deletes(
    staging: Staging,
    add: Sequence[DataFile | DeleteFile],
    deletes: Iterable[Row],
    *,
    removed: Sequence[Row],
    touched: Sequence[Row],
) -> list[Row]:
    """The data files of the table from which the delete files in ``add`` delete rows.

    Raises `InvalidInput` if more rows are deleted than exist, `WriteConflict` for files that the
    transaction does not see.
    """
    deleted_rows: Counter[int] = Counter()
    for file in add:
        if isinstance(file, DeleteFile):
            if len(set(file.file_ids)) != len(file.file_ids):
                raise InvalidInput(
                    f"delete file {file.path!r} names a data file twice; name it once"
                )
            deleted_rows.update(dict(zip(file.file_ids, file.counts, strict=True)))
    if not deleted_rows:
        return []
    rows = {file.file_id: file.rows for file in add if isinstance(file, DataFile)}
    data_files = _by_file_id(row for row in touched if row.kind is RowKind.DATA_FILE)
    if deleted_rows.keys() - rows.keys() - data_files.keys():
        data_files = _by_file_id(staging.visible(RowKind.DATA_FILE).values())
    rows |= {file_id: row.as_(DataFile).rows for file_id, row in data_files.items()}
    foreign = deleted_rows.keys() - rows.keys()
    if foreign:
        raise WriteConflict(
            f"data file {min(foreign)} is not in the table as the transaction sees it, so no rows"
            " of it can be deleted; read again, and begin again"
        )
    removed_ids = {row.row_id for row in (*removed, *staging.own_removals())}
    others = (row for row in deletes if row.write_id != staging.write_id)
    for row in chain(others, that_may_name(staging.own_rows(RowKind.DELETE_FILE), add)):
        if row.row_id in removed_ids:
            continue
        file = row.as_(DeleteFile)
        for file_id, count in zip(file.file_ids, file.counts, strict=True):
            if file_id in deleted_rows:
                deleted_rows[file_id] += count
    for file_id, count in deleted_rows.items():
        if count > rows[file_id]:
            raise InvalidInput(
                f"{count} rows of data file {file_id} would be deleted, but it has {rows[file_id]}"
            )
    return [data_files[file_id] for file_id in deleted_rows if file_id in data_files]


def that_may_name(rows: Iterable[Row], add: Sequence[DataFile | DeleteFile]) -> list[Row]:
    """Those of the delete files in ``rows`` that may name a data file which one in ``add`` names.

    It looks for the bytes of the ids. A table may have thousands of delete files, and to decode
    them takes twenty times as long.
    """
    deletes = (file for file in add if isinstance(file, DeleteFile))
    file_ids = set(chain.from_iterable(file.file_ids for file in deletes))
    if len(file_ids) > _FEW_IDS:
        return list(rows)
    encoded_ids = [uint_bytes(file_id) for file_id in file_ids]
    return [row for row in rows if any(file_id in row.body for file_id in encoded_ids)]


def _by_file_id(rows: Iterable[Row]) -> dict[int, Row]:
    return {row.as_(DataFile).file_id: row for row in rows}
