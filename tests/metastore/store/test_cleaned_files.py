"""Files and folders that cleaning may delete: only own ones, through no link."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from strandline.metastore.store import cleaned_files
from strandline.metastore.store.store_folders import StoreFolders
from strandline.model.places import Place


@pytest.mark.parametrize(
    ("place", "is_own"),
    [
        (Place.below("real.db/t"), True),
        (Place.below("linked.db/t"), False),
        (Place.below("real.db/t/part"), False),
        (Place("/elsewhere/t"), False),
        (Place("s3://bucket/t"), False),
    ],
)
def test_only_folders_that_the_store_chose_and_no_link_leads_to_are_cleaned(
    tmp_path: Path, place: Place, is_own: bool
) -> None:
    warehouse = tmp_path / "warehouse"
    (warehouse / "real.db" / "t" / "part").mkdir(parents=True)
    (warehouse / "linked.db").symlink_to(warehouse / "real.db")
    files = cleaned_files.CleanedFiles(StoreFolders(tmp_path))
    with files.own_folder(place) as folder:
        assert (folder is not None) == is_own


def test_what_another_node_has_deleted_is_not_counted_as_a_failure(tmp_path: Path) -> None:
    place = Place.below("real.db/t")
    (tmp_path / "warehouse" / place.path).mkdir(parents=True)
    files, cleaned = (
        cleaned_files.CleanedFiles(StoreFolders(tmp_path)),
        cleaned_files.Cleaned("leftovers", "t"),
    )
    with files.own_folder(place) as folder:
        assert folder is not None
        files.take(cleaned, folder, "_files/gone", delete=True)
    assert (cleaned.files, files.failures) == (0, 0)


def test_a_folder_that_two_nodes_delete_at_once_is_deleted_completely(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema, unlink = tmp_path / "warehouse" / "real.db", os.unlink
    job, dropped = schema / "t/_staging/job", schema / ".dropped/7"
    for path in (job, dropped):
        (path / "in").mkdir(parents=True)
        for name in ("in/a", "in/b", "c"):
            (path / name).touch()

    def after_the_other_node(path: str, *, dir_fd: int | None = None) -> None:
        unlink(path, dir_fd=dir_fd)
        unlink(path, dir_fd=dir_fd)

    monkeypatch.setattr(os, "unlink", after_the_other_node)
    files = cleaned_files.CleanedFiles(StoreFolders(tmp_path))
    cleaned = cleaned_files.Cleaned("leftovers", "t")
    with files.own_folder(Place.below("real.db/t")) as root:
        assert root is not None
        files.take(cleaned, root, "_staging/job", delete=True)
    files.take_folder(cleaned, Place.below("real.db/.dropped/7"), dropped, delete=True)
    assert not job.exists()
    assert not dropped.exists()
    assert files.failures == 0


def test_a_file_goes_with_its_own_folder_and_never_outside_of_its_table(tmp_path: Path) -> None:
    schema = tmp_path / "warehouse" / "real.db"
    names = ("t/_data/_file=1/a.parquet", "t/p=1/b.parquet", "other/c.parquet")
    for name in names:
        (schema / name).parent.mkdir(parents=True)
        (schema / name).touch()
    files = cleaned_files.CleanedFiles(StoreFolders(tmp_path))
    cleaned = cleaned_files.Cleaned("leftovers", "t")
    with files.own_folder(Place.below("real.db/t")) as root:
        assert root is not None
        for name in names:
            files.take(cleaned, root, f"../{name}".removeprefix("../t/"), delete=True)
    left = sorted(str(path.relative_to(schema)) for path in schema.rglob("*"))
    assert left == ["other", "other/c.parquet", "t", "t/_data", "t/p=1"]
    assert (cleaned.files, files.failures) == (2, 1)


def test_no_descriptor_stays_open_after_a_file_was_deleted(tmp_path: Path) -> None:
    files = cleaned_files.CleanedFiles(StoreFolders(tmp_path))
    cleaned = cleaned_files.Cleaned("leftovers", "t")
    path = tmp_path / "warehouse" / "real.db" / "t" / "_files" / "a.parquet"
    path.parent.mkdir(parents=True)
    path.touch()
    before = len(os.listdir("/dev/fd"))
    with files.own_folder(Place.below("real.db/t")) as root:
        assert root is not None
        files.take(cleaned, root, "_files/a.parquet", delete=True)
    assert not path.exists()
    assert len(os.listdir("/dev/fd")) == before


def test_a_folder_that_a_link_leads_to_is_not_deleted(tmp_path: Path) -> None:
    warehouse, outside = tmp_path / "warehouse", tmp_path / "outside"
    (outside / "7").mkdir(parents=True)
    warehouse.mkdir()
    (warehouse / ".dropped").symlink_to(outside)
    files, cleaned = (
        cleaned_files.CleanedFiles(StoreFolders(tmp_path)),
        cleaned_files.Cleaned("dropped", "t"),
    )
    ((path, _, place),) = files.set_aside()
    files.take_folder(cleaned, place, path, delete=True)
    assert (outside / "7").is_dir()
    assert (cleaned.names, files.failures) == ([], 1)
