"""Where the path of a data file says the file's id.

A scan needs the id of the file that a row comes from, to leave out deleted rows. Spark knows the
path of the file, so the id is part of the path:

========  ===========================================  =====================
id in     path, relative to the table's location        written by
========  ===========================================  =====================
NAME      ``_files/<file id>-<uuid>.parquet``           0.3.0 and later
FOLDER    ``_data/_file=<file id>/<uuid>.parquet``      0.2.1
FOLDER    ``_file=<file id>/<uuid>.parquet``            0.1.0, 0.2.0
NOWHERE   any other                                     clients of their own
========  ===========================================  =====================

Files whose ids are in the same place can be read by one scan. A file that does not say its id has a
scan of its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto

from strandline.metastore.store.rows import DataFile

DATA_FOLDER = "_files"
FILE_COLUMN = "_file"
"""The column in which Spark gives the value of a folder ``_file=<file id>``."""


class IdIn(Enum):
    """What part of a path says the id of a data file."""

    NAME = auto()
    FOLDER = auto()
    NOWHERE = auto()


@dataclass(frozen=True, slots=True)
class IdPlace:
    """Where some data files of a table say their ids.

    ``folder``, relative to the table's location, is the one that has the files (NAME), or the one
    around their folders (FOLDER); for NOWHERE it is the path of the only file.
    """

    id_in: IdIn
    folder: str


def data_path(file_id: int, name: str) -> str:
    """The path of a new data file. ``name`` makes it unique, also among leftovers."""
    return f"{DATA_FOLDER}/{file_id}-{name}.parquet"


def id_place(file: DataFile) -> IdPlace:
    """Where the path of ``file`` says its id."""
    folder, _, name = file.path.rpartition("/")
    if name.startswith(f"{file.file_id}-"):
        return IdPlace(IdIn.NAME, folder)
    around, _, own = folder.rpartition("/")
    if own == f"{FILE_COLUMN}={file.file_id}":
        return IdPlace(IdIn.FOLDER, around)
    return IdPlace(IdIn.NOWHERE, file.path)


def by_id_place(files: Iterable[DataFile]) -> dict[IdPlace, list[DataFile]]:
    """The files that one scan can read, by where they say their ids."""
    groups: dict[IdPlace, list[DataFile]] = {}
    for file in files:
        groups.setdefault(id_place(file), []).append(file)
    return groups
