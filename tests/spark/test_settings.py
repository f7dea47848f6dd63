"""The settings that a Spark session needs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import SparkSession

from strandline.catalog.commands import AlterColumn
from strandline.errors import InvalidInput, StrandlineError, UnsupportedOperation
from strandline.model.types import TIMESTAMP_NTZ
from strandline.spark import Counts, Tables, transaction
from strandline.spark.schemas import (
    INT96_CALENDAR,
    PRUNE_FIELDS,
    READ_BY_ID,
    SETTINGS,
    TIMESTAMPS_AS,
    WRITE_IDS,
    WRITTEN_CALENDAR,
    check_writing,
)
from tests.spark.data import changed, files, folder, ids, numbers

pytestmark = pytest.mark.spark


def test_configure_sets_the_required_settings_and_keeps_the_time_zone(spark: SparkSession) -> None:
    assert {key: spark.conf.get(key) for key in SETTINGS} == SETTINGS
    assert spark.conf.get("spark.sql.session.timeZone") == "America/New_York"


def test_a_session_that_reads_by_name_is_refused(tables: Tables) -> None:
    tables.create("shop.t", "id BIGINT")
    with tables.transaction() as transaction, changed(tables.spark, READ_BY_ID):
        for use in (
            lambda: tables.read("shop.t"),
            lambda: tables.delete("shop.t", "true"),
            lambda: transaction.read("shop.t"),
            lambda: transaction.append("shop.t", numbers(tables, 1)),
        ):
            with pytest.raises(UnsupportedOperation, match=f"{READ_BY_ID} to true, or .*configure"):
                use()


def test_a_session_that_was_stopped_is_refused(
    tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PySpark would complain of an attribute of None."""
    tables.create("shop.t", "id BIGINT")
    frame = numbers(tables, 1)
    with tables.transaction() as transaction:
        monkeypatch.setattr(tables.spark.sparkContext, "_jsc", None)  # as its stop does
        for use in (
            lambda: tables.read("shop.t"),
            lambda: tables.read("shop.t", where="id = 1"),
            lambda: tables.append("shop.t", frame),
            lambda: tables.delete("shop.t", "true"),
            lambda: transaction.read("shop.t"),
            lambda: transaction.append("shop.t", frame),
        ):
            with pytest.raises(InvalidInput, match="session was stopped: build another"):
                use()
    tables.alter("shop.t", add="n INT")  # needs no Spark
    tables.drop("shop.t")


def test_rows_of_a_session_that_was_stopped_are_refused() -> None:
    stopped: Any = SimpleNamespace(_sc=SimpleNamespace(_jsc=None))
    with pytest.raises(InvalidInput, match="session was stopped: build another"):
        check_writing(stopped, ())


def test_a_session_that_prunes_the_fields_of_structs_is_refused_for_tables_with_structs(
    tables: Tables,
) -> None:
    tables.create("shop.t", "id BIGINT, l ARRAY<STRUCT<x: INT>>")
    tables.create("shop.flat", "id BIGINT, l ARRAY<INT>")
    tables.spark.conf.set(PRUNE_FIELDS, "true")
    try:
        assert tables.read("shop.flat").count() == 0
        for use in (
            lambda: tables.read("shop.t"),
            lambda: tables.delete("shop.t", "l[0].x = 1"),
        ):
            with pytest.raises(UnsupportedOperation, match=f"{PRUNE_FIELDS} to false, or .*conf"):
                use()
    finally:
        tables.spark.conf.set(PRUNE_FIELDS, SETTINGS[PRUNE_FIELDS])


def test_a_session_that_does_not_write_field_ids_is_refused(tables: Tables) -> None:
    tables.create("shop.t", "id BIGINT")
    with (
        changed(tables.spark, WRITE_IDS),
        pytest.raises(UnsupportedOperation, match=WRITE_IDS),
    ):
        tables.append("shop.t", numbers(tables, 1))
    assert files(folder(tables, "shop.t")) == []


