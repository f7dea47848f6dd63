"""Scans: they return only live rows and read columns by id."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial, reduce
from itertools import permutations
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from strandline.catalog.commands import (
    AddColumns,
    AlterColumn,
    ColumnDefinition,
    DropColumns,
    RenameColumn,
)
from strandline.errors import CorruptData, InvalidInput, Unavailable
from strandline.metastore.interface import ColumnBounds, TableFiles
from strandline.model.types import BIGINT, STRING, StructField, StructType
from strandline.spark import Counts, Tables, scans
from strandline.spark.folder import spark_path
from strandline.spark.scans import bounds_of
from tests.catalog.test_type_changes_page import allowed
from tests.metastore.hive import dml
from tests.spark.data import calls_of_the_jvm, changed, files, folder, frame, ids, numbers, rows

pytestmark = pytest.mark.spark


def plan(tables: Tables, name: str) -> str:
    return str(tables.read(name)._jdf.queryExecution().optimizedPlan().toString())


@pytest.mark.slow
def test_deleted_rows_are_removed_by_a_join_that_files_without_deletes_can_skip(
    tables: Tables,
) -> None:
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


def test_a_read_of_many_files_takes_as_many_calls_of_the_jvm_as_that_of_a_few(
    tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each call takes a tenth of a millisecond, and a list took one for each of its elements."""
    tables.create("shop.t", "id BIGINT")
    counts = []
    for number in (1, 6):
        tables.append("shop.t", numbers(tables, *range(60)).repartition(number))
        with calls_of_the_jvm(monkeypatch) as calls:
            read = tables.read("shop.t")
        counts.append(len(calls))
    assert len(read.inputFiles()) == 7
    assert counts[0] == counts[1]


