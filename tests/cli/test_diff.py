"""``strandline diff``: the differences between versions, for people and for programs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from strandline.catalog.commands import (
    AddColumns,
    ColumnDefinition,
    CreateSchema,
    CreateTable,
    DropTable,
    RenameTable,
    SetTableProperties,
    TableDefinition,
)
from strandline.clock import Timestamp
from strandline.model.types import INT
from strandline.node import Node
from tests.strandline_command import strandline
from tests.times import exact_text


def create(name: str) -> CreateTable:
    definition = TableDefinition(name=name, columns=(ColumnDefinition("k", INT),))
    return CreateTable(schema="shop", definition=definition)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Version 3 makes two tables, 4 alters one and drops the other, 5 renames one; 2 is trimmed."""
    folder = tmp_path_factory.mktemp("stores") / "s"
    with Node.open(folder) as node:
        session = node.session(user="ann")
        made = session.execute([CreateSchema(name="shop"), create("a"), create("b")])
        added = AddColumns(schema="shop", table="a", columns=(ColumnDefinition("n", INT),))
        tagged = SetTableProperties(schema="shop", table="a", set=(("[bold]", "1"),))
        session.execute([added, tagged, DropTable(schema="shop", table="b")])
        session.execute(RenameTable(schema="shop", table="a", new_name="c"))
        session.compact(made.version)
    return folder


def diff(store: Path, *arguments: str) -> list[str]:
    result = strandline("diff", store, *arguments)
    assert result.exit_code == 0, result.output
    return result.output.splitlines()


def test_each_changed_field_is_printed_on_one_line(store: Path) -> None:
    lines = [line.split() for line in diff(store, "3", "4")]
    assert lines == [
        ["change", "what", "field", "before", "after"],
        ["altered", "table", "shop.a", "columns[n]", "—", "n", "int"],
        ["schema_version", "1", "2"],
        ["next_column_id", "2", "3"],
        ["properties[[bold]]", "—", "1"],
        ["dropped", "table", "shop.b"],
    ]


def test_json_output_has_one_object_per_line_with_stable_keys(store: Path) -> None:
    altered, dropped = map(json.loads, diff(store, "4", "3", "--output", "json"))
    assert list(altered) == ["change", "kind", "id", "name", "old_name", "fields"]
    assert (altered["change"], altered["kind"], altered["name"]) == ("altered", "table", "shop.a")
    assert altered["fields"][0] == {"field": "columns[n]", "old": "n int", "new": None}
    assert (dropped["change"], dropped["name"], dropped["fields"]) == ("created", "shop.b", [])


def test_a_renamed_table_is_shown_with_both_names(store: Path) -> None:
    _, line = diff(store, "4")
    assert line.split() == ["renamed", "table", "shop.c", "(was", "shop.a)"]


def test_a_time_of_the_history_is_accepted_after_the_clock_was_turned_back(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Node.open(store) as node:
        latest = exact_text(node.catalogs.catalog(5).time)
    monkeypatch.setattr("strandline.cli.stores.HybridClock.current", lambda _: Timestamp(1))
    assert diff(store, latest) == ["no difference"]


def test_diff_accepts_times_instead_of_versions(store: Path) -> None:
    with Node.open(store) as node:
        at = {v: exact_text(node.catalogs.catalog(v).time) for v in (3, 4)}
    assert diff(store, at[3], at[4]) == diff(store, "3", "4")


def test_diff_of_equal_versions_prints_no_difference(store: Path) -> None:
    assert diff(store, "4", "4") == ["no difference"]
    assert diff(store, "4", "4", "--output", "json") == []


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (["2"], 66, "version 2 is no longer kept; the earliest is version 3"),
        (["99"], 66, "version 99 does not exist"),
        (["2", "99"], 66, "version 2 is no longer kept"),
        (["4", "99"], 66, "version 99 does not exist; the latest is 5"),
        (["9" * 18], 66, "does not exist"),
        (["9" * 30], 64, "is neither a version nor a time"),
        (["9" * 5_000], 64, "is neither a version nor a time"),
        (["soon"], 64, "'soon' is neither a version nor a time; write a time like 20"),
        (["9999-12-31"], 64, ", between 1970 and the year 6429"),
        (["v4"], 64, "'v4' is neither a version nor a time"),
        (["2000-01-01"], 66, "2000-01-01 is before the earliest version that is kept: 3, active"),
        (["4", "2999-01-01"], 66, "2999-01-01 is in the future: it is now 2"),
    ],
)
def test_an_invalid_point_gives_a_one_line_error_and_an_exit_status(
    store: Path, arguments: list[str], status: int, says: str
) -> None:
    result = strandline("diff", store, *arguments)
    assert result.exit_code == status
    assert says in result.output
    assert len(result.output.splitlines()) == 1
