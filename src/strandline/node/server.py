"""Serving a node: the Hive Metastore protocol and HTTP, on one event loop.

`serve` runs in the foreground until a signal stops it. When both ports accept connections, it
passes one line with their addresses to its caller, which prints it. So the process that started the
node knows when and where to connect.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import resource
import signal
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, InvalidStateError
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any, cast

import uvicorn
import uvloop

from strandline import __version__, work
from strandline.config import Settings
from strandline.durable import SetBack
from strandline.errors import AddressInUse, InvalidInput, StrandlineError
from strandline.logs import kept
from strandline.metastore.call_log import CallLog
from strandline.metastore.hive import HiveMetastoreService
from strandline.metastore.hive.service import SERVICE as HIVE
from strandline.metastore.session.callers import is_loopback
from strandline.metastore.session.http_app import SERVICE as HTTP
from strandline.metastore.session.http_app import HttpApplication, answer_task
from strandline.metastore.thrift import HIVE_CODEC, ServerSettings, ThriftServer
from strandline.metastore.thrift.listening import BACKLOG, listen
from strandline.metastore.workers import Workers
from strandline.node.certificate import serving_context
from strandline.node.chores import Chores
from strandline.node.http_connections import MAX_CONNECTIONS, HttpConnections
from strandline.node.monitoring import Monitoring
from strandline.node.node import Node
from strandline.node.users import Users
from strandline.work.child_pool import ChildPool
from strandline.work.children import Announce, Fields, ForkServer, Service
from strandline.work.contents import Content
from strandline.work.served_store import ServedStore
from strandline.work.time_slices import shorten_time_slices

logger = logging.getLogger("strandline.node")

TICK_SECONDS = 1.0
COLLECTING_SECONDS = 60.0
"""Seconds between two collections of garbage."""
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
MAX_DESCRIPTORS = 65_536
"""The limit of open files and connections that a node sets for itself, if the system allows it."""
OWN_DESCRIPTORS = 300
"""Descriptors that are not left to connections of clients: files, the store, child processes."""
LEAST_CONNECTIONS = 16
"""Connections that each port accepts however few descriptors the system allows."""


class _HttpServer(uvicorn.Server):
    """uvicorn without its own signal handling: the node decides when to stop, and calls `leave`.

    So the server does not check ten times a second whether to stop, as uvicorn does. It speaks TLS
    if ``security`` is given, with at most ``max_handshakes`` at a time.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        security: ssl.SSLContext | None = None,
        *,
        max_handshakes: int = MAX_CONNECTIONS,
    ) -> None:
        super().__init__(config)
        self._security = security
        self._max_handshakes = max_handshakes
        self._leaving = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen on ``sockets``. uvicorn's own method would wait a minute for a TLS handshake."""
        new_connection = partial(
            cast(Callable[..., asyncio.Protocol], self.config.http_protocol_class),
            config=self.config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
        )
        servers = [
            await listen(
                new_connection,
                listening,
                security=self._security,
                max_handshakes=self._max_handshakes,
            )
            for listening in sockets or ()
        ]
        self.servers = cast(list[asyncio.Server], servers)  # uvicorn closes them, no more
        self.started = True

    def leave(self) -> None:
        """Stop the server. Call it on the event loop."""
        self.should_exit = True
        self._leaving.set()

    async def main_loop(self) -> None:
        """Tick every second until `leave` is called. A tick sets the date in the headers."""
        while not await self.on_tick(0):
            with suppress(TimeoutError):
                await asyncio.wait_for(self._leaving.wait(), TICK_SECONDS)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture nothing; see the class."""
        yield


def _listen(host: str, port: int, *, what: str) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(BACKLOG)
    except OSError as error:
        listening.close()
        if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
            raise InvalidInput(
                f"{host!r} is not an address of this machine: {error.strerror}; name one of its "
                "addresses, or 0.0.0.0 for all of them"
            ) from error
        raise AddressInUse(
            f"port {port} of {host} cannot be used for {what}: {error.strerror}; stop what listens "
            "there or choose another port (0 takes a free one)"
        ) from error
    return listening


def _shown(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


async def _serve(
    node: Node,
    settings: Settings,
    ready: Callable[[str], None],
    *,
    forks: ForkServer,
    users: Users | None,
    security: ssl.SSLContext | None,
    max_connections: int,
    thrift_socket: socket.socket,
    http_socket: socket.socket,
) -> None:
    stop = _stop_at_signals()
    workers = Workers(threads=settings.call_threads, max_calls=settings.max_calls)
    catalogs = node.catalogs
    children = ChildPool(
        lambda *, only_reads: forks.child(node.served_store(), only_reads=only_reads),
        on_announced=catalogs.expect,
        on_ended=catalogs.child_ended,
        timeline=node.database.timeline,
    )
    service = HiveMetastoreService(node.metastore, workers=workers, children=children)
    calls = CallLog(settings.slow_call_ms)
    served = ServerSettings(max_connections=min(max_connections, ServerSettings().max_connections))
    thrift = ThriftServer(service.dispatcher, calls=calls, settings=served)
    await thrift.start(thrift_socket, security=security)
    max_http = min(max_connections, MAX_CONNECTIONS)
    connections = HttpConnections(max_connections=max_http)
    statistics = {
        **node.statistics,
        "workers": workers.statistics,
        "children": children.statistics,
        "connections": connections.statistics,
        "thrift": thrift.statistics,
        "hive": service.statistics,
    }
    monitoring = Monitoring(catalogs, node.health, statistics, calls)
    application = HttpApplication(
        node.metastore,
        workers=workers,
        children=children,
        authenticate=None if users is None else users.accepts,
        calls=calls,
        hosts=(settings.host, *settings.allowed_hosts),
        pages=monitoring.pages,
    )
    monitoring.add("http", application.statistics)
    config = _uvicorn_config(application, connections)
    http = _HttpServer(config, security, max_handshakes=max_http)
    serving = asyncio.create_task(http.serve(sockets=[http_socket]))
    scheme = "http" if security is None else "https"
    addresses = f"thrift://{_shown(thrift_socket)} {scheme}://{_shown(http_socket)}"
    ready(f"ready {addresses}")
    _warn_of_open_ports(settings)
    _warn_of_settings_at_creation(node)
    _log_start(node, addresses)
    failure = await _end_of(node, serving, stop, forks)
    children.stop_waiting()
    http.leave()
    await thrift.stop()
    await serving
    node.give_up()
    children.close()
    workers.close()
    if failure is not None:
        raise failure


def _stop_at_signals() -> asyncio.Event:
    """Return an event that is set at the first of `STOP_SIGNALS`."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in STOP_SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup does with SIGHUP
            loop.add_signal_handler(number, _on_stop_signal, stop, number)
    return stop


