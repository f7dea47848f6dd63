"""The node that the demo kills, while a thread of the demo starts the next one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from strandline.cli.demo import node_process
from strandline.cli.demo.node_process import NodeProcess
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
