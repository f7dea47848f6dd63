"""Rows about files are assigned to zone partitions, equal values always to the same one."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from strandline.catalog.commands import ColumnDefinition, CreateTable, CreateZone, TableDefinition
from strandline.metastore.hive import HiveMetastoreService
from strandline.metastore.hive.registry import METHODS, Request
from strandline.metastore.store.rows import TABLE_LEVEL, DataFile, DeleteFile, RowKind
from strandline.metastore.store.zone_partitions import ZonePartitions, common
from strandline.metastore.thrift.codec import HIVE_CODEC
from strandline.model.descriptors import TableDescriptor, TableKind
from strandline.model.partitioning import (
    Partition,
    PartitionField,
    PartitionValue,
    Transform,
    TransformKind,
)
from strandline.model.types import INT, STRING
from strandline.node import Node

ZONE = 4
PLAIN = TableDescriptor(
    id=7,
    schema_id=1,
    name="t",
    owner="ann",
    kind=TableKind.MANAGED,
    transactional=False,
    provider="parquet",
    schema_versions=(),
    next_column_id=5,
    zone_id=3,
    partition_columns=(3, 4),
)
TRANSACTIONAL = replace(
    PLAIN,
    transactional=True,
    partition_columns=(),
    partitioning=(
        PartitionField(1000, 4, Transform(TransformKind.BUCKET, 8), "k_bucket"),
        PartitionField(1001, 3, Transform(TransformKind.IDENTITY), "day"),
    ),
)


def in_part(*values: int | str | None, first_id: int = 1000) -> Partition:
    return tuple(PartitionValue(first_id + place, value) for place, value in enumerate(values))


def test_a_zone_of_one_partition_has_all_rows_in_it() -> None:
    assert ZonePartitions(PLAIN, 1).of_values(("a", "b")) == 0
    assert ZonePartitions(TRANSACTIONAL, 1).of_file(in_part(1, "a")) == 0


def test_the_zone_partition_of_a_value_never_changes() -> None:
    plain, transactional = ZonePartitions(PLAIN, ZONE), ZonePartitions(TRANSACTIONAL, ZONE)
    days = ["2026-01-01", "2026-01-02", "2026-01-03", "__HIVE_DEFAULT_PARTITION__"]
    assert [plain.of_values((day, "x")) for day in days] == PLACES_OF_VALUES
    assert [transactional.of_file(in_part(5, day)) for day in [*days, None]] == PLACES_OF_FILES
    plain, transactional = (
        ZonePartitions(replace(table, colocation=(3,)), ZONE) for table in (PLAIN, TRANSACTIONAL)
    )
    assert [plain.of_values((day, "x")) for day in days] == COLOCATED_VALUES
    assert [transactional.of_file(in_part(5, day)) for day in [*days, None]] == COLOCATED_FILES


PLACES_OF_VALUES = [2, 3, 0, 1]
PLACES_OF_FILES = [1, 3, 1, 1, 2]
COLOCATED_VALUES = [3, 1, 3, 1]
COLOCATED_FILES = [2, 0, 2, 0, 3]


def test_files_of_an_unpartitioned_table_are_together_and_tables_are_spread() -> None:
    tables = [replace(TRANSACTIONAL, id=number, partitioning=()) for number in range(200)]
    counts = Counter(ZonePartitions(table, ZONE).of_file(()) for table in tables)
    assert sorted(counts) == [0, 1, 2, 3]
    assert min(counts.values()) > 30


def test_equal_values_of_colocation_columns_are_together_in_all_tables() -> None:
    first, other = (
        replace(TRANSACTIONAL, colocation=(3,)),
        replace(TRANSACTIONAL, id=8, colocation=(3,)),
    )
    fields = (PartitionField(1009, 3, Transform(TransformKind.IDENTITY), "day"),)
    other = replace(other, partitioning=fields)
    for number in range(20):
        here = ZonePartitions(first, ZONE).of_file(in_part(number % 3, f"d{number}"))
        there = ZonePartitions(other, ZONE).of_file(in_part(f"d{number}", first_id=1009))
        assert here == there
    plain, second = replace(PLAIN, colocation=(3,)), replace(PLAIN, id=8, colocation=(3,))
    for number in range(20):
        places = [ZonePartitions(t, ZONE).of_values((f"d{number}", "x")) for t in (plain, second)]
        assert places[0] == places[1] == ZonePartitions(plain, ZONE).of_values((f"d{number}", "y"))


def test_colocation_by_a_column_whose_values_are_unknown_has_no_effect() -> None:
    bucketed = ZonePartitions(replace(TRANSACTIONAL, colocation=(4,)), ZONE)
    as_before = ZonePartitions(TRANSACTIONAL, ZONE)
    for number in range(20):
        partition = in_part(number, f"d{number}")
        assert bucketed.of_file(partition) == as_before.of_file(partition)


def test_a_row_about_several_zone_partitions_is_at_the_table_level() -> None:
    assert common([2, 2]) == 2
    assert common([2, 1]) == common([]) == common([2, TABLE_LEVEL]) == TABLE_LEVEL


# -- rows that clients write


def buckets(node: Node, table_id: int, kind: RowKind) -> dict[str, int]:
    return {row.name: row.bucket for row in node.store.rows(table_id, kind, write_ids=None)}


@pytest.fixture
def node(tmp_path: Path) -> Any:
    with Node.open(tmp_path / "store") as opened:
        columns = (ColumnDefinition("k", INT), ColumnDefinition("p", STRING))
        plain = TableDefinition(name="plain", columns=columns, partition_columns=("p",), zone="z")
        partitioned = TableDefinition(
            name="t", columns=columns, partitioned_by=("p",), transactional=True, zone="z"
        )
        opened.session(user="ann").execute(
            [
                CreateZone(name="z", partitions=ZONE),
                CreateTable(schema="default", definition=plain),
                CreateTable(schema="default", definition=partitioned),
            ]
        )
        yield opened


def test_staged_files_are_assigned_to_the_partitions_of_the_zone(node: Node) -> None:
    session = node.session(user="ann")
    table = session.table("default.t").descriptor
    (field,) = table.partitioning
    zone = ZonePartitions(table, ZONE)
    txn_id = session.begin().txn_id
    first = txn_id << 20
    files = [
        DataFile(
            file_id=first + number,
            path=f"f{number}",
            rows=9,
            bytes=1,
            partition=(PartitionValue(field.id, f"v{number}"),),
        )
        for number in range(12)
    ]
    session.stage(txn_id, table.id, add=files)
    session.commit(txn_id)
    placed = buckets(node, table.id, RowKind.DATA_FILE)
    assert placed == {file.path: zone.of_file(file.partition) for file in files}
    assert len(set(placed.values())) == ZONE
    apart = next(n for n in range(12) if placed[f"f{n}"] != placed["f0"])
    txn_id = session.begin().txn_id
    delete_file = DeleteFile(path="one", file_ids=(first,), counts=(1,))
    two = DeleteFile(path="two", file_ids=(first, first + apart), counts=(1, 1))
    session.stage(txn_id, table.id, add=[delete_file, two])
    session.commit(txn_id)
    deletes = buckets(node, table.id, RowKind.DELETE_FILE)
    assert deletes == {"one": placed["f0"], "two": TABLE_LEVEL}


def test_hive_partitions_are_assigned_to_the_partitions_of_the_zone(node: Node) -> None:
    table = node.session(user="ann").table("default.plain").descriptor
    zone = ZonePartitions(table, ZONE)
    service = HiveMetastoreService(node.metastore)

    def call(method: str, **args: Any) -> None:
        sent = HIVE_CODEC.decode_args(method, HIVE_CODEC.encode_args(method, args))
        service._result(Request(METHODS[method], sent, "ann", node.metastore))

    def partition(value: str) -> dict[str, Any]:
        sd = {"cols": [{"name": "k", "type": "int"}], "serdeInfo": {"parameters": {}}}
        return {"values": [value], "dbName": "default", "tableName": "plain", "sd": sd}

    values = [f"v{number}" for number in range(12)]
    call("add_partitions", new_parts=[partition(value) for value in values])
    placed = buckets(node, table.id, RowKind.PARTITION)
    assert placed == {f"p={value}": zone.of_values((value,)) for value in values}
    assert len(set(placed.values())) == ZONE
    named = {"db_name": "default", "tbl_name": "plain"}
    call("alter_partitions", **named, new_parts=[partition("v3")])
    counts = {"numNulls": 0, "numDVs": 1}
    sent = {"colName": "k", "colType": "int", "statsData": {"longStats": counts}}
    described = {"isTblLevel": False, "dbName": "default", "tableName": "plain"}
    of_v5 = {"statsDesc": {**described, "partName": "p=v5"}, "statsObj": [sent]}
    call("update_partition_column_statistics", stats_obj=of_v5)
    new = next(f"w{n}" for n in range(99) if zone.of_values((f"w{n}",)) != placed["p=v4"])
    call("rename_partition", **named, part_vals=["v4"], new_part=partition(new))
    after = buckets(node, table.id, RowKind.PARTITION)
    assert [after[name] for name in ("p=v3", "p=v5")] == [placed["p=v3"], placed["p=v5"]]
    assert after[f"p={new}"] == zone.of_values((new,)) != placed["p=v4"]
