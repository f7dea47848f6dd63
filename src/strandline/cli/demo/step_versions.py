"""Steps 5 and 7: read older versions, and trim the history."""

from __future__ import annotations

from strandline.catalog.commands import AddColumns, ColumnDefinition
from strandline.cli.demo.context import FLIGHTS, Demo, flight_aggregates, only_row
from strandline.cli.history import HISTORY_COLUMNS, history_rows
from strandline.cli.options import wrapped
from strandline.clock import Timestamp
from strandline.errors import VersionNotFound
from strandline.metastore.interface import AsOf
from strandline.model.types import STRING


def read_older_versions(demo: Demo) -> int:
    """Add a column to flights, read it as of before, and return the version before."""
    demo.report.heading(
        5, "time travel", "DDL makes a version; the version before can still be read"
    )
    session, tables = demo.session, demo.tables
    old = session.table(FLIGHTS)
    columns = [column.name for column in old.descriptor.columns]
    aggregates = flight_aggregates(tables.read(FLIGHTS))
    executed = session.execute(
        AddColumns(
            schema="nyc",
            table="flights",
            columns=(ColumnDefinition("remark", STRING, comment="added later"),),
        )
    )
    before = executed.version - 1
    just_before = Timestamp(executed.time - 1)
    demo.report.compare(
        "columns now", expected=[*columns, "remark"], actual=tables.read(FLIGHTS).columns
    )
    for what, frame in (
        (f"as of version {before}", tables.read(FLIGHTS, version=before)),
        ("as of the time before", tables.read(FLIGHTS, time=just_before)),
    ):
        demo.report.compare(f"columns {what}", expected=columns, actual=frame.columns)
        demo.report.compare(f"rows {what}", expected=aggregates, actual=flight_aggregates(frame))
    demo.report.compare(
        "rows now, none with a remark",
        expected=(aggregates[0], 0),
        actual=only_row(tables.read(FLIGHTS).selectExpr("count(*)", "count(remark)")),
    )
    _rows_of_then(demo)
    _plain_time_travel(demo)
    demo.report.say(f"version {executed.version} added remark; version {before} reads without it")
    return before


def _rows_of_then(demo: Demo) -> None:
    """Check that flights can be read at the version that created it, and is empty there."""
    for info in demo.session.history():
        if any(arguments.get("table") == FLIGHTS for _, arguments in info.actions):
            actual = demo.session.table(FLIGHTS, at=AsOf(version=info.version)).catalog_version
            demo.report.compare(
                "the version that created flights", expected=info.version, actual=actual
            )
            empty = demo.tables.read(FLIGHTS, time=info.time).count()
            demo.report.compare("flights at the time of their creation", expected=0, actual=empty)
            return


def _plain_time_travel(demo: Demo) -> None:
    """Check that an unmodified Spark reads older versions by a schema name with ``@VERSION``."""
    versions = [
        info.version
        for info in demo.session.history()
        for verb, arguments in info.actions
        if verb == "add_columns" and arguments.get("table") == "nyc.airlines"
    ]
    for version, columns in (
        (versions[0] - 1, ["carrier", "name"]),
        (versions[0], ["carrier", "name", "alliance"]),
    ):
        actual = demo.plain.sql(f"DESCRIBE TABLE `nyc@{version}`.airlines").collect()
        demo.report.compare(
            f"unmodified Spark describes airlines as of version {version}",
            expected=columns,
            actual=[row[0] for row in actual],
        )
    last = demo.session.history()[-1].version
    demo.report.compare(
        "unmodified Spark reads the flights as of the last version",
        expected=flight_aggregates(demo.tables.read(FLIGHTS, version=last)),
        actual=flight_aggregates(demo.plain.table(f"`nyc@{last}`.flights")),
    )


def trim_history(demo: Demo, version: int) -> None:
    """Print the history, trim it up to ``version``, and check which reads are refused then."""
    demo.report.heading(7, "history", "The history, version by version; then it is trimmed")
    session = demo.session
    infos = session.history()
    demo.report.table(wrapped(HISTORY_COLUMNS, history_rows(infos)))
    kept_versions = [info.version for info in infos if info.version >= version]
    before = {number: _look(demo, number) for number in (version, kept_versions[-1])}
    trimmed = session.compact(version)
    demo.report.compare(f"trimmed up to version {version}", expected=True, actual=trimmed)
    demo.report.compare(
        "trimming again changes nothing", expected=False, actual=session.compact(version)
    )
    refused = "it was answered"
    try:
        demo.tables.read(FLIGHTS, version=version - 1)
    except VersionNotFound as error:
        refused = error.message
    demo.report.compare(
        f"a read of version {version - 1} names the earliest version",
        expected=True,
        actual=f"earliest is version {version}" in refused,
    )
    demo.report.say(f"refused: {refused}")
    for number, look in before.items():
        demo.report.compare(
            f"version {number} answers as before", expected=look, actual=_look(demo, number)
        )
    marks = {info.version for info in session.history() if info.trimmed}
    demo.report.compare(
        "versions marked as trimmed",
        expected={info.version for info in infos if info.version < version},
        actual=marks,
    )


def _look(demo: Demo, version: int) -> tuple[object, ...]:
    frame = demo.tables.read(FLIGHTS, version=version)
    return (tuple(frame.columns), *flight_aggregates(frame))
