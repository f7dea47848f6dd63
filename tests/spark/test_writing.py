"""The contents of data files: ids at every level, statistics, values of all types."""

from __future__ import annotations

import datetime as dt
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from time import monotonic
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark import TaskContext
from pyspark.sql import SparkSession
from pyspark.sql import functions as sql
from pyspark.sql import types as spark_types

from strandline.catalog.commands import CreateSchema
from strandline.errors import UnsupportedOperation
from strandline.metastore.store.rows import ColumnStatistics, DataFile
from strandline.node import Node
from strandline.spark import Counts, Tables
from strandline.spark.footers import file_ids
from strandline.spark.interrupts import cancelled_by_an_interrupt
from strandline.spark.schemas import file_schema
from tests.spark.data import files, folder, frame, lose_a_file, numbers, suffixes

pytestmark = pytest.mark.spark


def data_files(tables: Tables, name: str) -> list[DataFile]:
    with tables.snapshot(name) as snapshot:
        table = snapshot.table(name).descriptor
        answer = tables.session.files(table.id, snapshot.write_ids(name))
    return list(answer.data_files)


def file_schema_of(tables: Tables, name: str) -> spark_types.StructType:
    return file_schema(tables.session.table(name).descriptor.columns)


def test_data_files_carry_all_field_ids_however_the_rows_were_made(tables: Tables) -> None:
    tables.create("shop.t", "a INT, s STRUCT<x: INT, l: ARRAY<STRUCT<y: INT>>>, m MAP<INT, INT>")
    inner = pa.struct([("x", pa.int32()), ("l", pa.list_(pa.struct([("y", pa.int32())])))])
    same = frame(
        tables,
        a=pa.array([1, 2], pa.int32()),
        s=pa.array([{"x": 3, "l": [{"y": 4}]}, None], inner),
        m=pa.array([[(1, 2)], None], pa.map_(pa.int32(), pa.int32())),
    )
    tables.append("shop.t", same)
    read = tables.read("shop.t")
    assert read.schema["a"].metadata == {}  # the id means nothing in what users make of it
    literal = tables.spark.sql("SELECT CAST(NULL AS INT) AS a")
    claiming = same.withMetadata("a", {"parquet.field.id": 1}).to(file_schema_of(tables, "shop.t"))
    shapes = [literal, same.coalesce(1), same.filter("a > 0").union(literal.to(same.schema))]
    shapes += [read, read.sort("a").limit(1), claiming.repartition(1), claiming.drop("s")]
    for rows in shapes:
        tables.append("shop.t", rows)
    root = folder(tables, "shop.t")
    written = data_files(tables, "shop.t")
    assert len(written) > len(shapes)
    for file in written:
        assert file_ids(pq.read_metadata(root / file.path)) == {1, 2, 3, 4, 5, 6}
    ids = [file.file_id for file in written]
    assert len(set(ids)) == len(ids)


def test_a_null_among_nested_structs_keeps_the_ids_of_their_fields(tables: Tables) -> None:
    point = "STRUCT<x: INT, y: STRING>"
    types = f"l ARRAY<{point}>, m MAP<STRING, ARRAY<{point}>>, n MAP<ARRAY<{point}>, INT>"
    tables.create("shop.t", f"id BIGINT, {types}, s STRUCT<l: ARRAY<{point}>>")
    points = "array(named_struct('y', CAST(id AS STRING), 'x', CAST(id AS TINYINT)), NULL)"
    either = f"CASE WHEN id = 0 THEN map('k', NULL) ELSE map('k', {points}) END"
    others = f"map({points}, 1) n, named_struct('l', {points}) s"
    rows = tables.spark.sql(f"SELECT id, {points} l, {either} m, {others} FROM range(2)")
    assert tables.append("shop.t", rows).rows == 2
    places = ("l[0].y", "l[1]", "m['k'][0].x", "map_keys(n)[0][0].x", "s.l[0].y")
    answer = tables.read("shop.t").orderBy("id").selectExpr(*places)
    assert [tuple(row) for row in answer.collect()] == [
        ("0", None, None, 0, "0"),
        ("1", None, 1, 1, "1"),
    ]


