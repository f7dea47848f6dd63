"""A served node in its own process, which the demo kills and starts again."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from urllib.parse import urlsplit

from strandline.config import Settings
from strandline.errors import Unavailable
from strandline.faults import ENVIRONMENT_VARIABLE

STOP_SECONDS = 60


class NodeProcess:
    """``strandline serve`` on one store. It keeps its ports from the first start on."""

    def __init__(
        self, store: str | Path, *, settings: Settings | None = None, log: Path | None = None
    ) -> None:
        self.store = str(store)
        self._settings = settings or Settings()
        self._process: subprocess.Popen[str] | None = None
        self._ports = {"thrift": 0, "http": 0}
        self._lock = threading.Lock()
        self.log = log or Path(f"{store}.node.log")
        self.starts = 0

    @property
    def thrift_uri(self) -> str:
        """The address for Hive clients."""
        return f"thrift://127.0.0.1:{self._ports['thrift']}"

    @property
    def http_uri(self) -> str:
        """The address for HTTP clients."""
        return f"http://127.0.0.1:{self._ports['http']}"

    @property
    def pid(self) -> int:
        """The process id. Raises `Unavailable` before the first start."""
        return self._latest().pid

    def start(self, *, fault: str = "") -> None:
        """Start the node and wait until it is ready. ``fault`` is a point at which it dies."""
        command = [sys.executable, "-m", "strandline", "serve", self.store]
        for name, port in self._ports.items():
            command += [f"--{name}-port", str(port)]
        for name in ("objects", "warehouse", "catalog_log", "deploy_generation"):
            if (value := getattr(self._settings, name)) not in ("", None):
                command += [f"--{name.replace('_', '-')}", str(value)]
        environment = {**os.environ, ENVIRONMENT_VARIABLE: fault}
        with self.log.open("ab") as log, self._lock:
            self._process = subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=log,
                stdin=subprocess.DEVNULL,
                text=True,
                env=environment,
                start_new_session=True,
            )
            line = self._process.stdout.readline() if self._process.stdout else ""
        word, *uris = line.split() or [""]
        if word != "ready" or len(uris) != 2:
            self.stop()
            raise Unavailable(f"the node did not start; its log is {self.log}:\n{self._tail()}")
        for uri in uris:
            parts = urlsplit(uri)
            self._ports[parts.scheme] = parts.port or 0
        self.starts += 1

    def kill(self) -> None:
        """Kill the node with SIGKILL, so that it neither cleans up nor flushes anything."""
        process = self._latest()  # read once, as in `stop`
        process.kill()
        _ended(process)

    def wait(self) -> int:
        """Wait for the end of the process and return its exit status (negative: the signal)."""
        return 0 if self._process is None else _ended(self._process)

    def start_again(self) -> None:
        """Wait for the end of the process, and start the next one."""
        self.wait()
        self.start()

    def stop(self) -> int:
        """Stop the process with SIGTERM, or SIGKILL if it does not end. Return its exit status."""
        process = self._process  # read once: another thread may start the next process meanwhile
        if process is None:
            return 0
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
        return _ended(process)

    def leave_running(self) -> None:
        """Let the node run on after this process has ended."""
        if self._process is not None and self._process.stdout is not None:
            self._process.stdout.close()

    def _latest(self) -> subprocess.Popen[str]:
        if self._process is None:
            raise Unavailable("the node is not running")
        return self._process

    def _tail(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines()
        return "\n".join(lines[-20:])


def _ended(process: subprocess.Popen[str]) -> int:
    status = process.wait()
    if process.stdout is not None:
        process.stdout.close()
    return status
