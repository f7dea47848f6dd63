"""A version is undone by its net effect, whatever happened within it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from strandline.catalog import Catalog, CatalogManager, Command
from strandline.catalog.commands import (
    AlterCluster,
    AlterClusterReplica,
    AlterTable,
    CommentOn,
    CreateCluster,
    CreateIndex,
    CreateRole,
    CreateSchema,
    CreateTable,
    CreateZone,
    DropColumns,
    DropIndex,
    DropRole,
    DropSchema,
    DropTable,
    DropZone,
    MakeIndexAvailable,
    RemoveIndex,
    RenameIndex,
    RenameRole,
    RenameSchema,
    RenameTable,
    RenameZone,
    SetConfiguration,
    SetOwner,
    SetTableProperties,
    StartBuildingIndex,
)
from strandline.catalog.undo.reading import read_undrop
from strandline.errors import AlreadyExists, IllegalChange, ObjectNotFound
from strandline.model.privileges import ObjectKind
from tests.catalog.scenario import SCHEMA, create_table, create_view, index_id, table_of
from tests.catalog.taking_back import run, undo, undrop, visible


def prepared(manager: CatalogManager) -> CatalogManager:
    """``manager`` with the schemas ``s`` and ``r``, the starting point of every test."""
    run(manager, SCHEMA, CreateSchema(name="r"))
    return manager


@pytest.fixture
def manager(manager: CatalogManager) -> CatalogManager:
    return prepared(manager)


def rename(old: str, new: str) -> RenameTable:
    """Rename a table, for example ``s.a`` to ``r.b``."""
    (schema, table), (new_schema, new_name) = old.split("."), new.split(".")
    return RenameTable(schema=schema, table=table, new_name=new_name, new_schema=new_schema)


def verbs(manager: CatalogManager, version: int) -> list[str]:
    return [verb for verb, _ in manager.history(version)[0].actions]


# -- indexes ---------------------------------------------------------------------------------------

CREATE = CreateIndex(schema="s", index="i", table="t", columns=("b",))
DROP_TABLE = DropTable(schema="s", table="t")
STEPS: dict[str, Callable[[int], Command]] = {
    "start": lambda index: StartBuildingIndex(index_id=index),
    "available": lambda index: MakeIndexAvailable(index_id=index),
    "rename": lambda _: RenameIndex(schema="s", index="i", new_name="j"),
    "drop": lambda _: DropIndex(schema="s", index="i"),
    "drop j": lambda _: DropIndex(schema="s", index="j"),
    "remove": lambda index: RemoveIndex(index_id=index),
    "move": lambda _: rename("s.t", "r.t"),
    "drop table": lambda _: DROP_TABLE,
}
TO = {
    "REGISTERED": [],
    "BUILDING": ["start"],
    "AVAILABLE": ["start", "available"],
    "STOPPING": ["start", "available", "drop"],
}
"""The steps that bring a new index to a status."""

LIVES = [
    ("REGISTERED", ["start", "drop"], "REGISTERED"),
    ("REGISTERED", ["start", "available", "drop"], "REGISTERED"),
    ("REGISTERED", ["start", "available", "drop", "remove"], "REGISTERED"),
    ("REGISTERED", ["start", "available", "drop table"], "REGISTERED"),
    ("BUILDING", ["available", "drop"], "REGISTERED"),
    ("BUILDING", ["available", "rename", "drop j"], "REGISTERED"),
    ("BUILDING", ["drop", "drop table"], "REGISTERED"),
    ("AVAILABLE", ["drop", "remove"], "REGISTERED"),
    ("AVAILABLE", ["rename", "drop j", "move"], "REGISTERED"),
    ("AVAILABLE", ["rename", "move"], "AVAILABLE"),
    ("AVAILABLE", ["drop", "drop table"], "AVAILABLE"),
    ("AVAILABLE", ["drop", "remove", "drop table"], "AVAILABLE"),
    ("STOPPING", ["remove", "drop table"], "STOPPING"),
]
"""The status of an index, the steps of one version, and the status after the undo."""


def with_index(manager: CatalogManager, status: str) -> int:
    """Create a table with an index ``s.i`` in that status; returns the index's id."""
    run(manager, create_table("s.t"))
    run(manager, CREATE)
    index = index_id(manager.present(), "s.i")
    for step in TO[status]:
        run(manager, STEPS[step](index))
    return index


