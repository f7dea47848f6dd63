"""The checkout that the tests of the project look at."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# The checkout of a build server often belongs to another user.
TRUSTED = ("-c", "safe.directory=*")


def repository_files(root: Path = ROOT) -> list[Path]:
    """Every file that is committed or would be: tracked, or new and not ignored."""
    listing = subprocess.run(
        ["git", *TRUSTED, "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root,
        check=True,
        capture_output=True,
    ).stdout
    names = {name for name in listing.decode().split("\0") if name}
    return sorted(path for name in names if (path := root / name).is_file())
