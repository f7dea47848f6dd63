"""The main job, end to end, as a user starts it; with each client and store in `make soak`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from strandline.node.catalog_log import LOGS
from tests import spark_classes
from tests.servers import stores

CLIENTS = ("local", "http")
SECONDS = 1800


def start(
    client: str, months: int, folder: Path, *, kind: str, log: str = ""
) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "strandline", "demo", "--client", client]
    command += ["--months", str(months), "--folder", str(folder)]
    if log:
        command += ["--catalog-log", log]
    if kind != "folder":
        store = stores.new_store(kind, folder)
        command += ["--store", store.address]
        if store.settings.objects:
            command += ["--objects", store.settings.objects]
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # Its queries have enough rows to be worth compiling, unlike those of other tests.
        env={
            **os.environ,
            "TMPDIR": str(folder.parent),
            spark_classes.SUBMIT_OPTIONS: "pyspark-shell",
        },
    )


def nodes_on(folder: Path) -> list[int]:
    """The processes that serve a store below ``folder``."""
    pids = []
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if "serve" in words and any(str(folder) in word for word in words):
            pids.append(process.pid)
    return pids


@pytest.mark.spark
@pytest.mark.parametrize(
    ("client", "kind"),
    [
        ("http", "postgresql"),
        pytest.param("local", "folder", marks=pytest.mark.soak),
        pytest.param("local", "etcd", marks=pytest.mark.soak),
    ],
)
def test_all_checks_of_the_demo_hold(client: str, kind: str, tmp_path: Path) -> None:
    folder = tmp_path / "work"
    process = start(client, 1, folder, kind=kind)
    try:
        out, errors = process.communicate(timeout=SECONDS)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0, out[-4000:] + errors[-4000:]
    assert "FAILED" not in out
    assert "55 of 55 checks hold" in out
    assert "\x1b" not in out, "plain text where there is no terminal"
    for number in range(1, 8):
        assert f"\n{number}. " in out
    assert nodes_on(folder) == []


@pytest.mark.soak
@pytest.mark.spark
@pytest.mark.parametrize("kind", ["folder", "postgresql"])
@pytest.mark.parametrize("log", sorted(LOGS))
def test_all_checks_of_the_demo_hold_on_each_log(log: str, kind: str, tmp_path: Path) -> None:
    process = start("http", 1, tmp_path / "work", kind=kind, log=log)
    out, errors = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, out[-4000:] + errors[-4000:]
    assert "55 of 55 checks hold" in out


@pytest.mark.slow
@pytest.mark.spark
def test_a_folder_that_is_not_empty_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("x")
    process = start("local", 1, tmp_path, kind="folder")
    _, errors = process.communicate(timeout=SECONDS)
    assert process.returncode == 64
    assert "is not empty" in errors
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


@pytest.mark.soak
@pytest.mark.parametrize("kind", stores.KINDS)
@pytest.mark.parametrize("client", CLIENTS)
def test_all_checks_of_the_demo_hold_for_a_whole_year(
    client: str, kind: str, tmp_path: Path
) -> None:
    process = start(client, 12, tmp_path / "work", kind=kind)
    out, errors = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, out[-4000:] + errors[-4000:]
    assert "88 of 88 checks hold" in out
