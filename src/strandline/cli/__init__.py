"""The command ``strandline``."""

from strandline.cli.main import main

__all__ = ["main"]
