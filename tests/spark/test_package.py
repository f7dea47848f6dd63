"""The package says what it needs."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize("missing", ["pyspark", "numpy"])
def test_without_its_extra_the_import_says_what_to_install(missing: str) -> None:
    program = f"import sys; sys.modules[{missing!r}] = None; import strandline.spark"
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert run.returncode == 1
    last = run.stderr.strip().splitlines()[-1]
    assert last == (
        "ModuleNotFoundError: strandline.spark needs PySpark and numpy, but"
        f" {missing} is not installed: pip install 'strandline[spark]'"
    )
