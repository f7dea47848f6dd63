"""Where Hive clients may place their tables while privileges are enforced."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hive_metastore.ttypes import Database, FieldSchema, Partition

from strandline.catalog.commands import CreateRole, SetConfiguration
from strandline.metastore.store.store_folders import StoreFolders
from tests.metastore.hive.hive_node import HiveNode, hive_node, refusal, storage, table


@pytest.fixture
def hive(tmp_path: Path) -> Iterator[HiveNode]:
    """A node that enforces privileges. alice owns the schema sales, and bob owns own."""
    with hive_node(tmp_path / "store") as hive:
        with hive.stub() as alice:
            alice.set_ugi("alice", [])
            alice.create_database(Database("sales"))
            alice.create_database(Database("own", ownerName="bob"))
        enforce = SetConfiguration(name="enforce_privileges", value="true")
        root = hive.node.session(user="root")
        root.execute([CreateRole(name="root", superuser=True), enforce])
        yield hive


SAYS = "user bob lacks CREATE and USAGE on schema sales"


def test_a_table_is_placed_only_in_the_folders_of_schemas_where_its_user_may_create(
    hive: HiveNode,
) -> None:
    place = f"{hive.warehouse}/sales.db/orders"
    taken = table("taken", schema="own", sd=storage(location=place))
    with hive.stub() as bob:
        bob.set_ugi("bob", [])
        assert SAYS in refusal(lambda: bob.create_table(taken))[1]
        assert not (hive.folder / "warehouse" / "sales.db" / "orders").exists()
        bob.create_table(table("t", schema="own"))
        moved = bob.get_table("own", "t")
        moved.sd.location = place
        assert SAYS in refusal(lambda: bob.alter_table("own", "t", moved))[1]


def test_no_folder_is_made_at_a_place_where_the_user_may_not_create_tables(
    hive: HiveNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[object] = []
    monkeypatch.setattr(StoreFolders, "make", lambda folders, location: made.append(location))
    place = f"{hive.warehouse}/sales.db/orders"
    with hive.stub() as bob:
        bob.set_ugi("bob", [])
        taken = table("taken", schema="own", sd=storage(location=place))
        assert SAYS in refusal(lambda: bob.create_table(taken))[1]
    assert made == []


@pytest.mark.parametrize("way", ["/proc/self/root", "a link to the warehouse", "a link to a table"])
def test_a_symbolic_link_is_no_way_into_the_folder_of_a_schema(
    hive: HiveNode, tmp_path: Path, way: str
) -> None:
    orders = hive.folder / "warehouse" / "sales.db" / "orders"
    orders.mkdir(parents=True)
    (tmp_path / "warehouse").symlink_to(hive.folder / "warehouse")
    (tmp_path / "orders").symlink_to(orders)
    place = {
        "/proc/self/root": f"/proc/self/root{orders}",
        "a link to the warehouse": f"{tmp_path}/warehouse/sales.db/orders",
        "a link to a table": f"{tmp_path}/orders",
    }[way]
    with hive.stub() as bob:
        bob.set_ugi("bob", [])
        taken = table("taken", schema="own", sd=storage(location=f"file:{place}"))
        assert SAYS in refusal(lambda: bob.create_table(taken))[1]


def test_a_partition_is_placed_only_in_the_folders_of_schemas_where_its_user_may_create(
    hive: HiveNode,
) -> None:
    foreign = f"{hive.warehouse}/sales.db/orders"

    def partition(day: str, location: str | None) -> Partition:
        return Partition([day], "own", "t", 0, 0, storage(location=location), {})

    with hive.stub() as bob:
        bob.set_ugi("bob", [])
        keys = [FieldSchema("day", "string", None)]
        bob.create_table(table("t", schema="own", partitionKeys=keys))
        assert SAYS in refusal(lambda: bob.add_partition(partition("1", foreign)))[1]
        assert SAYS in refusal(lambda: bob.add_partitions([partition("1", f"{foreign}/x")]))[1]
        for day, location in (("1", None), ("2", f"{hive.warehouse}/own.db/elsewhere")):
            bob.add_partition(partition(day, location))
            moved = partition(day, foreign)
            assert SAYS in refusal(lambda moved=moved: bob.alter_partition("own", "t", moved))[1]
        places = [each.sd.location for each in bob.get_partitions("own", "t", -1)]
    own = f"{hive.warehouse}/own.db"
    assert places == [f"{own}/t/day=1", f"{own}/elsewhere"]
