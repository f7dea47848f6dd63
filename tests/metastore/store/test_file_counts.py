"""Counting the files of a folder: which files count, and the limits."""

from __future__ import annotations

from pathlib import Path

import pytest

from strandline.metastore.store.file_counts import FileCounter, FileCounts
from strandline.metastore.store.store_folders import StoreFolders


def fill(folder: Path, **files: int) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, size in files.items():
        (folder / name).write_bytes(b"x" * size)
    return folder


def test_visible_files_are_counted_including_subfolders(tmp_path: Path) -> None:
    fill(tmp_path / "t", a=3, b=4, _SUCCESS=9)
    fill(tmp_path / "t" / "k=1" / "j=2", c=5)
    fill(tmp_path / "t" / "_temporary", d=100)
    fill(tmp_path / "t" / ".hive-staging", e=100)
    fill(tmp_path / "elsewhere", f=100)
    (tmp_path / "t" / "link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "t" / "file_link").symlink_to(tmp_path / "elsewhere" / "f")
    assert FileCounter().count(tmp_path / "t") == FileCounts(3, 12)


@pytest.mark.parametrize("name", ["file", "\0", "x" * 300])
def test_a_path_that_cannot_be_listed_has_no_count(tmp_path: Path, name: str) -> None:
    fill(tmp_path, file=1)
    assert FileCounter().count(tmp_path / name) is None


def test_a_folder_that_does_not_exist_has_no_files(tmp_path: Path) -> None:
    assert FileCounter().count(tmp_path / "none") == FileCounts(0, 0)


def test_the_limit_applies_to_all_folders_of_a_request_together(tmp_path: Path) -> None:
    for name in ("one", "two", "three"):
        fill(tmp_path / name, a=1, b=1)
    counter = FileCounter(max_entries=7)
    counted = [counter.count(tmp_path / name) for name in ("one", "two", "three")]
    assert counted == [FileCounts(2, 2), FileCounts(2, 2), None]


def test_counting_ends_after_the_time_limit(tmp_path: Path) -> None:
    fill(tmp_path, **{f"f{number}": 1 for number in range(300)})
    times = iter(range(100))
    counter = FileCounter(seconds=0.5, monotonic=lambda: float(next(times)))
    assert counter.count(tmp_path) is None
    assert next(times) < 5


def test_the_store_itself_is_not_listed(tmp_path: Path) -> None:
    folders = StoreFolders(fill(tmp_path / "lake"))
    (tmp_path / "link").symlink_to(tmp_path / "lake")
    in_schema = tmp_path / "lake" / "warehouse" / "s.db"
    in_schema.mkdir(parents=True)
    (in_schema / "to_table").symlink_to(in_schema / "t")
    (in_schema / "to_disk").symlink_to(tmp_path / "elsewhere")
    listed = {
        "lake/warehouse/s.db/t": True,
        "lake/warehouse/s.db/to_table": False,
        "lake/warehouse/s.db/to_disk": True,
        "elsewhere/t": True,
        "lake": False,
        "lake/warehouse": False,
        "lake/other": False,
        "link": False,
        "link/warehouse/s.db/t": False,
    }
    assert {name: folders.may_list(f"file:{tmp_path}/{name}") for name in listed} == listed
    assert not folders.may_list("s3://bucket/t")
