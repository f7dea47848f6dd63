"""Three processes on one catalog in a server: a change acknowledged by one is visible on all.

The clocks of the nodes differ by as much as the catalog allows. The amount of work of each check is
given by arguments, because `test_three_nodes_teeth` does less of the same with faulty nodes.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.catalog.catalog_process import Asker, CatalogProcess, RefusedError
from tests.metastorage.stores import STORES, StoreKind
from tests.servers.loopback import Cut, Proxy

DELAY_MS, SKEW_MS = 200, 100
SERVED = [name for name, kind in STORES.items() if kind.has_server]
SOON = 0.001
NOTHING_HAPPENED = {"deadline_exceeded", "unavailable", "not_fresh"}

Nodes = Sequence[CatalogProcess]


@contextmanager
def started(
    address: str,
    folder: Path,
    *,
    count: int = 3,
    first_address: str | None = None,
    delay_ms: int = DELAY_MS,
    skew_ms: int = SKEW_MS,
    patience: float = 30.0,
    fault: str | None = None,
) -> Iterator[Nodes]:
    """Start nodes on one catalog; the first connects to ``first_address`` if that is given.

    The clock of the last node is behind that of the first by the skew.
    """
    with ExitStack() as stack:
        nodes = [
            stack.enter_context(
                CatalogProcess(
                    (first_address or address) if number == 0 else address,
                    folder,
                    number,
                    delay_ms=delay_ms,
                    skew_ms=skew_ms,
                    patience=patience,
                    behind_ms=skew_ms * number // (count - 1),
                    fault=fault,
                )
            )
            for number in range(count)
        ]
        for node in nodes:
            node.ready.result(300)
        yield nodes


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(name, marks=() if name == "postgresql" else pytest.mark.slow)
        for name in SERVED
    ],
)
def kind(request: pytest.FixtureRequest) -> StoreKind:
    return STORES[request.param]


@pytest.fixture
def nodes(kind: StoreKind, tmp_path: Path) -> Iterator[Nodes]:
    with started(kind.create(tmp_path), tmp_path) as nodes:
        yield nodes


@pytest.fixture(scope="module")
def shared_nodes(kind: StoreKind, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    folder = tmp_path_factory.mktemp("nodes")
    with started(kind.create(folder), folder) as nodes:
        yield nodes


def results(futures: Sequence[Future[Any]], *, timeout: float = 300) -> list[Any]:
    wait(futures, timeout)
    return [future.result(0) for future in futures]


def outcomes(futures: Sequence[Future[Any]], *, timeout: float) -> list[str]:
    """The outcome of each within ``timeout`` seconds: "done", an error's code, or "waiting"."""
    ended = wait(futures, max(timeout, 0)).done
    states = []
    for future in futures:
        error = future.exception() if future in ended else None
        if error is not None and not isinstance(error, RefusedError):
            raise error
        states.append(error.args[0] if error else "done" if future in ended else "waiting")
    return states


# -- a call that returned --------------------------------------------------------------------------


def a_node_whose_clock_is_behind_has_it_when_the_call_returns(nodes: Nodes, *, turns: int) -> None:
    """Run one call at a time, so that other calls' times do not advance the reader's clock."""
    pairs = [(w, r) for w, _ in enumerate(nodes) for r, _ in enumerate(nodes) if w != r]
    for turn, (writer, reader) in itertools.product(range(turns), pairs):
        asked = nodes[writer].ask(
            "created_and_read", reader=reader, calls=1, threads=1, first=-1 - turn
        )
        assert asked.result(60)[0].get("found"), "a node whose clock is behind did not have it"


def every_node_has_what_a_call_did_as_soon_as_it_returns(
    nodes: Nodes, *, rounds: Iterable[int], each: int, threads: int, waiting_ms: int
) -> list[float]:
    """After each call another node reads the result at once, and no read is repeated.

    In each round all nodes except one create ``each`` tables for every other node, which reads
    them: half of the reads are done by the node that does nothing else, half by a node that also
    creates tables. Returns how many seconds after its call each read began.
    """
    answers: list[dict[str, Any]] = []
    for number in rounds:
        idle = number % len(nodes)
        asked = [
            (
                node.behind_ms,
                node.ask(
                    "created_and_read",
                    reader=reader,
                    calls=each,
                    threads=threads,
                    first=number * each,
                ),
            )
            for writer, node in enumerate(nodes)
            for reader, _ in enumerate(nodes)
            if writer not in (idle, reader)
        ]
        for behind_ms, some in asked:
            answers += [{**answer, "behind_ms": behind_ms} for answer in some.result(300)]
    unread = [answer for answer in answers if not answer.get("found")]
    assert unread == [], "another node did not have it"
    versions = [answer["version"] for answer in answers]
    assert len(set(versions)) == len(versions), "two calls were told the same version"
    # A clock that is behind may receive the time of one that is not; its call then waited less.
    # Clocks count milliseconds, so the time that the store gave may be up to one millisecond early.
    waited = [answer["call"] * 1000 + answer["behind_ms"] for answer in answers]
    assert min(waited) >= waiting_ms - 1, "a call did not wait for every clock"
    return [answer["gap"] for answer in answers]


