"""Conforming rows to a table: which rows fit, and how the others are refused."""

from __future__ import annotations

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as sql

from strandline.catalog.commands import TableDefinition
from strandline.catalog.commands.table_definition import describe, first_columns
from strandline.errors import InvalidInput
from strandline.metastore.interface import ResolvedTable
from strandline.model.types import (
    INT,
    ArrayType,
    CharType,
    DataType,
    MapType,
    StructField,
    StructType,
    VarcharType,
)
from strandline.spark import Counts, Tables
from strandline.spark.schemas import column_definitions
from strandline.spark.writing import broken, conform
from tests.spark.data import files, folder

pytestmark = pytest.mark.spark


def table(ddl: str) -> ResolvedTable:
    definition = TableDefinition(name="orders", columns=column_definitions(ddl), transactional=True)
    first = first_columns(definition)
    descriptor = describe(
        definition, first, owner="ann", table_id=1, schema_id=1, zone_id=1, created=0
    )
    return ResolvedTable("shop", descriptor, catalog_version=1, location="file:///lake/orders")


@pytest.mark.parametrize(
    ("ddl", "query", "message"),
    [
        ("id INT", "SELECT 1 AS id, 2 AS extra", "shop.orders has no column 'extra'; it has id"),
        ("s STRUCT<x: INT>", "SELECT named_struct('x', 1, 'y', 2) AS s", r"no column 's\.y'"),
        (
            "a ARRAY<STRUCT<x: INT>>",
            "SELECT array(named_struct('z', 1)) AS a",
            r"no column 'a\.element\.z'",
        ),
        (
            "m MAP<STRUCT<x: INT>, INT>",
            "SELECT map(named_struct('x', 1, 'y', 2), 3) AS m",
            r"no column 'm\.key\.y'",
        ),
        ("id INT, n INT NOT NULL", "SELECT 1 AS id", "'n' of shop.orders is NOT NULL"),
        (
            "m MAP<STRING, STRUCT<x: INT, n: INT NOT NULL>>",
            "SELECT map('k', named_struct('x', 1)) AS m",
            r"'m\.value\.n' of shop.orders is NOT NULL",
        ),
        ("id INT", "SELECT 1 AS id, 2 AS ID", "duplicate column 'ID' in the rows for shop.orders"),
        ("id INT", "SELECT 'x' AS id", 'do not fit shop.orders: .* `id` is of type "STRING"'),
        ("s STRUCT<x: DATE>", "SELECT named_struct('x', 1) AS s", '`s`.`x` is of type "INT"'),
        ("a ARRAY<INT>", "SELECT 1 AS a", '`a` is of type "INT"'),
    ],
)
def test_columns_that_do_not_fit_the_table_are_refused_by_name(
    spark: SparkSession, ddl: str, query: str, message: str
) -> None:
    with pytest.raises(InvalidInput, match=message):
        conform(spark.sql(query), table(ddl))


def test_the_message_about_rows_that_do_not_fit_has_no_java_stack(spark: SparkSession) -> None:
    spark.conf.set("spark.sql.pyspark.jvmStacktrace.enabled", "true")  # as in Spark Connect
    try:
        with pytest.raises(InvalidInput) as refused:
            conform(spark.sql("SELECT 'x' AS id"), table("id INT"))
    finally:
        spark.conf.unset("spark.sql.pyspark.jvmStacktrace.enabled")
    assert "\n" not in refused.value.message


@pytest.mark.parametrize(
    ("column", "given", "same"),
    [
        ("straße", "STRASSE", False),
        ("ſ", "S", True),
        pytest.param("ärger", "ÄRGER", True, marks=pytest.mark.slow),
        pytest.param("σ", "ς", True, marks=pytest.mark.slow),
        pytest.param("k", "\N{KELVIN SIGN}", True, marks=pytest.mark.slow),
    ],
)
def test_column_names_match_exactly_where_they_match_in_spark(
    spark: SparkSession, column: str, given: str, same: bool
) -> None:
    rows = spark.sql(f"SELECT 1 AS `{given}`")
    wanted = table(f"`{column}` INT")
    if same:
        assert conform(rows, wanted).frame.toArrow().to_pylist() == [{column: 1}]
    else:
        with pytest.raises(InvalidInput, match="no column"):
            conform(rows, wanted)


@pytest.mark.parametrize("yes", ["true", " TRUE "])
def test_column_names_are_case_sensitive_if_the_spark_session_is(
    spark: SparkSession, yes: str
) -> None:
    spark.conf.set("spark.sql.caseSensitive", yes)
    try:
        with pytest.raises(InvalidInput, match="no column 'ID'"):
            conform(spark.sql("SELECT 1 AS ID"), table("id INT"))
    finally:
        spark.conf.unset("spark.sql.caseSensitive")


def test_rows_that_are_not_a_dataframe_are_refused() -> None:
    with pytest.raises(InvalidInput, match="not a builtins list"):
        conform([1, 2], table("id INT"))  # type: ignore[arg-type]  # the point of the test