def test_a_file_without_field_ids_is_not_appended(
    tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transaction, "check_writing", lambda *_: None)
    tables.create("shop.t", "id BIGINT")
    with (
        changed(tables.spark, WRITE_IDS),
        pytest.raises(StrandlineError, match="nothing was appended"),
    ):
        tables.append("shop.t", numbers(tables, 1))
    assert files(folder(tables, "shop.t")) == []


@pytest.mark.parametrize("column", ["DATE", "TIMESTAMP", "MAP<STRING, STRUCT<d: DATE>>"])
def test_a_session_that_writes_the_julian_calendar_is_refused_for_dates_and_times(
    tables: Tables, column: str
) -> None:
    tables.create("shop.t", f"id BIGINT, x {column}")
    tables.create("shop.local", "id BIGINT, x TIMESTAMP_NTZ")
    with changed(tables.spark, WRITTEN_CALENDAR, "legacy"):
        with pytest.raises(UnsupportedOperation, match=f"{WRITTEN_CALENDAR} to CORRECTED$"):
            tables.append("shop.t", numbers(tables, 1))
        assert files(folder(tables, "shop.t")) == []
        tables.append("shop.local", numbers(tables, 1))


def test_a_session_that_writes_int96_in_the_julian_calendar_is_refused(tables: Tables) -> None:
    tables.create("shop.t", "id BIGINT, ts TIMESTAMP")
    with changed(tables.spark, INT96_CALENDAR, "LEGACY"):
        tables.append("shop.t", numbers(tables, 1))
        with (
            changed(tables.spark, TIMESTAMPS_AS, "INT96"),
            pytest.raises(UnsupportedOperation, match=f"{INT96_CALENDAR} to CORRECTED$"),
        ):
            tables.append("shop.t", numbers(tables, 2))


def test_a_session_that_cuts_timestamps_to_milliseconds_is_refused(tables: Tables) -> None:
    tables.create("shop.t", "id BIGINT, ts TIMESTAMP", partitioned_by=["bucket(7, ts)"])
    tables.create("shop.days", "id BIGINT, d DATE")
    with changed(tables.spark, TIMESTAMPS_AS, "TIMESTAMP_MILLIS"):
        with pytest.raises(UnsupportedOperation, match=f"{TIMESTAMPS_AS} to TIMESTAMP_MICROS$"):
            tables.append("shop.t", numbers(tables, 1))
        tables.append("shop.days", numbers(tables, 1))


