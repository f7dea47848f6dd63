"""How the data files of a snapshot are scanned: which files together, and with what options.

A scan that skips deleted rows needs the file id of each row. Spark knows the path of the file, so
the id is part of the path:

========  ===========================================  =====================
id in     path, relative to the table's location        written by
========  ===========================================  =====================
NAME      ``_files/<file id>-<uuid>.parquet``           0.3.0 and later
FOLDER    ``_data/_file=<file id>/<uuid>.parquet``      0.2.1
FOLDER    ``_file=<file id>/<uuid>.parquet``            0.1.0, 0.2.0
NOWHERE   any other                                     other clients
========  ===========================================  =====================

One scan reads all files with the id in the same part of the path. A file without an id in its path
gets a scan of its own if the id is needed.

Both the scans that `strandline.spark` plans and the views that the node returns to other Sparks use
this module.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from strandline.metastore.store.rows import DataFile, DeleteFile

DATA_FOLDER, DELETES_FOLDER, STAGING_FOLDER = "_files", "_deletes", "_staging"
"""The folders for data files, for delete files, and for the folders of jobs that write files.

Each file, and each folder of a job, is directly in its folder.
"""
FILE_COLUMN = "_file"
"""The column in which Spark returns the value of a folder ``_file=<file id>``."""

JOIN_ALL_SHARE = 0.5
"""If files with deleted rows have this share of all rows, all files go through the join."""

READER_OPTIONS = {
    # A session may be configured to skip missing files. A table must not.
    "ignoreMissingFiles": "false",
    "ignoreCorruptFiles": "false",
    # Spark writes a checksum for each page, but does not verify it by default.
    "parquet.page.verify-checksum.enabled": "true",
    # They distinguish 0.0 and -0.0, which are equal in a condition, and so lose rows.
    "parquet.filter.dictionary.enabled": "false",
    "parquet.filter.bloom.enabled": "false",
}


class IdIn(Enum):
    """The part of a path that contains the id of a data file."""

    NAME = auto()
    FOLDER = auto()
    NOWHERE = auto()


@dataclass(frozen=True, slots=True)
class IdPlace:
    """Where the data files of one scan have their ids.

    ``folder``, relative to the table's location, contains the files; for FOLDER, it contains their
    folders. ``file_id`` is that of the only file of a scan whose path has no id, if it is needed.
    """

    id_in: IdIn
    folder: str
    file_id: int = 0


def data_path(file_id: int, name: str) -> str:
    """The path of a new data file. ``name`` makes it unique, even among leftovers."""
    return f"{DATA_FOLDER}/{file_id}-{name}.parquet"


def by_id_place(files: Iterable[DataFile], *, with_ids: bool) -> dict[IdPlace, list[DataFile]]:
    """Group the files by scan; ``with_ids`` says whether the scans need the file ids."""
    groups: dict[IdPlace, list[DataFile]] = {}
    for file in files:
        groups.setdefault(_id_place(file, with_ids=with_ids), []).append(file)
    return groups


def _id_place(file: DataFile, *, with_ids: bool) -> IdPlace:
    folder, _, name = file.path.rpartition("/")
    if name.startswith(f"{file.file_id}-"):
        return IdPlace(IdIn.NAME, folder)
    around, _, folder_name = folder.rpartition("/")
    if folder_name == f"{FILE_COLUMN}={file.file_id}":
        return IdPlace(IdIn.FOLDER, around)
    return IdPlace(IdIn.NOWHERE, folder, file.file_id if with_ids else 0)


def deleted_counts(delete_files: Collection[DeleteFile]) -> dict[int, int]:
    """The number of deleted rows of each data file, by file id."""
    deleted: dict[int, int] = {}
    for file in delete_files:
        for file_id, count in zip(file.file_ids, file.counts, strict=True):
            deleted[file_id] = deleted.get(file_id, 0) + count
    return deleted


def split_for_join(
    files: Sequence[DataFile], touched: Container[int]
) -> tuple[list[DataFile], list[DataFile]]:
    """Return the files to be joined with the deleted rows, and the other files.

    ``touched`` has the ids of files with deleted rows. A join of a few files and a union with the
    others costs less than one join of all, unless most rows go through the join anyway.
    """
    joined = [file for file in files if file.file_id in touched]
    rest = [file for file in files if file.file_id not in touched]
    rows = sum(file.rows for file in joined)
    if joined and rows >= JOIN_ALL_SHARE * (rows + sum(file.rows for file in rest)):
        return list(files), []
    return joined, rest
