"""Plain tables and views of a session, as Hive clients get them and send them back."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hive_metastore.ttypes import FieldSchema, InvalidOperationException

from strandline.catalog.commands import (
    AddColumns,
    AlterColumn,
    ColumnDefinition,
    CommentOn,
    CreateTable,
    CreateView,
    RenameTable,
    TableDefinition,
    ViewDefinition,
    column_definition,
)
from strandline.catalog.commands import columns as table_columns
from strandline.catalog.commands import tables as table_commands
from strandline.errors import IllegalChange
from strandline.metastore.hive import storage_descriptors
from strandline.model.descriptors import StorageFormat
from strandline.model.privileges import ObjectKind
from strandline.model.type_parser import parse_hive_type, parse_type
from strandline.model.types import BIGINT, STRING, TIMESTAMP_NTZ
from tests.metastore.hive.hive_node import HiveNode, storage, table

KEY = ColumnDefinition("Key", BIGINT)
AT = ColumnDefinition("At", TIMESTAMP_NTZ)  # Hive cannot spell its type
DAY = ColumnDefinition("Day", BIGINT, comment="of the week")
TABLE = TableDefinition(name="t", columns=(KEY, DAY), partition_columns=("Day",))
VIEW = ViewDefinition(name="t", columns=(KEY,), original_text="SELECT 1", expanded_text="SELECT 1")


@pytest.fixture
def earlier_release(monkeypatch: pytest.MonkeyPatch) -> None:
    """A release that let sessions create Hive tables with types that Hive cannot spell."""
    monkeypatch.setattr(table_commands, "refuse_unspelled", lambda columns, table: None)


@pytest.mark.parametrize(
    "command",
    [
        *(
            CreateTable(schema="d1", definition=replace(TABLE, provider=provider, columns=columns))
            for provider in ("parquet", "ORC", "csv")
            for columns in ((KEY, DAY), (KEY, AT, DAY))
        ),
        CreateView(schema="d1", definition=VIEW),
    ],
)
def test_a_client_that_sends_back_what_it_was_shown_makes_no_version(
    hive: HiveNode, stub: Any, command: CreateTable | CreateView
) -> None:
    made = hive.node.session(user="ann").execute(command)
    shown = stub.get_table("d1", "t")
    assert "spark.sql.sources.schema" in shown.parameters
    if isinstance(command, CreateTable):
        # Spark's MSCK REPAIR TABLE writes it, whatever it was shown.
        shown.sd.serdeInfo.parameters["serialization.format"] = "1"
    stub.alter_table("d1", "t", shown)
    assert hive.node.metastore.catalogs.present().version == made.version
    shown.parameters["k"] = "v"
    stub.alter_table("d1", "t", shown)
    altered = hive.node.metastore.catalogs.present().relation("d1", "t")
    assert altered is not None
    assert altered.properties == (("k", "v"),)


def test_spark_renames_a_table_whose_folder_does_not_follow_its_name(
    hive: HiveNode, stub: Any
) -> None:
    session = hive.node.session(user="ann")
    session.execute(CreateTable(schema="d1", definition=replace(TABLE, provider="parquet")))
    taken = hive.folder / "warehouse/d1.db/other"
    taken.mkdir(parents=True)
    (taken / "file").touch()
    session.execute(RenameTable(schema="d1", table="t", new_name="other"))
    place = stub.get_table("d1", "other").sd.location
    assert place.endswith("/d1.db/t")
    altered = stub.get_table("d1", "other")
    altered.tableName = "renamed"
    # Spark takes for granted that the files are in the folder of the new name.
    altered.sd.serdeInfo.parameters["path"] = f"{hive.warehouse}/d1.db/renamed"
    stub.alter_table("d1", "other", altered)
    renamed = stub.get_table("d1", "renamed").sd
    assert (renamed.location, renamed.serdeInfo.parameters["path"]) == (place, place)


HIDDEN = (
    ColumnDefinition("Key", BIGINT, nullable=False, metadata='{"a":1}'),
    ColumnDefinition("Nested", parse_type("struct<A:int>"), comment="two"),
)
"""Columns of which Hive's clients are not shown all that a session defined."""


