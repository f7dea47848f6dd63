"""A snapshot of the log is complete: the objects of every kind, and the times from the log."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from strandline.catalog import CatalogManager
from strandline.catalog.commands import CreateSchema
from strandline.clock import Timestamp, add_milliseconds
from strandline.durable.collections import COLLECTIONS
from strandline.durable.contents import EMPTY, Contents, restore
from strandline.durable.log import snapshot_of
from strandline.durable.update import CatalogSnapshot, Change
from strandline.errors import UnknownOutcome
from strandline.wire.registry import decode, encode
from strandline.wire.stored import AnyStored
from tests.conftest import ManualWall, await_no_activation
from tests.golden import goldens_0_1_0, goldens_0_2_0

Managers = Callable[..., CatalogManager]
DELAY_MS = 60_000


def one_of_each() -> Contents:
    """An object of each kind, the n-th changed at the time n."""
    goldens = [*goldens_0_1_0.GOLDENS, *goldens_0_2_0.GOLDENS]
    examples = {type(value): value for value, _ in goldens}
    contents = EMPTY
    for number, kind in enumerate(COLLECTIONS.values(), 1):
        stored = kind.stored_value(examples[kind.of])
        change = Change(kind.kind, kind.key(stored), None, stored.data)
        contents = contents.apply([change], at=Timestamp(number))
    return contents


def lost_in_a_snapshot() -> list[str]:
    """The kinds whose object is lost, or gets another time, in a snapshot's record."""
    contents = one_of_each()
    written = encode(snapshot_of(7, Timestamp(99), contents))
    snapshot = decode(written, CatalogSnapshot)
    again = restore(snapshot)

    def held(of: Contents, kind: str) -> list[tuple[bytes, Timestamp]]:
        return [(stored.data, stored.updated) for stored in of.objects(kind)]

    return [
        kind
        for kind in COLLECTIONS
        if not held(contents, kind) or held(again, kind) != held(contents, kind)
    ]


def test_a_snapshot_has_the_objects_of_every_kind_and_their_times() -> None:
    assert lost_in_a_snapshot() == []
    assert len(one_of_each().dump()) == len(COLLECTIONS)


@pytest.mark.parametrize("kind", COLLECTIONS)
def test_a_snapshot_that_lacks_a_kind_is_detected(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Contents._in_order

    def without(self: Contents) -> Iterator[tuple[str, list[AnyStored]]]:
        return (item for item in real(self) if item[0] != kind)

    monkeypatch.setattr(Contents, "_in_order", without)
    assert lost_in_a_snapshot() == [kind]


def test_a_snapshot_that_gives_all_objects_the_same_time_is_detected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Contents, "times", lambda self: ())
    assert lost_in_a_snapshot() == list(COLLECTIONS)


def times_after_a_trim(new_manager: Managers, wall: ManualWall) -> list[Timestamp]:
    """How far three times of a trimmed version are from the time that the log gave it.

    They are those of the snapshot, of its schema, and of the catalog after a restart, less the
    delay.
    """
    manager = new_manager(delay_ms=DELAY_MS)
    await_no_activation(manager)
    with pytest.raises(UnknownOutcome, match="becomes active"):
        manager.execute(CreateSchema(name="s"), author="ann")
    version = manager.latest_catalog().version
    given = manager.state.log.updates(version, version + 1)[0].time
    wall.now += 10 * DELAY_MS
    assert manager.compact(version)
    snapshot = manager.state.log.snapshot()
    of_kinds = dict(zip((kind for kind, _ in snapshot.kinds), snapshot.times, strict=True))
    restarted = new_manager().catalog(version)
    return [
        Timestamp(time - given)
        for time in (
            snapshot.time,
            max(of_kinds["schema"]),
            restarted.time - add_milliseconds(given, DELAY_MS) + given,
        )
    ]


def test_a_snapshot_keeps_the_time_of_the_log_and_not_the_activation_time(
    new_manager: Managers, wall: ManualWall
) -> None:
    assert times_after_a_trim(new_manager, wall) == [0, 0, 0]


def test_a_snapshot_that_keeps_the_activation_time_is_detected(
    new_manager: Managers, wall: ManualWall, monkeypatch: pytest.MonkeyPatch
) -> None:
    def late(version: int, time: Timestamp, contents: Contents) -> CatalogSnapshot:
        return snapshot_of(version, add_milliseconds(time, DELAY_MS), contents)

    monkeypatch.setattr("strandline.durable.log.snapshot_of", late)
    snapshot, of_schema, restarted = times_after_a_trim(new_manager, wall)
    assert snapshot == restarted == add_milliseconds(Timestamp(0), DELAY_MS)
    assert of_schema == 0
