"""Stores whose catalog is in an etcd with TLS, certificates of its clients, and users."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from strandline.catalog.commands import CreateSchema
from strandline.errors import Unavailable
from strandline.node import Node
from tests.catalog.lagging_nodes import TogetherLock
from tests.node.test_every_store import append, create_table, paths
from tests.servers import postgresql, stores
from tests.servers.secured_etcd import PASSWORD, SecuredEtcd
from tests.servers.stores import EmptyStore
from tests.strandline_command import strandline


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredEtcd]:
    etcd = SecuredEtcd(tmp_path_factory.mktemp("etcd"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ETCDCTL_PASSWORD", PASSWORD)
        yield etcd
    etcd.server.remove()


def new_store(etcd: SecuredEtcd, folder: Path, *, prefix: str = "p") -> EmptyStore:
    """An empty store; its address has the user and the files, and not the password."""
    address = etcd.url(password=None, prefix=prefix)
    return stores.new_store("etcd", folder)._replace(address=address)


@pytest.fixture(scope="module")
def nodes(
    etcd: SecuredEtcd, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Node, Node]]:
    """Two nodes on one store."""
    store = new_store(etcd, tmp_path_factory.mktemp("store"))
    with (
        Node.open(store.address, settings=store.settings) as first,
        Node.open(store.address, settings=store.settings) as second,
    ):
        yield first, second


class CallersLock(TogetherLock):
    """The threads of a node do not wait for the callers of the test."""

    def __enter__(self) -> None:
        if not threading.current_thread().name.startswith("caller"):
            self.known.has_come = True
        super().__enter__()


def create_schema(node: Node, name: str) -> None:
    node.session(user="ann").execute(CreateSchema(name=name))


def has_schema(node: Node, name: str) -> bool:
    return node.catalogs.present().schema(name) is not None


def test_two_nodes_share_tables_and_rows(nodes: tuple[Node, Node]) -> None:
    first, second = nodes
    append(second, create_table(first), "a.parquet")
    assert paths(first) == paths(second) == ["a.parquet"]
    assert first.health.report() == []


def test_callers_of_a_node_that_lost_its_permission_all_hear_what_to_do_until_it_is_granted_again(
    etcd: SecuredEtcd, nodes: tuple[Node, Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those that wait for one look at the log, and share its failure."""
    node, other = nodes
    todo = r"permission denied; grant a role of 'lisa@example' the prefix: .* readwrite p/`"
    with etcd.forbidden():
        while node.catalogs.known_present() is not None:
            pass  # until the last look before has expired
        with monkeypatch.context() as patch, ThreadPoolExecutor(8, "caller") as threads:
            patch.setattr(node.catalogs, "_applying", CallersLock())
            for caller in [threads.submit(node.catalogs.present) for _ in range(8)]:
                with pytest.raises(Unavailable, match=todo):
                    caller.result(60)
        with pytest.raises(Unavailable, match=todo):
            create_schema(node, "granted")
        assert "readwrite p/`" in node.health.report()[0].reason
    create_schema(node, "granted")
    assert has_schema(other, "granted")


@pytest.mark.slow
def test_nodes_go_on_with_the_files_of_a_new_authority(
    etcd: SecuredEtcd, nodes: tuple[Node, Node]
) -> None:
    first, second = nodes
    etcd.renew()
    create_schema(first, "renewed")
    assert has_schema(second, "renewed")
    assert first.session(user="ann").begin().txn_id < second.session(user="ann").begin().txn_id


@pytest.mark.slow
def test_a_store_is_shown_backed_up_and_moved_by_commands(
    etcd: SecuredEtcd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    etcd.permit("q")
    store = new_store(etcd, tmp_path, prefix="q")
    objects = store.settings.objects
    monkeypatch.setenv("STRANDLINE_OBJECTS", objects)

    def run(*arguments: object) -> str:
        result = strandline(*arguments)
        assert result.exit_code == 0, result.output
        assert PASSWORD not in result.output
        return result.output

    with Node.open(store.address, settings=store.settings) as node:
        create_schema(node, "shop")
        assert "create schema shop" in run("log", store.address)
        run("backup", store.address, tmp_path / "backup.tar")
    monkeypatch.delenv("STRANDLINE_OBJECTS")
    copy = postgresql.running().new_database()
    run("restore", tmp_path / "backup.tar", copy, "--copy", "--warehouse", tmp_path / "copy")
    assert "create schema shop" in run("log", copy)
    run("durable", "migrate", "--from", store.address, "--to", objects)
    assert "create schema shop" in run("log", objects)
    run("durable", "migrate", "--from", objects, "--to", store.address)
    with Node.open(store.address, settings=store.settings) as node:
        assert has_schema(node, "shop")
