"""Names of catalogs and schemas, and locations, as Hive clients write them.

Of Hive's catalogs there is one, ``hive``. Clients of Hive 3 and later name it in a field of the
request (``catName``, ``catalogName``), or before the name of a schema, as ``@hive#sales``. A
request that names another one is refused: else its client would read and change tables of this one.
Answers name the catalog, because some clients, such as pymetastore, refuse a partition without one.

Hive lowers the case of names. A version or a time may follow the name: ``sales@42``,
``sales@2026-11-20t10:00:00z``. Such a schema can be read but not changed. This module refuses every
change; `strandline.metastore.hive.past_tables` handles clients that write before they ask.

Clients compare locations as texts, so equal places must be equal texts. Hadoop prints a local
folder as ``file:/a/b``, however many slashes it was given. Hive takes a path without a scheme for
one of its default file system, which is the local one here. Percent escapes are not changed.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from posixpath import normpath
from typing import Any

from strandline.catalog import DEFAULT_DATABASE
from strandline.clock import parse_timestamp
from strandline.errors import InvalidInput, ObjectNotFound, UnsupportedOperation
from strandline.metastore.interface import PRESENT, AsOf
from strandline.metastore.thrift.field_table import HIVE_METASTORE, StructSpec, Type
from strandline.model.descriptors import PrincipalType
from strandline.model.identifiers import VERSION_MARK, version_number

logger = logging.getLogger("strandline.calls")

_WITH_CATALOG = re.compile(r"@([^#@]*)#(.*)", re.DOTALL)
_NO_SCHEMA = "!"
_HIVE_NAME = re.compile(r"\w+", re.ASCII)


def without_catalog(name: str) -> str | None:
    """Return the name without the catalog that Hive 3 clients put before it; None if empty.

    Raises `ObjectNotFound` for a catalog other than the one here.
    """
    match = _WITH_CATALOG.fullmatch(name)
    if match is None:
        return name
    require_catalog(match[1])
    if not match[2]:
        return None
    return "" if match[2] == _NO_SCHEMA else match[2]


def require_catalog(name: str) -> None:
    """Raise `ObjectNotFound` unless this is the name of the only catalog."""
    if name.lower() != DEFAULT_DATABASE:
        raise ObjectNotFound(
            f"catalog {name} does not exist; the only catalog is {DEFAULT_DATABASE}"
        )


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
    return tuple(_paths(HIVE_METASTORE.methods[method].args, _DEEPEST))


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


def split_schema(name: str) -> tuple[str, AsOf]:
    """Return the schema's own name in lower case, and the point in history that follows it.

    Raises `ObjectNotFound` for a name with an ``@`` but no version: no schema has such a name.
    """
    shown = shown_schema(name)
    schema, mark, point = shown.partition(VERSION_MARK)
    if not mark:
        return schema, PRESENT
    if schema:
        version = version_number(point)
        if version is not None:
            return schema, AsOf(version=version)
        with suppress(InvalidInput):
            return schema, AsOf(time=parse_timestamp(point))
    message = (
        f"{shown!r} does not name a version of a schema; write schema@42 or "
        "schema@2026-11-20T10:00:00Z"
    )
    # Spark does not show this error, so the log tells its user the reason.
    logger.info("schema %r does not exist: %s", name, message)
    raise ObjectNotFound(message)


def shown_schema(name: str) -> str:
    """Return the name that answers carry: the requested one in lower case, with its version."""
    return (without_catalog(name) or "").lower()


def present_schema(name: str) -> str:
    """Return the schema's name for a change. Raises `UnsupportedOperation` if it has a version."""
    schema, at = split_schema(name)
    if at != PRESENT:
        raise UnsupportedOperation(
            f"`{shown_schema(name)}` is a past state of the schema {schema}: it can be read and "
            f"not changed; to change the present schema, name it {schema}"
        )
    return schema


def is_hive_name(name: str) -> bool:
    """Whether Hive accepts the name of a schema or table: letters, digits and ``_``."""
    return _HIVE_NAME.fullmatch(name) is not None


_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]*):(.*)", re.DOTALL)
_SLASHES = re.compile("/{2,}")


def hadoop_location(text: str) -> str:
    """Return ``text`` as Hadoop prints it: ``file:///a//b/`` and ``/a/./b`` become ``file:/a/b``.

    Raises `InvalidInput` if it is neither a URI nor an absolute path.
    """
    match = _SCHEME.fullmatch(text)
    scheme, rest = (match[1].lower(), match[2]) if match else ("file", text)
    if not rest.startswith("/"):
        raise InvalidInput(f"{text!r} is not an absolute path or a URI; write file:/path")
    host = ""
    if rest.startswith("//") and not rest.startswith("///"):
        host, slash, tail = rest[2:].partition("/")
        host, rest = f"//{host}", slash + tail
    path = _SLASHES.sub("/", rest)
    if "/." in path:
        path = normpath(path)
    if len(path) > 1:
        path = path.rstrip("/")
    return f"{scheme}:{host}{path}"


def same_location(first: str, second: str) -> bool:
    try:
        return hadoop_location(first) == hadoop_location(second)
    except InvalidInput:
        return False


def principal_type(number: int | None) -> PrincipalType | None:
    """Return the type of a principal or owner, None if it was not sent. Raises `InvalidInput`."""
    try:
        return None if number is None else PrincipalType(number)
    except ValueError:
        raise InvalidInput(f"{number} is not a type of principal; send 1, 2 or 3") from None
