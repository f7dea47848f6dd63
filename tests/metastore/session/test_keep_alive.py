from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn
from zlib import crc32

import pytest

from strandline.catalog.commands import ColumnDefinition, CreateTable, TableDefinition
from strandline.condition import Condition
from strandline.config import Settings
from strandline.errors import (
    InvalidInput,
    ObjectNotFound,
    ProtocolError,
    StrandlineError,
    TransactionFinished,
    Unavailable,
    UnknownOutcome,
    UnsupportedOperation,
    WriteConflict,
)
from strandline.metastore.interface import ResolvedTable
from strandline.metastore.session import LocalSession, file_lists
from strandline.metastore.session.keep_alive import BEATS, KeepAlive, transaction_scope
from strandline.metastore.store.rows import DataFile
from strandline.model.types import BIGINT
from strandline.node import Node
from strandline.transactions import Transaction, TransactionState
from tests.conftest import ManualWall
from tests.metastore.snapshots import paths_of

TIMEOUT_MS = 300
"""The transaction timeout of the `quick` node."""
WAIT = 60.0


class Steps:
    """The monotonic clock, which moves by a short step at most from one reading to the next.

    So no transaction is lost because a thread, or the machine, stands still for a while.
    """

    def __init__(self) -> None:
        self._real = self._shown = time.monotonic()

    def __call__(self) -> float:
        before, self._real = self._real, time.monotonic()
        self._shown += min(self._real - before, TIMEOUT_MS / 12_000)
        return self._shown


class Watched(LocalSession):
    """A session whose heartbeats a test can count and make fail."""

    def __init__(self, node: Node) -> None:
        super().__init__(node.metastore, user="ann")
        self.beaten = threading.Semaphore(0)
        self.beaten_ids: list[int] = []
        self.before_beat: Callable[[], None] = lambda: None

    def heartbeat(self, txn_id: int) -> None:
        self.beaten_ids.append(txn_id)
        try:
            self.before_beat()
            super().heartbeat(txn_id)
        finally:
            self.beaten.release()

    def wait_for_beats(self, count: int) -> None:
        for _ in range(count):
            assert self.beaten.acquire(timeout=WAIT)


@pytest.fixture(scope="module")
def quick_wall() -> ManualWall:
    return ManualWall()


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory, quick_wall: ManualWall) -> Iterator[Node]:
    """A node where transactions time out soon, by a clock that only a test moves."""
    settings = Settings(transaction_timeout_ms=TIMEOUT_MS)
    folder = tmp_path_factory.mktemp("quick")
    with Node.open(folder, settings=settings, wall=quick_wall) as opened:
        yield opened


@pytest.fixture
def session(node: Node) -> Watched:
    return Watched(node)


@pytest.fixture
def quick_session(quick: Node, monkeypatch: pytest.MonkeyPatch) -> Watched:
    clock = SimpleNamespace(monotonic=Steps())
    monkeypatch.setattr("strandline.metastore.session.keep_alive.time", clock)
    return Watched(quick)


@pytest.fixture
def table(session: Watched, request: pytest.FixtureRequest) -> ResolvedTable:
    definition = TableDefinition(
        name=request.node.name, columns=(ColumnDefinition("k", BIGINT),), transactional=True
    )
    session.execute(CreateTable(schema="s", definition=definition))
    return session.table(f"s.{definition.name}")


@pytest.fixture
def table_id(table: ResolvedTable) -> int:
    return table.descriptor.id


def data(path: str) -> DataFile:
    return DataFile(file_id=crc32(path.encode()) >> 12, path=path, rows=10, bytes=100)


def test_a_block_that_ends_normally_commits_its_transaction(
    session: Watched, table: ResolvedTable
) -> None:
    with transaction_scope(session) as transaction:
        write_id = transaction.stage(table.descriptor.id, add=[data("a")])
        assert transaction.open([table.name]).write_ids_of(table.name).valid(write_id)
        assert paths_of(session, table.name) == []
    assert transaction.state is TransactionState.COMMITTED
    assert transaction.transaction == session.transaction(transaction.txn_id)
    assert paths_of(session, table.name) == ["a"]


def test_a_block_that_raises_aborts_its_transaction(session: Watched, table_id: int) -> None:
    with pytest.raises(KeyboardInterrupt), transaction_scope(session) as transaction:
        transaction.stage(table_id, add=[data("a")])
        raise KeyboardInterrupt
    assert transaction.state is TransactionState.ABORTED
    assert session.transaction(transaction.txn_id).state is TransactionState.ABORTED


