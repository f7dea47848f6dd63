"""The log of a process: how its lines look, and what keeps them honest.

Every part logs with the standard library's `logging`. What a line carries besides its message is
given as ``extra=fields(version=5)``; the client on whose behalf a thread works is in the context
variable `CLIENT`, so that a line written deep inside a call names it too. `configure` sets the
handlers of a process that runs by itself; a program that embeds a store keeps its own.

What must stay true:

* One record begins one line. Whatever a name, a path or an error's text contains, a line break in
  it is written as an escape, and each line of a traceback is indented: no text can forge a line.
  This is done in the formatter, once, and nowhere else.
* The log cannot be flooded. Of lines that come from the same statement `BURST` are written in
  `WINDOW_SECONDS`; the next one that is written says how many were left out. A line that must not
  be lost (`kept`) is always written.

structlog was looked at: its processors and its context variables are the model. The standard
library was enough, and every library that we use logs through it.
"""

from __future__ import annotations

import json
import logging
import sys
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
"""A longer message is cut; its end says by how much."""

_STATEMENTS = 1_000
"""So many statements of the program are counted by `Flood`; the program has fewer."""
_NAMES = {"uvicorn.error": "uvicorn"}


def fields(**values: object) -> dict[str, Any]:  # Any: what logging takes as ``extra``
    """The ``extra`` of a line: values by name, in the order in which the line shows them."""
    return {"fields": {name: value for name, value in values.items() if value is not None}}


def kept(**values: object) -> dict[str, Any]:  # Any: what logging takes as ``extra``
    """As `fields`, for a line that is never left out."""
    return {**fields(**values), "kept": True}


def in_one_line(text: str) -> str:
    """``text`` with line breaks and whatever else a terminal would act on written as escapes."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in text
    )


class _Formatter(logging.Formatter):
    """What both formats share: the parts of a record, each safe to be written."""

    def time_of(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, UTC)
        return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")

    def message_of(self, record: logging.LogRecord) -> str:
        message = record.getMessage()
        if len(message) > MAX_LINE_CHARACTERS:
            left_out = len(message) - MAX_LINE_CHARACTERS
            message = f"{message[:MAX_LINE_CHARACTERS]}… ({left_out} characters more)"
        return message

    def fields_of(self, record: logging.LogRecord) -> Mapping[str, object]:
        given = dict(getattr(record, "fields", {}))
        client = given.pop("client", None) or getattr(record, "client", "")
        return {"client": client, **given} if client else given

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
    """One object a line: ``time``, ``level``, ``logger``, ``message``, the fields, ``trace``."""

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
        # ASCII alone: no line separator of Unicode, and no half of a surrogate pair.
        return json.dumps(entry, default=str)


FORMATS: Mapping[str, Callable[[], logging.Formatter]] = {
    "text": TextFormatter,
    "json": JsonFormatter,
}


class Flood(logging.Filter):
    """Leaves out what comes too often; see the module. Called under the lock of its handler."""

    def __init__(self, *, elapsed: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._elapsed = elapsed
        self._seen: dict[tuple[str, int], list[float]] = {}  # [window's end, written, left out]

    def filter(self, record: logging.LogRecord) -> bool:
        if getattr(record, "kept", False):
            return True
        now = self._elapsed()
        if len(self._seen) > _STATEMENTS:
            self._seen.clear()
        counts = self._seen.setdefault((record.pathname, record.lineno), [0.0, 0, 0])
        if now >= counts[0]:
            counts[0], counts[1] = now + WINDOW_SECONDS, 0
        if counts[1] >= BURST:
            counts[2] += 1
            return False
        counts[1] += 1
        if counts[2]:
            given = getattr(record, "fields", {})
            record.fields = {**given, "lines_like_this_left_out": int(counts[2])}
            counts[2] = 0
        return True


class _Client(logging.Filter):
    """Writes down the client at once: a handler may format the record in another context."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.client = CLIENT.get()
        return True


def configure(*, level: str, form: str, stream: IO[str] | None = None) -> logging.Handler:
    """Let this process log to ``stream`` (standard error), in place of what was set before.

    ``level`` is a name of `logging`, ``form`` one of `FORMATS`.
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
    # What uvicorn says at INFO (started, finished) the node says itself.
    logging.captureWarnings(True)
    return handler
