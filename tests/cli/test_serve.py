"""``strandline serve`` as a user at a shell sees it."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import sqlite3
import ssl
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import httpx
import pytest
import trustme
from hive_metastore import ThriftHiveMetastore
from thrift.protocol.TBinaryProtocol import TBinaryProtocol
from thrift.transport.TSSLSocket import TSSLSocket
from thrift.transport.TTransport import TBufferedTransport

from strandline import __version__
from strandline.catalog.commands import CreateSchema
from strandline.cli.demo.node_process import NodeProcess
from strandline.clock import HybridClock
from strandline.config import Settings
from strandline.durable import MetastorageLog, durable_state
from strandline.errors import PermissionDenied, Unavailable
from strandline.fencing import FenceToken
from strandline.metastorage import SqlMetastorage
from strandline.metastore.session import HttpSession
from strandline.metastore.thrift.messages import ThriftException
from strandline.node import DATABASE_FILE, Node
from strandline.node.users import new_token
from strandline.sql import FenceRow, open_sqlite
from strandline.work import IN_THREAD
from tests.servers.thrift_client import ThriftClient
from tests.sql.processes import Command
from tests.strandline_command import strandline

Start = Callable[..., Command]
PORTS = ("--thrift-port", 0, "--http-port", 0)
READY = re.compile(r"^ready thrift://127\.0\.0\.1:(\d+) https?://127\.0\.0\.1:(\d+)\n$")


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts the command; a process that still runs at the end of the test is killed by its id."""
    started: list[Command] = []

    def run(*arguments: object) -> Command:
        started.append(Command("serve", *arguments))
        return started[-1]

    yield run
    for process in started:
        process.close()


def ports_of(process: Command) -> tuple[int, int]:
    line = process.stdout.readline()
    match = READY.match(line)
    assert match, (line, process.communicate()[1] if process.poll() is not None else "")
    return int(match[1]), int(match[2])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_serve_prints_one_line_when_both_ports_accept_and_stops_cleanly(
    start: Start, tmp_path: Path, number: signal.Signals
) -> None:
    process = start(tmp_path / "s", "--thrift-port", 0, "--http-port", 0)
    thrift, http = ports_of(process)
    with ThriftClient("127.0.0.1", thrift) as client:
        assert client.call("get_all_databases") == ["default"]
    assert httpx.get(f"http://127.0.0.1:{http}/v1/health").status_code == 200
    os.kill(process.pid, number)
    rest, errors = process.communicate(timeout=60)
    assert (process.returncode, rest) == (0, "")
    assert "Traceback" not in errors, errors


def test_serve_exits_cleanly_when_a_newer_generation_takes_over_the_store(
    start: Start, tmp_path: Path
) -> None:
    process = start(tmp_path / "s", "--thrift-port", 0, "--http-port", 0)
    ports_of(process)
    with closing(open_sqlite(tmp_path / "s" / DATABASE_FILE)) as database:
        log = MetastorageLog(SqlMetastorage(database, HybridClock()))

        def raise_fence(token: FenceToken, environment: str | None) -> None:
            with database.write() as connection:
                FenceRow.initialize(connection, environment or "", token)

        durable_state(log).open(
            member="new", initialize=lambda _: None, raise_fence=raise_fence, deploy_generation=1
        )
    rest, errors = process.communicate(timeout=60)
    assert (process.returncode, rest) == (0, "")
    assert "generation 1 of this deployment has taken the store over" in errors
    assert "Traceback" not in errors, errors


