"""The notification log in Hive's format, rendered when a client asks for it.

The log stores Strandline's own records. Hive's clients read JSON (format ``json-0.2``) that
contains tables and partitions as text in Thrift's JSON protocol. Each event of the log becomes one
Hive event with the same number, because a client takes a gap in the numbers for lost events.

| in the log | Hive's event |
| --- | --- |
| create, alter, drop of a schema | CREATE_DATABASE, ALTER_DATABASE, DROP_DATABASE |
| create (or restore), drop of a table or view | CREATE_TABLE, DROP_TABLE |
| constraints of one kind added; a constraint dropped | ADD_PRIMARYKEY, …; DROP_CONSTRAINT |
| column statistics stored, deleted | UPDATE_, DELETE_TBL_COL_STAT_EVENT or _PART_COL_STAT_EVENT |
| any other change of a table or view, its counted parameters or its location | ALTER_TABLE |
| a change of a plain table of which rows were cleaned since | ALTER_TABLE |
| a change of rows of a table that no kept version of the catalog has | WRITE, with only its time |
| partitions staged: added, removed, replaced | ADD_, DROP_, ALTER_PARTITION |
| an insert that a client reported | INSERT |
| files staged | ACID_WRITE |
| a transaction ends | COMMIT_TXN, ABORT_TXN |
| create, drop of a function | CREATE_FUNCTION, DROP_FUNCTION |
| anything else | its own verb, with nothing but its time |

Two surprises come from Hive: the row of an ALTER_TABLE has the *new* name while its message has the
old one (a renamed schema has its old name in both), and a COMMIT_TXN contains only the number of
the transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from json.encoder import encode_basestring
from typing import Any, NamedTuple, TypeVar

from strandline import work
from strandline.catalog import DEFAULT_DATABASE, Catalog
from strandline.catalog.catalog import is_shown
from strandline.catalog.commands import DEFAULT_SCHEMA
from strandline.catalog.verbs import Action, verb_named
from strandline.clock import milliseconds
from strandline.errors import NotFound
from strandline.metastore.hive.accuracy import is_empty
from strandline.metastore.hive.constraints import added_event
from strandline.metastore.hive.databases import database_struct
from strandline.metastore.hive.event_texts import (
    PLACE,
    Definition,
    DefinitionTexts,
    Form,
    Quoted,
    definition,
    message_text,
    relation_struct,
)
from strandline.metastore.hive.functions import function_struct
from strandline.metastore.hive.names import hadoop_location
from strandline.metastore.hive.partition_values import Partitioned
from strandline.metastore.hive.statistics_events import statistics_event
from strandline.metastore.hive.storage_descriptors import Struct, int32
from strandline.metastore.hive.table_structs import with_counted
from strandline.metastore.metastore import Metastore
from strandline.metastore.store.notifications import (
    ABORT,
    COMMIT,
    INSERT,
    SET_LOCATION,
    STAGED,
    WRITE,
    DdlEvent,
    Notification,
    WriteEvent,
)
from strandline.metastore.store.rows import DataFile, PartitionRow, Row, RowKind, TableParametersRow
from strandline.metastore.thrift.codec import HIVE_CODEC
from strandline.metastore.thrift.json_text import JsonText
from strandline.model.descriptors import (
    FunctionDescriptor,
    Properties,
    SchemaDescriptor,
    TableDescriptor,
    properties,
)
from strandline.model.identifiers import QualifiedName
from strandline.model.places import Place
from strandline.wire import decode

FORMAT = "json-0.2"
_ADD_CONSTRAINTS, _DROP_CONSTRAINT = "add_constraints", "drop_constraint"
_OF_CONSTRAINTS = (_ADD_CONSTRAINTS, _DROP_CONSTRAINT)
_NO_FILES = Quoted("[]")
PAGE = 500
"""The number of events whose rows are read at once."""

_CLASSES: dict[str, type[Any]] = {  # Any: descriptors of different kinds
    "function": FunctionDescriptor,
    "schema": SchemaDescriptor,
}

T = TypeVar("T")


class _Ddl(NamedTuple):
    """A catalog event, with the table or view before and after it if the event changed one."""

    event: DdlEvent
    relations: tuple[Definition | None, Definition | None] | None


_Body = _Ddl | WriteEvent | None


@dataclass(frozen=True, slots=True)
class _Written:
    """A table as its events show it, and the common parts of its partitions."""

    schema: str
    partitioned: Partitioned
    struct: Struct
    """The ``Table`` without counted parameters, its storage descriptor as a text."""
    text: Quoted
    storage: Form
    """The text of the storage descriptor of a partition that uses its table's descriptor."""

    def partition(self, row: PartitionRow) -> str:
        partitioned, sd = self.partitioned, None
        if row.storage is None and row.columns is None:
            sd = JsonText(self.storage.filled(place=partitioned.place(row)))
        return HIVE_CODEC.to_json_text("Partition", partitioned.struct(row, sd=sd))

    def counting(self, counted: Properties) -> Quoted:
        """Return the text of the table with these counted parameters."""
        if not counted:
            return self.text
        return _quoted(with_counted(self.struct, counted))

    @property
    def table_type(self) -> str:
        return str(self.struct["tableType"])


