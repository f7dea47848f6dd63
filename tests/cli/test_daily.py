"""The commands of daily work: trim, role, grant, revoke, status, and the filters of log."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from click.testing import CliRunner

from strandline.catalog.commands import (
    AddColumns,
    AlterDefaultPrivileges,
    ColumnDefinition,
    CreateSchema,
    CreateTable,
    DropTable,
    RenameSchema,
    RenameTable,
    TableDefinition,
)
from strandline.cli import changes, main
from strandline.clock import parse_timestamp
from strandline.metastore.interface import AsOf
from strandline.metastore.store import data_history
from strandline.metastore.store.rows import DataFile, DeleteFile, NewRow, PartitionRow
from strandline.model.privileges import ObjectKind, Privilege
from strandline.model.type_text import quote_name
from strandline.model.types import INT
from strandline.node import Node
from strandline.sql.sqlite_database import SqliteDatabase
from tests.metastore.snapshots import paths_of
from tests.node.kept_store import KeptStore
from tests.strandline_command import strandline
from tests.times import exact

COLUMNS = (ColumnDefinition("k", INT),)


def lines(*arguments: object) -> list[Any]:  # Any: what JSON holds
    result = strandline(*arguments, "--output", "json")
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def make(folder: Path) -> Path:
    """Create a store with the history that the tests of this module expect.

    Versions 3, 4: ann makes shop.orders. 5, 6: it and its schema are renamed. 7, 8: bob adds a
    column and drops the table. Between 6 and 7 ann appends two files, deletes rows of one and
    removes the other.
    """
    with Node.open(folder) as node:
        ann, bob = node.session(user="ann"), node.session(user="bob")
        ann.execute(CreateSchema(name="shop"))
        table = TableDefinition(
            name="first", columns=COLUMNS, transactional=True, provider="strandline"
        )
        ann.execute(CreateTable(schema="shop", definition=table))
        ann.execute(RenameTable(schema="shop", table="first", new_name="second"))
        ann.execute(RenameSchema(name="shop", new_name="store"))
        table_id = ann.table("store.second").descriptor.id
        files = [
            DataFile(file_id=number, path=f"{number}.parquet", rows=100 * number, bytes=9)
            for number in (1, 2)
        ]
        txn = ann.begin().txn_id
        ann.stage(txn, table_id, add=files)
        ann.commit(txn)
        txn = ann.begin().txn_id
        deleted = DeleteFile(path="d.parquet", file_ids=(1,), counts=(7,))
        ann.stage(txn, table_id, add=[deleted], remove=["2.parquet"], touch=["1.parquet"])
        ann.commit(txn)
        aborted = bob.begin().txn_id
        bob.stage(aborted, table_id, add=[DataFile(file_id=3, path="3.p", rows=5, bytes=9)])
        bob.abort(aborted)
        added = (ColumnDefinition("b", INT),)
        bob.execute(AddColumns(schema="store", table="second", columns=added))
        bob.execute(DropTable(schema="store", table="second"))
    return folder


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store that tests only read."""
    return make(tmp_path_factory.mktemp("daily") / "s")


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> KeptStore:
    return KeptStore(tmp_path_factory.mktemp("daily"), make)


@pytest.fixture
def store(kept: KeptStore) -> Path:
    """A store that a test changes."""
    return kept.renewed()


def versions(*arguments: object) -> list[int]:
    return [line["version"] for line in lines("log", *arguments) if "version" in line]


def test_log_is_filtered_by_point_and_user(made: Path) -> None:
    assert versions(made) == [2, 3, 4, 5, 6, 7, 8]
    assert versions(made, "--since", 4, "--until", 6) == [4, 5, 6]
    assert versions(made, "--user", "BOB") == [7, 8]
    times = {line["version"]: exact(line["time"]) for line in lines("log", made)}
    assert versions(made, "--since", times[5], "--until", times[7])[0] <= 5
    of_millisecond = times[5].partition("+")[0]
    assert versions(made, "--since", of_millisecond)[0] <= 5
    assert versions(made, "--until", times[3]) == [2, 3]
    assert versions(made, "--until", "2013-01-01") == []
    assert versions(made, "--user", "bob", "--last", 1) == [8]


def test_log_of_a_table_includes_its_former_names(made: Path) -> None:
    assert versions(made, "--table", "store.second") == [4, 5, 7, 8]
    assert versions(made, "--table", "STORE.second", "--user", "ann") == [4, 5]
    assert versions(made, "--table", "`store`.second") == [4, 5, 7, 8]
    missing = strandline("log", made, "--table", "other")
    assert missing.exit_code == 66
    assert "no version has changed a table default.other" in missing.stderr


