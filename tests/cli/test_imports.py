"""A command imports only what it needs: most of its run time is its start."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys

def imported(*names):
    return [name for name in names if name in sys.modules]

import strandline.cli.main
assert not imported("sqlalchemy", "strandline.catalog"), "to list the commands"
import strandline.cli.settings
assert not imported("sqlalchemy", "strandline.catalog"), "to show the settings"
import strandline.cli.history, strandline.cli.status
assert not imported("strandline.node.node"), "to read a store"
assert not imported("sqlalchemy.dialects.postgresql", "psycopg"), "to read a store in a folder"
import strandline.cli.backup, strandline.cli.changes, strandline.cli.checks, strandline.cli.repairs
assert not imported("httpx", "pyarrow", "httptools", "uvicorn"), "to change a store"
"""


def test_reading_or_changing_a_store_imports_neither_clients_nor_servers() -> None:
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr


OLDER_CLICK = """
import click
click.ParamType.__class_getitem__ = None
import strandline.cli.changes, strandline.cli.settings
"""


def test_the_commands_work_with_a_click_whose_parameter_types_are_not_generic() -> None:
    """Up to 8.3, which `pyproject.toml` allows and other programs often require."""
    run = subprocess.run(
        [sys.executable, "-c", OLDER_CLICK], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
