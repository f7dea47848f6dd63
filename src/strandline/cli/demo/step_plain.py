"""Step 2: an unmodified Spark session whose only link is the metastore's address."""

from __future__ import annotations

from strandline.cli.demo.context import Demo, one, rows
from strandline.cli.demo.data import SCHEMAS

STEP = "2 unmodified Spark"


def run(demo: Demo) -> None:
    """Create, insert, join, alter, list, view, drop and recreate, as anybody would."""
    spark, report = demo.plain, demo.report
    report.heading(2, "An unmodified Spark session creates and fills plain tables")
    spark.sql("CREATE SCHEMA nyc COMMENT 'Flights that left New York in 2013'")
    with report.bar("writing airlines, airports, planes, weather", total=4) as bar:
        for name in ("airlines", "airports", "planes"):
            spark.sql(f"CREATE TABLE nyc.{name} ({SCHEMAS[name]}) USING parquet")
            demo.csv(name).createOrReplaceTempView("incoming")
            spark.sql(f"INSERT INTO nyc.{name} SELECT * FROM incoming")
            bar.step()
        _weather(demo)
        bar.step()
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
        found = one(demo.plain.sql(f"SELECT count(*) FROM nyc.{name}"))[0]
        demo.ledger.compare(STEP, f"rows of {name}", expected=len(demo.frame(name)), found=found)
    partitions = [row[0] for row in rows(demo.plain.sql("SHOW PARTITIONS nyc.weather"))]
    months = sorted(demo.frame("weather")["month"].unique())
    demo.ledger.compare(
        STEP,
        "partitions of weather",
        expected=sorted(f"month={month}" for month in months),
        found=partitions,
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
    found = rows(
        demo.plain.sql(
            """SELECT a.name, count(*), avg(w.temp), sum(w.precip)
               FROM nyc.weather w JOIN nyc.airports a ON w.origin = a.faa
               WHERE w.month <= 3 GROUP BY a.name"""
        )
    )
    demo.ledger.compare(STEP, "weather by airport, first quarter", expected=expected, found=found)
    planes = demo.frame("planes")
    seats = planes.groupby("manufacturer")["seats"].sum()
    found = rows(
        demo.plain.sql("SELECT manufacturer, sum(seats) FROM nyc.planes GROUP BY manufacturer")
    )
    demo.ledger.compare(
        STEP,
        "seats by manufacturer",
        expected=sorted((str(name), int(total)) for name, total in seats.items()),
        found=found,
    )


def _alter(demo: Demo) -> None:
    demo.plain.sql("ALTER TABLE nyc.airlines ADD COLUMNS (alliance string COMMENT 'if any')")
    columns = demo.plain.table("nyc.airlines").columns
    demo.ledger.compare(
        STEP, "columns of airlines", expected=["carrier", "name", "alliance"], found=columns
    )
    nulls = one(demo.plain.sql("SELECT count(*) FROM nyc.airlines WHERE alliance IS NULL"))[0]
    demo.ledger.compare(
        STEP, "airlines without alliance", expected=len(demo.frame("airlines")), found=nulls
    )


def _view(demo: Demo) -> None:
    demo.plain.sql(
        """CREATE VIEW nyc.windy AS
           SELECT origin, month, day, wind_speed FROM nyc.weather WHERE wind_speed > 30"""
    )
    weather = demo.frame("weather")
    windy = weather[weather["wind_speed"] > 30]
    found = one(demo.plain.sql("SELECT count(*), sum(wind_speed) FROM nyc.windy"))
    demo.ledger.compare(
        STEP,
        "the view over windy hours",
        expected=(len(windy), float(windy["wind_speed"].sum())),
        found=found,
    )


def _recreate(demo: Demo) -> None:
    demo.plain.sql("DROP TABLE nyc.airlines")
    listed = rows(demo.plain.sql("SHOW TABLES IN nyc"))
    names = [name for schema, name, _is_temporary in listed if schema == "nyc"]
    demo.ledger.compare(
        STEP,
        "tables after the drop",
        expected=["airports", "planes", "weather", "windy"],
        found=names,
    )
    demo.plain.sql(f"CREATE TABLE nyc.airlines ({SCHEMAS['airlines']}) USING parquet")
    empty = one(demo.plain.sql("SELECT count(*) FROM nyc.airlines"))[0]
    demo.ledger.compare(STEP, "the recreated table is empty", expected=0, found=empty)
    demo.csv("airlines").createOrReplaceTempView("incoming")
    demo.plain.sql("INSERT INTO nyc.airlines SELECT * FROM incoming")
    found = one(demo.plain.sql("SELECT count(*), count(DISTINCT carrier) FROM nyc.airlines"))
    airlines = demo.frame("airlines")
    demo.ledger.compare(
        STEP,
        "airlines, recreated and filled again",
        expected=(len(airlines), int(airlines["carrier"].nunique())),
        found=found,
    )
    demo.report.say("airlines was dropped and created again: another table under the old name")