def test_log_of_a_table_includes_grants_on_it(store: Path) -> None:
    with Node.open(store) as node:
        table = TableDefinition(name="plain", columns=COLUMNS)
        node.session(user="ann").execute(CreateTable(schema="store", definition=table))
    strandline("role", "create", store, "eve")
    strandline("grant", store, "select", "table", "store.plain", "--to", "eve")
    assert versions(store, "--table", "store.plain") == [9, 11]
    strandline("grant", store, "insert", "table", "Store.`Plain`", "--to", "eve")
    with Node.open(store) as node:
        node.session(user="ann").execute(
            AlterDefaultPrivileges(
                kind=ObjectKind.TABLE, privileges=Privilege.SELECT, grantee="eve"
            )
        )
    assert versions(store, "--table", "store.plain") == [9, 11, 12]


@pytest.mark.parametrize("name", ["two words", "with.dot", "with`mark"])
def test_log_finds_a_table_whose_name_needs_quotes(store: Path, name: str) -> None:
    with Node.open(store) as node:
        table = TableDefinition(name=name, columns=COLUMNS)
        node.session(user="ann").execute(CreateTable(schema="store", definition=table))
    quoted = f"store.{quote_name(name)}"
    strandline("role", "create", store, "eve")
    strandline("grant", store, "select", "table", quoted, "--to", "eve")
    assert versions(store, "--table", quoted) == [9, 11]