def test_a_change_is_visible_on_every_node_as_soon_as_its_call_returns(shared_nodes: Nodes) -> None:
    a_node_whose_clock_is_behind_has_it_when_the_call_returns(shared_nodes, turns=1)
    every_node_has_what_a_call_did_as_soon_as_it_returns(
        shared_nodes, rounds=range(3), each=8, threads=4, waiting_ms=DELAY_MS + SKEW_MS
    )


@pytest.mark.soak
def test_a_thousand_changes_are_visible_on_other_nodes_within_a_millisecond(nodes: Nodes) -> None:
    a_node_whose_clock_is_behind_has_it_when_the_call_returns(nodes, turns=2)
    soon = 0
    for number in range(20):
        gaps = every_node_has_what_a_call_did_as_soon_as_it_returns(
            nodes, rounds=[number], each=128, threads=8, waiting_ms=DELAY_MS + SKEW_MS
        )
        soon += sum(gap <= SOON for gap in gaps)
        if soon >= 1000:
            return
    raise AssertionError("this machine is too busy to ask within a millisecond")


# -- a node that was stopped -----------------------------------------------------------------------


def a_node_that_was_stopped_never_answers_with_an_old_catalog(
    nodes: Nodes, folder: Path, *, turns: int, delays: int, delay_ms: int
) -> None:
    """SIGSTOP for ``delays`` times the delay, while another node continues; then read at once."""
    sleeper, writer, *_ = nodes
    with closing(Asker(str(folder / "asker"))) as asker:
        for turn in range(turns):
            assert asker.ask(sleeper.reader, "nothing")["found"] is False  # memory may answer now
            sleeper.pause()
            end = time.monotonic() + delays * delay_ms / 1000
            writer.ask("create", name=f"meanwhile_{turn}").result(60)
            while time.monotonic() < end:
                # The store may have given the write lock to the stopped node: then this read waits
                # longer than it may.
                others = outcomes([writer.ask("read", name="nothing")], timeout=60)
                assert set(others) <= {*NOTHING_HAPPENED, "done"}, "a read beside a stopped node"
            read = [sleeper.ask("read", name=f"meanwhile_{turn}") for _ in range(4)]
            sleeper.resume()
            assert results(read) == [True] * 4, "an old catalog after a stop"


def test_a_node_that_was_suspended_never_answers_with_an_old_catalog(
    shared_nodes: Nodes, tmp_path: Path
) -> None:
    a_node_that_was_stopped_never_answers_with_an_old_catalog(
        shared_nodes, tmp_path, turns=2, delays=2, delay_ms=DELAY_MS
    )


@pytest.mark.soak
def test_a_node_that_was_suspended_repeatedly_never_answers_with_an_old_catalog(
    nodes: Nodes, tmp_path: Path
) -> None:
    a_node_that_was_stopped_never_answers_with_an_old_catalog(
        nodes, tmp_path, turns=5, delays=3, delay_ms=DELAY_MS
    )


# -- a store that becomes unavailable --------------------------------------------------------------


class Absence:
    """The plan of a `Proxy` to the server, which is paused between a commit and its answer.

    From then on clients of the proxy are cut off, and clients with a direct connection get no
    answer.
    """

    MARK = "A" * 64
    """The comment of a created table, by which `StoreKind.commit_mark` recognizes its commit."""

    def __init__(self, kind: StoreKind) -> None:
        self._commit_mark = kind.commit_mark
        self._server = kind.server()
        self._armed = False
        self.began = threading.Event()

    def at_the_next_commit(self) -> None:
        """Begin the absence at the next commit."""
        self._armed = True

    def end(self) -> None:
        """End the absence: the server continues with the requests that it was sent."""
        self._server.resume()
        self.began.clear()

    def __call__(self, data: bytes) -> Cut | None:
        if self.began.is_set():
            return Cut.REQUEST
        if self._armed and self._commit_mark in data:
            self._armed = False
            self._server.pause()
            self.began.set()
        return None