def without_status(catalog: Catalog) -> object:
    """The objects that users see; of an index only its name, its schema and whether it is alive."""
    present = visible(catalog)
    return {
        key: (item.name, item.schema_id, item.alive) if key[0] == "index" else item
        for key, item in present.items()
    }


@pytest.mark.parametrize(("status", "steps", "back"), LIVES)
def test_an_index_is_restored_according_to_its_status_before_and_now(
    manager: CatalogManager, status: str, steps: list[str], back: str
) -> None:
    index = with_index(manager, status)
    before = manager.present()
    version = run(manager, *(STEPS[step](index) for step in steps))
    undone = undo(manager, version).catalog
    assert undone.get("index", index).status.name == back
    assert without_status(undone) == without_status(before)


@pytest.mark.parametrize(
    ("status", "steps", "says"),
    [
        ("REGISTERED", ["start", "available"], "from REGISTERED to AVAILABLE"),
        ("REGISTERED", ["start", "rename"], "from REGISTERED to BUILDING"),
        ("STOPPING", ["remove"], "was dropped and then removed"),
    ],
)
def test_forward_steps_of_an_index_cannot_be_undone(
    manager: CatalogManager, status: str, steps: list[str], says: str
) -> None:
    index = with_index(manager, status)
    version = run(manager, *(STEPS[step](index) for step in steps))
    with pytest.raises(IllegalChange, match=says):
        undo(manager, version)


def made_in_one_version(manager: CatalogManager, *steps: str) -> int:
    """A version that creates the index ``s.i`` of an existing table, and takes steps with it."""
    run(manager, create_table("s.t"))
    index = table_of(manager.present(), "s.t").id + 1
    return run(manager, CREATE, *(STEPS[step](index) for step in steps))


def test_undo_removes_an_index_that_was_created_and_stopped_in_one_version(
    manager: CatalogManager,
) -> None:
    version = made_in_one_version(manager, "start", "available", "drop")
    assert visible(undo(manager, version).catalog) == visible(manager.catalog(version - 1))


def test_undo_stops_a_new_available_index_in_the_schema_of_its_table(
    manager: CatalogManager,
) -> None:
    version = made_in_one_version(manager, "start", "available", "move")
    undone = undo(manager, version).catalog
    table = table_of(undone, "s.t")
    (index,) = undone.indexes(table.id)
    assert (index.schema_id, index.status.name) == (table.schema_id, "STOPPING")


def test_undo_returns_a_name_that_moved_from_one_index_to_another(manager: CatalogManager) -> None:
    with_index(manager, "AVAILABLE")
    run(manager, CreateIndex(schema="s", index="j", table="t", columns=("a",)))
    before = manager.present()
    version = run(
        manager,
        DropIndex(schema="s", index="i"),
        RenameIndex(schema="s", index="j", new_name="i"),
        rename("s.t", "r.t"),
    )
    assert without_status(undo(manager, version).catalog) == without_status(before)


def test_an_index_moves_back_with_its_table(manager: CatalogManager) -> None:
    run(manager, create_table("s.t"))
    version = run(manager, rename("s.t", "r.t"))
    run(manager, CreateIndex(schema="r", index="i", table="t", columns=("b",)))
    undone = undo(manager, version).catalog
    index = undone.alive_index("s", "i")
    assert index is not None
    assert index.table_id == table_of(undone, "s.t").id


def test_an_index_whose_name_is_taken_in_the_old_schema_is_named_in_the_refusal(
    manager: CatalogManager,
) -> None:
    run(manager, create_table("s.t"))
    version = run(manager, rename("s.t", "r.t"))
    run(manager, CreateIndex(schema="r", index="i", table="t", columns=("b",)))
    run(manager, create_view("s.i"))
    says = r"index s\.i is restored with its table, but its name is used by view i"
    with pytest.raises(AlreadyExists, match=says):
        undo(manager, version)


# -- names -----------------------------------------------------------------------------------------


