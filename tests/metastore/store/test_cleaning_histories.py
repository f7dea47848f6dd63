"""Random histories of a table that is cleaned: no reader ever gets a snapshot that lacks a file.

The test records what every reader saw. A reader with a hold or an open transaction must see the
same later, with all files on disk. A reader without them may be refused; otherwise it must see the
same names, whether or not the files still exist.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from strandline.clock import MAX_TIMESTAMP, Timestamp, add_milliseconds, system_wall_clock
from strandline.errors import VersionNotFound, WriteConflict
from strandline.metastore.store import cleaning, old_transactions, removed_rows
from strandline.metastore.store import row_queries as queries
from strandline.metastore.store.rows import RowKind
from strandline.node import Node
from strandline.transactions import ValidWriteIdList, holds, records
from tests.metastore.store.lake import RETENTION, SETTINGS, Lake

STEPS = 60
DAY = 24 * 3_600_000


@dataclass
class Reader:
    """What a reader saw; ``hold_id`` or ``txn_id`` keeps it."""

    write_ids: ValidWriteIdList
    names: list[str]
    time: Timestamp
    hold_id: int | None = None
    txn_id: int | None = None


class History:
    """One random history. ``check`` raises `AssertionError`."""

    def __init__(self, lake: Lake, seed: int) -> None:
        self.lake = lake
        self.random = random.Random(seed)
        self.table = lake.create()
        self.readers: list[Reader] = []
        self.writers: list[int] = []

    def run(self) -> None:
        """Take random steps, and check after each cleaning."""
        steps: list[Callable[[], object]] = [
            self.append, self.append, self.remove, self.remove, self.read, self.hold, self.begin,
            self.release, self.write_on, self.end, self.wait, self.trim, self.clean, self.clean,
        ]  # fmt: skip
        for _ in range(STEPS):
            self.random.choice(steps)()
        self.clean()

    def see(self, txn_id: int | None = None) -> Reader:
        snapshot = self.lake.session.open(["default.t"], txn_id=txn_id)
        write_ids = snapshot.write_ids[self.table]
        return Reader(write_ids, self.names(write_ids), snapshot.time, txn_id=txn_id)

    def names(self, write_ids: ValidWriteIdList) -> list[str]:
        """Return what a reader sees, which must be the same in memory and in the store."""
        store = self.lake.node.store
        seen = [
            [row.name for row in each.rows(self.table, RowKind.DATA_FILE, write_ids=write_ids)]
            for each in (store, store.sql_store)
        ]
        assert seen[0] == seen[1]
        return seen[0]

    def append(self) -> None:
        self.lake.write(self.table)

    def remove(self) -> None:
        names = self.see().names
        if names:
            with suppress(WriteConflict):
                self.lake.remove(self.table, self.random.choice(names))

    def read(self) -> None:
        self.readers.append(self.see())

    def hold(self) -> None:
        snapshot = self.lake.session.open(["default.t"])
        hold = self.lake.session.hold("reader", at=snapshot.time, ttl_ms=100 * DAY)
        write_ids = snapshot.write_ids[self.table]
        names = self.names(write_ids)
        self.readers.append(Reader(write_ids, names, snapshot.time, hold_id=hold.hold_id))

    def begin(self) -> None:
        self.readers.append(self.see(self.lake.session.begin().txn_id))

    def release(self) -> None:
        kept = [reader for reader in self.readers if reader.hold_id is not None]
        if kept:
            reader = self.random.choice(kept)
            self.lake.session.release_hold(reader.hold_id or 0)
            reader.hold_id = None

    def write_on(self) -> None:
        """Stage a file in a transaction that stays open."""
        txn_id = self.lake.session.begin().txn_id
        self.writers.append(txn_id)
        self.lake.write(self.table, txn_id=txn_id)

    def end(self) -> None:
        for kept in (reader for reader in self.readers if reader.txn_id is not None):
            self.lake.session.abort(kept.txn_id or 0)
            kept.txn_id = None
            break
        if self.writers:
            txn_id = self.writers.pop(0)
            if self.random.random() < 0.5:
                self.lake.session.commit(txn_id)
            else:
                self.lake.session.abort(txn_id)

    def wait(self) -> None:
        self.lake.wait(self.random.choice([3_600_000, DAY, RETENTION // 2, RETENTION]))

    def trim(self) -> None:
        self.lake.session.compact(self.lake.node.catalogs.earliest_catalog().version)

    def clean(self) -> None:
        self.lake.node.cleaner.clean()
        self.check()

    def check(self) -> None:
        present = self.see()
        on_disk = self.lake.on_disk()
        assert on_disk.issuperset(present.names)
        for reader in self.readers:
            is_kept = reader.hold_id is not None or reader.txn_id is not None
            then = self.lake.node.transactions.write_ids(self.table, at=reader.time)
            for write_ids in (reader.write_ids, then):
                try:
                    names = self.names(write_ids)
                except VersionNotFound:
                    assert not is_kept, "a held snapshot is refused"
                    continue
                assert names == reader.names, "a snapshot shows other files than before"
                assert not is_kept or on_disk.issuperset(names), "a file of a held snapshot is gone"


def run_history(folder: Path, seed: int) -> None:
    ahead = [0]
    wall = lambda: system_wall_clock() + ahead[0]  # noqa: E731 - shorter than a function
    settings = replace(SETTINGS, notification_retention_ms=DAY)  # so transactions go as well
    with Node.open(folder, settings=settings, wall=wall) as node:
        History(Lake(node, ahead), seed).run()


# -- faults, each of which a few histories find ----------------------------------------------------


@contextmanager
def holds_are_ignored(patch: pytest.MonkeyPatch) -> Iterator[None]:
    patch.setattr(
        holds,
        "_lowest",
        lambda connection, now, times, retention_ms, *, leaps: add_milliseconds(now, -retention_ms),
    )
    yield


@contextmanager
def open_transactions_are_ignored(patch: pytest.MonkeyPatch) -> Iterator[None]:
    patch.setattr(records, "oldest_begin", lambda connection: None)
    yield


@contextmanager
def older_lists_are_answered(patch: pytest.MonkeyPatch) -> Iterator[None]:
    patch.setattr(queries, "require_kept", lambda *arguments: None)
    yield


@contextmanager
def readers_do_not_know_what_is_cleaned(patch: pytest.MonkeyPatch) -> Iterator[None]:
    patch.setattr(queries, "_KEPT", queries._KEPT.replace("SELECT up_to", "SELECT NULL"))
    yield


@contextmanager
def files_of_open_transactions_are_leftovers(patch: pytest.MonkeyPatch) -> Iterator[None]:
    patch.setattr(cleaning, "_OPEN", "SELECT txn_id FROM txn WHERE txn_id < 0")
    patch.setattr(removed_rows, "_NAMED_FOR_GOOD", f"{removed_rows._NAMES} AND stored.row_id < 0")
    yield


@contextmanager
def removed_rows_of_any_time_go(patch: pytest.MonkeyPatch) -> Iterator[None]:
    patch.setattr(holds.Holds, "cleaning_limit", lambda self, dry_run=False: MAX_TIMESTAMP)
    patch.setattr(cleaning, "min", max, raising=False)
    yield


@contextmanager
def the_last_write_id_goes(patch: pytest.MonkeyPatch) -> Iterator[None]:
    old = old_transactions._OLD.replace(
        "later.commit_time > own.commit_time", "later.commit_time >= own.commit_time"
    )
    patch.setattr(old_transactions, "_OLD", old)
    yield


FAULTS = (
    holds_are_ignored,
    open_transactions_are_ignored,
    older_lists_are_answered,
    readers_do_not_know_what_is_cleaned,
    files_of_open_transactions_are_leftovers,
    removed_rows_of_any_time_go,
    the_last_write_id_goes,
)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_no_kept_snapshot_lacks_a_file(tmp_path: Path, seed: int) -> None:
    run_history(tmp_path / "lake", seed)


@pytest.mark.teeth
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_planted_fault_is_found(
    fault: Callable[[pytest.MonkeyPatch], Iterator[None]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for seed in range(20):
        try:
            with monkeypatch.context() as patch, fault(patch):  # type: ignore[attr-defined]  # a context manager
                run_history(tmp_path / str(seed), seed)
        except (AssertionError, FileNotFoundError):
            return
    pytest.fail(f"{fault.__name__} was not found")
