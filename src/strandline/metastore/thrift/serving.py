"""What a server and its connections share: settings, counters, and what each knows of the other."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from strandline.metastore.call_log import DEFAULT_SLOW_MS
from strandline.metastore.request_memory import ANSWER_BYTES, RequestMemory
from strandline.metastore.thrift.codec import Codec
from strandline.metastore.thrift.dispatch import BaseService, Dispatcher
from strandline.metastore.thrift.messages import MAX_MESSAGE_BYTES
from strandline.metastore.thrift.slices import Slices


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """``idle_timeout`` is in seconds without a byte in or out; 0 keeps idle connections for ever.

    ``message_timeout`` is how many seconds a client may take to send one message, and to read on
    after it stopped reading; 0 for ever. Where ``max_connections`` are open, a new one takes the
    place of the longest idle one that has been so for ``displace_after`` seconds.
    ``max_pipelined_bytes`` bounds the requests of one connection that wait behind one in work,
    ``request_memory_bytes`` what large requests of all connections take, whole or not, and
    ``answer_memory_bytes`` what is answered to all of them and not yet sent; a single answer may be
    larger than that. A call that takes longer than ``slow_call_ms`` is logged.
    """

    max_connections: int = 1000
    idle_timeout: float = 600.0
    max_message_bytes: int = MAX_MESSAGE_BYTES
    max_pipelined_bytes: int = 256 * 1024
    slow_call_ms: int = DEFAULT_SLOW_MS
    message_timeout: float = 120.0
    displace_after: float = 1.0
    request_memory_bytes: int = 512 * 1024 * 1024
    answer_memory_bytes: int = ANSWER_BYTES


@dataclass(slots=True)
class Counters:
    """What a server counts; see `ServerStatistics`."""

    accepted: int = 0
    refused: int = 0
    idle_closed: int = 0
    displaced: int = 0
    late_closed: int = 0
    requests: int = 0
    fast_answers: int = 0
    exceptions: int = 0
    failures: int = 0
    protocol_errors: int = 0
    bytes_received: int = 0
    bytes_sent: int = 0
    foreign: dict[str, int] = field(default_factory=dict)

    def count_foreign(self, protocol: str) -> None:
        self.foreign[protocol] = self.foreign.get(protocol, 0) + 1


class Serving(Protocol):
    """The server as a connection sees it."""

    loop: asyncio.AbstractEventLoop
    dispatcher: Dispatcher
    settings: ServerSettings
    codec: Codec
    counters: Counters
    base: BaseService
    running: set[asyncio.Task[Any]]
    slices: Slices
    memory: RequestMemory
    answers: RequestMemory

    @property
    def reply_heads(self) -> Mapping[bytes, bytes]: ...

    def admit(self, connection: Any, /) -> bool:  # Any: the connection that asks
        """Whether a new connection may stay."""

    def forget(self, connection: Any, /) -> None:  # Any: the connection that ended
        """The connection is gone."""
