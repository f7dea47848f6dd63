"""Trial opens of a catalog, and edits by hand, which take a new epoch in the same step."""

from __future__ import annotations

import sqlite3
from base64 import b64encode
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import psycopg
import pytest

from strandline.clock import HybridClock
from strandline.durable import (
    CatalogTransaction,
    DurableCatalogState,
    StashLog,
    UpdateLog,
    migrations,
)
from strandline.durable.log import Frontier
from strandline.durable.migrations import Migration
from strandline.durable.persist.persist_log import PersistLog
from strandline.errors import Fenced, InvalidInput, NotFound
from strandline.model.descriptors import Setting
from strandline.node.catalog_dump import dump_pieces
from tests.conftest import NOTHING, LogMember
from tests.durable.logs import IN_SQLITE, LOGS, LONG


def put_setting(name: str, value: str = "x") -> Callable[[CatalogTransaction], None]:
    def change(transaction: CatalogTransaction) -> None:
        with transaction.entry("debug_edit", {"object": f"setting {name}"}):
            transaction.put(Setting(name, value))

    return change


def edit(
    member: LogMember, change: Callable[[CatalogTransaction], None]
) -> DurableCatalogState | None:
    return member.openable().edit(
        change,
        member="editor",
        raise_fence=lambda token, environment: member.fences.append(token),
        author="ann",
    )


@pytest.mark.parametrize("generation", [0, 3])
def test_a_trial_gives_the_present_contents_and_changes_nothing(
    new_member: Callable[[], LogMember], generation: int
) -> None:
    holder, other = new_member(), new_member()
    state = holder.open(generation=generation)
    head, fences = holder.head(), list(other.fences)
    assert other.openable().check_open() == state.recovered[-1].contents
    assert (holder.head(), other.fences) == (head, fences)
    state.confirm_leadership()


def stored_in(folder: Path, address: str = "") -> dict[str, object]:
    """Every row of each SQLite file below ``folder``, and the bytes of each blob.

    With the ``address`` of a log on a server, also every row or key there.
    """
    stored = stored_on_server(address.partition("|")[0])
    for file in folder.rglob("*"):
        if file.name.endswith(".db"):
            with closing(sqlite3.connect(file)) as connection:
                stored[str(file)] = list(connection.iterdump())
        elif "blobs" in file.parts and file.is_file():
            stored[str(file)] = file.read_bytes()
    return stored


def stored_on_server(address: str) -> dict[str, object]:
    if address.startswith("postgresql:"):
        with psycopg.connect(address) as connection:
            named = connection.execute(
                "SELECT tablename FROM pg_tables WHERE schemaname = current_schema()"
            )
            return {
                table: connection.execute(f'SELECT xmin, * FROM "{table}" ORDER BY 2').fetchall()
                for (table,) in named.fetchall()
            }
    if address.startswith("etcd:"):
        parts = urlsplit(address)
        first, last = (b64encode(parts.path[1:].encode() + end).decode() for end in (b"", b"\xff"))
        asked = {"key": first, "range_end": last}
        answer = httpx.post(f"http://{parts.netloc}/v3/kv/range", json=asked).json()
        return {key["key"]: (key["value"], key["mod_revision"]) for key in answer["kvs"]}
    return {}


@pytest.mark.parametrize(
    "new_member",
    [*IN_SQLITE, *(pytest.param(name, marks=pytest.mark.soak) for name in LONG)],
    indirect=True,
)
def test_reading_and_a_trial_change_no_row_and_no_blob(
    new_member: Callable[[], LogMember], tmp_path: Path
) -> None:
    look_and_try(new_member, lambda: stored_in(tmp_path))


SERVERS = ("metastorage on postgresql", "stash on postgresql", "persist on postgresql")


@pytest.mark.parametrize(
    "name", [*SERVERS, pytest.param("metastorage on etcd", marks=pytest.mark.slow)]
)
def test_reading_and_a_trial_change_no_row_on_a_server(name: str, tmp_path: Path) -> None:
    kind = LOGS[name]
    address = kind.create(tmp_path)
    with ExitStack() as opened:
        look_and_try(
            lambda: LogMember(opened.enter_context(kind.open(address, HybridClock())), []),
            lambda: stored_in(tmp_path, address),
        )


def look_and_try(
    new_member: Callable[[], LogMember], stored: Callable[[], dict[str, object]]
) -> None:
    state = new_member().open()
    for number in range(6):
        transaction = state.transaction(state.recovered[-1], author="ann")
        put_setting(f"note {number}")(transaction)
        state.recovered.append(state.commit_transaction(transaction))
    assert state.compact(5)
    before = stored()
    assert len(str(before)) > 1_000
    other = new_member()
    assert other.openable().check_open() == state.recovered[-1].contents
    reader = other.openable().open_read_only()
    assert reader.recovered[-1].version == state.recovered[-1].version
    assert "".join(dump_pieces(reader))
    assert stored() == before


