"""A store that was copied, moved or restored: the original is never changed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import delete

from strandline.catalog.commands import (
    ColumnDefinition,
    CreateSchema,
    CreateTable,
    DropSchema,
    DropTable,
    RenameTable,
    TableDefinition,
)
from strandline.config import Settings
from strandline.errors import Conflict, Fenced, InvalidInput, NotFound, StoreMoved, WrongEnvironment
from strandline.model.descriptors import TableKind
from strandline.model.types import BIGINT
from strandline.node import DATABASE_FILE, Node, relocation
from strandline.node.relocation import relocate
from strandline.node.store_place import PLACE, claim_place
from strandline.sql import FenceRow, open_sqlite


def create(name: str, *, location: str | None = None) -> CreateTable:
    kind = TableKind.MANAGED if location is None else TableKind.EXTERNAL
    columns = (ColumnDefinition("k", BIGINT),)
    definition = TableDefinition(name=name, columns=columns, kind=kind, location=location)
    return CreateTable(schema="shop", definition=definition)


def drop(name: str) -> DropTable:
    return DropTable(schema="shop", table=name)


def tree(folder: Path) -> set[str]:
    paths = (path for path in folder.rglob("*") if DATABASE_FILE not in path.name)
    return {str(path.relative_to(folder)) for path in paths}


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """The folder of a store with two tables in a schema, a dropped one, and an external one."""
    folder = tmp_path / "lake"
    (folder / "files").mkdir(parents=True)
    (folder / "files" / "f").touch()
    with Node.open(folder, settings=Settings(deploy_generation=1)) as node:
        session = node.session(user="ann")
        session.execute(CreateSchema(name="shop"))
        session.execute([create(name) for name in ("orders", "items", "gone")])
        for name in ("orders", "items", "gone"):
            (folder / "warehouse/shop.db" / name / "f").touch()
        session.execute(create("outer", location=f"file:{folder}/files"))
        session.execute(drop("gone"))
    return folder


@pytest.fixture
def copied(lake: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(lake, tmp_path / "copy"))


def use(folder: Path) -> Iterator[str]:
    """Execute DDL that changes the folders of a store; yields the locations it reports."""
    with Node.open(folder) as node:
        session = node.session(user="ann")
        for name in ("orders", "items", "outer"):
            yield session.table(f"shop.{name}").location
        session.execute(RenameTable(schema="shop", table="items", new_name="things"))
        session.execute([drop("orders"), drop("outer")])
        session.execute(create("new"))
        session.undrop("shop.gone")
        session.execute(CreateSchema(name="other"))
        for name in ("things", "new", "gone"):
            yield session.table(f"shop.{name}").location
        yield str(session.execute(DropSchema(name="other")).version)


def test_a_copy_cannot_be_opened_before_it_is_relocated(lake: Path, copied: Path) -> None:
    before = tree(lake), tree(copied)
    with pytest.raises(StoreMoved, match=rf"last opened in {lake}.*relocate {copied} --copy"):
        Node.open(copied)
    assert (tree(lake), tree(copied)) == before


def test_a_relocated_copy_changes_only_its_own_files(lake: Path, copied: Path) -> None:
    original = tree(lake)
    relocate(copied, copy=True)
    places = list(use(copied))[:-1]
    assert all(place.startswith(f"file://{copied}/") for place in places)
    assert tree(lake) == original
    assert (copied / "warehouse/shop.db/things/f").exists()
    assert (copied / "warehouse/shop.db/gone/f").exists()
    assert (copied / "files/f").exists()
    assert not (copied / "warehouse/shop.db/orders").exists()
    with Node.open(lake) as node:
        assert node.session(user="ann").table("shop.orders").location.startswith(f"file://{lake}/")


def test_a_relocated_copy_has_its_own_environment(lake: Path, copied: Path) -> None:
    environment = relocate(copied, copy=True)
    environments = []
    for folder in (lake, copied):
        with Node.open(folder) as node, node.database.read() as connection:
            fence = FenceRow.read(connection)
            assert fence is not None
            environments.append(fence.environment)
    assert environments[0] != environments[1] == environment


def test_a_relocated_copy_gives_past_locations_in_its_own_folder(lake: Path, copied: Path) -> None:
    relocate(copied, copy=True)
    with Node.open(copied) as node:
        version = node.catalogs.present().version
        node.session(user="ann").execute(drop("orders"))
        schema = node.catalogs.catalog(version).schema("shop")
        assert schema is not None
        assert node.metastore.location_of_schema(schema) == f"file://{copied}/warehouse/shop.db"


def test_a_relocated_copy_refuses_locations_in_the_original(lake: Path, copied: Path) -> None:
    relocate(copied, copy=True)
    with Node.open(copied) as node:
        session = node.session(user="ann")
        for place in (lake, lake / "warehouse/shop.db/orders", f"file://{lake}/new"):
            with pytest.raises(InvalidInput, match=", which was moved or copied"):
                session.execute(create("t", location=str(place)))
            with pytest.raises(InvalidInput, match=", which was moved or copied"):
                session.execute(CreateSchema(name="s", location=str(place)))


def test_a_moved_store_works_after_it_is_relocated(lake: Path, tmp_path: Path) -> None:
    moved = lake.rename(tmp_path / "moved")
    with pytest.raises(StoreMoved, match=f"run `strandline relocate {moved}`"):
        Node.open(moved)
    relocate(moved, copy=False)
    assert all(place.startswith(f"file://{moved}/") for place in list(use(moved))[:-1])
    again = moved.rename(tmp_path / "again")
    relocate(again, copy=False)
    with Node.open(again) as node:
        session = node.session(user="ann")
        assert session.table("shop.things").location == f"file://{again}/warehouse/shop.db/things"
        session.execute(drop("things"))
        with pytest.raises(InvalidInput, match=", which was moved or copied"):
            session.execute(create("t", location=str(lake / "t")))
    assert not (again / "warehouse/shop.db/things").exists()


def test_a_store_whose_original_still_exists_is_not_taken_for_moved(
    lake: Path, copied: Path
) -> None:
    with pytest.raises(Conflict, match="--copy"):
        relocate(copied, copy=False)
    (lake / DATABASE_FILE).write_bytes(b"damaged")
    with pytest.raises(Conflict, match="cannot be read"):
        relocate(copied, copy=False)
    shutil.rmtree(lake)
    relocate(copied, copy=False)
    Node.open(copied).close()


def test_a_restored_database_is_distinguished_from_the_previous_one(
    lake: Path, copied: Path, tmp_path: Path
) -> None:
    lake.rename(tmp_path / "previous")  # not removed: its inode could be that of the restored one
    shutil.copytree(copied, lake)
    with pytest.raises(StoreMoved, match="is not the one that was here before"):
        Node.open(lake)
    relocate(lake, copy=False)
    list(use(lake))


def test_a_symbolic_link_to_the_folder_of_a_store_is_the_same_place(
    lake: Path, tmp_path: Path
) -> None:
    link = tmp_path / "link"
    link.symlink_to(lake)
    with Node.open(link) as node:
        session = node.session(user="ann")
        session.execute(drop("orders"))
        session.execute(create("new"))
    assert not (lake / "warehouse/shop.db/orders").exists()
    with Node.open(lake) as node:
        node.session(user="ann").execute(drop("new"))
    assert not (lake / "warehouse/shop.db/new").exists()


def test_the_refusal_of_a_store_behind_a_link_at_its_old_path_names_the_target(
    lake: Path, tmp_path: Path
) -> None:
    moved = lake.rename(tmp_path / "moved")
    lake.symlink_to(moved)
    with pytest.raises(StoreMoved, match=f"{lake}, which leads to {moved}, was .* in {lake}"):
        Node.open(lake)


def without_place(folder: Path, *, made_at: Path) -> None:
    """Make the store look as releases before 0.2.1 left it."""
    database = open_sqlite(folder / DATABASE_FILE)
    with database.write() as connection:
        connection.execute(delete(PLACE))
        connection.exec_driver_sql(
            "UPDATE table_location SET location = ? || location", (f"file:{made_at}/warehouse/",)
        )
    database.close()


def test_a_copy_of_a_store_of_an_older_release_is_refused_before_relocation(
    lake: Path, copied: Path
) -> None:
    for folder in (lake, copied):
        without_place(folder, made_at=lake)
    Node.open(lake).close()
    with pytest.raises(StoreMoved, match=f"last opened in {lake}"):
        Node.open(copied)
    original = tree(lake)
    relocate(copied, copy=True)
    assert all(place.startswith(f"file://{copied}/") for place in list(use(copied))[:-1])
    assert tree(lake) == original


def test_an_interrupted_relocation_can_be_repeated(
    copied: Path, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in ("_fence", "put"):
        with monkeypatch.context() as patch:
            patch.setattr(f"strandline.node.relocation.{step}", _cut)
            with pytest.raises(KeyboardInterrupt):
                relocate(copied, copy=True)
        with pytest.raises(StoreMoved):
            Node.open(copied)
    relocate(copied, copy=True)
    list(use(copied))


def test_a_copy_whose_relocation_was_interrupted_is_not_taken_for_moved(
    copied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The first is of the new epoch, the second of the new environment.
    fences: list[Callable[..., None]] = [relocation._fence, _cut]
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(relocation, "_fence", lambda *arguments: fences.pop(0)(*arguments))
        relocate(copied, copy=True)
    with pytest.raises(Conflict, match=rf"interrupted; run `strandline relocate {copied} --copy`"):
        relocate(copied, copy=False)
    relocate(copied, copy=True)
    list(use(copied))


def _cut(*_: object) -> None:
    raise KeyboardInterrupt


def test_a_running_node_is_fenced_by_the_relocation_of_its_folder(lake: Path) -> None:
    with Node.open(lake) as node:
        relocate(lake, copy=True)
        with pytest.raises(WrongEnvironment):
            node.transactions.begin(user="ann")
        with pytest.raises((Fenced, WrongEnvironment)):  # whichever the node notices first
            node.session(user="ann").execute(create("t"))
        with pytest.raises(WrongEnvironment):
            node.session(user="ann").execute(create("t"))


def test_a_folder_without_a_store_is_not_relocated(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="there is no store"):
        relocate(tmp_path, copy=False)


def test_settling_a_folder_twice_records_the_same_place(tmp_path: Path) -> None:
    database = open_sqlite(tmp_path / DATABASE_FILE)
    assert claim_place(database, tmp_path) == claim_place(database, tmp_path) == (str(tmp_path),)
    with database.read() as connection:
        assert connection.execute(PLACE.select()).one().path == os.path.realpath(tmp_path)
    database.close()