def test_an_intermediate_name_may_be_taken_meanwhile(manager: CatalogManager) -> None:
    run(manager, create_table("s.t", "k int not null", primary_key=("k",)))
    before = manager.present()
    dropped = run(manager, rename("s.t", "s.old"), DropTable(schema="s", table="old"))
    run(manager, create_table("s.old", "k int not null", primary_key=("k",)))
    undone = undo(manager, dropped).catalog
    assert table_of(undone, "s.t") == table_of(before, "s.t")
    assert undone.alive_index("s", "t_pk") == before.alive_index("s", "t_pk")
    assert verbs(manager, undone.version) == ["restore_table", "restore_index"]


def test_a_dropped_table_whose_old_name_is_exchanged_comes_back_by_the_undo_of_its_drop(
    manager: CatalogManager,
) -> None:
    run(manager, create_table("s.t"), create_table("s.u"))
    exchange = rename("s.t", "s.x"), rename("s.u", "s.t"), DropTable(schema="s", table="x")
    version = run(manager, *exchange)
    run(manager, create_table("s.x"))
    with pytest.raises(AlreadyExists, match=r"table s\.x is now used by table x"):
        undo(manager, version)
    run(manager, DropTable(schema="s", table="x"))
    undone = undo(manager, version).catalog
    assert verbs(manager, undone.version) == ["restore_table", "rename_table", "rename_table"]


def test_a_chain_of_renames_is_undone_in_one_step(manager: CatalogManager) -> None:
    run(manager, create_table("s.t"))
    run(manager, CreateZone(name="a"))
    version = run(
        manager,
        rename("s.t", "s.u"),
        SetTableProperties(schema="s", table="u", set=(("p", "1"),)),
        rename("s.u", "r.v"),
        RenameZone(name="a", new_name="b"),
        RenameZone(name="b", new_name="c"),
        RenameSchema(name="r", new_name="q"),
        RenameSchema(name="q", new_name="p"),
    )
    run(manager, create_view("s.u"), CreateZone(name="b"), CreateSchema(name="q"))
    undone = undo(manager, version).catalog
    assert table_of(undone, "s.t").properties == ()
    assert undone.zone_named("a") is not None
    assert undone.schema("r") is not None
    assert verbs(manager, undone.version) == [
        "rename_schema",
        "rename_zone",
        "rename_table",
        "undo_set_table_properties",
    ]


def test_exchanged_names_are_undone_through_the_temporary_name(manager: CatalogManager) -> None:
    run(manager, create_table("s.a"), create_table("s.b"))
    before = manager.present()
    steps = [("s.a", "s.tmp"), ("s.b", "s.a"), ("s.tmp", "s.b")]
    version = run(manager, *(rename(old, new) for old, new in steps))
    in_the_way = run(manager, create_view("s.tmp"))
    with pytest.raises(AlreadyExists, match=r"name of table s\.tmp is now used by view tmp"):
        undo(manager, version)
    undo(manager, in_the_way)
    assert visible(undo(manager, version).catalog) == visible(before)


def test_a_replaced_table_is_restored_even_if_its_intermediate_names_are_taken(
    manager: CatalogManager,
) -> None:
    run(manager, create_table("s.t"))
    before = manager.present()
    version = run(
        manager,
        create_table("s.new"),
        rename("s.t", "s.old"),
        rename("s.new", "s.t"),
        DropTable(schema="s", table="old"),
    )
    run(manager, create_table("s.new"), create_table("s.old"))
    undone = undo(manager, version).catalog
    assert table_of(undone, "s.t") == table_of(before, "s.t")
    assert verbs(manager, undone.version) == ["drop_table", "restore_table"]


def test_a_table_renamed_there_and_back_is_not_renamed_by_the_undo(manager: CatalogManager) -> None:
    with_index(manager, "AVAILABLE")
    before = manager.present()
    version = run(
        manager,
        rename("s.t", "r.t"),
        RenameIndex(schema="r", index="i", new_name="j"),
        rename("r.t", "s.t"),
    )
    undone = undo(manager, version).catalog
    assert visible(undone) == visible(before)
    ((verb, arguments),) = manager.history(undone.version)[0].actions
    assert (verb, arguments["index"], arguments["to"]) == ("rename_index", "s.j", "s.i")


# -- other kinds -----------------------------------------------------------------------------------


