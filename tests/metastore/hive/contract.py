"""Scenarios of calls: their building blocks, and how they are checked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hive_metastore.ttypes import Database, FieldSchema, Partition

from tests.metastore.hive.hive_node import outcome, plain, storage, table


def given(client: Any, name: str) -> None:
    """A schema, and in it the plain table ``t1``, ``parted`` (p int, q string) and a view."""
    client.create_database(Database(name=name))
    client.create_table(table("t1", schema=name, owner="ann", parameters={"x": "y"}))
    keys = [FieldSchema("P", "int", None), FieldSchema("q", "string", None)]
    client.create_table(table("parted", schema=name, partitionKeys=keys))
    view = {"tableType": "VIRTUAL_VIEW", "viewOriginalText": "select 1"}
    client.create_table(table("v1", schema=name, viewExpandedText="select 2", **view))


def partition(schema: str, *values: str, name: str = "parted", location: str | None = None) -> Any:
    return Partition(
        values=list(values),
        dbName=schema,
        tableName=name,
        sd=storage(location=location),
        parameters={"k": "v"},
    )


@dataclass(frozen=True)
class Throws:
    """An exception and its text; with ``begins``, the text may continue."""

    name: str
    text: str
    begins: bool = False


Step = tuple[Callable[[Any], Any], object]
PARTITIONED = Throws("MetaException", "Invalid partition key & values; keys [p, q, ], values [1, ]")


def check(client: Any, steps: list[Step]) -> None:
    for number, (call, expected) in enumerate(steps):
        refused = plain(outcome(lambda call=call: call(client)))
        if isinstance(expected, Throws):
            name, text = refused
            assert name == expected.name, (number, refused)
            assert text == expected.text or (expected.begins and text.startswith(expected.text)), (
                number,
                refused,
            )
        else:
            assert refused == expected, number
