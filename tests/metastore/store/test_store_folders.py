"""The folders of a store: one place under every name of the folder, also a former one."""

from __future__ import annotations

from pathlib import Path

import pytest

from strandline.errors import Unavailable
from strandline.metastore.store.store_folders import StoreFolders
from strandline.metastore.store.warehouse import FolderRefused
from strandline.model.places import Place


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    folder = tmp_path / "lake"
    (folder / "warehouse/s.db/t").mkdir(parents=True)
    return folder


@pytest.fixture
def link(lake: Path) -> Path:
    """A link that leads to the folder of the store."""
    path = lake.with_name("link")
    path.symlink_to(lake)
    return path


def test_a_folder_that_is_opened_through_a_link_has_the_same_places_under_both_names(
    lake: Path, link: Path
) -> None:
    folders = StoreFolders(link)
    for name in (lake, link):
        assert folders.place(f"file:{name}/warehouse/s.db/t") == Place.below("s.db/t")
        assert folders.is_inside(f"{name}/strandline.db")


@pytest.mark.parametrize("location", ["/old/warehouse/s.db/t", "/old/deep/warehouse/s.db/t"])
def test_a_place_below_a_former_name_is_in_the_folder_of_now(lake: Path, location: str) -> None:
    folders = StoreFolders(lake, names=["/old", "/old/deep"])
    assert folders.place(location) == Place.below("s.db/t")


def test_a_folder_that_was_moved_into_its_former_place_keeps_its_paths(lake: Path) -> None:
    folders = StoreFolders(lake, names=[str(lake.parent)])
    assert folders.place(f"{lake}/warehouse/s.db/t") == Place.below("s.db/t")
    assert folders.place(f"{lake.parent}/warehouse/s.db/t") == Place.below("s.db/t")


def test_a_link_to_the_folder_of_now_is_no_former_name(lake: Path, link: Path) -> None:
    StoreFolders(lake, names=[str(link)]).refuse_former(f"{link}/elsewhere")


def test_nothing_is_made_or_listed_through_a_link_into_the_store(lake: Path, link: Path) -> None:
    folders = StoreFolders(lake, roots=[lake.parent])
    assert folders.may_make(f"{lake.parent}/new")
    assert folders.may_list(f"{lake.parent}/new")
    assert not folders.may_make(f"{link}/new")
    assert not folders.may_list(f"{link}/new")


@pytest.mark.parametrize(
    ("location", "table"), [("s.db/t2/p=1", "s.db/t"), ("s.db/t/p=1/q=2", "s.db/t/p=1")]
)
def test_a_folder_that_is_not_below_an_own_place_of_a_table_is_not_changed(
    lake: Path, location: str, table: str
) -> None:
    folders, warehouse = StoreFolders(lake), lake / "warehouse"
    folders.verify_below(f"{warehouse}/s.db/t/p=1", table=f"{warehouse}/s.db/t")
    with pytest.raises(FolderRefused):
        folders.verify_below(f"{warehouse}/{location}", table=f"{warehouse}/{table}")


def test_a_warehouse_that_is_made_with_its_first_table_meanwhile_is_in_its_place(
    tmp_path: Path,
) -> None:
    def first_table_is_made() -> bool:
        (tmp_path / "warehouse").mkdir()
        return True

    StoreFolders(tmp_path, has_tables=first_table_is_made).require_in_place()


def test_a_warehouse_whose_link_leads_nowhere_is_not_in_its_place(lake: Path) -> None:
    (lake / "warehouse").rename(lake.with_name("disk"))
    (lake / "warehouse").symlink_to(lake.with_name("disk"))
    folders = StoreFolders(lake)
    folders.require_in_place()
    lake.with_name("disk").rename(lake.with_name("unmounted"))
    with pytest.raises(Unavailable):
        folders.require_in_place()