@pytest.mark.slow
def test_a_condition_finds_the_rows_that_an_older_release_wrote_in_the_julian_calendar(
    tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their statistics and partition values are those of other days."""
    monkeypatch.setattr(transaction, "check_writing", lambda *_: None)
    parted = ["bucket(7, d)", "month(ts)"]
    tables.create("shop.t", "id BIGINT, d DATE, ts TIMESTAMP", partitioned_by=parted)
    days = ("1500-02-28", "1899-12-31", "2020-01-01")
    values = ", ".join(f"({n}, DATE '{d}', TIMESTAMP '{d}')" for n, d in enumerate(days))
    with changed(tables.spark, WRITTEN_CALENDAR, "LEGACY"):
        tables.append("shop.t", tables.spark.sql(f"SELECT * FROM VALUES {values} AS v(id, d, ts)"))
    assert ids(tables.read("shop.t", where="d = DATE '1500-02-28'")) == [0]
    assert ids(tables.read("shop.t", where="ts <= TIMESTAMP '1899-12-31'")) == [0, 1]
    assert tables.delete("shop.t", "d = DATE '1500-02-28'") == Counts(rows=1, files=1)


def test_dates_that_an_older_release_wrote_are_found_after_they_became_timestamps(
    tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transaction, "check_writing", lambda *_: None)
    tables.create("shop.t", "id BIGINT, d DATE")
    with changed(tables.spark, WRITTEN_CALENDAR, "LEGACY"):
        tables.append("shop.t", tables.spark.sql("SELECT 1L AS id, DATE '1500-02-28' AS d"))
    change = AlterColumn(schema="shop", table="t", column="d", type=TIMESTAMP_NTZ)
    tables.session.execute(change)
    assert ids(tables.read("shop.t", where="d = TIMESTAMP_NTZ '1500-02-28 00:00:00'")) == [1]


def test_the_settings_of_the_session_that_made_the_rows_count(tables: Tables) -> None:
    tables.create("shop.t", "id BIGINT, d DATE")
    other = tables.spark.newSession()
    other.conf.set(WRITTEN_CALENDAR, "LEGACY")
    rows = other.sql("SELECT 1L AS id, DATE '1500-01-01' AS d")
    with pytest.raises(UnsupportedOperation, match=WRITTEN_CALENDAR):
        tables.append("shop.t", rows)
    other.conf.set(WRITTEN_CALENDAR, "CORRECTED")
    with changed(tables.spark, WRITTEN_CALENDAR, "LEGACY"):
        tables.append("shop.t", rows)
    assert tables.read("shop.t", where="d = DATE '1500-01-01'").count() == 1


def test_rows_of_a_session_that_was_not_configured_are_appended(tables: Tables) -> None:
    """As those that an unmodified session has read; Spark writes the ids of columns by default."""
    tables.create("shop.t", "id BIGINT")
    other = tables.spark.newSession()
    for setting in SETTINGS:
        other.conf.unset(setting)
    tables.append("shop.t", other.range(3).toDF("id"))
    other.conf.set(WRITE_IDS, "False")
    with pytest.raises(UnsupportedOperation, match=f"set {WRITE_IDS} to true"):
        tables.append("shop.t", other.range(3).toDF("id"))
    other.conf.set(WRITE_IDS, "True")
    tables.append("shop.t", other.range(3, 5).toDF("id"))
    assert ids(tables.read("shop.t")) == [0, 1, 2, 3, 4]


@pytest.mark.slow
def test_a_session_that_reads_parquet_through_the_second_api_gets_the_same_rows(
    tables: Tables,
) -> None:
    tables.create("shop.t", "id BIGINT, k INT, z INT")
    rows = tables.spark.sql("SELECT id, CAST(id AS INT) k, CAST(id + 100 AS INT) z FROM range(10)")
    tables.append("shop.t", rows.coalesce(1))
    tables.alter("shop.t", drop=["k"], add="new INT")
    with (
        changed(tables.spark, "spark.sql.sources.useV1SourceList", ""),
        changed(tables.spark, "spark.sql.parquet.aggregatePushdown", "true"),
    ):
        totals = tables.read("shop.t").selectExpr("min(z)", "max(z)", "count(new)", "count(1)")
        assert totals.first() == (100, 109, 0, 10)
        assert tables.delete("shop.t", "z = 105").rows == 1
        assert tables.append("shop.t", numbers(tables, 10)).rows == 1
        assert ids(tables.read("shop.t")) == [0, 1, 2, 3, 4, 6, 7, 8, 9, 10]


def test_a_missing_file_raises_an_error_even_if_the_session_ignores_missing_files(
    tables: Tables,
) -> None:
    tables.create("shop.t", "id BIGINT")
    tables.append("shop.t", numbers(tables, 1, 2).coalesce(1))
    frame = tables.read("shop.t")
    path = folder(tables, "shop.t")
    (only,) = files(path)
    (path / only).unlink()
    tables.spark.conf.set("spark.sql.files.ignoreMissingFiles", "true")
    try:
        with pytest.raises(Exception, match="FILE_NOT_EXIST"):
            frame.count()
    finally:
        tables.spark.conf.unset("spark.sql.files.ignoreMissingFiles")