@pytest.mark.usefixtures("earlier_release")
@pytest.mark.parametrize(
    "definition",
    [
        TableDefinition(name="t", columns=(*HIDDEN, *more), partition_columns=keys, **parts)
        for parts in ({"provider": "hive"}, {"storage": StorageFormat(input_format="in")})
        for keys, more in (((), ()), ((), (AT,)), (("At",), (AT,)), (("Day",), (AT, DAY)))
    ],
)
def test_an_alter_keeps_what_its_client_was_not_shown_of_the_columns(
    hive: HiveNode, stub: Any, definition: TableDefinition
) -> None:
    session = hive.node.session(user="ann")
    made = session.execute(CreateTable(schema="d1", definition=definition))
    before = session.table("d1.t").descriptor
    shown = stub.get_table("d1", "t")
    stub.alter_table("d1", "t", shown)
    assert hive.node.metastore.catalogs.present().version == made.version
    shown.parameters["k"] = "v"
    stub.alter_table("d1", "t", shown)
    altered = session.table("d1.t").descriptor
    assert altered == replace(before, properties=(("k", "v"),))


def test_a_changed_column_keeps_what_its_client_did_not_change(hive: HiveNode, stub: Any) -> None:
    definition = TableDefinition(name="t", columns=(*HIDDEN, DAY), provider="hive")
    session = hive.node.session(user="ann")
    session.execute(CreateTable(schema="d1", definition=definition))
    key, nested, _ = session.table("d1.t").descriptor.columns
    altered = stub.get_table("d1", "t")
    altered.sd.cols[0].comment = "unique"
    altered.sd.cols[1].type = "struct<a:int,b:int>"
    del altered.sd.cols[2]
    altered.sd.cols.append(FieldSchema("Added", "int", None))
    stub.alter_table("d1", "t", altered)
    columns = session.table("d1.t").descriptor.columns
    assert columns[0] == replace(key, comment="unique")
    assert (columns[1].id, columns[1].name, columns[1].comment) == (nested.id, "Nested", "two")
    assert [column.name for column in columns[2:]] == ["added"]


def changed_by_spark(sent: Any, columns: list[FieldSchema], change: Any) -> None:
    """Change Hive's columns and Spark's schema of a table, as Spark does."""
    schema = json.loads(sent.parameters[SPARK_SCHEMA])
    change(schema["fields"])
    sent.parameters[SPARK_SCHEMA] = json.dumps(schema)
    sent.sd.cols = columns


SPARK_SCHEMA = "spark.sql.sources.schema"
OWN_FORMATS: list[dict[str, Any]] = [
    {"provider": "hive", "storage": StorageFormat(serde="serde")},
    {"provider": "parquet", "storage": StorageFormat(serde="serde")},
    {"provider": "json", "storage": StorageFormat(hive_columns=(("key", "bigint", None),))},
]


@pytest.mark.parametrize("parts", OWN_FORMATS)
def test_spark_changes_one_column_of_a_table_with_a_format_of_its_own(
    hive: HiveNode, stub: Any, parts: dict[str, Any]
) -> None:
    session = hive.node.session(user="ann")
    columns = (*HIDDEN, DAY)
    definition = TableDefinition(name="t", columns=columns, partition_columns=("Day",), **parts)
    session.execute(CreateTable(schema="d1", definition=definition))
    before = session.table("d1.t").descriptor.columns
    altered = stub.get_table("d1", "t")

    def comment_and_add(fields: list[dict[str, Any]]) -> None:
        fields[1]["metadata"]["comment"] = "new"
        fields.insert(2, {"name": "Added", "type": "integer", "nullable": True, "metadata": {}})

    key, nested = FieldSchema("key", "bigint"), FieldSchema("nested", "struct<A:int>", "new")
    changed_by_spark(altered, [key, nested, FieldSchema("added", "int")], comment_and_add)
    stub.alter_table("d1", "t", altered)
    after = session.table("d1.t").descriptor.columns
    assert (after[0], after[3]) == (before[0], before[2])
    assert after[1] == replace(before[1], comment="new")
    assert after[2].name == "Added"


