"""Three processes on one catalog in a server: what one was told is done, every other one has."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import Future, wait
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.catalog.catalog_process import Asker, CatalogProcess, RefusedError
from tests.metastorage.stores import STORES, StoreKind

DELAY_MS, SKEW_MS = 200, 100
SERVED = [name for name, kind in STORES.items() if kind.has_server]
CALLS = 1000
SOON = 0.001
AWAY_SECONDS = 10.0

Nodes = list[CatalogProcess]


@pytest.fixture(params=SERVED)
def kind(request: pytest.FixtureRequest) -> StoreKind:
    return STORES[request.param]


@pytest.fixture
def nodes(kind: StoreKind, tmp_path: Path) -> Iterator[Nodes]:
    address = kind.create(tmp_path)
    with ExitStack() as stack:
        started = [
            stack.enter_context(
                CatalogProcess(
                    address, tmp_path, number, delay_ms=DELAY_MS, skew_ms=SKEW_MS, patience=3
                )
            )
            for number in range(3)
        ]
        for node in started:
            node.ready.result(60)
        yield started


def results(futures: list[Future[Any]], *, timeout: float = 300) -> list[Any]:
    wait(futures, timeout)
    return [future.result(0) for future in futures]


def test_every_node_has_what_a_call_did_within_a_millisecond_of_its_return(nodes: Nodes) -> None:
    """A thousand calls, each read at once on another node; no read is repeated."""
    rounds = 0
    answers: list[dict[str, Any]] = []
    while sum(answer["gap"] <= SOON for answer in answers) < CALLS:
        assert rounds < 20, "this machine is too busy to ask within a millisecond"
        asked = [
            node.ask(
                "created_and_read",
                reader=(number + 1 + rounds % 2) % 3,
                calls=170,
                threads=10,
                first=rounds * 170,
            )
            for number, node in enumerate(nodes)
        ]
        answers += [answer for some in results(asked) for answer in some]
        rounds += 1
        import statistics

        g = sorted(a["gap"] for a in answers)
        print(
            rounds,
            len(g),
            g[len(g) // 2],
            g[len(g) * 9 // 10],
            sorted(a["took"] for a in answers)[-5:],
            statistics.median(a["call"] for a in answers),
        )
    assert [answer for answer in answers if not answer.get("found")] == []
    versions = [answer["version"] for answer in answers]
    assert len(set(versions)) == len(versions)
    # Clocks count milliseconds, so the time that the store gave may be up to one too early.
    assert min(answer["call"] for answer in answers) >= (DELAY_MS + SKEW_MS - 1) / 1000


def test_a_node_that_was_stopped_never_answers_with_an_old_catalog(
    nodes: Nodes, tmp_path: Path
) -> None:
    sleeper, writer, _ = nodes
    asker = Asker(str(tmp_path / "asker"))
    for turn in range(5):
        assert asker.ask(sleeper.reader, "nothing")["found"] is False
        sleeper.pause()
        done = time.monotonic() + 3 * DELAY_MS / 1000
        writer.ask("create", name=f"meanwhile_{turn}").result(60)
        while time.monotonic() < done:
            writer.ask("read", name="nothing").result(60)
        read = [sleeper.ask("read", name=f"meanwhile_{turn}") for _ in range(4)]
        sleeper.resume()
        assert results(read) == [True] * 4
    asker.close()


def test_a_store_that_was_away_for_ten_seconds_leaves_no_trace(
    nodes: Nodes, kind: StoreKind
) -> None:
    """Callers wait as long as they said, or get a typed error; then all nodes agree again."""
    nodes[0].ask("create", name="before").result(60)
    server = kind.server()
    server.pause()
    try:
        impatient = [node.ask("create", name=f"no_{n}", timeout=1) for n, node in enumerate(nodes)]
        patient = [node.ask("create", name=f"yes_{n}", timeout=60) for n, node in enumerate(nodes)]
        back = time.monotonic() + AWAY_SECONDS
        wait(impatient, AWAY_SECONDS)
        codes = []
        for future in impatient:
            with pytest.raises(RefusedError) as refused:
                future.result(0)
            codes.append(refused.value.args[0])
        assert set(codes) <= {"deadline_exceeded", "unavailable", "unknown_outcome", "not_fresh"}
        wait(patient, max(back - time.monotonic(), 0))  # none of them can end before
    finally:
        server.resume()
    outcomes = []
    wait(patient, 60)
    for future in patient:
        try:
            future.result(0)
            outcomes.append("created")
        except RefusedError as error:
            outcomes.append(error.args[0])
    assert set(outcomes) <= {"created", "unknown_outcome"}
    nodes[0].ask("create", name="after").result(60)
    seen = [node.ask("tables").result(60) for node in nodes]
    assert seen[0] == seen[1] == seen[2]
    assert {"before", "after"} <= set(seen[0])
    for number, outcome in enumerate(outcomes):
        assert outcome != "created" or f"yes_{number}" in seen[0]