def _uvicorn_config(application: HttpApplication, connections: HttpConnections) -> uvicorn.Config:
    return uvicorn.Config(
        application,
        http=cast(type[asyncio.Protocol], connections.protocol),
        ws="none",
        proxy_headers=False,  # the client's address is that of the socket
        log_config=None,  # uvicorn logs through the handlers of this process, in their format
        log_level="warning",
        lifespan="off",
        timeout_graceful_shutdown=5,
        access_log=False,
        server_header=False,
    )


def _log_start(node: Node, addresses: str) -> None:
    logger.info(
        "started: release %s serves the store in %s at %s",
        __version__,
        node.name,
        addresses,
        extra=kept(catalog_version=node.catalogs.latest_catalog().version, member=node.member),
    )


async def _end_of(
    node: Node, serving: asyncio.Task[None], stop: asyncio.Event, forks: ForkServer
) -> StrandlineError | None:
    """Wait until the node has to stop. Return the error if that is not intended."""
    stopping = asyncio.create_task(stop.wait())
    loop, forks_ended = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(forks, forks_ended.set)
    no_forks = asyncio.create_task(forks_ended.wait())
    replaced = asyncio.wrap_future(node.replaced)
    set_back = asyncio.wrap_future(node.catalogs.set_back)
    with _ended_thread() as in_thread:
        ended_thread = asyncio.wrap_future(in_thread)
        ends: list[asyncio.Future[Any]] = [stopping, no_forks, replaced, set_back, ended_thread]
        await asyncio.wait([serving, *ends], return_when=asyncio.FIRST_COMPLETED)
    loop.remove_reader(forks)
    if replaced.done():
        logger.warning("stopping: %s", replaced.result(), extra=kept())
    node.stop_waiting()  # another process may hold the write lock for long
    failure: StrandlineError | None = None
    if set_back.done():
        failure = SetBack(set_back.result())
    elif ended_thread.done():
        failure = StrandlineError(ended_thread.result())
    elif no_forks.done():  # another cannot be forked: the node has threads and open databases
        failure = StrandlineError(
            "the process that starts the children of this node has ended; start the node again"
        )
    if failure is not None:
        logger.error("stopping: %s", failure, extra=kept())
        await asyncio.to_thread(node.catalogs.stop)  # calls may wait for the thread that ended
    for end in ends:
        end.cancel()
    return failure


