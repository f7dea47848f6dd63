"""The parts of a snapshot of a transactional table, each a hidden table that Spark reads.

The view of the table (`snapshot_views`) selects rows from these hidden tables:

* *data* ``orders@data_…``: data files whose paths give their ids in the same way, with one version
  of the table's schema, and either all or none of them joined with deleted rows;
* *deletes* ``orders@deletes_…``: bitmaps of deleted rows (or positions, from older releases).

What must stay true:

* The name of a hidden table identifies its snapshot, by the table's id and the time of the last
  commit in the snapshot. Spark caches the columns and the file list of a table by its name. The
  name does not change until the next commit, and always means the same files with the same columns.
  It includes a hash of the location, so it changes when the files move. It includes the newest
  version of the schema in the snapshot too: the version of a file without a recorded one is the
  newest that fits, so a change of a type may put the file into another part.
* All data files are in one folder, so Spark lists one folder. It must read exactly the files of the
  snapshot, so the hidden table has a filter of names (``pathGlobFilter``). Files that a client put
  into its own folder are listed one by one. Spark would skip a missing file, so the node checks
  that each file exists, and its size, when it answers the hidden table.

Rejected: one path for each file (above 32 paths Spark starts a job to list them, which takes 20
times as long for 2,000 files); a hidden table partitioned by the file's id (the same).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import blake2b
from pathlib import Path

from strandline import work
from strandline.clock import Timestamp
from strandline.errors import CorruptData, LimitExceeded, ObjectNotFound
from strandline.metastore.hive.file_keys import distinguishable_groups
from strandline.metastore.hive.parameters import DERIVED, PATH
from strandline.metastore.hive.storage_descriptors import Struct, columns_for_spark
from strandline.metastore.hive.table_structs import table_struct
from strandline.metastore.interface import TableFiles
from strandline.metastore.store.file_scans import (
    DATA_FOLDER,
    DELETES_FOLDER,
    FILE_COLUMN,
    READER_OPTIONS,
    IdIn,
    IdPlace,
    by_id_place,
    deleted_counts,
    split_for_join,
)
from strandline.metastore.store.rows import DataFile, DeleteFile, DeleteForm
from strandline.metastore.table_parameters import SCHEMA
from strandline.model.descriptors import (
    ColumnDescriptor,
    SchemaVersion,
    StorageFormat,
    TableDescriptor,
    TableKind,
)
from strandline.model.partitioning import TransformKind
from strandline.model.types import BIGINT, ArrayType, DataType, as_stored

MAX_PARTS = 500
"""The maximum number of hidden data tables in one view. Each adds all columns to its text."""

NO_COMMIT = Timestamp(0)
"""Used instead of a commit's time for a table without commits."""

DELETE_COLUMNS: dict[DeleteForm, tuple[tuple[str, DataType], ...]] = {
    DeleteForm.BITMAPS: (("file_id", BIGINT), ("bitmap", ArrayType(BIGINT))),
    DeleteForm.POSITIONS: (("file_id", BIGINT), ("position", BIGINT)),
}
"""The columns of the delete files of each form."""

_NAME = re.compile(
    r"(.+)@(data|deletes)_([0-9a-f]{1,16})_([0-9]{1,18})_[0-9a-f]{8}_([0-9]{1,9})_([0-9]{1,9})"
)
_UNIQUE_NAME = re.compile(r"([0-9]+-[0-9a-f]{8})[0-9a-f]{24}\.parquet")
_GLOB = re.compile(r"([\[\]{}*?,\\])")


@dataclass(frozen=True, slots=True)
class HiddenName:
    """The parsed name of a hidden table. ``of`` is "data" or "deletes".

    ``schema_version`` is the newest version of the schema that a file of the snapshot has, with or
    without live rows.
    """

    table: str
    of: str
    last_commit: Timestamp
    table_id: int
    schema_version: int
    number: int

    def table_then(self, table: TableDescriptor) -> TableDescriptor:
        """``table``, with the versions of its schema that files of the snapshot may have."""
        versions = [v for v in table.schema_versions if v.number <= self.schema_version]
        return replace(table, schema_versions=tuple(versions) or table.schema_versions)


def parse_hidden(name: str) -> HiddenName | None:
    match = _NAME.fullmatch(name.lower())
    if match is None:
        return None
    commit, numbers = Timestamp(int(match[3], 16)), map(int, match.groups()[3:])
    return HiddenName(match[1], match[2], commit, *numbers)


@dataclass(frozen=True, slots=True)
class DataPart:
    """The data files of one hidden table. ``joined``: they are joined with the deleted rows."""

    schema_version: int
    place: IdPlace
    joined: bool
    files: tuple[DataFile, ...]


@dataclass(frozen=True, slots=True)
class DeletePart:
    """The delete files of one hidden table: those of one form in one folder."""

    form: DeleteForm
    folder: str
    files: tuple[DeleteFile, ...]


