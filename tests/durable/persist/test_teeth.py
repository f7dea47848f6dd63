"""The suites of logs and shards can fail: each planted fault is found."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from strandline.durable.persist import maintenance, persist_log, shard, shard_state
from strandline.durable.persist.blob import FileBlob
from strandline.durable.persist.consensus import Consensus
from strandline.durable.persist.maintenance import Maintenance
from strandline.durable.persist.part import encode_rows
from strandline.durable.persist.shard_state import Append, ShardState
from strandline.durable.rows import Row, consolidated
from strandline.errors import StrandlineError, UnknownOutcome
from tests.durable import test_log_contract as contract
from tests.durable.persist import (
    test_consensus,
    test_shard,
    test_shard_crashes,
    test_shard_damage,
    test_shard_races,
)
from tests.durable.persist.conftest import Place

Fault = Callable[[pytest.MonkeyPatch], None]
Check = Callable[[Place], None]
TEETH: list[Any] = []  # Any: pytest does not name the type


def found_by(check: Check, complaint: str) -> Callable[[Fault], Fault]:
    """Register a fault; ``complaint`` matches the suite's failing lines or the error's message."""

    def register(fault: Fault) -> Fault:
        TEETH.append(pytest.param(fault, check, complaint, id=fault.__name__))
        return fault

    return register


def trimmed(place: Place) -> None:
    contract.test_a_trimmed_log_gives_the_same_contents_as_its_replay(place.log, 4)


@pytest.mark.teeth
@pytest.mark.parametrize(("fault", "check", "complaint"), TEETH)
def test_a_planted_fault_is_found_by_its_test(
    place: Place, monkeypatch: pytest.MonkeyPatch, fault: Fault, check: Check, complaint: str
) -> None:
    fault(monkeypatch)
    failures = (AssertionError, StrandlineError, pytest.fail.Exception)
    with pytest.raises(failures) as failure:
        check(place)
    frames = traceback.extract_tb(failure.value.__traceback__)
    outside = [f for f in frames if "/tests/" in f.filename and f.filename != __file__]
    lines = [frame.line or "" for frame in outside]
    said = "\n".join([*lines, str(failure.value)])
    assert re.search(complaint, said), said


@found_by(
    lambda place: contract.test_an_append_or_a_trim_with_another_token_is_refused(place.log()),
    "DID NOT RAISE Fenced",
)
def the_fence_token_is_not_compared(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(shard_state, "refuse_other_token", lambda current, token: None)


@found_by(
    lambda place: contract.test_an_append_is_accepted_at_the_next_version_only(place.log()),
    r"log.append\(2, None, ",
)
def an_append_is_not_compared_with_the_upper(patch: pytest.MonkeyPatch) -> None:
    real = shard_state.compare_and_append

    def careless(append: Append) -> Any:
        return lambda state: real(append)(replace(state, upper=append.batch.lower))

    patch.setattr(persist_log, "compare_and_append", careless)


@found_by(
    lambda place: test_consensus.test_compare_and_set_requires_the_expected_version_to_be_the_last(
        place.consensus
    ),
    "is None",
)
def a_compare_and_set_compares_nothing(patch: pytest.MonkeyPatch) -> None:
    real = Consensus.compare_and_set

    def careless(self: Consensus, key: str, expected: int | None, *rest: Any, **named: Any) -> Any:
        head = self.head(key)
        return real(self, key, None if head is None else head.seqno, *rest, **named)

    patch.setattr(Consensus, "compare_and_set", careless)


@found_by(
    test_shard.test_a_snapshot_after_compaction_has_no_trace_of_changed_and_removed_objects,
    "does not replace the present object",
)
def a_retraction_has_other_bytes(patch: pytest.MonkeyPatch) -> None:
    real = encode_rows

    def other(rows: Sequence[Row]) -> bytes:
        return real([row._replace(value=row.value + b"x") if row.diff < 0 else row for row in rows])

    patch.setattr(shard, "encode_rows", other)


@found_by(trimmed, "snapshot")
def a_snapshot_lacks_its_last_update(patch: pytest.MonkeyPatch) -> None:
    real = consolidated

    def short(rows: Sequence[Row]) -> list[Row]:
        last = max(row.version for row in rows)
        return real([row for row in rows if row.version < last])

    patch.setattr(maintenance, "consolidated", short)


@found_by(trimmed, "frontier")
def a_compaction_goes_one_version_too_far(patch: pytest.MonkeyPatch) -> None:
    real = Maintenance.compact
    patch.setattr(Maintenance, "compact", lambda self, up_to, fence: real(self, up_to + 1, fence))


@found_by(
    lambda place: test_shard_races.test_the_outcome_of_an_unanswered_append_is_found_by_its_token(
        place, UnknownOutcome("cut")
    ),
    r"\(appended,\) = log.append",
)
def the_token_of_a_writer_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    real = shard_state.Writer
    patch.setattr(shard_state, "Writer", lambda writer, token, time: real(writer, b"", time))


@found_by(test_shard_crashes.test_parts_uploaded_before_a_sweep_are_uploaded_again, "missing|blobs")
def swept_uploads_may_be_named(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(shard_state, "check_uploads", lambda state, uploads: None)


@found_by(
    lambda place: test_shard_damage.test_a_damaged_blob_is_refused(place, "flipped", "part"),
    "DID NOT RAISE|restore the store",
)
def the_checksum_of_a_blob_is_not_compared(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(shard, "crc32", lambda data: 0)


@found_by(
    lambda place: (
        test_shard_crashes.test_a_crash_during_a_large_append_leaves_parts_that_a_sweep_removes(
            place, "consensus.compare_and_set", 1
        )
    ),
    r"place.blobs\(\) == set\(\)",
)
def a_sweep_removes_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(FileBlob, "delete", lambda self, key: None)


@found_by(
    test_shard.test_rows_move_to_sorted_parquet_parts_and_small_parts_are_merged, "hole|versions"
)
def a_batch_loses_a_row(patch: pytest.MonkeyPatch) -> None:
    real = shard.Shard.rows_of

    def short(self: shard.Shard, *arguments: Any) -> Any:
        rows = list(real(self, *arguments))
        return iter(rows[1:] if len(rows) > 8 else rows)

    patch.setattr(shard.Shard, "rows_of", short)


@found_by(
    lambda place: contract.test_audit_events_are_scanned_by_version_and_survive_trimming(
        place.log()
    ),
    r"for scanned in before\] == ",
)
def audit_events_go_with_the_history(patch: pytest.MonkeyPatch) -> None:
    real = Maintenance._compacted
    patch.setattr(
        Maintenance,
        "_compacted",
        lambda self, *arguments: replace(real(self, *arguments), appended=()),
    )
    patch.setattr(shard.Shard, "lasting_batches", _those_above_since)


def _those_above_since(self: shard.Shard, state: ShardState, start: int, end: int) -> Any:
    return [batch for batch in state.batches if batch.lower > state.since and not batch.parts]