def _quoted(table: Struct) -> Quoted:
    return Quoted(encode_basestring(HIVE_CODEC.to_json_text("Table", table)))


class _ShownPlaces:
    """The places of a page of events, as Hive's clients see them.

    `HiveEvents` and its texts share them. If the texts called `HiveEvents` back, the two would
    refer to each other, and would stay in memory with all their rows.
    """

    def __init__(self, metastore: Metastore) -> None:
        self._folders = metastore.folders
        self._warehouse = hadoop_location(metastore.warehouse)
        self._inside = f"{self._warehouse.rstrip('/')}/"
        self.by_id: dict[int, Place] = {}

    def of(self, table_id: int) -> str:
        place = self.by_id.get(table_id)
        if place is None:
            return self._warehouse
        if place.is_of_table:  # such a path needs no normalization
            return self._inside + place.path
        return hadoop_location(self._folders.location(place))

    def shown(self, place: str) -> str:
        return hadoop_location(self._folders.shown(place))


class HiveEvents:
    """Renders the events of one store. It queries the store, so do not use it on the event loop."""

    def __init__(self, metastore: Metastore) -> None:
        self._metastore = metastore
        self._rows: dict[int, Row] = {}
        self._places = _ShownPlaces(metastore)
        self._present = metastore.catalogs.present()
        self._latest: _Written | None = None
        self._texts = DefinitionTexts(self._places.of, self._places.shown)

    def render(self, events: Sequence[Notification]) -> Iterator[Struct]:
        """Yield a ``NotificationEvent`` struct for each event.

        The rows and places of `PAGE` events are read at once. If several consecutive events share a
        definition, its text is written once. Charges the rows to the budget, but not the events.
        """
        for first in range(0, len(events), PAGE):
            page = events[first : first + PAGE]
            bodies = [_body(event) for event in page]
            store, row_ids = self._metastore.store.sql_store, _row_ids(bodies)
            work.spend(len(row_ids))
            self._rows = store.rows_by_id(row_ids)
            self._places.by_id = store.places_by_id(_table_ids(page, bodies))
            yield from map(self._render, page, bodies)

    def _render(self, event: Notification, body: _Body) -> Struct:
        if isinstance(body, WriteEvent):
            return self._write(event, body)
        if isinstance(body, _Ddl):
            return self._ddl(event, body)
        if event.verb == SET_LOCATION:
            return self._table_moved(event)
        kind = "COMMIT_TXN" if event.verb == COMMIT else "ABORT_TXN"
        return _event(event, kind, {"txnid": event.txn_id})

    # -- DDL

    def _ddl(self, event: Notification, ddl: _Ddl) -> Struct:
        shown = None
        if schemas := _changed(ddl.event, "schema"):
            shown = self._schema(event, *schemas)
        elif ddl.relations is not None:
            shown = self._relation(event, ddl.event, *ddl.relations)
        elif functions := _changed(ddl.event, "function"):
            shown = self._function(event, ddl.event, *functions)
        return shown or _event(event, event.verb.upper(), {})

    def _is_seen(self, schema: SchemaDescriptor) -> bool:
        """Whether Hive's clients see the schema. They see those of the default database."""
        database = self._metastore.catalogs.latest_catalog().database()
        return database is not None and schema.database_id == database.id and is_shown(schema)

    # Of ``before`` and ``after``, one may be None. These return None if Hive has no such event.

    def _function(
        self, event: Notification, body: DdlEvent, before: Any, after: Any
    ) -> Struct | None:
        function: FunctionDescriptor = after or before
        schema, _ = _split(str(body.arguments.get("function") or ""), (before or after).name)
        if schema:
            schema, _ = _after(event, body, schema, function)
        schema = schema or self._schema_of(event, function)
        if not schema:
            return None
        message: dict[str, object] = {"db": schema}
        if after is None:
            message["functionName"] = function.name.lower()
        else:
            struct = function_struct(function, schema=schema)
            message["functionObjJson"] = HIVE_CODEC.to_json_text("Function", struct)
        return _event(event, _kind("FUNCTION", before, after), message, schema=schema)

    def _schema(self, event: Notification, before: Any, after: Any) -> Struct | None:
        schema: SchemaDescriptor = after or before
        if not self._is_seen(schema):
            return None
        name = (before or after).name.lower()
        message: dict[str, object] = {"db": name}
        if before is None:
            message["dbJson"] = self._database_json(after)
        elif after is not None:
            message["dbObjBeforeJson"] = self._database_json(before)
            message["dbObjAfterJson"] = self._database_json(after)
        kind = _kind("DATABASE", before, after)
        return _event(event, kind, message, schema=name)

    def _database_json(self, schema: SchemaDescriptor) -> str:
        location = self._metastore.location_of_schema(schema)
        struct = database_struct(schema, name=schema.name.lower(), location=location)
        return HIVE_CODEC.to_json_text("Database", struct)

    def _relation(
        self, event: Notification, body: DdlEvent, before: Any, after: Any
    ) -> Struct | None:
        relation: Definition = after or before
        schema, name = _split(_qualified(body), (before or relation).name)
        # A renamed role, for example, names none of the tables that it owns.
        is_named, schema = bool(schema), schema or self._schema_of(event, before or relation)
        if not schema:
            return None
        if event.verb in _OF_CONSTRAINTS and before is not None and after is not None:
            constraint = self._constraint_event(event, body, after, schema=schema, table=name)
            if constraint is not None:
                return _event(event, *constraint, schema=schema, table=name)
        new = schema, relation.name.lower()
        if is_named:
            new = _after(event, body, schema, relation)
        written = self._texts.text(new[0], relation)
        message: dict[str, object] = {
            "db": schema,
            "table": name,
            "tableType": written.table_type,
        }
        if before is not None and after is not None:
            old = self._texts.text(schema, before)
            message |= _alteration(old.text, written.text)
        else:
            message["tableObjJson"] = written.text
        if before is None:
            message["files"] = _NO_FILES
        kind = _kind("TABLE", before, after)
        return _event(event, kind, message, schema=new[0], table=new[1])

    def _constraint_event(
        self, event: Notification, body: DdlEvent, after: Definition, *, schema: str, table: str
    ) -> tuple[str, Struct] | None:
        """Return Hive's type and message for added or dropped constraints, or None."""
        if event.verb == _DROP_CONSTRAINT:
            dropped = body.arguments.get("constraint")
            names = {"dbName": schema, "tableName": table, "constraintName": dropped}
            return "DROP_CONSTRAINT", names
        added, catalog = body.arguments.get("added"), next(self._catalogs(event))
        if not isinstance(added, list | tuple):
            return None
        descriptor = decode(after.record, TableDescriptor)
        return added_event(catalog, descriptor, map(str, added), schema=schema)

    def _catalogs(self, event: Notification) -> Iterator[Catalog]:
        """The catalog of the time of an event, unless it was trimmed, and the present one."""
        with suppress(NotFound):
            yield self._metastore.catalogs.active_catalog(event.time)
        yield self._present

    def _schema_of(self, event: Notification, value: Definition | FunctionDescriptor) -> str:
        """The name of the schema of an object whose event does not name it; "" if unknown."""
        schemas = (catalog.schema_by_id(value.schema_id) for catalog in self._catalogs(event))
        return next((schema.name.lower() for schema in schemas if schema is not None), "")

    # -- DML

    def _home(self, event: Notification) -> tuple[str, TableDescriptor] | None:
        """The table of an event as it was then, and the name of its schema; None if unknown."""
        for catalog in self._catalogs(event):
            table = catalog.table_by_id(event.table_id or 0)
            schema = None if table is None else catalog.schema_by_id(table.schema_id)
            if table is not None and schema is not None:
                return schema.name.lower(), table
        return None

    def _write(self, event: Notification, body: WriteEvent) -> Struct:
        home = self._home(event)
        if home is None:
            return _event(event, WRITE.upper(), {})
        schema, table = home
        added, removed = self._rows_of(body)
        are_gone = len(added) < body.rows or len(removed) < len(body.removed)
        if are_gone and not table.transactional:
            # What is left may look like another change. Clients then read the table again.
            return self._table_altered(event, schema, table)
        kinds = {row.kind for row in (*added, *removed)}
        if RowKind.STATISTICS in kinds:
            written, name = self._written(schema, table), table.name.lower()
            keys = written.partitioned.key_names
            statistics = statistics_event(added, removed, schema=schema, table=name, keys=keys)
            if statistics is not None:
                message = statistics.message
                if statistics.needs_table:
                    message["tableObjJson"] = written.text
                return _event(event, statistics.kind, message, schema=schema, table=name)
        if event.verb == INSERT or RowKind.PARTITION in kinds:
            return self._content_changed(event, schema, table, added, removed)
        if kinds and kinds <= {RowKind.TABLE_PARAMETERS, RowKind.STATISTICS}:
            before, after = _counted(removed), _counted(added)
            return self._table_altered(event, schema, table, before=before, after=after)
        files = [row.as_(DataFile).path for row in added if row.kind is RowKind.DATA_FILE]
        message = {
            "txnid": event.txn_id,
            "writeId": event.write_id,
            "database": schema,
            "table": table.name.lower(),
            "partition": "",
            "tableObjJson": self._written(schema, table).text,
            "partitionObjJson": None,
            "files": files,
        }
        return _event(event, "ACID_WRITE", message, schema=schema, table=table.name.lower())

    def _rows_of(self, body: WriteEvent) -> tuple[list[Row], list[Row]]:
        """The rows that a staging added and removed, without those that were cleaned since."""
        rows = self._rows
        added = [rows[row_id] for row_id in body.added if row_id in rows]
        return added, [rows[row_id] for row_id in body.removed if row_id in rows]

    def _content_changed(
        self,
        event: Notification,
        schema: str,
        table: TableDescriptor,
        added: Sequence[Row],
        removed: Sequence[Row],
    ) -> Struct:
        written = self._written(schema, table)
        partitioned = written.partitioned
        new = [row.as_(PartitionRow) for row in added if row.kind is RowKind.PARTITION]
        old = [row.as_(PartitionRow) for row in removed if row.kind is RowKind.PARTITION]
        message: dict[str, object] = {
            "db": schema,
            "table": table.name.lower(),
            "tableType": written.table_type,
            "tableObjJson": written.text,
        }
        if event.verb == INSERT:
            kind = "INSERT"
            message["ptnObjJson"] = written.partition(new[0]) if new else None
            message["files"] = _NO_FILES
        elif new and old:
            kind = "ALTER_PARTITION"
            message |= {
                **_of_rows(truncated=is_empty(new[0].parameters)),
                "keyValues": _keys(partitioned, old[0]),
                "partitionObjBeforeJson": written.partition(old[0]),
                "partitionObjAfterJson": written.partition(new[0]),
            }
        elif new:
            kind = "ADD_PARTITION"
            message |= {
                "partitions": [_keys(partitioned, row) for row in new],
                "partitionListJson": [written.partition(row) for row in new],
                "partitionFiles": [],
            }
        else:
            kind = "DROP_PARTITION"
            message["partitions"] = [_keys(partitioned, row) for row in old]
        return _event(event, kind, message, schema=schema, table=table.name.lower())

    def _written(self, schema: str, table: TableDescriptor) -> _Written:
        """The text of a table's definition, reused from the previous event if it is the same."""
        latest = self._latest
        if latest is None or latest.partitioned.table is not table or latest.schema != schema:
            place = (
                self._places.shown(table.location) if table.location else self._places.of(table.id)
            )
            struct = relation_struct(table, schema=schema, place=place)
            folders = self._metastore.folders
            partitioned = Partitioned(table, schema=schema, location=place, folders=folders)
            storage = HIVE_CODEC.to_json_form(
                "StorageDescriptor", partitioned.storage_struct(PLACE)
            )
            sd = JsonText(HIVE_CODEC.to_json_text("StorageDescriptor", struct["sd"]))
            struct = struct | {"sd": sd}
            latest = _Written(schema, partitioned, struct, _quoted(struct), Form(storage))
            self._latest = latest
        return latest

    def _table_moved(self, event: Notification) -> Struct:
        home = self._home(event)
        if home is None:
            return _event(event, event.verb.upper(), {})
        return self._table_altered(event, *home)

    def _table_altered(
        self,
        event: Notification,
        schema: str,
        table: TableDescriptor,
        *,
        before: Properties = (),
        after: Properties = (),
    ) -> Struct:
        """An ALTER_TABLE event that changes at most the counted parameters."""
        written = self._written(schema, table)
        texts = written.counting(before), written.counting(after)
        message = {
            "db": schema,
            "table": table.name.lower(),
            "tableType": written.table_type,
            **_alteration(*texts, truncated=is_empty(after)),
        }
        return _event(event, "ALTER_TABLE", message, schema=schema, table=table.name.lower())


