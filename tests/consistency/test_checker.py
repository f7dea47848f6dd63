"""The checker on handmade histories: what can be explained, and what cannot."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.consistency import checker
from tests.consistency.checker import CHECKS, check
from tests.consistency.facts import ValidIds
from tests.consistency.history import ABORTED, COMMITTED, Operation, load, save

ORDERS, PARTS = 1, 2


def valid(hwm: int, *exceptions: int) -> str:
    """The text of a list."""
    return f"null:{hwm}:1:{','.join(map(str, exceptions))}:"


class Story:
    """Consecutive calls; with ``began`` and ``ended`` given, a call is concurrent with others."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []

    def call(self, call: str, **values: object) -> Operation:
        place = 10 * (len(self.operations) + 1)
        timed = {"began": place, "ended": place + 1, **values}
        operation = Operation(call=call, **timed)  # type: ignore[arg-type]  # as the tests say
        self.operations.append(operation)
        return operation

    def begin(self, txn_id: int, **values: object) -> None:
        self.call("begin", txn_id=txn_id, **values)

    def stage(self, txn_id: int, write_id: int, *files: str, **values: object) -> None:
        known = {"table_id": ORDERS, "write_id": write_id, "files": files, **values}
        self.call("stage", txn_id=txn_id, **known)

    def commit(self, txn_id: int, time: int, **values: object) -> None:
        self.call("commit", txn_id=txn_id, time=time, **values)

    def write(self, txn_id: int, write_id: int, *files: str, time: int, **values: object) -> None:
        """A complete transaction on ``table_id``."""
        self.begin(txn_id, time=time - 1)
        self.stage(txn_id, write_id, *files, **values)
        self.commit(txn_id, time)

    def snapshot(self, time: int, **values: object) -> None:
        self.call("snapshot", time=time, **values)

    def files(self, write_ids: str, *files: str, **values: object) -> None:
        known = {"table_id": ORDERS, "write_ids": write_ids, **values}
        self.call("files", files=files, **known)

    def events(self, *events: tuple[int, str, int]) -> None:
        self.call("events", events=events)

    def kinds(self) -> set[str]:
        """The kinds of the complaints about it."""
        return {complaint.kind for complaint in check(self.operations)}


def two_commits() -> Story:
    """Transaction 1 writes both tables, 2 replaces a file of the first; a reader sees both."""
    story = Story()
    story.begin(1, time=10)
    story.stage(1, 1, "a")
    story.stage(1, 1, "x", table_id=PARTS)
    story.commit(1, 20)
    story.snapshot(25, lists={ORDERS: valid(1), PARTS: valid(1)})
    story.write(2, 2, "b", removed=("a",), time=30)
    story.snapshot(35, lists={ORDERS: valid(2), PARTS: valid(1)})
    return story


def test_an_explainable_history_brings_no_complaint() -> None:
    story = two_commits()
    story.files(valid(2), "b")
    story.files(valid(1), "a")
    story.files(valid(1), "x", table_id=PARTS)
    story.call("view", table_id=ORDERS, time=30, files=("b",))
    story.snapshot(20, at=20, lists={ORDERS: valid(1), PARTS: valid(1)})
    story.begin(3, time=40)
    story.snapshot(40, txn_id=3, lists={ORDERS: valid(2)})
    story.stage(3, 3, "c")
    story.write(4, 4, "d", time=50)
    story.snapshot(40, txn_id=3, lists={ORDERS: valid(3)})
    story.files(valid(3), "b", "c", txn_id=3)
    story.call("abort", txn_id=3)
    story.snapshot(60, lists={ORDERS: valid(4, 3)})
    story.files(valid(4, 3), "b", "d")
    story.files(valid(4), "b", "d")  # the rows of the aborted transaction were cleaned
    story.begin(5, time=70)
    story.commit(5, 0, ended=None)
    of_1 = [(1, "ACID_WRITE", 1), (2, "ACID_WRITE", 1), (3, "COMMIT_TXN", 1)]
    of_2 = [(4, "ACID_WRITE", 2), (5, "COMMIT_TXN", 2)]
    story.events(*of_1, *of_2, (6, "ACID_WRITE", 4), (7, "COMMIT_TXN", 4), (8, "ABORT_TXN", 3))
    story.call("change", author="ann", version=2)
    story.call("log", versions=((2, "ann"),))
    story.call("change", author="bob", error="unknown_outcome")
    story.call("change", author="carl", error="already_exists")
    story.call("change", author="dora", version=4, began=500, ended=600)
    story.call("change", author="eve", version=3, began=501, ended=599)
    story.call("log", began=601, ended=602, versions=((2, "ann"), (3, "eve"), (4, "dora")))
    assert check(story.operations) == []


