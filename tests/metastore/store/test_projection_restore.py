"""The projection of restored tables: folders are moved back once, despite any power cut."""

from __future__ import annotations

from strandline.catalog.commands import CreateSchema, DropSchema, DropTable
from strandline.catalog.undo.command import Undo
from strandline.catalog.undo.reading import read_undo
from tests.metastore.store.test_projection import Node, create, node, rename

__all__ = ["node"]


def undo_of(node: Node, version: int) -> Undo:
    """Return the command that undoes ``version``."""
    return read_undo(node.catalogs, version)


def test_the_folder_of_a_restored_table_is_moved_back(node: Node) -> None:
    node.ddl(create(node, "a"))
    table = node.table("a")
    (node.folder("a") / "f").write_text("x")
    version = node.ddl(DropTable(schema="nyc", table="a"))
    node.ddl(undo_of(node, version))
    assert node.store.location(table.id) == node.place("a")
    assert (node.folder("a") / "f").read_text() == "x"
    assert node.verbs()[-2:] == ["drop_table", "restore_table"]


def test_restoring_an_external_table_moves_no_folder(node: Node) -> None:
    node.ddl(create(node, "x", external=True))
    version = node.ddl(DropTable(schema="nyc", table="x"))
    node.ddl(undo_of(node, version))
    assert node.store.location(node.table("x").id) is None


def test_a_restored_schema_gets_its_folder_again(node: Node) -> None:
    node.ddl(CreateSchema(name="other"))
    version = node.ddl(DropSchema(name="other"))
    assert not (node.warehouse / "other.db").exists()
    node.ddl(undo_of(node, version))
    assert (node.warehouse / "other.db").is_dir()


def test_a_move_back_that_was_done_but_not_recorded_is_recognized(node: Node) -> None:
    """The SQL transaction is lost after each move in turn, as in a crash, and repeated."""
    node.ddl(create(node, "a"), create(node, "b"))
    tables = {name: node.table(name) for name in "ab"}
    for name in "ab":
        (node.folder(name) / name).touch()
    dropped = node.ddl(DropTable(schema="nyc", table="a"), DropTable(schema="nyc", table="b"))
    undone = node.ddl(undo_of(node, dropped), project=False)
    renamed = node.ddl(rename("a", "c"), project=False)
    last = node.ddl(undo_of(node, renamed), project=False)
    survived: list[int] = []
    while node.projector.projected_version() < last:
        node.lose_power(last)
        node.project_a_step(last)
        survived.append(node.projector.projected_version())
    assert survived == [undone, renamed, last]
    for name, table in tables.items():
        assert node.store.location(table.id) == node.place(name)
        assert [f.name for f in node.folder(name).iterdir()] == [name]
    assert node.verbs()[-4:] == ["restore_table", "restore_table", "rename_table", "rename_table"]
