"""A node of release 0.2.0, run from the sources of its commit in this repository."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

COMMIT = "6a3cb9bbc8a679cb89dc86a13af9445f99263a60"
STOP_SECONDS = 20.0
_ROOT = Path(__file__).resolve().parents[2]


class NotInThisClone(Exception):
    """The repository does not contain the release: it is a shallow clone, or no repository."""


@contextmanager
def released_node(folder: Path) -> Iterator[tuple[int, int]]:
    """Run ``strandline serve`` of 0.2.0 on a new store in ``folder``. Yield its Thrift port, pid.

    It runs with the libraries of this environment. Raises `NotInThisClone`.
    """
    _unpack(folder / "release")
    command = [sys.executable, "-m", "strandline", "serve", str(folder / "store")]
    command += ["--thrift-port", "0", "--http-port", "0"]
    with (folder / "node.log").open("wb") as log:
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,  # like `NodeProcess`: the system schedules by session
            env={**os.environ, "PYTHONPATH": str(folder / "release" / "src")},
        )
        try:
            word, *uris = (process.stdout.readline() if process.stdout else "").split() or [""]
            if word != "ready":
                said = (folder / "node.log").read_text(errors="replace")[-2000:]
                raise RuntimeError(f"the node of 0.2.0 did not start: {said}")
            ports = (urlsplit(uri).port or 0 for uri in uris if uri.startswith("thrift:"))
            yield next(ports), process.pid
        finally:
            process.terminate()
            process.wait(STOP_SECONDS)
            if process.stdout is not None:
                process.stdout.close()


def _unpack(folder: Path) -> None:
    try:
        packed = subprocess.run(
            ["git", "-C", str(_ROOT), "archive", COMMIT, "src"], capture_output=True, check=True
        )
    except (OSError, subprocess.CalledProcessError) as error:
        raise NotInThisClone(f"release 0.2.0 (commit {COMMIT[:7]}) is not here") from error
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
        archive.extractall(folder, filter="data")
