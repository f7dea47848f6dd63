"""Effects on folders are repeated after a crash: the result is the same as without a crash.

Each script of DDL runs undisturbed first, and then once for every point of a power cut: a SQL
transaction is lost after its n-th operation on folders, with all of these operations done, or with
any of them undone, because the disk may lose what was not synced.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.metastore.store import warehouse
from strandline.metastore.store.effect_batch import EffectBatch
from strandline.metastore.store.store_folders import StoreFolders
from strandline.model.places import Place
from tests.metastore.store.folder_runs import LAYOUTS, Script, Store, points

Step = Callable[[Script], bool]

STEPS: dict[str, Step] = {
    "create a": lambda s: s.create("a"),
    "create b": lambda s: s.create("b"),
    "rename a to b": lambda s: s.rename("a", "b"),
    "rename b to a": lambda s: s.rename("b", "a"),
    "drop a": lambda s: s.drop("a"),
    "drop b": lambda s: s.drop("b"),
    "restore": Script.restore,
}
MORE_STEPS: dict[str, Step] = STEPS | {
    "create c": lambda s: s.create("c"),
    "rename b to c": lambda s: s.rename("b", "c"),
    "rename c to a": lambda s: s.rename("c", "a"),
    "drop c": lambda s: s.drop("c"),
    "swap a and b": lambda s: s.swap("a", "b"),
    "replace the schema": Script.replace_schema,
}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    made = Store(tmp_path_factory.mktemp("runs"))
    with closing(made.database), pytest.MonkeyPatch.context() as patch:
        # Each run says what is lost, so there is no need to wait for the disk.
        patch.setattr(warehouse, "sync_folder", lambda _: None)
        logging.getLogger("strandline.metastore").setLevel(logging.ERROR)
        yield made
        logging.getLogger("strandline.metastore").setLevel(logging.NOTSET)
    made.database.close()


def written(store: Store, names: Sequence[str]) -> tuple[Script, Script] | None:
    """Return the script before these steps and with them, or None if a step is impossible."""
    before = Script(f"{store.base}/s.db", alive={"a": 1})
    after = Script(f"{store.base}/s.db", alive={"a": 1})
    return (before, after) if all(MORE_STEPS[name](after) for name in names) else None


def differing(
    store: Store,
    names: Sequence[str],
    *,
    layout: str = "plain",
    per_version: int = 3,
    subsets: bool = False,
) -> str | None:
    """Return the first point at which a power cut makes a difference, or None."""
    scripts = written(store, names)
    if scripts is None:
        return None
    before, script = scripts
    updates = script.updates(per_version=per_version)
    store.begin(before, layout=layout)
    wanted, operations = store.undisturbed(updates)
    for transaction, after, lost in points(operations, subsets=subsets):
        store.begin(before, layout=layout)
        state = store.cut(updates, transaction, after=after, lost=lost)
        if state != wanted:
            return f"{names}: transaction {transaction} behind {after}, without {lost:b}: {state}"
    return None


@pytest.mark.parametrize(
    ("layout", "steps"),
    [
        ("plain", 2),
        pytest.param("plain", 3, marks=pytest.mark.slow),
        *((name, 2) for name in LAYOUTS if name != "plain"),
        *(pytest.param(name, 3, marks=pytest.mark.soak) for name in LAYOUTS if name != "plain"),
        pytest.param("plain", 4, marks=pytest.mark.soak),
    ],
)
def test_a_power_cut_does_not_change_the_result_of_any_short_script(
    store: Store, layout: str, steps: int
) -> None:
    scripts = [
        names
        for names in itertools.product(STEPS, repeat=steps)
        if written(store, names) is not None
    ]
    assert len(scripts) > 7 * (steps - 1)
    for names in scripts:
        assert differing(store, names, layout=layout, subsets=steps < 4) is None


def check_long_script(store: Store, data: st.DataObject) -> None:
    names: list[str] = []
    for _ in range(data.draw(st.integers(4, 8))):
        able = [name for name in MORE_STEPS if written(store, [*names, name]) is not None]
        names.append(data.draw(st.sampled_from(able)))
    complaint = differing(
        store,
        names,
        layout=data.draw(st.sampled_from(sorted(LAYOUTS))),
        per_version=data.draw(st.sampled_from([1, 2, 20])),
        subsets=data.draw(st.booleans()),
    )
    assert complaint is None


@pytest.mark.slow
@settings(max_examples=5)
@given(data=st.data())
def test_a_power_cut_does_not_change_the_result_of_a_few_long_scripts(
    store: Store, data: st.DataObject
) -> None:
    check_long_script(store, data)


@pytest.mark.soak
@settings(max_examples=100)
@given(data=st.data())
def test_a_power_cut_does_not_change_the_result_of_many_long_scripts(
    store: Store, data: st.DataObject
) -> None:
    check_long_script(store, data)


def test_a_crash_changes_the_result_if_a_transaction_may_touch_a_folder_twice(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(EffectBatch, "_free", lambda *_: True)
    assert differing(store, ["rename a to b", "create a"]) is not None
    assert differing(store, ["drop a", "create a"]) is not None
    assert differing(store, ["rename a to b", "drop b"], subsets=True) is not None


def test_effects_on_separate_folders_share_a_sql_transaction(store: Store) -> None:
    scripts = written(store, ["rename a to b", "create c", "create a", "swap a and b", "drop c"])
    assert scripts is not None
    before, script = scripts
    store.begin(before, layout="plain")
    _, operations = store.undisturbed(script.updates(per_version=20))
    # {a to b, create c} {create a, …}
    assert operations == [2, 1, 1, 1, 2]


# -- folders inside folders, and folders with two names


def inside(script: Script) -> None:
    """Create a table inside the folder of another, which is then moved."""
    script.create("a/inner")
    script.rename("a", "b")


def above(script: Script) -> None:
    """Move the folder of a table, and create a table inside its old place."""
    script.rename("a", "b")
    script.create("a/inner")


def linked(script: Script) -> None:
    """Move the folder of a table, and create a folder in its place under its other name."""
    script.rename("a", "b")
    script.create("../link/a")


@pytest.mark.parametrize("write", [inside, above, linked])
@pytest.mark.parametrize("rule", ["whole", "paths only"])
def test_nested_folders_and_folders_with_two_names_are_recognized_as_overlapping(
    store: Store, monkeypatch: pytest.MonkeyPatch, write: Callable[[Script], None], rule: str
) -> None:
    if rule == "paths only":
        monkeypatch.setattr(EffectBatch, "_names", lambda _, paths: set(paths))
        monkeypatch.setattr(
            EffectBatch, "_free", lambda self, *names: self._touched.isdisjoint(set().union(*names))
        )
    # The places of the script are not places that a store chooses.
    monkeypatch.setattr(Place, "is_of_table", True)
    monkeypatch.setattr(StoreFolders, "may_make", lambda *_: True)
    monkeypatch.setattr(StoreFolders, "verify", lambda *_, **__: None)
    before = Script(f"{store.base}/s.db", alive={"a": 1})
    script = Script(f"{store.base}/s.db", alive={"a": 1})
    write(script)
    updates = script.updates(per_version=20)

    def begin() -> None:
        store.begin(before, layout="plain")
        Path(store.base / "link").symlink_to("s.db")

    begin()
    wanted, operations = store.undisturbed(updates)
    assert operations == ([1, 1] if rule == "whole" else [2])
    same = []
    for transaction, after, lost in points(operations, subsets=False):
        begin()
        same.append(store.cut(updates, transaction, after=after, lost=lost) == wanted)
    assert all(same) is (rule == "whole")
