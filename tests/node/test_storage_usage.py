"""How many bytes the tables take: measured by a node, recorded in the log, shown to who may read.

On a folder and on PostgreSQL; what the logs do with the records is in their contract.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from click.testing import CliRunner

from strandline.catalog import storage_usage
from strandline.catalog.commands import (
    ColumnDefinition,
    CreateSchema,
    CreateTable,
    DropTable,
    TableDefinition,
)
from strandline.cli import main
from strandline.errors import ObjectNotFound, Stopping
from strandline.metastore.session import HttpSession
from strandline.metastore.session.http_app import HttpApplication
from strandline.metastore.store.file_counts import measured_sizes
from strandline.model.types import INT
from strandline.node import Node
from tests.metastore.session.served import serving
from tests.servers import stores


@pytest.fixture(params=["folder", "postgresql"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> stores.EmptyStore:
    return stores.new_store(request.param, tmp_path)


@pytest.fixture
def node(store: stores.EmptyStore) -> Iterator[Node]:
    with Node.open(store.address, settings=store.settings) as node:
        session = node.session(user="ann")
        session.execute(CreateSchema(name="s"))
        for name in ("a", "b"):
            session.execute(table(name))
        yield node


def table(name: str) -> CreateTable:
    columns = (ColumnDefinition("c", INT),)
    return CreateTable(schema="s", definition=TableDefinition(name=name, columns=columns))


def write(node: Node, name: str, path: str, size: int) -> None:
    """Put a file of ``size`` bytes into the folder of a table."""
    folder = Path(urlsplit(node.session(user="ann").table(name).location).path)
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    (folder / path).write_bytes(b"x" * size)


def sizes(node: Node) -> dict[str, int]:
    return {usage.table: usage.size_bytes for usage in node.session(user="ann").storage_usage()}


def test_what_lies_in_the_folder_of_a_table_is_measured(node: Node) -> None:
    assert sizes(node) == {}
    write(node, "s.a", "part-1.parquet", 10)
    write(node, "s.a", "_files/_hidden/1.parquet", 32)
    node.measure_storage()
    assert sizes(node) == {"s.a": 42, "s.b": 0}
    write(node, "s.b", "1", 7)
    node.measure_storage()
    assert sizes(node) == {"s.a": 42, "s.b": 7}
    session = node.session(user="ann")
    assert [one.size_bytes for one in session.storage_usage("s.b")] == [0, 7]
    (only,) = session.storage_usage("s.a")
    assert only.table_id == session.table("s.a").descriptor.id
    assert [v.time for v in session.history()][-1] < only.time < node.catalogs.present().time


def test_a_measurement_is_no_version_that_people_see_and_none_where_nothing_changed(
    node: Node,
) -> None:
    before, seen = node.catalogs.present().version, node.session(user="ann").history()
    node.measure_storage()
    assert node.catalogs.present().version == before + 1
    node.measure_storage()
    assert node.catalogs.present().version == before + 1
    assert node.session(user="ann").history() == seen
    write(node, "s.a", "1", 1)
    node.measure_storage()
    assert node.catalogs.present().version == before + 2


def test_records_go_with_the_history_and_come_back_with_the_next_measurement(node: Node) -> None:
    write(node, "s.a", "1", 1)
    node.measure_storage()
    write(node, "s.b", "1", 2)
    node.measure_storage()
    node.session(user="ann").compact(node.catalogs.present().version - 1)
    assert sizes(node) == {"s.b": 2}
    node.measure_storage()
    assert sizes(node) == {"s.a": 1, "s.b": 2}


def test_a_dropped_table_is_not_shown(node: Node) -> None:
    node.measure_storage()
    node.session(user="ann").execute(DropTable(schema="s", table="a"))
    assert sizes(node) == {"s.b": 0}
    with pytest.raises(ObjectNotFound, match=r"s\.a"):
        node.session(user="ann").storage_usage("s.a")
    node.measure_storage()
    assert sizes(node) == {"s.b": 0}


def test_of_two_nodes_that_measure_at_a_time_one_records(
    node: Node, store: stores.EmptyStore
) -> None:
    with Node.open(store.address, settings=store.settings, background=False) as other:
        log, catalog = other.catalogs.state.log, other.catalogs.present()
        since = storage_usage.measured(catalog)
        a = node.session(user="ann").table("s.a").descriptor.id
        node.measure_storage()
        version = node.catalogs.present().version
        storage_usage.record_storage_usage(
            other.catalogs, log, {a: 99}, since=since, at=other.catalogs.now()
        )
        assert other.catalogs.present().version == version
        assert sizes(node)["s.a"] == 0


def test_many_tables_are_recorded_in_parts_and_with_a_clock_that_is_behind(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage_usage, "TABLES_AT_ONCE", 2)
    ids = {name: node.session(user="ann").table(f"s.{name}").descriptor.id for name in ("a", "b")}
    node.measure_storage()
    before = node.catalogs.present()
    since = storage_usage.measured(before)
    assert since is not None
    every = {ids["a"]: 5, ids["b"]: 6, 1_000: 1, 1_001: 1, 1_002: 1}
    log = node.catalogs.state.log
    storage_usage.record_storage_usage(node.catalogs, log, every, since=since, at=since)
    assert node.catalogs.present().version == before.version + 3
    assert sizes(node) == {"s.a": 5, "s.b": 6}


def test_the_node_measures_by_itself(store: stores.EmptyStore) -> None:
    often = replace(store.settings, storage_usage_interval_ms=20)
    with Node.open(store.address, settings=often) as node:
        node.session(user="ann").execute([CreateSchema(name="s"), table("a")])
        write(node, "s.a", "1", 3)
        end = time.monotonic() + 60
        while sizes(node) != {"s.a": 3}:
            assert time.monotonic() < end, "nothing was measured in a minute"
            time.sleep(0.01)


def test_a_node_that_stops_ends_a_measurement(node: Node) -> None:
    a = node.session(user="ann").table("s.a").descriptor.id
    for n in range(300):
        write(node, "s.a", f"{n}", 1)
    asked = []

    def stopped() -> bool:
        asked.append(1)
        return len(asked) > 1

    with pytest.raises(Stopping):
        measured_sizes(node.database, node.folders, {a}, stopped=stopped)
    assert len(asked) < 5


def test_clients_over_http_see_what_they_may_read(node: Node) -> None:
    root = node.session(user="root")
    write(node, "s.a", "1", 3)
    node.measure_storage()
    with serving(HttpApplication(node.metastore)) as url:
        bob = HttpSession(url, user="bob")
        assert bob.storage_usage() == root.storage_usage()
        assert [usage.size_bytes for usage in bob.storage_usage("s.a")] == [3]
        bob.close()
    assert [u.table for u in root.storage_usage()] == ["s.a", "s.b"]


@pytest.mark.parametrize("output", ["text", "json"])
def test_the_command_shows_the_largest_first(
    node: Node, store: stores.EmptyStore, output: str
) -> None:
    write(node, "s.b", "1", 1_234)
    node.measure_storage()
    write(node, "s.b", "2", 1)
    node.measure_storage()

    def shown(*more: str) -> list[str]:
        arguments = ["storage-usage", str(store.address), *more, "--output", output]
        result = CliRunner().invoke(main, arguments)
        assert result.exit_code == 0, result.output
        return result.stdout.splitlines()

    if output == "json":
        rows = [json.loads(line) for line in shown()]
        assert [(row["table"], row["size_bytes"]) for row in rows] == [("s.b", 1_235), ("s.a", 0)]
        assert [json.loads(line)["size_bytes"] for line in shown("s.b")] == [1_234, 1_235]
    else:
        assert shown()[-1] == "2 tables, 1,235 bytes"
        assert "1,234" in "\n".join(shown("s.b"))
    result = CliRunner().invoke(main, ["storage-usage", str(store.address), "s.none"])
    assert result.exit_code != 0
    assert "there is no table s.none" in result.stderr
