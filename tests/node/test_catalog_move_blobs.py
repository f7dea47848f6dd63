"""Moves to the log ``persist`` whose first place for the blobs turns out to be unusable."""

from __future__ import annotations

import errno
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from strandline.durable.log_copy import LogCopy
from strandline.durable.persist import shard
from strandline.durable.persist.blob import FileBlob
from strandline.errors import Conflict, InvalidInput, StrandlineError
from strandline.node import Node
from strandline.node.catalog_log import open_log
from strandline.node.catalog_move import move_catalog
from tests.node.moved_catalogs import commit, joined, log_of, place_of
from tests.node.test_catalog_log import fill, tables


def move_to_blobs(folder: Path, blobs: Path, *, to: str = "persist") -> None:
    with place_of(folder) as place:
        move_catalog(place, replace(place, blobs=str(blobs)), leaving="", to=to)


@pytest.mark.parametrize("log", ["persist", "shadow:persist+stash"])
def test_a_move_whose_blobs_fill_their_disk_can_be_made_to_another_place(
    log: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, full, other = tmp_path / "s", tmp_path / "full", tmp_path / "other"
    with Node.open(folder) as node:
        fill(node, "t", rows=0)
    set_blob = FileBlob.set

    def set_if_small(blob: FileBlob, key: str, data: bytes) -> None:
        if data and blob._folder == full:
            raise OSError(errno.ENOSPC, "No space left on device")
        set_blob(blob, key, data)

    monkeypatch.setattr(FileBlob, "set", set_if_small)
    monkeypatch.setattr(shard, "INLINE_BYTES", 1)
    with pytest.raises(StrandlineError, match="No space left on device"):
        move_to_blobs(folder, full, to=log)
    move_to_blobs(folder, other, to=log)
    assert log_of(folder) == log
    with Node.open(folder) as node:
        assert tables(node) == ["t"]
    assert [*other.iterdir()]


def test_a_catalog_with_its_blobs_at_one_place_is_not_moved_to_another(tmp_path: Path) -> None:
    folder, blobs = tmp_path / "s", tmp_path / "blobs"
    with Node.open(folder) as node:
        fill(node, "t", rows=0)
    move_to_blobs(folder, blobs)
    for log in ("shadow:persist+stash", "shadow:stash+persist"):
        with pytest.raises(InvalidInput, match=f"the blobs of the catalog are in {blobs}"):
            move_to_blobs(folder, tmp_path / "other", to=log)
    with Node.open(folder) as node:
        assert tables(node) == ["t"]


def test_a_shard_of_another_catalog_with_its_blobs_elsewhere_stays(tmp_path: Path) -> None:
    folder, other_folder = tmp_path / "s", tmp_path / "other"
    other_folder.mkdir()
    with Node.open(folder) as node:
        fill(node, "t", rows=0)
    with ExitStack() as stack, place_of(folder) as place, joined(other_folder) as other:
        commit(other, "theirs")
        shard_of_other = replace(place, blobs=str(tmp_path / "theirs"), environment="other")
        log = open_log("persist", shard_of_other, stack).log
        LogCopy(other.log, log, names=("theirs", "copy")).level()
        before = log.snapshot()
        with pytest.raises(Conflict, match="has a different history"):
            move_to_blobs(folder, tmp_path / "mine")
        assert open_log("persist", shard_of_other, stack).log.snapshot() == before
