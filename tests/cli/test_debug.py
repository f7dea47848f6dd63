"""``strandline debug``: dump, epoch, edit and delete."""

from __future__ import annotations

import json
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from strandline.catalog.commands import (
    ColumnDefinition,
    CreateRole,
    CreateSchema,
    CreateTable,
    CreateView,
    GrantRole,
    TableDefinition,
    ViewDefinition,
)
from strandline.cli.main import IO_ERROR
from strandline.config import Settings
from strandline.errors import SURFACES, InvalidInput
from strandline.model.types import BIGINT
from strandline.node import Node
from tests.servers import stores
from tests.strandline_command import strandline


def run(*arguments: object, fails: bool = False) -> str:
    result = strandline("debug", *arguments)
    assert (result.exit_code != 0) is fails, result.output
    return result.output


def dumped(*arguments: object) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(run("dump", *arguments))
    return parsed


def objects(dump: dict[str, Any], kind: str) -> dict[Any, Any]:
    return {o["key"]: o["value"] for o in dump["collections"][kind]["objects"]}


LOGS = ["metastorage", "stash", "persist", "shadow"]
KINDS = [*LOGS, "postgresql"]


@pytest.fixture(scope="module", params=[*LOGS, pytest.param("postgresql", marks=pytest.mark.slow)])
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A store with its catalog in each kind of log."""
    kind, log = ("folder", request.param) if request.param in LOGS else (request.param, "")
    made = stores.new_store(kind, tmp_path_factory.mktemp("debug"))
    with Node.open(made.address, settings=replace(made.settings, catalog_log=log)) as node:
        top = ViewDefinition(
            name="top",
            columns=(ColumnDefinition("one", BIGINT),),
            original_text="SELECT 1",
            expanded_text="SELECT 1",
        )
        node.session(user="ann").execute(
            [
                CreateSchema(name="shop"),
                CreateSchema(name="empty"),
                CreateView(schema="shop", definition=top),
                CreateRole(name="analysts"),
                CreateRole(name="bob"),
                GrantRole(role="analysts", member="bob"),
            ]
        )
    return made.address


def test_an_object_from_a_dump_can_be_edited_and_written_back(store: Any) -> None:
    before = dumped(store)
    ((key, shop),) = ((k, v) for k, v in objects(before, "schema").items() if v["name"] == "shop")
    edited = {**shop, "comment": "repaired\nby hand"}
    said = run("edit", store, "schema", json.dumps(key), json.dumps(edited), "--user", "ann")
    assert json.loads(said.splitlines()[0].removeprefix("previous value: ")) == shop
    after = dumped(store)
    assert objects(after, "schema")[key] == edited
    assert (after["epoch"], after["version"]) == (before["epoch"] + 1, before["version"] + 2)
    assert after["environment"] == before["environment"]
    event = after["collections"]["audit_event"]["objects"][-1]
    assert event["value"]["author"] == "ann"
    assert event["value"]["actions"] == [["debug_edit", {"object": f"schema {key}"}]]
    again = run("edit", store, "schema", json.dumps(key), json.dumps(edited))
    assert "nothing was changed" in again
    assert f"epoch {after['epoch']}, " in run("epoch", store)


def test_delete_removes_an_object_and_prints_it(store: Any) -> None:
    run("edit", store, "setting", '"note"', '{"name": "note", "value": "seen"}')
    said = run("delete", store, "setting", '"note"')
    assert '"value":"seen"' in said
    assert "note" not in objects(dumped(store), "setting")
    assert "does not exist" in run("delete", store, "setting", '"note"', fails=True)


def test_a_dump_replaces_a_file_and_writes_into_links_and_pipes(tmp_path: Path) -> None:
    lake, file, link, pipe = (tmp_path / name for name in ("lake", "file", "link", "pipe"))
    Node.open(lake).close()
    file.write_text("before")
    file.chmod(0o600)
    link.symlink_to(file)
    run("dump", lake, link, "--stats-only")
    assert link.is_symlink()
    assert "collections" in json.loads(file.read_text())
    assert file.stat().st_mode & 0o777 == 0o600
    os.mkfifo(pipe)
    with ThreadPoolExecutor(1) as threads:
        text = threads.submit(pipe.read_text)
        run("dump", lake, pipe, "--stats-only")
        assert "collections" in json.loads(text.result())
    assert pipe.is_fifo()
    full = strandline("debug", "dump", lake, "/dev/full")
    assert full.exit_code == IO_ERROR
    assert full.stderr == "strandline: /dev/full cannot be written: No space left on device\n"
    missing = strandline("debug", "dump", lake, tmp_path / "none" / "x")
    assert missing.exit_code == SURFACES[InvalidInput].exit
    assert "x cannot be written: its folder does not exist" in missing.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "lake", "link", "pipe"]


def test_a_dump_leaves_the_part_of_a_process_with_the_same_id_in_another_container(
    store: Any, tmp_path: Path
) -> None:
    part = tmp_path / f".dump.json.{os.getpid()}"
    part.write_text("half")
    run("dump", store, tmp_path / "dump.json", "--stats-only")
    assert part.read_text() == "half"


def refused(dump: dict[str, Any]) -> list[tuple[list[str], str]]:
    """Edits and deletes that break a rule, and a part of the error message for each."""
    schemas = objects(dump, "schema")
    ((shop_id, shop),) = ((k, v) for k, v in schemas.items() if v["name"] == "shop")
    ((database_id, hive),) = objects(dump, "database").items()
    (default_id,) = (key for key, value in schemas.items() if value["name"] == "default")
    next_id = objects(dump, "id_allocator")["object"]["next_id"]

    (system_id,) = (key for key, value in schemas.items() if value["name"] == "system")
    ((view_id, top),) = objects(dump, "view").items()
    ((zone_id, default_zone),) = objects(dump, "zone").items()
    roles = {value["name"]: value for value in objects(dump, "role").values()}
    analysts, bob = roles["analysts"]["id"], roles["bob"]["id"]

    def schema(**changed: Any) -> str:
        return json.dumps({**shop, **changed})

    def view(**changed: Any) -> str:
        return json.dumps({**top, **changed})

    def database(**changed: Any) -> str:
        return json.dumps({**hive, **changed})

    def zone(**changed: Any) -> str:
        return json.dumps({**default_zone, **changed})

    def allocator(number: int) -> str:
        return json.dumps({"name": "object", "next_id": number})

    def role(present: str, **changed: Any) -> str:
        return json.dumps({**roles[present], **changed})

    def member(name: str, group: int) -> str:
        return role(name, member_of=[{"group": group, "grantor": 0}])

    def config(name: str, value: str) -> str:
        return json.dumps({"name": name, "value": value})

    return [
        (["edit", "schema", str(shop_id), schema(name="EMPTY")], "already exists"),
        (["edit", "schema", str(shop_id), schema(id=1)], "the key is"),
        (["edit", "schema", str(shop_id), schema(colour=1)], "colour"),
        (["edit", "schema", str(shop_id), "{"], "the value is not JSON"),
        (["edit", "schema", '"shop"', schema()], "its id, a number"),
        (["edit", "schema", "shop", schema()], "write a name in quotes"),
        (["edit", "schema", "true", schema()], "its id, a number, found True"),
        (["edit", "schema", str(shop_id), schema(database_id=999)], "database 999"),
        (["edit", "schema", str(next_id), schema(id=next_id, name="n")], "was never allocated"),
        (["edit", "schema", "-5", schema(id=-5, name="n")], "-5"),
        (
            ["edit", "id_allocator", '"object"', '{"name": "object", "next_id": 3}'],
            "the highest id in use is",
        ),
        (["edit", "id_allocator", '"object"', allocator(2**63 - 1)], "at most to"),
        (["edit", "id_allocator", '"new"', '{"name": "new", "next_id": 0}'], "cannot be 0"),
        (
            ["edit", "view", str(view_id), view(schema_id=system_id)],
            "is reserved for the catalog itself",
        ),
        (
            ["edit", "zone", str(shop_id), zone(id=shop_id)],
            f"id {shop_id} already belongs to a schema",
        ),
        (["edit", "zone", str(zone_id), zone(name="other")], "is the default zone"),
        (["delete", "zone", str(zone_id)], "is the default zone"),
        (["delete", "schema", str(default_id)], "is the default schema"),
        (["edit", "database", str(database_id), database(name="other")], "is the default database"),
        (["edit", "zone", str(zone_id), zone(partitions=0)], "cannot be changed"),
        (["edit", "schema", str(shop_id), schema(name=" ")], "must not be empty"),
        (["edit", "schema", str(shop_id), schema(name="a@1")], "must not contain @"),
        (["edit", "view", str(view_id), view(name="top@1")], "must not contain @"),
        (["edit", "role", str(bob), role("bob", name="public")], "reserved for all users"),
        (["edit", "system_view", "5", "{}"], "objects of the kind 'system_view' cannot be edited"),
        (["edit", "config", '"default_zone"', config("default_zone", "x")], "the id of a zone"),
        (["delete", "config", '"default_zone"'], "tables are created in that zone"),
        (["edit", "system_configuration", '"max_tables"', config("max_tables", "-1")], "'-1'"),
        (["edit", "system_configuration", '"colour"', config("colour", "7")], "is unknown"),
        (["delete", "schema", "[" * 100_000], "is not JSON"),
        (["delete", "setting", r'"\ud800"'], "is not JSON"),
        (["edit", "setting", '"x"', "\udcff"], "the value is not UTF-8"),
        (["edit", "schema", str(shop_id), "[" * 100_000], "too deep"),
        (["edit", "fence", '"catalog"', "{}"], "objects of the kind 'fence' cannot be edited"),
        (["edit", "colour", '"x"', "{}"], "objects of the kind 'colour' cannot be edited"),
        (["delete", "setting", '"content_version"'], "migrates it"),
        (["edit", "config", '"environment"', '{"name": "environment", "value": "x"}'], "relocate"),
        *(
            ([command, "config", f'"{name}"', *value], reason)
            for name, reason in (
                ("delay_duration_ms", "when the catalog is created"),
                ("max_clock_skew_ms", "when the catalog is created"),
                ("format_version", "migrates it"),
            )
            for command, value in (
                ("edit", [json.dumps({"name": name, "value": "7"})]),
                ("delete", []),
            )
        ),
        (["delete", "database", str(database_id)], f"refers to database {database_id}"),
        (["delete", "role", str(analysts)], f"refers to role {analysts}"),
        (["edit", "role", str(bob), member("bob", 999)], "refers to role 999, which does not"),
        (["edit", "role", str(analysts), member("analysts", bob)], "a member of itself"),
        (["delete", "id_allocator", '"object"'], "go back from"),
        (["delete", "schema", "99999999999999999999"], "does not exist"),
    ]


@pytest.mark.parametrize(
    "store",
    [KINDS[0], *(pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS[1:])],
    indirect=True,
)
def test_an_edit_that_breaks_a_rule_is_refused_and_changes_nothing(store: Any) -> None:
    before = dumped(store)
    for (command, *rest), reason in refused(before):
        said = run(command, "--user", "ann", "--", store, *rest, fails=True)
        assert reason in said, (rest, said)
        assert "Traceback" not in said
    assert dumped(store) == before


def broken_tables(table: dict[str, Any]) -> list[tuple[dict[str, Any], str]]:
    """Tables with invalid columns, and a part of the error message for each."""
    (version,) = table["schema_versions"]
    first, second = version["columns"]

    def columns(*changed: dict[str, Any], number: int = 1) -> dict[str, Any]:
        return {**table, "schema_versions": [{**version, "number": number, "columns": changed}]}

    return [
        ({**table, "schema_versions": []}, "at least one version"),
        ({**table, "schema_versions": [version, version]}, "the numbers must increase"),
        ({**table, "next_column_id": table["next_column_id"] - 1}, "can only increase"),
        (columns(first, {**second, "id": first["id"]}), "ids must be unique"),
        (columns(first, {**second, "id": table["next_column_id"]}), "below next_column_id"),
        (columns(first, {**second, "id": 0}), "ids must be unique"),
        (columns(first, {**second, "name": first["name"].upper()}), "duplicate column"),
        ({**table, "primary_key": [99]}, "column 99, which the table does not have"),
    ]


def test_an_edit_with_invalid_columns_is_refused(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    with Node.open(lake) as node:
        session = node.session(user="ann")
        columns = (ColumnDefinition("a", BIGINT), ColumnDefinition("b", BIGINT))
        definition = TableDefinition(name="orders", columns=columns)
        session.execute(
            [CreateSchema(name="shop"), CreateTable(schema="shop", definition=definition)]
        )
    before = dumped(lake)
    ((key, table),) = objects(before, "table").items()
    for broken, reason in broken_tables(table):
        said = run("edit", lake, "table", json.dumps(key), json.dumps(broken), fails=True)
        assert reason in said, said
    assert dumped(lake) == before
    run("edit", lake, "table", json.dumps(key), json.dumps({**table, "comment": "repaired"}))


@pytest.mark.parametrize("log", LOGS)
def test_a_running_node_continues_with_the_edited_catalog(log: str, tmp_path: Path) -> None:
    with Node.open(tmp_path / "lake", settings=Settings(catalog_log=log)) as node:
        session = node.session(user="ann")
        session.execute(CreateSchema(name="shop"))
        run("edit", tmp_path / "lake", "setting", '"note"', '{"name": "note", "value": "seen"}')
        session.execute(CreateSchema(name="later"))
        dump = dumped(tmp_path / "lake")
    assert "note" in objects(dump, "setting")
    assert {"shop", "later"} <= {s["name"] for s in objects(dump, "schema").values()}
    assert dump["epoch"] == 2


def test_a_copied_folder_is_not_edited_before_it_is_relocated(tmp_path: Path) -> None:
    copied = tmp_path / "copied"
    Node.open(tmp_path / "s").close()
    shutil.copytree(tmp_path / "s", copied)
    edit = ("setting", '"n"', '{"name": "n", "value": "seen"}')
    assert "strandline relocate" in run("edit", copied, *edit, fails=True)
    assert "strandline relocate" in run("delete", copied, "setting", '"n"', fails=True)
    assert strandline("relocate", copied, "--copy").exit_code == 0
    assert "previous value: null" in run("edit", copied, *edit)


def test_a_failed_dump_leaves_the_existing_file(store: Any, tmp_path: Path) -> None:
    target = tmp_path / "dump.json"
    target.write_text("old")
    assert "'colour' is not a kind" in run("dump", store, target, "--ignore", "colour", fails=True)
    assert target.read_text() == "old"
    run("dump", store, target, "--ignore", "audit_event", "--stats-only")
    counts = json.loads(target.read_text())["collections"]
    assert "audit_event" not in counts
    assert counts["database"] == {"count": 1}
    assert [file.name for file in tmp_path.iterdir()] == ["dump.json"]
    missing = tmp_path / "none" / "dump.json"
    assert "cannot be written" in run("dump", store, missing, fails=True)
    assert "there is no store" in run("dump", tmp_path / "none", target, fails=True)
    assert json.loads(target.read_text())["collections"] == counts