def test_the_record_of_a_data_file_has_its_size_its_row_count_and_statistics(
    tables: Tables,
) -> None:
    tables.create("shop.t", "id BIGINT, at TIMESTAMP, name STRING, s STRUCT<d: DECIMAL(9,2)>")
    rows = tables.spark.sql(
        "SELECT id, TIMESTAMP'2013-01-01 05:00:00 UTC' AS at, NULL AS name,"
        " named_struct('d', id / 4) AS s FROM range(1, 5)"
    ).coalesce(1)
    assert tables.append("shop.t", rows) == Counts(rows=4, files=1)
    (file,) = data_files(tables, "shop.t")
    path = folder(tables, "shop.t") / file.path
    assert (file.rows, file.bytes, file.schema_version) == (4, path.stat().st_size, 1)
    assert file.path.startswith(f"_files/{file.file_id}-")
    moment = "2013-01-01T05:00:00.000000Z"
    assert file.statistics == (
        ColumnStatistics(column_id=1, lower="1", upper="4", nulls=0),
        ColumnStatistics(column_id=2, lower=moment, upper=moment, nulls=0),
        ColumnStatistics(column_id=3, nulls=4),
        ColumnStatistics(column_id=5, lower="0.25", upper="1.00", nulls=0),
    )


def test_an_append_leaves_only_data_files_and_no_tag_of_its_job(tables: Tables) -> None:
    tables.create("shop.t", "id BIGINT")
    counts = tables.append("shop.t", numbers(tables, 1, 2, 3))
    assert not tables.spark.sparkContext.getJobTags()
    assert suffixes(files(folder(tables, "shop.t"))) == {"_files": counts.files}


SECONDS = 600
"""Until then, Spark has begun a job or ended a task, however busy the machine is."""