@contextmanager
def _ended_thread() -> Iterator[Future[str]]:
    """A future with a message, which completes when a thread of this process ends by an error.

    Threads handle the errors of their work. Another error, for example a lack of memory, may end
    one, and calls would wait for it in vain.
    """
    ended: Future[str] = Future()
    log = threading.excepthook

    def report(error: threading.ExceptHookArgs, /) -> None:
        if error.exc_type is SystemExit:  # it ended by intention
            return
        log(error)
        name = "?" if error.thread is None else error.thread.name
        with suppress(InvalidStateError):  # another thread was first
            ended.set_result(
                f"the thread {name} of this node ended with an unexpected error "
                f"({error.exc_type.__name__}: {error.exc_value}); start the node again"
            )

    threading.excepthook = report
    try:
        yield ended
    finally:
        threading.excepthook = log


def _security(settings: Settings) -> ssl.SSLContext | None:
    """Return a TLS context with the certificate of the settings, or None if they name none.

    Raises `InvalidInput` if the certificate cannot be read.
    """
    if not settings.tls_certificate:
        if settings.tls_key:
            raise InvalidInput("tls_key is set without tls_certificate; set both, or neither")
        return None
    return serving_context(settings.tls_certificate, settings.tls_key)


def _users(settings: Settings) -> Users | None:
    """The users of the HTTP port, or None if it does not authenticate its clients."""
    path = Path(settings.users_file) if settings.users_file else None
    return Users(path, settings.users) if path or settings.users else None


def _warn_of_open_ports(settings: Settings) -> None:
    """Log a warning for each port that other machines can reach without authentication."""
    open_ports = [
        (
            "the Hive port",
            settings.thrift_host or settings.host,
            "let only machines that you trust reach it",
        )
    ]
    if not (settings.users_file or settings.users):
        open_ports.append(("the HTTP port", settings.host, "set users_file"))
    for port, address, remedy in open_ports:
        if not is_loopback(address):
            logger.warning(
                "%s listens on %s, without authentication of its clients; keep it on loopback, "
                "or %s",
                port,
                address,
                remedy,
            )


def _warn_of_settings_at_creation(node: Node) -> None:
    """Log a warning for each setting of a new catalog that differs from that of this catalog."""
    settings, catalogs = node.settings, node.catalogs
    for name, given, present in (
        ("delay_ms", settings.delay_ms, catalogs.delay),
        ("clock_skew_ms", settings.clock_skew_ms, catalogs.skew),
    ):
        if given is not None and given != present:
            logger.warning(
                "%s is %d, but the catalog was created with %d; leave it out: it cannot be changed",
                name,
                given,
                present,
            )


def _on_stop_signal(stop: asyncio.Event, number: signal.Signals) -> None:
    logger.info("stopping: %s was received", number.name, extra=kept())
    stop.set()


