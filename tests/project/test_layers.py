"""The layers keep to their order, and the check of that can fail."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tokenize
import tomllib
from pathlib import Path

import pytest

from tests.project.checkout import ROOT


def check_layers(folder: Path) -> tuple[int, str]:
    """Exit status and report of the import check on the package under ``folder``/src."""
    run = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-logo", "--no-cache"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder / "src"), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )
    return run.returncode, run.stdout + run.stderr


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "src" / "strandline", tmp_path / "src" / "strandline", ignore=ignore)
    return tmp_path


def append(folder: Path, module: str, text: str) -> None:
    with (folder / "src" / "strandline" / module).open("a") as file:
        file.write(text)


def test_no_layer_imports_one_above_it() -> None:
    status, report = check_layers(ROOT)
    assert status == 0, report


def test_the_architecture_draws_every_layer_in_order() -> None:
    page = (ROOT / "docs" / "explanation" / "architecture.md").read_text(encoding="utf-8")
    drawn = re.findall(r"^ │ (\w+(?: · \w+)*) ", page, re.MULTILINE)
    rules = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    layers = [layer.split(" | ") for layer in rules["contracts"][0]["layers"]]
    assert [sorted(line.split(" · ")) for line in drawn] == [sorted(layer) for layer in layers]


DATABASE = re.compile("sqlite|postgres|dialect", re.IGNORECASE)


def test_no_code_between_sql_and_node_names_a_database() -> None:
    layers = ("durable", "catalog", "transactions", "metastore", "spark")
    paths = [p for layer in layers for p in (ROOT / "src" / "strandline" / layer).rglob("*.py")]
    named = []
    for path in paths:
        if DATABASE.search(path.read_text()):  # maybe only in comments and docstrings
            with path.open("rb") as module:
                named += [
                    (path.name, token.string)
                    for token in tokenize.tokenize(module.readline)
                    if token.type == tokenize.NAME and DATABASE.search(token.string)
                ]
    assert named == []


@pytest.mark.teeth
@pytest.mark.parametrize(
    ("module", "statement", "finding"),
    [
        ("errors.py", "import strandline.cli", "strandline.errors -> strandline.cli"),
        ("model/__init__.py", "import strandline.wire", "strandline.model -> strandline.wire"),
        ("clock.py", "def f():\n    import pyspark", "strandline.clock -> pyspark"),
        ("stray.py", "", "- strandline.stray"),
    ],
    ids=["upward", "next-layer", "optional-extra", "no-layer"],
)
def test_a_planted_wrong_import_is_found(
    copy: Path, module: str, statement: str, finding: str
) -> None:
    append(copy, module, f"\n\n{statement}\n")
    status, report = check_layers(copy)
    assert status != 0
    assert finding in report
