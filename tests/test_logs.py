"""Lines of the log: their format; they cannot be forged, and cannot flood the log."""

from __future__ import annotations

import io
import json
import logging
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import partial

import pytest

from strandline import logs
from strandline.logs import BURST, CLIENT, WINDOW_SECONDS, Flood, configure, fields, kept
from tests.log_lines import logging_restored
from tests.schedules import Race, explore

LINE = re.compile(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (INFO|WARNING|ERROR) +[\w.]+: ")
logger = logging.getLogger("strandline.somewhere")


@pytest.fixture
def restored() -> Iterator[None]:
    with logging_restored():
        yield


def stream(form: str = "text", level: str = "info") -> io.StringIO:
    written = io.StringIO()
    configure(level=level, form=form, stream=written)
    return written


@pytest.mark.usefixtures("restored")
def test_a_line_has_time_level_logger_message_client_and_fields() -> None:
    text = stream()
    token = CLIENT.set("127.0.0.1:5")
    logger.info("version %d", 5, extra=fields(user="ann", nothing=None, left_over=3))
    CLIENT.reset(token)
    logger.info("plain")
    first, second = text.getvalue().splitlines()
    assert LINE.match(first)
    assert first.endswith(
        " INFO    somewhere: version 5 (client 127.0.0.1:5, user ann, left over 3)"
    )
    assert second.endswith(" INFO    somewhere: plain")


def test_a_line_is_written_when_no_file_can_be_opened() -> None:
    script = """
import logging, resource
from strandline.logs import configure
configure(level="info", form="text")
resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
logging.getLogger("strandline.somewhere").error("two\\nlines")
"""
    completed = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert completed.stderr.endswith(" ERROR   somewhere: two\\nlines\n")


@pytest.mark.usefixtures("restored")
def test_json_format_has_one_object_per_line_with_the_same_parts() -> None:
    written = stream("json")
    token = CLIENT.set("127.0.0.1:5")
    logger.info("version %d", 5, extra=fields(user="a\nb\u2028c", message="not this"))
    CLIENT.reset(token)
    (line,) = written.getvalue().splitlines()
    entry = json.loads(line)
    assert list(entry) == ["time", "level", "logger", "message", "client", "user"]
    assert (entry["level"], entry["logger"], entry["message"]) == (
        "info",
        "strandline.somewhere",
        "version 5",
    )
    assert entry["user"] == "a\nb\u2028c"


FORGED = "x\n2026-11-20T10:00:00.000Z INFO    node: stopped"


@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.parametrize("between", ["\n", "\r", "\x0b", "\x0c", "\x85", "\u2028", "\x1b[2K", "\0"])
@pytest.mark.usefixtures("restored")
def test_line_breaks_and_control_characters_cannot_forge_a_line(form: str, between: str) -> None:
    written = stream(form)
    name = FORGED.replace("\n", between)
    token = CLIENT.set(name)
    logger.warning("no table %s", name, extra=fields(user=name))
    CLIENT.reset(token)
    text = written.getvalue()
    assert len(text.splitlines()) == 1
    assert text[:-1].isprintable()


@pytest.mark.usefixtures("restored")
def test_the_lines_of_a_traceback_are_indented_and_cannot_forge_a_line() -> None:
    written = stream()
    try:
        raise ValueError(FORGED)
    except ValueError:
        logger.exception("it failed")
    first, *trace = written.getvalue().splitlines()
    assert LINE.match(first)
    assert len(trace) > 2
    assert all(line.startswith("    ") for line in trace)
    as_json = stream("json")
    try:
        raise ValueError(FORGED)
    except ValueError:
        logger.exception("it failed")
    assert FORGED in json.loads(as_json.getvalue())["trace"]


@pytest.mark.usefixtures("restored")
def test_a_long_message_is_truncated() -> None:
    written = stream()
    logger.info("x" * 100_000)
    assert len(written.getvalue()) < logs.MAX_LINE_CHARACTERS + 200
    assert written.getvalue().endswith("… (92000 more characters)\n")


def test_a_flood_of_equal_lines_is_cut_and_counted_except_marked_lines() -> None:
    now = [0.0]
    flood = Flood(elapsed=lambda: now[0])

    def record(line: int, **extra: object) -> logging.LogRecord:
        made = logging.LogRecord("strandline.x", logging.INFO, "x.py", line, "m", (), None)
        made.__dict__.update(extra)
        return made

    written = [flood.filter(record(1)) for _ in range(BURST + 7)]
    assert written == [True] * BURST + [False] * 7
    assert flood.filter(record(2))
    assert all(flood.filter(record(1, **kept())) for _ in range(BURST))
    now[0] = WINDOW_SECONDS
    later = record(1, fields={"user": "ann"})
    assert flood.filter(later)
    assert later.__dict__["fields"] == {"user": "ann", "lines_like_this_left_out": 7}


def test_lines_that_were_left_out_are_reported_once_in_any_order_of_threads() -> None:
    def scenario(race: Race) -> None:
        now = [0.0]
        flood = Flood(elapsed=lambda: now[0])
        records = [logging.LogRecord("x", logging.INFO, "x.py", 1, "m", (), None) for _ in range(2)]
        for _ in range(BURST + 7):
            flood.filter(records[0])
        now[0] = WINDOW_SECONDS
        assert race(*(partial(flood.filter, record) for record in records)) == [True, True]
        reports = [vars(record).get("fields") for record in records]
        assert sorted(reports, key=str) == [None, {"lines_like_this_left_out": 7}]

    assert explore(scenario, steps_in=[Flood]) > 10


@pytest.mark.usefixtures("restored")
def test_libraries_log_only_problems_and_in_the_same_format() -> None:
    written = stream("json", level="debug")
    logging.getLogger("uvicorn.error").info("Started server process")
    logging.getLogger("uvicorn.error").error("it broke")
    logger.debug("seen")
    entries = [json.loads(line) for line in written.getvalue().splitlines()]
    assert [(entry["logger"], entry["message"]) for entry in entries] == [
        ("uvicorn", "it broke"),
        ("strandline.somewhere", "seen"),
    ]
