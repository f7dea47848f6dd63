"""Where Hive clients may place their tables while privileges are enforced."""

from __future__ import annotations

from pathlib import Path

from hive_metastore.ttypes import Database

from strandline.catalog.commands import CreateRole, SetConfiguration
from tests.metastore.hive.hive_node import hive_node, refusal, storage, table


def test_a_table_is_placed_only_in_the_folders_of_schemas_where_its_user_may_create(
    tmp_path: Path,
) -> None:
    with hive_node(tmp_path / "store") as hive:
        with hive.stub() as alice:
            alice.set_ugi("alice", [])
            alice.create_database(Database("sales"))
            alice.create_database(Database("own", ownerName="bob"))
        enforce = SetConfiguration(name="enforce_privileges", value="true")
        root = hive.node.session(user="root")
        root.execute([CreateRole(name="root", superuser=True), enforce])
        place = f"{hive.warehouse}/sales.db/orders"
        taken = table("taken", schema="own", sd=storage(location=place))
        with hive.stub() as bob:
            bob.set_ugi("bob", [])
            says = "user bob lacks CREATE and USAGE on schema sales"
            assert says in refusal(lambda: bob.create_table(taken))[1]
            assert not (hive.folder / "warehouse" / "sales.db" / "orders").exists()
            bob.create_table(table("t", schema="own"))
            moved = bob.get_table("own", "t")
            moved.sd.location = place
            assert says in refusal(lambda: bob.alter_table("own", "t", moved))[1]