@contextmanager
def breakable(kind: StoreKind, folder: Path, **options: Any) -> Iterator[tuple[Nodes, Absence]]:
    """Start nodes, of which the first reaches the server through a proxy that sees commits."""
    address, absence = kind.create(folder), Absence(kind)
    with Proxy(kind.server().port, absence) as line:
        first = kind.through(address, line.port)
        with started(address, folder, first_address=first, **options) as nodes:
            yield nodes, absence


def a_store_that_was_away_leaves_no_trace(
    nodes: Nodes,
    absence: Absence,
    *,
    patience: float,
    away: float,
    short: float,
    late: float,
    long: float,
) -> None:
    """Callers wait until their time-out, or get a typed error; then all nodes agree again.

    The store is unavailable for ``away`` seconds after the callers that wait for ``short`` seconds
    got their errors, at most ``late`` seconds after that. Callers that wait for ``long`` seconds
    wait until the store is back; the commit of one of them was under way. Meanwhile no node waits
    longer than ``patience`` for an answer of the store.
    """
    first, *_, last = nodes
    first.ask("create", name="before").result(60)
    results([node.ask("wait_for_answers", patience=patience) for node in nodes])
    absence.at_the_next_commit()
    patient = [first.ask("create", name="under_way", timeout=long, comment=absence.MARK)]
    try:
        assert absence.began.wait(60), "no commit was seen"
        patient += [
            node.ask("create", name=f"yes_{n}", timeout=long) for n, node in enumerate(nodes)
        ]
        impatient = [
            node.ask("create", name=f"no_{n}", timeout=short) for n, node in enumerate(nodes)
        ]
        ends = outcomes(impatient, timeout=short + late)
        assert "waiting" not in ends, "a caller waits longer than it said"
        assert set(ends) <= {*NOTHING_HAPPENED, "unknown_outcome"}, "a call while the store is away"
        back = time.monotonic() + away
        # By now no look at the store is recent enough to answer from memory.
        reads = [node.ask("read", name="before") for node in nodes]
        read = outcomes(reads, timeout=back - time.monotonic())
        assert set(read) <= {*NOTHING_HAPPENED, "waiting"}, "a read while the store is away"
        waiting = outcomes(patient, timeout=back - time.monotonic())
        assert set(waiting) == {"waiting"}, "a patient caller did not wait"
    finally:
        absence.end()
    results([node.ask("wait_for_answers", patience=60) for node in nodes])
    ended = outcomes(patient, timeout=long)
    assert set(ended) == {"done"}, "a patient caller did not get what it waited for"
    read = outcomes(reads, timeout=long)
    assert set(read) <= {*NOTHING_HAPPENED, "done"}, "a read that began while the store was away"
    after = last.ask("create", name="after").result(60)
    following = [node.ask("arrived", version=after, timeout=long / 2) for node in nodes]
    assert set(outcomes(following, timeout=long)) == {"done"}, "a node does not follow the log"
    seen = results([node.ask("tables") for node in nodes])
    assert all(state == seen[0] for state in seen), "the nodes do not agree"
    made = first.ask("created").result(60)
    assert sorted(made) == sorted(seen[0]), "the log does not say what the nodes do"
    acknowledged = {"before", "under_way", "after", *(f"yes_{n}" for n, _ in enumerate(nodes))}
    assert acknowledged <= set(made), "an acknowledged table is lost"
    never = {f"no_{n}" for n, code in enumerate(ends) if code in NOTHING_HAPPENED}
    assert not never & set(made), "what would never happen did"


@pytest.mark.slow
def test_all_nodes_agree_after_the_store_was_unavailable(kind: StoreKind, tmp_path: Path) -> None:
    with breakable(kind, tmp_path) as (nodes, absence):
        a_store_that_was_away_leaves_no_trace(
            nodes, absence, patience=2.0, away=2.0, short=0.5, late=30.0, long=120.0
        )


@pytest.mark.soak
def test_all_nodes_agree_after_the_store_was_unavailable_for_ten_seconds(
    kind: StoreKind, tmp_path: Path
) -> None:
    with breakable(kind, tmp_path) as (nodes, absence):
        a_store_that_was_away_leaves_no_trace(
            nodes, absence, patience=3.0, away=9.0, short=1.0, late=2.0, long=60.0
        )
