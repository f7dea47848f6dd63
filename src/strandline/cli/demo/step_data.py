"""Steps 2 to 4: an unmodified Spark, months of flights, and a transaction on two tables."""

from __future__ import annotations

import threading
from pathlib import Path
from urllib.parse import unquote, urlsplit

from strandline.cli.demo.context import (
    CANCELLATIONS,
    FLIGHTS,
    SCHEMAS,
    Demo,
    expected_aggregates,
    flight_aggregates,
    only_row,
    rows,
)
from strandline.cli.options import counted


def plain_tables(demo: Demo) -> None:
    """Create, fill, join, alter, list, drop and recreate tables and a view, as any user would."""
    spark, report = demo.plain, demo.report
    report.heading(
        2, "unmodified Spark", "An unmodified Spark session creates and fills plain tables"
    )
    spark.sql("CREATE SCHEMA nyc COMMENT 'Flights that left New York in 2013'")
    with report.bar("writing airlines, airports, planes, weather", total=4) as step:
        for name in ("airlines", "airports", "planes"):
            spark.sql(f"CREATE TABLE nyc.{name} ({SCHEMAS[name]}) USING parquet")
            demo.csv(name).createOrReplaceTempView("incoming")
            spark.sql(f"INSERT INTO nyc.{name} SELECT * FROM incoming")
            step()
        _weather(demo)
        step()
    _counts(demo)
    _joins(demo)
    _alter(demo)
    _view(demo)
    _recreate(demo)


def _weather(demo: Demo) -> None:
    spark = demo.plain
    columns = [c.strip() for c in SCHEMAS["weather"].split(",")]
    ordered = [c for c in columns if not c.startswith("month ")] + ["month int"]
    spark.sql(
        f"CREATE TABLE nyc.weather ({', '.join(ordered)}) USING parquet PARTITIONED BY (month)"
    )
    demo.csv("weather").select(*[c.split()[0] for c in ordered]).createOrReplaceTempView("incoming")
    spark.sql("INSERT INTO nyc.weather SELECT * FROM incoming")


def _counts(demo: Demo) -> None:
    for name in ("airlines", "airports", "planes", "weather"):
        actual = only_row(demo.plain.sql(f"SELECT count(*) FROM nyc.{name}"))[0]
        demo.report.compare(f"rows of {name}", expected=len(demo.frame(name)), actual=actual)
    partitions = [row[0] for row in rows(demo.plain.sql("SHOW PARTITIONS nyc.weather"))]
    months = sorted(demo.frame("weather")["month"].unique())
    demo.report.compare(
        "partitions of weather",
        expected=sorted(f"month={month}" for month in months),
        actual=partitions,
    )
    demo.report.say(f"weather has the partitions {', '.join(partitions)}")


def _joins(demo: Demo) -> None:
    weather = demo.frame("weather")
    by_origin = weather[weather["month"] <= 3].merge(
        demo.frame("airports"), left_on="origin", right_on="faa"
    )
    expected = [
        (name, len(group), float(group["temp"].mean()), float(group["precip"].sum()))
        for name, group in sorted(by_origin.groupby("name"))
    ]
    actual = rows(
        demo.plain.sql(
            """SELECT a.name, count(*), avg(w.temp), sum(w.precip)
               FROM nyc.weather w JOIN nyc.airports a ON w.origin = a.faa
               WHERE w.month <= 3 GROUP BY a.name"""
        )
    )
    demo.report.compare("weather by airport, first quarter", expected=expected, actual=actual)
    planes = demo.frame("planes")
    seats = planes.groupby("manufacturer")["seats"].sum()
    actual = rows(
        demo.plain.sql("SELECT manufacturer, sum(seats) FROM nyc.planes GROUP BY manufacturer")
    )
    demo.report.compare(
        "seats by manufacturer",
        expected=sorted((str(name), int(total)) for name, total in seats.items()),
        actual=actual,
    )


def _alter(demo: Demo) -> None:
    demo.plain.sql("ALTER TABLE nyc.airlines ADD COLUMNS (alliance string COMMENT 'if any')")
    columns = demo.plain.table("nyc.airlines").columns
    demo.report.compare(
        "columns of airlines", expected=["carrier", "name", "alliance"], actual=columns
    )
    nulls = only_row(demo.plain.sql("SELECT count(*) FROM nyc.airlines WHERE alliance IS NULL"))[0]
    demo.report.compare(
        "airlines without alliance", expected=len(demo.frame("airlines")), actual=nulls
    )


