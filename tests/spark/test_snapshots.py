"""A point in history always gives the same rows and columns."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from strandline.catalog.commands import (
    AddColumns,
    ColumnDefinition,
    CreateSchema,
    DropTable,
    RenameColumn,
    RenameTable,
)
from strandline.clock import Timestamp, milliseconds, timestamp
from strandline.config import Settings
from strandline.errors import HoldExpired, InvalidInput, ObjectNotFound, VersionNotFound
from strandline.model.types import STRING
from strandline.node import Node
from strandline.spark import Tables
from strandline.spark.tables import as_of
from tests.conftest import ManualWall
from tests.spark.data import ids, numbers, rows


@pytest.mark.spark
def test_a_held_snapshot_does_not_change_with_later_dml_and_ddl(tables: Tables) -> None:
    execute = tables.session.execute
    tables.create("shop.t", "id BIGINT")
    tables.append("shop.t", numbers(tables, 1, 2, 3))
    tables.delete("shop.t", "id = 2")
    with tables.snapshot("shop.t", hold_ms=60_000) as kept:
        made_before = tables.read("shop.t", snapshot=kept)
        tables.append("shop.t", numbers(tables, 4))
        tables.delete("shop.t", "id = 1")
        execute(RenameColumn(schema="shop", table="t", column="id", new_name="key"))
        added = (ColumnDefinition("note", STRING),)
        execute(AddColumns(schema="shop", table="t", columns=added))
        execute(RenameTable(schema="shop", table="t", new_name="u"))

        frame = tables.read("shop.t", snapshot=kept)
        assert frame.columns == ["id"]
        assert ids(frame) == [1, 3]
        assert ids(tables.read("shop.t", snapshot=kept.snapshot)) == [1, 3]
    now = tables.read("shop.u")
    assert now.columns == ["key", "note"]
    assert rows(now) == {(3, None): 1, (4, None): 1}
    # A DataFrame keeps the paths that it was made with, so the table moves back to its place.
    execute(RenameTable(schema="shop", table="u", new_name="t"))
    assert ids(made_before) == [1, 3]


@pytest.mark.spark
def test_reads_as_of_a_version_or_a_time_return_the_rows_and_columns_of_that_point(
    tables: Tables,
) -> None:
    tables.create("shop.t", "id BIGINT")
    tables.append("shop.t", numbers(tables, 1, 2))
    with tables.snapshot("shop.t") as snapshot:
        first = snapshot.time
    tables.delete("shop.t", "id = 1")
    tables.append("shop.t", numbers(tables, 3))
    version = tables.session.table("shop.t").catalog_version
    added = AddColumns(schema="shop", table="t", columns=(ColumnDefinition("note", STRING),))
    changed = tables.session.execute(added)
    tables.append("shop.t", numbers(tables, 4))

    assert ids(tables.read("shop.t", time=first)) == [1, 2]
    before = Timestamp(changed.time - 1)
    for frame in (tables.read("shop.t", version=version), tables.read("shop.t", time=before)):
        assert frame.columns == ["id"]
        assert ids(frame) == [2, 3]
    frame = tables.read("shop.t", time=changed.time)
    assert frame.columns == ["id", "note"]
    assert ids(frame) == [2, 3]
    assert ids(tables.read("shop.t", version=changed.version)) == [2, 3, 4]
    assert ids(tables.read("shop.t")) == [2, 3, 4]
    with pytest.raises(ObjectNotFound):
        tables.read("shop.t", version=1)
    with pytest.raises(VersionNotFound):
        tables.read("shop.t", version=changed.version + 1000)
    with pytest.raises(VersionNotFound, match="future"):
        tables.read("shop.t", time="2999-01-01T00:00:00Z")


@pytest.mark.spark
def test_a_dropped_table_is_readable_through_an_earlier_snapshot(tables: Tables) -> None:
    tables.create("shop.t", "id BIGINT")
    tables.append("shop.t", numbers(tables, 1))
    with tables.snapshot("shop.t") as snapshot:
        tables.session.execute(DropTable(schema="shop", table="t"))
        tables.create("shop.t", "other STRING")
        assert ids(tables.read("shop.t", snapshot=snapshot)) == [1]
        assert tables.read("shop.t").columns == ["other"]


def test_a_snapshot_covers_only_the_tables_that_it_names(
    spark: SparkSession, tables: Tables
) -> None:
    for name in ("shop.a", "shop.b", "shop.c"):
        tables.create(name, "id BIGINT")
    with tables.snapshot("shop.A", "shop.`b`") as snapshot:
        assert snapshot.names == ("shop.a", "shop.b")
        assert snapshot.write_ids("SHOP.b").hwm == 0
        assert snapshot.table("shop.a").catalog_version == snapshot.catalog_version
        with pytest.raises(InvalidInput, match=r"contains shop\.a, shop\.b, not shop\.c"):
            tables.read("shop.c", snapshot=snapshot)
        with pytest.raises(InvalidInput, match=r"not shop\.c; name the table"):
            tables.read("shop.c", snapshot=snapshot.snapshot)
    with pytest.raises(ObjectNotFound, match=r"shop\.missing"):
        tables.snapshot("shop.a", "shop.missing")


EASTERN_EUROPE = timezone(timedelta(hours=2))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("2013-01-01T05:00:00Z", timestamp(1_357_016_400_000, 0xFFFF)),
        (datetime(2013, 1, 1, 5, tzinfo=UTC), timestamp(1_357_016_400_000, 0xFFFF)),
        (datetime(2013, 1, 1, 7, tzinfo=EASTERN_EUROPE), timestamp(1_357_016_400_000, 0xFFFF)),
        (datetime(2013, 1, 1, 5), timestamp(1_357_016_400_000, 0xFFFF)),
        (timestamp(1_000, 7), timestamp(1_000, 7)),
    ],
)
def test_a_time_is_a_text_a_datetime_or_a_timestamp(
    given: str | datetime | Timestamp, expected: Timestamp
) -> None:
    assert as_of(version=None, time=given).time == expected


def test_two_points_in_history_or_an_invalid_time_are_refused(tables: Tables) -> None:
    with pytest.raises(InvalidInput, match="not both"):
        tables.snapshot("shop.t", version=1, time="2013-01-01")
    with pytest.raises(InvalidInput, match="name one of"):
        tables.read("shop.t", version=1, time="2013-01-01")
    with pytest.raises(InvalidInput, match="is not a time"):
        tables.read("shop.t", time="yesterday")


@pytest.mark.parametrize("given", [date(2013, 1, 1), 1_357_016_400.5])
def test_a_date_or_a_number_of_seconds_is_not_a_time(given: Any) -> None:
    with pytest.raises(InvalidInput, match=r"a time is a text like .*, a datetime or a Timestamp"):
        as_of(version=None, time=given)


@pytest.fixture
def own(tmp_path: Path, wall: ManualWall) -> Iterator[Node]:
    """A store with a manual clock and a history retention of one second."""
    settings = Settings(history_retention_ms=1_000)
    with Node.open(tmp_path / "own", settings=settings, wall=wall) as opened:
        yield opened


def test_a_hold_is_renewed_by_reads_and_reads_fail_after_it_expired(
    spark: SparkSession, own: Node, wall: ManualWall
) -> None:
    session = own.session(user="ann")
    session.execute(CreateSchema(name="shop"))
    tables = Tables(spark, session)
    tables.create("shop.t", "id BIGINT")
    snapshot = tables.snapshot("shop.t", hold_ms=10_000)
    assert snapshot.hold is not None
    assert snapshot.hold.at == snapshot.time
    for _ in range(3):
        wall.now += 8_000
        assert tables.read("shop.t", snapshot=snapshot).columns == ["id"]
    assert milliseconds(snapshot.hold.expires) >= wall.now + 10_000
    wall.now += 10_001
    with pytest.raises(HoldExpired):
        tables.read("shop.t", snapshot=snapshot)
    snapshot.close()
    snapshot.close()


def test_a_snapshot_of_the_present_is_held_also_in_a_store_that_keeps_no_history(
    spark: SparkSession, tmp_path: Path
) -> None:
    with Node.open(tmp_path / "own", settings=Settings(history_retention_ms=0)) as node:
        session = node.session(user="ann")
        session.execute(CreateSchema(name="shop"))
        tables = Tables(spark, session)
        tables.create("shop.t", "id BIGINT")
        with tables.snapshot("shop.t", hold_ms=60_000) as kept:
            assert kept.hold is not None
            assert kept.hold.at == kept.time
            tables.alter("shop.t", add="note STRING")
            node.cleaner.clean()
            assert tables.read("shop.t", snapshot=kept).columns == ["id"]
        with pytest.raises(VersionNotFound, match="cannot be held"):
            tables.snapshot("shop.t", time=kept.time, hold_ms=60_000)
        with pytest.raises(ObjectNotFound):
            tables.snapshot("shop.u", hold_ms=60_000)
        assert session.holders().holds == 0


def test_a_snapshot_whose_files_another_process_cleaned_is_too_old_and_not_damaged(
    spark: SparkSession, tmp_path: Path
) -> None:
    settings = Settings(history_retention_ms=0, snapshot_hold_ms=0)
    with (
        Node.open(tmp_path / "own", settings=settings) as node,
        Node.open(tmp_path / "own", settings=settings) as other,
    ):
        session = node.session(user="ann")
        session.execute(CreateSchema(name="shop"))
        tables = Tables(spark, session)
        tables.create("shop.t", "id BIGINT")
        tables.append("shop.t", numbers(tables, 1))
        snapshot = tables.snapshot("shop.t")
        tables.delete("shop.t", "true")
        assert ids(tables.read("shop.t", snapshot=snapshot)) == [1]  # memory has the files now
        other.cleaner.clean()
        with pytest.raises(VersionNotFound, match="have been cleaned"):
            tables.read("shop.t", snapshot=snapshot)


def test_a_closed_snapshot_has_released_its_hold_and_is_read_without(
    spark: SparkSession, own: Node
) -> None:
    session = own.session(user="ann")
    session.execute(CreateSchema(name="shop"))
    tables = Tables(spark, session)
    tables.create("shop.t", "id BIGINT")
    with tables.snapshot("shop.t", hold_ms=10_000) as kept:
        assert kept.hold is not None
        hold_id = kept.hold.hold_id
        session.renew_hold(hold_id)
    with pytest.raises(HoldExpired):
        session.renew_hold(hold_id)
    assert tables.read("shop.t", snapshot=kept).columns == ["id"]
