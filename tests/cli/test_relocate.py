"""``strandline relocate``, and other commands on a copied store."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest

from strandline.catalog.commands import CreateSchema
from strandline.node import Node
from tests.strandline_command import strandline


def suggested(message: str) -> list[str]:
    """The arguments of the first command that a message names."""
    command = re.search("`strandline (.*?)`", message)
    assert command is not None
    return shlex.split(command[1])


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    with Node.open(tmp_path / "lake") as node:
        node.session(user="ann").execute(CreateSchema(name="shop"))
    return Path(shutil.copytree(tmp_path / "lake", tmp_path / "copy"))


def test_a_copy_can_be_read_but_not_changed_before_it_is_relocated(copied: Path) -> None:
    assert "create schema shop" in strandline("log", copied).output
    assert strandline("diff", copied, "2").exit_code == 0
    for command in (("undo", copied, 3), ("undrop", copied, "a.b")):
        refused = strandline(*map(str, command))
        assert refused.exit_code == 78
        assert f"strandline relocate {copied} --copy" in refused.stderr


def test_the_commands_in_messages_can_be_pasted_if_the_folder_has_a_space(
    copied: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "Jürgen's lake"
    missing = suggested(strandline("log", folder).stderr)
    assert missing == ["serve", str(folder)]
    copied.rename(folder)
    assert strandline(*suggested(strandline("undo", folder, "3").stderr)).exit_code == 75
    assert strandline(*suggested(strandline("relocate", folder).stderr)).exit_code == 0
    assert strandline("undo", folder, "3").exit_code == 0


def test_a_relocated_copy_can_be_changed(copied: Path) -> None:
    assert strandline("relocate", copied).exit_code == 75
    result = strandline("relocate", copied, "--copy")
    assert result.output.startswith(f"{copied} is a separate store now: environment ")
    assert strandline("undo", copied, "3").exit_code == 0


def test_a_moved_store_can_be_changed_after_it_is_relocated(copied: Path, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "lake")
    result = strandline("relocate", copied)
    assert result.output == f"the store is now in {copied}\n"
    assert strandline("undo", copied, "3").exit_code == 0
