"""Creating, listing, altering and dropping tables, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import functions as sql
from pyspark.sql import types as spark_types

from strandline.catalog.commands import (
    AddColumns,
    ColumnDefinition,
    CreateSchema,
    CreateTable,
    DropSchema,
    TableDefinition,
)
from strandline.errors import (
    AlreadyExists,
    IllegalChange,
    InvalidInput,
    InvalidName,
    InvalidType,
    ObjectNotFound,
    Unavailable,
    UnsupportedOperation,
)
from strandline.metastore.interface import Executed
from strandline.model.descriptors import ColumnDescriptor, SchemaVersion, TableKind
from strandline.model.types import BIGINT, INT
from strandline.spark import Counts, Tables, positions
from strandline.spark.schemas import check_supported, file_schema
from tests.spark.data import files, folder, frame, ids, numbers, rows

pytestmark = pytest.mark.spark


def test_a_table_is_created_as_requested(tables: Tables) -> None:
    created = tables.create(
        "shop.Orders",
        "id BIGINT NOT NULL COMMENT 'key', price DECIMAL(9,2)",
        comment="what was ordered",
        properties={"team": "sales"},
        primary_key=["id"],
    )
    table = created.descriptor
    assert (created.schema, table.name, table.owner) == ("shop", "Orders", "ann")
    assert (table.kind, table.transactional, table.provider) == (
        TableKind.MANAGED,
        True,
        "strandline",
    )
    assert (table.comment, table.properties) == ("what was ordered", (("team", "sales"),))
    assert [(c.id, c.name, c.nullable, c.comment) for c in table.columns] == [
        (1, "id", False, "key"),
        (2, "price", True, None),
    ]
    assert table.primary_key == (1,)
    assert folder(tables, "shop.orders").is_dir()


def test_creating_an_existing_table_is_refused_unless_if_not_exists(tables: Tables) -> None:
    first = tables.create("shop.t", "id BIGINT")
    with pytest.raises(AlreadyExists):
        tables.create("shop.t", "id BIGINT")
    again = tables.create("shop.t", "other STRING", if_not_exists=True)
    assert again.descriptor == first.descriptor


def test_rows_are_appended_deleted_and_counted(tables: Tables) -> None:
    tables.create("shop.t", "id BIGINT, v STRING")
    assert tables.append("shop.t", numbers(tables, *range(10)).coalesce(1)) == Counts(10, 1)
    assert tables.append("shop.t", numbers(tables, 10, 11).coalesce(1)) == Counts(2, 1)
    assert tables.delete("shop.t", "v = 'x'") == Counts(0, 0)
    assert tables.delete("shop.t", sql.col("id") % 5 == 0) == Counts(3, 2)
    assert tables.delete("shop.t", "id <= 5") == Counts(4, 1)
    assert tables.delete("SHOP.T", "id IN (SELECT max(id) FROM range(12))") == Counts(1, 1)
    assert ids(tables.read("shop.t")) == [6, 7, 8, 9]


@pytest.mark.slow
@pytest.mark.parametrize(
    "condition", ["id IN (63, 64, 700)", "id % 999 = 998", "id % 63 = 0", "id > 99"]
)
def test_spark_makes_the_same_bitmaps_of_many_rows(
    tables: Tables, condition: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables.create("shop.t", "id BIGINT")
    for start in (0, 400):
        tables.append("shop.t", tables.spark.range(start, start + 400).coalesce(1))
    snapshot = tables.snapshot("shop.t")
    with pytest.raises(ZeroDivisionError), tables.transaction() as few:
        counts = few.delete("shop.t", condition)
        left = ids(few.read("shop.t"))
        raise ZeroDivisionError
    monkeypatch.setattr(positions, "MAX_COLLECTED", 0)
    monkeypatch.delattr(positions, "bitmaps_of")
    assert tables.delete("shop.t", condition) == counts
    assert ids(tables.read("shop.t")) == left
    assert len(ids(tables.read("shop.t", snapshot=snapshot))) == len(left) + counts.rows == 800


def test_a_table_can_be_created_from_the_schema_of_a_dataframe(tables: Tables) -> None:
    tables.create("shop.t", "id BIGINT, s STRUCT<x: INT>")
    tables.append("shop.t", numbers(tables, 1))
    read = tables.read("shop.t")
    tables.create("shop.u", read.select("s", "id").schema)
    tables.append("shop.u", read)
    assert ids(tables.read("shop.u")) == [1]


@pytest.mark.parametrize(
    ("name", "schema", "error"),
    [
        ("nowhere.t", "id INT", ObjectNotFound),
        ("shop.", "id INT", InvalidName),
        ("shop.t", "id NUMBER", InvalidType),
        ("shop.t", "", InvalidInput),
        ("shop.t", "id INT, ID INT", InvalidInput),
        ("shop.t", "i INTERVAL", UnsupportedOperation),
        ("shop.t", "_file INT", UnsupportedOperation),
        ("shop.t", spark_types.StructType(), InvalidInput),
    ],
)
def test_invalid_table_definitions_are_refused(
    tables: Tables, name: str, schema: str | spark_types.StructType, error: type[Exception]
) -> None:
    with pytest.raises(error):
        tables.create(name, schema)
    assert tables.session.tables("shop") == []


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        ("nothing = 1", "nothing"),
        ("id +", "condition"),
        ("id", "BOOLEAN"),
        ("other.id = 1", "other"),
        (7, "not int"),
        ("_file = 1", "_file"),
    ],
)
def test_an_invalid_condition_is_refused(tables: Tables, condition: object, message: str) -> None:
    tables.create("shop.t", "id BIGINT")
    with pytest.raises(InvalidInput, match=message):
        tables.delete("shop.t", condition)  # type: ignore[arg-type]  # the point of the test
    with pytest.raises(InvalidInput, match=message):
        tables.read("shop.t", where=condition)  # type: ignore[arg-type]  # the point of the test


def test_plain_tables_are_refused(tables: Tables) -> None:
    definition = TableDefinition(name="t", columns=(ColumnDefinition("id", INT),))
    tables.session.execute(CreateTable(schema="shop", definition=definition))
    message = r"plain parquet .*spark\.table\('shop\.t'\)"
    with pytest.raises(UnsupportedOperation, match=message):
        tables.read("shop.t")
    with pytest.raises(UnsupportedOperation, match=message):
        tables.append("shop.t", numbers(tables, 1))
    with pytest.raises(UnsupportedOperation, match=message):
        tables.delete("shop.t", "true")
    assert files(folder(tables, "shop.t")) == []


def test_a_table_with_partition_columns_of_an_older_release_is_refused(tables: Tables) -> None:
    table = tables.create("shop.t", "id BIGINT")
    older = replace(table, descriptor=replace(table.descriptor, partition_columns=(1,)))
    with pytest.raises(UnsupportedOperation, match="create a table with partitioned_by"):
        check_supported(older, "shop.t")


def test_a_reserved_column_name_that_an_older_release_allowed_is_refused(tables: Tables) -> None:
    table = tables.create("shop.t", "id BIGINT")
    column = replace(table.descriptor.columns[0], name="_FILE")
    older = replace(table.descriptor, schema_versions=(SchemaVersion(1, (column,)),))
    with pytest.raises(UnsupportedOperation, match="reserved"):
        check_supported(replace(table, descriptor=older), "shop.t")


def test_a_missing_table_raises_object_not_found_with_its_name(tables: Tables) -> None:
    with pytest.raises(ObjectNotFound, match=r"shop\.missing"):
        tables.read("shop.missing")
    with pytest.raises(ObjectNotFound, match=r"shop\.missing"):
        tables.append("shop.missing", numbers(tables, 1))
    with pytest.raises(ObjectNotFound, match=r"shop\.missing"):
        tables.delete("shop.missing", "true")


def test_a_table_without_a_folder_reads_as_empty_and_refuses_writes(tables: Tables) -> None:
    """The folder is missing if the node was not permitted to create it."""
    tables.create("shop.t", "id BIGINT")
    folder(tables, "shop.t").rmdir()
    assert ids(tables.read("shop.t")) == []
    with pytest.raises(Unavailable, match="if the folder was never created, create it"):
        tables.append("shop.t", numbers(tables, 1))
    folder(tables, "shop.t").mkdir()
    tables.append("shop.t", numbers(tables, 1))
    assert ids(tables.read("shop.t")) == [1]


def test_tables_are_listed_altered_and_dropped(tables: Tables) -> None:
    tables.create("shop.b", "id BIGINT, v INT, gone STRING")
    tables.create("shop.a", "id BIGINT")
    plain = TableDefinition(name="plain", columns=(ColumnDefinition("id", BIGINT),))
    tables.session.execute(CreateTable(schema="shop", definition=plain))
    assert tables.list("shop") == ("shop.a", "shop.b")

    tables.append("shop.b", frame(tables, id=[1], v=pa.array([2], pa.int32()), gone=["x"]))
    before = tables.session.table("shop.b")
    after = tables.alter(
        "shop.b", drop=["gone"], rename={"v": "price"}, add="gone BIGINT, note STRING", new_name="c"
    )
    assert after.catalog_version == before.catalog_version + 1
    assert rows(tables.read("shop.c")) == {(1, 2, None, None): 1}
    assert tables.read("shop.c").columns == ["id", "price", "gone", "note"]
    past = tables.read("shop.b", version=before.catalog_version)
    assert rows(past) == {(1, 2, "x"): 1}

    assert tables.alter("shop.c", new_name="shop.d").descriptor.name == "d"
    tables.session.execute(CreateSchema(name="depot"))
    assert tables.alter("shop.d", new_name="depot.e").schema == "depot"
    assert tables.alter("depot.e", new_name="shop.d").schema == "shop"
    tables.session.execute(DropSchema(name="depot"))
    assert tables.alter("shop.d", new_name="c").descriptor.name == "c"

    tables.drop("shop.c")
    assert tables.list("shop") == ("shop.a",)
    assert rows(tables.read("shop.b", version=before.catalog_version)) == {(1, 2, "x"): 1}
    tables.session.undrop("shop.c")
    assert rows(tables.read("shop.c")) == {(1, 2, None, None): 1}
    tables.drop("shop.c", purge=True)
    with pytest.raises(ObjectNotFound):
        tables.session.undrop("shop.c")


def test_the_answer_to_a_change_is_the_table_as_this_change_left_it(
    tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    execute = tables.session.execute

    def then_changed(command: Any) -> Executed:
        executed = execute(command)
        added = (ColumnDefinition("later", INT),)
        execute(AddColumns(schema="shop", table="t", columns=added, if_not_exists=True))
        return executed

    monkeypatch.setattr(tables.session, "execute", then_changed)
    assert [c.name for c in tables.create("shop.t", "id BIGINT").descriptor.columns] == ["id"]
    renamed = tables.alter("shop.t", rename={"id": "key"}, drop=["later"])
    assert [c.name for c in renamed.descriptor.columns] == ["key"]


def test_columns_get_wider_types_in_one_alter(tables: Tables) -> None:
    tables.create("shop.t", "id INT, price DECIMAL(9, 2), parts STRUCT<a: INT>")
    one = "SELECT 1 AS id, 2.50BD AS price, named_struct('a', 3) AS parts"
    tables.append("shop.t", tables.spark.sql(one))
    before = tables.session.table("shop.t")
    after = tables.alter(
        "shop.t",
        rename={"id": "key"},
        types={
            "key": spark_types.LongType(),
            "price": "DECIMAL(12, 2)",
            "parts": "STRUCT<a: BIGINT, b: STRING>",
        },
    )
    assert after.catalog_version == before.catalog_version + 1
    assert dict(tables.read("shop.t").dtypes) == {
        "key": "bigint",
        "price": "decimal(12,2)",
        "parts": "struct<a:bigint,b:string>",
    }
    (row,) = tables.read("shop.t").collect()
    assert (row.key, str(row.price), row.parts.asDict()) == (1, "2.50", {"a": 3, "b": None})


def test_columns_swap_their_names_in_one_alter(tables: Tables) -> None:
    tables.create("shop.t", "a BIGINT, b BIGINT")
    tables.append("shop.t", frame(tables, a=[1], b=[2]))
    before = tables.session.table("shop.t")
    after = tables.alter("shop.t", rename={"a": "b", "b": "a"})
    assert after.catalog_version == before.catalog_version + 1
    tables.append("shop.t", frame(tables, b=[3], a=[4]))
    assert tables.read("shop.t").columns == ["b", "a"]
    assert rows(tables.read("shop.t")) == {(1, 2): 1, (3, 4): 1}
    assert rows(tables.read("shop.t", where="a = 2")) == {(1, 2): 1}
    past = tables.read("shop.t", version=before.catalog_version)
    assert (past.columns, rows(past)) == (["a", "b"], {(1, 2): 1})


def test_an_added_column_is_null_in_existing_rows_whatever_default_its_schema_has(
    tables: Tables,
) -> None:
    """Spark's Parquet reader puts such a default into the rows of files without the column."""
    default = {"EXISTS_DEFAULT": "5"}
    field = spark_types.StructField("n", spark_types.IntegerType(), metadata=default)
    tables.create("shop.t", "id BIGINT")
    tables.append("shop.t", numbers(tables, 1))
    tables.alter("shop.t", add=spark_types.StructType([field]))
    assert rows(tables.read("shop.t")) == {(1, None): 1}
    field.name, field.nullable = "m", False
    with pytest.raises(IllegalChange, match="existing rows have no value"):
        tables.alter("shop.t", add=spark_types.StructType([field]))


