"""The suite about entries, waiting and closing can fail: each planted fault is found."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import pytest
from sqlalchemy import Connection

from strandline.metastorage import (
    Absent,
    Condition,
    Delete,
    Head,
    Operation,
    Put,
    ValueIs,
    prefix_end,
    sql_store,
)
from strandline.metastorage.etcd.chunks import CHUNK_BYTES
from strandline.metastorage.etcd.feed import ChangeFeed
from strandline.metastorage.etcd.gateway import EtcdGateway
from strandline.metastorage.etcd.invoke import Invoke
from strandline.metastorage.etcd.operations import Page
from strandline.metastorage.etcd.store import EtcdMetastorage
from strandline.metastorage.sql_store import SqlMetastorage
from strandline.sql import change, postgres_database
from strandline.sql.postgres_listener import PostgresListener
from tests.metastorage import test_conformance as entries
from tests.metastorage.conftest import LONG, MEETING
from tests.metastorage.teeth import Teeth, Tooth, waiters_are_missed_soon, wrap

STORES = (SqlMetastorage, EtcdMetastorage)
TEETH = Teeth()

# -- reading and writing -----------------------------------------------------------------------


@TEETH.found_by(
    entries.test_a_range_is_in_byte_order_and_half_open,
    "sqlite",
    "postgresql",
    complaint=r'range\("a.1", "a.2"\)',
)
def range_with_its_end(patch: pytest.MonkeyPatch) -> None:
    """A range includes its end key."""
    patch.setattr(sql_store, "_RANGE", sql_store._RANGE.replace("key < ?", "key <= ?"))


@TEETH.found_by(entries.test_a_range_is_in_byte_order_and_half_open, "etcd", complaint="limit=2")
def limit_forgotten(patch: pytest.MonkeyPatch) -> None:
    """A range is read to its end, without its limit."""
    wrap(
        patch,
        "pages",
        EtcdGateway,
        by=lambda real, self, *ends, limit: real(self, *ends, limit=None),
    )


@TEETH.found_by(
    entries.test_a_range_of_many_keys_is_complete,
    "etcd",
    complaint="keys.store. == names",
)
def only_the_first_page(patch: pytest.MonkeyPatch) -> None:
    """Only the first page of a range is read."""

    def first(real: Any, self: EtcdGateway, *arguments: Any, **named: Any) -> Page:
        page = real(self, *arguments, **named)
        return Page(page.pairs, False, page.revision)

    wrap(patch, "range", EtcdGateway, by=first)


@TEETH.found_by(
    entries.test_all_conditions_must_hold,
    "sqlite",
    "etcd",
    complaint="assert not store.invoke",
)
def only_the_first_condition(patch: pytest.MonkeyPatch) -> None:
    """Only the first condition is checked."""

    def invoke(real: Any, self: Any, conditions: Sequence[Condition], *branches: Any) -> Any:
        return real(self, conditions[:1], *branches)

    wrap(patch, "invoke", *STORES, by=invoke)


@TEETH.found_by(
    entries.test_a_condition_chooses_the_branch,
    "sqlite",
    complaint="succeeded is holds",
    condition=ValueIs("b", b""),
    holds=False,
)
def empty_is_absent(patch: pytest.MonkeyPatch) -> None:
    """An empty value counts as absent."""

    def holds(real: Any, condition: Condition, now: object) -> Any:
        if isinstance(condition, ValueIs) and not condition.value:
            condition = Absent(condition.key)
        return real(condition, now)

    wrap(patch, "_condition_query", sql_store, by=holds)


@TEETH.found_by(
    entries.test_an_invoke_of_many_conditions_and_operations_is_atomic,
    "sqlite",
    "etcd",
    complaint="keys.store. == names",
)
def refused_but_begun(patch: pytest.MonkeyPatch) -> None:
    """A refused invoke executes its first operation."""

    def invoke(real: Any, self: Any, conditions: Any, on_success: Any, on_failure: Any = ()) -> Any:
        outcome = real(self, conditions, on_success, on_failure)
        if not outcome.succeeded:
            real(self, [], on_success[:1])
        return outcome

    wrap(patch, "invoke", *STORES, by=invoke)


@TEETH.found_by(
    entries.test_a_key_has_the_revision_and_time_of_the_invoke_that_wrote_it,
    "postgresql",
    "etcd",
    complaint=r"== \(True, 1, 2\)",
)
@TEETH.found_by(
    entries.test_an_invoke_with_an_invalid_operation_is_refused_as_a_whole,
    "sqlite",
    complaint="keys.store. == ",
    operations=[Put("é", b"")],
)
def one_after_the_other(patch: pytest.MonkeyPatch) -> None:
    """Each operation is written separately."""

    def invoke(real: Any, self: Any, conditions: Any, on_success: Any, on_failure: Any = ()) -> Any:
        outcome = real(self, conditions, on_success[:1], on_failure)
        for operation in on_success[1:] if outcome.succeeded else ():
            outcome = real(self, [], [operation])
        return outcome

    wrap(patch, "invoke", *STORES, by=invoke)


@TEETH.found_by(
    entries.test_deletes_remove_existing_keys_and_no_others, "sqlite", complaint="keys.store. == "
)
def delete_by_prefix(patch: pytest.MonkeyPatch) -> None:
    """A delete of a key also deletes the keys that have it as a prefix."""
    real = sql_store._delete

    def delete(connection: Connection, start: str, end: str, head: Head) -> int:
        return real(connection, start, prefix_end(start) if end == start + "\1" else end, head)

    patch.setattr(sql_store, "_delete", delete)


@TEETH.found_by(
    entries.test_an_invoke_that_changes_nothing_does_not_change_the_revision,
    "postgresql",
    complaint="after.revision",
    conditions=[],
    operations=[Delete("none")],
)
def every_operation_moves_the_head(patch: pytest.MonkeyPatch) -> None:
    """A delete that finds nothing also makes a revision."""
    real = sql_store._delete
    patch.setattr(sql_store, "_delete", lambda *arguments: max(1, real(*arguments)))


@TEETH.found_by(
    entries.test_writing_the_same_value_again_is_a_write,
    "sqlite",
    "etcd",
    complaint="revision == 2",
)
def equal_values_are_not_written(patch: pytest.MonkeyPatch) -> None:
    """A put of an unchanged value is left out."""

    def invoke(real: Any, self: Any, conditions: Any, on_success: Any, on_failure: Any = ()) -> Any:
        def is_new(operation: Operation) -> bool:
            if not isinstance(operation, Put):
                return True
            entry = self.get(operation.key)
            return entry is None or entry.value != operation.value

        return real(self, conditions, [*filter(is_new, on_success)], on_failure)

    wrap(patch, "invoke", *STORES, by=invoke)


@TEETH.found_by(
    entries.test_a_value_of_twenty_megabytes_is_written_compared_and_deleted_as_one,
    "etcd",
    complaint="do not add up",
)
def last_chunk_lost(patch: pytest.MonkeyPatch) -> None:
    """The last, shorter chunk of a large value is not written."""

    def put(real: Any, self: EtcdGateway, key: bytes, value: bytes) -> None:
        if len(value) == CHUNK_BYTES:
            real(self, key, value)

    wrap(patch, "put", EtcdGateway, by=put)


# -- waiting -----------------------------------------------------------------------------------


def write_once_a_thread_waits(patch: pytest.MonkeyPatch) -> None:
    """Begin no write before a thread has looked, and waits for news that come after its look."""
    waits = threading.Event()

    def wait_for_notification(real: Any, self: PostgresListener, after: int, **named: Any) -> Any:
        with self._moved:
            if self._listens and self._news == after:
                waits.set()
        return real(self, after, **named)

    def wait_for_message(
        real: Any, self: ChangeFeed, *given: Any, generation: int, **named: Any
    ) -> Any:
        with self._moved:
            if generation and self._generation == generation:
                waits.set()
        return real(self, *given, generation=generation, **named)

    def invoke(real: Any, *given: Any) -> Any:
        assert waits.wait(MEETING), "no thread waits"
        return real(*given)

    wrap(patch, "wait", PostgresListener, by=wait_for_notification)
    wrap(patch, "wait", ChangeFeed, by=wait_for_message)
    wrap(patch, "invoke", *STORES, by=invoke)


@TEETH.found_by(
    entries.test_a_delete_is_a_change_under_its_own_prefix_only,
    "sqlite",
    "postgresql",
    "etcd",
    complaint=r'assert wait\(node, "a.", 1\)',
    operation=Delete("a.2"),
)
def silent_deletes(patch: pytest.MonkeyPatch) -> None:
    """A delete is not recorded, so that a waiter misses it."""

    def delete(connection: Connection, start: str, end: str, _: Head) -> int:
        statement = "DELETE FROM metastorage WHERE key >= ? AND key < ?"
        return change(connection, statement, (start, end))

    patch.setattr(sql_store, "_delete", delete)

    def bookkeeping(
        real: Any, self: Invoke, head: Head, touched: Sequence[str], _: object, kept: int
    ) -> Any:
        put = {put.key for put in self.puts(succeeded=True)}
        return real(self, head, [key for key in touched if key in put], [], kept)

    wrap(patch, "_bookkeeping", Invoke, by=bookkeeping)


@TEETH.found_by(
    entries.test_a_wait_for_a_past_change_returns_at_once,
    "sqlite",
    "postgresql",
    "etcd",
    complaint=r'assert wait\(node, "a.", 0\)',
)
def waits_from_now_on(patch: pytest.MonkeyPatch) -> None:
    """A wait reports only changes made after the call, whatever the caller has seen."""

    def wait(real: Any, self: Any, prefix: str, after: int, *, timeout: float) -> Any:
        return real(self, prefix, max(after, self.revision()), timeout=timeout)

    wrap(patch, "wait_for_change", *STORES, by=wait)


@TEETH.found_by(
    entries.test_a_wait_for_a_past_change_returns_at_once,
    "sqlite",
    complaint=r'assert not wait\(node, "a.", 1\)',
)
def everything_is_news(patch: pytest.MonkeyPatch) -> None:
    """A waiter compares the revision only, and not what was changed."""

    def look(real: Any, *given: Any) -> Any:
        revision, _ = real(*given)
        return revision, True

    wrap(patch, "_look", SqlMetastorage, by=look)


@TEETH.found_by(
    entries.test_a_waiter_is_woken_only_by_changes_under_its_prefix,
    "postgresql",
    complaint=r"assert waiting.result\(\)",
)
def unannounced(patch: pytest.MonkeyPatch) -> None:
    """A commit moves no number, and no notification is sent for it."""
    patch.setattr(postgres_database, "_NEWS", "SELECT 1")
    patch.setattr(PostgresListener, "count_commit", lambda _: None)
    write_once_a_thread_waits(patch)


@TEETH.found_by(
    entries.test_a_waiter_is_woken_only_by_changes_under_its_prefix,
    "etcd",
    complaint=r"assert not futures.wait",
)
def wakes_for_any_key(patch: pytest.MonkeyPatch) -> None:
    """Every message of the watch wakes all waiters."""

    def wait(real: Any, self: ChangeFeed, _start: str, _end: str, *after: int, **named: Any) -> Any:
        return real(self, "", "\x7f", *after, **named)

    wrap(patch, "wait", ChangeFeed, by=wait)
    write_once_a_thread_waits(patch)
    patch.setattr(entries, "AWHILE", LONG)


@TEETH.found_by(
    entries.test_a_follower_sees_every_state_that_lasts_until_it_reads,
    "postgresql",
    complaint=r"assert hears",
)
def listens_after_the_look(patch: pytest.MonkeyPatch) -> None:
    """A waiter checks, and begins to listen when the next change has been announced."""

    def wait(real: Any, self: PostgresListener, after: int, *, timeout: float) -> Any:
        real(self, after, timeout=timeout)
        return real(self, self.news(), timeout=timeout)

    wrap(patch, "wait", PostgresListener, by=wait)


@TEETH.found_by(
    entries.test_a_closed_store_refuses_calls_and_ends_waits,
    "etcd",
    complaint="assert futures.wait",
)
def left_at_the_end(patch: pytest.MonkeyPatch) -> None:
    """Waiters are not told that the store is closed."""

    def close(self: ChangeFeed) -> None:
        if self._thread is not None:
            self._thread.join()
        self._closed = True

    patch.setattr(ChangeFeed, "close", close)
    write_once_a_thread_waits(patch)


@TEETH.found_by(
    entries.test_statistics_count_the_calls,
    "sqlite",
    "etcd",
    complaint="counted.refused",
)
def only_calls_are_counted(patch: pytest.MonkeyPatch) -> None:
    """The outcome of a call is not counted."""

    def count(real: Any, self: Any, what: str) -> None:
        if what != "refused":
            real(self, what)

    wrap(patch, "_count", *STORES, by=count)


@pytest.mark.teeth
@pytest.mark.parametrize(("kind_name", "tooth"), TEETH.cases())
def test_the_suite_about_entries_finds_a_planted_fault(
    kind_name: str, tooth: Tooth, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiters_are_missed_soon(monkeypatch)
    tooth.bite(request)
