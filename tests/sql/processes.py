"""Other Python processes for tests, that run a function and speak in lines of JSON."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

_ROOT = Path(__file__).resolve().parents[2]
_MAIN = """
import importlib, json, sys
module, _, name = sys.argv[1].partition(":")
function = getattr(importlib.import_module(module), name)
def say(value):
    print(json.dumps(value), flush=True)
def hear():
    return json.loads(sys.stdin.readline())
function(say, hear, *json.loads(sys.argv[2]))
"""


class Process:
    """``target`` is ``module:function``; it is called as ``function(say, hear, *arguments)``."""

    def __init__(self, target: str, *arguments: object) -> None:
        environment = os.environ | {"PYTHONPATH": f"{_ROOT / 'src'}{os.pathsep}{_ROOT}"}
        self.popen = subprocess.Popen(
            [sys.executable, "-W", "error", "-c", _MAIN, target, json.dumps(arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            cwd=_ROOT,
            text=True,
        )

    def hear(self) -> Any:
        """The next value that the process says; fails when it ended instead."""
        assert self.popen.stdout is not None
        line = self.popen.stdout.readline()
        assert line, f"the process ended with status {self.popen.wait(10)}"
        return json.loads(line)

    def say(self, value: object) -> None:
        """Send a value."""
        assert self.popen.stdin is not None
        self.popen.stdin.write(json.dumps(value) + "\n")
        self.popen.stdin.flush()

    def stop(self) -> None:
        """SIGSTOP, and return when it has stopped."""
        self.popen.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.popen.pid, os.WSTOPPED | os.WNOWAIT)

    def go_on(self) -> None:
        """SIGCONT."""
        self.popen.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL, and return when it is gone."""
        self.popen.kill()
        self.popen.wait(10)

    def finish(self) -> int:
        """Wait for the end; the exit status."""
        return self.popen.wait(60)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.popen.poll() is None:
            self.go_on()
            self.kill()
        for pipe in (self.popen.stdin, self.popen.stdout):
            if pipe is not None:
                pipe.close()
