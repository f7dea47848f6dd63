"""``numFiles`` and ``totalSize`` of tables and partitions, counted where Hive counts them.

Spark decides by ``totalSize`` whether a table is small enough to be sent to every executor; without
it a table counts as endless. Hive counts the files of a table without partition keys when it is
created over files and at each alter, and those of a partition when it is added and at each alter,
unless the client says not to. The counts belong to the object store: they make no version.

The tables of Iceberg are not counted. Their files are known to Iceberg alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strandline.metastore.store.file_counts import FileCounter, FileCounts
from strandline.metastore.store.store_folders import StoreFolders
from strandline.model.descriptors import Properties, TableDescriptor, properties

_NUM_FILES, _TOTAL_SIZE, _ACCURATE = "numFiles", "totalSize", "COLUMN_STATS_ACCURATE"
_NOT = "DO_NOT_UPDATE_STATS"
_GENERATED = "STATS_GENERATED"
_BY_TASK = "TASK"
_BASIC = '{"BASIC_STATS":"true"}'


class QuickStatistics:
    """The counting for one request, whose environment context is ``context``.

    A client may also say in the ``parameters`` of the table that nothing is to be counted; this is
    an instruction, and is taken out of them.
    """

    def __init__(
        self,
        folders: StoreFolders,
        context: Mapping[str, Any] | None,
        *,
        parameters: dict[str, str] | None = None,
    ) -> None:
        self._folders = folders
        self._options: Mapping[str, str] = (context or {}).get("properties") or {}
        marks = (self._options.get(_NOT, ""), (parameters or {}).pop(_NOT, ""))
        self._counts = "true" not in map(str.lower, marks)
        self._counter = FileCounter()

    def of_new(self, parameters: Properties, location: str) -> Properties:
        """The parameters of something that is created over ``location``, with counts.

        Counts that the client sent stay, and a folder without files has none.
        """
        sent = dict(parameters)
        if _NUM_FILES in sent and _TOTAL_SIZE in sent:
            return parameters
        counts = self._count(location)
        return parameters if counts is None or not counts.files else self._with(sent, counts)

    def of_altered(self, parameters: Properties, location: str) -> Properties:
        """The parameters of something that is altered, with counts of what is there now.

        A folder without files has none, unless it had some before.
        """
        sent = dict(parameters)
        counts = self._count(location)
        if counts is None or not (counts.files or _NUM_FILES in sent):
            return parameters
        return self._with(sent, counts)

    def _count(self, location: str) -> FileCounts | None:
        if not self._counts or not self._folders.may_list(location):
            return None
        return self._counter.count(self._folders.path(location))

    def _with(self, sent: dict[str, str], counts: FileCounts) -> Properties:
        counted = {_NUM_FILES: str(counts.files), _TOTAL_SIZE: str(counts.bytes)}
        # What Hive knew of the rows does not hold for other files, unless their writer counted.
        kept = {name: value for name, value in sent.items() if name != _ACCURATE}
        if self._options.get(_GENERATED) == _BY_TASK:
            counted[_ACCURATE] = _BASIC
        return properties(kept | counted)


def is_counted_table(table: TableDescriptor) -> bool:
    """Whether the files of the table itself are counted."""
    names = {name for name, _ in table.properties}
    return not (table.partition_columns or table.transactional or "metadata_location" in names)
