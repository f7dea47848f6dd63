"""Processes that the tests of nodes start, and end by their ids."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).with_name("member_process.py")


class MemberProcess:
    """A second process on the store; see `member_process`."""

    def __init__(self, folder: Path, *, stale: bool = False) -> None:
        command = [sys.executable, str(SCRIPT), str(folder)] + (["stale"] if stale else [])
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.answer() == "ready"

    def say(self, *words: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(words) + "\n")
        self.process.stdin.flush()

    def answer(self) -> Any:  # Any: what the word gives
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def ask(self, *words: object) -> Any:  # Any: what the word gives
        self.say(*words)
        return self.answer()

    def send(self, number: signal.Signals) -> None:
        os.kill(self.process.pid, number)

    def close(self) -> None:
        if self.process.poll() is None:
            self.send(signal.SIGCONT)
            self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()


@pytest.fixture
def new_process(tmp_path: Path) -> Iterator[Callable[..., MemberProcess]]:
    """Starts processes on the store in ``tmp_path / "store"``."""
    started: list[MemberProcess] = []

    def start(*, stale: bool = False) -> MemberProcess:
        started.append(MemberProcess(tmp_path / "store", stale=stale))
        return started[-1]

    yield start
    for process in started:
        process.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "store"