def sizes(memory: str, *names: str) -> SetConfiguration:
    listed = ", ".join(f'"{name}": {{"cores": 2, "memory": "{memory}"}}' for name in names)
    return SetConfiguration(name="cluster_sizes", value=f"{{{listed}}}")


def test_a_parameter_is_restored_directly_without_its_intermediate_value(
    manager: CatalogManager,
) -> None:
    run(manager, sizes("4g", "small", "large"))
    before = manager.present().configuration("cluster_sizes")
    version = run(manager, sizes("4g", "large"), sizes("5g", "small", "large"))
    run(manager, CreateCluster(name="c", size="small"))
    assert undo(manager, version).catalog.configuration("cluster_sizes") == before


def test_a_column_dropped_in_the_same_version_as_its_table_is_restored_unchanged(
    manager: CatalogManager,
) -> None:
    run(manager, create_table("s.t", "a int not null", "b int"))
    before = manager.present()
    version = run(manager, DropColumns(schema="s", table="t", names=("a",)), DROP_TABLE)
    assert visible(undo(manager, version).catalog) == visible(before)


def test_objects_given_to_a_new_role_are_taken_back_before_the_role_is_dropped(
    manager: CatalogManager,
) -> None:
    before = manager.present()
    batch: list[Command] = [CreateSchema(name="n"), CreateCluster(name="c"), create_table("s.t")]
    given: list[Command] = [
        SetOwner(kind=ObjectKind.SCHEMA, name="n", owner="bob"),
        SetOwner(kind=ObjectKind.CLUSTER, name="c", owner="bob"),
        SetOwner(kind=ObjectKind.TABLE, schema="s", name="t", owner="bob"),
    ]
    version = run(manager, *batch, CreateRole(name="bob"), *given)
    assert visible(undo(manager, version).catalog) == visible(before)


def test_a_new_renamed_schema_is_dropped_although_its_first_name_is_taken(
    manager: CatalogManager,
) -> None:
    before = visible(manager.present())
    version = run(manager, CreateSchema(name="n"), RenameSchema(name="n", new_name="m"))
    taken = run(manager, CreateSchema(name="n"))
    undo(manager, version)
    assert visible(undo(manager, taken).catalog) == before


def test_introspection_indexes_get_the_owner_of_their_replica(manager: CatalogManager) -> None:
    run(manager, CreateCluster(name="c", size="small", owner="ann"))
    version = run(manager, AlterCluster(name="c", owner="bob"))
    run(manager, AlterClusterReplica(cluster="c", replica="r1", spark_ui="http://h:4040"))
    undone = undo(manager, version).catalog
    cluster = undone.cluster("c")
    assert cluster is not None
    (replica,) = undone.replicas(cluster.id)
    assert {index.owner for index in undone.introspection_indexes(replica.id)} == {"ann"}


def owner_of(catalog: Catalog, name: str) -> str:
    table = catalog.table("s", name)
    assert table is not None
    (index,) = catalog.indexes(table.id)
    assert index.owner == table.owner
    return table.owner


def keyed(name: str, owner: str) -> CreateTable:
    return create_table(f"s.{name}", "k int not null", primary_key=("k",), owner=owner)


def test_a_role_keeps_what_it_got_since_when_its_rename_is_undone(manager: CatalogManager) -> None:
    run(manager, CreateRole(name="bob"), keyed("t", "bob"))
    version = run(manager, RenameRole(name="bob", new_name="rob"))
    run(manager, keyed("later", "rob"))
    before = visible(manager.present())
    undone = undo(manager, version)
    assert owner_of(undone.catalog, "t") == owner_of(undone.catalog, "later") == "bob"
    assert visible(undo(manager, undone.version).catalog) == before


def test_roles_that_exchanged_their_names_keep_what_each_got_since(manager: CatalogManager) -> None:
    run(manager, CreateRole(name="a"), CreateRole(name="b"))
    names = (("a", "c"), ("b", "a"), ("c", "b"))
    version = run(manager, *(RenameRole(name=old, new_name=new) for old, new in names))
    run(manager, keyed("of_a", "b"), keyed("of_b", "a"))
    undone = undo(manager, version).catalog
    assert (owner_of(undone, "of_a"), owner_of(undone, "of_b")) == ("a", "b")


