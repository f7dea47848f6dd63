"""Statistics of columns: of tables and partitions, merged, aggregated, and after alters."""

from __future__ import annotations

from typing import Any

from tests.metastore.hive.differential.scenario import Call, Scenario, partition, storage, table

_LONG = {"lowValue": -5, "highValue": 90, "numNulls": 3, "numDVs": 40}
_COLUMNS = "a int, b string, c double, d boolean, e binary, f decimal(9,2), g date, h timestamp"
_ACCURATE = {"COLUMN_STATS_ACCURATE": '{"BASIC_STATS":"true"}'}
_COLUMN_TOO = {
    "COLUMN_STATS_ACCURATE": '{"BASIC_STATS":"true","COLUMN_STATS":{"a":"true"}}',
}
_NARROW = "a int, g date, f decimal(9,2), c double"


def statistics(
    schema: str, name: str, *objects: dict[str, Any], part: str | None = None, **desc: Any
) -> dict[str, Any]:
    """``ColumnStatistics`` of a table, or of one of its partitions."""
    where = {"isTblLevel": part is None, "dbName": schema, "tableName": name, **desc}
    if part is not None:
        where["partName"] = part
    return {"statsDesc": where, "statsObj": list(objects)}


def of(column: str, kind: str, form: str, **values: Any) -> dict[str, Any]:
    """The ``ColumnStatisticsObj`` of a column."""
    return {"colName": column, "colType": kind, "statsData": {form: values}}


def numbers(column: str = "a", **values: Any) -> dict[str, Any]:
    return of(column, "int", "longStats", **{**_LONG, **values})


def texts(column: str = "b", **values: Any) -> dict[str, Any]:
    known = {"maxColLen": 12, "avgColLen": 4.5, "numNulls": 1, "numDVs": 7}
    return of(column, "string", "stringStats", **{**known, **values})


def _decimals(low: bytes, high: bytes, *, scale: int = 2) -> dict[str, Any]:
    bounds = {"lowValue": low, "highValue": high}
    known = {name: {"unscaled": bound, "scale": scale} for name, bound in bounds.items()}
    return {**known, "numNulls": 2, "numDVs": 8}


def _dates(low: int, high: int, **counts: int) -> dict[str, Any]:
    bounds = {"lowValue": {"daysSinceEpoch": low}, "highValue": {"daysSinceEpoch": high}}
    return {**bounds, "numNulls": 1, "numDVs": 5, **counts}


def _every_kind(step: int = 0) -> tuple[dict[str, Any], ...]:
    """Statistics of each column of ``_COLUMNS``; another ``step`` gives other values."""
    return (
        numbers(lowValue=-5 - step, highValue=90 + step, numDVs=40 + step),
        texts(maxColLen=12 + step, avgColLen=4.5 + step, numDVs=7 + step),
        of(
            "c", "double", "doubleStats", lowValue=-1.5 - step, highValue=2.25, numNulls=2, numDVs=9
        ),
        of("d", "boolean", "booleanStats", numTrues=5 + step, numFalses=6, numNulls=7),
        of("e", "binary", "binaryStats", maxColLen=100 + step, avgColLen=50.5, numNulls=4),
        of("f", "decimal(9,2)", "decimalStats", **_decimals(b"\xff\x38", bytes([1, 44 + step]))),
        of("g", "date", "dateStats", **_dates(-10, 9 + step)),
        of("h", "timestamp", "longStats", lowValue=1000, highValue=2000, numNulls=0, numDVs=3),
    )


def _narrow(step: int) -> tuple[dict[str, Any], ...]:
    """Statistics with more distinct values than fit between the bounds, and unusual decimals."""
    return (
        numbers(lowValue=1, highValue=3 + step),
        of("g", "date", "dateStats", **_dates(1, 3, numDVs=30)),
        of("f", "decimal(9,2)", "decimalStats", **_decimals(b"\x05", b"\x0f", scale=step)),
        of("c", "double", "doubleStats", lowValue=0.1, highValue=0.2 + step, numNulls=0, numDVs=9),
    )


def _read(schema: str, name: str, *columns: str) -> Call:
    request = {"dbName": schema, "tblName": name, "colNames": list(columns)}
    return ("get_table_statistics_req", request)


