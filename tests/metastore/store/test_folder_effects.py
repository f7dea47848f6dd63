"""Refused effects on folders do not stop DDL, and no two tables ever share a place."""

from __future__ import annotations

import errno
import logging
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from strandline.catalog import Command
from strandline.catalog.commands import CreateSchema, DropSchema, DropTable
from strandline.errors import Unavailable
from strandline.files import sync_folder
from strandline.metastore.store import warehouse
from strandline.metastore.store.effect_batch import MAX_EFFECTS, EffectBatch
from strandline.metastore.store.table_places import TablePlaces, put_places
from strandline.model.places import Place
from strandline.sql import run_all
from tests.metastore.store.test_projection import Node, create, failing, node, rename
from tests.metastore.store.test_projection_restore import undo_of

__all__ = ["node"]


def drop(name: str, *, keep_data: bool = False) -> DropTable:
    return DropTable(schema="nyc", table=name, keep_data=keep_data)


def refused(node: Node) -> tuple[int, int, int]:
    """Return how many folders are unmade, stayed and unremoved; no effect was tried again."""
    counts = node.projector.statistics()
    assert counts.failures == 0
    return counts.unmade, counts.stayed, counts.unremoved


def with_file(node: Node, name: str) -> int:
    """Create a table with a file in it; return its id."""
    node.ddl(create(node, name))
    (node.folder(name) / f"of {name}").touch()
    return node.table(name).id


def files(node: Node, table_id: int) -> list[str]:
    place = node.store.location(table_id)
    assert place is not None
    return sorted(os.listdir(place.removeprefix("file://")))


# -- refused effects


