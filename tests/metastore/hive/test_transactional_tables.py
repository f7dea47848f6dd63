"""Transactional tables, as clients that know nothing of transactions see them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hive_metastore.ttypes import Database, FieldSchema, Order, Partition

from strandline.catalog import Applied, Catalog, Command, Relation
from strandline.catalog.commands import AddColumns, ColumnDefinition, DropTable, SetTableProperties
from strandline.metastore.hive.hive_reader import HiveReader, Scope
from strandline.metastore.hive.registry import Call
from strandline.model.types import INT, DecimalType
from tests.metastore.hive.hive_node import HiveNode, outcome, plain, refusal, storage, table

MARK = "/* transactional table: write to it with strandline.spark.Tables */"


@pytest.fixture
def flights(hive: HiveNode) -> str:
    hive.create_transactional("d1", "flights", id="bigint", carrier="string")
    return "flights"


def test_a_transactional_table_is_shown_as_a_view_of_its_rows(
    hive: HiveNode, stub: Any, flights: str
) -> None:
    view = stub.get_table("d1", flights)
    assert view.tableType == "VIRTUAL_VIEW"
    assert view.viewExpandedText.startswith(MARK)
    assert "transactional" not in view.parameters
    assert view.sd.location is None
    assert [column.name for column in view.sd.cols] == ["id", "carrier"]
    schema = json.loads(view.parameters["spark.sql.sources.schema"])
    assert [field["name"] for field in schema["fields"]] == ["id", "carrier"]
    assert stub.get_tables_by_type("d1", "*", "VIRTUAL_VIEW") == [flights]


def test_a_list_of_tables_leaves_out_one_that_is_dropped_while_it_is_made(
    hive: HiveNode, stub: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("t1", "t2"):
        hive.create_transactional("d1", name, id="bigint")
    struct = HiveReader.struct

    async def drop_the_other(reader: HiveReader, scope: Scope, relation: Relation) -> Any:
        monkeypatch.undo()
        hive.node.session(user="ann").execute(DropTable(schema="d1", table="t2"))
        return await struct(reader, scope, relation)

    monkeypatch.setattr(HiveReader, "struct", drop_the_other)
    assert [t.tableName for t in stub.get_table_objects_by_name("d1", ["t1", "t2"])] == ["t1"]


def altered(stub: Any, change: Callable[[Any], object]) -> object:
    new = stub.get_table("d1", "flights")
    change(new)
    return outcome(lambda: stub.alter_table("d1", "flights", new))


def partition() -> Any:
    return Partition(["1"], "d1", "flights", sd=storage())


REFUSED: dict[str, Callable[[Any], object]] = {
    "add partition": lambda c: outcome(lambda: c.add_partition(partition())),
    "alter partition": lambda c: outcome(lambda: c.alter_partition("d1", "flights", partition())),
    "drop partition": lambda c: outcome(lambda: c.drop_partition("d1", "flights", ["1"], True)),
    "type": lambda c: altered(c, lambda t: setattr(t, "tableType", "MANAGED_TABLE")),
    "text": lambda c: altered(c, lambda t: setattr(t, "viewExpandedText", "SELECT 1")),
    "a further column before": lambda c: altered(
        c, lambda t: t.sd.cols.insert(0, FieldSchema("delay", "int", None))
    ),
    "another type": lambda c: altered(c, lambda t: setattr(t.sd.cols[0], "type", "string")),
    "a dropped column": lambda c: altered(c, lambda t: t.sd.cols.pop()),
    "original text": lambda c: altered(c, lambda t: setattr(t, "viewOriginalText", "SELECT 1")),
    "location": lambda c: altered(c, lambda t: setattr(t.sd, "location", "file:/elsewhere")),
    "path": lambda c: altered(
        c, lambda t: setattr(t.sd.serdeInfo, "parameters", {"path": "file:/elsewhere"})
    ),
    "format": lambda c: altered(c, lambda t: setattr(t.sd, "inputFormat", "in")),
    "serde": lambda c: altered(c, lambda t: setattr(t.sd.serdeInfo, "serializationLib", "serde")),
    "parameter of the serde": lambda c: altered(
        c, lambda t: t.sd.serdeInfo.parameters.update({"field.delim": ","})
    ),
    "buckets": lambda c: altered(c, lambda t: setattr(t.sd, "numBuckets", 4)),
    "order": lambda c: altered(c, lambda t: setattr(t.sd, "sortCols", [Order("id", 1)])),
    "provider": lambda c: with_parameter(c, "spark.sql.sources.provider", "parquet"),
    "statistics of Spark": lambda c: with_parameter(c, "spark.sql.statistics.numRows", "5"),
    "number of rows": lambda c: with_parameter(c, "numRows", "5"),
    "transactional": lambda c: with_parameter(c, "transactional", "false"),
    "external": lambda c: with_parameter(c, "EXTERNAL", "TRUE"),
    "rows": lambda c: outcome(lambda: c.truncate_table("d1", "flights", None)),
}


def with_parameter(stub: Any, name: str, value: str) -> object:
    return altered(stub, lambda t: t.parameters.update({name: value}))


def test_changes_that_only_the_package_or_nobody_may_make_are_refused_and_change_nothing(
    hive: HiveNode, stub: Any, flights: str
) -> None:
    before = plain(stub.get_table("d1", flights))
    for name, write in REFUSED.items():
        refused = write(stub)
        assert isinstance(refused, tuple), name
        kind, text = refused
        assert kind in ("InvalidOperationException", "MetaException"), name
        assert "transaction" in text or "partition keys" in text, (name, text)
        assert "its rows of its own" not in text
    assert plain(stub.get_table("d1", flights)) == before


def test_the_parameters_the_comment_and_the_name_can_be_altered(
    hive: HiveNode, stub: Any, flights: str
) -> None:
    def change(past: Any) -> None:
        past.parameters.update(k="v", comment="by air", transient_lastDdlTime="1")
        past.tableName = "trips"

    assert altered(stub, change) is None
    trips = hive.node.session(user="ann").table("d1.trips").descriptor
    assert (trips.transactional, trips.comment) == (True, "by air")
    assert dict(trips.properties) == {"k": "v"}
    session = hive.node.session(user="ann")
    assert session.table("d1.trips").location.endswith("/warehouse/d1.db/trips")


def test_an_alter_keeps_what_a_hive_client_does_not_see_of_a_column(
    hive: HiveNode, stub: Any, flights: str
) -> None:
    session = hive.node.session(user="ann")
    noted = ColumnDefinition("noted", INT, default="7", metadata='{"a":1}')
    session.execute(AddColumns(schema="d1", table="flights", columns=(noted,)))
    before = session.table("d1.flights").descriptor.columns
    assert altered(stub, lambda t: t.sd.cols.append(FieldSchema("delay", "int", None))) is None
    assert session.table("d1.flights").descriptor.columns[:3] == before


def test_an_alter_keeps_the_properties_that_a_hive_client_does_not_see(
    hive: HiveNode, stub: Any, flights: str
) -> None:
    session = hive.node.session(user="ann")
    unseen = (("spark.sql.note", "1"), ("view.owner", "ann"))
    session.execute(SetTableProperties(schema="d1", table="flights", set=(*unseen, ("k", "v"))))
    assert altered(stub, lambda t: t.parameters.pop("k")) is None
    assert session.table("d1.flights").descriptor.properties == unseen


def test_a_column_can_be_added_at_the_end(hive: HiveNode, stub: Any, flights: str) -> None:
    delay = FieldSchema("delay", "decimal(5,1)", "in minutes")
    assert altered(stub, lambda t: t.sd.cols.append(delay)) is None
    session = hive.node.session(user="ann")
    added = session.table("d1.flights").descriptor.columns[-1]
    assert (added.name, added.type, added.comment) == ("delay", DecimalType(5, 1), "in minutes")
    assert stub.get_table("d1", flights).sd.cols[-1] == delay
    again = altered(stub, lambda t: t.sd.cols.append(delay))
    assert isinstance(again, tuple)
    assert again[0] == "InvalidOperationException"


def test_a_transactional_table_can_be_dropped(hive: HiveNode, stub: Any, flights: str) -> None:
    stub.drop_table("d1", flights, True)
    assert stub.get_all_tables("d1") == []


@pytest.mark.parametrize(
    "parameters",
    [
        {"transactional": "true"},
        {"transactional": "TRUE"},
        {"TRANSACTIONAL": "true"},
        {"Transactional": "true"},
        {"spark.sql.sources.provider": "strandline"},
    ],
)
def test_a_hive_client_cannot_create_a_transactional_table(
    hive: HiveNode, stub: Any, parameters: dict[str, str]
) -> None:
    kind, text = refusal(lambda: stub.create_table(table("t1", parameters=parameters)))
    assert kind == "MetaException"
    assert "strandline.spark.Tables" in text
    stub.create_table(table("t2"))
    new = stub.get_table("d1", "t2")
    new.parameters.update(parameters)
    kind, text = refusal(lambda: stub.alter_table("d1", "t2", new))
    assert kind == "InvalidOperationException"
    assert "strandline.spark.Tables" in text
    assert stub.get_all_tables("d1") == ["t2"]


def test_a_table_with_the_parameter_transactional_false_is_an_ordinary_table(
    hive: HiveNode, stub: Any
) -> None:
    stub.create_table(table("t1", parameters={"transactional": "false"}))
    assert stub.get_table("d1", "t1").parameters["transactional"] == "false"


def test_a_schema_with_a_transactional_table_cannot_be_dropped_with_cascade(
    hive: HiveNode, stub: Any, flights: str
) -> None:
    stub.create_table(table("airports"))
    kind, text = refusal(lambda: stub.drop_database("d1", True, True))
    assert kind == "InvalidOperationException"
    assert "transactional tables: d1.flights." in text
    assert "DROP TABLE d1.flights" in text
    # Hive's client drops the tables itself, one by one.
    first, second = stub.get_all_tables("d1")
    stub.get_table("d1", first)
    kind, text = refusal(lambda: stub.drop_table("d1", first, True))
    assert "DROP TABLE d1.flights" in text
    # Without a listing before it, the same call is a drop of the named table alone.
    stub.get_table("d1", second)
    stub.drop_table("d1", second, True)
    assert stub.get_all_tables("d1") == ["airports"]
    stub.drop_database("d1", True, True)
    stub.create_database(Database("d1"))


@pytest.mark.parametrize("delete_data", [True, False])
def test_a_cascade_drops_no_transactional_table_that_is_created_meanwhile(
    hive: HiveNode, stub: Any, monkeypatch: pytest.MonkeyPatch, delete_data: bool
) -> None:
    execute = Call.execute

    def create_before(call: Call, *commands: Command) -> Applied:
        hive.create_transactional("d1", "flights", a="int")
        return execute(call, *commands)

    monkeypatch.setattr(Call, "execute", create_before)
    kind, text = refusal(lambda: stub.drop_database("d1", delete_data, True))
    assert (kind, "d1.flights" in text) == ("InvalidOperationException", True)
    assert stub.get_all_tables("d1") == ["flights"]


def test_a_drop_that_ends_no_listing_reads_no_other_names_of_its_schema(
    hive: HiveNode, stub: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub.create_table(table("airports"))
    monkeypatch.delattr(Catalog, "relation_names")
    stub.get_table("d1", "airports")
    stub.drop_table("d1", "airports", True)
    monkeypatch.undo()
    assert stub.get_all_tables("d1") == []