@dataclass(frozen=True)
class TableSnapshot:
    """The rows of a transactional table at a point in time.

    ``location`` is the URI of the table's folder; ``root`` is that folder if it is on this machine,
    else None. ``last_commit`` is the time of the last commit that the snapshot contains, or
    `NO_COMMIT`. The caller that reads the rows of the files also spends their cost
    (`strandline.work`).
    """

    table: TableDescriptor
    location: str
    root: Path | None
    last_commit: Timestamp
    files: TableFiles

    @cached_property
    def deleted(self) -> Mapping[int, int]:
        """The number of deleted rows of each data file, by file id."""
        return deleted_counts(self.files.delete_files)

    @cached_property
    def fields_by_column(self) -> Mapping[int, int]:
        """The ids of the partition fields that are columns as they are, by column id."""
        return {
            field.source_id: field.id
            for field in self.table.partitioning
            if field.transform.kind is TransformKind.IDENTITY
        }

    @cached_property
    def data(self) -> tuple[DataPart, ...]:
        """The data files in parts, in a fixed order; one part without files if there are no rows.

        Raises `LimitExceeded` if there are more than `MAX_PARTS`.
        """
        deleted, by_value = self.deleted, self.fields_by_column
        live = [f for f in self.files.data_files if deleted.get(f.file_id, 0) < f.rows]
        parts = [
            DataPart(version, place, any(f.file_id in deleted for f in files), files)
            for group in split_for_join(live, deleted)
            for version, of_version in _by_version(group).items()
            for place, of_place in by_id_place(of_version, with_ids=False).items()
            for files in distinguishable_groups(of_place, place, deleted, by_value=bool(by_value))
        ]
        if len(parts) > MAX_PARTS:
            raise LimitExceeded(
                f"the files of {self.table.name} form {len(parts)} groups with different schemas "
                f"or folders, and a view can have at most {MAX_PARTS}; read the table with "
                "strandline.spark.Tables"
            )
        work.spend(len(parts) * len(self.table.columns) + len(live) * len(by_value))
        # In the table's own folder: the first data file creates the folder of the data files.
        empty = DataPart(self.table.schema_version, IdPlace(IdIn.NAME, ""), joined=False, files=())
        return tuple(sorted(parts, key=_order)) or (empty,)

    @cached_property
    def deletes(self) -> tuple[DeletePart, ...]:
        """The delete files that the joined parts need, by form and folder."""
        joined = {file.file_id for part in self.data if part.joined for file in part.files}
        groups: dict[tuple[int, str], list[DeleteFile]] = {}
        for file in self.files.delete_files:
            if not joined.isdisjoint(file.file_ids):
                key = file.form.value, os.path.dirname(file.path)
                groups.setdefault(key, []).append(file)
        return tuple(
            DeletePart(DeleteForm(form), folder, tuple(files))
            for (form, folder), files in sorted(groups.items())
        )

    def hidden_name(self, of: str, number: int) -> str:
        table = f"{self.table.name.lower()}@{of}_{self.last_commit:x}_{self.table.id}"
        return f"{table}_{self._place_hash}_{self._newest_version}_{number}"

    @cached_property
    def _place_hash(self) -> str:
        return blake2b(self.location.encode(), digest_size=4).hexdigest()

    @cached_property
    def _newest_version(self) -> int:
        return max((file.schema_version for file in self.files.data_files), default=0)

    def columns_of(self, version: int) -> tuple[ColumnDescriptor, ...]:
        """Return the columns of a version of the table's schema.

        Raises `CorruptData` if the catalog does not have that version.
        """
        for schema_version in self.table.schema_versions:
            if schema_version.number == version:
                return schema_version.columns
        raise CorruptData(
            f"a data file of {self.table.name} was written by version {version} of its schema,"
            " which the catalog does not have; run `strandline verify`"
        )


def _by_version(files: Iterable[DataFile]) -> dict[int, list[DataFile]]:
    groups: dict[int, list[DataFile]] = {}
    for file in files:
        groups.setdefault(file.schema_version, []).append(file)
    return groups


def _order(part: DataPart) -> tuple[int, str, str, bool, int]:
    first = part.files[0].file_id
    return part.schema_version, part.place.id_in.name, part.place.folder, part.joined, first


@dataclass(frozen=True, slots=True)
class _Hidden:
    """The content of a hidden table: its columns, the folder that Spark reads, and the options.

    ``sizes`` has the size of each file in bytes, by path; None if it is not known.
    """

    columns: tuple[ColumnDescriptor, ...]
    folder: str
    options: Mapping[str, str]
    sizes: Mapping[str, int | None]
    statistics: Mapping[str, str]


