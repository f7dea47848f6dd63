"""``strandline upgrade-check``, and a store of an older release on its way to this one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from strandline.catalog.commands import CreateSchema
from strandline.cli import main
from strandline.cli.stores import database_of, log_of
from strandline.durable import CatalogTransaction, durable_state
from strandline.durable.migrations import FORMAT
from strandline.node import Node
from strandline.node.membership import raises_fence_of
from strandline.node.place import DATABASE_FILE
from tests.servers import stores


def run(*arguments: object, fails: bool = False) -> str:
    result = CliRunner().invoke(main, [*map(str, arguments)])
    assert (result.exit_code != 0) is fails, result.output
    return result.output


def forget_the_format(store: Path | str) -> None:
    """Make the catalog one of a release before there were formats."""

    def forget(transaction: CatalogTransaction) -> None:
        with transaction.entry("configure", {}):
            transaction.delete("config", FORMAT)

    with database_of(store, read_only=False) as database, log_of(store, database) as log:
        durable_state(log).edit(
            forget, member="a test", raise_fence=raises_fence_of(database), author="ann"
        )


@pytest.mark.parametrize("kind", ["folder", "postgresql"])
def test_a_store_of_an_older_release_is_checked_refused_and_then_migrated(
    kind: str, tmp_path: Path
) -> None:
    made = stores.new_store(kind, tmp_path)
    with Node.open(made.address, settings=made.settings) as node:
        node.session(user="ann").execute(CreateSchema(name="shop"))
    assert "would" not in run("upgrade-check", made.address)
    forget_the_format(made.address)
    assert "a node would migrate it: note the default zone" in run("upgrade-check", made.address)
    for command in (["log"], ["debug", "dump"]):
        assert "strandline serve" in run(*command, made.address, fails=True)
    with Node.open(made.address, settings=made.settings) as node:
        node.session(user="ann").execute(CreateSchema(name="later"))
    assert "would" not in run("upgrade-check", made.address)
    assert "migrate note the default zone by its id" in run("log", made.address)


def test_a_check_leaves_the_database_byte_for_byte_and_its_node_in_place(tmp_path: Path) -> None:
    with Node.open(tmp_path / "lake") as node:
        node.session(user="ann").execute(CreateSchema(name="shop"))
    files = [tmp_path / "lake" / f"{DATABASE_FILE}{suffix}" for suffix in ("", "-wal")]
    before = [file.read_bytes() if file.exists() else b"" for file in files]
    run("upgrade-check", tmp_path / "lake")
    assert [file.read_bytes() if file.exists() else b"" for file in files] == before
    with Node.open(tmp_path / "lake") as node:
        run("upgrade-check", tmp_path / "lake")
        node.session(user="ann").execute(CreateSchema(name="later"))
        assert node.catalogs.state.token.epoch == 1


def test_the_sizes_of_clusters_are_compared_with_those_listed(tmp_path: Path) -> None:
    with Node.open(tmp_path / "lake") as node:
        session = node.session(user="ann")
        session.execute(CreateSchema(name="shop"))
    run(
        "debug",
        "edit",
        tmp_path / "lake",
        "cluster",
        "5",
        json.dumps({"id": 5, "name": "etl", "owner": "ann", "size": "large"}),
    )
    sizes = tmp_path / "sizes.json"
    sizes.write_text('{"small": {"cores": 1}}')
    option = ["--cluster-replica-sizes", str(sizes)]
    said = run("upgrade-check", tmp_path / "lake", *option, fails=True)
    assert "cluster etl: large" in said
    sizes.write_text('{"large": {"cores": 8}}')
    assert "can open" in run("upgrade-check", tmp_path / "lake", *option)
    for text in ("[]", "{"):
        sizes.write_text(text)
        assert "JSON" in run("upgrade-check", tmp_path / "lake", *option, fails=True)