def _body(event: Notification) -> _Body:
    """The content of an event beyond its columns, or None if its verb has no more.

    Raises `CorruptData` or `IncompatibleFormat`.
    """
    if event.verb in STAGED:
        return event.write()
    if event.verb in (COMMIT, ABORT, SET_LOCATION):
        event.compare()
        return None
    ddl = event.ddl()
    # Only the head of a table's record is read: its definition was usually written before.
    return _Ddl(ddl, _first_change(ddl, ("table", "view"), definition))


def _row_ids(bodies: Iterable[_Body]) -> list[int]:
    row_ids: list[int] = []
    for body in bodies:
        if isinstance(body, WriteEvent):
            row_ids += (*body.added, *body.removed)
    return row_ids


def _table_ids(events: Iterable[Notification], bodies: Iterable[_Body]) -> set[int]:
    table_ids = {event.table_id for event in events if event.table_id is not None}
    for body in bodies:
        if isinstance(body, _Ddl):
            table_ids |= {table.id for table in body.relations or () if table is not None}
    return table_ids


def _changed(body: DdlEvent, kind: str) -> tuple[Any, Any] | None:
    """The object of this kind before and after the event, or None if it changed none."""
    descriptor_class = _CLASSES[kind]
    return _first_change(body, (kind,), lambda _, record: decode(record, descriptor_class))


