"""Locations that a Hive client names: files there are never touched."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from hive_metastore.ttypes import Database, EnvironmentContext, FieldSchema, Partition

from strandline.catalog.commands import CreateRole, GrantPrivileges, RenameTable, SetConfiguration
from strandline.config import Settings
from strandline.errors import ObjectNotFound
from strandline.metastore.hive import table_changes
from strandline.metastore.interface import AsOf
from strandline.model.privileges import ObjectKind, Privilege
from strandline.node.relocation import relocate
from tests.metastore.hive.hive_node import HiveNode, hive_node, outcome, refusal, storage, table

KEYS = [FieldSchema("p", "int", None)]


def tree(folder: Path) -> set[str]:
    paths = (path for path in folder.rglob("*") if "strandline." not in path.name)
    return {str(path.relative_to(folder)) for path in paths}


@pytest.fixture
def lake(hive: HiveNode, stub: Any) -> Path:
    """The folder of the store, with a table and a partition that have files."""
    folder = hive.folder
    stub.create_table(table("orders"))
    stub.create_table(table("parted", partitionKeys=KEYS))
    stub.add_partition(partition("1"))
    for place in ("orders", "parted/p=1"):
        (folder / "warehouse/d1.db" / place / "f").touch()
    return folder


def partition(value: str, *, location: str | None = None) -> Any:
    return Partition([value], "d1", "parted", sd=storage(location=location), parameters={})


@pytest.mark.parametrize(
    "change",
    [
        lambda c: c.add_partition(partition("1" * 300)),
        lambda c: c.append_partition("d1", "parted", ["1" * 300]),
        lambda c: c.rename_partition("d1", "parted", ["1"], partition("1" * 300)),
    ],
    ids=["add", "append", "rename"],
)
def test_a_value_that_is_too_long_for_the_name_of_a_folder_is_refused_for_its_length(
    lake: Path, stub: Any, change: Any
) -> None:
    before = tree(lake)
    assert "is too long: at most 4095 bytes are allowed" in refusal(lambda: change(stub))[1]
    assert stub.get_partition_names("d1", "parted", -1) == ["p=1"]
    assert tree(lake) == before


NAMED = [
    "{lake}",
    "file:{lake}/warehouse/",
    "{lake}/warehouse/d1.db",
    "{lake}/warehouse/d1.db/orders",
    "{lake}/warehouse/d1.db/../d1.db/orders/",
    "{lake}/warehouse/d1.db/orders/inner",
    "{lake}/warehouse/d1.db/parted/p=1",
    "{lake}/warehouse/d1.db/.dropped",
    "/",
]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["MANAGED_TABLE", "EXTERNAL_TABLE", None])
def test_a_table_at_a_location_that_a_client_named_is_external(
    stub: Any, hive: HiveNode, lake: Path, kind: str | None
) -> None:
    before = tree(lake)
    for number, named in enumerate(NAMED):
        place = named.format(lake=lake)
        stub.create_table(table(f"t{number}", sd=storage(location=place), tableType=kind))
        made = stub.get_table("d1", f"t{number}")
        assert made.tableType == "EXTERNAL_TABLE"
        made.tableName = f"u{number}"
        stub.alter_table("d1", f"t{number}", made)
        made.parameters = {k: v for k, v in made.parameters.items() if k != "EXTERNAL"}
        made.tableType = "MANAGED_TABLE"
        assert "cannot become a managed table" in str(
            outcome(lambda n=number, m=made: stub.alter_table("d1", f"u{n}", m))
        )
        context = EnvironmentContext({"ifPurge": "TRUE"})
        stub.drop_table_with_environment_context("d1", f"u{number}", True, context)
    assert tree(lake) == before


def test_a_managed_table_that_is_altered_to_a_named_location_becomes_external(
    stub: Any, lake: Path
) -> None:
    stub.create_table(table("mine"))
    before = tree(lake)
    for number, named in enumerate(NAMED):
        made = stub.get_table("d1", "mine" if number == 0 else f"m{number - 1}")
        old_name = made.tableName
        made.tableName, made.sd.location = f"m{number}", named.format(lake=lake)
        stub.alter_table("d1", old_name, made)
        assert stub.get_table("d1", f"m{number}").tableType == "EXTERNAL_TABLE"
    stub.drop_table("d1", made.tableName, True)
    assert tree(lake) == before


def test_a_rename_that_names_the_new_default_folder_keeps_the_table_managed(
    stub: Any, lake: Path
) -> None:
    made = stub.get_table("d1", "orders")
    made.tableName, made.sd.location = "sold", f"{lake}/warehouse/d1.db/sold"
    stub.alter_table("d1", "orders", made)
    assert stub.get_table("d1", "sold").tableType == "MANAGED_TABLE"
    assert (lake / "warehouse/d1.db/sold/f").exists()


def test_the_files_of_a_partition_at_a_named_location_are_never_moved(
    stub: Any, lake: Path
) -> None:
    before = tree(lake)
    for number, named in enumerate(NAMED, 100):
        stub.add_partition(partition(str(number), location=named.format(lake=lake)))
        renamed = stub.get_partition("d1", "parted", [str(number)])
        renamed.values = [str(number + 100)]
        stub.rename_partition("d1", "parted", [str(number)], renamed)
        stub.drop_partition("d1", "parted", [str(number + 100)], True)
    assert tree(lake) == before


def test_the_folders_of_the_partitions_of_an_external_table_are_kept(stub: Any, lake: Path) -> None:
    place = f"{lake}/warehouse/d1.db/parted"
    external: Any = {"tableType": "EXTERNAL_TABLE", "partitionKeys": KEYS}
    stub.create_table(table("outer", sd=storage(location=place), **external))
    before = tree(lake)
    stub.add_partition(Partition(["1"], "d1", "outer", sd=storage(), parameters={}))
    stub.drop_partition("d1", "outer", ["1"], True)
    assert tree(lake) == before


def test_a_partition_is_not_moved_through_a_symbolic_link(
    stub: Any, lake: Path, tmp_path: Path
) -> None:
    (tmp_path / "f").touch()
    (lake / "warehouse/d1.db/parted/p=5").symlink_to(tmp_path)
    assert "link" in str(outcome(lambda: stub.add_partition(partition("5"))))
    (lake / "warehouse/d1.db/parted/p=5").unlink()
    stub.add_partition(partition("5"))
    (lake / "warehouse/d1.db/parted/p=5").rmdir()
    (lake / "warehouse/d1.db/parted/p=5").symlink_to(tmp_path)
    stub.drop_partition("d1", "parted", ["5"], True)
    assert (lake / "warehouse/d1.db/parted/p=5").is_symlink()
    assert tree(tmp_path) == {"f"}


def test_a_schema_at_a_named_location_creates_and_removes_no_folder(stub: Any, lake: Path) -> None:
    (lake / "empty").mkdir()
    before = tree(lake)
    for place in ("empty", "new", "warehouse/d1.db/orders", "warehouse/x/y.db"):
        stub.create_database(Database("s1", locationUri=f"file:{lake}/{place}"))
        stub.create_table(table("t", schema="s1"))
        assert stub.get_table("s1", "t").tableType == "EXTERNAL_TABLE"
        stub.drop_database("s1", True, True)
    assert tree(lake) == before
    (lake / "empty").rmdir()


def test_the_folder_that_a_table_had_before_its_location_was_set_stays_when_it_is_dropped(
    stub: Any, lake: Path
) -> None:
    """A partition of another table may be located there, and Hive leaves it too."""
    place = lake / "warehouse/d1.db/t"
    stub.create_table(table("t"))
    (place / "f").touch()
    moved = stub.get_table("d1", "t")
    moved.sd.location = f"file:{lake}/elsewhere"
    stub.alter_table("d1", "t", moved)
    stub.create_table(table("archive", partitionKeys=[FieldSchema("p", "string", None)]))
    archived = Partition(["1"], "d1", "archive", sd=storage(location=f"file:{place}"))
    stub.add_partition(archived)
    stub.drop_table("d1", "t", True)
    assert (place / "f").exists()
    assert stub.get_partition("d1", "archive", ["1"]).sd.location == f"file:{place}"


def test_a_client_can_create_a_table_over_the_kept_files_of_a_dropped_table(
    stub: Any, hive: HiveNode, lake: Path
) -> None:
    place = lake / "warehouse/d1.db/orders"
    before = hive.node.metastore.catalogs.present().version
    stub.drop_table("d1", "orders", False)
    dropped = hive.node.metastore.catalogs.present().version
    stub.create_table(table("orders", sd=storage(location=f"file:{place}")))
    assert stub.get_table("d1", "orders").sd.location == f"file:{place}"
    assert (place / "f").exists()
    why = "a new table took over their folder"
    assert why in refusal(lambda: stub.get_table(f"d1@{before}", "orders"))[1]
    with pytest.raises(ObjectNotFound, match=why):
        hive.node.session(user="ann").undo(dropped)


def test_a_create_asks_who_has_its_place_only_if_a_client_may_have_written_there(
    stub: Any, hive: HiveNode, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []
    tables_at = hive.node.store.sql_store.tables_at

    def spied(places: Any) -> Any:
        asked.append(places)
        return tables_at(places)

    monkeypatch.setattr(hive.node.store.sql_store, "tables_at", spied)
    stub.create_table(table("fresh"))
    assert not asked
    for name in ("made", "written"):
        (lake / f"warehouse/d1.db/{name}").mkdir()
    stub.create_table(table("made"))
    assert not asked
    place = f"file:{lake}/warehouse/d1.db/written"
    stub.create_table(table("written", sd=storage(location=place)))
    assert len(asked) == 1


@pytest.mark.parametrize("keeping", ["by_the_drop", "elsewhere"])
def test_a_table_whose_client_names_no_folder_takes_none_over(
    stub: Any, hive: HiveNode, lake: Path, keeping: str
) -> None:
    """It would show the rows of the dropped table, and reads of the past would find no files."""
    stub.create_table(table(keeping))
    place = stub.get_table("d1", keeping).sd.location
    version = hive.node.metastore.catalogs.present().version
    if keeping == "elsewhere":
        moved = stub.get_table("d1", keeping)
        moved.sd.location = f"file:{lake}/{keeping}"
        stub.alter_table("d1", keeping, moved)
    stub.drop_table("d1", keeping, keeping == "elsewhere")
    stub.create_table(table(keeping))
    assert stub.get_table("d1", keeping).sd.location.startswith(f"{place}~")
    past = hive.node.session(user="ann").table(f"d1.{keeping}", at=AsOf(version=version))
    assert past.location == place.replace("file:", "file://")


def test_a_place_whose_folder_was_deleted_stays_that_of_the_dropped_table(
    stub: Any, lake: Path
) -> None:
    place = lake / "warehouse/d1.db/orders"
    stub.drop_table("d1", "orders", False)
    shutil.rmtree(place)
    stub.create_table(table("orders"))
    location = stub.get_table("d1", "orders").sd.location
    assert location.startswith(f"file:{place}~")
    assert Path(location.removeprefix("file:")).is_dir()
    assert not place.exists()


def test_locations_inside_a_copied_folder_point_into_the_copy(tmp_path: Path) -> None:
    lake, copy = tmp_path / "lake", tmp_path / "copy"
    with hive_node(lake) as hive, hive.stub() as client:
        client.create_database(Database("d1"))
        client.create_database(Database("far", locationUri=f"file:{lake}/far"))
        client.create_table(table("parted", partitionKeys=KEYS))
        client.add_partition(partition("1"))
        client.add_partition(partition("2", location=f"file:{lake}/named"))
        client.create_table(table("t", schema="far"))
    shutil.copytree(lake, copy)
    relocate(copy, copy=True)
    with hive_node(copy) as hive, hive.stub() as client:
        assert client.get_database("d1").locationUri == f"file:{copy}/warehouse/d1.db"
        assert client.get_database("far").locationUri == f"file:{copy}/far"
        assert client.get_table("far", "t").sd.location == f"file:{copy}/far/t"
        places = [part.sd.location for part in client.get_partitions("d1", "parted", -1)]
        assert places == [f"file:{copy}/warehouse/d1.db/parted/p=1", f"file:{copy}/named"]
        text = str(outcome(lambda: client.add_partition(partition("3", location=f"{lake}/named"))))
        assert ", which was moved or copied" in text
        for place, is_refused in ((f"{lake}/other", True), (f"{lake}/named", False)):
            altered = partition("2", location=place)
            text = str(outcome(lambda part=altered: client.alter_partition("d1", "parted", part)))
            assert (", which was moved or copied" in text) == is_refused
        client.create_table(table("new", schema="d1"))
        assert client.get_table("d1", "new").sd.location == f"file:{copy}/warehouse/d1.db/new"
        client.drop_table("d1", "parted", True)
    assert (lake / "warehouse/d1.db/parted/p=1").is_dir()
    assert not (copy / "warehouse/d1.db/parted").exists()


def test_the_folder_of_a_table_that_is_refused_is_removed_again(tmp_path: Path) -> None:
    root = tmp_path / "outside"
    place, used = root / "refused", root / "used"
    used.mkdir(parents=True)
    settings = Settings(location_roots=(str(root),))
    with hive_node(tmp_path / "store", settings=settings) as node, node.stub() as stub:
        stub.create_database(Database("d1"))
        stub.create_table(table("t", sd=storage(location=str(root / "t"))))
        for location in (place, used, root / "t"):
            again = table("t", sd=storage(location=str(location)))
            refused = refusal(lambda again=again: stub.create_table(again))
            assert refused == ("AlreadyExistsException", "Table t already exists")
        assert sorted(path.name for path in root.iterdir()) == ["t", "used"]
        stub.create_table(table("u", sd=storage(location=str(place))))
        assert place.is_dir()


def test_the_folder_of_a_refused_table_stays_if_another_client_has_just_created_the_table_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "outside/t"
    place.parent.mkdir()
    settings = Settings(location_roots=(str(place.parent),))
    with hive_node(tmp_path / "store", settings=settings) as node:
        sent = table("t", sd=storage(location=str(place)))

        def make_folder(*arguments: Any) -> None:
            monkeypatch.undo()
            make(*arguments)
            with node.stub() as other:
                other.create_table(sent)

        with node.stub() as stub:
            stub.create_database(Database("d1"))
            make = table_changes._make_folder
            monkeypatch.setattr(table_changes, "_make_folder", make_folder)
            refused = refusal(lambda: stub.create_table(sent))
        assert refused == ("AlreadyExistsException", "Table t already exists")
        assert place.is_dir()


@pytest.mark.parametrize("is_reached", [True, False])
def test_a_table_is_not_created_in_the_folder_that_a_renamed_table_could_not_leave(
    tmp_path: Path, is_reached: bool
) -> None:
    """The message names that table only to users who may know what is in its schema."""
    warehouse, may_create = tmp_path / "store/warehouse", Privilege.USAGE | Privilege.CREATE
    with hive_node(tmp_path / "store") as node, node.stub() as stub:
        for name in ("d1", "d2"):
            stub.create_database(Database(name))
        stub.create_table(table("t"))
        (warehouse / "d2.db/moved").mkdir()
        (warehouse / "d2.db/moved/f").touch()
        root = node.node.session(user="root")
        for command in (
            RenameTable(schema="d1", table="t", new_schema="d2", new_name="moved"),
            CreateRole(name="root", superuser=True),
            CreateRole(name="eve", superuser=is_reached),
            GrantPrivileges(
                kind=ObjectKind.SCHEMA, name="d1", privileges=may_create, grantee="eve"
            ),
            SetConfiguration(name="enforce_privileges", value="on"),
        ):
            root.execute(command)
        stub.set_ugi("eve", [])
        again = table("t", sd=storage(location=f"{warehouse}/d1.db/t"))
        _, message = refusal(lambda: stub.create_table(again))
    holder = "table d2.moved" if is_reached else "another table"
    assert f"which is the folder of {holder}; move that table" in message


@pytest.mark.parametrize("below", ["", "/p=1"])
@pytest.mark.parametrize("change", ["create", "alter"])
def test_the_folder_of_a_dropped_table_is_no_location_for_another_table(
    hive: HiveNode, stub: Any, change: str, below: str
) -> None:
    """Cleaning would delete its files. A client may read it just after the table was dropped."""
    stub.create_table(table("again"))
    dropped = hive.node.session(user="ann").table("d1.again").descriptor.id
    stub.drop_table("d1", "again", True)
    (aside,) = hive.folder.glob(f"warehouse/d1.db/.dropped/{dropped}")
    named = table("again", sd=storage(location=f"file:{aside}{below}"), tableType="EXTERNAL_TABLE")
    if change == "alter":
        stub.create_table(table("again"))
        named.tableType = None
        _, message = refusal(lambda: stub.alter_table("d1", "again", named))
    else:
        _, message = refusal(lambda: stub.create_table(named))
    assert "has the files of a dropped table or partition" in message


def test_a_table_that_exists_is_refused_as_such_also_if_its_place_would_be_refused(
    hive: HiveNode, stub: Any
) -> None:
    """Hive looks at the name first, and CREATE TABLE IF NOT EXISTS depends on it."""
    stub.create_table(table("here"))
    place = storage(location=f"{hive.warehouse}/d1.db/.dropped/1")
    refused = refusal(lambda: stub.create_table(table("here", sd=place)))
    assert refused == ("AlreadyExistsException", "Table here already exists")
