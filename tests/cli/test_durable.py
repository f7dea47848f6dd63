"""``strandline durable migrate`` on the command line."""

from __future__ import annotations

import shutil
import stat
from pathlib import Path

import pytest

from strandline.catalog.commands import CreateSchema
from strandline.config import Settings
from strandline.node import Node
from tests.servers import stores
from tests.strandline_command import strandline


def run(*arguments: object, fails: bool = False) -> str:
    result = strandline(*arguments)
    assert (result.exit_code != 0) is fails, result.output
    return result.output


@pytest.mark.parametrize("kind", ["folder", "postgresql"])
def test_a_store_moves_to_the_named_log_and_continues_there(kind: str, tmp_path: Path) -> None:
    made = stores.new_store(kind, tmp_path)
    with Node.open(made.address, settings=made.settings) as node:
        node.session(user="ann").execute(CreateSchema(name="shop"))
    before = run("log", made.address)
    said = run("durable", "migrate", "--from", made.address, "--to", f"{made.address}#persist")
    assert "are the same in both logs" in said
    assert "is now in the log persist; start the nodes again" in said
    assert run("log", made.address) == before
    assert "0 errors" in run("verify", made.address)
    with Node.open(made.address, settings=made.settings) as node:
        node.session(user="ann").execute(CreateSchema(name="later"))
    assert "later" in run("log", made.address)


@pytest.mark.parametrize(
    ("log", "blobs", "refusal"),
    [
        ("persist", "file/blobs", "cannot be written"),
        ("persist", "s3://nowhere", "did not answer"),
        ("stash", "blobs", "and stash has no blobs"),
        ("shadow", "blobs", "and shadow has no blobs"),
    ],
)
def test_an_unusable_place_for_blobs_is_refused_before_the_move(
    log: str, blobs: str, refusal: str, tmp_path: Path
) -> None:
    Node.open(tmp_path / "lake").close()
    (tmp_path / "file").write_text("in the way")
    # No server listens on port 1.
    place = f"{blobs}?endpoint=http://127.0.0.1:1" if "://" in blobs else tmp_path / blobs
    move = ("durable", "migrate", "--from", tmp_path / "lake", "--to")
    said = run(*move, f"{tmp_path}/lake#{log}", "--catalog-blobs", place, fails=True)
    assert refusal in said
    assert "now in the log persist" in run(*move, f"{tmp_path}/lake#persist")


def test_a_folder_of_blobs_that_a_move_makes_has_the_mode_of_the_setting(tmp_path: Path) -> None:
    lake, blobs = tmp_path / "lake", tmp_path / "blobs"
    Node.open(lake).close()
    move = ("durable", "migrate", "--from", lake, "--to", f"{lake}#persist")
    assert "now in the log persist" in run(*move, "--catalog-blobs", blobs)
    assert stat.S_IMODE(blobs.stat().st_mode) == 0o700


def test_another_place_for_blobs_is_refused_before_a_shadow_is_left_for_its_first_log(
    tmp_path: Path,
) -> None:
    lake = tmp_path / "lake"
    Node.open(lake, settings=Settings(catalog_log="shadow:persist+stash")).close()
    move = ("durable", "migrate", "--from", lake, "--to", f"{lake}#persist")
    assert "the blobs of the catalog are in" in run(*move, "--catalog-blobs", lake, fails=True)
    assert '"catalog_log": "shadow:persist+stash"' in run("status", lake, "--output", "json")
    assert "now in the log persist" in run(*move)


def test_the_catalog_of_a_copied_folder_can_move_after_it_is_relocated(
    tmp_path: Path,
) -> None:
    lake, copied = tmp_path / "lake", tmp_path / "copied"
    Node.open(lake).close()
    shutil.copytree(lake, copied)
    move = ("durable", "migrate", "--from", copied, "--to", f"{copied}#stash")
    assert "strandline relocate" in run(*move, fails=True)
    run("relocate", copied, "--copy")
    assert "now in the log stash" in run(*move)


def test_a_store_with_a_hash_sign_in_its_path_can_move(tmp_path: Path) -> None:
    Node.open(tmp_path / "a#b").close()
    said = run("durable", "migrate", "--from", f"{tmp_path}/a#b#", "--to", f"{tmp_path}/a#b#stash")
    assert "now in the log stash" in said


@pytest.mark.parametrize(
    ("source", "target", "refusal"),
    [
        ("lake", "lake#tape", "the log of --to is 'tape'; it must be one of metastorage, stash, "),
        ("lake#stash", "lake#persist", "in the log metastorage, not in stash; name that log"),
        ("lake", "lake", "is already in the log metastorage; nothing was moved"),
        ("lake", "other#stash", "keep their rows in different databases"),
        ("lake", "etcd://nowhere/lake", "name the PostgreSQL database that keeps the rest"),
        ("nowhere", "nowhere#stash", "there is no store in"),
        ("etcd://a/b", "etcd://c/d", "name the PostgreSQL database that keeps the rest"),
    ],
)
def test_an_impossible_move_is_refused_with_the_reason(
    source: str, target: str, refusal: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if "lake" in source:
        Node.open(tmp_path / "lake").close()
    before = run("debug", "epoch", "lake") if "lake" in source else ""
    assert refusal in run("durable", "migrate", "--from", source, "--to", target, fails=True)
    if before:
        assert run("debug", "epoch", "lake") == before
