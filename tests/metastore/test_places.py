"""Places that clients can name: nothing there is ever moved, created or removed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import update

from strandline.catalog import Command
from strandline.catalog.commands import (
    AlterTable,
    ColumnDefinition,
    CreateRole,
    CreateSchema,
    CreateTable,
    DropSchema,
    DropTable,
    GrantPrivileges,
    RenameTable,
    SetConfiguration,
    TableDefinition,
)
from strandline.config import Settings
from strandline.errors import (
    IllegalChange,
    InvalidInput,
    ObjectNotFound,
    StrandlineError,
    Unavailable,
)
from strandline.metastore.interface import AsOf, Session
from strandline.metastore.session import HttpSession
from strandline.metastore.session.http_app import HttpApplication
from strandline.metastore.store.store_folders import StoreFolders
from strandline.metastore.store.tables import TABLE_LOCATION
from strandline.model.descriptors import TableKind
from strandline.model.places import Place
from strandline.model.privileges import ObjectKind, Privilege
from strandline.model.types import BIGINT
from strandline.node import Node
from tests.metastore.session.served import serving

TABLE = TableDefinition(name="t", columns=(ColumnDefinition("k", BIGINT),))


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return tmp_path / "lake"


@pytest.fixture
def node(lake: Path) -> Iterator[Node]:
    """A node with the schema ``shop``, and in it the table ``orders`` with a file."""
    with Node.open(lake) as opened:
        session = opened.session(user="ann")
        session.execute(CreateSchema(name="shop"))
        session.execute(create("orders"))
        (lake / "warehouse/shop.db/orders/f").write_text("rows")
        yield opened


def create(name: str, *, schema: str = "shop", location: str | None = None) -> CreateTable:
    return CreateTable(schema=schema, definition=replace(TABLE, name=name, location=location))


def drop(name: str, *, schema: str = "shop") -> DropTable:
    return DropTable(schema=schema, table=name)


def tree(folder: Path) -> set[str]:
    """Return all folders and files, except the files of SQLite."""
    return {
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if "strandline.db" not in path.name
    }


def test_dropping_a_table_at_the_place_of_the_store_does_not_move_the_store(
    node: Node, lake: Path
) -> None:
    """Over HTTP, as the attack was found."""
    before = tree(lake.parent)
    with serving(HttpApplication(node.metastore)) as url, HttpSession(url, user="eve") as session:
        session.execute(create("t", location=lake.as_uri()))
        session.execute(drop("t"))
        session.execute(create("after"))
    assert tree(lake.parent) == before | {"lake/warehouse/shop.db/after"}
    assert (lake / "strandline.db").exists()


NAMED = [
    "{lake}",
    "file:{lake}",
    "FILE:///{lake}/",
    "file://localhost{lake}",
    "{lake}/../lake",
    "{lake}/strandline.db",
    "{lake}/warehouse",
    "{lake}/warehouse/",
    "{lake}/warehouse/.dropped",
    "{lake}/warehouse/shop.db",
    "{lake}/warehouse//shop.db/",
    "{lake}/warehouse/shop.db/.dropped",
    "{lake}/warehouse/shop.db/orders",
    "{lake}/warehouse/shop.db/orders/",
    "{lake}/warehouse/shop.db/./orders",
    "{lake}/warehouse/shop.db/orders/inner",
    "{lake}/warehouse/../warehouse/shop.db/orders",
    "{lake}/warehouse/SHOP.DB/orders",
    "{lake}/%77arehouse/shop.db/orders",
    "{lake}/warehouse/link",
    "{lake}/warehouse/link/home",
    "{home}",
    "{home}/new",
    "/",
    "s3://bucket/t",
]
"""Places that users name: spellings of one place, and places in, above and beside others."""


@pytest.mark.parametrize("how", ["location", "schema", "alter"])
def test_a_place_that_a_user_named_is_never_changed(
    node: Node, lake: Path, tmp_path: Path, how: str
) -> None:
    home = tmp_path / "home"
    (home / "deep").mkdir(parents=True)
    (lake / "warehouse/link").symlink_to(home)
    session = node.session(user="eve")
    session.execute([CreateSchema(name="mine"), create("before", schema="mine")])
    session.execute(drop("before", schema="mine"))
    for number, named in enumerate(NAMED):
        before = tree(tmp_path)
        for command in attack(how, named.format(lake=lake, home=home), number):
            with suppress(InvalidInput, IllegalChange, ObjectNotFound):
                session.execute(command)
        changed = tree(tmp_path) ^ before
        own = ("lake/warehouse/mine.db/", f"lake/warehouse/evil{number}.db")
        assert all(path.startswith(own) for path in changed), (named, changed)
    assert (lake / "warehouse/shop.db/orders/f").read_text() == "rows"


def attack(how: str, place: str, number: int = 0) -> list[Command]:
    """Return commands that name ``place`` and then try to have it moved."""
    name, schema = f"t{number}", "mine"
    if how == "location":
        return [create(name, schema=schema, location=place), drop(name, schema=schema)]
    if how == "schema":
        evil = f"evil{number}"
        in_evil = create("orders", schema=evil)
        return [
            CreateSchema(name=evil, location=place),
            in_evil,
            drop("orders", schema=evil),
            in_evil,
            DropSchema(name=evil, cascade=True),
        ]
    made = create(name, schema=schema)
    definition = replace(TABLE, name=name)
    altered = AlterTable(schema=schema, table=name, definition=replace(definition, location=place))
    return [made, altered, replace(altered, definition=definition), drop(name, schema=schema)]


@contextmanager
def put_by_an_older_release(node: Node, table_id: int, place: str) -> Iterator[Node]:
    """Reopen the store with the place of a table as release 0.2.1 wrote it."""
    with node.database.write() as connection:
        columns = TABLE_LOCATION.c
        statement = update(TABLE_LOCATION).where(columns.table_id == table_id)
        connection.execute(statement.values(location=place))
    node.close()
    with Node.open(node.folder) as opened:
        yield opened


@pytest.mark.parametrize("purge", [False, True])
def test_a_place_through_a_symbolic_link_is_not_moved(node: Node, lake: Path, purge: bool) -> None:
    """Not even a place with the form of an own place: the link may have been created later."""
    home = lake.parent / "home"
    shop = lake / "warehouse/shop.db"
    shop.rename(home)
    shop.symlink_to(home)
    session = node.session(user="ann")
    table_id = session.table("shop.orders").descriptor.id
    session.execute(replace(drop("orders"), purge=purge))
    assert (home / "orders/f").read_text() == "rows"
    assert node.store.location(table_id) == (None if purge else f"file://{shop}/orders")
    session.execute(create("new"))
    assert not (home / "new").exists()
    session.execute(DropSchema(name="shop", cascade=True))
    assert tree(home) == {"orders", "orders/f"}


def test_the_warehouse_itself_may_be_a_link(lake: Path, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    lake.mkdir()
    (lake / "warehouse").symlink_to(tmp_path / "disk")
    with Node.open(lake) as node:
        session = node.session(user="ann")
        session.execute(create("t", schema="default"))
        table_id = session.table("t").descriptor.id
        session.execute(drop("t", schema="default"))
        assert tree(tmp_path / "disk") == {".dropped", f".dropped/{table_id}"}


@pytest.mark.parametrize("purge", [False, True])
def test_a_dropped_folder_is_not_moved_through_a_link(node: Node, lake: Path, purge: bool) -> None:
    home = lake.parent / "home"
    home.mkdir()
    (lake / "warehouse/shop.db/.dropped").symlink_to(home)
    node.session(user="ann").execute(replace(drop("orders"), purge=purge))
    assert (lake / "warehouse/shop.db/orders/f").exists()
    assert tree(home) == set()


@pytest.mark.parametrize("purge", [False, True])
def test_two_tables_that_older_releases_put_into_one_place_are_not_moved(
    node: Node, lake: Path, purge: bool
) -> None:
    session = node.session(user="ann")
    session.execute(create("other"))
    place = f"file://{lake}/warehouse/shop.db/orders"
    other = session.table("shop.other").descriptor.id
    with put_by_an_older_release(node, other, place) as opened:
        opened.session(user="ann").execute(replace(drop("other"), purge=purge))
    assert (lake / "warehouse/shop.db/orders/f").exists()


@pytest.mark.parametrize("named", ["", "/warehouse/shop.db", "/warehouse/shop.db/orders/inner"])
def test_a_managed_table_that_an_older_release_put_elsewhere_is_never_moved(
    node: Node, lake: Path, named: str
) -> None:
    """It can be read, renamed, dropped and restored, and its files are not changed."""
    session = node.session(user="ann")
    session.execute(create("old"))
    (lake / "warehouse/shop.db/old").rmdir()
    place = f"file://{lake}{named}"
    before = tree(lake)
    with put_by_an_older_release(node, session.table("shop.old").descriptor.id, place) as opened:
        session = opened.session(user="ann")
        assert session.table("shop.old").location == place
        session.execute(RenameTable(schema="shop", table="old", new_name="renamed"))
        dropped = session.execute(drop("renamed"))
        if (lake / named.lstrip("/")).exists():
            session.undo(dropped.version)
            assert session.table("shop.renamed").location == place
    assert tree(lake) == before


def test_a_dropped_table_is_not_restored_to_the_folder_of_another_table(
    node: Node, lake: Path
) -> None:
    session = node.session(user="ann")
    dropped = session.execute(replace(drop("orders"), keep_data=True))
    shutil.rmtree(lake / "warehouse/shop.db/orders")
    session.execute(create("orders"))  # the place is free, so it gets it
    session.execute(RenameTable(schema="shop", table="orders", new_name="kept"))
    place = f"file://{lake}/warehouse/shop.db/orders"
    (lake / "warehouse/shop.db/orders").mkdir(exist_ok=True)
    kept = session.table("shop.kept").descriptor.id
    with (
        put_by_an_older_release(node, kept, place) as opened,
        pytest.raises(ObjectNotFound, match="belongs to another table"),
    ):
        opened.session(user="ann").undo(dropped.version)


def test_the_past_of_a_dropped_table_does_not_show_the_files_of_the_table_that_took_its_folder(
    node: Node,
) -> None:
    session = node.session(user="ann")
    orders = session.table("shop.orders")
    past = AsOf(version=orders.catalog_version)
    session.execute(replace(drop("orders"), keep_data=True))
    node.store.log_applier.catch_up()
    assert session.table("shop.orders", at=past).location == orders.location
    session.execute(replace(create("orders"), instead_of=orders.descriptor.id))
    node.store.log_applier.catch_up()
    with pytest.raises(ObjectNotFound, match="a new table took over their folder"):
        session.table("shop.orders", at=past)


def test_no_new_warehouse_is_made_in_place_of_one_that_was_moved_away(
    node: Node, lake: Path
) -> None:
    """The table would leave its files behind: a folder that is missing cannot follow it."""
    session = node.session(user="ann")
    (lake / "warehouse").rename(lake / "elsewhere")
    for command in (
        RenameTable(schema="shop", table="orders", new_name="renamed"),
        create("second"),
    ):
        with pytest.raises(Unavailable, match=r"warehouse is not in its place; .* put the folder"):
            session.execute(command)
    (lake / "elsewhere").rename(lake / "warehouse")
    session.execute(RenameTable(schema="shop", table="orders", new_name="renamed"))
    assert (lake / "warehouse/shop.db/renamed/f").read_text() == "rows"


def test_a_table_with_the_name_of_a_schema_folder_gets_another_folder(
    node: Node, lake: Path
) -> None:
    session = node.session(user="ann")
    session.execute(create("shop.db", schema="default"))
    assert session.table("`shop.db`").location.endswith("/warehouse/shop%2Edb")
    session.execute(drop("shop.db", schema="default"))
    assert (lake / "warehouse/shop.db/orders/f").exists()


def test_two_schemas_cannot_share_a_folder_of_the_store(node: Node, lake: Path) -> None:
    session = node.session(user="eve")
    for place in (
        f"{lake}/warehouse/shop.db",
        f"file://{lake}/warehouse/x/../shop.db/",
        lake / "warehouse",
    ):
        with pytest.raises(InvalidInput, match="is the folder of schema"):
            session.execute(CreateSchema(name="evil", location=str(place)))


def test_an_external_table_cannot_become_managed(node: Node, lake: Path) -> None:
    session = node.session(user="eve")
    session.execute(create("t", location=str(lake)))
    with pytest.raises(IllegalChange, match="cannot become a managed table"):
        session.execute(AlterTable(schema="shop", table="t", definition=TABLE))


def test_folders_elsewhere_are_created_only_below_the_location_roots(
    lake: Path, tmp_path: Path
) -> None:
    (tmp_path / "roots").mkdir()
    (tmp_path / "roots/out").symlink_to(tmp_path)
    with Node.open(lake, settings=Settings(location_roots=(f"{tmp_path}/roots",))) as node:
        session = node.session(user="ann")
        for number, place in enumerate(
            ["roots/a", "else/b", "roots/out/c", "lake/d", "roots/../e"]
        ):
            session.execute(CreateSchema(name=f"s{number}", location=str(tmp_path / place)))
        assert (tmp_path / "roots/a").is_dir()
        for name in ("else", "c", "lake/d", "e"):
            assert not (tmp_path / name).exists()
        session.execute(DropSchema(name="s0"))
        assert (tmp_path / "roots/a").is_dir()


def test_attacks_by_users_without_privileges_are_refused_and_change_nothing(
    node: Node, lake: Path
) -> None:
    """If privileges are enforced, they are checked first; nothing changes either way."""
    root = node.session(user="root")
    root.execute([CreateRole(name=name, superuser=name == "root") for name in ("root", "eve")])
    root.execute(SetConfiguration(name="enforce_privileges", value="on"))
    before = tree(lake)
    session = node.session(user="eve")
    for how in ("location", "schema", "alter"):
        for command in attack(how, str(lake)):
            with pytest.raises(StrandlineError):
                session.execute(command)
    assert tree(lake) == before


def test_a_location_root_must_be_an_absolute_path() -> None:
    with pytest.raises(InvalidInput, match="not an absolute path"):
        Settings(location_roots=("/a", "b"))


def kind(session: Session, name: str) -> TableKind:
    return session.table(name).descriptor.kind


def test_a_table_inside_the_store_but_not_at_its_own_place_is_external(
    node: Node, lake: Path
) -> None:
    session = node.session(user="ann")
    session.execute(create("t", location=f"{lake}/warehouse/shop.db/other"))
    assert kind(session, "shop.t") is TableKind.EXTERNAL
    assert not os.path.exists(lake / "warehouse/shop.db/other")


@pytest.mark.parametrize("inner", ["", "in/it"])
def test_a_managed_table_is_not_created_where_an_external_table_has_its_files(
    node: Node, lake: Path, inner: str
) -> None:
    session, folder = node.session(user="ann"), lake / "warehouse/shop.db/new" / inner
    session.execute(create("old", location=f"{folder}/"))
    folder.mkdir(parents=True)
    (folder / "f").write_text("rows")
    with pytest.raises(InvalidInput, match=r"where the external table shop\.old has its files"):
        session.execute(create("new"))
    session.execute(create("ne"))
    session.execute(drop("old"))
    session.execute(create("new"))
    assert (folder / "f").read_text() == "rows"


@pytest.mark.parametrize(("user", "holder"), [("root", "schema shop"), ("eve", "another schema")])
def test_a_refused_place_names_no_schema_that_the_user_does_not_reach(
    node: Node, lake: Path, user: str, holder: str
) -> None:
    root = node.session(user="root")
    root.execute([CreateRole(name="root", superuser=True), CreateRole(name="eve")])
    root.execute(
        GrantPrivileges(
            kind=ObjectKind.DATABASE, name="hive", privileges=Privilege.CREATE, grantee="eve"
        )
    )
    root.execute(SetConfiguration(name="enforce_privileges", value="on"))
    place = str(lake / "warehouse/shop.db")
    with pytest.raises(InvalidInput, match=f"that is the folder of {holder};"):
        node.session(user=user).execute(CreateSchema(name="new", location=place))


@pytest.mark.parametrize(
    ("usage", "holder"),
    [(Privilege.USAGE, r"the external table other\.old"), (Privilege(0), "an external table")],
)
def test_a_refused_place_names_no_table_of_a_schema_that_the_user_does_not_reach(
    node: Node, lake: Path, usage: Privilege, holder: str
) -> None:
    folder = lake / "warehouse/shop.db/new"
    folder.mkdir()
    root = node.session(user="root")
    root.execute([CreateSchema(name="other"), create("old", schema="other", location=str(folder))])
    root.execute([CreateRole(name="root", superuser=True), CreateRole(name="eve")])
    granted = {"shop": Privilege.USAGE | Privilege.CREATE, "other": usage}
    for name, privileges in granted.items():
        if privileges:
            root.execute(
                GrantPrivileges(
                    kind=ObjectKind.SCHEMA, name=name, privileges=privileges, grantee="eve"
                )
            )
    root.execute(SetConfiguration(name="enforce_privileges", value="on"))
    with pytest.raises(InvalidInput, match=f"where {holder} has its files"):
        node.session(user="eve").execute(create("new"))


def test_a_managed_table_gets_a_folder_beside_that_of_a_table_that_became_external(
    node: Node, lake: Path
) -> None:
    session = node.session(user="ann")
    external = replace(TABLE, name="orders", kind=TableKind.EXTERNAL)
    session.execute(AlterTable(schema="shop", table="orders", definition=external))
    session.execute(RenameTable(schema="shop", table="orders", new_name="old"))
    session.execute(create("orders"))
    orders = session.table("shop.orders")
    assert orders.location.endswith(f"/shop.db/orders~{orders.descriptor.id}")
    assert (lake / "warehouse/shop.db/orders/f").exists()


@pytest.mark.teeth
def test_without_the_checks_of_places_a_named_place_is_moved(
    node: Node, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tests above can fail: the places that they name are moved if nothing checks them."""
    monkeypatch.setattr(Place, "is_of_table", True)
    monkeypatch.setattr(StoreFolders, "verify", lambda *_, **__: None)
    session = node.session(user="ann")
    session.execute(create("old"))
    before = tree(lake)
    place = f"file://{lake}/warehouse/shop.db"
    with put_by_an_older_release(node, session.table("shop.old").descriptor.id, place) as opened:
        opened.session(user="ann").execute(drop("old"))
    assert tree(lake) != before
