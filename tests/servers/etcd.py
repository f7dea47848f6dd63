"""A real etcd for tests: one for each process of the test run, with a prefix for each test.

`running` starts it on first use and stops it with the process. It is a cluster of one member on two
ports of the loopback interface, one for clients and one for peers.
"""

from __future__ import annotations

import atexit
import itertools
import os
import shutil
import signal
import ssl
import subprocess
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import httpx

from tests.servers.loopback import ReservedPort

_prefixes = itertools.count()
_START_PATIENCE = 300.0


class EtcdServer:
    """A server with its own data in a temporary folder.

    With ``tls``, the context of a client, it takes only TLS, with the ``arguments`` that say how.
    ``ports`` are those for clients and peers, if they are to be known before.
    """

    def __init__(
        self,
        *arguments: str,
        tls: ssl.SSLContext | None = None,
        ports: tuple[ReservedPort, ReservedPort] | None = None,
    ) -> None:
        self._arguments = arguments
        self._tls = tls
        self._folder = Path(tempfile.mkdtemp(prefix="strandline-etcd-"))
        self._log = self._folder / "log"
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: subprocess.Popen[bytes] | None = None
        self._ports = ports or (ReservedPort(), ReservedPort())
        self.port, self.peers_port = (port.number for port in self._ports)
        self.start()

    def url(self, prefix: str) -> str:
        """The address of the store under ``prefix``."""
        return f"etcd://127.0.0.1:{self.port}/{prefix}"

    def new_prefix(self) -> str:
        """The address of an empty place that no other test has."""
        return self.url(f"test-{next(_prefixes)}")

    def compact(self) -> None:
        """Compact the whole history of the server, up to the present, so that it cannot be read."""
        base = f"http://127.0.0.1:{self.port}/v3/kv"
        head = httpx.post(f"{base}/range", json={"key": "AA=="}).json()["header"]["revision"]
        httpx.post(
            f"{base}/compaction", json={"revision": head, "physical": True}
        ).raise_for_status()

    @contextmanager
    def full(self) -> Iterator[None]:
        """In the block, the server behaves as after a write that exceeded its quota."""
        url = f"http://127.0.0.1:{self.port}/v3/maintenance"
        alarm = {"alarm": "NOSPACE", "memberID": _posted(f"{url}/status")["header"]["member_id"]}
        _posted(f"{url}/alarm", action="ACTIVATE", **alarm)
        try:
            yield
        finally:
            _posted(f"{url}/alarm", action="DEACTIVATE", **alarm)

    @contextmanager
    def set_back(self) -> Iterator[None]:
        """At the end of the block, the server has again the data that it had before."""
        data, kept = self._folder / "data", self._folder / "kept"
        self.stop()
        shutil.copytree(data, kept)
        self.start()
        yield
        self.stop()
        shutil.rmtree(data)
        kept.rename(data)
        self.start()

    def start(self) -> None:
        """Start it on its data, at its previous ports."""
        if not self._started():
            raise RuntimeError(f"etcd did not start:\n{self._log.read_text()}")

    def stop(self) -> None:
        """Stop it as an administrator does, with every connection."""
        self._end(signal.SIGTERM)

    def restart(self) -> None:
        """Stop and start it."""
        self.stop()
        self.start()

    def crash(self) -> None:
        """Send SIGKILL."""
        self._end(signal.SIGKILL)

    def running(self) -> bool:
        """Whether it was started and not stopped."""
        return self._process is not None

    def pause(self) -> None:
        """Send SIGSTOP: connections stay open, and nothing is answered."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WNOWAIT)

    def resume(self) -> None:
        """Send SIGCONT."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def remove(self) -> None:
        """Stop it and remove its data."""
        self.crash()
        for port in self._ports:
            port.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _end(self, how: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(60)
            self._process = None
        if self._guard is not None:
            self._guard.kill()
            self._guard.communicate()
            self._guard = None

    def _started(self) -> bool:
        client = f"{'https' if self._tls else 'http'}://127.0.0.1:{self.port}"
        peers = f"http://127.0.0.1:{self.peers_port}"
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    _program(),
                    *("--name", "test", "--data-dir", str(self._folder / "data")),
                    *("--listen-client-urls", client, "--advertise-client-urls", client),
                    *("--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers),
                    *("--initial-cluster", f"test={peers}"),
                    # It elects itself sooner with these.
                    *("--heartbeat-interval", "50", "--election-timeout", "250"),
                    *("--logger", "zap", "--log-level", "error"),
                    *self._arguments,
                ],
                stdout=log,
                stderr=log,
                cwd=self._folder,
                start_new_session=True,
            )
        # When this process is killed, its end of the pipe closes, and the server is killed too.
        self._guard = subprocess.Popen(
            ["/bin/sh", "-c", f"read _; kill -9 {self._process.pid}; rm -rf '{self._folder}'"],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        end = time.monotonic() + _START_PATIENCE
        with httpx.Client(trust_env=False, verify=self._tls or True) as asking:
            while time.monotonic() < end and self._process.poll() is None:
                try:
                    if asking.get(f"{client}/health").json().get("health") == "true":
                        return True
                except (httpx.TransportError, ValueError):
                    pass
                time.sleep(0.01)  # only a request shows whether a server is ready
        self.crash()
        return False


def new_cluster(*, members: int) -> list[EtcdServer]:
    """The members of a new cluster. Each can be stopped and started alone."""
    ports = {f"m{number}": (ReservedPort(), ReservedPort()) for number in range(members)}
    peers = ",".join(f"{name}=http://127.0.0.1:{port.number}" for name, (_, port) in ports.items())

    def start(name: str) -> EtcdServer:
        return EtcdServer("--name", name, "--initial-cluster", peers, ports=ports[name])

    with ThreadPoolExecutor() as threads:  # a member is ready once most members have started
        return list(threads.map(start, ports))


@cache
def running() -> EtcdServer:
    """The server of this process."""
    server = EtcdServer()
    atexit.register(server.remove)
    return server


def _posted(url: str, **body: str) -> Any:
    return httpx.post(url, json=body).raise_for_status().json()


def _program() -> str:
    path = shutil.which("etcd")
    if path is None:
        raise RuntimeError("there is no etcd server here; run scripts/setup etcd")
    return path
