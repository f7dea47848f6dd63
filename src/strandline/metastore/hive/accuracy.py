"""Which statistics match the present rows, as a parameter of the table or partition says.

The parameter is a JSON text. ``BASIC_STATS`` stands for the number of rows and the size of the
files, and ``COLUMN_STATS`` lists the columns. Hive's clients maintain it: a client that writes rows
removes it, or says that it has counted them.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType

from strandline.metastore.table_parameters import ACCURATE
from strandline.model.descriptors import Properties, properties

EMPTY: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(("numFiles", "numRows", "rawDataSize", "totalSize"), "0"),
        ACCURATE: '{"BASIC_STATS":"true"}',
    }
)
"""The parameters of a table or partition that was truncated."""


def is_empty(parameters: Properties) -> bool:
    """Return whether the parameters say that there are no rows, as after a truncation."""
    return EMPTY.items() <= dict(parameters).items()


def accurate_columns(parameters: Mapping[str, str]) -> frozenset[str]:
    """Return the columns whose statistics match the present rows."""
    return frozenset(_read(parameters)[1])


def with_accurate_counts(parameters: Properties) -> Properties:
    """Return the parameters after the rows and files were counted."""
    _, columns = _read(dict(parameters))
    return _with(parameters, columns, basic=True)


def with_accurate(parameters: Properties, columns: Iterable[str]) -> Properties:
    """Return the parameters after statistics of these columns were stored."""
    basic, accurate = _read(dict(parameters))
    return _with(parameters, accurate | set(columns), basic=basic)


def without_accurate(parameters: Properties, columns: Collection[str]) -> Properties:
    """Return the parameters after the statistics of these columns became invalid."""
    basic, accurate = _read(dict(parameters))
    if accurate.isdisjoint(columns):
        return parameters
    return _with(parameters, accurate - set(columns), basic=basic)


def _read(parameters: Mapping[str, str]) -> tuple[bool, set[str]]:
    """Return whether the counts of the table are accurate, and the columns that are.

    A text that is not in Hive's format names nothing as accurate, except "true", which older
    releases of Hive wrote: then the counts are.
    """
    text = parameters.get(ACCURATE, "")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = text.strip().lower() == "true"
    if not isinstance(value, dict):
        return value is True, set()
    columns = value.get("COLUMN_STATS")
    return str(value.get("BASIC_STATS", "")).lower() == "true", set(
        columns if isinstance(columns, dict) else ()
    )


def _with(parameters: Properties, columns: Iterable[str], *, basic: bool) -> Properties:
    value: dict[str, object] = {"BASIC_STATS": "true"} if basic else {}
    named = dict.fromkeys(sorted(columns), "true")
    if named:
        value["COLUMN_STATS"] = named
    return properties({**dict(parameters), ACCURATE: json.dumps(value, separators=(",", ":"))})
