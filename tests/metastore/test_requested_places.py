from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from strandline.catalog import Command
from strandline.catalog.commands import (
    AlterTable,
    ColumnDefinition,
    CreateDatabase,
    CreateSchema,
    CreateTable,
    CreateView,
    DropDatabase,
    DropSchema,
    DropTable,
    RenameSchema,
    RenameTable,
    TableDefinition,
    ViewDefinition,
)
from strandline.errors import DeadlineExceeded, InvalidInput, UnsupportedOperation
from strandline.metastore.session import LocalSession
from strandline.model.descriptors import TableKind
from strandline.model.types import BIGINT
from strandline.node import Node

DEFINITION = TableDefinition(name="t", columns=(ColumnDefinition("k", BIGINT),))


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with Node.open(tmp_path_factory.mktemp("store")) as opened:
        yield opened


@pytest.fixture
def session(node: Node) -> Iterator[LocalSession]:
    """A session with two empty schemas, ``s`` and ``other``."""
    opened = node.session(user="ann")
    opened.execute([CreateSchema(name="s"), CreateSchema(name="other")])
    yield opened
    opened.execute([DropSchema(name=name, cascade=True) for name in ("s", "other")])


@pytest.fixture
def warehouse(node: Node) -> str:
    return node.metastore.warehouse


def create(name: str = "t", *, schema: str = "s", location: str | None = None) -> CreateTable:
    return CreateTable(schema=schema, definition=replace(DEFINITION, name=name, location=location))


def rename(to: str, *, table: str = "t", new_schema: str | None = None) -> RenameTable:
    return RenameTable(schema="s", table=table, new_name=to, new_schema=new_schema)


def folder(session: LocalSession, name: str) -> str:
    """Return the location of the table, which must be an existing folder."""
    location = session.table(name).location
    assert Path(location.removeprefix("file://")).is_dir()
    return location


def test_a_table_is_placed_in_the_folder_of_its_schema(
    session: LocalSession, warehouse: str
) -> None:
    session.execute(create())
    assert folder(session, "s.t") == f"{warehouse}/s.db/t"


def test_tables_of_a_schema_with_a_location_elsewhere_are_placed_in_the_warehouse(
    session: LocalSession, warehouse: str, tmp_path: Path
) -> None:
    place = f"{tmp_path.as_uri()}/far"
    session.execute([CreateSchema(name="S2", location=place), create(schema="s2")])
    assert folder(session, "s2.t") == f"{warehouse}/s2.db/t"
    assert not (tmp_path / "far").exists()


def test_a_schema_may_name_a_free_schema_folder_of_the_warehouse(
    session: LocalSession, node: Node, warehouse: str
) -> None:
    session.execute(CreateSchema(name="s3", location=f"{warehouse}/free.db"))
    session.execute(create(schema="s3"))
    schema = node.catalogs.present().schema("s3")
    assert schema is not None
    assert schema.location == "free.db"  # so it moves with the store
    assert folder(session, "s3.t") == f"{warehouse}/free.db/t"
    session.execute(DropSchema(name="s3", cascade=True))


def test_tables_of_the_default_schema_are_placed_directly_in_the_warehouse(
    session: LocalSession, warehouse: str
) -> None:
    session.execute(create(schema="default"))
    assert folder(session, "t") == f"{warehouse}/t"