def _read_parts(schema: str, name: str, columns: list[str], parts: list[str]) -> Call:
    request = {"dbName": schema, "tblName": name, "colNames": columns, "partNames": parts}
    return ("get_partitions_statistics_req", request)


def _read_all(schema: str, name: str, columns: list[str], parts: list[str]) -> Call:
    return ("get_aggr_stats_for", _read_parts(schema, name, columns, parts)[1])


def _altered(
    name: str, columns: str, *, schema: str = "s5", renamed: str | None = None, keys: str = ""
) -> Call:
    """An alter of a table; clients send the whole table."""
    sd = storage(columns, location=f"file:{{warehouse}}/{schema}.db/{name}")
    return ("alter_table", schema, name, table(schema, renamed or name, keys=keys, sd=sd))


def _counted(
    value: str, *, at: str, files: int | None = None, size: int = 0, **more: str
) -> dict[str, Any]:
    """A partition of ``s6.parted`` with these counts, which says that they are accurate."""
    counts = {} if files is None else {"numFiles": str(files), "totalSize": str(size)}
    sd = storage(location=f"file:{{warehouse}}/s6.db/parted/{at}")
    parameters = {"numRows": "5"} | _ACCURATE | counts | more
    return partition("s6", "parted", value, sd=sd, createTime=1, parameters=parameters)


def _written_by(by: str, partition: dict[str, Any]) -> tuple[Call, Call]:
    """An alter of the partition 1 of ``s6.parted``, as a client sends it after a write."""
    method, context = "alter_partition_with_environment_context", {"STATS_GENERATED": by}
    altered = (method, "s6", "parted", partition, {"properties": context})
    return altered, ("get_partition", "s6", "parted", ["1"])


def _recounted(name: str, *, renamed: str | None = None, at: str | None = None) -> dict[str, Any]:
    """A table of the schema ``s6`` as it is sent to an alter."""
    sd = storage(location=f"file:{{warehouse}}/s6.db/{at or name}")
    return table("s6", renamed or name, sd=sd, parameters={"numRows": "5", **_ACCURATE})


def _placed(*values: str, at: str) -> dict[str, Any]:
    """A partition of ``s5.parted`` in its folder."""
    sd = storage(location=f"file:{{warehouse}}/s5.db/parted/{at}")
    return partition("s5", "parted", *values, sd=sd)