def test_defaults_that_earlier_releases_recorded_are_not_put_into_rows() -> None:
    old = ColumnDescriptor(7, "n", INT, metadata='{"EXISTS_DEFAULT":"5","k":"v"}')
    (field,) = file_schema([old])
    assert (field.metadata["k"], "EXISTS_DEFAULT" in field.metadata) == ("v", False)


def test_a_refused_alter_or_drop_changes_nothing(tables: Tables) -> None:
    tables.create("shop.t", "id BIGINT")
    before = tables.session.table("shop.t").descriptor
    with pytest.raises(InvalidInput, match="nothing to alter"):
        tables.alter("shop.t")
    with pytest.raises(AlreadyExists):
        tables.alter("shop.t", add="v INT, id INT")
    with pytest.raises(IllegalChange):
        tables.alter("shop.t", add="v INT", types={"id": "INT"})
    with pytest.raises(ObjectNotFound):
        tables.alter("shop.t", types={"never": "INT"})
    with pytest.raises(ObjectNotFound):
        tables.drop("shop.never")
    tables.drop("shop.never", if_exists=True)
    plain = TableDefinition(name="plain", columns=(ColumnDefinition("id", BIGINT),))
    tables.session.execute(CreateTable(schema="shop", definition=plain))
    for wrong, what in (
        (lambda: tables.create("shop.p", "id INT", partitioned_by="id"), r"\['id'\]"),
        (lambda: tables.create("shop.p", "id INT", primary_key="id"), r"\['id'\]"),
        (lambda: tables.alter("shop.t", drop="id"), r"\['id'\]"),
        (lambda: tables.alter("shop.t", rename=["id"]), "rename must be a dict"),  # type: ignore[arg-type]  # wrong
        (lambda: tables.create("shop.p", "id INT", properties=["a"]), "properties must be a dict"),  # type: ignore[arg-type]  # wrong
        (lambda: tables.alter("shop.t", types={"id": "BIGGER"}), "BIGGER"),
        (lambda: tables.alter("shop.t", types={"id": 5}), "type or SQL text"),  # type: ignore[dict-item]  # wrong
        (lambda: tables.create("shop.p", None), "must be a Spark schema or SQL text"),  # type: ignore[arg-type]  # wrong
        (lambda: tables.read("shop.t", version="abc"), "whole number, not 'abc'"),  # type: ignore[arg-type]  # wrong
        (lambda: tables.read("shop.t", time="1969-01-01"), "lie between 1970"),
    ):
        with pytest.raises(InvalidInput, match=what):
            wrong()
    for change in (tables.drop, lambda name: tables.alter(name, add="v INT")):
        with pytest.raises(InvalidInput, match="not a transactional table"):
            change("shop.plain")
    assert tables.session.table("shop.t").descriptor == before