def test_a_block_may_end_its_transaction_itself(
    session: Watched, table: ResolvedTable, table_id: int
) -> None:
    with transaction_scope(session) as first:
        first.stage(table_id, add=[data("a")])
        first.abort()
    with pytest.raises(ZeroDivisionError), transaction_scope(session) as second:
        second.stage(table_id, add=[data("b")])
        second.commit()
        _ = 1 / 0
    assert (first.state, second.state) == (TransactionState.ABORTED, TransactionState.COMMITTED)
    assert paths_of(session, table.name) == ["b"]


def test_a_conflict_at_commit_is_raised_at_the_end_of_the_block(
    session: Watched, table_id: int
) -> None:
    with transaction_scope(session) as before:
        before.stage(table_id, add=[data("a")])
    with pytest.raises(WriteConflict), transaction_scope(session) as loser:
        loser.stage(table_id, remove=["a"])
        with transaction_scope(session) as winner:
            winner.stage(table_id, remove=["a"])
    assert session.transaction(loser.txn_id).state is TransactionState.ABORTED


@pytest.mark.parametrize("is_error", [False, True])
def test_a_process_that_was_forked_in_a_block_does_not_end_its_transaction(
    session: Watched, monkeypatch: pytest.MonkeyPatch, is_error: bool
) -> None:
    with (
        KeepAlive(session) as keep_alive,
        monkeypatch.context() as of_child,
        pytest.raises(SystemExit) if is_error else nullcontext(),
        transaction_scope(session, keep_alive=keep_alive) as transaction,
    ):
        of_child.setattr("os.getpid", lambda: -1)
        of_child.setattr(session, "commit", pytest.fail)
        of_child.setattr(session, "abort", pytest.fail)
        keep_alive.stop()  # the thread, and perhaps the lock that it had, is the parent's
        if is_error:
            sys.exit()
    assert keep_alive.statistics().watched == 1
    assert session.abort(transaction.txn_id).state is TransactionState.ABORTED


