"""The HTTP pages of a node for its operators: health, statistics, and the description of its API.

=====================  ===========================================================================
``/health/live``       200 as long as the process answers; it runs no checks
``/health/ready``      200 if the node can do its work, else 503 with the reasons
``/v1/health``         the same
``/v1/statistics``     the statistics of each part, as JSON
``/metrics``           the same for Prometheus, with the times of calls (`metrics`)
``/v1/openapi.json``   the HTTP API, in OpenAPI
=====================  ===========================================================================

The health checks and the statistics run in their own thread pool, so an overloaded node differs
from a broken one. Each kind has one thread of the pool, so requests for statistics never delay the
health checks. Requests that wait for the same thread and page share one answer: these pages need no
credentials, and no number of clients that read them may keep a load balancer from its answer.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from strandline import __version__
from strandline.catalog import CatalogManager
from strandline.errors import DeadlineExceeded, StrandlineError
from strandline.metastore.call_log import CallLog
from strandline.metastore.session.calls import JSON_TYPE, PREFIX
from strandline.metastore.session.http_app import Page
from strandline.metastore.session.http_messages import Answer
from strandline.metastore.session.openapi import openapi_text
from strandline.metastore.session.wire_json import write_json
from strandline.metastore.workers import Workers
from strandline.node.health import NodeHealth, Problem
from strandline.node.metrics import METRICS_TYPE, metrics_text
from strandline.node.node import LagStatistics

DEADLINE = 2.0
"""Seconds after which a health check counts as failed, and a request for a page fails."""
_THREADS = 2

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Health:
    """Whether the node can do its work, which release it is, and the catalog versions it holds.

    ``status`` is "ok" if there are no ``problems``, "read_only" if none of them stops reads, else
    "failing".
    """

    status: str
    release: str
    catalog_version: int
    earliest_version: int
    problems: tuple[dict[str, str], ...]


class Monitoring:
    """The pages of one node, by path.

    ``statistics`` are the functions that return those of its parts, by name.
    """

    PAGES: Mapping[str, str] = {
        "/health/live": "live",
        "/health/ready": "ready",
        f"{PREFIX}/health": "ready",
        f"{PREFIX}/statistics": "statistics",
        f"{PREFIX}/openapi.json": "openapi",
        "/metrics": "metrics",
    }
    """The method that answers each path."""

    def __init__(
        self,
        catalogs: CatalogManager,
        health: NodeHealth,
        statistics: Mapping[str, Callable[[], object]],
        calls: CallLog,
    ) -> None:
        self._catalogs = catalogs
        self._health = health
        self._of_parts = {"log": lambda: LagStatistics(catalogs.lag()), **statistics}
        self._calls = calls
        self._workers = Workers(threads=_THREADS)
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._next: dict[Callable[[], object], asyncio.Task[Any]] = {}  # those that did not begin

    @property
    def pages(self) -> Mapping[str, Page]:
        """The function that answers each path."""
        return {path: getattr(self, method) for path, method in self.PAGES.items()}

    def add(self, name: str, statistics: Callable[[], object]) -> None:
        """Also show the ``statistics`` of a part, under its ``name``."""
        self._of_parts[name] = statistics

    async def live(self) -> Answer:
        """Answer 200, which shows that the process is alive."""
        return Answer(b'{"status":"ok"}', JSON_TYPE)

    async def ready(self) -> Answer:
        """Answer whether the node can do its work. Checks that time out count as a problem.

        A node that answers reads is ready: a full store is full for all nodes, and without a ready
        node nothing would be read.
        """
        try:
            problems: Sequence[Problem] = await self._in_thread(self._health.report, "checks")
        except DeadlineExceeded as error:
            check = self._health.in_progress
            waits = f": the check {check!r} waits for it" if check else ""
            problems = [Problem("deadline", f"{error.message}{waits}")]
        is_failing = any(problem.stops_reads for problem in problems)
        health = Health(
            "failing" if is_failing else "read_only" if problems else "ok",
            __version__,
            self._catalogs.latest_catalog().version,
            self._catalogs.earliest_catalog().version,
            tuple({"check": problem.check, "reason": problem.reason} for problem in problems),
        )
        return Answer(
            write_json(health, Health),
            JSON_TYPE,
            status=503 if is_failing else 200,
            headers={"Cache-Control": "no-store"},
        )

    async def statistics(self) -> Answer:
        """Answer with the statistics of every part, by part."""
        body = await self._in_thread(self._statistics_json, "counts")
        return Answer(body, JSON_TYPE)

    async def metrics(self) -> Answer:
        """Answer with the page that Prometheus reads."""
        body = await self._in_thread(self._metrics_text, "counts")
        return Answer(body, METRICS_TYPE)

    async def openapi(self) -> Answer:
        """Answer with the description of the HTTP API."""
        return Answer(await asyncio.to_thread(openapi_text), JSON_TYPE)

    async def _in_thread(self, question: Callable[[], T], kind: str) -> T:
        """Run ``question`` in a thread and return its result. Raises `DeadlineExceeded`.

        Requests that come before it begins share the result.
        """
        answering = self._next.get(question)
        if answering is None:
            answering = asyncio.create_task(self._answer(question, kind))
            self._next[question] = answering
            # All requests may have given up by then: asyncio would log an error that none reads.
            answering.add_done_callback(lambda task: task.cancelled() or task.exception())
        try:
            return cast(T, await asyncio.wait_for(asyncio.shield(answering), DEADLINE))
        except TimeoutError:
            raise DeadlineExceeded(f"the store did not answer within {DEADLINE} s") from None

    async def _answer(self, question: Callable[[], T], kind: str) -> T:
        async with self._turns[kind]:
            del self._next[question]
            return cast(T, await self._workers.submit(question, user=kind).result)

    def _statistics_json(self) -> bytes:
        written = (
            f'"{name}":'.encode() + (b"null" if part is None else write_json(part, type(part)))
            for name, part in self._counts().items()
        )
        return b"{" + b",".join(written) + b"}"

    def _metrics_text(self) -> bytes:
        return metrics_text(self._counts(), self._calls.statistics())

    def _counts(self) -> dict[str, object | None]:
        """Return the statistics of each part, or None for a part that cannot be read.

        While the store is unavailable or damaged, those of the other parts are needed even more.
        """
        counts: dict[str, object | None] = {}
        for name, statistics in self._of_parts.items():
            try:
                counts[name] = statistics()
            except StrandlineError:
                counts[name] = None
        return counts