@pytest.mark.parametrize("parts", [{}, OWN_FORMATS[0]])
def test_a_hive_client_changes_the_type_and_the_comment_of_a_partition_column(
    hive: HiveNode, stub: Any, parts: dict[str, Any]
) -> None:
    columns = (*HIDDEN, DAY, replace(AT, comment="untouched"))
    definition = TableDefinition(
        name="t", columns=columns, partition_columns=("Day", "At"), **parts
    )
    session = hive.node.session(user="ann")
    session.execute(CreateTable(schema="d1", definition=definition))
    before = session.table("d1.t").descriptor.columns
    altered = stub.get_table("d1", "t")
    altered.partitionKeys[0].type, altered.partitionKeys[0].comment = "string", "new"
    stub.alter_table("d1", "t", altered)
    day = replace(before[2], type=STRING, comment="new")
    assert session.table("d1.t").descriptor.columns == (*before[:2], day, before[3])


def test_columns_that_hive_spells_completely_need_no_schema_of_spark(
    hive: HiveNode, stub: Any
) -> None:
    columns = (ColumnDefinition("k", BIGINT, comment="key"), ColumnDefinition("day", BIGINT))
    definition = TableDefinition(
        name="t", columns=columns, partition_columns=("day",), **OWN_FORMATS[0]
    )
    hive.node.session(user="ann").execute(CreateTable(schema="d1", definition=definition))
    assert not any("schema" in name for name in stub.get_table("d1", "t").parameters)


def test_a_type_is_kept_in_memory_only_if_it_is_short() -> None:
    """Its text may have millions of characters."""
    caches = storage_descriptors._short_says_all, storage_descriptors._short_is_plain
    for count, more in ((1_000, 0), (1, 1)):
        text = f"struct<{','.join(f'kept_{number}:int' for number in range(count))}>"
        misses = [cache.cache_info().misses for cache in caches]
        data_type = parse_hive_type(text)
        assert storage_descriptors.says_all_of(text, data_type)
        assert storage_descriptors.is_spelled_completely(data_type)
        assert [cache.cache_info().misses for cache in caches] == [n + more for n in misses]


@pytest.mark.usefixtures("earlier_release")
@pytest.mark.parametrize(
    "parts",
    [
        {"provider": "json"},
        {"provider": "parquet", "columns": (*HIDDEN, AT)},
        {"provider": "hive", "columns": (*HIDDEN, AT, DAY), "partition_columns": ("Day",)},
        {"transactional": True, "columns": (*HIDDEN, AT)},
    ],
)
def test_a_column_beside_the_placeholder_does_not_replace_the_columns_that_it_stands_for(
    hive: HiveNode, stub: Any, parts: dict[str, Any]
) -> None:
    definition = TableDefinition(**{"name": "t", "columns": HIDDEN, **parts})
    session = hive.node.session(user="ann")
    session.execute(CreateTable(schema="d1", definition=definition))
    before = session.table("d1.t").descriptor
    altered = stub.get_table("d1", "t")
    assert altered.sd.cols[0].name == "col"
    altered.sd.cols.append(FieldSchema("added", "int", None))
    with pytest.raises(InvalidOperationException, match="not shown the columns of t"):
        stub.alter_table("d1", "t", altered)
    assert session.table("d1.t").descriptor == before


def renamed(column: Any) -> None:
    column.name = "renamed"


def commented(column: Any) -> None:
    column.comment = "new"


@pytest.mark.usefixtures("earlier_release")
@pytest.mark.parametrize("change", [renamed, commented])
@pytest.mark.parametrize("provider", ["json", "hive"])
def test_a_changed_placeholder_does_not_replace_the_columns_that_it_stands_for(
    hive: HiveNode, stub: Any, provider: str, change: Any
) -> None:
    definition = TableDefinition(name="t", columns=(*HIDDEN, AT), provider=provider)
    session = hive.node.session(user="ann")
    session.execute(CreateTable(schema="d1", definition=definition))
    before = session.table("d1.t").descriptor
    altered = stub.get_table("d1", "t")
    change(altered.sd.cols[0])
    with pytest.raises(InvalidOperationException, match="not shown the columns of t"):
        stub.alter_table("d1", "t", altered)
    assert session.table("d1.t").descriptor == before