def test_a_trial_without_a_catalog_is_not_found(member: LogMember) -> None:
    with pytest.raises(NotFound, match="there is no catalog here"):
        member.openable().check_open()
    assert member.head() == NOTHING


def test_a_trial_restarts_when_a_node_trims_the_log_meanwhile(
    new_member: Callable[[], LogMember], monkeypatch: pytest.MonkeyPatch
) -> None:
    holder, other = new_member(), new_member()
    state = holder.open()
    log, left = type(other.log), [1]
    frontier = log.frontier

    def trimmed_meanwhile(log: UpdateLog) -> Frontier:
        if left:
            left.pop()
            transaction = state.transaction(state.recovered[-1], author="ann")
            put_setting("note")(transaction)
            assert state.compact(state.commit_transaction(transaction).version)
        return frontier(log)

    monkeypatch.setattr(log, "frontier", trimmed_meanwhile)
    assert other.openable().check_open().get("setting", b"note") is not None


@pytest.mark.parametrize("generation", [0, 3])
def test_an_edit_fences_every_holder_in_the_same_step(
    new_member: Callable[[], LogMember], generation: int
) -> None:
    holder, editor = new_member().open(generation=generation), new_member()
    state = edit(editor, put_setting("note"))
    assert state is not None
    assert state.token.rank == (generation, holder.token.epoch + 1)
    assert editor.fences == [state.token]
    last = state.recovered[-1].version
    assert [u.entries[0].verb for u in state.log.updates(last - 1, last + 1)] == [
        "fence",
        "debug_edit",
    ]
    with pytest.raises(Fenced):
        holder.confirm_leadership()


def test_an_edit_that_fails_or_changes_nothing_takes_no_epoch(
    new_member: Callable[[], LogMember],
) -> None:
    holder, editor = new_member(), new_member()
    state = holder.open()
    assert edit(editor, put_setting("note")) is not None
    state = holder.join()
    head = holder.head()
    fences = list(editor.fences)
    assert edit(editor, put_setting("note")) is None

    def fails(transaction: CatalogTransaction) -> None:
        put_setting("other")(transaction)
        transaction.delete("schema", 999)

    with pytest.raises(NotFound):
        edit(editor, fails)
    assert (holder.head(), editor.fences) == (head, fences)
    state.confirm_leadership()


def test_an_edit_that_is_too_large_for_the_log_fences_nobody(
    new_member: Callable[[], LogMember], monkeypatch: pytest.MonkeyPatch
) -> None:
    holder, editor = new_member(), new_member()
    state = holder.open()
    head = holder.head()
    monkeypatch.setattr("strandline.metastorage.store.MAX_VALUE_BYTES", 100_000)
    change = put_setting("note", "x" * 120_000)
    if isinstance(holder.log, StashLog | PersistLog):  # they have no limit for an update
        assert edit(editor, change) is not None
        return
    with pytest.raises(InvalidInput, match="at most 100000 are allowed"):
        edit(editor, change)
    wide = Migration("wide", lambda transaction: transaction.put(Setting("note", "x" * 120_000)))
    with monkeypatch.context() as later:
        later.setattr(migrations, "MIGRATIONS", [*migrations.MIGRATIONS, wide])
        with pytest.raises(InvalidInput, match="at most 100000 are allowed"):
            editor.openable().check_open()
    assert (holder.head(), editor.fences) == (head, [])
    state.confirm_leadership()


def test_an_edit_overtaken_by_a_commit_is_redone_on_the_new_version(
    new_member: Callable[[], LogMember],
) -> None:
    holder, editor = new_member().open(), new_member()
    seen: list[int] = []

    def change(transaction: CatalogTransaction) -> None:
        seen.append(transaction.version)
        if len(seen) == 1:  # a holder commits between the read and the append
            other = holder.transaction(holder.recovered[-1], author="bob")
            put_setting("theirs")(other)
            holder.commit_transaction(other)
        put_setting("ours")(transaction)

    state = edit(editor, change)
    assert state is not None
    assert len(seen) == 4  # a trial and the real one, twice
    contents = state.recovered[-1].contents
    assert {stored.name for stored in contents.objects("setting")} >= {"theirs", "ours"}


def test_an_edit_without_a_catalog_is_not_found(member: LogMember) -> None:
    with pytest.raises(NotFound, match="there is no catalog here"):
        edit(member, put_setting("note"))
    assert member.head() == NOTHING
