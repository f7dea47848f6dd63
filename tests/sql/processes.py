"""Other Python processes for tests, which run a function and exchange JSON values with the test.

Each is forked from a server of multiprocessing that has imported the package and the tests'
modules, because importing them takes a process a hundred times longer than the fork.
"""

from __future__ import annotations

import json
import os
import signal
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from importlib import import_module
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any, Self

_ROOT = Path(__file__).resolve().parents[2]
_SECONDS = 300.0
_fork_server = get_context("forkserver")
_fork_server.set_forkserver_preload(
    [
        "sqlalchemy.dialects.postgresql.psycopg",
        "sqlalchemy.dialects.sqlite",
        "strandline.metastorage.etcd.store",
        "strandline.sql.postgres_database",
        "strandline.metastore.session.http_session",
        "strandline.cli.durable",
        "strandline.node.node",
        "strandline.node.server",
        "tests.catalog.catalog_process",
        "tests.durable.racing",
        "tests.metastorage.work",
        "tests.servers.served_node",
        "tests.sql.frozen",  # last: it freezes what the others have imported
    ]
)


def _run(connection: Connection, target: str, arguments: Sequence[Any], environment: Any) -> None:
    os.environ.clear()
    os.environ.update(environment)
    warnings.simplefilter("error")
    module, _, name = target.partition(":")
    function = getattr(import_module(module), name)

    def say(value: object) -> None:
        connection.send_bytes(json.dumps(value).encode())

    def hear() -> Any:
        return json.loads(connection.recv_bytes())

    function(say, hear, *arguments)


def _started(body: Callable[..., None], *arguments: object) -> ForkServerProcess:
    """Start a process that runs ``body`` with the arguments and this environment."""
    process = _fork_server.Process(target=body, args=(*arguments, dict(os.environ)))
    path = os.environ.get("PYTHONPATH")
    # The fork server is started with the first process, and finds its modules by this variable.
    os.environ["PYTHONPATH"] = f"{_ROOT / 'src'}{os.pathsep}{_ROOT}"
    try:
        process.start()
    finally:
        for argument in arguments:
            if isinstance(argument, Connection):
                argument.close()
        os.environ.pop("PYTHONPATH")
        if path is not None:
            os.environ["PYTHONPATH"] = path
    return process


def _is_stopped(thread: Path) -> bool:
    """Whether a thread has stopped, by its ``stat`` file, or has ended since it was listed."""
    try:
        return thread.read_text().rpartition(")")[2].split()[0] == "T"
    except (FileNotFoundError, ProcessLookupError):
        return True


class Process:
    """A process that calls ``target``, ``module:function``, as ``function(say, hear, *arguments)``.

    ``hear`` raises `EOFError` in the process when the test has closed the connection.
    """

    def __init__(self, target: str, *arguments: object) -> None:
        self._connection, theirs = _fork_server.Pipe()
        self._process = _started(_run, theirs, target, arguments)

    @property
    def pid(self) -> int:
        pid = self._process.pid
        assert pid is not None
        return pid

    def hear(self, *, timeout: float | None = None) -> Any:
        """The next value that the process sends; fails if it ends instead, or at the timeout."""
        try:
            assert self._connection.poll(timeout), f"nothing was said for {timeout} s"
            return json.loads(self._connection.recv_bytes())
        except (EOFError, ConnectionResetError):
            raise AssertionError(f"the process ended with status {self.finish()}") from None

    def everything(self) -> Iterator[Any]:
        """All values that the process sends until it ends."""
        with suppress(EOFError, ConnectionResetError):
            while True:
                yield json.loads(self._connection.recv_bytes())

    def say(self, value: object) -> None:
        """Send a value."""
        self._connection.send_bytes(json.dumps(value).encode())

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        os.kill(self.pid, number)

    def stop(self) -> None:
        """Send SIGSTOP, and return when the process has stopped."""
        self.signal(signal.SIGSTOP)
        end = time.monotonic() + _SECONDS
        # Only a parent can wait for a stop, and the parent is the fork server.
        while not all(map(_is_stopped, Path(f"/proc/{self.pid}/task").glob("*/stat"))):
            assert time.monotonic() < end
            time.sleep(0.001)

    def go_on(self) -> None:
        """Send SIGCONT."""
        self.signal(signal.SIGCONT)

    def kill(self) -> None:
        """Send SIGKILL, and return when the process has ended."""
        self._process.kill()
        self._process.join(_SECONDS)

    def running(self) -> bool:
        """Whether it is still running."""
        return self._process.is_alive()

    def finish(self) -> int | None:
        """Wait for the end; the exit status, negative for a signal, None if it still runs."""
        self._process.join(_SECONDS)
        return self._process.exitcode

    def close(self) -> None:
        """Kill it if it still runs."""
        if self.running():
            with suppress(ProcessLookupError):  # it has ended since
                self.go_on()
            self.kill()
        self._connection.close()
        self._process.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _command(arguments: Sequence[str], out: Connection, errors: str, environment: Any) -> None:
    os.environ.clear()
    os.environ.update(environment)
    # As in a terminal, also if the tests run in the background or under nohup.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    os.dup2(out.fileno(), 1)
    os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
    out.close()
    import_module("strandline.cli").main(list(arguments), prog_name="strandline")


class Command:
    """The command ``strandline`` in a forked process, with the part of `Popen` that tests use."""

    def __init__(self, *arguments: object) -> None:
        out, theirs = _fork_server.Pipe(duplex=False)
        self._folder = tempfile.TemporaryDirectory()
        self._errors = Path(self._folder.name, "errors")
        words = [str(argument) for argument in arguments]
        self._process = _started(_command, words, theirs, str(self._errors))
        self.stdout = os.fdopen(os.dup(out.fileno()))
        out.close()

    @property
    def pid(self) -> int:
        pid = self._process.pid
        assert pid is not None
        return pid

    @property
    def returncode(self) -> int | None:
        """The exit status, negative for a signal; None while it runs."""
        return self._process.exitcode

    def poll(self) -> int | None:
        """`returncode`."""
        return self.returncode

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        os.kill(self.pid, number)

    def communicate(self, timeout: float = _SECONDS) -> tuple[str, str]:
        """The rest of its output, and all of its standard error, once it has ended."""
        self._process.join(timeout)
        assert self.returncode is not None, f"it goes on after {timeout} s"
        return self.stdout.read(), self._errors.read_text()

    def close(self) -> None:
        """Kill it if it still runs."""
        self._process.kill()
        self._process.join(_SECONDS)
        self._process.close()
        self.stdout.close()
        self._folder.cleanup()
