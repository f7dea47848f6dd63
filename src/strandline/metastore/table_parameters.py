"""The parameters of tables that are not the user's: which they are, and what they repeat.

A Hive client sees every fact about a table in its parameters. Here most of these facts are a field
of the table, or are counted by the store. A session that stored a second value under such a name
would contradict the first: Hive clients would be shown the wrong one, and their next alter would
write it into the table. So a session may not set these names (`refuse_reserved`).
`strandline.metastore.hive.parameters` translates them for Hive clients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from strandline.catalog import Command
from strandline.catalog.commands import (
    AlterTable,
    AlterView,
    CreateTable,
    CreateView,
    SetTableProperties,
)
from strandline.catalog.privileges.access import Access
from strandline.errors import InvalidInput
from strandline.model.descriptors import Properties
from strandline.model.privileges import Privilege

PROVIDER = "spark.sql.sources.provider"
SCHEMA = "spark.sql.sources.schema"
COMMENT = "comment"
EXTERNAL = "EXTERNAL"
TRANSACTIONAL = "transactional"
LAST_DDL_TIME = "transient_lastDdlTime"
ACCURATE = "COLUMN_STATS_ACCURATE"

RETENTION = "strandline.hive.retention"
LAST_ACCESS = "strandline.hive.lastAccessTime"
"""Fields of a Hive table that have no field here; stored as parameters, shown as fields."""

_COUNTED = frozenset(
    {
        "numRows",
        "numFiles",
        "totalSize",
        "rawDataSize",
        ACCURATE,
        LAST_DDL_TIME,
        "numFilesErasureCoded",
        "numPartitions",
        LAST_ACCESS,
    }
)
_COUNTED_PREFIX = "spark.sql.statistics."
_DERIVED_PREFIXES = ("spark.sql.", "view.")

_PARTS_OF_SCHEMA = (f"{SCHEMA}.part.", f"{SCHEMA}.partCol.")
_FIELDS = {
    SCHEMA: "the columns",
    f"{SCHEMA}.numParts": "the columns",
    f"{SCHEMA}.numPartCols": "the columns",
    PROVIDER: "the field provider",
    EXTERNAL: "the field kind",
    TRANSACTIONAL: "the field transactional",
    COMMENT: "the field comment",
    RETENTION: "a Hive client",
}


_AS_STORED: dict[str, Callable[[str], bool]] = {
    SCHEMA: lambda value: value == "",
    PROVIDER: lambda value: value == "hive",
    EXTERNAL: lambda value: value != "TRUE",
    TRANSACTIONAL: lambda value: not says_transactional(TRANSACTIONAL, value),
    RETENTION: lambda _: True,
}
"""Which values of these parameters are stored for Hive clients, since they contradict nothing."""


def says_transactional(name: str, value: str) -> bool:
    """Whether Hive takes a table with this parameter for one of its ACID tables."""
    return _spelled(name) == TRANSACTIONAL and value.lower() == "true"


def _spelled(name: str) -> str:
    """The name as it is here. Hive reads `TRANSACTIONAL` too, and its metastore any case."""
    return TRANSACTIONAL if name.lower() == TRANSACTIONAL else name


def is_counted(name: str) -> bool:
    """Whether a parameter counts or dates the content, so that it belongs to the object store."""
    return name in _COUNTED or name.startswith(_COUNTED_PREFIX)


def is_derived(name: str) -> bool:
    """Whether a Hive client may see a parameter of that name which the table does not store."""
    return is_counted(name) or name in (EXTERNAL, COMMENT) or name.startswith(_DERIVED_PREFIXES)


def refuse_reserved(commands: Iterable[Command], access: Access) -> None:
    """Raise `InvalidInput` if one of a session's commands sets a parameter that is not the user's.

    A parameter that an altered table or view has may be sent back by a user who may read it. So may
    an empty schema: it says that each answer to a Hive client derives Spark's schema from the
    columns.
    """
    for command in commands:
        for name, value in _set_by(command, access):
            source = _source_of(name)
            if source is not None and (name, value) != (SCHEMA, ""):
                raise InvalidInput(
                    f"the parameter {name!r} cannot be set: its value comes from {source}; leave "
                    "it out"
                )


def without_contradictions(stored: Properties) -> Properties:
    """The stored parameters of a table, without those that contradict a field or a count.

    Sessions of releases before 0.6.0 could store them.
    """
    return tuple((name, value) for name, value in stored if not _contradicts(name, value))


def _contradicts(name: str, value: str) -> bool:
    as_stored = _AS_STORED.get(_spelled(name))
    return _source_of(name) is not None and not (as_stored is not None and as_stored(value))


def _source_of(name: str) -> str | None:
    """What decides the value of a parameter, or None if the user does."""
    if is_counted(name):
        return "the store, which counts"
    return "the columns" if name.startswith(_PARTS_OF_SCHEMA) else _FIELDS.get(_spelled(name))


def _set_by(command: Command, access: Access) -> Iterable[tuple[str, str]]:
    """The parameters that the command sets and that its table or view does not have yet."""
    match command:
        case CreateTable() | CreateView():
            return dict(command.definition.properties).items()
        case SetTableProperties(schema=schema, table=name, set=sent):
            return _new(sent, access, schema, name)
        case AlterTable(schema=schema, table=name) | AlterView(schema=schema, view=name):
            return _new(command.definition.properties, access, schema, name)
    return ()


def _new(sent: Properties, access: Access, schema: str, name: str) -> Iterable[tuple[str, str]]:
    relation = access.catalog.relation(schema, name) if sent else None
    if relation is None or not access.allows(Privilege.SELECT, relation):
        return sent
    present = dict(relation.properties)
    return dict(sent).items() - present.items()