def test_a_role_that_owns_itself_gets_its_name_back_each_time(manager: CatalogManager) -> None:
    run(manager, CreateRole(name="bob", owner="bob"), CreateSchema(name="n", owner="bob"))
    version, before = manager.present().version, visible(manager.present())
    version = run(manager, RenameRole(name="bob", new_name="rob"))
    after = visible(manager.present())
    for old, new, expected in (("rob", "bob", before), ("bob", "rob", after)):
        undone = undo(manager, version)
        assert visible(undone.catalog) == expected
        version = undone.version
        (action,) = manager.history(version)[0].actions
        assert action == ("rename_role", {"role": old, "to": new, "undoes": version - 1})


def test_an_object_that_replaced_another_of_its_name_is_taken_back(
    manager: CatalogManager,
) -> None:
    for kind, drop, renamed in (
        (CreateSchema, DropSchema, RenameSchema),
        (CreateZone, DropZone, RenameZone),
        (CreateRole, DropRole, RenameRole),
    ):
        run(manager, kind(name="n"))
        before = manager.present()
        version = run(manager, kind(name="new"), drop(name="n"), renamed(name="new", new_name="n"))
        after = visible(manager.present())
        undone = undo(manager, version)
        assert visible(undone.catalog) == visible(before)
        assert visible(undo(manager, undone.version).catalog) == after


@pytest.mark.parametrize("is_name_reused", [False, True])
def test_an_object_comes_back_to_the_role_that_owned_it_whatever_its_name_is(
    manager: CatalogManager, is_name_reused: bool
) -> None:
    run(manager, CreateRole(name="bob"), keyed("t", "Bob"), keyed("given", "bob"))
    given = run(manager, SetOwner(kind=ObjectKind.TABLE, schema="s", name="given", owner="ann"))
    run(manager, DROP_TABLE)
    run(manager, RenameRole(name="bob", new_name="rob"))
    if is_name_reused:
        run(manager, CreateRole(name="bob"))
    undrop(manager, "s.t")
    restored = undo(manager, given).catalog
    assert owner_of(restored, "t") == owner_of(restored, "given") == "rob"


def test_the_owner_is_renamed_between_the_reading_of_an_undo_and_its_execution(
    manager: CatalogManager,
) -> None:
    run(manager, CreateRole(name="bob"), keyed("t", "bob"))
    run(manager, DROP_TABLE)
    read = read_undrop(manager, "table", "s.t")
    run(manager, RenameRole(name="bob", new_name="rob"))
    run(manager, read)
    assert owner_of(manager.present(), "t") == "rob"


@pytest.mark.parametrize(("is_name_reused", "owner"), [(False, "bob"), (True, "")])
def test_an_object_of_a_dropped_role_does_not_come_back_to_another_of_its_name(
    manager: CatalogManager, is_name_reused: bool, owner: str
) -> None:
    run(manager, CreateRole(name="bob"), keyed("t", "bob"))
    run(manager, DROP_TABLE)
    run(manager, DropRole(name="bob"))
    if is_name_reused:
        run(manager, CreateRole(name="bob"))
    assert owner_of(undrop(manager, "s.t").catalog, "t") == owner


def test_a_new_role_is_dropped_after_what_it_owned_by_its_name_is_taken_back(
    manager: CatalogManager,
) -> None:
    run(manager, keyed("t", "ann"))
    before = manager.present()
    give = SetOwner(kind=ObjectKind.TABLE, schema="s", name="t", owner="bob")
    version = run(manager, give, CreateRole(name="bob"))
    after = visible(manager.present())
    undone = undo(manager, version)
    assert visible(undone.catalog) == visible(before)
    assert visible(undo(manager, undone.version).catalog) == after


def test_what_a_user_owned_before_a_role_took_its_name_stays_when_the_role_gets_its_own_back(
    manager: CatalogManager,
) -> None:
    run(manager, CreateRole(name="staff"), keyed("t", "staff"), keyed("of_ann", "ann"))
    before = manager.present()
    version = run(manager, RenameRole(name="staff", new_name="ann"))
    run(manager, keyed("later", "ann"))
    undone = undo(manager, version).catalog
    owners = {name: owner_of(undone, name) for name in ("t", "of_ann", "later")}
    assert owners == {"t": "staff", "of_ann": "ann", "later": "staff"}
    run(manager, DropTable(schema="s", table="later"))
    assert visible(manager.present()) == visible(before)


