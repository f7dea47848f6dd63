"""The commands on a store on servers; and reading changes nothing."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import text

from strandline.catalog.commands import ColumnDefinition, CreateTable, TableDefinition
from strandline.cli.changes import joining
from strandline.cli.stores import reading
from strandline.config import Settings
from strandline.errors import NotFound
from strandline.metastore.store.rows import DataFile
from strandline.model.types import BIGINT
from strandline.node import DATABASE_FILE, Node
from strandline.node.chores import ChoreStatistics
from strandline.node.store_database import head_of
from strandline.sql import open_database
from tests.servers import postgresql, stores
from tests.servers.sqlite import sqlite_url
from tests.servers.stores import EmptyStore
from tests.strandline_command import strandline

ETCD = "etcd://127.0.0.1:1/lake"


def output(*arguments: object) -> str:
    result = strandline(*arguments)
    assert result.exit_code == 0, result.output + result.stderr
    return result.output


def fill(store: EmptyStore) -> None:
    with Node.open(store.address, settings=store.settings) as node:
        session = node.session(user="ann")
        columns = (ColumnDefinition("k", BIGINT),)
        for name in ("t", "u"):
            definition = TableDefinition(name=name, columns=columns, transactional=True)
            session.execute(CreateTable(schema="default", definition=definition))
        table = session.table("default.t")
        file = Path(table.location.removeprefix("file://")) / "data.parquet"
        file.write_bytes(b"x" * 10)
        txn_id = session.begin().txn_id
        session.stage(
            txn_id,
            table.descriptor.id,
            add=[DataFile(file_id=1, path="data.parquet", rows=1, bytes=10)],
        )
        session.commit(txn_id)


@pytest.mark.parametrize("kind", ["postgresql", pytest.param("etcd", marks=pytest.mark.slow)])
def test_commands_read_and_change_a_store_on_servers(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = stores.new_store(kind, tmp_path)
    if store.settings.objects:
        monkeypatch.setenv("STRANDLINE_OBJECTS", store.settings.objects)
    fill(store)
    address = store.address
    assert "default.t" in output("log", address)
    assert "default.t" in output("log", address, "--data")
    status = json.loads(output("status", address, "--output", "json"))
    assert status["tables"] == 2
    assert status["database_bytes"] > 0
    assert "@" not in status["store"]
    version = status["version"]
    assert "default.u" in output("diff", address, str(version - 1), str(version))
    output("undo", address, str(version), "--user", "ann")
    assert json.loads(output("status", address, "--output", "json"))["tables"] == 1
    output("undrop", address, "default.u", "--user", "ann")
    output("role", "create", address, "reader", "--user", "ann")
    assert "reader" in output("role", "list", address)
    output("trim", address, str(version), "--user", "ann")
    assert "nothing to repair" in output("repair-clock", address)


@pytest.mark.parametrize(
    "command",
    [
        ("status", ETCD),
        ("trim", ETCD, "5", "--user", "ann"),
        ("durable", "migrate", "--from", ETCD, "--to", f"{ETCD}#metastorage"),
    ],
)
def test_the_error_about_a_missing_setting_names_a_variable_that_the_command_reads(
    command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = strandline(*command)
    assert refused.exit_code == 64
    assert "STRANDLINE_OBJECTS=postgresql://" in refused.output + refused.stderr
    monkeypatch.setenv("STRANDLINE_OBJECTS", "postgresql://127.0.0.1:1/d")
    accepted = strandline(*command)
    assert accepted.exit_code != 0  # no such server answers
    assert "STRANDLINE_OBJECTS" not in accepted.output + accepted.stderr


@pytest.mark.parametrize("command", [("relocate", "--copy"), ("accept-loss", "--yes")])
def test_commands_for_folders_refuse_a_store_on_servers(command: tuple[str, ...]) -> None:
    name, *rest = command
    refused = strandline(name, "postgresql://h/d", *rest)
    assert refused.exit_code == 64
    assert "a store in a folder" in refused.output + refused.stderr


@pytest.mark.parametrize(
    "command",
    [
        "relocate STORE",
        "repair-clock STORE --yes",
        "debug delete STORE setting 1",
        "undo STORE 3",
        "verify STORE",
        "durable migrate --from STORE --to STORE#stash",
    ],
)
def test_a_command_creates_no_tables_in_a_database_without_a_store(command: str) -> None:
    server = postgresql.running()
    address = server.url(database=server.new_empty_database())
    refused = strandline(*command.replace("STORE", address).split())
    assert refused.exit_code == 66, refused.stderr
    assert "yet; `strandline serve` creates one" in refused.stderr
    with psycopg.connect(address) as connection:
        tables = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
        assert tables.fetchall() == []


@pytest.mark.parametrize(
    "command",
    [
        "accept-loss STORE --yes",
        "diff STORE 1",
        "log STORE",
        "relocate STORE",
        "repair-clock STORE --yes",
        "role list STORE",
        "status STORE",
        "trim STORE 1",
        "undo STORE 1",
        "undrop STORE 1",
        "verify STORE",
    ],
)
def test_a_folder_without_a_store_is_refused_and_left_as_it_is(
    command: str, tmp_path: Path
) -> None:
    words = command.replace("STORE", str(tmp_path)).split()
    database = tmp_path / DATABASE_FILE

    def write_header() -> None:
        with closing(sqlite3.connect(database)) as connection:
            connection.execute("PRAGMA journal_mode = WAL")

    steps: list[Callable[[], object]] = [lambda: None, database.touch, write_header]
    for step in steps:
        step()
        files = list(tmp_path.iterdir())
        refused = strandline(*words)
        assert refused.exit_code == 66
        assert "there is no store" in refused.stderr
        assert list(tmp_path.iterdir()) == files
    with pytest.raises(NotFound, match="there is no store"), reading(tmp_path):
        pass


def test_accept_loss_asks_nothing_if_there_is_no_store_or_no_loss(tmp_path: Path) -> None:
    missing = strandline("accept-loss", tmp_path / "nowhere")
    assert missing.exit_code == 66
    assert "there is no store" in missing.stderr
    Node.open(tmp_path / "lake").close()
    head = head_of(tmp_path / "lake")
    for is_behind in (False, True):
        if is_behind:
            head.reset(dict.fromkeys(head.recorded_marks() or (), 0))
        whole = strandline("accept-loss", tmp_path / "lake")
        assert whole.exit_code == 0, whole.output
        assert whole.output.startswith("nothing is missing")
        assert "Continue" not in whole.output


def test_a_database_without_a_store_is_refused() -> None:
    for address in (postgresql.running().new_schema(), postgresql.running().new_database()):
        refused = strandline("log", address)
        assert refused.exit_code == 66, refused.output
        assert "strandline serve" in refused.stderr


@pytest.mark.parametrize("kind", ["folder", "postgresql"])
def test_reading_does_not_upgrade_the_tables_of_an_older_release(kind: str, tmp_path: Path) -> None:
    store = stores.new_store(kind, tmp_path)
    fill(store)
    url = sqlite_url(tmp_path / "strandline.db") if kind == "folder" else store.address
    database = open_database(url)
    with database.write() as connection:
        connection.execute(
            text("UPDATE strandline_schema SET version = 1 WHERE part = 'transactions'")
        )
    place = tmp_path if kind == "folder" else store.address
    assert "default.t" in output("log", place, "--data")
    output("status", place)
    refused = strandline("verify", place)
    assert refused.exit_code == 78
    assert "an older release" in refused.stderr
    assert "strandline serve" in refused.stderr
    with database.read() as connection:
        versions = connection.execute(
            text("SELECT version FROM strandline_schema WHERE part = 'transactions'")
        )
        assert versions.scalar() == 1
    database.close()


@pytest.mark.parametrize("kind", ["folder", "postgresql"])
def test_a_store_of_a_newer_release_is_not_read(kind: str, tmp_path: Path) -> None:
    store = stores.new_store(kind, tmp_path)
    Node.open(store.address, settings=store.settings).close()
    url = sqlite_url(tmp_path / "strandline.db") if kind == "folder" else store.address
    with closing(open_database(url)) as database, database.write() as connection:
        connection.execute(
            text("UPDATE strandline_schema SET version = 99 WHERE part = 'transactions'")
        )
    for command in ("status", "log", "holders"):
        refused = strandline(command, store.address)
        assert (refused.exit_code, "newer release" in refused.stderr) == (78, True), command


@pytest.mark.parametrize("generation", [1, 3])
def test_a_command_joins_the_nodes_of_a_store_whatever_generation_is_set(
    generation: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Node.open(tmp_path / "s", settings=Settings(deploy_generation=2)) as node:
        monkeypatch.setenv("STRANDLINE_DEPLOY_GENERATION", str(generation))
        assert output("clean", tmp_path / "s").startswith("there is nothing to clean")
        assert "create role ann" in output("role", "create", tmp_path / "s", "ann")
        node.catalogs.sync()
        assert node.catalogs.token.deploy_generation == 2
        assert not node.replaced.done()


def test_a_command_that_joins_a_store_leaves_cleaning_and_measuring_to_its_nodes(
    tmp_path: Path,
) -> None:
    Node.open(tmp_path / "s").close()
    with joining(tmp_path / "s") as node:
        chores = node.statistics["chores"]()
    assert isinstance(chores, ChoreStatistics)
    assert chores.failures.keys().isdisjoint({"cleaning", "measuring the storage"})
