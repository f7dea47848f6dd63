"""The server of the Hive Metastore protocol: it admits connections, watches them and stops.

`connection` has the client's side of it, and `dispatch` computes the answers. Everything runs on
one event loop, and nothing here blocks it.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from strandline.metastore.call_log import CallLog
from strandline.metastore.thrift.connection import Connection
from strandline.metastore.thrift.dispatch import BaseService, Dispatcher
from strandline.metastore.thrift.listening import Listener, listen
from strandline.metastore.thrift.serving import Counters, ServerSettings, Serving, crowding_host

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ServerStatistics:
    """What a server has done since it started.

    ``refused`` connections were turned away; ``connections`` includes those of them that are still
    open. ``displaced`` are silent ones that were closed in favour of new ones. ``late_closed`` are
    those whose client took too long to send a message or to read its answers. ``request_memory`` is
    what large requests hold now, and ``answer_memory`` what long unsent answers hold; ``full``
    counts the refusals for lack of either. ``exceptions`` are answers of the type exception
    (unknown methods, bad arguments, internal errors); ``failures`` are unintended errors.
    ``foreign`` counts the connections that were closed because they used another protocol, by its
    name. ``kept`` counts by method the ``fast_answers``, which were kept from an earlier call.
    """

    connections: int
    accepted: int
    refused: int
    idle_closed: int
    displaced: int
    late_closed: int
    request_memory: int
    answer_memory: int
    full: int
    requests: int
    running: int
    fast_answers: int
    exceptions: int
    failures: int
    protocol_errors: int
    bytes_received: int
    bytes_sent: int
    foreign: Mapping[str, int]
    kept: Mapping[str, int]


class ThriftServer(Serving):
    """Serves ``dispatcher`` after `start`.

    ``now`` returns seconds since the epoch; clients can ask when the server started.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        *,
        settings: ServerSettings | None = None,
        calls: CallLog | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        base = BaseService(started=int(now()), counters=self._shown_counters)
        super().__init__(dispatcher, base, settings or ServerSettings(), calls or CallLog())
        self._connections: set[Connection] = set()
        self._turned_away: dict[Connection, None] = {}  # in their order; also in _connections
        self._empty = asyncio.Event()
        self._listening: Listener | None = None
        self._watch: asyncio.TimerHandle | None = None
        self._stopping = False

    async def start(
        self, listening: socket.socket, *, security: ssl.SSLContext | None = None
    ) -> None:
        """Accept the connections of a socket, with TLS if ``security`` is given."""
        self.loop = asyncio.get_running_loop()
        self._listening = await listen(
            self._connect,
            listening,
            security=security,
            max_handshakes=self.settings.max_connections,
        )
        self._watch_idle()

    async def stop(self, *, grace: float = 5.0) -> None:
        """Accept no more connections and requests, and end.

        Requests in progress get ``grace`` seconds to finish; then they are cancelled.
        """
        self._stopping = True
        if self._watch is not None:
            self._watch.cancel()
        if self._listening is not None:
            self._listening.close()
        for connection in list(self._connections):
            connection.stop()
        waits = [self.loop.create_task(self._all_gone()), *self.running]
        _, late = await asyncio.wait(waits, timeout=grace)
        if late:
            _log.warning("requests in progress did not end within %s s; they are cancelled", grace)
        for task in late:
            task.cancel()
        for connection in list(self._connections):
            connection.abort()
        await asyncio.gather(*late, return_exceptions=True)
        await self._all_gone()

    def statistics(self) -> ServerStatistics:
        counted = {
            name: getattr(self.counters, name)
            for name in Counters.__slots__
            if name not in ("foreign", "kept")
        }
        kept = {name.decode(): count for name, count in self.counters.kept.copy().items()}
        return ServerStatistics(
            connections=len(self._connections),
            running=len(self.running),
            request_memory=self.memory.taken,
            answer_memory=self.answers.taken,
            full=self.memory.refused + self.answers.refused,
            fast_answers=sum(kept.values()),
            foreign=MappingProxyType(dict(self.counters.foreign)),
            kept=MappingProxyType(kept),
            **counted,
        )

    # Called by connections ----------------------------------------------------------------------

    def _admit(self, connection: Connection) -> bool:
        """Whether a new connection is accepted. If not, it is turned away, or aborted at a stop."""
        if self._stopping:
            connection.abort()
            return False
        served = len(self._connections) - len(self._turned_away)
        is_accepted = served < self.settings.max_connections or self._make_room(connection)
        self._connections.add(connection)
        if is_accepted:
            self.counters.accepted += 1
        else:
            self._turn_away(connection)
        return is_accepted

    def _make_room(self, newcomer: Connection) -> bool:
        """Close the connection that has been silent longest, if it has been silent long enough.

        A client that has ever sent a request is not harmed by those that come after it, unless its
        machine has so many connections that other machines get none.
        """
        served = [other for other in self._connections if other not in self._turned_away]
        crowding = crowding_host(
            (other.info.host for other in served),
            limit=self.settings.max_connections,
            but=newcomer.info.host,
        )
        latest = time.monotonic() - self.settings.displace_after
        idle = [each for each in served if each.last_activity <= latest and not each.in_work]
        silent = [each for each in idle if each.is_silent]
        of_crowd = [each for each in idle if each.info.host == crowding]
        longest = min(silent or of_crowd, key=lambda each: each.last_activity, default=None)
        if longest is None:
            return False
        self.counters.displaced += 1
        self._drop(longest)
        return True

    def _turn_away(self, connection: Connection) -> None:
        self.counters.refused += 1
        hosts = Counter(other.info.host for other in self._connections)
        (host, count), *_ = hosts.most_common(1)
        _log.warning(
            "refused the connection from %s: %d are open, which is the maximum; most of them, %d, "
            "are from %s; close idle clients there",
            connection.info.peer,
            self.settings.max_connections,
            count,
            host,
        )
        self._turned_away[connection] = None
        if len(self._turned_away) > self.settings.max_turned_away:
            self._drop(next(iter(self._turned_away)))

    def _drop(self, connection: Connection) -> None:
        connection.abort()
        self._forget(connection)

    def _forget(self, connection: Connection) -> None:
        self._connections.discard(connection)
        self._turned_away.pop(connection, None)
        if not self._connections:
            self._empty.set()

    def _connect(self) -> Connection:
        number = self.counters.accepted + self.counters.refused + 1
        return Connection(self, number, admit=self._admit, forget=self._forget)

    async def _all_gone(self) -> None:
        while self._connections:
            self._empty.clear()
            await self._empty.wait()

    def _watch_idle(self) -> None:
        """Close the connections that have been inactive for too long; repeat at intervals."""
        idle, message = self.settings.idle_timeout, self.settings.message_timeout
        now = time.monotonic()
        for connection in list(self._connections):
            if message > 0 and connection.is_late(now - message):
                self.counters.late_closed += 1
                _log.warning(
                    "closed the connection from %s: it did not send a whole message, or read its "
                    "answers, within %g seconds",
                    connection.info.peer,
                    message,
                )
                connection.abort()
            elif idle > 0 and not connection.in_work and connection.last_activity <= now - idle:
                self.counters.idle_closed += 1
                _log.info("closed the idle connection from %s", connection.info.peer)
                connection.abort()
        pause = min([timeout for timeout in (idle, message) if timeout > 0], default=60.0) / 4
        self._watch = self.loop.call_later(pause, self._watch_idle)

    def _shown_counters(self) -> dict[str, int]:
        shown = self.statistics()
        return {
            name: value
            for name in shown.__slots__
            if isinstance(value := getattr(shown, name), int)
        }