def _view(demo: Demo) -> None:
    demo.plain.sql(
        """CREATE VIEW nyc.windy AS
           SELECT origin, month, day, wind_speed FROM nyc.weather WHERE wind_speed > 30"""
    )
    weather = demo.frame("weather")
    windy = weather[weather["wind_speed"] > 30]
    actual = only_row(demo.plain.sql("SELECT count(*), sum(wind_speed) FROM nyc.windy"))
    demo.report.compare(
        "the view over windy hours",
        expected=(len(windy), float(windy["wind_speed"].sum())),
        actual=actual,
    )


def _recreate(demo: Demo) -> None:
    demo.plain.sql("DROP TABLE nyc.airlines")
    listed = rows(demo.plain.sql("SHOW TABLES IN nyc"))
    names = [name for schema, name, _is_temporary in listed if schema == "nyc"]
    demo.report.compare(
        "tables after the drop", expected=["airports", "planes", "weather", "windy"], actual=names
    )
    demo.plain.sql(f"CREATE TABLE nyc.airlines ({SCHEMAS['airlines']}) USING parquet")
    empty = only_row(demo.plain.sql("SELECT count(*) FROM nyc.airlines"))[0]
    demo.report.compare("the recreated table is empty", expected=0, actual=empty)
    demo.csv("airlines").createOrReplaceTempView("incoming")
    demo.plain.sql("INSERT INTO nyc.airlines SELECT * FROM incoming")
    actual = only_row(demo.plain.sql("SELECT count(*), count(DISTINCT carrier) FROM nyc.airlines"))
    airlines = demo.frame("airlines")
    demo.report.compare(
        "airlines, recreated and filled again",
        expected=(len(airlines), int(airlines["carrier"].nunique())),
        actual=actual,
    )
    demo.report.say("airlines was dropped and created again: another table under the old name")


HOLD_MS = 600_000


class Changed(Exception):
    """Raised inside the last transaction to abort it."""


def append_months(demo: Demo) -> None:
    """Append month by month, and check reads of an old snapshot, before and after each commit."""
    months = range(1, demo.input.months + 1)
    demo.report.heading(3, "months", "nyc.flights is transactional: one transaction a month")
    demo.tables.create(FLIGHTS, SCHEMAS["flights"], comment="Departures of 2013")
    flights = demo.csv("flights").cache()
    frame = demo.frame("flights")
    with (
        demo.tables.snapshot(FLIGHTS, hold_ms=HOLD_MS) as before,
        demo.report.bar("a transaction a month", total=len(months)) as step,
    ):
        for month in months:
            with demo.tables.transaction() as transaction:
                transaction.append(FLIGHTS, flights.where(f"month = {month}"))
                _months_are(demo, month - 1, f"while month {month} is not committed yet")
            _months_are(demo, month, f"after month {month}")
            old = demo.tables.read(FLIGHTS, snapshot=before).count()
            demo.report.compare(
                f"rows of the snapshot from before, after month {month}", expected=0, actual=old
            )
            step()
    _aborted(demo)
    demo.report.compare(
        "all flights",
        expected=expected_aggregates(frame),
        actual=flight_aggregates(demo.tables.read(FLIGHTS)),
    )
    flights.unpersist()
    demo.report.say(
        f"{len(frame):,} flights in {counted(len(months), 'commit')}; "
        "the old snapshot still has none"
    )


def _months_are(demo: Demo, last: int, when: str) -> None:
    frame = demo.frame("flights")
    by_month = frame[frame["month"] <= last].groupby("month").size()
    demo.report.compare(
        f"whole months only, {when}",
        expected=sorted((int(str(m)), int(n)) for m, n in by_month.items()),
        actual=rows(demo.tables.read(FLIGHTS).groupBy("month").count()),
    )


def _aborted(demo: Demo) -> None:
    files = _data_files(demo)
    try:
        with demo.tables.transaction() as transaction:
            transaction.append(FLIGHTS, demo.csv("flights").where("month = 1"))
            raise Changed
    except Changed:
        demo.report.say("one more transaction wrote January again and was aborted")
    demo.report.compare("files after the abort", expected=files, actual=_data_files(demo))
    _months_are(demo, demo.input.months, "after the abort of a transaction on month 1")


