"""The import of `strandline.spark` without its dependencies."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize("missing", ["pyspark", "numpy"])
def test_the_import_error_without_the_spark_extra_names_what_to_install(missing: str) -> None:
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


@pytest.mark.parametrize("version", ["3.5.9", "4.0.5"])
def test_an_older_pyspark_is_refused_at_the_import(version: str) -> None:
    program = f"import pyspark; pyspark.__version__ = {version!r}; import strandline.spark"
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert run.returncode == 1
    assert run.stderr.strip().splitlines()[-1] == (
        f"ImportError: strandline.spark needs PySpark 4.1 or newer, but {version} is installed:"
        " pip install 'strandline[spark]'"
    )


def test_a_client_of_spark_connect_alone_needs_no_py4j() -> None:
    blocked = "import sys; sys.modules['py4j'] = sys.modules['pyspark.core'] = None; "
    program = blocked + "import strandline.spark"  # as in the package pyspark-client
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
