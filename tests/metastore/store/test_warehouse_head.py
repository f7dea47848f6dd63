"""A database that was set back alone projects again what it has lost, and touches no folder.

Each script of DDL runs to its end. Then the database is set back to before the script, and the
script is projected again: the folders and places are as they were.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from strandline.durable.update import Update
from strandline.metastore.store import warehouse
from strandline.metastore.store.store_folders import StoreFolders
from strandline.metastore.store.warehouse_head import WarehouseHead
from tests.metastore.store.folder_runs import Script, State, Store

STEPS: dict[str, Callable[[Script], bool]] = {
    "create a": lambda s: s.create("a"),
    "create b": lambda s: s.create("b"),
    "rename a to b": lambda s: s.rename("a", "b"),
    "rename b to a": lambda s: s.rename("b", "a"),
    "drop a": lambda s: s.drop("a"),
    "purge a": lambda s: s.purge("a"),
    "restore": Script.restore,
    "replace the schema": Script.replace_schema,
}


@pytest.fixture
def store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> Iterator[Store]:
    monkeypatch.setattr(warehouse, "sync_folder", lambda _: None)
    caplog.set_level(logging.ERROR, "strandline.metastore")
    made = Store(tmp_path)
    with closing(made.database):
        yield made


@pytest.fixture
def head(tmp_path: Path) -> WarehouseHead:
    return WarehouseHead(tmp_path / "head", mode=0o600)


def before(store: Store) -> Script:
    return Script(f"{store.base}/s.db", alive={"a": 1})


def written(store: Store, names: Sequence[str]) -> list[Update] | None:
    """Return the updates of these steps, or None if a step is impossible."""
    script = before(store)
    if not all(STEPS[name](script) for name in names):
        return None
    updates = script.updates(per_version=1)
    return [replace(update, id=bytes([update.version]) * 16) for update in updates]


def project(
    store: Store, updates: list[Update], head: WarehouseHead | None = None, *, writes: bool = True
) -> State:
    folders = StoreFolders(store.base.parent)
    while not store.attempt(updates, folders, head=head, writes=writes):
        pass
    return store.state()


def repeated(
    store: Store, names: Sequence[str], head: WarehouseHead | None = None
) -> tuple[State, State]:
    """The state after the steps, and after they are projected again because of a set back."""
    updates = written(store, names)
    assert updates is not None
    store.begin(before(store), layout="plain")
    state = project(store, updates)
    if head is not None:
        head.note(updates[-1])
    store.set_back(before(store))
    return state, project(store, updates, head, writes=False)


@pytest.mark.parametrize("steps", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_no_folder_of_a_version_that_the_warehouse_has_is_touched_again(
    store: Store, tmp_path: Path, steps: int
) -> None:
    scripts = [s for s in itertools.product(STEPS, repeat=steps) if written(store, s) is not None]
    assert len(scripts) > 7 * (steps - 1)
    for number, names in enumerate(scripts):
        head = WarehouseHead(tmp_path / f"head{number}", mode=0o600)
        state, again = repeated(store, names, head)
        assert again == state, names


@pytest.mark.parametrize("second", ["purge a", "drop a", "rename a to b"])
def test_without_the_head_a_repeated_effect_takes_the_folder_of_a_new_table(
    store: Store, second: str
) -> None:
    state, again = repeated(store, [second, "create a"])
    assert again != state


def test_effects_after_those_that_the_warehouse_has_are_carried_out(
    store: Store, head: WarehouseHead
) -> None:
    updates = written(store, ["drop a", "create a", "rename a to b", "create a"])
    assert updates is not None
    store.begin(before(store), layout="plain")
    state = project(store, updates)
    store.begin(before(store), layout="plain")
    project(store, updates[:2])
    head.note(updates[1])
    store.set_back(before(store))
    project(store, updates[:2], head, writes=False)
    assert project(store, updates, head) == state


def test_a_head_of_another_catalog_says_nothing(store: Store, head: WarehouseHead) -> None:
    updates = written(store, ["drop a", "create a"])
    assert updates is not None
    store.begin(before(store), layout="plain")
    state = project(store, updates)
    store.begin(before(store), layout="plain")
    head.note(replace(updates[-1], id=bytes(16)))
    assert project(store, updates, head) == state


def test_a_head_never_goes_back(store: Store, head: WarehouseHead) -> None:
    updates = written(store, ["drop a", "create a"])
    assert updates is not None
    head.note(updates[1])
    head.note(updates[0])
    assert head.done_up_to(0, lambda start, end: updates[start - 1 : end - 1]) == 2


@pytest.mark.parametrize("text", ['{"version": 7', "[" * 100_000])
def test_a_damaged_head_says_nothing_and_is_replaced(
    store: Store, head: WarehouseHead, tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str
) -> None:
    (update,) = written(store, ["drop a"]) or []
    caplog.set_level(logging.WARNING, "strandline.metastore")
    (tmp_path / "head").write_text(text)
    assert head.done_up_to(0, lambda start, end: [update]) == 0
    head.note(update)
    assert head.done_up_to(0, lambda start, end: [update]) == 1
    assert "cannot be read" in caplog.text


def test_a_head_that_cannot_be_written_is_logged_once(
    store: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (update,) = written(store, ["drop a"]) or []
    caplog.set_level(logging.WARNING, "strandline.metastore")
    head = WarehouseHead(tmp_path / "missing" / "head", mode=0o600)
    head.note(update)
    head.note(update)
    assert [record.message.count("cannot be written") for record in caplog.records] == [1]
