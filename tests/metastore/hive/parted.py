"""The table d1.t1 with three partitions, what it shows, and changes of its partitions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hive_metastore.ttypes import EnvironmentContext, FieldSchema, Partition

from tests.metastore.hive.hive_node import HiveNode, storage, table
from tests.times import exact_text

PURGE = EnvironmentContext({"ifPurge": "TRUE"})


@pytest.fixture(autouse=True)
def parted(stub: Any, hive: HiveNode) -> None:
    """The table d1.t1 with the partitions p=a, p=b and p=c, a file in each."""
    stub.create_table(table("t1", partitionKeys=[FieldSchema("p", "string", None)]))
    for value in "abc":
        add(hive, stub, value)


def add(hive: HiveNode, stub: Any, value: str, *, text: str = "first") -> None:
    stub.add_partition(Partition([value], "d1", "t1", sd=storage()))
    (folder(hive) / f"p={value}" / "f").write_text(f"{text} {value}")


def folder(hive: HiveNode) -> Path:
    return hive.folder / "warehouse" / "d1.db" / "t1"


def moment(hive: HiveNode) -> str:
    """The name of the schema as of now."""
    return f"d1@{exact_text(hive.node.metastore.catalogs.complete_now())}"


def texts(stub: Any, schema: str) -> dict[str, str]:
    """The contents of the partitions of ``schema``, by value."""
    contents = {}
    for partition in stub.get_partitions(schema, "t1", -1):
        place = Path(partition.sd.location.removeprefix("file:"))
        contents[partition.values[0]] = (
            (place / "f").read_text() if place.is_dir() else partition.sd.location
        )
    return contents


FIRST = {value: f"first {value}" for value in "abc"}


def files(hive: HiveNode, name: str) -> dict[str, str]:
    """The contents of the folders of partitions in the folder of a table, by name."""
    return {path.parent.name: path.read_text() for path in (folder(hive).parent / name).glob("*/f")}


CHANGES: dict[str, Callable[[HiveNode, Any], object]] = {
    "drop": lambda hive, stub: stub.drop_partition("d1", "t1", ["b"], True),
    "rename": lambda hive, stub: stub.rename_partition(
        "d1", "t1", ["b"], Partition(["z"], "d1", "t1", sd=storage())
    ),
    "add": lambda hive, stub: stub.add_partition(Partition(["d"], "d1", "t1", sd=storage())),
    "undrop": lambda hive, stub: hive.node.session(user="ann").undrop_partitions("d1.t1"),
}


def capitals(hive: HiveNode, stub: Any, text: str) -> Path:
    """The folder of the partition p=b of a table t2 as Spark makes it for a column P."""
    if "t2" not in stub.get_all_tables("d1"):
        stub.create_table(table("t2", partitionKeys=[FieldSchema("P", "string", None)]))
    place = folder(hive).parent / "t2" / "P=b"
    stub.add_partition(Partition(["b"], "d1", "t2", sd=storage(location=f"file:{place}")))
    (place / "f").write_text(text)
    return place
