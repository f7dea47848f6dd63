"""How a node listens: its warnings, TLS clients that stay silent, and its child processes."""

from __future__ import annotations

import asyncio
import json
import resource
import signal
import socket
import ssl
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from resource import RLIM_INFINITY
from sqlite3 import connect
from typing import Any, cast
from urllib.parse import urlsplit

import httpx
import pytest
import trustme
import uvicorn
import uvloop

from strandline.catalog.commands import CreateSchema
from strandline.config import Settings
from strandline.errors import Stopping, StoreMoved, StrandlineError
from strandline.metastore.call_log import CallLog
from strandline.metastore.session.http_app import SERVICE
from strandline.metastore.session.http_messages import Receive, Scope, Send
from strandline.metastore.thrift import ApplicationException, ThriftServer
from strandline.metastore.thrift import listening as thrift_listening
from strandline.metastore.thrift import serving as thrift_serving
from strandline.node import Node
from strandline.node import server as node_server
from strandline.node.address import DATABASE_FILE
from strandline.node.http_connections import HttpConnections
from strandline.node.server import (
    LEAST_CONNECTIONS,
    MAX_DESCRIPTORS,
    OWN_DESCRIPTORS,
    _HttpServer,
    open_child,
)
from strandline.node.settings import REGISTRY
from strandline.node.users import new_token
from strandline.sql import postgres_server
from strandline.work.contents import Content
from tests.log_lines import NEVER_SLOW_MS, log_lines
from tests.metastore.session.served import listening_socket
from tests.metastore.thrift.conftest import dispatcher_of
from tests.metastore.thrift.test_server import request, toy
from tests.node.test_http_connections import Toy
from tests.servers.served_node import (
    ServedNode,
    committer_dies,
    few_descriptors,
    forks_no_children,
    stops_patiently,
)
from tests.servers.stores import new_store