def test_a_column_takes_few_calls_of_the_jvm_in_an_append_a_read_and_a_delete(
    tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table may have a thousand columns, and `Column` makes thirty calls for each."""
    counts: list[list[int]] = []
    for width in (1, 41):
        columns = [f"c{number}" for number in range(width)]
        name = f"shop.t{width}"
        tables.create(name, ", ".join(f"{column} BIGINT" for column in columns))
        wide = frame(tables, **{column: pa.array([1], pa.int64()) for column in columns})
        counts.append([])
        for step in (
            partial(tables.append, name, wide),
            partial(tables.read, name, where="c0 = 1"),
            partial(tables.delete, name, "c0 = 1"),
        ):
            with calls_of_the_jvm(monkeypatch) as calls:
                step()
            counts[-1].append(len(calls))
    narrow, wide_counts = counts
    of_40_columns = [more - fewer for fewer, more in zip(narrow, wide_counts, strict=True)]
    assert max(of_40_columns) <= 5 * 40, of_40_columns


@pytest.mark.slow
def test_columns_may_have_the_names_that_delete_files_use(tables: Tables) -> None:
    tables.create("shop.t", "id BIGINT, bitmap INT, bitmap_file INT, file_id INT, position INT")
    tables.append("shop.t", numbers(tables, 1, 2, 3).coalesce(1))
    tables.delete("shop.t", "id = 2 AND bitmap IS NULL")
    assert ids(tables.read("shop.t", where="bitmap_file IS NULL")) == [1, 3]


@pytest.mark.slow
def test_a_table_without_rows_has_its_columns(tables: Tables) -> None:
    tables.create("shop.t", "id BIGINT COMMENT 'key', s STRUCT<x: INT>")
    empty = tables.read("shop.t").schema
    tables.append("shop.t", numbers(tables, 1))
    assert tables.read("shop.t").schema == empty
    assert empty["id"].metadata == {"comment": "key"}
    tables.delete("shop.t", "true")
    assert tables.read("shop.t").schema == empty
    assert tables.read("shop.t").count() == 0


@pytest.mark.slow
@pytest.mark.parametrize("deleted", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_nested_field_read_alone_has_the_same_value_as_in_its_struct(
    tables: Tables, *, deleted: bool
) -> None:
    nested = "STRUCT<a: INT, b: STRING, c: STRUCT<d: INT, e: INT>>"
    tables.create("shop.t", f"id BIGINT, s {nested}, l ARRAY<{nested}>, m MAP<STRING, {nested}>")
    value = "named_struct('a', 7, 'b', 'x', 'c', named_struct('d', 8, 'e', 9))"
    row = f"{value} s, array({value}) l, map('k', {value}) m"
    tables.append("shop.t", tables.spark.sql(f"SELECT id, {row} FROM range(3)").coalesce(1))
    if deleted:
        tables.delete("shop.t", "id = 1 AND s.c.e = 9")
    left = 2 if deleted else 3
    for place in ("s", "l[0]", "m['k']"):
        read = tables.read("shop.t").selectExpr(f"{place}.a", f"{place}.c.d", "l.b")
        assert [tuple(row) for row in read.collect()] == [(7, 8, ["x"])] * left
        assert tables.read("shop.t", where=f"{place}.c.d = 8").count() == left
        assert tables.read("shop.t").filter(f"{place}.b IS NULL").count() == 0
        assert tables.delete("shop.t", f"{place}.a IS NULL").rows == 0
    with tables.transaction() as transaction:
        assert transaction.read("shop.t").selectExpr("sum(s.c.e)").first() == (9 * left,)


def test_columns_are_read_by_id_after_renames_drops_and_type_changes(tables: Tables) -> None:
    spark, execute = tables.spark, tables.session.execute
    note = ColumnDefinition("note", STRING)
    tables.create("shop.t", "id BIGINT, v INT, note STRING, s STRUCT<x: INT>")
    tables.append("shop.t", spark.sql("SELECT 1L id, 10 v, 'old' note, struct(5 AS x) s"))
    created = tables.session.table("shop.t")
    (nested,) = created.descriptor.columns[3].type.fields  # type: ignore[union-attr]  # a struct

    execute(RenameColumn(schema="shop", table="t", column="v", new_name="price"))
    execute(DropColumns(schema="shop", table="t", names=("note",)))
    execute(AddColumns(schema="shop", table="t", columns=(note,)))
    # Names that another column and another field had before, now with another type.
    execute(AddColumns(schema="shop", table="t", columns=(ColumnDefinition("v", STRING),)))
    execute(AlterColumn(schema="shop", table="t", column="price", type=BIGINT))
    point = StructType((replace(nested, name="y", type=BIGINT), StructField("x", STRING)))
    execute(AlterColumn(schema="shop", table="t", column="s", type=point))
    second = "SELECT 2L id, 20L price, 'new' note, 'w' v, struct(6L AS y, 'z' AS x) s"
    tables.append("shop.t", spark.sql(second))

    frame = tables.read("shop.t")
    assert frame.columns == ["id", "price", "s", "note", "v"]
    old, new = sorted(map(tuple, frame.collect()))
    assert old == (1, 10, (5, None), None, None)
    assert new == (2, 20, (6, "z"), "new", "w")
    assert frame.filter("price > 10 AND s.y > 5 AND v = 'w'").count() == 1
    past = tables.read("shop.t", version=created.catalog_version)
    assert rows(past) == {(1, 10, "old", (("x", 5),)): 1}


# A lowest and a highest value of each type, in SQL.
ENDS = {
    "tinyint": ("-128", "127"),
    "smallint": ("-32768", "32767"),
    "int": ("-2147483648", "2147483647"),
    "bigint": ("-9223372036854775808", "9223372036854775807"),
    "float": ("-3.4028235e38", "double('Infinity')"),
    "double": ("-1.7976931348623157e308", "double('Infinity')"),
    "decimal(5,2)": ("-999.99", "999.99"),
    "decimal(10,0)": ("-9999999999", "9999999999"),
    "decimal(18,4)": ("-99999999999999.9999", "99999999999999.9999"),
    "decimal(20,0)": ("-99999999999999999999", "99999999999999999999"),
    "decimal(38,10)": ("-9999999999999999999999999999.0", "9999999999999999999999999999.0"),
    "date": ("date'0001-01-01'", "date'9999-12-31'"),
    "timestamp_ntz": ("timestamp_ntz'1969-12-31 23:59:59.9'", "timestamp_ntz'2026-01-01'"),
}
WIDENED = [pair for pair in permutations(ENDS, 2) if allowed(*pair)]


@pytest.fixture
def interpreted(spark: SparkSession) -> Iterator[None]:
    """Spark compiles no code, which takes longer than to run it once over a few rows."""
    with (
        changed(spark, "spark.sql.codegen.wholeStage"),
        changed(spark, "spark.sql.codegen.factoryMode", "NO_CODEGEN"),
    ):
        yield


@pytest.mark.slow
@pytest.mark.usefixtures("interpreted")
def test_spark_reads_each_value_as_each_type_that_its_column_may_get(tables: Tables) -> None:
    pairs = {f"c{number}": pair for number, pair in enumerate(WIDENED)}
    old = ", ".join(f"{name} {before}" for name, (before, _) in pairs.items())
    kept = ", ".join(f"kept_{name} {before}" for name, (before, _) in pairs.items())
    tables.create("shop.t", f"{old}, {kept}, s STRUCT<{old}>")
    lowest, highest = (
        {name: f"CAST({ENDS[before][end]} AS {before})" for name, (before, _) in pairs.items()}
        for end in (0, 1)
    )
    selects = []
    for row in (lowest, highest):
        columns = ", ".join(f"{v} AS {name}, {v} AS kept_{name}" for name, v in row.items())
        fields = ", ".join(f"{v} AS {name}" for name, v in row.items())
        selects.append(f"SELECT {columns}, struct({fields}) AS s")
    tables.append("shop.t", tables.spark.sql(" UNION ALL ".join(selects)).coalesce(1))
    wider = {name: after for name, (_, after) in pairs.items()}
    struct = ", ".join(f"{name} {after}" for name, after in wider.items())
    tables.alter("shop.t", types={**wider, "s": f"STRUCT<{struct}>"})

    equal = [
        f"{place}{name} <=> CAST(kept_{name} AS {after})"
        for name, after in wider.items()
        for place in ("", "s.")
    ]
    for vectorized, row in (("true", lowest), ("false", highest)):
        with changed(tables.spark, "spark.sql.parquet.enableVectorizedReader", vectorized):
            answer = tables.read("shop.t").selectExpr(*equal).collect()
            assert len(answer) == 2
            assert [text for text, *same in zip(equal, *answer, strict=True) if not all(same)] == []
            where = " AND ".join(f"{name} = {value}" for name, value in row.items())
            assert tables.read("shop.t", where=where).count() == 1


def rows_scanned(frame: DataFrame) -> int:
    frame.collect()
    scan = frame._jdf.queryExecution().executedPlan().collectLeaves().apply(0)
    return int(scan.metrics().apply("numOutputRows").value())


def test_a_scan_skips_parts_of_a_file_in_which_its_condition_is_false(tables: Tables) -> None:
    tables.create("shop.t", "id BIGINT, s STRUCT<x: BIGINT>, note STRING")
    many = tables.spark.range(0, 100_000, 1, 1).selectExpr("id", "struct(id AS x) AS s")
    tables.append("shop.t", many)
    tables.alter("shop.t", drop=["note"], add="note INT")  # only this name has meant two columns
    for condition in ("id = 5", "s.x = 5"):  # a page has at most 20,000 rows
        assert rows_scanned(tables.read("shop.t", where=condition)) <= 20_000


def test_a_condition_finds_rows_of_files_with_decimals_of_fewer_digits(tables: Tables) -> None:
    tables.create("shop.t", "d DECIMAL(9, 2), e DECIMAL(20, 2), s STRUCT<d: DECIMAL(9, 2)>")
    written = "SELECT 1000.00 AS d, 1000.00 AS e, struct(CAST(1000 AS DECIMAL(9, 2)) AS d) AS s"
    tables.append("shop.t", tables.spark.sql(written))
    struct = "STRUCT<d: DECIMAL(20, 2)>"
    tables.alter("shop.t", types={"d": "DECIMAL(20, 2)", "e": "DECIMAL(38, 2)", "s": struct})
    # In the 4 bytes of a decimal in the file, the first constant is 0.05.
    below = f"d < 42949673.01 AND s.d < 42949673.01 AND e < 1{'0' * 30}"
    assert tables.read("shop.t", where=below).count() == 1
    assert tables.delete("shop.t", below).rows == 1


def test_a_condition_on_zero_finds_negative_zeros(tables: Tables) -> None:
    tables.create("shop.t", "d DOUBLE, f FLOAT")
    zeros = ", ".join(["(DOUBLE('-0.0'), FLOAT('-0.0'))"] * 9)  # so many share a dictionary
    tables.append("shop.t", tables.spark.sql(f"VALUES {zeros} AS t(d, f)").coalesce(1))
    for condition in ("d = 0D", "d >= 0D", "f IN (0F, 7F)"):
        assert tables.read("shop.t", where=condition).count() == 9


def test_a_condition_on_zero_finds_a_negative_zero_in_files_with_bloom_filters(
    tables: Tables,
) -> None:
    tables.create("shop.t", "d DOUBLE")
    tables.spark.conf.set("parquet.bloom.filter.enabled", "true")
    try:
        tables.append("shop.t", tables.spark.sql("SELECT DOUBLE('-0.0') AS d"))
    finally:
        tables.spark.conf.unset("parquet.bloom.filter.enabled")
    assert tables.read("shop.t", where="d = 0D").count() == 1


def test_a_condition_finds_numbers_in_a_later_row_group_with_nan(tables: Tables) -> None:
    tables.create("shop.t", "d DOUBLE")
    row_groups = {"parquet.block.size": "1", "parquet.block.size.row.check.min": "2"}
    for setting, value in row_groups.items():
        tables.spark.conf.set(setting, value)
    try:
        numbers = "VALUES (0D), (1D), (DOUBLE('NaN')), (5D) AS t(d)"
        tables.append("shop.t", tables.spark.sql(f"SELECT * FROM {numbers}").coalesce(1))
    finally:
        for setting in row_groups:
            tables.spark.conf.unset(setting)
    assert tables.read("shop.t", where="d = 5D").count() == 1
    assert tables.read("shop.t", where="d < -1D").inputFiles() == []
    with tables.transaction() as transaction:
        assert transaction.read("shop.t", where="d < -1D").inputFiles() == []
    assert tables.delete("shop.t", "d BETWEEN 4D AND 6D").rows == 1


def test_rows_remain_after_all_their_columns_were_dropped(tables: Tables) -> None:
    tables.create("shop.t", "id BIGINT")
    tables.append("shop.t", numbers(tables, 1, 2, 3))
    tables.session.execute(
        AddColumns(schema="shop", table="t", columns=(ColumnDefinition("a", STRING),))
    )
    tables.session.execute(DropColumns(schema="shop", table="t", names=("id",)))
    assert rows(tables.read("shop.t")) == {(None,): 3}
    assert tables.delete("shop.t", "a = 'x'").rows == 0
    assert tables.delete("shop.t", "a IS NULL").rows == 3


def test_missing_files_raise_errors_instead_of_losing_rows(tables: Tables) -> None:
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
    with pytest.raises(CorruptData, match=rf"{data}.*shop\.t"):
        tables.read("shop.t")
    path.rename(path.with_name("aside"))
    with pytest.raises(Unavailable, match=r"shop\.t"):
        tables.read("shop.t")


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "emptied": lambda written: b"",
    "cut": lambda written: written[:-8],
    "longer": lambda written: written + b"\0",
}


def test_a_data_file_of_the_wrong_size_raises_an_error_that_names_it(tables: Tables) -> None:
    tables.create("shop.t", "id BIGINT")
    tables.append("shop.t", numbers(tables, 1, 2).coalesce(1))
    tables.append("shop.t", numbers(tables, 3).coalesce(1))
    path = folder(tables, "shop.t")
    damaged, _ = files(path)
    written = (path / damaged).read_bytes()
    for how, change in DAMAGE.items():
        (path / damaged).write_bytes(change(written))
        with pytest.raises(CorruptData, match=rf"{damaged} of shop\.t has .* bytes") as caught:
            tables.read("shop.t")
        assert "strandline verify" in caught.value.message, how
    (path / damaged).write_bytes(written)
    assert ids(tables.read("shop.t")) == [1, 2, 3]


def flip(path: Path, position: int) -> None:
    """Flip one bit of a file without changing its size."""
    data = bytearray(path.read_bytes())
    data[position] ^= 4
    path.write_bytes(data)


def test_a_flipped_bit_in_a_page_raises_a_checksum_error_whatever_the_session_writes(
    tables: Tables,
) -> None:
    tables.create("shop.t", "id BIGINT")
    tables.spark.conf.set("parquet.page.write-checksum.enabled", "false")
    try:
        tables.append("shop.t", numbers(tables, *range(1000)).coalesce(1))
    finally:
        tables.spark.conf.unset("parquet.page.write-checksum.enabled")
    path = folder(tables, "shop.t")
    (data,) = files(path)
    column = pq.read_metadata(path / data).row_group(0).column(0)
    start = column.dictionary_page_offset or column.data_page_offset
    flip(path / data, start + column.total_compressed_size - 10)
    with pytest.raises(Exception, match=r"(?s)CRC|checksum"):
        tables.read("shop.t").toArrow()


def test_a_table_folder_read_as_plain_parquet_shows_no_rows(tables: Tables) -> None:
    tables.create("shop.t", "id BIGINT")
    tables.append("shop.t", numbers(tables, 1, 2).coalesce(1))
    tables.delete("shop.t", "id = 1")
    path = str(folder(tables, "shop.t"))
    for options in ({}, {"recursiveFileLookup": "true"}, {"mergeSchema": "true"}):
        reader = tables.spark.read
        assert reader.options(**options).schema("id BIGINT").parquet(path).count() == 0
        with pytest.raises(AnalysisException, match="UNABLE_TO_INFER_SCHEMA"):
            tables.spark.read.options(**options).parquet(path)
    assert ds.dataset(path, format="parquet").count_rows() == 0
    tables.spark.sql(f"CREATE TABLE over_it (id BIGINT) USING parquet LOCATION '{path}'")
    assert tables.spark.table("over_it").count() == 0
    tables.spark.sql("DROP TABLE over_it")


@pytest.mark.slow
def test_data_files_in_the_layout_of_0_2_0_are_read(tables: Tables) -> None:
    tables.create("shop.t", "id BIGINT")
    tables.append("shop.t", numbers(tables, 1, 2, 3).coalesce(1))
    table = tables.session.table("shop.t")
    (written,) = tables.session.files(
        table.descriptor.id, tables.snapshot("shop.t").write_ids("shop.t")
    ).data_files
    path = folder(tables, "shop.t")
    begun, table_id = tables.session.begin(), table.descriptor.id
    file_id = begun.txn_id << 20
    older = replace(written, file_id=file_id, path=f"_file={file_id}/a.parquet")
    (path / older.path).parent.mkdir()
    shutil.move(path / written.path, path / older.path)
    tables.session.stage(begun.txn_id, table_id, add=[older], remove=[written.path])
    tables.session.commit(begun.txn_id)

    assert ids(tables.read("shop.t")) == [1, 2, 3]
    tables.append("shop.t", numbers(tables, 4, 5, 6).coalesce(1))
    assert {name.split("/")[0] for name in files(path)} == {"_files", f"_file={older.file_id}"}
    assert ids(tables.read("shop.t")) == [1, 2, 3, 4, 5, 6]
    assert tables.delete("shop.t", "id IN (2, 5)").rows == 2
    assert ids(tables.read("shop.t")) == [1, 3, 4, 6]
    assert tables.delete("shop.t", "id < 4").rows == 2
    assert ids(tables.read("shop.t")) == [4, 6]


def test_rows_are_deleted_from_files_whose_paths_do_not_have_their_ids(tables: Tables) -> None:
    tables.create("shop.t", "id BIGINT")
    for first, path in ((0, "own/a [x]{,}.parquet"), (3, "own/b.parquet"), (6, None)):
        dml.append(tables.session, "shop.t", *({"id": first + n} for n in range(3)), path=path)
    assert tables.delete("shop.t", "id IN (1, 5, 6)") == Counts(rows=3, files=3)
    assert ids(tables.read("shop.t")) == [0, 2, 3, 4, 7, 8]
    assert tables.delete("shop.t", "id IN (0, 1, 2, 3)") == Counts(rows=3, files=2)
    assert ids(tables.read("shop.t")) == [4, 7, 8]


def test_a_table_that_is_renamed_while_its_scan_is_planned_is_read_at_its_new_place(
    tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables.create("shop.t", "id BIGINT")
    tables.append("shop.t", numbers(tables, 1, 2))

    def renamed_first(*arguments: Any, **options: Any) -> str:
        monkeypatch.undo()
        tables.alter("shop.t", new_name="u")
        return spark_path(*arguments, **options)

    monkeypatch.setattr(scans, "spark_path", renamed_first)  # the files were found before
    assert ids(tables.read("shop.t")) == [1, 2]


def test_a_condition_implies_bounds_of_a_column_whose_name_has_capitals(tables: Tables) -> None:
    table = tables.create("shop.t", "Id BIGINT")
    assert bounds_of(tables.spark, table, "iD = 5") == (ColumnBounds(1, "5", "5"),)


@pytest.fixture
def listed(tables: Tables, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of data files that the store listed for each scan."""
    counts: list[int] = []
    ask = tables.session.files

    def files(*arguments: Any, **options: Any) -> TableFiles:
        answer = ask(*arguments, **options)
        counts.append(len(answer.data_files))
        return answer

    monkeypatch.setattr(tables.session, "files", files)
    return counts


CONDITIONS = {
    "id > 2": 1, "ID > 2": 1, "5 < id": 0, "id = 1": 1, "id BETWEEN 1 AND 2": 1, "id IN (3)": 1,
    "id >= 2 AND d < DATE'2013-01-03'": 1, "id IN (9, 10, -5)": 0, "id IN (9, 10)": 0,
    "s = 'b1'": 1, "s < 'b'": 1, "s IN ('c', 'b0')": 1, "b = false": 1,
    "n > 1.25BD": 1, "n <= CAST(0.5 AS DECIMAL(5, 2))": 1,
    "t > TIMESTAMP'2013-01-01 12:00:00'": 1, "f < 1.0D": 1, "f > 1.5D": 2, "f = 0.5D": 1,
    "z IS NULL": 2, "z = 1": 0, "g <= 0.1F": 1, "g = CAST(0.3 AS FLOAT)": 1, "g IN (0.1F, 0.2F)": 1,
    "g > 0.2F": 2,
    "id > 2 OR id < 0": 2, "id + 1 > 3": 2, "NOT id > 2": 2, "id = NULL": 2, "id IN (3, NULL)": 2,
    "d <= current_date()": 2, "id <> 1": 2, "true": 2, "s LIKE 'a%'": 1,
    "z IS NOT NULL": 0, "s > CAST(X'FF' AS STRING)": 2,
    "s IS NULL": 0, "z <=> NULL": 2, "s <=> 'b1'": 1, "s LIKE '%1'": 2, "startswith(s, 'b')": 1,
    "s NOT LIKE 'a%'": 2, "id NOT IN (1, 2)": 2,
    "d NOT IN (DATE'2013-01-02', NULL)": 2, "t <> TIMESTAMP'2013-01-01 00:00:00Z'": 1,
}  # fmt: skip
"""Conditions, each with how many of the two files a scan reads for it."""


@pytest.mark.slow
def test_a_scan_reads_only_the_files_in_which_its_condition_may_be_true(
    tables: Tables, listed: list[int]
) -> None:
    schema = (
        "id BIGINT, s STRING, n DECIMAL(5, 2), b BOOLEAN, d DATE, t TIMESTAMP, f DOUBLE, z INT,"
        " g FLOAT"
    )
    tables.create("shop.t", schema)
    for first, letter in ((1, "a"), (3, "b")):
        tables.append(
            "shop.t",
            tables.spark.sql(
                f"SELECT id, concat('{letter}', id % 2) s, CAST(id / 2 AS DECIMAL(5, 2)) n,"
                f" id > 2 b, date_add(DATE'2013-01-01', CAST(id AS INT)) d,"
                f" timestamp_seconds(1356998400 + 86400 * ({first} - 1)) t, id / 2D f,"
                f" CAST(NULL AS INT) z, CAST(id / 10 AS FLOAT) g FROM range({first}, {first + 2})"
            ).coalesce(1),
        )
    frames = []
    for number, (condition, files_read) in enumerate(CONDITIONS.items()):
        frames.append(tables.read("shop.t", where=condition).selectExpr("id", f"{number} AS n"))
        assert listed[-1] == files_read, condition
    # All conditions run in two jobs, because the overhead of a job is as large as its work.
    scanned = sorted((row.n, row.id) for row in reduce(DataFrame.unionAll, frames).collect())
    frame = tables.read("shop.t").selectExpr("id", f"array({', '.join(CONDITIONS)}) AS holds")
    assert scanned == sorted(
        (number, row.id)
        for row in frame.collect()
        for number, holds in enumerate(row.holds)
        if holds
    )
    for wrong in ("no_such > 1", "id >", "id", "id = = 1"):
        with pytest.raises(InvalidInput, match=r"not a condition on shop\.t: .*\w") as refused:
            tables.read("shop.t", where=wrong)
        assert "\n" not in refused.value.message  # Spark adds its plan
    single = bounds_of(tables.spark, tables.session.table("shop.t"), "g <= 0.1F")
    assert [bounds.upper for bounds in single] == ["0.10000000149011612"]
    with tables.transaction() as change:
        assert change.delete("shop.t", "id >= 4").rows == 1
        assert listed[-1] == 1
        assert ids(change.read("shop.t", where="id > 2")) == [3]
        assert ids(change.read("shop.t", where="id = 2")) == [2]
        assert listed[-1] == 1
    assert ids(tables.read("shop.t")) == [1, 2, 3]
