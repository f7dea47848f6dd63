"""What people and their tools ask of a node over HTTP beside calls: health, counts, a description.

=====================  ===========================================================================
``/health/live``       200 as long as the node answers at all; it asks nobody
``/health/ready``      200 if the node can do its work, else 503 with the reasons
``/v1/health``         the same
``/v1/statistics``     what each part counts, as JSON
``/metrics``           the same for Prometheus, with the times of calls (`metrics`)
``/v1/openapi.json``   what can be called, in OpenAPI
=====================  ===========================================================================

The checks and the counts run in a pool of their own, so that a node full of requests is told apart
from one that is broken. Each has one thread of it, so no number of requests for counts keeps the
checks waiting; and where the store does not answer, few requests wait for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar, cast

from strandline import __version__
from strandline.catalog import CatalogManager
from strandline.errors import DeadlineExceeded, Unavailable
from strandline.metastore.call_log import CallLog
from strandline.metastore.session.calls import JSON_TYPE, PREFIX
from strandline.metastore.session.http_app import Page
from strandline.metastore.session.http_messages import Answer
from strandline.metastore.session.openapi import openapi_text
from strandline.metastore.session.wire_json import write_json
from strandline.metastore.workers import Workers
from strandline.node.metrics import METRICS_TYPE, metrics_text
from strandline.node.node import Counted, Problem

DEADLINE = 2.0
"""Seconds. After this time a check of the node's health counts as failed, and a page as well."""
_THREADS = 2
_MAX_WAITING = 64
"""Requests that run in a thread or wait for one; three quarters of them may be for counts."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Health:
    """Whether the node can do its work, which release it is, and the catalog versions it holds.

    ``status`` is "ok" without ``problems``, else "failing".
    """

    status: str
    release: str
    catalog_version: int
    earliest_version: int
    problems: tuple[dict[str, str], ...]


@dataclass(frozen=True, slots=True)
class LogStatistics:
    """How many versions of the log this node has not applied yet."""

    lag: int


class _Log:
    def __init__(self, catalogs: CatalogManager) -> None:
        self._catalogs = catalogs

    def statistics(self) -> LogStatistics:
        return LogStatistics(self._catalogs.lag())


class Monitoring:
    """The pages of one node, by path.

    ``check_health`` says what keeps the node from its work. ``parts`` are those that count.
    """

    PAGES: Mapping[str, str] = {
        "/health/live": "live",
        "/health/ready": "ready",
        f"{PREFIX}/health": "ready",
        f"{PREFIX}/statistics": "statistics",
        f"{PREFIX}/openapi.json": "openapi",
        "/metrics": "metrics",
    }
    """The paths, and the methods that answer them."""

    def __init__(
        self,
        catalogs: CatalogManager,
        check_health: Callable[[], Sequence[Problem]],
        parts: Mapping[str, Counted],
        calls: CallLog,
    ) -> None:
        self._catalogs = catalogs
        self._check_health = check_health
        self._parts = {"log": _Log(catalogs), **parts}
        self._calls = calls
        self._workers = Workers(threads=_THREADS, max_calls=_MAX_WAITING)

    @property
    def pages(self) -> Mapping[str, Page]:
        """What answers each path."""
        return {path: getattr(self, method) for path, method in self.PAGES.items()}

    def add(self, name: str, part: Counted) -> None:
        """Show what ``part`` counts too."""
        self._parts[name] = part

    async def live(self) -> Answer:
        """That the process answers."""
        return Answer(b'{"status":"ok"}', JSON_TYPE)

    async def ready(self) -> Answer:
        """Whether the node can do its work. What does not end in time is a problem itself."""
        try:
            problems = await self._asked(self._check_health, "checks")
        except DeadlineExceeded as error:
            problems = [Problem("deadline", error.message)]
        health = Health(
            "failing" if problems else "ok",
            __version__,
            self._catalogs.latest_catalog().version,
            self._catalogs.earliest_catalog().version,
            tuple({"check": problem.check, "reason": problem.reason} for problem in problems),
        )
        return Answer(
            write_json(health, Health),
            JSON_TYPE,
            status=503 if problems else 200,
            headers={"Cache-Control": "no-store"},
        )

    async def statistics(self) -> Answer:
        """What every part counts, by part."""
        body = await self._asked(self._statistics_json, "counts")
        return Answer(body, JSON_TYPE)

    async def metrics(self) -> Answer:
        """The page that Prometheus reads."""
        body = await self._asked(self._metrics_text, "counts")
        return Answer(body, METRICS_TYPE)

    async def openapi(self) -> Answer:
        """What can be called."""
        return Answer(await asyncio.to_thread(openapi_text), JSON_TYPE)

    async def _asked(self, question: Callable[[], T], kind: str) -> T:
        """What a thread answers. Raises `DeadlineExceeded`, `Overloaded`."""
        asked = self._workers.submit(question, user=kind)  # who shares the threads is the kind
        try:
            return cast(T, await asyncio.wait_for(asked.result, DEADLINE))
        except TimeoutError:
            raise DeadlineExceeded(f"the store did not answer within {DEADLINE} s") from None

    def _statistics_json(self) -> bytes:
        written = []
        for name, part in self._parts.items():
            counts = part.statistics()
            written.append(f'"{name}":'.encode() + write_json(counts, type(counts)))
        return b"{" + b",".join(written) + b"}"

    def _metrics_text(self) -> bytes:
        """Parts whose store is away are left out: the others are wanted all the more."""
        counts: dict[str, object | None] = {}
        for name, part in self._parts.items():
            try:
                counts[name] = part.statistics()
            except Unavailable:
                counts[name] = None
        return metrics_text(counts, self._calls.statistics())