WAIT = 60.0
Client = Callable[[tuple[str, int]], Awaitable[None]]


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def security(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    return context


async def with_http(
    security: ssl.SSLContext,
    client: Client,
    connections: HttpConnections | None = None,
    app: Any = None,
) -> None:
    """Run ``client`` against the HTTP port of a node."""
    made = connections or HttpConnections()
    protocol = cast(type[asyncio.Protocol], made.protocol)
    config = uvicorn.Config(app or Toy(), http=protocol, ws="none", lifespan="off", log_config=None)
    with listening_socket() as listening:
        server = _HttpServer(config, security)
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        try:
            await client(listening.getsockname())
        finally:
            server.leave()
            await serving


async def with_thrift(security: ssl.SSLContext, client: Client, handler: Any = toy) -> None:
    """Run ``client`` against the Hive port of a node."""
    server = ThriftServer(dispatcher_of(handler), calls=CallLog(NEVER_SLOW_MS))
    with listening_socket() as listening:
        await server.start(listening, security=security)
        try:
            await client(listening.getsockname())
        finally:
            await server.stop()


def test_a_child_process_shows_the_settings_of_its_node_and_where_they_come_from(
    tmp_path: Path,
) -> None:
    """It answers `config` if the request is large. Its own cache is empty."""
    settings = Settings(cache_bytes=7 << 20)
    origins = dict.fromkeys(REGISTRY, "an environment variable")
    with Node.open(tmp_path / "lake", settings=settings, origins=origins) as node:
        expected = node.session(user="ann").config()
        opened = (node.folder, settings, lambda data: None, node.served_store())
        with open_child(*opened, origins=origins) as child:
            fields = {"service": SERVICE, "name": "config", "user": "ann", "host": "127.0.0.1"}
            _, content = child.answer(fields, b"{}")
            assert isinstance(content, Content)
            with closing(content):
                answer = json.loads(content.read())
    shown = {setting["setting"]: (setting["value"], setting["origin"]) for setting in answer}
    assert shown == {value.setting: (value.value, value.origin) for value in expected}


def test_a_child_process_leaves_the_background_work_to_its_node(tmp_path: Path) -> None:
    with Node.open(tmp_path) as node:
        served = node.served_store()
    of_others = set(threading.enumerate())
    with open_child(tmp_path, Settings(), lambda data: None, served):
        working = {thread.name for thread in set(threading.enumerate()) - of_others}
    assert not working & {"reaper", "cleaner", "storage", "cache-applier"}


def test_a_child_process_does_not_use_a_former_primary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is a new process, whose address may lead there although that of its node does not."""
    store = new_store("postgresql", tmp_path)
    with Node.open(store.address, settings=store.settings) as node:
        child = partial(open_child, store.address, store.settings, lambda data: None)
        with child(node.served_store()):
            pass
        monkeypatch.setattr(postgres_server, "_TIMELINE", "SELECT '00000000'")
        with (
            pytest.raises(StoreMoved, match="such as a former primary"),
            child(node.served_store()),
        ):
            pass


@pytest.mark.parametrize("serve", [with_http, with_thrift])
def test_a_client_that_does_not_start_tls_is_disconnected(
    serve: Any, security: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(thrift_listening, "HANDSHAKE_SECONDS", 0.1)

    async def begin_nothing(address: tuple[str, int]) -> None:
        reader, writer = await asyncio.open_connection(*address)
        async with asyncio.timeout(WAIT):
            assert await reader.read() == b""
        writer.close()

    uvloop.run(serve(security, begin_nothing))


def silent_client(authority: trustme.CA, address: tuple[str, int]) -> ssl.SSLSocket:
    """A client that begins TLS and does no more."""
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    authority.configure_trust(trusting)
    plain = socket.create_connection(address, timeout=WAIT)
    return trusting.wrap_socket(plain, server_hostname="127.0.0.1")


def test_a_late_client_that_does_not_confirm_the_end_of_tls_is_counted_once(
    authority: trustme.CA, security: ssl.SSLContext
) -> None:
    connections = HttpConnections(head_seconds=0.0, pause=0.001)

    async def be_late(address: tuple[str, int]) -> None:
        with await asyncio.to_thread(silent_client, authority, address):
            async with asyncio.timeout(WAIT):
                while not connections.counts.late:
                    await asyncio.sleep(0)
            for _ in range(20):
                connections.look()
            assert connections.statistics().open == 1
            assert connections.counts.late == 1
            for connection in connections._open:
                connection.shutdown()  # as when the node stops
            connections.look()

    uvloop.run(with_http(security, be_late, connections))


@pytest.fixture
def run_quietly(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> Callable[[Coroutine[Any, Any, None]], None]:
    """Runs what serves and stops. It must end before asyncio gives a client up, and log nothing."""
    monkeypatch.setattr(thrift_serving, "CONFIRM_SECONDS", 0.01)
    monkeypatch.setattr("asyncio.constants.SSL_SHUTDOWN_TIMEOUT", 10 * WAIT)

    def run(serving: Coroutine[Any, Any, None]) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(WAIT):
                await serving

        uvloop.run(bounded())
        assert not caplog.records

    return run


@pytest.mark.parametrize("serve", [with_http, with_thrift])
def test_a_node_stops_at_once_although_a_client_does_not_confirm_the_end_of_tls(
    serve: Any, authority: trustme.CA, security: ssl.SSLContext, run_quietly: Any
) -> None:
    with ExitStack() as opened:

        async def connect_only(address: tuple[str, int]) -> None:
            opened.enter_context(await asyncio.to_thread(silent_client, authority, address))

        run_quietly(serve(security, connect_only))


@pytest.mark.parametrize("serve", [with_http, with_thrift])
def test_a_node_stops_soon_after_its_last_answer_to_a_client_that_does_not_confirm_the_end_of_tls(
    serve: Any, authority: trustme.CA, security: ssl.SSLContext, run_quietly: Any
) -> None:
    asked, is_stopping = asyncio.Event(), asyncio.Event()

    async def answer(*_: Any) -> list[str]:
        asked.set()
        await is_stopping.wait()
        return ["d1"]

    class Slow(Toy):
        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            await answer()
            await super().__call__(scope, receive, send)

    with ExitStack() as opened:

        async def ask(address: tuple[str, int]) -> None:
            client = await asyncio.to_thread(silent_client, authority, address)
            opened.enter_context(client)
            if serve is with_http:
                client.sendall(b"GET /1 HTTP/1.1\r\nHost: a\r\n\r\n")
            else:
                client.sendall(request("get_all_databases"))
            await asked.wait()
            # The node begins to stop before this is called.
            asyncio.get_running_loop().call_later(0.05, is_stopping.set)

        more = {"app": Slow()} if serve is with_http else {"handler": lambda *_: answer()}
        run_quietly(serve(security, ask, **more))


def test_a_client_that_ends_tls_during_its_call_leaves_no_line_in_the_log(
    authority: trustme.CA, security: ssl.SSLContext, run_quietly: Any
) -> None:
    asked, has_left = asyncio.Event(), asyncio.Event()

    async def answer() -> list[str]:
        asked.set()
        await has_left.wait()
        return ["d1"]

    async def leave(address: tuple[str, int]) -> None:
        with await asyncio.to_thread(silent_client, authority, address) as client:
            client.sendall(request("get_all_databases"))
            await asked.wait()
            await asyncio.to_thread(client.unwrap)
            has_left.set()

    run_quietly(with_thrift(security, leave, handler=lambda *_: answer()))


HIVE, HTTP = "the Hive port listens on 0.0.0.0", "the HTTP port listens on 0.0.0.0"


@pytest.mark.parametrize(
    ("settings", "warnings"),
    [
        (Settings(), []),
        (Settings(host="0.0.0.0"), [HIVE, HTTP]),
        (Settings(host="0.0.0.0", users_file="users"), [HIVE]),
        (Settings(host="0.0.0.0", users="ann:sha256:…"), [HIVE]),
        (Settings(thrift_host="0.0.0.0"), [HIVE]),
        (Settings(host="0.0.0.0", thrift_host="127.0.0.1", users_file="users"), []),
    ],
)
def test_a_network_port_without_authentication_is_logged_as_a_warning(
    settings: Settings, warnings: list[str]
) -> None:
    with log_lines() as lines:
        node_server._warn_of_open_ports(settings)
    assert [line["message"].partition(",")[0] for line in lines.of("node")] == warnings


def test_a_delay_other_than_that_of_the_catalog_is_logged_as_a_warning(tmp_path: Path) -> None:
    Node.open(tmp_path, settings=Settings(delay_ms=5)).close()
    given = Settings(delay_ms=7, clock_skew_ms=0)
    with Node.open(tmp_path, settings=given) as node, log_lines() as lines:
        node_server._warn_of_settings_at_creation(node)
    (line,) = lines.of("node")
    assert line["message"].startswith("delay_ms is 7, but the catalog was created with 5;")


def test_a_node_has_the_hosts_and_the_users_of_its_settings(tmp_path: Path) -> None:
    token = new_token(tmp_path / "users", "ann")
    settings: dict[str, Any] = {
        "users": (tmp_path / "users").read_text(),
        "allowed_hosts": ("lake.example",),
        "thrift_host": "127.0.0.2",
    }
    with closing(ServedNode(new_store("folder", tmp_path), **settings)) as node:
        assert node.thrift_address.startswith("127.0.0.2:")
        call = partial(httpx.post, f"{node.url}/v1/tables", json={"schema": "default"})
        assert call().status_code == 401
        for host, status in (("lake.example", 200), ("other.example", 403)):
            assert call(auth=("ann", token), headers={"Host": host}).status_code == status


def test_a_node_with_few_descriptors_refuses_connections_and_goes_on(tmp_path: Path) -> None:
    with closing(ServedNode(new_store("folder", tmp_path), plants=[few_descriptors])) as node:
        with ExitStack() as opened:
            for _ in range(20):
                opened.enter_context(node.thrift()).call("getStatus")
            with node.thrift() as refused, pytest.raises(ApplicationException, match="20 open"):
                refused.call("getStatus")
            with node.session() as session:
                assert session.execute(CreateSchema(name="a")).version
        with ExitStack() as opened:
            http = urlsplit(node.url)
            for _ in range(20):
                opened.enter_context(socket.create_connection((http.hostname, http.port)))
            assert node.statistics()["code"] == "overloaded"
        with node.thrift() as client:
            assert "a" in client.call("get_all_databases")


@pytest.mark.parametrize(
    ("soft", "hard", "has_tls", "raised_to", "for_each_port"),
    [
        (1024, RLIM_INFINITY, False, MAX_DESCRIPTORS, (MAX_DESCRIPTORS - OWN_DESCRIPTORS) // 2),
        (1024, 4096, False, 4096, (4096 - OWN_DESCRIPTORS) // 2),
        (1024, 4096, True, 4096, (4096 - OWN_DESCRIPTORS) // 4),
        (100, 200, False, 200, LEAST_CONNECTIONS),
        (100_000, 100_000, False, None, (100_000 - OWN_DESCRIPTORS) // 2),
        (RLIM_INFINITY, RLIM_INFINITY, False, None, MAX_DESCRIPTORS),
    ],
)
def test_a_node_raises_its_limit_of_open_files_and_warns_if_that_is_too_low(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    soft: int,
    hard: int,
    has_tls: bool,
    raised_to: int | None,
    for_each_port: int,
) -> None:
    limits = [(soft, hard)]
    monkeypatch.setattr(resource, "getrlimit", lambda which: limits[0])
    monkeypatch.setattr(resource, "setrlimit", lambda which, given: limits.append(given))
    assert node_server._allow_connections(has_tls=has_tls) == for_each_port
    assert limits[1:] == ([] if raised_to is None else [(raised_to, hard)])
    assert ("LimitNOFILE" in caplog.text) == (for_each_port < 1_000)


def test_a_node_ends_with_an_error_when_one_of_its_threads_has_ended(tmp_path: Path) -> None:
    """It would be reported as healthy, and its callers would wait for the thread."""
    store = new_store("folder", tmp_path)
    Node.open(store.address, settings=store.settings).close()
    with closing(ServedNode(store, plants=[committer_dies])) as node:
        with node.session() as session, pytest.raises(StrandlineError):
            session.execute(CreateSchema(name="a"))
        assert node.ended() == 1


def test_a_node_ends_with_an_error_when_the_process_that_starts_children_has_ended(
    tmp_path: Path,
) -> None:
    """It cannot start another, and would refuse every large call while it is reported as alive."""
    with closing(ServedNode(new_store("folder", tmp_path), plants=[forks_no_children])) as node:
        assert node.ended() == 1


def test_a_node_whose_catalog_was_set_back_ends_also_while_another_process_writes(
    tmp_path: Path,
) -> None:
    store = new_store("folder", tmp_path)
    with (
        ThreadPoolExecutor() as pool,
        closing(ServedNode(store, plants=[stops_patiently])) as node,
        node.session() as session,
        closing(connect(tmp_path / DATABASE_FILE, timeout=WAIT)) as other,
    ):
        at = session.open([]).time
        other.execute("BEGIN IMMEDIATE")
        change = pool.submit(session.execute, CreateSchema(name="a"))
        hold = pool.submit(session.hold, "reader", "ann", at=at)
        while not node.statistics()["database"]["waiting"]:
            time.sleep(0)
        node.tell("set_back")
        assert node.ended() == 1
        assert isinstance(change.exception(), Stopping)
        session.close()  # it would repeat the hold for a minute
        assert isinstance(hold.exception(), Stopping)


def test_a_thread_of_a_library_that_exits_does_not_end_the_node() -> None:
    with node_server._ended_thread() as ended:
        thread = threading.Thread(target=sys.exit)
        thread.start()
        thread.join()
        assert not ended.done()


def test_a_signal_that_the_parent_process_ignores_does_not_stop_a_node() -> None:
    """Under nohup, this is SIGHUP: the node goes on when its terminal is closed."""

    async def handler() -> object:
        node_server._stop_at_signals()
        return signal.getsignal(signal.SIGHUP)

    former = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert uvloop.run(handler()) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, former)
