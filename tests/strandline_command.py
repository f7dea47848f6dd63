"""The command ``strandline``, run in the process of a test."""

from __future__ import annotations

from typing import Any

from click.testing import CliRunner, Result

from strandline.cli import main
from tests.log_lines import logging_restored


def strandline(*arguments: object, **options: Any) -> Result:  # Any: those of `CliRunner.invoke`
    with logging_restored():  # `serve` configures the log of its process
        return CliRunner().invoke(main, [str(argument) for argument in arguments], **options)