def test_a_folder_that_cannot_be_created_is_skipped_and_does_not_stop_ddl(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    node.folder("a").write_text("a file where the folder belongs")
    with caplog.at_level(logging.WARNING):
        version = node.ddl(create(node, "a"))
    assert node.projector.projected_version() == version
    assert f"version {version} is carried out without the folder {node.place('a')}" in caplog.text
    assert "Create it" in caplog.text
    assert refused(node) == (1, 0, 0)
    node.ddl(create(node, "b"))
    assert node.folder("b").is_dir()
    assert node.verbs().count("create_table") == 2
    # The folder is used once a user has made it.
    assert node.store.location(node.table("a").id) == node.place("a")
    node.folder("a").unlink()
    node.folder("a").mkdir()
    node.ddl(rename("a", "c"))
    assert node.folder("c").is_dir()


@pytest.mark.parametrize("location", ["{}/named/s.db", "s3://bucket/s.db"])
def test_a_schema_at_a_location_that_a_user_named_gets_no_folder(
    node: Node, tmp_path: Path, location: str
) -> None:
    """Its tables are placed as if Strandline had chosen the place of the schema."""
    node.ddl(CreateSchema(name="odd", location=location.format(tmp_path)))
    node.ddl(replace(create(node, "t"), schema="odd"))
    table = node.table("t", "odd")
    assert node.store.location(table.id) == f"file://{node.warehouse}/odd.db/t"
    node.ddl(DropSchema(name="odd", cascade=True))
    assert refused(node) == (0, 0, 0)
    assert not (tmp_path / "named").exists()
    assert node.projector.projected_version() == node.catalogs.latest_catalog().version


@pytest.mark.parametrize("verb", ["drop", "rename", "restore"])
def test_a_folder_that_cannot_be_moved_stays_and_its_table_keeps_it(
    node: Node, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, verb: str
) -> None:
    table_id = with_file(node, "a")
    dropped = node.ddl(drop("a")) if verb == "restore" else 0
    before = node.store.location(table_id)
    commands: dict[str, Command] = {"drop": drop("a"), "rename": rename("a", "b")}

    def refuse(*_: object) -> None:
        raise OSError(errno.EACCES, "Permission denied")

    with caplog.at_level(logging.WARNING), monkeypatch.context() as patch:
        patch.setattr(os, "rename", refuse)
        command = commands.get(verb) or undo_of(node, dropped)
        version = node.ddl(command)
    assert node.projector.projected_version() == version
    assert node.store.location(table_id) == before
    assert files(node, table_id) == ["of a"]
    assert refused(node) == (0, 1, 0)
    assert f"the folder of table {table_id} stays at {before}" in caplog.text
    assert "undo the version and make the change again" in caplog.text


def test_the_advice_in_the_warning_moves_the_folder(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    table_id = with_file(node, "a")
    aside = node.folder(".dropped")
    aside.write_text("a file where dropped tables belong")
    dropped = node.ddl(drop("a"))
    aside.unlink()
    node.ddl(undo_of(node, dropped))
    node.ddl(drop("a"))
    assert node.store.location(table_id) == node.place(f".dropped/{table_id}")
    assert files(node, table_id) == ["of a"]
    assert refused(node) == (0, 1, 0)


def test_a_schema_folder_that_cannot_be_removed_is_left(
    node: Node, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def busy(path: Path) -> None:
        raise OSError(errno.EBUSY, "Device or resource busy", str(path))

    with caplog.at_level(logging.WARNING), monkeypatch.context() as patch:
        patch.setattr(os, "rmdir", busy)
        version = node.ddl(DropSchema(name="nyc"))
    assert node.projector.projected_version() == version
    assert refused(node) == (0, 0, 1)
    assert "is still there" in caplog.text


def test_a_schema_folder_with_contents_is_left_without_a_warning(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    with_file(node, "a")
    with caplog.at_level(logging.WARNING):
        node.ddl(DropSchema(name="nyc", cascade=True))
    assert refused(node) == (0, 0, 0)
    assert caplog.text == ""


# -- places that are taken


@pytest.mark.parametrize("batch", ["one version", "two versions"])
@pytest.mark.parametrize("away", ["drop", "rename"])
def test_a_new_table_never_shows_the_files_of_a_table_that_could_not_be_moved(
    node: Node, batch: str, away: str
) -> None:
    old = with_file(node, "a")
    for name in (".dropped", "b"):
        node.folder(name).write_text("in the way")
    commands = [drop("a") if away == "drop" else rename("a", "b"), create(node, "a")]
    for several in [commands] if batch == "one version" else [[command] for command in commands]:
        node.ddl(*several)
    new = node.table("a").id
    assert node.store.location(old) == node.place("a")
    assert node.store.location(new) == node.place(f"a~{new}")
    assert (files(node, old), files(node, new)) == (["of a"], [])
    # Again, with a table that has the name of the alternative place.
    other = f"a~{new + 2}"
    node.ddl(create(node, other))
    node.ddl(rename("a", "c"), create(node, "a"))
    newest = node.table("a").id
    assert newest == new + 2
    assert node.store.location(newest) == node.place(f"{other}~2")


def test_a_new_table_does_not_share_the_place_of_a_table_whose_folder_is_missing(
    node: Node,
) -> None:
    """Otherwise a file that a writer puts there later would show in both."""
    old = with_file(node, "a")
    node.folder("b").mkdir()
    (node.folder("b") / "file").write_text("in the way")
    node.ddl(rename("a", "b"))
    shutil.rmtree(node.folder("a"))
    node.ddl(create(node, "a"))
    new = node.table("a").id
    assert node.store.location(old) == node.place("a")
    assert node.store.location(new) == node.place(f"a~{new}")


def test_a_folder_that_cannot_be_inspected_is_not_given_to_a_new_table(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder may have contents, so its old table keeps it."""
    old = with_file(node, "a")
    lstat, mkdir = os.lstat, os.mkdir

    def hide(path: Path) -> os.stat_result:
        if str(path).startswith(str(node.folder(""))):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return lstat(path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "lstat", hide)
        node.ddl(drop("a"))
        node.ddl(create(node, "a"))
    assert os.mkdir is mkdir
    assert node.store.location(old) == node.place("a")
    assert node.store.location(node.table("a").id) == node.place(f"a~{node.table('a').id}")


def test_a_new_table_does_not_show_files_that_a_drop_kept(node: Node) -> None:
    old = with_file(node, "a")
    node.ddl(drop("a", keep_data=True))
    node.ddl(create(node, "a"))
    assert files(node, old) == ["of a"]
    assert files(node, node.table("a").id) == []


@pytest.mark.parametrize("replaces", ["the one that is there", "another"])
def test_a_new_table_takes_over_only_the_place_of_the_table_that_it_replaces(
    node: Node, replaces: str
) -> None:
    old = with_file(node, "a")
    node.ddl(drop("a", keep_data=True))
    replaced = old if replaces == "the one that is there" else old + 1
    node.ddl(replace(create(node, "a"), instead_of=replaced))
    new = node.table("a").id
    if replaced == old:
        assert node.store.location(new) == node.place("a")
        assert node.store.location(old) is None
    else:
        assert node.store.location(new) == node.place(f"a~{new}")
        assert node.store.location(old) == node.place("a")


def test_a_new_table_does_not_take_over_the_place_of_a_table_in_use(node: Node) -> None:
    """A client may name any table, and a dropped one may be restored meanwhile."""
    node.ddl(create(node, "a"))
    node.ddl(drop("a", keep_data=True))
    used = with_file(node, "b")
    node.ddl(rename("b", "a"))  # its folder stays, since the dropped table has the other one
    node.ddl(replace(create(node, "b"), instead_of=used))
    assert files(node, used) == ["of b"]
    assert files(node, node.table("b").id) == []


def test_a_folder_is_not_moved_to_the_place_of_another_table(node: Node) -> None:
    """The move would replace an empty folder there, and the other table would show the files."""
    node.ddl(create(node, "a"))
    old = node.table("a").id
    node.ddl(drop("a", keep_data=True))
    new = with_file(node, "b")
    node.ddl(rename("b", "a"))
    assert node.store.location(new) == node.place("b")
    assert (files(node, old), files(node, new)) == ([], ["of b"])
    assert refused(node) == (0, 1, 0)


def test_a_table_without_a_folder_does_not_get_the_folder_of_another(node: Node) -> None:
    """No folder at the old place and one at the new place look like a move that was done before."""
    old = with_file(node, "a")
    node.ddl(drop("a", keep_data=True))
    node.ddl(create(node, "b"))
    node.folder("b").rmdir()
    node.ddl(rename("b", "a"))
    assert node.store.location(node.table("a").id) == node.place("b")
    assert files(node, old) == ["of a"]


def test_a_table_that_stayed_among_the_dropped_tables_is_restored_from_there(node: Node) -> None:
    table_id = with_file(node, "a")
    first = node.ddl(drop("a"))
    node.folder("a").write_text("in the way")
    node.ddl(undo_of(node, first))
    aside = node.place(f".dropped/{table_id}")
    assert node.store.location(table_id) == aside
    node.folder("a").unlink()
    second = node.ddl(drop("a"))
    assert node.store.location(table_id) == aside
    node.ddl(undo_of(node, second))
    assert files(node, table_id) == ["of a"]
    assert node.folder("a").is_dir()


def test_the_holders_of_a_place_are_the_same_before_and_after_they_are_written(node: Node) -> None:
    a, b, new = Place("w.db/a"), Place("w.db/b"), Place("w.db/new")
    with node.database.write() as connection:
        put_places(connection, {901: a, 902: b})
        places = TablePlaces(connection)
        places.prefetch([901])
        places.put(901, new)
        places.put(903, a)
        places.put(902, None)
        for asked in (places, TablePlaces(connection)):
            holders = [asked.holders(place) for place in (a, b, new)]
            assert holders == [{903}, set(), {901}]
            assert asked.of(901) == new
            assert asked.of(902) is None
            assert asked.taken(a, by_other_than=901)
            assert not asked.taken(a, by_other_than=903)
            run_all(connection, *places.take_writes())


# -- several effects in one SQL transaction


@pytest.mark.slow
def test_moves_of_many_folders_share_a_sql_transaction(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each parent folder that changed is synced once, before the commit."""
    names = [f"t{number}" for number in range(MAX_EFFECTS + 10)]
    node.ddl(*(create(node, name) for name in names))
    version = node.ddl(DropSchema(name="nyc", cascade=True), project=False)
    steps: list[str] = []
    sync, move = sync_folder, node.log.move_projection

    def noted_sync(folder: Path) -> None:
        steps.append(folder.name)
        sync(folder)

    def noted_move(*args: object, **more: object) -> object:
        steps.append("commit")
        return move(*args, **more)  # type: ignore[arg-type]  # passed on

    monkeypatch.setattr(warehouse, "sync_folder", noted_sync)
    monkeypatch.setattr(node.log, "move_projection", noted_move)
    node.projector.project_up_to(version)
    batches = " ".join(steps).split(" commit")
    assert [sorted(batch.split()) for batch in batches] == [
        [".dropped", "nyc.db"],
        [".dropped", "nyc.db"],
        [],  # the schema, whose folder is not empty
        [],
    ]
    assert len(list(node.folder(".dropped").iterdir())) == len(names)


def test_a_move_that_could_not_be_synced_is_tried_again(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    table_id = with_file(node, "a")

    def fail(_: int) -> None:
        raise OSError(errno.EINVAL, "Invalid argument")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(Unavailable, match=r"change of folders failed: .*to disk"):
            node.ddl(drop("a"), create(node, "b"))
    assert not node.folder("a").exists()
    assert node.store.location(table_id) == node.place("a")
    assert node.verbs().count("drop_table") == 0
    node.projector.project_up_to(node.catalogs.latest_catalog().version)
    assert node.store.location(table_id) == node.place(f".dropped/{table_id}")
    counts = node.projector.statistics()
    assert (counts.failures, counts.stayed, counts.unmade) == (1, 0, 0)


def test_a_lack_of_space_for_one_folder_delays_the_effects_after_it(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, "mkdir", failing(errno.ENOSPC, at=node.folder("b")))
        with pytest.raises(Unavailable, match="No space left"):
            node.ddl(create(node, "a"), create(node, "b"), create(node, "c"))
    assert node.folder("a").is_dir()
    assert node.verbs().count("create_table") == 1
    node.ddl(create(node, "d"))
    assert [node.folder(name).is_dir() for name in "abcd"] == [True] * 4


@pytest.mark.parametrize(
    ("first", "second", "together"),
    [
        ("make /w/a", "make /w/b", True),
        ("make /w/a", "make /w/a/b", True),
        ("make /w/a/b", "make /w/a", True),
        ("make /w/a", "make /w/a", False),
        ("make /w/a", "move /w/a", False),
        ("move /w/a", "make /w/a", False),
        ("move /w/a", "move /w/b", True),
        ("move /w/a", "make /w/a/b", False),
        ("move /w/a/b", "make /w/a", False),
        ("make /w/a/b", "move /w/a", False),
        ("make /w/a", "move /w/a/b", False),
        ("move /w/a/b/c", "move /w/a", False),
        ("move /w/a", "move /w/a/b/c", False),
        ("move /w/a", "move /w/aa", True),
    ],
)
def test_effects_on_overlapping_folders_are_not_combined(
    node: Node, first: str, second: str, together: bool
) -> None:
    with node.database.read() as connection:
        batch = EffectBatch(connection)

        def take(effect: str) -> bool:
            verb, path = effect.split()
            makes, moves = ([path], []) if verb == "make" else ([], [path])
            return batch.add(makes, moves)

        assert batch.untouched
        assert take(first)
        assert not batch.untouched
        assert take(second) is together
