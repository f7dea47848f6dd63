"""The folder of a table while files are added to it. No Spark session is needed."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from strandline.errors import ObjectNotFound, Unavailable, UnsupportedOperation, WriteConflict
from strandline.spark.folder import TableFolder, spark_path
from strandline.spark.partitions import KEY
from strandline.spark.positions import write_delete_file
from strandline.spark.transaction import TablesTransaction, _OpenedTable
from strandline.spark.writing import _files as written_files
from strandline.transactions import TransactionState
from tests.spark.data import files


@pytest.fixture
def place(tmp_path: Path) -> Path:
    path = tmp_path / "orders"
    path.mkdir()
    return path


@pytest.fixture
def folder(place: Path) -> Iterator[TableFolder]:
    opened = TableFolder(f"file:{place}", table="shop.orders")
    yield opened
    opened.close()


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files and folders that are synced from now on."""
    paths, fsync = list[Path](), os.fsync

    def note(descriptor: int) -> None:
        paths.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    return paths


def write(path: Path, name: str = "part-0") -> None:
    path.mkdir(parents=True)
    (path / name).write_text("rows")


def is_closed(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return True
    return False


def test_a_file_is_placed_under_a_name_that_contains_its_id(folder: TableFolder) -> None:
    staging = folder.new_staging(4)
    write(folder.path / staging)
    with folder.staged(staging) as staged:
        relative = folder.place(staged, "part-0", 77)
    assert is_closed(staged)
    folder.sync()
    folder.discard_staging(staging)
    assert files(folder.path) == [relative]
    assert relative.startswith("_files/77-")
    folder.discard(relative)
    assert files(folder.path) == []
    assert os.listdir(folder.path / "_files") == []


def test_the_files_of_a_job_and_their_folders_are_on_disk_after_a_sync(
    folder: TableFolder, place: Path, synced: list[Path]
) -> None:
    staging = folder.new_staging(4)
    written = [place / staging / name for name in (f"{KEY}=1/part-1", "part-0")]
    for path in written:
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({"k": [1]}), path)
    (place / staging / "_SUCCESS").touch()
    with folder.staged(staging) as staged:
        before = os.listdir("/proc/self/fd")
        names = [file.name for file in written_files(staged)]
        assert os.listdir("/proc/self/fd") == before
        for number, name in enumerate(names):
            folder.place(staged, name, number)
    assert sorted(names) == [f"{KEY}=1/part-1", "part-0"]
    assert sorted(synced) == sorted(written)
    folder.sync()
    assert synced[2:] == [place / "_files", place]


def test_a_delete_file_and_its_folders_are_on_disk(
    folder: TableFolder, place: Path, synced: list[Path]
) -> None:
    row = write_delete_file(folder, {1: np.array([1], np.int64)}, txn_id=3)
    assert synced == [place / row.path, place / "_deletes", place]


def test_a_file_is_placed_in_the_moved_folder_if_the_folder_moves_meanwhile(
    folder: TableFolder, place: Path
) -> None:
    staging = folder.new_staging(4)
    write(place / staging)
    moved = place.with_name("renamed")
    with folder.staged(staging) as staged:
        place.rename(moved)
        relative = folder.place(staged, "part-0", 77)
        folder.sync()
    folder.discard_staging(staging)
    assert files(moved) == [relative]
    assert not place.exists()


def test_no_descriptor_stays_open_if_the_folder_moved_after_the_job(
    folder: TableFolder, place: Path
) -> None:
    """Another table has got the old folder."""
    staging = folder.new_staging(4)
    write(place / staging)
    place.rename(place.with_name("renamed"))
    place.mkdir()
    before = os.listdir("/proc/self/fd")
    with pytest.raises(WriteConflict, match="renamed or dropped"), folder.staged(staging):
        raise AssertionError("the job's files are not those of the table")
    assert os.listdir("/proc/self/fd") == before


def test_the_folder_of_a_table_stays_after_its_first_job_failed(folder: TableFolder) -> None:
    staging = folder.new_staging(4)
    write(folder.path / staging)
    folder.discard_staging(staging)
    assert folder.path.is_dir()


def test_a_closed_folder_closes_no_descriptor_of_others(folder: TableFolder, place: Path) -> None:
    folder.close()
    other = os.open(place, os.O_RDONLY)  # has the number of the one that was closed
    folder.close()
    os.close(other)


def test_a_table_that_is_renamed_while_its_folder_is_opened_is_opened_at_its_new_place(
    place: Path,
) -> None:
    """Another table has got the old folder."""
    renamed = place.with_name("renamed")
    renamed.mkdir()
    before = len(os.listdir("/dev/fd"))
    locations = iter([f"file:{place}", *(f"file:{renamed}" for _ in range(3))])
    table: Any = SimpleNamespace(name="shop.orders")
    write_ids: Any = None
    opened = _OpenedTable(table, write_ids, locate=lambda: next(locations))
    assert opened.folder.path == renamed
    assert opened.folder is opened.folder
    opened.close()
    assert len(os.listdir("/dev/fd")) == before


