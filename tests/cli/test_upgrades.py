"""``strandline upgrade-check``, and the upgrade of a store of an older release."""

from __future__ import annotations

import sqlite3
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import pytest

from strandline.catalog.commands import CreateCluster, CreateSchema
from strandline.cli.stores import address_of, database_at, log_at
from strandline.clock import HybridClock
from strandline.config import Settings
from strandline.durable import CatalogTransaction, durable_state
from strandline.durable.migrations import FORMAT
from strandline.errors import StrandlineError, surface_of
from strandline.metastore.store.upgrades import PART
from strandline.model.descriptors import Setting
from strandline.node import Node
from strandline.node.address import DATABASE_FILE
from strandline.node.catalog_log import LogPlace, deciding_part, open_log
from strandline.node.membership import raises_fence_of
from tests.durable.test_opening import stored_on_server
from tests.servers import stores
from tests.strandline_command import strandline


def run(*arguments: object, fails: bool = False) -> str:
    result = strandline(*arguments)
    assert (result.exit_code != 0) is fails, result.output
    return result.output


def forget_the_format(store: Path | str) -> None:
    """Make the catalog look like that of a release before there were formats."""

    def forget(transaction: CatalogTransaction) -> None:
        with transaction.entry("configure", {}):
            transaction.delete("config", FORMAT)

    with log_at(address_of(store), read_only=False) as (log, database):
        durable_state(log).edit(
            forget,
            member="a test",
            raise_fence=raises_fence_of(database, HybridClock()),
            author="ann",
        )


@pytest.mark.parametrize("kind", ["folder", "postgresql"])
def test_a_store_of_an_older_release_is_checked_refused_by_readers_and_migrated(
    kind: str, tmp_path: Path
) -> None:
    made = stores.new_store(kind, tmp_path)
    with Node.open(made.address, settings=made.settings) as node:
        node.session(user="ann").execute(CreateSchema(name="shop"))
    assert "would" not in run("upgrade-check", made.address)
    forget_the_format(made.address)
    assert "a node would migrate it: note the default zone" in run("upgrade-check", made.address)
    moving = ["durable", "migrate", "--to", f"{made.address}#stash", "--from"]
    for command in (["log"], ["debug", "dump"], ["clean"], moving):
        assert "strandline serve" in run(*command, made.address, fails=True)
    with Node.open(made.address, settings=made.settings) as node:
        node.session(user="ann").execute(CreateSchema(name="later"))
    assert "would" not in run("upgrade-check", made.address)
    assert "migrate note the default zone by its id" in run("log", made.address)


def test_a_preview_of_cleaning_does_not_upgrade_a_store_of_an_older_release(tmp_path: Path) -> None:
    Node.open(tmp_path).close()
    with closing(sqlite3.connect(tmp_path / DATABASE_FILE)) as database:
        database.execute("UPDATE strandline_schema SET version = 4 WHERE part = 'metastore'")
        database.commit()
        before = list(database.iterdump())
        assert "older release" in run("clean", tmp_path, fails=True)
        assert list(database.iterdump()) == before


def test_upgrade_check_names_the_tables_that_a_node_would_upgrade(tmp_path: Path) -> None:
    Node.open(tmp_path).close()
    assert "would" not in run("upgrade-check", tmp_path)
    with closing(sqlite3.connect(tmp_path / DATABASE_FILE)) as database:
        database.execute("UPDATE strandline_schema SET version = 4 WHERE part = 'metastore'")
        database.commit()
    would = f"a node would upgrade the tables of 'metastore' from version 4 to {PART.version}"
    assert would in run("upgrade-check", tmp_path)
    Node.open(tmp_path).close()
    assert "would" not in run("upgrade-check", tmp_path)


BROKEN = {
    "a newer release": "UPDATE strandline_schema SET version = 99 WHERE part = 'metastore'",
    "another environment": "UPDATE strandline_fence SET environment = 'another'",
    "an older catalog": "UPDATE strandline_fence SET catalog_version = 99",
    "an older epoch": "UPDATE strandline_fence SET epoch = 9",
    **{
        f"no version of {part}": f"DELETE FROM strandline_schema WHERE part = '{part}'"
        for part in ("catalog_log", "metastore", "place", "transactions")
    },
    "an older generation": "UPDATE strandline_fence SET deploy_generation = 9",
}