def test_serve_stops_promptly_while_calls_wait_for_a_lock_of_another_process(
    start: Start, tmp_path: Path
) -> None:
    process = start(tmp_path / "s", *PORTS)
    thrift, http = ports_of(process)
    url = f"http://127.0.0.1:{http}/v1"

    def create(name: str) -> object:
        with ThriftClient("127.0.0.1", thrift, timeout=60) as client:
            return client.call("create_database", database={"name": name})

    def begin() -> object:
        return httpx.post(f"{url}/begin", json={}, headers={"X-Strandline-User": "ann"})

    storage = {"cols": [], "serdeInfo": {"parameters": {}}}
    keys = [{"name": "p", "type": "string"}]
    table = {"dbName": "kept", "tableName": "t", "sd": storage, "partitionKeys": keys}
    added = [
        {
            "dbName": "kept",
            "tableName": "t",
            "values": [f"{n}"],
            "sd": {**storage, "location": f"s3a://b/{n}"},
        }
        for n in range(3 * IN_THREAD)
    ]

    def add_many() -> object:  # in a child process
        with ThriftClient("127.0.0.1", thrift, timeout=60) as client:
            return client.call("add_partitions", new_parts=added)

    create("kept")
    with ThriftClient("127.0.0.1", thrift) as client:
        client.call("create_table", tbl=table)
    file = tmp_path / "s" / DATABASE_FILE
    holder = sqlite3.connect(file, timeout=60, isolation_level=None)
    with closing(holder), ThreadPoolExecutor(4) as threads:
        holder.execute("BEGIN IMMEDIATE")
        calls = [*(threads.submit(create, f"lost{n}") for n in range(2)), threads.submit(begin)]
        calls.append(threads.submit(add_many))
        while True:
            page = httpx.get(f"{url}/statistics")
            if page.status_code == 200:  # else the machine was too busy to count
                counted = page.json()
                if (counted["workers"]["running"], counted["children"]["tasks"]) == (3, 1):
                    break
            assert not any(call.done() for call in calls)
        process.send_signal(signal.SIGTERM)
        # Well before the 30 seconds after which the calls time out.
        _, errors = process.communicate(timeout=60)
        refusals = [calls[n].exception() for n in (0, 1, 3)]
        holder.execute("ROLLBACK")
    assert process.returncode == 0
    assert "Traceback" not in errors, errors
    for refusal in refusals:
        assert isinstance(refusal, ThriftException)
        assert "nothing was written" in refusal.value["message"]
    answer = calls[2].result()
    assert isinstance(answer, httpx.Response)
    assert (answer.status_code, answer.json()["code"]) == (503, "stopping")
    with ThriftClient("127.0.0.1", ports_of(start(tmp_path / "s", *PORTS))[0]) as client:
        assert client.call("get_all_databases") == ["default", "kept"]


@pytest.mark.parametrize("option", ["--thrift-port", "--http-port"])
def test_a_busy_port_is_named_and_no_store_is_created(
    start: Start, tmp_path: Path, option: str
) -> None:
    ports = {"--thrift-port": 0, "--http-port": 0}
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        ports[option] = busy.getsockname()[1]
        process = start(tmp_path / "s", *[word for pair in ports.items() for word in pair])
        out, errors = process.communicate(timeout=60)
    assert (process.returncode, out) == (71, "")
    assert not (tmp_path / "s").exists()
    assert errors.count("\n") == 1
    assert str(ports[option]) in errors
    assert "choose another port" in errors


@pytest.mark.parametrize("host", ["192.0.2.1", "host.invalid"])
def test_an_address_of_another_machine_is_named_and_no_store_is_created(
    start: Start, tmp_path: Path, host: str
) -> None:
    process = start(tmp_path / "s", *PORTS, "--host", host)
    out, errors = process.communicate(timeout=60)
    assert (process.returncode, out) == (64, "")
    assert not (tmp_path / "s").exists()
    assert f"'{host}' is not an address of this machine" in errors
    assert "0.0.0.0" in errors


@pytest.mark.parametrize(
    ("prepare", "status", "says"),
    [
        (lambda folder: folder.write_text("x"), 64, "not a folder"),
        (
            lambda folder: (folder.mkdir(), (folder / "strandline.db").write_bytes(b"x" * 9999)),
            65,
            "strandline.db",
        ),
    ],
)
def test_a_store_that_cannot_be_served_gives_one_line_and_its_own_exit_status(
    start: Start, tmp_path: Path, prepare: Callable[[Path], object], status: int, says: str
) -> None:
    prepare(tmp_path / "s")
    process = start(tmp_path / "s", "--thrift-port", 0, "--http-port", 0)
    out, errors = process.communicate(timeout=60)
    assert (process.returncode, out) == (status, "")
    assert errors.startswith("strandline: ")
    assert says in errors
    assert errors.count("\n") == 1


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (RuntimeError("can't start new thread"), "lets this process start no more threads"),
        (MemoryError(), "gives this process no more memory"),
    ],
)
def test_a_system_that_has_no_more_threads_or_memory_gives_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, says: str
) -> None:
    def fail(_: threading.Thread) -> None:
        raise error

    Node.open(tmp_path / "s").close()
    monkeypatch.setattr(threading.Thread, "start", fail)
    refused = strandline("trim", tmp_path / "s", 2)
    assert refused.exit_code == 69
    assert refused.stderr.startswith(f"strandline: the system {says}; raise its limits")
    assert refused.stderr.count("\n") == 1


