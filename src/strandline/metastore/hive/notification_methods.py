"""Methods that read the notification log."""

from __future__ import annotations

from strandline import work
from strandline.metastore.hive.hive_events import HiveEvents
from strandline.metastore.hive.registry import Call, reads
from strandline.metastore.hive.storage import Struct
from strandline.metastore.workers import off_loop

MAX_EVENTS = 10_000
"""Events in one answer, whatever was asked for; who wants more asks again behind the last one."""


@reads("get_current_notificationEventId")
async def get_current_notification_event_id(call: Call) -> Struct:
    await off_loop()
    return {"eventId": call.notifications.head()}


@reads("get_next_notification")
async def get_next_notification(call: Call) -> Struct:
    """The events behind one, in Hive's form. ``eventTypeSkipList`` leaves out types."""
    await off_loop()
    # An event holds the definition of its table, whoever may read that.
    call.reader.access.require_superuser("read the notification log")
    request = call.struct("rqst")
    limit = request.get("maxEvents") or 0
    limit = min(limit, MAX_EVENTS) if limit > 0 else MAX_EVENTS
    last = request["lastEvent"]
    work.spend(min(limit, max(0, call.notifications.head() - last)))
    events = HiveEvents(call.metastore).render(call.notifications.read(last, limit=limit))
    skipped = set(request.get("eventTypeSkipList") or ())
    return {"events": [event for event in events if event["eventType"] not in skipped]}
