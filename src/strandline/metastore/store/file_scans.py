"""How the data files of a snapshot are scanned: which of them together, and with what options.

A scan that leaves out deleted rows needs the id of the file that a row comes from. Spark knows the
path of the file, so the id is part of the path:

========  ===========================================  =====================
id in     path, relative to the table's location        written by
========  ===========================================  =====================
NAME      ``_files/<file id>-<uuid>.parquet``           0.3.0 and later
FOLDER    ``_data/_file=<file id>/<uuid>.parquet``      0.2.1
FOLDER    ``_file=<file id>/<uuid>.parquet``            0.1.0, 0.2.0
NOWHERE   any other                                     clients of their own
========  ===========================================  =====================

Files whose ids are in the same place are read by one scan. A file that does not say its id has a
scan of its own where the id is needed.

What is here is the same for a scan that `strandline.spark` plans and for the view that the node
answers to other Sparks.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from strandline.metastore.store.rows import DataFile, DeleteFile

DATA_FOLDER, DELETES_FOLDER, STAGING_FOLDER = "_files", "_deletes", "_staging"
"""The folders for data files, delete files, and the folders of jobs that write some.

Each file, and each folder of a job, is directly in it.
"""
FILE_COLUMN = "_file"
"""The column in which Spark gives the value of a folder ``_file=<file id>``."""

JOIN_ALL_SHARE = 0.5
"""From this part of all rows on in files with deleted rows, all files go through the join."""

READER_OPTIONS = {
    # A session may have been told to read on without a file. A table must not.
    "ignoreMissingFiles": "false",
    "ignoreCorruptFiles": "false",
    # Spark writes a checksum for each page and does not look at it unless told to.
    "parquet.page.verify-checksum.enabled": "true",
}


class IdIn(Enum):
    """What part of a path says the id of a data file."""

    NAME = auto()
    FOLDER = auto()
    NOWHERE = auto()


@dataclass(frozen=True, slots=True)
class IdPlace:
    """Where the data files of one scan say their ids.

    ``folder``, relative to the table's location, is the one that has the files, for FOLDER the one
    around their folders. ``file_id`` is that of the only file of a scan that needs an id and finds
    it nowhere.
    """

    id_in: IdIn
    folder: str
    file_id: int = 0


def data_path(file_id: int, name: str) -> str:
    """The path of a new data file. ``name`` makes it unique, also among leftovers."""
    return f"{DATA_FOLDER}/{file_id}-{name}.parquet"


def by_id_place(files: Iterable[DataFile], *, with_ids: bool) -> dict[IdPlace, list[DataFile]]:
    """The files that one scan can read, which needs their ids or not."""
    groups: dict[IdPlace, list[DataFile]] = {}
    for file in files:
        groups.setdefault(_id_place(file, with_ids=with_ids), []).append(file)
    return groups


def _id_place(file: DataFile, *, with_ids: bool) -> IdPlace:
    folder, _, name = file.path.rpartition("/")
    if name.startswith(f"{file.file_id}-"):
        return IdPlace(IdIn.NAME, folder)
    around, _, own = folder.rpartition("/")
    if own == f"{FILE_COLUMN}={file.file_id}":
        return IdPlace(IdIn.FOLDER, around)
    return IdPlace(IdIn.NOWHERE, folder, file.file_id if with_ids else 0)


def deleted_counts(delete_files: Collection[DeleteFile]) -> dict[int, int]:
    """How many rows of each data file are gone, by file id."""
    deleted: dict[int, int] = {}
    for file in delete_files:
        for file_id, count in zip(file.file_ids, file.counts, strict=True):
            deleted[file_id] = deleted.get(file_id, 0) + count
    return deleted


def split_for_join(
    files: Sequence[DataFile], touched: Container[int]
) -> tuple[list[DataFile], list[DataFile]]:
    """The files that are joined with the deleted rows, and the others.

    ``touched`` has the ids of those with deleted rows. Joining a few files and a union with the
    others costs less than one join, unless most rows go through the join anyway.
    """
    joined = [file for file in files if file.file_id in touched]
    rest = [file for file in files if file.file_id not in touched]
    rows = sum(file.rows for file in joined)
    if joined and rows >= JOIN_ALL_SHARE * (rows + sum(file.rows for file in rest)):
        return list(files), []
    return joined, rest
