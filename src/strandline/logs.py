"""The log of a process: the format of its lines, and limits on what they may contain.

Every module logs with the standard library's `logging`. Further values of a line are passed as
``extra=fields(version=5)``. The context variable `CLIENT` contains the client on whose behalf a
thread works, so that a line written deep inside a call names the client too. `configure` sets the
handlers of a stand-alone process. A program that embeds a store keeps its own handlers.

What must stay true:

* One record begins one line. A line break in a name, a path or an error's text is escaped, and each
  line of a traceback is indented. So no text can forge a line. Only the formatter does this.
* The log cannot be flooded. At most `BURST` lines from the same statement are written in
  `WINDOW_SECONDS`. The next line from that statement says how many were left out. A line that must
  not be lost (`kept`) is always written.

Rejected: structlog. Its processors and context variables are the model here, but the standard
library was enough, and every library that Strandline uses logs through it.
"""

from __future__ import annotations

import codecs
import json
import logging
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import IO, Any

CLIENT: ContextVar[str] = ContextVar("client", default="")
"""The client on whose behalf this thread or task works, as ``host:port``; empty for the node."""

BURST = 50
WINDOW_SECONDS = 10.0
MAX_LINE_CHARACTERS = 8_000
"""A longer message is truncated. Its end says by how much."""

_STATEMENTS = 1_000
"""How many statements `Flood` counts before it starts again. The program has fewer."""
_NAMES = {"uvicorn.error": "uvicorn"}
# Python loads a codec at its first use, which fails when no file can be opened.
_escaped = codecs.getencoder("unicode_escape")


def fields(**values: object) -> dict[str, Any]:  # Any: what logging takes as ``extra``
    """Return the ``extra`` of a line: values by name, in the order in which the line shows them.

    Values that are None are omitted.
    """
    return {"fields": {name: value for name, value in values.items() if value is not None}}


def kept(**values: object) -> dict[str, Any]:  # Any: what logging takes as ``extra``
    """Return the same as `fields`, for a line that is never left out."""
    return {**fields(**values), "kept": True}


def in_one_line(text: str) -> str:
    """Return ``text`` with line breaks and other unprintable characters escaped."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else _escaped(character)[0].decode()
        for character in text
    )


class _Formatter(logging.Formatter):
    """The parts of a record that both formats write."""

    def time_of(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, UTC)
        return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")

    def message_of(self, record: logging.LogRecord) -> str:
        message = record.getMessage()
        if len(message) > MAX_LINE_CHARACTERS:
            left_out = len(message) - MAX_LINE_CHARACTERS
            message = f"{message[:MAX_LINE_CHARACTERS]}… ({left_out} more characters)"
        return message

    def fields_of(self, record: logging.LogRecord) -> Mapping[str, object]:
        extra_fields = dict(getattr(record, "fields", {}))
        client = extra_fields.pop("client", None) or getattr(record, "client", "")
        return {"client": client, **extra_fields} if client else extra_fields

    def trace_of(self, record: logging.LogRecord) -> str:
        if record.exc_info and record.exc_info[0] is not None:
            return self.formatException(record.exc_info)
        return ""


class TextFormatter(_Formatter):
    """``2026-11-20T10:00:00.000Z INFO  node: message (client 127.0.0.1:50122, user ann)``."""

    def format(self, record: logging.LogRecord) -> str:
        name = _NAMES.get(record.name, record.name).removeprefix("strandline.")
        line = f"{self.time_of(record)} {record.levelname:<7} {name}: {self.message_of(record)}"
        values = self.fields_of(record)
        if values:
            values_text = ", ".join(
                f"{field.replace('_', ' ')} {value}" for field, value in values.items()
            )
            line += f" ({values_text})"
        trace = [f"    {in_one_line(part)}" for part in self.trace_of(record).splitlines()]
        return "\n".join([in_one_line(line), *trace])


class JsonFormatter(_Formatter):
    """One object per line: ``time``, ``level``, ``logger``, ``message``, the fields, ``trace``."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, object] = {
            "time": self.time_of(record),
            "level": record.levelname.lower(),
            "logger": _NAMES.get(record.name, record.name),
            "message": self.message_of(record),
        }
        entry |= {name: v for name, v in self.fields_of(record).items() if name not in entry}
        trace = self.trace_of(record)
        if trace:
            entry["trace"] = trace
        # ASCII only: no Unicode line separators, and no halves of surrogate pairs.
        return json.dumps(entry, default=str)


FORMATS: Mapping[str, Callable[[], logging.Formatter]] = {
    "text": TextFormatter,
    "json": JsonFormatter,
}


class Flood(logging.Filter):
    """Drops records that come too often; see the module. Safe for threads."""

    def __init__(self, *, elapsed: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._elapsed = elapsed
        self._lock = threading.RLock()  # a handler filters before it takes its own
        self._counts: dict[tuple[str, int], list[float]] = {}  # [window's end, written, left out]

    def filter(self, record: logging.LogRecord) -> bool:
        if getattr(record, "kept", False):
            return True
        with self._lock:
            return self._may_write(record)

    def _may_write(self, record: logging.LogRecord) -> bool:
        now = self._elapsed()
        if len(self._counts) > _STATEMENTS:
            self._counts.clear()
        counts = self._counts.setdefault((record.pathname, record.lineno), [0.0, 0, 0])
        if now >= counts[0]:
            counts[0], counts[1] = now + WINDOW_SECONDS, 0
        if counts[1] >= BURST:
            counts[2] += 1
            return False
        counts[1] += 1
        if counts[2]:
            extra_fields = getattr(record, "fields", {})
            record.fields = {**extra_fields, "lines_like_this_left_out": int(counts[2])}
            counts[2] = 0
        return True


class _Client(logging.Filter):
    """Adds the client to the record early: a handler may format it in another context."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.client = CLIENT.get()
        return True


def configure(*, level: str, form: str, stream: IO[str] | None = None) -> logging.Handler:
    """Make this process log to ``stream`` (default: standard error), replacing all root handlers.

    ``level`` is a level name of `logging`, ``form`` a key of `FORMATS`. Return the new handler.
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(FORMATS[form]())
    handler.addFilter(_Client())
    handler.addFilter(Flood())
    root = logging.getLogger()
    for old in list(root.handlers):
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    logging.getLogger("strandline").setLevel(level.upper())
    # Other loggers write from WARNING on: what uvicorn logs at INFO, the node logs itself.
    logging.captureWarnings(True)
    return handler
