"""Methods that read the notification log, and the one by which a client reports an INSERT.

A client that writes the files of a plain table itself sends no call that reports the change.
Impala, and Spark with ``hive.metastore.dml.events``, report it with `fire_listener_event`. The time
of the last change of the table or of each partition is then set, in a change that is logged as an
INSERT: other clients read the files again after it. The list of files is not kept.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from itertools import islice

from strandline import work
from strandline.catalog import DEFAULT_DATABASE
from strandline.errors import InvalidInput, ObjectNotFound
from strandline.metastore.hive.events import PAGE, HiveEvents
from strandline.metastore.hive.parameters import time_of_change
from strandline.metastore.hive.partition_changes import named_table
from strandline.metastore.hive.partition_values import Partitioned
from strandline.metastore.hive.registry import Call, changes, reads
from strandline.metastore.hive.storage_descriptors import Struct
from strandline.metastore.off_loop import off_loop
from strandline.metastore.store.notifications import INSERT
from strandline.metastore.store.rows import PartitionRow, Row, RowKind, TableParametersRow
from strandline.metastore.thrift.codec import HIVE_CODEC
from strandline.model.descriptors import properties
from strandline.model.privileges import Privilege

MAX_EVENTS = 10_000
"""The maximum number of events in one answer. A client continues after the last one."""
MAX_EVENT_BYTES = 64 << 20
"""No event follows in an answer that has this many bytes: ten thousand events of wide tables would
take gigabytes, which no client reads."""
_UNITS_PER_EVENT = 5
"""The cost of rendering an event, which has the definition of its table as JSON."""


@reads("get_current_notificationEventId")
async def get_current_notification_event_id(call: Call) -> Struct:
    await off_loop()
    call.reader.needs_proof = True
    return {"eventId": call.metastore.notifications.head()}


@reads("get_next_notification")
async def get_next_notification(call: Call) -> Struct:
    """The events after a given one that pass the filters, in Hive's format.

    As in Hive, ``maxEvents`` counts only the events that pass. The answer has fewer, but at least
    one, if they are long.
    """
    await off_loop()
    # An event contains the definition of its table, which some users may not read.
    call.reader.access.require_superuser("read the notification log")
    call.reader.needs_proof = True
    request = call.args
    limit = request.get("maxEvents") or 0
    limit = min(limit, MAX_EVENTS) if limit > 0 else MAX_EVENTS
    last = request["lastEvent"]
    passes, log = _filter(request), call.metastore.notifications
    ahead = max(0, log.head() - last)
    work.spend(_UNITS_PER_EVENT * (min(limit, ahead) if passes is None else ahead))
    rendered = HiveEvents(call.metastore)
    encoded: list[bytes] = []
    size = 0
    while len(encoded) < limit and (events := log.read(last, limit=PAGE)):
        last = events[-1].event_id
        passing = filter(passes, rendered.render(events))
        # Encoded one by one: all texts together would need the memory of the answer once more.
        for event in islice(passing, limit - len(encoded)):
            encoded.append(HIVE_CODEC.encode_struct("NotificationEvent", event))
            size += len(encoded[-1])
            if size >= MAX_EVENT_BYTES:
                return {"events": encoded}
    return {"events": encoded}


def _filter(request: Struct) -> Callable[[Struct], bool] | None:
    """Return whether an event passes the filters of a request, or None if there are none.

    As in Hive, an event that belongs to no schema, such as the end of a transaction, passes no
    filter of a catalog, schema or table.
    """
    catalog, schema = request.get("catName") or None, request.get("db_name")
    tables = {name.lower() for name in request.get("tableNames") or ()}
    kinds = set(request.get("eventTypeList") or ())
    skipped = set(request.get("eventTypeSkipList") or ())
    if catalog is None and schema is None and not (tables or kinds or skipped):
        return None

    def passes(event: Struct) -> bool:
        kind, of_schema = event["eventType"], event.get("dbName")
        return (
            kind not in skipped
            and (not kinds or kind in kinds)
            and (catalog is None or (catalog.lower() == DEFAULT_DATABASE and of_schema is not None))
            and (schema is None or of_schema == schema.lower())
            and (not tables or event.get("tableName") in tables)
        )

    return passes


@reads("get_notification_events_count")
async def get_notification_events_count(call: Call) -> Struct:
    """The number of events about a schema after a given one, up to ``toEventId`` and ``limit``.

    A limit below 1 means no limit, as in `get_next_notification`.
    """
    await off_loop()
    call.reader.access.require_superuser("read the notification log")
    call.reader.needs_proof = True
    passes, last = _filter(call.args), call.args["fromEventId"]
    assert passes is not None  # a request without a schema does not decode
    log = call.metastore.notifications
    head = log.head()
    to = call.args.get("toEventId") or head
    limit = call.args.get("limit") or 0
    max_count = limit if limit > 0 else head
    events = HiveEvents(call.metastore)
    count = 0
    while last < min(to, head) and count < max_count:
        page = [event for event in log.read(last, limit=PAGE) if event.event_id <= to]
        if not page:
            break
        work.spend(_UNITS_PER_EVENT * len(page))
        count += sum(map(passes, events.render(page)))
        last = page[-1].event_id
    return {"eventsCount": min(count, max_count)}


@changes("fire_listener_event")
async def fire_listener_event(call: Call) -> Struct:
    """Log that files were inserted into a table, or into some of its partitions.

    As in Hive 3 and later, the answer has the ids of the events: Impala then knows them as its own.
    """
    data = call.struct("data")
    if data.get("insertData") is None and data.get("insertDatas") is None:
        raise InvalidInput("the event has no insertData; only events of INSERT are known")
    partitioned = await named_table(call, need=Privilege.INSERT, what="files")
    if not call.args.get("successful"):
        return {}
    named = [insert.get("partitionVal") for insert in data.get("insertDatas") or ()]
    values = [value for value in (call.args.get("partitionVals"), *named) if value]
    event_ids = (
        _date_partitions(call, partitioned, values) if values else _date_table(call, partitioned)
    )
    return {"eventIds": list(event_ids)}


def _date_table(call: Call, partitioned: Partitioned) -> range:
    with call.metastore.store.change(partitioned.table.id, author=call.user) as change:
        change.verb = INSERT
        rows = change.visible(RowKind.TABLE_PARAMETERS).values()
        counted = {k: v for row in rows for k, v in row.as_(TableParametersRow).parameters}
        change.set_parameters(properties(counted | time_of_change()))
        return change.event_ids


def _date_partitions(
    call: Call, partitioned: Partitioned, values: Collection[Sequence[str]]
) -> range:
    names = {partitioned.name_of(partition_values): partition_values for partition_values in values}
    with call.metastore.store.change(partitioned.table.id, author=call.user) as change:
        change.verb = INSERT
        rows = change.visible(RowKind.PARTITION, names.keys())
        for name, partition_values in names.items():
            if name not in rows:
                raise ObjectNotFound(f"partition values=[{', '.join(partition_values)}]")
        change.replace({row.row_id: row.replaced_by(_dated(row)) for row in rows.values()})
        return change.event_ids


def _dated(row: Row) -> PartitionRow:
    content = row.as_(PartitionRow)
    return replace(content, parameters=properties(dict(content.parameters) | time_of_change()))