def test_an_unanswered_commit_may_or_may_not_be_seen() -> None:
    for lists in ({ORDERS: valid(1)}, {ORDERS: valid(1, 1)}):
        story = Story()
        story.begin(1, time=10)
        story.stage(1, 1, "a")
        story.commit(1, 0, ended=None)
        story.snapshot(20, lists=lists)
        story.files(lists[ORDERS], *(["a"] if lists[ORDERS] == valid(1) else []))
        assert check(story.operations) == []


def test_a_commit_in_progress_may_or_may_not_be_seen() -> None:
    for time, text in ((19, valid(1, 1)), (21, valid(1))):
        story = Story()
        story.begin(1, time=10)
        story.stage(1, 1, "a")
        story.commit(1, 20, began=100, ended=200)
        story.snapshot(time, lists={ORDERS: text}, began=150, ended=160)
        assert check(story.operations) == []


def test_a_delete_file_may_be_gone_once_its_data_file_is_removed() -> None:
    story = two_commits()
    story.write(3, 3, "3-of-b-deletes.parquet", "c", touched=("b",), time=40)
    story.files(valid(3), "b", "c", "3-of-b-deletes.parquet")
    story.write(4, 4, removed=("b",), time=50)
    story.files(valid(4), "c", "3-of-b-deletes.parquet")
    story.files(valid(4), "c")
    assert check(story.operations) == []


def settled_commit(story: Story) -> None:
    """The outcome of a commit was lost, and learned later."""
    story.begin(3, time=36)
    story.stage(3, 3, "c")
    story.commit(3, 0, ended=None)
    story.snapshot(50, lists={ORDERS: valid(3, 3)})
    story.call("state", txn_id=3, status=COMMITTED, time=40)


def torn(story: Story) -> None:
    story.snapshot(50, lists={ORDERS: valid(2, 1), PARTS: valid(1)})


def stale(story: Story) -> None:
    story.snapshot(50, lists={ORDERS: valid(2, 2)})


def stale_for_a_transaction(story: Story) -> None:
    story.begin(3, time=40)
    story.snapshot(40, txn_id=3, lists={ORDERS: valid(2, 2)})


def stale_in_the_past(story: Story) -> None:
    story.snapshot(30, at=30, lists={ORDERS: valid(2, 2)})


def stale_by_real_time(story: Story) -> None:
    """The snapshot stands for a time before the commit, and was asked for after it."""
    story.snapshot(29, lists={ORDERS: valid(2, 2)})


def early_by_its_time(story: Story) -> None:
    story.snapshot(29, at=29, lists={ORDERS: valid(2)})


def early_of_an_open_transaction(story: Story) -> None:
    story.begin(3, time=40)
    story.stage(3, 3, "c")
    story.snapshot(50, lists={ORDERS: valid(3)})


def time_goes_back(story: Story) -> None:
    story.snapshot(33, lists={})


def a_write_vanishes(story: Story) -> None:
    story.snapshot(50, lists={ORDERS: valid(2, 1), PARTS: valid(1, 1)})


def commit_in_the_past(story: Story) -> None:
    story.write(3, 3, "c", time=25)


def lost_write(story: Story) -> None:
    story.files(valid(2))