def test_a_process_that_was_forked_during_a_stage_is_refused_and_does_not_wait_for_its_end(
    session: Watched, table_id: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with transaction_scope(session) as transaction, monkeypatch.context() as of_child:
        of_child.setattr("os.getpid", lambda: -1)
        of_child.setattr(transaction, "_staging", "a lock of a thread that does not run")
        for call in (lambda: transaction.stage(table_id, add=[data("a")]), transaction.commit):
            with pytest.raises(UnsupportedOperation, match="before this process was forked"):
                call()


def test_a_read_only_block_has_a_read_only_transaction(session: Watched) -> None:
    with transaction_scope(session, read_only=True) as transaction:
        assert transaction.transaction.read_only


def test_a_commit_whose_outcome_is_unknown_is_not_aborted(
    session: Watched, table_id: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(txn_id: int) -> Transaction:
        raise UnknownOutcome("the node is away")

    monkeypatch.setattr(session, "commit", unknown)
    with (
        KeepAlive(session) as keep_alive,
        pytest.raises(UnknownOutcome),
        transaction_scope(session, keep_alive=keep_alive) as transaction,
    ):
        transaction.stage(table_id, add=[data("a")])
    assert transaction.commit_is_unknown
    assert session.transaction(transaction.txn_id).state is TransactionState.OPEN
    assert keep_alive.statistics().watched == 0  # it times out if it was not committed


def test_a_transaction_that_is_kept_alive_outlives_its_timeout(
    quick: Node, quick_wall: ManualWall, quick_session: Watched
) -> None:
    def pass_time() -> None:
        quick_wall.now += TIMEOUT_MS // BEATS

    quick_session.before_beat = pass_time
    with transaction_scope(quick_session) as transaction:
        quick_session.wait_for_beats(7)  # two timeouts
        quick.transactions.expire()
        assert quick_session.transaction(transaction.txn_id).state is TransactionState.OPEN
    assert transaction.state is TransactionState.COMMITTED


def test_one_keep_alive_serves_many_transactions(quick_session: Watched) -> None:
    with KeepAlive(quick_session) as keep_alive:
        with (
            transaction_scope(quick_session, keep_alive=keep_alive) as one,
            transaction_scope(quick_session, keep_alive=keep_alive) as other,
        ):
            assert keep_alive.statistics().watched == 2
            names = [thread.name for thread in threading.enumerate()]
            assert names.count("keep-alive") == 1
            quick_session.wait_for_beats(4)
        assert set(quick_session.beaten_ids) == {one.txn_id, other.txn_id}
        assert keep_alive.statistics().watched == 0
    assert keep_alive.statistics().beats >= 4
    assert keep_alive._thread not in threading.enumerate()


def finds_a_loss(keep_alive: KeepAlive) -> bool:
    """Wait until a heartbeat has found that a transaction is lost; return False if none did."""
    with keep_alive._changed:
        return keep_alive._changed.wait_for(lambda: keep_alive._lost > 0, timeout=WAIT)


def test_the_next_use_of_an_aborted_transaction_raises_the_reason(quick_session: Watched) -> None:
    with (
        pytest.raises(TransactionFinished, match="aborted"),
        KeepAlive(quick_session) as keep_alive,
        transaction_scope(quick_session, keep_alive=keep_alive) as transaction,
    ):
        quick_session.abort(transaction.txn_id)
        assert finds_a_loss(keep_alive)
        transaction.open([])


def test_the_first_use_after_a_pause_finds_out_that_the_transaction_was_aborted(
    quick_session: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    clock = SimpleNamespace(monotonic=lambda: now[0])
    monkeypatch.setattr("strandline.metastore.session.keep_alive.time", clock)
    keep_alive = KeepAlive(quick_session)
    keep_alive.stop()  # its thread is not faster than the use
    begun = quick_session.begin()
    keep_alive.watch(begun)
    for _ in range(2):
        now[0] += TIMEOUT_MS / 1000 / BEATS
        keep_alive.check(begun.txn_id)
    assert quick_session.beaten_ids == []
    now[0] += TIMEOUT_MS / 1000
    keep_alive.check(begun.txn_id)
    assert quick_session.beaten_ids == [begun.txn_id]
    quick_session.abort(begun.txn_id)
    now[0] += TIMEOUT_MS / 1000
    for _ in range(2):
        with pytest.raises(TransactionFinished, match="timed out; begin again"):
            keep_alive.check(begun.txn_id)
    assert len(quick_session.beaten_ids) == 2


def test_a_store_that_stays_away_for_the_timeout_raises_unavailable(quick_session: Watched) -> None:
    def away() -> None:
        raise Unavailable("the node is away")

    with (
        pytest.raises(Unavailable, match="had no successful heartbeat"),
        KeepAlive(quick_session) as keep_alive,
        transaction_scope(quick_session, keep_alive=keep_alive) as transaction,
    ):
        quick_session.before_beat = away
        assert finds_a_loss(keep_alive)
        assert keep_alive.statistics().missed > 1
        transaction.commit()
    assert quick_session.transaction(transaction.txn_id).state is TransactionState.ABORTED


def test_a_transaction_survives_a_missed_heartbeat(quick: Node, quick_session: Watched) -> None:
    failures = iter([Unavailable("the node is away")])

    def away_once() -> None:
        for failure in failures:
            raise failure

    quick_session.before_beat = away_once
    with KeepAlive(quick_session) as keep_alive:
        with transaction_scope(quick_session, keep_alive=keep_alive):
            quick_session.wait_for_beats(6)
        assert (keep_alive.statistics().missed, keep_alive.statistics().lost) == (1, 0)


def test_heartbeats_come_thrice_in_a_timeout_and_sooner_after_a_failed_one(
    quick_session: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    clock = SimpleNamespace(monotonic=lambda: now[0])
    monkeypatch.setattr("strandline.metastore.session.keep_alive.time", clock)
    period = TIMEOUT_MS / 1000 / 3
    keep_alive = KeepAlive(quick_session)
    keep_alive.stop()  # the test beats itself
    transaction = quick_session.begin()
    keep_alive.watch(transaction)
    watched = keep_alive._watched[transaction.txn_id]
    assert watched.due == 100.0 + period

    def takes_a_second() -> None:
        now[0] += 1.0

    quick_session.before_beat = takes_a_second
    keep_alive._beat(watched)
    assert (watched.heard, watched.due) == (100.0, 100.0 + period)

    def away() -> None:
        raise Unavailable("the node is away")

    quick_session.before_beat = away
    for silence_ms, is_lost in ((TIMEOUT_MS - 1, False), (TIMEOUT_MS + 1, True)):
        now[0] = 100.0 + silence_ms / 1000
        keep_alive._beat(watched)
        assert watched.due == now[0] + period / 4
        assert (watched.failure is not None) == is_lost


def test_a_heartbeat_waits_until_it_is_due(
    quick_session: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, waits = [100.0], []
    clock = SimpleNamespace(monotonic=lambda: now[0])
    monkeypatch.setattr("strandline.metastore.session.keep_alive.time", clock)
    keep_alive = KeepAlive(quick_session)
    keep_alive.stop()  # the test waits itself
    transaction = quick_session.begin()
    keep_alive.watch(transaction)
    keep_alive._stopped = False

    def wait(seconds: float) -> None:
        waits.append(seconds)
        now[0] += seconds

    monkeypatch.setattr(keep_alive._changed, "wait", wait)
    assert keep_alive._next_due() is keep_alive._watched[transaction.txn_id]
    assert waits == [pytest.approx(TIMEOUT_MS / 1000 / BEATS)]


def test_a_transaction_that_begins_after_all_others_have_ended_is_kept_alive(
    quick_session: Watched,
) -> None:
    idle = threading.Event()

    class Changed(Condition):
        def wait(self, timeout: float | None = None) -> bool:
            if timeout is None:
                idle.set()
            return super().wait(timeout)

    with KeepAlive(quick_session) as keep_alive:
        keep_alive._changed = Changed()
        with transaction_scope(quick_session, keep_alive=keep_alive):
            quick_session.wait_for_beats(1)
        assert idle.wait(WAIT)
        while quick_session.beaten.acquire(blocking=False):
            pass
        with transaction_scope(quick_session, keep_alive=keep_alive):
            quick_session.wait_for_beats(1)


@pytest.mark.parametrize(
    "failure",
    [
        KeyboardInterrupt(),
        ProtocolError("the answer cannot be read"),
        StrandlineError("the node failed"),
        UnknownOutcome("the answer was lost"),
    ],
    ids=lambda failure: type(failure).__name__,
)
def test_a_transaction_with_a_stage_that_may_have_happened_can_only_be_aborted(
    session: Watched, table_id: int, monkeypatch: pytest.MonkeyPatch, failure: BaseException
) -> None:
    def fail(*_: object, **named: object) -> NoReturn:
        raise failure

    with (
        pytest.raises(Unavailable, match="can only be aborted"),
        transaction_scope(session) as transaction,
    ):
        with monkeypatch.context() as patch, pytest.raises(type(failure)):
            patch.setattr(session, "stage", fail)
            transaction.stage(table_id, add=[data("a")])
        transaction.commit()
    assert session.transaction(transaction.txn_id).state is TransactionState.ABORTED


def test_a_refused_stage_leaves_the_transaction_usable(
    session: Watched, table: ResolvedTable, table_id: int
) -> None:
    with transaction_scope(session) as transaction:
        with pytest.raises(ObjectNotFound):
            transaction.stage(table_id + 1_000_000, add=[data("a")])
        transaction.stage(table_id, add=[data("b")])
    assert paths_of(session, table.name) == ["b"]


@pytest.fixture
def sizes(session: Watched, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of files of each call of `Session.stage`: one at most; a third call is refused."""
    monkeypatch.setattr("strandline.metastore.session.file_lists.STAGED_BYTES", 200)
    numbers: list[int] = []
    stage = session.stage

    def counted(txn_id: int, table: int, **files: Any) -> int:
        if len(numbers) == 2:
            raise InvalidInput("the third call is refused")
        numbers.append(sum(map(len, files.values())))
        return stage(txn_id, table, **files)

    monkeypatch.setattr(session, "stage", counted)
    return numbers


@pytest.mark.parametrize(("limit", "at_most"), [("STAGED_BYTES", 200), ("STAGED_FILES", 1)])
def test_files_that_are_too_much_for_one_call_are_staged_in_several(
    session: Watched,
    table: ResolvedTable,
    table_id: int,
    sizes: list[int],
    monkeypatch: pytest.MonkeyPatch,
    limit: str,
    at_most: int,
) -> None:
    monkeypatch.setattr(file_lists, "STAGED_BYTES", 1 << 20)
    monkeypatch.setattr(file_lists, limit, at_most)
    with transaction_scope(session) as transaction:
        transaction.stage(table_id, add=[data("a"), data("b")])
    assert sizes == [1, 1]
    assert paths_of(session, table.name) == ["a", "b"]


@pytest.mark.parametrize("change", ["remove", "touch"])
def test_paths_that_are_too_much_for_one_call_are_staged_in_several(
    session: Watched, table: ResolvedTable, table_id: int, sizes: list[int], change: str
) -> None:
    paths = [letter * 150 for letter in "ab"]
    changed: dict[str, Any] = {change: paths}
    with transaction_scope(session) as transaction:
        transaction.stage(table_id, add=[data(path) for path in paths])
    sizes.clear()
    with transaction_scope(session) as transaction:
        transaction.stage(table_id, **changed)
    assert sizes == [1, 1]
    assert paths_of(session, table.name) == ([] if change == "remove" else paths)


@pytest.mark.parametrize("change", ["remove", "touch"])
def test_one_path_in_place_of_a_list_is_refused(
    session: Watched, table_id: int, change: str
) -> None:
    path: dict[str, Any] = {change: "f"}
    with transaction_scope(session) as transaction:
        transaction.stage(table_id, add=[data("f")])
        with pytest.raises(InvalidInput, match="as a list of paths"):
            transaction.stage(table_id, **path)


class Noting:
    """A lock that notes when the main thread needs it."""

    def __init__(self, needed: threading.Event) -> None:
        self._lock = threading.RLock()
        self._needed = needed

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():
            self._needed.set()
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def test_a_commit_waits_for_all_parts_of_the_stage_of_another_thread(
    session: Watched,
    table: ResolvedTable,
    table_id: int,
    sizes: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    began, commits, stage = threading.Event(), threading.Event(), session.stage

    def slow(txn_id: int, table: int, **files: Any) -> int:
        began.set()
        assert commits.wait(WAIT)
        return stage(txn_id, table, **files)

    monkeypatch.setattr(session, "stage", slow)
    with ThreadPoolExecutor(1) as threads:
        try:
            with transaction_scope(session) as transaction:
                monkeypatch.setattr(transaction, "_staging", Noting(commits), raising=False)
                staged = threads.submit(transaction.stage, table_id, add=[data("a"), data("b")])
                assert began.wait(WAIT)
        finally:
            commits.set()
        assert staged.result(WAIT)
    assert sizes == [1, 1]
    assert paths_of(session, table.name) == ["a", "b"]


def test_a_transaction_that_has_only_a_part_of_the_files_of_a_stage_can_only_be_aborted(
    session: Watched, table: ResolvedTable, table_id: int, sizes: list[int]
) -> None:
    with (
        pytest.raises(Unavailable, match="can only be aborted"),
        transaction_scope(session) as transaction,
    ):
        with pytest.raises(InvalidInput, match="the third call is refused"):
            transaction.stage(table_id, add=[data("a"), data("b"), data("c")])
        transaction.commit()
    assert sizes == [1, 1]
    assert paths_of(session, table.name) == []


def refuse(_: threading.Thread) -> NoReturn:
    raise RuntimeError("can't start new thread")


def test_heartbeats_are_sent_although_the_first_attempt_to_start_their_thread_failed(
    quick_session: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    with KeepAlive(quick_session) as keeper:
        transaction = quick_session.begin()
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            with pytest.raises(RuntimeError, match="start"):
                keeper.watch(transaction)
        keeper.watch(transaction)
        quick_session.wait_for_beats(1)


def test_a_transaction_is_aborted_if_the_thread_of_its_heartbeats_cannot_be_started(
    session: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(RuntimeError, match="start"), transaction_scope(session):
        pass
    monkeypatch.undo()
    assert session.transaction(session.begin().txn_id - 1).state is TransactionState.ABORTED


LEFT_OPEN = """
import sys

from strandline.metastore.session.keep_alive import transaction_scope
from strandline.node import Node


def rows():
    with transaction_scope(session) as transaction:
        yield transaction


session = Node.open(sys.argv[1]).session(user="ann")
suspended = rows()
next(suspended)
"""


def test_a_program_ends_although_a_generator_is_still_in_a_transaction(tmp_path: Path) -> None:
    program = [sys.executable, "-c", LEFT_OPEN, str(tmp_path / "store")]
    ended = subprocess.run(program, capture_output=True, timeout=WAIT, check=True, text=True)
    assert (ended.stdout, ended.stderr) == ("", "")
