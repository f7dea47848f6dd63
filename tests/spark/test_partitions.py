"""Partitioned tables: the files that Spark writes, and the files that a condition selects."""

from __future__ import annotations

import io
import random
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as sql

from strandline.catalog.commands import ColumnDefinition, TableDefinition
from strandline.catalog.commands.table_definition import describe, first_columns
from strandline.errors import InvalidInput
from strandline.model.descriptors import TableDescriptor
from strandline.model.partitioning import Partition, PartitionValue, Transform, TransformKind
from strandline.model.types import BIGINT, DATE, TIMESTAMP, TIMESTAMP_NTZ, DecimalType
from strandline.spark import Counts, Tables
from strandline.spark.partitions import partition_of, with_values
from strandline.spark.schemas import column_definitions
from tests.spark.data import folder, frame, ids

pytestmark = pytest.mark.spark

EXACT = Context(prec=80)
EPOCH = datetime(1970, 1, 1)
UTC_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
WIDTHS = {TransformKind.BUCKET: 7, TransformKind.TRUNCATE: 3}


SAMPLE_SCHEMA = (
    "yes BOOLEAN, tiny TINYINT, whole INT, `a.b` BIGINT, cents DECIMAL(9, 2), wide DECIMAL(18, 18),"
    " huge DECIMAL(38, 0), split DECIMAL(38, 10), less DECIMAL(19, 2), tail DECIMAL(38, 38),"
    " name STRING, raw BINARY, day DATE, ts TIMESTAMP, local TIMESTAMP_NTZ"
)