def test_what_a_role_got_from_one_whose_name_it_took_goes_back(manager: CatalogManager) -> None:
    run(manager, CreateRole(name="a"), CreateRole(name="b"), CreateSchema(name="n", owner="a"))
    before = manager.present()
    version = run(manager, DropRole(name="a", reassign_to="b"), RenameRole(name="b", new_name="a"))
    assert visible(undo(manager, version).catalog) == visible(before)


def test_a_dropped_role_that_owned_itself_owns_itself_again(manager: CatalogManager) -> None:
    run(manager, CreateRole(name="a", owner="a"), CreateCluster(name="c", owner="a"))
    before = manager.present()
    version = run(manager, DropRole(name="a", reassign_to="ann"))
    assert visible(undo(manager, version).catalog) == visible(before)


@pytest.mark.parametrize(
    "give",
    [
        SetOwner(kind=ObjectKind.TABLE, schema="s", name="t", owner="ann"),
        AlterTable(schema="s", table="t", definition=keyed("t", "ann").definition),
    ],
    ids=["set the owner", "alter"],
)
def test_the_indexes_of_a_table_are_given_away_and_come_back_with_it(
    manager: CatalogManager, give: Command
) -> None:
    run(manager, CreateRole(name="bob"), keyed("t", "bob"))
    version = run(manager, give)
    assert owner_of(manager.present(), "t") == "ann"
    run(manager, DropRole(name="bob"))
    run(manager, CreateIndex(schema="s", index="i", table="t", columns=("k",)))
    undone = undo(manager, version).catalog
    table = undone.table("s", "t")
    assert table is not None
    assert [table.owner, *(index.owner for index in undone.indexes(table.id))] == ["bob"] * 3


def test_an_index_of_another_owner_is_not_given_away_with_its_table(
    manager: CatalogManager,
) -> None:
    run(manager, create_table("s.t", owner="bob"))
    run(manager, CreateIndex(schema="s", index="i", table="t", columns=("a",), owner="cleo"))
    version = run(manager, SetOwner(kind=ObjectKind.TABLE, schema="s", name="t", owner="ann"))
    for catalog in (manager.present(), undo(manager, version).catalog):
        table = catalog.table("s", "t")
        assert table is not None
        (index,) = catalog.indexes(table.id)
        assert index.owner == "cleo"


def test_a_comment_set_twice_in_a_version_is_removed_in_one_step(manager: CatalogManager) -> None:
    run(manager, CreateZone(name="a"))
    comment = [CommentOn(kind=ObjectKind.ZONE, name="a", text=text) for text in ("one", "two")]
    undone = undo(manager, run(manager, *comment)).catalog
    assert verbs(manager, undone.version) == ["undo_comment_on"]


# -- undrop ----------------------------------------------------------------------------------------


def test_undrop_skips_a_table_that_was_created_and_dropped_in_one_version(
    manager: CatalogManager,
) -> None:
    run(manager, create_table("s.t"))
    table = table_of(manager.present(), "s.t")
    run(manager, DROP_TABLE)
    run(manager, create_table("s.t"), DROP_TABLE)
    assert table_of(undrop(manager, "s.t").catalog, "s.t") == table


@pytest.mark.parametrize("name", ["s.t", "s.old"])
def test_undrop_accepts_the_name_before_the_version_and_the_name_within_it(
    manager: CatalogManager, name: str
) -> None:
    run(manager, create_table("s.t"))
    table = table_of(manager.present(), "s.t")
    run(manager, rename("s.t", "s.old"), DropTable(schema="s", table="old"))
    assert table_of(undrop(manager, name).catalog, "s.t") == table


def test_undrop_prefers_the_table_that_had_the_name_before_the_version(
    manager: CatalogManager,
) -> None:
    run(manager, create_table("s.t"), create_table("s.u"))
    table = table_of(manager.present(), "s.t")
    run(manager, DROP_TABLE, rename("s.u", "s.t"), DROP_TABLE)
    assert table_of(undrop(manager, "s.t").catalog, "s.t") == table
    assert table_of(undrop(manager, "s.u").catalog, "s.u") is not None
    with pytest.raises(ObjectNotFound):
        undrop(manager, "s.v")
