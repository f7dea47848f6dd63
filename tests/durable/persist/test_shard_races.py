"""A shard whose answers are lost, or to which several nodes write."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any

import pytest

from strandline.durable.collections import STORAGE_USAGE_EVENT
from strandline.durable.contents import EMPTY
from strandline.durable.log import Frontier
from strandline.durable.persist.persist_log import open_persist_log
from strandline.errors import OutOfSync, Stopping, Unavailable, UnknownOutcome
from tests.durable.persist.conftest import LARGE, Place, contents_of, meddled, versions
from tests.durable.updates import TOKEN, begin, update


@pytest.mark.parametrize("error", [UnknownOutcome("cut"), OSError("cut")])
def test_the_outcome_of_an_unanswered_append_is_found_by_its_token(
    place: Place, error: Exception
) -> None:
    """Even if its version is silent and trimmed since, so that only the token shows it."""
    other = place.log()
    begin(other, 1)
    cut = [True]

    def compare_and_set(real: Any, *arguments: Any, **named: Any) -> Any:
        answer = real(*arguments, **named)
        if cut and cut.pop():
            other.append(3, TOKEN, [update(3)])
            assert other.compact(3, TOKEN)
            raise error
        return answer

    log = place.log(consensus=meddled(place.consensus, "compare_and_set", compare_and_set))
    mine = update(2, "configure")
    for _ in range(2):
        (appended,) = log.append(2, TOKEN, [mine])  # version 2 is trimmed, and its id with it
        assert (appended.version, appended.id) == (2, mine.id)
        assert appended.time < other.snapshot().time
    assert log.frontier().upper == 4


def test_an_append_that_never_arrived_can_be_retried(place: Place) -> None:
    begin(place.log(), 1)
    lost = [UnknownOutcome("lost"), Unavailable("away")]

    def compare_and_set(real: Any, *arguments: Any, **named: Any) -> Any:
        if lost:
            raise lost.pop()
        return real(*arguments, **named)

    log = place.log(consensus=meddled(place.consensus, "compare_and_set", compare_and_set))
    mine = [update(2, objects=LARGE)]
    for message in ("away", "lost"):
        with pytest.raises(Unavailable, match=message):
            log.append(2, TOKEN, mine)
        assert place.log().frontier().upper == 2
    log.append(2, TOKEN, mine)
    assert versions(place.log()) == [1, 2]
    log.maintenance.sweep()
    assert place.blobs() == log.shard.known.blobs()


def test_a_lost_append_is_out_of_sync_once_another_node_has_taken_its_version(place: Place) -> None:
    other = place.log()
    begin(other, 1)
    lost = [UnknownOutcome("lost")]

    def compare_and_set(real: Any, *arguments: Any, **named: Any) -> Any:
        if lost:
            raise lost.pop()
        return real(*arguments, **named)

    log = place.log(consensus=meddled(place.consensus, "compare_and_set", compare_and_set))
    mine, theirs = update(2, objects=LARGE), update(2)
    with pytest.raises(UnknownOutcome):
        log.append(2, TOKEN, [mine])
    other.append(2, TOKEN, [theirs])
    unsettled = place.blobs()
    with pytest.raises(OutOfSync, match="the next version is 3"):
        log.append(2, TOKEN, [mine])
    assert place.blobs() == unsettled, "the refused append has removed what it uploaded"
    assert [logged.id for logged in place.log().updates(2, 3)] == [theirs.id]
    log.maintenance.sweep()
    assert place.blobs() == log.shard.known.blobs()


@pytest.mark.parametrize("what", ["append", "tidy"])
def test_parts_named_by_a_change_of_unknown_outcome_are_kept(place: Place, what: str) -> None:
    """Even if the store was closed in between: the change may have been made nevertheless."""
    begin(place.log(every=1000), 2)

    def compare_and_set(real: Any, *arguments: Any, **named: Any) -> Any:
        real(*arguments, **named)
        raise Stopping("the store is closed here")

    closing = place.log(consensus=meddled(place.consensus, "compare_and_set", compare_and_set))
    with pytest.raises(Stopping):
        if what == "append":
            closing.append(3, TOKEN, [update(3, objects=LARGE)])
        else:
            closing.maintenance.tidy()
    expected = [1, 2, 3] if what == "append" else [1, 2]
    assert versions(place.log()) == expected


@pytest.mark.parametrize("call", [1, 2])
def test_listen_misses_no_append_made_while_it_looks(place: Place, call: int) -> None:
    log = place.log()
    begin(log, 1)
    left = [call]

    def revision(real: Any) -> Any:
        left[0] -= 1
        if not left[0]:
            log.append(2, TOKEN, [update(2)])
        return real()

    listener = place.log(consensus=meddled(place.consensus, "revision", revision))
    is_new = listener.listen(Frontier(0, 2), timeout=0)
    assert is_new == (log.frontier().upper == 3)


def test_processes_that_open_a_new_log_at_once_have_the_same_shard(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def opened(environment: str) -> str:
        log = open_persist_log(
            place.store,
            folder=place.folder,
            blobs="",
            default_blobs="",
            folder_mode=0o700,
            environment=environment,
        )
        return log.shard.name

    first: list[str] = []

    def overtaken(key: str) -> None:
        monkeypatch.undo()
        first.append(opened("first"))

    monkeypatch.setattr(place.store, "get", overtaken)
    assert [opened("second")] == first


def test_an_overtaken_tidy_brings_no_older_rollup_back(place: Place) -> None:
    log, other = place.log(every=1000), place.log(every=1000)
    begin(log, 2)
    log.maintenance.tidy()  # so that the next ones replace no batch
    overtaking = [True]

    def compare_and_set(real: Any, *arguments: Any, **named: Any) -> Any:
        if overtaking and overtaking.pop():
            other.prune(STORAGE_USAGE_EVENT, 2, TOKEN)
            other.maintenance.tidy()
        return real(*arguments, **named)

    late = place.log(consensus=meddled(place.consensus, "compare_and_set", compare_and_set))
    late.maintenance.tidy()
    assert versions(place.log()) == [1, 2]
    late.append(3, TOKEN, [update(3)])
    assert versions(place.log()) == [1, 2, 3]


def test_an_append_succeeds_even_if_the_maintenance_after_it_fails(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(real: Any, *arguments: Any) -> Any:
        raise OSError("no such thing was expected")

    log = place.log(blob=meddled(place.blob, "set", fail))
    with caplog.at_level(logging.ERROR):
        begin(log, 4)
    assert "no such thing was expected" in caplog.text
    assert versions(place.log()) == [1, 2, 3, 4]


def test_writers_racing_with_maintenance_lose_and_duplicate_nothing(place: Place) -> None:
    begin(place.log(), 1)
    acknowledged: list[tuple[int, bytes]] = []

    def write(seed: int) -> None:
        random, log = Random(seed), place.log(every=2)
        for _ in range(8):
            upper = log.frontier().upper
            mine = update(upper, objects=random.choice([1, 1, LARGE]))
            try:
                log.append(upper, TOKEN, [mine])
            except OutOfSync:
                continue
            acknowledged.append((mine.version, mine.id))
            if random.random() < 0.2:
                log.compact(random.randrange(1, upper + 1), TOKEN)

    with ThreadPoolExecutor(3) as threads:
        list(threads.map(write, range(3)))
    log = place.log()
    since, upper = log.frontier().since, log.frontier().upper
    assert [version for version, _ in sorted(acknowledged)] == list(range(2, upper))
    assert [(logged.version, logged.id) for logged in log.updates(since + 1, upper)] == [
        logged for logged in sorted(acknowledged) if logged[0] > since
    ]
    assert [s.version for s in log.scan("audit_event", 1, upper)] == list(range(2, upper))
    log.maintenance.sweep()
    assert place.blobs() == log.shard.known.blobs()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_random_steps_on_two_nodes_keep_every_appended_update(place: Place, seed: int) -> None:
    random = Random(seed)
    logs = [place.log(every=random.choice([1, 2, 5])) for _ in range(2)]
    begin(logs[0], 1)
    appended = list(logs[0].updates(1, 2))
    for _ in range(25):
        log, upper = random.choice(logs), len(appended) + 1
        match random.choice(["append", "append", "append", "large", "compact", "tidy", "sweep"]):
            case "append":
                count = random.randrange(1, 4)
                appended += log.append(upper, TOKEN, [update(upper + n) for n in range(count)])
            case "large":
                appended += log.append(upper, TOKEN, [update(upper, objects=LARGE)])
            case "compact":
                log.compact(random.randrange(1, upper), TOKEN)
            case "tidy":
                log.maintenance.tidy()
            case "sweep":
                log.maintenance.sweep()
        reader = random.choice([*logs, place.log()])
        frontier = reader.frontier()
        assert frontier.upper == len(appended) + 1
        start = random.randrange(frontier.since + 1, frontier.upper + 1)
        end = random.randrange(start, frontier.upper + 1)
        assert list(reader.updates(start, end)) == appended[start - 1 : end - 1]
        assert [s.version for s in reader.scan("audit_event", start, end)] == [
            version for version in range(start, end) if version > 1
        ]
    contents = EMPTY
    for logged in appended:
        contents = contents.apply(logged.changes(), at=logged.time)
    assert contents_of(place.log()) == contents
