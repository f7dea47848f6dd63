"""Trial opens of a catalog, and edits by hand, which take a new epoch in the same step."""

from __future__ import annotations

import sqlite3
from base64 import b64encode
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import psycopg
import pytest

from strandline.clock import HybridClock
from strandline.durable import CatalogTransaction, DurableCatalogState, OpenableState, StashLog
from strandline.durable.buffered_log import BufferedLog
from strandline.durable.log import Frontier
from strandline.durable.persist.persist_log import PersistLog
from strandline.errors import (
    Fenced,
    InvalidInput,
    NotFound,
    OutOfSync,
    UnsupportedOperation,
    VersionNotFound,
)
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
def test_a_trial_behaves_like_an_open_and_changes_nothing(
    new_member: Callable[[], LogMember], generation: int
) -> None:
    holder, other = new_member(), new_member()
    state = holder.open(generation=generation)
    head, fences = holder.head(), list(other.fences)
    tried = other.openable().check_open(member="trial")
    assert tried.token.rank == (generation, state.token.epoch + 1)
    transaction = tried.transaction(tried.recovered[-1], author="ann")
    put_setting("note")(transaction)
    applied = tried.commit_transaction(transaction)
    assert [u.version for u in tried.updates_after(tried.recovered[-1])] == [applied.version]
    assert applied.contents.get("setting", b"note") is not None
    again = tried.transaction(applied, author="ann")
    put_setting("note", "other")(again)
    applied = tried.commit_transaction(again)
    note = applied.contents.get("setting", b"note")
    assert note is not None
    assert note.value == Setting("note", "other")
    assert len(list(tried.log.scan("audit_event", 1, applied.version + 1))) == 3
    assert (holder.head(), other.fences) == (head, fences)
    state.confirm_leadership()
    with pytest.raises(VersionNotFound):
        holder.log.updates(applied.version, applied.version + 1)


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
    tried = other.openable().check_open(member="trial")
    transaction = tried.transaction(tried.recovered[-1], author="ann")
    put_setting("tried")(transaction)
    tried.commit_transaction(transaction)
    reader = other.openable().open_read_only()
    assert reader.recovered[-1].version == state.recovered[-1].version
    assert "".join(dump_pieces(reader))
    assert stored() == before


def test_a_trial_without_a_catalog_is_not_found(member: LogMember) -> None:
    with pytest.raises(NotFound, match="open it to create one"):
        member.openable().check_open(member="trial")
    assert member.head() == NOTHING


def test_a_trial_restarts_when_a_node_trims_the_log_meanwhile(
    new_member: Callable[[], LogMember], monkeypatch: pytest.MonkeyPatch
) -> None:
    holder, other = new_member(), new_member()
    state = holder.open()
    frontier, left = BufferedLog.frontier, [1]

    def trimmed_meanwhile(log: BufferedLog) -> Frontier:
        if left:
            left.pop()
            transaction = state.transaction(state.recovered[-1], author="ann")
            put_setting("note")(transaction)
            assert state.compact(state.commit_transaction(transaction).version)
        return frontier(log)

    monkeypatch.setattr(BufferedLog, "frontier", trimmed_meanwhile)
    tried = other.openable().check_open(member="trial")
    assert tried.recovered[0].version == holder.log.frontier().since
    assert tried.recovered[-1].contents.get("setting", b"note") is not None


def test_a_buffered_log_enforces_the_rules_of_a_log(member: LogMember) -> None:
    token = member.open().token
    log = BufferedLog(member.log)
    fenced = OpenableState(log).edit(
        put_setting("a"), member="m", raise_fence=lambda *_: None, author="ann"
    )
    assert fenced is not None
    upper = log.frontier().upper
    update = log.updates(upper - 1, upper)[0]
    assert log.time_of(update) == update.time > member.log.updates(upper - 3, upper - 2)[0].time
    with pytest.raises(Fenced):
        log.append(upper, token, [replace(update, version=upper)])
    with pytest.raises(OutOfSync):
        log.append(upper + 1, fenced.token, [replace(update, version=upper + 1)])
    with pytest.raises(VersionNotFound):
        log.updates(1, upper + 1)
    with pytest.raises(UnsupportedOperation):
        log.compact(1, fenced.token)


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
    tried = editor.openable().check_open(member="trial")
    transaction = tried.transaction(tried.recovered[-1], author="ann")
    change(transaction)
    with pytest.raises(InvalidInput, match="at most 100000 are allowed"):
        tried.commit_transaction(transaction)
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
    with pytest.raises(NotFound, match="open it to create one"):
        edit(member, put_setting("note"))
    assert member.head() == NOTHING