def _first_change(
    body: DdlEvent, kinds: Sequence[str], read: Callable[[str, bytes], T]
) -> tuple[T | None, T | None] | None:
    for change in body.changes:
        if change.kind in kinds:
            old = None if change.old is None else read(change.kind, change.old)
            new = None if change.new is None else read(change.kind, change.new)
            return old, new
    return None


def _qualified(body: DdlEvent) -> str:
    """Return the name ``schema.table`` of the table or view that a change names.

    A grant has the name after the kind, as its client wrote it: ``table `s`.t``.
    """
    name = body.arguments.get("table") or body.arguments.get("view")
    granted_on = body.arguments.get("on")
    if name or not granted_on:
        return str(name or "")
    _, _, sent = str(granted_on).partition(" ")
    parsed = QualifiedName.parse(sent, default_schema=DEFAULT_SCHEMA)
    return f"{parsed.schema}.{parsed.name}"


def _split(qualified: str, name: str) -> tuple[str, str]:
    """The schema in ``qualified``, which ends with ``name``, and the name. Both may have dots."""
    own = name.lower()
    return qualified.lower().removesuffix(f".{own}"), own


def _after(
    event: Notification, body: DdlEvent, schema: str, value: Definition | FunctionDescriptor
) -> tuple[str, str]:
    """The schema and the name of ``value`` after an event that names it in ``schema``."""
    if verb_named(event.verb).action is Action.RENAME:
        return _split(str(body.arguments.get("to") or ""), value.name)
    return schema, value.name.lower()