def lost_delete_file(story: Story) -> None:
    story.write(3, 3, "3-of-b-deletes.parquet", touched=("b",), time=40)
    story.files(valid(3), "b")


def removed_file(story: Story) -> None:
    story.files(valid(2), "a", "b")


def early_write(story: Story) -> None:
    story.files(valid(1), "a", "b")


def aborted_write(story: Story) -> None:
    story.begin(3, time=40)
    story.stage(3, 3, "c")
    story.call("abort", txn_id=3)
    story.files(valid(3), "b", "c")


def unknown_file(story: Story) -> None:
    story.files(valid(2), "b", "z")


def file_of_another_table(story: Story) -> None:
    story.files(valid(2), "b", "x")


def own_write_missing(story: Story) -> None:
    story.begin(3, time=40)
    story.stage(3, 3, "c")
    story.files(valid(3), "b", txn_id=3)


def stale_view(story: Story) -> None:
    story.call("view", table_id=ORDERS, time=20, files=("a",))


def torn_view(story: Story) -> None:
    story.call("view", table_id=ORDERS, time=30, files=("a", "b"))


def lost_update(story: Story) -> None:
    story.write(3, 3, removed=("a",), time=40)


def two_deletes_at_once(story: Story) -> None:
    story.begin(3, time=40)
    story.begin(4, time=41)
    story.stage(3, 3, "b-deletes.parquet", touched=("b",))
    story.stage(4, 4, removed=("b",))
    story.commit(3, 50)
    story.commit(4, 51)


def write_id_of_two(story: Story) -> None:
    story.write(3, 2, "c", time=40)


def two_write_ids_of_one(story: Story) -> None:
    story.begin(3, time=40)
    story.stage(3, 3, "c")
    story.stage(3, 4, "d")


def begun_twice(story: Story) -> None:
    story.begin(2, time=40)


def table_id_of_two(story: Story) -> None:
    for name in ("orders", "other"):
        story.call("create", table=name, table_id=3)


def committed_after_its_abort(story: Story) -> None:
    story.begin(3, time=40)
    story.call("abort", txn_id=3)
    story.commit(3, 50)


def aborted_after_its_commit(story: Story) -> None:
    story.call("state", txn_id=2, status=ABORTED)


def two_times(story: Story) -> None:
    story.commit(2, 31)


def a_gap_in_the_events(story: Story) -> None:
    story.events((1, "ACID_WRITE", 1), (3, "COMMIT_TXN", 1))


def another_event_under_the_number(story: Story) -> None:
    story.call("events", events=((1, "ACID_WRITE", 1),), began=1, ended=2)
    story.call("events", events=((1, "ACID_WRITE", 2),), began=1, ended=2)


def commits_exchanged(story: Story) -> None:
    story.events((1, "COMMIT_TXN", 2), (2, "COMMIT_TXN", 1))


def write_behind_its_commit(story: Story) -> None:
    story.events((1, "COMMIT_TXN", 1), (2, "ACID_WRITE", 1), (3, "COMMIT_TXN", 2))


def commit_without_an_event(story: Story) -> None:
    story.events((1, "COMMIT_TXN", 1))


def aborted_in_the_log(story: Story) -> None:
    story.events((1, "COMMIT_TXN", 1), (2, "ABORT_TXN", 2))


def hold_ignored(story: Story) -> None:
    story.call("hold", at=25, hold_id=1)
    story.call("snapshot", at=26, error="version_not_found")


def fenced_node(story: Story) -> None:
    story.call("takeover", generation=1)
    story.write(3, 3, "c", time=40)


def two_histories(story: Story) -> None:
    story.call("log", versions=((2, "ann"), (3, "bob")))
    story.call("log", versions=((2, "ann"), (3, "eve"), (4, "bob")))


def lost_change(story: Story) -> None:
    story.call("change", author="ann", version=2)
    story.call("log", versions=((2, "bob"), (3, "ann")))


def repeated_change(story: Story) -> None:
    story.call("change", author="ann", error="unknown_outcome")
    story.call("log", versions=((2, "ann"), (3, "bob"), (4, "ann")))