def test_the_placeholder_of_a_view_changes_only_with_its_text(hive: HiveNode, stub: Any) -> None:
    session = hive.node.session(user="ann")
    session.execute(CreateView(schema="d1", definition=replace(VIEW, columns=(KEY, AT))))
    altered = stub.get_table("d1", "t")
    altered.sd.cols.append(FieldSchema("added", "int", None))
    with pytest.raises(InvalidOperationException, match="not shown the columns of t"):
        stub.alter_table("d1", "t", altered)
    altered.viewOriginalText = altered.viewExpandedText = "SELECT 1 AS added"
    altered.sd.cols = [FieldSchema("added", "int", None)]
    del altered.parameters[SPARK_SCHEMA]
    stub.alter_table("d1", "t", altered)
    view = hive.node.metastore.catalogs.present().relation("d1", "t")
    assert view is not None
    assert [column.name for column in view.columns] == ["added"]


@pytest.mark.usefixtures("earlier_release")
@pytest.mark.parametrize("comment", ["from deserializer", "new"])
def test_spark_cannot_change_a_placeholder_that_it_takes_for_a_column(
    hive: HiveNode, stub: Any, comment: str
) -> None:
    definition = TableDefinition(name="t", columns=(KEY, AT), provider="hive")
    session = hive.node.session(user="ann")
    session.execute(CreateTable(schema="d1", definition=definition))
    before = session.table("d1.t").descriptor
    altered = stub.get_table("d1", "t")
    texts = {"type": "array", "elementType": "string", "containsNull": True}
    column = {"name": "col", "type": texts, "nullable": True, "metadata": {"comment": comment}}

    def replace_all(fields: list[dict[str, Any]]) -> None:
        fields[:] = [column]

    columns = [FieldSchema("col", "array<string>", comment)]
    changed_by_spark(altered, columns, replace_all)
    with pytest.raises(InvalidOperationException, match="not shown the columns of t"):
        stub.alter_table("d1", "t", altered)
    assert session.table("d1.t").descriptor == before


def test_spark_adds_a_column_that_is_named_like_the_placeholder(hive: HiveNode, stub: Any) -> None:
    definition = TableDefinition(name="t", columns=(KEY, AT), provider="json")
    session = hive.node.session(user="ann")
    session.execute(CreateTable(schema="d1", definition=definition))
    altered = stub.get_table("d1", "t")
    texts = {"type": "array", "elementType": "string", "containsNull": True}
    column = {"name": "col", "type": texts, "nullable": True, "metadata": {}}
    changed_by_spark(altered, altered.sd.cols, lambda fields: fields.append(column))
    stub.alter_table("d1", "t", altered)
    names = [column.name for column in session.table("d1.t").descriptor.columns]
    assert names == ["Key", "At", "col"]


SPELLED_BY_CLIENT = [
    [FieldSchema("id", "int"), FieldSchema("st", "struct<A:int>")],
    [FieldSchema("id", "int"), FieldSchema("iv", "interval_day_time")],
]


@pytest.mark.parametrize("columns", SPELLED_BY_CLIENT)
def test_a_hive_client_does_not_revert_what_a_session_changed_beside_a_column_that_it_spelled(
    hive: HiveNode, stub: Any, columns: list[FieldSchema]
) -> None:
    stub.create_table(table("t", sd=storage(columns=columns)))
    session = hive.node.session(user="ann")
    session.execute(CommentOn(kind=ObjectKind.TABLE, name="d1.t", column="id", text="new"))
    session.execute(AddColumns(schema="d1", table="t", columns=(ColumnDefinition("n", BIGINT),)))
    before = session.table("d1.t").descriptor
    altered = stub.get_table("d1", "t")
    altered.sd.cols.append(FieldSchema("added", "int"))
    stub.alter_table("d1", "t", altered)
    assert session.table("d1.t").descriptor.columns[:3] == before.columns


