"""The cache compared with the store and a model, and planted faults that the comparison finds."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from strandline.metastore.cache.cached_store import CachedStore
from strandline.metastore.cache.log_applier import LogApplier
from strandline.metastore.store.object_store import SqlObjectStore
from tests.metastore.cache.cache_faults import (
    AnswersAtItsOwnList,
    AnswersWithoutAsking,
    CommitsAborted,
    CommitsHalf,
    ComparesMarks,
    KeepsAborted,
    LoadsCommittedRowsOnly,
    LoadsWithoutItsPlace,
    LosesRemovals,
    NeverCommits,
    ShowsBeforeCommit,
    SkipsWhatCameSince,
)
from tests.metastore.cache.cache_model import CacheMachine, check_small_histories
from tests.metastore.dml import Dml

CALM = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]


@pytest.mark.parametrize("examples", [8, pytest.param(300, marks=pytest.mark.soak)])
def test_the_cache_answers_like_the_store_for_every_list(dml: Dml, examples: int) -> None:
    run_state_machine_as_test(
        type("Machine", (CacheMachine,), {"dml": dml}),
        settings=settings(
            max_examples=examples if dml.database.dialect == "sqlite" else examples // 2,
            stateful_step_count=40,
            suppress_health_check=CALM,
        ),
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("every", "count"), [(5, 26), pytest.param(1, 128, marks=pytest.mark.soak)]
)
def test_the_cache_is_right_in_every_history_of_two_transactions(
    dml: Dml, every: int, count: int
) -> None:
    machine = type("Machine", (CacheMachine,), {"dml": dml})
    if dml.database.dialect != "sqlite" and every > 1:
        every, count = every * 2 + 1, count // 2 - 1
    assert check_small_histories(machine, every=every) == count


def faulty_dml(fault: type, path: Path) -> tuple[Dml, type[CachedStore]]:
    """Return a store with the fault, and the kind of cache to put in front of it."""
    dml = Dml(path)
    if issubclass(fault, LogApplier):
        return dml, type("Faulty", (CachedStore,), {"applier": fault})
    if issubclass(fault, CachedStore):
        return dml, fault
    assert issubclass(fault, SqlObjectStore)
    dml.store = dml.store_of(fault)
    return dml, CachedStore


FAULTS: list[type] = [
    ShowsBeforeCommit,
    CommitsHalf,
    NeverCommits,
    KeepsAborted,
    CommitsAborted,
    LosesRemovals,
    AnswersWithoutAsking,
    ComparesMarks,
    AnswersAtItsOwnList,
    SkipsWhatCameSince,
    LoadsCommittedRowsOnly,
    LoadsWithoutItsPlace,
]


@pytest.mark.teeth
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_the_check_finds_a_planted_fault(fault: type, tmp_path: Path) -> None:
    dml, cache_kind = faulty_dml(fault, tmp_path / "strandline.db")
    machine = type("Faulty", (CacheMachine,), {"dml": dml, "cache_kind": cache_kind})
    with pytest.raises(AssertionError):
        check_small_histories(machine)
    dml.database.close()
