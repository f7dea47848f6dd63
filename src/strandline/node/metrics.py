"""The statistics of a node's parts, in the text format of Prometheus.

`METRICS` lists all metrics of the parts: each names the field of a part's statistics that it shows.
Parts that a process does not have, or whose statistics cannot be read now, are left out. Label
values come from this program, never from a client, so the number of series is bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from operator import attrgetter
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from strandline import __version__
from strandline.clock import Timestamp, milliseconds
from strandline.metastore.call_log import BOUNDS, MethodCalls

METRICS_TYPE = CONTENT_TYPE_LATEST
_PREFIX = "strandline_"
Calls = Mapping[tuple[str, str], MethodCalls]
"""The calls by (protocol, method)."""


@dataclass(frozen=True, slots=True)
class Gauge:
    """A value that goes up and down: ``value`` of the ``field`` of a part's statistics."""

    field: str
    name: str
    help: str
    value: Callable[[Any], float] = float

    def family(self, counts: object) -> Metric:
        number = self.value(attrgetter(self.field)(counts))
        return GaugeMetricFamily(f"{_PREFIX}{self.name}", self.help, number)


@dataclass(frozen=True, slots=True)
class Count:
    """A number that only grows while the node runs, or one such number for each ``label``."""

    field: str
    name: str
    help: str
    label: str | None = None

    def family(self, counts: object) -> Metric:
        number = attrgetter(self.field)(counts)
        if self.label is None:
            return CounterMetricFamily(f"{_PREFIX}{self.name}", self.help, number)
        family = CounterMetricFamily(f"{_PREFIX}{self.name}", self.help, labels=[self.label])
        for value, amount in number.items():
            family.add_metric([value], amount)
        return family


def _or_zero(number: int | None) -> float:
    return float(number or 0)


def _unix_seconds(at: Timestamp | None) -> float:
    return 0.0 if at is None else milliseconds(at) / 1000