def _allow_connections(*, has_tls: bool) -> int:
    """Raise the limit of open files to `MAX_DESCRIPTORS`, or as far as the system allows.

    The usual limit is 1,024, and each port alone may have that many connections, and with TLS as
    many handshakes. Return how many each port may have, so that the node keeps `OWN_DESCRIPTORS`.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MAX_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
        soft = limit
    if soft == resource.RLIM_INFINITY:
        return MAX_DESCRIPTORS
    shares = 4 if has_tls else 2
    connections = max(LEAST_CONNECTIONS, (soft - OWN_DESCRIPTORS) // shares)
    if connections < MAX_CONNECTIONS:
        logger.warning(
            "this process may open only %d files, so each port accepts only %d connections; raise "
            "the limit (LimitNOFILE in systemd, --ulimit nofile of a container)",
            soft,
            connections,
        )
    return connections


@contextmanager
def open_child(
    store: str | Path,
    settings: Settings,
    announce: Announce,
    served: ServedStore | None,
    *,
    origins: Mapping[str, str] | None = None,
) -> Iterator[Service]:
    """Open the ``store``; yield the service that answers tasks. Raises as `Node.open` does.

    A child process answers the same calls as the node, but without the node's background work. It
    does not cache rows, because it gets few calls, each about many rows.
    """
    with Node.open(
        store,
        settings=settings,
        served=served,
        background=False,
        announce=announce,
        origins=origins,
    ) as node:
        hive = HiveMetastoreService(node.metastore)

        def answer(fields: Fields, data: bytes) -> tuple[Fields, bytes | Content]:
            match fields["service"]:
                case str(service) if service == HIVE:
                    return hive.answer_task(fields, data)
                case str(service) if service == HTTP:
                    return answer_task(node.metastore, fields, data)
                case unknown:
                    raise ValueError(f"a child has no service {unknown!r}")

        yield Service(answer, node.stop_waiting)


def serve(
    store: str | Path,
    *,
    settings: Settings,
    ready: Callable[[str], None],
    origins: Mapping[str, str] | None = None,
) -> None:
    """Run a node on ``store`` until one of `STOP_SIGNALS`; call ``ready`` with the one line.

    ``origins`` are those of the ``settings``, for users who ask. Also returns when a newer deploy
    generation has taken over the store. Call it in a process that has a single thread, because it
    forks the server of child processes.

    Raises what `Node.open` raises, `AddressInUse`, `SetBack` if the store has lost versions of the
    catalog, so that a supervisor starts the node again, and `InvalidInput` if the users file or the
    certificate cannot be read. Both ports are bound before the store is opened, so a node that
    cannot listen does not create a store.
    """
    users = _users(settings)
    security = _security(settings)
    max_connections = _allow_connections(has_tls=security is not None)
    # The first request would load this on the event loop, which takes tens of milliseconds.
    HIVE_CODEC.prepare("Table", "Partition", "Database")
    work.settle_interpreter()
    shorten_time_slices()
    with ExitStack() as open_resources:
        # First, because it forks: nothing is open yet, and there is only one thread.
        forks = open_resources.enter_context(
            closing(ForkServer.start(partial(open_child, store, settings, origins=origins)))
        )
        thrift_host = settings.thrift_host or settings.host
        thrift_socket = open_resources.enter_context(
            _listen(thrift_host, settings.thrift_port, what="the Hive Metastore protocol")
        )
        http_socket = open_resources.enter_context(
            _listen(settings.host, settings.http_port, what="HTTP")
        )
        node = open_resources.enter_context(
            Node.open(store, settings=settings, keeps_cache=True, origins=origins)
        )
        # Requests leave garbage: an error, for example, refers to the request that it ended.
        open_resources.enter_context(Chores()).repeat(
            "garbage",
            {"collecting garbage": work.collect_garbage},
            pauses=repeat(COLLECTING_SECONDS),
        )
        uvloop.run(
            _serve(
                node,
                settings,
                ready,
                forks=forks,
                users=users,
                security=security,
                max_connections=max_connections,
                thrift_socket=thrift_socket,
                http_socket=http_socket,
            )
        )
    logger.info("stopped", extra=kept(store=node.name, member=node.member))
