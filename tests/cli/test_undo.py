"""``strandline undo`` and ``undrop``, on a store that is closed, and on one that is open."""

from __future__ import annotations

import getpass
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from strandline.catalog import Command
from strandline.catalog.commands import (
    ColumnDefinition,
    CreateSchema,
    CreateTable,
    CreateView,
    DropTable,
    DropView,
    SetTableProperties,
    TableDefinition,
    ViewDefinition,
)
from strandline.cli import main
from strandline.model.types import INT
from strandline.node import Node

COLUMNS = (ColumnDefinition("k", INT),)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Version 4 made ``shop.orders``, with a file in its folder; version 5 dropped it."""
    folder = tmp_path / "s"
    with Node.open(folder) as node:
        session = node.session(user="ann")
        session.execute(CreateSchema(name="shop"))
        definition = TableDefinition(name="orders", columns=COLUMNS)
        session.execute(CreateTable(schema="shop", definition=definition))
        (files(node) / "f").write_text("rows")
        session.execute(DropTable(schema="shop", table="orders"))
    return folder


def files(node: Node) -> Path:
    location = node.session(user="bob").table("shop.orders").location
    return Path(location.removeprefix("file://"))


def strandline(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(one) for one in arguments])


def test_undrop_brings_the_table_back_with_its_files(store: Path) -> None:
    result = strandline("undrop", "table", store, "shop.orders", "--user", "bob")
    assert result.exit_code == 0, result.output
    assert result.output.splitlines() == ["version 6", "  restore table shop.orders (undoes: 5)"]
    with Node.open(store) as node:
        assert (files(node) / "f").read_text() == "rows"
        assert node.session(user="ann").history()[-1].author == "bob"


def test_undo_prints_what_it_did_as_json_like_the_log(store: Path) -> None:
    result = strandline("undo", store, 5, "--output", "json")
    (line,) = result.output.splitlines()
    told = json.loads(line)
    assert list(told) == ["version", "time", "author", "member", "trimmed", "actions"]
    assert (told["version"], told["author"]) == (6, getpass.getuser())
    (action,) = told["actions"]
    assert (action["verb"], action["table"], action["undoes"]) == (
        "restore_table",
        "shop.orders",
        5,
    )
    assert strandline("log", store, "--output", "json", "--last", 1).output.strip() == line


def test_a_node_that_runs_sees_it_at_once(store: Path) -> None:
    with Node.open(store) as node:
        assert strandline("undrop", "table", store, "shop.orders").exit_code == 0
        assert (files(node) / "f").read_text() == "rows"


def test_a_refusal_is_one_sentence_and_a_status(store: Path) -> None:
    strandline("undo", store, 5)
    with Node.open(store) as node:
        command = SetTableProperties(schema="shop", table="orders", set=(("a", "1"),))
        node.session(user="bob").execute(command)
    cases = [
        (("undo", store, 4), 75, "table shop.orders was altered again in version 7 by bob"),
        (("undo", store, 2), 64, "the one that made the catalog"),
        (("undo", store, 99), 66, "does not exist; the latest is 7"),
        (("undrop", "table", store, "shop.orders"), 73, "that name is taken"),
        (("undrop", "table", store, "shop.never"), 66, "no version from 1 on dropped a table"),
        (("undrop", "table", store, "a.b.c"), 64, "expected a name like schema.table"),
    ]
    for arguments, status, says in cases:
        result = strandline(*arguments)
        assert (result.exit_code, len(result.output.splitlines())) == (status, 1), result.output
        assert says in result.output


def test_a_view_can_be_restored_too(store: Path) -> None:
    definition = ViewDefinition(
        name="v", columns=COLUMNS, original_text="SELECT 1", expanded_text="SELECT 1"
    )
    with Node.open(store) as node:
        session = node.session(user="ann")
        session.execute(CreateView(schema="shop", definition=definition))
        session.execute(DropView(schema="shop", view="v"))
    assert strandline("undrop", "view", store, "shop.v").exit_code == 0


def test_nothing_to_undo_is_said_and_makes_no_version(store: Path) -> None:
    with Node.open(store) as node:
        made = CreateTable(schema="shop", definition=TableDefinition(name="t", columns=COLUMNS))
        batch: list[Command] = [made, DropTable(schema="shop", table="t")]
        version = node.session(user="ann").execute(batch).version
    assert strandline("undo", store, version).output.startswith("nothing to undo")
    assert strandline("undo", store, version, "--output", "json").output == ""


@pytest.mark.parametrize("command", [("undo",), ("undrop", "table")])
def test_a_folder_without_a_store_is_left_alone(command: tuple[str, ...], tmp_path: Path) -> None:
    result = strandline(*command, tmp_path, "1")
    assert result.exit_code == 66
    assert "there is no store" in result.output
    assert list(tmp_path.iterdir()) == []
