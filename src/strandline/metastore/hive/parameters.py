"""Which half of a table a parameter belongs to: the rule by which a Hive table is split.

A Hive client sees one table; here it has two halves. What *defines* the table (columns, keys,
owner, provider, format, and all parameters but those below) belongs to the catalog, and each change
of it is a version. What *counts or dates the content* belongs to the object store and changes with
the content: statistics of Hive and Spark, and the time of the last change. An alter that changes
only these makes no version, and a table as of a version has the counts of that time.

Some parameters repeat what a field of the descriptor says. They are read into the field, are not
kept as text, and are written again when a client asks:

| parameter | is in |
| --- | --- |
| ``spark.sql.sources.schema``, ``….numParts``, ``….part.N`` | columns |
| ``spark.sql.sources.schema.numPartCols``, ``….partCol.N`` | partition columns |
| ``spark.sql.sources.provider`` | provider; without it the provider is ``hive`` |
| ``EXTERNAL`` | kind |
| ``comment`` | comment |
| serde parameter ``path`` of a table whose location it is | the location |

`DERIVED` in the place of a value records that a client wrote the parameter, so that it is written
only for tables whose creator knows it.

``numFiles`` and ``totalSize`` are counted where Hive counts them (`QuickStatistics`). Spark decides
by ``totalSize`` whether a table is small enough to be sent to every executor; a table without it
counts as endless. Hive counts the files of a table without partition keys when it is created over
files and at each alter, and those of a partition when it is added and at each alter, unless the
client says not to. The counts belong to the object store: they make no version. Tables of Iceberg
are not counted, since Iceberg alone knows their files.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strandline.metastore.store.file_counts import FileCounter, FileCounts
from strandline.metastore.store.store_folders import StoreFolders
from strandline.model.descriptors import Properties, TableDescriptor, properties

DERIVED = ""
"""The stored value of a parameter that each answer derives from the descriptor."""

PROVIDER = "spark.sql.sources.provider"
SCHEMA = "spark.sql.sources.schema"
COMMENT = "comment"
EXTERNAL = "EXTERNAL"
PATH = "path"
TRANSACTIONAL = "transactional"
LAST_DDL_TIME = "transient_lastDdlTime"

HIVE_PROVIDER = "hive"
"""The provider of tables that are read by their Hive format alone."""

RETENTION = "strandline.hive.retention"
LAST_ACCESS = "strandline.hive.lastAccessTime"
"""Fields of a Hive table without a field here; kept as parameters, shown as fields."""

_COUNTED = frozenset(
    {
        "numRows",
        "numFiles",
        "totalSize",
        "rawDataSize",
        "COLUMN_STATS_ACCURATE",
        LAST_DDL_TIME,
        "numFilesErasureCoded",
        "numPartitions",
        LAST_ACCESS,
    }
)
_COUNTED_PREFIX = "spark.sql.statistics."


def is_counted(name: str) -> bool:
    """Whether a parameter counts or dates the content, and so belongs to the object store."""
    return name in _COUNTED or name.startswith(_COUNTED_PREFIX)


def split_parameters(parameters: Mapping[str, str]) -> tuple[dict[str, str], Properties]:
    """The parameters of the catalog's half, and those of the object store's."""
    counted = {name: value for name, value in parameters.items() if is_counted(name)}
    defining = {name: value for name, value in parameters.items() if name not in counted}
    return defining, properties(counted)


def without_time(counted: Properties) -> Properties:
    """Counted parameters without the time of the last change, which follows the others."""
    return tuple((name, value) for name, value in counted if name != LAST_DDL_TIME)


# Structs of the protocol hold values of many types: hence Any.
def if_purge(context: Mapping[str, Any] | None) -> bool:
    """Whether an ``EnvironmentContext`` says that files are to be deleted at once."""
    if_purge = ((context or {}).get("properties") or {}).get("ifPurge", "")
    return bool(if_purge.lower() == "true")


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
