"""What a scan shows: live rows only, and columns by their ids."""

from __future__ import annotations

from dataclasses import replace

import pytest

from strandline.catalog.commands import (
    AddColumns,
    AlterColumn,
    ColumnDefinition,
    DropColumns,
    RenameColumn,
)
from strandline.errors import CorruptData, Unavailable
from strandline.model.types import BIGINT, STRING, StructField, StructType
from strandline.spark import Tables
from tests.spark.data import files, folder, ids, numbers, rows

pytestmark = pytest.mark.spark


def plan(tables: Tables, name: str) -> str:
    return str(tables.read(name)._jdf.queryExecution().optimizedPlan().toString())


def test_rows_are_taken_out_with_a_join_of_the_files_that_have_some(tables: Tables) -> None:
    tables.create("shop.t", "id BIGINT")
    for first in (0, 10, 20):
        tables.append("shop.t", numbers(tables, *range(first, first + 10)).coalesce(1))
    assert "Join" not in plan(tables, "shop.t")

    tables.delete("shop.t", "id IN (3, 7)")
    assert "Union" in plan(tables, "shop.t")
    expected = set(range(30)) - {3, 7}
    assert ids(tables.read("shop.t")) == sorted(expected)

    tables.delete("shop.t", "id IN (12, 25)")
    assert "LeftAnti" in plan(tables, "shop.t")
    assert "Union" not in plan(tables, "shop.t")
    assert ids(tables.read("shop.t")) == sorted(expected - {12, 25})

    tables.delete("shop.t", "id < 10")
    assert ids(tables.read("shop.t")) == sorted(expected - {12, 25} - set(range(10)))


def test_a_table_without_rows_has_its_columns(tables: Tables) -> None:
    tables.create("shop.t", "id BIGINT COMMENT 'key', s STRUCT<x: INT>")
    empty = tables.read("shop.t").schema
    tables.append("shop.t", numbers(tables, 1))
    assert tables.read("shop.t").schema == empty
    assert empty["id"].metadata == {"comment": "key"}
    tables.delete("shop.t", "true")
    assert tables.read("shop.t").schema == empty
    assert tables.read("shop.t").count() == 0


def test_columns_follow_their_ids_through_all_changes(tables: Tables) -> None:
    spark, execute = tables.spark, tables.session.execute
    note = ColumnDefinition("note", STRING)
    tables.create("shop.t", "id BIGINT, v INT, note STRING, s STRUCT<x: INT>")
    tables.append("shop.t", spark.sql("SELECT 1L id, 10 v, 'old' note, struct(5 AS x) s"))
    created = tables.session.table("shop.t")
    (nested,) = created.descriptor.columns[3].type.fields  # type: ignore[union-attr]  # a struct

    execute(RenameColumn(schema="shop", table="t", column="v", new_name="price"))
    execute(DropColumns(schema="shop", table="t", names=("note",)))
    execute(AddColumns(schema="shop", table="t", columns=(note,)))
    # The old name of another column, and of a field, with another type.
    execute(AddColumns(schema="shop", table="t", columns=(ColumnDefinition("v", STRING),)))
    execute(AlterColumn(schema="shop", table="t", column="price", type=BIGINT))
    point = StructType((replace(nested, name="y", type=BIGINT), StructField("x", STRING)))
    execute(AlterColumn(schema="shop", table="t", column="s", type=point))
    second = "SELECT 2L id, 20L price, 'new' note, 'w' v, struct(6L AS y, 'z' AS x) s"
    tables.append("shop.t", spark.sql(second))

    found = tables.read("shop.t")
    assert found.columns == ["id", "price", "s", "note", "v"]
    old, new = sorted(map(tuple, found.collect()))
    assert old == (1, 10, (5, None), None, None)
    assert new == (2, 20, (6, "z"), "new", "w")
    assert found.filter("price > 10 AND s.y > 5 AND v = 'w'").count() == 1
    then = tables.read("shop.t", version=created.catalog_version)
    assert rows(then) == {(1, 10, "old", (("x", 5),)): 1}


def test_a_table_of_new_columns_only_still_has_its_rows(tables: Tables) -> None:
    tables.create("shop.t", "id BIGINT")
    tables.append("shop.t", numbers(tables, 1, 2, 3))
    tables.session.execute(
        AddColumns(schema="shop", table="t", columns=(ColumnDefinition("a", STRING),))
    )
    tables.session.execute(DropColumns(schema="shop", table="t", names=("id",)))
    assert rows(tables.read("shop.t")) == {(None,): 3}
    assert tables.delete("shop.t", "a = 'x'").rows == 0
    assert tables.delete("shop.t", "a IS NULL").rows == 3


def test_missing_files_are_errors_and_not_missing_rows(tables: Tables) -> None:
    tables.create("shop.t", "id BIGINT")
    tables.append("shop.t", numbers(tables, 1, 2).coalesce(1))
    tables.delete("shop.t", "id = 1")
    path = folder(tables, "shop.t")
    deletes, data = files(path)
    (path / deletes).rename(path / "aside")
    with pytest.raises(CorruptData, match="_deletes/"):
        tables.read("shop.t")
    (path / "aside").rename(path / deletes)
    (path / data).unlink()
    with pytest.raises(Unavailable, match=r"shop\.t"):
        tables.read("shop.t")