@pytest.mark.slow
def test_the_files_of_a_task_are_in_the_folder_of_the_job_only_once_the_job_has_ended(
    tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else those of an attempt that died while it committed would be beside those of the next."""
    tables.create("shop.orders", "id BIGINT, moved BIGINT")
    root = folder(tables, "shop.orders")

    def watched(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        moved, end = 0, monotonic() + SECONDS
        while context.partitionId() == 1 and monotonic() < end:
            # Unlike `Path.rglob`, this leaves out a folder that is moved meanwhile.
            walked = os.walk(root)
            first = [
                at for at, _, names in walked if any(n.startswith("part-00000") for n in names)
            ]
            if any("/_temporary/attempt_" not in at for at in first):  # it has committed
                moved = sum("/_temporary" not in at for at in first)
                break
        else:
            assert context.partitionId() == 0
        for batch in batches:
            yield batch.set_column(1, "moved", pa.array([moved] * batch.num_rows, pa.int64()))

    monkeypatch.setattr(tables.spark.sparkContext, "pythonExec", sys.executable)
    rows = tables.spark.range(0, 2, numPartitions=2).withColumn("moved", sql.lit(0).cast("long"))
    tables.append("shop.orders", rows.mapInArrow(watched, "id BIGINT, moved BIGINT"))
    assert tables.read("shop.orders").where("moved != 0").count() == 0
    assert len(data_files(tables, "shop.orders")) == 2


@pytest.mark.parametrize("partitioned_by", [[], ["bucket(2, id)"]])
def test_an_append_is_refused_if_the_driver_does_not_see_a_file_that_an_executor_wrote(
    tables: Tables, monkeypatch: pytest.MonkeyPatch, partitioned_by: list[str]
) -> None:
    tables.create("shop.orders", "id BIGINT", partitioned_by=partitioned_by)
    lose_a_file(monkeypatch)
    rows = numbers(tables, *range(20)).repartition(2)
    with pytest.raises(UnsupportedOperation, match=r"wrote 20 rows .* sees 1?[0-9] of"):
        tables.append("shop.orders", rows)
    assert files(folder(tables, "shop.orders")) == []


class _TimeLimit(BaseException):
    """What the signal handler of a scheduler raises."""


def append_for_days(tables: Tables) -> None:
    tables.append("shop.t", tables.spark.range(10**14).where("id % 7 = 9"))


def delete_for_days(tables: Tables) -> None:
    """Each of the rows takes seconds; Spark ends a task between two rows."""
    tables.delete(
        "shop.t",
        "exists(sequence(1L, 10000L), x -> exists(sequence(1L, 10000L), y -> x * y = -1 - id))",
    )


@pytest.fixture
def time_limit() -> Iterator[None]:
    def handle(*_: object) -> NoReturn:
        raise _TimeLimit

    former = signal.signal(signal.SIGALRM, handle)
    yield
    signal.signal(signal.SIGALRM, former)


@pytest.mark.usefixtures("time_limit")
@pytest.mark.parametrize("statement", [append_for_days, delete_for_days])
@pytest.mark.parametrize(
    ("number", "error"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGALRM, _TimeLimit)]
)
def test_the_job_of_an_interrupted_statement_is_cancelled(
    tables: Tables,
    number: signal.Signals,
    error: type[BaseException],
    statement: Callable[[Tables], None],
) -> None:
    tables.create("shop.t", "id BIGINT")
    tables.append("shop.t", tables.spark.range(10_000, numPartitions=1))
    tracker = tables.spark.sparkContext.statusTracker()
    end = monotonic() + SECONDS

    def interrupt() -> None:
        while not tracker.getActiveJobsIds() and monotonic() < end:
            pass
        if tracker.getActiveJobsIds():
            os.kill(os.getpid(), number)

    interrupting = threading.Thread(target=interrupt)
    interrupting.start()
    with pytest.raises(error):
        statement(tables)
    interrupting.join()
    while tracker.getActiveJobsIds():
        assert monotonic() < end
    tables.append("shop.t", numbers(tables, 10_000))
    assert tables.read("shop.t").count() == 10_001


@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError])
def test_an_append_ends_with_its_own_error_if_spark_has_ended_too(
    tables: Tables, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    """An interrupt at the terminal reaches the JVM of spark-submit as well."""

    def refuse(*_: object) -> NoReturn:
        raise ConnectionRefusedError

    for method in ("cancelJobsWithTag", "removeJobTag"):
        monkeypatch.setattr(tables.spark.sparkContext, method, refuse)
    with pytest.raises(error), cancelled_by_an_interrupt(tables.spark):
        raise error


def test_statements_that_change_no_row_add_no_file_and_take_no_write_id(tables: Tables) -> None:
    tables.create("shop.t", "id BIGINT")
    assert tables.append("shop.t", numbers(tables)) == Counts(rows=0, files=0)
    assert tables.delete("shop.t", "true") == Counts(rows=0, files=0)
    assert files(folder(tables, "shop.t")) == []
    assert tables.snapshot("shop.t").write_ids("shop.t").hwm == 0


MONTHS = "ym"
"""The column whose type Arrow does not have."""
NOW = dt.datetime(2013, 3, 10, 7, 30, 0, 123456)
POINT = pa.struct([("x", pa.int32()), ("y", pa.string())])
# Name, Spark type, Arrow type, values.
TYPES: list[tuple[str, str, pa.DataType, list[Any]]] = [
    ("b", "BOOLEAN", pa.bool_(), [True, False]),
    ("i8", "TINYINT", pa.int8(), [-128, 127]),
    ("i16", "SMALLINT", pa.int16(), [-(2**15), 2**15 - 1]),
    ("i32", "INT", pa.int32(), [-(2**31), 2**31 - 1]),
    ("i64", "BIGINT", pa.int64(), [-(2**63), 2**63 - 1]),
    ("f32", "FLOAT", pa.float32(), [float("nan"), float("-inf"), 0.5]),
    ("f64", "DOUBLE", pa.float64(), [float("nan"), 1e300, -0.0]),
    ("d9", "DECIMAL(9,2)", pa.decimal128(9, 2), [Decimal("-1234567.89")]),
    ("d38", "DECIMAL(38,10)", pa.decimal128(38, 10), [Decimal("9" * 28 + "." + "9" * 10)]),
    ("s", "STRING", pa.string(), ["", "żółw 🐢 \x00\n", "x" * 100]),
    ("c", "CHAR(3)", pa.string(), ["a", "abc"]),
    ("v", "VARCHAR(3)", pa.string(), ["", "🐢"]),
    ("bin", "BINARY", pa.binary(), [b"", b"\x00\xff"]),
    ("d", "DATE", pa.date32(), [dt.date(1, 1, 1), dt.date(9999, 12, 31)]),
    ("ts", "TIMESTAMP", pa.timestamp("us", "UTC"), [NOW.replace(tzinfo=dt.UTC)]),
    ("ntz", "TIMESTAMP_NTZ", pa.timestamp("us"), [NOW, dt.datetime(1582, 10, 5)]),
    (MONTHS, "INTERVAL YEAR TO MONTH", pa.int32(), []),
    ("l", "ARRAY<INT>", pa.list_(pa.int32()), [[], [1, None]]),
    ("m", "MAP<STRING, STRUCT<x: INT, y: STRING>>", pa.map_(pa.string(), POINT), [
        [], [("k", {"x": 1, "y": ""}), ("", None)],
    ]),
    ("p", "STRUCT<x: INT, y: STRING>", POINT, [{"x": None, "y": None}, {"x": 1, "y": "ü"}]),
    ("n", "ARRAY<MAP<STRING, ARRAY<STRUCT<x: INT, y: STRING>>>>",
     pa.list_(pa.map_(pa.string(), pa.list_(POINT))),
     [[[("k", [{"x": 1, "y": "a"}, None])], None]]),
]  # fmt: skip


def test_values_of_all_types_read_back_unchanged(tables: Tables) -> None:
    tables.create("shop.t", ", ".join(f"{name} {sql_type}" for name, sql_type, _, _ in TYPES))
    given = pa.table(
        {
            name: pa.array([*values, *[None] * (4 - len(values))], arrow_type)
            for name, _, arrow_type, values in TYPES
            if name != MONTHS
        }
    )
    months = sql.expr("INTERVAL '1-2' YEAR TO MONTH")
    rows = tables.spark.createDataFrame(given).withColumn(MONTHS, months)
    assert tables.append("shop.t", rows).rows == 4
    answer = tables.read("shop.t").withColumn(MONTHS, sql.col(MONTHS).cast("string")).toArrow()
    assert answer[MONTHS].to_pylist() == ["INTERVAL '1-2' YEAR TO MONTH"] * 4
    back = answer.drop_columns(MONTHS).to_pylist()
    assert sorted(map(repr, back)) == sorted(map(repr, given.to_pylist()))


def test_a_store_path_with_special_characters_is_written_and_read(
    spark: SparkSession, tmp_path: Path
) -> None:
    odd = tmp_path / "we{ir}d [x]*? #é=1" / "sub"
    with Node.open(odd) as node:
        tables = Tables(spark, node.session(user="ann"))
        tables.session.execute(CreateSchema(name="odd"))
        tables.create("odd.t", "id BIGINT")
        tables.append("odd.t", numbers(tables, 1, 2, 3))
        tables.delete("odd.t", "id = 2")
        assert folder(tables, "odd.t").is_relative_to(odd)
        assert sorted(tables.read("odd.t").toArrow()["id"].to_pylist()) == [1, 3]
