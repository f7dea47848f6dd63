"""A node that another opener fences joins the newer epoch, or learns that it is replaced."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from strandline.catalog import Catalog, CatalogManager, initial_catalog
from strandline.catalog.commands import CreateSchema
from strandline.catalog.planning import Planning
from strandline.clock import MIN_TIMESTAMP, HybridClock
from strandline.durable import (
    DurableCatalogState,
    MetastorageLog,
    Superseded,
    durable_state,
    joined_anew,
)
from strandline.errors import Fenced, WrongEnvironment
from tests.metastorage.stores import STORES

NewLog = Callable[[], MetastorageLog]


@pytest.fixture(params=STORES)
def new_log(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[NewLog]:
    """Opens one log, on a store of each kind, as one more node."""
    kind = STORES[request.param]
    address = kind.create(tmp_path)
    with ExitStack() as opened:
        yield lambda: MetastorageLog(opened.enter_context(kind.open(address, HybridClock())))


@pytest.fixture
def manager(new_log: NewLog) -> Iterator[CatalogManager]:
    manager = CatalogManager(take_over(new_log()), HybridClock())
    yield manager
    manager.stop()


def take_over(log: MetastorageLog, *, generation: int = 0) -> DurableCatalogState:
    """Open the log as a new holder does, which knows nothing of the running nodes."""
    return durable_state(log).open(
        member="opener",
        initialize=initial_catalog(delay_ms=0, skew_ms=0, default_location="file:/warehouse"),
        raise_fence=lambda *_: None,
        deploy_generation=generation,
    )


def append(state: DurableCatalogState, name: str) -> None:
    latest = (state.recovered + state.updates_after(state.recovered[-1]))[-1]
    transaction = state.transaction(latest, author="bob")
    base = Catalog(latest.version, MIN_TIMESTAMP, latest.contents)
    CreateSchema(name=name).plan(Planning(base, transaction, MIN_TIMESTAMP))
    state.commit_transaction(transaction)


def test_a_node_fenced_by_a_newer_epoch_reads_and_writes_under_that_epoch(
    new_log: NewLog, manager: CatalogManager
) -> None:
    heard: list[tuple[str, int]] = []
    manager.subscribe(
        lambda applied: heard.append(("applied", applied.catalog.version)),
        on_reset=lambda catalog: heard.append(("reset", catalog.version)),
    )
    manager.execute(CreateSchema(name="before"), author="ann")
    holder = take_over(new_log())
    append(holder, "theirs")
    with pytest.raises(Fenced, match="epoch 2"):  # validated and sent under the old epoch
        manager.execute(CreateSchema(name="late"), author="ann")
    executed = manager.execute(CreateSchema(name="mine"), author="ann")
    assert manager.token == holder.token
    assert manager.token.rank == (0, 2)
    names = [schema.name for schema in manager.present().schemas()]
    assert names == ["before", "default", "mine", "system", "theirs"]
    assert heard == [("applied", 3), ("reset", 5), ("applied", 6)]
    assert executed.version == 6
    assert manager.statistics().joined_anew == 1
    assert manager.compact(executed.version)


def test_a_fenced_reader_reads_what_the_newer_holder_wrote(
    new_log: NewLog, manager: CatalogManager
) -> None:
    assert manager.present().schema("theirs") is None
    holder = take_over(new_log())
    append(holder, "theirs")
    assert manager.known_present() is None
    assert manager.present().schema("theirs") is not None
    # If the log is asked over the network, the present is never known without asking.
    known = manager.latest_catalog() if manager.state.log.frontier_is_cheap else None
    assert manager.known_present() is known


def test_the_applier_joins_the_newer_epoch_by_itself_and_wakes_waiting_callers(
    new_log: NewLog, manager: CatalogManager
) -> None:
    manager.start()
    holder = take_over(new_log())
    append(holder, "theirs")
    assert manager.catalog_ready(4, timeout=30).schema("theirs") is not None
    assert manager.token == holder.token


def test_a_node_that_was_fenced_twice_joins_the_epoch_of_the_last_holder(
    new_log: NewLog, manager: CatalogManager
) -> None:
    take_over(new_log())
    holder = take_over(new_log())
    append(holder, "theirs")
    manager.sync()
    assert manager.token == holder.token
    assert manager.token.rank == (0, 3)
    assert manager.statistics().joined_anew == 1


def test_a_node_does_not_join_a_newer_deploy_generation(
    new_log: NewLog, manager: CatalogManager
) -> None:
    newer = take_over(new_log(), generation=1)
    attempts: list[Callable[[], object]] = [
        manager.present,
        lambda: manager.execute(CreateSchema(name="late"), author="ann"),
        manager.sync,
    ]
    for attempt in attempts:
        with pytest.raises(Fenced, match="generation 1"):
            attempt()
    with pytest.raises(Superseded, match=r"which opener took at .*; this node stops"):
        manager.sync()
    append(newer, "theirs")
    (applied,) = newer.updates_after(newer.recovered[-1])
    assert applied.contents.count("schema") == 3


def test_a_newer_deploy_generation_that_takes_over_during_the_join_is_not_joined(
    new_log: NewLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    fenced = take_over(new_log())
    take_over(new_log())
    token, tokens = fenced.log.token, [fenced.log.token()]
    take_over(new_log(), generation=1)
    monkeypatch.setattr(fenced.log, "token", lambda: tokens.pop() if tokens else token())
    with pytest.raises(Superseded, match="generation 1"):
        joined_anew(fenced)


def test_the_applier_of_a_replaced_node_ends_and_announces_no_other_attempt(
    new_log: NewLog, manager: CatalogManager, caplog: pytest.LogCaptureFixture
) -> None:
    manager.start()
    applier = manager._applier._thread
    assert applier is not None
    take_over(new_log(), generation=1)
    applier.join(10)
    assert not applier.is_alive()
    assert caplog.messages == []


def test_commands_not_yet_validated_when_the_node_is_fenced_run_under_the_newer_epoch(
    new_log: NewLog, manager: CatalogManager
) -> None:
    log = manager.state.log
    real, reached, go_on = log.append, threading.Event(), threading.Event()

    def stopped(*arguments: Any, **named: Any) -> Any:  # Any: as the real one
        reached.set()
        assert go_on.wait(30)
        return real(*arguments, **named)

    log.append = stopped  # type: ignore[method-assign]  # what this test is for
    outcomes: dict[str, object] = {}

    def call(name: str) -> None:
        try:
            outcomes[name] = manager.execute(CreateSchema(name=name), author="ann").version
        except Fenced as error:
            outcomes[name] = error

    threads = [threading.Thread(target=call, args=("sent",))]
    threads[0].start()
    assert reached.wait(30)
    threads.append(threading.Thread(target=call, args=("waiting",)))
    threads[1].start()
    while not manager._commits._waiting:
        threads[1].join(0.001)
    take_over(new_log())
    go_on.set()
    for thread in threads:
        thread.join(30)
    assert isinstance(outcomes["sent"], Fenced)
    assert outcomes["waiting"] == 4
    assert manager.present().schema("sent") is None


def test_a_node_that_may_not_join_keeps_its_latest_catalog(new_log: NewLog) -> None:
    def refuse(fenced: DurableCatalogState) -> DurableCatalogState:
        raise WrongEnvironment("another store stands in the place of this node's")

    manager = CatalogManager(take_over(new_log()), HybridClock(), join_anew=refuse)
    latest = manager.latest_catalog()
    take_over(new_log())
    for _ in range(2):
        with pytest.raises(WrongEnvironment, match="another store"):
            manager.present()
    assert manager.latest_catalog() is latest
    manager.stop()