def test_an_external_table_does_not_look_for_the_present_unless_privileges_are_enforced(
    session: LocalSession, node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To look is to read the store."""
    monkeypatch.setattr(node.catalogs, "present", None)
    definition = replace(DEFINITION, kind=TableKind.EXTERNAL, location=tmp_path.as_uri())
    assert session.execute(CreateTable(schema="s", definition=definition)).applied == (True,)


def test_a_table_with_a_location_elsewhere_is_external(
    session: LocalSession, tmp_path: Path
) -> None:
    place = f"{tmp_path.as_uri()}/far"
    session.execute(create(location=place))
    assert session.table("s.t").location == place
    assert session.table("s.t").descriptor.kind is TableKind.EXTERNAL
    assert not (tmp_path / "far").exists()


def test_a_table_whose_given_location_is_its_default_place_is_managed(
    session: LocalSession, warehouse: str
) -> None:
    session.execute(create(location=f"{warehouse}/s.db/./t/".replace("file://", "file:")))
    assert session.table("s.t").descriptor.kind is TableKind.MANAGED
    assert folder(session, "s.t") == f"{warehouse}/s.db/t"


def test_an_external_table_keeps_its_location(session: LocalSession, node: Node) -> None:
    definition = replace(DEFINITION, kind=TableKind.EXTERNAL, location="s3://bucket/t")
    session.execute(CreateTable(schema="s", definition=definition))
    assert session.table("s.t").location == "s3://bucket/t"
    assert node.store.location(session.table("s.t").descriptor.id) is None
    session.execute(rename("u"))
    assert session.table("s.u").location == "s3://bucket/t"


def test_the_location_of_a_transactional_table_may_be_spelled_in_another_way(
    session: LocalSession, tmp_path: Path
) -> None:
    external = replace(
        DEFINITION, transactional=True, kind=TableKind.EXTERNAL, location=f"{tmp_path}/t"
    )
    session.execute(CreateTable(schema="s", definition=external))
    sent = replace(external, location=f"{tmp_path.as_uri()}/t/", comment="c")
    session.execute(AlterTable(schema="s", table="t", definition=sent))
    assert session.table("s.t").descriptor.comment == "c"
    assert session.table("s.t").location == f"{tmp_path}/t"


@pytest.mark.parametrize("location", [None, "s3://bucket/t"])
def test_a_managed_table_that_is_altered_to_an_external_one_keeps_its_place_or_gets_another(
    session: LocalSession, warehouse: str, location: str | None
) -> None:
    session.execute(create("made", schema="other"))
    kind = TableKind.EXTERNAL if location is None else TableKind.MANAGED
    definition = replace(DEFINITION, name="made", kind=kind, location=location)
    session.execute(AlterTable(schema="other", table="made", definition=definition))
    assert session.table("other.made").descriptor.kind is TableKind.EXTERNAL
    assert session.table("other.made").location == (location or f"{warehouse}/other.db/made")


@pytest.mark.parametrize("location", [None, "file:relative"])
def test_an_external_table_needs_a_location_that_is_a_path(
    session: LocalSession, location: str | None
) -> None:
    definition = replace(DEFINITION, kind=TableKind.EXTERNAL, location=location)
    with pytest.raises(InvalidInput, match=r"needs a location|not an absolute path"):
        session.execute(CreateTable(schema="s", definition=definition))


@pytest.mark.parametrize("location", [None, "s3://bucket/t"])
def test_a_session_cannot_move_a_table_away_from_its_partitions(
    session: LocalSession, location: str | None
) -> None:
    kind = TableKind.MANAGED if location is None else TableKind.EXTERNAL
    day = ColumnDefinition("day", BIGINT)
    definition = replace(DEFINITION, columns=(*DEFINITION.columns, day), partition_columns=("day",))
    definition = replace(definition, kind=kind, location=location)
    session.execute(CreateTable(schema="s", definition=definition))
    sent = replace(definition, location="s3://bucket/elsewhere")
    with pytest.raises(UnsupportedOperation, match="SET LOCATION of Spark"):
        session.execute(AlterTable(schema="s", table="t", definition=sent))
    session.execute(AlterTable(schema="s", table="t", definition=replace(definition, comment="c")))
    assert session.table("s.t").descriptor.comment == "c"


@pytest.mark.parametrize("in_one_batch", [False, True])
def test_the_folder_of_a_table_at_its_default_place_follows_its_name(
    session: LocalSession, warehouse: str, in_one_batch: bool
) -> None:
    batch: list[Command] = [create(), rename("u"), rename("V", table="u", new_schema="other")]
    for commands in [batch] if in_one_batch else [[command] for command in batch]:
        session.execute(commands)
    assert folder(session, "other.V") == f"{warehouse}/other.db/v"
    left = Path(f"{warehouse}/s.db".removeprefix("file://"))
    assert [path.name for path in left.iterdir() if not path.name.startswith(".")] == []


def test_a_table_with_a_location_elsewhere_stays_there_when_it_is_renamed(
    session: LocalSession, tmp_path: Path
) -> None:
    place = f"{tmp_path.as_uri()}/far"
    session.execute([create(location=place), rename("u")])
    session.execute(rename("v", table="u"))
    assert session.table("s.v").location == place


def test_a_rename_that_changes_only_the_case_moves_nothing(
    session: LocalSession, warehouse: str
) -> None:
    session.execute(create())
    session.execute(rename("T"))
    assert folder(session, "s.T") == f"{warehouse}/s.db/t"


@pytest.mark.parametrize("in_one_batch", [False, True])
def test_a_table_with_a_reused_name_gets_its_own_folder(
    session: LocalSession, warehouse: str, in_one_batch: bool
) -> None:
    batch: list[Command] = [
        create(),
        rename("old"),
        create(),
        DropTable(schema="s", table="t"),
        create(),
        rename("last"),
        create(),
    ]
    for commands in [batch] if in_one_batch else [[command] for command in batch]:
        session.execute(commands)
    for name in ("old", "last", "t"):
        assert folder(session, f"s.{name}") == f"{warehouse}/s.db/{name}"


def test_create_if_not_exists_keeps_the_place_of_an_existing_table(
    session: LocalSession, tmp_path: Path
) -> None:
    place = f"{tmp_path.as_uri()}/far"
    session.execute(create(location=place))
    session.execute([replace(create(), if_not_exists=True), rename("u")])
    assert session.table("s.u").location == place


def test_objects_created_without_an_owner_belong_to_the_user(
    node: Node, session: LocalSession
) -> None:
    view = ViewDefinition(name="v", columns=(), original_text="SELECT 1", expanded_text="SELECT 1")
    session.execute([CreateSchema(name="mine"), create(), CreateView(schema="s", definition=view)])
    catalog = node.catalogs.present()
    schema, made = catalog.schema("mine"), catalog.view("s", "v")
    assert schema is not None
    assert made is not None
    owners = [schema.owner, session.table("s.t").descriptor.owner, made.owner]
    assert owners == ["ann", "ann", "ann"]


def test_an_explicit_owner_is_kept(node: Node, session: LocalSession) -> None:
    session.execute(CreateSchema(name="bobs", owner="bob"))
    schema = node.catalogs.present().schema("bobs")
    assert schema is not None
    assert schema.owner == "bob"


def test_a_schema_with_the_old_name_of_a_renamed_schema_gets_its_own_folder(
    session: LocalSession, warehouse: str
) -> None:
    session.execute(create())
    session.execute([RenameSchema(name="s", new_name="was_s"), CreateSchema(name="s"), create()])
    try:
        assert folder(session, "was_s.t") == f"{warehouse}/s.db/t"
        assert folder(session, "s.t") == f"{warehouse}/s~2.db/t"
        session.execute(create("u", schema="was_s"))
        assert folder(session, "was_s.u") == f"{warehouse}/s.db/u"
        session.execute([DropSchema(name="s", cascade=True), CreateSchema(name="s"), create("u")])
        assert folder(session, "s.u") != folder(session, "was_s.u")
    finally:
        session.execute(DropSchema(name="was_s", cascade=True))


def test_schemas_with_the_same_name_in_two_databases_have_different_folders(
    node: Node, session: LocalSession, warehouse: str
) -> None:
    session.execute([CreateDatabase(name="lake"), CreateSchema(name="s", database="lake")])
    other = node.catalogs.present().schema("s", database="lake")
    assert other is not None
    assert node.metastore.location_of_schema(other) == f"{warehouse}/s~2.db"
    session.execute([DropSchema(name="s", database="lake"), DropDatabase(name="lake")])


@pytest.mark.parametrize("name", ["s" * 255, "é" * 200, "/" * 100, "日" * 255])
def test_every_allowed_name_has_a_folder(tmp_path: Path, name: str) -> None:
    """Names that a file system would refuse are escaped or truncated, so each gets a folder."""
    with Node.open(tmp_path) as node:
        session = node.session(user="ann")
        session.execute(CreateSchema(name=name))
        session.execute([create(name, schema=name), create(name[:-1] + "x", schema=name)])
        session.execute(RenameTable(schema=name, table=name, new_name=name[:-1] + "y"))
        places = {folder(session, f"`{name}`.`{name[:-1]}{end}`") for end in "xy"}
    assert len(places) == 2
    assert all(Path(place.removeprefix("file://")).is_dir() for place in places)
    with Node.open(tmp_path) as node:
        node.session(user="ann").execute(CreateSchema(name="after"))


@pytest.mark.parametrize("where", ["a file", "too long"])
def test_a_location_where_no_folder_can_be_created_is_refused_and_stops_no_later_ddl(
    session: LocalSession, node: Node, warehouse: str, where: str
) -> None:
    path = Path(warehouse.removeprefix("file://"))
    place = f"file:{path}/bad.db" if where == "a file" else f"file:{path}/{'a' * 256}.db"
    (path / "bad.db").touch()
    (path / "s.db" / "bad").touch()
    before = node.catalogs.latest_catalog().version
    bad = create("bad") if where == "a file" else create("bad", location=place)
    for command in (CreateSchema(name="bad", location=place), bad):
        with pytest.raises(InvalidInput, match=r"is not a folder|too long"):
            session.execute(command)
    assert node.catalogs.latest_catalog().version == before
    session.execute(CreateSchema(name="s", location=place, if_not_exists=True))
    session.execute(create("after"))


@pytest.mark.parametrize("in_one_batch", [False, True])
@pytest.mark.parametrize("transactional", [False, True])
def test_a_new_table_never_shows_the_files_of_a_table_whose_folder_stayed(
    tmp_path: Path, in_one_batch: bool, transactional: bool
) -> None:
    definition = replace(DEFINITION, transactional=transactional)
    new = CreateTable(schema="default", definition=definition)
    with Node.open(tmp_path) as node:
        session = node.session(user="ann")
        session.execute(new)
        old = Path(folder(session, "t").removeprefix("file://"))
        (old / "part-0.parquet").touch()
        (old.parent / ".dropped").write_text("a file where dropped tables belong")
        batch: list[Command] = [DropTable(schema="default", table="t"), new]
        for commands in [batch] if in_one_batch else [[command] for command in batch]:
            session.execute(commands)
        made = session.table("t")
        assert folder(session, "t") == f"file://{old}~{made.descriptor.id}"
        assert list(Path(made.location.removeprefix("file://")).iterdir()) == []
        assert (old / "part-0.parquet").exists()
        # The table has an alternative place, and stays there when it is renamed.
        session.execute(RenameTable(schema="default", table="t", new_name="u"))
        assert folder(session, "u") == made.location
        assert node.projector.statistics().stayed == 1


def test_a_change_waits_for_the_folders_of_others_no_longer_than_its_timeout(
    session: LocalSession, node: Node
) -> None:
    session.execute(create())
    node.projector.set_back()  # as if no folder had been made yet
    alter = AlterTable(schema="s", table="t", definition=DEFINITION)
    with ThreadPoolExecutor(1) as threads, node.database.write():
        call = threads.submit(session.execute, alter, timeout=0.05)
        with pytest.raises(DeadlineExceeded, match="nothing was changed by this one, try again"):
            call.result(20)


def test_a_name_with_a_lone_surrogate_is_refused(session: LocalSession) -> None:
    for command in (CreateSchema(name="\ud800"), create("\ud800")):
        with pytest.raises(InvalidInput, match="a text of whole characters"):
            session.execute(command)
