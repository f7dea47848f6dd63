"""Moves of a store's catalog to another log: what moves, and who is stopped."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from strandline.config import Settings
from strandline.durable import DurableCatalogState, StashLog, Superseded, log_copy, migrations
from strandline.durable.log_copy import LogCopy
from strandline.durable.persist.persist_log import BLOBS, ENVIRONMENT
from strandline.errors import (
    Conflict,
    CorruptData,
    Fenced,
    IncompatibleFormat,
    InvalidInput,
    NotFound,
    OutOfSync,
    StrandlineError,
    WrongEnvironment,
)
from strandline.fencing import FenceToken
from strandline.metastorage import SqlMetastorage
from strandline.metastore.store.rows import DataFile
from strandline.node import Node, catalog_move
from strandline.node.address import DATABASE_FILE, StoreAddress
from strandline.node.backup import back_up, restore
from strandline.node.catalog_log import open_catalog_log, open_log, reading_catalog_log
from strandline.node.catalog_move import move_catalog
from strandline.node.membership import join_newer_epoch, open_newer_epoch
from strandline.node.relocation import relocate
from strandline.sql import FenceRow
from tests.node.conftest import before_the_next
from tests.node.moved_catalogs import (
    Killed,
    commit,
    joined,
    joined_at,
    joined_in,
    killed,
    killed_at_the_end,
    log_of,
    move,
    notes,
    place_of,
    trimmed,
)
from tests.node.test_catalog_log import fill, tables

WAYS = ["metastorage", "stash", "persist", "shadow", "stash", "shadow:persist+stash", "metastorage"]


def history(state: DurableCatalogState) -> list[object]:
    return [(update.version, update.time, update.contents.dump()) for update in state.recovered]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "s"
    folder.mkdir()
    with joined(folder):
        return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    """A separate copy of the store, as if it had been created there."""
    copied = tmp_path / "s"
    shutil.copytree(made, copied)
    return copied


def test_a_catalog_moves_through_all_logs_with_its_history(folder: Path) -> None:
    for number, to in enumerate(WAYS[1:], start=1):
        with joined(folder) as state:
            before = history(state)
        moved = move(folder, to, leaving=WAYS[number - 1])
        assert moved.target.name == to
        with joined(folder) as state:
            assert history(state)[: len(before)] == before
            commit(state, f"note {number}")
            assert notes(state) == {f"note {n}" for n in range(1, number + 1)}
            if number % 2 == 0:
                assert state.compact(state.recovered[-1].version)


def test_a_running_node_is_replaced_and_can_write_nothing_more(tmp_path: Path) -> None:
    with Node.open(tmp_path / "s") as node:
        fill(node, "t")
        session = node.session(user="ann")
        txn_id = session.begin().txn_id
        table = session.table("default.t")
        move(tmp_path / "s", "stash")
        with pytest.raises(StrandlineError):
            session.stage(
                txn_id, table.descriptor.id, add=[DataFile(file_id=2, path="x", rows=1, bytes=1)]
            )
        by_whom = r"was moved from this log to another one.*the token that \S+ took at \d{4}-"
        with pytest.raises(Fenced, match=by_whom):
            fill(node, "u")
        with pytest.raises(StrandlineError):
            node.catalogs.present()
        assert "start the node again" in node.replaced.result(timeout=60)
        assert tables(node) == ["t"]
    with Node.open(tmp_path / "s") as node:
        fill(node, "u")
        assert tables(node) == ["t", "u"]
    with pytest.raises(InvalidInput, match="set it to stash"):
        Node.open(tmp_path / "s", settings=Settings(catalog_log="metastorage"))


@pytest.mark.parametrize(("leaving", "to"), [("metastorage", "shadow"), ("shadow", "metastorage")])
def test_a_running_node_is_replaced_even_if_both_logs_have_the_same_first_part(
    folder: Path, tmp_path: Path, leaving: str, to: str
) -> None:
    """The node may see the newer epoch of that part only, and not the seal before it."""
    if leaving != "metastorage":
        move(folder, leaving)
    with place_of(folder) as place, ExitStack() as stack:
        opened = open_catalog_log(place, stack, wanted="")
        state = joined_in(opened.log, place)
        move(folder, to)
        with pytest.raises(Superseded, match=f"is now kept in the log {to}, not in {leaving}"):
            join_newer_epoch(state, place.database, require_log=opened.require_log)
    with Node.open(tmp_path / "n", settings=Settings(catalog_log=leaving)) as node:
        move(tmp_path / "n", to)
        with pytest.raises(Fenced):
            fill(node, "t")
        assert "start th" in node.replaced.result(timeout=60)


def committing(folder: Path, times: int) -> Callable[[Callable[..., None]], Any]:
    """Makes another process commit after each of the first ``times`` proofs."""
    left = list(range(times))

    def wrap(prove: Callable[..., None]) -> Any:
        def proved(*arguments: Any, **named: Any) -> None:
            prove(*arguments, **named)
            if left:
                with joined(folder) as state:
                    commit(state, f"late {left.pop()}")

        return proved

    return wrap


def test_commits_made_during_the_move_are_moved_too(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LogCopy, "prove", committing(folder, 3)(LogCopy.prove))
    move(folder, "stash")
    with joined(folder) as state:
        assert notes(state) == {"late 0", "late 1", "late 2"}


def test_nodes_go_on_while_the_catalog_moves_to_the_second_log_of_their_shadow(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    move(folder, "shadow:metastorage+stash")
    with place_of(folder) as place, ExitStack() as stack:
        # As if a node died after its append to the first log.
        commit(joined_in(open_log("metastorage", place, stack).log, place), "early")
    monkeypatch.setattr(LogCopy, "prove", committing(folder, 1)(LogCopy.prove))
    move(folder, "stash")
    with joined(folder) as state:
        assert notes(state) == {"early", "late 0"}


def test_a_catalog_with_constant_commits_is_sealed_and_moved(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog_move, "ROUNDS", 2)
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(LogCopy, "prove", committing(folder, 2)(LogCopy.prove))
        patch.setattr(catalog_move._Switch, "switch", killed)
        move(folder, "stash")
    with pytest.raises(Superseded, match="run `strandline durable migrate` again"), joined(folder):
        pass
    move(folder, "stash")
    with joined(folder) as state:
        assert notes(state) == {"late 0", "late 1"}


def test_commits_that_are_trimmed_during_the_move_are_proved_too(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def commit_and_trim(name: str) -> None:
        with joined(folder) as state:
            commit(state, name)
            assert state.compact(state.recovered[-1].version)

    before_the_next(monkeypatch, LogCopy, "prove", lambda: commit_and_trim("one"))
    before_the_next(monkeypatch, catalog_move._Move, "_seal", lambda: commit_and_trim("two"))
    frontier = move(folder, "stash").frontier
    with joined(folder) as state:
        assert notes(state) == {"one", "two"}
        assert frontier is not None
        assert frontier.since == state.recovered[0].version


def test_a_trim_between_the_proof_and_the_seal_trims_the_new_log_too(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trimmed_to = list[int]()

    def trim() -> None:
        with place_of(folder) as place, reading_catalog_log(place) as log:
            trimmed_to.append(log.frontier().upper - 1)
            token = log.token()
            assert token is not None
            log.compact(trimmed_to[0], token)

    with joined(folder) as state:
        commit(state, "one")
    before_the_next(monkeypatch, catalog_move._Move, "_seal", trim)
    move(folder, "stash")
    with place_of(folder) as place, reading_catalog_log(place) as log:
        assert [log.frontier().since] == trimmed_to


def test_a_commit_between_the_copies_to_both_logs_of_a_shadow_is_moved(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def commit_late() -> None:
        with joined(folder) as state:
            commit(state, "late")

    of_level = partial(before_the_next, monkeypatch, LogCopy, "level")
    of_level(lambda: of_level(commit_late))
    move(folder, "shadow:stash+persist")
    with joined(folder) as state:
        assert notes(state) == {"late"}


@pytest.mark.parametrize("step", ["_Move._seal", "seal"])
def test_a_catalog_that_is_opened_anew_during_the_move_is_moved_and_its_node_fenced(
    folder: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    tokens = list[FenceToken | None]()

    def open_anew() -> None:
        with place_of(folder) as place, reading_catalog_log(place) as log:
            open_newer_epoch(log, place.database, place.clock, 2, member="m")
            tokens.append(log.token())

    *names, name = step.split(".")
    owner = catalog_move._Move if names else catalog_move
    before_the_next(monkeypatch, owner, name, open_anew)
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(catalog_move, "finish_move", killed_at_the_end)
        move(folder, "stash")
    with place_of(folder) as place, place.database.read() as connection:
        fence = FenceRow.read(connection)
    assert tokens[0] is not None
    assert fence is not None
    assert tokens[0] < fence.token
    with joined(folder) as state:
        commit(state, "on")
        assert notes(state) == {"on"}


def test_a_log_that_cannot_be_sealed_remains_in_use(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog_move, "ROUNDS", 1)
    monkeypatch.setattr(catalog_move, "ATTEMPTS", 1)

    def refuse(*_: Any, **__: Any) -> None:
        raise OutOfSync("a node was first")

    with monkeypatch.context() as patch, pytest.raises(Conflict, match="stop the nodes"):
        patch.setattr(catalog_move, "seal", refuse)
        move(folder, "stash")
    with joined(folder) as state:
        commit(state, "on")
        assert log_of(folder) == "metastorage"


@pytest.mark.parametrize("is_late", [False, True])
def test_an_altered_copy_is_found_and_the_catalog_is_not_moved(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *, is_late: bool
) -> None:
    append = LogCopy._append

    def altering(self: LogCopy, updates: Any) -> None:
        append(self, [*updates[:-1], replace(updates[-1], author="eve")])

    def commit_and_alter() -> None:
        with joined(folder) as state:
            commit(state, "late")
        monkeypatch.setattr(LogCopy, "_append", altering)

    if is_late:
        before_the_next(monkeypatch, catalog_move._Move, "_seal", commit_and_alter)
    else:
        monkeypatch.setattr(LogCopy, "_append", altering)
    with pytest.raises(CorruptData, match=r"nodes continue with the log metastorage.*eve"):
        move(folder, "stash")
    with joined(folder) as state:
        commit(state, "on")
    monkeypatch.undo()
    # The partial copy in the target is not the beginning of this history.
    with pytest.raises(Conflict, match="has a different history"):
        move(folder, "stash")


@pytest.mark.parametrize("ends", ["behind", "before", "before the history that is kept"])
def test_the_log_of_another_catalog_is_not_overwritten(
    folder: Path, tmp_path: Path, ends: str
) -> None:
    (tmp_path / "other").mkdir()
    with place_of(folder) as place, joined(tmp_path / "other") as other, joined(folder) as own:
        for state in (other,) if ends == "behind" else (own, own):
            commit(state, f"note {state.recovered[-1].version}")
        log = StashLog(place.database, place.clock)
        LogCopy(other.log, log, names=("theirs", "ours")).level()
        if ends == "before the history that is kept":
            assert own.compact(own.recovered[-1].version)
        before = log.snapshot()
        with pytest.raises(Conflict, match="has a different history"):
            move(folder, "stash")
        assert log.snapshot() == before
        commit(own, "on")


def test_a_copy_that_was_killed_at_its_first_version_goes_on_after_a_trim(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = LogCopy._append

    def then_die(self: LogCopy, updates: Any) -> None:
        append(self, updates)
        raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(log_copy, "COPIED_AT_ONCE", 1)
        patch.setattr(LogCopy, "_append", then_die)
        move(folder, "stash")
    move(trimmed(folder), "stash")
    with joined(folder) as state:
        assert notes(state) == {"one"}


def test_a_copy_does_not_share_the_blobs_of_its_original(tmp_path: Path) -> None:
    folder, copied = tmp_path / "s", tmp_path / "copied"
    settings = Settings(catalog_log="persist", catalog_blobs=str(tmp_path / "blobs"))
    with Node.open(folder, settings=settings) as node:
        fill(node, "t", rows=0)
    shutil.copytree(folder, copied)
    # The copy would remove the blobs that its original writes from now on.
    with pytest.raises(InvalidInput, match=r"/blobs.*strandline restore --copy"):
        relocate(copied, copy=True)
    with Node.open(folder) as node:
        assert tables(node) == ["t"]
    move(folder, "stash")
    left = tmp_path / "left"
    shutil.copytree(folder, left)
    relocate(left, copy=True)
    move(left, "persist")
    with place_of(left) as place, closing(SqlMetastorage(place.database, place.clock)) as store:
        blobs = store.get(BLOBS)
        assert blobs is not None
        assert blobs.value == b""
    with Node.open(left) as node:
        assert tables(node) == ["t"]


def test_a_move_from_persist_reads_the_blobs_from_their_recorded_place(
    folder: Path, tmp_path: Path
) -> None:
    move(folder, "persist")
    with place_of(folder) as place:
        with joined_at(place) as state:
            environment = SqlMetastorage(place.database, place.clock).get(ENVIRONMENT)
            assert environment is not None
            assert environment.value.decode() == state.environment
        move_catalog(place, replace(place, blobs=str(tmp_path / "other")), leaving="", to="stash")
    with joined(folder) as state:
        commit(state, "on")
    assert log_of(folder) == "stash"


def test_a_catalog_can_move_back_to_a_former_log_after_a_trim(folder: Path) -> None:
    move(folder, "stash")
    with joined(folder) as state:
        commit(state, "on")
    move(folder, "metastorage")
    with joined(folder) as state:
        assert state.compact(state.recovered[-1].version)
        commit(state, "off")
    frontier = move(folder, "stash").frontier
    assert frontier is not None
    assert frontier.since > 0


def test_a_separate_copy_of_a_store_can_move_back_to_a_former_log_after_a_trim(
    tmp_path: Path,
) -> None:
    """The former log has the environment id of the original."""
    with Node.open(tmp_path / "s") as node:
        fill(node)
    move(tmp_path / "s", "stash")
    shutil.copytree(tmp_path / "s", tmp_path / "copy")
    relocate(tmp_path / "copy", copy=True)
    with joined(tmp_path / "copy") as state:
        commit(state, "later")
        assert state.compact(state.recovered[-1].version)
    move(tmp_path / "copy", "metastorage")
    with joined(tmp_path / "copy") as state:
        assert notes(state) == {"later"}


@pytest.mark.parametrize("steps", [1, -1])
def test_a_catalog_in_the_format_of_another_release_is_not_moved(
    folder: Path, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    known = migrations.MIGRATIONS
    other = [*known, migrations.Migration("later", print)][: len(known) + steps]
    monkeypatch.setattr(migrations, "MIGRATIONS", other)
    with pytest.raises(IncompatibleFormat):
        move(folder, "stash")
    assert log_of(folder) == "metastorage"


def test_a_move_of_a_store_without_a_catalog_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="there is no catalog"):
        move(tmp_path, "stash")


def test_the_move_of_a_catalog_that_is_not_at_the_address_is_refused(folder: Path) -> None:
    with closing(sqlite3.connect(folder / DATABASE_FILE)) as database, database:
        database.execute("DELETE FROM metastorage")
    with pytest.raises(WrongEnvironment, match="correct its address and prefix"):
        move(folder, "stash")
    assert log_of(folder) == "metastorage"


@pytest.mark.parametrize("log", ["metastorage", "stash"])
def test_a_move_to_the_current_log_is_refused(folder: Path, log: str) -> None:
    if log == "stash":
        move(folder, log)
    for to in (log, ""):
        with pytest.raises(InvalidInput, match=f"is already in the log {log}"):
            move(folder, to)
    with pytest.raises(InvalidInput, match=f"is kept in the log {log}"):
        move(folder, "shadow", leaving="persist")


@pytest.mark.slow
def test_a_restored_catalog_that_had_left_persist_can_move_back_to_it(tmp_path: Path) -> None:
    folder, again = tmp_path / "s", tmp_path / "r"
    with Node.open(folder, settings=Settings(catalog_log="persist")) as node:
        fill(node, "t", rows=0)
        assert node.session(user="ann").compact(node.catalogs.latest_catalog().version)
    move(folder, "stash")
    with Node.open(folder) as node:
        back_up(node, tmp_path / "b", user="ann")
    restore(tmp_path / "b", StoreAddress(again), copy=True)
    move(again, "persist")
    with Node.open(again) as node:
        fill(node, "u", rows=0)
        assert tables(node) == ["t", "u"]
