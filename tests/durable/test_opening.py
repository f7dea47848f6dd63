"""Trying to open a catalog, and editing one by hand in the step that takes a new epoch."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from strandline.durable import CatalogTransaction, DurableCatalogState, OpenableState
from strandline.durable.buffered_log import BufferedLog
from strandline.errors import Fenced, NotFound, OutOfSync, UnsupportedOperation, VersionNotFound
from strandline.model.descriptors import Setting
from tests.conftest import Member


def put_setting(name: str, value: str = "x") -> Callable[[CatalogTransaction], None]:
    def change(transaction: CatalogTransaction) -> None:
        with transaction.entry("debug_edit", {"object": f"setting {name}"}):
            transaction.put(Setting(name, value))

    return change


def edit(
    member: Member, change: Callable[[CatalogTransaction], None]
) -> DurableCatalogState | None:
    return member.openable().edit(
        change,
        member="editor",
        raise_fence=lambda token, environment: member.fences.append(token),
        author="ann",
    )


def test_a_trial_opens_as_in_earnest_and_leaves_no_trace(new_member: Callable[[], Member]) -> None:
    holder, other = new_member(), new_member()
    state = holder.open()
    revision, fences = holder.store.revision(), list(other.fences)
    tried = other.openable().check_open(member="trial")
    assert tried.token.epoch == state.token.epoch + 1
    transaction = tried.transaction(tried.recovered[-1], author="ann")
    put_setting("note")(transaction)
    applied = tried.commit_transaction(transaction)
    assert [u.version for u in tried.updates_after(tried.recovered[-1])] == [applied.version]
    assert applied.contents.get("setting", b"note") is not None
    assert len(list(tried.log.scan("audit_event", 1, applied.version + 1))) == 2
    assert (holder.store.revision(), other.fences) == (revision, fences)
    state.confirm_leadership()
    with pytest.raises(VersionNotFound):
        holder.log.updates(applied.version, applied.version + 1)


def test_there_is_no_trial_without_a_catalog(member: Member) -> None:
    with pytest.raises(NotFound, match="open it to create one"):
        member.openable().check_open(member="trial")
    assert member.store.revision() == 0


def test_a_buffer_keeps_the_rules_of_a_log(member: Member) -> None:
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
        log.append(upper, token, [update])
    with pytest.raises(OutOfSync):
        log.append(upper + 1, fenced.token, [update])
    with pytest.raises(VersionNotFound):
        log.updates(1, upper + 1)
    with pytest.raises(UnsupportedOperation):
        log.compact(1, fenced.token)


def test_an_edit_fences_every_holder_in_the_same_step(new_member: Callable[[], Member]) -> None:
    holder, editor = new_member().open(), new_member()
    state = edit(editor, put_setting("note"))
    assert state is not None
    assert state.token.epoch == holder.token.epoch + 1
    assert editor.fences == [state.token]
    last = state.recovered[-1].version
    assert [u.entries[0].verb for u in state.log.updates(last - 1, last + 1)] == [
        "fence",
        "debug_edit",
    ]
    with pytest.raises(Fenced):
        holder.confirm_leadership()


def test_an_edit_that_fails_or_changes_nothing_leaves_the_epoch(
    new_member: Callable[[], Member],
) -> None:
    holder, editor = new_member(), new_member()
    state = holder.open()
    assert edit(editor, put_setting("note")) is not None
    state = holder.join()
    revision = holder.store.revision()
    fences = list(editor.fences)
    assert edit(editor, put_setting("note")) is None

    def fails(transaction: CatalogTransaction) -> None:
        put_setting("other")(transaction)
        transaction.delete("schema", 999)

    with pytest.raises(NotFound):
        edit(editor, fails)
    assert (holder.store.revision(), editor.fences) == (revision, fences)
    state.confirm_leadership()


def test_an_edit_is_made_on_what_is_there_when_it_lands(new_member: Callable[[], Member]) -> None:
    holder, editor = new_member().open(), new_member()
    seen: list[int] = []

    def change(transaction: CatalogTransaction) -> None:
        seen.append(transaction.version)
        if len(seen) == 1:  # a holder commits between the look and the append
            other = holder.transaction(holder.recovered[-1], author="bob")
            put_setting("theirs")(other)
            holder.commit_transaction(other)
        put_setting("ours")(transaction)

    state = edit(editor, change)
    assert state is not None
    assert len(seen) == 4  # a trial and the real one, twice
    contents = state.recovered[-1].contents
    assert {stored.name for stored in contents.objects("setting")} == {"theirs", "ours"}


def test_without_a_catalog_there_is_nothing_to_edit(member: Member) -> None:
    with pytest.raises(NotFound, match="open it to create one"):
        edit(member, put_setting("note"))
    assert member.store.revision() == 0
