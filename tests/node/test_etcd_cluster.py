"""Nodes whose catalog is in an etcd of three members, which are lost one after the other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from strandline.catalog.commands import CreateSchema
from strandline.errors import AlreadyExists, Unavailable
from strandline.metastorage.etcd.access import parse_etcd_url
from strandline.metastorage.etcd.gateway import EtcdGateway
from strandline.node import Node
from tests.servers import etcd, stores
from tests.servers.etcd import EtcdServer

TRIES = 100


@pytest.fixture
def members() -> Iterator[list[EtcdServer]]:
    members = etcd.new_cluster(members=3)
    yield members
    for member in members:
        member.remove()


def surely_create(node: Node, name: str) -> None:
    """Create a schema, and try again while etcd is away."""
    for _ in range(TRIES):
        try:
            node.session(user="ann").execute(CreateSchema(name=name))
        except Unavailable:  # or the outcome is unknown
            continue
        except AlreadyExists:
            pass
        return
    pytest.fail(f"{name} could not be created {TRIES} times")


@pytest.mark.slow
def test_each_change_is_made_once_while_each_member_is_killed_in_turn(
    members: list[EtcdServer], tmp_path: Path
) -> None:
    endpoints = ",".join(f"127.0.0.1:{member.port}" for member in members)
    store = stores.new_store("etcd", tmp_path)._replace(address=f"etcd://{endpoints}/lake")
    with (
        Node.open(store.address, settings=store.settings) as first,
        Node.open(store.address, settings=store.settings) as second,
    ):
        for number, member in enumerate(members):
            member.crash()
            surely_create(first, f"a{number}")
            surely_create(second, f"b{number}")
            member.start()
        names = {f"{letter}{number}" for letter in "ab" for number in range(len(members))}
        for node in (first, second):
            versions = node.session(user="ann").history()
            created = Counter(
                arguments["schema"]
                for version in versions
                for verb, arguments in version.actions
                if verb == "create_schema"
            )
            assert {name: created[name] for name in names} == dict.fromkeys(names, 1)
            assert all(node.catalogs.present().schema(name) for name in names)


@pytest.mark.slow
def test_a_member_that_is_cut_off_from_the_others_refuses_calls_and_does_not_let_them_wait(
    members: list[EtcdServer],
) -> None:
    address = parse_etcd_url(f"etcd://127.0.0.1:{members[0].port}")
    with closing(EtcdGateway(address, timeout=60)) as gateway:
        for member in members[1:]:
            member.crash()
        with pytest.raises(Unavailable):
            gateway.range(b"a")  # the member may not have noticed yet
        with pytest.raises(Unavailable, match="no leader"):
            gateway.range(b"a")