def refused_change(story: Story) -> None:
    story.call("change", author="ann", error="deadline_exceeded")
    story.call("log", versions=((2, "ann"),))


def version_order(story: Story) -> None:
    story.call("change", author="ann", version=3)
    story.call("change", author="bob", version=2)


BAD: dict[Callable[[Story], None], str] = {
    settled_commit: "stale list",
    torn: "torn transaction",
    stale: "stale list",
    stale_for_a_transaction: "stale list",
    stale_in_the_past: "stale list",
    stale_by_real_time: "stale list",
    early_by_its_time: "early list",
    early_of_an_open_transaction: "early list",
    time_goes_back: "non-monotonic read",
    a_write_vanishes: "non-monotonic read",
    commit_in_the_past: "commit times go back",
    lost_write: "lost write",
    lost_delete_file: "lost write",
    removed_file: "removed file",
    early_write: "early write",
    aborted_write: "aborted write",
    unknown_file: "unknown file",
    file_of_another_table: "unknown file",
    own_write_missing: "lost write",
    stale_view: "stale view",
    torn_view: "removed file",
    lost_update: "lost update",
    two_deletes_at_once: "lost update",
    write_id_of_two: "duplicated write id",
    two_write_ids_of_one: "duplicated write id",
    begun_twice: "duplicated transaction id",
    table_id_of_two: "reused table id",
    committed_after_its_abort: "abort ignored",
    aborted_after_its_commit: "abort ignored",
    two_times: "two commit times",
    a_gap_in_the_events: "event order",
    another_event_under_the_number: "event order",
    commits_exchanged: "event order",
    write_behind_its_commit: "event order",
    commit_without_an_event: "missing event",
    aborted_in_the_log: "false event",
    hold_ignored: "hold ignored",
    fenced_node: "fenced node",
    two_histories: "two histories",
    lost_change: "lost change",
    repeated_change: "repeated change",
    refused_change: "refused change",
    version_order: "version order",
}
"""What is added to `two_commits`, and the complaint that it must bring."""


@pytest.mark.parametrize("tell", BAD, ids=lambda tell: tell.__name__)
def test_an_unexplainable_history_brings_its_complaint(tell: Callable[[Story], None]) -> None:
    story = two_commits()
    assert story.kinds() == set()
    tell(story)
    assert BAD[tell] in story.kinds()


def test_removing_any_check_misses_a_complaint() -> None:
    for left_out in CHECKS:
        with pytest.MonkeyPatch.context() as patch:
            rest = tuple(judge for judge in CHECKS if judge is not left_out)
            patch.setattr(checker, "CHECKS", rest)
            missed = []
            for tell, kind in BAD.items():
                story = two_commits()
                tell(story)
                if kind not in story.kinds():
                    missed.append(tell)
        assert missed, left_out.__name__


def test_history_may_be_gone_after_its_hold_was_released() -> None:
    story = two_commits()
    story.call("hold", at=25, hold_id=1)
    story.call("release", hold_id=1)
    story.call("snapshot", at=26, error="version_not_found")
    assert check(story.operations) == []


def test_a_saved_and_loaded_history_brings_the_same_complaints(tmp_path: Path) -> None:
    story = two_commits()
    story.events((1, "COMMIT_TXN", 1), (2, "ABORT_TXN", 2))
    torn(story)
    save(story.operations, tmp_path / "history.jsonl")
    loaded = load(tmp_path / "history.jsonl")
    assert loaded == story.operations
    assert check(loaded) == check(story.operations) != []
    assert check([replace(op, client="other") for op in reversed(loaded)]) != []


def test_a_list_of_write_ids_is_parsed_as_the_reference_says() -> None:
    ids = ValidIds("default.t:12:7:7,12:8")
    assert [w for w in range(1, 15) if w in ids] == [1, 2, 3, 4, 5, 6, 9, 10, 11]
    assert 5 in ValidIds("null:5:9223372036854775807::")
