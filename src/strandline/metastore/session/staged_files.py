"""What a client may say of the files that it stages.

A row about a file is read by every later reader, so what cannot be is refused when it is staged:

* a path that leaves the folder of the table: readers would take files of other tables, or of
  no table, for its rows;
* a file id that another file has, or that lies in the range of another transaction: delete files
  name data files by it;
* positions of rows in a data file that the transaction does not see, or more of them than it has
  rows left.

The first is looked at before anything is written; the others in the SQL transaction that stages.
"""

from __future__ import annotations

import os
import re
import stat
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from strandline.errors import InvalidInput, WriteConflict
from strandline.metastore.store.rows import DataFileRow, DeleteFileRow, RowKind
from strandline.metastore.store.staging import Staging
from strandline.metastore.store.warehouse import MAX_PART_BYTES, MAX_PATH_BYTES

FILES_OF_A_TRANSACTION_BITS = 20
"""The low bits of a file id number the files of one write id, which is in the bits above them."""
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")

Staged = DataFileRow | DeleteFileRow


def check_paths(files: Iterable[Staged], *, folder: Path | None) -> None:
    """Raise `InvalidInput` for a path that leaves the folder of the table.

    ``folder`` is where the table lies on this machine, None if it lies elsewhere: then symbolic
    links are not looked for.
    """
    seen: set[str] = set()
    for file in files:
        parts = _parts(file.path)
        if folder is None:
            continue
        for end in range(1, len(parts) + 1):
            inner = "/".join(parts[:end])
            if inner not in seen:
                seen.add(inner)
                _refuse_link(folder / inner, path=file.path)


def _parts(path: str) -> list[str]:
    parts = path.split("/")
    if (
        path.startswith("/")
        or _SCHEME.match(path)
        or any(part in ("", ".", "..") for part in parts)
    ):
        raise InvalidInput(
            f"the path {path[:200]!r} of a file leaves the folder of its table, or may do so; give"
            " one relative to that folder, without '.', '..' or empty parts"
        )
    if _CONTROL.search(path):
        raise InvalidInput(f"the path {path[:200]!r} of a file holds control characters")
    try:
        encoded = os.fsencode(path)
    except UnicodeEncodeError:
        raise InvalidInput(f"the path {path[:200]!r} of a file holds half a character") from None
    if len(encoded) > MAX_PATH_BYTES or max(map(len, encoded.split(b"/"))) > MAX_PART_BYTES:
        raise InvalidInput(f"the path {path[:80]!r}… of a file is too long for any file system")
    return parts


def _refuse_link(place: Path, *, path: str) -> None:
    try:
        status = os.lstat(place)
    except OSError:
        return  # it is not there: its reader gets an error
    if stat.S_ISLNK(status.st_mode):
        raise InvalidInput(
            f"the path {path!r} of a file leads through the symbolic link {place}, which may leave"
            " the folder of its table; give the path of the file itself"
        )


def check_ids(
    staging: Staging, add: Sequence[Staged], *, remove: Collection[int], touch: Collection[int]
) -> None:
    """Raise `InvalidInput` or `WriteConflict` for ids and counts that cannot be.

    Runs in the SQL transaction of ``staging``, before its rows are added.
    """
    data = [file for file in add if isinstance(file, DataFileRow)]
    deletes = [file for file in add if isinstance(file, DeleteFileRow)]
    if data:
        _check_data_files(staging, data)
    if deletes:
        _check_deletes(staging, deletes, data, remove=remove, touch=touch)


def _check_data_files(staging: Staging, data: Sequence[DataFileRow]) -> None:
    # A file that is staged again under its own path is refused by its name, as one that is there.
    paths: dict[int, str] = {}
    for file in data:
        if paths.setdefault(file.file_id, file.path) != file.path:
            raise InvalidInput(f"two data files have the id {file.file_id}; give each its own")
    by_hand = set()
    for file in data:
        owner = file.file_id >> FILES_OF_A_TRANSACTION_BITS
        if owner == staging.write_id:
            continue
        if owner:
            raise InvalidInput(
                f"the id {file.file_id} of {file.path!r} belongs to write id {owner}; this"
                f" transaction has write id {staging.write_id}: number its files from"
                f" {staging.write_id << FILES_OF_A_TRANSACTION_BITS} on"
            )
        by_hand.add(file.file_id)
    # Within its own range a transaction has only its own files to compare with.
    known = staging.paths_of_files(own=not by_hand)
    taken = [one for one, path in paths.items() if known.get(one, path) != path]
    if taken:
        raise InvalidInput(
            f"the id {taken[0]} is that of another data file of the table; number the files of"
            f" this transaction from {staging.write_id << FILES_OF_A_TRANSACTION_BITS} on"
        )


def _check_deletes(
    staging: Staging,
    deletes: Sequence[DeleteFileRow],
    data: Sequence[DataFileRow],
    *,
    remove: Collection[int],
    touch: Collection[int],
) -> None:
    deleted_rows: Counter[int] = Counter()
    for file in deletes:
        if len(set(file.file_ids)) != len(file.file_ids):
            raise InvalidInput(f"delete file {file.path!r} names a data file twice")
        deleted_rows.update(dict(zip(file.file_ids, file.counts, strict=True)))
    rows = {file.file_id: file.rows for file in data}
    rows |= staging.rows_of_files(touch)
    if deleted_rows.keys() - rows.keys():
        rows |= {
            file.file_id: file.rows
            for row in staging.visible(RowKind.DATA_FILE, None).values()
            for file in (row.as_(DataFileRow),)
        }
    foreign = deleted_rows.keys() - rows.keys()
    if foreign:
        raise WriteConflict(
            f"data file {min(foreign)} is not in the table as the transaction sees it, so no rows"
            " of it can be deleted; read again, and begin again"
        )
    for row in staging.visible(RowKind.DELETE_FILE, None).values():
        if row.row_id in remove:
            continue
        file = row.as_(DeleteFileRow)
        for file_id, count in zip(file.file_ids, file.counts, strict=True):
            if file_id in deleted_rows:
                deleted_rows[file_id] += count
    for file_id, count in deleted_rows.items():
        if count > rows[file_id]:
            raise InvalidInput(
                f"{count} rows of data file {file_id} would be deleted, and it has {rows[file_id]}"
            )