def test_a_fault_of_the_program_prints_a_traceback_and_has_a_status_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: object) -> None:
        raise ZeroDivisionError("a fault")

    monkeypatch.setattr("strandline.cli.status.address_of", fail)
    refused = strandline("status", tmp_path / "s")
    assert refused.exit_code == 70
    assert refused.stderr.startswith("Traceback")
    assert refused.stderr.endswith("ZeroDivisionError: a fault\n")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("s", "--thrift-port", "70000"), "a port is a number from 0 to 65535"),
        (("s", "--thrift-port", "x"), "thrift_port cannot be 'x': it is a whole number"),
        ((), "Missing argument 'STORE'"),
        (("s", "--wrong"), "No such option"),
        (("",), "it is empty; name the folder of a store"),
        ((" ",), "it is empty; name the folder of a store"),
    ],
)
def test_wrong_arguments_are_explained_and_create_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    result = strandline("serve", *arguments)
    assert result.exit_code == 2
    assert "Usage" in result.stderr
    assert says in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_same_port_twice_is_refused_and_creates_no_store(tmp_path: Path) -> None:
    arguments = ["serve", str(tmp_path / "s"), "--thrift-port", "9191", "--http-port", "9191"]
    result = strandline(*arguments)
    assert result.exit_code == 64
    assert "thrift_port and http_port are both 9191" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_start_and_stop_are_logged_in_the_configured_format(start: Start, tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "strandline.toml").write_text('log_format = "json"\nhttp_port = 0\n')
    process = start(tmp_path / "s", "--thrift-port", 0)
    thrift, http = ports_of(process)
    os.kill(process.pid, signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    entries = [json.loads(line) for line in errors.splitlines()]
    assert [entry["level"] for entry in entries] == ["info"] * len(entries)
    created, started, stopping, stopped = (entry["message"] for entry in entries)
    assert created == "there was no store yet: created an empty one"
    assert started.startswith(f"started: release {__version__} serves the store in {tmp_path}/s")
    assert started.endswith(f"thrift://127.0.0.1:{thrift} http://127.0.0.1:{http}")
    assert (stopping, stopped) == ("stopping: SIGTERM was received", "stopped")


def test_calls_are_encrypted_and_authenticated_with_a_certificate_and_a_users_file(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1", "localhost")
    issued.private_key_and_cert_chain_pem.write_to_path(tmp_path / "node.pem")
    authority.cert_pem.write_to_path(tmp_path / "authority.pem")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "authority.pem"))
    token = new_token(tmp_path / "users", "ann")
    options = ("--tls-certificate", tmp_path / "node.pem", "--users-file", tmp_path / "users")
    thrift, http = ports_of(start(tmp_path / "s", *PORTS, *options))
    url = f"https://localhost:{http}"
    with HttpSession(url, user="ann", secret=token) as session:
        session.execute(CreateSchema(name="proved"))
    refused = pytest.raises(PermissionDenied, match="authenticates")
    with HttpSession(url, user="ann") as session, refused:
        session.tables("proved")
    with httpx.Client(verify=ssl.create_default_context()) as client:
        assert client.get(f"{url}/health/live").status_code == 200
    with pytest.raises(httpx.HTTPError):
        httpx.get(f"http://localhost:{http}/health/live")
    transport = TBufferedTransport(
        TSSLSocket(
            "localhost",
            thrift,
            cert_reqs=ssl.CERT_REQUIRED,
            ca_certs=str(tmp_path / "authority.pem"),
        )
    )
    transport.open()
    hive = ThriftHiveMetastore.Client(TBinaryProtocol(transport))
    assert hive.get_all_databases() == ["default", "proved"]
    transport.close()
    with ThriftClient("127.0.0.1", thrift) as plain, pytest.raises(Unavailable):
        plain.call("get_all_databases")


def test_an_unreadable_certificate_or_users_file_prevents_the_start(
    start: Start, tmp_path: Path
) -> None:
    for option, what in (
        ("--tls-certificate", "the certificate"),
        ("--tls-key", "tls_key is set without tls_certificate"),
        ("--users-file", "the users"),
    ):
        process = start(tmp_path / "s", *PORTS, option, tmp_path / "none")
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 64
        assert what in errors
    assert not (tmp_path / "s").exists()


@pytest.mark.slow
def test_a_node_of_a_newer_deployment_replaces_the_running_one(tmp_path: Path) -> None:
    def node(generation: int | None) -> NodeProcess:
        settings = Settings(deploy_generation=generation)
        log = tmp_path / f"{generation}.log"
        return NodeProcess(tmp_path / "lake", settings=settings, log=log)

    running, newer = node(None), node(2)
    try:
        running.start()
        newer.start()
        assert running.wait() == 0
        assert "generation 2 of this deployment" in running.log.read_text()
        with pytest.raises(Unavailable, match="generation 2 of this deployment owns the store"):
            node(1).start()
        with HttpSession(newer.http_uri, user="ann") as session:
            session.execute(CreateSchema(name="late"))
        assert newer.stop() == 0
    finally:
        running.stop()
        newer.stop()
