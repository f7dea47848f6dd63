"""The cache while a table is loaded, written and read, in each order of the steps of threads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from strandline.metastore.cache.cached_store import CachedStore
from strandline.metastore.cache.replica_set import Load, ReplicaSet
from tests.metastore.dml import Dml, files
from tests.schedules import Race, explore, scheduled


@pytest.fixture
def dml(tmp_path: Path) -> Iterator[Dml]:
    with scheduled():  # a thread may stop while it has a lock of the database
        made = Dml(tmp_path / "strandline.db")
    with closing(made.database):
        yield made


def explored(dml: Dml) -> int:
    """Load a table while a transaction writes it; return how many orders there are."""
    numbers = count()

    def scenario(race: Race) -> None:
        cache, before = dml.cached(), set(files(dml.store))
        name = f"{next(numbers):03d}"

        def write() -> None:
            dml.append(name)
            cache.log_applier.apply_own()

        _, shown = race(write, lambda: set(files(cache)))
        assert shown in (before, before | {name})
        assert set(files(cache)) == before | {name}, "memory lacks a commit"

    steps = (CachedStore._load, ReplicaSet.begin_load, ReplicaSet.finish_load, ReplicaSet._next)
    return explore(scenario, steps_in=steps)


def test_a_table_that_is_written_while_it_is_loaded_lacks_no_commit_in_any_order(dml: Dml) -> None:
    assert explored(dml) > 20


@pytest.mark.teeth
def test_a_load_that_is_announced_after_its_rows_were_read_is_found(
    dml: Dml, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish = ReplicaSet.finish_load

    def announced_late(replicas: ReplicaSet, load: Load, replica: Any) -> None:
        load.changes.clear()
        finish(replicas, load, replica)

    monkeypatch.setattr(ReplicaSet, "finish_load", announced_late)
    with pytest.raises(AssertionError, match="memory lacks a commit"):
        explored(dml)
