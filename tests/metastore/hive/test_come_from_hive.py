"""The scripts of the page on coming from Hive copy and compare a metastore."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.metastore.hive.differential.scenario import partition, table, view
from tests.metastore.hive.hive_node import HiveNode, hive_node
from tests.project.checkout import ROOT
from tests.project.docs_examples import examples
from tests.servers.hive_metastore import hive_metastore
from tests.servers.hive_metastore import warehouse as warehouse_of_hive
from tests.servers.thrift_client import ThriftClient

PAGE = ROOT / "docs" / "how-to" / "come-from-hive.md"
STATISTICS = {
    "colName": "a",
    "colType": "int",
    "statsData": {"longStats": {"lowValue": 1, "highValue": 5, "numNulls": 0, "numDVs": 3}},
}
SPECIAL = ("x y/z=%", "__HIVE_DEFAULT_PARTITION__", "Größe ☃")


@pytest.fixture(scope="module")
def page() -> dict[str, Any]:
    """The names that the Python blocks of the page define."""
    names: dict[str, Any] = {"__name__": "page"}
    for example in examples(PAGE.read_text(encoding="utf-8")):
        if example.language == "python":
            exec(compile(example.source, str(PAGE), "exec"), names)
    return names


@pytest.fixture(params=["node", pytest.param("hive", marks=pytest.mark.slow)])
def old(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[int, Path]]:
    """The port and the warehouse of a metastore with objects, which runs on its own folder."""
    folder = tmp_path / "old"
    if request.param == "node":
        with hive_node(folder) as node:
            fill(node.port, folder / "warehouse")
            yield node.port, folder / "warehouse"
    else:
        folder.mkdir()
        with hive_metastore(folder) as port:
            fill(port, warehouse_of_hive(folder))
            yield port, warehouse_of_hive(folder)


@pytest.fixture
def new(tmp_path: Path) -> Iterator[HiveNode]:
    with hive_node(tmp_path / "new") as node:
        yield node


def fill(port: int, warehouse: Path) -> None:
    with ThriftClient("127.0.0.1", port) as client:
        client.call("create_database", database={"name": "shop", "description": "of all"})
        client.call("create_table", tbl=table("shop", "words", owner="eve"))
        client.call("create_table", tbl=table("shop", "sales", keys="p string"))
        client.call("create_table", tbl=view("shop", "seen"))
        parts = [partition("shop", "sales", value) for value in SPECIAL]
        client.call("add_partitions", new_parts=parts)
        whole = {"isTblLevel": True, "dbName": "shop", "tableName": "words"}
        part = {**whole, "isTblLevel": False, "tableName": "sales", "partName": f"p={SPECIAL[2]}"}
        for kind, desc in (("table", whole), ("partition", part)):
            statistics = {"statsDesc": desc, "statsObj": [STATISTICS]}
            client.call(f"update_{kind}_column_statistics", stats_obj=statistics)
        function = {"functionName": "low", "dbName": "shop", "className": "x.Low"}
        typed = {"ownerName": "eve", "ownerType": 1, "functionType": 1, "resourceUris": []}
        client.call("create_function", func={**function, **typed})
    (warehouse / "shop.db" / "words" / "file").write_text("1")


def test_the_script_copies_a_metastore_whose_files_stay(
    page: dict[str, Any],
    old: tuple[int, Path],
    new: HiveNode,
    capsys: pytest.CaptureFixture[str],
) -> None:
    port, warehouse = old
    page["copy"](f"127.0.0.1:{port}", f"127.0.0.1:{new.port}")
    assert capsys.readouterr().out == ""
    with new.client() as client:
        words = client.call("get_table", dbname="shop", tbl_name="words")
        assert words["sd"]["location"] == f"file:{warehouse}/shop.db/words"
        assert (words["tableType"], words["owner"]) == ("EXTERNAL_TABLE", "eve")
        assert words["parameters"]["numFiles"] == "1"
        shop = client.call("get_database", name="shop")
        assert (shop["locationUri"], shop["description"]) == (f"{new.warehouse}/shop.db", "of all")
        request = {"dbName": "shop", "tblName": "words", "colNames": ["a"], "engine": "hive"}
        answer = client.call("get_table_statistics_req", request=request)
        assert answer["tableStats"] == [STATISTICS]
        request |= {"tblName": "sales", "partNames": [f"p={SPECIAL[2]}"]}
        answer = client.call("get_partitions_statistics_req", request=request)
        assert answer["partStats"] == {f"p={SPECIAL[2]}": [STATISTICS]}
        [function] = client.call("get_all_functions")["functions"]
        assert (function["functionName"], function["ownerName"]) == ("low", "eve")
    assert_equal(page, port, new.port)


def assert_equal(page: dict[str, Any], port: int, new_port: int) -> None:
    ends = [page["Metastore"](f"127.0.0.1:{number}") for number in (port, new_port)]
    assert list(page["differences"](*ends)) == []
    with ThriftClient("127.0.0.1", new_port) as client:
        client.call("drop_partition", db_name="shop", tbl_name="sales", part_vals=[SPECIAL[0]])
        client.call("drop_table", dbname="shop", name="words", deleteData=False)
    reported = sorted(page["differences"](*ends))
    assert [name for name, _ in reported] == ["shop.sales", "shop.words"]
    assert reported[1][1] == "missing"
    for end in ends:
        end.close()


def test_managed_tables_stay_managed_if_their_folders_are_moved(
    page: dict[str, Any],
    old: tuple[int, Path],
    new: HiveNode,
    capsys: pytest.CaptureFixture[str],
) -> None:
    port, warehouse = old
    shutil.move(warehouse / "shop.db", new.folder / "warehouse")
    page["copy"](f"127.0.0.1:{port}", f"127.0.0.1:{new.port}", f"file:{warehouse}={new.warehouse}")
    assert capsys.readouterr().out == ""
    with new.client() as client:
        for name in ("words", "sales"):
            moved = client.call("get_table", dbname="shop", tbl_name=name)
            assert moved["tableType"] == "MANAGED_TABLE"
            assert moved["sd"]["location"] == f"{new.warehouse}/shop.db/{name}"
        parts = client.call("get_partitions", db_name="shop", tbl_name="sales", max_parts=-1)
        assert {part["sd"]["location"].rpartition("/")[0] for part in parts} == {
            f"{new.warehouse}/shop.db/sales"
        }
        client.call("drop_table", dbname="shop", name="words", deleteData=True)
    assert not (new.folder / "warehouse" / "shop.db" / "words").exists()


def test_the_script_names_what_it_cannot_copy(
    page: dict[str, Any], new: HiveNode, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with hive_node(tmp_path / "old") as node:
        fill(node.port, tmp_path / "old" / "warehouse")
        with new.client() as client:
            client.call("create_database", database={"name": "shop"})
        page["copy"](f"127.0.0.1:{node.port}", f"127.0.0.1:{new.port}")
    [line] = capsys.readouterr().out.splitlines()
    assert line.startswith("shop is not complete: create_database: {'AlreadyExistsException'")