SCENARIOS = (
    Scenario(
        "statistics of a table",
        (
            ("create_database", {"name": "s1"}),
            ("create_table", table("s1", "t", _COLUMNS)),
            ("create_table", table("s1", "parted", keys="p int")),
            ("update_table_column_statistics", statistics("s1", "t", *_every_kind())),
            _read("s1", "t", *"abcdefgh"),
            _read("S1", "T", "A", "H", "none", "a"),
            _read("s1", "t"),
            ("get_table_column_statistics", "s1", "t", "a"),
            ("get_table_column_statistics", "S1", "T", "A"),
            ("get_table_column_statistics", "s1", "t", "none"),
            ("get_table_column_statistics", "s1", "t", None),
            ("get_table", "s1", "t"),
            ("update_table_column_statistics", statistics("S1", "T", numbers("A", numDVs=41))),
            _read("s1", "t", "a", "b"),
            ("get_table", "s1", "t"),
            ("update_table_column_statistics", statistics("s1", "t", numbers("none"))),
            ("update_table_column_statistics", statistics("s1", "t", texts(), numbers("none"))),
            ("update_table_column_statistics", statistics("s1", "none", numbers())),
            ("update_table_column_statistics", statistics("no_such", "t", numbers())),
            ("update_table_column_statistics", statistics("s1", "t")),
            ("update_table_column_statistics", None),
            ("update_table_column_statistics", statistics("s1", "parted", numbers("p"))),
            ("update_table_column_statistics", statistics("s1", "t", numbers(), part="p=1")),
            ("update_table_column_statistics", statistics("s1", "t", numbers(numNulls=-1))),
            (
                "update_table_column_statistics",
                statistics("s1", "t", numbers(), numbers(numDVs=2)),
            ),
            _read("s1", "t", "a"),
            ("delete_table_column_statistics", "s1", "t", "A"),
            _read("s1", "t", "a", "b"),
            ("get_table", "s1", "t"),
            ("delete_table_column_statistics", "s1", "t", "a"),
            ("delete_table_column_statistics", "s1", "t", "none"),
            ("delete_table_column_statistics", "s1", "none", "a"),
            ("delete_table_column_statistics", "no_such", "t", "a"),
            ("delete_table_column_statistics", "s1", "t", None),
            _read("s1", "t", "b"),
        ),
    ),
    Scenario(
        "statistics of partitions",
        (
            ("create_database", {"name": "s2"}),
            ("create_table", table("s2", "t", _COLUMNS, keys="p int, q string")),
            ("add_partition", partition("s2", "t", "1", "x", columns=_COLUMNS)),
            ("add_partition", partition("s2", "t", "2", "X y", columns=_COLUMNS)),
            ("add_partition", partition("s2", "t", "3", "z", columns=_COLUMNS)),
            (
                "update_partition_column_statistics",
                statistics("s2", "t", *_every_kind(), part="p=1/q=x"),
            ),
            (
                "update_partition_column_statistics",
                statistics("s2", "t", *_every_kind(3), part="P=2/Q=X y"),
            ),
            _read_parts("s2", "t", list("abcdefgh"), ["p=1/q=x", "p=2/q=X y", "p=3/q=z"]),
            _read_parts("s2", "t", ["A"], ["P=2/Q=X y", "p=9/q=x"]),
            _read_parts("s2", "t", ["A"], []),
            _read_parts("s2", "t", [], ["p=1/q=x"]),
            _read_parts("s2", "none", ["a"], ["p=1/q=x"]),
            ("get_partition_column_statistics", "s2", "t", "p=1/q=x", "a"),
            ("get_partition_column_statistics", "s2", "t", "P=1/Q=x", "A"),
            ("get_partition_column_statistics", "s2", "t", "p=3/q=z", "a"),
            ("get_partition_column_statistics", "s2", "t", "p=9/q=z", "a"),
            ("get_partition_column_statistics", "s2", "t", "nonsense", "a"),
            ("get_partition_column_statistics", "s2", "t", None, "a"),
            ("get_partition_column_statistics", "s2", "none", "p=1/q=x", "a"),
            ("get_partition_by_name", "s2", "t", "p=1/q=x"),
            ("get_table", "s2", "t"),
            (
                "update_partition_column_statistics",
                statistics("s2", "t", numbers(), part="p=9/q=x"),
            ),
            (
                "update_partition_column_statistics",
                statistics("s2", "t", numbers(), part="nonsense"),
            ),
            ("update_partition_column_statistics", statistics("s2", "t", numbers())),
            (
                "update_partition_column_statistics",
                statistics("s2", "t", numbers("none"), part="p=1/q=x"),
            ),
            (
                "update_partition_column_statistics",
                statistics("s2", "t", numbers("p"), part="p=1/q=x"),
            ),
            (
                "update_partition_column_statistics",
                statistics("s2", "none", numbers(), part="p=1/q=x"),
            ),
            ("delete_partition_column_statistics", "s2", "t", "P=1/q=x", "A"),
            _read_parts("s2", "t", ["a", "b"], ["p=1/q=x"]),
            ("get_partition_by_name", "s2", "t", "p=1/q=x"),
            ("delete_partition_column_statistics", "s2", "t", "p=1/q=x", "a"),
            ("delete_partition_column_statistics", "s2", "t", "p=9/q=x", "a"),
            ("delete_partition_column_statistics", "s2", "t", "nonsense", "a"),
            ("delete_partition_column_statistics", "s2", "none", "p=1/q=x", "a"),
            ("delete_partition_column_statistics", "s2", "t", "p=1/q=x", None),
            _read_parts("s2", "t", ["a", "b"], ["p=1/q=x"]),
            ("delete_partition_column_statistics", "s2", "t", None, "a"),
        ),
    ),
    Scenario(
        "statistics of partitions, aggregated",
        (
            ("create_database", {"name": "s3"}),
            ("create_table", table("s3", "t", _COLUMNS, keys="p int")),
            *(("add_partition", partition("s3", "t", str(p), columns=_COLUMNS)) for p in range(5)),
            *(
                (
                    "update_partition_column_statistics",
                    statistics("s3", "t", *_every_kind(p), part=f"p={p}"),
                )
                for p in range(3)
            ),
            _read_all("s3", "t", list("abcdefgh"), ["p=0", "p=1", "p=2"]),
            _read_all("s3", "t", ["A", "b"], ["P=0", "p=1"]),
            _read_all("s3", "t", ["a"], ["p=0"]),
            _read_all("s3", "t", ["a", "none"], ["p=0"]),
            _read_all("s3", "t", ["none"], ["p=0"]),
            _read_all("s3", "t", ["a"], []),
            _read_all("s3", "t", [], ["p=0"]),
            _read_all("s3", "t", ["b"], ["p=1", "p=4"]),
            _read_all("s3", "t", ["c"], ["p=3", "p=4"]),
            _read_all("s3", "none", ["a"], ["p=0"]),
            _read_all("s3", "t", list("abcdefgh"), ["p=0", "p=1", "p=2", "p=3"]),
            _read_all("s3", "t", list("abcdefgh"), ["p=2", "p=3", "p=0", "p=4", "p=9"]),
            _read_all("s3", "t", list("abcdefgh"), ["p=3", "p=1", "p=2", "p=0", "p=4"]),
            _read_all("s3", "t", ["b"], ["p=0", "p=0"]),
            _read_all("s3", "t", ["b"], ["p=0", "p=9"]),
            ("create_table", table("s3", "narrow", _NARROW, keys="p int")),
            *(("add_partition", partition("s3", "narrow", p, columns=_NARROW)) for p in "12"),
            *(
                (
                    "update_partition_column_statistics",
                    statistics("s3", "narrow", *_narrow(step), part=part),
                )
                for step, part in ((0, "p=1"), (1, "p=2"))
            ),
            _read_all("s3", "narrow", list("agfc"), ["p=1", "p=2"]),
            (
                "update_partition_column_statistics",
                statistics(
                    "s3", "narrow", of("a", "int", "longStats", numNulls=5, numDVs=1), part="p=1"
                ),
            ),
            _read_all("s3", "narrow", ["a"], ["p=1", "p=2"]),
        ),
    ),
    Scenario(
        "statistics set and merged",
        (
            ("create_database", {"name": "s4"}),
            ("create_table", table("s4", "t", _COLUMNS)),
            ("create_table", table("s4", "parted", _COLUMNS, keys="p int")),
            *(
                ("add_partition", partition("s4", "parted", p, columns=_COLUMNS))
                for p in ("1", "2", "3")
            ),
            ("set_aggr_stats_for", {"colStats": []}),
            ("set_aggr_stats_for", {"colStats": [statistics("s4", "t", *_every_kind())]}),
            (
                "set_aggr_stats_for",
                {"colStats": [statistics("s4", "t", *_every_kind(2)[:6])], "needMerge": True},
            ),
            _read("s4", "t", *"abcdefgh"),
            ("get_table", "s4", "t"),
            (
                "set_aggr_stats_for",
                {
                    "colStats": [
                        statistics("s4", "t", numbers()),
                        statistics("s4", "t", texts()),
                    ]
                },
            ),
            ("delete_table_column_statistics", "s4", "t", "a"),
            (
                "set_aggr_stats_for",
                {"colStats": [statistics("s4", "t", numbers(), texts())], "needMerge": True},
            ),
            _read("s4", "t", "a", "b"),
            (
                "set_aggr_stats_for",
                {"colStats": [statistics("s4", "none", numbers())], "needMerge": True},
            ),
            ("set_aggr_stats_for", {"colStats": [statistics("s4", "none", numbers())]}),
            (
                "set_aggr_stats_for",
                {
                    "colStats": [
                        statistics("s4", "parted", numbers(), texts(), part="p=1"),
                        statistics("s4", "parted", numbers(), part="p=2"),
                        statistics("s4", "parted", numbers(numDVs=50), part="p=2"),
                    ]
                },
            ),
            _read_parts("s4", "parted", ["a", "b"], ["p=1", "p=2", "p=3"]),
            (
                "set_aggr_stats_for",
                {
                    "colStats": [
                        statistics("s4", "parted", numbers(highValue=900), part="p=1"),
                        statistics("s4", "parted", numbers(), part="p=3"),
                    ],
                    "needMerge": True,
                },
            ),
            _read_parts("s4", "parted", ["a", "b"], ["p=1", "p=2", "p=3"]),
            ("get_partition_by_name", "s4", "parted", "p=1"),
            (
                "set_aggr_stats_for",
                {"colStats": [statistics("s4", "parted", numbers(), part="p=9")]},
            ),
        ),
    ),
    Scenario(
        "statistics after alters",
        (
            ("create_database", {"name": "s5"}),
            ("create_table", table("s5", "t", "a int, b string, c int")),
            (
                "update_table_column_statistics",
                statistics("s5", "t", numbers(), texts(), numbers("c")),
            ),
            _altered("t", "a int, b string, c int, d int"),
            _read("s5", "t", *"abcd"),
            _altered("t", "a int, b string, c bigint, d int"),
            _read("s5", "t", *"abcd"),
            _altered("t", "a int, bb string, c bigint, d int"),
            _read("s5", "t", "a", "b", "bb", "c"),
            ("update_table_column_statistics", statistics("s5", "t", texts("bb"))),
            ("get_table", "s5", "t"),
            _altered("t", "a int, bb string, c bigint, d int", renamed="tt"),
            _read("s5", "tt", "a", "bb", "c"),
            _read("s5", "t", "a"),
            ("drop_table", "s5", "tt", True),
            ("create_table", table("s5", "tt", "a int, bb string")),
            _read("s5", "tt", "a", "bb"),
            ("create_table", table("s5", "parted", "a int, b string", keys="p int")),
            ("add_partition", partition("s5", "parted", "1")),
            ("add_partition", partition("s5", "parted", "2")),
            *(
                (
                    "update_partition_column_statistics",
                    statistics("s5", "parted", numbers(), texts(), part=part),
                )
                for part in ("p=1", "p=2")
            ),
            ("rename_partition", "s5", "parted", ["2"], _placed("3", at="p=2")),
            _read_parts("s5", "parted", ["a", "b"], ["p=1", "p=2", "p=3"]),
            ("drop_partition", "s5", "parted", ["3"], True),
            ("add_partition", partition("s5", "parted", "3")),
            _read_parts("s5", "parted", ["a", "b"], ["p=1", "p=2", "p=3"]),
            ("alter_partition", "s5", "parted", _placed("1", at="p=1")),
            _read_parts("s5", "parted", ["a", "b"], ["p=1"]),
            _altered("parted", "a int, b string", renamed="renamed", keys="p int"),
            _read_parts("s5", "renamed", ["a", "b"], ["p=1"]),
            (
                "alter_table_with_cascade",
                *_altered("renamed", "a bigint, b string", keys="p int")[1:],
                True,
            ),
            _read_parts("s5", "renamed", ["a", "b"], ["p=1"]),
        ),
    ),
    Scenario(
        "counts of files after alters",
        (
            ("create_database", {"name": "s6"}),
            ("create_table", table("s6", "parted", keys="p int")),
            ("add_partition", partition("s6", "parted", "1")),
            ("get_partition", "s6", "parted", ["1"]),
            ("alter_partition", "s6", "parted", _counted("1", at="p=1")),
            ("get_partition", "s6", "parted", ["1"]),
            # The counts that it has
            ("alter_partition", "s6", "parted", _counted("1", at="p=1", files=0)),
            ("get_partition", "s6", "parted", ["1"]),
            # Other counts
            ("file", "s6.db/parted/p=1/a", 10),
            ("alter_partition", "s6", "parted", _counted("1", at="p=1", files=7, size=70)),
            ("get_partition", "s6", "parted", ["1"]),
            ("alter_partitions", "s6", "parted", [_counted("1", at="p=1", files=1, size=10)]),
            ("get_partition", "s6", "parted", ["1"]),
            *_written_by("USER", _counted("1", at="p=1", files=1, size=10)),
            *_written_by("TASK", _counted("1", at="p=1", files=1, size=10, **_COLUMN_TOO)),
            *_written_by("TASK", _counted("1", at="p=1", files=7, size=70, **_COLUMN_TOO)),
            *_written_by("USER", _counted("1", at="p=1", files=7, size=70)),
            (
                "rename_partition",
                "s6",
                "parted",
                ["1"],
                _counted("2", at="p=1", files=1, size=10),
            ),
            ("get_partition", "s6", "parted", ["2"]),
            ("rename_partition", "s6", "parted", ["2"], _counted("3", at="p=2")),
            ("get_partition", "s6", "parted", ["3"]),
            ("file", "s6.db/parted/p=4/_hidden", 10),
            ("add_partition", partition("s6", "parted", "4")),
            ("get_partition", "s6", "parted", ["4"]),
            ("append_partition", "s6", "parted", ["5"]),
            ("get_partition", "s6", "parted", ["5"]),
            ("file", "s6.db/parted/p=6/a", 10),
            ("append_partition", "s6", "parted", ["6"]),
            ("get_partition", "s6", "parted", ["6"]),
            # The counts that it had, after a write
            ("file", "s6.db/parted/p=6/b", 10),
            ("alter_partition", "s6", "parted", _counted("6", at="p=6", files=1, size=10)),
            ("get_partition", "s6", "parted", ["6"]),
            ("create_table", table("s6", "t")),
            ("get_table", "s6", "t"),
            ("alter_table", "s6", "t", _recounted("t")),
            ("get_table", "s6", "t"),
            ("file", "s6.db/t/a", 10),
            ("alter_table", "s6", "t", _recounted("t", renamed="t2")),
            ("get_table", "s6", "t2"),
            ("alter_table", "s6", "t2", _recounted("t2")),
            ("get_table", "s6", "t2"),
        ),
    ),
    Scenario(
        "statistics of columns that are dropped and added",
        (
            ("create_database", {"name": "s7"}),
            ("create_table", table("s7", "t", "a int, b string, c int")),
            (
                "update_table_column_statistics",
                statistics("s7", "t", numbers(), texts(), numbers("c")),
            ),
            _altered("t", "a int, b string", schema="s7"),
            _read("s7", "t", *"abc"),
            _altered("t", "a int, b string, c int", schema="s7"),
            _read("s7", "t", *"abc"),
            ("delete_table_column_statistics", "s7", "t", None),
            _read("s7", "t", *"abc"),
            ("create_table", table("s7", "parted", keys="p int")),
            ("add_partition", partition("s7", "parted", "1")),
            (
                "update_partition_column_statistics",
                statistics("s7", "parted", numbers(), texts(), part="p=1"),
            ),
            _altered("parted", "a int, b string, c int", schema="s7", keys="p int"),
            _read_parts("s7", "parted", ["a", "b", "c"], ["p=1"]),
            _altered("parted", "a bigint, b string, c int", schema="s7", keys="p int"),
            _read_parts("s7", "parted", ["a", "b"], ["p=1"]),
            _read_all("s7", "parted", ["a", "b"], ["p=1"]),
            ("drop_partition", "s7", "parted", ["1"], True),
            _read_all("s7", "parted", ["a", "b"], ["p=1"]),
        ),
    ),
    Scenario(
        "accurate columns of partitions after alters of their table",
        (
            ("create_database", {"name": "s8"}),
            ("create_table", table("s8", "parted", keys="p int")),
            ("add_partition", partition("s8", "parted", "1")),
            ("add_partition", partition("s8", "parted", "2", parameters={"k": "v"})),
            (
                "update_partition_column_statistics",
                statistics("s8", "parted", numbers(), texts(), part="p=1"),
            ),
            (
                "alter_table_with_cascade",
                *_altered("parted", "a bigint, b string", schema="s8", keys="p int")[1:],
                True,
            ),
            *(("get_partition", "s8", "parted", [value]) for value in "12"),
            (
                "alter_table_with_cascade",
                *_altered("parted", "a bigint", schema="s8", keys="p int")[1:],
                True,
            ),
            *(("get_partition", "s8", "parted", [value]) for value in "12"),
        ),
    ),
)
