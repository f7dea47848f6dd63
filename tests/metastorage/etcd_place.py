"""One place in a real etcd, accessed through stores and through its raw keys."""

from __future__ import annotations

from contextlib import ExitStack

from strandline.clock import HybridClock
from strandline.metastorage.etcd.access import parse_etcd_url
from strandline.metastorage.etcd.gateway import EtcdGateway
from strandline.metastorage.etcd.layout import EtcdKeys
from strandline.metastorage.etcd.operations import Pair
from strandline.metastorage.etcd.store import EtcdMetastorage
from tests.conftest import ManualWall
from tests.servers import etcd


class EtcdPlace:
    """One place in the server: its stores, and the keys under its prefix."""

    def __init__(self, stack: ExitStack) -> None:
        self.server = etcd.running()
        self.url = self.server.new_prefix()
        address = parse_etcd_url(self.url)
        self.keys = EtcdKeys(address.prefix)
        self.gateway = EtcdGateway(address, timeout=30)
        self._stack = stack
        stack.callback(self.gateway.close)

    def node(
        self,
        wall: ManualWall | None = None,
        *,
        url: str | None = None,
        timeout: float = 30.0,
        changes_kept: int = 100,
    ) -> EtcdMetastorage:
        clock = HybridClock() if wall is None else HybridClock(wall)
        store = EtcdMetastorage(url or self.url, clock, timeout=timeout, changes_kept=changes_kept)
        self._stack.callback(store.close)
        return store

    def everything(self) -> list[Pair]:
        """All keys of the place, with their values."""
        prefix = parse_etcd_url(self.url).prefix.encode()
        return self.gateway.range(prefix + b"/", prefix + b"0").pairs

    def chunks(self) -> list[Pair]:
        """All chunks of all values, without their contents."""
        start, end = self.keys.chunk_bound(""), self.keys.chunks_end
        return self.gateway.range(start, end, keys_only=True).pairs

    def do(self, *operations: dict[str, object]) -> None:
        """Change keys directly, as a program does that does not know what they mean."""
        self.gateway.txn([], operations, repeatable=False)