def _kind(what: str, before: object, after: object) -> str:
    """Hive's name for the creation, removal or change of an object."""
    if before is None:
        return f"CREATE_{what}"
    return f"DROP_{what}" if after is None else f"ALTER_{what}"


def _alteration(before: Quoted, after: Quoted, *, truncated: bool = False) -> dict[str, object]:
    texts = {"tableObjBeforeJson": before, "tableObjAfterJson": after}
    return texts | _of_rows(truncated=truncated)


def _of_rows(*, truncated: bool) -> dict[str, object]:
    """What an alteration says about rows. Clients may skip one that changes only counts."""
    return {"isTruncateOp": "true" if truncated else "false", "writeId": -1}


def _counted(rows: Iterable[Row]) -> Properties:
    """Return the counted parameters of a table in these rows."""
    counted = (row.as_(TableParametersRow) for row in rows if row.kind is RowKind.TABLE_PARAMETERS)
    return properties(chain.from_iterable(row.parameters for row in counted))


def _keys(partitioned: Partitioned, row: PartitionRow) -> dict[str, str]:
    return dict(zip(partitioned.key_names, row.values, strict=True))


def _event(
    event: Notification,
    kind: str,
    message: Mapping[str, object],
    *,
    schema: str | None = None,
    table: str | None = None,
) -> Struct:
    seconds = milliseconds(event.time) // 1000
    return {
        "eventId": event.event_id,
        "eventTime": int32(seconds),
        "eventType": kind,
        "dbName": schema,
        "tableName": table,
        "message": message_text(message, seconds),
        "messageFormat": FORMAT,
        "catName": None if schema is None else DEFAULT_DATABASE,
    }