def _data_files(demo: Demo) -> list[str]:
    location = demo.session.table(FLIGHTS).location
    folder = Path(unquote(urlsplit(location).path))
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*.parquet"))


ANSWERS, ANSWERS_A_MONTH = 20, 4
"""Answers to wait for before the commit, and again after it; fewer in a run of few months."""
WAIT_SECONDS = 240.0

Answer = tuple[int, int]


class LoopingReader:
    """Counts the rows of both tables, at a new snapshot each time, until it is stopped."""

    def __init__(self, demo: Demo) -> None:
        self._demo = demo
        self._stop = False
        self._news = threading.Condition()
        self.answers: list[Answer] = []
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._loop, name="looping reader")

    def __enter__(self) -> LoopingReader:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop = True
        self._thread.join()

    def wait_for(self, count: int) -> None:
        """Wait until the reader has given ``count`` more answers."""
        goal = len(self.answers) + count
        with self._news:
            self._news.wait_for(
                lambda: self.failure is not None or len(self.answers) >= goal, WAIT_SECONDS
            )
        if self.failure is not None:
            raise self.failure

    def _loop(self) -> None:
        try:
            while not self._stop:
                answer = self._look()
                with self._news:
                    self.answers.append(answer)
                    self._news.notify_all()
        except BaseException as error:
            with self._news:
                self.failure = error
                self._news.notify_all()

    def _look(self) -> Answer:
        tables = self._demo.tables
        with tables.snapshot(FLIGHTS, CANCELLATIONS) as snapshot:
            flights = tables.read(FLIGHTS, snapshot=snapshot).selectExpr("1 AS f", "0 AS c")
            cancelled_flights = tables.read(CANCELLATIONS, snapshot=snapshot).selectExpr(
                "0 AS f", "1 AS c"
            )
            counts = only_row(flights.unionAll(cancelled_flights).selectExpr("sum(f)", "sum(c)"))
        return int(counts[0] or 0), int(counts[1] or 0)


def two_tables(demo: Demo) -> None:
    """Move the cancelled flights to another table, in one step for every reader."""
    demo.report.heading(
        4, "two tables", "One transaction over two tables, watched by a reader in a loop"
    )
    frame = demo.frame("flights")
    flown, cancelled = frame[frame["dep_time"].notna()], frame[frame["dep_time"].isna()]
    before, after = (len(frame), 0), (len(flown), len(cancelled))
    least = min(ANSWERS, ANSWERS_A_MONTH * demo.input.months)
    tables = demo.tables
    tables.create(CANCELLATIONS, "time_hour timestamp, carrier string, flight int, origin string")
    with (
        LoopingReader(demo) as reader,
        demo.report.bar("answers of the reader", total=3) as step,
    ):
        reader.wait_for(least)
        step()
        with tables.transaction() as transaction:
            cancelled_flights = transaction.read(FLIGHTS).where("dep_time IS NULL")
            transaction.append(
                CANCELLATIONS, cancelled_flights.select("time_hour", "carrier", "flight", "origin")
            )
            transaction.delete(FLIGHTS, "dep_time IS NULL")
            reader.wait_for(1)
            step()
        reader.wait_for(least + 1)
        step()
    _judge(demo, reader.answers, before, after, least=least)
    demo.report.compare(
        "flights that departed",
        expected=expected_aggregates(flown),
        actual=flight_aggregates(tables.read(FLIGHTS)),
    )
    demo.report.compare(
        "cancellations by carrier",
        expected=sorted((str(c), int(n)) for c, n in cancelled.groupby("carrier").size().items()),
        actual=sorted(
            tuple(r) for r in tables.read(CANCELLATIONS).groupBy("carrier").count().collect()
        ),
    )


def _judge(demo: Demo, answers: list[Answer], before: Answer, after: Answer, *, least: int) -> None:
    split = answers.count(before)
    demo.report.compare(
        "answers of the reader: all before, then all after, none in between",
        expected=[before] * split + [after] * (len(answers) - split),
        actual=answers,
    )
    for what, count in (("before", split), ("after", answers.count(after))):
        demo.report.compare(
            f"at least {least} answers {what} the commit", expected=True, actual=count >= least
        )
    demo.report.say(
        f"the reader answered {split} times {before} and {len(answers) - split} times {after}"
    )