METRICS: Mapping[str, tuple[Gauge | Count, ...]] = {
    "catalog": (
        Gauge("latest_version", "catalog_version", "The newest version that is applied here."),
        Gauge("earliest_version", "catalog_earliest_version", "The oldest readable version."),
        Count("executed", "ddl_calls", "Calls that changed the catalog."),
        Count("lost_appends", "ddl_conflicts", "Appends to the log that lost to another one."),
        Count("joined_anew", "fenced", "How often a newer holder fenced this node."),
        Count("applier_failures", "applier_failures", "Failed attempts to apply new versions."),
        Count("times_ahead", "times_ahead", "Times of the log that were ahead of this clock."),
    ),
    "log": (
        Gauge("lag", "catalog_lag_versions", "Versions in the log that are not applied here yet."),
    ),
    "projection": (
        Gauge("projected_version", "projected_version", "The newest version that is projected."),
        Count("failures", "projection_failures", "Failed effects on folders."),
    ),
    "transactions": (
        Gauge("open", "open_transactions", "Open transactions of the store."),
        Gauge(
            "oldest_begin",
            "oldest_transaction_begin_seconds",
            "When the oldest open transaction began, in seconds since 1970; 0 without one.",
            value=_unix_seconds,
        ),
        Gauge(
            "min_open_txn",
            "min_open_transaction",
            "The smallest id of an open transaction; 0 without one.",
            value=_or_zero,
        ),
        Gauge(
            "low_watermark",
            "low_watermark_seconds",
            "History from here on is kept, in seconds since 1970.",
            value=_unix_seconds,
        ),
        Count("begun", "transactions_begun", "Transactions that were begun here."),
        Count("committed", "transactions_committed", "Transactions that were committed here."),
        Count("aborted", "transactions_aborted", "Transactions that were aborted here."),
        Count("conflicts", "transaction_conflicts", "Commits that lost to another one."),
        Count("expired", "transactions_expired", "Transactions that timed out."),
        Count("heartbeats", "heartbeats", "Heartbeats of transactions and locks."),
        Gauge("unstored_heartbeats", "unstored_heartbeats", "Heartbeats not yet stored."),
        Count("shared_calls", "shared_calls", "Calls that shared a write transaction."),
        Count("rounds", "shared_writes", "Write transactions that several calls shared."),
        Gauge("waiting_calls", "shared_calls_waiting", "Calls that wait for a shared write."),
    ),
    "store": (
        Count("hits", "cache_hits", "Reads of rows that memory answered."),
        Count("misses_by_cause", "cache_misses", "Reads that the store answered.", label="cause"),
        Count("loads", "cache_loads", "Tables that were read into memory."),
        Count("evictions", "cache_evictions", "Tables evicted from memory."),
        Gauge("size", "cache_bytes", "Approximate bytes of the rows in memory."),
    ),
    "follower": (
        Gauge("lag", "follower_lag_events", "Notifications that are not applied here yet."),
    ),
    "cleaner": (
        Count("files", "cleaned_files", "Files that cleaning deleted."),
        Count("bytes", "cleaned_bytes", "Bytes of the files that cleaning deleted."),
        Count("failures", "cleaning_failures", "Files and folders that could not be deleted."),
    ),
    "chores": (
        Count("failures", "chore_failures", "Failed runs of background work.", label="chore"),
    ),
    "workers": (
        Gauge("calls", "worker_calls", "Calls that run in a thread, or wait for one."),
        Count("refused", "overloaded", "Calls that a full node refused."),
    ),
    "children": (
        Gauge("running", "child_calls", "Large calls that child processes work on."),
        Count("joined", "child_calls_joined", "Large calls that shared the answer to another."),
        Count("lost", "children_lost", "Child processes that ended in the middle of a call."),
    ),
    "connections": (Gauge("open", "http_connections", "Open HTTP connections."),),
    "thrift": (
        Gauge("connections", "thrift_connections", "Open connections of Hive clients."),
        Count("kept", "kept_answers", "Calls that a kept answer served at once.", label="method"),
    ),
    "metastorage": (
        Count("invokes", "metastorage_writes", "Writes to the metastorage of the catalog."),
        Count("refused", "metastorage_refused", "Metastorage writes whose condition did not hold."),
        Count("revision_reads", "metastorage_looks", "Checks for a change that queried the store."),
        Count("watches", "metastorage_watches", "How often a watch of etcd began."),
    ),
    "database": (
        Gauge("waiting", "database_waiting_writers", "Writers that wait for the write lock."),
        Count("waited", "database_waited_seconds", "Seconds that writers waited for the lock."),
        Count("writes", "database_writes", "Write transactions on the database."),
        Count("failed_writes", "database_failed_writes", "Write transactions that failed."),
    ),
}


class _Gathered(Collector):
    """Converts the statistics of one moment to metrics."""

    def __init__(self, parts: Mapping[str, object | None], calls: Calls) -> None:
        self._parts = parts
        self._calls = calls

    def collect(self) -> Iterator[Metric]:
        yield InfoMetricFamily(f"{_PREFIX}node", "This node.", {"release": __version__})
        readable = GaugeMetricFamily(
            f"{_PREFIX}part_readable", "1 if the part could be read, else 0.", labels=["part"]
        )
        for part, counts in self._parts.items():
            readable.add_metric([part], float(counts is not None))
        yield readable
        for part, metrics in METRICS.items():
            counts = self._parts.get(part)
            if counts is not None:
                yield from (metric.family(counts) for metric in metrics)
        yield from self._of_calls()

    def _of_calls(self) -> Iterator[Metric]:
        labels = ["protocol", "method"]
        times = HistogramMetricFamily(
            f"{_PREFIX}call_seconds", "Calls that no kept answer served.", labels=labels
        )
        errors = CounterMetricFamily(
            f"{_PREFIX}call_errors", "Calls that failed.", labels=[*labels, "code"]
        )
        for key, calls in self._calls.items():
            bounds = [*map(str, BOUNDS), "+Inf"]
            parts = list(zip(bounds, accumulate(calls.parts), strict=True))
            times.add_metric(key, parts, calls.seconds)
            for code, number in calls.errors.copy().items():
                errors.add_metric([*key, code], number)
        yield times
        yield errors


def metrics_text(parts: Mapping[str, object | None], calls: Calls) -> bytes:
    """Return the page that Prometheus reads.

    ``parts`` are statistics by the name of the part, or None if they cannot be read now.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Gathered(parts, calls))
    return generate_latest(registry)
