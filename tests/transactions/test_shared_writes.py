"""Calls of several clients in one SQL transaction."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any, NoReturn

import pytest

from strandline.errors import (
    DeadlineExceeded,
    Fenced,
    ObjectNotFound,
    Overloaded,
    Stopping,
    TransactionFinished,
    TransactionNotFound,
    Unavailable,
    UnknownOutcome,
    UnsupportedOperation,
)
from strandline.sql import change
from strandline.transactions import Behind, TransactionState, shared_writes
from strandline.transactions.shared_writes import Round, SharedCall, SharedWrites
from tests.cut_off_wakes import cut_off_a_wake
from tests.interrupts import LackOfMemory, is_interrupted
from tests.transactions.catalogs import new_catalog, new_table
from tests.transactions.stores import CANCELLATIONS, FLIGHTS, Store

PATIENCE = 60.0
NOBODY = 10**12
Call = SharedCall[Any]


@contextmanager
def together(store: Store) -> Iterator[Callable[[Call], Callable[[], Any]]]:
    """Execute the calls that are submitted in the block as one round when the block ends.

    Submitting a call returns a function that waits for its result.
    """
    begun, may_go_on = threading.Event(), threading.Event()

    def check() -> None:
        begun.set()
        assert may_go_on.wait(PATIENCE)

    first = store.transactions.beginning(1, user="first")
    first.check = check

    def submitted(call: Call) -> Callable[[], Any]:
        ended = threading.Event()
        call.submit(ended.set)

        def result() -> Any:
            assert ended.wait(PATIENCE)
            return call.result()

        return result

    firsts = submitted(first)
    try:
        assert begun.wait(PATIENCE)
        yield submitted
    finally:
        may_go_on.set()
    firsts()


def failing(store: Store, error: Exception, *, late: bool = False) -> Call:
    """Return a call that fails with ``error``, after it made a change if ``late``."""

    def stage(shared: Round, rows: object) -> NoReturn:
        if late:
            change(shared.connection, "DELETE FROM txn", ())
        raise error

    return SharedCall(stage, shared=store.transactions._shared, timeout=PATIENCE)


def writes(store: Store) -> int:
    statistics = store.database.statistics()
    return statistics.writes + statistics.unsynced_writes


def test_a_call_in_a_fork_of_a_process_that_writes_is_refused_at_once(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    with together(store), monkeypatch.context() as child:
        child.setattr("os.getpid", lambda: -1)
        with pytest.raises(UnsupportedOperation, match="before this process was forked"):
            store.transactions.begin(user="ann", timeout=1.0)


def test_calls_submitted_together_share_a_write_and_have_different_times(store: Store) -> None:
    transactions = store.transactions
    empty, writer = (store.begin() for _ in range(2))
    with together(store) as submitted:
        begun = submitted(transactions.beginning(2, user="ann"))
        committed = submitted(transactions.committing(empty))
        given = submitted(transactions.allocating(writer, FLIGHTS))
        begun_last = submitted(transactions.beginning(1, user="bob"))
        before = writes(store)
    (first, second), (last,) = begun(), begun_last()
    assert first.begin_time == second.begin_time < committed().commit_time < last.begin_time
    assert given() == {writer: 1}
    assert [t.txn_id for t in (first, second, last)] == [writer + 2, writer + 3, writer + 4]
    assert writes(store) == before + 2  # the write of the call that delayed them, and theirs
    assert transactions.get(empty) == committed()
    assert transactions.get(last.txn_id) == last


def test_a_refused_call_does_not_affect_the_others_of_its_round(store: Store) -> None:
    transactions = store.transactions
    aborted, writer, other = (store.begin() for _ in range(3))
    transactions.abort(aborted)
    with together(store) as submitted:
        calls = [
            submitted(transactions.committing(aborted)),
            submitted(transactions.committing(NOBODY)),
            submitted(transactions.committing(-1)),
            submitted(transactions.allocating(other, 77)),
        ]
        given = submitted(transactions.allocating(writer, FLIGHTS))
    for call, error in zip(
        calls,
        (TransactionFinished, TransactionNotFound, TransactionNotFound, ObjectNotFound),
        strict=True,
    ):
        with pytest.raises(error):
            call()
    assert given() == {writer: 1}
    assert transactions.write_id_pairs(writer) == ((FLIGHTS, 1),)


def test_a_commit_waits_for_the_disk_although_a_begin_shares_its_write(store: Store) -> None:
    empty, before = store.begin(), store.database.statistics().writes
    with together(store) as submitted:
        begun = submitted(store.transactions.beginning(1, user="ann"))
        committed = submitted(store.transactions.committing(empty))
    assert begun()
    assert committed()
    assert store.database.statistics().writes > before


@pytest.mark.parametrize("error", [ValueError("a defect"), Behind("not applied here")])
def test_a_call_that_succeeds_after_its_round_was_undone_has_no_error(
    store: Store, error: Exception
) -> None:
    attempts, caught_up = list[int](), threading.Event()
    store.catalogs.on_sync = caught_up.set

    def stage(shared: Round, rows: object) -> Callable[[], str]:
        attempts.append(len(attempts))
        if len(attempts) == 1:
            raise TransactionFinished("it was refused at first")
        return lambda: "written"

    def undo(shared: Round, rows: object) -> Callable[[], str]:
        if not caught_up.is_set():
            raise error
        return lambda: "written too"

    with together(store) as submitted:
        shared = store.transactions._shared
        call = submitted(SharedCall(stage, shared=shared, timeout=PATIENCE))
        submitted(SharedCall(undo, shared=shared, timeout=PATIENCE))
    assert call() == "written"


def test_refused_calls_change_nothing(store: Store) -> None:
    transactions = store.transactions
    before = store.contents()
    for call in (transactions.committing(NOBODY), transactions.allocating(NOBODY, FLIGHTS)):
        with pytest.raises(TransactionNotFound):
            call.run()
    assert store.contents() == before


@pytest.mark.parametrize("late", [False, True])
def test_a_call_that_fails_unexpectedly_does_not_undo_the_others_of_its_round(
    store: Store, late: bool
) -> None:
    empty = store.begin()
    with together(store) as submitted:
        begun = submitted(store.transactions.beginning(1, user="ann"))
        failed = submitted(failing(store, RuntimeError("planted"), late=late))
        committed = submitted(store.transactions.committing(empty))
    with pytest.raises(RuntimeError, match="planted"):
        failed()
    assert store.transactions.get(begun()[0].txn_id).state is TransactionState.OPEN
    assert store.transactions.get(empty).commit_time == committed().commit_time


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_waiting_calls_get_an_error_if_the_thread_ends_and_the_next_one_starts_it_again(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may lack memory. A node that serves clients then ends, but an embedded one lives on."""
    die = LackOfMemory()

    with together(store) as submitted:
        waiting = [submitted(store.transactions.beginning(1, user="ann")) for _ in range(2)]
        monkeypatch.setattr(SharedWrites, "_await_calls", die)
    for result in waiting:
        with pytest.raises(Unavailable, match="MemoryError"):
            result()
    die.join()
    monkeypatch.undo()
    with together(store) as submitted:
        begun = submitted(store.transactions.beginning(1, user="ann"))
    assert store.transactions.get(begun()[0].txn_id).state is TransactionState.OPEN


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_the_next_call_starts_the_thread_that_had_no_memory_to_end_the_waiting_calls(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    die = LackOfMemory(calls=2)
    with together(store) as submitted:
        waiting = submitted(store.transactions.beginning(1, user="ann"))
        monkeypatch.setattr(SharedWrites, "_await_calls", die)
        monkeypatch.setattr(SharedWrites, "_fail", die)
    die.join()
    monkeypatch.undo()
    assert store.transactions.begin(user="bob").state is TransactionState.OPEN
    assert waiting()[0].state is TransactionState.OPEN


def test_a_call_that_arrives_while_a_caller_executes_its_own_is_the_next_round(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_writes, "IDLE_SECONDS", 10 * PATIENCE)
    begun, waits, ended = threading.Event(), threading.Event(), threading.Event()
    news = store.transactions._shared._news
    wait = news.wait

    def noted(timeout: float | None = None) -> bool:
        waits.set()
        return wait(timeout)

    def check() -> None:
        begun.set()
        assert waits.wait(PATIENCE)  # until the thread that has the other call waits for the round

    monkeypatch.setattr(news, "wait", noted)
    own, other = (store.transactions.beginning(1, user=user) for user in ("ann", "bob"))
    own.check = check
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(own.run)
        assert begun.wait(PATIENCE)
        other.submit(ended.set)
        assert running.result(PATIENCE)
    assert ended.wait(PATIENCE)
    assert other.result()


def test_calls_for_one_transaction_take_effect_in_their_order(store: Store) -> None:
    txn_id, empty = store.begin(), store.begin()
    with together(store) as submitted:
        given = submitted(store.transactions.allocating(txn_id, FLIGHTS))
        again = submitted(store.transactions.allocating(txn_id, FLIGHTS))
        other = submitted(store.transactions.allocating(txn_id, CANCELLATIONS))
        not_empty = submitted(store.transactions.committing(txn_id))
        ends = [submitted(store.transactions.committing(empty)) for _ in range(2)]
    assert (given(), again(), other()) == ({txn_id: 1}, {txn_id: 1}, {txn_id: 1})
    assert not_empty() is None
    assert store.transactions.get(txn_id).state is TransactionState.OPEN
    assert ends[0]() == ends[1]()


def test_writes_staged_by_another_process_are_committed_with_the_transaction(
    store: Store,
) -> None:
    txn_id = store.begin()
    other_process = store.heard_by()
    with other_process.writing(txn_id, FLIGHTS) as step:
        assert step.write_id == 1
    assert store.transactions.is_unwritten(txn_id)
    committed = store.transactions.commit(txn_id)
    seen = store.transactions.write_ids(FLIGHTS)
    assert seen.valid(1)
    assert committed == store.transactions.get(txn_id)


def test_both_attempts_of_a_commit_share_its_timeout(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one finds that another process has staged writes."""
    txn_id = store.begin()
    store.heard_by().allocate([txn_id], FLIGHTS)
    timeouts: list[float] = []
    run = store.transactions._writes.run

    def noted(*arguments: Any, timeout: float, **options: Any) -> object:
        timeouts.append(timeout)
        return run(*arguments, timeout=timeout, **options)

    monkeypatch.setattr(store.transactions._writes, "run", noted)
    store.transactions.commit(txn_id, timeout=60)
    first, second = timeouts
    assert second < first < 60


def test_a_call_under_an_outdated_catalog_version_does_nothing(store: Store) -> None:
    txn_id = store.begin()
    store.catalogs.publish(new_table(FLIGHTS, "flights"))
    latest = store.catalogs.versions[-1].version
    before = store.contents()["txn"], store.contents()["txn_write_id"]
    old = latest - 1
    assert store.transactions.allocating(txn_id, FLIGHTS, under=old).run() is None
    assert store.transactions.committing(txn_id, under=old).run() is None
    assert (store.contents()["txn"], store.contents()["txn_write_id"]) == before
    assert store.transactions.allocating(txn_id, FLIGHTS, under=latest).run() == {txn_id: 1}


def test_calls_are_executed_one_by_one_if_a_catalog_becomes_active_between_them(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each call has its own time, so in one round some would begin under a wrong catalog."""
    with together(store) as submitted:
        begun = [submitted(store.transactions.beginning(1, user=user)) for user in ("ann", "bob")]
        monkeypatch.setattr(
            store.catalogs,
            "catalog_at",
            lambda connection, at: new_catalog(int(at) % 1000, time=at),
        )
        before = writes(store)
    for transactions in begun:
        (transaction,) = transactions()
        assert transaction.catalog_version == transaction.begin_time % 1000
    statistics = store.database.statistics()
    assert (
        writes(store) - statistics.failed_writes == before + 3
    )  # one for each, and the first call


def test_a_call_that_needs_no_catalog_does_not_wait_for_one(store: Store) -> None:
    transactions, catalogs, empty = store.transactions, store.catalogs, store.begin()
    committing = transactions.committing(empty)
    beginning = transactions.beginning(1, user="ann")
    beginning.check = lambda: catalogs.publish(new_table(FLIGHTS, "flights"), applied=False)
    at_sync: list[object] = []

    def note() -> None:
        at_sync.append((committing.has_ended, transactions.get(empty).state))
        catalogs.on_sync = None
        catalogs.catch_up(timeout=PATIENCE)

    catalogs.on_sync = note
    with together(store) as submitted:
        begun = submitted(beginning)
        committed = submitted(committing)
    assert committed() == transactions.get(empty)
    assert begun()[0].catalog_version == catalogs.versions[-1].version
    assert at_sync == [(True, TransactionState.COMMITTED)]


def test_a_call_does_not_wait_for_the_catalog_under_which_another_transaction_began(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That transaction began on another node, and this one has not applied the version yet."""
    transactions, catalogs = store.transactions, store.catalogs
    empty, writer = store.begin(), store.begin()
    committing = transactions.committing(empty)
    at_sync: list[bool] = []

    def catalog(version: int) -> NoReturn:
        raise Behind(f"version {version} is not applied here")

    def note() -> None:
        at_sync.append(committing.has_ended)
        monkeypatch.undo()

    monkeypatch.setattr(catalogs, "catalog", catalog)
    catalogs.on_sync = note
    with together(store) as submitted:
        given = submitted(transactions.allocating(writer, FLIGHTS))
        committed = submitted(committing)
    assert committed() == transactions.get(empty)
    assert given() == {writer: 1}
    assert at_sync == [True]


def test_a_call_is_counted_once_if_its_round_is_split_and_not_if_it_fails(store: Store) -> None:
    empty = store.begin()
    before = store.transactions.statistics()
    with together(store) as submitted:
        begun = submitted(store.transactions.beginning(1, user="ann"))
        failed = submitted(failing(store, RuntimeError("planted")))
        committed = submitted(store.transactions.committing(empty))
    assert begun()
    assert committed()
    with pytest.raises(RuntimeError):
        failed()
    counted = store.transactions.statistics()
    # With the call that delayed the others.
    assert counted.shared_calls - before.shared_calls == 3
    assert counted.rounds - before.rounds == 3


def test_a_call_that_begins_many_transactions_is_the_last_of_its_round(
    store: Store,
) -> None:
    """Other writers wait for the write lock as long as the whole round takes."""
    many = shared_writes.MAX_TOGETHER
    store.begin()  # reserves ids for the begins that follow
    with together(store) as submitted:
        calls = [
            submitted(store.transactions.beginning(count, user="ann")) for count in (1, many, 1)
        ]
        before = writes(store)
    assert [len(call()) for call in calls] == [1, many, 1]
    assert writes(store) == before + 3  # the write of the call that delayed them, and two of theirs


def test_a_caller_whose_timeout_passed_gets_an_error_and_its_call_is_not_executed(
    store: Store,
) -> None:
    with together(store), pytest.raises(DeadlineExceeded, match="nothing was changed"):
        store.transactions.begin(user="late", timeout=0.01)
    assert "late" not in {t.user for t in store.transactions.open_transactions(limit=10)}


def test_a_caller_whose_timeout_passes_during_its_round_gets_the_result(store: Store) -> None:
    queued, staged, passed = threading.Event(), threading.Event(), threading.Event()

    def stage(shared: Round, rows: object) -> Callable[[], str]:
        staged.set()
        assert passed.wait(PATIENCE)
        return lambda: "committed"

    class Slow(SharedCall[str]):
        def is_late(self) -> bool:
            return False  # the round takes it in time, however slow the machine is

        def late(self) -> DeadlineExceeded:
            assert staged.wait(PATIENCE)
            passed.set()
            return super().late()

        def on_end(self, ended: Callable[[], object]) -> None:
            super().on_end(ended)
            queued.set()

    call = Slow(stage, shared=store.transactions._shared, timeout=0.01)
    with ThreadPoolExecutor(1) as threads, together(store) as submitted:
        submitted(store.transactions.beginning(1, user="ann"))  # its round has time to write
        running = threads.submit(call.run)
        assert queued.wait(PATIENCE)
    assert running.result(PATIENCE) == "committed"


def test_a_call_submitted_without_waiting_also_fails_after_its_timeout(store: Store) -> None:
    with together(store) as submitted:
        late = submitted(store.transactions.beginning(1, user="late", timeout=0.0))
        begun = submitted(store.transactions.beginning(1, user="ann"))
    assert begun()
    with pytest.raises(DeadlineExceeded, match="nothing was changed"):
        late()


def test_calls_beyond_the_capacity_of_the_queue_are_refused(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_writes, "MAX_WAITING", 2)
    with together(store) as submitted:
        calls = [submitted(store.transactions.beginning(1, user="ann")) for _ in range(2)]
        with pytest.raises(Overloaded, match="nothing was done"):
            store.transactions.begin(user="bob")
    assert all(call() for call in calls)


def test_the_next_call_starts_the_thread_that_could_not_be_started_before(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", fail)
        with pytest.raises(RuntimeError, match="start new thread"):
            store.transactions.beginning(1, user="lost").submit(lambda: None)
    ended = threading.Event()
    call = store.transactions.beginning(1, user="ann")
    call.submit(ended.set)
    assert ended.wait(PATIENCE)
    assert call.result()
    assert [t.user for t in store.transactions.open_transactions(limit=10)] == ["ann"]


def test_the_next_call_starts_the_thread_again_after_it_was_idle(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_writes, "IDLE_SECONDS", 0.0)
    for user in ("ann", "bob"):
        ended = threading.Event()
        call = store.transactions.beginning(1, user=user)
        call.submit(ended.set)
        thread = store.transactions._shared._thread
        assert ended.wait(PATIENCE)
        assert call.result()
        if thread is not None:  # it has not ended yet
            thread.join(PATIENCE)


def test_calls_are_not_repeated_if_the_outcome_of_their_round_is_unknown(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    transactions, empty, writer = store.transactions, store.begin(), store.begin()
    committed_once = transactions._writes.run

    def lost(*arguments: Any, **options: Any) -> NoReturn:  # Any: as in the real method
        committed_once(*arguments, **options)
        raise UnknownOutcome("planted")

    beginning = transactions.beginning(1, user="bob")
    beginning.check = lambda: monkeypatch.setattr(transactions._writes, "run", lost)
    with together(store) as submitted:
        calls = [
            submitted(beginning),
            submitted(transactions.committing(empty)),
            submitted(transactions.allocating(writer, FLIGHTS)),
        ]
    for call in calls:
        with pytest.raises(UnknownOutcome):
            call()
    monkeypatch.undo()
    assert [t.user for t in transactions.open_transactions(limit=10)].count("bob") == 1
    assert transactions.commit(empty) == transactions.get(empty)
    assert transactions.allocate([writer], FLIGHTS) == {writer: 1}


def test_calls_that_wait_when_the_database_is_closed_get_stopping(store: Store) -> None:
    with pytest.raises(Stopping), together(store) as submitted:
        calls = [submitted(store.transactions.beginning(1, user="ann")) for _ in range(2)]
        store.database.close()
    for call in calls:
        with pytest.raises(Stopping):
            call()


def test_calls_of_a_fenced_process_are_not_executed(store: Store) -> None:
    empty = store.begin()
    before = store.contents()["txn"]
    store.fenced = True
    with pytest.raises(Fenced), together(store) as submitted:
        calls = [
            submitted(store.transactions.beginning(1, user="ann")),
            submitted(store.transactions.committing(empty)),
        ]
    for call in calls:
        with pytest.raises(Fenced):
            call()
    assert store.contents()["txn"] == before


def test_a_caller_that_is_interrupted_as_it_wakes_the_thread_delays_no_later_caller(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_writes, "IDLE_SECONDS", PATIENCE)
    transactions, ended = store.transactions, threading.Event()
    with together(store):
        pass
    interrupted = transactions.beginning(1, user="ann")
    cut_off_a_wake(transactions._shared._news, lambda: interrupted.submit(lambda: None))
    transactions.beginning(1, user="bob").submit(ended.set)
    assert ended.wait(10.0)


def test_after_a_caller_that_a_signal_handler_interrupted_the_next_call_is_executed(
    store: Store,
) -> None:
    """At each step of the caller, also between its locks."""

    def refuse() -> NoReturn:
        raise ObjectNotFound("refused")

    def run_refused_call() -> None:  # whose round does not write
        call = store.transactions.beginning(1, user="ann")
        call.check = refuse
        with suppress(ObjectNotFound):
            call.run()

    step = 0
    while is_interrupted(run_refused_call, at_step=step):
        step += 1
        (begun,) = store.transactions.beginning(1, user="bob", timeout=10.0).run()
        assert begun.user == "bob"
    assert step
