"""``strandline log``: the history of a store, for people and for programs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from strandline import __version__
from strandline.catalog.commands import (
    AddColumns,
    ColumnDefinition,
    CommentOn,
    CreateSchema,
    CreateTable,
    RenameSchema,
    RenameTable,
    TableDefinition,
)
from strandline.catalog.verbs import describe
from strandline.cli import main
from strandline.cli.history import describe_change
from strandline.clock import Timestamp, format_timestamp
from strandline.config import Settings
from strandline.durable import MetastorageLog
from strandline.durable.log import Scanned
from strandline.metastore.store.data_history import TableChange
from strandline.model.privileges import ObjectKind
from strandline.model.types import INT
from strandline.node import Node
from tests.catalog.callers import Gate, create, together
from tests.node.kept_store import KeptStore
from tests.strandline_command import strandline
from tests.times import exact_text


def make(folder: Path) -> None:
    with Node.open(folder) as node:
        ann, bob = node.session(user="ann"), node.session(user="bob")
        ann.execute(CreateSchema(name="sales"))
        definition = TableDefinition(name="t", columns=(ColumnDefinition("a", INT),))
        version = bob.execute(CreateTable(schema="sales", definition=definition)).version
        added = (ColumnDefinition("b", INT),)
        bob.execute(AddColumns(schema="sales", table="t", columns=added))
        assert ann.compact(version)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> KeptStore:
    return KeptStore(tmp_path_factory.mktemp("log"), make)


@pytest.fixture
def store(kept: KeptStore) -> Path:
    """A store in which two users made three changes, trimmed below the second."""
    return kept.renewed()


def test_each_version_is_shown_with_its_author_and_actions(store: Path) -> None:
    result = strandline("log", store)
    assert result.exit_code == 0
    lines = result.output.splitlines()
    assert [line.split()[0] for line in lines] == ["version", "2", "3", "4", "5"]
    assert "(trimmed)" in lines[2]
    assert "(trimmed)" not in lines[3]
    assert "ann" in lines[2]
    assert "create schema sales" in lines[2]
    assert "add columns sales.t (added: b int)" in lines[4]


def test_json_output_has_one_object_per_line(store: Path) -> None:
    result = strandline("log", store, "--output", "json", "--last", "2")
    records = [json.loads(line) for line in result.output.splitlines()]
    assert [(record["version"], record["author"], record["trimmed"]) for record in records] == [
        (4, "bob", False),
        (5, "bob", False),
    ]
    assert records[1]["actions"] == [
        {"verb": "add_columns", "table": "sales.t", "added": ["b int"]}
    ]


LAST_LINES: list[tuple[str, list[int], int]] = [
    ("--last 2", [14, 15], 14),
    ("--last 2 --until 13", [12, 13], 10),
    ("--since 14", [14, 15], 10),
    ("--last 1 --table sales.t", [5], 2),
    ("--last 1 --table sales.t --since 5", [5], 2),
    ("--table sales.t --since 6", [], 2),
    ("--last 1 --user BOB --data", [5], 2),
]
"""Options, the versions that are shown, and the lowest version that is read."""


def test_the_last_versions_are_shown_without_reading_those_long_before_them(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Node.open(store) as node:
        session = node.session(user="ann")
        for number in range(10):
            session.execute(CreateSchema(name=f"s{number}"))
    monkeypatch.setattr("strandline.catalog.events.READ_AT_ONCE", 2)
    scan, starts = MetastorageLog.scan, []

    def recording(log: MetastorageLog, kind: str, start: int, end: int) -> Iterator[Scanned]:
        starts.append(start)
        return scan(log, kind, start, end)

    monkeypatch.setattr(MetastorageLog, "scan", recording)
    for options, shown, lowest in LAST_LINES:
        starts.clear()
        arguments = ["log", str(store), "--output", "json", *options.split()]
        lines = strandline(*arguments).output.splitlines()
        assert [json.loads(line)["version"] for line in lines] == shown, options
        assert min(starts) == lowest, options


@pytest.mark.parametrize(
    ("options", "versions"),
    [
        ("--since 5 --until 5", [5]),
        ("--since 5", [5, 6]),
        ("--until 4", [2, 3, 4]),
        ("--until 4 --data", [2, 3, 4]),
    ],
)
def test_a_range_of_versions_divides_versions_that_have_one_time(
    tmp_path: Path, options: str, versions: list[int]
) -> None:
    with Node.open(tmp_path / "s") as node:
        calls = together(node.catalogs, Gate(node.catalogs), [create(name) for name in "abc"])
        assert [call.outcome() for call in calls] == [4, 5, 6]
    result = strandline("log", tmp_path / "s", "--output", "json", *options.split())
    assert [json.loads(line)["version"] for line in result.output.splitlines()] == versions


def test_a_table_that_was_renamed_twice_in_one_version_is_followed(store: Path) -> None:
    with Node.open(store) as node:
        names, session = [("t", "u"), ("u", "V")], node.session(user="ann")
        session.execute(
            [RenameTable(schema="sales", table=old, new_name=new) for old, new in names]
        )
        session.execute(CreateSchema(name="other"))
        session.execute(RenameSchema(name="other", new_name="sale"))
    lines = strandline("log", store, "--table", "sales.v", "--output", "json").output.splitlines()
    assert [json.loads(line)["version"] for line in lines] == [4, 5, 6]


def test_the_times_of_versions_are_those_from_which_they_are_active(tmp_path: Path) -> None:
    with Node.open(tmp_path, settings=Settings(delay_ms=50)) as node:
        session = node.session(user="ann")
        version = session.execute(CreateSchema(name="a")).version
        session.execute(CreateSchema(name="b"))
        time = node.catalogs.catalog(version).time
    points = ("--since", version, "--until", version)
    shown = json.loads(strandline("log", tmp_path, *points, "--output", "json").output)
    assert (shown["version"], shown["time"]) == (version, format_timestamp(time))
    for at, is_active in ((time, True), (Timestamp(time - 1), False)):
        between = strandline("diff", tmp_path, exact_text(at), version).output
        assert (between == "no difference\n") is is_active


@pytest.mark.parametrize("number", [0, 10**20])
def test_an_impossible_number_of_lines_is_refused(store: Path, number: int) -> None:
    result = strandline("log", store, "--last", number)
    assert result.exit_code == 2
    assert f"{number} is not in the range" in result.stderr


def test_an_empty_user_is_refused(store: Path) -> None:
    result = strandline("log", store, "--user", "")
    assert result.exit_code == 64
    assert "--user names no user" in result.stderr


def test_names_are_printed_literally_and_not_as_markup(store: Path) -> None:
    with Node.open(store) as node:
        definition = TableDefinition(name="a[b]c[/d]", columns=(ColumnDefinition("x", INT),))
        session = node.session(user="[red]e\nve")
        session.execute(CreateTable(schema="sales", definition=definition))
        text = "two\nlines \x1b[2J"
        session.execute(CommentOn(kind=ObjectKind.SCHEMA, name="sales", text=text))
    result = strandline("log", store, "--last", "2")
    assert result.exit_code == 0
    _, table, comment = result.output.splitlines()
    assert r"[red]e\nve  create table sales.a[b]c[/d] (columns: x int)" in table
    assert r"text: two\nlines \x1b[2J" in comment


@pytest.mark.parametrize("command", ["log", "debug dump"])
def test_an_error_is_one_line_whatever_the_names_in_it(
    store: Path, tmp_path: Path, command: str
) -> None:
    missing = tmp_path / "a\nb" / "c"
    target = [missing] if command == "log" else [store, missing]
    result = strandline(*command.split(), *target)
    assert result.exit_code != 0
    assert r"a\nb" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_a_file_instead_of_a_folder_is_refused(store: Path) -> None:
    result = strandline("log", store / "strandline.db")
    assert result.exit_code == 66
    assert "is a file; name the folder of a store" in result.stderr


def test_help_and_version_are_printed() -> None:
    for arguments in (["--help"], ["serve", "--help"], ["log", "--help"], ["demo", "--help"]):
        result = strandline(*arguments)
        assert result.exit_code == 0
        assert "Usage" in result.output
    assert __version__ in strandline("--version").output


def commands(group: click.Group) -> Iterator[click.Command]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield command
        if isinstance(command, click.Group):
            yield from commands(command)


def test_the_no_wrap_mark_of_click_is_not_shown_in_help() -> None:
    shown = [command.get_help(click.Context(command)) for command in commands(main)]
    assert any("\n      strandline durable migrate --from" in text for text in shown)
    assert not any("\\b" in text for text in shown)


@pytest.mark.parametrize(
    ("verb", "arguments", "words"),
    [
        ("create_zone", {"zone": "fast"}, "create zone fast"),
        ("rename_role", {"role": "a", "to": "b"}, "rename role a (to: b)"),
        (
            "index_available",
            {"index": "s.i", "id": 7, "table": "s.t"},
            "index available s.i (table: s.t)",
        ),
        (
            "grant",
            {"privileges": ["SELECT", "INSERT"], "on": "table s.t", "to": "bob"},
            "grant (on: table s.t, privileges: SELECT, INSERT, to: bob)",
        ),
        (
            "set_configuration",
            {"name": "max_tables", "value": "9"},
            "set configuration max_tables (value: 9)",
        ),
        ("create_cluster_replica", {"replica": "etl.r1"}, "create cluster replica etl.r1"),
        (
            "restore_table",
            {"table": "s.t", "id": 7, "location": "file:/x", "undoes": 5},
            "restore table s.t (undoes: 5)",
        ),
    ],
)
def test_each_kind_of_action_is_described_in_words(
    verb: str, arguments: dict[str, Any], words: str
) -> None:
    assert describe(verb, arguments) == words


def test_what_a_commit_did_to_a_table_is_counted_in_words() -> None:
    change = TableChange(7, appended_rows=1, deleted_rows=2_000, data_files_added=1)
    words = describe_change(change, "s.t\n")
    assert words == r"s.t\n: 1 row appended, 2,000 rows deleted, 1 data file added"


@pytest.mark.parametrize("ends", [("4", "3"), ("4", "2001-01-01"), ("2100-01-01", "4")])
def test_a_range_that_ends_before_it_begins_is_refused(store: Path, ends: tuple[str, str]) -> None:
    since, until = ends
    result = strandline("log", store, "--since", since, "--until", until)
    assert (result.exit_code, result.stdout) == (64, "")
    assert f"--since {since} is after --until {until}" in result.stderr
