"""The permissions of the files and folders that a node creates."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest

from strandline.catalog.commands import (
    ColumnDefinition,
    CreateSchema,
    CreateTable,
    DropSchema,
    TableDefinition,
)
from strandline.config import Settings
from strandline.durable.persist.blob import blobs_in
from strandline.model.types import BIGINT
from strandline.node import DATABASE_FILE, Node, server
from strandline.node.address import StoreAddress
from strandline.node.backup import back_up, restore
from strandline.node.store_place import HEAD_FILE
from tests.node.backups import place
from tests.servers import postgresql, stores
from tests.strandline_command import strandline


@pytest.fixture(autouse=True)
def umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


Access = Literal["owner", "group", "umask"]
each_access = pytest.mark.parametrize(
    ("access", "file_mode", "folder_mode"),
    [("owner", 0o600, 0o700), ("group", 0o640, 0o750), ("umask", 0o644, 0o755)],
)


@each_access
def test_the_file_access_setting_determines_the_modes_of_files_and_folders(
    tmp_path: Path, access: Access, file_mode: int, folder_mode: int
) -> None:
    lake = tmp_path / "deep" / "lake"
    with Node.open(lake, settings=Settings(file_access=access)) as node:
        node.session(user="ann").execute(CreateSchema(name="shop"))
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in lake.iterdir()}
        files = {name: mode for name, mode in modes.items() if name.startswith(DATABASE_FILE)}
        assert f"{DATABASE_FILE}-wal" in files
        assert set(files.values()) == {file_mode}
        for folder in (lake.parent, lake, lake / "warehouse", lake / "warehouse" / "shop.db"):
            assert stat.S_IMODE(folder.stat().st_mode) == folder_mode


@each_access
def test_the_file_access_setting_determines_the_modes_of_blobs_outside_of_the_store(
    tmp_path: Path, access: Access, file_mode: int, folder_mode: int
) -> None:
    blobs = tmp_path / "blobs"
    place = Settings(file_access=access, catalog_log="persist", catalog_blobs=str(blobs))
    with Node.open(tmp_path / "lake", settings=place) as node:
        large = [CreateSchema(name=f"s{n}", comment=80 * "long") for n in range(200)]
        node.session(user="ann").execute(large)
    modes = {path.is_dir(): stat.S_IMODE(path.stat().st_mode) for path in blobs.iterdir()}
    assert modes == {True: folder_mode, False: file_mode}
    assert stat.S_IMODE(blobs.stat().st_mode) == folder_mode


def test_the_permissions_of_existing_files_and_folders_are_kept(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    Node.open(tmp_path).close()
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755
    (tmp_path / DATABASE_FILE).chmod(0o660)
    Node.open(tmp_path).close()
    assert stat.S_IMODE((tmp_path / DATABASE_FILE).stat().st_mode) == 0o660


def test_the_group_may_read_the_head_file_if_it_may_read_the_folder(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    Node.open(lake, settings=Settings(file_access="group")).close()
    assert stat.S_IMODE((lake / HEAD_FILE).stat().st_mode) == 0o640


def test_commands_let_the_group_write_whatever_the_umask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Node.open(tmp_path, settings=Settings(file_access="group")) as node:
        session = node.session(user="ann")
        session.execute(CreateSchema(name="shop"))
        dropped = session.execute(DropSchema(name="shop")).version
    (tmp_path / "strandline.toml").write_text('file_access = "group"')
    result = strandline("undo", tmp_path, dropped)
    assert result.exit_code == 0, result.output
    assert stat.S_IMODE((tmp_path / "warehouse" / "shop.db").stat().st_mode) == 0o770
    os.umask(0o022)
    monkeypatch.setattr(server, "serve", lambda *_, **__: None)
    strandline("serve", tmp_path)
    assert os.umask(0o022) == 0o007


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to another user")
def test_what_root_makes_in_the_store_of_another_user_belongs_to_that_user(tmp_path: Path) -> None:
    lake, owner = tmp_path / "lake", (12345, 12346)
    Node.open(lake).close()
    (lake / HEAD_FILE).unlink()
    for path in (lake, *lake.iterdir()):
        os.chown(path, *owner)
    with Node.open(lake, keeps_cache=True) as node:
        session = node.session(user="ann")
        table = TableDefinition(
            name="t", columns=(ColumnDefinition("k", BIGINT),), transactional=True
        )
        session.execute([CreateSchema(name="shop"), CreateTable(schema="shop", definition=table)])
        snapshot = session.open(["shop.t"])
        (table_id,) = snapshot.write_ids
        session.files(table_id, snapshot.write_ids[table_id])
        blobs_in(lake / "catalog").set("part", b"rows")
        made = {str(path.relative_to(lake)): path.stat() for path in lake.rglob("*")}
    made |= {path.name: path.stat() for path in lake.glob("*.cache")}  # written at the end
    assert {HEAD_FILE, f"{DATABASE_FILE}-wal", "warehouse/shop.db", "catalog/part"} < made.keys()
    assert "strandline.cache" in made
    assert {(status.st_uid, status.st_gid) for status in made.values()} == {owner}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to another user")
@pytest.mark.parametrize("exists", [False, True])
@pytest.mark.parametrize("kind", ["folder", pytest.param("postgresql", marks=pytest.mark.slow)])
def test_what_root_restores_to_the_folder_of_another_user_belongs_to_that_user(
    kind: str, exists: bool, tmp_path: Path
) -> None:
    settings = Settings(catalog_log="persist")
    store = stores.new_store(kind, tmp_path / "old", settings=settings)
    wide = tuple(ColumnDefinition(f"column_{number}", BIGINT) for number in range(2_000))
    with Node.open(store.address, settings=store.settings) as node:
        session = node.session(user="ann")
        table = TableDefinition(name="wide", columns=wide)  # too large for the state of the shard
        session.execute(CreateTable(schema="default", definition=table))
        (place(session, "default.wide") / "part").touch()
        back_up(node, tmp_path / "b", user="ann")
    home, owner = tmp_path / "home", (12345, 12346)
    target = home / "lake"
    (target if exists else home).mkdir(parents=True)
    os.chown(target if exists else home, *owner)
    address = StoreAddress(target)
    if kind == "postgresql":
        database = postgresql.running().new_database()
        address = StoreAddress(None, database, database)
    restore(tmp_path / "b", address, copy=True, warehouse=str(target))
    restored = {path: path.stat() for path in (target, *target.rglob("*"))}
    assert {"part", "wide"} < {path.name for path in restored}
    assert any(path.parent.name.endswith("catalog") for path in restored)
    assert {(status.st_uid, status.st_gid) for status in restored.values()} == {owner}
