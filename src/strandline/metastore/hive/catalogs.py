"""Hive's catalogs: there is one, ``hive``. A request that names another one is refused.

Clients of Hive 3 and later name the catalog in a field of the request (``catName``,
``catalogName``) or before the name of a schema (`names.without_catalog`). Without the check, a
client of another catalog would read and change tables of this one. Answers name the catalog, as
those of Hive 3 and later do: some clients, such as pymetastore, refuse a partition without one.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

from strandline.metastore.hive.names import require_catalog
from strandline.metastore.thrift.field_table import HIVE_METASTORE, StructSpec, Type

_CATALOG_FIELDS = frozenset({"catName", "catalogName"})
_DEEPEST = 4
"""The longest path to such a field, as in ``set_aggr_stats_for(request.colStats.statsDesc…)``."""
_FILTERS = frozenset({"NotificationEventRequest", "NotificationEventsCountRequest"})
"""Requests that use the catalog as a filter: another catalog has no events, which is no error."""


# Arguments have as many types as the protocol: hence Any.
def refuse_other_catalogs(method: str, args: dict[str, Any]) -> None:
    """Raise `ObjectNotFound` if the arguments of a method name another catalog."""
    for *path, field in _catalog_paths(method):
        structs = [args]
        for name in path:
            structs = [inner for struct in structs for inner in _structs(struct.get(name))]
        for catalog in {struct.get(field) for struct in structs}:
            if catalog:
                require_catalog(catalog)


def _structs(value: Any) -> list[dict[str, Any]]:
    return value if isinstance(value, list) else [] if value is None else [value]


@cache
def _catalog_paths(method: str) -> tuple[tuple[str, ...], ...]:
    """The path to each field of a method's arguments that names a catalog."""
    spec = HIVE_METASTORE.methods.get(method)
    return () if spec is None else tuple(_paths(spec.args, _DEEPEST))


def _paths(spec: StructSpec, depth: int) -> Iterator[tuple[str, ...]]:
    if spec.name in _FILTERS:
        return
    for field in spec.fields:
        if field.name in _CATALOG_FIELDS and field.type.name == "string" and field.sent:
            yield (field.name,)
        inner = HIVE_METASTORE.structs.get(_element(field.type).name)
        if inner is not None and depth > 1:
            yield from ((field.name, *path) for path in _paths(inner, depth - 1))


def _element(kind: Type) -> Type:
    return kind.value if kind.name == "list" and kind.value is not None else kind
