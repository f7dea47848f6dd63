"""The events of the notification log, as a client of Hive lists them."""

from __future__ import annotations

import json
from typing import Any

from hive_metastore.ttypes import NotificationEventRequest


def events(stub: Any, since: int, **fields: Any) -> list[Any]:
    listed = stub.get_next_notification(NotificationEventRequest(lastEvent=since, **fields)).events
    return list(listed)


def message(event: Any) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(event.message)
    assert body["timestamp"] == event.eventTime
    assert (event.messageFormat, body["server"]) == ("json-0.2", "")
    return body


def kinds(listed: list[Any]) -> list[str]:
    return [event.eventType for event in listed]
