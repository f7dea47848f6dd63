"""Which half of a table a parameter belongs to: the rule by which a Hive table is split.

A Hive client sees one table; here two clocks move it. What *defines* it (columns, keys, owner,
provider, format, and all parameters but those below) is the catalog's, and changes by a version.
What *counts or dates the content* is the object store's, and changes with the content: statistics
of Hive and Spark, and the time of the last change. An alter that touches only these makes no
version, and a table as of a version keeps its own.

Some parameters repeat what a field of the descriptor says already. They are read into the field,
are not kept as text, and are written again when a client asks:

| parameter | is in |
| --- | --- |
| ``spark.sql.sources.schema``, ``….numParts``, ``….part.N`` | columns |
| ``spark.sql.sources.schema.numPartCols``, ``….partCol.N`` | partition columns |
| ``spark.sql.sources.provider`` | provider; without it the provider is ``hive`` |
| ``EXTERNAL`` | kind |
| ``comment`` | comment |
| serde parameter ``path`` of a table whose location it is | the location |

`DERIVED` in the place of a value remembers that a client wrote the parameter, so that it is written
for no table whose creator did not know it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strandline.model.descriptors import Properties, properties

DERIVED = ""
"""The kept value of a parameter that is made anew from the descriptor for each answer."""

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
"""Fields of a Hive table that have no other place; kept as parameters, shown as fields."""

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
