"""The node that the demo kills, while a thread of the demo starts the next one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from strandline.cli.demo import node_process, run
from strandline.cli.demo.node_process import NodeProcess
from strandline.config import Settings
from strandline.errors import Unavailable


def test_kill_waits_for_the_process_that_it_killed_and_not_for_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, kill = NodeProcess(tmp_path), os.kill
    waited_for: list[object] = []
    command = [sys.executable, "-c", "input()"]
    first, second = (subprocess.Popen(command, stdin=subprocess.PIPE, text=True) for _ in range(2))

    def kill_and_start_again(pid: int, number: int) -> None:
        kill(pid, number)
        node._process = second

    monkeypatch.setattr(os, "kill", kill_and_start_again)
    monkeypatch.setattr(node_process, "_ended", waited_for.append)
    node._process = first
    try:
        node.kill()
        assert waited_for == [first]
    finally:
        for process in (first, second):
            process.communicate("\n")


def test_a_node_that_was_not_started_cannot_be_killed(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="not running"):
        NodeProcess(tmp_path).kill()


def test_a_demo_that_is_terminated_stops_its_node_and_removes_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(NodeProcess, "start", lambda _: calls.append("start"))
    monkeypatch.setattr(NodeProcess, "stop", lambda _: calls.append("stop"))
    monkeypatch.setattr(NodeProcess, "pid", 1)
    monkeypatch.setattr(run, "_spark", lambda *_: signal.raise_signal(signal.SIGTERM))
    former = signal.signal(signal.SIGTERM, lambda *_: None)  # else a failing test ends pytest
    try:
        with pytest.raises(SystemExit, match=str(128 + signal.SIGTERM)):
            run.run(None, store="", settings=Settings(), client="http", months=1, keep=False)
    finally:
        signal.signal(signal.SIGTERM, former)
    assert calls == ["start", "stop"]
    assert list(tmp_path.iterdir()) == []