def hidden_struct(snapshot: TableSnapshot, name: HiddenName, *, schema: str) -> Struct:
    """The ``Table`` of a hidden table.

    Raises `ObjectNotFound` if the snapshot has no such part, `CorruptData` if a file does not match
    its record.
    """
    parts: Sequence[DataPart | DeletePart] = (
        snapshot.data if name.of == "data" else snapshot.deletes
    )
    if name.number >= len(parts):
        raise ObjectNotFound(f"{schema}.{name.table} does not have this part; read the table again")
    part = parts[name.number]
    hidden = (
        _data_table(snapshot, part) if isinstance(part, DataPart) else _delete_table(snapshot, part)
    )
    _check_files(snapshot, hidden.sizes)
    table = replace(
        snapshot.table,
        name=snapshot.hidden_name(name.of, name.number),
        kind=TableKind.EXTERNAL,
        transactional=False,
        provider="parquet",
        partition_columns=(),
        schema_versions=(SchemaVersion(1, hidden.columns),),
        storage=StorageFormat(),
        properties=((SCHEMA, DERIVED),),
        comment=None,
    )
    location = _below(snapshot.location, hidden.folder)
    struct = table_struct(table, schema=schema, location=location, counted=())
    serde = {PATH: _escaped(location), **READER_OPTIONS, **hidden.options}
    struct["sd"]["cols"] = columns_for_spark(hidden.columns)
    struct["sd"]["serdeInfo"]["parameters"] |= serde
    struct["parameters"] |= hidden.statistics
    return struct


def _data_table(snapshot: TableSnapshot, part: DataPart) -> _Hidden:
    columns = tuple(
        replace(column, type=as_stored(column.type), nullable=True, default=None, metadata="")
        for column in snapshot.columns_of(part.schema_version)
    )
    if not part.files:
        # The view reads no column. Those of the table may change while the name stays.
        columns = (ColumnDescriptor(1, FILE_COLUMN, BIGINT),)
    folder = part.place.folder
    if part.place.id_in is IdIn.FOLDER:
        around = _below(snapshot.location, folder)
        folders = ",".join(f"{FILE_COLUMN}={file.file_id}" for file in part.files)
        columns += (ColumnDescriptor(snapshot.table.next_column_id, FILE_COLUMN, BIGINT),)
        options = {"basePath": around, PATH: f"{_escaped(around)}/{{{folders}}}"}
    else:
        options = _reading_only(snapshot, folder, [file.path for file in part.files])
    return _Hidden(
        columns,
        folder,
        options,
        {file.path: file.bytes for file in part.files},
        {
            "spark.sql.statistics.totalSize": str(sum(file.bytes for file in part.files)),
            "spark.sql.statistics.numRows": str(sum(file.rows for file in part.files)),
        },
    )


def _delete_table(snapshot: TableSnapshot, part: DeletePart) -> _Hidden:
    columns = tuple(
        ColumnDescriptor(number, column, data_type)
        for number, (column, data_type) in enumerate(DELETE_COLUMNS[part.form], start=1)
    )
    paths = [file.path for file in part.files]
    options = _reading_only(snapshot, part.folder, paths)
    sizes = {file.path: file.bytes or None for file in part.files}
    return _Hidden(columns, part.folder, options, sizes, {})


def _reading_only(snapshot: TableSnapshot, folder: str, paths: Sequence[str]) -> dict[str, str]:
    """The options that make Spark read exactly these files of a folder."""
    names = [os.path.basename(path) for path in paths]
    if paths and folder not in (DATA_FOLDER, DELETES_FOLDER):
        listed = ",".join(map(_escaped, names))
        return {PATH: f"{_escaped(_below(snapshot.location, folder))}/{{{listed}}}"}
    # Without a recursive look-up, Spark takes folders beside the files for partitions.
    return {"pathGlobFilter": _pattern_of(names), "recursiveFileLookup": "true"}


def _pattern_of(names: Sequence[str]) -> str:
    """Return a pattern that matches these names.

    Spark compiles it for each plan: 30 ms for 2,000 whole names, 4 ms for this form. It contains 8
    of the 32 random digits of a name. Only another file with the same leading number could match;
    the delete files of one transaction have the same one, and one pair of names in four billion
    shares these digits.
    """
    matches = [_UNIQUE_NAME.fullmatch(name) for name in names]
    patterns = [_escaped(name) for name, m in zip(names, matches, strict=True) if m is None]
    starts = [m[1] for m in matches if m is not None]
    if starts:
        common = os.path.commonprefix(starts)  # noqa: RUF071  # intended: these are not paths
        rests = ",".join(start.removeprefix(common) for start in starts)
        patterns.append(f"{common}{{{rests}}}{'?' * 24}.parquet")
    return f"{{{','.join(patterns)}}}"


def _escaped(text: str) -> str:
    """``text`` escaped for a place where Hadoop expects a pattern."""
    return _GLOB.sub(r"\\\1", text)


def _below(location: str, folder: str) -> str:
    return f"{location}/{folder}" if folder else location


def _check_files(snapshot: TableSnapshot, sizes: Mapping[str, int | None]) -> None:
    """Raise `CorruptData` unless each file exists and has its size, if the size is known."""
    if snapshot.root is None:
        return
    for path, size in sizes.items():
        try:
            actual = os.stat(snapshot.root / path).st_size
        except OSError as error:
            raise CorruptData(
                f"file {snapshot.root / path} of {snapshot.table.name} cannot be read:"
                f" {error.strerror}; put it back from a backup, or run `strandline verify`"
            ) from error
        if size is not None and size != actual:
            raise CorruptData(
                f"file {snapshot.root / path} of {snapshot.table.name} has {actual} bytes, but "
                f"{size} were written; put it back from a backup, or run `strandline verify`"
            )
