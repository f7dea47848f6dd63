"""The command ``strandline``, run in the process of a test."""

from __future__ import annotations

from typing import Any

from click.testing import CliRunner, Result

from strandline.cli import main


def strandline(*arguments: object, **options: Any) -> Result:  # Any: those of `CliRunner.invoke`
    return CliRunner().invoke(main, [str(argument) for argument in arguments], **options)
