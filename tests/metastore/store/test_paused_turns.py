"""A node that is stopped in the middle of a turn for longer than the server waits for it."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

from strandline.catalog.commands import CreateSchema, DropTable
from strandline.clock import elapsed_seconds
from strandline.errors import UnknownOutcome
from strandline.metastore.store import folder_turns
from strandline.node import Node
from tests.metastore.store.lake import SETTINGS, Lake
from tests.node.conftest import before_the_next
from tests.servers import stores

_END_SILENT = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
    " WHERE datname = current_database() AND state = 'idle in transaction'"
)


def test_a_purge_that_another_node_finished_meanwhile_leaves_a_new_table_of_that_name_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = stores.new_store("postgresql", tmp_path / "lake", settings=SETTINGS)
    with (
        Node.open(store.address, settings=store.settings) as node,
        Node.open(store.address, settings=store.settings) as stopped,
    ):
        lake, paths = Lake(node, [0]), set()
        lake.write(lake.create())

        def stop() -> None:
            with psycopg.connect(store.address) as connection:
                connection.execute(_END_SILENT)
            paths.add(lake.write(lake.create()))  # projects the purge first
            monkeypatch.setattr(folder_turns, "elapsed_seconds", lambda: elapsed_seconds() + 60)

        before_the_next(monkeypatch, folder_turns.Turn, "take", stop)
        session = stopped.session(user="bob")
        with pytest.raises(UnknownOutcome):
            session.execute(DropTable(schema="default", table="t", purge=True))
        session.execute(CreateSchema(name="later"))
        assert lake.on_disk() == paths
