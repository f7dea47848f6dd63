"""What every step of the demo works with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame, SparkSession

from strandline.cli.demo.checks import Ledger
from strandline.cli.demo.data import SCHEMAS, Input
from strandline.cli.demo.node_process import NodeProcess
from strandline.cli.demo.report import Report
from strandline.metastore.interface import Session
from strandline.metastore.session import HttpSession
from strandline.spark import Tables

USER = "demo"
FLIGHTS = "nyc.flights"
CANCELLATIONS = "nyc.cancellations"


@dataclass(slots=True)
class Demo:
    """One run: the node, two Spark sessions on one JVM, the transactional client, the ledger.

    ``plain`` is an unmodified Spark session that knows the node's Thrift address and nothing else;
    ``tables`` is the transactional client, over ``session``.
    """

    folder: Path
    node: NodeProcess
    plain: SparkSession
    session: Session
    tables: Tables
    input: Input
    report: Report
    ledger: Ledger

    def csv(self, name: str) -> DataFrame:
        """A file of the input as Spark reads it."""
        frame = self.plain.read.csv(
            self.input.files[name].as_uri(),
            schema=SCHEMAS[name],
            header=True,
            nullValue="NA",
            emptyValue="",
        )
        return frame.where(f"month <= {self.input.months}") if name == "flights" else frame

    def frame(self, name: str) -> pd.DataFrame:
        """A file of the input as pandas reads it."""
        return self.input.frames[name]

    @contextmanager
    def http(self, *, timeout: float = 60.0) -> Iterator[HttpSession]:
        """A session to the served node, whatever the transactional client uses."""
        session = HttpSession(self.node.http_uri, user=USER, timeout=timeout)
        try:
            yield session
        finally:
            session.close()


def rows(frame: DataFrame) -> list[tuple[Any, ...]]:  # Any: values of any column
    """All rows of a small answer as tuples, in order."""
    return sorted(tuple(row) for row in frame.collect())


def one(frame: DataFrame) -> tuple[Any, ...]:  # Any: values of any column
    """The one row of an aggregate."""
    return tuple(frame.collect()[0])


FLIGHT_AGGREGATES = (
    "count(*)",
    "count(dep_time)",
    "sum(distance)",
    "sum(dep_delay)",
    "sum(arr_delay)",
    "sum(air_time)",
    "count(distinct carrier)",
    "count(distinct tailnum)",
)


def flight_aggregates(flights: DataFrame) -> tuple[Any, ...]:  # Any: numbers
    """The aggregates that the demo compares, as Spark computes them."""
    return one(flights.selectExpr(*FLIGHT_AGGREGATES))


def expected_aggregates(flights: pd.DataFrame) -> tuple[int, ...]:
    """The same aggregates as pandas computes them."""
    return (
        len(flights),
        int(flights["dep_time"].count()),
        int(flights["distance"].sum()),
        int(flights["dep_delay"].sum()),
        int(flights["arr_delay"].sum()),
        int(flights["air_time"].sum()),
        int(flights["carrier"].nunique()),
        int(flights["tailnum"].nunique()),
    )
