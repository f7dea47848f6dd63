"""The conformance cases that are about time, logs and bytes, and the tests that show each of them.

The cases of commands (21 to 78) are data, in `tests.catalog.scenarios`. Those here need several
nodes, clocks, restarts or planted bytes, so each is shown by tests of its own; the text says what
must hold here, where that differs from other catalogs too.
"""

from __future__ import annotations

import pytest

from tests.project.test_known_mistakes_page import known_tests

MANAGER, COMMITS = "test_manager.py::test_", "test_manager_commits.py::test_"
LOG, EVERY_STORE = "test_metastorage_log.py::test_", "test_log_on_every_store.py::test_"
REGISTRY, STATE = "test_registry.py::test_", "test_state.py::test_"

CASES: dict[int, tuple[str, tuple[str, ...]]] = {
    1: ("no version above the latest or below 0, no time before the first", (
        MANAGER + "versions_that_are_not_there_are_named",
        MANAGER + "a_number_that_is_no_time_is_refused",
    )),
    2: ("version 0 is empty", (LOG + "an_empty_log_has_version_0_only",)),
    3: ("a fresh start has its first contents; here behind a version for the fence", (
        MANAGER + "a_new_catalog_is_version_2_after_its_fence",
        STATE + "a_new_catalog_has_a_fence_then_its_contents",
    )),
    4: ("successful commands are consecutive versions", (
        MANAGER + "each_command_is_a_version_and_old_versions_stay_as_they_were",
    )),
    5: ("a stopped manager appends nothing, and who waits is told", (
        MANAGER + "a_stopped_manager_refuses_work_and_still_answers_from_memory",
        COMMITS + "who_waits_when_the_node_stops_is_told_and_nothing_of_it_happens",
    )),
    6: ("appends that always lose end; here at the caller's deadline, not after ten", (
        COMMITS + "an_append_that_is_always_lost_ends_at_the_deadline",
    )),
    7: ("a version is not active before its time", (
        MANAGER + "with_a_delay_the_call_returns_when_every_clock_has_passed_the_activation",
    )),
    8: ("what changed nothing, or was refused, waits for the version it was judged by", (
        MANAGER + "with_a_delay_a_refusal_waits_for_the_version_it_was_judged_by",
    )),
    9: ("a call waits for delay and skew", (
        MANAGER + "with_a_delay_the_call_returns_when_every_clock_has_passed_the_activation",
        "test_three_nodes.py::"
        "test_every_node_has_what_a_call_did_within_a_millisecond_of_its_return",
    )),
    10: ("a batch is all or nothing and uses no id when refused", (
        MANAGER + "a_batch_is_one_version_all_or_nothing",
        MANAGER + "a_refused_command_changes_nothing_and_uses_no_id",
    )),
    11: ("a batch says which of its commands changed something", (
        MANAGER + "a_batch_is_one_version_all_or_nothing",
        MANAGER + "a_command_that_changes_nothing_makes_no_version",
    )),
    12: ("a batch without effect makes no version", (
        MANAGER + "a_command_that_changes_nothing_makes_no_version",
    )),
    13: ("trimming moves the earliest version", (
        MANAGER + "trimmed_versions_are_refused_by_name_and_the_rest_answer_as_before",
    )),
    14: ("trimming again, or lower, changes nothing", (
        LOG + "compacting_again_or_lower_changes_nothing",
        EVERY_STORE + "a_snapshot_that_is_not_newer_changes_nothing",
    )),
    15: ("a restart keeps the times of activation", (
        MANAGER + "a_restart_finds_every_version_at_its_old_time",
    )),
    16: ("a node that missed a trimming begins from the snapshot", (
        MANAGER + "a_node_that_slept_through_a_trimming_begins_again_from_the_snapshot",
    )),
    17: ("a failing listener stops nobody and is reported", (
        MANAGER + "a_failing_listener_is_counted_and_stops_nobody",
    )),
    18: ("a listener that takes its time holds up its call and the next version", (
        COMMITS
        + "the_call_does_not_return_and_no_next_version_comes_before_the_listener_has_returned",
    )),
    19: ("a refusal is told when its version is active", (
        MANAGER + "with_a_delay_a_refusal_waits_for_the_version_it_was_judged_by",
    )),
    20: ("callers of one node do not exhaust each other", (
        COMMITS + "sixteen_callers_that_create_thirty_tables_each_all_succeed",
    )),
    79: ("an append is taken at the next version alone", (
        EVERY_STORE + "an_append_is_taken_at_the_next_version_alone",
    )),
    80: ("nobody can follow a log without applying it: a state is its log's reader", (
        STATE + "looking_at_a_store_changes_nothing",
    )),
    81: ("a replay gives the same updates; a snapshot takes the place of what it covers", (
        EVERY_STORE + "a_replay_gives_the_updates_as_they_were_appended",
        EVERY_STORE + "snapshots_follow_each_other_and_leave_no_chunk_behind",
    )),
    82: ("a version is not through while its listener is not", (
        COMMITS
        + "the_call_does_not_return_and_no_next_version_comes_before_the_listener_has_returned",
    )),
    83: ("a log of somebody else is left alone; here by the fence token", (
        EVERY_STORE + "a_log_of_another_owner_is_left_alone",
    )),
    84: ("golden bytes, in both directions", (
        "test_goldens.py::test_an_object_is_exactly_its_golden_bytes_in_both_directions",
    )),
    85: ("numbers take a byte for each seven bits", (
        REGISTRY + "a_number_takes_a_byte_for_each_seven_bits",
    )),
    86: ("gaps, doubles and what is unknown are errors", (
        REGISTRY + "a_gap_or_a_double_fails_at_registration",
        REGISTRY + "a_format_has_a_number_a_version_and_a_release",
        REGISTRY + "what_is_no_record_of_this_program_says_what_was_found",
    )),
    87: ("the hybrid clock", (
        "test_clock.py::test_now_follows_the_wall_and_counts_where_the_wall_stands_still",
        "test_clock.py::test_update_moves_past_what_was_heard",
        "test_clock.py::test_what_is_no_time_is_refused",
    )),
    88: ("the history is found by number and by time, and only grows at its end", (
        MANAGER + "the_catalog_as_of_a_time_is_the_one_active_then",
        MANAGER + "versions_that_are_not_there_are_named",
    )),
}  # fmt: skip


def test_every_case_is_there() -> None:
    assert set(CASES) == {*range(1, 21), *range(79, 89)}


@pytest.mark.parametrize("number", CASES)
def test_a_case_names_tests_that_are_there(number: int) -> None:
    known = set(known_tests())
    assert [test for test in CASES[number][1] if test not in known] == []
