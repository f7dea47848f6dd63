"""Catalogs of older and newer releases: what is migrated, refused, and left unchanged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from strandline.durable import CatalogTransaction, DurableCatalogState, migrations
from strandline.durable.collections import COLLECTIONS
from strandline.durable.migrations import (
    CONTENT,
    FORMAT,
    MIGRATE,
    Migration,
    NeedsMigration,
    format_of,
)
from strandline.durable.state import ENVIRONMENT
from strandline.errors import CorruptData, Fenced, IncompatibleFormat
from strandline.model.descriptors import ConfigEntry, FenceEntry, Setting
from tests.conftest import LogMember

KNOWN = len(migrations.MIGRATIONS)


@pytest.fixture
def two_more(monkeypatch: pytest.MonkeyPatch) -> list[Migration]:
    """Patch the program into a later release, which has two more steps."""

    def put(name: str) -> Callable[[CatalogTransaction], None]:
        return lambda transaction: transaction.put(Setting(name, "done"))

    later = [*migrations.MIGRATIONS, Migration("one", put("one")), Migration("two", put("two"))]
    monkeypatch.setattr(migrations, "MIGRATIONS", later)
    return later


def set_format(state: DurableCatalogState, text: str) -> None:
    transaction = state.transaction(state.recovered[-1], author="system")
    with transaction.entry("configure", {}):
        transaction.put(ConfigEntry(FORMAT, text))
    state.commit_transaction(transaction)


def test_a_new_catalog_has_the_format_of_the_release(member: LogMember) -> None:
    contents = member.open().recovered[-1].contents
    assert format_of(contents) == KNOWN > 0


def test_each_missing_step_is_its_own_version_after_the_fence(
    member: LogMember, request: pytest.FixtureRequest
) -> None:
    before = member.open()
    request.getfixturevalue("two_more")
    state = member.open()
    last = before.recovered[-1].version
    updates = state.log.updates(last + 1, state.recovered[-1].version + 1)
    assert [(u.entries[0].verb, u.entries[0].arguments.get("step")) for u in updates] == [
        ("fence", None),
        (MIGRATE, "one"),
        (MIGRATE, "two"),
    ]
    contents = state.recovered[-1].contents
    assert format_of(contents) == KNOWN + 2
    assert {stored.name for stored in contents.objects("setting")} == {CONTENT, "one", "two"}
    again = member.join()
    assert again.recovered[-1].version == state.recovered[-1].version


def test_a_step_may_change_objects_of_the_other_kinds(
    member: LogMember, monkeypatch: pytest.MonkeyPatch
) -> None:
    def step(transaction: CatalogTransaction) -> None:
        transaction.put_all(
            replace(stored.value, comment="migrated")
            for stored in transaction.contents.objects("schema")
        )

    member.open()
    monkeypatch.setattr(migrations, "MIGRATIONS", [*migrations.MIGRATIONS, Migration("one", step)])
    contents = member.open().recovered[-1].contents
    assert {stored.value.comment for stored in contents.objects("schema")} == {"migrated"}


@pytest.mark.parametrize("how", ["join", "open_read_only"])
def test_a_catalog_that_needs_migration_cannot_be_joined_or_read(
    member: LogMember, how: str, request: pytest.FixtureRequest
) -> None:
    member.open()
    request.getfixturevalue("two_more")
    head = member.head()
    with pytest.raises(NeedsMigration, match="strandline serve"):
        member.join() if how == "join" else member.openable().open_read_only()
    assert member.head() == head


@pytest.mark.parametrize("how", ["open", "join", "open_read_only", "check_open"])
def test_a_catalog_of_a_newer_format_is_refused_and_its_holder_is_not_fenced(
    new_member: Callable[[], LogMember], how: str, monkeypatch: pytest.MonkeyPatch, two_more: object
) -> None:
    holder, other = new_member().open(), new_member()
    head = other.head()
    monkeypatch.setattr(migrations, "MIGRATIONS", migrations.MIGRATIONS[:KNOWN])
    ways: dict[str, Callable[[], object]] = {
        "open": other.open,
        "join": other.join,
        "open_read_only": other.openable().open_read_only,
        "check_open": other.openable().check_open,
    }
    with pytest.raises(IncompatibleFormat, match="a newer release has opened it"):
        ways[how]()
    assert (other.head(), other.fences) == (head, [])
    holder.confirm_leadership()


def test_a_catalog_with_a_newer_content_version_is_refused(
    member: LogMember, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as later:
        later.setattr(migrations, "CONTENT_VERSION", migrations.CONTENT_VERSION + 1)
        holder = member.open()
    head = member.head()
    for refused in (member.open, member.join, member.openable().open_read_only):
        with pytest.raises(IncompatibleFormat, match=r"content version \d+, but this release"):
            refused()
    assert member.head() == head
    holder.confirm_leadership()


def test_a_trial_migrates_without_changing_the_log(
    new_member: Callable[[], LogMember], request: pytest.FixtureRequest
) -> None:
    holder = new_member().open()
    request.getfixturevalue("two_more")
    other = new_member()
    head = other.head()
    assert format_of(other.openable().check_open()) == KNOWN + 2
    assert other.head() == head
    holder.confirm_leadership()


def test_the_next_opener_continues_a_migration_that_crashed_between_two_steps(
    member: LogMember, two_more: list[Migration], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migrations, "MIGRATIONS", two_more[:KNOWN])
    member.open()

    def crash(_: CatalogTransaction) -> None:
        raise KeyError("power cut")

    monkeypatch.setattr(migrations, "MIGRATIONS", [*two_more[: KNOWN + 1], Migration("two", crash)])
    with pytest.raises(KeyError):
        member.open()
    monkeypatch.setattr(migrations, "MIGRATIONS", two_more)
    contents = member.open().recovered[-1].contents
    assert format_of(contents) == KNOWN + 2
    assert {stored.name for stored in contents.objects("setting")} == {CONTENT, "one", "two"}


@pytest.mark.parametrize("how", ["change", "delete", "fence"])
def test_a_migration_that_changes_what_every_release_must_read_is_not_committed(
    member: LogMember, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = member.open().recovered[-1]

    def step(transaction: CatalogTransaction) -> None:
        transaction.put(Setting("added", "done"))
        if how == "change":
            transaction.put(Setting(CONTENT, "0"))
        elif how == "delete":
            transaction.delete("config", ENVIRONMENT)
        else:
            transaction.put(FenceEntry("catalog", 7, 7))

    later = [*migrations.MIGRATIONS, Migration("wrong", step)]
    with monkeypatch.context() as patch:
        patch.setattr(migrations, "MIGRATIONS", later)
        refusal = r"'wrong' changes .* may only add"
        with pytest.raises(RuntimeError, match=refusal):
            member.openable().check_open()
        with pytest.raises(RuntimeError, match=refusal):
            member.open()
    after = member.join().recovered[-1]
    assert after.version == before.version + 1  # the epoch of the failed opening
    assert after.contents.get("setting", b"added") is None
    assert format_of(after.contents) == KNOWN


def test_an_opener_overtaken_during_its_migration_is_fenced(
    new_member: Callable[[], LogMember], two_more: list[Migration], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = new_member(), new_member()
    monkeypatch.setattr(migrations, "MIGRATIONS", two_more[:KNOWN])
    first.open()
    overtaken: list[DurableCatalogState] = []

    def overtake(transaction: CatalogTransaction) -> None:
        if not overtaken:
            monkeypatch.setattr(migrations, "MIGRATIONS", two_more)
            overtaken.append(second.open())
        transaction.put(Setting("one", "late"))

    monkeypatch.setattr(migrations, "MIGRATIONS", [*two_more[:KNOWN], Migration("one", overtake)])
    with pytest.raises(Fenced):
        first.open()
    (holder,) = overtaken
    holder.confirm_leadership()
    note = second.join().recovered[-1].contents.get("setting", b"one")
    assert note is not None
    assert note.value.value == "done"


@pytest.mark.parametrize("text", ["x", "-1", "", "1.0"])
def test_a_format_that_is_not_a_number_is_corrupt(member: LogMember, text: str) -> None:
    set_format(member.open(), text)
    with pytest.raises(CorruptData, match=FORMAT):
        member.join()


@pytest.mark.parametrize("how", ["join", "open", "check_open", "open_read_only", "is_initialized"])
def test_an_object_kind_of_a_newer_release_is_refused_with_its_name(
    member: LogMember, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = member.open()
    monkeypatch.delitem(COLLECTIONS, "zone")
    head = member.head()
    openable = member.openable()
    calls: dict[str, Callable[[], object]] = {
        "join": member.join,
        "open": member.open,
        "check_open": openable.check_open,
        "open_read_only": openable.open_read_only,
        "is_initialized": openable.is_initialized,
    }
    with pytest.raises(IncompatibleFormat, match=r"'zone', which .* a newer release wrote them"):
        calls[how]()
    assert member.head() == head
    state.confirm_leadership()
