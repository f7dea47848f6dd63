"""Filters on tables: ``get_table_names_by_filter``, by which Trino finds views and formats.

The grammar is that of the filters on partitions. A key names what is compared:
``hive_filter_field_owner__``, ``hive_filter_field_last_access__`` (a number), and
``hive_filter_field_params__NAME`` for the parameter NAME of a table. Parameters are compared as
texts. A table without the parameter is chosen by ``!=`` and ``not in`` alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from strandline.errors import InvalidInput
from strandline.metastore.hive.partition_chooser import bind_filter
from strandline.metastore.hive.partition_filter import And, Expression, Or, parse_filter
from strandline.metastore.hive.partition_names import DEFAULT_PARTITION
from strandline.model.types import INT, STRING, DataType

_OWNER = "hive_filter_field_owner__"
_LAST_ACCESS = "hive_filter_field_last_access__"
_PARAMETER = "hive_filter_field_params__"


def table_chooser(text: str) -> Callable[[Mapping[str, Any]], bool]:
    """Whether a ``Table`` is chosen by the filter ``text``. Raises `InvalidInput`."""
    expression = parse_filter(text)
    keys = list(dict.fromkeys(_keys(expression)))
    chooses = bind_filter(expression, [(key, _type(key)) for key in keys])
    return lambda table: chooses([_value(table, key) for key in keys])


def _keys(expression: Expression) -> Iterator[str]:
    if isinstance(expression, And | Or):
        for part in expression.parts:
            yield from _keys(part)
    else:
        yield expression.key


def _type(key: str) -> DataType:
    if key == _LAST_ACCESS:
        return INT
    if key == _OWNER or (key.startswith(_PARAMETER) and key != _PARAMETER):
        return STRING
    raise InvalidInput(
        f"Invalid filter: {key} is none of {_OWNER}, {_LAST_ACCESS} and {_PARAMETER} with a name"
    )


def _value(table: Mapping[str, Any], key: str) -> str:
    if key == _OWNER:
        return str(table.get("owner", ""))
    if key == _LAST_ACCESS:
        return str(table.get("lastAccessTime", 0))
    parameters: Mapping[str, str] = table.get("parameters") or {}
    # The chooser takes the name of the default partition for a value that is not there.
    return parameters.get(key.removeprefix(_PARAMETER), DEFAULT_PARTITION)