@pytest.mark.parametrize(
    "log",
    [
        "metastorage",
        *(pytest.param(log, marks=pytest.mark.slow) for log in ("stash", "persist", "shadow")),
    ],
)
def test_upgrade_check_refuses_what_a_node_refuses(log: str, tmp_path: Path) -> None:
    settings = Settings(catalog_log=log)
    for number, (name, statement) in enumerate(BROKEN.items()):
        folder = tmp_path / str(number)
        Node.open(folder, settings=settings).close()
        with closing(sqlite3.connect(folder / DATABASE_FILE)) as database:
            database.execute(statement)
            database.commit()
        with pytest.raises(StrandlineError) as refused:
            Node.open(folder)
        checked = strandline("upgrade-check", folder)
        assert checked.exit_code == surface_of(refused.value).exit, (name, checked.output)
        assert "can open" not in checked.output, name


def test_upgrade_check_accepts_a_fence_raised_in_the_rows_only(tmp_path: Path) -> None:
    Node.open(tmp_path).close()
    with closing(sqlite3.connect(tmp_path / DATABASE_FILE)) as database:
        database.execute("UPDATE strandline_fence SET epoch = epoch + 1")
        database.commit()
    assert "can open" in run("upgrade-check", tmp_path)
    Node.open(tmp_path).close()


def test_a_system_view_renamed_by_hand_is_added_again(tmp_path: Path) -> None:
    Node.open(tmp_path).close()

    def rename(transaction: CatalogTransaction) -> None:
        first = next(iter(transaction.contents.objects("system_view"))).value
        with transaction.entry("configure", {}):
            transaction.put(replace(first, name="renamed"))

    with log_at(address_of(tmp_path), read_only=False) as (log, database):
        durable_state(log).edit(
            rename,
            member="a test",
            raise_fence=raises_fence_of(database, HybridClock()),
            author="ann",
        )
    assert "a node would update 1 system view" in run("upgrade-check", tmp_path)
    Node.open(tmp_path).close()
    assert "would" not in run("upgrade-check", tmp_path)


def test_upgrade_check_changes_no_byte_and_does_not_fence_a_running_node(tmp_path: Path) -> None:
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


@pytest.mark.slow
@pytest.mark.parametrize(
    "log", ["shadow:persist+metastorage", pytest.param("shadow", marks=pytest.mark.slow)]
)
def test_reading_commands_write_nothing_to_etcd_even_if_one_log_of_a_shadow_is_behind(
    log: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = stores.new_store("etcd", tmp_path)
    address, objects = made.address, made.settings.objects
    monkeypatch.setenv("STRANDLINE_OBJECTS", objects)
    settings = replace(made.settings, catalog_log=log, catalog_blobs=str(tmp_path / "blobs"))
    with Node.open(address, settings=settings) as node:
        node.session(user="ann").execute(CreateSchema(name="shop"))
    with (
        database_at(address_of(address), read_only=False) as database,
        ExitStack() as opened,
    ):
        place = LogPlace(database, address_of(address), HybridClock())
        first = open_log(deciding_part(log), place, opened).log
        durable_state(first).edit(
            put_note,
            member="a test",
            raise_fence=raises_fence_of(database, HybridClock()),
            author="ann",
        )

    def stored() -> list[dict[str, object]]:
        files = (tmp_path / "blobs").glob("s*")
        blobs: dict[str, object] = {str(file): file.read_bytes() for file in files}
        return [stored_on_server(address), stored_on_server(objects), blobs]

    before = stored()
    assert "can open" in run("upgrade-check", address)
    assert '"seen"' in run("debug", "dump", address)
    run("debug", "epoch", address)
    run("upgrade-check", f"{address}-another", fails=True)
    assert stored() == before
    with Node.open(address, settings=settings) as node:
        assert node.catalogs.present().schema("shop") is not None
    assert stored() != before


def put_note(transaction: CatalogTransaction) -> None:
    with transaction.entry("configure", {}):
        transaction.put(Setting("note", "seen"))


def test_upgrade_check_compares_the_sizes_of_clusters_with_the_given_list(tmp_path: Path) -> None:
    with Node.open(tmp_path / "lake") as node:
        session = node.session(user="ann")
        session.execute(CreateCluster(name="etl", size="large"))
    sizes = tmp_path / "sizes.json"
    sizes.write_text('{"small": {"cores": 1}}')
    option = ["--cluster-replica-sizes", str(sizes)]
    said = run("upgrade-check", tmp_path / "lake", *option, fails=True)
    assert "cluster etl: large" in said
    sizes.write_text('{"large": {"cores": 8}}')
    assert "can open" in run("upgrade-check", tmp_path / "lake", *option)
    for text in ("[]", "{", "[" * 100_000):
        sizes.write_text(text)
        assert "JSON" in run("upgrade-check", tmp_path / "lake", *option, fails=True)
