"""The suite of the logs can fail: it finds each fault planted in the stash."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from strandline.durable import StashLog, UpdateLog, rows, stash_tables
from strandline.errors import StrandlineError
from tests.durable import test_log_contract as contract
from tests.durable.conftest import NewLog
from tests.durable.planting import plant

STASH = "stash on sqlite"


@dataclass(frozen=True)
class Tooth:
    """Replaces ``old`` by ``new`` in the source of ``owner.name``; ``check`` finds that."""

    owner: Any
    name: str
    old: str
    new: str
    check: Callable[..., None]
    given: tuple[tuple[str, Any], ...] = ()

    def plant(self, patch: pytest.MonkeyPatch) -> None:
        plant(patch, self.owner, self.name, self.old, self.new)


TEETH = {
    "the token is not compared": Tooth(
        StashLog,
        "_append",
        "state.upper == append.expected_upper and state.token == append.token",
        "state.upper == append.expected_upper",
        contract.test_an_append_or_a_trim_with_another_token_is_refused,
    ),
    "an append is not conditional": Tooth(
        StashLog,
        "_append",
        "state.upper == append.expected_upper and state.token == append.token",
        "state.token == append.token",
        contract.test_an_append_is_accepted_at_the_next_version_only,
    ),
    "times that were given are forgotten": Tooth(
        StashLog,
        "_append",
        "append.at(now)",
        "replace(append, times=None).at(now)",
        contract.test_a_copied_log_keeps_the_times_of_the_original,
    ),
    "a compaction goes one version too far": Tooth(
        StashLog,
        "compact",
        "since=to,",
        "since=to + 1,",
        contract.test_a_trimmed_log_gives_the_same_contents_as_its_replay,
        (("objects", 1),),
    ),
    "a compaction leaves what it replaces": Tooth(
        StashLog,
        "compact",
        "_ranges(numbered, removed,",
        "_ranges(numbered, removed[1:],",
        contract.test_a_trim_preserves_objects_that_were_changed_or_removed,
        (("up_to", 4),),
    ),
    "pruning leaves the storage usage of its version": Tooth(
        stash_tables,
        "with_pruned",
        "collection = ? AND version <= ?",
        "collection = ? AND version < ?",
        contract.test_storage_usage_is_scanned_by_version_and_kept_until_it_is_pruned,
    ),
    "pruning does not compare the token": Tooth(
        StashLog,
        "prune",
        "refuse_other_token(state.token, token)",
        "pass",
        contract.test_pruning_with_another_token_or_above_the_last_version_is_refused,
    ),
    "a snapshot is without its last update": Tooth(
        UpdateLog,
        "snapshot",
        "+ 1, as_of + 1)",
        "+ 1, as_of)",
        contract.test_a_trimmed_log_gives_the_same_contents_as_its_replay,
        (("objects", 1),),
    ),
    "a retraction has other bytes": Tooth(
        rows,
        "_rows_of_changes",
        "yield Row(change.kind, change.key, value, version, MIN_TIMESTAMP, diff)",
        "yield Row(change.kind, change.key, value + b'x' * (diff < 0), version, MIN_TIMESTAMP,"
        " diff)",
        contract.test_a_trim_preserves_objects_that_were_changed_or_removed,
        (("up_to", 3),),
    ),
}


@pytest.mark.parametrize("fault", TEETH)
def test_the_source_has_the_text_that_a_planted_fault_replaces(
    fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    TEETH[fault].plant(monkeypatch)


@pytest.mark.teeth
@pytest.mark.parametrize("new_logs", [STASH], indirect=True)
@pytest.mark.parametrize("fault", TEETH)
def test_the_log_suite_finds_a_planted_fault(
    new_log: NewLog, another_log: UpdateLog, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tooth = TEETH[fault]
    given: dict[str, Any] = dict(tooth.given)
    fixtures = {"new_log": new_log, "another_log": another_log, "log": new_log()}
    asked = inspect.signature(tooth.check).parameters.keys() & fixtures.keys()
    given |= {name: fixtures[name] for name in asked}
    tooth.plant(monkeypatch)
    with pytest.raises((AssertionError, KeyError, StrandlineError, pytest.fail.Exception)):
        tooth.check(**given)
