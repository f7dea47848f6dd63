"""What crashes of a shard's nodes leave behind, the sweep, and blobs that cannot be written."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from strandline.durable.persist import maintenance as maintenance_module
from strandline.durable.persist.blob import FileBlob
from strandline.durable.persist.persist_log import PersistLog
from strandline.errors import Unavailable
from tests.durable.persist.conftest import LARGE, Killed, Place, contents_of, meddled, versions
from tests.durable.updates import TOKEN, begin, update


def crashed(place: Place, step: str, *, call: int = 1) -> PersistLog:
    """A log whose process is killed right before the n-th call of ``step``."""
    left = [call]

    def die(real: Any, *arguments: Any, **named: Any) -> Any:
        left[0] -= 1
        if not left[0]:
            raise Killed
        return real(*arguments, **named)

    owner, _, method = step.partition(".")
    if owner == "blob":
        return place.log(every=1000, blob=meddled(place.blob, method, die))
    return place.log(every=1000, consensus=meddled(place.consensus, method, die))


@pytest.mark.parametrize(
    ("step", "call"), [("blob.set", 1), ("blob.set", 2), ("consensus.compare_and_set", 1)]
)
def test_a_crash_during_a_large_append_leaves_parts_that_a_sweep_removes(
    place: Place, step: str, call: int
) -> None:
    log = place.log(every=1000)
    begin(log, 3)
    with pytest.raises(Killed):
        crashed(place, step, call=call).append(4, TOKEN, [update(4, objects=LARGE)])
    assert versions(place.log()) == [1, 2, 3]
    assert len(place.blobs()) == (2 if step.startswith("consensus") else call - 1)
    log.maintenance.sweep()
    assert place.blobs() == set()
    log.append(4, TOKEN, [update(4, objects=LARGE)])
    assert versions(place.log()) == [1, 2, 3, 4]


@pytest.mark.parametrize("what", ["tidy", "compact"])
@pytest.mark.parametrize(
    "step",
    ["blob.set", "blob.list", "blob.delete", "consensus.compare_and_set", "consensus.truncate"],
)
@pytest.mark.parametrize("call", [1, 2])
def test_a_crash_during_maintenance_does_not_change_what_readers_see(
    place: Place, what: str, step: str, call: int
) -> None:
    log = place.log()
    begin(log, 6, objects=2)
    log.append(7, TOKEN, [update(version) for version in range(7, 13)])
    expected = contents_of(log)
    dying = crashed(place, step, call=call)
    try:
        if what == "compact":
            dying.compact(7, TOKEN)
        else:
            dying.append(13, TOKEN, [update(13, objects=LARGE)])
            dying.maintenance.tidy()
            dying.maintenance.sweep()
    except Killed:
        pass
    again = place.log()
    if again.frontier().upper == 14:
        assert versions(again)[-1] == 13
    else:
        assert contents_of(again) == expected
    upper = again.frontier().upper
    again.append(upper, TOKEN, [update(upper)])
    assert again.frontier().since in ((0, 7) if what == "compact" else (0,))
    again.compact(8, TOKEN)
    assert versions(again) == list(range(9, upper + 1))
    assert place.blobs() == again.shard.known.blobs()


def test_parts_uploaded_before_a_sweep_are_uploaded_again(place: Place) -> None:
    log = place.log(every=1000)
    begin(log, 1)
    swept: list[int] = []

    def compare_and_set(real: Any, *arguments: Any, **named: Any) -> Any:
        if not swept:
            swept.append(log.maintenance.sweep())
        return real(*arguments, **named)

    slow = place.log(consensus=meddled(place.consensus, "compare_and_set", compare_and_set))
    slow.append(2, TOKEN, [update(2, objects=LARGE)])
    assert swept == [2]
    assert versions(place.log()) == [1, 2]
    assert place.blobs() == log.shard.refresh().blobs()


def test_a_sweep_keeps_parts_that_were_uploaded_after_it_began(place: Place) -> None:
    log = place.log(every=1000)
    begin(log, 1)

    def append(real: Any, prefix: str) -> Any:
        log.append(2, TOKEN, [update(2, objects=LARGE)])
        return real(prefix)

    sweeper = place.log(every=1000, blob=meddled(place.blob, "list", append))
    assert sweeper.maintenance.sweep() == 0
    assert versions(place.log()) == [1, 2]


@pytest.mark.parametrize("read", ["updates", "snapshot", "scan"])
def test_a_reader_whose_parts_were_swept_reads_the_parts_that_replaced_them(
    place: Place, read: str
) -> None:
    log = place.log()
    begin(log, 9, objects=2)
    log.compact(2, TOKEN)
    swept: list[bool] = []

    def get(real: Any, key: str) -> Any:
        if not swept:
            swept.append(True)
            for version in range(10, 20):
                log.append(version, TOKEN, [update(version)])
            log.compact(4, TOKEN)
        return real(key)

    reader = place.log(blob=meddled(place.blob, "get", get))
    answers = {
        "updates": lambda: [logged.version for logged in reader.updates(5, 10)] == [5, 6, 7, 8, 9],
        "snapshot": lambda: reader.snapshot().version == 4,
        "scan": lambda: [s.version for s in reader.scan("audit_event", 3, 6)] == [3, 4, 5],
    }
    assert answers[read]()
    assert swept


def test_appends_continue_while_blobs_cannot_be_written_up_to_a_limit(
    place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(maintenance_module, "MAX_DIFFS", 10)
    away = [True]

    def write(real: Any, *arguments: Any) -> Any:
        if away:
            raise Unavailable("the disk is full")
        return real(*arguments)

    log = place.log(blob=meddled(place.blob, "set", write))
    log.maintenance.check()
    with caplog.at_level(logging.WARNING):
        begin(log, 11)
    with pytest.raises(Unavailable, match="blobs were not written for 11 changes"):
        log.maintenance.check()
    assert "maintenance of the catalog's log failed: the disk is full" in caplog.text
    with pytest.raises(Unavailable, match="the disk is full"):
        log.append(12, TOKEN, [update(12)])
    with pytest.raises(Unavailable, match="the disk is full"):
        log.append(12, TOKEN, [update(12, objects=LARGE)])
    away.clear()
    log.append(12, TOKEN, [update(12)])
    log.maintenance.check()
    assert versions(place.log()) == list(range(1, 13))


def test_a_trim_succeeds_even_if_the_sweep_after_it_fails(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(real: Any, *arguments: Any) -> Any:
        raise Unavailable("the folder does not answer")

    log = place.log(blob=meddled(place.blob, "list", fail))
    begin(log, 4)
    assert log.compact(3, TOKEN)
    assert "maintenance of the catalog's log failed: the folder does not answer" in caplog.text
    assert versions(place.log()) == [4]


def test_no_blob_is_written_below_a_folder_that_is_no_longer_mounted(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    begin(place.log(), 20)
    log = place.log(blob=FileBlob(place.folder / "blobs"))
    assert versions(log) == list(range(1, 21))
    (place.folder / "blobs").rename(place.folder / "unmounted")
    with caplog.at_level(logging.WARNING):
        for version in range(21, 31):
            log.append(version, TOKEN, [update(version)])
    assert f"the folder {place.folder}/blobs of the catalog's blobs is gone" in caplog.text
    with pytest.raises(Unavailable, match="mount it"):
        log.append(31, TOKEN, [update(31, objects=LARGE)])
    with pytest.raises(Unavailable, match="mount it"):
        log.compact(25, TOKEN)
    assert not (place.folder / "blobs").exists()
    (place.folder / "unmounted").rename(place.folder / "blobs")
    log.append(31, TOKEN, [update(31, objects=LARGE)])
    assert versions(place.log()) == list(range(1, 32))
