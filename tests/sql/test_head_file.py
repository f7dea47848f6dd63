"""The head file says what was committed, and finds any commit that is missing."""

from __future__ import annotations

import fcntl
import threading
from pathlib import Path

import pytest

from strandline.errors import CorruptData
from strandline.sql import head_file
from strandline.sql.head_file import HeadFile, Mark

MARKS = (Mark("version", "log", "SELECT max(version) FROM log"),)


@pytest.fixture
def head(tmp_path: Path) -> HeadFile:
    return HeadFile(tmp_path / "strandline.head", MARKS)


@pytest.mark.parametrize(
    ("stored", "missing"), [(4, "version 5"), (3, "versions 4 to 5"), (0, "versions 1 to 5")]
)
def test_each_lost_commit_is_found_and_named(head: HeadFile, stored: int, missing: str) -> None:
    with pytest.raises(CorruptData, match=f"missing are {missing}, which"):
        head.compare({"version": 5}, {"version": stored})
    head.compare({"version": 5}, {"version": 5})
    head.compare({"version": 5}, {"version": 6})


def test_a_file_that_was_deleted_is_written_again(head: HeadFile) -> None:
    head.note({"version": 1})
    head.path.unlink()
    head.note({"version": 2})
    assert head.recorded_marks() == {"version": 2}
    head.close()


def test_a_mark_does_not_go_back_when_a_process_is_late(head: HeadFile) -> None:
    late = HeadFile(head.path, MARKS)
    late.note({"version": 1})
    head.note({"version": 3})
    late.note({"version": 2})
    assert head.recorded_marks() == {"version": 3}
    late.close()
    head.close()


def test_a_torn_write_leaves_the_marks_of_the_write_before(head: HeadFile) -> None:
    head.note({"version": 1})
    head.note({"version": 2})
    before = head.path.read_bytes()
    head.note({"version": 3})
    after = head.path.read_bytes()
    end = 1 + next(place for place, byte in enumerate(after) if before[place] != byte)
    head.path.write_bytes(after[:end] + before[end:])
    assert head.recorded_marks() == {"version": 2}
    head.close()


def test_a_process_waits_while_another_one_writes_the_file(head: HeadFile) -> None:
    head.note({"version": 1})
    with open(head.path, "rb+") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        writing = threading.Thread(target=head.note, args=({"version": 2},))
        writing.start()
        writing.join(0.2)  # without the lock, it would end in less than a millisecond
        assert writing.is_alive()
        assert head.recorded_marks() == {"version": 1}
    writing.join()
    assert head.recorded_marks() == {"version": 2}
    head.close()


def test_a_process_that_stopped_in_the_middle_of_a_write_holds_up_no_other(
    head: HeadFile, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(head_file, "_LOCK_SECONDS", 0.01)
    head.note({"version": 1})
    with open(head.path, "rb+") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        for version in (2, 3):
            writing = threading.Thread(target=head.note, args=({"version": version},), daemon=True)
            writing.start()
            writing.join(60)
            assert not writing.is_alive()
        assert head.recorded_marks() == {"version": 1}
    assert caplog.text.count("a process keeps it locked; if it is stopped, resume or end it") == 1
    head.note({"version": 3})
    assert head.recorded_marks() == {"version": 3}
    head.close()
