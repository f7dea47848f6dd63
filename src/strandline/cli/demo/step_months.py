"""Step 3: a transaction for each month, and one more that aborts."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

from strandline.cli.demo.context import (
    FLIGHTS,
    Demo,
    expected_aggregates,
    flight_aggregates,
    rows,
)
from strandline.cli.demo.data import SCHEMAS

STEP = "3 months"
HOLD_MS = 600_000


class Changed(Exception):
    """The reason for which the last transaction aborts itself."""


def run(demo: Demo) -> None:
    """Append month by month under the eyes of an old reader, new readers and one in between."""
    months = range(1, demo.input.months + 1)
    demo.report.heading(3, "nyc.flights is transactional: one transaction a month")
    demo.tables.create(FLIGHTS, SCHEMAS["flights"], comment="Departures of 2013")
    flights = demo.csv("flights").cache()
    frame = demo.frame("flights")
    with (
        demo.tables.snapshot(FLIGHTS, hold_ms=HOLD_MS) as before,
        demo.report.bar("a transaction a month", total=len(months)) as bar,
    ):
        for month in months:
            with demo.tables.transaction() as transaction:
                transaction.append(FLIGHTS, flights.where(f"month = {month}"))
                _months_are(demo, month - 1, "while month {} is not committed yet", month)
            _months_are(demo, month, "after month {}", month)
            old = demo.tables.read(FLIGHTS, snapshot=before).count()
            demo.ledger.compare(
                STEP,
                f"rows of the snapshot from before, after month {month}",
                expected=0,
                found=old,
            )
            bar.step()
    _aborted(demo)
    demo.ledger.compare(
        STEP,
        "all flights",
        expected=expected_aggregates(frame),
        found=flight_aggregates(demo.tables.read(FLIGHTS)),
    )
    flights.unpersist()
    demo.report.say(
        f"{len(frame):,} flights in {len(months)} commits; the old snapshot still has none"
    )


def _months_are(demo: Demo, last: int, when: str, month: int) -> None:
    frame = demo.frame("flights")
    by_month = frame[frame["month"] <= last].groupby("month").size()
    demo.ledger.compare(
        STEP,
        f"whole months only, {when.format(month)}",
        expected=sorted((int(str(m)), int(n)) for m, n in by_month.items()),
        found=rows(demo.tables.read(FLIGHTS).groupBy("month").count()),
    )


def _aborted(demo: Demo) -> None:
    files = _data_files(demo)
    try:
        with demo.tables.transaction() as transaction:
            transaction.append(FLIGHTS, demo.csv("flights").where("month = 1"))
            raise Changed
    except Changed:
        demo.report.say("one more transaction wrote January again and was aborted")
    demo.ledger.compare(STEP, "files after the abort", expected=files, found=_data_files(demo))
    _months_are(demo, demo.input.months, "after the abort of a transaction on month {}", 1)


def _data_files(demo: Demo) -> list[str]:
    location = demo.session.table(FLIGHTS).location
    folder = Path(unquote(urlsplit(location).path))
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*.parquet"))
