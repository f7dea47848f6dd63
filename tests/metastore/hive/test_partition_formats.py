"""Partitions keep the format in which their files were written, whatever format the table gets."""

from __future__ import annotations

from typing import Any

import pytest
from hive_metastore.ttypes import EnvironmentContext, FieldSchema, Partition

from strandline import work
from strandline.catalog.commands import ColumnDefinition, CreateTable, TableDefinition
from strandline.model.types import INT, STRING
from tests.metastore.hive.hive_node import HiveNode, storage, table

STORES = ("folder",)


def format_of(delimiter: str) -> Any:
    sd = storage()
    sd.serdeInfo.parameters["field.delim"] = delimiter
    return sd


@pytest.fixture
def parted(stub: Any) -> Any:
    """A client; table ``d1.t`` with the delimiter ``,`` and the partition ``first``."""
    keys = [FieldSchema("p", "string", None)]
    stub.create_table(table("t", sd=format_of(","), partitionKeys=keys))
    add(stub, "first", format_of(","))
    return stub


def add(stub: Any, value: str, sd: Any) -> None:
    stub.add_partition(Partition(values=[value], dbName="d1", tableName="t", sd=sd, parameters={}))


def alter(stub: Any, delimiter: str) -> None:
    altered = stub.get_table("d1", "t")
    altered.sd.serdeInfo.parameters["field.delim"] = delimiter
    stub.alter_table("d1", "t", altered)


def delimiters(stub: Any, schema: str = "d1") -> dict[str, str]:
    """The delimiter of each partition, which is the same in each way to read it."""
    listed = {p.values[0]: p for p in stub.get_partitions(schema, "t", -1)}
    for value, partition in listed.items():
        assert stub.get_partition(schema, "t", [value]) == partition
        assert stub.get_partitions_by_names(schema, "t", [f"p={value}"]) == [partition]
    return {v: p.sd.serdeInfo.parameters["field.delim"] for v, p in listed.items()}


def test_an_alter_of_the_format_is_for_later_partitions(hive: HiveNode, parted: Any) -> None:
    before = hive.node.metastore.catalogs.present().version
    alter(parted, ";")
    parted.append_partition("d1", "t", ["second"])
    add(parted, "third", format_of(";"))
    add(parted, "fourth", format_of(","))
    expected = {"first": ",", "second": ";", "third": ";", "fourth": ","}
    assert delimiters(parted) == expected
    alter(parted, "|")
    parted.append_partition("d1", "t", ["fifth"])
    assert delimiters(parted) == {**expected, "fifth": "|"}
    alter(parted, ",")
    assert delimiters(parted) == {**expected, "fifth": "|"}
    assert delimiters(parted, f"d1@{before}") == {"first": ","}


def test_partitions_keep_their_format_when_an_alter_is_undone(hive: HiveNode, parted: Any) -> None:
    session = hive.node.session(user="ann")
    alter(parted, ";")
    parted.append_partition("d1", "t", ["second"])
    alter(parted, "|")
    latest = hive.node.metastore.catalogs.present().version
    session.undo(latest)
    parted.append_partition("d1", "t", ["third"])
    assert delimiters(parted) == {"first": ",", "second": ";", "third": ";"}
    session.undo(latest - 1)
    parted.append_partition("d1", "t", ["fourth"])
    assert delimiters(parted) == {"first": ",", "second": ";", "third": ";", "fourth": ","}


def test_a_dropped_partition_and_a_dropped_table_come_back_in_their_formats(
    hive: HiveNode, parted: Any
) -> None:
    session = hive.node.session(user="ann")
    alter(parted, ";")
    parted.append_partition("d1", "t", ["second"])
    formats = delimiters(parted)
    parted.drop_partition("d1", "t", ["first"], True)
    alter(parted, "|")
    session.undrop_partitions("d1.t")
    assert delimiters(parted) == formats
    parted.drop_table("d1", "t", True)
    session.undo(hive.node.metastore.catalogs.present().version)
    assert delimiters(parted) == formats


@pytest.mark.parametrize("method", ["alter_partition", "rename_partition"])
def test_a_partition_that_is_sent_without_its_storage_keeps_its_format(
    parted: Any, method: str
) -> None:
    alter(parted, ";")
    add(parted, "second", format_of("|"))
    for value in ("first", "second"):
        sent = parted.get_partition("d1", "t", [value])
        sent.sd = None
        if method == "rename_partition":
            sent.values = [f"new {value}"]
            parted.rename_partition("d1", "t", [value], sent)
        else:
            sent.parameters["k"] = "v"
            parted.alter_partition("d1", "t", sent)
    assert list(delimiters(parted).values()) == [",", "|"]


def test_a_cascading_alter_leaves_the_formats(parted: Any) -> None:
    altered = parted.get_table("d1", "t")
    altered.sd.serdeInfo.parameters["field.delim"] = ";"
    altered.sd.cols.append(FieldSchema("c", "int", None))
    cascade = EnvironmentContext(properties={"CASCADE": "true"})
    parted.alter_table_with_environment_context("d1", "t", altered, cascade)
    assert delimiters(parted) == {"first": ","}
    assert len(parted.get_partition("d1", "t", ["first"]).sd.cols) == 3


def test_many_partitions_of_several_formats_and_columns_are_shown_as_each_alone(
    parted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(work, "AT_ONCE", 1)  # more are encoded one by one
    alter(parted, ";")
    for number in range(4):
        sd = format_of(",;"[number % 2])
        sd.cols = sd.cols[: 1 + number // 2]
        add(parted, f"later {number}", sd)
    assert list(delimiters(parted).values()) == [",", ",", ";", ",", ";"]
    columns = [len(partition.sd.cols) for partition in parted.get_partitions("d1", "t", -1)]
    assert columns == [2, 1, 1, 2, 2]


def test_partitions_of_a_table_without_a_format_of_its_own_keep_that_of_its_provider(
    hive: HiveNode, stub: Any
) -> None:
    definition = TableDefinition(
        name="t",
        columns=(ColumnDefinition("a", INT), ColumnDefinition("p", STRING)),
        provider="parquet",
        partition_columns=("p",),
    )
    hive.node.session(user="ann").execute(CreateTable(schema="d1", definition=definition))
    stub.append_partition("d1", "t", ["first"])
    shown = stub.get_partition("d1", "t", ["first"])
    altered = stub.get_table("d1", "t")
    assert shown.sd.serdeInfo == altered.sd.serdeInfo
    altered.sd.inputFormat, altered.sd.serdeInfo.serializationLib = "in", "serde"
    stub.alter_table("d1", "t", altered)
    stub.append_partition("d1", "t", ["second"])
    assert stub.get_partition("d1", "t", ["first"]) == shown
    assert stub.get_partition("d1", "t", ["second"]).sd.serdeInfo.serializationLib == "serde"


def test_partitions_of_such_a_table_follow_its_provider_again_when_an_alter_is_undone(
    hive: HiveNode, stub: Any
) -> None:
    session = hive.node.session(user="ann")
    columns = (ColumnDefinition("a", INT), ColumnDefinition("p", STRING))
    definition = TableDefinition(name="t", columns=columns, partition_columns=("p",))
    session.execute(CreateTable(schema="d1", definition=definition))
    before = session.table("d1.t").descriptor
    stub.append_partition("d1", "t", ["first"])
    shown = stub.get_partition("d1", "t", ["first"])
    alter(stub, ";")
    session.undo(hive.node.metastore.catalogs.present().version)
    assert stub.get_partition("d1", "t", ["first"]) == shown
    assert session.table("d1.t").descriptor.partition_storage == before.partition_storage