def test_columns_are_matched_by_name_and_missing_ones_are_null(tables: Tables) -> None:
    tables.create(
        "shop.t", "id INT, Name STRING, s STRUCT<x: INT, y: INT>, `odd.``name` INT NOT NULL"
    )
    given = tables.spark.sql("SELECT named_struct('Y', 2L) AS S, 'n' AS nAME, 3L AS `odd.``name`")
    assert tables.append("shop.t", given) == Counts(rows=1, files=1)
    frame = tables.read("shop.t")
    assert frame.columns == ["id", "Name", "s", "odd.`name"]
    assert frame.toArrow().to_pylist() == [
        {"id": None, "Name": "n", "s": {"x": None, "y": 2}, "odd.`name": 3}
    ]


@pytest.mark.slow
def test_length_and_null_constraints_are_checked_at_every_level(spark: SparkSession) -> None:
    def array(element: DataType, *, contains_null: bool = True) -> ArrayType:
        return ArrayType(element, contains_null)

    point = StructType((StructField("x", INT, nullable=False),))
    half = StructType((StructField("x", INT), StructField("y", INT, nullable=False)))
    # Spark type, declared type, values that the declared type excludes, values that fit it.
    cases: list[tuple[str, DataType, list[str], list[str]]] = [
        ("STRING", VarcharType(3), ["'long'", "'long  '"], ["NULL", "''", "'🐢🐢🐢'"]),
        ("STRING", CharType(3), ["'long'"], ["NULL", "'abc'", "'a'"]),
        ("STRUCT<x: INT>", point, ["struct(NULL)"], ["NULL", "struct(1)"]),
        ("STRUCT<x: INT, y: INT>", half, ["struct(1, NULL)"], ["struct(NULL, 1)"]),
        ("ARRAY<INT>", array(INT, contains_null=False), ["array(NULL)"], ["NULL", "array()"]),
        ("ARRAY<STRUCT<x: INT>>", array(point), ["array(struct(NULL))"], ["array(NULL)"]),
        (
            "MAP<STRING, STRING>",
            MapType(CharType(2), VarcharType(3), value_contains_null=False),
            ["map('key', 'v')", "map('k', 'long')", "map('k', NULL)"],
            ["NULL", "map('k', 'v')", "map()"],
        ),
        ("MAP<STRING, INT>", MapType(CharType(2), INT), ["map('key', 1)"], ["map('k', NULL)"]),
        ("MAP<INT, STRING>", MapType(INT, CharType(2)), ["map(1, 'abc')"], ["map(1, NULL)"]),
        ("MAP<INT, INT>", MapType(INT, INT, False), ["map(1, NULL)"], ["map(1, 2)"]),
    ]
    columns = []
    for spark_type, declared, breaking, fitting in cases:
        for text in (*breaking, *fitting):
            value = sql.expr(f"CAST({text} AS {spark_type})")
            columns.append(sql.coalesce(broken(value, declared, nullable=True), sql.lit(False)))
    (row,) = spark.range(1).select(*columns).collect()
    expected = [
        is_breaking
        for _, _, breaking, fitting in cases
        for is_breaking in (*[True] * len(breaking), *[False] * len(fitting))
    ]
    assert list(row) == expected


def test_a_value_that_breaks_a_constraint_is_refused_and_leaves_no_file(tables: Tables) -> None:
    tables.create("shop.t", "id INT NOT NULL, s STRUCT<v: VARCHAR(3)>")
    for query, column in (
        ("SELECT IF(id = 1, NULL, id) AS id FROM range(3)", "'id' of shop.t, which is INT NOT"),
        ("SELECT 1 AS id, named_struct('v', 'long') AS s", "'s' of shop.t, which is STRUCT<v: VA"),
    ):
        with pytest.raises(InvalidInput, match=f"does not fit column {column}"):
            tables.append("shop.t", tables.spark.sql(query))
    assert files(folder(tables, "shop.t")) == []


def test_only_the_rows_that_are_appended_must_keep_the_constraints(tables: Tables) -> None:
    tables.create("shop.t", "id BIGINT, v VARCHAR(2) NOT NULL")
    given = "VALUES (1L, 'ok', array(1)), (2L, NULL, array()), (3L, 'long', NULL) AS t(id, v, l)"
    exploded = tables.spark.sql(f"SELECT * FROM {given}").select("id", "v", sql.explode("l"))
    assert tables.append("shop.t", exploded.drop("col")).rows == 1


def test_a_failed_job_raises_its_error_and_leaves_no_file(tables: Tables) -> None:
    tables.create("shop.t", "id INT")
    failing = tables.spark.sql("SELECT CAST(raise_error('no luck') AS INT) AS id")
    with pytest.raises(PySparkException, match="no luck"):
        tables.append("shop.t", failing)
    too_large = tables.spark.sql("SELECT id + 3000000000 AS id FROM range(3)")
    with pytest.raises(PySparkException, match="CAST_OVERFLOW"):
        tables.append("shop.t", too_large)
    assert files(folder(tables, "shop.t")) == []