def sample() -> pa.Table:
    """Return rows of all types that can partition a table: extremes, times around 1970, NULL."""
    source = random.Random(7)
    micros = [-1, 0, 1, -86_400_000_000, -86_400_000_001, 3_599_999_999, -62_135_596_800_000_000]
    micros += [43_200_000_000, 86_400_000_000]  # 12 hours apart
    # In New York, the time zone of the session, the clocks show the same at both.
    micros += [1_383_456_600_000_000, 1_383_460_200_000_000]
    micros += [source.randrange(-4 * 10**15, 4 * 10**15) for _ in range(40)]
    days = [
        -719_162,
        -1,
        0,
        1,
        -365,
        2_932_896,
        *(source.randrange(-99_999, 99_999) for _ in "x" * 40),
    ]
    small = [-128, 127, 0, -1, 1, -10, 10, *(source.randrange(-128, 128) for _ in range(40))]
    large = [
        -(1 << 63),
        (1 << 63) - 1,
        *small,
        *(source.randrange(-(1 << 63), 1 << 63) for _ in small),
    ]
    edges = [10**38 - 1, 1 << 64, (1 << 64) - 1, 1 << 63, 1 << 32, 1 << 127 >> 1, *range(9)]
    huge = [sign * n + plus for n in edges for sign in (1, -1) for plus in (0, -1, 1)]
    huge = [n for n in huge if abs(n) < 10**38] + [
        n >> (7 * place)
        for place, n in enumerate(source.randrange(-(10**38), 10**38) for _ in range(18))
    ]
    less = [huge[0] // 10**19, *(n // 10**20 for n in huge)]
    alphabet = "aé\0€\U00010000 z'\\"
    texts = ["", "iceberg", *("".join(source.choices(alphabet, k=n % 9)) for n in range(70))]
    count = 130

    def column(values: list[Any], of: pa.DataType) -> pa.Array:
        return pa.array([None, *(values * count)[: count - 1]], of)

    return pa.table(
        {
            "yes": column([True, False], pa.bool_()),
            "tiny": column(small, pa.int8()),
            "whole": column([*small, -(1 << 31), (1 << 31) - 1], pa.int32()),
            "a.b": column(large, pa.int64()),
            "cents": column([Decimal(n).scaleb(-2) for n in (*small, *range(-999, 999, 23))],
                            pa.decimal128(9, 2)),
            "wide": column([Decimal(n // 100).scaleb(-18) for n in large],
                           pa.decimal128(18, 18)),
            "huge": column(_decimals(huge, 0), pa.decimal128(38, 0)),
            "split": column(_decimals(huge, 10), pa.decimal128(38, 10)),
            "less": column(_decimals(less, 2), pa.decimal128(19, 2)),
            "tail": column(_decimals(huge, 38), pa.decimal128(38, 38)),
            "name": column(texts, pa.string()),
            "raw": column([text.encode() for text in texts], pa.binary()),
            "day": column([date(1970, 1, 1) + timedelta(n) for n in days], pa.date32()),
            "ts": column([UTC_EPOCH + timedelta(microseconds=n) for n in micros],
                         pa.timestamp("us", "UTC")),
            "local": column([EPOCH + timedelta(microseconds=n) for n in micros],
                            pa.timestamp("us")),
        }
    )  # fmt: skip


def _decimals(unscaled: list[int], scale: int) -> list[Decimal]:
    return [Decimal(n).scaleb(-scale, EXACT) for n in unscaled]


def physical(column: pa.ChunkedArray, of: Any) -> list[Any]:
    if of == DATE:
        column = column.cast(pa.int32())
    if of in (TIMESTAMP, TIMESTAMP_NTZ):
        column = column.cast(pa.int64())
    values: list[Any] = column.to_pylist()
    if isinstance(of, DecimalType):
        return [None if v is None else int(v.scaleb(of.scale, EXACT)) for v in values]
    return values


@pytest.mark.slow
def test_spark_separates_partitions_as_the_specification_does(tables: Tables) -> None:
    given = sample()
    rows = tables.spark.createDataFrame(given, SAMPLE_SCHEMA)
    descriptor = tables.create("shop.t", rows.schema).descriptor
    questions = [
        (column, transform)
        for column in descriptor.columns
        for transform in (Transform(kind, WIDTHS.get(kind, 0)) for kind in TransformKind)
        if transform.takes(column.type)
    ]
    assert len(questions) > 35
    asked, expressions = with_values(rows, [(transform, column) for column, transform in questions])
    computed = asked.select(
        *(
            sql.expr(f"CAST({value} AS STRING)").alias(str(number))
            for number, value in enumerate(expressions)
        )
    ).toArrow()
    for number, (column, transform) in enumerate(questions):
        values = physical(given.column(column.name), column.type)
        expected = [None if v is None else transform.apply(v, column.type) for v in values]
        actual = computed.column(str(number)).to_pylist()
        if transform.kind is TransformKind.BUCKET:
            assert [str(v) if v is not None else None for v in expected] == actual, column
        pairs = set(zip(expected, actual, strict=True))
        assert (None, None) in pairs
        # The expected and the computed values map one to one.
        assert len(pairs) == len(set(expected)) == len(set(actual)), (column, transform)


@pytest.mark.parametrize("int96", [False, True])
def test_the_partition_of_a_file_is_computed_as_the_specification_does(*, int96: bool) -> None:
    given = sample()
    columns = column_definitions(SAMPLE_SCHEMA)
    fields = [f"`{column.name}`" for column in columns]
    table = described(columns, partitioned_by=(*fields, "bucket(7, day)"))
    types = {column.id: column for column in table.columns}
    values = {c.id: physical(given.column(c.name), c.type) for c in table.columns}
    for number in range(given.num_rows):
        file = io.BytesIO()
        row = given.slice(number, 1)
        pq.write_table(row, file, use_deprecated_int96_timestamps=int96)
        expected = []
        for field in table.partitioning:
            value = values[field.source_id][number]
            if value is not None:
                value = field.transform.apply(value, types[field.source_id].type)
            expected.append(PartitionValue(field.id, value))
        assert partition_of(file, table) == tuple(expected)


def test_a_text_that_is_not_utf_8_has_no_partition() -> None:
    table = described(column_definitions("name STRING"), partitioned_by=("name",))
    file = io.BytesIO()
    pq.write_table(pa.table({"name": pa.array([b"\xff"], pa.binary()).view(pa.string())}), file)
    with pytest.raises(InvalidInput, match="'name' is not UTF-8"):
        partition_of(file, table)


@pytest.mark.parametrize("micros", [(1 << 63) - 1, 253_402_300_800_000_000, -(1 << 62)])
def test_an_int96_outside_the_years_1_to_9999_has_no_partition(micros: int) -> None:
    table = described(column_definitions("ts TIMESTAMP"), partitioned_by=("day(ts)",))
    for int96 in (True, False):
        file = io.BytesIO()
        rows = pa.table({"ts": pa.array([micros], pa.timestamp("us", "UTC"))})
        pq.write_table(rows, file, use_deprecated_int96_timestamps=int96)
        if int96:
            with pytest.raises(InvalidInput, match=r"'ts' is outside the years.*_MICROS$"):
                partition_of(file, table)
        else:
            [day] = partition_of(file, table)
            assert day.value == micros // 86_400_000_000


def described(
    columns: tuple[ColumnDefinition, ...], *, partitioned_by: tuple[str, ...]
) -> TableDescriptor:
    definition = TableDefinition(
        name="t", columns=columns, transactional=True, partitioned_by=partitioned_by
    )
    first = first_columns(definition)
    return describe(definition, first, owner="", table_id=1, schema_id=1, zone_id=1, created=0)


SCHEMA = "id BIGINT, region STRING, ts TIMESTAMP"
FIELDS = ("day(ts)", "region", "bucket(4, id)")


def sales(tables: Tables, *ids: int) -> Any:
    """Return one row for each id, in three regions, with timestamps eight hours apart."""
    moments = [UTC_EPOCH + timedelta(hours=8 * n) for n in ids]
    regions = [("north", "", None)[n % 3] for n in ids]
    return frame(
        tables,
        id=pa.array(ids, pa.int64()),
        region=pa.array(regions, pa.string()),
        ts=pa.array(moments, pa.timestamp("us", "UTC")),
    )


def files_of(tables: Tables, name: str) -> dict[Partition, list[str]]:
    snapshot = tables.session.open([name])
    table_id = snapshot.table(name).descriptor.id
    paths: dict[Partition, list[str]] = {}
    for file in tables.session.files(table_id, snapshot.write_ids_of(name)).data_files:
        paths.setdefault(file.partition, []).append(file.path)
    return paths


def test_a_data_file_holds_rows_of_one_partition_and_conditions_prune_files(
    tables: Tables,
) -> None:
    tables.create("shop.t", SCHEMA, partitioned_by=FIELDS)
    counts = tables.append("shop.t", sales(tables, *range(-12, 12)))
    paths = files_of(tables, "shop.t")
    assert counts == Counts(rows=24, files=len(paths))
    for partition, (path,) in paths.items():
        table = pq.read_table(folder(tables, "shop.t") / path)
        assert table.column_names == ["id", "region", "ts"]
        day, region, bucket = (known.value for known in partition)
        for row in table.to_pylist():
            assert (row["ts"] - UTC_EPOCH).days == day
            assert row["region"] == region
            assert Transform(TransformKind.BUCKET, 4).apply(row["id"], BIGINT) == bucket
    assert PartitionValue(1001, None) in {known for partition in paths for known in partition}

    tables.alter("shop.t", rename={"region": "area"})
    frames = []
    for number, (where, (most, _)) in enumerate(READS.items()):
        read = tables.read("shop.t", where=where)
        assert len(read.inputFiles()) <= most, where
        frames.append(read.select(sql.lit(number), "id"))
    actual = sorted(tuple(row) for row in reduce(DataFrame.unionAll, frames).collect())
    assert actual == [
        (number, matching) for number, (_, ids) in enumerate(READS.values()) for matching in ids
    ]
    assert tables.delete("shop.t", "area = '' AND id < 0") == Counts(rows=4, files=4)
    assert ids(tables.read("shop.t", where="id < 0")) == [-12, -10, -9, -7, -6, -4, -3, -1]


READS: dict[str, tuple[int, Sequence[int]]] = {
    "ts < timestamp'1970-01-01 00:00:00Z'": (12, range(-12, 0)),
    "area IS NULL": (8, range(-10, 12, 3)),
    "area <> 'north' AND ts >= timestamp'1970-01-03 00:00:00Z'": (2, (7, 10)),
    "area NOT IN ('north', 'x')": (8, range(-11, 12, 3)),
    "id = 5": (1, (5,)),
    "id IN (5, -3)": (2, (-3, 5)),
    "area <=> NULL AND id = 5": (1, (5,)),
    "area LIKE 'n%' AND id > 8": (1, (9,)),
    "true": (24, range(-12, 12)),
}
"""Conditions, each with the most files that it may read and the ids that it is true for."""


def test_partitions_whose_values_look_alike_one_after_another_have_separate_files(
    tables: Tables,
) -> None:
    tables.create("shop.t", "a STRING, b STRING", partitioned_by=["a", "b"])
    pairs = {("a", "bc"), ("ab", "c"), (None, "a"), ("a", None), ("-", ""), (None, ""), ("", None)}
    pairs |= {("2", "abcdefghij-"), ("11abcdefghij", None)}
    first, second = zip(*pairs, strict=True)
    columns = {"a": pa.array(first, pa.string()), "b": pa.array(second, pa.string())}
    tables.append("shop.t", frame(tables, **columns))
    partitions = files_of(tables, "shop.t")
    assert {tuple(known.value for known in partition) for partition in partitions} == pairs


def test_the_rows_of_a_partition_are_in_one_file_from_however_many_tasks_they_come(
    tables: Tables,
) -> None:
    tables.create("shop.t", "id BIGINT, region STRING", partitioned_by=["region"])
    rows = tables.spark.sql("SELECT id, 'north' AS region FROM range(0, 10, 1, 2)")
    assert tables.append("shop.t", rows) == Counts(rows=10, files=1)


@pytest.mark.slow
def test_rows_are_partitioned_by_decimals_that_do_not_fit_into_a_bigint(tables: Tables) -> None:
    amount = DecimalType(38, 10)
    numbers = [n * 10**27 + sign * n for n in range(1, 10) for sign in (1, -1)]
    signed = [sign * n for n in numbers for sign in (1, -1)]
    column = pa.array(_decimals(signed, 10), pa.decimal128(38, 10))
    fields = ("bucket(4, amount)", "truncate(1000000000, amount)")
    tables.create("shop.t", "id BIGINT, amount DECIMAL(38, 10)", partitioned_by=fields)
    tables.append(
        "shop.t", frame(tables, id=pa.array(range(len(signed)), pa.int64()), amount=column)
    )
    transforms = Transform(TransformKind.BUCKET, 4), Transform(TransformKind.TRUNCATE, 10**9)
    expected = {tuple(transform.apply(n, amount) for transform in transforms) for n in signed}
    paths = files_of(tables, "shop.t")
    assert {tuple(v.value for v in partition) for partition in paths} == expected
    path, *_ = paths.popitem()[1]
    assert pq.read_schema(folder(tables, "shop.t") / path).names == ["id", "amount"]
    for place, where in ((0, "amount = {}"), (2, "amount >= {} AND amount <= {}")):
        read = tables.read("shop.t", where=where.replace("{}", f"{column[place].as_py():f}"))
        assert len(read.inputFiles()) < len(expected) / 4
        assert place in ids(read)


def test_the_first_and_the_last_timestamp_without_a_zone_have_buckets(tables: Tables) -> None:
    tables.create("shop.t", "id BIGINT, l TIMESTAMP_NTZ", partitioned_by=["bucket(1000, l)"])
    ends = "VALUES ('-290308-12-21 19:59:05.224192'), ('+294247-01-10 04:00:54.775807') AS t(l)"
    tables.append("shop.t", tables.spark.sql(f"SELECT CAST(l AS TIMESTAMP_NTZ) AS l FROM {ends}"))
    bucket = Transform(TransformKind.BUCKET, 1000)
    expected = {(bucket.apply(micros, TIMESTAMP_NTZ),) for micros in (-(1 << 63), (1 << 63) - 1)}
    partitions = files_of(tables, "shop.t")
    assert {tuple(known.value for known in partition) for partition in partitions} == expected


def test_a_value_too_long_for_a_partition_is_refused_and_nothing_is_appended(
    tables: Tables,
) -> None:
    tables.create("shop.t", "id BIGINT, name STRING", partitioned_by=["name"])
    long = frame(tables, id=pa.array([1, 2], pa.int64()), name=["a", "x" * 70_000])
    with pytest.raises(InvalidInput, match="partition by truncate or bucket"):
        tables.append("shop.t", long)
    assert ids(tables.read("shop.t")) == []
    assert not list(folder(tables, "shop.t").rglob("*.parquet"))
