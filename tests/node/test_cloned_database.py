"""A copy of a PostgreSQL database beside its original, and the same database after a restart."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from strandline.errors import StoreMoved
from strandline.node import Node, store_place
from strandline.sql import change, open_database
from tests.node.conftest import create_table
from tests.servers import postgresql, stores
from tests.servers.stores import EmptyStore
from tests.strandline_command import strandline

NOTE = "setting", '"n"', '{"name": "n", "value": "seen"}'
"""An object for `strandline debug edit`."""


@pytest.fixture
def original(tmp_path: Path) -> EmptyStore:
    store = stores.new_store("postgresql", tmp_path)
    with Node.open(store.address, settings=store.settings) as node:
        create_table(node)
    return store


@pytest.fixture
def clone(original: EmptyStore) -> EmptyStore:
    return original._replace(address=postgresql.running().copy_of_database(original.address))


def open_and_change(store: EmptyStore, name: str) -> None:
    with Node.open(store.address, settings=store.settings) as node:
        create_table(node, name)


def test_a_cloned_database_is_refused_until_an_operator_accepts_it(
    original: EmptyStore, clone: EmptyStore
) -> None:
    for _ in range(2):
        with pytest.raises(StoreMoved, match=r"is a copy .*`strandline relocate` .*--copy`"):
            Node.open(clone.address, settings=clone.settings)
    read = strandline("log", clone.address)
    assert read.exit_code == 0, read.output
    open_and_change(original, "u")
    accepted = strandline("relocate", clone.address)
    assert accepted.exit_code == 0, accepted.output
    assert "the store is now in postgresql://" in accepted.output
    open_and_change(clone, "v")


def test_a_running_node_changes_nothing_in_a_copy_that_takes_the_place_of_its_database(
    original: EmptyStore,
) -> None:
    server, name = postgresql.running(), original.address.rpartition("/")[2]
    with Node.open(original.address, settings=original.settings) as node:
        session = node.session(user="ann")
        with psycopg.connect(server.url(), autocommit=True) as administrator:
            for statement in (
                f"ALTER DATABASE {name} ALLOW_CONNECTIONS false",
                "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity"
                f" WHERE datname = '{name}'",
                f"ALTER DATABASE {name} RENAME TO {name}_old",
                f"CREATE DATABASE {name} TEMPLATE {name}_old",
            ):
                administrator.execute(statement.encode())
        with pytest.raises(StoreMoved, match="is another database now than when this process"):
            session.begin()
        assert "is another database now" in node.health.report()[0].reason
    with closing(open_database(original.address)) as copy:
        assert copy.rows("SELECT count(*) FROM txn") == [(0,)]


def test_a_clone_cannot_be_made_a_separate_store_on_the_same_warehouse(clone: EmptyStore) -> None:
    refused = strandline("relocate", clone.address, "--copy")
    assert refused.exit_code == 64
    assert "`strandline restore --copy`" in refused.output
    with pytest.raises(StoreMoved):
        Node.open(clone.address, settings=clone.settings)


def test_the_catalog_of_a_clone_is_not_moved(original: EmptyStore, clone: EmptyStore) -> None:
    words = ("durable", "migrate", "--from", clone.address, "--to", f"{clone.address}#stash")
    refused = strandline(*words)
    assert refused.exit_code == 78, refused.output
    open_and_change(original, "u")


def test_a_cloned_database_beside_the_same_etcd_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = stores.new_store("etcd", tmp_path)
    Node.open(store.address, settings=store.settings).close()
    copied = postgresql.running().copy_of_database(store.settings.objects)
    open_and_change(store, "t")
    clone = replace(store.settings, objects=copied)
    with pytest.raises(StoreMoved, match=rf"relocate` with .* \({store.address}, with"):
        Node.open(store.address, settings=clone)
    monkeypatch.setenv("STRANDLINE_OBJECTS", copied)
    for command in (
        ("accept-loss", store.address, "--yes"),
        ("debug", "edit", store.address, *NOTE),
    ):
        refused = strandline(*command)
        assert refused.exit_code == 78, refused.output
    assert "relocate" in refused.output
    open_and_change(store, "u")


@pytest.mark.slow
def test_a_restarted_server_has_the_same_database(tmp_path: Path) -> None:
    server = postgresql.PostgresServer()
    try:
        store = stores.new_store("postgresql", tmp_path)
        store = store._replace(address=server.new_database())
        open_and_change(store, "t")
        server.crash()
        server.start()
        open_and_change(store, "u")
    finally:
        server.remove()


def test_a_store_of_an_older_release_remembers_its_database_from_then_on(
    original: EmptyStore,
) -> None:
    with closing(open_database(original.address)) as database, database.write() as connection:
        change(connection, f"UPDATE {store_place.PLACE.name} SET inode = 0")
    clones = [postgresql.running().copy_of_database(original.address) for _ in range(1)]
    open_and_change(original, "u")
    clones.append(postgresql.running().copy_of_database(original.address))
    unknown, known = (original._replace(address=address) for address in clones)
    with pytest.raises(StoreMoved):
        Node.open(known.address, settings=known.settings)
    open_and_change(unknown, "v")