@pytest.mark.parametrize("text", ["timestamp_ntz", "string collate UTF8_LCASE", "array<variant>"])
def test_a_column_of_a_hive_table_does_not_get_a_type_that_hides_all_columns(
    hive: HiveNode, stub: Any, text: str
) -> None:
    fields = [FieldSchema("id", "date"), FieldSchema("name", "string")]
    stub.create_table(table("t", sd=storage(columns=fields)))
    session = hive.node.session(user="ann")
    before = session.table("d1.t").descriptor
    column = ColumnDefinition("n", parse_type(text))
    new = TableDefinition(name="new", columns=(KEY, column), provider="Hive")
    with pytest.raises(IllegalChange, match="Spark could read none of its columns"):
        session.execute(CreateTable(schema="d1", definition=new))
    with pytest.raises(IllegalChange, match="Spark could read none of its columns"):
        session.execute(AddColumns(schema="d1", table="t", columns=(column,)))
    for name in ("id", "name"):
        with pytest.raises(IllegalChange):
            session.execute(AlterColumn(schema="d1", table="t", column=name, type=column.type))
    assert session.table("d1.t").descriptor == before


@pytest.mark.parametrize("columns", SPELLED_BY_CLIENT)
def test_a_hive_client_does_not_drop_a_column_that_an_earlier_release_added_and_hive_cannot_spell(
    hive: HiveNode, stub: Any, monkeypatch: pytest.MonkeyPatch, columns: list[FieldSchema]
) -> None:
    monkeypatch.setattr(table_columns, "refuse_unspelled", lambda columns, table: None)
    stub.create_table(table("t", sd=storage(columns=columns)))
    session = hive.node.session(user="ann")
    session.execute(AddColumns(schema="d1", table="t", columns=(AT,)))
    before = session.table("d1.t").descriptor
    altered = stub.get_table("d1", "t")
    altered.sd.cols.append(FieldSchema("added", "int"))
    with pytest.raises(InvalidOperationException, match="not shown the columns of t"):
        stub.alter_table("d1", "t", altered)
    assert session.table("d1.t").descriptor == before


def test_a_column_with_a_collation_is_shown_with_those_that_a_session_adds(
    hive: HiveNode, stub: Any
) -> None:
    sent = table("t", sd=storage(columns=[FieldSchema("name", "string")]))
    field = {"name": "name", "type": "string", "nullable": True}
    field["metadata"] = {"__COLLATIONS": {"name": "spark.UTF8_LCASE"}}
    sent.parameters = {SPARK_SCHEMA: json.dumps({"type": "struct", "fields": [field]})}
    stub.create_table(sent)
    session = hive.node.session(user="ann")
    session.execute(AddColumns(schema="d1", table="t", columns=(KEY,)))
    shown = stub.get_table("d1", "t").sd.cols
    assert [(column.name, column.type) for column in shown] == [
        ("name", "string"),
        ("key", "bigint"),
    ]


def test_a_column_that_looks_like_the_placeholder_is_a_column(hive: HiveNode, stub: Any) -> None:
    column = ColumnDefinition("col", parse_type("array<string>"), comment="from deserializer")
    session = hive.node.session(user="ann")
    definition = TableDefinition(name="t", columns=(column,), provider="hive")
    session.execute(CreateTable(schema="d1", definition=definition))
    altered = stub.get_table("d1", "t")
    altered.sd.cols.append(FieldSchema("added", "int", None))
    stub.alter_table("d1", "t", altered)
    names = [column.name for column in session.table("d1.t").descriptor.columns]
    assert names == ["col", "added"]


@pytest.mark.parametrize("value", ["NaN", "1e999", r'"\ud800"'])
@pytest.mark.parametrize("transactional", [False, True])
def test_metadata_that_an_earlier_release_accepted_does_not_hide_its_table(
    hive: HiveNode, monkeypatch: pytest.MonkeyPatch, transactional: bool, value: str
) -> None:
    monkeypatch.setattr(column_definition, "check_metadata", lambda text: None)
    column = replace(KEY, default="1", metadata=f'{{"bad":{value},"good":"é"}}')
    definition = TableDefinition(
        name="t", columns=(column,), provider="parquet", transactional=transactional
    )
    before = hive.node.notifications.head()
    hive.node.session(user="ann").execute(CreateTable(schema="d1", definition=definition))
    with hive.client() as client:
        shown = client.call("get_table", dbname="d1", tbl_name="t")
        schema = json.loads(shown["parameters"]["spark.sql.sources.schema"])
        answer = client.call("get_next_notification", rqst={"lastEvent": before})
    metadata = schema["fields"][0]["metadata"]
    assert (metadata.get("good"), "bad" in metadata) == ("é", False)
    assert [event["tableName"] for event in answer["events"]] == ["t"]