@pytest.mark.parametrize(
    ("outcome", "removed"),
    [
        (TransactionState.ABORTED, True),
        (TransactionState.COMMITTED, False),
        (TransactionState.OPEN, False),
        (None, False),  # the store does not answer
    ],
)
def test_files_are_removed_only_if_their_transaction_is_certainly_aborted(
    place: Path, outcome: TransactionState | None, *, removed: bool
) -> None:
    """The answer to the commit was lost."""

    def looked_up(txn_id: int) -> SimpleNamespace:
        if outcome is None:
            raise Unavailable("the node does not answer")
        return SimpleNamespace(state=outcome)

    session: Any = SimpleNamespace(transaction=looked_up)
    begun: Any = SimpleNamespace(txn_id=4, state=TransactionState.OPEN)
    nothing: Any = None
    table: Any = SimpleNamespace(name="shop.orders")
    opened = _OpenedTable(table, nothing, locate=lambda: f"file:{place}")
    (place / "written").touch()
    opened.placed.append("written")
    transaction = TablesTransaction(nothing, session, begun)
    only_read = _OpenedTable(table, nothing, locate=lambda: f"file:{place}")
    transaction._opened = {"shop.orders": opened, "shop.read": only_read}
    descriptor = opened.folder._folder
    transaction._end()
    assert (place / "written").exists() != removed
    assert is_closed(descriptor)


@pytest.mark.parametrize(
    ("answer", "taken"),
    [
        ("file:/old", True),
        ("file:/new", False),
        (ObjectNotFound("dropped"), False),
        (Unavailable("the node does not answer"), True),
    ],
)
def test_the_old_folder_of_a_table_is_taken_unless_it_is_certain_that_no_table_has_it(
    answer: str | Exception, *, taken: bool
) -> None:
    def looked_up(name: str) -> SimpleNamespace:
        if isinstance(answer, Exception):
            raise answer
        return SimpleNamespace(location=answer)

    nothing: Any = None
    session: Any = SimpleNamespace(table=looked_up)
    transaction = TablesTransaction(nothing, session, nothing)
    assert transaction._is_taken("shop.orders", "file:/old") == taken


@pytest.mark.parametrize("written_at", ["old place", "new place", "both"])
def test_files_that_a_job_wrote_while_the_folder_moved_are_refused(
    folder: TableFolder, place: Path, written_at: str
) -> None:
    staging = folder.new_staging(4)
    if written_at != "old place":
        write(place / staging)
    moved = place.rename(place.with_name("renamed"))
    if written_at != "new place":
        write(place / staging)
    with pytest.raises(WriteConflict, match="renamed or dropped"), folder.staged(staging):
        pass
    folder.discard_staging(staging)
    assert files(moved) == []
    assert not place.exists()


def test_a_delete_file_is_complete_when_it_is_synced(
    folder: TableFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "fsync", lambda of: synced.append((of, os.fstat(of).st_size)))
    with folder.new_delete_file(3) as (_, file):
        file.write(b"whole")
    assert synced[0][1] == len(b"whole")
    assert all(is_closed(descriptor) for descriptor, _ in synced)


def test_a_delete_file_whose_writing_fails_is_removed(folder: TableFolder) -> None:
    with pytest.raises(ValueError), folder.new_delete_file(3) as (_, file):
        file.write(b"half")
        raise ValueError
    assert files(folder.path) == []


@pytest.mark.parametrize("failing", ["job", "delete file", "sync"])
def test_a_full_disk_raises_unavailable_with_the_table_and_its_folder(
    folder: TableFolder, place: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    staging = folder.new_staging(4)
    (place / staging).mkdir(parents=True)
    pq.write_table(pa.table({"k": [1]}), place / staging / "part-0")

    def no_space(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(Unavailable) as caught:
        match failing:
            case "job":
                with folder.staged(staging) as staged:
                    written_files(staged)
            case "delete file":
                write_delete_file(folder, {1: np.array([1], np.int64)}, txn_id=3)
            case "sync":
                folder.sync()
    assert caught.value.message == (
        f"a file of shop.orders cannot be written into {place}: No space left on device; the"
        " statement changed nothing; check the space, the rights and the disk, and try again"
    )
    assert files(place) == [f"{staging}/part-0"]


def test_the_error_of_a_signal_handler_is_raised_as_it_is(folder: TableFolder) -> None:
    with pytest.raises(TimeoutError, match="the job's limit"), folder.new_delete_file(3):
        raise TimeoutError("the job's limit")


def test_a_missing_folder_raises_unavailable_with_the_table_name(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match=r"shop\.orders"):
        TableFolder(str(tmp_path / "nowhere"), table="shop.orders")


def test_a_folder_on_an_object_store_is_refused() -> None:
    with pytest.raises(UnsupportedOperation, match="s3"):
        TableFolder("s3://bucket/orders", table="shop.orders")


def test_a_path_is_escaped_for_calls_in_which_spark_reads_it_as_a_pattern() -> None:
    path = Path("/a b/{x}[y]*?\\z")
    assert spark_path(path) == "file:/a b/{x}[y]*?\\z"
    assert spark_path(path, pattern=True) == "file:/a b/\\{x\\}\\[y\\]\\*\\?\\\\z"