def test_log_with_data_shows_rows_files_and_times_of_commits(
    made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strandline.durable.state.FIRST_UPDATES", 1)
    commits = [line for line in lines("log", made, "--data") if "transaction" in line]
    first, second = commits
    (appended,), (deleted,) = first["changes"], second["changes"]
    assert (first["author"], appended["table"]) == ("ann", "store.second")
    assert (appended["appended_rows"], appended["data_files_added"]) == (300, 2)
    assert (deleted["deleted_rows"], deleted["appended_rows"]) == (207, 0)
    assert (deleted["data_files_removed"], deleted["delete_files_added"]) == (1, 1)
    order = [line.get("version", "data") for line in lines("log", made, "--data")]
    assert order == [2, 3, 4, 5, 6, "data", "data", 7, 8]
    assert len(lines("log", made, "--data", "--user", "bob")) == 2
    assert len(lines("log", made, "--data", "--table", "store.second")) == 6
    since = lines("log", made, "--data", "--since", second["time"])
    assert [line.get("transaction") for line in since] == [second["transaction"], None, None]
    until = strandline("log", made, "--data", "--until", first["time"], "--last", 1).stdout
    assert "commit 1 " in until
    assert "store.second: 300 rows appended, 2 data files added" in until
    missing = strandline("log", made, "--data", "--table", "store.never")
    assert missing.exit_code == 66
    assert "changed a table store.never" in missing.stderr


def test_the_last_lines_of_a_log_with_data_are_found_without_reading_older_commits(
    made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = Mock(wraps=data_history._change)
    monkeypatch.setattr(data_history, "_change", read)
    last_lines = lines("log", made, "--data", "--user", "ann", "--last", 1)
    assert read.call_count == 1
    assert last_lines == lines("log", made, "--data", "--user", "ann")[-1:]


def test_log_with_data_shows_commits_of_trimmed_versions(store: Path) -> None:
    assert strandline("trim", store, 7).exit_code == 0
    commits = [line for line in lines("log", store, "--data") if "transaction" in line]
    assert [commit["changes"][0]["table"] for commit in commits] == ["store.second"] * 2


def test_a_read_as_of_a_time_shown_by_log_sees_that_commit(made: Path) -> None:
    commits = [line for line in lines("log", made, "--data") if "transaction" in line]
    with Node.open(made) as node:
        session = node.session(user="ann")
        counted = []
        for commit in commits:
            at = AsOf(time=parse_timestamp(exact(commit["time"])))
            counted.append(len(paths_of(session, commit["changes"][0]["table"], at=at)))
    assert counted == [2, 1]


def test_log_with_data_shows_partitions_of_plain_tables(store: Path) -> None:
    with Node.open(store) as node:
        session = node.session(user="ann")
        table = TableDefinition(name="plain", columns=COLUMNS)
        session.execute(CreateTable(schema="store", definition=table))
        table_id = session.table("store.plain").descriptor.id
        row = NewRow.of(PartitionRow(values=("1",), location="k=1"), name="k=1")
        with node.store.change(table_id, author="ann") as change:
            change.stage(add=[row])
    created, commit = lines("log", store, "--data", "--table", "store.plain")
    assert (created["version"], commit["changes"][0]["partitions_added"]) == (9, 1)
    assert lines("log", store, "--data", "--table", "store.plain", "--last", 1) == [commit]


def test_log_with_data_has_ended_its_reads_when_it_closes_the_database(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the close waits for them, for ten seconds."""
    open_reads, close = [], SqliteDatabase.close

    def note(database: SqliteDatabase) -> None:
        open_reads.append(database._active)
        close(database)

    monkeypatch.setattr(SqliteDatabase, "close", note)
    lines("log", store, "--data", "--last", 1)
    assert set(open_reads) == {0}


@pytest.mark.parametrize("point", ["x", "-1", "1.5"])
def test_an_invalid_point_is_refused(made: Path, point: str) -> None:
    result = strandline("log", made, f"--since={point}")
    assert result.exit_code == 64
    assert "is neither a version nor a time" in result.stderr
    assert strandline("log", made, "--since", 99).exit_code == 66


def test_trim_takes_a_version_or_a_time_and_prints_the_earliest_version(store: Path) -> None:
    time = exact(lines("log", store)[2]["time"])
    assert strandline("trim", store, time).stdout == "trimmed; the earliest version is 4\n"
    assert lines("trim", store, 4) == [{"trimmed": False, "earliest_version": 4}]
    assert strandline("trim", store, 99).exit_code == 66
    assert strandline("trim", store, 3).exit_code == 66
    with Node.open(store) as node:
        node.session(user="ann").begin()
        node.session(user="ann").execute(CreateSchema(name="later"))
    refused = strandline("trim", store, 9)
    assert refused.exit_code == 75
    assert "an open transaction needs" in refused.stderr


def test_trim_to_a_version_leaves_reading_the_history_to_the_node_that_it_opens(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(changes, "history_of")
    assert strandline("trim", store, 4).stdout == "trimmed; the earliest version is 4\n"


def test_history_is_trimmed_with_the_privileges_of_the_user_that_is_named(store: Path) -> None:
    strandline("role", "create", store, "root", "--superuser")
    strandline("parameter", "set", store, "enforce_privileges", "true", "--user", "root")
    assert strandline("trim", store, 9, "--user", "eve").exit_code == 77
    assert strandline("trim", store, 9, "--user", "root").stdout.startswith("trimmed")


def test_roles_are_created_altered_listed_and_dropped(store: Path) -> None:
    made = strandline("role", "create", store, "analysts", "--user", "root")
    assert made.stdout.splitlines() == ["version 9", "  create role analysts"]
    assert lines("log", store)[-1]["author"] == "root"
    assert strandline("role", "create", store, "bob", "--superuser").exit_code == 0
    assert strandline("role", "grant", store, "analysts", "bob").exit_code == 0
    assert strandline("role", "grant", store, "analysts", "bob").stdout == (
        "it is already a member\n"
    )
    assert lines("role", "list", store) == [
        {"role": "analysts", "superuser": False, "inherit": True, "member_of": []},
        {"role": "bob", "superuser": True, "inherit": True, "member_of": ["analysts"]},
    ]
    assert strandline("role", "alter", store, "bob", "--no-superuser").exit_code == 0
    assert "bob       no         yes       analysts" in strandline("role", "list", store).stdout
    assert strandline("role", "alter", store, "bob", "--no-inherit").exit_code == 0
    assert "bob       no         no        analysts" in strandline("role", "list", store).stdout
    assert strandline("role", "revoke", store, "analysts", "bob").exit_code == 0
    assert strandline("role", "drop", store, "bob").exit_code == 0
    assert strandline("role", "drop", store, "bob").exit_code == 66
    assert strandline("role", "create", store, "analysts").exit_code == 73
    (created,) = lines("role", "create", store, "eve")
    assert created["actions"] == [{"verb": "create_role", "role": "eve"}]


def test_a_role_is_created_without_inheritance_and_gets_the_objects_of_a_dropped_one(
    store: Path,
) -> None:
    for words in (("heir", "--no-inherit"), ("bob",)):
        assert strandline("role", "create", store, *words).exit_code == 0
    with Node.open(store) as node:
        node.session(user="ann").execute(CreateSchema(name="theirs", owner="bob"))
    assert strandline("role", "drop", store, "bob").exit_code != 0
    assert strandline("role", "drop", store, "bob", "--reassign-to", "heir").exit_code == 0
    assert lines("role", "list", store) == [
        {"role": "heir", "superuser": False, "inherit": False, "member_of": []}
    ]
    with Node.open(store) as node:
        schema = node.catalogs.present().schema("theirs")
        assert schema is not None
        assert schema.owner == "heir"


def test_privileges_are_granted_and_revoked(store: Path) -> None:
    strandline("role", "create", store, "eve")
    granted = strandline("grant", store, "usage,Create", "SCHEMA", "store", "--to", "eve")
    assert granted.stdout.splitlines() == [
        "version 10",
        "  grant (on: schema store, privileges: CREATE, USAGE, to: eve)",
    ]
    again = strandline("grant", store, "usage", "schema", "store", "--to", "eve")
    assert again.stdout == "it is already granted\n"
    assert strandline("grant", store, "create-role", "system", "--to", "eve").exit_code == 0
    taken = strandline("revoke", store, "all", "schema", "store", "--from", "eve")
    assert taken.exit_code == 0
    assert strandline("revoke", store, "all", "schema", "store", "--from", "eve").stdout == (
        "it was not granted\n"
    )


@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        (("selct", "table", "a.b"), 64, "'selct' is not a privilege; on a table there are SELECT,"),
        (("", "table", "a.b"), 64, "'' is not a privilege"),
        (("execute", "table", "a.b"), 64, "EXECUTE cannot be granted on a table"),
        (("select", "table"), 64, "name the table"),
        (("configure", "system", "a"), 64, "the system has no name; leave 'a' out"),
        (("select", "table", "a.b"), 66, "does not exist"),
        (("usage", "schema", "store"), 66, "role 'nobody' does not exist"),
        (("select", "tabel", "a.b"), 2, "'tabel' is not one of 'system', 'database', 'schema'"),
    ],
)
def test_a_wrong_grant_is_refused_with_what_is_allowed(
    store: Path, words: tuple[str, ...], status: int, says: str
) -> None:
    result = strandline("grant", store, *words, "--to", "nobody")
    assert result.exit_code == status
    assert says in result.stderr


def test_status_shows_versions_objects_transactions_and_holds(store: Path) -> None:
    with Node.open(store) as node:
        session = node.session(user="ann\nx")
        txn = session.begin()
        session.hold("backup", "me", at=txn.begin_time)
        (status,) = lines("status", store)
        output = strandline("status", store).stdout
    assert (status["version"], status["earliest_version"], status["tables"]) == (8, 0, 0)
    assert status["schemas"] == 2  # without that of the system views
    assert (status["open_transactions"], status["holds"]) == (1, 1)
    assert status["epoch"] == 1
    assert "2026" < status["epoch_time"] < status["version_time"]
    assert status["database_bytes"] > 4096
    assert (status["store"], status["catalog_log"]) == (str(store), "metastorage")
    assert rf"{txn.txn_id} of ann\nx (session), begun " in output
    assert re.search("^privileges enforced +no$", output, re.MULTILINE)
    assert "(backup) of me, keeps history from " in output


def test_status_reads_a_store_of_0_2_0_before_its_upgrade(store: Path) -> None:
    with Node.open(store) as node:
        ann = node.session(user="ann")
        ann.hold("reader", at=node.catalogs.complete_now(), ttl_ms=10_000_000)
        with node.database.write() as connection:
            connection.exec_driver_sql("DROP INDEX hold_whole")
            connection.exec_driver_sql("ALTER TABLE hold DROP COLUMN user")
            connection.exec_driver_sql(
                "UPDATE strandline_schema SET version = 1 WHERE part = 'transactions'"
            )
    (status,) = lines("status", store)
    assert status["holds"] == 1


def test_diff_from_version_0_leaves_out_built_in_objects(store: Path) -> None:
    assert [(line["kind"], line["name"]) for line in lines("diff", store, 0, 4)] == [
        ("schema", "shop"),
        ("table", "shop.first"),
    ]


@pytest.mark.parametrize("charset", ["utf-8", "latin-1", "ascii"])
def test_names_that_the_terminal_cannot_show_are_escaped(tmp_path: Path, charset: str) -> None:
    folder = tmp_path / "\u4e2d"
    with Node.open(folder) as node:
        node.session(user="\u00e4\u4e2d").execute(CreateSchema(name="shop"))
    runner = CliRunner(charset=charset)
    not_utf_8 = tmp_path / "\udcff"
    commands = [["log", folder], ["status", folder], ["backup", folder, not_utf_8]]
    for command in commands:
        result = runner.invoke(main, list(map(str, command)))
        assert (result.exit_code, result.exception) == (0, None)
    (*_, line) = runner.invoke(main, ["log", str(folder), "--output", "json"]).output.splitlines()
    assert json.loads(line)["author"] == "\u00e4\u4e2d"
    backup = ["backup", str(folder), f"{not_utf_8}2", "--output", "json"]
    assert json.loads(runner.invoke(main, backup).output)["file"] == f"{not_utf_8}2"
    result = runner.invoke(main, ["status", str(folder), "--output", "json"])
    assert json.loads(result.output)["store"] == str(folder)
    refused = runner.invoke(main, ["log", str(not_utf_8)])
    assert (refused.exit_code, "path is not UTF-8" in refused.stderr) == (64, True)
